"""Pages become the sides, patches and visual tokens of the neighbours' own image processors."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import transformers
from any_models import IS_5

from dsocr_analyze.architectures.neighbours.neighbour import Neighbour
from dsocr_analyze.architectures.neighbours.resizing import FixedView, LongestEdge, SmartResize
from dsocr_analyze.errors import PageError

QWEN3_VL = SmartResize(factor=32, least=256 * 256, largest=4096 * 4096)
OLMOCR = SmartResize(factor=28, least=56 * 56, largest=12_845_056)
GLM_OCR = SmartResize(factor=28, least=112 * 112, largest=9_633_792, frames=2, enlarges="down")
PADDLEOCR_VL = SmartResize(factor=28, least=112_896, largest=1_003_520, enlarges="nearest")
LIGHTONOCR = LongestEdge(factor=28, longest=1540)
GOT_OCR2 = FixedView(factor=64, longest=1024)

PAGES = np.concatenate(
    [
        [(1, 1), (1, 28), (1, 200), (1, 201), (200, 1), (201, 1), (27, 5400), (27, 5401), (30, 60),
         (100, 3000), (3000, 60), (1, 1540), (1, 1541), (10_000, 14_000), (10**6, 10**6)],
        np.exp(np.random.default_rng(0).uniform(0, np.log(20_000), (10_000, 2))).astype(np.int64),
    ]
)  # fmt: skip
"""Widths and heights, the random ones of every order of magnitude."""


SMART_RESIZES = (
    QWEN3_VL, OLMOCR, GLM_OCR, PADDLEOCR_VL,
    SmartResize(factor=16, least=1, largest=1),
    SmartResize(factor=64, least=5_000_001, largest=5_000_002),
    SmartResize(factor=48, least=200_000, largest=300_000, frames=3, enlarges="down"),
    SmartResize(factor=64, least=99, largest=9_999, frames=2, enlarges="down"),
    SmartResize(factor=32, least=1_000_000, largest=1_000_000, enlarges="nearest"),
    SmartResize(factor=16, least=12_345, largest=67_890, enlarges="nearest"),
)  # fmt: skip
LONGEST_EDGES = (
    LIGHTONOCR,
    LongestEdge(factor=32, longest=1000),
    LongestEdge(factor=16, longest=77),
)


@pytest.mark.parametrize(
    ("rule", "page", "grid"),
    [
        (QWEN3_VL, (1240, 1754), (39, 55)),  # 38.75 and 54.81 to the nearest
        (QWEN3_VL, (30, 60), (6, 12)),  # 1 x 2 are too few: times 6.034, up
        (QWEN3_VL, (80, 16_000), (2, 500)),  # 2.5 to even
        (OLMOCR, (996, 1288), (36, 46)),  # 35.57 to the nearest
        (OLMOCR, (30, 60), (2, 3)),  # 1 x 2 are too few: times 1.320, up
        (GLM_OCR, (10_000, 14_000), (66, 92)),  # over 5.391, down; half as many as without frames
        (GLM_OCR, (1, 200), (1, 200)),
        (PADDLEOCR_VL, (30, 60), (9, 17)),  # 1 x 2 are too few: times 7.920, up
        (PADDLEOCR_VL, (10_000, 14_000), (30, 42)),  # over 11.81, down
        (LIGHTONOCR, (1240, 1754), (39, 55)),  # 1088 x 1540
        (LIGHTONOCR, (30, 60), (2, 3)),
        (GOT_OCR2, (30, 60), (16, 16)),
    ],
)  # fmt: skip
def test_grids_worked_out_by_hand(rule, page, grid):
    assert rule.grid(*page) == grid
    assert rule.sides_of_pages(*page).tolist() == [each * rule.factor for each in grid]


def test_pixels_of_a_resize_are_those_of_the_image_sent_both_passes_and_the_view():
    work = GOT_OCR2.pixel_work(Neighbour.modes["native"], 100, 200, 16, 16)
    assert work == (20_000, 1024 * 200 + 1024 * 1024, 1024 * 1024)


@pytest.mark.parametrize("rule", [*SMART_RESIZES, *LONGEST_EDGES, GOT_OCR2], ids=repr)
def test_many_pages_are_each_page_and_codes_are_their_grids(rule):
    codes = rule.codes(*PAGES.T)
    grids = np.array(rule.columns_and_rows(codes)).T
    assert (grids * rule.factor == rule.sides_of_pages(*PAGES.T).T).all()
    assert codes.max() < rule.count
    for page, grid in zip(PAGES[codes > 0][:200].tolist(), grids[codes > 0].tolist(), strict=False):
        assert rule.grid(*page) == tuple(grid)


@pytest.mark.parametrize(
    ("rule", "page", "aspect"),
    [(QWEN3_VL, (1, 201), 200), (GLM_OCR, (27, 5401), 200), (PADDLEOCR_VL, (201, 1), 200),
     (LIGHTONOCR, (1541, 1), 1540)],
)  # fmt: skip
def test_a_page_without_tokens_is_refused_with_the_largest_aspect(rule, page, aspect):
    assert rule.codes(*np.array([page]).T) == 0
    with pytest.raises(PageError, match=f"of {page[0]} x {page[1]} pixels has .* most {aspect} "):
        rule.grid(*page)


def test_a_rule_has_the_sizes_of_its_config():
    model = Neighbour("glm-ocr")
    config = copy.deepcopy(dict(model.config))
    config["vision_config"] |= {"patch_size": 16, "spatial_merge_size": 3, "temporal_patch_size": 1}
    assert model.page_rule == GLM_OCR
    assert model.of_config(config).page_rule == replace(GLM_OCR, factor=48, frames=1)


# --- transformers' own processors ----------------------------------------------------------------


def processor_of(rule):
    """The processor that needs no torchvision, with the rule's limits."""
    if not IS_5:
        pytest.skip("transformers 4 lacks the processor")
    if isinstance(rule, LongestEdge):
        patch = {"height": rule.factor, "width": rule.factor}
        return transformers.PixtralImageProcessorPil(
            size={"longest_edge": rule.longest}, patch_size=patch
        )
    name = {"never": "Qwen2VL", "down": "Glm46V", "nearest": "PaddleOCRVL"}[rule.enlarges]
    return getattr(transformers, f"{name}ImageProcessorPil")(
        size={"shortest_edge": rule.least, "longest_edge": rule.largest},
        patch_size=rule.factor // 2,
        temporal_patch_size=rule.frames,
    )


@pytest.mark.parametrize("rule", SMART_RESIZES, ids=repr)
def test_patches_are_as_many_as_the_processor_says(rule):
    processor = processor_of(rule)
    for page, tokens in zip(PAGES.tolist(), rule.sides_of_pages(*PAGES.T).prod(0), strict=True):
        if tokens:
            patches = processor.get_number_of_image_patches(*page[::-1])
            assert patches * (rule.factor // 2) ** 2 == tokens
        else:
            with pytest.raises(ValueError, match="aspect ratio must be smaller than 200"):
                processor.get_number_of_image_patches(*page[::-1])


@pytest.mark.parametrize("rule", [*SMART_RESIZES[:4], *LONGEST_EDGES], ids=repr)
def test_images_are_what_the_processor_makes(rule):
    processor = processor_of(rule)
    accepted = PAGES[(PAGES.prod(1) < 300_000) & (rule.codes(*PAGES.T) > 0)]
    for page in accepted[:40].tolist():
        image = np.zeros((*page[::-1], 3), np.uint8)
        found = processor(image, input_data_format="channels_last", return_tensors="np")
        columns, rows = rule.grid(*page)
        if isinstance(rule, SmartResize):
            assert found["image_grid_thw"].tolist() == [[1, 2 * rows, 2 * columns]]
            assert len(found["pixel_values"]) == 4 * columns * rows
        else:
            assert found["image_sizes"].tolist() == [[rows * rule.factor, columns * rule.factor]]
