"""The operator table: what each operator costs, one rule a family, each rule with its reason.

Names are PyTorch's own, without overload and in-place suffix (`aten::add_.Tensor` is `add`).
fvcore's handles count the operators they know and get right; the project's own cover the rest.
An operator is

* counted: it has a rule in `RULES` (its FLOPs may be 0: a copy computes nothing but moves bytes);
* free: it is in `FREE`, because it neither computes nor moves anything on the device;
* unknown: neither. An unknown operator is reported, never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from fvcore.nn import jit_handles

from dsocr_analyze.work import Work

__all__ = ["FREE", "RULES", "Call", "Rule", "is_contraction", "work_of"]


@dataclass(frozen=True, slots=True)
class Call:
    """One executed operator: its arguments in schema order and its output tensors."""

    args: Sequence[Any]
    outputs: Sequence[torch.Tensor]
    kwargs: dict[str, Any]

    def argument(self, index: int, name: str) -> Any:
        """The argument at `index` or, where it was given by keyword, of this `name`; else None."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name)

    def tensors(self) -> list[torch.Tensor]:
        """All tensor arguments, lists of tensors opened."""
        found: list[torch.Tensor] = []
        for argument in (*self.args, *self.kwargs.values()):
            if isinstance(argument, torch.Tensor):
                found.append(argument)
            elif isinstance(argument, tuple | list):
                found.extend(item for item in argument if isinstance(item, torch.Tensor))
        return found


Count = Callable[[Call], int]


def occupied_bytes(tensor: torch.Tensor) -> int:
    """Bytes that hold the tensor's elements; an expanded dimension (stride 0) is held once."""
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.element_size()
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride or not size else 1
    return elements * tensor.element_size()


def _all_inputs(call: Call) -> int:
    return sum(occupied_bytes(tensor) for tensor in call.tensors())


def _all_outputs(call: Call) -> int:
    return sum(occupied_bytes(tensor) for tensor in call.outputs)


def _first_output(call: Call) -> int:
    return occupied_bytes(call.outputs[0])


def _inputs_but_first(call: Call) -> int:
    return sum(occupied_bytes(tensor) for tensor in call.tensors()[1:])


def _nothing(_: Call) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Rule:
    """How one operator family is counted."""

    family: str
    reason: str
    macs: Count | None = None
    """Set for matrix operators only; their outputs are the `activations`."""
    vector_flops: Count = _nothing
    bytes_read: Count = _all_inputs
    bytes_written: Count = _all_outputs


def work_of(rule: Rule, call: Call) -> Work:
    """Work of one call under its rule."""
    return Work(
        macs=rule.macs(call) if rule.macs else 0,
        vector_flops=rule.vector_flops(call),
        activations=_fvcore_activations(call) if rule.macs else 0,
        bytes_read=rule.bytes_read(call),
        bytes_written=rule.bytes_written(call),
    )


# --- fvcore's handles ------------------------------------------------------------------------


class _Value:
    """A traced value as fvcore's handles see one: a `torch._C.Value` with a shape or a constant.

    Args:
        value: A tensor or a constant.
        flat: Show a tensor's shape as [1, elements].
    """

    __slots__ = ("_flat", "_value")

    def __init__(self, value: Any, *, flat: bool = False) -> None:
        self._value = value
        self._flat = flat

    def isCompleteTensor(self) -> bool:  # noqa: N802 - fvcore calls it so
        return isinstance(self._value, torch.Tensor)

    def type(self) -> _Value:
        return self

    def sizes(self) -> list[int]:
        return [1, self._value.numel()] if self._flat else list(self._value.shape)

    def toIValue(self) -> Any:  # noqa: N802 - fvcore calls it so
        return self._value


def _fvcore(handle: Any, *, inputs: int | None = None, flat: bool = False) -> Count:
    """The count of an fvcore handle; what fvcore calls a flop is a MAC of a matrix operator.

    Args:
        handle: One of `fvcore.nn.jit_handles`.
        inputs: How many arguments the handle knows (`aten::bmm` has got one more); None for all.
        flat: Show shapes as [1, elements], to handles that refuse some numbers of dimensions.
    """

    def count(call: Call) -> int:
        arguments = [_Value(argument, flat=flat) for argument in call.args[:inputs]]
        counted = handle(arguments, [_Value(output) for output in call.outputs])
        return int(sum(counted.values()) if isinstance(counted, dict) else counted)

    return count


def _fvcore_convolution(call: Call) -> int:
    """fvcore expects `aten::_convolution`, which has three flags more than `convolution`."""
    flags = (False, False, False)
    return _convolution_macs(Call((*call.args, *flags), call.outputs, {}))


def _fvcore_linear(call: Call) -> int:
    """fvcore reads the weight's first dimension as output features, which a vector has not."""
    if call.args[1].dim() == 1:
        return int(call.args[0].numel())
    return _linear_macs(call)


_convolution_macs = _fvcore(jit_handles.conv_flop_jit)
_linear_macs = _fvcore(jit_handles.linear_flop_jit)
_fvcore_activations = _fvcore(jit_handles.generic_activation_jit())


# --- matrix operators ------------------------------------------------------------------------


def _matmul_macs(call: Call) -> int:
    """[..., M, K] @ [..., K, N], batch dimensions broadcast: every output element sums K products.

    fvcore multiplies the first shape by N, which misses batch dimensions that only the second has.
    """
    return int(call.outputs[0].numel()) * int(call.args[0].shape[-1])


def _einsum_macs(call: Call) -> int:
    """Two operands: the product of the sizes of the labels in the output or in both operands.

    A label of one operand that the output lacks is summed before the product (as torch does), so
    it does not multiply. fvcore rounds einsum through numpy's text report.
    """
    equation, operands = call.args[0], call.args[1]
    left, right, output = einsum_labels(equation)
    sizes: dict[str, int] = {}
    for labels, operand in zip((left, right), operands, strict=True):
        for label, size in zip(labels, operand.shape, strict=True):
            sizes[label] = int(size)
    return math.prod(
        size
        for label, size in sizes.items()
        if label in output or (label in left and label in right)
    )


def is_contraction(equation: str, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether an einsum is one matrix product: two operands, and a label that both sum over.

    Without such a label torch multiplies element by element. A label that an operand repeats (a
    diagonal) or broadcasts (size 1 against n), and `...`, it prepares in steps of their own.
    """
    if len(shapes) != 2 or "." in equation:
        return False
    left, right, output = einsum_labels(equation)
    if len(set(left)) < len(left) or len(set(right)) < len(right):
        return False
    left_sizes = dict(zip(left, shapes[0], strict=True))
    right_sizes = dict(zip(right, shapes[1], strict=True))
    both = left_sizes.keys() & right_sizes.keys()
    return all(left_sizes[label] == right_sizes[label] for label in both) and any(
        left_sizes[label] > 1 and label not in output for label in both
    )


def _einsum_vector_flops(call: Call) -> int:
    """Additions that sum away a label which only one operand carries."""
    left, right, output = einsum_labels(call.args[0])
    total = 0
    for labels, other, operand in zip((left, right), (right, left), call.args[1], strict=True):
        if any(
            size > 1 and label not in other and label not in output
            for label, size in zip(labels, operand.shape, strict=True)
        ):
            total += operand.numel()
    return total


def einsum_labels(equation: str) -> tuple[str, str, str]:
    """Labels of two operands and the output; an implicit output is made explicit."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    left, right = inputs.split(",")
    if not arrow:
        both = left + right
        output = "".join(sorted(label for label in set(both) if both.count(label) == 1))
    return left, right, output


def _attention_macs(call: Call) -> int:
    """q [..., Hq, T, D], k [..., Hk, K, D], v [..., Hk, K, Dv]: q k^T and the product with v."""
    query, value = call.args[0], call.args[2]
    return _attention_scores(call) * (int(query.shape[-1]) + int(value.shape[-1]))


def _attention_scores(call: Call) -> int:
    """Elements of q k^T [..., Hq, T, K]; the output's batch dimensions are the broadcast ones."""
    keys: int = call.args[1].shape[-2]
    return math.prod(call.outputs[0].shape[:-1]) * keys


def _attention_vector_flops(call: Call) -> int:
    """Per score: the scale, the mask where there is one, and softmax's five."""
    masked = len(call.tensors()) > 3
    return _attention_scores(call) * (1 + _SOFTMAX_FLOPS + masked)


def _flash_macs(call: Call) -> int:
    """q [B, T, Hq, D], k [B, K, Hk, D], v [B, K, Hk, Dv]; the full T x K product."""
    query, value = call.args[0], call.args[2]
    return _flash_scores(call) * (int(query.shape[-1]) + int(value.shape[-1]))


def _flash_scores(call: Call) -> int:
    scores: int = math.prod(call.args[0].shape[:3]) * call.args[1].shape[1]
    return scores


def _flash_vector_flops(call: Call) -> int:
    return _flash_scores(call) * (1 + _SOFTMAX_FLOPS)


def _bias(index: int, name: str = "bias") -> Count:
    def count(call: Call) -> int:
        return call.outputs[0].numel() if call.argument(index, name) is not None else 0

    return count


def _output_elements(call: Call) -> int:
    return call.outputs[0].numel()


# --- everything else that computes -----------------------------------------------------------

_SOFTMAX_FLOPS: Final = 5


def _per_output(flops: int) -> Count:
    return lambda call: flops * call.outputs[0].numel()


def _per_input(flops: int) -> Count:
    return lambda call: flops * int(call.tensors()[0].numel())


def _sort_flops(call: Call) -> int:
    """n ceil(log2 n) comparisons for each sorted row."""
    tensor = call.tensors()[0]
    if not tensor.dim():
        return 0
    dim = call.kwargs.get("dim", -1)
    for argument in call.args[1:]:
        if isinstance(argument, int) and not isinstance(argument, bool):
            dim = argument
    length = int(tensor.shape[dim])
    return int(tensor.numel()) * max(length - 1, 0).bit_length()


def _taps(filter_size: int) -> Count:
    """2 FLOPs a tap: `filter_size` taps along each resized dimension, all at once."""

    def count(call: Call) -> int:
        spatial = call.outputs[0].dim() - 2
        return int(2 * filter_size**spatial * call.outputs[0].numel())

    return count


def _antialiased_taps(support: int) -> Count:
    """2 FLOPs a tap, one dimension after the other, last first.

    Shrinking by s widens the filter s times; ATen's window is then 2 ceil(support s) + 1 taps
    (`_upsample_bicubic2d_aa`, support 2; bilinear, support 1).
    """

    def count(call: Call) -> int:
        source = [int(size) for size in call.args[0].shape]
        target = [int(size) for size in call.outputs[0].shape]
        flops = 0
        for dim in range(len(source) - 1, 1, -1):
            # ceil(support * max(1, source / target)) in integers
            half = max(support, -(-support * source[dim] // target[dim]))
            source[dim] = target[dim]
            flops += 2 * (2 * half + 1) * math.prod(source)
        return flops

    return count


def _gathered(call: Call) -> int:
    """The rows that are taken, and the indices: the rest of the table is not touched."""
    return _first_output(call) + _indices_bytes(call)


def _indices_bytes(call: Call) -> int:
    return _inputs_but_first(call)


def _is_in_place(call: Call) -> bool:
    return call.outputs[0] is call.args[0]


def _rewritten(reached: Count) -> Count:
    """Bytes written: what is reached in place; the whole copy that a call out of place makes."""
    return lambda call: reached(call) if _is_in_place(call) else _first_output(call)


def _rewriting_reads(reached: Count, values: Count, *, adds: bool = False) -> Count:
    """Bytes read: indices and values, and of the target what is added to or copied."""

    def count(call: Call) -> int:
        if not _is_in_place(call):
            return values(call) + occupied_bytes(call.args[0])
        return values(call) + (reached(call) if adds else 0)

    return count


def _put_reads(call: Call) -> int:
    adds = bool(call.argument(3, "accumulate"))
    return _rewriting_reads(_put, _inputs_but_first, adds=adds)(call)


def _scattered(call: Call) -> int:
    """As many elements of the target as there are indices; the rest stays."""
    return int(call.args[2].numel()) * int(call.args[0].element_size())


def _scatter_values(call: Call) -> int:
    """The indices, and a source element for each (the source may be larger)."""
    index, source = call.args[2], call.argument(3, "src")
    read = occupied_bytes(index)
    if isinstance(source, torch.Tensor):
        read += min(int(index.numel()) * source.element_size(), occupied_bytes(source))
    return read


def _added_rows(call: Call) -> int:
    """As many elements of the target as the source has."""
    return int(call.args[3].numel()) * int(call.args[0].element_size())


def _put(call: Call) -> int:
    """Rows written through indices: as large as the values, broadcast to the indexed rows."""
    target, indices = call.args[0], [i for i in call.args[1] if i is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        return occupied_bytes(target)
    rows = math.prod(torch.broadcast_shapes(*(index.shape for index in indices)))
    kept = math.prod(
        size
        for dim, size in enumerate(target.shape)
        if dim >= len(call.args[1]) or call.args[1][dim] is None
    )
    return int(rows * kept * target.element_size())


_RULE_FAMILIES: Final[list[tuple[Rule, str]]] = [
    # matrix operators
    (
        Rule(
            "linear",
            "x W^T + b; fvcore's handle, and an addition an output for the bias",
            macs=_fvcore_linear,
            vector_flops=_bias(2),
        ),
        "linear",
    ),
    (
        Rule(
            "convolution",
            "fvcore's handle, and an addition an output for the bias",
            macs=_fvcore_convolution,
            vector_flops=_bias(2),
        ),
        "convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    ),
    (
        Rule(
            "matmul",
            "fvcore's handle; two matrices",
            macs=_fvcore(jit_handles.matmul_flop_jit, inputs=2),
        ),
        "mm",
    ),
    (Rule("matmul", "fvcore's handle", macs=_fvcore(jit_handles.bmm_flop_jit, inputs=2)), "bmm"),
    (
        Rule(
            "matmul",
            "fvcore's handle, and an addition an output for the added matrix",
            macs=_fvcore(jit_handles.addmm_flop_jit),
            vector_flops=_output_elements,
        ),
        "addmm",
    ),
    (
        Rule(
            "matmul",
            "as bmm, and an addition an output for the added matrices",
            macs=lambda call: int(call.outputs[0].numel()) * int(call.args[1].shape[-1]),
            vector_flops=_output_elements,
        ),
        "baddbmm",
    ),
    (
        Rule("matmul", "K products an output; batch dimensions broadcast", macs=_matmul_macs),
        "matmul mv dot vdot",
    ),
    (
        Rule(
            "matmul",
            "as mv, and an addition an output",
            macs=lambda call: int(call.outputs[0].numel()) * int(call.args[1].shape[-1]),
            vector_flops=_output_elements,
        ),
        "addmv",
    ),
    (
        Rule(
            "einsum",
            "the contraction's index space; labels of one operand are summed first",
            macs=_einsum_macs,
            vector_flops=_einsum_vector_flops,
        ),
        "einsum",
    ),
    (
        Rule(
            "attention",
            "both products, and a scale, a mask and a softmax of each score; fused, so"
            " scores are neither read nor written",
            macs=_attention_macs,
            vector_flops=_attention_vector_flops,
            bytes_written=_first_output,
        ),
        "scaled_dot_product_attention _scaled_dot_product_flash_attention"
        " _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention"
        " _scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable",
    ),
    (
        Rule(
            "attention",
            "as scaled dot-product attention, heads third; causality skips nothing",
            macs=_flash_macs,
            vector_flops=_flash_vector_flops,
            bytes_written=_first_output,
        ),
        "flash_attention",
    ),
    # normalisation and softmax
    (
        Rule(
            "normalization",
            "fvcore's handle: 5 an element, 4 without an affine weight; the"
            " statistics stay in the kernel",
            vector_flops=_fvcore(jit_handles.norm_flop_counter(2), flat=True),
            bytes_written=_first_output,
        ),
        "native_layer_norm",
    ),
    (
        Rule(
            "normalization",
            "fvcore's handle, as for layer_norm",
            vector_flops=_fvcore(jit_handles.norm_flop_counter(1), flat=True),
            bytes_written=_first_output,
        ),
        "native_group_norm",
    ),
    (
        Rule(
            "normalization",
            "fvcore's handle: 2 an element at inference, 1 without a weight",
            vector_flops=_fvcore(jit_handles.batchnorm_flop_jit, flat=True),
            bytes_written=_first_output,
        ),
        "native_batch_norm cudnn_batch_norm miopen_batch_norm",
    ),
    (
        Rule(
            "normalization",
            "square, sum, scale, and weight: 4 an element",
            vector_flops=_per_input(4),
            bytes_written=_first_output,
        ),
        "rms_norm _fused_rms_norm",
    ),
    (
        Rule(
            "softmax",
            "maximum, subtraction, exponential, sum, division: 5 an element",
            vector_flops=_per_output(_SOFTMAX_FLOPS),
        ),
        "softmax log_softmax _softmax _log_softmax _safe_softmax",
    ),
    # activations, by the operations of their definition
    (
        Rule("activation", "one operation", vector_flops=_per_output(1)),
        "relu leaky_relu threshold",
    ),
    (
        Rule(
            "activation",
            "1 / (1 + exp(-x)): negation, exponential, addition, division",
            vector_flops=_per_output(4),
        ),
        "sigmoid",
    ),
    (Rule("activation", "x sigmoid(x)", vector_flops=_per_output(5)), "silu"),
    (
        Rule(
            "activation",
            "x / 2 (1 + erf(x / sqrt 2)): scale, erf, addition, two products",
            vector_flops=_per_output(5),
        ),
        "gelu",
    ),
    (
        Rule(
            "activation", "one operation of the special function unit", vector_flops=_per_output(1)
        ),
        "tanh erf",
    ),
    (
        Rule("activation", "exponential, addition, logarithm", vector_flops=_per_output(3)),
        "softplus",
    ),
    (
        Rule("activation", "addition, two bounds, division", vector_flops=_per_output(4)),
        "hardsigmoid",
    ),
    (Rule("activation", "hardsigmoid and a product", vector_flops=_per_output(5)), "hardswish"),
    # elementwise
    (
        Rule(
            "elementwise",
            "one operation an output element, whatever its type",
            vector_flops=_output_elements,
        ),
        "add sub rsub mul div floor_divide remainder fmod neg abs reciprocal pow square sqrt rsqrt"
        " exp exp2 expm1 log log2 log10 log1p sin cos tan atan2 floor ceil round trunc sign clamp"
        " clamp_min clamp_max hardtanh maximum minimum fmax fmin lerp where eq ne lt le gt ge isnan"
        " isinf isfinite logical_and logical_or logical_not logical_xor bitwise_and bitwise_or"
        " bitwise_not bitwise_xor __and__ __or__ __xor__ tril triu",
    ),
    (
        Rule(
            "elementwise",
            "a product, a quotient or scale, and an addition",
            vector_flops=_per_output(2),
        ),
        "addcmul addcdiv",
    ),
    # reductions and routing
    (
        Rule("reduction", "one operation an input element", vector_flops=_per_input(1)),
        "sum mean prod amax amin max min argmax argmin any all cumsum cumprod logsumexp norm"
        " linalg_vector_norm std var var_mean",
    ),
    (Rule("routing", "one comparison a candidate", vector_flops=_per_input(1)), "topk"),
    (Rule("routing", "n ceil(log2 n) comparisons a row", vector_flops=_sort_flops), "sort argsort"),
    # interpolation
    (
        Rule("interpolation", "2 FLOPs a tap, 4 taps a dimension", vector_flops=_taps(4)),
        "upsample_bicubic2d",
    ),
    (
        Rule("interpolation", "2 FLOPs a tap, 2 taps a dimension", vector_flops=_taps(2)),
        "upsample_linear1d upsample_bilinear2d upsample_trilinear3d",
    ),
    (
        Rule(
            "interpolation",
            "2 FLOPs a tap, the filter widened when shrinking, separably",
            vector_flops=_antialiased_taps(2),
        ),
        "_upsample_bicubic2d_aa",
    ),
    (
        Rule(
            "interpolation",
            "2 FLOPs a tap, the filter widened when shrinking, separably",
            vector_flops=_antialiased_taps(1),
        ),
        "_upsample_bilinear2d_aa",
    ),
    (
        Rule("interpolation", "takes the nearest element"),
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d",
    ),
    (
        Rule(
            "pooling",
            "fvcore's handle: one operation an input element",
            vector_flops=_fvcore(jit_handles.elementwise_flop_counter(1, 0)),
        ),
        "_adaptive_avg_pool2d _adaptive_avg_pool3d",
    ),
    (
        Rule(
            "pooling",
            "one operation an element of each window",
            vector_flops=lambda call: (
                call.outputs[0].numel()
                * math.prod(
                    call.args[1]
                    if len(call.args[1]) > 1
                    else call.args[1] * (call.outputs[0].dim() - 2)
                )
            ),
        ),
        "avg_pool1d avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices",
    ),
    # movement: computes nothing, moves bytes
    (
        Rule("movement", "reads its inputs and writes its outputs; computes nothing"),
        "clone _to_copy contiguous cat stack constant_pad_nd reflection_pad1d reflection_pad2d"
        " replication_pad2d repeat roll flip im2col col2im masked_fill masked_scatter"
        " repeat_interleave unfold_copy one_hot nonzero bincount histc _reshape_copy",
    ),
    (
        Rule("movement", "reads the source and writes the target", bytes_read=_inputs_but_first),
        "copy",
    ),
    (
        Rule("movement", "writes a constant", bytes_read=_nothing),
        "zeros ones full arange zeros_like ones_like full_like new_zeros new_ones new_full fill"
        " zero eye linspace scalar_tensor normal uniform bernoulli rand randn randint tril_indices",
    ),
    (
        Rule(
            "movement",
            "reads the rows it takes and the indices, not the whole table",
            bytes_read=_gathered,
            bytes_written=_first_output,
        ),
        "index index_select gather take_along_dim",
    ),
    (
        # The schema puts the table first: (weight, indices).
        Rule(
            "movement",
            "reads the rows it takes and the indices, not the whole table",
            bytes_read=_gathered,
            bytes_written=_first_output,
        ),
        "embedding",
    ),
    (
        Rule(
            "movement",
            "reads the indices and the values, writes what they reach",
            bytes_read=_rewriting_reads(_scattered, _scatter_values),
            bytes_written=_rewritten(_scattered),
        ),
        "scatter",
    ),
    (
        Rule(
            "movement",
            "reads the indices and the values, writes the rows they reach",
            bytes_read=_put_reads,
            bytes_written=_rewritten(_put),
        ),
        "index_put _index_put_impl",
    ),
    (
        Rule(
            "elementwise",
            "one addition an index; reads and writes what they reach",
            vector_flops=lambda call: int(call.args[2].numel()),
            bytes_read=_rewriting_reads(_scattered, _scatter_values, adds=True),
            bytes_written=_rewritten(_scattered),
        ),
        "scatter_add scatter_reduce",
    ),
    (
        Rule(
            "elementwise",
            "one addition a source element; reads and writes what they reach",
            vector_flops=lambda call: int(call.args[3].numel()),
            bytes_read=_rewriting_reads(_added_rows, _inputs_but_first, adds=True),
            bytes_written=_rewritten(_added_rows),
        ),
        "index_add",
    ),
]

RULES: Final[dict[str, Rule]] = {
    name: rule for rule, names in _RULE_FAMILIES for name in names.split()
}

FREE: Final[frozenset[str]] = frozenset(
    # views: another description of the same memory
    "view _unsafe_view reshape _reshape_alias alias detach expand expand_as permute"
    " transpose t mT slice select squeeze unsqueeze unbind split split_with_sizes unsafe_split"
    " unsafe_split_with_sizes chunk unsafe_chunk unfold narrow"
    " as_strided diagonal movedim view_as real imag flatten unflatten lift_fresh lift resize"
    " swapaxes view_as_real view_as_complex"
    # allocations: nothing is written yet
    " empty empty_like empty_strided new_empty new_empty_strided empty_permuted"
    # questions to the host
    " _local_scalar_dense item is_same_size sym_size sym_stride sym_numel sym_storage_offset size"
    " stride numel dim is_nonzero _assert_async _assert_tensor_metadata prim_device".split()
)
