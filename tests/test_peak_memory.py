"""Peak activation against an outside witness: small models that really run on the CPU."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from alive_tensors import held_by_prefill
from both_engines import LATENT, small_directory
from sampling import first, named, sampled
from vendor_checkout import VENDOR, needs_vendor

from dsocr_analyze.dtypes import INT64
from dsocr_analyze.session import DeepSeekOCRSession

TOLERANCE = {"float32": 0.02, "bfloat16": 0.05}

ONE_VIEW = {"page": (600, 500), "image_size": 256, "base_size": 256, "crop_mode": False}
CUT = {"page": (700, 900), "base_size": 256, "image_size": 192}
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}
SHARED = {"num_attention_heads": 5, "num_key_value_heads": 1}
MANY_WORDS = {"vocab_size": 20_000}

CASES = [
    pytest.param({}, {**ONE_VIEW, "text_tokens": 10}, id="short"),
    pytest.param({}, {**ONE_VIEW, "text_tokens": 900}, id="long"),
    pytest.param({}, {**ONE_VIEW, "text_tokens": 400, "batch_size": 3}, id="batch"),
    pytest.param({}, {**CUT, "text_tokens": 10}, id="cut"),
    pytest.param({}, {**CUT, "text_tokens": 200, "batch_size": 2}, id="cut-batch"),
    pytest.param(GROUPED, {**ONE_VIEW, "text_tokens": 500, "batch_size": 2}, id="grouped"),
    pytest.param(SHARED, {**ONE_VIEW, "text_tokens": 500, "batch_size": 2}, id="shared"),
    pytest.param(LATENT, {**ONE_VIEW, "text_tokens": 600}, id="latent"),
    pytest.param(LATENT, {**ONE_VIEW, "text_tokens": 300, "batch_size": 2}, id="latent-batch"),
    pytest.param(MANY_WORDS, {**ONE_VIEW, "text_tokens": 300}, id="logits"),
    pytest.param({"n_routed_experts": None}, {**CUT, "text_tokens": 50}, id="dense"),
    pytest.param({}, {**CUT, "base_size": 384, "text_tokens": 10}, id="large-view"),
]  # fmt: skip

dtypes = sampled("dtype", ["float32", "bfloat16"], first(1))


def peaks(session: DeepSeekOCRSession, page: dict) -> tuple[int, int, int]:
    """Peak by the witness, by the trace and by the closed forms."""
    workload = session.plan(max_new_tokens=1, **page)
    held = held_by_prefill(session, workload)
    figures, agreement = session.figures(workload)
    if figures.memory.peak.path.endswith(".mlp"):
        # Beside a GPU, the number of tokens per expert is on the host from here on.
        held -= INT64.nbytes * session.model.config.n_routed_experts
    return held, agreement.peak_activation_bytes.traced, agreement.peak_activation_bytes.analytic


@dtypes
@sampled(("model", "page"), CASES, named("cut"))
def test_of_the_reference(model, page, dtype):
    directory = small_directory(**model)
    session = DeepSeekOCRSession.from_directory(directory, device="cpu", dtype=dtype)
    held, traced, analytic = peaks(session, page)
    assert held == traced == analytic


@needs_vendor
@pytest.mark.vendor
@dtypes
@pytest.mark.parametrize(("model", "page"), CASES[1:3] + CASES[5:8] + CASES[9:10])
def test_of_the_published_code(model, page, dtype, tmp_path):
    for file in VENDOR.glob("*.py"):
        shutil.copy(file, tmp_path)
    # Its encoders and its projector are as wide as published, whatever the config says.
    wide = {
        "hidden_size": 1280,
        "num_hidden_layers": 2,
        "projector_config": {"n_embed": 1280, "input_dim": 2048},
    }
    directory = small_directory(**wide, **model)
    (tmp_path / "config.json").write_text(json.dumps(dict(directory.config)))
    session = DeepSeekOCRSession.from_local(
        tmp_path, device="cpu", dtype=dtype, trust_remote_code=True
    )
    held, traced, analytic = peaks(session, page)
    assert held == traced == analytic


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@dtypes
@pytest.mark.parametrize(("model", "page"), CASES)
def test_on_cuda(model, page, dtype):
    directory = small_directory(**model)
    session = DeepSeekOCRSession.from_directory(directory, device="cuda:0", dtype=dtype)
    workload = session.plan(max_new_tokens=1, **page)
    figures, agreement = session.figures(workload)  # also warms up: workspaces are there now
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    session.trace(workload)
    allocated = torch.cuda.max_memory_allocated() - before - figures.memory.inputs_bytes
    assert agreement.peak_activation_bytes.traced == pytest.approx(allocated, rel=TOLERANCE[dtype])
    assert agreement.peak_activation_bytes.analytic == pytest.approx(
        allocated, rel=TOLERANCE[dtype]
    )
