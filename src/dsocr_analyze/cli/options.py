"""The options that commands share, declared once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, cast

import typer

from dsocr_analyze import architectures, errors, kernels
from dsocr_analyze.cli.help_text import HELP, MODEL, OUTPUT, OWN, PAGE, PREDICTION, Seldom, all_help
from dsocr_analyze.cli.words import LIMITS, price_of, repeated, spelling
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.report.opening import OptionValue
from dsocr_analyze.workload import PAPERS

Added: TypeAlias = dict[str, tuple[Any, Any]]
"""Type and default of options, by parameter."""

MODELS: Final = Path("models")
"""Folder of models that run by default, each named after its architecture."""

FORMAT: Final = "What is printed."
TEXT_TOKENS: Final = "Text tokens, BOS included. Default: the usual prompt's, 10 for deepseek-ocr."
NEW_TOKENS: Final = "Tokens generated per page. The prefill pass generates the first."
BATCH: Final = "Identical pages per batch."
_WORKERS: Final = "Pages that the CPU prepares at a time."
SWITCH: Final = ("0", "1")
_ATTENTION: Final = "Decoder attention: 0 eager, 1 FlashAttention-2."
_WINDOW: Final = (
    "Whether decode steps use the model's sliding window, as its infer() does; unlimited-ocr only."
    " Default: 1."
)
_ENGINE: Final = "Run the model under hooks, or only evaluate closed forms, without torch."
_CONFIG: Final = "config.json to use instead of the directory's own."
_FEWER_BITS: Final = ("bf16", "fp8", "int8", "int4")


# --- declarations ---------------------------------------------------------------------------------


def option(
    value: str | Sequence[str] | None,
    says: str,
    *names: str,
    group: str = OWN,
    completes: Iterable[str] | Callable[[], Iterable[str]] = (),
    is_list: bool = False,
    made: Callable[..., Any] = typer.Option,
    **more: Any,
) -> Any:
    """An option, or with `made` an argument, as Typer declares it.

    Args:
        value: Its value's name in --help, or its choices; None for a flag.
        says: Its help.
        *names: Its spellings, by default the parameter's.
        group: Its group in the help, `Seldom` if `--help` leaves it out.
        completes: What a value is completed to, by default the choices.
        is_list: Completes the last of comma-separated values.
        made: Makes it.
        **more: Typer's own arguments.
    """
    if value is not None and not isinstance(value, str):
        completes, value = completes or value, "|".join(value)

    def complete(incomplete: str) -> list[str]:  # what is typed stays as it is
        before, comma, last = incomplete.rpartition(",") if is_list else ("", "", incomplete)
        given = before.casefold().split(",")
        return [
            f"{before}{comma}{last}{name[len(last) :]}"
            for name in (completes() if callable(completes) else completes)
            if name.casefold().startswith(last.casefold()) and name.casefold() not in given
        ]

    return made(
        *names,
        metavar=value,
        help=says,
        rich_help_panel=group,
        autocompletion=complete if completes else None,
        readable=False,  # what cannot be read is said by name where it is read
        **more,
    )


def modes() -> dict[str, str]:
    """All modes, each with the last architecture that has it."""
    return {mode: name for name, each in architectures.ARCHITECTURES.items() for mode in each.modes}


def all_gpus() -> Iterable[str]:
    """All GPUs of the catalogue."""
    from dsocr_analyze.hardware.devices import gpu_catalogue

    return gpu_catalogue()


def _noted(context: typer.Context, parameter: typer.CallbackParam, wanted: bool) -> None:
    """Answers `--version` and `--help-all`; notes a flag about how the command ends."""
    if wanted and parameter.name == "help_all":
        print(all_help(context))
        raise typer.Exit
    if wanted and parameter.name == "version":
        from dsocr_analyze.version import VERSION

        print(f"dsocr-analyze {VERSION}")
        raise typer.Exit
    if wanted:
        context.obj.flags.add(parameter.name)


def in_any_case(
    context: typer.Context, parameter: typer.CallbackParam, value: str | None
) -> str | None:
    """A callback: `chosen` among the value's choices; raises WorkloadError for several of them."""
    choices = str(parameter.metavar).split("|")
    several = [] if value is None else value.split(",")
    if several[1:] and all(errors.in_any_case(each, choices) for each in several):
        raise WorkloadError(repeated(parameter, several, context))
    return None if value is None else errors.chosen(parameter.opts[0], value, choices)


def switch(parameter: typer.CallbackParam, value: int | None) -> int | None:
    """A callback: raises WorkloadError unless a value is 0 or 1."""
    if value not in (None, 0, 1):
        raise WorkloadError(f"{parameter.opts[0]} {value} is invalid; give 0 or 1")
    return value


def _price(
    context: typer.Context, parameter: typer.CallbackParam, value: str | None
) -> float | dict[str, float] | None:
    """A callback: a price, or one by GPU; raises BadParameter for anything else."""
    price = None if value is None else price_of(value)
    if value is None or price is not None:
        return price
    raise typer.BadParameter(value, context, cast(Any, parameter))


SHARED: Final[Mapping[str, Any]] = {
    "model": option(
        "DIR",
        "Model directory (config.json and Python files). 'reference' is the built-in reference."
        f" Default: {MODELS}/ARCHITECTURE if it exists and is trusted, else the reference.",
        group=MODEL,
    ),
    "arch": option(
        "NAME",
        "Architecture to run if no --model is given. One of"
        f" {', '.join(architectures.ARCHITECTURES)}. Default: that of --config, else"
        f" {architectures.DEFAULT.name}.",
        completes=architectures.ARCHITECTURES, group=MODEL,
    ),
    "config": option("FILE", _CONFIG, group=MODEL),
    "configs": option(
        "FILE ...",
        f"{_CONFIG} May be given several times: one column per config, and the keys that differ.",
        group=MODEL,
    ),
    "stages": option(
        "FILE",
        "TOML file that defines the stages and inputs of another model (docs/any-model.md); it is"
        " traced, without closed forms. The command stages drafts one.",
        group=Seldom(MODEL),
    ),
    "hf_config": option(
        "FILE",
        "Instead of --model: config.json of a model that transformers implements; to trace it,"
        " give --stages too.",
        group=Seldom(MODEL),
    ),
    "trust_remote_code": option(
        None, "Execute the model directory's Python files without a trust record.",
        "--trust-remote-code", group=Seldom(MODEL),
    ),
    "device": option(
        "meta|cpu|cuda:N",
        "Device of the forward pass; meta computes nothing and needs no weights.",
        completes=("meta", "cpu", "cuda:0"), group=Seldom(MODEL),
    ),
    "dtype": option(
        tuple(kernels.MODEL_DTYPES), "Data type of weights and activations.", group=Seldom(MODEL)
    ),
    "use_flash_attn": option(SWITCH, _ATTENTION, callback=switch, group=Seldom(MODEL)),
    "sliding_window": option(SWITCH, _WINDOW, callback=switch, group=Seldom(MODEL)),
    "engine": option(architectures.ENGINES, _ENGINE, callback=in_any_case, group=MODEL),
    "usual_engine": option(
        architectures.ENGINES, _ENGINE, callback=in_any_case, group=MODEL,
        show_default="trace; analytic without the extra 'trace'",
    ),
    "mode": option(
        tuple(architectures.DEFAULT.modes),
        "One of the architecture's modes, in place of sizes of its views.",
        completes=modes, group=PAGE,
    ),
    "base_size": option(
        "PIXELS", "Side of the global view in crop mode. Default: the architecture's, 1024.",
        group=Seldom(PAGE),
    ),
    "image_size": option(
        "PIXELS",
        "Side of a local view in crop mode, or of the only view otherwise. Default: the"
        " architecture's, 640 for deepseek-ocr.",
        group=Seldom(PAGE),
    ),
    "crop_mode": option(
        SWITCH,
        "Whether a page larger than one tile is cut into local views. Default: 1.",
        callback=switch, group=Seldom(PAGE),
    ),
    "page": option(
        "a4|letter|WxH",
        "Page size in pixels, or paper at 150 dpi. a4@300 is A4 at 300 dpi. Default: a4.",
        completes=PAPERS, is_list=True, group=PAGE,
    ),
    "image": option(
        "FILE", "Image whose header gives the page size. Its orientation is respected.",
        group=PAGE,
    ),
    "seq_len": option(
        "TOKENS", "Tokens of the whole prompt; text fills what the visual tokens leave.",
        group=Seldom(PAGE),
    ),
    "text_tokens": option("TOKENS", TEXT_TOKENS, group=Seldom(PAGE)),
    "prompt": option(
        "TEXT", "Count this prompt's text tokens with the model directory's tokenizer.json.",
        group=Seldom(PAGE),
    ),
    "max_new_tokens": option("TOKENS", NEW_TOKENS, group=PAGE),
    "batch_size": option("PAGES", BATCH, group=PAGE),
    "prompt_pages": option(
        "PAGES", "Identical pages in one prompt, none of them cut; unlimited-ocr only.",
        group=Seldom(PAGE),
    ),
    "pdf_dpi": option(
        "DPI", "Pixels per inch of a PDF's pages. PDFs need the extra 'pdf'.", group=PAGE
    ),
    "modes": option(
        "LIST",
        "Modes: names, all, or sizes like 1024/640 (crops) and 512:1280:64 (no crops).",
        completes=lambda: ("all", *modes()), is_list=True, group=PAGE,
    ),
    "dtypes": option(
        "LIST",
        "Data types of weights and activations: bfloat16, float16, float32.",
        completes=kernels.MODEL_DTYPES, is_list=True, group=Seldom(MODEL),
    ),
    "attentions": option("LIST", _ATTENTION, completes=SWITCH, is_list=True, group=Seldom(MODEL)),
    "windows": option("LIST", _WINDOW, completes=SWITCH, is_list=True, group=Seldom(MODEL)),
    "gpu": option(
        "GPU",
        "GPUs to predict for, as h100-sxm,l40s. `dsocr-analyze devices` lists them. May be given"
        " several times.",
        "--gpu", completes=all_gpus,
        is_list=True, group=PREDICTION,
    ),
    "runtime": option(
        ("eager", "serving"),
        "What runs the model: eager or serving. eager is its own code under generate, serving a"
        " serving engine.",
        callback=in_any_case, group=PREDICTION,
    ),
    "runtimes": option(
        "LIST",
        "What runs the model: eager or serving. eager is its own code under generate, serving a"
        " serving engine; eager,serving predicts both.",
        completes=("eager", "serving"), is_list=True, group=PREDICTION,
    ),
    "server": option(
        ("vllm", "vllm-v1", "vllm-v0", "sglang"),
        "Serving engine: its kernels, and what its host does per step, sequence and request.",
        group=Seldom(PREDICTION),
    ),
    "concurrency": option(
        "PAGES",
        "Pages of the list in flight at a time on a GPU, at most all of them. Default: 16.",
        group=PREDICTION,
    ),
    "concurrencies": option(
        "LIST",
        "Pages in flight: 1,4,16, 1:64, knee or max. The knee is the fewest with 90 % of the most"
        " pages per second; max is the most that fit.",
        group=PREDICTION,
    ),
    "deadline": option(
        "TIME",
        "When all pages must be done, which decides the number of GPUs: 90m, 12h, 3d, or hours.",
        group=PREDICTION,
    ),
    "preprocess_ms": option(
        "MS",
        "CPU milliseconds per page before the model. Default: estimated from its pixels.",
        group=Seldom(PREDICTION),
    ),
    "workers": option("N", _WORKERS, group=Seldom(PREDICTION)),
    "planned_workers": option(
        "N", _WORKERS, group=Seldom(PREDICTION),
        show_default="as many as are busy 80 % of the time, or 1 for a given --concurrency",
    ),
    "price": option(
        "AMOUNT",
        "Price of a GPU-hour, or by GPU: h100:2.5,l40s:0.8.",
        callback=_price, group=PREDICTION,
    ),
    "weights_dtype": option(
        _FEWER_BITS,
        "Data type of the served decoder's linear weights. Default: the model's own.",
        group=Seldom(PREDICTION),
    ),
    "kv_dtype": option(
        _FEWER_BITS,
        "Data type of the served decoder's KV cache. Default: the model's own.",
        group=Seldom(PREDICTION),
    ),
    "new_tokens_from": option(
        "FILE",
        "Lengths of real outputs, instead of --max-new-tokens: CSV or Parquet, column new_tokens.",
        group=Seldom(PREDICTION),
    ),
    "mean_new_tokens": option(
        "TOKENS",
        "Mean length of the pages that end on their own; the others run to --max-new-tokens.",
        group=Seldom(PREDICTION),
    ),
    "share_at_limit": option(
        "PART",
        "Share of pages that repeat themselves up to --max-new-tokens, 0 to 1.",
        group=Seldom(PREDICTION),
    ),
    "offline": option(
        None,
        "The CPU prepares all pages before the first one runs, as offline scripts do.",
        "--offline", group=Seldom(PREDICTION),
    ),
    "reserved": option(
        "PART",
        "Fraction of the memory kept for the driver, the allocator and kernels, 0 to 1.",
        group=Seldom(PREDICTION),
    ),
    "gpu_memory_utilization": option(
        "PART",
        "Fraction of the GPU's memory that the serving engine takes, above 0 to 1, in place of"
        " --reserved. SGLang's does not include activations.",
        *LIMITS["gpu_memory_utilization"], group=Seldom(PREDICTION),
    ),
    "max_num_seqs": option(
        "N",
        "Most pages that the serving engine runs at a time. Default: as many as fit.",
        *LIMITS["max_num_seqs"], group=Seldom(PREDICTION),
    ),
    "max_num_batched_tokens": option(
        "N",
        "Most prompt tokens in a pass of the serving engine. Default: 2048, or 8192 for vllm-v0 and"
        " sglang.",
        *LIMITS["max_num_batched_tokens"], group=Seldom(PREDICTION),
    ),
    "profile": option(
        "FILE",
        "A device profile of your own (TOML), added to the shipped ones and to those in"
        " $XDG_CONFIG_HOME/dsocr-analyze/devices. May be given several times.",
        group=Seldom(PREDICTION),
    ),
    "corrections": option(
        SWITCH,
        "Whether to correct by the servers' benchmarks kept by time --from-benchmark.",
        callback=switch, group=Seldom(PREDICTION),
    ),
    "server_version": option(
        "VERSION",
        "Version of the serving engine whose benchmarks correct. Default: the last one kept.",
        group=Seldom(PREDICTION),
    ),
    "output": option("FILE", "Write to this file instead of stdout.", group=OUTPUT),
    "reports": option(
        "DIR", "Folder for static_compute.json and .md.", "--output", group=OUTPUT
    ),
    "output_format": option(
        ("table", "markdown", "json", "csv", "latex"), FORMAT, "--format",
        callback=in_any_case, group=OUTPUT,
    ),
    "full": option(
        None,
        "Print all tables below the answer. They are of stages, memory, time, modules, operators.",
        "--full", group=OUTPUT,
    ),
    "json_file": option(
        "FILE", "Also write the JSON document here. With -, print it instead.",
        "--json", group=OUTPUT,
    ),
    "html_file": option(
        "FILE",
        "Also write one HTML page that opens offline. It has charts, and tables to sort and search,"
        " and needs the extra 'html'.",
        "--html", group=OUTPUT,
    ),
    "assumptions": option(
        None, "Print what the figures assume, one by one.", "--assumptions", group=OUTPUT
    ),
    "quiet": option(
        None, "Print only warnings, errors and what is asked for.", "--quiet", "-q", group=OUTPUT
    ),
    "strict": option(
        None, "Exit with 3 if there is a warning; still write.", "--strict",
        expose_value=False, callback=_noted, group=Seldom(OUTPUT),
    ),
    "version": option(
        None, "Print the version and exit.", "--version",
        is_eager=True, expose_value=False, callback=_noted, group=HELP,
    ),
    "help_all": option(
        None, "Show this message with all options and exit.", "--help-all",
        is_eager=True, expose_value=False, callback=_noted, group=HELP,
    ),
    "debug": option(
        None, "Show where an internal error happened.", "--debug",
        is_eager=True, expose_value=False, callback=_noted, group=Seldom(HELP),
    ),
}  # fmt: skip
"""By parameter; those that take lists are called by the plural."""


ProfileOption = Annotated[list[Path] | None, "profile"]

SERVER_LIMITS: Final[Added] = {
    "gpu_memory_utilization": (float | None, None),
    "max_num_seqs": (int | None, None),
    "max_num_batched_tokens": (int | None, None),
}
"""Of a serving engine, named as by vLLM."""

OF_PREDICTIONS: Final[Added] = {
    "server": (str, "vllm"),
    **SERVER_LIMITS,
    "preprocess_ms": (float | None, None),
    "workers": (int, 1),
    "price": (str | None, None),
    "weights_dtype": (str | None, None),
    "kv_dtype": (str | None, None),
    "new_tokens_from": (Path | None, None),
    "mean_new_tokens": (float | None, None),
    "share_at_limit": (float, 0.0),
    "offline": (bool, False),
    "reserved": (float, 0.1),
    "profile": (ProfileOption, None),
    "corrections": (int, 1),
    "server_version": (str | None, None),
}
"""Of every command with predicted seconds."""

PLANNED_WORKERS: Final = (Annotated[int | None, "planned_workers"], None)

SECONDS_OF_A_PAGE: Final[Added] = {
    "gpu": (Annotated[list[str] | None, "gpu"], None),
    "runtime": (Annotated[str, "runtimes"], "serving"),
    "concurrency": (Annotated[str, "concurrencies"], "1"),
    **OF_PREDICTIONS,
    "workers": PLANNED_WORKERS,
}

SECONDS_OF_MANY: Final[Added] = {
    "gpu": (list[str] | None, None),
    "runtime": (str, "serving"),
    **OF_PREDICTIONS,
}

SECONDS_OF_A_LIST: Final[Added] = {
    **SECONDS_OF_MANY,
    "concurrency": (int | None, None),
    "deadline": (str | None, None),
}

EVERYWHERE: Final[Added] = {"quiet": (bool, False), "help_all": (bool, False)}
"""Of every command, whether it names them or not."""


# --- values ---------------------------------------------------------------------------------------


def _listed(argument: str, text: str) -> tuple[str, ...]:
    from dsocr_analyze.archive.axes import parse_names

    return parse_names(argument, text)


def gpu_names(*given: Sequence[str] | None) -> list[str]:
    """The names in arguments and options, each a comma-separated list."""
    return [name for texts in given for text in texts or () for name in _listed("gpu", text)]


def dtypes_from(text: str) -> tuple[kernels.Dtype, ...]:
    """The distinct data types in `--dtype`."""
    return tuple(dict.fromkeys(map(kernels.dtype_named, _listed("dtype", text))))


def switches(argument: str, text: str) -> tuple[bool, ...]:
    """The distinct values of an option like `--use-flash-attn 0,1`; raises WorkloadError."""
    names = _listed(argument, text)
    if wrong := [name for name in names if name not in SWITCH]:
        raise WorkloadError(
            f"{argument} {wrong[0]!r} is invalid; give 0, 1 or 0,1", arguments=[argument]
        )
    return tuple(dict.fromkeys(name == "1" for name in names))


# --- what a command ran with ----------------------------------------------------------------------

_ABOUT_THE_OUTPUT: Final = (
    "output format json quiet assumptions yes plot x quantity forget keep html full junit markdown"
    " update"
).split()
"""Options about how results are written, not about their content."""


def given_options(context: typer.Context) -> dict[str, str]:
    """The options on the command line, by parameter."""
    return {
        each.name: spelling(each, context)
        for each in context.command.params
        if each.name
        and getattr(context.get_parameter_source(each.name), "name", None) == "COMMANDLINE"
    }


def gpus_asked(context: typer.Context) -> list[str]:
    """The values of `--gpu`; raises WorkloadError if an option needs one."""
    gpus: list[str] = context.params["gpu"] or []
    for name, spelled in () if gpus else given_options(context).items():
        if name in SECONDS_OF_A_PAGE or name == "deadline":
            raise WorkloadError(
                f"{spelled} is for predicted seconds; give --gpu too, or leave it out"
            )
    return gpus


def options_used(context: typer.Context) -> dict[str, OptionValue]:
    """The value of every option by name, with _ for -; an argument's beside the like option's."""
    used: dict[str, OptionValue] = {}
    for parameter in context.command.params:
        name = parameter.opts[0].lstrip("-").replace("-", "_")
        if parameter.name not in context.params or name in _ABOUT_THE_OUTPUT:
            continue
        value, earlier = context.params[parameter.name], used.get(name)
        if isinstance(value, list | tuple):
            value = (*(earlier if isinstance(earlier, tuple) else ()), *map(str, value))
        elif isinstance(value, dict):
            value = ",".join(f"{gpu}:{price:g}" for gpu, price in value.items())
        elif isinstance(value, Path):
            value = str(value)
        used[name] = earlier if value is None else value
    return used
