"""The decoder: embedding, layers, last norm."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.decoder_stack import (
    attention_note,
    stack_cases,
    stack_formulas,
    stack_parameters,
    stack_symbols,
)
from dsocr_analyze.knowledge.machinery.facts import Facts, below_model, count
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.report.quantities import bytes_text

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    decoder = facts.decoder
    d, layers = decoder.hidden_size, decoder.layers
    per_token = facts.cache_bytes_per_token
    return Page(
        group="Decoder: the stack",
        subject=facts.get("DeepseekV2Model"),
        what=f"The decoder: token embedding, {layers} layers, a final norm. It creates the causal"
        " mask and the positions, and holds the KV cache: one pair of keys and values per layer.",
        blocks=(("prefill", "decoder stack"), ("decode", "decoder stack")),
        layer="architectures.ocr_family.decoder",
        inputs={"input_ids": "B, T"},
        output="B, T, d",
        parameters=stack_parameters(facts),
        diagram=f"""flowchart TB
  ids["input_ids [B, T], or inputs_embeds"] --> embed["embed_tokens<br/>{count(decoder.vocab_size)} x {d}"]
  embed --> layers["layers: {layers} x DeepseekV2DecoderLayer"]
  mask["causal mask [T, K]"] --> layers
  cache[("KV cache<br/>{count(per_token)} bytes/token")] <--> layers
  layers --> norm["norm: RMSNorm"]
  norm --> y["hidden states [B, T, {d}]"]""",
        pseudo_code="""x = embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
mask = causal_mask(T, K) if eager else None
for layer in layers:
    x = layer(x, mask, positions, cache)
return norm(x), cache""",
        mathematics=r"x^{(0)} = W_e[t], \quad x^{(l)} = \mathrm{layer}_l(x^{(l-1)}), \quad"
        r" y = \mathrm{norm}(x^{(L)})",
        symbols=stack_symbols(facts, layers=True),
        formulas=stack_formulas(facts),
        cases=stack_cases(
            facts,
            "DeepseekV2Model",
            lambda T, past: below_model(facts.decoder_kernels(T, past)),
            below="model",
        ),
        flops_notes=(
            attention_note(facts),
            "The embedding lookup computes nothing. The causal mask is made once per pass, with"
            " one comparison for each pair of positions.",
        ),
        memory_notes=(
            f"The KV cache takes {count(per_token)} bytes per token in bf16 for all layers:"
            f" {bytes_text(per_token * facts.tokens)} for the stated prompt.",
        ),
        related=(
            "DeepseekV2DecoderLayer",
            "DeepseekV2RMSNorm",
            "DeepseekV2ForCausalLM",
            facts.model_class,
        ),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.running.forward import running

decoder = DeepSeekOCRSession.from_local().model.model  # includes the vision side
ids = torch.zeros(1, {facts.tokens}, dtype=torch.long, device="meta")
with running(torch.device("meta")):
    out = decoder(input_ids=ids, use_cache=True)
assert out.last_hidden_state.shape == (1, {facts.tokens}, {d})
assert len(out.past_key_values) == {layers}""",
        notes="embedding, layers, final norm; mask and cache",
        references=("deepseekv2",),
    )
