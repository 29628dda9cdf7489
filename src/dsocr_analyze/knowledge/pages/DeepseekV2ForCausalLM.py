"""The decoder with its head over the vocabulary."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.decoder_stack import (
    stack_cases,
    stack_formulas,
    stack_parameters,
    stack_symbols,
    with_head,
)
from dsocr_analyze.knowledge.machinery.facts import Facts, count
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.report.quantities import bytes_text

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    decoder = facts.decoder
    d, vocabulary = decoder.hidden_size, decoder.vocab_size
    logits = facts.tokens * vocabulary * 4
    return Page(
        group="Decoder: the stack",
        subject=facts.get("DeepseekV2ForCausalLM"),
        what="The decoder with a head over the vocabulary: one linear map without bias, applied to"
        " every position of the pass, with logits cast to fp32. With labels it also computes the"
        " next-token loss.",
        blocks=(("prefill", "LM head"), ("decode", "LM head")),
        layer="architectures.ocr_family.decoder, costs.lm_head.lm_head",
        inputs={"input_ids": "B, T"},
        output="B, T, V",
        parameters=stack_parameters(facts),
        diagram=f"""flowchart LR
  ids["input_ids [B, T]"] --> model["model: DeepseekV2Model"]
  model --> head["lm_head<br/>{d} to {count(vocabulary)}"]
  head --> cast["cast to fp32"]
  cast --> logits["logits [B, T, {count(vocabulary)}]"]
  model --> cache[("KV cache")]""",
        pseudo_code="""hidden, cache = model(input_ids, past_key_values=cache)
logits = lm_head(hidden).float()          # every position
loss = cross_entropy(logits[:, :-1], labels[:, 1:]) if labels is not None else None""",
        mathematics=r"z_t = W_{lm}\, y_t, \quad p(t + 1) = \mathrm{softmax}(z_t)",
        symbols=stack_symbols(facts, layers=True),
        formulas=with_head(stack_formulas(facts), "V", shares_weights=decoder.tie_word_embeddings),
        cases=stack_cases(facts, "DeepseekV2ForCausalLM", facts.decoder_kernels),
        flops_notes=(
            "The head runs over all T positions of the prefill pass, although generation needs only"
            " the last one.",
        ),
        memory_notes=(
            f"The logits of the stated prompt take {bytes_text(logits)} in fp32, plus half as much"
            " in bf16 before the cast.",
        ),
        related=(
            "DeepseekV2Model",
            facts.whole_class,
            "DeepseekV2ForSequenceClassification",
        ),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.running.forward import running

model = DeepSeekOCRSession.from_local().model  # a DeepseekV2ForCausalLM that takes images
ids = torch.zeros(1, {facts.tokens}, dtype=torch.long, device="meta")
with running(torch.device("meta")):
    out = model(input_ids=ids)
assert out.logits.shape == (1, {facts.tokens}, {vocabulary})
assert out.logits.dtype == torch.float32""",
        notes="head over all positions; logits in fp32",
        references=("deepseekv2",),
    )
