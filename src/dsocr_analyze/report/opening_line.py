"""One line that says what was counted: page, sizes, tokens, batch, data type and attention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsocr_analyze.report.document import Workload

__all__ = ["opening_line"]


def opening_line(
    workloads: Sequence[Workload], dtypes: Iterable[str], attentions: Iterable[str]
) -> str:
    """The line; where workloads differ, it lists every value.

    Args:
        workloads: One or more workloads.
        dtypes: Data types of weights and activations, one per workload or one for all.
        attentions: Implementations of the decoder's attention, one per workload or one for all.
    """
    pages = [each.page for each in workloads if each.page is not None]
    parts = []
    if pages:
        parts.append(f"page of {_all(f'{width} x {height}' for width, height in pages)} pixels")
        parts.append(f"views {_all(map(_sizes, workloads))}")
    parts += [
        f"{_all(f'{each.seq_len:,}' for each in workloads)} prompt tokens",
        f"batch {_all(f'{each.batch_size:,}' for each in workloads)}",
        f"{_all(f'{each.max_new_tokens:,}' for each in workloads)} new tokens",
        _all(dtypes),
        f"{_all(attentions)} attention",
    ]
    line = ", ".join(parts)
    return line[0].upper() + line[1:]


def _sizes(workload: Workload) -> str:
    """Sizes of views, written as on the command line, and how many the page is cut into."""
    if not workload.crop_mode:
        return f"{workload.image_size}"
    columns, rows = workload.grid or (1, 1)
    cut = "not cut" if (columns, rows) == (1, 1) else f"cut {columns} x {rows}"
    return f"{workload.base_size}/{workload.image_size} ({cut})"


def _all(values: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(values))
