"""The level of memory at every tensor, worked out by hand for one small decoder layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from tracing import Calls, by_path, meta

from dsocr_analyze.architectures.deepseek_ocr.reference import modeling_deepseekv2
from dsocr_analyze.architectures.deepseek_ocr.reference.configuration_deepseek_v2 import (
    DeepseekV2Config,
)
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.loading import building
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.recorder import Recorder

META = torch.device("meta")

# Three tokens of width 8, two heads of size 4, an MLP of width 12.
ROW = 4 * 3  # a number per token in fp32
X = 2 * 3 * 8  # features in bf16; so are queries, keys and values
WIDE = 2 * X  # in fp32
TABLE = 2 * 3 * 4  # cosines or sines in bf16
SCORES = 2 * 2 * 3 * 3  # in bf16
INNER = 2 * 3 * 12


def norm(path: str, held: int) -> list[tuple[str, str, int]]:
    """An RMS norm beside tensors of `held` bytes; its output remains."""
    return [
        (path, "_to_copy", held + WIDE),
        (path, "pow", held + 2 * WIDE),
        (path, "mean", held + 2 * WIDE + ROW),
        (path, "add", held + WIDE + 2 * ROW),
        (path, "rsqrt", held + WIDE + 3 * ROW),
        (path, "mul", held + WIDE + 2 * ROW + WIDE),  # the variance keeps its name
        (path, "_to_copy", held + WIDE + ROW + X),
        (path, "mul", held + WIDE + ROW + 2 * X),
    ]


def rotated(held: int) -> list[tuple[str, str, int]]:
    """`x cos + half(x) sin` of queries or keys; the sum remains."""
    return [
        ("self_attn", "mul", held + X),
        ("self_attn", "neg", held + X + X // 2),
        ("self_attn", "cat", held + X + X // 2 + X),
        ("self_attn", "mul", held + 3 * X),
        ("self_attn", "add", held + 3 * X),
    ]


def traced(model: nn.Module, *inputs, alike=None, **options) -> Trace:
    with running(META), Recorder(model, alike, with_levels=True) as recorder:
        trace = recorder.begin()
        kept = model(*inputs, **options)
    del kept
    return trace


@pytest.mark.parametrize("alike", [None, by_path])
def test_of_a_decoder_layer(alike):
    config = DeepseekV2Config(
        hidden_size=8, num_attention_heads=2, num_key_value_heads=2, intermediate_size=12,
        n_routed_experts=None, use_mla=False, attn_implementation="eager",
    )  # fmt: skip
    with building(META, torch.bfloat16):
        layer = modeling_deepseekv2.DeepseekV2DecoderLayer(config, 0).eval()
    x, positions = meta(1, 3, 8, dtype=torch.bfloat16), meta(1, 3, dtype=torch.int64)
    rotary, heads = "self_attn.rotary_emb", 4 * X + 2 * TABLE  # the norm, q, k, v and the tables
    attended = heads + SCORES
    assert traced(layer, x, position_ids=positions, alike=alike).levels == [
        *norm("input_layernorm", 0),
        ("self_attn.q_proj", "linear", 2 * X),
        ("self_attn.k_proj", "linear", 3 * X),
        ("self_attn.v_proj", "linear", 4 * X),
        (rotary, "_to_copy", 4 * X + ROW),  # positions
        (rotary, "matmul", 4 * X + ROW + 2 * ROW),  # an angle for each pair of four features
        (rotary, "cat", 4 * X + 3 * ROW + 2 * TABLE),
        (rotary, "cos", 4 * X + 3 * ROW + 4 * TABLE),
        (rotary, "sin", 4 * X + 3 * ROW + 6 * TABLE),
        (rotary, "mul", 4 * X + 3 * ROW + 8 * TABLE),
        (rotary, "mul", 4 * X + 3 * ROW + 8 * TABLE),
        (rotary, "_to_copy", 4 * X + 3 * ROW + 7 * TABLE),
        (rotary, "_to_copy", 4 * X + 3 * ROW + 8 * TABLE),
        *rotated(heads),
        *rotated(heads + X),  # the rotated queries; both names are bound anew at once
        ("self_attn", "matmul", heads + SCORES),
        ("self_attn", "div", heads + 2 * SCORES),
        ("self_attn", "_to_copy", heads + SCORES + 2 * SCORES),
        ("self_attn", "softmax", heads + SCORES + 4 * SCORES),
        ("self_attn", "_to_copy", heads + SCORES + 2 * SCORES + SCORES),
        ("self_attn", "matmul", attended + X),
        ("self_attn", "clone", attended + 2 * X),
        ("self_attn.o_proj", "linear", attended + 2 * X),
        ("", "add", 2 * X),
        *norm("post_attention_layernorm", X),
        ("mlp.gate_proj", "linear", 2 * X + INNER),
        ("mlp.act_fn", "silu", 2 * X + 2 * INNER),
        ("mlp.up_proj", "linear", 2 * X + 2 * INNER),
        ("mlp", "mul", 2 * X + 3 * INNER),
        ("mlp.down_proj", "linear", 3 * X + INNER),
        ("", "add", 3 * X),
    ]


def test_a_copied_operand_and_each_output_has_an_entry_of_its_own():
    trace = traced(nn.LayerNorm(8, device=META), meta(8, 6).t())
    assert [(level.operator, level.nbytes) for level in trace.levels] == [
        ("clone", 192), ("native_layer_norm", 192 + 192), ("native_layer_norm", 192 + 192 + 24),
        ("native_layer_norm", 192 + 192 + 48),
    ]  # fmt: skip


def test_views_and_tensors_written_in_place_have_none():
    trace = traced(Calls(lambda x: (x + 1).mul_(2).view(3, 2)), meta(2, 3))
    assert trace.levels == [("", "add", 24)]


def test_what_an_operator_makes_on_its_way_is_made_under_its_name():
    trace = traced(
        Calls(lambda q, r: torch.einsum("bhwc,hkc->bhwk", q, r)), meta(3, 4, 4, 2), meta(4, 4, 2)
    )
    assert trace.levels == [("", "clone", 384), ("", "einsum", 384 + 4 * 192)]


def test_enlarged_memory_is_alive_twice_while_it_grows():
    def grown(x):
        y = x + 1
        return y.resize_(10)

    trace = traced(Calls(grown), meta(4))
    assert trace.levels == [("", "add", 16), ("", "grow", 16 + 40)]


def test_the_peak_is_the_highest_and_without_being_asked_nothing_is_kept():
    model = Calls(lambda x: (x + 1).sum())
    x = meta(2, 3)
    trace = traced(model, x)
    assert trace.peak.nbytes == max(level.nbytes for level in trace.levels) == 28
    with torch.no_grad(), Recorder(model) as recorder:
        quiet = recorder.begin()
        model(x)
    assert (quiet.levels, quiet.peak) == ([], trace.peak)
