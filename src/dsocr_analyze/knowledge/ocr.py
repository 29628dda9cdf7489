"""Pages that all relatives have: config, model, model with head; preprocessing and streaming."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.decoder import stack_parameters
from dsocr_analyze.knowledge.machinery.facts import Facts, config_value, count, scaled
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Page, Parameter, Symbol
from dsocr_analyze.knowledge.machinery.signature import import_line
from dsocr_analyze.knowledge.whole_model import WholeModel

__all__ = [
    "PIXELS_NOTE",
    "causal_lm_page",
    "config_page",
    "group_of",
    "model_page",
    "preprocessing_pages",
    "vision_parameters",
]

_FILE: Final = "dsocr_analyze.architectures.deepseek_ocr.reference.modeling_deepseekocr"


def group_of(facts: Facts) -> str:
    """Heading of the pages of a relative's own model."""
    if facts.architecture is DEFAULT:
        return "The OCR model"
    return f"{facts.architecture.title}: the model"


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


def config_page(
    facts: Facts, reference: str, adds: str = "", keys: Mapping[str, str] | None = None
) -> Page:
    """The page of the config's class.

    Args:
        facts: The model.
        reference: Key of the model's paper.
        adds: What it adds to the decoder's; nothing but its name for an empty text.
        keys: Meanings of the keys that it adds.
    """
    config, decoder = type(facts.config), facts.decoder
    name = config.__name__
    embedding = decoder.vocab_size * decoder.hidden_size * BFLOAT16.nbytes
    memory = facts.analytic.memory
    declared = "".join(f"\n    {key} = None" for key in keys or ())
    parameters = inspect.signature(config).parameters
    meanings = {**_MEANINGS, **(keys or {})}
    return Page(
        name=name,
        group=group_of(facts),
        subject=config,
        also=(facts.get("DeepseekV2Config"),),
        what="The configuration of the model. "
        + (adds or "It adds nothing to `DeepseekV2Config` but its name:")
        + " every decoder key of `config.json` becomes an attribute, with the defaults of that class"
        " where the file is silent; `vision_config` and `projector_config` come along unchanged"
        " and are read by the model's constructor.",
        blocks=(),
        layer="none: no tensors; `dsocr_analyze.architectures.ocr_family.dimensions` reads the same keys",
        parameters={
            **{
                key: Parameter(meanings[key], config_value(facts.config, key))
                for key, parameter in parameters.items()
                if parameter.kind is not parameter.VAR_KEYWORD
            },
            **{
                f"config.{key}": Parameter(meaning, config_value(facts.config, key))
                for key, meaning in (keys or {}).items()
                if key not in parameters
            },
        },
        diagram=f"""sequenceDiagram
  participant File as config.json
  participant OCR as {name}
  participant V2 as DeepseekV2Config
  participant HF as PretrainedConfig
  File->>OCR: from_dict(keys)
  OCR->>V2: inherited constructor
  V2->>V2: decoder keys, defaults where absent
  V2->>HF: token ids, tie_word_embeddings<br/>and the rest: vision_config, projector_config
  HF-->>OCR: attributes""",
        pseudo_code=f"""class {name}(DeepseekV2Config):
    model_type = "{config.model_type}"{declared}

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
        related=(facts.model_class, facts.whole_class, "DeepseekV2Model"),
        usage=f"""from dsocr_analyze.session import DeepSeekOCRSession

config = DeepSeekOCRSession.from_local().model.config
assert type(config).__name__ == "{name}"
assert config.hidden_size == {facts.config.hidden_size}
assert config.num_hidden_layers == {facts.config.num_hidden_layers}""",
        notes="configuration; no tensors",
        references=(reference,),
    )


# --- the model -------------------------------------------------------------------------------


def model_page(whole: WholeModel, **texts: Any) -> Page:
    """The page of a model without its head; what relatives say differently is in `texts`."""
    facts = whole.facts
    workload, figures = facts.workload, facts.analytic
    return Page(
        name=facts.model_class,
        group=group_of(facts),
        subject=facts.class_at("model"),
        blocks=(("prefill", "visual tokens into the prompt"),),
        layer="architectures.ocr_family.composition.compose (without the head)",
        inputs={"input_ids": "B, T"},
        output="B, T, d",
        symbols=whole.symbols,
        formulas=whole.formulas,
        cases=whole.cases,
        usage=f"""from dsocr_analyze.session import DeepSeekOCRSession

session = DeepSeekOCRSession.from_local()
report = session.analyze(page={workload.page})
assert report.workload.visual_tokens == {workload.visual_tokens}
assert report.stages["sam"].matrix_flops == {figures.stages["sam"].work.matrix_flops}""",
        notes="vision side and decoder as one module",
        **texts,
    )


PIXELS_NOTE: Final = (
    "Summing the pixels, by which the vendor's code tells an image from a blank, counts one FLOP a"
    " value."
)


def vision_parameters(facts: Facts) -> dict[str, Parameter]:
    """The config keys of a model with its vision side."""
    encoders = f"ImageEncoderViT and {facts.second_encoder}"
    return {
        **stack_parameters(facts),
        "config.vision_config": Parameter("Widths, layers, heads.", f"see {encoders}"),
        "config.projector_config": Parameter("Variant and widths.", "see MlpProjector"),
    }


def causal_lm_page(
    whole: WholeModel,
    *,
    what: str,
    related: tuple[str, ...],
    references: tuple[str, ...],
    flops_notes: tuple[str, ...] = (),
    memory_notes: tuple[str, ...] = (),
) -> Page:
    """The page of a whole model; what is not said here is as in `Page`."""
    facts = whole.facts
    decoder, workload = facts.decoder, facts.workload
    d, vocabulary = decoder.hidden_size, decoder.vocab_size
    figures, per_token = facts.analytic, facts.cache_bytes_per_token
    params, weights_bytes = figures.parameters.total, figures.memory.weights_bytes
    return Page(
        name=facts.whole_class,
        group=group_of(facts),
        subject=facts.class_at(""),
        what=what,
        blocks=(("prefill", "whole model"), ("decode", "whole model")),
        layer="architectures.ocr_family.composition.compose",
        inputs={"input_ids": "B, T"},
        output="B, T, V",
        parameters=stack_parameters(facts),
        diagram=f"""flowchart LR
  ids["input_ids [B, T]"] --> model["model: {facts.model_class}"]
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
        symbols=whole.symbols,
        formulas=whole.formulas,
        cases=whole.cases,
        flops_notes=(
            "The prefill pass over the stated page takes"
            f" {scaled(figures.prefill_pass.flops, 'FLOPs')}, of which"
            f" {scaled(figures.prefill_pass.matrix_flops, 'FLOPs')} are matrix work;"
            f" a decode step takes {scaled(figures.stages['decode'].work.flops, 'FLOPs')}.",
            *flops_notes,
        ),
        memory_notes=(
            f"All weights take {scaled(weights_bytes, 'B')} in bf16"
            f" ({count(params)} parameters); the KV cache"
            f" {count(per_token)} bytes a token.",
            *memory_notes,
        ),
        related=related,
        usage=f"""from dsocr_analyze.session import DeepSeekOCRSession

session = DeepSeekOCRSession.from_local()
report = session.analyze(page={workload.page})
assert report.total.params == {params}
assert report.total.matrix_flops == {figures.prefill_pass.matrix_flops}""",
        notes="the whole model",
        references=references,
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
        related=("BaseTransform", facts.whole_class, "ImageEncoderViT"),
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
        related=(facts.whole_class,),
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
