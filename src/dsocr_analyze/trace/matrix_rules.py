"""Rules of matrix products, convolutions and fused attention, whose work is `macs`."""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import torch

from dsocr_analyze.kernels import Attention, Convolution, Gemm
from dsocr_analyze.trace.rules import (
    SOFTMAX_FLOPS,
    Call,
    Count,
    Rule,
    all_inputs,
    first_output,
    fvcore_count,
    jit_handles,
    nothing,
    per_output,
)

# --- linear and convolution ------------------------------------------------------------------


def _linear_macs(call: Call) -> int:
    """fvcore takes the weight's first dimension for output features; a vector has none."""
    if call.args[1].dim() == 1:
        return int(call.args[0].numel())
    return fvcore_count(jit_handles.linear_flop_jit, call)


def _convolution_macs(call: Call) -> int:
    """fvcore expects the three flags more of `aten::_convolution`."""
    with_flags = replace(call, args=(*call.args[:9], False, False, False))
    return fvcore_count(jit_handles.conv_flop_jit, with_flags)


def _bias(call: Call) -> int:
    """One addition per output if there is a bias."""
    return call.outputs[0].numel() if call.argument(2, "bias") is not None else 0


def _linear_dimensions(call: Call) -> Gemm:
    """x [..., K], W [N, K] or [K]: the rows of x make one matrix."""
    x, weight = call.args[0], call.args[1]
    columns = 1 if weight.dim() == 1 else int(weight.shape[0])
    return Gemm(1, math.prod(x.shape[:-1]), columns, int(weight.shape[-1]))


def _convolution_dimensions(call: Call) -> Convolution:
    """W [C_out, C_in / groups, *kernel], output [N, C_out, *spatial]."""
    weight, output = call.args[1], call.outputs[0]
    return Convolution(
        images=int(output.shape[0]),
        positions=math.prod(output.shape[2:]),
        in_channels=int(weight.shape[1]),
        out_channels=int(output.shape[1]),
        taps=math.prod(weight.shape[2:]),
    )


# --- products of matrices and vectors --------------------------------------------------------


def _product_dimensions(first: int, call: Call) -> Gemm:
    """Sizes of [..., M, K] @ [..., K, N] with broadcast batch dimensions; a vector is M or N = 1.

    The left operand is the `first`. fvcore misses batch dimensions that only the second one has.
    """
    left, right = call.args[first], call.args[first + 1]
    rows = int(left.shape[-2]) if left.dim() > 1 else 1
    columns = int(right.shape[-1]) if right.dim() > 1 else 1
    output = call.outputs[0]
    batch = output.shape[: output.dim() - (left.dim() > 1) - (right.dim() > 1)]
    return Gemm(math.prod(batch), rows, columns, int(left.shape[-1]))


_FACTORS: Final = partial(_product_dimensions, 0)
_AFTER_ADDED: Final = partial(_product_dimensions, 1)


def _scaled_flops(call: Call) -> int:
    """`_scaled_mm`, per output: each factor's scale, a bias, and the output's scale."""
    given = (call.argument(4, "bias"), call.argument(5, "scale_result"))
    return call.outputs[0].numel() * (2 + sum(argument is not None for argument in given))


# --- einsum ----------------------------------------------------------------------------------


_Sizes: TypeAlias = dict[str, int]


def _einsum_sizes(
    equation: str, operands: Sequence[torch.Tensor]
) -> tuple[_Sizes, _Sizes, Container[str]]:
    """Sizes by label of two operands, which repeat none, and the output's labels."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    of_left, of_right = inputs.split(",")
    left = dict(zip(of_left, operands[0].shape, strict=True))
    right = dict(zip(of_right, operands[1].shape, strict=True))
    # An implicit output has the labels of just one operand.
    return left, right, output if arrow else left.keys() ^ right.keys()


def is_contraction(equation: Any, operands: Sequence[torch.Tensor]) -> bool:
    """Whether an einsum is one matrix product: two operands that share a summed label.

    Else torch multiplies elementwise, or `...`, repeated and broadcast labels take further steps.
    """
    if not isinstance(equation, str) or len(operands) != 2 or "." in equation:
        return False
    labels_of_inputs = equation.replace(" ", "").partition("->")[0].split(",")
    if any(len(set(labels)) < len(labels) for labels in labels_of_inputs):
        return False
    left, right, output = _einsum_sizes(equation, operands)
    shared = left.keys() & right.keys()
    is_broadcast = any(left[label] != right[label] for label in shared)
    return not is_broadcast and any(left[each] > 1 and each not in output for each in shared)


def _einsum_dimensions(call: Call) -> Gemm:
    """Labels of all three are the batch; those of only the operands are summed.

    One of just one operand is summed before the product, as torch does.
    """
    left, right, output = _einsum_sizes(*call.args[:2])
    batch = m = n = k = 1
    for label, size in {**left, **right}.items():
        if label in left and label in right:
            batch, k = (batch * size, k) if label in output else (batch, k * size)
        elif label in output:
            m, n = (m * size, n) if label in left else (m, n * size)
    return Gemm(batch, m, n, k)


def _einsum_vector_flops(call: Call) -> int:
    """Additions that sum over labels of just one operand."""
    left, right, output = _einsum_sizes(*call.args[:2])
    return sum(
        operand.numel()
        for own, other, operand in zip((left, right), (right, left), call.args[1], strict=True)
        if any(
            size > 1 for label, size in own.items() if label not in other and label not in output
        )
    )


# --- grouped products ------------------------------------------------------------------------


def _grouped_dimensions(call: Call) -> Gemm:
    """`_grouped_mm(left, right, offs)`: all rows of the side whose groups are concatenated.

    [M, K] x [E, K, N] splits M into groups, [E, M, K] x [K, N] splits N, [M, K] x [K, N] splits K.
    """
    left, right = call.args[0], call.args[1]
    groups = left.shape[0] if left.dim() == right.dim() == 3 else 1
    return Gemm(int(groups), int(left.shape[-2]), int(right.shape[-1]), int(left.shape[-1]))


def _grouped_reads(call: Call) -> int:
    """All inputs, but at most as many of the groups' matrices as there are rows."""
    left, right = call.args[0], call.args[1]
    read = all_inputs(call)
    if left.dim() == 2 and right.dim() == 3:
        untouched = max(0, int(right.shape[0]) - int(left.shape[0]))
        read -= untouched * int(right[0].numel()) * right.element_size()
    return read


# --- fused attention -------------------------------------------------------------------------


def keys_after_first(queries: int, keys: int) -> int:
    """Scores above the diagonal if query q of T sees the first q + 1 of K keys, as in torch."""
    rows = min(queries, keys)
    return rows * (keys - 1) - rows * (rows - 1) // 2


def keys_after_last(queries: int, keys: int) -> int:
    """Scores above it if the last query sees all K keys, as in flash-attn: q sees K - T + q + 1."""
    rows = min(queries - 1, keys)
    return rows * (rows + 1) // 2 + (queries - 1 - rows) * keys


def _heads_first(causal_at: int, call: Call) -> Attention:
    """Sizes of q [..., Hq, T, D], k [..., Hk, K, D], v [..., Hk, K, Dv]; in 3-D, one head.

    Batch dimensions are the output's, broadcast. `is_causal` is at position `causal_at`.
    """
    query, key, value = call.args[:3]
    output = call.outputs[0].shape
    has_heads = len(output) > 3
    batch = math.prod(output[:-3] if has_heads else output[:-2])
    heads = int(output[-3]) if has_heads else 1
    queries, keys = int(query.shape[-2]), int(key.shape[-2])
    is_causal = bool(call.argument(causal_at, "is_causal"))
    return Attention(
        batch=batch,
        heads=heads,
        kv_heads=int(key.shape[-3]) if has_heads else 1,
        queries=queries,
        keys=keys,
        head_dim=int(query.shape[-1]),
        value_dim=int(value.shape[-1]),
        masked=len(call.tensors) > 3,
        skippable_scores=batch * heads * keys_after_first(queries, keys) if is_causal else 0,
    )


def _tokens_first(offsets_at: int, causal_at: int, call: Call) -> Attention:
    """Sizes of q [B, T, Hq, D], k [B, K, Hk, D], v [B, K, Hk, Dv], or packed ones [T, Hq, D].

    Packed sequences begin at the offsets in a tensor, at `offsets_at`; the keys' and the two
    longest lengths follow. Their own lengths are values, which `meta` lacks: each counts as the
    longest.
    """
    query, key, value = call.args[:3]
    batch, queries, keys = int(query.shape[0]), int(query.shape[-3]), int(key.shape[-3])
    offsets = call.argument(offsets_at, "")
    if offsets is not None:
        batch = int(offsets.shape[0]) - 1
        queries = int(call.args[offsets_at + 2] or queries)
        keys = int(call.args[offsets_at + 3] or keys)
    heads = int(query.shape[-2])
    is_causal = bool(call.argument(causal_at, "is_causal"))
    return Attention(
        batch=batch,
        heads=heads,
        kv_heads=int(key.shape[-2]),
        queries=queries,
        keys=keys,
        head_dim=int(query.shape[-1]),
        value_dim=int(value.shape[-1]),
        masked=any(bias is not None for bias in call.args[3:offsets_at]),
        skippable_scores=batch * heads * keys_after_last(queries, keys) if is_causal else 0,
    )


# --- the table -------------------------------------------------------------------------------


def _gemm(
    dimensions: Callable[[Call], Gemm],
    macs: Count | None = None,
    vector_flops: Count = nothing,
    bytes_read: Count = all_inputs,
) -> Rule:
    """Matrix products, whose macs are the product of all sizes unless fvcore counts."""

    def product(call: Call) -> int:
        return math.prod(dimensions(call))

    return Rule("gemm", macs or product, vector_flops, bytes_read, dimensions=dimensions)


def _attention(dimensions: Callable[[Call], Attention]) -> Rule:
    """Fused attention: q k^T and the product with v, the full T x K."""

    def macs(call: Call) -> int:
        size = dimensions(call)
        per_score = size.head_dim + size.value_dim
        return size.batch * size.heads * size.queries * size.keys * per_score

    def vector_flops(call: Call) -> int:
        size = dimensions(call)
        per_score = 1 + SOFTMAX_FLOPS + size.masked
        return size.batch * size.heads * size.queries * size.keys * per_score

    return Rule("attention", macs, vector_flops, bytes_written=first_output, dimensions=dimensions)


MATRIX_RULES: Final[list[tuple[Rule, str]]] = [
    # x W^T + b; fvcore's handle, plus one addition per output for the bias
    (_gemm(_linear_dimensions, _linear_macs, _bias), "linear"),
    # fvcore's handle, plus one addition per output for the bias
    # Modules recorded by torch.jit.trace call `_convolution`.
    (
        Rule("convolution", _convolution_macs, _bias, dimensions=_convolution_dimensions),
        "convolution _convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d"
        " conv_transpose3d",
    ),
    # fvcore's handle, for two matrices
    (_gemm(_FACTORS, partial(fvcore_count, jit_handles.matmul_flop_jit, inputs=2)), "mm"),
    # fvcore's handle
    (_gemm(_FACTORS, partial(fvcore_count, jit_handles.bmm_flop_jit, inputs=2)), "bmm"),
    # fvcore's handle, plus one addition per output for the added matrix
    (
        _gemm(
            _AFTER_ADDED, partial(fvcore_count, jit_handles.addmm_flop_jit), partial(per_output, 1)
        ),
        "addmm",
    ),
    # as bmm, plus one addition per output for the added matrices
    (_gemm(_AFTER_ADDED, vector_flops=partial(per_output, 1)), "baddbmm"),
    # K products per output; batch dimensions broadcast
    (_gemm(_FACTORS), "matmul mv dot vdot"),
    # as mv, plus one addition per output
    (_gemm(_AFTER_ADDED, vector_flops=partial(per_output, 1)), "addmv"),
    # as mm of eight-bit factors, plus one operation per output for each scale and the bias
    (_gemm(_FACTORS, vector_flops=_scaled_flops), "_scaled_mm"),
    # the contraction's index space; labels of one operand are summed first
    (_gemm(_einsum_dimensions, vector_flops=_einsum_vector_flops), "einsum"),
    # one product per group of rows (experts of a mixture); each row meets one matrix, and an even
    # split touches as many matrices as possible
    (_gemm(_grouped_dimensions, bytes_read=_grouped_reads), "_grouped_mm"),
    # two products, plus scale, mask and softmax per score; fused, so scores are neither read nor
    # written
    (
        _attention(partial(_heads_first, 5)),
        "scaled_dot_product_attention _scaled_dot_product_fused_attention_overrideable",
    ),
    # likewise; `is_causal` stands elsewhere
    (
        _attention(partial(_heads_first, 4)),
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu",
    ),
    # likewise; `is_causal` stands elsewhere
    (
        _attention(partial(_heads_first, 6)),
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
    ),
    # as scaled dot-product attention, on [B, T, H, D]; causality skips nothing
    (_attention(partial(_tokens_first, 3, 8)), "flash_attention"),
    # as scaled dot-product attention, on [B, T, H, D]; packed sequences all count as the longest:
    # an upper bound
    (_attention(partial(_tokens_first, 3, 8)), "_flash_attention_forward"),
    # likewise
    (_attention(partial(_tokens_first, 3, 7)), "torch_attn::_varlen_attn"),
    # likewise
    (_attention(partial(_tokens_first, 4, 9)), "_efficient_attention_forward"),
]
"""Rules, and the names of the operators that each covers."""
