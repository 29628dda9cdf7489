"""Sweeps: axes, rows by the scalar closed forms, files, plots, refusals; and predicted seconds."""

import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import run
from hypothesis import given, settings, strategies as st
from pyarrow import csv
from sampling import first, sampled
from scalar_rows import FIGURES, planned, scalar_row

from dsocr_analyze import cli, errors, hardware
from dsocr_analyze.architectures import DEFAULT, deepseek_ocr
from dsocr_analyze.archive.axes import parse_modes, parse_numbers, parse_pages
from dsocr_analyze.archive.combinations import Sweep
from dsocr_analyze.archive.evaluate import BATCH_RESULTS, COST
from dsocr_analyze.archive.setting import published_model, settings_of
from dsocr_analyze.archive.shown import QUANTITIES, describe
from dsocr_analyze.archive.table_files import METADATA_KEY
from dsocr_analyze.cli import time_requests
from dsocr_analyze.kernels import BFLOAT16, dtype_named
from dsocr_analyze.pictures.picture import Picture
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import EAGER, SERVERS, Precision
from dsocr_analyze.timing.serving import TimedModel
from dsocr_analyze.workload import Mode, parse_page

INPUTS = (
    "page_width", "page_height", "mode", "base_size", "image_size", "crop_mode", "dtype",
    "attention", "text_tokens", "max_new_tokens", "batch_size",
)  # fmt: skip
"""Columns that say what a row is the cost of."""

LENGTHS = INPUTS[-3:]
SCHEMA = (*INPUTS, *BATCH_RESULTS, "weights_bytes")
EXPECTED = "decode_step_bytes_read_expected"
FLOATS = {EXPECTED, *(f"page_{figure}" for figure in FIGURES)}


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def assert_row(row):
    """The row is what the scalar closed forms say about its own inputs."""
    mode = Mode("", row["base_size"], row["image_size"], row["crop_mode"])
    page, size = (row["page_width"], row["page_height"]), row["batch_size"]
    lengths = {name: row[name] for name in LENGTHS}
    expected = scalar_row(page, mode, row["dtype"], row["attention"], **lengths)
    shares = {name: expected.pop(name) / size for name in FLOATS - {EXPECTED}}
    assert {name: row[name] for name in expected} == expected
    # 11 layers of 64 experts, 6 a token, three matrices of 1280 x 896 each.
    fewer = 11 * (min(64, 6 * size) - 64 * (1 - (58 / 64) ** size)) * 3 * 1280 * 896
    shares[EXPECTED] = row["decode_step_bytes_read"] - fewer * dtype_named(row["dtype"]).nbytes
    assert {name: row[name] for name in shares} == pytest.approx(shares, rel=1e-12)


# Axes --------------------------------------------------------------------------------------------


numbers = partial(parse_numbers, least=1, most=100)


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (numbers, "7", [(7,)]),
        (numbers, "10, 20", [(10,), (20,)]),
        (numbers, "1:4", [(1,), (2,), (3,), (4,)]),
        (numbers, "10:35:10", [(10,), (20,), (30,)]),
        (numbers, "5,10:30:10,1:2", [(5,), (10,), (20,), (30,), (1,), (2,)]),
        (parse_pages, "a4", [parse_page("a4")]),
        (parse_pages, "Letter,1240X1754", [parse_page("letter"), (1240, 1754)]),
        (parse_pages, "a4@100:300:100", [parse_page(f"a4@{dpi}") for dpi in (100, 200, 300)]),
        (parse_pages, "10:30:10x7", [(10, 7), (20, 7), (30, 7)]),
        (parse_pages, "1:2x3:4,9x9", [(1, 3), (1, 4), (2, 3), (2, 4), (9, 9)]),
    ],
)
def test_an_axis_is_a_list_of_values_and_of_ranges_that_include_their_stop(parse, text, expected):
    assert [*map(tuple, np.atleast_2d(parse("axis", text)).T.tolist())] == expected


def test_modes_are_names_and_sizes():
    assert parse_modes("mode", "all", DEFAULT) == tuple(deepseek_ocr.MODES.values())
    modes = parse_modes("mode", "base,1024/640,512:640:64,1024:1280:256/640", DEFAULT)
    assert [(mode.base_size * mode.crop_mode, mode.image_size) for mode in modes] == [
        (0, 1024), (1024, 640), (0, 512), (0, 576), (0, 640), (1024, 640), (1280, 640),
    ]  # fmt: skip


# Rows --------------------------------------------------------------------------------------------


def sweep_of(pages, modes, *lengths, dtypes=(BFLOAT16,), attentions=(False,)):
    """The sweep over axes in text: pages, modes and `LENGTHS`."""
    axes = (parse_numbers("n", text, 1, 10**6) for text in lengths)
    ways = settings_of(dtypes, attentions, parse_modes("mode", modes, DEFAULT))
    return Sweep(parse_pages("page", pages), ways, dict(zip(LENGTHS, axes, strict=True)))


PAGES = st.tuples(st.integers(1, 4000), st.integers(1, 4000))
SOME_MODES = st.sampled_from([*deepseek_ocr.MODES, "1024/512", "100", "1000/700"])


@sampled(("examples", "most"), [(2, 4), (12, 128)], first(1))
def test_every_row_is_what_the_scalar_closed_forms_say(examples, most):
    @settings(max_examples=examples, deadline=None)
    @given(
        dtypes=st.sampled_from([("bfloat16",), ("float32", "float16")]),
        attentions=st.sampled_from([(False,), (True, False)]),
        axes=st.tuples(*(
            st.lists(each, min_size=1, max_size=2)
            for each in (
                SOME_MODES, PAGES, st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 40)
            )
        )),
    )  # fmt: skip
    def each_row(dtypes, attentions, axes):
        modes, pages, *lengths = axes
        sweep = sweep_of(
            ",".join("{}x{}".format(*page) for page in pages),
            ",".join(modes),
            *(",".join(map(str, numbers)) for numbers in lengths),
            dtypes=tuple(map(dtype_named, dtypes)),
            attentions=attentions,
        )
        rows = pa.Table.from_batches(sweep.batches(published_model())).to_pylist()
        assert len(rows) == sweep.rows
        kinds = ["flash_attention_2" if flash else "eager" for flash in attentions]
        names = ("dtype", "attention", "mode", "page_width", "page_height", *LENGTHS)
        found = [[row[name] for name in names] for row in rows]
        assert found == [
            [dtype, kind, mode, *page, *numbers]
            for dtype, kind, mode, page, *numbers in itertools.product(dtypes, kinds, *axes)
        ]
        for row in rows[:: 1 + len(rows) // most]:
            assert_row(row)

    each_row()


@pytest.mark.exhaustive
def test_rows_are_the_same_however_they_are_cut_into_batches(monkeypatch):
    sweep = sweep_of("600:900:100x1000:1200:100", "gundam", "1:7", "5,6", "1:3")
    whole = pa.Table.from_batches(sweep.batches(published_model()))
    monkeypatch.setattr("dsocr_analyze.archive.combinations.BATCH_ROWS", 17)
    pieces = list(sweep.batches(published_model()))
    assert len(pieces) > 10
    assert pa.Table.from_batches(pieces).equals(whole)


# Files -------------------------------------------------------------------------------------------


SMALL = ("--page", "640x640,a4", "--mode", "base,gundam", "--text-tokens", "1:3")


def rows_of(*arguments):
    """The rows of a sweep, from a Parquet file."""
    assert cli.main(["sweep", *map(str, arguments), "--output", "rows.parquet", "--quiet"]) == 0
    return pq.read_table("rows.parquet")


def test_csv_goes_to_stdout_and_nothing_else(capsys):
    code, out, err = run(capsys, "sweep", *SMALL)
    header, *rows = out.split("\n")
    assert (code, header, len(rows), '"' in out, err) == (0, ",".join(SCHEMA), 13, False, "")


@pytest.mark.parametrize("suffix", ["csv", "parquet", "PQ"])
def test_a_file_has_every_row_with_units_in_the_names_and_says_its_model(capsys, suffix):
    is_csv, beside = suffix == "csv", "wrote costs.csv.json (their metadata)\n"
    said = f"wrote costs.{suffix} (12 rows)\n{beside * is_csv}"
    assert run(capsys, "sweep", *SMALL, "--output", f"costs.{suffix}") == (0, said, "")
    table = csv.read_csv("costs.csv") if is_csv else pq.read_table(f"costs.{suffix}")
    # CSV has no types, and what is expected of one or two pages is a whole number of bytes.
    types = {
        **dict.fromkeys(SCHEMA, pa.int64()),
        **dict.fromkeys(FLOATS - {EXPECTED} if is_csv else FLOATS, pa.float64()),
        **dict.fromkeys(("mode", "dtype", "attention"), pa.string()),
        "crop_mode": pa.bool_(),
    }
    assert [(each.name, each.type) for each in table.schema] == [*types.items()]
    for row in table.to_pylist()[::4]:
        assert_row(row)
    about = Path("costs.csv.json").read_text() if is_csv else table.schema.metadata[METADATA_KEY]
    about = json.loads(about)
    assert (about["model"]["source"], len(about["model"]["config_digest"])) == ("reference", 64)
    assert "routing is uniform" in " ".join(about["metadata"]["notes"])


def test_another_config_is_another_model():
    config = json.loads((DEFAULT.reference / "config.json").read_text()) | {"num_hidden_layers": 2}
    Path("small.json").write_text(json.dumps(config))
    [small], [whole] = (rows_of(*more).to_pylist() for more in (("--config", "small.json"), ()))
    assert small["weights_bytes"] < whole["weights_bytes"]
    assert small["decode_step_flops"] < whole["decode_step_flops"]


SWAPPED = "mode 640/1024: base_size 640 is below image_size 1024"
ODD = "mode 1000: image_size 1000 is not a multiple of 64"


@pytest.mark.parametrize(
    ("arguments", "number", "said"),
    [
        ("sweep --max-new-tokens 7280,7281", 1, ["1 of 2 workloads exceed"]),  # of 913 + 7280 - 1
        ("sweep --mode all", 0, []),
        ("sweep --mode 641:663", 7, ["17 more warnings about the sizes of modes"]),
        *((f"{command} --mode 640/1024,base,1000", 2, [SWAPPED, ODD])
          for command in ("sweep", "archive p.csv", "advise")),
    ],
)  # fmt: skip
def test_odd_sizes_and_long_outputs_are_warned_of_and_strict_makes_them_a_failure(
    capsys, arguments, number, said
):
    Path("p.csv").write_text("width,height\n1240,1754\n")
    code, _, err = run(capsys, *arguments.split(), "--strict")
    assert (code, err.count("warning: ")) == (3 if number else 0, number)
    # The sizes come from --mode.
    assert [each in err for each in (*said, "--base-size")] == [*[True] * len(said), False]


@pytest.mark.parametrize(
    ("suffix", "error", "expected"),
    [
        ("csv", KeyboardInterrupt, 130),
        ("parquet", OSError(28, "No space left on device"), 74),
    ],
)
def test_an_interruption_leaves_the_old_file_and_nothing_else(
    capsys, monkeypatch, suffix, error, expected
):
    original = Sweep.batches

    def interrupted(self, model):
        yield next(original(self, model))
        if self.rows > 1:  # the sweep itself, not the row that is tried first
            raise error

    monkeypatch.setattr(Sweep, "batches", interrupted)
    target = Path(f"costs.{suffix}")
    target.write_text("old")
    code, out, err = run(capsys, "sweep", *SMALL, "--output", target)
    assert (code, out, err.count("\n")) == (expected, "", 1)
    assert (target.read_text(), list(Path().iterdir())) == ("old", [target])


@pytest.mark.exhaustive
@pytest.mark.skipif(os.name == "nt", reason="needs SIGINT")
def test_a_real_interrupt_does_the_same():
    target = Path("costs.csv")
    target.write_text("old")
    command = ["sweep", "--output", "costs.csv", "--yes", "--text-tokens", "1:1000000",
               "--max-new-tokens", "1:1000"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "dsocr_analyze", *command], stderr=subprocess.PIPE, text=True
    )
    while sum(file.stat().st_size for file in Path().glob(".dsocr-*")) < 10**6:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "dsocr-analyze: interrupted; nothing was written\n")
    assert (target.read_text(), list(Path().iterdir())) == ("old", [target])


# Plots -------------------------------------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch):
    """The pictures, which are drawn and not written."""
    pictures = []
    monkeypatch.setattr(Picture, "save", lambda self, _: pictures.append(self))
    return pictures


@sampled(
    ("arguments", "label"),
    [
        (("--mode", "tiny,base"), "mode"),
        (("--text-tokens", "1:50"), "text tokens"),
        (("--max-new-tokens", "1,2"), "new tokens"),
        (("--batch-size", "1:3", "--mode", "base,tiny"), "batch size [pages]"),
        (("--page", "100x100:900:100"), "page height [pixels]"),
        (("--page", "a4,letter,a5"), "page [pixels]"),
        (("--mode", "all"), "mode"),
        (("--mode", "64:1280:64"), "image size [pixels]"),
        (("--dtype", "bfloat16,float32"), "data type"),
        (("--use-flash-attn", "0,1"), "attention"),
        ((), "mode"),
        (("--mode", "all", "--x", "dtype"), "data type"),
        (("--page", "100:300:100x100:200:100", "--x", "page_height"), "page height [pixels]"),
    ],
    first(1),
)
def test_the_axis_with_most_values_is_along_the_plot(capsys, drawn, arguments, label):
    assert run(capsys, "sweep", *arguments, "--plot", "costs.svg")[::2] == (0, "")
    assert drawn[0].axes.get_xlabel() == label


def test_points_are_joined_along_the_axis_in_whatever_order_they_are_asked_for(capsys, drawn):
    run(capsys, "sweep", "--text-tokens", "9,1,5", "--plot", "costs.svg")
    assert [*drawn[0].axes.get_lines()[0].get_xdata()] == [1, 5, 9]


def test_every_quantity_has_a_name_and_a_unit():
    names, units = zip(*map(describe, QUANTITIES), strict=True)
    assert (len({*names}), {*units}) == (len(BATCH_RESULTS) - 2, {"FLOPs", "B", "tokens"})


def test_a_plot_without_matplotlib_names_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run(capsys, "sweep", "--plot", "costs.png")
    assert (code, err.count("\n"), "dsocr-analyze[plot]" in err) == (2, 1, True)


# What is asked and refused -----------------------------------------------------------------------


def test_a_count_beyond_64_bits_is_refused_before_and_never_wraps():
    sweep = sweep_of("a4", "base", "1,1000000", "1", "1,600000")
    for refused in (sweep.check, lambda model: list(sweep.batches(model))):
        with pytest.raises(errors.WorkloadError, match="64-bit"):
            refused(published_model())


# The process -------------------------------------------------------------------------------------


def test_nothing_is_imported_that_is_not_needed_yet():
    Path("pages.csv").write_text("width,height\n640,640\n")
    Path("budgets.toml").write_text('[workloads.page]\nmode = "tiny"\n')
    code = (
        "import sys\n"
        "def check(*names): assert not {*names} & sys.modules.keys(), names\n"
        "import dsocr_analyze.archive, dsocr_analyze.workload\n"
        "check('PIL', 'numpy')\n"
        "from dsocr_analyze import analytic\n"
        "from dsocr_analyze.architectures import DEFAULT\n"
        "from dsocr_analyze.model.directory import ModelDirectory\n"
        "directory = ModelDirectory.read(DEFAULT.reference)\n"
        "page = analytic.page_figures(directory, DEFAULT.plan(page=(1000, 1000)))\n"
        "page.prefill_pass, [stage.own for stage in page.stages.values()]\n"
        "check('numpy', 'pyarrow', 'torch')\n"
        "from dsocr_analyze.cli import main\n"
        "quiet = ('-q', '--output', 'rows.csv')\n"
        "assert main(['sweep', *quiet]) == main(['archive', 'pages.csv', *quiet]) == 0\n"
        "assert main(['check', '--budgets', 'budgets.toml']) == 0\n"
        "check('torch', 'transformers', 'fvcore', 'matplotlib', 'dsocr_analyze.archive.seconds')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("patience", "is_watched", "arguments", "shown"),
    [
        (3.0, True, "--output rows.csv", ""),  # a short sweep
        (0.0, True, "--output rows.csv --text-tokens 1:9", "9 of 9 workloads"),
        (0.0, True, "--text-tokens 1:9", "9 of 9 workloads"),
        (0.0, True, "-q --output rows.csv --text-tokens 1:9", ""),
        (0.0, False, "--output rows.csv", ""),
    ],
)
def test_a_long_sweep_shows_how_far_it_is_to_who_watches(
    monkeypatch, capsys, patience, is_watched, arguments, shown
):
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: is_watched, raising=False)
    monkeypatch.setattr("dsocr_analyze.cli.streams._PATIENCE_SECONDS", patience)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_watched)
    monkeypatch.setenv("TERM", "xterm")
    code, out, _ = run(capsys, "sweep", *arguments.split())
    told = screen.getvalue()
    assert (code, shown in told, bool(told)) == (0, True, bool(shown))
    assert ("Sweep of 9 workloads" in out, "9 of 9" in out) == ("--output" not in arguments, False)


# Seconds -----------------------------------------------------------------------------------------


A4, TINY, WIDE = (1240, 1754), (500, 600), (3000, 1000)
GUNDAM = DEFAULT.modes["gundam"]
EXACT = 1e-9

TIMES = (
    "gpu", "ttft_seconds", "tpot_seconds", "page_seconds", "pages_per_second", "tokens_per_second",
    "fits",
)  # fmt: skip


def predicted(page, gpu="h100-sxm", mode=GUNDAM, dtype="bfloat16", *, flash=False,
              host=SERVERS["vllm"], text_tokens=10, new_tokens=1024, concurrency=16, lengths=None,
              prepare=None, **assumed):  # fmt: skip
    """What `predict` says of one page."""
    workload = planned(page, mode, text_tokens=text_tokens, max_new_tokens=new_tokens)
    dimensions = published_model().dimensions
    model = TimedModel(DEFAULT, dimensions, dtype_named(dtype), flash, hardware.device(gpu))
    lengths = lengths or OutputLengths.fixed(new_tokens)
    assumptions = Assumptions(host, lambda _: lengths, prepare, **assumed)
    return predict(model, workload, assumptions, [concurrency])


# Lists -------------------------------------------------------------------------------------------


def archive(capsys, pages, options, **columns):
    """Exit code, stdout and stderr of a list of pages: sizes, and columns of the same length."""
    widths, heights = np.array(pages, np.int64).reshape(-1, 2).T
    pq.write_table(pa.table({"width": widths, "height": heights, **columns}), "pages.parquet")
    return run(capsys, "archive", "pages.parquet", *options.split())


def timed(capsys, pages, options, **columns):
    """The key `time` of an archive's document."""
    code, out, err = archive(capsys, pages, f"{options} --format json", **columns)
    assert (code, err) == (0, "")
    return json.loads(out)["time"]


ALIKE = [A4, (2480, 3508)]
"""Two sizes with one crop grid, one of which takes the CPU longer."""
MEAN = np.mean([
    Assumptions(SERVERS["vllm"]).prepare_seconds(DEFAULT, DEFAULT.plan(page=each)) for each in ALIKE
])  # fmt: skip


@sampled(
    ("arguments", "pages", "columns", "assumed"),
    [
        ("--gpu h100-sxm", 2 * [TINY], {}, {}),
        ("--gpu l40s --mean-new-tokens 200 --share-at-limit 0.25", [TINY], {},
         {"gpu": "l40s", "lengths": OutputLengths.mean_and_limit(200, 1024, 0.25)}),
        # More CPU than GPU seconds, but for 16 pages at a time.
        ("--gpu h100-sxm --preprocess-ms 300 --workers 16", 17 * [TINY], {},
         {"prepare": 0.3, "workers": 16}),
        # Preprocessing is the mean of pages that are alike.
        ("--gpu h100-sxm --workers 2", ALIKE, {}, {"prepare": float(MEAN), "workers": 2}),
        ("--gpu l40s --new-tokens-from lengths.csv", 3 * [TINY], {},
         {"gpu": "l40s", "lengths": OutputLengths.of_counts({100: 1, 900: 1})}),
        ("--gpu l40s --concurrency 3", [A4, TINY, WIDE, A4],
         {"text_tokens": [10, 20, 30, 10], "max_new_tokens": [100, 1, 2000, 900]},
         {"gpu": "l40s", "concurrency": 3}),
        ("--gpu h100-sxm --runtime eager --concurrency 2 --max-new-tokens 2", 3 * [TINY], {},
         {"host": EAGER, "new_tokens": 2, "concurrency": 2}),
    ],
    lambda number, _: number in (1, 2, 3),
)  # fmt: skip
def test_hours_are_those_that_predict_says_of_each_page(capsys, arguments, pages, columns, assumed):
    Path("lengths.csv").write_text("new_tokens\n100\n900\n", encoding="utf-8")
    [found] = timed(capsys, pages, arguments, **columns)
    lengths = [*zip(*columns.values(), strict=True)] or len(pages) * [(10, 1024)]
    most = min(16, len(pages))
    loads = [
        predicted(
            page, **{"text_tokens": text, "new_tokens": new, "concurrency": most} | assumed
        ).throughput[0]
        for page, (text, new) in zip(pages, lengths, strict=True)
    ]
    hours = sum(1 / load.pages_per_second for load in loads) / 3600
    assert found["gpu_hours"] == pytest.approx(hours, rel=EXACT)
    assert found["pages_per_second"] == pytest.approx(len(pages) / hours / 3600, rel=EXACT)
    assert found["low"] < hours < found["high"]
    if not columns and pages is not ALIKE:
        band = loads[0].pages_per_second_band
        hours_of_both = [found["low"] * band.high, found["high"] * band.low]
        assert hours_of_both == pytest.approx([len(pages) / 3600] * 2, rel=EXACT)
    runtime = "eager" if "host" in assumed else "serving"
    assert (found["runtime"], found["bound"]) == (runtime, loads[0].bound)


def test_a_slow_cpu_bounds_it_and_has_no_band(capsys):
    """Half a second of CPU per page, two at a time: four pages a second."""
    options = "--gpu h100-sxm --preprocess-ms 500 --workers 2 --max-new-tokens 10"
    [found] = timed(capsys, [TINY] * 10, options)
    assert (found["bound"], found["low"], found["high"]) == ("workers", *2 * [found["gpu_hours"]])
    assert found["pages_per_second"] == pytest.approx(4, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "pages", "figures"),
    [
        ("--price 2.5 --deadline 19m", 4800,
         {"gpu_hours": 1, "cost": 2.5, "deadline_hours": 19 / 60, "gpus_for_deadline": 4}),
        ("--deadline 25m", 4800, {"gpus_for_deadline": 3}),
        ("--deadline 1 --price 1", 0, dict.fromkeys(
            ("gpu_hours", "low", "high", "pages_per_second", "cost", "gpus_for_deadline"), 0)),
    ],
)  # fmt: skip
def test_money_and_deadlines_by_hand(capsys, options, pages, figures):
    """Three quarters of a second a page, all of it the CPU's: 4,800 pages take an hour."""
    slow = f"--gpu h100-sxm --preprocess-ms 750 --max-new-tokens 1 {options}"
    [found] = timed(capsys, [TINY] * pages, slow)
    assert {name: found[name] for name in figures} == pytest.approx(figures, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "hours"),
    [("90m", 1.5), ("12h", 12), ("3d", 72), ("36", 36), ("1.5 h", 1.5), ("0.5D", 12), ("3w", 504),
     ("900s", 0.25), ("1800000ms", 0.5),
     *((text, None) for text in ("", "0", "0h", "-3", "3y", "h", "1e3", "nan", "2h30m"))],
)  # fmt: skip
def test_a_deadline_is_a_number_of_hours_or_has_a_unit(text, hours):
    refused = pytest.raises(
        errors.WorkloadError, match=r"--deadline .* like 90m, 12h, 3d, or hours"
    )
    with nullcontext() if hours else refused:
        assert time_requests.deadline_hours(text) == pytest.approx(hours)


def test_there_is_one_entry_for_each_gpu_and_setting_and_without_a_gpu_none(capsys):
    without, document = (
        json.loads(archive(capsys, [A4], f"--format json --mode tiny,gundam {gpus}")[1])
        for gpus in ("", "--gpu h100-sxm --gpu l40s")
    )
    found = document.pop("time")
    assert document | {"options": None} == without | {"options": None}
    columns = ("gpu", "mode", "concurrency", "cost", "deadline_hours", "gpus_for_deadline")
    assert [[each[name] for name in columns] for each in found] == [
        [gpu, mode, 1, None, None, None]
        for gpu in ("h100-sxm", "l40s") for mode in ("tiny", "gundam")
    ]  # fmt: skip
    for each in found:
        said = " ".join(each["assumptions"])
        assert f"{each['gpu']}: kernel times from" in said
        assert "if all pages in flight were like it" in said


@pytest.mark.parametrize(("lengths", "is_said"), [("--mean-new-tokens 200", True), ("", False)])
def test_seconds_of_other_lengths_than_the_counts_say_so(capsys, lengths, is_said):
    _, out, _ = archive(capsys, [TINY], f"--gpu l40s --assumptions {lengths}")
    said = "1 page; FLOPs and bytes for the most new tokens, seconds for those given"
    assert [each in out for each in (said, "FLOPs and bytes are counted for")] == [is_said] * 2


def test_tables_fit_80_columns_and_pages_that_wait_are_told(capsys):
    asked = ("--gpu rtx-pro-6000,l40s --mode gundam,1024/640 --price 2.5 --deadline 1.5h"
             " --concurrency 500 --assumptions --strict")  # fmt: skip
    code, out, err = archive(capsys, [A4] * 500, asked)
    assert code == 3
    assert "500 of 500 pages leave room for fewer than 500 at a time on l40s" in err
    [shown] = re.findall(
        "Predicted: serving, vllm, 500 pages at once\n(.*)Pages by crop grid\n", out, re.S
    )
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    assert "cost at 2.5 per hour, GPUs to finish in 1.5 h" in shown
    assert "Assumed: every page generates the most tokens it may\n" in out


def assert_timed_row(row, lengths=None, price=None, **assumed):
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
        assert_timed_row(row, **assumed)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("--gpu", "h100-sxm"), (*SCHEMA, *TIMES)),
        (("--gpu", "h100-sxm", "--price", "1", "--max-new-tokens", "1"), (*SCHEMA, *TIMES, COST)),
    ],
)
def test_with_a_gpu_columns_come_last(arguments, names):
    types = {"gpu": pa.string(), "fits": pa.bool_()}
    columns = [(each.name, each.type) for each in rows_of(*arguments).schema]
    assert tuple(name for name, _ in columns) == names
    assert columns[len(SCHEMA) :] == [
        (name, types.get(name, pa.float64())) for name in names[len(SCHEMA) :]
    ]


def test_counts_are_those_without_a_gpu_and_a_parquet_file_says_what_was_assumed():
    asked = ("--page", "a4,600:3000:1200x800", "--batch-size", "1,4")
    timed = rows_of(*asked, "--gpu", "l40s", "--workers", "3")
    assert timed.select(SCHEMA).equals(rows_of(*asked))
    notes = "".join(json.loads(timed.schema.metadata[METADATA_KEY])["metadata"]["notes"])
    for said in ("every page generates the most tokens it may", "3 at a time"):
        assert said in notes


@pytest.mark.exhaustive
def test_every_gpu_has_its_rows_and_rows_without_a_value_are_left_out_of_a_plot(capsys, drawn):
    gpus = rows_of("--gpu", "h100,l40s", "--gpu", "l40s", "--batch-size", "1:3")["gpu"].to_pylist()
    assert gpus == 3 * ["h100-sxm"] + 3 * ["l40s"]
    plot = ("--quantity", "tpot_seconds", "--plot", "rate.svg")
    assert run(capsys, "sweep", "--gpu", "l40s", "--max-new-tokens", "1:3", *plot)[0] == 0
    assert [*drawn[0].axes.get_lines()[0].get_xdata()] == [2, 3]


@pytest.mark.parametrize("mode", DEFAULT.modes.values(), ids=lambda mode: mode.name)
def test_pixels_of_many_pages_are_those_of_each(mode):
    sides = np.random.default_rng(3).integers(1, 6000, (2, 30))
    job = Assumptions(SERVERS["sglang"])
    assert job.prepare_seconds_of_pages(DEFAULT, mode, *sides).tolist() == [
        job.prepare_seconds(DEFAULT, planned(page, mode)) for page in map(tuple, sides.T.tolist())
    ]
