"""The recorded workloads on the built-in reference, to the last digit.

`make test` holds the closed forms to these records, and the trace to the closed forms
(test_composition.py).
"""

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dsocr_analyze import figures, kernels
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.model import directory, forward, loading
from dsocr_analyze.trace import passes

pytestmark = pytest.mark.exhaustive

GOLDENS = json.loads((Path(__file__).parent / "data" / "golden_workloads.json").read_text())

LAYERS, HEADS, HEAD_DIM, BF16_BYTES = 12, 10, 128, 2


def reference(*, flash_attention=False):
    return loading.load_model(
        directory.ModelDirectory.read(DEFAULT.reference),
        device=torch.device("meta"), dtype=torch.bfloat16,
        flash_attention=flash_attention,
    )  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["eager", "flash"])
def model(request):
    return reference(flash_attention=request.param)


def traced(model, workload, **options):
    return passes.trace_passes(model, workload, DEFAULT, **options)


def repeats_of(model):
    return DEFAULT.forms.model.repeats(DEFAULT.forms.dimensions(model.directory.config))


def stages_of(traces, architecture) -> dict[str, figures.StageFigures]:
    own_params = {key: {} for key in architecture.stage_names}
    return passes.stage_figures(traces, architecture.stages, own_params)


def workload_of(golden):
    keys = ("base_size", "image_size", "crop_mode", "text_tokens")
    return DEFAULT.plan(page=tuple(golden["page"]), **{key: golden[key] for key in keys})


def flops_by_stage(traces, architecture=DEFAULT) -> dict[str, int]:
    stages = stages_of(traces, architecture)
    head = kernels.with_ancestors(stages["prefill"].own)["lm_head"].matrix_flops
    flops = {name: stage.work.matrix_flops for name, stage in stages.items() if name != "decode"}
    of_head = {"lm_head": head, "total": sum(flops.values())}
    layers = flops.pop("prefill") - head
    return {**flops, "layers": layers, **of_head}


def decode_flops(traces, architecture=DEFAULT) -> dict[str, int]:
    decode = stages_of(traces, architecture)["decode"]
    return {
        "total": decode.work.matrix_flops,
        "lm_head": kernels.with_ancestors(decode.own)["lm_head"].matrix_flops,
    }


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda g: f"{g['page']}-{g['image_size']}")
def test_every_stage_counts_what_was_recorded(model, golden):
    workload = workload_of(golden)
    sizes = workload.visual_tokens, workload.seq_len
    assert sizes == (golden["visual_tokens"], golden["seq_len"])
    traces = traced(model, workload)
    assert flops_by_stage(traces) == golden["matrix_flops"]
    assert decode_flops(traces) == golden["decode_step_matrix_flops"]
    assert passes.ledger_of(traces.prefill, *traces.decode_steps).unknown == {}
    assert traces.kv_cache_bytes == (
        2 * LAYERS * HEADS * HEAD_DIM * BF16_BYTES * workload.seq_len * workload.batch_size
    )


def test_parameters_are_the_checkpoints():
    params = [*map(torch.Tensor.numel, reference().module.parameters())]
    assert (sum(params), len(params)) == (3_336_106_240, 2_710)


def test_the_outside_witness_counts_the_same():
    eager = reference()  # FlopCounterMode knows nothing of the package flash-attn
    workload = DEFAULT.plan(page=(1191, 1684))
    with forward.running(eager.device), FlopCounterMode(display=False) as counter:
        eager.module(**DEFAULT.prefill_inputs(eager.device, eager.dtype, workload))
    traces = traced(eager, workload)
    assert flops_by_stage(traces)["total"] == counter.get_total_flops()
