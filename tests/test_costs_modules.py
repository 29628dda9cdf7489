"""Every layer family of the decoder, kernel by kernel, against a trace of that module alone.

Those of the vision side are in `test_costs_vision.py`.
"""

from collections import Counter
from importlib.metadata import version

import pytest
import torch
from sampling import every, sampled
from torch import nn
from tracing import Calls, meta

from dsocr_analyze.architectures.deepseek_ocr.reference import deepencoder, modeling_deepseekv2
from dsocr_analyze.architectures.deepseek_ocr.reference.configuration_deepseek_v2 import (
    DeepseekV2Config,
)
from dsocr_analyze.architectures.key_value_cache import GrowingCache
from dsocr_analyze.architectures.ocr_family.decoder import (
    cache_width,
    decoder_params,
    decoder_sections,
    head_params,
)
from dsocr_analyze.architectures.ocr_family.decoder_dimensions import DecoderDimensions
from dsocr_analyze.costs.activations import ACTIVATIONS, activation
from dsocr_analyze.costs.decoder_attention import decoder_attention, decoder_attention_params
from dsocr_analyze.costs.embedding import embedding
from dsocr_analyze.costs.linear import linear, linear_params
from dsocr_analyze.costs.mla import LatentHeads, mla_attention, mla_params
from dsocr_analyze.costs.moe import Routing, gate, moe_params
from dsocr_analyze.costs.normalization import layer_norm, layer_norm_2d, layer_norm_fp32, rms_norm
from dsocr_analyze.costs.rope import dynamic_update, llama_tables, rotation, tables
from dsocr_analyze.costs.sections import Expansion, Section, sections_work
from dsocr_analyze.costs.swiglu import swiglu, swiglu_params
from dsocr_analyze.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT64
from dsocr_analyze.kernels import merged, total_work
from dsocr_analyze.running.known_values import KnownValues
from dsocr_analyze.trace.single_module import trace_module

DTYPES = pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16, FLOAT32], ids=lambda d: d.name)
PASSES = pytest.mark.parametrize(
    ("dtype", "batch", "new", "cached"),
    [
        pytest.param(BFLOAT16, 1, 2, 0, id="short prompt"),
        pytest.param(FLOAT32, 3, 50, 0, id="prompts in fp32"),
        pytest.param(FLOAT16, 1, 1, 50, id="step in fp16"),
        pytest.param(BFLOAT16, 3, 1, 2, id="steps"),
    ],
)
FLASH = pytest.mark.parametrize("flash", [False, True], ids=["eager", "flash"])


def of_type(dtype, *shape):
    """A tensor on `meta`."""
    return meta(*shape, dtype=getattr(torch, dtype.name))


def on_meta(module, dtype):
    """The module on `meta`; only parameters have the dtype, tables stay fp32."""
    module = module.to("meta").eval()
    for parameter in module.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype.name))
    return module


def traced(module, *inputs, **named):
    return trace_module(module, torch.device("meta"), *inputs, **named)[0]


def assert_same(trace, *sections):
    """Both name the same kernels, each as often, and call the same modules."""
    expansion = Expansion()
    expansion.add(sections)
    assert Counter(merged(trace.kernels)) == Counter(merged(expansion.kernels))
    assert Counter(trace.calls) == expansion.module_calls


def alone(modules):
    """A module that is a model by itself; of one without children, its kernels."""
    return Section(("",), modules if isinstance(modules, dict) else {"": modules})


def params(module):
    return sum(parameter.numel() for parameter in module.parameters())


@DTYPES
class TestSimpleLayers:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("bias", [True, False])
    def test_linear(self, dtype, bias):
        layer = on_meta(nn.Linear(7, 5, bias=bias), dtype)
        trace = traced(layer, of_type(dtype, 2, 3, 7))
        assert_same(trace, alone(linear(6, 7, 5, dtype, bias=bias)))
        assert params(layer) == linear_params(7, 5, bias=bias)

    @pytest.mark.exhaustive
    def test_embedding(self, dtype):
        trace = traced(on_meta(nn.Embedding(11, 6), dtype), of_type(INT64, 2, 4))
        assert_same(trace, alone(embedding(8, 6, dtype)))

    def test_layer_norm(self, dtype):
        trace = traced(on_meta(nn.LayerNorm(6), dtype), of_type(dtype, 2, 4, 6))
        assert_same(trace, alone(layer_norm(8, 6, dtype)))

    def test_layer_norm_in_fp32(self, dtype):
        norm = on_meta(deepencoder.LayerNormfp32(6), dtype)
        assert_same(traced(norm, of_type(dtype, 2, 4, 6)), alone(layer_norm_fp32(8, 6, dtype)))

    def test_layer_norm_over_channels(self, dtype):
        norm = on_meta(deepencoder.LayerNorm2d(6), dtype)
        trace = traced(norm, of_type(dtype, 2, 6, 3, 5))
        assert_same(trace, alone(layer_norm_2d(2, 6, 15, dtype)))

    def test_rms_norm(self, dtype):
        norm = on_meta(modeling_deepseekv2.DeepseekV2RMSNorm(6), dtype)
        assert_same(traced(norm, of_type(dtype, 2, 4, 6)), alone(rms_norm(8, 6, dtype)))

    @pytest.mark.parametrize("name", ACTIVATIONS)
    def test_activations(self, dtype, name):
        from transformers.activations import ACT2FN

        trace = traced(Calls(lambda x: ACT2FN[name](x)), of_type(dtype, 3, 7))
        assert_same(trace, alone(activation(name, 21, dtype)))

    def test_activations_are_all_that_transformers_knows(self, dtype):
        from transformers.activations import ACT2FN

        assert set(ACTIVATIONS) <= set(ACT2FN)
        if version("transformers") == "4.46.3":  # others have added to it
            assert set(ACTIVATIONS) == set(ACT2FN)

    @pytest.mark.parametrize("act", ACTIVATIONS)
    def test_swiglu(self, dtype, act):
        config = DeepseekV2Config(hidden_size=6, intermediate_size=10, hidden_act=act)
        mlp = on_meta(modeling_deepseekv2.DeepseekV2MLP(config), dtype)
        trace = traced(mlp, of_type(dtype, 2, 4, 6))
        assert_same(trace, alone(swiglu(8, 6, 10, dtype, act)))
        assert params(mlp) == swiglu_params(6, 10)


@DTYPES
class TestPositions:
    @pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 5), (3, 1), (3, 5)])
    def test_llama_rope(self, dtype, batch, length):
        config = DeepseekV2Config(hidden_size=24, num_attention_heads=3)
        rope = modeling_deepseekv2.LlamaRotaryEmbedding(config).to("meta")
        trace = traced(rope, of_type(dtype, 1), of_type(INT64, batch, length))
        assert_same(trace, alone(llama_tables(batch, length, 8, dtype)))

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
        expected = tables(variant, length, 8, dtype)
        if variant == "dynamic" and length > 64:
            expected = dynamic_update(8) + expected
        assert_same(traced(rope, of_type(dtype, 1), length), alone(expected))

    def test_rotation(self, dtype):
        rotate = Calls(modeling_deepseekv2._rotated)
        cosines_and_sines = (of_type(dtype, 2, 1, 5, 8) for _ in range(2))
        trace = traced(rotate, of_type(dtype, 2, 3, 5, 8), *cosines_and_sines)
        assert_same(trace, alone(rotation(2, 5, 3, 8, dtype, pairs=False)))


CONFIG = {
    "hidden_size": 24,
    "vocab_size": 50,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "moe_intermediate_size": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "attention_bias": False,
    "use_mla": False,
    "q_lora_rank": None,
    "kv_lora_rank": 6,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 5,
    "max_position_embeddings": 20,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "n_group": 1,
    "topk_group": 1,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}


def decoder_config(**changes):
    return DeepseekV2Config(**CONFIG | changes)


@pytest.fixture
def flash_attention(monkeypatch):
    """The reference finds flash-attn where the trace puts it: in transformers' own file."""
    from transformers import modeling_flash_attention_utils as found

    def flash_attn_func(*args, **kwargs):
        return found.flash_attn_func(*args, **kwargs)

    monkeypatch.setattr(modeling_deepseekv2, "flash_attn_func", flash_attn_func)


def mask_and_positions(batch, new, cached):
    """What `generate` passes for prompts without padding: ones `[B, K]`, positions `[B, T]`."""
    # Flash attention asks both for values: whether there is padding, whether positions restart.
    with KnownValues():
        mask = torch.ones(batch, cached + new, dtype=torch.int64, device="meta")
        return mask, (mask.cumsum(-1) - 1)[:, -new:]


def cache_of(dtype, batch, cached, sizes, layers=1):
    """The cache that passes run over; each layer holds tensors of the sizes [heads, features]."""
    cache = GrowingCache()
    for layer_idx in range(layers if cached else 0):
        cache.update(*(of_type(dtype, batch, n, cached, size) for n, size in sizes), layer_idx)
    return cache


def attention_inputs(dtype, batch, new, cached, sizes, *, flash):
    """Features, mask, positions and cache of one pass, as the decoder hands them to a layer."""
    mask = None if flash else of_type(dtype, batch, 1, new, cached + new)
    _, positions = mask_and_positions(batch, new, cached)
    held = cache_of(dtype, batch, cached, sizes)
    return of_type(dtype, batch, new, 24), mask, positions, held


@PASSES
@FLASH
@pytest.mark.usefixtures("flash_attention")
class TestDecoderAttention:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("heads", "kv_heads", "bias"),
        [(4, 4, False), (4, 2, True), (4, 1, False), (1, 1, False), (12, 12, False)],
    )
    def test_plain(self, dtype, batch, new, cached, flash, heads, kv_heads, bias):
        config = decoder_config(
            num_attention_heads=heads, num_key_value_heads=kv_heads, attention_bias=bias
        )
        kind = "LlamaFlashAttention2" if flash else "LlamaAttention"
        attention = on_meta(getattr(modeling_deepseekv2, kind)(config, layer_idx=0), dtype)
        D = 24 // heads
        cache = [(kv_heads, D), (kv_heads, D)]
        inputs = attention_inputs(dtype, batch, new, cached, cache, flash=flash)
        expected = decoder_attention(
            batch, new, cached, 24, heads, kv_heads, D, dtype, flash=flash, bias=bias
        )
        assert_same(traced(attention, *inputs), alone(expected))
        assert params(attention) == decoder_attention_params(24, heads, kv_heads, D, bias=bias)

    @pytest.mark.parametrize(
        "latent",
        [
            LatentHeads(3, None, 6, 8, 4, 5),
            LatentHeads(3, 10, 6, 8, 2, 5, bias=True),
            LatentHeads(3, None, 6, 8, 4, 12),
            LatentHeads(1, None, 6, 8, 4, 5),
            LatentHeads(1, 10, 6, 8, 4, 12),
            LatentHeads(3, None, 6, 8, 4, 5, "linear", 20),
            LatentHeads(3, None, 6, 8, 4, 5, "dynamic", 20),
            LatentHeads(3, None, 6, 8, 4, 5, "yarn", 20),
        ],
    )
    def test_latent(self, dtype, batch, new, cached, flash, latent):
        scaling = None
        if latent.variant != "default":
            scaling = {"type": latent.variant, "factor": 2.0}
        config = decoder_config(
            use_mla=True,
            num_attention_heads=latent.heads,
            q_lora_rank=latent.q_rank,
            kv_lora_rank=latent.kv_rank,
            qk_rope_head_dim=latent.rope,
            qk_nope_head_dim=latent.nope,
            v_head_dim=latent.value,
            rope_scaling=scaling,
            attention_bias=latent.bias,
        )
        kind = "DeepseekV2FlashAttention2" if flash else "DeepseekV2Attention"
        attention = on_meta(getattr(modeling_deepseekv2, kind)(config, layer_idx=0), dtype)
        cache = [(1, latent.rope), (1, latent.kv_rank)]
        if flash:
            cache = [(latent.heads, latent.query)] * 2
        inputs = attention_inputs(dtype, batch, new, cached, cache, flash=flash)
        expected = mla_attention(batch, new, cached, 24, latent, dtype, flash=flash)
        assert_same(traced(attention, *inputs), alone(expected))
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
        num_experts_per_tok=per_token,
        scoring_func=scoring,
        topk_method=method,
        n_group=groups,
        topk_group=top_groups,
        norm_topk_prob=normalized,
    )
    router = on_meta(modeling_deepseekv2.MoEGate(config), dtype)
    routing = Routing(8, per_token, scoring, method, groups, top_groups, normalized)
    trace = traced(router, of_type(dtype, 2, 5, 24))
    assert_same(trace, alone(gate(10, 24, routing, dtype)))
    assert params(router) == moe_params(24, 0, 0, routing)


DECODERS = {
    "plain": {},
    "dense": {"n_routed_experts": None},
    "all mixed": {"first_k_dense_replace": 0},
    "every other layer": {"moe_layer_freq": 2, "num_hidden_layers": 5},
    "no shared experts": {"n_shared_experts": None},
    "more experts than choices": {"n_routed_experts": 96, "num_experts_per_tok": 1},
    "one expert": {"n_routed_experts": 1, "num_experts_per_tok": 1},
    "another activation": {"hidden_act": "gelu"},
    "grouped": {"num_key_value_heads": 2, "attention_bias": True},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "yarn": {"rope_scaling": {"type": "yarn", "factor": 2.0}},
    "group-limited": {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    "corrected": {
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
    },
    "latent": {"use_mla": True},
    "latent, low-rank queries": {"use_mla": True, "q_lora_rank": 7},
}


def decoder_of(config, *, flash):
    """A decoder with its head; transformers refuses to build flash layers without the package."""
    model = modeling_deepseekv2.DeepseekV2ForCausalLM(config)
    if flash:
        inner = model.model
        inner.config._attn_implementation = "flash_attention_2"
        inner.layers = nn.ModuleList(
            modeling_deepseekv2.DeepseekV2DecoderLayer(inner.config, index)
            for index in range(config.num_hidden_layers)
        )
    return model


@PASSES
@FLASH
@sampled("name", DECODERS, every(6))
@pytest.mark.usefixtures("flash_attention")
def test_decoders(dtype, batch, new, cached, flash, name):
    decoder = DecoderDimensions.from_config(CONFIG | DECODERS[name])
    model = on_meta(decoder_of(decoder_config(**DECODERS[name]), flash=flash), dtype)
    sizes = [(decoder.kv_heads, decoder.head_dim)] * 2
    if decoder.use_mla and flash:
        sizes = [(decoder.heads, decoder.qk_nope_head_dim + decoder.qk_rope_head_dim)] * 2
    elif decoder.use_mla:
        sizes = [(1, decoder.qk_rope_head_dim), (1, decoder.kv_lora_rank)]
    assert cache_width(decoder, flash=flash) == sum(heads * size for heads, size in sizes)
    mask, positions = mask_and_positions(batch, new, cached)
    trace = traced(
        model,
        of_type(INT64, batch, new),
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache_of(dtype, batch, cached, sizes, decoder.layers),
        use_cache=True,
    )
    sections = decoder_sections(batch, new, cached, decoder, dtype, flash=flash, each_expert=True)
    assert_same(trace, *sections)
    work = total_work(kernel.total for kernel in trace.kernels)
    together = decoder_sections(batch, new, cached, decoder, dtype, flash=flash)
    assert work == sections_work(sections) == sections_work(together)
    assert params(model) == decoder_params(decoder) + head_params(decoder)
