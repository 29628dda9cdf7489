"""Forwards of the vision side against integers worked out by hand, arithmetic included."""

import dataclasses
from types import SimpleNamespace

import pytest
from taped import alone, features, own, params, summed

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.clip import _attention as clip_attention
from dsocr_analyze.architectures.ocr_family.dimensions import (
    ClipDimensions,
    ProjectorDimensions,
    SamDimensions,
)
from dsocr_analyze.architectures.ocr_family.passes import (
    ViewFeatures,
    embedded_page,
)
from dsocr_analyze.architectures.ocr_family.projector import projector
from dsocr_analyze.architectures.ocr_family.sam import _attention as grid_attention
from dsocr_analyze.architectures.ocr_family.sam import (
    _layer_norm_2d,
    _relative_positions,
    _window_partition,
    _window_unpartition,
    absolute_positions,
)
from dsocr_analyze.dtypes import BFLOAT16, FLOAT32
from dsocr_analyze.kernels import Attention, Gemm
from dsocr_analyze.tape.modules import bicubic, interpolated
from dsocr_analyze.workload import PageWorkload, ViewBatch

E = BFLOAT16.nbytes  # bytes of a feature
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


def resized(t, source, target, d):
    """A learned table, cast to fp32 first."""
    return bicubic(t, t.cast(features(t, source, source, d), FLOAT32), source, target, d)


def partitioned(t, N, g):
    """Windows of a view, and the view put together again."""
    windows = -(-g // SAM.window)
    x = _window_partition(t, features(t, N, g, g, SAM.width), N, g, windows, SAM)
    return _window_unpartition(t, x, N, g, windows, SAM)


def laid_out(t, columns, rows, q, d, joined):
    """`joined` features of two encoders beside each other, and tokens of width d in rows."""
    view = ViewBatch(columns * rows, 64 * q)
    t.cat(features(t, view.count, q, q, joined))
    seen = ViewFeatures()
    seen.tokens = features(t, view.count, q, q, d)
    DEFAULT.lay_out(t, seen, view, (columns, rows), of_width(d))
    return seen.tokens


def of_width(d):
    """Dimensions around a decoder of which only this is asked, and the vocabulary."""
    return SimpleNamespace(decoder=SimpleNamespace(hidden_size=d, vocab_size=1))


class _Views:
    """A network whose encoders leave 6 tokens of 3 features, and cost nothing."""

    def encode(self, t, seen, pixels, view, c):
        seen.tokens = features(t, 6, 3)

    def lay_out(self, *_):
        pass


def page(t):
    """A page of 7 visual tokens, one of which is the separator, among 9."""
    view = ViewBatch(1, 64)
    workload = PageWorkload((64, 64), 64, 64, False, (1, 1), (view,), 7, 2, 1, 1)
    return embedded_page(t, _Views(), of_width(3), Pass(1, 9), workload)[0]


LAYOUT = ("cat", "masked_scatter")

# Case, forward, type, and by hand: macs, vector FLOPs, activations, bytes read, bytes written.
CASES = {
    "bicubic, growing": (  # 2 x 2 -> 3 x 3, 5 taps: width first (2 x 3), then height (3 x 3)
        lambda t: resized(t, 2, 3, 7),
        BFLOAT16,
        (0, 2 * 5 * 7 * (6 + 9), 0, 28 * 2 + 28 * 4 + 63 * 4, 28 * 4 + 63 * 4 + 63 * 2),
    ),
    "bicubic, shrinking": (  # 8 x 8 -> 3 x 3: ceil(2 * 8 / 3) = 6 on either side, 13 taps
        lambda t: resized(t, 8, 3, 1),
        FLOAT32,
        (0, 2 * 13 * (8 * 3 + 3 * 3), 0, 64 * 4, 9 * 4),
    ),
    "positions of the same size": (  # a table for 3 x 3 tokens
        lambda t: absolute_positions(t, 3, SAM),
        BFLOAT16,
        (0, 0, 0, 0, 0),
    ),
    "linear resize": (
        lambda t: interpolated(
            t, "upsample_linear1d", t.cast(features(t, 7, 4), FLOAT32), 5 * 4, 4 * 5 * 4
        ),
        BFLOAT16,
        (0, 4 * 20, 0, 28 * 2 + 28 * 4 + 20 * 4, 28 * 4 + 20 * 4 + 20 * 2),
    ),
    "relative positions": (  # of 3 tokens: 2 ranges, their scaling, -, +, indices, rows of 4
        lambda t: _relative_positions(t, "rel_pos_h", 5, 3, 4),
        BFLOAT16,
        (
            0,
            2 * 3 + 9 + 9,
            0,
            2 * 3 * 8 + 2 * 3 * 4 + 9 * 4 + 9 * 4 + (9 * 8 + 36 * E),
            2 * (3 * 8 + 3 * 4) + 9 * 4 + 9 * 4 + 9 * 8 + 36 * E,
        ),
    ),
    "window partition": (  # 2 views of 5 x 5 into windows of 3: padded to 6 x 6, 2 x 2 windows
        lambda t: partitioned(t, 2, 5),
        BFLOAT16,
        (0, 0, 0, E * (200 + 288 + 288 + 200), E * (288 + 288 + 288 + 200)),
    ),
    "window partition, one whole window": (
        lambda t: partitioned(t, 2, 3),
        BFLOAT16,
        (0, 0, 0, 0, 0),
    ),
    "norm over channels": (  # mean, -, ^2, mean, -, + eps, sqrt, /, * w, + b
        lambda t: _layer_norm_2d(t, features(t, 2, 3, 4), 2 * 4, 3),
        BFLOAT16,
        (
            0,
            24 + 24 + 24 + 24 + 24 + 8 + 8 + 24 + 24 + 24,
            0,
            E * (24 + 32 + 24 + 24 + 32 + 8 + 8 + 32 + 27 + 27),
            E * (8 + 24 + 24 + 8 + 24 + 8 + 8 + 24 + 24 + 24),
        ),
    ),
    "self attention": (  # 2 views of 5 tokens, 12 wide, 3 heads of 4
        lambda t: clip_attention(t, features(t, 2, 5, 12), 2, 5, CLIP),
        BFLOAT16,
        (
            10 * 12 * 36 + 2 * (2 * 3 * 5 * 5 * 4) + 10 * 12 * 12,
            10 * 36 + 6 * 150 + 10 * 12,
            10 * 36 + 120 + 120,
            E * (120 + 12 * 36 + 36) + E * 360 + E * (120 + 144 + 12),
            E * 360 + E * 120 + E * 120,
        ),
    ),
    "global view": (  # 2 x 2 tokens, 5 features joined; 3 features, a newline behind each row
        lambda t: laid_out(t, 1, 1, 2, 3, 5),
        BFLOAT16,
        (0, 0, 0, E * (20 + 4 * 3 + 3), E * (20 + 2 * 3 * 3)),
    ),
    # The grid's sides, 8 bytes each, are multiplied by the tokens a side three times.
    "local views": (  # 2 beside each other, 3 above each other: a picture of 6 rows of 4 tokens
        lambda t: laid_out(t, 2, 3, 2, 3, 5),
        BFLOAT16,
        (
            0,
            3,
            0,
            3 * 8 + E * (24 * 5 + 24 * 3 + 24 * 3 + 3),
            3 * 8 + E * (24 * 5 + 24 * 3 + 6 * 5 * 3),
        ),
    ),
    "local views in a column": (  # lie in memory as the picture does
        lambda t: laid_out(t, 1, 3, 2, 3, 5),
        BFLOAT16,
        (0, 3, 0, 3 * 8 + E * (12 * 5 + 12 * 3 + 3), 3 * 8 + E * (12 * 5 + 6 * 3 * 3)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_forward_costs_what_hand_work_says(name):
    forward, dtype, by_hand = CASES[name]
    tape = alone(forward, dtype)
    assert tuple(summed(tape.kernels)) == by_hand
    for kernel in tape.kernels:
        assert all(type(count) is int for count in (*kernel.work, kernel.calls))


def test_pixels_are_added_up():
    """3 x 64 x 64 of a view, and as many in fp32 of the blank patch in place of local views."""
    sums = [kernel for kernel in alone(page).kernels if kernel.operator == "sum"]
    n = 3 * 64 * 64
    assert tuple(summed(sums)) == (0, 2 * n, 0, n * (E + 4), E + 4)


def test_a_page_is_joined_twice_and_put_among_all_tokens():
    """7 visual tokens of 3; a mask of bytes says where they go among 9."""
    moved = [kernel for kernel in alone(page).kernels if kernel.operator in LAYOUT]
    work = (0, 0, 0, 2 * 21 * E + (27 + 21) * E + 9, 2 * 21 * E + 27 * E)
    assert tuple(summed(moved)) == work


class TestGridAttention:
    """2 grids of 3 x 3, 8 wide, 2 heads: S = 2 * 2 * 81 scores."""

    @staticmethod
    def tape(N=2, g=3, d=8, heads=2):
        c = dataclasses.replace(SAM, width=d, heads=heads)
        return alone(lambda t: grid_attention(t, features(t, N, g, g, d), N, g, c, 3))

    def test_work_of_matrices(self):
        work = summed(self.tape().kernels)
        linears = 18 * 8 * 24 + 18 * 8 * 8
        terms = 2 * (2 * 2 * 9 * 4 * 3)
        assert work.macs == linears + terms + 2 * (2 * 2 * 81 * 4)
        assert work.activations == 18 * 24 + 18 * 8 + 2 * (2 * 2 * 9 * 3) + 18 * 8
        # linears' biases, twice 2 ranges of 3 and 2 grids of 9, the bias' sum, 7 a score
        assert work.vector_flops == 18 * 24 + 18 * 8 + 2 * (6 + 18) + 324 + 7 * 324

    def test_copies(self):
        """2 x 9 tokens of 8 features: 144; a term of the bias: 9 x 2 heads x 3 a grid."""

        def copies(*grids):
            clones = [each for each in own(self.tape(*grids)) if each.operator == "clone"]
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

    def test_dimensions(self):
        shapes = {kernel.operator: kernel.dimensions for kernel in own(self.tape())}
        # A row of the grid at a time: 2 grids, 2 heads and 3 tokens against 3 positions.
        assert shapes["einsum"] == Gemm(3, 2 * 2 * 3, 3, 4)
        attended = shapes["scaled_dot_product_attention"]
        assert attended == Attention(2, 2, 2, 9, 9, 4, 4, masked=True)


def test_parameters_of_attention():
    assert params(alone(CASES["self attention"][0])) == 12 * 36 + 36 + 12 * 12 + 12
    assert params(TestGridAttention.tape()) == 8 * 24 + 24 + 8 * 8 + 8 + 2 * 5 * 4


class TestProjectorByHand:
    """2 views of 3 x 3 tokens, 8 features to 6."""

    @pytest.mark.parametrize(
        ("changes", "macs", "parameters"),
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
    def test_of_every_type(self, changes, macs, parameters):
        dimensions = ProjectorDimensions(**{"input_dim": 8, "n_embed": 6} | changes)
        kind = dimensions.projector_type

        def forward(t):
            one = features(t, 2, 9, 8)
            return projector(t, (one, one) if "low_high" in kind else one, 2, 3, dimensions)

        tape = alone(forward)
        assert summed(tape.kernels).macs == macs
        assert params(tape) == parameters
