"""Rules of matrix products and convolutions, whose work is `macs`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from dsocr_analyze.kernels import Convolution, Gemm
from dsocr_analyze.trace.call import Call, Count, Rule, all_inputs, output_elements
from dsocr_analyze.trace.fvcore_handles import fvcore_count, jit_handles

__all__ = ["MATRIX_RULES", "is_contraction"]


# --- linear and convolution ------------------------------------------------------------------


def _linear_macs(call: Call) -> int:
    """fvcore reads the weight's first dimension as output features; a vector has none."""
    if call.args[1].dim() == 1:
        return int(call.args[0].numel())
    return _fvcore_linear(call)


def _convolution_macs(call: Call) -> int:
    """fvcore expects `aten::_convolution`, which has three more flags than `convolution`."""
    flags = (False, False, False)
    return _fvcore_convolution(Call((*call.args[:9], *flags), call.outputs, {}))


_fvcore_convolution = fvcore_count(jit_handles.conv_flop_jit)
_fvcore_linear = fvcore_count(jit_handles.linear_flop_jit)


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


def _matmul_macs(call: Call) -> int:
    """[..., M, K] @ [..., K, N] with broadcast batch dimensions: each output sums K products.

    fvcore multiplies the first shape by N, which misses batch dimensions that only the second has.
    """
    return int(call.outputs[0].numel()) * int(call.args[0].shape[-1])


def _added_matmul_macs(call: Call) -> int:
    """The same, after the tensor to which the product is added."""
    return int(call.outputs[0].numel()) * int(call.args[1].shape[-1])


def _product_dimensions(first: int) -> Callable[[Call], Gemm]:
    """Sizes of [..., M, K] @ [..., K, N]; a vector counts as M or N = 1.

    Args:
        first: Position of the left operand among the arguments; the right one follows.
    """

    def dimensions(call: Call) -> Gemm:
        left, right = call.args[first], call.args[first + 1]
        rows = int(left.shape[-2]) if left.dim() > 1 else 1
        columns = int(right.shape[-1]) if right.dim() > 1 else 1
        output = call.outputs[0]
        batch = output.shape[: output.dim() - (left.dim() > 1) - (right.dim() > 1)]
        return Gemm(math.prod(batch), rows, columns, int(left.shape[-1]))

    return dimensions


def _scaled_flops(call: Call) -> int:
    """For `_scaled_mm`, per output: each factor's scale, a bias, and the output's own scale."""
    given = (call.argument(4, "bias"), call.argument(5, "scale_result"))
    return output_elements(call) * (2 + sum(argument is not None for argument in given))


# --- einsum ----------------------------------------------------------------------------------


def _einsum_labels(equation: str) -> tuple[str, str, str]:
    """Labels of two operands and the output; an implicit output is made explicit."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    left, right = inputs.split(",")
    if not arrow:
        both = left + right
        output = "".join(sorted(label for label in set(both) if both.count(label) == 1))
    return left, right, output


def is_contraction(equation: str, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether an einsum is one matrix product: two operands with a shared summed label.

    Without such a label torch multiplies elementwise. A label that an operand repeats (a diagonal)
    or broadcasts (size 1 against n), and `...`, take extra preparatory steps.
    """
    if len(shapes) != 2 or "." in equation:
        return False
    left, right, output = _einsum_labels(equation)
    if len(set(left)) < len(left) or len(set(right)) < len(right):
        return False
    left_sizes = dict(zip(left, shapes[0], strict=True))
    right_sizes = dict(zip(right, shapes[1], strict=True))
    both = left_sizes.keys() & right_sizes.keys()
    return all(left_sizes[label] == right_sizes[label] for label in both) and any(
        left_sizes[label] > 1 and label not in output for label in both
    )


def _einsum_dimensions(call: Call) -> Gemm:
    """Labels of both operands and the output are the batch; labels of only the operands are summed.

    A label of one operand that the output lacks is summed before the product (as torch does), so
    it does not multiply.
    """
    left, right, output = _einsum_labels(call.args[0])
    sizes: dict[str, int] = {}
    for labels, operand in zip((left, right), call.args[1], strict=True):
        for label, size in zip(labels, operand.shape, strict=True):
            sizes[label] = int(size)
    return Gemm(
        batch=math.prod(sizes[x] for x in left if x in right and x in output),
        m=math.prod(sizes[x] for x in left if x not in right and x in output),
        n=math.prod(sizes[x] for x in right if x not in left and x in output),
        k=math.prod(sizes[x] for x in left if x in right and x not in output),
    )


def _einsum_macs(call: Call) -> int:
    """Size of the contraction's index space; fvcore parses a rounded figure from numpy's text."""
    return math.prod(_einsum_dimensions(call))


def _einsum_vector_flops(call: Call) -> int:
    """Additions that sum over labels carried by only one operand."""
    left, right, output = _einsum_labels(call.args[0])
    total = 0
    for labels, other, operand in zip((left, right), (right, left), call.args[1], strict=True):
        if any(
            size > 1 and label not in other and label not in output
            for label, size in zip(labels, operand.shape, strict=True)
        ):
            total += operand.numel()
    return total


# --- grouped products ------------------------------------------------------------------------


def _grouped_dimensions(call: Call) -> Gemm:
    """`_grouped_mm(left, right, offs)`: all rows of the side whose groups are concatenated.

    [M, K] x [E, K, N] splits M into groups, [E, M, K] x [K, N] splits N, [M, K] x [K, N] splits K.
    """
    left, right = call.args[0], call.args[1]
    groups = left.shape[0] if left.dim() == right.dim() == 3 else 1
    return Gemm(int(groups), int(left.shape[-2]), int(right.shape[-1]), int(left.shape[-1]))


def _grouped_macs(call: Call) -> int:
    return math.prod(_grouped_dimensions(call))


def _grouped_reads(call: Call) -> int:
    """All inputs; of the groups' matrices, at most as many as there are rows to multiply."""
    left, right = call.args[0], call.args[1]
    read = all_inputs(call)
    if left.dim() == 2 and right.dim() == 3:
        untouched = max(0, int(right.shape[0]) - int(left.shape[0]))
        read -= untouched * int(right[0].numel()) * right.element_size()
    return read


# --- the table -------------------------------------------------------------------------------


def _product(reason: str, macs: Count, *, added: bool = False) -> Rule:
    """Rule for a matrix product; `added` means it is added to the first argument."""
    if added:
        return Rule("gemm", reason, macs, output_elements, dimensions=_product_dimensions(first=1))
    return Rule("gemm", reason, macs, dimensions=_product_dimensions(first=0))


MATRIX_RULES: Final[list[tuple[Rule, str]]] = [
    (
        Rule(
            "gemm",
            "x W^T + b; fvcore's handle, plus one addition per output for the bias",
            macs=_linear_macs,
            vector_flops=_bias,
            dimensions=_linear_dimensions,
        ),
        "linear",
    ),
    (
        Rule(
            "convolution",
            "fvcore's handle, plus one addition per output for the bias",
            macs=_convolution_macs,
            vector_flops=_bias,
            dimensions=_convolution_dimensions,
        ),
        # Modules recorded by torch.jit.trace call `_convolution`.
        "convolution _convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d"
        " conv_transpose3d",
    ),
    (
        _product(
            "fvcore's handle, for two matrices", fvcore_count(jit_handles.matmul_flop_jit, inputs=2)
        ),
        "mm",
    ),
    (_product("fvcore's handle", fvcore_count(jit_handles.bmm_flop_jit, inputs=2)), "bmm"),
    (
        _product(
            "fvcore's handle, plus one addition per output for the added matrix",
            fvcore_count(jit_handles.addmm_flop_jit),
            added=True,
        ),
        "addmm",
    ),
    (
        _product(
            "as bmm, plus one addition per output for the added matrices",
            _added_matmul_macs,
            added=True,
        ),
        "baddbmm",
    ),
    (
        _product("K products per output; batch dimensions broadcast", _matmul_macs),
        "matmul mv dot vdot",
    ),
    (_product("as mv, plus one addition per output", _added_matmul_macs, added=True), "addmv"),
    (
        Rule(
            "gemm",
            "as mm of eight-bit factors, plus one operation per output for each scale and the bias",
            macs=_matmul_macs,
            vector_flops=_scaled_flops,
            dimensions=_product_dimensions(first=0),
        ),
        "_scaled_mm",
    ),
    (
        Rule(
            "gemm",
            "the contraction's index space; labels of one operand are summed first",
            macs=_einsum_macs,
            vector_flops=_einsum_vector_flops,
            dimensions=_einsum_dimensions,
        ),
        "einsum",
    ),
    (
        Rule(
            "gemm",
            "one product per group of rows (experts of a mixture); each row meets one matrix, and"
            " an even split touches as many matrices as possible",
            macs=_grouped_macs,
            bytes_read=_grouped_reads,
            dimensions=_grouped_dimensions,
        ),
        "_grouped_mm",
    ),
]
"""Rules, and the names of the operators that each covers."""
