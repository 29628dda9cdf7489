"""The operator table: what each operator costs, one rule per family, each rule with its reason.

Names are PyTorch's own, without overload and in-place suffix (`aten::add_.Tensor` is `add`).
fvcore's handles count the operators that they count correctly; this project's own rules cover the
rest. An operator is

* counted: it has a rule in `RULES` (its FLOPs may be 0: a copy computes nothing but moves bytes);
* free: it is in `FREE`, because it neither computes nor moves anything on the device;
* unknown: anything else. Unknown operators are reported, never guessed.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

import torch

from dsocr_analyze.kernels import Elements, Kernel, Work
from dsocr_analyze.running.torch_calls import Arguments, Operator
from dsocr_analyze.trace.attention_rules import ATTENTION_RULES
from dsocr_analyze.trace.call import Call, Rule, occupied_bytes
from dsocr_analyze.trace.fvcore_handles import activations
from dsocr_analyze.trace.matrix_rules import MATRIX_RULES
from dsocr_analyze.trace.movement_rules import MOVEMENT_RULES
from dsocr_analyze.trace.vector_rules import VECTOR_RULES

__all__ = [
    "COMPOSITE",
    "FREE",
    "RULES",
    "Traits",
    "convolution_name",
    "copied_operands",
    "copy_of",
    "kernel_of",
    "traits_of",
]

RULES: Final[dict[str, Rule]] = {
    name: rule
    for rule, names in (*MATRIX_RULES, *ATTENTION_RULES, *VECTOR_RULES, *MOVEMENT_RULES)
    for name in names.split()
}

FREE: Final[frozenset[str]] = frozenset(
    # views: the same memory under another shape
    "view _unsafe_view reshape _reshape_alias alias detach expand expand_as permute"
    " transpose t mT slice select squeeze unsqueeze unbind split split_with_sizes unsafe_split"
    " unsafe_split_with_sizes chunk unsafe_chunk unfold narrow"
    " as_strided diagonal movedim view_as real imag flatten unflatten lift_fresh lift"
    " swapaxes view_as_real view_as_complex _conj _neg_view"
    # new memory for the same tensor; if it grows, `grow` is counted
    " resize resize_as set"
    # allocations: nothing is written yet
    " empty empty_like empty_strided new_empty new_empty_strided empty_permuted"
    # queries from the host
    " _local_scalar_dense item is_nonzero is_same_size _has_same_storage_numel size stride numel"
    " dim sym_size sym_stride sym_numel sym_storage_offset prim_device _assert_async"
    " _assert_tensor_metadata _linalg_check_errors"
    # profiler marks, which nn.DataParallel sets around its calls
    " profiler::_record_function_enter profiler::_record_function_enter_new"
    " profiler::_record_function_exit".split()
)


def kernel_of(name: str, rule: Rule, call: Call) -> Kernel:
    """The kernel record of one call under its rule, not yet assigned to a module."""
    output = call.outputs[0]
    # A copy reads its source, which `copy_` takes last; other operators read the first tensor.
    tensors = call.tensors()[-1:] if name in ("copy", "transfer") else call.tensors()
    return Kernel(
        kind=rule.kind,
        operator=name,
        dimensions=rule.dimensions(call),
        dtype=_name_of((tensors[0] if tensors else output).dtype),
        output_dtype=_name_of(output.dtype),
        work=Work(
            macs=rule.macs(call) if rule.macs else 0,
            vector_flops=rule.vector_flops(call),
            activations=activations(call) if rule.macs else 0,
            bytes_read=rule.bytes_read(call),
            bytes_written=rule.bytes_written(call),
        ),
    )


def copied_operands(name: str, call: Call) -> list[torch.Tensor]:
    """Operands that a kernel copies first because it needs them contiguous.

    Layer norm does so on every device (`expect_contiguous` in `layer_norm_cpu` and
    `layer_norm_cuda` of ATen).
    """
    if name != "native_layer_norm":
        return []
    return [tensor for tensor in call.tensors() if not tensor.is_contiguous()]


def copy_of(tensor: torch.Tensor) -> Kernel:
    """The kernel record of a contiguous copy of a tensor."""
    elements, dtype = tensor.numel(), _name_of(tensor.dtype)
    work = Work(bytes_read=occupied_bytes(tensor), bytes_written=elements * tensor.element_size())
    return Kernel("movement", "clone", Elements(elements), dtype, dtype, work)


@functools.cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- operators as PyTorch dispatches them --------------------------------------------------------

COMPOSITE: Final = torch._C.DispatchKey.CompositeImplicitAutograd


class Traits(NamedTuple):
    """What decides how a dispatched operator is recorded."""

    name: str
    """Without overload and in-place suffix; prefixed with its library unless that is ATen."""
    rule: Rule | None
    is_composite: bool
    """Whether PyTorch decomposes it earlier; it arrives here whole only in inference mode."""
    can_be_taken_apart: bool
    """True also for one that arrives whole in any mode, has a rule and is counted as called."""
    may_grow: bool
    """Whether it may enlarge the memory of an argument, as with `out=` or `resize_`."""


@functools.cache
def traits_of(func: Operator) -> Traits:
    """An operator's traits, by PyTorch's own tables."""
    name = func.overloadpacket.__name__
    if name not in RULES and name not in FREE and name.endswith("_"):
        name = name[:-1]
    if func.namespace not in ("aten", "prims"):
        name = f"{func.namespace}::{name}"
    rule = RULES.get(name)
    has_kernel = functools.partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())
    can_be_taken_apart = has_kernel(COMPOSITE)
    arrives_whole = has_kernel(torch._C.DispatchKey.Autograd)
    may_grow = name.startswith("resize") or any(
        argument.kwarg_only and argument.alias_info is not None and argument.alias_info.is_write
        for argument in func._schema.arguments
    )
    is_composite = can_be_taken_apart and (rule is None or not arrives_whole)
    return Traits(name, rule, is_composite, can_be_taken_apart, may_grow)


def convolution_name(args: Arguments) -> str:
    """The name of a convolution's rule, by its dimensions, from its arguments."""
    kind = "conv_transpose" if args[6] else "conv"
    return f"{kind}{args[0].dim() - 2}d"
