"""Formulas of forwards: worked out by hand, and beside the same forwards on numbers."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family.attention import Pass, attention, swiglu
from dsocr_analyze.architectures.ocr_family.clip import clip
from dsocr_analyze.architectures.ocr_family.decoder import latent_attention, mixture
from dsocr_analyze.architectures.ocr_family.named_sizes import named_part
from dsocr_analyze.architectures.ocr_family.sam import sam
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.kernels import Work, total_work, work_by
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape import Tape
from dsocr_analyze.tape.formula import Example, FormulaTape, value_of, written
from dsocr_analyze.tape.modules import rms_norm
from dsocr_analyze.tape.polynomial import Polynomial, Values

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
