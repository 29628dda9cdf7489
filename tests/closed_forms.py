"""What the tests of the closed forms share: small models, and a page traced and computed."""

from __future__ import annotations

import copy
import dataclasses

import torch

from dsocr_analyze.costs import PageCosts, page_costs
from dsocr_analyze.model.dimensions import ModelDimensions
from dsocr_analyze.model.directory import REFERENCE_DIRECTORY, ModelDirectory
from dsocr_analyze.model.loading import LoadedModel, load_model
from dsocr_analyze.trace.passes import PassTraces, trace_passes
from dsocr_analyze.trace.summary import StageSummary, summarize
from dsocr_analyze.workload import plan_workload

PUBLISHED = ModelDirectory.read(REFERENCE_DIRECTORY)

SMALL_DECODER = {
    "num_hidden_layers": 3,
    "hidden_size": 320,
    "vocab_size": 1000,
    "intermediate_size": 600,
    "moe_intermediate_size": 72,
    "n_routed_experts": 8,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "projector_config": {"n_embed": 320},
}

LATENT = {
    "use_mla": True,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 48,
    "v_head_dim": 40,
}


def directory_with(**changes) -> ModelDirectory:
    """The reference with a changed config; a section's keys are changed one by one."""
    config = copy.deepcopy(PUBLISHED.config)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            config[key] = {**config[key], **value}
        else:
            config[key] = value
    return dataclasses.replace(PUBLISHED, config=config)


def small_directory(**changes) -> ModelDirectory:
    """The same around a decoder that is traced in a blink."""
    merged = dict(SMALL_DECODER)
    for key, value in changes.items():
        merged[key] = {**merged[key], **value} if key == "projector_config" else value
    return directory_with(**merged)


@dataclasses.dataclass
class TracedPage:
    """One page by both engines."""

    model: LoadedModel
    traces: PassTraces
    stages: dict[str, StageSummary]
    costs: PageCosts

    @property
    def operators(self):
        """Traced work by stage, module and operator."""
        return {stage: summary.operators_by_path for stage, summary in self.stages.items()}


def by_both_engines(
    directory: ModelDirectory,
    *,
    dtype: torch.dtype = torch.bfloat16,
    flash: bool = False,
    decode_steps: int = 1,
    repeat_equal_modules: bool = True,
    **page,
) -> TracedPage:
    model = load_model(
        directory,
        device=torch.device("meta"),
        dtype=dtype,
        trust_remote_code=True,
        flash_attention=flash,
    )
    workload = plan_workload(**page)
    traces = trace_passes(
        model, workload, decode_steps=decode_steps, repeat_equal_modules=repeat_equal_modules
    )
    paths = [path for path, _ in model.module.named_modules()]
    costs = page_costs(
        ModelDimensions.from_config(directory.config),
        workload,
        element_bytes=dtype.itemsize,
        flash_attention=flash,
    )
    return TracedPage(model, traces, summarize(traces, paths), costs)
