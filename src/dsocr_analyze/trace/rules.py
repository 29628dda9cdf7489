"""Rules of operators: what one sees of an executed operator, and those without a matrix product.

The work of these is `vector_flops`. Complex numbers count in real operations: an addition is 2, a
product 6. Movement keeps its rules; matrix products and the operators in `_REAL_FLOPS` are
restated; others are unknown for them.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final, Self, TypeAlias

import torch

from dsocr_analyze.kernels import Dimensions, Kind, Rows
from dsocr_analyze.model.process_settings import Arguments, Keywords

with warnings.catch_warnings():
    # fvcore scripts its loss functions when it is imported; nothing here calls them.
    warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
    from fvcore.nn import jit_handles as jit_handles


@dataclass(frozen=True, slots=True)
class Call:
    """One executed operator, with its arguments in schema order."""

    args: Arguments
    outputs: Sequence[torch.Tensor]
    kwargs: Keywords
    tensors: Sequence[torch.Tensor]
    """All tensor arguments, also in lists."""

    def argument(self, index: int, name: str) -> Any:
        """An argument by position or keyword; None if absent."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name)


Count: TypeAlias = Callable[[Call], int]


# --- bytes -----------------------------------------------------------------------------------


def occupied_bytes(tensor: torch.Tensor) -> int:
    """Bytes that hold the tensor's elements, counting shared ones once.

    Expanded dimensions and overlapping windows share elements: there are more positions than
    elements between the first and the last.
    """
    positions, extent = 1, 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        positions *= size if stride or not size else 1
        extent += (size - 1) * stride
    return min(positions, extent) * tensor.element_size() if positions else 0


def all_inputs(call: Call) -> int:
    """Bytes of all tensor arguments."""
    return sum(map(occupied_bytes, call.tensors))


def inputs_but_first(call: Call) -> int:
    """Bytes of all other tensor arguments."""
    return sum(map(occupied_bytes, call.tensors[1:]))


def all_outputs(call: Call) -> int:
    """Bytes of all outputs."""
    return sum(map(occupied_bytes, call.outputs))


def first_output(call: Call) -> int:
    """Bytes of the first output."""
    return occupied_bytes(call.outputs[0])


def nothing(_: Call) -> int:
    """No FLOPs, no bytes."""
    return 0


# --- elements --------------------------------------------------------------------------------


def per_output(flops: int, call: Call) -> int:
    """FLOPs per element of the first output."""
    return flops * call.outputs[0].numel()


@dataclass(frozen=True, slots=True)
class Rule:
    """How operators of one family are counted.

    Attributes:
        kind: Kind of kernel.
        macs: Multiply-accumulates; only of matrix operators.
        vector_flops: All other FLOPs.
        dimensions: Size of the kernel; None for the elements of its first output.
    """

    kind: Kind
    macs: Count | None = None
    vector_flops: Count = nothing
    bytes_read: Count = all_inputs
    bytes_written: Count = all_outputs
    dimensions: Callable[[Call], Dimensions] | None = None


# --- fvcore's handles ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Value:
    """A `torch._C.Value` with a shape or a constant, as fvcore's handles see it."""

    value: Any
    flat: bool
    """Whether a tensor's shape is presented as [1, elements]."""

    def isCompleteTensor(self) -> bool:  # noqa: N802 - fvcore's name
        return isinstance(self.value, torch.Tensor)

    def type(self) -> Self:
        return self

    def sizes(self) -> list[int]:
        return [1, self.value.numel()] if self.flat else list(self.value.shape)

    def toIValue(self) -> Any:  # noqa: N802 - fvcore's name
        return self.value


def fvcore_count(
    handle: Callable[..., float | dict[str, float]],
    call: Call,
    *,
    inputs: int | None = None,
    flat: bool = False,
) -> int:
    """The count of one of `fvcore.nn.jit_handles`; of matrix operators, its flop is a MAC.

    Args:
        handle: The handle.
        call: The call.
        inputs: Number of arguments that the handle expects; None for all.
        flat: Whether to present shapes as [1, elements], as some handles need.
    """
    arguments = [*map(partial(_Value, flat=flat), call.args[:inputs])]
    counted = handle(arguments, [_Value(call.outputs[0], flat)])
    return int(sum(counted.values()) if isinstance(counted, dict) else counted)


# --- vectors ------------------------------------------------------------------------------------

SOFTMAX_FLOPS: Final = 5
"""Per element: maximum, subtraction, exponential, sum, division."""


def _per_input(flops: int, call: Call) -> int:
    return flops * int(call.tensors[0].numel())


# --- rows ------------------------------------------------------------------------------------


def _rows(elements: int, width: int) -> Rows:
    return Rows(elements // width if width else 0, width)


def _trailing_norm(call: Call) -> Rows:
    """x [..., *normalized_shape]."""
    return _rows(call.args[0].numel(), math.prod(call.args[1]))


def _group_norm(call: Call) -> Rows:
    """Arguments: x, weight, bias, N, C, H W, groups; a group's channels form one row."""
    channels, positions, groups = call.args[4:7]
    return _rows(call.args[0].numel(), channels * positions // groups)


def _batch_norm(call: Call) -> Rows:
    """x [N, C, ...]: one row per channel."""
    x = call.args[0]
    channels = int(x.shape[1])
    return Rows(channels, x.numel() // channels if channels else 0)


def _along_dim(index: int, default: int | None, call: Call) -> Rows:
    """Rows along the dimension given by the argument at `index`."""
    tensor = call.tensors[0]
    dim = call.argument(index, "dim")
    if dim is None:
        dim = default
    if dim is None:
        # torch.nn.functional.softmax without a dimension takes the first, or the channels.
        dim = 0 if tensor.dim() in (0, 1, 3) else 1
    return _rows(tensor.numel(), int(tensor.shape[dim]) if tensor.dim() else 1)


def _reduction_rows(call: Call) -> Rows:
    """The elements reduced to each output element form one row."""
    outputs = call.outputs[0].numel()
    return Rows(outputs, call.tensors[0].numel() // outputs if outputs else 0)


def _sort_rows(call: Call) -> Rows:
    """The sorted rows; overloads take the dimension in different positions."""
    tensor = call.tensors[0]
    numbers = [each for each in call.args[1:] if type(each) is int]
    dim = numbers[-1] if numbers else call.kwargs.get("dim", -1)
    return _rows(tensor.numel(), int(tensor.shape[dim]) if tensor.dim() else 1)


def _sort_flops(call: Call) -> int:
    """n ceil(log2 n) comparisons per sorted row."""
    return call.tensors[0].numel() * max(_sort_rows(call).width - 1, 0).bit_length()


def _unique_flops(call: Call) -> int:
    """n ceil(log2 n) comparisons to sort, and n to find where each value ends."""
    elements = int(call.tensors[0].numel())
    return elements * (max(elements - 1, 0).bit_length() + 1)


def _search_flops(boundaries: int, call: Call) -> int:
    """ceil(log2(n + 1)) comparisons per value, among that argument's n boundaries."""
    return int(call.outputs[0].numel()) * int(call.args[boundaries].shape[-1]).bit_length()


# --- interpolation and pooling ---------------------------------------------------------------


def _taps(filter_size: int, call: Call) -> int:
    """2 FLOPs for each of `filter_size` taps along each resized dimension, all at once."""
    spatial = call.outputs[0].dim() - 2
    return int(2 * filter_size**spatial * call.outputs[0].numel())


def _antialiased_taps(support: int, call: Call) -> int:
    """2 FLOPs per tap of the window, one dimension after another, last first: an upper bound.

    Shrinking by s widens the filter s times; ATen's window has 2 ceil(support s) + 1 taps
    (`_upsample_bicubic2d_aa`, support 2; bilinear, support 1), those outside the filter of weight
    0.
    """
    source, target = list(map(int, call.args[0].shape)), call.outputs[0].shape
    flops = 0
    for dim in range(len(source) - 1, 1, -1):
        # ceil(support * max(1, source / target)) in integers
        half = max(support, -(-support * source[dim] // int(target[dim])))
        source[dim] = int(target[dim])
        flops += 2 * (2 * half + 1) * math.prod(source)
    return flops


def _window_flops(call: Call) -> int:
    """One operation per element of each window; a single size is of all dimensions."""
    window: list[int] = call.args[1]
    spatial = call.outputs[0].dim() - 2
    return call.outputs[0].numel() * math.prod(window if len(window) > 1 else window * spatial)


# --- the table -------------------------------------------------------------------------------

VECTOR_RULES: Final[list[tuple[Rule, str]]] = [
    # normalisation and softmax
    # fvcore's handle: 5 per element, 4 without an affine weight; the statistics stay in the
    # kernel
    (
        Rule(
            "normalization",
            vector_flops=partial(fvcore_count, jit_handles.norm_flop_counter(2), flat=True),
            bytes_written=first_output,
            dimensions=_trailing_norm,
        ),
        "native_layer_norm",
    ),
    # fvcore's handle, as for layer_norm
    (
        Rule(
            "normalization",
            vector_flops=partial(fvcore_count, jit_handles.norm_flop_counter(1), flat=True),
            bytes_written=first_output,
            dimensions=_group_norm,
        ),
        "native_group_norm",
    ),
    # fvcore's handle: 2 per element at inference, 1 without a weight
    (
        Rule(
            "normalization",
            vector_flops=partial(fvcore_count, jit_handles.batchnorm_flop_jit, flat=True),
            bytes_written=first_output,
            dimensions=_batch_norm,
        ),
        "native_batch_norm cudnn_batch_norm miopen_batch_norm",
    ),
    # square, sum, and a product: 3 per element
    (Rule("normalization", vector_flops=partial(_per_input, 3)), "_weight_norm_interface"),
    # square, sum, scale, and weight: 4 per element
    (
        Rule(
            "normalization",
            vector_flops=partial(_per_input, 4),
            bytes_written=first_output,
            dimensions=_trailing_norm,
        ),
        "rms_norm _fused_rms_norm",
    ),
    # maximum, subtraction, exponential, sum, division: 5 per element
    (
        Rule(
            "softmax",
            vector_flops=partial(per_output, SOFTMAX_FLOPS),
            dimensions=partial(_along_dim, 1, None),
        ),
        "softmax log_softmax _softmax _log_softmax _safe_softmax",
    ),
    # activations, by the operations of their definition
    # one operation
    (Rule("activation", vector_flops=partial(per_output, 1)), "relu leaky_relu threshold"),
    # 1 / (1 + exp(-x)): negation, exponential, addition, division
    (Rule("activation", vector_flops=partial(per_output, 4)), "sigmoid"),
    # x sigmoid(x)
    (Rule("activation", vector_flops=partial(per_output, 5)), "silu"),
    # x / 2 (1 + erf(x / sqrt 2)): scale, erf, addition, two products
    (Rule("activation", vector_flops=partial(per_output, 5)), "gelu"),
    # one operation of the special function unit
    (Rule("activation", vector_flops=partial(per_output, 1)), "tanh erf erfc"),
    # a comparison and a product or a difference
    (
        Rule("activation", vector_flops=partial(per_output, 2)),
        "_prelu_kernel hardshrink softshrink",
    ),
    # a (exp(x) - 1) or x: exponential, subtraction, product, selection
    (Rule("activation", vector_flops=partial(per_output, 4)), "elu celu"),
    # a sigmoid(b): five per output element
    (Rule("activation", vector_flops=partial(per_output, 5)), "glu"),
    # x tanh(softplus(x))
    (Rule("activation", vector_flops=partial(per_output, 5)), "mish"),
    # exponential, addition, logarithm
    (Rule("activation", vector_flops=partial(per_output, 3)), "softplus"),
    # addition, two bounds, division
    (Rule("activation", vector_flops=partial(per_output, 4)), "hardsigmoid"),
    # hardsigmoid and a product
    (Rule("activation", vector_flops=partial(per_output, 5)), "hardswish"),
    # elementwise
    # one operation per output element of any type
    (
        Rule("elementwise", vector_flops=partial(per_output, 1)),
        "add sub rsub mul div floor_divide remainder fmod neg abs reciprocal pow square sqrt"
        " rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh asinh"
        " acosh atanh atan2 angle floor ceil round trunc sign sgn signbit copysign nextafter"
        " heaviside clamp clamp_min clamp_max hardtanh maximum minimum fmax fmin where eq ne lt"
        " le gt ge isnan isinf isposinf isneginf isfinite logical_and logical_or logical_not"
        " logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor bitwise_left_shift"
        " bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__ deg2rad rad2deg"
        " conj_physical _conj_physical tril triu",
    ),
    # a product, a quotient or scale, and an addition
    (
        Rule("elementwise", vector_flops=partial(per_output, 2)),
        "addcmul addcdiv addr ldexp xlogy frac",
    ),
    # three operations: a + w (b - a); a sine and two scalings; two products and their difference;
    # three tests
    (
        Rule("elementwise", vector_flops=partial(per_output, 3)),
        "lerp sinc linalg_cross nan_to_num logit",
    ),
    # four operations: two squares, their sum, its root; a sine, a cosine, two products
    (Rule("elementwise", vector_flops=partial(per_output, 4)), "hypot polar"),
    # maximum, difference, exponential, logarithm, addition
    (Rule("elementwise", vector_flops=partial(per_output, 5)), "logaddexp logaddexp2"),
    # reductions and routing
    # one operation per input element
    (
        Rule("reduction", vector_flops=partial(_per_input, 1), dimensions=_reduction_rows),
        "sum mean prod amax amin max min argmax argmin any all cumsum cumprod cummax cummin"
        " _is_all_true _is_any_true logsumexp norm linalg_vector_norm std var var_mean std_mean",
    ),
    # two operations per input element: a test and a sum; two comparisons
    (
        Rule("reduction", vector_flops=partial(_per_input, 2), dimensions=_reduction_rows),
        "count_nonzero nansum aminmax",
    ),
    # one comparison per candidate
    (
        Rule("routing", vector_flops=partial(_per_input, 1), dimensions=partial(_along_dim, 2, -1)),
        "topk",
    ),
    # n ceil(log2 n) comparisons per row
    (Rule("routing", vector_flops=_sort_flops, dimensions=_sort_rows), "sort argsort"),
    # one comparison per element, with the one before it
    (Rule("reduction", vector_flops=partial(_per_input, 1)), "unique_consecutive"),
    # n ceil(log2 n) comparisons to sort, then one per element with the one before
    (Rule("reduction", vector_flops=_unique_flops), "_unique2 unique_dim"),
    # a binary search per element
    (Rule("routing", vector_flops=partial(_search_flops, 1)), "bucketize"),
    # a binary search per element
    (Rule("routing", vector_flops=partial(_search_flops, 0)), "searchsorted"),
    # interpolation and pooling
    # 2 FLOPs per tap, 4 taps per dimension
    (Rule("interpolation", vector_flops=partial(_taps, 4)), "upsample_bicubic2d"),
    # 2 FLOPs per tap, 2 taps per dimension
    (
        Rule("interpolation", vector_flops=partial(_taps, 2)),
        "upsample_linear1d upsample_bilinear2d upsample_trilinear3d",
    ),
    # 2 FLOPs per tap: 2 taps per dimension, 4 for a bicubic filter
    (
        Rule(
            "interpolation", vector_flops=lambda call: _taps({0: 2, 1: 0, 2: 4}[call.args[2]], call)
        ),
        "grid_sampler_2d grid_sampler_3d",
    ),
    # 2 FLOPs per tap of the separable window, which shrinking widens: an upper bound
    (Rule("interpolation", vector_flops=partial(_antialiased_taps, 2)), "_upsample_bicubic2d_aa"),
    # 2 FLOPs per tap of the separable window, which shrinking widens: an upper bound
    (Rule("interpolation", vector_flops=partial(_antialiased_taps, 1)), "_upsample_bilinear2d_aa"),
    # copies the nearest element
    (
        Rule("interpolation"),
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d"
        " _upsample_nearest_exact2d _upsample_nearest_exact3d",
    ),
    # fvcore's handle: one operation per input element
    (
        Rule(
            "pooling",
            vector_flops=partial(fvcore_count, jit_handles.elementwise_flop_counter(1, 0)),
        ),
        "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d",
    ),
    # one operation per element of each window
    (
        Rule("pooling", vector_flops=_window_flops),
        "avg_pool1d avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices",
    ),
]
"""Rules, and the names of the operators that each covers."""


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


def _scaled(counts: tuple[tuple[int, Count], ...], call: Call) -> int:
    """The sum of some counts, each times a factor."""
    return sum(factor * count(call) for factor, count in counts)


@cache
def complex_rule(name: str, rule: Rule) -> Rule | None:
    """The rule for an operator with a complex tensor; None if there is none.

    Matrix FLOPs stay 2 per multiply-accumulate, as in `FlopCounterMode`; the other 6 real FLOPs of
    a complex one are vector FLOPs, beside those of a bias.
    """
    if rule.macs is not None:
        if rule.kind == "attention":
            return None
        # A complex multiply-accumulate is 8 real FLOPs, of which `macs` has 2.
        counts = (8 - 2, rule.macs), (2, rule.vector_flops)
        return replace(rule, vector_flops=partial(_scaled, counts))
    if rule.vector_flops is nothing:
        return rule
    flops = _FLOPS_OF.get(name)
    if flops is None:
        return None
    return replace(rule, vector_flops=partial(_scaled, ((flops, rule.vector_flops),)))
