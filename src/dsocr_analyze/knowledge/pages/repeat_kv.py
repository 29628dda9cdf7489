"""Keys and values for every query head."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.decoder import SYMBOLS
from dsocr_analyze.knowledge.families.reference_files import DECODER
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Formulas, Page, Parameter, Symbol, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    decoder = facts.decoder
    kv, D = decoder.kv_heads, decoder.head_dim
    own = decoder.heads // kv
    in_the_model = ""
    if own == 1:
        in_the_model = (
            f" With one query head per key head it returns its input, as in {facts.model_name}."
        )
    return Page(
        group="Decoder: attention",
        subject=facts.get("repeat_kv"),
        what="Repeats key or value heads so that every query head has its own, if several query"
        f" heads share one (grouped-query attention).{in_the_model}",
        blocks=(("prefill", "attention"), ("decode", "attention")),
        layer="costs.decoder_attention.decoder_attention (its copies)",
        inputs={"hidden_states": "B, G, K, D"},
        output="B, G * n, K, D",
        parameters={
            "hidden_states": Parameter("Keys or values of all KV heads.", "a tensor"),
            "n_rep": Parameter("Query heads per KV head.", own),
        },
        diagram="""flowchart LR
  x["[B, H_kv, K, D]"] --> one{"n_rep is one?"}
  one -->|"yes"| same["the input itself"]
  one -->|"no"| expand["expand to [B, H_kv, n, K, D], a view"]
  expand --> copy["reshape to [B, H_kv n, K, D], a copy"]""",
        pseudo_code="""if n_rep == 1:
    return x
return x[:, :, None].expand(B, kv_heads, n_rep, K, D).reshape(B, kv_heads * n_rep, K, D)""",
        mathematics=r"y_{h} = x_{\lfloor h / n \rfloor}",
        symbols={**pick("B K G D", SYMBOLS), "n": Symbol("n", "query heads per KV head")},
        formulas=Formulas(),
        cases=cases_of(
            [("as the model calls it", own), ("two query heads per KV head", 2)],
            lambda n: {"B": 1, "K": facts.tokens, "G": kv, "D": D, "n": n},
            build=lambda _: facts.get("repeat_kv"),
            arguments=lambda n: [tensor(1, kv, facts.tokens, D), n],
        ),
        flops_notes=("Nothing is computed; with more than one query head per KV head it copies.",),
        memory_notes=("The cache holds the KV heads before repetition.",),
        related=("DeepseekV2DecoderLayer", "DeepseekV2Attention", "DeepseekV2FlashAttention2"),
        usage=f"""import torch
from {DECODER} import repeat_kv

x = torch.arange(2.0).view(1, 2, 1, 1)
assert repeat_kv(x, 1) is x
assert repeat_kv(x, 2).flatten().tolist() == [0, 0, 1, 1]""",
        notes="grouped-query attention; a copy or a no-op",
        references=("gqa",),
    )
