"""Closed forms of the vision side against integers worked out by hand, arithmetic included."""

import pytest

from dsocr_analyze.architectures.ocr_family import layout
from dsocr_analyze.architectures.ocr_family.dimensions import ProjectorDimensions
from dsocr_analyze.architectures.ocr_family.projector import projector, projector_params
from dsocr_analyze.costs.conv2d import conv2d, conv2d_params, conv2d_side
from dsocr_analyze.costs.normalization import layer_norm
from dsocr_analyze.costs.position_table import bicubic_resize, linear_resize
from dsocr_analyze.costs.sam_attention import (
    grid_attention,
    grid_attention_params,
    relative_positions,
    window_partition,
)
from dsocr_analyze.costs.self_attention import self_attention, self_attention_params
from dsocr_analyze.costs.sums import work_of, work_of_modules
from dsocr_analyze.dtypes import BFLOAT16, FLOAT32
from dsocr_analyze.kernels import Attention, Convolution, Gemm, KernelsOf

E = BFLOAT16.nbytes  # bytes of a feature
CPU = KernelsOf("cpu")

# Case, kernels, and by hand: macs, vector FLOPs, activations, bytes read, bytes written.
CASES = {
    "conv2d": (  # 2 images, 9 x 9, 3 -> 4 channels, kernel 3, stride 2, padding 1: 5 x 5 out
        conv2d(2, 9, 3, 4, 3, BFLOAT16, stride=2, padding=1, bias=True),
        (
            2 * 5 * 5 * 4 * 3 * 9,
            2 * 25 * 4,
            2 * 25 * 4,
            E * (2 * 81 * 3 + 4 * 3 * 9 + 4),
            E * 2 * 25 * 4,
        ),
    ),
    "bicubic, growing": (  # 2 x 2 -> 3 x 3, 5 taps: width first (2 x 3), then height (3 x 3)
        bicubic_resize(2, 3, 7, BFLOAT16),
        (0, 2 * 5 * 7 * (6 + 9), 0, 28 * 2 + 28 * 4 + 63 * 4, 28 * 4 + 63 * 4 + 63 * 2),
    ),
    "bicubic, shrinking": (  # 8 x 8 -> 3 x 3: ceil(2 * 8 / 3) = 6 on either side, 13 taps
        bicubic_resize(8, 3, 1, FLOAT32),
        (0, 2 * 13 * (8 * 3 + 3 * 3), 0, 64 * 4, 9 * 4),
    ),
    "bicubic, same size": (bicubic_resize(8, 8, 5, BFLOAT16), (0, 0, 0, 0, 0)),
    "linear resize": (
        linear_resize(7, 5, 4, BFLOAT16),
        (0, 4 * 20, 0, 28 * 2 + 28 * 4 + 20 * 4, 28 * 4 + 20 * 4 + 20 * 2),
    ),
    "linear resize, same size": (linear_resize(7, 7, 4, BFLOAT16), (0, 0, 0, 0, 0)),
    "relative positions": (  # of 3 tokens: 2 ranges, their scaling, -, +, indices, rows of 4
        relative_positions(5, 3, 4, BFLOAT16),
        (
            0,
            2 * 3 + 9 + 9,
            0,
            2 * 3 * 8 + 2 * 3 * 4 + 9 * 4 + 9 * 4 + (9 * 8 + 36 * E),
            2 * (3 * 8 + 3 * 4) + 9 * 4 + 9 * 4 + 9 * 8 + 36 * E,
        ),
    ),
    "window partition": (  # 2 views of 5 x 5 into windows of 3: padded to 6 x 6, 2 x 2 windows
        window_partition(2, 5, 3, 4, BFLOAT16),
        (0, 0, 0, E * (200 + 288 + 288 + 200), E * (288 + 288 + 288 + 200)),
    ),
    "window partition, one whole window": (
        window_partition(2, 3, 3, 4, BFLOAT16),
        (0, 0, 0, 0, 0),
    ),
    "self attention": (  # 2 views of 5 tokens, 12 wide, 3 heads of 4
        sum(self_attention(2, 5, 12, 3, BFLOAT16).values(), ()),
        (
            10 * 12 * 36 + 2 * (2 * 3 * 5 * 5 * 4) + 10 * 12 * 12,
            10 * 36 + 6 * 150 + 10 * 12,
            10 * 36 + 120 + 120,
            E * (120 + 12 * 36 + 36) + E * 360 + E * (120 + 144 + 12),
            E * 360 + E * 120 + E * 120,
        ),
    ),
    "layer norm of channels first": (  # 6 tokens of 4: copied in rows, then 5 an element
        layer_norm(6, 4, BFLOAT16, channels_first=True),
        (0, 5 * 24, 0, E * 24 + E * (24 + 4 + 4), E * 24 + E * 24),
    ),
    "pixels": (layout.pixel_sum(2, 4, BFLOAT16), (0, 2 * 48, 0, 2 * 48 * E, E)),
    "global view": (  # 2 x 2 tokens, 5 features joined; 3 features, a newline behind each row
        layout.features_joined(1, 2, 5, BFLOAT16) + layout.newlines(2, 2, 3, BFLOAT16),
        (0, 0, 0, E * (20 + 4 * 3 + 3), E * (20 + 2 * 3 * 3)),
    ),
    "blank pixels": (layout.blank_sum(4), (0, 48, 0, 48 * 4, 4)),  # 3 x 4 x 4 of fp32
    # The grid's sides, 8 bytes each, are multiplied by the tokens a side three times.
    "local views": (  # 2 beside each other, 3 above each other: a picture of 6 rows of 4 tokens
        layout.features_joined(6, 2, 5, BFLOAT16) + layout.picture(2, 3, 2, 3, BFLOAT16),
        (
            0,
            3,
            0,
            3 * 8 + E * (24 * 5 + 24 * 3 + 24 * 3 + 3),
            3 * 8 + E * (24 * 5 + 24 * 3 + 6 * 5 * 3),
        ),
    ),
    "local views in a column": (  # lie in memory as the picture does
        layout.features_joined(3, 2, 5, BFLOAT16) + layout.picture(1, 3, 2, 3, BFLOAT16),
        (0, 3, 0, 3 * 8 + E * (12 * 5 + 12 * 3 + 3), 3 * 8 + E * (12 * 5 + 6 * 3 * 3)),
    ),
    "page": (  # 7 visual tokens of 3 joined twice, and put among 9 with a mask of bytes
        layout.page_layout(9, 7, 3, BFLOAT16),
        (0, 0, 0, 2 * 21 * E + (27 + 21) * E + 9, 2 * 21 * E + 27 * E),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_family_costs_what_hand_work_says(name):
    kernels, by_hand = CASES[name]
    assert tuple(work_of(kernels)) == by_hand


@pytest.mark.parametrize("name", CASES)
def test_counts_are_python_integers(name):
    for kernel in CASES[name][0]:
        assert all(type(count) is int for count in (*kernel.work, kernel.calls))


class TestGridAttention:
    """2 grids of 3 x 3, 8 wide, 2 heads: S = 2 * 2 * 81 scores."""

    def test_work_of_matrices(self):
        work = work_of_modules(grid_attention(2, 3, 8, 2, 5, BFLOAT16))
        linears = 18 * 8 * 24 + 18 * 8 * 8
        terms = 2 * (2 * 2 * 9 * 4 * 3)
        assert work.macs == linears + terms + 2 * (2 * 2 * 81 * 4)
        assert work.activations == 18 * 24 + 18 * 8 + 2 * (2 * 2 * 9 * 3) + 18 * 8
        # linears' biases, twice 2 ranges of 3 and 2 grids of 9, the bias' sum, 7 a score
        assert work.vector_flops == 18 * 24 + 18 * 8 + 2 * (6 + 18) + 324 + 7 * 324

    def test_copies(self):
        """2 x 9 tokens of 8 features: 144; a term of the bias: 9 x 2 heads x 3 a grid."""

        def copies(*grids, **changes):
            own = grid_attention(*grids, 5, BFLOAT16, **changes)[""]
            clones = [kernel for kernel in own if kernel.operator == "clone"]
            for kernel in clones:
                assert kernel.work == (0, 0, 0, E * kernel.dimensions[0], E * kernel.dimensions[0])
            return [kernel.dimensions[0] for kernel in clones for _ in range(kernel.calls)]

        # q, k and v with the heads beside the grids; queries by rows; both terms.
        assert copies(2, 3, 8, 2) == [3 * 144, 144, 108, 108]
        # One grid: q, k and v are views, so the queries are copied by columns as well.
        assert copies(1, 3, 8, 2) == [72, 72, 54, 54]
        # One head: nothing to lay beside the grids.
        assert copies(2, 3, 8, 1) == [144, 54, 54]
        assert copies(1, 3, 8, 1) == [27]
        # The CPU's attention writes as it reads, heads first: merging them is a copy.
        assert copies(2, 3, 8, 2, kernels_of=CPU) == [3 * 144, 144, 108, 108, 144]

    def test_dimensions(self):
        modules = grid_attention(2, 3, 8, 2, 5, BFLOAT16)
        shapes = {kernel.operator: kernel.dimensions for kernel in modules[""]}
        # A row of the grid at a time: 2 grids, 2 heads and 3 tokens against 3 positions.
        assert shapes["einsum"] == Gemm(3, 2 * 2 * 3, 3, 4)
        attended = shapes["scaled_dot_product_attention"]
        assert attended == Attention(2, 2, 2, 9, 9, 4, 4, masked=True)


class TestDimensions:
    def test_of_a_convolution(self):
        (kernel,) = conv2d(2, 9, 3, 4, 3, BFLOAT16, stride=2, padding=1)
        assert kernel.dimensions == Convolution(2, 25, 3, 4, 9)

    def test_one_odd_pixel_more_than_a_float_holds(self):
        assert conv2d_side(2**53 + 1, 1) == 2**53 + 1

    def test_params(self):
        assert conv2d_params(3, 4, 5) == 3 * 4 * 25
        assert self_attention_params(12) == 12 * 36 + 36 + 12 * 12 + 12
        assert grid_attention_params(8, 2, 5) == 8 * 24 + 24 + 8 * 8 + 8 + 2 * 5 * 4


class TestProjectorByHand:
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
        assert work_of_modules(projector(2, 3, dimensions, BFLOAT16)).macs == macs
        assert projector_params(dimensions) == params
