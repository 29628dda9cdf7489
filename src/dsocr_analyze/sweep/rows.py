"""A sweep for the Python API: all its rows at once, with the model they describe."""

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
        opening: The model, and how it was counted.
        table: One row per combination, as written by `dsocr-analyze sweep`.
    """

    opening: CountOpening
    table: pa.Table

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas table. Needs the extra `pandas`.

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
        opening: The same model, and how it is counted.

    Raises:
        WorkloadError: There are too many rows to hold at once, or a count does not fit in 64 bits.
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
