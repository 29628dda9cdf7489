"""Errors a user can mend: one base class, and an exit code for each.

The command line turns every `AnalyzeError` into one line on stderr and its `exit_code`; library
callers catch the class they can act on. Messages name the wrong value and the right ones, and call
arguments by the names that a caller of the library knows.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AnalyzeError",
    "BaselineError",
    "BenchmarkError",
    "ConfigError",
    "DeviceError",
    "FormatError",
    "KnowledgeError",
    "ModelCodeError",
    "ModelDirectoryError",
    "OutputError",
    "OwnFolderError",
    "PageError",
    "StrictError",
    "TrustError",
    "UncountableError",
    "WorkloadError",
]


class AnalyzeError(Exception):
    """Base of every error that dsocr-analyze raises on purpose.

    Args:
        message: What is wrong, and what would be right.
        arguments: Names of arguments that the message mentions, as `base_size` or in the form
            `device='cpu'`, and `the analytic engine`; the command line prints its options in
            their place. A name that is no argument where it stands (a column, a key of a config)
            is not among them.
    """

    exit_code = 2

    def __init__(self, message: str, *, arguments: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.arguments = tuple(arguments)


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


class UncountableError(AnalyzeError):
    """A kind of tensor, or an operator, whose cost a trace cannot state."""


class BenchmarkError(AnalyzeError):
    """A server's benchmark, or what is kept of one, that no prediction can be held against."""


class BaselineError(AnalyzeError):
    """A revision or a saved report that figures cannot be compared with."""


class DeviceError(AnalyzeError):
    """A device, dtype or attention kernel that this machine does not have."""


class KnowledgeError(AnalyzeError):
    """A page of the documentation whose formula, closed form and trace disagree."""


class OutputError(AnalyzeError):
    """A file, a directory or a stream that cannot be written."""

    exit_code = 74


class OwnFolderError(AnalyzeError):
    """A place for the user's own things that cannot be told, or that others can change."""


class FormatError(AnalyzeError):
    """An output whose name or kind says that it cannot be made, before anything is written."""


class StrictError(AnalyzeError):
    """A warning, where warnings are failures."""

    exit_code = 3
