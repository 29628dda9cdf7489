#!/usr/bin/env python3
"""The main job under the name and with the options of the static analyzer it grew out of.

pixi run python scripts/deepseek-ocr-static-analysis.py --device cuda:0 \
    --model "$(pwd)/models/deepseek-ocr" --output tmp/dsocr-static-ops --base-size 1024 \
    --image-size 640 --seq-len 1024 --crop-mode 1 --use-flash-attn 1
"""

from dsocr_analyze.__main__ import run

if __name__ == "__main__":
    run()
