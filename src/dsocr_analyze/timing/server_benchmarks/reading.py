"""Read a file of benchmark results from any of the known programs, whatever its name."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dsocr_analyze.errors import BenchmarkError
from dsocr_analyze.input_files import DOCUMENT_BYTES, read_bytes
from dsocr_analyze.timing.server_benchmarks import genai_perf
from dsocr_analyze.timing.server_benchmarks.benchmark import ServerBenchmark
from dsocr_analyze.timing.server_benchmarks.fields import Fields, shown
from dsocr_analyze.timing.server_benchmarks.serving_scripts import SGLANG, VLLM

__all__ = ["read_benchmarks"]

_WITHOUT_DETAILS: Final = (
    "measure without --save-detailed or --output-details, which write every request"
)
_MOST_RESULTS: Final = 100
_RIGHT: Final = (
    "give what vllm bench serve --save-result, sglang.bench_serving --output-file or genai-perf"
    " (profile_export_genai_perf.json) writes"
)


def read_benchmarks(path: Path) -> list[ServerBenchmark]:
    """The benchmarks in a file: one, or one per line.

    Args:
        path: The file.

    Raises:
        BenchmarkError: It cannot be read, is not from a known program, or lacks a figure.
    """
    name = "".join(each if each.isprintable() else "?" for each in path.name) or "?"
    return [_benchmark(text, where, name) for text, where in _results(path, _text(path))]


def _text(path: Path) -> str:
    named = repr(str(path))
    try:
        text = read_bytes(path, DOCUMENT_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        right = _WITHOUT_DETAILS if getattr(error, "errno", 0) == errno.EFBIG else _RIGHT
        raise BenchmarkError(f"cannot read {named}: {reason}; {right}") from error
    return text


def _results(path: Path, text: str) -> Iterator[tuple[str, str]]:
    """The results in a file and where each is: one, or one per non-empty line."""
    named = repr(str(path))
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_table(lines[0][1]):
        if len(lines) > _MOST_RESULTS:
            raise BenchmarkError(f"{named} has more than {_MOST_RESULTS} results; give fewer")
        yield from ((line, f"line {number} of {named}") for number, line in lines)
    else:
        yield text, named


def _is_table(line: str) -> bool:
    """Whether a line is a JSON object by itself."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _parsed(text: str, where: str) -> Fields:
    try:
        value: Any = json.loads(text)
    except RecursionError as error:
        raise BenchmarkError(f"{where} is nested too deeply; {_RIGHT}") from error
    except ValueError as error:
        raise BenchmarkError(f"{where} is not JSON ({error}); {_RIGHT}") from error
    if not isinstance(value, dict):
        raise BenchmarkError(f"{where} is {shown(value)}, not a benchmark result; {_RIGHT}")
    return Fields(value, where)


def _benchmark(text: str, where: str, file: str) -> ServerBenchmark:
    fields = _parsed(text, where)
    digest = hashlib.sha256(text.strip().encode()).hexdigest()
    for script in (VLLM, SGLANG):
        if script.recognises(fields):
            return script.benchmark(fields, file, digest)
    if genai_perf.recognises(fields):
        return genai_perf.benchmark(fields, file, digest)
    keys = ", ".join(shown(key) for key in list(fields.values)[:8]) or "none"
    raise BenchmarkError(f"{fields.where} is not a benchmark result (its keys: {keys}); {_RIGHT}")
