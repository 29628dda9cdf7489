"""Benchmarks of servers: what is read of their programs' results, and what they correct."""

import json
import math
import re
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.archive.setting import published_model
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.errors import BenchmarkError
from dsocr_analyze.hardware import device
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths
from dsocr_analyze.timing.correction import Correction, Corrections, KeptBenchmark, basis_of
from dsocr_analyze.timing.kernel_seconds import Duration
from dsocr_analyze.timing.page_times import TimedModel
from dsocr_analyze.timing.predict import predict, times_of
from dsocr_analyze.timing.runtimes import EAGER, SERVERS
from dsocr_analyze.timing.server_benchmarks.comparison import (
    check_engine,
    check_model,
    server_of,
    version_of,
)
from dsocr_analyze.timing.server_benchmarks.reading import read_benchmarks
from dsocr_analyze.timing.serving import ServedModel

DATA = Path(__file__).parent / "data"
VLLM = json.loads((DATA / "bench_vllm.json").read_text())
SGLANG = json.loads((DATA / "bench_sglang.jsonl").read_text().splitlines()[0])
GENAI = json.loads((DATA / "bench_genai_perf.json").read_text())


@pytest.fixture
def written(tmp_path):
    def write(result, name="result.json"):
        file = tmp_path / name
        file.write_text(result if isinstance(result, str) else json.dumps(result))
        return file

    return write


def changed(result, path, value):
    """A copy of a result with something else under `a.b`; without it for `...`."""
    copy = json.loads(json.dumps(result))
    *tables, key = path.split(".")
    table = copy
    for each in tables:
        table = table[each]
    if value is ...:
        table.pop(key, None)
    else:
        table[key] = value
    return copy


OLD = changed(changed(VLLM, "endpoint_type", ...), "backend", "vllm")
FLAT = {"model": ["deepseek-ai/DeepSeek-OCR"], "service_kind": "openai", "backend": "vllm",
        "concurrency": 8, "request_rate": None, "request_count": 120,
        "streaming": True}  # fmt: skip
AIPERF = {"endpoint": {"model_names": ["deepseek-ai/DeepSeek-OCR"]},
          "loadgen": {"concurrency": 8, "request_count": 120}}  # fmt: skip
TRITON = changed(GENAI, "input_config.endpoint.service_kind", "triton")
FEW = changed(VLLM, "completed", 195) | {"failed": 5}


def figures(found, names):
    return {name: getattr(found, name) for name in names}


@pytest.mark.parametrize(
    ("file", "number", "expected"),
    [
        ("bench_vllm.json", 0, {
            "program": "vllm bench serve", "date": "20260110-101500",
            "model": "deepseek-ai/DeepSeek-OCR", "engine": None, "version": None,
            "requests": 200, "failed": 0, "concurrency": 16, "is_steady": True,
            "prompt_tokens": 10, "new_tokens": 800, "ttft_seconds": 0.165,
            "tpot_seconds": 0.0044, "requests_per_second": 4.329004,
            "tokens_per_second": 3463.2, "measured_seconds": None,
            "request_seconds": 0.165 + 799 * 0.0044,
        }),
        ("bench_sglang.jsonl", 0, {
            "program": "sglang.bench_serving", "model": "deepseek-ai/DeepSeek-OCR",
            "engine": "sglang", "version": "0.5.5", "requests": 80, "concurrency": 4,
            "new_tokens": 800, "prompt_tokens": 913, "ttft_seconds": 0.142,
            "tpot_seconds": 0.0019, "measured_seconds": 1.661,
        }),
        ("bench_sglang.jsonl", 1, {"requests": 320, "concurrency": 16}),
        # The backend of genai-perf is a default.
        ("bench_genai_perf.json", 0, {
            "program": "genai-perf", "model": "deepseek-ai/DeepSeek-OCR", "engine": None,
            "version": None, "requests": 120, "concurrency": 8, "new_tokens": 800,
            "ttft_seconds": 0.1875, "tpot_seconds": 0.0031, "measured_seconds": 2.664,
            "requests_per_second": 3, "tokens_per_second": 2400,
        }),
    ],
)  # fmt: skip
def test_what_the_programs_write(file, number, expected):
    found = read_benchmarks(DATA / file)[number]
    assert figures(found, expected) == pytest.approx(expected)
    assert found.doubts() == []


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (changed(VLLM, "mean_e2el_ms", 3650.0),
         {"measured_seconds": 3.65, "request_seconds": 3.65}),
        *((changed(VLLM, "backend", backend), {"engine": engine}) for backend, engine in (
            ("vllm", "vllm"), ("openai", None), ("openai-chat", None), ("sglang", "sglang"),
            ("tgi", "tgi"), ("tensorrt-llm", "tensorrt"))),
        # Results before 0.10.
        ({key: value for key, value in OLD.items() if key not in (
            "failed", "total_token_throughput", "rtfx", "max_concurrent_requests")}
         | {"input_throughput": 50.0}, {"program": "vllm bench serve", "failed": 0}),
        (changed(VLLM, "vllm_version", "v0.11.2"), {"version": "0.11.2"}),
        *((changed(VLLM, "server_version", each), {"version": None})
          for each in ("my build", "1." + 63 * "1")),
        (changed(SGLANG, "backend", "openai-chat"), {"engine": "sglang"}),
        (FEW, {"failed": 5}), (changed(FEW, "failed", ...), {"failed": 5}),
        *((changed(VLLM, "max_concurrency", limit),
           {"concurrency": limit or 200, "is_steady": False}) for limit in (None, 200, 64)),
        (changed(VLLM, "max_concurrency", 500), {"concurrency": 200}),
        # Four rounds of every client are enough.
        (changed(VLLM, "max_concurrency", 50), {"is_steady": True}),
        # One client is steady from the first request.
        (VLLM | {"max_concurrency": 1, "num_prompts": 2, "completed": 2,
                 "total_output_tokens": 1600}, {"is_steady": True}),
        (json.dumps(SGLANG, indent=2), {"concurrency": 4}),
        (changed(changed(SGLANG, "backend", "vllm-chat"), "server_info", ...),
         {"engine": "vllm", "version": None, "model": None}),
        *((changed(GENAI, "time_to_first_token", {"unit": unit, "avg": value}),
           {"ttft_seconds": 0.1875})
          for unit, value in (("s", 0.1875), ("us", 187500), ("ns", 187500000))),
        # Versions before 0.0.13 have flat options.
        (changed(changed(GENAI, "input_config", FLAT), "request_count", ...),
         {"concurrency": 8, "requests": 120, "model": "deepseek-ai/DeepSeek-OCR",
          "engine": None}),
        (changed(TRITON, "input_config.endpoint.backend", "vllm"), {"engine": "vllm"}),
        (changed(GENAI, "input_config", AIPERF),
         {"program": "AIPerf", "concurrency": 8, "model": "deepseek-ai/DeepSeek-OCR"}),
        # It has tables where serving scripts have numbers.
        (changed(GENAI, "input_config", AIPERF) | {"total_token_throughput": {"avg": 2500.0}},
         {"program": "AIPerf"}),
        (changed(GENAI, "error_request_count", {"unit": "requests", "avg": 3.0}),
         {"failed": 3}),
        # A byte order mark and unknown keys do no harm.
        ("\ufeff" + json.dumps(VLLM | {"new_key": [1, {"a": None}]}), {"requests": 200}),
    ],
)  # fmt: skip
def test_what_versions_and_options_change(written, result, expected):
    [found] = read_benchmarks(written(result))
    assert figures(found, expected) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("result", "doubts"),
    [
        (FEW, ["5 of 200 requests failed"]),
        (changed(VLLM, "max_concurrency", None), ["200 requests, 200 at a time, are a burst"]),
        (changed(VLLM, "request_throughput", 43.0),
         2 * ["the figures contradict each other"]),
    ],
)  # fmt: skip
def test_what_is_doubtful_is_said(written, result, doubts):
    [found] = read_benchmarks(written(result))
    assert [said[: len(doubt)] for said, doubt in zip(found.doubts(), doubts, strict=True)] == (
        doubts
    )


def test_appended_results_are_each_read(written):
    second = changed(VLLM, "max_concurrency", 8)
    one, two = read_benchmarks(written(f"{json.dumps(VLLM)}\n{json.dumps(second)}"))
    assert (one.concurrency, two.concurrency, one.where[:7]) == (16, 8, "line 1 ")
    assert one.digest != two.digest


@pytest.mark.parametrize(
    ("result", "path", "value", "said"),
    [
        (VLLM, "request_rate", 4.0, "request_rate is 4.0; it must be inf"),
        (VLLM, "request_rate", "4", "request_rate is '4'; it must be inf"),
        (VLLM, "ramp_up_strategy", "linear", "ramp_up_strategy is 'linear'"),
        (SGLANG, "request_rate", "trace", "request_rate is 'trace'; it must be inf"),
        (SGLANG, "accept_length", 2.7, "accept_length is 2.7; .* speculative decoding"),
        (VLLM, "spec_decode_acceptance_length", 1.9, "speculative decoding"),
        (GENAI, "input_config.perf_analyzer.stimulus", {"request_rate": 2.0}, "request_rate"),
        (GENAI, "input_config.perf_analyzer.stimulus", {"session_concurrency": 2}, "session"),
        (GENAI, "input_config.perf_analyzer.stimulus", {}, "lacks .*stimulus.concurrency"),
        (GENAI, "time_to_first_token", ..., "lacks time_to_first_token; .*--streaming"),
        (GENAI, "was_cancelled", True, "was_cancelled is True"),
        (VLLM, "failed", 20, r"20 of 220 requests failed; .* at most 5 % fail"),
        (VLLM, "total_output_tokens", 200, "output_tokens is 200, 1 tokens per request"),
    ],
)
def test_what_no_prediction_is_of_is_refused(written, result, path, value, said):
    with pytest.raises(BenchmarkError, match=said):
        read_benchmarks(written(changed(result, path, value)))


NUMBERS = [
    (VLLM, "mean_ttft_ms"), (VLLM, "mean_tpot_ms"), (VLLM, "request_throughput"),
    (VLLM, "output_throughput"), (SGLANG, "mean_e2e_latency_ms"), (SGLANG, "mean_ttft_ms"),
    (GENAI, "time_to_first_token.avg"), (GENAI, "inter_token_latency.avg"),
    (GENAI, "request_throughput.avg"), (GENAI, "output_token_throughput.avg"),
]  # fmt: skip
COUNTS = [(VLLM, "completed"), (VLLM, "total_output_tokens"), (VLLM, "max_concurrency"),
          (SGLANG, "completed"), (GENAI, "request_count.avg"),
          (GENAI, "input_config.perf_analyzer.stimulus.concurrency")]  # fmt: skip


def refusal_of(file):
    """What is said against a file, if anything."""
    try:
        read_benchmarks(file)
    except BenchmarkError as error:
        return str(error)
    return ""


ODD = ("12", True, float("nan"), 10**400)


@pytest.mark.parametrize(
    ("places", "values", "right"),
    [
        (NUMBERS, (*ODD, 0, -3, [1], {"a": 1}, float("inf"), 1e300), "a number above 0"),
        (COUNTS, (*ODD, 0, -1, 1.5, []), "a whole number, 1 or more"),
    ],
)
def test_a_figure_is_a_number_above_0_or_a_whole_one(written, places, values, right):
    for (result, path), value in product(places, values):
        said = refusal_of(written(changed(result, path, value), "some.json"))
        assert re.search(f"some.json.*{path} is .*{right}", said), (path, value)


def test_a_missing_key_is_named(written):
    for result, path in (*NUMBERS, *COUNTS):
        if path not in ("max_concurrency", "mean_e2e_latency_ms", "request_count.avg"):
            assert f"lacks {path}, a " in refusal_of(written(changed(result, path, ...)))


@pytest.mark.parametrize(
    ("result", "path", "value"),
    [(VLLM, "model_id", 3), (VLLM, "backend", []), (VLLM, "date", {"a": 1}),
     (VLLM, "model_id", "\x1b[31m"), (VLLM, "model_id", "\ud800"),
     (SGLANG, "server_info", "x"), (GENAI, "input_config", 3),
     (GENAI, "input_config.model_names", ["a", "b"]), (GENAI, "inter_token_latency", 3),
     (GENAI, "time_to_first_token.unit", "minutes")],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_named(written, result, path, value):
    said = refusal_of(written(changed(result, path, value)))
    assert (f"{path} is " in said, said.isprintable()) == (True, True)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("hello", "is not JSON"),
        ("[1, 2]", "is a list, not a benchmark result"),
        ("3", "is 3, not a benchmark result"),
        ('{"a": 1, "b": 2}', "is not a benchmark result .its keys: 'a', 'b'."),
        ("{}", "is not a benchmark result .its keys: none."),
        ("[" * 200_000, "nested too deeply|is not JSON"),
        ('{"a":' * 200_000, "nested too deeply|is not JSON"),
        (json.dumps(VLLM) + "\nhello", "line 2 of .* is not JSON"),
        (json.dumps(VLLM) + "\n[]", "line 2 of .* is a list"),
        ("\n".join(101 * [json.dumps(VLLM)]), "more than 100 results"),
        ('{"a": ' + 5000 * "1" + "}", "is not JSON"),
    ],
)
def test_something_else_is_refused(written, text, said):
    with pytest.raises(BenchmarkError, match=said):
        read_benchmarks(written(text))


@pytest.mark.parametrize(
    ("name", "said"),
    [("none.json", r"none.json.*No such file"), ("", "it is a folder"),
     ("bytes.json", "not UTF-8 text")],
)  # fmt: skip
def test_what_cannot_be_read_is_named(tmp_path, name, said):
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(BenchmarkError, match=f"cannot read .*{said}"):
        read_benchmarks(tmp_path / name)


def test_a_huge_file_is_not_read_to_its_end(tmp_path):
    file = tmp_path / "huge.json"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(BenchmarkError, match=r"more than 64 MiB, .*; measure without"):
        read_benchmarks(file)


def benchmark_of(written, **changes):
    return read_benchmarks(written(VLLM | changes))[0]


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("deepseek-ai/DeepSeek-OCR", "deepseek-ocr"),
        ("unsloth/DeepSeek-OCR", "deepseek-ocr"),
        ("/models/deepseek_ocr/", "deepseek-ocr"),
        ("DeepSeek-OCR-20251020", "deepseek-ocr"),
        ("mlx-community/DeepSeek-OCR-8bit", "deepseek-ocr"),
        ("deepseek-ai/DeepSeek-OCR-2", "deepseek-ocr-2"),
        ("me/deepseek-ocr2-fp8", "deepseek-ocr-2"),
        ("baidu/Unlimited-OCR", "unlimited-ocr"),
        ("/hub/models--deepseek-ai--DeepSeek-OCR-2/snapshots/2f1", "deepseek-ocr-2"),
    ],
)
def test_it_is_known_by_its_name(written, name, architecture):
    found = benchmark_of(written, model_id=name)
    assert check_model(found, ARCHITECTURES[architecture], is_given=False) is None
    for other in ARCHITECTURES.keys() - {architecture}:
        with pytest.raises(BenchmarkError, match=f"give architecture={architecture}"):
            check_model(found, ARCHITECTURES[other], is_given=True)


@pytest.mark.parametrize(
    "name", ["meta-llama/Llama-3", "deepseek-ocr/Qwen", "ocr", "mydeepseek-ocrs/x"]
)
def test_another_model_is_refused_unless_somebody_says_which_it_is(written, name):
    found = benchmark_of(written, model_id=name)
    with pytest.raises(BenchmarkError, match="which is unknown"):
        check_model(found, DEFAULT, is_given=False)
    assert name in check_model(found, DEFAULT, is_given=True)


def test_a_file_that_does_not_say_it_is_taken_for_the_model(written):
    found = benchmark_of(written, model_id=None)
    assert "does not name the model" in check_model(found, DEFAULT, is_given=False)


@pytest.mark.parametrize(
    ("backend", "server", "said"),
    [
        *(("vllm", each, None) for each in ("vllm", "vllm-v0", "vllm-v1")),
        ("openai-chat", "sglang", None),
        ("vllm", "sglang", "engine was 'vllm', not sglang; give server=vllm"),
        ("tgi", "vllm", "was 'tgi', not vllm; known engines: vllm, "),
    ],
)
def test_another_engine_is_refused(written, backend, server, said):
    found = benchmark_of(written, backend=backend)
    expected = pytest.raises(BenchmarkError, match=said) if said else nullcontext()
    with expected:
        check_engine(found, server)


@pytest.mark.parametrize(
    ("backend", "server"),
    [("sglang", "sglang"), ("vllm", "vllm"), ("openai", "vllm"), ("tgi", "vllm")],
)
def test_a_file_names_its_server_where_nobody_does(written, backend, server):
    assert server_of(benchmark_of(written, backend=backend), "vllm") == server


@pytest.mark.parametrize(
    ("own", "given", "version"),
    [(None, None, "unknown"), (None, "0.14.1rc1+cu128", "0.14.1rc1+cu128"),
     ("0.11.0", None, "0.11.0"), ("0.11.0", "0.11.0", "0.11.0")],
)  # fmt: skip
def test_versions(written, own, given, version):
    assert version_of(benchmark_of(written, vllm_version=own), given) == version


@pytest.mark.parametrize(
    ("own", "given", "said"),
    [("0.11.0", "0.12", r"version was 0.11.0, not server_version 0.12"),
     *((None, each, r"server_version .* is not a version")
       for each in ("", "a b", "x" * 65, "1\n2"))],
)  # fmt: skip
def test_what_is_no_version_or_another_is_refused(written, own, given, said):
    with pytest.raises(BenchmarkError, match=said):
        version_of(benchmark_of(written, vllm_version=own), given)


# --- corrections ----------------------------------------------------------------------------------

PAGE = DEFAULT.plan(page=(1240, 1754))
TOKENS = 300
H100, SERVER = device("h100-sxm"), SERVERS["vllm"]
BASIS = basis_of(H100, SERVER)
SPAN = Duration(host=1.0)


def kept(first_token=1.0, per_token=1.0, **changes):
    return KeptBenchmark(**{
        "id": f"{first_token}-{per_token}", "gpu": "h100-sxm", "server": "vllm",
        "version": "0.14.1", "architecture": "deepseek-ocr", "first_token": first_token,
        "per_token": per_token, "basis": BASIS, "requests": 100, "concurrency": 8, "file": "a.json",
        "kept": "2026-01-31T12:00:00Z", **changes,
    })  # fmt: skip


NEW = kept(2, version="0.15.0", kept="2026-02-01T00:00:00Z")


def job_of(*benchmarks, host=SERVER, prepare=0.05, workers=1, offline=False):
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
            (Corrections((kept(1.5),)), (H100, SERVER, "deepseek-ocr"), 1.5),
            (Corrections((kept(1.5),)), (device("l4"), SERVER, "deepseek-ocr"), None),
            (Corrections((kept(1.5),)), (H100, SERVERS["vllm-v1"], "deepseek-ocr"), None),
            (Corrections((kept(1.5),)), (H100, SERVER, "deepseek-ocr-2"), None),
            # The version that was kept last, unless another is named.
            (Corrections((NEW, kept(1.5))), (H100, SERVER, "deepseek-ocr"), 2),
            (Corrections((NEW, kept(1.5)), "0.14.1"), (H100, SERVER, "deepseek-ocr"), 1.5),
            (Corrections((NEW, kept(1.5)), "0.13"), (H100, SERVER, "deepseek-ocr"), None),
            # The same figures from elsewhere.
            (Corrections((kept(1.5),)), (replace(H100, source=""), SERVER, "deepseek-ocr"), 1.5),
            # The same benchmark counts once.
            (Corrections((kept(1.5),)).with_these([kept(2, id="1.5-1.0"), kept(8)]),
             (H100, SERVER, "deepseek-ocr"), 4),
        ],
    )  # fmt: skip
    def test_it_is_of_the_gpu_the_server_the_model_and_the_version(
        self, corrections, asked, first_token
    ):
        found = corrections.of(*asked).found
        assert (found and found.first_token) == pytest.approx(first_token)

    def test_where_nothing_is_kept_nothing_changes(self):
        nothing = Corrections((kept(1.5),)).of(device("l4"), SERVER, "deepseek-ocr")
        assert (nothing, nothing.sentences()) == (Correction(), [])
        assert nothing.corrected(SPAN, "first_token") is SPAN
        assert Corrections((NEW, kept())).of(H100, SERVER, "deepseek-ocr").other_versions == (
            "0.14.1",
        )

    @pytest.mark.parametrize("server", [SERVER, replace(SERVER, hidden_step_us=501.0)])
    def test_other_kernel_times_or_host_figures_are_not_corrected(self, server):
        other = device("a100-sxm").kinds["gemm", "bfloat16"].coefficients
        gemm = replace(H100.kinds["gemm", "bfloat16"], coefficients=other)
        timed = H100
        if server is SERVER:
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
            for figure in ("bound", "least_compute", "nbytes"):
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
