"""Composite operators, counted as called: PyTorch decomposes them differently on each device.

linear, matmul, einsum, attention, softmax and RMS norm reach the device as different operators on
`meta`, CPU and CUDA. A function mode intercepts them earlier, so that each counts as one operator,
identically on every device. Copies made on the way (for a softmax in another type, or for operands
whose layout the kernel does not take) are operators of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from dsocr_analyze.running.process_settings import replaced
from dsocr_analyze.running.torch_calls import Arguments, Function, Keywords, Value
from dsocr_analyze.trace.matrix_rules import is_contraction

__all__ = ["Composites"]


_LOWER: Final = frozenset(
    "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d prelu addmm"
    " addmv addr matmul __matmul__ __rmatmul__ einsum mm mv vecdot linear addbmm baddbmm bmm"
    " chain_matmul multi_dot scaled_dot_product_attention".split()
)
"""Functions that run in the region's type."""

_WIDE: Final = frozenset(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __pow__"
    " __rpow__ softplus layer_norm native_layer_norm group_norm frobenius_norm nuclear_norm norm"
    " cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss hinge_embedding_loss kl_div"
    " l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss"
    " soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits"
    " cross_entropy dist pdist cdist renorm logsumexp interpolate upsample".split()
)
"""Functions that run in fp32."""

_WIDE_OUTPUT: Final = frozenset(
    "prod softmax log_softmax cumprod cumsum vector_norm matrix_norm sum".split()
)
"""Functions that return fp32 unless a type is requested."""

_WIDEST: Final = frozenset(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sample grid_sampler index_put tensordot"
    " scatter_add cat stack".split()
)
"""Functions whose arguments are all cast to the widest type among them."""


class _Autocast:
    """Casts a function's arguments as autocast does while a region is active in this thread.

    The region is that of the arguments' device; for `meta`, CUDA's, whose casts torch does not make
    there. On a device torch casts by itself; only operators recorded as called get their arguments
    cast here first, so that they are counted in the type in which their kernels run.

    Source: `autocast_mode.h` of ATen (`AT_FORALL_LOWER_PRECISION_FP` and the lists after it).
    """

    def __init__(self) -> None:
        self._weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Weights cast in the outermost region and their casts, kept until it ends."""

    def is_active(self) -> bool:
        """Whether a region is active."""
        if self._weights and not _nesting():
            self._weights.clear()
        return torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")

    def arguments(
        self, func: Function, args: Arguments, kwargs: Keywords, *, is_recorded_whole: bool
    ) -> tuple[Arguments, Keywords]:
        """A function's arguments, cast.

        Args:
            func: The function.
            args: Its arguments.
            kwargs: Its keyword arguments.
            is_recorded_whole: Whether it is counted as one operator, as called.
        """
        name = getattr(func, "__name__", "")
        tensors = [tensor for tensor in _tensors((args, kwargs)) if _is_eligible(tensor)]
        if not tensors or not (is_recorded_whole or tensors[0].is_meta):
            return args, kwargs
        device = "cpu" if tensors[0].is_cpu else "cuda"
        if not torch.is_autocast_enabled(device):
            return args, kwargs
        if name in _LOWER:
            return self._cast_all(args, kwargs, torch.get_autocast_dtype(device))
        if device == "cpu":
            return args, kwargs
        if name in _WIDE:
            return self._cast_all(args, kwargs, torch.float32)
        if name in _WIDE_OUTPUT and not _names_type((*args, *kwargs.values())):
            return args, kwargs | {"dtype": torch.float32}
        if name in _WIDEST:
            return self._cast_all(args, kwargs, _widest(tensors))
        return args, kwargs

    def _cast_all(
        self, args: Arguments, kwargs: Keywords, dtype: torch.dtype
    ) -> tuple[Arguments, Keywords]:
        return self._cast(args, dtype), self._cast(kwargs, dtype)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            return self._cast_tensor(value, dtype) if _is_eligible(value) else value
        if isinstance(value, tuple | list):
            items = [self._cast(item, dtype) for item in value]
            return tuple(items) if isinstance(value, tuple) else items
        if isinstance(value, dict):
            return {name: self._cast(item, dtype) for name, item in value.items()}
        return value

    def _cast_tensor(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if tensor.dtype == dtype:
            return tensor
        is_kept = (
            tensor.requires_grad
            and tensor.is_leaf
            and tensor.dtype is torch.float32
            and dtype is not torch.float32
            and torch.is_autocast_cache_enabled()
        )
        if not is_kept:
            return tensor.to(dtype)
        found = self._weights.get(id(tensor))
        if found is None:
            found = self._weights[id(tensor)] = (tensor, tensor.to(dtype))
        return found[1]


def _is_eligible(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype is not torch.float64


def _tensors(value: Value) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _names_type(arguments: Arguments) -> bool:
    return any(isinstance(argument, torch.dtype) for argument in arguments)


def _widest(tensors: list[torch.Tensor]) -> torch.dtype:
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def _nesting() -> int:
    """Number of open regions; torch reports it only when entering one more."""
    inside = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return inside - 1


_Arguments = tuple[Arguments, Keywords]


def _parameters(*names: str) -> Callable[[Arguments, Keywords], _Arguments]:
    """Moves a call's arguments into positional order; any others stay keyword arguments."""

    def arrange(args: Arguments, kwargs: Keywords) -> _Arguments:
        ordered = list(args)
        if not kwargs:
            return ordered, kwargs
        rest = dict(kwargs)
        for name in names[len(args) :]:
            if name not in rest:
                break
            ordered.append(rest.pop(name))
        return ordered, rest

    return arrange


def _einsum_arguments(args: Arguments, kwargs: Keywords) -> _Arguments:
    operands = args[1:]
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    return [args[0], list(operands)], kwargs


def _swapped(args: Arguments, kwargs: Keywords) -> _Arguments:
    return [args[1], args[0]], kwargs


_COMPOSITES: Final[dict[Function, tuple[str, Callable[..., _Arguments]]]] = {
    F.linear: ("linear", _parameters("input", "weight", "bias")),
    torch.matmul: ("matmul", _parameters("input", "other")),
    torch.Tensor.matmul: ("matmul", _parameters("self", "other")),
    torch.linalg.matmul: ("matmul", _parameters("input", "other")),
    torch.Tensor.__matmul__: ("matmul", _parameters("self", "other")),
    torch.Tensor.__rmatmul__: ("matmul", _swapped),
    torch.einsum: ("einsum", _einsum_arguments),
    F.scaled_dot_product_attention: (
        "scaled_dot_product_attention",
        _parameters("query", "key", "value", "attn_mask", "dropout_p", "is_causal"),
    ),
    torch.softmax: ("softmax", _parameters("input", "dim")),
    torch.Tensor.softmax: ("softmax", _parameters("self", "dim")),
    F.softmax: ("softmax", _parameters("input", "dim")),
    torch.special.softmax: ("softmax", _parameters("input", "dim")),
    torch.log_softmax: ("log_softmax", _parameters("input", "dim")),
    torch.Tensor.log_softmax: ("log_softmax", _parameters("self", "dim")),
    torch.special.log_softmax: ("log_softmax", _parameters("input", "dim")),
    F.log_softmax: ("log_softmax", _parameters("input", "dim")),
    torch.rms_norm: ("rms_norm", _parameters("input", "normalized_shape", "weight")),
    F.rms_norm: ("rms_norm", _parameters("input", "normalized_shape", "weight")),
}

_MOVES: Final = (torch.Tensor.cpu, torch.Tensor.to)

_SOFTMAXES: Final = ("softmax", "log_softmax")


Record = Callable[[str, Arguments, Keywords, Callable[[], Value], bool], Value]


class Composites(TorchFunctionMode):
    """Passes each composite to `record` as one operator, as called.

    Args:
        record: Receives the operator's name, its arguments in schema order, its remaining keyword
            arguments, a function that runs it, and whether it is a single kernel on the device,
            without intermediate results; returns the output.
    """

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record
        self._autocast = _Autocast()

    def __torch_function__(
        self,
        func: Function,
        types: Iterable[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Value:
        kwargs = kwargs or {}
        composite = _COMPOSITES.get(func)
        if self._autocast.is_active():
            args, kwargs = self._autocast.arguments(
                func, args, kwargs, is_recorded_whole=composite is not None
            )
        if composite is None:
            if func in _MOVES and _leaves_for_the_host(args, kwargs, func):
                # On `meta` the tensor's known value is used; on a device this is a copy.
                return self._record("transfer", [args[0]], {}, lambda: func(*args, **kwargs), True)
            if func is F.multi_head_attention_forward:
                return self._opened(func, args, kwargs)
            return func(*args, **kwargs)
        name, arrange = composite
        ordered, rest = arrange(args, kwargs)
        if name == "einsum" and not _is_one_product(*ordered):
            return func(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            return self._record(
                name, ordered, rest, lambda: _as_cuda_lays_it_out(func(*args, **kwargs)), True
            )
        if name in _SOFTMAXES:
            return self._softmax(name, func, ordered, rest)
        is_fused = name == "rms_norm"
        return self._record(name, ordered, rest, lambda: func(*args, **kwargs), is_fused)

    def _softmax(self, name: str, func: Function, args: Arguments, kwargs: Keywords) -> Value:
        """A softmax, after the copy that torch makes first if another type is requested.

        CUDA's kernel reads fp16 and writes fp32 directly (`half_to_float`); bf16 is copied.
        """
        scores, dims = args[0], args[1:2] or [kwargs.get("dim")]
        given = (argument for argument in (*args[2:], *kwargs.values()))
        dtype = next((argument for argument in given if isinstance(argument, torch.dtype)), None)
        if dtype in (None, scores.dtype):
            return self._record(name, args, kwargs, lambda: func(*args, **kwargs), False)
        if (scores.dtype, dtype) == (torch.float16, torch.float32):
            return self._record(name, args, kwargs, lambda: func(*args, **kwargs), True)
        wide = scores.to(dtype)
        return self._record(name, [wide, *dims], {}, lambda: func(wide, *dims), False)

    def _opened(self, func: Function, args: Arguments, kwargs: Keywords) -> Value:
        """Runs a Python function that torch passes to a mode as a whole, and records what it calls.

        The function asks `has_torch_function` whether to pass itself to the mode; in this thread,
        the answer is now no.
        """
        asks, here = vars(F)["has_torch_function"], threading.get_ident()

        def passes_on(args: Arguments) -> bool:
            return threading.get_ident() != here and asks(args)

        with replaced(F, "has_torch_function", passes_on), self:
            return func(*args, **kwargs)


def _leaves_for_the_host(args: Arguments, kwargs: Keywords, func: Function) -> bool:
    """Whether the call moves a tensor on `meta`, which represents a GPU, to the host."""
    if not (isinstance(args[0], torch.Tensor) and args[0].is_meta):
        return False
    if func is torch.Tensor.cpu:
        return True
    named = (*args[1:], *kwargs.values())
    return any(
        torch.device(device).type == "cpu"
        for device in named
        if isinstance(device, str | torch.device)
    )


def _is_one_product(equation: Value, operands: list[torch.Tensor]) -> bool:
    """Whether an einsum is counted as one product; any other is counted as torch decomposes it."""
    with torch._C.DisableTorchFunction():
        shapes = [operand.shape for operand in operands]
    return isinstance(equation, str) and is_contraction(equation, shapes)


def _as_cuda_lays_it_out(output: Any) -> Any:
    """Lays attention's output [B, H, T, D] out as [B, T, H, D] in memory.

    CUDA's fused kernels do that, so merging heads is a view; `meta` puts heads first, and the CPU's
    kernel uses the layout of its queries, which would make it a copy.
    """
    if output.is_cuda or output.dim() != 4 or output.transpose(1, 2).is_contiguous():
        return output
    return output.transpose(1, 2).contiguous().transpose(1, 2)
