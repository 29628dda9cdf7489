"""Every key of a relative's `config.json`, and what it does to the figures."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from dsocr_analyze.architectures.config_file import (
    MOST_LAYERS,
    USED,
    Conditional,
    Config,
    Fixed,
    Harmless,
    JsonValue,
    KeyRule,
    KeyTable,
    Unread,
)
from dsocr_analyze.architectures.ocr_family.dimensions import DECODER_DEFAULTS

Rules: TypeAlias = dict[str, KeyRule]


# --- conditions ------------------------------------------------------------------------------


def conditions_of(config: Config) -> dict[str, bool]:
    """What decides what the keys of a file do, as a `Conditional` names it."""
    scaling, projector = config.get("rope_scaling"), config.get("projector_config")
    types: list[JsonValue] = [None]
    if isinstance(scaling, Mapping):
        types = [scaling.get("type"), scaling.get("rope_type")]
    kind = str(projector.get("projector_type")) if isinstance(projector, Mapping) else ""
    is_latent, is_mixed = config.get("use_mla") is True, config.get("n_routed_experts") is not None
    layers: Any = config.get("num_hidden_layers")
    first: Any = config.get("first_k_dense_replace")
    every = config.get("moe_layer_freq", DECODER_DEFAULTS["moe_layer_freq"])
    have_experts = {False, True}  # layers with and without, for impossible values
    is_number = isinstance(layers, int) and isinstance(first, int) and isinstance(every, int)
    if is_number and 0 <= layers <= MOST_LAYERS:
        have_experts = {
            is_mixed and index >= first and every != 0 and index % every == 0
            for index in range(layers)
        }
    return {
        "latent attention": is_latent,
        "a rope_type that plain attention reads": not is_latent and types[-1] is not None,
        "a rotary type that matters": is_latent or "dynamic" in types,
        "dynamic positions": "dynamic" in types,
        "routed experts": is_mixed,
        "layers with experts": any(have_experts),
        "dense layers": not all(have_experts),
        "groups of experts": any(have_experts) and config.get("topk_method") != "greedy",
        "a window in its first key": bool(config.get("sliding_window_size")),
        "a projector with layers": kind not in ("identity", "linear"),
        "a projector that merges tokens": "downsample" in kind,
        "a projector that splits features": kind == "hybrid_split_feature_mlp_gelu",
    }


# --- what figures depend on --------------------------------------------------------------------


VALUE: Final = Harmless("a number in the computation, which is the same for every value")

_ROPE_TYPE: Final = Conditional(
    "a rotary type that matters",
    USED,
    Harmless("plain attention does the same work with every type but 'dynamic'"),
)

_DECODER: Final[Rules] = {
    **dict.fromkeys(
        (
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
        USED,
    ),
    **dict.fromkeys(
        ("num_key_value_heads", "head_dim"),
        Conditional("latent attention", Harmless("latent attention does not read it"), USED),
    ),
    **dict.fromkeys(
        ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        Conditional("latent attention", USED, Harmless("only latent attention reads it")),
    ),
    "intermediate_size": Conditional(
        "dense layers", USED, Harmless("every layer has experts instead of a dense MLP")
    ),
    **dict.fromkeys(
        ("moe_layer_freq", "first_k_dense_replace"),
        Conditional("routed experts", USED, Harmless("the decoder has no experts")),
    ),
    **dict.fromkeys(
        (
            "n_shared_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "scoring_func",
            "topk_method",
            "norm_topk_prob",
        ),
        Conditional("layers with experts", USED, Harmless("no layer has experts")),
    ),
    **dict.fromkeys(
        ("n_group", "topk_group"),
        Conditional("groups of experts", USED, Harmless("'topk_method' has no groups of experts")),
    ),
    "max_position_embeddings": Conditional(
        "dynamic positions",
        USED,
        Harmless("longer sequences cost the same; a warning mentions them"),
    ),
    "candidate_resolutions": Harmless("the mode sets the resolutions of views"),
    **dict.fromkeys(("rope_theta", "rms_norm_eps", "routed_scaling_factor"), VALUE),
    "rope_scaling.type": Conditional(
        "a rope_type that plain attention reads", Unread(("rope_scaling", "rope_type")), _ROPE_TYPE
    ),
    "rope_scaling.rope_type": Conditional(
        "latent attention", Unread(("rope_scaling", "type")), _ROPE_TYPE
    ),
    **dict.fromkeys(
        (
            "rope_scaling.factor",
            "rope_scaling.original_max_position_embeddings",
            "rope_scaling.attention_factor",
            "rope_scaling.beta_fast",
            "rope_scaling.beta_slow",
            "rope_scaling.mscale",
            "rope_scaling.mscale_all_dim",
        ),
        VALUE,
    ),
}

SAM_KEYS: Final[Rules] = {
    **dict.fromkeys(
        (
            "vision_config.image_size",
            "vision_config.width.sam_vit_b.width",
            "vision_config.width.sam_vit_b.layers",
            "vision_config.width.sam_vit_b.heads",
            "vision_config.width.sam_vit_b.global_attn_indexes",
            "vision_config.width.sam_vit_b.downsample_channels",
        ),
        USED,
    ),
    "vision_config.mlp_ratio": Harmless("for another model; the encoders have fixed ratios"),
    "vision_config.model_name": Harmless("a name"),
}

CLIP_KEYS: Final[Rules] = dict.fromkeys(
    (
        "vision_config.width.clip-l-14-224.width",
        "vision_config.width.clip-l-14-224.layers",
        "vision_config.width.clip-l-14-224.heads",
        "vision_config.width.clip-l-14-224.image_size",
        "vision_config.width.clip-l-14-224.patch_size",
    ),
    USED,
)

PROJECTOR_KEYS: Final[Rules] = {
    **dict.fromkeys(
        (
            "projector_config.projector_type",
            "projector_config.input_dim",
            "projector_config.n_embed",
            "projector_config.token_pooling",
            "projector_config.conv_fusion_high_low_features",
        ),
        USED,
    ),
    "projector_config.depth": Conditional(
        "a projector with layers", USED, Harmless("the projector is one map")
    ),
    **dict.fromkeys(
        ("projector_config.mlp_ratio", "projector_config.downsample_ratio"),
        Conditional(
            "a projector that merges tokens", USED, Harmless("the projector merges no tokens")
        ),
    ),
    "projector_config.channel_div": Conditional(
        "a projector that splits features", USED, Harmless("the projector splits no features")
    ),
}


# --- what is not modelled ----------------------------------------------------------------------

_WINDOW: Final = Fixed(
    (None,), "it bounds what a decode step attends to and caches", counted_by_trace=False
)
_RETURNED: Final = "the model returns a plain tuple, from which no cache is taken"

NOT_MODELLED: Final[Rules] = {
    **dict.fromkeys(("sliding_window_size", "sliding_window", "attention_chunk_size"), _WINDOW),
    "use_sliding_window": Fixed((False, None), _WINDOW.reason, counted_by_trace=False),
    "layer_types": Fixed((None,), "it gives layers different attention", counted_by_trace=False),
    "pretraining_tp": Fixed((1,), "it splits projections into slices", ignored_by_published=False),
    "ep_size": Fixed((1,), "it spreads experts over processes", ignored_by_published=False),
    "partial_rotary_factor": Fixed(
        (1,), "it rotates only part of each head", ignored_by_published=False
    ),
    **dict.fromkeys(
        ("attn_logit_softcapping", "final_logit_softcapping"),
        Fixed((None,), "it caps scores with a tanh"),
    ),
    **dict.fromkeys(("mlp_bias", "lm_head_bias"), Fixed((False, None), "it adds biases")),
    **dict.fromkeys(
        ("use_qk_norm", "qk_layernorm"), Fixed((False, None), "it normalises queries and keys")
    ),
    "num_nextn_predict_layers": Fixed((None, 0), "it adds layers that predict further tokens"),
    **dict.fromkeys(
        ("index_topk", "index_n_heads", "index_head_dim"),
        Fixed((None,), "it attends to a selection of the keys", counted_by_trace=False),
    ),
    **dict.fromkeys(
        ("output_hidden_states", "output_attentions"),
        Fixed(
            (False,),
            "it keeps intermediate results of the layers, which takes memory",
            ignored_by_published=False,
        ),
    ),
    "return_dict": Fixed((True,), _RETURNED, ignored_by_published=False, counted_by_trace=False),
    "torchscript": Fixed((False,), _RETURNED, ignored_by_published=False, counted_by_trace=False),
    "pruned_heads": Fixed(
        (None, {}), "it removes heads", ignored_by_published=False, counted_by_trace=False
    ),
    **dict.fromkeys(
        ("is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder"),
        Fixed(
            (False,),
            "it makes an encoder-decoder model with cross-attention",
            ignored_by_published=False,
            counted_by_trace=False,
        ),
    ),
    **dict.fromkeys(
        ("quantization_config", "compression_config"),
        Fixed(
            (None,),
            "it stores weights in another type",
            ignored_by_published=False,
            counted_by_trace=False,
        ),
    ),
    **dict.fromkeys(
        ("_attn_implementation", "_attn_implementation_internal"),
        Fixed(
            (None,),
            "it overrides the choice of flash or eager attention",
            ignored_by_published=False,
            counted_by_trace=False,
        ),
    ),
    "cache_implementation": Fixed(
        (None,),
        "it uses another kind of cache",
        ignored_by_published=False,
        counted_by_trace=False,
    ),
    **dict.fromkeys(
        ("num_beams", "num_beam_groups", "num_return_sequences"),
        Fixed(
            (1,),
            "it decodes several sequences per prompt",
            ignored_by_published=False,
            counted_by_trace=False,
        ),
    ),
}


_NOT_MODELLED_OF_RELATIVES: Final[Rules] = {
    "tile_tag": Fixed(("2D",), "it changes the layout of views"),
    "global_view_pos": Fixed(("head",), "it places the global view elsewhere"),
    "lm_head": Fixed((True,), "it leaves out the head"),
    "rm_head": Fixed((False,), "it adds a reward model's head"),
}


# --- what no figure depends on -----------------------------------------------------------------


_EVERYWHERE: Final = {
    "tells where the file comes from": (
        "_name_or_path",
        "name_or_path",
        "_commit_hash",
        "transformers_version",
        "architectures",
    ),
    "tells which model the file is for; a wrong one is rejected before any key is read": (
        "auto_map",
        "model_type",
    ),
    "the counted type is chosen outside the file": ("torch_dtype", "dtype"),
    "the counted kernel is chosen outside the file": ("attn_implementation",),
    "tells who chose the kernel": ("_attn_implementation_autoset",),
    "passes are counted with a cache, as `generate` runs them": ("use_cache",),
    "read in training only": (
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
    "for other frameworks": ("use_bfloat16", "tf_legacy_loss", "xla_device"),
    "for the tokenizer": ("tokenizer_class", "prefix"),
    "a token's id": (
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
    ),
    "controls how tokens are chosen from logits, outside the counted passes": (
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
    "the decoder's layers do not read it": (
        "is_decoder",
        "cross_attention_hidden_size",
        "chunk_size_feed_forward",
    ),
}
"""Keys that are harmless in every object of the file, by the reason."""


def key_table(own: Rules, built: Mapping[str, Config]) -> KeyTable:
    """Every key a relative knows.

    Args:
        own: Keys of its vision side, and of what it does unlike others.
        built: What its published code builds regardless of the file, by section.
    """
    named = _DECODER | NOT_MODELLED | _NOT_MODELLED_OF_RELATIVES | own
    return table_of(named, conditions_of, DECODER_DEFAULTS, "language_config", built)


def table_of(
    named: Rules,
    conditions: Callable[[Config], Mapping[str, bool]],
    defaults: Config,
    copy: str,
    built: Mapping[str, Config],
) -> KeyTable:
    """The table of keys by dotted path, which win, and of those that are harmless everywhere.

    Args:
        named: Rules by dotted path.
        conditions: As of the table.
        defaults: As of the table.
        copy: As of the table.
        built: As of the table.
    """
    everywhere: Rules = {
        key: Harmless(reason, everywhere=True)
        for reason, keys in _EVERYWHERE.items()
        for key in keys
    }
    rules = {tuple(name.split(".")): rule for name, rule in (everywhere | named).items()}
    sections = {path[:length] for path in rules for length in range(1, len(path))}
    return KeyTable(rules, sections, conditions, defaults, copy, built)
