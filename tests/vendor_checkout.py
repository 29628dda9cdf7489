"""Where the tests look for vendor checkouts: a variable of the environment, or a folder here.

DSOCR_VENDOR_DIR or models/deepseek-ocr; DSOCR_VENDOR_DIR_UNLIMITED or models/unlimited-ocr.
"""

import os
from pathlib import Path

import pytest

__all__ = ["VENDOR", "VENDOR_UNLIMITED", "needs_vendor", "needs_vendor_unlimited"]

_MODELS = Path(__file__).parent.parent / "models"


def _checkout(variable: str, folder: str) -> tuple[Path, pytest.MarkDecorator]:
    """Where a checkout is, and the mark of tests that need it."""
    path = Path(os.environ.get(variable) or _MODELS / folder)
    mark = pytest.mark.skipif(
        not (path / "config.json").is_file(),
        reason=f"no vendor checkout in models/{folder} or {variable}",
    )
    return path, mark


VENDOR, needs_vendor = _checkout("DSOCR_VENDOR_DIR", "deepseek-ocr")
VENDOR_UNLIMITED, needs_vendor_unlimited = _checkout("DSOCR_VENDOR_DIR_UNLIMITED", "unlimited-ocr")
