"""Numbers as people read them. Documents keep exact integers; only these strings are rounded."""

from __future__ import annotations

from typing import Final

__all__ = ["bytes_text", "exact", "ratio_text", "scaled", "share_text"]

_STEPS: Final = ((10**24, "Y"), (10**21, "Z"), (10**18, "E"), (10**15, "P"), (10**12, "T"),
                 (10**9, "G"), (10**6, "M"), (10**3, "k"))  # fmt: skip


def scaled(count: float) -> str:
    """Four digits and a decimal prefix: 4568380069376 is '4.568 T'."""
    for step, prefix in _STEPS:
        if abs(count) >= step:
            whole = len(str(int(abs(count) // step)))
            return f"{count / step:.{max(4 - whole, 0)}f} {prefix}"
    return f"{count:.4g}"


def bytes_text(count: float) -> str:
    """A byte count in decimal units: '6.672 GB'."""
    text = scaled(count)
    return f"{text}B" if " " in text else f"{text} B"


def exact(count: int) -> str:
    """All digits, in groups of three."""
    return f"{count:,}"


def share_text(share: float) -> str:
    """A page's share of a count, to the hundredth: '1,234.5' is 1,234.50."""
    return f"{share:,.2f}".removesuffix(".00")


def ratio_text(ratio: float | None) -> str:
    """Three significant digits; a dash for what has no ratio."""
    if ratio is None:
        return "-"
    return f"{ratio:.3g}" if ratio < 1000 else f"{ratio:,.0f}"
