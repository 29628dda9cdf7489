"""Whole numbers from an Arrow column of numbers or text."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Reason", "problem_text", "shortened", "whole_numbers"]


class Reason(enum.IntEnum):
    """Why a value is not usable."""

    MISSING = 1
    NOT_WHOLE = 2
    OUT_OF_RANGE = 3


_WHOLE: Final = r"^\s*\+?0*(?P<digits>[0-9]{1,15})(?:\.0*)?\s*$"
_BLANK: Final = r"^\s*$"
_SIGNED: Final = r"^\s*[+-]?[0-9]+(?:\.0*)?\s*$"


def whole_numbers(
    name: str, column: Any, most: int
) -> tuple[NDArray[np.int64], NDArray[np.uint8] | None]:
    """A column as int64, and the reasons why some values are not usable.

    Args:
        name: The column's name, for the error.
        column: An Arrow array of n numbers, or of numbers as text.
        most: Largest valid value; the smallest is 1.

    Returns:
        A copy of the numbers, `[n]`, with 1 for unusable ones; and the `Reason` of each, `[n]`,
        0 for usable ones, or None if all are usable.

    Raises:
        WorkloadError: The column has a non-numeric type.
    """
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
        reasons = np.where(missing, np.uint8(Reason.MISSING), 0 if reasons is None else reasons)
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
    # Don't compare in the column's own type: 1,000,000 does not fit in an int8.
    fitting = (numbers >= 1) & (numbers.astype(np.float64) <= most)
    return np.where(fitting, np.uint8(0), np.uint8(Reason.OUT_OF_RANGE))


def _from_floats(
    numbers: NDArray[np.float64], most: int
) -> tuple[NDArray[Any], NDArray[np.uint8] | None]:
    """Floats as pandas writes integers: 1240.0, and NaN for a missing value."""
    import numpy as np

    is_whole = np.floor(numbers) == numbers
    with np.errstate(invalid="ignore"):
        fitting = is_whole & (numbers >= 1) & (numbers <= most)
    if fitting.all():
        return numbers, None
    reasons = np.where(fitting, np.uint8(0), np.uint8(Reason.OUT_OF_RANGE))
    reasons[~is_whole] = Reason.NOT_WHOLE
    reasons[np.isnan(numbers)] = Reason.MISSING
    return np.where(fitting, numbers, 1.0), reasons


def _from_text(column: Any, most: int) -> tuple[NDArray[Any], NDArray[np.uint8] | None]:
    """Decimal text, `1240` or `1240.0`; the caller handles nulls."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.cast(pa.binary())  # kernels for strings would fail on invalid UTF-8
    digits = pc.struct_field(pc.extract_regex(column, _WHOLE), "digits")
    numbers = digits.cast(pa.string()).cast(pa.int64()).fill_null(0).to_numpy()
    fitting = (numbers >= 1) & (numbers <= most)
    if fitting.all():
        return numbers, None
    reasons = np.where(fitting, np.uint8(0), np.uint8(Reason.OUT_OF_RANGE))
    is_number = pc.match_substring_regex(column, _SIGNED).fill_null(True)
    reasons[~is_number.to_numpy(zero_copy_only=False)] = Reason.NOT_WHOLE
    is_blank = pc.match_substring_regex(column, _BLANK).fill_null(False)
    reasons[is_blank.to_numpy(zero_copy_only=False)] = Reason.MISSING
    return np.where(fitting, numbers, 1), reasons


def problem_text(name: str, reason: int, most: int, value: object = None) -> str:
    """Why a value is not usable.

    Args:
        name: The column's name.
        reason: One of `Reason`.
        most: Largest valid value; the smallest is 1.
        value: The column's value, to be named if given.
    """
    if reason == Reason.MISSING:
        return f"{name} is missing"
    shown = "" if value is None else f" {shortened(value)}"
    if reason == Reason.NOT_WHOLE:
        return f"{name}{shown} is not a whole number"
    return f"{name}{shown} is not from 1 to {most}"


def shortened(value: object) -> str:
    """A value on one line, truncated to a readable length."""
    text = repr(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
    return text if len(text) <= 40 else text[:37] + "..."
