"""The JSON documents of all commands: how they open, their keys, and their schemas."""

import functools
import json
import re
from importlib import resources
from pathlib import Path

import jsonschema
import pyarrow.parquet as pq
import pytest
from command_line import run
from PIL import Image
from sampling import every, sampled

from dsocr_analyze.archive.table_files import METADATA_KEY
from dsocr_analyze.cli import documents
from dsocr_analyze.cli.commands import application
from dsocr_analyze.cli.documents import DOCUMENTS
from dsocr_analyze.report.opening import dump_json, schema_of

schemas = functools.cache(documents.schemas)

NO_DOCUMENT = {
    "calibrate": "writes a profile, which is TOML",
    "docs": "writes Markdown",
    "stages": "writes a stages file, which is TOML",
    "trust": "prints digests, as sha256sum does",
}
"""Commands that write no JSON document, and what they write instead."""

LATER_KEYS = {
    "Model": {"config_text"}, "TimeAssumptions": {"correction"},
    "TimeEntry": {"ridge_flops_per_byte"}, "Workload": {"prompt_pages"},
}  # fmt: skip
"""Keys that every report has now, and that reports of an earlier release are read without."""

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
    "time-from-benchmark": "tests/test_time_from_benchmark.py",
    "table": "below",
}
"""Kinds whose documents other tests make, and hold against their schema."""


class TestSchemas:
    def test_every_command_has_a_schema_or_says_why_not(self):
        commands = application.commands
        assert {"", *commands} == DOCUMENTS.keys() | NO_DOCUMENT.keys()
        for name, command in commands.items():
            formats = [each.metavar for each in command.params if "--format" in each.opts]
            if any("json" in each.split("|") for each in formats):
                assert name in DOCUMENTS, f"{name} writes JSON and has no schema"

    def test_every_kind_is_held_against_its_schema_somewhere(self):
        kinds = {kind for found in DOCUMENTS.values() for kind in found}
        assert kinds == WRITTEN.keys() | OF_OTHER_TESTS.keys()

    def test_the_committed_schemas_are_those_of_the_types(self):
        for name, schema in schemas().items():
            committed = json.loads(COMMITTED.joinpath(name).read_text())
            assert committed == json.loads(json.dumps(schema)), "python scripts/write_schema.py"

    def test_they_describe_every_key_in_snake_case(self):
        for name, schema in schemas().items():
            for kind, definition in schema["$defs"].items():
                assert definition["description"], kind
                for key, about in definition["properties"].items():
                    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", key), f"{name}: {key}"
                    assert about["description"].endswith("."), f"{name}: {key}"
                optional = set(definition["properties"]) - set(definition["required"])
                assert name != "schema.json" or optional == LATER_KEYS.get(kind, set()), kind

    def test_a_key_without_a_description_is_no_schema(self):
        class Undescribed(__import__("msgspec").Struct):
            """Nothing is said of its key."""

            key: int

        with pytest.raises(KeyError, match="key"):
            schema_of(Undescribed, "x")


@pytest.fixture(scope="module")
def made():
    """Documents that have been written, by their command line."""
    return {}


@pytest.fixture
def found(capsys, kind, made):
    if kind not in made:
        made[kind] = document(capsys, *WRITTEN[kind])
    return made[kind]


@sampled("kind", WRITTEN, every(5))
class TestDocuments:
    def test_each_fits_its_schema_and_no_other_kinds(self, found, kind):
        all_schemas = schemas()
        jsonschema.validate(found, all_schemas[f"schema-{kind}.json"])
        for other in WRITTEN.keys() - {kind}:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(found, all_schemas[f"schema-{other}.json"])

    def test_each_opens_with_what_it_is_of(self, found, kind):
        assert list(found)[:3] == ["schema_version", "command", "options"]
        assert found["schema_version"] == "2"
        assert found["command"] == WRITTEN[kind][0]
        models = [found] if "model" in found else found.get("columns", [])
        assert models or kind.startswith("devices")
        for each in models:
            assert {"source", "id", "config_digest"} <= each["model"].keys()

    def test_options_are_those_that_were_used(self, found, kind):
        options = found["options"]
        assert all(name.replace("_", "").isalnum() and name.islower() for name in options)
        assert options.keys().isdisjoint({"output", "format", "json", "quiet", "debug", "strict"})
        given = [text for text in WRITTEN[kind] if text.startswith("--")]
        for option, value in zip(given, WRITTEN[kind][-2 * len(given) + 1 :: 2], strict=False):
            if kind in ("time", "archive", "tree"):
                assert str(value) in str(options[option[2:].replace("-", "_")])


class TestCompare:
    @pytest.mark.exhaustive
    def test_every_key_is_of_one_row_and_of_each_column(self, capsys):
        found = document(capsys, "compare", "tiny", "base", "--batch-size", 2, "--gpu", "h100")
        keys = [row["key"] for row in found["rows"]]
        assert len(keys) == len(set(keys))
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", key) for key in keys)
        wanted = {"page_flops", "page_bytes", "prefill_flops", "decode_step_flops", "batch_flops",
                  "h100_sxm_serving_page_seconds"}  # fmt: skip
        assert wanted <= set(keys)
        for index, column in enumerate(found["columns"]):
            assert column["name"] == found["names"][index]
            assert column["figures"] == {row["key"]: row["values"][index] for row in found["rows"]}

    @pytest.mark.exhaustive
    def test_a_column_says_its_page_type_and_attention(self, capsys):
        found = document(
            capsys, "compare", "--dtype", "bf16,fp32", "--use-flash-attn", "0,1",
            "--page", "a4@200", "--mode", "tiny",
        )  # fmt: skip
        ways = [(each["dtype"], each["attention"]) for each in found["columns"]]
        assert ways == [
            ("bfloat16", "eager"), ("bfloat16", "flash_attention_2"),
            ("float32", "eager"), ("float32", "flash_attention_2"),
        ]  # fmt: skip
        assert [each["workload"]["page"] for each in found["columns"]] == [[1654, 2339]] * 4


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [("compare", "gundam", "tiny"), ("fit", "h100")])
@pytest.mark.parametrize("form", ["table", "markdown"])
def test_the_same_grid_at_two_resolutions_is_told_apart(capsys, monkeypatch, command, form):
    monkeypatch.setenv("COLUMNS", "400")  # where no line is broken

    def opening(page):
        _, out, _ = run(capsys, *command, "--page", page, "--format", form)
        return out.splitlines()[1]

    coarse, fine = opening("a4@150"), opening("a4@200")
    assert coarse.startswith("Page of 1240 x 1754 pixels, views 1024/640 (cut 2 x 3)")
    assert coarse != fine
    assert fine == coarse.replace("1240 x 1754", "1654 x 2339")
    for said in ("913", "prompt tokens", "batch 1", "1,024 new tokens", "bfloat16", "eager"):
        assert said in coarse


@pytest.mark.parametrize("file", ["rows.csv", "rows.parquet"])
def test_a_table_says_what_it_is_of_a_pure_one_beside_it(capsys, file):
    code, out, _ = run(capsys, "sweep", "--page", "a4@200", "--output", file)
    if file == "rows.csv":
        assert Path(file).read_text().startswith("page_width,")
        text = Path("rows.csv.json").read_text()
    else:
        text = pq.read_schema(file).metadata[METADATA_KEY]
    assert (code, "rows.csv.json" in out) == (0, file == "rows.csv")
    about = json.loads(text)
    jsonschema.validate(about, schemas()["schema-table.json"])
    assert (about["command"], about["options"]["page"]) == ("sweep", "a4@200")


def test_texts_and_objects_of_a_list_stand_in_lines_of_their_own():
    written = dump_json({"gpu": ("l4", "h100"), "views": [{"count": 1}], "sizes": (640, 1024)})
    assert written.splitlines() == [
        "{", '  "gpu": [', '    "l4",', '    "h100"', "  ],", '  "views": [', '    {"count": 1}',
        "  ],", '  "sizes": [640, 1024]', "}",
    ]  # fmt: skip
