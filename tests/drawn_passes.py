"""Small models and pages, drawn by a seed: what the tape's forwards are held to."""

import dataclasses
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

from relatives import FAMILY

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.architectures.views import tokens_per_side
from dsocr_analyze.kernels import BFLOAT16, FLOAT16, FLOAT32, Dtype
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape.modules import ACTIVATIONS
from dsocr_analyze.workload import PageWorkload, ViewBatch

ONE, TWO, UNLIMITED = FAMILY
"""Names of DeepSeek-OCR, DeepSeek-OCR-2 and Unlimited-OCR."""

PATCH, WINDOW = 16, 14
"""SAM's pixels per side of a patch, and patches per side of a window."""

RESOLUTIONS = (64, 100, 128, PATCH * WINDOW, 256, 2 * PATCH * WINDOW)
GRIDS = ((1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (1, 3))
ROTARY = (None, "linear", "dynamic", "yarn")
METHODS = ("greedy", "group_limited_greedy", "noaux_tc")


@dataclasses.dataclass(frozen=True)
class Case:
    """A small model, and the page that it reads.

    Attributes:
        architecture: Name.
        directory: The reference with a config of its own.
        workload: Page and batch.
        dtype: Type of weights and features.
        flash: Whether attention is FlashAttention.
        steps: Decode steps to run, by number.
    """

    architecture: str
    directory: ModelDirectory
    workload: PageWorkload
    dtype: Dtype
    flash: bool
    steps: tuple[int, ...]

    @property
    def arch(self) -> Any:
        return ARCHITECTURES[self.architecture]

    @property
    def dimensions(self) -> Any:
        return self.arch.forms.dimensions(self.directory.config)


def drawn(seed: int, architecture: str | None = None) -> Case:
    """The case of a seed, whose architecture follows from it unless given."""
    draw = random.Random(seed)
    architecture = architecture or (ONE, TWO, UNLIMITED)[seed % 3]
    config = _decoder(draw, architecture)
    base, image = draw.sample(RESOLUTIONS, 2)
    if architecture == TWO:  # each number of tokens per side has one table of queries
        base, image = draw.sample((64, 128, PATCH * WINDOW, 2 * PATCH * WINDOW), 2)
    config["vision_config"], features = _vision(draw, architecture, (base, image))
    config["projector_config"] = _projector(draw, features, config["hidden_size"], architecture)
    workload = page(
        architecture,
        base,
        image,
        grid=draw.choice(GRIDS),
        text_tokens=draw.choice((1, 2, 7)),
        batch_size=draw.choice((1, 3)),
        prompt_pages=draw.choice((1, 2, 3)) if architecture == UNLIMITED else 1,
    )
    flash = draw.random() < 0.3 and (architecture != UNLIMITED or config["use_mla"])
    if flash and config["use_mla"]:  # whose values are padded to the width of keys
        config["v_head_dim"] = min(config["v_head_dim"], config["qk_nope_head_dim"] + 4)
        config["qk_rope_head_dim"] = max(config["qk_rope_head_dim"], 4)
    steps = (0, 1) if config.get("sliding_window_size") is None else (0, 1, 2, 3)
    if config["rope_scaling"]:  # where the published frequencies end
        config["max_position_embeddings"] = draw.choice((8192, 3, workload.seq_len + 1))
    dtype = draw.choice((BFLOAT16, FLOAT32, FLOAT16))
    return Case(architecture, directory(architecture, config), workload, dtype, flash, steps)


def page(
    architecture: str,
    base_size: int,
    image_size: int,
    *,
    grid: tuple[int, int] = (1, 1),
    text_tokens: int = 3,
    batch_size: int = 1,
    prompt_pages: int = 1,
) -> PageWorkload:
    """A page of any sizes, which `plan` would limit to those that the published code runs.

    A prompt of several pages has no local views.
    """
    if prompt_pages > 1:
        grid = (1, 1)
    model = ARCHITECTURES[architecture]
    tokens = model.visual_tokens(base_size, image_size, True, grid)
    views = [ViewBatch(1, base_size)]
    if grid != (1, 1):
        views.insert(0, ViewBatch(grid[0] * grid[1], image_size))
    return PageWorkload(
        page=(base_size, base_size),
        base_size=base_size,
        image_size=image_size,
        crop_mode=True,
        grid=grid,
        views=tuple(views),
        visual_tokens=prompt_pages * tokens,
        text_tokens=text_tokens,
        batch_size=batch_size,
        max_new_tokens=2,
        prompt_pages=prompt_pages,
    )


@cache
def _published(architecture: str) -> ModelDirectory:
    return ModelDirectory.read(ARCHITECTURES[architecture].reference)


def directory(architecture: str, changes: Mapping[str, Any]) -> ModelDirectory:
    """The reference with another config."""
    published = _published(architecture)
    config = {**published.config, **changes}
    # The section that repeats the top level, which nothing reads, says the same.
    copied = config["language_config"].items()
    config["language_config"] = {key: config.get(key, value) for key, value in copied}
    return dataclasses.replace(published, config=config)


def _decoder(draw: random.Random, architecture: str) -> dict[str, Any]:
    heads = draw.choice((1, 2, 4))
    experts = draw.choice((None, 4, 6, 12))
    method = draw.choice(METHODS) if experts else "greedy"
    groups = draw.choice((1, 2)) if method != "greedy" else 1
    config: dict[str, Any] = {
        "hidden_size": heads * draw.choice((4, 8)),
        "num_hidden_layers": draw.randint(1, 3),
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([n for n in (1, 2, 4) if heads % n == 0]),
        "intermediate_size": draw.choice((6, 24)),
        "hidden_act": draw.choice(("silu", *ACTIVATIONS)),
        "vocab_size": draw.choice((20, 90)),
        "attention_bias": draw.random() < 0.5,
        "tie_word_embeddings": draw.random() < 0.3,
        "n_routed_experts": experts,
        "n_shared_experts": draw.choice((None, 1, 2)),
        "num_experts_per_tok": draw.choice((1, 2)),
        "moe_intermediate_size": draw.choice((4, 10)),
        "first_k_dense_replace": draw.randint(0, 2),
        "norm_topk_prob": draw.random() < 0.5,
        "topk_method": method,
        "scoring_func": draw.choice(("softmax", "sigmoid")),
        "n_group": groups,
        "topk_group": draw.randint(1, groups),
        "use_mla": draw.random() < 0.4,
        "max_position_embeddings": 8192,
        "rope_scaling": None,
        "eos_token_id": 1,
        "bos_token_id": 0,
        "pad_token_id": None,
    }
    if config["use_mla"]:
        config |= {
            "kv_lora_rank": draw.choice((6, 10)),
            "q_lora_rank": draw.choice((None, 8)),
            "qk_nope_head_dim": draw.choice((4, 6)),
            "qk_rope_head_dim": draw.choice((2, 4, 8)),
            "v_head_dim": draw.choice((4, 6, 10)),
            "num_key_value_heads": heads,
        }
    kind = draw.choice(ROTARY)
    if kind == "dynamic":  # plain attention has no class for it
        kind = "dynamic" if config["use_mla"] else None
        config["qk_rope_head_dim"] = draw.choice((4, 8))  # its formula divides by two less
    if kind:
        config["rope_scaling"] = {"type": kind, "factor": 2.0, "mscale_all_dim": 0.5}
    if architecture == UNLIMITED:
        window = draw.choice((None, 1, 2, 3))
        config |= {"sliding_window_size": window, "sliding_window": window}
    return config


def _vision(
    draw: random.Random, architecture: str, sizes: tuple[int, int]
) -> tuple[dict[str, Any], int]:
    """The section of the vision side, and the features that it hands to the projector."""
    heads, layers = draw.choice((1, 2)), draw.randint(1, 3)
    sam = {
        "width": heads * draw.choice((2, 3)),
        "heads": heads,
        "layers": layers,
        "global_attn_indexes": [i for i in range(layers) if draw.random() < 0.5],
    }
    table = draw.choice((64, PATCH * WINDOW, *(size // PATCH * PATCH for size in sizes)))
    clip_heads = draw.choice((1, 2))
    width = clip_heads * 4
    sam["downsample_channels"] = [3, width]
    if architecture == TWO:
        encoder = {
            "dim": width,
            "heads": clip_heads,
            "key_value_heads": draw.choice([n for n in (1, 2) if clip_heads % n == 0]),
            "layers": draw.randint(1, 2),
            "intermediate_size": 10,
            "view_sizes": list(sizes),
        }
        return {"image_size": table, "width": {"sam_vit_b": sam, "qwen2-0-5b": encoder}}, width
    side = draw.choice((1, 2, tokens_per_side(sizes[0]), tokens_per_side(sizes[1])))
    clip = {
        "width": width,
        "heads": clip_heads,
        "layers": draw.randint(1, 2),
        "image_size": side * 14,
        "patch_size": 14,
    }
    return {"image_size": table, "width": {"sam_vit_b": sam, "clip-l-14-224": clip}}, 2 * width


def _projector(draw: random.Random, features: int, width: int, architecture: str) -> dict[str, Any]:
    """A variant that the architecture can wire; DeepSeek-OCR-2 cannot lay out mere slices."""
    kinds = ["linear", "mlp_gelu", "hybrid_split_feature_mlp_gelu"]
    if features == width and architecture != TWO:
        kinds.append("identity")
    kind = draw.choice(kinds)
    config: dict[str, Any] = {
        "projector_type": kind,
        "input_dim": features,
        "n_embed": width,
        "depth": draw.randint(1, 3),
    }
    if kind == "hybrid_split_feature_mlp_gelu":
        config |= {"input_dim": [features - 2, 2], "channel_div": draw.choice((0.5, 0.25))}
    return config
