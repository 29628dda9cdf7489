"""Errors and warnings in the words of the command line."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.cli.help_text import Seldom
from dsocr_analyze.cli.streams import YELLOW, complain
from dsocr_analyze.errors import DeviceError, did_you_mean

if TYPE_CHECKING:
    import typer

    from dsocr_analyze.model.directory import ModelDirectory

_ARGUMENTS: Final = (
    "base_size batch_size concurrency corrections crop_mode device dtype gpu image image_size "
    "kind kv_dtype max_new_tokens maximum_compression mean_new_tokens memory_gb minimum_dpi mix "
    "mode new_tokens_from page page_dpi page_text_tokens pages pdf_dpi preprocess_ms price prompt "
    "prompt_pages random_weights repeats reserved runtime seq_len server server_version "
    "share_at_limit sliding_window stages steps text_tokens trust_remote_code warmups "
    "weights_dtype workers"
).split()
LIMITS: Final = {
    "gpu_memory_utilization": ("--gpu-memory-utilization", "--mem-fraction-static"),
    "max_num_seqs": ("--max-num-seqs", "--max-running-requests"),
    "max_num_batched_tokens": ("--max-num-batched-tokens", "--chunked-prefill-size"),
}
"""Options of a serving engine's limits, as vLLM and as SGLang calls them."""
OPTIONS: Final = {
    **{name: f"--{name.replace('_', '-')}" for name in (*_ARGUMENTS, *LIMITS)},
    "architecture": "--arch",
    "deadline_hours": "--deadline",
    "device='cpu'": "--device cpu",
    "first_token_seconds": "--first-token",
    "flash_attention": "--use-flash-attn",
    "model_class": "--class",
    "the analytic engine": "--engine analytic",
}
"""The option that sets each argument named in errors."""


def in_options(message: str, arguments: Sequence[str], typed: Container[str] = ()) -> str:
    """The message with options in place of these arguments, as `base_size` or `device='cpu'`.

    Other text is left alone: a name that no option sets, or a command's. Of the names of an option,
    the one that was `typed` is said.
    """
    names = sorted(OPTIONS.keys() & set(arguments))
    if not names:
        return message
    pattern = (
        rf"(?<![\w.'\"-])(?<!dsocr-analyze )(?P<name>{'|'.join(names)})"
        r"""(?:=(?P<value>'[^']*'|"[^"]*"|[\w.+-]*\w))?(?![\w-])"""
    )
    return re.sub(pattern, partial(_in_options, typed), message)


def _in_options(typed: Container[str], found: re.Match[str]) -> str:
    option, value = OPTIONS[found["name"]], found["value"]
    option = _as_typed(LIMITS.get(found["name"], (option,)), typed)
    if value is None or option in ("--random-weights", "--trust-remote-code"):
        return option
    value = {"True": "1", "False": "0"}.get(value, value.strip("'\""))
    return f"{option} {value}"


# --- warnings -------------------------------------------------------------------------------------


def warn(
    context: typer.Context,
    warnings: Iterable[str],
    arguments: Sequence[str] = ("base_size", "image_size"),
) -> None:
    """Prints each warning on stderr once; with `--strict` the command then exits with 3.

    `arguments` are printed as options, by default those whose names mean nothing else.
    """
    for warning in warnings:
        line = in_options(warning, arguments)
        if line not in context.obj.warnings:
            context.obj.warnings.append(line)
            complain(f"warning: {line}", YELLOW)


def note(context: typer.Context, message: str) -> None:
    """Prints one line on stderr, unless `--quiet` is given."""
    if not context.params["quiet"]:
        complain(message)


class LeftOut:
    """GPUs of the whole catalogue that lack a type or a kernel, by the reason."""

    def __init__(self) -> None:
        self._reasons: dict[str, tuple[str, list[str]]] = {}

    def __call__(self, gpu: str, error: DeviceError) -> None:
        """Adds one, by its title."""
        said = in_options(str(error), error.arguments)
        self._reasons.setdefault(said.replace(gpu, ""), (said, []))[1].append(gpu)

    def say(self, context: typer.Context) -> None:
        """Prints one line per reason, to be called behind the answer."""
        for said, (_, *others) in self._reasons.values():
            also = f" (also {', '.join(others)})" if others else ""
            note(context, f"left out: {said}{also}")


def note_untraceable(context: typer.Context, directory: ModelDirectory, of: str = "") -> None:
    """Prints why a trace that was asked for is not made."""
    if context.params.get("engine") == "trace" and (reason := directory.untraceable):
        note(context, f"note: {of}{reason}")


def print_config_findings(
    context: typer.Context,
    directory: ModelDirectory,
    *,
    by_closed_forms: bool,
    name: str | None = None,
) -> None:
    """Prints which config keys have no effect, and what closed forms assume about the code.

    `name` is of one model among several.
    """
    of = "" if name is None else f"{name}: "
    for warning in directory.config_findings.warnings:
        warn(context, [f"{of}{warning}"])
    note_untraceable(context, directory, of)
    if by_closed_forms and directory.recognized is not None:
        for said in directory.dimensions().notes:
            note(context, f"note: {of}{said}")
        for assumed in directory.assumptions:
            note(context, f"assumed: {of}{assumed}")


# --- errors of the parser -------------------------------------------------------------------------

_RIGHT: Final = {
    "PART": "a number from 0 to 1",
    "LEVELS": "a whole number, 0 or more",
    "PIXELS": "a whole number of pixels",
    "PAGES": "a whole number of pages",
    "TOKENS": "a number of tokens",
    "MS": "a number of milliseconds",
    "AMOUNT": "a number, or one per GPU like h100-sxm:2.5,l40s:0.8",
    "N": "a number",
}
"""Valid numbers, by the value's name in --help."""

_COMPARED: Final = {
    "--model": "compare --config A/config.json --config B/config.json",
    "--arch": "compare A B",
}
"""How to compare several values of options that always take one."""

_SPLITTING: Final = (
    "--tp", "--tp-size", "--tensor-parallel-size", "--pp", "--pp-size", "--pipeline-parallel-size"
)  # fmt: skip
"""Options with which servers split a model over GPUs."""

_SWITCHED: Final = {
    "true": "1", "yes": "1", "on": "1", "y": "1", "false": "0", "no": "0", "off": "0", "n": "0"
}  # fmt: skip
_UNITS: Final = {"": 1, "%": 0.01, "k": 1_000, "m": 1_000_000}
_DECIMAL_COMMA: Final = re.compile(
    r"(?<![\d,.])(0|\d+(?=,(?:\d\d?|\d{4,})(?!\d))),(\d+)(?![\d.x]|,\d)"
)
"""With three digits behind it, a comma separates thousands, unless there is only a zero before."""
_NUMBER: Final = re.compile(r"(?P<digits>[0-9]+(?:\.[0-9]+)?)(?P<unit>[km%]?)")


def refusal(error: typer.TyperException) -> str:
    """One line about a parser error; its attributes show its type, which Typer does not export."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if parameter is None and context is not None and hasattr(error, "option_name"):
        known = context.command.params
        parameter = next((each for each in known if error.option_name in each.opts), None)
    path = "dsocr-analyze" if context is None else context.command_path
    if hasattr(error, "possibilities"):
        what = _unknown_option(error, context)
    elif hasattr(error, "option_name"):
        what = _misused_option(error, parameter)
    elif hasattr(error, "param_type"):
        named = (spelling(parameter, context), _metavar(parameter))
        how = "" if named[0] == named[1] else f"; give it as {' '.join(named)}"
        what = f"{named[0]} is missing{how}"
    elif parameter is not None:
        what = _wrong_value(error, parameter, context)
    else:
        what = error.format_message().rstrip(".")
        what = what[:1].lower() + what[1:]
    is_seldom = isinstance(getattr(parameter, "rich_help_panel", None), Seldom)
    listed = f"see {path} {'--help-all' if is_seldom else '--help'}"
    return f"{what}{'' if what.endswith('?') else ';'} {listed}"


def repeated(option: Any, values: Sequence[str], context: Any) -> str:
    """One line about an option with several distinct values."""
    name = option.opts[0]
    *others, last = map(repr, values)
    root = context.find_root()
    several = (
        [_COMPARED[name]]
        if name in _COMPARED
        else [
            command
            for command, each in root.command.commands.items()
            if any(name in other.opts and _takes_several(other) for other in each.params)
        ]
    )
    right = (
        f"give one list: {name} {','.join(values)}"
        if _takes_several(option)
        else "give one"
        + (f", or several to {root.command_path} {', '.join(several)}" if several else "")
    )
    return f"{name} has several values, {', '.join(others)} and {last}; {right}"


def _takes_several(parameter: Any) -> bool:
    return parameter.multiple or _metavar(parameter) == "LIST"  # comma-separated


def _unknown_option(error: Any, context: Any) -> str:
    name, root = error.option_name, context.find_root()
    commands = {"the main command": root.command, **root.command.commands}
    having = [each for each, command in commands.items() if name in _options_of(command)]
    if having:
        of = ", ".join(having)
        return f"{context.command_path} has no option {name}, which is an option of {of}"
    if name in _SPLITTING:
        return f"no option {name}: a GPU runs the whole model, which is never split over several"
    # Dashes, which all options have, would make any two short names alike.
    bare = {each.lstrip("-"): each for each in _options_of(context.command)}
    near = did_you_mean(name.lstrip("-"), (), bare).rstrip()
    return f"no option {name}{near and '; '}{near}"


def _options_of(command: Any) -> list[str]:
    return [
        spelling
        for parameter in command.params
        if parameter.param_type_name == "option"
        for spelling in (*parameter.opts, *parameter.secondary_opts)
    ]


def _misused_option(error: Any, parameter: Any) -> str:
    name = error.option_name
    if parameter is None or getattr(parameter, "is_flag", False):
        return f"{name} takes no value"
    return f"{name} needs a value: {name} {_metavar(parameter)}"


def _wrong_value(error: Any, parameter: Any, context: Any) -> str:
    metavar, name = _metavar(parameter), spelling(parameter, context)
    choices = metavar.split("|") if "|" in metavar else []
    right = f"give {' or '.join(choices) or _RIGHT.get(metavar, metavar)}"
    value = error.message
    meant = _number_meant(value, metavar, choices)
    near = f"did you mean {meant}? " if meant else did_you_mean(value, choices)
    return f"{name} {value!r} is invalid; {near}{right}"


def _number_meant(value: str, metavar: str, choices: Sequence[str]) -> str | None:
    """The number that an informal spelling like 1k, 10%, 2,5 or true means."""
    is_part = metavar == "PART"
    plain = value.replace(",", ".") if is_part else _with_point(value)
    plain = plain.strip().lower().replace(",", "").replace("_", "")
    if choices:
        return next((each for each in choices if each == _SWITCHED.get(plain)), None)
    found = _NUMBER.fullmatch(plain)
    if found is None:
        return None
    unit = found["unit"]
    number = float(found["digits"]) * _UNITS[unit]
    if is_part:
        return f"{number:g}" if unit in ("", "%") and number <= 1 else None
    if unit == "%" or number == int(number):
        return str(int(number)) if unit != "%" else None
    return f"{number:g}" if metavar in ("MS", "AMOUNT") else None


def _with_point(text: str) -> str:
    """The text with points in place of decimal commas."""
    return _DECIMAL_COMMA.sub(r"\1.\2", text)


_AMOUNT: Final = re.compile(r"(?P<number>[0-9]{1,15}(?:\.[0-9]{1,9})?) *(?P<unit>[a-z]*)")


_SECONDS: Final[Mapping[str, Fraction | int]] = {
    "ms": Fraction(1, 1000), "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800
}  # fmt: skip


def amount(text: str, units: Mapping[str, Fraction | int]) -> Fraction | None:
    """A number like 1.5h, times the factor of its unit; None if the text is none."""
    found = _AMOUNT.fullmatch(text.strip().lower())
    if found is None or found["unit"] not in units:
        return None
    return Fraction(found["number"]) * units[found["unit"]]


def seconds_in(text: str, usual: str) -> float:
    """Seconds of a time like 800ms, 2s, 90m, 12h, 3d or 1w; 0 for anything else.

    A number alone is in the `usual` unit.
    """
    return float(amount(text, {**_SECONDS, "": _SECONDS[usual]}) or 0)


def price_of(text: str) -> float | dict[str, float] | None:
    """A number, or one by GPU like h100-sxm:2.5,l40s:0.8; None for anything else."""
    pairs = [each.rpartition(":") for each in text.split(",")]
    try:
        if ":" not in text:
            return float(text)
        prices = {name.strip(): float(amount) for name, _, amount in pairs}
    except ValueError:
        return None
    return prices if "" not in prices and len(prices) == len(pairs) else None


def meant_point(text: str) -> str:
    """`did you mean 1.5h, with a point? ` for a message; empty without a decimal comma."""
    return "" if (meant := _with_point(text)) == text else f"did you mean {meant}, with a point? "


def spelling(parameter: Any, context: Any) -> str:
    """What a command line calls it: an option's name as typed or its first, an argument's value."""
    if parameter.param_type_name == "argument":
        return _metavar(parameter)
    return _as_typed(parameter.opts, getattr(getattr(context, "obj", None), "typed", ()))


def _as_typed(names: Sequence[str], typed: Container[str]) -> str:
    return next(filter(typed.__contains__, names), names[0])


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())
