#!/usr/bin/env python3
"""Ask a GPU everything in one command: measurements and tests, in one JSON file.

    .venv/bin/python scripts/gpu.py wheels    where there is a network: fill tmp/wheels
    python3 scripts/gpu.py run                on the GPU's machine, which needs none

The machine has Python, torch with CUDA and transformers. What else is needed, `wheels` downloads
and `run` installs into a temporary folder: the machine's own packages stay as they are. Without
wheels, `run` uses what its Python has. The JSON is written after every step, so that whatever was
done is kept if the machine is taken away. The exit status is 0 if every step that can run here
succeeded, 1 if one did not, and 2 if nothing could run, as without a GPU.

Standard library only: nothing is installed yet when it starts.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "dsocr-analyze"
REFERENCE = ROOT / "src/dsocr_analyze/architectures/deepseek_ocr/reference"
EVERY_STEP, VENDOR_STEPS = "all", "vendor"  # folders of packages
OUTPUT_END = 4000  # characters of a failed step's output that are kept

# Wheels ------------------------------------------------------------------------------------------

THERE = ("torch", "transformers")  # with all that they need
# The machine's may be too old: transformers takes any typer, this project only recent ones.
DOUBTFUL = ("typer",)
UNUSED = ("jsonschema", "pyarrow", "pytest-xdist")  # 50 MB that no step imports
SOURCES = ("fvcore", "iopath")  # published without wheels
MACHINE = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17)]
MACHINE += ["--platform=manylinux2014_x86_64", "--implementation=cp", "--only-binary=:all:"]


@dataclass
class Pin:
    """A package in a file of `requirements/`: its version, its lines and what asks for it."""

    version: str
    lines: list[str]
    wanted_by: set[str] = field(default_factory=set)


def read_pins(lock: str) -> dict[str, Pin]:
    """The packages of a file in `requirements/`, by name."""
    pins: dict[str, Pin] = {}
    pin = Pin("", [])
    for line in (ROOT / "requirements" / lock).read_text(encoding="utf-8").splitlines():
        if found := re.match(r"([\w.-]+)==(\S+)", line):
            pin = pins[found[1]] = Pin(found[2], [line])
        elif "--hash=" in line:
            pin.lines.append(line)
        elif found := re.match(r" +#(?: +via)? +([\w.-]+)", line):
            pin.wanted_by.add(found[1])
    return pins


def needs(pins: Mapping[str, Pin], roots: Iterable[str], without: Iterable[str] = ()) -> set[str]:
    """The packages that these need, directly or not, and those of these that are listed."""
    found, new = set(), set(roots)
    while new:
        found |= new
        new = {name for name, pin in pins.items() if pin.wanted_by & new} - found - set(without)
    return found & set(pins)


def planned(*, vendor: bool, held: Iterable[str]) -> dict[str, dict[str, str]]:
    """What to carry: by folder and package, its lines in the lock.

    Args:
        vendor: Whether to carry what vendor files need, too.
        held: Packages that the machine has besides torch, transformers and what they need.
    """
    newest = read_pins("newest.txt")
    wanted = needs(newest, (PROJECT, *DOUBTFUL), without=UNUSED)
    wanted -= needs(newest, THERE) - needs(newest, DOUBTFUL)
    plan = {EVERY_STEP: {name: newest[name] for name in wanted if name not in held}}
    if vendor:
        # transformers is older there, and so is some of what it needs.
        plan[VENDOR_STEPS] = {
            name: pin for name, pin in read_pins("analyze.txt").items()
            if name not in newest or newest[name].version != pin.version
        }  # fmt: skip
    return {
        folder: {name: "\n".join(pin.lines) for name, pin in sorted(pins.items())}
        for folder, pins in plan.items()
    }


def wheels(asked: argparse.Namespace) -> int:
    """Fill the folder of wheels; the exit status."""
    for name, plan in planned(vendor=asked.vendor, held=asked.held).items():
        folder = asked.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.whl"):
            old.unlink()
        download = ["download", *MACHINE, f"--python-version={asked.python}", f"--dest={folder}"]
        build = ["wheel", "--no-build-isolation", f"--wheel-dir={folder}"]
        for command, is_built in ((download, False), (build, True)):
            lines = [text for each, text in plan.items() if (each in SOURCES) == is_built]
            if lines and (status := _pip(command, lines)):
                return status
        sizes = [wheel.stat().st_size for wheel in folder.glob("*.whl")]
        print(f"{folder}: {len(sizes)} wheels, {sum(sizes) / 1e6:.1f} MB")
    return 0


def _pip(command: list[str], requirements: list[str]) -> int:
    """Run a command of pip on these packages, each file by its hash; the exit status."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(requirements) + "\n")
        file.flush()
        options = ["--quiet", "--no-deps", "--require-hashes", f"--requirement={file.name}"]
        return subprocess.run([sys.executable, "-m", "pip", *command, *options]).returncode


# Steps -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One process of the run.

    Attributes:
        name: What the JSON calls it.
        arguments: Of Python.
        seconds: Its time limit.
        read: From the file of its output to what the JSON keeps of it.
        vendor: The checkout whose code it runs, if any.
        missing: Why it can't run here; empty if it can.
    """

    name: str
    arguments: tuple[str, ...]
    seconds: float
    read: Callable[[Path], dict[str, Any]]
    vendor: Path | None = None
    missing: str = ""


def steps_of(asked: argparse.Namespace, folder: Path, *, has_flash: bool) -> list[Step]:
    """The steps, those of most worth first. Files that they share are in `folder`.

    A trial on the CPU runs few and small ones.
    """
    minute, is_trial = 6 * asked.minutes, asked.device == "cpu"  # a tenth of the time
    models = (None, asked.vendor) if asked.vendor else (None,)
    modes = ("tiny",) if is_trial else ("base", "gundam")

    def measurement(model: Path | None, attention: str, mode: str) -> Step:
        which = ["--arch", "deepseek-ocr"]
        if model:
            which = ["--model", str(model), "--trust-remote-code"]
        if is_trial:
            which += ["--config", str(_small_config(model or REFERENCE, folder))]
            which += ["--repeats", "1", "--warmups", "0", "--steps", "1"]
        return Step(
            f"{'vendor' if model else 'reference'}, {mode}, {attention}",
            ("-m", "dsocr_analyze", "measure", *which, "--device", asked.device, "--mode", mode,
             "--use-flash-attn", str(int(attention == "flash")), "--format", "json"),
            2 * minute, _measured, model,
            "flash_attn is not installed" if attention == "flash" and not has_flash else "",
        )  # fmt: skip

    def tests(model: Path | None) -> Step:
        results = folder / "tests.xml"
        which = (*_gpu_tests(), *(("-k", "vendor or infer") if model else ()))
        return Step(
            "tests, vendor" if model else "tests",
            ("-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "gpu", f"--junitxml={results}",
             *which),
            4 * minute, partial(_passed, results), model, "they need CUDA" if is_trial else "",
        )  # fmt: skip

    return [
        *(measurement(model, attention, mode)
          for model in models for attention in ("eager", "flash") for mode in modes),
        *(tests(model) for model in models),
    ]  # fmt: skip


def _small_config(model: Path, folder: Path) -> Path:
    """A config of the model with two decoder layers."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    for each in (config, config.get("language_config", {})):
        each["num_hidden_layers"] = 2
    file = folder / f"small-{model.name}.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


def _measured(output: Path) -> dict[str, Any]:
    """What `measure` printed, and each prediction as a share of the fastest run."""
    report = json.loads(output.read_text(encoding="utf-8"))
    times = {**report["stages"], "prefill pass": report["prefill"], "page": report["page"]}
    return {
        "seconds_by_stage": {
            name: {"measured": each["fastest"], "predicted": each["predicted"],
                   "ratio": each["predicted"] and each["predicted"] / each["fastest"]}
            for name, each in times.items()
        },
        "report": report,
    }  # fmt: skip


def _gpu_tests() -> list[str]:
    """The files with tests that are marked `gpu`; others may import what isn't there."""
    files = [file.relative_to(ROOT) for file in sorted((ROOT / "tests").glob("test_*.py"))]
    mark = re.compile(r"^( +|@)pytest\.mark\.gpu\b", re.MULTILINE)
    return [str(file) for file in files if mark.search((ROOT / file).read_text(encoding="utf-8"))]


def _passed(results: Path, _: Path) -> dict[str, Any]:
    """How many tests there were, failed and were skipped. That all were skipped is an error."""
    suite = ET.parse(results).getroot()[0].attrib
    counts = {name: int(suite[name]) for name in ("tests", "failures", "errors", "skipped")}
    if counts["tests"] <= counts["skipped"]:
        raise ValueError(f"no test ran: {counts}")
    return counts


def run_step(step: Step, limit: float, folder: Path) -> dict[str, Any]:
    """Run a step: how it ended, and what it found or the end of what it said."""
    output, errors = folder / "output", folder / "errors"
    status, began = None, time.monotonic()
    with output.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen(
            [sys.executable, *step.arguments], cwd=ROOT, env=_environment(step, folder),
            stdin=subprocess.DEVNULL, stdout=out, stderr=err, process_group=0,
        )  # fmt: skip
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(limit)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it started
            process.wait()
    found = {"command": ["python3", *step.arguments], "took": round(time.monotonic() - began, 1)}
    reason = f"took more than {limit:.0f} s" if status is None else f"exit status {status}"
    if status == 0:
        try:
            return {"status": "ok", "reason": "", **found, **step.read(output)}
        except (OSError, ValueError, LookupError, ET.ParseError) as error:
            reason = f"its result: {error}"
    said = "".join(each.read_text(encoding="utf-8", errors="replace") for each in (output, errors))
    return {"status": "late" if status is None else "failed", "reason": reason, **found,
            "output_end": said[-OUTPUT_END:]}  # fmt: skip


def _environment(step: Step, folder: Path) -> dict[str, str]:
    """A step's variables: this checkout, what was carried, no network, none of a user's files."""
    carried = (VENDOR_STEPS, EVERY_STEP) if step.vendor else (EVERY_STEP,)
    path = [str(ROOT / "src"), *(str(folder / name) for name in carried)]
    path += filter(None, [os.environ.get("PYTHONPATH")])
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        "HF_HUB_OFFLINE": "1",
        "XDG_CONFIG_HOME": str(folder / "config"),
        # Where no checkout is given, none that happens to be in models/ either.
        "DSOCR_VENDOR_DIR": str(step.vendor or os.devnull),
    }


# Conditions --------------------------------------------------------------------------------------

ASKED_OF_TORCH = """
import json, sys, torch
device = torch.device(sys.argv[1])
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": None}
if device.type == "cuda" and torch.cuda.device_count() > (device.index or 0):
    properties = torch.cuda.get_device_properties(device)
    names = "name", "total_memory", "major", "minor", "multi_processor_count"
    found["gpu"] = {name: getattr(properties, name) for name in names}
print(json.dumps(found))
"""
ASKED_OF_DRIVER = (
    "name,driver_version,pstate,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.draw,"
    "power.limit,power.max_limit,temperature.gpu,utilization.gpu,memory.used,memory.total,"
    "ecc.mode.current,mig.mode.current,persistence_mode,compute_mode"
)


def _said(*command: str) -> str:
    """What a command prints; nothing where there is no such command or it fails."""
    try:
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def driver_state(device: str) -> dict[str, str]:
    """Clocks, power, temperature and memory in use now, as the driver reports them."""
    query = (f"--query-gpu={ASKED_OF_DRIVER}", "--format=csv,noheader")
    line = _said("nvidia-smi", *query, "-i", device.partition(":")[2] or "0")
    return dict(zip(ASKED_OF_DRIVER.split(","), line.split(", "), strict=False)) if line else {}


def conditions_of(asked: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
    versions = dict.fromkeys(("transformers", "flash-attn", "triton", "numpy"), "")
    for name in versions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    cpu = re.search("^model name.*: (.*)", _said("cat", "/proc/cpuinfo"), re.MULTILINE)
    torch = _said(sys.executable, "-c", ASKED_OF_TORCH, asked.device)
    return {
        **(json.loads(torch) if torch else {"torch": "", "cuda": "", "gpu": None}),
        **versions,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "commit": asked.commit or _said("git", "rev-parse", "HEAD"),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "driver_before": driver_state(asked.device),
    }


# The run -----------------------------------------------------------------------------------------


def run(asked: argparse.Namespace) -> int:
    """Run the steps within the time; the exit status."""
    deadline = time.monotonic() + 60 * asked.minutes
    conditions = conditions_of(asked)
    if asked.device != "cpu" and not conditions["gpu"]:
        print(
            f"gpu.py: torch finds no {asked.device}; --device cpu tries the steps", file=sys.stderr
        )
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not install(asked.wheels, folder):
            return 2
        steps = steps_of(asked, folder, has_flash=bool(conditions["flash-attn"]))
        found = {step.name: {"status": "not run", "reason": step.missing} for step in steps}
        document = {"command": ["scripts/gpu.py", *sys.argv[1:]], "conditions": conditions,
                    "steps": found}  # fmt: skip
        for step in steps:
            left = deadline - time.monotonic()
            if not step.missing and left < 1:
                found[step.name] = {"status": "late", "reason": "no time was left"}
            elif not step.missing:
                found[step.name] = run_step(step, min(left, step.seconds), folder)
                conditions["driver_after"] = driver_state(asked.device)
            write(asked.output, document)
            show(step.name, found[step.name])
    print(f"wrote {asked.output}")
    return int(any(each["status"] in ("failed", "late") for each in found.values()))


def install(wheels: Path, folder: Path) -> bool:
    """Install what was carried into folders of `folder`; whether that worked."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    for name in (EVERY_STEP, VENDOR_STEPS):
        files = sorted(map(str, (wheels / name).glob("*.whl")))
        command = [*pip, "--no-compile", f"--target={folder / name}", *files]
        if files and subprocess.run(command).returncode:
            hint = "fill it for this Python, or name another with --wheels"
            print(f"gpu.py: {wheels / name} could not be installed; {hint}", file=sys.stderr)
            return False
    # This project runs from the checkout; its metadata states its version, which reports quote.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = folder / EVERY_STEP / f"dsocr_analyze-{project['version']}.dist-info"
    about.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {PROJECT}\nVersion: {project['version']}\n"
    (about / "METADATA").write_text(text, encoding="utf-8")
    return True


def write(output: Path, document: dict[str, Any]) -> None:
    """Write the JSON so that a reader sees the old file or the whole new one."""
    output.parent.mkdir(parents=True, exist_ok=True)
    partial_file = output.with_name(f"{output.name}.part")
    partial_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial_file.replace(output)


def show(name: str, found: Mapping[str, Any]) -> None:
    """Print how a step ended, and its seconds beside those predicted."""
    print(f"{name}: {found['status']}", found["reason"], flush=True)
    for stage, each in found.get("seconds_by_stage", {}).items():
        beside = ""
        if each["ratio"]:
            beside = f", predicted {each['predicted']:.6f} s, ratio {each['ratio']:.2f}"
        print(f"  {stage:12} {each['measured']:.6f} s{beside}")
    print(found.get("output_end", ""), end="", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and run what it names."""
    parser = argparse.ArgumentParser(prog="scripts/gpu.py", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    folder = ROOT / "tmp" / "wheels"
    fill = commands.add_parser("wheels", help="download what the GPU's machine lacks")
    fill.add_argument("folder", nargs="?", type=Path, default=folder, metavar="DIR")
    fill.add_argument("--python", default="3.12", help="version of Python there")
    fill.add_argument("--vendor", action="store_true", help="also what vendor files run on")
    fill.add_argument("--held", nargs="+", default=[], metavar="PACKAGE",
                      help="packages that it has besides torch and transformers")  # fmt: skip
    fill.set_defaults(do=wheels)
    ask = commands.add_parser("run", help="run every step and write the JSON")
    ask.add_argument("--device", default="cuda:0", help="cpu tries the steps, few and small")
    ask.add_argument("--vendor", type=Path, metavar="DIR", help="a checkout whose code to run, too")
    ask.add_argument("--output", type=Path, default=ROOT / "tmp/gpu/gpu.json", metavar="FILE.json")
    ask.add_argument("--wheels", type=Path, default=folder, metavar="DIR")
    ask.add_argument("--minutes", type=float, default=10.0, help="for everything together")
    ask.add_argument("--commit", default="", help="of this checkout, where git can't tell")
    ask.set_defaults(do=run)
    asked = parser.parse_args(arguments)
    if asked.do is run and asked.vendor:
        asked.vendor = asked.vendor.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no step outlives the run
    status: int = asked.do(asked)
    return status


if __name__ == "__main__":
    sys.exit(main())
