"""Operators on meta whose output depends on values: as on the CPU, where those are known."""

from __future__ import annotations

import pytest
import torch

from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.forward import running
from dsocr_analyze.trace.recorder import Recorder

META, CPU = torch.device("meta"), torch.device("cpu")

FUNCTIONS = {
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


def recorded(function):
    """A trace of a call, and what it returns."""
    model = torch.nn.Module()
    model.forward = function
    with Recorder(model) as recorder:
        trace = recorder.begin()
        output = model()
    assert not trace.unknown
    return trace, output


def arguments(device):
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    values = mask.tolist()
    return torch.tensor(values, device=device), torch.ones(3, 3, device=device).mul(0.5)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("is_recorded", [False, True])
def test_the_shape_is_the_cpus(name, is_recorded):
    function = FUNCTIONS[name]
    expected = function(*arguments(CPU))
    with running(META):
        given = arguments(META)
        found = recorded(lambda: function(*given))[1] if is_recorded else function(*given)
    assert (found.device, found.shape, found.dtype) == (META, expected.shape, expected.dtype)


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


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped product")
@pytest.mark.parametrize("rows", [2, 4, 12])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_grouped_product_counts_every_row_once(rows, dtype):
    """[M, 16] x [4, 16, 8]: 128 MACs a row; it reads as many matrices as rows can touch."""
    with running(META):
        left = torch.empty(rows, 16, dtype=dtype, device=META)
        right = torch.empty(4, 16, 8, dtype=dtype, device=META)
        ends = torch.tensor([rows] * 4, dtype=torch.int32, device=META)
        trace, output = recorded(lambda: torch._grouped_mm(left, right, offs=ends))
    assert output.shape == (rows, 8)
    [kernel] = trace.kernels
    assert kernel.total.macs == rows * 16 * 8
    elements = rows * 16 + min(rows, 4) * 16 * 8
    assert kernel.total.bytes_read == elements * dtype.itemsize + 4 * 4
    assert kernel.total.bytes_written == rows * 8 * dtype.itemsize
