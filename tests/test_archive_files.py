"""Folders of files: frames of TIFFs, pages of PDFs, and every file that is neither."""

import contextlib
import gc
import io
import itertools
import json
import logging
import os
import re
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from fractions import Fraction

import pyarrow as pa
import pytest
from command_line import run
from hypothesis import given, settings, strategies as st
from PIL import Image
from pyarrow import csv

from dsocr_analyze import cli, errors
from dsocr_analyze.archive import pages as pages_module, pdf_pages as pdf_module, setting
from dsocr_analyze.archive.pages import open_pages
from dsocr_analyze.archive.pdf_pages import has_reader, pdf_pages
from dsocr_analyze.workload import image_file

# --- PDFs and TIFFs written byte by byte: no library's writer stands between test and reader -

LONG = 4


def pdf(objects, root=1):
    """A PDF of these objects, numbered from 1, with a right table of where they are."""
    out, places = bytearray(b"%PDF-1.7\n"), []
    for number, text in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{text}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    trailer = f"<< /Size {len(objects) + 1} /Root {root} 0 R >>"
    return (
        bytes(out)
        + (
            f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
            f"trailer\n{trailer}\nstartxref\n{len(out)}\n%%EOF\n"
        ).encode()
    )


def tiff(frames, order="<", *, big=False, after_last=0):
    """A TIFF of frames without pixels, each the values of its tags; `after_last` ends the chain.

    Of each frame the directory is written, in the order of the frames.
    """
    count, entry, offset = ("Q", "HHQ", "Q") if big else ("H", "HHL", "L")
    head = {"<": b"II", ">": b"MM"}[order]
    head += struct.pack(f"{order}HHHQ", 43, 8, 0, 16) if big else struct.pack(f"{order}HL", 42, 8)
    out = bytearray(head)
    for number, tags in enumerate(frames):
        tags = {258: 8, 259: 1, 262: 1, 273: 0, **tags}  # 8 bits, not compressed, 0 is black
        out += struct.pack(order + count, len(tags))
        for tag, value in sorted(tags.items()):
            field = struct.pack(f"{order}L", value).ljust(struct.calcsize(order + offset), b"\0")
            out += struct.pack(order + entry, tag, LONG, 1) + field
        here = len(out) + struct.calcsize(order + offset)
        out += struct.pack(order + offset, after_last if number == len(frames) - 1 else here)
    return bytes(out)


needs_pypdf = pytest.mark.skipif(not has_reader(), reason="pypdf, the extra 'pdf', is missing")

CATALOG = "<< /Type /Catalog /Pages 2 0 R >>"

# PDFs that take far more time or memory to read than their few bytes suggest -------------------

ROOT, PAGE = b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Page/MediaBox[0 0 72 72]>>"


def _stream(values: str, content: bytes) -> bytes:
    return b"<<%s/Length %d>>stream\n%s\nendstream" % (values.encode(), len(content), content)


def _pdf(objects: dict[int, bytes], inside: dict[int, tuple[int, int]]) -> bytes:
    """A file with a cross-reference stream; `inside` gives stream and index of further objects."""
    body, entries = b"%PDF-1.7\n", {number: (2, *place) for number, place in inside.items()}
    for number, content in objects.items():
        entries[number] = 1, len(body), 0
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    own, start = max(entries) + 1, len(body)
    entries[own] = 1, start, 0
    rows = (entries.get(number, (0, 0, 0)) for number in range(own + 1))
    values = f"/Type/XRef/Size {own + 1}/W[1 4 4]/Root 1 0 R/Filter/FlateDecode"
    table = _stream(values, zlib.compress(b"".join(struct.pack(">BII", *row) for row in rows)))
    return body + b"%d 0 obj\n%s\nendobj\nstartxref\n%d\n%%%%EOF" % (own, table, start)


def _tree(pages: int) -> dict[int, bytes]:
    kids = b" ".join(b"%d 0 R" % number for number in range(10, 10 + pages))
    return {1: ROOT, 2: b"<</Type/Pages/Kids[%s]>>" % kids}


def _streams(pages: int, of_page: Callable[[int], tuple[bytes, bytes]]) -> bytes:
    """Pages in an object stream each: what it begins with, numbers and offsets, and its objects."""
    objects, inside = _tree(pages), {}
    for page in range(10, 10 + pages):
        header, content = of_page(page)
        values = f"/Type/ObjStm/N {len(header.split()) // 2}/First {len(header)}/Filter/FlateDecode"
        objects[page + pages] = _stream(values, zlib.compress(header + content, 9))
        inside[page] = page + pages, 0
    return _pdf(objects, inside)


def _filled(page: int) -> tuple[bytes, bytes]:
    """A page with far more in it."""
    return b"%d 0 " % page, PAGE[:-2] + b"/X[" + b" " * 30_000_000 + b"]>>"


def _among_others(page: int) -> tuple[bytes, bytes]:
    """A page among many other objects."""
    offsets = range(len(PAGE) + 1, len(PAGE) + 1 + 8 * 300_000, 8)
    header = b"%d 0 " % page + b"".join(b"99 %d " % offset for offset in offsets)
    return header, PAGE + b" " + b"<</A 1>>" * 300_000


HOSTILE_PDFS = {
    "object streams of spaces": lambda: _streams(100, _filled),
    "object streams of objects": lambda: _streams(10, _among_others),
    "deep arrays": lambda: book("/MediaBox " + "[" * 200_000 + "]" * 200_000),
    "broad tree": lambda: pdf([
        CATALOG, *(f"<</Kids [{f'{number} 0 R ' * 1000}]>>" for number in range(3, 60)),
        "<</Kids []>>",
    ]),
}  # fmt: skip
"""What pypdf alone reads too long, or until no stack is left."""


# Frames of images -----------------------------------------------------------------------------

_READS = """
import re, sys, time
from pathlib import Path
from dsocr_analyze.archive.pdf_pages import pdf_pages
from dsocr_analyze.errors import PageError
try:
    list(pdf_pages(Path(sys.argv[1]), 72))
except PageError as error:
    assert "\\n" not in str(error)
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(time.process_time(), peak)
"""


def sizes_in(path):
    return list(image_file.ImagePages(path).sizes())


def book(*pages, above=""):
    """A PDF of pages, whose group says `above`."""
    kids = " ".join(f"{number} 0 R" for number in range(3, 3 + len(pages)))
    group = f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} {above} >>"
    return pdf([CATALOG, group, *(f"<< /Type /Page /Parent 2 0 R {page} >>" for page in pages)])


def counted(path, content=None, **given):
    """The sizes in a list, the rejected rows and what the files are; first it is written."""
    if content is not None:
        path.write_bytes(content)
    source = open_pages(path, **given)
    batches = list(source.batches)
    columns = [(batch.columns["width"], batch.columns["height"]) for batch in batches]
    sizes = [size for each in columns for size in zip(*map(pa.Array.to_pylist, each), strict=True)]
    rejected = {row: why for batch in batches for row, why in batch.rejected.items()}
    return sizes, rejected, source.files


ONE, OTHER = {256: 30, 257: 20}, {256: 31, 257: 21}
THREE = [ONE, {256: 40, 257: 25, 274: 6}, {256: 7, 257: 9, 274: 3}]


SIZES = [(30, 20), (25, 40), (7, 9)]


@pytest.mark.parametrize(
    ("content", "sizes", "rejected", "copies"),
    [
        (tiff(THREE, "<"), SIZES, {}, 0),
        (tiff(THREE, ">"), SIZES, {}, 0),
        (tiff(THREE, "<", big=True), SIZES, {}, 0),
        (tiff([ONE | {254: 1}]), [(30, 20)], {}, 0),  # a copy, but of nothing
        (tiff([ONE, OTHER], after_last=8), [(30, 20), (31, 21)], {}, 0),  # it comes back
        (tiff([ONE, OTHER], after_last=8 + 2 + 6 * 12 + 4), [(30, 20), (31, 21)], {}, 0),
        (tiff([ONE, ONE], after_last=4), [(30, 20)] * 2, {3: "next frame"}, 0),
        (tiff([ONE, ONE], after_last=10**6), [(30, 20)] * 2, {3: "next frame"}, 0),
        (tiff([ONE, {256: 31}]), [(30, 20)], {2: "without width and height"}, 0),
        (tiff([ONE] * 4), [(30, 20)] * 3, {4: "more than 3 frames"}, 0),
        # Smaller copies and masks are no pages.
        (tiff([ONE, ONE | {254: 1}, {256: 9, 257: 9, 254: 2}]), [(30, 20), (9, 9)], {}, 1),
        (tiff([ONE, ONE | {254: 4}]), [(30, 20)], {}, 1),
    ],
)
def test_every_frame_has_its_own_size_and_orientation_up_to_a_damaged_one_that_is_named(
    tmp_path, monkeypatch, content, sizes, rejected, copies
):
    monkeypatch.setattr(image_file, "MOST_FRAMES", 3)
    found, reasons, files = counted(tmp_path / "a.tif", content)
    assert (found, list(reasons), files.images, files.tiff_copies) == (
        sizes, list(rejected), setting.CountedFiles(1, len(sizes)), copies,
    )  # fmt: skip
    for row, said in rejected.items():
        assert ("a.tif" in reasons[row], said in reasons[row]) == (True, True)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=6))
def test_the_frames_are_those_that_pillow_writes(tmp_path_factory, sizes):
    path = tmp_path_factory.mktemp("scans") / "scan.tiff"
    first, *others = (Image.new("L", size) for size in sizes)
    first.save(path, save_all=True, append_images=others)
    assert sizes_in(path) == sizes


@pytest.mark.benchmark
def test_thousands_of_frames_take_no_minutes(tmp_path):
    (tmp_path / "a.tif").write_bytes(tiff([{256: 30, 257: 20}] * 20_000))
    start = time.perf_counter()
    assert (len(sizes_in(tmp_path / "a.tif")), time.perf_counter() - start < 20) == (20_000, True)


def animation(kind):
    """An image of three frames."""
    file, colours = io.BytesIO(), ("red", "blue", "tan")
    first, *others = (Image.new("RGB", (40, 30), colour) for colour in colours)
    first.save(file, kind, save_all=True, append_images=others)
    return file.getvalue()


@pytest.mark.parametrize("suffix", ["gif", "webp", "png"])
def test_an_animation_is_one_page_and_said_to_have_more_frames(tmp_path, suffix):
    (tmp_path / f"a.{suffix}").write_bytes(animation(suffix))
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "torn.gif").write_bytes(animation("gif")[:105])  # in its second frame
    sizes, rejected, files = counted(tmp_path)
    assert (sizes, list(rejected)) == ([(40, 30), (40, 30)], [2])
    assert ("broken.png" in rejected[2], files.images_with_more_frames) == (True, 1)


GROUP = "<< /Type /Pages /Parent 2 0 R /Kids [{} 0 R {} 0 R] /MediaBox [0 0 {} 10] >>"

BOXES = {
    "[0 0 612 792]": (612, 792),
    "[612 792 0 0]": (612, 792),  # any two corners
    "[-100 50 512 842]": (612, 792),
    "[0 0 612 792] /CropBox [100 100 400 300]": (300, 200),
    "[0 0 612 792] /CropBox [-50 -50 306 9999]": (306, 792),
    "[0 0 612 792] /CropBox [700 0 800 10]": (612, 792),
    "[0 0 612 792] /UserUnit 2.5": (1530, 1980),
    "[0 0 612 792] /Rotate 90": (792, 612),
    "[0 0 612 792] /Rotate -90": (792, 612),
    "[0 0 612 792] /Rotate 450": (792, 612),
    "[0 0 612 792] /Rotate 180": (612, 792),
}
"""A page's box with what changes it, and its size at 72 dpi."""

WITHOUT_SIZE = {
    "": "no MediaBox",
    "/MediaBox [0 0 612]": "box of 3 numbers",
    "/MediaBox [0 0 /a 4]": "instead of a number",
    "/MediaBox [0 0 612 792] /Rotate 45": "Rotate 45",
    "/MediaBox [0 0 612 792] /UserUnit 0": "UserUnit 0",
    "/MediaBox [0 0 0 792]": "0 x 792 pixels",
}
INCH = "/MediaBox [0 0 72 72]"

LEAF = "<< /Type /Page /MediaBox [0 0 72 144] >>"
PDFS = [
    *((book(f"/MediaBox {box}"), 72, [size], {}) for box, size in BOXES.items()),
    (book("/MediaBox [0 0 595 842]"), 150, [(1240, 1754)], {}),  # 1239.58 x 1754.17
    (book("/MediaBox [0 0 595.276 841.89]"), 300, [(2480, 3508)], {}),
    (book("/MediaBox [0 0 1 1]"), 36, [(1, 1)], {}),  # half a pixel
    # Pages inherit boxes and turns, but no UserUnit, and keep their own.
    (book("", "/Rotate 0", "/CropBox [0 0 100 100]", "/MediaBox [0 0 150 792]",
          above="/MediaBox [0 0 612 792] /CropBox [0 0 300 200] /Rotate 90 /UserUnit 9"), 72,
     [(200, 300), (300, 200), (100, 100), (200, 150)], {}),
    (pdf([CATALOG, "<< /Type /Pages /Kids [3 0 R 6 0 R 4 0 R] /MediaBox [0 0 3 3] >>",
          GROUP.format(4, 5, 11), "<< /Type /Page >>", "<< /Type /Page >>", GROUP.format(7, 8, 12),
          "<< /Type /Page >>", "<< /Type /Page /MediaBox [0 0 13 10] >>"]), 72,
     [(11, 10), (11, 10), (12, 10), (13, 10), (3, 3)], {}),
    # Entries of a page tree that are no pages are missing, which is said.
    *((pdf([CATALOG, f"<< /Kids [3 0 R {entry} 4 0 R] /Count 3 >>", *2 * [LEAF]]), 72,
       [(72, 144)] * 2, {3: "it states 3 pages, of which 2 can be found"})
      for entry in ("7", "null", "9 0 R")),
    # A page without a size is named and spoils no other; a broken file is named.
    *((book(INCH, page, INCH), 72, [(72, 72)] * 2, {2: said}) for page, said in
      WITHOUT_SIZE.items()),
    *((content, 72, [], {1: "a.pdf"}) for content in (
        b"", b"no PDF at all", b"%PDF-1.7\n", book("/MediaBox [0 0 9 9]")[:40],
        pdf(["<< /Type /Catalog >>"]),
        pdf([CATALOG, "<< /Type /Pages /Kids [] /Count 7 >>"]),
        pdf([CATALOG, "<< /Type /Pages /Kids [2 0 R] >>"]),
        pdf([CATALOG, "<< /Kids [3 0 R] >>", "<< /Kids [2 0 R] >>"]),
        pdf([CATALOG, "[1 2 3]"]),
        pdf([CATALOG, "<< /Type /Pages /Kids 5 >>"]),
    )),
]  # fmt: skip


# --- PDFs, page by page ----------------------------------------------------------------------


@needs_pypdf
@pytest.mark.parametrize(("content", "dpi", "sizes", "rejected"), PDFS, ids=range(len(PDFS)))
def test_a_page_is_as_large_as_its_boxes_say_or_named_with_a_reason_on_one_line(
    tmp_path, capfd, content, dpi, sizes, rejected
):
    found, reasons, files = counted(tmp_path / "a.pdf", content, pdf_dpi=dpi)
    assert (found, list(reasons)) == (sizes, list(rejected))
    for row, said in rejected.items():
        reason = reasons[row]
        assert (said in reason, "a.pdf" in reason, "\n" in reason) == (True, True, False)
        assert reason.startswith(f"page {row} of PDF") or row > len(sizes)
    assert files.pdfs == setting.CountedFiles(bool(sizes), len(sizes))
    assert capfd.readouterr() == ("", "")


@needs_pypdf
@settings(max_examples=40, deadline=None)
@given(
    st.tuples(*[st.integers(-9999, 99999)] * 4),
    st.integers(1, 600),
    st.sampled_from([0, 90, 180, 270]),
    st.sampled_from(["1", "0.5", "3"]),
)
def test_pixels_are_exact(tmp_path_factory, box, dpi, turn, unit):
    hundredths = " ".join(f"{value / 100:.2f}" for value in box)
    path = tmp_path_factory.mktemp("pdfs") / "a.pdf"
    path.write_bytes(book(f"/MediaBox [{hundredths}] /Rotate {turn} /UserUnit {unit}"))
    sides = [abs(box[2] - box[0]), abs(box[3] - box[1])][:: 1 if turn % 180 == 0 else -1]
    points = [Fraction(side, 100) for side in sides]
    expected = tuple((2 * length * Fraction(unit) * dpi + 72) // 144 for length in points)
    (found,) = pdf_pages(path, dpi)
    is_size = min(expected) >= 1 and max(expected) <= 10**6
    assert found == expected if is_size else isinstance(found, errors.PageError)


@needs_pypdf
def test_a_file_that_takes_too_long_is_named_and_spoils_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(pdf_module, "MOST_SECONDS", 0.1)
    (tmp_path / "a.pdf").write_bytes(HOSTILE_PDFS["broad tree"]())
    (tmp_path / "b.pdf").write_bytes(book("/MediaBox [0 0 72 72]"))
    threads, begun = threading.active_count(), time.process_time()
    gc.disable()  # or the end could come in a callback of Hypothesis, which swallows it
    sizes, rejected, _ = counted(tmp_path, pdf_dpi=72)
    gc.enable()
    assert time.process_time() - begun < 1
    assert (sizes, list(rejected)) == ([(72, 72)], [1])
    assert "a.pdf': reading it takes more than 0.1 s or 400 MiB of memory" in rejected[1]
    assert (threading.active_count(), logging.getLogger("pypdf").handlers) == (threads, [])


@needs_pypdf
def test_an_end_that_is_swallowed_comes_again(monkeypatch):
    monkeypatch.setattr(pdf_module, "MOST_SECONDS", 0.02)
    ended = []
    with pdf_module._within_limits():
        while len(ended) < 2:
            with contextlib.suppress(pdf_module._TooMuch):
                for _ in itertools.count():
                    pass
            ended.append(time.process_time())
    assert ended[1] - ended[0] < 1


@needs_pypdf
@pytest.mark.exhaustive
@pytest.mark.parametrize("attack", HOSTILE_PDFS)
def test_any_file_ends_within_ten_seconds_and_a_gibibyte(tmp_path, attack):
    (tmp_path / "a.pdf").write_bytes(HOSTILE_PDFS[attack]())
    assert (tmp_path / "a.pdf").stat().st_size < 10e6
    ended = subprocess.run(
        [sys.executable, "-P", "-c", _READS, tmp_path / "a.pdf"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    seconds, peak_kibibytes = map(float, ended.stdout.split())
    assert (seconds < 10, peak_kibibytes < 2**20, ended.stderr) == (True, True, "")


@needs_pypdf
def test_what_needs_a_password_is_named_and_what_opens_without_one_counts(tmp_path):
    import pypdf

    for name, password in (("locked", "secret"), ("open", "")):
        writer = pypdf.PdfWriter()
        writer.add_blank_page(72, 144)
        writer.encrypt(password, "owner", algorithm="RC4-128")
        writer.write(tmp_path / f"{name}.pdf")
    sizes, rejected, _ = counted(tmp_path, pdf_dpi=72)
    assert (sizes, list(rejected)) == ([(72, 144)], [1])
    assert re.search(r"locked\.pdf.*encrypted", rejected[1])


@needs_pypdf
def test_the_command_counts_pages_at_the_dpi_that_is_asked_for(tmp_path, capsys):
    (tmp_path / "a.PDF").write_bytes(book(*["/MediaBox [0 0 595 842]"] * 3))
    rows = tmp_path / "rows.csv"
    code, out, _ = run(capsys, "archive", tmp_path / "a.PDF", "--pdf-dpi", 200, "--format",
                         "json", "--output", rows, "--strict")  # fmt: skip
    files = json.loads(out)["files"]
    assert (code, files["pdfs"], files["pdf_dpi"]) == (0, {"files": 1, "pages": 3}, 200)
    columns = ("row", "path", "file_page", "page_width", "page_height")
    assert [[row[name] for name in columns] for row in csv.read_csv(rows).to_pylist()] == [
        [number, "a.PDF", number, 1653, 2339] for number in (1, 2, 3)
    ]


@pytest.fixture
def scans(tmp_path):
    folder = tmp_path / "scans"
    (folder / "inner" / "deep").mkdir(parents=True)
    (folder / ".cache").mkdir()
    (folder / "scan.tiff").write_bytes(tiff(THREE))
    for name in ("inner/deep/b.JPG", ".cache/hidden.png"):
        Image.new("L", (30, 20)).save(folder / name)
    (folder / "book.pdf").write_bytes(book("/MediaBox [0 0 72 72]"))
    for name in ("a.docx", "inner/b.DOCX", "inner/c.docx", "notes.txt", "README", ".DS_Store"):
        (folder / name).write_text("text")
    (folder / "inner" / "loop").symlink_to(folder)
    return folder


def test_a_pdf_without_its_reader_is_named_and_fails_strictly(scans, capsys, monkeypatch):
    monkeypatch.setattr(pages_module, "has_reader", lambda: False)
    code, out, err = run(capsys, "archive", scans, "--format", "json", "--strict")
    document = json.loads(out)
    assert (code, document["pages"], document["files"]["pdfs_without_reader"]) == (3, 4, 1)
    assert re.search(r"1 PDF is not counted.*pip install 'dsocr-analyze\[pdf\]'", err, re.DOTALL)


def test_all_other_files_are_counted_by_extension(scans, capsys):
    _, _, files = counted(scans)
    assert files.not_counted == (
        setting.OtherFiles(".docx", 3), setting.OtherFiles("", 1), setting.OtherFiles(".txt", 1),
    )  # fmt: skip
    assert (files.hidden, files.linked_folders, files.images) == (2, 1, setting.CountedFiles(2, 4))
    lines = [line for line in run(capsys, "archive", scans)[1].splitlines() if "Not c" in line]
    assert lines == [
        "Not counted: 3 .docx, 1 without extension, 1 .txt",
        "Not counted: 2 hidden files or folders, ignored",
        "Not counted: 1 link to a folder, not followed",
    ]


def test_extensions_without_number_take_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(pages_module, "_MOST_EXTENSIONS", 3)
    Image.new("L", (9, 9)).save(tmp_path / "a.png")
    for extension in (*map(str, range(9)), "y" * 99):
        (tmp_path / f"x.{extension}").write_text("")
    found = counted(tmp_path)[2].not_counted
    assert (len(found) <= 5, sum(each.files for each in found)) == (True, 10)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_called_like_an_image_is_named_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    assert "it is a pipe" in counted(tmp_path)[1][1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (tiff([{256: 700, 257: 900}, ONE], after_last=10**6), "2 pages and only the first is used"),
        (animation("gif"), "several frames"),
        (tiff([ONE]), ""),
    ],
    ids=["pages", "animation", "one"],
)
def test_of_an_image_for_one_page_the_first_is_taken_and_that_is_said(
    tmp_path, capsys, content, said
):
    (tmp_path / "scan.tif").write_bytes(content)
    code, _, err = run(capsys, "fit", "h100-sxm", "--image", tmp_path / "scan.tif")
    assert (code, said in err, bool(said)) == (0, True, "first" in err)


def test_a_files_name_is_no_formula_and_acts_nowhere_in_the_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("=cmd|x!A0.png", "-1+1.png", "+a.png", "@b.png", "a\x1b[2K\nb.png"):
        Image.new("RGB", (9, 9)).save(tmp_path / name)
    assert cli.main(["archive", ".", "--mode", "tiny", "--output", "rows.csv"]) == 0
    paths = csv.read_csv("rows.csv")["path"].to_pylist()
    assert set(paths) == {
        "./=cmd|x!A0.png",
        "./-1+1.png",
        "./+a.png",
        "./@b.png",
        r"a\x1b[2K\nb.png",
    }
