"""Forwards of the vision side beside traces of the reference modules, step by step."""

import itertools
import random

import pytest
import torch
from sampling import every, first, sampled
from taped import DTYPES, alone, assert_same, assert_same_for_any, features, of_type, on_meta
from taped_passes import WholeTape

from dsocr_analyze.architectures.deepseek_ocr.reference import deepencoder
from dsocr_analyze.architectures.deepseek_ocr_2 import EncoderDimensions, qwen2_encoder
from dsocr_analyze.architectures.deepseek_ocr_2.reference import deepencoderv2
from dsocr_analyze.architectures.ocr_family.clip import clip
from dsocr_analyze.architectures.ocr_family.dimensions import (
    ClipDimensions,
    ProjectorDimensions,
    SamDimensions,
)
from dsocr_analyze.architectures.ocr_family.projector import projector
from dsocr_analyze.architectures.ocr_family.sam import sam
from dsocr_analyze.dtypes import BFLOAT16


def sam_module(c, dtype):
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


def check_sam(c, N, R, dtype):
    assert_same(
        sam_module(c, dtype),
        [of_type(dtype, N, 3, R, R)],
        dtype,
        lambda t: sam(t, features(t, N, 3, R, R), N, R, c),
        "model.sam_model",
    )


@sampled("seed", range(40), every(8))
def test_sam(seed):
    draw = random.Random(seed)
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
    R = patch * g + draw.randrange(patch)
    check_sam(c, draw.choice([1, 2, 3]), R, draw.choice(DTYPES))


@pytest.mark.parametrize("N", [1, 2])
def test_a_global_block_as_large_as_a_window_resizes_its_own_tables(N):
    """Its tables are made for the 5 x 5 table of positions: 9 rows for a grid that needs 5."""
    c = SamDimensions(
        width=6,
        layers=2,
        heads=2,
        global_attn_indexes=(1,),
        downsample_channels=(4, 5),
        image_size=10,
        patch=2,
        window=3,
        neck=4,
    )
    check_sam(c, N, 6, BFLOAT16)
    tape = alone(lambda t: sam(t, features(t, N, 3, 6, 6), N, 6, c))
    resized = [kernel for kernel in tape.kernels if kernel.operator == "upsample_linear1d"]
    assert [(kernel.path, kernel.calls) for kernel in resized] == [("blocks.1.attn", 2)]
    assert {kernel.work.bytes_read for kernel in resized} == {9 * 3 * 4}
    assert {kernel.work.bytes_written for kernel in resized} == {5 * 3 * 4}


@sampled("seed", range(40), every(8))
def test_clip(seed):
    draw = random.Random(seed)
    heads, patch = draw.choice([1, 2, 3]), draw.choice([1, 2])
    q = draw.randint(1, 5)
    c = ClipDimensions(
        width=heads * draw.choice([2, 3]),
        layers=draw.randint(1, 3),
        heads=heads,
        image_size=patch * draw.choice([q, 1, draw.randint(1, 6)]),
        patch_size=patch,
    )
    N, dtype = draw.choice([1, 2, 3]), draw.choice(DTYPES)
    settings = {
        "num_layers": c.layers,
        "hidden_size": c.width,
        "num_attention_heads": c.heads,
        "ffn_hidden_size": 4 * c.width,
        "image_size": c.image_size,
        "patch_size": c.patch_size,
        "layernorm_epsilon": 1e-5,
    }
    assert_same(
        on_meta(deepencoder.VitModel, settings, dtype=dtype),
        [of_type(dtype, N, 3, 64 * q, 64 * q), of_type(dtype, N, c.width, q, q)],
        dtype,
        lambda t: clip(t, features(t, N, c.width, q, q), N, q, c),
        "model.vision_model",
    )


VARIANTS = {
    "identity": {"projector_type": "identity"},
    "linear": {"projector_type": "linear"},
    "mlp": {"projector_type": "mlp_gelu", "depth": 3},
    "mlp of one linear": {"projector_type": "mlp_gelu"},
    "downsampled": {"projector_type": "downsample_mlp_gelu", "downsample_ratio": 2},
    "downsampled by three": {
        "projector_type": "downsample_mlp_gelu",
        "downsample_ratio": 3,
        "depth": 3,
        "mlp_ratio": 2,
    },
    "normalised": {"projector_type": "normlayer_downsample_mlp_gelu", "downsample_ratio": 2},
    "hybrid pair": {"projector_type": "low_high_hybrid_split_mlp_gelu", "depth": 2},
    "hybrid pair, projections only": {"projector_type": "low_high_hybrid_split_mlp_gelu"},
    "split features": {
        "projector_type": "hybrid_split_feature_mlp_gelu",
        "input_dim": (5, 3),
        "channel_div": 0.4,
        "depth": 2,
    },
    "split pair": {"projector_type": "low_high_split_mlp_gelu", "depth": 3},
    "split pair, nothing to do": {"projector_type": "low_high_split_mlp_gelu"},
    "pooled": {"projector_type": "mlp_gelu", "depth": 2, "token_pooling": True},
    "pooled and downsampled": {
        "projector_type": "downsample_mlp_gelu",
        "downsample_ratio": 2,
        "token_pooling": True,
    },
    "fused": {"projector_type": "linear", "conv_fusion": True},
    "fused and downsampled": {
        "projector_type": "normlayer_downsample_mlp_gelu",
        "downsample_ratio": 3,
        "conv_fusion": True,
    },
}
PAIRS = ("low_high_split_mlp_gelu", "low_high_hybrid_split_mlp_gelu")


def built_projector(c):
    return deepencoder.MlpProjector(
        {
            "projector_type": c.projector_type,
            "input_dim": c.input_dim,
            "n_embed": c.n_embed,
            "depth": c.depth,
            "mlp_ratio": c.mlp_ratio,
            "downsample_ratio": c.downsample_ratio,
            "channel_div": c.channel_div,
            "token_pooling": c.token_pooling,
            "conv_fusion_high_low_features": c.conv_fusion,
        }
    )


def takes_two_maps(variant):
    return variant["projector_type"] in PAIRS or variant.get("conv_fusion", False)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@sampled(
    ("name", "are_apart"),
    [
        (name, are_apart)
        for name, variant in VARIANTS.items()
        for are_apart in (False, True)
        if not (are_apart and takes_two_maps(variant))
    ],
    every(4),
)
def test_projector(name, are_apart, dtype):
    c = ProjectorDimensions(**{"input_dim": 8, "n_embed": 10} | VARIANTS[name])
    module = on_meta(built_projector, c, dtype=dtype)
    d = 5 if c.projector_type == PAIRS[0] else 8
    for N, q in itertools.product((1, 2, 3), (2, 3, 6) if c.token_pooling else (1, 2, 3, 6)):
        T = q * q
        maps = of_type(dtype, N, 2 * T if are_apart else T, d)[:, -T:]
        if c.conv_fusion:
            maps = of_type(dtype, N, 2, T, d)
        elif takes_two_maps(VARIANTS[name]):
            maps = (maps, of_type(dtype, N, T, d))

        def forward(t, N=N, q=q):
            one = features(t, 2 if c.conv_fusion else 1, N, q * q, d)
            x = (one, one) if c.projector_type in PAIRS else one
            return projector(t, x, N, q, c, are_apart=are_apart)

        assert_same(module, [maps], dtype, forward, "model.projector")


def encoder_case(seed):
    draw = random.Random(seed)
    kv_heads = draw.choice([1, 1, 2, 3])
    heads = kv_heads * draw.choice([1, 2, 3])
    sizes = draw.sample([64, 128, 192, 256], 2)
    return (
        EncoderDimensions(
            width=heads * draw.choice([2, 4]),
            layers=draw.randint(1, 3),
            heads=heads,
            kv_heads=kv_heads,
            intermediate_size=draw.randint(1, 9),
            view_sizes=tuple(sizes),
        ),
        draw.choice([1, 2, 3]),
        sizes[0] // 64,
        draw.choice(DTYPES),
    )


@sampled("seed", range(40), every(8))
def test_qwen2_encoder(seed):
    c, N, q, dtype = encoder_case(seed)
    module = on_meta(
        deepencoderv2.Qwen2Decoder2Encoder,
        c.layers,
        c.width,
        c.heads,
        c.kv_heads,
        c.intermediate_size,
        400,
        view_sizes=c.view_sizes,
        dtype=dtype,
    )
    assert_same(
        module,
        [of_type(dtype, N, c.width, q, q)],
        dtype,
        lambda t: qwen2_encoder(t, features(t, N, c.width, q, q), N, q, c),
        "model.qwen2_model",
    )


@sampled("seed", range(10), every(5))
def test_qwen2_encoder_that_keeps_its_mask(seed):
    c, N, q, dtype = encoder_case(seed)

    def encoded(kind, *, has_mask):
        def forward(t):
            return qwen2_encoder(t, features(t, N, c.width, q, q), N, q, c, has_mask=has_mask)

        return alone(forward, dtype, kind)

    kept, made = (encoded(WholeTape, has_mask=each) for each in (True, False))
    of_mask = [kernel.operator for kernel in made.kernels if kernel not in kept.kernels]
    assert set(of_mask) == {"full", "eq", "nonzero", "scalar_tensor", "index_put", "stack"}
    assert [kernel for kernel in made.kernels if kernel.operator not in of_mask] == kept.kernels
    # The mask is neither made nor part of the activations.
    first = next(level for level in kept.levels if level[1] == "matmul")
    tokens = N * 2 * q * q * c.width * dtype.nbytes
    positions, frequencies = 2 * q * q, c.width // c.heads // 2
    fp32 = 4 * (positions + positions * frequencies)
    assert first[2] == tokens + 8 * positions + fp32


SMALL_SAM = SamDimensions(
    width=6,
    layers=3,
    heads=3,
    global_attn_indexes=(1,),
    downsample_channels=(4, 6),
    image_size=20,
    patch=2,
    window=3,
    neck=5,
)
SMALL_CLIP = ClipDimensions(width=6, layers=2, heads=2, image_size=8, patch_size=2)
SMALL_ENCODER = EncoderDimensions(
    width=8, layers=2, heads=4, kv_heads=2, intermediate_size=5, view_sizes=(128, 192)
)


@sampled("R", [16, 24], first(1))
@pytest.mark.parametrize("variant", ["mlp", "downsampled", "split features"])
@pytest.mark.parametrize("N", [2, 3, 7])
def test_a_number_of_views_may_be_a_symbol(variant, R, N):
    """One run for any number of views above one yields the records of a run for each."""
    c = ProjectorDimensions(**{"input_dim": 8, "n_embed": 10} | VARIANTS[variant])
    g = R // SMALL_SAM.patch
    q = -(-g // 4)

    def views(t, N):
        t.call("sam_model", sam, features(t, N, 3, R, R), N, R, SMALL_SAM)
        t.call("vision_model", clip, features(t, N, 6, q, q), N, q, SMALL_CLIP)
        t.call("projector", projector, features(t, N, q, q, 8), N, q, c, are_apart=True)
        t.call("qwen2_model", qwen2_encoder, features(t, N, q, q, 8), N, q, SMALL_ENCODER)

    assert_same_for_any(views, N=N)
