"""The known model architectures, one package each."""

from collections import UserDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeAlias

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.config_file import Config
from dsocr_analyze.architectures.deepseek_ocr import DEEPSEEK_OCR
from dsocr_analyze.errors import ConfigError, WorkloadError, did_you_mean, in_any_case
from dsocr_analyze.kernels import dtype_named
from dsocr_analyze.workload import AnyWorkload, Mode, PageWorkload, parse_page


class _Registry(UserDict[str, Any]):
    """Architectures by name; of one that has not been asked for, where it is, or its class."""

    def __getitem__(self, name: str) -> Architecture:
        found = self.data[name]
        if isinstance(found, str):
            module, _, named = found.rpartition(".")
            found = getattr(import_module(f"{__name__}.{module}"), named)
            found = self.data[name] = found(name) if isinstance(found, type) else found
        architecture: Architecture = found
        return architecture


ARCHITECTURES: Final[Mapping[str, Architecture]] = _Registry(
    {
        "deepseek-ocr": "deepseek_ocr.DEEPSEEK_OCR",
        "deepseek-ocr-2": "deepseek_ocr_2.DEEPSEEK_OCR_2",
        "unlimited-ocr": "unlimited_ocr.UNLIMITED_OCR",
        **dict.fromkeys(
            ("paddleocr-vl", "glm-ocr", "lightonocr", "qwen3-vl", "olmocr", "got-ocr2"),
            "neighbours.neighbour.Neighbour",
        ),
    }
)

RELATIVES: Final = ("deepseek-ocr", "deepseek-ocr-2", "unlimited-ocr")
"""Names of DeepSeek-OCR and its relatives, whose code is the vendors' own."""

DEFAULT: Final = DEEPSEEK_OCR
"""Used if no model is named."""


def architecture_named(name: str) -> Architecture:
    """The architecture called `name`, in any case; raises WorkloadError if there is none."""
    found = in_any_case(name, ARCHITECTURES)
    if found is None:
        near = did_you_mean(name, ARCHITECTURES)
        raise WorkloadError(
            f"architecture {name!r} is unknown; {near}give {', '.join(ARCHITECTURES)}",
            arguments=["architecture"],
        )
    return ARCHITECTURES[found]


def described_architecture(path: Path) -> Architecture:
    """The architecture that a stages file describes; raises the errors of `any_model`."""
    # Imported here because few runs need it and the import takes time.
    from dsocr_analyze.architectures import any_model

    return any_model.described_architecture(path)


def recognized_architecture(config: Config) -> Architecture | None:
    """The architecture of a parsed `config.json`, if it is known."""
    for known in ARCHITECTURES.values():
        if known.recognizes(config):
            return known.of_config(config)
    return None


def architecture_of(config: Config) -> Architecture:
    """The architecture of a parsed `config.json`; raises ConfigError if it is unknown."""
    architecture = recognized_architecture(config)
    if architecture is not None:
        return architecture
    known = ", ".join(ARCHITECTURES)
    auto_map = config.get("auto_map")
    if isinstance(auto_map, Mapping):
        which = (
            f"its AutoModel is {auto_map.get('AutoModel')!r}, its model_type"
            f" {config.get('model_type')!r}"
        )
    else:
        which = foreign_model(config) or f"its model_type is {config.get('model_type')!r}"
    raise ConfigError(
        f"config.json describes no known architecture: {which}; the known ones are {known}; to"
        " trace another, describe it with stages=FILE (docs/any-model.md), which"
        " `dsocr-analyze stages` drafts",
        arguments=["stages"],
    )


def foreign_model(config: Config) -> str | None:
    """What a config for transformers' own code is of, like `it is a llama model (CLASS)`."""
    model_type, classes = config.get("model_type"), config.get("architectures")
    if not isinstance(model_type, str) or not isinstance(classes, list) or not classes:
        return None
    if recognized_architecture(config) is not None or "language_config" in config:
        return None
    return f"it is a {model_type} model ({classes[0]})"


# --- what a user asks about a page, and the workload that a model makes of it ------------------

PageSize: TypeAlias = str | tuple[int, int]
"""A page: a paper like `a4` or `a4@200`, `1240x1754`, or width and height in pixels."""

ImagePath: TypeAlias = str | PathLike[str]
"""Path of an image file."""

DEFAULT_PAGE: Final = "a4"
"""The default page, at 150 dpi."""

ENGINES: Final = ("trace", "analytic")
"""What counts: the model under hooks, compared with the tape, or the tape alone."""


@dataclass(frozen=True, kw_only=True)
class PageRequest:
    """A page and its prompts, as of `plan_workload`, and how a model runs them, as of `analyze`.

    Raises:
        WorkloadError: The engine is unknown, or `flash_attention` is no truth value.
        DeviceError: The type is unknown.
    """

    architecture: Architecture
    page: PageSize | None = None
    image: ImagePath | None = None
    mode: str | None = None
    base_size: int | None = None
    image_size: int | None = None
    crop_mode: bool | None = None
    text_tokens: int | None = None
    seq_len: int | None = None
    batch_size: int | None = None
    max_new_tokens: int | None = None
    prompt_pages: int | None = None
    dtype: str = "bfloat16"
    flash_attention: bool = False
    engine: str = "trace"

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise WorkloadError(f"engine {self.engine!r} is unknown; use 'trace' or 'analytic'")
        if not isinstance(self.flash_attention, bool):
            raise WorkloadError(
                f"flash_attention {self.flash_attention!r} is not a boolean; give True or False",
                arguments=["flash_attention"],
            )
        dtype_named(self.dtype)

    @property
    def given(self) -> dict[str, Any]:
        """What is asked of the page and its prompts."""
        return {
            field.name: value
            for field in fields(self)
            if field.default is None and (value := getattr(self, field.name)) is not None
        }

    @cached_property
    def workload(self) -> AnyWorkload:
        """What the model's own `infer()` makes of the page.

        Raises:
            PageError: The page's size is impossible or cannot be determined.
            WorkloadError: A size, mode or count is impossible, or two of them conflict.
        """
        given, modes = self.given, self.architecture.modes
        if modes:  # others refuse what is asked of a page
            if given.pop("mode", None) is not None:
                given |= self._sizes(modes)
            page = given.get("page", DEFAULT_PAGE)
            if self.image is not None:
                if self.page is not None:
                    raise WorkloadError(
                        f"give page={self.page!r} or image={str(self.image)!r}, not both",
                        arguments=["page", "image"],
                    )
                from dsocr_analyze.workload.image_file import ImagePages

                page = next(ImagePages(Path(given.pop("image"))).sizes())
            elif isinstance(page, str):
                page = parse_page(page)
            given["page"] = page
        workload: AnyWorkload = self.architecture.plan(**given)
        return workload

    @property
    def workload_of_page(self) -> PageWorkload:
        """The `workload` on a model that reads pages."""
        assert isinstance(self.workload, PageWorkload), "every architecture with a name reads pages"
        return self.workload

    def _sizes(self, modes: Mapping[str, Mode]) -> dict[str, int | bool]:
        """The sizes of the mode; raises WorkloadError."""
        name = in_any_case(str(self.mode), modes)
        if name is None:
            right = f"{did_you_mean(str(self.mode), modes)}use {', '.join(modes)}"
            raise WorkloadError(f"mode {self.mode!r} is unknown; {right}", arguments=["mode"])
        sizes = {}
        for each in ("base_size", "image_size", "crop_mode"):
            if (given := getattr(self, each)) is not None:
                raise WorkloadError(
                    f"mode={self.mode!r} already sets {each}; give one of them, not {each}={given}",
                    arguments=["mode", each],
                )
            sizes[each] = getattr(modes[name], each)
        return sizes


def plan_workload(
    *,
    architecture: str = DEFAULT.name,
    page: PageSize | None = None,
    image: ImagePath | None = None,
    mode: str | None = None,
    base_size: int | None = None,
    image_size: int | None = None,
    crop_mode: bool | None = None,
    text_tokens: int | None = None,
    seq_len: int | None = None,
    batch_size: int | None = None,
    max_new_tokens: int | None = None,
    prompt_pages: int | None = None,
) -> PageWorkload:
    """Plans what a model's own `infer()` makes of one page.

    Args:
        architecture: Name of the model's architecture.
        page: A paper like `"a4"` or `"a4@200"`, `"1240x1754"`, or (width, height) in pixels.
            Default: A4 at 150 dpi.
        image: An image file of the page, instead of `page`; of several pages, the first.
        mode: A mode like `"gundam"`, instead of the next three sizes.
        base_size: Pixels per side of the global view in crop mode. Default: the architecture's.
        image_size: Of a local view, or of the only one. Default: the architecture's.
        crop_mode: Whether a page larger than one tile is cropped. Default: yes, unless several
            pages share a prompt.
        text_tokens: Tokens besides the visual ones, with BOS. Default: the usual prompt's.
        seq_len: Tokens of the whole prompt, instead of `text_tokens`.
        batch_size: Equal prompts. Default: 1.
        max_new_tokens: Tokens generated; the prefill pass yields the first. Default: 1024.
        prompt_pages: Equal pages per prompt, for models that take several. Default: 1.

    Raises:
        PageError: The page's size is impossible or unknown.
        WorkloadError: A size, mode or count is impossible, or two arguments conflict.
    """
    return PageRequest(
        architecture=architecture_named(architecture), page=page, image=image, mode=mode,
        base_size=base_size, image_size=image_size, crop_mode=crop_mode, text_tokens=text_tokens,
        seq_len=seq_len, batch_size=batch_size, max_new_tokens=max_new_tokens,
        prompt_pages=prompt_pages,
    ).workload_of_page  # fmt: skip
