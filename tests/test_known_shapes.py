"""Operators on `meta`: with values where those are known, and not worked out again if equal."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tracing import Calls, trace_of

from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.process_settings import default_dtype
from dsocr_analyze.model.torch_calls import DispatchMode

META, CPU = torch.device("meta"), torch.device("cpu")

# --- whose output depends on values ----------------------------------------------------------

OF_VALUES = {
    "nonzero": lambda mask, x: mask.nonzero(),
    "argwhere": lambda mask, x: torch.argwhere(mask),
    "where": lambda mask, x: torch.where(mask)[1],
    "mask": lambda mask, x: x[mask],
    "mask of rows": lambda mask, x: x[mask.any(1)],
    "mask behind a slice": lambda mask, x: x.t()[:, mask.any(1)],
    "masked_select": lambda mask, x: torch.masked_select(x, mask),
    "masked_select, broadcast": lambda mask, x: torch.masked_select(x, mask[:, :1]),
    "repeats": lambda mask, x: torch.repeat_interleave(x, mask.sum(1), dim=0),
    "one repeat": lambda mask, x: x.repeat_interleave(mask.sum().reshape(1), dim=1),
    "repeats alone": lambda mask, x: torch.repeat_interleave(mask.sum(1)),
    "unique": lambda mask, x: mask.sum(1).unique(),
    "unique_consecutive": lambda mask, x: torch.unique_consecutive(mask.long().flatten()),
    "bincount": lambda mask, x: torch.bincount(mask.sum(1)),
    "arange": lambda mask, x: torch.arange(mask.sum(), device=mask.device),
    "expand": lambda mask, x: x[:, :1].expand(-1, mask.sum()),
    "slice": lambda mask, x: x[mask[0].sum() - 1 :],
    "what a slice asks": lambda mask, x: x[mask[mask.sum() - 4 :].nonzero()[:, 0]],
    "for": lambda mask, x: torch.cat([x[:count] for count in mask.sum(1)]),
}


def arguments(device):
    values = [[True, False, True], [False, False, False], [True, True, True]]
    return torch.tensor(values, device=device), torch.ones(3, 3, device=device).mul(0.5)


@pytest.mark.parametrize("name", OF_VALUES)
@pytest.mark.parametrize("is_recorded", [False, True])
def test_the_shape_is_the_cpus(name, is_recorded):
    expected, found = OF_VALUES[name](*arguments(CPU)), []
    call = Calls(lambda *given: found.append(OF_VALUES[name](*given)))
    with running(META):
        given = arguments(META)
        unknown = trace_of(call, *given).unknown if is_recorded else call(*given)
    assert not unknown
    [output] = found
    assert (output.device, output.shape, output.dtype) == (META, expected.shape, expected.dtype)


def test_values_that_come_of_it_are_known():
    with running(META):
        rows, columns = torch.where(arguments(META)[0])
        numbers = torch.arange(4, device=META)
        found = [each.tolist() for each in (rows, columns[rows == 2], numbers[numbers[2] :])]
    assert found == [[0, 0, 2, 2, 2], [0, 1, 2], [2, 3]]


@pytest.mark.parametrize("function", [lambda x: x.nonzero(), lambda x: x[x > 0], torch.unique])
def test_without_values_it_is_refused_by_name(function):
    with running(META), pytest.raises(ModelCodeError, match="has no values on meta"):
        function(torch.empty(3, device="meta"))


# --- that ran on equal arguments before ------------------------------------------------------


def tensor(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device=META)


def seen(tensor):
    """All that a later operator, or the memory's count, may depend on."""
    memory = tensor.untyped_storage().nbytes()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.storage_offset(), memory


EQUAL = {
    "sum of two types": lambda: tensor(3, 4, dtype=torch.bfloat16) + tensor(4),
    "broadcast": lambda: tensor(3, 1, 5) * tensor(4, 1),
    "of a transposed one": lambda: tensor(3, 4).t() * 2,
    "of a cut one": lambda: tensor(3, 8)[:, ::2].exp(),
    "of a permuted one": lambda: F.gelu(tensor(2, 3, 4, 5).permute(0, 2, 3, 1)),
    "comparison": lambda: tensor(3) > tensor(3),
    "product": lambda: tensor(2, 3, 4) @ tensor(2, 4, 5),
    "linear": lambda: F.linear(tensor(2, 3, 4), tensor(5, 4), tensor(5)),
    "convolution": lambda: F.conv2d(tensor(1, 3, 8, 8), tensor(4, 3, 2, 2), stride=2),
    "channels last": lambda: F.conv2d(
        tensor(1, 3, 8, 8).contiguous(memory_format=torch.channels_last), tensor(4, 3, 2, 2)
    ),
    "attention": lambda: F.scaled_dot_product_attention(*[tensor(1, 2, 6, 8)] * 3, is_causal=True),
    "layer norm": lambda: torch.native_layer_norm(tensor(3, 4), (4,), None, None, 1e-5),
    "softmax": lambda: tensor(3, 4, dtype=torch.float16).softmax(-1, dtype=torch.float32),
    "two outputs": lambda: tensor(3, 9).topk(2),
    "join": lambda: torch.cat([tensor(2, 3), tensor(4, 3)]),
    "stack": lambda: torch.stack([tensor(2, 3)] * 3, 1),
    "gather": lambda: tensor(9, 4)[tensor(5, dtype=torch.long)],
    "mean": lambda: tensor(3, 4, 5).mean((0, 2), keepdim=True),
    "resized": lambda: F.interpolate(tensor(1, 2, 4, 4), (7, 3), mode="bicubic", antialias=True),
    "padding": lambda: F.pad(tensor(2, 3), (1, 2)),
    "a new one": lambda: torch.full((2, 3), 7, device=META),
    "a range": lambda: torch.arange(2, 11, 3, device=META),
    "a cast": lambda: tensor(3).to(torch.float64),
    "a copy": lambda: tensor(4, 6).t().clone(),
    "dropout": lambda: F.dropout(tensor(3, 4), 0.5),
    "views": lambda: tensor(6, 4).view(3, 8)[1:].transpose(0, 1).chunk(2),
    "split": lambda: tensor(6, 4).split([2, 4]),
    "in place": lambda: tensor(3).add_(1).mul_(2),
    "into another": lambda: torch.add(tensor(3), 1, out=tensor(3)),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
@pytest.mark.parametrize("inference", [False, True])
def test_it_is_the_output_that_torch_works_out(name, inference):
    def run():
        found = EQUAL[name]()
        return [*map(seen, found if isinstance(found, tuple | list) else [found])]

    expected = run()
    with torch.inference_mode(inference), running(META):
        assert [run() for _ in range(3)] == [expected] * 3


@pytest.fixture
def library():
    with torch.library._scoped_library("known_outputs_tests", "FRAGMENT") as made:
        yield made


def test_a_call_with_equal_arguments_is_not_worked_out_again(library):
    shapes = []
    library.define("seen(Tensor x) -> Tensor")
    library.impl("seen", lambda x: shapes.append(x.shape) or torch.empty_like(x), "Meta")
    with running(META):
        for size in (3, 3, 4, 3, 4):
            assert torch.ops.known_outputs_tests.seen(tensor(size, 17)).shape == (size, 17)
    assert shapes == [(3, 17), (4, 17)]


def test_an_output_that_is_undefined_stays_so(library):
    library.define("half(Tensor x) -> (Tensor, Tensor)")
    library.impl("half", lambda x: (torch.empty_like(x), None), "Meta")
    with running(META):
        for _ in range(3):
            defined, undefined = torch.ops.known_outputs_tests.half(tensor(3, 19))
            assert (defined.shape, undefined) == ((3, 19), None)


def test_memory_beyond_what_is_shown_is_not_forgotten():
    """A custom operator may return part of what it allocated."""
    part = torch.library.custom_op(
        "known_outputs_tests::part", lambda x: x.new_empty(10)[:3], mutates_args=(),
        schema="(Tensor x) -> Tensor",
    )  # fmt: skip
    part.register_fake(lambda x: x.new_empty(10)[:3])
    with running(META):
        sizes = [part(tensor(2)).untyped_storage().nbytes() for _ in range(3)]
    assert sizes == [40] * 3


def test_outputs_have_memory_of_their_own_and_views_that_of_what_they_show():
    x = tensor(3, 4)
    with running(META):
        new, views = [x * 2 for _ in range(3)], [x.view(12) for _ in range(3)]
    memories = [each.untyped_storage()._cdata for each in (x, *new, *views)]
    assert len(set(memories[:4])) == 4
    assert memories[4:] == [memories[0]] * 3


def test_the_type_of_a_number_and_the_default_type_are_arguments():
    numbers, defaults = (1, 1.0, True, 1, 1.0), (torch.float32, torch.float64, torch.float32)
    with running(META):
        kinds = [torch.full((2,), value, device=META).dtype for value in numbers]
        found = []
        for dtype in defaults:
            with default_dtype(dtype):
                found.append((torch.ones(2, device=META, dtype=torch.int64) / 2).dtype)
    assert kinds == [torch.int64, torch.float32, torch.bool, torch.int64, torch.float32]
    assert found == [*defaults]


def test_what_is_refused_is_refused_again():
    with running(META):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="reduction dim"):
                tensor(3, 4) @ tensor(3, 4)


def test_whoever_watches_from_outside_sees_every_operator():
    names, x = [], tensor(3)
    with (
        DispatchMode(lambda func, args, _: names.append(func.overloadpacket) or func(*args)),
        running(META),
    ):
        for _ in range(3):
            x.exp()
    assert names == [torch.ops.aten.exp] * 3


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped product")
@pytest.mark.parametrize("rows", [2, 4, 12])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_grouped_product_counts_every_row_once(rows, dtype):
    """[M, 16] x [4, 16, 8]: 128 MACs a row; it reads as many matrices as rows can touch."""
    with running(META):
        left, right = tensor(rows, 16, dtype=dtype), tensor(4, 16, 8, dtype=dtype)
        ends = torch.tensor([rows] * 4, dtype=torch.int32, device=META)
        trace = trace_of(Calls(torch._grouped_mm), left, right, offs=ends)
    [kernel], read = trace.kernels, rows * 16 + min(rows, 4) * 16 * 8
    assert (kernel.total.macs, kernel.total.bytes_read, kernel.total.bytes_written) == (
        rows * 16 * 8, read * dtype.itemsize + 4 * 4, rows * 8 * dtype.itemsize,
    )  # fmt: skip
