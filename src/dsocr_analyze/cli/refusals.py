"""Parser errors in our own words: the option, the value, and what would be right."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.names import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

__all__ = ["refusal", "repeated"]

_RIGHT: Final = {
    "PART": "a number from 0 to 1",
    "LEVELS": "a whole number, 0 or more",
    "PIXELS": "a whole number of pixels",
    "PAGES": "a whole number of pages",
    "TOKENS": "a number of tokens",
    "MS": "a number of milliseconds",
    "AMOUNT": "a number",
    "N": "a number",
}
"""Valid values of an option that takes a number, by the value's name in --help."""

_LIST: Final = "LIST"
"""Name of a comma-separated value in --help."""

_COMPARED: Final = {
    "--model": "compare --config A/config.json --config B/config.json",
    "--arch": "compare A B",
}
"""How to compare several values of options that take one in every command."""

_SWITCHED: Final = {
    "true": "1", "yes": "1", "on": "1", "y": "1", "false": "0", "no": "0", "off": "0", "n": "0"
}  # fmt: skip
_THOUSANDS: Final = {"k": 1_000, "m": 1_000_000}
_NUMBER: Final = re.compile(r"(?P<digits>[0-9]+(?:\.[0-9]+)?)(?P<unit>[km%]?)")


def refusal(error: typer.TyperException) -> str:
    """One line about a parser error, ending with the `--help` to look at.

    Typer does not export its error types, so they are told apart by their attributes.
    """
    context = getattr(error, "ctx", None)
    path = "dsocr-analyze" if context is None else context.command_path
    parameter = getattr(error, "param", None)
    if hasattr(error, "possibilities"):
        what = _unknown_option(error, context)
    elif hasattr(error, "option_name"):
        what = _misused_option(error, context)
    elif hasattr(error, "param_type"):
        what = f"{_spelling(parameter)} is missing; give it as {_shape(parameter)}"
    elif parameter is not None:
        what = _wrong_value(error, parameter)
    else:
        what = error.format_message().rstrip(".")
        what = what[:1].lower() + what[1:]
    return f"{what}{'' if what.endswith('?') else ';'} see {path} --help"


def repeated(option: Any, values: Sequence[str], context: Any) -> str:
    """One line about a repeated option of which only the last value would count.

    Args:
        option: The option.
        values: Its distinct values, in order.
        context: The context of the command.
    """
    name = option.opts[0]
    *others, last = map(repr, values)
    if _takes_several(option):
        right = f"give one list: {name} {','.join(values)}"
    else:
        several = _for_several(name, context.find_root())
        right = f"give one, or several to {', '.join(several)}" if several else "give one"
    return f"{name} is given more than once, as {', '.join(others)} and {last}; {right}"


def _for_several(name: str, root: Any) -> list[str]:
    """The commands that take several values of an option."""
    if name in _COMPARED:
        return [f"{root.command_path} {_COMPARED[name]}"]
    return [
        f"{root.command_path} {command}"
        for command, each in root.command.commands.items()
        if any(name in other.opts and _takes_several(other) for other in each.params)
    ]


def _takes_several(parameter: Any) -> bool:
    return parameter.multiple or _metavar(parameter) == _LIST


def _unknown_option(error: Any, context: Any) -> str:
    """Message for an option that a command does not have, naming the commands that do."""
    name = error.option_name
    root = context.find_root()
    having = [
        f"{root.command_path} {command}"
        for command, each in root.command.commands.items()
        if name in _options_of(each)
    ]
    if name in _options_of(root.command):
        having.insert(0, root.command_path)
    if having:
        return f"{context.command_path} has no option {name}, as {', '.join(having)} has"
    near = did_you_mean(name, _options_of(context.command)).rstrip()
    return f"no option {name}{near and '; '}{near}"


def _options_of(command: Any) -> list[str]:
    return [
        spelling
        for parameter in command.params
        if parameter.param_type_name == "option"
        for spelling in (*parameter.opts, *parameter.secondary_opts)
    ]


def _misused_option(error: Any, context: Any) -> str:
    """Message for an option without its value, or with a value it does not take."""
    for parameter in context.command.params:
        if error.option_name in parameter.opts:
            if getattr(parameter, "is_flag", False):
                return f"{error.option_name} takes no value"
            return f"{error.option_name} needs a value: {error.option_name} {_metavar(parameter)}"
    return f"{error.option_name} takes no value"


def _wrong_value(error: Any, parameter: Any) -> str:
    """Message for a value of the wrong type."""
    value = _value_given(error)
    metavar = _metavar(parameter)
    if "|" in metavar:
        right, choices = f"give {' or '.join(metavar.split('|'))}", metavar.split("|")
    else:
        right, choices = f"give {_RIGHT.get(metavar, metavar)}", []
    if value is None:
        return f"{_spelling(parameter)} has a wrong value; {right}"
    meant = _number_meant(value, is_part=metavar == "PART", choices=choices)
    near = f"did you mean {meant}? " if meant else did_you_mean(value, choices)
    return f"{_spelling(parameter)} {value!r} is invalid; {near}{right}"


def _value_given(error: Any) -> str | None:
    """The text that could not be parsed; None if the parser does not reveal it."""
    find = getattr(error.__cause__, "errors", None)
    details = find() if callable(find) else []
    value = details[0].get("input") if details else None
    return value if isinstance(value, str) else None


def _number_meant(value: str, *, is_part: bool, choices: Sequence[str]) -> str | None:
    """The number meant by informal spellings such as 1k, 10% or true, as this program takes it."""
    plain = value.strip().lower().replace(",", "." if is_part else "").replace("_", "")
    switched = _SWITCHED.get(plain)
    if switched is not None and switched in choices:
        return switched
    found = _NUMBER.fullmatch(plain)
    if found is None or choices:
        return None
    number = float(found["digits"])
    if is_part:
        part = number / 100 if found["unit"] == "%" else number
        return f"{part:g}" if found["unit"] in ("", "%") and part <= 1 else None
    if found["unit"] == "%":
        return None
    whole = number * _THOUSANDS.get(found["unit"], 1)
    return str(int(whole)) if whole == int(whole) else None


def _spelling(parameter: Any) -> str:
    if parameter.param_type_name == "option":
        return str(parameter.opts[0])
    return _metavar(parameter)


def _shape(parameter: Any) -> str:
    metavar = _metavar(parameter)
    if parameter.param_type_name == "option":
        return f"{parameter.opts[0]} {metavar}"
    return metavar


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())
