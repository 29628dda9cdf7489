"""A CUDA GPU is calibrated: what is measured, how it is timed, and what is fitted to it.

And what only a profile measured on the spot holds: attention with a bias, float32, the host.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import random
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from command_line import run
from torch.utils.flop_counter import FlopCounterMode

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.hardware import device
from dsocr_analyze.hardware.coefficients import COEFFICIENTS, Fitted
from dsocr_analyze.hardware.devices import gpu_catalogue
from dsocr_analyze.hardware.kernel_times import masked_bytes
from dsocr_analyze.hardware.kernel_times.fitting import (
    FitErrors,
    MeasuredRows,
    first_guess,
    held_out_groups,
    predicted,
)
from dsocr_analyze.hardware.profile import (
    all_profiles,
    gpu_text,
    host_text,
    kind_text,
    profile_from_file,
    top_text,
)
from dsocr_analyze.hardware.timed_device import MeasuredHost
from dsocr_analyze.kernels import Attention, Convolution, Gemm, Kernel, Rows, Work
from dsocr_analyze.measuring import gpu_calibration, samples as makers
from dsocr_analyze.measuring.samples import KernelsAlone, MeasuredKernel, gpu_samples
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import running
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths
from dsocr_analyze.timing.kernel_seconds import kernel_seconds, kind_of
from dsocr_analyze.timing.page_times import TimedModel
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import EAGER, SERVERS

CPU, META, CUDA = map(torch.device, ("cpu", "meta", "cuda"))
HOST = MeasuredHost(launch_us=7.5, sync_us=31, step_us=900, graph_us=8, link_gb_s=11)
KINDS = {*((kind, "bfloat16") for kind in COEFFICIENTS), ("gemm", "float32")}
KINDS -= {("experts", "bfloat16")}
MASKED_TRUTH = dataclasses.replace(
    first_guess("masked_attention", "bfloat16"), share=0.3, tile_us=2.0
)
SOURCE = "measured 2026-11-22: driver 1, torch 2"
SEEN = 450
"""Samples that a calibration measures here: enough for fits, and soon over."""


def key_of(each):
    """A measured kernel's kind and type in a profile."""
    kernel = each.kernel
    return kind_of(kernel.dimensions), "float32" if kernel.dtype == "float32" else "bfloat16"


def taken(samples, count=SEEN, clock=lambda *_: 1.0):
    """Kernels of the first samples, whose tensors take no memory."""
    alone = KernelsAlone(META, samples[:count], clock)
    with running(META):  # without torch's compiler, which its kernels for meta import
        alone.run(math.inf, str)
    return alone.kernels()


def seconds_on(timed, each):
    """A kernel's by the coefficients of its kind in a profile."""
    kind, dtype = key_of(each)
    rows, coefficients = (
        gpu_calibration.rows_of(kind, [each]),
        timed.kinds[kind, dtype].coefficients,
    )
    return predicted(kind, rows, timed.gpu, dtype, coefficients).item()


def like(name):
    """The device of this name, with coefficients of what its profile lacks."""
    found = device(name)
    more = {("masked_attention", "bfloat16"): Fitted(MASKED_TRUTH, 0, 0, 0, 0),
            ("gemm", "float32"): found.kinds["gemm", "bfloat16"]}  # fmt: skip
    return dataclasses.replace(found, kinds={**found.kinds, **more})


def measured(name, kernels, noise=0.03):
    """Kernels that take what the profile of this name says, and noise."""
    truth, chance = like(name), random.Random(7)
    return [each._replace(seconds=seconds_on(truth, each) * chance.gauss(1, noise))
            for each in kernels]  # fmt: skip


def calibrated(gpu, kernels, say=str):
    """The text of the profile of a GPU, or of all of the one with this name."""
    if isinstance(gpu, str):
        gpu = dataclasses.replace(gpu_catalogue()[gpu], source=SOURCE)
    return gpu_calibration.profile_text(gpu, HOST, kernels, say)


@pytest.fixture(scope="module")
def scipy():
    return pytest.importorskip("scipy")


@pytest.fixture(scope="module")
def samples():
    return gpu_samples(torch.bfloat16)


# Samples -------------------------------------------------------------------------------------


SIZES = {
    # Of SAM, CLIP, the projector, attention, the dense layer, experts, the head; Qwen2, the merged
    # projections of an engine, and a convolution.
    ("gemm", "bfloat16"): (("n", "k"), {
        (2304, 768), (3072, 768), (768, 3072), (3072, 1024), (4096, 1024), (1280, 2048),
        (1280, 1280), (6848, 1280), (1280, 6848), (896, 1280), (1280, 896), (129280, 1280),
        (4864, 896), (128, 896), (3840, 1280), (13696, 1280), (256, 2304),
    }),
    ("gemm", "float32"): (("n", "k"), {(64, 1280)}),
    ("encoder_attention", "bfloat16"): (("heads", "head_dim"), {(16, 64)}),
    ("masked_attention", "bfloat16"): (("heads", "head_dim"), {(12, 64), (14, 64)}),
    ("generation_attention", "bfloat16"): (("heads", "head_dim", "queries"), {(10, 128, 1)}),
    ("context_attention", "bfloat16"): (("heads", "head_dim"), {(10, 128)}),
}  # fmt: skip


@pytest.mark.exhaustive
def test_samples_are_enough_of_every_kind_and_have_the_sizes_of_the_models(samples):
    kinds = collections.defaultdict(list)
    for each in taken(samples, None):
        kinds[key_of(each)].append(each)
    assert kinds.keys() == KINDS
    for key, members in kinds.items():
        names, expected = SIZES.get(key, ((), set()))
        sizes = [each.kernel.dimensions for each in members]
        assert {tuple(getattr(each, name) for name in names) for each in sizes} >= expected, key
        assert len(set(members)) >= 170, key
        held_out = gpu_calibration.rows_of(key[0], members).held_out
        # A third of the kernels are as fair a sample as all of them.
        assert all(0.1 < part.mean() < 0.5 for part in (held_out, held_out[: len(members) // 3]))
        assert max(each.kernel.work.bytes_moved for each in members) < 1.5e9


def a_kernel(sizes, operator="linear", dtype="float16", seconds=2.0, macs=0, moved=0):
    kernel = Kernel("gemm", operator, sizes, dtype, dtype, Work(macs, bytes_read=moved))
    return MeasuredKernel(kernel, seconds, False)


@pytest.mark.parametrize(
    ("kind", "each", "columns", "group"),
    [
        ("gemm", a_kernel(Gemm(1, 3, 5, 7)), {"m": 3, "n": 5, "k": 7, "batch": 1, "cold": 1},
         [1, 5, 7]),
        ("gemm", a_kernel(Gemm(2, 3, 5, 7), "matmul"),
         {"m": 3, "n": 5, "k": 7, "batch": 2, "cold": 0}, [2, 5, 7]),
        *((kind, a_kernel(Attention(2, 3, 3, 5, 7, 8, 8), "attention"),
           {"batch": 2, "queries": 5, "keys": 7, "heads": 3, "head_dim": 8, "kv_heads": 3,
            "cold": cold}, group)
          for kind, cold, group in (
              ("encoder_attention", 0, [3, 8]), ("context_attention", 0, [3, 8]),
              ("generation_attention", 1, [3, 8]), ("masked_attention", 0, [3, 7, 8]))),
        ("movement", a_kernel(Rows(2, 9), "norm", moved=70), {"moved": 70, "cold": 0}, [70]),
    ],
)  # fmt: skip
def test_rows_have_the_columns_of_their_formula(kind, each, columns, group):
    """And only weights and caches are not in L2."""
    rows = gpu_calibration.rows_of(kind, [each, each])
    assert {name: column.tolist() for name, column in rows.sizes.items()} == {
        name: [value] * 2 for name, value in columns.items()
    }
    assert (rows.group.tolist(), rows.seconds.tolist()) == ([group] * 2, [2, 2])
    assert rows.version.startswith(f"torch {torch.__version__}")
    assert kind.endswith("attention") == rows.version.endswith(" scaled_dot_product_attention")


def test_flops_are_those_of_the_calls(samples):
    """By a counter that knows neither records nor masks; attention does not skip what it could."""
    counted = []

    def clock(call, *_):
        with FlopCounterMode(display=False) as counter:
            call()
        counted.append(counter.get_total_flops())
        return 1.0

    found = taken(samples, 12, clock)
    assert len({key_of(each) for each in found}) == 7
    assert counted == [2 * each.kernel.work.macs for each in found]


@pytest.mark.parametrize(
    ("make", "sizes", "different"),
    [(makers._products_of, ([4], 32, 32), 64),
     # A megabyte of copies: a matrix of 256 KiB has 4 of them.
     (makers._products_of, ([1], 256, 256), 4),
     (makers._attended, ("generation_attention", 1, 2, 9, 8), 64),
     (makers._attended, ("context_attention", 1, 2, 9, 8), 1)],
)  # fmt: skip
def test_weights_and_caches_are_other_ones_in_every_call(monkeypatch, make, sizes, different):
    monkeypatch.setattr(makers, "_COLD_BYTES", 1e6)
    made = make(*sizes, torch.float32, *[math.inf] * (make is makers._products_of))
    call = (made if isinstance(made, makers.Sample) else made[0]).call()
    assert len({tuple(call().flatten().tolist()) for _ in range(64)}) == different


# The clock -----------------------------------------------------------------------------------


def test_calls_of_half_a_millisecond_are_captured_and_repeated(monkeypatch):
    """A call is timed behind a flush and another call, and so is the graph of five."""
    gpu, clock = mock.MagicMock(), object.__new__(gpu_calibration.GraphClock)
    vars(clock).update(_timer=gpu, _flushed=gpu)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: gpu)
    gpu.time.side_effect = [1e-4, 1e-3, 2e-3, 5e-3, 5e-3, 5e-3]
    assert clock.seconds(gpu.call, 0.0, 0.0) == pytest.approx(1e-3)
    timed = ["zero_", "call", "time"]
    assert [name for name, *_ in gpu.mock_calls] == [
        "call", *timed, "wait", "capture_begin", *["call"] * 5, "capture_end", "replay", *timed * 5
    ]  # fmt: skip
    assert gpu.time.call_args_list == [mock.call(gpu.call), *[mock.call(gpu.replay)] * 5]
    # A capture that is interrupted is ended.
    gpu.reset_mock(side_effect=True)
    gpu.time.return_value, gpu.call.side_effect = 1e-4, [None, None, None, KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        clock.seconds(gpu.call)
    assert gpu.mock_calls[-1] == mock.call.capture_end()


@pytest.mark.exhaustive
def test_operators_of_generate_are_timed_where_the_model_runs_and_between(monkeypatch):
    """A clock that ticks when somebody looks: one tick in a step, one between two."""
    ticks = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr(gpu_calibration, "time", ticks)
    launch_us, between_us = gpu_calibration.step_times(CPU)
    # 6 layers of 7 linear layers, and the head, at least.
    assert 6 * 7 + 1 < 1e6 / launch_us < 6 * 80
    assert between_us == 1e6


def test_host_figures_by_hand(monkeypatch):
    """By 7.5 us per operator and 900 between two steps, and four clocked calls."""
    clocked = iter((5e-6, 36e-6, 8e-6, (1 << 26) / 11e9))
    monkeypatch.setattr(gpu_calibration, "step_times", lambda _: (7.5, 900))
    monkeypatch.setattr(gpu_calibration, "cpu_seconds", lambda run, *_: (run(), next(clocked))[1])
    monkeypatch.setattr(torch.cuda, "CUDAGraph", mock.Mock())
    monkeypatch.setattr(torch.cuda, "graph", contextlib.nullcontext)
    found = dataclasses.astuple(gpu_calibration._host_figures(CPU))
    assert found == pytest.approx(dataclasses.astuple(HOST))


# Profiles ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(scipy, samples, tmp_path_factory):
    """Calibrates the GPU of a name, whose own profile is the truth: the file."""

    @functools.cache
    def make(name):
        file = tmp_path_factory.mktemp("made") / f"{name}.toml"
        file.write_text(calibrated(name, measured(name, taken(samples))), encoding="utf-8")
        return file

    return make


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["h100-sxm", "l40s"])
def test_it_predicts_other_sizes_and_states_its_held_out_error(made, samples, name):
    profile, truth = profile_from_file(made(name)), like(name)
    assert (profile.source, profile.host) == (SOURCE, HOST)
    # Those of experts, an engine's own, stay.
    experts = "experts", "bfloat16"
    assert profile.kinds[experts] == truth.kinds[experts]
    others = collections.defaultdict(list)
    for each in taken(samples[-SEEN:], None):
        error = seconds_on(profile, each) / seconds_on(truth, each) - 1
        others[key_of(each)].append(abs(error))
    assert others.keys() == KINDS
    for key, errors in others.items():
        fitted = profile.kinds[key]
        # With 3 % of normal noise even the truth is off by 2 %.
        assert 0.01 < fitted.median < 0.05, key
        assert fitted.held_out_rows >= 8
        assert fitted.held_out_groups >= 2
        assert (fitted.assumed, fitted.extrapolated) == (False, False)
        assert np.median(errors) < 0.04, key
        assert np.percentile(errors, 90) < 0.12, key


@pytest.mark.exhaustive
def test_the_time_command_uses_it_and_assumes_no_kind_any_more(made, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    asked = "time", "h100", "--runtime", "eager", "--format", "json"
    [shipped] = json.loads(run(capsys, *asked)[1])["time"]
    assert shipped["profile"]["assumed"]
    for name in ARCHITECTURES:
        found = run(capsys, *asked, "--arch", name, "--profile", made("h100-sxm"))
        [own] = json.loads(found[1])["time"]
        assert own["profile"] == {"source": SOURCE, "extrapolated": [], "assumed": []}
        sentences = " ".join(own["assumptions"]["sentences"])
        assert "7.5 us to launch an operator (measured)" in sentences


def properties(name, *, sms=40, memory=16 * 10**9, capability=(7, 5), **more):
    return SimpleNamespace(
        name=name, multi_processor_count=sms, total_memory=memory, L2_cache_size=1 << 22,
        major=capability[0], minor=capability[1], **more,
    )  # fmt: skip


@pytest.mark.exhaustive
def test_a_gpu_without_bfloat16_is_described_and_used(scipy, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties("Tesla P999"))
    kernels = [each for each in measured("l40s", taken(gpu_samples(torch.float16), 150))
               if key_of(each)[0] in ("gemm", "movement")]  # fmt: skip
    gpu = gpu_calibration.detect_gpu(CUDA, "float16", kernels)
    assert (gpu.title, gpu.sms, gpu.memory_gb, gpu.l2_mb) == ("Tesla P999", 40, 16, 4.194304)
    peak = device("l40s").gpu
    assert 0.5 < gpu.tensor_tflops / peak.tensor_tflops < 1.1
    assert 0.5 < gpu.bandwidth_gb_s / peak.bandwidth_gb_s < 1.1
    file = tmp_path / "own.toml"
    file.write_text(calibrated(gpu, kernels))
    timed = profile_from_file(file)
    assert timed.gpu.dtypes == ("float16",)
    assert [timed.fitted(kind, "float16").extrapolated for kind in ("gemm", "experts")] == [0, 1]
    assert run(capsys, "time", "tesla-p999", "--profile", file, "--dtype", "fp16")[0] == 0


PEAKS = [
    *(a_kernel(Gemm(1, 1, 1, 1), "linear", dtype, seconds, 10**12)
      for dtype, seconds in (("bfloat16", 2.0), ("bfloat16", 0.5), ("float32", 4.0))),
    a_kernel(Attention(1, 1, 1, 1, 1, 1, 1), "causal", "bfloat16", 0.3, 10**12),
    *(a_kernel(Rows(1, 1), "clone", "bfloat16", seconds, 0, moved)
      for moved, seconds in ((10**9, 0.1), (9 * 10**9, 4.0), *((2 * 10**9, 8.0),) * 4)),
]  # fmt: skip
"""Products of up to 4 and 0.5 TFLOP/s, attention that skips scores, and streams of which the five
longest have 2.25 GB/s."""


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
     (properties("Tesla P999"), "tesla-p999", "a100-80gb-sxm"),
     (properties("Some Ada", capability=(8, 9)), "some-ada", "l40s"),
     (properties("Some Blackwell", capability=(10, 3)), "some-blackwell", "b200"),
     (properties("Some RTX", capability=(12, 0)), "some-rtx", "rtx-pro-6000"),
     (properties("AMD X", capability=(12, 0), gcnArchName="gfx942:sramecc+"), "amd-x",
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
    gpu = gpu_calibration.detect_gpu(CUDA, "bfloat16", PEAKS)
    assert (gpu.name, gpu.like) == (name, like)
    rates = gpu.tensor_tflops, gpu.float32_tflops, gpu.bandwidth_gb_s
    assert not like or rates == (4.0, 0.5, 2.25)
    assert gpu.rocm_target == ("gfx942" if "AMD" in found.name else "")
    assert gpu.has_flash_attention == (found.major >= 8)
    versions = f"driver 580.65.06, torch {torch.__version__}, CUDA 13.0"
    assert f" on {found.name}: {versions}" in gpu.source


# Limits --------------------------------------------------------------------------------------


def streams(samples):
    return [each for each in samples if getattr(each, "macs", 1) == 0]


def test_one_group_is_too_few_and_of_nothing_there_is_no_profile(scipy, samples):
    said, one_group = [], [a_kernel(Gemm(1, m, 64, 64)) for m in range(1, 41)]
    some = measured("l40s", taken(streams(samples), 60))
    text = calibrated("l40s", some + one_group, said.append)
    assert "[movement.bfloat16]" in text
    assert "[gemm.bfloat16]" not in text
    assert "gemm in 16 bits: too few measurements; left out" in said
    with pytest.raises(DeviceError, match=r"too few kernels of .* could be measured; give it"):
        calibrated("l40s", one_group)


def test_what_does_not_fit_is_passed_over_and_nothing_else(samples, monkeypatch):
    clock = mock.Mock(side_effect=[torch.cuda.OutOfMemoryError, 1.0] * 5)
    assert len(taken(streams(samples), 10, clock)) == 5
    clock.side_effect = RuntimeError("of a kernel")
    with pytest.raises(RuntimeError, match="of a kernel"):
        taken(samples, 1, clock)
    # An interruption ends it between two kernels.
    monkeypatch.setattr(
        makers, "safe_point", mock.Mock(side_effect=[None, None, KeyboardInterrupt])
    )
    clock = mock.Mock(return_value=1.0)
    with pytest.raises(KeyboardInterrupt):
        taken(samples, 3, clock)
    assert clock.call_count == 2


@pytest.mark.parametrize(
    ("error", "said"),
    [(None, ""),
     (torch.cuda.OutOfMemoryError("CUDA out of memory"), "has too little free memory for"),
     (RuntimeError("no kernel\nmore"), "could not be calibrated: no kernel$")],
)  # fmt: skip
def test_a_calibration_keeps_its_time_and_its_share_of_memory(monkeypatch, samples, error, said):
    """A call takes 3 s here; a part of the 60 is for fits, and one of the memory for CUDA."""
    shares, time = [], SimpleNamespace(now=0.0, monotonic=lambda: time.now)

    def seconds(*_):
        time.now += 3
        return 1.0

    whole = properties("NVIDIA H100 80GB HBM3", sms=132, memory=85 * 10**9, capability=(9, 0))
    for name, value in {
        "is_available": lambda: True, "get_device_capability": lambda _: (9, 0),
        "get_device_properties": lambda _: whole, "device": contextlib.nullcontext,
        "stream": contextlib.nullcontext, "Stream": str, "empty_cache": int,
        "set_per_process_memory_fraction": lambda share, _: shares.append(share),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.random, "fork_rng", contextlib.nullcontext)
    monkeypatch.setattr(makers, "time", time)
    for name, value in {
        "time": time, "check_can_fit": int, "_host_figures": lambda _: HOST,
        "gpu_samples": lambda _: streams(samples) * 9,
        "GraphClock": mock.Mock(side_effect=error, return_value=SimpleNamespace(seconds=seconds)),
        "KernelsAlone": lambda _, *others: KernelsAlone(META, *others),
        "profile_text": lambda gpu, *_: gpu.name,
    }.items():  # fmt: skip
        monkeypatch.setattr(gpu_calibration, name, value)
    with pytest.raises(DeviceError, match=said) if error else contextlib.nullcontext():
        found = gpu_calibration.calibrated_gpu(CUDA, on_progress=str, budget_seconds=60)
        assert (found, time.now) == ("h100-sxm", 51.0)
    assert shares == [pytest.approx(0.8 * 6 / 85), 1.0]


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
    text = gpu_calibration.calibrated_gpu(CUDA, on_progress=said.append, budget_seconds=80)
    file.write_text(text, encoding="utf-8")
    timed = profile_from_file(file)
    own = [each.median for each in timed.kinds.values() if "torch" in each.framework]
    assert len(own) == len(KINDS)
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


def float32_text():
    return kind_text("gemm", "float32", first_guess("gemm", "float32"), ERRORS, "torch")


@pytest.fixture
def read(tmp_path):
    def profile(*parts, name="mine", known=None):
        file = tmp_path / "own.toml"
        file.write_text("\n".join([f'name = "{name}"', *parts]), encoding="utf-8")
        return profile_from_file(file, known)

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
    [other] = kernel_seconds([kernel], read(GPU)).errors
    # Products in fp32 were published nowhere, attention with a bias was.
    assert (other.p90, other.assumed) == ((1.0, False) if "attention" in kind else (0.5, True))


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
        sizes = [*itertools.product((1, 100, 3000), (64, 512), (1280,), (1, 5), (False, True))]
        names = ("m", "n", "k", "batch", "cold")
        columns = dict(zip(names, np.array(sizes, float).T, strict=True))
        none = np.zeros(len(sizes), bool)
        rows = MeasuredRows(columns, columns["m"], none, none, np.zeros((len(sizes), 2), int), "")
        c = timed.kinds["gemm", "float32"].coefficients
        expected = [
            timed.gemm_seconds(*shape, batch=batch, cold=is_cold, dtype="float32")
            for *shape, batch, is_cold in sizes
        ]
        # A device rounds to a trillionth.
        found = predicted("gemm", rows, timed.gpu, "float32", c)
        assert found.tolist() == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize(("rate", "is_there"), [("float32_tflops = 10\n", True), ("", False)])
    def test_another_gpu_takes_it_over_where_it_has_such_a_rate(self, read, rate, is_there):
        known = {**all_profiles(), "mine": read(GPU, float32_text())}
        lines = GPU.replace("l40s", "mine").replace("float32_tflops = 10\n", rate)
        assert (("gemm", "float32") in read(lines, name="another", known=known).kinds) == is_there


class TestHost:
    @pytest.fixture
    def measured(self, read):
        return read(host_text(HOST), name="l40s")

    def test_the_eager_runtime_goes_by_it_and_says_so(self, measured):
        dimensions = ModelDirectory.read(DEFAULT.reference).dimensions()
        workload = DEFAULT.plan(page=(640, 640), max_new_tokens=50, text_tokens=5)
        shipped, given = (all_profiles()["l40s"], dataclasses.replace(EAGER, **vars(HOST)))
        assert (measured.host, shipped.host) == (HOST, None)

        def found(profile, host):
            model = TimedModel(DEFAULT, dimensions, BFLOAT16, False, profile)
            return predict(model, workload, Assumptions(host, OutputLengths.fixed, 0.01))

        # A host that somebody gave, and an engine's, stay.
        for own, other in ((EAGER, given), (given, given), (SERVERS["vllm"], SERVERS["vllm"])):
            mine, expected = found(measured, own), found(shipped, other)
            assert mine.stages == expected.stages
            assert mine.page_seconds == expected.page_seconds
            assert mine.assumptions.host == own.name
        said = " ".join(found(measured, EAGER).assumptions.sentences)
        parts = ("7.5 us to launch an operator (measured)", "11 GB/s (measured)", "(assumed")
        assert [part in said for part in parts] == [True, True, False]

    def test_many_pages_are_said_to_go_by_it(self, measured):
        shipped = all_profiles()["h100-sxm"]
        job = Assumptions(EAGER, OutputLengths.fixed)
        [*_, launch, link, _, _, _] = job.sentences("some", [measured])
        assert "; 7.5 us to launch an operator (measured)" in launch
        assert "at 11 GB/s (measured)" in link
        alone = job.sentences("some")
        assert job.sentences("some", [shipped]) == alone
        both = job.sentences("some", [measured, shipped])
        assert {f"l40s: {launch}", f"h100-sxm: {alone[2]}"} <= {*both}
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
        c = dataclasses.replace(first_guess("gemm", "bfloat16"), norm=1.23456)
        # An error of nothing is still an error.
        exact = dataclasses.replace(ERRORS, held_out_median=0.0, held_out_p90=0.0)
        for errors, median, p90 in ((ERRORS, 0.02, 0.05), (exact, 1e-4, 1e-4)):
            text = kind_text("gemm", "bfloat16", c, errors, odd)
            assert read(GPU, text).kinds["gemm", "bfloat16"] == Fitted(
                c, median, p90, 40, 100, "mine", odd, 8
            )

    def test_three_groups_of_ten_are_held_out_whole(self):
        groups = [*itertools.product(range(100), range(30))]
        held = held_out_groups([*groups, *groups])
        assert (held[: len(groups)] == held[len(groups) :]).all()
        assert 0.27 < held.mean() < 0.33
