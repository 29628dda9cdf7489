"""Hostile input: a command line and the files that it is given, each drawn from a seed."""

import contextlib
import io
import json
import math
import os
import re
import shutil
import tomllib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

import any_models
import pyarrow as pa
import pyarrow.parquet as pq
import tomlkit
from both_engines import PUBLISHED, small_directory
from PIL import Image
from relatives import FAMILY

from dsocr_analyze import hardware
from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.cli import main
from dsocr_analyze.cli.commands import application

NAMES = (
    "", "a", "../x", "a" * 300, "a\x1b[2Kb", "\u202egnp", "x\ny", "<script>x</script>",
    "|`*_[x](y)", "-q", "--yes", "$(id)", "%s%n", "nan", "None", "\ud800", "\U0001f4a9", "'\"\\",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 63, 64, 65, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**30, 10**400,
    -(10**400), 0.5, -0.0, 1e-300, 1e300, math.inf, -math.inf, math.nan,
)  # fmt: skip
DEEP: Any = json.loads("[" * 60 + "]" * 60)
VALUES = (*NAMES, *NUMBERS, None, True, False, [], {}, [[]], {"": {}}, DEEP, ["a"] * 1000)

_CHUNKS = (
    b"", b"\0", b"\xff" * 8, b"\n", b",", b'"', b"[" * 5000, b"{" * 5000, b'{"a":' * 500,
    b"(" * 300,
    b"9" * 5000, b"1e999", b"-1", b"NaN", b"\x00\x00\x00\x7f", b"\xff\xff\xff\x7f", b"%PDF",
    b"PAR1",
    b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x1b[2J", b"../../../etc/passwd", b"#", b" " * 5000,
)  # fmt: skip


def mutated_bytes(data: bytes, draw: Random) -> bytes:
    """A few pieces of the content changed, moved, repeated, cut off or replaced."""
    content = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        start = draw.randrange(len(content) + 1)
        end = min(len(content), start + draw.choice((0, 1, 1, 2, 4, 16, 256)))
        other, piece = draw.randrange(len(content) + 1), bytes(content[start:end])
        changed = draw.choice((
            draw.randbytes(len(piece)),
            b"",
            piece * draw.choice((2, 3, 100)),
            draw.choice(_CHUNKS),
            None,
            bytes(content[other : other + len(piece)]),
            bytes(each ^ 1 << draw.randrange(8) for each in piece[:1]) + piece[1:],
        ))  # fmt: skip
        content[start : len(content) if changed is None else end] = changed or b""
    return bytes(content)


def mutated_values(value: Any, draw: Random) -> Any:
    """The value with one or a few of what is in it replaced, removed, renamed or added."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        value = _changed(value, draw)
    return value


def _changed(value: Any, draw: Random) -> Any:
    if isinstance(value, dict) and value and draw.random() < 0.9:
        copy = dict(value)
        key = draw.choice(list(copy))
        kind = draw.random()
        if kind < 0.75:
            copy[key] = _changed(copy[key], draw)
        elif kind < 0.85:
            del copy[key]
        elif kind < 0.93:
            copy[str(draw.choice(NAMES))] = draw.choice(VALUES)
        else:
            copy[str(draw.choice(NAMES))] = copy.pop(key)
        return copy
    if isinstance(value, list | tuple) and value and draw.random() < 0.8:
        copies = list(value)
        at = draw.randrange(len(copies))
        copies[at : at + draw.choice((0, 1, 1, 1))] = [_changed(copies[at], draw)]
        return copies
    if isinstance(value, int) and not isinstance(value, bool) and draw.random() < 0.4:
        return draw.choice((value - 1, value + 1, value + 7, value * 2, value * 1000))
    if draw.random() < 0.5:  # of the same kind, so that somebody reads on
        return draw.choice([each for each in VALUES if type(each) is type(value)] or VALUES)
    return draw.choice(VALUES)


def as_json(value: Any, draw: Random) -> bytes:
    """JSON, now and then with a key twice, broken, or in another encoding."""
    text = json.dumps(value, ensure_ascii=draw.random() < 0.7)
    if draw.random() < 0.05:
        text = text.replace("{", '{"a": 1, "a": 2, ', 1)
    encoding = "utf-16" if draw.random() < 0.02 else "utf-8"
    data = text.encode(encoding, "surrogatepass")
    return mutated_bytes(data, draw) if draw.random() < 0.25 else data


DATA: Final = Path(__file__).parent / "data"
CPU: Final = Path(__file__).parent.parent / "benchmarks/measured/cpu-amd-epyc-2-threads.toml"
EXAMPLES: Final = Path(__file__).parent.parent / "examples"
ANALYTIC: Final = ("--engine", "analytic", "--output", "out")

Case = list[str]
"""Arguments; files have been written into the current folder."""


def config_of(draw: Random) -> dict[str, Any]:
    """A published config."""
    name = draw.choice(list(FAMILY))
    config: dict[str, Any] = json.loads((ARCHITECTURES[name].reference / "config.json").read_text())
    return config


def config_case(draw: Random) -> Case:
    """A config with wrong values."""
    Path("config.json").write_bytes(as_json(mutated_values(config_of(draw), draw), draw))
    command = draw.choice(((), (), (), ("fit", "h100"), ("sweep", "--mode", "base"),
                           ("time", "h100"), ("compare", "base"), ("advise",)))  # fmt: skip
    return [*command, "--config", "config.json", *(ANALYTIC if not command else ())]


@cache
def report() -> dict[str, Any]:
    """A saved report, of few modules."""
    main([*ANALYTIC, "-q", "--mode", "tiny"])
    saved: dict[str, Any] = json.loads(Path("out/static_compute.json").read_text())
    shutil.rmtree("out")
    for stage in saved["stages"].values():
        stage["by_module"] = dict(list(stage["by_module"].items())[:20])
    return saved


def report_case(draw: Random) -> Case:
    """A saved report with wrong values."""
    Path("report.json").write_bytes(as_json(mutated_values(report(), draw), draw))
    if draw.random() < 0.3:
        Path("dsocr-budgets.toml").write_text('[workloads.page]\nmode = "tiny"\n')
        return ["check", "--against", "report.json"]
    return ["compare", "report.json", *draw.choice(((), ("tiny", "--engine", "analytic"),
            ("--format", "json"), ("--html", "compared.html")))]  # fmt: skip


def write_wrong_toml(path: Path, name: str, draw: Random) -> None:
    """Writes the file again, under another name, with wrong values or broken."""
    data = path.read_bytes()
    wrong = mutated_bytes(data, draw)
    if draw.random() < 0.6:
        values = mutated_values(tomllib.loads(data.decode()), draw)
        with contextlib.suppress(Exception):  # what TOML cannot say is left to the bytes
            wrong = tomlkit.dumps(values).encode("utf-8", "surrogatepass")
    Path(name).write_bytes(wrong)


BUDGETS: Final = """
[workloads.page]
mode = "tiny"
page = "a4@200"
batch_size = 2
tolerance = "0.5 %"

[[workloads.page.budgets]]
key = "stages.*.flops"
max = 1_000_000_000_000
level = "warn"

[[workloads.page.budgets]]
key = "total.params"
max_increase = "2 %"
"""


def budgets_case(draw: Random) -> Case:
    """Budgets with wrong values."""
    Path("valid.toml").write_text(BUDGETS)
    write_wrong_toml(Path("valid.toml"), "dsocr-budgets.toml", draw)
    return ["check", *draw.choice(((), ("--json", "-"), ("--markdown", "c.md"), ("--update",)))]


def stages_case(draw: Random) -> Case:
    """A stages file with wrong values; the analytic engine stops before anything is built."""
    write_wrong_toml(draw.choice(sorted(EXAMPLES.glob("any_model/*.toml"))), "stages.toml", draw)
    config = EXAMPLES / "any_model" / "config.json"
    Path("config.json").write_bytes(as_json(json.loads(config.read_text()), draw))
    return ["--hf-config", "config.json", "--stages", "stages.toml", *ANALYTIC]


GPU: Final = """
name = "mine"

[gpu]
title = "Mine"
tensor_tflops = 500
bandwidth_gb_s = 2000
memory_gb = 48
source = "me"
sms = 100
l2_mb = 50
like = "h100-sxm"
"""


def devices_case(draw: Random) -> Case:
    """A profile with wrong values: a GPU's peaks, alone or with its kernels' times, or a CPU's."""
    shipped = sorted((Path(hardware.__file__).parent / "profiles").glob("*.toml"))
    kind = draw.choice(("gpu", "kernels", "kernels", "cpu"))
    times = draw.choice(shipped).read_text() if kind == "kernels" else ""
    head, tables = GPU.split("[gpu]")
    text = f"{head}\n{times}\n[gpu]{tables}"
    if kind == "cpu":
        text = re.sub("(?m)^name = .*", 'name = "mine"', CPU.read_text(), count=1)
    Path("valid.toml").write_text(text)
    write_wrong_toml(Path("valid.toml"), "mine.toml", draw)
    command = draw.choice((("devices",), ("devices", "mine"), ("time", "mine"),
                           ("time", "mine", "--concurrency", "1,max", "--server", "sglang"),
                           ("plan", "--pages", "1M", "--deadline", "24h", "--gpu", "mine"),
                           ("advise", "--gpu", "mine"),
                           ("compare", "tiny", "base", "--gpu", "mine", *ANALYTIC[:2]),
                           ("sweep", "--mode", "tiny", "--gpu", "mine")))  # fmt: skip
    return [*command, "--profile", "mine.toml"]


def benchmark_case(draw: Random) -> Case:
    """A server's benchmark with wrong values."""
    source = draw.choice(sorted(DATA.glob("bench_*")))
    text = source.read_text().splitlines()[0] if source.suffix == ".jsonl" else source.read_text()
    Path("bench.json").write_bytes(as_json(mutated_values(json.loads(text), draw), draw))
    return ["time", "h100", "--from-benchmark", "bench.json", *draw.choice(((), ("--keep", "1")))]


def tokenizer_case(draw: Random) -> Case:
    """A model's tokenizer with wrong values."""
    shutil.copytree(
        DEFAULT.reference, "model", ignore=shutil.ignore_patterns("*.py", "__pycache__")
    )
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 1, "content": "<image>", "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}],
        "normalizer": {"type": draw.choice(("NFC", "Lowercase", "Precompiled")),
                       "precompiled_charsmap": "AAAA"},
        "pre_tokenizer": {"type": "Split", "behavior": "Isolated", "invert": False,
                          "pattern": {"Regex": draw.choice((r"\s+", "(a*)*$", "("))}},
        "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 2}, "merges": []},
    }  # fmt: skip
    Path("model/tokenizer.json").write_bytes(as_json(mutated_values(tokenizer, draw), draw))
    return ["--model", "model", "--prompt", "<image>\nab" + "a" * 30, *ANALYTIC]


# --- images and lists of pages ---------------------------------------------------------------


def _image(kind: str, draw: Random) -> bytes:
    image = Image.new("RGB", (draw.randrange(1, 40), draw.randrange(1, 40)))
    out = io.BytesIO()
    frames = [image.copy() for _ in range(draw.randrange(3))]
    several = {"save_all": True, "append_images": frames}
    image.save(out, kind, **(several if kind in ("TIFF", "GIF", "WEBP", "PDF") else {}))
    return out.getvalue()


def image_case(draw: Random) -> Case:
    """An image that is none, or another than it says."""
    kind = draw.choice(("PNG", "JPEG", "GIF", "BMP", "WEBP", "PPM", "ICO", "TGA", "DDS", "PCX"))
    Path("page.img").write_bytes(mutated_bytes(_image(kind, draw), draw))
    how = ["--image", "page.img"]
    return ["advise", *how] if draw.random() < 0.1 else [*how, *ANALYTIC]


def scan_case(draw: Random) -> Case:
    """A TIFF with broken directories, or a PDF with a broken page tree, alone or in a folder."""
    Path("pages").mkdir()
    kind, name = draw.choice(("TIFF", "PDF")), draw.choice(("a", "b c", "<b>", "-q"))
    file = Path("pages", f"{name}.{kind.lower()}")
    file.write_bytes(mutated_bytes(_image(kind, draw), draw))
    return ["archive", draw.choice(("pages", str(file))), "--mode", "tiny"]


def _cell(draw: Random) -> str:
    if draw.random() < 0.7:
        return str(draw.randrange(1, 5000))
    value = str(draw.choice(VALUES)) if draw.random() < 0.9 else '"' * draw.randrange(4)
    return value.encode("utf-8", "replace").decode()


def csv_case(draw: Random) -> Case:
    """A list of pages in CSV with wrong cells."""
    names = ["width", "height", *draw.sample(("text_tokens", "max_new_tokens", "path", "width"), 1)]
    lines = [",".join(names)] + [
        ",".join(_cell(draw) for _ in range(draw.choice((3, 3, 3, 3, 2, 4)))) for _ in range(20)
    ]
    data = draw.choice(("\n", "\n", "\r\n", "\r")).join(lines).encode()
    Path("pages.csv").write_bytes(mutated_bytes(data, draw) if draw.random() < 0.5 else data)
    output = draw.choice(((), ("--output", "rows.csv"), ("--histogram", "tokens")))
    return ["archive", "pages.csv", "--mode", "tiny", *output]


def parquet_case(draw: Random) -> Case:
    """A list of pages in Parquet with columns of wrong types, or broken."""
    kinds = (
        *[range(1, 5000)] * 3, (1.0, 5.5, float("nan"), 1e300), ("1", "x" * 9999, "", "9" * 400),
        (None, 3),
    )  # fmt: skip
    names = draw.choice(
        (("width", "height"), ("width", "height", "text_tokens"), ("width", "width"))
    )
    columns = [pa.array(draw.choices(draw.choice(kinds), k=9)) for _ in names]
    table = pa.Table.from_arrays(columns, names=names)
    out = io.BytesIO()
    pq.write_table(table, out, compression=draw.choice(("none", "zstd", "snappy")))
    data = out.getvalue()
    Path("pages.parquet").write_bytes(mutated_bytes(data, draw) if draw.random() < 0.6 else data)
    return ["archive", "pages.parquet", "--mode", "tiny"]


# --- arguments -------------------------------------------------------------------------------

_QUICK: Final = (
    "", "advise", "archive", "check", "compare", "devices", "fit", "sweep", "time", "trust",
)  # fmt: skip
"""Commands that neither trace nor measure, whatever their options are."""
_WORDS: Final = (
    "tiny", "gundam", "base", "GUNDAM", "a4", "a4@300", "1240x1754", "0x0", "h100", "a100", "all",
    "bfloat16", "float8", "1:64", "1,2,3", "json", "markdown", "table", "-", "--", "/dev/null",
    "/dev/full", "missing.json", ".", "..", "deepseek-ocr", "unlimited-ocr", "10 %", "1e9", "0x10",
    "0", "1", "1", "2", "8", "64", "100", "0.5", "pages.csv", "out.csv", "out.html", "out.svg",
)  # fmt: skip
_LEFT_OUT: Final = frozenset({"--yes", "--debug", "--help", "--install-completion"})


@cache
def _options() -> dict[str, list[tuple[str, bool]]]:
    """Options of each command, and whether they take a value; under "" those of the main one."""
    return {
        name: [
            (opt, not getattr(each, "is_flag", False))
            for each in command.params
            for opt in (*each.opts, *each.secondary_opts)
            if opt.startswith("-") and opt not in _LEFT_OUT
        ]
        for name, command in {"": application, **application.commands}.items()
    }


def argument_value(draw: Random) -> str:
    """Something that an option may be given."""
    value = draw.choice(_WORDS if draw.random() < 0.7 else (*NAMES, *NUMBERS))
    return str(value) if not isinstance(value, int) or abs(value) < 10**300 else "9" * 4000


def arguments_case(draw: Random) -> Case:
    """A command with options of its own, of others and of none, with any values."""
    command = draw.choice(_QUICK)
    arguments = [command] if command else list(ANALYTIC)
    Path("pages.csv").write_text("width,height\n640,640\n1240,1754\n")
    arguments += {"archive": ["pages.csv"], "compare": ["tiny", *ANALYTIC[:2]]}.get(command, [])
    for _ in range(draw.randrange(5)):
        own = draw.random() < 0.9
        others = _options()[draw.choice(_QUICK)]
        option, takes = draw.choice((_options()[command] if own else others) or _options()[""])
        if option != "--engine":
            arguments += [option, argument_value(draw)] if takes else [option]
    arguments += [argument_value(draw)] if draw.random() < 0.4 else []
    odd = ("--colour", "-Z", "--mode", "--page=", "--batch-size=", "-q")
    return arguments + ([draw.choice(odd)] if draw.random() < 0.1 else [])


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
    draw.choice((
        lambda: os.mkfifo(file),
        lambda: file.symlink_to(target),
        lambda: file.mkdir(),
        lambda: file.write_bytes(mutated_bytes(b"import os\n" * 40, draw)),
        lambda: (file / "/".join("d" * 60)).mkdir(parents=True),
        lambda: file.touch(0o000),
    ))()  # fmt: skip


def directory_case(draw: Random) -> Case:
    """A model directory with files that are none, names that act, and an odd `auto_map`."""
    name = _file_name(draw) if draw.random() < 0.3 else ""
    model = Path(name or "model")
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


_TINY: Final = ("--mode", "tiny")
_TRACE: Final = ("--engine", "trace", "--output", "out", "--max-new-tokens", "1")
_WAYS: Final = (
    _TRACE[:4],
    _TRACE,
    (*_TRACE, "--full", "--html", "page.html"),
    ("tree",),
    ("tree", "--trace"),
    ("tree", "--leaves"),
    ("tree", "--format", "json"),
    ("tree", "--format", "mermaid", "--output", "tree.mmd"),
    ("tree", "--format", "dot", "--output", "tree.dot"),
)


def _small(draw: Random) -> dict[str, Any]:
    """A config that is traced in a blink, or now and then the published one."""
    return (PUBLISHED if draw.random() < 0.1 else small_directory()).config


def _wrong(values: dict[str, Any], draw: Random) -> str:
    """JSON of the values, some of them wrong; it stays an object, so that somebody reads on."""
    while not isinstance(changed := mutated_values(values, draw), dict):
        pass
    return json.dumps(changed)


def traced_config_case(draw: Random) -> Case:
    """A config with wrong values, which a model is built from."""
    Path("config.json").write_text(_wrong(_small(draw), draw))
    way = draw.choice(_WAYS)
    return [*way, "--config", "config.json", *(() if "--leaves" in way else _TINY)]


def traced_stages_case(draw: Random) -> Case:
    """A stages file, or the config it is for, with wrong values."""
    small = draw.choice(list(any_models.PRESENT.values()))
    stages, _ = small.write(Path())
    if draw.random() < 0.5:
        write_wrong_toml(stages, "stages.toml", draw)
        Path("config.json").write_text(json.dumps(small.config))
    else:
        shutil.copy(stages, "stages.toml")
        Path("config.json").write_text(_wrong(small.config, draw))
    return [*draw.choice(_WAYS), "--hf-config", "config.json", "--stages", "stages.toml"]


KINDS: Final = {
    name.removesuffix("_case").replace("_", "-"): function
    for name, function in tuple(globals().items())
    if name.endswith("_case")
}
TRACED: Final = {name for name in KINDS if name.startswith("traced-")}
