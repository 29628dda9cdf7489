"""The README and the pages of docs/ say what the program does: output, commands, Python."""

import importlib
import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sampling import every, sampled

from dsocr_analyze import cli, hardware
from dsocr_analyze.cli.commands import application
from dsocr_analyze.timing.kernel_seconds import kernel_seconds

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
DIGEST = re.compile(r"code \S+, config")


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


OUTPUT = re.compile(r"<!-- output: dsocr-analyze ([^\n]*) -->\n```text\n(.*?)```", re.DOTALL)
FIRST = re.compile(
    r"<!-- first (\d+) lines: dsocr-analyze ([^\n]*) -->\n```text\n(.*?)```", re.DOTALL
)
ALL = "".join([README, *PAGES.values()])
SHOWN = list(dict.fromkeys(OUTPUT.findall(ALL)))
STARTS = FIRST.findall(ALL)
TABLE = re.compile(r"<!-- table: ([^:\n]+): dsocr-analyze ([^\n]*) -->\n\n((?:\|[^\n]*\n)+)")


@sampled(("command", "text"), SHOWN, every(2, start=1))
def test_the_output_shown_is_a_real_runs(capsys, monkeypatch, command, text):
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(shlex.split(command)) == 0
    out = capsys.readouterr().out.splitlines()
    printed = {"", *(DIGEST.sub("code ..., config", line.rstrip()) for line in out)}
    shown = text.rstrip().splitlines()
    assert len(shown) > 8
    assert set(shown) <= printed, "write it again: python scripts/update_readme.py"


@pytest.mark.parametrize(("count", "command", "text"), STARTS)
def test_the_first_lines_shown_are_a_real_runs(capsys, monkeypatch, count, command, text):
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(shlex.split(command)) == 0
    out = [DIGEST.sub("code ..., config", line) for line in capsys.readouterr().out.splitlines()]
    assert text.splitlines() == out[: int(count)], "write it again: python scripts/update_readme.py"


def test_what_is_shown_is_where_a_reader_looks_for_it():
    shown = {name: len(OUTPUT.findall(text)) for name, text in PAGES.items()}
    assert {name for name, count in shown.items() if count} == {
        "index.md", "neighbours.md", "pricing.md"
    }  # fmt: skip
    assert len(OUTPUT.findall(README)) == len(FIRST.findall(README)) == 1


def test_the_readme_is_short_and_says_where_the_command_is():
    assert len(README.split()) <= 1200
    order = ["<!-- picture:", "make analyze", ".venv/bin/dsocr-analyze", "<!-- output:",
             "dsocr-analyze plan", "## Why to trust", "## Links"]  # fmt: skip
    places = [README.find(each) for each in order]
    assert -1 not in places
    assert places == sorted(places)
    for command in ("--image", "time", "plan", "fit", "advise", "compare --all"):
        assert f"    dsocr-analyze {command}" in README


BENCHMARK = re.compile(r"^- [^\n]*(?:\n  [^\n]*)*?\(`(benchmarks/\w+\.py)`\)\.\n", re.MULTILINE)


@pytest.mark.exhaustive
def test_the_figures_of_benchmarks_are_what_these_print():
    bullets = {match[1]: match[0].split() for match in BENCHMARK.finditer(PAGES["pricing.md"])}
    assert list(bullets) == [
        f"benchmarks/bench_{name}.py" for name in ("sam", "published", "serving_tables")
    ]
    for script, words in bullets.items():
        done = subprocess.run([sys.executable, ROOT / script, "--sentence"], text=True, check=True,
                              capture_output=True)  # fmt: skip
        said = ["-", *done.stdout.split()]
        assert words == said, "write it again: python scripts/update_readme.py"


@pytest.mark.exhaustive
def test_published_speeds_of_neighbours_are_as_shown_and_misses_are_explained():
    benchmark = importlib.import_module("bench_neighbours")
    missed = [row.published.get("miss") for row in benchmark.rows() if not row.is_met]
    assert len(missed) == 1, missed
    found = benchmark.table()
    assert found in PAGES["seconds.md"], (
        f"write it again: python benchmarks/bench_neighbours.py --table\n{found}"
    )


@pytest.fixture
def serving_tables(monkeypatch):
    """The benchmark of served pages."""
    for folder in ("benchmarks", "scripts"):
        monkeypatch.syspath_prepend(ROOT / folder)
    return importlib.import_module("bench_serving_tables")


def test_a_row_that_is_far_off_does_not_move_what_is_interpolated(serving_tables):
    """All take 1.2 times what the peaks say, and the one that has the sizes twice as long."""
    columns = [np.geomspace(low, high, 20) for low, high in ((1e6, 1e8), (1e5, 1e7), (1, 8))]
    trend = serving_tables.Trend(
        lambda elements, of_one, each: (elements * each, elements), hardware.device("l40s").gpu,
        np.array([1e-5]),
    )  # fmt: skip
    at_peaks = np.exp(trend.log(columns))
    cloud = serving_tables.Cloud(columns, np.stack([1.2 * at_peaks, at_peaks]), trend)
    cloud.ratios[0, 9] += np.log(2)
    measured, formula = cloud.find(*(column[9] for column in columns))
    assert (measured, formula) == pytest.approx((1.2 * at_peaks[9], at_peaks[9]))
    assert cloud.find(1e6, 1e5, 9) is None


@pytest.mark.exhaustive
def test_the_comparison_with_tables_is_of_these_formulas(serving_tables):
    """Its tables are not at hand here; what it compares with them is."""
    benchmark, cases = serving_tables, importlib.import_module("serving_cases").saved_cases()
    pairs = itertools.product(benchmark.SYSTEMS, (1, 16))
    assert [(case.gpu, case.sequences) for case in cases] == list(pairs)
    for case in cases:
        timed = hardware.device(case.gpu)
        kernels, calls = zip(*benchmark.page(timed, case.sequences), strict=True)
        seconds = float(kernel_seconds(kernels, timed).seconds @ calls)
        assert case.kernel_seconds == pytest.approx(seconds, rel=1e-4), (
            "run it again: python benchmarks/bench_serving_tables.py --save"
        )


@pytest.mark.exhaustive
def test_the_home_pages_table_is_a_real_runs(capsys):
    ((heading, command, shown),) = TABLE.findall(PAGES["index.md"])
    assert cli.main(shlex.split(command)) == 0
    section = capsys.readouterr().out.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert shown.splitlines() == rows, "write it again: python scripts/update_readme.py"
    assert len(rows) > 4


def test_the_home_page_has_the_readmes_answer_two_commands_and_a_picture():
    home = PAGES["index.md"]
    assert OUTPUT.findall(home) == SHOWN[:1]
    assert re.findall(r"^make (\w+)", home, re.MULTILINE) == ["analyze", "test"]
    ((alternative, target),) = re.findall(r"!\[(.*)\]\((.*)\)", home)
    assert len(alternative) > 20
    assert (ROOT / "docs" / target).read_text(encoding="utf-8").count("<svg") == 1


PICTURES = re.findall(r"<!-- picture: dsocr-analyze (.*) -->\n!\[.+\]\((.+)\)\n", README)


def texts_of(svg):
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg.read_text(encoding="utf-8"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("command", "file"), PICTURES, ids=[file for _, file in PICTURES])
def test_the_pictures_are_what_their_commands_draw(capsys, tmp_path, command, file):
    pytest.importorskip("matplotlib", reason="the optional extra 'plot'")
    assert file in shlex.split(command)
    for name in ("one.svg", "two.svg"):
        assert cli.main(shlex.split(command.replace(file, name))) == 0
    shown, drawn = ROOT / file, tmp_path / "one.svg"
    assert len(texts_of(drawn)) > 20
    assert texts_of(shown) == texts_of(drawn), "draw it again: python scripts/update_readme.py"
    assert drawn.read_bytes() == (tmp_path / "two.svg").read_bytes()


MOVED = ("report", "own-model", "pricing", "measuring", "many-pages", "python", "evidence")
"""Pages that people write, all of whose options exist."""


def test_it_shows_a_picture_and_its_pages_list_commands_and_options_that_exist():
    assert PICTURES
    commands = application.commands
    table = PAGES["commands.md"].partition("<!-- begin")[0]
    assert [name for name in commands if f"`dsocr-analyze {name}" not in table] == []
    parameters = [each for of in (application, *commands.values()) for each in of.params]
    known = {"--help", *(option for each in parameters for option in each.opts)}
    written = "".join([README, table, *(PAGES[f"{name}.md"] for name in MOVED)])
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", written)) <= known


EXAMPLES = [
    pytest.param(code, id=f"{name} {number}")
    for name, text in sorted(PAGES.items())
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    if name in {f"{moved}.md" for moved in MOVED}
]


def test_pages_that_had_examples_still_have_them():
    assert [each.id for each in EXAMPLES] == [
        "many-pages.md 0", "pricing.md 0", "python.md 0", "python.md 1",
        "python.md 2", "python.md 3", "python.md 4", "python.md 5",
    ]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("code", EXAMPLES)
def test_the_python_examples_run_and_print_what_they_say(capsys, code):
    exec(compile(code, "example", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    promised = re.findall(r"^print\(.*\)\s+# (.*)$", code, re.MULTILINE)
    assert lines == promised
    assert promised
