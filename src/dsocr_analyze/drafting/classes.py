"""The class of a model whose config names none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsocr_analyze.architectures.config_keys import Config
from dsocr_analyze.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["class_for", "is_masked"]

_GENERATING: Final = (
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
)
"""The auto classes' tables of models that generate, the most telling first."""


def class_for(values: Config) -> str | None:
    """The class for a config that names none: one that generates if there is one; else None.

    Raises:
        ConfigError: The installed transformers has no class for its `model_type`.
    """
    from transformers.models.auto import modeling_auto

    model_type = values.get("model_type")
    named = values.get("architectures")
    if isinstance(named, list) and named:
        return None
    tables = [getattr(modeling_auto, name, {}) for name in _GENERATING]
    is_masked_model = model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if is_masked_model and not values.get("is_decoder"):
        tables.pop()  # BERT and its like can be made to generate, but are not meant to
    for table in [*tables, modeling_auto.MODEL_MAPPING_NAMES]:
        found = table.get(model_type)
        if found is not None:
            return found if isinstance(found, str) else str(found[0])
    raise ConfigError(
        f"config.json has model_type {model_type!r} and names no class in 'architectures', and"
        " transformers has none for it; give model_class='NAME'",
        arguments=["model_class"],
    )


def is_masked(module: PreTrainedModel) -> bool:
    """Whether a model fills in masked tokens, such as BERT; old versions say that it generates."""
    from transformers.models.auto import modeling_auto

    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    name = type(module).__name__
    is_encoder = name in masked and name not in causal
    return is_encoder and not module.config.is_encoder_decoder
