"""The mode to choose: the rule by hand and over random figures, and never a dominated mode."""

import json

import msgspec
import pytest
from command_line import run
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from sampling import every, sampled

from dsocr_analyze.archive.advice_document import AdviceDocument, published_figures
from dsocr_analyze.archive.recommendation import MARGIN, choice_of_kind

MODES = {name: each.kinds for name, each in
         published_figures()["deepseek-ocr"].edit_distance.modes.items()}  # fmt: skip
KINDS = published_figures()["deepseek-ocr"].edit_distance.kinds

BY_HAND = [
    # Edit distances, cheapest first; the modes within 0.03 of the best.
    ({"a": 0.5, "b": 0.1, "c": 0.08}, ["b", "c"]),
    ({"a": 0.109, "b": 0.079}, ["a", "b"]),  # 0.030 and a bit in binary
    ({"a": 0.11, "b": 0.079}, ["b"]),
    ({"a": 0.02, "b": 0.3}, ["a"]),
    ({"a": 0.3}, ["a"]),
]


@pytest.mark.parametrize(("distances", "good"), BY_HAND)
def test_the_cheapest_within_the_margin_is_chosen(distances, good):
    found = choice_of_kind("book", distances)
    assert (found.mode, list(found.good)) == (good[0], good)
    assert found.is_decided == (len(good) < len(distances))
    assert found.rejected([*distances]) == [mode for mode in distances if mode not in good]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8))
def test_no_cheaper_mode_is_as_good_and_no_mode_is_better(thousandths):
    distances = {str(place): each / 1000 for place, each in enumerate(thousandths)}
    chosen = int(choice_of_kind("book", distances).mode)
    margin = round(1000 * MARGIN)
    assert thousandths[chosen] <= min(thousandths) + margin
    assert all(each > min(thousandths) + margin for each in thousandths[:chosen])


def asked(capsys, *arguments):
    code, out, _ = run(capsys, "advise", *arguments, "--format", "json")
    msgspec.json.decode(out, type=AdviceDocument)
    return code, json.loads(out)


CASES = [
    # Options, the mode, whether figures decide, and the kinds that do.
    ("--kind newspaper", "gundam", True, []),
    ("--kind financial-report", "base", True, []),
    ("--kind financial-report --mode gundam,base", "base", True, []),
    ("--kind notes", "gundam-m", True, []),
    ("--kind book --mode base,large,gundam", "base", False, []),
    ("--kind newspaper --minimum-dpi 120", "gundam", False, []),
    ("--kind newspaper --maximum-compression 20 --page-text-tokens 4500", "gundam", True, []),
    ("--kind newspaper --mode tiny,base", "base", True, []),
    ("", None, True, ["financial report", "exam paper", "notes", "newspaper"]),
    ("--mode base,gundam", None, True, ["financial report", "exam paper", "newspaper"]),
    ("--mode tiny,base", "base", True, []),
    ("--minimum-dpi 120 --mode large,gundam,gundam-m", None, True, ["financial report", "notes"]),
    ("--kind newspaper --mode base", "base", False, []),
    ("--mode 512,1024", None, False, []),
    ("--mode 512,base --minimum-dpi 30", "512", False, []),
    ("--arch unlimited-ocr", None, False, []),
    ("--arch deepseek-ocr-2 --minimum-dpi 80 --kind book", "base", False, []),
    ("--arch glm-ocr", "native", False, []),
    # Of what no mode can write to its end, most is kept; else gundam-m would take fewest seconds.
    ("--kind newspaper --page-text-tokens 10000 --gpu h100", "gundam", True, []),
]  # fmt: skip


@sampled(("options", "mode", "figures_decide", "kinds"), CASES, every(3))
def test_which_mode_is_recommended(capsys, options, mode, figures_decide, kinds):
    code, document = asked(capsys, *options.split())
    found = document["recommendation"]
    name = ("none" if not kinds else "it depends") if mode is None else mode
    assert code == 0
    assert (found["mode"], found["figures_decide"]) == (mode, figures_decide)
    assert found["kinds_that_decide"] == kinds
    assert f" {name}" in found["sentences"][0]


@settings(max_examples=8, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(data=st.data())
def test_what_is_recommended_is_never_dominated(capsys, data):
    """No other mode that meets the limits costs less and is better by the rule, or as good."""
    modes = data.draw(st.lists(st.sampled_from([*MODES]), min_size=2, unique=True))
    kind = data.draw(st.sampled_from(KINDS))
    limits = data.draw(st.sampled_from([(), ("--minimum-dpi", "80"),
                                        ("--maximum-compression", "12")]))  # fmt: skip
    size = data.draw(st.tuples(st.integers(300, 4000), st.integers(300, 4000)))
    text = data.draw(st.integers(1, 5000))
    arguments = [
        "--mode", ",".join(modes), "--kind", kind.replace(" ", "-"), *limits, "--page-dpi", "200",
        "--page", "{}x{}".format(*size), "--page-text-tokens", str(text),
    ]  # fmt: skip
    code, document = asked(capsys, *arguments)
    found = document["recommendation"]["mode"]
    allowed = [each for each in document["modes"] if not limits or each["verdict"]["meets"]]
    assert (found is None, code) == (not allowed, int(not allowed))
    assume(allowed)
    cost = {each["mode"]: each["cost"]["page_flops"] for each in allowed}
    best = min(MODES[name][kind] for name in cost)
    for name in cost:
        is_good = MODES[name][kind] < best + MARGIN + 1e-9
        assert name != found or is_good
        assert cost[name] >= cost[found] or not is_good, (name, found, arguments)


def test_all_forms_say_the_same_and_warn_of_dense_pages(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "9999")
    options = ("--kind", "book", "--page-text-tokens", "2560,2561", "--gpu", "h100", "--price", "2")
    said = " ".join(asked(capsys, *options)[1]["recommendation"]["sentences"])
    assert "base, 2,561 text tokens: 10.0 per vision token; published precision falls" in said
    assert "base, 2,560 text tokens: 10.0" not in said
    for output_format in ("table", "markdown"):
        out = run(capsys, "advise", *options, "--format", output_format)[1]
        assert said in " ".join(out.replace("\\", "").split())
