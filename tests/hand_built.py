"""Figures of a page, small enough to add up by hand, and how a comparison of them came out."""

import datetime as dt
from dataclasses import replace

from msgspec import structs

from dsocr_analyze import agreement, kernels, workload
from dsocr_analyze.figures import (
    MemoryFigures,
    Model,
    OperatorLedger,
    PageFigures,
    Parameters,
    Peak,
    Provenance,
    StageFigures,
    counts_of,
)

CREATED = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)

WORKLOAD = workload.PageWorkload(
    page=(600, 500),
    base_size=512,
    image_size=512,
    crop_mode=False,
    grid=(1, 1),
    views=(workload.ViewBatch(1, 512),),
    visual_tokens=73,
    text_tokens=10,
    batch_size=1,
    max_new_tokens=3,
)


def linear(path: str, macs: int, calls: int = 1) -> kernels.Kernel:
    work = kernels.Work(macs=macs, vector_flops=1, activations=2, bytes_read=30, bytes_written=4)
    return kernels.Kernel(
        "gemm", "linear", kernels.Gemm(1, 1, 1, macs), "bfloat16", "bfloat16", work, calls, path
    )


def add(path: str, elements: int) -> kernels.Kernel:
    work = kernels.Work(vector_flops=elements, bytes_read=4 * elements, bytes_written=2 * elements)
    dimensions = kernels.Elements(elements)
    return kernels.Kernel("elementwise", "add", dimensions, "bfloat16", "bfloat16", work, 1, path)


STAGES = {
    "eye": StageFigures(
        "eye",
        params=500,
        calls=1,
        kernels=(linear("model.eye.fc", 1000, calls=2), add("model.eye", 50)),
        module_calls={"model.eye": 1, "model.eye.fc": 2},
        notes=("it only has one",),
    ),
    "prefill": StageFigures(
        "prefill",
        params=300,
        calls=1,
        kernels=(linear("model.layers.0", 700), linear("model.layers.1", 700), add("", 10)),
        module_calls={"": 1, "model.layers.0": 1, "model.layers.1": 1},
    ),
    "decode": StageFigures(
        "decode",
        params=40,
        calls=1,
        kernels=(linear("lm_head", 90),),
        module_calls={"": 1, "lm_head": 1},
    ),
}

FIGURES = PageFigures(
    workload=WORKLOAD,
    provenance=Provenance(
        model=Model(
            architecture="small-model",
            source="directory",
            id="my-model",
            config_digest="c0ffee" * 10,
            code_digest="decade" * 10,
            class_name=None,
            weights="none",
        ),
        engine="analytic",
        device="none",
        dtype=kernels.BFLOAT16.name,
        attention="eager",
        versions={"tool": "0.1.0"},
    ),
    stages=STAGES,
    parameters=Parameters(total=843, unassigned={"model.separator": 3}),
    # Two decode steps over growing caches, the second with one MAC more.
    batch=kernels.Work(
        macs=3400 + 90 + 91, vector_flops=66, activations=12, bytes_read=400, bytes_written=1
    ),
    causal_savable_flops=77,
    memory=MemoryFigures(
        weights_bytes=2 * 843,
        inputs_bytes=99,
        prefill_cache_bytes=83 * 20,
        kv_cache_bytes=85 * 20,
        peak=Peak(5000, "model.eye.fc"),
    ),
    ledger=OperatorLedger(counted={"linear": 5, "add": 2}, free={"view": 4}, unknown={}),
    warnings=("mind the gap",),
    notes=("mind the gap", "nothing was run"),
)


def traced(figures: PageFigures = FIGURES) -> PageFigures:
    """The same figures as a trace would have them: modules have classes and parameters."""
    provenance = figures.provenance
    model = structs.replace(provenance.model, class_name="SmallModel")
    classes = {"": "SmallModel", "model": "Body", "model.eye": "Eye", "model.eye.fc": "Linear"}
    own_params = {
        "eye": {"model.eye.fc": 490, "model.eye": 10},
        "prefill": {"model.layers.0": 150, "model.layers.1": 150},
        "decode": {"lm_head": 40},
    }
    return replace(
        figures,
        provenance=structs.replace(provenance, model=model, engine="trace", device="meta"),
        stages={
            name: replace(stage, own_params=own_params[name])
            for name, stage in figures.stages.items()
        },
        module_classes=classes,
    )


def compared() -> PageFigures:
    """The same where closed forms count as many FLOPs."""
    flops = {name: stage.work.flops for name, stage in STAGES.items()}
    return replace(traced(), flops_analytic=flops)


def batch_of(pages: int) -> PageFigures:
    return replace(FIGURES, workload=replace(WORKLOAD, batch_size=pages))


AGREEMENT = agreement.Agreement(
    agrees=True,
    stages={name: {"params": True, "macs": True} for name in STAGES},
    kv_cache_bytes=True,
    batch=True,
    peak_activation_bytes=agreement.PeakAgreement(traced=5000, analytic=5000, agrees=True),
    first_difference=None,
    not_modelled=(),
    not_modelled_share={},
)
"""How a trace compares with the closed forms: they agree."""

NOT_MODELLED = agreement.NotModelled(
    **counts_of(kernels.Work(vector_flops=5, bytes_read=7)),
    stage="eye",
    modules=r"model\.eye",
    operators=("add", "gt"),
    reason="nobody knows why",
)
LEFT_OUT = structs.replace(
    AGREEMENT,
    batch=None,
    not_modelled=(NOT_MODELLED,),
    not_modelled_share={"eye": agreement.LeftOutShare(vector_flops=0.25, bytes=0.125)},
)
"""The same with two operators without a closed form."""
