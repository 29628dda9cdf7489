"""Lifetimes of tensors in parts shared by the decoder and the Qwen2 encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsocr_analyze.costs.lifetimes import Lifetimes

__all__ = ["rms_norm", "rotary_tables", "rotated", "swiglu"]


def rms_norm(lives: Lifetimes, rows: int, width: int) -> int:
    """RMSNorm in fp32; returns its output's size."""
    n = rows * width
    wide = lives.widened(n)
    squares = lives.wide(n)
    variance = lives.wide(rows)
    lives.free(squares)
    shifted = lives.wide(rows)
    root = lives.wide(rows)
    lives.free(shifted)
    normed = lives.wide(n)
    lives.free(root, wide)
    cast = lives.narrowed(n)
    output = lives.features(n)
    lives.free(cast, normed, variance)
    return output


def swiglu(lives: Lifetimes, path: str, rows: int, d: int, inner: int) -> int:
    """`down(act(gate(x)) * up(x))`, d wide and `inner` in between; returns the output's size."""
    lives.path = f"{path}.gate_proj"
    gate = lives.linear(rows, d, inner)
    lives.path = f"{path}.act_fn"
    activated = lives.features(rows * inner)
    lives.free(gate)
    lives.path = f"{path}.up_proj"
    up = lives.linear(rows, d, inner)
    lives.path = path
    product = lives.features(rows * inner)
    lives.free(up, activated)
    lives.path = f"{path}.down_proj"
    output = lives.linear(rows, inner, d)
    lives.free(product)
    return output


def rotary_tables(lives: Lifetimes, n: int, D: int) -> int:
    """Cosines and sines of n positions, D features each; returns their size."""
    positions = lives.wide(n)
    angles = lives.wide(n * (D // 2))
    both = lives.wide(n * D)
    cos, sin = lives.wide(n * D), lives.wide(n * D)
    # Scaling writes each to a new tensor.
    lives.free(lives.wide(n * D))
    lives.free(lives.wide(n * D))
    cast = lives.narrowed(n * D) + lives.narrowed(n * D)
    lives.free(positions, angles, both, *((cos, sin) if cast else ()))
    return cast or cos + sin


def rotated(lives: Lifetimes, elements: int) -> int:
    """`x cos + rotate_half(x) sin`; returns the result's size."""
    by_cos = lives.features(elements)
    negated = lives.features(elements // 2)
    halves = lives.features(elements)
    lives.free(negated)
    by_sin = lives.features(elements)
    lives.free(halves)
    turned = lives.features(elements)
    lives.free(by_cos, by_sin)
    return turned
