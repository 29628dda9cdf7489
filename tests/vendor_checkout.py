"""Where the tests look for vendor checkouts: an environment variable each, or folders of models."""

import hashlib
import os
from collections import Counter
from pathlib import Path

import pytest

from dsocr_analyze.trace.passes import ledger_of

__all__ = [
    "VENDOR",
    "VENDOR_OCR2",
    "VENDOR_UNLIMITED",
    "assert_same_passes",
    "digests",
    "needs_vendor",
    "needs_vendor_ocr2",
    "needs_vendor_unlimited",
]

MODELS = Path(__file__).parent.parent / "models"


def checkout(variable: str, folder: str) -> tuple[Path, pytest.MarkDecorator]:
    """A checkout's directory, and the mark that skips a test where there is none."""
    directory = Path(os.environ.get(variable) or MODELS / folder)
    is_missing = not (directory / "config.json").is_file()
    reason = f"no vendor checkout in models/{folder} or {variable}"
    return directory, pytest.mark.skipif(is_missing, reason=reason)


VENDOR, needs_vendor = checkout("DSOCR_VENDOR_DIR", "deepseek-ocr")
VENDOR_OCR2, needs_vendor_ocr2 = checkout("DSOCR_VENDOR_DIR_OCR2", "deepseek-ocr-2")
VENDOR_UNLIMITED, needs_vendor_unlimited = checkout("DSOCR_VENDOR_DIR_UNLIMITED", "unlimited-ocr")


def digests(directory: Path) -> dict[str, str]:
    """SHA-256 of a checkout's files, which tests leave untouched."""
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(directory.rglob("*"))
        if file.is_file() and file.suffix != ".safetensors"
    }


def assert_same_passes(ours, theirs):
    """Two traces ran the same operators, in whatever order, all of them with a rule."""
    assert ours.kv_cache_bytes == theirs.kv_cache_bytes
    passes = ((each.prefill, *each.decode_steps) for each in (ours, theirs))
    for own, other in zip(*passes, strict=True):
        assert own.peak == other.peak
        assert Counter(own.kernels) == Counter(other.kernels)
        assert sorted(own.calls) == sorted(other.calls)
        assert ledger_of(own).counted == ledger_of(other).counted
        assert ledger_of(own).unknown == ledger_of(other).unknown == {}
