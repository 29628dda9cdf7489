"""Small modules of the kinds that torchvision and transformers have, to be counted.

Each is built on the device of the context, and called with inputs that `inputs` makes there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
import transformers
from torch import nn


class Counted(NamedTuple):
    """A module's constructor, and what makes its inputs on the device of the context."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    """By keyword; without one by position."""


class Flow(nn.Module):
    """A forward that is a function of itself and its inputs, over children by name."""

    def __init__(self, forward: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        self._of_self = forward
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, *inputs: Any, **keyword_inputs: Any) -> Any:
        return self._of_self(self, *inputs, **keyword_inputs)


def added(*layers: nn.Module, shortcut: nn.Module | None = None) -> nn.Module:
    """x + f(x), or shortcut(x) + f(x)."""
    return Flow(
        lambda self, x: self.shortcut(x) + self.body(x),
        body=nn.Sequential(*layers),
        shortcut=shortcut or nn.Identity(),
    )


def joined(*branches: nn.Module) -> nn.Module:
    """The branches' channels, one after the other."""
    return Flow(
        lambda self, x: torch.cat([branch(x) for branch in self.branches], 1),
        branches=nn.ModuleList(branches),
    )


def conv(
    a: int, b: int, size: int = 3, stride: int = 1, groups: int = 1, act: Any = nn.ReLU
) -> nn.Sequential:
    """A convolution, its batch norm and an activation."""
    layers = [nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False)]
    return nn.Sequential(*layers, nn.BatchNorm2d(b), act())


def head(width: int, classes: int = 100) -> list[nn.Module]:
    """Mean over positions, and a classifier."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]


# --- torchvision's kinds -------------------------------------------------------------------------


def resnet() -> nn.Module:
    def bottleneck(a: int, width: int, stride: int) -> nn.Module:
        b = 4 * width
        same = a == b and stride == 1
        shortcut = nn.Identity() if same else conv(a, b, 1, stride, act=nn.Identity)
        return nn.Sequential(
            added(
                conv(a, width, 1),
                conv(width, width, 3, stride),
                conv(width, b, 1, act=nn.Identity),
                shortcut=shortcut,
            ),
            nn.ReLU(inplace=True),
        )

    blocks = [bottleneck(64, 64, 1), bottleneck(256, 64, 1), bottleneck(256, 128, 2)]
    blocks += [bottleneck(512, 128, 1), bottleneck(512, 256, 2)]
    return nn.Sequential(conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *blocks, *head(1024))


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in [(3, 32), (32, 64), (64, 128), (128, 256)]:
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(True)]
        layers += [nn.Conv2d(b, b, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(256 * 49, 512), nn.ReLU(True),
        nn.Dropout(), nn.Linear(512, 100),
    )  # fmt: skip


def squeeze(width: int, gate: Any = nn.Sigmoid) -> nn.Module:
    """Squeeze and excitation."""
    gates = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 4, 1), nn.ReLU()]
    gates += [nn.Conv2d(width // 4, width, 1), gate()]
    return Flow(lambda self, x: x * self.gates(x), gates=nn.Sequential(*gates))


def inverted(
    a: int, b: int, stride: int = 1, *, gate: Any = None, act: Any = nn.ReLU6
) -> nn.Module:
    """An inverted bottleneck, with depthwise convolution."""
    wide = 6 * a
    layers: list[nn.Module] = [conv(a, wide, 1, act=act), conv(wide, wide, 3, stride, wide, act)]
    layers += [squeeze(wide, gate)] if gate else []
    layers.append(conv(wide, b, 1, act=nn.Identity))
    return added(*layers) if a == b and stride == 1 else nn.Sequential(*layers)


def mobilenet(gate: Any = None, act: Any = nn.ReLU6) -> nn.Module:
    sizes = [(16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 80, 2), (80, 80, 1)]
    blocks = [inverted(a, b, stride, gate=gate, act=act) for a, b, stride in sizes]
    return nn.Sequential(conv(3, 16, 3, 2, act=act), *blocks, conv(80, 480, 1, act=act), *head(480))


def densenet() -> nn.Module:
    def layer(a: int) -> nn.Module:
        norm = [nn.BatchNorm2d(a), nn.ReLU(), nn.Conv2d(a, 128, 1, bias=False)]
        return joined(nn.Identity(), nn.Sequential(*norm, conv(128, 32)))

    first = [layer(64 + 32 * index) for index in range(4)]
    between = [conv(192, 96, 1), nn.AvgPool2d(2)]
    second = [layer(96 + 32 * index) for index in range(4)]
    return nn.Sequential(conv(3, 64, 7, 2), nn.MaxPool2d(2), *first, *between, *second, *head(224))


def inception() -> nn.Module:
    def block(a: int) -> nn.Module:
        flat = nn.Conv2d(48, 64, (1, 7), padding=(0, 3)), nn.Conv2d(64, 64, (7, 1), padding=(3, 0))
        return joined(
            conv(a, 64, 1),
            nn.Sequential(conv(a, 48, 1), *flat),
            nn.Sequential(conv(a, 64, 1), conv(64, 96), conv(96, 96)),
            nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(a, 32, 1)),
        )

    return nn.Sequential(conv(3, 64, 5, 4), block(64), block(256), *head(256))


def convnext() -> nn.Module:
    def block(width: int) -> nn.Module:
        mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        return added(
            Flow(
                lambda self, x: self.mlp(self.deep(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
                deep=nn.Conv2d(width, width, 7, padding=3, groups=width),
                mlp=mlp,
            )
        )

    down = nn.Conv2d(96, 192, 2, 2)
    return nn.Sequential(
        nn.Conv2d(3, 96, 4, 4), block(96), block(96), down, block(192), block(192), *head(192)
    )


def swin() -> nn.Module:
    def windows(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        B, H, W, C = x.shape
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2)) if self.shift else x
        parts = x.view(B, H // 7, 7, W // 7, 7, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, C)
        q, k, v = self.qkv(parts).view(-1, 49, 3, 4, C // 4).permute(2, 0, 3, 1, 4)
        scores = (q * (C // 4) ** -0.5) @ k.transpose(-2, -1) + self.bias.unsqueeze(0)
        parts = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 49, C))
        x = parts.view(B, H // 7, W // 7, 7, 7, C).permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, C)
        return torch.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x

    def block(width: int, shift: int) -> nn.Module:
        attention = Flow(windows, qkv=nn.Linear(width, 3 * width), out=nn.Linear(width, width))
        attention.shift, attention.bias = shift, nn.Parameter(torch.zeros(4, 49, 49))
        mlp = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        return nn.Sequential(
            added(nn.LayerNorm(width), attention), added(nn.LayerNorm(width), *mlp)
        )

    return Flow(
        lambda self, x: self.out(self.blocks(self.patch(x).permute(0, 2, 3, 1)).mean((1, 2))),
        patch=nn.Conv2d(3, 96, 4, 4),
        blocks=nn.Sequential(block(96, 0), block(96, 3)),
        out=nn.Linear(96, 100),
    )


def vit() -> nn.Module:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for layer in self.layers:
            y = layer.norm1(x)
            x = x + layer.attention(y, y, y, need_weights=False)[0]
            x = x + layer.mlp(layer.norm2(x))
        return self.out(self.norm(x)[:, 0])

    def layer() -> nn.Module:
        return Flow(
            lambda _: None,
            norm1=nn.LayerNorm(192),
            attention=nn.MultiheadAttention(192, 3, batch_first=True),
            norm2=nn.LayerNorm(192),
            mlp=nn.Sequential(nn.Linear(192, 768), nn.GELU(), nn.Linear(768, 192)),
        )

    model = Flow(
        forward,
        patch=nn.Conv2d(3, 192, 16, 16),
        layers=nn.ModuleList(layer() for _ in range(4)),
        norm=nn.LayerNorm(192),
        out=nn.Linear(192, 100),
    )
    model.token = nn.Parameter(torch.zeros(1, 1, 192))
    model.positions = nn.Parameter(torch.zeros(1, 145, 192))
    return model


def detr() -> nn.Module:
    def forward(self: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.narrow(self.backbone(x)).flatten(2).transpose(1, 2)
        queries = self.queries.expand(x.shape[0], -1, -1)
        found = self.transformer(features, queries)
        return self.classes(found), self.boxes(found).sigmoid()

    model = Flow(
        forward,
        backbone=nn.Sequential(conv(3, 64, 7, 4), conv(64, 128, 3, 2), conv(128, 256, 3, 2)),
        narrow=nn.Conv2d(256, 128, 1),
        transformer=nn.Transformer(128, 4, 2, 2, 512, batch_first=True),
        classes=nn.Linear(128, 92),
        boxes=nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)),
    )
    model.queries = nn.Parameter(torch.zeros(1, 50, 128))
    return model


def unet() -> nn.Module:
    def level(width: int, inner: nn.Module) -> nn.Module:
        return joined(
            nn.Identity(),
            nn.Sequential(nn.MaxPool2d(2), inner, nn.ConvTranspose2d(2 * width, width, 2, 2)),
        )

    bottom = nn.Sequential(conv(64, 128), conv(128, 128))
    middle = nn.Sequential(conv(32, 64), level(64, bottom), conv(128, 64), conv(64, 64))
    return nn.Sequential(conv(3, 32), level(32, middle), conv(64, 32), nn.Conv2d(32, 5, 1))


# --- transformers' kinds -------------------------------------------------------------------------

DECODER: Final = {
    "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "use_cache": False, "pad_token_id": 0,
}  # fmt: skip


def of_transformers(name: str, kind: str, /, **config: Any) -> nn.Module:
    """A class of transformers with eager attention, which reads no values."""
    made = getattr(transformers, f"{name}Config")(**config)
    made._attn_implementation = "eager"
    return getattr(transformers, f"{name}{kind}")(made)


def mamba() -> nn.Module:
    """A selective scan, step by step."""

    def forward(self: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        values, gate = self.into(x).chunk(2, -1)
        values = F.silu(self.deep(values.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, b, c = self.choose(values).split([256, 16, 16], -1)
        decay = torch.exp(F.softplus(step)[..., None] * self.a)
        drive = (F.softplus(step) * values)[..., None] * b[:, :, None]
        state, seen = torch.zeros_like(drive[:, 0]), []
        for index in range(x.shape[1]):
            state = decay[:, index] * state + drive[:, index]
            seen.append(state @ c[:, index, :, None])
        return self.out(torch.stack(seen, 1).squeeze(-1) * F.silu(gate))

    model = Flow(
        forward, embed=nn.Embedding(1000, 128), into=nn.Linear(128, 512),
        deep=nn.Conv1d(256, 256, 4, padding=3, groups=256), choose=nn.Linear(256, 288),
        out=nn.Linear(256, 1000),
    )  # fmt: skip
    model.a = nn.Parameter(-torch.ones(256, 16))
    return model


def recurrent(kind: type[nn.RNNBase]) -> nn.Module:
    """Two layers over words, and a head."""
    return Flow(
        lambda self, ids: self.out(self.layers(self.embed(ids))[0]),
        embed=nn.Embedding(1000, 256),
        layers=kind(256, 256, num_layers=2, batch_first=True),
        out=nn.Linear(256, 1000),
    )


# --- what they are called with -------------------------------------------------------------------


def picture(side: int, name: str = "") -> dict[str, Any]:
    return {name: torch.zeros(1, 3, side, side)}


def ids(tokens: int, name: str = "input_ids") -> dict[str, Any]:
    return {name: torch.zeros(1, tokens, dtype=torch.long)}


def masked(tokens: int = 128) -> dict[str, Any]:
    """Ids and a mask of no padding, whose values transformers 5 would read."""
    if int(transformers.__version__.partition(".")[0]) >= 5:
        return ids(tokens)
    return ids(tokens) | {"attention_mask": torch.ones(1, tokens, dtype=torch.long)}


def towers() -> dict[str, Any]:
    return masked(77) | picture(128, "pixel_values")


def translation() -> dict[str, Any]:
    return masked(256) | ids(64, "decoder_input_ids")


def sound() -> dict[str, Any]:
    return {"input_features": torch.zeros(1, 40, 400)} | ids(16, "decoder_input_ids")


def towered() -> nn.Module:
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 3}
    text = {**sizes, "num_attention_heads": 4, "vocab_size": 1000, "eos_token_id": 999}
    vision = {**sizes, "num_attention_heads": 4, "image_size": 128, "patch_size": 16}
    return of_transformers("CLIP", "Model", text_config=text, vision_config=vision)


ENCODER: Final = {**DECODER, "num_hidden_layers": 4}
SPOKEN: Final = {
    "vocab_size": 1000, "d_model": 256, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512, "num_mel_bins": 40, "max_source_positions": 200, "use_cache": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
WRITTEN: Final = {
    "n_embd": 256, "n_layer": 3, "n_head": 4, "vocab_size": 1000, "n_positions": 256,
    "use_cache": False,
}  # fmt: skip
SEEN: Final = {
    "vocab_size": 1000, "d_model": 256, "d_ff": 512, "num_layers": 2, "num_heads": 4, "d_kv": 64,
    "use_cache": False,
}  # fmt: skip

COUNTED: Final[dict[str, Counted]] = {
    "resnet": Counted(resnet, partial(picture, 96)),
    "vgg": Counted(vgg, partial(picture, 96)),
    "mobilenet v2": Counted(mobilenet, partial(picture, 224)),
    "mobilenet v3": Counted(
        partial(mobilenet, nn.Hardsigmoid, nn.Hardswish), partial(picture, 224)
    ),
    "efficientnet": Counted(partial(mobilenet, nn.Sigmoid, nn.SiLU), partial(picture, 224)),
    "densenet": Counted(densenet, partial(picture, 160)),
    "inception": Counted(inception, partial(picture, 96)),
    "convnext": Counted(convnext, partial(picture, 96)),
    "swin": Counted(swin, partial(picture, 112)),
    "vit": Counted(vit, partial(picture, 192)),
    "detr": Counted(detr, partial(picture, 256)),
    "unet": Counted(unet, partial(picture, 64)),
    "lstm": Counted(partial(recurrent, nn.LSTM), partial(ids, 32, "")),
    "gru": Counted(partial(recurrent, nn.GRU), partial(ids, 32, "")),
    "mamba": Counted(mamba, lambda: {"": torch.zeros(16, 16, dtype=torch.long)}),
    "bert": Counted(partial(of_transformers, "Bert", "Model", **ENCODER), masked),
    "gpt2": Counted(partial(of_transformers, "GPT2", "LMHeadModel", **WRITTEN), masked),
    "t5": Counted(partial(of_transformers, "T5", "ForConditionalGeneration", **SEEN), translation),
    "llama": Counted(partial(of_transformers, "Llama", "ForCausalLM", **DECODER), masked),
    "mixtral": Counted(
        partial(of_transformers, "Mixtral", "ForCausalLM", **DECODER, num_local_experts=4),
        partial(masked, 256),
    ),
    "whisper": Counted(partial(of_transformers, "Whisper", "Model", **SPOKEN), sound),
    "clip": Counted(towered, towers),
}
"""By name."""


def made(name: str, device: str) -> tuple[nn.Module, list[Any], dict[str, Any]]:
    """A module in evaluation on a device, and its inputs by position and by keyword."""
    with torch.device(device):
        module, inputs = COUNTED[name].build().eval(), COUNTED[name].inputs()
    module.requires_grad_(False)  # else torch's own counter asks for gradients
    return module, [inputs.pop("")] if "" in inputs else [], inputs
