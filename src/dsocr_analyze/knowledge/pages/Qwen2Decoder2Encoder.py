"""DeepSeek-OCR-2's encoder: Qwen2 over image tokens and learned queries."""

from __future__ import annotations

from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import EncoderDimensions
from dsocr_analyze.knowledge.families.qwen2 import (
    ENCODER,
    GROUP,
    STACK,
    SYMBOLS,
    all_kernels,
    encoder_of,
    stack_symbols,
    view_cases,
)
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.notation import evaluate
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Page, Parameter, pick
from dsocr_analyze.report.quantities import bytes_text

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    encoder = encoder_of(facts)
    d, tables = encoder.width, list(zip(encoder.view_sizes, encoder.queries, strict=True))
    named = ", ".join(f"`query_{size}` with {rows} rows" for size, rows in tables)
    label, N, R = facts.views[0]
    n = facts.token_side(R) ** 2
    cases = view_cases(
        facts,
        ENCODER,
        lambda N, R: [tensor(N, d, facts.token_side(R), facts.token_side(R))],
        lambda N, R: all_kernels(facts, N, R),
    )
    return Page(
        group=GROUP,
        subject=facts.class_at(ENCODER),
        what="A language model's decoder used as an image encoder, in place of CLIP. SAM's features"
        " become n image tokens, followed by n learned queries, one per row of a table. The decoder"
        " runs over both, but only the outputs of the queries are used: as many visual tokens as"
        " image tokens, in the order learned by the queries. There is one table for each view size"
        f" ({named}), selected by the number of tokens; any other number is refused.",
        blocks=(("encoder", "Qwen2 as encoder"), ("encoder", "tables of queries")),
        layer="architectures.deepseek_ocr_2.encoder.encoder_sections",
        inputs={"x": "N, d, q, q"},
        output="N, n, d",
        parameters=_parameters(d, encoder),
        diagram=_diagram(d, encoder, tables),
        pseudo_code="""x = x.flatten(2).transpose(1, 2)                     # [N, n, d]
queries = {rows: table}[n].weight.expand(N, n, d)    # the module of the table is never called
kinds = cat([zeros(N, n), ones(N, n)], dim=1)        # image token, query
return model(cat([x, queries], dim=1), kinds).last_hidden_state[:, n:]""",
        mathematics=r"y_i = f\left(x_1, \dots, x_n, u_1, \dots, u_i\right)_{n + i}"
        r" \quad (i = 1, \dots, n)",
        symbols=stack_symbols() | pick("u", SYMBOLS),
        formulas=Formulas(
            macs=STACK.macs,
            vector_flops=STACK.vector_flops,
            params=f"{STACK.params} + u * d",
            activations=STACK.activations,
        ),
        cases=cases,
        flops_notes=(
            "Half of all tokens are image tokens, whose final hidden states are not used, yet every"
            " layer and the final norm run on them.",
            "On a real CPU tensor `FlopCounterMode` does not see PyTorch's fused attention; on"
            " `meta` it is counted, as here.",
        ),
        memory_notes=(
            "Every call fills a KV cache of all layers, which is never read and is dropped when"
            f" the call ends: {', '.join(map(_cache, cases))}.",
        ),
        related=("CustomQwen2Decoder", "ImageEncoderViT", "MlpProjector", "DeepseekOCR2Model"),
        usage=f"""import torch
from dsocr_analyze.running.forward import running
from dsocr_analyze.session import DeepSeekOCRSession

encoder = DeepSeekOCRSession.from_local().model.model.qwen2_model
features = torch.empty({N}, {d}, {facts.token_side(R)}, {facts.token_side(R)}, dtype=torch.bfloat16, device="meta")
with running(torch.device("meta")):  # answers "which tokens are queries?"
    y = encoder(features)
assert y.shape == ({N}, {n}, {d})""",
        notes=f"one query per image token; the {label} has {n}",
        references=("deepseekocr2", "qwen2"),
    )


def _cache(case: Case) -> str:
    tokens = 2 * case.values["q"] ** 2
    size = evaluate(str(STACK.cache_bytes), {**case.values, "T": tokens})
    return f"{bytes_text(size)} for the {case.label}"


def _parameters(d: int, encoder: EncoderDimensions) -> dict[str, Parameter]:
    return {
        "decoder_layer": Parameter("Layers.", encoder.layers),
        "hidden_dimension": Parameter("Width d: SAM's channels.", d),
        "num_attention_heads": Parameter("Query heads.", encoder.heads),
        "num_key_value_heads": Parameter("Key and value heads.", encoder.kv_heads),
        "intermediate_size": Parameter("Hidden width of the MLPs.", encoder.intermediate_size),
        "max_query": Parameter("Unused, as published.", "any number"),
        "attn_implementation": Parameter("Only `sdpa` is built.", "sdpa"),
        "view_sizes": Parameter(
            "Pixels per side of the view sizes that have queries. Not a parameter of the vendor's"
            " class, which has the two published tables.",
            encoder.view_sizes,
        ),
    }


def _diagram(d: int, encoder: EncoderDimensions, tables: list[tuple[int, int]]) -> str:
    return f"""flowchart TB
  sam["SAM features [N, {d}, q, q]"] --> flat["flatten, tokens first<br/>[N, n, {d}]"]
  tables["{"<br/>".join(f"query_{size} [{rows}, {d}]" for size, rows in tables)}"] -->|"the one with n rows"| queries["queries [N, n, {d}]"]
  flat --> cat["concatenate [N, 2 n, {d}]"]
  queries --> cat
  flat --> kinds["kinds: n zeros, n ones"]
  cat --> decoder["model: CustomQwen2Decoder<br/>{encoder.layers} layers"]
  kinds --> decoder
  decoder --> last["the last n positions"]
  last --> y["visual tokens [N, n, {d}]"]"""
