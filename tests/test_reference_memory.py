"""What the reference keeps alive, worked out by hand: tensors of bf16 beside weights and inputs."""

from __future__ import annotations

import torch

from dsocr_analyze.architectures.deepseek_ocr.reference import deepencoder, modeling_deepseekv2
from dsocr_analyze.model.loading import building
from dsocr_analyze.trace.passes import trace_module

META = torch.device("meta")
BF16 = 2
FP32 = 4


def peak(build, *shapes, **options):
    with building(META, torch.bfloat16):
        module = build().eval()
    inputs = [torch.empty(shape, dtype=torch.bfloat16, device=META) for shape in shapes]
    return trace_module(module, META, *inputs, **options)[0].peak


def clip_settings(layers):
    return {
        "hidden_size": 8,
        "num_attention_heads": 2,
        "ffn_hidden_size": 32,
        "num_layers": layers,
        "image_size": 4,
        "patch_size": 2,
        "layernorm_epsilon": 1e-5,
    }


def test_a_clip_block_keeps_attentions_output_beside_the_sum_and_the_norm():
    x, hidden = 5 * 8 * BF16, 5 * 32 * BF16
    found = peak(lambda: deepencoder.NoTPTransformerBlock(clip_settings(1), 1), (1, 5, 8))
    assert found.nbytes == 3 * x + 3 * hidden == 1200


def test_clip_keeps_embeddings_and_their_norm_through_the_stack():
    # Five tokens: the class and 2 x 2 patches; the table needs no resizing.
    x, hidden = 5 * 8 * BF16, 5 * 32 * BF16
    found = peak(
        lambda: deepencoder.VitModel(clip_settings(3)),
        (1, 3, 4, 4),
        (1, 8, 2, 2),
    )
    stream = x  # of the layer before
    assert found.nbytes == 2 * x + stream + 3 * x + 3 * hidden == 1440


def test_a_windowed_block_lets_go_of_the_norm_once_it_is_cut_into_windows():
    side, window, width, heads = 6, 4, 8, 2
    windows = 2 * 2  # the grid padded to 8 x 8
    tokens = windows * window**2
    features = tokens * width * BF16
    term = windows * heads * window**3 * BF16
    bias = windows * heads * window**4 * BF16
    found = peak(
        lambda: deepencoder.Block(
            width, heads, use_rel_pos=True, window_size=window, input_size=(side, side)
        ),
        (1, side, side, width),
    )
    # The windows; q, k and v as projected and as split by head; bias and terms; output, projected.
    assert found.nbytes == features + 6 * features + bias + 2 * term + 2 * features == 15360
    assert found.path == "attn.proj"


def test_the_terms_of_relative_positions_are_let_go_of_once_they_are_laid_out():
    grid, tokens, size, batch = 4, 16, 8, 3
    table = grid * grid * size * BF16
    term = batch * tokens * grid * BF16
    q = torch.empty(batch, tokens, size, dtype=torch.bfloat16, device=META)
    rows = torch.empty(2 * grid - 1, size, dtype=torch.bfloat16, device=META)

    class Terms(torch.nn.Module):
        def forward(self, q):
            sides = (grid, grid)
            return deepencoder.add_decomposed_rel_pos(q, rows, rows, sides, sides)

    # Both tables; three terms, of which one is being laid out anew.
    assert trace_module(Terms(), META, q)[0].peak.nbytes == 2 * table + 3 * term == 1664


def test_rms_norm_keeps_the_variance():
    rows, width = 7, 16
    found = peak(lambda: modeling_deepseekv2.DeepseekV2RMSNorm(width), (rows, width))
    assert found.nbytes == 2 * FP32 * rows * width + 2 * FP32 * rows == 952


def test_rotary_tables_are_cast_one_after_the_other():
    length, size = 10, 8
    table = length * size
    with building(META, torch.bfloat16):
        rotary = modeling_deepseekv2.DeepseekV2RotaryEmbedding(size, 64)
    x = torch.empty(1, dtype=torch.bfloat16, device=META)
    trace, _ = trace_module(rotary, META, x, length)
    # Positions, angles and their double in fp32, the cosines cast, the sines before and after.
    fp32 = length + table // 2 + 2 * table
    assert trace.peak.nbytes == FP32 * fp32 + BF16 * 2 * table == 1160
