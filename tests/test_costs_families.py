"""Every layer family against integers worked out by hand; the arithmetic is the derivation.

Those of the vision side are in `test_costs_vision.py`.
"""

from dataclasses import replace

import pytest

from dsocr_analyze.costs import integers
from dsocr_analyze.costs.activations import ACTIVATIONS, activation, gelu, quick_gelu
from dsocr_analyze.costs.decoder_attention import (
    causal_savable_macs,
    decoder_attention,
    decoder_attention_params,
    flash_attention,
    masked_softmax,
    position_check,
)
from dsocr_analyze.costs.embedding import embedding, embedding_params
from dsocr_analyze.costs.kv_cache import append, cache_bytes, latent_width, mha_width
from dsocr_analyze.costs.linear import linear, linear_params
from dsocr_analyze.costs.lm_head import lm_head, lm_head_params
from dsocr_analyze.costs.mla import LatentHeads, mla_attention, mla_params
from dsocr_analyze.costs.moe import (
    Routing,
    evenly_touched,
    gate,
    moe,
    moe_params,
    routed_experts,
)
from dsocr_analyze.costs.normalization import layer_norm, layer_norm_2d, layer_norm_fp32, rms_norm
from dsocr_analyze.costs.rope import dynamic_update, llama_tables, rotation, table_rows, tables
from dsocr_analyze.costs.sums import work_of, work_of_modules
from dsocr_analyze.costs.swiglu import swiglu, swiglu_params
from dsocr_analyze.dtypes import BFLOAT16, FLOAT16, FLOAT32
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.kernels import KernelsOf

BF16, FP16, FP32 = BFLOAT16, FLOAT16, FLOAT32
CPU = KernelsOf("cpu")
E = BF16.nbytes
LATENT = LatentHeads(heads=3, q_rank=7, kv_rank=6, nope=4, rope=2, value=5)


def every(modules):
    """Kernels of a module and all its children."""
    return tuple(kernel for kernels in modules.values() for kernel in kernels)


# Case, kernels, and by hand: macs, vector FLOPs, activations, bytes read, bytes written.
CASES = {
    "linear": (
        linear(5, 3, 4, BF16, bias=True),
        (5 * 3 * 4, 5 * 4, 5 * 4, E * (5 * 3 + 3 * 4 + 4), E * 5 * 4),
    ),
    "linear without bias": (
        linear(5, 3, 4, BF16),
        (60, 0, 20, E * (15 + 12), E * 20),
    ),
    "embedding": (embedding(6, 10, BF16), (0, 0, 0, 6 * 10 * E + 6 * 8, 6 * 10 * E)),
    "layer_norm": (layer_norm(6, 10, BF16), (0, 5 * 60, 0, E * (60 + 20), E * 60)),
    "layer_norm over channels that lie first": (  # 60 features laid out anew
        layer_norm(6, 10, BF16, channels_first=True),
        (0, 5 * 60, 0, E * 60 + E * (60 + 20), E * 60 + E * 60),
    ),
    "layer_norm_fp32": (  # cast, norm in fp32 with weights in bf16, cast
        layer_norm_fp32(6, 10, BF16),
        (0, 5 * 60, 0, 60 * 2 + 60 * 4 + 20 * 2 + 60 * 4, 60 * 4 + 60 * 4 + 60 * 2),
    ),
    "layer_norm_2d": (  # mean, -, ^2, mean, -, + eps, sqrt, /, * w, + b
        layer_norm_2d(2, 3, 4, BF16),
        (
            0,
            24 + 24 + 24 + 24 + 24 + 8 + 8 + 24 + 24 + 24,
            0,
            E * (24 + 32 + 24 + 24 + 32 + 8 + 8 + 32 + 27 + 27),
            E * (8 + 24 + 24 + 8 + 24 + 8 + 8 + 24 + 24 + 24),
        ),
    ),
    "rms_norm": (  # cast, ^2, mean, + eps, rsqrt, *, cast, * w
        rms_norm(6, 10, BF16),
        (
            0,
            60 + 60 + 6 + 6 + 60 + 60,
            0,
            120 + 240 + 240 + 24 + 24 + (240 + 24) + 240 + (20 + 120),
            240 + 240 + 24 + 24 + 24 + 240 + 120 + 120,
        ),
    ),
    "rms_norm in fp32": (  # no casts
        rms_norm(6, 10, FP32),
        (0, 252, 0, 240 + 240 + 24 + 24 + 264 + 280, 240 + 24 + 24 + 24 + 240 + 240),
    ),
    "gelu": (gelu(10, BF16), (0, 50, 0, 20, 20)),
    "quick_gelu": (quick_gelu(10, BF16), (0, 10 + 40 + 10, 0, 20 + 20 + 40, 20 + 20 + 20)),
    "flash attention": (  # GQA: 4 heads, 2 of keys and values; 3 new tokens over 7
        flash_attention(2, 3, 7, 4, 2, 5, BF16),
        (
            2 * (2 * 4 * 3 * 7 * 5),
            6 * 2 * 4 * 3 * 7,
            2 * 3 * 4 * 5,
            E * (120 + 2 * (2 * 7 * 2 * 5)),
            E * 120,
        ),
    ),
    "rotation": (  # 2 x 3 tokens, 5 heads of 4: n = 120; * cos, -half, cat, * sin, +
        rotation(2, 3, 5, 4, BF16, pairs=False),  # cosines and sines of 2 x 3 positions: 24 each
        (0, 120 + 60 + 120 + 120, 0, E * (144 + 60 + 120 + 144 + 240), E * (4 * 120 + 60)),
    ),
    "rotation of pairs": (
        rotation(2, 3, 5, 4, BF16, pairs=True),
        (0, 420, 0, E * (708 + 120), E * (540 + 120)),
    ),
    "rotary tables, computed": (  # 2 x 3 positions, 2 frequencies: 12 angles, 24 with both halves
        llama_tables(2, 3, 4, BF16),
        (
            12,
            2 * 24 + 2 * 24,
            12,
            6 * 8 + 4 * (2 + 6) + 4 * 24 + 4 * 96 + 2 * 96,
            6 * 4 + 4 * 12 + 96 + 4 * 96 + 2 * 48,
        ),
    ),
    "rotary tables, kept": (  # range, outer product, both halves, cosine and sine, casts
        tables("default", 3, 4, BF16),
        (0, 6 + 24, 0, 4 * 5 + 48 + 96 + 96, 12 + 24 + 48 + 96 + 48),
    ),
    "rotary tables, linear": (  # one quotient a position more
        tables("linear", 3, 4, BF16),
        (0, 30 + 3, 0, 260 + 12, 228 + 12),
    ),
    "rotary tables, dynamic": (tables("dynamic", 3, 4, BF16), (0, 30, 0, 260, 228)),
    "rotary tables, dynamic, beyond": (  # range, cast, transfer, /, pow, 1 /, * of 2
        dynamic_update(4),
        (0, 4 * 2, 0, 2 * (8 + 4 + 4 * 4), 2 * (8 + 4 + 4 + 4 * 4)),
    ),
    "rotary tables, dynamic, beyond, on the CPU": (  # no transfer
        dynamic_update(4, CPU),
        (0, 4 * 2, 0, 2 * (8 + 4 * 4), 2 * (8 + 4 + 4 * 4)),
    ),
    "rotary tables, yarn": (
        # 17 operators on 2 frequencies, 3 of them on two; 3 ranges, 1 transfer; scales of 12 + 12
        tables("yarn", 3, 4, BF16),
        (
            0,
            30 + 24 + 17 * 2,
            0,
            260 + 96 + (17 + 3 + 1) * 2 * 4,
            228 + 96 + (17 + 3 + 1) * 2 * 4,
        ),
    ),
    "rotary tables, yarn, on the CPU": (  # no transfer
        tables("yarn", 3, 4, BF16, CPU),
        (0, 88, 0, 260 + 96 + (17 + 3) * 2 * 4, 228 + 96 + (17 + 3) * 2 * 4),
    ),
    "swiglu": (
        every(swiglu(5, 3, 4, BF16)),
        (
            3 * 60,
            5 * 20 + 20,
            20 + 20 + 15,
            2 * E * (15 + 12) + E * 20 + E * 40 + E * (20 + 12),
            2 * E * 20 + E * 20 + E * 20 + E * 15,
        ),
    ),
    "lm_head": (
        every(lm_head(5, 3, 11, BF16)),
        (5 * 33, 0, 55, E * (15 + 33) + 55 * 2, E * 55 + 55 * 4),
    ),
    "router": (  # 5 tokens, 3 wide, 4 experts, 2 chosen: casts, logits, softmax, top, scale
        gate(5, 3, Routing(experts=4, per_token=2), BF16),
        (
            5 * 3 * 4,
            5 * 20 + 20 + 10,
            20,
            15 * 2 + 12 * 2 + 4 * (15 + 12) + 80 + 80 + 40,
            15 * 4 + 12 * 4 + 80 + 80 + 10 * 12 + 40,
        ),
    ),
    "router in fp32, sigmoid, normalised": (
        gate(5, 3, Routing(4, 2, scoring="sigmoid", normalized=True), FP32),
        (
            60,
            4 * 20 + 20 + (10 + 5 + 10) + 10,
            20,
            108 + 160 + 40 + 20 + 60 + 40,
            160 + 120 + 80 + 40,
        ),
    ),
    "masked softmax": (  # 2 x 3 tokens over 7, 4 heads: 168 scores, mask of 42; cast, softmax, cast
        masked_softmax(2, 3, 7, 4, BF16),
        (
            0,
            168 + 5 * 168,
            0,
            E * (168 + 42) + E * 168 + 4 * 168 + 4 * 168,
            E * 168 + 4 * 168 + 4 * 168 + E * 168,
        ),
    ),
    "masked softmax in fp16": (  # which CUDA's kernel reads as it is
        masked_softmax(2, 3, 7, 4, FP16),
        (0, 6 * 168, 0, 2 * 210 + 2 * 168 + 4 * 168, 2 * 168 + 4 * 168 + 2 * 168),
    ),
    "masked softmax in fp16 on the CPU": (  # which casts it as well
        masked_softmax(2, 3, 7, 4, FP16, CPU),
        (0, 6 * 168, 0, 2 * 210 + 2 * 168 + 2 * 672, 2 * 168 + 2 * 672 + 2 * 168),
    ),
    "masked softmax of a step": (  # 56 scores, mask of 14; in fp32 no casts
        masked_softmax(2, 1, 7, 4, FP32),
        (0, 56 + 5 * 56, 0, 4 * (56 + 14) + 4 * 56, 4 * 56 + 4 * 56),
    ),
    "position check": (  # of 2 sequences: 8 differences, 8 comparisons, all of them
        position_check(2, 5),
        (0, 8 + 8 + 8, 0, 2 * 64 + 64 + 8, 64 + 8 + 1),
    ),
    "laying out a shared head": (  # 2 x 7 keys of 3: read once, written for each of 4 heads
        decoder_attention(2, 1, 6, 12, 4, 1, 3, FP32, flash=False)[""][-7:-6],
        (0, 0, 0, 4 * 2 * 7 * 3, 4 * 2 * 7 * 12),
    ),
    "rows of rotary tables": (table_rows(3, 4, BF16), (0, 0, 0, 2 * (24 + 24), 2 * 24)),
    "dispatch": (  # 5 tokens, 3 wide, 4 experts, 2 chosen: 10 choices, 30 features
        moe(5, 3, 7, 0, Routing(experts=4, per_token=2), BF16)[""],
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
    "growing the cache": (append(2, 9, 16, BF16), (0, 0, 0, 2 * 10 * 16 * E, 2 * 10 * 16 * E)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_family_costs_what_hand_work_says(name):
    kernels, by_hand = CASES[name]
    assert tuple(work_of(kernels)) == by_hand


@pytest.mark.parametrize("name", CASES)
def test_counts_are_python_integers(name):
    for kernel in CASES[name][0]:
        counts = (*kernel.work, *kernel.dimensions, kernel.calls)
        assert {type(count) for count in counts} <= {int, bool}


# Kernels, and by hand: their operators in the order of the code, with rows, widths or elements.
ORDERS = {
    "rms_norm": (
        rms_norm(6, 10, BF16),
        "_to_copy 60 bfloat16 float32, pow 60, mean 6 x 10, add 6, rsqrt 6, mul 60,"
        " _to_copy 60 float32 bfloat16, mul 60 bfloat16",
    ),
    "rotation of pairs": (
        rotation(2, 3, 5, 4, BF16, pairs=True),
        "clone 120 bfloat16, mul 120 bfloat16, neg 60 bfloat16, cat 120 bfloat16, mul 120 bfloat16,"
        " add 120 bfloat16",
    ),
    "masked softmax": (
        masked_softmax(2, 3, 7, 4, BF16),
        "add 168 bfloat16, _to_copy 168 bfloat16 float32, softmax 24 x 7,"
        " _to_copy 168 float32 bfloat16",
    ),
    "masked softmax in fp16": (
        masked_softmax(2, 3, 7, 4, FP16),
        "add 168 float16, softmax 24 x 7 float16 float32, _to_copy 168 float32 float16",
    ),
    "position check": (
        position_check(2, 5),
        "sub 8 int64, ge 8 int64 bool, all 1 x 8 bool",
    ),
    "router of groups": (
        gate(5, 3, Routing(8, 2, method="group_limited_greedy", groups=4, top_groups=2), BF16),
        "_to_copy 15 bfloat16 float32, _to_copy 24 bfloat16 float32, linear 1 x 5 x 8 x 3,"
        " softmax 5 x 8, max 20 x 2, topk 5 x 4, zeros_like 20, scatter 20, clone 40,"
        " _to_copy 40 float32 bool, bitwise_not 40 bool, masked_fill 40, topk 5 x 8, mul 10",
    ),
    "router with a bias": (
        gate(5, 3, Routing(8, 2, "sigmoid", "noaux_tc", 4, 2, True), FP32),
        "linear 1 x 5 x 8 x 3, sigmoid 40, add 40, topk 20 x 2, sum 20 x 2, topk 5 x 4,"
        " zeros_like 20, scatter 20, clone 40, _to_copy 40 float32 bool, bitwise_not 40 bool,"
        " masked_fill 40, topk 5 x 8, gather 10, sum 5 x 2, add 5, div 10, mul 10",
    ),
    "dispatch": (
        moe(5, 3, 7, 6, Routing(experts=4, per_token=2), FP32)[""],
        "new_zeros 20 int64, scatter 20 int64, sum 4 x 5 int64, transfer 4 int64,"
        " sort 1 x 10 int64, floor_divide 10 int64, index 30, cat 30, index_put 30, mul 30,"
        " sum 15 x 2, add 15",
    ),
    "plain attention of a step": (
        decoder_attention(2, 1, 6, 12, 4, 2, 3, FP32, flash=False)[""][-8:],
        "cat 84, clone 168, clone 168, matmul 8 x 1 x 7 x 3, div 56, add 56, softmax 8 x 7,"
        " matmul 8 x 1 x 3 x 7",
    ),
    "plain attention of a shared head": (  # which each product lays out for its own use
        decoder_attention(2, 1, 6, 12, 4, 1, 3, FP32, flash=False)[""][-8:],
        "cat 42, clone 168, matmul 8 x 1 x 7 x 3, div 56, add 56, softmax 8 x 7, clone 168,"
        " matmul 8 x 1 x 3 x 7",
    ),
    "plain attention of a prompt": (
        decoder_attention(1, 3, 0, 8, 4, 4, 2, FP32, flash=False)[""][-7:],
        "add 24, matmul 4 x 3 x 3 x 2, div 36, add 36, softmax 12 x 3, matmul 4 x 3 x 2 x 3,"
        " clone 24",
    ),
    "plain attention of prompts": (  # queries, keys; values: heads behind tokens
        decoder_attention(2, 3, 0, 8, 4, 4, 2, FP32, flash=False)[""][-10:],
        "add 48, clone 48, clone 48, matmul 8 x 3 x 3 x 2, div 72, add 72, softmax 24 x 3,"
        " clone 48, matmul 8 x 3 x 2 x 3, clone 48",
    ),
    "absorbed attention": (
        mla_attention(1, 5, 0, 11, LATENT, FP32, flash=False)[""][-10:],
        "matmul 3 x 5 x 6 x 4, matmul 3 x 5 x 5 x 2, matmul 3 x 5 x 5 x 6, add 75, mul 75, add 75,"
        " softmax 15 x 5, einsum 1 x 15 x 6 x 5, matmul 3 x 5 x 5 x 6, clone 75",
    ),
    "absorbed attention of two prompts": (
        # Laid out: queries, W_k of both sequences, k_pe and c of the heads, W_v of both sequences.
        mla_attention(2, 5, 0, 11, replace(LATENT, rope=4), FP32, flash=False)[""][-15:],
        "clone 120, clone 144, matmul 6 x 5 x 6 x 4, clone 120, matmul 6 x 5 x 5 x 4,"
        " clone 180, matmul 6 x 5 x 5 x 6, add 150, mul 150, add 150, softmax 30 x 5,"
        " einsum 2 x 15 x 6 x 5, clone 180, matmul 6 x 5 x 5 x 6, clone 150",
    ),
    "absorbed attention of a step of two": (  # one token's queries lie as they should
        mla_attention(2, 1, 6, 11, replace(LATENT, rope=4), FP32, flash=False)[""][-14:],
        "cat 84, clone 144, matmul 6 x 1 x 6 x 4, clone 168, matmul 6 x 1 x 7 x 4, clone 252,"
        " matmul 6 x 1 x 7 x 6, add 42, mul 42, add 42, softmax 6 x 7, einsum 2 x 3 x 6 x 7,"
        " clone 180, matmul 6 x 1 x 5 x 6",
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_kernels_are_the_operators_of_the_code_in_its_order(name):
    kernels, by_hand = ORDERS[name]
    spelled = []
    for kernel in kernels:
        sizes = " x ".join(str(size) for size in kernel.dimensions)
        dtypes = [kernel.dtype]
        if kernel.output_dtype != kernel.dtype:
            dtypes.append(kernel.output_dtype)
        if dtypes == ["float32"]:
            dtypes = []
        spelled.append(" ".join((kernel.operator, sizes, *dtypes)))
    assert ", ".join(spelled) == by_hand


class TestMatrixWork:
    def test_of_eager_and_flash_attention_is_the_same(self):
        eager, flash = (
            work_of_modules(decoder_attention(2, 7, 0, 12, 4, 2, 3, BF16, flash=flash))
            for flash in (False, True)
        )
        scores = 2 * 4 * 7 * 7
        linears = 14 * 12 * (12 + 6 + 6) + 14 * 12 * 12
        assert eager.macs == flash.macs == linears + 2 * 7 * 1 + 2 * scores * 3
        assert eager.activations - flash.activations == scores
        assert flash.bytes_read < eager.bytes_read

    def test_of_absorbed_latent_attention(self):
        """5 tokens, 11 wide, 3 heads: ranks 7 and 6, 4 + 2 features, values of 5."""
        work = work_of_modules(mla_attention(1, 5, 0, 11, LATENT, BF16, flash=False))
        projections = 5 * (11 * 7 + 7 * 3 * 6 + 11 * 8 + 3 * 5 * 11)
        absorbed = 5 * 3 * 4 * 6 + 5 * 3 * 6 * 5
        scores = 5 * 5 * 3
        assert work.macs == projections + absorbed + scores * (2 + 6) + scores * 6

    def test_of_latent_attention_by_flash(self):
        work = work_of_modules(mla_attention(1, 5, 0, 11, LATENT, BF16, flash=True))
        projections = 5 * (11 * 7 + 7 * 3 * 6 + 11 * 8 + 6 * 3 * 9 + 3 * 5 * 11)
        assert work.macs == projections + 2 * (5 * 5 * 3 * 6)

    def test_of_a_mixture_is_that_of_its_choices(self):
        routing = Routing(experts=4, per_token=2)
        work = work_of_modules(moe(5, 3, 7, 6, routing, BF16))
        assert work.macs == 5 * 3 * 4 + 3 * (10 * 3 * 7) + 3 * (5 * 3 * 6)


class TestCausality:
    def test_what_a_causal_kernel_may_skip(self):
        """Of 4 queries the first sees none of the 3 after it, the second of 2, the third of 1."""
        (kernel,) = flash_attention(2, 4, 4, 3, 3, 5, BF16)
        assert kernel.dimensions.skippable_scores == 2 * 3 * (3 + 2 + 1)
        assert causal_savable_macs(2, 4, 3, 10) == 2 * 3 * 6 * 10

    def test_one_new_token_skips_nothing(self):
        (kernel,) = flash_attention(2, 1, 9, 3, 3, 5, BF16)
        assert kernel.dimensions.skippable_scores == 0


class TestRouting:
    @pytest.mark.parametrize(
        ("tokens", "touched"), [(1, 6), (10, 60), (11, 64), (32, 64), (703, 64)]
    )
    def test_choices_spread_evenly(self, tokens, touched):
        assert evenly_touched(tokens, Routing(experts=64, per_token=6)) == touched

    @pytest.mark.parametrize("tokens", [1, 2, 3, 9])
    def test_all_experts_together_are_the_sum_of_each(self, tokens):
        routing = Routing(experts=5, per_token=2)
        each = work_of_modules(routed_experts(tokens, 3, 7, routing, BF16))
        together = moe(tokens, 3, 7, 0, routing, BF16)["experts"]
        assert work_of(together) == each
        assert len(together) == 5

    def test_experts_one_by_one(self):
        """3 tokens choose 2 of 5 each: the first takes two tokens, the others one."""
        routing = Routing(experts=5, per_token=2)
        modules = moe(3, 3, 7, 0, routing, BF16, each_expert=True)
        rows = [modules[f"experts.{index}.gate_proj"][0].dimensions.m for index in range(5)]
        assert rows == [2, 1, 1, 1, 1]
        assert "experts" not in modules

    def test_methods_differ_in_routing_alone(self):
        greedy, limited, biased = (
            work_of(gate(5, 3, Routing(8, 2, method=method, groups=4, top_groups=2), BF16))
            for method in ("greedy", "group_limited_greedy", "noaux_tc")
        )
        assert greedy.macs == limited.macs == biased.macs
        # best of each group; top groups; inverted mask
        assert limited.vector_flops - greedy.vector_flops == 40 + 20 + 40
        # bias; top two of each group; their sum; top groups; inverted mask
        assert biased.vector_flops - greedy.vector_flops == 40 + 40 + 40 + 20 + 40


def test_bytes_of_a_plain_and_a_latent_cache():
    assert cache_bytes(1, 1, 12, mha_width(10, 128), 2) == 61_440
    assert cache_bytes(3, 100, 12, latent_width(512, 64), 2) == 3 * 100 * 12 * 576 * 2


class TestParams:
    def test_of_simple_layers(self):
        assert linear_params(3, 4, bias=True) == 3 * 4 + 4
        assert embedding_params(7, 4) == 28
        assert swiglu_params(3, 4) == 36
        assert lm_head_params(3, 11) == 33
        assert lm_head_params(3, 11, tied=True) == 0

    def test_of_attention(self):
        assert decoder_attention_params(12, 4, 2, 3, bias=True) == (
            12 * 12 + 12 + 2 * (12 * 6 + 6) + 12 * 12 + 12
        )
        assert mla_params(11, LATENT) == (11 * 7 + 7 + 7 * 18 + 11 * 8 + 6 + 6 * 3 * 9 + 15 * 11)

    def test_of_a_mixture(self):
        routing = Routing(4, 2, method="noaux_tc")
        assert moe_params(3, 7, 6, routing) == 3 * 4 + 4 + 4 * 3 * 21 + 3 * 18


class TestIntegers:
    def test_rounding_up(self):
        assert [integers.ceil_div(a, 4) for a in (0, 1, 4, 5)] == [0, 1, 1, 2]

    @pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 1023, 1024, 1025, 2**53, 2**53 + 1, 2**60 - 1])
    def test_logarithms_are_exact_in_arrays_too(self, n):
        np = pytest.importorskip("numpy")
        assert integers.ceil_log2(n) == (n - 1).bit_length()
        assert integers.ceil_log2(np.array([n]))[0] == (n - 1).bit_length()
        assert integers.ceil_log2(np.array([n], dtype=object))[0] == (n - 1).bit_length()

    def test_no_rounding_beyond_a_float(self):
        """Odd counts above 2^53 keep their last digit."""
        rows = 2**53 + 1
        assert work_of(linear(rows, 3, 1, BF16)).macs == 3 * rows
        assert causal_savable_macs(1, rows, 1, 1) == rows * (rows - 1) // 2


def test_an_activation_without_a_closed_form_is_an_error_that_names_the_others():
    with pytest.raises(ConfigError, match=r"swoosh.*give one of silu, swish"):
        activation("swoosh", 1, BF16)
    assert activation("linear", 10, BF16) == ()
    assert set(ACTIVATIONS) >= {"silu", "gelu", "relu"}
