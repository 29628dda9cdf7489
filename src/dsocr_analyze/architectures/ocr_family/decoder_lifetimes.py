"""Lifetimes of the decoder's tensors in the prefill pass, replayed from embedding to logits.

Each function replays one forward of the vendor's files (and of the transformers classes they use),
in order and with its local variables: a tensor lives until the function returns if a name still
refers to it. Of equal layers, only the first and the last of a kind are replayed, as the cache
grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.architectures.ocr_family.decoder import cache_width
from dsocr_analyze.architectures.ocr_family.layer_lifetimes import (
    rms_norm,
    rotary_tables,
    rotated,
    swiglu,
)
from dsocr_analyze.costs.amounts import Amount
from dsocr_analyze.costs.integers import maximum
from dsocr_analyze.dtypes import BOOL, FLOAT16, FLOAT32, INT64
from dsocr_analyze.scratch import sort_scratch

if TYPE_CHECKING:
    from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions
    from dsocr_analyze.costs.lifetimes import Lifetimes

__all__ = ["LAST_SHARE", "last_share", "replay_decoder", "replay_head"]

LAST_SHARE: Final = "last expert's choices"
"""The size of `last_share` if the choices are an amount of unknown sizes."""

_FP32 = FLOAT32.nbytes


def replay_decoder(
    lives: Lifetimes, B: int, T: int, decoder: DecoderDimensions, *, flash: bool, inputs: int
) -> None:
    """The decoder over B prompts of T tokens, whose embeddings are already alive.

    Args:
        lives: The tensors alive.
        B: Batch.
        T: Tokens per prompt.
        decoder: Dimensions.
        flash: FlashAttention instead of eager attention.
        inputs: Bytes freed after the decoder: embeddings and outputs of the visual side.
    """
    prompt = _Prompt(lives, B, T, decoder, flash=flash)
    lives.path = "model"
    mask = 0 if flash else prompt.mask()
    replayed = {0}
    for is_moe in (False, True):
        indexes = [index for index in range(decoder.layers) if decoder.is_moe(index) == is_moe]
        replayed.update(indexes[-1:])
    for index in range(decoder.layers):
        if index not in replayed:
            lives.alive += prompt.layer_cache  # its output replaces its input
            continue
        prompt.layer(index)
        if index:
            lives.free(prompt.stream)  # its input; the first one's is the embeddings
    lives.path = "model.norm"
    rms_norm(lives, prompt.n, decoder.hidden_size)
    lives.free(prompt.stream, mask, inputs)


def replay_head(lives: Lifetimes, rows: int, decoder: DecoderDimensions) -> None:
    """The logits of `rows` tokens, and their fp32 copy."""
    lives.path = "lm_head"
    logits = lives.linear(rows, decoder.hidden_size, decoder.vocab_size)
    lives.path = ""
    if lives.widened(rows * decoder.vocab_size):
        lives.free(logits)


def last_share(choices: Any, E: int) -> Any:
    """Choices received by the last touched one of E experts, if spread evenly."""
    if isinstance(choices, Amount):
        return Amount.size(LAST_SHARE)
    return maximum(choices // E, 1)


def _last_expert(choices: Any, E: int) -> int:
    """Index of the last touched expert."""
    return E - 1 if isinstance(choices, Amount) else min(choices, E) - 1


class _Prompt:
    """B prompts of T tokens on their way through the layers."""

    def __init__(
        self, lives: Lifetimes, B: int, T: int, decoder: DecoderDimensions, *, flash: bool
    ) -> None:
        self.lives, self.decoder, self.flash = lives, decoder, flash
        self.B, self.T, self.n = B, T, B * T
        e = lives.dtype.nbytes
        self.stream = self.n * decoder.hidden_size * e
        self.layer_cache = self.n * cache_width(decoder, flash=flash) * e
        if decoder.use_mla:
            # Each layer keeps its cosines and sines, and any frequencies it recomputes.
            self.layer_cache += 2 * T * decoder.qk_rope_head_dim * e + _FP32 * self.frequencies
            if flash and decoder.v_head_dim == decoder.head_dim:
                # Values that need no padding are kept along with the keys from the same projection.
                self.layer_cache += self.n * decoder.heads * decoder.qk_nope_head_dim * e

    @property
    def frequencies(self) -> int:
        """Rotary frequencies that a layer with latent attention recomputes for this length."""
        scaling, trained = self.decoder.rope_scaling, self.decoder.max_position_embeddings
        if scaling in (None, "linear"):
            return 0
        tunes = scaling == "yarn" or trained < self.T
        return self.decoder.qk_rope_head_dim // 2 if tunes else 0

    def mask(self) -> int:
        """The additive mask `[B, 1, T, T]`; returns its size."""
        lives, square = self.lives, self.T * self.T
        scores = self.B * square
        wide = lives.wide(square)
        positions = lives.make(INT64.nbytes * self.T)
        shifted = lives.make(INT64.nbytes * self.T)
        cleared = lives.make(BOOL.nbytes * square)
        lives.free(cleared, shifted)
        cast = lives.narrowed(square)
        lives.free(wide if cast else 0, positions)
        causal = cast or wide
        visible = lives.features(scores)
        hidden = lives.features(scores)
        flags = lives.make(BOOL.nbytes * scores)
        padding = lives.features(scores)
        lives.free(visible, hidden, flags)
        flags = lives.make(BOOL.nbytes * scores)
        mask = lives.features(scores)
        lives.free(flags, padding, causal)
        return mask

    # --- a layer

    def layer(self, index: int) -> None:
        """A layer, whose input its caller holds; its cache and its output remain."""
        lives, decoder = self.lives, self.decoder
        path, d = f"model.layers.{index}", decoder.hidden_size
        lives.path = f"{path}.input_layernorm"
        normed = rms_norm(self.lives, self.n, d)
        if decoder.use_mla:
            attended = self._latent_attention(f"{path}.self_attn")
        else:
            attended = self._attention(f"{path}.self_attn")
        lives.path = path
        lives.free(normed)
        stream = lives.features(self.n * d)
        lives.free(attended)
        lives.path = f"{path}.post_attention_layernorm"
        normed = rms_norm(self.lives, self.n, d)
        mlp = f"{path}.mlp"
        if decoder.is_moe(index):
            output = self._mixture(mlp)
        else:
            output = swiglu(lives, mlp, self.n, d, decoder.intermediate_size)
        lives.path = path
        lives.free(normed)
        lives.features(self.n * d)
        lives.free(output, stream)

    # --- the mixture

    def _mixture(self, path: str) -> int:
        """Router, routed experts and shared ones; returns the output's size."""
        lives, decoder, n, d = self.lives, self.decoder, self.n, self.decoder.hidden_size
        E, k = decoder.n_routed_experts or 0, decoder.num_experts_per_tok
        lives.path = f"{path}.gate"
        chosen = self._route(n, E, k)
        lives.path = path
        counts = lives.make(INT64.nbytes * n * E)
        shares = lives.make(INT64.nbytes * E)
        order = self._order(n * k)
        ranks = lives.make(INT64.nbytes * n * k)
        tokens = lives.features(n * k * d)
        lives.free(ranks)
        if not lives.on_cpu:
            lives.free(shares)  # the host has a copy
            shares = 0
        experts = self._experts(path, n, k, E)
        lives.path = path
        joined = lives.features(n * k * d)
        back = lives.features(n * k * d)
        wide = lives.widened(n * k * d)
        total = lives.wide(n * d)
        lives.free(wide)
        cast = lives.narrowed(n * d)
        y = cast or total
        lives.free(total if cast else 0, back, joined, experts, tokens, order, shares, counts)
        if decoder.shared_intermediate_size:
            shared = swiglu(lives, f"{path}.shared_experts", n, d, decoder.shared_intermediate_size)
            lives.path = path
            both = lives.features(n * d)
            lives.free(shared, y)
            y = both
        lives.free(chosen)
        return y

    def _route(self, n: int, E: int, k: int) -> int:
        """The router: fp32 scores and the best of them; returns the size of its choice."""
        lives, d = self.lives, self.decoder.hidden_size
        features, weight = lives.widened(n * d), lives.widened(E * d)
        logits = lives.wide(n * E)
        lives.free(features, weight)
        scores = lives.wide(n * E)
        best, experts = lives.wide(n * k), lives.make(INT64.nbytes * n * k)
        weights = lives.wide(n * k)
        lives.free(best, scores, logits)
        return weights + experts

    def _order(self, choices: int) -> int:
        """Sorts the choices by expert; returns the indices' size."""
        lives = self.lives
        scratch = sort_scratch(choices) if lives.on_cpu else 0
        values = lives.make(INT64.nbytes * choices, scratch=scratch)
        indices = lives.make(INT64.nbytes * choices, scratch=scratch)
        lives.free(values)
        return indices

    def _experts(self, path: str, n: int, k: int, E: int) -> int:
        """Every touched expert on its tokens; returns the size of all their outputs.

        Choices are spread evenly, the remainder going to the first experts. Only the last expert is
        replayed, because most outputs are alive by then.
        """
        lives, decoder = self.lives, self.decoder
        last: int = last_share(n * k, E)
        before = (n * k - last) * decoder.hidden_size * lives.dtype.nbytes
        lives.alive += before
        output = swiglu(
            lives,
            f"{path}.experts.{_last_expert(n * k, E)}",
            last,
            decoder.hidden_size,
            decoder.moe_intermediate_size,
        )
        return before + output

    # --- plain attention

    def _attention(self, path: str) -> int:
        """Plain attention; its keys and values remain as cache; returns the output's size."""
        lives, decoder, n = self.lives, self.decoder, self.n
        d, H, D = decoder.hidden_size, decoder.heads, decoder.head_dim
        query, key = n * H * D, n * decoder.kv_heads * D
        lives.path = f"{path}.q_proj"
        projected = lives.linear(n, d, H * D)
        lives.path = f"{path}.k_proj"
        projected += lives.linear(n, d, decoder.kv_heads * D)
        lives.path = f"{path}.v_proj"
        lives.linear(n, d, decoder.kv_heads * D)
        lives.path = f"{path}.rotary_emb"
        tables = rotary_tables(lives, n, D)
        lives.path = path
        turned = rotated(self.lives, query)
        rotated(self.lives, key)
        lives.free(projected)
        if self.flash:
            attended, held = self._flash_output(query), 0
        else:
            attended, held = self._eager(query, key)
        lives.path = f"{path}.o_proj"
        output = lives.linear(n, H * D, d)
        lives.free(attended, held, turned, tables)
        return output

    def _flash_output(self, query: int) -> int:
        """FlashAttention, after checking the positions; returns its output's size."""
        lives, steps = self.lives, self.B * (self.T - 1)
        differences = lives.make(INT64.nbytes * steps)
        flags = lives.make(BOOL.nbytes * steps)
        lives.free(differences, flags)
        return lives.features(query)

    def _eager(self, query: int, key: int) -> tuple[int, int]:
        """Scores, softmax, and the product with the values.

        Args:
            query: Elements of the queries.
            key: Elements of the keys, and of the values.

        Returns:
            Bytes of the result with its heads joined, and of other tensors still alive.
        """
        lives, decoder, e = self.lives, self.decoder, self.lives.dtype.nbytes
        H, kv = decoder.heads, decoder.kv_heads
        several = self.B > 1 and H > 1
        is_repeated, is_shared = H > kv > 1, H > kv == 1
        repeated = 0
        if is_repeated:
            repeated = lives.features(query) + lives.features(query)
        # A shared or strided factor is copied, by the product or by its kernel.
        keys = 0 if is_repeated or H == 1 else (query if is_shared else key)
        copied = (
            [lives.features(query), *([lives.features(keys)] if keys else [])] if several else []
        )
        strided = 0 if several or H == 1 else lives.batched_copy(query + keys)
        scores = self._scores(query, strided, copied)
        weights = self._softmax(scores)
        copied = [lives.features(keys)] if several and keys else []
        strided = 0 if several or H == 1 else lives.batched_copy(keys)
        packing = lives.packing(self.T, self.T)
        result = lives.features(query, scratch=strided + packing)
        lives.free(*copied)
        if H > 1:
            joined = lives.features(query)
            lives.free(result)
            result = joined
        assert result == query * e
        return result, weights + repeated

    def _scores(self, query: int, strided: int, copied: list[int]) -> int:
        """Scores, scaled and masked; returns their number of elements."""
        lives, decoder = self.lives, self.decoder
        elements = self.n * self.T * decoder.heads
        packing = lives.packing(self.T, decoder.head_dim)
        product = lives.features(elements, scratch=strided + packing)
        lives.free(*copied)
        divided = lives.features(elements)
        lives.free(product)
        lives.features(elements)
        lives.free(divided)
        return elements

    def _softmax(self, scores: int) -> int:
        """Softmax in fp32, freeing the scores at its end; returns the weights' size."""
        lives = self.lives
        before = scores * lives.dtype.nbytes
        is_fused = lives.kernels_of.device == "cuda" and lives.dtype == FLOAT16
        wide = 0 if is_fused else lives.widened(scores)
        normed = lives.wide(scores)
        lives.free(wide)
        cast = lives.narrowed(scores)
        lives.free(before, normed if cast else 0)
        return cast or normed

    # --- latent attention

    def _latent_attention(self, path: str) -> int:
        """Latent attention; what it caches remains; returns the output's size."""
        lives, decoder, n, d = self.lives, self.decoder, self.n, self.decoder.hidden_size
        width = decoder.heads * decoder.head_dim
        if decoder.q_lora_rank is None:
            lives.path = f"{path}.q_proj"
            query = lives.linear(n, d, width)
        else:
            lives.path = f"{path}.q_a_proj"
            latent = lives.linear(n, d, decoder.q_lora_rank)
            lives.path = f"{path}.q_a_layernorm"
            normed = rms_norm(self.lives, n, decoder.q_lora_rank)
            lives.free(latent)
            lives.path = f"{path}.q_b_proj"
            query = lives.linear(n, decoder.q_lora_rank, width)
            lives.free(normed)
        lives.path = f"{path}.kv_a_proj_with_mqa"
        r, P = decoder.kv_lora_rank, decoder.qk_rope_head_dim
        joint = lives.linear(n, d, r + P)
        attend = self._latent_flash if self.flash else self._absorbed
        return attend(path, query, joint)

    def _latent_tables(self, path: str) -> None:
        """Cosines and sines of T positions, and any new frequencies; the layer keeps both."""
        lives, elements = self.lives, self.T * self.decoder.qk_rope_head_dim
        is_yarn = self.decoder.rope_scaling == "yarn"
        lives.path = f"{path}.rotary_emb"
        lives.wide(self.frequencies)
        # YaRN holds the inputs of its blend until the tables exist.
        blended = sum(lives.wide(self.frequencies) for _ in range(3)) if is_yarn else 0
        positions = lives.wide(self.T)
        angles = lives.wide(elements // 2)
        both = lives.wide(elements)
        for _ in range(2):
            wide = lives.wide(elements)
            if is_yarn:
                scaled = lives.wide(elements)
                lives.free(wide)
                wide = scaled
            if lives.narrowed(elements):
                lives.free(wide)
        lives.free(positions, angles, both, blended)
        lives.path = path

    def _turned_pairs(self) -> int:
        """Rotates queries and the rotary key; returns the queries' size, as the key is cached."""
        lives, decoder = self.lives, self.decoder
        rows = self.n * decoder.qk_rope_head_dim
        tables = lives.features(rows) + lives.features(rows)
        halves = 0
        if decoder.qk_rope_head_dim > 2:
            halves = lives.features(rows * decoder.heads) + lives.features(rows)
        turned = rotated(self.lives, rows * decoder.heads)
        rotated(self.lives, rows)
        lives.free(tables, halves)
        return turned

    def _absorbed(self, path: str, query: int, joint: int) -> int:
        """Eager: the up-projection multiplies queries and results; returns the output's size."""
        lives, decoder, n = self.lives, self.decoder, self.n
        H, r, P = decoder.heads, decoder.kv_lora_rank, decoder.qk_rope_head_dim
        nope, value = decoder.qk_nope_head_dim, decoder.v_head_dim
        lives.path = f"{path}.kv_a_layernorm"
        rms_norm(self.lives, n, r)  # the cached latent
        self._latent_tables(path)
        turned = self._turned_pairs()
        lives.free(joint)
        several = self.B > 1 and H > 1
        B = self.B

        def product(elements: int, copied: int, depth: int) -> int:
            """A product, after copies of `copied` elements; returns its size."""
            made = lives.features(copied) if several else 0
            strided = 0 if several or H == 1 else lives.batched_copy(copied)
            output = lives.features(elements, scratch=strided + lives.packing(self.T, depth))
            lives.free(made)
            return output

        absorbed = product(n * H * r, n * H * nope + B * H * nope * r, nope)
        scores = n * self.T * H
        # Rotating a single pair does not lay queries out afresh.
        rotary = n * H * P * (2 if P == 2 else 1)
        parts = product(scores, rotary, P) + product(scores, n * H * r, r)
        summed = lives.features(scores)
        lives.free(parts)
        scaled = lives.features(scores)
        lives.free(summed)
        lives.features(scores)
        lives.free(scaled)
        weights = self._softmax(scores)
        mixed = lives.features(n * H * r, scratch=lives.packing(self.T, self.T))
        result = product(n * H * value, B * H * r * value, r)
        lives.free(mixed)
        if H > 1:
            joined = lives.features(n * H * value)
            lives.free(result)
            result = joined
        lives.path = f"{path}.o_proj"
        output = lives.linear(n, H * value, decoder.hidden_size)
        lives.free(result, weights, absorbed, turned, query)
        return output

    def _latent_flash(self, path: str, query: int, joint: int) -> int:
        """Up-projected keys and values, joined, and FlashAttention; returns the output's size."""
        lives, decoder, n = self.lives, self.decoder, self.n
        H, value, width = decoder.heads, decoder.v_head_dim, decoder.head_dim
        lives.path = f"{path}.kv_a_layernorm"
        latent = rms_norm(self.lives, n, decoder.kv_lora_rank)
        lives.path = f"{path}.kv_b_proj"
        up = lives.linear(n, decoder.kv_lora_rank, H * (decoder.qk_nope_head_dim + value))
        lives.free(latent)
        self._latent_tables(path)
        turned = self._turned_pairs() + n * decoder.qk_rope_head_dim * lives.dtype.nbytes
        queries = lives.features(n * H * width)
        lives.features(n * H * width)  # the cached keys
        is_padded = value != width
        if is_padded:
            lives.features(n * H * width)  # and values
        attended = lives.features(n * H * width)
        if is_padded and (H > 1 or n != 1):
            cut = lives.features(n * H * value)
            lives.free(attended)
            attended = cut
        lives.path = f"{path}.o_proj"
        output = lives.linear(n, H * value, decoder.hidden_size)
        lives.free(attended, queries, turned, query, joint, up if is_padded else 0)
        return output
