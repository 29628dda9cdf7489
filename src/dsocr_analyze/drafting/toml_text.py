"""Writes a description of a model as a stages file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dsocr_analyze.architectures.any_model.description import (
    MODEL_DTYPE,
    Description,
    Prompt,
    Run,
    TensorInput,
)
from dsocr_analyze.architectures.stages import Stage

__all__ = ["toml_text"]

_STAGE_NOTES: Final[Mapping[str, str]] = {
    "prefill": "the rest of the first pass",
    "decode": "one step, which computes the logits of one token",
    "model": "the one pass of a model that generates nothing",
}


def toml_text(
    description: Description, opening: list[str], notes: Mapping[str, str], expert: str | None
) -> str:
    """The file's text.

    Args:
        description: What it says.
        opening: Lines of comment at its top.
        notes: What to say about the prompt (`prompt`) and about inputs, by their names.
        expert: The path of routed experts with stars; None without any.
    """
    lines = [f"# {line}" for line in opening]
    lines.append(f"name = {_shown(description.name)}")
    if description.model_class is not None:
        lines.append(f"class = {_shown(description.model_class)}")
    if expert is not None:
        lines.append(f"routed_expert = {_shown(expert)}")
    for stage in description.stages:
        lines += ["", *_stage(stage)]
    if description.prompt is not None:
        lines += ["", "[prompt]", *_prompt(description.prompt, notes.get("prompt"))]
    for name, value in description.inputs.items():
        assert isinstance(value, TensorInput), "every rule of a draft gives a tensor"
        lines += ["", f"[inputs.{name}]", *_tensor(value, notes.get(name))]
    return "\n".join([*lines, ""])


def _shown(value: Any) -> str:
    """A value as in TOML, which for these is as in JSON."""
    return json.dumps(value)


def _stage(stage: Stage) -> Iterator[str]:
    yield "[[stages]]"
    note = _STAGE_NOTES.get(stage.name)
    yield f"name = {_shown(stage.name)}" + (f"  # {note}" if note else "")
    yield f"prefixes = {_shown(list(stage.prefixes))}"
    if stage.role != "vision":
        yield f"role = {_shown(stage.role)}"


def _prompt(prompt: Prompt, note: str | None) -> Iterator[str]:
    yield f"tokens = {prompt.tokens}" + (f"  # {note}" if note else "")
    if prompt.argument != "input_ids":
        yield f"argument = {_shown(prompt.argument)}"
    if prompt.fill:
        yield f"fill = {prompt.fill}"
    yield from _placed(prompt.placed)


def _placed(runs: tuple[Run, ...]) -> Iterator[str]:
    if runs:
        yield "placed = ["
        for run in runs:
            yield f"  {{ value = {run.value}, start = {run.start}, count = {run.count} }},"
        yield "]"


def _tensor(value: TensorInput, note: str | None) -> Iterator[str]:
    key, items = ("shape", value.shape) if value.values is None else ("values", value.values)
    yield f"{key} = {_shown(items)}" + (f"  # {note}" if note else "")
    if value.dtype != MODEL_DTYPE and value.values is None:
        yield f"dtype = {_shown(value.dtype)}"
    if value.fill != 1:
        yield f"fill = {value.fill}"
    yield from _placed(value.placed)
    if value.is_repeated:
        yield 'repeat = "batch"'
