"""Copies that an operator makes on its way, and scratch: their bytes, and their memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from allocator import allocated_at_most
from torch import nn
from tracing import Calls, meta, trace_of

from dsocr_analyze.costs.operators import softmax
from dsocr_analyze.dtypes import BFLOAT16, FLOAT16, FLOAT32
from dsocr_analyze.kernels import CUDA, KernelsOf
from dsocr_analyze.running.forward import running
from dsocr_analyze.running.loading import kernels_of_cpu
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.recorder import Recorder

CPU = KernelsOf("cpu", threads=2)
META = torch.device("meta")


def traced(function, *args, kernels_of: KernelsOf = CUDA) -> Trace:
    model = Calls(function)
    with torch.no_grad(), Recorder(model, kernels_of=kernels_of) as recorder:
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

    def test_cuda_reads_half_precision_as_it_is_and_the_cpu_does_not(self):
        x = meta(6, 8, dtype=torch.float16)
        on_cuda = traced(lambda x: F.softmax(x, -1, dtype=torch.float32), x)
        assert moved(on_cuda) == [("softmax", 96, 192)]
        on_cpu = traced(lambda x: F.softmax(x, -1, dtype=torch.float32), x, kernels_of=CPU)
        assert moved(on_cpu) == [("_to_copy", 96, 192), ("softmax", 192, 192)]

    def test_the_same_type_makes_no_copy(self):
        trace = traced(lambda x: F.softmax(x, -1, dtype=torch.float32), meta(6, 8))
        assert moved(trace) == [("softmax", 192, 192)]

    @pytest.mark.parametrize("kernels_of", [CUDA, CPU], ids=lambda k: k.device)
    @pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16, FLOAT32], ids=lambda d: d.name)
    def test_the_closed_form_agrees(self, dtype, kernels_of):
        x = meta(6, 8, dtype=getattr(torch, dtype.name))
        trace = traced(lambda x: F.softmax(x, -1, dtype=torch.float32), x, kernels_of=kernels_of)
        assert tuple(trace.kernels) == softmax(6, 8, dtype, kernels_of)


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
    @pytest.mark.parametrize("kernels_of", [CUDA, CPU], ids=lambda k: k.device)
    def test_what_lies_otherwise_is_copied_first(self, kernels_of):
        norm = nn.LayerNorm(8, device="meta")
        trace = traced(norm, meta(8, 6).t(), kernels_of=kernels_of)
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
    kernels_of = CPU if device == "cpu" else CUDA
    with running(torch.device(device)), Recorder(module, kernels_of=kernels_of) as recorder:
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


# --- scratch on the CPU ----------------------------------------------------------------------


dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


class TestScratch:
    @pytest.fixture(params=[1, 2], ids=["one thread", "two threads"], autouse=True)
    def _threads(self, request):
        before = torch.get_num_threads()
        torch.set_num_threads(request.param)
        yield
        torch.set_num_threads(before)

    @dtypes
    @pytest.mark.parametrize("shape", [(2, 3, 50, 16), (1, 2, 197, 64), (1, 2, 800, 32)])
    def test_attention_keeps_blocks_of_scores(self, shape, dtype):
        q = torch.zeros(shape, dtype=dtype)
        trace = traced(F.scaled_dot_product_attention, q, q, q, kernels_of=kernels_of_cpu(dtype))
        assert trace.peak.nbytes == allocated_at_most(F.scaled_dot_product_attention, q, q, q)

    @dtypes
    @pytest.mark.parametrize(
        ("channels", "side", "outputs", "kernel", "stride"),
        [(3, 64, 96, 16, 16), (96, 32, 64, 1, 1), (64, 32, 64, 3, 1), (64, 32, 96, 3, 2)],
    )
    def test_a_convolution_reorders(self, channels, side, outputs, kernel, stride, dtype):
        x = torch.zeros(2, channels, side, side, dtype=dtype)
        w = torch.zeros(outputs, channels, kernel, kernel, dtype=dtype)

        def convolve(x, w):
            return F.conv2d(x, w, stride=stride, padding=kernel // 2 if kernel < 16 else 0)

        trace = traced(convolve, x, w, kernels_of=kernels_of_cpu(dtype))
        assert trace.peak.nbytes == pytest.approx(allocated_at_most(convolve, x, w), rel=0.01)

    def test_an_antialiased_resize_goes_by_way_of_a_picture(self):
        x = torch.zeros(1, 8, 24, 24)

        def resize(x):
            return F.interpolate(x, size=(10, 10), mode="bicubic", antialias=True)

        trace = traced(resize, x, kernels_of=kernels_of_cpu(x.dtype))
        assert trace.peak.nbytes == 4 * 8 * (100 + 240)
        # its few weights aside
        assert trace.peak.nbytes == pytest.approx(allocated_at_most(resize, x), rel=0.15)

    @dtypes
    def test_a_product_packs_blocks(self, dtype):
        x, w = torch.zeros(600, 400, dtype=dtype), torch.zeros(500, 400, dtype=dtype)
        trace = traced(F.linear, x, w, kernels_of=kernels_of_cpu(dtype))
        difference = trace.peak.nbytes - allocated_at_most(F.linear, x, w)
        assert abs(difference) <= 65_536 * torch.get_num_threads()

    @dtypes
    def test_a_batch_that_lies_neither_by_rows_nor_by_columns_is_copied_in_16_bits(self, dtype):
        q = torch.zeros(1, 300, 4, 64, dtype=dtype).transpose(1, 2)
        k = torch.zeros(1, 300, 4, 64, dtype=dtype).transpose(1, 2).mT
        trace = traced(torch.matmul, q, k, kernels_of=kernels_of_cpu(dtype))
        difference = trace.peak.nbytes - allocated_at_most(torch.matmul, q, k)
        assert abs(difference) <= 65_536 * torch.get_num_threads()

    @dtypes
    def test_a_mean_in_16_bits_sums_in_fp32(self, dtype):
        x = torch.zeros(2, 64, 900, dtype=dtype)
        trace = traced(lambda x: x.mean(1, keepdim=True), x, kernels_of=kernels_of_cpu(dtype))
        allocated = allocated_at_most(lambda x: x.mean(1, keepdim=True), x)
        assert trace.peak.nbytes == pytest.approx(allocated, abs=64)

    @pytest.mark.parametrize(
        ("channels", "side", "outputs", "kernel", "stride", "columns"),
        [
            (3, 64, 96, 16, 16, 3 * 16 * 16 * 4 * 4),
            (96, 32, 64, 1, 1, 0),
            (64, 32, 64, 3, 1, 64 * 3 * 3 * 32 * 32),
            (64, 32, 96, 3, 2, 64 * 3 * 3 * 16 * 16),
            (8, 32, 8, 1, 2, 8 * 16 * 16),
        ],
    )
    def test_a_cpu_without_16_bits_lays_out_columns(
        self, channels, side, outputs, kernel, stride, columns
    ):
        x = meta(2, channels, side, side, dtype=torch.bfloat16)
        w = meta(outputs, channels, kernel, kernel, dtype=torch.bfloat16)

        def convolve(x, w):
            return F.conv2d(x, w, stride=stride, padding=kernel // 2 if kernel < 16 else 0)

        trace = traced(convolve, x, w, kernels_of=KernelsOf("cpu", 2, has_16_bits=False))
        written = outputs * (side // stride) ** 2
        assert trace.peak.nbytes == 2 * 2 * (written + columns)

    def test_one_thread_takes_an_fp32_kernel_of_one_tap_as_it_is(self):
        x, w = meta(2, 96, 32, 32), meta(64, 96, 1, 1)
        written = 4 * 2 * 64 * 32 * 32
        alone = traced(F.conv2d, x, w, kernels_of=KernelsOf("cpu", 1))
        assert alone.peak.nbytes == written
        reordered = traced(F.conv2d, x, w, kernels_of=KernelsOf("cpu", 2))
        assert reordered.peak.nbytes == written + 4 * (2 * 96 * 32 * 32 + 64 * 96)

    def test_a_product_of_a_cpu_without_16_bits_packs_nothing(self):
        q = meta(1, 300, 4, 64, dtype=torch.bfloat16).transpose(1, 2)
        k = meta(1, 300, 4, 64, dtype=torch.bfloat16).transpose(1, 2).mT
        trace = traced(torch.matmul, q, k, kernels_of=KernelsOf("cpu", 2, has_16_bits=False))
        assert trace.peak.nbytes == 2 * 4 * 300 * 300

    def test_cuda_takes_none(self):
        trace = traced(F.scaled_dot_product_attention, *[meta(1, 2, 800, 32)] * 3)
        assert trace.peak.nbytes == 4 * 2 * 800 * 32


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
