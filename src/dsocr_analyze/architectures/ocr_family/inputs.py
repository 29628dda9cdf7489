"""The inputs with which `generate` calls the model's forward: the prefill pass, then a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsocr_analyze.architectures.architecture import ForwardInputs
from dsocr_analyze.workload import Workload

if TYPE_CHECKING:
    import torch

__all__ = ["decode_inputs", "prefill_inputs"]


def prefill_inputs(device: torch.device, dtype: torch.dtype, workload: Workload) -> ForwardInputs:
    """Keyword arguments of the model's forward for one prefill pass, without the cache.

    The prompt is BOS, the visual tokens, the text. Pixels are zero if there is no view and nonzero
    otherwise, since the model's code tells the two apart by their sum. The crop grids stay on the
    CPU, as in `infer()`.

    Args:
        device: Device of the model.
        dtype: Type of the views' pixels; a blank patch is fp32.
        workload: The page, the text and the batch.
    """
    import torch

    batch, local, whole = workload.batch_size, workload.local_views, workload.global_view
    pages = workload.prompt_pages

    def pixels(count: int, resolution: int) -> torch.Tensor:
        return torch.full((count, 3, resolution, resolution), 0.5, dtype=dtype, device=device)

    def views() -> tuple[torch.Tensor, torch.Tensor]:
        """Local views [n, 3, R, R], or a blank patch [1, 3, S, S], and the pages' global views."""
        if local is None:
            side = workload.base_size
            crops = torch.zeros((1, 3, side, side), dtype=torch.float32, device=device)
        else:
            crops = pixels(local.count, local.resolution)
        return crops, pixels(pages * whole.count, whole.resolution)

    image_mask = torch.zeros(batch, workload.seq_len, dtype=torch.bool, device=device)
    image_mask[:, 1 : 1 + workload.visual_tokens] = True
    return {
        "input_ids": torch.zeros(batch, workload.seq_len, dtype=torch.long, device=device),
        **_mask_and_positions(device, batch, workload.seq_len),
        "images": [views() for _ in range(batch)],
        "images_seq_mask": image_mask,
        "images_spatial_crop": torch.tensor([workload.grid] * (batch * pages), dtype=torch.long),
        "use_cache": True,
    }


def decode_inputs(device: torch.device, workload: Workload, cached: int) -> ForwardInputs:
    """Keyword arguments of one decode step over `cached` tokens, without the cache.

    `generate` passes the images as well; the model ignores them for a single new token.

    Args:
        device: Device of the model.
        workload: The page, the text and the batch.
        cached: Tokens in the cache.
    """
    import torch

    batch = workload.batch_size
    given = _mask_and_positions(device, batch, cached + 1)
    return {
        "input_ids": torch.zeros(batch, 1, dtype=torch.long, device=device),
        "attention_mask": given["attention_mask"],
        "position_ids": given["position_ids"][:, -1:],
        "use_cache": True,
    }


def _mask_and_positions(device: torch.device, batch: int, tokens: int) -> dict[str, torch.Tensor]:
    """The mask [B, K] of a prompt without padding, and the resulting positions."""
    import torch

    mask = torch.ones(batch, tokens, dtype=torch.long, device=device)
    # The mask's running sum in `generate`; on meta, torch imports sympy for one.
    positions = torch.arange(tokens, device=device).repeat(batch, 1)
    return {"attention_mask": mask, "position_ids": positions}
