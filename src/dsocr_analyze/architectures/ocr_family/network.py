"""What distinguishes one relative of DeepSeek-OCR from another: its vision side and its tokens.

The relatives share SAM, the projector and the decoder. `composition`, `totals`, `peak` and
`serving` compose a workload's closed forms from these, and ask a `Network` for the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from dsocr_analyze.architectures.ocr_family.crop_grid import CropRule
from dsocr_analyze.architectures.ocr_family.stages import DECODE, PREFILL
from dsocr_analyze.architectures.ocr_family.tokens import tokens_per_side
from dsocr_analyze.kernels import CUDA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsocr_analyze.architectures.architecture import Stage
    from dsocr_analyze.architectures.ocr_family.vision_lifetimes import ViewFeatures
    from dsocr_analyze.costs.integers import Count
    from dsocr_analyze.costs.lifetimes import Lifetimes
    from dsocr_analyze.costs.operators import Kernels
    from dsocr_analyze.costs.sections import Section
    from dsocr_analyze.dtypes import Dtype
    from dsocr_analyze.kernels import KernelsOf
    from dsocr_analyze.workload import ViewBatch, Workload

__all__ = ["Network"]


class Network(ABC):
    """One relative.

    Attributes:
        vision: Stages of the vision side, in the order of their calls.
        separators: Names of the parameters that no stage owns, each of the decoder's width.
        crop: How pages are cropped into local views.
        prompt_pages: Maximum pages per prompt.
        base_size: Default pixels per side of the global view.
        image_size: Default pixels per side of a local view, or of the only one.
        text_tokens: Tokens of its own prompt besides the visual ones, including BOS.
    """

    vision: ClassVar[tuple[Stage, ...]]
    separators: ClassVar[tuple[str, ...]]
    crop: ClassVar[CropRule]
    prompt_pages: ClassVar[int] = 1
    base_size: ClassVar[int]
    image_size: ClassVar[int]
    text_tokens: ClassVar[int]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages, in order."""
        return (*self.vision, PREFILL, DECODE)

    def check_sizes(  # noqa: B027  # most run every size
        self, base_size: int, image_size: int, crop_mode: bool
    ) -> None:
        """Raises WorkloadError for sizes of views that the relative's code cannot run."""

    def check_flash(self, dimensions: Any) -> None:  # noqa: B027  # most have it
        """Raises ConfigError if the relative's code has no FlashAttention."""

    def notes_of(self, workload: Workload) -> list[str]:
        """Notes for a reader of a workload's figures, one line each."""
        tile = self.crop.tile
        if workload.local_views is None or workload.image_size == tile:
            return []
        return [
            f"crop mode with an image size of {workload.image_size} is counted as laid out; the "
            f"vendor's infer() does not run it as shipped: it cuts {tile}-pixel tiles while laying "
            f"out tokens for {workload.image_size}"
        ]

    # --- the vision side

    @abstractmethod
    def sections(
        self, N: Count, R: Count, dimensions: Any, dtype: Dtype, kernels_of: KernelsOf
    ) -> Mapping[Stage, list[Section]]:
        """The vision stages in one call on N views.

        Args:
            N: Views.
            R: Pixels per side.
            dimensions: The model.
            dtype: Type of weights and features.
            kernels_of: Whose kernels run.
        """

    def served_sections(
        self, N: Count, R: Count, dimensions: Any, dtype: Dtype
    ) -> Mapping[Stage, list[Section]]:
        """The same as serving engines run them; arguments as for `sections`."""
        return self.sections(N, R, dimensions, dtype, CUDA)

    @abstractmethod
    def params(self, dimensions: Any) -> Mapping[Stage, int]:
        """Parameters of the vision stages."""

    # --- tokens

    @abstractmethod
    def whole_tokens(self, q: Count) -> Count:
        """Tokens of the whole page's view, including those that end the page.

        Args:
            q: Tokens per side of the view.
        """

    @abstractmethod
    def local_tokens(self, q: Count, columns: Count, rows: Count) -> Count:
        """Tokens of local views.

        Args:
            q: Tokens per side of a view.
            columns: Columns of views.
            rows: Rows of views.
        """

    def visual_tokens(
        self, base_size: int, image_size: int, crop_mode: bool, grid: tuple[int, int]
    ) -> int:
        """Tokens of a page in the sequence.

        Args:
            base_size: Pixels per side of the global view in crop mode.
            image_size: Pixels per side of a local view in crop mode, otherwise of the only view.
            crop_mode: Whether the page is cropped.
            grid: Columns and rows of local views.
        """
        whole = self.whole_tokens(tokens_per_side(base_size if crop_mode else image_size))
        if not crop_mode or grid == (1, 1):
            return whole
        return whole + self.local_tokens(tokens_per_side(image_size), *grid)

    # --- between the parts

    @abstractmethod
    def whole_layout(self, q: Count, dimensions: Any, dtype: Dtype) -> Kernels:
        """What the model itself does to the features of the whole page's view.

        Args:
            q: Tokens per side.
            dimensions: The model.
            dtype: Type of features.
        """

    @abstractmethod
    def local_layout(
        self, columns: Count, rows: Count, q: Count, dimensions: Any, dtype: Dtype
    ) -> Kernels:
        """What it does to the features of local views.

        Args:
            columns: Columns of views.
            rows: Rows of views.
            q: Tokens per side of a view.
            dimensions: The model.
            dtype: Type of features.
        """

    # --- lifetimes of tensors

    @abstractmethod
    def replay_views(
        self, lives: Lifetimes, view: ViewBatch, dimensions: Any, before: ViewFeatures
    ) -> ViewFeatures:
        """The vision stages on N views.

        Args:
            lives: The tensors alive.
            view: The views.
            dimensions: The model.
            before: What the previous page's views left, freed name by name.
        """

    def replay_layout(
        self,
        lives: Lifetimes,
        views: tuple[ViewFeatures, ...],
        dimensions: Any,
        workload: Workload,
    ) -> tuple[ViewFeatures, ...]:
        """Lays a page's views out as tokens; unchanged unless a relative overrides this.

        Args:
            lives: The tensors alive; the model's own forward runs.
            views: What the vision stages left of each call's views.
            dimensions: The model.
            workload: The page.
        """
        return views
