"""Prints text as it is generated."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.reference_files import OCR
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page, Parameter
from dsocr_analyze.knowledge.machinery.signature import import_line

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    return Page(
        group="Preprocessing and streaming",
        subject=facts.get("NoEOSTextStreamer"),
        what="Prints text as it is generated, with a line break instead of the end-of-sequence"
        " token. It handles text only.",
        blocks=(),
        layer="none: text only",
        parameters={
            "tokenizer": Parameter("Decodes token ids.", "the model's tokenizer"),
            "skip_prompt": Parameter("Whether the prompt is skipped.", False),
        },
        diagram="""sequenceDiagram
  participant G as generate()
  participant S as NoEOSTextStreamer
  participant O as stdout
  G->>S: put(token)
  S->>S: decode, wait for a whole word
  S->>S: replace the end-of-sequence text by a line break
  S->>O: print
  G->>S: end()""",
        pseudo_code="""def on_finalized_text(text, stream_end):
    print(text.replace(eos_text, newline))""",
        mathematics=r"\text{(no computation)}",
        flops_notes=("No computation on tensors.",),
        memory_notes=("No parameters; it keeps the tokens of the unfinished word.",),
        related=(facts.whole_class,),
        usage=f"""{import_line(OCR, "NoEOSTextStreamer")}


class Tokenizer:
    eos_token_id = 1

    def decode(self, ids, **options):
        return "<eos>"


printed = []
streamer = NoEOSTextStreamer(Tokenizer())
streamer.on_finalized_text("a line<eos>", stream_end=True)""",
        notes="text only",
    )
