"""The vision side under the vendor's names: SAM, whose features CLIP embeds, and the projector.

Tensors live as long as in the published code, so some names outlive their use or are reused early.
In shapes: N images, H heads, D head size, C channels, R resolution, g grid side, T tokens.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "Attention",
    "Block",
    "CLIPVisionEmbeddings",
    "ImageEncoderViT",
    "LayerNorm2d",
    "LayerNormfp32",
    "MLPBlock",
    "MlpProjector",
    "NoTPAttention",
    "NoTPFeedForward",
    "NoTPTransformer",
    "NoTPTransformerBlock",
    "PatchEmbed",
    "VitModel",
    "add_decomposed_rel_pos",
    "build_clip_l",
    "build_sam_vit_b",
    "get_abs_pos",
    "get_abs_pos_sam",
    "get_rel_pos",
    "quick_gelu",
    "window_partition",
    "window_unpartition",
]

# Constants of the published SAM and CLIP that are not in config.json.
_SAM_PATCH: Final = 16
_SAM_WINDOW: Final = 14
_SAM_NECK: Final = 256
_MLP_RATIO: Final = 4


# ------------------------------------------------------------------------------------ projector


def _gelu_linears(widths: Sequence[int]) -> list[nn.Module]:
    """`GELU, Linear(w0, w1), GELU, Linear(w1, w2), ...` of these widths."""
    layers: list[nn.Module] = []
    for wide_in, wide_out in itertools.pairwise(widths):
        layers += [nn.GELU(), nn.Linear(wide_in, wide_out)]
    return layers


class MlpProjector(nn.Module):
    """Maps vision features to the decoder's width; ValueError for what it cannot build.

    Of the published variants it has those for one map of features, and merges no tokens: the layout
    of a page has a place for each. Source: the vendor's.
    """

    DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
        {
            "depth": 1,
            "mlp_ratio": 1,
            "channel_div": 0.5,
            "token_pooling": False,
            "conv_fusion_high_low_features": False,
        }
    )
    """Defaults of keys missing in `cfg`."""

    VARIANTS: Final = (
        "identity",
        "linear",
        "mlp_gelu",
        "normlayer_downsample_mlp_gelu",
        "downsample_mlp_gelu",
        "hybrid_split_feature_mlp_gelu",
    )

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__()
        self.cfg = {**self.DEFAULTS, **cfg}
        self.projector_type: str = cfg["projector_type"]
        if self.projector_type not in self.VARIANTS:
            raise ValueError(
                f"projector_config.projector_type {self.projector_type!r} is unknown;"
                f" known: {', '.join(self.VARIANTS)}"
            )
        self.downsamples = self.projector_type.endswith("downsample_mlp_gelu")
        merging: dict[str, Any] = {"token_pooling": False, "conv_fusion_high_low_features": False}
        if self.downsamples:
            merging["downsample_ratio"] = 1
        for key, right in merging.items():
            if self.cfg[key] != right:
                raise ValueError(f"projector_config.{key} is {self.cfg[key]!r}; give {right!r}")
        self.layers = self._built()

    def _built(self) -> nn.Module:
        """The layers of the variant; one that splits features projects the two parts before."""
        cfg, kind = self.cfg, self.projector_type
        if kind == "identity":
            return nn.Identity()
        width: int = cfg["n_embed"]
        if kind == "linear":
            return nn.Linear(cfg["input_dim"], width)
        if self.downsamples:
            features, inner = cfg["input_dim"], width * cfg["mlp_ratio"]
            norms = [nn.LayerNorm(features)] * kind.startswith("normlayer")
            hidden = [inner] * max(cfg["depth"] - 1, 1)
            linears = _gelu_linears([*hidden, width])
            return nn.Sequential(*norms, nn.Linear(features, inner), *linears)
        gelu_linears = _gelu_linears([width] * cfg["depth"])
        if kind == "mlp_gelu":
            return nn.Sequential(nn.Linear(cfg["input_dim"], width), *gelu_linears)
        high_in, low_in = cfg["input_dim"]
        high_out = int(width * cfg["channel_div"])
        self.high_up_proj = nn.Linear(high_in, high_out)
        self.low_up_proj = nn.Linear(low_in, width - high_out)
        return nn.Sequential(*gelu_linears)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, T, input_dim] -> [N, T, n_embed]`."""
        if self.projector_type == "hybrid_split_feature_mlp_gelu":
            boundary = self.high_up_proj.in_features
            high, low = self.high_up_proj(x[..., :boundary]), self.low_up_proj(x[..., boundary:])
            x = torch.cat([high, low], dim=-1)
        elif self.downsamples:
            count, tokens, channels = x.shape
            side = math.isqrt(tokens)
            x = x.reshape(count, side, side, channels).permute(0, 3, 1, 2)
            x = F.unfold(x, kernel_size=1, stride=1).permute(0, 2, 1)
        return cast("Tensor", self.layers(x))


# ----------------------------------------------------------------------------------------- CLIP


class LayerNormfp32(nn.LayerNorm):
    """LayerNorm that computes in fp32 and returns the input's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """`[..., C]` -> `[..., C]`."""
        return super().forward(x.type(torch.float32)).type(x.dtype)


def get_abs_pos(abs_pos: Tensor, tgt_size: int) -> Tensor:
    """CLIP's positions `[1, 1 + s s, C] -> [1, 1 + t t, C]`, bicubic and antialiased in fp32.

    t is `floor(sqrt(tgt_size))`; if it is s, the table itself. Source: the vendor's.
    """
    table = abs_pos.squeeze(0)
    source, target = math.isqrt(table.shape[0] - 1), math.isqrt(tgt_size)
    if source == target:
        return abs_pos
    channels = table.shape[-1]
    grid = table[1:].view(1, source, source, channels).permute(0, 3, 1, 2).contiguous()
    grid = grid.to(torch.float32)
    patches = _resized(grid, target, abs_pos.dtype).permute(0, 2, 3, 1)
    joined = torch.cat([table[:1], patches.view(target * target, channels)], dim=0)
    return joined.view(1, target * target + 1, channels)


def _resized(grid: Tensor, side: int, dtype: torch.dtype) -> Tensor:
    """`[1, C, s, s]` in fp32 -> `[1, C, side, side]`, resampled, in `dtype`."""
    return F.interpolate(
        grid,
        size=(side, side),
        mode="bicubic",
        antialias=True,
        align_corners=False,
    ).to(dtype)


def quick_gelu(x: Tensor) -> Tensor:
    """`x * sigmoid(1.702 x)`, the sigmoid approximation of GELU (Hendrycks and Gimpel, 2016)."""
    return x * torch.sigmoid(1.702 * x)


class CLIPVisionEmbeddings(nn.Module):
    """Class token, patch embeddings and position table."""

    def __init__(
        self,
        hidden_size: int = 1024,
        image_size: int = 224,
        patch_size: int = 14,
        num_channels: int = 3,
    ) -> None:
        super().__init__()
        positions = (image_size // patch_size) ** 2 + 1
        self.class_embedding = nn.Parameter(torch.empty(hidden_size))
        nn.init.normal_(self.class_embedding)
        self.patch_embedding = nn.Conv2d(
            num_channels, hidden_size, kernel_size=patch_size, stride=patch_size, bias=False
        )
        self.position_embedding = nn.Embedding(positions, hidden_size)
        self.position_ids: Tensor
        ids = torch.empty(1, positions, dtype=torch.long)
        if not ids.is_meta:  # where the first arange imports a compiler
            ids = torch.arange(positions).expand((1, -1))
        self.register_buffer("position_ids", ids)

    def forward(self, pixel_values: Tensor, patch_embeds: Tensor | None) -> Tensor:
        """`[N, 1 + g g, C]` from `patch_embeds` `[N, C, g, g]`, or from pixels `[N, 3, R, R]`."""
        if patch_embeds is None:
            patch_embeds = self.patch_embedding(pixel_values)
        patch_embeds = patch_embeds.flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(pixel_values.shape[0], 1, -1)
        tokens = torch.cat([first, patch_embeds], dim=1)
        return tokens + get_abs_pos(self.position_embedding(self.position_ids), tokens.shape[1])


class NoTPFeedForward(nn.Module):
    """Linear, quick GELU, linear (both with bias); `cfg` is unused, as published."""

    def __init__(self, cfg: Mapping[str, Any], dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, T, dim]` -> `[N, T, dim]`."""
        return cast("Tensor", self.fc2(quick_gelu(self.fc1(x))))


class NoTPAttention(nn.Module):
    """Multi-head self-attention without a mask (Vaswani et al. 2017, eq. 1), one fused q, k, v."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__()
        width = cfg["hidden_size"]
        self.num_heads = cfg["num_attention_heads"]
        self.head_dim = width // self.num_heads
        self.qkv_proj = nn.Linear(width, width * 3)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, T, C]` -> `[N, T, C]`."""
        count, tokens, _ = x.shape
        fused = self.qkv_proj(x).view(count, tokens, 3, self.num_heads, self.head_dim)
        q, k, v = (part.squeeze(2).permute(0, 2, 1, 3) for part in fused.split(1, dim=2))
        out = F.scaled_dot_product_attention(q, k, v)  # [N, H, T, D]
        out = out.permute(0, 2, 1, 3).reshape(count, tokens, -1)
        return cast("Tensor", self.out_proj(out))


class NoTPTransformerBlock(nn.Module):
    """Pre-norm block: `h = x + attention(norm(x))`, `h + feed_forward(norm(h))`."""

    def __init__(self, cfg: Mapping[str, Any], layer_id: int, multiple_of: int = 256) -> None:
        super().__init__()
        width = cfg["hidden_size"]
        eps = cfg["layernorm_epsilon"]
        self.layer_id = layer_id
        self.self_attn = NoTPAttention(cfg)
        self.mlp = NoTPFeedForward(cfg, dim=width, hidden_dim=cfg["ffn_hidden_size"])
        self.layer_norm1 = nn.LayerNorm(width, eps=eps)
        self.layer_norm2 = nn.LayerNorm(width, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, T, C]` -> `[N, T, C]`."""
        # As published, `forward` is called directly, so hooks never fire.
        attended = self.self_attn.forward(self.layer_norm1(x))
        h = x + attended
        return h + self.mlp.forward(self.layer_norm2(h))


class NoTPTransformer(nn.Module):
    """A stack of `num_layers` blocks."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__()
        depth = cfg["num_layers"]
        self.layers = nn.ModuleList(NoTPTransformerBlock(cfg, i + 1) for i in range(depth))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """`[N, T, C]` -> `[N, T, C]`."""
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


class VitModel(nn.Module):
    """CLIP's vision transformer (Radford et al. 2021) without its final norm."""

    DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
        {"pre_layernorm_epsilon": 1e-5, "fp32norm": False}
    )
    """Defaults of keys missing in `cfg`."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__()
        width = cfg["hidden_size"]
        self.embeddings = CLIPVisionEmbeddings(
            hidden_size=width,
            image_size=cfg["image_size"],
            patch_size=cfg["patch_size"],
        )
        self.transformer = NoTPTransformer(cfg)
        settings = {**self.DEFAULTS, **cfg}
        norm = LayerNormfp32 if settings["fp32norm"] else nn.LayerNorm
        # The vendor's spelling, which checkpoints use.
        self.pre_layrnorm = norm(width, eps=float(settings["pre_layernorm_epsilon"]))

    def forward(self, x: Tensor, patch_embeds: Tensor | None) -> Tensor:
        """Image `[N, 3, R, R]` and SAM's features `[N, C, g, g]` -> `[N, 1 + g g, C]`."""
        embedded = self.embeddings(x, patch_embeds)
        normed = self.pre_layrnorm(embedded)
        return cast("Tensor", self.transformer(normed))


# ------------------------------------------------------------------------------------------ SAM


def get_abs_pos_sam(abs_pos: Tensor, tgt_size: int) -> Tensor:
    """SAM's positions `[1, s, s, C] -> [1, t, t, C]` for `tgt_size` t (the vendor's)."""
    if abs_pos.shape[1] == tgt_size:
        return abs_pos
    grid = abs_pos.permute(0, 3, 1, 2).to(torch.float32)
    return _resized(grid, tgt_size, abs_pos.dtype).permute(0, 2, 3, 1)


class MLPBlock(nn.Module):
    """Linear, activation, linear (both with bias)."""

    def __init__(
        self, embedding_dim: int, mlp_dim: int, act: Callable[[], nn.Module] = nn.GELU
    ) -> None:
        super().__init__()
        self.lin1 = nn.Linear(embedding_dim, mlp_dim)
        self.lin2 = nn.Linear(mlp_dim, embedding_dim)
        self.act = act()

    def forward(self, x: Tensor) -> Tensor:
        """`[..., C]` -> `[..., C]`."""
        return cast("Tensor", self.lin2(self.act(self.lin1(x))))


class LayerNorm2d(nn.Module):
    """`(x - mean) / sqrt(var + eps) * w + b` over channels (the vendor's, from ConvNeXt)."""

    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, h, w]` -> `[N, C, h, w]`."""
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        normal = (x - mean) / torch.sqrt(variance + self.eps)
        return self.weight[:, None, None] * normal + self.bias[:, None, None]


class ImageEncoderViT(nn.Module):
    """SAM's image encoder (Kirillov et al. 2023; ViTDet, Li et al. 2022) with down-sampling.

    A `window_size` of 0 is global attention.
    """

    DOWNSAMPLE_CHANNELS: Final = (512, 1024)
    """Published output channels of the stride-2 convolutions."""

    def __init__(
        self,
        img_size: int = 1024,
        patch_size: int = 16,
        in_chans: int = 3,
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        out_chans: int = 256,
        qkv_bias: bool = True,
        norm_layer: Callable[[int], nn.Module] = nn.LayerNorm,
        act_layer: Callable[[], nn.Module] = nn.GELU,
        use_abs_pos: bool = True,
        use_rel_pos: bool = False,
        rel_pos_zero_init: bool = True,
        window_size: int = 0,
        global_attn_indexes: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.img_size = img_size
        grid = img_size // patch_size
        self.patch_embed = PatchEmbed(
            (patch_size, patch_size), (patch_size, patch_size), (0, 0), in_chans, embed_dim
        )
        self.pos_embed = (
            nn.Parameter(torch.zeros(1, grid, grid, embed_dim)) if use_abs_pos else None
        )
        self.blocks = nn.ModuleList(
            Block(
                embed_dim,
                num_heads,
                mlp_ratio,
                qkv_bias,
                norm_layer,
                act_layer,
                use_rel_pos,
                rel_pos_zero_init,
                window_size=0 if index in global_attn_indexes else window_size,
                input_size=(grid, grid),
            )
            for index in range(depth)
        )
        self.neck = nn.Sequential(
            nn.Conv2d(embed_dim, out_chans, kernel_size=1, bias=False),
            LayerNorm2d(out_chans),
            nn.Conv2d(out_chans, out_chans, kernel_size=3, padding=1, bias=False),
            LayerNorm2d(out_chans),
        )
        self._downsamplers: list[str] = []
        self.downsample(out_chans, self.DOWNSAMPLE_CHANNELS)

    def downsample(self, channels: int, wider: Sequence[int]) -> None:
        """Creates the stride-2 convolutions `net_2`, `net_3`, ... with these output channels."""
        for name in self._downsamplers:
            delattr(self, name)
        self._downsamplers = [f"net_{number}" for number in range(2, 2 + len(wider))]
        for name, (before, after) in zip(
            self._downsamplers, itertools.pairwise((channels, *wider)), strict=True
        ):
            conv = nn.Conv2d(before, after, kernel_size=3, stride=2, padding=1, bias=False)
            self.add_module(name, conv)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, 3, R, R]` -> `[N, C, g, g]`; published: C = 1024, `g = R / 64`."""
        x = self.patch_embed(x)
        if self.pos_embed is not None:
            x = x + get_abs_pos_sam(self.pos_embed, x.shape[1])
        for block in self.blocks:
            x = block(x)
        x = self.neck(x.permute(0, 3, 1, 2))
        held: list[Tensor] = [x]
        for name in self._downsamplers:
            # The published encoder copies each convolution's input except the first.
            held.append(getattr(self, name)(held[-1].clone() if len(held) > 1 else x))
        return held[-1]


class Block(nn.Module):
    """Pre-norm block over a grid in windows; 0 is global attention, on a grid of `input_size`."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        norm_layer: Callable[[int], nn.Module] = nn.LayerNorm,
        act_layer: Callable[[], nn.Module] = nn.GELU,
        use_rel_pos: bool = False,
        rel_pos_zero_init: bool = True,
        window_size: int = 0,
        input_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.window_size = window_size
        self.norm1 = norm_layer(dim)
        attended = (window_size, window_size) if window_size else input_size
        self.attn = Attention(dim, num_heads, qkv_bias, use_rel_pos, rel_pos_zero_init, attended)
        self.norm2 = norm_layer(dim)
        self.mlp = MLPBlock(embedding_dim=dim, mlp_dim=int(dim * mlp_ratio), act=act_layer)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, h, w, C]` -> `[N, h, w, C]`."""
        y = self.norm1(x)
        if self.window_size:
            grid = (x.shape[1], x.shape[2])
            y, padded = window_partition(y, self.window_size)
            y = self.attn(y)
            y = window_unpartition(y, self.window_size, padded, grid)
        else:
            y = self.attn(y)
        y = x + y
        return cast("Tensor", y + self.mlp(self.norm2(y)))


class Attention(nn.Module):
    """Self-attention over a grid with decomposed relative positions (MViTv2, Li et al. 2022).

    These add `q . R_h + q . R_w` to the scores; ValueError without `input_size`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = True,
        use_rel_pos: bool = False,
        rel_pos_zero_init: bool = True,
        input_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.use_rel_pos = use_rel_pos
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        if use_rel_pos:
            if input_size is None:
                raise ValueError("use_rel_pos needs input_size, the grid (height, width)")
            rows, columns = input_size
            self.rel_pos_h = nn.Parameter(torch.zeros(2 * rows - 1, dim // num_heads))
            self.rel_pos_w = nn.Parameter(torch.zeros(2 * columns - 1, dim // num_heads))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, h, w, C]` -> `[N, h, w, C]`."""
        count, rows, columns, _ = x.shape
        tokens, heads = rows * columns, self.num_heads
        fused = self.qkv(x).reshape(count, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = fused.reshape(3, count * heads, tokens, -1).unbind(0)  # [N H, h w, D]
        bias = None
        if self.use_rel_pos:
            grid = (rows, columns)
            terms = add_decomposed_rel_pos(q, self.rel_pos_h, self.rel_pos_w, grid, grid)
            by_row, by_column = (term.view(count, heads, *term.shape[1:]) for term in terms)
            bias = (by_row + by_column).flatten(-2)  # [N, H, h w, h w]
        q, k, v = (part.view(count, heads, tokens, -1) for part in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        out = out.view(count, heads, rows, columns, -1).permute(0, 2, 3, 1, 4)
        out = out.reshape(count, rows, columns, -1)
        return cast("Tensor", self.proj(out))


def window_partition(x: Tensor, window_size: int) -> tuple[Tensor, tuple[int, int]]:
    """`[N, h, w, C]`, zero-padded, to windows `[N * windows, s, s, C]`, and the padded (h, w)."""
    count, rows, columns, channels = x.shape
    below, right = -rows % window_size, -columns % window_size
    if below or right:
        x = F.pad(x, (0, 0, 0, right, 0, below))
    rows, columns = rows + below, columns + right
    down, across = rows // window_size, columns // window_size
    x = x.view(count, down, window_size, across, window_size, channels).permute(0, 1, 3, 2, 4, 5)
    return x.contiguous().view(-1, window_size, window_size, channels), (rows, columns)


def window_unpartition(
    windows: Tensor, window_size: int, pad_hw: tuple[int, int], hw: tuple[int, int]
) -> Tensor:
    """Undoes `window_partition`: `[N * windows, s, s, C] -> [N, h, w, C]`, without the padding."""
    padded_rows, padded_columns = pad_hw
    down, across = padded_rows // window_size, padded_columns // window_size
    count = windows.shape[0] // (down * across)
    x = windows.view(count, down, across, window_size, window_size, -1).permute(0, 1, 3, 2, 4, 5)
    x = x.contiguous().view(count, padded_rows, padded_columns, -1)
    if pad_hw != hw:
        x = x[:, : hw[0], : hw[1], :].contiguous()
    return x


def get_rel_pos(q_size: int, k_size: int, rel_pos: Tensor) -> Tensor:
    """`R[i, j] = table[i' - j' + offset]`, `[q_size, k_size, D]`, scaled to the longer axis.

    The table `[L, D]` is resized linearly in fp32 unless L is `2 max(q, k) - 1` (MViTv2, eq. 4; the
    vendor's).
    """
    length = 2 * max(q_size, k_size) - 1
    table = rel_pos
    if rel_pos.shape[0] != length:
        columns = rel_pos.to(torch.float32).reshape(1, rel_pos.shape[0], -1).permute(0, 2, 1)
        resized = F.interpolate(columns, size=length, mode="linear").to(rel_pos.dtype)
        table = resized.reshape(-1, length).permute(1, 0)
    q_scale, k_scale = max(k_size / q_size, 1.0), max(q_size / k_size, 1.0)
    queries = torch.arange(q_size, device=rel_pos.device)[:, None] * q_scale
    keys = torch.arange(k_size, device=rel_pos.device)[None, :] * k_scale
    distance = (queries - keys) + (k_size - 1) * k_scale
    return table[distance.long()]


def add_decomposed_rel_pos(
    q: Tensor,
    rel_pos_h: Tensor,
    rel_pos_w: Tensor,
    q_size: tuple[int, int],
    k_size: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """The terms of relative positions, `[B, q_h q_w, k_h, 1]` and `[B, q_h q_w, 1, k_w]`.

    `q[b, (y x)] . R_h[y, k]` and `q[b, (y x)] . R_w[x, k]` from queries `[B, q_h q_w, D]` (MViTv2,
    eq. 4; the vendor's); the bias is their broadcast sum.
    """
    (q_rows, q_columns), (k_rows, k_columns) = q_size, k_size
    table_h = get_rel_pos(q_rows, k_rows, rel_pos_h)
    table_w = get_rel_pos(q_columns, k_columns, rel_pos_w)
    batch, tokens, size = q.shape
    grid = q.reshape(batch, q_rows, q_columns, size)
    by_row = torch.einsum("bhwc,hkc->bhwk", grid, table_h)
    by_column = torch.einsum("bhwc,wkc->bhwk", grid, table_w)
    by_row = by_row.unsqueeze(-1).reshape(batch, tokens, k_rows, 1)
    by_column = by_column.unsqueeze(-2).reshape(batch, tokens, 1, k_columns)
    return by_row, by_column


class PatchEmbed(nn.Module):
    """Patch convolution, channels last afterwards."""

    def __init__(
        self,
        kernel_size: tuple[int, int] = (16, 16),
        stride: tuple[int, int] = (16, 16),
        padding: tuple[int, int] = (0, 0),
        in_chans: int = 3,
        embed_dim: int = 768,
    ) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size, stride=stride, padding=padding)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, 3, R, R]` -> `[N, g, g, C]`."""
        return cast("Tensor", self.proj(x).permute(0, 2, 3, 1))


# ------------------------------------------------------------------------- built from the config


def build_sam_vit_b(
    vision_config: Mapping[str, Any], features: int | None = None
) -> ImageEncoderViT:
    """SAM of a config; `features` replace the last channels."""
    sam = vision_config["width"]["sam_vit_b"]
    encoder = ImageEncoderViT(
        img_size=vision_config["image_size"],
        patch_size=_SAM_PATCH,
        embed_dim=sam["width"],
        depth=sam["layers"],
        num_heads=sam["heads"],
        mlp_ratio=_MLP_RATIO,
        out_chans=_SAM_NECK,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
        use_rel_pos=True,
        window_size=_SAM_WINDOW,
        global_attn_indexes=sam["global_attn_indexes"],
    )
    channels = sam["downsample_channels"]
    encoder.downsample(_SAM_NECK, channels if features is None else (*channels[:-1], features))
    return encoder


def build_clip_l(vision_config: Mapping[str, Any]) -> VitModel:
    """CLIP of a config."""
    clip = vision_config["width"]["clip-l-14-224"]
    return VitModel(
        {
            "num_layers": clip["layers"],
            "hidden_size": clip["width"],
            "num_attention_heads": clip["heads"],
            "ffn_hidden_size": _MLP_RATIO * clip["width"],
            "image_size": clip["image_size"],
            "patch_size": clip["patch_size"],
            "layernorm_epsilon": 1e-5,
            "pre_layernorm_epsilon": 1e-5,
        }
    )
