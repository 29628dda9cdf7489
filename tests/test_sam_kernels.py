"""How SAM's encoder runs, and what its attention takes."""

from __future__ import annotations

import re
from pathlib import Path

import bench_sam
import pytest
from bench_sam import biased_kernel

from dsocr_analyze.hardware import device
from dsocr_analyze.kernels import Attention, Kernel, Work
from dsocr_analyze.timing.kernel_seconds import kernel_seconds

SCORES = 54 * 12 * 196 * 196
"""Of the windows of six views of 640 pixels."""


def windows(gpu):
    shape, work = Attention(54, 12, 12, 196, 196, 64, 64, masked=True), Work(bytes_read=1)
    kind = "attention", "scaled_dot_product_attention", shape, "bfloat16", "bfloat16", work
    return kernel_seconds([Kernel(*kind)], device(gpu))


def test_the_documented_kernels_are_those_of_the_rule():
    text = (Path(__file__).parents[1] / "docs/seconds.md").read_text(encoding="utf-8")
    row = r"^\| .* \| (\d) \| (\d+)\.(\d+) \| .*, (\d+\.\d) \| ([\w -]+) \|$"
    rows = re.findall(row, text, re.MULTILINE)
    assert len(rows) == 6
    for dimensions, *torch, capability, kernel in rows:
        assert biased_kernel(tuple(map(int, torch)), int(dimensions), float(capability)) == kernel


def test_windows_take_what_a_profile_says_and_are_extrapolated_from_kernels_for_ampere():
    # fmha_cutlassF_bf16_aligned_64x64: 160.7 us at 2017 of 2407 MHz, without the copied bias.
    found = windows("rtx-5090").seconds[0] - device("rtx-5090").elementwise_seconds(6 * SCORES)
    assert found * 2407 / 2017 == pytest.approx(160.7e-6, rel=0.03)
    for gpu, error in (
        ("l40s", (1.0, False, False, False)),
        ("h100-sxm", (1.0, True, True, False)),
    ):
        assert windows(gpu).errors[0][1:] == error


def test_residuals_stored_by_channel_cost_what_their_sectors_do():
    sam = bench_sam.encoder("samvit_base_patch16", 1)
    both = sam, [each._replace(stage="clip") for each in sam]
    found, without = (kernel_seconds(k, device("l4")).duration().seconds for k in both)
    # 25 sums (one of positions) and 24 norms of 4096 tokens of 768.
    assert found - without == pytest.approx(8e-12 * 49 * 4096 * 768, rel=1e-6)


@pytest.mark.exhaustive
def test_published_rows_are_within_the_benchmark_s_limits():
    assert bench_sam.main() == 0
