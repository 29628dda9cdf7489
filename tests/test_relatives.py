"""The relatives: both engines against records, and against each other."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn_passes import directory, drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import first, sampled

from dsocr_analyze.analytic import page_figures
from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT, plan_workload
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.passes import step
from dsocr_analyze.dtypes import BFLOAT16, FLOAT32, dtype_named
from dsocr_analyze.errors import ConfigError, WorkloadError
from dsocr_analyze.hardware import device
from dsocr_analyze.kernels import NO_WORK, Work, total_work
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.timing.runtimes import SERVERS
from dsocr_analyze.timing.serving import ServedModel

META = torch.device("meta")
DATA = Path(__file__).parent / "data"
OCR2, UNLIMITED = (ARCHITECTURES[name] for name in ("deepseek-ocr-2", "unlimited-ocr"))
DIRECTORY = {each.name: ModelDirectory.read(each.reference) for each in (DEFAULT, OCR2, UNLIMITED)}
GOLDENS = [
    pytest.param(name, row, id=f"{name}-{number}")
    for name, file in (
        (DEFAULT.name, "golden_workloads.json"),
        (OCR2.name, "golden2_ocr2_workloads.json"),
        (UNLIMITED.name, "golden2_unlimited_workloads.json"),
    )
    for number, row in enumerate(json.loads((DATA / file).read_text()))
]


def planned(name, row, **more):
    sizes = {key: row[key] for key in ("base_size", "image_size", "crop_mode", "text_tokens")}
    pages = row.get("pages", 1)
    return plan_workload(
        architecture=name, page=tuple(row["page"]), prompt_pages=pages, **sizes, **more
    )


# --- recorded counts -------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "row"), GOLDENS)
def test_golden_workloads(name, row):
    workload = planned(name, row, max_new_tokens=2)
    assert list(workload.grid) == row["grid"]
    assert (workload.visual_tokens, workload.seq_len) == (row["visual_tokens"], row["seq_len"])
    figures = page_figures(DIRECTORY[name], workload)
    golden = row["matrix_flops"]
    layers_and_head = golden["layers"] + golden["lm_head"]
    counted = {stage: each.work.matrix_flops for stage, each in figures.stages.items()}
    assert counted == {
        **{stage: golden[stage] for stage in [*counted][:3]},
        "prefill": layers_and_head,
        "decode": row["decode_step_matrix_flops"]["total"],
    }
    assert figures.prefill_pass.matrix_flops == golden["total"]
    assert figures.stages["prefill"].own["lm_head"].matrix_flops == golden["lm_head"]


@sampled("row", [p.values[1] for p in GOLDENS if p.values[0] == UNLIMITED.name], first(1))
@pytest.mark.parametrize("is_on", [True, False])
def test_golden_decode_steps(row, is_on):
    directory = DIRECTORY[UNLIMITED.name]
    config = directory.config if is_on else UNLIMITED.without_window(directory.config)
    dimensions = UNLIMITED.forms.dimensions(config)
    for golden in row["decode_steps"] if is_on else [row["decode_step_1000_without_ring"]]:
        before, upto = (
            UNLIMITED.forms.compose(
                dimensions, planned(UNLIMITED.name, row, max_new_tokens=steps), BFLOAT16, False
            )
            for steps in (golden["step"], golden["step"] + 1)
        )
        assert upto.batch.minus(before.batch).matrix_flops == golden["total"]
        assert upto.memory.kv_cache_bytes == golden["kv_cache_bytes_bf16"]


@pytest.mark.parametrize(
    ("architecture", "file", "grids"),
    [(OCR2, "golden2_ocr2_grids.json", 13), (UNLIMITED, "golden2_unlimited_grids.json", 118)],
    ids=["ocr2", "unlimited"],
)
def test_crop_grids(architecture, file, grids):
    rows = np.array(json.loads((DATA / file).read_text()))
    assert len(rows) >= 100
    for width, height, columns, down in rows.tolist():
        assert architecture.plan(page=(width, height)).grid == (columns, down)
    codes = architecture.forms.crop_grids.codes(rows[:, 0], rows[:, 1])
    found = np.stack(architecture.forms.crop_grids.columns_and_rows(codes), 1)
    assert np.array_equal(found, rows[:, 2:])
    found = {architecture.plan(page=(64 * w, 64 * h)).grid for w in range(10, 200, 3)
             for h in range(10, 200, 7)}  # fmt: skip
    assert len(found - {(1, 1)}) <= grids


SIDES = st.one_of(st.integers(1, 6000), st.sampled_from([640, 641, 768, 769, 1280, 4096]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", [OCR2, UNLIMITED], ids=lambda each: each.name)
@settings(deadline=None)  # the first example makes the tables
@given(pages=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=100))
def test_grids_of_many_pages_are_those_of_each(architecture, pages):
    sides = np.array(pages, np.int64)
    codes = architecture.forms.crop_grids.codes(sides[:, 0], sides[:, 1])
    columns, rows = architecture.forms.crop_grids.columns_and_rows(codes)
    found = list(zip(columns.tolist(), rows.tolist(), strict=True))
    assert found == [architecture.plan(page=page).grid for page in pages]
    assert codes.max() < architecture.forms.crop_grids.count


@pytest.mark.parametrize("side", range(2, 6))
def test_of_grids_with_one_aspect_the_page_decides(side):
    """1, 4, 9, 16 and 25 tiles have one aspect: each wins from half of its tiles' pixels on."""
    edge = int((side * side * 640 * 640 / 2) ** 0.5)
    for page, expected in ((edge, max(2, side - 1)), (edge + 1, side), (641, 2), (640, 1)):
        assert UNLIMITED.plan(page=(page, page)).grid == (expected, expected)


@pytest.mark.parametrize(
    ("architecture", "total"), [(OCR2, 3_389_119_360), (UNLIMITED, 3_336_106_240)]
)
def test_parameters(architecture, total):
    dimensions = DIRECTORY[architecture.name].dimensions()
    assert architecture.forms.parameter_count(dimensions) == total


# --- one engine against the other ------------------------------------------------------------


@sampled("seed", range(24), first(1))
@pytest.mark.parametrize("name", [OCR2.name, UNLIMITED.name])
def test_the_engines_agree_on_everything(name, seed):
    case = drawn(seed, name)
    session = DeepSeekOCRSession.from_directory(
        case.directory,
        device="cpu" if seed % 8 == 7 and not case.flash else "meta",
        dtype=case.dtype.name,
        flash_attention=case.flash,
    )
    new_tokens = (7, 3, 1, 2, 50)[seed % 5]
    workload = dataclasses.replace(case.workload, max_new_tokens=new_tokens)
    figures, agreement = session.figures(workload)
    assert (agreement.agrees, agreement.warnings) == (True, [])
    assert not figures.ledger.unknown


def test_decode_steps_under_a_window_are_summed_exactly():
    """Five steps over a growing cache, then all over as many tokens: the prompt and the window."""
    dimensions = drawn(0, UNLIMITED.name).dimensions
    decoder = dataclasses.replace(dimensions.decoder, sliding_window=5)
    dimensions = dataclasses.replace(dimensions, decoder=decoder)
    forms, prompt = UNLIMITED.forms, 3 + 6
    totals = forms.page_totals(
        dimensions, base_size=64, whole_resolution=64, text_tokens=6, batch_size=2,
        max_new_tokens=np.arange(1, 21), dtype=FLOAT32,
    )  # fmt: skip
    assert totals.seq_len == prompt
    columns = [np.broadcast_to(count, 20).tolist() for count in totals.batch]
    steps = [Work(*counts).minus(totals.prefill) for counts in zip(*columns, strict=True)]
    expected = NO_WORK
    for number, found in enumerate(steps):
        assert found == expected
        is_full = number >= 5
        cached = prompt + 4 if is_full else prompt + number
        p = Pass(2, 1, cached, overwrites=is_full)
        kernels = step(UNLIMITED, dimensions, p, FLOAT32).kernels
        expected = expected.plus(total_work(kernel.total for kernel in kernels))


# --- refusals --------------------------------------------------------------------------------


PAGE = {"page": (900, 900)}
SEVERAL = PAGE | {"prompt_pages": 2}


@pytest.mark.parametrize(
    ("architecture", "arguments", "message"),
    [
        *(
            (OCR2, PAGE | {name: size, "crop_mode": crop}, f"{name} {size} is not .*768 or 1024")
            for size in (512, 719, 784, 975, 1040)
            for name, crop in (("image_size", False), ("base_size", True))
        ),
        # whose tokens do not fit
        (OCR2, PAGE | {"image_size": 640}, "image_size 640 is not supported in crop mode.*768"),
        (OCR2, SEVERAL, r"prompt_pages 2 is not supported.*one page"),
        (DEFAULT, SEVERAL, r"prompt_pages 2 is not supported.*one page"),
        (UNLIMITED, SEVERAL | {"crop_mode": True}, "crop_mode=True is not supported"),
        (UNLIMITED, SEVERAL | {"base_size": 1024, "image_size": 640}, "base_size 1024"),
        (UNLIMITED, PAGE | {"prompt_pages": 0}, "prompt_pages 0 is too small"),
        (UNLIMITED, PAGE | {"prompt_pages": 1025}, "1025 is too large; give 1 to 1024"),
    ],
)
def test_pages_that_its_code_does_not_run_are_refused(architecture, arguments, message):
    with pytest.raises(WorkloadError, match=message):
        architecture.plan(**arguments)


@pytest.mark.parametrize(("size", "tokens"), [(720, 145), (783, 145), (976, 257), (1039, 257)])
def test_ocr2_takes_views_that_its_code_runs(size, tokens):
    workload = OCR2.plan(page=(900, 900), crop_mode=False, image_size=size)
    assert workload.visual_tokens == tokens


def test_unlimited_has_no_flash_attention():
    dimensions, workload = DIRECTORY[UNLIMITED.name].dimensions(), UNLIMITED.plan(**PAGE)
    for asked in (UNLIMITED.forms.compose, UNLIMITED.forms.prefill_bytes_alive):
        with pytest.raises(ConfigError, match="eager only"):
            asked(dimensions, workload, BFLOAT16, True)


@pytest.mark.parametrize("value", ["wide", 1.5, True, -1])
def test_a_window_is_a_whole_number(value):
    with pytest.raises(ConfigError, match="sliding_window_size"):
        directory(UNLIMITED.name, {"sliding_window_size": value}).dimensions()


@pytest.mark.parametrize(
    ("size", "other", "window"),
    [(128, 64, 128), (None, 64, 64), (0, 64, 64), (0, 0, None), (None, None, None)],
)
def test_the_window_is_the_one_that_infer_takes(size, other, window):
    windows = {"sliding_window_size": size, "sliding_window": other}
    dimensions = directory(UNLIMITED.name, windows).dimensions()
    assert dimensions.decoder.sliding_window == window


# --- seconds ---------------------------------------------------------------------------------


def test_serving_steps_stop_growing_when_the_window_is_full():
    directory = DIRECTORY[UNLIMITED.name]
    on = ServedModel(
        UNLIMITED, directory.dimensions(), dtype_named("bfloat16"), device("h100-sxm"),
        SERVERS["vllm"],
    )  # fmt: skip
    off = dataclasses.replace(
        on, dimensions=UNLIMITED.forms.dimensions(UNLIMITED.without_window(directory.config))
    )
    assert on.page_bytes(900, 20_000) == 1028 * on.page_bytes(1, 1)
    assert off.page_bytes(900, 20_000) == (900 + 19_999) * off.page_bytes(1, 1)
    full = on.step(1, 1028).seconds
    assert [on.keys(900, generated) for generated in (50, 127, 128, 2_500)] == [
        950, 1027, 1028, 1028
    ]  # fmt: skip
    assert on.step(1, on.keys(900, 50)).seconds == off.step(1, off.keys(900, 50)).seconds
    assert full < off.step(1, off.keys(900, 2_500)).seconds
