"""What `infer()` uses of `torchvision.transforms`, for its pictures, if that is not installed.

Values equal torchvision's bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Compose", "Normalize", "ToTensor"]


Picture: TypeAlias = "Image | torch.Tensor"
Transform: TypeAlias = Callable[[Any], Picture]
"""Takes what the transform before it returns."""


class Compose:
    """Applies transforms in sequence."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = transforms

    def __call__(self, picture: Picture) -> Picture:
        """Returns the picture after the last transform."""
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class ToTensor:
    """Converts a PIL picture to `[3, h, w]`, from 0 to 1."""

    def __call__(self, picture: Image) -> torch.Tensor:
        """Returns the picture as a tensor."""
        pixels = torch.from_numpy(np.array(picture, copy=True))
        values = pixels.permute(2, 0, 1).contiguous()
        return values.to(torch.get_default_dtype()).div(255)


class Normalize:
    """`(x - mean) / std`, with one value of each per channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = mean, std

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Returns `[C, h, w]`, normalised."""

        def channels(numbers: Sequence[float]) -> torch.Tensor:
            return torch.tensor(numbers, dtype=values.dtype).view(-1, 1, 1)

        return values.clone().sub_(channels(self.mean)).div_(channels(self.std))
