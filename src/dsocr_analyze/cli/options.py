"""Options shared by several commands, and the meaning of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsocr_analyze import architectures
from dsocr_analyze.cli import completion
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.dtypes import MODEL_DTYPES
from dsocr_analyze.errors import ConfigError, ModelDirectoryError, WorkloadError
from dsocr_analyze.input_files import is_folder, is_regular
from dsocr_analyze.names import did_you_mean, in_any_case
from dsocr_analyze.workload import Mode

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.model.directory import ModelDirectory

MODELS = Path("models")
"""Folder of models that run by default, each named after its architecture."""

TEXT_TOKENS = "Text tokens, BOS included. Default: the usual prompt's, 10 for deepseek-ocr."
NEW_TOKENS = "Tokens generated per page; the prefill pass generates the first."
BATCH = "Identical pages per batch."
SLIDING_WINDOW = (
    "Whether decode steps use the model's sliding window, as its infer() does; unlimited-ocr only."
    " Default: 1."
)

_MODEL = "Model"
_WORKLOAD = "Workload"

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="DIR",
        help="Model directory (config.json and Python files); 'reference' is the built-in"
        f" reference. Default: {MODELS}/ARCHITECTURE if it exists and is trusted, else the"
        " reference.",
        rich_help_panel=_MODEL,
    ),
]
ArchOption = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="|".join(architectures.ARCHITECTURES),
        autocompletion=completion.one_of(*architectures.ARCHITECTURES),
        help="Architecture to run if no --model is given. Default: that of --config, else"
        f" {architectures.DEFAULT.name}.",
        rich_help_panel=_MODEL,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A config.json to use instead of the model directory's own.",
        rich_help_panel=_MODEL,
    ),
]
StagesOption = Annotated[
    Path | None,
    typer.Option(
        "--stages",
        metavar="FILE",
        help="TOML file that defines the stages and inputs of another model (docs/any-model.md);"
        " it is traced, without closed forms. The command stages drafts one.",
        rich_help_panel=_MODEL,
    ),
]
HfConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--hf-config",
        metavar="FILE",
        help="Instead of --model: config.json of a model that transformers implements; to trace"
        " it, give --stages too.",
        rich_help_panel=_MODEL,
    ),
]
OutputFileOption = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="Write to this file instead of stdout."),
]
ConfigsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        metavar="FILE ...",
        help="A config.json to use instead of the model directory's own. May be given several"
        " times: one column per config, and the keys that differ.",
        rich_help_panel=_MODEL,
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Execute the model directory's Python files without a trust record.",
        rich_help_panel=_MODEL,
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="meta|cpu|cuda:N",
        autocompletion=completion.one_of("meta", "cpu", "cuda:0"),
        help="Device of the forward pass; meta computes nothing and needs no weights.",
        rich_help_panel=_MODEL,
    ),
]
DtypeOption = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="bfloat16|float16|float32",
        autocompletion=completion.one_of(*MODEL_DTYPES),
        help="Data type of weights and activations.",
        rich_help_panel=_MODEL,
    ),
]
FlashOption = Annotated[
    int,
    typer.Option(
        "--use-flash-attn",
        metavar="0|1",
        autocompletion=completion.one_of("0", "1"),
        help="Decoder attention: 0 eager, 1 FlashAttention-2.",
        rich_help_panel=_MODEL,
    ),
]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="|".join(architectures.DEFAULT.modes),
        autocompletion=completion.all_modes,
        help="One of the architecture's modes, instead of --base-size, --image-size and"
        " --crop-mode.",
        rich_help_panel=_WORKLOAD,
    ),
]
BaseSizeOption = Annotated[
    int | None,
    typer.Option(
        "--base-size",
        metavar="PIXELS",
        help="Side of the global view in crop mode. Default: the architecture's, 1024.",
        rich_help_panel=_WORKLOAD,
    ),
]
ImageSizeOption = Annotated[
    int | None,
    typer.Option(
        "--image-size",
        metavar="PIXELS",
        help="Side of a local view in crop mode, or of the only view otherwise. Default: the"
        " architecture's, 640 for deepseek-ocr.",
        rich_help_panel=_WORKLOAD,
    ),
]
CropModeOption = Annotated[
    int | None,
    typer.Option(
        "--crop-mode",
        metavar="0|1",
        autocompletion=completion.one_of("0", "1"),
        help="Whether a page larger than one tile is cut into local views. Default: 1.",
        rich_help_panel=_WORKLOAD,
    ),
]
PageOption = Annotated[
    str | None,
    typer.Option(
        "--page",
        metavar="a4|letter|WxH",
        autocompletion=completion.all_papers,
        help="Page size in pixels, or paper at 150 dpi (a4@300 for another). Default: a4.",
        rich_help_panel=_WORKLOAD,
    ),
]
ImageOption = Annotated[
    Path | None,
    typer.Option(
        "--image",
        metavar="FILE",
        help="Take the page size from this image's header, respecting its orientation.",
        rich_help_panel=_WORKLOAD,
    ),
]
SeqLenOption = Annotated[
    int | None,
    typer.Option(
        "--seq-len",
        metavar="TOKENS",
        help="Tokens of the whole prompt; text fills what the visual tokens leave.",
        rich_help_panel=_WORKLOAD,
    ),
]
TextTokensOption = Annotated[
    int | None,
    typer.Option(
        "--text-tokens",
        metavar="TOKENS",
        help=TEXT_TOKENS,
        rich_help_panel=_WORKLOAD,
    ),
]
NewTokensOption = Annotated[
    int,
    typer.Option(
        "--max-new-tokens",
        metavar="TOKENS",
        help=NEW_TOKENS,
        rich_help_panel=_WORKLOAD,
    ),
]
PromptPagesOption = Annotated[
    int,
    typer.Option(
        "--prompt-pages",
        metavar="PAGES",
        help="Identical pages in one prompt, none of them cut; unlimited-ocr only.",
        rich_help_panel=_WORKLOAD,
    ),
]
SlidingWindowOption = Annotated[
    int | None,
    typer.Option(
        "--sliding-window",
        metavar="0|1",
        autocompletion=completion.one_of("0", "1"),
        help=SLIDING_WINDOW,
        rich_help_panel=_MODEL,
    ),
]
BatchOption = Annotated[
    int,
    typer.Option("--batch-size", metavar="PAGES", help=BATCH, rich_help_panel=_WORKLOAD),
]

GpuOption = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="GPU",
        autocompletion=completion.all_gpus,
        help="GPUs to predict for, named as in `dsocr-analyze devices`: h100-sxm,l40s. May be given"
        " several times.",
        rich_help_panel="Time",
    ),
]

JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help="Also write the JSON document here; - prints it instead."
    ),
]


def _show_errors_in_full(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.obj.is_debugged = True


DebugOption = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show where an internal error happened.",
        is_eager=True,
        expose_value=False,
        callback=_show_errors_in_full,
    ),
]


def switch(option: str, value: int) -> bool:
    """The value of a 0|1 option."""
    if value not in (0, 1):
        raise WorkloadError(f"{option} {value} is invalid; give 0 or 1")
    return value == 1


def format_option(
    *formats: str, says: str = "What is printed.", panel: str | None = None
) -> typer.models.OptionInfo:
    """The option `--format` of a command with these formats, in any case."""

    def in_lower_case(value: str | None) -> str | None:
        return None if value is None else chosen("--format", value, formats)

    found: typer.models.OptionInfo = typer.Option(
        "--format",
        metavar="|".join(formats),
        autocompletion=completion.one_of(*formats),
        help=says,
        rich_help_panel=panel,
        callback=in_lower_case,
    )
    return found


FormatOption = Annotated[str, format_option("table", "markdown", "json")]


def chosen(option: str, value: str, choices: Sequence[str]) -> str:
    """The choice that equals a value, ignoring case; raises WorkloadError if there is none."""
    found = in_any_case(value, choices)
    if found is None:
        near = did_you_mean(value, choices)
        raise WorkloadError(f"{option} {value!r} is unknown; {near}use {', '.join(choices)}")
    return found


def gpu_names(*given: Sequence[str] | None) -> list[str]:
    """GPU names from arguments and options, each of which may be a comma-separated list."""
    from dsocr_analyze.sweep.axes import parse_names

    texts = [text for texts in given for text in texts or ()]
    return [name for text in texts for name in parse_names("gpu", text)]


def mode_named(architecture: Architecture, name: str) -> Mode:
    """The architecture's mode with that name, ignoring case."""
    return architecture.modes[chosen("--mode", name, tuple(architecture.modes))]


def model_directory_from(
    model: str | None,
    arch: str | None,
    config: Path | None,
    *,
    trust_remote_code: bool,
    sliding_window: int | None = None,
    stages: Path | None = None,
    hf_config: Path | None = None,
) -> ModelDirectory:
    """The model directory named by the options, with its config replaced if one is given."""
    from dsocr_analyze.model.directory import ModelDirectory, read_config

    if stages is not None:
        if sliding_window is not None:
            raise WorkloadError(
                f"--sliding-window {sliding_window} is for known architectures; leave it out with"
                f" --stages {stages}"
            )
        return _described(stages, model, arch, config, hf_config)
    if hf_config is not None:
        raise WorkloadError(
            f"--hf-config {hf_config} only names a model; define its stages and inputs too:"
            f" --stages FILE, which dsocr-analyze stages --hf-config {hf_config} drafts"
        )
    values = None if config is None else read_config(config)
    if model not in (None, "reference"):
        directory = ModelDirectory.read(Path(str(model)))
        _check_arch(arch, directory.config, f"--model {model}")
    else:
        architecture = _architecture_from(arch, values, config)
        directory = _unnamed(architecture, model, trust_remote_code=trust_remote_code)
    directory = directory if values is None else directory.with_config(values, config)
    return directory if sliding_window is None else with_window(directory, sliding_window)


def described_model(
    model: str | None, arch: str | None, config: Path | None, sliding_window: int | None = None
) -> ModelDirectory:
    """The same for closed forms: only the config is read, the directory's code is not executed."""
    return model_directory_from(
        model, arch, config, trust_remote_code=True, sliding_window=sliding_window
    )


def with_window(directory: ModelDirectory, sliding_window: int) -> ModelDirectory:
    """The directory with its sliding window on or off, according to `--sliding-window`."""
    is_on = switch("--sliding-window", sliding_window)
    architecture = architectures.architecture_of(directory.config)
    without = require_window(architecture, str(sliding_window))
    return directory if is_on else directory.with_config(without(directory.config))


def require_window(
    architecture: Architecture, value: str
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """A function that removes the window from a config; raises if the architecture has none."""
    if not architecture.has_window:
        raise WorkloadError(
            f"--sliding-window {value} is not supported: {architecture.name} has no sliding window;"
            " leave it out"
        )
    return architecture.without_window


def _described(
    stages: Path, model: str | None, arch: str | None, config: Path | None, hf_config: Path | None
) -> ModelDirectory:
    """The model described by a stages file, from a directory or transformers' own code."""
    from dsocr_analyze.model.directory import ModelDirectory, read_config

    if arch is not None:
        raise WorkloadError(f"--stages {stages} describes an architecture; leave out --arch {arch}")
    architecture = architectures.described_architecture(stages)
    if hf_config is not None:
        refuse_beside(hf_config, model, config)
        return ModelDirectory.of_config(hf_config, architecture)
    if model in (None, "reference"):
        raise WorkloadError(
            f"--stages {stages} describes a model; name it: --model DIR or --hf-config FILE"
        )
    directory = ModelDirectory.read(Path(str(model)), architecture)
    return directory if config is None else directory.with_config(read_config(config), config)


def refuse_beside(hf_config: Path, model: str | None, config: Path | None) -> None:
    """Raise if there is another model besides the one that is a config alone."""
    for option, value in (("--model", model), ("--config", config)):
        if value is not None:
            raise WorkloadError(
                f"--hf-config {hf_config} is the whole model; leave out {option} {value}"
            )


def _architecture_from(
    arch: str | None, values: dict[str, Any] | None, config: Path | None
) -> Architecture:
    """The architecture that runs if no directory is named."""
    from dsocr_analyze.model.directory import ModelDirectory

    if arch is None:
        if config and values and architectures.foreign_model(values):
            # Raises an error that says what it is and how to trace it.
            _ = ModelDirectory(config, values, {}, config_file=config).architecture
        found = None if values is None else architectures.recognized_architecture(values)
        return found or architectures.DEFAULT
    if values is not None and "auto_map" in values:
        _check_arch(arch, values, f"--config {config}")
    return architectures.architecture_named(arch)


def _check_arch(arch: str | None, config: dict[str, Any], source: str) -> None:
    """Raise if `--arch` contradicts the config's architecture."""
    if arch is None:
        return
    wanted = architectures.architecture_named(arch)
    found = architectures.recognized_architecture(config)
    if found is not wanted:
        is_of = "no known architecture" if found is None else f"of {found.name}"
        raise WorkloadError(
            f"--arch {arch} contradicts {source}, which is {is_of}; give one of them"
        )


def _unnamed(
    architecture: Architecture, model: str | None, *, trust_remote_code: bool
) -> ModelDirectory:
    """The directory under `MODELS` if it is trusted, else the built-in reference."""
    from dsocr_analyze.model.directory import ModelDirectory

    path = MODELS / architecture.name
    if model is None and is_folder(path) and is_regular(path / "config.json"):
        try:
            directory = ModelDirectory.read(path)
        except (ConfigError, ModelDirectoryError) as error:
            complain(f"{path} cannot be used, so the built-in reference runs: {error}")
            return ModelDirectory.read(architecture.reference)
        from dsocr_analyze.model.trust import is_trusted

        if trust_remote_code or is_trusted(directory):
            return directory
        complain(
            f"{path} is not trusted, so the built-in reference runs;"
            f" `dsocr-analyze trust {path}` after reading its code"
        )
    return ModelDirectory.read(architecture.reference)


def prepare_output(directory: Path, default: Path | None = None) -> None:
    """Create the folder named by `--output` before any work; raises OutputError."""
    from dsocr_analyze.output_files import prepare_directory

    prepare_directory(directory, may_lead_out=directory != default)
