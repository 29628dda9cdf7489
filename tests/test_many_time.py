"""Sweeps and lists with predicted seconds: each page takes what `predict` says of it alone."""

import csv
import io
import json
import math
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import run
from sampling import first, sampled
from scalar_rows import planned

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.archive.evaluate import BATCH_RESULTS, COST
from dsocr_analyze.archive.setting import published_model
from dsocr_analyze.archive.table_files import METADATA_KEY
from dsocr_analyze.cli import main
from dsocr_analyze.cli.page_lists import deadline_hours
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.hardware import device
from dsocr_analyze.timing.assumptions import (
    Assumptions,
    OutputLengths,
    estimated_preprocessing,
    estimated_preprocessing_of_pages,
)
from dsocr_analyze.timing.page_times import TimedModel
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import EAGER, SERVERS, Precision
from dsocr_analyze.workload import Mode

A4, SMALL, WIDE = (1240, 1754), (500, 600), (3000, 1000)
GUNDAM = DEFAULT.modes["gundam"]
EXACT = 1e-9

COUNTS = (
    "page_width", "page_height", "mode", "base_size", "image_size", "crop_mode", "dtype",
    "attention", "text_tokens", "max_new_tokens", "batch_size", *BATCH_RESULTS, "weights_bytes",
)  # fmt: skip
TIMES = (
    "gpu", "ttft_seconds", "tpot_seconds", "page_seconds", "pages_per_second", "tokens_per_second",
    "fits",
)  # fmt: skip
KEYS = {
    "gpu", "runtime", "mode", "base_size", "image_size", "crop_mode", "dtype", "attention",
    "sliding_window",
    "concurrency", "gpu_hours", "low", "high", "pages_per_second", "cost", "deadline_hours",
    "gpus_for_deadline", "bound", "pages_that_wait", "assumptions",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def predicted(page, gpu="h100-sxm", mode=GUNDAM, dtype="bfloat16", *, flash=False,
              host=SERVERS["vllm"], text_tokens=10, new_tokens=1024, concurrency=16, lengths=None,
              prepare=None, **assumed):  # fmt: skip
    """What `predict` says of one page."""
    workload = planned(page, mode, text_tokens=text_tokens, max_new_tokens=new_tokens)
    dimensions = published_model().dimensions
    model = TimedModel(DEFAULT, dimensions, dtype_named(dtype), flash, device(gpu))
    lengths = lengths or OutputLengths.fixed(new_tokens)
    assumptions = Assumptions(host, lambda _: lengths, prepare, **assumed)
    return predict(model, workload, assumptions, [concurrency])


# Lists -------------------------------------------------------------------------------------------


def write(pages, **columns):
    """A list of pages: sizes, and columns of the same length."""
    widths, heights = zip(*pages, strict=True)
    table = pa.table({"width": widths, "height": heights, **columns})
    pq.write_table(table, "pages.parquet")
    return "pages.parquet"


def timed(capsys, path, arguments, command="archive"):
    """The key `time` of an archive's document."""
    code, out, err = run(capsys, *command.split(), path, *arguments.split(), "--format", "json")
    assert (code, err) == (0, "")
    return json.loads(out)["time"]


ALIKE = 2 * [A4, (2480, 3508)]
"""Two sizes with one crop grid, one of which takes the CPU longer."""
MEAN = np.mean([estimated_preprocessing(DEFAULT, DEFAULT.plan(page=each)) for each in ALIKE])


@sampled(
    ("arguments", "pages", "columns", "assumed"),
    [
        ("--gpu h100-sxm", 7 * [SMALL], {}, {}),
        ("--gpu l40s --mean-new-tokens 200 --share-at-limit 0.25", [SMALL], {},
         {"gpu": "l40s", "lengths": OutputLengths.mean_and_limit(200, 1024, 0.25)}),
        # More CPU than GPU seconds, but for 16 pages at a time.
        ("--gpu h100-sxm --preprocess-ms 300 --workers 16", [SMALL], {},
         {"prepare": 0.3, "workers": 16}),
        # Preprocessing is the mean of pages that are alike.
        ("--gpu h100-sxm --workers 2", ALIKE, {}, {"prepare": float(MEAN), "workers": 2}),
        ("--gpu l40s --new-tokens-from lengths.csv", 3 * [SMALL], {},
         {"gpu": "l40s", "lengths": OutputLengths.of_counts({100: 1, 900: 1})}),
        ("--gpu l40s --concurrency 3", [A4, SMALL, WIDE, A4],
         {"text_tokens": [10, 20, 30, 10], "max_new_tokens": [100, 1, 2000, 900]},
         {"gpu": "l40s", "concurrency": 3}),
        ("--gpu h100-sxm --runtime eager --concurrency 2 --max-new-tokens 2", 3 * [SMALL], {},
         {"host": EAGER, "new_tokens": 2, "concurrency": 2}),
    ],
    first(4),
)  # fmt: skip
def test_hours_are_those_that_predict_says_of_each_page(capsys, arguments, pages, columns, assumed):
    Path("lengths.csv").write_text("new_tokens\n100\n900\n", encoding="utf-8")
    (found,) = timed(capsys, write(pages, **columns), arguments)
    lengths = [*zip(*columns.values(), strict=True)] or len(pages) * [(10, 1024)]
    loads = [
        predicted(page, **{"text_tokens": text, "new_tokens": new} | assumed).throughput[0]
        for page, (text, new) in zip(pages, lengths, strict=True)
    ]
    hours = sum(1 / load.pages_per_second for load in loads) / 3600
    assert found["gpu_hours"] == pytest.approx(hours, rel=EXACT)
    assert found["pages_per_second"] == pytest.approx(len(pages) / hours / 3600, rel=EXACT)
    assert found["low"] < hours < found["high"]
    if not columns and pages is not ALIKE:
        band = loads[0].pages_per_second_band
        expected = [len(pages) / rate / 3600 for rate in (band.high, band.low)]
        assert [found["low"], found["high"]] == pytest.approx(expected, rel=EXACT)
    runtime = "eager" if "host" in assumed else "serving"
    assert (found["runtime"], found["bound"]) == (runtime, loads[0].bound)


def test_a_slow_cpu_bounds_it_and_has_no_band(capsys):
    """Half a second of CPU per page, two at a time: four pages a second."""
    (found,) = timed(capsys, write([SMALL] * 10), "--gpu h100-sxm --preprocess-ms 500 --workers 2"
                     " --max-new-tokens 10")  # fmt: skip
    assert (found["bound"], found["low"], found["high"]) == ("host", *2 * [found["gpu_hours"]])
    assert found["pages_per_second"] == pytest.approx(4, rel=1e-3)


def test_money_and_deadlines_by_hand(capsys):
    """Three quarters of a second a page, all of it the CPU's: 4,800 pages take an hour."""
    path, slow = write([SMALL] * 4800), "--gpu h100-sxm --preprocess-ms 750 --max-new-tokens 1"
    (found,) = timed(capsys, path, f"{slow} --price 2.5 --deadline 20m")
    figures = [found[name] for name in ("gpu_hours", "cost", "deadline_hours")]
    assert figures == pytest.approx([1, 2.5, 1 / 3], rel=1e-6)
    assert found["gpus_for_deadline"] == math.ceil(found["gpu_hours"] * 3)
    (found,) = timed(capsys, path, f"{slow} --deadline 25m")
    assert (found["gpus_for_deadline"], found["cost"]) == (3, None)
    Path("none.csv").write_text("width,height\n", encoding="utf-8")
    (found,) = timed(capsys, "none.csv", "--gpu l40s --deadline 1 --price 1")
    figures = ("gpu_hours", "low", "high", "pages_per_second", "cost", "gpus_for_deadline")
    assert [found[name] for name in figures] == [0] * 6


@pytest.mark.parametrize(
    ("text", "hours"),
    [("90m", 1.5), ("12h", 12), ("3d", 72), ("36", 36), ("1.5 h", 1.5), ("0.5D", 12),
     *((text, None) for text in ("", "0", "0h", "-3", "3w", "h", "1e3", "nan", "2h30m"))],
)  # fmt: skip
def test_a_deadline_is_in_minutes_hours_or_days(text, hours):
    refused = pytest.raises(WorkloadError, match=r"--deadline .* like 90m, 12h, 3d, or hours")
    with nullcontext() if hours else refused:
        assert deadline_hours(text) == pytest.approx(hours)


def test_there_is_one_entry_for_each_gpu_and_setting_and_without_a_gpu_none(capsys):
    path = write([A4])
    found = timed(capsys, path, "--gpu h100-sxm --gpu l40s --mode tiny,gundam")
    assert [(each["gpu"], each["mode"]) for each in found] == [
        ("h100-sxm", "tiny"), ("h100-sxm", "gundam"), ("l40s", "tiny"), ("l40s", "gundam"),
    ]  # fmt: skip
    for each in found:
        assert (set(each), each["concurrency"]) == (KEYS, 16)
        assert (each["cost"], each["deadline_hours"], each["gpus_for_deadline"]) == 3 * (None,)
        said = " ".join(each["assumptions"])
        assert f"{each['gpu']}: kernel times from" in said
        assert "if all pages in flight were like it" in said
    without, with_time = (
        json.loads(run(capsys, "archive", path, "--format", "json", *more)[1])
        for more in ((), ("--gpu", "l40s"))
    )
    own = {"time": None, "options": None}
    assert ("time" in without, "time" in with_time) == (False, True)
    assert with_time | own == without | own


@pytest.mark.parametrize(("lengths", "is_said"), [("--mean-new-tokens 200", True), ("", False)])
def test_seconds_of_other_lengths_than_the_counts_say_so(capsys, lengths, is_said):
    said = "FLOPs and bytes for the most new tokens, seconds for those given"
    _, out, _ = run(capsys, "archive", write([SMALL]), "--gpu", "l40s", *lengths.split())
    assert (f"1 page; {said}" in out) == is_said
    [assumed] = [each for each in out.split("Assumed: ") if "most tokens" in each]
    assert ("FLOPs and bytes are counted for" in assumed) == is_said


def test_tables_fit_80_columns_and_pages_that_wait_are_told(capsys):
    code, out, err = run(capsys, "archive", write([A4] * 3), "--gpu", "rtx-pro-6000,l40s", "--mode",
                         "gundam,1024/640", "--price", "2.5", "--deadline", "1.5h", "--concurrency",
                         "500", "--strict")  # fmt: skip
    assert code == 3
    assert "3 of 3 pages leave room for fewer than 500 at a time on l40s" in err
    _, times = out.split("Predicted: serving, 500 pages at once\n")
    shown, _ = times.split("Pages by crop grid\n")
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    assert "cost at 2.5 per hour, GPUs to finish in 1.5 h" in shown
    assert "Assumed: every page generates the most tokens it may" in out.splitlines()


def test_sweep_with_a_list_is_the_same(capsys):
    asked = (write([A4]), "--gpu l40s --deadline 2h --concurrency 4")
    assert timed(capsys, *asked) == timed(capsys, *asked, command="sweep --pages")


# Sweeps ------------------------------------------------------------------------------------------


def rows_of(*arguments):
    """The rows of a sweep, from a Parquet file."""
    assert main(["sweep", *map(str, arguments), "--output", "rows.parquet", "--quiet"]) == 0
    return pq.read_table("rows.parquet")


def assert_row(row, lengths=None, price=None, **assumed):
    """The row is what `predict` says; a batch of 1 is a page alone."""
    mode = Mode("", row["base_size"], row["image_size"], row["crop_mode"])
    new_tokens, size = row["max_new_tokens"], row["batch_size"]
    prediction = predicted(
        (row["page_width"], row["page_height"]), row["gpu"], mode, row["dtype"],
        flash=row["attention"] != "eager", text_tokens=row["text_tokens"], new_tokens=new_tokens,
        concurrency=size, lengths=lengths and lengths(new_tokens), price_per_hour=price, **assumed,
    )  # fmt: skip
    (load,) = prediction.throughput
    page = prediction if size == 1 else load
    expected = {
        **{name: getattr(page, name) for name in ("ttft_seconds", "tpot_seconds", "page_seconds")},
        **{name: getattr(load, name) for name in ("pages_per_second", "tokens_per_second")},
        **({COST: load.cost_per_thousand_pages} if COST in row else {}),
    }
    found = {name: row[name] for name in expected}
    if expected["tpot_seconds"] is None:  # of a page of one token
        assert found.pop("tpot_seconds") is expected.pop("tpot_seconds")
    assert found == pytest.approx(expected, rel=EXACT)
    assert row["fits"] is load.fits


@sampled(
    ("arguments", "assumed"),
    [
        ("--gpu h100-sxm --batch-size 1,8 --server sglang --preprocess-ms 20 --workers 4"
         " --weights-dtype fp8 --kv-dtype fp8 --reserved 0.2 --offline",
         {"host": SERVERS["sglang"], "prepare": 0.02, "workers": 4, "reserved": 0.2,
          "precision": Precision("float8", "float8"), "is_offline": True}),
        ("--gpu l40s --price 3.6 --max-new-tokens 1,2 --batch-size 1,4", {"price": 3.6}),
        ("--gpu h100-sxm,l40s --page 500x500,a4,1000x3000 --mode gundam,large --text-tokens"
         " 10,300 --max-new-tokens 1,2,777 --batch-size 1,2,17 --price 2.5", {"price": 2.5}),
        ("--gpu l40s --batch-size 1,400 --max-new-tokens 8000", {}),  # the second does not fit
        ("--gpu h100-sxm --runtime eager --mode tiny --batch-size 1,3 --max-new-tokens 1,20"
         " --use-flash-attn 1", {"host": EAGER}),
        ("--gpu h100-sxm --max-new-tokens 1000,4000 --batch-size 1,4 --mean-new-tokens 300.5"
         " --share-at-limit 0.1",
         {"lengths": lambda most: OutputLengths.mean_and_limit(300.5, most, 0.1)}),
        ("--gpu h100-sxm --batch-size 1,4 --new-tokens-from lengths.csv",
         {"lengths": lambda _: OutputLengths.of_counts({100: 1, 900: 1})}),
        ("--gpu h100-sxm --batch-size 1,8 --server vllm-v0", {"host": SERVERS["vllm-v0"]}),
    ],
    first(2),
)  # fmt: skip
def test_a_row_is_what_predict_says(arguments, assumed):
    Path("lengths.csv").write_text("new_tokens\n100\n900\n", encoding="utf-8")
    rows = rows_of(*arguments.split()).to_pylist()
    for row in rows[:: 1 + len(rows) // 30]:
        assert_row(row, **assumed)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), COUNTS),
        (("--gpu", "h100-sxm"), (*COUNTS, *TIMES)),
        (("--gpu", "h100-sxm", "--price", "1", "--max-new-tokens", "1"), (*COUNTS, *TIMES, COST)),
    ],
)
def test_with_a_gpu_columns_come_last(arguments, names):
    schema = rows_of(*arguments).schema
    assert tuple(schema.names) == names
    types = {"gpu": pa.string(), "fits": pa.bool_()}
    for name in names[len(COUNTS) :]:
        assert schema.field(name).type == types.get(name, pa.float64()), name


def test_counts_are_those_without_a_gpu_and_a_parquet_file_says_what_was_assumed():
    asked = ("--page", "a4,600:3000:1200x800", "--batch-size", "1,4")
    timed = rows_of(*asked, "--gpu", "l40s", "--workers", "3")
    assert timed.select(COUNTS).equals(rows_of(*asked))
    notes = json.loads(timed.schema.metadata[METADATA_KEY])["metadata"]["notes"]
    assert "every page generates the most tokens it may" in notes
    assert any("3 at a time" in note for note in notes)


@pytest.mark.exhaustive
def test_every_gpu_has_its_rows_and_its_line_and_rows_without_a_value_are_left_out(capsys):
    asked = ("sweep", "--gpu", "h100,l40s", "--gpu", "l40s", "--batch-size", "1:3")
    code, out, _ = run(capsys, *asked)
    gpus = [row["gpu"] for row in csv.DictReader(io.StringIO(out))]
    assert (code, gpus) == (0, 3 * ["h100-sxm"] + 3 * ["l40s"])
    plot = ("--plot", "rate.svg", "--quiet", "--quantity")
    assert run(capsys, *asked, *plot, "pages_per_second")[::2] == (0, "")
    text = Path("rate.svg").read_text(encoding="utf-8")
    assert [said in text for said in ("pages per second", "h100-sxm", "l40s")] == [True] * 3
    one_token = ("sweep", "--gpu", "l40s", "--max-new-tokens", "1,2,3", *plot, "tpot_seconds")
    assert run(capsys, *one_token)[::2] == (0, "")


@pytest.mark.parametrize("mode", DEFAULT.modes.values(), ids=lambda mode: mode.name)
def test_pixels_of_many_pages_are_those_of_each(mode):
    sides = np.random.default_rng(3).integers(1, 6000, (2, 30))
    seconds = estimated_preprocessing_of_pages(DEFAULT, mode, *sides)
    assert seconds.tolist() == [
        estimated_preprocessing(DEFAULT, planned(page, mode))
        for page in map(tuple, sides.T.tolist())
    ]
