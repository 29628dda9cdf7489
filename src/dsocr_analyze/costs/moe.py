"""Mixture of experts: the router, the routed experts and the shared ones.

Routing is uniform: the B T k choices go round the E experts, so min(E, B T k) are touched and the
remainder goes to the first ones.

Source: DeepSeek-V2 (2405.04434), eq. 20 to 29 and section 2.2.2; DeepSeek-V3 (2412.19437), eq. 12
to 16; `MoEGate` and `DeepseekV2MoE` (`modeling_deepseekv2.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from dsocr_analyze.costs.integers import Count, ceil_log2, minimum
from dsocr_analyze.costs.linear import linear, linear_params
from dsocr_analyze.costs.movement import (
    FP32_BYTES,
    INDEX_BYTES,
    addition,
    cast,
    copy,
    elementwise,
    moved,
)
from dsocr_analyze.costs.sums import ModuleWork, combined, scaled, total, under
from dsocr_analyze.costs.swiglu import swiglu, swiglu_params
from dsocr_analyze.work import Work

__all__ = ["Routing", "Spread", "gate", "moe", "moe_params", "routed_experts", "spread"]

_TOP_BYTES = FP32_BYTES + INDEX_BYTES
"""A chosen score and its index."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens choose experts.

    Attributes:
        experts: Routed experts E.
        per_token: Experts k a token passes.
        scoring: Function of the logits.
        method: How the top k are found.
        groups: Groups of experts of a group-limited method.
        top_groups: Groups a token may choose from.
        normalized: Whether the chosen scores are normalised to 1.
    """

    experts: int
    per_token: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    method: Literal["greedy", "group_limited_greedy", "noaux_tc"] = "greedy"
    groups: int = 1
    top_groups: int = 1
    normalized: bool = False


class Spread(NamedTuple):
    """How many tokens the experts receive under uniform routing."""

    touched: Count
    """Experts that receive any."""
    tokens: Count
    """Tokens of each expert at least."""
    longer: Count
    """The first so many experts receive one more."""


def spread(n: Count, routing: Routing) -> Spread:
    """Spreads the n k choices of n tokens over the experts.

    Args:
        n: Tokens, B T.
        routing: Experts and choices a token.
    """
    choices = n * routing.per_token
    return Spread(
        minimum(routing.experts, choices), choices // routing.experts, choices % routing.experts
    )


def gate(n: Count, d: int, routing: Routing, element_bytes: int) -> Work:
    """The router: fp32 logits (n d E MACs, input and weight cast first), scores, top k, scale.

    Softmax is 5 FLOPs a score, sigmoid 4; finding the top k is a comparison a candidate.

    Args:
        n: Tokens, B T.
        d: Width.
        routing: Experts and method.
        element_bytes: Bytes of a feature and of a weight.
    """
    E, k = routing.experts, routing.per_token
    scores = n * E
    parts = [
        cast(n * d, element_bytes, FP32_BYTES),
        cast(E * d, element_bytes, FP32_BYTES),
        linear(n, d, E, FP32_BYTES),
        elementwise(scores, FP32_BYTES, flops=5 if routing.scoring == "softmax" else 4),
        _top(scores, n * k),
    ]
    if routing.method == "group_limited_greedy":
        best = Work(
            vector_flops=scores,
            bytes_read=FP32_BYTES * scores,
            bytes_written=_TOP_BYTES * routing.groups * n,
        )
        parts += [best, _within_groups(n, routing)]
    elif routing.method == "noaux_tc":
        parts += [_corrected_groups(n, routing, element_bytes), _within_groups(n, routing)]
    if k > 1 and routing.normalized:
        parts.append(
            Work(
                vector_flops=(2 * k + 1) * n,
                bytes_read=FP32_BYTES * (2 * k + 2) * n,
                bytes_written=FP32_BYTES * (k + 2) * n,
            )
        )
    parts.append(elementwise(n * k, FP32_BYTES))
    return combined(parts)


def _top(candidates: Count, chosen: Count) -> Work:
    """The top k of fp32 candidates: a comparison each; scores and indices of the chosen."""
    return Work(
        vector_flops=candidates,
        bytes_read=FP32_BYTES * candidates,
        bytes_written=_TOP_BYTES * chosen,
    )


def _corrected_groups(n: Count, routing: Routing, element_bytes: int) -> Work:
    """noaux_tc: a bias a score, the sum of each group's best two, the chosen scores gathered."""
    E, k, groups = routing.experts, routing.per_token, routing.groups
    scores = n * E
    bias = Work(
        vector_flops=scores,
        bytes_read=FP32_BYTES * scores + element_bytes * E,
        bytes_written=FP32_BYTES * scores,
    )
    sums = Work(
        vector_flops=2 * groups * n,
        bytes_read=2 * FP32_BYTES * groups * n,
        bytes_written=FP32_BYTES * groups * n,
    )
    gathered = moved(_TOP_BYTES * k * n, FP32_BYTES * k * n)
    return combined((bias, _top(scores, 2 * groups * n), sums, gathered))


def _within_groups(n: Count, routing: Routing) -> Work:
    """Scores outside the best groups set to zero: the groups' top, a mask of groups, of experts.

    The mask of groups is copied for every expert of a group, cast to bool and inverted.
    """
    groups, top, scores = routing.groups, routing.top_groups, n * routing.experts
    ranks = groups * n
    marked = top * n
    parts = [
        _top(ranks, marked),
        moved(0, FP32_BYTES * ranks),
        moved(INDEX_BYTES * marked, FP32_BYTES * marked),
        Work(vector_flops=scores, bytes_read=scores, bytes_written=scores),
        moved((FP32_BYTES + 1) * scores, FP32_BYTES * scores),
    ]
    is_copied = 1 < groups < routing.experts
    if is_copied:
        parts.append(moved(FP32_BYTES * ranks, FP32_BYTES * scores))
    # A single group is only expanded, and lies in memory once.
    seen = scores if is_copied or groups == routing.experts else ranks
    parts.append(moved(FP32_BYTES * seen, scores))
    return combined(parts)


def moe(
    n: Count,
    d: int,
    f: int,
    shared_f: int,
    routing: Routing,
    element_bytes: int,
    act: str = "silu",
) -> ModuleWork:
    """`y = sum_i g_i E_i(x) + E_shared(x)`, the tokens sorted by expert.

    Args:
        n: Tokens, B T.
        d: Width.
        f: Hidden width of a routed expert.
        shared_f: Hidden width of the shared experts as one MLP; 0 for none.
        routing: Experts and method.
        element_bytes: Bytes of a feature.
        act: The experts' activation.

    Returns:
        Own work, `gate`, `experts` (all of them together; `routed_experts` has each) and
        `shared_experts` with its children.
    """
    modules: ModuleWork = {
        "gate": gate(n, d, routing, element_bytes),
        "experts": _all_experts(n, d, f, routing, element_bytes, act),
        "": _dispatch(n, d, routing, element_bytes),
    }
    if shared_f:
        modules |= under("shared_experts", swiglu(n, d, shared_f, element_bytes, act))
        modules[""] = combined((modules[""], addition(n * d, element_bytes)))
    return modules


def _all_experts(n: Count, d: int, f: int, routing: Routing, element_bytes: int, act: str) -> Work:
    """All routed experts: work of n k tokens, weights of the touched experts read once each."""
    work = total(swiglu(n * routing.per_token, d, f, element_bytes, act))
    weights = element_bytes * swiglu_params(d, f)
    touched = spread(n, routing).touched
    return work._replace(bytes_read=work.bytes_read + weights * (touched - 1))


def routed_experts(
    n: int, d: int, f: int, routing: Routing, element_bytes: int, act: str = "silu"
) -> ModuleWork:
    """Work of each touched expert: `0.gate_proj`, ... for a number n of tokens (no array).

    Args:
        n: Tokens, B T.
        d: Width.
        f: Hidden width of an expert.
        routing: Experts and choices a token.
        element_bytes: Bytes of a feature.
        act: The experts' activation.
    """
    touched, tokens, longer = spread(n, routing)
    modules: ModuleWork = {}
    long = swiglu(tokens + 1, d, f, element_bytes, act)
    short = swiglu(tokens, d, f, element_bytes, act)
    for index in range(touched):
        modules |= under(str(index), long if index < longer else short)
    return modules


def _dispatch(n: Count, d: int, routing: Routing, element_bytes: int) -> Work:
    """Sorting tokens to experts and back, and the weighted sum in fp32 (2 n k d FLOPs).

    A count of tokens an expert (a table `[n, E]` of ones, summed), a sort of the n k choices
    (n k ceil(log2(n k)) comparisons), the tokens taken in that order, the experts' results joined,
    put back in the tokens' order, cast, weighted, summed and cast.
    """
    E, k = routing.experts, routing.per_token
    choices = n * k
    features = choices * d
    index = INDEX_BYTES * choices
    table = n * E
    counting = Work(
        vector_flops=table,
        bytes_read=index + INDEX_BYTES * table,
        bytes_written=INDEX_BYTES * (table + E) + index,
    )
    sorting = Work(
        vector_flops=choices * (ceil_log2(choices) + 1),
        bytes_read=2 * index,
        bytes_written=3 * index,
    )
    taking = moved(2 * index, 0)
    moving = scaled(copy(features, element_bytes), 3)
    weighing = Work(
        vector_flops=2 * features,
        bytes_read=FP32_BYTES * (2 * features + choices),
        bytes_written=FP32_BYTES * (features + n * d),
    )
    return combined(
        (
            counting,
            sorting,
            taking,
            moving,
            cast(features, element_bytes, FP32_BYTES),
            weighing,
            cast(n * d, FP32_BYTES, element_bytes),
        )
    )


def moe_params(d: int, f: int, shared_f: int, routing: Routing) -> int:
    """Parameters: router (and, for noaux_tc, a bias an expert), routed and shared experts."""
    router = linear_params(d, routing.experts)
    correction = routing.experts if routing.method == "noaux_tc" else 0
    shared = swiglu_params(d, shared_f) if shared_f else 0
    return router + correction + routing.experts * swiglu_params(d, f) + shared
