"""The page sizes and lengths in a batch of rows: whole numbers, and what is wrong with the others.

Nothing here raises for a bad value: an archive of a million pages has some. A column that cannot
hold numbers at all is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload.page import LARGEST_SIDE
from dsocr_analyze.workload.workload import LARGEST_COUNT

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = ["LENGTH_COLUMNS", "SIZE_COLUMNS", "PageRows", "read_rows"]

SIZE_COLUMNS: Final = ("width", "height")
"""Columns that a list of pages has to have, in pixels."""

LENGTH_COLUMNS: Final = ("text_tokens", "max_new_tokens")
"""Columns that it may have; a list without them has one length for all pages."""

_MOST: Final = {
    "width": LARGEST_SIDE,
    "height": LARGEST_SIDE,
    "text_tokens": LARGEST_COUNT,
    "max_new_tokens": LARGEST_COUNT,
}

_MISSING, _NOT_WHOLE, _OUT_OF_RANGE = 1, 2, 3
_REASONS: Final = 3

_WHOLE: Final = r"^\s*\+?0*(?P<digits>[0-9]{1,15})(?:\.0*)?\s*$"
_BLANK: Final = r"^\s*$"
_SIGNED: Final = r"^\s*[+-]?[0-9]+(?:\.0*)?\s*$"


@dataclass(frozen=True)
class PageRows:
    """What a batch says about its pages; in a faulty row every number is 1.

    Attributes:
        widths: Pixels, `[n]`.
        heights: Pixels, `[n]`.
        text_tokens: `[n]`, or None where the batch has no such column.
        max_new_tokens: `[n]`, or None where the batch has no such column.
        faults: `[n]`, 0 for a good row; see `fault_text`.
    """

    widths: NDArray[np.int64]
    heights: NDArray[np.int64]
    text_tokens: NDArray[np.int64] | None
    max_new_tokens: NDArray[np.int64] | None
    faults: NDArray[np.uint8]

    @property
    def is_good(self) -> NDArray[np.bool_]:
        """Which rows describe a page, `[n]`."""
        return self.faults == 0  # type: ignore[no-any-return]  # a comparison of arrays


def fault_text(fault: int, value: object = None) -> str:
    """What is wrong with a row; names the value where one is given.

    Args:
        fault: One of `PageRows.faults`, not 0.
        value: What the column that `fault_column` names holds in that row.
    """
    reason = (fault - 1) % _REASONS + 1
    column = fault_column(fault)
    if reason == _MISSING:
        return f"{column} is missing"
    shown = "" if value is None else f" {_shortened(value)}"
    if reason == _NOT_WHOLE:
        return f"{column}{shown} is not a whole number"
    return f"{column}{shown} is not from 1 to {_MOST[column]}"


def fault_column(fault: int) -> str:
    """The column that makes a row faulty: its first bad one."""
    return (*SIZE_COLUMNS, *LENGTH_COLUMNS)[(fault - 1) // _REASONS]


def fault_texts() -> list[str | None]:
    """The text of every fault by its number; None for 0."""
    count = _REASONS * len(_MOST)
    return [None, *(fault_text(fault) for fault in range(1, count + 1))]


def read_rows(batch: pa.RecordBatch | pa.Table) -> PageRows:
    """The numbers of a batch.

    Args:
        batch: Columns `width` and `height`, optionally `text_tokens` and `max_new_tokens`; whole
            numbers in any numeric type, or as text.

    Raises:
        WorkloadError: A column is missing, there twice, or of a type that holds no numbers.
    """
    import numpy as np

    names = batch.schema.names
    check_columns(names)
    values: dict[str, NDArray[np.int64]] = {}
    faults = np.zeros(batch.num_rows, np.uint8)
    for position, name in enumerate((*SIZE_COLUMNS, *LENGTH_COLUMNS)):
        if name not in names:
            continue
        column, reasons = _whole_numbers(name, batch.column(name), _MOST[name])
        values[name] = column
        if reasons is not None:
            first = (faults == 0) & (reasons != 0)
            faults[first] = _REASONS * position + reasons[first]
    if faults.any():
        for column in values.values():
            column[faults != 0] = 1
    return PageRows(
        values["width"],
        values["height"],
        values.get("text_tokens"),
        values.get("max_new_tokens"),
        faults,
    )


def check_columns(names: list[str], what: str = "a list of pages") -> None:
    """Raises WorkloadError where a column that is needed is not there exactly once."""
    for name in (*SIZE_COLUMNS, *LENGTH_COLUMNS):
        found = names.count(name)
        if found > 1:
            raise WorkloadError(f"{what} has {found} columns {name!r}; give one")
        if not found and name in SIZE_COLUMNS:
            shown = ", ".join(_shortened(name) for name in names[:8])
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            raise WorkloadError(
                f"{what} has no column {name!r} (it has {shown or 'none'}{more}); "
                "give columns width and height, in pixels"
            )


def _whole_numbers(
    name: str, column: Any, most: int
) -> tuple[NDArray[np.int64], NDArray[np.uint8] | None]:
    """A writable copy of a column as int64, and why a value is not usable (None: all are)."""
    import numpy as np
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    types, kind = pa.types, column.type
    if types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if types.is_decimal(kind):
        column, kind = column.cast(pa.string()), pa.string()
    if types.is_integer(kind):
        plain = column.fill_null(1) if column.null_count else column
        numbers = plain.to_numpy(zero_copy_only=False)
        reasons = _out_of_range(numbers, most)
    elif types.is_floating(kind):
        numbers = column.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
        numbers, reasons = _from_floats(numbers, most)
    elif _holds_text(kind):
        numbers, reasons = _from_text(column, most)
    elif types.is_null(kind):
        numbers, reasons = np.ones(len(column), np.int64), None
    else:
        raise WorkloadError(f"column {name!r} holds {kind}; give whole numbers")
    if column.null_count:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        reasons = np.where(missing, np.uint8(_MISSING), 0 if reasons is None else reasons)
        reasons = reasons.astype(np.uint8, copy=False)
    if reasons is not None:
        numbers = np.where(reasons == 0, numbers, 1)
    return numbers.astype(np.int64), reasons


def _holds_text(kind: Any) -> bool:
    import pyarrow.types as types

    return any(
        test(kind)
        for test in (
            types.is_string,
            types.is_large_string,
            types.is_string_view,
            types.is_binary,
            types.is_large_binary,
        )
    )


def _out_of_range(numbers: NDArray[Any], most: int) -> NDArray[np.uint8] | None:
    import numpy as np

    if not len(numbers) or (int(numbers.min()) >= 1 and int(numbers.max()) <= most):
        return None
    # Not `numbers > most` in the column's own type: an int8 has no 1,000,000.
    fitting = (numbers >= 1) & (numbers.astype(np.float64) <= most)
    return np.where(fitting, np.uint8(0), np.uint8(_OUT_OF_RANGE))


def _from_floats(
    numbers: NDArray[np.float64], most: int
) -> tuple[NDArray[Any], NDArray[np.uint8] | None]:
    """Floats as pandas leaves them behind: 1240.0, and NaN for a missing value."""
    import numpy as np

    is_whole = np.floor(numbers) == numbers
    with np.errstate(invalid="ignore"):
        fitting = is_whole & (numbers >= 1) & (numbers <= most)
    if fitting.all():
        return numbers, None
    reasons = np.where(fitting, np.uint8(0), np.uint8(_OUT_OF_RANGE))
    reasons[~is_whole] = _NOT_WHOLE
    reasons[np.isnan(numbers)] = _MISSING
    return np.where(fitting, numbers, 1.0), reasons


def _from_text(column: Any, most: int) -> tuple[NDArray[Any], NDArray[np.uint8] | None]:
    """Text of decimal digits, `1240` or `1240.0`; nulls are the caller's."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.cast(pa.binary())  # no kernel may stumble over bytes that are not UTF-8
    digits = pc.struct_field(pc.extract_regex(column, _WHOLE), "digits")
    numbers = digits.cast(pa.string()).cast(pa.int64()).fill_null(0).to_numpy()
    fitting = (numbers >= 1) & (numbers <= most)
    if fitting.all():
        return numbers, None
    reasons = np.where(fitting, np.uint8(0), np.uint8(_OUT_OF_RANGE))
    is_number = pc.match_substring_regex(column, _SIGNED).fill_null(True)
    reasons[~is_number.to_numpy(zero_copy_only=False)] = _NOT_WHOLE
    is_blank = pc.match_substring_regex(column, _BLANK).fill_null(False)
    reasons[is_blank.to_numpy(zero_copy_only=False)] = _MISSING
    return np.where(fitting, numbers, 1), reasons


def _shortened(value: object) -> str:
    text = repr(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
    return text if len(text) <= 40 else text[:37] + "..."
