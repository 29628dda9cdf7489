"""A CUDA GPU is calibrated: what is measured, what is launched, and what is fitted to it."""

import contextlib
import dataclasses
import functools
import itertools
import json
import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_line import run
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware import device
from dsocr_analyze.hardware.coefficients import COEFFICIENTS
from dsocr_analyze.hardware.devices import gpu_catalogue
from dsocr_analyze.hardware.kernel_times.fitting import check_can_fit, first_guess, predicted
from dsocr_analyze.hardware.profile import profile_from_file
from dsocr_analyze.hardware.timed_device import MeasuredHost
from dsocr_analyze.kernels import Attention, Elements, Experts, Gemm
from dsocr_analyze.measuring import gpu_calibration
from dsocr_analyze.measuring.gpu_calibration import (
    calibrated_gpu,
    calibrated_profile,
    described_gpu,
    detect_gpu,
    step_times,
)
from dsocr_analyze.measuring.gpu_kernels import (
    MOVED_BYTES,
    GpuKernels,
    KernelCalls,
    KernelCase,
    gpu_cases,
    rows_of,
)
from dsocr_analyze.measuring.machine import Timer
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing.assumptions import Assumptions
from dsocr_analyze.timing.page_times import TimedModel
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import EAGER

HOST = MeasuredHost(launch_us=7.5, sync_us=31, step_us=900, graph_us=8, link_gb_s=11)
KINDS = [*((kind, "bfloat16") for kind in COEFFICIENTS), ("gemm", "float32")]
MASKED = dataclasses.replace(first_guess("masked_attention", "bfloat16"), share=0.3, tile_us=2.0)
CPU = torch.device("cpu")
MiB = 1 << 20
SEEN = 180
"""Cases of a kind that a calibration measures here: enough for a fit, and soon over."""


def time_of(gpu, coefficients, case):
    [seconds] = predicted(case.kind, rows_of([case], [1.0], ""), gpu, case.dtype, coefficients)
    return seconds


class NoisyTimer:
    """Says what another GPU's profile says, and 3 % of noise."""

    def __init__(self, name, *, memory=1 << 60, has_experts=True):
        self.timed, self.memory, self.has_experts = device(name), memory, has_experts
        self.random = random.Random(7)
        self.measured = []

    def truth(self, case):
        masked = case.kind == "masked_attention"
        fitted = MASKED if masked else self.timed.fitted(case.kind).coefficients
        return time_of(self.timed.gpu, fitted, case)

    def seconds(self, case):
        if case.nbytes > self.memory:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        self.measured.append(case)
        return self.truth(case) * self.random.gauss(1, 0.03)

    def framework(self, kind):
        return f"stand-in for {kind}"

    def can_launch(self, kind):
        return kind != "experts" or self.has_experts


def some_cases(kind, dtype):
    return gpu_cases(kind, dtype)[:SEEN]


def calibrated(found, timer, *, budget=600.0, cases=some_cases, say=lambda _: None):
    return calibrated_profile(found, timer, HOST, budget, say, cases=cases)


def whole(name):
    source = "measured 2026-11-22: driver 1, torch 2"
    return dataclasses.replace(gpu_catalogue()[name], source=source)


@pytest.fixture(scope="module")
def scipy():
    return pytest.importorskip("scipy")


class TestCases:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize(("kind", "dtype"), KINDS)
    def test_there_are_enough_of_every_kind_and_some_are_held_out(self, kind, dtype):
        cases = gpu_cases(kind, dtype)
        assert len(set(cases)) == len(cases) >= 100
        assert all((case.kind, case.dtype) == (kind, dtype) for case in cases)
        rows = rows_of(cases, [1.0] * len(cases), "")
        # A third of the cases are as fair a sample as all of them.
        for part in (rows.held_out, rows.held_out[: len(cases) // 3]):
            assert 0.1 < part.mean() < 0.5
        assert max(case.nbytes for case in cases) <= 1 << 30

    @pytest.mark.parametrize(
        ("kind", "dtype", "names", "expected"),
        [
            # Of SAM, CLIP, the projector, attention, the dense layer, experts, the head; Qwen2 and
            # the merged projections of an engine.
            pytest.param(
                "gemm", "bfloat16", ("n", "k"),
                {(2304, 768), (3072, 768), (768, 3072), (3072, 1024), (4096, 1024), (1280, 2048),
                 (1280, 1280), (6848, 1280), (1280, 6848), (896, 1280), (1280, 896),
                 (129280, 1280), (4864, 896), (128, 896), (3840, 1280), (13696, 1280),
                 (256, 2304)},
                marks=pytest.mark.exhaustive,
            ),
            ("gemm", "float32", ("n", "k"), {(64, 1280)}),
            ("encoder_attention", "bfloat16", ("heads", "head_dim", "keys"),
             {(16, 64, 257), (16, 64, 101)}),
            ("masked_attention", "bfloat16", ("heads", "head_dim", "keys"),
             {(12, 64, 196), (12, 64, 4096), (14, 64, 512)}),
            ("generation_attention", "bfloat16", ("heads", "head_dim", "queries"), {(10, 128, 1)}),
            ("context_attention", "bfloat16", ("heads", "head_dim"), {(10, 128)}),
            ("experts", "bfloat16", ("hidden", "inter", "experts", "top_k"), {(1280, 896, 64, 6)}),
        ],
    )  # fmt: skip
    def test_sizes_are_those_that_the_models_have(self, kind, dtype, names, expected):
        cases = gpu_cases(kind, dtype)
        assert {tuple(getattr(case.sizes, name) for name in names) for case in cases} >= expected
        if kind == "generation_attention":
            assert {case.sizes.queries for case in cases} == {1}

    def test_rows_have_the_columns_of_their_formula(self):
        cases = [KernelCase("experts", Experts(2, 512, 256, 4, 2), True),
                 KernelCase("experts", Experts(9, 512, 256, 8, 1))]  # fmt: skip
        rows = rows_of(cases, [1.0, 2.0], "v")
        # 4 (1 - (2/4)^2) and 8 (1 - (7/8)^9) experts with a token.
        assert rows.sizes["touched"].tolist() == pytest.approx([3, 8 * (1 - (7 / 8) ** 9)])
        assert rows.sizes["cold"].tolist() == [1, 0]
        assert rows.sizes["gated"].tolist() == [1, 1]
        assert rows.group.tolist() == [[1, 512, 256, 4, 2], [1, 512, 256, 8, 1]]
        assert rows.seconds.tolist() == [1, 2]

    @pytest.mark.parametrize(
        ("case", "macs", "nbytes"),
        [(KernelCase("gemm", Gemm(2, 3, 5, 7)), 210, 2 * 2 * (21 + 35 + 15)),
         (KernelCase("gemm", Gemm(1, 3, 5, 7), dtype="float32"), 105, 4 * (21 + 35 + 15)),
         (KernelCase("masked_attention", Attention(2, 3, 3, 5, 7, 8, 8, True)), 2 * 2 * 3 * 35 * 8,
          2 * 2 * (2 * 3 * 5 * 8 + 2 * 3 * 7 * 8 + 3 * 35)),
         (KernelCase("experts", Experts(2, 8, 4, 6, 3)), 3 * 2 * 3 * 8 * 4,
          2 * (3 * 6 * 8 * 4 + 2 * 3 * (8 + 3 * 4))),
         (KernelCase("movement", Elements(1024), operator="float"), 0, 6 * 1024)],
    )  # fmt: skip
    def test_work_by_hand(self, case, macs, nbytes):
        assert (case.macs, case.nbytes) == (macs, nbytes)


class Moved(TorchDispatchMode):
    """Bytes of what operators read and write."""

    def __init__(self):
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple) else result
        if not func.is_view:
            tensors = [*(each for each in args if isinstance(each, torch.Tensor)), first]
            self.nbytes += sum(each.numel() * each.itemsize for each in tensors)
        return result


class TestCalls:
    """What is launched is what the case says; on the CPU, which shows everything but the time."""

    @pytest.fixture
    def calls(self):
        return KernelCalls(CPU, torch.bfloat16, has_flash=False)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(("kind", "dtype"), [key for key in KINDS if key[0] != "experts"])
    def test_flops_are_the_cases(self, calls, kind, dtype):
        small = [
            case for case in gpu_cases(kind, dtype) if case.macs < 3e8 and case.nbytes < 20 * MiB
        ]
        assert len(small) >= 5
        for case in small[:5]:
            call, copies = calls.call_of(case)
            # Attention as products and a softmax, which the counter knows.
            counter = FlopCounterMode(display=False)
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
                call(copies - 1)
            assert counter.get_total_flops() == 2 * case.macs

    @pytest.mark.parametrize("operator", MOVED_BYTES)
    def test_bytes_are_the_cases(self, calls, operator):
        case = KernelCase("movement", Elements(8192), operator=operator)
        call, _ = calls.call_of(case)
        with torch.no_grad(), Moved() as moved:
            call(0)
        assert moved.nbytes == case.nbytes

    def test_experts_are_those_of_a_loop(self, calls):
        if not hasattr(torch, "_grouped_mm"):
            pytest.skip("torch has no grouped products")
        call, _ = calls.call_of(KernelCase("experts", Experts(5, 64, 32, 4, 2)))
        scope = dict(zip(call.__code__.co_freevars, (c.cell_contents for c in call.__closure__),
                         strict=True))  # fmt: skip
        rows, up, down = (scope[name] for name in ("rows", "up", "down"))
        weights, chosen = scope["scores"].softmax(-1).topk(2)
        expected = torch.zeros(5, 64)
        for token, place in itertools.product(range(5), range(2)):
            expert = chosen[token, place]
            gate, value = (rows[token] @ up[0, expert]).chunk(2, -1)
            result = (torch.nn.functional.silu(gate) * value) @ down[0, expert]
            expected[token] += weights[token, place] * result
        assert torch.allclose(call(0).float(), expected, rtol=0.1, atol=2)
        assert expected.abs().max() > 20

    @pytest.mark.exhaustive
    def test_cold_weights_are_other_ones_every_time(self, calls):
        warm, cold = (
            calls.call_of(KernelCase("gemm", Gemm(1, 4, 64, 64), is_cold))
            for is_cold in (False, True)
        )
        assert (warm[1], cold[1]) == (1, 32)
        results = [cold[0](number) for number in range(cold[1])]
        assert not any(torch.equal(a, b) for a, b in itertools.combinations(results, 2))
        # 256 MiB of copies at most: a matrix of 32 MiB has 8 of them.
        assert calls.call_of(KernelCase("gemm", Gemm(1, 1, 4096, 4096), True))[1] == 8

    def test_the_framework_is_named(self, monkeypatch):
        calls = KernelCalls(CPU, torch.bfloat16, has_flash=True)
        monkeypatch.setattr("importlib.metadata.version", lambda _: "2.7.4")
        assert calls.framework("generation_attention").startswith("flash-attn 2.7.4, torch ")
        assert calls.framework("gemm") == f"torch {torch.__version__}"
        for kind in ("encoder_attention", "masked_attention"):
            assert calls.framework(kind).endswith("scaled_dot_product_attention")


class FakeGpu:
    """Every call of its only kernel takes 0.1 ms, captured in a graph or not."""

    def __init__(self):
        self.launched, self.captured, self.now = [], None, 0.0
        self.timer = Timer()
        self.timer.mark = lambda: self.now

    def call(self, number):
        if self.captured is None:
            self.launched.append(number)
            self.now += 1e-4
        else:
            self.captured.append(number)

    def capture_begin(self):
        self.captured = []

    def capture_end(self):
        self.captured, self.graph = None, self.captured

    def replay(self):
        for number in self.graph:
            self.call(number)


class TestSeconds:
    @pytest.mark.parametrize(
        ("copies", "alone", "together"),
        [(1, [0, 0, 0], [0, 0, 0, 0, 0]), (3, [0, 1, 0], [0, 1, 2, 0, 1])],
    )
    def test_calls_of_half_a_millisecond_are_captured_and_repeated(
        self, monkeypatch, copies, alone, together
    ):
        """Two calls warm up, and one is timed; the graph is replayed once, and then timed."""
        gpu, kernels = FakeGpu(), object.__new__(GpuKernels)
        kernels._device, kernels._timer = CPU, gpu.timer
        kernels._stream, kernels._flushed = SimpleNamespace(synchronize=int), torch.ones(1)
        kernels.call_of = lambda _: (gpu.call, copies)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1 << 30, 1 << 30))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: gpu)
        for name in ("device", "stream"):
            monkeypatch.setattr(torch.cuda, name, contextlib.nullcontext)
        seconds = kernels.seconds(KernelCase("gemm", Gemm(1, 1, 1, 1), True))
        assert seconds == pytest.approx(1e-4)
        assert gpu.launched == [*alone, *together * 6]


class TestHostTimes:
    @pytest.mark.exhaustive
    def test_generate_is_timed_where_the_model_runs_and_between(self):
        times = step_times(CPU)
        # 6 layers of 7 linear layers, and the head, at least.
        assert 6 * 7 + 1 < times.operators < 6 * 80
        assert 0.1 < times.launch_us < 1e4
        assert times.between_us > 1


@functools.cache
def calibrated_once(name):
    """The timer of a GPU whose profile is the truth, and the text of the calibrated profile."""
    timer = NoisyTimer(name)
    return timer, calibrated(whole(name), timer)


@pytest.fixture
def made(scipy, tmp_path):
    """Makes a profile for the GPU of this name; returns its file and the timer."""

    def make(name):
        timer, text = calibrated_once(name)
        file = tmp_path / f"{name}.toml"
        file.write_text(text, encoding="utf-8")
        return file, timer

    return make


OTHER_SIZE = {Gemm: "m", Attention: "batch", Experts: "tokens", Elements: "elements"}


def fresh(case):
    """A case that no calibration has seen."""
    name = OTHER_SIZE[type(case.sizes)]
    more = {name: 1 + round(1.3 * getattr(case.sizes, name))}
    return case._replace(sizes=case.sizes._replace(**more))


class TestProfile:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("name", ["h100-sxm", "l40s"])
    def test_it_predicts_other_sizes_and_states_its_held_out_error(self, made, name):
        file, timer = made(name)
        profile = profile_from_file(file)
        assert profile.source == "measured 2026-11-22: driver 1, torch 2"
        assert profile.host == HOST
        assert not any(case.kind == "experts" for case in timer.measured)
        for kind, dtype in KINDS:
            fitted = profile.kinds[kind, dtype]
            if kind == "experts":  # the shipped ones, an engine's own, stay
                assert fitted == timer.timed.kinds[kind, dtype]
                continue
            assert fitted.framework == f"stand-in for {kind}"
            # With 3 % of normal noise even the truth is off by 2 %.
            assert 0.01 < fitted.median < 0.05
            assert fitted.held_out_rows > 10
            assert fitted.held_out_groups > 3
            assert not fitted.assumed
            assert not fitted.extrapolated
            cases = [*map(fresh, some_cases(kind, dtype))]
            said = [time_of(profile.gpu, fitted.coefficients, case) for case in cases]
            error = np.abs(np.array(said) / [*map(timer.truth, cases)] - 1)
            assert np.median(error) < 0.04, kind
            assert np.percentile(error, 90) < 0.12, kind

    @pytest.mark.exhaustive
    def test_the_time_command_uses_it_and_assumes_no_kind_any_more(
        self, made, capsys, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        file, _ = made("h100-sxm")
        entries = []
        for given in ((), ("--profile", file)):
            _, out, _ = run(
                capsys, "time", "h100", "--runtime", "eager", "--format", "json", *given
            )
            entries += json.loads(out)["time"]
        shipped, own = entries
        assert own["profile"] == {
            "source": "measured 2026-11-22: driver 1, torch 2", "extrapolated": [], "assumed": []
        }  # fmt: skip
        assert shipped["profile"]["assumed"]
        sentences = " ".join(own["assumptions"]["sentences"])
        assert "7.5 us to launch an operator (measured)" in sentences
        for architecture in ARCHITECTURES.values():
            dimensions = ModelDirectory.read(architecture.reference).dimensions()
            mode = architecture.modes[architecture.default_mode]
            workload = architecture.plan(
                page=(1191, 1684), max_new_tokens=9, text_tokens=5, base_size=mode.base_size,
                image_size=mode.image_size, crop_mode=mode.crop_mode,
            )  # fmt: skip
            timed = TimedModel(architecture, dimensions, BFLOAT16, False, profile_from_file(file))
            found = predict(timed, workload, Assumptions(EAGER, preprocess_seconds=0.01))
            assert found.profile.assumed == found.profile.extrapolated == ()


def properties(name, *, sms=40, memory=16 * 10**9, capability=(7, 5), **more):
    return SimpleNamespace(
        name=name, multi_processor_count=sms, total_memory=memory, L2_cache_size=4 * MiB,
        major=capability[0], minor=capability[1], **more,
    )  # fmt: skip


class TestUnknownGpu:
    """A slice of a GPU, and one that no catalogue has."""

    @pytest.mark.exhaustive
    def test_one_without_bfloat16_is_described_and_used(self, scipy, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        timer = NoisyTimer("l40s", has_experts=False)
        gpu = described_gpu(properties("Tesla P999"), "float16", "mine", timer)
        assert (gpu.name, gpu.title, gpu.like) == ("tesla-p999", "Tesla P999", "a100-80gb-sxm")
        assert (gpu.sms, gpu.memory_gb, gpu.l2_mb) == (40, 16, pytest.approx(4.194304))
        peak = device("l40s").gpu
        assert 0.5 * peak.tensor_tflops < gpu.tensor_tflops < 1.1 * peak.tensor_tflops
        assert 0.5 * peak.bandwidth_gb_s < gpu.bandwidth_gb_s < 1.1 * peak.bandwidth_gb_s
        text = calibrated(gpu, timer, cases=lambda *key: (
            some_cases(*key)[:120] if key[0] in ("gemm", "movement") else []
        ))  # fmt: skip
        file = tmp_path / "own.toml"
        file.write_text(text, encoding="utf-8")
        timed = profile_from_file(file)
        assert timed.gpu.dtypes == ("float16",)
        assert not timed.fitted("gemm", "float16").extrapolated
        assert timed.fitted("experts", "float16").extrapolated
        assert timed.gemm_seconds(64, 1280, 1280, dtype="float16") > 0
        assert run(capsys, "time", "tesla-p999", "--profile", file, "--dtype", "fp16")[0] == 0

    @pytest.mark.parametrize(
        ("found", "name", "like"),
        [(properties("NVIDIA H100 80GB HBM3 MIG 1g.10gb", sms=16, memory=10**10,
                     capability=(9, 0)), "nvidia-h100-80gb-hbm3-mig-1g.10gb", "h100-sxm"),
         (properties("NVIDIA H100 80GB HBM3", sms=16, memory=10**10, capability=(9, 0)),
          "nvidia-h100-80gb-hbm3-16-sms", "h100-sxm"),
         # All of its units, less memory.
         (properties("NVIDIA H100 80GB HBM3", sms=132, memory=4 * 10**10, capability=(9, 0)),
          "nvidia-h100-80gb-hbm3-132-sms", "h100-sxm"),
         (properties("NVIDIA H100 80GB HBM3", sms=132, memory=85 * 10**9, capability=(9, 0)),
          "h100-sxm", ""),
         (properties("Some Ada", capability=(8, 9)), "some-ada", "l40s"),
         (properties("Some Blackwell", capability=(10, 3)), "some-blackwell", "b200"),
         (properties("Some RTX", capability=(12, 0)), "some-rtx", "rtx-pro-6000"),
         (properties("AMD X", capability=(9, 4), gcnArchName="gfx942:sramecc+"), "amd-x",
          "h100-sxm")],
    )  # fmt: skip
    def test_its_name_is_its_own_and_it_is_like_its_kin(
        self, monkeypatch, tmp_path, found, name, like
    ):
        tool = tmp_path / "nvidia-smi"
        tool.write_text("#!/bin/sh\necho 580.65.06\necho 580.65.06\n", encoding="utf-8")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
        gpu = detect_gpu(torch.device("cuda"), "bfloat16", NoisyTimer("l40s"))
        assert (gpu.name, gpu.like) == (name, like)
        assert (gpu.name in gpu_catalogue()) == (name == "h100-sxm")
        assert gpu.rocm_target == ("gfx942" if "AMD" in found.name else "")
        assert gpu.has_flash_attention == (found.major >= 8)
        versions = f"driver 580.65.06, torch {torch.__version__}, CUDA 13.0"
        assert f" on {found.name}: {versions}" in gpu.source


class TestLimits:
    def test_what_does_not_fit_is_passed_over(self, scipy):
        timer, said = NoisyTimer("l40s", memory=50 * MiB), []
        text = calibrated(
            whole("l40s"), timer, say=said.append,
            cases=lambda *key: some_cases(*key) if key[0] == "movement" else [],
        )  # fmt: skip
        assert "[movement.bfloat16]" in text
        assert "[gemm.bfloat16]" not in text
        assert max(case.nbytes for case in timer.measured) <= 50 * MiB
        assert "gemm in 16 bits: too few measurements; left out" in said

    @pytest.mark.exhaustive
    def test_the_time_is_kept_and_every_kind_has_its_part(self, scipy, monkeypatch):
        timer, now = NoisyTimer("l40s"), [0.0]
        seconds = timer.seconds

        def slow(case):
            now[0] += 0.25
            return seconds(case)

        monkeypatch.setattr("time.monotonic", lambda: now[0])
        timer.seconds = slow
        calibrated(whole("l40s"), timer, budget=60.0, cases=gpu_cases)
        assert 50 < now[0] < 61
        kinds = {(case.kind, case.dtype) for case in timer.measured}
        assert kinds == {key for key in KINDS if key[0] != "experts"}

    def test_too_little_of_everything_and_errors_of_kernels_are_not_swallowed(self):
        timer = NoisyTimer("l40s", memory=1)
        with pytest.raises(DeviceError, match=r"too few kernels of .* could be measured in 600 s"):
            calibrated(whole("l40s"), timer)
        timer.seconds = lambda _: (_ for _ in ()).throw(RuntimeError("illegal address"))
        with pytest.raises(RuntimeError, match="illegal address"):
            calibrated(whole("l40s"), timer)

    def test_an_interruption_ends_it_between_two_kernels(self, monkeypatch):
        points = iter([None] * 3)

        def interrupted():
            if next(points, points) is points:
                raise KeyboardInterrupt

        monkeypatch.setattr(gpu_calibration, "safe_point", interrupted)
        timer = NoisyTimer("l40s")
        with pytest.raises(KeyboardInterrupt):
            calibrated(whole("l40s"), timer)
        assert len(timer.measured) == 3

    def test_what_cannot_be_calibrated_is_refused(self, scipy, monkeypatch):
        with pytest.raises(DeviceError, match="cpu is not a CUDA GPU"):
            calibrated_gpu(CPU, on_progress=print, budget_seconds=1.0)
        monkeypatch.setitem(sys.modules, "scipy", None)
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        with pytest.raises(DeviceError, match=r"pip install 'dsocr-analyze\[calibrate\]'"):
            check_can_fit()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_gpu_at_hand_is_calibrated(scipy, tmp_path):
    said = []
    text = calibrated_gpu(torch.device("cuda:0"), on_progress=said.append, budget_seconds=80)
    file = tmp_path / "own.toml"
    file.write_text(text, encoding="utf-8")
    profile = profile_from_file(file)
    own = [each for each in profile.kinds.values() if "torch" in each.framework]
    assert len(own) >= 5
    for fitted in own:
        assert fitted.median < 0.3
    assert 1 < profile.host.launch_us < 200
    assert 0.5 < profile.host.link_gb_s < 500
    half = profile.gpu.tensor_dtype
    # A product that reaches a good part of the peak, and a copy that does of the bandwidth.
    timed = profile
    rate = 2 * 8192**3 / timed.gemm_seconds(8192, 8192, 8192, dtype=half)
    assert 0.3 < rate / (1e12 * profile.gpu.tensor_tflops) <= 1.05
    moved = 10**9 / timed.elementwise_seconds(10**9, cold=True)
    assert 0.3 < moved / (1e9 * profile.gpu.bandwidth_gb_s) <= 1.05
    assert any("% on kernels held out of the fit" in each for each in said)
