"""On a CUDA device the real forward pass gives the counts of `meta` (pytest -m gpu)."""

import importlib.util
import json

import infer_like
import msgspec
import pytest
import torch
from command_line import run
from vendor_checkout import VENDOR, needs_vendor

from dsocr_analyze import DeepSeekOCRSession
from dsocr_analyze.report.document import Report

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

PAGE = {"page": (1191, 1684), "max_new_tokens": 3}

HAS_FLASH = importlib.util.find_spec("flash_attn") is not None
needs_flash_attention = pytest.mark.skipif(not HAS_FLASH, reason="flash-attn is not installed")
models = pytest.mark.parametrize(
    "path", [None, pytest.param(VENDOR, marks=needs_vendor)], ids=["reference", "vendor"]
)


def counted(report: Report) -> Report:
    """All that must not depend on the device; metadata taken from nowhere."""
    # Questions to the host are asked of real values only.
    ledger = msgspec.structs.replace(report.operator_ledger, free={})
    return msgspec.structs.replace(report, metadata=None, operator_ledger=ledger)


def analyzed(path, device, *, flash_attention):
    session = DeepSeekOCRSession.from_local(
        path, device=device, flash_attention=flash_attention, trust_remote_code=True
    )
    return session.analyze(**PAGE)


@models
@pytest.mark.parametrize(
    "flash_attention", [False, pytest.param(True, marks=needs_flash_attention)]
)
def test_a_pass_gives_the_counts_of_meta(path, flash_attention):
    on_cuda = analyzed(path, "cuda:0", flash_attention=flash_attention)
    if on_cuda.metadata.model.weights == "checkpoint":
        pytest.skip("the checkpoint's own routing decides which experts are read")
    assert counted(on_cuda) == counted(analyzed(path, "meta", flash_attention=flash_attention))


@pytest.mark.skipif(HAS_FLASH, reason="flash-attn is installed")
def test_flash_attention_that_is_missing_is_refused_with_the_way_out(capsys, tmp_path):
    code, _, error = run(capsys, "--device", "cuda:0", "--use-flash-attn", 1, "--output", tmp_path)
    assert code == 2
    assert "dsocr-analyze[flash-attn]" in error
    assert "--use-flash-attn 0" in error


def test_the_command_runs_on_cuda(capsys, tmp_path):
    code, out, _ = run(capsys, "--device", "cuda:0", "--mode", "tiny", "--output", tmp_path)
    assert code == 0
    assert "on cuda:0" in out.splitlines()[0]
    assert (tmp_path / "static_compute.json").exists()


@pytest.mark.directory
@pytest.mark.parametrize(
    "flash_attention", [0, pytest.param(1, marks=needs_flash_attention)], ids=["eager", "flash"]
)
def test_infer_is_measured_on_cuda(capsys, tmp_path, flash_attention):
    path = infer_like.write(tmp_path / "m")
    image = infer_like.picture(tmp_path / "page.png")
    code, out, _ = run(
        capsys, "infer", "--model", path, "--image", image, "--output", tmp_path / "o", "--device",
        "cuda:0", "--use-flash-attn", flash_attention, "--random-weights", "--trust-remote-code",
        "--base-size", 256, "--image-size", 256, "--crop-mode", 0, "--max-new-tokens", 4,
        "--format", "json",
    )  # fmt: skip
    assert code == 0
    report = json.loads(out)
    assert report["device"] == "cuda:0"
    assert report["differences"] == []
    assert report["tokens"] == 4
    assert all(stage["seconds"]["measured"] > 0 for stage in report["stages"].values())
    passes = sum(stage["seconds"]["measured"] for stage in report["stages"].values())
    assert passes < report["infer_seconds"]["measured"]
