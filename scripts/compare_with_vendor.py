#!/usr/bin/env python3
"""Compares the built-in reference with a vendor checkout, on the CPU.

    python scripts/compare_with_vendor.py VENDOR_DIR

VENDOR_DIR holds the vendor's `config.json` and Python files; its code is executed. For each of a
few small decoders, both models get the same weights and must agree in the names and shapes of
their parameters, in the number of their modules, in the logits of a prefill pass and a decode step
to rounding, and in the operators that move or compute (name, shapes and dtypes; views left out).
The exit code is 1 where anything differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.loading import building, load_model

CPU = torch.device("cpu")
VISION = ("model.sam_model.", "model.vision_model.")

# The vendor hard-codes the vision side and its width, 1280; everything else is small.
SMALL_DECODER: dict[str, Any] = {
    "hidden_size": 1280,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 10,
    "num_key_value_heads": 10,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
}
LATENT: dict[str, Any] = {
    "use_mla": True,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
}
GROUPS: dict[str, Any] = {"n_group": 4, "topk_group": 2}
YARN: dict[str, Any] = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 0.7,
    "mscale_all_dim": 0.5,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One small decoder and how it runs."""

    name: str
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    flash: bool = False
    images: bool = False
    padded: bool = False
    batch: int = 1


CASES = (
    Case("mha, eager, crops", images=True),
    Case("mha, eager, crops, bf16", images=True, dtype=torch.bfloat16),
    Case("mha, flash, crops, bf16", images=True, dtype=torch.bfloat16, flash=True),
    Case("mha, eager, batch of 2", images=True, batch=2),
    Case("mha, eager, padding", padded=True, batch=2),
    Case(
        "gqa, eager, linear rope",
        {"num_key_value_heads": 5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ),
    Case(
        "mha, eager, yarn rope",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 16},
    ),
    Case(
        "mha, eager, group-limited routing",
        {"topk_method": "group_limited_greedy", "norm_topk_prob": True, **GROUPS},
    ),
    Case(
        "mha, eager, noaux_tc routing",
        {"topk_method": "noaux_tc", "scoring_func": "sigmoid", **GROUPS},
    ),
    Case("mla, eager, crops", LATENT, images=True),
    Case("mla, eager, bf16", LATENT, dtype=torch.bfloat16),
    Case("mla, eager, yarn rope, q rank", {**LATENT, "q_lora_rank": 40, "rope_scaling": YARN}),
    Case(
        "mla, eager, linear rope",
        {**LATENT, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ),
    Case(
        "mla, eager, dynamic rope",
        {
            **LATENT,
            "max_position_embeddings": 8,
            "rope_scaling": {"type": "dynamic", "factor": 2.0},
        },
    ),
    Case("mla, flash, bf16", LATENT, dtype=torch.bfloat16, flash=True),
)


# -------------------------------------------------------------------------------------- operators

# Operators that neither move nor compute, beyond those whose schema says they return a view.
NOT_WORK = frozenset({"_unsafe_view", "detach", "_local_scalar_dense", "lift_fresh"})


class OperatorLog(TorchDispatchMode):
    """Counts operators with the shapes and dtypes of what goes in and comes out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.operators: Counter[tuple[Any, ...]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and name not in NOT_WORK:
            inputs = _described((args, kwargs or {}))
            self.operators[(name, tuple(inputs), tuple(_described(result)))] += 1
        return result


def _described(values: Any) -> Iterator[tuple[Any, ...]]:
    """Shape and dtype of every tensor in nested values."""
    if isinstance(values, Tensor):
        yield (str(values.dtype).removeprefix("torch."), *values.shape)
    elif isinstance(values, dict):
        yield from _described(tuple(values.values()))
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _described(value)


def flash_stand_in(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """flash-attn's interface on the CPU; causal from the bottom right, as from version 2.1 on."""
    if dropout_p or (q.shape[1] > 1 and not causal):
        raise ValueError(f"called with dropout_p={dropout_p}, causal={causal}")
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, mask, scale=softmax_scale).transpose(1, 2)


# ----------------------------------------------------------------------------------------- models


def build(directory: Path, case: Case) -> torch.nn.Module:
    """The directory's model with the case's decoder, its weights not drawn."""
    read = ModelDirectory.read(directory)
    changed = dataclasses.replace(read, config={**read.config, **SMALL_DECODER, **case.changes})
    # Loading on the CPU would draw weights, which takes longer than everything else here.
    empty = load_model(
        changed,
        device=torch.device("meta"),
        dtype=case.dtype,
        flash_attention=case.flash,
        trust_remote_code=True,
    ).module
    with building(CPU, case.dtype):
        model: torch.nn.Module = type(empty)(empty.config)
    return model.eval()


def vision_inputs(case: Case) -> dict[str, Any]:
    """First page: two local views of 128 pixels, a global view of 256; the others have no local.

    Local: 2 * (2 + 2 + 1) tokens; global: 4 * (4 + 1); separator: 1. Without images all is blank.
    """
    generator = torch.Generator().manual_seed(1)
    images, mask = [], torch.zeros(case.batch, 37, dtype=torch.bool)
    for item in range(case.batch):
        local = torch.zeros(1, 3, 64, 64)
        overview = torch.zeros(1, 3, 64, 64)
        if case.images:
            overview = torch.randn(1, 3, 256, 256, generator=generator)
            if item == 0:
                local = torch.randn(2, 3, 128, 128, generator=generator)
        images.append((local.to(case.dtype), overview.to(case.dtype)))
        mask[item, 1 : 1 + (10 if item == 0 else 0) + 20 + 1] = True
    return {
        "images": images,
        "images_seq_mask": mask,
        "images_spatial_crop": [[2, 1]] * case.batch,
    }


def run(model: torch.nn.Module, case: Case) -> tuple[list[Tensor], list[Counter[tuple[Any, ...]]]]:
    """Logits and operators of a prefill pass and of a decode step."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, SMALL_DECODER["vocab_size"], (case.batch, 38), generator=generator)
    mask = torch.ones(case.batch, 38, dtype=torch.long)
    if case.padded:
        mask[0, :3] = 0
    # The vendor's MLA refuses to run without a mask.
    masked = case.padded or (case.changes.get("use_mla", False) and not case.flash)
    logits, operators, past = [], [], None
    for length, token_ids in ((37, ids[:, :37]), (38, ids[:, 37:])):
        inputs = vision_inputs(case)
        log = OperatorLog()
        with running(CPU, flash_stand_in), log:
            output = model(
                input_ids=token_ids,
                attention_mask=mask[:, :length] if masked else None,
                past_key_values=past,
                use_cache=True,
                **inputs,
            )
        past = output.past_key_values
        logits.append(output.logits)
        operators.append(log.operators)
    return logits, operators


def share_weights(
    vendor: torch.nn.Module, reference: torch.nn.Module, vision: dict[str, Tensor]
) -> None:
    """Gives both models the same weights; those of the vision side are drawn once, by dtype."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, parameter in vendor.named_parameters():
        if name.startswith(VISION) and name in vision:
            weights[name] = vision[name]
            continue
        if "norm" in name and name.endswith("weight"):
            drawn = torch.ones_like(parameter)
        else:
            spread = 1 / math.sqrt(parameter.shape[-1])
            drawn = torch.empty_like(parameter).uniform_(-spread, spread, generator=generator)
        weights[name] = drawn
        if name.startswith(VISION):
            vision[name] = drawn
    for model in (vendor, reference):
        buffers = dict(model.named_buffers())
        persistent = {k: buffers[k] for k in model.state_dict() if k in buffers}
        model.load_state_dict({**weights, **persistent}, assign=True)


# ------------------------------------------------------------------------------------- comparison


def compare(vendor_directory: Path, case: Case, vision: dict[str, Tensor]) -> list[str]:
    """What differs in one case, a line each."""
    vendor, reference = build(vendor_directory, case), build(DEFAULT.reference, case)
    shapes = [
        {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        for model in (vendor, reference)
    ]
    if shapes[0] != shapes[1]:
        return [f"parameters: {sorted(set(shapes[0].items()) ^ set(shapes[1].items()))[:4]}"]
    differences = []
    modules = [{n for n, _ in model.named_modules()} for model in (vendor, reference)]
    if modules[0] != modules[1]:
        differences.append(f"modules: {sorted(modules[0] ^ modules[1])[:4]}")
    share_weights(vendor, reference, vision)
    theirs, ours = run(vendor, case), run(reference, case)
    for index, which in enumerate(("prefill", "decode")):
        left, right = theirs[0][index], ours[0][index]
        gap = (left - right).abs().max().item() if left.shape == right.shape else math.inf
        if not gap <= 1e-5 * left.abs().max().item():
            differences.append(f"{which} logits: {gap:.3g} apart of {left.abs().max().item():.3g}")
        for sign, more, less in (("-", theirs, ours), ("+", ours, theirs)):
            for operator, times in (more[1][index] - less[1][index]).items():
                differences.append(f"{which} operators: {sign}{times} {operator}")
    return differences


def main() -> int:
    """Runs every case; 1 where anything differs."""
    parser = argparse.ArgumentParser(
        description="Compare the built-in reference with a vendor checkout, on the CPU."
    )
    parser.add_argument("vendor_dir", type=Path, help="the vendor's config.json and Python files")
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--lines", type=int, default=12, help="differences shown a case")
    arguments = parser.parse_args()
    vision: dict[torch.dtype, dict[str, Tensor]] = {}
    failed = False
    for case in CASES:
        if arguments.only not in case.name:
            continue
        differences = compare(arguments.vendor_dir, case, vision.setdefault(case.dtype, {}))
        failed |= bool(differences)
        print(f"{case.name:36}{'differs' if differences else 'equal'}", flush=True)
        for line in differences[: arguments.lines]:
            print(f"    {line}")
        if len(differences) > arguments.lines:
            print(f"    and {len(differences) - arguments.lines} more")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
