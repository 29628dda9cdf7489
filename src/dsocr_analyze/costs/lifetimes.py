"""Replays a pass as the lifetimes of its tensors: bytes alive, and their peak."""

from __future__ import annotations

from dsocr_analyze.dtypes import FLOAT32, Dtype
from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import KernelsOf
from dsocr_analyze.scratch import product_scratch

__all__ = ["Lifetimes"]


class Lifetimes:
    """What a pass holds while it is replayed, tensor by tensor.

    Tensors are known only by their sizes: a tensor is freed by giving its size again.

    Args:
        dtype: Type of features and weights.
        kernels_of: Whose kernels run, for the copies they make and the scratch they take.

    Attributes:
        path: Module whose own forward is replayed.
        alive: Bytes alive.
        peak: The most bytes so far, and the module that first reached them.
    """

    def __init__(self, dtype: Dtype, kernels_of: KernelsOf) -> None:
        self.dtype = dtype
        self.kernels_of = kernels_of
        self.path = ""
        self.alive = 0
        self.peak = Peak(0, "")

    @property
    def is_wide(self) -> bool:
        """Whether features are fp32, so that casting to it does nothing."""
        return self.dtype == FLOAT32

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU's kernels run."""
        return self.kernels_of.device == "cpu"

    def make(self, nbytes: int, *, scratch: int = 0) -> int:
        """Makes a tensor by a kernel that takes some scratch; returns its size."""
        self.alive += nbytes
        if self.alive + scratch > self.peak.nbytes:
            self.peak = Peak(self.alive + scratch, self.path)
        return nbytes

    def free(self, *sizes: int) -> None:
        """Frees tensors of these sizes."""
        self.alive -= sum(sizes)

    def features(self, elements: int, *, scratch: int = 0) -> int:
        """Makes a tensor of features; returns its size."""
        return self.make(elements * self.dtype.nbytes, scratch=scratch)

    def wide(self, elements: int) -> int:
        """Makes an fp32 tensor; returns its size."""
        return self.make(elements * FLOAT32.nbytes)

    def widened(self, elements: int) -> int:
        """Casts features to fp32 unless they already are; returns the copy's size."""
        return 0 if self.is_wide else self.wide(elements)

    def narrowed(self, elements: int) -> int:
        """Casts fp32 to the features' type unless it is the same; returns the copy's size."""
        return 0 if self.is_wide else self.features(elements)

    def linear(self, rows: int, depth: int, columns: int) -> int:
        """Makes a linear layer's output `[rows, columns]`; returns its size."""
        return self.features(rows * columns, scratch=self.packing(rows, depth))

    def packing(self, rows: int, depth: int) -> int:
        """Scratch of a matrix product."""
        if not self.on_cpu:
            return 0
        return product_scratch(rows, depth, self.dtype.nbytes, self.kernels_of)

    def batched_copy(self, elements: int) -> int:
        """Scratch of a batched product for a factor that is neither row-major nor column-major.

        oneDNN's 16-bit kernel copies such a factor; every other takes it as it is.
        """
        is_copied = self.on_cpu and not self.is_wide and self.kernels_of.has_16_bits
        return elements * self.dtype.nbytes if is_copied else 0

    def layer_norm(self, rows: int, width: int, *, channels_first: bool = False) -> int:
        """Makes a layer norm's output, freeing its statistics and any copied input.

        Args:
            rows: Tokens.
            width: Features per token.
            channels_first: Whether the input is stored channel by channel.

        Returns:
            The output's size.
        """
        copied = rows * width * self.dtype.nbytes if channels_first else 0
        output = self.features(rows * width, scratch=copied)
        statistic = rows * (self.dtype.nbytes if self.on_cpu else FLOAT32.nbytes)
        self.make(2 * statistic, scratch=copied)
        self.free(2 * statistic)
        return output
