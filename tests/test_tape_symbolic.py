"""A tape on symbols: sums, levels of memory and repetition, by hand and beside integers."""

import random

import pytest

from dsocr_analyze.dtypes import BFLOAT16, FLOAT32
from dsocr_analyze.kernels import Work, total_work
from dsocr_analyze.tape import Tape
from dsocr_analyze.tape.modules import linear, rms_norm
from dsocr_analyze.tape.polynomial import Polynomial, Values
from dsocr_analyze.tape.symbolic import SymbolicTape

N = Polynomial.size("n", least=2)


def doubled(t, x):
    """n bf16 elements to as many; a copy lives while it runs."""
    copy = t.move("clone", x)
    return t.map("add", copy)


def of(t, stage=""):
    """Levels of a stage as text, lowest first."""
    return sorted(map(str, t.levels(stage)))


def test_work_is_summed_and_levels_are_kept():
    t = SymbolicTape(BFLOAT16)
    y = t.call("child", doubled, t.input(N, BFLOAT16))
    assert t.work("") == Work(0, N, 0, 4 * N, 4 * N)
    assert of(t) == ["4 n"]
    assert t.alive == 2 * N
    del y
    t.check_nothing_is_left()


def test_only_what_may_be_the_highest_is_kept():
    t = SymbolicTape(BFLOAT16)
    for bytes_ in (3 * N, N * N, 2 * N, Polynomial.of(3)):
        t.empty(bytes_, BFLOAT16)
    assert of(t) == ["2 n^2", "6 n"]


def test_stages_are_apart():
    def model(t):
        kept = t.empty(N, BFLOAT16)
        t.call("head", doubled, t.input(N, BFLOAT16))
        t.empty(5, BFLOAT16)
        t.hold(kept)

    t = SymbolicTape(BFLOAT16, {"model.head": "head"})
    t.call("model", model)
    assert (t.work("head").macs, t.work("head").vector_flops) == (0, N)
    assert t.work("") == Work()
    assert t.work("", "head") == t.work("head")
    assert (of(t), of(t, "head")) == (["2 n + 10"], ["6 n"])


@pytest.mark.parametrize("repeat", ["again", "call"])
def test_a_copied_call_is_like_a_call(repeat):
    t = SymbolicTape(BFLOAT16)
    x, kept = t.empty(N, BFLOAT16), []
    for index in range(3):
        x = getattr(t, repeat)(f"layers.{index}", doubled, x)
        kept.append(t.empty(1, BFLOAT16))
    assert t.work("") == Work(0, 3 * N, 0, 12 * N, 12 * N)
    assert of(t) == ["6 n + 4"]
    assert t.alive == 2 * N + 6


def test_what_calls_have_done_can_be_shared_by_tapes():
    spans, runs = {}, []

    def forward(t, x):
        runs.append(1)
        return doubled(t, x)

    for _ in range(2):
        t = SymbolicTape(BFLOAT16, spans=spans)
        t.again("child", forward, t.input(7, BFLOAT16))
        assert (t.work("").vector_flops, t.levels("")) == (7, (28,))
    assert len(runs) == 1


class TestEqualChildren:
    """An output of each is 2 n bytes; while a child runs, 2 n more are alive."""

    def each(self, count, **limits):
        t = SymbolicTape(BFLOAT16)
        outputs = t.each("experts", 0, count, doubled, t.input(N, BFLOAT16), **limits)
        return t, outputs

    def test_as_many_as_a_number(self):
        t, outputs = self.each(5)
        assert t.work("").vector_flops == 5 * N
        assert t.alive == sum(each.nbytes for each in outputs) == 10 * N
        assert of(t) == ["12 n"]
        assert self.each(0)[1] == []

    def test_as_many_as_a_size(self):
        k = Polynomial.size("k")
        t, _ = self.each(k, least=1)
        assert t.work("").bytes_read == 4 * k * N
        assert t.alive == 2 * k * N
        assert of(t) == ["2 k n + 2 n"]

    @pytest.mark.parametrize(("count", "level"), [(0, 0), (1, 4 * 7), (3, 2 * 2 * 7 + 4 * 7)])
    def test_none_reach_no_level(self, count, level):
        t, _ = self.each(Polynomial.size("k", least=0, most=8))
        values = Values({"k": count, "n": 7})
        assert max(values.of(each) for each in t.levels("")) == level
        assert values.of(t.alive) == 2 * count * 7


def test_turns_are_noted_once_for_all():
    k, t, kept = Polynomial.size("k", least=2), SymbolicTape(BFLOAT16), []
    skipped = []
    for each in t.turns(k):
        skipped.append(each)
        kept.append(doubled(t, t.input(N, BFLOAT16)))
    assert skipped == [0, k - 2]
    assert t.work("").vector_flops == k * N
    assert of(t) == ["6 n"]
    doubled(t, t.input(N, BFLOAT16))
    assert t.work("").vector_flops == k * N + N
    unknown = Polynomial.size("k")
    with pytest.raises(ArithmeticError, match="depends on the sizes"):
        list(t.turns(unknown))


class TestDerivedSizes:
    def test_of_numbers_is_a_number(self):
        assert SymbolicTape(BFLOAT16).derived("half", lambda n: n // 2, 9) == 4

    def test_the_same_one_is_one_size(self):
        t = SymbolicTape(BFLOAT16)
        half, again, other = (t.derived("half", lambda n: n // 2, size) for size in (N, N, N + 1))
        assert (str(half), str(again), str(other)) == ("half", "half", "half'")
        assert Values({"n": 9}).of(half + 10 * other) == 4 + 10 * 5


def test_it_declares_no_weights_and_idle_children_cost_nothing():
    t = SymbolicTape(BFLOAT16)
    t.idle("child", linear, t.input(N, BFLOAT16), N, 3, 5)
    t.idle_each("experts", 0, N, linear, t.input(N, BFLOAT16), N, 3, 5)
    assert (t.work(""), t.levels(""), t.weights) == (Work(), (0,), [])
    t.call("child", linear, t.input(3 * N, BFLOAT16), N, 3, 5)
    assert t.work("").macs == 15 * N
    assert t.weights == []


def network(t, x, n, k):
    """Some of everything: layers, experts that may be none, turns, a copied call."""
    x = t.again("first", rms_norm, x, n, 8)
    more = t.derived("more", lambda k: k // 3, k, most=k)
    routed = t.each("experts", 0, more, rms_norm, x, n, 8)
    routed += t.each("experts", more, more + k, linear, x, n, 8, 5, least=1)
    kept = []
    for skipped in t.turns(k):
        kept.append(t.empty(skipped * n, FLOAT32))
        kept.append(t.call("turn", doubled, x))
    x = t.again("second", rms_norm, x, n, 8)
    t.hold(*routed)
    return t.cat(x, *routed)


def test_symbols_say_what_integers_say():
    n_, k_ = N, Polynomial.size("k", least=2)
    symbols = SymbolicTape(BFLOAT16)
    network(symbols, symbols.input(8 * n_, BFLOAT16), n_, k_)
    draw = random.Random(3)
    for _ in range(40):
        n, k = draw.randint(2, 40), draw.randint(2, 9)
        integers = Tape(BFLOAT16)
        network(integers, integers.input(8 * n, BFLOAT16), n, k)
        values = Values({"n": n, "k": k})
        expected = total_work(kernel.total for kernel in integers.kernels)
        found = Work(*(values.of(count) for count in symbols.work("")))
        assert found == expected
        levels = [values.of(level) for level in symbols.levels("")]
        assert max(levels) == integers.peak.nbytes
