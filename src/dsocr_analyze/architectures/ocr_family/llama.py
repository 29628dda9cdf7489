"""Parts of Llama's layers that the decoder and the Qwen2 encoder share.

Source: `LlamaRotaryEmbedding`, `apply_rotary_pos_emb` and `LlamaMLP` of transformers 4.46, to which
`DeepseekV2MLP` (`modeling_deepseekv2.py`) and `Qwen2MLP` are equal.
"""

from __future__ import annotations

from dsocr_analyze.dtypes import FLOAT32, INT64
from dsocr_analyze.kernels import Gemm
from dsocr_analyze.tape import Operand, Size, Tape, activation, linear

__all__ = ["rotary_tables", "rotated", "swiglu"]


def rotary_tables(t: Tape, sequences: Size, T: Size, D: int) -> tuple[Operand, Operand]:
    """Cosines and sines `[sequences, T, D]` of positions times frequencies, computed in fp32.

    Source: RoFormer (Su et al. 2021), eq. 34.

    Args:
        t: The tape.
        sequences: Sequences, each with positions of its own.
        T: Positions.
        D: Features per head.
    """
    frequencies = t.input(D // 2, FLOAT32)
    positions = t.cast(t.input(sequences * T, INT64), FLOAT32)
    half = t.product("matmul", Gemm(sequences, D // 2, T, 1), frequencies, positions)
    angles = t.cat(half, half)
    cos, sin = t.map("cos", angles), t.map("sin", angles)
    cos = t.map("mul", cos)
    sin = t.map("mul", sin)
    tables = t.cast(cos, t.dtype), t.cast(sin, t.dtype)
    t.hold(positions, half, angles, cos, sin)
    return tables


def rotated(t: Tape, x: Operand, cos: Operand, sin: Operand) -> Operand:
    """`x cos + rotate_half(x) sin` (RoFormer, eq. 34); elements in, as many out."""
    return t.map("add", t.map("mul", x, cos), t.map("mul", _half_rotated(t, x), sin))


def _half_rotated(t: Tape, x: Operand) -> Operand:
    """The negated second half of each head's features before the first half."""
    half = t.view(x, x.n // 2)
    return t.cat(t.map("neg", half), half)


def swiglu(t: Tape, x: Operand, n: Size, d: Size, f: Size, act: str = "silu") -> Operand:
    """`W_down (act(W_gate x) * W_up x)`, `[n, d] -> [n, d]` (Shazeer 2020, eq. 6).

    Args:
        t: The tape.
        x: `[n, d]`.
        n: Tokens.
        d: Width.
        f: Hidden width.
        act: The activation, one of `ACTIVATIONS`.
    """
    hidden = t.map(
        "mul",
        t.call("act_fn", activation, t.call("gate_proj", linear, x, n, d, f), act),
        t.call("up_proj", linear, x, n, d, f),
    )
    return t.call("down_proj", linear, hidden, n, f, d)
