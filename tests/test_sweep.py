"""Sweeps: axes, rows against the scalar closed forms, files, plots, and what is refused."""

import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import command_line
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sampling import first, sampled
from single_page import page_costs

from dsocr_analyze.architectures import DEFAULT, plan_workload
from dsocr_analyze.architectures.deepseek_ocr import MODES
from dsocr_analyze.archive.axes import parse_modes, parse_numbers, parse_pages
from dsocr_analyze.archive.combinations import Sweep
from dsocr_analyze.archive.evaluate import BATCH_RESULTS
from dsocr_analyze.archive.setting import opening_of, published_model, settings_of
from dsocr_analyze.archive.sweep_shown import QUANTITIES, describe
from dsocr_analyze.archive.table_files import METADATA_KEY, table_writer
from dsocr_analyze.cli import main
from dsocr_analyze.dtypes import BFLOAT16, dtype_named
from dsocr_analyze.errors import FormatError, WorkloadError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.workload import parse_page

INPUTS = (
    "page_width",
    "page_height",
    "mode",
    "base_size",
    "image_size",
    "crop_mode",
    "dtype",
    "attention",
    "text_tokens",
    "max_new_tokens",
    "batch_size",
)
"""Columns that say what a row is the cost of."""

SCHEMA = (*INPUTS, *BATCH_RESULTS, "weights_bytes")
FIGURES = ("matrix_flops", "vector_flops", "flops", "bytes_read", "bytes_written")
EXPECTED = "decode_step_bytes_read_expected"
FLOATS = {EXPECTED, *(f"page_{figure}" for figure in FIGURES)}


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(capsys, *arguments):
    """Exit code, stdout and stderr of one `sweep`."""
    return command_line.run(capsys, "sweep", *arguments)


def assert_row(row):
    """The row is what the scalar closed forms say about its own inputs."""
    workload = plan_workload(
        page=(row["page_width"], row["page_height"]),
        base_size=row["base_size"],
        image_size=row["image_size"],
        crop_mode=row["crop_mode"],
        text_tokens=row["text_tokens"],
        max_new_tokens=row["max_new_tokens"],
        batch_size=row["batch_size"],
    )
    costs = page_costs(
        published_model().dimensions,
        workload,
        dtype_named(row["dtype"]),
        flash_attention=row["attention"] == "flash_attention_2",
    )
    assert (row["grid_columns"], row["grid_rows"]) == workload.grid
    assert (row["visual_tokens"], row["seq_len"]) == (workload.visual_tokens, workload.seq_len)
    for name, work in (
        ("prefill_pass", costs.prefill),
        ("decode_step", costs.decode_step),
        ("batch", costs.batch),
    ):
        for figure in FIGURES:
            assert row[f"{name}_{figure}"] == getattr(work, figure), (name, figure)
    for figure in FIGURES:
        share = getattr(costs.batch, figure) / workload.batch_size
        assert row[f"page_{figure}"] == pytest.approx(share, rel=1e-15), figure
    # 11 layers of 64 experts, 6 a token, three matrices of 1280 x 896 each.
    expected, most = 64 * (1 - (58 / 64) ** workload.batch_size), min(64, 6 * workload.batch_size)
    fewer = 11 * (most - expected) * 3 * 1280 * 896 * dtype_named(row["dtype"]).nbytes
    assert row[EXPECTED] == pytest.approx(row["decode_step_bytes_read"] - fewer, rel=1e-12)
    assert row["kv_cache_bytes"] == costs.kv_cache_bytes
    assert row["peak_activation_bytes"] == costs.peak_activation_bytes
    assert row["weights_bytes"] == costs.weights_bytes


# Axes --------------------------------------------------------------------------------------------


def values_of(axis):
    [values] = axis.take(np.arange(len(axis))).tolist()
    return values


def pages_of(text):
    axis = parse_pages("page", text)
    widths, heights = axis.take(np.arange(len(axis)))
    return list(zip(widths.tolist(), heights.tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", [7]),
        ("10, 20", [10, 20]),
        ("1:4", [1, 2, 3, 4]),
        ("10:35:10", [10, 20, 30]),
        ("5,10:30:10,1:2", [5, 10, 20, 30, 1, 2]),
    ],
)
def test_numbers_are_lists_and_ranges_that_include_their_stop(text, expected):
    assert values_of(parse_numbers("text_tokens", text, 1, 100)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a4", [parse_page("a4")]),
        ("Letter,1240X1754", [parse_page("letter"), (1240, 1754)]),
        ("a4@100:300:100", [parse_page(f"a4@{dpi}") for dpi in (100, 200, 300)]),
        ("10:30:10x7", [(10, 7), (20, 7), (30, 7)]),
        ("1:2x3:4,9x9", [(1, 3), (1, 4), (2, 3), (2, 4), (9, 9)]),
    ],
)
def test_pages_are_names_and_grids_of_sizes(text, expected):
    assert pages_of(text) == expected


def test_modes_are_names_and_sizes():
    assert parse_modes("mode", "all", DEFAULT) == tuple(MODES.values())
    sizes = [
        (mode.base_size, mode.image_size, mode.crop_mode)
        for mode in parse_modes("mode", "base,1024/640,512:640:64,1024:1280:256/640", DEFAULT)
    ]
    assert sizes == [
        (1024, 1024, False),
        (1024, 640, True),
        (512, 512, False),
        (576, 576, False),
        (640, 640, False),
        (1024, 640, True),
        (1280, 640, True),
    ]


def test_an_error_names_the_argument_and_the_command_line_its_option(capsys):
    with pytest.raises(WorkloadError, match=r"^text_tokens 0 is out of range") as raised:
        parse_numbers("text_tokens", "0", 1, 9)
    assert raised.value.arguments == ("text_tokens",)
    assert "dsocr-analyze: --text-tokens 0 is out of range" in run(capsys, "--text-tokens", "0")[2]


def test_an_axis_is_never_spelled_out():
    axis = parse_pages("page", "1:1000000x1:1000000")
    assert len(axis) == 10**12
    assert [side.tolist() for side in axis.take(np.array([10**12 - 1]))] == [[10**6], [10**6]]


# Rows --------------------------------------------------------------------------------------------


LENGTHS = ("text_tokens", "max_new_tokens", "batch_size")


def sweep_of(pages, modes, *lengths, dtypes=(BFLOAT16,), attentions=(False,)):
    """The sweep over axes in text: pages, modes and `LENGTHS`."""
    axes = (parse_numbers("n", text, 1, 10**6) for text in lengths)
    ways = settings_of(dtypes, attentions, parse_modes("mode", modes, DEFAULT))
    return Sweep(parse_pages("page", pages), ways, dict(zip(LENGTHS, axes, strict=True)))


@sampled("examples", [2, 12], first(1))
def test_every_row_is_what_the_scalar_closed_forms_say(examples):
    @settings(max_examples=examples, deadline=None)
    @given(
        pages=st.lists(
            st.tuples(st.integers(1, 4000), st.integers(1, 4000)), min_size=1, max_size=2
        ),
        modes=st.lists(
            st.sampled_from([*MODES, "1024/512", "100", "1000/700"]), min_size=1, max_size=2
        ),
        texts=st.lists(st.integers(1, 3000), min_size=1, max_size=2),
        news=st.lists(st.integers(1, 3000), min_size=1, max_size=2),
        batches=st.lists(st.integers(1, 40), min_size=1, max_size=2),
        dtypes=st.sampled_from([("bfloat16",), ("float32", "float16")]),
        attentions=st.sampled_from([(False,), (True, False)]),
    )  # fmt: skip
    def each_row(pages, modes, texts, news, batches, dtypes, attentions):
        sweep = sweep_of(
            ",".join(f"{width}x{height}" for width, height in pages),
            ",".join(modes),
            *(",".join(map(str, numbers)) for numbers in (texts, news, batches)),
            dtypes=tuple(map(dtype_named, dtypes)),
            attentions=attentions,
        )
        rows = pa.Table.from_batches(sweep.batches(published_model())).to_pylist()
        assert len(rows) == sweep.rows
        names = ("dtype", "attention", "mode", "text_tokens", "max_new_tokens", "batch_size")
        kinds = ["flash_attention_2" if flash else "eager" for flash in attentions]
        expected = itertools.product(dtypes, kinds, modes, pages, texts, news, batches)
        for row, (dtype, kind, mode, page, *lengths) in zip(rows, expected, strict=True):
            assert (row["page_width"], row["page_height"]) == page
            assert [row[name] for name in names] == [dtype, kind, mode, *lengths]
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


def test_csv_goes_to_stdout_and_nothing_else(capfdbinary):
    assert main(["sweep", *SMALL]) == 0
    out, err = capfdbinary.readouterr()
    assert err == b""
    lines = out.decode().splitlines()
    assert lines[0] == ",".join(SCHEMA)
    assert len(lines) == 13
    assert '"' not in out.decode()


@pytest.mark.exhaustive
@pytest.mark.parametrize("suffix", ["csv", "parquet", "PQ"])
def test_a_file_has_every_row_with_units_in_the_names(capsys, suffix):
    code, out, err = run(capsys, *SMALL, "--output", f"costs.{suffix}")
    beside = "wrote costs.csv.json (their metadata)\n" if suffix == "csv" else ""
    assert (code, out, err) == (0, f"wrote costs.{suffix} (12 rows)\n{beside}", "")
    if suffix == "csv":
        from pyarrow import csv

        table = csv.read_csv("costs.csv")
    else:
        table = pq.read_table(f"costs.{suffix}")
    assert tuple(table.schema.names) == SCHEMA
    kinds = {name: table.schema.field(name).type for name in SCHEMA}
    assert {name for name in SCHEMA if kinds[name] == pa.string()} == {"mode", "dtype", "attention"}
    # CSV has no types, and what is expected of one or two pages is a whole number of bytes.
    floats = FLOATS - {EXPECTED} if suffix == "csv" else FLOATS
    assert {name for name in SCHEMA if kinds[name] == pa.float64()} == floats
    assert {name for name in SCHEMA if kinds[name] == pa.int64()} == {*SCHEMA} - floats - {
        "mode",
        "dtype",
        "attention",
        "crop_mode",
    }
    for row in table.to_pylist():
        assert_row(row)


def test_a_parquet_file_says_which_model_it_is_about(capsys):
    run(capsys, *SMALL, "--output", "costs.parquet")
    about = json.loads(pq.read_schema("costs.parquet").metadata[METADATA_KEY])
    assert about["model"]["source"] == "reference"
    assert len(about["model"]["config_digest"]) == 64
    metadata = about["metadata"]
    assert metadata["versions"]["tool"]
    assert metadata["conventions"]
    assert any("routing is uniform" in note for note in metadata["notes"])


@pytest.mark.exhaustive
def test_two_equal_sweeps_write_equal_bytes(capsys):
    for name in ("a", "b"):
        run(capsys, *SMALL, "--output", f"{name}.parquet", "--plot", f"{name}.svg")
    for suffix in ("parquet", "svg"):
        assert Path(f"a.{suffix}").read_bytes() == Path(f"b.{suffix}").read_bytes()


def test_another_config_is_another_model(capsys):
    reference = (
        Path(__file__).parent.parent
        / "src/dsocr_analyze/architectures/deepseek_ocr/reference/config.json"
    )
    config = json.loads(reference.read_text()) | {"num_hidden_layers": 2}
    Path("small.json").write_text(json.dumps(config))
    run(capsys, "--config", "small.json", "--output", "small.parquet")
    run(capsys, "--output", "whole.parquet")
    small, whole = (pq.read_table(f"{name}.parquet").to_pylist()[0] for name in ("small", "whole"))
    assert small["weights_bytes"] < whole["weights_bytes"]
    assert small["decode_step_flops"] < whole["decode_step_flops"]


def test_lengths_beyond_the_positions_are_a_warning_and_strict_a_failure(capsys):
    arguments = ("--max-new-tokens", "1,8000", "--output", "costs.csv")
    code, _, err = run(capsys, *arguments)
    assert code == 0
    assert "1 of 2 workloads exceed" in err
    code, _, _ = run(capsys, *arguments, "--strict")
    assert code == 3


SWAPPED = "mode 640/1024: base_size 640 is below image_size 1024"
ODD = "mode 1000: image_size 1000 is not a multiple of 64"


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [["sweep"], ["archive", "p.csv"], ["sweep", "--pages", "p.csv"],
                                     ["advise"]])  # fmt: skip
def test_odd_sizes_are_warned_of_and_strict_makes_them_a_failure(capsys, command):
    Path("p.csv").write_text("width,height\n1240,1754\n")
    code, _, err = command_line.run(capsys, *command, "--mode", "640/1024,base,1000")
    assert code == 0
    warnings = [line for line in err.splitlines() if "warning" in line]
    assert [SWAPPED in warnings[0], ODD in warnings[1], len(warnings)] == [True, True, 2]
    assert "--base-size" not in err, "the sizes come from --mode"
    code, _, _ = command_line.run(capsys, *command, "--mode", "640/1024", "--strict")
    assert code == 3
    code, _, err = command_line.run(capsys, *command, "--mode", "all", "--strict")
    assert (code, err) == (0, "")


@pytest.mark.exhaustive
def test_of_many_odd_sizes_only_the_first_are_named(capsys):
    code, _, err = run(capsys, "--mode", "641:663")
    assert code == 0
    assert err.count("not a multiple of 64") == 6
    assert "17 more warnings about the sizes of modes" in err


@pytest.mark.exhaustive
@pytest.mark.parametrize("new_tokens", [64, 4096])
def test_the_sliding_window_is_an_axis(capsys, new_tokens):
    arguments = ("--arch", "unlimited-ocr", "--max-new-tokens", new_tokens)
    run(capsys, *arguments, "--sliding-window", "0,1", "--gpu", "h100-sxm", "--output", "w.parquet")
    rows = pq.read_table("w.parquet").to_pylist()
    assert [row["sliding_window"] for row in rows] == [False, True]
    for row in rows:
        _, out, _ = command_line.run(
            capsys, "--engine", "analytic", *arguments, "--json", "-", "-q",
            "--sliding-window", int(row["sliding_window"]),
        )  # fmt: skip
        report = json.loads(out)
        for figure in FIGURES:
            assert row[f"batch_{figure}"] == report["total"]["batch"][figure], figure
        assert row["kv_cache_bytes"] == report["memory"]["kv_cache_bytes"]
    # The window holds 128 tokens: beyond that it saves bytes, and so time.
    without, within = rows
    assert (without["batch_bytes_read"] > within["batch_bytes_read"]) == (new_tokens > 128)
    assert (without["page_seconds"] > within["page_seconds"]) == (new_tokens > 128)


def test_a_window_is_refused_where_the_model_has_none(capsys):
    code, _, err = run(capsys, "--sliding-window", "0")
    assert (code, err.count("\n")) == (2, 1)
    assert "deepseek-ocr has no sliding window" in err


class TestInterruption:
    @pytest.mark.parametrize("suffix", ["csv", "parquet"])
    @pytest.mark.parametrize(
        ("error", "expected"),
        [(KeyboardInterrupt, 130), (OSError(28, "No space left on device"), 74)],
    )
    def test_it_leaves_the_old_file_and_nothing_else(
        self, capsys, monkeypatch, suffix, error, expected
    ):
        original = Sweep.batches

        def interrupted(self, model):
            yield next(original(self, model))
            raise error

        monkeypatch.setattr(Sweep, "batches", interrupted)
        target = Path(f"costs.{suffix}")
        target.write_text("old")
        code, out, err = run(capsys, *SMALL, "--output", target)
        assert (code, out) == (expected, "")
        assert err.count("\n") == 1
        assert target.read_text() == "old"
        assert list(Path().iterdir()) == [target]

    @pytest.mark.exhaustive
    @pytest.mark.skipif(os.name == "nt", reason="needs SIGINT")
    def test_a_real_interrupt_does_the_same(self):
        target = Path("costs.csv")
        target.write_text("old")
        command = [sys.executable, "-m", "dsocr_analyze", "sweep", "--output", str(target), "--yes"]
        command += ["--text-tokens", "1:1000000", "--max-new-tokens", "1:1000"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if sum(file.stat().st_size for file in Path().glob(".dsocr-*")) > 10**6:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert err == "dsocr-analyze: interrupted; nothing was written\n"
        assert target.read_text() == "old"
        assert list(Path().iterdir()) == [target]

    def test_a_plot_that_fails_takes_the_table_with_it(self, capsys):
        code, _, err = run(
            capsys, *SMALL, "--batch-size", "1:9", "--output", "costs.csv", "--plot", "costs.png",
            "--x", "page",
        )  # fmt: skip
        assert code == 2
        assert "lines" in err
        assert list(Path().iterdir()) == []


# Plots -------------------------------------------------------------------------------------------


def texts_of(svg):
    return [
        "".join(element.itertext()) for element in ET.parse(svg).iter()
        if element.tag.endswith("}text")
    ]  # fmt: skip


def subtitle_of(svg):
    [group] = [each for each in ET.parse(svg).iter() if each.get("id") == "subtitle"]
    return " ".join("".join(group.itertext()).split())


@pytest.mark.exhaustive
def test_a_picture_is_a_png_or_an_svg_with_title_axes_and_units(capsys):
    arguments = ("--page", "200:2000:100x1500", "--mode", "base,gundam")
    assert run(capsys, *arguments, "--plot", "costs.png") == (0, "wrote costs.png\n", "")
    with Image.open("costs.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > 1000
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 10
    run(capsys, *arguments, "--plot", "costs.svg", "--quantity", "prefill_pass_bytes_read")
    texts = texts_of("costs.svg")
    assert "Bytes read of the prefill pass" in texts
    assert subtitle_of("costs.svg").endswith(
        "page height 1500 pixels, base size 1024 pixels, 10 text tokens, 1,024 new tokens, batch of"
        " 1, bfloat16, eager attention"
    )
    assert "page width [pixels]" in texts
    assert "bytes read of the prefill pass [GB]" in texts
    assert {"base mode", "gundam mode"} <= set(texts)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arguments", "label"),
    [
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
)
def test_the_axis_with_most_values_is_along_the_plot(capsys, arguments, label):
    code, _, err = run(capsys, *arguments, "--plot", "costs.svg")
    assert (code, err) == (0, "")
    assert label in texts_of("costs.svg")


def test_every_quantity_has_a_name_and_a_unit(capsys):
    assert {describe(quantity)[1] for quantity in QUANTITIES} == {"FLOPs", "B", "tokens"}
    assert len({describe(quantity)[0] for quantity in QUANTITIES}) == len(QUANTITIES)
    assert set(QUANTITIES) == set(BATCH_RESULTS) - {"grid_columns", "grid_rows"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("histogram", ["grid", "tokens"])
def test_an_archive_is_plotted_as_its_histogram(capsys, histogram):
    Path("pages.csv").write_text("width,height\n640,640\n1240,1754\n1240,1754\n")
    code, _, _ = run(capsys, "--pages", "pages.csv", "--plot", "p.svg", "--histogram", histogram)
    assert code == 0
    texts = texts_of("p.svg")
    assert subtitle_of("p.svg").startswith("3 pages of pages.csv, DeepSeek-OCR, ")
    assert "pages" in texts
    assert ("2 x 3" in texts) == (histogram == "grid")


@pytest.mark.exhaustive
def test_several_modes_of_an_archive_are_series_of_one_picture(capsys):
    Path("pages.csv").write_text("width,height\n1240,1754\n640,640\n")
    arguments = ("--histogram", "tokens", "--mode", "tiny,gundam", "--plot", "p.svg", "-q")
    assert run(capsys, "--pages", "pages.csv", *arguments) == (0, "", "")
    assert {"tiny mode", "gundam mode"} <= set(texts_of("p.svg"))


def test_a_plot_without_matplotlib_names_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run(capsys, "--plot", "costs.png")
    assert code == 2
    assert err.count("\n") == 1
    assert "dsocr-analyze[plot]" in err


# What is asked and refused -----------------------------------------------------------------------


HUGE = ("--text-tokens", "1:1000000", "--max-new-tokens", "1:11")


class Terminal(io.StringIO):
    def isatty(self):
        return True


class TestHugeSweep:
    def test_it_needs_a_flag_where_nobody_can_be_asked(self, capsys, monkeypatch):
        monkeypatch.setattr("sys.stdin", io.StringIO())
        code, out, err = run(capsys, *HUGE)
        assert (code, out) == (2, "")
        assert "11,000,000 rows" in err
        assert "--yes" in err

    @pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2), ("", 2)])
    def test_it_asks_a_person_before_it_starts(self, capsys, monkeypatch, answer, code):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        monkeypatch.setattr(Sweep, "batches", lambda self, model: iter(()))
        found, _, err = run(capsys, *HUGE, "-q", "--output", "rows.csv")
        assert found == code
        assert "11,000,000 rows" in err

    def test_it_starts_with_the_flag(self, capsys, monkeypatch):
        monkeypatch.setattr(Sweep, "batches", lambda self, model: iter(()))
        assert run(capsys, *HUGE, "-q", "--output", "rows.csv", "--yes")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--page", "a9"), "no page size 'a9'"),
        (("--page", "0x10"), "0 x 10 pixels is invalid"),
        (("--page", "a4,,a5"), "empty item"),
        (("--page", "1:9999999x1"), "9999999 x 1 pixels is invalid"),
        (("--page", f"a4@1:{10**30}"), "values; give at most"),
        (("--mode", "huge"), "no mode 'huge'"),
        (("--mode", "10"), "mode '10' is invalid"),
        (("--mode", f"64:{10**30}"), "values; give at most"),
        (("--mode", "100:9000/100:9000"), "modes; give at most"),
        (("--text-tokens", "0"), "--text-tokens 0 is out of range"),
        (("--text-tokens", "ten"), "'ten' is not a whole number or range"),
        (("--text-tokens", "10:5"), "empty range"),
        (("--text-tokens", "1:5:0"), "empty range"),
        (("--text-tokens", "1:2:3:4"), "not a whole number or range"),
        (("--max-new-tokens", f"1:{10**30}"), "is out of range"),
        (("--batch-size", "1.5"), "'1.5' is not a whole number"),
        (("--dtype", "int8"), "'int8' is unknown"),
        (("--use-flash-attn", "2"), "give 0, 1 or 0,1"),
        (("--arch", "unlimited-ocr", "--sliding-window", "2"), "--sliding-window '2'"),
        (("--plot", "costs.png", "--quantity", "joy"), "no quantity 'joy'"),
        (("--plot", "costs.png", "--x", "joy"), "no axis 'joy'"),
        (("--plot", "costs.png", "--text-tokens", "1:30000"), "30,000 rows is not readable"),
        (("--format", "json"), "--format json is for a list of pages"),
        (("--histogram", "grid"), "--histogram grid is for a list of pages"),
        (("--quantity", "page_flops"), "--quantity page_flops is for a picture"),
        (("--x", "mode"), "--x mode is for a picture"),
        (("--config", "gone.json"), "gone.json"),
        (("--yes", "--page", "1:1000000x1:1000000", "--text-tokens", "1:1000000",
          "--max-new-tokens", "1:1000000"), "give shorter ranges"),
        (("--text-tokens", "1000000", "--batch-size", "1000000"), "does not fit a 64-bit column"),
    ],
)  # fmt: skip
def test_what_is_not_possible_is_one_line_and_exit_2(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [
        (("--output", "costs.txt"), 2, ".csv, .parquet"),
        (("--output", "gone/costs.csv"), 74, "no folder 'gone'"),
        (("--plot", "costs.gif"), 2, ".png or .svg"),
        (("--plot", "gone/costs.png"), 74, "no folder 'gone'"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    capsys, arguments, expected, message
):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (expected, "")
    assert err.count("\n") == 1
    assert message in err
    assert list(Path().iterdir()) == []


def test_a_count_beyond_64_bits_is_refused_before_and_never_wraps():
    sweep = sweep_of("a4", "base", "1,1000000", "1", "1,600000")
    with pytest.raises(WorkloadError, match="64-bit"):
        sweep.check(published_model())
    with pytest.raises(WorkloadError, match="64-bit"):
        list(sweep.batches(published_model()))


def test_a_table_of_an_unknown_format_is_refused_by_the_writer_too(tmp_path):
    directory = ModelDirectory.read(DEFAULT.reference)
    opening = opening_of(directory, DEFAULT, DEFAULT.modes.values())
    with (
        pytest.raises(FormatError, match="cannot tell the format"),
        table_writer(tmp_path / "x.json", opening),
    ):
        pass


# The process -------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_neither_command_imports_torch():
    Path("pages.csv").write_text("width,height\n640,640\n")
    code = (
        "import sys; from dsocr_analyze.cli import main\n"
        "import dsocr_analyze.archive, dsocr_analyze.archive\n"
        "assert not {'numpy', 'pyarrow'} & set(sys.modules)\n"
        "quiet = ('-q', '--output', 'rows.csv')\n"
        "assert main(['sweep', *quiet]) == main(['archive', 'pages.csv', *quiet]) == 0\n"
        "assert not {'torch', 'transformers', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.exhaustive
@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX pipe")
def test_a_reader_that_has_had_enough_ends_it_in_silence():
    command = [sys.executable, "-m", "dsocr_analyze", "sweep", "--text-tokens", "1:200000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 141


class TestProgress:
    @pytest.fixture
    def watch(self, monkeypatch):
        """Puts somebody in front of stderr; in the test, as pytest exchanges it before that."""

        def watch():
            terminal = Terminal()
            monkeypatch.setattr("sys.stderr", terminal)
            monkeypatch.setenv("TERM", "xterm")
            return terminal

        return watch

    def test_a_short_sweep_shows_none(self, watch):
        terminal = watch()
        assert main(["sweep", "-q", "--output", "rows.csv"]) == 0
        assert terminal.getvalue() == ""

    def test_a_long_sweep_shows_how_far_it_is(self, watch, monkeypatch):
        monkeypatch.setattr("dsocr_analyze.cli.streams._PATIENCE_SECONDS", 0.0)
        terminal = watch()
        assert main(["sweep", "-q", "--output", "rows.csv", "--text-tokens", "1:9"]) == 0
        assert "9/9" in terminal.getvalue()

    def test_rows_on_a_terminal_are_not_mixed_with_it(self, watch, monkeypatch, capsys):
        monkeypatch.setattr("dsocr_analyze.cli.streams._PATIENCE_SECONDS", 0.0)
        terminal = watch()
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert main(["sweep", "--text-tokens", "1:9"]) == 0
        shown = capsys.readouterr().out
        assert "Sweep of 9 workloads" in shown
        assert "9/9" not in shown
        assert "9/9" in terminal.getvalue()

    def test_where_nobody_watches_there_is_none(self, capsys, monkeypatch):
        monkeypatch.setattr("dsocr_analyze.cli.streams._PATIENCE_SECONDS", 0.0)
        assert run(capsys, "-q", "--output", "rows.csv") == (0, "", "")
