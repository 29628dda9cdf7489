"""The tables and notes of a report, and what a page's cost is made of: stages, largest modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

import msgspec

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.hardware.devices import gpu_named
from dsocr_analyze.report.document import Counts, Report, Work, model_text
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
from dsocr_analyze.timing.prediction import TimeEntry

__all__ = [
    "AMOUNTS",
    "OUTSIDE",
    "PALETTE",
    "Amount",
    "Ridge",
    "Table",
    "TopModule",
    "batch_parts",
    "headline",
    "ledger_table",
    "notes_of",
    "page_parts",
    "ridge_of",
    "seconds_parts",
    "stage_colours",
    "tables_of",
    "top_modules",
]


Amount: TypeAlias = Callable[[Counts], int]

AMOUNTS: Final[dict[str, Amount]] = {
    "flops": attrgetter("flops"),
    "bytes": attrgetter("bytes_moved"),
}
"""The part of a stage's counts that is summed."""

PALETTE: Final = (
    "#2b66ad", "#a84f12", "#2a7a57", "#9a3b74", "#6353ab", "#7d5f10", "#23728a", "#b03a3a",
    "#5c6670",
)  # fmt: skip
"""Colours dark enough for white text."""

OUTSIDE: Final = "preprocessing, host"
"""Name for the seconds of a page that are in no stage."""

_KNOWN: Final = ("sam", "clip", "projector", "prefill", "decode", OUTSIDE, "encoder")
"""Stages with fixed colours, in the palette's order."""

REFERENCE_GPU: Final = "a100-40gb"
"""The GPU of the paper's own throughput figures, used if a report names none."""


# --- stages: the parts that add up to the whole page ---------------------------------------------


def batch_parts(report: Report, amount: Amount) -> dict[str, int]:
    """An amount of the whole batch by stage, all decode steps summed."""
    parts = {name: amount(stage) for name, stage in report.stages.items()}
    if report.decode_name is not None:
        parts[report.decode_name] = amount(report.total.batch) - amount(report.total)
    return parts


def page_parts(report: Report, amount: Amount) -> dict[str, float]:
    """The same for one page: its share of the batch."""
    pages = report.total.page.pages
    return {name: part / pages for name, part in batch_parts(report, amount).items()}


def seconds_parts(report: Report, entry: TimeEntry) -> dict[str, float]:
    """Seconds of a page alone by stage, with the rest under `OUTSIDE`.

    Benchmarks correct the first token as a whole. If the corrected time is below the sum of its
    stages, the stages are scaled down to it.
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
    """A colour for each stage, the same everywhere; other models' take the remaining colours.

    Args:
        names: The stages, in order.
    """
    distinct = list(dict.fromkeys(names))
    found = {name: PALETTE[_KNOWN.index(name)] for name in distinct if name in _KNOWN}
    others = [name for name in distinct if name not in _KNOWN]
    free = [colour for colour in PALETTE if colour not in found.values()] or PALETTE
    return found | {name: free[index % len(free)] for index, name in enumerate(others)}


# --- modules -------------------------------------------------------------------------------------


class TopModule(NamedTuple):
    """Modules whose paths differ only in layer numbers; counts are of their own forwards.

    Attributes:
        stage: Their stage.
        name: Their path, with * for a layer number; empty for the model itself.
        class_name: Their class; None if no model was built.
        modules: Number of modules.
        calls: Number of calls; 0 if unknown.
        flops: Their FLOPs.
        nbytes: Bytes they read and write.
        flops_share: Their share of the FLOPs of all modules in the requested stages.
    """

    stage: str
    name: str
    class_name: str | None
    modules: int
    calls: int
    flops: int
    nbytes: int
    flops_share: float

    @property
    def short_name(self) -> str:
        """The end of the path, starting at the list of repeated layers."""
        before, star, after = self.name.partition(".*")
        return f"{before.rpartition('.')[2]}{star}{after}" or "the model itself"


def top_modules(report: Report, *stages: str) -> list[TopModule]:
    """Modules of some stages whose own forwards compute something, costliest first."""
    found: dict[tuple[str, str, str | None], list[tuple[int, ...]]] = {}
    for stage in stages:
        for path, module in report.stages[stage].by_module.items():
            if module.own.flops:
                key = stage, re.sub(r"\.\d+(?=\.|$)", ".*", path), module.class_name
                own = (1, module.calls or 0, module.own.flops, module.own.bytes_moved)
                found.setdefault(key, []).append(own)
    total = sum(report.stages[stage].flops for stage in stages)
    sums = {key: [*map(sum, zip(*each, strict=True))] for key, each in found.items()}
    ranked = [
        TopModule(*key, modules, calls, flops, nbytes, flops / total if total else 0.0)
        for key, (modules, calls, flops, nbytes) in sums.items()
    ]
    return sorted(ranked, key=lambda each: (-each.flops, each.stage, each.name))


class Ridge(NamedTuple):
    """FLOPs per byte above which a GPU is bound by compute rather than memory.

    Attributes:
        gpu: Name of the GPU.
        flops_per_byte: Its peak over its bandwidth.
        is_named: Whether the report names that GPU; if not, it stands for GPUs in general.
    """

    gpu: str
    flops_per_byte: float
    is_named: bool

    def bound(self, flops_per_byte: float) -> str:
        """Whether compute or memory bounds work of that intensity."""
        return "compute" if flops_per_byte >= self.flops_per_byte else "memory"


def ridge_of(report: Report) -> Ridge:
    """The ridge point of the first GPU that a report names, or of the reference GPU."""
    for entry in report.time:
        if entry.ridge_flops_per_byte is not None:
            return Ridge(entry.gpu, entry.ridge_flops_per_byte, is_named=True)
    return Ridge(REFERENCE_GPU, gpu_named(REFERENCE_GPU).ridge_flops_per_byte, is_named=False)


def headline(report: Report) -> str:
    """The first line of every output: which model ran, and how."""
    metadata = report.metadata
    how = "by the analytic engine" if metadata.engine == "analytic" else f"on {metadata.device}"
    return f"{model_text(metadata.model)} {how}, {metadata.dtype}, {metadata.attention} attention"


def notes_of(report: Report) -> list[str]:
    """Notes on the whole report and on its stages, and what predicted seconds assume."""
    of_stages = [f"{name}: {note}" for name, stage in report.stages.items() for note in stage.notes]
    return [*report.notes, *of_stages, *time_notes(report.time)]


def tables_of(report: Report) -> list[Table]:
    """All tables of a report but its ledger, in order."""
    return [
        _configuration(report),
        _stages(report),
        _totals(report),
        *_experts(report),
        _memory(report),
        *time_tables(report.time),
        _top_modules(report),
        _families(report),
        *_agreement(report),
    ]


def _configuration(report: Report) -> Table:
    workload = report.workload
    rows = [("prompt", counted(workload.seq_len, "token"))]
    if workload.page and workload.grid and workload.views:
        split = f"{workload.visual_tokens:,} visual + {workload.text_tokens:,} text (BOS included)"
        rows = [
            ("page", "{} x {} pixels".format(*workload.page)),
            ("base size / image size", f"{workload.base_size} / {workload.image_size}"),
            ("crop mode",
             "on, {} x {} local views".format(*workload.grid) if workload.crop_mode else "off"),
            ("views",
             " + ".join(f"{view.count} x {view.resolution}\u00b2" for view in workload.views)),
            ("prompt", f"{counted(workload.seq_len, 'token')} = {split}"),
        ]  # fmt: skip
    batch = ("batch", exact(workload.batch_size)), ("new tokens", exact(workload.max_new_tokens))
    return Table("Workload", ("what", "value"), (*rows, *batch), label_columns=2)


def _stage_row(name: str, params: str, calls: str, work: Work) -> tuple[str, ...]:
    return (
        name, params, calls,
        *map(scaled, (work.matrix_flops, work.vector_flops, work.flops, work.activations)),
        *map(bytes_text, (work.bytes_read, work.bytes_written)),
        ratio_text(work.arithmetic_intensity),
    )  # fmt: skip


def _stages(report: Report) -> Table:
    blank = ("",) * 8
    rows = [
        *(_stage_row(name, exact(stage.params), exact(stage.calls), stage)
          for name, stage in report.stages.items()),
        ("unassigned", exact(report.unassigned.params), *blank),
        ("model", exact(report.total.params), *blank),
        _stage_row("prefill pass", "", "", report.total),
    ]  # fmt: skip
    decode = report.decode_name
    in_prefill_pass = " + ".join(name for name in report.stages if name != decode)
    # The decode stage also runs modules whose parameters belong to other stages.
    known = ARCHITECTURES.get(report.metadata.model.architecture or "")
    own = [stage.prefixes for stage in (known.stages if known else ()) if stage.name == decode]
    owned = f", its params are those of {', '.join(chain(*own))}" if any(own) else ""
    step = "" if decode is None else f"; {decode} is one step{owned}"
    return Table(
        f"Stages (the prefill pass is {in_prefill_pass}{step})",
        ("stage", "params", "calls", "matrix FLOPs", "vector FLOPs", "FLOPs", "activations",
         "read", "written", "FLOPs/byte"),
        tuple(rows),
        emphasized_rows=2,
        optional=("calls", "activations", "vector FLOPs", "matrix FLOPs"),
    )  # fmt: skip


_TOTALLED: Final = attrgetter("macs", "matrix_flops", "vector_flops", "flops")


def _totals(report: Report) -> Table:
    """Totals with all digits, and a page's share if the batch has several pages."""
    total, page = report.total, report.total.page
    one = "prompt" if report.workload.page is None else "page"
    what = one if page.pages == 1 else f"batch of {counted(page.pages, one)}"
    parts: list[tuple[str, Work]] = [("prefill pass", total)]
    if (step := total.decode_step) is not None:
        parts += [
            (f"decode step over {counted(step.cached_tokens, 'token')}", step),
            (f"{what}: prefill + {counted(total.batch.decode_steps, 'decode step')}", total.batch),
        ]
    rows = [(name, *map(exact, _TOTALLED(work))) for name, work in parts]
    if page.pages > 1:
        rows.append((f"{one}: 1/{page.pages} of the batch", *map(share_text, _TOTALLED(page))))
    return Table(
        "Totals, exact",
        ("what", "MACs", "matrix FLOPs", "vector FLOPs", "FLOPs"),
        tuple(rows),
    )


def _experts(report: Report) -> list[Table]:
    """Routed experts that each stage touches, and the bytes read; no table without experts."""
    rows = tuple(
        (stage, str(touched.even), f"{touched.expected:.2f}", f"{touched.counted:.4g}",
         bytes_text(content.bytes_read), bytes_text(content.bytes_read_expected))
        for stage, content in report.stages.items()
        if (touched := content.experts_touched) and content.bytes_read_expected is not None
    )  # fmt: skip
    table = Table(
        "Routed experts touched per layer: evenly spread, and expected for independent choices",
        ("stage", "even", "expected", "counted", "read", "read, expected"),
        rows,
    )
    return [table] if rows else []


def _memory(report: Report) -> Table:
    memory = report.memory
    keys = ("weights_bytes", "inputs_bytes", "kv_cache_bytes", "peak_activation_bytes")
    stated = dict.fromkeys(keys, "") | dict(memory.stated_for)
    if memory.peak_module is not None:
        stated["peak_activation_bytes"] += f"; in {memory.peak_module or 'the model itself'}"
    rows = [
        (key.removesuffix("_bytes").replace("_", " "), bytes_text(nbytes), exact(nbytes),
         stated[key])
        for key in keys
        if (nbytes := getattr(memory, key)) is not None
    ]  # fmt: skip
    return Table("Memory", ("what", "size", "bytes", "stated for"), tuple(rows))


def _top_modules(report: Report) -> Table:
    """Modules by FLOPs of their own forward, with repeated layers folded into one row."""
    in_prefill_pass = [name for name in report.stages if name != report.decode_name]
    ranked = top_modules(report, *in_prefill_pass)[:12]
    ridge = ridge_of(report)
    ratios = [module.flops / module.nbytes if module.nbytes else None for module in ranked]
    has_classes = any(module.class_name for module in ranked)
    rows = [
        (
            module.stage,
            module.name or "(the model itself)",
            *([module.class_name or ""] if has_classes else []),
            exact(module.modules),
            exact(module.calls) if module.calls else "-",
            scaled(module.flops),
            percent_text(module.flops_share),
            bytes_text(module.nbytes),
            ratio_text(ratio),
            "-" if ratio is None else ridge.bound(ratio),
        )
        for module, ratio in zip(ranked, ratios, strict=True)
    ]
    names = ("stage", "module", *(["class"] if has_classes else []))
    return Table(
        "Top modules of the prefill pass, by FLOPs of their own forward; bound by compute above"
        f" {ratio_text(ridge.flops_per_byte)} FLOPs/byte, as on {ridge.gpu}",
        (*names, "modules", "calls", "FLOPs", "share", "bytes", "FLOPs/byte", "bound"),
        tuple(rows),
        label_columns=len(names),
        optional=("class", "calls", "modules", "FLOPs/byte"),
    )


def _families(report: Report) -> Table:
    rows = [
        (stage, name, ", ".join(family.operators), scaled(family.flops), bytes_text(family.bytes),
         percent_text(family.flops / content.flops) if content.flops else "-")
        for stage, content in report.stages.items()
        for name, family in content.operator_families.items()
    ]  # fmt: skip
    return Table(
        "Operator families",
        ("stage", "family", "operators", "FLOPs", "bytes", "share of FLOPs"),
        tuple(rows),
        label_columns=3,
    )


_VERDICTS: Final = {True: "agree", False: "differ", None: "not compared"}


def _agreement(report: Report) -> list[Table]:
    """Traced and analytic figures side by side; no table if only one engine ran."""
    if (agreement := report.agreement) is None:
        return []
    rows = []
    for stage, content in report.stages.items():
        quantities = agreement.stages[stage]
        differing = ", ".join(name for name, agrees in quantities.items() if not agrees)
        analytic = "-" if content.flops_analytic is None else exact(content.flops_analytic)
        said = f"differ: {differing}" if differing else f"all {len(quantities)} agree"
        rows.append((f"{stage}, FLOPs", exact(content.flops), analytic, said))
    peak = agreement.peak_activation_bytes
    rows += [
        ("peak activation, bytes", exact(peak.traced), exact(peak.analytic),
         _VERDICTS[peak.agrees]),
        ("KV cache, bytes", "", "", _VERDICTS[agreement.kv_cache_bytes]),
        ("batch", "", "", _VERDICTS[agreement.batch]),
    ]  # fmt: skip
    return [
        Table(
            "Agreement of the two engines", ("what", "traced", "analytic", "quantities"),
            tuple(rows),
        )
    ]  # fmt: skip


def ledger_table(report: Report) -> Table | None:
    """Every operator that ran; None if that is unknown."""
    ledger = msgspec.structs.asdict(report.operator_ledger)
    rows = [
        (status, exact(sum(operators.values())),
         ", ".join(f"{name} x {calls}" for name, calls in operators.items()) or "none")
        for status, operators in ledger.items()
    ]  # fmt: skip
    table = Table(
        "Operator ledger: every operator that ran", ("status", "calls", "operators"), tuple(rows)
    )
    return table if any(ledger.values()) else None
