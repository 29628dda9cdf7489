"""The JSON documents of all commands: how they open, their keys, and their schemas."""

import functools
import json
import re
from importlib import resources
from pathlib import Path

import jsonschema
import pyarrow.parquet as pq
import pytest
import write_schema
from command_line import run
from jsonschema import Draft202012Validator
from PIL import Image
from sampling import named, sampled
from write_schema import DOCUMENTS

from dsocr_analyze.archive.table_files import METADATA_KEY
from dsocr_analyze.cli.commands import application
from dsocr_analyze.report.opening import dump_json

schemas = functools.cache(write_schema.schemas)

NO_DOCUMENT = {
    "calibrate": "writes a profile, which is TOML",
    "docs": "writes Markdown",
    "stages": "writes a stages file, which is TOML",
    "trust": "prints digests, as sha256sum does",
}
"""Commands that write no JSON document, and what they write instead."""

LATER_KEYS = {
    "Model": {"config_text"}, "TimeAssumptions": {"correction", "limits", "notes"},
    "TimeEntry": {"busy_share", "kv_tokens", "ridge_flops_per_byte", "served_page_seconds"},
    "View": {"height"}, "Workload": {"prompt_pages"},
}  # fmt: skip
"""Keys that every report has now, or all but squares, and that earlier reports are read without."""

COMMITTED = resources.files("dsocr_analyze").joinpath("report")


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    Path("scans").mkdir()
    Image.new("RGB", (300, 200)).save("scans/a.png")
    Image.new("RGB", (1240, 1754)).save("scans/b.png")


def document(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--format", "json")
    assert code == 0, err
    return json.loads(out)


WRITTEN = {
    "compare": ("compare", "tiny", "base"),
    "devices": ("devices",),
    "devices-corrections": ("devices", "--corrections"),
    "fit": ("fit",),
    "time": ("time", "h100", "--max-new-tokens", "2"),
    "plan": ("plan", "--pages", "9", "--gpu", "h100", "--deadline", "1h"),
    "archive": ("archive", "scans", "--mode", "all", "--gpu", "h100", "--deadline", "1h"),
    "tree": ("tree", "--page", "600x500", "--mode", "tiny"),
    "tree-leaves": ("tree", "--leaves"),
    "advise": ("advise", "--page", "a4@200"),
}
"""A command line for each kind of document that needs no files of its own."""

OF_OTHER_TESTS = {
    "schema": "tests/test_report.py",
    "check": "tests/test_check.py",
    "infer": "tests/test_inference.py",
    "measure": "tests/test_measuring.py",
    "time-from-benchmark": "tests/test_time_command.py",
    "table": "below",
}
"""Kinds whose documents other tests make, and hold against their schema."""


def test_every_command_has_a_schema_or_says_why_not_and_every_kind_is_held_against_it():
    commands = application.commands
    assert {"", *commands} == DOCUMENTS.keys() | NO_DOCUMENT.keys()
    for name, command in commands.items():
        formats = [each.metavar for each in command.params if "--format" in each.opts]
        writes = any("json" in each.split("|") for each in formats)
        assert name in DOCUMENTS or not writes, f"{name} writes JSON and has no schema"
    kinds = {kind for found in DOCUMENTS.values() for kind in found}
    assert kinds == WRITTEN.keys() | OF_OTHER_TESTS.keys()


def test_the_committed_schemas_are_those_of_the_types_and_describe_every_key_in_snake_case():
    for name, schema in schemas().items():
        committed = json.loads(COMMITTED.joinpath(name).read_text())
        assert committed == json.loads(json.dumps(schema)), "python scripts/write_schema.py"
        for kind, definition in schema["$defs"].items():
            assert definition["description"], kind
            for key, about in definition["properties"].items():
                assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", key), f"{name}: {key}"
                assert about["description"].endswith("."), f"{name}: {key}"
            optional = set(definition["properties"]) - set(definition["required"])
            assert name != "schema.json" or optional == LATER_KEYS.get(kind, set()), kind


@sampled("kind", WRITTEN, named("compare", "time"))
def test_a_document_says_what_it_is_of_and_fits_its_schema_and_no_other_kinds(capsys, kind):
    found = document(capsys, *WRITTEN[kind])
    of_kind = {each: schemas()[f"schema-{each}.json"] for each in WRITTEN}
    jsonschema.validate(found, of_kind[kind])
    fitting = (each for each in WRITTEN if Draft202012Validator(of_kind[each]).is_valid(found))
    assert [*fitting] == [kind]
    assert list(found)[:3] == ["schema_version", "command", "options"]
    assert (found["schema_version"], found["command"]) == ("2", WRITTEN[kind][0])
    models = [found] if "model" in found else found.get("columns", [])
    assert models or kind.startswith("devices")
    assert all({"source", "id", "config_digest"} <= each["model"].keys() for each in models)
    # The options are those that were used.
    options = found["options"]
    assert all(name.replace("_", "").isalnum() and name.islower() for name in options)
    assert options.keys().isdisjoint({"output", "format", "json", "quiet", "debug", "strict"})
    given = [text for text in WRITTEN[kind] if text.startswith("--")]
    for option, value in zip(given, WRITTEN[kind][-2 * len(given) + 1 :: 2], strict=False):
        if kind in ("time", "archive", "tree"):
            assert str(value) in str(options[option[2:].replace("-", "_")])


def test_a_table_says_what_it_is_of_a_pure_one_beside_it(capsys):
    line = ("sweep", "--page", "a4@200", "--output")
    of_csv = run(capsys, *line, "rows.csv")
    of_parquet = run(capsys, *line, "rows.parquet")
    assert (of_csv[0], "rows.csv.json" in of_csv[1]) == (0, True)
    assert (of_parquet[0], ".json" in of_parquet[1]) == (0, False)
    assert Path("rows.csv").read_text().startswith("page_width,")
    for text in (
        Path("rows.csv.json").read_text(), pq.read_schema("rows.parquet").metadata[METADATA_KEY]
    ):  # fmt: skip
        about = json.loads(text)
        jsonschema.validate(about, schemas()["schema-table.json"])
        assert (about["command"], about["options"]["page"]) == ("sweep", "a4@200")


def test_texts_and_objects_of_a_list_stand_in_lines_of_their_own():
    written = dump_json({"gpu": ("l4", "h100"), "views": [{"count": 1}], "sizes": (640, 1024)})
    assert written.splitlines() == [
        "{", '  "gpu": [', '    "l4",', '    "h100"', "  ],", '  "views": [', '    {"count": 1}',
        "  ],", '  "sizes": [640, 1024]', "}",
    ]  # fmt: skip
