"""`check` holds the seconds of a saved measurement, of the same page and device, to budgets."""

import json
from pathlib import Path

import msgspec
import pytest
from both_engines import small_directory
from command_line import run

from dsocr_analyze.gate.budgets import budgets_in
from dsocr_analyze.gate.judge import loosened_keys
from dsocr_analyze.report.measured import Measurement
from dsocr_analyze.report.reading import load_measurement, load_report

PAGE = {"page": "600x500", "base_size": 128, "image_size": 64, "dtype": "float32",
        "max_new_tokens": 3}  # fmt: skip
KEY = "measured.page.median"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A config, and in m.json what `measure` wrote of it."""
    from dsocr_analyze.cli import main

    folder = tmp_path_factory.mktemp("measured")
    (folder / "config.json").write_text(json.dumps(small_directory().config))
    options = [f"--{name.replace('_', '-')}={value}" for name, value in PAGE.items()]
    config = ["--config", str(folder / "config.json")]
    few = ["--repeats", "2", "--warmups", "0", "--steps", "1"]
    assert main(["measure", *config, *options, *few, "-q", "--json", str(folder / "m.json")]) == 0
    return folder


@pytest.fixture
def folder(saved, tmp_path, monkeypatch):
    """A copy of it, which is the current folder."""
    for name in ("config.json", "m.json"):
        (tmp_path / name).write_text((saved / name).read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return tmp_path


def measured():
    return json.loads(Path("m.json").read_text())


def budgets(*limits, key=KEY, **options):
    """Of the measured workload, with these options in place of its own; None leaves one out."""
    given = {"config": "config.json", **PAGE, "measurement": "m.json",
             "measured_on": measured()["title"]} | options  # fmt: skip
    lines = [f"{name} = {json.dumps(each)}" for name, each in given.items() if each is not None]
    table = "\n".join(["[[workloads.page.budgets]]", f'key = "{key}"', *limits])
    text = "\n".join(["[workloads.page]", *lines, *([table] if limits else []), ""])
    Path("dsocr-budgets.toml").write_text(text)
    return text


def check(capsys, *options):
    code, out, err = run(capsys, "check", *options)
    return code, " ".join(f"{out} {err}".split())


# Limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "level", "code", "said"),
    [(1.0, "error", 0, "page: passed; 1 limit kept"), (0.99, "error", 1, f"error: {KEY} is "),
     (0.99, "warn", 0, f"warning: {KEY} is ")],
)  # fmt: skip
def test_measured_seconds_are_held_to_the_last_one(folder, capsys, factor, level, code, said):
    seconds = measured()["page"]["median"]
    budgets(f"max = {factor * seconds!r}", f"level = '{level}'")
    found, text = check(capsys, "--json", "check.json")
    assert (found, said in text) == (code, True), text
    [workload] = json.loads(Path("check.json").read_text())["workloads"]
    assert workload["verdicts"][0]["value"] == seconds
    device, created = measured()["title"], measured()["created"]
    assert workload["title"].endswith(f"; measured {created} on {device}")


def test_every_stage_has_its_limit(folder, capsys):
    budgets("max = 1e-9", key="measured.stages.*.fastest")
    code, text = check(capsys)
    stages = measured()["stages"]
    assert (code, len(stages)) == (1, 5)
    assert all(f"measured.stages.{name}.fastest is" in text for name in stages)
    budgets("max = 1", key="measured.page.fasted")
    assert "did you mean 'fastest'?" in check(capsys)[1]


@pytest.mark.parametrize("limit", ["max_increase", "max_decrease"])
def test_a_limit_on_a_change_of_measured_seconds_is_refused(folder, capsys, limit):
    """Not in `check --against` alone, where no baseline has any."""
    budgets("max = 1e9", f"{limit} = '2 %'")
    code, text = check(capsys)
    named = f"dsocr-budgets.toml: 'workloads.page.budgets[0].{limit}' limits a change of '{KEY}',"
    assert (code, f"{named} and a baseline has no measured seconds" in text) == (2, True), text


def test_an_update_takes_the_measured_seconds(folder, capsys):
    budgets("max = 1e-9")
    assert check(capsys, "--update")[0] == 0
    text = Path("dsocr-budgets.toml").read_text()
    assert f"max = {measured()['page']['median']!r}" in text
    assert check(capsys)[0] == 0


def test_a_measured_limit_is_loosened_and_a_first_one_loosens_nothing(folder, capsys):
    def workload(*limits):
        return budgets_in(budgets(*limits), "b.toml", is_pyproject=False)["page"]

    page = (f"--{name.replace('_', '-')}={each}" for name, each in PAGE.items())
    counting = ("--engine", "analytic", "-q", "--output", ".", "--config", "config.json", *page)
    assert run(capsys, *counting)[0] == 0
    report, found = load_report(Path("static_compute.json")), load_measurement(Path("m.json"))
    nine, ten, none = workload("max = 9"), workload("max = 10"), workload()
    for before, after, loosened in (
        (nine, ten, [KEY]), (ten, nine, []), (none, nine, []), (nine, none, [KEY]),
    ):  # fmt: skip
        assert loosened_keys(before, after, report, found) == loosened


# What a measurement is of ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"measured_on": "NVIDIA H100 80GB HBM3"}, "not NVIDIA H100 80GB HBM3"),
        ({"dtype": "bfloat16"}, "dtype float32, not bfloat16"),
        ({"page": "800x600"}, "page 600 x 500, not 800 x 600"),
        ({"base_size": 192}, "base_size 128, not 192"),
        ({"crop_mode": False, "base_size": None}, "crop_mode true, not false"),
        ({"batch_size": 2}, "batch_size 1, not 2"),
        ({"text_tokens": 99}, ", not 99"),
        ({"max_new_tokens": 4}, "max_new_tokens 3, not 4"),
        ({"use_flash_attn": True}, "attention eager, not "),
        ({"dtype": "bfloat16", "max_new_tokens": 4}, "bfloat16; max_new_tokens 3, not 4; measure"),
    ],
)
def test_another_workload_or_device_is_named(folder, capsys, options, said):
    budgets("max = 1e9", **options)
    code, text = check(capsys)
    assert (code, said in text) == (2, True), text
    assert "workload 'page': measurement 'm.json' is not of this workload: " in text


def test_a_measurement_of_another_config_or_of_older_code_is_stale(folder, capsys):
    config = json.loads(Path("config.json").read_text())
    Path("config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + 8}))
    budgets("max = 1e9")
    code, text = check(capsys)
    assert (code, "of this workload: config " in text) == (2, True)
    Path("config.json").write_text(json.dumps(config))
    document = measured()
    document["model"]["code_digest"] = "0" * 64
    Path("m.json").write_text(json.dumps(document))
    assert "of this workload: the model's code 000000000000, not " in check(capsys)[1]


def test_a_digest_counts_to_its_last_character(folder, capsys):
    budgets("max = 1e9")
    document = measured()
    digest = document["model"]["config_digest"]
    other = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    document["model"]["config_digest"] = other
    Path("m.json").write_text(json.dumps(document))
    code, text = check(capsys)
    assert (code, f"of this workload: config {other}, not {digest}; measure" in text) == (2, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"measurement": None, "measured_on": None},
         "'workloads.page.measurement' is missing; budgets of measured seconds need the file that"
         " `dsocr-analyze measure` writes as JSON"),
        ({"measurement": None}, "'workloads.page.measured_on' needs measurement; give both"),
        ({"measured_on": None}, "'workloads.page.measurement' needs measured_on; give both"),
        ({"measurement": 3}, "'workloads.page.measurement' is 3; give a text"),
        ({"measurement": "gone.json"},
         "there is no measurement 'gone.json'; `dsocr-analyze measure` writes it as JSON"),
        ({"measurement": "."}, "cannot read measurement '.': "),
        ({"measurement": "/dev/zero"}, "cannot read measurement '/dev/zero': "),
    ],
)  # fmt: skip
def test_a_measurement_that_is_not_there_is_named(folder, capsys, options, said):
    budgets("max = 1", **options)
    code, text = check(capsys)
    assert (code, said in text) == (2, True), text


# Hostile files -----------------------------------------------------------------------------------


def changed(*path, to):
    """The measurement with another value at a path."""
    document = measured()
    *parents, last = path
    part = document
    for each in parents:
        part = part[each]
    part[last] = to
    return json.dumps(document)


SPOILED = {
    "empty": lambda: "",
    "no object": lambda: "[]",
    "deep": lambda: "[" * 100_000,
    "not a number": lambda: json.dumps(measured()).replace('"repeats": 2', '"repeats": NaN'),
    "older": lambda: changed("schema_version", to="1.0"),
    "no page": lambda: json.dumps({k: v for k, v in measured().items() if k != "page"}),
    "another command": lambda: changed("command", to="infer"),
    "faster": lambda: changed("page", "fastest", to=1e-3),
    "a better median": lambda: changed("page", "median", to=1e-3),
    "fewer samples": lambda: changed("page", "samples", to=[]),
    "no time": lambda: changed("page", "samples", to=[0, 0]),
    "negative": lambda: changed("page", "samples", to=[-1, 1]),
    "endless": lambda: changed("page", "fastest", to=10**31),
    "a text": lambda: changed("page", "median", to="1"),
    "less memory": lambda: changed("peak", "measured", to=1),
    "of a stage": lambda: changed("stages", "decode", "fastest", to=1e-9),
}


@pytest.mark.parametrize("spoiled", SPOILED)
def test_a_spoiled_measurement_is_refused_in_a_line(folder, capsys, spoiled):
    text = SPOILED[spoiled]()
    assert text != Path("m.json").read_text()
    budgets("max = 1e9")
    Path("m.json").write_text(text)
    code, out, err = run(capsys, "check")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("dsocr-analyze: workload 'page': measurement 'm.json' "), err


def test_a_report_is_no_measurement(folder, capsys):
    assert run(capsys, "--engine", "analytic", "-q", "--output", ".")[0] == 0
    budgets("max = 1", measurement="static_compute.json")
    assert "measurement 'static_compute.json' is not a measurement of" in check(capsys)[1]


def test_what_measure_wrote_is_read_as_it_was(folder):
    text = Path("m.json").read_text()
    assert load_measurement(Path("m.json")) == msgspec.json.decode(text, type=Measurement)
