"""Parts hold every test once."""

import argparse
from dataclasses import dataclass
from unittest.mock import Mock

import conftest
import pytest

TESTS = [f"tests/test_{file}.py::test_{name}" for file in "abcdefgh" for name in range(40)]
GROUP = [f"tests/test_of_a_group.py::test_{name}" for name in range(40)]
TOGETHER = pytest.mark.xdist_group(name="together").mark


@dataclass(frozen=True)
class Item:
    """A test as pytest collects it."""

    nodeid: str

    def get_closest_marker(self, name):
        return TOGETHER if name == "xdist_group" and self.nodeid in GROUP else None


def selected(number, of):
    """Names of the tests that pytest's hook leaves in a part; it reports the others."""
    items, config = [*map(Item, [*TESTS, *GROUP])], Mock()
    config.getoption.return_value = conftest.part(f"{number}/{of}")
    conftest.pytest_collection_modifyitems(config, items)
    left_out = config.hook.pytest_deselected.call_args.kwargs["items"]
    assert len(items) + len(left_out) == len(TESTS) + len(GROUP)
    return {item.nodeid for item in items}


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_every_test_is_in_one_part_and_a_group_together(of):
    parts = [selected(number, of) for number in range(1, of + 1)]
    assert sorted(test for part in parts for test in part) == sorted([*TESTS, *GROUP])
    assert sorted(len(part & {*GROUP}) for part in parts) == [0] * (of - 1) + [40]
    alone = [len(part - {*GROUP}) * of / len(TESTS) for part in parts]
    assert all(0.5 < share < 1.5 for share in alone)


@pytest.mark.parametrize("text", ["", "2", "0/3", "4/3", "1/0", "-1/3", "1/3/5", "a/b", " 1/3"])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="give a part as K/N, from 1/N to N/N"):
        conftest.part(text)
