"""The picture of a comparison: its options, their checks, and drawing it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from dsocr_analyze.cli import completion, many_options, options
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.cli.compared_columns import Column, Saved
    from dsocr_analyze.cli.time_options import TimeRequest
    from dsocr_analyze.pictures.picture import Picture
    from dsocr_analyze.report.comparison import Comparison
    from dsocr_analyze.report.document import Report

__all__ = ["Drawn", "PictureAsked", "PlotOption", "QuantityOption", "picture_asked"]

_QUANTITIES: Final = ("flops", "bytes", "seconds")

PlotOption = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        help="What one page costs, stacked stage by stage, as FILE.png or FILE.svg. Needs the extra"
        " 'plot'.",
    ),
]
QuantityOption = Annotated[
    str | None,
    typer.Option(
        "--quantity",
        metavar="|".join(_QUANTITIES),
        autocompletion=completion.one_of(*_QUANTITIES),
        help=f"What is stacked; seconds need --gpu. Default: {_QUANTITIES[0]}.",
    ),
]


def picture_asked(
    plot: Path | None,
    quantity: str | None,
    columns: Sequence[Column | Saved],
    asked: TimeRequest | None,
) -> PictureAsked | None:
    """The requested picture, checked before any work; None if there is none.

    Args:
        plot: Value of `--plot`.
        quantity: Value of `--quantity`.
        columns: What is compared.
        asked: The requested predictions.

    Raises:
        WorkloadError: The quantity is unknown or given without a picture, there are too many bars,
            or a report lacks predicted seconds.
        FormatError: The file's name has no known extension, or matplotlib is not installed.
        OutputError: The file cannot be written.
    """
    if quantity is not None:
        quantity = options.chosen("--quantity", quantity, _QUANTITIES)
    if plot is None:
        if quantity is not None:
            raise WorkloadError(f"--quantity {quantity} is for a picture; give --plot FILE too")
        return None
    from dsocr_analyze.pictures.stage_chart import refuse_many_bars

    many_options.check_files(None, plot)
    quantity = quantity or _QUANTITIES[0]
    refuse_many_bars(sum(_bars(each, quantity, asked) for each in columns))
    return PictureAsked(plot, quantity)


def _bars(column: Column | Saved, quantity: str, asked: TimeRequest | None) -> int:
    """Number of bars for a column: one, or for seconds one per GPU and runtime."""
    from dsocr_analyze.cli.compared_columns import Saved

    if quantity != "seconds":
        return 1
    if isinstance(column, Saved):
        if not column.report.time:
            raise WorkloadError(
                f"--quantity seconds needs predicted seconds, and {column.item!r} has none; save it"
                " with --gpu, or leave it out"
            )
        return len(column.report.time)
    if asked is None:
        raise WorkloadError("--quantity seconds needs predicted seconds; give --gpu too")
    return len(asked.profiles) * len(asked.jobs)


class Drawn(NamedTuple):
    """A picture that is not written yet.

    Attributes:
        path: The file to write.
        picture: The picture.
    """

    path: Path
    picture: Picture

    def write(self) -> None:
        """Write it; raises OutputError if that fails."""
        self.picture.save(self.path)


class PictureAsked(NamedTuple):
    """A picture to draw.

    Attributes:
        path: The file to write.
        quantity: What is stacked.
    """

    path: Path
    quantity: str

    def drawn(
        self,
        comparison: Comparison,
        columns: Sequence[Column | Saved],
        reports: Sequence[tuple[str, Report]],
    ) -> Drawn:
        """The picture.

        Args:
            comparison: Names the reports.
            columns: What is compared.
            reports: Each column's name and report.
        """
        from dsocr_analyze.cli.compared_columns import Column
        from dsocr_analyze.pictures.stage_chart import Compared, stage_picture

        compared = [
            Compared(name, report, each.model.config if isinstance(each, Column) else None)
            for name, each, (_, report) in zip(
                comparison.document.names, columns, reports, strict=True
            )
        ]
        return Drawn(self.path, stage_picture(compared, self.quantity))
