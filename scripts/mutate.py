#!/usr/bin/env python3
"""Changes the program in small ways, one at a time, and asks whether a test notices.

    python scripts/mutate.py --coverage DIR            ask about those without an answer
    python scripts/mutate.py --coverage DIR --again    ask today's program and tests all over
    python scripts/mutate.py                           only write the table again

The mutations are chosen by chance from a seed, spread over all rooms (`mutations.py`); for those
whose code is gone, new ones are chosen where a room has too few. Each runs in a copy of what HEAD
holds, against the tests that run its line, nearest first: those that run the fewest lines. Which
these are is measured once and kept in DIR, which takes the package `coverage`.

`benchmarks/mutations.json` holds what was chosen and what came of it, and is where the next run
goes on; `benchmarks/mutations.md` shows it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from mutations import Mutation, chosen, digest, mutations_of

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = Path("src", "dsocr_analyze")
RESULTS: Final = ROOT / "benchmarks" / "mutations.json"
NEAREST: Final = 40  # tests that are asked first
DATA_BYTES: Final = 6 << 30  # a mutation must not fill the machine

EQUIVALENT: Final = {
    "8cb13dfa": "a copy of what nobody else holds",
    "fc58909e": "2^41 parts of 22 bits fit in 63 bits too",
    "58d79f04": "an exception keeps the positional arguments that it is made with, and every error"
    " is made with its message as one",
    "30bae769": "no text is as wide as either",
    "63f77809": "every one is made by keyword",
    "94dec29b": "only the closest name is used",
    "ad259a44": "every one is read from JSON",
    "d4060c28": "with one path, the loop can return no other than the line after it does",
    "4b872470": "a table shows as many rows, however many are kept",
    "56b62c3b": "the reader is freed, and so closed, with the frame that read it",
    "e07ed798": "there is a timer wherever there is a time",
    "9d994baf": "the next line creates the handler too",
}
"""Mutations that change nothing, and why."""

# Tests that run them ----------------------------------------------------------------------------


def pytest_runtest_protocol(item: Any) -> None:
    """As a plugin of pytest, under coverage: what runs from here on is this test's."""
    if "coverage" in sys.modules and (measuring := sys.modules["coverage"].Coverage.current()):
        measuring.switch_context(item.nodeid)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """As a plugin, about a mutation: keeps the tests that are listed, in that order."""
    if listed := os.environ.get("MUTATIONS_TESTS"):
        tests = json.loads(Path(listed).read_text("utf-8"))
        order = {name: number for number, name in enumerate(tests["asked"])}
        named = {item: {item.nodeid, _file_of(item.nodeid)} & order.keys() for item in items}
        kept = [item for item in items if named[item] and item.nodeid not in tests["unsound"]]
        items[:] = sorted(kept, key=lambda item: order[named[item].pop()])


def pytest_runtest_logreport(report: Any) -> None:
    """As a plugin, about a mutation: notes the test, or the file, that noticed it."""
    if report.failed and (listed := os.environ.get("MUTATIONS_TESTS")):
        Path(listed).with_name("first").write_text(report.nodeid, "utf-8")


pytest_collectreport = pytest_runtest_logreport


def _file_of(test: str) -> str:
    return test.partition("::")[0]


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of what HEAD holds, in a folder for whatever tests write; both are removed."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Path(folder, "copy")
        subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, copy], check=True)
        yield copy


def git(copy: Path, *arguments: str) -> str:
    """What git says in a copy."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, check=True).stdout


def _prepare() -> None:
    """In a new process, before it runs anything."""
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what runs in the background ignores it


def ended(
    copy: Path, seconds: float, *arguments: str, under: Iterable[str] = (), **variables: str
) -> int | None:
    """The exit status of pytest in a copy, or None if it takes too long; no process stays."""
    paths = [copy / "src", copy.parent, ROOT / "scripts", os.environ.get("PYTHONPATH")]
    environment = os.environ | variables | {"TMPDIR": str(copy.parent)}
    environment["PYTHONPATH"] = os.pathsep.join(str(path) for path in paths if path)
    process = subprocess.Popen(
        [sys.executable, *under, "-m", "pytest", "-p", "no:cacheprovider", "-p", "mutate",
         *arguments],
        cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, preexec_fn=_prepare,
    )  # fmt: skip
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Coverage:
    """Which tests run a line.

    Every file of tests is measured in a process of its own, so none finds what the tests of another
    have cached. What runs in a process that a test starts, or at import, is its whole file's.
    """

    def __init__(self, copy: Path, folder: Path) -> None:
        self.folder = folder / git(copy, "rev-parse", f"HEAD:{PACKAGE}")[:12]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
        self.sizes: Counter[str] = Counter()
        for path in sorted((copy / "tests").glob("test_*.py")):
            file, name = f"tests/{path.name}", f"{path.stem}-{digest(path.read_bytes())}"
            done = self.folder / f"{name}.json"
            if not done.exists():
                print(f"measuring {file}", flush=True)
                done.write_text(json.dumps({"seconds": self._measure(copy, file, name)}))
            self.seconds[file] = json.loads(done.read_text())["seconds"]
            for data in self.folder.glob(f"{name}.coverage.*"):
                self._read(data, file)

    def _measure(self, copy: Path, file: str, name: str) -> float:
        settings = copy.parent / "coverage.ini"
        settings.write_text(
            f"[run]\nparallel = true\npatch = _exit, fork\ninclude = {copy / PACKAGE}/*\n"
            f"data_file = {self.folder / name}.coverage\n"
        )
        (copy.parent / "sitecustomize.py").write_text(
            "import os\nif 'COVERAGE_PROCESS_START' in os.environ:\n"
            "    import coverage\n    coverage.process_startup()\n"
        )
        start = time.monotonic()
        under = ("-m", "coverage", "run", f"--rcfile={settings}")
        ended(copy, 1800, file, under=under, COVERAGE_PROCESS_START=str(settings))
        return time.monotonic() - start

    def _read(self, data: Path, test_file: str) -> None:
        with closing(sqlite3.connect(data)) as base, suppress(sqlite3.OperationalError):
            rows = base.execute(
                "select path, context, numbits from line_bits"
                " join file on file.id = file_id join context on context.id = context_id"
            )
            for path, context, bits in rows:
                lines = int.from_bytes(bits, "little")
                file = path.rpartition(f"/{PACKAGE}/")[2]
                self.lines[file].append((test_file, context, lines))
                self.sizes[context] += lines.bit_count()

    def tests_of(self, mutation: Mutation) -> tuple[list[str], list[str]]:
        """Tests that run a mutation's line, and all files with such tests; nearest first.

        What runs at import is near to the tests that run anything of its file.
        """
        place = sum(1 << line for line in mutation.lines)
        running = [each for each in self.lines[mutation.file] if each[2] & place]
        near = self.lines[mutation.file] if mutation.is_import else running
        tests = sorted({test for _, test, _ in near if test}, key=lambda test: self.sizes[test])
        files = [*map(_file_of, tests), *(file for file, _, _ in running)]
        return tests, list(dict.fromkeys(files))


class Inquiry:
    """Asks tests about one mutation after another, in one copy."""

    def __init__(self, copy: Path, coverage: Coverage) -> None:
        self.copy, self.coverage = copy, coverage
        self.is_sound: dict[str, bool] = {}

    def ask(self, mutation: Mutation) -> dict[str, object]:
        """What came of a mutation: first its nearest tests say so, then all files of such tests."""
        start = time.monotonic()
        near, files = self.coverage.tests_of(mutation)
        answers = (self._noticed_by(mutation, tests) for tests in (near[:NEAREST], files) if tests)
        by = next(filter(None, answers), None)
        return {
            "verdict": "noticed" if by else "survived",
            "by": by or ("" if files else "no test runs it"),
            "seconds": round(time.monotonic() - start, 1),
        }

    def _noticed_by(self, mutation: Mutation, tests: list[str]) -> str | None:
        """The first test that fails with the mutation and passes without it."""
        while True:
            with self._mutated(mutation):
                first = self._first_failure(tests)
            if first is None:
                return None
            if first not in self.is_sound:
                alone = [first] if _file_of(first) in self.coverage.seconds else tests
                self.is_sound[first] = self._first_failure(alone) is None
            if self.is_sound[first]:
                return first
            if "::" not in first:
                raise SystemExit(f"without any mutation, too: {first}")

    def _first_failure(self, tests: list[str]) -> str | None:
        listed, first = self.copy.parent / "tests.json", self.copy.parent / "first"
        first.unlink(missing_ok=True)
        unsound = [test for test, is_sound in self.is_sound.items() if not is_sound]
        listed.write_text(json.dumps({"asked": tests, "unsound": unsound}), "utf-8")
        files = dict.fromkeys(map(_file_of, tests))
        seconds = 60 + 3 * sum(self.coverage.seconds[file] for file in files)
        status = ended(self.copy, seconds, "-x", *files, MUTATIONS_TESTS=str(listed))
        if status in (0, 5):  # 5: none of them is there
            return None
        if first.exists():
            return first.read_text("utf-8")
        return "no end" if status is None else f"pytest ended with {status}"

    @contextmanager
    def _mutated(self, mutation: Mutation) -> Iterator[None]:
        path = self.copy / PACKAGE / mutation.file
        text, compiled = path.read_bytes(), Path(importlib.util.cache_from_source(str(path)))
        try:
            path.write_bytes(mutation.applied(text))
            compiled.unlink(missing_ok=True)  # the change may be as long, within the same second
            yield
        finally:
            path.write_bytes(text)
            compiled.unlink(missing_ok=True)


# What came of it --------------------------------------------------------------------------------


def save(results: dict[str, Any]) -> None:
    """Writes the answers, a mutation a line, and the table that shows them."""
    rows = results["mutations"]
    for row in rows:
        if row["verdict"] in ("survived", "equivalent"):
            row["verdict"] = "equivalent" if row["id"] in EQUIVALENT else "survived"
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    head = json.dumps(results | {"mutations": []})
    RESULTS.write_text(f"{head.removesuffix(']}')}\n{lines}\n]}}\n", "utf-8")
    RESULTS.with_suffix(".md").write_text(shown(results), "utf-8")


def shown(results: dict[str, Any]) -> str:
    """The table, and the mutations that no test noticed."""
    rows, kinds = results["mutations"], ("noticed", "survived", "equivalent", "")
    by_room: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        by_room[row["room"]][row["verdict"]] += 1
    total = sum(by_room.values(), Counter())
    could_be = total["noticed"] + total["survived"]
    lines = [
        "# Mutations",
        "",
        f"What `make test` notices of {len(rows)} small changes of the program, chosen with seed"
        f" {results['seed']} and made to {results['program']}: {total['noticed']} of the {could_be}"
        f" that were tried and can be noticed, {total['noticed'] / max(could_be, 1):.0%}."
        " `scripts/mutate.py` says how, and writes this file.",
        "",
        "| room | mutations | noticed | survived | equivalent | not tried |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for room, counts in [*sorted(by_room.items()), ("all", total)]:
        numbers = [sum(counts.values()), *(counts[kind] for kind in kinds)]
        lines.append(f"| {room} | {' | '.join(map(str, numbers))} |")
    for kind in ("survived", "equivalent"):
        lines += ["", f"## {kind.capitalize()}", ""]
        for row in (row for row in rows if row["verdict"] == kind):
            before, after = (_quoted(row[key]) for key in ("before", "after"))
            place = f"`{row['file']}`, {row['function'] or 'at import'}"
            lines += [f"- {row['id']}, {row['kind']} in {place}:", f"  {before},", f"  {after}."]
            if why := EQUIVALENT.get(row["id"], row["by"]):
                lines.append(f"  {why[0].upper()}{why[1:]}.")
    return "\n".join(lines) + "\n"


def _quoted(code: str) -> str:
    return "`" + code.replace("`", "'") + "`" if code else "nothing"


def row_of(mutation: Mutation) -> dict[str, Any]:
    """A mutation that is not tried yet, as it is kept."""
    names = ("room", "file", "function", "kind", "before", "after", "number")
    named = {name: getattr(mutation, name) for name in names}
    return {"id": mutation.key, **named, "verdict": "", "by": "", "seconds": 0}


def answer(results: dict[str, Any], given: argparse.Namespace) -> None:
    """Asks about mutations that have no answer; chooses new ones for those whose code is gone."""
    with copied() as copy:
        paths = sorted((copy / PACKAGE).rglob("*.py"))
        files = {str(path.relative_to(copy / PACKAGE)): path.read_bytes() for path in paths}
        present = {each.key: each for file in files for each in mutations_of(file, files[file])}
        rows = [row for row in results.get("mutations", ()) if row["id"] in present]
        kept = {present[row["id"]] for row in rows}
        rows += map(row_of, chosen(files, given.count, given.seed, kept))
        results |= {"seed": given.seed, "program": "", "mutations": rows}
        for row in rows if given.again else ():
            row["verdict"] = ""
        results["program"] = git(copy, "log", "-1", "--format=%h", "--", str(PACKAGE)).strip()
        inquiry = Inquiry(copy, Coverage(copy, given.coverage.resolve()))
        for row in rows:
            if not row["verdict"]:
                row |= inquiry.ask(present[row["id"]])
                print(row["id"], row["file"], row["verdict"], row["by"], flush=True)
                save(results)


def main() -> None:
    """Asks about what has no answer yet, and writes what came of it."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--coverage", type=Path, metavar="DIR", help="where coverage is kept")
    parser.add_argument("--again", action="store_true", help="forget the answers, not the choice")
    parser.add_argument("--count", type=int, default=150, help="of mutations in a new choice")
    parser.add_argument("--seed", type=int, default=27, help="of a new choice")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C does: nothing stays
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    if given.coverage:
        if importlib.util.find_spec("coverage") is None:
            raise SystemExit("install coverage; CONTRIBUTING.md says how")
        answer(results, given)
    save(results)


if __name__ == "__main__":
    main()
