"""Which modules of the network are alike: called with equal arguments, they do the same.

It holds for the built-in reference and for the published files, and is tested on both against a
trace of every module.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from dsocr_analyze.architectures.ocr_family.dimensions import RelativeDimensions, SamDimensions
from dsocr_analyze.architectures.ocr_family.stages import ROUTED_EXPERT

__all__ = ["alike"]

_NUMBERED: Final = re.compile(
    r"(?P<list>model\.sam_model\.blocks|model\.vision_model\.transformer\.layers"
    r"|model\.qwen2_model\.model\.model\.layers|model\.layers)"
    r"\.(?P<index>\d+)(?P<below>\..*)?"
)
_PUBLISHED_GLOBAL_BLOCKS: Final = frozenset({2, 5, 8, 11})
"""SAM's global blocks in the published files, which do not ask the config for them."""


def alike(dimensions: RelativeDimensions) -> Callable[[str], str | None]:
    """Says which modules are alike.

    SAM's blocks are alike if all of them attend in windows, or none; so are the second
    encoder's layers,
    the decoder's layers if they are dense, or if they are MoE, and all routed experts; and of each
    of these what has the same place in it. Any other module is like itself alone.

    Args:
        dimensions: Dimensions of the model.

    Returns:
        By module path, the name that alike modules share.
    """

    def name(path: str) -> str:
        layer = _NUMBERED.fullmatch(path)
        if layer is None:
            return path
        index, below = int(layer["index"]), layer["below"] or ""
        if layer["list"] == "model.sam_model.blocks":
            variant = _sam_variant(dimensions.sam, index)
        elif layer["list"] == "model.layers":
            variant = "moe" if dimensions.decoder.is_moe(index) else "dense"
        else:
            variant = "each"
        shared = f"{layer['list']}.{variant}{below}"
        expert = ROUTED_EXPERT.fullmatch(shared)
        return shared if expert is None else f"{expert['experts']}.each{expert['below'] or ''}"

    return name


def _sam_variant(sam: SamDimensions, index: int) -> str:
    """What a block is by the config, as in the reference, and by the published files."""
    kinds = (sam.is_global(index), index in _PUBLISHED_GLOBAL_BLOCKS)
    return "-".join("global" if is_global else "windowed" for is_global in kinds)
