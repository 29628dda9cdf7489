"""The rooms of the house: what may import what, and what stays free of torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "dsocr_analyze"

# workload -> model -> trace and costs -> report: a room may import those before it.
MAY_IMPORT = {
    "errors": set(),
    "work": set(),
    "workload": {"errors"},
    "model": {"errors"},
    "costs": {"errors", "work", "workload", "model"},
    "trace": {"errors", "work", "workload", "model"},
    "hardware": {"errors", "workload", "model", "costs"},
    "report": {"errors", "work", "workload", "model"},
    "closed_form": {"__version__", "errors", "work", "workload", "model", "costs", "report"},
    "knowledge": {"analysis", "errors", "work", "workload", "model", "costs", "trace", "report"},
    "sweep": {"errors", "work", "workload", "model", "costs", "report", "closed_form"},
}


def imports_of(room):
    """Rooms that the files of `room` import, by file."""
    path = PACKAGE / room
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    for file in files:
        if "reference" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == "dsocr_analyze" and len(parts) > 1:
                    yield file.relative_to(PACKAGE), parts[1]


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_the_rooms_before_it(room):
    for file, imported in imports_of(room):
        assert imported in MAY_IMPORT[room] | {room}, f"{file} imports {imported}"


def test_only_the_command_line_prints():
    for file in PACKAGE.rglob("*.py"):
        if file.relative_to(PACKAGE).parts[0] in ("cli", "__main__.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            is_print = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
            # The reference's text streamer prints tokens: that is what the published one is for.
            assert not is_print or file.name == "modeling_deepseekocr.py", file


@pytest.mark.parametrize(
    "module",
    ["dsocr_analyze", "dsocr_analyze.cli", "dsocr_analyze.closed_form", "dsocr_analyze.costs",
     "dsocr_analyze.hardware.fit", "dsocr_analyze.report.markdown", "dsocr_analyze.sweep",
     "dsocr_analyze.workload",
     "dsocr_analyze.model.dimensions"],
)  # fmt: skip
def test_torch_is_not_imported_by(module):
    code = (
        f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_analytic_engine_runs_without_torch(tmp_path):
    code = (
        "import sys; from dsocr_analyze.cli import main;"
        " code = main(['--engine', 'analytic', '-q']);"
        " sys.exit(code or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0
