"""Configuration of the DeepSeek-V2 decoder: every dimension, with the published class's default."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from transformers import PretrainedConfig

__all__ = ["DECODER_DEFAULTS", "DeepseekV2Config"]

DECODER_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        # widths and depth
        "vocab_size": 102400,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 30,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.02,
        # attention
        "use_mla": True,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "use_cache": True,
        "pretraining_tp": 1,
        # multi-head latent attention
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        # mixture of experts
        "n_routed_experts": None,
        "n_shared_experts": None,
        "num_experts_per_tok": None,
        "moe_intermediate_size": 1407,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 0,
        "ep_size": 1,
        "scoring_func": "softmax",
        "topk_method": "gready",  # the published spelling; MoEGate reads it as "greedy"
        "n_group": None,
        "topk_group": None,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "aux_loss_alpha": 0.001,
        "seq_aux": True,
    }
)

_TOKEN_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "pad_token_id": None,
        "bos_token_id": 100000,
        "eos_token_id": 100001,
        "tie_word_embeddings": False,
    }
)


class DeepseekV2Config(PretrainedConfig):  # type: ignore[misc]  # untyped base
    """Dimensions of the decoder as attributes named by the keys of `config.json`.

    Args:
        **settings: Any key of `DECODER_DEFAULTS`, the token ids, and whatever else the file holds
            (`vision_config`, `projector_config`, ...), which become attributes unchanged.
            `num_key_value_heads` None means one for each attention head.

    Source: the vendor's `DeepseekV2Config` (names and defaults).
    """

    model_type = "deepseek_v2"
    keys_to_ignore_at_inference = ("past_key_values",)

    def __init__(self, **settings: Any) -> None:
        decoder = {key: settings.pop(key, default) for key, default in DECODER_DEFAULTS.items()}
        if decoder["num_key_value_heads"] is None:
            decoder["num_key_value_heads"] = decoder["num_attention_heads"]
        decoder["rms_norm_eps"] = float(decoder["rms_norm_eps"])
        for key, value in decoder.items():
            setattr(self, key, value)
        super().__init__(**{**_TOKEN_DEFAULTS, **settings})
