"""Every command that prints a table, at several widths: lines fit, and numbers are whole."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import infer_like
import msgspec
import pytest
from both_engines import small_directory
from command_line import run
from PIL import Image
from rich.cells import cell_len
from sampling import named, sampled
from test_inference import PROMPT, SMALL_VIEW, TRIAL
from test_measuring import RUN
from test_time_command import VLLM

from dsocr_analyze.cli import commands, device_runs, printing, streams
from dsocr_analyze.hardware.profile import profile_from_file
from dsocr_analyze.report import measured, table as layouts

WIDTHS = (80, 100, 132, None)
"""None: stdout is no terminal, and nobody says a width."""

PIPED = 100
NUMBER = re.compile(
    r"(?<![\w.])[-+~?<]*\d[\d,]*(?:\.\d+)?(?: (?:[kMGTPEZY]?B|[kMGTPEZY]|s|ms|us|%)\b)?"
)

ANALYTIC = ("--engine", "analytic")
COMMANDS = {
    "full": (*ANALYTIC, "--full", "--gpu", "h100", "--gpu", "rtx-pro-6000", "--price", "2.5",
             "--concurrency", "1,16,256"),
    "answer": ("--page", "300x200", "--max-new-tokens", "1", "--engine", "analytic"),
    "batch": (*ANALYTIC, "--full", "--arch", "unlimited-ocr", "--batch-size", "999", "--page",
              "a4@600", "--max-new-tokens", "32768"),
    "traced": ("--full", "--arch", "deepseek-ocr-2", "--mode", "base", "--page", "9x9"),
    "compare": ("compare", "tiny", "base", "large", "gundam", *ANALYTIC, "--gpu", "h100"),
    "compare models": ("compare", "deepseek-ocr", "deepseek-ocr-2", "unlimited-ocr", *ANALYTIC),
    "compare configs": ("compare", "--config", "one/with/a/long/path/config.json", "--config",
                        "two.json", *ANALYTIC),
    "fit": ("fit", "--batch-size", "1000", "--max-new-tokens", "8192"),
    "time": ("time", "h100", "--runtime", "eager,serving", "--price", "2.5", "--concurrency",
             "1,8,64"),
    "time of many loads": ("time", "h100", "--concurrency", "1:64"),
    "time of all": ("time", "--dtype", "float16"),
    "time from benchmark": ("time", "h100", "--from-benchmark", VLLM, "--keep", "1"),
    "plan": ("plan", "--pages", "2M", "--deadline", "9h", "--price", "2", "--gpu", "h100,l40s",
             "--mix", "a4@200:0.8,a3@300:0.2", "--first-token", "2s", "--share-at-limit", "0.1",
             "--mean-new-tokens", "300"),
    "devices": ("devices",),
    "devices corrections": ("devices", "--corrections"),
    "archive": ("archive", "pages.csv", "--mode", "tiny,gundam", "--gpu", "h100",
                "--price", "2.5", "--deadline", "12h"),
    "archive tokens": ("archive", "pages.csv", "--mode", "gundam", "--histogram", "tokens"),
    "advise": ("advise", "--page", "a4@200", "--gpu", "h100"),
    "advise texts": ("advise", "--page-text-tokens", "400,10000", "--gpu", "h100", "--price", "2",
                     "--kind", "financial-report"),
    "sweep on a terminal": ("sweep", "--mode", "tiny,gundam", "--batch-size", "1,8", "--gpu",
                            "h100", "--page", "a4@100,a4@300", "--max-new-tokens", "1:20"),
    "check": ("check", "--budgets", "budgets.toml"),
}  # fmt: skip
SAID = {
    "sweep on a terminal": "Sweep of 160 workloads, the first 50",
    "check": "stages.sam.flops is 229,419,947,072, above 1",
}
WITHOUT_TABLES = {"answer", "check"}

BUDGETS = """
[workloads.page]
mode = "tiny"

[[workloads.page.budgets]]
key = "stages.*.flops"
max = 1
level = "warn"
"""
"""All of them exceeded, so that there is something to print."""

PRINTED_FROM_DOCUMENTS = {"measure", "infer", "calibrate"}
"""Commands whose work takes long: what they print is printed from one run's document."""

PRINTING_NONE = {"trust", "tree", "docs", "stages"}


def test_no_command_is_missing():
    covered = {arguments[0] for arguments in COMMANDS.values() if arguments[0][0] != "-"}
    assert set(commands.application.commands) == covered | PRINTED_FROM_DOCUMENTS | PRINTING_NONE


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    rows = "width,height\n1240,1754\n3508,2480\n600,400\n" + "850,1100\n" * 99
    config = small_directory().config
    for name, text in (
        ("budgets.toml", BUDGETS),
        ("pages.csv", rows),
        ("two.json", json.dumps(config)),
        ("one/with/a/long/path/config.json", json.dumps(config | {"torch_dtype": "float32"})),
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


@pytest.fixture
def tables(monkeypatch):
    """What has been laid out: tables and which of their columns were left out."""
    found, original = [], layouts.lay_out

    def lay_out(table, width):
        laid = original(table, width)
        found.append((table, width, laid[1]))
        return laid

    monkeypatch.setattr(layouts, "lay_out", lay_out)
    return found


def at(monkeypatch, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))


def check(out, width, tables):
    """Every line fits, none ends with a space, and the numbers of every table are there whole."""
    lines = out.splitlines()
    for line in lines:
        assert (cell_len(line) <= (width or PIPED), line) == (True, line.rstrip())
    printed = Counter(number for line in lines for number in NUMBER.findall(line))
    wanted = Counter()
    for table, asked, left_out in tables:
        assert asked == (width or PIPED)
        assert set(left_out) <= set(table.columns)
        if left_out:
            assert f"left out at {asked} columns: {left_out[0]}" in out
        shown = [i for i, name in enumerate(table.columns) if name not in left_out]
        for row in (table.columns, *table.rows):
            wanted.update(NUMBER.findall("\n".join(row[i] for i in shown)))
    assert {number: printed[number] for number in wanted if printed[number] < wanted[number]} == {}
    return wanted


def one_width_each(names):
    """Every name at every width; the default run tries every sixth name at one."""
    cases = list(itertools.product(names, WIDTHS))
    chosen = [(name, WIDTHS[number % 4]) for number, name in enumerate(list(names)[1::6])]
    return sampled(("name", "width"), cases, named(*chosen))


@one_width_each(COMMANDS)
def test_it_fits(capsys, monkeypatch, tables, name, width):
    at(monkeypatch, width)
    if name == "devices corrections":
        run(capsys, *COMMANDS["time from benchmark"])
        tables.clear()
    with monkeypatch.context() as patch:
        if name == "sweep on a terminal":
            patch.setattr(streams.Stdout, "isatty", lambda _: True)
        code, out, _ = run(capsys, *COMMANDS[name])
    assert code == 0
    assert SAID.get(name, "") in out
    out = re.sub(r"\x1b\[\d*m|^corrections kept in .*\n", "", out, flags=re.MULTILINE)
    wanted = check(out, width, tables)
    assert (not tables) if name in WITHOUT_TABLES else (len(wanted) > 2)
    if name == "sweep on a terminal":
        assert [len(table.rows) for table, _, _ in tables] == [50]


def at_every_width(capsys, monkeypatch, tables, said):
    for width in WIDTHS:
        at(monkeypatch, width)
        tables.clear()
        printing.show(said())
        out = re.sub("^wrote .*\n", "", capsys.readouterr().out, flags=re.MULTILINE)
        assert len(check(out, width, tables)) > 2
        assert tables


@pytest.mark.parametrize("width", [40, 60])
def test_the_answer_of_the_main_command_fits_below_80_columns_too(capsys, monkeypatch, width):
    line = ("--engine", "analytic", "--gpu", "h100")
    at(monkeypatch, 80)
    whole = run(capsys, *line)[1]
    at(monkeypatch, width)
    lines = run(capsys, *line)[1].splitlines()
    assert max(map(cell_len, lines)) <= width
    assert all(each.startswith(" " * 8) or each[6:8].endswith(" ") for each in lines)
    assert "".join("".join(lines).split()) == "".join(whole.split())


@pytest.mark.exhaustive
def test_measure_fits(capsys, monkeypatch, tables):
    options = itertools.chain(*RUN.items())
    code, out, _ = run(capsys, "measure", "--config", "two.json", *options, "--format", "json")
    assert code == 0
    found = msgspec.json.decode(out, type=measured.Measurement)
    at_every_width(capsys, monkeypatch, tables, lambda: device_runs.measurement_said(found))


@pytest.mark.exhaustive
@pytest.mark.directory
def test_infer_fits(capsys, monkeypatch, tables):
    Image.new("RGB", (300, 200)).save("page.png")
    model = infer_like.write(Path("m").absolute())
    code, out, _ = run(
        capsys, "infer", "--model", model, "--image", "page.png", "--output", "o",
        "--prompt", PROMPT, *TRIAL, *SMALL_VIEW, "--format", "json",
    )  # fmt: skip
    assert code == 0
    found = msgspec.json.decode(out, type=measured.InferenceReport)
    at_every_width(capsys, monkeypatch, tables, lambda: device_runs.inference_said(found, []))


def test_calibrate_fits(capsys, monkeypatch, tables):
    folder = Path(__file__).parent.parent / "benchmarks/measured"
    file = folder / "cpu-amd-epyc-2-threads.toml"
    profile = profile_from_file(file)
    at_every_width(capsys, monkeypatch, tables, lambda: device_runs.calibration_said(profile, file))


TREES = {
    "tree": ("tree",),
    "tree of a relative": ("tree", "--arch", "deepseek-ocr-2", "--no-fold", "--depth", "3"),
    "untraced": ("tree", "--no-trace", "--arch", "unlimited-ocr"),
    "leaves": ("tree", "--leaves"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", TREES)
def test_trees_fit(capsys, monkeypatch, name):
    assert run(capsys, *TREES[name], "--output", "whole.txt")[0] == 0
    whole = Path("whole.txt").read_text().splitlines()[2:]
    for width in WIDTHS:
        at(monkeypatch, width)
        code, out, _ = run(capsys, *TREES[name])
        assert code == 0
        check_tree(out, width or PIPED, whole)


def check_tree(out, width, whole):
    """Every line fits and shows the numbers of the line in the file; what is left out is named."""
    lines = out.split("\n\n")[1].splitlines()
    for line, full in zip(lines, whole, strict=False):
        assert (cell_len(line) <= width, line) == (True, line.rstrip())
        # What is shown is whole, or rounded where the header's column is rounded.
        exact = set(re.findall(r"\d[\d,]*", full))
        found = re.findall(r"(?<![\w.])\d[\d,]*(?![\w.,]*\.)(?= |$)", line)
        assert {each for each in found if "." not in each} <= exact | {"0"}
    assert len(lines) > 10
    left_out = re.findall(r"left out at \d+ columns: (.*); a file", out)
    names = re.split(r"  +", lines[0])
    dropped = left_out[0].split(", ") if left_out else []
    assert set(names).isdisjoint(dropped)
    assert set(names) | set(dropped) == set(re.split(r"  +", whole[0]))
