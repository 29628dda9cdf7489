"""A sweep for a program: all its rows at once, and what they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.report.frame import require_pandas

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from dsocr_analyze.columns.counted_model import CountedModel
    from dsocr_analyze.columns.metadata import CountOpening
    from dsocr_analyze.sweep.combinations import Sweep

__all__ = ["SweepRows", "rows_of"]

_MOST_ROWS: Final = 10_000_000


@dataclass(frozen=True)
class SweepRows:
    """The rows of a sweep.

    Attributes:
        opening: Which model, counted how.
        table: One row for each combination, as `dsocr-analyze sweep` writes them.
    """

    opening: CountOpening
    table: pa.Table

    def to_pandas(self) -> pd.DataFrame:
        """The same as a table of pandas. Needs the extra `pandas`.

        Raises:
            FormatError: pandas is not installed.
        """
        require_pandas()
        return self.table.to_pandas()


def rows_of(sweep: Sweep, model: CountedModel, opening: CountOpening) -> SweepRows:
    """All rows of a sweep.

    Args:
        sweep: The axes.
        model: The model.
        opening: Which model that is, counted how.

    Raises:
        WorkloadError: There are more rows than are held at once, or a count does not fit 64 bits.
        ConfigError: The model has a part without a closed form.
    """
    import pyarrow as pa

    sweep.check(model)
    if sweep.rows > _MOST_ROWS:
        raise WorkloadError(
            f"the sweep has {sweep.rows:,} rows; give shorter ranges, for at most {_MOST_ROWS:,},"
            " or let `dsocr-analyze sweep` write them to a file"
        )
    return SweepRows(opening, pa.Table.from_batches(list(sweep.batches(model))))
