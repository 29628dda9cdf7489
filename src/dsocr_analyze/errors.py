"""Errors a user can fix: one base class, and an exit code for each.

The command line turns every `AnalyzeError` into one line on stderr and its `exit_code`.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AnalyzeError",
    "BaselineError",
    "BenchmarkError",
    "ConfigError",
    "DeviceError",
    "DocumentError",
    "FormatError",
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

    The message says what is wrong, and what would be right. `arguments` are the names of arguments
    in it, such as `base_size` or `device='cpu'`, and `the analytic engine`, but none in another
    sense, such as a column: the command line prints its own option names instead.
    """

    exit_code = 2

    def __init__(self, message: str, *, arguments: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.arguments = tuple(arguments)


class WorkloadError(AnalyzeError):
    """A size, mode, token count or batch that describes an impossible workload."""


class PageError(WorkloadError):
    """A page or image whose size cannot be determined."""


class ConfigError(AnalyzeError):
    """A `config.json` that lacks a key or holds a value from which no model can be built."""


class ModelDirectoryError(AnalyzeError):
    """A model directory that is missing, unreadable or incomplete."""


class TrustError(AnalyzeError):
    """Python files of a model directory that nobody has agreed to execute."""


class ModelCodeError(AnalyzeError):
    """Model code that raised while it was imported, built or run."""


class UncountableError(AnalyzeError):
    """A kind of tensor, or an operator, whose cost a trace cannot determine."""


class BenchmarkError(AnalyzeError):
    """A server's benchmark, or a saved one, that predictions cannot be compared with."""


class BaselineError(AnalyzeError):
    """A revision or a saved report that figures cannot be compared with."""


class DeviceError(AnalyzeError):
    """A device, dtype or attention kernel that this machine does not have."""


class DocumentError(AnalyzeError):
    """A page of the documentation whose figures disagree, or which asks for what there is not."""


class OutputError(AnalyzeError):
    """A file, directory or stream that cannot be written."""

    exit_code = 74


class OwnFolderError(AnalyzeError):
    """A folder for the user's own data that cannot be determined, or that others can modify."""


class FormatError(AnalyzeError):
    """An output of an unknown or impossible format, detected before anything is written."""


class StrictError(AnalyzeError):
    """A warning, when warnings are treated as errors."""

    exit_code = 3
