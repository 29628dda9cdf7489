"""Every layer family against integers worked out by hand; the arithmetic is the derivation."""

import pytest

from dsocr_analyze.costs import integers
from dsocr_analyze.costs.activations import ACTIVATIONS, activation, gelu, quick_gelu, silu
from dsocr_analyze.costs.conv2d import conv2d, conv2d_params, conv2d_side
from dsocr_analyze.costs.decoder_attention import (
    causal_savable_macs,
    decoder_attention,
    decoder_attention_params,
    flash_attention,
)
from dsocr_analyze.costs.embedding import embedding, embedding_params
from dsocr_analyze.costs.kv_cache import (
    append,
    cache_bytes,
    latent_width,
    mha_width,
    token_traffic,
)
from dsocr_analyze.costs.linear import linear, linear_params
from dsocr_analyze.costs.lm_head import lm_head, lm_head_params
from dsocr_analyze.costs.mla import LatentHeads, mla_attention, mla_params
from dsocr_analyze.costs.moe import Routing, gate, moe, moe_params, routed_experts, spread
from dsocr_analyze.costs.normalization import layer_norm, layer_norm_2d, layer_norm_fp32, rms_norm
from dsocr_analyze.costs.position_table import bicubic_resize, linear_resize
from dsocr_analyze.costs.projector import projector, projector_params
from dsocr_analyze.costs.rope import dynamic_update, llama_tables, rotation, tables
from dsocr_analyze.costs.sam_attention import (
    grid_attention,
    grid_attention_params,
    window_partition,
)
from dsocr_analyze.costs.self_attention import self_attention, self_attention_params
from dsocr_analyze.costs.sums import total
from dsocr_analyze.costs.swiglu import swiglu, swiglu_params
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.model.dimensions import ProjectorDimensions
from dsocr_analyze.work import Work

E = 2  # bytes of a feature
LATENT = LatentHeads(heads=3, q_rank=7, kv_rank=6, nope=4, rope=2, value=5)

# Case, work, and by hand: macs, vector FLOPs, activations, bytes read, bytes written.
CASES = {
    "linear": (
        linear(5, 3, 4, E, bias=True),
        (5 * 3 * 4, 5 * 4, 5 * 4, E * (5 * 3 + 3 * 4 + 4), E * 5 * 4),
    ),
    "linear without bias": (
        linear(5, 3, 4, E),
        (60, 0, 20, E * (15 + 12), E * 20),
    ),
    "conv2d": (  # 2 images, 9 x 9, 3 -> 4 channels, kernel 3, stride 2, padding 1: 5 x 5 out
        conv2d(2, 9, 3, 4, 3, E, stride=2, padding=1, bias=True),
        (
            2 * 5 * 5 * 4 * 3 * 9,
            2 * 25 * 4,
            2 * 25 * 4,
            E * (2 * 81 * 3 + 4 * 3 * 9 + 4),
            E * 2 * 25 * 4,
        ),
    ),
    "embedding": (embedding(6, 10, E), (0, 0, 0, 6 * 10 * E + 6 * 8, 6 * 10 * E)),
    "layer_norm": (layer_norm(6, 10, E), (0, 5 * 60, 0, E * (60 + 20), E * 60)),
    "layer_norm_fp32": (  # cast, norm in fp32 with weights in bf16, cast
        layer_norm_fp32(6, 10, E),
        (0, 5 * 60, 0, 60 * 2 + 60 * 4 + 20 * 2 + 60 * 4, 60 * 4 + 60 * 4 + 60 * 2),
    ),
    "layer_norm_2d": (  # mean, -, ^2, mean, -, + eps, sqrt, /, * w, + b
        layer_norm_2d(2, 3, 4, E),
        (
            0,
            24 + 24 + 24 + 24 + 24 + 8 + 8 + 24 + 24 + 24,
            0,
            E * (24 + 32 + 24 + 24 + 32 + 8 + 8 + 32 + 27 + 27),
            E * (8 + 24 + 24 + 8 + 24 + 8 + 8 + 24 + 24 + 24),
        ),
    ),
    "rms_norm": (  # cast, ^2, mean, + eps, rsqrt, *, cast, * w
        rms_norm(6, 10, E),
        (
            0,
            60 + 60 + 6 + 6 + 60 + 60,
            0,
            120 + 240 + 240 + 24 + 24 + (240 + 24) + 240 + (20 + 120),
            240 + 240 + 24 + 24 + 24 + 240 + 120 + 120,
        ),
    ),
    "rms_norm in fp32": (  # no casts
        rms_norm(6, 10, 4),
        (0, 252, 0, 240 + 240 + 24 + 24 + 264 + 280, 240 + 24 + 24 + 24 + 240 + 240),
    ),
    "gelu": (gelu(10, E), (0, 50, 0, 20, 20)),
    "silu": (silu(10, E), (0, 50, 0, 20, 20)),
    "quick_gelu": (quick_gelu(10, E), (0, 10 + 40 + 10, 0, 20 + 20 + 40, 20 + 20 + 20)),
    "bicubic, growing": (  # 2 x 2 -> 3 x 3, 5 taps: width first (2 x 3), then height (3 x 3)
        bicubic_resize(2, 3, 7, E),
        (0, 2 * 5 * 7 * (6 + 9), 0, 28 * 2 + 28 * 4 + 63 * 4, 28 * 4 + 63 * 4 + 63 * 2),
    ),
    "bicubic, shrinking": (  # 8 x 8 -> 3 x 3: ceil(2 * 8 / 3) = 6 on either side, 13 taps
        bicubic_resize(8, 3, 1, 4),
        (0, 2 * 13 * (8 * 3 + 3 * 3), 0, 64 * 4, 9 * 4),
    ),
    "bicubic, same size": (bicubic_resize(8, 8, 5, E), (0, 0, 0, 0, 0)),
    "linear resize": (
        linear_resize(7, 5, 4, E),
        (0, 4 * 20, 0, 28 * 2 + 28 * 4 + 20 * 4, 28 * 4 + 20 * 4 + 20 * 2),
    ),
    "window partition": (  # 2 views of 5 x 5 into windows of 3: padded to 6 x 6, 2 x 2 windows
        window_partition(2, 5, 3, 4, E),
        (0, 0, 0, E * (200 + 288 + 288 + 200), E * (288 + 288 + 288 + 200)),
    ),
    "window partition, one whole window": (window_partition(2, 3, 3, 4, E), (0, 0, 0, 0, 0)),
    "self attention": (  # 2 views of 5 tokens, 12 wide, 3 heads of 4
        total(self_attention(2, 5, 12, 3, E)),
        (
            10 * 12 * 36 + 2 * (2 * 3 * 5 * 5 * 4) + 10 * 12 * 12,
            10 * 36 + 6 * 150 + 10 * 12,
            10 * 36 + 120 + 120,
            E * (120 + 12 * 36 + 36) + E * 360 + E * (120 + 144 + 12),
            E * 360 + E * 120 + E * 120,
        ),
    ),
    "flash attention": (  # GQA: 4 heads, 2 of keys and values; 3 new tokens over 7
        flash_attention(2, 3, 7, 4, 2, 5, E),
        (
            2 * (2 * 4 * 3 * 7 * 5),
            6 * 2 * 4 * 3 * 7,
            2 * 3 * 4 * 5,
            E * (120 + 2 * (2 * 7 * 2 * 5)),
            E * 120,
        ),
    ),
    "rotation": (  # 2 x 3 tokens, 5 heads of 4: n = 120; * cos, -half, cat, * sin, +
        rotation(2, 3, 5, 4, E, pairs=False),
        (0, 120 + 60 + 120 + 120, 0, E * (132 + 60 + 120 + 132 + 240), E * (4 * 120 + 60)),
    ),
    "rotation of pairs": (
        rotation(2, 3, 5, 4, E, pairs=True),
        (0, 420, 0, E * (684 + 120), E * (540 + 120)),
    ),
    "rotary tables, computed": (  # 3 positions, 4 features: 3 x 2 angles
        llama_tables(3, 4, E),
        (
            6,
            2 * 12 + 2 * 12,
            6,
            3 * 8 + 4 * (2 + 3) + 4 * 12 + 4 * 48 + 2 * 48,
            3 * 4 + 4 * 6 + 48 + 4 * 48 + 2 * 24,
        ),
    ),
    "rotary tables, kept": (  # range, outer product, both halves, cosine and sine, casts
        tables("default", 3, 4, E),
        (0, 6 + 24, 0, 4 * 5 + 48 + 96 + 96, 12 + 24 + 48 + 96 + 48),
    ),
    "rotary tables, linear": (  # one quotient a position more
        tables("linear", 3, 4, E),
        (0, 30 + 3, 0, 260 + 12, 228 + 12),
    ),
    "rotary tables, dynamic": (tables("dynamic", 3, 4, E), (0, 30, 0, 260, 228)),
    "rotary tables, dynamic, beyond": (  # range, cast, /, pow, 1 /, * over 2 frequencies
        dynamic_update(4),
        (0, 4 * 2, 0, 2 * (8 + 4 * 4), 2 * (8 + 4 + 4 * 4)),
    ),
    "rotary tables, yarn": (  # 17 operators on 2 frequencies, 3 of them on two; scales of 12 + 12
        tables("yarn", 3, 4, E),
        (
            0,
            30 + 24 + 17 * 2,
            0,
            260 + 96 + (17 + 3) * 2 * 4,
            228 + 96 + (17 + 3) * 2 * 4,
        ),
    ),
    "swiglu": (
        total(swiglu(5, 3, 4, E)),
        (
            3 * 60,
            5 * 20 + 20,
            20 + 20 + 15,
            2 * E * (15 + 12) + E * 20 + E * 40 + E * (20 + 12),
            2 * E * 20 + E * 20 + E * 20 + E * 15,
        ),
    ),
    "lm_head": (
        total(lm_head(5, 3, 11, E)),
        (5 * 33, 0, 55, E * (15 + 33) + 55 * 2, E * 55 + 55 * 4),
    ),
    "router": (  # 5 tokens, 3 wide, 4 experts, 2 chosen: casts, logits, softmax, top, scale
        gate(5, 3, Routing(experts=4, per_token=2), E),
        (
            5 * 3 * 4,
            5 * 20 + 20 + 10,
            20,
            15 * 2 + 12 * 2 + 4 * (15 + 12) + 80 + 80 + 40,
            15 * 4 + 12 * 4 + 80 + 80 + 10 * 12 + 40,
        ),
    ),
    "router in fp32, sigmoid, normalised": (
        gate(5, 3, Routing(4, 2, scoring="sigmoid", normalized=True), 4),
        (
            60,
            4 * 20 + 20 + (10 + 5 + 10) + 10,
            20,
            108 + 160 + 40 + 20 + 60 + 40,
            160 + 120 + 80 + 40,
        ),
    ),
    "growing the cache": (append(2, 9, 16, E), (0, 0, 0, 2 * 10 * 16 * E, 2 * 10 * 16 * E)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_family_costs_what_hand_work_says(name):
    work, by_hand = CASES[name]
    assert tuple(work) == by_hand


@pytest.mark.parametrize("name", CASES)
def test_counts_are_python_integers(name):
    assert all(type(count) is int for count in CASES[name][0])


class TestMatrixWork:
    def test_of_grid_attention(self):
        """2 grids of 3 x 3, 8 wide, 2 heads: S = 2 * 2 * 81 scores."""
        work = total(grid_attention(2, 3, 8, 2, 5, E))
        linears = 18 * 8 * 24 + 18 * 8 * 8
        terms = 2 * (2 * 2 * 9 * 4 * 3)
        assert work.macs == linears + terms + 2 * (2 * 2 * 81 * 4)
        assert work.activations == 18 * 24 + 18 * 8 + 2 * (2 * 2 * 9 * 3) + 18 * 8
        # linears' biases, twice 2 ranges of 3 and 2 grids of 9, the bias' sum, 7 a score
        assert work.vector_flops == 18 * 24 + 18 * 8 + 2 * (6 + 18) + 324 + 7 * 324

    def test_of_eager_and_flash_attention_is_the_same(self):
        eager, flash = (
            total(decoder_attention(2, 7, 0, 12, 4, 2, 3, E, flash=flash))
            for flash in (False, True)
        )
        scores = 2 * 4 * 7 * 7
        linears = 14 * 12 * (12 + 6 + 6) + 14 * 12 * 12
        assert eager.macs == flash.macs == linears + 7 * 1 + 2 * scores * 3
        assert eager.activations - flash.activations == scores
        assert flash.bytes_read < eager.bytes_read

    def test_of_absorbed_latent_attention(self):
        """5 tokens, 11 wide, 3 heads: ranks 7 and 6, 4 + 2 features, values of 5."""
        work = total(mla_attention(1, 5, 0, 11, LATENT, E, flash=False))
        projections = 5 * (11 * 7 + 7 * 3 * 6 + 11 * 8 + 3 * 5 * 11)
        absorbed = 5 * 3 * 4 * 6 + 5 * 3 * 6 * 5
        scores = 5 * 5 * 3
        assert work.macs == projections + absorbed + scores * (2 + 6) + scores * 6

    def test_of_latent_attention_by_flash(self):
        work = total(mla_attention(1, 5, 0, 11, LATENT, E, flash=True))
        projections = 5 * (11 * 7 + 7 * 3 * 6 + 11 * 8 + 6 * 3 * 9 + 3 * 5 * 11)
        assert work.macs == projections + 2 * (5 * 5 * 3 * 6)

    def test_of_a_mixture_is_that_of_its_choices(self):
        routing = Routing(experts=4, per_token=2)
        work = total(moe(5, 3, 7, 6, routing, E))
        assert work.macs == 5 * 3 * 4 + 3 * (10 * 3 * 7) + 3 * (5 * 3 * 6)


class TestRouting:
    @pytest.mark.parametrize(
        ("tokens", "touched", "each", "longer"),
        [(1, 6, 0, 6), (10, 60, 0, 60), (11, 64, 1, 2), (32, 64, 3, 0), (703, 64, 65, 58)],
    )
    def test_choices_spread_evenly_the_remainder_to_the_first(self, tokens, touched, each, longer):
        assert spread(tokens, Routing(experts=64, per_token=6)) == (touched, each, longer)

    @pytest.mark.parametrize("tokens", [1, 2, 3, 9])
    def test_all_experts_together_are_the_sum_of_each(self, tokens):
        routing = Routing(experts=5, per_token=2)
        each = total(routed_experts(tokens, 3, 7, routing, E))
        assert moe(tokens, 3, 7, 0, routing, E)["experts"] == each

    def test_methods_differ_in_routing_alone(self):
        greedy, limited, biased = (
            gate(5, 3, Routing(8, 2, method=method, groups=4, top_groups=2), E)
            for method in ("greedy", "group_limited_greedy", "noaux_tc")
        )
        assert greedy.macs == limited.macs == biased.macs
        # best of each group; top groups; inverted mask
        assert limited.vector_flops - greedy.vector_flops == 40 + 20 + 40
        # bias; top two of each group; their sum; top groups; inverted mask
        assert biased.vector_flops - greedy.vector_flops == 40 + 40 + 40 + 20 + 40


class TestCache:
    def test_bytes_of_plain_and_latent(self):
        assert cache_bytes(1, 1, 12, mha_width(10, 128), 2) == 61_440
        assert cache_bytes(3, 100, 12, latent_width(512, 64), 2) == 3 * 100 * 12 * 576 * 2

    def test_a_token_reads_all_and_writes_one(self):
        assert token_traffic(2, 9, 16, E) == (2 * 10 * 16 * E, 2 * 16 * E)


class TestParams:
    def test_of_simple_layers(self):
        assert linear_params(3, 4, bias=True) == 3 * 4 + 4
        assert conv2d_params(3, 4, 5) == 3 * 4 * 25
        assert embedding_params(7, 4) == 28
        assert swiglu_params(3, 4) == 36
        assert lm_head_params(3, 11) == 33
        assert lm_head_params(3, 11, tied=True) == 0

    def test_of_attention(self):
        assert self_attention_params(12) == 12 * 36 + 36 + 12 * 12 + 12
        assert grid_attention_params(8, 2, 5) == 8 * 24 + 24 + 8 * 8 + 8 + 2 * 5 * 4
        assert decoder_attention_params(12, 4, 2, 3, bias=True) == (
            12 * 12 + 12 + 2 * (12 * 6 + 6) + 12 * 12 + 12
        )
        assert mla_params(11, LATENT) == (11 * 7 + 7 + 7 * 18 + 11 * 8 + 6 + 6 * 3 * 9 + 15 * 11)

    def test_of_a_mixture(self):
        routing = Routing(4, 2, method="noaux_tc")
        assert moe_params(3, 7, 6, routing) == 3 * 4 + 4 + 4 * 3 * 21 + 3 * 18


class TestProjector:
    """2 views of 3 x 3 tokens, 8 features to 6."""

    @pytest.mark.parametrize(
        ("changes", "macs", "params"),
        [
            ({"projector_type": "identity"}, 0, 0),
            ({"projector_type": "linear"}, 18 * 48, 8 * 6 + 6),
            ({"projector_type": "mlp_gelu", "depth": 2}, 18 * (48 + 36), 54 + 42),
            (
                {"projector_type": "downsample_mlp_gelu", "downsample_ratio": 2, "mlp_ratio": 3},
                8 * (32 * 18 + 18 * 6),
                32 * 18 + 18 + 18 * 6 + 6,
            ),
            (
                {
                    "projector_type": "normlayer_downsample_mlp_gelu",
                    "downsample_ratio": 2,
                    "depth": 3,
                },
                8 * (32 * 6 + 36 + 36),
                64 + 32 * 6 + 6 + 42 + 42,
            ),
            (
                {"projector_type": "low_high_hybrid_split_mlp_gelu", "depth": 2},
                18 * (24 + 24 + 36),
                2 * (24 + 3) + 42,
            ),
            (
                {"projector_type": "hybrid_split_feature_mlp_gelu", "input_dim": (5, 3)},
                18 * (5 * 3 + 3 * 3),
                5 * 3 + 3 + 3 * 3 + 3,
            ),
            ({"projector_type": "low_high_split_mlp_gelu", "depth": 2}, 18 * 2 * 9, 2 * (9 + 3)),
            (
                {"projector_type": "linear", "token_pooling": True},
                2 * 1 * (32 * 8 + 48),
                32 * 8 + 8 + 54,
            ),
            ({"projector_type": "linear", "conv_fusion": True}, 18 * (64 + 48), 72 + 54),
        ],
    )
    def test_of_every_type(self, changes, macs, params):
        dimensions = ProjectorDimensions(**{"input_dim": 8, "n_embed": 6} | changes)
        assert total(projector(2, 3, dimensions, E)).macs == macs
        assert projector_params(dimensions) == params


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
        assert linear(rows, 3, 1, E).macs == 3 * rows
        assert causal_savable_macs(1, rows, 1, 1) == rows * (rows - 1) // 2
        assert conv2d_side(rows, 1) == rows


def test_an_activation_without_a_closed_form_is_an_error_that_names_the_others():
    with pytest.raises(ConfigError, match=r"mish.*give one of silu, swish"):
        activation("mish", 1, E)
    assert activation("linear", 10, E) == Work()
    assert set(ACTIVATIONS) >= {"silu", "gelu", "relu"}
