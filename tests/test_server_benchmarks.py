"""Benchmarks of servers: what is read of their programs' results, and what they correct."""

import json
import math
import os
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
from dsocr_analyze.timing.predict import entry_of, times_of
from dsocr_analyze.timing.runtimes import EAGER, SERVERS
from dsocr_analyze.timing.server_benchmarks.comparison import measured_server, of_model
from dsocr_analyze.timing.server_benchmarks.reading import read_benchmarks
from dsocr_analyze.timing.serving import ServedModel

DATA = Path(__file__).parent / "data"
VLLM = json.loads((DATA / "bench_vllm.json").read_text())
SGLANG = json.loads((DATA / "bench_sglang.jsonl").read_text().splitlines()[0])
GENAI = json.loads((DATA / "bench_genai_perf.json").read_text())


def read(folder, result):
    """The benchmarks in a file of a result, or of a text."""
    text = result if isinstance(result, str) else json.dumps(result)
    (folder / "result.json").write_text(text)
    return read_benchmarks(folder / "result.json")


def changed(result, path, value):
    """A copy of a result with something else under `a.b`; without it for `...`."""
    key, _, rest = path.partition(".")
    entry = changed(result[key], rest, value) if rest else value
    return {name: each for name, each in (result | {key: entry}).items() if each is not ...}


OLD = changed(changed(VLLM, "endpoint_type", ...), "backend", "vllm")
FLAT = {"model": ["deepseek-ai/DeepSeek-OCR"], "service_kind": "openai", "backend": "vllm",
        "concurrency": 8, "request_rate": None, "request_count": 120,
        "streaming": True}  # fmt: skip
AIPERF = {"endpoint": {"model_names": ["deepseek-ai/DeepSeek-OCR"]},
          "loadgen": {"concurrency": 8, "request_count": 120}}  # fmt: skip
TRITON = changed(GENAI, "input_config.endpoint.service_kind", "triton")
FEW = changed(VLLM, "completed", 195) | {"failed": 5}


def figures(found, names):
    means = getattr(found, "means", {})
    return {name: means[name] if name in means else getattr(found, name) for name in names}


@pytest.mark.parametrize(
    ("file", "number", "expected"),
    [
        ("bench_vllm.json", 0, {
            "program": "vllm bench serve", "date": "20260110-101500",
            "model": "deepseek-ai/DeepSeek-OCR", "engine": None, "version": None,
            "requests": 200, "failed": 0, "concurrency": 16, "steady": True,
            "prompt_tokens": 10, "new_tokens": 800, "ttft_seconds": 0.165,
            "tpot_seconds": 0.0044, "requests_per_second": 4.329004,
            "tokens_per_second": 3463.2,
            "request_seconds": 0.165 + 799 * 0.0044,
        }),
        ("bench_sglang.jsonl", 0, {
            "program": "sglang.bench_serving", "model": "deepseek-ai/DeepSeek-OCR",
            "engine": "sglang", "version": "0.5.5", "requests": 80, "concurrency": 4,
            "new_tokens": 800, "prompt_tokens": 913, "ttft_seconds": 0.142,
            "tpot_seconds": 0.0019, "request_seconds": 1.661,
        }),
        ("bench_sglang.jsonl", 1, {"requests": 320, "concurrency": 16}),
        # The backend of genai-perf is a default.
        ("bench_genai_perf.json", 0, {
            "program": "genai-perf", "model": "deepseek-ai/DeepSeek-OCR", "engine": None,
            "version": None, "requests": 120, "concurrency": 8, "new_tokens": 800,
            "ttft_seconds": 0.1875, "tpot_seconds": 0.0031, "request_seconds": 2.664,
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
         {"request_seconds": 3.65}),
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
           {"concurrency": limit or 200, "steady": False}) for limit in (None, 200, 64)),
        (changed(VLLM, "max_concurrency", 500), {"concurrency": 200}),
        # Four rounds of every client are enough.
        (changed(VLLM, "max_concurrency", 50), {"steady": True}),
        # One client is steady from the first request.
        (VLLM | {"max_concurrency": 1, "num_prompts": 2, "completed": 2,
                 "total_output_tokens": 1600}, {"steady": True}),
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
def test_what_versions_and_options_change(tmp_path, result, expected):
    [found] = read(tmp_path, result)
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
def test_what_is_doubtful_is_said(tmp_path, result, doubts):
    [found] = read(tmp_path, result)
    said = zip(found.doubts(), doubts, strict=True)
    assert [each[: len(doubt)] for each, doubt in said] == doubts


def test_appended_results_are_each_read(tmp_path):
    second = VLLM | {"max_concurrency": 8}
    one, two = read(tmp_path, f"{json.dumps(VLLM)}\n{json.dumps(second)}")
    assert (one.concurrency, two.concurrency, one.where[:7]) == (16, 8, "line 1 ")
    assert one.digest != two.digest


NUMBERS = [
    (VLLM, "mean_ttft_ms"), (VLLM, "mean_tpot_ms"), (VLLM, "request_throughput"),
    (VLLM, "output_throughput"), (SGLANG, "mean_ttft_ms"), (GENAI, "time_to_first_token.avg"),
    (GENAI, "inter_token_latency.avg"), (GENAI, "request_throughput.avg"),
    (GENAI, "output_token_throughput.avg"),
]  # fmt: skip
COUNTS = [(VLLM, "completed"), (VLLM, "total_output_tokens"), (SGLANG, "completed"),
          (GENAI, "input_config.perf_analyzer.stimulus.concurrency")]  # fmt: skip
ODD = ("12", True, float("nan"), 10**400)


@pytest.mark.parametrize(
    ("places", "values", "said"),
    [
        ([*NUMBERS, (SGLANG, "mean_e2e_latency_ms")],
         (*ODD, 0, -3, [1], {"a": 1}, float("inf"), 1e300),
         "result.json.*{path} is .*a number above 0"),
        ([*COUNTS, (VLLM, "max_concurrency"), (GENAI, "request_count.avg")],
         (*ODD, 0, -1, 1.5, []), "result.json.*{path} is .*a whole number, 1 or more"),
        ([*NUMBERS, *COUNTS], (...,), "lacks {path}, a "),
        *(([(VLLM, path)], (value,), "{path} is ") for path, value in (
            ("model_id", 3), ("model_id", "\x1b[31m"), ("model_id", "\ud800"), ("backend", []),
            ("date", {"a": 1}))),
        ([(SGLANG, "server_info")], ("x",), "{path} is "),
        *(([(GENAI, path)], (value,), "{path} is ") for path, value in (
            ("input_config", 3), ("input_config.model_names", ["a", "b"]),
            ("inter_token_latency", 3), ("time_to_first_token.unit", "minutes"))),
        # What no prediction is of.
        *(([(VLLM, path)], (value,), said) for path, value, said in (
            ("request_rate", 4.0, "{path} is 4.0; it must be inf"),
            ("request_rate", "4", "{path} is '4'; it must be inf"),
            ("ramp_up_strategy", "linear", "{path} is 'linear'"),
            ("spec_decode_acceptance_length", 1.9, "speculative decoding"),
            ("failed", 20, r"20 of 220 requests failed; .* at most 5 % fail"),
            ("total_output_tokens", 200, "output_tokens is 200, 1 tokens per request"))),
        ([(SGLANG, "request_rate")], ("trace",), "{path} is 'trace'; it must be inf"),
        ([(SGLANG, "accept_length")], (2.7,), "{path} is 2.7; .* speculative decoding"),
        *(([(GENAI, "input_config.perf_analyzer.stimulus")], (value,), said) for value, said in (
            ({"request_rate": 2.0}, "request_rate"), ({"session_concurrency": 2}, "session"),
            ({}, "lacks .*stimulus.concurrency"))),
        ([(GENAI, "time_to_first_token")], (...,), "lacks {path}.avg, .*--streaming"),
        ([(GENAI, "was_cancelled")], (True,), "{path} is True"),
    ],
)  # fmt: skip
def test_a_value_that_is_wrong_or_missing_is_named(tmp_path, places, values, said):
    for (result, path), value in product(places, values):
        with pytest.raises(BenchmarkError, match=said.format(path=path)) as refused:
            read(tmp_path, changed(result, path, value))
        assert str(refused.value).isprintable(), (path, value)


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
def test_something_else_is_refused(tmp_path, text, said):
    with pytest.raises(BenchmarkError, match=said):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "said"),
    [("none.json", r"none.json.*No such file"), ("", "it is a folder"),
     ("bytes.json", "not UTF-8 text"), ("huge.json", r"more than 64 MiB, .*; measure without")],
)  # fmt: skip
def test_what_cannot_be_read_is_named(tmp_path, name, said):
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{")
    (tmp_path / "huge.json").touch()
    os.truncate(tmp_path / "huge.json", 1 << 40)  # takes no room on the disk
    with pytest.raises(BenchmarkError, match=f"cannot read .*{said}"):
        read_benchmarks(tmp_path / name)


# --- which model, which server -------------------------------------------------------------------

[SAMPLE] = read_benchmarks(DATA / "bench_vllm.json")


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
def test_it_is_known_by_its_name(name, architecture):
    found = replace(SAMPLE, model=name)
    assert of_model(found, ARCHITECTURES[architecture], is_given=False).doubts() == []
    for other in ARCHITECTURES.keys() - {architecture}:
        with pytest.raises(BenchmarkError, match=f"give architecture={architecture}"):
            of_model(found, ARCHITECTURES[other], is_given=True)


@pytest.mark.parametrize(
    ("name", "is_given", "said"),
    [
        *((name, True, f"the file calls the model '{name}'")
          for name in ("meta-llama/Llama-3", "deepseek-ocr/Qwen", "ocr", "mydeepseek-ocrs/x")),
        (None, False, "the file does not name the model"),
    ],
)  # fmt: skip
def test_another_name_is_noted_and_refused_unless_somebody_says_which_it_is(name, is_given, said):
    found = replace(SAMPLE, model=name)
    assert of_model(found, DEFAULT, is_given=is_given).doubts()[0].startswith(said)
    with pytest.raises(BenchmarkError, match="which is unknown") if name else nullcontext():
        of_model(found, DEFAULT, is_given=False)


@pytest.mark.parametrize(
    ("engine", "own", "given", "version", "expected"),
    [
        *(("vllm", None, each, None, (each, "unknown")) for each in ("vllm", "vllm-v0", "vllm-v1")),
        (None, None, "sglang", None, ("sglang", "unknown")),
        ("vllm", None, "sglang", None, "engine was 'vllm', not sglang; give server=vllm"),
        ("tgi", None, "vllm", None, "was 'tgi', not vllm; known engines: vllm, "),
        # A file names its server where nobody does.
        *((each, None, None, None, (each, "unknown")) for each in ("sglang", "vllm")),
        (None, None, None, None, ("vllm", "unknown")),
        ("tgi", None, None, None, "was 'tgi', not vllm"),
        # A version is that of the file or given.
        (None, None, None, "0.14.1rc1+cu128", ("vllm", "0.14.1rc1+cu128")),
        (None, "0.11.0", None, None, ("vllm", "0.11.0")),
        (None, "0.11.0", None, "0.11.0", ("vllm", "0.11.0")),
        (None, "0.11.0", None, "0.12", "version was 0.11.0, not server_version 0.12"),
        *((None, None, None, each, "server_version .* is not a version")
          for each in ("", "a b", "x" * 65, "1\n2")),
    ],
)  # fmt: skip
def test_the_server_is_that_of_the_file_or_given(engine, own, given, version, expected):
    found = replace(SAMPLE, engine=engine, version=own)
    is_refused = isinstance(expected, str)
    with pytest.raises(BenchmarkError, match=expected) if is_refused else nullcontext():
        server = measured_server([found], given or "vllm", version, is_given=given is not None)
        assert server == expected


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


def times(*benchmarks, concurrency=(1, 16), gpu="h100-sxm", host=SERVER, prepare=0.05, **more):
    model = TimedModel(DEFAULT, published_model().dimensions, BFLOAT16, False, device(gpu))
    job = Assumptions(
        host, lambda _: OutputLengths.fixed(TOKENS), prepare, corrections=Corrections(benchmarks),
        **more,
    )  # fmt: skip
    return times_of(model, PAGE, job, concurrency)


def predicted(*benchmarks, **more):
    return entry_of(times(*benchmarks, **more))


@pytest.mark.parametrize(
    ("benchmarks", "expected"),
    [
        ([kept(1.5, 0.8)], (1.5, 0.8, None, None)),
        # The geometric mean; 4 times as long as the other.
        ([kept(1, 2), kept(4, 2)], (2, 2, 3, 0)),
        ([kept(1), kept(2), kept(4)], (2, 1, math.sqrt(8) - 1, 0)),
    ],
)
def test_several_are_combined_and_their_error_is_the_largest_distance(benchmarks, expected):
    names = ("first_token", "per_token", "first_token_error", "per_token_error")
    found = figures(Correction(tuple(benchmarks)).found, names)
    assert found == pytest.approx(dict(zip(names, expected, strict=True)))


LATER = kept(1.2, 0.8, file="b.json", kept="2026-02-02T00:00:00Z", requests=1000)


@pytest.mark.parametrize(
    ("correction", "said"),
    [
        (Correction((kept(1.5, 0.8),)),
         "corrected for h100-sxm under vllm (0.14.1): the first token takes 1.5 times and each"
         " later token 0.8 times as long as predicted without correction, from a benchmark of"
         " 100 requests, 8 at a time (a.json, kept 2026-01-31)"),
        (Correction((kept(1.5, 0.8), LATER), ("0.15.0",)),
         "from 2 benchmarks of 1,100 requests (a.json, b.json, kept 2026-01-31 to 2026-02-02);"
         " each is within 25 % and 0 % of the others, which gives the band; other versions with"
         " benchmarks: 0.15.0"),
        (Correction((kept(version="unknown"),)), "vllm (unknown version)"),
    ],
)  # fmt: skip
def test_the_sentence_says_how_much_from_what_and_when(correction, said):
    assert said in "".join(correction.sentences())


ONE = Corrections((kept(1.5),))
GEMM = {("gemm", "bfloat16"): device("a100-sxm").kinds["gemm", "bfloat16"]}


@pytest.mark.parametrize(
    ("corrections", "asked", "first_token"),
    [
        (ONE, (H100, SERVER, "deepseek-ocr"), 1.5),
        (ONE, (device("l4"), SERVER, "deepseek-ocr"), None),
        (ONE, (H100, SERVERS["vllm-v1"], "deepseek-ocr"), None),
        (ONE, (H100, SERVER, "deepseek-ocr-2"), None),
        # The version that was kept last, unless another is named.
        (Corrections((NEW, kept(1.5))), (H100, SERVER, "deepseek-ocr"), 2),
        (Corrections((NEW, kept(1.5)), "0.14.1"), (H100, SERVER, "deepseek-ocr"), 1.5),
        (Corrections((NEW, kept(1.5)), "0.13"), (H100, SERVER, "deepseek-ocr"), None),
        # The same figures from elsewhere, other kernel times, and other figures of the host.
        (ONE, (replace(H100, source=""), SERVER, "deepseek-ocr"), 1.5),
        (ONE, (replace(H100, kinds=H100.kinds | GEMM), SERVER, "deepseek-ocr"), None),
        (ONE, (H100, replace(SERVER, hidden_step_us=501.0), "deepseek-ocr"), None),
    ],
)
def test_it_is_of_the_gpu_the_server_the_model_the_version_and_the_basis(
    corrections, asked, first_token
):
    found = corrections.of(*asked).found
    assert (found and found.first_token) == pytest.approx(first_token)


def test_what_is_not_corrected_is_left_alone_and_why_is_said():
    other, unlike = (ONE.of(each, SERVER, "deepseek-ocr")
                     for each in (device("l4"), replace(H100, kinds={})))  # fmt: skip
    assert (other, other.sentences(), unlike.found) == (Correction(), [], None)
    assert other.corrected(SPAN, "first_token") is SPAN
    assert unlike.sentences() == [
        "not corrected for h100-sxm under vllm (0.14.1) by a benchmark of 100 requests, 8 at a time"
        " (a.json, kept 2026-01-31): compared with other kernel times or host figures; compare"
        " again"
    ]
    versions = Corrections((NEW, kept())).of(H100, SERVER, "deepseek-ocr").other_versions
    assert versions == ("0.14.1",)


def test_first_token_and_tokens_are_multiplied_and_the_throughput_follows():
    bare, corrected = predicted(), predicted(kept(1.5, 1.2))
    alone, first = (
        [each.ttft_seconds, each.tpot_seconds, each.page_seconds]
        for each in (corrected, corrected.throughput[0])
    )
    assert alone == first
    for before, after in zip(bare.throughput, corrected.throughput, strict=True):
        page = 1.5 * before.ttft_seconds + (TOKENS - 1) * 1.2 * before.tpot_seconds
        expected = {
            "ttft_seconds": 1.5 * before.ttft_seconds, "tpot_seconds": 1.2 * before.tpot_seconds,
            "page_seconds": page, "pages_per_second": after.concurrency / page,  # Little's law
            "tokens_per_second": TOKENS * after.concurrency / page,
            "memory_bytes": before.memory_bytes, "fits": before.fits,
        }  # fmt: skip
        assert figures(after, expected) == pytest.approx(expected)


def test_stages_are_corrected_and_what_is_computed_and_moved_stays():
    bare, corrected = times().stages, times(kept(1.5, 1.2)).stages
    for name, span in bare.items():
        after, factor = corrected[name], 1.2 if name == [*bare][-1] else 1.5
        assert float(after.seconds / span.seconds) == pytest.approx(factor)
        same = ("bound", "least_compute", "nbytes")
        assert figures(after, same) == figures(span, same)


def widths(prediction):
    """The upper ends of bands, as ratios to their figures; the lower ones are as far."""
    for name, band in prediction.bands.items():
        value = getattr(prediction, name)
        assert value / band.low == pytest.approx(band.high / value)
    return {name: band.high / getattr(prediction, name) for name, band in prediction.bands.items()}


def test_one_benchmark_leaves_the_band_as_wide_as_it_was_and_several_say_it():
    bare, one = widths(predicted(prepare=0)), widths(predicted(kept(1.5, 1.5), prepare=0))
    assert one == pytest.approx(bare)
    both = widths(predicted(kept(1, 1.2), kept(1.5, 1.3)))
    assert (both["ttft_seconds"], both["tpot_seconds"]) == pytest.approx((1.5, 1.3 / 1.2))
    assert 1.3 / 1.2 < both["page_seconds"] < 1.5


def test_no_more_than_the_cpu_prepares_comes_by():
    one, many = predicted(kept(0.2, 0.2), prepare=0.5, workers=2).throughput
    _, bare = predicted(prepare=0.5, workers=2).throughput
    # 2 workers, half a second each.
    found = [one.pages_per_second * one.page_seconds, many.pages_per_second, many.page_seconds]
    assert found == pytest.approx([1, 4, 16 / 4])
    assert many.tpot_seconds == pytest.approx(0.2 * bare.tpot_seconds)


def test_offline_the_cpu_comes_first():
    for load in predicted(kept(1.5, 1.2), is_offline=True).throughput:
        seconds = (load.page_seconds - 0.05) / load.concurrency + 0.05
        assert load.pages_per_second == pytest.approx(1 / seconds)


@pytest.mark.exhaustive
def test_another_gpu_another_server_and_the_models_own_code_are_left_alone():
    for asked in ({"gpu": "l40s"}, {"host": SERVERS["sglang"]}, {"host": EAGER}):
        assert predicted(kept(1.5, 1.2), **asked) == predicted(**asked)


@pytest.mark.exhaustive
@pytest.mark.parametrize("server", ["vllm", "sglang"])
@pytest.mark.parametrize("requests", [16, 64])
def test_of_a_burst_only_the_whole_request_is_that_of_a_steady_load(server, requests):
    """Requests that all come at once, against the closed loop that predicts them."""
    host = SERVERS[server]
    bare = predicted(concurrency=(requests,), prepare=0.0, host=host)
    [load] = bare.throughput
    one = sum(span.seconds for span in [*bare.stages.values()][:-1])
    served = ServedModel(DEFAULT, published_model().dimensions, BFLOAT16, H100, host)
    # One prompt after the other, then all tokens of all requests together.
    steps = (served.step(requests, PAGE.seq_len + done).seconds for done in range(1, TOKENS))
    assert requests * one + sum(map(float, steps)) == pytest.approx(load.page_seconds, rel=0.08)
    assert (requests + 1) / 2 * one > 4 * load.ttft_seconds
