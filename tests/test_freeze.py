"""Every figure is what it was when it was frozen; `freeze.py` says how that is changed."""

from __future__ import annotations

import copy

import pytest
from freeze import (
    EXPECTED,
    Expected,
    differences,
    differences_of_group,
    folded,
    frozen,
    records,
    told,
    unexpected,
    unused,
    value_now,
)
from frozen_cases import GROUPS

from dsocr_analyze.kernels import Elements, Kernel, Rows, Work

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
"""Cases of each group that the default run tries."""


@pytest.mark.parametrize("group", GROUPS)
def test_a_few_cases_are_as_frozen(group):
    then, cases = frozen(group), GROUPS[group]()
    found = [
        each
        for name in FEW[group]
        for each in unexpected(differences(group, name, then[name], value_now(cases[name])))
    ]
    assert not found, told(found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("group", GROUPS)
def test_every_case_is_as_frozen(group):
    """All at once, so that an expected difference that no longer exists is found as well."""
    values = {name: value_now(value) for name, value in GROUPS[group]().items()}
    found = differences_of_group(group, values)
    assert not unexpected(found), told(unexpected(found))
    assert not unused(group, found)


def test_expected_differences_name_a_group():
    assert {entry.group for entry in EXPECTED} <= GROUPS.keys()


# --- the comparison itself ----------------------------------------------------------------------


def test_a_difference_has_a_place_and_both_values():
    then = {"stages": {"sam": {"params": 3, "calls": 1}}, "views": [4, 5]}
    now = copy.deepcopy(then)
    now["stages"]["sam"]["params"] = 4
    now["views"][1] = 7
    del now["stages"]["sam"]["calls"]
    found = differences("pages", "a page", then, now)
    assert [(each.place, each.then, each.now) for each in found] == [
        ("stages | sam | params", 3, 4),
        ("stages | sam | calls", 1, None),
        ("views | 1", 5, 7),
    ]
    assert str(found[0]).split() == "a page stages | sam | params: then 3 now 4".split()


def test_whole_numbers_and_floats_differ():
    assert differences("pages", "a page", {"peak": 3}, {"peak": 3.0})


def test_floats_may_differ_by_the_order_of_operations():
    assert not differences("pages", "a page", {"part": 0.1 + 0.2}, {"part": 0.3})
    assert differences("pages", "a page", {"part": 0.3}, {"part": 0.3 * (1 + 1e-8)})


def test_a_case_that_raises_differs():
    found = differences("pages", "a page", {"peak": 3}, value_now(lambda: 1 // 0))
    assert "ZeroDivisionError" in told(found)


def test_alike_differences_of_many_cases_are_told_once():
    found = [differences("pages", f"page {n}", {"peak": 1}, {"peak": 2})[0] for n in range(5)]
    assert told(found) == f"{found[0]}\n      and in 4 more cases"


def test_what_came_and_what_went_differ():
    assert len(differences("pages", "a page", {"old": 1}, {"new": 1})) == 2


def test_only_an_entry_for_the_place_excuses_a_difference(monkeypatch):
    found = differences("pages", "a page / cpu", {"peak": 3, "work": 4}, {"peak": 5, "work": 6})
    entries = (
        Expected("pages", "* / cpu", "peak", "scratch goes"),
        Expected("pages", "* / flash / *", "work", "another case"),
        Expected("forms", "*", "work", "another group"),
    )
    monkeypatch.setattr("freeze.EXPECTED", entries)
    assert [each.place for each in unexpected(found)] == ["work"]
    assert unused("pages", found) == [entries[1]]


def kernel(operator="mul", elements=6, calls=1, path="layers.0", **changes):
    return Kernel(
        "elementwise", operator, Elements(elements), "float32", "float32",
        Work(vector_flops=elements), calls, path,
    )._replace(**changes)  # fmt: skip


class TestRecords:
    def test_one_record_of_two_calls_is_two_records(self):
        assert records([kernel(calls=2)]) == records([kernel(), kernel()])

    def test_their_order_does_not_matter(self):
        two = [kernel(), kernel("add")]
        assert records(two) == records(two[::-1])

    @pytest.mark.parametrize(
        "changed",
        [
            kernel("add"),
            kernel(elements=7),
            kernel(calls=2),
            kernel(kind="movement"),
            kernel(dimensions=Rows(2, 3)),
            kernel(dtype="bfloat16"),
            kernel(output_dtype="bfloat16"),
            kernel(work=Work(vector_flops=6, bytes_read=1)),
            kernel(path="layers.1"),
        ],
    )
    def test_every_part_of_a_record_matters(self, changed):
        assert records([kernel()]) != records([changed])

    def test_equal_total_work_of_other_records_differs(self):
        halves = [kernel(elements=3), kernel(elements=3)]
        whole = [kernel(elements=4), kernel(elements=2)]
        one, other = (records(each)["layers.*"]["0"] for each in (halves, whole))
        assert one["vector_flops"] == other["vector_flops"] == 6
        assert one["operators"] == other["operators"] == "mul*2"
        assert one != other


def test_modules_that_are_alike_are_one_entry():
    paths = {f"layers.{layer}.experts.{each}": 1 for layer in (1, 2) for each in range(3)}
    found = folded(paths | {"layers.2.experts.1": 5, "head": 7, "": 9})
    assert found == {
        "layers.*.experts.*": {"1:0-2 2:0 2:2": 1, "2:1": 5},
        "head": {"all": 7},
        "(model)": {"all": 9},
    }
