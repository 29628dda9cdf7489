"""Unlimited-OCR for the tests: its reference and its vendor's files, whole or as small decoders."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache
from vendor_checkout import VENDOR_UNLIMITED

from dsocr_analyze.architectures.unlimited_ocr import UNLIMITED_OCR
from dsocr_analyze.architectures.unlimited_ocr.reference import modeling_unlimitedocr
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.loading import LoadedModel, building, import_file, importable, load_model
from dsocr_analyze.trace.passes import PassTraces, trace_passes
from dsocr_analyze.workload import PageWorkload, ViewBatch

__all__ = [
    "CPU",
    "META",
    "REFERENCE",
    "Generation",
    "decoder",
    "drawn",
    "load",
    "small",
    "traced",
    "workload",
]

META, CPU = torch.device("meta"), torch.device("cpu")
REFERENCE = Path(modeling_unlimitedocr.__file__).parent

VISION = {
    "image_size": 64,
    "width": {
        "sam_vit_b": {
            "layers": 1,
            "width": 8,
            "heads": 1,
            "global_attn_indexes": [],
            "downsample_channels": [8, 8],
        },
        "clip-l-14-224": {
            "layers": 1,
            "width": 8,
            "heads": 1,
            "image_size": 28,
            "patch_size": 14,
        },
    },
}

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "topk_method": "greedy",
    "first_k_dense_replace": 1,
    "vocab_size": 50,
    "max_position_embeddings": 256,
    "use_mla": False,
}


def load(path: Path, sliding_window: int | None, **options: Any) -> LoadedModel:
    """A whole model; `config` replaces keys of the directory's."""
    directory = ModelDirectory.read(path)
    config = {**directory.config, **options.pop("config", {})}
    return load_model(
        dataclasses.replace(directory, config=config),
        **{"device": META, "dtype": torch.bfloat16, **options},
        sliding_window=sliding_window,
        trust_remote_code=True,
    )


def traced(model: LoadedModel, workload: PageWorkload, **options: Any) -> PassTraces:
    return trace_passes(model, workload, UNLIMITED_OCR, **options)


def workload(
    views: tuple[ViewBatch, ...],
    visual_tokens: int,
    text_tokens: int,
    *,
    base_size: int = 1024,
    grid: tuple[int, int] = (1, 1),
    batch_size: int = 1,
) -> PageWorkload:
    """A page as the model is called with it; only its views and lengths matter here."""
    return PageWorkload(
        page=(1000, 1000),
        base_size=base_size,
        image_size=views[0].resolution,
        crop_mode=len(views) == 2,
        grid=grid,
        views=views,
        visual_tokens=visual_tokens,
        text_tokens=text_tokens,
        batch_size=batch_size,
        max_new_tokens=1,
    )


# ------------------------------------------------------------------------------ decoders alone


def small(**config: Any) -> dict[str, Any]:
    projector = {"projector_type": "linear", "input_dim": 16, "n_embed": SMALL["hidden_size"]}
    return {**SMALL, "vision_config": VISION, "projector_config": projector, **config}


OWN_CLASSES = (
    modeling_unlimitedocr.UnlimitedOCRForCausalLM,
    modeling_unlimitedocr.UnlimitedOCRConfig,
)


@cache
def _vendor_classes() -> tuple[Any, Any]:
    directory = ModelDirectory.read(VENDOR_UNLIMITED)
    with importable(directory) as package:
        modeling = import_file(directory, package, "modeling_deepseekv2.py")
        configuration = import_file(directory, package, "configuration_deepseek_v2.py")
    return modeling.DeepseekV2ForCausalLM, configuration.DeepseekV2Config


def decoder(
    config: Mapping[str, Any], dtype: torch.dtype, *, vendor: bool, device: torch.device = CPU
) -> torch.nn.Module:
    """A decoder of small dimensions, its weights drawn by name: vendor and reference have the same.

    The vendor's comes without the vision side, which is large whatever the config says.
    """
    build, read = _vendor_classes() if vendor else OWN_CLASSES
    with building(device, dtype):
        model = build(read(**config, attn_implementation="eager"))
    if device.type != "meta":
        drawn(model)
    return model.eval()


def drawn(model: torch.nn.Module) -> None:
    """Draws weights by their names, large enough for attention to look at some keys only."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(sum(name.encode()) * len(name))
            spread = 1.0 if "embed" in name else 2 * parameter.shape[-1] ** -0.5
            parameter.normal_(1.0 if "norm" in name else 0.0, spread, generator=generator)


class Generation:
    """A prompt, then one token after the other: real calls that share a cache.

    Args:
        model: Any decoder.
        tokens: `[B, prompt + steps]`, what the generated tokens turn out to be among them.
        prompt: Tokens of the prompt.
        window: As `infer()` sets it; None leaves it off.
        cache: What the first pass is called with.

    Attributes:
        logits: `[B, prompt + steps, V]`.
        lengths: Tokens in the cache after each pass.
        cache: What the last pass left.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokens: torch.Tensor,
        prompt: int,
        window: int | None,
        cache: Any = None,
    ) -> None:
        model.config._ring_window = window
        self.cache = DynamicCache() if cache is None else cache
        self.lengths: list[int] = []
        bounds = [0, *range(prompt, tokens.shape[1] + 1)]
        logits = [self._run(model, tokens[:, a:b], a) for a, b in itertools.pairwise(bounds)]
        self.logits = torch.cat(logits, dim=1)

    def _run(self, model: torch.nn.Module, tokens: torch.Tensor, start: int) -> torch.Tensor:
        batch, length = tokens.shape
        end = start + length
        with running(tokens.device, has_weights=True):
            output = model(
                input_ids=tokens,
                attention_mask=torch.ones(batch, end, dtype=torch.long, device=tokens.device),
                position_ids=torch.arange(start, end, device=tokens.device).expand(batch, -1),
                past_key_values=self.cache,
                use_cache=True,
            )
        assert output.past_key_values is self.cache
        self.lengths.append(self.cache.get_seq_length())
        return output.logits
