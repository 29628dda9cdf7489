"""Mixture of experts: the router, the routed experts and the shared ones.

Routing is uniform: the B T k choices are dealt to the E experts in turn, so min(E, B T k) of them
are touched and the remainder goes to the first ones. No routing touches more.

Source: DeepSeek-V2 (2405.04434), eq. 20 to 29 and section 2.2.2; DeepSeek-V3 (2412.19437), eq. 12
to 16; `MoEGate` and `DeepseekV2MoE` (`modeling_deepseekv2.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.operators import (
    Kernels,
    addition,
    cast,
    copy,
    elementwise,
    filled,
    moved,
    reduction,
    softmax,
    top,
    transferred,
)
from dsocr_analyze.costs.sums import ModuleKernels, under
from dsocr_analyze.costs.swiglu import swiglu
from dsocr_analyze.dtypes import BOOL, FLOAT32, INT64, Dtype
from dsocr_analyze.kernels import Kernel, Rows, Work
from dsocr_analyze.tape.integers import ceil_log2

__all__ = ["Routing", "gate", "moe"]


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens choose experts.

    Attributes:
        experts: Routed experts E.
        per_token: Experts per token k.
        scoring: Function of the logits.
        method: How the top k are found.
        groups: Groups of experts, in a group-limited method.
        top_groups: Groups a token may choose from.
        normalized: Whether the chosen scores are normalised to sum to 1.
    """

    experts: int
    per_token: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    method: Literal["greedy", "group_limited_greedy", "noaux_tc"] = "greedy"
    groups: int = 1
    top_groups: int = 1
    normalized: bool = False


def gate(n: Count, d: int, routing: Routing, dtype: Dtype) -> Kernels:
    """The router: fp32 logits (n d E MACs, input and weight cast first), scores, top k, scale.

    Softmax is 5 FLOPs per score, sigmoid 4; finding the top k is one comparison per candidate.

    Args:
        n: Tokens, B T.
        d: Width.
        routing: Experts and method.
        dtype: Type of features and weights.
    """
    E, k = routing.experts, routing.per_token
    if routing.scoring == "softmax":
        scoring = softmax(n, E, FLOAT32)
    else:
        scoring = elementwise("sigmoid", n * E, FLOAT32, flops=4, kind="activation")
    normalizing: Kernels = ()
    if k > 1 and routing.normalized:
        normalizing = (
            *reduction("sum", n, k, FLOAT32),
            *elementwise("add", n, FLOAT32),
            *elementwise("div", n * k, FLOAT32, read=FLOAT32.nbytes * (n * k + n)),
        )
    return (
        *cast(n * d, dtype, FLOAT32),
        *cast(E * d, dtype, FLOAT32),
        *linear(n, d, E, FLOAT32),
        *scoring,
        *_selection(n, routing, dtype),
        *normalizing,
        *elementwise("mul", n * k, FLOAT32),
    )


def _selection(n: Count, routing: Routing, dtype: Dtype) -> Kernels:
    """The top k of all experts, or of those in the best groups.

    A group ranks by its best score (group_limited_greedy) or by the sum of its best two, each with
    an added bias that the chosen experts' final scores don't include (noaux_tc).
    """
    E, k = routing.experts, routing.per_token
    chosen = top(n, E, k)
    if routing.method == "greedy":
        return chosen
    groups, size = routing.groups, E // routing.groups
    within = (*_within_groups(n, routing), *chosen)
    if routing.method == "group_limited_greedy":
        return (*_best_with_indices(n * groups, size), *within)
    scores = n * E
    with_bias = FLOAT32.nbytes * scores + dtype.nbytes * E
    read, written = (INT64.nbytes + FLOAT32.nbytes) * k * n, FLOAT32.nbytes * k * n
    return (
        *elementwise("add", scores, FLOAT32, read=with_bias),
        *top(n * groups, size, 2),
        *reduction("sum", n * groups, 2, FLOAT32),
        *within,
        *moved("gather", n * k, read, written, FLOAT32),
    )


def _best_with_indices(rows: Count, width: int) -> Kernels:
    """The largest fp32 score of each row and its index."""
    work = Work(
        vector_flops=rows * width,
        bytes_read=FLOAT32.nbytes * rows * width,
        bytes_written=(FLOAT32.nbytes + INT64.nbytes) * rows,
    )
    return (Kernel("reduction", "max", Rows(rows, width), FLOAT32.name, FLOAT32.name, work),)


def _within_groups(n: Count, routing: Routing) -> Kernels:
    """Zeroes scores outside the best groups: the top groups, a mask of groups, a mask of experts.

    The mask of groups is copied for every expert of a group, cast to bool and inverted.
    """
    groups, chosen, scores = routing.groups, routing.top_groups, n * routing.experts
    ranks = groups * n
    marked = chosen * n
    widening: Kernels = ()
    is_copied = 1 < groups < routing.experts
    if is_copied:
        widening = moved("clone", scores, FLOAT32.nbytes * ranks, FLOAT32.nbytes * scores, FLOAT32)
    # A single group is only expanded, and occupies memory once.
    seen = scores if is_copied or groups == routing.experts else ranks
    masked = (FLOAT32.nbytes + BOOL.nbytes) * scores
    return (
        *top(n, groups, chosen),
        *filled("zeros_like", ranks, FLOAT32),
        *moved("scatter", ranks, INT64.nbytes * marked, FLOAT32.nbytes * marked, FLOAT32),
        *widening,
        *moved("_to_copy", scores, FLOAT32.nbytes * seen, scores, FLOAT32, output=BOOL),
        *elementwise("bitwise_not", scores, BOOL),
        *moved("masked_fill", scores, masked, FLOAT32.nbytes * scores, FLOAT32),
    )


def moe(
    n: Count,
    d: int,
    f: int,
    shared_f: int,
    routing: Routing,
    dtype: Dtype,
    act: str = "silu",
) -> ModuleKernels:
    """`y = sum_i g_i E_i(x) + E_shared(x)`, the tokens sorted by expert.

    Args:
        n: Tokens, B T.
        d: Width.
        f: Hidden width of a routed expert.
        shared_f: Hidden width of the shared experts as a single MLP; 0 for none.
        routing: Experts and method.
        dtype: Type of features and weights.
        act: The experts' activation.

    Returns:
        Own kernels, `gate`, and each touched expert and `shared_experts` with their children.
    """
    experts = under("experts", _routed_experts(n, d, f, routing, dtype, act))
    shared: ModuleKernels = {}
    sharing: Kernels = ()
    if shared_f:
        shared = under("shared_experts", swiglu(n, d, shared_f, dtype, act))
        sharing = addition(n * d, dtype)
    return {
        "": (*_dispatch(n, d, routing, dtype), *sharing),
        "gate": gate(n, d, routing, dtype),
        **experts,
        **shared,
    }


def _routed_experts(
    n: int, d: int, f: int, routing: Routing, dtype: Dtype, act: str
) -> ModuleKernels:
    """Kernels of each touched expert: `0.gate_proj`, ... for n tokens."""
    touched = min(routing.experts, n * routing.per_token)
    tokens, longer = divmod(n * routing.per_token, touched)
    modules: ModuleKernels = {}
    long = swiglu(tokens + 1, d, f, dtype, act)
    short = swiglu(tokens, d, f, dtype, act)
    for index in range(touched):
        modules |= under(str(index), long if index < longer else short)
    return modules


def _dispatch(n: Count, d: int, routing: Routing, dtype: Dtype) -> Kernels:
    """Sorts tokens by expert and back, and sums their results in fp32 (2 n k d FLOPs).

    Operators: a count of tokens per expert (a table `[n, E]` of ones, summed), read by the host; a
    sort of the n k choices (n k ceil(log2(n k)) comparisons); gathering the tokens in that order;
    concatenating the experts' results; restoring token order, cast, weighting, sum and cast.
    """
    E, k = routing.experts, routing.per_token
    choices = n * k
    features = choices * d
    index = INT64.nbytes * choices
    size = dtype.nbytes * features
    weighted = FLOAT32.nbytes * (features + choices)
    return (
        *filled("new_zeros", n * E, INT64),
        *moved("scatter", n * E, index, index, INT64),
        *reduction("sum", E, n, INT64),
        *transferred(E, INT64),
        *_sort(choices),
        *elementwise("floor_divide", choices, INT64),
        *moved("index", features, size + index, size, dtype),
        *copy("cat", features, dtype),
        *moved("index_put", features, size + index, size, dtype),
        *cast(features, dtype, FLOAT32),
        *elementwise("mul", features, FLOAT32, read=weighted),
        *reduction("sum", n * d, k, FLOAT32),
        *cast(n * d, FLOAT32, dtype),
    )


def _sort(choices: Count) -> Kernels:
    """Sorts the chosen experts' indices; writes the order and the sorted indices."""
    work = Work(
        vector_flops=choices * ceil_log2(choices),
        bytes_read=INT64.nbytes * choices,
        bytes_written=2 * INT64.nbytes * choices,
    )
    return (Kernel("routing", "sort", Rows(1, choices), INT64.name, INT64.name, work),)
