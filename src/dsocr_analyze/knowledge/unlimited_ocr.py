"""Unlimited-OCR's pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dsocr_analyze.costs.decoder_attention import decoder_attention
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.decoder import attention_formulas, decoder_pages
from dsocr_analyze.knowledge.decoder_parts import decoder_parts, pick
from dsocr_analyze.knowledge.deepseek_ocr import clip_and_sam_diagram
from dsocr_analyze.knowledge.machinery.facts import Facts, config_value, count, scaled
from dsocr_analyze.knowledge.machinery.page import Case, Page, Parameter, Symbol
from dsocr_analyze.knowledge.ocr import (
    PIXELS_NOTE,
    causal_lm_page,
    config_page,
    model_page,
    preprocessing_pages,
    vision_parameters,
)
from dsocr_analyze.knowledge.vision_clip import clip_pages, projector_pages
from dsocr_analyze.knowledge.vision_sam import sam_pages
from dsocr_analyze.knowledge.whole_model import Step, WholeModel
from dsocr_analyze.workload import DecodeStep

__all__ = ["unlimited_ocr_pages"]

_DECODER_FILE: Final = "dsocr_analyze.architectures.deepseek_ocr.reference.modeling_deepseekv2"
_STACKS: Final = (
    "DeepseekV2Model",
    "DeepseekV2ForCausalLM",
    "DeepseekV2ForSequenceClassification",
)
"""Pages of the decoder alone; here it has a window, and exists only under the vision side."""


def unlimited_ocr_pages(facts: Facts) -> list[Page]:
    """Every page, in reading order."""
    vision = [*sam_pages(facts), *clip_pages(facts), *projector_pages(facts)]
    return [
        _config(facts),
        _model(facts, vision),
        _causal_lm(facts, vision),
        *vision,
        _attention(facts),
        *(page for page in decoder_pages(facts) if page.name not in _STACKS),
        *decoder_parts(facts),
        *preprocessing_pages(facts),
    ]


def _config(facts: Facts) -> Page:
    return config_page(
        facts,
        "unlimitedocr",
        adds="Beside the keys of `DeepseekV2Config` it knows the window:",
        keys={
            "sliding_window_size": "Generated tokens that `infer()` has the decoder keep.",
            "sliding_window": "The same, where the key above is missing, null or 0.",
        },
    )


# --- the window ------------------------------------------------------------------------------

_WINDOW: Final = {
    "S": Symbol("S", "tokens of the prompt"),
    "i": Symbol("i", "number of the decode step, 0 for the prompt itself"),
    "W": Symbol("W", "the window: generated tokens that the cache keeps"),
    "K": Symbol("K", "keys attended, and kept", "S + min(i, W)"),
}


def _window(facts: Facts) -> int | None:
    return facts.decoder.sliding_window


def _stated_steps(facts: Facts) -> list[tuple[str, DecodeStep]]:
    """The first step, and with a window the last that appends and the first that overwrites."""
    window, S = _window(facts), facts.tokens
    if window is None:
        return [("decode step", DecodeStep(S, 1))]
    named = {1: "decode step, the first", window: "decode step that fills the window"}
    named[window + 1] = "decode step that overwrites"
    return [(label, DecodeStep(S, number, window)) for number, label in named.items()]


def _cache(facts: Facts, layers: int, step: DecodeStep) -> Any:
    """What a decode step finds: the prompt and the generated tokens that are kept."""
    left = facts.cache(layers, facts.tokens)
    if step.window is not None:
        left._prefill_length = dict.fromkeys(range(layers), facts.tokens)
    return facts.architecture.decode_cache(left, step)


def _values(facts: Facts, number: int) -> dict[str, int]:
    window = _window(facts)
    return {} if window is None else {"S": facts.tokens, "i": number, "W": window}


def _whole(facts: Facts, vision: Sequence[Page], *, head: bool) -> WholeModel:
    layers = facts.decoder.layers
    return WholeModel(
        facts,
        vision,
        head=head,
        steps=[
            Step(
                label,
                step,
                lambda step=step: _cache(facts, layers, step),  # type: ignore[misc]  # bound early
                _values(facts, step.number),
            )
            for label, step in _stated_steps(facts)
        ],
        prompt_values=_values(facts, 0),
        more_symbols={} if _window(facts) is None else _WINDOW,
    )


def _with_window(facts: Facts) -> Facts:
    """The facts themselves, or the published config's where theirs has no window."""
    return facts if _window(facts) is not None else facts.published


def _bound_note(facts: Facts) -> str:
    window, S = _window(facts), facts.tokens
    if window is None:
        return "Without a window the cache grows by every token, as in DeepSeek-OCR."
    bound = (S + window) * facts.cache_bytes_per_token
    return (
        f"All layers together keep at most S + W tokens: {count(bound)} bytes"
        f" ({scaled(bound, 'B')}) for the stated prompt, however long the output is."
    )


def _attention(facts: Facts) -> Page:
    own, facts = facts, _with_window(facts)
    decoder, window = facts.decoder, _window(facts)
    assert window is not None
    d, H, kv, D = decoder.hidden_size, decoder.heads, decoder.kv_heads, decoder.head_dim
    fallback = (
        ()
        if own is facts
        else (
            "The given config has no window, so the figures on this page are those of the published"
            " config.",
        )
    )

    per_token = facts.cache_bytes_per_token
    return Page(
        name="SlidingWindowLlamaAttention",
        group=f"{facts.architecture.title}: the decoder's attention",
        subject=type(_attention_of(facts)),
        what="Multi-head attention, eager, over the whole prompt and a window of what was generated"
        " after it: the vendor calls it R-SWA, reference sliding window attention. The pass over the"
        " prompt is that of `LlamaAttention`, causal and without a window, and all its keys stay."
        f" Decode steps 1 to W append to the cache (W is {window} in {facts.model_name}); from then"
        " on the new key and value overwrite the oldest generated ones, in a ring behind the"
        " prompt. So step i attends to S + min(i, W) keys, its own among them, and the cache never"
        " grows beyond S + W tokens. Keys keep the rotation of their own position, which counts on:"
        " the ring's order does not matter. The window is no part of `config.json` as the class"
        " reads it: `infer()` puts it on the config as `_ring_window`; without that the class is"
        " `LlamaAttention` throughout.",
        blocks=(("prefill", "windowed attention"), ("decode", "windowed attention")),
        layer="costs.decoder_attention.decoder_attention (overwrites from step W + 1)",
        inputs={"hidden_states": "B, T, d"},
        output="B, T, d",
        parameters={
            "config": Parameter("Gives everything below.", "the model's config"),
            "layer_idx": Parameter("Number of the layer: its place in the cache.", "0, 1, ..."),
            "config.sliding_window_size": Parameter(
                "W, from where `infer()` takes it.",
                config_value(facts.config, "sliding_window_size"),
            ),
            "config.sliding_window": Parameter(
                "The same, where the key above is missing, null or 0.",
                config_value(facts.config, "sliding_window"),
            ),
            **{
                f"config.{key}": Parameter(meaning, config_value(facts.config, key))
                for key, meaning in _KEYS.items()
            },
        },
        diagram=_attention_diagram(d, H, kv, D),
        pseudo_code=_ATTENTION_PSEUDO_CODE,
        mathematics=_ATTENTION_MATHEMATICS,
        symbols={**_WINDOW, **pick("B T d H G D e")},
        formulas=attention_formulas(facts),
        cases=_attention_cases(facts),
        runs_given_config=own is facts,
        flops_notes=(
            *fallback,
            "From step W on, a step costs the same however many tokens were generated before it.",
            "Decode steps get no mask: a score costs a scale and a softmax of five, in the prompt"
            " the mask besides.",
        ),
        memory_notes=(
            "Up to step W each append copies the layer's whole cache; from then on only one token's"
            " key and value are written. The bytes read and written of the two kinds of step differ"
            " by that copy.",
            f"The cache takes {count(per_token)} bytes a token in all layers. {_bound_note(facts)}"
            " Rotary positions count on, so the prompt and the output together are still limited to"
            f" the trained {count(decoder.max_position_embeddings)} positions.",
        ),
        related=(
            "DeepseekV2DecoderLayer",
            facts.model_class,
            "repeat_kv",
            "DeepseekV2Attention",
        ),
        usage=_attention_usage(d, kv, D),
        notes="prompt kept, generated tokens in a ring of W",
        references=("unlimitedocr", "attention", "rope"),
    )


def _attention_of(facts: Facts) -> Any:
    return facts.at("model.layers.0.self_attn")


def _attention_cases(facts: Facts) -> tuple[Case, ...]:
    """The prompt, and the decode steps that are stated."""
    decoder, S = facts.decoder, facts.tokens
    d, H, kv, D = decoder.hidden_size, decoder.heads, decoder.kv_heads, decoder.head_dim

    def values(number: int, T: int) -> dict[str, int]:
        sizes = {"B": 1, "d": d, "H": H, "G": kv, "D": D, "e": BFLOAT16.nbytes}
        return {**sizes, **_values(facts, number), "T": T}

    def closed(T: int, cached: int, *, overwrites: bool) -> Any:
        return decoder_attention(
            1,
            T,
            cached,
            d,
            H,
            kv,
            D,
            BFLOAT16,
            flash=False,
            bias=decoder.attention_bias,
            is_masked=T > 1,
            overwrites=overwrites,
        )

    def decode(label: str, step: DecodeStep) -> Case:
        return Case(
            label,
            values(step.number, 1),
            lambda: _attention_of(facts),
            lambda: [facts.hidden(1)],
            lambda: {
                "position_ids": facts.positions(1),
                "past_key_value": _cache(facts, 1, step),
            },
            closed_form=lambda: closed(1, step.keys - 1, overwrites=step.slot is not None),
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
        closed_form=lambda: closed(S, 0, overwrites=False),
    )
    return (prompt, *(decode(*stated) for stated in _stated_steps(facts)))


def _attention_diagram(d: int, H: int, kv: int, D: int) -> str:
    return f"""flowchart TB
  x["x [B, T, {d}]"] --> q["q_proj, rotated<br/>[B, {H}, T, {D}]"]
  x --> kv["k_proj, rotated; v_proj<br/>[B, {kv}, T, {D}]"]
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


def _attention_usage(d: int, kv: int, D: int) -> str:
    return f"""import torch
from {_DECODER_FILE} import KeyValueCache
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


_ATTENTION_PSEUDO_CODE: Final = """q, key, value = rotate(q_proj(x)), rotate(k_proj(x)), v_proj(x)
if cache.tokens < S + W:                       # the prompt, and decode steps 1 to W
    keys, values = cache.update(key, value)    # S is noted before the first decode step
else:
    slot = S + next_slot                       # a slice of the cache, written in place
    keys[:, :, slot], values[:, :, slot] = key, value
    next_slot = (next_slot + 1) % W
    mask = None
weights = softmax(q @ keys.T / sqrt(D) + mask)
return o_proj(weights @ values)"""

_ATTENTION_MATHEMATICS: Final = (
    r"y_{S+i} = W_o \sum_{j \in \mathcal{K}_i} \mathrm{softmax}_j"
    r"\left(\frac{q_{S+i}^T k_j}{\sqrt{D}}\right) v_j,"
    r" \quad \mathcal{K}_i = \{1, \dots, S\} \cup \{S + \max(1, i - W + 1), \dots, S + i\},"
    r" \quad |\mathcal{K}_i| = S + \min(i, W)"
)


_KEYS: Final = {
    "hidden_size": "Width d.",
    "num_attention_heads": "Query heads H.",
    "num_key_value_heads": "Key and value heads.",
    "rope_theta": "Base of the rotary frequencies.",
    "max_position_embeddings": "Positions the model was trained for.",
    "attention_bias": "Whether the projections have biases.",
}


# --- the model -------------------------------------------------------------------------------


def _steps_note(facts: Facts) -> tuple[str, ...]:
    if _window(facts) is None:
        return ("The given config has no window: every decode step attends to all tokens.",)
    return ("A decode step's work grows up to step W and is the same from then on.",)


def _model(facts: Facts, vision: Sequence[Page]) -> Page:
    decoder = facts.decoder
    attention = facts.class_at("model.layers.0.self_attn").__name__
    return model_page(
        _whole(facts, vision, head=False),
        what="DeepSeek-OCR's vision side on top of a decoder with a window. SAM, CLIP, the projector"
        " and the layout of a page are those of `DeepseekOCRModel`; pages are cut into more local"
        " views. Several pages may stand in one prompt: none of them is cut, the vision side looks"
        " at one after the other, each by itself, and their tokens follow one another. The decoder"
        f" is `DeepseekV2Model` with `{attention}` in its layers; a decode step gets no mask, and"
        " what the window has to know lies on the cache.",
        parameters=vision_parameters(facts),
        diagram=clip_and_sam_diagram(
            facts, f"the decoder: {decoder.layers} layers<br/>with {attention}"
        ),
        pseudo_code="""x = embed_tokens(input_ids)
if T > 1 and images and images.global_view.sum() != 0:
    if images.local_views.sum() != 0:
        parts = [rows(features(local_views), grid), rows(features(global_view)), view_seperator]
    else:                                                # pages of one prompt, one by one
        parts = [(rows(features(page)), view_seperator) for page in images.global_view]
    x.masked_scatter_(images_seq_mask, cat(parts))
mask = causal_mask(T, K) if T > 1 or no cache else None
return decoder(inputs_embeds=x, mask, cache)""",
        mathematics=r"z(v) = W \left[\mathrm{clip}(v, \mathrm{sam}(v));\ \mathrm{sam}(v)\right],"
        r" \quad x_t = \begin{cases} z_t & t \text{ is a placeholder} \\ W_e[t] &"
        r" \text{otherwise} \end{cases}",
        flops_notes=(PIXELS_NOTE, *_steps_note(facts)),
        memory_notes=(_bound_note(facts),),
        related=(
            "UnlimitedOCRForCausalLM",
            "UnlimitedOCRConfig",
            "SlidingWindowLlamaAttention",
            "DeepseekOCRModel",
            "DeepseekV2Model",
            "ImageEncoderViT",
            "VitModel",
            "MlpProjector",
        ),
        references=("unlimitedocr", "deepseekocr"),
    )


def _causal_lm(facts: Facts, vision: Sequence[Page]) -> Page:
    return causal_lm_page(
        _whole(facts, vision, head=True),
        what="The whole model: `UnlimitedOCRModel` and the head over the vocabulary. Its tensors have"
        " the names and shapes of DeepSeek-OCR's; what is new is the decoder's window, a longer"
        " context, more local views of a page, and several pages in one prompt. (The vendor's class"
        " also has `infer()` and `infer_multi()`, which switch the window on; a bare `generate()`"
        " has none. The planner of this project works the same sizes out without them.)",
        related=(
            "UnlimitedOCRModel",
            "UnlimitedOCRConfig",
            "SlidingWindowLlamaAttention",
            "DeepseekOCRForCausalLM",
            "DeepseekV2ForCausalLM",
            "NoEOSTextStreamer",
            "BasicImageTransform",
        ),
        flops_notes=_steps_note(facts),
        memory_notes=(_bound_note(facts),),
        references=("unlimitedocr", "deepseekocr"),
    )
