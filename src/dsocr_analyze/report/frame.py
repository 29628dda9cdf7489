"""Reports and comparisons as pandas tables."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from dsocr_analyze.errors import FormatError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Grouping", "Tabular", "require_pandas"]

Grouping = Literal["stage", "module", "operator"]

_COUNTS: Final = (
    "macs", "matrix_flops", "vector_flops", "flops", "activations", "bytes_read", "bytes_written",
)  # fmt: skip

_GROUPINGS: Final = get_args(Grouping)


class Tabular:
    """Gives a report `to_pandas`."""

    __slots__ = ()

    def to_pandas(self, by: Grouping = "stage") -> pd.DataFrame:
        """A table of exact integers, in the report's order. Needs the extra `pandas`.

        Args:
            by: One row per stage (`stage`); per module of each stage (`module`), with counts that
                include its children, and those of its own forward in columns `own_...`; or per
                operator of each stage (`operator`), with its FLOPs and its family.

        Raises:
            FormatError: `by` is none of these, or pandas is not installed.
        """
        if by not in _GROUPINGS:
            raise FormatError(f"by={by!r} is unknown; give {', '.join(_GROUPINGS)}")
        require_pandas()
        import pandas as pd

        return pd.DataFrame(list(_rows(self, by)))


def require_pandas() -> None:
    """Raise FormatError if pandas is not installed."""
    if importlib.util.find_spec("pandas") is None:
        raise FormatError(
            "a table needs pandas, the optional extra 'pandas'; install it with pip install"
            " 'dsocr-analyze[pandas]'"
        )


def _rows(report: Any, by: Grouping) -> Iterator[dict[str, Any]]:
    for name, stage in report.stages.items():
        if by == "stage":
            keys = ("params", "calls", *_COUNTS, "arithmetic_intensity")
            yield {"stage": name, **{key: getattr(stage, key) for key in keys}}
        elif by == "module":
            for path, module in stage.by_module.items():
                yield {
                    "stage": name,
                    "module": path,
                    "class": module.class_name,
                    **{key: getattr(module, key) for key in ("calls", "params", *_COUNTS)},
                    **{f"own_{key}": getattr(module.own, key) for key in _COUNTS},
                }
        else:
            families = {
                operator: family
                for family, of_kind in stage.operator_families.items()
                for operator in of_kind.operators
            }
            for operator, flops in stage.operators.items():
                family = families.get(operator)
                yield {"stage": name, "operator": operator, "family": family, "flops": flops}
