"""`python -m dsocr_analyze`."""

from __future__ import annotations

import sys

from dsocr_analyze.cli import main

if __name__ == "__main__":
    sys.exit(main())
