"""Results of servers' benchmark programs: what is read of them, and what is refused."""

import json
from pathlib import Path

import pytest

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.errors import BenchmarkError
from dsocr_analyze.timing.server_benchmarks.comparison import (
    check_engine,
    check_model,
    server_of,
    version_of,
)
from dsocr_analyze.timing.server_benchmarks.reading import read_benchmarks

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


class TestVllm:
    def test_what_is_read(self):
        [found] = read_benchmarks(DATA / "bench_vllm.json")
        assert (found.program, found.date) == ("vllm bench serve", "20260110-101500")
        assert (found.model, found.engine, found.version) == (
            "deepseek-ai/DeepSeek-OCR", None, None,
        )  # fmt: skip
        assert (found.requests, found.failed, found.concurrency, found.is_steady) == (
            200,
            0,
            16,
            True,
        )
        assert (found.prompt_tokens, found.new_tokens) == (10, 800)
        assert (found.ttft_seconds, found.tpot_seconds) == (0.165, 0.0044)
        assert (found.requests_per_second, found.tokens_per_second) == (4.329004, 3463.2)
        assert found.measured_seconds is None
        assert found.request_seconds == pytest.approx(0.165 + 799 * 0.0044)
        assert found.doubts() == []

    def test_whole_requests_are_read_where_they_were_asked_for(self, written):
        [found] = read_benchmarks(written(changed(VLLM, "mean_e2el_ms", 3650.0)))
        assert found.measured_seconds == found.request_seconds == 3.65

    @pytest.mark.parametrize(
        ("backend", "engine"),
        [("vllm", "vllm"), ("openai", None), ("openai-chat", None), ("sglang", "sglang"),
         ("tgi", "tgi"), ("tensorrt-llm", "tensorrt")],
    )  # fmt: skip
    def test_the_backend_says_what_served(self, written, backend, engine):
        [found] = read_benchmarks(written(changed(VLLM, "backend", backend)))
        assert found.engine == engine

    def test_results_before_0_10_are_read(self, written):
        old = changed(changed(VLLM, "endpoint_type", ...), "backend", "vllm")
        for key in ("failed", "total_token_throughput", "rtfx", "max_concurrent_requests"):
            old.pop(key)
        [found] = read_benchmarks(written(old | {"input_throughput": 50.0}))
        assert found.program == "vllm bench serve"
        assert found.failed == 0

    def test_the_version_is_read_where_metadata_say_it(self, written):
        [found] = read_benchmarks(written(changed(VLLM, "vllm_version", "v0.11.2")))
        assert found.version == "0.11.2"
        [found] = read_benchmarks(written(changed(VLLM, "server_version", "my build")))
        assert found.version is None

    def test_appended_results_are_each_read(self, written):
        second = changed(VLLM, "max_concurrency", 8)
        found = read_benchmarks(written(f"{json.dumps(VLLM)}\n{json.dumps(second)}"))
        assert [each.concurrency for each in found] == [16, 8]
        assert len({each.digest for each in found}) == 2

    def test_requests_that_did_not_complete_are_failures(self, written):
        few = changed(VLLM, "completed", 195) | {"failed": 5}
        [found] = read_benchmarks(written(few))
        assert found.failed == 5
        assert found.doubts()[0].startswith("5 of 200 requests failed")
        [found] = read_benchmarks(written(changed(few, "failed", ...)))
        assert found.failed == 5
        with pytest.raises(BenchmarkError, match=r"20 of 200 requests failed; .* at most 5 % fail"):
            read_benchmarks(written(changed(VLLM, "completed", 180) | {"failed": 20}))

    @pytest.mark.parametrize("limit", [None, 200, 64])
    def test_all_requests_at_once_are_a_burst(self, written, limit):
        [found] = read_benchmarks(written(changed(VLLM, "max_concurrency", limit)))
        assert found.concurrency == (limit or 200)
        assert not found.is_steady
        assert "a burst rather than a steady load" in found.doubts()[0]

    def test_a_limit_above_the_requests_does_not_count(self, written):
        [found] = read_benchmarks(written(changed(VLLM, "max_concurrency", 500)))
        assert found.concurrency == 200

    def test_one_client_is_steady_from_the_first_request(self, written):
        one = VLLM | {"max_concurrency": 1, "num_prompts": 2, "completed": 2,
                      "total_output_tokens": 1600}  # fmt: skip
        [found] = read_benchmarks(written(one))
        assert found.is_steady

    def test_figures_that_contradict_each_other_are_doubted(self, written):
        [found] = read_benchmarks(written(changed(VLLM, "request_throughput", 43.0)))
        both = found.doubts()
        assert len(both) == 2
        assert all(each.startswith("the figures contradict each other") for each in both)


class TestSglang:
    def test_each_line_is_a_result(self):
        one, two = read_benchmarks(DATA / "bench_sglang.jsonl")
        assert (one.program, one.where[:7]) == ("sglang.bench_serving", "line 1 ")
        assert (one.model, one.engine, one.version) == (
            "deepseek-ai/DeepSeek-OCR", "sglang", "0.5.5",
        )  # fmt: skip
        assert (one.requests, one.concurrency, one.new_tokens) == (80, 4, 800)
        assert one.prompt_tokens == 913
        assert (one.ttft_seconds, one.tpot_seconds) == (0.142, 0.0019)
        assert one.measured_seconds == 1.661
        assert (two.requests, two.concurrency) == (320, 16)

    def test_a_pretty_printed_result_is_read(self, written):
        [found] = read_benchmarks(written(json.dumps(SGLANG, indent=2)))
        assert found.concurrency == 4

    def test_it_may_have_measured_vllm(self, written):
        other = changed(changed(SGLANG, "backend", "vllm-chat"), "server_info", ...)
        [found] = read_benchmarks(written(other))
        assert (found.engine, found.version, found.model) == ("vllm", None, None)


class TestGenaiPerf:
    def test_what_is_read(self):
        [found] = read_benchmarks(DATA / "bench_genai_perf.json")
        assert (found.program, found.model) == ("genai-perf", "deepseek-ai/DeepSeek-OCR")
        assert (found.engine, found.version) == (None, None)  # its backend is a default
        assert (found.requests, found.concurrency, found.new_tokens) == (120, 8, 800)
        seconds = (found.ttft_seconds, found.tpot_seconds)
        assert seconds == pytest.approx((0.1875, 0.0031))
        assert found.measured_seconds == pytest.approx(2.664)
        assert (found.requests_per_second, found.tokens_per_second) == (3, 2400)

    @pytest.mark.parametrize(("unit", "value"), [("s", 0.1875), ("us", 187500), ("ns", 187500000)])
    def test_units_are_read(self, written, unit, value):
        other = changed(GENAI, "time_to_first_token", {"unit": unit, "avg": value})
        [found] = read_benchmarks(written(other))
        assert found.ttft_seconds == pytest.approx(0.1875)

    def test_flat_options_of_versions_before_0_0_13_are_read(self, written):
        flat = {"model": ["deepseek-ai/DeepSeek-OCR"], "service_kind": "openai", "backend": "vllm",
                "concurrency": 8, "request_rate": None, "request_count": 120,
                "streaming": True}  # fmt: skip
        old = changed(changed(GENAI, "input_config", flat), "request_count", ...)
        [found] = read_benchmarks(written(old))
        assert (found.concurrency, found.requests) == (8, 120)
        assert (found.model, found.engine) == ("deepseek-ai/DeepSeek-OCR", None)

    def test_behind_triton_the_backend_served(self, written):
        other = changed(GENAI, "input_config.endpoint.service_kind", "triton")
        [found] = read_benchmarks(written(changed(other, "input_config.endpoint.backend", "vllm")))
        assert found.engine == "vllm"

    def test_aiperf_is_read(self, written):
        options = {"endpoint": {"model_names": ["deepseek-ai/DeepSeek-OCR"]},
                   "loadgen": {"concurrency": 8, "request_count": 120}}  # fmt: skip
        [found] = read_benchmarks(written(changed(GENAI, "input_config", options)))
        assert (found.program, found.concurrency) == ("AIPerf", 8)
        assert found.model == "deepseek-ai/DeepSeek-OCR"

    def test_its_failures_count(self, written):
        other = changed(GENAI, "error_request_count", {"unit": "requests", "avg": 3.0})
        [found] = read_benchmarks(written(other))
        assert found.failed == 3


class TestConditions:
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
        ],
    )
    def test_what_no_prediction_is_of_is_refused(self, written, result, path, value, said):
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


class TestHostileFiles:
    @pytest.mark.parametrize("value", [0, -3, "12", True, [1], {"a": 1}, float("nan"),
                                       float("inf"), 10**400, 1e300])  # fmt: skip
    @pytest.mark.parametrize(("result", "path"), NUMBERS)
    def test_a_number_is_above_0(self, written, result, path, value):
        with pytest.raises(BenchmarkError) as error:
            read_benchmarks(written(changed(result, path, value), "some.json"))
        assert "some.json" in str(error.value)
        assert f"{path} is" in str(error.value)
        assert "a number above 0" in str(error.value)

    @pytest.mark.parametrize("value", [0, -1, 1.5, "12", True, [], float("nan"), 10**400])
    @pytest.mark.parametrize(("result", "path"), COUNTS)
    def test_a_count_is_a_whole_number(self, written, result, path, value):
        with pytest.raises(BenchmarkError, match=f"{path} is .*a whole number, 1 or more"):
            read_benchmarks(written(changed(result, path, value)))

    @pytest.mark.parametrize(
        ("result", "path"),
        [each for each in (*NUMBERS, *COUNTS)
         if each[1] not in ("max_concurrency", "mean_e2e_latency_ms", "request_count.avg")],
    )  # fmt: skip
    def test_a_missing_key_is_named(self, written, result, path):
        with pytest.raises(BenchmarkError, match=f"lacks {path}, a "):
            read_benchmarks(written(changed(result, path, ...)))

    @pytest.mark.parametrize(
        ("result", "path", "value"),
        [(VLLM, "model_id", 3), (VLLM, "backend", []), (VLLM, "date", {"a": 1}),
         (VLLM, "model_id", "\x1b[31m"), (VLLM, "model_id", "\ud800"),
         (SGLANG, "server_info", "x"), (GENAI, "input_config", 3),
         (GENAI, "input_config.model_names", ["a", "b"]), (GENAI, "inter_token_latency", 3),
         (GENAI, "time_to_first_token.unit", "minutes")],
    )  # fmt: skip
    def test_a_value_of_the_wrong_kind_is_named(self, written, result, path, value):
        with pytest.raises(BenchmarkError) as error:
            read_benchmarks(written(changed(result, path, value)))
        assert f"{path} is " in str(error.value)
        assert str(error.value).isprintable()

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
    def test_something_else_is_refused(self, written, text, said):
        with pytest.raises(BenchmarkError, match=said):
            read_benchmarks(written(text))

    def test_what_cannot_be_read_is_named(self, tmp_path):
        with pytest.raises(BenchmarkError, match=r"cannot read .*none.json.*No such file"):
            read_benchmarks(tmp_path / "none.json")
        with pytest.raises(BenchmarkError, match=r"cannot read .*it is a folder"):
            read_benchmarks(tmp_path)
        (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{")
        with pytest.raises(BenchmarkError, match="not UTF-8 text"):
            read_benchmarks(tmp_path / "bytes.json")

    def test_a_huge_file_is_not_read_to_its_end(self, tmp_path):
        file = tmp_path / "huge.json"
        with file.open("wb") as opened:
            opened.truncate(1 << 40)  # takes no room on the disk
        with pytest.raises(BenchmarkError, match=r"more than 64 MiB, .*; measure without"):
            read_benchmarks(file)

    def test_outputs_of_one_token_have_no_second_one(self, written):
        with pytest.raises(BenchmarkError, match=r"output_tokens is 200, 1 tokens per request"):
            read_benchmarks(written(changed(VLLM, "total_output_tokens", 200)))

    def test_a_byte_order_mark_and_unknown_keys_do_no_harm(self, written):
        text = "\ufeff" + json.dumps(VLLM | {"new_key": [1, {"a": None}]})
        [found] = read_benchmarks(written(text))
        assert found.requests == 200


def benchmark_of(written, **changes):
    return read_benchmarks(written(VLLM | changes))[0]


class TestModel:
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
    def test_it_is_known_by_its_name(self, written, name, architecture):
        found = benchmark_of(written, model_id=name)
        assert check_model(found, ARCHITECTURES[architecture], is_given=False) is None
        for other in ARCHITECTURES.keys() - {architecture}:
            with pytest.raises(BenchmarkError, match=f"give architecture={architecture}"):
                check_model(found, ARCHITECTURES[other], is_given=True)

    @pytest.mark.parametrize(
        "name", ["meta-llama/Llama-3", "deepseek-ocr/Qwen", "ocr", "mydeepseek-ocrs/x"]
    )
    def test_another_model_is_refused_unless_somebody_says_which_it_is(self, written, name):
        found = benchmark_of(written, model_id=name)
        with pytest.raises(BenchmarkError, match="which is unknown"):
            check_model(found, DEFAULT, is_given=False)
        assert name in check_model(found, DEFAULT, is_given=True)

    def test_a_file_that_does_not_say_it_is_taken_for_the_model(self, written):
        found = benchmark_of(written, model_id=None)
        assert "does not name the model" in check_model(found, DEFAULT, is_given=False)


class TestServer:
    def test_another_engine_is_refused(self, written):
        vllm = benchmark_of(written, backend="vllm")
        for fitting in ("vllm", "vllm-v0", "vllm-v1"):
            check_engine(vllm, fitting)
        with pytest.raises(BenchmarkError, match="engine was 'vllm', not sglang; give server=vllm"):
            check_engine(vllm, "sglang")
        other = benchmark_of(written, backend="tgi")
        with pytest.raises(BenchmarkError, match="was 'tgi', not vllm; known engines: vllm, "):
            check_engine(other, "vllm")
        check_engine(benchmark_of(written, backend="openai-chat"), "sglang")

    def test_a_file_names_its_server_where_nobody_does(self, written):
        assert server_of(benchmark_of(written, backend="sglang"), "vllm") == "sglang"
        assert server_of(benchmark_of(written, backend="vllm"), "vllm") == "vllm"
        assert server_of(benchmark_of(written, backend="openai"), "vllm") == "vllm"
        assert server_of(benchmark_of(written, backend="tgi"), "vllm") == "vllm"

    def test_versions(self, written):
        silent, telling = benchmark_of(written), benchmark_of(written, vllm_version="0.11.0")
        assert version_of(silent, None) == "unknown"
        assert version_of(silent, "0.14.1rc1+cu128") == "0.14.1rc1+cu128"
        assert version_of(telling, None) == version_of(telling, "0.11.0") == "0.11.0"
        with pytest.raises(BenchmarkError, match=r"version was 0.11.0, not server_version 0.12"):
            version_of(telling, "0.12")
        for wrong in ("", "a b", "x" * 65, "1\n2"):
            with pytest.raises(BenchmarkError, match=r"server_version .* is not a version"):
                version_of(silent, wrong)
