"""Numbers for readers: only these strings are rounded, documents keep exact integers."""

from __future__ import annotations

from typing import Final

__all__ = [
    "bytes_text",
    "counted",
    "exact",
    "flops_text",
    "percent_text",
    "price_text",
    "ratio_text",
    "scaled",
    "share_text",
]

_STEPS: Final = ((10**24, "Y"), (10**21, "Z"), (10**18, "E"), (10**15, "P"), (10**12, "T"),
                 (10**9, "G"), (10**6, "M"), (10**3, "k"))  # fmt: skip


def scaled(count: float) -> str:
    """Four digits and a decimal prefix: 4568380069376 is '4.568 T'."""
    for index, (step, prefix) in enumerate(_STEPS):
        if abs(count) >= step:
            value = count / step
            # Four digits, even after rounding up: 1.234, 12.34, 123.4, 1234.
            digits = f"{value:#.4g}".removesuffix(".") if abs(value) < 9999.5 else f"{value:.0f}"
            if digits == "1000" and index:
                return f"1.000 {_STEPS[index - 1][1]}"
            return f"{digits} {prefix}"
    return f"{count:.4g}"


def bytes_text(count: float) -> str:
    """A byte count in decimal units: '6.672 GB'."""
    text = scaled(count)
    return f"{text}B" if " " in text else f"{text} B"


def exact(count: int) -> str:
    """All digits, grouped by three."""
    return f"{count:,}"


def share_text(share: float) -> str:
    """A page's share of a count, with two decimals: '1,234.50'."""
    return f"{share:,.2f}".removesuffix(".00")


def flops_text(count: float) -> str:
    """FLOPs with a decimal prefix: '4.568 TFLOPs'."""
    text = scaled(count)
    return f"{text}FLOPs" if " " in text else f"{text} FLOPs"


def ratio_text(ratio: float | None) -> str:
    """Four significant digits: '0.9034', '104.1'; a dash for None."""
    if ratio is None:
        return "-"
    return f"{ratio:#.4g}".removesuffix(".") if ratio < 999.95 else f"{ratio:,.0f}"


def percent_text(share: float) -> str:
    """A share in percent, to a tenth; a share too small for that is not shown as zero."""
    return "<0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"


def price_text(price: float) -> str:
    """An amount of money: cents, and below 1 three significant digits: '1,234.50', '0.0456'."""
    return f"{price:,.2f}" if price >= 1 else f"{price:#.3g}"


def counted(count: int, noun: str) -> str:
    """'1 page', '16 pages'; for nouns with a regular plural."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
