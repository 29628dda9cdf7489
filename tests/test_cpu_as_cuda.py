"""A pass on the CPU is counted as CUDA's: what `meta` shows, the CPU shows as well."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from both_engines import LATENT, small_directory
from drawn_passes import TWO, UNLIMITED, drawn
from sampling import first, sampled
from torch import nn
from tracing import Net

from dsocr_analyze.model.forward import running
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.trace.passes import trace_passes
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.recorder import Recorder

DEVICES = ("meta", "cpu")


def traced(function, device: str, *shape: int, dtype=torch.float32) -> Trace:
    """A function of an input, beside a parameter that shows the model's device."""
    parameter = nn.Parameter(torch.zeros(2, device=device), requires_grad=False)
    model = Net(lambda self, x: function(x), parameter=parameter)
    x = torch.zeros(shape, dtype=dtype, device=device)
    with running(torch.device(device)), Recorder(model, with_levels=True) as recorder:
        trace = recorder.begin()
        kept = model(x)
    del kept
    assert not trace.unknown
    return trace


def found(*given, **options) -> tuple[str, list[int]]:
    """Operators and levels of `traced`."""
    trace = traced(*given, **options)
    operators = " ".join(kernel.operator for kernel in trace.kernels)
    return operators, [level.nbytes for level in trace.levels]


def counted(x, ask):
    """Asks for a tensor of the device, which dies there."""
    counts = torch.ones_like(x, dtype=torch.int64)
    counts = ask(counts)
    return x * 2, counts


def attended(x):
    return F.scaled_dot_product_attention(x, x, x).transpose(1, 2).reshape(1, 7, 8)


def normed(x):
    zeros, ones = x.new_zeros(8), x.new_ones(8)
    return F.batch_norm(x, zeros, ones)


# Each case: a function, the operators that it runs, and bytes alive after each piece of memory.
HOST = {
    "made without a device, it runs and takes no memory of it": (
        lambda x: x + torch.arange(3).sum(), "arange sum add", [20],
    ),
    "made on the device: arange": (lambda x: torch.arange(3, device=x.device), "arange", [24]),
    "made on the device: ones": (lambda x: torch.ones(6, device=x.device), "ones", [24]),
    "made of the device's": (lambda x: x.new_ones(3, dtype=torch.int64), "new_ones", [24]),
    "what follows from the host alone stays there": (
        lambda x: (torch.ones(3, device="cpu") * 2).cumsum(0), "ones mul cumsum", [],
    ),
    "what is made of numbers too": (
        lambda x: (torch.tensor([1.0, 2.0, 3.0]) * 2).cumsum(0), "mul cumsum", [],
    ),
    "a move to the device is a transfer into a tensor of its own": (
        lambda x: torch.arange(3).to(x.device) + 1, "arange transfer add", [24, 48],
    ),
    "it may cast, to a tensor": (lambda x: torch.arange(3).to(x), "arange transfer", [12]),
    "or its type": (lambda x: torch.arange(3).type_as(x), "arange transfer", [12]),
    "or a type": (
        lambda x: torch.arange(3).to(device=x.device, dtype=torch.float32),
        "arange transfer", [12],
    ),
    "what the host asks for dies on the device": (
        lambda x: counted(x, torch.Tensor.cpu), "ones_like transfer mul", [40, 20],
    ),
    "by name": (
        lambda x: counted(x, lambda counts: counts.to("cpu")), "ones_like transfer mul", [40, 20],
    ),
    "or by a tensor": (
        lambda x: counted(x, lambda counts: counts.to(torch.zeros(3))),
        "ones_like zeros transfer mul", [40, 20],
    ),
    # Whatever the tensor holds: it is not asked for its truth.
    "what is made of the device's tensor stays there": (
        lambda x: torch.asarray(x * 2) + 1, "mul add", [20, 40],
    ),
    "a copy into the other's tensor is a transfer": (
        lambda x: torch.zeros_like(x).copy_(torch.ones(5)), "zeros_like ones transfer", [20],
    ),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("function", "operators", "levels"), HOST.values(), ids=HOST)
def test_what_is_on_the_host_and_what_on_the_device(function, operators, levels, device):
    assert found(function, device, 5) == (operators, levels)


@pytest.mark.parametrize("device", DEVICES)
def test_a_transfer_has_the_types_of_both(device):
    _, transfer = traced(lambda x: torch.arange(3).to(x), device, 5).kernels
    assert (transfer.dtype, transfer.output_dtype) == ("int64", "float32")


def test_on_a_cpu_no_name_tells_a_device_of_its_own_from_the_host():
    cpu = torch.device("cpu")
    assert found(lambda x: torch.arange(3, device=cpu), "cpu", 5) == ("arange", [24])
    assert found(lambda x: torch.from_numpy(np.ones(3)) * 2, "cpu", 5) == ("mul", [24])
    assert found(lambda x: x.to(cpu) + 1, "cpu", 5) == ("add", [20])
    named = found(lambda x: torch.as_tensor(x * 2, device="cpu") + 1, "cpu", 5)
    assert named == ("mul add", [20, 40])


# Each case: a function, its input's shape and type, its operators, and the levels.
KERNELS = {
    "attention is laid out so that merging heads is a view, without log-sum-exp": (
        attended, (1, 2, 7, 4), torch.float32, "scaled_dot_product_attention", [4 * 56],
    ),
    "a number that is written is a tensor first": (
        lambda x: x.__setitem__(([0, 1],), 0.0), (4, 6), torch.float32,
        "scalar_tensor index_put", [4],
    ),
    "also to an element": (
        lambda x: x.__setitem__((0, 1), 0.0), (4, 6), torch.float32, "scalar_tensor copy", [4],
    ),
    **{
        f"statistics of a layer norm are fp32: {dtype}": (
            lambda x: F.layer_norm(x, (8,)), (6, 8), dtype, "native_layer_norm",
            [48 * dtype.itemsize, 48 * dtype.itemsize + 24, 48 * dtype.itemsize + 48],
        )
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    },
    "those of a batch norm are there even if it applies others": (
        normed, (6, 8), torch.bfloat16, "new_zeros new_ones native_batch_norm",
        [16, 32, 32 + 96, 32 + 96 + 32, 32 + 96 + 64],
    ),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("function", "shape", "dtype", "operators", "levels"), KERNELS.values(), ids=KERNELS
)
def test_kernels_are_those_of_cuda(function, shape, dtype, operators, levels, device):
    assert found(function, device, *shape, dtype=dtype) == (operators, levels)


@pytest.mark.parametrize(("device", "name"), [("meta", "copy"), ("cpu", "fill")])
def test_a_number_that_is_written_to_a_slice_is_a_tensor_first(device, name):
    """Which the CPU then fills the slice with."""
    written = found(lambda x: x.__setitem__(slice(1, 3), 0.0), device, 4, 6)
    assert written == (f"scalar_tensor {name}", [4])


# --- whole models ----------------------------------------------------------------------------

_CUT = {"page": (350, 200), "base_size": 128, "image_size": 64, "text_tokens": 5}
_YARN = {**LATENT, "rope_scaling": {"type": "yarn", "factor": 2.0}}
_TUNED = {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 16}
_CASES = [
    pytest.param(lambda: small_directory(), _CUT, id="deepseek-ocr"),
    pytest.param(lambda: small_directory(**_YARN), _CUT | {"batch_size": 3}, id="latent"),
    pytest.param(lambda: small_directory(**LATENT, **_TUNED), _CUT, id="tuned"),
    pytest.param(lambda: drawn(2, TWO).directory, drawn(2, TWO).workload, id="deepseek-ocr-2"),
    pytest.param(lambda: drawn(0, UNLIMITED).directory, _CUT, id="unlimited-ocr"),
    pytest.param(lambda: drawn(1, UNLIMITED).directory, _CUT | {"batch_size": 2}, id="batch"),
]


@sampled("dtype", ["bfloat16", "float16", "float32"], first(1))
@sampled(("build", "page"), _CASES, first(1))
def test_every_record_and_every_level_is_that_on_meta(build, page, dtype):
    directory, found = build(), []
    for device in DEVICES:
        session = DeepSeekOCRSession.from_directory(directory, device=device, dtype=dtype)
        workload = session.plan(**page, max_new_tokens=3) if isinstance(page, dict) else page
        assert session.figures(workload)[1].agrees
        recorder = partial(Recorder, with_levels=True)
        passes = trace_passes(
            session.loaded, workload, session.architecture, step_numbers=(0, 1),
            recorder_type=recorder,
        )  # fmt: skip
        found.append([passes.prefill, *passes.decode_steps])
    for one, other in zip(*found, strict=True):
        assert (one.kernels, one.levels, one.peak) == (other.kernels, other.levels, other.peak)
        assert not other.unknown
