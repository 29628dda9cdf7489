"""Forwards of modules, step by step beside a trace of the reference's module, and by hand.

Whole passes are compared in `test_tape_gate.py`.
"""

import dataclasses
import functools
import itertools
from collections import Counter
from importlib.metadata import version

import pytest
import torch
from sampling import every, sampled
from taped_passes import WholeTape
from torch import nn
from traced_passes import levels_of
from tracing import Calls, LevelRecorder, Net, meta
from transformers.activations import ACT2FN

from dsocr_analyze import figures, tape
from dsocr_analyze.architectures.deepseek_ocr import ClipDimensions, _attention as clip_attention
from dsocr_analyze.architectures.deepseek_ocr.reference import (
    configuration_deepseek_v2,
    deepencoder,
    modeling_deepseekv2,
)
from dsocr_analyze.architectures.deepseek_ocr_2 import EncoderDimensions, qwen2_encoder
from dsocr_analyze.architectures.ocr_family.attention import (
    Pass,
    _check_positions,
    attention,
    cached,
    flash_attention,
    lm_head,
    rotary_tables,
)
from dsocr_analyze.architectures.ocr_family.decoder import (
    _gate,
    latent_attention,
    mixture,
    rotary_embedding,
)
from dsocr_analyze.architectures.ocr_family.dimensions import (
    DecoderDimensions,
    ProjectorDimensions,
    SamDimensions,
)
from dsocr_analyze.architectures.ocr_family.vision import (
    _attention as grid_attention,
    _layer_norm_2d,
    _relative_positions,
    absolute_positions,
    projector,
)
from dsocr_analyze.kernels import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT64,
    Attention,
    Convolution,
    Gemm,
    total_work,
)
from dsocr_analyze.model.forward import running
from dsocr_analyze.tape import Tape
from dsocr_analyze.tape.modules import (
    ACTIVATIONS,
    bicubic,
    conv2d,
    embedding,
    interpolated,
    layer_norm,
    linear,
    rms_norm,
    rotated,
    swiglu,
)
from dsocr_analyze.trace.passes import recorded_flash_attention

DTYPES = (BFLOAT16, FLOAT16, FLOAT32)

# --- alone ---------------------------------------------------------------------------------------


def alone(forward, dtype=BFLOAT16, kind=Tape, **options):
    """A tape of one call of a forward that takes nothing but the tape; nothing is left alive."""
    tape = kind(dtype, **options)
    output = tape.call("", forward)
    del output
    tape.check_nothing_is_left()
    return tape


def features(tape, *shape):
    """An input of this shape in the tape's type, which is no activation."""
    n = 1
    for size in shape:
        n = size * n
    return tape.input(n, tape.dtype)


def summed(kernels):
    return total_work(kernel.total for kernel in kernels)


def params(tape):
    return sum(n for _, _, n in tape.weights)


# --- decoders ------------------------------------------------------------------------------------

CONFIG = {
    "hidden_size": 24,
    "vocab_size": 50,
    "num_hidden_layers": 1,
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
    "first_k_dense_replace": 0,
    "moe_layer_freq": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "n_group": 1,
    "topk_group": 1,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}


def decoder(**fields):
    """Dimensions with any fields, also some that no config file gives."""
    return dataclasses.replace(DecoderDimensions.from_config(CONFIG), **fields)


def attend(t, c, p, forward=attention):
    """One pass of attention; a mask unless it is by flash."""
    mask = None if p.flash else features(t, p.tokens, p.keys)
    return forward(t, features(t, p.tokens, c.hidden_size), mask, p, c)


def latent(t, c, p):
    return attend(t, c, p, latent_attention)


# --- beside a trace ------------------------------------------------------------------------------


def of_type(dtype, *shape):
    """A tensor on `meta`."""
    return meta(*shape, dtype=getattr(torch, dtype.name))


def on_meta(build, *args, dtype, **kwargs):
    """What `build` makes, on `meta`; only parameters have the type, tables stay fp32."""
    with torch.device("meta"):
        module = build(*args, **kwargs).eval()
    for parameter in module.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype.name))
    return module


def expanded(kernels):
    """Records of single calls, each with its number."""
    numbers = Counter()
    for kernel in kernels:
        numbers[kernel._replace(calls=1)] += kernel.calls
    return numbers


def assert_same(module, inputs, dtype, forward):
    """A forward of a tape notes, step by step, what a trace of the module does on inputs on meta.

    It also owns the module's parameters.
    """
    recorder = LevelRecorder(module)
    with running(torch.device("meta"), recorded_flash_attention(recorder)), recorder:
        trace = recorder.begin()
        module(*inputs)
    assert not trace.unknown
    whole, traced = alone(forward, dtype, WholeTape), levels_of(trace)
    for step, (ours, theirs) in enumerate(itertools.zip_longest(whole.levels, traced)):
        assert ours == theirs, step
    assert expanded(whole.kernels) == expanded(trace.kernels)
    if traced:
        highest = max(traced, key=lambda level: level.nbytes)
        assert whole.peak == figures.Peak(highest.nbytes, highest.path)
    assert Counter(path for path, *_ in whole.calls) == Counter(trace.calls)
    owned = {f"{path}.{name}".strip("."): n for path, name, n in whole.weights}
    assert owned == {name: each.numel() for name, each in module.named_parameters()}

    copied = alone(forward, dtype)
    assert expanded(copied.kernels) == expanded(whole.kernels)
    for name in ("calls", "weights", "savings", "peak"):
        assert getattr(copied, name) == getattr(whole, name)


# --- small modules


def of_module(build, *args, inputs, forward, **options):
    """A module, its inputs by shape, type or value, and its forward on a tape."""

    def case(dtype):
        module = on_meta(build, *args, dtype=dtype, **options)
        return module, [each(dtype) if callable(each) else each for each in inputs], forward

    return case


def typed(*shape):
    """An input of the module's type."""
    return lambda dtype: of_type(dtype, *shape)


def of_layer(build, *args, shape, forward, **options):
    """A module on features of a shape, and its forward on as many."""
    return of_module(
        build, *args, inputs=[typed(*shape)], **options,
        forward=lambda t: forward(t, features(t, *shape)),
    )  # fmt: skip


def of_channels(count):
    """A norm over channels that lie first in memory."""
    return of_module(
        nn.LayerNorm, 5,
        inputs=[lambda dtype: of_type(dtype, count, 5, 3, 3).permute(0, 2, 3, 1)],
        forward=lambda t: layer_norm(
            t, features(t, count * 9, 5), count * 9, 5, channels_first=True
        ),
    )  # fmt: skip


def of_tables(batch, length):
    return of_module(
        modeling_deepseekv2.LlamaRotaryEmbedding,
        configuration_deepseek_v2.DeepseekV2Config(hidden_size=24, num_attention_heads=3),
        inputs=[typed(1), of_type(INT64, batch, length)],
        forward=lambda t: rotary_tables(t, batch, length, 8),
    )


def of_kept_tables(name, scaling, length):
    c = decoder(qk_rope_head_dim=8, rope_scaling=scaling, max_position_embeddings=64)
    return of_module(
        getattr(modeling_deepseekv2, f"DeepseekV2{name}RotaryEmbedding"), 8,
        max_position_embeddings=64, **({} if scaling is None else {"scaling_factor": 2.0}),
        inputs=[typed(1), length], forward=lambda t: rotary_embedding(t, length, c),
    )  # fmt: skip


def called_in_turn(net, x):
    for child in net.children():
        child(x)


def of_each(layers, *shape):
    """Modules by name, and their forwards, one after the other on features of a shape."""

    def build():
        return Net(called_in_turn, **{name: make() for name, (make, _) in layers.items()})

    def forward(t, x):
        for name, (_, each) in layers.items():
            t.call(name, each, x)

    return of_layer(build, shape=shape, forward=forward)


def router(method, groups, chosen, scoring, normalized, per_token):
    keys = {
        "num_experts_per_tok": per_token, "scoring_func": scoring, "topk_method": method,
        "n_group": groups, "topk_group": chosen, "norm_topk_prob": normalized,
    }  # fmt: skip
    # The file's table of keys refuses some that the router's own code runs.
    config = configuration_deepseek_v2.DeepseekV2Config(**CONFIG | keys)
    return (
        functools.partial(modeling_deepseekv2.MoEGate, config),
        lambda t, x: _gate(t, x, 10, decoder(**keys)),
    )


def convolution(kernel, stride, padding, bias):
    options = {"stride": stride, "padding": padding, "bias": bias}
    return (
        functools.partial(nn.Conv2d, 3, 5, kernel, **options),
        lambda t, x: conv2d(t, x, x.n // (3 * 9 * 9), 9, 3, 5, kernel, **options),
    )


CASES = {
    **{
        f"linear, bias {bias}": of_layer(
            nn.Linear, 7, 5, bias=bias, shape=(2, 3, 7),
            forward=functools.partial(linear, rows=6, d_in=7, d_out=5, bias=bias),
        )
        for bias in (False, True)
    },
    "embedding": of_module(
        nn.Embedding, 11, 6, inputs=[of_type(INT64, 2, 4)],
        forward=lambda t: embedding(t, t.input(8, INT64), 11, 6),
    ),
    "layer_norm": of_layer(
        nn.LayerNorm, 6, shape=(2, 4, 6), forward=lambda t, x: layer_norm(t, x, 8, 6)
    ),
    "layer_norm of channels first": of_channels(1),
    "layer_norm of several channels first": of_channels(2),
    "rms_norm": of_layer(
        modeling_deepseekv2.DeepseekV2RMSNorm, 6, shape=(2, 4, 6),
        forward=lambda t, x: rms_norm(t, x, 8, 6),
    ),
    "rotation": of_module(
        Calls, modeling_deepseekv2._rotated, inputs=[typed(2, 3, 5, 8), *[typed(2, 1, 5, 8)] * 2],
        forward=lambda t: rotated(t, features(t, 240), features(t, 80), features(t, 80)),
    ),
    "activations": of_each(
        {
            name: (functools.partial(ACT2FN.__getitem__, name), forward)
            for name, forward in ACTIVATIONS.items()
        },
        3, 7,
    ),
    "swiglu": of_layer(
        modeling_deepseekv2.DeepseekV2MLP,
        configuration_deepseek_v2.DeepseekV2Config(hidden_size=6, intermediate_size=10),
        shape=(2, 4, 6), forward=lambda t, x: swiglu(t, x, 8, 6, 10, "silu"),
    ),
    **{
        f"convolutions of {count}": of_each(
            {
                f"{kernel} {bias}": convolution(kernel, stride, padding, bias)
                for kernel, stride, padding in ((3, 2, 1), (4, 4, 0), (1, 1, 0))
                for bias in (False, True)
            },
            count, 3, 9, 9,
        )
        for count in (1, 2)
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
    "routers": of_each(
        {
            f"{method} {rest}": router(*method, *rest)
            for method in (
                ("greedy", 1, 1), ("group_limited_greedy", 1, 1), ("noaux_tc", 4, 2),
                ("group_limited_greedy", 8, 3), ("group_limited_greedy", 4, 2), ("noaux_tc", 1, 1),
            )
            for rest in itertools.product(("softmax", "sigmoid"), (True, False), (1, 3))
        },
        2, 5, 24,
    ),
}  # fmt: skip


@sampled(
    ("name", "dtype"),
    itertools.product(CASES, DTYPES),
    lambda number, _: number // 3 % 3 == number % 3,  # each in one type
    ids=lambda value: getattr(value, "name", value),
)
def test_a_module_is_that_of_a_trace(name, dtype):
    module, inputs, forward = CASES[name](dtype)
    assert_same(module, inputs, dtype, forward)


def test_activations_are_all_that_transformers_knows():
    assert set(ACTIVATIONS) <= set(ACT2FN)
    if version("transformers") == "4.46.3":  # others have added to it
        assert set(ACTIVATIONS) == set(ACT2FN)


# --- the second encoder's mask


@pytest.mark.parametrize(
    ("heads", "kv_heads", "N", "q", "dtype"), [(4, 2, 3, 2, BFLOAT16), (3, 1, 1, 3, FLOAT32)]
)
def test_an_encoder_may_keep_its_mask(heads, kv_heads, N, q, dtype):
    c = EncoderDimensions(
        hidden_size=4 * heads, layers=2, heads=heads, kv_heads=kv_heads, head_dim=4,
        intermediate_size=5, hidden_act="silu", view_sizes=(64 * q,),
    )  # fmt: skip

    def encoded(t, *, has_mask):
        return qwen2_encoder(t, features(t, N, c.hidden_size, q, q), N, q, c, has_mask=has_mask)

    kept, made = (
        alone(functools.partial(encoded, has_mask=has_mask), dtype, WholeTape)
        for has_mask in (True, False)
    )
    of_mask = [kernel.operator for kernel in made.kernels if kernel not in kept.kernels]
    assert set(of_mask) == {"full", "eq", "nonzero", "scalar_tensor", "index_put", "stack"}
    assert [kernel for kernel in made.kernels if kernel.operator not in of_mask] == kept.kernels


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
    every(7),
    ids=lambda value: getattr(value, "name", value),
)
def test_a_projector_is_that_of_a_trace(name, are_apart, dtype):
    c = ProjectorDimensions(**{"input_dim": 8, "n_embed": 10} | VARIANTS[name])
    module = on_meta(built_projector, c, dtype=dtype)
    for N, q in ((1, 1), (1, 2), (2, 3), (3, 6)):
        T = q * q
        maps = of_type(dtype, N, 2 * T if are_apart else T, 8)[:, -T:]

        def forward(t, N=N, q=q):
            return projector(t, features(t, N, q * q, 8), N, q, c, are_apart=are_apart)

        assert_same(module, [maps], dtype, forward)


# --- forwards against integers worked out by hand; the arithmetic is the derivation --------------

BF16, FP16, FP32 = BFLOAT16, FLOAT16, FLOAT32
E = BF16.nbytes


def records(forward, dtype=BF16, *, path=None, part=slice(None), of=None):
    """What a forward notes when it is asked for: of one module, some of it, or some operators."""

    def run():
        t = alone(forward, dtype)
        found = [each for each in t.kernels if path in (None, each.path)][part]
        return [kernel for kernel in found if of is None or kernel.operator in of]

    return run


# --- dimensions


def heads_of(heads, kv_heads, D, width, **more):
    return decoder(heads=heads, kv_heads=kv_heads, head_dim=D, hidden_size=width, **more)


class SharedOf6(DecoderDimensions):
    """With a width of the shared experts that is no multiple of a routed one's."""

    shared_intermediate_size = 6


def experts_of(E, k, *, shared=0, **more):
    c = decoder(
        hidden_size=3, n_routed_experts=E, num_experts_per_tok=k, moe_intermediate_size=7,
        n_shared_experts=None, **more,
    )  # fmt: skip
    return SharedOf6(**dataclasses.asdict(c)) if shared else c


LATENT = decoder(
    use_mla=True,
    hidden_size=11,
    heads=3,
    head_dim=6,
    q_lora_rank=7,
    kv_lora_rank=6,
    qk_nope_head_dim=4,
    qk_rope_head_dim=2,
    v_head_dim=5,
)
WIDER = dataclasses.replace(LATENT, qk_rope_head_dim=4, head_dim=8)
GROUPED = heads_of(4, 2, 5, 24)
IN_GROUPS = {"n_group": 4, "topk_group": 2}
SAM = SamDimensions(
    width=4,
    layers=1,
    heads=1,
    global_attn_indexes=(),
    downsample_channels=(2, 2),
    image_size=48,
    window=3,
)
CLIP = ClipDimensions(width=12, layers=1, heads=3, image_size=14, patch_size=14)


# --- forwards of a tape alone


def attended(c, *p, forward=attend, **options):
    return lambda t: forward(t, c, Pass(*p, **options))


def flash_of(c, *p):
    p = Pass(*p, flash=True)
    n = p.tokens * c.heads * c.head_dim
    kv = p.B * p.keys * c.kv_heads * c.head_dim
    return lambda t: flash_attention(
        t, features(t, n), features(t, kv), features(t, kv), None, p, c
    )


def gated(c):
    """The router over 5 tokens, 3 wide."""
    return lambda t: _gate(t, features(t, 5, 3), 5, c)


def routed(c, n=5):
    return lambda t: mixture(t, features(t, n, c.hidden_size), Pass(1, n), c)


def head(*, tied=False):
    c = decoder(hidden_size=3, vocab_size=11, tie_word_embeddings=tied)
    return lambda t: lm_head(t, features(t, 5, 3), 5, c)


def kept_tables(scaling=None, trained=4096):
    c = decoder(qk_rope_head_dim=4, rope_scaling=scaling, max_position_embeddings=trained)
    return lambda t: rotary_embedding(t, 3, c)


def resized(source, target, d):
    """A learned table, cast to fp32 first."""
    return lambda t: bicubic(
        t, t.cast(features(t, source, source, d), FP32), source, target, d
    )  # fmt: skip


def gridded(N=2, heads=2):
    """SAM's attention over N grids of 3 x 3, 8 wide."""
    c = dataclasses.replace(SAM, width=8, heads=heads, window=3)
    return lambda t: grid_attention(t, features(t, N, 3, 3, 8), N, 3, c, False)


def projected(**changes):
    """2 views of 3 x 3 tokens, 8 features to 6."""
    c = ProjectorDimensions(**{"input_dim": 8, "n_embed": 6} | changes)
    return lambda t: projector(t, features(t, 2, 9, 8), 2, 3, c)


def linear_of(t):
    return linear(t, features(t, 5, 3), 5, 3, 4, bias=True)


def swiglu_of(t):
    return swiglu(t, features(t, 5, 3), 5, 3, 4)


def self_attention(t):
    """Of CLIP: 2 views of 5 tokens, 12 wide, 3 heads of 4."""
    return clip_attention(t, features(t, 2, 5, 12), 2, 5, CLIP)


# Case, records, and by hand: macs, vector FLOPs, activations, bytes read, bytes written.
BY_HAND = {
    # --- modules
    "linear": (
        records(linear_of),
        (5 * 3 * 4, 5 * 4, 5 * 4, E * (5 * 3 + 3 * 4 + 4), E * 5 * 4),
    ),
    "linear without bias": (
        records(lambda t: linear(t, features(t, 5, 3), 5, 3, 4)),
        (60, 0, 20, E * (15 + 12), E * 20),
    ),
    "embedding": (
        records(lambda t: embedding(t, t.input(6, INT64), 99, 10)),
        (0, 0, 0, 6 * 10 * E + 6 * 8, 6 * 10 * E),
    ),
    "layer_norm": (
        records(lambda t: layer_norm(t, features(t, 6, 10), 6, 10)),
        (0, 5 * 60, 0, E * (60 + 20), E * 60),
    ),
    "layer_norm over channels that lie first": (  # 60 features laid out anew
        records(lambda t: layer_norm(t, features(t, 6, 10), 6, 10, channels_first=True)),
        (0, 5 * 60, 0, E * 60 + E * (60 + 20), E * 60 + E * 60),
    ),
    "rms_norm": (  # cast, ^2, mean, + eps, rsqrt, *, cast, * w
        records(lambda t: rms_norm(t, features(t, 6, 10), 6, 10)),
        (
            0,
            60 + 60 + 6 + 6 + 60 + 60,
            0,
            120 + 240 + 240 + 24 + 24 + (240 + 24) + 240 + (20 + 120),
            240 + 240 + 24 + 24 + 24 + 240 + 120 + 120,
        ),
    ),
    "rms_norm in fp32": (  # no casts
        records(lambda t: rms_norm(t, features(t, 6, 10), 6, 10), FP32),
        (0, 252, 0, 240 + 240 + 24 + 24 + 264 + 280, 240 + 24 + 24 + 24 + 240 + 240),
    ),
    "gelu": (records(lambda t: ACTIVATIONS["gelu"](t, features(t, 10))), (0, 50, 0, 20, 20)),
    "quick_gelu": (
        records(lambda t: ACTIVATIONS["quick_gelu"](t, features(t, 10))),
        (0, 10 + 40 + 10, 0, 20 + 20 + 40, 20 + 20 + 20),
    ),
    "conv2d": (  # 2 images, 9 x 9, 3 -> 4 channels, kernel 3, stride 2, padding 1: 5 x 5 out
        records(
            lambda t: conv2d(
                t, features(t, 2, 3, 9, 9), 2, 9, 3, 4, 3, stride=2, padding=1, bias=True
            )
        ),
        (
            2 * 5 * 5 * 4 * 3 * 9,
            2 * 25 * 4,
            2 * 25 * 4,
            E * (2 * 81 * 3 + 4 * 3 * 9 + 4),
            E * 2 * 25 * 4,
        ),
    ),
    "swiglu": (
        records(swiglu_of),
        (
            3 * 60,
            5 * 20 + 20,
            20 + 20 + 15,
            2 * E * (15 + 12) + E * 20 + E * 40 + E * (20 + 12),
            2 * E * 20 + E * 20 + E * 20 + E * 15,
        ),
    ),
    "rotation": (  # 2 x 3 tokens, 5 heads of 4: n = 120; * cos, -half, cat, * sin, +
        # Cosines and sines of 2 x 3 positions: 24 each.
        records(lambda t: rotated(t, features(t, 120), features(t, 24), features(t, 24))),
        (0, 120 + 60 + 120 + 120, 0, E * (144 + 60 + 120 + 144 + 240), E * (4 * 120 + 60)),
    ),
    "rotary tables": (  # 2 x 3 positions, 2 frequencies: 12 angles, 24 with both halves
        records(lambda t: rotary_tables(t, 2, 3, 4)),
        (
            12,
            2 * 24 + 2 * 24,
            12,
            6 * 8 + 4 * (2 + 6) + 4 * 24 + 4 * 96 + 2 * 96,
            6 * 4 + 4 * 12 + 96 + 4 * 96 + 2 * 48,
        ),
    ),
    # --- the decoder
    "flash attention": (  # GQA: 4 heads, 2 of keys and values; 3 new tokens over 7
        records(flash_of(GROUPED, 2, 3, 4)),
        (
            2 * (2 * 4 * 3 * 7 * 5),
            6 * 2 * 4 * 3 * 7,
            2 * 3 * 4 * 5,
            E * (120 + 2 * (2 * 7 * 2 * 5)),
            E * 120,
        ),
    ),
    "rotary tables, kept": (  # range, outer product, both halves, cosine and sine, casts
        records(kept_tables()),
        (0, 6 + 24, 0, 4 * 5 + 48 + 96 + 96, 12 + 24 + 48 + 96 + 48),
    ),
    "rotary tables, linear": (  # one quotient a position more
        records(kept_tables("linear")),
        (0, 30 + 3, 0, 260 + 12, 228 + 12),
    ),
    "rotary tables, dynamic": (records(kept_tables("dynamic")), (0, 30, 0, 260, 228)),
    "rotary tables, dynamic, beyond": (  # range, cast, transfer, /, pow, 1 /, * of 2
        records(kept_tables("dynamic", trained=2)),
        (0, 30 + 4 * 2, 0, 260 + 2 * (8 + 4 + 4 * 4), 228 + 2 * (8 + 4 + 4 + 4 * 4)),
    ),
    "rotary tables, yarn": (
        # 17 operators on 2 frequencies, 3 of them on two; 3 ranges, 1 transfer; scales of 12 + 12
        records(kept_tables("yarn")),
        (
            0,
            30 + 24 + 17 * 2,
            0,
            260 + 96 + (17 + 3 + 1) * 2 * 4,
            228 + 96 + (17 + 3 + 1) * 2 * 4,
        ),
    ),
    "lm_head": (  # and the logits' cast
        records(lambda t: t.cast(t.call("lm_head", head()), FP32)),
        (5 * 33, 0, 55, E * (15 + 33) + 55 * 2, E * 55 + 55 * 4),
    ),
    "router": (  # 5 tokens, 3 wide, 4 experts, 2 chosen: casts, logits, softmax, top, scale
        records(gated(experts_of(4, 2))),
        (
            5 * 3 * 4,
            5 * 20 + 20 + 10,
            20,
            15 * 2 + 12 * 2 + 4 * (15 + 12) + 80 + 80 + 40,
            15 * 4 + 12 * 4 + 80 + 80 + 10 * 12 + 40,
        ),
    ),
    "router in fp32, sigmoid, normalised": (
        records(gated(experts_of(4, 2, scoring_func="sigmoid", norm_topk_prob=True)), FP32),
        (
            60,
            4 * 20 + 20 + (10 + 5 + 10) + 10,
            20,
            108 + 160 + 40 + 20 + 60 + 40,
            160 + 120 + 80 + 40,
        ),
    ),
    "masked softmax": (  # 2 x 3 tokens over 7, 4 heads: 168 scores, mask of 42; cast, softmax, cast
        records(attended(GROUPED, 2, 3, 4), path="", part=slice(-5, -1)),
        (
            0,
            168 + 5 * 168,
            0,
            E * (168 + 42) + E * 168 + 4 * 168 + 4 * 168,
            E * 168 + 4 * 168 + 4 * 168 + E * 168,
        ),
    ),
    "masked softmax in fp16": (  # which CUDA's kernel reads as it is
        records(attended(GROUPED, 2, 3, 4), FP16, path="", part=slice(-4, -1)),
        (0, 6 * 168, 0, 2 * 210 + 2 * 168 + 4 * 168, 2 * 168 + 4 * 168 + 2 * 168),
    ),
    "masked softmax of a step": (  # 56 scores, mask of 14; in fp32 no casts
        records(attended(GROUPED, 2, 1, 6), FP32, path="", part=slice(-3, -1)),
        (0, 56 + 5 * 56, 0, 4 * (56 + 14) + 4 * 56, 4 * 56 + 4 * 56),
    ),
    "position check": (  # of 2 sequences: 8 differences, 8 comparisons, all of them
        records(lambda t: _check_positions(t, 2 * 4)),
        (0, 8 + 8 + 8, 0, 2 * 64 + 64 + 8, 64 + 8 + 1),
    ),
    "laying out a shared head": (  # 2 x 7 keys of 3: read once, written for each of 4 heads
        records(attended(heads_of(4, 1, 3, 12), 2, 1, 6), FP32, path="", part=slice(-7, -6)),
        (0, 0, 0, 4 * 2 * 7 * 3, 4 * 2 * 7 * 12),
    ),
    "rows of rotary tables": (
        records(attended(WIDER, 1, 3, forward=latent), path="", part=slice(2)),
        (0, 0, 0, 2 * (24 + 24), 2 * 24),
    ),
    "dispatch": (  # 5 tokens, 3 wide, 4 experts, 2 chosen: 10 choices, 30 features
        records(routed(experts_of(4, 2)), path=""),
        (
            0,
            20 + 10 * 4 + 10 + 30 + 30,  # counts, sort, quotient, weights, sum
            0,
            # scatter, counts and the host's, sort, quotient; taken, joined, put back; cast,
            # weights, sum, cast
            80 + 160 + 32 + 80 + 80 + (60 + 80) + 60 + (60 + 80) + 60 + (120 + 40) + 120 + 60,
            160 + 80 + 32 + 32 + 160 + 80 + 60 + 60 + 60 + 120 + 120 + 60 + 30,
        ),
    ),
    "growing the cache": (  # keys of 2 x 9 tokens by one each; values do the same
        records(
            lambda t: cached(
                t, features(t, 2, 16), features(t, 2, 16), Pass(2, 1, 9), decoder(), 16, 16
            ),
            part=slice(1),
        ),
        (0, 0, 0, 2 * 10 * 16 * E, 2 * 10 * 16 * E),
    ),
    # --- the vision side
    "bicubic, growing": (  # 2 x 2 -> 3 x 3, 5 taps: width first (2 x 3), then height (3 x 3)
        records(resized(2, 3, 7)),
        (0, 2 * 5 * 7 * (6 + 9), 0, 28 * 2 + 28 * 4 + 63 * 4, 28 * 4 + 63 * 4 + 63 * 2),
    ),
    "bicubic, shrinking": (  # 8 x 8 -> 3 x 3: ceil(2 * 8 / 3) = 6 on either side, 13 taps
        records(resized(8, 3, 1), FP32),
        (0, 2 * 13 * (8 * 3 + 3 * 3), 0, 64 * 4, 9 * 4),
    ),
    "positions of the same size": (  # a table for 3 x 3 tokens
        records(lambda t: absolute_positions(t, 3, SAM)),
        (0, 0, 0, 0, 0),
    ),
    "linear resize": (
        records(
            lambda t: interpolated(
                t, "upsample_linear1d", t.cast(features(t, 7, 4), FP32), 5 * 4, 4 * 5 * 4
            )
        ),
        (0, 4 * 20, 0, 28 * 2 + 28 * 4 + 20 * 4, 28 * 4 + 20 * 4 + 20 * 2),
    ),
    "relative positions": (  # of 3 tokens: 2 ranges, their scaling, -, +, indices, rows of 4
        records(lambda t: _relative_positions(t, "rel_pos_h", 5, 3, 4)),
        (
            0,
            2 * 3 + 9 + 9,
            0,
            2 * 3 * 8 + 2 * 3 * 4 + 9 * 4 + 9 * 4 + (9 * 8 + 36 * E),
            2 * (3 * 8 + 3 * 4) + 9 * 4 + 9 * 4 + 9 * 8 + 36 * E,
        ),
    ),
    "norm over channels": (  # mean, -, ^2, mean, -, + eps, sqrt, /, * w, + b
        records(lambda t: _layer_norm_2d(t, features(t, 2, 3, 4), 2 * 4, 3)),
        (
            0,
            24 + 24 + 24 + 24 + 24 + 8 + 8 + 24 + 24 + 24,
            0,
            E * (24 + 32 + 24 + 24 + 32 + 8 + 8 + 32 + 27 + 27),
            E * (8 + 24 + 24 + 8 + 24 + 8 + 8 + 24 + 24 + 24),
        ),
    ),
    "self attention": (
        records(self_attention),
        (
            10 * 12 * 36 + 2 * (2 * 3 * 5 * 5 * 4) + 10 * 12 * 12,
            10 * 36 + 6 * 150 + 10 * 12,
            10 * 36 + 120 + 120,
            E * (120 + 12 * 36 + 36) + E * 360 + E * (120 + 144 + 12),
            E * 360 + E * 120 + E * 120,
        ),
    ),
}


def test_a_forward_costs_what_hand_work_says():
    for name, (records_of, by_hand) in BY_HAND.items():
        kernels = records_of()
        assert tuple(summed(kernels)) == by_hand, name
        counts = [(*each.work, *each.dimensions, each.calls) for each in kernels]
        assert {type(count) for each in counts for count in each} <= {int, bool}, name


PLAIN_MACS = 14 * 12 * (12 + 6 + 6) + 14 * 12 * 12 + 2 * 7 * 1 + 2 * (2 * 4 * 7 * 7) * 3
BIASED = heads_of(4, 2, 3, 12, attention_bias=True)
LATENT_PARAMS = 11 * 7 + 7 + 7 * 18 + 11 * 8 + 6 + 6 * 3 * 9 + 15 * 11

# Case, forward, and figures by hand.
FIGURES = {
    "eager attention": (attended(heads_of(4, 2, 3, 12), 2, 7), {"macs": PLAIN_MACS}),
    "flash attention": (attended(heads_of(4, 2, 3, 12), 2, 7, flash=True), {"macs": PLAIN_MACS}),
    # 5 tokens, 11 wide, 3 heads: ranks 7 and 6, 4 + 2 features, values of 5.
    "absorbed latent attention": (
        attended(LATENT, 1, 5, forward=latent),
        {
            "macs": 5 * (11 * 7 + 7 * 3 * 6 + 11 * 8 + 3 * 5 * 11)  # projections
            + 5 * 3 * 4 * 6 + 5 * 3 * 6 * 5  # absorbed
            + 5 * 5 * 3 * (2 + 6) + 5 * 5 * 3 * 6,
            "params": LATENT_PARAMS,
        },
    ),
    "latent attention by flash": (
        attended(LATENT, 1, 5, forward=latent, flash=True),
        {
            "macs": 5 * (11 * 7 + 7 * 3 * 6 + 11 * 8 + 6 * 3 * 9 + 3 * 5 * 11)
            + 2 * (5 * 5 * 3 * 6),
            "params": LATENT_PARAMS,
        },
    ),
    "a mixture": (  # of its choices
        routed(experts_of(4, 2, shared=6, topk_method="noaux_tc")),
        {
            "macs": 5 * 3 * 4 + 3 * (10 * 3 * 7) + 3 * (5 * 3 * 6),
            "params": 3 * 4 + 4 + 4 * 3 * 21 + 3 * 18,
        },
    ),
    # Methods differ in routing alone: beside the greedy one's ...
    "greedy": (gated(experts_of(8, 2)), {"macs": 120, "vector_flops": 5 * 40 + 40 + 10}),
    "limited to groups": (  # best of each group; top groups; inverted mask
        gated(experts_of(8, 2, topk_method="group_limited_greedy", **IN_GROUPS)),
        {"macs": 120, "vector_flops": 250 + 40 + 20 + 40},
    ),
    "biased": (  # bias; top two of each group; their sum; top groups; inverted mask
        gated(experts_of(8, 2, topk_method="noaux_tc", **IN_GROUPS)),
        {"macs": 120, "vector_flops": 250 + 40 + 40 + 40 + 20 + 40},
    ),
    # A causal kernel may skip: of 4 queries the first sees none of the 3 after it, the second ...
    "causal flash": (flash_of(heads_of(3, 3, 5, 24), 2, 4), {"savings": 2 * 3 * 6 * (2 * 5)}),
    "causal eager": (attended(heads_of(3, 3, 5, 24), 2, 4), {"savings": 2 * 3 * 6 * (2 * 5)}),
    "a step skips nothing": (flash_of(heads_of(3, 3, 5, 24), 2, 1, 8), {"savings": 0}),
    "no rounding beyond a float": (
        flash_of(heads_of(1, 1, 1, 24), 1, 2**53 + 1),
        {"savings": (2**53 + 1) * 2**53},
    ),
    # 2 grids of 3 x 3, 8 wide, 2 heads: 2 * 2 * 81 scores.
    "grid attention": (
        gridded(),
        {
            "macs": 18 * 8 * 24 + 18 * 8 * 8 + 2 * (2 * 2 * 9 * 4 * 3) + 2 * (2 * 2 * 81 * 4),
            "activations": 18 * 24 + 18 * 8 + 2 * (2 * 2 * 9 * 3) + 18 * 8,
            # linears' biases, twice 2 ranges of 3 and 2 grids of 9, the bias' sum, 7 a score
            "vector_flops": 18 * 24 + 18 * 8 + 2 * (6 + 18) + 324 + 7 * 324,
            "params": 8 * 24 + 24 + 8 * 8 + 8 + 2 * 5 * 4,
        },
    ),
    # --- parameters
    "linear": (linear_of, {"params": 3 * 4 + 4}),
    "embedding": (lambda t: embedding(t, t.input(2, INT64), 7, 4), {"params": 28}),
    "swiglu": (swiglu_of, {"params": 36}),
    "conv2d": (
        lambda t: conv2d(t, features(t, 3 * 25), 1, 5, 3, 4, 5), {"params": 3 * 4 * 25},
    ),
    "self attention": (self_attention, {"params": 12 * 36 + 36 + 12 * 12 + 12}),
    "head": (head(), {"params": 33}),
    "tied head": (head(tied=True), {"params": 0}),
    "biased attention": (
        attended(BIASED, 1, 2), {"params": 12 * 12 + 12 + 2 * (12 * 6 + 6) + 12 * 12 + 12},
    ),
    # --- projectors: 2 views of 3 x 3 tokens, 8 features to 6
    **{
        f"projector {number}": (projected(**changes), {"macs": macs, "params": parameters})
        for number, (changes, macs, parameters) in enumerate([
            ({"projector_type": "identity"}, 0, 0),
            ({"projector_type": "linear"}, 18 * 48, 8 * 6 + 6),
            ({"projector_type": "mlp_gelu", "depth": 2}, 18 * (48 + 36), 54 + 42),
            (
                {**DOWN, "mlp_ratio": 3}, 18 * (8 * 18 + 18 * 6), 8 * 18 + 18 + 18 * 6 + 6,
            ),
            (
                {**NORMED, "depth": 3}, 18 * (48 + 36 + 36), 16 + 54 + 42 + 42,
            ),
            (
                {"projector_type": "hybrid_split_feature_mlp_gelu", "input_dim": (5, 3)},
                18 * (5 * 3 + 3 * 3), 5 * 3 + 3 + 3 * 3 + 3,
            ),
        ])
    },
}  # fmt: skip


def test_figures_of_a_forward_are_those_by_hand():
    for name, (forward, by_hand) in FIGURES.items():
        t = alone(forward)
        found = summed(t.kernels)._asdict() | {"params": params(t), "savings": sum(t.savings)}
        assert {figure: found[figure] for figure in by_hand} == by_hand, name


@pytest.mark.parametrize(
    ("kernels", "operator", "dimensions"),
    [
        (BY_HAND["conv2d"][0], "conv2d", Convolution(2, 25, 3, 4, 9)),
        # A row of the grid at a time: 2 grids, 2 heads and 3 tokens against 3 positions.
        (records(gridded()), "einsum", Gemm(3, 2 * 2 * 3, 3, 4)),
        (
            records(gridded()),
            "scaled_dot_product_attention",
            Attention(2, 2, 2, 9, 9, 4, 4, masked=True),
        ),
        (
            records(flash_of(heads_of(3, 3, 5, 24), 2, 4)),
            "flash_attention",
            Attention(2, 3, 3, 4, 4, 5, 5, skippable_scores=2 * 3 * (3 + 2 + 1)),
        ),
        (
            records(flash_of(heads_of(3, 3, 5, 24), 2, 1, 8)),
            "flash_attention",
            Attention(2, 3, 3, 1, 9, 5, 5),
        ),
    ],
)
def test_dimensions(kernels, operator, dimensions):
    assert {kernel.operator: kernel.dimensions for kernel in kernels()}[operator] == dimensions


@pytest.mark.parametrize(
    ("tokens", "experts", "chosen", "rows"),
    [
        (1, 64, 6, 6 * [1]),
        (10, 64, 6, 60 * [1]),
        (11, 64, 6, 2 * [2] + 62 * [1]),
        (32, 64, 6, 64 * [3]),
        (703, 64, 6, 58 * [66] + 6 * [65]),
        (3, 5, 2, [2, 1, 1, 1, 1]),
    ],
)
def test_choices_spread_evenly_over_experts(tokens, experts, chosen, rows):
    """Tokens of each expert that runs."""
    kernels = alone(routed(experts_of(experts, chosen), tokens)).kernels
    gates = [kernel for kernel in kernels if kernel.path.endswith("gate_proj")]
    assert [gate.dimensions.m for gate in gates for _ in range(gate.calls)] == rows


def test_bytes_of_a_plain_and_a_latent_cache():
    t = Tape(BF16)
    _, (keys, values) = attend(t, heads_of(10, 10, 128, 1280), Pass(1, 1))
    assert 12 * (keys.nbytes + values.nbytes) == 61_440
    wide = dataclasses.replace(LATENT, kv_lora_rank=512, qk_rope_head_dim=64)
    _, (key, shared, *_) = latent(t, wide, Pass(3, 100))
    assert 12 * (key.nbytes + shared.nbytes) == 3 * 100 * 12 * 576 * 2


def test_one_odd_pixel_more_than_a_float_holds():
    t, side = Tape(BF16), 2**53 + 1
    assert conv2d(t, t.input(1, BF16), 1, side, 1, 1, 1).n == side**2


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 1023, 1024, 1025, 2**53, 2**53 + 1, 2**60 - 1])
def test_logarithms_are_exact_in_arrays_too(n):
    np = pytest.importorskip("numpy")
    for size in (n, np.array([n]), np.array([n], dtype=object)):
        assert np.ravel(tape.ceil_log2(size)).tolist() == [(n - 1).bit_length()]
