"""DeepSeek-OCR: SAM and CLIP encoders, a projector, and a mixture-of-experts decoder.

CLIP's vision transformer runs on SAM's features, which take the place of its own patches.

Source: `VitModel` and its parts (`deepencoder.py`), in whose order operators and names stand;
Vaswani et al. 2017, eq. 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import Final, Self

from dsocr_analyze.architectures.config_file import LARGEST_WIDTH, MOST_LAYERS, Config, ConfigKeys
from dsocr_analyze.architectures.ocr_family.config_table import (
    CLIP_KEYS,
    PROJECTOR_KEYS,
    SAM_KEYS,
    key_table,
)
from dsocr_analyze.architectures.ocr_family.dimensions import (
    CHANNELS,
    LARGEST_IMAGE,
    DecoderDimensions,
    ProjectorDimensions,
    RelativeDimensions,
    SamDimensions,
    check_projector,
)
from dsocr_analyze.architectures.ocr_family.family_member import (
    DECODE,
    PREFILL,
    PROJECTOR,
    SAM,
    FamilyMember,
    ViewFeatures,
)
from dsocr_analyze.architectures.ocr_family.vision import projector, sam
from dsocr_analyze.architectures.views import CropRule, tokens_per_side
from dsocr_analyze.figures import StageScope
from dsocr_analyze.kernels import FLOAT32, INT64, Attention
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.tape.modules import (
    bicubic,
    conv2d,
    embedding,
    fused_attention,
    layer_norm,
    layers,
    linear,
    quick_gelu,
)
from dsocr_analyze.workload import Mode, ViewBatch

_PUBLISHED_CODE: Final[Mapping[str, str]] = {
    "configuration_deepseek_v2.py": (
        "6ab21f29a4722e26fa28c8e0d4277591689a598df17cf6c712330e8f62b3fc7c"
    ),
    "conversation.py": "cf105fe9170bc797043e6d09dd7a2ac08565f66b5ef54f2cd4a123a1c044c9cf",
    "deepencoder.py": "0ae2fb6d1e5ae8cf100fc32f854830acd08c821a0a1f23a94a76588c222ddcf2",
    "modeling_deepseekocr.py": "f103ad93ade318a8b878c7af8fc06d223951a293accca44e1fd7cb23d4d30751",
    "modeling_deepseekv2.py": "69184a0493d1fdac21c360f9f9eabc5b5af3188e0265df44cfaeafc44f9095e3",
}
"""SHA-256 of the published model's Python files."""

PUBLISHED_SECTIONS: Final[Mapping[str, Config]] = {
    "vision_config": {
        "image_size": 1024,
        "width": {
            "clip-l-14-224": {
                "heads": 16,
                "image_size": 224,
                "layers": 24,
                "patch_size": 14,
                "width": 1024,
            },
            "sam_vit_b": {
                "downsample_channels": [512, 1024],
                "global_attn_indexes": [2, 5, 8, 11],
                "heads": 12,
                "layers": 12,
                "width": 768,
            },
        },
    },
    "projector_config": {
        "projector_type": "linear",
        "input_dim": 2048,
        "n_embed": 1280,
        "token_pooling": False,
        "conv_fusion_high_low_features": False,
    },
}
"""What the published code builds, regardless of these sections, which it does not read.

Sources: `_build_sam`, `build_sam_vit_b`, `vit_model_cfg` (`deepencoder.py`) and
`DeepseekOCRModel.__init__` (`modeling_deepseekocr.py`).
"""

MODES: Final[dict[str, Mode]] = {
    mode.name: mode
    for mode in (
        Mode("tiny", 512, 512, crop_mode=False),
        Mode("small", 640, 640, crop_mode=False),
        Mode("base", 1024, 1024, crop_mode=False),
        Mode("large", 1280, 1280, crop_mode=False),
        Mode("gundam", 1024, 640, crop_mode=True),
        Mode("gundam-m", 1280, 1024, crop_mode=True),
    )
}
"""The modes of the paper."""


# --- dimensions ------------------------------------------------------------------------------

_CLIP_SECTION: Final = "vision_config.width.clip-l-14-224"


@dataclass(frozen=True, slots=True)
class ClipDimensions:
    """CLIP encoder (`VitModel`), `vision_config.width["clip-l-14-224"]`.

    Attributes:
        width: Features per token.
        image_size: Pixels per side of the learned position table.
        patch_size: Pixels per side of a patch of its own convolution, which never runs.
    """

    width: int
    layers: int
    heads: int
    image_size: int
    patch_size: int

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Reads a whole `config.json`; raises ConfigError."""
        keys = ConfigKeys(config).section(_CLIP_SECTION)
        width = keys.integer("width", most=LARGEST_WIDTH)
        heads = keys.integer("heads")
        keys.check(width % heads == 0, "heads", f"a divisor of '{_CLIP_SECTION}.width', {width}")
        image_size = keys.integer("image_size", most=LARGEST_IMAGE)
        patch_size = keys.integer("patch_size")
        keys.check(
            patch_size <= image_size,
            "patch_size",
            f"at most {image_size}, the 'image_size' beside it",
        )
        return cls(width, keys.integer("layers", most=MOST_LAYERS), heads, image_size, patch_size)


@dataclass(frozen=True, slots=True)
class ClipModelDimensions(RelativeDimensions):
    """Every dimension of a model with SAM and CLIP."""

    clip: ClipDimensions

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Reads a whole `config.json`; raises ConfigError for absent, wrong or conflicting keys."""
        sam, clip = SamDimensions.from_config(config), ClipDimensions.from_config(config)
        projector = ProjectorDimensions.from_config(config)
        decoder, channels = DecoderDimensions.from_config(config), sam.downsample_channels[-1]
        # SAM's output is CLIP's patch embedding; both, concatenated, go through the projector.
        ConfigKeys(config).section(_CLIP_SECTION).check(
            clip.width == channels,
            "width",
            f"{channels}, the last of 'vision_config.width.sam_vit_b.downsample_channels'",
        )
        origin = "CLIP's width and SAM's last channels together"
        check_projector(projector, clip.width + channels, origin, decoder)
        return cls(sam=sam, clip=clip, projector=projector, decoder=decoder)


# --- CLIP ------------------------------------------------------------------------------------


def clip(t: Tape, features: Operand, N: Size, q: int, c: ClipDimensions) -> Operand:
    """SAM's features of N views, `[N, d, q, q] -> [N, 1 + q q, d]` (`VitModel`)."""
    x = t.call("embeddings", embeddings, features, N, q, c)
    hidden_states = t.call("pre_layrnorm", layer_norm, x, N * (q * q + 1), c.width)
    return t.hold(
        t.call("transformer", layers, hidden_states, c.layers, _layer, N, q * q + 1, c),
        x,
        hidden_states,
    )


def embeddings(t: Tape, features: Operand, N: Size, q: int, c: ClipDimensions) -> Operand:
    """The class token before the patches, plus positions (`CLIPVisionEmbeddings`)."""
    d, positions = c.width, (c.image_size // c.patch_size) ** 2 + 1
    t.idle("patch_embedding", methodcaller("weight", CHANNELS * d * c.patch_size**2))
    tokens = t.move("cat", t.weight(d, "class_embedding"), features, n=N * (q * q + 1) * d)
    ids = t.input(positions, INT64)
    return t.map(
        "add",
        tokens,
        absolute_positions(t, t.call("position_embedding", embedding, ids, positions, d), q, c),
    )


def embeddings_of_pixels(t: Tape, N: Size, q: int, c: ClipDimensions) -> Operand:
    """The same with patches of its own convolution, which DeepSeek-OCR never runs."""
    side = q * c.patch_size
    pixels = t.input(N * CHANNELS * side * side, t.dtype)
    sizes = pixels, N, side, CHANNELS, c.width, c.patch_size
    patches = t.call("patch_embedding", conv2d, *sizes, stride=c.patch_size)
    return embeddings(t, patches, N, q, c)


def absolute_positions(t: Tape, abs_pos: Operand, q: int, c: ClipDimensions) -> Operand:
    """`[1 + s s, d] -> [1 + q q, d]`, the class token's position first (`get_abs_pos`)."""
    d, side = c.width, c.image_size // c.patch_size
    if side == q:
        return abs_pos
    grid: Operand = t.view(abs_pos, side * side * d)
    if side > 1:
        grid = t.move("clone", grid)  # channels first
    grid = t.cast(grid, FLOAT32)
    patches = bicubic(t, grid, side, q, d)
    return t.hold(t.cat(t.view(abs_pos, d), patches), grid, patches)


def layer_norm_fp32(t: Tape, x: Operand, rows: Size, d: Size) -> Operand:
    """A norm in fp32, which DeepSeek-OCR's config does not ask for (`LayerNormfp32`)."""
    return t.cast(layer_norm(t, t.cast(x, FLOAT32), rows, d), t.dtype)


def _layer(t: Tape, x: Operand, N: Size, T: int, c: ClipDimensions) -> Operand:
    """`h = x + attention(norm(x))`, `h + mlp(norm(h))` (`NoTPTransformerBlock`)."""
    n, d = N * T, c.width
    residual = t.call("self_attn", _attention, t.call("layer_norm1", layer_norm, x, n, d), N, T, c)
    h = t.map("add", x, residual)
    return t.hold(
        t.map("add", h, t.call("mlp", _mlp, t.call("layer_norm2", layer_norm, h, n, d), n, c)),
        residual,
    )


def _attention(t: Tape, x: Operand, N: Size, T: int, c: ClipDimensions) -> Operand:
    """`softmax(q k^T / sqrt(D)) v`, whose kernel merges the heads (`NoTPAttention`)."""
    n, d, H, D = N * T, c.width, c.heads, c.width // c.heads
    qkv = t.call("qkv_proj", linear, x, n, d, 3 * d, bias=True)
    output = fused_attention(t, "scaled_dot_product_attention", Attention(N, H, H, T, T, D, D), qkv)
    return t.hold(t.call("out_proj", linear, output, n, d, d, bias=True), qkv)


def _mlp(t: Tape, x: Operand, n: Size, c: ClipDimensions) -> Operand:
    """`W_2 quick_gelu(W_1 x)`, four times as wide inside (`NoTPFeedForward`, `vit_model_cfg`)."""
    d, f = c.width, 4 * c.width
    hidden = t.call("fc1", linear, x, n, d, f, bias=True)
    hidden = quick_gelu(t, hidden)
    return t.call("fc2", linear, hidden, n, f, d, bias=True)


# --- the architecture --------------------------------------------------------------------------

_CLIP: Final = StageScope(
    "clip",
    ("model.vision_model",),
    "vision",
    ("SAM's features replace the patch embedding, whose convolution never runs",),
)


class DeepSeekOCR(FamilyMember):
    """SAM and CLIP, whose views are laid out in rows that end in newlines.

    Source: `DeepseekOCRModel.forward` (`modeling_deepseekocr.py`), `UnlimitedOCRModel.forward`
    (`modeling_unlimitedocr.py`).
    """

    name, title = "deepseek-ocr", "DeepSeek-OCR"
    config_class = "DeepseekOCRForCausalLM"
    model_types: tuple[str, ...] = ("DeepseekOCR", "deepseek_vl_v2")
    reference = Path(__file__).parent / "reference"
    published_code = _PUBLISHED_CODE
    config_table = key_table(SAM_KEYS | CLIP_KEYS | PROJECTOR_KEYS, PUBLISHED_SECTIONS)
    stages: tuple[StageScope, ...] = (SAM, _CLIP, PROJECTOR, PREFILL, DECODE)
    modes, default_mode = MODES, "gundam"
    page_rule = CropRule(tile=640, most_views=9)
    base_size, image_size = 1024, 640
    text_tokens = 10
    r"""BOS and the text of `<image>\n<|grounding|>Convert the document to markdown.`"""

    read_dimensions = staticmethod(ClipModelDimensions.from_config)

    def encode(
        self,
        t: Tape,
        features: ViewFeatures,
        pixels: Operand,
        view: ViewBatch,
        c: ClipModelDimensions,
        *,
        is_served: bool = False,
    ) -> None:
        """SAM on pixels, CLIP on its features, the projector on both."""
        N, q = view.count, tokens_per_side(view.resolution)
        features.spatial = t.again("sam_model", sam, pixels, N, view.resolution, c.sam)
        features.semantic = t.again("vision_model", clip, features.spatial, N, q, c.clip)
        patches = t.view(features.semantic, N * q * q * c.clip.width)
        features.tokens = t.cat(patches, features.spatial)
        del patches
        features.tokens = t.again("projector", projector, features.tokens, N, q, c.projector)

    def lay_out(
        self,
        t: Tape,
        features: ViewFeatures,
        view: ViewBatch,
        grid: tuple[int, int],
        c: ClipModelDimensions,
    ) -> None:
        """As one picture, with a newline after each of its rows.

        Local views take a copy unless there is one column or one token per side. Their grid is a
        tensor on the host: its sides are multiplied by q, the rows twice.
        """
        (columns, rows), q, d = grid, tokens_per_side(view.resolution), c.decoder.hidden_size
        if view.count > 1:
            for _ in range(3):
                t.map("mul", t.host(1, INT64), into=t.host(1, INT64))
        if columns > 1 and q > 1:
            features.tokens = t.move("clone", features.tokens)
        newline = t.weight(d, "image_newline")
        n = rows * q * (columns * q + 1) * d
        features.tokens = t.move("cat", features.tokens, newline, n=n)

    def visual_tokens(
        self, base_size: int, image_size: int, crop_mode: bool, grid: tuple[int, int]
    ) -> int:
        """`q (q + 1) + 1` of the whole page, `(q w + 1) (q h)` of w x h local views in one picture.

        A newline ends each row, and a separator ends the page.
        """
        q = tokens_per_side(base_size if crop_mode else image_size)
        tokens = q * (q + 1) + 1
        if crop_mode and grid != (1, 1):
            (columns, rows), q = grid, tokens_per_side(image_size)
            tokens += (q * columns + 1) * (q * rows)
        return tokens


DEEPSEEK_OCR: Final = DeepSeekOCR()
