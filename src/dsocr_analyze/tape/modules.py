"""Forwards that networks are built from: modules, fused attention, position tables, MLPs.

Source of the tables: `get_abs_pos_sam`, `get_abs_pos` and `get_rel_pos` (`deepencoder.py`); of the
activation functions: `ACT2FN` of transformers 4.46; of gated MLPs and rotation: `LlamaMLP`, which
`DeepseekV2MLP` (`modeling_deepseekv2.py`) and `Qwen2MLP` equal, and `apply_rotary_pos_emb` there.
"""

from collections.abc import Callable
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import Any, Final

from dsocr_analyze.kernels import FLOAT32, Attention, Convolution, Elements, Gemm, Kind, Rows, Work
from dsocr_analyze.tape import Operand, Size, Tape, ceil_div


def linear(
    t: Tape,
    x: Operand,
    rows: Size,
    d_in: Size,
    d_out: Size,
    *,
    bias: bool = False,
    operator: str = "linear",
) -> Operand:
    """`torch.nn.Linear`: `[rows, d_in] -> [rows, d_out]`; `operator` names a fused kernel."""
    weight = t.weight(d_in * d_out)
    biases = t.weight(d_out, "bias") if bias else None
    return t.product(operator, Gemm(1, rows, d_out, d_in), x, weight, biases)


def embedding(t: Tape, index: Operand, rows: int, d: int) -> Operand:
    """`torch.nn.Embedding`: rows of a table `[rows, d]`."""
    t.weight(rows * d)
    return t.gather("embedding", index, index.n * d, t.dtype)


def layer_norm(t: Tape, x: Operand, rows: Size, d: int, *, channels_first: bool = False) -> Operand:
    """`torch.nn.LayerNorm` (Ba et al. 2016, eq. 4) of `[rows, d]`: 5 FLOPs per element.

    Features stored channel by channel are copied first.
    """
    if channels_first:
        x = t.move("clone", x)
    weights = t.weight(d).nbytes + t.weight(d, "bias").nbytes
    work = Work(0, 5 * x.n, 0, x.nbytes + weights, x.nbytes)
    t.record("normalization", "native_layer_norm", Rows(rows, d), x.dtype, x.dtype, work)
    mean, deviation = (rows, FLOAT32), (rows, FLOAT32)
    output, *_ = starmap(partial(Operand, tape=t), ((x.n, x.dtype), mean, deviation))
    return t.hold(output, x)  # and not the means and deviations, which the kernel returns as well


def fused_attention(t: Tape, operator: str, shape: Attention, *inputs: Operand) -> Operand:
    """Fused attention over queries, keys and values, in one tensor or several, and a mask.

    6 FLOPs per score (scale, softmax), 7 with a mask; no score leaves the kernel.
    """
    queries = shape.batch * shape.heads * shape.queries
    scores = queries * shape.keys
    n, dtype = queries * shape.value_dim, inputs[0].dtype
    macs = scores * (shape.head_dim + shape.value_dim)
    flops, read = scores * (7 if shape.masked else 6), sum(map(attrgetter("nbytes"), inputs))
    work = Work(macs, flops, n, read, n * dtype.nbytes)
    t.record("attention", operator, shape, dtype, dtype, work)
    return Operand(n, dtype, tape=t)


def fused_rms_norm(t: Tape, x: Operand, rows: Size, d: Size) -> Operand:
    """`rms_norm` in one kernel, as `RMSNorm` of serving engines (`vllm/model_executor/layers`)."""
    work = Work(0, 4 * x.n, 0, x.nbytes + t.weight(d).nbytes, x.nbytes)
    t.record("normalization", "fused_rms_norm", Rows(rows, d), x.dtype, x.dtype, work)
    return t.empty(x.n, x.dtype)


def rms_norm(t: Tape, x: Operand, rows: Size, d: Size) -> Operand:
    """`x / sqrt(mean(x^2) + eps) w` in fp32, by single operators.

    Source: Zhang and Sennrich 2019, eq. 4; `DeepseekV2RMSNorm` (`modeling_deepseekv2.py`).
    """
    if t.is_served:
        return fused_rms_norm(t, x, rows, d)
    wide = t.cast(x, FLOAT32)
    variance = t.reduce("mean", t.map("pow", wide), rows, d)
    wide = t.map("mul", wide, t.map("rsqrt", t.map("add", variance)))
    return t.hold(t.map("mul", t.cast(wide, x.dtype), t.weight(d)), variance, wide)


def conv2d(
    t: Tape,
    x: Operand,
    N: Size,
    side: int,
    d_in: int,
    d_out: int,
    kernel: int,
    *,
    stride: int = 1,
    padding: int = 0,
    bias: bool = False,
) -> Operand:
    """`torch.nn.Conv2d` on N square images: `[N, d_in, side, side] -> [N, d_out, ...]`."""
    positions = ((side + 2 * padding - kernel) // stride + 1) ** 2
    return convolution(t, x, Convolution(N, positions, d_in, d_out, kernel * kernel), bias=bias)


def convolution(
    t: Tape, x: Operand, shape: Convolution, *, bias: bool = False, operator: str = "conv2d"
) -> Operand:
    """`torch.nn.Conv2d`, or what `operator` says, on images of any size."""
    N, positions, d_in, d_out, taps = shape
    weights = t.weight(d_in * d_out * taps).nbytes
    if bias:
        weights += t.weight(d_out, "bias").nbytes
    n = N * positions * d_out
    work = Work(n * (d_in * taps), n if bias else 0, n, x.nbytes + weights, n * x.dtype.nbytes)
    t.record("convolution", operator, shape, x.dtype, x.dtype, work)
    return Operand(n, x.dtype, tape=t)


# --- learned position tables, resampled in fp32 for another grid -------------------------------


def bicubic(t: Tape, grid: Operand, source: int, target: int, d: int) -> Operand:
    """`[d, source, source] -> [d, target, target]`, antialiased; fp32 in, the model's type out.

    One dimension after another, last first, 2 FLOPs per tap of a window of 2 h + 1 with
    `h = ceil(2 max(1, source / target))` (ATen, `_upsample_bicubic2d_aa`). An upper bound: taps
    outside a filter (Keys 1981) weigh nothing.
    """
    half = max(2, t.derived("ceil({} / {})", ceil_div, 2 * source, target))
    flops = 2 * (2 * half + 1) * d * target * (source + target)
    return interpolated(t, "_upsample_bicubic2d_aa", grid, target * target * d, flops)


def interpolated(t: Tape, operator: str, table: Operand, n: int, flops: int) -> Operand:
    """A table as n elements, computed in its type and cast to the model's."""
    dtype = table.dtype
    work = Work(0, flops, 0, table.nbytes, n * dtype.nbytes)
    t.record("interpolation", operator, Elements(n), dtype, dtype, work)
    return t.cast(Operand(n, dtype, tape=t), t.dtype)


# --- activation functions --------------------------------------------------------------------


def _single(
    operator: str, flops: int, t: Tape, x: Operand, *, kind: Kind = "activation"
) -> Operand:
    return t.map(operator, x, flops=flops, kind=kind)


_SIGMOID: Final = partial(_single, "sigmoid", 4)
_TANH: Final = partial(_single, "tanh", 1)
_ERF: Final = partial(_single, "erf", 1)
_RELU: Final = partial(_single, "relu", 1)
_GELU: Final = partial(_single, "gelu", 5)
_SILU: Final = partial(_single, "silu", 5)


def quick_gelu(t: Tape, x: Operand) -> Operand:
    """`x sigmoid(1.702 x)` (Hendrycks and Gimpel 2016)."""
    return t.map("mul", x, _SIGMOID(t, t.map("mul", x)))


def _gelu_new(t: Tape, x: Operand) -> Operand:
    """`0.5 x (1 + tanh(c (x + 0.044715 x^3)))`."""
    half = t.map("mul", x)
    return t.map(
        "mul",
        half,
        t.map("add", _TANH(t, t.map("mul", t.map("add", x, t.map("mul", t.map("pow", x)))))),
    )


def _gelu_fast(t: Tape, x: Operand) -> Operand:
    """`0.5 x (1 + tanh(c x (1 + 0.044715 x x)))`."""
    half = t.map("mul", x)
    return t.map(
        "mul",
        half,
        t.map(
            "add",
            _TANH(t, t.map("mul", t.map("mul", x), t.map("add", t.map("mul", t.map("mul", x), x)))),
        ),
    )


def _gelu_python(t: Tape, x: Operand) -> Operand:
    """`0.5 x (1 + erf(x / sqrt(2)))`."""
    half = t.map("mul", x)
    return t.map("mul", half, t.map("add", _ERF(t, t.map("div", x))))


def _laplace(t: Tape, x: Operand) -> Operand:
    """`0.5 (1 + erf((x - mu) / (sigma sqrt(2))))`."""
    x = t.map("div", t.map("sub", x))
    return t.hold(t.map("mul", t.map("add", _ERF(t, x))), x)


ACTIVATIONS: Final[dict[str, Callable[[Tape, Operand], Operand]]] = {
    "silu": _SILU,
    "swish": _SILU,
    "gelu": _GELU,
    "gelu_pytorch_tanh": _GELU,
    "gelu_new": _gelu_new,
    "gelu_accurate": _gelu_new,
    "gelu_10": lambda t, x: t.map("clamp", _GELU(t, x)),
    "gelu_fast": _gelu_fast,
    "gelu_python": _gelu_python,
    "laplace": _laplace,
    "mish": partial(_single, "mish", 5),
    "quick_gelu": quick_gelu,
    "relu": _RELU,
    "relu2": lambda t, x: t.map("pow", _RELU(t, x)),
    "relu6": partial(_single, "hardtanh", 1, kind="elementwise"),
    "leaky_relu": partial(_single, "leaky_relu", 1),
    "sigmoid": _SIGMOID,
    "tanh": _TANH,
    "linear": lambda _, x: x,
}
"""Forwards of activation modules by `hidden_act`."""


# --- MLPs, rotation and layers ---------------------------------------------------------------


def mlp(
    t: Tape,
    x: Operand,
    names: tuple[str, str, str],
    widths: tuple[int, int, int],
    act: str = "gelu",
    *,
    bias: bool = True,
) -> Operand:
    """`W_2 act(W_1 x)` through features of `widths`; `names` of first, activation and second."""
    (first, activation, second), (d, f, out) = names, widths
    n = x.n // d
    x = t.call(first, linear, x, n, d, f, bias=bias)
    x = t.call(activation, ACTIVATIONS[act], x)
    return t.call(second, linear, x, n, f, out, bias=bias)


def rotated(t: Tape, x: Operand, cos: Operand, sin: Operand, operator: str = "cat") -> Operand:
    """`x cos + rotate_half(x) sin` (RoFormer, eq. 34); elements in, as many out.

    The `operator` joins halves of each head, or pairs of neighbours.
    """
    half = t.view(x, x.n // 2)  # `rotate_half`: the second half of each head, negated, comes first
    return t.map(
        "add",
        t.map("mul", x, cos),
        t.map("mul", t.move(operator, t.map("neg", half), half, n=x.n), sin),
    )


def swiglu(
    t: Tape, x: Operand, n: Size, d: Size, f: Size, act: str = "silu", *, bias: bool = False
) -> Operand:
    """`W_down (act(W_gate x) * W_up x)`, `[n, d] -> [n, f] -> [n, d]` (Shazeer 2020, eq. 6)."""
    if t.is_served:
        return fused_swiglu(t, x, n, d, f, bias=bias)
    hidden = t.map(
        "mul",
        t.call("act_fn", ACTIVATIONS[act], t.call("gate_proj", linear, x, n, d, f, bias=bias)),
        t.call("up_proj", linear, x, n, d, f, bias=bias),
    )
    return t.call("down_proj", linear, hidden, n, f, d, bias=bias)


def fused_swiglu(t: Tape, x: Operand, n: Size, d: Size, f: Size, *, bias: bool = False) -> Operand:
    """`MergedColumnParallelLinear`, `SiluAndMul` and another product of serving engines."""
    gate_up = linear(t, x, n, d, 2 * f, bias=bias, operator="merged_linear")
    gated = t.map("silu_and_mul", gate_up, n=n * f, flops=5, kind="activation")
    return linear(t, gated, n, f, d, bias=bias)


def joint_swiglu(t: Tape, x: Operand, n: Size, d: Size, f: Size, act: str) -> Operand:
    """`swiglu` whose first product yields gate and up (`GlmOcrTextMLP`)."""
    both = t.call("gate_up_proj", linear, x, n, d, 2 * f)
    half = t.view(both, n * f)
    hidden = t.map("mul", half, t.call("activation_fn", ACTIVATIONS[act], half))
    return t.hold(t.call("down_proj", linear, hidden, n, f, d), both)


def layers(
    t: Tape, x: Operand, count: int, forward: Callable[..., Operand], *inputs: Any
) -> Operand:
    """Layers in turn, of a module that has nothing else; `inputs` of each, after features."""
    for index in range(count):
        x = t.again(f"layers.{index}", forward, x, *inputs)
    return x
