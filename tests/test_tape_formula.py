"""Polynomials in sizes, and formulas of forwards: by hand, and beside forwards on numbers."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.deepseek_ocr import clip
from dsocr_analyze.architectures.ocr_family.attention import Pass, attention, swiglu
from dsocr_analyze.architectures.ocr_family.decoder import latent_attention, mixture
from dsocr_analyze.architectures.ocr_family.named_sizes import named_part
from dsocr_analyze.architectures.ocr_family.sam import sam
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.kernels import Work, total_work, work_by
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape import Tape, ceil_log2
from dsocr_analyze.tape.formula import Example, FormulaTape, value_of, written
from dsocr_analyze.tape.modules import rms_norm
from dsocr_analyze.tape.polynomial import Polynomial, Symbol, Values, highest, worth_comparing

PUBLISHED = ModelDirectory.read(DEFAULT.reference).dimensions()
NUMBERS = {"B": 3, "T": 7, "K": 11, "d": 24, "f": 10, "H": 4, "D": 6, "E": 8, "k": 2, "r": 5,
           "P": 4, "N": 3, "V": 9}  # fmt: skip


def named(numbers):
    """An example of each name, with what divides it."""
    return {
        name: Example.named(name, value, multiple=2 if name in "DP" else 1)
        for name, value in numbers.items()
    }


def forwards(of):
    """Each forward, for sizes that are examples or numbers: elements of its input, and the rest."""
    plain = replace(
        PUBLISHED.decoder, hidden_size=of["d"], heads=of["H"], kv_heads=of["H"], head_dim=of["D"],
        moe_intermediate_size=of["f"], n_routed_experts=of["E"], num_experts_per_tok=of["k"],
    )  # fmt: skip
    latent = replace(
        plain, use_mla=True, q_lora_rank=None, kv_lora_rank=of["r"], qk_rope_head_dim=of["P"],
        qk_nope_head_dim=of["N"], v_head_dim=of["V"], head_dim=of["N"] + of["P"],
    )  # fmt: skip
    prompt, step = Pass(of["B"], of["T"]), Pass(of["B"], 1, of["K"])
    n, d = prompt.tokens, of["d"]

    def attended(forward, p, c):
        return p.tokens * d, lambda t, x: forward(t, x, t.input(p.tokens * p.keys, BFLOAT16), p, c)

    return {
        "rms_norm": (n * d, lambda t, x: rms_norm(t, x, n, d)),
        "swiglu": (n * d, lambda t, x: swiglu(t, x, n, d, of["f"])),
        "attention": attended(attention, prompt, plain),
        "attention of a step": attended(attention, step, plain),
        "latent attention": attended(latent_attention, prompt, latent),
        "latent attention of a step": attended(latent_attention, step, latent),
        "mixture": (n * d, lambda t, x: mixture(t, x, prompt, plain)),
    }


def formulas_of(name, numbers):
    n, forward = forwards(named(numbers))[name]
    t = FormulaTape(BFLOAT16)
    return t.run(lambda t: forward(t, t.input(n, BFLOAT16)))


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        # Square, mean, product, weight: 4 FLOPs per element; eps and root: 2 per token. Squares
        # beside the fp32 copy; the product beside both after the root: 8 bytes per element.
        (
            "rms_norm",
            {
                "work.vector_flops": "4 B T d + 2 B T", "params": "d",
                "peak_bytes": "8 B T d + 8 B T",
            },
        ),
        ("swiglu", {"work.macs": "3 B T d f", "params": "3 d f"}),
        # q, k, v and output; two products of T x T; half a product for each angle.
        (
            "attention",
            {
                "work.macs": "2 B D H T^2 + 4 B D H T d + 1/2 B D T",
                "cache_bytes": "4 B D H T",
            },
        ),
    ],
)  # fmt: skip
def test_formulas_are_written_as_by_hand(name, figures):
    call = formulas_of(name, NUMBERS)
    assert {figure: str(attrgetter(figure)(call)) for figure in figures} == figures


sizes = st.fixed_dictionaries({
    name: st.integers(1, 6).map(lambda n: 2 * n) if name in "DP" else st.integers(2, 9)
    for name in NUMBERS
})  # fmt: skip


@pytest.mark.parametrize("name", list(forwards(NUMBERS)))
@settings(max_examples=20)
@given(numbers=sizes)
def test_every_figure_has_the_value_of_the_forward_on_numbers(name, numbers):
    numbers["k"] = min(numbers["k"], numbers["E"])
    call = formulas_of(name, numbers)
    n, forward = forwards(numbers)[name]
    t = Tape(BFLOAT16)
    forward(t, t.input(n, BFLOAT16))
    found = {name: Work(*map(value_of, work)) for name, work in call.operators.items()}
    assert {name: work for name, work in found.items() if any(work)} == work_by(
        t.kernels, "operator"
    )
    assert tuple(map(value_of, call.work)) == total_work(kernel.total for kernel in t.kernels)
    assert value_of(call.params) == sum(n for *_, n in dict.fromkeys(t.weights))
    assert value_of(call.peak_bytes) == t.peak.nbytes
    # The text of a formula has the same value as the figure.
    values = Values(numbers)
    for size in (*call.work, call.params, call.peak_bytes, call.cache_bytes):
        assert values.of(Polynomial.of(size)) == value_of(size)


def decisions_of(call):
    """What the forward asked of its sizes, as text, without what compares with one."""
    return {str(each) for each in call.asked if each.right != 1}


@pytest.mark.parametrize(("forward", "part"), [(sam, "sam"), (clip, "clip")])
@settings(max_examples=30)
@given(N=st.integers(1, 4), M=st.integers(1, 4), q=st.integers(1, 24), other=st.integers(1, 24))
def test_a_formula_holds_wherever_its_conditions_do(forward, part, N, M, q, other):
    """Formulas of one size of view, evaluated for another that gives the same answers."""

    def run(N, q):
        sizes, values = named_part(part, getattr(PUBLISHED, part), N=N, q=q)
        c, t = sizes.dimensions, FormulaTape(BFLOAT16)
        side = 64 * values["q"] if part == "sam" else values["q"]
        pixels = t.input(values["N"] * side * side * 3, BFLOAT16)
        return t.run(forward, pixels, values["N"], side, c), sizes.values

    (ours, _), (theirs, values) = run(N, q), run(M, other)
    if decisions_of(ours) == decisions_of(theirs):
        evaluate = Values(values)
        for mine, right in zip(ours.work[:3], theirs.work[:3], strict=True):
            assert evaluate.of(Polynomial.of(mine)) == value_of(right)
        assert evaluate.of(Polynomial.of(ours.params)) == value_of(theirs.params)


def test_a_page_of_formulas_unifies_what_is_related():
    part, sizes = named_part("clip", PUBLISHED.clip, N=1, q=16)
    H, q = part.dimensions.heads, sizes["q"]
    D = part.dimensions.width // H
    assert written(4 * H * D * H * D + 2 * H * D * D, part.relations) == "4 d^2 + 2 d D"
    assert written(sizes["N"] * (q * q + 1) * (q * q + 1) * H, part.relations) == "N T^2 H"
    part, sizes = named_part("sam", PUBLISHED.sam, N=1, q=16)
    assert written(16 * sizes["q"] * sizes["q"] + sizes["q"], part.relations) == "g^2 + 1/4 g"


def test_half_of_a_size_that_may_be_odd_is_refused():
    with pytest.raises(ArithmeticError, match="n is not a multiple of 2"):
        Polynomial.size("n") // 2
    even = Polynomial.size("n", multiple=2)
    assert str(even // 2 + even // 2) == "n"
    with pytest.raises(ArithmeticError, match="3 n is not a multiple of 4"):
        3 * even // 4
    # An example knows more: what holds for its value is noted.
    Example.decisions = noted = []
    try:
        assert str(Example.named("n", 6) // 2) == "1/2 n"
        assert [each.relation for each in noted] == ["is a multiple of"]
        assert str(Example.named("n", 7) // 2) == "floor(n / 2)"
        assert (Example.named("n", 7) // 2).value == 3
        assert str((4 * Example.named("q", 5) - 1) // 2) == "2 q - 1"
    finally:
        Example.decisions = None


# --- polynomials

A, B = Polynomial.size("a", least=3), Polynomial.size("b", least=3)
SOME = Polynomial.size("some", least=0)
PART = Polynomial.size("part", most=A * B)
PRODUCTS = {
    "1": Polynomial.of(1), "a": A, "b": B, "ab": A * B, "aab": A * A * B, "part": PART,
    "part a": PART * A, "some": SOME, "some a": SOME * A,
}  # fmt: skip

SIDES = st.integers(3, 400)
DRAWN = {"a": SIDES, "b": SIDES, "part": st.floats(0, 1), "some": st.integers(0, 9)}
POLYNOMIALS = st.dictionaries(
    st.sampled_from(list(PRODUCTS)), st.integers(-50, 50).filter(bool), max_size=4
).map(lambda terms: Polynomial.sum(each * PRODUCTS[name] for name, each in terms.items()))


def values_of(a, b, part, some):
    return Values({"a": a, "b": b, "part": max(1, int(part * a * b)), "some": some})


@pytest.mark.exhaustive
@given(polynomials=st.lists(POLYNOMIALS, min_size=1, max_size=6), **DRAWN)
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
@given(x=POLYNOMIALS, y=POLYNOMIALS, number=st.integers(-5, 5), **DRAWN)
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
@given(x=POLYNOMIALS, **DRAWN)
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
