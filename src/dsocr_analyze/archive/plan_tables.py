"""A plan for readers: its answer in the first lines, and tables."""

from collections.abc import Iterator
from typing import Final

from dsocr_analyze.archive.plan import (
    GpuPlan,
    OperatingPoint,
    PlanDocument,
    PointName,
)
from dsocr_analyze.report.opening import model_text
from dsocr_analyze.report.table import (
    Table,
    bytes_text,
    counted,
    hours_text,
    percent_text,
    price_text,
    rate_text,
    seconds_text,
    three_digits,
)
from dsocr_analyze.timing import LoadBound, runtime_text

_POINTS: Final[dict[PointName, str]] = {
    "alone": "a page alone",
    "knee": "the knee",
    "first_token": "the most for that first token",
    "max": "the most at once",
}

_BOUNDS: Final[dict[LoadBound, str]] = {
    "memory": "memory bandwidth", "workers": "CPU workers", "host": "the server's host",
}  # fmt: skip


def answer(document: PlanDocument) -> str:
    """What the GPU takes that needs the fewest hours, and the model."""
    plan = document.gpus[0]
    lines = [_refusal(document, plan)]
    if plan.point is not None:
        lines = [*_answer_lines(document, plan, plan.point)]
    if (found := plan.repetition) is not None:
        cost = "" if found.cost is None else f", {price_text(found.cost)}"
        lines.append(
            f"Repetition: {percent_text(found.share)} of pages run to {found.tokens:,} tokens, for"
            f" {seconds_text(found.page_seconds)} each; it costs {three_digits(found.gpu_hours)}"
            f" GPU-hours{cost}"
        )
    return "\n".join([*lines, f"Predicted, nothing was run: {model_text(document.model)}"])


def _refusal(document: PlanDocument, plan: GpuPlan) -> str:
    if not plan.points:
        return f"No: not one page fits on {plan.gpu}"
    least = seconds_text(plan.points["alone"].ttft_seconds)
    return (
        f"No: a first token within {seconds_text(document.first_token_seconds)} is asked for, and"
        f" that of a page alone takes {least} on {plan.gpu}"
    )


def _answer_lines(document: PlanDocument, plan: GpuPlan, point: OperatingPoint) -> Iterator[str]:
    band, limit, within = (
        point.gpu_hours_band, document.first_token_seconds, plan.points.get("first_token"),
    )  # fmt: skip
    deadline = document.deadline_hours
    side = "before" if point.hours <= (deadline or 0.0) else "after"
    by = "" if deadline is None else f", {side} the deadline of {hours_text(deadline)}"
    cost = ""
    if point.cost is not None:
        thousand = price_text(point.cost_per_thousand_pages)
        cost = f", which cost {price_text(point.cost)}, or {thousand} per 1,000 pages"
    yield (
        f"{point.gpus:,} x {plan.gpu}, {runtime_text(document.runtime, document.host)}:"
        f" {counted(document.pages, 'page')} in {hours_text(point.hours)}{by};"
        f" {three_digits(point.gpu_hours)} GPU-hours"
        f" ({three_digits(band.low)} to {three_digits(band.high)}){cost}"
    )
    yield (
        f"Each GPU: {counted(point.concurrency, 'page')} at once"
        f" ({_POINTS[plan.planned or 'knee']}), {rate_text(point.pages_per_second)} pages/s, first"
        f" token {seconds_text(point.ttft_seconds)}, {bytes_text(point.memory_bytes)} of"
        f" {bytes_text(plan.memory_bytes)}, {counted(plan.workers, 'CPU worker')}; bound by"
        f" {_BOUNDS.get(point.bound, point.bound)}"
    )
    kept = ""
    if within is not None:
        kept = f"; {within.concurrency} at once keep the first token within {seconds_text(limit)}"
    yield f"At most {counted(plan.largest_concurrency, 'page')} at once{kept}"


def plan_tables(document: PlanDocument) -> Iterator[Table]:
    """The GPUs beside each other, and the points of the first one."""
    plans = document.gpus
    if len(plans) > 1:
        rows = [_row(plan.gpu, plan.point, str(plan.workers)) for plan in plans]
        costs = {plan.point.cost for plan in plans if plan.point}
        first = "fewest GPU-hours" if None in costs else "cheapest"
        yield _table(f"GPUs, {first} first", "GPU", rows, more=("CPU workers",))
    rows = [_row(_POINTS[name], point) for name, point in plans[0].points.items()]
    if rows:
        yield _table(f"{plans[0].gpu}: pages at once", "point", rows)


def _row(label: str, point: OperatingPoint | None, *more: str) -> tuple[str, ...]:
    if point is None:
        return (label, "none", *["-"] * (8 + len(more)))
    return (
        label, str(point.gpus), str(point.concurrency), rate_text(point.pages_per_second),
        seconds_text(point.ttft_seconds), seconds_text(point.page_seconds),
        bytes_text(point.memory_bytes), point.bound, three_digits(point.gpu_hours),
        price_text(point.cost), *more,
    )  # fmt: skip


def _table(
    title: str, label: str, rows: list[tuple[str, ...]], more: tuple[str, ...] = ()
) -> Table:
    return Table(
        title,
        (label, "GPUs", "at once", "pages/s", "first token", "page", "memory", "bound",
         "GPU-hours", "cost", *more),
        tuple(rows),
        optional=("page", "memory"),
    )  # fmt: skip
