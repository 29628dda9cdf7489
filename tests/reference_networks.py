"""The reference networks at sizes that a test runs, with weights drawn from a seed."""

from __future__ import annotations

import torch

from dsocr_analyze.architectures.deepseek_ocr.reference import (
    modeling_deepseekocr,
    modeling_deepseekv2,
)
from dsocr_analyze.architectures.deepseek_ocr_2.reference import modeling_deepseekocr2
from dsocr_analyze.architectures.unlimited_ocr.reference import modeling_unlimitedocr
from dsocr_analyze.model.loading import building

CLASSES = {
    "deepseek-ocr": (
        modeling_deepseekocr.DeepseekOCRConfig,
        modeling_deepseekocr.DeepseekOCRForCausalLM,
    ),
    "deepseek-ocr-2": (
        modeling_deepseekocr2.DeepseekOCR2Config,
        modeling_deepseekocr2.DeepseekOCR2ForCausalLM,
    ),
    "unlimited-ocr": (
        modeling_unlimitedocr.UnlimitedOCRConfig,
        modeling_unlimitedocr.UnlimitedOCRForCausalLM,
    ),
}
VISION = {
    "image_size": 128,
    "width": {
        "sam_vit_b": {
            "width": 24, "layers": 2, "heads": 2, "global_attn_indexes": [1],
            "downsample_channels": [12, 20],
        },
        "clip-l-14-224": {
            "width": 20, "layers": 2, "heads": 2, "image_size": 28, "patch_size": 14,
        },
        "qwen2-0-5b": {
            "dim": 24, "layers": 2, "heads": 6, "key_value_heads": 2, "intermediate_size": 40,
            "view_sizes": [64, 128],
        },
    },
}  # fmt: skip
DECODER = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "first_k_dense_replace": 1, "n_routed_experts": 8,
    "n_shared_experts": 2, "num_experts_per_tok": 3, "topk_method": "greedy", "use_mla": False,
    "attn_implementation": "eager",
}  # fmt: skip
LATENT = {
    "use_mla": True, "kv_lora_rank": 12, "q_lora_rank": 10, "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4, "v_head_dim": 5,
}  # fmt: skip


def settings_of(name, **changes):
    """A small config of a network."""
    features = 24 if name == "deepseek-ocr-2" else 40
    projector = {"projector_type": "linear", "input_dim": features, "n_embed": 32}
    return {**DECODER, "vision_config": VISION, "projector_config": projector, **changes}


def config_of(name="deepseek-ocr", **changes):
    config_class, _ = CLASSES[name]
    return config_class(**settings_of(name, **changes))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def randomised(module):
    """Every parameter from a seeded uniform distribution, in evaluation mode."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.3, 0.3, generator=generator)
    return module.eval()


def built(name, device="cpu", model_class=None, **changes):
    """A network, or another class, of a small config; on the CPU with weights."""
    with building(torch.device(device), torch.float32):
        model = (model_class or CLASSES[name][1])(config_of(name, **changes))
    return randomised(model) if device == "cpu" else model


def decoder(model_class=modeling_deepseekv2.DeepseekV2ForCausalLM, **changes):
    """The decoder of DeepSeek-OCR alone."""
    return built("deepseek-ocr", model_class=model_class, **changes)


def page(name, *, tiles, seed=0):
    """Views of 128 pixels, 2 x 2 tokens each: so many tiles in a row, and the whole page.

    Rows of tokens end in a newline, but in DeepSeek-OCR-2; a separator follows the page.
    """
    newline = name != "deepseek-ocr-2"
    mask = torch.zeros(1, 20, dtype=torch.bool)
    mask[:, 1 : 1 + (2 * (2 * tiles + newline) if tiles else 0) + 2 * (2 + newline) + 1] = True
    views = normal(tiles, 3, 128, 128, seed=seed) if tiles else torch.zeros(1, 3, 64, 64)
    return {
        "images": [(views, normal(1, 3, 128, 128, seed=seed + 1))],
        "images_seq_mask": mask,
        "images_spatial_crop": [[max(tiles, 1), 1]],
    }
