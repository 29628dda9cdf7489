"""Stages as parts of a page: they add up to it, and each has one colour everywhere."""

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from relatives import FAMILY

from dsocr_analyze.cli import main
from dsocr_analyze.report.reading import load_report
from dsocr_analyze.report.tables import (
    OUTSIDE,
    PALETTE,
    seconds_parts,
    stage_colours,
)

OURS = sorted({stage.name for each in FAMILY.values() for stage in each.stages})


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    file = tmp_path_factory.mktemp("parts") / "report.json"
    main(["--engine", "analytic", "-q", "--json", str(file), "--batch-size", "3",
          "--max-new-tokens", "7", "--gpu", "l4", "--runtime", "eager,serving"])  # fmt: skip
    return load_report(file)


def test_seconds_add_up_to_the_page(report):
    assert len(report.time) == 2
    for entry in report.time:
        parts = seconds_parts(report, entry)
        assert list(parts) == [*report.stages, OUTSIDE]
        assert sum(parts.values()) == pytest.approx(entry.page_seconds)
        alone = {name: stage.seconds for name, stage in entry.stages.items() if name != "decode"}
        assert alone == {name: parts[name] for name in alone}
        assert parts[OUTSIDE] >= entry.assumptions.preprocess_seconds * (1 - 1e-9)
    # A correction is of the whole; the stages' seconds stay as the kernels take them.
    before = sum(alone.values())
    corrected = msgspec.structs.replace(entry, ttft_seconds=before / 2, page_seconds=before / 2 + 1)
    parts = seconds_parts(report, corrected)
    found = sum(parts.values()), parts["sam"], parts["decode"], parts[OUTSIDE]
    assert found == pytest.approx((corrected.page_seconds, alone["sam"] / 2, 1, 0))


@settings(max_examples=40)
@given(st.lists(st.sampled_from([*OURS, OUTSIDE, "eye", "ear"]), unique=True))
def test_stages_keep_their_colours_and_none_has_anothers(names):
    colours = stage_colours(names)
    assert (set(colours), len(set(colours.values()))) == (set(names), len(names))
    assert set(colours.values()) <= set(PALETTE)
    for known in {*OURS, OUTSIDE} & set(names):
        assert colours[known] == stage_colours([known])[known]
    many = [f"stage {index}" for index in range(30)]
    assert [*stage_colours(many)] == many  # which use the palette again
