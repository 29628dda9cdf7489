"""Layers and mixed mask of DeepSeek-OCR-2's encoder."""

from __future__ import annotations

from typing import Final

from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import EncoderDimensions
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.qwen2 import (
    GROUP,
    INNER,
    STACK,
    embeds_and_kinds,
    encoder_of,
    frame_and_layer,
    inner_kernels,
    stack_symbols,
    tokens,
    view_cases,
)
from dsocr_analyze.knowledge.families.reference_files import QWEN2
from dsocr_analyze.knowledge.machinery.facts import Facts, count
from dsocr_analyze.knowledge.machinery.page import Page, Parameter
from dsocr_analyze.knowledge.machinery.signature import import_line

__all__ = ["page"]

_USAGE: Final = f"""import torch
{import_line(QWEN2, "CustomQwen2Decoder")}

sizes = dict(decoder_layer=2, hidden_dimension=8, num_attention_heads=2, intermediate_size=8)
inner = CustomQwen2Decoder(**sizes).model.eval()
seen = []
inner.layers[0].register_forward_pre_hook(
    lambda layer, args, kwargs: seen.append(kwargs["attention_mask"] == 0), with_kwargs=True
)
x, kinds = torch.randn(1, 6, 8), torch.tensor([[0, 0, 0, 1, 1, 1]])
y = inner(inputs_embeds=x, token_type_ids=kinds).last_hidden_state
assert seen[0][0, 0].sum(-1).tolist() == [3, 3, 3, 4, 5, 6]  # columns that each row sees
x[0, 5] += 1  # changing the last query leaves everything before it unchanged
other = inner(inputs_embeds=x, token_type_ids=kinds).last_hidden_state
assert torch.equal(y[:, :5], other[:, :5]) and not torch.equal(y[:, 5], other[:, 5])"""


def page(facts: Facts) -> Page:
    """The page."""
    encoder = encoder_of(facts)
    d = encoder.width
    return Page(
        group=GROUP,
        subject=facts.class_at(INNER),
        what=f"Qwen2's {encoder.layers} layers and final norm under a mixed mask. Image tokens"
        " attend to all image tokens and to no query, as in an encoder. A query attends to all image"
        " tokens and to the queries up to itself, as in a decoder. So the output of a query depends"
        " on the image and on earlier queries, never on later ones. The mask is additive and is"
        " built at each call, view by view and row by row: one write for the square of the image"
        " tokens, then two for each query. (In the vendor's file the class is defined inside its"
        " owner's constructor and inherits from the Qwen2 model of transformers, whose causal mask"
        " it replaces.)",
        blocks=(("encoder", "mixed mask"), ("encoder", "layers and last norm")),
        layer="architectures.deepseek_ocr_2.encoder.encoder_sections (its frame and layers)",
        inputs={"inputs_embeds": "N, T, d", "token_type_ids": "N, T"},
        output="N, T, d",
        parameters={"config": Parameter("Settings and number of the layers.", "made above")},
        diagram=_diagram(d, encoder),
        pseudo_code="""for view in batch:                                   # rows of the mask, `lowest` at first
    images, queries = (kinds == 0).nonzero(), (kinds == 1).nonzero()
    mask[images, images] = 0                         # rows 0 .. n - 1: columns 0 .. n - 1
    for i, query in enumerate(queries):
        mask[query, images] = 0                      # row n + i: columns 0 .. n - 1
        mask[query, queries[: i + 1]] = 0            # row n + i: columns n .. n + i
mask, tables = stack(masks), rotary_emb(x, arange(T))
for layer in layers:
    x = layer(x, mask, cache, tables)
return norm(x), cache""",
        mathematics=r"M_{rc} = \begin{cases} 0 & c < n \\ 0 & n \le c \le r \\"
        r" -\infty & \text{otherwise} \end{cases}"
        r", \quad \#\{c : M_{rc} = 0\} = \begin{cases} n & r < n \\ r + 1 & r \ge n \end{cases}",
        symbols=stack_symbols(),
        formulas=STACK,
        cases=view_cases(
            facts,
            INNER,
            lambda N, R: [],
            lambda N, R: inner_kernels(facts, N, R),
            embeds_and_kinds(facts),
        ),
        flops_notes=(
            "The whole square of T tokens is multiplied; the masked entries are computed and then"
            " discarded.",
            *_mask_notes(facts),
            "Rotary angles are computed once per call, for one row regardless of the batch size; the"
            " rotary modules of the layers are never called.",
        ),
        memory_notes=("The masks of all views in the batch are kept while the layers run.",),
        related=(
            "CustomQwen2Decoder",
            "Qwen2DecoderLayer",
            "Qwen2RMSNorm",
            "Qwen2RotaryEmbedding",
            "DeepseekV2Model",
        ),
        usage=_USAGE,
        notes="bidirectional over the image, causal over the queries",
        references=("deepseekocr2", "qwen2"),
    )


def _diagram(d: int, encoder: EncoderDimensions) -> str:
    return f"""flowchart TB
  kinds["token_type_ids [N, T]"] --> mask["mask [N, 1, T, T]"]
  positions["positions 0 .. T - 1"] --> rotary["rotary_emb: cosines and sines [1, T, {encoder.head_dim}]"]
  x["inputs_embeds [N, T, {d}]"] --> layers["layers: {encoder.layers} x Qwen2DecoderLayer"]
  mask --> layers
  rotary --> layers
  layers --> cache[("KV cache, read by nothing")]
  layers --> norm["norm: Qwen2RMSNorm"]
  norm --> y["last_hidden_state [N, T, {d}]"]"""


def _mask_notes(facts: Facts) -> tuple[str, ...]:
    """Cost of building the mask, from the kernels that the page is checked against."""
    notes = []
    for label, N, R in facts.views:
        kernels = frame_and_layer(facts, N, R)[0]["model.model"]
        writes = [kernel for kernel in kernels if kernel.operator == "index_put"]
        launches = sum(kernel.calls for kernel in writes)
        zeros = sum(kernel.total.bytes_written for kernel in writes) // BFLOAT16.nbytes
        T = tokens(facts, R)
        notes.append(
            f"For the {label} the mask takes {count(launches)} index writes, each a kernel of its"
            f" own ({count(launches // N)} per view); they set {count(zeros)} of"
            f" {count(N * T * T)} entries to zero."
        )
    return tuple(notes)
