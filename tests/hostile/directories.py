"""Cases of model directories and of the record of trust; nothing in them is on record."""

from __future__ import annotations

import functools
import json
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any, Final

from dsocr_analyze.architectures import DEFAULT
from hostile.cases import ANALYTIC, Case
from hostile.mutation import NAMES, VALUES, as_json, mutated_bytes, mutated_values

_REFERENCES: Final = (
    "modeling_deepseekocr.DeepseekOCRForCausalLM", "other/repo--modeling_deepseekocr.A",
    "..x.A", "/etc/passwd.A", ".A", "a.b.c.D", "modeling_deepseekocr.\x1b[2K", "os.system", "A",
)  # fmt: skip
_COMMANDS: Final = (
    ("trust",), ANALYTIC, ANALYTIC, ("tree",), ("tree", "--format", "json"),
    ("--engine", "trace", "--output", "out", "--mode", "tiny"), ("fit", "h100"), ("advise",),
)  # fmt: skip


def _file_name(draw: Random) -> str:
    name = str(draw.choice(NAMES))[:200].replace("/", "_").replace("\0", "")
    return os.fsdecode(name.encode("utf-8", "ignore")) + draw.choice((".py", ".py", "", ".json"))


def _add_something_odd(model: Path, draw: Random) -> None:
    """A pipe, a device, a link, a folder, depth, or a name, beside the files or in their place."""
    name = draw.choice(("config.json", "tokenizer.json", "modeling_deepseekocr.py", "x.py", "x"))
    file = model / (name if draw.random() < 0.6 else _file_name(draw))
    if file.is_file() or file.is_symlink():
        file.unlink()
    if file.exists():
        return
    target = draw.choice(("/dev/zero", "/dev/tty", "/proc/self/mem", "..", "missing", name, "/"))
    odd = draw.choice((
        functools.partial(os.mkfifo, file),
        functools.partial(file.symlink_to, target),
        functools.partial(file.mkdir),
        functools.partial(file.write_bytes, mutated_bytes(b"import os\n" * 40, draw)),
        functools.partial((file / "/".join("d" * 60)).mkdir, parents=True),
        functools.partial(file.touch, 0o000),
    ))  # fmt: skip
    odd()


def directory_case(draw: Random) -> Case:
    """A model directory with files that are none, names that act, and an odd `auto_map`."""
    model = Path("model" if draw.random() < 0.7 else _file_name(draw))
    if not model.name:
        model = Path("model")
    shutil.copytree(DEFAULT.reference, model, ignore=shutil.ignore_patterns("__pycache__"))
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    if draw.random() < 0.5:
        role = draw.choice(("AutoConfig", "AutoModel", "AutoModelForCausalLM"))
        config["auto_map"] = {**config["auto_map"], role: draw.choice((*_REFERENCES, *VALUES))}
        (model / "config.json").write_bytes(as_json(config, draw))
    for _ in range(draw.randrange(3)):
        _add_something_odd(model, draw)
    command = draw.choice(_COMMANDS)
    if command == ("trust",):
        return ["trust", "--", str(model)]
    return [*command, "--model", str(model)]


def trust_record_case(draw: Random) -> Case:
    """A record of trust that is broken, odd or no file; a directory that is not on it."""
    folder = Path(os.environ["XDG_CONFIG_HOME"], "dsocr-analyze")
    folder.mkdir(parents=True)
    store = folder / "trust.json"
    digests = {"a.py": "0" * 64, "b/c.py": "f" * 64}
    recorded = {str(Path("model").absolute()): digests, "/other": digests}
    kind = draw.random()
    if kind < 0.8:
        store.write_bytes(as_json(mutated_values(recorded, draw), draw))
        store.chmod(draw.choice((0o600, 0o600, 0o644, 0o666, 0o000)))
    elif kind < 0.9:
        store.symlink_to(draw.choice(("/dev/zero", "/dev/null", "trust.json", "/etc/passwd")))
    else:
        draw.choice((functools.partial(os.mkfifo, store), store.mkdir))()
    model = Path("model")
    model.mkdir()
    shutil.copy(DEFAULT.reference / "config.json", model)
    (model / "a.py").write_text("raise SystemExit('untrusted code ran')\n")
    (model / "modeling_deepseekocr.py").write_text("raise SystemExit('untrusted code ran')\n")
    if draw.random() < 0.4:
        return ["trust", "model"]
    return ["--engine", "trace", "--output", "out", "--mode", "tiny", "--model", "model"]
