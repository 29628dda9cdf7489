"""All models in one table: their comparison with models as rows, the best first."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from dsocr_analyze.errors import WorkloadError, did_you_mean
from dsocr_analyze.report import table
from dsocr_analyze.report.comparison import ComparedQuantity, ComparisonDocument, Ranking
from dsocr_analyze.report.document import Report

ORDERS: Final[Mapping[str, str]] = {
    "pages-per-second": "_pages_per_second",
    "cost": "_cost_per_thousand_pages",
    "first-token": "_ttft_seconds",
    "prompt": "seq_len",
    "prefill": "prefill_pass_flops",
    "step": "decode_step_bytes",
    "weights": "weights_bytes",
    "cache": "kv_cache_bytes",
    "accuracy": "accuracy_omnidocbench_v1_5_as_reported",
}
"""What models can be sorted by, and the key that it means; of a predicted one, a part."""

_SHOWN: Final = (
    "prefill_pass_flops", "decode_step_flops", "decode_step_bytes", "weights_bytes",
    "kv_cache_bytes", "_ttft_seconds", "_pages_per_second", "_cost_per_thousand_pages", "accuracy_",
)  # fmt: skip
"""Parts of the keys of quantities in the table."""

_TEXTS: Final[Mapping[str, Callable[[float], str]]] = {
    "FLOPs": table.scaled,
    "bytes": table.bytes_text,
    "s": table.seconds_text,
    "pages/s": table.rate_text,
    "price": table.price_text,
    "score": "{:g}".format,
}


def sorting_row(found: ComparisonDocument, order: str) -> ComparedQuantity:
    """The quantity that an order of `ORDERS`, or a benchmark's key, sorts by.

    Of several GPUs and numbers of pages in flight it is the last.

    Raises:
        WorkloadError: No model has it.
    """
    keys = {
        **ORDERS,
        **{row.key.removeprefix("accuracy_"): row.key for row in found.rows if row.unit == "score"},
    }
    known = {
        name: row
        for name, key in keys.items()
        for row in found.rows
        if key == row.key or (key.startswith("_") and key in row.key)
    }
    if order not in known:
        near = "" if order in keys else did_you_mean(order, keys)
        raise WorkloadError(
            f"no model has {order!r} to sort by; {near}what is predicted needs gpu, and"
            f" cost needs price, too; give {', '.join(known)}",
            arguments=["gpu", "price"],
        )
    return known[order]


def order_of(row: ComparedQuantity) -> list[int]:
    """Places of the reports from the best value to the worst; those without one come last."""
    sign = -1 if row.unit in ("pages/s", "score") else 1
    values = [(value is None, sign * (value or 0)) for value in row.values]
    return sorted(range(len(values)), key=values.__getitem__)


def opening(found: ComparisonDocument, ranking: Ranking, reports: Sequence[Report]) -> str:
    """What is the same for every model, and what predicts its seconds."""
    dpi = "" if ranking.dpi is None else f" at {ranking.dpi} dpi"
    runs = [entry.title for report in reports for entry in report.time]
    predicted = f"; predicted: {' | '.join(dict.fromkeys(runs))}" if runs else ""
    return f"{found.opening()}\nEvery model reads the same page{dpi}{predicted}"


def ranking_tables(found: ComparisonDocument, ranking: Ranking) -> Iterator[table.Table]:
    """One row per model, then why others have none."""
    shown = [row for part in _SHOWN for row in found.rows if part in row.key]
    [by] = [row for row in found.rows if row.key == ranking.sorted_by]
    marks = {
        (f"accuracy_{key}", name): score.mark
        for key, benchmark in ranking.accuracies.items()
        for name, score in benchmark.first.items()
    }

    def cell(row: ComparedQuantity, place: int) -> str:
        value, mark = row.values[place], marks.get((row.key, found.architectures[place] or ""), "")
        return "-" if value is None else mark + _TEXTS[row.unit](value)

    yield table.Table(
        f"Sorted by {by.quantity} [{by.unit}]; prompt: visual + text tokens; scores: higher is"
        " better, ~ of another release than the counted one, ? as others quote it",
        ("model", "prompt", *(f"{row.quantity} [{row.unit}]" for row in shown)),
        tuple(
            (name, f"{each.visual_tokens:,} + {each.text_tokens:,}",
             *(cell(row, place) for row in shown))
            for place, (name, each) in enumerate(
                (column.name, column.workload) for column in found.columns
            )
        ),
    )  # fmt: skip
    if ranking.left_out:
        yield table.Table("Left out", ("model", "why"), tuple(ranking.left_out.items()))


def score_lines(found: ComparisonDocument, ranking: Ranking) -> Iterator[str]:
    """Who published which scores of the models, and which of them have none."""
    known = set[str]().union(*(each.first for each in ranking.accuracies.values()))
    for benchmark in ranking.accuracies.values():
        for each in benchmark.published:
            scores = [score for score in each.scores if score.architecture in found.architectures]
            if scores:
                said = (f"{score.model} {score.mark}{score.score:g}" for score in scores)
                yield (
                    f"{benchmark.name} {each.measured}: {', '.join(said)} ({each.source}, looked up"
                    f" {each.looked_up})"
                )
    if unknown := [name for name in map(str, found.architectures) if name not in known]:
        yield f"no published score is known of {', '.join(dict.fromkeys(unknown))}"
