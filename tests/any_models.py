"""Small models of transformers with their stages files, and what each is called with by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from dsocr_analyze.architectures import described_architecture
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.session import DeepSeekOCRSession

TRANSFORMERS = tuple(int(part) for part in transformers.__version__.split(".")[:2])
IS_5 = TRANSFORMERS >= (5, 0)

DECODER = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
TOKENS = 24
IMAGE, START = 120, 118
"""Ids that stand for an image's tokens, and before them."""


@dataclass(frozen=True)
class Small:
    """A model.

    Attributes:
        config: Its config.json.
        stages: Stages, inputs and the rest of its file, without the name.
        forward: What it is called with besides ids, by hand: on a device.
        ids: Its prompt.
        is_there: Whether the installed transformers has it, in this form.
        decodes: Whether it has a decode step.
    """

    config: dict[str, Any]
    stages: str
    forward: Callable[[torch.device], dict[str, Any]] = field(default=lambda device: {})
    ids: tuple[int, ...] = (0,) * TOKENS
    is_there: bool = True
    decodes: bool = True

    def write(self, folder: Path, name: str = "small") -> tuple[Path, Path]:
        """Paths of its stages file and of its config, written into a folder."""
        stages, config = folder / f"{name}.toml", folder / f"{name}.json"
        stages.write_text(f'name = "{name}"\n{self.stages}')
        config.write_text(json.dumps(self.config))
        return stages, config

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """What its `generate` is called with, or its forward if it does not decode."""
        given = self.forward(device)
        if self.ids:
            ids = torch.tensor([self.ids], device=device)
            given |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return given


def session_of(small: Small, folder: Path, **arguments: Any) -> DeepSeekOCRSession:
    """A session of a model, with its files in a folder."""
    stages, config = small.write(folder)
    directory = ModelDirectory.of_config(config, described_architecture(stages))
    return DeepSeekOCRSession.from_directory(directory, **arguments)


def grouped_mm_flops(left: Any, right: Any, *_: Any, **__: Any) -> int:
    """2 M K N of rows [M, K] that meet one matrix [K, N] each; torch's counter knows none."""
    assert (len(left), len(right)) == (2, 3)
    return 2 * left[0] * left[1] * right[2]


FORMULAS: dict[Any, Callable[..., int]] = {}
"""Of operators that torch's counter lacks."""
if hasattr(torch.ops.aten, "_grouped_mm"):
    FORMULAS[torch.ops.aten._grouped_mm] = grouped_mm_flops


def has_class(name: str) -> bool:
    """Whether the installed transformers has a class."""
    return hasattr(transformers, name)


TEXT_STAGES = """
[[stages]]
name = "prefill"
prefixes = ["model"]
role = "prefill"

[[stages]]
name = "decode"
prefixes = ["lm_head"]
role = "decode"
"""


def vision_stages(vision: str, text: str, head: str = "lm_head") -> str:
    """Stages of a model of vision and language."""
    return f"""
[[stages]]
name = "vision"
prefixes = {vision}

[[stages]]
name = "prefill"
prefixes = ["{text}"]
role = "prefill"

[[stages]]
name = "decode"
prefixes = ["{head}"]
role = "decode"
"""


def placed(count: int) -> str:
    """A prompt with an image's tokens from position 4."""
    return f"""
[prompt]
tokens = {TOKENS}
placed = [{{ value = {START}, start = 3 }}, {{ value = {IMAGE}, start = 4, count = {count} }}]
"""


def ids_with_image(count: int) -> tuple[int, ...]:
    return (0, 0, 0, START, *[IMAGE] * count, *[0] * (TOKENS - 4 - count))


PROMPT = f"\n[prompt]\ntokens = {TOKENS}\n"

LLAMA = Small(
    {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **DECODER},
    TEXT_STAGES + PROMPT,
)
QWEN2 = Small(
    {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **DECODER},
    TEXT_STAGES + PROMPT,
)
MIXTRAL = Small(
    {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **DECODER,
     "num_local_experts": 4, "num_experts_per_tok": 2},
    TEXT_STAGES + PROMPT,
)  # fmt: skip
QWEN2_MOE = Small(
    {"model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], **DECODER,
     "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
     "shared_expert_intermediate_size": 48},
    ("" if IS_5 else 'routed_expert = "model.layers.*.mlp.experts.*"\n') + TEXT_STAGES + PROMPT,
)  # fmt: skip
CLIP_VISION = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
CLIP = Small(
    {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "projection_dim": 24,
        "vision_config": CLIP_VISION,
        "text_config": {
            "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": 32, "bos_token_id": 0,
            "eos_token_id": 1, "pad_token_id": 1,
        },
    },
    f"""
[[stages]]
name = "image"
prefixes = ["vision_model", "visual_projection"]

[[stages]]
name = "text"
prefixes = ["text_model", "text_projection"]

[[stages]]
name = "similarity"
role = "prefill"

[prompt]
tokens = {TOKENS}
placed = [{{ value = 1, start = {TOKENS - 1} }}]

[inputs.pixel_values]
shape = ["batch", 3, 32, 32]
fill = 0.5
""",
    lambda device: {"pixel_values": torch.full((1, 3, 32, 32), 0.5, device=device)},
    (*[0] * (TOKENS - 1), 1),
    decodes=False,
)  # fmt: skip
CLIP_ENCODER = Small(
    {"model_type": "clip_vision_model", "architectures": ["CLIPVisionModel"], **CLIP_VISION},
    """
[[stages]]
name = "encoder"
role = "prefill"

[inputs.pixel_values]
shape = ["batch", 3, 32, 32]
""",
    lambda device: {"pixel_values": torch.full((1, 3, 32, 32), 1.0, device=device)},
    (),
    decodes=False,
)

_QWEN_VL_IDS = {
    "image_token_id": IMAGE, "vision_start_token_id": START, "vision_end_token_id": 119,
    "video_token_id": 121,
}  # fmt: skip
_MROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
_PATCHES, _MERGED = 16, 4


def _qwen_vl(device: torch.device) -> dict[str, Any]:
    given = {
        "pixel_values": torch.full((_PATCHES, 3 * 2 * 14 * 14), 0.5, device=device),
        "image_grid_thw": torch.tensor([[1, 4, 4]], device=device),
    }
    if IS_5:
        kinds = [int(token == IMAGE) for token in ids_with_image(_MERGED)]
        given["mm_token_type_ids"] = torch.tensor([kinds], device=device)
    return given


_QWEN_VL_INPUTS = f"""
[inputs.pixel_values]
shape = [{_PATCHES}, 1176]
fill = 0.5
repeat = "batch"

[inputs.image_grid_thw]
values = [[1, 4, 4]]
repeat = "batch"
""" + (
    f"""
[inputs.mm_token_type_ids]
shape = ["batch", "tokens"]
dtype = "int64"
fill = 0
placed = [{{ value = 1, start = 4, count = {_MERGED} }}]
"""
    if IS_5
    else ""
)
_QWEN_VISION = '["model.visual"]' if IS_5 else '["visual"]'
_QWEN_TEXT = "model.language_model" if IS_5 else "model"


def _qwen_vl_config(vision: dict[str, Any], **top: Any) -> dict[str, Any]:
    text = {**DECODER, **_MROPE}
    return {
        **top,
        **_QWEN_VL_IDS,
        "vision_config": vision,
        **({"text_config": text} if IS_5 else text),
    }


# The position ids of mrope are made by the model itself: `generate` gives it none in the prompt.
_QWEN_PROMPT = placed(_MERGED) + 'without = ["position_ids"]\n'

QWEN2_VL = Small(
    _qwen_vl_config(
        {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2},
        model_type="qwen2_vl",
        architectures=["Qwen2VLForConditionalGeneration"],
    ),
    vision_stages(_QWEN_VISION, _QWEN_TEXT) + _QWEN_PROMPT + _QWEN_VL_INPUTS,
    _qwen_vl,
    ids_with_image(_MERGED),
)
QWEN2_5_VL = Small(
    _qwen_vl_config(
        {"depth": 2, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48,
         "num_heads": 4, "window_size": 28, "fullatt_block_indexes": [1]},
        model_type="qwen2_5_vl",
        architectures=["Qwen2_5_VLForConditionalGeneration"],
    ),
    vision_stages(_QWEN_VISION, _QWEN_TEXT) + _QWEN_PROMPT + _QWEN_VL_INPUTS,
    _qwen_vl,
    ids_with_image(_MERGED),
    is_there=hasattr(transformers, "Qwen2_5_VLConfig"),
)  # fmt: skip
GOT_OCR2 = Small(
    {
        "model_type": "got_ocr2",
        "architectures": ["GotOcr2ForConditionalGeneration"],
        "image_token_index": IMAGE,
        "image_token_id": IMAGE,
        "vision_config": {
            "hidden_size": 32, "output_channels": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": 64, "patch_size": 16, "window_size": 2,
            "global_attn_indexes": [1], "mlp_dim": 64,
        },
        "text_config": {"model_type": "qwen2", **DECODER},
    },
    vision_stages(
        '["model.vision_tower", "model.multi_modal_projector"]', "model.language_model"
    )
    + placed(1)
    + '\n[inputs.pixel_values]\nshape = ["batch", 3, 64, 64]\nfill = 0.5\n',
    lambda device: {"pixel_values": torch.full((1, 3, 64, 64), 0.5, device=device)},
    ids_with_image(1),
    is_there=hasattr(transformers, "GotOcr2Config"),
)  # fmt: skip

_MOE = {
    **DECODER, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "n_shared_experts": 1, "topk_method": "greedy", "n_group": 1,
    "topk_group": 1, "mlp_layer_types": ["dense", "sparse"],
}  # fmt: skip
_SAM = {
    "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "window_size": 6, "global_attn_indexes": [1], "mlp_dim": 64,
}  # fmt: skip
_OCR_STAGES = """
[[stages]]
name = "sam"
prefixes = ["model.vision_tower.sam_encoder"]

[[stages]]
name = "encoder"
prefixes = ["model.vision_tower"]

[[stages]]
name = "projector"
prefixes = ["model.multi_modal_projector"]

[[stages]]
name = "prefill"
prefixes = ["model.language_model"]
role = "prefill"

[[stages]]
name = "decode"
prefixes = ["lm_head"]
role = "decode"
"""


def _ocr(model_class: str, side: int, tokens: int, config: dict[str, Any]) -> Small:
    """A relative of DeepSeek-OCR in transformers' own code, on one view."""
    return Small(
        {"architectures": [f"{model_class}ForConditionalGeneration"], "image_token_id": IMAGE,
         **config},
        _OCR_STAGES
        + f"""
[prompt]
tokens = {tokens + 4}
placed = [{{ value = {IMAGE}, start = 1, count = {tokens} }}]

[inputs.pixel_values]
shape = ["batch", 3, {side}, {side}]
fill = 0.5
""",
        lambda device: {"pixel_values": torch.full((1, 3, side, side), 0.5, device=device)},
        (0, *[IMAGE] * tokens, 0, 0, 0),
        is_there=hasattr(transformers, f"{model_class}Config"),
    )  # fmt: skip


DEEPSEEK_OCR2 = _ocr(
    "DeepseekOcr2", 768, 145,
    {
        "model_type": "deepseek_ocr2",
        "text_config": _MOE,
        "vision_config": {
            "sam_config": {**_SAM, "image_size": 1024, "downsample_channels": [24, 32]},
            "encoder_config": {**DECODER, "hidden_size": 32, "num_attention_heads": 2,
                               "num_key_value_heads": 1, "head_dim": 16},
        },
    },
)  # fmt: skip
UNLIMITED_OCR = _ocr(
    "UnlimitedOcr", 256, 4 * 5 + 1,
    {
        "model_type": "unlimited_ocr",
        "text_config": {**_MOE, "sliding_window": 5},
        "vision_config": {
            "sam_config": {**_SAM, "image_size": 256, "downsample_channels": [24, 32]},
            "encoder_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                               "num_attention_heads": 2, "image_size": 224, "patch_size": 14},
        },
    },
)  # fmt: skip

_GLM_IDS = {
    "image_token_id": IMAGE, "image_start_token_id": START, "image_end_token_id": 119,
    "video_start_token_id": 116, "video_end_token_id": 117, "video_token_id": 121,
}  # fmt: skip
GLM_OCR = Small(
    {
        "model_type": "glm_ocr",
        "architectures": ["GlmOcrForConditionalGeneration"],
        **_GLM_IDS,
        "text_config": {
            **DECODER,
            "rope_parameters": {
                "rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0,
                "partial_rotary_factor": 1.0,
            },
        },
        "vision_config": {
            "depth": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48,
            "out_hidden_size": 64, "image_size": 56,
        },
    },
    vision_stages('["model.visual"]', "model.language_model") + _QWEN_PROMPT + _QWEN_VL_INPUTS,
    _qwen_vl,
    ids_with_image(_MERGED),
    is_there=hasattr(transformers, "GlmOcrConfig"),
)  # fmt: skip
PADDLEOCR_VL = Small(
    {
        "model_type": "paddleocr_vl",
        "architectures": ["PaddleOCRVLForConditionalGeneration"],
        **_QWEN_VL_IDS,
        "tie_word_embeddings": False,
        "text_config": {
            **DECODER, "head_dim": 16, "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0,
            },
        },
        "vision_config": {
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "image_size": 56,
        },
    },
    vision_stages('["model.visual", "model.projector"]', "model.language_model")
    + _QWEN_PROMPT
    + _QWEN_VL_INPUTS.replace(f"[{_PATCHES}, 1176]", f"[{_PATCHES}, 3, 14, 14]"),
    lambda device: _qwen_vl(device)
    | {"pixel_values": torch.full((_PATCHES, 3, 14, 14), 0.5, device=device)},
    ids_with_image(_MERGED),
    is_there=hasattr(transformers, "PaddleOCRVLConfig"),
)  # fmt: skip
MISTRAL = Small(
    {"model_type": "mistral", "architectures": ["MistralForCausalLM"], **DECODER,
     "sliding_window": TOKENS + 5},
    TEXT_STAGES + PROMPT,
)  # fmt: skip
DYNAMIC_ROPE = Small(
    {**LLAMA.config, "max_position_embeddings": TOKENS + 6,
     "rope_scaling": {"type": "dynamic", "rope_type": "dynamic", "factor": 2.0}},
    TEXT_STAGES + PROMPT,
)  # fmt: skip

MODELS = {
    "llama": LLAMA,
    "qwen2": QWEN2,
    "mixtral": MIXTRAL,
    "qwen2_moe": QWEN2_MOE,
    "clip": CLIP,
    "clip_encoder": CLIP_ENCODER,
    "qwen2_vl": QWEN2_VL,
    "qwen2_5_vl": QWEN2_5_VL,
    "got_ocr2": GOT_OCR2,
    "deepseek_ocr2": DEEPSEEK_OCR2,
    "unlimited_ocr": UNLIMITED_OCR,
    "glm_ocr": GLM_OCR,
    "paddleocr_vl": PADDLEOCR_VL,
    "mistral": MISTRAL,
    "dynamic_rope": DYNAMIC_ROPE,
}
PRESENT = {name: small for name, small in MODELS.items() if small.is_there}
