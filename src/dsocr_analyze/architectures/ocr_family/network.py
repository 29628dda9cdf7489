"""What tells one relative of DeepSeek-OCR from another: its vision side and its tokens.

The relatives share SAM, the projector and the decoder; the closed forms of a workload are composed
of these once (`composition`, `totals`, `peak`, `serving`), and ask a `Network` for the rest.
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
        crop: Into how many local views a page is cut.
        prompt_pages: Most pages in one prompt.
        base_size: Pixels a side of the global view where nobody says otherwise.
        image_size: Pixels a side of a local view, or of the only one, where nobody says otherwise.
        text_tokens: Tokens of its own prompt besides the visual ones, BOS included.
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
        """Refuses sizes of views that the relative's code cannot run; raises WorkloadError."""

    def check_flash(self, dimensions: Any) -> None:  # noqa: B027  # most have it
        """Refuses FlashAttention where the relative's code has none; raises ConfigError."""

    def notes_of(self, workload: Workload) -> list[str]:
        """What a reader of a workload's figures should know, one line each."""
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
            R: Pixels a side.
            dimensions: The model.
            dtype: Type of weights and features.
            kernels_of: Whose kernels run.
        """

    def served_sections(
        self, N: Count, R: Count, dimensions: Any, dtype: Dtype
    ) -> Mapping[Stage, list[Section]]:
        """The same as serving engines run them; arguments as of `sections`."""
        return self.sections(N, R, dimensions, dtype, CUDA)

    @abstractmethod
    def params(self, dimensions: Any) -> Mapping[Stage, int]:
        """Parameters of the vision stages."""

    # --- tokens

    @abstractmethod
    def whole_tokens(self, q: Count) -> Count:
        """Tokens of the view of a whole page, with all that ends the page.

        Args:
            q: Tokens a side of the view.
        """

    @abstractmethod
    def local_tokens(self, q: Count, columns: Count, rows: Count) -> Count:
        """Tokens of local views.

        Args:
            q: Tokens a side of one.
            columns: Views side by side.
            rows: Views one above the other.
        """

    def visual_tokens(
        self, base_size: int, image_size: int, crop_mode: bool, grid: tuple[int, int]
    ) -> int:
        """Tokens of a page in the sequence.

        Args:
            base_size: Pixels a side of the global view in crop mode.
            image_size: Pixels a side of a local view in crop mode, of the only view otherwise.
            crop_mode: Whether the page is cut.
            grid: Columns and rows of local views.
        """
        whole = self.whole_tokens(tokens_per_side(base_size if crop_mode else image_size))
        if not crop_mode or grid == (1, 1):
            return whole
        return whole + self.local_tokens(tokens_per_side(image_size), *grid)

    # --- between the parts

    @abstractmethod
    def whole_layout(self, q: Count, dimensions: Any, dtype: Dtype) -> Kernels:
        """What the model itself does to the features of the view of a whole page.

        Args:
            q: Tokens a side.
            dimensions: The model.
            dtype: Type of features.
        """

    @abstractmethod
    def local_layout(
        self, columns: Count, rows: Count, q: Count, dimensions: Any, dtype: Dtype
    ) -> Kernels:
        """What it does to those of local views.

        Args:
            columns: Views side by side.
            rows: Views one above the other.
            q: Tokens a side of a view.
            dimensions: The model.
            dtype: Type of features.
        """

    # --- the lives of tensors

    @abstractmethod
    def replay_views(
        self, lives: Lifetimes, view: ViewBatch, dimensions: Any, before: ViewFeatures
    ) -> ViewFeatures:
        """The vision stages on N views.

        Args:
            lives: What is alive.
            view: The views.
            dimensions: The model.
            before: What the views of the page before have left, which goes name by name.
        """

    def replay_layout(
        self,
        lives: Lifetimes,
        views: tuple[ViewFeatures, ...],
        dimensions: Any,
        workload: Workload,
    ) -> tuple[ViewFeatures, ...]:
        """A page's views laid out as tokens; as they are, unless a relative says otherwise.

        Args:
            lives: What is alive; the model's own forward runs.
            views: What the vision stages have left of each call's views.
            dimensions: The model.
            workload: The page.
        """
        return views
