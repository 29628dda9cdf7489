"""What `infer()` takes from `torchvision.transforms`, where torchvision is not installed.

Only for pictures as it makes them: PIL, RGB, eight bits. The values are torchvision's, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["Compose", "Normalize", "ToTensor"]


class Compose:
    """One transform after the other.

    Args:
        transforms: The transforms.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, picture: Any) -> Any:
        """The picture as the last transform leaves it."""
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class ToTensor:
    """A picture of PIL as `[3, h, w]`, from 0 to 1."""

    def __call__(self, picture: Any) -> torch.Tensor:
        """The tensor of one picture."""
        import numpy as np

        pixels = torch.from_numpy(np.array(picture, copy=True))
        values = pixels.permute(2, 0, 1).contiguous()
        return values.to(torch.get_default_dtype()).div(255)


class Normalize:
    """`(x - mean) / std`, channel by channel.

    Args:
        mean: A value a channel.
        std: A value a channel.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = mean, std

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """`[C, h, w]`, normalised."""

        def channels(numbers: Sequence[float]) -> torch.Tensor:
            return torch.tensor(numbers, dtype=values.dtype).view(-1, 1, 1)

        return values.clone().sub_(channels(self.mean)).div_(channels(self.std))
