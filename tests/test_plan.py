"""`dsocr-analyze plan`: its arithmetic is that of `time` and `archive`, and what it refuses."""

import json
import math
import random
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from command_line import run
from hypothesis import given, strategies as st
from pyarrow import csv
from write_schema import schemas

from dsocr_analyze import plan
from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.cli import main
from dsocr_analyze.timing import assumptions, predict

ROOT = Path(__file__).parent.parent
PAGES = ("a5", "a4@200", "a3@300", "700x500")


def document(capsys, *command):
    """The JSON of a command, which fits its schema; stderr has at most a note on the window."""
    code, out, err = run(capsys, *command, "--format", "json")
    assert (code, err.replace("dsocr-analyze: note: ", "")[:18]) in (
        (0, ""),
        (0, "the sliding window"),
    )
    found = json.loads(out)
    jsonschema.validate(found, schemas()[f"schema-{command[0]}.json"])
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_of_equal_pages_is_what_time_says_of_one(capsys, seed):
    drawn = random.Random(seed)
    architecture = drawn.choice(["deepseek-ocr", "deepseek-ocr-2", "unlimited-ocr", "qwen3-vl"])
    page, engine = drawn.choice(PAGES), drawn.choice(["vllm", "sglang"])
    gpu = drawn.choice(["h100-sxm", "l40s", "a100-40gb", "l4"])
    tokens, deadline, price = drawn.randint(2, 4000), drawn.uniform(0.01, 99), drawn.uniform(0.1, 9)
    same = ("--arch", architecture, "--page", page, "--max-new-tokens", tokens, "--server", engine,
            *drawn.choice([(), ("--workers", drawn.randint(1, 6))]),
            *drawn.choice([(), ("--preprocess-ms", drawn.randint(1, 900))]))  # fmt: skip
    asked = ("--pages", "12345", "--deadline", f"{deadline:.6f}", "--first-token", "1500ms")
    [plan] = document(
        capsys, "plan", *same, *asked, "--gpu", gpu, "--price", price
    )["gpus"]  # fmt: skip
    names = {each["concurrency"]: each for each in plan["points"].values()}
    [entry] = document(
        capsys, "time", gpu, *same, "--price", price,
        "--concurrency", ",".join(map(str, names)) + ",knee,max",
    )["time"]  # fmt: skip
    assert plan["workers"] == entry["assumptions"]["workers"]
    [named] = document(capsys, "time", gpu, *same, "--concurrency", "knee,max")["time"]
    found = [each["concurrency"] for each in named["throughput"]]
    points = plan["points"]
    assert found == [points["knee"]["concurrency"], points["max"]["concurrency"]]
    assert {each["concurrency"] for each in entry["throughput"]} == {*names}
    assert plan["largest_concurrency"] == entry["largest_concurrency"]
    for load in entry["throughput"]:
        point = names[load["concurrency"]]
        for key in ("pages_per_second", "ttft_seconds", "page_seconds", "memory_bytes",
                    "cost_per_thousand_pages"):  # fmt: skip
            assert point[key] == pytest.approx(load[key], rel=1e-9), key
        assert point["bound"] == load["bound"]
        hours = 12345 / load["pages_per_second"] / 3600
        assert point["gpu_hours"] == pytest.approx(hours, rel=1e-9)
        band = load["pages_per_second_band"]
        assert point["gpu_hours_band"]["low"] == pytest.approx(12345 / band["high"] / 3600)
        assert point["gpu_hours_band"]["high"] == pytest.approx(12345 / band["low"] / 3600)
        assert point["cost"] == pytest.approx(hours * price)
        assert point["gpus"] == max(1, math.ceil(hours / round(deadline, 6)))
        assert point["hours"] == pytest.approx(hours / point["gpus"])


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_of_a_mix_is_what_archive_says_of_its_pages(capsys, tmp_path, seed):
    drawn = random.Random(seed)
    counts, scale = [drawn.randint(1, 40) for _ in PAGES], drawn.randint(1, 50)
    mode, gpu = drawn.choice(["gundam", "base", "tiny"]), drawn.choice(["h100-sxm", "rtx-4090"])
    workers = drawn.randint(1, 8)
    sizes = {
        "a5": (874, 1240),
        "a4@200": (1654, 2339),
        "a3@300": (3508, 4961),
        "700x500": (700, 500),
    }
    pages = [
        size for name, count in zip(sizes, counts, strict=True) for size in [sizes[name]] * count
    ]
    listed, whole = tmp_path / "pages.csv", tmp_path / "all.csv"
    for path, some in ((listed, pages), (whole, pages * scale)):
        csv.write_csv(pa.table(dict(zip(("width", "height"), np.array(some).T, strict=True))), path)
    mix = ",".join(f"{name}:{count}" for name, count in zip(sizes, counts, strict=True))
    same = ("--mode", mode, "--gpu", gpu, "--workers", workers, "--price", 2, "--deadline", "30m")
    number = scale * len(pages)
    mixed = document(capsys, "plan", "--mix", mix, "--pages", number, *same)
    sampled = document(capsys, "plan", listed, "--pages", number, *same)
    [plan], [other] = mixed["gpus"], sampled["gpus"]
    assert (mixed["pages"], plan["planned"]) == (number, other["planned"])
    for name, point in plan["points"].items():
        for key in ("concurrency", "gpus", "bound", "memory_bytes"):
            assert point[key] == other["points"][name][key], (name, key)
        assert point["gpu_hours"] == pytest.approx(other["points"][name]["gpu_hours"], rel=1e-9)
        [total] = document(
            capsys, "archive", whole, *same, "--concurrency", point["concurrency"]
        )["time"]  # fmt: skip
        hours = total["gpu_hours"]
        assert point["gpu_hours"] == pytest.approx(hours, rel=1e-9)
        assert point["gpu_hours_band"]["high"] == pytest.approx(total["high"], rel=1e-9)
        assert point["pages_per_second"] == pytest.approx(total["pages_per_second"], rel=1e-9)
        assert point["cost"] == pytest.approx(total["cost"], rel=1e-9)
        assert (point["bound"], total["pages_that_wait"]) == (total["bound"], 0)
        assert point["gpus"] == max(1, math.ceil(hours / 0.5))


@pytest.mark.parametrize("workers", [1, 6])
def test_the_knee_and_the_latency_limit_are_the_last_that_hold(capsys, workers):
    same = ("--workers", workers, "--page", "a4")
    [plan] = document(
        capsys, "plan", "--pages", "1k", "--gpu", "rtx-4090", "--first-token", "400ms", *same
    )["gpus"]  # fmt: skip
    most = plan["largest_concurrency"]
    [entry] = document(capsys, "time", "rtx-4090", *same, "--concurrency", f"1:{most}")["time"]
    rates = [each["pages_per_second"] for each in entry["throughput"]]
    firsts = [each["ttft_seconds"] for each in entry["throughput"]]
    points = {name: each["concurrency"] for name, each in plan["points"].items()}
    knee = next(at for at, rate in enumerate(rates, 1) if rate >= 0.9 * max(rates))
    late = next((at for at, first in enumerate(firsts, 1) if first > 0.4), most + 1)
    assert points == {"alone": 1, "knee": knee, "first_token": late - 1, "max": most}
    assert plan["planned"] == ("first_token" if late - 1 < knee else "knee")


def test_workers_are_busy_four_fifths_of_the_time_at_most(capsys):
    [plan] = document(capsys, "plan", "--pages", "1k", "--gpu", "h100", "--preprocess-ms", "500")[
        "gpus"
    ]
    fastest = plan["points"]["max"]["pages_per_second"]
    assert 0.5 * fastest <= 0.8 * plan["workers"] + 1e-9
    assert 0.5 * fastest > 0.7 * (plan["workers"] - 1)
    [starved] = document(
        capsys, "plan", "--pages", "1k", "--gpu", "h100", "--preprocess-ms", "500", "--workers", 1
    )["gpus"]  # fmt: skip
    assert starved["points"]["max"]["bound"] == "workers"
    assert starved["points"]["max"]["pages_per_second"] <= 2
    code, out, _ = run(
        capsys, "plan", "--pages", "1k", "--gpu", "h100", "--preprocess-ms", "500", "--workers", 1
    )
    assert code == 0
    assert "bound by CPU workers" in " ".join(out.splitlines()[:4])


def test_repetition_shows_its_tail_and_its_cost(capsys):
    lengths = ("--mean-new-tokens", "900", "--max-new-tokens", "7000")
    same = ("plan", "--pages", "2M", "--gpu", "h100", "--price", "2.5", *lengths)
    [without] = document(capsys, *same)["gpus"]
    assert without["repetition"] is None
    [plan] = document(capsys, *same, "--share-at-limit", "0.05")["gpus"]
    point, found = plan["points"][plan["planned"]], plan["repetition"]
    assert (found["share"], found["tokens"]) == (0.05, 7000)
    assert found["page_seconds"] > 5 * point["page_seconds"]
    assert found["cost"] == pytest.approx(2.5 * found["gpu_hours"])
    # Without repetition the same number of pages at once takes that much less.
    [entry] = document(
        capsys, "time", "h100", *lengths, "--concurrency", point["concurrency"],
        "--workers", plan["workers"],
    )["time"]  # fmt: skip
    hours = 2e6 / entry["throughput"][0]["pages_per_second"] / 3600
    assert found["gpu_hours"] == pytest.approx(point["gpu_hours"] - hours, rel=1e-9)


@pytest.mark.parametrize("pages", [1, 2, 60])
def test_no_more_pages_run_at_once_than_there_are(capsys, pages):
    """Then all of them take as long as one of them, as `time` has it."""
    [plan] = document(capsys, "plan", "--pages", pages, "--gpu", "h100", "--workers", "9")["gpus"]
    point = plan["points"]["max"]
    [entry] = document(capsys, "time", "h100", "--workers", "9", "--concurrency", pages)["time"]
    seconds = entry["throughput"][0]["page_seconds"]
    assert (point["concurrency"], plan["largest_concurrency"] > pages) == (pages, True)
    assert 3600 * point["hours"] == pytest.approx(seconds, rel=1e-9)
    assert 3600 * point["gpu_hours"] == pytest.approx(seconds, rel=1e-9)


def test_no_number_of_gpus_ends_before_a_page_does(capsys):
    line = ("plan", "--pages", "2M", "--gpu", "l4", "--deadline")
    [plan] = document(capsys, *line, "0.1m")["gpus"]
    point = plan["points"]["knee"]
    assert 3600 * point["hours"] == pytest.approx(point["page_seconds"])
    assert point["page_seconds"] > 6
    assert " s, after the deadline of 6.00 s; " in run(capsys, *line, "0.1m")[1].replace("\n", " ")
    assert " h, before the deadline of 24 h; " in run(capsys, *line, "24h")[1].replace("\n", " ")


def test_the_answer_is_in_the_first_lines(capsys):
    code, out, _ = run(
        capsys, "plan", "--pages", "2M", "--deadline", "24h", "--price", "2.5", "--gpu",
        "l40s,h100", "--first-token", "2s", "--mix", "a4@200:0.8,a3@300:0.2",
    )  # fmt: skip
    first = " ".join(out.splitlines()[:5])
    assert code == 0
    for said in (
        "2 x h100-sxm, serving, vllm: 2,000,000 pages in",
        "deadline of 24 h",
        "GPU-hours",
        "which cost",
        "the knee",
        "CPU workers",
        "of 80.00 GB",
        "first token within 2.00 s",
    ):
        assert said in first, said  # fmt: skip


def test_more_tokens_than_a_front_end_has_streamed_are_doubted(capsys):
    slow, fast = (
        json.loads(run(capsys, "plan", "--pages", "2M", "--gpu", gpus, "--format", "json")[1])
        for gpus in ("l40s", "l40s,b200")
    )
    pages_per_second = fast["gpus"][0]["points"]["knee"]["pages_per_second"]
    said = f"may not keep up with {1024 * pages_per_second:,.0f} tokens/s: published runs of SGLang"
    assert not any("front end" in note for note in slow["notes"])
    assert sum(said in note for note in fast["notes"]) == 1


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("--pages 1k --gpu h100 --first-token 50ms", 1, "No: a first token within 50.0 ms"),
        ("--pages 1k --gpu h100 --arch olmocr --reserved 0.9", 1, "No: not one page fits"),
        ("--gpu h100", 2, "give --pages COUNT, or a FILE"),
        ("--pages 0 --gpu h100", 2, "--pages 0 is invalid; give"),
        ("--pages 2MM --gpu h100", 2, "2000000, 500k or 2M"),
        ("--pages 1e99 --gpu h100", 2, "--pages '1e99' is invalid"),
        (
            "--pages 1k --price h100:2,l40s:0.5 --gpu h100",
            2,
            "--price names l40s, which --gpu does not; add it there",
        ),
        (
            "--pages 1k --price h100:2 --gpu h100,l40s",
            2,
            "--price has no amount for l40s; add one, like l40s:2.5",
        ),
        ("--pages 1k --price h100:2,h100-sxm:3", 2, "--price names a GPU twice"),
        ("--pages 1k --price h100:2,5", 2, "--price 'h100:2,5' is invalid; give a number, or one"),
        ("--pages 1k --price h10:2", 2, "no GPU 'h10' in the catalogue; did you mean h100-sxm?"),
        ("--pages 1k --price h100:0", 2, "--price 0 is out of range"),
        ("--pages 10.5 --gpu h100", 2, "give a whole number from 1 to 10^15"),
        ("--pages 1.005k --gpu h100", 0, "1,005 pages in"),
        ("--pages 10 --gpu h100 --deadline 30s", 0, "before the deadline of 30.0 s"),
        ("--pages 10 --gpu h100 --first-token 0.1m", 0, "keep the first token within 6.00 s"),
        ("--pages 1k --first-token soon", 2, "--first-token 'soon' is invalid"),
        ("--pages 1k --first-token 0s", 2, "2s or 800ms"),
        ("--pages 1k --deadline 0h", 2, "--deadline '0h' is invalid"),
        ("--pages 1k --mix a4", 2, "'a4' is no page with its share"),
        ("--pages 1k --mix a4:0", 2, "is no page with its share"),
        ("--pages 1k --mix a9:1", 2, "no page size 'a9'"),
        ("--pages 1k --mix a4:1 --page a5", 2, "give --page or --mix"),
        ("--pages 1k --workers 0", 2, "workers 0 is too small"),
        ("--pages 1k --workers 99999999999999999999", 2, "is too large; give at most 1048576"),
        ("--pages 1k --gpu l40s,h100 --first-token 100ms", 1, "takes 176 ms on h100-sxm"),
        ("--pages 1k --gpu t4", 2, "bfloat16"),
        ("--pages 1k --dtype float32 -q --first-token 1s", 2, "no GPU of the catalogue supports"),
        ("--pages 1k --gpu h100 --max-new-tokens 1", 0, "1,000 pages in"),
        ("--pages 1k --gpu h100 --offline --workers 4", 0, "1,000 pages in"),
        ("pages.csv --page a4 --gpu h100", 2, "--page has no effect beside a list"),
        ("none.csv --gpu h100", 2, "none.csv"),
        ("2M --gpu h100", 2, "'2M' is no FILE or FOLDER; did you mean --pages 2M?"),
        ("--pages 1k --gpu h100 --mode tiny,base", 2, "no mode 'tiny,base'; did you mean tiny or"),
        ("empty.csv --gpu h100", 2, "no pages"),
        ("long.csv --gpu h100 --mean-new-tokens 9", 2, "has a column max_new_tokens"),
        ("bad.csv --gpu h100", 0, "1 of 2 rows are not pages"),
    ],
)
def test_what_a_plan_refuses(capsys, tmp_path, monkeypatch, options, code, said):
    monkeypatch.chdir(tmp_path)
    for name, rows in (
        ("pages", "width,height\n9,9\n"), ("empty", "width,height\n"),
        ("long", "width,height,max_new_tokens\n9,9,9\n"), ("bad", "width,height\n9,9\n0,9\n"),
    ):  # fmt: skip
        (tmp_path / f"{name}.csv").write_text(rows)
    found, out, err = run(capsys, "plan", *options.split())
    assert found == code
    assert said in " ".join((out + err).split())
    assert code != 2 or (out, err.count("\n")) == ("", 1)


def test_each_gpu_may_have_its_own_price_and_the_cheapest_comes_first(capsys, tmp_path):
    prices = {"h100-sxm": 2.5, "l40s": 0.4}
    text = ",".join(f"{gpu}:{price}" for gpu, price in prices.items())
    pages = tmp_path / "pages.csv"
    pages.write_text("width,height\n" + "1240,1754\n" * 400)
    common = ("--price", text, "--format", "json")
    found = {
        command: json.loads(run(capsys, *command.split(), *common)[1])
        for command in ("plan --pages 400", "time --concurrency 16 --workers 1")
    }
    plans, times = found["plan --pages 400"]["gpus"], found["time --concurrency 16 --workers 1"]
    # At its own price, the slower one is the cheaper one.
    assert [each["gpu"] for each in plans] == ["l40s", "h100-sxm"]
    for each in plans:
        assert each["points"]["knee"]["cost"] == pytest.approx(
            prices[each["gpu"]] * each["points"]["knee"]["gpu_hours"]
        )
    per_thousand = {}
    for each in times["time"]:
        price, load = prices[each["gpu"]], each["throughput"][0]
        assert each["assumptions"]["price_per_hour"] == price
        per_thousand[each["gpu"]] = load["cost_per_thousand_pages"]
        assert per_thousand[each["gpu"]] == pytest.approx(
            price * 1000 / 3600 / load["pages_per_second"]
        )
    archive = run(capsys, "archive", str(pages), "--gpu", "h100,l40s", "--concurrency", "16",
                  *common)[1]  # fmt: skip
    for each in json.loads(archive)["time"]:
        assert each["cost"] == pytest.approx(0.4 * per_thousand[each["gpu"]])
    assert [each.gpu for each in plan(400, price=prices).gpus] == ["l40s", "h100-sxm"]
    assert plan(400).gpus[0].point.cost is None  # of all GPUs, without those that lack a type
    first = run(capsys, "plan", "--pages", "400", "--price", text)[1]
    assert first.startswith("1 x l40s, ")
    assert "GPUs, cheapest first" in first


def test_help_and_documentation_have_the_shares_that_are_computed_with(capsys):
    knee, busy = (f"{100 * share:g} %" for share in (predict.KNEE_SHARE, assumptions._BUSY_SHARE))
    documented = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    helps = [run(capsys, command, "--help-all")[1] for command in ("plan", "time")]
    for text in (documented, *helps):
        words = " ".join(text.split())
        assert [share for share in (knee, busy) if share not in words] == []


def test_every_architecture_can_be_planned(capsys):
    for name in ARCHITECTURES:
        assert main(["plan", "--arch", name, "--pages", "10", "--gpu", "h100"]) == 0, name
    assert capsys.readouterr().out.count("the knee") >= len(ARCHITECTURES)


@given(most=st.integers(1, 3000), half=st.floats(0.5, 500), limit=st.floats(0.1, 100))
def test_searches_of_rising_curves_are_exact(most, half, limit):
    def rate(counts):
        return counts / (counts + half)

    def late(counts):
        return 0.02 * counts

    everything = range(1, most + 1)
    goal = predict.KNEE_SHARE * rate(most)
    assert predict.knee(rate, most) == next(at for at in everything if rate(at) >= goal)
    within = [at for at in everything if late(at) <= limit]
    assert predict.most_within(late, limit, most) == max(within, default=0)
