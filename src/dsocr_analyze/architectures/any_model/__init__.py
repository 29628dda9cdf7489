"""Any transformers model described by a stages file, traced like the known architectures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsocr_analyze.architectures.any_model.description import Description, read_description
from dsocr_analyze.architectures.architecture import Architecture, ForwardInputs, GenerateUse
from dsocr_analyze.architectures.config_keys import Config
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload import Lengths
from dsocr_analyze.workload.workload import LARGEST_COUNT, check_count

if TYPE_CHECKING:
    import torch

__all__ = ["DescribedModel", "described_architecture", "undescribed"]

_MOST_IDS: Final = 1 << 24
"""Of all prompts together; their values may be asked for, and then fill 128 MiB."""


def described_architecture(path: Path) -> Architecture:
    """The architecture that a stages file describes.

    Args:
        path: The file; see docs/any-model.md.

    Raises:
        ConfigError: It cannot be read, or does not describe a model.
    """
    return DescribedModel(read_description(path))


def undescribed(config: Config, model_class: str | None = None) -> Architecture:
    """An architecture without stages or inputs, of which only the modules can be shown.

    Args:
        config: The model's parsed `config.json`.
        model_class: Class of transformers to build; None for the one named in the config.
    """
    name = str(config.get("model_type"))
    return DescribedModel(Description("", name, model_class, "eager", None, (), None, {}, False))


class DescribedModel(Architecture):
    """A model that a stages file describes.

    Args:
        description: What was read of the file.
    """

    def __init__(self, description: Description) -> None:
        prompt, self.description = description.prompt, description
        self.name = self.title = description.name
        self.stages, self.routed_expert = description.stages, description.routed_expert
        self.text_tokens = 0 if prompt is None else prompt.tokens
        if description.decodes and prompt:
            self.generate = GenerateUse(prompt.fill, prompt.without)
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
        """Plans the lengths of a run; arguments about a page are rejected.

        Raises:
            WorkloadError: A number is impossible, or the model does not take such an argument.
        """
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
        check_count("max_new_tokens", max_new_tokens, 1, LARGEST_COUNT, " tokens")
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
        """Arguments of `generate`, or of forward for a model that does not decode."""
        # Imported here because it imports torch.
        from dsocr_analyze.architectures.any_model.inputs import prefill_inputs

        return prefill_inputs(self.description, device, dtype, lengths)
