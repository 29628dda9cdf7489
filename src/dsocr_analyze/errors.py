"""Errors a user can fix: the command line prints one line and exits with the `exit_code`."""

from collections.abc import Sequence


class AnalyzeError(Exception):
    """Base of every error that dsocr-analyze raises on purpose.

    The message says what is wrong, and what would be right. `arguments` are those of its words that
    name arguments, such as `base_size` or `device='cpu'`, or the analytic engine: the command line
    prints its own option names instead.
    """

    exit_code = 2

    def __init__(self, message: str, *, arguments: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.arguments = tuple(arguments)


class WorkloadError(AnalyzeError):
    """An impossible size, mode, token count or batch."""


class PageError(WorkloadError):
    """A page or image of unknown size."""


class ConfigError(AnalyzeError):
    """A `config.json` from which no model can be built."""


class ModelDirectoryError(AnalyzeError):
    """A missing, unreadable or incomplete model directory."""


class TrustError(AnalyzeError):
    """Python files of a model directory that nobody has agreed to execute."""


class ModelCodeError(AnalyzeError):
    """Model code that raised."""


class UncountableError(AnalyzeError):
    """A kind of tensor, or an operator, that a trace cannot count."""


class BenchmarkError(AnalyzeError):
    """A benchmark, of a server or saved, that predictions cannot be compared with."""


class BaselineError(AnalyzeError):
    """A revision or saved report that figures cannot be compared with."""


class DeviceError(AnalyzeError):
    """A device, dtype or attention kernel that this machine lacks."""


class DocumentError(AnalyzeError):
    """A page of the documentation that disagrees, or asks for what there is not."""


class OutputError(AnalyzeError):
    """A file, directory or stream that cannot be written."""

    exit_code = 74


class OwnFolderError(AnalyzeError):
    """A folder of the user's own data that is unknown, or that others can modify."""


class FormatError(AnalyzeError):
    """An unknown or impossible output format."""


class ExtraError(AnalyzeError, ImportError):
    """A package that is not installed or cannot be imported; an ImportError, too."""


class StrictError(AnalyzeError):
    """A warning that is treated as an error."""

    exit_code = 3
