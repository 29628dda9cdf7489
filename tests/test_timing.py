"""Predicted seconds: what they are made of, pages and throughput, lengths of outputs, refusals."""

import dataclasses
import gzip
import heapq
import itertools
import math
import random
from collections import deque
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from both_engines import (
    PUBLISHED,
    dimensions_of,
    draw_decoder,
    small_directory,
)
from command_line import run
from hypothesis import given, settings, strategies as st
from relatives import FAMILY
from sampling import first, sampled
from test_server_benchmarks import kept

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.architectures.ocr_family import served as fused
from dsocr_analyze.architectures.ocr_family.served import FUSIONS
from dsocr_analyze.errors import ConfigError, DeviceError, WorkloadError
from dsocr_analyze.hardware import device
from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.hardware.profile import all_profiles
from dsocr_analyze.kernels import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    Elements,
    Gemm,
    Kernel,
    Rows,
    Work,
    dtype_named,
    total_work,
)
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape import ArrayTape
from dsocr_analyze.timing import Interval
from dsocr_analyze.timing.assumptions import (
    Assumptions,
    OutputLengths,
    estimated_preprocessing,
)
from dsocr_analyze.timing.correction import Corrections, basis_of
from dsocr_analyze.timing.eager import eager_pass, eager_step, launched
from dsocr_analyze.timing.kernel_seconds import (
    UNQUANTIZED,
    Duration,
    KindError,
    kernel_seconds,
    mean_step,
)
from dsocr_analyze.timing.length_files import read_lengths
from dsocr_analyze.timing.page_times import ManyPages, PageTimer
from dsocr_analyze.timing.predict import predict, times_of
from dsocr_analyze.timing.runtimes import EAGER, NATIVE, SERVERS, Precision
from dsocr_analyze.timing.serving import (
    LoopPoint,
    LoopTimes,
    ServedModel,
    TimedModel,
    closed_loop,
    running_counts,
    stretch_times,
)
from dsocr_analyze.workload import LARGEST_COUNT

# === durations ===

GEMM = KindError("gemm.bfloat16", 0.1, False, False)
MOVE = KindError("movement.bfloat16", 0.4, True, False)
WHOLE = {"kinds": {GEMM: 6.0, MOVE: 2.0}, "memory": 3.0, "launches": 1.5, "host": 0.5,
         "nbytes": 40.0, "least_compute": 4.0, "least_memory": 3.0}  # fmt: skip
TEN = Duration(**WHOLE)


@pytest.mark.parametrize(
    ("changes", "bound"),
    # The compute-bound part of kernels is 8 less 3.
    [({}, "compute"), ({"memory": 4.5}, "memory"), ({"launches": 6.0}, "launches"),
     ({"host": 5.5}, "host")],
)  # fmt: skip
def test_what_fills_most_of_it_bounds_it(changes, bound):
    assert Duration(**WHOLE | changes).bound == bound


def test_errors_of_one_kind_add_up_and_kinds_are_independent():
    """10 % of 6, 40 % of 2, and the host's 50 % of 2, of 10 s; more kernels are no better known."""
    error = math.sqrt(0.6**2 + 0.8**2 + 1.0**2) / 10
    assert [TEN.error, TEN.times(10).error] == pytest.approx([error, error])
    assert (TEN.band().low, TEN.band().high) == pytest.approx((10 / (1 + error), 10 * (1 + error)))


@pytest.mark.parametrize(
    ("band", "low", "high"),
    [
        (Duration({KindError("x", 3, False, True): 1.0}).band(), 0.25, 4),
        (Duration().band(), 0, 0),
        (Duration({GEMM: 2.0}).band(7.0), 2 / 1.1 + 5, 7.2),  # seconds known besides are exact
        (Interval.within(10.0, 0.25), 8, 12.5),
        # Measured errors: 10 % of 2 and 30 % of 6; a duration's own, whatever else is known.
        (Duration(host=1.0).corrected(2, 0.1).plus(Duration(host=3.0).corrected(2, 0.3)).band(),
         8 / 1.25, 10),
        (Duration(host=1.0).corrected(2, 0.1).times(3).band(20.0), 20 / 1.1, 22),
        (Duration().plus(Duration(host=1.0).corrected(2, 0.1)).band(), 2 / 1.1, 2.2),
    ],
)  # fmt: skip
def test_a_band_is_a_ratio_either_way(band, low, high):
    assert (band.low, band.high) == pytest.approx((low, high))


def product(path, calls=1):
    return Kernel("gemm", "linear", Gemm(1, 1, 8, 8), "bfloat16", "bfloat16",
                  Work(macs=64, bytes_read=144, bytes_written=16), calls, path)  # fmt: skip


def summed(path, rows=8, dtype="int64"):
    return Kernel("reduction", "sum", Rows(rows, 4), dtype, dtype,
                  Work(vector_flops=4 * rows, bytes_read=8), 1, path)  # fmt: skip


@pytest.mark.parametrize(
    ("first", "last", "seconds", "mean"),
    [
        (100, 900, lambda cached: 2.0 + 0.25 * cached, 2 + 0.25 * 500),
        (10, 20, {10: 1.0, 15: 2.0, 20: 9.0}.get, (1 + 4 * 2 + 9) / 6),
        (7, 7, float, 7),
    ],
    ids=["steps that grow with the cache", "the middle counts four times", "a single step"],
)
def test_the_mean_of_steps(first, last, seconds, mean):
    found = mean_step(lambda cached: Duration(host=seconds(cached), launches=1.0), first, last)
    assert (found.host, found.launches) == pytest.approx((mean, 1.0))


# --- kernels that are issued one by one, or in stretches ----------------------------------------


@pytest.mark.parametrize(
    ("stretches", "seconds"),
    [
        # Issued at 1 and 1 + 9; the first ends at 5, the second would at 5 + 3 but for the host.
        ([(5, 1), (3, 9)], [5, 5]),
        # The other way round: the first ends when it is issued, the second computes after that.
        ([(3, 9), (5, 1)], [9, 5]),
        # The third is issued while the second computes, and waits for it.
        ([(1, 3), (6, 1), (2, 4)], [3, 6, 2]),
    ],
)
def test_the_host_runs_ahead_while_the_gpu_computes(stretches, seconds):
    assert list(stretch_times(stretches)) == seconds


# === the eager runtime ===

HOST = dataclasses.replace(EAGER, launch_us=10.0, sync_us=20.0, step_us=500.0, sequence_us=3.0)
STUB = Gpu("stub", "Stub", tensor_tflops=100, bandwidth_gb_s=1000, memory_gb=80, source="",
           sms=100, l2_mb=50, float32_tflops=50)  # fmt: skip


def stub_device(gemm=100e-6, movement=5e-6, attention=0.0):
    """A GPU whose kernels of a kind take a fixed time."""
    taken = {"gemm": gemm, "movement": movement, "attention": attention}

    def seconds(kind, sizes, *_, **__):
        return taken[kind.split("_")[-1]] * np.ones(np.broadcast(*sizes.values()).shape)

    return Mock(
        gpu=STUB, cpu=None, host=None, seconds=Mock(side_effect=seconds),
        is_measured=Mock(return_value=False), elementwise_seconds=lambda moved, **_: 0.0 * moved,
        fitted=Mock(return_value=Mock(p90=0.2, extrapolated=False, assumed=False)),
    )  # fmt: skip


def microseconds(span):
    parts = sum(span.kinds.values()), span.launches, span.host
    return tuple(round(1e6 * float(part), 6) for part in parts)


@pytest.mark.parametrize(
    ("stages", "gemm", "expected"),
    [
        # Launched at 10, 20, 30, 40 us; four products of 100 us end at 410 us.
        ([[product("a", calls=4)]], 100, [(400, 10, 0)]),
        # A slow host is waited for at every launch; the fourth is at 40 us and takes 4 us.
        ([[product("a", calls=4)]], 4, [(16, 28, 0)]),
        # The first stage ends at 10 + 200 us, when the second one's kernels have been launched.
        ([[product("a", calls=2)], [product("b", calls=3)]], 100, [(200, 10, 0), (300, 0, 0)]),
        # A value that the host waits for: launched at 10 and 20 us, the product ends at 110, the
        # sum at 115. The host has it at 135 and launches the last product at 145.
        ([[product("a"), summed("b"), product("c")]], 100, [(205, 20, 20)]),
        # At the end of a stage nothing is left of it to wait: the next one does.
        ([[product("a"), summed("b")], [product("c")]], 100, [(105, 0, 10), (100, 30, 0)]),
        # Whether an image is blank is waited for; a router's sum stays on the GPU.
        ([[summed("model", 1, "bfloat16"), product("model.layers.0")]], 100, [(105, 20, 20)]),
        ([[summed("model.layers.1.mlp.gate", 1, "float32"), product("model.layers.2")]], 100,
         [(105, 15, 0)]),
        ([[], [product("a")]], 100, [(0, 0, 0), (100, 10, 0)]),
    ],
)  # fmt: skip
def test_stages_by_hand(stages, gemm, expected):
    found = eager_pass(dict(enumerate(stages)), stub_device(1e-6 * gemm), HOST)
    assert [microseconds(span) for span in found.values()] == expected


def test_generate_takes_its_time_between_steps():
    span = eager_step([product("a", calls=2)], stub_device(), HOST, sequences=4)
    assert microseconds(span) == (200, 10, 512)


def test_layers_are_launched_in_the_order_of_their_numbers():
    paths = ["model.norm", "model.layers.10.mlp", "model.layers.2.mlp", "model", ""]
    ordered = [each.path for each in launched([product(path) for path in paths])]
    assert ordered == ["", "model", "model.layers.2.mlp", "model.layers.10.mlp", "model.norm"]


@pytest.mark.parametrize(
    ("directory", "flash", "kind", "cold"),
    [
        (PUBLISHED, True, "gemm", {True}),  # weights come from memory in every step
        (PUBLISHED, False, "gemm", {True, False}),  # factors of attention may still lie in L2
        (PUBLISHED, True, "attention", {True}),  # the cache comes from memory
        (small_directory(), True, "gemm", {False}),  # L2 holds these weights whole
    ],
)
def test_what_a_decode_step_finds_in_l2(directory, flash, kind, cold):
    """50 MB of the stub's."""
    stub, dimensions = stub_device(), dimensions_of(directory)
    eager_step(DEFAULT.forms.step_kernels(dimensions, 1, 100, BFLOAT16, flash), stub, EAGER, 1)
    calls = stub.seconds.call_args_list
    assert {call.kwargs["cold"] for call in calls if call.args[0].endswith(kind)} == cold


# === servers ===

SERVED = DEFAULT.forms.served
REFERENCE = dimensions_of(PUBLISHED)
SMALL = dimensions_of(small_directory())


def planned(**page):
    sizes = {"page": (1000, 1400), "base_size": 256, "image_size": 192}
    return DEFAULT.plan(**{**sizes, **page})


def work_of(kernels) -> Work:
    return total_work(kernel.total for kernel in kernels)


def prompt(dimensions, workload, dtype=BFLOAT16, bits=16):
    T = workload.seq_len
    return SERVED.prompt(T, T, workload.visual_tokens, dimensions, dtype, bits)


@pytest.mark.parametrize("shared", [None, 1])
def test_only_shared_experts_are_combined_with_routed_ones(shared):
    dimensions = dimensions_of(small_directory(n_shared_experts=shared))
    step = SERVED.step(1, 9, dimensions, BFLOAT16, 16)
    assert any(each.operator == "combined_experts" for each in step) == (shared is not None)


@st.composite
def decoders(draw):
    """A small decoder that is served: MHA or GQA, dense or mixed, of any depth and width."""
    experts = draw(st.integers(2, 16))
    mixed = st.fixed_dictionaries({
        "n_routed_experts": st.just(experts),
        "moe_intermediate_size": st.integers(4, 200),
        "n_shared_experts": st.sampled_from([None, 1, 2]),
        "num_experts_per_tok": st.integers(1, min(6, experts)),
        "norm_topk_prob": st.booleans(),
        "first_k_dense_replace": st.integers(0, 2),
        "moe_layer_freq": st.sampled_from([1, 2]),
    })  # fmt: skip
    return draw_decoder(draw) | draw(st.just({}) | mixed)


@settings(deadline=None, max_examples=8)
@given(
    decoders(), st.integers(100, 900), st.sampled_from([BFLOAT16, FLOAT16, FLOAT32]), st.booleans(),
    st.integers(1, 9), st.integers(1, 500),
)  # fmt: skip
def test_a_prompt_and_a_step_do_that_of_the_model(changes, side, dtype, flash, sequences, cached):
    """A prompt without logits of earlier positions, and both without angles.

    The model works them out anew in every layer, of every sequence: a product of D/2 frequencies
    and as many positions as there are tokens. Engines look them up.
    """
    dimensions, workload = dimensions_of(small_directory(**changes)), planned(page=(side, 900))
    decoder, T = dimensions.decoder, workload.seq_len
    angles = decoder.layers * decoder.head_dim // 2
    logits = (T - 1) * decoder.hidden_size * decoder.vocab_size
    own = DEFAULT.forms.compose(dimensions, workload, dtype, flash).stages["prefill"].work
    assert work_of(prompt(dimensions, workload, dtype)).macs == own.macs - logits - angles * T
    records = DEFAULT.forms.step_kernels(dimensions, sequences, cached, dtype, flash)
    step = SERVED.step(sequences, cached + 1, dimensions, dtype, 16)
    assert work_of(step).macs == work_of(records).macs - angles * sequences


STEP = SERVED.step(1, 100, REFERENCE, BFLOAT16, 16)
PROMPT = prompt(REFERENCE, planned())


def test_a_step_of_the_published_model_by_hand():
    """One token over 100 keys.

    Attention: 12 x (1280 x 3840 + 1280 x 1280 + 2 x 100 x 1280) = 81 715 200.
    Dense layer: 3 x 1280 x 6848 = 26 296 320. Eleven others: 1280 x 64 for the router,
    3 x 1280 x 896 for each of 6 routed and 2 shared experts: 27 607 040 each.
    Head: 1280 x 129 280 = 165 478 400.

    Launches: 1 lookup, 12 layers of 7 kernels, 1 dense MLP of 3, 11 mixtures of 6, 4 at last. A
    prompt places the features besides, in two kernels.
    """
    assert work_of(STEP).macs == 81_715_200 + 26_296_320 + 11 * 27_607_040 + 165_478_400
    launches = [sum(each.calls for each in kernels) for kernels in (STEP, PROMPT)]
    assert launches == [1 + 12 * 7 + 3 + 11 * 6 + 4, 2 + 1 + 12 * 7 + 3 + 11 * 6 + 4]


def test_every_operator_that_the_model_does_not_have_is_a_fusion_that_is_explained():
    served = {kernel.operator for kernel in PROMPT + STEP}
    composed = DEFAULT.forms.compose(REFERENCE, planned(), BFLOAT16, True)
    own = {kernel.operator for stage in composed.stages.values() for kernel in stage.kernels}
    of_others = {"fused_rms_norm", "deepstack_add"}
    assert (served - own, all(FUSIONS.values())) == (set(FUSIONS) - of_others, True)
    assert served >= UNQUANTIZED, "what stays in 16 bits is launched"


def test_bytes_of_a_fused_norm_and_of_attention_by_hand():
    t = ArrayTape(BFLOAT16)
    fused.fused_add_rms_norm(t, t.input(10 * 8, BFLOAT16), 10, 8)
    # 3 sequences, 1 query over 50 keys, 4 query heads and 2 key heads of 16, keys in 8 bits.
    heads = dataclasses.replace(SMALL.decoder, heads=4, kv_heads=2, head_dim=16)
    fused._attention(t, t.input(3 * heads.hidden_size, BFLOAT16), 3, 1, 50, heads, 8)
    # Keys and values of 5 tokens, 64 elements each, from 16 to 4 bits, and their places.
    fused._attention(t, t.input(5 * heads.hidden_size, BFLOAT16), 5, 1, 50, heads, 4)
    norm, attention, write = (t.kernels[place].work for place in (0, 4, 8))
    assert (norm.bytes_read, norm.bytes_written) == (2 * (10 * 8 * 2 + 8), 2 * 10 * 8 * 2)
    assert attention.bytes_read == 3 * 4 * 16 * 2 + 2 * 3 * 2 * 50 * 16
    assert (attention.bytes_written, attention.macs) == (3 * 4 * 16 * 2, 2 * 3 * 4 * 50 * 16)
    assert (write.bytes_read, write.bytes_written) == (5 * 64 * 2 + 5 * 8, 5 * 64 // 2)


def served_model(name="h100-sxm", precision=NATIVE, **changes):
    server = dataclasses.replace(SERVERS["vllm"], **changes)
    return ServedModel(model_of(REFERENCE, device(name)), server, precision)


def test_the_host_works_between_steps_or_beside_them():
    """Of 8 sequences: 600 + 8 x 13 us longer, or 90,000 + 8 x 1,000 us whatever the GPU takes."""
    alone, longer, hidden = (
        served_model(**{"hidden_step_us": 0.0, "hidden_sequence_us": 0.0, **figures}).step(8, 100)
        for figures in ({}, {"step_us": 600.0, "sequence_us": 13.0},
                        {"hidden_step_us": 9e4, "hidden_sequence_us": 1e3})
    )  # fmt: skip
    found = [1e6 * (longer.seconds - alone.seconds), 1e6 * hidden.seconds]
    assert found == pytest.approx([704, 98_000])


def test_a_long_prompt_goes_through_in_equal_chunks():
    model = served_model(chunk_tokens=300)
    assert [model.chunks(T) for T in (1, 300, 301, 913)] == [1, 1, 2, 4]
    # 913 tokens in 4 chunks of 229, which see 229 x 5 / 2 keys on average.
    attention = [each.dimensions[3:5] for each in model.prompt_kernels(913, 903)
                 if each.operator == "paged_attention"]  # fmt: skip
    assert attention == [(229, 573)]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"use_mla": True, "kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 48,
          "v_head_dim": 40}, "'use_mla'"),
        ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'rope_scaling'"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_named_with_a_way_out(changes, named):
    dimensions = dimensions_of(small_directory(**changes))
    with pytest.raises(ConfigError, match=f"{named}.*runtime='eager'"):
        ServedModel(model_of(dimensions), SERVERS["vllm"])


def test_bytes_of_a_step_by_hand():
    """Two sequences over 100 keys each, in 16 bits and with weights or cache of fewer.

    Routers and head keep their bytes, experts are the ones that two tokens are expected to
    touch, and a scale of two bytes belongs to 128 weights.
    """
    touched = 64 * (1 - (58 / 64) ** 2)
    quantized = 12 * 4 * 1280**2 + 3 * 1280 * 6848 + 11 * (touched + 2) * 3 * 1280 * 896
    records = SERVED.step(2, 100, REFERENCE, BFLOAT16, 16)
    native = work_of(records).bytes_moved + 2 * 11 * touched * 3 * 1280 * 896
    expected = {
        NATIVE: native,
        Precision("int8"): native - quantized * (2 - 1 - 1 / 64),
        Precision("int4"): native - quantized * (2 - 0.5 - 1 / 64),
        # 98 keys were there, one is read and written anew: 2 x 101 tokens of 12 layers.
        Precision(cache="int8"): native - 2 * (100 + 1) * 12 * 2560,
    }
    found = {each: served_model(precision=each).step(2, 100).nbytes for each in expected}
    assert found == pytest.approx(expected)
    kinds = served_model(precision=Precision("int8", "float8")).step(2, 100).kinds
    assert {each.kind for each in kinds} == {
        "gemm.int8", "gemm.bfloat16", "experts.int8", "movement.bfloat16",
        "generation_attention.float8",
    }  # fmt: skip


def test_an_engine_holds_no_logits_but_the_last():
    """Weights, SAM's biases and whatever else lives then, and the inputs of an A4 page."""
    served, page = served_model(), DEFAULT.plan(page=(1240, 1754))
    fixed = 6_672_212_480 + 536_865_280 + 21_059_897
    # A long prompt goes through in chunks: ids, masks and positions are longer, embeddings by
    # those of a whole chunk.
    longer = DEFAULT.plan(page=(1240, 1754), text_tokens=3010)
    more = 3000 * 25 + (2048 - 913) * 1280 * 2
    assert [served.fixed_bytes(each) for each in (page, longer)] == [fixed, fixed + more]


# === closed loops ===


def simulated(clients, times, pages, *, seed=0, spread=0.0):
    """When pages end, simulated event by event, until there are so many.

    The GPU takes prefill passes first, one page at a time; a pass carries every running sequence
    `chunks` tokens further. Otherwise it takes a decode step of all running sequences.
    """
    draw, now, ended, running = random.Random(seed), 0.0, [], []
    free, ready = times.workers * [0.0], deque()  # when each worker is, and each page

    def send():
        ready.append(max(now, heapq.heappop(free)) + times.prepare)
        heapq.heappush(free, ready[-1])

    for _ in range(clients):
        send()
    while len(ended) < pages:
        count = len(running)
        if ready and ready[0] <= now:
            ready.popleft()
            carried = times.chunks * float(times.carried[count])
            seconds, tokens = times.prefill + carried, times.chunks
            new = [round(times.steps * (1 + spread * draw.uniform(-1, 1)))]
        elif running:
            seconds, tokens, new = float(times.step[count]), 1, []
        else:
            now = ready[0]
            continue
        now += seconds
        left = [sequence - tokens for sequence in running] + new
        running = [sequence for sequence in left if sequence > 0]
        for _ in range(len(left) - len(running)):
            ended.append(now)
            send()
    return ended


def drawn_times(random, clients):
    """Times of a page, over orders of magnitude: which part decides differs from draw to draw."""

    def between(low, high):
        return 10 ** random.uniform(low, high)

    sequences = np.arange(clients + 1)
    one, growth = between(-3, -1.7), between(-3, -0.7)
    step = one * (1 + growth * (sequences - 1))
    carried = np.minimum(one * between(-2.5, -0.7) * sequences * min(1, 3 * growth), step)
    steps, chunks = round(between(1, 3.2)), random.choice([0, 1, 1, 2, 3])
    prefill = max(chunks * one, steps * one * between(-2.5, 0))
    prepare = random.choice([0, between(-2.5, 0.3) * (prefill + steps * one / 4)])
    workers = random.choice([1, 2, 4, 8])
    return LoopTimes(prepare, workers, prefill, chunks, float(steps), sequences, step, carried)


def any_times(clients):
    return st.integers(0, 2**32).map(lambda seed: drawn_times(random.Random(seed), clients))


def constant_times(clients, *, prepare=0.0, workers=1, prefill=0.1, chunks=1, steps=100.0):
    """Times that do not depend on how many sequences run."""
    sequences = np.arange(clients + 1)
    step, carried = 0.01 * np.ones(clients + 1), 0.001 * (sequences > 0)
    return LoopTimes(prepare, workers, prefill, chunks, steps, sequences, step, carried)


def steady(clients, times):
    """One loop: an array of one."""
    found = closed_loop(np.array([clients]), times)
    return LoopPoint(*(float(part[0]) for part in found))


def test_steps_are_read_between_the_numbers_at_which_they_are_priced():
    step = np.array([[1.0, 1, 2, 4, 9], [2.0, 2, 3, 5, 7]])
    times = LoopTimes(0, 1, 0, 0, 1, np.array([0, 1, 2, 3, 7]), step, step, np.array([0, 1]))
    times = times.as_columns()
    [found] = times.at(np.array([[5.0], [1.5]]), times.step)
    assert found.tolist() == [[6.5], [2.5]]
    assert running_counts(20).tolist() == [*range(9), 10, 11, 13, 16, 19, 23]


# --- the simulator --------------------------------------------------------------------------------


@sampled(
    ("spread", "draws", "median", "ninety", "worst"),
    # Errors: median 1.3 %, 90th percentile 4.8 %, the worst 8.4 %. Lengths that are all alike keep
    # some draws in lockstep: 16 % at worst.
    [(0.5, 8, 0.02, 0.06, 0.12), (0.5, 120, 0.02, 0.06, 0.12), (0.0, 40, 0.03, 0.2, 0.2),
     (0.25, 40, 0.03, 0.2, 0.2), (1.0, 40, 0.03, 0.2, 0.2)],
    first(1),
)  # fmt: skip
def test_throughput_is_that_of_a_simulation(spread, draws, median, ninety, worst):
    drawn, errors = random.Random(2 if draws > 40 else 3), []
    for number in range(draws):
        clients = drawn.choice([2, 3, 4, 8, 16] if draws > 40 else [2, 4, 8])
        times = drawn_times(drawn, clients)
        ended = simulated(clients, times, 50 * clients, seed=number, spread=spread)
        counted = ended[len(ended) // 4 :]  # the last three quarters
        seconds = (counted[-1] - counted[0]) / (len(counted) - 1)
        errors.append(abs(steady(clients, times).pages_per_second * seconds - 1))
    found = np.percentile(errors, [50, 90, 100])
    assert (found < [median, ninety, worst]).all(), found


# --- limits and laws ------------------------------------------------------------------------------


def test_a_kink_of_the_steps_is_not_jumped_over_by_clients_that_the_cpu_cannot_feed():
    """Steps of up to 64 take 10 ms, of more 20: 64 sequences of 1,000 tokens give 6.4 pages/s.

    The CPU feeds 5, for which 50 sequences suffice; 128 that are fed would give 6.4 again.
    """
    sequences = np.arange(257)
    step = np.where(sequences <= 64, 0.01, 0.02)
    for clients in (80, 90, 100, 128, 256):
        times = LoopTimes(0.2, 1, 1e-6, 0, 1000.0, sequences, step, np.zeros(257))
        point = steady(clients, times)
        assert point.pages_per_second == pytest.approx(5, rel=1e-2)
        assert point.running == pytest.approx(50, rel=0.02)


@pytest.mark.parametrize(
    ("clients", "times", "rate", "within"),
    [
        *((64, constant_times(64, prepare=50.0, workers=each), each / 50, 1e-3)
          for each in (1, 2, 4)),
        # With a worker for every client no page waits for one.
        *((each, constant_times(each, prepare=50.0, workers=4, prefill=1e-6, steps=0.0), each / 50,
           1e-6) for each in (1, 2, 3, 4)),
        # A page in 100 s at most, whose 2 tokens take milliseconds: hardly a sequence runs.
        (512, constant_times(512, prepare=100.0, steps=1.0), 0.01, 1e-3),
        # Pages of one token come at the rate of prefill passes.
        *((each, constant_times(each, prefill=0.5, steps=0.0), 2, 1e-6)
          for each in (1, 2, 3, 4, 16)),
        # A page: 0.1 s, 0.001 s to carry 15 others, 85 tokens that no pass gives, in steps of 16:
        # (100 - 15) / 16 x 0.01 s = 0.053125 s.
        (16, constant_times(16), 1 / 0.154125, 0.02),
    ],
)  # fmt: skip
def test_what_is_slow_alone_gives_the_rate(clients, times, rate, within):
    point = steady(clients, times)
    assert point.pages_per_second == pytest.approx(rate, rel=within)
    if times.prepare:
        waits = clients > times.workers
        assert (point.first_token > 10 * times.prepare / times.workers) == waits
        assert waits or point.first_token == pytest.approx(times.prepare + times.prefill)


@pytest.mark.exhaustive
@given(any_times(16), st.integers(1, 16))
def test_laws_of_a_loop(times, clients):
    """Little's law, what the parts of a page are at least, and what CPU and GPU can do at most."""
    point = steady(clients, times)
    rate = point.pages_per_second
    assert rate * point.page == pytest.approx(clients, rel=1e-9)
    assert point.first_token >= (times.prepare + times.prefill) * (1 - 1e-9)
    assert point.decode >= 0
    assert 1 <= point.running <= clients
    assert rate * times.prepare <= times.workers * (1 + 1e-9)
    # A pass carries at most the other clients' sequences, a step runs at most all of them.
    best_step = min(times.step[n] / n for n in range(1, clients + 1))
    others = min(
        times.chunks * times.carried[n] + max(0.0, times.steps - n * times.chunks) * best_step
        for n in range(clients)
    )
    assert rate * (times.prefill + others) <= 1 + 1e-9


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=60)
@given(any_times(17), st.integers(1, 16), st.sampled_from(["prepare", "prefill", "step"]))
def test_more_clients_never_get_fewer_pages_and_a_slower_part_never_more(times, clients, part):
    rate = steady(clients, times).pages_per_second
    slower = LoopTimes(**{**times._asdict(), part: 1.5 * getattr(times, part)})
    assert steady(clients + 1, times).pages_per_second >= rate * (1 - 1e-3)
    assert steady(clients, slower).pages_per_second <= rate * (1 + 1e-3)


# --- many at once ---------------------------------------------------------------------------------


def test_each_of_many_is_what_it_is_alone_and_as_many_run_as_others_come_by():
    """Loops over four tables, in which 1 to 9 clients share a GPU.

    The balance itself: throughput, decode steps and running sequences agree.
    """
    drawn, n = np.random.default_rng(7), 400
    sequences = np.arange(10)
    growth = 1 + drawn.uniform(0.001, 0.3, (4, 1)) * sequences
    times = LoopTimes(
        prepare=drawn.choice([0.0, 0.02, 0.4], n), workers=2,
        prefill=drawn.uniform(0.02, 0.2, n), chunks=drawn.integers(0, 3, n),
        steps=drawn.choice([0.0, 1.0, 30.0, 900.0], n), sequences=sequences,
        step=0.004 * growth, carried=0.0005 * growth * (sequences > 0),
        table=drawn.integers(0, 4, n),
    )  # fmt: skip
    clients = drawn.integers(1, 10, n)
    found = closed_loop(clients, times)
    for row in range(0, len(clients), 40):
        alone = steady(clients[row], LoopTimes(
            times.prepare[row], 2, times.prefill[row], times.chunks[row], times.steps[row],
            sequences, times.step[times.table[row]], times.carried[times.table[row]],
        ))  # fmt: skip
        assert [part[row] for part in found] == pytest.approx([*alone], rel=1e-9, abs=1e-12)
    others = found.pages_per_second * (clients - 1) / clients
    assert found.running == pytest.approx(1 + others * found.decode, rel=1e-9)
    assert found.pages_per_second * found.page == pytest.approx(clients, rel=1e-9)


# === pages ===

HOSTS = {"eager": EAGER, "serving": SERVERS["vllm"]}
H100, A4 = device("h100-sxm"), DEFAULT.plan(page=(1240, 1754))
CPU = dataclasses.replace(H100, cpu=SimpleNamespace(operator_us=3.0))
"""One whose kernel times are not looked at."""
runtimes = pytest.mark.parametrize("runtime", HOSTS)


def with_gpu(timed=H100, **changes):
    """A GPU of other figures, with the same coefficients."""
    return dataclasses.replace(timed, gpu=dataclasses.replace(timed.gpu, **changes))


def assumed(runtime="serving", tokens=100, *, lengths=None, host=None, prepare=0.01, **changes):
    lengths = lengths or OutputLengths.fixed(tokens)
    return Assumptions(host or HOSTS[runtime], lambda _: lengths, prepare, **changes)


def model_of(dimensions=SMALL, timed=H100):
    return TimedModel(DEFAULT, dimensions, BFLOAT16, False, timed)


def predicted(assumptions, concurrency=(1,), *, page=None, **model):
    return predict(model_of(**model), page or planned(), assumptions, concurrency)


def loads(assumptions, *concurrency, **model):
    return predicted(assumptions, concurrency, **model).throughput


@pytest.mark.parametrize(("concurrency", "is_doubted"), [(16, False), (512, True)])
def test_more_tokens_than_a_front_end_has_streamed_are_doubted(concurrency, is_doubted):
    entry = predicted(assumed(prepare=0.0), (concurrency,))
    assert (entry.throughput[0].tokens_per_second > 13_000) is is_doubted
    notes = [each for each in entry.assumptions.notes if "front end" in each]
    assert len(notes) == is_doubted
    assert all(f"{entry.throughput[0].tokens_per_second:,.0f} tokens/s" in each for each in notes)


def spans(assumptions, *, page=None, **model):
    """What the seconds of a page's stages are made of."""
    return times_of(model_of(**model), page or planned(), assumptions).alone.stages


# === pages and throughput ===

COUNTS = (1, 7)
LENGTHS = [OutputLengths.fixed(1), OutputLengths.of_counts({2: 3, 4: 1}), OutputLengths.fixed(300)]


@runtimes
@pytest.mark.parametrize("lengths", LENGTHS, ids=["one", "some", "many"])
def test_laws_of_pages_and_throughput(runtime, lengths):
    given = assumed(runtime, lengths=lengths, prepare=0.002, workers=2, price_per_hour=1.8)
    found = predicted(given, COUNTS)
    *prefill, step = found.stages.values()
    first, steps = sum(stage.seconds for stage in prefill), lengths.mean - 1
    assert list(found.stages) == list(DEFAULT.stage_names)
    assert found.ttft_seconds == pytest.approx(0.002 + first)
    # Steps grow with the cache.
    assert steps == 0 or 1 - 1e-9 < found.tpot_seconds / step.seconds < 1.5
    # One page at a time takes what a page alone takes.
    assert found.page_seconds == found.throughput[0].page_seconds
    for page in (found, *found.throughput):
        seconds = page.ttft_seconds + steps * (page.tpot_seconds or 0)
        assert page.page_seconds == pytest.approx(seconds)
        assert (page.tpot_seconds is None) == (steps == 0)
    for load, count in zip(found.throughput, COUNTS, strict=True):
        rate, band, cost = load.pages_per_second, load.pages_per_second_band, load.cost_band
        # Little's law; 1,000 pages at 0.5 a second take 2,000 s of an hour of 3,600 s.
        figures = [load.concurrency, load.tokens_per_second, rate * load.page_seconds,
                   load.cost_per_thousand_pages, cost.low, cost.high]  # fmt: skip
        expected = [count, lengths.mean * rate, count, 0.5 / rate, 0.5 / band.high, 0.5 / band.low]
        assert figures == pytest.approx(expected)
        # What the CPU and the GPU can do.
        assert rate * max(0.002 / 2, 0 if runtime == "eager" else first) <= 1 + 1e-9
        assert 0 < band.low < rate < band.high or load.bound == "workers"
    assert len(found.bands) == 2 + (steps > 0)
    for name, band in found.bands.items():
        assert 0 < band.low < getattr(found, name) < band.high


def test_an_estimate_of_the_cpus_work_is_as_uncertain_as_a_host():
    """Half of it either way: of the first token, and of what the CPU bounds."""
    given, estimated = (predicted(assumed(prepare=each), (64,), page=A4) for each in (0.2, None))
    prepare, band = estimated.assumptions.preprocess_seconds, estimated.bands["ttft_seconds"]
    assert band.low < estimated.ttft_seconds + prepare * (1 / 1.45 - 1)
    assert band.high > estimated.ttft_seconds + prepare * (1.45 - 1)
    bands = [each.throughput[0].pages_per_second_band for each in (given, estimated)]
    assert [each.high / each.low for each in bands] == pytest.approx([1, 1.5**2])


@runtimes
def test_preprocessing_is_taken_as_given(runtime):
    without, with_it = (predicted(assumed(runtime, prepare=each)) for each in (0.0, 3.0))
    for name in ("ttft_seconds", "page_seconds"):
        expected, found = (
            np.array([getattr(each, name), each.bands[name].low, each.bands[name].high])
            for each in (without, with_it)
        )
        assert found == pytest.approx(expected + 3)
    [load] = loads(assumed(runtime, prepare=60.0, workers=2), 64)
    rate, band = load.pages_per_second, load.pages_per_second_band
    assert (load.bound, band.low, band.high, rate <= 2 / 60) == ("workers", rate, rate, True)


def test_a_gpu_as_fast_as_its_cpu_leaves_the_rate_uncertain_downwards():
    """Where the GPU's capacity within its band is below the CPU's, the rate may be lower."""
    [free] = loads(assumed(prepare=0.0), 8)
    prepare = 1.02 / free.pages_per_second
    [load] = loads(assumed(prepare=prepare), 8)
    rate, band = load.pages_per_second, load.pages_per_second_band
    assert (load.bound, band.high, rate <= 1 / prepare) == ("workers", rate, True)
    assert free.pages_per_second_band.low * 0.99 < band.low < rate


def test_offline_all_pages_are_prepared_first():
    """A page's share of both: of the CPU alone, then of the GPU without waiting for a CPU."""
    [ahead] = loads(assumed(prepare=0.0), 8)
    [load] = loads(assumed(prepare=0.06, workers=3, is_offline=True), 8)
    seconds = 1 / ahead.pages_per_second
    found = [1 / load.pages_per_second, load.page_seconds, load.ttft_seconds]
    expected = [seconds + 0.02, 0.06 + 8 * seconds, 0.06 + ahead.ttft_seconds]
    assert found == pytest.approx(expected)


# === lengths ===


@pytest.mark.exhaustive
@runtimes
def test_a_mean_between_whole_numbers_of_tokens_is_not_rounded(runtime):
    """Six pages of one token and four of two: 0.4 steps of a page, on average."""
    found = predicted(assumed(runtime, lengths=OutputLengths.of_counts({1: 6, 2: 4})))
    one, two = (predicted(assumed(runtime, tokens)).page_seconds for tokens in (1, 2))
    expected = [one + 0.4 * (two - one), two - one]
    assert [found.page_seconds, found.tpot_seconds] == pytest.approx(expected)


def test_a_served_token_takes_a_step_of_the_pages_that_run():
    """Of 100 and 1,000 tokens: (100^2 + 1000^2) / 2 / 550 / 2 are generated so far, 459."""
    mixed = OutputLengths.of_counts({100: 1, 1000: 1})
    found = predicted(assumed(lengths=mixed), dimensions=REFERENCE, page=A4)
    step = served_model().step(1, 913 + 459)
    assert found.tpot_seconds == pytest.approx(float(step.seconds))


def test_a_second_eager_step_reads_one_more_key():
    one, two = (
        times_of(model_of(), planned(), assumed("eager", tokens)).alone.decode.nbytes
        for tokens in (2, 3)
    )
    assert 2 * one < two < 2.01 * one


@pytest.mark.exhaustive
def test_a_batch_waits_for_its_longest_page_and_served_pages_do_not():
    mixed = OutputLengths.of_counts({100: 1, 1000: 1})
    longest = mixed.expected_longest(8)
    rates = [
        loads(assumed(runtime, prepare=0.0, **lengths), 8)[0].pages_per_second
        for runtime, alike in (("eager", 1000), ("serving", 550))
        for lengths in ({"lengths": mixed}, {"tokens": alike})
    ]
    assert 990 < longest < 1000
    assert rates[0] == pytest.approx(rates[1] * 999 / (longest - 1), rel=0.01)
    assert rates[2] == pytest.approx(rates[3], rel=0.05)


# === memory ===


@pytest.mark.parametrize(
    ("devices", "owner"),
    [([], "the GPU's"), ([H100], "the GPU's"), ([CPU], "the machine's"),
     ([H100, CPU], "each device's")],
)  # fmt: skip
def test_memory_is_kept_free_on_what_computes(devices, owner):
    said = "; ".join(assumed("eager").sentences("", devices))
    kept_free = f"10 % of {owner} memory is kept free" in said
    assert (kept_free, "before each batch runs" in said) == (True, True)


@runtimes
def test_pages_that_do_not_fit_wait_outside(runtime):
    timed, job = with_gpu(memory_gb=1), assumed(runtime, 3)
    largest = predicted(job, timed=timed).largest_concurrency
    fitting, waiting = loads(job, largest, 3 * largest, timed=timed)
    assert (fitting.fits, waiting.fits) == (True, False)
    assert fitting.memory_bytes <= 0.9e9 < waiting.memory_bytes
    rate, longer = fitting.pages_per_second, waiting.ttft_seconds - fitting.ttft_seconds
    found = [waiting.pages_per_second, waiting.page_seconds, longer]
    assert found == pytest.approx([rate, 3 * largest / rate, 2 * largest / rate])


@runtimes
def test_memory_is_kept_for_the_longest_page_and_more_of_it_holds_more_pages(runtime):
    mixed, longest, less = (
        predicted(given, timed=with_gpu(memory_gb=gb))
        for given, gb in (
            (assumed(runtime, lengths=OutputLengths.of_counts({1: 99, 500: 1})), 40),
            (assumed(runtime, 500), 40),
            (assumed(runtime, 500), 16),
        )
    )
    assert 0 < less.largest_concurrency < longest.largest_concurrency == mixed.largest_concurrency
    assert mixed.throughput[0].memory_bytes == longest.throughput[0].memory_bytes


@cache
def loads_in(precision):
    """With 1 and 64 pages at once."""
    return loads(assumed(tokens=88, precision=precision), 1, 64, dimensions=REFERENCE, page=A4)


@pytest.mark.parametrize(
    ("precision", "page", "saved"),
    [
        # 913 tokens of prompt and 88 generated: 1,000 are cached.
        (NATIVE, 61_440_000, 0),
        (Precision(cache="int8"), 30_720_000, 30_720_000),
        (Precision(cache="int4"), 15_360_000, 46_080_000),
        # 2,602,844,160 weights: a byte, or one and a half, less, and 1/64 for scales.
        (Precision(weights="int8"), 61_440_000, 2_602_844_160 - 40_669_440),
        (Precision(weights="int4"), 61_440_000, 3_904_266_240 - 40_669_440),
    ],
)
def test_bytes_of_another_page_and_of_fewer_bits_by_hand(precision, page, saved):
    (native, slower), (one, many) = map(loads_in, (NATIVE, precision))
    assert many.memory_bytes - one.memory_bytes == 63 * page
    assert native.memory_bytes - one.memory_bytes == saved
    assert (many.tpot_seconds < slower.tpot_seconds) == (precision != NATIVE)


def test_a_prompt_beyond_a_chunk_reads_the_weights_again():
    whole, cut = (
        spans(assumed(host=dataclasses.replace(SERVERS["vllm"], chunk_tokens=tokens)),
              dimensions=REFERENCE)
        for tokens in (planned().seq_len, planned().seq_len - 1)
    )  # fmt: skip
    assert sum(cut["prefill"].kinds.values()) > 1.2 * sum(whole["prefill"].kinds.values())
    assert [cut["sam"], cut["decode"]] == [whole["sam"], whole["decode"]]


# === peaks ===


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=10)
@given(
    st.sampled_from(["h100-sxm", "a100-80gb-sxm", "l40s", "b200", "rtx-4090"]),
    st.sampled_from(["bandwidth_gb_s", "tensor_tflops", "float32_tflops"]),
    st.floats(1.0, 4.0),
    st.sampled_from(sorted(HOSTS)),
)
def test_more_bandwidth_or_more_flops_never_make_a_page_slower(name, figure, factor, runtime):
    timed = device(name)
    better = with_gpu(timed, **{figure: factor * getattr(timed.gpu, figure)})
    one, other = (
        loads(assumed(runtime, prepare=0.0), 1, 8, timed=each) for each in (timed, better)
    )
    for slower, faster in zip(one, other, strict=True):
        assert faster.pages_per_second >= slower.pages_per_second * (1 - 1e-6)


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(name for name, each in all_profiles().items() if each.kinds)),
    st.sampled_from(sorted(FAMILY)),
    st.sampled_from(sorted(HOSTS)),
    st.tuples(st.integers(50, 4000), st.integers(50, 4000)),
    st.integers(1, 20_000),
    st.sampled_from([None, "int8", "float8"]),
)
def test_no_stage_uses_more_than_all_of_the_gpu(
    name, architecture, runtime, page, text_tokens, weights
):
    timed, chosen = device(name), ARCHITECTURES[architecture]
    if runtime == "eager" or weights not in timed.gpu.weight_dtypes:
        weights = None
    dimensions = ModelDirectory.read(chosen.reference).dimensions()
    model = TimedModel(chosen, dimensions, dtype_named(timed.gpu.tensor_dtype), False, timed)
    given = assumed(runtime, precision=Precision(weights))
    found = predict(model, chosen.plan(page=page, text_tokens=text_tokens), given)
    for stage in found.stages.values():
        assert (0 < stage.peak_share <= 1, 0 < stage.bandwidth_share <= 1) == (True, True)


def test_a_steps_share_of_the_bandwidth_by_hand():
    """A step reads attention, six routed and two shared experts, routers, head and cache.

    The embedding of one token and what passes from kernel to kernel are the rest.
    """
    mlp = 3 * 1280 * 896
    weights = 12 * 4 * 1280**2 + 3 * 1280 * 6848 + 11 * (8 * mlp + 64 * 1280) + 1280 * 129_280
    cache = 12 * (913 + 1) * 2 * 1280
    step = predicted(assumed(), dimensions=REFERENCE, page=A4).stages["decode"]
    moved = step.bandwidth_share * step.seconds * 3.35e12
    assert moved == pytest.approx(2 * (weights + cache), rel=0.002)


def test_products_in_float32_are_assumed_to_reach_half_of_the_peak_of_their_units():
    work = Work(macs=2048**3, bytes_read=2 * 4 * 2048**2, bytes_written=4 * 2048**2)
    sizes = Gemm(1, 2048, 2048, 2048)
    priced = kernel_seconds([Kernel("gemm", "linear", sizes, "float32", "float32", work)], H100)
    computed = 2 * work.macs / (0.5e12 * H100.gpu.float32_tflops)
    moved = H100.elementwise_seconds(work.bytes_moved)
    assert priced.seconds.item() == pytest.approx(computed + moved)
    assert priced.errors == [KindError("gemm.float32", 0.5, False, True)]


def test_what_l2_serves_is_no_share_of_the_bandwidth():
    """6 MB stay in an L2 of 50 MB; 180 MB do not."""
    add = Kernel("elementwise", "add", Elements(10**6), "bfloat16", "bfloat16",
                 Work(bytes_read=4 * 10**6, bytes_written=2 * 10**6))  # fmt: skip
    priced = kernel_seconds([add, add._replace(work=add.work.times(30))], H100)
    assert priced.least_memory.tolist() == pytest.approx([0, 1.8e8 / 3.35e12])


def test_a_server_measured_beyond_the_peak_is_at_it():
    kinds = {KindError("x", 0, False, False): 2.0}
    span = Duration(kinds, least_compute=0.5, least_memory=1.5).corrected(0.5, None)
    assert (span.least_compute, span.least_memory, span.seconds) == (0.5, 1.0, 1.0)


# === hosts, and what is said ===


def test_an_eager_host_of_other_figures_is_eager_still():
    faster = predicted(assumed(host=dataclasses.replace(EAGER, launch_us=4.0)))
    assert faster.page_seconds < predicted(assumed("eager")).page_seconds


VALUES = 3 * (6 * 640**2 + 1024**2)


def test_what_a_page_costs_the_host_by_hand():
    """A4 at 150 dpi: decoded, padded to 724 x 1024, cut from 1280 x 1920, made tensors.

    Both passes of a resize count the larger of old and new pixels. In the engine, values of two
    bytes are copied at 6 GB/s. This CPU takes twice as long.
    """
    resized = 1754 * 1240 + 724 * 1754 + 1754 * 1280 + 1280 * 1920
    bare = 4.45e-9 * resized + 8.05e-9 * VALUES / 3
    host = dataclasses.replace(
        SERVERS["vllm"], request_us=7000.0, sent_ns=3.0, received_ns=5.0, cpu_factor=2.0
    )
    expected = [bare, 7e-3 + 2 * (bare + 10e-9 * 1240 * 1754 + 3e-9 * VALUES)]
    found = [estimated_preprocessing(DEFAULT, A4, each) for each in (None, host)]
    received = [each.received_seconds(A4.views) for each in (EAGER, host)]
    expected += [VALUES * 2 / 6e9, VALUES * (2 / 6e9 + 10e-9)]
    assert [*found, *received] == pytest.approx(expected)


def test_the_prompt_waits_for_its_pixels():
    """100 ns a value, and two bytes of each at 6 GB/s; a hash is of the whole page's view alone."""
    before, after, hashed = (
        served_model(**each, cpu_factor=1.0).prefill(A4.views, 913, 903)
        for each in ({}, {"received_ns": 100}, {"hashed_ns": 100})
    )
    for later, values in ((after, VALUES), (hashed, 3 * 1024**2)):
        waited = {name: later[name].seconds - before[name].seconds for name in later}
        assert waited.pop("prefill") == pytest.approx(values * 100e-9)
        assert set(waited.values()) == {0}
    assert before["prefill"].host == pytest.approx(VALUES * 2 / 6e9)


def test_every_page_of_a_prompt_has_a_view_that_is_hashed():
    """2 x 1,024 x 1,024 pixels of three values at 2 ns, on a CPU half as fast as the measured."""
    host = dataclasses.replace(SERVERS["sglang"], received_ns=0.0, pixel_bytes=0, cpu_factor=2.0)
    assert host.received_seconds(2 * A4.views) == pytest.approx(2 * 3 * 1024**2 * 4e-9)


def test_the_page_says_how_long_the_gpu_waits_for_a_pixel_value():
    file = Path(__file__).parent.parent / "docs/seconds.md"
    page, view = " ".join(file.read_text(encoding="utf-8").split()), A4.views[-1:]
    waits = {name: 1e9 * SERVERS[name].received_seconds(view) / (3 * 1024**2)
             for name in ("vllm", "sglang")}  # fmt: skip
    hashed = SERVERS["sglang"].cpu_factor * SERVERS["sglang"].hashed_ns
    assert f"the GPU waits {waits['vllm']:.2f} ns a value" in page
    assert f"{waits['sglang'] - hashed:.1f} ns with their copy" in page
    assert f"which takes {hashed:g} ns more" in page


def test_no_two_servers_are_alike():
    pages = [predicted(assumed(host=each)).page_seconds for each in SERVERS.values()]
    assert len({*pages}) == len(SERVERS) == 4


def test_a_step_is_of_the_engine_s_own_kernels():
    """Measured under SGLang on an RTX PRO 6000: 1.33 ms, which vLLM's kernels miss."""
    vllm, sglang = (
        served_model("rtx-pro-6000", engine=each).step(1, 1000).seconds
        for each in ("vllm", "sglang")
    )
    assert sglang == pytest.approx(1.33e-3, rel=0.05)
    assert vllm > 1.2 * sglang


@pytest.mark.parametrize(("side", "begun", "page"), [(512, 0.068, 0.69), (1024, 0.11, 0.75)])
def test_a_first_token_that_was_published(side, begun, page):
    """Unlimited-OCR under SGLang on an H100, 78 and 278 prompt tokens (sglang pull 29186)."""
    chosen, sides = ARCHITECTURES["unlimited-ocr"], {"base_size": side, "image_size": side}
    dimensions = ModelDirectory.read(chosen.reference).dimensions()
    workload = chosen.plan(page=A4.page, crop_mode=False, max_new_tokens=527, **sides)
    model = TimedModel(chosen, dimensions, BFLOAT16, False, H100)
    served = predict(model, workload, Assumptions(SERVERS["sglang"]))
    ratios, band = [served.ttft_seconds / begun, served.page_seconds / page], served.bands
    assert (1 / 1.35 < ratios[0] < 1.35, 1 / 1.15 < ratios[1] < 1.15) == (True, True)
    assert band["ttft_seconds"].low < begun < band["ttft_seconds"].high


@pytest.mark.parametrize("name", SERVERS)
def test_what_is_assumed_is_said(name):
    given = assumed(
        lengths=OutputLengths.of_counts({100: 3, 500: 1}), prepare=0.0125, host=SERVERS[name],
        precision=Precision("int4", "float8"), workers=4, reserved=0.2,
    )  # fmt: skip
    found = predicted(given)
    said = " ".join(found.assumptions.sentences)
    words = [f"a request takes {SERVERS[name].request_us / 1e3:g} ms of CPU",
             "200 tokens on average, 500 at most", "12.5 ms", "(given)", "4 at a time", "20 %",
             "int4", "float8", SERVERS[name].title]  # fmt: skip
    assert [each for each in words if each not in said] == []
    assert (found.runtime, found.assumptions.host) == ("serving", name)


# === many pages ===


def uneven(limit):
    """Some pages end early, the others at the limit: the mean is rarely a whole number."""
    return OutputLengths.of_counts({1: 2, limit: 3}) if limit > 1 else OutputLengths.fixed(1)


L40S = device("l40s")
_OF_L40S = {"gpu": "l40s", "basis": basis_of(L40S, SERVERS["vllm"])}
CORRECTIONS = Corrections((kept(0.4, 1.5, **_OF_L40S), kept(0.5, 1.3, **_OF_L40S)))


def pages(concurrency):
    sides = [(100, 100), (1000, 1400), (1400, 1000), (700, 2100)]
    random, n = np.random.default_rng(7), len(concurrency)
    return ManyPages(
        [planned(page=each) for each in sides], random.integers(0, len(sides), n),
        random.integers(1, 60, n), random.choice([1, 2, 7, 300], n), random.uniform(0, 0.05, n),
        np.array(concurrency),
    )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("host", "dimensions", "concurrency", "changes"),
    [
        (EAGER, SMALL, [1, 1, 1, 2, 4, 16, 3, 1], {}),
        (SERVERS["vllm"], SMALL, [1, 1, 1, 2, 4, 16, 3, 1], {}),
        (SERVERS["sglang"], SMALL, [1, 1, 1, 2, 4, 16, 3, 1], {}),
        (SERVERS["vllm"], SMALL, [1, 2, 4, 16], {"corrections": CORRECTIONS}),
        (SERVERS["vllm"], SMALL, [1, 2, 4, 16], {"corrections": CORRECTIONS, "is_offline": True}),
        (SERVERS["vllm"], REFERENCE, [100_000, 1], {}),  # the first does not fit
        (SERVERS["vllm"], REFERENCE, [1, 8, 8, 1],
         {"precision": Precision("int4", "int8"), "is_offline": True}),
    ],
)  # fmt: skip
def test_each_of_many_pages_takes_what_it_takes_alone(host, dimensions, concurrency, changes):
    model, given = model_of(dimensions, L40S), pages(concurrency)
    job = Assumptions(host, uneven, workers=2, **changes)
    found = PageTimer(model, job).times(given)
    names = ("fits", "pages_per_second", "tokens_per_second", "page_seconds", "ttft_seconds",
             "tpot_seconds")  # fmt: skip
    for row, count in enumerate(concurrency):
        alone = dataclasses.replace(job, preprocess_seconds=float(given.prepare[row]))
        [load] = predict(model, given.workload(row), alone, (count,)).throughput
        assert load.fits == (count < 100)
        expected = [np.nan if (each := getattr(load, name)) is None else each for name in names]
        assert [getattr(found, name)[row] for name in names] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("host", "changes"),
    [(EAGER, {}), (SERVERS["sglang"], {"is_offline": True}),
     (SERVERS["vllm"], {"corrections": CORRECTIONS})],
)  # fmt: skip
def test_what_a_gpu_can_do_is_known_before_loops_are_solved(host, changes):
    timer = PageTimer(model_of(SMALL, L40S), Assumptions(host, uneven, **changes))
    given = pages([1, 3])
    times = timer.times(given)
    found = [each.tolist() for each in timer.capacity(given)]
    assert found == [times.fitting.tolist(), times.gpu_seconds.tolist()]


@pytest.mark.parametrize(
    ("new_tokens", "factor", "error"),
    # The two differ by 25 % in the first token and by 15 % in the others.
    [(1, (0.4 * 0.5) ** 0.5, 0.25), (100_000, (1.5 * 1.3) ** 0.5, 1.5 / 1.3 - 1)],
)
def test_the_work_of_corrected_pages_is_longer_in_both_parts(new_tokens, factor, error):
    bare, corrected = (
        PageTimer(model_of(timed=L40S), assumed(tokens=new_tokens, corrections=each)).times(
            pages([2, 4, 16])
        )
        for each in (Corrections(), CORRECTIONS)
    )
    work, longer = (each.work(np.array([3, 1, 2])) for each in (bare, corrected))
    ratios = [*(corrected.gpu_seconds / bare.gpu_seconds), longer.seconds / work.seconds]
    assert ratios == pytest.approx(4 * [factor], rel=0.01)
    assert (work.measured_error, longer.error) == (None, pytest.approx(error, rel=0.01))
    # Pages of one token keep the GPU busy for their prefill passes.
    if new_tokens == 1:
        assert work.seconds == pytest.approx((np.array([3, 1, 2]) * bare.gpu_seconds).sum())


# === refusals ===


@pytest.mark.parametrize(
    ("error", "said", "model", "changes"),
    [
        *((WorkloadError, f"^{named} .* {right}", {}, changes) for named, right, changes in (
            *(("preprocess_ms", "give 0 or more", {"prepare": each})
              for each in (-0.001, float("nan"), float("inf"))),
            ("workers", "give 1 or more", {"workers": 0}),
            *(("price", "give an amount above 0", {"price_per_hour": each})
              for each in (0.0, -1.0, float("nan"), float("inf"))),
            *(("reserved", "give a fraction", {"reserved": each})
              for each in (1.0, -0.1, float("nan"))))),
        (DeviceError, "dtype .*bfloat16 or float16", {"dtype": FLOAT32}, {}),
        (DeviceError, "dtype .*bfloat16 or float16", {"dtype": FLOAT32}, {"runtime": "eager"}),
        (DeviceError, "dtype float16", {"device": device("t4")}, {}),
        (DeviceError, "float8", {"device": device("a100")}, {"precision": Precision("float8")}),
        (DeviceError, "use kv_dtype", {"device": device("a100")},
         {"precision": Precision(cache="float8")}),
        (DeviceError, "not predicted on a CPU; use runtime='eager'", {"device": CPU}, {}),
        (DeviceError, "use flash_attention=False", {"device": CPU, "flash_attention": True},
         {"runtime": "eager"}),
    ],
)  # fmt: skip
def test_what_is_impossible_or_not_predicted_is_named(error, said, model, changes):
    timed = dataclasses.replace(model_of(), **model)
    with pytest.raises(error, match=said) as refused:
        PageTimer(timed, assumed(**changes))  # before any page is priced
    assert all(each in str(refused.value) for each in refused.value.arguments)


def test_fewer_than_one_page_in_flight_are_refused():
    with pytest.raises(WorkloadError, match="concurrency 0 is too small; give 1 or more"):
        predict(model_of(), planned(), assumed(), (4, 0))


# === output lengths ===

PAGES_BY_TOKENS = st.dictionaries(st.integers(1, 200), st.integers(1, 9), min_size=1, max_size=5)

LONGEST = [
    # A distribution, its mean, and the longest of so many pages.
    (OutputLengths.fixed(900), 900, {1: 900, 2: 900, LARGEST_COUNT: 900}),
    # A coin: of two throws one is 200 in 3 of 4 cases, of three in 7 of 8.
    (OutputLengths((100, 200), (0.5, 0.5)), 150, {1: 150, 2: 175, 3: 187.5}),
    # Three of four pages are short: both are with 9/16.
    (OutputLengths((10, 26), (0.75, 0.25)), 14, {1: 14, 2: 10 * 9 / 16 + 26 * 7 / 16}),
    # A die: of two throws the larger is 1 once, 2 thrice, ... 6 eleven times of 36.
    (OutputLengths((1, 2, 3, 4, 5, 6), (1 / 6,) * 6), 3.5, {2: 161 / 36, 3: 119 / 24}),
    # One page in 1e12, 1,000 tokens longer; a million pages have it with a millionth.
    (
        OutputLengths((1, 1001), (1 - 1e-12, 1e-12)),
        1 + 1e-9,
        {10**6: pytest.approx(1.001, abs=1e-8)},
    ),
    # And the other way round: the short page is so rare that 1 less its share is 1.
    (OutputLengths((1, 1001), (1e-20, 1.0)), 1001, {1: 1001}),
    # Some pages at the limit and the others around their mean, or none there.
    (OutputLengths.mean_and_limit(900, 8192, 0.25), 0.25 * 8192 + 0.75 * 900, {}),
    (OutputLengths.mean_and_limit(900.25, 8192, 0.5), 0.5 * 8192 + 0.5 * 900.25, {}),
]


@pytest.mark.parametrize(("lengths", "mean", "longest_of"), LONGEST)
def test_the_longest_of_a_batch_worked_out_by_hand(lengths, mean, longest_of):
    assert lengths.mean == pytest.approx(mean, rel=1e-14)
    for batch, longest in longest_of.items():
        assert pytest.approx(lengths.expected_longest(batch), rel=1e-14) == longest


EQUAL = [
    (OutputLengths.fixed(900), (900,), (1.0,)),
    (OutputLengths.mean_and_limit(900, 8192, 0.25), (900, 8192), (0.75, 0.25)),
    (OutputLengths.mean_and_limit(900.25, 8192, 0.5), (900, 901, 8192), (0.375, 0.125, 0.5)),
    (OutputLengths.mean_and_limit(900, 8192, 0), (900,), (1.0,)),
    (OutputLengths.mean_and_limit(8191, 8192, 0), (8191,), (1.0,)),
    (OutputLengths.mean_and_limit(1, 2, 0.5), (1, 2), (0.5, 0.5)),
    # Sorted, and without lengths of no page.
    (OutputLengths.of_counts({30: 1, 10: 3, 20: 0}), (10, 30), (0.75, 0.25)),
]


@pytest.mark.parametrize(("made", "lengths", "shares"), EQUAL)
def test_a_distribution_is_made_from_less(made, lengths, shares):
    assert made == OutputLengths(lengths, shares)


@settings(max_examples=20)
@given(PAGES_BY_TOKENS, st.integers(1, 4))
def test_the_longest_of_a_batch_is_that_of_all_batches_there_are(pages, batch):
    total = Fraction(sum(pages.values()))
    longest = sum(
        max(drawn) * math.prod(Fraction(pages[length]) / total for length in drawn)
        for drawn in itertools.product(pages, repeat=batch)
    )
    found = OutputLengths.of_counts(pages).expected_longest(batch)
    assert found == pytest.approx(float(longest), rel=1e-12)


@pytest.mark.parametrize(
    ("mean", "limit", "share", "message"),
    [
        (0.5, 8192, 0.1, "mean_new_tokens 0.5 is out of range: .* from 1 to 8191 tokens"),
        (8191.5, 8192, 0.1, "mean_new_tokens 8191.5"),
        (math.nan, 8192, 0.1, "mean_new_tokens nan"),
        (1, 1, 0.1, "max_new_tokens 1 is invalid beside mean_new_tokens; give a"),
        (1, LARGEST_COUNT + 1, 0.1, "max_new_tokens 1048577"),
        (900, 8192, -0.1, "share_at_limit -0.1"),
        (900, 8192, 1, "share_at_limit 1 is out of range; give a number of at least 0 and"),
        (900, 8192, math.nan, "share_at_limit nan"),
    ],
)
def test_what_is_no_distribution_is_refused(mean, limit, share, message):
    with pytest.raises(WorkloadError, match=message):
        OutputLengths.mean_and_limit(mean, limit, share)


# === files of lengths ===

FOUR_PAGES = OutputLengths((10, 30), (0.75, 0.25))


def written(path, content):
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        pq.write_table(content, path)
    return path


CSV_FILES = [
    b"new_tokens\n10\n30\n10\n10\n",
    b"tokens generated\n10\n30\n10\n10",
    b"\xef\xbb\xbfnew_tokens\r\n10\r\n30\r\n\r\n10\r\n10\r\n",
    b'page,new_tokens\n"a, b",10\nc,30.0\nd,"10"\ne, 10 \n',
    b"new_tokens,9\n10,x\n30,y\n10,\n10,z\n",
]
READ = [
    *(("lengths.csv", content, FOUR_PAGES) for content in CSV_FILES),
    *(("lengths.csv.gz", gzip.compress(content), FOUR_PAGES) for content in CSV_FILES),
    ("lengths", pa.table({"new_tokens": pa.array([10, 30, 10, 10], pa.int8())}), FOUR_PAGES),
    ("lengths", pa.table({"anything": [10.0, 30.0, 10.0, 10.0]}), FOUR_PAGES),
    ("lengths", pa.table({"new_tokens": ["10", "30", "10", "10"], "page": [1, 2, 3, 4]}),
     FOUR_PAGES),
    ("lengths.csv", b"new_tokens\n1048576\n", OutputLengths.fixed(LARGEST_COUNT)),
]  # fmt: skip


def test_a_file_has_the_column_new_tokens_or_a_single_one(tmp_path, monkeypatch):
    monkeypatch.setattr("dsocr_analyze.row_files._BATCH_ROWS", 3)  # parts add up
    for name, content, expected in READ:
        assert read_lengths(written(tmp_path / name, content)) == expected, content


@pytest.mark.parametrize(
    ("name", "content", "command"),
    [
        ("lengths.csv", b"page,new_tokens\na,10\n", "time l4"),
        ("lengths.parquet", pa.table({"page": ["a"], "new_tokens": [10]}), "sweep --gpu l4"),
        ("only.csv", b"anything\n10\n", None),
    ],
)
def test_columns_that_are_not_read_are_named(capsys, tmp_path, name, content, command):
    path, found = written(tmp_path / name, content), []
    read_lengths(path, warn=found.append)
    said = (
        f"columns of {str(path)!r} that are not read: 'page'; each row counts as the output of one"
        " page"
    )
    assert found == [said] * (command is not None)
    if command is not None:
        code, _, err = run(capsys, *command.split(), "--new-tokens-from", path, "--strict")
        assert (code, f"warning: {said}\n" in err) == (3, True)


REFUSED = [
    *(("lengths.csv", content, message) for content, message in (
        (b"", "lengths.csv' as a list of output lengths: it is empty; give a Parquet or CSV file"),
        (b"new_tokens\n", "has no rows; give a Parquet or CSV file with a column new_tokens"),
        (b"512\n600\n",
         "only column of .* is called '512', which is a number; start .* new_tokens"),
        (b"a,b\n1,2\n", r"no column 'new_tokens' \(it has 'a', 'b'\)"),
        (b"a,b,c,d,e,f,g,h,i,j\n", "'h' and 2 more"),
        (b"new_tokens,new_tokens\n1,2\n", "2 columns 'new_tokens'; give one"),
        (b"new_tokens\n1\nabc\nx\n", "row 2 of .*: new_tokens b?'abc' is not a whole number"),
        (b"new_tokens\n1\n\n2\n1.5\n", "row 3 of .*1.5' is not a whole number"),
        (b"tokens\n0\n", "row 1 of .*: new_tokens '0' is not from 1 to 1048576"),
        (b"new_tokens\n-3\n", "'-3' is not from 1"),
        (b"new_tokens\n1048577\n", "'1048577' is not from 1 to 1048576"),
        (b'new_tokens\n1\n""\n', "row 2 of .*: new_tokens is missing"),
        (b"new_tokens,page\n1,a\n,b\n", "row 2 of .*: new_tokens is missing"),
        (b"new_tokens\n1\n2,3\n", "row 2 of .*: it has 2 values for 1 columns"),
        (b'new_tokens\n1\n"2\n', "row 2 of .*: a quote is not closed"),
        (b"new_tokens\n1\nx\n2,3\n", "row 2 of .*'x'"),
        (b"new_tokens\n1\n2,3\nx\n", "row 2 of .*: it has 2 values"))),
    *(("lengths.parquet", content, message) for content, message in (
        (pa.table({"new_tokens": pa.array([], pa.int64())}), "has no rows"),
        (pa.table({"a": [1], "b": [2]}), "no column 'new_tokens'"),
        (pa.table({"new_tokens": [5, None]}), "row 2 of .*: new_tokens is missing"),
        (pa.table({"new_tokens": [5, 6, 0]}), "row 3 of .*: new_tokens 0 is not from 1"),
        (pa.table({"new_tokens": [5.0, 6.5]}), "row 2 of .*: new_tokens 6.5 is not a whole"),
        (pa.table({"new_tokens": [True]}), "column 'new_tokens' holds bool; give whole numbers"),
        (pa.table({"tokens": [[5]]}), "column 'tokens' holds list"),
        (b"new_tokens\n1\n", "is not a Parquet file"))),
    ("lengths.pq", b"PAR1 and nothing more", "cannot read"),
    ("gone.csv", None, r"no list of output lengths .*gone"),
    ("", None, r"it is a folder, .*; give a Parquet or CSV"),
]  # fmt: skip


def test_a_file_that_holds_no_lengths_is_refused(tmp_path):
    for name, content, message in REFUSED:
        path = tmp_path / name if content is None else written(tmp_path / name, content)
        with pytest.raises(WorkloadError, match=message) as raised:
            read_lengths(path)
        assert "\n" not in str(raised.value), message
