"""Configuration of the DeepSeek-V2 decoder: every dimension, with the published class's default."""

import inspect
from typing import Any, ClassVar, Final

from transformers import PretrainedConfig

__all__ = ["DeepseekV2Config"]


class DeepseekV2Config(PretrainedConfig):  # type: ignore[misc]  # untyped base
    """The decoder's dimensions, named by the keys of `config.json`; its other keys are attributes.

    `num_key_value_heads` None is one per head. Attributes are the same under transformers from 4.46
    on. Source: the vendor's `DeepseekV2Config` (names, order and defaults).
    """

    model_type = "deepseek_v2"
    # In transformers 5 this is an alias of `rope_parameters`; here it is an attribute.
    rope_scaling: ClassVar[dict[str, Any] | None] = None

    def __init__(
        self,
        vocab_size: int = 102400,
        hidden_size: int = 4096,
        intermediate_size: int = 11008,
        moe_intermediate_size: int = 1407,
        num_hidden_layers: int = 30,
        num_attention_heads: int = 32,
        num_key_value_heads: int | None = 32,
        n_shared_experts: int | None = None,
        n_routed_experts: int | None = None,
        ep_size: int = 1,
        routed_scaling_factor: float = 1.0,
        kv_lora_rank: int | None = 512,
        q_lora_rank: int | None = 1536,
        qk_rope_head_dim: int = 64,
        v_head_dim: int = 128,
        qk_nope_head_dim: int = 128,
        topk_method: str = "gready",
        n_group: int | None = None,
        topk_group: int | None = None,
        num_experts_per_tok: int | None = None,
        moe_layer_freq: int = 1,
        first_k_dense_replace: int = 0,
        norm_topk_prob: bool = False,
        scoring_func: str = "softmax",
        aux_loss_alpha: float = 0.001,
        seq_aux: bool = True,
        hidden_act: str = "silu",
        max_position_embeddings: int = 2048,
        initializer_range: float = 0.02,
        rms_norm_eps: float = 1e-6,
        use_cache: bool = True,
        pad_token_id: int | None = None,
        bos_token_id: int | None = 100000,
        eos_token_id: int | None = 100001,
        pretraining_tp: int = 1,
        tie_word_embeddings: bool = False,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
        attention_bias: bool = False,
        attention_dropout: float = 0.0,
        use_mla: bool = True,
        **kwargs: Any,
    ) -> None:
        given = {key: value for key, value in locals().items() if key in _KEYS}
        if num_key_value_heads is None:
            given["num_key_value_heads"] = num_attention_heads
        given["rms_norm_eps"] = float(rms_norm_eps)
        super().__init__(**kwargs)
        # After the base class, which sets some of them too and in transformers 5 drops some.
        for key, value in given.items():
            setattr(self, key, value)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keeps the inherited constructor, which transformers 5 would replace in a subclass."""
        has_its_own = "__init__" in vars(cls)
        super().__init_subclass__(**kwargs)
        if not has_its_own and "__init__" in vars(cls):
            del cls.__init__

    @property
    def use_return_dict(self) -> bool:
        """Whether `forward` returns an object with named fields by default."""
        return bool(self.return_dict and not getattr(self, "torchscript", False))


_KEYS: Final = frozenset(inspect.signature(DeepseekV2Config).parameters) - {"kwargs"}
