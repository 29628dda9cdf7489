"""The DeepSeek-V2 decoder (arXiv 2405.04434) under the vendor's names.

Operators are those of the vendor's files under transformers 4.46.3, for inference: there is no
dropout and no loss. Tensors live as long as there, so some names outlive their use or are reused
early. In shapes: B batch, T new tokens, K keys, H
heads, D head size, d width, E experts, k experts per token, V vocabulary.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    SequenceClassifierOutputWithPast,
)

from dsocr_analyze.architectures.architecture import GrowingCache

from .configuration_deepseek_v2 import DeepseekV2Config

# The kernel is looked up in this module on every call, so it can be replaced during a pass.
try:
    from flash_attn import flash_attn_func
except ImportError:
    flash_attn_func = None

__all__ = [
    "ATTENTION_CLASSES",
    "AddAuxiliaryLoss",
    "DeepseekV2Attention",
    "DeepseekV2DecoderLayer",
    "DeepseekV2DynamicNTKScalingRotaryEmbedding",
    "DeepseekV2FlashAttention2",
    "DeepseekV2ForCausalLM",
    "DeepseekV2ForSequenceClassification",
    "DeepseekV2LinearScalingRotaryEmbedding",
    "DeepseekV2MLP",
    "DeepseekV2MoE",
    "DeepseekV2Model",
    "DeepseekV2PreTrainedModel",
    "DeepseekV2RMSNorm",
    "DeepseekV2RotaryEmbedding",
    "DeepseekV2YarnRotaryEmbedding",
    "LlamaAttention",
    "LlamaFlashAttention2",
    "LlamaRotaryEmbedding",
    "MoEGate",
    "repeat_kv",
]


def _one_of(value: Any, known: Sequence[str], key: str) -> str:
    """`value`, or a ValueError for the config's key if it is not `known`."""
    if value not in known:
        raise ValueError(f"{key} is {value!r}; known: {', '.join(known)}")
    return str(value)


# ----------------------------------------------------------------------------------------- cache


class Cache(Protocol):
    """What attention needs of a cache: a `GrowingCache` or transformers' `DynamicCache`.

    Per layer it has keys and values (with MLA, rotary keys and latents), `[B, heads, K, size]`.
    """

    def update(self, key: Tensor, value: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Appends to a layer and returns all of it."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions that a layer holds."""


# --------------------------------------------------------------------------------- normalisation


class DeepseekV2RMSNorm(nn.Module):
    """`weight * x / sqrt(mean(x^2) + eps)`, in fp32 (Zhang and Sennrich, 2019, eq. 4)."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        """`[..., d]` -> `[..., d]` in the same dtype."""
        wide = hidden_states.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype)


# ------------------------------------------------------------------------------ rotary positions


def _inverse_frequencies(dim: int, base: float, device: torch.device | None = None) -> Tensor:
    """`base^(-2 i / dim)` for i = 0 .. dim / 2 - 1 (RoFormer, Su et al. 2021, eq. 15)."""
    # As published: created on torch's default device, then moved.
    return 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float().to(device) / dim))


def _buffer(compute: Callable[[], Tensor], dim: int, device: torch.device | None = None) -> Tensor:
    """Frequencies `[dim / 2]`; empty on `meta`, where arithmetic would import a compiler."""
    empty = torch.empty(dim // 2, dtype=torch.float32, device=device)
    return empty if empty.is_meta else compute()


def _yarn_frequencies(
    dim: int,
    base: float,
    factor: float,
    original_length: int,
    beta_fast: float,
    beta_slow: float,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """YaRN's blend of frequencies (Peng et al. 2023, eq. 17 to 23), `[dim / 2]`.

    Those of more than `beta_fast` turns over the original length are kept, of less than `beta_slow`
    divided by `factor`. Also returns both, and the share of the kept ones.
    """

    def dimension_turning(times: float) -> float:
        return dim * math.log(original_length / (times * 2 * math.pi)) / (2 * math.log(base))

    first = max(math.floor(dimension_turning(beta_fast)), 0)
    last: float = min(math.ceil(dimension_turning(beta_slow)), dim - 1)
    if first == last:
        last += 0.001  # the published guard against dividing by zero

    def periods() -> Tensor:
        exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim
        return torch.pow(base, exponents)

    kept, interpolated = 1.0 / periods(), 1.0 / (factor * periods())

    def ramp() -> Tensor:
        # As published: created on torch's default device, then moved.
        steps = (torch.arange(dim // 2, dtype=torch.float32) - first) / (last - first)
        return torch.clamp(steps, 0, 1)

    kept_share = 1.0 - ramp().to(device=device)
    blend = interpolated * (1 - kept_share) + kept * kept_share
    return blend, kept, interpolated, kept_share


def _yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """`0.1 mscale ln(factor) + 1`, or 1 without scaling (Peng et al. 2023, eq. 22)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


class DeepseekV2RotaryEmbedding(nn.Module):
    """Cosines and sines up to the longest length asked for, in halves (RoFormer, eq. 34)."""

    def __init__(
        self,
        dim: int,
        max_position_embeddings: int = 2048,
        base: float = 10000,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.base = dim, base
        self.max_position_embeddings = max_position_embeddings
        self.inv_freq: Tensor
        self.cos_cached: Tensor
        self.sin_cached: Tensor
        frequencies = _buffer(lambda: _inverse_frequencies(dim, base, device), dim, device)
        self.register_buffer("inv_freq", frequencies, persistent=False)
        # The published class also computes the table at construction.
        self.register_buffer("cos_cached", None, persistent=False)
        self.register_buffer("sin_cached", None, persistent=False)
        self.max_seq_len_cached = 0

    def _tune(self, seq_len: int, device: torch.device) -> tuple[Tensor, ...]:
        """Sets a length's frequencies; returns tensors that the published code holds."""
        return ()

    def _positions(self, seq_len: int, device: torch.device) -> Tensor:
        return torch.arange(seq_len, device=device, dtype=self.inv_freq.dtype)

    def _scaled(self, table: Tensor) -> Tensor:
        """A table with corrected magnitude."""
        return table

    def _fill(self, seq_len: int, device: torch.device, dtype: torch.dtype) -> None:
        _on_the_way = self._tune(seq_len, device)
        positions = self._positions(seq_len, device)
        half = torch.outer(positions, self.inv_freq.to(device))
        angles = torch.cat((half, half), dim=-1)  # [seq_len, dim]
        self.cos_cached = self._scaled(angles.cos()).to(dtype)
        self.sin_cached = self._scaled(angles.sin()).to(dtype)
        self.max_seq_len_cached = seq_len

    def forward(self, x: Tensor, seq_len: int | None = None) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[seq_len, dim]` in the type of `x`; ValueError without `seq_len`."""
        if seq_len is None:
            raise ValueError("seq_len is None; give the number of positions")
        if seq_len > self.max_seq_len_cached:
            self._fill(seq_len, x.device, x.dtype)
        return self.cos_cached[:seq_len].to(x.dtype), self.sin_cached[:seq_len].to(x.dtype)


class DeepseekV2LinearScalingRotaryEmbedding(DeepseekV2RotaryEmbedding):
    """Positions divided by `scaling_factor` (position interpolation, Chen et al. 2023, eq. 4)."""

    def __init__(
        self,
        dim: int,
        max_position_embeddings: int = 2048,
        base: float = 10000,
        device: torch.device | None = None,
        scaling_factor: float = 1.0,
    ) -> None:
        super().__init__(dim, max_position_embeddings, base, device)
        self.scaling_factor = scaling_factor

    def _positions(self, seq_len: int, device: torch.device) -> Tensor:
        return super()._positions(seq_len, device) / self.scaling_factor


class DeepseekV2DynamicNTKScalingRotaryEmbedding(DeepseekV2RotaryEmbedding):
    """`base' = base (s L / L0 - (s - 1))^(dim / (dim - 2))` beyond L0 (Peng et al. 2023, A.2)."""

    def __init__(
        self,
        dim: int,
        max_position_embeddings: int = 2048,
        base: float = 10000,
        device: torch.device | None = None,
        scaling_factor: float = 1.0,
    ) -> None:
        super().__init__(dim, max_position_embeddings, base, device)
        self.scaling_factor = scaling_factor

    def _tune(self, seq_len: int, device: torch.device) -> tuple[Tensor, ...]:
        if seq_len > self.max_position_embeddings:
            stretch = self.scaling_factor * seq_len / self.max_position_embeddings
            stretch -= self.scaling_factor - 1
            base = self.base * stretch ** (self.dim / (self.dim - 2))
            self.inv_freq = _inverse_frequencies(self.dim, base, device)
        return ()


class DeepseekV2YarnRotaryEmbedding(DeepseekV2RotaryEmbedding):
    """YaRN; attention's softmax corrects the part `mscale_all_dim` of the magnitude."""

    def __init__(
        self,
        dim: int,
        max_position_embeddings: int = 2048,
        base: float = 10000,
        device: torch.device | None = None,
        scaling_factor: float = 1.0,
        original_max_position_embeddings: int = 4096,
        beta_fast: float = 32,
        beta_slow: float = 1,
        mscale: float = 1,
        mscale_all_dim: float = 0,
    ) -> None:
        super().__init__(dim, max_position_embeddings, base, device)
        self.scaling_factor = scaling_factor
        self.original_max_position_embeddings = original_max_position_embeddings
        self.beta_fast, self.beta_slow = beta_fast, beta_slow
        self.mscale, self.mscale_all_dim = mscale, mscale_all_dim

    def _tune(self, seq_len: int, device: torch.device) -> tuple[Tensor, ...]:
        self.inv_freq, *on_the_way = _yarn_frequencies(
            self.dim,
            self.base,
            self.scaling_factor,
            self.original_max_position_embeddings,
            self.beta_fast,
            self.beta_slow,
            device,
        )
        return tuple(on_the_way)

    def _scaled(self, table: Tensor) -> Tensor:
        magnitude = _yarn_magnitude(self.scaling_factor, self.mscale)
        return table * (magnitude / _yarn_magnitude(self.scaling_factor, self.mscale_all_dim))


def _rotate_half(x: Tensor) -> Tensor:
    """`[x1, x2]` -> `[-x2, x1]` over the halves of the last dimension."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x cos + rotate_half(x) sin` (RoFormer, eq. 34)."""
    return (x * cos) + (_rotate_half(x) * sin)


def _halves_from_pairs(x: Tensor) -> Tensor:
    """Reorders `[x0, x1, x2, ...]` to `[x0, x2, ..., x1, x3, ...]` over the last dimension."""
    *lead, size = x.shape
    return x.view(*lead, size // 2, 2).transpose(-1, -2).reshape(*lead, size)


# ------------------------------------------------------------------------------------ MLP and MoE


def _activation(name: str) -> nn.Module:
    """transformers' activation, or a ValueError; silu is torch's."""
    if name in ("silu", "swish"):
        return nn.SiLU()
    return cast("nn.Module", ACT2FN[_one_of(name, list(ACT2FN), "hidden_act")])


class DeepseekV2MLP(nn.Module):
    """SwiGLU: `down(act(gate(x)) * up(x))`, no biases (Shazeer 2020, eq. 6)."""

    def __init__(
        self,
        config: DeepseekV2Config,
        hidden_size: int | None = None,
        intermediate_size: int | None = None,
    ) -> None:
        super().__init__()
        width = config.hidden_size if hidden_size is None else hidden_size
        inner = config.intermediate_size if intermediate_size is None else intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)
        self.act_fn = _activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., d]` -> `[..., d]`."""
        return cast("Tensor", self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))


class MoEGate(nn.Module):
    """The router: fp32 logits, scores, top-k experts; ValueError for an unknown method or score.

    The published `gready` is greedy. Source: DeepSeek-V2 (2405.04434, eq. 20 to 29; group-limited:
    section 2.2.2), DeepSeek-V3 (2412.19437, eq. 12 to 16, noaux_tc); the vendor's.
    """

    METHODS: Final = ("greedy", "group_limited_greedy", "noaux_tc")

    def __init__(self, config: DeepseekV2Config) -> None:
        super().__init__()
        method = "greedy" if config.topk_method == "gready" else config.topk_method
        self.topk_method = _one_of(method, self.METHODS, "topk_method")
        self.scoring_func = _one_of(config.scoring_func, ("softmax", "sigmoid"), "scoring_func")
        self.top_k: int = config.num_experts_per_tok
        self.n_routed_experts: int = config.n_routed_experts
        self.n_group, self.topk_group = config.n_group, config.topk_group
        self.norm_topk_prob = bool(config.norm_topk_prob)
        self.routed_scaling_factor = float(config.routed_scaling_factor)
        self.weight = nn.Parameter(torch.empty(self.n_routed_experts, config.hidden_size))
        if self.topk_method == "noaux_tc":
            self.e_score_correction_bias = nn.Parameter(torch.zeros(self.n_routed_experts))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # as `nn.Linear` does

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Experts of `[B, T, d]` and their fp32 weights, `[B * T, k]` each."""
        flat = hidden_states.view(-1, hidden_states.shape[-1])
        logits = F.linear(flat.type(torch.float32), self.weight.type(torch.float32))
        if self.scoring_func == "softmax":
            scores = logits.softmax(dim=-1, dtype=torch.float32)
        else:
            scores = logits.sigmoid()
        experts, weights, *_ranking = self._select(scores)
        if self.top_k > 1 and self.norm_topk_prob:
            denominator = weights.sum(dim=-1, keepdim=True) + 1e-20
            weights = weights / denominator * self.routed_scaling_factor
        else:
            weights = weights * self.routed_scaling_factor
        return experts, weights

    def _select(self, scores: Tensor) -> tuple[Tensor, ...]:
        """Experts and scores `[tokens, k]`, and what the router holds to its end."""
        if self.topk_method == "greedy":
            weights, experts = torch.topk(scores, k=self.top_k, dim=-1, sorted=False)
            return experts, weights
        if self.topk_method == "group_limited_greedy":
            members = scores.view(-1, self.n_group, self.n_routed_experts // self.n_group)
            ranks = members.max(dim=-1).values
            kept = self._within_best_groups(scores, ranks)
            weights, experts = torch.topk(kept[0], k=self.top_k, dim=-1, sorted=False)
            return experts, weights, ranks, *kept
        corrected = scores + self.e_score_correction_bias.unsqueeze(0)
        members = corrected.view(-1, self.n_group, self.n_routed_experts // self.n_group)
        ranks = members.topk(2, dim=-1)[0].sum(dim=-1)
        kept = self._within_best_groups(corrected, ranks)
        chosen, experts = torch.topk(kept[0], k=self.top_k, dim=-1, sorted=False)
        return experts, scores.gather(1, experts), corrected, ranks, *kept, chosen

    def _within_best_groups(self, scores: Tensor, ranks: Tensor) -> tuple[Tensor, ...]:
        """Scores `[tokens, E]`, zero outside the best groups, the groups and two masks."""
        best = torch.topk(ranks, k=self.topk_group, dim=-1, sorted=False)[1]
        chosen = torch.zeros_like(ranks).scatter_(1, best, 1)
        size = self.n_routed_experts // ranks.shape[1]
        mask = chosen.unsqueeze(-1).expand(*chosen.shape, size).reshape(chosen.shape[0], -1)
        return scores.masked_fill(~mask.bool(), 0.0), best, chosen, mask


class AddAuxiliaryLoss(torch.autograd.Function):
    """Returns `x`, and adds the loss to the total in backward; no module here trains with it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        """`x` `[...]` unchanged; `loss` must hold one element."""
        if loss.numel() != 1:
            raise ValueError(f"an auxiliary loss has one element, not {loss.numel()}")
        ctx.loss_dtype = loss.dtype if loss.requires_grad else None
        return x

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor | None]:
        """The gradient of `x`; ones `[1]` for a loss that requires a gradient."""
        if ctx.loss_dtype is None:
            return grad_output, None
        return grad_output, torch.ones(1, dtype=ctx.loss_dtype, device=grad_output.device)


class DeepseekV2MoE(nn.Module):
    """`y = sum_i g_i E_i(x) + E_shared(x)` (2405.04434, eq. 20); ValueError for `ep_size` > 1."""

    def __init__(self, config: DeepseekV2Config) -> None:
        super().__init__()
        if config.ep_size > 1:
            raise ValueError(f"ep_size is {config.ep_size}; only 1 (all experts here) is supported")
        inner = config.moe_intermediate_size
        self.experts = nn.ModuleList(
            DeepseekV2MLP(config, intermediate_size=inner) for _ in range(config.n_routed_experts)
        )
        self.gate = MoEGate(config)
        self.shared_experts = (
            DeepseekV2MLP(config, intermediate_size=inner * config.n_shared_experts)
            if config.n_shared_experts is not None
            else None
        )

    def forward(self, hidden_states: Tensor) -> Tensor:
        """`[B, T, d]` -> `[B, T, d]`."""
        experts, weights = self.gate(hidden_states)
        flat = hidden_states.view(-1, hidden_states.shape[-1])
        y = self.moe_infer(flat, experts, weights).view(hidden_states.shape)
        if self.shared_experts is not None:
            y = y + self.shared_experts(hidden_states)
        return y

    @torch.no_grad()
    def moe_infer(self, x: Tensor, topk_ids: Tensor, topk_weight: Tensor) -> Tensor:
        """Sorts tokens `[tokens, d]` by expert, runs those that have any, and sums in fp32."""
        chosen = topk_ids.new_zeros((topk_ids.shape[0], len(self.experts)))
        chosen.scatter_(1, topk_ids, 1)
        tokens_per_expert = chosen.sum(dim=0)
        order = topk_ids.view(-1).argsort()
        sorted_tokens = x[order // topk_ids.shape[1]]

        outputs, start = [], 0
        # The only values read: how many tokens does each expert get?
        counts = tokens_per_expert.cpu().numpy()
        del tokens_per_expert
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                outputs.append(expert(sorted_tokens[start : start + count]))
                start += count
        by_expert = torch.cat(outputs, dim=0) if outputs else sorted_tokens.new_empty(0)

        by_token = torch.empty_like(by_expert)
        by_token[order] = by_expert
        by_choice = by_token.view(*topk_ids.shape, -1)
        return (
            by_choice.type(topk_weight.dtype)
            .mul_(topk_weight.unsqueeze(dim=-1))
            .sum(dim=1)
            .type(x.dtype)
        )


# -------------------------------------------------------------------------------------- attention


def repeat_kv(hidden_states: Tensor, n_rep: int) -> Tensor:
    """`[B, KV heads, K, D] -> [B, KV heads * n_rep, K, D]`; the input itself for `n_rep` 1."""
    if n_rep == 1:
        return hidden_states
    batch, heads, length, size = hidden_states.shape
    repeated = hidden_states[:, :, None, :, :].expand(batch, heads, n_rep, length, size)
    return repeated.reshape(batch, heads * n_rep, length, size)


def _causal_mask(
    attention_mask: Tensor | None,
    embeds: Tensor,
    past_length: int,
) -> Tensor | None:
    """Additive mask `[B, 1, T, K]`: zero where a query may attend, else the minimum; not if T = 1.

    `attention_mask` is `[B, K]`, zero at padding, or `[B, 1, T, K]` instead of causality. Source:
    `_prepare_4d_causal_attention_mask` of transformers 4.46.
    """
    batch, length = embeds.shape[:2]
    keys, lowest = past_length + length, torch.finfo(embeds.dtype).min
    if attention_mask is not None and attention_mask.dim() == 4:
        if attention_mask.shape != (batch, 1, length, keys):
            raise ValueError(
                f"attention_mask has shape {tuple(attention_mask.shape)};"
                f" give {(batch, 1, length, keys)}"
            )
        hidden = 1.0 - attention_mask
        return hidden.masked_fill(hidden.to(torch.bool), lowest)
    causal = None
    if length > 1:
        device = embeds.device if attention_mask is None else attention_mask.device
        causal = _triangle(length, past_length, embeds.dtype, device)
        causal = causal.expand(batch, 1, length, keys)
    if attention_mask is None:
        return causal
    padding = _padding(attention_mask, length, embeds.dtype)
    return padding if causal is None else causal.masked_fill(padding.bool(), lowest)


def _padding(attention_mask: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """`[B, K]` of ones and zeros -> `[B, 1, T, K]` of zeros and the minimum."""
    batch, keys = attention_mask.shape
    visible = attention_mask[:, None, None, :].expand(batch, 1, length, keys).to(dtype)
    hidden = 1.0 - visible
    return hidden.masked_fill(hidden.to(torch.bool), torch.finfo(dtype).min)


def _triangle(length: int, past: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`[1, 1, T, past + T]`: zero up to the diagonal and over the past, else the minimum."""
    mask = torch.full((length, length), torch.finfo(dtype).min, device=device)
    index = torch.arange(length, device=device)
    mask.masked_fill_(index < (index + 1).view(length, 1), 0)
    mask = mask.to(dtype)
    if past:
        mask = torch.cat([torch.zeros(length, past, dtype=dtype, device=device), mask], dim=-1)
    return mask[None, None, :, :]


def _softmax(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """Softmax over the keys in fp32, cast back."""
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(dtype)


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    softmax_scale: float | None,
) -> Tensor:
    """Causal attention by flash-attn, as transformers 4.46 calls it: `[B, T, H, D]`.

    ValueError for a mask, which hides padding, and for packed sequences, whose positions go back:
    both need flash-attn's kernel for ragged rows.
    """
    if flash_attn_func is None:
        raise ImportError(
            "flash_attention_2 needs the package flash-attn; use eager attention, or replace"
            " flash_attn_func of this module"
        )
    if attention_mask is not None:
        raise ValueError("attention_mask hides tokens; with flash attention give prompts unpadded")
    if (
        position_ids is not None
        and query.shape[1] != 1
        and not (torch.diff(position_ids, dim=-1) >= 0).all()
    ):
        raise ValueError("position_ids go back; with flash attention give one sequence per row")
    attended = flash_attn_func(query, key, value, softmax_scale=softmax_scale, causal=True)
    return cast("Tensor", attended)


class LlamaRotaryEmbedding(nn.Module):
    """RoPE of plain attention on every call (RoFormer, eq. 34; the class in transformers 4.46)."""

    def __init__(self, config: DeepseekV2Config) -> None:
        super().__init__()
        dim, base = _head_dim(config), float(config.rope_theta)
        scaling = config.rope_scaling or {}
        kind = _one_of(
            scaling.get("rope_type", scaling.get("type", "default")),
            ("default", "linear", "yarn"),
            "rope_scaling.type (without MLA)",
        )
        factor = 1.0 if kind == "default" else float(scaling["factor"])
        self.attention_scaling = 1.0
        if kind == "yarn":
            given = scaling.get("attention_factor")
            self.attention_scaling = float(_yarn_magnitude(factor) if given is None else given)

        def frequencies() -> Tensor:
            if kind != "yarn":
                return _inverse_frequencies(dim, base) / factor
            fast, slow = scaling.get("beta_fast") or 32, scaling.get("beta_slow") or 1
            length = config.max_position_embeddings
            return _yarn_frequencies(dim, base, factor, length, fast, slow)[0]

        self.inv_freq: Tensor
        self.register_buffer("inv_freq", _buffer(frequencies, dim), persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[1 or B, T, D]` at `position_ids`, in fp32, cast like `x`."""
        frequencies = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        positions = position_ids[:, None, :].float()
        half = (frequencies @ positions).transpose(1, 2)
        angles = torch.cat((half, half), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        cos = cos * self.attention_scaling
        sin = sin * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


def _head_dim(config: DeepseekV2Config) -> int:
    own = getattr(config, "head_dim", None)
    return int(own if own is not None else config.hidden_size // config.num_attention_heads)


class LlamaAttention(nn.Module):
    """Multi-head attention with rotary positions and grouped keys and values, eager.

    `softmax(q k^T / sqrt(D) + mask) v` (Vaswani et al. 2017, eq. 1), the whole T x K product. A
    cache needs `layer_idx`.
    """

    def __init__(self, config: DeepseekV2Config, layer_idx: int | None = None) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.num_heads: int = config.num_attention_heads
        self.num_key_value_heads: int = config.num_key_value_heads
        self.num_key_value_groups = self.num_heads // self.num_key_value_heads
        self.head_dim = _head_dim(config)
        width, bias = config.hidden_size, bool(config.attention_bias)
        self.q_proj = nn.Linear(width, self.num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, self.num_key_value_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, self.num_key_value_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, width, bias=bias)
        self.rotary_emb = LlamaRotaryEmbedding(config)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_value: Cache | None = None,
        output_attentions: bool = False,
        use_cache: bool = False,
        cache_position: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Cache | None]:
        """`[B, T, d]`, the weights `[B, H, T, K]` if asked for, and the cache.

        The mask is additive, `[B, 1, T, K]`; positions are 0 .. T - 1, or `position_ids`, or their
        cosines and sines. Other arguments are unused, as published.
        """
        query, key, value, *_tables = self._heads(
            hidden_states, position_ids, past_key_value, position_embeddings
        )
        key = repeat_kv(key, self.num_key_value_groups)
        value = repeat_kv(value, self.num_key_value_groups)
        heads, weights = self._attended(query, key, value, attention_mask)
        out = self.o_proj(heads.reshape(*hidden_states.shape[:2], -1))
        return out, weights if output_attentions else None, past_key_value

    def _attended(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Output of each head `[B, T, H, D]` and weights `[B, H, T, K]`."""
        weights = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(self.head_dim)
        if attention_mask is not None:
            weights = weights + attention_mask[:, :, :, : key.shape[-2]]
        weights = _softmax(weights, query.dtype)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights

    def _heads(
        self,
        hidden_states: Tensor,
        position_ids: Tensor | None,
        cache: Cache | None,
        tables: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, ...]:
        """Rotated queries `[B, H, T, D]`, all keys and values `[B, KV heads, K, D]`, and tables."""
        batch, length, _ = hidden_states.shape
        query, key, value = (
            projection(hidden_states).view(batch, length, -1, self.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if tables is None:
            if position_ids is None:
                position_ids = torch.arange(length, device=hidden_states.device).unsqueeze(0)
            tables = self.rotary_emb(value, position_ids)
        cos, sin = (table.unsqueeze(1) for table in tables)
        query, key = _rotated(query, cos, sin), _rotated(key, cos, sin)
        if cache is not None:
            key, value = cache.update(key, value, place_in_cache(self.layer_idx))
        return query, key, value, cos, sin


class LlamaFlashAttention2(LlamaAttention):
    """The same attention through flash-attn, which does not store the T x K product."""

    def forward(  # type: ignore[override]  # as published: no further keywords
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_value: Cache | None = None,
        output_attentions: bool = False,
        use_cache: bool = False,
        cache_position: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None, Cache | None]:
        """As `LlamaAttention`, but the mask is `[B, K]` or None, and no weights are returned."""
        query, key, value, *_tables = self._heads(
            hidden_states, position_ids, past_key_value, position_embeddings
        )
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        attended = _flash(query, key, value, attention_mask, position_ids, None)
        attended = attended.reshape(*hidden_states.shape[:2], -1).contiguous()
        return self.o_proj(attended), None, past_key_value


_ROTARY: Final[dict[str, tuple[Callable[..., DeepseekV2RotaryEmbedding], tuple[str, ...]]]] = {
    "linear": (DeepseekV2LinearScalingRotaryEmbedding, ()),
    "dynamic": (DeepseekV2DynamicNTKScalingRotaryEmbedding, ()),
    "yarn": (
        DeepseekV2YarnRotaryEmbedding,
        (
            "original_max_position_embeddings",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
        ),
    ),
}


class DeepseekV2Attention(nn.Module):
    """Multi-head latent attention, eager, with the up-projection absorbed.

    Only a latent `c` and a rotary key are cached; `[W_k; W_v]` (`kv_b_proj`, never called)
    multiplies the other side: `q_nope . (W_k c) = (q_nope W_k) . c`, `sum_j a_j W_v c_j = W_v sum_j
    a_j c_j` (2405.04434, eq. 9 to 19 and section 2.1.2).
    """

    def __init__(self, config: DeepseekV2Config, layer_idx: int | None = None) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.num_heads: int = config.num_attention_heads
        self.q_lora_rank: int | None = config.q_lora_rank
        self.kv_lora_rank: int = config.kv_lora_rank
        self.qk_nope_head_dim: int = config.qk_nope_head_dim
        self.qk_rope_head_dim: int = config.qk_rope_head_dim
        self.v_head_dim: int = config.v_head_dim
        self.q_head_dim = self.qk_nope_head_dim + self.qk_rope_head_dim
        width, bias = config.hidden_size, bool(config.attention_bias)
        if self.q_lora_rank is None:
            self.q_proj = nn.Linear(width, self.num_heads * self.q_head_dim, bias=False)
        else:
            self.q_a_proj = nn.Linear(width, self.q_lora_rank, bias=bias)
            self.q_a_layernorm = DeepseekV2RMSNorm(self.q_lora_rank)
            self.q_b_proj = nn.Linear(
                self.q_lora_rank, self.num_heads * self.q_head_dim, bias=False
            )
        self.kv_a_proj_with_mqa = nn.Linear(
            width, self.kv_lora_rank + self.qk_rope_head_dim, bias=bias
        )
        self.kv_a_layernorm = DeepseekV2RMSNorm(self.kv_lora_rank)
        self.kv_b_proj = nn.Linear(
            self.kv_lora_rank,
            self.num_heads * (self.qk_nope_head_dim + self.v_head_dim),
            bias=False,
        )
        self.o_proj = nn.Linear(self.num_heads * self.v_head_dim, width, bias=bias)
        self.rotary_emb = self._rotary(config)
        self.softmax_scale = self._softmax_scale(config)

    def _rotary(self, config: DeepseekV2Config) -> DeepseekV2RotaryEmbedding:
        common = (self.qk_rope_head_dim, config.max_position_embeddings, config.rope_theta)
        scaling = config.rope_scaling
        if scaling is None:
            return DeepseekV2RotaryEmbedding(*common)
        kind = _one_of(scaling.get("type"), list(_ROTARY), "rope_scaling.type (with MLA)")
        rotary, optional = _ROTARY[kind]
        extra = {key: scaling[key] for key in optional if key in scaling}
        return rotary(*common, scaling_factor=scaling["factor"], **extra)

    def _softmax_scale(self, config: DeepseekV2Config) -> float:
        """`1 / sqrt(q head size)`, times the square of YaRN's magnitude for all sizes."""
        scale = float(self.q_head_dim**-0.5)
        scaling = config.rope_scaling or {}
        if scaling.get("mscale_all_dim", 0):
            scale *= _yarn_magnitude(scaling["factor"], scaling["mscale_all_dim"]) ** 2
        return scale

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_value: Cache | None = None,
        output_attentions: bool = False,
        use_cache: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Cache | None]:
        """As `LlamaAttention`; the cache holds rotary keys and latents, `[B, 1, K, size]`."""
        batch, length, _ = hidden_states.shape
        q_nope, q_pe = self._queries(hidden_states)
        latent, k_pe = self._latent(hidden_states)
        latent = self.kv_a_layernorm(latent)
        q_pe, k_pe = self._rotate(q_pe, k_pe, position_ids, past_key_value)
        if past_key_value is not None:
            place = place_in_cache(self.layer_idx)
            k_pe, cached = past_key_value.update(k_pe, latent.unsqueeze(1), place)
            latent = cached.squeeze(1)

        up = self.kv_b_proj.weight.view(self.num_heads, -1, self.kv_lora_rank)
        up_key, up_value = up[:, : self.qk_nope_head_dim, :], up[:, self.qk_nope_head_dim :, :]
        q_latent = torch.matmul(q_nope, up_key)  # [B, H, T, kv_lora_rank]
        weights = torch.matmul(q_pe, k_pe.mT) + torch.matmul(q_latent, latent.unsqueeze(-3).mT)
        weights = weights * self.softmax_scale
        if attention_mask is not None:
            weights = weights + attention_mask
        weights = _softmax(weights, q_pe.dtype)
        heads = torch.einsum("bhql,blc->bhqc", weights, latent)
        heads = torch.matmul(heads, up_value.mT)
        heads = heads.transpose(1, 2).contiguous()
        out = self.o_proj(heads.reshape(batch, length, self.num_heads * self.v_head_dim))
        return out, weights if output_attentions else None, past_key_value

    def _queries(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Queries without and with positions, `[B, H, T, nope]` and `[B, H, T, rope]`."""
        batch, length, _ = hidden_states.shape
        if self.q_lora_rank is None:
            query = self.q_proj(hidden_states)
        else:
            query = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        query = query.view(batch, length, self.num_heads, self.q_head_dim).transpose(1, 2)
        q_nope, q_pe = query.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        return q_nope, q_pe

    def _latent(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """The latent `[B, T, rank]` before its norm, and the shared key `[B, 1, T, rope]`."""
        batch, length, _ = hidden_states.shape
        joint = self.kv_a_proj_with_mqa(hidden_states)
        latent, k_pe = joint.split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        return latent, k_pe.view(batch, length, 1, self.qk_rope_head_dim).transpose(1, 2)

    def _rotate(
        self, q_pe: Tensor, k_pe: Tensor, position_ids: Tensor | None, cache: Cache | None
    ) -> tuple[Tensor, Tensor]:
        """Rotates queries and shared key, which checkpoints store in pairs."""
        past = 0 if cache is None else cache.get_seq_length(place_in_cache(self.layer_idx))
        length = q_pe.shape[-2]
        if position_ids is None:
            position_ids = torch.arange(past, past + length, device=q_pe.device).unsqueeze(0)
        tables = self.rotary_emb(q_pe, seq_len=past + length)
        cos, sin = (table[position_ids].unsqueeze(1) for table in tables)
        query, key = _halves_from_pairs(q_pe), _halves_from_pairs(k_pe)
        return _rotated(query, cos, sin), _rotated(key, cos, sin)


def place_in_cache(layer_idx: int | None) -> int:
    """Index of a layer in the cache, or a ValueError."""
    if layer_idx is None:
        raise ValueError("layer_idx is None; a cache needs the number of the layer, from 0")
    return layer_idx


class DeepseekV2FlashAttention2(DeepseekV2Attention):
    """Latent attention by flash-attn, whose whole keys and values are cached."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_value: Cache | None = None,
        output_attentions: bool = False,
        use_cache: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Cache | None]:
        """As `DeepseekV2Attention`, but the mask is `[B, K]` or None; no weights are returned."""
        batch, length, _ = hidden_states.shape
        q_nope, q_pe = self._queries(hidden_states)
        latent, k_pe = self._latent(hidden_states)
        up = self.kv_b_proj(self.kv_a_layernorm(latent))
        up = up.view(batch, length, self.num_heads, -1).transpose(1, 2)
        k_nope, value = up.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        q_pe, k_pe = self._rotate(q_pe, k_pe, position_ids, past_key_value)
        query, key = self._joined(q_nope, q_pe, k_pe), self._joined(k_nope, k_pe, k_pe)
        if self.q_head_dim != self.v_head_dim:
            value = F.pad(value, [0, self.q_head_dim - self.v_head_dim])
        if past_key_value is not None:
            key, value = past_key_value.update(key, value, place_in_cache(self.layer_idx))
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        attended = _flash(query, key, value, attention_mask, None, self.softmax_scale)
        if self.q_head_dim != self.v_head_dim:
            attended = attended[:, :, :, : self.v_head_dim]
        attended = attended.reshape(batch, length, self.num_heads * self.v_head_dim).contiguous()
        return self.o_proj(attended), None, past_key_value

    def _joined(self, nope: Tensor, pe: Tensor, like: Tensor) -> Tensor:
        """`[B, H, T, nope]` and `[B, H or 1, T, rope]` -> `[B, H, T, nope + rope]`."""
        joined = like.new_empty(*nope.shape[:3], self.q_head_dim)
        joined[:, :, :, : self.qk_nope_head_dim] = nope
        joined[:, :, :, self.qk_nope_head_dim :] = pe
        return joined


AttentionClasses = Mapping[str, type[LlamaAttention] | type[DeepseekV2Attention]]

ATTENTION_CLASSES: Final[AttentionClasses] = {
    "mha_eager": LlamaAttention,
    "mha_flash_attention_2": LlamaFlashAttention2,
    "mla_eager": DeepseekV2Attention,
    "mla_flash_attention_2": DeepseekV2FlashAttention2,
}


# ------------------------------------------------------------------------------------ the decoder


class DeepseekV2DecoderLayer(nn.Module):
    """`h = x + attention(norm(x))`, `h + mlp(norm(h))`.

    The MLP is a mixture from `first_k_dense_replace` on, where `moe_layer_freq` divides the index.
    """

    attention_classes: ClassVar[AttentionClasses] = ATTENTION_CLASSES

    def __init__(self, config: DeepseekV2Config, layer_idx: int) -> None:
        super().__init__()
        family = "mla_" if config.use_mla else "mha_"
        known = [
            name.removeprefix(family) for name in self.attention_classes if name.startswith(family)
        ]
        implementation = _one_of(config._attn_implementation, known, "_attn_implementation")
        self.self_attn = self.attention_classes[family + implementation](config, layer_idx)
        is_mixture = (
            config.n_routed_experts is not None
            and layer_idx >= config.first_k_dense_replace
            and layer_idx % config.moe_layer_freq == 0
        )
        self.mlp = DeepseekV2MoE(config) if is_mixture else DeepseekV2MLP(config)
        self.input_layernorm = DeepseekV2RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = DeepseekV2RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_value: Cache | None = None,
        output_attentions: bool = False,
        use_cache: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """`[B, T, d]` -> `[B, T, d]`, then the weights and the cache if asked for."""
        attended, weights, present = self.self_attn(
            hidden_states=self.input_layernorm(hidden_states),
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_value=past_key_value,
            output_attentions=output_attentions,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_states = hidden_states + attended
        del attended
        hidden_states = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        asked = ((output_attentions, weights), (use_cache, present))
        return hidden_states, *(value for is_asked, value in asked if is_asked)


class DeepseekV2PreTrainedModel(PreTrainedModel):  # type: ignore[misc]  # untyped base
    """What transformers requires of a model class."""

    config_class = DeepseekV2Config
    base_model_prefix = "model"
    _supports_flash_attn_2 = _supports_flash_attn = True  # of transformers 4 and 5
    _supports_cache_class = True

    def _init_weights(self, module: nn.Module) -> None:
        """Leaves what constructors draw: only training begins with other values."""

    def _chosen(self, value: bool | None, key: str, default: bool = False) -> bool:
        """An argument of `forward`, or the config's value if it is None."""
        return bool(getattr(self.config, key, default) if value is None else value)


class DeepseekV2Model(DeepseekV2PreTrainedModel):
    """Token embedding, layers, and a final norm."""

    layer_class: ClassVar[type[DeepseekV2DecoderLayer]] = DeepseekV2DecoderLayer

    def __init__(self, config: DeepseekV2Config) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(
            self.layer_class(config, index) for index in range(config.num_hidden_layers)
        )
        self.norm = DeepseekV2RMSNorm(config.hidden_size, config.rms_norm_eps)

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.embed_tokens

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cache_position: Tensor | None = None,
    ) -> Any:
        """Runs on `input_ids` `[B, T]` or `inputs_embeds` `[B, T, d]`; ValueError for both.

        `attention_mask` is `[B, K]` of ones and zeros. The cache is extended and returned; without
        one, a new one is unless `use_cache` is false.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, and only one of them")
        with_weights = self._chosen(output_attentions, "output_attentions")
        keep_states = self._chosen(output_hidden_states, "output_hidden_states")
        caching = self._chosen(use_cache, "use_cache", default=True)
        cache: Cache | None = past_key_values
        if cache is None and caching:
            cache = GrowingCache()
        past_length = 0 if cache is None else cache.get_seq_length()

        if position_ids is None:
            given = input_ids if input_ids is not None else inputs_embeds
            assert given is not None  # one of the two is
            position_ids = torch.arange(
                past_length, past_length + given.shape[1], dtype=torch.long, device=given.device
            ).unsqueeze(0)
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        hidden = inputs_embeds
        mask = self._mask(attention_mask, hidden, past_length)

        states: tuple[Tensor, ...] = ()
        attentions: tuple[Tensor | None, ...] = ()
        for layer in self.layers:
            if keep_states:
                states += (hidden,)
            hidden, *others = layer(
                hidden, mask, position_ids, cache, with_weights, cache is not None
            )
            if with_weights:
                attentions += (others[0],)
        hidden = self.norm(hidden)
        if keep_states:
            states += (hidden,)

        output = BaseModelOutputWithPast(
            last_hidden_state=hidden,
            past_key_values=cache if caching else None,
            hidden_states=states if keep_states else None,
            attentions=attentions if with_weights else None,
        )
        return output if self._chosen(return_dict, "use_return_dict", True) else output.to_tuple()

    def _mask(
        self, attention_mask: Tensor | None, hidden: Tensor, past_length: int
    ) -> Tensor | None:
        """The mask as the layers' attention takes it, from `[B, K]`."""
        if self.config._attn_implementation == "flash_attention_2":
            # The kernel is causal; only padding is passed on.
            return attention_mask if attention_mask is not None and 0 in attention_mask else None
        return _causal_mask(attention_mask, hidden, past_length)


class DeepseekV2ForCausalLM(DeepseekV2PreTrainedModel):
    """The decoder and a head over all positions, with fp32 logits."""

    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}
    decoder_class: ClassVar[type[DeepseekV2Model]] = DeepseekV2Model

    def __init__(self, config: DeepseekV2Config) -> None:
        super().__init__(config)
        self.model = self.decoder_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cache_position: Tensor | None = None,
    ) -> Any:
        """Logits `[B, T, V]`; arguments as for `DeepseekV2Model`."""
        decoded = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
            cache_position=cache_position,
        )
        return self._predicted(decoded, return_dict)

    def _predicted(self, decoded: Any, return_dict: bool | None) -> Any:
        """Logits `[B, T, V]` from the decoder's output."""
        output = CausalLMOutputWithPast(
            logits=self.lm_head(decoded.last_hidden_state).float(),
            past_key_values=decoded.past_key_values,
            hidden_states=decoded.hidden_states,
            attentions=decoded.attentions,
        )
        return output if self._chosen(return_dict, "use_return_dict", True) else output.to_tuple()


class DeepseekV2ForSequenceClassification(DeepseekV2PreTrainedModel):
    """The decoder and a linear head over `num_labels`, read at each row's last token."""

    def __init__(self, config: DeepseekV2Config) -> None:
        super().__init__(config)
        self.num_labels: int = config.num_labels
        self.model = DeepseekV2Model(config)
        self.score = nn.Linear(config.hidden_size, self.num_labels, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Logits `[B, num_labels]`; arguments as for `DeepseekV2Model`.

        A row ends before its first `pad_token_id`, or with `inputs_embeds` at its end; several rows
        without that id raise ValueError.
        """
        decoded = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.score(decoded.last_hidden_state)
        ends = self._ends(input_ids, logits)
        output = SequenceClassifierOutputWithPast(
            logits=logits[torch.arange(logits.shape[0], device=logits.device), ends],
            past_key_values=decoded.past_key_values,
            hidden_states=decoded.hidden_states,
            attentions=decoded.attentions,
        )
        return output if self._chosen(return_dict, "use_return_dict", True) else output.to_tuple()

    def _ends(self, input_ids: Tensor | None, logits: Tensor) -> Tensor | int:
        """Index of each row's last token: before its first padding, or -1."""
        padding = self.config.pad_token_id
        if padding is None and logits.shape[0] != 1:
            raise ValueError("a batch above 1 needs pad_token_id in the config")
        if padding is None or input_ids is None:
            return -1
        # argmax of a row without padding is 0, and 0 - 1 is the last position.
        return torch.eq(input_ids, padding).int().argmax(-1).sub(1).to(logits.device)
