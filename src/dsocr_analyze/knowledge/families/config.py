"""The page template for the config of every relative."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.decoder import config_parameters
from dsocr_analyze.knowledge.families.model import group_of
from dsocr_analyze.knowledge.machinery.facts import Facts, config_value, count
from dsocr_analyze.knowledge.machinery.page import Page, Parameter
from dsocr_analyze.report.quantities import bytes_text

__all__ = ["config_page"]

_MEANINGS: Final = {
    "vocab_size": "Rows of the token embedding and the head.",
    "hidden_size": "Width of a token.",
    "num_hidden_layers": "Decoder layers.",
    "num_attention_heads": "Query heads of a layer.",
    "num_key_value_heads": "Key and value heads of a layer.",
    "intermediate_size": "Hidden width of a dense layer's MLP.",
    "hidden_act": "Activation of the gated MLPs.",
    "max_position_embeddings": "Positions that the model was trained for.",
    "rope_theta": "Base of the rotary frequencies.",
    "rope_scaling": "How rotary positions are stretched: none, linear, dynamic or yarn.",
    "attention_bias": "Whether the attention projections have biases.",
    "attention_dropout": "Dropout of the attention weights, in training.",
    "rms_norm_eps": "Epsilon of the norms.",
    "use_mla": "Whether to use latent attention instead of plain multi-head attention.",
    "q_lora_rank": "Rank of the queries' latent, with `use_mla`.",
    "kv_lora_rank": "Rank of the keys' and values' latent, with `use_mla`.",
    "qk_rope_head_dim": "Rotary features of a head, with `use_mla`.",
    "qk_nope_head_dim": "Other features of a head, with `use_mla`.",
    "v_head_dim": "Features of a value head, with `use_mla`.",
    "n_routed_experts": "Routed experts of a mixture layer.",
    "n_shared_experts": "Experts that process every token, fused into one MLP.",
    "num_experts_per_tok": "Routed experts per token.",
    "moe_intermediate_size": "Hidden width of one expert.",
    "moe_layer_freq": "Interval between mixture layers.",
    "first_k_dense_replace": "Number of dense layers at the start.",
    "scoring_func": "Function applied to the router's logits: softmax or sigmoid.",
    "topk_method": "How experts are chosen: greedy, group_limited_greedy or noaux_tc.",
    "n_group": "Groups of experts, for the group-limited methods.",
    "topk_group": "Groups that a token may choose from.",
    "norm_topk_prob": "Whether the chosen scores are normalised to sum to one.",
    "routed_scaling_factor": "Factor on the chosen scores.",
    "aux_loss_alpha": "Weight of the load-balancing loss, in training.",
    "seq_aux": "Whether that loss is computed per sequence.",
    "ep_size": "Number of processes that the experts are distributed over.",
    "initializer_range": "Standard deviation of the initial weights.",
    "pretraining_tp": "Left over from training; unused here.",
    "use_cache": "Whether a pass returns its KV cache.",
    "pad_token_id": "Padding token; its row of the embedding stays zero.",
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
        adds: What it adds to the decoder's config; empty if only the name.
        keys: Meanings of the keys that it adds.
    """
    config, decoder = type(facts.config), facts.decoder
    name = config.__name__
    embedding = decoder.vocab_size * decoder.hidden_size * BFLOAT16.nbytes
    memory = facts.analytic.memory
    parameters = inspect.signature(config).parameters
    meanings = {**_MEANINGS, **(keys or {})}
    return Page(
        group=group_of(facts),
        subject=config,
        also=(facts.get("DeepseekV2Config"),),
        what="The configuration of the model. "
        + (adds or "It adds nothing to `DeepseekV2Config` but its name:")
        + " every decoder key of `config.json` becomes an attribute, with that class's default if the"
        " file lacks the key; `vision_config` and `projector_config` are passed through unchanged"
        " and are read by the model's constructor.",
        blocks=(),
        layer="none: no tensors; `dsocr_analyze.architectures.ocr_family.dimensions` reads the same keys",
        parameters={
            **{
                key: Parameter(meanings[key], config_value(facts.config, key))
                for key, parameter in parameters.items()
                if parameter.kind is not parameter.VAR_KEYWORD
            },
            **config_parameters(
                facts.config,
                {key: meaning for key, meaning in (keys or {}).items() if key not in parameters},
            ),
        },
        diagram=_diagram(name),
        pseudo_code=_pseudo_code(config, keys or {}),
        mathematics=r"\text{(no computation)}",
        flops_notes=("No computation: a configuration holds no tensor.",),
        memory_notes=(
            "No parameters of its own. With its values, in bf16: the token embedding takes"
            f" {bytes_text(embedding)}, all weights {bytes_text(memory.weights_bytes)},"
            f" and the KV cache {count(facts.cache_bytes_per_token)} bytes per token.",
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


def _diagram(name: str) -> str:
    return f"""sequenceDiagram
  participant File as config.json
  participant OCR as {name}
  participant V2 as DeepseekV2Config
  participant HF as PretrainedConfig
  File->>OCR: from_dict(keys)
  OCR->>V2: inherited constructor
  V2->>V2: decoder keys, defaults where absent
  V2->>HF: token ids, tie_word_embeddings<br/>and the rest: vision_config, projector_config
  HF-->>OCR: attributes"""


def _pseudo_code(config: type[Any], keys: Mapping[str, str]) -> str:
    declared = "".join(f"\n    {key} = None" for key in keys)
    return f"""class {config.__name__}(DeepseekV2Config):
    model_type = "{config.model_type}"{declared}

def __init__(every key below with its default, **kwargs):
    if num_key_value_heads is None:
        num_key_value_heads = num_attention_heads
    every key but the token ids and tie_word_embeddings becomes an attribute
    PretrainedConfig.__init__(token ids, tie_word_embeddings, **kwargs)"""
