"""The report's tables, shown both in Markdown and on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.report.document import Agreement, Model, Report, Work, Workload
from dsocr_analyze.report.quantities import (
    bytes_text,
    counted,
    exact,
    percent_text,
    ratio_text,
    scaled,
    share_text,
)
from dsocr_analyze.report.table import Table
from dsocr_analyze.report.time_tables import time_tables
from dsocr_analyze.report.top_modules import TopModule, ridge_of, top_modules

__all__ = ["Table", "headline", "ledger_table", "model_text", "tables_of"]

TOP_MODULES: Final = 12


def model_text(model: Model) -> str:
    """Which model it is, with abbreviated digests."""
    if model.source == "config":
        return f"transformers' own code for {model.id} (config {model.config_digest[:12]})"
    what = (
        "built-in reference model" if model.source == "reference" else f"model directory {model.id}"
    )
    return f"{what} (code {model.code_digest[:12]}, config {model.config_digest[:12]})"


def headline(report: Report) -> str:
    """The first line of every output: which model ran, and how."""
    metadata = report.metadata
    how = "by the analytic engine" if metadata.engine == "analytic" else f"on {metadata.device}"
    return f"{model_text(metadata.model)} {how}, {metadata.dtype}, {metadata.attention} attention"


def tables_of(report: Report) -> list[Table]:
    """All tables of a report but its ledger, in order."""
    tables = [
        _configuration(report),
        _stages(report),
        _totals(report),
        *_experts(report),
        _memory(report),
        *time_tables(report.time),
        _top_modules(report),
        _families(report),
    ]
    if report.agreement is not None:
        tables.append(_agreement(report, report.agreement))
    return tables


def _configuration(report: Report) -> Table:
    workload = report.workload
    prompt = counted(workload.seq_len, "token")
    if workload.visual_tokens is not None:
        prompt += (
            f" = {workload.visual_tokens:,} visual + {workload.text_tokens:,} text (BOS included)"
        )
    rows = [
        *_page(workload),
        ("prompt", prompt),
        ("batch", exact(workload.batch_size)),
        ("new tokens", exact(workload.max_new_tokens)),
    ]
    return Table("Workload", ("what", "value"), tuple(rows), label_columns=2)


def _page(workload: Workload) -> list[tuple[str, str]]:
    """Rows about the page; empty if the model reads no pages."""
    if workload.page is None or workload.grid is None or workload.views is None:
        return []
    width, height = workload.page
    columns, rows = workload.grid
    views = " + ".join(f"{view.count} x {view.resolution}\u00b2" for view in workload.views)
    mode = f"on, {columns} x {rows} local views" if workload.crop_mode else "off"
    return [
        ("page", f"{width} x {height} pixels"),
        ("base size / image size", f"{workload.base_size} / {workload.image_size}"),
        ("crop mode", mode),
        ("views", views),
    ]


_STAGE_COLUMNS: Final = (
    "stage", "params", "calls", "matrix FLOPs", "vector FLOPs", "FLOPs", "activations",
    "read", "written", "FLOPs/byte",
)  # fmt: skip


def _stage_row(name: str, params: str, calls: str, work: Work) -> tuple[str, ...]:
    return (
        name,
        params,
        calls,
        scaled(work.matrix_flops),
        scaled(work.vector_flops),
        scaled(work.flops),
        scaled(work.activations),
        bytes_text(work.bytes_read),
        bytes_text(work.bytes_written),
        ratio_text(work.arithmetic_intensity),
    )


def _stages(report: Report) -> Table:
    rows = [
        _stage_row(name, exact(stage.params), exact(stage.calls), stage)
        for name, stage in report.stages.items()
    ]
    blank = ("",) * (len(_STAGE_COLUMNS) - 2)
    rows.append(("unassigned", exact(report.unassigned.params), *blank))
    rows.append(("model", exact(report.total.params), *blank))
    rows.append(_stage_row("prefill pass", "", "", report.total))
    decode = report.decode_name
    in_prefill_pass = " + ".join(name for name in report.stages if name != decode)
    step = "" if decode is None else f"; {decode} is one step{_owned(report, decode)}"
    return Table(
        f"Stages (the prefill pass is {in_prefill_pass}{step})",
        _STAGE_COLUMNS,
        tuple(rows),
        emphasized_rows=2,
        optional=("calls", "activations", "vector FLOPs", "matrix FLOPs"),
    )


def _owned(report: Report, decode: str) -> str:
    """Which modules the decode stage's parameters belong to, since it also runs other stages'."""
    known = ARCHITECTURES.get(report.metadata.model.architecture or "")
    prefixes = [
        prefix
        for stage in (known.stages if known else ())
        if stage.name == decode
        for prefix in stage.prefixes
    ]
    return f", its params are those of {', '.join(prefixes)}" if prefixes else ""


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
    rows = [
        (name, exact(work.macs), exact(work.matrix_flops), exact(work.vector_flops),
         exact(work.flops))
        for name, work in parts
    ]  # fmt: skip
    if page.pages > 1:
        rows.append(
            (f"{one}: 1/{page.pages} of the batch", share_text(page.macs),
             share_text(page.matrix_flops), share_text(page.vector_flops), share_text(page.flops))
        )  # fmt: skip
    return Table(
        "Totals, exact",
        ("what", "MACs", "matrix FLOPs", "vector FLOPs", "FLOPs"),
        tuple(rows),
    )


def _experts(report: Report) -> list[Table]:
    """Routed experts that each stage touches, and the bytes read; no table without experts."""
    rows = tuple(
        (stage, str(touched.even), f"{touched.expected:.2f}", f"{touched.counted:.4g}",
         bytes_text(content.bytes_read), bytes_text(expected))
        for stage, content in report.stages.items()
        if (touched := content.experts_touched) is not None
        and (expected := content.bytes_read_expected) is not None
    )  # fmt: skip
    title = "Routed experts touched per layer: evenly spread, and expected for independent choices"
    columns = ("stage", "even", "expected", "counted", "read", "read, expected")
    return [Table(title, columns, rows)] if rows else []


def _memory(report: Report) -> Table:
    memory = report.memory
    figures = {
        "weights_bytes": memory.weights_bytes,
        "inputs_bytes": memory.inputs_bytes,
        "kv_cache_bytes": memory.kv_cache_bytes,
        "peak_activation_bytes": memory.peak_activation_bytes,
    }
    where = {}
    if memory.peak_module is not None:
        where["peak_activation_bytes"] = f"; in {memory.peak_module or 'the model itself'}"
    rows = [
        (key.removesuffix("_bytes").replace("_", " "), bytes_text(nbytes), exact(nbytes),
         memory.stated_for.get(key, "") + where.get(key, ""))
        for key, nbytes in figures.items()
        if nbytes is not None
    ]  # fmt: skip
    return Table("Memory", ("what", "size", "bytes", "stated for"), tuple(rows))


def _top_modules(report: Report) -> Table:
    """Modules by FLOPs of their own forward, with repeated layers folded into one row."""
    in_prefill_pass = [name for name in report.stages if name != report.decode_name]
    ranked = top_modules(report, *in_prefill_pass)[:TOP_MODULES]
    ridge = ridge_of(report)

    def row(module: TopModule) -> tuple[str, ...]:
        ratio = module.flops / module.nbytes if module.nbytes else None
        return (
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

    has_classes = any(module.class_name for module in ranked)
    names = ("stage", "module", *(["class"] if has_classes else []))
    return Table(
        "Top modules of the prefill pass, by FLOPs of their own forward; bound by compute above"
        f" {ratio_text(ridge.flops_per_byte)} FLOPs/byte, as on {ridge.gpu}",
        (*names, "modules", "calls", "FLOPs", "share", "bytes", "FLOPs/byte", "bound"),
        tuple(map(row, ranked)),
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


def _agreement(report: Report, agreement: Agreement) -> Table:
    """Traced and analytic figures side by side."""
    rows = []
    for stage, content in report.stages.items():
        quantities = agreement.stages[stage]
        differing = [name for name, agrees in quantities.items() if not agrees]
        analytic = "-" if content.flops_analytic is None else exact(content.flops_analytic)
        rows.append(
            (f"{stage}, FLOPs", exact(content.flops), analytic,
             f"differ: {', '.join(differing)}" if differing else f"all {len(quantities)} agree")
        )  # fmt: skip
    peak = agreement.peak_activation_bytes
    rows += [
        ("peak activation, bytes", exact(peak.traced), exact(peak.analytic), _verdict(peak.agrees)),
        ("KV cache, bytes", "", "", _verdict(agreement.kv_cache_bytes)),
        ("batch", "", "", _verdict(agreement.batch)),
    ]
    return Table(
        "Agreement of the two engines",
        ("what", "traced", "analytic", "quantities"),
        tuple(rows),
    )


def _verdict(agrees: bool | None) -> str:
    if agrees is None:
        return "not compared"
    return "agree" if agrees else "differ"


def ledger_table(report: Report) -> Table | None:
    """Every operator that ran; None if that is unknown."""
    ledger = report.operator_ledger
    if not (ledger.counted or ledger.free or ledger.unknown):
        return None
    rows = [
        (status, exact(sum(operators.values())), _calls(operators.items()) or "none")
        for status, operators in (
            ("counted", ledger.counted),
            ("free", ledger.free),
            ("unknown", ledger.unknown),
        )
    ]
    return Table(
        "Operator ledger: every operator that ran",
        ("status", "calls", "operators"),
        tuple(rows),
    )


def _calls(operators: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} x {calls}" for name, calls in operators)
