"""The model that documents are written from: each of its modules on a tape and in a trace."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import takewhile
from typing import Any, Final

import dsocr_analyze.architectures.deepseek_ocr_2.named_sizes  # noqa: F401  # registers
from dsocr_analyze.architectures import DEFAULT, deepseek_ocr, unlimited_ocr
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.deepseek_ocr_2.network import NETWORK as OCR2
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.named_sizes import Part, named_part
from dsocr_analyze.architectures.ocr_family.network import Network, ViewFeatures
from dsocr_analyze.architectures.ocr_family.page import pixels_of, whole_model
from dsocr_analyze.documents.cases import Case
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.figures import StageFigures
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.tape.formula import FormulaTape
from dsocr_analyze.tape.polynomial import Size
from dsocr_analyze.trace.module_calls import CallRecorder
from dsocr_analyze.trace.passes import PassTraces, trace_passes
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.summary import stage_figures
from dsocr_analyze.workload import ViewBatch, Workload, parse_page

__all__ = ["DocumentedModel", "Run"]

_NETWORKS: Final[Mapping[str, Network]] = {
    "deepseek-ocr": deepseek_ocr.NETWORK,
    "deepseek-ocr-2": OCR2,
    "unlimited-ocr": unlimited_ocr.NETWORK,
}


@dataclass(frozen=True)
class Run:
    """Part of a page's passes, on a tape and in a trace.

    Attributes:
        label: What it is called in tables.
        parts: The parts of the model that it runs, by stage.
        tape: The tape.
        trace: The trace of the pass that it belongs to.
        turn: Which call of its modules in that pass is meant.
    """

    label: str
    parts: Mapping[str, Part]
    tape: FormulaTape
    trace: Trace
    turn: int = 0


class DocumentedModel:
    """The reference model of an architecture with one config, and the stated page.

    Args:
        architecture: The architecture.
        config: Values to use instead of its published `config.json`; None for those.
    """

    def __init__(
        self, architecture: Architecture = DEFAULT, config: dict[str, Any] | None = None
    ) -> None:
        directory = ModelDirectory.read(architecture.reference)
        if config is not None:
            directory = directory.with_config(config)
        self.architecture, self.is_published = architecture, config is None
        # Raises an error for a wrong config before anything runs.
        self.dimensions: Any = directory.dimensions()
        self._directory = directory
        self.workload: Workload = architecture.plan(page=parse_page("a4"), max_new_tokens=2)
        self.network = _NETWORKS[architecture.name]

    # --- the model

    @cached_property
    def session(self) -> DeepSeekOCRSession:
        """The model as built; other documents ask only for its dimensions."""
        return DeepSeekOCRSession.from_directory(self._directory)

    @property
    def config(self) -> Any:
        """The config of the model as built."""
        return self.session.model.config

    @cached_property
    def classes(self) -> dict[str, list[str]]:
        """Paths of the modules of each class, in order."""
        found: dict[str, list[str]] = {}
        for path, module in self.session.model.named_modules():
            found.setdefault(type(module).__name__, []).append(path)
        return found

    @cache  # noqa: B019  # a model lives as long as the process
    def params(self, path: str) -> int:
        """Parameters of a module."""
        return sum(each.numel() for each in self.session.model.get_submodule(path).parameters())

    def get(self, name: str) -> Any:
        """A class or function of the model's own files or those it builds on; None for none."""
        found = (getattr(module, name, None) for module in self._files)
        return next((each for each in found if each is not None), None)

    @cached_property
    def _files(self) -> list[types.ModuleType]:
        mro = type(self.session.model).__mro__
        own = takewhile(lambda each: not each.__module__.startswith("transformers."), mro)
        packages = dict.fromkeys(each.__module__.rpartition(".")[0] + "." for each in own)
        return [
            module
            for package in packages
            for name, module in tuple(sys.modules.items())
            if name.startswith(package) and "." not in name[len(package) :]
        ]

    # --- its passes

    @property
    def step_numbers(self) -> dict[str, int]:
        """The decode steps that pages show, by label: the first, and those around a full window."""
        window = self.dimensions.sliding_window
        if window is None:
            return {"decode step": 0}
        last = {"decode step that fills the window": window - 1} if window > 1 else {}
        return {"first decode step": 0, **last, "decode step that overwrites": window}

    @cached_property
    def traces(self) -> PassTraces:
        """The passes of the stated page, with every module's calls."""
        return trace_passes(
            self.session.loaded,
            self.workload,
            self.architecture,
            step_numbers=tuple(self.step_numbers.values()),
            repeats=self.architecture.forms.repeats(self.dimensions),
            recorder_type=CallRecorder,
        )

    @cached_property
    def stages(self) -> dict[str, StageFigures]:
        """Figures of every stage."""
        return stage_figures(self.traces, self.architecture.stages, self.session.own_params)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The views of the page, the prompt, and decode steps."""
        views = [self._views(turn, view) for turn, view in enumerate(self.workload.views)]
        steps = zip(self.step_numbers.items(), self.traces.decode_steps, strict=True)
        return (
            *reversed(views),
            self._pass("prefill", self.traces.prefill, T=self.workload.seq_len),
            *(self._step(label, number, trace) for (label, number), trace in steps),
        )

    def _views(self, turn: int, view: ViewBatch) -> Run:
        N, q = view.count, view.resolution // 64
        sam, sizes = named_part("sam", self.dimensions.sam, N=N, q=q)
        parts = {"sam": sam}
        for name in ("clip", "encoder", "projector"):
            if hasattr(self.dimensions, name):
                parts[name], _ = named_part(name, getattr(self.dimensions, name), N=N, q=q)
        named = {name: part.dimensions for name, part in parts.items()}
        sam.values["R"] = view.resolution
        c, tape = replace(self.dimensions, **named), FormulaTape(BFLOAT16)
        # Views have 64 pixels for each token.
        size: Mapping[str, Size] = sizes
        views = ViewBatch(size["N"], 64 * size["q"])
        tape.path = "model"
        self.network.encode(tape, ViewFeatures(), pixels_of(tape, views), views, c)
        label = "global view" if view is self.workload.global_view else "local views"
        return Run(label, parts, tape, self.traces.prefill, turn)

    def _step(self, label: str, number: int, trace: Trace) -> Run:
        window, K = self.dimensions.sliding_window, self.workload.seq_len + number + 1
        if window is None or number < window:
            return self._pass(label, trace, T=1, K=K)
        return self._pass(label, trace, overwrites=True, T=1, K=self.workload.seq_len + window)

    def _pass(self, label: str, trace: Trace, *, overwrites: bool = False, **sizes: int) -> Run:
        part, named = named_part("decoder", self.dimensions.decoder, B=1, **sizes)
        c, tape = replace(self.dimensions, decoder=part.dimensions), FormulaTape(BFLOAT16)
        part.values.setdefault("K", part.values["T"])
        past: Size = named["K"] - named["T"] if "K" in named else 0
        p = Pass(named["B"], named["T"], past, overwrites=overwrites)
        whole_model(tape, self.network, c, p, None if "K" in named else self.workload)
        return Run(label, {"decoder": part}, tape, trace)

    # --- its modules

    def part_of(self, path: str) -> str:
        """The part of the model that a module belongs to: its stage, or `decoder`."""
        stage = self.architecture.owner_of(path)
        return stage if stage in {each.name for each in self.network.vision} else "decoder"

    def cases(self, paths: Mapping[str, str]) -> Iterator[Case]:
        """The calls of modules in the passes of the page.

        Args:
            paths: Labels by path; an empty label for none.
        """
        for run in self.runs:
            for path, label in paths.items():
                part = run.parts.get(self.part_of(path))
                # An equal call of an earlier pass is not recorded again.
                calls = run.trace.modules.get(path)
                if part is None or path not in run.tape.modules or not calls:
                    continue
                whole = next(each for each in self.runs if path in each.tape.modules)
                yield Case(
                    ", ".join(filter(None, (run.label, label))),
                    part,
                    run.tape.modules[path][0],
                    whole.tape.modules[path][0].params,
                    calls[min(run.turn, len(calls) - 1)],
                    self.params(path),
                )
