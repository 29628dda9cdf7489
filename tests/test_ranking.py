"""`compare --all`: one table of all models, ranked, with published accuracies."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest
from command_line import run
from sampling import first, sampled
from write_schema import schemas

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.architectures.accuracy import published_accuracies
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.report.comparison import ComparisonDocument

GPU = ("--gpu", "h100", "--price", "2.5")


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "1000")


def document(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--format", "json")
    assert code == 0, err
    return json.loads(out)


draw = random.Random(32)
PAGES = [
    (f"{draw.randint(30, 3000)}x{draw.randint(30, 3000)}", draw.choice([1, 700, 2048]),
     draw.randint(2, 200))
    for _ in range(6)
]  # fmt: skip
"""Pages, new tokens, and numbers of pages in flight."""


@sampled(("page", "new_tokens", "at_once"), PAGES, first(1))
def test_figures_are_those_of_time_and_of_the_main_job(capsys, page, new_tokens, at_once):
    of_page = ("--page", page, "--max-new-tokens", new_tokens)
    on_gpu = (*GPU, "--concurrency", f"1,{at_once}")
    columns = document(capsys, "compare", "--all", *of_page, *on_gpu)["columns"]
    usual = {f"{name}:{each.default_mode}" for name, each in ARCHITECTURES.items()}
    assert {each["name"] for each in columns} == usual
    for column in columns:
        arch, mode = column["name"].split(":")
        asked = ("--arch", arch, "--mode", mode, *of_page)
        report = document(capsys, *asked, "--engine", "analytic")
        [entry] = document(capsys, "time", *asked, *on_gpu)["time"]
        alone, loaded = entry["throughput"]
        wanted = {
            "visual_tokens": report["workload"]["visual_tokens"],
            "seq_len": report["workload"]["seq_len"],
            "prefill_pass_flops": report["total"]["flops"],
            "decode_step_flops": report["total"]["decode_step"]["flops"],
            "weights_bytes": report["memory"]["weights_bytes"],
            "kv_cache_bytes": report["memory"]["kv_cache_bytes"],
            "h100_sxm_serving_ttft_seconds": entry["ttft_seconds"],
            "h100_sxm_serving_pages_per_second_1": alone["pages_per_second"],
            f"h100_sxm_serving_pages_per_second_{at_once}": loaded["pages_per_second"],
            f"h100_sxm_serving_cost_per_thousand_pages_{at_once}":
                loaded["cost_per_thousand_pages"],
        }  # fmt: skip
        assert {key: column["figures"][key] for key in wanted} == wanted


ORDERED = [
    # The options, the key that they sort by, and whether its largest value is the best.
    (GPU, "h100_sxm_serving_pages_per_second_32", True),
    (("--sort", "omnidocbench_v1_5"), "accuracy_omnidocbench_v1_5", True),
    (("--sort", "cost", *GPU), "h100_sxm_serving_cost_per_thousand_pages_32", False),
    (("--sort", "first-token", "--gpu", "l40s,h100"), "h100_sxm_serving_ttft_seconds", False),
    ((), "weights_bytes", False),
    (("--sort", "prompt"), "seq_len", False),
    (("--sort", "accuracy"), "accuracy_omnidocbench_v1_5_as_reported", True),
]


@sampled(("asked", "key", "descends"), ORDERED, first(2))
def test_models_are_sorted_as_asked_and_those_without_a_value_come_last(
    capsys, asked, key, descends
):
    found = document(capsys, "compare", "--all", *asked)
    values = [each["figures"][key] for each in found["columns"]]
    known = [value for value in values if value is not None]
    assert found["ranking"]["sorted_by"] == key
    assert values == sorted(known, reverse=descends) + [None] * (len(values) - len(known))
    jsonschema.validate(found, schemas()["schema-compare.json"])
    assert json.loads(msgspec.json.encode(msgspec.convert(found, ComparisonDocument))) == found


def test_models_that_cannot_be_counted_are_named_in_a_table(capsys, monkeypatch):
    def refuse(**_):
        raise ConfigError("no page is planned here")

    monkeypatch.setattr(ARCHITECTURES["deepseek-ocr"], "plan", refuse)
    out = run(capsys, "compare", "--all", "--page", "a4@100", "--gpu", "h100")[1]
    assert re.search(r"Left out\nmodel +why\n─+\ndeepseek-ocr:gundam +no page is planned", out)
    assert (
        "\nEvery model reads the same page at 100 dpi; predicted: h100-sxm, serving, vllm\n" in out
    )


def test_what_holds_of_no_model_is_refused(capsys):
    needs = "to sort by; what is predicted needs --gpu, and cost needs --price, too; give prompt,"
    for asked, said in (
        ("--all --page 0x5", "0"), ("--all --sort cost", f"no model has 'cost' {needs}"),
        ("tiny --sort cost", "--all"), ("--all --sort prefil", "did you mean prefill? what is"),
    ):  # fmt: skip
        code, out, err = run(capsys, "compare", *asked.split())
        assert (code, out, said in err) == (2, "", True), err


def test_torch_is_not_imported():
    code = (
        "import sys; from dsocr_analyze.cli import main;"
        "assert main(['compare', '--all', '--gpu', 'h100']) == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_every_score_says_what_it_is_of_and_every_model_has_one_or_is_named(capsys):
    known = set()
    for benchmark in published_accuracies().values():
        assert benchmark.unit.endswith("higher is better")
        for each in benchmark.published:
            assert re.search(r"^arXiv \d{4}\.\d{5}$|^\w+\.\w+/", each.source)
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", each.looked_up)
            assert re.match("(by|from) .*, (on whole pages|in regions)", each.measured)
        scores = [score for each in benchmark.published for score in each.scores]
        for score in scores:  # an architecture's figure is of the counted release, if any is
            assert score.model
            assert benchmark.first[score.architecture].counted or not score.counted
        known |= benchmark.first.keys()
    lacking = ", ".join(name for name in ARCHITECTURES if name not in known)
    said = run(capsys, "compare", "--all", "--sort", "prompt", "--html", "all.html")[1]
    assert ("no published score is known of" in said) == bool(lacking)
    assert "by its authors, on whole pages: Unlimited-OCR" in Path("all.html").read_text()
