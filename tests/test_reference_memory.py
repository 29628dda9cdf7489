"""What the reference keeps alive, worked out by hand: tensors of bf16 beside weights and inputs."""

from __future__ import annotations

import torch
from tracing import Calls

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


def clip(layers):
    return {"hidden_size": 8, "num_attention_heads": 2, "ffn_hidden_size": 32, "num_layers": layers,
            "image_size": 4, "patch_size": 2, "layernorm_epsilon": 1e-5}  # fmt: skip


def test_clip_keeps_embeddings_and_their_norm_through_the_stack_and_a_block_attentions_output():
    """Beside the sum and the norm; the table needs no resizing."""
    x, hidden = 5 * 8 * BF16, 5 * 32 * BF16  # five tokens: the class and 2 x 2 patches
    found = peak(lambda: deepencoder.NoTPTransformerBlock(clip(1), 1), (1, 5, 8))
    assert found.nbytes == 3 * x + 3 * hidden == 1200
    found = peak(lambda: deepencoder.VitModel(clip(3)), (1, 3, 4, 4), (1, 8, 2, 2))
    assert found.nbytes == 2 * x + x + 3 * x + 3 * hidden == 1440  # and the layer before


def test_a_windowed_block_lets_go_of_the_norm_once_it_is_cut_into_windows():
    side, window, width, heads = 6, 4, 8, 2
    windows = 2 * 2  # the grid padded to 8 x 8
    features = windows * window**2 * width * BF16
    term, bias = (windows * heads * window**power * BF16 for power in (3, 4))
    options = {"use_rel_pos": True, "window_size": window, "input_size": (side, side)}
    found = peak(lambda: deepencoder.Block(width, heads, **options), (1, side, side, width))
    # The windows; q, k and v as projected and as split by head; bias and terms; output, projected.
    assert found.nbytes == features + 6 * features + bias + 2 * term + 2 * features == 15360
    assert found.path == "attn.proj"


def test_the_terms_of_relative_positions_are_let_go_of_once_they_are_laid_out():
    grid, tokens, size, batch = 4, 16, 8, 3
    table = grid * grid * size * BF16
    term = batch * tokens * grid * BF16
    q = torch.empty(batch, tokens, size, dtype=torch.bfloat16, device=META)
    rows = torch.empty(2 * grid - 1, size, dtype=torch.bfloat16, device=META)

    terms = Calls(deepencoder.add_decomposed_rel_pos)
    found, _ = trace_module(terms, META, q, rows, rows, (grid, grid), (grid, grid))
    # Both tables; three terms, of which one is being laid out anew.
    assert found.peak.nbytes == 2 * table + 3 * term == 1664


def test_rms_norm_keeps_the_variance():
    rows, width = 7, 16
    found = peak(lambda: modeling_deepseekv2.DeepseekV2RMSNorm(width), (rows, width))
    assert found.nbytes == 2 * FP32 * rows * width + 2 * FP32 * rows == 952


def test_rotary_tables_are_cast_one_after_the_other():
    length, size, table = 10, 8, 10 * 8
    with building(META, torch.bfloat16):
        rotary = modeling_deepseekv2.DeepseekV2RotaryEmbedding(size, 64)
    x = torch.empty(1, dtype=torch.bfloat16, device=META)
    trace, _ = trace_module(rotary, META, x, length)
    # Positions, angles and their double in fp32, the cosines cast, the sines before and after.
    fp32 = length + table // 2 + 2 * table
    assert trace.peak.nbytes == FP32 * fp32 + BF16 * 2 * table == 1160
