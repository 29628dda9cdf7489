"""DeepSeek-OCR-2: SAM, a Qwen2 decoder as encoder, a projector, and DeepSeek-OCR's decoder.

The encoder runs over image tokens and as many learned queries. The published config names only its
width; the other values that its code sets may be named too, as for small models.

Source: `Qwen2Decoder2Encoder`, `CustomQwen2Decoder` (`deepencoderv2.py`) and the Qwen2 classes of
transformers 4.46, in whose order operators and names stand; Ainslie et al. 2023 (GQA).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import methodcaller
from pathlib import Path
from typing import Final, Self

from dsocr_analyze.architectures.config_file import (
    LARGEST_WIDTH,
    MOST_LAYERS,
    USED,
    Config,
    ConfigKeys,
)
from dsocr_analyze.architectures.ocr_family.attention import LayerCache, Pass, rotary_tables
from dsocr_analyze.architectures.ocr_family.config_table import (
    PROJECTOR_KEYS,
    SAM_KEYS,
    Rules,
    key_table,
)
from dsocr_analyze.architectures.ocr_family.decoder import decoder_layers
from dsocr_analyze.architectures.ocr_family.dimensions import (
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
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.figures import StageScope
from dsocr_analyze.kernels import BOOL, INT64
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.workload import Mode, ViewBatch

_PUBLISHED_CODE: Final[Mapping[str, str]] = {
    "configuration_deepseek_v2.py": (
        "6ab21f29a4722e26fa28c8e0d4277591689a598df17cf6c712330e8f62b3fc7c"
    ),
    "conversation.py": ("ec7b6ce89bcda643de1f43269ffa66a7b2e65dc3ed30e427958f776546b4ba03"),
    "deepencoderv2.py": ("798b45ae9929d68823f9eccac8d99cf198759b8b22ec4e4e2ebdda1b18a88df3"),
    "modeling_deepseekocr2.py": (
        "eb221cb3b386b627784d971feaa3876e21a460b2c202d7cc4d386b4afc103bff"
    ),
    "modeling_deepseekv2.py": ("69184a0493d1fdac21c360f9f9eabc5b5af3188e0265df44cfaeafc44f9095e3"),
}
"""SHA-256 of the Python files of a public copy, whose additions are off by default."""

_PUBLISHED_SECTIONS: Final[Mapping[str, Config]] = {
    "vision_config": {
        "image_size": 1024,
        "width": {
            "qwen2-0-5b": {
                "dim": 896,
                "heads": 14,
                "intermediate_size": 4864,
                "key_value_heads": 2,
                "layers": 24,
                "view_sizes": [768, 1024],
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
        "input_dim": 896,
        "n_embed": 1280,
        "token_pooling": False,
        "conv_fusion_high_low_features": False,
    },
}
"""What the published code builds, regardless of these sections, which it does not read.

It replaces the last of `downsample_channels` by the encoder's width, 896.

Sources: `_build_sam`, `build_sam_vit_b`, `build_qwen2_decoder_as_encoder` (`deepencoderv2.py`) and
`DeepseekOCR2Model.__init__` (`modeling_deepseekocr2.py`).
"""

_ENCODER: Final = StageScope(
    "encoder",
    ("model.qwen2_model",),
    "vision",
    (
        "a Qwen2 decoder: image tokens see one another, queries also the queries before them;"
        " all T x T products are multiplied",
        "it fills a KV cache that nothing reads",
    ),
)

_MODES: Final[dict[str, Mode]] = {
    mode.name: mode
    for mode in (
        Mode("dynamic", 1024, 768, crop_mode=True),
        Mode("small", 768, 768, crop_mode=False),
        Mode("base", 1024, 1024, crop_mode=False),
    )
}
"""The `infer()` call of its README, and each view size alone."""

_ENCODER_KEYS: Final[Rules] = dict.fromkeys(
    (
        "vision_config.width.qwen2-0-5b.dim",
        "vision_config.width.qwen2-0-5b.layers",
        "vision_config.width.qwen2-0-5b.heads",
        "vision_config.width.qwen2-0-5b.key_value_heads",
        "vision_config.width.qwen2-0-5b.intermediate_size",
        "vision_config.width.qwen2-0-5b.view_sizes",
    ),
    USED,
)


# --- dimensions ------------------------------------------------------------------------------

_VIEW_SIZES: Final = (768, 1024)
"""Pixels per side of the views for which the published code has queries."""

_PUBLISHED_CHANNELS: Final = 1024
"""Last of the published `downsample_channels`, which its code replaces by the encoder's width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDimensions(DecoderDimensions):
    """Qwen2 as an encoder (`Qwen2Decoder2Encoder`), `vision_config.width["qwen2-0-5b"]`.

    Attributes:
        view_sizes: Pixels per side of views with a table of queries.
    """

    view_sizes: tuple[int, ...]

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Reads a whole `config.json`; raises ConfigError."""
        keys = ConfigKeys(config).section("vision_config.width.qwen2-0-5b")
        width = keys.integer("dim", most=LARGEST_WIDTH)
        heads = keys.integer("heads", 14)
        keys.check(
            width % (2 * heads) == 0,
            "heads",
            f"a number of heads of even size for a 'dim' of {width}",
        )
        kv_heads = keys.integer("key_value_heads", 2)
        keys.check(
            heads % kv_heads == 0, "key_value_heads", f"a divisor of {heads}, the number of heads"
        )
        layers = keys.integer("layers", 24, most=MOST_LAYERS)
        intermediate_size = keys.integer("intermediate_size", 4864, most=LARGEST_WIDTH)
        sizes = keys.integers("view_sizes", _VIEW_SIZES)
        keys.check(
            len(set(map(tokens_per_side, sizes))) == len(sizes),
            "view_sizes",
            "sizes of views that become different numbers of tokens",
        )
        return cls(
            hidden_size=width,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=width // heads,
            intermediate_size=intermediate_size,
            hidden_act="silu",
            attention_bias=True,
            view_sizes=sizes,
        )

    @property
    def queries(self) -> tuple[int, ...]:
        """Rows of each table of queries."""
        return tuple(tokens_per_side(size) ** 2 for size in self.view_sizes)


@dataclass(frozen=True, slots=True)
class OCR2Dimensions(RelativeDimensions):
    """Every dimension of one model; SAM's last convolution has the Qwen2 encoder's width."""

    encoder: EncoderDimensions

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Reads a whole `config.json`; raises ConfigError for absent, wrong or conflicting keys."""
        encoder = EncoderDimensions.from_config(config)
        sam = SamDimensions.from_config(config)
        middle, last = sam.downsample_channels
        ConfigKeys(config).section("vision_config.width.sam_vit_b").check(
            last in (_PUBLISHED_CHANNELS, encoder.hidden_size),
            "downsample_channels",
            f"[{middle}, {encoder.hidden_size}], the encoder's width at last",
        )
        sam = replace(sam, downsample_channels=(middle, encoder.hidden_size))
        projector = ProjectorDimensions.from_config(config)
        decoder = DecoderDimensions.from_config(config)
        check_projector(projector, encoder.hidden_size, "the encoder's width", decoder)
        return cls(sam=sam, encoder=encoder, projector=projector, decoder=decoder)


# --- the encoder -----------------------------------------------------------------------------

_KINDS: Final = ("zeros", "ones")
"""What `token_type_ids` are for image tokens and for queries, by the operators that make them."""


def qwen2_encoder(
    t: Tape, features: Operand, N: Size, q: int, c: EncoderDimensions, *, has_mask: bool = False
) -> Operand:
    """SAM's features of N views, `[N, d, q, q] -> [N, q q, d]`, ends of sequences of `2 q q`.

    The mask may exist already, from an earlier call.
    """
    n, d = q * q, c.hidden_size
    for size, rows in zip(c.view_sizes, c.queries, strict=True):
        t.idle(f"query_{size}", methodcaller("weight", rows * d))
    param_img = t.input(n * d, t.dtype)
    x_combined = t.move("cat", features, param_img, n=N * 2 * n * d)
    kinds = [t.move(name, n=N * n, dtype=INT64, into=t.host(N * n, INT64)) for name in _KINDS]
    token_type_ids = t.move("cat", *kinds, n=N * 2 * n, into=t.host(N * 2 * n, INT64))
    outputs = t.call("model", _decoder, x_combined, token_type_ids, N, n, c, has_mask)
    return t.hold(t.view(outputs[0], N * n * d), x_combined)


# --- the model -------------------------------------------------------------------------------


def _decoder(
    t: Tape,
    x: Operand,
    token_type_ids: Operand,
    N: Size,
    n: int,
    c: EncoderDimensions,
    has_mask: bool,
) -> tuple[Operand, list[LayerCache]]:
    """`CustomQwen2Decoder`."""
    return t.call("model", _model, x, token_type_ids, N, n, c, has_mask)


def _model(
    t: Tape,
    inputs_embeds: Operand,
    token_type_ids: Operand,
    N: Size,
    n: int,
    c: EncoderDimensions,
    has_mask: bool,
) -> tuple[Operand, list[LayerCache]]:
    """Layers and norm; also returns all keys and values (`CustomQwen2ModelInner`)."""
    T = 2 * n
    position_ids = t.move("arange", n=T, dtype=INT64)
    if has_mask:
        mask: Operand = t.input(N * T * T, t.dtype)
    else:
        mask = _mixed_mask(t, token_type_ids, N, n)
    tables = t.call("rotary_emb", rotary_tables, 1, T, c.head_dim)
    outputs = decoder_layers(t, inputs_embeds, Pass(N, T, sdpa=True), c, mask, tables)
    return t.hold(outputs, position_ids, mask, *tables)


def _mixed_mask(t: Tape, token_type_ids: Operand, N: Size, n: int) -> Operand:
    """The additive mask `[N, 1, T, T]`, written view by view (`CustomQwen2Decoder`)."""
    T = 2 * n
    masks: list[Operand] = []
    for skipped in t.turns(N):  # the masks of views that are skipped are alive, too
        masks += [t.empty(skipped * T * T, t.dtype), _mask_of_view(t, token_type_ids, n)]
    return t.move("stack", *masks, n=N * T * T)


def _mask_of_view(t: Tape, token_type_ids: Operand, n: int) -> Operand:
    """Zero where a token may attend, the lowest number elsewhere, `[T, T]`.

    Image tokens see each other; a query sees these and the queries up to itself.
    """
    T = 2 * n
    mask = t.move("full", n=T * T, dtype=t.dtype)
    for _ in _KINDS:
        is_kind = t.map("eq", t.view(token_type_ids, T), output=BOOL, into=t.host(T, BOOL))
        t.move("nonzero", is_kind, n=n, dtype=INT64, into=t.host(n, INT64))
    _write_zero(t, t.view(mask, T * T), 2 * n, n * n)
    row = t.view(mask, T)
    for _ in t.turns(n):  # a query's write to the image tokens is the same in every row
        _write_zero(t, row, n, n)
    for query in range(1, n + 1):
        _write_zero(t, row, query, query)
    return mask


def _write_zero(t: Tape, into: Operand, indices: int, places: int) -> None:
    """Writes a zero to some places of a tensor, which `indices` select."""
    zero = t.move("scalar_tensor", n=1, dtype=t.dtype)
    size = t.dtype.nbytes
    t.move(
        "index_put",
        zero,
        n=into.n,
        read=size + INT64.nbytes * indices,
        written=size * places,
        into=into,
    )


# --- the architecture --------------------------------------------------------------------------


class _OCR2(FamilyMember):
    """Each view becomes as many tokens as it has queries, and the views are concatenated.

    Source: `DeepseekOCR2Model.forward` (`modeling_deepseekocr2.py`).
    """

    name, title = "deepseek-ocr-2", "DeepSeek-OCR-2"
    config_class = "DeepseekOCR2ForCausalLM"
    model_types = ("DeepseekOCR2",)
    reference = Path(__file__).parent / "reference"
    published_code = _PUBLISHED_CODE
    config_table = key_table(SAM_KEYS | _ENCODER_KEYS | PROJECTOR_KEYS, _PUBLISHED_SECTIONS)
    stages = (SAM, _ENCODER, PROJECTOR, PREFILL, DECODE)
    modes, default_mode = _MODES, "dynamic"
    page_rule = CropRule(tile=768, most_views=6)
    base_size, image_size = 1024, 768
    text_tokens = 10
    r"""BOS and the text of `<image>\n<|grounding|>Convert the document to markdown.`"""

    read_dimensions = staticmethod(OCR2Dimensions.from_config)

    def check_sizes(self, base_size: int, image_size: int, crop_mode: bool) -> None:
        """Rejects views for which the encoder has no queries, and tiles of another size."""
        if crop_mode:
            _check_view("base_size", base_size)
            tile = self.page_rule.tile
            if image_size != tile:
                raise WorkloadError(
                    f"image_size {image_size} is not supported in crop mode: tiles always"
                    f" have {tile} pixels per side, and tokens laid out for another size"
                    f" do not match their features; give {tile}",
                    arguments=["image_size"],
                )
        else:
            _check_view("image_size", image_size)

    def encode(
        self,
        t: Tape,
        features: ViewFeatures,
        pixels: Operand,
        view: ViewBatch,
        c: OCR2Dimensions,
        *,
        is_served: bool = False,
    ) -> None:
        """SAM on pixels, the encoder on its features, the projector on the encoded queries.

        Serving engines build the encoder's mask once and keep it (vLLM pull 49531).
        """
        N, q = view.count, tokens_per_side(view.resolution)
        features.spatial = t.again("sam_model", sam, pixels, N, view.resolution, c.sam)
        features.semantic = t.again(
            "qwen2_model", qwen2_encoder, features.spatial, N, q, c.encoder, has_mask=is_served
        )
        features.tokens = features.semantic  # frees the previous page's tokens first
        # The encoded queries follow the image tokens of their view.
        features.tokens = t.again(
            "projector", projector, features.tokens, N, q, c.projector, are_apart=True
        )

    def visual_tokens(
        self, base_size: int, image_size: int, crop_mode: bool, grid: tuple[int, int]
    ) -> int:
        """`q q` per view: there are no newlines; a separator ends the page."""
        tokens = tokens_per_side(base_size if crop_mode else image_size) ** 2 + 1
        if crop_mode and grid != (1, 1):
            tokens += tokens_per_side(image_size) ** 2 * grid[0] * grid[1]
        return tokens


def _check_view(argument: str, size: int) -> None:
    """Rejects a view for whose number of tokens the published code has no queries.

    A config may name other sizes for a small model, whose pages are planned without this check.
    """
    if tokens_per_side(size) not in {tokens_per_side(each) for each in _VIEW_SIZES}:
        sizes = " or ".join(map(str, _VIEW_SIZES))
        raise WorkloadError(
            f"{argument} {size} is not supported: the encoder has no queries for the"
            f" {tokens_per_side(size) ** 2} tokens of such a view; give {sizes}",
            arguments=[argument],
        )


DEEPSEEK_OCR_2: Final = _OCR2()
