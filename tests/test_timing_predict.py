"""Predicted pages and throughput: laws, bands, memory, money, lengths, many pages, refusals."""

import dataclasses
import gzip
import itertools
import math
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from both_engines import PUBLISHED, dimensions_of, small_directory
from command_line import run
from hypothesis import given, settings
from hypothesis import strategies as st
from test_server_benchmarks import kept

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.dtypes import BFLOAT16, FLOAT32, dtype_named
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.hardware import device
from dsocr_analyze.hardware.profile import all_profiles
from dsocr_analyze.kernels import Elements, Kernel, Work
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths
from dsocr_analyze.timing.correction import Corrections, basis_of
from dsocr_analyze.timing.kernel_seconds import Duration, KindError, kernel_seconds
from dsocr_analyze.timing.length_files import read_lengths
from dsocr_analyze.timing.page_times import ManyPages, PageTimer, TimedModel
from dsocr_analyze.timing.predict import predict, times_of
from dsocr_analyze.timing.runtimes import EAGER, NATIVE, SERVERS, Precision
from dsocr_analyze.workload import LARGEST_COUNT, ViewBatch

REFERENCE, SMALL = dimensions_of(PUBLISHED), dimensions_of(small_directory())
HOSTS = {"eager": EAGER, "serving": SERVERS["vllm"]}
H100, A4 = device("h100-sxm"), DEFAULT.plan(page=(1240, 1754))
CPU = dataclasses.replace(H100, cpu=SimpleNamespace(operator_us=3.0))
"""One whose kernel times are not looked at."""
runtimes = pytest.mark.parametrize("runtime", HOSTS)


def with_gpu(timed=H100, **changes):
    """A GPU of other figures, with the same coefficients."""
    return dataclasses.replace(timed, gpu=dataclasses.replace(timed.gpu, **changes))


def planned(**page):
    return DEFAULT.plan(**{"page": (1000, 1400), "base_size": 256, "image_size": 192, **page})


def assumed(runtime="serving", tokens=100, *, lengths=None, host=None, prepare=0.01, **changes):
    lengths = lengths or OutputLengths.fixed(tokens)
    return Assumptions(host or HOSTS[runtime], lambda _: lengths, prepare, **changes)


def model_of(dimensions=SMALL, timed=H100):
    return TimedModel(DEFAULT, dimensions, BFLOAT16, False, timed)


def predicted(assumptions, concurrency=(1,), *, page=None, **model):
    return predict(model_of(**model), page or planned(), assumptions, concurrency)


def loads(assumptions, *concurrency, **model):
    return predicted(assumptions, concurrency, **model).throughput


def spans(assumptions, *, page=None, **model):
    """What the seconds of a page's stages are made of."""
    return times_of(model_of(**model), page or planned(), assumptions).stages


# --- pages and throughput -------------------------------------------------------------------------

COUNTS = (1, 7, 32)
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
        assert 0 < band.low < rate < band.high or load.bound == "host"
    assert len(found.bands) == 2 + (steps > 0)
    for name, band in found.bands.items():
        assert 0 < band.low < getattr(found, name) < band.high


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
    assert (load.bound, band.low, band.high, rate <= 2 / 60) == ("host", rate, rate, True)


def test_the_cpu_bounds_what_waits_for_it():
    """A worker prepares 15.5 pages a second; B200 could do more with that many in flight.

    The GPU is never idle, since it decodes whatever runs, but pages wait for the CPU alone.
    """
    given = {"dimensions": REFERENCE, "timed": device("b200"), "page": A4}
    one, many = loads(assumed(tokens=1024, prepare=0.0645), 1, 128, **given)
    [free] = loads(assumed(tokens=1024, prepare=0.0), 128, **given)
    assert (one.bound, many.bound, free.bound) == ("memory", "host", "memory")
    assert many.pages_per_second == pytest.approx(1 / 0.0645)
    assert (many.ttft_seconds > 5, free.pages_per_second > 1.3 / 0.0645) == (True, True)


def test_a_gpu_as_fast_as_its_cpu_leaves_the_rate_uncertain_downwards():
    """Where the GPU's capacity within its band is below the CPU's, the rate may be lower."""
    [free] = loads(assumed(prepare=0.0), 8)
    prepare = 1.02 / free.pages_per_second
    [load] = loads(assumed(prepare=prepare), 8)
    rate, band = load.pages_per_second, load.pages_per_second_band
    assert (load.bound, band.high, rate <= 1 / prepare) == ("host", rate, True)
    assert free.pages_per_second_band.low * 0.99 < band.low < rate


def test_offline_all_pages_are_prepared_first():
    """A page's share of both: of the CPU alone, then of the GPU without waiting for a CPU."""
    [ahead] = loads(assumed(prepare=0.0), 8)
    [load] = loads(assumed(prepare=0.06, workers=3, is_offline=True), 8)
    seconds = 1 / ahead.pages_per_second
    found = [1 / load.pages_per_second, load.page_seconds, load.ttft_seconds]
    expected = [seconds + 0.02, 0.06 + 8 * seconds, 0.06 + ahead.ttft_seconds]
    assert found == pytest.approx(expected)


# --- lengths --------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@runtimes
def test_a_mean_between_whole_numbers_of_tokens_is_not_rounded(runtime):
    """Six pages of one token and four of two: 0.4 steps of a page, on average."""
    found = predicted(assumed(runtime, lengths=OutputLengths.of_counts({1: 6, 2: 4})))
    one, two = (predicted(assumed(runtime, tokens)).page_seconds for tokens in (1, 2))
    expected = [one + 0.4 * (two - one), two - one]
    assert [found.page_seconds, found.tpot_seconds] == pytest.approx(expected)


def test_a_second_eager_step_reads_one_more_key():
    one, two = (
        times_of(model_of(), planned(), assumed("eager", tokens)).decode.nbytes for tokens in (2, 3)
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


# --- memory ---------------------------------------------------------------------------------------


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
    (native, slower), (one, many) = (
        loads(assumed(tokens=88, precision=each), 1, 64, dimensions=REFERENCE, page=A4)
        for each in (NATIVE, precision)
    )
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


# --- peaks ----------------------------------------------------------------------------------------


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
    st.sampled_from(sorted(all_profiles())),
    st.sampled_from(sorted(ARCHITECTURES)),
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


def test_what_l2_serves_is_no_share_of_the_bandwidth():
    """6 MB stay in an L2 of 50 MB; 60 MB do not."""
    add = Kernel("elementwise", "add", Elements(10**6), "bfloat16", "bfloat16",
                 Work(bytes_read=4 * 10**6, bytes_written=2 * 10**6))  # fmt: skip
    priced = kernel_seconds([add, add._replace(work=add.work.times(10))], H100)
    assert priced.least_memory.tolist() == pytest.approx([0, 6e7 / 3.35e12])


@pytest.mark.parametrize("kind", ["gemm", "movement", "generation_attention", "experts"])
def test_coefficients_beyond_the_peak_do_not_get_there(kind):
    given = H100.kinds[kind, "bfloat16"]
    shares = {name: 50.0 for name in vars(given.coefficients) if "share" in name}
    fast = dataclasses.replace(given.coefficients, **shares)
    kinds = {**H100.kinds, (kind, "bfloat16"): dataclasses.replace(given, coefficients=fast)}
    timed = dataclasses.replace(H100, kinds=kinds)
    for span in spans(assumed(), dimensions=REFERENCE, page=A4, timed=timed).values():
        assert max(span.least_compute, span.least_memory) <= span.seconds


def test_a_server_measured_beyond_the_peak_is_at_it():
    kinds = {KindError("x", 0, False, False): 2.0}
    span = Duration(kinds, least_compute=0.5, least_memory=1.5).corrected(0.5, None)
    assert (span.least_compute, span.least_memory, span.seconds) == (0.5, 1.0, 1.0)


# --- hosts, and what is said ----------------------------------------------------------------------


def test_an_eager_host_of_other_figures_is_eager_still():
    faster = predicted(assumed(host=dataclasses.replace(EAGER, launch_us=4.0)))
    assert (faster.runtime, faster.assumptions.host) == ("eager", "eager")
    assert faster.page_seconds < predicted(assumed("eager")).page_seconds


def test_pixels_are_copied_in_three_channels():
    """3 * (6 * 640**2 + 1024**2) values of two bytes at 6 GB/s."""
    host = dataclasses.replace(EAGER, pixel_bytes=2, link_gb_s=6.0)
    views = ViewBatch(6, 640), ViewBatch(1, 1024)
    assert host.copy_seconds(views) == pytest.approx(21_037_056 / 6e9)


@pytest.mark.parametrize("name", SERVERS)
def test_what_is_assumed_is_said(name):
    given = assumed(
        lengths=OutputLengths.of_counts({100: 3, 500: 1}), prepare=0.0125, host=SERVERS[name],
        precision=Precision("int4", "float8"), workers=4, reserved=0.2,
    )  # fmt: skip
    found = predicted(given)
    said = " ".join(found.assumptions.sentences)
    words = ["200 tokens on average, 500 at most", "12.5 ms", "(given)", "4 at a time", "20 %",
             "int4", "float8", SERVERS[name].title]  # fmt: skip
    assert [each for each in words if each not in said] == []
    assert (found.runtime, found.assumptions.host) == ("serving", name)


# --- many pages -----------------------------------------------------------------------------------


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


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        *(({"prepare": each}, "preprocess_ms") for each in (-0.001, float("nan"), float("inf"))),
        ({"workers": 0}, "workers"),
        *(({"price_per_hour": each}, "price") for each in (0.0, -1.0, float("nan"), float("inf"))),
        *(({"reserved": each}, "reserved") for each in (1.0, -0.1, float("nan"))),
    ],
)
def test_an_impossible_assumption_is_named(changes, named):
    with pytest.raises(WorkloadError, match=named) as refused:
        assumed(**changes)
    assert refused.value.arguments == (named,)


@pytest.mark.parametrize(
    ("error", "said", "model", "changes", "concurrency"),
    [
        (WorkloadError, "concurrency 0 is too small", {}, {}, (0,)),
        (WorkloadError, "concurrency -1 is too small", {}, {}, (4, -1)),
        (DeviceError, "bfloat16 or float16", {"dtype": FLOAT32}, {}, (1,)),
        (DeviceError, "bfloat16 or float16", {"dtype": FLOAT32}, {"runtime": "eager"}, (1,)),
        (DeviceError, "float16", {"device": device("t4")}, {}, (1,)),
        (DeviceError, "float8", {"device": device("a100")}, {"precision": Precision("float8")},
         (1,)),
        (DeviceError, "float8", {"device": device("a100")},
         {"precision": Precision(cache="float8")}, (1,)),
        (DeviceError, "not predicted on a CPU; use runtime eager", {"device": CPU}, {}, (1,)),
        (DeviceError, "a CPU has no FlashAttention-2",
         {"device": CPU, "flash_attention": True}, {"runtime": "eager"}, (1,)),
    ],
)  # fmt: skip
def test_what_is_not_predicted_is_refused(error, said, model, changes, concurrency):
    timed = dataclasses.replace(model_of(), **model)
    with pytest.raises(error, match=said):
        predict(timed, planned(), assumed(**changes), concurrency)


# --- output lengths -------------------------------------------------------------------------------

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


@settings(max_examples=30)
@given(PAGES_BY_TOKENS)
def test_a_batch_of_one_has_the_mean_and_larger_ones_are_longer_up_to_the_longest(pages):
    lengths = OutputLengths.of_counts(pages)
    found = [lengths.expected_longest(n) for n in (1, 2, 3, 10, 100, 10_000, LARGEST_COUNT)]
    assert found == sorted(found)
    assert found[-1] <= lengths.longest == max(pages)
    assert [found[0], found[-1]] == pytest.approx([lengths.mean, lengths.longest], rel=1e-9)


@settings(max_examples=30)
@given(
    st.integers(2, LARGEST_COUNT).flatmap(
        lambda limit: st.tuples(st.floats(1, limit - 1), st.just(limit))
    ),
    st.floats(0, 1, exclude_max=True),
)
def test_the_mean_over_all_pages_weighs_the_limit_with_its_share(mean_and_limit, share):
    mean, limit = mean_and_limit
    lengths = OutputLengths.mean_and_limit(mean, limit, share)
    assert lengths.mean == pytest.approx(share * limit + (1 - share) * mean, rel=1e-9)
    assert math.fsum(lengths.shares) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("made", "arguments", "message"),
    [
        *((OutputLengths, arguments, message) for *arguments, message in (
            ((), (), "0 lengths have 0 shares"),
            ((1, 2), (1.0,), "2 lengths have 1 shares"),
            ((0,), (1.0,), "a length of 0 is invalid; give a whole number from 1 to 1048576"),
            ((-5,), (1.0,), "a length of -5"),
            ((1.0,), (1.0,), "a length of 1.0"),
            ((True,), (1.0,), "a length of True"),
            ((LARGEST_COUNT + 1,), (1.0,), "a length of 1048577"),
            ((2, 1), (0.5, 0.5), "lengths have 1 after 2"),
            ((2, 2), (0.5, 0.5), "lengths have 2 after 2"),
            ((1, 2), (1.0, 0.0), "a share is 0.0"),
            ((1, 2), (1.5, -0.5), "a share is 1.5"),
            ((1,), (math.nan,), "a share is nan"),
            ((1, 2), (0.5, 0.4), "shares add up to 0.9"),
            ((1, 2), (0.6, 0.5), "shares add up to 1.1"))),
        *((OutputLengths.mean_and_limit, arguments, message) for *arguments, message in (
            (0.5, 8192, 0.1, "mean 0.5 is out of range: .* from 1 to 8191 tokens"),
            (8191.5, 8192, 0.1, "mean 8191.5"),
            (math.nan, 8192, 0.1, "mean nan"),
            (math.inf, 8192, 0.1, "mean inf"),
            (1, 1, 0.1, "limit 1 is invalid; give a whole number from 2"),
            (1, 8192.0, 0.1, "limit 8192.0"),
            (1, LARGEST_COUNT + 1, 0.1, "limit 1048577"),
            (900, 8192, -0.1, "share_at_limit -0.1"),
            (900, 8192, 1, "share_at_limit 1 is out of range; give a number of at least 0 and"),
            (900, 8192, math.nan, "share_at_limit nan"))),
        *((OutputLengths.fixed(5).expected_longest, [batch], "batch .* is invalid")
          for batch in (0, -1, 1.5, True, LARGEST_COUNT + 1)),
        *((OutputLengths.of_counts, [counts], message) for counts, message in (
            ({}, "no page is counted"),
            ({5: 0}, "no page is counted"),
            ({5: 2, 6: -1}, "-1 pages of 6 tokens"),
            ({0: 1}, "a length of 0"))),
    ],
)  # fmt: skip
def test_what_is_no_distribution_is_refused(made, arguments, message):
    with pytest.raises(WorkloadError, match=message):
        made(*arguments)


# --- files of lengths -----------------------------------------------------------------------------

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


def test_a_file_has_the_column_new_tokens_or_a_single_one(tmp_path):
    for name, content, expected in READ:
        assert read_lengths(written(tmp_path / name, content)) == expected, content


@pytest.mark.parametrize(
    ("name", "content", "is_named"),
    [
        ("lengths.csv", b"page,new_tokens\na,10\n", True),
        ("lengths.parquet", pa.table({"page": ["a"], "new_tokens": [10]}), True),
        ("only.csv", b"anything\n10\n", False),
    ],
)
def test_columns_that_are_not_read_are_named(capsys, tmp_path, name, content, is_named):
    path, found = written(tmp_path / name, content), []
    read_lengths(path, warn=found.append)
    said = (
        f"columns of {str(path)!r} that are not read: 'page'; each row counts as the output of one"
        " page"
    )
    assert found == is_named * [said]
    pages = written(tmp_path / "pages.csv", b"width,height\n640,640\n")
    for command in (("time", "l4"), ("archive", pages, "--gpu", "l4")):
        code, _, err = run(capsys, *command, "--new-tokens-from", path, "--strict")
        assert (code, f"warning: {said}\n" in err) == (3 * is_named, is_named)


def test_a_file_is_read_in_parts_that_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr("dsocr_analyze.row_files._BLOCK_BYTES", 1000)
    monkeypatch.setattr("dsocr_analyze.row_files._BATCH_ROWS", 300)
    tokens = np.random.default_rng(3).integers(1, 1500, 5000)
    lines = "".join(f"{each}\n" for each in ("new_tokens", *tokens))
    from_csv, from_parquet = (
        read_lengths(written(tmp_path / name, content))
        for name, content in (("lengths.csv", lines.encode()),
                              ("lengths.parquet", pa.table({"new_tokens": tokens})))
    )  # fmt: skip
    assert from_csv == from_parquet == OutputLengths.of_counts(Counter(tokens.tolist()))
    monkeypatch.setattr("dsocr_analyze.row_files._BLOCK_BYTES", 8)
    bad = written(tmp_path / "bad.csv", b"new_tokens\n" + b"7\n" * 50 + b"seven\n")
    with pytest.raises(WorkloadError, match=r"row 51 of .*'seven'"):
        read_lengths(bad)


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
