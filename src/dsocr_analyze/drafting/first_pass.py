"""Tries a description: runs the first pass on `meta`, and sees what goes into the text model."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch.overrides import TorchFunctionMode

from dsocr_analyze.architectures.any_model import DescribedModel
from dsocr_analyze.architectures.any_model.description import Description
from dsocr_analyze.architectures.stages import Stage, owner_among
from dsocr_analyze.errors import AnalyzeError, ModelCodeError
from dsocr_analyze.running.failures import blamed_on
from dsocr_analyze.running.forward import running
from dsocr_analyze.running.generation import Generation, left_as_it_was
from dsocr_analyze.running.loading import LoadedModel
from dsocr_analyze.running.process_settings import exclusive
from dsocr_analyze.running.torch_calls import Arguments, Keywords, Result, Value, tensors_in

__all__ = ["Tried", "said", "tried"]

_WRITES: Final = frozenset(
    {"masked_scatter", "masked_scatter_", "index_put", "index_put_", "__setitem__"}
)
"""How models put what a tower computed in the places of image or audio tokens."""


_MOST_COMPUTED: Final = 4
"""Of the last different numbers of rows that modules computed."""


@dataclass
class Tried:
    """What a first pass showed.

    Attributes:
        failure: Why it failed; None if it ran.
        ran: Paths of the modules that were called.
        put: Rows of the text model's width that were put in the place of tokens, by each write.
        computed: Rows that modules computed in that width, in order.
    """

    failure: AnalyzeError | None = None
    ran: set[str] = field(default_factory=set)
    put: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)

    def counts(self, width: int, known: set[int]) -> list[int]:
        """How many tokens the prompt may need, likeliest first.

        Args:
            width: Numbers per token.
            known: Counts that the prompt itself explains.
        """
        found = [*reversed(self.put)]
        text = said(self.failure)
        if set(self.computed) - known or "token" in text:
            # Models that compare the two numbers say them in what they raise.
            numbers = [int(each) for each in re.findall(r"\b\d+\b", text)]
            found += [each // width for each in numbers if each % width == 0] + numbers
            found += [*dict.fromkeys(reversed(self.computed))][:_MOST_COMPUTED]
        return [each for each in dict.fromkeys(found) if each > 0 and each not in known]


def said(failure: BaseException | None) -> str:
    """What the model itself raised."""
    while failure is not None and failure.__cause__ is not None:
        failure = failure.__cause__
    return str(failure or "")


class _Rows(TorchFunctionMode):
    """Notes the rows of a width that are written into another tensor."""

    def __init__(self, width: int, seen: Tried) -> None:
        super().__init__()
        self._width, self._seen = width, seen

    def __torch_function__(
        self,
        func: Callable[..., Result],
        types: Iterable[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Result:
        given = [*args, *(kwargs or {}).values()]
        if getattr(func, "__name__", "") in _WRITES and isinstance(given[-1], torch.Tensor):
            into, source = given[0], given[-1]
            if into.dim() > 1 and into.shape[-1] == self._width and into.is_floating_point():
                self._seen.put.append(source.numel() // self._width)
        return func(*args, **(kwargs or {}))


def _refuse_idle(model: LoadedModel, stages: Sequence[Stage], ran: set[str]) -> None:
    """Raises if a tower got nothing to do, because it takes an argument that was not given."""
    parameters = {name for name, _ in model.module.named_parameters()}
    for stage in stages:
        modules = [path for path in stage.prefixes if path not in parameters]
        if (
            stage.role == "vision"
            and modules
            and not any(owner_among((stage,), path) for path in ran)
        ):
            raise ModelCodeError(f"{modules[0]} did not run")


def tried(model: LoadedModel, description: Description, width: int) -> Tried:
    """Runs the first pass of a description.

    Args:
        model: The model on `meta`.
        description: How to call it.
        width: Numbers per token in the text model; 0 without one.
    """
    architecture = DescribedModel(description)
    model = replace(model, directory=replace(model.directory, described=architecture))
    seen = Tried()

    def note(path: str, _module: torch.nn.Module, _inputs: Arguments, output: Value) -> None:
        seen.ran.add(path)
        for found in tensors_in(output.values() if isinstance(output, dict) else (output,)):
            if found.dim() > 1 and found.shape[-1] == width:
                seen.computed.append(found.numel() // width)

    hooks = [
        each.register_forward_hook(functools.partial(note, path))
        for path, each in model.module.named_modules()
    ]
    try:
        with (
            exclusive(),
            blamed_on(model.directory, "failed"),
            left_as_it_was(model.module),
            running(model.device),
            _Rows(width, seen),
        ):
            lengths = architecture.plan(max_new_tokens=2)
            Generation(model, lengths, architecture, lambda: None).prefill()
        _refuse_idle(model, architecture.stages, seen.ran)
    except AnalyzeError as error:
        seen.failure = error
    finally:
        for hook in hooks:
            hook.remove()
    return seen
