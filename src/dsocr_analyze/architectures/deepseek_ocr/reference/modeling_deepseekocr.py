"""DeepSeek-OCR as one model, under the vendor's names, but without `infer()`.

In shapes: B batch, T tokens, P local views, R resolution, g grid side, d width.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TextStreamer

from .configuration_deepseek_v2 import DeepseekV2Config
from .deepencoder import MlpProjector, build_clip_l, build_sam_vit_b
from .modeling_deepseekv2 import DeepseekV2ForCausalLM, DeepseekV2Model

__all__ = [
    "BaseTransform",
    "BasicImageTransform",
    "DeepseekOCRConfig",
    "DeepseekOCRForCausalLM",
    "DeepseekOCRModel",
    "NoEOSTextStreamer",
    "Views",
]


# ------------------------------------------------------------------------------------ image input


def _to_tensor(image: Any) -> Tensor:
    """A PIL image or an array `[h, w]` / `[h, w, C]` as `[C, h, w]`; bytes become 0 .. 1."""
    import numpy as np

    array = np.array(image)
    if array.ndim == 2:
        array = array[:, :, None]
    tensor = torch.from_numpy(array).permute(2, 0, 1).contiguous()
    if tensor.dtype == torch.uint8:
        return tensor.to(torch.get_default_dtype()).div(255)
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.bool else tensor


class BaseTransform(ABC):
    """Converts an image to the tensor a model takes."""

    def set_rng(self, *args: Any, **kwargs: Any) -> None:  # noqa: B027 - most have none
        """Sets the random state of a transform that has one."""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Transforms one image."""

    @property
    def default_shape(self) -> tuple[int, ...]:
        """Shape of the result, if it is fixed."""
        raise NotImplementedError


class BasicImageTransform(BaseTransform):
    """Converts to a tensor in 0 .. 1, and normalises it per channel: `(x - mean) / std`."""

    def __init__(
        self,
        mean: Sequence[float] | None = (0.5, 0.5, 0.5),
        std: Sequence[float] | None = (0.5, 0.5, 0.5),
        normalize: bool = True,
    ) -> None:
        self.mean, self.std = mean, std
        self.normalize = normalize and not (mean is None and std is None)

    def __call__(self, x: Any) -> Tensor:
        """A PIL image or an array `[h, w, C]` -> `[C, h, w]`."""
        tensor = _to_tensor(x)
        if not self.normalize:
            return tensor
        means, deviations = (
            torch.tensor(neutral if values is None else values, dtype=tensor.dtype)
            for values, neutral in ((self.mean, (0.0,)), (self.std, (1.0,)))
        )
        return tensor.clone().sub_(means.view(-1, 1, 1)).div_(deviations.view(-1, 1, 1))


class NoEOSTextStreamer(TextStreamer):  # type: ignore[misc]  # untyped base
    """Streams generated text with a line break instead of the end-of-sequence token."""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Passes on `text`; the end of the stream adds nothing."""
        tokenizer = self.tokenizer
        eos_text = tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=False)
        super().on_finalized_text(text.replace(eos_text, "\n"), stream_end=False)


# -------------------------------------------------------------------------------------- the model


class DeepseekOCRConfig(DeepseekV2Config):
    """The decoder's dimensions plus `vision_config` and `projector_config`."""

    model_type = "DeepseekOCR"


class Views:
    """Features of one vision call, held as long as in the published forward.

    Of SAM `[N, C, g, g]`, the second encoder `[N, T, C]`, and around the projector `[..., d]`.
    """

    spatial: Tensor
    semantic: Tensor
    tokens: Tensor


class _Seen:
    """What the published forward holds: the last views of each kind, and the last page."""

    page: Tensor

    def __init__(self) -> None:
        self.local, self.whole = Views(), Views()


class DeepseekOCRModel(DeepseekV2Model):
    """The decoder, with visual tokens in place of the image placeholders."""

    config_class = DeepseekOCRConfig

    def __init__(self, config: DeepseekV2Config) -> None:
        super().__init__(config)
        self._build_vision(config)

    def _build_vision(self, config: DeepseekV2Config) -> None:
        """Creates everything except the decoder."""
        self.sam_model = build_sam_vit_b(config.vision_config)
        self.vision_model = build_clip_l(config.vision_config)
        self.projector = MlpProjector(config.projector_config)
        self.image_newline = self._token_embedding(config)
        # The vendor's spelling, which checkpoints use.
        self.view_seperator = self._token_embedding(config)

    @staticmethod
    def _token_embedding(config: DeepseekV2Config) -> nn.Parameter:
        """A learned embedding of one token among a page's tokens, `[d]`."""
        embedding = nn.Parameter(torch.empty(config.hidden_size))
        nn.init.normal_(embedding, std=config.hidden_size**-0.5)
        return embedding

    def forward(  # type: ignore[override]  # the published order: images before return_dict
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        images: Sequence[tuple[Tensor, Tensor]] | None = None,
        images_seq_mask: Tensor | None = None,
        images_spatial_crop: Any = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Runs the vision side if there is an image, then the decoder.

        Per item, `images` has local views `[P, 3, r, r]` (all zero: none) and the global view
        `[1, 3, R, R]` (sum zero in the first: no images). `images_seq_mask` `[B, T]` is true at
        placeholders; `images_spatial_crop` has grids (w, h) of local views.
        """
        if inputs_embeds is None and input_ids is not None:
            inputs_embeds = self.get_input_embeddings()(input_ids)
        if inputs_embeds is not None and images is not None and self._sees(inputs_embeds, images):
            if images_seq_mask is None or images_spatial_crop is None:
                raise ValueError("images need images_seq_mask and images_spatial_crop")
            seen = _Seen()  # held until the decoder has finished, as published
            for item, (views, crop) in enumerate(zip(images, images_spatial_crop, strict=False)):
                tokens: Tensor | None = None  # frees the last page's tokens first
                tokens = self._visual_tokens(seen, views[0], views[1], crop)
                placeholders = images_seq_mask[item].unsqueeze(-1).to(inputs_embeds.device)
                inputs_embeds[item].masked_scatter_(placeholders, tokens)
        return super().forward(
            input_ids=None,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=return_dict,
        )

    def _sees(self, embeds: Tensor, images: Sequence[tuple[Tensor, Tensor]]) -> bool:
        """Whether there is an image: not in a decode step, nor if blank."""
        is_decode_step = embeds.shape[1] == 1 and not self.training
        return not is_decode_step and bool(torch.sum(images[0][1]).item() != 0)

    def _visual_tokens(self, seen: _Seen, patches: Tensor, overview: Tensor, crop: Any) -> Tensor:
        """One page's tokens `[tokens, d]`: local views `[P, 3, r, r]`, global view, separator.

        They replace the last page's piece by piece; `crop` is (w, h), `w h = P`.
        """
        has_patches = torch.sum(patches).item() != 0
        if has_patches:
            self._encode(seen.local, patches)
            pages = [self._page(seen, overview, crop)]
        else:
            pages = [self._page(seen, whole, None) for whole in self._whole_pages(overview)]
        # As published, which copies even a single page.
        return torch.cat(pages, dim=0)

    def _whole_pages(self, overview: Tensor) -> Sequence[Tensor]:
        """The views that are pages of their own, without local views; here, all in one."""
        return [overview]

    def _page(self, seen: _Seen, overview: Tensor, crop: Any) -> Tensor:
        """Like `_visual_tokens`, with local views already encoded; without any, `crop` is None."""
        self._encode(seen.whole, overview)
        self._lay_out(seen.whole, 1, 1)
        parts = [seen.whole.tokens, self.view_seperator[None, :]]
        if crop is not None:
            self._lay_out(seen.local, crop[1], crop[0])
            parts.insert(0, seen.local.tokens)
        seen.page = torch.cat(parts, dim=0)
        return seen.page

    def _encode(self, views: Views, pixels: Tensor) -> None:
        """Views `[N, 3, R, R]` to projected features `[N, g g, d]`, CLIP's before SAM's."""
        views.spatial = self.sam_model(pixels)
        views.semantic = self.vision_model(pixels, views.spatial)
        views.tokens = torch.cat(
            (views.semantic[:, 1:], views.spatial.flatten(2).permute(0, 2, 1)), dim=-1
        )
        views.tokens = self.projector(views.tokens)

    def _lay_out(self, views: Views, down: int, across: int) -> None:
        """`[down * across, g g, d] -> [(down g) (across g + 1), d]`: rows that end in newlines."""
        _, tokens, width = views.tokens.shape
        side = math.isqrt(tokens)
        picture = views.tokens.view(down, across, side, side, width).permute(0, 2, 1, 3, 4)
        views.tokens = picture.reshape(down * side, across * side, width)
        del picture
        newline = self.image_newline[None, None, :].expand(down * side, 1, width)
        views.tokens = torch.cat([views.tokens, newline], dim=1).view(-1, width)


class DeepseekOCRForCausalLM(DeepseekV2ForCausalLM):
    """The whole model: `forward` takes images in addition to the decoder's arguments."""

    config_class = DeepseekOCRConfig
    decoder_class = DeepseekOCRModel

    def forward(  # type: ignore[override]  # the published order: images before return_dict
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        images: Sequence[tuple[Tensor, Tensor]] | None = None,
        images_seq_mask: Tensor | None = None,
        images_spatial_crop: Any = None,
        return_dict: bool | None = None,
    ) -> Any:
        """A prefill pass or decode step: logits `[B, T, V]` in fp32."""
        decoded = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            images=images,
            images_seq_mask=images_seq_mask,
            images_spatial_crop=images_spatial_crop,
            return_dict=True,
        )
        return self._predicted(decoded, return_dict)
