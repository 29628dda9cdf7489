"""A workload counted by the engine that was asked for."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dsocr_analyze.cli.progress import announced_steps
from dsocr_analyze.cli.torch_start import start_torch
from dsocr_analyze.workload import Workload

if TYPE_CHECKING:
    from dsocr_analyze.cli.time_options import TimeRequest
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.session import DeepSeekOCRSession
    from dsocr_analyze.workload import AnyWorkload

__all__ = ["ENGINES", "Engine"]

ENGINES = ("trace", "analytic")


@dataclass(frozen=True)
class Engine:
    """One engine on one model.

    Attributes:
        name: One of `ENGINES`.
        directory: The model.
        dtype: Type of weights and activations.
        flash_attention: FlashAttention-2 in the decoder instead of eager attention.
        device: Where a trace runs the model.
        trust_remote_code: Whether a trace may execute the directory's code without a record.
        time: Predictions that were asked for with every report; None for none.
    """

    name: str
    directory: ModelDirectory
    dtype: str = "bfloat16"
    flash_attention: bool = False
    device: str = "meta"
    trust_remote_code: bool = False
    time: TimeRequest | None = None

    def report(self, workload: AnyWorkload) -> Report:
        """The report of a workload; what a trace is doing is shown to whoever waits for it."""
        if self.time is None:
            return self._counted(workload)
        import msgspec

        # The records of both engines are equal, so the closed forms' are timed for either; and
        # first, since that is refused sooner than a trace is done.
        architecture = self.directory.architecture
        entries = self.time.entries(
            architecture, self.directory.dimensions(), self._page(workload),
            dtype=self.dtype, flash_attention=self.flash_attention,
        )  # fmt: skip
        return msgspec.structs.replace(self._counted(workload), time=entries)

    def _counted(self, workload: AnyWorkload) -> Report:
        if self.name == "analytic":
            from dsocr_analyze.analytic import page_figures
            from dsocr_analyze.report.build import build_report

            figures = page_figures(
                self.directory,
                self._page(workload),
                dtype=self.dtype,
                flash_attention=self.flash_attention,
            )
            return build_report(figures, None, dt.datetime.now(dt.UTC))
        with announced_steps() as announce:
            announce("importing torch, building the model")
            return self.session.analyze(workload, on_progress=announce)

    def _page(self, workload: AnyWorkload) -> Workload:
        """What closed forms are asked of; raises ConfigError of a model that has none."""
        if isinstance(workload, Workload):
            return workload
        self.directory.dimensions()
        raise AssertionError("a model that reads no pages has no dimensions")

    @cached_property
    def session(self) -> DeepSeekOCRSession:
        """The model, loaded on first use."""
        self.directory.check_values()  # what cannot be built is refused before it is tried
        start_torch()
        from dsocr_analyze.session import DeepSeekOCRSession

        return DeepSeekOCRSession.from_directory(
            self.directory,
            device=self.device,
            dtype=self.dtype,
            flash_attention=self.flash_attention,
            trust_remote_code=self.trust_remote_code,
        )
