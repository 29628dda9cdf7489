"""Parts hold every test once, and never tear its cases apart."""

import pytest
from parts import Part

TESTS = [f"tests/test_{file}.py::test_{name}" for file in "abcdefgh" for name in range(40)]


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_every_test_is_in_one_part(of):
    parts = [
        {test for test in TESTS if Part(number, of).holds(test)} for number in range(1, of + 1)
    ]
    assert sorted(test for part in parts for test in part) == sorted(TESTS)
    assert all(0.5 < len(part) * of / len(TESTS) < 1.5 for part in parts)


def test_cases_stay_with_their_test():
    for test in TESTS:
        part = next(part for number in (1, 2, 3) if (part := Part(number, 3)).holds(test))
        assert all(part.holds(f"{test}[{case}]") for case in ("a", "b-1", "[x]", "c::d"))


def test_a_part_is_read():
    assert Part.parse("2/3") == Part(2, 3)
    assert Part.parse("12/12") == Part(12, 12)


@pytest.mark.parametrize("text", ["", "2", "0/3", "4/3", "1/0", "-1/3", "1/3/5", "a/b", " 1/3"])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(pytest.UsageError, match="give a part as K/N, from 1/N to N/N"):
        Part.parse(text)
