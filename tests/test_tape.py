"""The tape itself: calls, repetition, lifetimes and idle modules, by hand and by chance."""

import dataclasses
import random

import pytest
from drawn_passes import drawn
from hypothesis import given
from hypothesis import strategies as st
from taped import alone, expanded, features
from taped_passes import noted, taped

from dsocr_analyze.dtypes import BFLOAT16, FLOAT32
from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import merged
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.arrays import ArrayTape
from dsocr_analyze.tape.modules import linear


@pytest.fixture
def t():
    return Tape(BFLOAT16)


def paths(tape):
    return [(kernel.path, kernel.operator) for kernel in tape.kernels]


def doubled(t, x):
    """Twice as many elements; a copy is alive beside them."""
    copy = t.move("clone", x)
    output = t.cat(copy, x)
    t.hold(copy)
    return output


class TestLifetimes:
    def test_a_tensor_lives_as_long_as_a_name_refers_to_it(self, t):
        x = t.empty(5, FLOAT32)
        y = x
        del x
        assert t.alive == 20
        del y
        assert t.alive == 0

    def test_a_view_keeps_the_memory_that_it_lies_in_and_takes_none(self, t):
        x = t.empty(8, BFLOAT16)
        part = t.view(t.view(x, 4), 2)
        del x
        assert (t.alive, part.n, part.nbytes) == (16, 2, 4)
        del part
        assert t.alive == 0

    def test_inputs_weights_and_the_hosts_tensors_are_no_activations(self, t):
        held = t.input(5, FLOAT32), t.weight(5), t.host(5, FLOAT32), t.view(t.weight(6), 3)
        assert all(isinstance(each, Operand) and each.tape is each.base is None for each in held)
        assert (t.alive, t.peak) == (0, Peak(0, ""))

    def test_an_intermediate_result_is_gone_when_the_next_exists(self, t):
        y = t.map("mul", t.map("add", t.empty(10, BFLOAT16)))
        assert t.peak.nbytes == 40  # of input, sum and product, two at a time
        assert t.alive == 20
        t.hold(y)

    def test_what_is_written_in_place_takes_no_memory(self, t):
        x = t.empty(10, BFLOAT16)
        assert t.map("mul", x, into=x) is x
        assert t.peak.nbytes == 20

    def test_a_call_holds_its_inputs(self, t):
        def rebound(t, x):
            x = t.move("clone", x)
            return t.move("clone", x)

        output = t.call("child", rebound, t.empty(10, BFLOAT16))
        assert t.peak == Peak(60, "child")
        assert (t.alive, output.n) == (20, 10)

    def test_what_is_left_alive_is_an_error(self, t):
        left = t.empty(10, BFLOAT16)
        with pytest.raises(RuntimeError, match="20 bytes of tensors are still alive"):
            t.check_nothing_is_left()
        del left
        t.check_nothing_is_left()


class TestCalls:
    def test_a_child_has_its_path_and_the_stage_that_begins_at_it(self):
        def model(t):
            t.call("eye", linear, features(t, 6), 2, 3, 4)
            t.move("ones", n=1, dtype=FLOAT32)

        t = Tape(BFLOAT16, {"model.eye": "vision"}, "rest")
        t.call("model", model)
        assert t.calls == [
            ("model", "rest", 1), ("model.eye", "vision", 1),
        ]  # fmt: skip
        assert [(each.path, each.stage) for each in t.kernels] == [
            ("model.eye", "vision"), ("model", "rest"),
        ]  # fmt: skip
        assert t.weights == [("model.eye", "weight", 12)]
        assert (t.path, t.stage) == ("", "rest")

    def test_an_idle_module_has_weights_alone(self, t):
        t.idle(
            "spare",
            linear,
            t.input(6, BFLOAT16),
            2,
            3,
            4,
        )
        assert (t.weights, t.kernels, t.calls) == ([("spare", "weight", 12)], [], [])
        assert (t.alive, t.peak) == (0, Peak(0, ""))
        t.idle_each("experts", 2, 4, linear, t.input(6, BFLOAT16), 2, 3, 4)
        assert [path for path, *_ in t.weights[1:]] == ["experts.2", "experts.3"]

    def test_equal_children_are_numbered(self, t):
        outputs = t.each("layers", 1, 3, doubled, t.input(3, BFLOAT16))
        assert [output.n for output in outputs] == [6, 6]
        assert paths(t) == [
            ("layers.1", "clone"), ("layers.1", "cat"), ("layers.2", "clone"), ("layers.2", "cat"),
        ]  # fmt: skip

    @pytest.mark.parametrize("count", [1, 2, 3, 7])
    def test_turns_count_for_all_and_the_last_meets_what_others_left(self, t, count):
        kept = []
        for skipped in t.turns(count):
            if skipped:
                kept.append(t.empty(skipped * 6, BFLOAT16))
            kept.append(t.call("turn", doubled, t.input(3, BFLOAT16)))
            t.skippable(5)
        assert [(each.operator, each.calls) for each in t.kernels] == [
            ("clone", count), ("cat", count),
        ]  # fmt: skip
        assert t.calls == [("turn", "", count)]
        assert t.savings == [5 * count]
        assert t.alive == count * 12
        assert t.peak == Peak(count * 12 + 6, "turn")

    def test_memory_alone_is_followed_without_records(self):
        t = Tape(BFLOAT16, records=False)
        t.call("child", linear, t.empty(6, BFLOAT16), 2, 3, 4, bias=True)
        assert (t.kernels, t.calls, t.weights, t.savings) == ([], [], [], [])
        assert t.peak == Peak(12 + 16, "child")


class TestAgain:
    def test_its_figures_are_a_calls(self, t):
        x = t.input(3, BFLOAT16)
        first, second = (t.again(name, doubled, x) for name in ("one", "another"))
        assert paths(t) == [
            ("one", "clone"), ("one", "cat"), ("another", "clone"), ("another", "cat"),
        ]  # fmt: skip
        assert (first.n, second.n, t.alive) == (6, 6, 24)
        assert t.peak == Peak(12 + 6 + 12, "another")

    def test_another_size_type_or_option_is_another_call(self, t):
        for dtype, bias in [(BFLOAT16, False), (BFLOAT16, True), (FLOAT32, True)]:
            x = t.input(6, dtype)
            t.again("layer", linear, x, 2, 3, 4, bias=bias)
        assert [kernel.work.bytes_read for kernel in t.kernels] == [36, 44, 56]

    def test_a_span_taken_where_nothing_is_noted_is_taken_anew_where_something_is(self, t):
        t.idle("spare", lambda t: t.again("child", doubled, t.input(3, BFLOAT16)))
        t.again("child", doubled, t.input(3, BFLOAT16))
        assert paths(t) == [("child", "clone"), ("child", "cat")]

    @pytest.mark.parametrize("counts", [(1, 3), (3, 1), (2, 5)])
    def test_in_turns_its_records_count_for_all(self, t, counts):
        for name, count in zip("ab", counts, strict=True):
            for _ in t.turns(count):
                t.again(name, doubled, t.input(3, BFLOAT16))
        assert [(each.path, each.calls) for each in t.kernels[::2]] == [
            *zip("ab", counts, strict=True)
        ]
        assert t.calls == [(name, "", count) for name, count in zip("ab", counts, strict=True)]


# --- by chance


@dataclasses.dataclass(frozen=True)
class Tree:
    """A module: its operators, how often it calls each child, and names that it holds."""

    operators: tuple[int, ...]
    children: tuple[tuple["Tree", int], ...]
    holds: bool


def tree(draw, depth=3):
    number = draw.randint(0, 2) if depth else 0
    children = tuple((tree(draw, depth - 1), draw.randint(1, 3)) for _ in range(number))
    operators = tuple(draw.randint(0, 4) for _ in range(draw.randint(1, 3)))
    return Tree(operators, children, draw.random() < 0.5)


def forward(t, x, module):
    """Runs a tree's module on any number of elements."""
    weight, held = t.weight(7), []
    for kind in module.operators:
        if kind == 0:
            x = t.map("mul", x, weight)
        elif kind == 1:
            x = t.cat(x, t.move("ones", n=3, dtype=t.dtype))
        elif kind == 2:
            x = t.view(x, x.n)
        elif kind == 3:
            x = t.cast(t.softmax(x, x.n, 1), t.dtype)
        else:
            t.idle("spare", linear, x, 1, 2, 3)
        held += [x] if module.holds else []
    for index, (child, count) in enumerate(module.children):
        for number in range(count):
            x = t.again(f"{index}.{number}", forward, x, child)
    t.hold(*held)
    return t.move("clone", x)


class Calling(Tape):
    again = Tape.call


@given(seed=st.integers(0, 10**9), n=st.integers(1, 10**6))
def test_again_is_equal_to_call_and_nothing_is_left(seed, n):
    module = tree(random.Random(seed))

    def run(kind=Tape, size=n, **options):
        return alone(lambda t: forward(t, t.empty(size, t.dtype), module), kind=kind, **options)

    called, spans = run(Calling), {}
    assert run(records=False, spans=spans).peak == called.peak
    for copied in (run(), run(spans=spans), run(spans=spans)):
        assert expanded(copied.kernels) == expanded(called.kernels)
        for name in ("calls", "weights", "savings", "peak", "alive"):
            assert getattr(copied, name) == getattr(called, name)
    assert run(size=n + 1, spans=spans).weights == called.weights


@given(seed=st.integers(0, 10**9), n=st.integers(1, 10**6))
def test_records_of_equal_calls_stand_for_all_of_them(seed, n):
    module = tree(random.Random(seed))

    def records(t):
        t.call("model", forward, t.input(n, t.dtype), module)
        for _ in range(2):
            t.again("alone", forward, t.input(n, t.dtype), module)
        return merged(each.at("") for each in t.kernels)

    assert records(ArrayTape(BFLOAT16)) == records(Calling(BFLOAT16))


@pytest.mark.parametrize("seed", range(4))
def test_parameters_are_the_same_for_any_workload(seed):
    case = drawn(seed)
    w = case.workload
    longer = dataclasses.replace(w, batch_size=w.batch_size + 1, text_tokens=w.text_tokens + 40)
    other = dataclasses.replace(case, workload=longer, flash=False)
    assert noted(taped(other))["weights"] == noted(taped(case))["weights"]


def test_what_may_be_skipped_is_copied_for_as_many_calls():
    """5 products once, then in three equal turns."""

    def forward(t):
        t.skippable(5)
        return t.empty(1, FLOAT32)

    t = Tape(FLOAT32)
    t.again("a", forward)
    for _ in t.turns(3):
        t.again("b", forward)
    assert t.savings == [5, 15]
