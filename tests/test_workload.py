"""What a page, a mode and a prompt become, before any model is there."""

import contextlib
import json
import warnings
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from dsocr_analyze.architectures import DEFAULT, deepseek_ocr, plan_workload, views
from dsocr_analyze.errors import PageError, WorkloadError
from dsocr_analyze.workload import Mode, ViewBatch, parse_page, position_warnings, text_parts
from dsocr_analyze.workload.image_file import ImagePages

DATA = Path(__file__).parent / "data"
crop_grid, GRIDS, notes_of = DEFAULT.page_rule.grid, DEFAULT.page_rule.grids, DEFAULT.notes_of
GOLDEN_GRIDS = json.loads((DATA / "golden_grids.json").read_text())
GOLDEN_WORKLOADS = json.loads((DATA / "golden_workloads.json").read_text())

sides = st.integers(1, 1_000_000)
view_sizes = st.integers(64, 16_384)


GRIDS_BY_HAND = {
    (1, 1): (1, 1),
    (640, 640): (1, 1),
    (640, 641): (2, 2),
    (641, 640): (2, 2),
    (641, 1): (9, 1),
    (1, 1_000_000): (1, 9),
    (1240, 1754): (2, 3),
    (1754, 1240): (3, 2),
    # Of two grids that are equally near, the later wins beyond half of its tiles' pixels:
    # 2 x 2 and 3 x 3 to a square; half of nine tiles is 1,843,200 pixels.
    (1357, 1357): (2, 2),  # 1,841,449 pixels
    (1358, 1358): (3, 3),  # 1,844,164 pixels
    (1280, 1440): (2, 2),  # exactly half
    (1281, 1440): (3, 3),
    # 2 x 1 and 4 x 2 to a page twice as wide as high; half of eight is 1,638,400.
    (1810, 905): (2, 1),  # 1,638,050 pixels
    (1812, 906): (4, 2),  # 1,641,672 pixels
}


def test_grids_by_hand_and_as_recorded():
    assert {page: crop_grid(*page) for page in GRIDS_BY_HAND} == GRIDS_BY_HAND
    assert len(GOLDEN_GRIDS) == 150
    assert [[w, h, *crop_grid(w, h)] for w, h, *_ in GOLDEN_GRIDS] == GOLDEN_GRIDS
    # The candidates are all grids of two to nine tiles, by area.
    every = {(w, h) for w in range(1, 10) for h in range(1, 10) if 2 <= w * h <= 9}
    assert (set(GRIDS), len(GRIDS)) == (every, 22)
    assert [w * h for w, h in GRIDS] == sorted(w * h for w, h in GRIDS)


@settings(max_examples=30, deadline=None)
@given(sides, sides)
def test_a_page_beyond_one_tile_gets_a_grid_that_no_other_is_nearer_than(width, height):
    grid = crop_grid(width, height)
    assert (grid == (1, 1)) == (width <= 640 and height <= 640)
    distances = {each: abs(width / height - each[0] / each[1]) for each in GRIDS}
    assert grid == (1, 1) or distances[grid] == min(distances.values())


SIDES = {
    64: 1,
    512: 8,
    640: 10,
    1024: 16,
    1280: 20,
    # Between multiples of 64: whole patches, in fours, rounded up.
    16: 1,
    79: 1,
    80: 2,
    128: 2,
    143: 2,
    144: 3,
    650: 10,
    656: 11,
}
"""Tokens of a view's side by its pixels."""


def test_a_token_covers_64_pixels_a_newline_ends_each_row_and_a_separator_the_image():
    assert {size: views.tokens_per_side(size) for size in SIDES} == SIDES
    assert DEFAULT.visual_tokens(1024, 640, True, (1, 1)) == 16 * (16 + 1) + 1
    tiles = (10 * 2 + 1) * (10 * 3)
    assert DEFAULT.visual_tokens(1024, 640, True, (2, 3)) == 16 * (16 + 1) + 1 + tiles
    assert DEFAULT.visual_tokens(1024, 640, False, (1, 1)) == 10 * 11 + 1


@settings(max_examples=30, deadline=None)
@given(st.integers(16, 16_384))
def test_tokens_are_what_the_encoders_convolutions_yield(size):
    patches = (size - 16) // 16 + 1  # kernel 16, stride 16
    once = (patches + 2 - 3) // 2 + 1  # kernel 3, stride 2, padding 1
    assert views.tokens_per_side(size) == (once + 2 - 3) // 2 + 1


def test_the_modes_of_the_paper():
    """Those of one view have its tokens, besides newlines and the separator."""
    assert list(deepseek_ocr.MODES.values()) == [
        Mode("tiny", 512, 512, False),
        Mode("small", 640, 640, False),
        Mode("base", 1024, 1024, False),
        Mode("large", 1280, 1280, False),
        Mode("gundam", 1024, 640, True),
        Mode("gundam-m", 1280, 1024, True),
    ]
    for name, tokens in {"tiny": 64, "small": 100, "base": 256, "large": 400}.items():
        size = deepseek_ocr.MODES[name].image_size
        workload = plan_workload(page=(1240, 1754), image_size=size, crop_mode=False)
        assert workload.visual_tokens - views.tokens_per_side(size) - 1 == tokens


def refusal(error_type, function, *arguments, **options):
    """The error that a call raises, with a message of one line."""
    with pytest.raises(error_type) as error:
        function(*arguments, **options)
    assert "\n" not in str(error.value)
    return error.value


READ = {
    **dict.fromkeys(("a4", "A4", " a4 ", "a4@150"), (1240, 1754)),
    "a4@300": (2480, 3508),
    "a4@72": (595, 842),
    "letter": (1275, 1650),
    "letter@300": (2550, 3300),
    "letter@1": (9, 11),  # 8.5 inches
    "legal": (1275, 2100),
    "a3": (1754, 2480),
    "a5": (874, 1240),
    **dict.fromkeys(("1191x1684", "1191X1684", "1191 x 1684"), (1191, 1684)),
    "1x1000000": (1, 1_000_000),
}
UNREADABLE = (
    *("", "a9", "a4@", "a4@0", "a4@-1", "a4@1.5", "a4@999999", "nan", "a" * 5000),
    *("x", "100x", "x100", "1e3x100", "100x100x100", "1240,1754", "100.5x100"),
    *("100x0", "-5x100", "100x-5", "1000001x5", "9" * 5000 + "x1"),
    *("\N{ARABIC-INDIC DIGIT ONE}x1", "a4\na4", "1x\n1"),
)


def test_a_name_or_a_size_is_read_and_anything_else_refused_on_one_short_line():
    assert {text: parse_page(text) for text in READ} == READ
    for text, words in (
        ("b5", ["'b5'", "a3, a4, a5, letter, legal", "a4@300", "1240x1754"]),
        ("0x100", ["0 x 100 pixels", "from 1 to 1000000"]),
        *((text, ["give"]) for text in UNREADABLE),
    ):
        message = str(refusal(PageError, parse_page, text))
        assert len(message) < 300, text
        assert [word for word in words if word not in message] == [], text


def save(path: Path, size: tuple[int, int] = (30, 20), orientation: int | None = None) -> Path:
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    Image.new("RGB", size, "white").save(path, exif=exif)
    return path


TURNED = [
    *((suffix, turn) for suffix in ("png", "jpg", "tiff", "webp") for turn in (None, 4, 6)),
    *(("jpg", turn) for turn in (1, 2, 3, 5, 7, 8)),
]
NO_IMAGES = [
    # A name, a content, and what is said.
    ("text.png", b"this is no image\n", "text.png"),
    ("empty.png", b"", "empty.png"),
    ("header.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIH", "header.png"),
    ("header.jpg", b"\xff\xd8\xff\xe0\0\x10JF", "header.jpg"),
    ("page.svg", b"<svg xmlns='http://www.w3.org/2000/svg' width='9'/>", "page.svg"),
    ("two\nlines.png", b"this is no image\n", "two\\nlines.png"),
    ("page.ppm", b"P6 2000000 3 255\n", "2000000 x 3 pixels"),
    ("absent.png", None, "no image '"),
    ("x" * 300 + ".png", None, ""),
    ("null\0byte.png", None, ""),
    ("", None, "it is a folder, not a file"),
]


def page_of_image(path):
    return next(ImagePages(Path(path)).sizes())


class TestPageOfImage:
    def test_a_page_on_its_side_is_turned(self, tmp_path):
        for suffix, turn in TURNED:
            path = save(tmp_path / f"page.{suffix}", orientation=turn)
            size = (20, 30) if (turn or 1) >= 5 else (30, 20)
            assert page_of_image(str(path)) == size, (suffix, turn)
        # A broken orientation leaves the stored size.
        Image.new("RGB", (30, 20)).save(path, exif=b"Exif\0\0garbage that is no TIFF header")
        assert page_of_image(path) == (30, 20)

    def test_missing_pixels_do_not_matter(self, tmp_path):
        for suffix in ("png", "jpg"):
            path = save(tmp_path / f"page.{suffix}", (300, 200), orientation=6)
            path.write_bytes(path.read_bytes()[:-40])
            assert page_of_image(path) == (200, 300)

    def test_a_header_claiming_a_huge_page_is_read_without_warning(self, tmp_path):
        path = save(tmp_path / "page.png")
        content = bytearray(path.read_bytes())
        content[16:24] = (60_000).to_bytes(4, "big") * 2  # IHDR's width and height
        content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
        path.write_bytes(content)
        guard = Image.MAX_IMAGE_PIXELS
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert page_of_image(path) == (60_000, 60_000)
        assert guard == Image.MAX_IMAGE_PIXELS

    def test_what_is_no_image_is_refused_by_name(self, tmp_path):
        for name, content, says in NO_IMAGES:
            path = tmp_path / name
            if content is not None:
                path.write_bytes(content)
            message = str(refusal(PageError, page_of_image, path))
            assert says in message
            assert repr(str(path)) in message or "pixels" in says

    def test_a_damaged_header_gives_a_size_or_a_refusal(self, tmp_path):
        sizes = []
        for suffix in ("png", "jpg", "tiff", "webp", "gif", "bmp"):
            path = save(tmp_path / f"page.{suffix}", orientation=6)
            content = path.read_bytes()
            for cut in range(0, min(len(content), 400), 14):
                flipped = content[:cut] + bytes([content[cut] ^ 0xFF]) + content[cut + 1 :]
                for damaged in (content[:cut], flipped):
                    path.write_bytes(damaged)
                    with contextlib.suppress(PageError):
                        sizes += page_of_image(path)
        assert min(sizes) >= 1


PLANNED = [
    # The arguments, and what is planned: as recorded, and by hand.
    *(
        (
            {key: row[key] for key in ("base_size", "image_size", "crop_mode")}
            | {"page": tuple(row["page"])},
            {key: row[key] for key in ("text_tokens", "visual_tokens", "seq_len")}
            | {"page": tuple(row["page"]), "grid": tuple(row["grid"])},
        )
        for row in GOLDEN_WORKLOADS
    ),
    (  # the 703 tokens of the real checkpoint
        {"page": (1024, 1024)},
        {
            "grid": (2, 2), "visual_tokens": (16 * 17 + 1) + (20 + 1) * 20, "seq_len": 703,
        },
    ),
    (
        {"page": (1191, 1684)},
        {
            "views": (ViewBatch(6, 640), ViewBatch(1, 1024)),
            "local_views": ViewBatch(6, 640), "global_view": ViewBatch(1, 1024),
        },
    ),
    (  # a small page in crop mode
        {"page": (600, 500)},
        {
            "views": (ViewBatch(1, 1024),), "local_views": None,
            "global_view": ViewBatch(1, 1024),
        },
    ),
    (
        {"page": (5000, 300), "crop_mode": False},
        {"grid": (1, 1), "views": (ViewBatch(1, 640),), "local_views": None},
    ),
    ({"page": (1024, 1024), "seq_len": 1000}, {"text_tokens": 307, "seq_len": 1000}),
    ({"page": (1024, 1024), "text_tokens": 1}, {"seq_len": 694}),
    ({"page": (1024, 1024), "text_tokens": 10, "seq_len": 703}, {"seq_len": 703}),
    (  # the limits themselves
        {
            "page": (1_000_000, 1), "base_size": 64, "image_size": 16_384,
            "text_tokens": 1, "batch_size": 1_048_576, "max_new_tokens": 1_048_576,
        },
        {"visual_tokens": 3 + (256 * 9 + 1) * 256},
    ),
]  # fmt: skip


def test_workloads_by_hand_and_as_recorded():
    for arguments, planned in PLANNED:
        workload = plan_workload(**arguments)
        assert {name: getattr(workload, name) for name in planned} == planned


@settings(max_examples=30, deadline=None)
@given(sides, sides, view_sizes, view_sizes, st.booleans(), st.integers(1, 5000))
def test_views_tokens_and_lengths_follow_from_each_other(width, height, base, image, crop, text):
    page = {
        "page": (width, height), "base_size": base, "image_size": image, "crop_mode": crop,
    }  # fmt: skip
    workload = plan_workload(**page, text_tokens=text)
    cells = sum(view.count * views.tokens_per_side(view.resolution) ** 2 for view in workload.views)
    columns, rows = workload.grid
    newlines = views.tokens_per_side(workload.global_view.resolution)
    if workload.local_views is not None:
        assert workload.local_views.count == columns * rows
        newlines += rows * views.tokens_per_side(image)
    assert workload.visual_tokens == cells + newlines + 1
    assert workload.seq_len == workload.visual_tokens + text
    assert plan_workload(**page, seq_len=workload.seq_len) == workload


IMPOSSIBLE = [
    ({"base_size": 0}, "base_size 0 is too small; give 64 to 16384 pixels per side"),
    ({"base_size": -1024}, "base_size -1024 is too small; give 64"),
    ({"base_size": 63}, "base_size 63 is too small; give 64"),
    ({"base_size": 16_385}, "base_size 16385 is too large; give 64 to 16384"),
    ({"base_size": 1024.0}, "base_size 1024.0 is not a whole number; give 64"),
    ({"base_size": True}, "base_size True is not a whole number"),
    ({"base_size": "1024"}, "base_size '1024' is not a whole number"),
    ({"image_size": 0}, "image_size 0 is too small; give 64 to 16384"),
    ({"image_size": 63, "crop_mode": False}, "image_size 63 is too small"),
    ({"image_size": 99_999}, "image_size 99999 is too large"),
    ({"image_size": 640.5}, "image_size 640.5 is not a whole number"),
    ({"crop_mode": 1}, "crop_mode 1 is not a boolean; give True or False"),
    ({"batch_size": 0}, "batch_size 0 is too small; give 1 to 1048576 pages"),
    ({"batch_size": 1_048_577}, "batch_size 1048577 is too large"),
    ({"batch_size": 2.0}, "batch_size 2.0 is not a whole number"),
    ({"max_new_tokens": 0}, "max_new_tokens 0 is too small; give 1 to 1048576 tokens"),
    ({"max_new_tokens": 10**9}, "max_new_tokens 1000000000 is too large"),
    ({"max_new_tokens": False}, "max_new_tokens False is not a whole number"),
    ({"text_tokens": 0}, "text_tokens 0 is too small; give 1 to 1048576 tokens, including"),
    ({"text_tokens": -3}, "text_tokens -3 is too small"),
    ({"text_tokens": 10**9}, "text_tokens 1000000000 is too large"),
    ({"text_tokens": 1.0}, "text_tokens 1.0 is not a whole number"),
    ({"seq_len": 100}, "seq_len 100 is below the 903 visual"),
    ({"seq_len": 903}, "give at least 904"),
    ({"seq_len": -1}, "seq_len -1 is below"),
    ({"seq_len": 10**9}, "seq_len 1000000000 is too large; give 904 to 1049479"),
    ({"seq_len": 913.0}, "seq_len 913.0 is not a whole number; give at least 904"),
    ({"seq_len": True}, "seq_len True is not a whole number"),
    ({"seq_len": 913, "text_tokens": 11}, "seq_len 913 and text_tokens 11 conflict: "),
    ({"seq_len": 913, "text_tokens": 11}, "seq_len=914, text_tokens=10"),
    ({"page": (0, 5)}, "0 x 5 pixels is invalid; give whole numbers from 1"),
    ({"page": (5, 1_000_001)}, "5 x 1000001 pixels is invalid"),
    ({"page": (5.0, 5)}, "5.0 x 5 pixels is invalid"),
    ({"page": (True, 5)}, "True x 5 pixels is invalid"),
    ({"page": (5,)}, "page (5,) is not a pair; give (width, height)"),
]


def test_an_impossible_workload_is_refused_with_the_possible_ones():
    for arguments, said in IMPOSSIBLE:
        error = refusal(WorkloadError, plan_workload, **{"page": (1191, 1684), **arguments})
        assert said in str(error)
        assert "--" not in str(error)
        if not arguments.keys() & {"page", "crop_mode"}:  # those whose name says it
            assert error.arguments == tuple(arguments)


ODD = [
    # What tells it, of which workload, and words of its lines.
    (position_warnings, {}, []),
    (position_warnings, {"seq_len": 8193}, [["8193", "8192"]]),
    # The last new token is never fed back: 913 + 7280 - 1 = 8192 positions.
    (position_warnings, {"max_new_tokens": 7280}, []),
    (
        position_warnings, {"max_new_tokens": 7281},
        [["8193 positions", "at most 7280 new tokens fit"]],
    ),
    (notes_of, {"base_size": 1280, "image_size": 1024}, [["640-pixel tiles", "1024"]]),
    (notes_of, {"page": (600, 500), "image_size": 1024}, []),
    (notes_of, {"page": (9000, 500), "image_size": 512, "crop_mode": False}, []),
]  # fmt: skip


def test_what_is_odd_about_a_workload_is_told():
    for told, workload, lines in ODD:
        limits = [8192] if told is position_warnings else []
        found = told(plan_workload(**{"page": (1191, 1684)} | workload), *limits)
        for line, words in zip(found, lines, strict=True):
            assert [word for word in words if word not in line] == []


PARTS = {
    "<image>\nFree OCR. ": ["", "\nFree OCR."],
    " before <image> after\n": ["before ", " after"],
    "text alone": ["text alone"],
    "<image>": ["", ""],
}


def test_a_prompts_texts_are_stripped_around_the_whole_prompt_only():
    assert {prompt: text_parts(prompt) for prompt in PARTS} == PARTS
