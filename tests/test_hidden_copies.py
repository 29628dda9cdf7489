"""Copies that an operator makes on its way: their bytes, and their memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from taped import alone
from torch import nn
from tracing import Calls, meta, trace_of

from dsocr_analyze.dtypes import BFLOAT16, FLOAT16, FLOAT32
from dsocr_analyze.model.forward import running
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.recorder import Recorder

META = torch.device("meta")


def traced(function, *args) -> Trace:
    model = Calls(function)
    with torch.no_grad(), Recorder(model) as recorder:
        trace = recorder.begin()
        kept = model(*args)
    del kept
    assert not trace.unknown
    return trace


def moved(trace: Trace) -> list[tuple[str, int, int]]:
    """Operator, bytes read and bytes written of every kernel."""
    return [(k.operator, k.work.bytes_read, k.work.bytes_written) for k in trace.kernels]


class TestSoftmax:
    def test_a_cast_to_another_type_is_an_operator_with_bytes_and_memory(self):
        trace = traced(
            lambda x: F.softmax(x, -1, dtype=torch.float32), meta(6, 8, dtype=torch.bfloat16)
        )
        assert moved(trace) == [("_to_copy", 96, 192), ("softmax", 192, 192)]
        assert trace.peak.nbytes == 192 + 192

    @pytest.mark.parametrize(
        "call",
        [
            lambda x: torch.softmax(x, -1, torch.float32),
            lambda x: x.softmax(dim=-1, dtype=torch.float32),
            lambda x: F.softmax(x, dim=-1, dtype=torch.float32),
            lambda x: torch.special.softmax(x, -1, dtype=torch.float32),
        ],
    )
    def test_however_it_is_called(self, call):
        trace = traced(call, meta(6, 8, dtype=torch.bfloat16))
        assert moved(trace) == [("_to_copy", 96, 192), ("softmax", 192, 192)]

    def test_log_softmax_alike(self):
        x = meta(6, 8, dtype=torch.bfloat16)
        trace = traced(lambda x: F.log_softmax(x, -1, dtype=torch.float32), x)
        assert moved(trace) == [("_to_copy", 96, 192), ("log_softmax", 192, 192)]

    @pytest.mark.parametrize("device", ["meta", "cpu"])
    def test_half_precision_is_read_as_it_is_as_by_cuda(self, device):
        x = torch.zeros(6, 8, dtype=torch.float16, device=device)
        trace = traced(lambda x: F.softmax(x, -1, dtype=torch.float32), x)
        assert moved(trace) == [("softmax", 96, 192)]
        assert trace.peak.nbytes == 192

    def test_the_same_type_makes_no_copy(self):
        trace = traced(lambda x: F.softmax(x, -1, dtype=torch.float32), meta(6, 8))
        assert moved(trace) == [("softmax", 192, 192)]

    @pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16, FLOAT32], ids=lambda d: d.name)
    def test_the_tape_agrees(self, dtype):
        x = meta(6, 8, dtype=getattr(torch, dtype.name))
        trace = traced(lambda x: F.softmax(x, -1, dtype=torch.float32), x)
        assert trace.kernels == alone(lambda t: t.softmax(t.input(48, dtype), 6, 8)).kernels


class TestProducts:
    def test_a_batch_of_heads_behind_tokens_is_laid_out_anew(self):
        q = meta(2, 7, 5, 4).transpose(1, 2)  # [B, H, T, D], the heads behind the tokens
        k = meta(2, 5, 4, 7)
        trace = traced(torch.matmul, q, k)
        assert moved(trace) == [("clone", 1120, 1120), ("matmul", 1120 + 1120, 4 * 2 * 5 * 49)]
        assert trace.peak.nbytes == 1120 + 4 * 2 * 5 * 49

    def test_one_sequence_needs_no_copy(self):
        trace = traced(torch.matmul, meta(1, 7, 5, 4).transpose(1, 2), meta(1, 5, 4, 7))
        assert [kernel.operator for kernel in trace.kernels] == ["matmul"]

    def test_a_factor_that_is_shared_is_read_once_and_written_for_each(self):
        trace = traced(torch.matmul, meta(2, 5, 7, 4), meta(2, 1, 4, 7))
        assert moved(trace)[0] == ("clone", 4 * 2 * 28, 4 * 10 * 28)

    def test_an_einsum_copies_what_it_permutes(self):
        trace = traced(
            lambda q, r: torch.einsum("bhwc,hkc->bhwk", q, r), meta(3, 4, 4, 2), meta(4, 4, 2)
        )
        assert moved(trace)[0] == ("clone", 4 * 96, 4 * 96)
        assert [kernel.operator for kernel in trace.kernels] == ["clone", "einsum"]


class TestLayerNorm:
    @pytest.mark.parametrize("device", ["meta", "cpu"])
    def test_what_lies_otherwise_is_copied_first(self, device):
        norm = nn.LayerNorm(8, device=device)
        trace = traced(norm, torch.zeros(8, 6, device=device).t())
        assert [kernel.operator for kernel in trace.kernels] == ["clone", "native_layer_norm"]
        assert moved(trace)[0] == ("clone", 192, 192)
        # the copy, the result, and fp32 means and deviations of 6 rows
        assert trace.peak.nbytes == 192 + 192 + 2 * 24

    def test_contiguous_input_is_not(self):
        trace = traced(nn.LayerNorm(8, device="meta"), meta(6, 8))
        assert [kernel.operator for kernel in trace.kernels] == ["native_layer_norm"]


# --- autocast --------------------------------------------------------------------------------


class Mixed(nn.Module):
    """Functions of every kind that autocast knows, under a region for `device`."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16, device=device)
        self.norm = nn.LayerNorm(16, device=device)

    def forward(self, x, region):
        with region:
            y = self.linear(x)
            y = self.linear(x)
            return y, y @ y.mT, self.norm(y), torch.softmax(y, -1), torch.cat([y, self.norm(y)], -1)


def under_autocast(device: str, region) -> tuple[Trace, list[torch.dtype]]:
    module, x = Mixed(device), torch.zeros(4, 8, device=device)
    with running(torch.device(device)), Recorder(module) as recorder:
        trace = recorder.begin()
        outputs = module(x, region())
    return trace, [output.dtype for output in outputs]


class TestAutocast:
    @pytest.mark.parametrize("device_type", ["cuda", "meta"])
    def test_on_meta_it_casts_as_on_cuda(self, device_type):
        trace, dtypes = under_autocast(
            "meta", lambda: torch.autocast(device_type, dtype=torch.bfloat16)
        )
        half, wide = torch.bfloat16, torch.float32
        assert dtypes == [half, half, wide, wide, wide]
        assert moved(trace) == [
            ("_to_copy", 128, 64), ("_to_copy", 512, 256), ("_to_copy", 64, 32),
            ("linear", 64 + 256 + 32, 128),
            ("_to_copy", 128, 64),  # the weights' casts are kept
            ("linear", 64 + 256 + 32, 128),
            ("matmul", 256, 32),
            ("_to_copy", 128, 256), ("native_layer_norm", 256 + 128, 256),
            ("_to_copy", 128, 256), ("softmax", 256, 256),
            ("_to_copy", 128, 256), ("native_layer_norm", 256 + 128, 256),
            ("_to_copy", 128, 256), ("cat", 512, 512),
        ]  # fmt: skip

    def test_on_the_cpu_torch_does_it_and_products_run_in_its_type(self):
        trace, dtypes = under_autocast("cpu", lambda: torch.autocast("cpu", dtype=torch.bfloat16))
        assert set(dtypes) == {torch.bfloat16}
        assert [(k.operator, k.dtype) for k in trace.kernels if k.kind == "gemm"] == [
            ("linear", "bfloat16"), ("linear", "bfloat16"), ("matmul", "bfloat16"),
        ]  # fmt: skip
        assert moved(trace)[:4] == [
            ("_to_copy", 128, 64), ("_to_copy", 512, 256), ("_to_copy", 64, 32),
            ("linear", 64 + 256 + 32, 128),
        ]  # fmt: skip

    def test_a_region_that_is_switched_off_casts_nothing(self):
        trace, dtypes = under_autocast("meta", lambda: torch.autocast("cuda", enabled=False))
        assert set(dtypes) == {torch.float32}
        assert "_to_copy" not in [kernel.operator for kernel in trace.kernels]

    def test_it_leaves_nothing_behind(self):
        under_autocast("meta", lambda: torch.autocast("cuda", dtype=torch.bfloat16))
        assert not torch.is_autocast_enabled("cuda")
        trace = trace_of(nn.Linear(8, 16, device="meta"), meta(4, 8))
        assert [kernel.operator for kernel in trace.kernels] == ["linear"]


# --- what the host asks for ------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask", [lambda x: x.cpu(), lambda x: x.to("cpu"), lambda x: x.to(device=torch.device("cpu"))]
)
def test_what_the_host_is_given_moves_as_from_a_gpu(ask):
    def counted(x):
        return ask(torch.ones_like(x)).tolist()

    model = Calls(counted)
    with running(META), Recorder(model) as recorder:
        trace = recorder.begin()
        assert model(meta(3, dtype=torch.int64)) == [1, 1, 1]
    assert moved(trace) == [("ones_like", 0, 24), ("transfer", 24, 24)]


def test_what_stays_is_not_moved():
    model = Calls(lambda x: x.to("meta").cuda())
    with running(META), Recorder(model) as recorder:
        trace = recorder.begin()
        model(meta(3))
    assert moved(trace) == []
