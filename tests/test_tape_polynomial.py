"""Polynomials in sizes: arithmetic, limits, bounds, and which can be the highest."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsocr_analyze.tape import ceil_log2
from dsocr_analyze.tape.polynomial import (
    Bounds,
    Polynomial,
    Symbol,
    Values,
    highest,
    worth_comparing,
)

A, B = Polynomial.size("a", least=3), Polynomial.size("b", least=3)
SOME = Polynomial.size("some", least=0)
PART = Polynomial.size("part", most=A * B)
PRODUCTS = {
    "1": Polynomial.of(1), "a": A, "b": B, "ab": A * B, "aab": A * A * B, "part": PART,
    "part a": PART * A, "some": SOME, "some a": SOME * A,
}  # fmt: skip

SIZES = st.integers(3, 400)
NUMBERS = {"a": SIZES, "b": SIZES, "part": st.floats(0, 1), "some": st.integers(0, 9)}
POLYNOMIALS = st.dictionaries(
    st.sampled_from(list(PRODUCTS)), st.integers(-50, 50).filter(bool), max_size=4
).map(lambda terms: Polynomial.sum(each * PRODUCTS[name] for name, each in terms.items()))


def values_of(a, b, part, some):
    return Values({"a": a, "b": b, "part": max(1, int(part * a * b)), "some": some})


@pytest.mark.exhaustive
@given(polynomials=st.lists(POLYNOMIALS, min_size=1, max_size=6), **NUMBERS)
def test_what_is_not_worth_comparing_is_never_the_highest(polynomials, **numbers):
    kept, values = worth_comparing(polynomials), values_of(**numbers)
    assert set(kept) <= set(polynomials)
    assert highest(kept, values) == max(values.of(each) for each in polynomials)


ONE, TWO = Polynomial.size("a"), Polynomial.size("b")


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [
        ([3 * A * B, 2 * A * B + 5, A * B + 2 * B, 4 * A], [3 * A * B]),
        ([2 * ONE * TWO + 5, ONE * TWO + 2 * TWO, 4 * ONE], None),  # all
        ([4, A, 9, 9], [A, Polynomial.of(9)]),
        # A size that may be 0 covers nothing that lacks it.
        ([A, 9 * SOME * A], None),
        ([2 * SOME, 3 * SOME], [3 * SOME]),
        ([2 * SOME, SOME * A], [SOME * A]),
        ([A, 9 * SOME * A + A], [9 * SOME * A + A]),
        # A size gives way to what it never exceeds.
        ([PART, A * B], [A * B]),
        ([2 * PART, A * B], None),
        ([PART * A + 5, A * A * B + 6], [A * A * B + 6]),
    ],
    ids=str,
)
def test_what_is_worth_comparing(sizes, kept):
    assert worth_comparing(sizes) == tuple(kept or sizes)


@pytest.mark.exhaustive
@given(x=POLYNOMIALS, y=POLYNOMIALS, number=st.integers(-5, 5), **NUMBERS)
def test_arithmetic_is_that_of_the_values(x, y, number, **numbers):
    values = values_of(**numbers)
    p, q = values.of(x), values.of(y)
    for found, expected in (
        (x + y, p + q), (x - y, p - q), (x * y, p * q), (-x, -p), (number + x, number + p),
        (number - x, number - p), (x * number, p * number), (x * 6 // 3, 2 * p),
        (Polynomial.sum([x, y, number]), p + q + number),
    ):  # fmt: skip
        assert values.of(Polynomial.of(found)) == expected
    assert (x == y) == (x.terms == y.terms)
    assert (x - x == 0, bool(x - x)) == (True, False)


@pytest.mark.exhaustive
@given(x=POLYNOMIALS, **NUMBERS)
def test_no_value_is_beyond_the_limits(x, **numbers):
    value = values_of(**numbers).of(x)
    assert x.least is None or x.least <= value
    assert x.most is None or value <= x.most


def test_limits_of_sums_and_products():
    few = Polynomial.size("few", least=2, most=5)
    within = Polynomial.size("within", most=few)
    limits = {
        few: (2, 5), few + 1: (3, 6), 3 * few: (6, 15), -few: (-5, -2), 10 - 2 * few: (0, 6),
        few * few: (4, 25), few * A: (6, None), few - A: (None, 2), within: (1, 5),
    }  # fmt: skip
    assert {size: (size.least, size.most) for size in limits} == limits


def test_what_depends_on_sizes_is_no_answer():
    few = Polynomial.size("few", least=3, most=10)
    assert [few > 2, few > 10, few + 1 > 11, 2 * few > 5, few == 11, few == few + 0] == [
        True, False, False, True, False, True,
    ]  # fmt: skip
    for ask in (lambda: few > 5, lambda: few == 5, lambda: few - 4 > 0, lambda: 9 - few == 1):
        with pytest.raises(ArithmeticError, match="depends on the sizes"):
            ask()
    with pytest.raises(ArithmeticError, match="not a multiple of 2"):
        _ = (3 * few) // 2


def test_formulas_are_written_highest_degree_first():
    d = Polynomial.size("d")
    sizes = A * B * d * 2 - 3 * A + 1, -A * A, Polynomial.of(0), Polynomial.of(-7)
    assert [*map(str, sizes)] == ["2 a b d - 3 a + 1", "-a^2", "0", "-7"]


def derived(name, most, function, *sizes):
    return Polynomial({(Symbol(name, 0, most, function, sizes),): 1})


ROOT = derived("log", None, ceil_log2, A * B + 1)


@pytest.mark.parametrize(
    ("size", "b", "expected"),
    [
        (2 * A * B - A + 7, 5, [2 * 15 - 3 + 7, 2 * 20 - 4 + 7]),
        (ROOT, 4, [4, 5]),
        (2 * ROOT + 1, 5, [2 * 4 + 1, 2 * 5 + 1]),
        (9, 5, [9, 9]),
    ],
)
def test_values_are_of_integers_and_of_arrays(size, b, expected):
    assert [Values({"a": a, "b": b}).of(size) for a in (3, 4)] == expected
    found = Values({"a": np.array([3, 4]), "b": b}).of(size)
    assert np.broadcast_to(found, 2).tolist() == expected


@pytest.mark.parametrize(
    ("size", "bound"),
    [
        (2 * A * B - 3 * A + 1, 40 + 12 + 1),  # what a value subtracts is added
        *((3 * derived("x", most, lambda a, b: a // b, A, A), 3 * bound)
          for most, bound in ((None, 1), (7, 7), (A, 4))),
        (5 * A * B, 100),
        *((size, None) for size in (5 * A * B + 1, 5 * A * B - A)),
        (derived("x", 1, lambda _: 1, 6 * A * B), None),
    ],
    ids=str,
)  # fmt: skip
def test_a_bound_is_never_exceeded_and_none_is_beyond_the_limit(size, bound):
    bounds = Bounds({"a": 4, "b": 5}, 100)
    if bound is None:
        with pytest.raises(OverflowError):
            bounds.of(size)
    else:
        assert bounds.of(size) == bound


def test_no_smaller_sizes_exceed_a_bound():
    draw = random.Random(1)
    for _ in range(200):
        size = Polynomial.sum(
            draw.randint(-9, 9) * draw.choice([A * B, A * A, B, A * B * B]) for _ in range(4)
        )
        value = Values({"a": draw.randint(3, 9), "b": draw.randint(3, 9)}).of(size)
        assert abs(value) <= Bounds({"a": 9, "b": 9}, 10**9).of(size)
