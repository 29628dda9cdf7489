"""What a page, a mode and a prompt become, before any model is there."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
import zlib
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dsocr_analyze.architectures import DEFAULT, plan_workload
from dsocr_analyze.architectures.deepseek_ocr import MODES
from dsocr_analyze.architectures.views import tokens_per_side
from dsocr_analyze.errors import PageError, WorkloadError
from dsocr_analyze.workload import Mode, ViewBatch, position_warnings, text_parts
from dsocr_analyze.workload.image_file import page_of_image
from dsocr_analyze.workload.page import parse_page

DATA = Path(__file__).parent / "data"
crop_grid, GRIDS, notes_of = DEFAULT.crop.grid, DEFAULT.crop.grids, DEFAULT.notes_of
GOLDEN_GRIDS = json.loads((DATA / "golden_grids.json").read_text())
GOLDEN_WORKLOADS = json.loads((DATA / "golden_workloads.json").read_text())

ORIENTATION = 0x0112

sides = st.integers(1, 1_000_000)
view_sizes = st.integers(64, 16_384)


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


class TestGrid:
    def test_agrees_with_every_recorded_page(self):
        assert len(GOLDEN_GRIDS) == 150
        wrong = [row for row in GOLDEN_GRIDS if crop_grid(row[0], row[1]) != (row[2], row[3])]
        assert wrong == []

    def test_candidates_are_all_grids_of_two_to_nine_tiles_by_area(self):
        every = {(w, h) for w in range(1, 10) for h in range(1, 10) if 2 <= w * h <= 9}
        assert set(GRIDS) == every
        assert len(GRIDS) == len(every) == 22
        areas = [w * h for w, h in GRIDS]
        assert areas == sorted(areas)

    def test_between_two_grids_of_equal_area_lies_the_aspect_of_a_third(self):
        aspects = [Fraction(w, h) for w, h in GRIDS]
        for (w, h), (x, y) in combinations(GRIDS, 2):
            if w * h == x * y:
                low, high = sorted((Fraction(w, h), Fraction(x, y)))
                assert any(low < aspect < high for aspect in aspects), ((w, h), (x, y))

    @pytest.mark.parametrize(
        ("page", "grid"),
        [
            ((1, 1), (1, 1)),
            ((640, 640), (1, 1)),
            ((640, 641), (2, 2)),
            ((641, 640), (2, 2)),
            ((641, 1), (9, 1)),
            ((1, 1_000_000), (1, 9)),
            ((1240, 1754), (2, 3)),
            ((1754, 1240), (3, 2)),
        ],
    )
    def test_only_a_page_beyond_one_tile_is_cut(self, page, grid):
        assert crop_grid(*page) == grid

    def test_on_equal_distance_the_later_grid_wins_beyond_half_of_its_tiles(self):
        # 2 x 2 and 3 x 3 are equally near to a square; half of nine tiles is 1,843,200 pixels.
        assert crop_grid(1357, 1357) == (2, 2)  # 1,841,449 pixels
        assert crop_grid(1358, 1358) == (3, 3)  # 1,844,164 pixels
        # So are 2 x 1 and 4 x 2 to a page twice as wide as high; half of eight is 1,638,400.
        assert crop_grid(1810, 905) == (2, 1)  # 1,638,050 pixels
        assert crop_grid(1812, 906) == (4, 2)  # 1,641,672 pixels

    def test_a_page_of_exactly_half_of_the_tiles_keeps_the_earlier_grid(self):
        assert 2 * 1280 * 1440 == 640 * 640 * 3 * 3
        assert crop_grid(1280, 1440) == (2, 2)
        assert crop_grid(1281, 1440) == (3, 3)

    @given(sides, sides)
    def test_any_page_gets_a_grid_of_nine_tiles_at_most(self, width, height):
        grid = crop_grid(width, height)
        assert (grid == (1, 1)) == (width <= 640 and height <= 640)
        assert grid in (*GRIDS, (1, 1))

    @given(sides, sides)
    def test_no_other_grid_is_nearer(self, width, height):
        columns, rows = crop_grid(width, height)
        if (columns, rows) != (1, 1):
            distance = abs(width / height - columns / rows)
            assert all(abs(width / height - w / h) >= distance for w, h in GRIDS)


class TestTokens:
    @pytest.mark.parametrize(
        ("size", "tokens"), [(64, 1), (512, 8), (640, 10), (1024, 16), (1280, 20)]
    )
    def test_a_token_covers_64_pixels(self, size, tokens):
        assert tokens_per_side(size) == tokens == size // 64

    @pytest.mark.parametrize(
        ("size", "tokens"),
        [(16, 1), (79, 1), (80, 2), (128, 2), (143, 2), (144, 3), (650, 10), (656, 11)],
    )
    def test_sizes_between_multiples_of_64_count_whole_patches_in_fours_rounded_up(
        self, size, tokens
    ):
        assert tokens_per_side(size) == tokens

    @given(st.integers(16, 16_384))
    def test_is_what_the_encoders_convolutions_yield(self, size):
        patches = (size - 16) // 16 + 1  # kernel 16, stride 16
        once = (patches + 2 - 3) // 2 + 1  # kernel 3, stride 2, padding 1
        twice = (once + 2 - 3) // 2 + 1
        assert tokens_per_side(size) == twice

    def test_a_newline_ends_each_row_and_a_separator_the_image(self):
        assert DEFAULT.visual_tokens(1024, 640, True, (1, 1)) == 16 * (16 + 1) + 1 == 273

    def test_crop_mode_adds_the_global_view_of_base_size(self):
        of_views = (10 * 2 + 1) * (10 * 3)
        assert DEFAULT.visual_tokens(1024, 640, True, (2, 3)) == 273 + of_views
        assert DEFAULT.visual_tokens(1024, 640, True, (1, 1)) == 273

    def test_without_crop_mode_the_only_view_has_the_image_size(self):
        assert DEFAULT.visual_tokens(1024, 640, False, (1, 1)) == 10 * 11 + 1


class TestModes:
    def test_the_modes_of_the_paper(self):
        assert list(MODES.values()) == [
            Mode("tiny", 512, 512, False),
            Mode("small", 640, 640, False),
            Mode("base", 1024, 1024, False),
            Mode("large", 1280, 1280, False),
            Mode("gundam", 1024, 640, True),
            Mode("gundam-m", 1280, 1024, True),
        ]

    @pytest.mark.parametrize(
        ("name", "tokens"), [("tiny", 64), ("small", 100), ("base", 256), ("large", 400)]
    )
    def test_one_view_modes_have_the_papers_tokens_besides_newlines_and_separator(
        self, name, tokens
    ):
        mode = MODES[name]
        workload = plan_workload(
            page=(1240, 1754), base_size=mode.base_size, image_size=mode.image_size, crop_mode=False
        )
        side = tokens_per_side(mode.image_size)
        assert workload.visual_tokens - side - 1 == tokens


class TestPage:
    @pytest.mark.parametrize(
        ("text", "page"),
        [
            ("a4", (1240, 1754)),
            ("A4", (1240, 1754)),
            (" a4 ", (1240, 1754)),
            ("a4@150", (1240, 1754)),
            ("a4@300", (2480, 3508)),
            ("a4@72", (595, 842)),
            ("letter", (1275, 1650)),
            ("letter@300", (2550, 3300)),
            ("legal", (1275, 2100)),
            ("a3", (1754, 2480)),
            ("a5", (874, 1240)),
            ("1191x1684", (1191, 1684)),
            ("1191X1684", (1191, 1684)),
            ("1191 x 1684", (1191, 1684)),
            ("1x1000000", (1, 1_000_000)),
        ],
    )
    def test_a_name_or_a_size_is_read(self, text, page):
        assert parse_page(text) == page

    @pytest.mark.parametrize(
        "text",
        [
            *("", "a9", "a4@", "a4@0", "a4@-1", "a4@1.5", "a4@999999", "nan", "a" * 5000),
            *("x", "100x", "x100", "1e3x100", "100x100x100", "1240,1754", "100.5x100"),
            *("0x100", "100x0", "-5x100", "100x-5", "1000001x5", "9" * 5000 + "x1"),
            *("\N{ARABIC-INDIC DIGIT ONE}x1", "a4\na4", "1x\n1"),
        ],
        ids=lambda text: text[:20],
    )
    def test_anything_else_is_refused_on_one_short_line(self, text):
        with pytest.raises(PageError) as error:
            parse_page(text)
        message = one_line(error)
        assert "give" in message
        assert len(message) < 300

    def test_a_refusal_names_what_would_be_right(self):
        with pytest.raises(PageError, match=r"'b5'.*a3, a4, a5, letter, legal.*a4@300.*1240x1754"):
            parse_page("b5")
        with pytest.raises(PageError, match=r"0 x 100 pixels.*from 1 to 1000000"):
            parse_page("0x100")

    @given(sides, sides)
    def test_every_possible_size_is_read_back(self, width, height):
        assert parse_page(f"{width}x{height}") == (width, height)


def save(path: Path, size: tuple[int, int] = (30, 20), orientation: int | None = None) -> Path:
    exif = Image.Exif()
    if orientation is not None:
        exif[ORIENTATION] = orientation
    Image.new("RGB", size, "white").save(path, exif=exif)
    return path


class TestPageOfImage:
    @pytest.mark.parametrize("suffix", ["png", "jpg", "tiff", "webp"])
    def test_without_orientation_the_size_is_the_stored_one(self, tmp_path, suffix):
        assert page_of_image(save(tmp_path / f"page.{suffix}")) == (30, 20)

    @pytest.mark.parametrize("suffix", ["png", "jpg", "tiff", "webp"])
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_a_page_on_its_side_is_turned(self, tmp_path, suffix, orientation):
        path = save(tmp_path / f"page.{suffix}", orientation=orientation)
        assert page_of_image(path) == ((20, 30) if orientation >= 5 else (30, 20))

    def test_a_string_is_a_path_too(self, tmp_path):
        assert page_of_image(str(save(tmp_path / "page.png"))) == (30, 20)

    @pytest.mark.parametrize("suffix", ["png", "jpg"])
    def test_missing_pixels_do_not_matter(self, tmp_path, suffix):
        path = save(tmp_path / f"page.{suffix}", (300, 200), orientation=6)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) - 40])
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

    def test_a_broken_orientation_leaves_the_stored_size(self, tmp_path):
        path = tmp_path / "page.jpg"
        Image.new("RGB", (30, 20)).save(path, exif=b"Exif\0\0garbage that is no TIFF header")
        assert page_of_image(path) == (30, 20)

    def test_more_pixels_a_side_than_a_page_may_have_are_refused(self, tmp_path):
        path = tmp_path / "page.ppm"
        path.write_bytes(b"P6 2000000 3 255\n")
        with pytest.raises(PageError, match="2000000 x 3 pixels"):
            page_of_image(path)

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("text.png", b"this is no image\n"),
            ("empty.png", b""),
            ("header.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIH"),
            ("header.jpg", b"\xff\xd8\xff\xe0\0\x10JF"),
            ("page.svg", b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>"),
            ("two\nlines.png", b"this is no image\n"),
        ],
    )
    def test_what_is_no_image_is_refused_by_name(self, tmp_path, name, content):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(PageError) as error:
            page_of_image(path)
        assert repr(str(path)) in one_line(error)

    def test_a_missing_file_is_refused_by_name(self, tmp_path):
        with pytest.raises(PageError, match=r"no image '.*absent\.png'"):
            page_of_image(tmp_path / "absent.png")

    @pytest.mark.parametrize("name", ["x" * 300 + ".png", "null\0byte.png"])
    def test_a_name_no_file_can_have_is_refused(self, tmp_path, name):
        with pytest.raises(PageError) as error:
            page_of_image(tmp_path / name)
        one_line(error)

    def test_a_directory_is_refused_by_name(self, tmp_path):
        with pytest.raises(PageError, match="it is a folder, not a file") as error:
            page_of_image(tmp_path)
        assert str(tmp_path) in one_line(error)

    @pytest.mark.parametrize("suffix", ["png", "jpg", "tiff", "webp", "gif", "bmp"])
    def test_a_damaged_header_gives_a_size_or_a_refusal(self, tmp_path, suffix):
        path = save(tmp_path / f"page.{suffix}", orientation=6)
        content = path.read_bytes()
        for cut in range(0, min(len(content), 400), 7):
            for damaged in (
                content[:cut],
                content[:cut] + bytes([content[cut] ^ 0xFF]) + content[cut + 1 :],
            ):
                path.write_bytes(damaged)
                width, height, refused = 1, 1, ""
                try:
                    width, height = page_of_image(path)
                except PageError as error:
                    refused = str(error)
                assert min(width, height) >= 1
                assert "\n" not in refused


class TestPlan:
    @pytest.mark.parametrize("golden", GOLDEN_WORKLOADS, ids=lambda row: str(row["seq_len"]))
    def test_agrees_with_every_recorded_workload(self, golden):
        workload = plan_workload(
            page=tuple(golden["page"]),
            base_size=golden["base_size"],
            image_size=golden["image_size"],
            crop_mode=golden["crop_mode"],
        )
        assert list(workload.page) == golden["page"]
        assert list(workload.grid) == golden["grid"]
        for key in ("text_tokens", "visual_tokens", "seq_len"):
            assert getattr(workload, key) == golden[key]

    def test_a_square_page_of_1024_is_the_703_tokens_of_the_real_checkpoint(self):
        workload = plan_workload(page=(1024, 1024))
        assert workload.grid == (2, 2)
        assert workload.visual_tokens == (16 * 17 + 1) + (20 + 1) * 20 == 693
        assert workload.seq_len == 703

    def test_local_views_come_before_the_global_view(self):
        workload = plan_workload(page=(1191, 1684))
        assert workload.views == (ViewBatch(6, 640), ViewBatch(1, 1024))
        assert workload.local_views == ViewBatch(6, 640)
        assert workload.global_view == ViewBatch(1, 1024)

    def test_a_small_page_in_crop_mode_has_the_global_view_only(self):
        workload = plan_workload(page=(600, 500))
        assert workload.views == (ViewBatch(1, 1024),)
        assert workload.local_views is None
        assert workload.global_view == ViewBatch(1, 1024)

    def test_without_crop_mode_base_size_has_no_effect(self):
        workload = plan_workload(page=(5000, 300), crop_mode=False)
        assert workload.grid == (1, 1)
        assert workload.views == (ViewBatch(1, 640),)
        assert workload.local_views is None

    def test_seq_len_decides_the_text_tokens(self):
        workload = plan_workload(page=(1024, 1024), seq_len=1000)
        assert workload.text_tokens == 1000 - 693
        assert workload.seq_len == 1000

    def test_text_tokens_decide_seq_len(self):
        assert plan_workload(page=(1024, 1024), text_tokens=1).seq_len == 694

    def test_both_lengths_may_be_given_if_they_agree(self):
        assert plan_workload(page=(1024, 1024), text_tokens=10, seq_len=703).seq_len == 703

    @given(sides, sides, view_sizes, view_sizes, st.booleans())
    def test_views_and_tokens_follow_from_each_other(self, width, height, base, image, crop):
        workload = plan_workload(
            page=(width, height), base_size=base, image_size=image, crop_mode=crop
        )
        cells = sum(view.count * tokens_per_side(view.resolution) ** 2 for view in workload.views)
        columns, rows = workload.grid
        newlines = tokens_per_side(workload.global_view.resolution)
        if workload.local_views is not None:
            assert workload.local_views.count == columns * rows
            newlines += rows * tokens_per_side(image)
        assert workload.visual_tokens == cells + newlines + 1
        assert workload.seq_len == workload.visual_tokens + 10

    @given(view_sizes, st.integers(1, 5000))
    def test_either_length_gives_the_same_workload(self, size, text):
        by_text = plan_workload(page=(9, 9), image_size=size, crop_mode=False, text_tokens=text)
        by_length = plan_workload(
            page=(9, 9), image_size=size, crop_mode=False, seq_len=by_text.seq_len
        )
        assert by_text == by_length

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"base_size": 0}, r"base_size 0 is too small; give 64 to 16384 pixels per side"),
            ({"base_size": -1024}, r"base_size -1024 is too small; give 64"),
            ({"base_size": 63}, r"base_size 63 is too small; give 64"),
            ({"base_size": 16_385}, r"base_size 16385 is too large; give 64 to 16384"),
            ({"base_size": 1024.0}, r"base_size 1024\.0 is not a whole number; give 64"),
            ({"base_size": True}, r"base_size True is not a whole number"),
            ({"base_size": "1024"}, r"base_size '1024' is not a whole number"),
            ({"image_size": 0}, r"image_size 0 is too small; give 64 to 16384"),
            ({"image_size": 63, "crop_mode": False}, r"image_size 63 is too small"),
            ({"image_size": 99_999}, r"image_size 99999 is too large"),
            ({"image_size": 640.5}, r"image_size 640\.5 is not a whole number"),
            ({"crop_mode": 1}, r"crop_mode 1 is not a boolean; give True or False"),
            ({"batch_size": 0}, r"batch_size 0 is too small; give 1 to 1048576 pages"),
            ({"batch_size": 1_048_577}, r"batch_size 1048577 is too large"),
            ({"batch_size": 2.0}, r"batch_size 2\.0 is not a whole number"),
            ({"max_new_tokens": 0}, r"max_new_tokens 0 is too small; give 1 to 1048576 tokens"),
            ({"max_new_tokens": 10**9}, r"max_new_tokens 1000000000 is too large"),
            ({"max_new_tokens": False}, r"max_new_tokens False is not a whole number"),
            ({"text_tokens": 0}, r"text_tokens 0 is too small; give 1 .* including BOS"),
            ({"text_tokens": -3}, r"text_tokens -3 is too small"),
            ({"text_tokens": 10**9}, r"text_tokens 1000000000 is too large"),
            ({"text_tokens": 1.0}, r"text_tokens 1\.0 is not a whole number"),
            ({"seq_len": 100}, r"seq_len 100 is below the 903 visual .* give at least 904"),
            ({"seq_len": 903}, r"seq_len 903 is below .* give at least 904"),
            ({"seq_len": -1}, r"seq_len -1 is below .* give at least 904"),
            ({"seq_len": 10**9}, r"seq_len 1000000000 is too large; give 904 to 1049479"),
            ({"seq_len": 913.0}, r"seq_len 913\.0 is not a whole number; give at least 904"),
            ({"seq_len": True}, r"seq_len True is not a whole number"),
            (
                {"seq_len": 913, "text_tokens": 11},
                r"seq_len 913 and text_tokens 11 conflict: .* seq_len=914, text_tokens=10",
            ),
            ({"page": (0, 5)}, r"0 x 5 pixels is invalid; give whole numbers from 1"),
            ({"page": (5, 1_000_001)}, r"5 x 1000001 pixels is invalid"),
            ({"page": (5.0, 5)}, r"5\.0 x 5 pixels is invalid"),
            ({"page": (True, 5)}, r"True x 5 pixels is invalid"),
            ({"page": (5,)}, r"page \(5,\) is not a pair; give \(width, height\)"),
        ],
        ids=str,
    )
    def test_an_impossible_workload_is_refused_with_the_possible_ones(self, arguments, said):
        with pytest.raises(WorkloadError, match=said) as error:
            plan_workload(**{"page": (1191, 1684), **arguments})
        assert "--" not in one_line(error)

    @pytest.mark.parametrize("name", ["base_size", "image_size", "batch_size", "max_new_tokens"])
    def test_an_error_lists_the_argument_that_it_names(self, name):
        with pytest.raises(WorkloadError) as error:
            plan_workload(page=(1191, 1684), **{name: 0})
        assert error.value.arguments == (name,)

    def test_an_error_about_two_lengths_lists_both(self):
        with pytest.raises(WorkloadError) as error:
            plan_workload(page=(1191, 1684), seq_len=913, text_tokens=11)
        assert error.value.arguments == ("seq_len", "text_tokens")

    def test_the_limits_themselves_are_possible(self):
        workload = plan_workload(
            page=(1_000_000, 1),
            base_size=64,
            image_size=16_384,
            text_tokens=1,
            batch_size=1_048_576,
            max_new_tokens=1_048_576,
        )
        assert workload.visual_tokens == 3 + (256 * 9 + 1) * 256


class TestWarnings:
    def test_a_page_as_the_vendor_runs_it_has_none(self):
        assert position_warnings(plan_workload(page=(1191, 1684)), 8192) == []

    def test_a_prompt_beyond_the_positions_is_warned_of(self):
        workload = plan_workload(page=(1191, 1684), seq_len=8193)
        [line] = position_warnings(workload, 8192)
        assert "8193" in line
        assert "8192" in line

    def test_new_tokens_beyond_the_positions_are_warned_of_from_the_first_that_does_not_fit(self):
        # The last new token is never fed back: 913 + 7280 - 1 = 8192 positions.
        fits = plan_workload(page=(1191, 1684), max_new_tokens=7280)
        assert position_warnings(fits, 8192) == []
        [line] = position_warnings(plan_workload(page=(1191, 1684), max_new_tokens=7281), 8192)
        assert "8193 positions" in line
        assert "at most 7280 new tokens fit" in line


class TestNotes:
    def test_tiles_of_another_size_than_the_vendors_are_noted(self):
        [line] = notes_of(plan_workload(page=(1191, 1684), base_size=1280, image_size=1024))
        assert "640-pixel tiles" in line
        assert "1024" in line

    def test_tiles_that_do_not_exist_are_not_noted(self):
        assert notes_of(plan_workload(page=(600, 500), image_size=1024)) == []
        assert notes_of(plan_workload(page=(9000, 500), image_size=512, crop_mode=False)) == []


def test_the_room_needs_neither_torch_nor_numpy_nor_pillow_to_be_imported():
    code = (
        "import sys, dsocr_analyze.workload; "
        "print([m for m in ('torch', 'numpy', 'PIL', 'transformers') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("<image>\nFree OCR. ", ["", "\nFree OCR."]),
        (" before <image> after\n", ["before ", " after"]),
        ("text alone", ["text alone"]),
        ("<image>", ["", ""]),
    ],
)
def test_a_prompts_texts_are_stripped_around_the_whole_prompt_only(prompt, parts):
    assert text_parts(prompt) == parts
