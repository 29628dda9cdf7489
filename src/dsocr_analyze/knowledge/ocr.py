"""Pages of the whole model: its config, the model with its vision side, the head, the helpers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.figures import StageFigures
from dsocr_analyze.knowledge.decoder import (
    stack_formulas,
    stack_parameters,
    stack_symbols,
    stack_values,
)
from dsocr_analyze.knowledge.evidence import all_values
from dsocr_analyze.knowledge.facts import Facts, below_model, config_value, count, scaled
from dsocr_analyze.knowledge.notation import evaluate
from dsocr_analyze.knowledge.page import Case, Formulas, Page, Parameter, Symbol
from dsocr_analyze.knowledge.signature import import_line
from dsocr_analyze.knowledge.vision_clip import (
    clip_pages,
    has_projector_formulas,
    projector_pages,
)
from dsocr_analyze.knowledge.vision_sam import sam_pages
from dsocr_analyze.running.forward import running

__all__ = ["model_pages", "preprocessing_pages"]

_FILE: Final = "dsocr_analyze.architectures.deepseek_ocr.reference.modeling_deepseekocr"
_GROUP: Final = "The OCR model"


def model_pages(facts: Facts) -> list[Page]:
    """Config, model and model with head."""
    return [_config(facts), _model(facts), _causal_lm(facts)]


_MEANINGS: Final = {
    "vocab_size": "Rows of the token embedding and of the head.",
    "hidden_size": "Width of a token.",
    "num_hidden_layers": "Decoder layers.",
    "num_attention_heads": "Query heads of a layer.",
    "num_key_value_heads": "Key and value heads of a layer.",
    "intermediate_size": "Hidden width of a dense layer's MLP.",
    "hidden_act": "Activation of the gated MLPs.",
    "max_position_embeddings": "Positions the model was trained for.",
    "rope_theta": "Base of the rotary frequencies.",
    "rope_scaling": "How rotary positions are stretched: none, linear, dynamic or yarn.",
    "attention_bias": "Whether attention's projections have biases.",
    "attention_dropout": "Dropout of attention's weights, in training.",
    "rms_norm_eps": "Epsilon of the norms.",
    "use_mla": "Latent attention in place of plain multi-head attention.",
    "q_lora_rank": "Rank of the queries' latent, with `use_mla`.",
    "kv_lora_rank": "Rank of the keys' and values' latent, with `use_mla`.",
    "qk_rope_head_dim": "Rotary features of a head, with `use_mla`.",
    "qk_nope_head_dim": "Other features of a head, with `use_mla`.",
    "v_head_dim": "Features of a value head, with `use_mla`.",
    "n_routed_experts": "Routed experts of a mixture layer.",
    "n_shared_experts": "Experts that every token passes, fused into one MLP.",
    "num_experts_per_tok": "Routed experts that a token passes.",
    "moe_intermediate_size": "Hidden width of one expert.",
    "moe_layer_freq": "Every how many layers one is a mixture.",
    "first_k_dense_replace": "First layers that stay dense.",
    "scoring_func": "Function of the router's logits: softmax or sigmoid.",
    "topk_method": "How experts are chosen: greedy, group_limited_greedy or noaux_tc.",
    "n_group": "Groups of experts, for the group-limited methods.",
    "topk_group": "Groups a token may choose from.",
    "norm_topk_prob": "Whether the chosen scores are normalised to one.",
    "routed_scaling_factor": "Factor on the chosen scores.",
    "aux_loss_alpha": "Weight of the load-balancing loss, in training.",
    "seq_aux": "Whether that loss is taken a sequence at a time.",
    "ep_size": "Processes that experts are spread over.",
    "initializer_range": "Spread of freshly drawn weights.",
    "pretraining_tp": "Left from training; unused here.",
    "use_cache": "Whether a pass returns its KV cache.",
    "pad_token_id": "Token of padding; its row of the embedding stays zero.",
    "bos_token_id": "Token that begins a sequence.",
    "eos_token_id": "Token that ends generation.",
    "tie_word_embeddings": "Whether the head shares the embedding's weights.",
}


def _config(facts: Facts) -> Page:
    config, decoder = facts.get("DeepseekOCRConfig"), facts.decoder
    embedding = decoder.vocab_size * decoder.hidden_size * BFLOAT16.nbytes
    memory = facts.analytic.memory
    return Page(
        name="DeepseekOCRConfig",
        group=_GROUP,
        subject=config,
        also=(facts.get("DeepseekV2Config"),),
        what="The configuration of the model. It adds nothing to `DeepseekV2Config` but its name:"
        " every decoder key of `config.json` becomes an attribute, with the defaults of that class"
        " where the file is silent; `vision_config` and `projector_config` come along unchanged"
        " and are read by the model's constructor.",
        blocks=(),
        layer="none: no tensors; `dsocr_analyze.architectures.ocr_family.dimensions` reads the same keys",
        parameters={
            key: Parameter(_MEANINGS[key], config_value(facts.config, key))
            for key, parameter in inspect.signature(config).parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD
        },
        diagram="""sequenceDiagram
  participant File as config.json
  participant OCR as DeepseekOCRConfig
  participant V2 as DeepseekV2Config
  participant HF as PretrainedConfig
  File->>OCR: from_dict(keys)
  OCR->>V2: inherited constructor
  V2->>V2: decoder keys, defaults where absent
  V2->>HF: token ids, tie_word_embeddings and the rest: vision_config, projector_config
  HF-->>OCR: attributes""",
        pseudo_code="""class DeepseekOCRConfig(DeepseekV2Config):
    model_type = "DeepseekOCR"

def __init__(every key below with its default, **kwargs):
    if num_key_value_heads is None:
        num_key_value_heads = num_attention_heads
    every key but the token ids and tie_word_embeddings becomes an attribute
    PretrainedConfig.__init__(token ids, tie_word_embeddings, **kwargs)""",
        mathematics=r"\text{(no computation)}",
        flops_notes=("No computation: a configuration holds no tensor.",),
        memory_notes=(
            "No parameters of its own. What its keys decide, in bf16: the token embedding takes"
            f" {scaled(embedding, 'B')}, all weights {scaled(memory.weights_bytes, 'B')},"
            f" the KV cache {count(facts.cache_bytes_per_token)} bytes a token.",
        ),
        related=("DeepseekOCRModel", "DeepseekOCRForCausalLM", "DeepseekV2Model"),
        usage=f"""from dsocr_analyze.session import DeepSeekOCRSession

config = DeepSeekOCRSession.from_local().model.config
assert type(config).__name__ == "DeepseekOCRConfig"
assert config.hidden_size == {facts.config.hidden_size}
assert config.num_hidden_layers == {facts.config.num_hidden_layers}""",
        notes="configuration; no tensors",
        references=("deepseekocr",),
    )


# --- the model -------------------------------------------------------------------------------


def _vision_figures(facts: Facts) -> dict[str, int]:
    """MACs, vector FLOPs, matrix outputs (of all views) and parameters, by the pages' formulas."""
    wanted = ["ImageEncoderViT", "VitModel"]
    pages = [*sam_pages(facts), *clip_pages(facts)]
    sums = {"Mv": 0, "Vv": 0, "Av": 0, "Pv": 0}
    if has_projector_formulas(facts):
        wanted.append("MlpProjector")
        pages += projector_pages(facts)
    else:  # its page shows the published variant
        projector = facts.analytic.stages["projector"]
        work = projector.work
        sums = {
            "Mv": work.macs,
            "Vv": work.vector_flops,
            "Av": work.activations,
            "Pv": projector.params,
        }
    for page in pages:
        if page.name not in wanted or page.formulas is None:
            continue
        for index, case in enumerate(page.cases):
            values = all_values(page, case)
            sums["Mv"] += evaluate(page.formulas.macs, values)
            sums["Vv"] += evaluate(page.formulas.vector_flops, values)
            sums["Av"] += evaluate(page.formulas.activations, values)
            if not index:
                sums["Pv"] += evaluate(page.formulas.params, values)
    return sums


def _pixels(facts: Facts) -> int:
    """Values that are summed to find out whether there is an image, and local views."""
    views = sum(view.count * view.resolution**2 for view in facts.workload.views)
    blank = 0 if facts.workload.local_views else facts.workload.base_size**2
    return facts.channels * (views + blank)


_VISION_SYMBOLS: Final = {
    "Mv": Symbol("M_{vision}", "MACs of SAM, CLIP and projector over all views, by their pages"),
    "Vv2": Symbol("V_{vision}", "their vector FLOPs"),
    "Av2": Symbol("A_{vision}", "their matrix outputs"),
    "Pv": Symbol("P_{vision}", "their parameters"),
    "px": Symbol("n_{px}", "values of the views, summed to find out whether there is an image"),
    "cut": Symbol("n_{cut}", "1 where the page is cut: its grid's sides are multiplied, 3 times"),
}


def _whole_formulas(facts: Facts, *, head: bool) -> Formulas:
    stack = stack_formulas(facts)
    own_head = " + d * V" if head and not facts.decoder.tie_word_embeddings else ""
    return Formulas(
        macs=f"Mv + {stack.macs}" + (" + B * T * d * V" if head else ""),
        vector_flops=f"Vv2 + px + 3 * cut + {stack.vector_flops}",
        params=f"Pv + 2 * d + {stack.params}{own_head}",
        activations=f"Av2 + {stack.activations}" + (" + B * T * V" if head else ""),
        cache_bytes=stack.cache_bytes,
    )


def _whole_cases(facts: Facts, *, head: bool) -> tuple[Case, ...]:
    decoder = facts.decoder
    figures = _vision_figures(facts)
    vision = {
        "Mv": figures["Mv"],
        "Vv2": figures["Vv"],
        "Av2": figures["Av"],
        "Pv": figures["Pv"],
        "px": _pixels(facts),
        "cut": int(facts.workload.local_views is not None),
    }
    *prefill, decode = facts.analytic.stages.values()
    none = dict.fromkeys(vision, 0) | {"Pv": figures["Pv"]}

    def closed(*stages: StageFigures) -> Kernels:
        kernels = tuple(kernel for stage in stages for kernel in stage.kernels)
        return kernels if head else below_model(kernels)

    def build() -> Any:
        model = facts.whole_model()
        return model if head else model.model

    def page() -> Mapping[str, Any]:
        session, device = facts.session, facts.session.loaded.device
        with running(device):  # where the numbers that fill pixels are known
            return session.architecture.prefill_inputs(device, session.loaded.dtype, facts.workload)

    def step() -> Mapping[str, Any]:
        session, device = facts.session, facts.session.loaded.device
        with running(device):
            inputs = session.architecture.decode_inputs(device, facts.workload, facts.tokens)
        return {**inputs, "past_key_values": facts.cache(decoder.layers, facts.tokens)}

    return (
        Case(
            "prefill",
            {**stack_values(facts), **vision, "T": facts.tokens, "K": facts.tokens},
            build,
            keywords=page,
            closed_form=lambda: closed(*prefill),
        ),
        Case(
            "decode step",
            {**stack_values(facts), **none, "T": 1, "K": facts.tokens + 1},
            build,
            keywords=step,
            closed_form=lambda: closed(decode),
        ),
    )


def _model(facts: Facts) -> Page:
    decoder, workload = facts.decoder, facts.workload
    d = decoder.hidden_size
    figures = facts.analytic
    unassigned = sum(figures.parameters.unassigned.values())
    views = " and ".join(f"{N} of {count(R)} pixels a side" for _, N, R in facts.views)
    return Page(
        name="DeepseekOCRModel",
        group=_GROUP,
        subject=facts.get("DeepseekOCRModel"),
        what="The decoder with its vision side on top. Where a pass brings images, it runs SAM,"
        " CLIP and the projector over the local views as one batch and over the global view as"
        " another, lays the features out in rows with a learned newline embedding behind each and a"
        " learned separator at the end, and writes them over the placeholders of the prompt. A"
        " decode step is the decoder alone.",
        blocks=(("prefill", "visual tokens into the prompt"),),
        layer="architectures.ocr_family.composition.compose (without the head)",
        inputs={"input_ids": "B, T"},
        output="B, T, d",
        parameters={
            **stack_parameters(facts),
            "config.vision_config": Parameter(
                "Widths, layers, heads of SAM and CLIP.", "see ImageEncoderViT and VitModel"
            ),
            "config.projector_config": Parameter("Variant and widths.", "see MlpProjector"),
        },
        diagram=f"""flowchart TB
  ids["input_ids [B, T]"] --> embed["embed_tokens"]
  views["views: {views}"] --> sam["sam_model: ImageEncoderViT"]
  sam --> clip["vision_model: VitModel"]
  views --> clip
  sam --> cat["concatenate"]
  clip --> cat
  cat --> proj["projector: MlpProjector"]
  proj --> rows["rows, image_newline behind each,<br/>view_seperator at the end"]
  rows --> scatter["masked_scatter_ over the placeholders:<br/>{count(workload.visual_tokens)} visual tokens"]
  embed --> scatter
  scatter --> decoder["DeepseekV2Model: {decoder.layers} layers"]
  decoder --> y["hidden states [B, T, {d}]"]""",
        pseudo_code="""x = embed_tokens(input_ids)
if T > 1 and images and images.global_view.sum() != 0:
    parts = []
    if images.local_views.sum() != 0:
        parts.append(rows(features(local_views), grid))
    parts += [rows(features(global_view)), view_seperator]
    x.masked_scatter_(images_seq_mask, cat(parts))
return decoder(inputs_embeds=x, cache)

features(v) = projector(cat([vision_model(v, s)[:, 1:], s.flatten()])) where s = sam_model(v)""",
        mathematics=r"z(v) = W \left[\mathrm{clip}(v, \mathrm{sam}(v));\ \mathrm{sam}(v)\right],"
        r" \quad x_t = \begin{cases} z_t & t \text{ is a placeholder} \\ W_e[t] &"
        r" \text{otherwise} \end{cases}",
        symbols={**stack_symbols(facts, layers=True), **_VISION_SYMBOLS},
        formulas=_whole_formulas(facts, head=False),
        cases=_whole_cases(facts, head=False),
        flops_notes=(
            "Summing the pixels, by which the vendor's code tells an image from a blank, counts one"
            " FLOP a value.",
        ),
        memory_notes=(
            f"{count(unassigned)} parameters are the newline and the separator"
            " embedding, which no stage owns.",
        ),
        related=(
            "DeepseekOCRForCausalLM",
            "DeepseekOCRConfig",
            "ImageEncoderViT",
            "VitModel",
            "MlpProjector",
            "DeepseekV2Model",
        ),
        usage=f"""from dsocr_analyze.session import DeepSeekOCRSession

session = DeepSeekOCRSession.from_local()
report = session.analyze(page={workload.page})
assert report.workload.visual_tokens == {workload.visual_tokens}
assert report.stages["sam"].matrix_flops == {figures.stages["sam"].work.matrix_flops}""",
        notes="vision side and decoder as one module",
        references=("deepseekocr",),
    )


def _causal_lm(facts: Facts) -> Page:
    decoder, workload = facts.decoder, facts.workload
    d, vocabulary = decoder.hidden_size, decoder.vocab_size
    figures, per_token = facts.analytic, facts.cache_bytes_per_token
    params, weights_bytes = figures.parameters.total, figures.memory.weights_bytes
    return Page(
        name="DeepseekOCRForCausalLM",
        group=_GROUP,
        subject=facts.get("DeepseekOCRForCausalLM"),
        what="The whole model: `DeepseekOCRModel` and the head over the vocabulary. Its forward"
        " takes images beside the decoder's arguments. (The vendor's class also has `infer()`,"
        " which cuts the page, builds the prompt and generates; the workload planner of this"
        " project works the same sizes out without it.)",
        blocks=(("prefill", "whole model"), ("decode", "whole model")),
        layer="architectures.ocr_family.composition.compose",
        inputs={"input_ids": "B, T"},
        output="B, T, V",
        parameters=stack_parameters(facts),
        diagram=f"""flowchart LR
  ids["input_ids [B, T]"] --> model["model: DeepseekOCRModel"]
  images["images"] --> model
  model --> head["lm_head<br/>{d} to {count(vocabulary)}"]
  head --> cast["cast to fp32"]
  cast --> logits["logits [B, T, {count(vocabulary)}]"]
  model --> cache[("KV cache<br/>{count(per_token)} bytes a token")]
  cache --> model""",
        pseudo_code="""hidden, cache = model(input_ids, images, images_seq_mask, images_spatial_crop)
logits = lm_head(hidden).float()
token = logits[:, -1].argmax()
repeat: hidden, cache = model(token, cache); logits = lm_head(hidden).float()""",
        mathematics=r"p(t_{n+1} \mid t_{\le n}, v) = \mathrm{softmax}(W_{lm}\, y_n)",
        symbols={**stack_symbols(facts, layers=True), **_VISION_SYMBOLS},
        formulas=_whole_formulas(facts, head=True),
        cases=_whole_cases(facts, head=True),
        flops_notes=(
            "The prefill pass over the stated page takes"
            f" {scaled(figures.prefill_pass.flops, 'FLOPs')}, of which"
            f" {scaled(figures.prefill_pass.matrix_flops, 'FLOPs')} are matrix work;"
            f" a decode step takes {scaled(figures.stages['decode'].work.flops, 'FLOPs')}.",
        ),
        memory_notes=(
            f"All weights take {scaled(weights_bytes, 'B')} in bf16"
            f" ({count(params)} parameters); the KV cache"
            f" {count(per_token)} bytes a token.",
        ),
        related=(
            "DeepseekOCRModel",
            "DeepseekOCRConfig",
            "DeepseekV2ForCausalLM",
            "NoEOSTextStreamer",
            "BasicImageTransform",
        ),
        usage=f"""from dsocr_analyze.session import DeepSeekOCRSession

session = DeepSeekOCRSession.from_local()
report = session.analyze(page={workload.page})
assert report.total.params == {params}
assert report.total.matrix_flops == {figures.prefill_pass.matrix_flops}""",
        notes="the whole model",
        references=("deepseekocr",),
    )


# --- preprocessing and streaming -------------------------------------------------------------


def preprocessing_pages(facts: Facts) -> list[Page]:
    """Image transforms and the streamer."""
    return [_base_transform(facts), _image_transform(facts), _streamer(facts)]


_PREPROCESSING: Final = "Preprocessing and streaming"


def _base_transform(facts: Facts) -> Page:
    return Page(
        name="BaseTransform",
        group=_PREPROCESSING,
        subject=facts.get("BaseTransform"),
        what="The interface of an image transform: called with an image it returns the tensor a"
        " model takes; it may have a random state and a fixed result shape. An abstract class, not"
        " a module.",
        blocks=(),
        layer="none: an interface",
        parameters={},
        diagram="""classDiagram
  class BaseTransform {
    <<abstract>>
    +set_rng()
    +__call__(x) Tensor
    +default_shape
  }
  BaseTransform <|-- BasicImageTransform""",
        pseudo_code="""class BaseTransform(ABC):
    def set_rng(*args): pass
    @abstractmethod
    def __call__(x): ...
    @property
    def default_shape(): raise NotImplementedError""",
        mathematics=r"\text{(no computation)}",
        flops_notes=("No computation of its own.",),
        memory_notes=("No parameters.",),
        related=("BasicImageTransform",),
        usage=f"""{import_line(_FILE, "BaseTransform", "BasicImageTransform")}

assert issubclass(BasicImageTransform, BaseTransform)
try:
    BaseTransform()
except TypeError:
    pass  # abstract
else:
    raise AssertionError""",
        notes="interface of the image transforms",
    )


def _image_transform(facts: Facts) -> Page:
    made = facts.get("BasicImageTransform")()

    def case(label: str, R: int) -> Case:
        return Case(
            label,
            {"R": R, "C": facts.channels},
            lambda: facts.get("BasicImageTransform")().__call__,
            lambda: [np.zeros((R, R, facts.channels), dtype=np.uint8)],
            device="cpu",
        )

    return Page(
        name="BasicImageTransform",
        group=_PREPROCESSING,
        subject=facts.get("BasicImageTransform"),
        what="From an image to the tensor of a view: bytes become numbers from zero to one, then"
        " each channel is centred and scaled. It runs on the CPU before the model, once a view, and"
        " is no part of a pass: the main job does not count it.",
        blocks=(),
        layer="none: preprocessing on the CPU, before any stage",
        output="C, R, R",
        parameters={
            "mean": Parameter(
                "What is subtracted, a value a channel; None for nothing.", made.mean
            ),
            "std": Parameter("What is divided by, a value a channel; None for nothing.", made.std),
            "normalize": Parameter("False leaves the values from zero to one.", True),
        },
        diagram="""flowchart LR
  image["image [R, R, C], bytes"] --> tensor["channels first, divided by the largest byte"]
  tensor --> mean["minus mean"]
  mean --> std["divided by std"]
  std --> y["view [C, R, R], fp32"]""",
        pseudo_code="""x = tensor(image).permute(2, 0, 1) / largest_byte
return (x - mean) / std""",
        mathematics=r"y_{c} = \frac{x_c / x_{max} - \mu_c}{\sigma_c}",
        symbols={
            "R": Symbol("R", "pixels a side of a view"),
            "C": Symbol("C", "channels"),
        },
        formulas=Formulas(vector_flops="3 * C * R ** 2"),
        cases=tuple(case(f"one {label.removesuffix('s')}", R) for label, _, R in facts.views),
        flops_notes=("A division, a subtraction, a division for each value; traced on the CPU.",),
        memory_notes=("No parameters; a view in fp32 takes four bytes a value.",),
        related=("BaseTransform", "DeepseekOCRForCausalLM", "ImageEncoderViT"),
        usage=f"""import numpy as np
{import_line(_FILE, "BasicImageTransform")}

view = BasicImageTransform()(np.full((8, 8, 3), 255, dtype=np.uint8))
assert view.shape == (3, 8, 8) and bool((view == 1).all())""",
        notes="on the CPU, before any stage",
    )


def _streamer(facts: Facts) -> Page:
    return Page(
        name="NoEOSTextStreamer",
        group=_PREPROCESSING,
        subject=facts.get("NoEOSTextStreamer"),
        what="Prints generated text as it comes, with a line break in place of the"
        " end-of-sequence token. It handles text only.",
        blocks=(),
        layer="none: text only",
        parameters={
            "tokenizer": Parameter("Turns token ids into text.", "the model's tokenizer"),
            "skip_prompt": Parameter("Whether the prompt is left out.", False),
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
        memory_notes=("No parameters; it keeps the tokens of the word that is not finished.",),
        related=("DeepseekOCRForCausalLM",),
        usage=f"""{import_line(_FILE, "NoEOSTextStreamer")}


class Tokenizer:
    eos_token_id = 1

    def decode(self, ids, **options):
        return "<eos>"


printed = []
streamer = NoEOSTextStreamer(Tokenizer())
streamer.on_finalized_text("a line<eos>", stream_end=True)""",
        notes="text only",
    )
