"""The page whose seconds a document works through."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family.served import FUSIONS
from dsocr_analyze.hardware.profile import all_profiles, device
from dsocr_analyze.kernels import BFLOAT16, Kernel
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing import TimeEntry, assumptions, predict, serving
from dsocr_analyze.timing.kernel_seconds import Duration, kernel_seconds
from dsocr_analyze.timing.runtimes import EAGER, SERVERS, all_served_modes


class TimedPage:
    """An A4 page at 150 dpi with 1,024 new tokens on an H100, for the templates.

    Attributes:
        fusions: What each kernel of a serving engine replaces.
        servers: The serving engines.
        served_modes: The modes that they offer, by architecture.
        profiles: All GPUs' profiles.
    """

    fusions, servers, served_modes = FUSIONS, SERVERS, all_served_modes()

    def __init__(self) -> None:
        dimensions = ModelDirectory.read(DEFAULT.reference).dimensions()
        self.workload: Any = DEFAULT.plan(page=(1240, 1754), max_new_tokens=1024)
        self.gpu, self.profiles = device("h100-sxm"), dict(all_profiles())
        self._model = serving.TimedModel(DEFAULT, dimensions, BFLOAT16, False, self.gpu)

    @cache  # noqa: B019  # a page lives as long as the process
    def kernels(
        self, which: str, gpu: str = "h100-sxm", server: str = "vllm"
    ) -> list[tuple[Kernel, Mapping[str, Any], float, bool]]:
        """Kernels of a decode `step` or of the `prompt`, as served.

        With their sizes by name, seconds of a call, and whether memory bounds it.
        """
        model = replace(self._model, device=self.profiles[gpu])
        served = serving.ServedModel(model, SERVERS[server])
        kernels = (
            served.step_kernels(1, self.workload.seq_len + 1)
            if which == "step"
            else served.prompt_kernels(self.workload.seq_len, self.workload.visual_tokens)
        )
        priced = kernel_seconds(kernels, served.device)
        return [
            (each, each.dimensions._asdict(), seconds, is_memory)
            for each, seconds, is_memory in zip(
                kernels, priced.seconds, priced.is_memory, strict=True
            )
        ]

    @cache  # noqa: B019  # a page lives as long as the process
    def predicted(self, runtime: str) -> tuple[TimeEntry, Mapping[str, Duration]]:
        """The page under a runtime or server, and what its stages' seconds are made of."""
        hosts = {"eager": EAGER, "serving": SERVERS["vllm"], **SERVERS}
        times = predict.times_of(
            self._model, self.workload, assumptions.Assumptions(hosts[runtime]), (1, 4, 16)
        )
        return predict.entry_of(times), times.alone.stages
