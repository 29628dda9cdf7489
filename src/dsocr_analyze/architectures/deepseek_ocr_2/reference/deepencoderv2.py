"""The vision side: SAM, a Qwen2 decoder with learned queries as second encoder, and the projector.

SAM's n image tokens are followed by n queries, at which the encoder's output is read. Operators of
Qwen2's layers are those of transformers 4.46.3. Tensors live as long as in the published code, so
some names outlive their use or are reused early. In shapes: N images, T = 2 n, H heads, D head
size, d width, R resolution, g grid side.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from dsocr_analyze.architectures.architecture import GrowingCache
from dsocr_analyze.architectures.deepseek_ocr.reference import deepencoder
from dsocr_analyze.architectures.deepseek_ocr.reference.configuration_deepseek_v2 import (
    DeepseekV2Config,
)
from dsocr_analyze.architectures.deepseek_ocr.reference.deepencoder import (
    Attention,
    Block,
    ImageEncoderViT,
    LayerNorm2d,
    MLPBlock,
    MlpProjector,
    PatchEmbed,
    add_decomposed_rel_pos,
    get_abs_pos_sam,
    get_rel_pos,
    window_partition,
    window_unpartition,
)
from dsocr_analyze.architectures.deepseek_ocr.reference.modeling_deepseekv2 import (
    Cache,
    DeepseekV2MLP,
    DeepseekV2RMSNorm,
    LlamaAttention,
    LlamaRotaryEmbedding,
    repeat_kv,
)
from dsocr_analyze.architectures.views import tokens_per_side

__all__ = [
    "Attention",
    "Block",
    "CustomQwen2Decoder",
    "CustomQwen2ModelInner",
    "ImageEncoderViT",
    "LayerNorm2d",
    "MLPBlock",
    "MlpProjector",
    "PatchEmbed",
    "Qwen2Decoder2Encoder",
    "Qwen2DecoderLayer",
    "Qwen2MLP",
    "Qwen2RMSNorm",
    "Qwen2RotaryEmbedding",
    "Qwen2SdpaAttention",
    "add_decomposed_rel_pos",
    "build_qwen2_decoder_as_encoder",
    "build_sam_vit_b",
    "get_abs_pos_sam",
    "get_rel_pos",
    "window_partition",
    "window_unpartition",
]

# Constants of the published encoder that are not in config.json.
_LAYERS: Final = 24
_HEADS: Final = 14
_KEY_VALUE_HEADS: Final = 2
_MLP_WIDTH: Final = 4864
_VIEW_SIZES: Final = (768, 1024)


# ---------------------------------------------------------------------------------------- Qwen2


class Qwen2RMSNorm(DeepseekV2RMSNorm):
    """`weight * x / sqrt(mean(x^2) + eps)`, in fp32, like the decoder's."""


class Qwen2RotaryEmbedding(LlamaRotaryEmbedding):
    """Cosines and sines of positions times frequencies, like the decoder's."""


class Qwen2MLP(DeepseekV2MLP):
    """SwiGLU without biases, like the decoder's."""


class Qwen2SdpaAttention(LlamaAttention):
    """Grouped-query attention through SDPA, with biases on query, key and value only.

    `softmax(q k^T / sqrt(D) + mask) v` (Vaswani et al. 2017, eq. 1), the whole T x K product.
    """

    def __init__(self, config: DeepseekV2Config, layer_idx: int | None = None) -> None:
        super().__init__(config, layer_idx)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, config.hidden_size, bias=False)
        # As published, but never called: the model computes one table for all layers.
        self.rotary_emb = Qwen2RotaryEmbedding(config)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_value: Cache | None = None,
        output_attentions: bool = False,
        use_cache: bool = False,
        cache_position: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Cache | None]:
        """As `LlamaAttention`; causal without a mask; ValueError if weights are asked for."""
        if output_attentions:
            raise ValueError("output_attentions is True; SDPA returns no attention weights")
        query, key, value, *_tables = self._heads(
            hidden_states, position_ids, past_key_value, position_embeddings
        )
        key = repeat_kv(key, self.num_key_value_groups)
        value = repeat_kv(value, self.num_key_value_groups)
        mask = attention_mask
        if mask is not None:
            mask = mask[:, :, :, : key.shape[-2]]
            if query.is_cuda:  # as published, to work around a bug in a CUDA kernel
                query, key, value = (part.contiguous() for part in (query, key, value))
        attended = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None and query.shape[2] > 1,
        )
        attended = attended.transpose(1, 2).contiguous()
        attended = attended.view(*hidden_states.shape[:2], -1)
        return self.o_proj(attended), None, past_key_value


class Qwen2DecoderLayer(nn.Module):
    """`h = x + attention(norm(x))`, `h + mlp(norm(h))`."""

    def __init__(self, config: DeepseekV2Config, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = Qwen2SdpaAttention(config, layer_idx)
        self.mlp = Qwen2MLP(config)
        self.input_layernorm = Qwen2RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Qwen2RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_value: Cache | None = None,
        output_attentions: bool = False,
        use_cache: bool = False,
        cache_position: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """`[N, T, d]` -> `[N, T, d]`, followed by the cache if there is one."""
        attended, _, present = self.self_attn(
            hidden_states=self.input_layernorm(hidden_states),
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_value=past_key_value,
            output_attentions=output_attentions,
            use_cache=use_cache,
            cache_position=cache_position,
            position_embeddings=position_embeddings,
        )
        hidden_states = hidden_states + attended
        del attended
        hidden_states = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return (hidden_states, present) if use_cache else (hidden_states,)


class CustomQwen2ModelInner(nn.Module):
    """Qwen2's layers and final norm with a mixed mask and no token embedding."""

    def __init__(self, config: DeepseekV2Config) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(
            Qwen2DecoderLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.norm = Qwen2RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = Qwen2RotaryEmbedding(config)

    def forward(self, inputs_embeds: Tensor, token_type_ids: Tensor) -> BaseModelOutputWithPast:
        """The last hidden state `[N, T, d]`, and keys and values, which nothing reads.

        `token_type_ids` `[N, T]` are 0 for an image token, 1 for a query.
        """
        cache = GrowingCache()
        positions = torch.arange(0, inputs_embeds.shape[1], device=inputs_embeds.device)
        mask = _mixed_mask(inputs_embeds, token_type_ids)
        hidden = inputs_embeds
        tables = self.rotary_emb(hidden, positions.unsqueeze(0))
        outputs: tuple[Any, ...] = ()  # the last layer's outputs are held to the end
        for layer in self.layers:
            outputs = layer(
                hidden,
                attention_mask=mask,
                past_key_value=cache,
                use_cache=True,
                position_embeddings=tables,
            )
            hidden = outputs[0]
        hidden = self.norm(hidden)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden,
            past_key_values=tuple(cache),
        )


def _mixed_mask(embeds: Tensor, token_type_ids: Tensor) -> Tensor:
    """Additive mask `[N, 1, T, T]`: zero where a token may attend, the minimum elsewhere.

    Image tokens attend to one another, a query also to queries up to itself. Row by row, as
    published: every write is a kernel. Source: the vendor's `CustomQwen2Decoder`.
    """
    length = embeds.shape[1]
    masks = []
    for kinds in token_type_ids:
        mask = torch.full(
            (length, length),
            torch.finfo(embeds.dtype).min,
            dtype=embeds.dtype,
            device=embeds.device,
        )
        images = (kinds == 0).nonzero(as_tuple=True)[0]
        queries = (kinds == 1).nonzero(as_tuple=True)[0]
        sees_images = len(images) > 0
        if sees_images:
            mask[images[:, None], images] = 0.0
        for number, query in enumerate(queries, 1):
            if sees_images:
                mask[query, images] = 0.0
            mask[query, queries[:number]] = 0.0
        masks.append(mask)
    return torch.stack(masks, dim=0).unsqueeze(1)


class CustomQwen2Decoder(nn.Module):
    """Qwen2 with bidirectional attention among image tokens and causal attention of queries.

    ValueError unless attention is "sdpa".
    """

    def __init__(
        self,
        decoder_layer: int = _LAYERS,
        max_position_embeddings: int = 131072,
        hidden_dimension: int = 896,
        num_attention_heads: int = _HEADS,
        num_key_value_heads: int = _KEY_VALUE_HEADS,
        intermediate_size: int = _MLP_WIDTH,
        vocab_size: int = 151936,
        attn_implementation: str = "sdpa",
        rms_norm_eps: float = 1e-06,
        rope_theta: float = 1000000.0,
        attention_dropout: float = 0.0,
        hidden_act: str = "silu",
        initializer_range: float = 0.02,
    ) -> None:
        super().__init__()
        if attn_implementation != "sdpa":
            raise ValueError(
                f"attn_implementation is {attn_implementation!r}; the encoder has 'sdpa' only,"
                " which takes its mask"
            )
        self.model = CustomQwen2ModelInner(
            DeepseekV2Config(
                num_hidden_layers=decoder_layer,
                max_position_embeddings=max_position_embeddings,
                hidden_size=hidden_dimension,
                num_attention_heads=num_attention_heads,
                num_key_value_heads=num_key_value_heads,
                intermediate_size=intermediate_size,
                rms_norm_eps=rms_norm_eps,
                rope_theta=rope_theta,
                attention_bias=True,
                attention_dropout=attention_dropout,
                hidden_act=hidden_act,
                initializer_range=initializer_range,
            )
        )

    def forward(self, inputs_embeds: Tensor, token_type_ids: Tensor) -> BaseModelOutputWithPast:
        """As `CustomQwen2ModelInner`."""
        return self.model(inputs_embeds=inputs_embeds, token_type_ids=token_type_ids)


class Qwen2Decoder2Encoder(nn.Module):
    """Turns SAM's features into as many visual tokens, by a table of queries per view size.

    `max_query` is unused, as published.
    """

    def __init__(
        self,
        decoder_layer: int,
        hidden_dimension: int,
        num_attention_heads: int,
        num_key_value_heads: int,
        intermediate_size: int,
        max_query: int,
        attn_implementation: str = "sdpa",
        *,
        view_sizes: Sequence[int] = _VIEW_SIZES,
    ) -> None:
        super().__init__()
        self.model = CustomQwen2Decoder(
            decoder_layer=decoder_layer,
            hidden_dimension=hidden_dimension,
            num_attention_heads=num_attention_heads,
            num_key_value_heads=num_key_value_heads,
            intermediate_size=intermediate_size,
            attn_implementation=attn_implementation,
        )
        self._tables: dict[int, str] = {}
        for size in view_sizes:
            name, count = f"query_{size}", tokens_per_side(size) ** 2  # one per image token
            self._tables[count] = name
            self.add_module(name, nn.Embedding(count, hidden_dimension))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, d, g, g]` to visual tokens `[N, g g, d]`; ValueError without queries for so many."""
        x = x.flatten(2).transpose(1, 2)
        count, tokens, _ = x.shape
        queries = self._queries(tokens).unsqueeze(0).expand(count, -1, -1)
        combined = torch.cat([x, queries], dim=1)
        kinds = torch.cat(
            [
                torch.zeros(count, tokens, dtype=torch.long),
                torch.ones(count, tokens, dtype=torch.long),
            ],
            dim=1,
        )
        outputs = self.model(combined, kinds)
        return cast("Tensor", outputs.last_hidden_state[:, tokens:, :])

    def _queries(self, tokens: int) -> Tensor:
        """The table for `tokens` image tokens, `[n, d]`; its module is never called."""
        name = self._tables.get(tokens)
        if name is None:
            known = ", ".join(f"{count} ({table})" for count, table in self._tables.items())
            raise ValueError(
                f"the encoder has no queries for the {tokens} image tokens that SAM makes of each"
                f" view; it has {known or 'none at all'}"
            )
        return cast("Tensor", getattr(self, name).weight)


# ------------------------------------------------------------------------- built from the config


def _encoder_of(vision_config: Mapping[str, Any]) -> dict[str, Any]:
    """The encoder's arguments, from `vision_config.width["qwen2-0-5b"]`."""
    settings = vision_config["width"]["qwen2-0-5b"]
    return {
        "hidden_dimension": settings["dim"],
        "decoder_layer": settings.get("layers", _LAYERS),
        "num_attention_heads": settings.get("heads", _HEADS),
        "num_key_value_heads": settings.get("key_value_heads", _KEY_VALUE_HEADS),
        "intermediate_size": settings.get("intermediate_size", _MLP_WIDTH),
        "view_sizes": settings.get("view_sizes", _VIEW_SIZES),
    }


def build_sam_vit_b(vision_config: Mapping[str, Any]) -> ImageEncoderViT:
    """SAM of a config, as wide at its end as the encoder, as published."""
    width = _encoder_of(vision_config)["hidden_dimension"]
    return deepencoder.build_sam_vit_b(vision_config, features=width)


def build_qwen2_decoder_as_encoder(vision_config: Mapping[str, Any]) -> Qwen2Decoder2Encoder:
    """The encoder of a config, where all but `dim` have defaults."""
    return Qwen2Decoder2Encoder(**_encoder_of(vision_config), max_query=400)
