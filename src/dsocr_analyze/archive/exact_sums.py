"""Exact sums of int64 counts that may overflow int64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["weighted_sum"]

_LIMB_BITS: Final = 21
_LIMBS: Final = 3
_MOST_ROWS: Final = 2**41
"""Rows for which a sum of 21-bit limbs fits in 63 bits, with one bit to spare."""


def weighted_sum(values: Any, weights: NDArray[np.int64]) -> int:
    """`sum(value * weight)`, exactly.

    int64 values are summed in three limbs of 21 bits each, `v = l0 + 2^21 l1 + 2^42 l2`, whose sums
    fit in int64; Python integers (dtype object) are summed directly.

    Args:
        values: Non-negative, `[n]`; or one Python integer for all.
        weights: Weight of each value, `[n]`; at most 2^41 in total.
    """
    import numpy as np

    if isinstance(values, int):
        return values * int(weights.sum())
    if not len(values):
        return 0
    if values.dtype == object:
        return sum(value * int(weight) for value, weight in zip(values, weights, strict=True))
    if int(weights.sum()) > _MOST_ROWS:
        raise AssertionError(f"more than {_MOST_ROWS} rows in one sum")
    mask = (1 << _LIMB_BITS) - 1
    return sum(
        int(np.dot((values >> (_LIMB_BITS * limb)) & mask, weights)) << (_LIMB_BITS * limb)
        for limb in range(_LIMBS)
    )
