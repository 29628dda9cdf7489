"""Closed forms of the vision side against traces of the real modules, record by record."""

import copy
import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch
from sampling import first, named, sampled
from torch import nn
from tracing import Calls, meta, trace_of

from dsocr_analyze.architectures.deepseek_ocr.reference import (
    deepencoder,
    modeling_deepseekocr,
    modeling_deepseekv2,
)
from dsocr_analyze.architectures.ocr_family import layout, vision
from dsocr_analyze.architectures.ocr_family.dimensions import (
    ClipDimensions,
    ProjectorDimensions,
    SamDimensions,
)
from dsocr_analyze.architectures.ocr_family.projector import (
    projector,
    projector_params,
)
from dsocr_analyze.costs.conv2d import conv2d, conv2d_params
from dsocr_analyze.costs.embedding import embedding
from dsocr_analyze.costs.normalization import layer_norm
from dsocr_analyze.costs.position_table import bicubic_resize
from dsocr_analyze.costs.sam_attention import (
    grid_attention,
    grid_attention_params,
    relative_positions,
)
from dsocr_analyze.costs.sections import Expansion, Section, sections_work
from dsocr_analyze.costs.self_attention import self_attention, self_attention_params
from dsocr_analyze.costs.sums import work_of
from dsocr_analyze.dtypes import BFLOAT16, FLOAT32
from dsocr_analyze.kernels import KernelsOf, merged
from dsocr_analyze.trace.recorder import Recorder

CPU = KernelsOf("cpu")
DTYPES = sampled("dtype", [BFLOAT16, FLOAT32], first(1), ids=["bf16", "fp32"])
PUBLISHED = json.loads(Path(deepencoder.__file__).with_name("config.json").read_text())


def of_type(dtype, *shape):
    """A tensor on `meta`."""
    return meta(*shape, dtype=getattr(torch, dtype.name))


def on_meta(build, *args, dtype, **kwargs):
    """What `build` makes, on `meta`."""
    with torch.device("meta"):
        return build(*args, **kwargs).to(getattr(torch, dtype.name)).eval()


def params(module):
    return sum(parameter.numel() for parameter in module.parameters())


def in_order(kernels):
    """Own kernels of every module, one record per call."""
    by_path = defaultdict(list)
    for kernel in kernels:
        by_path[kernel.path] += [kernel._replace(calls=1)] * kernel.calls
    return by_path


def assert_same(trace, sections, root=""):
    """A trace of the module that stands at `root` has what the sections have, in the same order."""
    expansion = Expansion()
    expansion.add(sections)

    def full(path):
        return f"{root}.{path}" if root and path else root or path

    traced = [kernel._replace(path=full(kernel.path)) for kernel in trace.kernels]
    assert set(merged(expansion.kernels)) == set(merged(traced))
    assert in_order(expansion.kernels) == in_order(traced)
    assert expansion.module_calls == Counter(map(full, trace.calls))


def alone(modules):
    """A module that is a model by itself."""
    return [Section(("",), modules)]


@DTYPES
class TestLayers:
    @pytest.mark.parametrize("count", [1, 2])
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (4, 4, 0), (1, 1, 0)])
    def test_conv2d(self, dtype, count, bias, kernel, stride, padding):
        layer = on_meta(nn.Conv2d, 3, 5, kernel, stride, padding, bias=bias, dtype=dtype)
        trace = trace_of(layer, of_type(dtype, count, 3, 9, 9))
        expected = conv2d(count, 9, 3, 5, kernel, dtype, stride=stride, padding=padding, bias=bias)
        assert_same(trace, alone({"": expected}))
        assert params(layer) == conv2d_params(3, 5, kernel, bias=bias)

    @pytest.mark.parametrize("count", [1, 2])
    def test_layer_norm_of_channels_first(self, dtype, count):
        norm = on_meta(nn.LayerNorm, 5, dtype=dtype)
        trace = trace_of(norm, of_type(dtype, count, 5, 3, 3).permute(0, 2, 3, 1))
        expected = layer_norm(count * 9, 5, dtype, channels_first=True)
        assert_same(trace, alone({"": expected}))

    @pytest.mark.parametrize("side", [1, 3, 8, 11])
    def test_bicubic_tables(self, dtype, side):
        trace = trace_of(Calls(deepencoder.get_abs_pos_sam), of_type(dtype, 1, 8, 8, 5), side)
        assert_same(trace, alone({"": bicubic_resize(8, side, 5, dtype)}))

    @pytest.mark.parametrize("side", [3, 7, 11])
    def test_relative_positions(self, dtype, side):
        trace = trace_of(Calls(deepencoder.get_rel_pos), side, side, of_type(dtype, 13, 4))
        assert_same(trace, alone({"": relative_positions(13, side, 4, dtype)}))

    @pytest.mark.parametrize("count", [1, 3])
    @pytest.mark.parametrize("heads", [1, 2])
    @pytest.mark.parametrize("side", [4, 7, 9])
    def test_grid_attention(self, dtype, count, heads, side):
        build, table = deepencoder.Attention, (7, 7)
        attention = on_meta(build, 12, heads, True, True, True, table, dtype=dtype)
        trace = trace_of(attention, of_type(dtype, count, side, side, 12))
        assert_same(trace, alone(grid_attention(count, side, 12, heads, 13, dtype)))
        assert params(attention) == grid_attention_params(12, heads, 13)

    @pytest.mark.parametrize("count", [1, 3])
    @pytest.mark.parametrize("heads", [1, 2])
    def test_grid_attention_by_the_kernels_of_the_cpu(self, dtype, count, heads):
        attention = deepencoder.Attention(12, heads, True, True, True, (7, 7))
        attention = attention.to(getattr(torch, dtype.name)).eval()
        grids = torch.zeros(count, 4, 4, 12, dtype=getattr(torch, dtype.name))
        with torch.no_grad(), Recorder(attention, kernels_of=CPU) as recorder:
            trace = recorder.begin()
            attention(grids)
        assert_same(trace, alone(grid_attention(count, 4, 12, heads, 13, dtype, CPU)))

    @pytest.mark.parametrize("count", [1, 2])
    @pytest.mark.parametrize("heads", [1, 3])
    def test_self_attention(self, dtype, count, heads):
        config = {"hidden_size": 12, "num_attention_heads": heads}
        attention = on_meta(deepencoder.NoTPAttention, config, dtype=dtype)
        trace = trace_of(attention, of_type(dtype, count, 5, 12))
        assert_same(trace, alone(self_attention(count, 5, 12, heads, dtype)))
        assert params(attention) == self_attention_params(12)


def changed_config(sam=(), clip=(), image_size=1024):
    """The published config with other encoders."""
    config = copy.deepcopy(PUBLISHED)
    section = config["vision_config"]
    section["width"]["sam_vit_b"].update(sam)
    section["width"]["clip-l-14-224"].update(clip)
    section["image_size"] = image_size
    return config


CONFIGS = {
    "published": changed_config(),
    "small": changed_config(
        {
            "width": 12,
            "layers": 3,
            "heads": 3,
            "global_attn_indexes": [1],
            "downsample_channels": [6, 10],
        },
        {"width": 10, "layers": 2, "heads": 2},
        image_size=160,
    ),
    "one head, windows only, tables of one entry": changed_config(
        {
            "width": 8,
            "layers": 2,
            "heads": 1,
            "global_attn_indexes": [],
            "downsample_channels": [6, 10],
        },
        {"width": 10, "layers": 1, "heads": 1, "image_size": 14},
        image_size=16,
    ),
    "no windows, one layer": changed_config(
        {
            "width": 8,
            "layers": 1,
            "heads": 2,
            "global_attn_indexes": [0],
            "downsample_channels": [6, 10],
        },
        {"width": 10, "layers": 1, "heads": 5, "image_size": 42},
        image_size=640,
    ),
}

# Pixels per side: the modes', one that no patch divides, and windows that divide the grid (one of
# them, and four).
RESOLUTIONS = (512, 640, 1024, 1280, 700, 224, 448)


@DTYPES
@sampled("name", CONFIGS, named("small"))
class TestEncoders:
    def test_sam(self, dtype, name):
        section = CONFIGS[name]["vision_config"]
        dimensions = SamDimensions.from_config(CONFIGS[name])
        encoder = on_meta(deepencoder.build_sam_vit_b, section, dtype=dtype)
        assert params(encoder) == vision.sam_params(dimensions)
        for resolution in RESOLUTIONS:
            for count in (1, 6):
                trace = trace_of(encoder, of_type(dtype, count, 3, resolution, resolution))
                expected = vision.sam_sections(count, resolution, dimensions, dtype)
                assert_same(trace, expected, "model.sam_model")

    def test_clip(self, dtype, name):
        section = CONFIGS[name]["vision_config"]
        dimensions = ClipDimensions.from_config(CONFIGS[name])
        encoder = on_meta(deepencoder.build_clip_l, section, dtype=dtype)
        assert params(encoder) == vision.clip_params(dimensions)
        for side in (1, 3, 10, 11, 16):
            for count in (1, 6):
                pixels = of_type(dtype, count, 3, 64 * side, 64 * side)
                features = of_type(dtype, count, dimensions.width, side, side)
                trace = trace_of(encoder, pixels, features)
                expected = vision.clip_sections(count, side, dimensions, dtype)
                assert_same(trace, expected, "model.vision_model")


PROJECTORS = {
    "identity": {"projector_type": "identity"},
    "linear": {"projector_type": "linear"},
    "mlp": {"projector_type": "mlp_gelu", "depth": 3},
    "mlp of one linear": {"projector_type": "mlp_gelu"},
    "downsampled": {"projector_type": "downsample_mlp_gelu", "downsample_ratio": 2},
    "downsampled, padded": {
        "projector_type": "downsample_mlp_gelu",
        "downsample_ratio": 4,
        "depth": 3,
        "mlp_ratio": 2,
    },
    "normalised": {"projector_type": "normlayer_downsample_mlp_gelu", "downsample_ratio": 2},
    "hybrid pair": {"projector_type": "low_high_hybrid_split_mlp_gelu", "depth": 2},
    "hybrid pair, projections only": {"projector_type": "low_high_hybrid_split_mlp_gelu"},
    "split features": {
        "projector_type": "hybrid_split_feature_mlp_gelu",
        "input_dim": (5, 3),
        "channel_div": 0.4,
        "depth": 2,
    },
    "split pair": {"projector_type": "low_high_split_mlp_gelu", "depth": 3},
    "pooled": {"projector_type": "mlp_gelu", "depth": 2, "token_pooling": True},
    "pooled and downsampled": {
        "projector_type": "downsample_mlp_gelu",
        "downsample_ratio": 2,
        "token_pooling": True,
    },
    "fused": {"projector_type": "linear", "conv_fusion": True},
}


def built_projector(dimensions):
    return deepencoder.MlpProjector(
        {
            "projector_type": dimensions.projector_type,
            "input_dim": dimensions.input_dim,
            "n_embed": dimensions.n_embed,
            "depth": dimensions.depth,
            "mlp_ratio": dimensions.mlp_ratio,
            "downsample_ratio": dimensions.downsample_ratio,
            "channel_div": dimensions.channel_div,
            "token_pooling": dimensions.token_pooling,
            "conv_fusion_high_low_features": dimensions.conv_fusion,
        }
    )


@DTYPES
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("side", [2, 6, 7])
@pytest.mark.parametrize("name", PROJECTORS)
def test_projectors(dtype, name, side, count):
    dimensions = ProjectorDimensions(**{"input_dim": 8, "n_embed": 10} | PROJECTORS[name])
    module = on_meta(built_projector, dimensions, dtype=dtype)
    features = of_type(dtype, count, side**2, 8)
    if dimensions.projector_type == "low_high_split_mlp_gelu":
        features = tuple(of_type(dtype, count, side**2, 5) for _ in range(2))
    elif dimensions.projector_type.startswith("low_high"):
        features = (features, features)
    elif dimensions.conv_fusion:
        features = of_type(dtype, count, 2, side**2, 8)
    assert_same(trace_of(module, features), alone(projector(count, side, dimensions, dtype)))
    assert params(module) == projector_params(dimensions)


PAGE_CONFIG = {
    **CONFIGS["small"],
    "projector_config": {"projector_type": "linear", "input_dim": 20, "n_embed": 12},
    "num_hidden_layers": 1,
    "hidden_size": 12,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 8,
    "moe_intermediate_size": 8,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "vocab_size": 9,
}
BASE_SIZE = 80


class TestPage:
    """The model with its decoder left out, on the CPU: blank pixels are told by their values."""

    def traced(self, monkeypatch, dtype, grid, local, whole, visual):
        """A pass over two pages of one BOS and `visual` tokens."""
        monkeypatch.setattr(modeling_deepseekv2.DeepseekV2Model, "forward", lambda _, **__: None)
        config = modeling_deepseekocr.DeepseekOCRConfig(**PAGE_CONFIG)
        type_ = getattr(torch, dtype.name)
        model = modeling_deepseekocr.DeepseekOCRModel(config).to(type_).eval()
        columns, rows = grid
        # What `infer()` puts where there are no local views: blank pixels, in fp32.
        crops = torch.zeros(1, 3, BASE_SIZE, BASE_SIZE)
        if local:
            crops = torch.ones(columns * rows, 3, local, local, dtype=type_)
        views = (crops, torch.ones(1, 3, whole, whole, dtype=type_))
        is_image = torch.ones(2, 1 + visual, dtype=torch.bool)
        is_image[:, 0] = False
        ids, crop = torch.zeros(2, 1 + visual, dtype=torch.long), torch.tensor([grid, grid])
        with torch.no_grad(), Recorder(model, kernels_of=CPU) as recorder:
            trace = recorder.begin()
            images = [views, views]
            model(ids, images=images, images_seq_mask=is_image, images_spatial_crop=crop)
        return trace

    def expected(self, dtype, grid, local, whole, visual):
        sam = SamDimensions.from_config(PAGE_CONFIG)
        clip = ClipDimensions.from_config(PAGE_CONFIG)
        joint = ProjectorDimensions.from_config(PAGE_CONFIG)

        def views(count, resolution):
            q = vision.token_side(resolution, sam)
            return [
                *vision.sam_sections(count, resolution, sam, dtype, CPU),
                *vision.clip_sections(count, q, clip, dtype),
                *vision.projector_sections(count, q, joint, dtype),
            ]

        columns, rows = grid
        seen, features, laid_out, sections = layout.blank_sum(BASE_SIZE), (), (), []
        if local:
            count, q = columns * rows, vision.token_side(local, sam)
            seen = layout.pixel_sum(count, local, dtype)
            # The global view is laid out between the local views' features and their picture; the
            # last product of the grid's sides is for the newlines behind its rows.
            features = layout.features_joined(count, q, 20, dtype)
            sides, *picture, newlines = layout.picture(columns, rows, q, 12, dtype)
            last = sides._replace(calls=1)
            laid_out = (sides._replace(calls=sides.calls - 1), *picture, last, newlines)
            sections = views(count, local)
        side = vision.token_side(whole, sam)
        own = (
            *seen,
            *features,
            *layout.features_joined(1, side, 20, dtype),
            *layout.newlines(side, side, 12, dtype),
            *laid_out,
            *layout.page_layout(1 + visual, visual, 12, dtype),
        )
        model = {
            "": (*layout.pixel_sum(1, whole, dtype), *own, *own),
            "embed_tokens": embedding(2 * (1 + visual), 12, dtype),
        }
        each_page = [*sections, *views(1, whole)] * 2
        return [Section(("model",), model), *each_page]

    @DTYPES
    @pytest.mark.parametrize(
        ("grid", "local", "whole", "visual"),
        [
            ((2, 3), 128, 192, (2 * 3) * (2 * 2 + 1) + 3 * 4 + 1),
            ((3, 1), 64, 128, 1 * (3 + 1) + 2 * 3 + 1),
            ((1, 2), 128, 64, (2 * 2) * (2 + 1) + 1 * 2 + 1),
            ((1, 1), None, 128, 2 * 3 + 1),
        ],
    )
    def test_encoders_projector_and_layout(self, monkeypatch, dtype, grid, local, whole, visual):
        trace = self.traced(monkeypatch, dtype, grid, local, whole, visual)
        assert_same(trace, self.expected(dtype, grid, local, whole, visual), "model")


class TestSweep:
    """Arrays give, element by element, what integers give."""

    def test_encoders_and_layout(self):
        np = pytest.importorskip("numpy")
        sam = SamDimensions.from_config(CONFIGS["small"])
        clip = ClipDimensions.from_config(CONFIGS["small"])
        merging = ProjectorDimensions(
            "downsample_mlp_gelu", 20, 12, downsample_ratio=2, token_pooling=True
        )

        def works(N, R):
            q = vision.token_side(R, sam)
            own = (
                *layout.pixel_sum(N, R, BFLOAT16),
                *layout.features_joined(N * (N + 1), q, 20, BFLOAT16),
                *layout.picture(N, N + 1, q, 12, BFLOAT16),
                *layout.newlines(q, q, 12, BFLOAT16),
                *layout.page_layout(q * q + 5, q * q, 12, BFLOAT16),
            )
            return (
                sections_work(vision.sam_sections(N, R, sam, BFLOAT16)),
                sections_work(vision.clip_sections(N, q, clip, BFLOAT16)),
                sections_work(vision.projector_sections(N, q, merging, BFLOAT16)),
                work_of(own),
            )

        pairs = [(N, R) for N in (1, 2, 6) for R in (64, 160, 224, *RESOLUTIONS)]
        together = works(*np.array(pairs).T)
        for index, (N, R) in enumerate(pairs):
            one = [
                tuple(np.broadcast_to(count, len(pairs))[index] for count in w) for w in together
            ]
            assert one == [tuple(work) for work in works(N, R)]
