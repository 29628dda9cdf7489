"""Lifetimes of the tensors between a prompt's pixels and its visual tokens, replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsocr_analyze.architectures.ocr_family.vision_lifetimes import NO_FEATURES, ViewFeatures

if TYPE_CHECKING:
    from dsocr_analyze.architectures.ocr_family.dimensions import RelativeDimensions
    from dsocr_analyze.architectures.ocr_family.network import Network
    from dsocr_analyze.costs.lifetimes import Lifetimes
    from dsocr_analyze.workload import Workload

__all__ = ["replay_pages"]


class _Prompt(NamedTuple):
    """Bytes left by the pages of a prompt, until those of the next prompt replace them."""

    views: tuple[ViewFeatures, ...]
    page: int
    """Visual tokens of the last page."""
    tokens: int
    """Visual tokens of all pages."""


def replay_pages(
    network: Network, lives: Lifetimes, dimensions: RelativeDimensions, workload: Workload
) -> int:
    """Replays all pages of a batch.

    Args:
        network: The relative.
        lives: The tensors alive.
        dimensions: The model.
        workload: The pages.

    Returns:
        Bytes held until the decoder has finished.
    """
    prompt = _replay_prompt(network, lives, dimensions, workload, None)
    if workload.batch_size > 1:
        # The second prompt's pages run while the first prompt's leftovers are still alive.
        prompt = _replay_prompt(network, lives, dimensions, workload, prompt)
    return sum(map(sum, prompt.views)) + prompt.page + prompt.tokens


def _replay_prompt(
    network: Network,
    lives: Lifetimes,
    dimensions: RelativeDimensions,
    workload: Workload,
    before: _Prompt | None,
) -> _Prompt:
    """Replays the pages of a prompt in turn; of equal pages, only three.

    Each page's tokens are held until all are joined. Of the previous prompt, `before`, the joined
    tokens are freed first, and the rest name by name.
    """
    pages = workload.prompt_pages
    views = (NO_FEATURES,) * len(workload.views)
    old_page = 0
    if before is not None:
        lives.free(before.tokens)
        views, old_page = before.views, before.page
    visual = workload.visual_tokens * dimensions.decoder.hidden_size * lives.dtype.nbytes
    size = visual // pages
    for page in range(pages):
        if 2 <= page < pages - 1:
            lives.alive += size
            continue
        views = tuple(
            network.replay_views(lives, view, dimensions, left)
            for view, left in zip(workload.views, views, strict=True)
        )
        lives.path = "model"
        views = network.replay_layout(lives, views, dimensions, workload)
        lives.make(size)
        if not page:
            lives.free(old_page)
    tokens = lives.make(visual)
    lives.free((pages - 1) * size)
    return _Prompt(views, size, tokens)
