"""The page whose seconds docs/seconds.md works through."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family.fusions import FUSIONS
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.hardware.profile import Profile, all_profiles
from dsocr_analyze.hardware.timed_device import device
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing.assumptions import Assumptions, estimated_preprocessing
from dsocr_analyze.timing.kernel_seconds import kernel_seconds
from dsocr_analyze.timing.output_lengths import OutputLengths
from dsocr_analyze.timing.predict import TimedModel, predict
from dsocr_analyze.timing.prediction import PagePrediction
from dsocr_analyze.timing.runtimes import EAGER, SERVERS
from dsocr_analyze.timing.serving import ServedModel
from dsocr_analyze.workload import Workload

__all__ = ["TimedPage"]


class PricedKernel(NamedTuple):
    """A kernel with its sizes as text, the seconds of a call, and what bounds it."""

    operator: str
    sizes: str
    calls: int
    seconds: float
    bound: str


class TimedPage:
    """An A4 page at 150 dpi with 1,024 new tokens on an H100, for the templates.

    Attributes:
        fusions: What each kernel of a serving engine replaces.
        servers: The serving engines.
    """

    fusions, servers = FUSIONS, SERVERS

    def __init__(self) -> None:
        self.workload: Workload = DEFAULT.plan(page=(1240, 1754), max_new_tokens=1024)
        self.gpu = device("h100-sxm")
        self._dimensions: Any = ModelDirectory.read(DEFAULT.reference).dimensions()

    @cached_property
    def profiles(self) -> dict[str, Profile]:
        """All GPUs' profiles."""
        return dict(all_profiles())

    def _kernels(self, which: str) -> tuple[Kernel, ...]:
        """Kernels of a decode `step`, or of the `prompt`, as served."""
        served = ServedModel(DEFAULT, self._dimensions, BFLOAT16, self.gpu, SERVERS["vllm"])
        prompt = self.workload.seq_len
        if which == "step":
            return tuple(served.step_kernels(1, prompt + 1))
        return tuple(served.prompt_kernels(prompt, self.workload.visual_tokens))

    def priced(self, which: str) -> list[PricedKernel]:
        """The same with their seconds."""
        kernels = self._kernels(which)
        priced = kernel_seconds(kernels, self.gpu)
        found = []
        for number, kernel in enumerate(kernels):
            sizes = kernel.dimensions._asdict().items()
            stated = ("masked", "skippable_scores")
            text = ", ".join(f"{name} {size}" for name, size in sizes if name not in stated)
            bound = "memory" if priced.is_memory[number, 0] else "compute"
            seconds = float(priced.seconds[number, 0])
            found.append(PricedKernel(kernel.operator, text, kernel.calls, seconds, bound))
        return found

    def together(self, which: str) -> float:
        """Their seconds together."""
        return float(kernel_seconds(self._kernels(which), self.gpu).total[0])

    def predicted(self, runtime: str) -> PagePrediction:
        """The page under `serving` or `eager`."""
        model = TimedModel(DEFAULT, self._dimensions, BFLOAT16, False, self.gpu)
        prepared = estimated_preprocessing(DEFAULT, self.workload)
        host = EAGER if runtime == "eager" else SERVERS["vllm"]
        lengths = OutputLengths.fixed(self.workload.max_new_tokens)
        return predict(model, self.workload, Assumptions(host, lengths, prepared, True), (1, 4, 16))
