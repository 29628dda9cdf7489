"""Counts a workload with the requested engine."""

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
        dtype: Data type of weights and activations.
        flash_attention: Whether FlashAttention-2 replaces the decoder's eager attention.
        device: Device on which a trace runs the model.
        trust_remote_code: Whether a trace may execute the directory's code without a trust record.
        time: Predictions to add to every report; None for none.
    """

    name: str
    directory: ModelDirectory
    dtype: str = "bfloat16"
    flash_attention: bool = False
    device: str = "meta"
    trust_remote_code: bool = False
    time: TimeRequest | None = None

    def report(self, workload: AnyWorkload) -> Report:
        """The report of a workload, with a trace's progress shown on a terminal."""
        if self.time is None:
            return self._counted(workload)
        import msgspec

        # Both engines give equal records, so the closed forms' are timed for either; and they are
        # timed first, so that errors show before a long trace.
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
        """The workload for closed forms; raises ConfigError if the model has none."""
        if isinstance(workload, Workload):
            return workload
        self.directory.dimensions()
        raise AssertionError("a model that reads no pages has no dimensions")

    @cached_property
    def session(self) -> DeepSeekOCRSession:
        """The model, loaded on first use."""
        self.directory.check_values()  # raises before trying to build an impossible model
        start_torch()
        from dsocr_analyze.session import DeepSeekOCRSession

        return DeepSeekOCRSession.from_directory(
            self.directory,
            device=self.device,
            dtype=self.dtype,
            flash_attention=self.flash_attention,
            trust_remote_code=self.trust_remote_code,
        )
