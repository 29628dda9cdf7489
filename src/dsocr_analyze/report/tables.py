"""A report's tables and notes."""

import re
from collections.abc import Callable, Iterable
from itertools import filterfalse, repeat, starmap
from operator import add, attrgetter
from typing import Final, NamedTuple, TypeAlias

import msgspec

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.figures import Counts, Model
from dsocr_analyze.hardware.devices import gpu_catalogue
from dsocr_analyze.report.document import Report, Stage
from dsocr_analyze.report.opening import model_text
from dsocr_analyze.report.table import (
    Table,
    bytes_text,
    counted,
    exact,
    percent_text,
    ratio_text,
    scaled,
    share_text,
)
from dsocr_analyze.report.time_tables import time_notes, time_tables
from dsocr_analyze.timing import TimeEntry

Amount: TypeAlias = Callable[[Counts], int]

AMOUNTS: Final[dict[str, Amount]] = {
    "flops": attrgetter("flops"),
    "bytes": attrgetter("bytes_moved"),
}

PALETTE: Final = (
    "#2b66ad", "#a84f12", "#2a7a57", "#9a3b74", "#6353ab", "#7d5f10", "#23728a", "#b03a3a",
    "#5c6670",
)  # fmt: skip
"""Colours dark enough for white text."""

OUTSIDE: Final = "preprocessing, host"
"""The seconds of a page that belong to no stage."""

_KNOWN: Final = ("sam", "clip", "projector", "prefill", "decode", OUTSIDE, "encoder", "vision")
"""Stages whose colours stand at the same places of the palette."""

_REFERENCE_GPU: Final = "a100-40gb"
"""The GPU of the paper, if a report names none."""


# --- stages: the parts that add up to the whole page ---------------------------------------------


def batch_parts(report: Report, amount: Amount) -> dict[str, int]:
    """An amount of the batch by stage, with all decode steps."""
    parts = dict(zip(report.stages, map(amount, report.stages.values()), strict=True))
    if report.decode_name is not None:
        parts[report.decode_name] = amount(report.total.batch) - amount(report.total)
    return parts


def page_parts(report: Report, amount: Amount) -> dict[str, float]:
    """An amount of one page by stage."""
    pages = report.total.page.pages
    return {name: part / pages for name, part in batch_parts(report, amount).items()}


def seconds_parts(report: Report, entry: TimeEntry) -> dict[str, float]:
    """Seconds of a page alone by stage, the rest under `OUTSIDE`.

    Stages are scaled to a first token that benchmarks correct below their sum.
    """
    before = {
        name: entry.stages[name].seconds if name in entry.stages else 0.0
        for name in report.stages
        if name != report.decode_name
    }
    together = sum(before.values())
    factor = min(1.0, entry.ttft_seconds / together) if together else 1.0
    parts = {name: factor * seconds for name, seconds in before.items()}
    if report.decode_name is not None:
        parts[report.decode_name] = entry.page_seconds - entry.ttft_seconds
    return parts | {OUTSIDE: max(entry.ttft_seconds - factor * together, 0.0)}


def stage_colours(names: Iterable[str]) -> dict[str, str]:
    """Each stage's colour, the same everywhere; unknown stages take the remaining ones."""
    distinct = list(dict.fromkeys(names))
    found = {name: PALETTE[_KNOWN.index(name)] for name in distinct if name in _KNOWN}
    others = [name for name in distinct if name not in _KNOWN]
    free = [colour for colour in PALETTE if colour not in found.values()] or PALETTE
    return found | {name: free[index % len(free)] for index, name in enumerate(others)}


# --- names ---------------------------------------------------------------------------------------


def model_name(model: Model) -> str:
    """A model for readers: its architecture or its class, and the folder that it is in, if any."""
    known = ARCHITECTURES.get(model.architecture or "")
    name = known.title if known else model.class_name or model.id
    is_plain = model.source == "reference" or model.id in (name, known and known.name)
    return name if is_plain else f"{name} in {model.id}"


# --- modules -------------------------------------------------------------------------------------


class TopModule(NamedTuple):
    """Modules that differ only in layer numbers, and the work of their own forwards.

    Attributes:
        name: Their path, with * for layer numbers; empty for the model itself.
        class_name: Their class; None if no model was built.
        calls: Their calls; 0 if unknown.
        flops_share: Their share of the requested stages' FLOPs.
    """

    stage: str
    name: str
    class_name: str | None
    modules: int
    calls: int
    flops: int
    nbytes: int
    flops_share: float


def top_modules(report: Report, *stages: str) -> list[TopModule]:
    """Modules of some stages that compute something themselves, costliest first."""
    sums: dict[tuple[str, str, str | None], list[int]] = {}
    total = 0
    for stage in stages:
        total += report.stages[stage].flops
        for path, module in report.stages[stage].by_module.items():
            if module.own.flops:
                key = stage, re.sub(r"\.\d+(?=\.|$)", ".*", path), module.class_name
                own = 1, module.calls or 0, module.own.flops, module.own.bytes_moved
                sums[key] = list(map(add, sums.get(key, (0, 0, 0, 0)), own))
    found = (
        TopModule(*key, modules, calls, flops, nbytes, flops / (total or 1))
        for key, (modules, calls, flops, nbytes) in sums.items()
    )
    by_name = sorted(found, key=attrgetter("stage", "name"))
    return sorted(by_name, key=attrgetter("flops"), reverse=True)


def ridge_of(report: Report) -> tuple[str, float, bool]:
    """A GPU, the FLOPs per byte from which compute bounds it, and whether the report names it."""
    for entry in report.time:
        if entry.ridge_flops_per_byte is not None:
            return entry.gpu, entry.ridge_flops_per_byte, True
    return _REFERENCE_GPU, gpu_catalogue()[_REFERENCE_GPU].ridge_flops_per_byte, False


def headline(report: Report) -> str:
    """The first line of every output: which model ran, and how."""
    metadata = report.metadata
    how = "by the analytic engine" if metadata.engine == "analytic" else f"on {metadata.device}"
    return f"{model_text(metadata.model)} {how}, {metadata.dtype}, {metadata.attention} attention"


def notes_of(report: Report) -> list[str]:
    """All notes, and what predicted seconds assume."""
    notes = [*report.notes]
    for name, stage in report.stages.items():
        notes += map("{}: {}".format, repeat(name), stage.notes)
    return [*notes, *time_notes(report.time)]


def tables_of(report: Report) -> list[Table]:
    """All tables but the ledger."""
    return [
        _configuration(report),
        _stages(report),
        _totals(report),
        *_experts(report),
        _memory(report),
        *time_tables(report.time, report.workload),
        _top_modules(report),
        _families(report),
        *_agreement(report),
    ]


def _configuration(report: Report) -> Table:
    workload = report.workload
    prompt = counted(workload.seq_len, "token")
    rows = []
    if workload.page and workload.grid and workload.views:
        rows = [("page", "{} x {} pixels".format(*workload.page))]
        if workload.image_size is not None:
            rows += [
                ("base size / image size", f"{workload.base_size} / {workload.image_size}"),
                ("crop mode",
                 "on, {} x {} local views".format(*workload.grid) if workload.crop_mode else "off"),
            ]  # fmt: skip
        rows.append(("views", " + ".join(map(str, workload.views))))
        split = f"{workload.visual_tokens:,} visual + {workload.text_tokens:,} text"
        prompt += f" = {split} (BOS included)"
    rows += [
        ("prompt", prompt),
        ("batch", exact(workload.batch_size)),
        ("new tokens", exact(workload.max_new_tokens)),
    ]
    return Table("Workload", ("what", "value"), tuple(rows), label_columns=2)


def _stages(report: Report) -> Table:
    decode, blank = report.decode_name, ("",) * 8
    rows: list[tuple[str, ...]] = []
    for name, work in (*report.stages.items(), ("prefill pass", report.total)):
        rows.append((
            name,
            *((exact(work.params), exact(work.calls)) if isinstance(work, Stage) else ("", "")),
            *map(scaled, (work.matrix_flops, work.vector_flops, work.flops, work.activations)),
            *map(bytes_text, (work.bytes_read, work.bytes_written)),
            ratio_text(work.arithmetic_intensity),
        ))  # fmt: skip
    rows[-1:-1] = [  # above the prefill pass
        ("unassigned", exact(report.unassigned.params), *blank),
        ("model", exact(report.total.params), *blank),
    ]
    step = ""
    if decode is not None:
        step = f"; {decode} is one step"
        # The decode stage also runs modules whose parameters belong to other stages.
        known = ARCHITECTURES.get(report.metadata.model.architecture or "")
        for each in known.stages if known else ():
            if each.name == decode and each.prefixes:
                step += f", its params are those of {', '.join(each.prefixes)}"
    return Table(
        f"Stages (the prefill pass is {' + '.join(report.prefill_names)}{step})",
        ("stage", "params", "calls", "matrix FLOPs", "vector FLOPs", "FLOPs", "activations",
         "read", "written", "FLOPs/byte"),
        tuple(rows),
        emphasized_rows=2,
        optional=("calls", "activations", "vector FLOPs", "matrix FLOPs"),
    )  # fmt: skip


_TOTALLED: Final = attrgetter("macs", "matrix_flops", "vector_flops", "flops")


def _totals(report: Report) -> Table:
    total, page = report.total, report.total.page
    one = "prompt" if report.workload.page is None else "page"
    what = one if page.pages == 1 else f"batch of {counted(page.pages, one)}"
    rows = [("prefill pass", *map(exact, _TOTALLED(total)))]
    if (step := total.decode_step) is not None:
        over = f"decode step over {counted(step.cached_tokens, 'token')}"
        whole = f"{what}: prefill + {counted(total.batch.decode_steps, 'decode step')}"
        rows += (over, *map(exact, _TOTALLED(step))), (whole, *map(exact, _TOTALLED(total.batch)))
    if page.pages > 1:
        rows.append((f"{one}: 1/{page.pages} of the batch", *map(share_text, _TOTALLED(page))))
    return Table(
        "Totals, exact",
        ("what", "MACs", "matrix FLOPs", "vector FLOPs", "FLOPs"),
        tuple(rows),
    )


def _experts(report: Report) -> list[Table]:
    """The table of the routed experts that stages touch, if there are any."""
    rows = [
        (name, str(touched.even), f"{touched.expected:.2f}", f"{touched.counted:.4g}",
         *map(bytes_text, (stage.bytes_read, stage.bytes_read_expected)))
        for name, stage in report.stages.items()
        if (touched := stage.experts_touched) and stage.bytes_read_expected is not None
    ]  # fmt: skip
    title = "Routed experts touched per layer: evenly spread, and expected for independent choices"
    columns = ("stage", "even", "expected", "counted", "read", "read, expected")
    return [Table(title, columns, tuple(rows))] if rows else []


def _memory(report: Report) -> Table:
    memory, rows = report.memory, []
    for what in ("weights", "inputs", "kv_cache", "peak_activation"):
        nbytes = getattr(memory, f"{what}_bytes")
        stated = memory.stated_for.get(f"{what}_bytes", "")
        if what == "peak_activation" and memory.peak_module is not None:
            stated += f"; in {memory.peak_module or 'the model itself'}"
        if nbytes is not None:
            rows.append((what.replace("_", " "), bytes_text(nbytes), exact(nbytes), stated))
    return Table("Memory", ("what", "size", "bytes", "stated for"), tuple(rows))


def _top_modules(report: Report) -> Table:
    ranked = top_modules(report, *report.prefill_names)[:12]
    gpu, ridge, _ = ridge_of(report)
    has_classes = any(map(attrgetter("class_name"), ranked))
    rows = []
    for module in ranked:
        ratio = module.flops / module.nbytes if module.nbytes else None
        name = module.name or "(the model itself)"
        rows.append((
            module.stage,
            *((name, module.class_name or "") if has_classes else (name,)),
            exact(module.modules),
            exact(module.calls) if module.calls else "-",
            scaled(module.flops),
            percent_text(module.flops_share),
            bytes_text(module.nbytes),
            ratio_text(ratio),
            "-" if ratio is None else "compute" if ratio >= ridge else "memory",
        ))  # fmt: skip
    names = ("stage", "module", "class") if has_classes else ("stage", "module")
    return Table(
        "Top modules of the prefill pass, by FLOPs of their own forward; bound by compute above"
        f" {ratio_text(ridge)} FLOPs/byte, as on {gpu}",
        (*names, "modules", "calls", "FLOPs", "share", "bytes", "FLOPs/byte", "bound"),
        tuple(rows),
        label_columns=len(names),
        optional=("class", "calls", "modules", "FLOPs/byte"),
    )


def _families(report: Report) -> Table:
    return Table(
        "Operator families",
        ("stage", "family", "operators", "FLOPs", "bytes", "share of FLOPs"),
        tuple(
            (name, kind, ", ".join(family.operators), scaled(family.flops),
             bytes_text(family.bytes),
             percent_text(family.flops / stage.flops) if stage.flops else "-")
            for name, stage in report.stages.items()
            for kind, family in stage.operator_families.items()
        ),
        label_columns=3,
    )  # fmt: skip


_VERDICTS: Final = {True: "agree", False: "differ", None: "not compared"}


def _agreement(report: Report) -> list[Table]:
    """The table of agreement, if both engines ran."""
    if (agreement := report.agreement) is None:
        return []
    rows = []
    for name, stage in report.stages.items():
        quantities = agreement.stages[name]
        differing = ", ".join(filterfalse(quantities.get, quantities))
        rows.append((
            f"{name}, FLOPs", exact(stage.flops),
            "-" if stage.flops_analytic is None else exact(stage.flops_analytic),
            f"differ: {differing}" if differing else f"all {len(quantities)} agree",
        ))  # fmt: skip
    peak = agreement.peak_activation_bytes
    rows += [
        ("peak activation, bytes", exact(peak.traced), exact(peak.analytic),
         _VERDICTS[peak.agrees]),
        ("KV cache, bytes", "", "", _VERDICTS[agreement.kv_cache_bytes]),
        ("batch", "", "", _VERDICTS[agreement.batch]),
    ]  # fmt: skip
    return [
        Table(
            "Agreement of the two engines",
            ("what", "traced", "analytic", "quantities"),
            tuple(rows),
        )
    ]


def ledger_table(report: Report) -> Table | None:
    """Every operator that ran; None if unknown."""
    ledger = msgspec.structs.asdict(report.operator_ledger)
    rows = tuple(
        (status, exact(sum(operators.values())),
         ", ".join(starmap("{} x {}".format, operators.items())) or "none")
        for status, operators in ledger.items()
    )  # fmt: skip
    columns = ("status", "calls", "operators")
    table = Table("Operator ledger: every operator that ran", columns, rows)
    return table if any(ledger.values()) else None
