"""What module paths say, here alone: which stage a module belongs to, and which do the same work.

Alike are modules that do the same work on equal arguments, in the built-in reference and in the
published files; that is tested on both against a trace of every module.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from dsocr_analyze.architectures.architecture import Stage
from dsocr_analyze.architectures.ocr_family.dimensions import RelativeDimensions, SamDimensions

__all__ = ["CLIP", "DECODE", "PREFILL", "PROJECTOR", "ROUTED_EXPERT", "SAM", "alike"]

SAM: Final = Stage("sam", ("model.sam_model",), "vision")
CLIP: Final = Stage(
    "clip",
    ("model.vision_model",),
    "vision",
    ("SAM's features replace the patch embedding, whose convolution never runs",),
)
PROJECTOR: Final = Stage("projector", ("model.projector",), "vision")
PREFILL: Final = Stage(
    "prefill",
    ("model.embed_tokens", "model.layers", "model.norm"),
    "prefill",
    ("lm_head runs over all positions; its parameters are decode's",),
)
DECODE: Final = Stage(
    "decode",
    ("lm_head",),
    "decode",
    ("one step over a cache of seq_len tokens, with all of the decoder's work",),
)

ROUTED_EXPERT: Final = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<index>\d+)(?P<below>\..*)?")
"""Paths of a routed expert and everything in it; what runs there depends on the routing."""

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
