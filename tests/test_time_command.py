"""`dsocr-analyze time`, predicted seconds elsewhere, and what a server's benchmark corrects."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest
from command_line import run
from relatives import FAMILY
from sampling import every, sampled
from write_schema import schemas

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.cli import main
from dsocr_analyze.hardware import device
from dsocr_analyze.kernels import BFLOAT16
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import EAGER, SERVERS, Precision, all_served_modes, served_notes
from dsocr_analyze.timing.serving import TimedModel

FILES = {
    "lengths.csv": "new_tokens\n" + "100\n" * 9 + "2000\n",
    "pages.csv": "width,height\n" + 16 * "1240,1754\n",
    "mine.toml": 'name = "mine"\n[gpu]\ntitle = "Mine"\ntensor_tflops = 500\n'
    'bandwidth_gb_s = 2000\nmemory_gb = 48\nsource = "me"\nsms = 100\nl2_mb = 50\n'
    'like = "h100-sxm"\n',
}


DATA = Path(__file__).parent / "data"
VLLM, MM = DATA / "bench_vllm.json", DATA / "bench_mm_processor.json"


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name, content in FILES.items():
        Path(name).write_text(content)


def document(capsys, command):
    """The JSON that a command prints, besides which it says nothing."""
    code, out, err = run(capsys, *command.split(), "--format", "json")
    assert (code, err) == (0, "")
    return json.loads(out)


def timed(capsys, options):
    return document(capsys, f"time {options}")["time"]


def test_of_several_pages_in_a_prompt_it_is_said_which_is_meant(capsys):
    same = f"--arch {UNLIMITED} --prompt-pages 10 --mode base"
    _, out, _ = run(capsys, "time", "h100", *same.split(), "--assumptions")
    said = " ".join(out.split())
    for words in (
        "s a prompt of 10 pages (", "(16 prompts at once)", "one prompt alone, predicted",
        "prompts at once pages/s", "10 pages of 1240 x 1754 pixels in a prompt of 2735 tokens",
        "every prompt generates 1024 tokens", "ms of CPU per page (estimated from its pixels)",
    ):  # fmt: skip
        assert words in said, words
    assert re.search(r"at most [0-9,]+ prompts at once", said)
    assert "(1 prompt at once)" in run(capsys, "time", "l4", *same.split(), "--concurrency", 1)[1]
    for server in ("", "--server vllm"):
        _, out, _ = run(capsys, "fit", "h100", *same.split(), *server.split())
        assert "10 pages in a prompt, 2,735 prompt tokens" in " ".join(out.split())
        assert re.search(r"\b1 prompt needs|[0-9] prompts of [0-9,]+ tokens at once", out)
        assert not re.search(r"\b[0-9]+ pages? (needs?|of|at once)\b", out)
    first = run(capsys, "fit", *same.split())[1]
    assert first.startswith("1 prompt (")


def test_the_cpus_time_is_given_of_a_page_and_needed_for_each_in_a_prompt(capsys):
    found = {}
    for pages in (1, 10):
        options = f"l4 --mode base --prompt-pages {pages} --preprocess-ms 900 --concurrency 64"
        out = run(capsys, "time", "--arch", UNLIMITED, *options.split(), "--format", "json")[1]
        [found[pages]] = json.loads(out)["time"]
        assert found[pages]["assumptions"]["preprocess_seconds"] == pytest.approx(0.9 * pages)
        [load] = found[pages]["throughput"]
        assert load["pages_per_second"] == pytest.approx(1 / 0.9, rel=1e-3), "the CPU's"
    assert found[10]["ttft_seconds"] > found[1]["ttft_seconds"] + 9 * 0.9


@pytest.mark.parametrize(
    ("limit", "shares"), [(99, "100.0 %"), (100, "10.0 %"), (1999, "10.0 %"), (2000, None)]
)
@pytest.mark.parametrize(
    "line",
    ["time l4", "plan --pages 9 --gpu l4", "archive pages.csv --gpu l4", "sweep --gpu l4 -q"
     " --mode base --output rows.csv"],
)  # fmt: skip
def test_output_lengths_above_a_limit_that_is_given_are_named(capsys, line, limit, shares):
    """Of ten pages, one has 2,000 tokens and the others 100."""
    lengths = ("--new-tokens-from", "lengths.csv")
    assert run(capsys, *line.split(), *lengths)[2] == ""
    code, _, err = run(capsys, *line.split(), *lengths, "--max-new-tokens", limit)
    said = "" if shares is None else (
        f"dsocr-analyze: warning: {shares} of the lengths in 'lengths.csv' are above"
        f" --max-new-tokens {limit}, up to 2,000; seconds are those of all lengths\n"
    )  # fmt: skip
    assert (code, err) == (0, said)


@pytest.mark.parametrize(("new_tokens", "is_beyond"), [(7280, False), (7281, True)])
def test_positions_beyond_those_trained_for_are_named(capsys, new_tokens, is_beyond):
    """8,192 of them, of which the prompt has 913, and the last token is not read."""
    Path("lengths.csv").write_text(f"new_tokens\n9\n9\n{new_tokens}\n")
    for lengths in (("--max-new-tokens", new_tokens), ("--new-tokens-from", "lengths.csv")):
        _, out, _ = run(capsys, "time", "l4", *lengths)
        named = f"913 prompt tokens and {new_tokens} new ones reach 8193 positions, beyond the"
        assert (named in " ".join(out.split())) == is_beyond
    lengths = ("--new-tokens-from", "lengths.csv")
    _, out, _ = run(capsys, "plan", "--pages", "9k", "--gpu", "l4", *lengths)
    assert ("Note: 3,000 of 9,000 pages exceed the decoder's max_position" in out) == is_beyond
    _, _, err = run(capsys, "fit", "l4", "--max-new-tokens", new_tokens)
    assert ("reach 8193 positions, beyond the decoder's" in err) == is_beyond


@pytest.mark.parametrize(
    ("options", "counts", "new_tokens", "assumed"),
    [
        ("h100-sxm", (1, 4, 16), 1024, {}),
        ("a100 --concurrency 1,3 --price 3.6 --workers 3 --reserved 0.2", (1, 3), 1024,
         {"price_per_hour": 3.6, "workers": 3, "reserved": 0.2}),
        ("l4 --weights-dtype int4 --kv-dtype fp8 --concurrency 9 --preprocess-ms 250 --offline",
         (9,), 1024, {"precision": Precision("int4", "float8"), "preprocess_seconds": 0.25,
                      "is_offline": True}),
        ("h200 --concurrency 2 --new-tokens-from lengths.csv --server sglang", (2,), 1024,
         {"lengths": lambda _: OutputLengths.of_counts({100: 9, 2000: 1}),
          "host": SERVERS["sglang"]}),
        ("h100 --mean-new-tokens 500 --share-at-limit 0.1 --max-new-tokens 4000", (1, 4, 16), 4000,
         {"lengths": lambda limit: OutputLengths.mean_and_limit(500, limit, 0.1)}),
        ("rtx-4090 --concurrency 5000 --max-new-tokens 1", (5000,), 1, {}),
        ("h100 --runtime eager --max-new-tokens 3 --concurrency 1", (1,), 3, {"host": EAGER}),
    ],
)  # fmt: skip
def test_an_entry_is_what_predict_says(capsys, options, counts, new_tokens, assumed):
    dimensions = ModelDirectory.read(DEFAULT.reference).dimensions()
    model = TimedModel(DEFAULT, dimensions, BFLOAT16, False, device(options.split()[0]))
    page = DEFAULT.plan(page=(1240, 1754), max_new_tokens=new_tokens)
    entry = predict(model, page, Assumptions(**{"host": SERVERS["vllm"]} | assumed), counts)
    assert timed(capsys, options) == [json.loads(msgspec.json.encode(entry))]


def test_a_profile_of_the_users_own_adds_a_gpu(capsys):
    [entry] = timed(capsys, "mine --profile mine.toml")
    found = entry["gpu"], "gemm.bfloat16" in entry["profile"]["extrapolated"]
    assert found == ("mine", True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("time h10", "no GPU 'h10' in the catalogue; did you mean"),
        ("time t4", "T4 has no bfloat16; use --dtype float16"),
        ("time h100 --dtype float32", "--dtype float32: attention was measured in 16 bits"),
        ("time a100 --weights-dtype fp8", "float8"),
        ("time a100 --kv-dtype fp8", "A100 80 GB SXM has no float8; use --kv-dtype"),
        ("time h100 --kv-dtype fp5", "fp5"),
        ("time h100 --weights-dtype fp5", "fp5"),
        ("time h100 --runtime lazy", "--runtime 'lazy' is unknown; use eager, serving"),
        ("time h100 --server vlm", "--server 'vlm' is unknown; did you mean vllm?"),
        ("time h100 --concurrency 0", "--concurrency"),
        ("time h100 --concurrency 1:5000", "give at most 1000"),
        ("time h100 --preprocess-ms -1", "--preprocess-ms -1 is out of range"),
        ("time h100 --preprocess-ms nan", "--preprocess-ms nan is out of range"),
        (f"time h100 --keep 1 --from-benchmark {MM}", "for a server's --from-benchmark FILE"),
        ("time h100 --workers 0", "--workers 0 is too small; give 1 or more"),
        ("time h100 --price 0", "--price 0 is out of range"),
        ("time h100 --reserved 1", "--reserved 1"),
        ("time h100 --share-at-limit 0.1", "needs --mean-new-tokens"),
        ("time h100 --corrections 0 --server-version 1",
         "--server-version 1 selects the benchmarks that correct, and --corrections 0"),
        ("time h100 --new-tokens-from nowhere.csv", "nowhere.csv"),
        ("time h100 --new-tokens-from lengths.csv --mean-new-tokens 4",
         "leave out --mean-new-tokens"),
        ("time h100 --plot load.gif", "load.gif"),
        ("time h100 --runtime eager --weights-dtype int8", "--runtime serving"),
        ("--engine analytic --price 3", "give --gpu too, or leave it out"),
        ("--runtime eager", "give --gpu too, or leave it out"),
        ("compare tiny --concurrency 4", "give --gpu too, or leave it out"),
        *((f"{command} mi300x", "seconds are not predicted on MI300X: no measured kernel times")
          for command in ("time", "sweep --gpu", "archive pages.csv --gpu", "advise --gpu",
                          "compare tiny base --gpu", "time h100")),
        # Before the model is built.
        ("--gpu mi355x", "seconds are not predicted on MI355X"),
        ("--dtype float32 --gpu h100", "attention was measured in 16 bits only"),
    ],
)  # fmt: skip
def test_what_is_not_possible_is_refused_by_name(capsys, command, said):
    code, out, err = run(capsys, *command.split())
    assert (code, out, err.count("\n"), said in err) == (2, "", 1, True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("time h100 --price 2 --assumptions",
         ["nothing was run", "h100-sxm, serving, vllm: one page alone, predicted",
          "per 1,000 pages", "149.4 ms of CPU per page (estimated",
          "error assumed, not measured: masked_attention"]),
        ("time a100 --concurrency 1 --assumptions",
         ["another GPU's coefficients, with a wider band: encoder_attention.bfloat16\n"]),
        ("time a100 --concurrency 1",
         ["Note: on a100-80gb-sxm only another serving engine was measured, so bands are wider",
          "assumptions: --assumptions lists them"]),
        ("time h100 --format markdown", ["| --- |", "---: |", "## Assumptions"]),
        ("time h100 --mode tiny --strict", ["of DeepSeek-OCR's modes vllm offers gundam only"]),
    ],
)  # fmt: skip
def test_tables_name_gpu_and_runtime_and_the_assumptions_follow(capsys, monkeypatch, command, said):
    monkeypatch.setenv("COLUMNS", "132")
    code, out, _ = run(capsys, *command.split())
    assert (code, [each for each in said if each not in out]) == (0, [])


@pytest.mark.exhaustive
def test_a_plot_is_written_and_torch_is_not_imported():
    code = (
        "import sys; from dsocr_analyze.cli import main;"
        " main('time h100 l40s --runtime eager,serving --plot load.svg'.split());"
        " sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    text = Path("load.svg").read_text()
    assert ("pages per second" in text, ">l40s" in text) == (True, True)


@pytest.mark.exhaustive
def test_the_report_and_the_command_predict_the_same(capsys):
    report = document(
        capsys, "--engine analytic --gpu l40s --gpu h100 --runtime serving --concurrency 1,4,16"
    )
    jsonschema.validate(report, schemas()["schema.json"])
    assert report["time"] == timed(capsys, "l40s h100")


def test_compare_puts_predicted_seconds_side_by_side_and_says_what_they_assume(capsys):
    found = document(capsys, "compare tiny gundam --gpu h100 --price 2")
    rows = {row["key"]: row for row in found["rows"]}
    tiny, gundam = rows["h100_sxm_serving_ttft_seconds"]["values"]
    unit = rows["h100_sxm_serving_cost_per_thousand_pages_1"]["unit"]
    assert (tiny < gundam, unit, bool(found["assumptions"])) == (True, "price", True)
    assert document(capsys, "compare tiny")["assumptions"] == []


# --- from benchmarks of servers ------------------------------------------------------------------

SENTENCE = "corrected for h100-sxm under vllm"
CONDITIONS = "h100 --concurrency 16 --max-new-tokens 800"
RATE = 16 / (0.165 + 799 * 0.0044)
"""Pages per second of the 16 clients whose first and later tokens the sample has measured."""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "config/dsocr-analyze/corrections"


def compared(capsys, file=VLLM, options=""):
    return document(capsys, f"time h100 --from-benchmark {file} {options}")


def refused(capsys, options):
    code, out, err = run(capsys, "time", *options.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err


def result(name="result.json", sample=VLLM, **changes):
    """A file beside the test with a sample and some changes."""
    Path(name).write_text(json.dumps(json.loads(sample.read_text()) | changes))
    return name


def correction_of(capsys, options=CONDITIONS):
    """The correction of a prediction, and the seconds of first and later tokens."""
    [entry] = timed(capsys, options)
    [load] = entry["throughput"]
    return entry["assumptions"]["correction"], [load["ttft_seconds"], load["tpot_seconds"]]


@pytest.mark.exhaustive
def test_predicted_stands_beside_measured(capsys):
    [load] = timed(capsys, CONDITIONS)[0]["throughput"]
    found = compared(capsys, VLLM, "--server-version 0.14.1")
    jsonschema.validate(found, schemas()["schema-time-from-benchmark.json"])
    # A single benchmark's two factors make the two times right; the throughput follows.
    assert found["benchmarks"][0]["figures"] == [
        pytest.approx({
            "name": name, "predicted": load[name], "measured": seen,
            "error": load[name] / seen - 1, "corrected": corrected,
            "corrected_error": corrected / seen - 1,
        }, abs=1e-9)
        for name, seen, corrected in (
            ("pages_per_second", 4.329004, RATE), ("tokens_per_second", 3463.2, 800 * RATE),
            ("ttft_seconds", 0.165, 0.165), ("tpot_seconds", 0.0044, 0.0044),
        )
    ]  # fmt: skip
    factor = pytest.approx(0.165 / load["ttft_seconds"])
    assert found["benchmarks"][0] | {
        "server": "vllm", "server_version": "0.14.1", "concurrency": 16, "first_token": factor,
    } == found["benchmarks"][0]  # fmt: skip
    assert (found["correction"]["first_token"], found["kept"]) == (factor, True)


@pytest.mark.exhaustive
def test_several_pages_of_a_prompt_are_several_pages_a_second(capsys):
    file = result(mean_e2el_ms=3680.0, model_id="baidu/Unlimited-OCR")
    command = (
        f"time h100 --from-benchmark {file} --prompt-pages 2 --arch unlimited-ocr --mode base"
        " --format json"
    )
    _, out, _ = run(capsys, *command.split())  # it says on stderr that the window is on
    pages, *_, request = json.loads(out)["benchmarks"][0]["figures"]
    assert [pages["measured"], request["measured"]] == pytest.approx([2 * 4.329004, 3.68])


DOUBTFUL = {"failed": 2, "completed": 198, "max_concurrency": None, "total_input_tokens": 10**6,
            "mean_ttft_ms": 6000.0}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, "", ["predictions and result.json, vllm bench serve; 200 requests, 16 at",
                  " first token ", SENTENCE, "kept in "]),
        ({}, "--format markdown --keep 0",
         ["| what | predicted | measured | error | corrected | error |",
          "- corrections not kept "]),
        ({}, f"--from-benchmark {MM} --assumptions",
         ["87.0 ms of CPU per page (measured by vllm bench mm-"]),
        ({"model_id": "my-ocr"}, "--arch deepseek-ocr", ["the file calls the model 'my-ocr'"]),
        ({"quantization": "fp8"}, "", ["the server's weights were quantized ('fp8'), but"]),
        (DOUBTFUL, "", [
            "Note: result.json: 2 of 200 requests failed", "a burst rather than a steady load",
            "5,051 tokens on average, but the predicted page has 913"]),
    ],
)  # fmt: skip
def test_the_table_and_the_markdown_say_it_all(capsys, changes, options, said):
    command = ("time", "h100", "--from-benchmark", result(**changes), *options.split())
    code, out, err = run(capsys, *command)
    text = " ".join(out.split()) + " "
    assert (code, err, [each for each in said if each not in text]) == (0, "", [])


def test_weights_of_the_type_that_was_measured_leave_no_doubt(capsys):
    file = result(quantization="fp8")
    for options, doubts in (("", 1), ("--weights-dtype fp8", 0)):
        [found] = compared(capsys, file, f"--keep 0 {options}")["benchmarks"]
        assert sum("quantized" in each for each in found["doubts"]) == doubts


def test_of_a_burst_only_the_whole_request_corrects(capsys):
    [entry] = timed(capsys, "h100 --concurrency 200 --max-new-tokens 800")
    factor = (6 + 799 * 0.03) / entry["throughput"][0]["page_seconds"]
    file = result(max_concurrency=None, mean_ttft_ms=6000.0, mean_tpot_ms=30.0)
    [found] = compared(capsys, file)["benchmarks"]
    assert (found["concurrency"], found["steady"]) == (200, False)
    assert [found["first_token"], found["per_token"]] == pytest.approx([factor, factor])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("program", "server"),
    [("sglang.jsonl", ("sglang", "0.5.5")), ("genai_perf.json", ("vllm", "unknown"))],
)
def test_other_programs_results_are_compared_with_their_own_server(capsys, program, server):
    for entry in compared(capsys, DATA / f"bench_{program}")["benchmarks"]:
        assert (entry["server"], entry["server_version"]) == server
        assert entry["figures"][-1]["name"] == "request_seconds"


@pytest.mark.parametrize(
    ("seconds", "check"), [(0.087, ""), (0.0015, ", so check that the requests were this page")]
)
def test_measured_preprocessing_alone_is_a_prediction_of_any_gpus(capsys, seconds, check):
    stats = {"total_time": {"mean": 1e3 * seconds}}
    file = result(sample=MM, mm_processor_stats=stats, completed=98, failed=2)
    command = "h100 l4 --price 2 --concurrency 1"
    found = timed(capsys, f"{command} --from-benchmark {file}")
    given = timed(capsys, f"{command} --preprocess-ms {1e3 * seconds}")
    said = {each["assumptions"]["sentences"].pop(1) for each in (*found, *given)}
    origin = "measured by vllm bench mm-processor over 98 requests, result.json; the same work is"
    measured, as_given = sorted(said, key=len, reverse=True)
    assert (origin in measured, f" ms{check}; 2 of 100 " in measured) == (True, True)
    assert (found == given, "(given)" in as_given) == (True, True)


@pytest.fixture(scope="module")
def kept_once(tmp_path_factory):
    """The configuration after a comparison."""
    config = tmp_path_factory.mktemp("config")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CONFIG_HOME", str(config))
        command = ["time", "h100", "--from-benchmark", str(VLLM), "--server-version", "0.14.1"]
        assert main(command) == 0
    return config


class TestKept:
    @pytest.fixture(autouse=True)
    def _kept(self, kept_once, tmp_path):
        shutil.copytree(kept_once, tmp_path / "config")

    def test_a_later_prediction_is_what_was_measured(self, capsys):
        correction, seconds = correction_of(capsys)
        assert seconds == pytest.approx([0.165, 0.0044])
        figures = [correction[each] for each in ("server_version", "benchmarks", "requests")]
        assert figures == ["0.14.1", ["bench_vllm.json"], 200]

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        "command",
        [
            "time h100",
            "time h100 --format markdown",
            "--engine analytic --gpu h100 --runtime serving",
            "--engine analytic --gpu h100 --runtime serving --full",
            "--engine analytic --gpu h100 --runtime serving --json -",
            "compare tiny base --gpu h100",
            "compare tiny base --gpu h100 --format markdown",
            "archive pages.csv --gpu h100",
            "archive pages.csv --gpu h100 --format json",
            "sweep --gpu h100",
            "plan --pages 9 --gpu h100",
        ],
    )
    def test_every_output_of_seconds_says_it(self, capsys, command):
        sentence = (
            "h100-sxm, serving, vllm, corrected: " if command.endswith("serving") else SENTENCE
        )
        for more, is_said in (((), True), (("--corrections", "0"), False)):
            code, out, err = run(capsys, *command.split(), *more)
            assert (code, sentence in " ".join((out + err).split())) == (0, is_said)

    def test_an_archive_takes_longer_by_the_correction(self, capsys):
        command = "archive pages.csv --gpu h100,l4 --max-new-tokens 800"
        h100, l4 = document(capsys, command)["time"]
        bare, _ = document(capsys, f"{command} --corrections 0")["time"]
        assert h100["pages_per_second"] == pytest.approx(RATE)
        assert bare["gpu_hours"] < h100["gpu_hours"]
        assert SENTENCE not in " ".join(l4["assumptions"])

    def test_keep_0_keeps_nothing_and_the_same_file_twice_counts_once(self, capsys, folder):
        before = sorted(folder.iterdir())
        assert not compared(capsys, result(mean_ttft_ms=200.0), "--keep 0")["kept"]
        found = compared(capsys, VLLM, "--server-version 0.14.1")
        assert found["correction"]["benchmarks"] == ["bench_vllm.json"]
        assert sorted(folder.iterdir()) == before

    def test_a_version_without_a_benchmark_is_refused(self, capsys):
        said = refused(capsys, "h100 --server-version 0.16")
        assert "--server-version 0.16: no benchmark of vllm in that version is kept for" in said
        assert "these GPUs; versions kept: 0.14.1" in said

    @pytest.mark.exhaustive
    def test_devices_lists_and_forgets_them(self, capsys, folder):
        found = document(capsys, "devices --corrections")
        jsonschema.validate(found, schemas()["schema-devices-corrections.json"])
        [record] = found["corrections"]
        assert (record["gpu"], record["file"]) == ("h100-sxm", "bench_vllm.json")
        assert record["id"] in run(capsys, "devices", "--corrections")[1]
        assert document(capsys, "devices l4 --corrections")["corrections"] == []
        for wrong in (("--forget", "abc"), ("--forget", "all"), ("l4", "--forget", record["id"])):
            assert run(capsys, "devices", *wrong)[0] == 2
        assert run(capsys, "devices", "l4", "--forget", "all")[:2] == (0, "")
        assert [*folder.iterdir()] != []
        code, out, _ = run(capsys, "devices", "--forget", record["id"])
        assert (code, out.startswith(f"forgot {record['id']}: bench_vllm.json")) == (0, True)
        assert [*folder.iterdir()] == []

    @sampled(
        ("damage", "named"),
        [*((text, "is not a kept benchmark") for text in ("", "{", "[]", '{"format": 1}', "\xff",
                                                         "[" * 70_000)),
         *((change, next(iter(change))) for change in (
             {"first_token": 0}, {"per_token": 50}, {"first_token": "1"}, {"requests": 0},
             {"gpu": 3}, {"kept": "today"}, {"format": 2}, {"id": "other"}, {"more": 1}))],
        every(6),
    )  # fmt: skip
    def test_a_damaged_one_is_refused_by_name(self, capsys, folder, damage, named):
        [file] = folder.iterdir()
        if isinstance(damage, dict):
            damage = json.dumps(json.loads(file.read_text()) | damage)
        file.write_text(damage, encoding="latin-1")
        for command in (
            "time h100", "devices --corrections", "sweep --gpu h100", "archive x.csv --gpu h100",
        ):  # fmt: skip
            code, _, err = run(capsys, *command.split())
            assert (code, f"corrections/{file.name}'" in err, named in err) == (2, True, True)
        assert run(capsys, "time", "h100", "--corrections", "0")[0] == 0


FAR = "corrections range from 0.2 to 5. The benchmark probably ran another GPU"


@pytest.mark.parametrize(
    ("options", "changes", "said"),
    [
        ("", {}, "needs the one GPU that was measured"),
        ("h100 l4", {}, "needs the one GPU that was measured"),
        ("h100 --concurrency 4", {}, "leave out --concurrency"),
        ("h100 --max-new-tokens 4", {}, "leave out --max-new-tokens"),
        ("h100 --mean-new-tokens 4", {}, "leave out --mean-new-tokens"),
        ("h100 --price 4", {}, "leave out --price"),
        ("h100 --offline", {}, "leave out --offline"),
        ("h100 --corrections 0", {}, "leave out --corrections"),
        ("h100 --runtime eager", {}, "leave out --runtime eager"),
        ("h100 --keep 2", {}, "--keep 2 is invalid; give 0 or 1"),
        ("h100 --server tgi", {}, "server 'tgi' is unknown"),
        ("h100 --server vllm", {"backend": "sglang"},
         "the engine was 'sglang', not vllm; give --server sglang"),
        ("h100 --server-version a~b", {}, "--server-version 'a~b' is not a version"),
        ("nosuch", {}, "no GPU 'nosuch'"),
        ("h100 --arch deepseek-ocr-2", {}, "not DeepSeek-OCR-2; give --arch deepseek-ocr"),
        ("h100", {"model_id": "my-ocr"}, "give --arch deepseek-ocr"),
        ("h100", {"mean_ttft_ms": 5000.0}, "the first token took "),
        ("h100", {"mean_ttft_ms": 2.0}, "the first token took 0.0"),
        ("h100", {"mean_tpot_ms": 44.0}, "a token after the first took "),
        ("h100", {"max_concurrency": None, "mean_tpot_ms": 900.0}, "a request took "),
        (f"h100 --from-benchmark {MM} --server sglang", {}, "engine was 'vllm', not sglang"),
        (f"h100 --from-benchmark {MM} --preprocess-ms 9", {}, "leave out --preprocess-ms"),
        (f"h100 --from-benchmark {MM} --from-benchmark {MM}", {},
         "all measure preprocessing; give one"),
        (f"h100 --from-benchmark {VLLM} --server-version 0.14.1", {"vllm_version": "0.15.0"},
         "the engine's version was 0.15.0, not --server-version 0.14.1"),
        (f"h100 --from-benchmark {VLLM}", {"vllm_version": "0.15.0"},
         "of several versions (unknown, 0.15.0)"),
    ],
)  # fmt: skip
def test_what_contradicts_a_benchmark_is_refused_and_nothing_kept(
    capsys, folder, options, changes, said
):
    found = refused(capsys, f"{options} --from-benchmark {result(**changes)}")
    assert (said in found, FAR in found) == (True, " took " in said)
    assert not folder.exists()


def test_a_folder_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "config").write_text("a file, not a folder")
    code, _, err = run(capsys, "time", "h100", "--from-benchmark", VLLM)
    assert (code, "cannot write to" in err) == (74, True)


# --- modes that servers offer ---------------------------------------------------------------------


def said_of_modes(sentences):
    """What a server does otherwise, of all that is assumed."""
    kinds = " offers ", " does not serve ", " cuts a page "
    return [each for each in sentences if any(of in each for of in kinds)]


OCR, OCR2, UNLIMITED = FAMILY
TILES = (
    "vllm cuts a page into at most 6 local views; pages are priced as the model's own code cuts"
    " them, into up to 9 ("
)


@pytest.mark.parametrize(
    ("name", "mode", "server", "page", "expected"),
    [
        (OCR, "gundam", "vllm", {}, None),
        (OCR, "tiny", "vllm", {},
         "of DeepSeek-OCR's modes vllm offers gundam only, not tiny (since 0.14;"),
        (OCR, "tiny", "sglang", {}, "of DeepSeek-OCR's modes sglang offers gundam only, not"),
        (OCR, "tiny", "vllm-v0", {}, None),
        (OCR, "base", "vllm", {"image_size": 704},
         "of DeepSeek-OCR's modes vllm offers gundam only, not other sizes (since"),
        (OCR, "gundam", "vllm", {"page": (2000, 2000)}, TILES),  # 3 x 3 by the model's own code
        (OCR, "gundam", "vllm", {"page": (2000, 1333)}, None),
        (OCR2, "base", "vllm", {}, "of DeepSeek-OCR-2's modes vllm offers dynamic only"),
        (OCR2, "dynamic", "sglang", {},
         "sglang offers dynamic, but 0.5.9 to 0.5.20 cut tiles of 640 pixels"),
        (OCR2, "dynamic", "vllm-v1", {}, "vllm-v1 does not serve DeepSeek-OCR-2: "),
        (UNLIMITED, "gundam", "vllm", {"page": (5200, 2600)}, None),
        (UNLIMITED, "base", "vllm", {}, "vllm offers base, but 0.25 to 0.32 cut every page"),
        (UNLIMITED, "base", "vllm", {"prompt_pages": 2}, None),
        (UNLIMITED, "tiny", "sglang", {"prompt_pages": 2}, None),
        (UNLIMITED, "large", "sglang", {}, None),
        (UNLIMITED, "large", "sglang", {"prompt_pages": 2},
         "of Unlimited-OCR's modes sglang offers base, tiny, small only, not large ("),
    ],
)  # fmt: skip
def test_a_page_that_a_server_treats_otherwise_is_said(name, mode, server, page, expected):
    architecture = ARCHITECTURES[name]
    sizes = {**dataclasses.asdict(architecture.modes[mode]), "page": (1240, 1754), **page}
    del sizes["name"]
    notes = served_notes(architecture, server, architecture.plan(**sizes))
    assert [each.startswith(expected) for each in notes] == [True] * bool(expected)


def test_of_many_pages_it_is_said_once(capsys):
    notes = said_of_modes(run(capsys, *"sweep --gpu h100 --mode all".split())[2].splitlines())
    assert [note.split(" (")[0].removeprefix("dsocr-analyze: note: ") for note in notes] == [
        "of DeepSeek-OCR's modes vllm offers gundam only, not tiny, small, base, large, gundam-m",
        "vllm cuts a page into at most 6 local views; pages are priced as the model's own code"
        " cuts them, into up to 9",
    ]
    times = document(capsys, "archive pages.csv --gpu h100 --mode tiny,gundam")["time"]
    assert [len(said_of_modes(each["assumptions"])) for each in times] == [1, 1]


def test_of_every_model_and_server_is_known_what_it_offers():
    assert all_served_modes().keys() == ARCHITECTURES.keys()
    for name, rows in all_served_modes().items():
        modes = ARCHITECTURES[name].modes
        named = {
            each
            for row in rows.values()
            for each in (*(row.modes or ()), *row.several, *row.earlier)
        }
        assert (rows.keys(), named <= {*modes}) == (SERVERS.keys(), True)
        assert [*served_notes(ARCHITECTURES[name], "eager", *modes.values())] == []


@pytest.mark.parametrize(
    ("name", "lacking"),
    [("glm-ocr", ["vllm-v1", "vllm-v0"]), ("olmocr", []), ("got-ocr2", [*SERVERS])],
)
def test_a_server_that_lacks_a_model_without_modes_says_so(name, lacking):
    model = ARCHITECTURES[name]
    page = model.plan(page=(800, 900))
    notes = {each: "".join(served_notes(model, each, page)) for each in SERVERS}
    assert [each for each, said in notes.items() if said] == lacking
    starts = [f"{each} does not serve {model.title}: " for each in lacking]
    assert all(map(str.startswith, map(notes.__getitem__, lacking), starts))
