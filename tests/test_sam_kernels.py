"""How SAM's encoder runs, and what its attention takes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.hardware import device
from dsocr_analyze.kernels import Attention, Kernel, Work
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing.kernel_seconds import kernel_seconds
from dsocr_analyze.timing.sam_kernels import biased_kernel

WINDOWS = Attention(54, 12, 12, 196, 196, 64, 64, masked=True)
"""Of six views of 640 pixels."""
SCORES = 54 * 12 * 196 * 196


def biased(gpu, **changes):
    work = Work(SCORES * 128, bytes_read=2 * SCORES)
    kind = "attention", "scaled_dot_product_attention", WINDOWS._replace(**changes)
    return kernel_seconds([Kernel(*kind, "bfloat16", "bfloat16", work)], device(gpu))


def test_the_documented_kernels_are_those_of_the_rule():
    text = (Path(__file__).parents[1] / "docs/seconds.md").read_text(encoding="utf-8")
    row = r"^\| .* \| (\d) \| (\d+)\.(\d+) \| .*, (\d+\.\d) \| ([\w -]+) \|$"
    rows = re.findall(row, text, re.MULTILINE)
    assert len({kernel for *_, kernel in rows}) == 4
    for dimensions, major, minor, capability, kernel in rows:
        found = biased_kernel((int(major), int(minor)), int(dimensions), float(capability))
        assert found == kernel


def test_windows_take_what_a_profile_says():
    # fmha_cutlassF_bf16_aligned_64x64: 160.7 us at 2017 of 2407 MHz, without the copied bias.
    found = biased("rtx-5090").seconds[0] - device("rtx-5090").elementwise_seconds(6 * SCORES)
    assert found * 2407 / 2017 == pytest.approx(160.7e-6, rel=0.03)
    aligned = biased("rtx-5090", keys=200, queries=200).seconds[0]
    assert found == pytest.approx(aligned, rel=1e-9)  # whole blocks of 64: 4 x 4 either way


def test_kernels_for_ampere_are_extrapolated_to_gpus_on_which_they_are_slow():
    errors = {gpu: biased(gpu).errors[0] for gpu in ("a100-40gb", "l40s", "h100-sxm", "b200")}
    assert [each.extrapolated for each in errors.values()] == [False, False, True, True]
    assert [each.p90 for each in errors.values()] == [0.3, 0.3, 0.6, 0.6]


def test_residuals_stored_by_channel_cost_what_their_sectors_do():
    config = ModelDirectory.read(DEFAULT.reference).config
    dimensions = DEFAULT.forms.dimensions(config)
    kernels = DEFAULT.forms.served.views(1, 1024, dimensions, BFLOAT16)["sam"]
    own, others = (
        kernel_seconds(listed, device("h100-sxm"), weights_between=10**10).duration().seconds
        for listed in (kernels, [each._replace(stage="clip") for each in kernels])
    )
    # 25 sums (one of positions) and 24 norms of 4096 tokens of 768.
    assert own - others == pytest.approx(8e-12 * 49 * 4096 * 768, rel=1e-6)


def test_published_rows_are_within_the_benchmark_s_limits(monkeypatch, capsys):
    import bench_sam

    assert bench_sam.main() == 0
    coefficients = np.array(re.findall(r"[a-z_]+ (\d+\.\d+)", capsys.readouterr().out)[:4], float)
    assert coefficients == pytest.approx([1, 1, 1, 8], rel=0.25)
