"""Formulas and cases of a whole model: its vision side over all views, then the decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.figures import StageFigures
from dsocr_analyze.knowledge.families.decoder_stack import (
    stack_formulas,
    stack_symbols,
    stack_values,
    with_head,
)
from dsocr_analyze.knowledge.machinery.evidence import all_values
from dsocr_analyze.knowledge.machinery.facts import Facts, below_model
from dsocr_analyze.knowledge.machinery.notation import evaluate
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Page, Symbol
from dsocr_analyze.running.forward import running
from dsocr_analyze.workload import DecodeStep

__all__ = ["Step", "WholeModel"]

_SYMBOLS: Final = {
    "Mv": Symbol("M_{vision}", "MACs of the vision stages over all views, by their pages"),
    "Vv2": Symbol("V_{vision}", "their vector FLOPs"),
    "Av2": Symbol("A_{vision}", "their matrix outputs"),
    "Pv": Symbol("P_{vision}", "their parameters"),
    "px": Symbol("n_{px}", "values of the views, summed to check whether there is an image"),
}
_GRID: Final = Symbol("n_{cut}", "1 if the page is cut: its grid's sides are multiplied, 3 times")


@dataclass(frozen=True, slots=True)
class Step:
    """A decode step that the page states.

    Attributes:
        label: Its name in tables.
        step: Position and number of the step.
        cache: Returns the cache before the step.
        values: Values of the symbols that only some relatives have.
    """

    label: str
    step: DecodeStep
    cache: Callable[[], Any]
    values: Mapping[str, int]


@dataclass(frozen=True)
class WholeModel:
    """A relative's model, with or without its head.

    Attributes:
        facts: The model.
        vision_pages: The pages of its vision stages.
        head: Whether the model includes its head.
        multiplies_grid: Whether views are laid out by the columns and rows of their grid.
        steps: Decode steps; None for the first step only.
        prompt_values: Values of the symbols that only some relatives have, in the prefill pass.
        more_symbols: Those symbols; they override the decoder's symbols of the same name.
    """

    facts: Facts
    vision_pages: Sequence[Page]
    head: bool
    multiplies_grid: bool = True
    steps: Sequence[Step] | None = None
    prompt_values: Mapping[str, int] = field(default_factory=dict)
    more_symbols: Mapping[str, Symbol] = field(default_factory=dict)

    @property
    def symbols(self) -> dict[str, Symbol]:
        """Symbols of the formulas."""
        grid = {"cut": _GRID} if self.multiplies_grid else {}
        stack = stack_symbols(self.facts, layers=True)
        known = {name: symbol for name, symbol in stack.items() if name not in self.more_symbols}
        return {**self.more_symbols, **known, **_SYMBOLS, **grid}

    @property
    def formulas(self) -> Formulas:
        """Cost of the model."""
        stack, separators = stack_formulas(self.facts), len(self._unassigned)
        grid = " + 3 * cut" if self.multiplies_grid else ""
        model = Formulas(
            macs=f"Mv + {stack.macs}",
            vector_flops=f"Vv2 + px{grid} + {stack.vector_flops}",
            params=f"Pv + {separators} * d + {stack.params}",
            activations=f"Av2 + {stack.activations}",
            cache_bytes=stack.cache_bytes,
        )
        if not self.head:
            return model
        return with_head(model, "V", shares_weights=self.facts.decoder.tie_word_embeddings)

    @property
    def cases(self) -> tuple[Case, ...]:
        """The prefill pass, and the decode steps."""
        return (self._prefill(), *map(self._decode, self.steps or (self._first_step(),)))

    @property
    def _unassigned(self) -> Mapping[str, int]:
        return self.facts.analytic.parameters.unassigned

    def _build(self) -> Any:
        model = self.facts.whole_model()
        return model if self.head else model.model

    def _alike(self) -> Callable[[str], str | None]:
        return self.facts.alike("" if self.head else "model")

    def _closed(self, kernels: Kernels) -> Kernels:
        return kernels if self.head else below_model(kernels)

    def _prefill(self) -> Case:
        facts = self.facts
        *stages, _ = facts.analytic.stages.values()

        def inputs() -> Mapping[str, Any]:
            session, device = facts.session, facts.session.loaded.device
            with running(device):  # where the numbers that fill pixels are known
                return facts.architecture.prefill_inputs(
                    device, session.loaded.dtype, facts.workload
                )

        vision = {
            **self._vision(),
            "px": _pixels(facts),
            "cut": int(facts.workload.local_views is not None),
        }
        lengths = {"T": facts.tokens, "K": facts.tokens}
        return Case(
            "prefill",
            {**stack_values(facts), **vision, **lengths, **self.prompt_values},
            self._build,
            keywords=inputs,
            closed_form=lambda: self._closed(_kernels_of(stages)),
            alike=self._alike(),
        )

    def _first_step(self) -> Step:
        facts = self.facts
        return Step(
            "decode step",
            DecodeStep(facts.tokens, 1),
            lambda: facts.cache(facts.decoder.layers, facts.tokens),
            {},
        )

    def _decode(self, stated: Step) -> Case:
        facts, step = self.facts, stated.step

        def inputs() -> Mapping[str, Any]:
            device = facts.session.loaded.device
            with running(device):
                given = facts.architecture.decode_inputs(device, facts.workload, step.position)
            return {**given, "past_key_values": stated.cache()}

        vision = dict.fromkeys((*_SYMBOLS, "cut"), 0) | {"Pv": self._vision()["Pv"]}
        return Case(
            stated.label,
            {**stack_values(facts), **vision, "T": 1, "K": step.keys, **stated.values},
            self._build,
            keywords=inputs,
            closed_form=lambda: self._closed(self._step_kernels(step)),
            alike=self._alike(),
        )

    def _step_kernels(self, step: DecodeStep) -> Kernels:
        *_, decode = self.facts.analytic.stages.values()
        if step.number == 1:
            return decode.kernels
        overwrites = step.slot is not None
        return self.facts.decoder_kernels(1, step.keys - 1, overwrites=overwrites)

    def _vision(self) -> dict[str, int]:
        """MACs, vector FLOPs and matrix outputs over all views, and parameters, from the pages."""
        facts = self.facts
        sums = dict.fromkeys(("Mv", "Vv2", "Av2", "Pv"), 0)
        pages = {page.name: page for page in self.vision_pages}
        for stage in facts.architecture.stages:
            if stage.role != "vision":
                continue
            page = pages[facts.class_at(stage.prefixes[0]).__name__]
            if page.formulas is None or not page.runs_given_config:  # it shows another variant
                figures = facts.analytic.stages[stage.name]
                sums["Mv"] += figures.work.macs
                sums["Vv2"] += figures.work.vector_flops
                sums["Av2"] += figures.work.activations
                sums["Pv"] += figures.params
                continue
            for index, case in enumerate(page.cases):
                values = all_values(page, case)
                sums["Mv"] += evaluate(page.formulas.macs, values)
                sums["Vv2"] += evaluate(page.formulas.vector_flops, values)
                sums["Av2"] += evaluate(page.formulas.activations, values)
                if not index:
                    sums["Pv"] += evaluate(page.formulas.params, values)
        return sums


def _kernels_of(stages: Sequence[StageFigures]) -> Kernels:
    return tuple(kernel for stage in stages for kernel in stage.kernels)


def _pixels(facts: Facts) -> int:
    """Pixel values summed to check whether there is an image, and local views."""
    views = sum(view.count * view.resolution**2 for view in facts.workload.views)
    blank = 0 if facts.workload.local_views else facts.workload.base_size**2
    return facts.channels * (views + blank)
