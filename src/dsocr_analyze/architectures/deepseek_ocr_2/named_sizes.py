"""Names of the Qwen2 encoder's sizes in formulas."""

from __future__ import annotations

from dataclasses import replace

from dsocr_analyze.architectures.deepseek_ocr_2.encoder import EncoderDimensions
from dsocr_analyze.architectures.ocr_family.named_sizes import (
    WIDTH,
    Named,
    Part,
    heads_of,
    name,
    named,
)
from dsocr_analyze.tape import Size


@named.register
def _encoder(c: EncoderDimensions, part: Part) -> Named:
    width, heads = heads_of(part, c.width, c.heads)
    if q := part.values.get("q"):
        part.values["n"] = q * q
    changes: dict[str, Size] = {
        "width": width,
        "heads": heads,
        "kv_heads": part.size("H_kv", c.kv_heads),
        "intermediate_size": part.size("m", c.intermediate_size),
    }
    return replace(c, **changes), WIDTH, (("q", "q"), name("n"))
