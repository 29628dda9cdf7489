"""Builds the inputs of a described model's forward from its stages file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsocr_analyze.architectures.any_model.description import (
    BATCH,
    KEYS,
    MODEL_DTYPE,
    TOKENS,
    Description,
    Input,
    Number,
    Prompt,
    Run,
    TensorInput,
)
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload import Lengths

__all__ = ["decode_inputs", "prefill_inputs"]


@dataclass(frozen=True)
class _Pass:
    """Inputs of one pass.

    Attributes:
        file: The stages file, for messages.
        device: Device of the tensors.
        dtype: The model's type.
        batch: Number of prompts.
        tokens: Tokens per prompt passed to the model.
        keys: Positions up to the last of these.
    """

    file: str
    device: torch.device
    dtype: torch.dtype | None
    batch: int
    tokens: int
    keys: int

    def value(self, key: str, described: Input) -> Any:
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
            shape = [self._size(size) for size in described.shape]
            if described.placed:
                row = _row(self.file, key, shape[-1], described.fill, described.placed)
                tensor = torch.tensor(row, dtype=dtype, device=self.device)
                tensor = tensor.repeat(*shape[:-1], 1)
            else:
                tensor = torch.full(shape, described.fill, dtype=dtype, device=self.device)
        if described.is_repeated and self.batch > 1:
            tensor = tensor.repeat(self.batch, *[1] * (tensor.dim() - 1))
        return tensor

    def _size(self, size: int | str) -> int:
        named = {BATCH: self.batch, TOKENS: self.tokens, KEYS: self.keys}
        return named[size] if isinstance(size, str) else size

    def of_prompt(self, prompt: Prompt, ids: Sequence[Number]) -> dict[str, Any]:
        """What `generate` passes for token ids: the ids, a mask without padding, and positions."""
        family = prompt.argument.removesuffix("input_ids")
        mask = torch.ones(self.batch, self.keys, dtype=torch.long, device=self.device)
        positions = torch.arange(self.keys - self.tokens, self.keys, device=self.device)
        tokens = torch.tensor([ids], dtype=torch.long, device=self.device).repeat(self.batch, 1)
        return {
            prompt.argument: tokens,
            f"{family}attention_mask": mask,
            f"{family}position_ids": (mask.cumsum(-1) - 1)[:, -self.tokens :],
            "cache_position": positions,
        }


def prefill_inputs(
    description: Description, device: torch.device, dtype: torch.dtype, lengths: Lengths
) -> dict[str, Any]:
    """Keyword arguments of forward for the prefill pass, without the cache.

    Args:
        description: The model's stages file.
        device: Device of the model.
        dtype: Type of the model.
        lengths: Tokens per prompt, and number of prompts.
    """
    prompt, tokens = description.prompt, lengths.seq_len
    run = _Pass(description.file, device, dtype, lengths.batch_size, tokens, tokens)
    given: dict[str, Any] = {}
    if prompt is not None:
        ids = _row(description.file, "prompt", tokens, prompt.fill, prompt.placed)
        given = run.of_prompt(prompt, ids)
        if description.decode is None:
            given.pop("cache_position")
        else:
            given["use_cache"] = True
        given = _without(given, prompt.without)
    return given | _extra(run, description.inputs)


def decode_inputs(
    description: Description, device: torch.device, lengths: Lengths, position: int
) -> dict[str, Any]:
    """The same for one decode step, whose token has the given position.

    Args:
        description: The model's stages file.
        device: Device of the model.
        lengths: Tokens per prompt, and number of prompts.
        position: Position of the token, from 0: the number of tokens before it.
    """
    prompt, decode = description.prompt, description.decode
    assert prompt is not None, "what decodes has a prompt"
    assert decode is not None, "the model decodes"
    run = _Pass(description.file, device, None, lengths.batch_size, 1, position + 1)
    given = run.of_prompt(prompt, [prompt.fill]) | {"use_cache": True}
    return _without(given, decode.without) | _extra(run, decode.inputs)


def _extra(run: _Pass, inputs: Mapping[str, Input]) -> dict[str, Any]:
    return {key: run.value(key, described) for key, described in inputs.items()}


def _without(given: dict[str, Any], left_out: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in left_out}


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
