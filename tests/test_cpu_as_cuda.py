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

from dsocr_analyze.model.forward import running
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.trace.passes import PassTraces, trace_passes
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.recorder import Recorder

devices = pytest.mark.parametrize("device", ["meta", "cpu"])


class Model(nn.Module):
    """A function of an input, beside a parameter that shows the model's device."""

    def __init__(self, function, device: str) -> None:
        super().__init__()
        self.function = function
        self.parameter = nn.Parameter(torch.zeros(2, device=device), requires_grad=False)

    def forward(self, x):
        return self.function(x)


def traced(function, device: str, *shape: int, dtype=torch.float32) -> Trace:
    model, x = Model(function, device), torch.zeros(shape, dtype=dtype, device=device)
    with running(torch.device(device)), Recorder(model, with_levels=True) as recorder:
        trace = recorder.begin()
        kept = model(x)
    del kept
    assert not trace.unknown
    return trace


def operators(trace: Trace) -> list[str]:
    return [kernel.operator for kernel in trace.kernels]


def levels(trace: Trace) -> list[tuple[str, int]]:
    return [(level.operator, level.nbytes) for level in trace.levels]


class TestHost:
    @devices
    def test_what_is_made_without_a_device_runs_and_takes_no_memory_of_it(self, device):
        trace = traced(lambda x: x + torch.arange(3).sum(), device, 5)
        assert operators(trace) == ["arange", "sum", "add"]
        assert levels(trace) == [("add", 20)]

    @devices
    @pytest.mark.parametrize(
        "make",
        [
            lambda x: torch.arange(3, device=x.device),
            lambda x: torch.ones(3, dtype=torch.int64, device=x.device),
            lambda x: x.new_ones(3, dtype=torch.int64),
        ],
    )
    def test_what_is_made_on_the_device_does(self, device, make):
        assert [nbytes for _, nbytes in levels(traced(make, device, 5))] == [24]

    @devices
    @pytest.mark.parametrize(
        "make", [lambda: torch.ones(3, device="cpu"), lambda: torch.tensor([1.0, 2.0, 3.0])]
    )
    def test_what_follows_from_the_host_alone_stays_there(self, device, make):
        trace = traced(lambda x: (make() * 2).cumsum(0), device, 5)
        assert operators(trace)[-2:] == ["mul", "cumsum"]
        assert levels(trace) == []

    @devices
    def test_a_move_to_the_device_is_a_transfer_into_a_tensor_of_its_own(self, device):
        trace = traced(lambda x: torch.arange(3).to(x.device) + 1, device, 5)
        assert operators(trace) == ["arange", "transfer", "add"]
        assert levels(trace) == [("transfer", 24), ("add", 48)]

    @devices
    @pytest.mark.parametrize(
        "move",
        [
            lambda x: torch.arange(3).to(x),
            lambda x: torch.arange(3).type_as(x),
            lambda x: torch.arange(3).to(device=x.device, dtype=torch.float32),
        ],
    )
    def test_the_transfer_may_cast(self, device, move):
        trace = traced(move, device, 5)
        (_, transfer) = trace.kernels
        assert (transfer.operator, transfer.dtype, transfer.output_dtype) == (
            "transfer", "int64", "float32",
        )  # fmt: skip
        assert levels(trace) == [("transfer", 12)]

    @devices
    @pytest.mark.parametrize("ask", [torch.Tensor.cpu, lambda counts: counts.to("cpu")])
    def test_what_the_host_is_given_dies_on_the_device(self, device, ask):
        def counted(x):
            counts = torch.ones_like(x, dtype=torch.int64)
            counts = ask(counts)
            return x * 2, counts

        trace = traced(counted, device, 5)
        assert operators(trace) == ["ones_like", "transfer", "mul"]
        assert levels(trace) == [("ones_like", 40), ("mul", 20)]

    @devices
    def test_so_does_what_goes_to_where_a_tensor_of_the_host_is(self, device):
        def moved(x):
            counts = torch.ones_like(x)
            counts = counts.to(torch.zeros(3))
            return x * 2, counts

        trace = traced(moved, device, 5)
        assert operators(trace) == ["ones_like", "zeros", "transfer", "mul"]
        assert levels(trace) == [("ones_like", 20), ("mul", 20)]

    @devices
    def test_what_is_made_of_the_devices_tensor_stays_there(self, device):
        """Whatever the tensor holds: it is not asked for its truth."""
        trace = traced(lambda x: torch.asarray(x * 2) + 1, device, 5)
        assert operators(trace) == ["mul", "add"]
        assert levels(trace) == [("mul", 20), ("add", 40)]

    @devices
    def test_a_copy_into_the_others_tensor_is_a_transfer(self, device):
        trace = traced(lambda x: torch.zeros_like(x).copy_(torch.ones(5)), device, 5)
        assert operators(trace) == ["zeros_like", "ones", "transfer"]
        assert levels(trace) == [("zeros_like", 20)]

    def test_on_a_cpu_no_name_tells_a_device_of_its_own_from_the_host(self):
        named = traced(lambda x: torch.arange(3, device=torch.device("cpu")), "cpu", 5)
        assert levels(named) == [("arange", 24)]
        shared = traced(lambda x: torch.from_numpy(np.ones(3)) * 2, "cpu", 5)
        assert levels(shared) == [("mul", 24)]

    def test_parameters_and_inputs_are_the_devices(self):
        trace = traced(lambda x: x.to(torch.device("cpu")) + 1, "cpu", 5)
        assert operators(trace) == ["add"]


class TestKernels:
    @devices
    @pytest.mark.parametrize("index", [([0, 1],), (slice(1, 3),), (0, 1)])
    def test_a_number_that_is_written_is_a_tensor_first(self, device, index):
        def written(x):
            x[index] = 0.0

        trace = traced(written, device, 4, 6)
        assert operators(trace)[0] == "scalar_tensor"
        assert levels(trace) == [("scalar_tensor", 4)]
        assert len(trace.kernels) == 2

    @devices
    def test_attention_is_laid_out_so_that_merging_heads_is_a_view(self, device):
        def attended(x):
            return F.scaled_dot_product_attention(x, x, x).transpose(1, 2).reshape(1, 7, 8)

        trace = traced(attended, device, 1, 2, 7, 4)
        assert operators(trace) == ["scaled_dot_product_attention"]
        assert levels(trace) == [("scaled_dot_product_attention", 4 * 56)]  # no log-sum-exp

    @devices
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
    def test_statistics_of_a_layer_norm_are_fp32(self, device, dtype):
        trace = traced(lambda x: F.layer_norm(x, (8,)), device, 6, 8, dtype=dtype)
        output = 48 * dtype.itemsize
        assert [nbytes for _, nbytes in levels(trace)] == [output, output + 24, output + 48]

    @devices
    def test_those_of_a_batch_norm_are_there_even_if_it_applies_others(self, device):
        def normed(x):
            zeros, ones = x.new_zeros(8), x.new_ones(8)
            return F.batch_norm(x, zeros, ones)

        trace = traced(normed, device, 6, 8, dtype=torch.bfloat16)
        assert levels(trace)[-2:] == [
            ("native_batch_norm", 32 + 96 + 32), ("native_batch_norm", 32 + 96 + 64),
        ]  # fmt: skip


# --- whole models ----------------------------------------------------------------------------

_CUT = {"page": (700, 400), "base_size": 256, "image_size": 128, "text_tokens": 5}
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


def passes(directory, device: str, dtype: str, page: dict) -> tuple[PassTraces, bool]:
    """Both passes, and whether the engines agree."""
    session = DeepSeekOCRSession.from_directory(directory, device=device, dtype=dtype)
    workload = session.plan(**page, max_new_tokens=3) if isinstance(page, dict) else page
    _, agreement = session.figures(workload)
    return (
        trace_passes(
            session.loaded,
            workload,
            session.architecture,
            step_numbers=(0, 1),
            recorder_type=partial(Recorder, with_levels=True),
        ),
        agreement.agrees,
    )


@sampled("dtype", ["bfloat16", "float16", "float32"], first(1))
@sampled(("build", "page"), _CASES, first(1))
def test_every_record_and_every_level_is_that_on_meta(build, page, dtype):
    directory = build()
    on_meta, meta_agrees = passes(directory, "meta", dtype, page)
    on_cpu, cpu_agrees = passes(directory, "cpu", dtype, page)
    assert meta_agrees
    assert cpu_agrees
    there, here = ([each.prefill, *each.decode_steps] for each in (on_meta, on_cpu))
    for one, other in zip(there, here, strict=True):
        assert one.kernels == other.kernels
        assert one.levels == other.levels
        assert one.peak == other.peak
        assert not other.unknown
