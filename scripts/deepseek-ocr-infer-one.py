#!/usr/bin/env python3
r"""`dsocr-analyze infer`: the vendor's `infer()` on one image, beside what its passes cost.

pixi run python scripts/deepseek-ocr-infer-one.py --model "$(pwd)/models/deepseek-ocr" \
    --input page.png --output tmp/dsocr-infer-one --device cuda:0 --base-size 1024 \
    --image-size 640 --crop-mode 1
"""

import sys

from dsocr_analyze.__main__ import run

if __name__ == "__main__":
    sys.argv.insert(1, "infer")
    run()
