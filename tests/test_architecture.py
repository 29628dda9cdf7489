"""The rooms of the house: what may import what, who prints, and what stays free of torch."""

import ast
import functools
import graphlib
import itertools
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from rooms import ROOMS, drawn, nodes_by_kind, nodes_in, parsed
from sampling import first, sampled

from dsocr_analyze.cli import commands

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = "dsocr_analyze"

STRANGERS = {
    ("trace", "analytic"): "their agreement proves nothing if they share a formula",
    ("trace", "tape"): "the same",
}
"""Rooms that must not import one another although one stands before the other."""

WITNESSES = {"trace", "model", "agreement"}
"""Rooms of the engine that runs a model, which proves nothing to forwards that know it."""

SHARED = {
    ("dsocr_analyze.figures", "owner_among"): "finds a module's stage",
    ("dsocr_analyze.kernels", "grouped"): "only puts items into groups",
    **{
        ("dsocr_analyze.kernels", name): "only adds records up"
        for name in ("merged", "total_work", "work_by")
    },
}
"""Functions that both a trace and the forwards use, and why none is a formula of costs."""

DOORS = {
    "dsocr_analyze": "the package's own names, each imported where it is first used",
    "dsocr_analyze.__main__": "starts the command line",
}
"""Modules above all rooms, which no other module imports."""

PRIVATE_TO = {
    f"dsocr_analyze.architectures.{folder.parent.name}": (
        "architectures",
        "documents",
        "traced_forms",
    )
    for folder in (SOURCE / PACKAGE / "architectures").glob("*/__init__.py")
}
"""Rooms within a room, and who may name them: others ask the registry for an `Architecture`."""


def module_of(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    module_of(file): file
    for file in sorted((SOURCE / PACKAGE).rglob("*.py"))
    if "reference" not in file.parts  # the built-in references, each in its vendor's own layout
}


@pytest.fixture(scope="module", autouse=True)
def _forgotten():
    """A million nodes, which would slow garbage collection down in the tests that follow."""
    yield
    parsed.cache_clear()
    nodes_by_kind.cache_clear()


def imports_in(module, tree, modules):
    """Modules among `modules` that a module's code imports, wherever in it and for whatever."""
    for node in nodes_in(tree, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    for origin, alias in imported_from(module, tree, modules):
        named = (f"{origin}.{alias.name}", origin)  # a module, or a name in one
        yield from [each for each in named if each in modules][:1]


def imported_from(module, tree, modules):
    """Every `from origin import alias` in a module's code, as `origin, alias`."""
    is_package = any(name.startswith(module + ".") for name in modules)
    parts = module.split(".")
    for node in nodes_in(tree, ast.ImportFrom):
        here = parts[: len(parts) - node.level + is_package] if node.level else []
        origin = ".".join([*here, *([node.module] if node.module else [])])
        yield from ((origin, alias) for alias in node.names)


@functools.cache
def imports() -> dict[str, set[str]]:
    """What every module imports."""
    return {module: set(imports_in(module, parsed(file), FILES)) for module, file in FILES.items()}


def forwards() -> set[str]:
    """The tape, and whatever uses it within the architectures."""
    tape = {module for module in FILES if room_of(module) == "tape"}
    users = {module for module, found in imports().items() if found & tape}
    return tape | {module for module in users if room_of(module) == "architectures"}


def reached_from(modules: set[str]) -> set[str]:
    """What these import, directly or by way of others."""
    found: set[str] = set()
    left = [*modules]
    while left:
        new = imports()[left.pop()] - found
        found |= new
        left += new
    return found


def names_from(module: str) -> set[tuple[str, str]]:
    """What a module imports of its own package, as `origin, name`."""
    found = imported_from(module, parsed(FILES[module]), FILES)
    return {(origin, alias.name) for origin, alias in found if origin in FILES}


def is_type(origin: str, name: str) -> bool:
    """Whether a name begins like a class or is written like a constant."""
    return name.lstrip("_")[:1].isupper()


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def complaints():
    """Every import that runs against the direction, as `importer -> imported`."""
    rank = {room: number for number, rooms in enumerate(ROOMS) for room in rooms}
    for importer, imported in ((a, b) for a, found in imports().items() for b in sorted(found)):
        rooms = room_of(importer), room_of(imported)
        private = [who for room, who in PRIVATE_TO.items() if f"{imported}.".startswith(f"{room}.")]
        if (
            imported in DOORS
            or rooms in STRANGERS
            or any(rooms[0] not in who for who in private)
            or (importer not in DOORS and rooms[0] != rooms[1] and rank[rooms[0]] <= rank[rooms[1]])
        ):
            yield f"{importer} -> {imported}"


class TestPicture:
    def test_contributing_shows_the_rooms_as_they_are(self):
        text = (SOURCE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
        assert drawn() in text, "draw them again: python scripts/rooms.py"


class TestImports:
    def test_every_room_is_listed(self):
        listed = set(itertools.chain(*ROOMS))
        found = {room_of(module) for module in FILES if module not in DOORS}
        assert found == listed, "list it in scripts/rooms.py"

    def test_a_room_imports_only_rooms_before_it(self):
        assert list(complaints()) == []

    def test_the_forwards_know_nothing_of_a_trace(self):
        reached = reached_from(forwards())
        assert {room_of(module) for module in reached}.isdisjoint(WITNESSES)

    def test_a_trace_shares_types_with_the_forwards_and_no_formula(self):
        used = {module: names_from(module) for module in FILES}
        theirs = set().union(*(used[module] for module in FILES if room_of(module) == "trace"))
        ours = set().union(*(used[module] for module in reached_from(forwards()) | forwards()))
        shared = {(origin, name) for origin, name in theirs & ours if not is_type(origin, name)}
        assert shared <= SHARED.keys(), "say why it is no formula"
        assert shared >= SHARED.keys(), "no longer shared"

    def test_no_file_imports_itself_by_way_of_others(self):
        graphlib.TopologicalSorter(imports()).prepare()  # or raises, and names them


def public_names(tree):
    """The names that a file defines without an underscore."""
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found = {name}
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
                found = {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
            case _:
                continue
        yield from (name for name in found if not name.startswith("_"))


def test_a_public_name_is_one_that_another_file_knows():
    """Classes aside, which may be the types of public names, and exit codes, which are one set."""
    known = Counter(
        word
        for folder in ("src", "benchmarks", "examples", "scripts", "tests")
        for file in (SOURCE.parent / folder).rglob("*.py")
        for word in set(re.findall(r"\w+", file.read_text(encoding="utf-8")))
    )
    unknown = [
        f"{module}.{name}"
        for module in FILES.keys() - {"dsocr_analyze.cli.exits"}
        for name in public_names(parsed(FILES[module]))
        if known[name] == 1 and not re.fullmatch("[A-Z].*[a-z].*", name)
    ]
    assert unknown == []


OPENERS = {
    "dsocr_analyze.input_files": "the one place",
    "dsocr_analyze.package_data": "the one place of the package's own files",
    "dsocr_analyze.output_files": "copies its own temporary file into a device",
    "dsocr_analyze.hardware.profile": "resources of the package",
    "dsocr_analyze.measuring.machine": "/proc/cpuinfo",
    "dsocr_analyze.cli.check": "appends to the summary of a CI step",
    "dsocr_analyze.archive.table_files": "writes a temporary file",
    "dsocr_analyze.__main__": "/dev/null in place of a closed stream",
    "dsocr_analyze.cli.streams": "/dev/null in place of a broken stream",
    "dsocr_analyze.model.process_settings": "/dev/null in place of stdout",
    "dsocr_analyze.model.directory": "/dev/null in place of stderr",
}
"""Modules that open files themselves, and what."""


def openings_in(tree):
    """Lines that open a file by its path, or read it whole."""
    for node in nodes_in(tree, ast.Call):
        match node.func:
            case ast.Name(id="open"):
                yield node.lineno
            case ast.Attribute(value=ast.Name(id="Image"), attr="open") if any(
                getattr(each, "id", "") == "content" for each in node.args
            ):
                pass  # pillow's, of a file that is open
            case ast.Attribute(attr="open" | "read_bytes" | "read_text"):
                yield node.lineno


class TestReading:
    def test_files_are_opened_in_one_place(self):
        found = [
            f"{module}:{line}"
            for module, file in FILES.items()
            if module not in OPENERS
            for line in openings_in(parsed(file))
        ]
        assert found == []


@pytest.mark.exhaustive
def test_torch_is_not_imported_by_what_needs_none():
    modules = (
        "", ".cli.commands", ".analytic", ".architectures", ".hardware.fit",
        ".report.markdown", ".archive.combinations", ".archive", ".timing.length_files",
        ".timing.server_benchmarks.comparison", ".timing.server_benchmarks.reading", ".workload",
    )  # fmt: skip
    code = "import importlib, sys\n" + "".join(
        f"importlib.import_module('{PACKAGE}{module}')\n"
        f"assert not {{'torch', 'transformers'}} & sys.modules.keys(), '{PACKAGE}{module}'\n"
        for module in modules
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_is_imported_before_an_interruption_can_be_answered():
    code = (
        "import sys; before = set(sys.modules); import dsocr_analyze.__main__;"
        " print(*(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {PACKAGE, f"{PACKAGE}.__main__", "__future__", "gc", "os"}


PROGRAM = (
    f"typer annotated_doc rich shellingham typing_extensions {PACKAGE} dsocr_analyze_remote msgspec"
    " markdown_it mdurl pygments"
)
TRACE = (
    "torch functorch torchgen numpy typing_extensions tqdm"
    " transformers charset_normalizer chardet certifi filelock huggingface_hub idna jinja2"
    " markupsafe packaging PIL regex requests safetensors socks tokenizers urllib3 yaml"
    " fvcore iopath portalocker tabulate termcolor"
)
"""Packages that the program imports, and those that a trace does: all that its start-up costs."""


@sampled(
    ("line", "command", "packages"),
    [
        ("--engine analytic -q", None, PROGRAM),
        ("--version", None, PROGRAM),
        ("devices", "devices", PROGRAM),
        ("compare base gundam", "compare", PROGRAM),
        ("--model reference -q", None, f"{PROGRAM} {TRACE}"),
    ],
    first(1),
)
def test_nothing_is_imported_that_a_command_does_not_use(tmp_path, line, command, packages):
    code = (
        "import sys; before = set(sys.modules); from dsocr_analyze.cli import main;"
        f" code = main({line.split()!r});"
        " print(*(name for name in set(sys.modules) - before"
        " if getattr(sys.modules[name], '__file__', None)), file=sys.stderr); sys.exit(code)"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    modules = set(done.stderr.split())
    found = [name for name in commands.COMMANDS if f"{PACKAGE}.cli.{name}" in modules]
    assert found == [command] * (command is not None)
    imported = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
    assert {name for name in imported if not name.startswith("_")} <= set(packages.split())


class TestSizes:
    """A function fits on a screen, a file has one subject."""

    def test_no_file_is_longer_than_550_lines_and_no_function_than_70(self):
        long = [name for name, file in FILES.items() if len(file.read_text().splitlines()) > 550]
        long += [
            f"{module}.{node.name}"
            for module, file in FILES.items()
            for node in nodes_in(parsed(file), ast.FunctionDef)
            if node.end_lineno - node.lineno + 1 > 70
        ]
        assert long == []
