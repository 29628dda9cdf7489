"""Formulas of forwards as text: worked out by hand, and beside the same forwards on numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family.attention import Pass, attention
from dsocr_analyze.architectures.ocr_family.latent_attention import latent_attention
from dsocr_analyze.architectures.ocr_family.llama import swiglu
from dsocr_analyze.architectures.ocr_family.mixture import mixture
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.kernels import Work, total_work
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape.formula import FormulaTape
from dsocr_analyze.tape.modules import rms_norm
from dsocr_analyze.tape.polynomial import Polynomial, Values
from dsocr_analyze.tape.tape import Tape

NUMBERS = {"B": 3, "T": 7, "K": 11, "d": 24, "f": 10, "H": 4, "D": 6, "E": 8, "k": 2, "r": 5,
           "P": 4, "N": 3, "V": 9}  # fmt: skip
NAMES = {
    name: Polynomial.size(name, least=2, multiple=2 if name in "DP" else 1) for name in NUMBERS
}
NAMES["T"] = Polynomial.size("T", least=3)
NAMES["P"] = Polynomial.size("P", least=4, multiple=2)
PUBLISHED = DEFAULT.forms.dimensions(ModelDirectory.read(DEFAULT.reference).config).decoder


def forwards(of):
    """Each forward, for sizes that are names or numbers: elements of its input, and what to run."""
    plain = replace(
        PUBLISHED, hidden_size=of["d"], heads=of["H"], kv_heads=of["H"], head_dim=of["D"],
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


def taped(name, of, tape):
    n, forward = forwards(of)[name]
    forward(tape, tape.input(n, BFLOAT16))
    return tape


def test_formulas_are_written_as_by_hand():
    """Square, mean, product, weight: 4 FLOPs per element; eps and root: 2 per token."""
    norm = taped("rms_norm", NAMES, FormulaTape(BFLOAT16))
    assert str(norm.work("").vector_flops) == "4 B T d + 2 B T"
    assert str(norm.params) == "d"
    assert [row.operator for row in norm.formulas] == [
        "_to_copy", "pow", "mean", "add", "rsqrt", "mul",
    ]  # fmt: skip
    # Squares beside the fp32 copy; the product beside both after the root: 8 bytes per element.
    assert [str(level) for level in norm.highest_levels] == ["8 B T d + 8 B T"]
    mlp = taped("swiglu", NAMES, FormulaTape(BFLOAT16))
    assert str(mlp.work("").macs) == str(mlp.params * NAMES["B"] * NAMES["T"]) == "3 B T d f"
    attended = taped("attention", NAMES, FormulaTape(BFLOAT16))
    # q, k, v and output; two products of T x T; half a product for each angle.
    assert str(attended.work("").macs) == "2 B D H T^2 + 4 B D H T d + 1/2 B D T"


@pytest.mark.parametrize("name", list(forwards(NUMBERS)))
def test_a_formula_has_the_value_of_the_forward_on_numbers(name):
    formulas = taped(name, NAMES, FormulaTape(BFLOAT16))
    numbers = taped(name, NUMBERS, Tape(BFLOAT16))
    values = Values(NUMBERS)
    ours: dict[tuple[str, str], Work] = {}
    for kernel in numbers.kernels:
        # The formulas have one row for all experts.
        path = ".".join(part for part in kernel.path.split(".") if not part.isdigit())
        key = path, kernel.operator
        ours[key] = ours.get(key, Work()).plus(kernel.total)
    found = {(row.path, row.operator): Work(*map(values.of, row.work)) for row in formulas.formulas}
    assert found == ours
    whole = total_work(kernel.total for kernel in numbers.kernels)
    assert values.of(formulas.work("").macs) == whole.macs
    assert values.of(formulas.params) == sum(n for *_, n in dict.fromkeys(numbers.weights))
    assert max(values.of(level) for level in formulas.highest_levels) == numbers.peak.nbytes


def test_half_of_a_size_that_may_be_odd_is_refused():
    with pytest.raises(ArithmeticError, match="n is not a multiple of 2"):
        Polynomial.size("n") // 2
    even = Polynomial.size("n", multiple=2)
    assert str(even // 2 + even // 2) == "n"
    with pytest.raises(ArithmeticError, match="3 n is not a multiple of 4"):
        3 * even // 4
