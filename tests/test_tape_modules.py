"""Forwards of modules, step by step beside a trace of the reference's module alone.

Whole passes are compared in `test_tape_gate.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from importlib.metadata import version

import pytest
import torch
from sampling import every, sampled
from taped import (
    CONFIG,
    DTYPES,
    alone,
    assert_same,
    attend,
    decoder,
    features,
    latent,
    of_config,
    of_type,
    on_meta,
)
from taped_passes import WholeTape
from torch import nn
from tracing import Calls
from transformers.activations import ACT2FN

from dsocr_analyze.architectures.architecture import GrowingCache
from dsocr_analyze.architectures.deepseek_ocr import ClipDimensions, clip
from dsocr_analyze.architectures.deepseek_ocr.reference import deepencoder, modeling_deepseekv2
from dsocr_analyze.architectures.deepseek_ocr.reference.configuration_deepseek_v2 import (
    DeepseekV2Config,
)
from dsocr_analyze.architectures.deepseek_ocr_2 import EncoderDimensions, qwen2_encoder
from dsocr_analyze.architectures.deepseek_ocr_2.reference import deepencoderv2
from dsocr_analyze.architectures.ocr_family.attention import Pass, rotary_tables, rotated, swiglu
from dsocr_analyze.architectures.ocr_family.decoder import _gate, rotary_embedding
from dsocr_analyze.architectures.ocr_family.dimensions import (
    ProjectorDimensions,
    SamDimensions,
)
from dsocr_analyze.architectures.ocr_family.projector import projector
from dsocr_analyze.architectures.ocr_family.sam import sam
from dsocr_analyze.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT64
from dsocr_analyze.model.known_values import KnownValues
from dsocr_analyze.tape.modules import (
    ACTIVATIONS,
    conv2d,
    embedding,
    layer_norm,
    linear,
    rms_norm,
)

# --- small modules


def of_layer(build, *args, shape, forward, **options):
    """A module of torch on features of a shape, and its forward on as many."""

    def case(dtype):
        module = on_meta(build, *args, dtype=dtype, **options)
        return module, [of_type(dtype, *shape)], lambda t: forward(t, features(t, *shape))

    return case


def of_channels(count):
    """A norm over channels that lie first in memory."""

    def case(dtype):
        module, rows = on_meta(nn.LayerNorm, 5, dtype=dtype), count * 9
        x = of_type(dtype, count, 5, 3, 3).permute(0, 2, 3, 1)
        return module, [x], lambda t: layer_norm(t, features(t, rows, 5), rows, 5,
                                                 channels_first=True)  # fmt: skip

    return case


def of_embedding(dtype):
    module = on_meta(nn.Embedding, 11, 6, dtype=dtype)
    return module, [of_type(INT64, 2, 4)], lambda t: embedding(t, t.input(8, INT64), 11, 6)


def of_tables(batch, length):
    def case(dtype):
        config = DeepseekV2Config(hidden_size=24, num_attention_heads=3)
        rope = on_meta(modeling_deepseekv2.LlamaRotaryEmbedding, config, dtype=dtype)
        inputs = of_type(dtype, 1), of_type(INT64, batch, length)
        return rope, inputs, lambda t: rotary_tables(t, batch, length, 8)

    return case


def of_kept_tables(name, scaling, length):
    def case(dtype):
        more = {} if scaling is None else {"scaling_factor": 2.0}
        build = getattr(modeling_deepseekv2, f"DeepseekV2{name}RotaryEmbedding")
        rope = on_meta(build, 8, max_position_embeddings=64, dtype=dtype, **more)
        c = decoder(qk_rope_head_dim=8, rope_scaling=scaling, max_position_embeddings=64)
        return rope, (of_type(dtype, 1), length), lambda t: rotary_embedding(t, length, c)

    return case


def of_rotation(dtype):
    inputs = [of_type(dtype, 2, 3, 5, 8), *(of_type(dtype, 2, 1, 5, 8) for _ in range(2))]
    return Calls(modeling_deepseekv2._rotated), inputs, lambda t: rotated(
        t, features(t, 240), features(t, 80), features(t, 80)
    )  # fmt: skip


def of_router(method, groups, chosen, scoring, normalized, per_token):
    def case(dtype):
        keys = {
            "num_experts_per_tok": per_token,
            "scoring_func": scoring,
            "topk_method": method,
            "n_group": groups,
            "topk_group": chosen,
            "norm_topk_prob": normalized,
        }
        # The file's table of keys refuses some that the router's own code runs.
        c, config = decoder(**keys), DeepseekV2Config(**CONFIG | keys)
        router = on_meta(modeling_deepseekv2.MoEGate, config, dtype=dtype)
        return router, [of_type(dtype, 2, 5, 24)], lambda t: _gate(t, features(t, 10, 24), 10, c)

    return case


def of_activation(name):
    return of_layer(
        Calls, lambda x: ACT2FN[name](x), shape=(3, 7),
        forward=lambda t, x: ACTIVATIONS[name](t, x),
    )  # fmt: skip


def of_swiglu(act):
    config = DeepseekV2Config(hidden_size=6, intermediate_size=10, hidden_act=act)
    return of_layer(
        modeling_deepseekv2.DeepseekV2MLP, config, shape=(2, 4, 6),
        forward=lambda t, x: swiglu(t, x, 8, 6, 10, act),
    )  # fmt: skip


def of_conv2d(kernel, stride, padding, count, bias):
    options = {"stride": stride, "padding": padding, "bias": bias}
    return of_layer(
        nn.Conv2d, 3, 5, kernel, shape=(count, 3, 9, 9),
        forward=lambda t, x: conv2d(t, x, count, 9, 3, 5, kernel, **options), **options,
    )  # fmt: skip


CASES = {
    **{
        f"linear, bias {bias}": of_layer(
            nn.Linear, 7, 5, bias=bias, shape=(2, 3, 7),
            forward=functools.partial(linear, rows=6, d_in=7, d_out=5, bias=bias),
        )
        for bias in (False, True)
    },
    "embedding": of_embedding,
    "layer_norm": of_layer(
        nn.LayerNorm, 6, shape=(2, 4, 6), forward=lambda t, x: layer_norm(t, x, 8, 6)
    ),
    "layer_norm of channels first": of_channels(1),
    "layer_norm of several channels first": of_channels(2),
    "rms_norm": of_layer(
        modeling_deepseekv2.DeepseekV2RMSNorm, 6, shape=(2, 4, 6),
        forward=lambda t, x: rms_norm(t, x, 8, 6),
    ),
    "rotation": of_rotation,
    **{f"activation {name}": of_activation(name) for name in ACTIVATIONS},
    **{f"swiglu {act}": of_swiglu(act) for act in ACTIVATIONS},
    **{
        f"conv2d {sizes}": of_conv2d(*sizes[0], *sizes[1:])
        for sizes in itertools.product(
            ((3, 2, 1), (4, 4, 0), (1, 1, 0)), (1, 2), (False, True)
        )
    },
    **{
        f"rotary tables {sizes}": of_tables(*sizes) for sizes in itertools.product((1, 3), (1, 5))
    },
    **{
        f"kept tables {kind}, {length}": of_kept_tables(name, kind, length)
        for name, kind in (
            ("", None), ("LinearScaling", "linear"), ("DynamicNTKScaling", "dynamic"),
            ("Yarn", "yarn"),
        )
        for length in (5, 100)
    },
    **{
        f"router {method} {rest}": of_router(*method, *rest)
        for method in (
            ("greedy", 1, 1), ("group_limited_greedy", 1, 1), ("noaux_tc", 4, 2),
            ("group_limited_greedy", 8, 3), ("group_limited_greedy", 4, 2), ("noaux_tc", 1, 1),
        )
        for rest in itertools.product(("softmax", "sigmoid"), (True, False), (1, 3))
    },
}  # fmt: skip


@sampled(
    ("name", "dtype"),
    itertools.product(CASES, DTYPES),
    lambda number, _: number // 3 % 3 == number % 3,
    ids=lambda value: getattr(value, "name", value),
)
def test_a_module_is_that_of_a_trace(name, dtype):
    module, inputs, forward = CASES[name](dtype)
    assert_same(module, inputs, dtype, forward)


def test_activations_are_all_that_transformers_knows():
    assert set(ACTIVATIONS) <= set(ACT2FN)
    if version("transformers") == "4.46.3":  # others have added to it
        assert set(ACTIVATIONS) == set(ACT2FN)


# --- attention

PLAIN = [
    {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "attention_bias": bias}
    for heads, kv_heads, bias in (
        (4, 2, True), (4, 4, False), (4, 1, False), (1, 1, False), (12, 12, False),
    )
]  # fmt: skip
ATTENTIONS = PLAIN + [
    {"use_mla": True, "num_attention_heads": 3} | changes
    for changes in (
        {"q_lora_rank": 10, "qk_rope_head_dim": 2, "attention_bias": True},
        {},
        {"v_head_dim": 12},
        {"num_attention_heads": 1},
        {"num_attention_heads": 1, "q_lora_rank": 10, "v_head_dim": 12},
        *(
            {"rope_scaling": {"type": kind, "factor": 2.0}}
            for kind in ("linear", "dynamic", "yarn")
        ),
    )
]
PASSES = [
    (BFLOAT16, 1, 2, 0),  # a short prompt
    (FLOAT32, 3, 50, 0),
    (FLOAT16, 1, 1, 50),  # a step
    (BFLOAT16, 3, 1, 2),
]


@pytest.fixture
def _flash_attn(monkeypatch):
    """The reference finds flash-attn where the trace puts it: in transformers' own file."""
    from transformers import modeling_flash_attention_utils as found

    def flash_attn_func(*args, **kwargs):
        return found.flash_attn_func(*args, **kwargs)

    monkeypatch.setattr(modeling_deepseekv2, "flash_attn_func", flash_attn_func)


def inputs_of(dtype, p, sizes):
    """Features, mask, positions and cache of one pass, as the decoder hands them to a layer.

    Each of the cache's two tensors has `sizes` heads and features.
    """
    mask = None if p.flash else of_type(dtype, p.B, 1, p.T, p.keys)
    # Flash attention asks for values: whether positions restart.
    with KnownValues():
        ones = torch.ones(p.B, p.keys, dtype=torch.int64, device="meta")
        positions = (ones.cumsum(-1) - 1)[:, -p.T :]
    cache = GrowingCache()
    if p.past:
        cache.update(*(of_type(dtype, p.B, heads, p.past, size) for heads, size in sizes), 0)
    return of_type(dtype, p.B, p.T, 24), mask, positions, cache


@sampled(
    ("changes", "pass_", "flash"),
    itertools.product(ATTENTIONS, PASSES, (False, True)),
    every(5),
)
@pytest.mark.usefixtures("_flash_attn")
def test_attention_is_that_of_a_trace(changes, pass_, flash):
    dtype, *sizes = pass_
    c, p = of_config(**changes), Pass(*sizes, flash=flash)
    if c.use_mla:
        kind = "DeepseekV2FlashAttention2" if flash else "DeepseekV2Attention"
        held = [(1, c.qk_rope_head_dim), (1, c.kv_lora_rank)]
        held = [(c.heads, c.head_dim)] * 2 if flash else held
    else:
        kind = "LlamaFlashAttention2" if flash else "LlamaAttention"
        held = [(c.kv_heads, c.head_dim)] * 2
    config = DeepseekV2Config(**CONFIG | changes)
    module = on_meta(getattr(modeling_deepseekv2, kind), config, layer_idx=0, dtype=dtype)
    forward = latent if c.use_mla else attend
    assert_same(module, inputs_of(dtype, p, held), dtype, lambda t: forward(t, c, p))


# --- the vision side


def sam_case(draw):
    heads, patch, window = draw.choice([1, 2, 3]), draw.choice([2, 4]), draw.choice([2, 3, 4])
    layers = draw.randint(1, 3)
    g = draw.choice([window, 2 * window, draw.randint(2, 10)])
    c = SamDimensions(
        width=heads * draw.choice([2, 3]),
        layers=layers,
        heads=heads,
        global_attn_indexes=tuple(i for i in range(layers) if draw.random() < 0.5),
        downsample_channels=(draw.randint(1, 5), draw.randint(1, 5)),
        image_size=patch * draw.choice([g, window, draw.randint(1, 9)]),
        patch=patch,
        window=window,
        mlp_ratio=draw.choice([1, 4]),
        neck=draw.randint(2, 6),
    )
    return of_sam(c, draw.choice([1, 2, 3]), patch * g + draw.randrange(patch))


def of_sam(c, N, R):
    def module(dtype):
        encoder = on_meta(
            deepencoder.ImageEncoderViT,
            img_size=c.image_size,
            patch_size=c.patch,
            embed_dim=c.width,
            depth=c.layers,
            num_heads=c.heads,
            mlp_ratio=c.mlp_ratio,
            out_chans=c.neck,
            use_rel_pos=True,
            window_size=c.window,
            global_attn_indexes=c.global_attn_indexes,
            dtype=dtype,
        )
        with torch.device("meta"):
            encoder.downsample(c.neck, c.downsample_channels)
        return encoder.to(getattr(torch, dtype.name))

    return module, [(N, 3, R, R)], lambda t: sam(t, features(t, N, 3, R, R), N, R, c)


def clip_case(draw):
    heads, patch, q = draw.choice([1, 2, 3]), draw.choice([1, 2]), draw.randint(1, 5)
    c = ClipDimensions(
        width=heads * draw.choice([2, 3]),
        layers=draw.randint(1, 3),
        heads=heads,
        image_size=patch * draw.choice([q, 1, draw.randint(1, 6)]),
        patch_size=patch,
    )
    settings = {
        "num_layers": c.layers,
        "hidden_size": c.width,
        "num_attention_heads": c.heads,
        "ffn_hidden_size": 4 * c.width,
        "image_size": c.image_size,
        "patch_size": c.patch_size,
        "layernorm_epsilon": 1e-5,
    }
    N = draw.choice([1, 2, 3])
    return (
        lambda dtype: on_meta(deepencoder.VitModel, settings, dtype=dtype),
        [(N, 3, 64 * q, 64 * q), (N, c.width, q, q)],
        lambda t: clip(t, features(t, N, c.width, q, q), N, q, c),
    )


def drawn_encoder(draw):
    """Dimensions, views and tokens per side."""
    kv_heads = draw.choice([1, 1, 2, 3])
    heads = kv_heads * draw.choice([1, 2, 3])
    sizes = draw.sample([64, 128, 192, 256], 2)
    c = EncoderDimensions(
        width=heads * draw.choice([2, 4]),
        layers=draw.randint(1, 3),
        heads=heads,
        kv_heads=kv_heads,
        intermediate_size=draw.randint(1, 9),
        view_sizes=tuple(sizes),
    )
    return c, draw.choice([1, 2, 3]), sizes[0] // 64


def encoder_case(draw):
    c, N, q = drawn_encoder(draw)
    sizes = c.layers, c.width, c.heads, c.kv_heads, c.intermediate_size, 400
    build = functools.partial(
        on_meta, deepencoderv2.Qwen2Decoder2Encoder, *sizes, view_sizes=c.view_sizes
    )
    return (
        lambda dtype: build(dtype=dtype),
        [(N, c.width, q, q)],
        lambda t: qwen2_encoder(t, features(t, N, c.width, q, q), N, q, c),
    )


ENCODERS = {"sam_model": sam_case, "vision_model": clip_case, "qwen2_model": encoder_case}


@sampled(("name", "seed"), itertools.product(ENCODERS, range(40)), every(8))
def test_an_encoder_is_that_of_a_trace(name, seed):
    draw = random.Random(seed)
    build, shapes, forward = ENCODERS[name](draw)
    dtype = draw.choice(DTYPES)
    inputs = [of_type(dtype, *shape) for shape in shapes]
    assert_same(build(dtype), inputs, dtype, forward, f"model.{name}")


@sampled("seed", range(10), every(5))
def test_an_encoder_may_keep_its_mask(seed):
    draw = random.Random(seed)
    c, N, q = drawn_encoder(draw)
    dtype = draw.choice(DTYPES)

    def encoded(*, has_mask):
        def forward(t):
            return qwen2_encoder(t, features(t, N, c.width, q, q), N, q, c, has_mask=has_mask)

        return alone(forward, dtype, WholeTape)

    kept, made = encoded(has_mask=True), encoded(has_mask=False)
    of_mask = [kernel.operator for kernel in made.kernels if kernel not in kept.kernels]
    assert set(of_mask) == {"full", "eq", "nonzero", "scalar_tensor", "index_put", "stack"}
    assert [kernel for kernel in made.kernels if kernel.operator not in of_mask] == kept.kernels
    # The mask is neither made nor part of the activations.
    first = next(level for level in kept.levels if level[1] == "matmul")
    tokens = N * 2 * q * q * c.width * dtype.nbytes
    positions, frequencies = 2 * q * q, c.width // c.heads // 2
    assert first[2] == tokens + 8 * positions + 4 * (positions + positions * frequencies)


# --- projectors

DOWN = {"projector_type": "downsample_mlp_gelu"}
NORMED = {"projector_type": "normlayer_downsample_mlp_gelu"}
SPLIT = {
    "projector_type": "hybrid_split_feature_mlp_gelu", "input_dim": (5, 3), "channel_div": 0.4,
    "depth": 2,
}  # fmt: skip
VARIANTS = {
    "identity": {"projector_type": "identity"},
    "linear": {"projector_type": "linear"},
    "mlp": {"projector_type": "mlp_gelu", "depth": 3},
    "mlp of one linear": {"projector_type": "mlp_gelu"},
    "cells": DOWN,
    "cells through more layers": {**DOWN, "depth": 3, "mlp_ratio": 2},
    "normalised": NORMED,
    "normalised through more layers": {**NORMED, "depth": 3, "mlp_ratio": 2},
    "split features": SPLIT,
}


def built_projector(c):
    settings = dataclasses.asdict(c)
    settings["conv_fusion_high_low_features"] = settings.pop("conv_fusion")
    return deepencoder.MlpProjector(settings)


@sampled(
    ("name", "are_apart", "dtype"),
    itertools.product(VARIANTS, (False, True), DTYPES),
    every(4),
    ids=lambda value: getattr(value, "name", value),
)
def test_a_projector_is_that_of_a_trace(name, are_apart, dtype):
    c = ProjectorDimensions(**{"input_dim": 8, "n_embed": 10} | VARIANTS[name])
    module = on_meta(built_projector, c, dtype=dtype)
    for N, q in itertools.product((1, 2, 3), (1, 2, 3, 6)):
        T = q * q
        maps = of_type(dtype, N, 2 * T if are_apart else T, 8)[:, -T:]

        def forward(t, N=N, q=q):
            return projector(t, features(t, N, q * q, 8), N, q, c, are_apart=are_apart)

        assert_same(module, [maps], dtype, forward, "model.projector")
