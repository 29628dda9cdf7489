"""Small models of transformers with their stages files, and what each is called with by hand."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from dsocr_analyze.architectures import described_architecture
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.session import DeepSeekOCRSession

IS_5 = int(transformers.__version__.partition(".")[0]) >= 5

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


FORMULAS: dict[Any, Callable[..., int]] = (
    {torch.ops.aten._grouped_mm: grouped_mm_flops} if hasattr(torch.ops.aten, "_grouped_mm") else {}
)
"""Of operators that torch's counter lacks."""


_PRESENT = {*dir(transformers)}
"""Names of the installed transformers, which imports none of them until it is asked for one."""


def has_class(name: str) -> bool:
    """Whether the installed transformers has a class."""
    return name in _PRESENT


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


def _of_text(model_type: str, model_class: str, above: str = "", **config: Any) -> Small:
    """A decoder with its keys in the terms of Llama."""
    return Small(
        {"model_type": model_type, "architectures": [f"{model_class}ForCausalLM"],
         **DECODER, **config},
        above + TEXT_STAGES + PROMPT,
        is_there=has_class(f"{model_class}ForCausalLM"),
    )  # fmt: skip


LLAMA = _of_text("llama", "Llama")
QWEN2_MOE = _of_text(
    "qwen2_moe", "Qwen2Moe", "" if IS_5 else 'routed_expert = "model.layers.*.mlp.experts.*"\n',
    num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32,
    shared_expert_intermediate_size=48,
)  # fmt: skip


_EXPERTS = {"num_experts_per_tok": 3, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
MIXTURES = {
    "every layer": (_of_text("mixtral", "Mixtral", num_local_experts=4, num_experts_per_tok=2), 2),
    "a gated shared expert": (QWEN2_MOE, 2),
    "every other layer": (
        replace(QWEN2_MOE, config=QWEN2_MOE.config | {"decoder_sparse_step": 2}), 1,
    ),
    "a dense layer in between": (
        _of_text(
            "qwen3_moe", "Qwen3Moe", **_EXPERTS, num_experts=8, mlp_only_layers=[1], head_dim=24,
            num_hidden_layers=3,
        ), 2,
    ),
    "groups of experts": (
        _of_text(
            "glm4_moe", "Glm4Moe", **_EXPERTS, n_routed_experts=8, n_shared_experts=1, n_group=2,
            topk_group=1, head_dim=24, use_qk_norm=True,
        ), 1,
    ),
    "layers from one to another": (
        _of_text(
            "ernie4_5_moe", "Ernie4_5_Moe", moe_intermediate_size=32, moe_num_experts=8, moe_k=2,
            moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=2,
            num_hidden_layers=5, tie_word_embeddings=False,
        ), 2,
    ),
    "no shared expert": (
        _of_text(
            "ernie4_5_moe", "Ernie4_5_Moe", moe_num_experts=8, moe_num_shared_experts=0,
            tie_word_embeddings=False,
        ), 1,
    ),
    "several shared experts": (
        _of_text("dots1", "Dots1", **_EXPERTS, n_routed_experts=6, n_shared_experts=2), 1,
    ),
}  # fmt: skip
"""Decoders, and how many of their layers are mixtures of experts."""
LATENT = _of_text(
    "deepseek_v3", "DeepseekV3", **_EXPERTS, n_routed_experts=6, n_group=1, topk_group=1,
    num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=8,
    qk_rope_head_dim=8, v_head_dim=8,
)  # fmt: skip


def _of_pictures(
    model_class: str,
    config: dict[str, Any],
    stages: str,
    ids: tuple[int, ...],
    side: int,
    fill: float = 0.5,
    decodes: bool = True,
) -> Small:
    """A model that is given a picture of one value, of some pixels a side."""
    pixels = f'\n[inputs.pixel_values]\nshape = ["batch", 3, {side}, {side}]\nfill = {fill}\n'
    return Small(
        {"architectures": [model_class], **config},
        stages + pixels,
        lambda device: {"pixel_values": torch.full((1, 3, side, side), fill, device=device)},
        ids,
        has_class(model_class),
        decodes,
    )


CLIP_VISION = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
CLIP = _of_pictures(
    "CLIPModel",
    {
        "model_type": "clip",
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
""",
    (*[0] * (TOKENS - 1), 1),
    32,
    decodes=False,
)  # fmt: skip
CLIP_ENCODER = _of_pictures(
    "CLIPVisionModel",
    {"model_type": "clip_vision_model", **CLIP_VISION},
    '[[stages]]\nname = "encoder"\nrole = "prefill"\n',
    (),
    32,
    1.0,
    decodes=False,
)

# --- what Qwen2-VL's processor returns ---------------------------------------------------------

_PATCHES, _MERGED = 16, 4


def _of_patches(
    model_type: str,
    model_class: str,
    vision: str,
    text: str,
    config: dict[str, Any],
    patch: tuple[int, ...] = (3 * 2 * 14 * 14,),
) -> Small:
    """A model that is given the patches of a picture; `vision` and `text` are prefixes."""

    def forward(device: torch.device) -> dict[str, Any]:
        given = {
            "pixel_values": torch.full((_PATCHES, *patch), 0.5, device=device),
            "image_grid_thw": torch.tensor([[1, 4, 4]], device=device),
        }
        if IS_5:
            kinds = [int(token == IMAGE) for token in ids]
            given["mm_token_type_ids"] = torch.tensor([kinds], device=device)
        return given

    ids, name = ids_with_image(_MERGED), f"{model_class}ForConditionalGeneration"
    # The position ids of mrope are made by the model itself: `generate` gives it none.
    inputs = f"""without = ["position_ids"]

[inputs.pixel_values]
shape = {[_PATCHES, *patch]}
fill = 0.5
repeat = "batch"

[inputs.image_grid_thw]
values = [[1, 4, 4]]
repeat = "batch"
"""
    kinds_of_tokens = f"""
[inputs.mm_token_type_ids]
shape = ["batch", "tokens"]
dtype = "int64"
fill = 0
placed = [{{ value = 1, start = 4, count = {_MERGED} }}]
"""
    return Small(
        {"model_type": model_type, "architectures": [name], "image_token_id": IMAGE,
         "video_token_id": 121, **config},
        vision_stages(vision, text) + placed(_MERGED) + inputs + kinds_of_tokens * IS_5,
        forward, ids, has_class(name),
    )  # fmt: skip


_ENDS = {"vision_start_token_id": START, "vision_end_token_id": 119}
_ROPE = {"mrope_section": [2, 3, 3], "rope_theta": 10000.0}


def _qwen(model_type: str, model_class: str, **vision: Any) -> Small:
    text = {**DECODER, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    return _of_patches(
        model_type,
        model_class,
        '["model.visual"]' if IS_5 else '["visual"]',
        "model.language_model" if IS_5 else "model",
        {**_ENDS, "vision_config": {"depth": 2, "num_heads": 4, **vision}}
        | ({"text_config": text} if IS_5 else text),
    )


QWEN2_VL = _qwen("qwen2_vl", "Qwen2VL", embed_dim=32, hidden_size=64, mlp_ratio=2)

# --- relatives of DeepSeek-OCR in transformers' own code, on one view --------------------------

_MOE = {
    **DECODER, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "n_shared_experts": 1, "topk_method": "greedy", "n_group": 1,
    "topk_group": 1, "mlp_layer_types": ["dense", "sparse"],
}  # fmt: skip
_SAM = {
    "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "window_size": 6, "global_attn_indexes": [1], "mlp_dim": 64,
}  # fmt: skip


def _ocr(
    model_type: str,
    model_class: str,
    sides: tuple[int, int],
    tokens: int,
    text: Any,
    **encoder: Any,
) -> Small:
    """`sides` are pixels of its picture, and of the one for which SAM's positions are made."""
    stages = f"""
[[stages]]
name = "sam"
prefixes = ["model.vision_tower.sam_encoder"]

[[stages]]
name = "projector"
prefixes = ["model.multi_modal_projector"]
{vision_stages('["model.vision_tower"]', "model.language_model")}
[prompt]
tokens = {tokens + 4}
placed = [{{ value = {IMAGE}, start = 1, count = {tokens} }}]
"""
    sam = {**_SAM, "image_size": sides[1], "downsample_channels": [24, 32]}
    return _of_pictures(
        f"{model_class}ForConditionalGeneration",
        {"model_type": model_type, "image_token_id": IMAGE, "text_config": text,
         "vision_config": {"sam_config": sam, "encoder_config": encoder}},
        stages, (0, *[IMAGE] * tokens, 0, 0, 0), sides[0],
    )  # fmt: skip


MODELS = {
    "llama": LLAMA,
    "qwen2": _of_text("qwen2", "Qwen2"),
    "mixtral": MIXTURES["every layer"][0],
    "qwen2_moe": QWEN2_MOE,
    "clip": CLIP,
    "clip_encoder": CLIP_ENCODER,
    "qwen2_vl": QWEN2_VL,
    "qwen2_5_vl": _qwen(
        "qwen2_5_vl", "Qwen2_5_VL", hidden_size=32, out_hidden_size=64, intermediate_size=48,
        window_size=28, fullatt_block_indexes=[1],
    ),
    "got_ocr2": _of_pictures(
        "GotOcr2ForConditionalGeneration",
        {
            "model_type": "got_ocr2",
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
        + placed(1),
        ids_with_image(1),
        64,
    ),
    "deepseek_ocr2": _ocr(
        "deepseek_ocr2", "DeepseekOcr2", (768, 1024), 145, _MOE,
        **{**DECODER, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
           "head_dim": 16},
    ),
    "unlimited_ocr": _ocr(
        "unlimited_ocr", "UnlimitedOcr", (256, 256), 4 * 5 + 1, {**_MOE, "sliding_window": 5},
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        image_size=224, patch_size=14,
    ),
    "glm_ocr": _of_patches(
        "glm_ocr", "GlmOcr", '["model.visual"]', "model.language_model",
        {
            "image_start_token_id": START, "image_end_token_id": 119,
            "video_start_token_id": 116, "video_end_token_id": 117,
            "text_config": {
                **DECODER,
                "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0, **_ROPE},
            },
            "vision_config": {
                "depth": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48,
                "out_hidden_size": 64, "image_size": 56,
            },
        },
    ),
    "paddleocr_vl": _of_patches(
        "paddleocr_vl", "PaddleOCRVL", '["model.visual", "model.projector"]',
        "model.language_model",
        {
            **_ENDS,
            "tie_word_embeddings": False,
            "text_config": {
                **DECODER, "head_dim": 16, "tie_word_embeddings": False,
                "rope_parameters": {"rope_type": "default", **_ROPE},
            },
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "image_size": 56,
            },
        },
        (3, 14, 14),
    ),
    "mistral": _of_text("mistral", "Mistral", sliding_window=TOKENS + 5),
    "dynamic_rope": _of_text(
        "llama", "Llama", max_position_embeddings=TOKENS + 6,
        rope_scaling={"type": "dynamic", "rope_type": "dynamic", "factor": 2.0},
    ),
}  # fmt: skip
PRESENT = {name: small for name, small in MODELS.items() if small.is_there}
