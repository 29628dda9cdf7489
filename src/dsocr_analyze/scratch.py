"""Scratch: memory that a CPU kernel takes beside its inputs and outputs, and gives back at its end.

A formula for each kernel that takes some, in bytes, from the sizes of one call; every other kernel
takes none. The kernels are those of PyTorch 2.13 with oneDNN on an x86 CPU. CUDA's kernels for this
model take none from the allocator that would show beside their outputs.

Both engines read these: what a kernel takes is no property of the model, and the witness of each
formula is the allocator itself.
"""

from __future__ import annotations

from dsocr_analyze.dtypes import FLOAT32, INT64

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
"""Bytes of a thread's tile buffers in oneDNN's matrix kernels."""


def attention_scratch(
    queries: int, keys: int, head_dim: int, element_bytes: int, threads: int
) -> int:
    """A block of scores, its maxima and sums and a block of the result, in fp32 for each thread.

    Args:
        queries: Queries of a head.
        keys: Keys of a head.
        head_dim: Features of a head.
        element_bytes: Bytes of a feature; scores are kept in the type of fewer bytes as well.
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
    threads: int,
) -> int:
    """Reordered input and weights, or the output once more; of a small fp32 image, its columns.

    oneDNN computes in blocks of channels: the weights and, but for a few channels, the input are
    reordered into them first, the output is reordered back last. ATen's own kernel, for a small
    fp32 image, lays the taps of every output out as columns.

    Args:
        images: N.
        channels: Input channels; one group.
        side: Pixels a side of the input.
        outputs: Output channels.
        output_side: Pixels a side of the output.
        kernel: Taps a side.
        element_bytes: Bytes of an element.
        threads: Threads of the pool.

    Source: `use_mkldnn` of ATen (`Convolution.cpp`), `slow_conv2d_forward`; oneDNN's formats.
    """
    is_wide = element_bytes == FLOAT32.nbytes
    if is_wide and images == 1 and kernel <= 3 and channels * side**2 <= 20_480:
        columns = channels * kernel**2 * output_side**2 if kernel > 1 else 0
        return columns * element_bytes
    few = channels < _CHANNEL_BLOCK
    # In 16 bits, channels are blocked in pairs of the fp32 ones.
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
        sums = threads * outputs * output_side**2 * FLOAT32.nbytes
    return max(reordered + weights + sums, written)


def product_scratch(rows: int, depth: int, element_bytes: int, threads: int) -> int:
    """Of a product in 16 bits, a packed block of the right factor and one of fp32 sums a thread.

    fp32 products take none. How deep a block is follows oneDNN's heuristics; this is their usual
    choice, within 64 KiB a thread.

    Args:
        rows: Rows of the output.
        depth: Products summed into one output element.
        element_bytes: Bytes of an element.
        threads: Threads of the pool.

    Source: oneDNN's `brgemm_matmul`.
    """
    if element_bytes == FLOAT32.nbytes:
        return 0
    packed = _COLUMN_BLOCK * min(depth, 1024) * element_bytes
    sums = _COLUMN_BLOCK * min(rows, 128) * FLOAT32.nbytes
    return threads * (packed + sums + _TILES)


def antialiased_scratch(
    images: int, channels: int, rows: int, columns: int, element_bytes: int
) -> int:
    """The picture between the two passes of an antialiased resize: resized in width alone.

    Args:
        images: N.
        channels: C.
        rows: Rows of the input.
        columns: Columns of the output.
        element_bytes: Bytes of an element.

    Source: `separable_upsample_generic_Nd_kernel_impl` of ATen.
    """
    return images * channels * rows * columns * element_bytes


def mean_scratch(elements: int, outputs: int, element_bytes: int) -> int:
    """Of a mean in 16 bits, the input and the sums in fp32.

    Args:
        elements: Input elements.
        outputs: Output elements.
        element_bytes: Bytes of an element.

    Source: `mean` of ATen on the CPU: a sum with `dtype=float`, then a division.
    """
    return 0 if element_bytes == FLOAT32.nbytes else FLOAT32.nbytes * (elements + outputs)


def sort_scratch(elements: int) -> int:
    """The indices once more.

    Args:
        elements: Elements sorted.

    Source: `sort_stable_kernel` of ATen.
    """
    return INT64.nbytes * elements


def _rounded_up(count: int, block: int) -> int:
    return -(-count // block) * block
