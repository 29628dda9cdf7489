"""Memory a kernel takes besides its inputs and outputs: copied operands and scratch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from dsocr_analyze import scratch
from dsocr_analyze.kernels import KernelsOf
from dsocr_analyze.trace.call import Call

__all__ = ["copied_operands", "scratch_bytes"]

Scratch = Callable[[Call, KernelsOf], int]
"""Bytes of scratch, from a call and the CPU."""


def copied_operands(name: str, call: Call) -> list[torch.Tensor]:
    """Operands that a kernel copies first because it needs them contiguous.

    Layer norm does so on every device (`expect_contiguous` in `layer_norm_cpu` and
    `layer_norm_cuda` of ATen).
    """
    if name != "native_layer_norm":
        return []
    return [tensor for tensor in call.tensors() if not tensor.is_contiguous()]


def scratch_bytes(name: str, call: Call, kernels_of: KernelsOf) -> int:
    """Bytes that a call's kernel holds for its own use while it runs."""
    known = None if kernels_of.device == "cuda" else _ON_CPU.get(name)
    return 0 if known is None else known(call, kernels_of)


def _attention(call: Call, kernels_of: KernelsOf) -> int:
    query, key = call.args[:2]
    return scratch.attention_scratch(
        int(query.shape[-2]),
        int(key.shape[-2]),
        int(query.shape[-1]),
        query.element_size(),
        kernels_of.threads,
    )


def _convolution(call: Call, kernels_of: KernelsOf) -> int:
    """Square images and ungrouped kernels; others take no known scratch."""
    x, weight, output = call.args[0], call.args[1], call.outputs[0]
    if x.dim() != 4 or x.shape[2] != x.shape[3] or weight.shape[1] != x.shape[1]:
        return 0
    return scratch.convolution_scratch(
        int(x.shape[0]),
        int(x.shape[1]),
        int(x.shape[2]),
        int(weight.shape[0]),
        int(output.shape[2]),
        int(weight.shape[2]),
        x.element_size(),
        kernels_of,
    )


def _product(first: int) -> Scratch:
    """For `[..., m, k] x [..., k, n]`, with the factors starting at the argument `first`."""

    def count(call: Call, kernels_of: KernelsOf) -> int:
        left, right = call.args[first], call.args[first + 1]
        size = left.element_size()
        rows, depth = int(left.shape[-2]), int(left.shape[-1])
        packed = scratch.product_scratch(rows, depth, size, kernels_of)
        if not packed or left.dim() < 3:
            return packed
        # In 16 bits, a batch that is neither row-major nor column-major is copied.
        copied = (f for f in (left, right) if not (f.is_contiguous() or f.mT.is_contiguous()))
        return packed + sum(int(factor.numel()) * int(size) for factor in copied)

    return count


def _antialiased(call: Call, _: KernelsOf) -> int:
    x, output = call.args[0], call.outputs[0]
    return scratch.antialiased_scratch(
        int(x.shape[0]),
        int(x.shape[1]),
        int(x.shape[2]),
        int(output.shape[3]),
        x.element_size(),
    )


def _mean(call: Call, _: KernelsOf) -> int:
    x = call.tensors()[0]
    return scratch.mean_scratch(x.numel(), call.outputs[0].numel(), x.element_size())


def _sort(call: Call, _: KernelsOf) -> int:
    return scratch.sort_scratch(call.tensors()[0].numel())


_ON_CPU: Final[dict[str, Scratch]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "conv2d": _convolution,
    "mm": _product(0),
    "addmm": _product(1),
    "bmm": _product(0),
    "baddbmm": _product(1),
    "_upsample_bicubic2d_aa": _antialiased,
    "_upsample_bilinear2d_aa": _antialiased,
    "mean": _mean,
    "sort": _sort,
}
"""Scratch of a call on the CPU, by operator."""
