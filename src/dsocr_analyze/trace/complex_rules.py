"""Rules for complex numbers, in real operations: an addition is 2, a product 6.

A complex number is two real ones, so bytes follow from the dtype as always. Movement computes
nothing and keeps its rules; matrix products and the operators in `_REAL_FLOPS` are restated here;
any other operator is unknown for complex numbers.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Final

from dsocr_analyze.trace.call import Count, Rule, nothing

__all__ = ["complex_rule"]

_REAL_FLOPS: Final[dict[int, str]] = {
    # 1: one selection, one sign, one arctangent; or already counted by the real rule
    1: "where tril triu conj_physical _conj_physical angle polar",
    # 2: each part separately
    2: "add sub rsub neg sum mean cumsum scatter_add index_add",
    # 3: both parts tested, and the two results combined
    3: "eq ne isnan isinf isfinite",
    # 4: two products, an addition, and a root (abs) or an addition (norm)
    4: "abs norm linalg_vector_norm",
    # 5: exp(a) (cos b + i sin b)
    5: "exp",
    # 6: (ac - bd) + i (ad + bc): four products and two additions
    #    reciprocal: (c - id) / (c^2 + d^2); log: log |z| + i atan2(b, a)
    #    sgn: z / |z|; sin a cosh b + i cos a sinh b, and the like
    6: "mul square prod cumprod reciprocal log sgn sin sinh cosh",
    # 11: (a + ib) (c - id) / (c^2 + d^2): six products, three additions, two divisions
    11: "div",
}
"""Operators by their real operations per operation of the real rule."""

_FLOPS_OF: Final = {name: flops for flops, names in _REAL_FLOPS.items() for name in names.split()}

_PER_MAC: Final = 8 - 2
"""A complex multiply-accumulate is 8 real FLOPs; `macs` accounts for 2 of them."""


def _times(factor: int, count: Count) -> Count:
    return lambda call: factor * count(call)


@functools.cache
def complex_rule(name: str, rule: Rule) -> Rule | None:
    """The rule for an operator with a complex tensor; None if there is none.

    Matrix FLOPs stay 2 per multiply-accumulate, as `FlopCounterMode` counts them for every type;
    the other 6 real FLOPs of a complex one are vector FLOPs, in addition to those of a bias.
    """
    if rule.macs is not None:
        if rule.kind == "attention":
            return None
        return replace(
            rule,
            reason=f"{rule.reason}; of a complex product's 8 real FLOPs, 6 are vector FLOPs",
            vector_flops=_sum(_times(_PER_MAC, rule.macs), _times(2, rule.vector_flops)),
        )
    if rule.vector_flops is nothing:
        return rule
    flops = _FLOPS_OF.get(name)
    if flops is None:
        return None
    return replace(
        rule,
        reason=f"{rule.reason}, {flops} real operations each",
        vector_flops=_times(flops, rule.vector_flops),
    )


def _sum(first: Count, second: Count) -> Count:
    return lambda call: first(call) + second(call)
