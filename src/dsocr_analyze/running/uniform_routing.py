"""Uniform routing: a top-k over meaningless scores chooses every candidate equally often.

Without a checkpoint, the scores of a mixture's router do not exist (on `meta`) or are random (with
drawn weights); the tokens' choices are then dealt to the experts in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from dsocr_analyze.running.torch_calls import Arguments, Function, Keywords, Value
from dsocr_analyze.running.uncounted import uncounted

__all__ = ["TOP_K", "UniformRouting", "routed_uniformly"]

TOP_K: Final = frozenset({torch.topk, torch.Tensor.topk})


class UniformRouting(TorchFunctionMode):
    """Replaces the choices of a top-k by uniform ones, on tensors that have values."""

    def __torch_function__(
        self,
        func: Function,
        types: Iterable[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Value:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in TOP_K:
            chosen: Any = result
            with uncounted():
                chosen[1].copy_(routed_uniformly(chosen[1], args, kwargs)())
        return result


def routed_uniformly(
    choices: torch.Tensor, args: Arguments, kwargs: Keywords
) -> Callable[[], torch.Tensor]:
    """Returns a function that computes uniform choices of a top-k and holds none of its tensors.

    Args:
        choices: The returned indices, [..., k] (k at `dim`).
        args: Its positional arguments: scores [..., candidates], k, dim.
        kwargs: Its keyword arguments.
    """
    scores = args[0] if args else kwargs["input"]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    shape, candidates = tuple(choices.shape), int(scores.shape[dim])
    return lambda: _uniform_choices(shape, dim, candidates)


def _uniform_choices(shape: tuple[int, ...], dim: int, candidates: int) -> torch.Tensor:
    """Indices of a top-k that chooses all candidates equally often, in turn.

    The remainder goes to the first candidates; no row chooses one twice, as k <= candidates.

    Args:
        shape: Shape of the indices, [..., k] (k at `dim`).
        dim: The dimension to choose along.
        candidates: Number of candidates.
    """
    rows = [*shape]
    rows.append(rows.pop(dim))
    return (torch.arange(math.prod(rows)) % candidates).view(rows).movedim(-1, dim)
