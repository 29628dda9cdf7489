"""The options of commands: those that several share, declared once, and what their values are."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, get_args, get_origin

import typer

from dsocr_analyze import architectures, dtypes, input_files, names, output_files
from dsocr_analyze.analysis import ENGINES
from dsocr_analyze.cli import completion
from dsocr_analyze.errors import OutputError, WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.report.opening import OptionValue

__all__ = [
    "BATCH",
    "MODELS",
    "NEW_TOKENS",
    "TEXT_TOKENS",
    "Added",
    "Command",
    "adding",
    "check_files",
    "check_quiet",
    "chosen",
    "declared",
    "format_option",
    "given_options",
    "gpu_names",
    "option",
    "options_used",
    "prepare_output",
    "switch",
]

Command: TypeAlias = Callable[..., None]
"""The function of a command."""

Added: TypeAlias = Mapping[str, tuple[Any, Any]]
"""Type and default of options, by parameter."""

MODELS: Final = Path("models")
"""Folder of models that run by default, each named after its architecture."""

TEXT_TOKENS: Final = "Text tokens, BOS included. Default: the usual prompt's, 10 for deepseek-ocr."
NEW_TOKENS: Final = "Tokens generated per page; the prefill pass generates the first."
BATCH: Final = "Identical pages per batch."
_ATTENTION: Final = "Decoder attention: 0 eager, 1 FlashAttention-2."
_WINDOW: Final = (
    "Whether decode steps use the model's sliding window, as its infer() does; unlimited-ocr only."
    " Default: 1."
)
_CONFIG: Final = "A config.json to use instead of the model directory's own."
_SWITCH: Final = ("0", "1")
_FEWER_BITS: Final = ("bf16", "fp8", "int8", "int4")


# --- declarations ---------------------------------------------------------------------------------


def option(
    value: str | Sequence[str] | None,
    says: str,
    *names: str,
    completes: completion.Completion | None = None,
    **more: Any,
) -> Any:
    """An option as Typer declares it.

    Args:
        value: Its value's name in --help, or its choices; None for a flag.
        says: Its help.
        *names: Its spellings, by default that of the parameter.
        completes: Completes a value, by default to one of the choices.
        **more: What else Typer should know.
    """
    if value is not None and not isinstance(value, str):
        completes = completes or completion.one_of(*value)
        value = "|".join(value)
    return typer.Option(*names, metavar=value, help=says, autocompletion=completes, **more)


def format_option(*formats: str, says: str = "What is printed.") -> Any:
    """The option `--format` of a command with these formats, in any case."""

    def in_lower_case(value: str | None) -> str | None:
        return None if value is None else chosen("--format", value, formats)

    return option(formats, says, "--format", callback=in_lower_case)


def _noted(context: typer.Context, parameter: typer.CallbackParam, wanted: bool) -> None:
    """Note a flag that is about how a command ends, whichever command it is."""
    if wanted:
        context.obj.flags.add(parameter.name)


def _print_version(wanted: bool) -> None:
    if wanted:
        from dsocr_analyze.version import VERSION

        print(f"dsocr-analyze {VERSION}")
        raise typer.Exit


_SHARED: Final[Mapping[str, Any]] = {
    "model": option(
        "DIR",
        "Model directory (config.json and Python files); 'reference' is the built-in reference."
        f" Default: {MODELS}/ARCHITECTURE if it exists and is trusted, else the reference.",
    ),
    "arch": option(
        tuple(architectures.ARCHITECTURES),
        "Architecture to run if no --model is given. Default: that of --config, else"
        f" {architectures.DEFAULT.name}.",
    ),
    "config": option("FILE", _CONFIG),
    "configs": option(
        "FILE ...",
        f"{_CONFIG} May be given several times: one column per config, and the keys that differ.",
    ),
    "stages": option(
        "FILE",
        "TOML file that defines the stages and inputs of another model (docs/any-model.md); it is"
        " traced, without closed forms. The command stages drafts one.",
    ),
    "hf_config": option(
        "FILE",
        "Instead of --model: config.json of a model that transformers implements; to trace it,"
        " give --stages too.",
    ),
    "trust_remote_code": option(
        None,
        "Execute the model directory's Python files without a trust record.",
        "--trust-remote-code",
    ),
    "device": option(
        "meta|cpu|cuda:N",
        "Device of the forward pass; meta computes nothing and needs no weights.",
        completes=completion.one_of("meta", "cpu", "cuda:0"),
    ),
    "dtype": option(tuple(dtypes.MODEL_DTYPES), "Data type of weights and activations."),
    "use_flash_attn": option(_SWITCH, _ATTENTION),
    "sliding_window": option(_SWITCH, _WINDOW),
    "engine": option(
        ENGINES, "trace runs the model under hooks; analytic evaluates closed forms, without torch."
    ),
    "mode": option(
        tuple(architectures.DEFAULT.modes),
        "One of the architecture's modes, instead of --base-size, --image-size and --crop-mode.",
        completes=completion.one_of(*completion.MODES),
    ),
    "base_size": option(
        "PIXELS",
        "Side of the global view in crop mode. Default: the architecture's, 1024.",
    ),
    "image_size": option(
        "PIXELS",
        "Side of a local view in crop mode, or of the only view otherwise. Default: the"
        " architecture's, 640 for deepseek-ocr.",
    ),
    "crop_mode": option(
        _SWITCH,
        "Whether a page larger than one tile is cut into local views. Default: 1.",
    ),
    "page": option(
        "a4|letter|WxH",
        "Page size in pixels, or paper at 150 dpi (a4@300 for another). Default: a4.",
        completes=completion.all_papers,
    ),
    "image": option(
        "FILE",
        "Take the page size from this image's header, respecting its orientation.",
    ),
    "seq_len": option(
        "TOKENS", "Tokens of the whole prompt; text fills what the visual tokens leave."
    ),
    "text_tokens": option("TOKENS", TEXT_TOKENS),
    "prompt": option(
        "TEXT",
        "Count this prompt's text tokens with the model directory's tokenizer.json.",
    ),
    "max_new_tokens": option("TOKENS", NEW_TOKENS),
    "batch_size": option("PAGES", BATCH),
    "prompt_pages": option(
        "PAGES", "Identical pages in one prompt, none of them cut; unlimited-ocr only."
    ),
    "modes": option(
        "LIST",
        "Modes: names, all, or sizes like 1024/640 (crops) and 512:1280:64 (no crops).",
        completes=completion.one_of("all", *completion.MODES, is_list=True),
    ),
    "dtypes": option(
        "LIST",
        "Data types of weights and activations: bfloat16, float16, float32.",
        completes=completion.one_of(*dtypes.MODEL_DTYPES, is_list=True),
    ),
    "attentions": option("LIST", _ATTENTION, completes=completion.one_of(*_SWITCH, is_list=True)),
    "windows": option("LIST", _WINDOW, completes=completion.one_of(*_SWITCH, is_list=True)),
    "gpu": option(
        "GPU",
        "GPUs to predict for, named as in `dsocr-analyze devices`: h100-sxm,l40s. May be given"
        " several times.",
        "--gpu",
        completes=completion.all_gpus,
    ),
    "runtime": option(
        ("eager", "serving"),
        "What runs the model: eager (its own code under generate) or serving (a serving engine).",
    ),
    "runtimes": option(
        "LIST",
        "What runs the model: eager (its own code under generate), serving (a serving engine), or"
        " eager,serving for both.",
        completes=completion.one_of("eager", "serving", is_list=True),
    ),
    "server": option(
        ("vllm", "vllm-v1", "vllm-v0", "sglang"),
        "Serving engine, which sets the host's time per step and per sequence.",
    ),
    "concurrency": option(
        "PAGES", "Pages of the list in flight at a time on a GPU. Default: 16."
    ),
    "concurrencies": option("LIST", "Pages in flight at a time: 1,4,16 or 1:64."),
    "deadline": option(
        "TIME", "Compute how many GPUs finish the list in this time: 90m, 12h, 3d, or hours."
    ),
    "preprocess_ms": option(
        "MS",
        "CPU milliseconds per page before the model. Default: estimated from its pixels.",
    ),
    "workers": option("N", "Pages that the CPU prepares at a time."),
    "price": option("AMOUNT", "Price of a GPU-hour, in any currency."),
    "weights_dtype": option(
        _FEWER_BITS,
        "Data type of the served decoder's linear weights. Default: the model's own.",
    ),
    "kv_dtype": option(
        _FEWER_BITS, "Data type of the served decoder's KV cache. Default: the model's own."
    ),
    "new_tokens_from": option(
        "FILE",
        "Lengths of real outputs, instead of --max-new-tokens: CSV or Parquet, column new_tokens.",
    ),
    "mean_new_tokens": option(
        "TOKENS",
        "Mean length of the pages that end on their own; the others run to --max-new-tokens.",
    ),
    "share_at_limit": option(
        "PART", "Share of pages that repeat themselves up to --max-new-tokens, 0 to 1."
    ),
    "offline": option(
        None,
        "The CPU prepares all pages before the first one runs, as offline scripts do.",
        "--offline",
    ),
    "reserved": option(
        "PART",
        "Fraction of the memory kept for the driver, the allocator and kernels, 0 to 1.",
    ),
    "profile": option(
        "FILE",
        "A device profile of your own (TOML), added to the shipped ones and to those in"
        " $XDG_CONFIG_HOME/dsocr-analyze/devices. May be given several times.",
    ),
    "corrections": option(
        _SWITCH,
        "Whether to correct by the servers' benchmarks kept by time --from-benchmark.",
    ),
    "server_version": option(
        "VERSION",
        "Version of the serving engine whose benchmarks correct. Default: the last one kept.",
    ),
    "output": option("FILE", "Write to this file instead of stdout."),
    "reports": option(
        "DIR", "Folder for static_compute.json and static_compute.md.", "--output"
    ),
    "output_format": format_option("table", "markdown", "json"),
    "full": option(
        None,
        "Print all tables below the answer: stages, memory, time, modules, operators.",
        "--full",
    ),
    "json_file": option(
        "FILE", "Also write the JSON document here; - prints it instead.", "--json"
    ),
    "html_file": option(
        "FILE",
        "Also write one HTML page that opens offline: charts, and tables to sort and search. Needs"
        " the extra 'html'.",
        "--html",
    ),
    "quiet": option(None, "Print only what is asked for.", "--quiet", "-q"),
    "strict": option(
        None, "Exit with 3 if there is a warning; still write.", "--strict",
        expose_value=False, callback=_noted,
    ),
    "version": option(
        None, "Print the version and exit.", "--version",
        is_eager=True, expose_value=False, callback=_print_version,
    ),
    "debug": option(
        None, "Show where an internal error happened.", "--debug",
        is_eager=True, expose_value=False, callback=_noted,
    ),
}  # fmt: skip
"""The options that commands share, and those of the main command.

Those that take lists are called by the plural.
"""


def adding(options: Added, *, after: str | None = None) -> Callable[[Command], Command]:
    """Add shared options to a command, which reads them from its context: `context.params`.

    Args:
        options: The options.
        after: The parameter that they follow in --help; by default, they come last.
    """

    def decorate(command: Command) -> Command:
        vars(command).setdefault("added", []).append((options, after))
        return command

    return decorate


def declared(command: Command) -> Command:
    """The command with all its options: its own, those that it shares, those `adding` adds.

    Parameters without a declaration of their own are shared options, each the one of its name, or
    of the name in its annotation.
    """
    signature, parameters = inspect.signature(command, eval_str=True), []
    options = [(each.name, each.annotation, each.default) for each in signature.parameters.values()]
    for added, after in vars(command).get("added", ()):
        place = len(options) if after is None else 1 + [each[0] for each in options].index(after)
        options[place:place] = [(name, kind, default) for name, (kind, default) in added.items()]
    for name, annotation, default in options:
        kind, info = (
            get_args(annotation) if get_origin(annotation) is Annotated else (annotation, name)
        )
        if kind is not typer.Context:
            kind = Annotated[kind, _SHARED[info] if isinstance(info, str) else info]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=kind))

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(**{name: given[name] for name in given.keys() & signature.parameters.keys()})

    whole = signature.replace(parameters=parameters)
    called.__signature__ = whole  # type: ignore[attr-defined]  # Typer reads it here
    return called


# --- values ---------------------------------------------------------------------------------------


def switch(option: str, value: int) -> bool:
    """The value of a 0|1 option."""
    if value not in (0, 1):
        raise WorkloadError(f"{option} {value} is invalid; give 0 or 1")
    return value == 1


def chosen(option: str, value: str, choices: Sequence[str]) -> str:
    """The choice that equals a value, ignoring case; raises WorkloadError if there is none."""
    found = names.in_any_case(value, choices)
    if found is None:
        near = names.did_you_mean(value, choices)
        raise WorkloadError(f"{option} {value!r} is unknown; {near}use {', '.join(choices)}")
    return found


def gpu_names(*given: Sequence[str] | None) -> list[str]:
    """GPU names from arguments and options, each of which may be a comma-separated list."""
    from dsocr_analyze.archive.axes import parse_names

    return [name for texts in given for text in texts or () for name in parse_names("gpu", text)]


def check_quiet(results: Mapping[str, object]) -> None:
    """Raise if a command that prints nothing would have no result at all.

    Args:
        results: The options that ask for a result, None for those that are not given.
    """
    if all(value is None for value in results.values()):
        *most, last = results
        raise WorkloadError(
            f"--quiet leaves nothing to show; give {', '.join(most)} or {last} too, or leave out"
            " --quiet"
        )


def check_files(
    output: Path | None = None, plot: Path | None = None, html: Path | None = None
) -> None:
    """Check, before any work, that a table, a picture or an HTML page can be written.

    Raises:
        FormatError: The format is unknown, or the library for it is not installed.
        OutputError: It is a folder, or its folder does not exist.
    """
    if output is not None:
        from dsocr_analyze.archive.table_files import table_format

        table_format(output)
        _check_place(output)
    if plot is not None:
        from dsocr_analyze.report.pictures.picture import picture_format

        picture_format(plot)
        _check_place(plot)
    if html is not None:
        from dsocr_analyze.report.html.page import refuse_without_plotly

        refuse_without_plotly()
        _check_place(html)


def _check_place(path: Path) -> None:
    """Raise for a path that is a folder, or whose folder does not exist."""
    if input_files.is_folder(path):
        raise OutputError(f"cannot write {str(path)!r}: it is a folder; give a file's name")
    if not input_files.is_folder(path.parent):
        raise OutputError(f"cannot write {str(path)!r}: no folder {str(path.parent)!r}; create it")


def prepare_output(directory: Path, default: Path | None = None) -> None:
    """Create the folder named by `--output` before any work; raises OutputError."""
    output_files.prepare_directory(directory, may_lead_out=directory != default)


# --- what a command ran with ----------------------------------------------------------------------

_ABOUT_THE_OUTPUT: Final = (
    "output format json quiet yes plot x quantity forget keep html full junit markdown update"
).split()
"""Options about where and how results are written, not about their content."""


def given_options(context: typer.Context) -> dict[str, str]:
    """Name of each option on the command line, by its parameter."""
    source_of = context.get_parameter_source
    return {
        each.name: each.opts[0]
        for each in context.command.params
        if each.name and getattr(source_of(each.name), "name", None) == "COMMANDLINE"
    }


def options_used(context: typer.Context) -> dict[str, OptionValue]:
    """The value of every option and argument, defaults included, by name with _ for -.

    An argument and an option with the same meaning share one entry with the values of both.
    """
    used: dict[str, OptionValue] = {}
    for parameter in context.command.params:
        name = parameter.opts[0].lstrip("-").replace("-", "_")
        if parameter.name not in context.params or name in _ABOUT_THE_OUTPUT:
            continue
        value, earlier = context.params[parameter.name], used.get(name)
        if isinstance(value, list | tuple):
            value = (*(earlier if isinstance(earlier, tuple) else ()), *map(str, value))
        elif isinstance(value, Path):
            value = str(value)
        used[name] = earlier if value is None else value
    return used
