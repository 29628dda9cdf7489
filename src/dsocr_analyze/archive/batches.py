"""Groups a list's pages into batches with equal prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.archive.distinct import DistinctWorkloads
    from dsocr_analyze.columns.evaluate import Workloads

__all__ = ["DistinctBatches", "in_batches"]


class DistinctBatches(NamedTuple):
    """Batches, all different."""

    workloads: Workloads
    batches: NDArray[np.int64]
    """Number of batches that each stands for, `[n]`."""
    pages: NDArray[np.int64]
    """Pages in each of these batches, `[n]`."""


def in_batches(distinct: DistinctWorkloads, batch_size: int, *, are_cut: bool) -> DistinctBatches:
    """Full batches of pages with equal prompts, and one smaller batch for each remainder.

    Args:
        distinct: The pages.
        batch_size: Pages in a full batch.
        are_cut: Whether the mode cuts pages; if not, crop grids make no difference to prompts.
    """
    workloads, pages, _ = distinct
    if batch_size == 1:
        return DistinctBatches(workloads, pages, pages)
    import numpy as np

    columns = np.array([
        workloads.grids,
        *(np.broadcast_to(each, len(pages))
          for each in (workloads.text_tokens, workloads.max_new_tokens)),
    ])  # fmt: skip
    if not are_cut and len(pages):
        columns[0] = columns[0, 0]  # any grid will do
    prompts, place = np.unique(columns, axis=1, return_inverse=True)
    together = np.zeros(prompts.shape[1], np.int64)
    np.add.at(together, place.ravel(), pages)
    full, rest = np.divmod(together, batch_size)
    has_full, has_rest = np.flatnonzero(full), np.flatnonzero(rest)
    found = np.concatenate([has_full, has_rest])
    sizes = np.concatenate([np.full(len(has_full), batch_size), rest[has_rest]])
    batches = np.concatenate([full[has_full], np.ones(len(has_rest), np.int64)])
    grids, text_tokens, max_new_tokens = prompts[:, found]
    return DistinctBatches(
        workloads._replace(
            grids=grids, text_tokens=text_tokens, max_new_tokens=max_new_tokens, batch_size=sizes
        ),
        batches,
        batches * sizes,
    )
