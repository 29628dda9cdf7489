"""What benchmarks of servers correct: factors, their error, and corrected predictions."""

import math
from dataclasses import replace

import pytest

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.archive.setting import published_model
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.hardware import device
from dsocr_analyze.timing.assumptions import Assumptions
from dsocr_analyze.timing.correction import Correction, Corrections, KeptBenchmark, basis_of
from dsocr_analyze.timing.duration import Duration
from dsocr_analyze.timing.output_lengths import OutputLengths
from dsocr_analyze.timing.page_times import TimedModel
from dsocr_analyze.timing.predict import predict, times_of
from dsocr_analyze.timing.runtimes import EAGER, SERVERS
from dsocr_analyze.timing.serving import ServedModel

PAGE = DEFAULT.plan(page=(1240, 1754))
TOKENS = 300
H100, VLLM = device("h100-sxm"), SERVERS["vllm"]
BASIS = basis_of(H100, VLLM)
SPAN = Duration(host=1.0)


def kept(first_token=1.0, per_token=1.0, **changes):
    return KeptBenchmark(**{
        "id": f"{first_token}-{per_token}", "gpu": "h100-sxm", "server": "vllm",
        "version": "0.14.1", "architecture": "deepseek-ocr", "first_token": first_token,
        "per_token": per_token, "basis": BASIS, "requests": 100, "concurrency": 8, "file": "a.json",
        "kept": "2026-01-31T12:00:00Z", **changes,
    })  # fmt: skip


def predicted(*benchmarks, concurrency=(1, 16), prepare=0.05, host=SERVERS["vllm"], gpu="h100-sxm",
              workers=1, offline=False):  # fmt: skip
    model = TimedModel(DEFAULT, published_model().dimensions, BFLOAT16, False, device(gpu))
    lengths = OutputLengths.fixed(TOKENS)
    job = Assumptions(host, lambda _: lengths, prepare, workers, is_offline=offline,
                         corrections=Corrections(benchmarks))  # fmt: skip
    return predict(model, PAGE, job, concurrency)


def spans(*benchmarks):
    """What the seconds of a page's stages are made of."""
    model = TimedModel(DEFAULT, published_model().dimensions, BFLOAT16, False, device("h100-sxm"))
    job = Assumptions(
        VLLM, lambda _: OutputLengths.fixed(TOKENS), 0.05, corrections=Corrections(benchmarks)
    )
    return times_of(model, PAGE, job).stages


class TestCombination:
    def test_one_benchmark_is_taken_as_it_is(self):
        one = Correction((kept(1.5, 0.8),)).found
        assert (one.first_token, one.per_token) == pytest.approx((1.5, 0.8))
        assert (one.first_token_error, one.per_token_error) == (None, None)

    def test_several_are_combined_by_the_geometric_mean(self):
        both = Correction((kept(1, 2), kept(4, 2))).found
        assert both.first_token == pytest.approx(2)
        assert both.per_token == pytest.approx(2)

    def test_the_error_is_the_largest_distance_from_what_the_others_say(self):
        both = Correction((kept(1, 2), kept(4, 2))).found
        assert both.first_token_error == pytest.approx(3)  # 4 times as long as the other
        assert both.per_token_error == pytest.approx(0)
        three = Correction((kept(1), kept(2), kept(4))).found
        assert three.first_token_error == pytest.approx(math.sqrt(8) - 1)

    def test_the_sentence_says_how_much_from_what_and_when(self):
        one = Correction((kept(1.5, 0.8),)).sentences()[0]
        assert one == (
            "corrected for h100-sxm under vllm (0.14.1): the first token takes 1.5 times and each"
            " later token 0.8 times as long as predicted without correction, from a benchmark of"
            " 100 requests, 8 at a time (a.json, kept 2026-01-31)"
        )
        later = kept(1.2, 0.8, file="b.json", kept="2026-02-02T00:00:00Z", requests=1000)
        both = Correction((kept(1.5, 0.8), later), ("0.15.0",)).sentences()[0]
        assert "2 benchmarks of 1,100 requests (a.json, b.json, kept 2026-01-31 to" in both
        assert "each is within 25 % and 0 % of the others, which gives the band" in both
        assert both.endswith("; other versions with benchmarks: 0.15.0")
        assert "vllm (unknown version)" in Correction((kept(version="unknown"),)).sentences()[0]


class TestChoice:
    def test_it_is_of_the_gpu_the_server_and_the_model(self):
        corrections = Corrections((kept(1.5),))
        assert corrections.of(H100, VLLM, "deepseek-ocr").found.first_token == 1.5
        for other in ((device("l4"), VLLM, "deepseek-ocr"),
                      (H100, SERVERS["vllm-v1"], "deepseek-ocr"),
                      (H100, VLLM, "deepseek-ocr-2")):  # fmt: skip
            assert corrections.of(*other) == Correction()

    def test_where_nothing_is_kept_nothing_changes(self):
        nothing = Correction()
        assert nothing.found is None
        assert nothing.sentences() == []
        assert nothing.prefill(SPAN) is nothing.decode(SPAN) is SPAN

    def test_the_version_kept_last_is_taken_unless_another_is_named(self):
        old, new = kept(1.5), kept(2, version="0.15.0", kept="2026-02-01T00:00:00Z")
        names = (H100, VLLM, "deepseek-ocr")
        found = Corrections((new, old)).of(*names)
        assert (found.benchmarks, found.found.first_token) == ((new,), 2)
        assert found.other_versions == ("0.14.1",)
        assert Corrections((new, old), "0.14.1").of(*names).found.first_token == 1.5
        assert Corrections((new, old), "0.13").of(*names).found is None

    def test_other_kernel_times_or_host_figures_are_not_corrected(self):
        corrections = Corrections((kept(1.5),))
        fitted = H100.kinds["gemm", "bfloat16"]
        other = replace(fitted, coefficients=device("a100-sxm").kinds["gemm", "bfloat16"]
                        .coefficients)  # fmt: skip
        calibrated = replace(H100, kinds={**H100.kinds, ("gemm", "bfloat16"): other})
        for asked in ((calibrated, VLLM), (H100, replace(VLLM, hidden_step_us=501.0))):
            found = corrections.of(*asked, "deepseek-ocr")
            assert found.found is None
            [said] = found.sentences()
            assert said.startswith("not corrected for h100-sxm under vllm (0.14.1) by a benchmark")
            assert "(a.json, kept 2026-01-31): compared with other kernel times" in said
        rewritten = replace(H100, source="the same figures from elsewhere")
        assert corrections.of(rewritten, VLLM, "deepseek-ocr").found.first_token == 1.5

    def test_the_same_benchmark_counts_once(self):
        twice = Corrections((kept(1.5),)).with_these([kept(2, id="1.5-1.0"), kept(3)])
        assert sorted(each.first_token for each in twice.benchmarks) == [2, 3]


def widths(prediction, name):
    """The ends of a figure's band, as ratios to the figure."""
    value, band = getattr(prediction, name), prediction.bands[name]
    return band.low / value, band.high / value


class TestPrediction:
    def test_first_token_and_tokens_are_multiplied_and_the_throughput_follows(self):
        bare, corrected = predicted(), predicted(kept(1.5, 1.2))
        for before, after in zip(bare.throughput, corrected.throughput, strict=True):
            assert after.ttft_seconds == pytest.approx(1.5 * before.ttft_seconds)
            assert after.tpot_seconds == pytest.approx(1.2 * before.tpot_seconds)
            page = after.ttft_seconds + (TOKENS - 1) * after.tpot_seconds
            assert after.page_seconds == pytest.approx(page)
            rate = after.concurrency / page  # Little's law
            assert after.pages_per_second == pytest.approx(rate)
            assert after.tokens_per_second == pytest.approx(TOKENS * rate)
            assert (after.memory_bytes, after.fits) == (before.memory_bytes, before.fits)

    def test_a_page_alone_and_its_stages_are_corrected_alike(self):
        bare, corrected = predicted(), predicted(kept(1.5, 1.2))
        *prefill, decode = bare.stages
        for name in prefill:
            ratio = float(corrected.stages[name].seconds / bare.stages[name].seconds)
            assert ratio == pytest.approx(1.5)
        ratio = float(corrected.stages[decode].seconds / bare.stages[decode].seconds)
        assert ratio == pytest.approx(1.2)
        assert corrected.ttft_seconds == pytest.approx(1.5 * bare.ttft_seconds)
        assert corrected.tpot_seconds == pytest.approx(1.2 * bare.tpot_seconds)
        seconds = corrected.ttft_seconds + (TOKENS - 1) * corrected.tpot_seconds
        assert corrected.page_seconds == pytest.approx(seconds)

    def test_what_is_computed_and_moved_stays_what_it_was(self):
        bare, corrected = spans(), spans(kept(1.5, 1.2))
        for name, span in bare.items():
            assert float(corrected[name].least_compute) == float(span.least_compute)
            assert float(corrected[name].nbytes) == float(span.nbytes)
            assert corrected[name].bound == span.bound

    def test_one_benchmark_leaves_the_band_as_wide_as_it_was(self):
        bare, corrected = predicted(prepare=0), predicted(kept(1.5, 1.5), prepare=0)
        for name in ("ttft_seconds", "tpot_seconds", "page_seconds"):
            assert widths(corrected, name) == pytest.approx(widths(bare, name))

    def test_several_say_the_band(self):
        corrected = predicted(kept(1, 1.2), kept(1.5, 1.3))
        assert widths(corrected, "ttft_seconds") == pytest.approx((1 / 1.5, 1.5))
        assert widths(corrected, "tpot_seconds")[1] == pytest.approx(1.3 / 1.2)
        assert 1.3 / 1.2 < widths(corrected, "page_seconds")[1] < 1.5

    def test_no_more_than_the_cpu_prepares_comes_by(self):
        slow = predicted(kept(0.2, 0.2), prepare=0.5, workers=2)
        one, many = slow.throughput
        assert one.pages_per_second == pytest.approx(1 / one.page_seconds)
        assert many.pages_per_second == pytest.approx(4)  # 2 workers, half a second each
        assert many.page_seconds == pytest.approx(16 / 4)
        [bare] = predicted(prepare=0.5, workers=2, concurrency=(16,)).throughput
        assert many.tpot_seconds == pytest.approx(0.2 * bare.tpot_seconds)

    def test_offline_the_cpu_comes_first(self):
        corrected = predicted(kept(1.5, 1.2), prepare=0.05, offline=True)
        for load in corrected.throughput:
            seconds = (load.page_seconds - 0.05) / load.concurrency + 0.05
            assert load.pages_per_second == pytest.approx(1 / seconds)

    @pytest.mark.exhaustive
    def test_another_gpu_another_server_and_the_models_own_code_are_left_alone(self):
        for asked in ({"gpu": "l40s"}, {"host": SERVERS["sglang"]}, {"host": EAGER}):
            assert predicted(kept(1.5, 1.2), **asked) == predicted(**asked)


class TestSpans:
    def test_errors_that_were_measured_add_up(self):
        first = Duration(host=1.0).corrected(2, 0.1)
        rest = Duration(host=3.0).corrected(2, 0.3)
        both = first.plus(rest)
        assert both.seconds == 8
        assert both.error == pytest.approx((0.1 * 2 + 0.3 * 6) / 8)
        assert Duration().plus(first).error == pytest.approx(0.1)
        assert first.plus(first).error == 0.1
        assert first.times(3).error == 0.1
        assert Duration().corrected(2, None) == Duration()


class TestBursts:
    """Requests that all come at once, against the closed loop that predicts them."""

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("server", ["vllm", "sglang"])
    @pytest.mark.parametrize("requests", [16, 64])
    def test_only_the_whole_request_is_that_of_a_steady_load(self, server, requests):
        host = SERVERS[server]
        bare = predicted(concurrency=(requests,), prepare=0.0, host=host)
        [load] = bare.throughput
        *prefill, _ = bare.stages.values()
        one = sum(float(span.seconds) for span in prefill)
        served = ServedModel(
            DEFAULT, published_model().dimensions, BFLOAT16, device("h100-sxm"), host
        )
        # One prompt after the other, then all tokens of all requests together.
        steps = [float(served.step(requests, PAGE.seq_len + done).seconds)
                 for done in range(1, TOKENS)]  # fmt: skip
        whole = requests * one + sum(steps)
        assert whole == pytest.approx(load.page_seconds, rel=0.08)
        assert (requests + 1) / 2 * one > 4 * load.ttft_seconds
