"""Errors a user can fix: the command line prints one line and exits with the `exit_code`.

A name that is unknown is matched against the choices: in any case, or as a likely typo.
"""

from collections.abc import Iterable, Mapping, Sequence
from os.path import commonprefix
from typing import Final


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


def refuse(
    error: type[AnalyzeError], *rules: tuple[object, str], arguments: Sequence[str] = ()
) -> None:
    """Raises an error for the first of some rules that is broken: what is wrong, and the message.

    `arguments` are those that any of the messages name; the error has those that its own does.
    """
    for is_wrong, message in rules:
        if is_wrong:
            raise error(message, arguments=[each for each in arguments if each in message])


# --- what was meant --------------------------------------------------------------------------


_CLOSE: Final = 0.6
"""Least similarity of two names, from 0 to 1, at which one may be a typo of the other."""

_BEHIND: Final = 0.05
"""Names whose similarity is this far below that of the closest one are not suggested."""


def in_any_case(name: str, choices: Iterable[str]) -> str | None:
    """The choice equal to `name` in any case; None if there is none.

    An exact match takes precedence; if several names differ only in case, none matches.
    """
    names = tuple(choices)
    if name in names:
        return name
    folded = name.strip().casefold()
    found = [each for each in names if each.casefold() == folded]
    return found[0] if len(found) == 1 else None


def chosen(argument: str, value: str, choices: Iterable[str]) -> str:
    """The choice that equals an argument's value in any case; raises WorkloadError."""
    names = tuple(choices)
    found = in_any_case(value, names)
    if found is None:
        right = f"{did_you_mean(value, names)}use {', '.join(names)}"
        raise WorkloadError(f"{argument} {value!r} is unknown; {right}", arguments=[argument])
    return found


def near_to(name: str, choices: Iterable[str], most: int = 3) -> tuple[str, ...]:
    """At most `most` choices that are closest to a name, closest first."""
    import difflib  # here because few runs need it

    by_folded = {each.casefold(): each for each in choices}
    typed = name.strip().casefold()
    close = difflib.get_close_matches(typed, by_folded, n=most, cutoff=_CLOSE)
    likeness = [difflib.SequenceMatcher(a=each, b=typed).ratio() for each in close]
    return tuple(
        by_folded[each]
        for each, ratio in zip(close, likeness, strict=True)
        if ratio > likeness[0] - _BEHIND
    )


def is_slip(typed: str, meant: str) -> bool:
    """Whether a character was added, left out, changed or swapped with its neighbour."""
    start = len(commonprefix((typed, meant)))  # noqa: RUF071  # of characters
    a, b = typed[start:], meant[start:]
    return a[1:] == b or a == b[1:] or a[1:] == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


def did_you_mean(
    name: str, choices: Iterable[str], aliases: Mapping[str, str] | None = None
) -> str:
    """`did you mean A or B? ` for a message; empty if no name or alias is close."""
    others = aliases or {}
    close = near_to(name, [*choices, *others])
    meant = list(dict.fromkeys(others.get(each, each) for each in close))
    return f"did you mean {' or '.join(meant)}? " if meant else ""
