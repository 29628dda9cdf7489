"""Which modules of the network are alike, that is, do the same work on equal arguments.

Applies to the built-in reference and to the published files, and is tested on both against a trace
of every module.
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
"""SAM's global blocks in the published files, which hard-code them."""


def alike(dimensions: RelativeDimensions) -> Callable[[str], str | None]:
    """Returns a function that names alike modules.

    Alike are SAM's blocks with the same kind of attention (windowed or global), the second
    encoder's layers, the decoder's dense layers, its MoE layers, all routed experts, and within
    each of these the modules at the same place. Any other module is only like itself.

    Args:
        dimensions: Dimensions of the model.

    Returns:
        Maps a module path to the name that alike modules share.
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
    """A block's attention by the config, as in the reference, and by the published files."""
    kinds = (sam.is_global(index), index in _PUBLISHED_GLOBAL_BLOCKS)
    return "-".join("global" if is_global else "windowed" for is_global in kinds)
