"""The two engines, which Python and the command line go through alike."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.forking import importing
from dsocr_analyze.workload import Workload

if TYPE_CHECKING:
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
        name: One of `ENGINES`: the model under hooks, compared with the tape, or the tape alone.
        directory: The model.
        dtype: Data type of weights and activations.
        flash_attention: Whether FlashAttention-2 replaces the decoder's eager attention.
        device: Device on which a trace runs the model.
        trust_remote_code: Whether a trace may execute the directory's code without a trust record.

    Raises:
        WorkloadError: There is no engine of that name.
    """

    name: str
    directory: ModelDirectory
    dtype: str = "bfloat16"
    flash_attention: bool = False
    device: str = "meta"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise WorkloadError(f"engine {self.name!r} is unknown; use 'trace' or 'analytic'")

    def announced(self) -> AbstractContextManager[Callable[[str], None]]:
        """What is called with the name of each step of a trace as it starts."""
        return nullcontext(lambda _: None)

    def report(self, workload: AnyWorkload) -> Report:
        """The report of a workload.

        Raises:
            AnalyzeError: A subclass names what is wrong with the model or the workload.
        """
        if self.name == "trace":
            with self.announced() as announce:
                announce("importing torch, building the model")
                return self.session.analyze(workload, on_progress=announce)
        from dsocr_analyze.analytic import page_figures
        from dsocr_analyze.report.build import build_report

        figures = page_figures(
            self.directory,
            self.page(workload),
            dtype=self.dtype,
            flash_attention=self.flash_attention,
        )
        return build_report(figures, None, dt.datetime.now(dt.UTC))

    def page(self, workload: AnyWorkload) -> Workload:
        """The workload for the tape; raises ConfigError if the model has no forward on it."""
        if isinstance(workload, Workload):
            return workload
        self.directory.dimensions()
        raise AssertionError("a model that reads no pages has no dimensions")

    @cached_property
    def session(self) -> DeepSeekOCRSession:
        """The model, loaded on first use."""
        with importing():  # here because it imports torch
            from dsocr_analyze.session import DeepSeekOCRSession

        return DeepSeekOCRSession.from_directory(
            self.directory,
            device=self.device,
            dtype=self.dtype,
            flash_attention=self.flash_attention,
            trust_remote_code=self.trust_remote_code,
        )
