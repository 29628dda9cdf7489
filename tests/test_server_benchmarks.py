"""Benchmarks of servers: what is read of their programs' results, and what they correct."""

import json
import math
import os
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from relatives import FAMILY

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.archive.setting import published_model
from dsocr_analyze.errors import BenchmarkError
from dsocr_analyze.hardware import device
from dsocr_analyze.kernels import BFLOAT16
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths
from dsocr_analyze.timing.correction import Corrections, KeptBenchmark, basis_of
from dsocr_analyze.timing.kernel_seconds import Duration
from dsocr_analyze.timing.predict import entry_of, times_of
from dsocr_analyze.timing.runtimes import EAGER, SERVERS
from dsocr_analyze.timing.server_benchmarks.comparison import (
    measured_server,
    of_model,
)
from dsocr_analyze.timing.server_benchmarks.reading import read_benchmarks
from dsocr_analyze.timing.serving import ServedModel, TimedModel

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


MM = json.loads((DATA / "bench_mm_processor.json").read_text())
MODEL = "deepseek-ai/DeepSeek-OCR"
AIPERF = changed(GENAI, "input_config", {
    "endpoint": {"model_names": [MODEL]}, "loadgen": {"concurrency": 8, "request_count": 120},
})  # fmt: skip
PHASES = changed(GENAI, "input_config", {
    "models": {"items": [{"name": MODEL}]}, "endpoint": {"streaming": True},
    "phases": [{"kind": "warmup", "type": "poisson", "rate": 1, "exclude_from_results": True},
               {"kind": "profiling", "type": "concurrency", "concurrency": 8, "requests": 120}],
}) | {"aiperf_version": "0.13.0", "is_complete": True}  # fmt: skip
FEW = changed(VLLM, "completed", 195) | {"failed": 5}


def figures(found, names):
    means = getattr(found, "means", {})
    doubts = {"doubts": "".join(each[:24] for each in found.doubts())} if means else {}
    return {
        name: {**means, **doubts}[name] if name in means or name in doubts else getattr(found, name)
        for name in names
    }


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (VLLM, {
            "program": "vllm bench serve", "date": "20260110-101500", "model": MODEL,
            "engine": None, "version": None, "requests": 200, "failed": 0, "concurrency": 16,
            "steady": True, "prompt_tokens": 10, "new_tokens": 800, "ttft_seconds": 0.165,
            "tpot_seconds": 0.0044, "requests_per_second": 4.329004, "tokens_per_second": 3463.2,
            "request_seconds": 0.165 + 799 * 0.0044, "doubts": "",
        }),
        (SGLANG, {
            "program": "sglang.bench_serving", "date": None, "model": MODEL, "engine": "sglang",
            "version": "0.5.5", "requests": 80, "failed": 0, "concurrency": 4, "new_tokens": 800,
            "prompt_tokens": 913, "ttft_seconds": 0.142, "tpot_seconds": 0.0019,
            "request_seconds": 1.661, "doubts": "",
        }),
        # The backend of genai-perf is a default.
        (GENAI, {
            "program": "genai-perf", "model": MODEL, "engine": None, "version": None,
            "requests": 120, "failed": 0, "concurrency": 8, "new_tokens": 800,
            "ttft_seconds": 0.1875, "tpot_seconds": 0.0031, "request_seconds": 2.664,
            "requests_per_second": 3, "tokens_per_second": 2400, "doubts": "",
        }),
        (MM, {
            "program": "vllm bench mm-processor", "date": "2026-10-01T12:00:00.000000",
            "model": MODEL, "engine": "vllm", "requests": 100, "failed": 0, "is_served": False,
            "preprocess_seconds": 0.087, "doubts": "",
        }),
        # Its names changed with vLLM; the values are always in ms.
        *((changed(MM, "mm_processor_stats", {name: {"mean": 51.5}, "encoder_forward": {}}),
           {"preprocess_seconds": 0.0515})
          for name in ("preprocessor_total_ms", "preprocessor_total_secs",
                       "preprocessor_total_time", "total_time")),
        (changed(VLLM, "mean_e2el_ms", 3650.0), {"request_seconds": 3.65}),
        # As of vLLM 0.33, with options that are not set.
        (VLLM | {"mean_e2el_ms": None, "request_goodput": None, "mean_client_queue_time_ms": 0.2,
                 "probe_completed": 0, "steady_state": {"a": None}, "records": {}},
         {"program": "vllm bench serve", "request_seconds": 0.165 + 799 * 0.0044}),
        *((changed(VLLM, "backend", backend), {"engine": engine}) for backend, engine in (
            ("vllm", "vllm"), ("openai", None), ("openai-chat", None), ("sglang", "sglang"),
            ("tgi", "tgi"), ("tensorrt-llm", "tensorrt"))),
        # Results before 0.10.
        ({key: value for key, value in VLLM.items() if key not in (
            "endpoint_type", "failed", "total_token_throughput", "rtfx", "max_concurrent_requests")}
         | {"backend": "vllm", "input_throughput": 50.0},
         {"program": "vllm bench serve", "failed": 0}),
        *((changed(VLLM, key, "v0.11.2"), {"version": "0.11.2"})
          for key in ("vllm_version", "version")),
        # Of one GPU, as --metadata and servers say.
        (VLLM | {"tp": "1"}, {"requests": 200}),
        (changed(SGLANG, "server_info.tp_size", 1), {"version": "0.5.5"}),
        *((changed(SGLANG, "server_info.quantization", each), {"quantization": found})
          for each, found in (("fp8", "fp8"), (None, None), ("None", None))),
        # SGLang counts failed requests only in its details.
        (SGLANG | {"errors": [*80 * [""], "timeout"]},
         {"failed": 1, "doubts": "1 of 81 requests failed;"}),
        *((changed(VLLM, "server_version", each), {"version": None})
          for each in ("my build", "1." + 63 * "1")),
        (changed(SGLANG, "backend", "openai-chat"), {"engine": "sglang"}),
        # As of SGLang 0.5.23, of a server that does not describe itself.
        (SGLANG | {"server_info": None, "request_rate": float("inf"), "p90_ttft_ms": 1.0,
                   "accept_length": 1.0, "max_concurrent_requests": 6, "cache_report": {"a": None}},
         {"model": None, "version": None, "concurrency": 4}),
        *((each, {"failed": 5, "doubts": "5 of 200 requests failed"})
          for each in (FEW, changed(FEW, "failed", ...))),
        (MM | {"completed": 98, "failed": 2}, {"doubts": "2 of 100 requests failed"}),
        *((changed(VLLM, "max_concurrency", limit),
           {"concurrency": limit or 200, "steady": False, "doubts": f"200 requests, {count}"})
          for limit, count in ((None, "200 at a t"), (200, "200 at a t"), (64, "64 at a ti"))),
        (changed(VLLM, "request_throughput", 43.0), {"doubts": 2 * "the figures contradict e"}),
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
        (changed(changed(GENAI, "input_config", {
            "model": [MODEL], "service_kind": "openai", "backend": "vllm", "concurrency": 8,
            "request_rate": None, "request_count": 120, "streaming": True,
         }), "request_count", ...),
         {"concurrency": 8, "requests": 120, "model": MODEL, "engine": None}),
        (changed(GENAI, "input_config.endpoint", {"service_kind": "triton", "backend": "vllm"}),
         {"engine": "vllm"}),
        *((result, {"program": "AIPerf", "concurrency": 8, "model": MODEL, "requests": 120})
          for result in (AIPERF, PHASES)),
        # Since 0.9 it leaves out defaults, and before 0.2 it had metrics apart.
        (changed(PHASES, "input_config.phases", [{"type": "concurrency"}]), {"concurrency": 1}),
        ({"input_config": AIPERF["input_config"], "records": {
            **GENAI, "ttft": {"unit": "ns", "avg": 2e8}, "time_to_first_token": None}},
         {"program": "AIPerf", "ttft_seconds": 0.2, "request_seconds": 2.664}),
        # It has tables where serving scripts have numbers.
        (AIPERF | {"total_token_throughput": {"avg": 2500.0}}, {"program": "AIPerf"}),
        (changed(GENAI, "error_request_count", {"unit": "requests", "avg": 3.0}),
         {"failed": 3}),
        # A byte order mark and unknown keys do no harm.
        ("\ufeff" + json.dumps(VLLM | {"new_key": [1, {"a": None}]}), {"requests": 200}),
    ],
)  # fmt: skip
def test_what_programs_versions_and_options_write(tmp_path, result, expected):
    [found] = read(tmp_path, result)
    assert figures(found, expected) == pytest.approx(expected)


@pytest.mark.parametrize("indent", [None, 2])
def test_appended_results_are_each_read(tmp_path, indent):
    one, two = (json.dumps(VLLM | {"max_concurrency": each}, indent=indent) for each in (16, 8))
    found = read(tmp_path, f"{one}\n{two}")
    places = [(each.concurrency, each.where.split(" of ")[0]) for each in found]
    assert places == [(16, "line 1"), (8, f"line {len(one.splitlines()) + 1}")]
    assert found[0].digest != found[1].digest


NUMBERS = [
    (VLLM, "mean_ttft_ms"), (VLLM, "mean_tpot_ms"), (VLLM, "request_throughput"),
    (VLLM, "output_throughput"), (SGLANG, "mean_ttft_ms"), (GENAI, "time_to_first_token.avg"),
    (GENAI, "inter_token_latency.avg"), (GENAI, "request_throughput.avg"),
    (GENAI, "output_token_throughput.avg"), (GENAI, "output_sequence_length.avg"),
    (MM, "mm_processor_stats.preprocessor_total_ms.mean"),
]  # fmt: skip
COUNTS = [(VLLM, "completed"), (VLLM, "total_output_tokens"), (SGLANG, "completed"),
          (MM, "completed"), (GENAI, "request_count.avg"),
          (GENAI, "input_config.perf_analyzer.stimulus.concurrency")]  # fmt: skip
ODD = ("12", True, float("nan"), 10**400)


@pytest.mark.parametrize(
    ("places", "values", "said"),
    [
        ([*NUMBERS, (SGLANG, "mean_e2e_latency_ms")],
         (*ODD, 0, -3, [1], {"a": 1}, float("inf"), 1e300),
         "result.json.*{path} is .*a number above 0"),
        ([(VLLM, "mean_e2el_ms"), (GENAI, "time_to_first_token.avg"),
          (MM, "mm_processor_stats.preprocessor_total_ms.mean")], (1e9,),
         "{path} is 1000000000.0; it must be a number above 0 and below .* s"),
        ([*COUNTS, (VLLM, "max_concurrency")],
         (*ODD, 0, -1, 1.5, []), "result.json.*{path} is .*a whole number, 1 or more"),
        ([*NUMBERS, *COUNTS], (...,), "lacks {path}, a "),
        ([*NUMBERS, *COUNTS], (None,), "lacks {path}, a "),
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
        ([(VLLM, "tp"), (SGLANG, "server_info.tp_size"), (SGLANG, "server_info.pp_size"),
          (SGLANG, "server_info.dp_size")], (2, "4"),
         "{path} is .*; it must be 1: pages on several GPUs are not predicted"),
        ([(SGLANG, "server_info.decode"), (SGLANG, "server_info.prefill")], ([{}], [{}, {}]),
         "{path} is a list; it must be left out: prompts and steps on GPUs of their own"),
        ([(SGLANG, "errors")], (30 * ["timeout"] + 80 * [""],), "30 of 110 requests failed"),
        ([(VLLM, "mean_ttft_ms")], (...,), "lacks {path}, .*--percentile-metrics"),
        ([(SGLANG, "request_rate")], ("trace",), "{path} is 'trace'; it must be inf"),
        ([(SGLANG, "accept_length")], (2.7,), "{path} is 2.7; .* speculative decoding"),
        *(([(GENAI, "input_config.perf_analyzer.stimulus")], (value,), said) for value, said in (
            ({"request_rate": 2.0}, "request_rate"), ({"session_concurrency": 2}, "session"),
            ({}, "lacks .*stimulus.concurrency"))),
        ([(GENAI, "time_to_first_token"), (PHASES, "time_to_first_token")], (...,),
         "lacks {path}.avg, .*--streaming"),
        ([(GENAI, "was_cancelled"), (AIPERF, "was_cancelled")], (True,), "{path} is True"),
        ([(PHASES, "is_complete")], (False,), "{path} is False; it must be true"),
        ([(PHASES, "pooled_spec_decode_acceptance_histogram")], ({"0": 3, "2": 9},),
         "{path} is a table; .* speculative decoding"),
        ([(AIPERF, "input_config.loadgen.request_rate")], (4.0,), "{path} is 4.0"),
        ([(PHASES, "input_config.phases")], ([{"type": "poisson", "concurrency": 8}],),
         "{path}.type is 'poisson'; it must be concurrency"),
        ([(PHASES, "input_config.phases")], (2 * [{"type": "concurrency"}],),
         "{path} is a list; it must be one table"),
        ([(MM, "mm_processor_stats")], ({}, {"encoder_forward_ms": {"mean": 3.0}}),
         "lacks {path}.preprocessor_total_ms.mean, .* with images"),
        ([(MM, "failed")], (50,), "50 of 150 requests failed"),
    ],
)  # fmt: skip
def test_a_value_that_is_wrong_or_missing_is_named(tmp_path, places, values, said):
    # Every value somewhere, and every place with one of them.
    for number in range(max(len(places), len(values))):
        (result, path), value = places[number % len(places)], values[number % len(values)]
        with pytest.raises(BenchmarkError, match=said.format(path=path)) as refused:
            read(tmp_path, changed(result, path, value))
        assert str(refused.value).isprintable(), (path, value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not JSON"),
        ("hello", "is not JSON"),
        ("[1, 2]", "is a list, not a benchmark result"),
        ("3", "is 3, not a benchmark result"),
        ('{"a": 1, "b": 2}', "is not a benchmark result .its keys: 'a', 'b'."),
        ("{}", "is not a benchmark result .its keys: none."),
        ("[" * 200_000, "nested too deeply|is not JSON"),
        ('{"a":' * 200_000, "nested too deeply|is not JSON"),
        (json.dumps(VLLM)[:-1], "result.json' is not JSON"),
        (json.dumps(VLLM) + "\nhello", "line 2 of .* is not JSON"),
        (json.dumps(VLLM) + "\n[]", "line 2 of .* is a list"),
        ("\n".join(101 * [json.dumps(VLLM)]), "more than 100 results"),
        ('{"a": ' + 5000 * "1" + "}", "is not JSON"),
        (b"\xff\xfe{", "cannot read .*not UTF-8 text"),
        (..., "cannot read .*result.json.*No such file"),
        (None, "cannot read .*it is a folder"),
        (1 << 40, r"cannot read .*more than 64 MiB, .*; measure without"),
    ],
)
def test_something_else_is_refused(tmp_path, content, said):
    file = tmp_path if content is None else tmp_path / "result.json"
    if isinstance(content, str | bytes):
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    elif isinstance(content, int):
        file.touch()
        os.truncate(file, content)  # takes no room on the disk
    with pytest.raises(BenchmarkError, match=said):
        read_benchmarks(file)


# --- which model, which server -------------------------------------------------------------------

[SAMPLE] = read_benchmarks(DATA / "bench_vllm.json")
PAGE = DEFAULT.plan(page=(1240, 1754))
TOKENS = 300
H100, SERVER = device("h100-sxm"), SERVERS["vllm"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, "deepseek-ocr") for name in (
            MODEL, "unsloth/DeepSeek-OCR", "/models/deepseek_ocr/", "DeepSeek-OCR-20251020",
            "mlx-community/DeepSeek-OCR-8bit")),
        *((name, "deepseek-ocr-2") for name in (
            "deepseek-ai/DeepSeek-OCR-2", "me/deepseek-ocr2-fp8",
            "/hub/models--deepseek-ai--DeepSeek-OCR-2/snapshots/2f1")),
        ("baidu/Unlimited-OCR", "unlimited-ocr"),
        *((name, f"the file calls the model '{name}'; assumed")
          for name in ("meta-llama/Llama-3", "deepseek-ocr/Qwen", "ocr", "mydeepseek-ocrs/x")),
        (None, "the file does not name the model; assumed"),
    ],
)  # fmt: skip
def test_the_model_is_known_by_its_name_or_noted_if_somebody_says_which_it_is(name, expected):
    found, is_known = replace(SAMPLE, model=name), expected in ARCHITECTURES
    for architecture, is_given in product(FAMILY.values(), (True, False)):
        wrong = f"give architecture={expected}" if is_known else "which is unknown"
        is_right = architecture.name == expected if is_known else is_given or name is None
        with nullcontext() if is_right else pytest.raises(BenchmarkError, match=wrong):
            doubts = of_model(found, architecture, is_given=is_given).doubts()
            assert [each[: len(expected)] for each in doubts] == ([] if is_known else [expected])


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


def model_on(gpu):
    return TimedModel(DEFAULT, published_model().dimensions, BFLOAT16, False, gpu)


def times(*benchmarks, concurrency=(1, 16), gpu="h100-sxm", host=SERVER, prepare=0.05, **more):
    job = Assumptions(
        host, lambda _: OutputLengths.fixed(TOKENS), prepare, corrections=Corrections(benchmarks),
        **more,
    )  # fmt: skip
    return times_of(model_on(device(gpu)), PAGE, job, concurrency)


def predicted(*benchmarks, **more):
    return entry_of(times(*benchmarks, **more))


ASKED = (H100, SERVER, "deepseek-ocr")
ONE = Corrections((kept(1.5),))


@pytest.mark.parametrize(
    ("corrections", "asked", "factors", "said"),
    [
        (Corrections((kept(1.5, 0.8),)), ASKED, (1.5, 0.8, None, None),
         "corrected for h100-sxm under vllm (0.14.1): the first token takes 1.5 times and each"
         " later token 0.8 times as long as predicted without correction, from a benchmark of"
         " 100 requests, 8 at a time (a.json, kept 2026-01-31)"),
        (Corrections((
            kept(1.5, 0.8), kept(version="0.15.0"),
            kept(1.2, 0.8, file="b.json", kept="2026-02-02T00:00:00Z", requests=1000),
         )), ASKED, (math.sqrt(1.8), 0.8, 0.25, 0),
         "from 2 benchmarks of 1,100 requests (a.json, b.json, kept 2026-01-31 to 2026-02-02);"
         " each is within 25 % and 0 % of the others, which gives the band; other versions with"
         " benchmarks: 0.15.0"),
        (Corrections((kept(version="unknown"),)), ASKED, (1, 1, None, None),
         "vllm (unknown version)"),
        # The geometric mean; 4 times as long as the other, and sqrt(8) as long as two others.
        (Corrections((kept(1, 2), kept(4, 2))), ASKED, (2, 2, 3, 0), "of the others"),
        (Corrections((kept(1), kept(2), kept(4))), ASKED, (2, 1, math.sqrt(8) - 1, 0),
         "3 benchmarks"),
        # The version that was kept last, unless another is named.
        (Corrections((NEW, kept(1.5))), ASKED, (2, 1, None, None), "with benchmarks: 0.14.1"),
        (Corrections((NEW, kept(1.5)), "0.14.1"), ASKED, (1.5, 1, None, None), "(0.14.1)"),
        (Corrections((NEW, kept(1.5)), "0.13"), ASKED, None, ""),
        # Another GPU, server or model is left alone.
        *((ONE, asked, None, "") for asked in (
            (device("l4"), SERVER, "deepseek-ocr"), (H100, SERVER, "deepseek-ocr-2"),
            *((H100, SERVERS[name], "deepseek-ocr") for name in ("vllm-v1", "sglang")),
            (H100, EAGER, "deepseek-ocr"))),
        # The same figures from elsewhere; other kernel times, and other figures of the host.
        (ONE, (replace(H100, source=""), SERVER, "deepseek-ocr"), (1.5, 1, None, None), "from a"),
        *((ONE, (gpu, host, "deepseek-ocr"), None,
           "not corrected for h100-sxm under vllm (0.14.1) by a benchmark of 100 requests, 8 at a"
           " time (a.json, kept 2026-01-31): compared with other kernel times or host figures;"
           " compare again") for gpu, host in (
            (replace(H100, kinds={}), SERVER),
            (replace(H100, kinds=H100.kinds | {
                ("gemm", "bfloat16"): device("a100-sxm").kinds["gemm", "bfloat16"]}), SERVER),
            (H100, replace(SERVER, hidden_step_us=501.0)))),
    ],
)  # fmt: skip
def test_those_of_the_gpu_server_model_version_and_basis_are_combined_and_said(
    corrections, asked, factors, said
):
    found = corrections.of(*asked)
    names = ("first_token", "per_token", "first_token_error", "per_token_error")
    combined = factors and dict(zip(names, factors, strict=True))
    assert (found.found and figures(found.found, names)) == pytest.approx(combined)
    assert found.sentences() == [] if said == "" else said in "".join(found.sentences())
    assert factors or found.corrected(SPAN, "first_token") is SPAN


def test_first_token_and_tokens_are_multiplied_and_the_throughput_follows():
    both = times(), times(kept(1.5, 1.2))
    bare, corrected = map(entry_of, both)
    page = ("ttft_seconds", "tpot_seconds", "page_seconds")
    assert figures(corrected, page) == figures(corrected.throughput[0], page)
    for before, after in zip(bare.throughput, corrected.throughput, strict=True):
        page = 1.5 * before.ttft_seconds + (TOKENS - 1) * 1.2 * before.tpot_seconds
        expected = {
            "ttft_seconds": 1.5 * before.ttft_seconds, "tpot_seconds": 1.2 * before.tpot_seconds,
            "page_seconds": page, "pages_per_second": after.concurrency / page,  # Little's law
            "tokens_per_second": TOKENS * after.concurrency / page,
            "memory_bytes": before.memory_bytes, "fits": before.fits,
        }  # fmt: skip
        assert figures(after, expected) == pytest.approx(expected)
    *prefill, decode = zip(*(each.alone.stages.values() for each in both), strict=True)
    same = ("bound", "least_compute", "nbytes")
    for (before, after), factor in ((decode, 1.2), *((each, 1.5) for each in prefill)):
        assert float(after.seconds / before.seconds) == pytest.approx(factor)
        assert figures(after, same) == figures(before, same)


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


@pytest.mark.exhaustive
@pytest.mark.parametrize("server", ["vllm", "sglang"])
@pytest.mark.parametrize("requests", [16, 64])
def test_of_a_burst_only_the_whole_request_is_that_of_a_steady_load(server, requests):
    """Requests that all come at once, against the closed loop that predicts them."""
    host = SERVERS[server]
    bare = predicted(concurrency=(requests,), prepare=0.0, host=host)
    [load] = bare.throughput
    one = sum(span.seconds for span in [*bare.stages.values()][:-1])
    served = ServedModel(model_on(H100), host)
    # One prompt after the other, then all tokens of all requests together.
    steps = (served.step(requests, PAGE.seq_len + done).seconds for done in range(1, TOKENS))
    assert requests * one + sum(map(float, steps)) == pytest.approx(load.page_seconds, rel=0.08)
    assert (requests + 1) / 2 * one > 2 * load.ttft_seconds
