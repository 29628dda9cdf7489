"""One decode step of a generation: the tokens in its cache and the keys it attends to."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DecodeStep"]


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Decode step k, whose input is the k-th generated token.

    Attributes:
        prompt_tokens: S, tokens of the prompt; all of them stay in the cache.
        number: k, from 1.
        window: W, the most generated tokens that the cache keeps, at least 1; None for all.
    """

    prompt_tokens: int
    number: int
    window: int | None = None

    @property
    def position(self) -> int:
        """Position of the step's token, from 0: S + k - 1, with or without a window."""
        return self.prompt_tokens + self.number - 1

    @property
    def cached_tokens(self) -> int:
        """Tokens in the cache before the step: S + min(k - 1, W)."""
        return self.prompt_tokens + self._kept(self.number - 1)

    @property
    def keys(self) -> int:
        """Keys that the step attends to, including its own: S + min(k, W)."""
        return self.prompt_tokens + self._kept(self.number)

    @property
    def slot(self) -> int | None:
        """Index of the cached generated token that the step overwrites; None if it appends."""
        if self.window is None or self.number <= self.window:
            return None
        return (self.number - 1) % self.window

    def _kept(self, generated: int) -> int:
        return generated if self.window is None else min(generated, self.window)
