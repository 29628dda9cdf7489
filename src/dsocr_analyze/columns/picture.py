"""Pictures: PNG or SVG, by the optional extra `plot` (matplotlib)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dsocr_analyze.errors import FormatError
from dsocr_analyze.output_files import replacing

__all__ = ["new_figure", "picture_format", "readable_scale", "save_picture", "tick_style"]

_FORMATS: Final = {".png": "png", ".svg": "svg"}

_PREFIXES: Final = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"),
                    (10**3, "k"))  # fmt: skip


def picture_format(path: Path) -> str:
    """The format of a picture, by its name; refuses early what could not be drawn later.

    Raises:
        FormatError: The name ends in no known format, or matplotlib is not installed.
    """
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise FormatError(
            f"cannot tell the format of picture {str(path)!r}; give a name that ends in "
            f"{' or '.join(_FORMATS)}"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise FormatError(
            "a picture needs matplotlib, the optional extra 'plot'; "
            "install it with pip install 'dsocr-analyze[plot]'"
        )
    return kind


def tick_style(labels: Sequence[str]) -> dict[str, Any]:
    """Keyword arguments of an axis's labels: slanted where they would run into each other."""
    if sum(map(len, labels)) <= 70:
        return {}
    return {"rotation": 45, "ha": "right", "rotation_mode": "anchor", "fontsize": "small"}


def readable_scale(largest: float, unit: str) -> tuple[int, str]:
    """What values are divided by to be read, and the unit of the quotient."""
    for divisor, prefix in _PREFIXES:
        if largest >= divisor:
            if unit in ("FLOPs", "B"):
                return divisor, f"{prefix}{unit}"
            if divisor >= 10**6:
                return 10**6, f"million {unit}"
    return 1, unit


def new_figure(title: str, subtitle: str) -> tuple[Any, Any]:
    """A figure and its axes, titled and otherwise empty.

    Args:
        title: What it shows.
        subtitle: What is the same for all of it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", pad=22)
    axes.annotate(
        subtitle,
        (0, 1),
        (0, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize="small",
        color="0.35",
    )
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_picture(figure: Any, path: Path) -> None:
    """Writes the picture, the same bytes for the same data."""
    import matplotlib as mpl

    kind = picture_format(path)
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "dsocr-analyze"}
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with replacing(path) as temporary, mpl.rc_context(settings):
        figure.savefig(temporary, format=kind, dpi=150, metadata=metadata)
