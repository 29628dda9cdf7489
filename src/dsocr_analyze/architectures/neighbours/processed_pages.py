"""A page as a processor of transformers makes it: its plan, and what `generate` is given for it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from dsocr_analyze.architectures.architecture import Architecture, ForwardInputs
from dsocr_analyze.architectures.config_file import Config
from dsocr_analyze.architectures.neighbours.resizing import ResizeRule
from dsocr_analyze.architectures.planning import checked_page, prompt_text
from dsocr_analyze.architectures.prompt import Prompt
from dsocr_analyze.dtypes import INT32, INT64, Dtype
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload import BOUNDS, Mode, PageWorkload, ViewBatch, check_count

if TYPE_CHECKING:
    import torch

NATIVE: Final = Mode("native", 0, 0, crop_mode=False)
"""The only mode: the processor chooses the sides."""

_BEFORE: Final = 4
"""Tokens before the image at most; no figure depends on it."""


class ProcessedTensor(NamedTuple):
    """What the processor makes of one page, for an argument of forward.

    Attributes:
        shape: Along its first dimension, pages of a batch follow each other.
        dtype: None for that of the model.
        values: In a row; None for pixels.
    """

    shape: tuple[int, ...]
    dtype: Dtype | None = None
    values: tuple[int, ...] | None = None


class ProcessedPages(Architecture):
    """A model of transformers that sees a page in one view, whose sides its processor chooses.

    Attributes:
        config: Its `config.json`.
        usual_page: How pages are usually rendered for it, in words.
    """

    modes: Mapping[str, Mode] = {NATIVE.name: NATIVE}
    default_mode = NATIVE.name
    generate = Prompt(0, "input_ids", 0, without=("position_ids",))
    is_of_transformers = True
    config: Config
    usual_page: str

    @property
    @abstractmethod
    def page_rule(self) -> ResizeRule:
        """How its processor resizes pages."""

    @property
    @abstractmethod
    def image_token(self) -> int:
        """Id that stands for the image in a prompt."""

    @abstractmethod
    def inputs(self, workload: PageWorkload) -> Mapping[str, ProcessedTensor]:
        """What the processor makes of a page, besides the prompt's ids and their mask."""

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
        """What the processor makes of a page; the rest is as of `plan_workload`."""
        page = checked_page(page)
        for name, value in (
            ("base_size", base_size),
            ("image_size", image_size),
            ("crop_mode", crop_mode),
            ("prompt_pages", None if prompt_pages == 1 else prompt_pages),
        ):
            if value:
                raise WorkloadError(
                    f"{name} {value!r} is not supported: {self.title}'s processor makes one view of"
                    f" every page, in sides of its own; leave {name} out",
                    arguments=[name],
                )
        for name, count in (("batch_size", batch_size), ("max_new_tokens", max_new_tokens)):
            check_count(name, count, *BOUNDS[name])
        columns, rows = self.page_rule.grid(*page)
        text = prompt_text(text_tokens, seq_len, columns * rows, self.text_tokens)
        return self.in_grid((columns, rows), page, text, batch_size, max_new_tokens)

    def in_grid(
        self,
        grid: tuple[int, int],
        page: tuple[int, int],
        text_tokens: int,
        batch_size: int,
        max_new_tokens: int,
    ) -> PageWorkload:
        """A page that is seen in so many columns and rows of tokens."""
        columns, rows = grid
        width, height = (each * self.page_rule.factor for each in grid)
        return PageWorkload(
            page=page,
            base_size=0,
            image_size=0,
            crop_mode=False,
            grid=grid,
            views=(ViewBatch(1, width, None if width == height else height),),
            visual_tokens=columns * rows,
            text_tokens=text_tokens,
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
        )

    def notes_of(self, workload: PageWorkload) -> list[str]:
        """Notes for a reader of a workload's figures, one line each."""
        return [f"pages are usually rendered for {self.title} {self.usual_page}"]

    def prefill_inputs(
        self, device: torch.device, dtype: torch.dtype, workload: PageWorkload
    ) -> ForwardInputs:
        """Keyword arguments of `generate` for a batch."""
        import torch

        batch, start = workload.batch_size, min(_BEFORE, workload.text_tokens)
        ids = torch.zeros(batch, workload.seq_len, dtype=torch.int64, device=device)
        ids[:, start : start + workload.visual_tokens] = self.image_token
        given: ForwardInputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        for name, (shape, kind, values) in self.inputs(workload).items():
            own = dtype if kind is None else getattr(torch, kind.name)
            if values is None:
                made = torch.full(shape, 0.5, dtype=own, device=device)
            else:
                made = torch.tensor(values, dtype=own, device=device).reshape(shape)
            given[name] = made.repeat(batch, *[1] * (len(shape) - 1))
        return given

    def inputs_bytes(self, workload: PageWorkload, dtype: Dtype) -> int:
        """Bytes of token ids, their mask, and what the processor makes of the pages."""
        nbytes = 2 * workload.seq_len * INT64.nbytes
        for shape, kind, _ in self.inputs(workload).values():
            nbytes += prod(shape) * (kind or dtype).nbytes
        return workload.batch_size * nbytes


def in_patches(
    workload: PageWorkload, patch_size: int, shape: tuple[int, ...]
) -> Mapping[str, ProcessedTensor]:
    """A page in patches of a shape each, its grid of them, and which tokens are the image's.

    Source: `Qwen2VLImageProcessor` and its likes.
    """
    width, height = workload.global_view.sides
    rows, columns = height // patch_size, width // patch_size
    before = min(_BEFORE, workload.text_tokens)
    after = workload.text_tokens - before
    kinds = (*[0] * before, *[1] * workload.visual_tokens, *[0] * after)
    return {
        "pixel_values": ProcessedTensor((rows * columns, *shape)),
        "image_grid_thw": ProcessedTensor((1, 3), INT64, (1, rows, columns)),
        "mm_token_type_ids": ProcessedTensor((1, workload.seq_len), INT32, kinds),
    }
