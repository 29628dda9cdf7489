"""A CUDA GPU is calibrated: what is measured, what is launched, and what is fitted to it.

And what only a profile measured on the spot holds: attention with a bias, float32, the host.
"""

import contextlib
import dataclasses
import inspect
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
from torch.utils.flop_counter import FlopCounterMode

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.hardware import device
from dsocr_analyze.hardware.coefficients import COEFFICIENTS
from dsocr_analyze.hardware.devices import gpu_catalogue
from dsocr_analyze.hardware.kernel_times.fitting import (
    FitErrors,
    MeasuredRows,
    first_guess,
    held_out_groups,
    predicted,
)
from dsocr_analyze.hardware.kernel_times.formulas import masked_bytes
from dsocr_analyze.hardware.profile import (
    all_profiles,
    gpu_text,
    host_text,
    kind_text,
    profile_from_file,
    top_text,
)
from dsocr_analyze.hardware.timed_device import MeasuredHost
from dsocr_analyze.kernels import Attention, Convolution, Elements, Experts, Gemm, Kernel, Work
from dsocr_analyze.measuring import gpu_calibration
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
from dsocr_analyze.model.torch_calls import DispatchMode, tensors_in
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths
from dsocr_analyze.timing.kernel_seconds import kernel_seconds
from dsocr_analyze.timing.page_times import TimedModel
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import EAGER, SERVERS

CPU = torch.device("cpu")
HOST = MeasuredHost(launch_us=7.5, sync_us=31, step_us=900, graph_us=8, link_gb_s=11)
KINDS = [*((kind, "bfloat16") for kind in COEFFICIENTS), ("gemm", "float32")]
MASKED_TRUTH = dataclasses.replace(
    first_guess("masked_attention", "bfloat16"), share=0.3, tile_us=2.0
)
MiB = 1 << 20
SEEN = 180
"""Cases of a kind that a calibration measures here: enough for a fit, and soon over."""


def time_of(gpu, coefficients, case):
    return predicted(case.kind, rows_of([case], [1.0], ""), gpu, case.dtype, coefficients)[0]


class NoisyTimer:
    """Says what another GPU's profile says, and 3 % of noise."""

    def __init__(self, name, *, memory=1 << 60, has_experts=True):
        self.timed, self.memory = device(name), memory
        self.random, self.measured = random.Random(7), []
        self.can_launch = lambda kind: kind != "experts" or has_experts
        self.framework = "stand-in for {}".format

    def truth(self, case):
        masked = case.kind == "masked_attention"
        fitted = MASKED_TRUTH if masked else self.timed.fitted(case.kind).coefficients
        return time_of(self.timed.gpu, fitted, case)

    def seconds(self, case):
        if case.nbytes > self.memory:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        self.measured.append(case)
        return self.truth(case) * self.random.gauss(1, 0.03)


def some_cases(kind, dtype):
    return gpu_cases(kind, dtype)[:SEEN]


def calibrated(gpu, timer, *, budget=600.0, cases=some_cases, say=lambda _: None):
    """The text of the profile of a GPU, or of all of the one with this name."""
    if isinstance(gpu, str):
        source = "measured 2026-11-22: driver 1, torch 2"
        gpu = dataclasses.replace(gpu_catalogue()[gpu], source=source)
    return gpu_calibration.calibrated_profile(gpu, timer, HOST, budget, say, cases=cases)


@pytest.fixture(scope="module")
def scipy():
    return pytest.importorskip("scipy")


# Cases ---------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_there_are_enough_of_every_kind_and_some_are_held_out(kind, dtype):
    cases = gpu_cases(kind, dtype)
    assert len(set(cases)) == len(cases) >= 100
    assert all((case.kind, case.dtype) == (kind, dtype) for case in cases)
    held_out = rows_of(cases, [1.0] * len(cases), "").held_out
    # A third of the cases are as fair a sample as all of them.
    assert all(0.1 < part.mean() < 0.5 for part in (held_out, held_out[: len(cases) // 3]))
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
def test_sizes_are_those_that_the_models_have(kind, dtype, names, expected):
    cases = gpu_cases(kind, dtype)
    assert {tuple(getattr(case.sizes, name) for name in names) for case in cases} >= expected
    if kind == "generation_attention":
        assert {case.sizes.queries for case in cases} == {1}


def test_rows_have_the_columns_of_their_formula():
    cases = [KernelCase("experts", Experts(2, 512, 256, 4, 2), True),
             KernelCase("experts", Experts(9, 512, 256, 8, 1))]  # fmt: skip
    rows = rows_of(cases, [1.0, 2.0], "v")
    # 4 (1 - (2/4)^2) and 8 (1 - (7/8)^9) experts with a token.
    assert rows.sizes["touched"].tolist() == pytest.approx([3, 8 * (1 - (7 / 8) ** 9)])
    assert [rows.sizes[name].tolist() for name in ("cold", "gated")] == [[1, 0], [1, 1]]
    assert rows.group.tolist() == [[1, 512, 256, 4, 2], [1, 512, 256, 8, 1]]
    assert rows.seconds.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("case", "macs", "nbytes"),
    [(KernelCase("gemm", Gemm(2, 3, 5, 7)), 210, 2 * 2 * (21 + 35 + 15)),
     (KernelCase("gemm", Gemm(1, 3, 5, 7), dtype="float32"), 105, 4 * (21 + 35 + 15)),
     (KernelCase("masked_attention", Attention(2, 3, 3, 5, 7, 8, 8, True)), 2 * 2 * 3 * 35 * 8,
      2 * 2 * (2 * 3 * 5 * 8 + 2 * 3 * 7 * 8 + 3 * 35)),
     (KernelCase("encoder_attention", Attention(2, 3, 3, 5, 7, 8, 8)), 2 * 2 * 3 * 35 * 8,
      2 * 2 * (2 * 3 * 5 * 8 + 2 * 3 * 7 * 8)),
     (KernelCase("experts", Experts(2, 8, 4, 6, 3)), 3 * 2 * 3 * 8 * 4,
      2 * (3 * 6 * 8 * 4 + 2 * 3 * (8 + 3 * 4))),
     (KernelCase("movement", Elements(1024), operator="float"), 0, 6 * 1024)],
)  # fmt: skip
def test_work_by_hand(case, macs, nbytes):
    assert (case.macs, case.nbytes) == (macs, nbytes)


# Calls: what is launched is what the case says; the CPU shows everything but the time --------


def call_of(*case, **others):
    return KernelCalls(CPU, torch.bfloat16, has_flash=False).call_of(KernelCase(*case, **others))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "dtype"), [key for key in KINDS if key[0] != "experts"])
def test_flops_are_the_cases(kind, dtype):
    cases = gpu_cases(kind, dtype)
    small = [case for case in cases if case.macs < 3e8 and case.nbytes < 20 * MiB][:5]
    assert len(small) == 5
    for case in small:
        call, copies = call_of(*case)
        # Attention as products and a softmax, which the counter knows.
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            call(copies - 1)
        assert counter.get_total_flops() == 2 * case.macs


@pytest.mark.parametrize("operator", MOVED_BYTES)
def test_bytes_are_the_cases(operator):
    moved = []

    def watched(func, args, kwargs):
        result = func(*args, **kwargs)
        if not func.is_view:
            first = result[0] if isinstance(result, tuple) else result
            moved.extend(each.numel() * each.itemsize for each in tensors_in([*args, first]))
        return result

    call, _ = call_of("movement", Elements(8192), operator=operator)
    with torch.no_grad(), DispatchMode(watched):
        call(0)
    assert sum(moved) == MOVED_BYTES[operator] * 8192


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="torch has no grouped products")
def test_experts_are_those_of_a_loop():
    call, _ = call_of("experts", Experts(5, 64, 32, 4, 2))
    scope = inspect.getclosurevars(call).nonlocals
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
def test_cold_weights_are_other_ones_every_time():
    assert call_of("gemm", Gemm(1, 4, 64, 64))[1] == 1
    call, copies = call_of("gemm", Gemm(1, 4, 64, 64), True)
    results = {tuple(call(number).flatten().tolist()) for number in range(copies)}
    assert len(results) == copies == 32
    # 256 MiB of copies at most: a matrix of 32 MiB has 8 of them.
    assert call_of("gemm", Gemm(1, 1, 4096, 4096), True)[1] == 8


def test_the_framework_is_named(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.7.4")
    named = KernelCalls(CPU, torch.bfloat16, has_flash=True).framework
    assert named("generation_attention") == f"flash-attn 2.7.4, torch {torch.__version__}"
    assert named("gemm") == f"torch {torch.__version__}"
    for kind in ("encoder_attention", "masked_attention"):
        assert named(kind).endswith("scaled_dot_product_attention")


class FakeGpu(Timer):
    """A clock and a graph: every call of the only kernel takes 0.1 ms, captured or not."""

    def __init__(self):
        self.launched, self.captured, self.now = [], None, 0.0

    def mark(self):
        return self.now

    def call(self, number):
        if self.captured is None:
            self.now += 1e-4
        (self.launched if self.captured is None else self.captured).append(number)

    def capture_begin(self):
        self.captured = []

    def capture_end(self):
        self.captured, self.graph = None, self.captured

    def replay(self):
        for number in self.graph:
            self.call(number)


@pytest.mark.parametrize(
    ("copies", "alone", "together"),
    [(1, [0, 0, 0], [0, 0, 0, 0, 0]), (3, [0, 1, 0], [0, 1, 2, 0, 1])],
)
def test_calls_of_half_a_millisecond_are_captured_and_repeated(
    monkeypatch, copies, alone, together
):
    """Two calls warm up, and one is timed; the graph is replayed once, and then timed."""
    gpu, kernels = FakeGpu(), object.__new__(GpuKernels)
    vars(kernels).update(
        _device=CPU, _timer=gpu, _stream=SimpleNamespace(synchronize=int),
        _flushed=torch.ones(1), call_of=lambda _: (gpu.call, copies),
    )  # fmt: skip
    for name, value in (
        ("mem_get_info", lambda _: (1 << 30, 1 << 30)), ("CUDAGraph", lambda: gpu),
        ("device", contextlib.nullcontext), ("stream", contextlib.nullcontext),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    seconds = kernels.seconds(KernelCase("gemm", Gemm(1, 1, 1, 1), True))
    assert seconds == pytest.approx(1e-4)
    assert gpu.launched == [*alone, *together * 6]


@pytest.mark.exhaustive
def test_generate_is_timed_where_the_model_runs_and_between():
    times = gpu_calibration.step_times(CPU)
    # 6 layers of 7 linear layers, and the head, at least.
    assert 6 * 7 + 1 < times.operators < 6 * 80
    assert 0.1 < times.launch_us < 1e4
    assert times.between_us > 1


# Profiles ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(scipy, tmp_path_factory):
    """Calibrates the GPU of a name, whose own profile is the truth: its timer and the file."""
    known = {}

    def make(name):
        if name not in known:
            file = tmp_path_factory.mktemp("made") / f"{name}.toml"
            timer = NoisyTimer(name)
            file.write_text(calibrated(name, timer), encoding="utf-8")
            known[name] = timer, file
        return known[name]

    return make


OTHER_SIZE = {Gemm: "m", Attention: "batch", Experts: "tokens", Elements: "elements"}


def fresh(case):
    """A case that no calibration has seen."""
    name = OTHER_SIZE[type(case.sizes)]
    more = {name: 1 + round(1.3 * getattr(case.sizes, name))}
    return case._replace(sizes=case.sizes._replace(**more))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["h100-sxm", "l40s"])
def test_it_predicts_other_sizes_and_states_its_held_out_error(made, name):
    timer, file = made(name)
    profile = profile_from_file(file)
    assert profile.source == "measured 2026-11-22: driver 1, torch 2"
    assert profile.host == HOST
    assert not any(case.kind == "experts" for case in timer.measured)
    # Those of experts, an engine's own, stay.
    experts = "experts", "bfloat16"
    assert profile.kinds[experts] == timer.timed.kinds[experts]
    for kind, dtype in [key for key in KINDS if key != experts]:
        fitted = profile.kinds[kind, dtype]
        assert fitted.framework == f"stand-in for {kind}"
        # With 3 % of normal noise even the truth is off by 2 %.
        assert 0.01 < fitted.median < 0.05
        assert fitted.held_out_rows > 10
        assert fitted.held_out_groups > 3
        assert (fitted.assumed, fitted.extrapolated) == (False, False)
        cases = [*map(fresh, some_cases(kind, dtype))]
        said = [time_of(profile.gpu, fitted.coefficients, case) for case in cases]
        error = np.abs(np.array(said) / [*map(timer.truth, cases)] - 1)
        assert np.median(error) < 0.04, kind
        assert np.percentile(error, 90) < 0.12, kind


@pytest.mark.exhaustive
def test_the_time_command_uses_it_and_assumes_no_kind_any_more(made, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    asked = "time", "h100", "--runtime", "eager", "--format", "json"
    [shipped] = json.loads(run(capsys, *asked)[1])["time"]
    assert shipped["profile"]["assumed"]
    for name in ARCHITECTURES:
        found = run(capsys, *asked, "--arch", name, "--profile", made("h100-sxm")[1])
        [own] = json.loads(found[1])["time"]
        assert own["profile"] == {
            "source": "measured 2026-11-22: driver 1, torch 2", "extrapolated": [], "assumed": []
        }  # fmt: skip
        sentences = " ".join(own["assumptions"]["sentences"])
        assert "7.5 us to launch an operator (measured)" in sentences


def properties(name, *, sms=40, memory=16 * 10**9, capability=(7, 5), **more):
    return SimpleNamespace(
        name=name, multi_processor_count=sms, total_memory=memory, L2_cache_size=4 * MiB,
        major=capability[0], minor=capability[1], **more,
    )  # fmt: skip


@pytest.mark.exhaustive
def test_a_gpu_without_bfloat16_is_described_and_used(scipy, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    timer = NoisyTimer("l40s", has_experts=False)
    found = properties("Tesla P999")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    gpu = gpu_calibration.detect_gpu(torch.device("cuda"), "float16", timer)
    assert (gpu.name, gpu.title, gpu.like) == ("tesla-p999", "Tesla P999", "a100-80gb-sxm")
    assert (gpu.sms, gpu.memory_gb, gpu.l2_mb) == (40, 16, pytest.approx(4.194304))
    peak = timer.timed.gpu
    assert 0.5 * peak.tensor_tflops < gpu.tensor_tflops < 1.1 * peak.tensor_tflops
    assert 0.5 * peak.bandwidth_gb_s < gpu.bandwidth_gb_s < 1.1 * peak.bandwidth_gb_s
    file = tmp_path / "own.toml"
    file.write_text(
        calibrated(gpu, timer, cases=lambda kind, dtype: (
            some_cases(kind, dtype)[:120] if kind in ("gemm", "movement") else []
        ))
    )  # fmt: skip
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
     # All of its memory, and all of its units, but not of both.
     (properties("NVIDIA H100 80GB HBM3", sms=131, memory=85 * 10**9, capability=(9, 0)),
      "nvidia-h100-80gb-hbm3-131-sms", "h100-sxm"),
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
def test_its_name_is_its_own_and_it_is_like_its_kin(monkeypatch, tmp_path, found, name, like):
    """Of slices, of GPUs that no catalogue has, and of one that it has."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 580.65.06\necho 580.65.06\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    gpu = gpu_calibration.detect_gpu(torch.device("cuda"), "bfloat16", NoisyTimer("l40s"))
    assert (gpu.name, gpu.like) == (name, like)
    assert gpu.rocm_target == ("gfx942" if "AMD" in found.name else "")
    assert gpu.has_flash_attention == (found.major >= 8)
    versions = f"driver 580.65.06, torch {torch.__version__}, CUDA 13.0"
    assert f" on {found.name}: {versions}" in gpu.source


# Limits --------------------------------------------------------------------------------------


def test_what_does_not_fit_is_passed_over_and_one_group_is_too_few(scipy):
    timer, said = NoisyTimer("l40s", memory=50 * MiB), []
    cases = {("movement", "bfloat16"): some_cases("movement", "bfloat16"),
             ("gemm", "bfloat16"): [KernelCase("gemm", Gemm(1, m, 64, 64)) for m in range(1, 41)],
             }  # fmt: skip
    text = calibrated("l40s", timer, say=said.append, cases=lambda *key: cases.get(key, []))
    assert "[movement.bfloat16]" in text
    assert "[gemm.bfloat16]" not in text
    assert max(case.nbytes for case in timer.measured) <= 50 * MiB
    assert "gemm in 16 bits: too few measurements; left out" in said


@pytest.mark.exhaustive
def test_the_time_is_kept_and_every_kind_has_its_part(scipy, monkeypatch):
    timer = NoisyTimer("l40s")
    monkeypatch.setattr(gpu_calibration.time, "monotonic", lambda: len(timer.measured) / 4)
    calibrated("l40s", timer, budget=60.0, cases=gpu_cases)
    assert 50 < len(timer.measured) / 4 < 61
    kinds = {(case.kind, case.dtype) for case in timer.measured}
    assert kinds == {key for key in KINDS if key[0] != "experts"}


def test_too_little_of_everything_and_errors_of_kernels_are_not_swallowed():
    timer = NoisyTimer("l40s", memory=1)
    with pytest.raises(DeviceError, match=r"too few kernels of .* could be measured in 600 s"):
        calibrated("l40s", timer)
    timer.seconds = lambda _: torch.ones(2) @ torch.ones(3)
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        calibrated("l40s", timer)


def test_an_interruption_ends_it_between_two_kernels(monkeypatch):
    points = iter(range(3))
    monkeypatch.setattr(gpu_calibration, "safe_point", lambda: next(points))
    timer = NoisyTimer("l40s")
    with pytest.raises(StopIteration):
        calibrated("l40s", timer)
    assert len(timer.measured) == 3


def test_what_cannot_be_calibrated_is_refused(scipy, monkeypatch):
    with pytest.raises(DeviceError, match="cpu is not a CUDA GPU"):
        gpu_calibration.calibrated_gpu(CPU, on_progress=print, budget_seconds=1.0)
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DeviceError, match=r"pip install 'dsocr-analyze\[calibrate\]'"):
        gpu_calibration.calibrated_gpu(CPU, on_progress=print, budget_seconds=1.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_gpu_at_hand_is_calibrated(scipy, tmp_path):
    said, file = [], tmp_path / "own.toml"
    cuda = torch.device("cuda:0")
    text = gpu_calibration.calibrated_gpu(cuda, on_progress=said.append, budget_seconds=80)
    file.write_text(text, encoding="utf-8")
    timed = profile_from_file(file)
    own = [each.median for each in timed.kinds.values() if "torch" in each.framework]
    assert len(own) >= 5
    assert max(own) < 0.3
    assert 1 < timed.host.launch_us < 200
    assert 0.5 < timed.host.link_gb_s < 500
    # A product that reaches a good part of the peak, and a copy that does of the bandwidth.
    rate = 2 * 8192**3 / timed.gemm_seconds(8192, 8192, 8192, dtype=timed.gpu.tensor_dtype)
    assert 0.3 < rate / (1e12 * timed.gpu.tensor_tflops) <= 1.05
    moved = 10**9 / timed.elementwise_seconds(10**9, cold=True)
    assert 0.3 < moved / (1e9 * timed.gpu.bandwidth_gb_s) <= 1.05
    assert any("% on kernels held out of the fit" in each for each in said)


# What a measured profile holds ----------------------------------------------------------------

ERRORS = FitErrors(100, 0.01, 40, 8, 0.02, 0.05)
GPU = """
[gpu]
title = "Mine"
tensor_tflops = 100
float32_tflops = 10
bandwidth_gb_s = 1000
memory_gb = 80
sms = 100
l2_mb = 1e-6
source = "mine"
like = "l40s"
"""
MASKED = """
[masked_attention.bfloat16]
framework = "torch"
held_out_median = 0.03
held_out_p90 = 0.09

[masked_attention.bfloat16.coefficients]
tile_queries = 64
tile_keys = 64
share = 0.5
softmax = 64
tile_us = 1
whole_waves = 1
memory_share = 0.5
l2_share = 0.5
unaligned = 2
norm = 30
launch_us = 2
"""


def float32_text(**changes):
    coefficients = dataclasses.replace(first_guess("gemm", "float32"), **changes)
    return kind_text("gemm", "float32", coefficients, ERRORS, "torch")


@pytest.fixture
def read(tmp_path):
    def profile(*parts, name="mine"):
        file = tmp_path / "own.toml"
        file.write_text("\n".join([f'name = "{name}"', *parts]), encoding="utf-8")
        return profile_from_file(file)

    return profile


def masked_seconds(timed, batch, queries, keys, heads, head_dim, *, moved):
    return timed.seconds("masked_attention", {
        "batch": batch, "queries": queries, "keys": keys, "heads": heads, "head_dim": head_dim,
        "kv_heads": heads, "moved": moved,
    })  # fmt: skip


class TestMaskedAttention:
    @pytest.mark.parametrize(
        ("keys", "moved", "expected"),
        [
            # 2 x 3 heads of 2 tiles: one wave. A tile passes over 2 blocks of 4 x 64 x 64 x
            # (64 + 64) FLOPs at half of 1 TFLOP/s, 4.194304 us each; 1 us a tile, 2 us the launch.
            (128, 1, (2 * 4.194304 + 1 + 2) * 1e-6),
            # 10 GB at half of 1000 GB/s; a bias of 2 x 3 x 128 x 129 values of 2 bytes is moved
            # twice more where its rows are no multiple of 8.
            (128, 10**10, 0.02 + 2e-6),
            (129, 10**10, 0.02 + 2 * 2 * 2 * 3 * 128 * 129 / 5e11 + 2e-6),
        ],
    )
    def test_seconds_by_hand(self, read, keys, moved, expected):
        seconds = masked_seconds(read(GPU, MASKED), 2, 128, keys, 3, 64, moved=moved)
        assert seconds == pytest.approx(expected, rel=1e-9)

    def test_bytes_by_hand(self):
        sizes = [np.array(float(size)) for size in (2, 5, 7, 3, 4, 1)]
        # Of each of 2 sequences: queries and output 2 x 3 x 5 x 4, keys and values 2 x 7 x 4, bias
        # 3 x 5 x 7 elements.
        assert masked_bytes(sizes) == 2 * 2 * (120 + 56 + 105)

    @pytest.mark.parametrize(
        ("parts", "moved", "error", "said"),
        [([GPU], 1, DeviceError, "no masked_attention"),
         ([GPU, MASKED], 0, WorkloadError, "moved 0")],
    )  # fmt: skip
    def test_what_was_not_measured_is_refused(self, read, parts, moved, error, said):
        with pytest.raises(error, match=said):
            masked_seconds(read(*parts), 1, 8, 8, 1, 64, moved=moved)


ATTENTION = Attention(54, 12, 12, 196, 196, 64, 64, True)


@pytest.mark.parametrize(
    ("kind", "sizes", "dtype", "seconds_of", "p90"),
    [
        ("masked_attention", ATTENTION, "bfloat16",
         lambda d: masked_seconds(d, 54, 196, 196, 12, 64, moved=10**6), 0.09),
        ("gemm", Gemm(1, 913, 64, 1280), "float32",
         lambda d: d.gemm_seconds(913, 64, 1280, cold=True, dtype="float32"), 0.05),
        ("gemm", Convolution(2, 100, 3, 8, 9), "float32",
         lambda d: d.gemm_seconds(200, 8, 27, cold=True, dtype="float32"), 0.05),
    ],
)  # fmt: skip
def test_the_page_takes_what_was_measured(read, kind, sizes, dtype, seconds_of, p90):
    kernel = Kernel(kind, "linear", sizes, dtype, dtype, Work(macs=10**6, bytes_read=10**6))
    timed = read(GPU, MASKED, float32_text())
    priced = kernel_seconds([kernel], timed)
    assert priced.seconds.item() == seconds_of(timed)
    [error] = priced.errors
    assert (error.kind, error.p90, error.assumed) == (f"{kind}.{dtype}", p90, False)
    assert kernel_seconds([kernel], read(GPU)).errors[0].assumed


class TestFloat32:
    def test_it_is_the_formula_of_products_at_its_own_peak_and_width(self, read):
        # 2 x 8192^3 FLOPs at 10 TFLOP/s; 4 bytes an element of 10^9 outputs at 0.7 of the
        # bandwidth, where nothing else takes time.
        compute = read(GPU, float32_text()).gemm_seconds(8192, 8192, 8192, dtype="float32")
        assert 1 < compute / (2 * 8192**3 / 10e12) < 1.5
        quick = read(GPU.replace("lops = 10\n", "lops = 1e6\n"), float32_text())
        memory = quick.gemm_seconds(10**5, 10**4, 1, cold=True, dtype="float32")
        assert memory == pytest.approx(4 * 10**9 / (0.7 * 1e12), rel=0.1)

    def test_rows_are_predicted_as_the_device_says(self, read):
        timed = read(GPU.replace("1e-6", "10"), float32_text())
        names = ("m", "n", "k", "batch", "cold")
        sizes = [*itertools.product((1, 100, 3000), (64, 512), (1280,), (1, 5), (False, True))]
        columns = dict(zip(names, np.array(sizes, float).T, strict=True))
        none = np.zeros(len(sizes), bool)
        rows = MeasuredRows(columns, columns["m"], none, none, np.zeros((len(sizes), 2), int), "")
        c = timed.kinds["gemm", "float32"].coefficients
        assert predicted("gemm", rows, timed.gpu, "float32", c).tolist() == [
            timed.gemm_seconds(*shape, batch=batch, cold=is_cold, dtype="float32")
            for *shape, batch, is_cold in sizes
        ]

    @pytest.mark.parametrize(("rate", "is_there"), [("float32_tflops = 10\n", True), ("", False)])
    def test_another_gpu_takes_it_over_where_it_has_such_a_rate(
        self, read, tmp_path, rate, is_there
    ):
        known = {**all_profiles(), "mine": read(GPU, float32_text())}
        lines = GPU.replace("l40s", "mine").replace("float32_tflops = 10\n", rate)
        file = tmp_path / "another.toml"
        file.write_text(f'name = "another"\n{lines}', encoding="utf-8")
        assert (("gemm", "float32") in profile_from_file(file, known).kinds) == is_there


class TestHost:
    WORKLOAD = DEFAULT.plan(page=(640, 640), max_new_tokens=50, text_tokens=5)

    def predicted(self, profile, host):
        dimensions = ModelDirectory.read(DEFAULT.reference).dimensions()
        model = TimedModel(DEFAULT, dimensions, BFLOAT16, False, profile)
        return predict(model, self.WORKLOAD, Assumptions(host, OutputLengths.fixed, 0.01))

    @pytest.fixture
    def measured(self, read):
        return read(host_text(HOST), name="l40s")

    def test_the_eager_runtime_goes_by_it_and_says_so(self, measured):
        shipped = all_profiles()["l40s"]
        assert (measured.host, shipped.host) == (HOST, None)
        found = self.predicted(measured, EAGER)
        by_hand = dataclasses.replace(EAGER, **dataclasses.asdict(HOST))
        expected = self.predicted(shipped, by_hand)
        assert found.stages == expected.stages
        assert found.page_seconds == expected.page_seconds
        said = " ".join(found.assumptions.sentences)
        parts = ("7.5 us to launch an operator (measured)", "11 GB/s (measured)", "(assumed")
        assert [part in said for part in parts] == [True, True, False]
        # A host that somebody gave, and an engine's, stay.
        for host in (by_hand, SERVERS["vllm"]):
            found, expected = self.predicted(measured, host), self.predicted(shipped, host)
            names = found.page_seconds, found.assumptions.host
            assert names == (expected.page_seconds, host.name)

    def test_many_pages_are_said_to_go_by_it(self, measured):
        shipped = all_profiles()["h100-sxm"]
        job = Assumptions(EAGER, OutputLengths.fixed)
        [*_, launch, link, _, _, _] = job.sentences("some", [measured])
        assert "; 7.5 us to launch an operator (measured)" in launch
        assert "at 11 GB/s (measured)" in link
        alone = job.sentences("some")
        assert job.sentences("some", [shipped]) == alone
        both = job.sentences("some", [measured, shipped])
        assert f"l40s: {launch}" in both
        assert [each for each in both if each.startswith("h100-sxm: host")] == [
            f"h100-sxm: {alone[2]}"
        ]
        engine = Assumptions(SERVERS["vllm"], OutputLengths.fixed)
        assert engine.sentences("some", [measured, shipped]) == engine.sentences("some")


class TestFiles:
    @pytest.mark.parametrize(
        ("text", "named"),
        [("[host]\nlaunch_us = 1", "host lacks sync_us, step_us"),
         ("[host]\ncpu = 1", "unknown cpu"), ("host = 3", "host must be a table"),
         (host_text(HOST).replace("31", "0"), "host.sync_us must be"),
         (host_text(HOST).replace("31", "'x'"), "host.sync_us must be"),
         ("[movement.float32]", "unknown type movement.float32"),
         (float32_text().replace("0.0200", "0.0000"), "above 0")],
    )  # fmt: skip
    def test_what_is_wrong_is_named(self, read, text, named):
        with pytest.raises(DeviceError, match=named):
            read(text, name="l40s")

    def test_what_a_file_leaves_out_is_as_shipped(self, read):
        profile = read(MASKED, float32_text(), name="h100-sxm")
        own = {("masked_attention", "bfloat16"), ("gemm", "float32")}
        shipped = all_profiles()["h100-sxm"].kinds
        assert profile.kinds == {**shipped, **{key: profile.kinds[key] for key in own}}
        assert own.isdisjoint(shipped)

    def test_a_file_is_read_as_it_was_written(self, read):
        odd = 'a "b" \\n ü'
        assert read(top_text(source=odd), name="l40s").source == odd
        for gpu in gpu_catalogue().values():
            mine = dataclasses.replace(gpu, name="mine", like="l40s", source=odd)
            assert read(gpu_text(mine)).gpu == mine
        c = dataclasses.replace(first_guess("gemm", "bfloat16"), slow_columns=2048, norm=1.23456)
        fitted = read(GPU, kind_text("gemm", "bfloat16", c, ERRORS, odd)).kinds["gemm", "bfloat16"]
        assert (fitted.coefficients, fitted.framework) == (c, odd)
        assert (fitted.median, fitted.p90, fitted.held_out_rows, fitted.held_out_groups,
                fitted.training_rows) == (0.02, 0.05, 40, 8, 100)  # fmt: skip
        # An error of nothing is still an error.
        exact = dataclasses.replace(ERRORS, held_out_median=0.0, held_out_p90=0.0)
        text = kind_text("gemm", "bfloat16", c, exact, "")
        assert read(GPU, text).kinds["gemm", "bfloat16"].median == 1e-4

    def test_three_groups_of_ten_are_held_out_whole(self):
        groups = [*itertools.product(range(100), range(30))]
        held = held_out_groups([*groups, *groups])
        assert (held[: len(groups)] == held[len(groups) :]).all()
        assert 0.27 < held.mean() < 0.33
