"""Cases: a command line and the files that it is given, each drawn from a seed."""

from __future__ import annotations

import io
import json
import shutil
import tomllib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

import tomlkit

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.cli import main
from hostile.mutation import NAMES, NUMBERS, VALUES, as_json, mutated_bytes, mutated_values

DATA: Final = Path(__file__).parent.parent / "data"
EXAMPLES: Final = Path(__file__).parent.parent.parent / "examples"
ANALYTIC: Final = ("--engine", "analytic", "--output", "out")

Case = list[str]
"""Arguments; files have been written into the current folder."""


def config_of(draw: Random) -> dict[str, Any]:
    """A published config."""
    name = draw.choice(list(ARCHITECTURES))
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
    if draw.random() < 0.6:
        values = mutated_values(tomllib.loads(data.decode()), draw)
        try:
            data = tomlkit.dumps(values).encode("utf-8", "surrogatepass")
        except Exception:  # noqa: BLE001  # what TOML cannot say is left to the bytes
            data = mutated_bytes(data, draw)
    else:
        data = mutated_bytes(data, draw)
    Path(name).write_bytes(data)


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
    config = json.loads((EXAMPLES / "any_model" / "config.json").read_text())
    Path("config.json").write_bytes(as_json(config, draw))
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
    """A profile of a GPU with wrong values: its peaks alone, or its kernels' times too."""
    from dsocr_analyze import hardware

    shipped = sorted((Path(hardware.__file__).parent / "profiles").glob("*.toml"))
    times = draw.choice(shipped).read_text() if draw.random() < 0.5 else ""
    head, tables = GPU.split("[gpu]")
    Path("valid.toml").write_text(f"{head}\n{times}\n[gpu]{tables}")
    write_wrong_toml(Path("valid.toml"), "mine.toml", draw)
    command = draw.choice((("devices",), ("devices", "mine"), ("time", "mine"),
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
    from PIL import Image

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
    command = ("advise",) if draw.random() < 0.1 else ()
    return [*command, "--image", "page.img", *(() if command else ANALYTIC)]


def tiff_case(draw: Random) -> Case:
    """A TIFF with broken directories, alone or in a folder."""
    Path("pages").mkdir()
    Path("pages/page.tiff").write_bytes(mutated_bytes(_image("TIFF", draw), draw))
    return ["archive", draw.choice(("pages", "pages/page.tiff")), "--mode", "tiny"]


def pdf_case(draw: Random) -> Case:
    """A PDF with a broken page tree."""
    Path("pages").mkdir()
    name = f"pages/{draw.choice(('a', 'b c', '<b>', '-q'))}.pdf"
    Path(name).write_bytes(mutated_bytes(_image("PDF", draw), draw))
    return [
        "archive",
        draw.choice(("pages", name.replace("pages/-", "./pages/-"))),
        "--mode",
        "tiny",
    ]


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
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column() -> Any:
        kind = draw.randrange(6)
        if kind < 3:
            return pa.array([draw.randrange(1, 5000) for _ in range(9)])
        if kind == 3:
            return pa.array([draw.choice((1.0, 5.5, float("nan"), 1e300)) for _ in range(9)])
        if kind == 4:
            return pa.array([draw.choice(("1", "x" * 9999, "", "9" * 400)) for _ in range(9)])
        return pa.array([draw.choice((None, 3)) for _ in range(9)])

    names = draw.choice(
        (("width", "height"), ("width", "height", "text_tokens"), ("width", "width"))
    )
    table = pa.Table.from_arrays([column() for _ in names], names=names)
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
    import typer

    from dsocr_analyze.cli.commands import app

    group: Any = typer.main.get_command(app)
    return {
        name: [
            (opt, not getattr(each, "is_flag", False))
            for each in command.params
            for opt in (*each.opts, *each.secondary_opts)
            if opt.startswith("-") and opt not in _LEFT_OUT
        ]
        for name, command in {"": group, **group.commands}.items()
    }


def options_of(command: str) -> list[tuple[str, bool]]:
    """Options of a command, and whether they take a value."""
    return _options()[command]


def argument_value(draw: Random) -> str:
    """Something that an option may be given."""
    value = draw.choice(_WORDS) if draw.random() < 0.7 else draw.choice((*NAMES, *NUMBERS))
    text = str(value) if not isinstance(value, int) or abs(value) < 10**300 else "9" * 4000
    return text.replace("\0", "")


def arguments_case(draw: Random) -> Case:
    """A command with options of its own, of others and of none, with any values."""
    command = draw.choice(_QUICK)
    arguments = [command] if command else list(ANALYTIC)
    Path("pages.csv").write_text("width,height\n640,640\n1240,1754\n")
    if command == "archive":
        arguments += ["pages.csv"]
    if command == "compare":
        arguments += ["tiny", *ANALYTIC[:2]]
    for _ in range(draw.randrange(5)):
        own = draw.random() < 0.9
        others = options_of(draw.choice(_QUICK))
        option, takes = draw.choice((options_of(command) if own else others) or options_of(""))
        if option == "--engine":
            continue
        arguments += [option, argument_value(draw)] if takes else [option]
    if draw.random() < 0.4:
        arguments.append(argument_value(draw))
    if draw.random() < 0.1:
        arguments.append(
            draw.choice(("--colour", "-Z", "--mode", "--page=", "--batch-size=", "-q"))
        )
    return arguments
