"""`dsocr-analyze time`, and predicted seconds in reports and comparisons."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest
from command_line import run

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.cli.documents import schemas
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.hardware import device
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths
from dsocr_analyze.timing.page_times import TimedModel
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import EAGER, SERVERS, Precision

CONFIG = json.loads((DEFAULT.reference / "config.json").read_text())
LATENT = {"use_mla": True, "kv_lora_rank": 512, "q_lora_rank": None, "v_head_dim": 128,
          "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}  # fmt: skip
FILES = {
    "lengths.csv": "new_tokens\n" + "100\n" * 9 + "2000\n",
    "latent.json": json.dumps(CONFIG | LATENT),
    "mine.toml": 'name = "mine"\n[gpu]\ntitle = "Mine"\ntensor_tflops = 500\n'
    'bandwidth_gb_s = 2000\nmemory_gb = 48\nsource = "me"\nsms = 100\nl2_mb = 50\n'
    'like = "h100-sxm"\n',
}


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name, content in FILES.items():
        Path(name).write_text(content)


def document(capsys, command):
    """The JSON that a command prints, besides which it says nothing."""
    code, out, err = run(capsys, *command.split())
    assert (code, err) == (0, "")
    return json.loads(out)


def timed(capsys, options):
    return document(capsys, f"time {options} --format json")["time"]


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
        ("h100 --runtime eager --max-new-tokens 3 --concurrency 2", (2,), 3, {"host": EAGER}),
    ],
)  # fmt: skip
def test_an_entry_is_what_predict_says(capsys, options, counts, new_tokens, assumed):
    dimensions = ModelDirectory.read(DEFAULT.reference).dimensions()
    model = TimedModel(DEFAULT, dimensions, BFLOAT16, False, device(options.split()[0]))
    page = DEFAULT.plan(page=(1240, 1754), max_new_tokens=new_tokens)
    entry = predict(model, page, Assumptions(**{"host": SERVERS["vllm"]} | assumed), counts)
    assert timed(capsys, options) == [json.loads(msgspec.json.encode(entry))]


@pytest.mark.exhaustive
def test_entries_are_those_of_every_gpu_and_runtime(capsys):
    found = timed(capsys, "h100 L40S --runtime eager,serving --concurrency 2")
    assert [(entry["gpu"], entry["runtime"]) for entry in found] == [
        ("h100-sxm", "eager"), ("h100-sxm", "serving"), ("l40s", "eager"), ("l40s", "serving"),
    ]  # fmt: skip
    _, out, err = run(capsys, "time", "--format", "json")
    gpus = [entry["gpu"] for entry in json.loads(out)["time"]]
    assert ("t4" in gpus, len(gpus) == len(set(gpus)) > 20) == (False, True)
    assert "left out: T4 has no bfloat16" in err


def test_a_profile_of_the_users_own_adds_a_gpu(capsys):
    [entry] = timed(capsys, "mine --profile mine.toml")
    assert entry["gpu"] == "mine"
    assert "gemm.bfloat16" in entry["profile"]["extrapolated"]


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
        ("time h100 --workers 0", "--workers 0 is too small; give 1 or more"),
        ("time h100 --price 0", "--price 0 is out of range"),
        ("time h100 --reserved 1", "--reserved 1"),
        ("time h100 --share-at-limit 0.1", "needs --mean-new-tokens"),
        ("time h100 --new-tokens-from nowhere.csv", "nowhere.csv"),
        ("time h100 --new-tokens-from lengths.csv --mean-new-tokens 4",
         "leave out --mean-new-tokens"),
        ("time h100 --plot load.gif", "load.gif"),
        ("time h100 --runtime eager --weights-dtype int8", "--runtime serving"),
        ("--engine analytic --price 3", "give --gpu too, or leave it out"),
        ("--runtime eager", "give --gpu too, or leave it out"),
        ("compare tiny --concurrency 4", "give --gpu too, or leave it out"),
        # Before the model is built.
        ("--dtype float32 --gpu h100", "attention was measured in 16 bits only"),
    ],
)  # fmt: skip
def test_what_is_not_possible_is_refused_by_name(capsys, command, said):
    code, out, err = run(capsys, *command.split())
    assert (code, out, err.count("\n"), said in err) == (2, "", 1, True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("time h100 --price 2",
         ["nothing was run", "h100-sxm, serving, vllm: one page alone, predicted",
          "per 1,000 pages", "error assumed, not measured: masked_attention"]),
        ("time h100 --format markdown", ["| --- |", "---: |", "## Assumptions"]),
        ("compare tiny --gpu h100", ["Assumed: serving: every page generates 1024 tokens"]),
    ],
)  # fmt: skip
def test_tables_name_gpu_and_runtime_and_the_assumptions_follow(capsys, monkeypatch, command, said):
    monkeypatch.setenv("COLUMNS", "132")
    code, out, _ = run(capsys, *command.split())
    assert (code, [each for each in said if each not in out]) == (0, [])


@pytest.mark.exhaustive
@pytest.mark.parametrize(("runtime", "expected"), [("eager", 0), ("serving", 2)])
def test_latent_attention_is_not_served_but_runs_eagerly(capsys, runtime, expected):
    code, _, err = run(capsys, "time", "h100", "--config", "latent.json", "--runtime", runtime)
    assert (code, "'use_mla' is true" in err) == (expected, expected == 2)


@pytest.mark.exhaustive
def test_a_plot_is_written_and_torch_is_not_imported():
    code = (
        "import sys\nfrom dsocr_analyze.cli import main\n"
        "assert main('time h100 l40s --runtime eager,serving --plot load.svg'.split()) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    text = Path("load.svg").read_text()
    assert ("pages per second" in text, ">l40s" in text) == (True, True)


@pytest.mark.exhaustive
def test_the_report_and_the_command_predict_the_same(capsys):
    options = "--gpu l40s --gpu h100 --runtime serving --concurrency 1,4,16"
    report = document(capsys, f"--engine analytic {options} --json -")
    jsonschema.validate(report, schemas()["schema.json"])
    assert report["time"] == timed(capsys, "l40s h100")
    assert document(capsys, "--engine analytic --json -")["time"] == []


def test_compare_puts_predicted_seconds_side_by_side_and_says_what_they_assume(capsys):
    found = document(capsys, "compare tiny gundam --gpu h100 --price 2 --format json")
    rows = {row["key"]: row for row in found["rows"]}
    tiny, gundam = rows["h100_sxm_serving_ttft_seconds"]["values"]
    assert tiny < gundam
    assert rows["h100_sxm_serving_cost_per_thousand_pages_1"]["unit"] == "price"
    without = document(capsys, "compare tiny --format json")
    assert (bool(found["assumptions"]), without["assumptions"]) == (True, [])
