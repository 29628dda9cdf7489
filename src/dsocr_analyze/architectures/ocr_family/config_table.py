"""Every key of a relative's `config.json`, and what it does to the figures.

The only place that says so; the test that changes every key checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dsocr_analyze.architectures.config_file import (
    MOST_LAYERS,
    Conditional,
    Config,
    Duplicate,
    Fixed,
    Harmless,
    JsonValue,
    KeyRule,
    KeyTable,
    Used,
)
from dsocr_analyze.architectures.ocr_family.decoder_dimensions import DECODER_DEFAULTS

__all__ = ["CLIP_KEYS", "PROJECTOR_KEYS", "SAM_KEYS", "Rules", "is_latent", "key_table"]

Rules = dict[str, KeyRule | Conditional]


# --- conditions, of the file's top-level object -----------------------------------------------


def is_latent(config: Config) -> bool:
    """Whether the decoder has latent attention."""
    return config.get("use_mla") is True


def _is_mixed(config: Config) -> bool:
    return config.get("n_routed_experts") is not None


def _mixed_layers(config: Config) -> list[bool]:
    """Which layers have experts; for impossible values, one with and one without."""
    keys = ("num_hidden_layers", "first_k_dense_replace", "moe_layer_freq")
    layers, first, every = (config.get(key, DECODER_DEFAULTS.get(key)) for key in keys)
    if not (isinstance(layers, int) and isinstance(first, int) and isinstance(every, int)):
        return [False, True]
    if not 0 <= layers <= MOST_LAYERS:
        return [False, True]
    if not _is_mixed(config) or not every:
        return [False]
    return [index >= first and index % every == 0 for index in range(layers)]


def _has_experts(config: Config) -> bool:
    return any(_mixed_layers(config))


def _has_dense_layer(config: Config) -> bool:
    return not all(_mixed_layers(config))


def _is_grouped(config: Config) -> bool:
    return _has_experts(config) and config.get("topk_method") != "greedy"


def _scaling(config: Config, key: str) -> JsonValue:
    section = config.get("rope_scaling")
    return section.get(key) if isinstance(section, Mapping) else None


def _is_dynamic(config: Config) -> bool:
    return "dynamic" in (_scaling(config, "type"), _scaling(config, "rope_type"))


def _takes_rope_type(config: Config) -> bool:
    return not is_latent(config) and _scaling(config, "rope_type") is not None


def _projector_type(config: Config) -> str:
    section = config.get("projector_config")
    return str(section.get("projector_type")) if isinstance(section, Mapping) else ""


def _is_deep(config: Config) -> bool:
    return _projector_type(config) not in ("identity", "linear")


def _merges(config: Config) -> bool:
    return "downsample" in _projector_type(config)


def _splits(config: Config) -> bool:
    return _projector_type(config) == "hybrid_split_feature_mlp_gelu"


# --- what figures depend on --------------------------------------------------------------------


def _each(rule: KeyRule | Conditional, *keys: str) -> Rules:
    return dict.fromkeys(keys, rule)


_VALUE: Final = Harmless("a number in the computation, which is the same for every value")

_ROPE_TYPE: Final = Conditional(
    lambda config: is_latent(config) or _is_dynamic(config),
    Used(),
    Harmless("plain attention does the same work with every type but 'dynamic'"),
)

_DECODER: Final[Rules] = {
    **_each(
        Used(),
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "hidden_act",
        "use_mla",
        "attention_bias",
        "tie_word_embeddings",
        "n_routed_experts",
        "rope_scaling",
    ),
    **_each(
        Conditional(is_latent, Harmless("latent attention does not read it"), Used()),
        "num_key_value_heads",
        "head_dim",
    ),
    **_each(
        Conditional(is_latent, Used(), Harmless("only latent attention reads it")),
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
    ),
    "intermediate_size": Conditional(
        _has_dense_layer, Used(), Harmless("every layer has experts instead of a dense MLP")
    ),
    **_each(
        Conditional(_is_mixed, Used(), Harmless("the decoder has no experts")),
        "moe_layer_freq",
        "first_k_dense_replace",
    ),
    **_each(
        Conditional(_has_experts, Used(), Harmless("no layer has experts")),
        "n_shared_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "scoring_func",
        "topk_method",
        "norm_topk_prob",
    ),
    **_each(
        Conditional(_is_grouped, Used(), Harmless("'topk_method' has no groups of experts")),
        "n_group",
        "topk_group",
    ),
    "max_position_embeddings": Conditional(
        _is_dynamic, Used(), Harmless("longer sequences cost the same; a warning mentions them")
    ),
    **_each(_VALUE, "rope_theta", "rms_norm_eps", "routed_scaling_factor"),
    "rope_scaling.type": Conditional(
        _takes_rope_type, Duplicate(("rope_scaling", "rope_type")), _ROPE_TYPE
    ),
    "rope_scaling.rope_type": Conditional(
        is_latent, Duplicate(("rope_scaling", "type")), _ROPE_TYPE
    ),
    **_each(
        _VALUE,
        "rope_scaling.factor",
        "rope_scaling.original_max_position_embeddings",
        "rope_scaling.attention_factor",
        "rope_scaling.beta_fast",
        "rope_scaling.beta_slow",
        "rope_scaling.mscale",
        "rope_scaling.mscale_all_dim",
    ),
}

SAM_KEYS: Final[Rules] = {
    **_each(
        Used(),
        "vision_config.image_size",
        "vision_config.width.sam_vit_b.width",
        "vision_config.width.sam_vit_b.layers",
        "vision_config.width.sam_vit_b.heads",
        "vision_config.width.sam_vit_b.global_attn_indexes",
        "vision_config.width.sam_vit_b.downsample_channels",
    ),
    "vision_config.mlp_ratio": Harmless("for another model; the encoders have fixed ratios"),
    "vision_config.model_name": Harmless("a name"),
}

CLIP_KEYS: Final[Rules] = _each(
    Used(),
    "vision_config.width.clip-l-14-224.width",
    "vision_config.width.clip-l-14-224.layers",
    "vision_config.width.clip-l-14-224.heads",
    "vision_config.width.clip-l-14-224.image_size",
    "vision_config.width.clip-l-14-224.patch_size",
)

PROJECTOR_KEYS: Final[Rules] = {
    **_each(
        Used(),
        "projector_config.projector_type",
        "projector_config.input_dim",
        "projector_config.n_embed",
        "projector_config.token_pooling",
        "projector_config.conv_fusion_high_low_features",
    ),
    "projector_config.depth": Conditional(_is_deep, Used(), Harmless("the projector is one map")),
    **_each(
        Conditional(_merges, Used(), Harmless("the projector merges no tokens")),
        "projector_config.mlp_ratio",
        "projector_config.downsample_ratio",
    ),
    "projector_config.channel_div": Conditional(
        _splits, Used(), Harmless("the projector splits no features")
    ),
}


# --- what is not modelled ----------------------------------------------------------------------

_WINDOW: Final = Fixed(
    (None,), "it bounds what a decode step attends to and caches", counted_by_trace=False
)
_RETURNED: Final = "the model returns a plain tuple, from which no cache is taken"

_NOT_MODELLED: Final[Rules] = {
    **_each(_WINDOW, "sliding_window_size", "sliding_window", "attention_chunk_size"),
    "use_sliding_window": Fixed((False, None), _WINDOW.reason, counted_by_trace=False),
    "layer_types": Fixed((None,), "it gives layers different attention", counted_by_trace=False),
    "pretraining_tp": Fixed((1,), "it splits projections into slices", ignored_by_published=False),
    "ep_size": Fixed((1,), "it spreads experts over processes", ignored_by_published=False),
    "partial_rotary_factor": Fixed(
        (1,), "it rotates only part of each head", ignored_by_published=False
    ),
    **_each(
        Fixed((None,), "it caps scores with a tanh"),
        "attn_logit_softcapping",
        "final_logit_softcapping",
    ),
    **_each(Fixed((False, None), "it adds biases"), "mlp_bias", "lm_head_bias"),
    **_each(Fixed((False, None), "it normalises queries and keys"), "use_qk_norm", "qk_layernorm"),
    "num_nextn_predict_layers": Fixed((None, 0), "it adds layers that predict further tokens"),
    **_each(
        Fixed((None,), "it attends to a selection of the keys", counted_by_trace=False),
        "index_topk",
        "index_n_heads",
        "index_head_dim",
    ),
    "tile_tag": Fixed(("2D",), "it changes the layout of views"),
    "global_view_pos": Fixed(("head",), "it places the global view elsewhere"),
    "lm_head": Fixed((True,), "it leaves out the head"),
    "rm_head": Fixed((False,), "it adds a reward model's head"),
    **_each(
        Fixed(
            (False,),
            "it keeps intermediate results of the layers, which takes memory",
            ignored_by_published=False,
        ),
        "output_hidden_states",
        "output_attentions",
    ),
    "return_dict": Fixed((True,), _RETURNED, ignored_by_published=False, counted_by_trace=False),
    "torchscript": Fixed((False,), _RETURNED, ignored_by_published=False, counted_by_trace=False),
    "pruned_heads": Fixed(
        (None, {}), "it removes heads", ignored_by_published=False, counted_by_trace=False
    ),
    **_each(
        Fixed(
            (False,),
            "it makes an encoder-decoder model with cross-attention",
            ignored_by_published=False,
            counted_by_trace=False,
        ),
        "is_encoder_decoder",
        "add_cross_attention",
        "tie_encoder_decoder",
    ),
    **_each(
        Fixed(
            (None,),
            "it stores weights in another type",
            ignored_by_published=False,
            counted_by_trace=False,
        ),
        "quantization_config",
        "compression_config",
    ),
    **_each(
        Fixed(
            (None,),
            "it overrides the choice of flash or eager attention",
            ignored_by_published=False,
            counted_by_trace=False,
        ),
        "_attn_implementation",
        "_attn_implementation_internal",
    ),
    "cache_implementation": Fixed(
        (None,),
        "it uses another kind of cache",
        ignored_by_published=False,
        counted_by_trace=False,
    ),
    **_each(
        Fixed(
            (1,),
            "it decodes several sequences per prompt",
            ignored_by_published=False,
            counted_by_trace=False,
        ),
        "num_beams",
        "num_beam_groups",
        "num_return_sequences",
    ),
}


# --- what no figure depends on -----------------------------------------------------------------


def _everywhere(reason: str, *keys: str) -> Rules:
    return _each(Harmless(reason, everywhere=True), *keys)


_HARMLESS: Final[Rules] = {
    **_everywhere(
        "tells where the file comes from",
        "_name_or_path",
        "name_or_path",
        "_commit_hash",
        "transformers_version",
        "architectures",
    ),
    **_everywhere(
        "tells which model the file is for; a wrong one is rejected before any key is read",
        "auto_map",
        "model_type",
    ),
    **_everywhere("the counted type is chosen outside the file", "torch_dtype", "dtype"),
    **_everywhere("the counted kernel is chosen outside the file", "attn_implementation"),
    **_everywhere("tells who chose the kernel", "_attn_implementation_autoset"),
    **_everywhere("passes are counted with a cache, as `generate` runs them", "use_cache"),
    **_everywhere(
        "read in training only",
        "attention_dropout",
        "aux_loss_alpha",
        "seq_aux",
        "initializer_range",
        "gradient_checkpointing",
        "problem_type",
        "finetuning_task",
        "task_specific_params",
        "num_labels",
        "id2label",
        "label2id",
    ),
    **_everywhere("for other frameworks", "use_bfloat16", "tf_legacy_loss", "xla_device"),
    **_everywhere("for the tokenizer", "tokenizer_class", "prefix"),
    **_everywhere(
        "a token's id",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
    ),
    **_everywhere(
        "controls how tokens are chosen from logits, outside the counted passes",
        "max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "diversity_penalty",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "output_scores",
        "return_dict_in_generate",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
    ),
    **_everywhere(
        "the decoder's layers do not read it",
        "is_decoder",
        "cross_attention_hidden_size",
        "chunk_size_feed_forward",
    ),
    "candidate_resolutions": Harmless("the mode sets the resolutions of views"),
}


def key_table(own: Rules, built: Mapping[str, Config]) -> KeyTable:
    """Every key a relative knows.

    Args:
        own: Keys of its vision side, and others that do more than in other relatives.
        built: What its published code builds regardless of the file, section by section.
    """
    rules = _DECODER | _NOT_MODELLED | _HARMLESS | own
    return KeyTable(
        rules={tuple(path.split(".")): rule for path, rule in rules.items()},
        defaults=DECODER_DEFAULTS,
        copy="language_config",
        built=built,
    )
