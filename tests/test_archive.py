"""Lists of pages: the batch function, sources of every kind, exact totals, and bad rows."""

import gzip
import itertools
import json
import random
import runpy
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import run
from hypothesis import given, settings, strategies as st
from pyarrow import csv
from relatives import FAMILY
from sampling import first, sampled
from scalar_rows import figures_of, page_costs, planned, scalar_row

from dsocr_analyze import errors, kernels
from dsocr_analyze.architectures import DEFAULT, deepseek_ocr
from dsocr_analyze.archive import count_pages
from dsocr_analyze.archive.evaluate import PAGE_RESULTS
from dsocr_analyze.archive.pages import REPORTED_ROWS, open_pages, read_pages
from dsocr_analyze.archive.setting import PagesOfGrid, Setting, opening_of, published_model
from dsocr_analyze.archive.shown import grid_bars
from dsocr_analyze.archive.totals import add_up, bars_of_each, weighted_sum
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.workload import LARGEST_COUNT

CROP_GRIDS = DEFAULT.page_rule
crop_grid, GRIDS = CROP_GRIDS.grid, CROP_GRIDS.grids
ROOT = Path(__file__).parent.parent
SIDES = st.one_of(st.integers(1, 5000), st.sampled_from([640, 641, 1280, 1920]), st.just(10**6))
TOTALS = "dsocr_analyze.archive.totals"
COLUMNS = ("width", "height", "text_tokens", "max_new_tokens")


def added_up(path, mode="gundam", model=None, **given):
    """What a list costs in one mode, and its totals; pages of 10 text tokens and 1024 new ones."""
    pages = read_pages(open_pages(path).batches, CROP_GRIDS, text_tokens=10, max_new_tokens=1024)
    setting = Setting(DEFAULT.modes[mode], kernels.BFLOAT16)
    opening = opening_of(ModelDirectory.read(DEFAULT.reference), DEFAULT, [setting.mode])
    archive = add_up(model or published_model(), [setting], pages, opening, **given)
    return archive.document, archive.document.totals[0]


def written(path, columns):
    """The file of a table: CSV or Parquet."""
    write = csv.write_csv if path.suffix == ".csv" else pq.write_table
    write(pa.table(columns), path)
    return path


def pages_by_grid(document):
    return {each.grid: each.pages for each in document.pages_by_grid}


def expected_row(width, height, mode="gundam", *how, **lengths):
    """The columns of `PAGE_RESULTS` by the scalar closed forms."""
    row = scalar_row((width, height), deepseek_ocr.MODES[mode], *how, **lengths)
    return {name: row[name] for name in PAGE_RESULTS}


# Crop grids --------------------------------------------------------------------------------------


def grids_of(pages):
    codes = CROP_GRIDS.codes(*np.array(pages, np.int64).reshape(-1, 2).T)
    return list(zip(*(each.tolist() for each in CROP_GRIDS.columns_and_rows(codes)), strict=True))


def test_the_grids_are_the_golden_ones_and_the_same_where_two_aspects_are_as_near():
    # Aspects halfway between those of two grids, and beside that; below and above half their tiles.
    aspects = sorted({(c / r, c, r) for c, r in GRIDS})
    pages = [
        (scale * (c1 * r2 + c2 * r1) + more, scale * 2 * r1 * r2)
        for (_, c1, r1), (_, c2, r2) in itertools.pairwise(aspects)
        for scale in (1, 7, 20, 64, 90, 128, 333, 640)
        for more in (-1, 0, 1)
    ]
    pages += [(scale * c, scale * r) for c, r in GRIDS for scale in range(300, 700, 10)]
    assert grids_of(pages) == [crop_grid(*page) for page in pages]
    golden = json.loads((ROOT / "tests/data/golden_grids.json").read_text())
    assert grids_of([row[:2] for row in golden]) == [tuple(row[2:]) for row in golden]


# The batch function ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [pa.record_batch, pa.table, lambda columns: pa.concat_tables(
    [pa.table(columns).slice(row, 1) for row in (0, 1)])])  # fmt: skip
def test_a_batch_is_answered_in_kind_and_keeps_its_own_columns(make):
    batch = make({"id": ["a", "b"], "width": [1240, 640], "height": [1754, 640]})
    counted = count_pages(batch)
    assert type(counted) is type(batch)
    assert counted.schema.names == ["id", "width", "height", *PAGE_RESULTS, "problem"]
    assert [(row["id"], row["problem"], row["page_flops"]) for row in counted.to_pylist()] == [
        ("a", None, expected_row(1240, 1754)["page_flops"]),
        ("b", None, expected_row(640, 640)["page_flops"]),
    ]
    assert count_pages(batch.slice(0, 0)).schema == counted.schema


@pytest.mark.parametrize(
    ("column", "problems"),
    [
        (pa.array([5, None, 0, -3]), [None, "missing", "from 1", "from 1"]),
        (pa.array([5, 2**63, 2**64 - 1, 10**6 + 1], pa.uint64()), [None, *["from 1"] * 3]),
        (pa.array([5, -1, None], pa.int8()), [None, "from 1", "missing"]),
        (pa.array([5.0, 2.5, float("nan"), float("inf"), 1e300, None]),
         [None, "whole", "missing", "from 1", "from 1", "missing"]),
        (pa.array(["5", " 5.0 ", "x", "", "0x10", "1e3", "-1", "9" * 30, None]),
         [None, None, "whole", "missing", "whole", "whole", "from 1", "from 1", "missing"]),
        (pa.array(["5", None, "y"]).dictionary_encode(), [None, "missing", "whole"]),
        (pa.array([b"5", b"\xff"], pa.large_binary()), [None, "whole"]),
        (pa.nulls(2), ["missing"] * 2),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)  # fmt: skip
def test_a_value_that_is_no_size_makes_its_row_empty_and_says_why(column, problems):
    counted = count_pages(pa.record_batch({"width": column, "height": [7] * len(column)}))
    rows, good = counted.to_pylist(), expected_row(5, 7)
    assert [{name: row[name] for name in PAGE_RESULTS} for row in rows] == [
        dict.fromkeys(PAGE_RESULTS) if problem else good for problem in problems
    ]
    for row, problem in zip(rows, problems, strict=True):
        said = row["problem"]
        assert said is problem or (said.startswith("width") and problem in said)


@pytest.mark.parametrize(
    ("columns", "keywords", "message"),
    [
        ({"width": [1]}, {}, "no column 'height'"),
        ({"w": [1], "h": [1]}, {}, "no column 'width' .it has 'w', 'h'"),
        ({"width": [True], "height": [1]}, {}, "'width' holds bool"),
        ({"width": [[1]], "height": [1]}, {}, "'width' holds list"),
        ({"width": [1], "height": [1], "page_flops": [1]}, {}, "already has a column 'page_flops'"),
        ({"width": [1], "height": [1]}, {"mode": "huge"}, "no mode 'huge'"),
        ({"width": [1], "height": [1]}, {"mode": "1024/1"}, "too small"),
        ({"width": [1], "height": [1]}, {"text_tokens": 0}, "too small"),
        ({"width": [1], "height": [1]}, {"max_new_tokens": 2**40}, "too large"),
    ],
)
def test_a_batch_without_sizes_and_a_keyword_that_is_not_possible_are_refused(
    columns, keywords, message
):
    with pytest.raises(errors.WorkloadError, match=message):
        count_pages(pa.record_batch(columns), **keywords)


def test_counts_beyond_64_bits_are_refused_in_columns_and_exact_in_totals(tmp_path):
    """With a vocabulary so large that no config may have it."""
    dimensions = published_model().dimensions
    decoder = replace(dimensions.decoder, vocab_size=10**10 * dimensions.decoder.vocab_size)
    model = replace(published_model(), dimensions=replace(dimensions, decoder=decoder))
    columns = {"width": [1240, 640], "height": [1754, 640]}
    with pytest.raises(errors.WorkloadError, match="does not fit a 64-bit column"):
        count_pages(pa.record_batch(columns), model=model)
    _, totals = added_up(written(tmp_path / "pages.parquet", columns), model=model)
    pages = [DEFAULT.plan(page=page) for page in ((1240, 1754), (640, 640))]
    expected = sum(page_costs(model.dimensions, page).batch.flops for page in pages)
    assert totals.page_flops == expected > 2**63


# Totals ------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**20)), min_size=0, max_size=50)
)
def test_sums_are_exact_where_int64_would_wrap(pairs):
    values, weights = np.array(pairs, np.int64).reshape(-1, 2).T
    assert weighted_sum(values, weights) == sum(value * weight for value, weight in pairs)
    assert weighted_sum(values.astype(object), weights) == weighted_sum(values, weights)


def random_columns(number, with_lengths):
    draw = np.random.default_rng(number)
    most = (4000, 4000, 9000, 3000)[: 4 if with_lengths else 2]
    return {name: draw.integers(1, end, 5000) for name, end in zip(COLUMNS, most, strict=False)}


@pytest.mark.parametrize(("mode", "with_lengths"), [("gundam", True), ("base", False)])
def test_totals_are_the_sums_of_the_rows(tmp_path, mode, with_lengths, monkeypatch):
    # Small batches, so that rows of many of them are merged.
    monkeypatch.setattr("dsocr_analyze.row_files._BATCH_ROWS", 300)
    monkeypatch.setattr(f"{TOTALS}._MOST_WAITING", 1000)
    columns = random_columns(1, with_lengths)
    archive, totals = added_up(written(tmp_path / "pages.parquet", columns), mode)
    counted = count_pages(pa.table(columns), mode=mode)
    rows = {name: counted.column(name).to_numpy() for name in PAGE_RESULTS}
    new_tokens = columns.get("max_new_tokens", np.full(5000, 1024))
    expected = {
        name: sum(each.tolist())
        for name, each in rows.items() if name.startswith(("prefill_pass", "page"))
    } | {
        "batches": 5000,
        "visual_tokens": rows["visual_tokens"].sum(),
        "prompt_tokens": rows["seq_len"].sum(),
        "new_tokens": new_tokens.sum(),
        "largest_kv_cache_bytes": rows["kv_cache_bytes"].max(),
        "largest_peak_activation_bytes": rows["peak_activation_bytes"].max(),
        "pages_beyond_max_position_embeddings": (rows["seq_len"] + new_tokens - 1 > 8192).sum(),
    }  # fmt: skip
    assert {name: getattr(totals, name) for name in expected} == expected
    by_tokens = {each.tokens: each.pages for each in totals.pages_by_prompt_tokens}
    assert [by_tokens] == bars_of_each([np.bincount(rows["seq_len"])])
    grids = Counter(zip(rows["grid_columns"].tolist(), rows["grid_rows"].tolist(), strict=True))
    assert (archive.pages, pages_by_grid(archive)) == (5000, grids)


MIXED = [(10, 5), (10, 6), (90, 5)]


@sampled(
    ("mode", "batch_size", "lengths"),
    [("base", 5, [(10, 1024)]), ("gundam", 2, MIXED), ("gundam", 1000, MIXED), ("base", 2, MIXED),
     ("gundam", 5, [(10, 1024)])],
    first(2),
)  # fmt: skip
def test_pages_with_equal_prompts_run_in_batches(tmp_path, monkeypatch, mode, batch_size, lengths):
    monkeypatch.setattr(f"{TOTALS}._MOST_WAITING", 3)
    draw, sizes = random.Random(batch_size), [(1240, 1754), (1754, 1240), (640, 640), (300, 3000)]
    pages = [(*draw.choice(sizes), *draw.choice(lengths)) for _ in range(10)]
    columns = dict(zip(COLUMNS[: 2 * len(lengths)], zip(*pages, strict=True), strict=False))
    _, totals = added_up(written(tmp_path / "p.parquet", columns), mode, batch_size=batch_size)
    workloads = [
        planned((width, height), deepseek_ocr.MODES[mode], text_tokens=text, max_new_tokens=new)
        for width, height, text, new in pages
    ]
    is_cut = deepseek_ocr.MODES[mode].crop_mode
    prompts = Counter(
        replace(each, page=(1, 1), grid=each.grid if is_cut else (1, 1)) for each in workloads
    )
    batches = [
        page_costs(published_model().dimensions, replace(workload, batch_size=size))
        for workload, count in prompts.items()
        for size in [*[batch_size] * (count // batch_size), count % batch_size]
        if size
    ]
    expected = {
        "batches": len(batches),
        **figures_of("page", kernels.total_work(each.batch for each in batches)),
        **figures_of("prefill_pass", kernels.total_work(each.prefill for each in batches)),
        "largest_kv_cache_bytes": max(each.kv_cache_bytes for each in batches),
        "largest_peak_activation_bytes": max(each.peak_activation_bytes for each in batches),
        "prompt_tokens": sum(workload.seq_len * count for workload, count in prompts.items()),
    }
    assert {name: getattr(totals, name) for name in expected} == expected
    assert sum(each.pages for each in totals.pages_by_prompt_tokens) == len(pages)


def test_the_largest_lengths_are_told_apart_beside_any_grid(tmp_path):
    lengths = [1, LARGEST_COUNT, 1, LARGEST_COUNT, 1]
    columns = dict(zip(COLUMNS, ([9] * 5, [9] * 5, lengths, lengths[::-1]), strict=True))
    _, totals = added_up(written(tmp_path / "pages.parquet", columns), "tiny")
    assert totals.new_tokens == totals.prompt_tokens - 5 * 73 == sum(lengths)
    most = max(architecture.forms.model.page_rule.count for architecture in FAMILY.values())
    assert (most - 1).bit_length() + 2 * LARGEST_COUNT.bit_length() <= 63


def test_histograms_have_a_bar_for_each_grid_and_few_round_bars_for_tokens():
    bars = grid_bars([PagesOfGrid((3, 3), 5), PagesOfGrid((1, 1), 2), PagesOfGrid((2, 3), 7)])
    assert list(bars.items()) == [("1 x 1", 2), ("2 x 3", 7), ("3 x 3", 5)]
    assert bars_of_each([np.zeros(0, int)]) == [{}]
    assert bars_of_each([np.array([0, 0, 1, 0, 4])]) == [{"2": 1, "3": 0, "4": 4}]
    [bars] = bars_of_each([np.bincount([283, 913, 999, 2000], [1, 10, 100, 1000])])
    assert (next(iter(bars)), len(bars) <= 20) == ("200 to 299", True)
    assert [count for count in bars.values() if count] == [1, 110, 1000]


# Sources -----------------------------------------------------------------------------------------


GOOD_CSV = b'width,name,height\n1240,"a, b",1754\r\n640,"say ""x""",640\n\n1240.0,c, 1754 \n'

# By their row, in a file of a header and these lines.
BAD_LINES = {
    1: b"1240,1754,a", 2: b"12,40", 3: b'\n640,"640', 4: b"abc,9,\xff\xfe", 5: b"640,640,\xe9",
    6: b",9,x", 7: b'"1,240",9,x', 8: b"0,9,x", 9: b"1240,1754,z",
    10: b"9,0,x", 11: b"9,9,9,9",
}  # fmt: skip


def test_a_csv_file_may_have_quotes_blank_lines_and_a_byte_order_mark(tmp_path):
    path, packed = tmp_path / "pages.csv", tmp_path / "pages.csv.gz"
    path.write_bytes(GOOD_CSV)
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + GOOD_CSV))
    archive, totals = added_up(path)
    assert added_up(packed) == (archive, totals)
    assert (pages_by_grid(archive), archive.malformed.rows) == ({(2, 3): 2, (1, 1): 1}, 0)
    pages = ((1240, 1754), (640, 640), (1240, 1754))
    assert totals.page_flops == sum(expected_row(*page)["page_flops"] for page in pages)


@pytest.mark.parametrize("block_bytes", [16, 4096])
@pytest.mark.parametrize(
    ("lines", "pages", "rows", "reported"),
    [
        ([b"width,height,name", *BAD_LINES.values()], 3, 8, [
            (2, "it has 2 values for 3 columns"),
            (3, "a quote is not closed, or is misplaced"),
            (4, "width 'abc' is not a whole number"),
            (6, "width is missing"),
            (7, "width '1\\x1f240' is not a whole number"),
            (8, "width '0' is not from 1 to 1000000"),
            (10, "height '0' is not from 1 to 1000000"),
            (11, "it has 4 values for 3 columns"),
        ]),
        ([b"width,height", *[b"x,1"] * 500, b"9,9"], 1, 500,
         [(row, "width 'x' is not a whole number") for row in range(1, REPORTED_ROWS + 1)]),
    ],
)  # fmt: skip
def test_bad_lines_are_counted_some_named_by_number_and_spoil_no_others(
    tmp_path, monkeypatch, block_bytes, lines, pages, rows, reported
):
    monkeypatch.setattr("dsocr_analyze.row_files._BLOCK_BYTES", block_bytes)
    (tmp_path / "pages.csv").write_bytes(b"\n".join(lines))
    archive, _ = added_up(tmp_path / "pages.csv")
    assert (archive.pages, archive.malformed.rows) == (pages, rows)
    assert [(each.row, each.reason) for each in archive.malformed.reported] == reported


# The command -------------------------------------------------------------------------------------


@pytest.fixture
def pages(tmp_path):
    """A list of four pages, one of them malformed."""
    path = tmp_path / "pages.csv"
    path.write_text("width,height\n1240,1754\nabc,1\n640,640\n1240,1754\n")
    return path


def document_of(capsys, *arguments):
    return json.loads(run(capsys, *arguments, "--format", "json")[1])


MALFORMED = [
    "dsocr-analyze: warning: 1 of 4 rows are not pages and are not counted",
    "dsocr-analyze: warning: row 2: width 'abc' is not a whole number",
]


@pytest.mark.parametrize(
    ("arguments", "code", "shown", "told"),
    [
        (("--mode", "gundam,base"), 0, ("3 pages", "2 x 3", "66.7 %"), MALFORMED),
        (("--histogram", "tokens"), 0, ("Pages by tokens of the prompt, mode gundam",), MALFORMED),
        (("--strict",), 3, ("3 pages",), [*MALFORMED, "--strict"]),
        (("--max-new-tokens", 8000), 0, (), [*MALFORMED, "3 of 3 pages in mode gundam exceed"]),
        (("--batch-size", 2), 0, ("3 pages in batches of 2 with equal prompts",), MALFORMED),
    ],
)
def test_totals_and_a_histogram_are_printed_and_bad_rows_are_told(
    capsys, pages, arguments, code, shown, told
):
    found, out, err = run(capsys, "archive", pages, *arguments)
    assert (found, [text for text in shown if text not in out]) == (code, [])
    assert "Note: MoE routing is uniform" in out
    lines = err.splitlines()
    assert [text in line for text, line in zip(told, lines, strict=True)] == [True] * len(told)


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
    found = document_of(capsys, "archive", pages, "--mode", modes)["pages_by_grid"]
    assert {"{} x {}".format(*each["grid"]): str(each["pages"]) for each in found} == grids


def test_a_list_without_pages_costs_nothing(capsys, tmp_path):
    (tmp_path / "pages.csv").write_text("width,height\n0,9\n")
    out = run(capsys, "archive", tmp_path / "pages.csv")[1]
    assert out.startswith("mode gundam: 0 pages cost 0 FLOPs and move 0 B\n")


@pytest.mark.parametrize(
    ("suffix", "columns", "named"),
    [
        ("csv", ["file"], "'file'; each row counts as one page, with columns width, height,"),
        ("parquet", ["title", "count"], "'title', 'count'; each row"),
        ("csv", ["Text_Token", "new_tokens"], "did you mean text_tokens by 'Text_Token' and"
         " max_new_tokens by 'new_tokens'? each row"),
        ("parquet", [f"c{number}" for number in range(10)], "'c6', 'c7' and 2 more; each row"),
    ],
)  # fmt: skip
def test_columns_that_are_not_read_are_named_in_one_warning(
    capsys, tmp_path, suffix, columns, named
):
    table = {name: [640] for name in ("width", *columns, "height")}
    path = written(tmp_path / f"pages.{suffix}", table)
    code, _, err = run(capsys, "archive", path, "--strict")
    assert (code, err.count("\n"), "warning: columns of '" in err) == (3, 2, True)
    assert named in err.splitlines()[0]


def test_several_modes_are_beside_each_other_in_equal_bins(capsys, pages):
    _, out, _ = run(capsys, "archive", pages, "--histogram", "tokens", "--mode", "tiny,base,gundam",
                    "--dtype", "bfloat16,float32")  # fmt: skip
    lines = out[out.index("Pages by tokens of the prompt, by mode") :].splitlines()
    assert lines[1].split() == ["tokens", "tiny", "base", "gundam"]
    counts = np.array([line.split()[-3:] for line in lines[3:] if " to " in line[:20]], int)
    # Prompts of 83, 283 and 913 tokens; the page that is not cut has fewer in mode gundam.
    assert counts.sum(axis=0).tolist() == [3, 3, 3]
    places = (counts > 0).argmax(axis=0).tolist()
    assert (places, counts[-1].tolist()) == (sorted(places), [0, 0, 2])


@pytest.mark.parametrize(("rows", "verbs"), [(1, ("costs", "moves", "takes")),
                                             (2, ("cost", "move", "take"))])  # fmt: skip
def test_one_page_costs_and_several_cost(capsys, tmp_path, rows, verbs):
    (tmp_path / "pages.csv").write_text("width,height\n" + "9,9\n" * rows)
    asked = "archive", tmp_path / "pages.csv", "--mode", "tiny"
    said = "".join(run(capsys, *asked, *more)[1] for more in ([], ["--gpu", "h100"]))
    assert [f" {verb} " in said for verb in verbs] == [True] * 3


@pytest.mark.parametrize("rows", [1, 3, 15, 16, 40])
def test_no_more_pages_are_at_once_than_the_list_has(capsys, tmp_path, rows):
    (tmp_path / "pages.csv").write_text("width,height\n0,9\n" + "900,1200\n" * rows)
    listed = tmp_path / "pages.csv", "--gpu", "h100"
    [planned] = document_of(capsys, "plan", *listed)["gpus"]
    [archived] = document_of(capsys, "archive", *listed, "--workers", planned["workers"])["time"]
    assert archived["concurrency"] == min(rows, 16)
    if rows < 16:  # which one GPU then takes at once
        whole = planned["points"]["max"]
        assert archived["gpu_hours"] == pytest.approx(whole["gpu_hours"], rel=1e-9)
        assert archived["concurrency"] == whole["concurrency"]


@pytest.mark.parametrize(("suffix", "read"), [("csv", csv.read_csv), ("parquet", pq.read_table)])
def test_every_page_can_be_written_with_its_row_number(capsys, tmp_path, pages, suffix, read):
    output = tmp_path / f"costs.{suffix}"
    document = document_of(capsys, "archive", pages, "--mode", "gundam,base", "--output", output)
    rows = [row for row in read(output).to_pylist() if row["mode"] == "base"]
    assert [row["row"] for row in rows] == [1, 3, 4]
    for row in rows:
        expected = expected_row(row["page_width"], row["page_height"], "base")
        assert {name: row[name] for name in PAGE_RESULTS} == expected
    flops = [each["page_flops"] for each in document["totals"]]
    assert flops[1] == sum(row["page_flops"] for row in rows)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_list_without_rows_has_no_grid_and_is_written_with_its_columns(tmp_path, capsys, kind):
    """A Parquet file without rows has no batch to take the columns from."""
    columns = {name: pa.array([], pa.int64()) for name in ("width", "height")}
    sizes, rows = written(tmp_path / f"sizes.{kind}", columns), tmp_path / "rows.parquet"
    document = document_of(capsys, "archive", sizes, "--mode", "base", "--output", rows)
    table = pq.read_table(rows)
    assert (document["pages_by_grid"], table.num_rows) == ([], 0)
    assert {"page_width", "page_flops"} <= {*table.column_names}


def test_with_and_without_a_sliding_window_are_two_settings(capsys, pages):
    arguments = ("archive", pages, "--arch", "unlimited-ocr", "--max-new-tokens", 4096,
                 "--mode", "base", "--sliding-window", "0,1", "--gpu", "h100-sxm")  # fmt: skip
    found = document_of(capsys, *arguments)
    for key, name in (("totals", "largest_kv_cache_bytes"), ("time", "gpu_hours")):
        without, within = ((each["sliding_window"], each[name]) for each in found[key])
        assert (without[0], within[0], without[1] > within[1]) == (False, True, True)
    out = run(capsys, *arguments)[1]
    assert out.count("eager, no window") == out.count("eager ") >= 3


# Ray ---------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_the_batch_function_runs_unchanged_in_ray_data(monkeypatch, tmp_path):
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    example = runpy.run_path(ROOT / "examples/ray_archive.py")
    widths, heights = np.random.default_rng(3).integers(0, 4000, (2, 3000))
    path = written(tmp_path / "pages.parquet", {"width": widths + 1, "height": heights})
    _, totals = added_up(path, "base")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False,
        object_store_memory=100 << 20,
    )  # fmt: skip
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        found = example["archive_totals"](ray.data.read_parquet(str(path)), mode="base")
    finally:
        ray.shutdown()
    assert found == {
        "pages": (heights > 0).sum(),
        "malformed": (heights == 0).sum(),
        "page_flops": totals.page_flops,
        "page_bytes_read": totals.page_bytes_read,
    }
