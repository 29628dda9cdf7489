"""What other counters count on the same model and input, next to the exact figure.

    pip install 'dsocr-analyze[peers]'
    python benchmarks/peers.py                  # the table of docs/evidence.md, as Markdown
    python benchmarks/peers.py --only thop

Every counter counts each stage of one base-mode page (SAM and CLIP at 1024 pixels, the decoder and
its head over 285 tokens) in a process of its own. CPU seconds, summed over threads, and peak memory
are the whole process's. Exceptions are listed. Weights are zeros; no count depends on their values.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch
from torch import nn

from dsocr_analyze import analyze
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import load_model

SIDE = 1024
TEXT_TOKENS = 12
STAGES = ("sam", "clip", "prefill")
TITLES = {"sam": f"SAM at {SIDE}", "clip": f"CLIP at {SIDE}", "prefill": "decoder"}


class Clip(nn.Module):
    """CLIP over SAM's features, called with one tensor as every counter can."""

    def __init__(self, model: nn.Module, features: torch.Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("features", features)

    def forward(self, image: torch.Tensor) -> Any:
        return self.model(image, self.features)


class Decoder(nn.Module):
    """The decoder layers and the head, over embeddings."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.decoder, self.lm_head = model.model, model.lm_head
        for name in ("sam_model", "vision_model", "projector"):
            delattr(self.decoder, name)

    def forward(self, embeddings: torch.Tensor) -> Any:
        hidden = self.decoder(inputs_embeds=embeddings, use_cache=False, return_dict=False)[0]
        return self.lm_head(hidden)


def stage_of(name: str, device: str) -> tuple[nn.Module, torch.Tensor]:
    """A stage and its input on a device; on the CPU, memory that nobody writes stays unused."""
    meta = torch.device("meta")
    directory = ModelDirectory.read(DEFAULT.reference)
    model = load_model(directory, device=meta, dtype=torch.float32).module
    image = torch.zeros(1, 3, SIDE, SIDE, device=device)
    width, tokens = model.config.hidden_size, exact().workload.seq_len
    side = SIDE // 64
    if name == "sam":
        stage, given = model.model.sam_model, image
    elif name == "clip":
        stage, given = (
            Clip(model.model.vision_model, torch.zeros(1, 1024, side, side, device=device)),
            image,
        )
    else:
        stage, given = Decoder(model), torch.zeros(1, tokens, width, device=device)
    if device != "meta":
        stage = stage.to_empty(device=device)
        for buffer in stage.buffers():
            if buffer.dtype == torch.int64:  # positions
                buffer.copy_(torch.arange(buffer.numel()).view(buffer.shape))
            else:
                buffer.zero_()
        for parameter in stage.parameters():
            if parameter.numel() < 1 << 16:  # larger ones are fresh pages of zeros
                nn.init.zeros_(parameter)
    return stage.eval(), given


def exact() -> Any:
    """The report by closed forms."""
    return analyze(mode="base", text_tokens=TEXT_TOKENS, engine="analytic")


# --- the counters: each gives multiply-accumulates -------------------------------------------


def dsocr_analyze(name: str) -> int:
    report = analyze(mode="base", text_tokens=TEXT_TOKENS, max_new_tokens=1)
    return report.stages[name].macs


def _flop_counter(name: str, device: str) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    stage, given = stage_of(name, device)
    with FlopCounterMode(display=False) as counter:
        stage(given)
    return counter.get_total_flops() // 2


def flop_counter_meta(name: str) -> int:
    return _flop_counter(name, "meta")


def flop_counter_cpu(name: str) -> int:
    return _flop_counter(name, "cpu")


def fvcore(name: str) -> int:
    from fvcore.nn import FlopCountAnalysis

    stage, given = stage_of(name, "cpu")
    counter = FlopCountAnalysis(stage, (given,))
    return int(counter.unsupported_ops_warnings(False).uncalled_modules_warnings(False).total())


def deepspeed(name: str) -> int:
    from deepspeed.profiling.flops_profiler import FlopsProfiler

    stage, given = stage_of(name, "cpu")
    profiler = FlopsProfiler(stage)
    profiler.start_profile()
    stage(given)
    macs = profiler.get_total_macs()
    profiler.end_profile()
    return int(macs)


def calflops(name: str) -> int:
    from calflops import calculate_flops

    stage, given = stage_of(name, "cpu")
    _, macs, _ = calculate_flops(stage, args=[given], print_results=False, output_as_string=False)
    return int(macs)


def ptflops(name: str) -> int:
    from ptflops import get_model_complexity_info

    stage, given = stage_of(name, "cpu")
    macs, _ = get_model_complexity_info(
        stage, tuple(given.shape[1:]), as_strings=False, print_per_layer_stat=False,
        backend="aten", input_constructor=lambda _: given,
    )  # fmt: skip
    return int(macs)


def thop(name: str) -> int:
    from thop import profile

    stage, given = stage_of(name, "cpu")
    macs, _ = profile(stage, inputs=(given,), verbose=False)
    return int(macs)


def torchprofile(name: str) -> int:
    from torchprofile import profile_macs

    stage, given = stage_of(name, "cpu")
    return int(profile_macs(stage, given))


def torchinfo(name: str) -> int:
    from torchinfo import summary

    stage, given = stage_of(name, "cpu")
    return int(summary(stage, input_data=[given], verbose=0).total_mult_adds)


COUNTERS: dict[str, tuple[str, Callable[[str], int]]] = {
    "this tool": ("dsocr-analyze", dsocr_analyze),
    "FlopCounterMode on meta": ("torch", flop_counter_meta),
    "FlopCounterMode on CPU": ("torch", flop_counter_cpu),
    "FlopCountAnalysis": ("fvcore", fvcore),
    "flops profiler": ("deepspeed", deepspeed),
    "calculate_flops": ("calflops", calflops),
    "aten backend": ("ptflops", ptflops),
    "profile": ("thop", thop),
    "profile_macs": ("torchprofile", torchprofile),
    "summary": ("torchinfo", torchinfo),
}
"""By title: the package and the counter."""


def measured(title: str, stage: str) -> dict[str, Any]:
    """Runs one counter on one stage: `macs` or `error`, CPU seconds and peak bytes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        [sys.executable, __file__, "--count", title, stage],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    out, err = process.communicate()
    said = err.strip().splitlines() or [f"exit code {process.returncode}"]
    answer = json.loads(out.splitlines()[-1]) if process.returncode == 0 else {"error": said[-1]}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**answer, "seconds": seconds}


def count(title: str, stage: str) -> None:
    """What a process of a counter does."""
    with torch.no_grad():  # as inference runs
        macs = COUNTERS[title][1](stage)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.stdout.write("\n" + json.dumps({"macs": macs, "peak_bytes": peak}) + "\n")


def ratio_text(counted: int, right: int) -> str:
    """What was counted over what is right; 1 only where the two are equal."""
    short = f"{counted / right:.3g}"
    return short if counted == right or short != "1" else f"{counted / right:.6g}"


def row(title: str, right: dict[str, int]) -> tuple[str, list[str]]:
    """One counter's row of the table, and what it raised."""
    name = f"{title}, {COUNTERS[title][0]} {metadata.version(COUNTERS[title][0])}"
    cells, errors = [], []
    seconds, peak_bytes = 0.0, 0
    for stage in STAGES:
        found = measured(title, stage)
        seconds += found["seconds"]
        peak_bytes = max(peak_bytes, found.get("peak_bytes", 0))
        if "error" in found:
            errors.append(f"- {title}, {TITLES[stage]}: {found['error'][:200]}")
        cells.append("fails" if "error" in found else ratio_text(found["macs"], right[stage]))
    memory = f"{peak_bytes / 1e9:.1f} GB" if peak_bytes else "-"
    return f"| {name} | {' | '.join(cells)} | {seconds:.0f} s | {memory} |", errors


def main() -> int:
    """The table of every counter that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=list(COUNTERS))
    parser.add_argument("--count", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.count:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        count(*asked.count)
        return 0
    report = exact()
    right = {stage: report.stages[stage].macs for stage in STAGES}
    print(f"Exact multiply-accumulates: {', '.join(f'{TITLES[s]} {right[s]:,}' for s in STAGES)}")
    stages = " | ".join(TITLES[stage] for stage in STAGES)
    print(f"\n| counter | {stages} | CPU time | memory |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    raised = []
    for title in asked.only or COUNTERS:
        line, errors = row(title, right)
        print(line, flush=True)
        raised += errors
    print("\n" + "\n".join(raised) if raised else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
