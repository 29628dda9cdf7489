"""What the closed forms say of many pages at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsocr_analyze.kernels import Work
from dsocr_analyze.tape import Size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PageTotals"]


@dataclass(frozen=True)
class PageTotals:
    """What n workloads cost; every count is an integer for all, or an array `[n]`.

    Attributes:
        prefill: The prefill pass of the batch.
        decode_step: One step of the batch over a cache of `seq_len` tokens.
        batch: The prefill pass and all decode steps.
        visual_tokens: Per page.
        seq_len: Tokens per prompt.
        kv_cache_bytes: Cache of the batch including its last token.
        decode_step_bytes_read_expected: Bytes read by a step that touches the expected number of
            routed experts; floats.
        peak_activation_bytes: Most bytes alive in the prefill pass, besides weights and inputs.
    """

    prefill: Work
    decode_step: Work
    batch: Work
    visual_tokens: Size
    seq_len: Size
    kv_cache_bytes: Size
    decode_step_bytes_read_expected: float | NDArray[np.float64]
    peak_activation_bytes: Size
