"""What many workloads cost, from the closed forms of their architecture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.architectures.architecture import PageTotals
    from dsocr_analyze.columns.counted_model import CountedModel
    from dsocr_analyze.columns.setting import Setting
    from dsocr_analyze.tape.polynomial import Size

__all__ = ["Costs", "Workloads", "evaluate"]

_LARGEST_BLOCK_BYTES: Final = 31 << 20
"""Just below glibc's largest threshold, 32 MiB."""


class Workloads(NamedTuple):
    """n workloads by column; a single integer applies to all of them."""

    grids: NDArray[np.int64]
    """Crop grid codes from `Architecture.crop_grids`, `[n]`."""
    text_tokens: NDArray[np.int64] | int
    """Prompt tokens in addition to the visual ones."""
    max_new_tokens: NDArray[np.int64] | int
    batch_size: NDArray[np.int64] | int = 1
    """Identical pages per batch."""


@dataclass(frozen=True)
class Costs:
    """What n workloads cost.

    Attributes:
        n: Number of workloads.
        grid_columns: Columns of local views; 1 if the page is not cut.
        grid_rows: Rows of local views; 1 if the page is not cut.
        totals: Tokens and work.
    """

    n: int
    grid_columns: Size
    grid_rows: Size
    totals: PageTotals


def evaluate(model: CountedModel, setting: Setting, workloads: Workloads) -> Costs:
    """The exact costs of n workloads.

    Args:
        model: The model.
        setting: Mode, data type, attention and window of all of them.
        workloads: The workloads; their grids matter only if the mode cuts pages.

    Raises:
        ConfigError: The model has a part without a closed form.
    """
    _keep_freed_memory()
    mode = setting.mode
    columns: Any = 1
    rows: Any = 1
    if mode.crop_mode:
        columns, rows = model.architecture.forms.crop_grids.columns_and_rows(workloads.grids)
    totals = model.architecture.forms.page_totals(
        model.dimensions_in(setting),
        base_size=mode.base_size,
        whole_resolution=mode.base_size if mode.crop_mode else mode.image_size,
        local_resolution=mode.image_size,
        columns=columns,
        rows=rows,
        text_tokens=workloads.text_tokens,
        max_new_tokens=workloads.max_new_tokens,
        batch_size=workloads.batch_size,
        dtype=setting.dtype,
        flash_attention=setting.flash_attention,
    )
    return Costs(len(workloads.grids), columns, rows, totals)


@cache
def _keep_freed_memory() -> None:
    """Let the C library keep the memory of freed columns for the next ones.

    glibc takes small blocks from its heap, and gives up to twice the largest block that it ever
    unmapped back to the system only when more is free. Until one such block is freed, a third of
    a sweep's time is page faults of columns that were just given back.
    """
    import numpy as np

    np.empty(_LARGEST_BLOCK_BYTES, np.uint8)
