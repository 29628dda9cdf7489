"""The stage-prefix map: which stage owns a module. The only copy of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, get_args

__all__ = ["ROUTED_EXPERT", "STAGES", "STAGE_PREFIXES", "Stage", "owner_of"]

Stage = Literal["sam", "clip", "projector", "prefill", "decode"]

STAGES: Final[tuple[Stage, ...]] = get_args(Stage)

STAGE_PREFIXES: Final[dict[Stage, tuple[str, ...]]] = {
    "sam": ("model.sam_model",),
    "clip": ("model.vision_model",),
    "projector": ("model.projector",),
    "prefill": ("model.embed_tokens", "model.layers", "model.norm"),
    "decode": ("lm_head",),
}


ROUTED_EXPERT: Final = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<index>\d+)(\..*)?")
"""Paths of a routed expert and of what is in it: what runs there is up to the routing."""


def _matches(path: str, prefixes: Iterable[str]) -> bool:
    return any(path == prefix or path.startswith(prefix + ".") for prefix in prefixes)


def owner_of(path: str) -> Stage | None:
    """Stage that owns the module or parameter at `path`, or None.

    A prefix matches whole path components: `model.norm` owns `model.norm.weight`, not
    `model.normalizer`.
    """
    for stage, prefixes in STAGE_PREFIXES.items():
        if _matches(path, prefixes):
            return stage
    return None
