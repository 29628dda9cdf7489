"""GPUs: their catalogue, kernel times and profiles, what they lack, and what fits into them."""

import itertools
import json
import math
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from both_engines import LATENT, small_directory
from command_line import run
from hypothesis import given, settings, strategies as st
from msgspec import structs
from sampling import named, sampled

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.closed_forms import _logits_bytes
from dsocr_analyze.cli import main
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.figures import BytesAlive, MemoryFigures, Peak, expected_experts
from dsocr_analyze.hardware import device, kernel_times, profile as profiles
from dsocr_analyze.hardware.coefficients import COEFFICIENTS, coefficients_of
from dsocr_analyze.hardware.devices import (
    Gpu,
    check_features,
    gpu_aliases,
    gpu_catalogue,
    missing_features,
)
from dsocr_analyze.hardware.fit import LARGEST_BATCH, MemoryNeed, fit, largest_batch, memory_need
from dsocr_analyze.hardware.kernel_times import formula_seconds
from dsocr_analyze.hardware.machine import Machine
from dsocr_analyze.hardware.profile import all_profiles, check_gpu, check_kinds, profile_from_file
from dsocr_analyze.hardware.timed_device import ENGINES, EXTRAPOLATED_BAND, WEIGHT_ONLY_ERROR
from dsocr_analyze.kernels import BFLOAT16, FLOAT16, FLOAT32
from dsocr_analyze.model.directory import read_config

HARDWARE = Path(__file__).parent.parent / "src/dsocr_analyze/hardware"
MEASURED = ("h100-sxm", "h200-sxm", "l40s", "b200", "b300", "gb200", "gb300", "rtx-pro-6000",
            "a100-80gb-sxm")  # fmt: skip
SHIPPED = set(COEFFICIENTS)
"""Kinds that every shipped profile has."""
BEFORE_AMPERE = {"t4", "v100-sxm-16gb", "v100-sxm-32gb", "v100-pcie-16gb", "v100-pcie-32gb",
                 "rtx-2080-ti"}  # fmt: skip
SAMPLE = json.loads((Path(__file__).parent / "data/kernel_times_sample.json").read_text())["rows"]
UNMEASURED = {"mi300x", "mi325x", "mi355x", "arc-pro-b60"}
MEMORY_ONLY = {name for name, gpu in gpu_catalogue().items() if not gpu.has_rates}
every_gpu = sampled(
    "name", [name for name in gpu_catalogue() if name not in UNMEASURED | MEMORY_ONLY],
    named("h100-sxm", "a100-80gb-sxm", "b200", "t4"),
)  # fmt: skip


def gpu_with(memory_gb=1, **attributes):
    return Gpu("made-up", "Made up", 1, 1, memory_gb=memory_gb, source="made up", **attributes)


# --- laws of kernel times ------------------------------------------------------------------------


def experts_seconds(timed, tokens, **types):
    """The published model's routed experts."""
    return timed.grouped_experts_seconds(tokens, 1280, 896, 64, 6, **types)


def generation_seconds(timed, sequences=64, keys=4096, **types):
    """The published model's attention in a decode step."""
    return timed.attention_seconds(sequences, 1, keys, 10, 128, causal=True, **types)


def kernels(timed, dtype):
    """One call a kernel kind, as functions of a batch-like size."""
    return {
        "gemm": lambda size: timed.gemm_seconds(size, 1280, 896, dtype=dtype),
        "encoder": lambda size: timed.attention_seconds(size, 257, 257, 16, 64, dtype=dtype),
        "context": lambda size: timed.attention_seconds(
            size, 913, 913, 10, 128, causal=True, dtype=dtype
        ),
        "generation": lambda size: generation_seconds(timed, size, 1000, dtype=dtype),
        "experts": lambda size: experts_seconds(timed, size, dtype=dtype),
        "elementwise": lambda size: timed.elementwise_seconds(size * 2560),
    }


@every_gpu
def test_an_array_is_its_elements_and_times_are_those_of_a_chip(name):
    timed, sizes = device(name), 2 ** np.arange(15)
    for call in kernels(timed, timed.gpu.tensor_dtype).values():
        seconds, one_by_one = call(sizes), [call(int(size)) for size in sizes[::4]]
        assert seconds[-1] > 3 * seconds[0]
        assert seconds[::4].tolist() == pytest.approx(one_by_one, rel=1e-12)
        assert isinstance(one_by_one[0], float)
        # Six experts of 1280 x 896 alone are 41 MB: 129 us on the slowest GPU.
        assert 0.7e-6 < seconds[0] < 300e-6
    few = map(timed.elementwise_seconds, (1, 64))
    assert next(few) == pytest.approx(next(few), rel=0.01)
    seconds = experts_seconds(timed, 16384, dtype=timed.gpu.tensor_dtype)
    assert 0.2 < 2 * 6 * 3 * 1280 * 896 * 16384 / seconds / 1e12 / timed.gpu.tensor_tflops < 0.8


def cases(timed, dtype, random):
    """Kernels of random sizes in a data type, each over a run of neighbouring ones.

    Yields a kind, its seconds, the sizes, least FLOPs and bytes, and from which size on neighbours
    are within 1 % of each other, with no step in the tables between them.
    """

    def some(low, high):
        return int(np.exp(random.uniform(np.log(low), np.log(high))))

    def case(kind, seconds, low, high, flops, nbytes, first=100):
        sizes = some(low, high) + np.arange(400.0)
        # Tables have it that products of up to 8 rows take a slow kernel, and that whole blocks of
        # rows take less time in float8.
        sizes = sizes[(kind != "gemm") | ((sizes > 10) & ((dtype != "float8") | (sizes % 64 > 0)))]
        return kind, seconds, sizes, flops(sizes), nbytes(sizes), first

    n, k, size = 64 * some(4, 250), some(256, 16384), 2 - (dtype == "float8")
    E, top = ((64, 6), (128, 8), (8, 2))[some(1, 4) - 1]
    hidden, inter = 64 * some(8, 96), 64 * some(2, 64)
    # Tables have steps at the edges of the rows' tiles.
    yield case("gemm", lambda m, **how: timed.gemm_seconds(m, n, k, dtype=dtype, **how), 1, 9000,
               lambda m: 2 * m * n * k, lambda m: size * n * k + 0 * m, np.inf)  # fmt: skip
    yield case("columns", lambda n, **how: timed.gemm_seconds(64, n, k, dtype=dtype, **how), 256,
               16384, lambda n: 128 * n * k, lambda n: size * n * k)  # fmt: skip
    yield case("movement", lambda rows, **how: timed.elementwise_seconds(2**18 * rows, **how), 1,
               2000, lambda rows: 0 * rows, lambda rows: 2**18 * rows)  # fmt: skip
    if timed.is_measured("experts", dtype):
        of, of_all = 3 * size * hidden * inter, (np.array(1.0 * E), np.array(1.0 * top))
        yield case("experts", lambda tokens, **how: timed.grouped_experts_seconds(
                       tokens, hidden, inter, E, top, dtype=dtype, **how),
                   1, 9000, lambda tokens: 6 * tokens * top * hidden * inter,
                   lambda tokens: of * expected_experts(tokens, *of_all))  # fmt: skip
    G, each, D, B = some(1, 33), 2 ** some(1, 8) // 2, 64 * some(1, 5), some(1, 65)
    H, keys, more, most = G * each, some(32, 20000), some(1, 4000), 9000

    def attention(B, Q, K, causal=True, **how):
        own = {"kv_heads": G, "causal": causal, "dtype": timed.gpu.tensor_dtype}
        return timed.attention_seconds(B, Q, K, H, D, **own, **how)

    step = partial(attention, kv_dtype="float8" if dtype == "float8" else None)
    yield case("keys", lambda K, **how: step(B, 1, K, **how), 32, 20000,
               lambda K: 4 * B * K * H * D, lambda K: 2 * B * K * G * D * size)  # fmt: skip
    yield case("batch", lambda B, **how: step(B, 1, keys, **how), 1, 100,
               lambda B: 4 * B * keys * H * D, lambda B: 2 * B * keys * G * D * size,
               np.inf)  # fmt: skip
    calls = attention, partial(attention, causal=False)
    for call, longer in itertools.product(calls, (lambda Q: Q, lambda Q: Q + more, lambda Q: most)):
        yield case("queries", lambda Q, call=call, more=longer, **how: call(B, Q, more(Q), **how),
                   32, 8000, lambda Q: 2 * B * Q * Q * H * D,
                   lambda Q: 2 * B * Q * (G + H) * D)  # fmt: skip
        yield case("longer", lambda K, call=call, **how: call(B, 32, K, **how), 32, 8000,
                   lambda K: 128 * B * H * D * (K - 32), lambda K: 4 * B * K * G * D)  # fmt: skip


@every_gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_laws_of_kernel_times(name, engine):
    """No faster than the chip or warm ones if cold; more work takes more time, without a jump."""
    timed = device(name).under(engine)
    random, bandwidth = np.random.default_rng([*map(ord, name + engine)]), timed.gpu.bandwidth_gb_s
    for dtype in sorted({"bfloat16", "float16", "float8"} & {*timed.gpu.dtypes}) * 3:
        for kind, call, sizes, flops, nbytes, first in cases(timed, dtype, random):
            of_products = kind in ("gemm", "columns", "experts")
            peak = timed.gpu.tflops(dtype if of_products else timed.gpu.tensor_dtype)
            warm, cold = call(sizes), call(sizes, cold=True)
            assert (warm >= flops / (1e12 * peak)).all(), (kind, sizes)
            assert (cold >= np.maximum(warm, nbytes / (1e9 * bandwidth))).all(), (kind, sizes)
            steps = warm[1:] / warm[:-1]
            assert (steps > 1 - 1e-9).all(), (kind, sizes[:-1][steps < 1])
            assert (steps[sizes[:-1] >= first] < 1.15).all(), (kind, sizes[:-1][steps >= 1.15])
    # Blocks of keys begin one after another, whatever parts they are split into.
    keys, own = np.arange(480.0, 1100), {"kv_heads": 8, "dtype": timed.gpu.tensor_dtype}
    longer = timed.attention_seconds(1, 32, keys, 8, 64, causal=True, **own)
    assert (longer[1:] / longer[:-1]).max() < 1.02


def test_coefficients_beyond_the_chip_give_its_own_limits():
    """At half the least time by their formulas, and nothing else in it."""
    movement = replace(H100.fitted("movement").coefficients, memory_share=2, l2_share=2,
                       ramp_mb=1e-12, launch_us=1e-9)  # fmt: skip
    gemm = H100.fitted("gemm").coefficients
    gemm = replace(
        gemm, memory_share=1e6, l2_share=1e6, launch_us=1e-9,
        **{name: 1e3 for name in vars(gemm) if name.startswith("share_")},
    )  # fmt: skip
    new = {"movement": movement, "gemm": gemm}
    kinds = {(name, "bfloat16"): replace(H100.fitted(name), coefficients=c)
             for name, c in new.items()}  # fmt: skip
    timed = replace(H100, kinds=H100.kinds | kinds)
    assert timed.elementwise_seconds(10**9, cold=True) == pytest.approx(1e9 / 3.35e12)
    assert timed.gemm_seconds(8192, 8192, 8192) == pytest.approx(2 * 8192**3 / 989e12)
    nbytes = 2 * (8192 * 8192 + 2 * 8192)
    assert timed.gemm_seconds(1, 8192, 8192, cold=True) == pytest.approx(nbytes / 3.35e12)


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "touched"),
    # 9 (1 - (6/9)^2), 4 (1 - (2/4)^2), 16 (1 - (12/16)^2), 16 (1 - (8/16)^4), 64 (1 - 1/64)
    [(2, 9, 3, 5), (2, 4, 2, 3), (2, 16, 4, 7), (4, 16, 8, 15), (6, 64, 32, 63), (1, 64, 6, 6),
     (1, 8, 8, 8), (1e6, 64, 6, 64)],
)  # fmt: skip
def test_expected_experts_by_hand(tokens, experts, top_k, touched):
    sizes = (np.array(float(size)) for size in (tokens, experts, top_k))
    assert expected_experts(*sizes) == pytest.approx(touched, rel=1e-12)


def test_a_token_touches_as_many_experts_as_it_chooses_to_the_last_digit():
    experts = np.arange(8, 600)
    for top_k in range(1, 9):
        assert (expected_experts(1, experts, top_k) == top_k).all()
    # With a rounding error, they would be fewer than are allowed.
    assert device("h100-sxm").grouped_experts_seconds(1, 1280, 896, 10, 1) > 0


def test_inner_sizes_are_padded_where_the_library_pads_them():
    def seconds(name, activation="silu", gated=True):
        inter = np.array([320, 384])
        return device(name).grouped_experts_seconds(
            64, 2048, inter, 64, 6, activation=activation, gated=gated
        )

    for name in ("b200", "gb300"):
        alone, joint, second = seconds(name, gated=False), seconds(name), seconds(name, "gelu")
        # Multiples of 128: one matrix of 320 columns is one of 384, but two together are 640.
        assert alone[0] == alone[1]
        assert joint[0] / joint[1] == pytest.approx((640 + 384) / (768 + 384), abs=0.05)
        assert joint[1] < second[0] < second[1]
    # An activation changes nothing where one kernel has all.
    assert (seconds("h100-sxm") == seconds("h100-sxm", "gelu")).all()


RATES = "rate_16", "rate_32", "rate_64"


def bare_experts(gpu, cold=True, **sizes):
    """Seconds by coefficients of which those not given are the chip's own limits."""
    given = {"tiles": 2, "inter_step": 1, **dict.fromkeys(RATES, 1e6), "share_128": 1.0,
             "tile_us": 1e-9, "whole_waves": 1e3, "unaligned_ns": 1e-9, "memory_share": 1.0,
             "wide_memory": 1e-9, "l2_share": 1.0, "ramp_mb": 1e-9, "norm": 1e3,
             "movement_share": 1e9, "launch_us": 1e-9}  # fmt: skip
    own = {name: sizes.pop(name, value) for name, value in given.items()}
    c = replace(H100.fitted("experts").coefficients, **own)
    arrays = {name: np.asarray(size, dtype=float) for name, size in sizes.items()}
    return formula_seconds(c, arrays, Machine.of(gpu, "bfloat16", cold=cold), 2)


def test_tensorrt_llm_takes_tiles_of_half_of_the_next_power_of_two_rows():
    """One expert whose columns are nearly a wave of tiles of 128, at the same rate of all tiles."""
    sizes = {"hidden": 128 * 136, "inter": 64 * 136, "experts": 1, "top_k": 1, "touched": 1}
    rows, gpu = np.array([8, 32, 64, 96, 512]), device("b200").gpu
    seconds = bare_experts(gpu, tiles=4, **dict.fromkeys(RATES, 1e-6), tokens=rows, **sizes)
    # A tile of 8 rows, which takes as long as one of 16, then two of 16, of 32 and of 64.
    paid = [16, 2 * 16, 2 * 32, 2 * 64, 8 * 64]
    assert seconds * 1e6 / (2 * 128 * 192 * 136) == pytest.approx(paid, rel=1e-3)


def test_tensorrt_llm_chooses_an_expert_after_the_other():
    one, many = (
        bare_experts(
            device("b200").gpu,
            tiles=4,
            tokens=1,
            hidden=128,
            inter=128,
            experts=512,
            top_k=top_k,
            touched=top_k,
        )
        for top_k in (1, 21)
    )
    assert many - one == pytest.approx(440 * 0.015e-6, rel=0.05)


@pytest.mark.parametrize(
    ("tokens", "touched", "loads", "registers"),
    # Tiles of 32 x 128, 64 x 128, the same with twice the threads, and 128 x 128.
    [(96, 4, 160 * 64, 112), (128, 4, 192 * 64, 160), (160, 4, 192 * 64, 80),
     (640, 8, 256 * 64, 128)],
)  # fmt: skip
def test_single_loads_are_slower_where_a_thread_has_too_few_registers(
    tokens, touched, loads, registers
):
    """Of weights whose width is no multiple of 16; one tile of rows for each expert."""
    seconds = bare_experts(
        H100.gpu, unaligned_ns=1e3, tokens=tokens, hidden=128 * 125, inter=24, experts=64, top_k=1,
        touched=touched,
    )  # fmt: skip
    assert seconds == pytest.approx(touched * loads * max(1, registers / 100) * 1e-6, rel=0.01)


def test_what_experts_hand_on_stays_in_l2_beside_small_weights():
    sizes = {"tokens": 64, "hidden": 1024, "experts": 16, "top_k": 1, "touched": 16}
    # 6 MB of weights, and 403 MB.
    for inter, share in ((64, 1.0), (4096, 1e-3)):
        seconds = bare_experts(H100.gpu, cold=False, movement_share=1e-3, inter=inter, **sizes)
        weights = 16 * 3 * 1024 * inter * 2
        moved = 2 * 64 * (3 * inter + 2 * 1024) + 4 * 64 * 1024
        assert seconds == pytest.approx((weights + moved / share) / 3.35e12, rel=0.15)


# --- types ---------------------------------------------------------------------------------------


def products(timed, dtype, weights_dtype, size):
    """A product and a layer of experts on `size` rows or tokens."""
    types = {"dtype": dtype, "weights_dtype": weights_dtype, "cold": True}
    layer = experts_seconds(timed, size, **types)
    return np.array([timed.gemm_seconds(size, 6848, 1280, **types), layer])


@every_gpu
def test_fewer_bits_of_a_weight_take_less_time(name):
    timed = device(name)
    half, bandwidth = timed.gpu.tensor_dtype, timed.gpu.bandwidth_gb_s * 1e9
    own, eight, four = (products(timed, half, each, 1) for each in (None, "int8", "int4"))
    # What a product computes may take longer than its bytes, whatever their number.
    assert ((own >= eight) & (eight >= four)).all()
    assert own[1] > eight[1] > four[1]
    weights = np.array([6848 * 1280, 6 * 3 * 1280 * 896])
    assert (four > weights * (0.5 + 2 / 128) / bandwidth).all()
    own, eight, four = (
        generation_seconds(timed, dtype=half, kv_dtype=each, cold=True)
        for each in (None, "int8", "int4")
    )
    assert own >= eight >= four
    # Outputs have 16 bits whatever the weights have.
    wide = [timed.gemm_seconds(10**4, 10**4, 1, dtype=half, weights_dtype=each, cold=True)
            for each in (None, "int4")]  # fmt: skip
    assert wide[1] == pytest.approx(wide[0], rel=0.02)
    # They are multiplied in 16 bits: with many rows that is what takes the time.
    many = products(timed, half, "int4", 16384)
    assert many == pytest.approx(products(timed, half, None, 16384), rel=0.1)


@pytest.mark.parametrize(
    ("types", "same"),
    [(("bfloat16", "bf16"), ("bf16", None)), (("bfloat16", "bfloat16"), ("bf16", "float16")),
     (("bfloat16", None), ("bf16", "bf16")), (("bfloat16", "fp8"), ("float8", None)),
     (("bfloat16", "float8"), ("float8", None)), (("fp8", "fp8"), ("float8", None))],
)  # fmt: skip
def test_aliases_and_defaults(types, same):
    timed = device("h100-sxm")
    assert products(timed, *types, 64).tolist() == products(timed, *same, 64).tolist()


def test_what_was_measured_in_8_bits_is_of_those_measurements():
    timed = device("h100-sxm")
    of_cache = timed.fitted("generation_attention", kv_dtype="fp8")
    assert of_cache is timed.kinds["generation_attention", "float8"]
    fitted = timed.fitted("gemm", weights_dtype="fp8")
    assert (fitted is timed.kinds["gemm", "float8"], fitted.assumed) == (True, False)


@pytest.mark.parametrize("count", [4096, 4097, 20_000])
def test_many_kernels_take_as_long_as_each_alone(count):
    """More than `_AT_A_TIME` are priced in parts, along whichever axis is the longest."""
    sizes, some = 3 * np.arange(1, count + 1), [0, count // 2, count - 1]
    for found, alone in (
        (H100.gemm_seconds(sizes, 1280, 896), lambda m: H100.gemm_seconds(m, 1280, 896)),
        (H100.gemm_seconds(7, sizes[:, None], np.array([[896]])),
         lambda n: [H100.gemm_seconds(7, n, 896)]),
        (H100.grouped_experts_seconds(sizes, 1280, 896, 64, 6),
         lambda tokens: H100.grouped_experts_seconds(tokens, 1280, 896, 64, 6)),
        (H100.attention_seconds(np.array([[2, 30]]), 1, sizes[:, None], 10, 128, causal=True),
         lambda keys: [H100.attention_seconds(batch, 1, keys, 10, 128, causal=True)
                       for batch in (2, 30)]),
        (H100.attention_seconds(2, np.ones(count), 700, 10, 128, causal=True),
         lambda _: H100.attention_seconds(2, 1, 700, 10, 128, causal=True)),
    ):  # fmt: skip
        assert len(found) == count
        assert found[some].tolist() == [alone(int(sizes[each])) for each in some]


def test_many_kernels_may_be_a_square():
    keys, batch = np.arange(70 * 70).reshape(70, 70) + 1, np.arange(70) + 1
    found = H100.attention_seconds(batch, 1, keys, 10, 128, causal=True)
    alone = [H100.attention_seconds(each, 1, keys[30], 10, 128, causal=True)[each - 1]
             for each in (1, 40, 70)]  # fmt: skip
    assert found[30][[0, 39, 69]].tolist() == alone


SHARES = ("share_16", "share_64", "share_128", "share_256", "share_more")


def float8_products(m, size, slow):
    """Seconds on an H100 whose tiles with these shares are 10,000 times slower."""
    fitted = H100.kinds["gemm", "float8"].coefficients
    c = replace(fitted, **{share: getattr(fitted, share) / 1e4 for share in slow})
    sizes = {"m": np.array(m), "n": np.array(size), "k": np.array(size)}
    return formula_seconds(c, sizes, Machine.of(H100.gpu, "float8"), 1)


@pytest.mark.parametrize(("limit", "number"), [(16, 1), (64, 2), (128, 3), (256, 4)])
def test_a_tile_takes_the_rows_up_to_its_limit(limit, number):
    same, _ = float8_products([limit, limit + 1.0], 1280.0, ())
    before, after = float8_products([limit, limit + 1.0], 1280.0, SHARES[number:])
    assert before == pytest.approx(same, rel=0.1)
    assert after > 100 * before


def test_kernels_of_two_ranges_meet_between_their_times_where_more_rows_would_take_less():
    (before, after), (slow, _), (_, fast) = (
        float8_products([256, 257.0], 8192.0, shares) for shares in (SHARES[:4], SHARES, ())
    )
    assert before == pytest.approx(after, rel=0.05)
    assert slow > 1000 * fast
    assert 0.5 < before / math.sqrt(slow * fast) < 2


@pytest.mark.parametrize(
    ("gpu", "paid"), [("h100-sxm", [128, 192, 256]), ("b200", [128, 192, 256]),
                      ("a100-80gb-sxm", [128, 256, 256]), ("rtx-pro-6000", [128, 256, 256])],
)  # fmt: skip
def test_192_rows_fill_a_tile_of_hopper_and_of_blackwell_in_data_centres(gpu, paid):
    """Products whose columns are nearly a wave of tiles of 128, at the same rate of large tiles."""
    machine = Machine.of(device(gpu).gpu, "bfloat16")._replace(bytes_per_second=1e20)
    c = replace(
        H100.fitted("gemm").coefficients, share_256x128=1.0, share_128x256=1.0, share_128x128=1.0,
        share_128x64=1e-6, share_64x64=1e-6, share_64x32=1e-6, wave_us=1e-9, split_us=1e9,
        whole_waves=1e3, prologue_blocks=1e-9, memory_share=1e6, launch_us=1e-9, crowding=1e-9,
        slow_columns=0,
    )  # fmt: skip
    columns = 128.0 * int(0.9 * machine.sms)
    sizes = {"m": np.array([128.0, 192, 193]), "n": np.array(columns), "k": np.array(8192.0)}
    seconds = formula_seconds(c, sizes, machine, 2)
    flops = 2 * 128 * machine.sms * 8192
    assert seconds * machine.flops_per_second / flops == pytest.approx(paid, rel=1e-2)


@pytest.mark.parametrize(("n", "is_cold"), [(512, False), (4096, True)])
def test_weights_that_take_turns_are_in_l2_only_if_all_of_them_are(n, is_cold):
    sizes = {"m": 1, "n": n, "k": 2048}
    own, in_turn = (H100.seconds("gemm", {**sizes, **more}) for more in ({}, {"others": 5}))
    # Six are 12.6 MB, which L2 holds, or 101 MB, which it does not; one of the latter is 16.8 MB.
    assert in_turn == pytest.approx(H100.seconds("gemm", sizes, cold=is_cold), rel=1e-3)
    assert (own < 0.99 * in_turn) == is_cold


def test_blocks_of_an_elementwise_kernel_take_their_time():
    few, many, long = (
        H100.seconds("movement", {"moved": 3 * 2**20, "rows": rows, "width": 2**20 // rows})
        for rows in (2**8, 2**16, 1)
    )
    assert few == pytest.approx(H100.elementwise_seconds(3 * 2**20), rel=0.1)
    fitted = H100.fitted("movement").coefficients
    nanoseconds = 2**16 * fitted.row_ns, 2**20 * fitted.element_ns
    assert (many, long) == pytest.approx([1e-9 * each for each in nanoseconds], rel=0.1)


@pytest.mark.parametrize(("head_dim", "blocks"), [(64, 1), (96, 2)])
def test_flash_attention_2_reads_twice_as_many_keys_at_a_time_of_narrow_heads(head_dim, blocks):
    timed = device("l40s")
    fitted = timed.fitted("encoder_attention").coefficients
    assert (fitted.head_step, fitted.tile_keys) == (32, 64)
    blocks_alone = replace(fitted, block_us=1e3)
    sizes = {"batch": 1, "queries": 1, "heads": 1, "head_dim": head_dim, "kv_heads": 1}
    sizes = {name: np.array(float(size)) for name, size in sizes.items()}
    sizes["keys"] = np.array([64.0, 128.0])
    few, more = formula_seconds(blocks_alone, sizes, Machine.of(timed.gpu, "bfloat16"), 2)
    assert more == pytest.approx(blocks * few, rel=0.05)


def test_an_encoder_takes_longer_for_uneven_heads_and_for_long_kernels():
    fitted = device("b200").fitted("encoder_attention").coefficients
    alone = replace(fitted, head_step=16, norm=1e3, launch_us=1e-9, late_us=1e-9)

    def seconds(head_dim, batch, **changed):
        sizes = {"batch": batch, "queries": 4096, "keys": 4096, "heads": 16, "head_dim": head_dim,
                 "kv_heads": 16}  # fmt: skip
        sizes = {name: np.array(float(size)) for name, size in sizes.items()}
        machine = Machine.of(device("b200").gpu, "bfloat16")
        return float(formula_seconds(replace(alone, **changed), sizes, machine, 2))

    even, uneven = (seconds(head_dim, 1, uneven_head=0.5, heat=1e-9) for head_dim in (80, 72))
    assert uneven == pytest.approx(1.5 * even, rel=1e-6)
    # At a clock that falls by half in the end, by a third of that after 10 ms: half is at 20 ms.
    for batch in (8, 64, 512):
        cool, hot = (seconds(80, batch, heat=heat) for heat in (1e-12, 1.0))
        assert hot == pytest.approx(cool * (1 + cool / (cool + 0.02)), rel=1e-6)


def test_tiles_of_queries_begin_well_before_the_middle_of_many():
    """Four tiles of 128 take 400 queries; the fourth is three quarters begun."""
    fitted = device("l40s").fitted("encoder_attention").coefficients
    c = replace(fitted, tile_queries=128, tile_us=1e4, block_us=1e-9, whole_waves=1e-9, heat=1e-9,
                slots=1, crowding=1e-9)  # fmt: skip
    sizes = {"batch": 200, "keys": 64, "heads": 71, "head_dim": 64, "kv_heads": 71}
    sizes = {name: np.array(float(size)) for name, size in sizes.items()}
    sizes["queries"] = np.array([128.0, 384, 400, 406, 512])
    seconds = formula_seconds(c, sizes, Machine.of(device("l40s").gpu, "bfloat16"), 2)
    assert seconds / seconds[0] == pytest.approx([1, 3, 3.75, 4, 4], rel=0.01)


def test_a_tokens_experts_read_it_from_memory_once():
    sizes = {"tokens": 96, "hidden": 2048, "inter": 512, "experts": 64, "top_k": 8, "touched": 64}
    seconds = bare_experts(H100.gpu, movement_share=1e9, **sizes)
    weights = 64 * 3 * 2048 * 512
    # 96 tokens, 768 rows out of the first product and in and out of the second.
    read_and_written = 96 * 2048 + 768 * (1024 + 512 + 2048)
    assert seconds == pytest.approx(2 * (weights + read_and_written) / 3.35e12, rel=1e-3)


def test_heads_that_share_keys_share_a_tile_where_the_library_packs_them():
    sizes = {"batch": 4096.0, "queries": 16, "keys": 16, "heads": 64, "head_dim": 64, "kv_heads": 8}
    sizes = {name: np.array(size) for name, size in sizes.items()}
    fitted = H100.fitted("context_attention").coefficients
    machine = Machine.of(H100.gpu, "bfloat16")
    one_head, of_a_key_head = (
        formula_seconds(replace(fitted, packed_queries=most), sizes, machine, 2)
        for most in (15, 16)
    )
    # Eight heads of 16 queries fill the tile of 128.
    assert one_head > 3 * of_a_key_head


CACHE_ALONE = replace(
    device("l40s").under("sglang").fitted("generation_attention").coefficients, tile_keys=64,
    slots=1, splits=0, few_heads=0, tile_us=1e-9, tile_width=1e-9, block_us=1e-9, row_us=1e-9,
    whole_waves=1e9, merge_us=1e-9, combine_us=1e-9, memory_share=1.0, l2_share=1.0, norm=1e3,
    launch_us=1e-9, late_us=1e-9, tall_tile=1e-9, grouped_us=1e-9, sequence_us=1e-9,
)  # fmt: skip
"""A cache's attention in which nothing takes time but what a test sets, and the bytes."""
TEN_SMS = Machine(1e20, 1e20, 10, 1.0, cold=True)


def cache_us(keys, batch=1, heads=1, kv_heads=1, head_dim=128, **changed):
    """Microseconds of a decode step's attention on ten SMs of endless bandwidth."""
    sizes = {"batch": batch, "queries": 1, "keys": keys, "heads": heads, "head_dim": head_dim,
             "kv_heads": kv_heads}  # fmt: skip
    sizes = {name: np.array(float(size)) for name, size in sizes.items()}
    return 1e6 * float(formula_seconds(replace(CACHE_ALONE, **changed), sizes, TEN_SMS, 2))


@pytest.mark.parametrize(
    ("keys", "batch", "splits", "us"),
    [
        # A block of 64 keys takes 1 us. Parts have at least 128 keys, and merging two takes 3 us.
        (64, 1, 0, 1), (128, 1, 0, 2), (256, 1, 0, 4), (512, 1, 0, 2 + 3), (1536, 1, 0, 3 + 3),
        # Nine sequences keep ten SMs busy; of six, three parts each take two waves of a third.
        (768, 9, 0, 12), (768, 6, 0, 2 * 4 + 3),
        # FlashAttention-3 leaves the four SMs idle; of four sequences, it splits each in two.
        (768, 6, kernel_times.IDLE, 12), (768, 4, kernel_times.IDLE, 6 + 3),
        # FlashAttention-2 splits no keys of heads that share none.
        (1280, 1, kernel_times.GROUPS, 20),
    ],
)  # fmt: skip
def test_keys_are_split_as_a_library_splits_them(keys, batch, splits, us):
    assert cache_us(keys, batch, splits=splits, row_us=1.0, merge_us=3.0) == pytest.approx(us)


@pytest.mark.parametrize(
    ("heads", "start", "row"),
    # Up to three heads of 16 bits run FlashInfer's kernel without matrix units.
    [(1, 0.4, 0.8), (2, 0.1, 1.6), (3, 0.4 / 9, 2.4), (4, 1, 1), (16, 1, 1), (17, 1.5, 1),
     (64, 1.5, 1), (65, 2 * 1.5, 2)],  # two tiles for each of 8 sequences
)  # fmt: skip
def test_a_tile_starts_and_reads_as_its_heads_are_many(heads, start, row):
    library = {"few_heads": 3, "tall_tile": 0.5}
    found = (cache_us(64, 8, heads, **{name: 1.0}, **library) for name in ("tile_us", "row_us"))
    assert tuple(found) == pytest.approx((start, row))


def test_a_tile_of_flash_attention_2_takes_longer_for_each_head():
    library = {"splits": kernel_times.GROUPS, "tall_tile": 0.5, "tile_us": 1.0}
    starts = [cache_us(64, 8, heads, **library) for heads in (1, 8, 32)]
    assert starts == pytest.approx([1 + 0.5 / 16, 1.25, 2])


def test_a_tile_of_wide_heads_takes_longer():
    """A power of the size of a head for the start; as many bytes for the keys."""
    times = [(cache_us(64, head_dim=D, tile_us=1.0, tile_width=0.5),
              cache_us(64, head_dim=D, row_us=1.0)) for D in (32, 128, 256)]  # fmt: skip
    assert np.ravel(times) == pytest.approx([0.5, 0.25, 1, 1, 2**0.5, 2])


def test_a_cache_a_little_larger_than_l2_may_be_read_from_it():
    """Measured under SGLang on an RTX PRO 6000: 29 us for 134 MB, of an L2 of 128 MiB."""
    timed = device("rtx-pro-6000").under("sglang")
    full, beyond = (
        timed.attention_seconds(1, 1, keys, 16, 128, causal=True) for keys in (16385, 20000)
    )
    assert 23e-6 < full < 40e-6 < 80e-6 < beyond


@pytest.mark.parametrize(
    ("kind", "weights"), [*itertools.product(WEIGHT_ONLY_ERROR, ("int8", "int4"))]
)
def test_the_error_of_weight_only_is_assumed_and_wider(kind, weights):
    own, derived, twice = (
        device(name).fitted(kind, weights_dtype=each)
        for name, each in (("h100-sxm", None), ("h100-sxm", weights), ("h20", weights))
    )
    median, p90 = WEIGHT_ONLY_ERROR[kind]
    assert own.median < median
    assert own.p90 < p90
    assert derived == replace(
        own, median=median, p90=p90, held_out_rows=0, held_out_groups=0, assumed=True,
        derived=f"{kind} in bfloat16 with fewer bytes per weight",
    )  # fmt: skip
    assert twice.p90 == 2 * p90


# --- refusals ------------------------------------------------------------------------------------

H100 = device("h100-sxm")
ENTRY = {"title": "L20", "tensor_tflops": 119.5, "memory_gb": 48, "source": "datasheet"}
REFUSED = [
    *((WorkloadError, said, call) for said, call in (
        ("m 0", lambda: H100.gemm_seconds(0, 1, 1)),
        ("k -1", lambda: H100.gemm_seconds(1, 1, np.array([4, -1]))),
        ("m nan", lambda: H100.gemm_seconds(float("nan"), 1, 1)),
        ("queries", lambda: H100.attention_seconds(1, 5, 4, 1, 64, causal=True)),
        ("kv_heads", lambda: H100.attention_seconds(1, 4, 4, 6, 64, kv_heads=4)),
        ("queries",
         lambda: H100.attention_seconds(1, np.array([1, 2]), 4, 6, 64, causal=True)),
        ("batch must be 1", lambda: H100.gemm_seconds(1, 64, 64, batch=2, dtype="float8")),
        ("top_k", lambda: H100.grouped_experts_seconds(1, 64, 64, 4, 5)),
        ("silu", lambda: H100.grouped_experts_seconds(1, 64, 64, 4, 2, activation="x")))),
    *((DeviceError, said, call) for said, call in (
        ("encoder_attention has no weights",
         lambda: H100.fitted("encoder_attention", weights_dtype="int8")),
        ("use dtype bfloat16 or float16",
         lambda: H100.attention_seconds(1, 257, 257, 16, 64, dtype="float8")),
        ("kv_dtype 'int2' is unknown; use bfloat16, ",
         lambda: generation_seconds(H100, kv_dtype="int2")),
        ("has no float8; use kv_dtype int8 or bfloat16",
         lambda: generation_seconds(device("a100-80gb-sxm"), kv_dtype="fp8")),
        *((right, lambda name=name, dtype=dtype: device(name).gemm_seconds(1, 64, 64, dtype=dtype))
          for name, dtype, right in (
              ("t4", "bfloat16", "float16"), ("v100-sxm-32gb", "bf16", "float16"),
              ("a100-80gb-sxm", "float8", "bfloat16 or float16"), ("h100-sxm", "float32", "float8"),
              ("l4", "int4", "bfloat16"))),
        *((right, lambda args=args: products(device(args[0]), *args[1:], 1)) for *args, right in (
            ("a100-80gb-sxm", "bf16", "float8", "bfloat16 or float16 or int8 or int4"),
            ("t4", "fp16", "bf16", "float16 or int8 or int4"),
            ("t4", "bf16", "int8", "dtype float16"),
            ("h100-sxm", "float8", "int4", "weights_dtype float8"),
            ("h100-sxm", "int8", None, "bfloat16 or float16 or float8"),
            ("h100-sxm", "bf16", "int2", "float8 or int8 or int4"))),
        ("did you mean h100-sxm", lambda: device("h1000-sxm")),
        *(("^seconds are not predicted on .*: only its memory is known; .* use fit",
           lambda name=name: device(name).elementwise_seconds(1e6)) for name in MEMORY_ONLY),
        *(("^seconds are not predicted on .*: no measured kernel times cover it; .* use fit",
           lambda name=name: device(name).elementwise_seconds(1e6)) for name in UNMEASURED),
        *(("dsocr-analyze devices lists all; .* memory_gb=GB", lambda name=name: device(name).gpu)
          for name in ("h1", "a1000", "", "gtx")),
        ("^file: l20 lacks bandwidth_gb_s, sms, l2_mb$", lambda: check_gpu(ENTRY, "file: l20")),
        ("gfx90a or gfx942 or gfx950, not gfx906",
         lambda: check_features(gpu_with(rocm_target="gfx906"), FLOAT16, flash_attention=True)))),
]  # fmt: skip


@pytest.mark.parametrize(("error", "said", "call"), REFUSED)
def test_what_is_impossible_or_lacking_is_refused_with_what_there_is(error, said, call):
    with pytest.raises(error, match=said):
        call()


# --- the catalogue -------------------------------------------------------------------------------

# Rates with sparsity or of the shader cores, seen in public tables.
WRONG_RATES = {"h100-sxm": [1979], "l4": [242], "rtx-4090": [661, 82.6], "rtx-3090": [285, 35.6]}


def test_every_entry_is_plausible_and_what_a_users_has_to_be():
    for name, entry in tomllib.loads((HARDWARE / "devices.toml").read_text()).items():
        gpu, is_old = gpu_catalogue()[name], name in BEFORE_AMPERE
        # What the driver reports is within 8 % of what is sold, in GB of 10^9 bytes.
        assert abs(gpu.memory_bytes / (gpu.memory_gb * 10**9) - 1) < 0.08
        if name in MEMORY_ONLY:
            kept = {"title", "memory_gb", "memory_mib", "tensor_dtype", "compute_capability"}
            assert entry.keys() <= kept | {"source"}
            assert ("bfloat16" in gpu.dtypes) is not is_old
            continue
        check_gpu(entry, f"devices.toml: {name}")
        assert gpu.name == name
        assert gpu.float32_tflops > 0, f"{name}: give its float32_tflops"
        assert 30 < gpu.tensor_tflops * 1000 / gpu.bandwidth_gb_s < 500
        sourced = "L2" in gpu.weak, "L2" in gpu.source
        assert sum(sourced) == 1, f"{name}: give the L2's source, or name it in `weak`"
        assert ("int8" in gpu.dtypes) == (gpu.int8_tops > 0) == (gpu.tflops("int8") > 0)
        assert ("float8" in gpu.dtypes) == (gpu.float8_tflops > 0)
        assert {"int8", "int4", gpu.tensor_dtype} <= set(gpu.weight_dtypes)
        assert gpu.tensor_tflops not in WRONG_RATES.get(name, ()), "dense, of tensor cores"
        # bfloat16 and FlashAttention-2 came with Ampere; it has no kernels for Intel.
        assert gpu.has_flash_attention is not (is_old or bool(gpu.xe_target))
        assert ("bfloat16" in gpu.dtypes) is not is_old
        assert (gpu.compute_capability == 0) == (name in UNMEASURED)
        assert name in UNMEASURED or (gpu.compute_capability < 8) == is_old


def test_eight_bit_types_are_those_of_the_matrix_units():
    a100, v100, b300 = (device(each).gpu for each in ("a100-80gb-sxm", "v100-sxm-16gb", "b300"))
    assert (a100.tflops("int8"), "int8" in v100.dtypes) == (624, False)
    # Integers were cut down in Blackwell Ultra.
    assert b300.tflops("int8") < b300.tensor_tflops


@pytest.mark.parametrize(
    ("alias", "name"),
    [("h100", "h100-sxm"), ("A100", "a100-80gb-sxm"), ("rtx4090", "rtx-4090"),
     ("RTX 4090", "rtx-4090"), ("NVIDIA H100 80GB HBM3", "h100-sxm"),
     ("nvidia h100 80gb hbm3", "h100-sxm"), ("Tesla T4", "t4"), ("h200_sxm", "h200-sxm")],
)  # fmt: skip
def test_aliases_and_what_torch_reports_are_known(alias, name):
    assert device(alias).gpu.name == name


def test_every_alias_means_a_gpu():
    assert set(gpu_aliases().values()) <= gpu_catalogue().keys()
    assert gpu_aliases().keys().isdisjoint(gpu_catalogue())


def test_the_device_is_light():
    code = (
        "import sys; from dsocr_analyze.hardware import device; device('h100');"
        " sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("gpu", "dtype", "flash", "lacking"),
    [
        ("t4", BFLOAT16, False, ["bfloat16"]),
        ("t4", BFLOAT16, True, ["bfloat16", "FlashAttention-2"]),
        ("t4", FLOAT16, True, ["FlashAttention-2"]),
        ("t4", FLOAT16, False, []),
        ("t4", FLOAT32, False, []),
        ("v100-pcie-32gb", FLOAT16, True, ["FlashAttention-2"]),
        ("a10", BFLOAT16, True, []),
        ("a10", FLOAT32, True, ["FlashAttention-2 in float32"]),
        ("b300", BFLOAT16, True, []),
        ("mi300x", BFLOAT16, True, []),
        (gpu_with(compute_capability=8.0), BFLOAT16, True, []),
        (gpu_with(), BFLOAT16, True, []),  # nobody stated its architecture
    ],
)
def test_what_is_asked_for_and_not_there(gpu, dtype, flash, lacking):
    gpu = device(gpu).gpu if isinstance(gpu, str) else gpu
    assert [*missing_features(gpu, dtype, flash_attention=flash)] == lacking


# --- profiles ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file", sorted(HARDWARE.glob("profiles/*.toml")), ids=lambda each: each.stem
)
def test_every_entry_is_what_a_users_has_to_be(file):
    check_kinds(tomllib.loads(file.read_text(encoding="utf-8")), file.name)


def test_every_gpu_has_every_kind_and_only_what_no_table_holds_is_assumed():
    for name, profile in all_profiles().items():
        without = name in UNMEASURED | MEMORY_ONLY
        assert {kind for kind, _ in profile.kinds} == (set() if without else SHIPPED)
        for (kind, _), fitted in profile.kinds.items():
            is_derived = kind == "movement" and fitted.gpu == "a100-80gb-sxm"
            assert fitted.assumed == bool(fitted.derived) == is_derived
    for kind, dtype in itertools.product(COEFFICIENTS, ("bfloat16", "float8")):
        assert len(coefficients_of(kind, dtype).__dataclass_fields__) <= 20


def predicted_seconds(timed, row):
    """Predicted seconds of a published row."""
    sizes = {name: value for name, value in row.items() if name not in ("gpu", "kind", "seconds")}
    match row["kind"]:
        case "gemm" | "movement":
            return timed.seconds(row["kind"], sizes)
        case "experts":
            activation = "gelu" if sizes.pop("fallback") else "silu"
            return timed.grouped_experts_seconds(**sizes, activation=activation)
    return timed.attention_seconds(**sizes, causal=row["kind"] != "encoder_attention")


@pytest.mark.parametrize("name", MEASURED)
def test_a_measured_profile_says_where_it_is_from_and_holds_on_rows_that_were_held_out(name):
    profile, rows = device(name), [row for row in SAMPLE if row["gpu"] == name]
    gemm = profile.kinds["gemm", "bfloat16"]
    said = "aiconfigurator-core 0.12.0" in profile.source, "Apache-2.0" in profile.licence
    assert (*said, gemm.framework[:5], gemm.extrapolated) == (True, True, "vllm ", False)
    assert min(gemm.training_rows, gemm.held_out_rows, gemm.held_out_groups) > 0
    assert 0 < gemm.median < gemm.p90
    assert len(rows) >= 24
    within = [
        abs(predicted_seconds(profile, row) / row["seconds"] - 1)
        <= profile.kinds[row["kind"], "bfloat16"].p90
        for row in rows
    ]
    # Nine of ten are expected; with a few dozen rows, three of four is beyond chance.
    assert sum(within) >= 0.75 * len(rows)


def test_an_extrapolated_kind_has_a_wider_band():
    l40s, l4, a100, further = map(device, ("l40s", "l4", "a100-80gb-sxm", "a100-40gb"))
    assert (l40s.extrapolated, l4.extrapolated) == (False, True)
    for key, fitted in l4.kinds.items():
        assert fitted.extrapolated
        assert fitted.p90 == pytest.approx(EXTRAPOLATED_BAND * l40s.kinds[key].p90)
    experts, encoder = a100.fitted("experts"), a100.fitted("encoder_attention")
    found = experts.framework[:7], experts.extrapolated, encoder.extrapolated
    assert found == ("sglang ", True, True)
    # Once, however far it comes.
    assert (further.fitted("experts").gpu, further.fitted("encoder_attention")) == (
        "a100-80gb-sxm", encoder,
    )  # fmt: skip


@every_gpu
def test_an_engine_has_its_own_kernels_and_takes_the_others_with_a_wider_band(name):
    kinds = {engine: device(name).under(engine).kinds for engine in ENGINES}
    assert kinds["vllm"] == device(name).kinds
    assert kinds["vllm"].keys() == kinds["sglang"].keys()
    for engine, key in itertools.product(ENGINES, kinds["vllm"]):
        fitted, is_shared = kinds[engine][key], key[0] in ("encoder_attention", "movement")
        assert is_shared or fitted.framework.startswith(engine) or fitted.extrapolated
        assert not is_shared or fitted == kinds["vllm"][key]
    lent, own = (H100.under(each).kinds["experts", "float8"] for each in reversed(ENGINES))
    assert lent == replace(own, median=2 * own.median, p90=2 * own.p90, extrapolated=True)


def test_a_users_kernels_run_under_every_engine_and_an_engines_under_its_own(tmp_path):
    mine = profile_of(
        tmp_path,
        f'name = "h100-sxm"\n{MOVEMENT}framework = "torch 2.9"\nderived = "mine"\n'
        f"{COEFFICIENTS_TEXT}[sglang.{EXPERTS_TEXT}",
    )
    for engine in ENGINES:
        assert mine.under(engine).kinds["movement", "bfloat16"].derived == "mine"
    own, vllm = mine.under("sglang").kinds["experts", "bfloat16"], H100.fitted("experts")
    assert (own.coefficients, mine.fitted("experts")) == (vllm.coefficients, vllm)
    both = "".join(
        f'[{engine}movement.bfloat16]\nderived = "{says}"\n'
        + COEFFICIENTS_TEXT.replace("[", f"[{engine}")
        for engine, says in (("", "anyone's"), ("sglang.", "its own"))
    )
    mine = profile_of(tmp_path, f'name = "h100-sxm"\n{both}')
    said = [mine.under(each).kinds["movement", "bfloat16"].derived for each in ENGINES]
    assert said == ["anyone's", "its own"]


def test_sglang_splits_keys_where_vllm_does_not():
    """Measured under SGLang on an RTX PRO 6000: 8.4 us a layer in place of 25 to 32, warm."""
    timed = device("rtx-pro-6000")
    vllm, sglang = (generation_seconds(timed.under(each), 1, 1024) for each in ENGINES)
    assert sglang < 10e-6 < 24e-6 < vllm


GPU = (
    'name = "h800"\n[gpu]\ntitle = "H800"\ntensor_tflops = 989\nbandwidth_gb_s = 3350\n'
    'memory_gb = 80\nsms = 132\nl2_mb = 50\nsource = "mine"\n'
)
COEFFICIENTS_TEXT = (
    "[movement.bfloat16.coefficients]\nl2_share = 1\nmemory_share = 1\nramp_mb = 1\nlaunch_us = 1\n"
)
MOVEMENT = "[movement.bfloat16]\n"
H100_TEXT = (HARDWARE / "profiles/h100-sxm.toml").read_text(encoding="utf-8")
EXPERTS_TEXT = re.search(r"(?sm)^\[(experts\.bf.*?)^\[experts\.float8", H100_TEXT)[1].replace(
    "[experts", "[sglang.experts"
)


def profile_of(folder, text):
    """The profile in a user's file."""
    (folder / "own.toml").write_text(text, encoding="utf-8")
    return profile_from_file(folder / "own.toml")


def test_a_users_file_adds_a_gpu_in_the_format_of_the_shipped_ones(tmp_path):
    older = f"{GPU}like = 'h100'\ncompute_capability = 7.5\ntensor_dtype = 'float16'\n"
    assert profile_of(tmp_path, older).gpu.has_flash_attention is False
    text = f"{GPU}like = 'h100'\ncompute_capability = 8.0\n"
    derived = profile_of(tmp_path, f"{text}{MOVEMENT}derived = 'a data sheet'\n{COEFFICIENTS_TEXT}")
    movement, gemm = (derived.kinds[kind, "bfloat16"] for kind in ("movement", "gemm"))
    found = movement.derived, movement.assumed, movement.gpu, gemm.assumed
    assert found == ("a data sheet", True, "h800", False)
    assert (derived.extrapolated, derived.gpu.has_flash_attention) == (False, True)
    assert profile_of(tmp_path, text).extrapolated
    timed = device("h800", profiles=[tmp_path / "own.toml"])
    assert timed.gemm_seconds(512, 512, 512) == H100.gemm_seconds(512, 512, 512)
    with pytest.raises(DeviceError):
        device("h800")
    again = profile_of(tmp_path, f'name = "h100-sxm"\n{H100_TEXT}')
    for engine in ENGINES:
        assert again.under(engine).kinds == H100.under(engine).kinds
    # Profiles from before queries were packed are read as they were.
    older = profile_of(tmp_path, 'name = "h100-sxm"\n' + re.sub("packed_.*", "", H100_TEXT))
    assert older.fitted("context_attention").coefficients.packed_queries == 0
    # Once some of its kernels are measured, the others are another GPU's.
    amd = profile_of(tmp_path, f'name = "mi300x"\n{MOVEMENT}derived = "x"\n{COEFFICIENTS_TEXT}')
    assert {kind for (kind, _), each in amd.kinds.items() if not each.extrapolated} == {"movement"}
    assert {kind for kind, _ in amd.kinds} == SHIPPED


@pytest.mark.parametrize(
    ("text", "part"),
    [("name = 3", "name must be"), ("name = ''", "name must be"),
     ("name = 'x'", "table \\[gpu\\]"), ("x", "not a device"),
     (GPU, "coefficients"), ('name = "mi300x"', "coefficients of gemm"),
     (GPU + 'like = "h10"', "own.toml: gpu.like: no GPU 'h10'.* did you mean h100-sxm"),
     ("", "own.toml: name must be lower-case letters.* and is missing$"),
     (GPU + "compute_capability = 7.5",
      "gpu.tensor_dtype must be float16: compute_capability 7.5 has no bfloat16"),
     (GPU + "compute_capability = 7.5\ntensor_dtype = 'bfloat16'", "must be float16"),
     ('name = "rtx-3060"', "no rates in the catalogue"),
     (GPU + 'like = "rtx-3060"', "gpu.like: rtx-3060 has no kernel times"),
     (GPU + "sm = 1", "unknown sm"),
     (GPU.replace("sms = 132\n", ""), "lacks sms"), (GPU.replace("132", "-1"), "gpu.sms"),
     (GPU + "[gemm.bf16]", "unknown type gemm.bf16"),
     (GPU + "[gemm.bfloat16]", "table of coefficients"),
     (GPU + "[movement.bfloat16.coefficients]\nl2_share = 1", "lacks memory_share"),
     *((GPU + COEFFICIENTS_TEXT.replace("l2_share = 1", f"l2_share = {wrong}"),
        rf"l2_share must be a number from 1e-09 to 1e\+09, not {shown}") for wrong, shown in (
         ("0", 0), ("1e-300", 1e-300), ("2e9", 2e9), ("inf", "inf"), ("true", "true"),
         (f"0x{'f' * 5000}", "a huge number"))),
     *((GPU.replace('"h800"', repr(name)), "name must be lower-case letters") for name in (
         "=1+2", "-x", "a b", "A", "a|b", "\u202ea", "a" * 101)),
     (f"{'.'.join('a' * 65)} = 1", "a key has more than 64 parts"),
     *((f"name = 'h100-sxm'\n{re.sub(f'(?m)^{key} = .*', f'{key} = {wrong}', H100_TEXT)}", said)
       for key, wrong, said in (
         ("slots", 0, "slots must be a whole number from 1"),
         ("tile_queries", 0, "tile_queries must be a whole number from 1"),
         ("splits", -1, "splits must be a whole number, not -1"),
         ("tiles", 8, "tiles must be a whole number from 0 to [37], not 8"),
         ("tiles", 1.0, "tiles must be a whole number, not 1.0"))),
     (GPU + COEFFICIENTS_TEXT, "lacks held_out_median, held_out_p90.*derived"),
     ("source = 3\n" + GPU, "source must be a string"),
     ("gemm = 3\n" + GPU, "gemm must be a table"),
     ("sglang = 3\n" + GPU, "sglang must be a table of kinds, not 3"),
     (GPU + "[sglang.gemms.bfloat16]", "unknown gemms; did you mean gemm\\? known are gemm, "),
     (GPU + "[sglang.gemm.bf16]", "sglang: unknown type gemm.bf16"),
     *((f"{GPU}{MOVEMENT}{line}\n{COEFFICIENTS_TEXT}", part) for line, part in (
         ("held_out_p90 = 1", "lacks held_out_median:"),
         ("derived = ''", "derived must be a string"),
         ("held_out_p90 = 1\nheld_out_median = 'x'", "held_out_median must be a number from 1e-09"),
         ("derived = 'x'\nframework = 1", "framework must be a string"),
         ("derived = 'x'\ntraining_rows = 'many'", "training_rows must be a whole number"),
         ("derived = 'x'\nheld_out_rows = []", "held_out_rows must be a whole number")))],
)  # fmt: skip
def test_what_is_wrong_in_a_users_file_is_named(tmp_path, text, part):
    with pytest.raises(DeviceError, match=part):
        profile_of(tmp_path, text)


def test_every_choice_of_a_library_may_stand_in_a_profile():
    most = {"ScaledGemmCoefficients": len(kernel_times.TILES) - 1, "ExpertsCoefficients": 6}
    assert {record.__name__: largest for record, largest in profiles._MOST_TILES.items()} == most
    assert len(kernel_times._CHOICES) == 7


def test_the_table_shows_every_gpu_and_what_is_extrapolated_or_assumed(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "dsocr-analyze/devices"
    folder.mkdir(parents=True)
    (tmp_path / "mine.toml").write_text(GPU + 'like = "h100-sxm"\n')
    named = run(capsys, "devices", "h800", "--profile", tmp_path / "mine.toml")
    (tmp_path / "mine.toml").rename(folder / "mine.toml")
    assert (named[0], "  ~" in named[1], run(capsys, "devices", "h800")) == (0, True, named)
    listed = json.loads(run(capsys, "devices", "--format", "json")[1])["devices"]
    assert [each["name"] for each in listed] == [*gpu_catalogue(), "h800"]
    assert "h100-sxm" in run(capsys, "devices", "h100", "l4", "--format", "markdown")[1]
    lines = [line for line in H100_TEXT.splitlines() if not line.startswith("held_out_")]
    text = "\n".join(lines).replace("framework =", 'derived = "mine"\nframework =')
    (folder / "mine.toml").write_text(f'name = "h100-sxm"\n{text}', encoding="utf-8")
    assert "?15.0 / 40" in run(capsys, "devices", "h100")[1]


# --- what fits -----------------------------------------------------------------------------------

DIMENSIONS = DEFAULT.forms.dimensions(read_config(DEFAULT.reference / "config.json"))
PAGE = DEFAULT.plan(page=(1191, 1684), max_new_tokens=1024)
MB = 10**6


def architecture_of(weights, prefill, decode, cache):
    """An architecture whose pages need so many MB each: nothing is shared but the weights.

    Prefill and decode are inputs, cache, activations and logits; the cache is that at the end.
    """

    def alive(parts):
        return lambda _, page, *__: BytesAlive(*(page.batch_size * part * MB for part in parts))

    return SimpleNamespace(forms=SimpleNamespace(
        memory=lambda _, page, *__: MemoryFigures(
            weights * MB, 0, 0, page.batch_size * cache * MB, Peak(0, "")
        ),
        prefill_bytes_alive=alive(prefill),
        decode_bytes_alive=alive(decode),
    ))  # fmt: skip


PARTS = {"weights": 600, "prefill": (10, 20, 30, 40), "decode": (10, 27, 0, 1), "cache": 25}
BY_HAND = [
    # Changes of the parts, pages, the order of prefilling, and what is found.
    # 600 + 100 a page: 4 in 1,000 MB. The fifth fails for its logits.
    ({}, 3, 0, {"prefill_bytes": 300 * MB, "decode_bytes": 3 * 38 * MB, "needed_bytes": 900 * MB,
                "fits": True, "largest_batch": 4, "limit": "logits", "limit_moment": "prefill"}),
    # 600, a page's prefill pass of 100, 25 for each other page: 13, whose decode step takes
    # 13 x 28 = 364 MB, no inputs among them. The fourteenth fails for the caches.
    ({}, 3, 1, {"prefill": BytesAlive(10 * MB, (20 + 2 * 25) * MB, 30 * MB, 40 * MB),
                "decode": BytesAlive(0, 3 * 27 * MB, 0, 3 * MB), "largest_batch": 13,
                "limit": "cache", "limit_moment": "prefill"}),
    ({"decode": (10, 39, 0, 1)}, 1, 1,
     {"largest_batch": 10, "limit": "cache", "limit_moment": "decode"}),
    # A batch that needs all of the memory fits.
    ({}, 4, 0, {"needed_bytes": 1000 * MB, "usable_bytes": 1000 * MB, "fits": True}),
    ({}, 5, 0, {"fits": False}),
    # Every part can be the limit; weights that fit may leave nothing beside them.
    ({"weights": 1001}, 1, 0, {"largest_batch": 0, "limit": "weights", "limit_moment": None}),
    *((change, 1, 0, {"largest_batch": largest, "limit": limit, "limit_moment": moment,
                      "fits": largest > 0})
      for change, largest, limit, moment in (
          ({"weights": 1000}, 0, "logits", "prefill"),
          ({"prefill": (50, 20, 30, 40)}, 2, "inputs", "prefill"),
          ({"prefill": (10, 45, 30, 40)}, 3, "cache", "prefill"),
          ({"prefill": (10, 20, 60, 40)}, 3, "activations", "prefill"),
          ({"decode": (10, 27, 0, 70)}, 3, "logits", "decode"),
          ({"decode": (80, 27, 0, 1)}, 3, "inputs", "decode"))),
    ({"weights": 1, "prefill": (0, 0, 0, 0), "decode": (0, 0, 0, 0), "cache": 0}, 1, 0,
     {"largest_batch": LARGEST_BATCH, "limit": None}),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "batch", "order", "expected"), BY_HAND)
def test_by_hand(changes, batch, order, expected):
    found = fit(
        gpu_with(), architecture_of(**PARTS | changes), None, replace(PAGE, batch_size=batch),
        dtype=BFLOAT16, flash_attention=False, reserved=0,
    )  # fmt: skip
    found = found.one_at_a_time if order else found
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_need_is_the_weights_and_the_higher_peak():
    peaks = BytesAlive(1, 2, 3, 4), BytesAlive(5, 6, 7, 8)
    for one, other in (peaks, reversed(peaks)):
        assert MemoryNeed(100, one, other).total_bytes == 100 + 26


def need_of(page=PAGE, dtype=BFLOAT16, order="at once"):
    return memory_need(DEFAULT, DIMENSIONS, page, dtype=dtype, flash_attention=False, order=order)


@pytest.mark.parametrize("batch", [1, 7])
def test_passes_hold_their_inputs_caches_and_logits(batch):
    pages, page = replace(PAGE, batch_size=batch), 61_440 * (913 + 1023)
    need, one = need_of(pages), need_of(pages, order="one at a time")
    memory = DEFAULT.forms.memory(DIMENSIONS, pages, BFLOAT16, False)
    assert memory.peak.path in ("", "lm_head")  # the head over all positions is the peak
    assert need.weights_bytes == 2 * 3_336_106_240
    cache, logits = batch * 913 * 12 * 2 * 1280 * 2, batch * 913 * 129_280 * (2 + 4)
    assert structs.replace(need.prefill, activation_bytes=0) == BytesAlive(
        memory.inputs_bytes, cache, 0, logits
    )
    assert (memory.inputs_bytes > batch * 21 * MB, need.prefill.activation_bytes > 0) == (
        True,
        True,
    )
    assert need.prefill.nbytes == memory.peak.nbytes + memory.inputs_bytes
    # The last decode step: what generate was called with too, and a layer's cache twice.
    assert need.decode == BytesAlive(
        memory.inputs_bytes, batch * page + batch * page // 12, 0, batch * 129_280 * (2 + 4)
    )
    # One at a time, the other pages' caches are held at their full length.
    alone = need_of().prefill
    others = alone.cache_bytes + (batch - 1) * page
    assert one.prefill == structs.replace(alone, cache_bytes=others)
    assert one.decode == structs.replace(need.decode, inputs_bytes=0)


def test_logits_are_cast_unless_they_are_in_fp32():
    few = replace(DIMENSIONS, decoder=replace(DIMENSIONS.decoder, vocab_size=10))
    found = [_logits_bytes(few, Pass(1, 3), dtype) for dtype in (BFLOAT16, FLOAT32)]
    assert found == [3 * 10 * (2 + 4), 3 * 10 * 4]
    assert need_of(dtype=FLOAT32).decode.logits_bytes == 129_280 * 4


@pytest.mark.parametrize(
    ("image_size", "text_tokens", "peak", "layers"),
    [
        # Before the decoder runs nothing is cached.
        (1024, 1, "model.sam_model", 0),
        # Eager scores [H, T, T] of a long prompt outweigh a small vocabulary's logits; the
        # caches up to that layer are held.
        (256, 6000, "model.layers.2.self_attn", 3),
    ],
)
def test_a_peak_elsewhere_has_the_caches_up_to_it(image_size, text_tokens, peak, layers):
    given = DEFAULT.forms.dimensions(small_directory().config), DEFAULT.plan(
        page=(300, 300), crop_mode=False, image_size=image_size, text_tokens=text_tokens
    )  # fmt: skip
    memory = DEFAULT.forms.memory(*given, BFLOAT16, False)
    cache = layers * given[1].seq_len * 2 * 320 * 2
    assert memory.peak.path.startswith(peak)
    assert DEFAULT.forms.prefill_bytes_alive(*given, BFLOAT16, False) == BytesAlive(
        memory.inputs_bytes, cache, memory.peak.nbytes - cache, 0
    )


@settings(max_examples=15, deadline=None)
@given(
    st.fixed_dictionaries(
        {"vocab_size": st.sampled_from([10, 1000, 129_280])},
        optional={"n_routed_experts": st.none()},
    ),
    st.sampled_from([{}, LATENT]),
    st.fixed_dictionaries({
        "batch_size": st.integers(1, 9), "text_tokens": st.integers(1, 9000),
        "crop_mode": st.booleans(), "max_new_tokens": st.integers(1, 9000),
        "image_size": st.sampled_from([256, 512, 640]),
    }),
    st.sampled_from([BFLOAT16, FLOAT32]),
    st.booleans(),
)  # fmt: skip
def test_parts_are_no_less_than_nothing_and_add_up(changes, attention, page, dtype, flash):
    dimensions = DEFAULT.forms.dimensions(small_directory(**changes, **attention).config)
    given = dimensions, DEFAULT.plan(page=(1200, 900), **page), dtype, flash
    memory, forms = DEFAULT.forms.memory(*given), DEFAULT.forms
    prefill, decode = forms.prefill_bytes_alive(*given), forms.decode_bytes_alive(*given)
    assert min(*structs.astuple(prefill), *structs.astuple(decode)) >= 0
    assert prefill.nbytes == memory.inputs_bytes + memory.peak.nbytes
    assert prefill.cache_bytes <= memory.prefill_cache_bytes
    assert decode.cache_bytes >= memory.kv_cache_bytes


@pytest.mark.parametrize("most", [0, 1, 2, 3, 4, 5, 60, LARGEST_BATCH - 1, LARGEST_BATCH])
def test_the_largest_batch_is_found_by_few_tries(most):
    is_possible = Mock(side_effect=range(most + 1).__contains__)
    assert largest_batch(is_possible) == most
    tried = [call.args[0] for call in is_possible.call_args_list]
    assert len(tried) <= 2 * math.log2(most + 1) + 2
    assert max(tried) <= LARGEST_BATCH


def batch_fits(gpu, page=PAGE, dtype=FLOAT16):
    """What fits, at once and one at a time."""
    found = fit(gpu, DEFAULT, DIMENSIONS, page, dtype=dtype, flash_attention=False, reserved=0.1)
    return {"at once": found, "one at a time": found.one_at_a_time}


@pytest.mark.exhaustive
@settings(max_examples=25, deadline=None)
@given(
    st.integers(4, 300), st.sampled_from(["tiny", "base", "gundam"]), st.integers(1, 4000),
    st.integers(1, 9000),
)  # fmt: skip
def test_the_largest_fits_and_one_more_does_not(memory_gb, mode, text_tokens, new_tokens):
    workload = DEFAULT.plan(
        page=(1191, 1684), text_tokens=text_tokens, max_new_tokens=new_tokens,
        **{name: getattr(DEFAULT.modes[mode], name)
           for name in ("base_size", "image_size", "crop_mode")},
    )  # fmt: skip
    usable = int(memory_gb * 10**9 * 0.9)
    for order, found in batch_fits(gpu_with(memory_gb), workload).items():
        largest = found.largest_batch
        fitting, more = (
            need_of(replace(workload, batch_size=each), FLOAT16, order)
            for each in (max(1, largest), largest + 1)
        )
        assert largest == 0 or fitting.total_bytes <= usable
        assert more.total_bytes > usable
        assert (found.limit, found.limit_moment) == more.limit(usable)


def test_the_published_model_on_an_h100():
    at_once, one = batch_fits(device("h100-sxm").gpu).values()
    # 65.3 GB beside the weights; 788 MB a page, or 129.6 MB a page of cache and logits.
    assert at_once.usable_bytes == 72 * 10**9
    assert (at_once.limit, at_once.limit_moment) == ("logits", "prefill")
    assert 80 <= at_once.largest_batch <= 83
    assert (one.limit, one.limit_moment) == ("cache", "decode")
    page = 61_440 * (913 + 1023)
    room = 72 * 10**9 - 2 * 3_336_106_240
    assert one.largest_batch == room // (page + page / 12 + 129_280 * 6)


def test_nothing_fits_where_the_model_does_not_run():
    found = batch_fits(device("t4").gpu, dtype=BFLOAT16)["at once"]
    assert found.needed_bytes < found.usable_bytes  # the memory would do
    assert (found.fits, found.largest_batch, found.limit) == (False, 0, None)


# --- the command ---------------------------------------------------------------------------------


def rows_of(capsys, *arguments):
    code, out, _ = run(capsys, "fit", *arguments, "--format", "json")
    return code, json.loads(out)["gpus"]


def test_both_tables_say_what_limits_and_what_is_assumed(capsys):
    page = ("l4", "--page", "1191x1684")
    _, [row] = rows_of(capsys, *page)
    one = row["one_at_a_time"]
    assert ("at once" in row["assumption"], "one page prefills" in one["assumption"]) == (
        True,
        True,
    )
    said = [str(row["largest_batch"]), str(one["largest_batch"]), "logits (prefill)", "708.2 MB",
            "cache (decode)", "inputs", row["assumption"], one["assumption"]]  # fmt: skip
    for form in ("table", "markdown"):
        text = " ".join(run(capsys, "fit", *page, "--format", form, "--assumptions")[1].split())
        assert [each for each in said if each not in text] == []


@pytest.mark.parametrize(
    ("line", "code", "fits"),
    [
        ("l4", 0, [True]),
        ("l4 --batch-size 1000", 1, [False]),
        ("l4 h200 --batch-size 100", 1, [False, True]),
        ("h200 --batch-size 100", 0, [True]),
        # One at a time they would; as generate runs them they do not.
        ("l4 --batch-size 100", 1, [False]),
        # Of a GPU that is not named, nothing fails.
        ("--batch-size 1000000", 0, [False] * len(gpu_catalogue())),
        ("t4 --dtype float16", 0, [True]),
        ("v100 --dtype fp16", 0, [True]),
        ("h100 --use-flash-attn 1", 0, [True]),
    ],
)
def test_exit_codes(capsys, line, code, fits):
    ended, rows = rows_of(capsys, *line.split())
    assert (ended, [row["fits"] for row in rows]) == (code, fits)


def test_the_first_line_tells_what_a_gpu_lacks_from_too_little_memory(capsys):
    """And names few GPUs, or says how many they are."""
    lines = {
        pages: run(capsys, "fit", "--batch-size", pages, "--format", "markdown")[1].split("\n")[0]
        for pages in ("1", "6", "30")
    }
    _, *reasons = lines["1"].rstrip("\\").split("; ")
    older = ", ".join(filter(BEFORE_AMPERE.__contains__, gpu_catalogue()))
    assert reasons == [f"no bfloat16: {older}"]
    for pages, line in lines.items():
        rows = rows_of(capsys, "--batch-size", pages)[1]
        little = [each["gpu"] for each in rows if not each["fits"] and not each["lacks"]]
        fitting = len(rows) - len(BEFORE_AMPERE) - len(little)
        assert f" on {fitting} of {len(rows)} GPUs; " in line
        named = ", ".join(little) if pages == "6" else len(little)
        assert (f"; too little memory: {named}; no bfloat16: t4, " in line) == bool(little)


@pytest.mark.exhaustive
def test_in_a_list_of_all_gpus_what_one_lacks_is_said(capsys):
    rows = {row["gpu"]: row for row in rows_of(capsys)[1]}
    assert {name for name, row in rows.items() if row["lacks"]} == BEFORE_AMPERE
    flash = ("--use-flash-attn", "1")
    [t4] = re.findall(r"\n\| T4 .*", run(capsys, "fit", *flash, "--format", "markdown")[1])
    assert "| no bfloat16, no FlashAttention-2 | - |" in t4
    # Predictions leave those out, but a serving engine brings its own kernel.
    fp16 = ("--dtype", "fp16", *flash, "--format", "json", "--max-new-tokens", "2")
    _, out, err = run(capsys, "time", *fp16, "--runtime", "eager", "--concurrency", "1")
    names = {entry["gpu"] for entry in json.loads(out)["time"]}
    assert names == {*gpu_catalogue()} - BEFORE_AMPERE - UNMEASURED - MEMORY_ONLY
    # One line per reason, which names all of its GPUs.
    unmeasured, *older = (line for line in err.splitlines() if ": left out: " in line)
    assert "seconds are not predicted on " in unmeasured
    assert all("use --use-flash-attn 0" in line for line in older)
    assert len(older) == 2  # of compute capability 7.5 and 7.0
    for said, some in ((unmeasured, UNMEASURED), ("".join(older), BEFORE_AMPERE - MEMORY_ONLY)):
        assert all(said.count(gpu_catalogue()[name].title) == 1 for name in some)
    code, _, err = run(capsys, "time", "v100", *fp16)
    assert (code, err.count("--use-flash-attn 1 has no effect: a serving engine has")) == (0, 1)
    _, _, err = run(capsys, "fit", "h100", *flash, "--server", "sglang")
    assert err.count("--use-flash-attn 1 has no effect: a serving engine has") == 1


@pytest.mark.parametrize(
    ("line", "named"),
    [("fit gtx", "--memory-gb"), ("fit l4 --reserved 1", "--reserved 1"),
     ("fit --format xml", "xml"), ("fit --dtype int4", "bfloat16"),
     ("devices gtx", "--memory-gb"), ("devices --format xml", "xml"),
     ("devices --profile /none/there", "/none/there")],
)  # fmt: skip
def test_bad_input_gets_one_line_and_exit_code_2(capsys, line, named):
    code, out, err = run(capsys, *line.split())
    assert (code, out, err.count("\n"), named in err) == (2, "", 1, True)


def test_no_code_of_a_directory_is_executed(tmp_path):
    (tmp_path / "config.json").write_bytes((DEFAULT.reference / "config.json").read_bytes())
    (tmp_path / "modeling_deepseekocr.py").write_text("raise SystemExit('executed')")
    assert main(["fit", "l4", "--model", str(tmp_path)]) == 0
