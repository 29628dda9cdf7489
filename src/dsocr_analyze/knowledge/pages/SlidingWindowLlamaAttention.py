"""The decoder's attention in Unlimited-OCR: a window over the generated tokens."""

from __future__ import annotations

from typing import Any, Final

from dsocr_analyze.costs.decoder_attention import decoder_attention
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families import window
from dsocr_analyze.knowledge.families.decoder import (
    LAYER_INDEX,
    SYMBOLS,
    THE_CONFIG,
    config_parameters,
    fallback_notes,
)
from dsocr_analyze.knowledge.families.decoder_stack import attention_formulas
from dsocr_analyze.knowledge.families.reference_files import DECODER
from dsocr_analyze.knowledge.machinery.facts import Facts, count
from dsocr_analyze.knowledge.machinery.page import Case, Page, Parameter, pick
from dsocr_analyze.workload import DecodeStep

__all__ = ["page"]

_PSEUDO_CODE: Final = """q, key, value = rotate(q_proj(x)), rotate(k_proj(x)), v_proj(x)
if cache.tokens < S + W:                       # the prompt, and decode steps 1 to W
    keys, values = cache.update(key, value)    # S is noted before the first decode step
else:
    slot = S + next_slot                       # a slice of the cache, written in place
    keys[:, :, slot], values[:, :, slot] = key, value
    next_slot = (next_slot + 1) % W
    mask = None
weights = softmax(q @ keys.T / sqrt(D) + mask)
return o_proj(weights @ values)"""

_MATHEMATICS: Final = (
    r"y_{S+i} = W_o \sum_{j \in \mathcal{K}_i} \mathrm{softmax}_j"
    r"\left(\frac{q_{S+i}^T k_j}{\sqrt{D}}\right) v_j,"
    r" \quad \mathcal{K}_i = \{1, \dots, S\} \cup \{S + \max(1, i - W + 1), \dots, S + i\},"
    r" \quad |\mathcal{K}_i| = S + \min(i, W)"
)


def page(facts: Facts) -> Page:
    """The page; uses the published config if the given one has no window."""
    own, facts = facts, facts if window.window_of(facts) is not None else facts.published
    decoder, W = facts.decoder, window.window_of(facts)
    per_token = facts.cache_bytes_per_token
    return Page(
        group=f"{facts.architecture.title}: the decoder's attention",
        subject=type(_attention_of(facts)),
        what="Multi-head attention, eager, over the whole prompt and a window of the tokens generated"
        " after it. The vendor calls it R-SWA, reference sliding window attention. The prefill pass"
        " is that of `LlamaAttention`, causal and without a window, and all its keys are kept."
        f" Decode steps 1 to W append to the cache (W is {W} in {facts.model_name}); after that,"
        " the new key and value overwrite the oldest generated ones, in a ring after the prompt. So"
        " step i attends to S + min(i, W) keys, including its own, and the cache never grows beyond"
        " S + W tokens. Keys keep the rotation of their absolute position, so the ring's order does"
        " not matter. The class does not read the window from `config.json`: `infer()` sets it on"
        " the config as `_ring_window`; without that, the class behaves like `LlamaAttention`"
        " throughout.",
        blocks=(("prefill", "windowed attention"), ("decode", "windowed attention")),
        layer="costs.decoder_attention.decoder_attention (overwrites from step W + 1)",
        inputs={"hidden_states": "B, T, d"},
        output="B, T, d",
        parameters=_parameters(facts),
        diagram=_diagram(facts),
        pseudo_code=_PSEUDO_CODE,
        mathematics=_MATHEMATICS,
        symbols={**window.SYMBOLS, **pick("B T d H G D e", SYMBOLS)},
        formulas=attention_formulas(facts),
        cases=_cases(facts),
        runs_given_config=own is facts,
        flops_notes=(
            *fallback_notes(own, facts, "The given config has no window"),
            "From step W on, the cost of a step does not depend on the number of tokens generated.",
            "Decode steps have no mask: a score costs a scale and a softmax (five FLOPs). In the"
            " prompt it also costs the mask.",
        ),
        memory_notes=(
            "Up to step W each append copies the layer's whole cache; after that, only one token's"
            " key and value are written. The bytes of the two kinds of step differ by that copy.",
            f"The cache takes {count(per_token)} bytes per token in all layers."
            f" {window.bound_note(facts)}"
            " Rotary positions keep counting, so prompt and output together are still limited to the"
            f" {count(decoder.max_position_embeddings)} positions of training.",
        ),
        related=(
            "DeepseekV2DecoderLayer",
            facts.model_class,
            "repeat_kv",
            "DeepseekV2Attention",
        ),
        usage=_usage(facts),
        notes="prompt kept, generated tokens in a ring of W",
        references=("unlimitedocr", "attention", "rope"),
    )


def _attention_of(facts: Facts) -> Any:
    return facts.at("model.layers.0.self_attn")


def _parameters(facts: Facts) -> dict[str, Parameter]:
    return {
        "config": THE_CONFIG,
        "layer_idx": LAYER_INDEX,
        **config_parameters(
            facts.config,
            {
                "sliding_window_size": "W, as read by `infer()`.",
                "sliding_window": "The same, if the key above is missing, null or 0.",
                "hidden_size": "Width d.",
                "num_attention_heads": "Query heads H.",
                "num_key_value_heads": "Key and value heads.",
                "rope_theta": "Base of the rotary frequencies.",
                "max_position_embeddings": "Positions that the model was trained for.",
                "attention_bias": "Whether the projections have biases.",
            },
        ),
    }


def _diagram(facts: Facts) -> str:
    decoder = facts.decoder
    d, H, kv = decoder.hidden_size, decoder.heads, decoder.kv_heads
    return f"""flowchart TB
  x["x [B, T, {d}]"] --> q["q_proj, rotated<br/>[B, {H}, T, {decoder.head_dim}]"]
  x --> kv["k_proj, rotated; v_proj<br/>[B, {kv}, T, {decoder.head_dim}]"]
  kv --> full{{"generated tokens kept = W?"}}
  full -->|"no: the prompt, steps 1 to W"| append["append, a copy of the cache"]
  full -->|"yes: from step W + 1"| ring["overwrite the oldest generated slot, in place"]
  append --> cache[("cache: S + min(i, W) tokens")]
  ring --> cache
  q --> scores["scores of all keys kept;<br/>a causal mask for the prompt only"]
  cache --> scores
  scores --> softmax["softmax in fp32"]
  softmax --> mix["weights times values"]
  cache --> mix
  mix --> o["o_proj"]
  o --> y["y [B, T, {d}]"]"""


def _cases(facts: Facts) -> tuple[Case, ...]:
    """The prompt and the stated decode steps."""
    decoder, S = facts.decoder, facts.tokens

    def values(number: int, T: int) -> dict[str, int]:
        return {
            "B": 1,
            "d": decoder.hidden_size,
            "H": decoder.heads,
            "G": decoder.kv_heads,
            "D": decoder.head_dim,
            "e": BFLOAT16.nbytes,
            **window.values(facts, number),
            "T": T,
        }

    def decode(label: str, step: DecodeStep) -> Case:
        return Case(
            label,
            values(step.number, 1),
            lambda: _attention_of(facts),
            lambda: [facts.hidden(1)],
            lambda: {
                "position_ids": facts.positions(1),
                "past_key_value": window.cache_after(facts, 1, step),
            },
            closed_form=lambda: _kernels(facts, 1, step.keys - 1, overwrites=step.slot is not None),
        )

    prompt = Case(
        "prefill",
        values(0, S),
        lambda: _attention_of(facts),
        lambda: [facts.hidden(S)],
        lambda: {
            "attention_mask": facts.mask(S, S),
            "position_ids": facts.positions(S),
            "past_key_value": facts.cache(1, 0),
        },
        closed_form=lambda: _kernels(facts, S, 0, overwrites=False),
    )
    return (prompt, *(decode(*stated) for stated in window.stated_steps(facts)))


def _kernels(facts: Facts, T: int, cached: int, *, overwrites: bool) -> ModuleKernels:
    decoder = facts.decoder
    return decoder_attention(
        1,
        T,
        cached,
        decoder.hidden_size,
        decoder.heads,
        decoder.kv_heads,
        decoder.head_dim,
        BFLOAT16,
        flash=False,
        bias=decoder.attention_bias,
        is_masked=T > 1,
        overwrites=overwrites,
    )


def _usage(facts: Facts) -> str:
    d, kv, D = facts.decoder.hidden_size, facts.decoder.kv_heads, facts.decoder.head_dim
    return f"""import torch
from {DECODER} import KeyValueCache
from dsocr_analyze.running.forward import running
from dsocr_analyze.session import DeepSeekOCRSession

session = DeepSeekOCRSession.from_local()
attention, W = session.model.model.layers[0].self_attn, session.loaded.sliding_window
x = torch.empty(1, 1, {d}, dtype=torch.bfloat16, device="meta")
keys = torch.empty(1, {kv}, 9, {D}, dtype=torch.bfloat16, device="meta")  # a prompt of nine
cache, kept = KeyValueCache([(keys, keys)]), []
with running(torch.device("meta")):
    for step in range(1, W + 3):
        attention(x, position_ids=torch.tensor([[8 + step]], device="meta"), past_key_value=cache)
        kept.append(cache.get_seq_length())
assert kept == [9 + min(step, W) for step in range(1, W + 3)]"""
