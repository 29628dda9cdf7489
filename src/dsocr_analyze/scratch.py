"""Scratch: memory that a CPU kernel takes besides its inputs and outputs, and frees at its end.

One formula, in bytes from the sizes of one call, per kernel that takes any; all other kernels take
none. The kernels are those of PyTorch 2.13 with oneDNN on an x86 CPU. On CUDA, this model's kernels
take no extra memory from the allocator.

Both engines use these: a kernel's scratch is not a property of the model, and each formula is
checked against the allocator itself.
"""

from __future__ import annotations

from dsocr_analyze.dtypes import FLOAT32, INT64
from dsocr_analyze.kernels import KernelsOf

__all__ = [
    "antialiased_scratch",
    "attention_scratch",
    "convolution_scratch",
    "mean_scratch",
    "product_scratch",
    "sort_scratch",
]

_CHANNEL_BLOCK = 16
_COLUMN_BLOCK = 64
_TILES = 832
"""Bytes of one thread's tile buffers in oneDNN's matrix kernels."""


def attention_scratch(
    queries: int, keys: int, head_dim: int, element_bytes: int, threads: int
) -> int:
    """Per thread, in fp32: a block of scores, its maxima and sums, and a block of the result.

    Args:
        queries: Queries per head.
        keys: Keys per head.
        head_dim: Features per head.
        element_bytes: Bytes per feature; with a narrower type, scores are kept in that type too.
        threads: Threads of the pool.

    Source: `cpu_flash_attention` of ATen (`FlashAttentionKernel.cpp`).
    """
    if queries >= 768:
        block = 256
    elif queries >= 192:
        block = 64
    else:
        block = 32
    rows, columns = min(block, queries), min(512, keys)
    scores = rows * columns
    wide = FLOAT32.nbytes * (scores + 2 * rows + rows * head_dim)
    return threads * (wide + (element_bytes * scores if element_bytes < FLOAT32.nbytes else 0))


def convolution_scratch(
    images: int,
    channels: int,
    side: int,
    outputs: int,
    output_side: int,
    kernel: int,
    element_bytes: int,
    kernels_of: KernelsOf,
) -> int:
    """Reordered input and weights, or a second output; in ATen's own kernel, columns.

    oneDNN computes in blocks of channels: it first reorders the weights and (unless channels are
    few) the input into blocks, and finally reorders the output back. ATen's own kernel lays out
    the taps of every output as columns; a kernel of one tap takes the input as it is.

    Args:
        images: N.
        channels: Input channels; one group.
        side: Pixels per side of the input.
        outputs: Output channels.
        output_side: Pixels per side of the output.
        kernel: Taps per side.
        element_bytes: Bytes per element.
        kernels_of: The CPU.

    Source: `use_mkldnn` of ATen (`Convolution.cpp`), `slow_conv2d_forward`; oneDNN's formats.
    """
    is_wide = element_bytes == FLOAT32.nbytes
    is_one_tap = kernel == 1 and side == output_side
    if is_wide:
        is_small = images == 1 and kernel <= 3 and channels * side**2 <= 20_480
        is_atens = is_small or (is_one_tap and images < 16 and kernels_of.threads == 1)
    else:
        is_atens = not kernels_of.has_16_bits
    if is_atens:
        columns = 0 if is_one_tap else channels * kernel**2 * output_side**2
        return images * columns * element_bytes
    few = channels < _CHANNEL_BLOCK
    # In 16 bits, blocks are twice as wide unless the fp32 block divides the channels.
    block = 2 * _CHANNEL_BLOCK if not is_wide and channels % _CHANNEL_BLOCK else _CHANNEL_BLOCK
    if few:
        block = 1 if is_wide else 4
    padded_in = _rounded_up(channels, block)
    padded_out = _rounded_up(outputs, _CHANNEL_BLOCK)
    reordered = 0 if few else images * padded_in * side**2 * element_bytes
    weights = padded_out * padded_in * kernel**2 * element_bytes
    written = images * padded_out * output_side**2 * element_bytes
    sums = 0
    if kernel == 1 and not is_wide:
        sums = kernels_of.threads * outputs * output_side**2 * FLOAT32.nbytes
    return max(reordered + weights + sums, written)


def product_scratch(rows: int, depth: int, element_bytes: int, kernels_of: KernelsOf) -> int:
    """For a product in 16 bits, per thread: a packed block of the right factor, and fp32 sums.

    fp32 products and ATen's own take none. The depth of a block follows oneDNN's heuristics; this
    is their usual choice, up to 64 KiB per thread.

    Args:
        rows: Rows of the output.
        depth: Products summed into one output element.
        element_bytes: Bytes per element.
        kernels_of: The CPU.

    Source: oneDNN's `brgemm_matmul`.
    """
    if element_bytes == FLOAT32.nbytes or not kernels_of.has_16_bits:
        return 0
    packed = _COLUMN_BLOCK * min(depth, 1024) * element_bytes
    sums = _COLUMN_BLOCK * min(rows, 128) * FLOAT32.nbytes
    return kernels_of.threads * (packed + sums + _TILES)


def antialiased_scratch(
    images: int, channels: int, rows: int, columns: int, element_bytes: int
) -> int:
    """The intermediate picture of an antialiased resize, resized in width only.

    Args:
        images: N.
        channels: C.
        rows: Rows of the input.
        columns: Columns of the output.
        element_bytes: Bytes per element.

    Source: `separable_upsample_generic_Nd_kernel_impl` of ATen.
    """
    return images * channels * rows * columns * element_bytes


def mean_scratch(elements: int, outputs: int, element_bytes: int) -> int:
    """For a mean in 16 bits, the input and the sums in fp32.

    Args:
        elements: Input elements.
        outputs: Output elements.
        element_bytes: Bytes per element.

    Source: `mean` of ATen on the CPU: a sum with `dtype=float`, then a division.
    """
    return 0 if element_bytes == FLOAT32.nbytes else FLOAT32.nbytes * (elements + outputs)


def sort_scratch(elements: int) -> int:
    """A second copy of the indices.

    Args:
        elements: Elements sorted.

    Source: `sort_stable_kernel` of ATen.
    """
    return INT64.nbytes * elements


def _rounded_up(count: int, block: int) -> int:
    return -(-count // block) * block
