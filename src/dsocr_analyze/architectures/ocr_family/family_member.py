"""A relative: what it recognizes, plans and feeds to its model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from dsocr_analyze.architectures.architecture import (
    Architecture,
    CacheStep,
    ForwardInputs,
    KeyValueCache,
    lengthened,
)
from dsocr_analyze.architectures.config_file import Config
from dsocr_analyze.architectures.ocr_family.closed_forms import ClosedForms
from dsocr_analyze.architectures.ocr_family.passes import ROUTED_EXPERT, Relative
from dsocr_analyze.architectures.planning import checked_page, prompt_text
from dsocr_analyze.architectures.views import tokens_per_side
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload import (
    BOUNDS,
    PageWorkload,
    ViewBatch,
    check_count,
)

if TYPE_CHECKING:
    import torch

_PATCH: Final = 16
"""Pixels per side of a SAM patch."""
_TOKEN: Final = 64
"""Pixels per side that become one visual token: four patches per side."""


class FamilyMember(Relative, Architecture):
    """A relative of DeepSeek-OCR; its own class says what distinguishes it.

    Attributes:
        vendor_class: Of the whole model, in `auto_map`.
        model_types: Used if no class is named.
        prompt_pages: Most pages per prompt.
    """

    vendor_class: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]
    prompt_pages: ClassVar[int] = 1
    routed_expert = ROUTED_EXPERT

    def __init__(self) -> None:
        self.closed_forms, self.begins = ClosedForms(self), {}
        for stage in self.stages:
            if stage.role == "vision":
                self.begins |= dict.fromkeys(stage.prefixes, stage.name)

    def recognizes(self, config: Config) -> bool:
        """Whether a parsed `config.json` belongs to it."""
        auto_map = config.get("auto_map")
        named = auto_map.get("AutoModel") if isinstance(auto_map, Mapping) else None
        if isinstance(named, str):
            return named.rpartition(".")[2] == self.vendor_class
        classes = config.get("architectures")
        if isinstance(classes, list) and classes:
            return self.vendor_class in classes
        return config.get("model_type") in self.model_types

    # --- a workload

    def check_sizes(self, base_size: int, image_size: int, crop_mode: bool) -> None:
        """Raises WorkloadError for sizes of views that the relative's code cannot run."""

    def plan(
        self,
        *,
        page: tuple[int, int],
        base_size: int | None = None,
        image_size: int | None = None,
        crop_mode: bool | None = None,
        text_tokens: int | None = None,
        seq_len: int | None = None,
        batch_size: int = 1,
        max_new_tokens: int = 1024,
        prompt_pages: int = 1,
    ) -> PageWorkload:
        """What the vendor's `infer()` makes of a page; the rest is as of `plan_workload`."""
        page = checked_page(page)
        if self.prompt_pages == 1 != prompt_pages:
            raise WorkloadError(
                f"prompt_pages {prompt_pages!r} is not supported: this model takes one page per"
                " prompt; leave prompt_pages out",
                arguments=["prompt_pages"],
            )
        check_count("prompt_pages", prompt_pages, 1, self.prompt_pages, " pages in one prompt")
        crop_mode = prompt_pages == 1 if crop_mode is None else crop_mode
        image_size = self.image_size if image_size is None else image_size
        if base_size is None:
            # With several pages, the blank patch has the size of a page's view.
            base_size = self.base_size if prompt_pages == 1 else image_size
        check_count("base_size", base_size, *BOUNDS["base_size"])
        check_count("image_size", image_size, *BOUNDS["image_size"])
        if not isinstance(crop_mode, bool):
            raise WorkloadError(
                f"crop_mode {crop_mode!r} is not a boolean; give True or False",
                arguments=["crop_mode"],
            )
        if prompt_pages > 1:
            _check_several(base_size, image_size, crop_mode)
        for name, count in (("batch_size", batch_size), ("max_new_tokens", max_new_tokens)):
            check_count(name, count, *BOUNDS[name])
        self.check_sizes(base_size, image_size, crop_mode)
        grid = self.crop.grid(*page) if crop_mode else (1, 1)
        whole = ViewBatch(1, base_size if crop_mode else image_size)
        local = ViewBatch(grid[0] * grid[1], image_size)
        visual = prompt_pages * self.visual_tokens(base_size, image_size, crop_mode, grid)
        return PageWorkload(
            page=page,
            base_size=base_size,
            image_size=image_size,
            crop_mode=crop_mode,
            grid=grid,
            views=(whole,) if grid == (1, 1) else (local, whole),
            visual_tokens=visual,
            text_tokens=prompt_text(text_tokens, seq_len, visual, self.text_tokens),
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
            prompt_pages=prompt_pages,
        )

    def notes_of(self, workload: PageWorkload) -> list[str]:
        """Notes for a reader of a workload's figures, one line each."""
        tile = self.crop.tile
        if workload.local_views is None or workload.image_size == tile:
            return []
        return [
            f"crop mode with an image size of {workload.image_size} is counted as laid out; the "
            f"vendor's infer() does not run it as shipped: it cuts {tile}-pixel tiles while laying "
            f"out tokens for {workload.image_size}"
        ]

    def warnings_of(self, workload: PageWorkload) -> Iterator[str]:
        """What is odd about the sizes of a workload's views, one line each."""
        base, image = workload.base_size, workload.image_size
        sizes = {"image_size": image}
        if workload.crop_mode:
            sizes = {"base_size": base} if image == base else {"base_size": base, **sizes}
        if workload.crop_mode and base < image:
            yield (
                f"base_size {base} is below image_size {image}: the global view has fewer pixels"
                " per side than each local view, unlike in any published mode; if they are"
                f" swapped, give base_size {image} and image_size {base}"
            )
        for argument, size in sizes.items():
            if size % _TOKEN:
                patches, side = size // _PATCH, tokens_per_side(size)
                seen, below = patches * _PATCH, max(_TOKEN, size // _TOKEN * _TOKEN)
                lost = f"only {seen} of {size} pixels per side are used, in " * (seen < size)
                yield (
                    f"{argument} {size} is not a multiple of {_TOKEN}: {lost}{patches} patches of"
                    f" {_PATCH} pixels, which become the {side} tokens per side of"
                    f" {side * _TOKEN} pixels; give {below} or {below + _TOKEN}"
                )

    # --- its passes, as `generate` calls the model's forward

    def prefill_inputs(
        self, device: torch.device, dtype: torch.dtype, workload: PageWorkload
    ) -> ForwardInputs:
        """Keyword arguments of the model's forward for one prefill pass, without the cache.

        The prompt is BOS, the visual tokens, the text. Where there is no view, pixels are zero, and
        fp32. Grids stay on the CPU, as in `infer()`.
        """
        import torch

        batch, pages = workload.batch_size, workload.prompt_pages
        local, whole, blank = workload.local_views, workload.global_view, workload.base_size
        pixels = partial(torch.full, fill_value=0.5, dtype=dtype, device=device)
        images = []
        for _ in range(batch):
            if local is None:
                crops = torch.zeros((1, 3, blank, blank), dtype=torch.float32, device=device)
            else:
                crops = pixels((local.count, 3, local.resolution, local.resolution))
            size = pages * whole.count, 3, whole.resolution, whole.resolution
            images.append((crops, pixels(size)))
        image_mask = torch.zeros(batch, workload.seq_len, dtype=torch.bool, device=device)
        image_mask[:, 1 : 1 + workload.visual_tokens] = True
        return {
            **_tokens(device, batch, workload.seq_len),
            "images": images,
            "images_seq_mask": image_mask,
            "images_spatial_crop": torch.tensor(
                [workload.grid] * (batch * pages), dtype=torch.long
            ),
        }

    def decode_inputs(
        self, device: torch.device, workload: PageWorkload, cached: int
    ) -> ForwardInputs:
        """Keyword arguments of a decode step over `cached` tokens, without the cache and images."""
        given = _tokens(device, workload.batch_size, cached + 1)
        last = {
            "input_ids": given["input_ids"][:, -1:],
            "position_ids": given["position_ids"][:, -1:],
        }
        return given | last

    def decode_cache(self, cache: KeyValueCache, step: CacheStep) -> KeyValueCache:
        """The cache that a decode step finds, which holds every token."""
        return lengthened(cache, step)


# --- pages


def _check_several(base_size: int, image_size: int, crop_mode: bool) -> None:
    """Rejects what `infer_multi()` does not do to pages that share a prompt."""
    if crop_mode:
        raise WorkloadError(
            "crop_mode=True is not supported if several pages share a prompt: none of them is"
            " cropped; give crop_mode=False",
            arguments=["crop_mode"],
        )
    if base_size != image_size:
        raise WorkloadError(
            f"base_size {base_size} is not supported if several pages share a prompt: each is one"
            f" view of image_size; leave out base_size, or give {image_size}",
            arguments=["base_size", "image_size"],
        )


# --- inputs


def _tokens(device: torch.device, batch: int, tokens: int) -> ForwardInputs:
    """Ids of prompts without padding, their mask [B, K], and the resulting positions."""
    import torch

    mask = torch.ones(batch, tokens, dtype=torch.long, device=device)
    # The mask's running sum in `generate`; on meta, torch imports sympy for one.
    positions = torch.arange(tokens, device=device).repeat(batch, 1)
    ids = torch.zeros_like(mask)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "use_cache": True}
