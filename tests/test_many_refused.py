"""What sweeps and lists of pages refuse: one line, the exit code, and no file written."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import run

FILES = {
    "pages.csv": b"width,height\n1240,1754\nabc,1\n640,640\n1240,1754\n",
    "given.csv": b"width,height,max_new_tokens\n640,640,100\n",
    "lengths.csv": b"new_tokens\n100\n",
    "empty.csv": b"",
    "ab.csv": b"a,b\n1,2\n",
    "close.csv": b"widht,weight\n1,2\n",
    "twice.csv": b"width,width,height\n1,2,3\n",
    "open.csv": b'width,"height\n1,2\n',
    "png.csv": b"\x89PNG\r\n\x1a\n\x00\x00",
    "text.parquet": b"width,height\n1,2\n",
    "short.parquet": b"PAR1 and nothing more",
    "pages.csv.gz": b"no gzip",
    "docs/a.docx": b"text",
}

LISTS = [
    ("gone.csv", 2, "no list of pages"),
    ("empty.csv", 2, "empty"),
    ("ab.csv", 2, "no column 'width'"),
    ("close.csv", 2, "did you mean width by 'widht' and height by 'weight'? give columns"),
    ("twice.csv", 2, "2 columns 'width'"),
    ("open.csv", 2, "first line"),
    ("png.csv", 2, "no column 'width'"),
    ("text.parquet", 2, "not a Parquet file"),
    ("short.parquet", 2, "cannot read"),
    ("torn.parquet", 2, "cannot read"),
    ("bools.parquet", 2, "column 'width' holds bool"),
    ("pages.csv.gz", 2, "cannot read"),
    ("docs", 2, "no image or PDF in 'docs' or a folder in it; it contains 1 .docx"),
    ("pages.csv --mode huge", 2, "no mode 'huge'"),
    ("pages.csv --text-tokens 0", 2, "too small"),
    ("pages.csv --max-new-tokens 1,2", 2, "--max-new-tokens"),
    ("pages.csv --format xml", 2, "--format 'xml' is unknown"),
    ("pages.csv --histogram dpi", 2, "--histogram 'dpi' is unknown"),
    ("docs --pdf-dpi 0", 2, "--pdf-dpi 0 is too small"),
    ("docs --pdf-dpi 10000000", 2, "--pdf-dpi 10000000 is too large"),
    ("pages.csv --plot p.svg --histogram tokens --mode 64:704:64", 2, "at most 10 modes"),
    ("pages.csv --output pages.csv", 2, "the list of pages itself"),
    ("pages.csv --output costs.txt", 2, ".csv, .parquet"),
    ("pages.csv --plot gone/p.svg", 74, "no folder 'gone'"),
    ("pages.csv --batch-size 2 --output rows.csv", 2, "a page of a batch has no cost of its own"),
    ("pages.csv --batch-size 2 --gpu h100", 2, "give --concurrency 2 instead"),
    ("pages.csv --deadline 3h", 2, "--deadline is for predicted seconds; give --gpu too"),
    ("pages.csv --concurrency 3", 2, "--concurrency is for predicted seconds; give --gpu too"),
    ("pages.csv --gpu l40s --deadline soon", 2, "--deadline 'soon' is invalid"),
    ("pages.csv --gpu l40s --concurrency 0", 2, "--concurrency 0 is out of range"),
    ("pages.csv --gpu l40s --price -1", 2, "--price -1 is out of range"),
    ("pages.csv --gpu l40s --dtype float32", 2, "--dtype float32"),
    ("given.csv --gpu l40s --mean-new-tokens 50", 2,
     "column max_new_tokens, which gives the output lengths; leave out --new-tokens-from and"
     " --mean-new-tokens"),
]  # fmt: skip

SWEEPS = [
    ("--pages pages.csv --page 640x640", 2, "not both"),
    ("--pages pages.csv --quantity page_flops", 2, "not both"),
    ("--pages pages.csv --text-tokens 1,2", 2, "--text-tokens has 2 values"),
    ("--pages pages.csv --max-new-tokens 1:9", 2, "--max-new-tokens has 9 values"),
    ("--pages pages.csv --batch-size 2,4", 2,
     "--batch-size has 2 values; with --pages give one"),
    ("--pages pages.csv --format xml", 2, "'xml' is unknown"),
    ("--pages pages.csv --histogram dpi", 2, "'dpi' is unknown"),
    ("--page a9", 2, "no page size 'a9'"),
    ("--page 0x10", 2, "0 x 10 pixels is invalid"),
    ("--page a4,,a5", 2, "empty item"),
    ("--page 1:9999999x1", 2, "9999999 x 1 pixels is invalid"),
    (f"--page a4@1:{10**30}", 2, "values; give at most"),
    ("--mode huge", 2, "no mode 'huge'"),
    ("--mode 10", 2, "mode '10' is invalid"),
    (f"--mode 64:{10**30}", 2, "values; give at most"),
    ("--mode 100:9000/100:9000", 2, "modes; give at most"),
    ("--text-tokens 0", 2, "dsocr-analyze: --text-tokens 0 is out of range"),
    ("--text-tokens ten", 2, "'ten' is not a whole number or range"),
    ("--text-tokens 10:5", 2, "empty range"),
    ("--text-tokens 1:5:0", 2, "empty range"),
    ("--text-tokens 1:2:3:4", 2, "not a whole number or range"),
    (f"--max-new-tokens 1:{10**30}", 2, "is out of range"),
    ("--batch-size 1.5", 2, "'1.5' is not a whole number"),
    ("--dtype int8", 2, "'int8' is unknown"),
    ("--use-flash-attn 2", 2, "give 0, 1 or 0,1"),
    ("--sliding-window 0", 2, "deepseek-ocr has no sliding window"),
    ("--arch unlimited-ocr --sliding-window 2", 2, "--sliding-window '2'"),
    ("--plot costs.png --quantity joy", 2, "no quantity 'joy'"),
    ("--plot costs.png --x joy", 2, "no axis 'joy'"),
    ("--plot costs.png --text-tokens 1:30000", 2, "30,000 rows is not readable"),
    ("--mode base,gundam --page 640x640,a4 --text-tokens 1:3 --batch-size 1:9 --output costs.csv"
     " --plot costs.png --x page", 2, "lines"),
    ("--format json", 2, "--format json is for a list of pages"),
    ("--histogram grid", 2, "--histogram grid is for a list of pages"),
    ("--quantity page_flops", 2, "--quantity page_flops is for a picture"),
    ("--x mode", 2, "--x mode is for a picture"),
    ("--config gone.json", 2, "gone.json"),
    ("--text-tokens 1:1000000 --max-new-tokens 1:11", 2, "11,000,000 rows"),
    ("--yes --page 1:1000000x1:1000000 --text-tokens 1:1000000 --max-new-tokens 1:1000000", 2,
     "give shorter ranges"),
    ("--text-tokens 1000000 --batch-size 1000000", 2, "does not fit a 64-bit column"),
    ("--output costs.txt", 2, ".csv, .parquet"),
    ("--output gone/costs.csv", 74, "no folder 'gone'"),
    ("--plot costs.gif", 2, ".png or .svg"),
    ("--plot gone/costs.png", 74, "no folder 'gone'"),
    ("--plot a.svg --quantity page_seconds", 2, "give --gpu too"),
    ("--price 2", 2, "--price is for predicted seconds; give --gpu too"),
    ("--runtime eager", 2, "--runtime is for predicted seconds; give --gpu too"),
    ("--gpu h1000", 2, "h100"),
    ("--gpu h100-sxm,", 2, "--gpu 'h100-sxm,' has an empty item"),
    ("--gpu l40s --runtime eager,serving", 2, "--runtime 'eager,serving'"),
    ("--gpu l40s --server vlm", 2, "did you mean vllm"),
    ("--gpu l40s --workers 0", 2, "--workers 0 is too small"),
    ("--gpu l40s --price 0", 2, "--price 0 is out of range"),
    ("--gpu l40s --preprocess-ms -1", 2, "--preprocess-ms -1 is out of range"),
    ("--gpu l40s --reserved 1", 2, "--reserved 1.0 is out of range"),
    ("--gpu l40s --dtype bfloat16,float32", 2, "--dtype float32"),
    ("--gpu a100 --weights-dtype fp8", 2, "float8"),
    ("--gpu l40s --runtime eager --kv-dtype fp8", 2, "--runtime serving"),
    ("--gpu l40s --share-at-limit 0.1", 2, "needs --mean-new-tokens"),
    ("--gpu l40s --mean-new-tokens 50 --max-new-tokens 20,100", 2, "mean 50"),
    ("--gpu l40s --concurrency 4", 2, "--concurrency 4 is for a list of pages"),
    ("--gpu l40s --deadline 4h", 2, "--deadline 4h is for a list of pages"),
    ("--gpu l40s --new-tokens-from lengths.csv --max-new-tokens 10,20", 2,
     "give one --max-new-tokens"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    (folder / "docs").mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    pq.write_table(pa.table({"width": [True], "height": [1]}), folder / "bools.parquet")
    table = pa.table({"width": range(1, 9999), "height": range(1, 9999)})
    pq.write_table(table, folder / "torn.parquet")
    content = (folder / "torn.parquet").read_bytes()
    (folder / "torn.parquet").write_bytes(content[:4] + bytes(1996) + content[2000:])
    return folder


@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [(f"archive {line}", *rest) for line, *rest in LISTS]
    + [(f"sweep {line}", *rest) for line, *rest in SWEEPS],
)
def test_what_is_not_possible_is_one_line_and_changes_no_file(
    capsys, monkeypatch, folder, arguments, expected, message
):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    before = {path: path.is_file() and path.read_bytes() for path in Path().rglob("*")}
    code, out, err = run(capsys, *arguments.split())
    assert (code, out, err.count("\n")) == (expected, "", 1), err
    assert message in err
    assert {path: path.is_file() and path.read_bytes() for path in Path().rglob("*")} == before
