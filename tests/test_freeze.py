"""Every figure is what it was when it was frozen; `freeze.py` says how that is changed."""

import copy

import pytest
from freeze import (
    differences,
    frozen,
    told,
    value_now,
)
from frozen_cases import GROUPS

FEW = {
    "pages": (
        "deepseek-ocr / published / mode gundam / bfloat16 / eager / batch 3",
        "deepseek-ocr-2 / published / mode dynamic / float32 / flash / batch 1",
        "unlimited-ocr / published / five odd pages / bfloat16 / eager / batch 1",
    ),
    "configs": (
        "deepseek-ocr / latent, dynamic, beyond / page 0 / bfloat16 / eager / batch 1",
        "deepseek-ocr / noaux, sigmoid, normed / page 0 / float32 / eager / batch 3",
        "deepseek-ocr-2 / encoder of one head / page 0 / bfloat16 / eager / batch 1",
        "unlimited-ocr / window 2 / page 0 / bfloat16 / eager / batch 1",
    ),
    "forms": ("deepseek-ocr / small / page 0 / bfloat16 / eager / batch 1",),
    "commands": ("fit deepseek-ocr", "sweep of unlimited-ocr"),
}
"""Cases of some groups that the default run tries."""


@pytest.mark.parametrize("group", FEW)
def test_a_few_cases_are_as_frozen(group):
    then, cases = frozen(group), GROUPS[group]()
    few = {name: value_now(cases[name]) for name in FEW[group]}
    found = [*differences({name: then[name] for name in few}, few, group)]
    assert not found, told(found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("group", GROUPS)
def test_every_case_is_as_frozen(group):
    values = {name: value_now(value) for name, value in GROUPS[group]().items()}
    found = [*differences(frozen(group), values, group)]
    assert not found, told(found)


# --- the comparison itself ----------------------------------------------------------------------


def test_a_difference_has_a_place_and_both_values():
    then = {"a page": {"stages": {"sam": {"params": 3, "calls": 1}}, "views": [4, 5]}}
    now = copy.deepcopy(then)
    now["a page"]["stages"]["sam"] = {"params": 4}
    now["a page"]["views"][1] = 7
    found = list(differences(then, now, "pages"))
    assert found == [
        ("pages | a page | stages | sam | params", 3, 4),
        ("pages | a page | stages | sam | calls", 1, None),
        ("pages | a page | views | 1", 5, 7),
    ]
    assert told(found[:1]).split() == f"{found[0].place}: then 3 now 4".split()
    alike = [*differences(*({f"page {n}": {"peak": value} for n in range(5)} for value in (1, 2)))]
    assert told(alike) == f"{told(alike[:1])}\n      and in 4 more cases"


def test_what_differs():
    for then, now, places in (
        ({"peak": 3}, {"peak": 3.0}, ["peak"]),
        ({"part": 0.1 + 0.2}, {"part": 0.3}, []),  # by the order of operations
        ({"part": 0.3}, {"part": 0.3 * (1 + 1e-8)}, ["part"]),
        ({"old": 1}, {"new": 1}, ["old", "new"]),
        ([1], [1, 2], [""]),
    ):
        assert [each.place for each in differences(then, now)] == places
    assert "ZeroDivisionError" in told(differences(3, value_now(lambda: 1 // 0)))
