"""One decode step of a generation: what it finds in the cache, and what it attends to."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DecodeStep"]


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Decode step k, which is fed the k-th generated token.

    Attributes:
        prompt_tokens: S, tokens of the prompt; all of them stay in the cache.
        number: k, from 1.
        window: W, the most generated tokens that the cache keeps, from 1; None keeps all.
    """

    prompt_tokens: int
    number: int
    window: int | None = None

    @property
    def position(self) -> int:
        """Position of the step's token, from 0, which a window does not hold back: S + k - 1."""
        return self.prompt_tokens + self.number - 1

    @property
    def cached_tokens(self) -> int:
        """Tokens in the cache before the step: S + min(k - 1, W)."""
        return self.prompt_tokens + self._kept(self.number - 1)

    @property
    def keys(self) -> int:
        """Keys that the step attends to, its own among them: S + min(k, W)."""
        return self.prompt_tokens + self._kept(self.number)

    @property
    def slot(self) -> int | None:
        """Generated token in the cache that the step overwrites, from 0; None where it appends."""
        if self.window is None or self.number <= self.window:
            return None
        return (self.number - 1) % self.window

    def _kept(self, generated: int) -> int:
        return generated if self.window is None else min(generated, self.window)
