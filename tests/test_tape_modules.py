"""Forwards of shared modules on the tape: by hand, and each beside a trace of that module alone.

The arithmetic is the derivation. Those of the vision side are in `test_tape_vision_by_hand.py`,
those of the decoder in `test_tape_decoder.py`.
"""

from importlib.metadata import version

import pytest
from taped import DTYPES, alone, assert_same, features, of_type, on_meta, params, summed
from torch import nn
from tracing import Calls

from dsocr_analyze import tape
from dsocr_analyze.architectures.deepseek_ocr.reference import modeling_deepseekv2
from dsocr_analyze.architectures.deepseek_ocr.reference.configuration_deepseek_v2 import (
    DeepseekV2Config,
)
from dsocr_analyze.architectures.ocr_family.attention import rotary_tables, rotated, swiglu
from dsocr_analyze.dtypes import BFLOAT16, FLOAT32, INT64
from dsocr_analyze.kernels import Convolution
from dsocr_analyze.tape import Tape
from dsocr_analyze.tape.modules import (
    ACTIVATIONS,
    conv2d,
    embedding,
    layer_norm,
    linear,
    rms_norm,
)

BF16, FP32 = BFLOAT16, FLOAT32
E = BF16.nbytes

# Case, forward, type, and by hand: macs, vector FLOPs, activations, bytes read, bytes written.
CASES = {
    "linear": (
        lambda t: linear(t, features(t, 5, 3), 5, 3, 4, bias=True),
        BF16,
        (5 * 3 * 4, 5 * 4, 5 * 4, E * (5 * 3 + 3 * 4 + 4), E * 5 * 4),
    ),
    "linear without bias": (
        lambda t: linear(t, features(t, 5, 3), 5, 3, 4),
        BF16,
        (60, 0, 20, E * (15 + 12), E * 20),
    ),
    "embedding": (
        lambda t: embedding(t, t.input(6, INT64), 99, 10),
        BF16,
        (0, 0, 0, 6 * 10 * E + 6 * 8, 6 * 10 * E),
    ),
    "layer_norm": (
        lambda t: layer_norm(t, features(t, 6, 10), 6, 10),
        BF16,
        (0, 5 * 60, 0, E * (60 + 20), E * 60),
    ),
    "layer_norm over channels that lie first": (  # 60 features laid out anew
        lambda t: layer_norm(t, features(t, 6, 10), 6, 10, channels_first=True),
        BF16,
        (0, 5 * 60, 0, E * 60 + E * (60 + 20), E * 60 + E * 60),
    ),
    "rms_norm": (  # cast, ^2, mean, + eps, rsqrt, *, cast, * w
        lambda t: rms_norm(t, features(t, 6, 10), 6, 10),
        BF16,
        (
            0,
            60 + 60 + 6 + 6 + 60 + 60,
            0,
            120 + 240 + 240 + 24 + 24 + (240 + 24) + 240 + (20 + 120),
            240 + 240 + 24 + 24 + 24 + 240 + 120 + 120,
        ),
    ),
    "rms_norm in fp32": (  # no casts
        lambda t: rms_norm(t, features(t, 6, 10), 6, 10),
        FP32,
        (0, 252, 0, 240 + 240 + 24 + 24 + 264 + 280, 240 + 24 + 24 + 24 + 240 + 240),
    ),
    "gelu": (lambda t: ACTIVATIONS["gelu"](t, features(t, 10)), BF16, (0, 50, 0, 20, 20)),
    "quick_gelu": (
        lambda t: ACTIVATIONS["quick_gelu"](t, features(t, 10)),
        BF16,
        (0, 10 + 40 + 10, 0, 20 + 20 + 40, 20 + 20 + 20),
    ),
    "conv2d": (  # 2 images, 9 x 9, 3 -> 4 channels, kernel 3, stride 2, padding 1: 5 x 5 out
        lambda t: conv2d(t, features(t, 2, 3, 9, 9), 2, 9, 3, 4, 3, stride=2, padding=1, bias=True),
        BF16,
        (
            2 * 5 * 5 * 4 * 3 * 9,
            2 * 25 * 4,
            2 * 25 * 4,
            E * (2 * 81 * 3 + 4 * 3 * 9 + 4),
            E * 2 * 25 * 4,
        ),
    ),
    "rotation": (  # 2 x 3 tokens, 5 heads of 4: n = 120; * cos, -half, cat, * sin, +
        # Cosines and sines of 2 x 3 positions: 24 each.
        lambda t: rotated(t, features(t, 120), features(t, 24), features(t, 24)),
        BF16,
        (0, 120 + 60 + 120 + 120, 0, E * (144 + 60 + 120 + 144 + 240), E * (4 * 120 + 60)),
    ),
    "rotary tables": (  # 2 x 3 positions, 2 frequencies: 12 angles, 24 with both halves
        lambda t: rotary_tables(t, 2, 3, 4),
        BF16,
        (
            12,
            2 * 24 + 2 * 24,
            12,
            6 * 8 + 4 * (2 + 6) + 4 * 24 + 4 * 96 + 2 * 96,
            6 * 4 + 4 * 12 + 96 + 4 * 96 + 2 * 48,
        ),
    ),
    "swiglu": (
        lambda t: swiglu(t, features(t, 5, 3), 5, 3, 4),
        BF16,
        (
            3 * 60,
            5 * 20 + 20,
            20 + 20 + 15,
            2 * E * (15 + 12) + E * 20 + E * 40 + E * (20 + 12),
            2 * E * 20 + E * 20 + E * 20 + E * 15,
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_module_costs_what_hand_work_says(name):
    forward, dtype, by_hand = CASES[name]
    tape = alone(forward, dtype)
    assert tuple(summed(tape.kernels)) == by_hand
    for kernel in tape.kernels:
        counts = (*kernel.work, *kernel.dimensions, kernel.calls)
        assert {type(count) for count in counts} <= {int, bool}


def test_rms_norm_is_the_operators_of_the_code_in_its_order():
    tape = alone(CASES["rms_norm"][0])
    assert [(each.operator, *each.dimensions, each.dtype) for each in tape.kernels] == [
        ("_to_copy", 60, "bfloat16"),
        ("pow", 60, "float32"),
        ("mean", 6, 10, "float32"),
        ("add", 6, "float32"),
        ("rsqrt", 6, "float32"),
        ("mul", 60, "float32"),
        ("_to_copy", 60, "float32"),
        ("mul", 60, "bfloat16"),
    ]


@pytest.mark.parametrize(
    ("forward", "by_hand"),
    [
        (CASES["linear"][0], 3 * 4 + 4),
        (lambda t: embedding(t, t.input(2, INT64), 7, 4), 28),
        (CASES["swiglu"][0], 36),
        (lambda t: conv2d(t, features(t, 3 * 25), 1, 5, 3, 4, 5), 3 * 4 * 25),
    ],
    ids=["linear", "embedding", "swiglu", "conv2d"],
)
def test_parameters(forward, by_hand):
    assert params(alone(forward)) == by_hand


def test_dimensions_of_a_convolution():
    (kernel,) = alone(CASES["conv2d"][0]).kernels
    assert kernel.dimensions == Convolution(2, 25, 3, 4, 9)


def test_one_odd_pixel_more_than_a_float_holds():
    t, side = Tape(BFLOAT16), 2**53 + 1
    assert conv2d(t, t.input(1, BFLOAT16), 1, side, 1, 1, 1).n == side**2


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 1023, 1024, 1025, 2**53, 2**53 + 1, 2**60 - 1])
def test_logarithms_are_exact_in_arrays_too(n):
    np = pytest.importorskip("numpy")
    assert tape.ceil_log2(n) == (n - 1).bit_length()
    assert tape.ceil_log2(np.array([n]))[0] == (n - 1).bit_length()
    assert tape.ceil_log2(np.array([n], dtype=object))[0] == (n - 1).bit_length()


# --- beside traces

OF_EACH_TYPE = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)


@OF_EACH_TYPE
class TestBesideATrace:
    @pytest.mark.parametrize("bias", [True, False])
    def test_linear(self, dtype, bias):
        layer = on_meta(nn.Linear, 7, 5, bias=bias, dtype=dtype)
        assert_same(
            layer,
            [of_type(dtype, 2, 3, 7)],
            dtype,
            lambda t: linear(t, features(t, 6, 7), 6, 7, 5, bias=bias),
        )

    def test_embedding(self, dtype):
        layer = on_meta(nn.Embedding, 11, 6, dtype=dtype)
        ids = of_type(INT64, 2, 4)
        assert_same(layer, [ids], dtype, lambda t: embedding(t, t.input(8, INT64), 11, 6))

    def test_layer_norm(self, dtype):
        norm = on_meta(nn.LayerNorm, 6, dtype=dtype)
        x = of_type(dtype, 2, 4, 6)
        assert_same(norm, [x], dtype, lambda t: layer_norm(t, features(t, 8, 6), 8, 6))

    @pytest.mark.parametrize("count", [1, 2])
    def test_layer_norm_of_channels_first(self, dtype, count):
        norm = on_meta(nn.LayerNorm, 5, dtype=dtype)
        x = of_type(dtype, count, 5, 3, 3).permute(0, 2, 3, 1)
        rows = count * 9
        assert_same(
            norm,
            [x],
            dtype,
            lambda t: layer_norm(t, features(t, rows, 5), rows, 5, channels_first=True),
        )

    def test_rms_norm(self, dtype):
        norm = on_meta(modeling_deepseekv2.DeepseekV2RMSNorm, 6, dtype=dtype)
        x = of_type(dtype, 2, 4, 6)
        assert_same(norm, [x], dtype, lambda t: rms_norm(t, features(t, 8, 6), 8, 6))

    @pytest.mark.parametrize("count", [1, 2])
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (4, 4, 0), (1, 1, 0)])
    def test_conv2d(self, dtype, count, bias, kernel, stride, padding):
        layer = on_meta(nn.Conv2d, 3, 5, kernel, stride, padding, bias=bias, dtype=dtype)
        options = {"stride": stride, "padding": padding, "bias": bias}

        def forward(t):
            return conv2d(t, features(t, count, 3, 9, 9), count, 9, 3, 5, kernel, **options)

        assert_same(layer, [of_type(dtype, count, 3, 9, 9)], dtype, forward)

    @pytest.mark.parametrize("name", ACTIVATIONS)
    def test_activations(self, dtype, name):
        from transformers.activations import ACT2FN

        module, x = Calls(lambda x: ACT2FN[name](x)), of_type(dtype, 3, 7)
        assert_same(module, [x], dtype, lambda t: ACTIVATIONS[name](t, features(t, 21)))

    @pytest.mark.parametrize("act", ACTIVATIONS)
    def test_swiglu(self, dtype, act):
        config = DeepseekV2Config(hidden_size=6, intermediate_size=10, hidden_act=act)
        mlp = on_meta(modeling_deepseekv2.DeepseekV2MLP, config, dtype=dtype)
        x = of_type(dtype, 2, 4, 6)
        assert_same(mlp, [x], dtype, lambda t: swiglu(t, features(t, 8, 6), 8, 6, 10, act))

    @pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 5), (3, 1), (3, 5)])
    def test_rotary_tables(self, dtype, batch, length):
        config = DeepseekV2Config(hidden_size=24, num_attention_heads=3)
        rope = on_meta(modeling_deepseekv2.LlamaRotaryEmbedding, config, dtype=dtype)
        inputs = of_type(dtype, 1), of_type(INT64, batch, length)
        assert_same(rope, inputs, dtype, lambda t: rotary_tables(t, batch, length, 8))

    def test_rotation(self, dtype):
        tables = (of_type(dtype, 2, 1, 5, 8) for _ in range(2))
        assert_same(
            Calls(modeling_deepseekv2._rotated),
            [of_type(dtype, 2, 3, 5, 8), *tables],
            dtype,
            lambda t: rotated(t, features(t, 240), features(t, 80), features(t, 80)),
        )


def test_activations_are_all_that_transformers_knows():
    from transformers.activations import ACT2FN

    assert set(ACTIVATIONS) <= set(ACT2FN)
    if version("transformers") == "4.46.3":  # others have added to it
        assert set(ACTIVATIONS) == set(ACT2FN)
