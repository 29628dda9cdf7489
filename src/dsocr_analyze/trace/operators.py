"""The operator table: what each operator costs, by rules with reasons.

Names are PyTorch's, without overload and in-place suffix (`aten::add_.Tensor` is `add`). fvcore's
handles count what they count correctly. An operator is

* counted: by a rule in `RULES` (a copy computes nothing but moves bytes);
* free: in `FREE`, as it neither computes nor moves anything on the device;
* unknown: reported, never guessed.
"""

import math
import traceback
from functools import cache, partial
from itertools import filterfalse, zip_longest
from operator import attrgetter
from typing import Final, NamedTuple, NoReturn

import torch

from dsocr_analyze.errors import UncountableError
from dsocr_analyze.kernels import Elements, Kernel, Work
from dsocr_analyze.model.process_settings import SEQUENCES, Arguments, Operator
from dsocr_analyze.trace.matrix_rules import MATRIX_RULES
from dsocr_analyze.trace.rules import (
    VECTOR_RULES,
    Call,
    Count,
    Rule,
    all_outputs,
    complex_rule,
    first_output,
    inputs_but_first,
    nothing,
    occupied_bytes,
)

# --- operators that move bytes: copies, constants, and indexed reads and writes ---------------


def _parameters(call: Call) -> int:
    """Every tensor except the overwritten one."""
    overwritten = call.outputs[0] if _is_in_place(call) else None
    return sum(occupied_bytes(tensor) for tensor in call.tensors if tensor is not overwritten)


def _is_in_place(call: Call) -> bool:
    return bool(call.args) and call.outputs[0] is call.args[0]


def _written(reached: Count, call: Call) -> int:
    """Only what is reached if in place, otherwise a whole copy."""
    return reached(call) if _is_in_place(call) else first_output(call)


def _reads(values: Count, added_to: Count, call: Call) -> int:
    """Indices, values, and what is added to or copied of the target."""
    target = added_to(call) if _is_in_place(call) else occupied_bytes(call.args[0])
    return values(call) + target


def _put_reads(call: Call) -> int:
    added_to = _put if call.argument(3, "accumulate") else nothing
    return _reads(inputs_but_first, added_to, call)


def _scattered(call: Call) -> int:
    """As many elements of the target as there are indices."""
    return int(call.args[2].numel()) * int(call.args[0].element_size())


def _scatter_values(call: Call) -> int:
    """The indices, and one source element for each."""
    index, source = call.args[2], call.argument(3, "src")
    read = occupied_bytes(index)
    if isinstance(source, torch.Tensor):
        read += min(int(index.numel()) * source.element_size(), occupied_bytes(source))
    return read


def _added_rows(call: Call) -> int:
    """As many elements of the target as the source has."""
    return int(call.args[3].numel()) * int(call.args[0].element_size())


def _filled_rows(call: Call) -> int:
    """The target's rows at the indices."""
    target, dim, index = call.args[:3]
    length = int(target.shape[dim]) if target.dim() else 1
    row = target.numel() // length if length else 0
    return int(index.numel()) * row * int(target.element_size())


def _put(call: Call) -> int:
    """The size of the values, broadcast to the indexed rows."""
    target, indices = call.args[0], [*filter(torch.is_tensor, call.args[1])]
    if {torch.bool, torch.uint8} & {*map(attrgetter("dtype"), indices)}:
        return occupied_bytes(target)
    sizes = zip_longest(*(reversed(each.shape) for each in indices), fillvalue=1)
    elements = math.prod(max(each) if min(each) else 0 for each in sizes)
    for index, size in zip_longest(call.args[1], target.shape):
        if index is None:
            elements *= size
    return int(elements * target.element_size())


_MOVEMENT_RULES: Final[list[tuple[Rule, str]]] = [
    # reads its inputs and writes its outputs; computes nothing
    (
        Rule("movement"),
        "clone _to_copy contiguous cat stack constant_pad_nd reflection_pad1d reflection_pad2d"
        " reflection_pad3d replication_pad1d replication_pad2d replication_pad3d repeat roll flip"
        " rot90 im2col col2im masked_fill masked_scatter masked_select repeat_interleave one_hot"
        " nonzero nonzero_static bincount histc _reshape_copy pixel_shuffle pixel_unshuffle"
        " channel_shuffle block_diag diag_embed complex _chunk_cat select_scatter slice_scatter"
        " diagonal_scatter as_strided_scatter",
    ),
    # a copied view: reads as much as it writes, at most the whole input
    (
        Rule(
            "movement", bytes_read=lambda call: min(occupied_bytes(call.args[0]), all_outputs(call))
        ),
        "alias_copy as_strided_copy detach_copy diagonal_copy expand_copy narrow_copy permute_copy"
        " select_copy slice_copy split_copy split_with_sizes_copy squeeze_copy t_copy"
        " transpose_copy unbind_copy unfold_copy unsqueeze_copy view_copy view_as_real_copy"
        " view_as_complex_copy",
    ),
    # reads the source and writes the target
    (Rule("movement", bytes_read=inputs_but_first), "copy"),
    # to another device: reads the source there and writes the target here
    (Rule("movement", bytes_read=lambda call: occupied_bytes(call.tensors[-1])), "transfer"),
    # enlarged memory: its old contents are read and written once
    (Rule("movement"), "grow"),
    # writes a constant
    (
        Rule("movement", bytes_read=nothing),
        "zeros ones full arange zeros_like ones_like full_like new_zeros new_ones new_full"
        " zero eye scalar_tensor rand randn randint randperm rand_like"
        " randn_like randint_like tril_indices triu_indices",
    ),
    # writes a constant, which may be a tensor
    (Rule("movement", bytes_read=inputs_but_first), "fill"),
    # writes a range or random numbers; reads their bounds or parameters
    (
        Rule("movement", bytes_read=_parameters),
        "linspace logspace normal uniform bernoulli poisson exponential cauchy log_normal geometric"
        " random",
    ),
    # reads the rows it takes and the indices, not the whole table
    # Each takes the table first, as in `embedding(weight, indices)`.
    (
        Rule(
            "movement",
            bytes_read=lambda call: first_output(call) + inputs_but_first(call),
            bytes_written=first_output,
        ),
        "index index_select gather take_along_dim take embedding",
    ),
    # reads the indices and the values, writes what they reach
    (
        Rule(
            "movement",
            bytes_read=partial(_reads, _scatter_values, nothing),
            bytes_written=partial(_written, _scattered),
        ),
        "scatter",
    ),
    # reads the indices and the values, writes the rows they reach
    (
        Rule(
            "movement",
            bytes_read=partial(_reads, inputs_but_first, nothing),
            bytes_written=partial(_written, _filled_rows),
        ),
        "index_copy index_fill",
    ),
    # reads the indices and the values, writes the rows they reach
    (
        Rule("movement", bytes_read=_put_reads, bytes_written=partial(_written, _put)),
        "index_put _index_put_impl",
    ),
    # one addition per index; reads and writes what they reach
    (
        Rule(
            "elementwise",
            vector_flops=lambda call: int(call.args[2].numel()),
            bytes_read=partial(_reads, _scatter_values, _scattered),
            bytes_written=partial(_written, _scattered),
        ),
        "scatter_add scatter_reduce",
    ),
    # one addition per source element; reads and writes what they reach
    (
        Rule(
            "elementwise",
            vector_flops=lambda call: int(call.args[3].numel()),
            bytes_read=partial(_reads, inputs_but_first, _added_rows),
            bytes_written=partial(_written, _added_rows),
        ),
        "index_add",
    ),
]
"""Rules, and the names of the operators that each covers."""


# --- the tables ------------------------------------------------------------------------------

RULES: Final = {
    name: rule
    for rule, names in (*MATRIX_RULES, *VECTOR_RULES, *_MOVEMENT_RULES)
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
    """The kernels of one call under its rule, without a path: copies of operands, then its own.

    None without a rule, or for complex numbers that it does not cover.
    """
    output, tensors = call.outputs[0], call.tensors
    if rule is not None and any(map(torch.is_complex, (*call.outputs, *tensors))):
        rule = complex_rule(name, rule)
    if rule is None:
        return None
    # Layer norm copies what is not contiguous first, on every device (`expect_contiguous` in
    # `layer_norm_cpu` and `layer_norm_cuda` of ATen).
    copied = [] if name != "native_layer_norm" else tensors
    copies = list[Kernel]()
    for operand in filterfalse(torch.Tensor.is_contiguous, copied):
        elements, dtype = operand.numel(), _name_of(operand.dtype)
        nbytes = elements * operand.element_size()
        work = Work(bytes_read=occupied_bytes(operand), bytes_written=nbytes)
        copies.append(Kernel("movement", "clone", Elements(elements), dtype, dtype, work))
    # A copy reads its source, which `copy_` takes last; other operators read the first tensor.
    read = tensors[-1:] if name in ("copy", "transfer") else tensors
    kernel = Kernel(
        kind=rule.kind,
        operator=name,
        dimensions=rule.dimensions(call) if rule.dimensions else Elements(output.numel()),
        dtype=_name_of((read[0] if read else output).dtype),
        output_dtype=_name_of(output.dtype),
        work=Work(
            macs=rule.macs(call) if rule.macs else 0,
            vector_flops=rule.vector_flops(call),
            activations=output.numel() if rule.macs else 0,
            bytes_read=rule.bytes_read(call),
            bytes_written=rule.bytes_written(call),
        ),
    )
    return [*copies, kernel]


@cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- operators as PyTorch dispatches them --------------------------------------------------------

COMPOSITE: Final = torch._C.DispatchKey.CompositeImplicitAutograd


class Traits(NamedTuple):
    """What decides how a dispatched operator is recorded."""

    name: str
    """Without overload and in-place suffix; with its library's prefix unless that is ATen."""
    rule: Rule | None
    is_composite: bool
    """Whether PyTorch decomposes it earlier; it arrives here whole only in inference mode."""
    can_be_taken_apart: bool
    """Likewise, or it arrives whole in any mode and is counted as called."""
    may_grow: bool
    """Whether it may enlarge the memory of an argument, as with `out=` or `resize_`."""


@cache
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
    may_grow = name.startswith("resize")
    for argument in func._schema.arguments:
        alias = argument.alias_info
        may_grow |= argument.kwarg_only and alias is not None and alias.is_write
    is_composite = can_be_taken_apart and (rule is None or not arrives_whole)
    return Traits(name, rule, is_composite, can_be_taken_apart, may_grow)


# --- what cannot be counted is refused by name: no figure is better than a wrong one ------------


def refuse_uncountable(where: str, values: Arguments) -> None:
    """Raises UncountableError for nested, sparse, quantized or wrapping tensors, also in lists.

    `where` says whose they are.
    """
    for value in values:
        if not isinstance(value, torch.Tensor):
            if isinstance(value, SEQUENCES):
                refuse_uncountable(where, value)
            continue
        kind, refused = type(value), ""
        own_dispatch = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        if value.is_nested:
            refused = "nested tensors are not counted; pad them (torch.nested.to_padded_tensor)"
        elif own_dispatch and kind.__name__ != "FakeTensor":  # on tensors that a trace cannot see
            refused = f"tensors of type {kind.__name__} are not counted; use the tensors they wrap"
        elif value.layout is not torch.strided:
            refused = (
                f"tensors of layout {value.layout} are not counted; use dense ones (to_dense())"
            )
        elif value.is_quantized:
            refused = (
                f"tensors of {value.dtype} are not counted; use dequantized ones (dequantize())"
            )
        if refused:
            raise UncountableError(f"{where}: {refused}")


# --- operators that take functions -----------------------------------------------------------


def refuse_higher_order(name: str) -> NoReturn:
    """Raises UncountableError for an operator that takes functions."""
    if name == "flex_attention":
        raise UncountableError(
            "flex_attention is not counted: the trace does not see inside its score function; use"
            " torch.nn.functional.scaled_dot_product_attention with a mask (attn_implementation"
            " 'sdpa') or matrix products ('eager')"
        )
    raise UncountableError(
        f"the operator {name} is not counted: the trace does not see inside the functions it"
        " takes; call them directly"
    )


def refuse_functions(error: BaseException) -> None:
    """Raises UncountableError for an error from within such an operator or torch.compile.

    On `meta`, the operator fails before any dispatch.
    """
    if not isinstance(error, Exception) or isinstance(error, UncountableError):
        return
    places = [type(error).__module__]
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__"))
        places[1:] = [module]  # the last
        is_flex = module == "torch.nn.attention.flex_attention"
        if is_flex or module.startswith("torch._higher_order_ops."):
            try:
                refuse_higher_order(frame.f_code.co_name)
            except UncountableError as refusal:
                raise refusal from error
    if any(place.startswith("torch._dynamo.") for place in places):
        raise UncountableError(
            "a graph made by torch.compile is not counted: the trace does not see its operators;"
            " call the function itself, or compile it without fullgraph=True"
        ) from error
