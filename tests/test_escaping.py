"""Text from elsewhere reads as itself wherever it goes, and does nothing there."""

import csv
import html
import io
import json
import re
import unicodedata
from pathlib import Path

import pytest
from command_line import run
from hypothesis import example, given, settings, strategies as st
from markdown_it import MarkdownIt

from dsocr_analyze.cli import main
from dsocr_analyze.escaping import (
    as_graphviz,
    as_json,
    as_markdown,
    as_mermaid,
    visible,
    visible_lines,
)
from dsocr_analyze.report import table

CHARACTERS = "ab1_*`[](){}<>|#-+=~.:&;!\\/\"'$@ \n\t\r\x1b\x07\x7f\x85\u202e\u2066\u200b\u2028"
SNIPPETS = ("<script>", "</details>", "&amp;", "http://", "www.", "](x)", "1. ", "\ud800")
MARKUP = st.lists(st.sampled_from([*CHARACTERS, *SNIPPETS, "\U000e0041"]), max_size=12).map("".join)
ANY = st.one_of(st.text(), MARKUP)
MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})


def acts(character):
    """Whether a character moves a cursor, turns text around, hides, or is no character at all."""
    return (
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(character)
        in ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
        or character in "\u200b\u200e\u200f\u061c\ufeff"
    )


@given(ANY)
def test_nothing_acts_and_labels_end_where_they_end(text):
    line, lines = visible(text), visible_lines(text)
    assert not any(map(acts, line))
    assert visible(line) == line
    assert not any(acts(each) for each in lines if each not in "\n\t")
    assert lines.count("\n") == text.count("\n")
    label = as_mermaid(text)
    assert not set(label) & set('"<>&`\n')
    assert re.sub(r"#(\d+);", lambda found: chr(int(found[1])), label) == line
    label = as_graphviz(text)
    assert re.fullmatch(r'(?:[^"\\\n]|\\["\\])*', label)
    assert re.sub(r'\\(["\\])', r"\1", label) == line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("evil\r\x1b[2K.py", r"evil\r\x1b[2K.py"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("\ud800\U000e0041", r"\ud800\U000e0041"),
        ("a\xad\u3164\uffff", r"a\xad\u3164\uffff"),
        ("::error::x", r"\x3a:error::x"),
        ("  ::add-mask::x", r"\x20\x20\x3a:add-mask::x"),
        ("a ##[error]x", r"a ##\x5berror]x"),
        ("torch::op a::b", "torch::op a::b"),
        ("Übergröße 頁　1 m²", "Übergröße 頁　1 m²"),
    ],
)
def test_escapes_are_those_of_python(text, shown):
    assert visible(text) == shown


def test_no_line_is_a_command_to_a_runner_that_reads_along():
    assert (
        visible_lines("a\n\t::error::x\nb::c\n##[debug]")
        == "a\n\\t\\x3a:error::x\nb::c\n##\\x5bdebug]"
    )
    assert json.loads(as_json('"##[error]"')) == "##[error]"
    assert "##[" not in as_json('"##[error]"')


@pytest.mark.exhaustive
@given(st.recursive(ANY, lambda each: st.lists(each) | st.dictionaries(ANY, each), max_leaves=6))
def test_a_json_document_means_the_same(value):
    document = json.dumps(value, ensure_ascii=False, indent=1)
    escaped = as_json(document)
    assert json.loads(escaped) == value
    assert not any(acts(each) for each in escaped if each != "\n")


def rendered(source):
    """What a reader of the rendered Markdown sees, and the kinds of what is not plain text."""
    seen, kinds, tokens = "", set(), MARKDOWN.parse(source)
    for token in tokens:
        if token.type == "inline":
            texts = [each for each in token.children if each.type in ("text", "text_special")]
            kinds |= {each.type for each in token.children} - {"text", "text_special"}
            seen += "".join(each.content for each in texts)
        else:
            kinds.add(token.type)
    return seen, kinds


FRAMES = {
    "paragraph": ("{}\n", {"paragraph_open", "paragraph_close"}),
    "item": (
        "- {}\n",
        {"bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close",
         "paragraph_open", "paragraph_close"},
    ),
    "heading": ("## {} end\n", {"heading_open", "heading_close"}),
    "cell": (
        "| {} | end |\n| --- | --- |\n| x | y |\n",
        {f"{name}_{end}" for name in ("table", "thead", "tbody", "tr", "th", "td")
         for end in ("open", "close")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("frame", FRAMES)
@settings(max_examples=30)
@given(text=ANY.filter(lambda text: visible(text).strip()))
@example("__init__ _a_ *b* `c` [d](e) <i>f</i> &amp; g_h_i")
@example("1. one")
@example("    code")
@example("--- ")
@example("- - -")
@example(" # x")
@example("==")
@example("=")
@example("> quote")
@example("https://example.org www.example.org me@example.org")
@example("end\\")
@example("![x](y)")
@example("[x]: y")
def test_markdown_reads_as_the_text(frame, text):
    source, structure = FRAMES[frame]
    seen, kinds = rendered(source.format(as_markdown(text, is_cell=frame == "cell")))
    assert kinds <= structure
    plain = seen.removesuffix(" end").removesuffix("endxy")
    assert plain.split() == visible(text).split()


@pytest.mark.parametrize(
    "text", ["1.206 GFLOPs", "-5 %", "model.layers.0.self_attn.q_proj", "2 x 3", "+1,024"]
)
def test_numbers_and_paths_stay_readable_in_markdown(text):
    assert as_markdown(text) == text


def test_html_entities_are_not_read_twice():
    assert html.unescape(as_markdown("&lt;b&gt;")) == "&lt;b&gt;"


# --- encodings ------------------------------------------------------------------------------------


def printed(line, encoding, monkeypatch):
    """What a command prints on a stream of this encoding."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", stream)
        assert main(line.split()) == 0
    return stream.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii"])
@pytest.mark.parametrize("line", ["tree --no-trace", "fit h100"])
def test_lines_and_branches_are_drawn_in_any_encoding(line, encoding, monkeypatch):
    drawn = printed(line, "utf-8", monkeypatch)
    assert not drawn.isascii()
    assert printed(line, encoding, monkeypatch) == drawn.translate(str.maketrans("─│├└", "-||`"))


def test_json_means_the_same_in_any_encoding(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "café_頁_\N{GRINNING FACE}.csv"
    Path(name).write_text("width,height\n640,640\n", encoding="utf-8")
    line = f"archive {name} --format json"
    found = [json.loads(printed(line, each, monkeypatch)) for each in ("utf-8", "latin-1", "ascii")]
    assert name in found[0]["options"].values()
    assert found[0] == found[1] == found[2]


# --- tables for spreadsheets and papers ----------------------------------------------------------

HOSTILE_CELLS = ("=1+2", "-x()", "@SUM(1)", "+1 (+2)", 'a,"b"\n=c', "\x1b[2J", "-", "-1.5", "")


def test_a_table_of_csv_is_its_cells_and_holds_no_formula():
    rows = tuple((f"row {number}", cell) for number, cell in enumerate(HOSTILE_CELLS))
    text = table.csv_page([table.Table("no part of it", ("what", "=value"), rows)])
    header, *found = csv.reader(io.StringIO(text))
    assert header == ["what", "'=value"]
    assert [cell for _, cell in found] == [
        "'=1+2", "'-x()", "'@SUM(1)", "'+1 (+2)", 'a,"b" =c', r"\x1b[2J", "-", "-1.5", "",
    ]  # fmt: skip


def test_several_tables_of_csv_are_one_that_names_each_rows_own():
    one = table.Table("=one", ("what", "n", "limit", "n"), (("a", "1", "x", "2"),))
    two = table.Table("two", ("n", "what"), (("3", "b"), ("4", "c")))
    assert table.csv_page([one, two]) == (
        "table,what,n,limit,n\n'=one,a,1,x,2\ntwo,b,3,,\ntwo,c,4,,\n"
    )


def test_a_table_of_latex_reads_as_its_cells():
    rows = (("a_b & 50 % of $1 #2 {x}", "1"), (r"\input{/etc/passwd} ~^<>|\x1b" + "\n" + '"', "2"))
    assert table.latex_page([table.Table("a\n\\x", ("what", "n"), rows)]) == "\n".join([
        r"% a\n\x", r"\begin{tabular}{lr}", r"\hline", r"what & n \\", r"\hline",
        r"a\_b \& 50 \% of \$1 \#2 \{x\} & 1 \\",
        r"\textbackslash{}input\{/etc/passwd\} \textasciitilde{}\textasciicircum{}\textless{}"
        r"\textgreater{}\textbar{}\textbackslash{}x1b \textquotedbl{} & 2 \\",
        r"\hline", r"\end{tabular}", "",
    ])  # fmt: skip


@pytest.mark.parametrize(
    "line",
    ["--engine analytic --mode tiny", "time h100", "fit h100", "plan --pages 1k --gpu h100",
     "advise", "devices", "compare tiny base --engine analytic"],
)  # fmt: skip
def test_every_command_with_a_format_has_both(line, tmp_path, monkeypatch, capsys):
    """With as many tables, and in them as many rows, as Markdown has."""
    monkeypatch.chdir(tmp_path)
    markdown, latex, values = (
        run(capsys, *line.split(), "--format", each)[1] for each in ("markdown", "latex", "csv")
    )
    folded = markdown.partition("<details>")[0]
    tables = len(re.findall(r"(?m)^\| -", folded))
    assert latex.count(r"\end{tabular}") == tables > 0
    assert latex.count(r" \\" + "\n") == folded.count("\n| ") - tables
    header, *rows = csv.reader(io.StringIO(values))
    assert {len(row) for row in rows} == {len(header)}, "it is one table"
    if not line.startswith("compare"):  # which has exact figures in CSV
        assert len(rows) == latex.count(r" \\" + "\n") - tables
