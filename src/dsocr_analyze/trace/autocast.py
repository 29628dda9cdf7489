"""Autocast: the casts that torch makes before an operator inside a `torch.autocast` region.

torch has no autocast for `meta`, so CUDA's casts are made here, function by function. On a device
torch casts by itself; only operators recorded as called get their arguments cast here first, so
that they are counted in the type in which their kernels run.

Source: `autocast_mode.h` of ATen (`AT_FORALL_LOWER_PRECISION_FP` and the lists after it).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from dsocr_analyze.running.torch_calls import Arguments, Function, Keywords, Value

__all__ = ["Autocast"]

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


class Autocast:
    """Casts a function's arguments as autocast does while a region is active in this thread.

    The region is that of the arguments' device; for `meta`, CUDA's.
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
