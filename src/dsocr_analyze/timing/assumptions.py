"""What a prediction assumes, all of it in one place; every output says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.timing.kernel_seconds import NATIVE, Precision
from dsocr_analyze.timing.runtimes import EAGER, SERVERS, Host

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.timing.output_lengths import OutputLengths
    from dsocr_analyze.workload import Workload

__all__ = ["Assumptions", "estimated_preprocessing"]

_RESIZED_S = 4.45e-9
_VIEWED_S = 8.05e-9
"""Seconds per pixel of `PixelWork`.

Least squares over 30 pages (A4 at 72 to 300 dpi in six modes): Pillow 13 and torch 2.13 on one
thread of an AMD EPYC, CPU time, the least of 14 runs; median error 2.5 %, 90th percentile 8 %.
"""


def estimated_preprocessing(architecture: Architecture, workload: Workload) -> float:
    """Seconds that one CPU thread takes to resize a page and make tensors of its views."""
    work = architecture.pixel_work(workload)
    return _RESIZED_S * work.resized + _VIEWED_S * work.viewed


@dataclass(frozen=True)
class Assumptions:
    """Everything that a prediction takes for granted.

    Attributes:
        host: The runtime's host.
        lengths: Tokens that pages generate.
        preprocess_seconds: CPU work of a page before the model.
        is_preprocess_estimated: Whether that is this program's estimate.
        workers: Pages that the CPU prepares at a time.
        precision: Types of a served decoder's weights and cache.
        reserved: Part of the memory kept for the driver, the allocator and kernels.
        price_per_hour: Of one GPU; None for none.
        is_offline: Whether the CPU prepares all pages before the first one runs, as an offline
            script does; else it works ahead of the GPU.

    Raises:
        WorkloadError: A number is not possible.
    """

    host: Host
    lengths: OutputLengths
    preprocess_seconds: float
    is_preprocess_estimated: bool = False
    workers: int = 1
    precision: Precision = NATIVE
    reserved: float = 0.1
    price_per_hour: float | None = None
    is_offline: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.preprocess_seconds < 1e6:
            raise WorkloadError(
                f"preprocess_ms {1e3 * self.preprocess_seconds:g} is not possible; give 0 or more",
                arguments=["preprocess_ms"],
            )
        if self.workers < 1:
            raise WorkloadError(
                f"workers {self.workers} is not possible; give 1 or more", arguments=["workers"]
            )
        if self.price_per_hour is not None and not 0 < self.price_per_hour < 1e9:
            raise WorkloadError(
                f"price {self.price_per_hour:g} is not possible; give an amount above 0",
                arguments=["price"],
            )
        if not 0 <= self.reserved < 1:
            raise WorkloadError(
                f"reserved {self.reserved} is not possible; give a part from 0 to below 1",
                arguments=["reserved"],
            )

    @property
    def runtime(self) -> str:
        """`eager` or `serving`."""
        return "eager" if self.host == EAGER else "serving"

    @property
    def steps(self) -> float:
        """Decode steps of a page, on average: one fewer than its tokens."""
        return self.lengths.mean - 1

    def sentences(self) -> list[str]:
        """What was assumed, a sentence each."""
        lengths, host = self.lengths, self.host
        spread = (
            f"every page generates {lengths.longest} tokens"
            if len(lengths.lengths) == 1
            else f"pages generate {lengths.mean:,.0f} tokens on average, {lengths.longest:,} at"
            " most"
        )
        origin = "estimated from its pixels" if self.is_preprocess_estimated else "given"
        said = [
            spread,
            f"preprocessing takes {1e3 * self.preprocess_seconds:.1f} ms of CPU per page"
            f" ({origin}), {self.workers} at a time, {self._order}",
            f"host: {host.title}; {host.launch_us:g} us to launch an operator ({host.source})",
            f"pixel values of {host.pixel_bytes} bytes reach the GPU at {host.link_gb_s:g} GB/s"
            " (assumed)",
            f"{100 * self.reserved:g} % of the GPU's memory is kept free",
        ]
        if self.runtime == "eager":
            return [*said, "a batch runs until its longest page has ended; no autocast"]
        return [
            *said,
            "vision runs uncompiled, the prompt as compiled kernels, decode steps as CUDA graphs;"
            " prefill passes run between decode steps",
            "experts are chosen independently and evenly",
            *self._precision_sentences(),
        ]

    @property
    def _order(self) -> str:
        return "before the first page runs" if self.is_offline else "while the GPU works"

    def _precision_sentences(self) -> list[str]:
        said = []
        if self.precision.weights:
            said.append(
                f"the decoder's linear layers but routers and head hold {self.precision.weights}"
            )
        if self.precision.cache:
            said.append(f"the KV cache holds {self.precision.cache}")
        return said

    def is_known_server(self) -> bool:
        """Whether the host is one of the engines that this program knows."""
        return self.host.name in SERVERS
