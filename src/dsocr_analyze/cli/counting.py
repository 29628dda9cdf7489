"""Counts a workload with the requested engine, its progress shown and its seconds predicted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dsocr_analyze import engine
from dsocr_analyze.cli.progress import announced_steps, start_torch

if TYPE_CHECKING:
    from dsocr_analyze.cli.time_options import TimeRequest
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.session import DeepSeekOCRSession
    from dsocr_analyze.workload import AnyWorkload

__all__ = ["Engine"]


@dataclass(frozen=True)
class Engine(engine.Engine):
    """One engine on one model, as a command runs it.

    Attributes:
        time: Predictions to add to every report; None for none.
    """

    time: TimeRequest | None = None

    def announced(self) -> AbstractContextManager[Callable[[str], None]]:
        """Shows the steps of a trace on a terminal."""
        return announced_steps()

    def report(self, workload: AnyWorkload) -> Report:
        """The report of a workload, with the predictions."""
        import msgspec

        # Both engines give equal records, so the tape's are timed for either; and they are timed
        # first, so that errors show before a long trace.
        entries = () if self.time is None else self.time.entries(
            self.directory.architecture, self.directory.dimensions(), self.page(workload),
            dtype=self.dtype, flash_attention=self.flash_attention,
        )  # fmt: skip
        return msgspec.structs.replace(super().report(workload), time=entries)

    @cached_property
    def session(self) -> DeepSeekOCRSession:
        """The model, loaded on first use."""
        self.directory.check_values()  # raises before torch is imported
        start_torch()
        return super().session
