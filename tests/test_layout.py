"""Lines of tables and prose: what fits, and what is never broken."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len

from dsocr_analyze.report.table import Table, lay_out, shortened, wrap

NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?: (?:[kMGTPEZY]?B?|s|ms|us|%)(?=[\s;:,)]|\Z))?")
"""Numbers as the reports write them, with a unit."""

UNITS = ("", " k", " GB", " T", " ms", " s", " us", " %", " MB")
words = st.text(alphabet="abcxyz_./-", min_size=1, max_size=30)
numbers = st.builds(
    lambda value, digits, unit: f"{value:,.{digits}f}{unit}",
    st.floats(0, 1e13),
    st.integers(0, 4),
    st.sampled_from(UNITS),
)
prose = st.lists(words | numbers, max_size=30).map(" ".join)


def numbers_of(text: str) -> list[str]:
    return [found.strip() for found in NUMBER.findall(text)]


BROKEN = [
    # A text, a width, and its lines.
    ("a page of 1,936 tokens", 17, ["a page of", "1,936 tokens"]),
    ("grid 2 x 3 of it", 8, ["grid", "2 x 3 of", "it"]),
    ("clone x 208, cos x 24", 12, ["clone x 208,", "cos x 24"]),
    ("model.layers.*.mlp.down_proj", 20, ["model.layers.*.mlp.", "down_proj"]),
    ("/home/someone/a/report.json", 16, ["/home/someone/a/", "report.json"]),
    ("a 66.58 FLOPs/byte", 12, ["a 66.58", "FLOPs/byte"]),
    ("version-0.123.45678/12345", 21, ["version-0.123.45678/", "12345"]),
    ("x" * 25, 10, ["x" * 10, "x" * 10, "x" * 5]),
    ("1,234,567,890,123", 5, ["1,234,567,890,123"]),
    ("one\ntwo", 80, ["one", "two"]),
    ("", 80, [""]),
]


def test_where_prose_breaks_and_that_its_longest_word_gives_way_in_its_middle():
    assert [(text, width, wrap(text, width)) for text, width, _ in BROKEN] == BROKEN
    name = "a-very-long-name-of-a-model-directory-that-nobody-can-type"
    line = shortened(f"model {name}, 4.591 TFLOPs", 40)
    assert (len(line), line[:12], line[-18:]) == (40, "model a-very", "type, 4.591 TFLOPs")


@pytest.mark.exhaustive
@given(prose, st.integers(24, 140))
def test_prose_fits_says_the_same_and_no_number_is_parted_from_its_digits_or_unit(text, width):
    lines = wrap(text, width, indent="  ")
    assert all(cell_len(line) <= width and line == line.rstrip() for line in lines)
    assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", text)
    if width >= 30:
        whole = [each for line in wrap(text, width) for each in numbers_of(line)]
        assert whole == numbers_of(text)


@pytest.mark.exhaustive
@given(prose, st.integers(30, 80))
def test_what_is_shortened_fits_and_keeps_numbers_whole(text, width):
    line = shortened(text, width)
    assert cell_len(line) <= width
    assert set(numbers_of(line.replace("…", " … "))) <= set(numbers_of(text))


TABLE = Table(
    "Stages",
    ("stage", "params", "matrix FLOPs", "read", "said"),
    (("prefill", "2,769,255,680", "1.100 T", "11.16 GB", "of all the tokens at once"),
     ("decode", "165,478,400", "1.204 G", "1.270 GB", "")),
    emphasized_rows=1,
    optional=("params", "read"),
)  # fmt: skip


def texts(table: Table, width: int) -> list[str]:
    return [line.text for line in lay_out(table, width)[0]]


def test_numbers_of_a_table_stand_flush_right_and_sums_are_bold():
    lines, left_out = lay_out(TABLE, 80)
    assert [line.text for line in lines] == [
        "stage           params  matrix FLOPs      read  said",
        "─" * 73,
        "prefill  2,769,255,680       1.100 T  11.16 GB  of all the tokens at once",
        "decode     165,478,400       1.204 G  1.270 GB",
    ]
    assert [line.is_bold for line in lines] == [False, False, False, True]
    assert left_out == ()


def test_text_is_wrapped_first_then_columns_are_left_out_and_then_stand_below_one_another():
    assert texts(TABLE, 70)[:3] == [
        "stage           params  matrix FLOPs      read  said",
        "─" * 70,
        "prefill  2,769,255,680       1.100 T  11.16 GB  of all the tokens at",
    ]
    left_out = {width: lay_out(TABLE, width)[1] for width in (63, 55, 44, 34)}
    assert left_out == {63: (), 55: ("params",), 44: ("params", "read"), 34: ()}
    assert not any("2,769,255,680" in line for line in texts(TABLE, 44))
    # A column that a table lacks is not left out.
    assert lay_out(replace(TABLE, optional=("class", "params")), 55)[1] == ("params",)
    assert [line.split()[:1] for line in texts(TABLE, 34)].count(["prefill"]) == 3
    assert max(map(len, texts(TABLE, 34))) <= 34


@pytest.mark.exhaustive
@given(st.data())
def test_at_any_width_lines_fit_and_numbers_are_whole(data):
    count = data.draw(st.integers(1, 9))
    row = st.tuples(words, *[numbers | st.just("-")] * count, prose)
    rows = tuple(data.draw(st.lists(row, min_size=1, max_size=4)))
    names = [f"{name}{i}" for i, name in enumerate(data.draw(
        st.lists(words, min_size=count + 2, max_size=count + 2)))]  # fmt: skip
    optional = tuple(data.draw(st.lists(st.sampled_from(names[1:]), unique=True, max_size=3)))
    table = Table("", tuple(names), rows, optional=optional)
    width = data.draw(st.sampled_from((80, 100, 132)))
    lines, left_out = lay_out(table, width)
    for line in lines:
        assert cell_len(line.text) <= width
        assert line.text == line.text.rstrip()
    text = "\n".join(line.text for line in lines)
    for index, name in enumerate(names):
        if name in left_out:
            continue
        for row in rows:
            assert index in (0, len(names) - 1) or row[index] in text


def test_marked_numbers_are_numbers_and_words_are_none():
    for cell in ("~11.1 / 33", "?30.0 / 80", "+0.5 %", "-", "", "<0.1 %", "(+3)", "too much"):
        found = Table("", ("name", "figure"), (("a", cell), ("b", "1"))).is_numeric(1)
        assert found == (cell != "too much"), cell
