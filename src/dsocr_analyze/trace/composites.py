"""Composite operators, counted as called: PyTorch decomposes them differently on each device.

A function mode intercepts linear, matmul, einsum, attention, softmax and RMS norm, so that each is
one operator everywhere. Copies made on the way, to another type or layout, are counted apart.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map_only

from dsocr_analyze.forking import undone
from dsocr_analyze.model.known_values import device_among
from dsocr_analyze.model.process_settings import (
    Arguments,
    Function,
    FunctionMode,
    Keywords,
    Value,
    replaced,
    tensors_in,
)
from dsocr_analyze.trace.matrix_rules import is_contraction

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
"""Functions whose arguments are all cast to the widest among their types."""


_MATRICES: Final = ("input", "other")
_ROWS: Final = ("input", "dim")
_OF_RMS_NORM: Final = ("input", "normalized_shape", "weight")

_COMPOSITES: Final[dict[Function, tuple[str, tuple[str, ...]]]] = {
    F.linear: ("linear", ("input", "weight", "bias")),
    torch.matmul: ("matmul", _MATRICES),
    torch.Tensor.matmul: ("matmul", ("self", "other")),
    torch.linalg.matmul: ("matmul", _MATRICES),
    torch.Tensor.__matmul__: ("matmul", ("self", "other")),
    torch.Tensor.__rmatmul__: ("matmul", ()),
    torch.einsum: ("einsum", ()),
    F.scaled_dot_product_attention: (
        "scaled_dot_product_attention",
        ("query", "key", "value", "attn_mask", "dropout_p", "is_causal"),
    ),
    torch.softmax: ("softmax", _ROWS),
    torch.Tensor.softmax: ("softmax", ("self", "dim")),
    F.softmax: ("softmax", _ROWS),
    torch.special.softmax: ("softmax", _ROWS),
    torch.log_softmax: ("log_softmax", _ROWS),
    torch.Tensor.log_softmax: ("log_softmax", ("self", "dim")),
    torch.special.log_softmax: ("log_softmax", _ROWS),
    F.log_softmax: ("log_softmax", _ROWS),
    torch.rms_norm: ("rms_norm", _OF_RMS_NORM),
    F.rms_norm: ("rms_norm", _OF_RMS_NORM),
}
"""By function, the operator's name and the parameters that a rule looks at, in its order."""

_MOVES: Final = (torch.Tensor.cpu, torch.Tensor.to)

Record = Callable[[str, Arguments, Keywords, Callable[[], Value], bool], Value]


class Composites:
    """Passes each composite to `record` as one operator; `answer` is a function mode's.

    In a region of autocast in this thread, arguments are cast first: as in the region of their
    device, and for `meta` as on CUDA, since torch makes no casts there.

    Source: `autocast_mode.h` of ATen (`AT_FORALL_LOWER_PRECISION_FP` and the lists after it).

    `record` is `Recorder.record_whole`.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Weights and their casts in the outermost region, kept until it ends."""

    def answer(self, func: Function, args: Arguments, kwargs: Keywords) -> Value:
        """Calls a function of torch."""
        composite = _COMPOSITES.get(func)
        if self._weights:
            inside = torch.autocast_increment_nesting()  # torch reports it only when entering one
            torch.autocast_decrement_nesting()
            if inside == 1:
                self._weights.clear()
        if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
            args, kwargs = self._as_autocast_does(func, args, kwargs)
        run = functools.partial(func, *args, **kwargs)
        if composite is None:
            if func in _MOVES and args[0].is_meta:  # which represents a GPU
                device = device_among(args[1:], kwargs)
                if func is torch.Tensor.cpu or (device is not None and device.type == "cpu"):
                    # On `meta` the tensor's known value is used; on a device this is a copy.
                    return self._record("transfer", [args[0]], {}, run, True)
            if func is F.multi_head_attention_forward:
                return self._opened(func, args, kwargs)
            if func is torch._nested_tensor_from_mask_left_aligned:
                return False  # `nn.TransformerEncoder` pads, as it does under any mode
            with _taken_apart() if func is torch.lstm else contextlib.nullcontext():
                return run()
        name, parameters = composite
        ordered, rest = [*args], dict(kwargs)
        for parameter in parameters[len(args) :]:
            if parameter not in rest:
                break
            ordered.append(rest.pop(parameter))
        is_fused = name in ("rms_norm", "scaled_dot_product_attention")
        if func is torch.Tensor.__rmatmul__:
            ordered.reverse()
        elif name == "einsum":
            listed = len(args) == 2 and isinstance(args[1], tuple | list)
            ordered = [args[0], [*(args[1] if listed else args[1:])]]
            with torch._C.DisableTorchFunction():
                is_one_product = is_contraction(*ordered)
            if not is_one_product:  # it is counted as torch decomposes it
                return run()
        elif name == "scaled_dot_product_attention":
            run = functools.partial(_attended, run)
        elif name in ("softmax", "log_softmax"):
            scores, dims = ordered[0], ordered[1:2] or [rest.get("dim")]
            named = [each for each in (*ordered, *rest.values()) if isinstance(each, torch.dtype)]
            # CUDA's kernel reads fp16 and writes fp32 directly (`half_to_float`).
            is_fused = [scores.dtype, *named] == [torch.float16, torch.float32]
            if named not in ([], [scores.dtype]) and not is_fused:
                ordered, rest = [scores.to(named[0]), *dims], {}  # the copy that torch makes first
                run = functools.partial(func, *ordered)
        return self._record(name, ordered, rest, run, is_fused)

    def _opened(self, func: Function, args: Arguments, kwargs: Keywords) -> Value:
        """Runs a Python function that torch would pass to a mode as a whole, and records its calls.

        What it asks, `has_torch_function`, says no in this thread.
        """
        asks, here = vars(F)["has_torch_function"], threading.get_ident()

        def passes_on(args: Arguments) -> bool:
            return threading.get_ident() != here and asks(args)

        with replaced(F, "has_torch_function", passes_on), FunctionMode(self.answer):
            return func(*args, **kwargs)

    # autocast

    def _as_autocast_does(
        self, func: Function, args: Arguments, kwargs: Keywords
    ) -> tuple[Arguments, Keywords]:
        """A function's arguments, cast."""
        name = getattr(func, "__name__", "")
        tensors = [*filter(_is_eligible, tensors_in([*args, *kwargs.values()]))]
        if not tensors or not (func in _COMPOSITES or tensors[0].is_meta):
            return args, kwargs
        device = "cpu" if tensors[0].is_cpu else "cuda"
        if not torch.is_autocast_enabled(device):
            return args, kwargs
        names_type = any(isinstance(each, torch.dtype) for each in (*args, *kwargs.values()))
        dtype: torch.dtype | None = None
        if name in _LOWER:
            dtype = torch.get_autocast_dtype(device)
        elif device == "cuda" and name in _WIDE:
            dtype = torch.float32
        elif device == "cuda" and name in _WIDEST:
            dtype = functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
        elif device == "cuda" and name in _WIDE_OUTPUT and not names_type:
            kwargs = kwargs | {"dtype": torch.float32}
        if dtype is None:
            return args, kwargs
        cast = functools.partial(self._cast, dtype)
        given: tuple[Arguments, Keywords] = tree_map_only(torch.Tensor, cast, (args, kwargs))
        return given

    def _cast(self, dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == dtype or not _is_eligible(tensor):
            return tensor
        is_kept = tensor.requires_grad and tensor.is_leaf and torch.is_autocast_cache_enabled()
        if not is_kept or tensor.dtype is not torch.float32:
            return tensor.to(dtype)
        if id(tensor) not in self._weights:
            self._weights[id(tensor)] = tensor, tensor.to(dtype)
        return self._weights[id(tensor)][1]


@contextlib.contextmanager
def _taken_apart() -> Iterator[None]:
    """An LSTM runs as its matrix products, and not as one kernel of oneDNN."""
    with undone(functools.partial(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())):
        torch._C._set_mkldnn_enabled(False)
        yield


def _is_eligible(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype is not torch.float64


def _attended(attention: Callable[[], Any]) -> Any:
    return laid_out_as_on_cuda(attention())


def laid_out_as_on_cuda(output: Any) -> Any:
    """Attention's output [B, H, T, D] laid out as [B, T, H, D], as CUDA's kernels do.

    Then merging heads is a view.
    """
    if output.is_cuda or output.dim() != 4 or output.transpose(1, 2).is_contiguous():
        return output
    return output.transpose(1, 2).contiguous().transpose(1, 2)
