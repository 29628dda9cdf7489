"""Forwards of the decoder: by hand, and each module beside a trace of that module alone.

Whole decoders are compared in `test_tape_gate.py`.
"""

import dataclasses

import pytest
import torch
from sampling import every, sampled
from taped import DTYPES, alone, assert_same, features, of_type, on_meta, own, params, summed

from dsocr_analyze.architectures.deepseek_ocr.reference import modeling_deepseekv2
from dsocr_analyze.architectures.deepseek_ocr.reference.configuration_deepseek_v2 import (
    DeepseekV2Config,
)
from dsocr_analyze.architectures.key_value_cache import GrowingCache
from dsocr_analyze.architectures.ocr_family.attention import (
    Pass,
    _check_positions,
    attention,
    cached,
    flash_attention,
)
from dsocr_analyze.architectures.ocr_family.decoder import (
    _gate,
    latent_attention,
    lm_head,
    mixture,
    rotary_embedding,
)
from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions
from dsocr_analyze.dtypes import BFLOAT16, FLOAT16, FLOAT32
from dsocr_analyze.model.known_values import KnownValues
from dsocr_analyze.tape import Tape

BF16, FP16, FP32 = BFLOAT16, FLOAT16, FLOAT32
E = BF16.nbytes

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


def of_config(**changes):
    return DecoderDimensions.from_config(CONFIG | changes)


def decoder(**fields):
    """Dimensions with any fields, also some that no config file gives."""
    return dataclasses.replace(of_config(), **fields)


def heads_of(heads, kv_heads, D, width, **more):
    return decoder(heads=heads, kv_heads=kv_heads, head_dim=D, hidden_size=width, **more)


class SharedOf6(DecoderDimensions):
    """With a width of the shared experts that is no multiple of a routed one's."""

    shared_intermediate_size = 6


def experts_of(E, k, *, shared=0, **more):
    fields = {
        "hidden_size": 3,
        "n_routed_experts": E,
        "num_experts_per_tok": k,
        "moe_intermediate_size": 7,
        "n_shared_experts": None,
    }
    c = decoder(**fields | more)
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


def attend(t, c, p, forward=attention):
    """One pass of attention; a mask unless it is by flash."""
    mask = None if p.flash else features(t, p.tokens, p.keys)
    return forward(t, features(t, p.tokens, c.hidden_size), mask, p, c)


def latent(t, c, p):
    return attend(t, c, p, latent_attention)


def flash_of(c, p):
    n = p.tokens * c.heads * c.head_dim
    kv = p.B * p.keys * c.kv_heads * c.head_dim
    return lambda t: flash_attention(t, features(t, n), features(t, kv), features(t, kv), p, c)


def routed(c, n):
    return lambda t: mixture(t, features(t, n, c.hidden_size), Pass(1, n), c)


def kept_tables(K, scaling=None, trained=4096):
    c = decoder(qk_rope_head_dim=4, rope_scaling=scaling, max_position_embeddings=trained)
    return lambda t: rotary_embedding(t, K, c)


def softmax_of(records):
    """The mask's sum, the softmax and its casts, of eager attention's records."""
    names = [kernel.operator for kernel in records]
    start = names.index("div") + 1
    return records[start : names.index("matmul", start)]


def eager(c, p, dtype=BF16):
    return own(alone(lambda t: attend(t, c, p), dtype))


GROUPED = heads_of(4, 2, 5, 24)
FOUR = heads_of(4, 4, 2, 8)

FIVE = own(alone(lambda t: latent(t, dataclasses.replace(WIDER, heads=5), Pass(2, 3))))
PAIRS = [FIVE[2], *FIVE[4:9]]
"""Queries of 2 x 3 tokens, 5 heads of 4, laid out and rotated; the key is laid out in between."""

# Case, records, and by hand: macs, vector FLOPs, activations, bytes read, bytes written.
CASES = {
    "flash attention": (  # GQA: 4 heads, 2 of keys and values; 3 new tokens over 7
        alone(flash_of(GROUPED, Pass(2, 3, 4, flash=True))).kernels,
        (
            2 * (2 * 4 * 3 * 7 * 5),
            6 * 2 * 4 * 3 * 7,
            2 * 3 * 4 * 5,
            E * (120 + 2 * (2 * 7 * 2 * 5)),
            E * 120,
        ),
    ),
    "rotation of pairs": (PAIRS, (0, 420, 0, E * (708 + 120), E * (540 + 120))),
    "rotary tables, kept": (  # range, outer product, both halves, cosine and sine, casts
        alone(kept_tables(3)).kernels,
        (0, 6 + 24, 0, 4 * 5 + 48 + 96 + 96, 12 + 24 + 48 + 96 + 48),
    ),
    "rotary tables, linear": (  # one quotient a position more
        alone(kept_tables(3, "linear")).kernels,
        (0, 30 + 3, 0, 260 + 12, 228 + 12),
    ),
    "rotary tables, dynamic": (alone(kept_tables(3, "dynamic")).kernels, (0, 30, 0, 260, 228)),
    "rotary tables, dynamic, beyond": (  # range, cast, transfer, /, pow, 1 /, * of 2
        alone(kept_tables(3, "dynamic", trained=2)).kernels,
        (
            0,
            30 + 4 * 2,
            0,
            260 + 2 * (8 + 4 + 4 * 4),
            228 + 2 * (8 + 4 + 4 + 4 * 4),
        ),
    ),
    "rotary tables, yarn": (
        # 17 operators on 2 frequencies, 3 of them on two; 3 ranges, 1 transfer; scales of 12 + 12
        alone(kept_tables(3, "yarn")).kernels,
        (
            0,
            30 + 24 + 17 * 2,
            0,
            260 + 96 + (17 + 3 + 1) * 2 * 4,
            228 + 96 + (17 + 3 + 1) * 2 * 4,
        ),
    ),
    "lm_head": (  # and the logits' cast
        alone(
            lambda t: t.cast(
                t.call(
                    "lm_head",
                    lm_head,
                    features(t, 5, 3),
                    Pass(1, 5),
                    decoder(hidden_size=3, vocab_size=11),
                ),
                FP32,
            )
        ).kernels,
        (5 * 33, 0, 55, E * (15 + 33) + 55 * 2, E * 55 + 55 * 4),
    ),
    "router": (  # 5 tokens, 3 wide, 4 experts, 2 chosen: casts, logits, softmax, top, scale
        alone(lambda t: _gate(t, features(t, 5, 3), 5, experts_of(4, 2))).kernels,
        (
            5 * 3 * 4,
            5 * 20 + 20 + 10,
            20,
            15 * 2 + 12 * 2 + 4 * (15 + 12) + 80 + 80 + 40,
            15 * 4 + 12 * 4 + 80 + 80 + 10 * 12 + 40,
        ),
    ),
    "router in fp32, sigmoid, normalised": (
        alone(
            lambda t: _gate(
                t,
                features(t, 5, 3),
                5,
                experts_of(4, 2, scoring_func="sigmoid", norm_topk_prob=True),
            ),
            FP32,
        ).kernels,
        (
            60,
            4 * 20 + 20 + (10 + 5 + 10) + 10,
            20,
            108 + 160 + 40 + 20 + 60 + 40,
            160 + 120 + 80 + 40,
        ),
    ),
    "masked softmax": (  # 2 x 3 tokens over 7, 4 heads: 168 scores, mask of 42; cast, softmax, cast
        softmax_of(eager(GROUPED, Pass(2, 3, 4))),
        (
            0,
            168 + 5 * 168,
            0,
            E * (168 + 42) + E * 168 + 4 * 168 + 4 * 168,
            E * 168 + 4 * 168 + 4 * 168 + E * 168,
        ),
    ),
    "masked softmax in fp16": (  # which CUDA's kernel reads as it is
        softmax_of(eager(GROUPED, Pass(2, 3, 4), FP16)),
        (0, 6 * 168, 0, 2 * 210 + 2 * 168 + 4 * 168, 2 * 168 + 4 * 168 + 2 * 168),
    ),
    "masked softmax of a step": (  # 56 scores, mask of 14; in fp32 no casts
        softmax_of(eager(GROUPED, Pass(2, 1, 6), FP32)),
        (0, 56 + 5 * 56, 0, 4 * (56 + 14) + 4 * 56, 4 * 56 + 4 * 56),
    ),
    "position check": (  # of 2 sequences: 8 differences, 8 comparisons, all of them
        alone(lambda t: _check_positions(t, 2 * 4)).kernels,
        (0, 8 + 8 + 8, 0, 2 * 64 + 64 + 8, 64 + 8 + 1),
    ),
    "laying out a shared head": (  # 2 x 7 keys of 3: read once, written for each of 4 heads
        eager(heads_of(4, 1, 3, 12), Pass(2, 1, 6), FP32)[-7:-6],
        (0, 0, 0, 4 * 2 * 7 * 3, 4 * 2 * 7 * 12),
    ),
    "rows of rotary tables": (
        own(alone(lambda t: latent(t, WIDER, Pass(1, 3))))[:2],
        (0, 0, 0, 2 * (24 + 24), 2 * 24),
    ),
    "dispatch": (  # 5 tokens, 3 wide, 4 experts, 2 chosen: 10 choices, 30 features
        own(alone(routed(experts_of(4, 2), 5))),
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
        alone(
            lambda t: cached(t, features(t, 2, 16), features(t, 2, 16), Pass(2, 1, 9), 16, 16)
        ).kernels[:1],
        (0, 0, 0, 2 * 10 * 16 * E, 2 * 10 * 16 * E),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_part_of_the_decoder_costs_what_hand_work_says(name):
    kernels, by_hand = CASES[name]
    assert tuple(summed(kernels)) == by_hand
    for kernel in kernels:
        counts = (*kernel.work, *kernel.dimensions, kernel.calls)
        assert {type(count) for count in counts} <= {int, bool}


# Records, and by hand: their operators in the order of the code, with rows, widths or elements.
ORDERS = {
    "masked softmax": (
        softmax_of(eager(GROUPED, Pass(2, 3, 4))),
        "add 168 bfloat16, _to_copy 168 bfloat16 float32, softmax 24 x 7,"
        " _to_copy 168 float32 bfloat16",
    ),
    "masked softmax in fp16": (
        softmax_of(eager(GROUPED, Pass(2, 3, 4), FP16)),
        "add 168 float16, softmax 24 x 7 float16 float32, _to_copy 168 float32 float16",
    ),
    "position check": (
        alone(lambda t: _check_positions(t, 2 * 4)).kernels,
        "sub 8 int64, ge 8 int64 bool, all 1 x 8 bool",
    ),
    "rotation of pairs": (
        PAIRS,
        "clone 120 bfloat16, mul 120 bfloat16, neg 60 bfloat16, cat 120 bfloat16, mul 120 bfloat16,"
        " add 120 bfloat16",
    ),
    "router of groups": (
        alone(
            lambda t: _gate(
                t,
                features(t, 5, 3),
                5,
                experts_of(8, 2, topk_method="group_limited_greedy", n_group=4, topk_group=2),
            )
        ).kernels,
        "_to_copy 15 bfloat16 float32, _to_copy 24 bfloat16 float32, linear 1 x 5 x 8 x 3,"
        " softmax 5 x 8, max 20 x 2, topk 5 x 4, zeros_like 20, scatter 20, clone 40,"
        " _to_copy 40 float32 bool, bitwise_not 40 bool, masked_fill 40, topk 5 x 8, mul 10",
    ),
    "router with a bias": (
        alone(
            lambda t: _gate(
                t,
                features(t, 5, 3),
                5,
                experts_of(
                    8,
                    2,
                    scoring_func="sigmoid",
                    topk_method="noaux_tc",
                    n_group=4,
                    topk_group=2,
                    norm_topk_prob=True,
                ),
            ),
            FP32,
        ).kernels,
        "linear 1 x 5 x 8 x 3, sigmoid 40, add 40, topk 20 x 2, sum 20 x 2, topk 5 x 4,"
        " zeros_like 20, scatter 20, clone 40, _to_copy 40 float32 bool, bitwise_not 40 bool,"
        " masked_fill 40, topk 5 x 8, gather 10, sum 5 x 2, add 5, div 10, mul 10",
    ),
    "dispatch": (
        own(alone(routed(experts_of(4, 2, shared=6), 5), FP32)),
        "new_zeros 20 int64, scatter 20 int64, sum 4 x 5 int64, sort 1 x 10 int64,"
        " floor_divide 10 int64, index 30, transfer 4 int64, cat 30, index_put 30, mul 30,"
        " sum 15 x 2, add 15",
    ),
    "plain attention of a step": (
        eager(heads_of(4, 2, 3, 12), Pass(2, 1, 6), FP32)[-8:],
        "cat 84, clone 168, clone 168, matmul 8 x 1 x 7 x 3, div 56, add 56, softmax 8 x 7,"
        " matmul 8 x 1 x 3 x 7",
    ),
    "plain attention of a shared head": (  # which each product lays out for its own use
        eager(heads_of(4, 1, 3, 12), Pass(2, 1, 6), FP32)[-8:],
        "cat 42, clone 168, matmul 8 x 1 x 7 x 3, div 56, add 56, softmax 8 x 7, clone 168,"
        " matmul 8 x 1 x 3 x 7",
    ),
    "plain attention of a prompt": (
        eager(FOUR, Pass(1, 3), FP32)[-7:],
        "add 24, matmul 4 x 3 x 3 x 2, div 36, add 36, softmax 12 x 3, matmul 4 x 3 x 2 x 3,"
        " clone 24",
    ),
    "plain attention of prompts": (  # queries, keys; values: heads behind tokens
        eager(FOUR, Pass(2, 3), FP32)[-10:],
        "add 48, clone 48, clone 48, matmul 8 x 3 x 3 x 2, div 72, add 72, softmax 24 x 3,"
        " clone 48, matmul 8 x 3 x 2 x 3, clone 48",
    ),
    "absorbed attention": (
        own(alone(lambda t: latent(t, LATENT, Pass(1, 5)), FP32))[-10:],
        "matmul 3 x 5 x 6 x 4, matmul 3 x 5 x 5 x 2, matmul 3 x 5 x 5 x 6, add 75, mul 75, add 75,"
        " softmax 15 x 5, einsum 1 x 15 x 6 x 5, matmul 3 x 5 x 5 x 6, clone 75",
    ),
    "absorbed attention of two prompts": (
        # Laid out: queries, W_k of both sequences, k_pe and c of the heads, W_v of both sequences.
        own(alone(lambda t: latent(t, WIDER, Pass(2, 5)), FP32))[-15:],
        "clone 120, clone 144, matmul 6 x 5 x 6 x 4, clone 120, matmul 6 x 5 x 5 x 4,"
        " clone 180, matmul 6 x 5 x 5 x 6, add 150, mul 150, add 150, softmax 30 x 5,"
        " einsum 2 x 15 x 6 x 5, clone 180, matmul 6 x 5 x 5 x 6, clone 150",
    ),
    "absorbed attention of a step of two": (  # one token's queries lie as they should
        own(alone(lambda t: latent(t, WIDER, Pass(2, 1, 6)), FP32))[-14:],
        "cat 84, clone 144, matmul 6 x 1 x 6 x 4, clone 168, matmul 6 x 1 x 7 x 4, clone 252,"
        " matmul 6 x 1 x 7 x 6, add 42, mul 42, add 42, softmax 6 x 7, einsum 2 x 3 x 6 x 7,"
        " clone 180, matmul 6 x 1 x 5 x 6",
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_records_are_the_operators_of_the_code_in_its_order(name):
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
        c = heads_of(4, 2, 3, 12)
        eager, flash = (
            summed(alone(lambda t, f=flash: attend(t, c, Pass(2, 7, flash=f))).kernels)
            for flash in (False, True)
        )
        scores = 2 * 4 * 7 * 7
        linears = 14 * 12 * (12 + 6 + 6) + 14 * 12 * 12
        assert eager.macs == flash.macs == linears + 2 * 7 * 1 + 2 * scores * 3
        assert eager.activations - flash.activations == scores
        assert flash.bytes_read < eager.bytes_read

    def test_of_absorbed_latent_attention(self):
        """5 tokens, 11 wide, 3 heads: ranks 7 and 6, 4 + 2 features, values of 5."""
        work = summed(alone(lambda t: latent(t, LATENT, Pass(1, 5))).kernels)
        projections = 5 * (11 * 7 + 7 * 3 * 6 + 11 * 8 + 3 * 5 * 11)
        absorbed = 5 * 3 * 4 * 6 + 5 * 3 * 6 * 5
        scores = 5 * 5 * 3
        assert work.macs == projections + absorbed + scores * (2 + 6) + scores * 6

    def test_of_latent_attention_by_flash(self):
        work = summed(alone(lambda t: latent(t, LATENT, Pass(1, 5, flash=True))).kernels)
        projections = 5 * (11 * 7 + 7 * 3 * 6 + 11 * 8 + 6 * 3 * 9 + 3 * 5 * 11)
        assert work.macs == projections + 2 * (5 * 5 * 3 * 6)

    def test_of_a_mixture_is_that_of_its_choices(self):
        work = summed(alone(routed(experts_of(4, 2, shared=6), 5)).kernels)
        assert work.macs == 5 * 3 * 4 + 3 * (10 * 3 * 7) + 3 * (5 * 3 * 6)


class TestCausality:
    def test_what_a_causal_kernel_may_skip(self):
        """Of 4 queries the first sees none of the 3 after it, the second of 2, the third of 1."""
        c = heads_of(3, 3, 5, 24)
        tape = alone(flash_of(c, Pass(2, 4, flash=True)))
        assert tape.kernels[-1].dimensions.skippable_scores == 2 * 3 * (3 + 2 + 1)
        assert tape.savings == [2 * 3 * 6 * 10]
        assert alone(lambda t: attend(t, c, Pass(2, 4))).savings == [2 * 3 * 6 * 10]

    def test_one_new_token_skips_nothing(self):
        (kernel,) = alone(flash_of(heads_of(3, 3, 5, 24), Pass(2, 1, 8, flash=True))).kernels
        assert kernel.dimensions.skippable_scores == 0

    def test_no_rounding_beyond_a_float(self):
        rows = 2**53 + 1
        tape = alone(flash_of(heads_of(1, 1, 1, 24), Pass(1, rows, flash=True)))
        assert tape.savings == [2 * (rows * (rows - 1) // 2)]


def rows_by_expert(n, c):
    """Tokens of each expert that runs."""
    gates = [k for k in alone(routed(c, n)).kernels if k.path.endswith("gate_proj")]
    return [kernel.dimensions.m for kernel in gates for _ in range(kernel.calls)]


class TestRouting:
    @pytest.mark.parametrize(
        ("tokens", "touched"), [(1, 6), (10, 60), (11, 64), (32, 64), (703, 64)]
    )
    def test_choices_spread_evenly(self, tokens, touched):
        rows = rows_by_expert(tokens, experts_of(64, 6))
        assert (len(rows), sum(rows)) == (touched, 6 * tokens)
        assert max(rows) - min(rows) <= 1

    def test_experts_one_by_one(self):
        """3 tokens choose 2 of 5 each: the first takes two tokens, the others one."""
        assert rows_by_expert(3, experts_of(5, 2)) == [2, 1, 1, 1, 1]

    def test_methods_differ_in_routing_alone(self):
        def work(method):
            c = experts_of(8, 2, topk_method=method, n_group=4, topk_group=2)
            return summed(alone(lambda t: _gate(t, features(t, 5, 3), 5, c)).kernels)

        methods = ("greedy", "group_limited_greedy", "noaux_tc")
        greedy, limited, biased = map(work, methods)
        assert greedy.macs == limited.macs == biased.macs
        # best of each group; top groups; inverted mask
        assert limited.vector_flops - greedy.vector_flops == 40 + 20 + 40
        # bias; top two of each group; their sum; top groups; inverted mask
        assert biased.vector_flops - greedy.vector_flops == 40 + 40 + 40 + 20 + 40


class TestParameters:
    def test_of_the_head(self):
        def head(*, tied):
            c = decoder(hidden_size=3, vocab_size=11, tie_word_embeddings=tied)
            return params(alone(lambda t: lm_head(t, features(t, 5, 3), Pass(1, 5), c)))

        assert head(tied=False) == 33
        assert head(tied=True) == 0

    def test_of_attention(self):
        c = heads_of(4, 2, 3, 12, attention_bias=True)
        assert params(alone(lambda t: attend(t, c, Pass(1, 2)))) == (
            12 * 12 + 12 + 2 * (12 * 6 + 6) + 12 * 12 + 12
        )
        for flash in (False, True):
            tape = alone(lambda t, f=flash: latent(t, LATENT, Pass(1, 2, flash=f)))
            assert params(tape) == (11 * 7 + 7 + 7 * 18 + 11 * 8 + 6 + 6 * 3 * 9 + 15 * 11)

    def test_of_a_mixture(self):
        tape = alone(routed(experts_of(4, 2, shared=6, topk_method="noaux_tc"), 5))
        assert params(tape) == 3 * 4 + 4 + 4 * 3 * 21 + 3 * 18


def test_bytes_of_a_plain_and_a_latent_cache():
    t = Tape(BF16)
    _, keys, values = attend(t, heads_of(10, 10, 128, 1280), Pass(1, 1))
    assert 12 * (keys.nbytes + values.nbytes) == 61_440
    wide = dataclasses.replace(LATENT, kv_lora_rank=512, qk_rope_head_dim=64)
    _, key, shared, *_ = latent(t, wide, Pass(3, 100))
    assert 12 * (key.nbytes + shared.nbytes) == 3 * 100 * 12 * 576 * 2


# --- beside traces

PASSES = pytest.mark.parametrize(
    ("dtype", "batch", "new", "past"),
    [
        pytest.param(BF16, 1, 2, 0, id="short prompt"),
        pytest.param(FP32, 3, 50, 0, id="prompts in fp32"),
        pytest.param(FP16, 1, 1, 50, id="step in fp16"),
        pytest.param(BF16, 3, 1, 2, id="steps"),
    ],
)
FLASH = pytest.mark.parametrize("flash", [False, True], ids=["eager", "flash"])


@pytest.fixture
def flash_attn(monkeypatch):
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


@PASSES
@FLASH
@pytest.mark.usefixtures("flash_attn")
class TestAttentionBesideATrace:
    @sampled(
        ("heads", "kv_heads", "bias"),
        [(4, 2, True), (4, 4, False), (4, 1, False), (1, 1, False), (12, 12, False)],
        every(3),
    )
    def test_plain(self, dtype, batch, new, past, flash, heads, kv_heads, bias):
        changes = {
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "attention_bias": bias,
        }
        c, p = of_config(**changes), Pass(batch, new, past, flash=flash)
        kind = "LlamaFlashAttention2" if flash else "LlamaAttention"
        config = DeepseekV2Config(**CONFIG | changes)
        build = getattr(modeling_deepseekv2, kind)
        module = on_meta(build, config, layer_idx=0, dtype=dtype)
        inputs = inputs_of(dtype, p, [(kv_heads, 24 // heads)] * 2)
        assert_same(module, inputs, dtype, lambda t: attend(t, c, p))

    @sampled(
        "changes",
        [
            {"q_lora_rank": 10, "qk_rope_head_dim": 2, "attention_bias": True},
            {},
            {"v_head_dim": 12},
            {"num_attention_heads": 1},
            {"num_attention_heads": 1, "q_lora_rank": 10, "v_head_dim": 12},
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            {"rope_scaling": {"type": "yarn", "factor": 2.0}},
        ],
        every(3),
    )
    def test_latent(self, dtype, batch, new, past, flash, changes):
        changes = {"use_mla": True, "num_attention_heads": 3} | changes
        c, p = of_config(**changes), Pass(batch, new, past, flash=flash)
        kind = "DeepseekV2FlashAttention2" if flash else "DeepseekV2Attention"
        config = DeepseekV2Config(**CONFIG | changes)
        build = getattr(modeling_deepseekv2, kind)
        module = on_meta(build, config, layer_idx=0, dtype=dtype)
        sizes = [(1, c.qk_rope_head_dim), (1, c.kv_lora_rank)]
        if flash:
            sizes = [(c.heads, c.head_dim)] * 2
        inputs = inputs_of(dtype, p, sizes)
        assert_same(module, inputs, dtype, lambda t: latent(t, c, p))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalized", [True, False])
@sampled(
    ("method", "groups", "top_groups"),
    [
        ("greedy", 1, 1),
        ("group_limited_greedy", 1, 1),
        ("noaux_tc", 4, 2),
        ("group_limited_greedy", 8, 3),
        ("group_limited_greedy", 4, 2),
        ("noaux_tc", 1, 1),
    ],
    every(2),
)
@pytest.mark.parametrize("per_token", [1, 3])
def test_routers(dtype, scoring, normalized, method, groups, top_groups, per_token):
    changes = {
        "num_experts_per_tok": per_token,
        "scoring_func": scoring,
        "topk_method": method,
        "n_group": groups,
        "topk_group": top_groups,
        "norm_topk_prob": normalized,
    }
    # The file's table of keys refuses some that the router's own code runs.
    c = decoder(
        num_experts_per_tok=per_token,
        scoring_func=scoring,
        topk_method=method,
        n_group=groups,
        topk_group=top_groups,
        norm_topk_prob=normalized,
    )
    router = on_meta(modeling_deepseekv2.MoEGate, DeepseekV2Config(**CONFIG | changes), dtype=dtype)
    x = of_type(dtype, 2, 5, 24)
    assert_same(router, [x], dtype, lambda t: _gate(t, features(t, 10, 24), 10, c))


@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        ("DeepseekV2RotaryEmbedding", None),
        ("DeepseekV2LinearScalingRotaryEmbedding", "linear"),
        ("DeepseekV2DynamicNTKScalingRotaryEmbedding", "dynamic"),
        ("DeepseekV2YarnRotaryEmbedding", "yarn"),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("length", [5, 100])
def testrotary_embedding(dtype, name, scaling, length):
    more = {} if scaling is None else {"scaling_factor": 2.0}
    build = getattr(modeling_deepseekv2, name)
    rope = on_meta(build, 8, max_position_embeddings=64, dtype=dtype, **more)
    c = decoder(qk_rope_head_dim=8, rope_scaling=scaling, max_position_embeddings=64)
    inputs = of_type(dtype, 1), length
    assert_same(rope, inputs, dtype, lambda t: rotary_embedding(t, length, c))
