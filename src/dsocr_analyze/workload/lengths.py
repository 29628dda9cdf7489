"""The work of a model that does not read pages."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Lengths"]


@dataclass(frozen=True, slots=True)
class Lengths:
    """The workload of a model that does not read pages.

    Attributes:
        seq_len: Tokens per prompt; 0 without prompts.
        batch_size: Equal prompts.
        max_new_tokens: As of a `PageWorkload`; 0 without decoding.
    """

    seq_len: int
    batch_size: int
    max_new_tokens: int

    @property
    def pages(self) -> int:
        """Prompts in the batch, in place of pages."""
        return self.batch_size
