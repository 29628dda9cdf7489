"""What the model's forward is called with for one prefill pass."""

from __future__ import annotations

from typing import Any

import torch

from dsocr_analyze.workload import Workload

__all__ = ["prefill_inputs"]


def prefill_inputs(device: torch.device, dtype: torch.dtype, workload: Workload) -> dict[str, Any]:
    """Keyword arguments of the model's forward for one prefill pass.

    The prompt is BOS, the visual tokens, the text. Pixels are blank where there is no view and
    filled elsewhere: the model's code tells the two apart by their sum.

    Args:
        device: Where the model is.
        dtype: Type of the pixels.
        workload: The page, the text and the batch.
    """
    batch, local, whole = workload.batch_size, workload.local_views, workload.global_view

    def pixels(count: int, resolution: int, *, filled: bool = True) -> torch.Tensor:
        shape = (count, 3, resolution, resolution)
        return torch.full(shape, 0.5 if filled else 0.0, dtype=dtype, device=device)

    def views() -> tuple[torch.Tensor, torch.Tensor]:
        """Local views [n, 3, R, R], or a blank one, and the global view [1, 3, R, R]."""
        if local is None:
            crops = pixels(1, whole.resolution, filled=False)
        else:
            crops = pixels(local.count, local.resolution)
        return crops, pixels(whole.count, whole.resolution)

    image_mask = torch.zeros(batch, workload.seq_len, dtype=torch.bool, device=device)
    image_mask[:, 1 : 1 + workload.visual_tokens] = True
    return {
        "input_ids": torch.zeros(batch, workload.seq_len, dtype=torch.long, device=device),
        "images": [views() for _ in range(batch)],
        "images_seq_mask": image_mask,
        "images_spatial_crop": [list(workload.grid)] * batch,
        "use_cache": True,
    }
