"""Stages as parts of a page: they add up to it, and each has one colour everywhere."""

import msgspec
import pytest
from command_line import run
from hypothesis import given
from hypothesis import strategies as st

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.report.reading import load_report
from dsocr_analyze.report.tables import (
    AMOUNTS,
    OUTSIDE,
    PALETTE,
    batch_parts,
    page_parts,
    seconds_parts,
    stage_colours,
)


@pytest.fixture
def report(tmp_path, capsys):
    file = tmp_path / "report.json"
    run(capsys, "--engine", "analytic", "-q", "--json", file, "--batch-size", "3",
        "--max-new-tokens", "7", "--gpu", "h100,l4", "--runtime", "eager,serving")  # fmt: skip
    return load_report(file)


def test_parts_add_up_to_the_batch_and_to_the_page(report):
    total = report.total
    for name, of_page in (("flops", total.page.flops), ("bytes", total.page.bytes_moved)):
        amount = AMOUNTS[name]
        parts = batch_parts(report, amount)
        assert list(parts) == ["sam", "clip", "projector", "prefill", "decode"]
        assert sum(parts.values()) == amount(total.batch)
        assert parts["decode"] == amount(total.batch) - amount(total)
        assert sum(page_parts(report, amount).values()) == pytest.approx(of_page, rel=1e-14)


def test_seconds_add_up_to_the_page(report):
    assert len(report.time) == 4
    for entry in report.time:
        parts = seconds_parts(report, entry)
        assert list(parts) == [*report.stages, OUTSIDE]
        assert sum(parts.values()) == pytest.approx(entry.page_seconds)
        for name in ("sam", "clip", "projector", "prefill"):
            assert parts[name] == entry.stages[name].seconds
        assert parts[OUTSIDE] >= entry.assumptions.preprocess_seconds * (1 - 1e-9)


def test_a_corrected_first_token_is_shared_by_its_stages(report):
    """A correction is of the whole; the stages' seconds stay as the kernels take them."""
    [entry, *_] = report.time
    before = sum(stage.seconds for stage in list(entry.stages.values())[:-1])
    corrected = msgspec.structs.replace(entry, ttft_seconds=before / 2, page_seconds=before / 2 + 1)
    parts = seconds_parts(report, corrected)
    assert sum(parts.values()) == pytest.approx(corrected.page_seconds)
    assert parts["sam"] == pytest.approx(entry.stages["sam"].seconds / 2)
    assert (parts["decode"], parts[OUTSIDE]) == (pytest.approx(1), 0)


def test_stages_of_all_architectures_have_different_colours():
    names = {stage.name for each in ARCHITECTURES.values() for stage in each.stages}
    colours = stage_colours([*names, OUTSIDE])
    assert len(set(colours.values())) == len(names | {OUTSIDE})
    for each in ARCHITECTURES.values():
        of_one = stage_colours([stage.name for stage in each.stages])
        assert of_one == {name: colours[name] for name in of_one}


@given(st.lists(st.sampled_from(["sam", "decode", "eye", "ear", "nose", "hand"]), unique=True))
def test_stages_of_other_models_have_colours_of_their_own(names):
    colours = stage_colours(names)
    assert set(colours) == set(names)
    assert len(set(colours.values())) == len(names)
    assert set(colours.values()) <= set(PALETTE)
    for known in {"sam", "decode"} & set(names):
        assert colours[known] == stage_colours([known])[known]


def test_many_stages_use_the_palette_again():
    assert len(stage_colours([f"stage {index}" for index in range(30)])) == 30
