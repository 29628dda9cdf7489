"""Every layer family against a trace of that module alone, on `meta`."""

import pytest
import torch
from torch import nn
from tracing import Calls, meta, total, trace_of

from dsocr_analyze.costs import decoder_attention as attention_costs
from dsocr_analyze.costs.activations import ACTIVATIONS, activation
from dsocr_analyze.costs.conv2d import conv2d, conv2d_params
from dsocr_analyze.costs.embedding import embedding
from dsocr_analyze.costs.linear import linear, linear_params
from dsocr_analyze.costs.mla import LatentHeads, mla_attention, mla_params
from dsocr_analyze.costs.moe import Routing, gate, moe_params
from dsocr_analyze.costs.normalization import layer_norm, layer_norm_2d, layer_norm_fp32, rms_norm
from dsocr_analyze.costs.position_table import bicubic_resize, linear_resize
from dsocr_analyze.costs.projector import projector, projector_params, projector_side
from dsocr_analyze.costs.rope import dynamic_update, llama_tables, rotation, tables
from dsocr_analyze.costs.sam_attention import grid_attention, grid_attention_params
from dsocr_analyze.costs.self_attention import self_attention, self_attention_params
from dsocr_analyze.costs.sums import combined
from dsocr_analyze.costs.sums import total as all_modules
from dsocr_analyze.costs.swiglu import swiglu, swiglu_params
from dsocr_analyze.model.dimensions import ProjectorDimensions
from dsocr_analyze.model.reference import deepencoder, modeling_deepseekv2
from dsocr_analyze.model.reference.configuration_deepseek_v2 import DeepseekV2Config

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])


def on_meta(module, dtype):
    """The module on `meta`; only floating-point parameters have the dtype, tables stay fp32."""
    module = module.to("meta").eval()
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
    return module


def traced(module, dtype, *inputs, **named):
    return total(trace_of(on_meta(module, dtype), *inputs, **named))


def params(module):
    return sum(parameter.numel() for parameter in module.parameters())


@DTYPES
class TestSimpleLayers:
    @pytest.mark.parametrize("bias", [True, False])
    def test_linear(self, dtype, bias):
        layer = nn.Linear(7, 5, bias=bias)
        work = traced(layer, dtype, meta(2, 3, 7, dtype=dtype))
        assert work == linear(6, 7, 5, dtype.itemsize, bias=bias)
        assert params(layer) == linear_params(7, 5, bias=bias)

    @pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (4, 4, 0), (1, 1, 0)])
    def test_conv2d(self, dtype, kernel, stride, padding):
        layer = nn.Conv2d(3, 5, kernel, stride, padding)
        work = traced(layer, dtype, meta(2, 3, 9, 9, dtype=dtype))
        assert work == conv2d(
            2, 9, 3, 5, kernel, dtype.itemsize, stride=stride, padding=padding, bias=True
        )
        assert params(layer) == conv2d_params(3, 5, kernel, bias=True)

    def test_embedding(self, dtype):
        work = traced(nn.Embedding(11, 6), dtype, meta(2, 4, dtype=torch.long))
        assert work == embedding(8, 6, dtype.itemsize)

    def test_layer_norm(self, dtype):
        work = traced(nn.LayerNorm(6), dtype, meta(2, 4, 6, dtype=dtype))
        assert work == layer_norm(8, 6, dtype.itemsize)

    def test_layer_norm_in_fp32(self, dtype):
        work = traced(deepencoder.LayerNormfp32(6), dtype, meta(2, 4, 6, dtype=dtype))
        assert work == layer_norm_fp32(8, 6, dtype.itemsize)

    def test_layer_norm_over_channels(self, dtype):
        work = traced(deepencoder.LayerNorm2d(6), dtype, meta(2, 6, 3, 5, dtype=dtype))
        assert work == layer_norm_2d(2, 6, 15, dtype.itemsize)

    def test_rms_norm(self, dtype):
        norm = modeling_deepseekv2.DeepseekV2RMSNorm(6)
        assert traced(norm, dtype, meta(2, 4, 6, dtype=dtype)) == rms_norm(8, 6, dtype.itemsize)

    def test_activations(self, dtype):
        from transformers.activations import ACT2FN

        for name in ACTIVATIONS:
            work = traced(Calls(ACT2FN[name]), dtype, meta(3, 7, dtype=dtype))
            assert work == activation(name, 21, dtype.itemsize), name

    def test_swiglu(self, dtype):
        config = DeepseekV2Config(hidden_size=6, intermediate_size=10)
        mlp = modeling_deepseekv2.DeepseekV2MLP(config)
        work = traced(mlp, dtype, meta(2, 4, 6, dtype=dtype))
        assert work == all_modules(swiglu(8, 6, 10, dtype.itemsize))
        assert params(mlp) == swiglu_params(6, 10)


@DTYPES
class TestPositions:
    @pytest.mark.parametrize("side", [1, 3, 8, 11])
    def test_bicubic_tables(self, dtype, side):
        resize = Calls(deepencoder.get_abs_pos_sam)
        work = total(trace_of(resize, meta(1, 8, 8, 5, dtype=dtype), side))
        assert work == bicubic_resize(8, side, 5, dtype.itemsize)

    @pytest.mark.parametrize("rows", [5, 13, 21])
    def test_linear_tables(self, dtype, rows):
        from dsocr_analyze.costs.sam_attention import relative_positions

        side = (rows + 1) // 2
        work = total(trace_of(Calls(deepencoder.get_rel_pos), side, side, meta(13, 4, dtype=dtype)))
        assert work == relative_positions(13, side, 4, dtype.itemsize)
        assert linear_resize(13, 13, 4, dtype.itemsize).bytes_read == 0

    def test_llama_rope(self, dtype):
        config = DeepseekV2Config(hidden_size=24, num_attention_heads=3)
        rope = modeling_deepseekv2.LlamaRotaryEmbedding(config).to("meta")
        work = total(trace_of(rope, meta(1, dtype=dtype), meta(1, 5, dtype=torch.long)))
        assert work == llama_tables(5, 8, dtype.itemsize)

    @pytest.mark.parametrize(
        ("variant", "name"),
        [
            ("default", "DeepseekV2RotaryEmbedding"),
            ("linear", "DeepseekV2LinearScalingRotaryEmbedding"),
            ("dynamic", "DeepseekV2DynamicNTKScalingRotaryEmbedding"),
            ("yarn", "DeepseekV2YarnRotaryEmbedding"),
        ],
    )
    @pytest.mark.parametrize("length", [5, 100])
    def test_the_four_latent_ropes(self, dtype, variant, name, length):
        more = {} if variant == "default" else {"scaling_factor": 2.0}
        rope = getattr(modeling_deepseekv2, name)(8, max_position_embeddings=64, **more).to("meta")
        expected = tables(variant, length, 8, dtype.itemsize)
        if variant == "dynamic" and length > 64:
            expected = combined((expected, dynamic_update(8)))
        assert total(trace_of(rope, meta(1, dtype=dtype), length)) == expected

    def test_rotation(self, dtype):
        rotate = Calls(modeling_deepseekv2._rotated)
        tables_ = (meta(1, 1, 5, 8, dtype=dtype) for _ in range(2))
        work = total(trace_of(rotate, meta(2, 3, 5, 8, dtype=dtype), *tables_))
        assert work == rotation(2, 5, 3, 8, dtype.itemsize, pairs=False)


@DTYPES
class TestVisionAttention:
    @pytest.mark.parametrize("count", [1, 3])
    @pytest.mark.parametrize("heads", [1, 2])
    @pytest.mark.parametrize("side", [4, 7, 9])
    def test_grid_attention(self, dtype, count, heads, side):
        attention = deepencoder.Attention(12, heads, True, True, True, (7, 7))
        work = traced(attention, dtype, meta(count, side, side, 12, dtype=dtype))
        assert work == all_modules(grid_attention(count, side, 12, heads, 13, dtype.itemsize))
        assert params(attention) == grid_attention_params(12, heads, 13)

    @pytest.mark.parametrize("heads", [1, 3])
    def test_self_attention(self, dtype, heads):
        config = {"hidden_size": 12, "num_attention_heads": heads}
        attention = deepencoder.NoTPAttention(config)
        work = traced(attention, dtype, meta(2, 5, 12, dtype=dtype))
        assert work == all_modules(self_attention(2, 5, 12, heads, dtype.itemsize))
        assert params(attention) == self_attention_params(12)


def decoder_config(**changes):
    return DeepseekV2Config(
        **{
            "hidden_size": 24,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "attention_bias": False,
            "use_mla": False,
            **changes,
        }
    )


@DTYPES
@pytest.mark.parametrize("cached", [0, 6], ids=["prompt", "step"])
class TestDecoderAttention:
    def run(self, attention, dtype, cached, cache):
        new = 1 if cached else 5
        positions = meta(1, new, dtype=torch.long)
        mask = None if cached else meta(1, 1, 5, 5, dtype=dtype).expand(2, 1, 5, 5)
        held = modeling_deepseekv2.KeyValueCache(cache if cached else ())
        return traced(attention, dtype, meta(2, new, 24, dtype=dtype), mask, positions, held)

    @pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1), (1, 1)])
    @pytest.mark.parametrize("bias", [True, False])
    def test_eager(self, dtype, cached, heads, kv_heads, bias):
        config = decoder_config(
            num_attention_heads=heads, num_key_value_heads=kv_heads, attention_bias=bias
        )
        attention = modeling_deepseekv2.LlamaAttention(config)
        D = 24 // heads
        cache = [(meta(2, kv_heads, cached, D, dtype=dtype),) * 2]
        work = self.run(attention, dtype, cached, cache)
        new = 1 if cached else 5
        expected = attention_costs.decoder_attention(
            2, new, cached, 24, heads, kv_heads, D, dtype.itemsize, flash=False, bias=bias
        )
        assert work == all_modules(expected)
        assert params(attention) == attention_costs.decoder_attention_params(
            24, heads, kv_heads, D, bias=bias
        )

    @pytest.mark.parametrize("heads", [3, 1])
    @pytest.mark.parametrize("q_rank", [None, 10])
    @pytest.mark.parametrize("rope", [2, 4])
    def test_latent(self, dtype, cached, heads, q_rank, rope):
        config = decoder_config(
            use_mla=True,
            num_attention_heads=heads,
            q_lora_rank=q_rank,
            kv_lora_rank=6,
            qk_rope_head_dim=rope,
            qk_nope_head_dim=8,
            v_head_dim=5,
        )
        attention = modeling_deepseekv2.DeepseekV2Attention(config)
        latent = LatentHeads(heads, q_rank, 6, 8, rope, 5)
        cache = [(meta(2, 1, cached, rope, dtype=dtype), meta(2, 1, cached, 6, dtype=dtype))]
        work = self.run(attention, dtype, cached, cache)
        new = 1 if cached else 5
        expected = mla_attention(2, new, cached, 24, latent, dtype.itemsize, flash=False)
        assert work == all_modules(expected)
        assert params(attention) == mla_params(24, latent)


@DTYPES
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(
    ("method", "groups", "top_groups"),
    [
        ("greedy", 1, 1),
        ("group_limited_greedy", 4, 2),
        ("group_limited_greedy", 1, 1),
        ("group_limited_greedy", 8, 3),
        ("noaux_tc", 4, 2),
        ("noaux_tc", 1, 1),
    ],
)
@pytest.mark.parametrize("per_token", [1, 3])
def test_routers(dtype, scoring, normalized, method, groups, top_groups, per_token):
    config = decoder_config(
        n_routed_experts=8,
        num_experts_per_tok=per_token,
        scoring_func=scoring,
        topk_method=method,
        n_group=groups,
        topk_group=top_groups,
        norm_topk_prob=normalized,
    )
    router = modeling_deepseekv2.MoEGate(config)
    routing = Routing(8, per_token, scoring, method, groups, top_groups, normalized)
    work = traced(router, dtype, meta(2, 5, 24, dtype=dtype))
    assert work == gate(10, 24, routing, dtype.itemsize)
    assert params(router) == moe_params(24, 0, 0, routing)


PROJECTORS = {
    "identity": {"projector_type": "identity"},
    "linear": {"projector_type": "linear"},
    "mlp": {"projector_type": "mlp_gelu", "depth": 3},
    "downsampled": {"projector_type": "downsample_mlp_gelu", "downsample_ratio": 2},
    "downsampled, padded": {
        "projector_type": "downsample_mlp_gelu",
        "downsample_ratio": 4,
        "depth": 3,
        "mlp_ratio": 2,
    },
    "normalised": {"projector_type": "normlayer_downsample_mlp_gelu", "downsample_ratio": 2},
    "hybrid pair": {"projector_type": "low_high_hybrid_split_mlp_gelu", "depth": 2},
    "split features": {
        "projector_type": "hybrid_split_feature_mlp_gelu",
        "input_dim": (5, 3),
        "channel_div": 0.4,
        "depth": 2,
    },
    "split pair": {"projector_type": "low_high_split_mlp_gelu", "depth": 3},
    "pooled": {"projector_type": "mlp_gelu", "depth": 2, "token_pooling": True},
    "fused": {"projector_type": "linear", "conv_fusion": True},
}


@DTYPES
@pytest.mark.parametrize("name", PROJECTORS)
def test_projectors(dtype, name):
    dimensions = ProjectorDimensions(**{"input_dim": 8, "n_embed": 10} | PROJECTORS[name])
    module = deepencoder.MlpProjector(
        {
            "projector_type": dimensions.projector_type,
            "input_dim": dimensions.input_dim,
            "n_embed": dimensions.n_embed,
            "depth": dimensions.depth,
            "mlp_ratio": dimensions.mlp_ratio,
            "downsample_ratio": dimensions.downsample_ratio,
            "channel_div": dimensions.channel_div,
            "token_pooling": dimensions.token_pooling,
            "conv_fusion_high_low_features": dimensions.conv_fusion,
        }
    )
    features = meta(2, 36, 8, dtype=dtype)
    if dimensions.projector_type.startswith("low_high_split"):
        features = tuple(meta(2, 36, 5, dtype=dtype) for _ in range(2))
    elif dimensions.projector_type.startswith("low_high"):
        features = (features, features)
    elif dimensions.conv_fusion:
        features = meta(2, 2, 36, 8, dtype=dtype)
    module = on_meta(module, dtype)
    trace = trace_of(module, features)
    assert total(trace) == all_modules(projector(2, 6, dimensions, dtype.itemsize))
    assert params(module) == projector_params(dimensions)
    with torch.no_grad():
        assert module(features).shape[1] == projector_side(6, dimensions) ** 2
