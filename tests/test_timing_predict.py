"""Predicted pages and throughput: bounds, bands, memory, money and refusals."""

import dataclasses
import itertools

import pytest
from both_engines import PUBLISHED, dimensions_of, small_directory
from hypothesis import given, settings
from hypothesis import strategies as st

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.dtypes import BFLOAT16, FLOAT32, dtype_named
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.hardware import device
from dsocr_analyze.hardware.profile import all_profiles
from dsocr_analyze.kernels import Elements, Kernel, Work
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing.assumptions import Assumptions
from dsocr_analyze.timing.duration import Duration
from dsocr_analyze.timing.kernel_seconds import KindError, kernel_seconds
from dsocr_analyze.timing.output_lengths import OutputLengths
from dsocr_analyze.timing.page_times import TimedModel
from dsocr_analyze.timing.predict import predict, times_of
from dsocr_analyze.timing.runtimes import EAGER, NATIVE, SERVERS, Precision
from dsocr_analyze.workload import ViewBatch

REFERENCE = dimensions_of(PUBLISHED)
SMALL_DIRECTORY = small_directory()
SMALL = dimensions_of(SMALL_DIRECTORY)
HOSTS = {"eager": EAGER, "serving": SERVERS["vllm"]}
runtimes = pytest.mark.parametrize("runtime", HOSTS)
H100 = device("h100-sxm")


def with_gpu(timed=H100, **changes):
    """A GPU of other figures, with the same coefficients."""
    gpu = dataclasses.replace(timed.gpu, **changes)
    return dataclasses.replace(timed, gpu=gpu)


def planned(**page):
    sizes = {"page": (1000, 1400), "base_size": 256, "image_size": 192}
    return DEFAULT.plan(**{**sizes, **page})


def assumed(runtime="serving", tokens=100, *, lengths=None, host=None, prepare=0.01, **changes):
    lengths = lengths or OutputLengths.fixed(tokens)
    return Assumptions(host or HOSTS[runtime], lambda _: lengths, prepare, **changes)


def predicted(assumptions, concurrency=(1,), *, dimensions=SMALL, timed=H100, page=None, **given):
    model = TimedModel(DEFAULT, dimensions, BFLOAT16, False, timed)
    return predict(model, page or planned(), assumptions, concurrency, **given)


def spans(assumptions, *, dimensions=SMALL, timed=H100, page=None, **given):
    """What the seconds of a page's stages are made of."""
    model = TimedModel(DEFAULT, dimensions, BFLOAT16, False, timed)
    return times_of(model, page or planned(), assumptions, **given).stages


class TestBands:
    @runtimes
    def test_every_figure_lies_within_its_band(self, runtime):
        found = predicted(assumed(runtime, price_per_hour=2.0), (1, 8))
        bands = [(getattr(found, name), band) for name, band in found.bands.items()]
        assert len(bands) == 3
        for load in found.throughput:
            bands.append((load.pages_per_second, load.pages_per_second_band))
            bands.append((load.cost_per_thousand_pages, load.cost_band))
        for value, band in bands:
            assert 0 < band.low < value < band.high
        for span in found.stages.values():
            assert 0 < span.low < span.seconds < span.high

    @runtimes
    def test_a_page_is_its_first_token_and_the_time_of_every_other(self, runtime):
        found = predicted(assumed(runtime))
        *prefill, step = found.stages.values()
        assert list(found.stages) == list(DEFAULT.stage_names)
        first = 0.01 + sum(stage.seconds for stage in prefill)
        assert found.ttft_seconds == pytest.approx(first)
        assert found.page_seconds == pytest.approx(first + 99 * found.tpot_seconds)
        # Steps grow with the cache.
        assert 1 - 1e-9 < found.tpot_seconds / step.seconds < 1.5

    @runtimes
    def test_preprocessing_is_taken_as_given(self, runtime):
        without, with_it = (predicted(assumed(runtime, prepare=each)) for each in (0.0, 3.0))
        for name in ("ttft_seconds", "page_seconds"):
            one, other = without.bands[name], with_it.bands[name]
            assert getattr(with_it, name) == pytest.approx(getattr(without, name) + 3)
            assert (other.low, other.high) == pytest.approx((one.low + 3, one.high + 3))

    @runtimes
    def test_where_the_cpu_decides_throughput_is_as_exact_as_it(self, runtime):
        [load] = predicted(assumed(runtime, prepare=60.0, workers=2), (64,)).throughput
        rate, band = load.pages_per_second, load.pages_per_second_band
        assert load.bound == "host"
        assert band.low == rate == band.high <= 2 / 60


class TestThroughput:
    @runtimes
    def test_one_page_at_a_time_takes_what_a_page_alone_takes(self, runtime):
        for changes in ({}, {"lengths": OutputLengths.of_counts({1: 3, 700: 1, 2000: 1})},
                        {"is_offline": True}):  # fmt: skip
            found = predicted(assumed(runtime, **changes), (1, 4))
            [load, _] = found.throughput
            assert load.page_seconds == found.page_seconds
            assert load.ttft_seconds == found.ttft_seconds
            assert load.tpot_seconds == found.tpot_seconds
            assert load.pages_per_second == pytest.approx(1 / load.page_seconds)

    def test_the_cpu_bounds_what_waits_for_it(self):
        """A worker prepares 15.5 pages a second; B200 could do more with that many in flight.

        The GPU is never idle, since it decodes whatever runs, but pages wait for the CPU alone.
        """
        page = DEFAULT.plan(page=(1240, 1754))
        given = {"dimensions": REFERENCE, "timed": device("b200"), "page": page}
        one, many = predicted(assumed(tokens=1024, prepare=0.0645), (1, 128), **given).throughput
        [free] = predicted(assumed(tokens=1024, prepare=0.0), (128,), **given).throughput
        assert free.pages_per_second > 1.3 / 0.0645
        assert many.pages_per_second == pytest.approx(1 / 0.0645)
        assert many.ttft_seconds > 5
        assert (one.bound, many.bound, free.bound) == ("memory", "host", "memory")

    def test_a_gpu_as_fast_as_its_cpu_leaves_the_rate_uncertain_downwards(self):
        """Where the GPU's capacity within its band is below the CPU's, the rate may be lower."""
        [free] = predicted(assumed(prepare=0.0), (8,)).throughput
        prepare = 1.02 / free.pages_per_second
        [load] = predicted(assumed(prepare=prepare), (8,)).throughput
        rate, band = load.pages_per_second, load.pages_per_second_band
        assert load.bound == "host"
        assert band.high == rate <= 1 / prepare
        assert free.pages_per_second_band.low * 0.99 < band.low < rate

    @pytest.mark.exhaustive
    @runtimes
    @pytest.mark.parametrize("tokens", [1, 2, 300])
    def test_no_more_pages_than_prefill_passes_and_preparations_come_by(self, runtime, tokens):
        many = (1, 2, 7, 32)
        found = predicted(assumed(runtime, tokens, prepare=0.002, workers=2), many)
        *prefill, _ = found.stages.values()
        alone = sum(stage.seconds for stage in prefill)
        for load in found.throughput:
            rate = load.pages_per_second
            assert rate * 0.002 <= 2
            if runtime == "serving":
                assert rate * alone <= 1 + 1e-9
            assert load.tokens_per_second == pytest.approx(tokens * rate)
            # Little's law: so many pages are in flight.
            assert rate * load.page_seconds == pytest.approx(load.concurrency)
            assert load.ttft_seconds <= load.page_seconds

    @pytest.mark.exhaustive
    @runtimes
    def test_more_pages_at_a_time_never_give_fewer_a_second(self, runtime):
        found = predicted(assumed(runtime, prepare=0.0), (1, 2, 4, 8, 16, 32))
        rates = [load.pages_per_second for load in found.throughput]
        assert all(more > 0.999 * fewer for fewer, more in itertools.pairwise(rates))
        assert rates[-1] > 1.5 * rates[0]

    def test_offline_all_pages_are_prepared_first(self):
        """A page's share of both: of the CPU alone, then of the GPU without waiting for a CPU."""
        ahead = predicted(assumed(prepare=0.0), (8,)).throughput[0].pages_per_second
        offline = assumed(prepare=0.06, workers=3, is_offline=True)
        [load] = predicted(offline, (8,)).throughput
        assert load.pages_per_second == pytest.approx(1 / (1 / ahead + 0.02))
        assert load.page_seconds == pytest.approx(0.06 + 8 / ahead)

    @runtimes
    def test_money_by_hand(self, runtime):
        """1,000 pages at 0.5 a second take 2,000 s of an hour of 3,600 s."""
        [load] = predicted(assumed(runtime, price_per_hour=1.8), (4,)).throughput
        rate, cost = load.pages_per_second_band, load.cost_band
        assert load.cost_per_thousand_pages == pytest.approx(0.5 / load.pages_per_second)
        assert (cost.low, cost.high) == pytest.approx((0.5 / rate.high, 0.5 / rate.low))
        assert predicted(assumed(runtime)).throughput[0].cost_per_thousand_pages is None


class TestLengths:
    @runtimes
    def test_a_page_of_one_token_has_no_time_per_token(self, runtime):
        found = predicted(assumed(runtime, 1), (1, 4))
        assert found.tpot_seconds is None
        assert found.page_seconds == found.ttft_seconds
        for load in found.throughput:
            assert load.tpot_seconds is None
            assert load.page_seconds == pytest.approx(load.ttft_seconds)

    @pytest.mark.exhaustive
    @runtimes
    def test_a_mean_between_whole_numbers_of_tokens_is_not_rounded(self, runtime):
        """Six pages of one token and four of two: 0.4 steps of a page, on average."""
        few = OutputLengths.of_counts({1: 6, 2: 4})
        found = predicted(assumed(runtime, lengths=few))
        one, two = (predicted(assumed(runtime, tokens)) for tokens in (1, 2))
        step = two.page_seconds - one.page_seconds
        assert found.page_seconds == pytest.approx(one.page_seconds + 0.4 * step)
        assert found.tpot_seconds == pytest.approx(step)

    def test_a_second_eager_step_reads_one_more_key(self):
        model = TimedModel(DEFAULT, SMALL, BFLOAT16, False, H100)
        one, two = (
            times_of(model, planned(), assumed("eager", tokens)).decode for tokens in (2, 3)
        )
        assert 2 * one.nbytes < two.nbytes < 2.01 * one.nbytes

    @pytest.mark.exhaustive
    def test_a_batch_waits_for_its_longest_page(self):
        mixed = OutputLengths.of_counts({100: 1, 1000: 1})
        batch = assumed("eager", lengths=mixed, prepare=0.0)
        longest = mixed.expected_longest(8)
        assert 990 < longest < 1000
        [load] = predicted(batch, (8,)).throughput
        [all_long] = predicted(assumed("eager", 1000, prepare=0.0), (8,)).throughput
        rates = load.pages_per_second, all_long.pages_per_second
        assert rates[0] == pytest.approx(rates[1] * 999 / (longest - 1), rel=0.01)

    def test_served_pages_do_not_wait_for_one_another(self):
        mixed = OutputLengths.of_counts({100: 1, 1000: 1})
        [load] = predicted(assumed(lengths=mixed, prepare=0.0), (8,)).throughput
        [mean] = predicted(assumed(tokens=550, prepare=0.0), (8,)).throughput
        rates = load.pages_per_second, mean.pages_per_second
        assert rates[0] == pytest.approx(rates[1], rel=0.05)

    @runtimes
    def test_memory_is_kept_for_the_longest_page(self, runtime):
        mixed = OutputLengths.of_counts({100: 99, 5000: 1})
        one = predicted(assumed(runtime, lengths=mixed))
        other = predicted(assumed(runtime, 5000))
        assert one.largest_concurrency == other.largest_concurrency
        assert one.throughput[0].memory_bytes == other.throughput[0].memory_bytes


class TestMemory:
    @runtimes
    def test_more_memory_holds_more_pages(self, runtime):
        held = [
            predicted(assumed(runtime), timed=with_gpu(memory_gb=gb)).largest_concurrency
            for gb in (16, 40, 80)
        ]
        assert 0 < held[0] < held[1] < held[2]

    @pytest.mark.exhaustive
    @runtimes
    def test_pages_that_do_not_fit_wait_outside(self, runtime):
        timed = with_gpu(memory_gb=1)
        largest = predicted(assumed(runtime), timed=timed).largest_concurrency
        assert largest > 1
        fitting, waiting = predicted(
            assumed(runtime), (largest, 3 * largest), timed=timed
        ).throughput
        assert (fitting.fits, waiting.fits) == (True, False)
        assert fitting.memory_bytes <= 0.9e9 < waiting.memory_bytes
        rate = fitting.pages_per_second
        assert waiting.pages_per_second == pytest.approx(rate)
        assert waiting.page_seconds == pytest.approx(3 * largest / rate)
        longer = waiting.ttft_seconds - fitting.ttft_seconds
        assert longer == pytest.approx(2 * largest / rate)

    def served(self, precision=NATIVE, concurrency=(1, 2)):
        """The published model, 913 tokens of prompt and 88 generated: 1,000 are cached."""
        mode = DEFAULT.modes["gundam"]
        page = DEFAULT.plan(
            page=(1191, 1684), base_size=mode.base_size, image_size=mode.image_size,
            crop_mode=mode.crop_mode,
        )  # fmt: skip
        assert page.seq_len == 913
        assumptions = assumed(tokens=88, precision=precision)
        return predicted(assumptions, concurrency, dimensions=REFERENCE, page=page).throughput

    @pytest.mark.parametrize(
        ("cache", "nbytes"), [(None, 61_440), ("int8", 30_720), ("int4", 15_360)]
    )
    def test_another_page_takes_its_cache_by_hand(self, cache, nbytes):
        one, two = self.served(Precision(cache=cache))
        assert two.memory_bytes - one.memory_bytes == 1000 * nbytes

    @pytest.mark.parametrize(
        ("weights", "saved"),
        # 2,602,844,160 weights: a byte, or one and a half, less, and 1/64 for scales.
        [("int8", 2_602_844_160 - 40_669_440), ("int4", 3_904_266_240 - 40_669_440)],
    )
    def test_quantized_weights_save_bytes_by_hand(self, weights, saved):
        native, quantized = self.served(), self.served(Precision(weights=weights))
        assert native[0].memory_bytes - quantized[0].memory_bytes == saved
        assert quantized[0].tpot_seconds < native[0].tpot_seconds

    def test_fewer_bytes_of_cache_make_steps_of_many_sequences_faster(self):
        native, small = (self.served(Precision(cache=each), (64,))[0] for each in (None, "int8"))
        assert small.tpot_seconds < native.tpot_seconds


class TestChunks:
    def test_a_prompt_beyond_a_chunk_reads_the_weights_again(self):
        whole, cut = (
            spans(assumed(host=dataclasses.replace(SERVERS["vllm"], chunk_tokens=tokens)),
                  dimensions=REFERENCE)
            for tokens in (94, 93)
        )  # fmt: skip
        assert planned().seq_len == 94
        assert sum(cut["prefill"].kinds.values()) > 1.2 * sum(whole["prefill"].kinds.values())
        assert cut["sam"] == whole["sam"]
        assert cut["decode"] == whole["decode"]


class TestFaster:
    """More of what a GPU is sold by never makes a page slower."""

    @pytest.mark.exhaustive
    @settings(deadline=None, max_examples=10)
    @given(
        st.sampled_from(["h100-sxm", "a100-80gb-sxm", "l40s", "b200", "t4", "rtx-4090"]),
        st.sampled_from(["bandwidth_gb_s", "tensor_tflops", "float32_tflops"]),
        st.floats(1.0, 4.0),
        st.sampled_from(sorted(HOSTS)),
    )
    def test_more_bandwidth_or_more_flops_never_make_a_page_slower(
        self, name, figure, factor, runtime
    ):
        timed = device(name)
        if timed.gpu.tensor_dtype != "bfloat16":
            timed = with_gpu(timed, tensor_dtype="bfloat16")
            fitted = {(kind, "bfloat16"): each for (kind, _), each in timed.kinds.items()}
            timed = dataclasses.replace(timed, kinds=fitted)
        better = with_gpu(timed, **{figure: factor * getattr(timed.gpu, figure)})
        one, other = (
            predicted(assumed(runtime, prepare=0.0), (1, 8), timed=each) for each in (timed, better)
        )
        assert other.page_seconds <= one.page_seconds * (1 + 1e-9)
        for slower, faster in zip(one.throughput, other.throughput, strict=True):
            more = faster.pages_per_second
            assert more >= slower.pages_per_second * (1 - 1e-6)


class TestPeaks:
    """No kernel is predicted faster than a peak allows, so no share of a peak exceeds 1."""

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
        self, name, architecture, runtime, page, text_tokens, weights
    ):
        timed, chosen = device(name), ARCHITECTURES[architecture]
        if runtime == "eager" or weights not in timed.gpu.weight_dtypes:
            weights = None
        dimensions = chosen.forms.dimensions(ModelDirectory.read(chosen.reference).config)
        model = TimedModel(chosen, dimensions, dtype_named(timed.gpu.tensor_dtype), False, timed)
        found = predict(
            model, chosen.plan(page=page, text_tokens=text_tokens),
            assumed(runtime, precision=Precision(weights)),
        )  # fmt: skip
        for stage in found.stages.values():
            assert 0 < stage.peak_share <= 1
            assert 0 < stage.bandwidth_share <= 1

    def test_a_steps_share_of_the_bandwidth_by_hand(self):
        """A step reads attention, six routed and two shared experts, routers, head and cache.

        The embedding of one token and what passes from kernel to kernel are the rest.
        """
        mlp = 3 * 1280 * 896
        weights = 12 * 4 * 1280**2 + 3 * 1280 * 6848 + 11 * (8 * mlp + 64 * 1280) + 1280 * 129_280
        cache = 12 * (913 + 1) * 2 * 1280
        page = DEFAULT.plan(page=(1240, 1754))
        found = predicted(assumed(), dimensions=REFERENCE, page=page)
        step = found.stages["decode"]
        moved = step.bandwidth_share * step.seconds * 3.35e12
        assert moved == pytest.approx(2 * (weights + cache), rel=0.002)

    def test_what_l2_serves_is_no_share_of_the_bandwidth(self):
        """6 MB stay in an L2 of 50 MB; 60 MB do not."""
        add = Kernel("elementwise", "add", Elements(10**6), "bfloat16", "bfloat16",
                     Work(bytes_read=4 * 10**6, bytes_written=2 * 10**6))  # fmt: skip
        large = add._replace(work=add.work.times(10))
        priced = kernel_seconds([add, large], H100)
        assert priced.least_memory.tolist() == pytest.approx([0, 6e7 / 3.35e12])

    @pytest.mark.parametrize("kind", ["gemm", "movement", "generation_attention", "experts"])
    def test_coefficients_beyond_the_peak_do_not_get_there(self, kind):
        fitted = dict(H100.kinds)
        given = fitted[kind, "bfloat16"]
        shares = {name: 50.0 for name in vars(given.coefficients) if "share" in name}
        fast = dataclasses.replace(given.coefficients, **shares)
        fitted[kind, "bfloat16"] = dataclasses.replace(given, coefficients=fast)
        beyond = dataclasses.replace(H100, kinds=fitted)
        page = DEFAULT.plan(page=(1240, 1754))
        for span in spans(assumed(), dimensions=REFERENCE, page=page, timed=beyond).values():
            assert span.least_compute <= span.seconds
            assert span.least_memory <= span.seconds

    def test_a_server_measured_beyond_the_peak_is_at_it(self):
        span = Duration(
            {KindError("x", 0, 0, False, False): 2.0}, least_compute=0.5, least_memory=1.5
        )
        faster = span.corrected(0.5, None)
        assert (faster.least_compute, faster.least_memory, faster.seconds) == (0.5, 1.0, 1.0)


class TestRuntimes:
    def test_an_eager_host_of_other_figures_is_eager_still(self):
        host = dataclasses.replace(EAGER, launch_us=4.0)
        assert assumed(host=host).runtime == "eager"
        faster, slower = (predicted(assumed(host=each)) for each in (host, EAGER))
        assert faster.runtime == "eager"
        assert faster.page_seconds < slower.page_seconds

    def test_pixels_are_copied_in_three_channels(self):
        host = dataclasses.replace(EAGER, pixel_bytes=2, link_gb_s=6.0)
        # 3 * (6 * 640**2 + 1024**2) values of two bytes at 6 GB/s.
        views = ViewBatch(6, 640), ViewBatch(1, 1024)
        assert host.copy_seconds(views) == pytest.approx(21_037_056 / 6e9)

    @pytest.mark.parametrize("name", SERVERS)
    def test_every_server_serves(self, name):
        found = predicted(assumed(host=SERVERS[name]), (1, 16))
        assert found.runtime == "serving"
        assert found.assumptions.host == SERVERS[name].name
        assert any(SERVERS[name].title in said for said in found.assumptions.sentences)

    def test_what_is_assumed_is_said(self):
        mixed, precision = OutputLengths.of_counts({100: 3, 500: 1}), Precision("int4", "float8")
        found = predicted(
            assumed(lengths=mixed, prepare=0.0125, workers=4, precision=precision, reserved=0.2)
        )
        said = " ".join(found.assumptions.sentences)
        for words in ("200 tokens on average, 500 at most", "12.5 ms", "4 at a time", "20 %",
                      "int4", "float8"):  # fmt: skip
            assert words in said

    @pytest.mark.parametrize(
        ("computing", "owner"),
        [([True], "the machine's"), ([False], "the GPU's"), ([True, False], "each device's")],
    )
    def test_memory_is_that_of_whatever_computes(self, monkeypatch, computing, owner):
        hosts = {is_cpu: dataclasses.replace(EAGER, computes=is_cpu) for is_cpu in computing}
        profiles = {is_cpu: dataclasses.replace(device("l40s")) for is_cpu in computing}
        by_profile = {id(profiles[is_cpu]): host for is_cpu, host in hosts.items()}
        monkeypatch.setattr(type(EAGER), "on", lambda _, profile: by_profile[id(profile)])
        job = Assumptions(EAGER, lambda _: OutputLengths.of_counts({1: 1}))
        said = job.sentences("", profiles.values())
        assert f"10 % of {owner} memory is kept free" in said
        assert any("before each batch runs" in sentence for sentence in said)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"prepare": -0.001}, "preprocess_ms"),
            ({"prepare": float("nan")}, "preprocess_ms"),
            ({"prepare": float("inf")}, "preprocess_ms"),
            ({"workers": 0}, "workers"),
            ({"price_per_hour": 0.0}, "price"),
            ({"price_per_hour": -1.0}, "price"),
            ({"price_per_hour": float("nan")}, "price"),
            ({"price_per_hour": float("inf")}, "price"),
            ({"reserved": 1.0}, "reserved"),
            ({"reserved": -0.1}, "reserved"),
            ({"reserved": float("nan")}, "reserved"),
        ],
    )
    def test_an_impossible_assumption_is_named(self, changes, named):
        with pytest.raises(WorkloadError, match=named) as refused:
            assumed(**changes)
        assert refused.value.arguments == (named,)

    @pytest.mark.parametrize("concurrency", [(0,), (4, -1)])
    def test_a_concurrency_below_one_is_refused(self, concurrency):
        with pytest.raises(WorkloadError, match=f"concurrency {concurrency[-1]} is too small"):
            predicted(assumed(), concurrency)

    @runtimes
    def test_fp32_is_refused_where_attention_was_not_measured_in_it(self, runtime):
        model = TimedModel(DEFAULT, SMALL, FLOAT32, False, H100)
        with pytest.raises(DeviceError, match="bfloat16 or float16"):
            predict(model, planned(), assumed(runtime))

    def test_a_type_that_the_gpu_lacks_is_refused(self):
        with pytest.raises(DeviceError, match="float16"):
            predicted(assumed(), timed=device("t4"))
        with pytest.raises(DeviceError, match="float8"):
            predicted(assumed(precision=Precision("float8")), timed=device("a100-80gb-sxm"))
        with pytest.raises(DeviceError, match="float8"):
            predicted(assumed(precision=Precision(cache="float8")), timed=device("a100-80gb-sxm"))
