"""Where the tests look for a vendor checkout: DSOCR_VENDOR_DIR, or models/deepseek-ocr."""

import os
from pathlib import Path

import pytest

__all__ = ["VENDOR", "needs_vendor"]

VENDOR = Path(
    os.environ.get("DSOCR_VENDOR_DIR") or Path(__file__).parent.parent / "models" / "deepseek-ocr"
)

needs_vendor = pytest.mark.skipif(
    not (VENDOR / "config.json").is_file(),
    reason="no vendor checkout in models/deepseek-ocr or DSOCR_VENDOR_DIR",
)
