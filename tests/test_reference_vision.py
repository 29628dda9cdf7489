"""The reference networks' vision sides against formulas and transformers; what parts keep alive."""

import math

import pytest
import torch
import torch.nn.functional as F
from test_reference_networks import normal, randomised
from torch import nn
from transformers import Qwen2Config
from transformers.models.qwen2 import modeling_qwen2

from dsocr_analyze.architectures.deepseek_ocr.reference import deepencoder, modeling_deepseekv2
from dsocr_analyze.architectures.deepseek_ocr_2.reference import deepencoderv2
from dsocr_analyze.model.loading import building
from dsocr_analyze.trace.passes import trace_module

CLOSE = {"atol": 1e-5, "rtol": 1e-4}

# ------------------------------------------------------------------------------------------- CLIP


def test_layer_norms_are_torchs_in_fp32_or_over_the_channels():
    norm, x = randomised(deepencoder.LayerNormfp32(16)), (normal(3, 16) * 100).bfloat16()
    wide = F.layer_norm(x.float(), (16,), norm.weight, norm.bias, norm.eps)
    assert torch.equal(norm(x), wide.bfloat16())
    norm, x = randomised(deepencoder.LayerNorm2d(6)), normal(2, 6, 3, 5)
    expected = F.layer_norm(x.permute(0, 2, 3, 1), (6,), norm.weight, norm.bias, norm.eps)
    torch.testing.assert_close(norm(x), expected.permute(0, 3, 1, 2), **CLOSE)


def resized(grid, side):
    """`[1, h, w, C]` as `[1, side, side, C]`."""
    size = (side, side)
    found = F.interpolate(grid.permute(0, 3, 1, 2), size=size, mode="bicubic", antialias=True)
    return found.permute(0, 2, 3, 1)


def test_positions_are_resized_as_a_grid_those_of_clip_around_the_class_token():
    learned = normal(1, 17, 6)
    assert deepencoder.get_abs_pos(learned, 17) is learned
    expected = resized(learned[:, 1:].view(1, 4, 4, 6), 3).reshape(1, 9, 6)
    found = deepencoder.get_abs_pos(learned, 9 + 1)
    torch.testing.assert_close(found, torch.cat([learned[:, :1], expected], dim=1))
    learned = normal(1, 4, 4, 6).bfloat16()
    assert deepencoder.get_abs_pos_sam(learned, 4) is learned
    found = deepencoder.get_abs_pos_sam(learned, 6)
    torch.testing.assert_close(found, resized(learned.float(), 6).bfloat16())


def test_clip_attention_equals_softmax_of_scaled_products():
    attention = randomised(deepencoder.NoTPAttention({"hidden_size": 12, "num_attention_heads": 3}))
    x = normal(2, 5, 12)
    q, k, v = (part.view(2, 5, 3, 4).transpose(1, 2) for part in attention.qkv_proj(x).chunk(3, -1))
    mixed = ((q @ k.mT) / 2.0).softmax(-1) @ v
    expected = attention.out_proj(mixed.transpose(1, 2).reshape(2, 5, 12))
    torch.testing.assert_close(attention(x), expected, **CLOSE)


CLIP = {"hidden_size": 12, "num_attention_heads": 3, "ffn_hidden_size": 20, "num_layers": 2,
        "image_size": 28, "patch_size": 14, "layernorm_epsilon": 1e-5}  # fmt: skip


def test_clip_embeds_given_features_or_its_own_patches():
    """Its norm may be in fp32."""
    clip, calls = randomised(deepencoder.VitModel({**CLIP, "fp32norm": True})), []
    clip.embeddings.patch_embedding.register_forward_hook(lambda *_: calls.append(1))
    images = normal(2, 3, 42, 42)
    assert (clip(images, normal(2, 12, 4, 4)).shape, calls) == ((2, 17, 12), [])
    assert (clip(images, None).shape, calls) == ((2, 10, 12), [1])
    assert isinstance(clip.pre_layrnorm, deepencoder.LayerNormfp32)
    assert type(deepencoder.VitModel(CLIP).pre_layrnorm) is nn.LayerNorm


def test_quick_gelu():
    expected = [x / (1 + math.exp(-1.702 * x)) for x in range(-4, 5)]
    found = deepencoder.quick_gelu(torch.arange(-4.0, 5.0))
    torch.testing.assert_close(found, torch.tensor(expected))


# -------------------------------------------------------------------------------------------- SAM


def summed(query, rows, columns, place, key):
    """A query's products with the rows of two tables for the distance to a key, of 3 x 4 places."""
    return query @ rows[place[0] - key[0] + 2] + query @ columns[place[1] - key[1] + 3]


@pytest.mark.parametrize("lengths", [(5, 7), (9, 13)], ids=["tables-fit", "tables-resized"])
def test_decomposed_positions_equal_loops_over_every_pair(lengths):
    q, tables = normal(2, 12, 4), [normal(length, 4) for length in lengths]
    bias = sum(deepencoder.add_decomposed_rel_pos(q, *tables, (3, 4), (3, 4)))
    fitting = [
        table if len(table) == length
        else F.interpolate(table.T[None], size=length, mode="linear")[0].T
        for table, length in zip(tables, (5, 7), strict=True)
    ]  # fmt: skip
    places = [(y, x) for y in range(3) for x in range(4)]
    expected = [
        [[summed(query, *fitting, place, key) for key in places]
         for query, place in zip(queries, places, strict=True)]
        for queries in q
    ]  # fmt: skip
    torch.testing.assert_close(bias.flatten(2), torch.tensor(expected), **CLOSE)


@pytest.mark.parametrize("rel_pos", [False, True])
def test_grid_attention_equals_softmax_of_scaled_products_plus_bias(rel_pos):
    attention = randomised(
        deepencoder.Attention(12, num_heads=3, use_rel_pos=rel_pos, input_size=(3, 4))
    )
    x, bias = normal(2, 3, 4, 12), 0
    parts = attention.qkv(x).chunk(3, dim=-1)
    q, k, v = (part.reshape(2, 12, 3, 4).transpose(1, 2) for part in parts)
    if rel_pos:
        tables = (attention.rel_pos_h, attention.rel_pos_w)
        terms = deepencoder.add_decomposed_rel_pos(q.reshape(6, 12, 4), *tables, (3, 4), (3, 4))
        bias = sum(terms).reshape(2, 3, 12, 12)
    mixed = ((q @ k.mT / 2.0 + bias).softmax(-1) @ v).transpose(1, 2).reshape(2, 3, 4, 12)
    torch.testing.assert_close(attention(x), attention.proj(mixed), **CLOSE)
    with pytest.raises(ValueError, match="input_size"):
        deepencoder.Attention(12, use_rel_pos=True)


def test_a_windowed_block_equals_attention_window_by_window():
    """Of a grid of 6 x 7, padded to windows of 4 x 4."""
    block = randomised(deepencoder.Block(12, num_heads=3, window_size=4, use_rel_pos=True))
    x = normal(2, 6, 7, 12)
    padded = F.pad(block.norm1(x), (0, 0, 0, 1, 0, 2))
    rows = [
        torch.cat([block.attn(window) for window in row.split(4, dim=2)], dim=2)
        for row in padded.split(4, dim=1)
    ]
    h = x + torch.cat(rows, dim=1)[:, :6, :7]
    torch.testing.assert_close(block(x), h + block.mlp(block.norm2(h)))


# ------------------------------------------------------------------------- DeepSeek-OCR-2's encoder


def encoder(heads=6, shared=2, **changes):
    settings = {"decoder_layer": 2, "hidden_dimension": 24, "num_attention_heads": heads,
                "num_key_value_heads": shared, "intermediate_size": 40, "max_query": 400,
                "view_sizes": (64, 128, 192), **changes}  # fmt: skip
    return randomised(deepencoderv2.Qwen2Decoder2Encoder(**settings))


def qwen2_like(ours, heads, shared):
    """Transformers' Qwen2 with the weights of an encoder."""
    config = Qwen2Config(
        vocab_size=1, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=heads, num_key_value_heads=shared, rope_theta=1e6, rms_norm_eps=1e-6,
        attn_implementation="sdpa",
    )  # fmt: skip
    theirs = modeling_qwen2.Qwen2Model(config).eval()
    missing, unexpected = theirs.load_state_dict(ours.model.model.state_dict(), strict=False)
    assert (missing, unexpected) == (["embed_tokens.weight"], [])
    return theirs


def mixed_mask(kinds):
    """Image tokens (0) see those alone; a query (1) sees them and queries up to itself."""
    low = torch.finfo(torch.float32).min
    places = range(len(kinds))

    def sees(query, key):
        return kinds[key] == 0 or (kinds[query] == 1 and key <= query)

    rows = [[0.0 if sees(query, key) else low for key in places] for query in places]
    return torch.tensor(rows)[None, None]


@pytest.mark.parametrize(("heads", "shared", "side"), [(6, 2, 3), (3, 3, 1), (6, 1, 2)])
@torch.no_grad()
def test_the_encoder_is_transformers_qwen2_under_the_mixed_mask(heads, shared, side):
    ours, n = encoder(heads, shared), side * side
    theirs = qwen2_like(ours, heads, shared)
    features = normal(3, 24, side, side)
    found = ours(features)
    queries = getattr(ours, f"query_{64 * side}").weight.expand(3, n, 24)
    sequence = torch.cat([features.flatten(2).mT, queries], dim=1)
    mask = mixed_mask([0] * n + [1] * n).expand(3, 1, 2 * n, 2 * n)
    expected = theirs(inputs_embeds=sequence, attention_mask=mask).last_hidden_state[:, n:]
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "kinds",
    [[0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 1, 0, 1]],
    ids=["image tokens", "queries", "in any order"],
)
@torch.no_grad()
def test_a_sequence_may_hold_its_kinds_in_any_order_or_one_alone(kinds):
    ours, sequence = encoder(), normal(1, len(kinds), 24)
    found = ours.model(sequence, torch.tensor([kinds]))
    mask = mixed_mask(kinds)
    expected = qwen2_like(ours, 6, 2)(inputs_embeds=sequence, attention_mask=mask)
    torch.testing.assert_close(
        found.last_hidden_state, expected.last_hidden_state, atol=2e-6, rtol=1e-5
    )
    shapes = [tuple(part.shape for part in pair) for pair in found.past_key_values]
    assert shapes == [((1, 2, len(kinds), 4),) * 2] * 2


@pytest.mark.parametrize("other", ["eager", "flash_attention_2"])
def test_the_encoder_has_one_attention(other):
    with pytest.raises(ValueError, match="'sdpa' only"):
        encoder(attn_implementation=other)
    with pytest.raises(ValueError, match="no attention weights"):
        encoder().model.model.layers[0](normal(1, 4, 24), output_attentions=True)


# ------------------------------------------------ tensors alive, in bf16, beside weights and inputs

META = torch.device("meta")
BF16, FP32 = 2, 4
SMALL_CLIP = {"hidden_size": 8, "num_attention_heads": 2, "ffn_hidden_size": 32, "num_layers": 3,
              "image_size": 4, "patch_size": 2, "layernorm_epsilon": 1e-5}  # fmt: skip
X, HIDDEN = 5 * 8 * BF16, 5 * 32 * BF16  # five tokens: the class and 2 x 2 patches
WINDOWS, HEADS, WINDOW = 2 * 2, 2, 4  # a grid of 6 x 6, padded to 8 x 8
FEATURES = WINDOWS * WINDOW**2 * 8 * BF16
TERM, BIAS = (WINDOWS * HEADS * WINDOW**power * BF16 for power in (3, 4))
ROWS = torch.empty(2 * 4 - 1, 8, dtype=torch.bfloat16, device=META)


class Terms(nn.Module):
    def forward(self, q):
        return deepencoder.add_decomposed_rel_pos(q, ROWS, ROWS, (4, 4), (4, 4))


PEAKS = {
    "a CLIP block keeps attention's output beside the sum and the norm": (
        lambda: deepencoder.NoTPTransformerBlock(SMALL_CLIP, 1), [(1, 5, 8)],
        3 * X + 3 * HIDDEN, 1200,
    ),
    "CLIP keeps embeddings, their norm and the stream through the stack": (
        lambda: deepencoder.VitModel(SMALL_CLIP), [(1, 3, 4, 4), (1, 8, 2, 2)],
        2 * X + X + 3 * X + 3 * HIDDEN, 1440,
    ),
    # The windows; q, k and v as projected and as split by head; bias and terms; output, projected.
    "a windowed block lets go of the norm once it is cut into windows": (
        lambda: deepencoder.Block(8, HEADS, use_rel_pos=True, window_size=WINDOW,
                                  input_size=(6, 6)),
        [(1, 6, 6, 8)], FEATURES + 6 * FEATURES + BIAS + 2 * TERM + 2 * FEATURES, 15360,
    ),
    # Both tables; three terms, of which one is being laid out anew.
    "the terms of relative positions are let go of once they are laid out": (
        Terms, [(3, 16, 8)], 2 * 4 * 4 * 8 * BF16 + 3 * 3 * 16 * 4 * BF16, 1664,
    ),
    "RMS norm keeps the variance": (
        lambda: modeling_deepseekv2.DeepseekV2RMSNorm(16), [(7, 16)],
        2 * FP32 * 7 * 16 + 2 * FP32 * 7, 952,
    ),
    # Positions, angles and their double in fp32, the cosines cast, the sines before and after.
    "rotary tables are cast one after the other": (
        lambda: modeling_deepseekv2.DeepseekV2RotaryEmbedding(8, 64), [(1,), 10],
        FP32 * (10 + 10 * 8 // 2 + 2 * 10 * 8) + BF16 * 2 * 10 * 8, 1160,
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", PEAKS)
def test_so_many_bytes_are_alive_at_once(rule):
    build, shapes, parts, nbytes = PEAKS[rule]
    with building(META, torch.bfloat16):
        module = build().eval()
    inputs = [
        torch.empty(shape, dtype=torch.bfloat16, device=META) if shape != 10 else shape
        for shape in shapes
    ]
    peak = trace_module(module, META, *inputs)[0].peak
    assert peak.nbytes == parts == nbytes
    assert "windowed" not in rule or peak.path == "attn.proj"
