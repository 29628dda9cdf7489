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
from dsocr_analyze.running.torch_calls import Operator
from dsocr_analyze.trace.call import Call, Rule, occupied_bytes, output_elements
from dsocr_analyze.trace.matrix_rules import MATRIX_RULES
from dsocr_analyze.trace.movement_rules import MOVEMENT_RULES
from dsocr_analyze.trace.vector_rules import VECTOR_RULES, complex_rule

__all__ = ["COMPOSITE", "FREE", "RULES", "Traits", "kernels_of", "traits_of"]

RULES: Final[dict[str, Rule]] = {
    name: rule
    for rule, names in (*MATRIX_RULES, *VECTOR_RULES, *MOVEMENT_RULES)
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


def kernels_of(name: str, rule: Rule | None, call: Call) -> list[Kernel] | None:
    """The kernel records of one call under its rule, not yet assigned to a module.

    Copies of operands come first. None without a rule, or if it does not cover complex numbers and
    there are some.
    """
    output, tensors = call.outputs[0], call.tensors()
    if rule is not None and any(map(torch.is_complex, (*call.outputs, *tensors))):
        rule = complex_rule(name, rule)
    if rule is None:
        return None
    copies = []
    for operand in tensors:
        # Layer norm copies what is not contiguous first, on every device (`expect_contiguous` in
        # `layer_norm_cpu` and `layer_norm_cuda` of ATen).
        if name == "native_layer_norm" and not operand.is_contiguous():
            elements, dtype = operand.numel(), _name_of(operand.dtype)
            written = elements * operand.element_size()
            work = Work(bytes_read=occupied_bytes(operand), bytes_written=written)
            copies.append(Kernel("movement", "clone", Elements(elements), dtype, dtype, work))
    # A copy reads its source, which `copy_` takes last; other operators read the first tensor.
    read = tensors[-1:] if name in ("copy", "transfer") else tensors
    kernel = Kernel(
        kind=rule.kind,
        operator=name,
        dimensions=rule.dimensions(call),
        dtype=_name_of((read[0] if read else output).dtype),
        output_dtype=_name_of(output.dtype),
        work=Work(
            macs=rule.macs(call) if rule.macs else 0,
            vector_flops=rule.vector_flops(call),
            activations=output_elements(call) if rule.macs else 0,
            bytes_read=rule.bytes_read(call),
            bytes_written=rule.bytes_written(call),
        ),
    )
    return [*copies, kernel]


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
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    can_be_taken_apart = has_kernel(func.name(), COMPOSITE)
    arrives_whole = has_kernel(func.name(), torch._C.DispatchKey.Autograd)
    may_grow = name.startswith("resize") or any(
        argument.kwarg_only and argument.alias_info is not None and argument.alias_info.is_write
        for argument in func._schema.arguments
    )
    is_composite = can_be_taken_apart and (rule is None or not arrives_whole)
    return Traits(name, rule, is_composite, can_be_taken_apart, may_grow)
