"""The tape: calls, lifetimes, operators, sizes as symbols and formulas, by hand and by chance."""

import random
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from taped_passes import WholeTape
from test_tape_modules import alone, expanded, features

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.deepseek_ocr import clip
from dsocr_analyze.architectures.ocr_family.attention import Pass, attention
from dsocr_analyze.architectures.ocr_family.decoder import latent_attention, mixture
from dsocr_analyze.architectures.ocr_family.named_sizes import named_part
from dsocr_analyze.architectures.ocr_family.vision import sam
from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    INT64,
    Attention,
    Elements,
    Gemm,
    Rows,
    Work,
    merged,
    total_work,
    work_by,
)
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape import ArrayTape, Tape, ceil_log2
from dsocr_analyze.tape.formula import Example, FormulaTape, value_of, written
from dsocr_analyze.tape.modules import fused_attention, linear, rms_norm, swiglu
from dsocr_analyze.tape.polynomial import (
    Polynomial,
    Symbol,
    SymbolicTape,
    Values,
    highest,
    worth_comparing,
)

N, K = Polynomial.size("n", least=2), Polynomial.size("k", least=2)


@pytest.fixture
def t():
    return Tape(BFLOAT16)


def rebound(t, x):
    x = t.move("clone", x)
    return t.move("clone", x)


# --- lifetimes -------------------------------------------------------------------------------


def test_a_tensor_lives_as_long_as_a_name_or_a_view_refers_to_it(t):
    x = t.empty(8, BFLOAT16)
    y, part = x, t.view(t.view(x, 4), 2)
    del x, y
    assert (t.alive, part.n, part.nbytes) == (16, 2, 4)
    with pytest.raises(RuntimeError, match="16 bytes of tensors are still alive"):
        t.check_nothing_is_left()
    del part
    t.check_nothing_is_left()


@pytest.mark.parametrize(
    ("forward", "peak"),
    [
        # Of input, sum and product, two at a time.
        (lambda t: t.map("mul", t.map("add", t.empty(10, BFLOAT16))), Peak(40, "")),
        (lambda t: t.map("mul", x := t.empty(10, BFLOAT16), into=x), Peak(20, "")),
        # A call holds its inputs.
        (lambda t: t.call("child", rebound, t.empty(10, BFLOAT16)), Peak(60, "child")),
    ],
    ids=["intermediate result", "in place", "call"],
)
def test_the_peak_is_what_is_alive_at_once(t, forward, peak):
    output = forward(t)
    assert (t.peak, t.alive, output.n) == (peak, 20, 10)


# --- calls -----------------------------------------------------------------------------------


def test_a_child_has_its_path_and_the_stage_that_begins_at_it():
    def model(t):
        t.call("eye", linear, features(t, 6), 2, 3, 4)
        t.move("ones", n=1, dtype=FLOAT32)

    t = Tape(BFLOAT16, {"model.eye": "vision"}, "rest")
    t.call("model", model)
    assert t.calls == [("model", "rest", 1), ("model.eye", "vision", 1)]
    found = [(each.path, each.stage) for each in t.kernels]
    assert found == [("model.eye", "vision"), ("model", "rest")]
    assert (t.weights, t.path, t.stage) == ([("model.eye", "weight", 12)], "", "rest")


def test_another_size_type_or_option_is_another_call(t):
    for dtype, bias in [(BFLOAT16, False), (BFLOAT16, True), (FLOAT32, True)]:
        t.again("layer", linear, t.input(6, dtype), 2, 3, 4, bias=bias)
    assert [kernel.work.bytes_read for kernel in t.kernels] == [36, 44, 56]


# --- by chance


def tree(draw, depth=3):
    """A module: its operators, how often it calls each child in which way, whether it holds names.

    Children are called one after the other, or in turns.
    """
    children = tuple(
        (tree(draw, depth - 1), draw.randint(1, 3), draw.random() < 0.3)
        for _ in range(draw.randint(0, 2) if depth else 0)
    )
    operators = tuple(draw.randint(0, 5) for _ in range(draw.randint(1, 3)))
    return operators, children, draw.random() < 0.5


OPERATORS = (
    lambda t, x: t.map("mul", x, t.weight(7)),
    lambda t, x: t.cat(x, t.move("ones", n=3, dtype=t.dtype)),
    lambda t, x: t.view(x, x.n),
    lambda t, x: t.cast(t.softmax(x, x.n, 1), t.dtype),
    lambda t, x: t.idle("spare", linear, x, 1, 2, 3) or x,
    lambda t, x: t.skippable(x.n) or x,
)


def forward(t, x, module):
    """Runs a tree's module on any number of elements; some children in turns."""
    (operators, children, holds), held = module, []
    for kind in operators:
        x = OPERATORS[kind](t, x)
        held += [x] * holds
    for index, (child, count, in_turns) in enumerate(children):
        kept = []
        for number in t.turns(count) if in_turns else range(count):
            if not in_turns:
                x = t.again(f"{index}.{number}", forward, x, child)
                continue
            if number:  # of turns that are skipped
                kept.append(t.empty(number * kept[0].n, t.dtype))
            kept.append(t.again(f"{index}", forward, x, child))
        x = t.cat(x, *kept) if kept else x
    return t.hold(t.move("clone", x), *held)


def counted(calls):
    return expanded(merged(calls))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9), n=st.integers(1, 10**6))
def test_copying_and_counting_say_what_running_every_call_and_turn_says(seed, n):
    module = tree(random.Random(seed))

    def run(kind=Tape, size=n, **options):
        return alone(lambda t: forward(t, t.empty(size, t.dtype), module), kind=kind, **options)

    whole, spans = run(WholeTape), {}
    assert run(records=False, spans=spans).peak == whole.peak
    for copied in (run(), run(spans=spans), run(spans=spans)):
        assert counted(copied.kernels) == counted(whole.kernels)
        for name in ("peak", "alive"):
            assert getattr(copied, name) == getattr(whole, name)
        assert {*copied.weights} == {*whole.weights}
        assert sum(copied.savings) == sum(whole.savings)
        assert sum(times for *_, times in copied.calls) == len(whole.calls)
    assert run(size=n + 1, spans=spans).weights == copied.weights
    # On arrays equal calls are not copied, and a peak has no path.
    arrays = run(ArrayTape)
    assert (counted(arrays.kernels), arrays.peak) == (
        counted(whole.kernels), Peak(whole.peak.nbytes, ""),
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9), n=st.integers(2, 10**6))
def test_on_symbols_a_forward_says_what_it_says_on_integers(seed, n):
    module = tree(random.Random(seed))
    symbols, integers = SymbolicTape(BFLOAT16), Tape(BFLOAT16)
    forward(symbols, symbols.empty(N, BFLOAT16), module)
    forward(integers, integers.empty(n, BFLOAT16), module)
    of = Values({"n": n}).of
    found = Work(*map(of, symbols.work("")))
    assert found == total_work(kernel.total for kernel in integers.kernels)
    assert max(map(of, symbols.levels(""))) == integers.peak.nbytes


# --- symbols


def copied(t, x):
    """n bf16 elements to as many; a copy lives while it runs."""
    copy = t.move("clone", x)
    return t.map("add", copy)


def levels(t, stage=""):
    """Levels of a stage as text, lowest first."""
    return sorted(map(str, t.levels(stage)))


@pytest.fixture
def s():
    return SymbolicTape(BFLOAT16)


@pytest.mark.parametrize(
    ("count", "limits", "work", "alive", "level"),
    [
        (5, {}, 5 * N, 10 * N, ["12 n"]),
        (K, {"least": 1}, K * N, 2 * K * N, ["2 k n + 2 n"]),
        (0, {}, 0, 0, ["0"]),
    ],
)
def test_of_equal_children_the_last_meets_the_others(s, count, limits, work, alive, level):
    """An output of n elements is 2 n bytes; while a child runs, 2 n more are alive."""
    outputs = s.each("experts", 0, count, copied, s.input(N, BFLOAT16), **limits)
    assert s.work("").vector_flops == work
    assert s.alive == sum(each.nbytes for each in outputs) == alive
    assert levels(s) == level


def test_a_derived_size_is_one_size_and_of_numbers_a_number(s):
    half, again, other, number = (
        s.derived("half", lambda n: n // 2, size) for size in (N, N, N + 1, 9)
    )
    assert (str(half), str(again), str(other), number) == ("half", "half", "half'", 4)
    assert Values({"n": 9}).of(half + 10 * other) == 4 + 10 * 5


# --- operators, each against its record by hand, and on sizes that are symbols --------------------


def of(t, n, dtype=BFLOAT16):
    return t.input(n, dtype)


def record(kind, operator, dimensions, work, dtype=BFLOAT16, output=None):
    return kind, operator, dimensions, dtype.name, (output or dtype).name, Work(*work)


def moved(operator, n, read, written, dtype=BFLOAT16, output=None):
    return record("movement", operator, Elements(n), (0, 0, 0, read, written), dtype, output)


def attended(t, *, masked=False):
    """2 sequences, 4 heads over 2, 3 queries, 7 keys, features of 5 and 6."""
    shape = Attention(2, 4, 2, 3, 7, 5, 6, masked=masked)
    inputs = [2 * 4 * 3 * 5, 2 * 2 * 7 * 5, 2 * 2 * 7 * 6, *([168] if masked else [])]
    return fused_attention(t, "flash_attention", shape, *(of(t, n) for n in inputs))


# Case, call, records by hand, elements and type of its output.
CASES = {
    "product": (
        lambda t: t.product("matmul", Gemm(2, 3, 5, 7), of(t, 42), of(t, 35)),
        [record("gemm", "matmul", Gemm(2, 3, 5, 7), (210, 0, 30, 2 * (42 + 35), 2 * 30))],
        (30, BFLOAT16),
    ),
    "product with a bias": (
        lambda t: t.product("linear", Gemm(1, 5, 4, 3), of(t, 15), of(t, 12), t.weight(4, "bias")),
        [record("gemm", "linear", Gemm(1, 5, 4, 3), (60, 20, 20, 2 * (15 + 12 + 4), 2 * 20))],
        (20, BFLOAT16),
    ),
    "product beyond a float": (  # odd counts above 2^53 keep their last digit
        lambda t: t.product("mm", Gemm(1, 2**53 + 1, 1, 3), of(t, 0), of(t, 3)),
        [
            record(
                "gemm", "mm", Gemm(1, 2**53 + 1, 1, 3),
                (3 * 2**53 + 3, 0, 2**53 + 1, 6, 2**54 + 2),
            ),
        ],
        (2**53 + 1, BFLOAT16),
    ),
    "fused attention": (  # 168 scores
        attended,
        [
            record(
                "attention", "flash_attention", Attention(2, 4, 2, 3, 7, 5, 6),
                (168 * 11, 168 * 6, 144, 2 * (120 + 28 * 11), 2 * 144),
            ),
        ],
        (144, BFLOAT16),
    ),
    "fused attention with a mask": (
        lambda t: attended(t, masked=True),
        [
            record(
                "attention", "flash_attention", Attention(2, 4, 2, 3, 7, 5, 6, masked=True),
                (168 * 11, 168 * 7, 144, 2 * (120 + 28 * 11 + 168), 2 * 144),
            ),
        ],
        (144, BFLOAT16),
    ),
    "elementwise": (
        lambda t: t.map("add", of(t, 10), of(t, 10)),
        [record("elementwise", "add", Elements(10), (0, 10, 0, 40, 20))],
        (10, BFLOAT16),
    ),
    "elementwise of another type": (
        lambda t: t.map("ge", of(t, 10, INT64), output=BOOL),
        [record("elementwise", "ge", Elements(10), (0, 10, 0, 80, 10), INT64, BOOL)],
        (10, BOOL),
    ),
    "elementwise of another kind": (
        lambda t: t.map("mul", of(t, 10), of(t, 2), flops=2, kind="activation"),
        [record("activation", "mul", Elements(10), (0, 20, 0, 24, 20))],
        (10, BFLOAT16),
    ),
    "elementwise with expanded inputs": (
        lambda t: t.map("lt", of(t, 3, INT64), of(t, 3, INT64), n=9, output=BOOL),
        [record("elementwise", "lt", Elements(9), (0, 9, 0, 48, 9), INT64, BOOL)],
        (9, BOOL),
    ),
    "reduction": (
        lambda t: t.reduce("all", of(t, 12, BOOL), 3, 4),
        [record("reduction", "all", Rows(3, 4), (0, 12, 0, 12, 3), BOOL)],
        (3, BOOL),
    ),
    "rows": (
        lambda t: t.rows("routing", "topk", of(t, 12, FLOAT32), Rows(3, 4), (6, FLOAT32),
                         (6, INT64), flops=12)[0],
        [record("routing", "topk", Rows(3, 4), (0, 12, 0, 48, 6 * 12), FLOAT32)],
        (6, FLOAT32),
    ),
    "softmax": (
        lambda t: t.softmax(of(t, 12, FLOAT32), 3, 4),
        [record("softmax", "softmax", Rows(3, 4), (0, 60, 0, 48, 48), FLOAT32)],
        (12, FLOAT32),
    ),
    "softmax in bf16 casts first": (
        lambda t: t.softmax(of(t, 12), 3, 4),
        [
            moved("_to_copy", 12, 24, 48, BFLOAT16, FLOAT32),
            record("softmax", "softmax", Rows(3, 4), (0, 60, 0, 48, 48), FLOAT32),
        ],
        (12, FLOAT32),
    ),
    "softmax in fp16 is the one kernel that reads it as it is": (
        lambda t: t.softmax(of(t, 12, FLOAT16), 3, 4),
        [record("softmax", "softmax", Rows(3, 4), (0, 60, 0, 24, 48), FLOAT16, FLOAT32)],
        (12, FLOAT32),
    ),
    "copy": (lambda t: t.move("clone", of(t, 10)), [moved("clone", 10, 20, 20)], (10, BFLOAT16)),
    "range": (
        lambda t: t.move("arange", n=10, dtype=INT64),
        [moved("arange", 10, 0, 80, INT64)],
        (10, INT64),
    ),
    "cast": (
        lambda t: t.cast(of(t, 10), FLOAT32),
        [moved("_to_copy", 10, 20, 40, BFLOAT16, FLOAT32)],
        (10, FLOAT32),
    ),
    "cast to the same type": (lambda t: t.cast(of(t, 10), BFLOAT16), [], (10, BFLOAT16)),
    "concatenation": (
        lambda t: t.cat(of(t, 3), of(t, 4)), [moved("cat", 7, 14, 14)], (7, BFLOAT16),
    ),
    "gathered rows": (
        lambda t: t.gather("index", of(t, 3, INT64), 12, BFLOAT16),
        [moved("index", 12, 24 + 24, 24)],
        (12, BFLOAT16),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_the_record_by_hand_and_its_output(t, name):
    call, records, output = CASES[name]
    found = call(t)
    assert [kernel[:6] for kernel in t.kernels] == records
    assert (found.n, found.dtype) == output
    assert t.alive == (found.nbytes if records else 0)


# --- formulas of forwards: by hand, and beside forwards on numbers --------------------------------

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
@settings(max_examples=6, deadline=None)
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
@settings(max_examples=15, deadline=None)
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
MAYBE = Polynomial.size("some", least=0)
PART = Polynomial.size("part", most=A * B)
PRODUCTS = {
    "1": Polynomial.of(1), "a": A, "b": B, "ab": A * B, "aab": A * A * B, "part": PART,
    "part a": PART * A, "some": MAYBE, "some a": MAYBE * A,
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
        ([A, 9 * MAYBE * A], None),
        ([2 * MAYBE, 3 * MAYBE], [3 * MAYBE]),
        ([2 * MAYBE, MAYBE * A], [MAYBE * A]),
        ([A, 9 * MAYBE * A + A], [9 * MAYBE * A + A]),
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
