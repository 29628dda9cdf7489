"""Unlimited-OCR: DeepSeek-OCR with a sliding window over generated tokens, and finer grids."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dsocr_analyze.architectures.architecture import CacheStep, KeyValueCache
from dsocr_analyze.architectures.config_file import (
    USED,
    Conditional,
    Config,
    ConfigKeys,
    Harmless,
    JsonValue,
    Unread,
)
from dsocr_analyze.architectures.deepseek_ocr import (
    MODES,
    PUBLISHED_SECTIONS,
    ClipModelDimensions,
    DeepSeekOCR,
)
from dsocr_analyze.architectures.ocr_family.config_table import (
    CLIP_KEYS,
    PROJECTOR_KEYS,
    SAM_KEYS,
    key_table,
)
from dsocr_analyze.architectures.views import CropRule
from dsocr_analyze.errors import ConfigError

_PUBLISHED_CODE: Final[Mapping[str, str]] = {
    "configuration_deepseek_v2.py": (
        "b8470dd616ba8745fce6e27b093aef73a098863cc891b2477dcf9326a36000f7"
    ),
    "conversation.py": "ec7b6ce89bcda643de1f43269ffa66a7b2e65dc3ed30e427958f776546b4ba03",
    "deepencoder.py": ("0ae2fb6d1e5ae8cf100fc32f854830acd08c821a0a1f23a94a76588c222ddcf2"),
    "modeling_deepseekv2.py": ("74e36e6bd0ba7bc565ef76464a99baa8e6bccb710ae9c1007b54ac30b855fa4c"),
    "modeling_unlimitedocr.py": (
        "268bdcbe12cf37bf5a2debb53faf542e56570958a5d9f3314aab3cab2cf6cb48"
    ),
}
"""SHA-256 of the published model's Python files."""

_MODES: Final = {name: MODES[name] for name in ("gundam", "base", "tiny", "small", "large")}
"""Without gundam-m: no server offers it, and `infer()` always cuts tiles of 640 pixels."""

_WINDOWS: Final = ("sliding_window_size", "sliding_window")
_WINDOW_RULE: Final = Conditional(
    "latent attention", Harmless("latent attention has no window"), USED
)

_WINDOW_RULES: Final = {
    "sliding_window_size": _WINDOW_RULE,
    "sliding_window": Conditional(
        "a window in its first key", Unread(("sliding_window_size",)), _WINDOW_RULE
    ),
}


class _UnlimitedOCR(DeepSeekOCR):
    name, title = "unlimited-ocr", "Unlimited-OCR"
    config_class = "UnlimitedOCRForCausalLM"
    model_types = ("unlimited-ocr",)
    reference = Path(__file__).parent / "reference"
    published_code = _PUBLISHED_CODE
    config_table = key_table(
        SAM_KEYS | CLIP_KEYS | PROJECTOR_KEYS | _WINDOW_RULES, PUBLISHED_SECTIONS
    )
    modes, default_mode = _MODES, "gundam"
    page_rule = CropRule(tile=640, most_views=32)
    prompt_pages = 1024
    has_window = True
    text_tokens = 5
    """BOS and an estimate for `<image>document parsing.`; its tokenizer was not available."""

    def read_dimensions(self, config: Config) -> ClipModelDimensions:
        """Reads a whole `config.json`; raises ConfigError."""
        dimensions = ClipModelDimensions.from_config(config)
        keys = ConfigKeys(config)
        # As in `infer()`: the second key counts if the first is missing, null or 0.
        given = (keys.integer(key, least=0) for key in _WINDOWS if config.get(key) is not None)
        window = next(filter(None, given), None)
        if dimensions.decoder.use_mla:
            window = None
        decoder = replace(dimensions.decoder, masks_steps=False, sliding_window=window)
        return replace(dimensions, decoder=decoder)

    def check_flash(self, dimensions: ClipModelDimensions) -> None:
        """Raises ConfigError if attention is plain, which is eager only."""
        super().check_flash(dimensions)
        if not dimensions.decoder.use_mla:
            raise ConfigError(
                "flash_attention=True is not supported: unlimited-ocr's attention is eager only,"
                " unless 'use_mla' is true; give flash_attention=False",
                arguments=["flash_attention"],
            )

    def without_window(self, config: Config) -> dict[str, JsonValue]:
        """The config with every key of the window set to null."""
        off: dict[str, JsonValue] = {**config, **dict.fromkeys(config.keys() & set(_WINDOWS))}
        copy = config.get("language_config")
        if isinstance(copy, Mapping):
            off["language_config"] = self.without_window(copy)
        return off

    def decode_cache(self, cache: KeyValueCache, step: CacheStep) -> KeyValueCache:
        """The cache that a decode step finds, with the window's state.

        Source: `SlidingWindowLlamaAttention` (`modeling_deepseekv2.py`), which keeps the prompt's
        length and the slot to overwrite next on the cache, by layer.
        """
        noted = getattr(cache, "_prefill_length", None)
        if not noted:
            return super().decode_cache(cache, replace(step, window=None))
        ring: Any = super().decode_cache(cache, step)
        ring._prefill_length = dict.fromkeys(noted, step.prompt_tokens)
        if step.slot is not None:
            ring._ring_pos = dict.fromkeys(noted, step.slot)
        return ring


UNLIMITED_OCR: Final = _UnlimitedOCR()
