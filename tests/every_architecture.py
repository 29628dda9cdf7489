"""Every architecture that the installed transformers builds, with its smallest config."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from dsocr_analyze.architectures import described_architecture
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import LoadedModel, load_model

_BERT = {"model_type": "bert", "num_hidden_layers": 1}
_VIT = {"model_type": "vit", "num_hidden_layers": 1}
_DECODER = {**_BERT, "is_decoder": True, "add_cross_attention": True}
_MUSIC = {
    "text_encoder": {"model_type": "t5", "num_layers": 1},
    "audio_encoder": {"model_type": "encodec"},
}
_WITHOUT_DEFAULTS: dict[str, dict[str, Any]] = {
    "encoder-decoder": {"encoder": _BERT, "decoder": _DECODER},
    "vision-encoder-decoder": {"encoder": _VIT, "decoder": _DECODER},
    "speech-encoder-decoder": {
        "encoder": {"model_type": "wav2vec2", "num_hidden_layers": 1},
        "decoder": _DECODER,
    },
    "vision-text-dual-encoder": {"vision_config": _VIT, "text_config": _BERT},
    "rag": {
        "question_encoder": {"model_type": "dpr", "num_hidden_layers": 1},
        "generator": {"model_type": "bart", "encoder_layers": 1, "decoder_layers": 1},
    },
    "musicgen": {**_MUSIC, "decoder": {"model_type": "musicgen_decoder", "num_hidden_layers": 1}},
    "musicgen_melody": {
        **_MUSIC,
        "decoder": {"model_type": "musicgen_melody_decoder", "num_hidden_layers": 1},
    },
}
"""Parts of the configs that transformers has no defaults for."""

STAGES = """
name = "any"
[[stages]]
name = "everything"
prefixes = []
role = "prefill"
[inputs.pixel_values]
shape = [1, 3, 64, 64]
"""


@cache
def architectures() -> dict[str, tuple[str, ...]]:
    """Model classes by `model_type`, as the auto classes name them."""
    found: dict[str, set[str]] = {name: set() for name in CONFIG_MAPPING_NAMES}
    for mapping, classes in vars(modeling_auto).items():
        if mapping.startswith("MODEL_") and mapping.endswith("_MAPPING_NAMES"):
            for model_type, names in classes.items():
                found[model_type] |= {names} if isinstance(names, str) else set(names)
    return {name: tuple(sorted(classes)) for name, classes in sorted(found.items()) if classes}


@cache
def smallest_config(model_type: str) -> dict[str, Any]:
    """The default config with one layer of each kind and few experts, where it allows that."""
    config = dict(_WITHOUT_DEFAULTS.get(model_type, {}))
    if not config:
        try:
            default = CONFIG_MAPPING[model_type]().to_dict()
        except (ValueError, StrictDataclassError):  # one that cannot do without values
            default = {}
        config = _smaller(default)
        try:
            CONFIG_MAPPING[model_type].from_dict(dict(config))
        except (
            ValueError,
            StrictDataclassError,
        ):  # one that has a list with a value for every layer
            config = default
    return {**config, "model_type": model_type}


def _smaller(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _smaller(each, str(name)) for name, each in value.items()}
    if isinstance(value, int) and not isinstance(value, bool):
        if "layers" in key and "index" not in key:
            return min(value, 1)
        if "experts" in key and "per" not in key:
            return min(value, 8)
    return value


def alone(config: dict[str, Any], folder: Path) -> ModelDirectory:
    """A config that describes a model alone, as `--hf-config` reads one."""
    stages = folder / "any.toml"
    stages.write_text(STAGES)
    file = folder / "alone.json"
    return ModelDirectory(file, config, {}, described_architecture(stages), file)


def built(directory: ModelDirectory) -> LoadedModel:
    """Its model on `meta`."""
    return load_model(directory, device=torch.device("meta"), dtype=torch.bfloat16)
