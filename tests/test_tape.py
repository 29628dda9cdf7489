"""The tape itself: calls, repetition, lifetimes and idle modules, by hand and by chance."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from taped import alone, expanded, features
from taped_passes import WholeTape

from dsocr_analyze.dtypes import BFLOAT16, FLOAT32
from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import Work, merged, total_work
from dsocr_analyze.tape import ArrayTape, Operand, Tape
from dsocr_analyze.tape.modules import linear, rms_norm
from dsocr_analyze.tape.polynomial import Polynomial, Values
from dsocr_analyze.tape.symbolic import SymbolicTape

N, K = Polynomial.size("n", least=2), Polynomial.size("k", least=2)
SOME = Polynomial.size("some", least=0, most=8)


@pytest.fixture
def t():
    return Tape(BFLOAT16)


def paths(tape):
    return [(kernel.path, kernel.operator, kernel.calls) for kernel in tape.kernels]


def doubled(t, x):
    """Twice as many elements; a copy is alive beside them."""
    copy = t.move("clone", x)
    output = t.cat(copy, x)
    t.hold(copy)
    return output


def rebound(t, x):
    x = t.move("clone", x)
    return t.move("clone", x)


# --- integers


class TestLifetimes:
    def test_a_tensor_lives_as_long_as_a_name_or_a_view_refers_to_it(self, t):
        x = t.empty(8, BFLOAT16)
        y, part = x, t.view(t.view(x, 4), 2)
        del x, y
        assert (t.alive, part.n, part.nbytes) == (16, 2, 4)
        with pytest.raises(RuntimeError, match="16 bytes of tensors are still alive"):
            t.check_nothing_is_left()
        del part
        t.check_nothing_is_left()

    def test_inputs_weights_and_the_hosts_tensors_are_no_activations(self, t):
        held = t.input(5, FLOAT32), t.weight(5), t.host(5, FLOAT32), t.view(t.weight(6), 3)
        assert all(isinstance(each, Operand) and each.tape is each.base is None for each in held)
        assert (t.alive, t.peak) == (0, Peak(0, ""))

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
    def test_the_peak_is_what_is_alive_at_once(self, t, forward, peak):
        output = forward(t)
        assert (t.peak, t.alive, output.n) == (peak, 20, 10)


class TestCalls:
    def test_a_child_has_its_path_and_the_stage_that_begins_at_it(self):
        def model(t):
            t.call("eye", linear, features(t, 6), 2, 3, 4)
            t.move("ones", n=1, dtype=FLOAT32)

        t = Tape(BFLOAT16, {"model.eye": "vision"}, "rest")
        t.call("model", model)
        assert t.calls == [("model", "rest", 1), ("model.eye", "vision", 1)]
        found = [(each.path, each.stage) for each in t.kernels]
        assert found == [("model.eye", "vision"), ("model", "rest")]
        assert (t.weights, t.path, t.stage) == ([("model.eye", "weight", 12)], "", "rest")

    def test_an_idle_module_has_weights_alone(self, t):
        t.idle("spare", linear, features(t, 6), 2, 3, 4)
        t.idle("experts", linear, features(t, 6), 2, 3, 4, indices=(2, 4))
        assert t.weights == [(path, "weight", 12) for path in ("spare", "experts.2", "experts.3")]
        assert (t.kernels, t.calls, t.alive, t.peak) == ([], [], 0, Peak(0, ""))

    def test_equal_children_are_numbered(self, t):
        outputs = t.each("layers", 1, 3, doubled, t.input(3, BFLOAT16))
        assert [output.n for output in outputs] == [6, 6]
        operators = [(f"layers.{index}", name, 1) for index in (1, 2) for name in ("clone", "cat")]
        assert paths(t) == operators

    @pytest.mark.parametrize("count", [1, 2, 3, 7])
    @pytest.mark.parametrize("repeat", ["call", "again"])
    def test_turns_count_for_all_and_the_last_meets_what_others_left(self, t, count, repeat):
        kept = []
        for skipped in t.turns(count):
            if skipped:
                kept.append(t.empty(skipped * 6, BFLOAT16))
            kept.append(getattr(t, repeat)("turn", doubled, t.input(3, BFLOAT16)))
        assert paths(t) == [("turn", "clone", count), ("turn", "cat", count)]
        assert t.calls == [("turn", "", count)]
        assert (t.alive, t.peak) == (count * 12, Peak(count * 12 + 6, "turn"))

    def test_memory_alone_is_followed_without_records(self):
        t = Tape(BFLOAT16, records=False)
        t.call("child", linear, t.empty(6, BFLOAT16), 2, 3, 4, bias=True)
        assert (t.kernels, t.calls, t.weights, t.savings) == ([], [], [], [])
        assert t.peak == Peak(12 + 16, "child")

    def test_another_size_type_or_option_is_another_call(self, t):
        for dtype, bias in [(BFLOAT16, False), (BFLOAT16, True), (FLOAT32, True)]:
            t.again("layer", linear, t.input(6, dtype), 2, 3, 4, bias=bias)
        assert [kernel.work.bytes_read for kernel in t.kernels] == [36, 44, 56]


# --- by chance


@dataclasses.dataclass(frozen=True)
class Tree:
    """A module: its operators, how often it calls each child, and names that it holds."""

    operators: tuple[int, ...]
    children: tuple[tuple[Tree, int, bool], ...]
    holds: bool


def tree(draw, depth=3):
    number = draw.randint(0, 2) if depth else 0
    children = tuple(
        (tree(draw, depth - 1), draw.randint(1, 3), draw.random() < 0.3) for _ in range(number)
    )
    operators = tuple(draw.randint(0, 5) for _ in range(draw.randint(1, 3)))
    return Tree(operators, children, draw.random() < 0.5)


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
    held = []
    for kind in module.operators:
        x = OPERATORS[kind](t, x)
        held += [x] if module.holds else []
    for index, (child, count, in_turns) in enumerate(module.children):
        kept = []
        for number in t.turns(count) if in_turns else range(count):
            if in_turns and number:  # of turns that are skipped
                kept.append(t.empty(number * kept[0].n, t.dtype))
            if in_turns:
                kept.append(t.again(f"{index}", forward, x, child))
            else:
                x = t.again(f"{index}.{number}", forward, x, child)
        x = t.cat(x, *kept) if kept else x
    t.hold(*held)
    return t.move("clone", x)


def counted(calls):
    return expanded(merged(calls))


@settings(max_examples=40)
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


@settings(max_examples=40)
@given(seed=st.integers(0, 10**9), n=st.integers(2, 10**6))
def test_on_symbols_a_forward_says_what_it_says_on_integers(seed, n):
    module = tree(random.Random(seed))
    symbols, integers = SymbolicTape(BFLOAT16), Tape(BFLOAT16)
    forward(symbols, symbols.empty(N, BFLOAT16), module)
    forward(integers, integers.empty(n, BFLOAT16), module)
    assert_evaluated(symbols, integers, n=n)


def assert_evaluated(symbols, integers, **sizes):
    """Sums and the highest level on symbols have the values of a tape on integers."""
    of = Values(sizes).of
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


class TestSymbols:
    def test_only_what_may_be_the_highest_is_kept(self, s):
        for n in (3 * N, N * N, 2 * N, Polynomial.of(3)):
            s.empty(n, BFLOAT16)
        assert levels(s) == ["2 n^2", "6 n"]

    def test_stages_are_apart(self):
        def model(t):
            kept = t.empty(N, BFLOAT16)
            t.call("head", copied, t.input(N, BFLOAT16))
            t.empty(5, BFLOAT16)
            t.hold(kept)

        t = SymbolicTape(BFLOAT16, {"model.head": "head"})
        t.call("model", model)
        head = Work(0, N, 0, 4 * N, 4 * N)
        assert (t.work("head"), t.work(""), t.work("", "head")) == (head, Work(), head)
        assert (levels(t), levels(t, "head")) == (["2 n + 10"], ["6 n"])

    def test_what_calls_have_done_can_be_shared_by_tapes(self):
        spans, runs = {}, []

        def forward(t, x):
            runs.append(1)
            return copied(t, x)

        for _ in range(2):
            t = SymbolicTape(BFLOAT16, spans=spans)
            t.again("child", forward, t.input(7, BFLOAT16))
            assert (t.work("").vector_flops, t.levels("")) == (7, (28,))
        assert len(runs) == 1

    @pytest.mark.parametrize(
        ("count", "limits", "work", "alive", "level"),
        [
            (5, {}, 5 * N, 10 * N, ["12 n"]),
            (K, {"least": 1}, K * N, 2 * K * N, ["2 k n + 2 n"]),
            (0, {}, 0, 0, ["0"]),
        ],
    )
    def test_of_equal_children_the_last_meets_the_others(
        self, s, count, limits, work, alive, level
    ):
        """An output of n elements is 2 n bytes; while a child runs, 2 n more are alive."""
        outputs = s.each("experts", 0, count, copied, s.input(N, BFLOAT16), **limits)
        assert s.work("").vector_flops == work
        assert s.alive == sum(each.nbytes for each in outputs) == alive
        assert levels(s) == level

    @pytest.mark.parametrize(("count", "level"), [(0, 0), (1, 4 * 7), (3, 2 * 2 * 7 + 4 * 7)])
    def test_no_children_reach_no_level(self, s, count, level):
        kept = s.each("x", 0, SOME, copied, s.input(N, BFLOAT16))
        of = Values({"some": count, "n": 7}).of
        assert (max(map(of, s.levels(""))), of(s.alive)) == (level, 2 * count * 7)
        s.hold(*kept)

    def test_turns_of_an_unknown_number_are_refused(self, s):
        with pytest.raises(ArithmeticError, match="depends on the sizes"):
            list(s.turns(Polynomial.size("unknown")))

    def test_a_derived_size_is_one_size_and_of_numbers_a_number(self, s):
        half, again, other, number = (
            s.derived("half", lambda n: n // 2, size) for size in (N, N, N + 1, 9)
        )
        assert (str(half), str(again), str(other), number) == ("half", "half", "half'", 4)
        assert Values({"n": 9}).of(half + 10 * other) == 4 + 10 * 5

    def test_it_declares_no_weights(self, s):
        s.idle("child", linear, s.input(N, BFLOAT16), N, 3, 5)
        s.idle("experts", linear, s.input(N, BFLOAT16), N, 3, 5, indices=(0, N))
        s.call("child", linear, s.input(3 * N, BFLOAT16), N, 3, 5)
        assert (s.work("").macs, s.weights) == (15 * N, [])


def network(t, x, n, k):
    """Some of everything: layers, experts that may be none, turns, a copied call."""
    x = t.again("first", rms_norm, x, n, 8)
    more = t.derived("more", lambda k: k // 3, k, most=k)
    routed = t.each("experts", 0, more, rms_norm, x, n, 8)
    routed += t.each("experts", more, more + k, linear, x, n, 8, 5, least=1)
    kept = []
    for skipped in t.turns(k):
        kept.append(t.empty(skipped * n, FLOAT32))
        kept.append(t.call("turn", copied, x))
    x = t.again("second", rms_norm, x, n, 8)
    t.hold(*routed)
    return t.cat(x, *routed)


def test_symbols_say_what_integers_say():
    symbols, draw = SymbolicTape(BFLOAT16), random.Random(3)
    network(symbols, symbols.input(8 * N, BFLOAT16), N, K)
    for _ in range(20):
        n, k = draw.randint(2, 40), draw.randint(2, 9)
        integers = Tape(BFLOAT16)
        network(integers, integers.input(8 * n, BFLOAT16), n, k)
        assert_evaluated(symbols, integers, n=n, k=k)
