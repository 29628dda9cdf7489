"""`time --from-benchmark`, and what it keeps for every later prediction."""

import json
import shutil
import threading
from pathlib import Path

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import run
from sampling import every, sampled

from dsocr_analyze.archive.table_files import METADATA_KEY
from dsocr_analyze.cli import kept_files, main
from dsocr_analyze.cli.documents import schemas
from dsocr_analyze.timing.correction import KeptBenchmark

DATA = Path(__file__).parent / "data"
VLLM = DATA / "bench_vllm.json"
SENTENCE = "corrected for h100-sxm under vllm"
CONDITIONS = ("--concurrency", "16", "--max-new-tokens", "800")


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "config/dsocr-analyze/corrections"


def document(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--format", "json")
    assert (code, err) == (0, "")
    return json.loads(out)


def compared(capsys, *arguments):
    return document(capsys, "time", "h100", "--from-benchmark", *arguments)


def timed(capsys, *arguments):
    return document(capsys, "time", *arguments)["time"]


def refused(capsys, *arguments):
    code, out, err = run(capsys, "time", *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    return err


def result(name="result.json", **changes):
    """A file beside the test with the sample and some changes."""
    Path(name).write_text(json.dumps(json.loads(VLLM.read_text()) | changes))
    return name


class TestComparison:
    @pytest.mark.exhaustive
    def test_predicted_stands_beside_measured(self, capsys):
        [load] = timed(capsys, "h100", *CONDITIONS)[0]["throughput"]
        found = compared(capsys, VLLM, "--server-version", "0.14.1")
        assert list(found) == [
            "schema_version", "command", "options", "model", "workload", "benchmarks", "correction",
            "kept",
        ]  # fmt: skip
        jsonschema.validate(found, schemas()["schema-time-from-benchmark.json"])
        [entry] = found["benchmarks"]
        figures = {each["name"]: each for each in entry["figures"]}
        assert list(figures) == [
            "pages_per_second", "tokens_per_second", "ttft_seconds", "tpot_seconds",
        ]  # fmt: skip
        for name, figure in figures.items():
            assert figure["predicted"] == pytest.approx(load[name])
            assert figure["error"] == pytest.approx(figure["predicted"] / figure["measured"] - 1)
        assert figures["ttft_seconds"]["measured"] == 0.165
        assert figures["tpot_seconds"]["measured"] == 0.0044
        assert figures["pages_per_second"]["measured"] == 4.329004
        # A single benchmark's two factors make the two times right; the throughput follows.
        assert figures["ttft_seconds"]["corrected"] == pytest.approx(0.165)
        assert figures["tpot_seconds"]["corrected"] == pytest.approx(0.0044)
        rate = 16 / (0.165 + 799 * 0.0044)
        assert figures["pages_per_second"]["corrected"] == pytest.approx(rate)
        assert (entry["server"], entry["server_version"], entry["concurrency"]) == (
            "vllm", "0.14.1", 16,
        )  # fmt: skip
        assert entry["first_token"] == pytest.approx(0.165 / load["ttft_seconds"])
        assert found["correction"]["first_token"] == pytest.approx(entry["first_token"])
        assert found["kept"]

    @pytest.mark.exhaustive
    def test_several_pages_of_a_prompt_are_several_pages_a_second(self, capsys):
        file = result(mean_e2el_ms=3680.0, model_id="baidu/Unlimited-OCR")
        arguments = (file, "--prompt-pages", "2", "--arch", "unlimited-ocr", "--mode", "base")
        command = ("time", "h100", "--from-benchmark", *arguments, "--format", "json")
        _, out, _ = run(capsys, *command)  # it says on stderr that the window is on
        [entry] = json.loads(out)["benchmarks"]
        figures = {each["name"]: each["measured"] for each in entry["figures"]}
        assert figures["pages_per_second"] == pytest.approx(2 * 4.329004)
        assert figures["request_seconds"] == 3.68

    @pytest.mark.exhaustive
    def test_the_table_and_the_markdown_say_it_all(self, capsys):
        code, out, err = run(capsys, "time", "h100", "--from-benchmark", VLLM)
        assert (code, err) == (0, "")
        said = " ".join(out.split())
        assert "predictions and bench_vllm.json, vllm bench serve; 200 requests, 16 at" in said
        assert " first token " in said
        assert SENTENCE in " ".join(out.split())
        assert "kept in " in out
        code, out, err = run(capsys, "time", "h100", "--from-benchmark", VLLM, "--format",
                             "markdown", "--keep", "0")  # fmt: skip
        assert (code, err) == (0, "")
        assert "| what | predicted | measured | error | corrected | error |" in out
        assert "\n- corrections not kept\n" in out

    @pytest.mark.exhaustive
    def test_what_is_doubtful_is_said(self, capsys):
        file = result(failed=2, completed=198, max_concurrency=None, total_input_tokens=10**6)
        doubts = compared(capsys, file)["benchmarks"][0]["doubts"]
        assert any("2 of 200 requests failed" in each for each in doubts)
        assert any("a burst rather than a steady load" in each for each in doubts)
        assert any("5,051 tokens on average, but the predicted page has 913" in each
                   for each in doubts)  # fmt: skip
        _, out, _ = run(capsys, "time", "h100", "--from-benchmark", file)
        assert "Note: result.json: 2 of 200 requests failed" in out

    def test_of_a_burst_only_the_whole_request_corrects(self, capsys):
        [load] = timed(capsys, "h100", "--concurrency", "200", "--max-new-tokens", "800")[0][
            "throughput"
        ]
        file = result(max_concurrency=None, mean_ttft_ms=6000.0, mean_tpot_ms=30.0)
        [entry] = compared(capsys, file)["benchmarks"]
        assert (entry["concurrency"], entry["steady"]) == (200, False)
        assert entry["first_token"] == entry["per_token"]
        expected = (6 + 799 * 0.03) / load["page_seconds"]
        assert entry["first_token"] == pytest.approx(expected)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("program", ["sglang.jsonl", "genai_perf.json"])
    def test_other_programs_results_are_compared(self, capsys, program):
        found = compared(capsys, DATA / f"bench_{program}")
        assert found["kept"]
        for entry in found["benchmarks"]:
            names = [each["name"] for each in entry["figures"]]
            assert names[-1] == "request_seconds"

    @pytest.mark.exhaustive
    def test_a_files_own_server_is_taken_where_none_is_named(self, capsys):
        entry = compared(capsys, DATA / "bench_sglang.jsonl")["benchmarks"][0]
        assert (entry["server"], entry["server_version"]) == ("sglang", "0.5.5")
        said = refused(capsys, "h100", "--server", "vllm", "--from-benchmark",
                       DATA / "bench_sglang.jsonl")  # fmt: skip
        assert "the engine was 'sglang', not vllm; give --server sglang" in said


@pytest.fixture(scope="module")
def kept_once(tmp_path_factory):
    """The corrections folder after a comparison."""
    config = tmp_path_factory.mktemp("config")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CONFIG_HOME", str(config))
        command = ["time", "h100", "--from-benchmark", str(VLLM), "--server-version", "0.14.1"]
        assert main(command) == 0
    return config / "dsocr-analyze/corrections"


class TestKept:
    @pytest.fixture(autouse=True)
    def _kept(self, kept_once, folder):
        shutil.copytree(kept_once, folder)

    def test_a_later_prediction_is_what_was_measured(self, capsys):
        [entry] = timed(capsys, "h100", *CONDITIONS)
        [load] = entry["throughput"]
        assert load["ttft_seconds"] == pytest.approx(0.165)
        assert load["tpot_seconds"] == pytest.approx(0.0044)
        correction = entry["assumptions"]["correction"]
        assert correction["server_version"] == "0.14.1"
        assert correction["benchmarks"] == ["bench_vllm.json"]
        assert correction["requests"] == 200
        assert SENTENCE in entry["assumptions"]["sentences"][-1]

    def test_without_corrections_nothing_is_corrected(self, capsys):
        [entry] = timed(capsys, "h100", *CONDITIONS, "--corrections", "0")
        assert entry["assumptions"]["correction"] is None
        assert entry["throughput"][0]["ttft_seconds"] < 0.15
        assert SENTENCE not in json.dumps(entry)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("other", [("l40s",), ("h100", "--server", "sglang"),
                                       ("h100", "--runtime", "eager"),
                                       ("h100", "--arch", "deepseek-ocr-2")])  # fmt: skip
    def test_what_was_not_measured_is_not_corrected(self, capsys, other):
        for entry in timed(capsys, *other):
            assert entry["assumptions"]["correction"] is None

    @pytest.mark.exhaustive
    def test_every_output_of_seconds_says_it(self, capsys):
        pq.write_table(pa.table({"width": [1240], "height": [1754]}), "pages.parquet")
        for command in (
            ("time", "h100"),
            ("time", "h100", "--format", "markdown"),
            ("--engine", "analytic", "--gpu", "h100", "--runtime", "serving", "--full"),
            ("--engine", "analytic", "--gpu", "h100", "--runtime", "serving", "--json", "-"),
            ("compare", "tiny", "base", "--gpu", "h100"),
            ("compare", "tiny", "base", "--gpu", "h100", "--format", "markdown"),
            ("archive", "pages.parquet", "--gpu", "h100"),
            ("archive", "pages.parquet", "--gpu", "h100", "--format", "json"),
        ):
            code, out, _ = run(capsys, *command)
            assert code == 0
            assert SENTENCE in " ".join(out.split()), command
            code, out, _ = run(capsys, *command, "--corrections", "0")
            assert code == 0
            assert SENTENCE not in " ".join(out.split()), command

    @pytest.mark.exhaustive
    def test_the_answer_says_that_seconds_are_corrected(self, capsys):
        command = ("--engine", "analytic", "--gpu", "h100", "--runtime", "serving")
        assert "h100-sxm, serving, corrected: " in run(capsys, *command)[1]
        assert "corrected" not in run(capsys, *command, "--corrections", "0")[1]

    @pytest.mark.exhaustive
    def test_the_written_report_says_it(self, capsys, tmp_path):
        code, _, _ = run(capsys, "--engine", "analytic", "--gpu", "h100", "--runtime", "serving",
                         "--output", tmp_path / "ops", "-q")  # fmt: skip
        assert code == 0
        assert SENTENCE in (tmp_path / "ops/static_compute.md").read_text()
        document = json.loads((tmp_path / "ops/static_compute.json").read_text())
        jsonschema.validate(document, schemas()["schema.json"])
        assert document["time"][0]["assumptions"]["correction"]["server_version"] == "0.14.1"

    @pytest.mark.exhaustive
    def test_a_sweep_says_it_beside_its_rows_and_in_its_file(self, capsys):
        code, out, err = run(capsys, "sweep", "--gpu", "h100,l4", "--max-new-tokens", "800")
        assert code == 0
        assert SENTENCE in err
        code, bare, err = run(capsys, "sweep", "--gpu", "h100,l4", "--max-new-tokens", "800",
                              "--corrections", "0")  # fmt: skip
        assert (code, SENTENCE in err) == (0, False)
        [_, h100, l4], [_, h100_bare, l4_bare] = out.splitlines(), bare.splitlines()
        assert l4 == l4_bare
        assert h100 != h100_bare
        assert run(capsys, "sweep", "--gpu", "h100", "--output", "rows.parquet")[0] == 0
        metadata = pq.read_schema("rows.parquet").metadata
        assert any(
            SENTENCE in each for each in json.loads(metadata[METADATA_KEY])["metadata"]["notes"]
        )

    @pytest.mark.exhaustive
    def test_an_archive_takes_longer_by_the_correction(self, capsys):
        pq.write_table(pa.table({"width": 5 * [1240], "height": 5 * [1754]}), "pages.parquet")
        arguments = ("archive", "pages.parquet", "--gpu", "h100,l4", "--max-new-tokens", "800")
        h100, l4 = document(capsys, *arguments)["time"]
        assert h100["pages_per_second"] == pytest.approx(16 / (0.165 + 799 * 0.0044))
        assert not any(SENTENCE in each for each in l4["assumptions"])
        bare, _ = document(capsys, *arguments, "--corrections", "0")["time"]
        assert bare["gpu_hours"] < h100["gpu_hours"]

    def test_keep_0_keeps_nothing(self, capsys, folder):
        before = sorted(folder.iterdir())
        found = compared(capsys, result(mean_ttft_ms=200.0), "--keep", "0")
        assert not found["kept"]
        assert sorted(folder.iterdir()) == before

    def test_the_same_file_twice_counts_once(self, capsys, folder):
        found = compared(capsys, VLLM, "--server-version", "0.14.1")
        assert found["correction"]["benchmarks"] == ["bench_vllm.json"]
        assert len(list(folder.iterdir())) == 1

    @pytest.mark.exhaustive
    def test_several_are_combined_and_their_spread_is_the_band(self, capsys):
        other = result("other.json", mean_ttft_ms=165.0 * 1.21, mean_tpot_ms=4.4 * 1.44)
        found = compared(capsys, other, "--server-version", "0.14.1")
        assert found["correction"]["benchmarks"] == ["bench_vllm.json", "other.json"]
        assert found["correction"]["first_token_error"] == pytest.approx(0.21)
        assert found["correction"]["per_token_error"] == pytest.approx(0.44)
        [entry] = timed(capsys, "h100", *CONDITIONS)
        [load] = entry["throughput"]
        assert load["ttft_seconds"] == pytest.approx(0.165 * 1.1)
        assert load["tpot_seconds"] == pytest.approx(0.0044 * 1.2)
        band = entry["bands"]["tpot_seconds"]
        assert band["high"] / entry["tpot_seconds"] == pytest.approx(1.44)

    @pytest.mark.exhaustive
    def test_versions_are_kept_apart(self, capsys):
        compared(capsys, result(mean_ttft_ms=330.0), "--server-version", "0.15.0")
        old = timed(capsys, "h100", *CONDITIONS, "--server-version", "0.14.1")[0]
        new = timed(capsys, "h100", *CONDITIONS, "--server-version", "0.15.0")[0]
        assert old["throughput"][0]["ttft_seconds"] == pytest.approx(0.165)
        assert new["throughput"][0]["ttft_seconds"] == pytest.approx(0.33)
        assert "other versions with benchmarks: 0.15.0" in old["assumptions"]["sentences"][-1]
        said = refused(capsys, "h100", "--server-version", "0.16")
        assert "no benchmark of vllm 0.16 is kept for these GPUs; there are 0.14.1, 0.15.0" in said
        assert run(capsys, "sweep", "--gpu", "h100", "--server-version", "0.16")[0] == 2

    @pytest.mark.exhaustive
    def test_an_unknown_version_is_kept_and_said(self, capsys):
        found = compared(capsys, result(mean_ttft_ms=170.0))
        assert found["correction"]["server_version"] == "unknown"

    @pytest.mark.exhaustive
    def test_devices_lists_and_forgets_them(self, capsys, folder):
        found = json.loads(run(capsys, "devices", "--corrections", "--format", "json")[1])
        jsonschema.validate(found, schemas()["schema-devices-corrections.json"])
        [record] = found["corrections"]
        assert (record["gpu"], record["file"]) == ("h100-sxm", "bench_vllm.json")
        code, out, _ = run(capsys, "devices", "--corrections")
        assert (code, record["id"] in out) == (0, True)
        of_l4 = json.loads(run(capsys, "devices", "l4", "--corrections", "--format", "json")[1])
        assert of_l4["corrections"] == []
        for wrong in (("--forget", "abc"), ("--forget", "all"), ("l4", "--forget", record["id"])):
            assert run(capsys, "devices", *wrong)[0] == 2
        assert len(list(folder.iterdir())) == 1
        assert run(capsys, "devices", "l4", "--forget", "all")[:2] == (0, "")
        code, out, _ = run(capsys, "devices", "--forget", record["id"])
        assert (code, out.startswith(f"forgot {record['id']}: bench_vllm.json")) == (0, True)
        assert timed(capsys, "h100")[0]["assumptions"]["correction"] is None

    @sampled("text", ["", "{", "[]", '{"format": 1}', "\xff", "[" * 70_000], every(3))
    def test_a_damaged_one_is_refused_by_name(self, capsys, folder, text):
        (folder / "bad.json").write_text(text, encoding="latin-1")
        for command in (
            ("time", "h100"),
            ("devices", "--corrections"),
            ("sweep", "--gpu", "h100"),
            ("archive", "x.csv", "--gpu", "h100"),
        ):
            code, _, err = run(capsys, *command)
            assert code == 2
            assert "corrections/bad.json' is not a kept benchmark" in err
        assert run(capsys, "time", "h100", "--corrections", "0")[0] == 0

    @sampled(
        ("key", "value"),
        [("first_token", 0), ("per_token", 50), ("first_token", "1"), ("requests", 0),
         ("gpu", 3), ("kept", "today"), ("format", 2), ("id", "other"), ("more", 1)], every(4),
    )  # fmt: skip
    def test_an_impossible_value_is_refused(self, capsys, folder, key, value):
        [file] = folder.iterdir()
        file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
        said = refused(capsys, "h100")
        assert file.name in said
        assert f"`$.{key}`" in said or repr(value) in said or key in said


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ((), "needs the one GPU that was measured"),
            (("h100", "l4"), "needs the one GPU that was measured"),
            (("h100", "--concurrency", "4"), "leave out --concurrency"),
            (("h100", "--max-new-tokens", "4"), "leave out --max-new-tokens"),
            (("h100", "--mean-new-tokens", "4"), "leave out --mean-new-tokens"),
            (("h100", "--price", "4"), "leave out --price"),
            (("h100", "--offline"), "leave out --offline"),
            (("h100", "--corrections", "0"), "leave out --corrections"),
            (("h100", "--runtime", "eager"), "leave out --runtime eager"),
            (("h100", "--keep", "2"), "--keep 2 is invalid; give 0 or 1"),
            (("h100", "--server", "tgi"), "server 'tgi' is unknown"),
            (("h100", "--server", "sglang", "--server-version", "a b"), "--server-version 'a b'"),
            (("nosuch",), "no GPU 'nosuch'"),
            (("h100", "--arch", "deepseek-ocr-2"), "not DeepSeek-OCR-2; give --arch deepseek-ocr"),
        ],
    )
    def test_options_that_contradict_a_benchmark(self, capsys, folder, arguments, said):
        found = refused(capsys, *arguments, "--from-benchmark", VLLM)
        assert said.replace("--server-version 'a b'", "--server-version") in found
        assert not folder.exists()

    def test_keep_is_for_benchmarks(self, capsys):
        assert "--keep 0 is for --from-benchmark" in refused(capsys, "h100", "--keep", "0")
        said = refused(capsys, "h100", "--corrections", "0", "--server-version", "1")
        assert "--server-version 1 selects the benchmarks that correct, and --corrections 0" in said

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"mean_ttft_ms": 5000.0}, "the first token took 45."),
            ({"mean_ttft_ms": 2.0}, "the first token took 0.01"),
            ({"mean_tpot_ms": 44.0}, "a token after the first took 13."),
            ({"max_concurrency": None, "mean_tpot_ms": 900.0}, "a request took "),
        ],
    )
    def test_a_benchmark_far_from_its_prediction(self, capsys, folder, changes, said):
        found = refused(capsys, "h100", "--from-benchmark", result(**changes))
        assert said in found
        assert "corrections range from 0.2 to 5. The benchmark probably ran another GPU" in found
        assert not folder.exists()

    def test_files_of_several_versions(self, capsys):
        one = result("one.json", vllm_version="0.14.1")
        two = result("two.json", vllm_version="0.15.0")
        said = refused(capsys, "h100", "--from-benchmark", one, "--from-benchmark", two)
        assert "of several versions (0.14.1, 0.15.0)" in said

    @pytest.mark.exhaustive
    def test_another_model_unless_somebody_says_what_it_is(self, capsys):
        file = result(model_id="my-ocr")
        assert "give --arch deepseek-ocr" in refused(capsys, "h100", "--from-benchmark", file)
        found = compared(capsys, file, "--arch", "deepseek-ocr")
        assert "the file calls the model 'my-ocr'" in found["benchmarks"][0]["doubts"][0]

    def test_a_folder_that_cannot_be_written(self, capsys, tmp_path):
        (tmp_path / "config").write_text("a file, not a folder")
        code, _, err = run(capsys, "time", "h100", "--from-benchmark", VLLM)
        assert code == 74
        assert "cannot write to" in err


def test_programs_that_keep_at_the_same_time_lose_nothing(tmp_path):
    def kept(number):
        return KeptBenchmark(
            id=f"{number:04}", gpu="h100-sxm", server="vllm", version="1", architecture="x",
            basis="b", first_token=1.0, per_token=1.0, requests=1, concurrency=1, file="f",
            kept="2026-01-31T12:00:00Z",
        )  # fmt: skip

    def keep_some(first):
        for number in range(first, first + 10):
            kept_files.keep([kept(number)])

    threads = [threading.Thread(target=keep_some, args=(first,)) for first in range(0, 80, 10)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found = kept_files.kept_benchmarks()
    assert sorted(each.id for each in found) == [f"{n:04}" for n in range(80)]
    assert len(list((tmp_path / "config/dsocr-analyze/corrections").iterdir())) == 80
