"""Everything a prediction assumes, in one place; every output prints it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dsocr_analyze.architectures.page_pixels import PixelWork, pixel_work, pixel_work_of_pages
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.timing.correction import NO_CORRECTIONS, Corrections
from dsocr_analyze.timing.output_lengths import OutputLengths
from dsocr_analyze.timing.runtimes import NATIVE, Host, Precision

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.hardware.timed_device import Device
    from dsocr_analyze.workload import Mode, PageWorkload

__all__ = [
    "Assumptions",
    "estimated_preprocessing",
    "estimated_preprocessing_of_pages",
    "lengths_sentence",
]

_RESIZED_S = 4.45e-9
_VIEWED_S = 8.05e-9
"""Seconds per pixel of `PixelWork`.

Least squares over 30 pages (A4 at 72 to 300 dpi in six modes), Pillow 13 and torch 2.13, CPU time
on an AMD EPYC, minimum of 14 runs; median error 2.5 %, 90th percentile 8 %.
"""


def estimated_preprocessing(architecture: Architecture, workload: PageWorkload) -> float:
    """Seconds in which a CPU thread resizes a page and makes tensors of its views."""
    return float(_seconds_of(pixel_work(architecture.forms.crop_grids, workload)))


def estimated_preprocessing_of_pages(
    architecture: Architecture, mode: Mode, widths: Any, heights: Any
) -> Any:
    """The same for pages in one mode; sizes in pixels, `[n]`."""
    grids = architecture.forms.crop_grids
    columns, rows = grids.columns_and_rows(grids.codes(widths, heights))
    work = pixel_work_of_pages(
        grids, widths, heights, columns, rows, base_size=mode.base_size, image_size=mode.image_size,
        crop_mode=mode.crop_mode,
    )  # fmt: skip
    return _seconds_of(work)


def _seconds_of(work: PixelWork) -> Any:
    return _RESIZED_S * work.resized + _VIEWED_S * work.viewed


@dataclass(frozen=True)
class Assumptions:
    """What is assumed of all pages of a job.

    Attributes:
        host: The runtime's; a device's profile may have measured its figures.
        lengths: From a page's token limit to the tokens that pages generate; raises WorkloadError.
        preprocess_seconds: CPU seconds per page before the model runs; None to estimate them.
        workers: Pages that the CPU prepares in parallel.
        reserved: Fraction of the memory kept for the driver, the allocator and kernels.
        price_per_hour: Of one GPU, if it was given.
        is_offline: Whether the CPU prepares all pages before the first one runs, not ahead of it.
        corrections: From benchmarks of servers.

    Raises:
        WorkloadError: A number is out of range.
    """

    host: Host
    lengths: Callable[[int], OutputLengths] = OutputLengths.fixed
    preprocess_seconds: float | None = None
    workers: int = 1
    precision: Precision = NATIVE
    reserved: float = 0.1
    price_per_hour: float | None = None
    is_offline: bool = False
    corrections: Corrections = NO_CORRECTIONS

    def __post_init__(self) -> None:
        prepared, price = self.preprocess_seconds or 0.0, self.price_per_hour
        for argument, is_right, said in (
            ("preprocess_ms", 0 <= prepared < 1e6,
             f"{1e3 * prepared:g} is out of range; give 0 or more"),
            ("workers", self.workers >= 1, f"{self.workers} is too small; give 1 or more"),
            ("price", price is None or 0 < price < 1e9,
             f"{price or 0:g} is out of range; give an amount above 0"),
            ("reserved", 0 <= self.reserved < 1,
             f"{self.reserved} is out of range; give a fraction, at least 0 and below 1"),
        ):  # fmt: skip
            if not is_right:
                raise WorkloadError(f"{argument} {said}", arguments=[argument])

    @property
    def runtime(self) -> Literal["eager", "serving"]:
        """`eager` or `serving`."""
        return "eager" if self.host.is_eager else "serving"

    def sentences(
        self, lengths: str, profiles: Iterable[Device] = (), prepare: float | None = None
    ) -> list[str]:
        """What is assumed on some devices, in sentences, without corrections.

        `lengths` says how many tokens pages generate; `prepare` are CPU seconds of a single page.
        """
        devices_of: dict[Host, list[str]] = {}
        for profile in profiles:
            devices_of.setdefault(self.host.on(profile), []).append(profile.gpu.name)
        hosts = [
            f"{', '.join(devices)}: {said}" if len(devices_of) > 1 else said
            for host, devices in (devices_of or {self.host: []}).items()
            for said in _host_sentences(host)
        ]
        computing = {host.computes for host in devices_of or [self.host]}
        owner = "the machine's" if True in computing else "the GPU's"
        if len(computing) > 1:
            owner = "each device's"
        order = "before the first page runs" if self.is_offline else "while the GPU works"
        if self.host.is_eager:
            order = "before each batch runs"
        preprocessing, seconds = "is estimated from each page's pixels", self.preprocess_seconds
        if seconds is not None:
            preprocessing = f"takes {1e3 * seconds:.1f} ms of CPU per page (given)"
        elif prepare is not None:
            preprocessing = (
                f"takes {1e3 * prepare:.1f} ms of CPU per page (estimated from its pixels)"
            )
        return [
            lengths,
            f"preprocessing {preprocessing}, {self.workers} at a time, {order}",
            *hosts,
            f"{100 * self.reserved:g} % of {owner} memory is kept free",
            "experts are chosen independently and evenly",
            *self._runtime_sentences(),
        ]

    def _runtime_sentences(self) -> list[str]:
        if self.host.is_eager:
            return ["a batch runs until its longest page ends; no autocast"]
        sentences = [
            "vision runs uncompiled, the prompt as compiled kernels, decode steps as CUDA graphs;"
            " prefill passes run between decode steps"
            + (" and also decode the running sequences" if self.host.mixes_prefill else "")
        ]
        weights, cache = self.precision
        if weights:
            sentences.append(f"the decoder's linear layers, except router and head, use {weights}")
        if cache:
            sentences.append(f"the KV cache is {cache}")
        return sentences


def lengths_sentence(lengths: OutputLengths) -> str:
    """How many tokens pages generate, as a sentence."""
    if len(lengths.lengths) == 1:
        return f"every page generates {lengths.longest} tokens"
    return f"pages generate {lengths.mean:,.0f} tokens on average, {lengths.longest:,} at most"


def _host_sentences(host: Host) -> list[str]:
    if host.computes:
        return [
            f"host: {host.title}, on the CPU that runs the model; each operator adds"
            f" {host.launch_us:.3g} us of Python ({host.source}), each step of generate"
            f" {host.step_us:g} us (assumed)"
        ]
    return [
        f"host: {host.title}; {host.launch_us:g} us to launch an operator ({host.source})",
        f"pixel values of {host.pixel_bytes} bytes are copied to the GPU at {host.link_gb_s:g} GB/s"
        f" ({host.link_source})",
    ]
