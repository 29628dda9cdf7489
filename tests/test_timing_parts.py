"""What seconds are made of: durations, the eager host, what servers launch, and closed loops."""

import dataclasses
import heapq
import math
import random
from collections import Counter, deque
from itertools import accumulate
from unittest.mock import Mock

import numpy as np
import pytest
from both_engines import (
    LATENT,
    PUBLISHED,
    by_both_engines,
    dimensions_of,
    draw_decoder,
    small_directory,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import first, sampled

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family import served as fused
from dsocr_analyze.architectures.ocr_family.served import FUSIONS
from dsocr_analyze.dtypes import BFLOAT16, FLOAT16, FLOAT32
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.hardware import device
from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.kernels import Gemm, Kernel, Rows, Work, total_work
from dsocr_analyze.tape import ArrayTape
from dsocr_analyze.timing import Interval
from dsocr_analyze.timing.eager import eager_pass, eager_step, finish_times, launched
from dsocr_analyze.timing.kernel_seconds import (
    HOST_ERROR,
    UNQUANTIZED,
    Duration,
    KernelSeconds,
    KindError,
    mean_step,
    total_duration,
)
from dsocr_analyze.timing.runtimes import EAGER, NATIVE, SERVERS, Precision
from dsocr_analyze.timing.serving import (
    LoopPoint,
    LoopTimes,
    ServedModel,
    closed_loop,
    stretch_times,
)
from dsocr_analyze.workload import ViewBatch

# === durations ===

GEMM = KindError("gemm.bfloat16", 0.1, False, False)
MOVE = KindError("movement.bfloat16", 0.4, True, False)
WHOLE = {"kinds": {GEMM: 6.0, MOVE: 2.0}, "memory": 3.0, "launches": 1.5, "host": 0.5,
         "nbytes": 40.0, "least_compute": 4.0, "least_memory": 3.0}  # fmt: skip
TEN = Duration(**WHOLE)
SECONDS = st.floats(0, 10, allow_nan=False)
PAIRS = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=60)


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


def test_every_part_is_multiplied_added_and_changed():
    other = Duration({MOVE: 1.0, HOST_ERROR: 3.0}, 1.0, 2.0, 4.0, 16.0, 0.5, 0.25)
    both = Duration({GEMM: 6.0, MOVE: 3.0, HOST_ERROR: 3.0}, 4.0, 3.5, 4.5, 56.0, 4.5, 3.25)
    twice = Duration({GEMM: 12.0, MOVE: 4.0}, 6.0, 3.0, 1.0, 80.0, 8.0, 6.0)
    assert (TEN.times(2), TEN.plus(other), total_duration([TEN, other])) == (twice, both, both)
    assert (total_duration([]), Duration().seconds, TEN.seconds) == (Duration(), 0, 10)
    many = Duration({GEMM: np.array([1.0, 2.0]), MOVE: 5.0}, np.array([0.5, 1.5]), 1.0)
    assert many.mapped(np.max) == Duration({GEMM: 2.0, MOVE: 5.0}, 1.5, 1.0)


def product(path, calls=1):
    return Kernel("gemm", "linear", Gemm(1, 1, 8, 8), "bfloat16", "bfloat16",
                  Work(macs=64, bytes_read=144, bytes_written=16), calls, path)  # fmt: skip


def summed(path, rows=8, dtype="int64"):
    return Kernel("reduction", "sum", Rows(rows, 4), dtype, dtype,
                  Work(vector_flops=4 * rows, bytes_read=8), 1, path)  # fmt: skip


def test_a_duration_of_kernels_counts_their_calls():
    priced = KernelSeconds(
        [product("a", calls=3), summed("b")], np.array([2.0, 1.0]), np.array([True, False]),
        [GEMM, MOVE], np.array([160.0, 48.0]), np.array([0.75, 0.0]), np.array([1.5, 0.5]),
    )  # fmt: skip
    found = priced.duration(launches=0.5, host=0.25)
    assert found == Duration({GEMM: 6.0, MOVE: 1.0}, 6.0, 0.5, 0.25, 160 * 3 + 48, 2.25, 5.0)


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
    ("issued", "device", "ends"),
    [
        # The second waits for the first, the third for the host, the fourth for the third.
        ([1, 2, 10, 11], [4, 3, 2, 5], [5, 8, 12, 17]),
        ([1, 2, 3], [5, 5, 5], [6, 11, 16]),
        ([10, 20, 30], [1, 2, 3], [11, 22, 33]),
    ],
)
def test_a_kernel_starts_when_it_is_issued_and_the_one_before_has_ended(issued, device, ends):
    assert finish_times(np.array(issued, float), np.array(device, float)).tolist() == ends


@pytest.mark.exhaustive
@given(PAIRS, SECONDS)
def test_ends_are_those_of_a_loop_over_the_kernels(kernels, busy_until):
    """A GPU that is busy at first delays only the first kernel."""
    gaps, device = map(np.array, zip(*kernels, strict=True))
    issued = np.cumsum(gaps)
    issued[0] = max(issued[0], busy_until)
    ends = accumulate(zip(issued, device, strict=True),
                      lambda end, kernel: max(end, kernel[0]) + kernel[1], initial=0.0)  # fmt: skip
    assert finish_times(issued, device) == pytest.approx([*ends][1:], abs=1e-9)


@pytest.mark.parametrize(
    ("stretches", "seconds"),
    [
        # Issued at 1 and 1 + 9; the first ends at 5, the second would at 5 + 3 but for the host.
        ([(5, 1), (3, 9)], [5, 5]),
        # The other way round: the first ends when it is issued, the second computes after that.
        ([(3, 9), (5, 1)], [9, 5]),
    ],
)
def test_the_host_runs_ahead_while_the_gpu_computes(stretches, seconds):
    assert list(stretch_times(stretches)) == seconds
    (first, host), second = stretches
    both = stretch_times([(np.array([first, first + 1]), np.array([host, host])), second])
    assert [float(each[0]) for each in both] == seconds


@settings(max_examples=40)
@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=8))
def test_a_stretch_is_the_limit_of_ever_more_kernels_that_are_issued_evenly(parts):
    count, longest = 500, max(map(max, parts))
    device, host = (np.repeat(np.array(each) / count, count) for each in zip(*parts, strict=True))
    found = finish_times(np.cumsum(host), device)[count - 1 :: count]
    taken = list(stretch_times(parts))
    assert found == pytest.approx(np.cumsum(taken), abs=2 * longest / count + 1e-9)
    assert all(each >= part[0] - 1e-9 for part, each in zip(parts, taken, strict=True))


# === the eager runtime ===

HOST = dataclasses.replace(EAGER, launch_us=10.0, sync_us=20.0, step_us=500.0, sequence_us=3.0)
DECODERS = {
    "mixed": {},
    "dense": {"n_routed_experts": None},
    "grouped": {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True},
    "latent": LATENT,
    "normalized": {"norm_topk_prob": True, "n_shared_experts": None},
    "identity projector": {
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "projector_config": {"projector_type": "identity", "n_embed": 256},
    },
}


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
        is_in_l2=lambda nbytes, cold=False: np.asarray(nbytes) < (0 if cold else 40e6),
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("flash", [False, True], ids=["eager attention", "flash attention"])
def test_a_trace_and_the_closed_forms_launch_the_same_and_take_the_same(name, flash):
    page = by_both_engines(
        small_directory(**DECODERS[name]), flash=flash, page=(1000, 700), base_size=256,
        image_size=192,
    )  # fmt: skip
    traced, composed = (
        {stage: each.kernels for stage, each in figures.stages.items()}
        for figures in (page.traced, page.analytic)
    )
    in_order = {stage: launched(kernels) for stage, kernels in traced.items()}
    assert in_order == {stage: launched(composed[stage]) for stage in traced}
    timed = device("h100-sxm")
    assert eager_pass(traced, timed, EAGER) == eager_pass(composed, timed, EAGER)
    step = eager_step(traced["decode"], timed, EAGER, 1)
    assert step == eager_step(composed["decode"], timed, EAGER, 1)


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


@pytest.mark.exhaustive
def test_vision_kernels_are_the_models_own_records():
    for workload in (planned(), planned(page=(100, 100)), planned(crop_mode=False)):
        composed = DEFAULT.forms.compose(REFERENCE, workload, BFLOAT16, False)
        launched = [
            SERVED.views(view.count, view.resolution, REFERENCE, BFLOAT16)
            for view in workload.views
        ]
        for stage in ("sam", "clip", "projector"):
            kernels = [kernel for views in launched for kernel in views[stage]]
            assert calls_of(kernels) == calls_of(composed.stages[stage].kernels)
            assert {kernel.stage for kernel in kernels} == {stage}


def calls_of(kernels):
    """How often each kernel is launched, whichever module does it."""
    return Counter(
        kernel._replace(calls=1, path="") for kernel in kernels for _ in range(kernel.calls)
    )


def test_every_operator_that_the_model_does_not_have_is_a_fusion_that_is_explained():
    served = {kernel.operator for kernel in PROMPT + STEP}
    composed = DEFAULT.forms.compose(REFERENCE, planned(), BFLOAT16, True)
    own = {kernel.operator for stage in composed.stages.values() for kernel in stage.kernels}
    assert (served - own, all(FUSIONS.values())) == (set(FUSIONS), True)
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


def taken(kernels, shape, index):
    """Kernels of arrays as those of one of their elements."""

    def every(values):
        return type(values)(*(int(np.broadcast_to(each, shape)[index]) for each in values))

    return tuple(
        kernel._replace(dimensions=every(kernel.dimensions), work=every(kernel.work))
        for kernel in kernels
    )


def model_of(name="h100-sxm", precision=NATIVE, **changes):
    server = dataclasses.replace(SERVERS["vllm"], **changes)
    return ServedModel(DEFAULT, REFERENCE, BFLOAT16, device(name), server, precision)


THREE = [1, 2, 64], [900, 100, 5000], [90, 50, 4000]


@pytest.mark.parametrize(
    ("kernels_of", "sizes"),
    [
        (lambda B, K: SERVED.step(B, K, SMALL, BFLOAT16, 8), THREE[:2]),
        (lambda B, K: SERVED.step(B, K, SMALL, BFLOAT16, 4), ([[1, 2, 64]], [[900], [5000]])),
        (lambda T, visual: SERVED.prompt(T, T, visual, SMALL, BFLOAT16, 16), THREE[1:]),
    ],
    ids=["steps", "steps that broadcast", "prompts"],
)
def test_kernels_of_arrays_are_those_of_each(kernels_of, sizes):
    arrays = [*map(np.array, sizes)]
    together, every = kernels_of(*arrays), np.broadcast_arrays(*arrays)
    for index in np.ndindex(every[0].shape):
        alone = kernels_of(*(int(each[index]) for each in every))
        assert taken(together, every[0].shape, index) == alone


def test_seconds_of_arrays_are_those_of_each():
    model, views = model_of(chunk_tokens=512), (ViewBatch(6, 640), ViewBatch(1, 1024))
    first, second = np.array([1, 500, 64]), np.array([100, 490, 4000])
    together, *alone = (
        {"step": model.step(B, K), **model.prefill(views, 9 * K, K)}
        for B, K in ((first, second), *zip(first.tolist(), second.tolist(), strict=True))
    )
    for index, spans in enumerate(alone):
        for name, span in spans.items():
            one = together[name].mapped(lambda each, at=index: each[at] if np.ndim(each) else each)
            assert one.bound == span.bound
            assert [one.seconds, *one[3:-1]] == pytest.approx([span.seconds, *span[3:-1]])


def test_the_host_works_between_steps_or_beside_them():
    """Of 8 sequences: 600 + 8 x 13 us longer, or 90,000 + 8 x 1,000 us whatever the GPU takes."""
    alone, longer, hidden = (
        model_of(**{"hidden_step_us": 0.0, "hidden_sequence_us": 0.0, **figures}).step(8, 100)
        for figures in ({}, {"step_us": 600.0, "sequence_us": 13.0},
                        {"hidden_step_us": 9e4, "hidden_sequence_us": 1e3})
    )  # fmt: skip
    found = [1e6 * (longer.seconds - alone.seconds), 1e6 * hidden.seconds]
    assert found == pytest.approx([704, 98_000])


def test_a_long_prompt_goes_through_in_equal_chunks():
    model = model_of(chunk_tokens=300)
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
    with pytest.raises(ConfigError, match=f"{named}.*runtime eager"):
        ServedModel(DEFAULT, dimensions, BFLOAT16, device("h100-sxm"), SERVERS["vllm"])


def test_the_cache_and_quantized_weights_by_hand():
    """A token: 12 layers x keys and values x 10 heads x 128 elements.

    Quantized are all weights but vision, embedding, head, norms and routers, with a scale of 16
    bits per 128: attention 12 x 4 x 1280^2, the dense layer 3 x 1280 x 6848, of each of eleven
    others 66 experts' worth of 3 x 1280 x 896.
    """
    quantized = 12 * 4 * 1280**2 + 3 * 1280 * 6848 + 11 * 66 * 3 * 1280 * 896
    assert SERVED.quantizable_params(REFERENCE) == quantized == 2_602_844_160
    rest = 2 * (3_336_106_240 - quantized) + 2 * quantized // 128
    for name, cache, weights in (
        (None, 2, 6_672_212_480), ("float8", 1, rest + quantized), ("int8", 1, rest + quantized),
        ("int4", 0.5, rest + quantized // 2),
    ):  # fmt: skip
        model = model_of(precision=Precision(name, name))
        assert (model.page_bytes(1, 1), model.weights_bytes) == (12 * 2 * 1280 * cache, weights)


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
    found = {each: model_of(precision=each).step(2, 100).nbytes for each in expected}
    assert found == pytest.approx(expected)
    kinds = model_of(precision=Precision("int8", "float8")).step(2, 100).kinds
    assert {each.kind for each in kinds} == {
        "gemm.int8", "gemm.bfloat16", "experts.int8", "movement.bfloat16",
        "generation_attention.float8",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["h100-sxm", "l4", "rtx-4090", "a10"])
@pytest.mark.parametrize("weights", [None, "int8", "int4"])
def test_no_step_moves_more_than_the_memory_can(name, weights):
    model = model_of(name, Precision(weights))
    step = model.step(np.array([1, 8, 64]), 1000)
    assert (step.nbytes / step.seconds < 1e9 * model.device.gpu.bandwidth_gb_s).all()


def test_an_engine_holds_no_logits_but_the_last():
    """Weights, SAM's biases and whatever else lives then, and the inputs of an A4 page."""
    served, page = model_of(), DEFAULT.plan(page=(1240, 1754))
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
            carried = times.chunks * float(times.carried[count - 1]) if count else 0.0
            seconds, tokens = times.prefill + carried, times.chunks
            new = [round(times.steps * (1 + spread * draw.uniform(-1, 1)))]
        elif running:
            seconds, tokens, new = float(times.step[count - 1]), 1, []
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

    sequences = np.arange(1, clients + 1)
    one, growth = between(-3, -1.7), between(-3, -0.7)
    step = one * (1 + growth * (sequences - 1))
    carried = np.minimum(one * between(-2.5, -0.7) * sequences * min(1, 3 * growth), step)
    steps, chunks = round(between(1, 3.2)), random.choice([0, 1, 1, 2, 3])
    prefill = max(chunks * one, steps * one * between(-2.5, 0))
    prepare = random.choice([0, between(-2.5, 0.3) * (prefill + steps * one / 4)])
    workers = random.choice([1, 2, 4, 8])
    return LoopTimes(prepare, workers, prefill, chunks, float(steps), step, carried)


def any_times(clients):
    return st.integers(0, 2**32).map(lambda seed: drawn_times(random.Random(seed), clients))


def constant_times(clients, *, prepare=0.0, workers=1, prefill=0.1, chunks=1, steps=100.0):
    """Times that do not depend on how many sequences run."""
    every = np.ones(clients)
    return LoopTimes(prepare, workers, prefill, chunks, steps, 0.01 * every, 0.001 * every)


def steady(clients, times):
    """One loop: an array of one."""
    found = closed_loop(np.array([clients]), times)
    return LoopPoint(*(float(part[0]) for part in found))


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


def test_the_simulator_alone_is_right_by_hand():
    """Two clients in step: passes 3 and 3 + 1, then 4 steps of 2, one sequence a token ahead.

    The first sequence has 5 tokens to go, of which the second page's pass gives one.
    """
    two = LoopTimes(0.0, 1, 3.0, 1, 5.0, np.array([1.0, 2.0]), np.array([1.0, 1.0]))
    assert simulated(2, two, 1) == [3 + (3 + 1) + 4 * 2]


# --- limits and laws ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "times", "rate", "within"),
    [
        *((64, constant_times(64, prepare=50.0, workers=each), each / 50, 1e-3)
          for each in (1, 2, 4)),
        # With a worker for every client no page waits for one.
        *((each, constant_times(each, prepare=50.0, workers=4, prefill=1e-6, steps=0.0), each / 50,
           1e-6) for each in (1, 2, 3, 4)),
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
@given(any_times(1))
def test_one_client_takes_every_part_alone(times):
    decode = times.steps * times.step[0]
    alone = times.prepare + times.prefill + decode
    parts = [1 / alone, times.prepare + times.prefill, decode, 1]
    assert steady(1, times)[:4] == pytest.approx(parts, rel=1e-12, abs=1e-12 * alone)


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
    best_step = min(times.step[n] / (n + 1) for n in range(clients))
    others = min(
        (times.chunks * times.carried[n - 1] if n else 0.0)
        + max(0.0, times.steps - n * times.chunks) * best_step
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
    growth = 1 + drawn.uniform(0.001, 0.3, (4, 1)) * np.arange(9)
    times = LoopTimes(
        prepare=drawn.choice([0.0, 0.02, 0.4], n), workers=2,
        prefill=drawn.uniform(0.02, 0.2, n), chunks=drawn.integers(0, 3, n),
        steps=drawn.choice([0.0, 1.0, 30.0, 900.0], n), step=0.004 * growth,
        carried=0.0005 * growth, table=drawn.integers(0, 4, n),
    )  # fmt: skip
    clients = drawn.integers(1, 10, n)
    found = closed_loop(clients, times)
    for row in range(0, len(clients), 40):
        count, table = clients[row], times.table[row]
        alone = steady(count, LoopTimes(
            times.prepare[row], 2, times.prefill[row], times.chunks[row], times.steps[row],
            times.step[table, :count], times.carried[table, :count],
        ))  # fmt: skip
        assert [part[row] for part in found] == pytest.approx([*alone], rel=1e-9, abs=1e-12)
    others = found.pages_per_second * (clients - 1) / clients
    assert found.running == pytest.approx(1 + others * found.decode, rel=1e-9)
    assert found.pages_per_second * found.page == pytest.approx(clients, rel=1e-9)
