"""Any transformers model described by a stages file, traced like the known architectures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from dsocr_analyze.architectures.any_model.description import (
    BATCH,
    KEYS,
    MODEL_DTYPE,
    TOKENS,
    Description,
    Input,
    Number,
    PlacedValue,
    TensorInput,
    read_description,
)
from dsocr_analyze.architectures.architecture import Architecture, ForwardInputs
from dsocr_analyze.architectures.config_file import Config
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload import BOUNDS, LARGEST_COUNT, Lengths, check_count

if TYPE_CHECKING:
    import torch

__all__ = ["DescribedModel", "described_architecture", "undescribed"]

_MOST_IDS: Final = 1 << 24
"""Of all prompts together; their values may be asked for, and then fill 128 MiB."""


def described_architecture(path: Path) -> Architecture:
    """The architecture of a stages file (docs/any-model.md); raises ConfigError if it is none."""
    return DescribedModel(read_description(path))


def undescribed(config: Config, model_class: str | None = None) -> Architecture:
    """An architecture without stages or inputs, of which only the modules can be shown.

    It builds `model_class`, or the config's class.
    """
    name = str(config.get("model_type"))
    return DescribedModel(Description("", name, model_class, "eager", None, (), None, {}, False))


class DescribedModel(Architecture):
    """A model that a stages file describes."""

    def __init__(self, description: Description) -> None:
        prompt, self.description = description.prompt, description
        self.name = self.title = description.name
        self.stages, self.routed_expert = description.stages, description.routed_expert
        self.text_tokens = 0 if prompt is None else prompt.tokens
        if description.decodes:
            self.generate = prompt
        self.left_out_where_unknown = frozenset({"attention_mask"} - set(description.inputs))
        self.model_class, self.attention = description.model_class, description.attention

    def plan(
        self,
        *,
        seq_len: int | None = None,
        batch_size: int = 1,
        max_new_tokens: int = 1024,
        prompt_pages: int = 1,
        **of_pages: tuple[int, int] | int | None,
    ) -> Lengths:
        """Plans the lengths of a run; raises WorkloadError for impossible ones, or for a page."""
        description, prompt = self.description, self.description.prompt
        of_pages["prompt_pages"] = None if prompt_pages == 1 else prompt_pages
        for name, value in of_pages.items():
            if value is not None:
                raise WorkloadError(
                    f"{name} applies only to models that read pages; the inputs of"
                    f" {description.name} are in {description.file}",
                    arguments=[name],
                )
        if seq_len is None:
            seq_len = 0 if prompt is None else prompt.tokens
        elif prompt is None:
            raise WorkloadError(
                f"seq_len {seq_len} is not supported: {description.file} has no 'prompt'",
                arguments=["seq_len"],
            )
        else:
            check_count("seq_len", seq_len, 1, LARGEST_COUNT, " tokens")
        check_count("batch_size", batch_size, 1, LARGEST_COUNT, " prompts")
        if batch_size * seq_len > _MOST_IDS:
            raise WorkloadError(
                f"batch_size {batch_size} is too large to trace at {seq_len} tokens each; give at"
                f" most {_MOST_IDS // seq_len}",
                arguments=["batch_size"],
            )
        check_count("max_new_tokens", max_new_tokens, *BOUNDS["max_new_tokens"])
        return Lengths(seq_len, batch_size, max_new_tokens if description.decodes else 0)

    def notes_of(self, workload: Lengths) -> list[str]:
        """Notes for a reader of a workload's figures, one line each."""
        description = self.description
        notes = [f"{description.name} has no closed forms: its figures come from the trace alone"]
        if description.has_decode_table:
            notes.append(
                f"'decode' in {description.file} is not used: generate() chooses the cache and the"
                " arguments of every step"
            )
        if not description.decodes:
            notes.append(
                f"{description.file} has no stage with the role 'decode': the model's stages form"
                " one pass of its forward, and generate() is not called"
            )
        return notes

    def prefill_inputs(
        self, device: torch.device, dtype: torch.dtype, lengths: Lengths
    ) -> ForwardInputs:
        """Arguments of `generate`, or of forward for a model that does not decode.

        They are what a processor returns: the prompt's ids, their mask, the described inputs.
        """
        import torch

        file, prompt, tokens = self.description.file, self.description.prompt, lengths.seq_len
        run = _Prompts(file, device, dtype, lengths.batch_size, tokens)
        given: ForwardInputs = {}
        if prompt is not None:
            row = _row(file, "prompt", tokens, prompt.fill, prompt.placed)
            ids = torch.tensor([row], dtype=torch.long, device=device).repeat(run.batch, 1)
            given[prompt.argument] = ids
            if prompt.argument == "input_ids":
                given["attention_mask"] = torch.ones_like(ids)
            given = {name: value for name, value in given.items() if name not in prompt.without}
        described = self.description.inputs.items()
        return given | {key: run.value(key, each) for key, each in described}


_Given: TypeAlias = "torch.Tensor | Number | str | list[_Given]"
"""The value of an argument."""


@dataclass(frozen=True)
class _Prompts:
    """The prompts of a batch: how many, of how many tokens each; the model's device and type."""

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
        import torch

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


def _row(
    file: str, key: str, length: int, fill: Number, placed: tuple[PlacedValue, ...]
) -> list[Number]:
    """A row of one value but for some positions; WorkloadError for one beyond its end."""
    row = [fill] * length
    for run in placed:
        if run.start + run.count > length:
            raise WorkloadError(
                f"{file}: '{key}.placed' puts {run.value} {run.count} times at {run.start}, beyond"
                f" the end of {length} positions; give at least {run.start + run.count}"
            )
        row[run.start : run.start + run.count] = [run.value] * run.count
    return row
