"""A prompt as transformers takes it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PlacedValue:
    """The same value at `count` consecutive positions from `start`, the first being 0."""

    value: bool | int | float
    start: int
    count: int


@dataclass(frozen=True)
class Prompt:
    """A prompt of `tokens` ids, all `fill` but for those `placed`, as transformers takes it.

    Attributes:
        argument: Of `generate`, which takes the ids.
        without: Arguments not passed to forward although `generate` would.
    """

    tokens: int
    argument: str
    fill: int
    placed: tuple[PlacedValue, ...] = ()
    without: tuple[str, ...] = ()
