"""The decoder with a head over labels."""

from __future__ import annotations

from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.operators import Kernels, filled, moved
from dsocr_analyze.dtypes import BFLOAT16, INT64
from dsocr_analyze.knowledge.families.decoder_stack import (
    stack_cases,
    stack_formulas,
    stack_parameters,
    stack_symbols,
    with_head,
)
from dsocr_analyze.knowledge.families.reference_files import DECODER
from dsocr_analyze.knowledge.machinery.facts import Facts, below_model
from dsocr_analyze.knowledge.machinery.page import Page, Parameter, Symbol
from dsocr_analyze.knowledge.machinery.signature import import_line

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    decoder = facts.decoder
    d = decoder.hidden_size
    labels = int(facts.config.num_labels)
    symbols = stack_symbols(facts, layers=True)
    symbols["c"] = Symbol("c", "labels", str(labels))
    return Page(
        group="Decoder: the stack",
        subject=facts.get("DeepseekV2ForSequenceClassification"),
        what="The decoder with a linear head over labels, read at each row's last token. It is in"
        f" the files of {facts.model_name}, but the OCR pipeline never runs it.",
        blocks=(),
        layer="architectures.ocr_family.decoder, costs.linear.linear",
        inputs={"input_ids": "B, T"},
        output="B, c",
        parameters={
            **stack_parameters(facts),
            "config.num_labels": Parameter("Labels.", labels),
        },
        diagram=f"""flowchart LR
  ids["input_ids [B, T]"] --> model["model: DeepseekV2Model"]
  model --> score["score<br/>{d} to {labels}"]
  score --> last["row's last token"]
  last --> logits["logits [B, {labels}]"]""",
        pseudo_code="""scores = score(model(input_ids))
last = position before the first padding, or the last position
return scores[arange(B), last]""",
        mathematics=r"z = W_s\, y_{t_{last}}",
        symbols=symbols,
        formulas=with_head(stack_formulas(facts), "c"),
        cases=stack_cases(
            facts,
            "DeepseekV2ForSequenceClassification",
            lambda T, past: below_model(facts.decoder_kernels(T, past)) + _label_head(T, d, labels),
        )[:1],
        flops_notes=("The head runs on every position, although only one per row is used.",),
        related=("DeepseekV2Model", "DeepseekV2ForCausalLM"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession
{import_line(DECODER, "DeepseekV2ForSequenceClassification")}
from dsocr_analyze.running.building import building
from dsocr_analyze.running.forward import running

meta = torch.device("meta")
config = DeepSeekOCRSession.from_local().model.config
with building(meta, torch.bfloat16):
    model = DeepseekV2ForSequenceClassification(config).eval()
with running(meta):
    out = model(input_ids=torch.zeros(1, {facts.tokens}, dtype=torch.long, device=meta))
assert out.logits.shape == (1, {labels})""",
        notes="in the files, not in the OCR pipeline",
        references=("deepseekv2",),
    )


def _label_head(T: int, d: int, labels: int) -> Kernels:
    """The label head on T tokens of one row, then indexing the last token of the row."""
    taken = labels * BFLOAT16.nbytes
    return (
        *linear(T, d, labels, BFLOAT16),
        *filled("arange", 1, INT64),
        *moved("index", labels, taken + INT64.nbytes, taken, BFLOAT16),
    )
