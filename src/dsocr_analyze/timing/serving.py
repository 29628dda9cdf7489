"""Serving engines: one page's prefill pass, and a decode step of all running sequences.

Vision runs uncompiled, the prompt as compiled kernels, a decode step as one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.architectures.architecture import Architecture, ModelDimensions
from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.hardware.timed_device import STORED_BITS, Device
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.tape import Size, ceil_div, maximum, minimum
from dsocr_analyze.timing.kernel_seconds import Duration, Figure, kernel_seconds
from dsocr_analyze.timing.runtimes import NATIVE, Host, Precision
from dsocr_analyze.workload import PageWorkload, ViewBatch

__all__ = ["ServedModel", "stretch_times"]

_US: Final = 1e-6
_CALLS: Final = attrgetter("calls")


@dataclass
class ServedModel:
    """A model on a GPU under a serving engine.

    Raises:
        ConfigError: The engine is not modelled for these dimensions.
        DeviceError: The GPU lacks a type.
    """

    architecture: Architecture
    dimensions: ModelDimensions
    dtype: Dtype
    device: Device
    server: Host
    precision: Precision = NATIVE
    _encoded: dict[tuple[ViewBatch, ...], list[tuple[str, Duration, float]]] = field(
        default_factory=dict, repr=False
    )

    def __post_init__(self) -> None:
        self.architecture.forms.served.check(self.dimensions)
        self.cache_bits = STORED_BITS.get(self.precision.cache or "", 8 * self.dtype.nbytes)

    @property
    def weights_bytes(self) -> int:
        """Bytes of all parameters; quantized ones have a 16-bit scale per 128 weights."""
        params = self.architecture.forms.parameter_count(self.dimensions)
        if self.precision.weights is None:
            return params * self.dtype.nbytes
        quantized = self.architecture.forms.served.quantizable_params(self.dimensions)
        packed = quantized * STORED_BITS[self.precision.weights] // 8 + quantized // 64
        return (params - quantized) * self.dtype.nbytes + packed

    def prompt_kernels(self, T: Size, visual: Size) -> tuple[Kernel, ...]:
        """Kernels of one chunk of a prompt, with all chunks taken as equal; see `chunks`."""
        chunks = self.chunks(T)
        tokens = ceil_div(T, chunks)
        keys = ceil_div(tokens * (chunks + 1), 2)
        visual = ceil_div(visual, chunks)
        return self.architecture.forms.served.prompt(
            tokens, keys, visual, self.dimensions, self.dtype, self.cache_bits
        )

    def chunks(self, T: Size) -> Size:
        """Passes through the decoder for a prompt of T tokens."""
        return ceil_div(T, self.server.chunk_tokens)

    def step_kernels(self, B: Size, K: Size) -> tuple[Kernel, ...]:
        """Kernels of one decode step of B sequences over K keys each."""
        return self.architecture.forms.served.step(
            B, K, self.dimensions, self.dtype, self.cache_bits
        )

    def prefill(self, views: tuple[ViewBatch, ...], T: Size, visual: Size) -> dict[str, Duration]:
        """The stages of a page's prefill pass; T may be an array of prompts' tokens."""
        chunks, kernels = self.chunks(T), self.prompt_kernels(T, visual)
        priced = kernel_seconds(kernels, self.device, self.precision)
        stage = next(each.name for each in self.architecture.stages if each.role == "prefill")
        host = chunks * sum(map(_CALLS, kernels)) * self.server.compiled_launch_us * _US
        parts = [*self._vision(views), (stage, priced.duration().times(chunks), host)]
        durations: dict[str, Duration] = {}
        times = stretch_times([(each.seconds, issued) for _, each, issued in parts])
        for (name, duration, _), seconds in zip(parts, times, strict=True):
            waited = duration.plus(Duration(launches=np.maximum(seconds - duration.seconds, 0.0)))
            durations[name] = durations[name].plus(waited) if name in durations else waited
        return durations

    def _vision(self, views: tuple[ViewBatch, ...]) -> list[tuple[str, Duration, float]]:
        """Stage, GPU time and launch seconds of the parts of vision calls."""
        if views not in self._encoded:
            served, between = self.architecture.forms.served, self.weights_bytes
            first = self.architecture.stages[0].name
            parts = [(first, Duration(host=self.server.copy_seconds(views)), 0.0)]
            for view in views:
                kernels_of = served.views(view.count, view.resolution, self.dimensions, self.dtype)
                for stage, kernels in kernels_of.items():
                    priced = kernel_seconds(kernels, self.device, weights_between=between)
                    host = sum(map(_CALLS, kernels)) * self.server.launch_us * _US
                    parts.append((stage, priced.duration(), host))
            self._encoded[views] = parts
        return self._encoded[views]

    def step(self, B: Size, K: Size) -> Duration:
        """A decode step of B sequences over K keys each; arrays broadcast.

        The host prepares the next step while the GPU computes; the slower one sets the pace.
        """
        server = self.server
        priced = kernel_seconds(self.step_kernels(B, K), self.device, self.precision)
        duration = priced.duration(launches=server.graph_us * _US)
        hidden = (server.hidden_step_us + server.hidden_sequence_us * B) * _US
        serial = (server.step_us + server.sequence_us * B) * _US
        return duration.plus(Duration(host=np.maximum(hidden - duration.seconds, 0.0) + serial))

    def keys(self, T: Size, generated: Size) -> Size:
        """Keys of a sequence with T prompt tokens and `generated` more.

        The window bounds their average like one length, which overestimates a step by up to 1 %.
        """
        window = self.dimensions.decoder.sliding_window
        return T + (generated if window is None else minimum(generated, window))

    def fixed_bytes(self, workload: PageWorkload) -> Size:
        """Bytes of the weights and a prefill pass, in chunks; `text_tokens` may be an array."""
        served = self.architecture.forms.served
        text_tokens = minimum(
            workload.text_tokens, self.server.chunk_tokens - workload.visual_tokens
        )
        chunk = replace(workload, text_tokens=maximum(1, text_tokens))
        activations = served.activation_bytes(self.dimensions, chunk, self.dtype)
        return self.weights_bytes + activations + served.inputs_bytes(workload, self.dtype)

    def page_bytes(self, T: Size, longest: Size) -> Size:
        """Bytes of the cache of a page with T prompt tokens and `longest` generated ones."""
        elements = self.architecture.forms.served.cache_elements(self.dimensions)
        return self.keys(T, longest - 1) * (elements * self.cache_bits // 8)

    def fitting(self, fixed: Size, page: Size, reserved: float) -> NDArray[np.int64]:
        """Most pages of so many bytes beside fixed and reserved memory."""
        free = self.device.gpu.memory_bytes * (1 - reserved) - fixed
        pages: NDArray[np.int64] = np.maximum(free // page, 0.0).astype(np.int64)
        return pages


def stretch_times(stretches: Iterable[tuple[Figure, Figure]]) -> Iterator[Figure]:
    """Seconds from each stretch's end to the next one's, with the host issuing ahead of the GPU.

    A stretch is many kernels, issued evenly: their seconds on the GPU, and those of issuing them.
    It ends when they have run, after the previous stretch, and no earlier than the last is issued.
    """
    issued: Figure = 0.0
    end: Figure = 0.0
    for device, host in stretches:
        started = np.maximum(end, issued)
        issued = issued + host
        ended = np.maximum(started + device, issued)
        yield ended - end
        end = ended
