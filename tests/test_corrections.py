"""What benchmarks of servers correct: factors, their error, and corrected predictions."""

import math
from dataclasses import replace

import pytest

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.archive.setting import published_model
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.hardware import device
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths
from dsocr_analyze.timing.correction import Correction, Corrections, KeptBenchmark, basis_of
from dsocr_analyze.timing.kernel_seconds import Duration
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


NEW = kept(2, version="0.15.0", kept="2026-02-01T00:00:00Z")


def job_of(*benchmarks, host=VLLM, prepare=0.05, workers=1, offline=False):
    return Assumptions(
        host, lambda _: OutputLengths.fixed(TOKENS), prepare, workers, is_offline=offline,
        corrections=Corrections(benchmarks),
    )  # fmt: skip


def model_of(gpu="h100-sxm"):
    return TimedModel(DEFAULT, published_model().dimensions, BFLOAT16, False, device(gpu))


def predicted(*benchmarks, concurrency=(1, 16), gpu="h100-sxm", **more):
    return predict(model_of(gpu), PAGE, job_of(*benchmarks, **more), concurrency)


def spans(*benchmarks):
    """What the seconds of a page's stages are made of."""
    return times_of(model_of(), PAGE, job_of(*benchmarks)).stages


def combined(*benchmarks):
    found = Correction(benchmarks).found
    return (found.first_token, found.per_token, found.first_token_error, found.per_token_error)


class TestCombination:
    @pytest.mark.parametrize(
        ("benchmarks", "expected"),
        [
            ([kept(1.5, 0.8)], (1.5, 0.8, None, None)),
            # The geometric mean; 4 times as long as the other.
            ([kept(1, 2), kept(4, 2)], (2, 2, 3, 0)),
            ([kept(1), kept(2), kept(4)], (2, 1, math.sqrt(8) - 1, 0)),
        ],
    )
    def test_several_are_combined_and_their_error_is_the_largest_distance(
        self, benchmarks, expected
    ):
        assert combined(*benchmarks) == pytest.approx(expected)

    def test_the_sentence_says_how_much_from_what_and_when(self):
        one = Correction((kept(1.5, 0.8),)).sentences()[0]
        assert one == (
            "corrected for h100-sxm under vllm (0.14.1): the first token takes 1.5 times and each"
            " later token 0.8 times as long as predicted without correction, from a benchmark of"
            " 100 requests, 8 at a time (a.json, kept 2026-01-31)"
        )
        later = kept(1.2, 0.8, file="b.json", kept="2026-02-02T00:00:00Z", requests=1000)
        both = Correction((kept(1.5, 0.8), later), ("0.15.0",)).sentences()[0]
        assert both.endswith(
            "from 2 benchmarks of 1,100 requests (a.json, b.json, kept 2026-01-31 to 2026-02-02);"
            " each is within 25 % and 0 % of the others, which gives the band; other versions with"
            " benchmarks: 0.15.0"
        )
        assert "vllm (unknown version)" in Correction((kept(version="unknown"),)).sentences()[0]


class TestChoice:
    @pytest.mark.parametrize(
        ("corrections", "asked", "first_token"),
        [
            (Corrections((kept(1.5),)), (H100, VLLM, "deepseek-ocr"), 1.5),
            (Corrections((kept(1.5),)), (device("l4"), VLLM, "deepseek-ocr"), None),
            (Corrections((kept(1.5),)), (H100, SERVERS["vllm-v1"], "deepseek-ocr"), None),
            (Corrections((kept(1.5),)), (H100, VLLM, "deepseek-ocr-2"), None),
            # The version that was kept last, unless another is named.
            (Corrections((NEW, kept(1.5))), (H100, VLLM, "deepseek-ocr"), 2),
            (Corrections((NEW, kept(1.5)), "0.14.1"), (H100, VLLM, "deepseek-ocr"), 1.5),
            (Corrections((NEW, kept(1.5)), "0.13"), (H100, VLLM, "deepseek-ocr"), None),
            # The same figures from elsewhere.
            (Corrections((kept(1.5),)), (replace(H100, source=""), VLLM, "deepseek-ocr"), 1.5),
            # The same benchmark counts once.
            (Corrections((kept(1.5),)).with_these([kept(2, id="1.5-1.0"), kept(8)]),
             (H100, VLLM, "deepseek-ocr"), 4),
        ],
    )  # fmt: skip
    def test_it_is_of_the_gpu_the_server_the_model_and_the_version(
        self, corrections, asked, first_token
    ):
        found = corrections.of(*asked).found
        assert (found and found.first_token) == pytest.approx(first_token)

    def test_where_nothing_is_kept_nothing_changes(self):
        nothing = Corrections((kept(1.5),)).of(device("l4"), VLLM, "deepseek-ocr")
        assert (nothing, nothing.sentences()) == (Correction(), [])
        assert nothing.corrected(SPAN, "first_token") is SPAN
        assert Corrections((NEW, kept())).of(H100, VLLM, "deepseek-ocr").other_versions == (
            "0.14.1",
        )

    @pytest.mark.parametrize("server", [VLLM, replace(VLLM, hidden_step_us=501.0)])
    def test_other_kernel_times_or_host_figures_are_not_corrected(self, server):
        other = device("a100-sxm").kinds["gemm", "bfloat16"].coefficients
        gemm = replace(H100.kinds["gemm", "bfloat16"], coefficients=other)
        timed = H100
        if server is VLLM:
            timed = replace(H100, kinds={**H100.kinds, ("gemm", "bfloat16"): gemm})
        found = Corrections((kept(1.5),)).of(timed, server, "deepseek-ocr")
        [said] = found.sentences()
        assert found.found is None
        assert said.startswith("not corrected for h100-sxm under vllm (0.14.1) by a benchmark")
        assert "(a.json, kept 2026-01-31): compared with other kernel times" in said


def widths(prediction, name):
    """The ends of a figure's band, as ratios to the figure."""
    value, band = getattr(prediction, name), prediction.bands[name]
    return band.low / value, band.high / value


class TestPrediction:
    def test_first_token_and_tokens_are_multiplied_and_the_throughput_follows(self):
        bare, corrected = predicted(), predicted(kept(1.5, 1.2))
        alone = [corrected.ttft_seconds, corrected.tpot_seconds, corrected.page_seconds]
        first = corrected.throughput[0]
        assert alone == [first.ttft_seconds, first.tpot_seconds, first.page_seconds]
        for before, after in zip(bare.throughput, corrected.throughput, strict=True):
            assert after.ttft_seconds == pytest.approx(1.5 * before.ttft_seconds)
            assert after.tpot_seconds == pytest.approx(1.2 * before.tpot_seconds)
            page = after.ttft_seconds + (TOKENS - 1) * after.tpot_seconds
            assert after.page_seconds == pytest.approx(page)
            rate = after.concurrency / page  # Little's law
            assert after.pages_per_second == pytest.approx(rate)
            assert after.tokens_per_second == pytest.approx(TOKENS * rate)
            assert (after.memory_bytes, after.fits) == (before.memory_bytes, before.fits)

    def test_stages_are_corrected_and_what_is_computed_and_moved_stays(self):
        bare, corrected = spans(), spans(kept(1.5, 1.2))
        *_, decode = bare
        for name, span in bare.items():
            after = corrected[name]
            factor = 1.2 if name == decode else 1.5
            assert float(after.seconds / span.seconds) == pytest.approx(factor)
            for figure in ("bound", "least_compute", "least_memory"):
                assert getattr(after, figure) == getattr(span, figure)

    def test_one_benchmark_leaves_the_band_as_wide_as_it_was_and_several_say_it(self):
        bare, corrected = predicted(prepare=0), predicted(kept(1.5, 1.5), prepare=0)
        for name in ("ttft_seconds", "tpot_seconds", "page_seconds"):
            assert widths(corrected, name) == pytest.approx(widths(bare, name))
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
