"""Commands whose documents are frozen, and how: run in a folder of their own, without dates."""

import contextlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from freeze import Value, digest, folded
from PIL import Image
from relatives import FAMILY

from dsocr_analyze.cli import main

ONE, TWO, UNLIMITED = FAMILY
BENCHMARK = Path(__file__).parent / "data" / "bench_vllm.json"

_LEFT_OUT = ("created", "kept", "versions", "code_digest")
"""Keys of a document that are not of figures: when, with what, and by which code."""

_DAY = re.compile(r"\bkept \d{4}-\d\d-\d\d\b")
"""The day of the run, within a sentence."""

_FOLDED = 40
"""Objects and lists of more modules than this are frozen with those together that are alike."""

SMALL_PAGE = ("--page", "700x900", "--max-new-tokens", "20")
GPUS = ("h100-sxm", "l40s")

BUDGETS = """\
[workloads.page]
page = "800x600"
max_new_tokens = 5

[[workloads.page.budgets]]
key = "total.flops"
max = 1
"""

_DOCUMENTS: dict[str, tuple[Any, ...]] = {
    **{f"analytic {name}": ("--arch", name, "--engine", "analytic", "--format", "json")
       for name in FAMILY},
    **{f"trace {name}": ("--arch", name, *SMALL_PAGE, "--format", "json")
       for name in FAMILY},
    "analytic, timed": (
        "--engine", "analytic", "--mode", "base", "--use-flash-attn", 1, "--batch-size", 2,
        "--gpu", "h100-sxm", "--runtime", "eager,serving", "--format", "json",
    ),
    **{f"time {name}": ("time", *GPUS, "--arch", name, "--runtime", "eager,serving",
                        "--concurrency", "1,16", "--format", "json")
       for name in FAMILY},
    "time, flash": ("time", "a100-80gb", "--use-flash-attn", 1, "--runtime", "eager",
                    "--concurrency", "1,4", "--format", "json"),
    "time, fp8": ("time", "h100-sxm", "--weights-dtype", "fp8", "--kv-dtype", "fp8",
                  "--runtime", "serving", "--price", 2, "--format", "json"),
    "time from a benchmark": ("time", "h100-sxm", "--from-benchmark", "bench_vllm.json",
                              "--format", "json"),
    **{f"fit {name}": ("fit", *GPUS, "--arch", name, "--format", "json")
       for name in FAMILY},
    "fit, fp32": ("fit", "t4", "--dtype", "float32", "--batch-size", 3, "--mode", "large",
                  "--format", "json"),
    **{f"tree {name}": ("tree", "--arch", name, *SMALL_PAGE[:2], "--format", "json")
       for name in FAMILY},
    **{f"advise {name}": ("advise", "--arch", name, *SMALL_PAGE[:2], "--format", "json")
       for name in (ONE, TWO)},
    "compare modes": ("compare", "--model", "reference", "--format", "json"),
    "compare architectures": ("compare", *FAMILY, *SMALL_PAGE, "--gpu", "l40s",
                              "--format", "json"),
    "check": ("check", "--budgets", "budgets.toml", "--json", "-"),
    "archive": ("archive", "pages.csv", "--mode", "all", "--gpu", "h100-sxm", "--format", "json"),
    "archive, eager": ("archive", "pages.csv", "--arch", TWO, "--gpu", "l40s", "--runtime",
                       "eager", "--format", "json"),
    "archive of a folder": ("archive", "scans", "--arch", UNLIMITED, "--format", "json"),
    "devices": ("devices", "--format", "json"),
}  # fmt: skip
"""Arguments of commands that print a JSON document."""

_TABLES: dict[str, tuple[Any, ...]] = {
    "sweep": (
        "sweep", "--page", "a4,600x500,2000x2000,640x3900", "--mode", "all", "--dtype",
        "bfloat16,float32", "--use-flash-attn", "0,1", "--batch-size", "1,3",
        "--max-new-tokens", "1,1024",
    ),
    "sweep of sizes": (
        "sweep", "--page", "500:2500:500x900", "--mode", "512:1280:64,1024/640", "--text-tokens",
        "1,300",
    ),
    "sweep of deepseek-ocr-2": ("sweep", "--arch", TWO, "--page", "a4,1600x768", "--mode", "all",
                                "--use-flash-attn", "0,1"),
    "sweep of unlimited-ocr": ("sweep", "--arch", UNLIMITED, "--page", "a4,5200x2600", "--mode",
                               "all", "--sliding-window", "0,1", "--max-new-tokens", "100,1000"),
    "sweep, timed": ("sweep", "--mode", "all", "--page", "a4,600x500", "--gpu", "h100-sxm,l40s",
                     "--runtime", "serving"),
    "archive, row by row": ("archive", "pages.csv"),
}  # fmt: skip
"""Arguments of commands that write CSV."""


def command_cases() -> Mapping[str, Callable[[], Value]]:
    return {
        **{name: partial(_document, arguments) for name, arguments in _DOCUMENTS.items()},
        **{name: partial(_table, arguments) for name, arguments in _TABLES.items()},
    }


def _document(arguments: tuple[Any, ...]) -> Value:
    with _folder():
        code, text = _run(arguments)
        return {"exit code": code, "document": _kept(json.loads(text))}


def _table(arguments: tuple[Any, ...]) -> Value:
    """Rows by number, each with its columns."""
    with _folder() as folder:
        code, _ = _run((*arguments, "--output", "rows.csv"))
        header, *rows = (folder / "rows.csv").read_text().splitlines()
    names = header.split(",")
    return {"exit code": code} | {
        f"row {number}": dict(zip(names, map(_number, row.split(",")), strict=True))
        for number, row in enumerate(rows)
    }


def _number(text: str) -> str | float:
    """A float, whose last digits may differ, as a number; anything else as it is written."""
    try:
        return float(text) if "." in text else text
    except ValueError:
        return text


def _run(arguments: tuple[Any, ...]) -> tuple[int, str]:
    """Exit code and what is printed; 1 means that a budget is exceeded, or that no page fits."""
    told = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(told):
        code = main([str(argument) for argument in arguments])
    assert code in (0, 1), f"{arguments}: {told.getvalue()}"
    return code, out.getvalue()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A working folder with small inputs, where nothing of a user's is found."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        pages = [(97 * n % 3000 + 300, 61 * n % 4100 + 200) for n in range(60)]
        lines = (f"{width},{height}\n" for width, height in pages)
        (folder / "pages.csv").write_text("width,height\n" + "".join(lines))
        (folder / "budgets.toml").write_text(BUDGETS)
        shutil.copy(BENCHMARK, folder)
        (folder / "scans").mkdir()
        for number, (width, height) in enumerate(pages[:12]):
            Image.new("1", (width, height)).save(folder / "scans" / f"{number:02}.png")
        own = {"XDG_CONFIG_HOME": f"{name}/own", "COLUMNS": "80", "GITHUB_STEP_SUMMARY": ""}
        with mock.patch.dict(os.environ, own):
            yield folder


def _kept(value: Value) -> Value:
    """A document without what is not a figure, its modules folded and its floats to ten digits."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, str):
        return _DAY.sub("kept", value)
    if isinstance(value, list):
        if len(value) > _FOLDED and all(
            isinstance(each, dict) and "name" in each for each in value
        ):
            return _modules({each["name"]: _kept(each | {"name": ""}) for each in value})
        return [_kept(each) for each in value]
    if isinstance(value, dict):
        kept = {key: _kept(each) for key, each in value.items() if key not in _LEFT_OUT}
        return _modules(kept) if len(kept) > _FOLDED and "model" in kept else kept
    return value


def _modules(by_path: dict[str, Value]) -> Value:
    return {"order": digest(list(by_path)), **folded(by_path)}
