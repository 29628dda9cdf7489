"""Non-negative least squares on relative errors, robust to outliers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["fitted"]

_ROUNDS = 6
_SWEEPS = 400
_SETTLED = 1e-9
"""Change of a sweep, relative to the largest coefficient, after which further ones add nothing."""
_SCALE = 0.1
"""Relative error beyond which a row counts as disturbed and gets less weight."""

Floats = NDArray[np.float64]


def fitted(sizes: Floats, seconds: Floats, importance: Floats) -> Floats:
    """Coefficients `x >= 0` that bring `sizes @ x` close to `seconds`, in relative error per row.

    Coordinate descent (Franc, Hlavac and Navara 2005), reweighted for a soft-L1 loss.

    Args:
        sizes: `[rows, columns]`, none below 0.
        seconds: `[rows]`, all above 0.
        importance: `[rows]`, weight of each row.

    Returns:
        `[columns]`.
    """
    relative = sizes / seconds[:, None]
    scale = relative.max(axis=0)
    scale[scale == 0] = 1.0
    columns = relative / scale
    x = np.zeros(columns.shape[1])
    weights = importance
    for _ in range(_ROUNDS):
        weighted = columns * weights[:, None]
        gram, target = weighted.T @ columns, weighted.sum(axis=0)
        # Slight regularization, so that a column that others also explain stays small.
        gram[np.diag_indices_from(gram)] += 1e-9 * max(1.0, float(gram.max()))
        for _ in range(_SWEEPS):
            before = x.copy()
            for j in range(len(x)):
                slope = gram[j] @ x - target[j]
                x[j] = max(0.0, x[j] - slope / gram[j, j])
            if np.abs(x - before).max() <= _SETTLED * x.max():
                break
        errors = columns @ x - 1
        weights = importance / np.sqrt(1 + (errors / _SCALE) ** 2)
    found: Floats = x / scale
    return found
