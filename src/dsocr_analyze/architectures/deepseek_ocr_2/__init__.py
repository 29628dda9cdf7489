"""DeepSeek-OCR-2: SAM, a Qwen2 decoder as encoder, a projector, and DeepSeek-OCR's decoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dsocr_analyze.architectures.config_file import Config, Used
from dsocr_analyze.architectures.deepseek_ocr_2.encoder import (
    VIEW_SIZES,
    OCR2Dimensions,
    qwen2_encoder,
)
from dsocr_analyze.architectures.ocr_family.config_table import (
    PROJECTOR_KEYS,
    SAM_KEYS,
    Rules,
    key_table,
)
from dsocr_analyze.architectures.ocr_family.family_member import FamilyMember
from dsocr_analyze.architectures.ocr_family.ocr_model import (
    DECODE,
    PREFILL,
    PROJECTOR,
    SAM,
    ViewFeatures,
)
from dsocr_analyze.architectures.ocr_family.projector import projector
from dsocr_analyze.architectures.ocr_family.sam import sam
from dsocr_analyze.architectures.stages import Stage
from dsocr_analyze.architectures.views import CropRule, tokens_per_side
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.workload import Mode, ViewBatch

__all__ = ["CONFIG_TABLE", "DEEPSEEK_OCR_2"]

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

_ENCODER: Final = Stage(
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

_ENCODER_KEYS: Final[Rules] = {
    f"vision_config.width.qwen2-0-5b.{key}": Used()
    for key in ("dim", "layers", "heads", "key_value_heads", "intermediate_size", "view_sizes")
}

CONFIG_TABLE: Final = key_table(SAM_KEYS | _ENCODER_KEYS | PROJECTOR_KEYS, _PUBLISHED_SECTIONS)
"""Every key of a `config.json`, and what it does to the figures."""


class _OCR2(FamilyMember):
    """Each view becomes as many tokens as it has queries, and the views are concatenated.

    Source: `DeepseekOCR2Model.forward` (`modeling_deepseekocr2.py`).
    """

    name, title = "deepseek-ocr-2", "DeepSeek-OCR-2"
    vendor_class = "DeepseekOCR2ForCausalLM"
    model_types = ("DeepseekOCR2",)
    built_in = Path(__file__).parent / "reference"
    published_code = _PUBLISHED_CODE
    config_table = CONFIG_TABLE
    stages = (SAM, _ENCODER, PROJECTOR, PREFILL, DECODE)
    modes, default_mode = _MODES, "dynamic"
    crop = CropRule(tile=768, most=6)
    base_size, image_size = 1024, 768
    text_tokens = 10
    r"""BOS and the text of `<image>\n<|grounding|>Convert the document to markdown.`"""

    def read_dimensions(self, config: Config) -> OCR2Dimensions:
        """Dimensions from the top-level object of a `config.json`."""
        return OCR2Dimensions.from_config(config)

    def check_sizes(self, base_size: int, image_size: int, crop_mode: bool) -> None:
        """Rejects views for which the encoder has no queries, and tiles of another size."""
        if crop_mode:
            _check_view("base_size", base_size)
            if image_size != self.crop.tile:
                raise WorkloadError(
                    f"image_size {image_size} is not supported in crop mode: tiles always"
                    f" have {self.crop.tile} pixels per side, and tokens laid out for another size"
                    f" do not match their features; give {self.crop.tile}",
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

    def whole_tokens(self, q: Size) -> Size:
        """`q q + 1`: there are no newlines; a separator ends the page."""
        return q * q + 1

    def local_tokens(self, q: Size, columns: Size, rows: Size) -> Size:
        """`q q` per view."""
        return q * q * columns * rows


def _check_view(argument: str, size: int) -> None:
    """Rejects a view whose number of tokens has no queries in the published code.

    That code fixes the sizes that have queries; a config may name others for a small model, and
    then pages are planned without this check.
    """
    if tokens_per_side(size) not in {tokens_per_side(each) for each in VIEW_SIZES}:
        sizes = " or ".join(map(str, VIEW_SIZES))
        raise WorkloadError(
            f"{argument} {size} is not supported: the encoder has no queries for the"
            f" {tokens_per_side(size) ** 2} tokens of such a view; give {sizes}",
            arguments=[argument],
        )


DEEPSEEK_OCR_2: Final = _OCR2()
