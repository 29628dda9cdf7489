"""The report's tables, from its document: what Markdown and the terminal both show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dsocr_analyze.report.document import Document
from dsocr_analyze.report.quantities import bytes_text, exact, ratio_text, scaled

__all__ = ["Table", "headline", "model_text", "tables_of"]

TOP_MODULES = 12


@dataclass(frozen=True)
class Table:
    """A titled table of strings; the first `label_columns` columns name what a row is about."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    label_columns: int = 1
    emphasized_rows: int = 0
    """How many rows at the end are sums."""

    def is_numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which stand flush right and are never wrapped."""
        return column >= self.label_columns and all(
            not row[column] or row[column][0].isdigit() or row[column] == "-" for row in self.rows
        )


def model_text(model: Mapping[str, Any]) -> str:
    """Which model a `model` object of the metadata tells of."""
    what = (
        "built-in reference model"
        if model["source"] == "reference"
        else f"model directory {model['id']}"
    )
    return f"{what} (code {model['code_digest'][:12]}, config {model['config_digest'][:12]})"


def headline(document: Document) -> str:
    """The first line of every output: which model ran, and how."""
    metadata = document["metadata"]
    how = "by closed forms" if metadata["engine"] == "analytic" else f"on {metadata['device']}"
    return (
        f"{model_text(metadata['model'])} {how}, {metadata['dtype']},"
        f" {metadata['attention']} attention"
    )


def tables_of(document: Document) -> list[Table]:
    """All tables of a report, in order."""
    tables = [
        _configuration(document),
        _stages(document),
        _page(document),
        _memory(document),
        _top_modules(document),
        _families(document),
    ]
    if document["agreement"] is not None:
        tables.append(_agreement(document))
    if any(document["operator_ledger"].values()):
        tables.append(_ledger(document))
    return tables


def _configuration(document: Document) -> Table:
    workload = document["workload"]
    width, height = workload["page"]
    columns, rows = workload["grid"]
    views = " + ".join(
        f"{view['count']} x {view['resolution']}\u00b2" for view in workload["views"]
    )
    mode = f"on, {columns} x {rows} local views" if workload["crop_mode"] else "off"
    return Table(
        "Workload",
        ("what", "value"),
        (
            ("page", f"{width} x {height} pixels"),
            ("base size / image size", f"{workload['base_size']} / {workload['image_size']}"),
            ("crop mode", mode),
            ("views", views),
            (
                "prompt",
                f"{workload['seq_len']} tokens = {workload['visual_tokens']} visual"
                f" + {workload['text_tokens']} text (BOS included)",
            ),
            ("batch", str(workload["batch_size"])),
            ("new tokens", str(workload["max_new_tokens"])),
        ),
        label_columns=2,
    )


_STAGE_COLUMNS = (
    "stage", "params", "calls", "matrix FLOPs", "vector FLOPs", "FLOPs", "activations",
    "read", "written", "FLOPs/byte",
)  # fmt: skip


def _stage_row(name: str, params: str, calls: str, row: dict[str, Any]) -> tuple[str, ...]:
    return (
        name,
        params,
        calls,
        scaled(row["matrix_flops"]),
        scaled(row["vector_flops"]),
        scaled(row["flops"]),
        scaled(row["activations"]),
        bytes_text(row["bytes_read"]),
        bytes_text(row["bytes_written"]),
        ratio_text(row["arithmetic_intensity"]),
    )


def _stages(document: Document) -> Table:
    stages, total = document["stages"], document["total"]
    rows = [
        _stage_row(name, exact(stage["params"]), str(stage["calls"]), stage)
        for name, stage in stages.items()
    ]
    blank = ("",) * (len(_STAGE_COLUMNS) - 2)
    rows.append(("unassigned", exact(document["unassigned"]["params"]), *blank))
    rows.append(("model", exact(total["params"]), *blank))
    rows.append(_stage_row("prefill pass", "", "", total))
    return Table(
        "Stages (the prefill pass is sam + clip + projector + prefill; decode is one step)",
        _STAGE_COLUMNS,
        tuple(rows),
        emphasized_rows=2,
    )


def _page(document: Document) -> Table:
    total = document["total"]
    page, step = total["page"], total["decode_step"]
    rows = []
    for name, part in (
        ("prefill pass", total),
        (f"decode step over {step['cached_tokens']} tokens", step),
        (f"page: prefill + {page['decode_steps']} decode steps", page),
    ):
        rows.append((name, exact(part["macs"]), exact(part["matrix_flops"]),
                     exact(part["vector_flops"]), exact(part["flops"])))  # fmt: skip
    return Table(
        "Totals, exact",
        ("what", "MACs", "matrix FLOPs", "vector FLOPs", "FLOPs"),
        tuple(rows),
    )


def _memory(document: Document) -> Table:
    memory = document["memory"]
    rows = [
        (key.removesuffix("_bytes").replace("_", " "), bytes_text(memory[key]), exact(memory[key]),
         stated)
        for key, stated in memory["stated_for"].items()
    ]  # fmt: skip
    return Table("Memory", ("what", "size", "bytes", "stated for"), tuple(rows))


def _top_modules(document: Document) -> Table:
    """Modules by the FLOPs of their own forward, repeated layers folded into one row."""
    folded: dict[tuple[str, str, str], list[int]] = {}
    for stage, content in document["stages"].items():
        if stage == "decode":
            continue
        for path, module in content["by_module"].items():
            own = module.get("own", module)
            if own["flops"]:
                name = re.sub(r"\.\d+(?=\.|$)", ".*", path)
                sums = folded.setdefault((stage, name, module.get("class", "")), [0, 0, 0])
                sums[0] += 1
                sums[1] += module.get("calls", 0)
                sums[2] += own["flops"]
    total = document["total"]["flops"]
    ranked = sorted(folded.items(), key=lambda item: (-item[1][2], item[0]))[:TOP_MODULES]
    return Table(
        "Top modules of the prefill pass, by what their own forward computes",
        ("stage", "module", "class", "modules", "calls", "FLOPs", "share"),
        tuple(
            (
                stage,
                path,
                name,
                str(modules),
                str(calls or "-"),
                scaled(flops),
                _share(flops, total),
            )
            for (stage, path, name), (modules, calls, flops) in ranked
        ),
        label_columns=3,
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "-"


def _families(document: Document) -> Table:
    rows = []
    for stage, content in document["stages"].items():
        for family, sums in content["operator_families"].items():
            names = ", ".join(sums["operators"])
            share = _share(sums["flops"], content["flops"])
            flops, moved = scaled(sums["flops"]), bytes_text(sums["bytes"])
            rows.append((stage, family, names, flops, moved, share))
    return Table(
        "Operator families",
        ("stage", "family", "operators", "FLOPs", "bytes", "share of FLOPs"),
        tuple(rows),
        label_columns=3,
    )


def _agreement(document: Document) -> Table:
    """Traced FLOPs beside those of the closed forms."""
    agreement = document["agreement"]
    rows = []
    for stage, content in document["stages"].items():
        quantities = agreement["stages"][stage]
        differing = [name for name, agrees in quantities.items() if not agrees]
        rows.append(
            (stage, exact(content["flops"]), exact(content["flops_analytic"]),
             f"differ: {', '.join(differing)}" if differing else f"all {len(quantities)} agree")
        )  # fmt: skip
    return Table(
        "Agreement of trace and closed forms",
        ("stage", "FLOPs traced", "FLOPs by closed forms", "quantities"),
        tuple(rows),
    )


def _ledger(document: Document) -> Table:
    rows = []
    for status, operators in document["operator_ledger"].items():
        rows.append((status, exact(sum(operators.values())), _calls(operators.items()) or "none"))
    return Table(
        "Operator ledger: every operator that ran",
        ("status", "calls", "operators"),
        tuple(rows),
    )


def _calls(operators: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} x {calls}" for name, calls in operators)
