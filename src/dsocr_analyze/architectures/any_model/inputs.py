"""Builds the inputs of a described model from its stages file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

from dsocr_analyze.architectures.any_model.description import (
    BATCH,
    KEYS,
    MODEL_DTYPE,
    TOKENS,
    Description,
    Input,
    Number,
    Run,
    TensorInput,
)
from dsocr_analyze.architectures.architecture import ForwardInputs
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload import Lengths

__all__ = ["prefill_inputs"]


_Given: TypeAlias = "torch.Tensor | Number | str | list[_Given]"
"""The value of an argument."""


@dataclass(frozen=True)
class _Prompts:
    """The prompts of a batch.

    Attributes:
        file: The stages file, for messages.
        device: Device of the tensors.
        dtype: The model's type.
        batch: Number of prompts.
        tokens: Tokens per prompt.
    """

    file: str
    device: torch.device
    dtype: torch.dtype
    batch: int
    tokens: int

    def value(self, key: str, described: Input) -> _Given:
        """The value of an argument."""
        if isinstance(described, tuple):
            return [self.value(key, item) for item in described]
        if isinstance(described, TensorInput):
            return self._tensor(key, described)
        return described

    def _tensor(self, key: str, described: TensorInput) -> torch.Tensor:
        dtype = self.dtype if described.dtype == MODEL_DTYPE else getattr(torch, described.dtype)
        if described.values is not None:
            tensor = torch.tensor(list(described.values), dtype=dtype, device=self.device)
        else:
            assert described.shape is not None, "either is given"
            named = {BATCH: self.batch, TOKENS: self.tokens, KEYS: self.tokens}
            shape = [named[each] if isinstance(each, str) else each for each in described.shape]
            if described.placed:
                row = _row(self.file, key, shape[-1], described.fill, described.placed)
                tensor = torch.tensor(row, dtype=dtype, device=self.device)
                tensor = tensor.repeat(*shape[:-1], 1)
            else:
                tensor = torch.full(shape, described.fill, dtype=dtype, device=self.device)
        if described.is_repeated and self.batch > 1:
            tensor = tensor.repeat(self.batch, *[1] * (tensor.dim() - 1))
        return tensor


def prefill_inputs(
    description: Description, device: torch.device, dtype: torch.dtype, lengths: Lengths
) -> ForwardInputs:
    """Keyword arguments of `generate`, or of forward for a model that does not decode.

    They are what a processor returns: the prompt's ids, their mask, and the described inputs.

    Args:
        description: The model's stages file.
        device: Device of the model.
        dtype: Type of the model.
        lengths: Tokens per prompt, and number of prompts.
    """
    prompt, tokens = description.prompt, lengths.seq_len
    run = _Prompts(description.file, device, dtype, lengths.batch_size, tokens)
    given: ForwardInputs = {}
    if prompt is not None:
        row = _row(description.file, "prompt", tokens, prompt.fill, prompt.placed)
        ids = torch.tensor([row], dtype=torch.long, device=device).repeat(run.batch, 1)
        given[prompt.argument] = ids
        if prompt.argument == "input_ids":
            given["attention_mask"] = torch.ones_like(ids)
        given = {name: value for name, value in given.items() if name not in prompt.without}
    return given | {key: run.value(key, each) for key, each in description.inputs.items()}


def _row(file: str, key: str, length: int, fill: Number, placed: tuple[Run, ...]) -> list[Number]:
    """A row of one value, except for other values at some positions.

    Raises:
        WorkloadError: A position is beyond its end.
    """
    row = [fill] * length
    for run in placed:
        if run.start + run.count > length:
            raise WorkloadError(
                f"{file}: '{key}.placed' puts {run.value} {run.count} times at {run.start}, beyond"
                f" the end of {length} positions; give at least {run.start + run.count}"
            )
        row[run.start : run.start + run.count] = [run.value] * run.count
    return row
