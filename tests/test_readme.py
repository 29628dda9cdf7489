"""The README and the home page say what the program does: its output, its commands, its Python."""

import importlib
import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import every, sampled

from dsocr_analyze import cli, hardware
from dsocr_analyze.cli.commands import application
from dsocr_analyze.timing.kernel_seconds import kernel_seconds

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
HOME, NEIGHBOURS = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("index.md", "neighbours.md")
)
DIGEST = re.compile(r"code \S+, config")


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


OUTPUT = re.compile(r"<!-- output: dsocr-analyze ([^\n]*) -->\n```text\n(.*?)```", re.DOTALL)
SHOWN = OUTPUT.findall(README + NEIGHBOURS)
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


BENCHMARK = re.compile(r"^- [^\n]*(?:\n  [^\n]*)*?\(`(benchmarks/\w+\.py)`\)\.\n", re.MULTILINE)


@pytest.mark.exhaustive
def test_the_figures_of_benchmarks_are_what_these_print():
    bullets = {match[1]: match[0].split() for match in BENCHMARK.finditer(README)}
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
    shown = (ROOT / "docs" / "seconds.md").read_text(encoding="utf-8")
    found = benchmark.table()
    assert found in shown, f"write it again: python benchmarks/bench_neighbours.py --table\n{found}"


@pytest.mark.exhaustive
def test_the_comparison_with_tables_is_of_these_formulas(monkeypatch):
    """Its tables are not at hand here; what it compares with them is."""
    for folder in ("benchmarks", "scripts"):
        monkeypatch.syspath_prepend(ROOT / folder)
    benchmark = importlib.import_module("bench_serving_tables")
    cases = importlib.import_module("serving_cases").saved_cases()
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
    ((heading, command, shown),) = TABLE.findall(HOME)
    assert cli.main(shlex.split(command)) == 0
    section = capsys.readouterr().out.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert shown.splitlines() == rows, "write it again: python scripts/update_readme.py"
    assert len(rows) > 4


def test_the_home_page_has_the_readmes_answer_two_commands_and_a_picture():
    assert OUTPUT.findall(HOME) == SHOWN[:1]
    assert re.findall(r"^make (\w+)", HOME, re.MULTILINE) == ["analyze", "test"]
    ((alternative, target),) = re.findall(r"!\[(.*)\]\((.*)\)", HOME)
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


def test_it_shows_a_picture_and_lists_commands_and_options_that_exist():
    assert PICTURES
    commands = application.commands
    assert [name for name in commands if f"`dsocr-analyze {name}" not in README] == []
    parameters = [each for of in (application, *commands.values()) for each in of.params]
    known = {"--help", *(option for each in parameters for option in each.opts)}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README)) <= known


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.exhaustive
@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_python_examples_run_and_print_what_they_say(capsys, code):
    exec(compile(code, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    promised = re.findall(r"^print\(.*\)\s+# (.*)$", code, re.MULTILINE)
    assert lines == promised
    assert promised
