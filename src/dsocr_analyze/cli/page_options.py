"""The model, the page and the seconds that options ask for."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from dsocr_analyze import architectures, input_files
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.cli import options, streams, words
from dsocr_analyze.errors import ConfigError, ModelDirectoryError, WorkloadError, refuse
from dsocr_analyze.extras import require_extra
from dsocr_analyze.model.directory import (
    ModelDirectory,
    read_config,
    tokenizer_read,
)
from dsocr_analyze.workload import text_parts

if TYPE_CHECKING:
    from dsocr_analyze.archive.seconds import TimeRequested
    from dsocr_analyze.timing.predict import TimeRequest

MODEL: Final[options.Added] = {
    "model": (str | None, None),
    "arch": (str | None, None),
    "config": (Path | None, None),
}
DESCRIBED: Final[options.Added] = {
    **MODEL,
    "stages": (Path | None, None),
    "hf_config": (Path | None, None),
}
WINDOW: Final[options.Added] = {"sliding_window": (int | None, None)}
TRUST: Final[options.Added] = {"trust_remote_code": (bool, False)}
_OF_A_DIRECTORY: Final = (*DESCRIBED, *WINDOW, *TRUST)
"""The options about a model, which `directory_asked` reads."""
TYPES: Final[options.Added] = {"dtype": (str, "bfloat16"), "use_flash_attn": (int, 0)}

SIZES: Final[options.Added] = {
    "mode": (str | None, None),
    "base_size": (int | None, None),
    "image_size": (int | None, None),
    "crop_mode": (int | None, None),
}
PROMPT: Final[options.Added] = {
    "page": (str | None, None),
    "image": (Path | None, None),
    "seq_len": (int | None, None),
    "text_tokens": (int | None, None),
    "prompt": (str | None, None),
}
NEW_TOKENS: Final[options.Added] = {"max_new_tokens": (int, 1024)}
BATCH: Final[options.Added] = {"batch_size": (int, 1)}
PROMPT_PAGES: Final[options.Added] = {"prompt_pages": (int, 1)}
OF_A_PAGE: Final[options.Added] = {**SIZES, **PROMPT, **NEW_TOKENS, **BATCH, **PROMPT_PAGES}
"""The options about a page, which `page_request` reads."""


# --- the model ------------------------------------------------------------------------------------


def directory_asked(given: Mapping[str, Any], **instead: Any) -> ModelDirectory:
    """The model directory that a command's options, or values in their place, name."""
    named = {name: given[name] for name in _OF_A_DIRECTORY if name in given}
    return model_directory_from(**{**named, **instead})


def model_directory_from(
    model: str | None,
    arch: str | None,
    config: Path | None,
    *,
    trust_remote_code: bool = True,
    sliding_window: int | None = None,
    stages: Path | None = None,
    hf_config: Path | None = None,
) -> ModelDirectory:
    """The model directory that options name, with `config` in place of its own.

    Without `trust_remote_code`, one under `MODELS` is taken only if it is trusted.
    """
    refuse(
        WorkloadError,
        (stages and sliding_window is not None,
         f"--sliding-window {sliding_window} is for known architectures; leave it out with"
         f" --stages {stages}"),
        (stages and arch is not None,
         f"--stages {stages} describes an architecture; leave out --arch {arch}"),
        (hf_config and stages is None
         and not ModelDirectory.of_config(hf_config, None).of_transformers,
         f"--hf-config {hf_config} only names a model; define its stages and inputs too:"
         f" --stages FILE, which dsocr-analyze stages --hf-config {hf_config} drafts"),
    )  # fmt: skip
    if stages is not None:
        found = _of_its_own(model, config, hf_config, architectures.described_architecture(stages))
        if found is None:
            raise WorkloadError(
                f"--stages {stages} describes a model; name it: --model DIR or --hf-config FILE"
            )
        return found
    if hf_config is not None:
        return ModelDirectory.of_config(hf_config, None)
    values = {} if config is None else read_config(config)
    if model not in (None, "reference"):
        directory = ModelDirectory.read(Path(str(model)))
        _check_arch(arch, directory.config, f"--model {model}")
    else:
        if config is not None and arch is None and architectures.foreign_model(values):
            # Raises an error that says what it is and how to trace it.
            _ = ModelDirectory(config, values, {}, config_file=config).architecture
        known = architectures.recognized_architecture(values) if values else None
        if "auto_map" in values or known is not None:
            _check_arch(arch, values, f"--config {config}")
        if arch is not None:
            known = architectures.architecture_named(arch)
        directory = _unnamed(
            known or architectures.DEFAULT, model, trust_remote_code=trust_remote_code
        )
    directory = directory if config is None else directory.with_config(values, config)
    return directory if sliding_window is None else with_window(directory, sliding_window)


def with_window(directory: ModelDirectory, sliding_window: int) -> ModelDirectory:
    """The directory with its sliding window on or off."""
    architecture = architectures.architecture_of(directory.config)
    _refuse_window(architecture, str(sliding_window))
    return (
        directory
        if sliding_window
        else directory.with_config(architecture.without_window(directory.config))
    )


def windows_from(architecture: Architecture, text: str | None) -> tuple[bool, ...]:
    """Whether the sliding window is on, for each value; raises WorkloadError if there is none."""
    if text is None:
        return (True,)
    _refuse_window(architecture, text)
    return options.switches("sliding_window", text)


def _refuse_window(architecture: Architecture, value: str) -> None:
    """Raises WorkloadError if the architecture has no sliding window."""
    if not architecture.has_window:
        raise WorkloadError(
            f"--sliding-window {value} is not supported: {architecture.name} has no sliding window;"
            " leave it out"
        )


def undescribed_model(
    model: str | None, arch: str | None, config: Path | None, hf_config: Path | None
) -> ModelDirectory | None:
    """The model of transformers' own code that is named without a stages file, if any."""
    if hf_config is not None and arch is not None:
        raise WorkloadError(
            f"--hf-config {hf_config} is of no known architecture; leave out --arch {arch}"
        )
    directory = None if arch is not None else _of_its_own(model, config, hf_config)
    if directory is None or (hf_config is None and directory.recognized is not None):
        return None
    # Imported here because few runs need it and the import takes time.
    from dsocr_analyze.architectures.any_model import undescribed

    return dataclasses.replace(directory, described=undescribed(directory.config))


def _of_its_own(
    model: str | None,
    config: Path | None,
    hf_config: Path | None,
    described: Architecture | None = None,
) -> ModelDirectory | None:
    if hf_config is not None:
        for option, value in (("--model", model), ("--config", config)):
            if value is not None:
                raise WorkloadError(
                    f"--hf-config {hf_config} is the whole model; leave out {option} {value}"
                )
        return ModelDirectory.of_config(hf_config, described)
    if model in (None, "reference"):
        return None
    directory = ModelDirectory.read(Path(str(model)), described)
    return directory if config is None else directory.with_config(read_config(config), config)


def _check_arch(arch: str | None, config: dict[str, Any], source: str) -> None:
    found = architectures.recognized_architecture(config)
    name = None if found is None else found.name
    if arch is not None and name != architectures.architecture_named(arch).name:
        raise WorkloadError(
            f"--arch {arch} contradicts {source}, which is"
            f" {f'of {name}' if name else 'no known architecture'}; give one of them"
        )


def _unnamed(
    architecture: Architecture, model: str | None, *, trust_remote_code: bool
) -> ModelDirectory:
    """The directory under `MODELS` if it is trusted, else the built-in reference."""
    path = options.MODELS / architecture.name
    if model is None and input_files.is_regular(path / "config.json"):
        try:
            directory = ModelDirectory.read(path)
        except (ConfigError, ModelDirectoryError) as error:
            streams.complain(f"{path} cannot be used, so the built-in reference runs: {error}")
        else:
            from dsocr_analyze.model.trust import is_trusted

            if trust_remote_code or not directory.has_code or is_trusted(directory):
                return directory
            streams.complain(
                f"{path} is not trusted, so the built-in reference runs;"
                f" `dsocr-analyze trust {path}` after reading its code"
            )
    return ModelDirectory.of_architecture(architecture)


# --- the page -------------------------------------------------------------------------------------


def page_request(
    asked: Mapping[str, Any], directory: ModelDirectory, **instead: Any
) -> architectures.PageRequest:
    """What the options of a command or of a budgeted workload, or values in their place, ask.

    Raises:
        WorkloadError: Options contradict each other.
        PageError: The image's size cannot be determined.
        ModelDirectoryError: There is no tokenizer for the prompt.
        ExtraError: What reads one is not installed.
    """
    values = {
        "engine": "analytic",
        **asked,
        "architecture": directory.architecture,
        "flash_attention": bool(asked["use_flash_attn"]),
        **instead,
    }
    given = {
        each.name: values[each.name]
        for each in dataclasses.fields(architectures.PageRequest)
        if values.get(each.name) is not None
    }
    if (prompt := values.get("prompt")) is not None:
        if "text_tokens" in given or "seq_len" in given:
            raise WorkloadError(
                "--prompt sets the text tokens; leave out --text-tokens and --seq-len"
            )
        given["text_tokens"] = _text_tokens_of(prompt, directory)
    if "crop_mode" in given:
        given["crop_mode"] = bool(given["crop_mode"])
    if "image" in given and "page" not in given and directory.architecture.modes:
        given["page"] = page_of_file(given.pop("image"))
    return architectures.PageRequest(**given)


def _text_tokens_of(prompt: str, directory: ModelDirectory) -> int:
    """With BOS and without `<image>`."""
    if directory.described is not None:
        raise WorkloadError(
            f"--prompt counts the text of a page; that of {directory.described.name} is in its"
            " stages file: give --seq-len for another length"
        )
    if directory.is_reference:
        raise ModelDirectoryError(
            "--prompt needs a model directory with tokenizer.json; the built-in reference has none,"
            " give --text-tokens instead"
        )
    file = directory.tokenizer_file
    if not input_files.is_regular(file):
        raise ModelDirectoryError(
            f"--prompt needs {str(file)!r}, which does not exist; give --text-tokens instead"
        )
    require_extra("--prompt", "trace", "tokenizers")
    import tokenizers

    with tokenizer_read(file) as content:
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
        return 1 + sum(
            len(tokenizer.encode(part, add_special_tokens=False).ids) for part in text_parts(prompt)
        )


def page_of_file(image: Path) -> tuple[int, int]:
    """The page in an image file; of several, the first, with a note."""
    from dsocr_analyze.workload.image_file import ImagePages

    found = ImagePages(image)
    sizes = found.sizes()
    size, pages = next(sizes), 1
    with contextlib.suppress(WorkloadError):  # damage after the first frame does not matter
        for _ in sizes:
            pages += 1
    if pages > 1:
        streams.complain(
            f"note: {image} has {pages} pages and only the first is used; `dsocr-analyze archive"
            f" {image}` counts all of them"
        )
    elif found.has_more_frames:
        streams.complain(f"note: {image} has several frames and only the first is used")
    return size


# --- predicted seconds ----------------------------------------------------------------------------


def request_with_report(context: typer.Context) -> TimeRequest | None:
    """The predictions of a page; None without a GPU; raises AnalyzeError."""
    if not (gpus := options.gpus_asked(context)):
        return None
    from dsocr_analyze.cli.time_requests import request_from

    return request_from(context, gpus)


def requested_of_many(context: typer.Context) -> TimeRequested | None:
    """Those of many pages; None without a GPU; raises AnalyzeError."""
    if not (gpus := options.gpus_asked(context)):
        return None
    from dsocr_analyze.cli.time_requests import lengths_asked, many_pages_requested

    return many_pages_requested(context.params, gpus, lengths_asked(context))


def check_pdf_dpi(context: typer.Context, file: Path | None) -> None:
    """Raises WorkloadError for `--pdf-dpi` beside pages that have their size in pixels."""
    is_given = "pdf_dpi" in options.given_options(context)
    can_have = file is not None and (
        file.suffix.lower() == ".pdf" or input_files.is_folder(file) or not input_files.exists(file)
    )
    if is_given and not can_have:
        raise WorkloadError(
            f"--pdf-dpi {context.params['pdf_dpi']} is for PDFs, and there are none; leave it out"
        )


def note_attention(context: typer.Context) -> None:
    """Says that `--use-flash-attn` has no effect on a serving engine."""
    if "use_flash_attn" in options.given_options(context):
        words.note(
            context,
            f"note: --use-flash-attn {context.params['use_flash_attn']} has no effect: a serving"
            " engine has attention kernels of its own",
        )
