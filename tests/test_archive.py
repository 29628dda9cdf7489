"""Lists of pages: the batch function, sources of every kind, exact totals, and bad rows."""

import gzip
import importlib.util
import itertools
import json
import random
import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import run
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from single_page import page_costs

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT, plan_workload
from dsocr_analyze.architectures.deepseek_ocr import MODES
from dsocr_analyze.archive import count_pages
from dsocr_analyze.archive.archive_shown import grid_bars
from dsocr_analyze.archive.document import PagesOfGrid
from dsocr_analyze.archive.evaluate import PAGE_RESULTS, Workloads
from dsocr_analyze.archive.pages import REPORTED_ROWS, open_pages, read_pages
from dsocr_analyze.archive.setting import Setting, opening_of, published_model
from dsocr_analyze.archive.totals import (
    _LENGTH_BITS,
    add_up,
    bars_of_each,
    distinct_workloads,
    weighted_sum,
)
from dsocr_analyze.dtypes import BFLOAT16, dtype_named
from dsocr_analyze.errors import PageError, WorkloadError
from dsocr_analyze.kernels import total_work
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.workload.workload import LARGEST_COUNT

crop_grid, GRIDS, CROP_GRIDS = DEFAULT.crop.grid, DEFAULT.crop.grids, DEFAULT.forms.crop_grids
WORK = ("matrix_flops", "vector_flops", "flops", "bytes_read", "bytes_written")
ROOT = Path(__file__).parent.parent
SIDES = st.one_of(st.integers(1, 5000), st.sampled_from([640, 641, 1280, 1920]), st.just(10**6))


def added_up(path, mode="gundam", model=None):
    """What a list costs, and its totals, in one mode."""
    pages = read_pages(open_pages(path).batches, text_tokens=10, max_new_tokens=1024)
    document = in_one_mode(pages, mode, model).document
    return document, document.totals[0]


def in_one_mode(pages, mode, model=None, **given):
    setting = Setting(DEFAULT.modes[mode], BFLOAT16)
    opening = opening_of(ModelDirectory.read(DEFAULT.reference), DEFAULT, [setting.mode])
    return add_up(model or published_model(), [setting], pages, opening, **given)


def pages_by_grid(document):
    return {each.grid: each.pages for each in document.pages_by_grid}


def works_of(totals):
    """The figures of all prefill passes and of all pages."""
    parts = ("prefill_pass", "page")
    return {f"{part}_{name}": getattr(totals, f"{part}_{name}") for part in parts for name in WORK}


def expected_row(width, height, mode="gundam", flash=False, dtype="bfloat16", **lengths):
    """The columns of `PAGE_RESULTS` by the scalar closed forms."""
    chosen = MODES[mode]
    workload = plan_workload(
        page=(width, height),
        base_size=chosen.base_size,
        image_size=chosen.image_size,
        crop_mode=chosen.crop_mode,
        **lengths,
    )
    costs = page_costs(
        published_model().dimensions, workload, dtype_named(dtype), flash_attention=flash
    )
    row = {
        "grid_columns": workload.grid[0],
        "grid_rows": workload.grid[1],
        "visual_tokens": workload.visual_tokens,
        "seq_len": workload.seq_len,
        "kv_cache_bytes": costs.kv_cache_bytes,
        "peak_activation_bytes": costs.peak_activation_bytes,
    }
    for name, work in (
        ("prefill_pass", costs.prefill),
        ("decode_step", costs.decode_step),
        ("page", costs.batch),
    ):
        for figure in ("matrix_flops", "vector_flops", "flops", "bytes_read", "bytes_written"):
            row[f"{name}_{figure}"] = getattr(work, figure)
    return row


# Crop grids --------------------------------------------------------------------------------------


def codes_of(pages):
    pages = np.array(pages, np.int64).reshape(-1, 2)
    columns, rows = CROP_GRIDS.columns_and_rows(CROP_GRIDS.codes(pages[:, 0], pages[:, 1]))
    return list(zip(columns.tolist(), rows.tolist(), strict=True))


def test_the_grids_are_the_golden_ones():
    golden = json.loads((ROOT / "tests/data/golden_grids.json").read_text())
    assert codes_of([row[:2] for row in golden]) == [tuple(row[2:]) for row in golden]


@pytest.mark.exhaustive
@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=200))
def test_the_grids_are_those_of_the_scalar_function(pages):
    assert codes_of(pages) == [crop_grid(*page) for page in pages]


def test_the_grids_are_the_same_where_two_aspects_are_as_near():
    # Aspects halfway between those of two grids, at sizes below and above half of their tiles.
    aspects = sorted({(c / r, c, r) for c, r in GRIDS})
    pages = [
        (scale * (c1 * r2 + c2 * r1), scale * 2 * r1 * r2)
        for (_, c1, r1), (_, c2, r2) in itertools.pairwise(aspects)
        for scale in (1, 7, 20, 64, 90, 128, 333, 640)
    ]
    pages += [(scale * c, scale * r) for c, r in GRIDS for scale in range(300, 700, 10)]
    assert codes_of(pages) == [crop_grid(*page) for page in pages]


# The batch function ------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("examples", [6, 25])
def test_every_row_is_what_the_scalar_closed_forms_say(examples):
    @settings(max_examples=examples, deadline=None)
    @given(
        rows=st.lists(
            st.tuples(SIDES, SIDES, st.integers(1, 5000), st.integers(1, 5000)),
            min_size=1,
            max_size=8,
        ),
        mode=st.sampled_from(list(MODES)),
        flash=st.booleans(),
        dtype=st.sampled_from(["bfloat16", "float32"]),
    )
    def each_row(rows, mode, flash, dtype):
        columns = list(zip(*rows, strict=True))
        batch = pa.record_batch(
            dict(zip(("width", "height", "text_tokens", "max_new_tokens"), columns, strict=True))
        )
        counted = count_pages(batch, mode=mode, flash_attention=flash, dtype=dtype)
        for found, (width, height, text_tokens, max_new_tokens) in zip(
            counted.select(list(PAGE_RESULTS)).to_pylist(), rows, strict=True
        ):
            assert found == expected_row(
                width,
                height,
                mode,
                flash,
                dtype,
                text_tokens=text_tokens,
                max_new_tokens=max_new_tokens,
            )

    each_row()


@pytest.mark.exhaustive
@pytest.mark.parametrize("make", [pa.record_batch, pa.table])
def test_a_batch_is_answered_in_kind_and_keeps_its_own_columns(make):
    batch = make({"id": ["a", "b"], "width": [1240, 640], "height": [1754, 640]})
    counted = count_pages(batch)
    assert type(counted) is type(batch)
    assert counted.schema.names == ["id", "width", "height", *PAGE_RESULTS, "problem"]
    assert counted.column("id").to_pylist() == ["a", "b"]
    assert counted.column("problem").null_count == 2
    assert counted.to_pylist()[0]["page_flops"] == expected_row(1240, 1754)["page_flops"]


def test_a_table_in_several_chunks_is_one_table():
    tables = [pa.table({"width": [side], "height": [900]}) for side in (600, 1700)]
    counted = count_pages(pa.concat_tables(tables))
    assert counted["grid_columns"].to_pylist() == [
        crop_grid(600, 900)[0],
        crop_grid(1700, 900)[0],
    ]


def test_an_empty_batch_has_the_same_columns():
    batch = pa.table({"width": pa.array([], pa.int64()), "height": pa.array([], pa.int64())})
    counted = count_pages(batch)
    assert counted.num_rows == 0
    assert counted.schema == count_pages(pa.table({"width": [1], "height": [1]})).schema


@pytest.mark.parametrize(
    ("column", "problems"),
    [
        (pa.array([5, None, 0, -3]), ["missing", "from 1", "from 1"]),
        (pa.array([5, 2**63, 2**64 - 1, 10**6 + 1], pa.uint64()), ["from 1"] * 3),
        (pa.array([5, -1, None], pa.int8()), ["from 1", "missing"]),
        (pa.array([5.0, 2.5, float("nan"), float("inf"), 1e300, None]),
         ["whole", "missing", "from 1", "from 1", "missing"]),
        (pa.array(["5", " 5.0 ", "x", "", "0x10", "1e3", "-1", "9" * 30, None]),
         [None, "whole", "missing", "whole", "whole", "from 1", "from 1", "missing"]),
        (pa.array(["5", None, "y"]).dictionary_encode(), ["missing", "whole"]),
        (pa.array([b"5", b"\xff"], pa.large_binary()), ["whole"]),
        (pa.nulls(2), ["missing"] * 2),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)  # fmt: skip
def test_a_value_that_is_no_size_makes_its_row_empty_and_says_why(column, problems):
    batch = pa.record_batch({"width": column, "height": pa.array([7] * len(column))})
    counted = count_pages(batch).to_pylist()
    if len(column) > len(problems):
        good = counted[: len(column) - len(problems)]
        assert [row["problem"] for row in good] == [None] * len(good)
        assert good[0]["visual_tokens"] == 273
    for row, problem in zip(counted[-len(problems) :], problems, strict=True):
        if problem is None:
            assert row["problem"] is None
        else:
            assert problem in row["problem"]
            assert row["problem"].startswith("width")
            assert all(row[name] is None for name in PAGE_RESULTS)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"width": [1]}, "no column 'height'"),
        ({"w": [1], "h": [1]}, "no column 'width' .it has 'w', 'h'"),
        ({"width": [True], "height": [1]}, "'width' holds bool"),
        ({"width": [[1]], "height": [1]}, "'width' holds list"),
        ({"width": [1], "height": [1], "page_flops": [1]}, "already has a column 'page_flops'"),
    ],
)
def test_a_batch_without_sizes_is_refused(columns, message):
    with pytest.raises(WorkloadError, match=message):
        count_pages(pa.record_batch(columns))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"mode": "huge"}, "no mode 'huge'"),
        ({"mode": "1024/1"}, "too small"),
        ({"text_tokens": 0}, "too small"),
        ({"max_new_tokens": 2**40}, "too large"),
    ],
)
def test_a_keyword_that_is_not_possible_is_refused(keywords, message):
    with pytest.raises(WorkloadError, match=message):
        count_pages(pa.record_batch({"width": [1], "height": [1]}), **keywords)


def huge_model(factor):
    """A vocabulary so large that counts do not fit 64 bits; no config may have it."""
    dimensions = published_model().dimensions
    vocab_size = factor * dimensions.decoder.vocab_size
    dimensions = replace(dimensions, decoder=replace(dimensions.decoder, vocab_size=vocab_size))
    return replace(published_model(), dimensions=dimensions)


def test_counts_beyond_64_bits_are_refused_in_columns_and_exact_in_totals(tmp_path):
    model = huge_model(10**10)
    batch = pa.record_batch({"width": [1240, 640], "height": [1754, 640]})
    with pytest.raises(WorkloadError, match="does not fit a 64-bit column"):
        count_pages(batch, model=model)
    pq.write_table(pa.Table.from_batches([batch]), tmp_path / "pages.parquet")
    archive, _ = added_up(tmp_path / "pages.parquet", model=model)
    pages = [plan_workload(page=page) for page in ((1240, 1754), (640, 640))]
    expected = sum(page_costs(model.dimensions, page).batch.flops for page in pages)
    assert expected > 2**63
    assert archive.totals[0].page_flops == expected


# Totals ------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**20)), min_size=0, max_size=50)
)
def test_sums_are_exact_where_int64_would_wrap(pairs):
    values = np.array([value for value, _ in pairs], np.int64)
    weights = np.array([weight for _, weight in pairs], np.int64)
    assert weighted_sum(values, weights) == sum(value * weight for value, weight in pairs)
    assert weighted_sum(values.astype(object), weights) == weighted_sum(values, weights)


@pytest.mark.parametrize("with_lengths", [False, True])
@pytest.mark.parametrize("mode", ["gundam", "base"])
def test_totals_are_the_sums_of_the_rows(tmp_path, mode, with_lengths, monkeypatch):
    # Small batches, so that rows of many of them are merged.
    monkeypatch.setattr("dsocr_analyze.row_files._BATCH_ROWS", 300)
    monkeypatch.setattr("dsocr_analyze.archive.totals._MOST_WAITING", 1000)
    random = np.random.default_rng(1)
    columns = {"width": random.integers(1, 4000, 5000), "height": random.integers(1, 4000, 5000)}
    if with_lengths:
        columns["text_tokens"] = random.integers(1, 9000, 5000)
        columns["max_new_tokens"] = random.integers(1, 3000, 5000)
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "pages.parquet")
    archive, totals = added_up(tmp_path / "pages.parquet", mode)
    counted = count_pages(table, mode=mode)
    rows = {name: counted.column(name).to_pylist() for name in PAGE_RESULTS}
    assert archive.pages == 5000
    works = works_of(totals)
    assert works == {name: sum(rows[name]) for name in works}
    assert totals.visual_tokens == sum(rows["visual_tokens"])
    assert totals.prompt_tokens == sum(rows["seq_len"])
    new_tokens = columns.get("max_new_tokens", np.full(5000, 1024))
    assert totals.new_tokens == new_tokens.sum()
    assert totals.largest_kv_cache_bytes == max(rows["kv_cache_bytes"])
    assert totals.largest_peak_activation_bytes == max(rows["peak_activation_bytes"])
    by_tokens = {each.tokens: each.pages for each in totals.pages_by_prompt_tokens}
    assert [by_tokens] == bars_of_each([np.bincount(rows["seq_len"])])
    beyond = (np.array(rows["seq_len"]) + new_tokens - 1 > 8192).sum()
    assert totals.pages_beyond_max_position_embeddings == beyond
    assert sum(pages_by_grid(archive).values()) == 5000
    for (width, height), grid in (((640, 640), (1, 1)), ((1240, 1754), (2, 3))):
        assert crop_grid(width, height) == grid
    if not MODES[mode].crop_mode:
        assert pages_by_grid(archive) == {(1, 1): 5000}
        return
    assert pages_by_grid(archive)[2, 3] == sum(
        crop_grid(int(width), int(height)) == (2, 3)
        for width, height in zip(columns["width"], columns["height"], strict=True)
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["base", "gundam"])
@pytest.mark.parametrize("batch_size", [2, 5, 1000])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_pages_with_equal_prompts_run_in_batches(
    tmp_path, monkeypatch, mode, batch_size, with_lengths
):
    monkeypatch.setattr("dsocr_analyze.archive.totals._MANY", 2)
    monkeypatch.setattr("dsocr_analyze.archive.totals._MOST_WAITING", 3)
    draw = random.Random(batch_size)
    pages = [
        (*draw.choice([(1240, 1754), (1754, 1240), (640, 640), (300, 3000)]),
         *(draw.choice([(10, 5), (10, 6), (90, 5)]) if with_lengths else (10, 5)))
        for _ in range(40)
    ]  # fmt: skip
    names = "width,height,text_tokens,max_new_tokens"
    lines = [names, *(",".join(map(str, page)) for page in pages)]
    (tmp_path / "p.csv").write_text("\n".join(lines))
    model = published_model()
    listed = open_pages(tmp_path / "p.csv").batches
    read = read_pages(listed, text_tokens=10, max_new_tokens=5)
    archive = in_one_mode(read, mode, batch_size=batch_size)
    [totals] = archive.document.totals

    chosen, prompts = MODES[mode], Counter()
    for width, height, text_tokens, max_new_tokens in pages:
        workload = plan_workload(
            page=(width, height), base_size=chosen.base_size, image_size=chosen.image_size,
            crop_mode=chosen.crop_mode, text_tokens=text_tokens, max_new_tokens=max_new_tokens,
        )  # fmt: skip
        grid = workload.grid if chosen.crop_mode else None
        prompts[replace(workload, page=(1, 1), grid=grid or (1, 1))] += 1
    batches = [
        page_costs(model.dimensions, replace(workload, batch_size=size))
        for workload, count in prompts.items()
        for size in [batch_size] * (count // batch_size) + [count % batch_size] * (
            count % batch_size > 0
        )
    ]  # fmt: skip
    assert totals.batches == len(batches)
    page = total_work(each.batch for each in batches)
    prefill_pass = total_work(each.prefill for each in batches)
    assert works_of(totals) == {
        **{f"prefill_pass_{name}": getattr(prefill_pass, name) for name in WORK},
        **{f"page_{name}": getattr(page, name) for name in WORK},
    }
    assert totals.largest_kv_cache_bytes == max(each.kv_cache_bytes for each in batches)
    assert totals.largest_peak_activation_bytes == max(
        each.peak_activation_bytes for each in batches
    )
    assert totals.prompt_tokens == sum(
        workload.seq_len * count for workload, count in prompts.items()
    )
    assert archive.lengths[0].sum() == len(pages)


@pytest.mark.exhaustive
def test_many_different_workloads_are_added_without_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr("dsocr_analyze.archive.totals._MANY", 10)
    table = pa.table({"width": [700] * 60, "height": [900] * 60, "text_tokens": range(1, 61)})
    pq.write_table(table, tmp_path / "pages.parquet")
    _, totals = added_up(tmp_path / "pages.parquet")
    assert totals.page_flops == sum(
        expected_row(700, 900, text_tokens=tokens)["page_flops"] for tokens in range(1, 61)
    )


class TestKeysOfWorkloads:
    def keys(self, **changes):
        given = {"grids": [11], "text_tokens": 10, "max_new_tokens": 1024, **changes}
        arrays = {
            name: np.array(value) if isinstance(value, list) else value
            for name, value in given.items()
        }
        workloads = Workloads(**arrays)
        no_amounts = np.empty((0, len(workloads.grids)))
        (distinct,) = distinct_workloads([(workloads, no_amounts)])
        return distinct.workloads, distinct.pages

    def test_the_largest_of_everything_fits(self):
        most = [CROP_GRIDS.count - 1] * 2, [LARGEST_COUNT, 1], [LARGEST_COUNT, 1]
        (grids, text_tokens, max_new_tokens, _), pages = self.keys(
            grids=most[0], text_tokens=most[1], max_new_tokens=most[2]
        )
        assert grids.tolist() == most[0]
        assert text_tokens.tolist() == max_new_tokens.tolist() == [1, LARGEST_COUNT]
        assert pages.tolist() == [1, 1]

    @pytest.mark.parametrize("lengths", [{}, {"text_tokens": [10] * 4}])
    def test_equal_workloads_are_one(self, lengths):
        workloads, pages = self.keys(grids=[23, 11, 23, 23], **lengths)
        assert workloads.grids.tolist() == [11, 23]
        assert workloads.max_new_tokens.tolist() == [1024, 1024]
        assert pages.tolist() == [1, 3]

    def test_every_grid_fits_beside_two_lengths(self):
        for architecture in ARCHITECTURES.values():
            grids = architecture.forms.crop_grids.count
            assert (grids - 1).bit_length() + 2 * _LENGTH_BITS <= 63


def test_histograms_have_a_bar_for_each_grid_and_few_round_bars_for_tokens():
    bars = grid_bars([PagesOfGrid((3, 3), 5), PagesOfGrid((1, 1), 2), PagesOfGrid((2, 3), 7)])
    assert list(bars.items()) == [("1 x 1", 2), ("2 x 3", 7), ("3 x 3", 5)]
    [none, few] = (
        bars_of_each([each])[0] for each in (np.zeros(0, int), np.array([0, 0, 1, 0, 4]))
    )
    assert (none, list(few)) == ({}, ["2", "3", "4"])
    pages = np.zeros(2001, np.int64)
    pages[[283, 913, 999, 2000]] = [1, 10, 100, 1000]
    [bars] = bars_of_each([pages])
    assert next(iter(bars)) == "200 to 299"
    assert len(bars) <= 20
    assert [count for count in bars.values() if count] == [1, 110, 1000]


# Sources -----------------------------------------------------------------------------------------


GOOD_CSV = 'width,name,height\n1240,"a, b",1754\r\n640,"say ""x""",640\n\n1240.0,c, 1754 \n'


def test_a_csv_file_is_read_with_quotes_blank_lines_and_floats(tmp_path):
    (tmp_path / "pages.csv").write_text(GOOD_CSV)
    archive, totals = added_up(tmp_path / "pages.csv")
    assert pages_by_grid(archive) == {(2, 3): 2, (1, 1): 1}
    assert archive.malformed.rows == 0
    flops = [expected_row(*page)["page_flops"] for page in ((1240, 1754), (640, 640))]
    assert totals.page_flops == 2 * flops[0] + flops[1]


def test_a_csv_file_may_have_a_byte_order_mark_and_be_compressed(tmp_path):
    (tmp_path / "pages.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + GOOD_CSV.encode()))
    archive, _ = added_up(tmp_path / "pages.csv.gz")
    assert archive.pages == 3


def test_csv_and_parquet_of_the_same_pages_give_the_same_totals(tmp_path, monkeypatch):
    monkeypatch.setattr("dsocr_analyze.row_files._BLOCK_BYTES", 1000)
    random = np.random.default_rng(2)
    pages = random.integers(1, 3000, (2000, 2))
    (tmp_path / "pages.csv").write_text(
        "width,height\n" + "".join(f"{width},{height}\n" for width, height in pages)
    )
    pq.write_table(
        pa.table({"width": pages[:, 0], "height": pages[:, 1]}), tmp_path / "pages.parquet"
    )
    from_csv, csv_totals = added_up(tmp_path / "pages.csv")
    from_parquet, parquet_totals = added_up(tmp_path / "pages.parquet")
    assert from_csv.pages_by_grid == from_parquet.pages_by_grid
    assert csv_totals == parquet_totals


def test_bad_lines_of_a_csv_file_are_named_by_number_and_spoil_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr("dsocr_analyze.row_files._BLOCK_BYTES", 16)
    lines = [
        b"width,height,name",
        b"1240,1754,a",  # 1
        b"12,40",  # 2
        b"",
        b'640,"640',  # 3
        b"abc,9,\xff\xfe",  # 4
        b"640,640,\xe9",  # 5
        b",9,x",  # 6
        b'"1,240",9,x',  # 7
        b"0,9,x",  # 8
        b"1240,1754,z",  # 9
    ]
    (tmp_path / "pages.csv").write_bytes(b"\n".join(lines))
    archive, _ = added_up(tmp_path / "pages.csv")
    assert archive.pages == 3
    reported = {each.row: each.reason for each in archive.malformed.reported}
    assert list(reported) == [2, 3, 4, 6, 7, 8]
    assert "2 values for 3 columns" in reported[2]
    assert "quote" in reported[3]
    assert "'abc' is not a whole number" in reported[4]
    assert "width is missing" in reported[6]
    assert "is not a whole number" in reported[7]
    assert "width '0' is not from 1" in reported[8]


def test_only_some_malformed_rows_are_named_and_all_are_counted(tmp_path):
    (tmp_path / "pages.csv").write_text("width,height\n" + "x,1\n" * 500 + "9,9\n")
    archive, _ = added_up(tmp_path / "pages.csv")
    assert (archive.pages, archive.malformed.rows) == (1, 500)
    assert [each.row for each in archive.malformed.reported] == list(range(1, REPORTED_ROWS + 1))


def test_images_are_read_by_their_headers_as_they_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr("dsocr_analyze.archive.pages._PAGES_A_BATCH", 2)
    folder = tmp_path / "scans"
    (folder / "inner").mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    Image.new("RGB", (1754, 1240)).save(folder / "b.jpg", exif=exif)
    Image.new("L", (640, 640)).save(folder / "inner" / "c.PNG")
    (folder / "a.png").write_bytes(b"no image")
    (folder / "notes.txt").write_text("not called like an image")
    (folder / "png").write_text("nor is this")
    archive, _ = added_up(folder)
    assert pages_by_grid(archive) == {(2, 3): 1, (1, 1): 1}
    (malformed,) = archive.malformed.reported
    assert malformed.row == 1
    assert "a.png" in malformed.reason


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.csv", None, "no list of pages"),
        ("pages.csv", b"", "empty"),
        ("pages.csv", b"a,b\n1,2\n", "no column 'width'"),
        ("pages.csv", b"width,width,height\n1,2,3\n", "2 columns 'width'"),
        ("pages.csv", b'width,"height\n1,2\n', "first line"),
        ("pages.csv", b"\x89PNG\r\n\x1a\n\x00\x00", "no column 'width'"),
        ("pages.parquet", b"width,height\n1,2\n", "not a Parquet file"),
        ("pages.parquet", b"PAR1 and nothing more", "cannot read"),
        ("pages.csv.gz", b"no gzip", "cannot read"),
    ],
)
def test_a_file_that_is_no_list_of_pages_is_one_line_and_exit_2(
    tmp_path, capsys, name, content, message
):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, out, err = run(capsys, "archive", tmp_path / name)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_a_parquet_file_that_breaks_off_is_one_line_and_exit_2(tmp_path, capsys):
    path = tmp_path / "pages.parquet"
    pq.write_table(pa.table({"width": range(1, 9999), "height": range(1, 9999)}), path)
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)
    path.write_bytes(content)
    code, out, err = run(capsys, "archive", path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "cannot read" in err


def test_a_folder_without_images_is_one_line_and_exit_2(tmp_path, capsys):
    code, _, err = run(capsys, "archive", tmp_path)
    assert code == 2
    assert "no image or PDF in" in err


def test_an_unreadable_row_of_parquet_columns_without_numbers_is_refused(tmp_path):
    pq.write_table(pa.table({"width": [True], "height": [1]}), tmp_path / "pages.parquet")
    with pytest.raises(WorkloadError, match="holds bool"):
        added_up(tmp_path / "pages.parquet")
    with pytest.raises(PageError, match="no list of pages"):
        open_pages(tmp_path / "gone")


# The command -------------------------------------------------------------------------------------


@pytest.fixture
def pages(tmp_path):
    """A list of four pages, one of them malformed."""
    path = tmp_path / "pages.csv"
    path.write_text("width,height\n1240,1754\nabc,1\n640,640\n1240,1754\n")
    return path


def test_the_totals_and_the_histogram_are_printed(capsys, pages):
    code, out, err = run(capsys, "archive", pages, "--mode", "gundam,base")
    assert code == 0
    assert "3 pages" in out
    assert "2 x 3" in out
    assert "66.7 %" in out
    assert "Note: MoE routing is uniform" in out
    assert err.splitlines() == [
        "dsocr-analyze: warning: 1 of 4 rows are not pages and are not counted",
        "dsocr-analyze: warning: row 2: width 'abc' is not a whole number",
    ]


@pytest.mark.parametrize(
    ("modes", "title", "grids"),
    [
        ("base", "Pages by crop grid", {"1 x 1": "3"}),
        ("tiny,1280", "Pages by crop grid", {"1 x 1": "3"}),
        ("gundam", "Pages by crop grid", {"1 x 1": "1", "2 x 3": "2"}),
        ("base,gundam", "Pages by crop grid in modes that cut pages; 1 x 1 in the others",
         {"1 x 1": "1", "2 x 3": "2"}),
    ],
)  # fmt: skip
def test_a_mode_that_cuts_no_page_has_no_crop_grid(capsys, pages, modes, title, grids):
    out = run(capsys, "archive", pages, "--mode", modes)[1]
    lines = out[out.index(f"{title}\n") :].split("\n\n")[0].splitlines()[3:]
    assert {line[:5]: line[5:].split()[0] for line in lines} == grids
    document = json.loads(run(capsys, "archive", pages, "--mode", modes, "--format", "json")[1])
    found = {"{} x {}".format(*each["grid"]): str(each["pages"])
             for each in document["pages_by_grid"]}  # fmt: skip
    assert found == grids


def test_a_list_without_pages_has_no_grid_in_any_mode(capsys, tmp_path):
    (tmp_path / "none.csv").write_text("width,height\n")
    out = run(capsys, "archive", tmp_path / "none.csv", "--mode", "base", "--format", "json")[1]
    assert json.loads(out)["pages_by_grid"] == []


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (["file"], "'file'; each row counts as one page, with columns width, height, text_tokens,"),
        (["title", "count"], "'title', 'count'; each row"),
        (["Text_Token", "new_tokens"], "did you mean text_tokens by 'Text_Token' and max_new_tokens"
         " by 'new_tokens'? each row"),
        ([f"c{number}" for number in range(10)], "'c6', 'c7' and 2 more; each row"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_that_are_not_read_are_named_in_one_warning(
    capsys, tmp_path, columns, named, suffix
):
    path = tmp_path / f"pages.{suffix}"
    values = {"width": 640, **dict.fromkeys(columns, 3), "height": 640}
    if suffix == "csv":
        path.write_text(f"{','.join(values)}\n{','.join(map(str, values.values()))}\n")
    else:
        pq.write_table(pa.table({name: [value] for name, value in values.items()}), path)
    code, _, err = run(capsys, "archive", path)
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("dsocr-analyze: warning: columns of '")
    assert named in err
    assert run(capsys, "archive", path, "--strict")[0] == 3


def test_a_list_whose_columns_are_all_read_has_no_warning(capsys, tmp_path):
    (tmp_path / "p.csv").write_text("max_new_tokens,width,text_tokens,height\n5,640,10,640\n")
    code, _, err = run(capsys, "archive", tmp_path / "p.csv", "--strict")
    assert (code, err) == (0, "")


def test_a_missing_column_is_looked_for_among_similar_names(capsys, tmp_path):
    (tmp_path / "p.csv").write_text("widht,weight\n1,2\n")
    code, _, err = run(capsys, "archive", tmp_path / "p.csv")
    assert code == 2
    assert "did you mean width by 'widht' and height by 'weight'? give columns" in err


def test_tokens_are_the_other_histogram(capsys, pages):
    code, out, _ = run(capsys, "archive", pages, "--histogram", "tokens")
    assert code == 0
    assert "Pages by tokens of the prompt, mode gundam" in out


def test_several_modes_are_beside_each_other_in_equal_bins(capsys, pages):
    arguments = ("--histogram", "tokens", "--mode", "tiny,base,gundam", "--dtype", "all")
    arguments = (*arguments[:-1], "bfloat16,float32")
    code, out, _ = run(capsys, "archive", pages, *arguments)
    assert code == 0
    lines = out.splitlines()
    start = lines.index("Pages by tokens of the prompt, by mode")
    assert lines[start + 1].split() == ["tokens", "tiny", "base", "gundam"]
    counts = [[int(cell) for cell in line.split()[-3:]] for line in lines[start + 3 :-1]
              if " to " in line[:20]]  # fmt: skip
    assert [sum(column) for column in zip(*counts, strict=True)] == [3, 3, 3]
    # Prompts of 83, 283 and 913 tokens; the page that is not cut has fewer in mode gundam.
    places = [next(i for i, row in enumerate(counts) if row[mode]) for mode in range(3)]
    assert places == sorted(places)
    assert max(i for i, row in enumerate(counts) if row[2]) == len(counts) - 1


def test_json_has_exact_integers_and_the_models_digest(capsys, pages):
    code, out, _ = run(capsys, "archive", pages, "--format", "json")
    document = json.loads(out)
    assert code == 0
    assert document["rows"] == 4
    assert document["malformed"]["reported"][0]["row"] == 2
    assert document["totals"][0]["page_flops"] == sum(
        expected_row(*page)["page_flops"] for page in ((1240, 1754), (640, 640), (1240, 1754))
    )
    assert len(document["model"]["config_digest"]) == 64


def test_strict_makes_a_malformed_row_a_failure_after_the_output(capsys, pages):
    code, out, err = run(capsys, "archive", pages, "--strict")
    assert code == 3
    assert "3 pages" in out
    assert "--strict" in err.splitlines()[-1]


def test_pages_that_outgrow_the_positions_are_a_warning(capsys, pages):
    code, _, err = run(capsys, "archive", pages, "--max-new-tokens", 8000)
    assert code == 0
    assert "3 of 3 pages exceed" in err


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_every_page_can_be_written_with_its_row_number(capsys, tmp_path, pages, suffix):
    output = tmp_path / f"costs.{suffix}"
    run(capsys, "archive", pages, "--mode", "gundam,base", "--output", output)
    if suffix == "csv":
        from pyarrow import csv

        table = csv.read_csv(output)
    else:
        table = pq.read_table(output)
    rows = [row for row in table.to_pylist() if row["mode"] == "base"]
    assert [row["row"] for row in rows] == [1, 3, 4]
    for row in rows:
        expected = expected_row(row["page_width"], row["page_height"], "base")
        assert {name: row[name] for name in PAGE_RESULTS} == expected


def test_images_are_written_with_their_paths(capsys, tmp_path):
    (tmp_path / "scans").mkdir()
    Image.new("L", (640, 640)).save(tmp_path / "scans" / "a, b.png")
    run(capsys, "archive", tmp_path / "scans", "--output", tmp_path / "costs.parquet")
    assert pq.read_table(tmp_path / "costs.parquet")["path"].to_pylist() == ["a, b.png"]


@pytest.mark.parametrize("command", [("archive",), ("sweep", "--pages")])
def test_batches_cost_less_to_read_and_say_so(capsys, tmp_path, pages, command):
    _, out, _ = run(capsys, *command, pages, "--batch-size", 2, "--format", "json")
    document = json.loads(out)
    alone = json.loads(run(capsys, *command, pages, "--format", "json")[1])
    assert (document["batch_size"], alone["batch_size"]) == (2, 1)
    [batched], [single] = document["totals"], alone["totals"]
    assert (batched["batches"], single["batches"]) == (2, 3)
    assert batched["page_matrix_flops"] == single["page_matrix_flops"]
    assert batched["page_bytes_read"] < single["page_bytes_read"]
    _, out, _ = run(capsys, *command, pages, "--batch-size", 2)
    assert "3 pages in batches of 2 with equal prompts" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--output", "rows.csv"), "a page of a batch has no cost of its own"),
        (("--gpu", "h100"), "give --concurrency 2 instead"),
    ],
)
def test_what_batches_do_not_say_is_refused(capsys, pages, monkeypatch, arguments, message):
    monkeypatch.chdir(pages.parent)
    code, out, err = run(capsys, "archive", pages, "--batch-size", 2, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert list(pages.parent.iterdir()) == [pages]


def test_with_and_without_a_sliding_window_are_two_settings(capsys, pages):
    arguments = ("--arch", "unlimited-ocr", "--max-new-tokens", 4096, "--sliding-window", "0,1")
    _, out, _ = run(capsys, "archive", pages, *arguments, "--format", "json")
    totals = json.loads(out)["totals"]
    assert [each["sliding_window"] for each in totals] == [False, True]
    without, within = (each["largest_kv_cache_bytes"] for each in totals)
    assert without > within
    _, out, _ = run(capsys, "archive", pages, *arguments, "--gpu", "h100-sxm")
    assert out.count("eager, no window") == out.count("eager ") >= 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mode", "huge"), "no mode 'huge'"),
        (("--text-tokens", "0"), "too small"),
        (("--max-new-tokens", "1,2"), "--max-new-tokens"),
        (("--format", "xml"), "--format 'xml' is unknown"),
        (("--histogram", "dpi"), "--histogram 'dpi' is unknown"),
        (("--plot", "p.svg", "--histogram", "tokens", "--mode", "64:704:64"), "at most 10 modes"),
    ],
)
def test_what_is_not_possible_is_one_line_and_exit_2(
    capsys, pages, monkeypatch, arguments, message
):
    monkeypatch.chdir(pages.parent)
    before = pages.read_bytes()
    code, out, err = run(capsys, "archive", pages, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert pages.read_bytes() == before
    assert list(pages.parent.iterdir()) == [pages]


@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [
        (("--output", "pages.csv"), 2, "the list of pages itself"),
        (("--output", "costs.txt"), 2, ".csv, .parquet"),
        (("--plot", "gone/p.svg"), 74, "no folder 'gone'"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    capsys, pages, monkeypatch, arguments, expected, message
):
    monkeypatch.chdir(pages.parent)
    before = pages.read_bytes()
    code, out, err = run(capsys, "archive", pages, *arguments)
    assert (code, out) == (expected, "")
    assert message in err
    assert pages.read_bytes() == before
    assert list(pages.parent.iterdir()) == [pages]


def figures_of(text):
    """An archive's document without what says how it was asked for."""
    document = json.loads(text)
    del document["command"], document["options"]
    return document


@pytest.mark.parametrize("result", [(), ("--format", "json", "--mode", "all", "--strict")])
def test_sweep_with_a_list_of_pages_does_the_same(capsys, pages, result):
    arguments = ("--text-tokens", 20, "--max-new-tokens", 30, "--use-flash-attn", "0,1", *result)
    found = run(capsys, "archive", pages, *arguments)
    assert "warning: 1 of 4 rows" in found[2]
    swept = run(capsys, "sweep", "--pages", pages, *arguments)
    if not result:
        assert swept == found
        return
    assert (swept[0], swept[2]) == (found[0], found[2])
    assert figures_of(swept[1]) == figures_of(found[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--page", "640x640"), "not both"),
        (("--quantity", "page_flops"), "not both"),
        (("--text-tokens", "1,2"), "--text-tokens has 2 values"),
        (("--max-new-tokens", "1:9"), "--max-new-tokens has 9 values"),
        (("--batch-size", "2,4"), "--batch-size has 2 values; with --pages give one"),
        (("--format", "xml"), "'xml' is unknown"),
        (("--histogram", "dpi"), "'dpi' is unknown"),
    ],
)
def test_options_that_do_not_go_with_a_list_are_refused(
    capsys, pages, monkeypatch, arguments, message
):
    monkeypatch.chdir(pages.parent)
    before = pages.read_bytes()
    code, _, err = run(capsys, "sweep", "--pages", pages, *arguments)
    assert code == 2
    assert err.count("\n") == 1
    assert message in err
    assert pages.read_bytes() == before


def test_a_list_that_breaks_off_leaves_the_old_output(capsys, tmp_path):
    path = tmp_path / "pages.parquet"
    pq.write_table(
        pa.table({"width": range(1, 99_999), "height": range(1, 99_999)}), path, row_group_size=9999
    )
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 50_000] = bytes(50_000)
    path.write_bytes(content)
    output = tmp_path / "costs.csv"
    output.write_text("old")
    code, _, _ = run(capsys, "archive", path, "--output", output)
    assert code == 2
    assert output.read_text() == "old"
    assert {file.name for file in tmp_path.iterdir()} == {"pages.parquet", "costs.csv"}


# Ray ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local_ray():
    """A Ray of one CPU in this machine, for the tests that need it."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # its own, and those of what it imports
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False,
            object_store_memory=100 << 20,
        )  # fmt: skip
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield ray
        ray.shutdown()


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_the_batch_function_runs_unchanged_in_ray_data(local_ray, tmp_path):
    spec = importlib.util.spec_from_file_location(
        "ray_archive", ROOT / "examples" / "ray_archive.py"
    )
    example = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = example
    spec.loader.exec_module(example)
    random = np.random.default_rng(3)
    table = pa.table(
        {"width": random.integers(1, 4000, 3000), "height": random.integers(0, 4000, 3000)}
    )
    pq.write_table(table, tmp_path / "pages.parquet")
    _, totals = added_up(tmp_path / "pages.parquet", "base")
    found = example.archive_totals(
        local_ray.data.read_parquet(str(tmp_path / "pages.parquet")), mode="base"
    )
    malformed = (table["height"].to_numpy() == 0).sum()
    assert found == {
        "pages": 3000 - malformed,
        "malformed": malformed,
        "page_flops": totals.page_flops,
        "page_bytes_read": totals.page_bytes_read,
    }


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_list_without_rows_is_written_with_its_columns(tmp_path, capsys, kind):
    """A Parquet file without rows has no batch to take the columns from."""
    sizes, written = tmp_path / f"sizes.{kind}", tmp_path / "rows.parquet"
    if kind == "csv":
        sizes.write_text("width,height\n")
    else:
        empty = pa.table({name: pa.array([], pa.int64()) for name in ("width", "height")})
        pq.write_table(empty, sizes)
    assert run(capsys, "archive", sizes, "--output", written)[0] == 0
    rows = pq.read_table(written)
    assert rows.num_rows == 0
    assert {"page_width", "page_flops"} <= {*rows.column_names}
