"""What options ask of a model and a page: its directory, sizes and lengths, and how it runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from dsocr_analyze import architectures, dtypes, input_files
from dsocr_analyze.architectures import PageRequest
from dsocr_analyze.cli import options
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.errors import ConfigError, ModelDirectoryError, WorkloadError
from dsocr_analyze.model import tokenizer_file
from dsocr_analyze.workload import ImagePages, Workload, text_parts

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.archive.setting import Setting
    from dsocr_analyze.model.directory import ModelDirectory

__all__ = [
    "OF_A_PAGE",
    "attentions_from",
    "described_model",
    "dtypes_from",
    "model_directory_from",
    "of_a_page",
    "page_of_file",
    "page_request",
    "settings_from",
    "undescribed_model",
    "windows_from",
    "with_window",
    "workload_of",
]

OF_A_PAGE: Final[options.Added] = {
    "mode": (str | None, None),
    "base_size": (int | None, None),
    "image_size": (int | None, None),
    "crop_mode": (int | None, None),
    "page": (str | None, None),
    "image": (Path | None, None),
    "seq_len": (int | None, None),
    "text_tokens": (int | None, None),
    "prompt": (str | None, None),
    "max_new_tokens": (int, 1024),
    "batch_size": (int, 1),
    "prompt_pages": (int, 1),
}
"""The options about a page."""


# --- the model ------------------------------------------------------------------------------------


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
        if arch is not None:
            raise WorkloadError(
                f"--stages {stages} describes an architecture; leave out --arch {arch}"
            )
        described = architectures.described_architecture(stages)
        found = _of_its_own(model, config, hf_config, described)
        if found is None:
            raise WorkloadError(
                f"--stages {stages} describes a model; name it: --model DIR or --hf-config FILE"
            )
        return found
    if hf_config is not None:
        raise WorkloadError(
            f"--hf-config {hf_config} only names a model; define its stages and inputs too:"
            f" --stages FILE, which dsocr-analyze stages --hf-config {hf_config} drafts"
        )
    values = {} if config is None else read_config(config)
    if model not in (None, "reference"):
        directory = ModelDirectory.read(Path(str(model)))
        _check_arch(arch, directory.config, f"--model {model}")
    else:
        if config is not None and arch is None and architectures.foreign_model(values):
            # Raises an error that says what it is and how to trace it.
            _ = ModelDirectory(config, values, {}, config_file=config).architecture
        if "auto_map" in values:
            _check_arch(arch, values, f"--config {config}")
        named = None if arch is None else architectures.architecture_named(arch)
        known = named or architectures.recognized_architecture(values) or architectures.DEFAULT
        directory = _unnamed(known, model, trust_remote_code=trust_remote_code)
    directory = directory if config is None else directory.with_config(values, config)
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
    is_on, config = options.switch("--sliding-window", sliding_window), directory.config
    architecture = architectures.architecture_of(config)
    _refuse_window(architecture, str(sliding_window))
    return directory if is_on else directory.with_config(architecture.without_window(config))


def _refuse_window(architecture: Architecture, value: str) -> None:
    """Raise for `--sliding-window` if the architecture has none."""
    if not architecture.has_window:
        raise WorkloadError(
            f"--sliding-window {value} is not supported: {architecture.name} has no sliding window;"
            " leave it out"
        )


def undescribed_model(
    model: str | None, arch: str | None, config: Path | None, hf_config: Path | None
) -> ModelDirectory | None:
    """The model of transformers' own code that the options name without a stages file.

    None if they name another one, or none.
    """
    is_named = hf_config is None and arch is not None
    directory = None if is_named else _of_its_own(model, config, hf_config)
    if hf_config is not None and arch is not None:
        raise WorkloadError(
            f"--hf-config {hf_config} is of no known architecture; leave out --arch {arch}"
        )
    if directory is None or (hf_config is None and directory.recognized is not None):
        return None
    return dataclasses.replace(directory, described=architectures.undescribed(directory.config))


def _of_its_own(
    model: str | None,
    config: Path | None,
    hf_config: Path | None,
    described: Architecture | None = None,
) -> ModelDirectory | None:
    """The model in a directory or of a config alone; None if the options name neither."""
    from dsocr_analyze.model.directory import ModelDirectory, read_config

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
    """Raise if `--arch` contradicts the config's architecture."""
    found = architectures.recognized_architecture(config)
    if arch is not None and found is not architectures.architecture_named(arch):
        raise WorkloadError(
            f"--arch {arch} contradicts {source}, which is"
            f" {f'of {found.name}' if found else 'no known architecture'}; give one of them"
        )


def _unnamed(
    architecture: Architecture, model: str | None, *, trust_remote_code: bool
) -> ModelDirectory:
    """The directory under `MODELS` if it is trusted, else the built-in reference."""
    from dsocr_analyze.model.directory import ModelDirectory

    path = options.MODELS / architecture.name
    if model is None and input_files.is_regular(path / "config.json"):
        try:
            directory = ModelDirectory.read(path)
        except (ConfigError, ModelDirectoryError) as error:
            complain(f"{path} cannot be used, so the built-in reference runs: {error}")
        else:
            from dsocr_analyze.model.trust import is_trusted

            if trust_remote_code or is_trusted(directory):
                return directory
            complain(
                f"{path} is not trusted, so the built-in reference runs;"
                f" `dsocr-analyze trust {path}` after reading its code"
            )
    return ModelDirectory.read(architecture.reference)


# --- the page -------------------------------------------------------------------------------------


def of_a_page(*left_out: str) -> Callable[[options.Command], options.Command]:
    """Add the options about a page, which `page_request` reads, to a command.

    Args:
        *left_out: Names of those that it has not, or has as others.
    """
    asked = {name: each for name, each in OF_A_PAGE.items() if name not in left_out}
    return options.adding(asked, after="use_flash_attn")


def page_request(context: typer.Context, directory: ModelDirectory, **instead: Any) -> PageRequest:
    """What a command's options ask about a page.

    Args:
        context: The command's context.
        directory: The model's directory, whose tokenizer counts a prompt.
        **instead: Values in place of the options', by the parameters' names.

    Raises:
        WorkloadError: Options contradict each other.
        PageError: The image's size cannot be determined.
        ModelDirectoryError: There is no tokenizer for the prompt.
    """
    values = {**context.params, **instead}
    given = {each.name: values.get(each.name) for each in dataclasses.fields(PageRequest)}
    if (prompt := values.get("prompt")) is not None:
        if given["text_tokens"] is not None or given["seq_len"] is not None:
            raise WorkloadError(
                "--prompt sets the text tokens; leave out --text-tokens and --seq-len"
            )
        given["text_tokens"] = _text_tokens_of(prompt, directory)
    if given["crop_mode"] is not None:
        given["crop_mode"] = options.switch("--crop-mode", given["crop_mode"])
    if given["image"] is not None and given["page"] is None and directory.architecture.modes:
        given |= {"page": page_of_file(given["image"]), "image": None}
    return PageRequest(**given)


def workload_of(context: typer.Context, directory: ModelDirectory, **instead: Any) -> Workload:
    """The workload of `page_request` on a model that reads pages; raises its errors."""
    workload = page_request(context, directory, **instead).workload(directory.architecture)
    assert isinstance(workload, Workload), "every architecture with a name reads pages"
    return workload


def _text_tokens_of(prompt: str, directory: ModelDirectory) -> int:
    """A prompt's text tokens, counted with the model's tokenizer.

    BOS is included and `<image>` left out, in the layout of the vendor's `infer()`: see
    `text_parts`.
    """
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
    content = tokenizer_file.read_tokenizer_file(file)
    import tokenizers

    with tokenizer_file.named_tokenizer_failures(file):
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
        parts = text_parts(prompt)
        return 1 + sum(len(tokenizer.encode(each, add_special_tokens=False).ids) for each in parts)


def page_of_file(image: Path) -> tuple[int, int]:
    """The page in an image file; if there are several, the first, with a note."""
    found = ImagePages(image)
    sizes = found.sizes()
    size, pages = next(sizes), 1
    with contextlib.suppress(WorkloadError):  # damage after the first frame does not matter
        for _ in sizes:
            pages += 1
    if pages > 1:
        complain(
            f"note: {image} has {pages} pages and only the first is used; `dsocr-analyze archive"
            f" {image}` counts all of them"
        )
    elif found.has_more_frames:
        complain(f"note: {image} has several frames and only the first is used")
    return size


# --- lists of modes, types and kinds of attention -------------------------------------------------


def settings_from(architecture: Architecture, given: Mapping[str, Any]) -> list[Setting]:
    """Every combination of the modes, data types, kinds of attention and windows in the options."""
    from dsocr_analyze.archive.axes import parse_modes
    from dsocr_analyze.archive.setting import settings_of

    return settings_of(
        modes=parse_modes("mode", given["mode"] or architecture.default_mode, architecture),
        windows=windows_from(architecture, given["sliding_window"]),
        attentions=attentions_from(given["use_flash_attn"]),
        dtypes=dtypes_from(given["dtype"]),
    )


def dtypes_from(text: str) -> tuple[dtypes.Dtype, ...]:
    """The distinct data types in `--dtype`."""
    from dsocr_analyze.archive.axes import parse_names

    return tuple(dict.fromkeys(map(dtypes.dtype_named, parse_names("dtype", text))))


def attentions_from(text: str) -> tuple[bool, ...]:
    """Whether attention is FlashAttention, for each value in `--use-flash-attn`."""
    return _switches("flash_attention", text)


def windows_from(architecture: Architecture, text: str | None) -> tuple[bool, ...]:
    """Whether the sliding window is on, for each value in `--sliding-window`.

    Raises:
        WorkloadError: The architecture has no sliding window, or a value is neither 0 nor 1.
    """
    if text is None:
        return (True,)
    _refuse_window(architecture, text)
    return _switches("sliding_window", text)


def _switches(argument: str, text: str) -> tuple[bool, ...]:
    """The distinct values of a list of switches."""
    from dsocr_analyze.archive.axes import parse_names

    names = parse_names(argument, text)
    if wrong := [name for name in names if name not in ("0", "1")]:
        raise WorkloadError(
            f"{argument} {wrong[0]!r} is invalid; give 0, 1 or 0,1", arguments=[argument]
        )
    return tuple(dict.fromkeys(name == "1" for name in names))
