"""How SAM's encoder runs: its attention with a bias, and what it reads out of order."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from dsocr_analyze.kernels import Elements, Kernel, Rows
from dsocr_analyze.tape import Size

BiasedKernel: TypeAlias = Literal["memory-efficient", "cuDNN", "math", "math in fp32"]

STRIDED_PS: Final = 8.0
"""Picoseconds per `strided_elements`, fitted by `benchmarks/bench_sam.py`.

From a profile: `add` of six views of 640 pixels, 94.9 us on an RTX 5090 at its base clock, is 9.5
ps beyond the bandwidth's share (github.com/CodeGandee/llm-perf-opt, reports/20251107-dsocr).
"""


def biased_kernel(torch: tuple[int, int], dimensions: int, capability: float) -> BiasedKernel:
    """What `scaled_dot_product_attention` launches for 16-bit queries with a bias, uncompiled.

    `torch` is its version, `dimensions` those of the queries, `capability` the GPU's. Flash
    kernels take no bias (`check_for_attn_mask`), and no fused kernel takes queries other than
    `[B, H, T, D]` (`check_tensor_shapes`); the rest is computed operator by operator, from 2.5 on
    in fp32 (`_scaled_dot_product_attention_math`). cuDNN's kernel comes first on Hopper and
    data-center Blackwell from 2.9 on, if the wheel's cuDNN is new enough.

    Sources: PyTorch's `transformers/cuda/sdp_utils.cpp` and `transformers/attention.cpp`, pull
    requests 162073 and 171627.
    """
    if dimensions != 4:
        return "math in fp32" if torch >= (2, 5) else "math"
    prefers_cudnn = torch >= (2, 9) and int(capability) in {9, 10}
    return "cuDNN" if prefers_cudnn else "memory-efficient"


SAM_SENTENCE: Final = (
    "SAM's attention with its bias takes as long as PyTorch's memory-efficient kernel, also where"
    " cuDNN's runs"
)
"""What predictions assume: the vendors' code and both engines pass queries of four dimensions."""


def strided_elements(kernel: Kernel) -> Size:
    """Elements that an uncompiled kernel of SAM reads at a stride, 32 bytes for each.

    `PatchEmbed` returns channels first behind a permuted view, and a sum has the layout of its
    first input: every residual sum reads a branch, and the copy before every norm the residual.
    """
    work, sizes = kernel.work, kernel.dimensions
    if kernel.stage != "sam":
        return 0
    if isinstance(sizes, Rows) and kernel.operator == "native_layer_norm":
        return sizes.rows * sizes.width
    # Biases, positions and norms add less than a second whole operand.
    is_sum = isinstance(sizes, Elements) and kernel.operator == "add"
    return sizes[0] * (work.bytes_read == 2 * work.bytes_written) if is_sum else 0
