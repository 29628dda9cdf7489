"""Errors a user can mend: one base class, one exit code.

The command line turns every `AnalyzeError` into one line on stderr and its `exit_code`; library
callers catch the class they can act on. Messages name the wrong value and the right ones.
"""

from __future__ import annotations

__all__ = [
    "AnalyzeError",
    "ConfigError",
    "DeviceError",
    "KnowledgeError",
    "ModelCodeError",
    "ModelDirectoryError",
    "OutputError",
    "PageError",
    "StrictError",
    "TrustError",
    "WorkloadError",
]


class AnalyzeError(Exception):
    """Base of every error that dsocr-analyze raises on purpose."""

    exit_code = 2


class WorkloadError(AnalyzeError):
    """A size, mode, token count or batch that describes no possible workload."""


class PageError(WorkloadError):
    """A page or image whose size cannot be had."""


class ConfigError(AnalyzeError):
    """A `config.json` that lacks a key or holds a value no model can be built from."""


class ModelDirectoryError(AnalyzeError):
    """A model directory that is missing, unreadable or incomplete."""


class TrustError(AnalyzeError):
    """Python files of a model directory that nobody has agreed to execute."""


class ModelCodeError(AnalyzeError):
    """Model code that raised while it was imported, built or run."""


class DeviceError(AnalyzeError):
    """A device, dtype or attention kernel that this machine does not have."""


class KnowledgeError(AnalyzeError):
    """A page of the documentation whose formula, closed form and trace disagree."""


class OutputError(AnalyzeError):
    """A file or directory that cannot be written."""


class StrictError(AnalyzeError):
    """A warning that `--strict` turns into a failure."""

    exit_code = 3
