"""Small changes of the program: where they can be made, what they make, and that names last."""

import pytest
from mutations import chosen, mutations_of

PLACES = [
    ("x = a + b", {"arithmetic": ["x = a - b"]}),
    ("x = (a) * (b)", {"arithmetic": ["x = (a) // (b)"]}),
    ("x -= a", {"arithmetic": ["x += a"]}),
    ("x = 'é', a % b", {"arithmetic": ["x = 'é', a * b"]}),
    ("x = a < b", {"comparison": ["x = a <= b"]}),
    ("x = a is  not b", {"comparison": ["x = a is b"]}),
    ("x = a in b", {"comparison": ["x = a not in b"]}),
    ("x = a and b and c", {"boolean": ["x = a and b or c", "x = a or b and c"]}),
    ("x = 9", {"constant": ["x = 10"]}),
    ("x = [True, -1]", {"constant": ["x = [False, -1]", "x = [True, -2]"]}),
    ("x = not (a)", {"condition": ["x = (a)"]}),
    ("x = a if b else c", {"condition": ["x = a if not (b) else c"]}),
    ("x = [a for a in b if c]", {"condition": ["x = [a for a in b if not (c)]"]}),
    ("if a > b: x", {"branch": ["if False: x"], "comparison": ["if a >= b: x"],
                     "condition": ["if not (a > b): x"]}),
    ("if a == b: x", {"branch": ["if False: x"], "comparison": ["if a != b: x"]}),
    ("f(a)", {"call": ["pass"]}),
    ("x = f(a, b=c)", {"argument": ["x = f(a)"]}),
    ("x = f(b=c, d=e)", {"argument": ["x = f(b=c)", "x = f(d=e)"]}),
    ("def f(): return a", {"return": ["def f(): return None"]}),
]  # fmt: skip


@pytest.mark.parametrize(("code", "changed"), PLACES, ids=[code for code, _ in PLACES])
def test_every_place_is_found_and_changed_alone(code, changed):
    found = {}
    for each in mutations_of("a.py", code.encode()):
        assert each.before == " ".join(code.split())
        assert " ".join(each.applied(code.encode()).decode().split()) == each.after
        found.setdefault(each.kind, []).append(each.after)
    assert {kind: sorted(texts) for kind, texts in found.items()} == changed


@pytest.mark.parametrize(
    "code",
    [
        '"""A docstring of 2 lines."""',
        "x = f'{1 + 2}'",
        "x = 'a' + b + 'c'",
        "x: Literal[1, 2]",
        "def f(x: 'int' = y) -> list[1]: pass",
        "@f(frozen=True)\nclass A: pass",
        "raise Error('a' if b > 1 else 'c', key=2)",
        "__all__ = ['a'] * 2",
        "if TYPE_CHECKING:\n    f(1)",
        "x = open(a, encoding='utf-8')",
        "x = (a +  # beside a comment\n b)",
    ],
)
def test_what_says_nothing_about_the_program_is_no_place(code):
    assert mutations_of("a.py", code.encode()) == []


CODE = b"""\
class A:
    def f(self):
        if self.x:
            self.g(
                1,
            )
        return self.y
"""


def test_a_place_knows_its_function_and_the_lines_that_run_with_it():
    found = {(each.kind, each.function, each.lines, each.is_import)
             for each in mutations_of("a.py", CODE)}  # fmt: skip
    assert found == {
        ("branch", "A.f", range(3, 4), False), ("condition", "A.f", range(3, 4), False),
        ("call", "A.f", range(4, 7), False), ("constant", "A.f", range(4, 7), False),
        ("return", "A.f", range(7, 8), False),
    }  # fmt: skip


def test_what_runs_at_import_is_told_from_what_runs_later():
    code = b"def f(x=1):\n    y = 2\n"
    assert [each.is_import for each in mutations_of("a.py", code)] == [True, False]


def test_a_call_over_many_lines_is_dropped_whole():
    [call] = [each for each in mutations_of("a.py", CODE) if each.kind == "call"]
    assert call.before == "self.g( 1, )"
    assert call.applied(CODE) == CODE.replace(
        b"self.g(\n                1,\n            )", b"pass"
    )


def test_names_stay_where_lines_move_and_change_with_the_place():
    def keys(code):
        return {each.key for each in mutations_of("a.py", code)}

    moved = b"import os\n\n\n" + CODE.replace(b"        return", b"\n        return")
    assert keys(moved) == keys(CODE)
    assert keys(CODE.replace(b"def f", b"def h")).isdisjoint(keys(CODE))
    assert len(keys(CODE) - keys(CODE.replace(b"self.y", b"self.z"))) == 1


def test_places_that_look_the_same_have_names_of_their_own():
    found = mutations_of("a.py", b"x = 1\ny = 2\nx = 1\n")
    assert [each.number for each in found] == [0, 0, 1]
    assert len({each.key for each in found}) == 3


def test_rooms_are_chosen_by_their_statements_and_none_is_left_out():
    files = {
        "large/a.py": b"x = 1\n" * 70,
        "large/reference/b.py": b"x = 1\n" * 10,
        "small.py": b"x = 1\n" * 10,
        "tiny.py": b"x = 1\n",
        "none.py": b"x = y\n",
    }
    found = chosen(files, 20, seed=1)
    rooms = [each.room for each in found]
    counts = {room: rooms.count(room) for room in rooms}
    assert counts == {"large": 13, "reference networks": 3, "small": 3, "tiny": 1}
    assert sorted(rooms[:4]) == sorted(counts)  # what comes first is of every room
    assert len(set(found)) == 20
    assert found == chosen(files, 20, seed=1) != chosen(files, 20, seed=2)


def test_new_ones_replace_those_that_are_gone_where_the_fewest_are_left():
    files = dict.fromkeys(("a.py", "b.py", "c.py"), b"x = 1\ny = 2\n" * 20)
    before = chosen(files, 24, seed=1)
    kept = {each for each in before if each.room != "b"}
    after = chosen(files, 24, seed=1, kept=kept)
    assert [each.room for each in after] == ["b"] * 8
    assert chosen(files, 24, seed=1, kept=set(before)) == []
    assert kept.isdisjoint(chosen(files, 60, seed=1, kept=kept))
