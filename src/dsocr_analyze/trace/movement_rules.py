"""Rules of operators that move bytes: copies, constants, and indexed reads and writes."""

from __future__ import annotations

import math
from functools import partial
from typing import Final

import torch

from dsocr_analyze.trace.call import (
    Call,
    Count,
    Rule,
    all_outputs,
    first_output,
    inputs_but_first,
    nothing,
    occupied_bytes,
)

__all__ = ["MOVEMENT_RULES"]


def _source(call: Call) -> int:
    """The last tensor: the only one of a `_to_copy`; in a `copy_` it follows the target."""
    return occupied_bytes(call.tensors()[-1])


def _taken(call: Call) -> int:
    """As much as is written, but each input element at most once."""
    return min(occupied_bytes(call.args[0]), all_outputs(call))


def _parameters(call: Call) -> int:
    """Every tensor except the overwritten one."""
    overwritten = call.outputs[0] if _is_in_place(call) else None
    return sum(occupied_bytes(tensor) for tensor in call.tensors() if tensor is not overwritten)


def _gathered(call: Call) -> int:
    """The rows taken and the indices; the rest of the table is not read."""
    return first_output(call) + inputs_but_first(call)


def _is_in_place(call: Call) -> bool:
    return bool(call.args) and call.outputs[0] is call.args[0]


def _written(reached: Count, call: Call) -> int:
    """Bytes written: only what is reached if in place, otherwise a whole copy."""
    return reached(call) if _is_in_place(call) else first_output(call)


def _reads(values: Count, added_to: Count, call: Call) -> int:
    """Bytes read: indices, values, and the part of the target that is added to or copied."""
    target = added_to(call) if _is_in_place(call) else occupied_bytes(call.args[0])
    return values(call) + target


def _put_reads(call: Call) -> int:
    added_to = _put if call.argument(3, "accumulate") else nothing
    return _reads(inputs_but_first, added_to, call)


def _scattered(call: Call) -> int:
    """As many elements of the target as there are indices; the rest stays untouched."""
    return int(call.args[2].numel()) * int(call.args[0].element_size())


def _scatter_values(call: Call) -> int:
    """The indices, and one source element for each (the source may be larger)."""
    index, source = call.args[2], call.argument(3, "src")
    read = occupied_bytes(index)
    if isinstance(source, torch.Tensor):
        read += min(int(index.numel()) * source.element_size(), occupied_bytes(source))
    return read


def _added_rows(call: Call) -> int:
    """As many elements of the target as the source has."""
    return int(call.args[3].numel()) * int(call.args[0].element_size())


def _filled_rows(call: Call) -> int:
    """The rows of the target selected by the indices."""
    target, dim, index = call.args[:3]
    length = int(target.shape[dim]) if target.dim() else 1
    row = target.numel() // length if length else 0
    return int(index.numel()) * row * int(target.element_size())


def _put(call: Call) -> int:
    """Rows written through indices: the size of the values, broadcast to the indexed rows."""
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


MOVEMENT_RULES: Final[list[tuple[Rule, str]]] = [
    (
        Rule("movement", "reads its inputs and writes its outputs; computes nothing"),
        "clone _to_copy contiguous cat stack constant_pad_nd reflection_pad1d reflection_pad2d"
        " reflection_pad3d replication_pad1d replication_pad2d replication_pad3d repeat roll flip"
        " rot90 im2col col2im masked_fill masked_scatter masked_select repeat_interleave one_hot"
        " nonzero nonzero_static bincount histc _reshape_copy pixel_shuffle pixel_unshuffle"
        " channel_shuffle block_diag diag_embed complex _chunk_cat select_scatter slice_scatter"
        " diagonal_scatter as_strided_scatter",
    ),
    (
        Rule(
            "movement",
            "a copied view: reads as much as it writes, at most the whole input",
            bytes_read=_taken,
        ),
        "alias_copy as_strided_copy detach_copy diagonal_copy expand_copy narrow_copy permute_copy"
        " select_copy slice_copy split_copy split_with_sizes_copy squeeze_copy t_copy"
        " transpose_copy unbind_copy unfold_copy unsqueeze_copy view_copy view_as_real_copy"
        " view_as_complex_copy",
    ),
    (
        Rule("movement", "reads the source and writes the target", bytes_read=inputs_but_first),
        "copy",
    ),
    (
        Rule(
            "movement",
            "to another device: reads the source there and writes the target here",
            bytes_read=_source,
        ),
        "transfer",
    ),
    (
        Rule("movement", "enlarged memory: its old contents are read and written once"),
        "grow",
    ),
    (
        Rule("movement", "writes a constant", bytes_read=nothing),
        "zeros ones full arange zeros_like ones_like full_like new_zeros new_ones new_full"
        " zero eye scalar_tensor rand randn randint randperm rand_like"
        " randn_like randint_like tril_indices triu_indices",
    ),
    (
        Rule("movement", "writes a constant, which may be a tensor", bytes_read=inputs_but_first),
        "fill",
    ),
    (
        Rule(
            "movement",
            "writes a range or random numbers; reads their bounds or parameters",
            bytes_read=_parameters,
        ),
        "linspace logspace normal uniform bernoulli poisson exponential cauchy log_normal geometric"
        " random",
    ),
    (
        # Each takes the table first, as in `embedding(weight, indices)`.
        Rule(
            "movement",
            "reads the rows it takes and the indices, not the whole table",
            bytes_read=_gathered,
            bytes_written=first_output,
        ),
        "index index_select gather take_along_dim take embedding",
    ),
    (
        Rule(
            "movement",
            "reads the indices and the values, writes what they reach",
            bytes_read=partial(_reads, _scatter_values, nothing),
            bytes_written=partial(_written, _scattered),
        ),
        "scatter",
    ),
    (
        Rule(
            "movement",
            "reads the indices and the values, writes the rows they reach",
            bytes_read=partial(_reads, inputs_but_first, nothing),
            bytes_written=partial(_written, _filled_rows),
        ),
        "index_copy index_fill",
    ),
    (
        Rule(
            "movement",
            "reads the indices and the values, writes the rows they reach",
            bytes_read=_put_reads,
            bytes_written=partial(_written, _put),
        ),
        "index_put _index_put_impl",
    ),
    (
        Rule(
            "elementwise",
            "one addition per index; reads and writes what they reach",
            vector_flops=lambda call: int(call.args[2].numel()),
            bytes_read=partial(_reads, _scatter_values, _scattered),
            bytes_written=partial(_written, _scattered),
        ),
        "scatter_add scatter_reduce",
    ),
    (
        Rule(
            "elementwise",
            "one addition per source element; reads and writes what they reach",
            vector_flops=lambda call: int(call.args[3].numel()),
            bytes_read=partial(_reads, inputs_but_first, _added_rows),
            bytes_written=partial(_written, _added_rows),
        ),
        "index_add",
    ),
]
"""Rules, and the names of the operators that each covers."""
