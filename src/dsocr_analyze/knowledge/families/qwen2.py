"""DeepSeek-OCR-2's encoder: Qwen2 over image tokens and learned queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from dsocr_analyze.architectures.deepseek_ocr_2.encoder import encoder_sections
from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import (
    EncoderDimensions,
    OCR2Dimensions,
)
from dsocr_analyze.costs.activations import activation_flops
from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.mlp import gated_mlp_formulas
from dsocr_analyze.knowledge.families.rms_norm import rms_norm_formulas
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts, kernels_of, tensor
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Symbol, pick

__all__ = [
    "ATTENTION",
    "DECODER",
    "ENCODER",
    "GROUP",
    "INNER",
    "LAYER",
    "LAYER_FORMULAS",
    "STACK",
    "SYMBOLS",
    "all_kernels",
    "embeds_and_kinds",
    "encoder_of",
    "frame_and_layer",
    "hidden",
    "inner_kernels",
    "layer_arguments",
    "layer_symbols",
    "part",
    "stack_symbols",
    "tokens",
    "view_cases",
]

GROUP: Final = "DeepSeek-OCR-2: the Qwen2 encoder"
ENCODER: Final = "model.qwen2_model"
DECODER: Final = f"{ENCODER}.model"
INNER: Final = f"{DECODER}.model"
LAYER: Final = f"{INNER}.layers.0"

SYMBOLS: Final = {
    "N": Symbol("N", "views"),
    "q": Symbol("q", "tokens per side of a view"),
    "n": Symbol("n", "image tokens of a view; also its queries", "q ** 2"),
    "T": Symbol("T", "tokens of a view with its queries", "2 * n"),
    "d": Symbol("d", "width"),
    "H": Symbol("H", "query heads"),
    "G": Symbol("H_{kv}", "key and value heads"),
    "D": Symbol("D", "features of a head"),
    "m": Symbol("m", "hidden width of the MLP"),
    "a": Symbol("a", "FLOPs of the activation per element"),
    "e": Symbol("e", "bytes per element"),
    "L": Symbol("L", "layers"),
    "u": Symbol("n_u", "rows of all query tables"),
}


def encoder_of(facts: Facts) -> EncoderDimensions:
    """The encoder's dimensions."""
    assert isinstance(facts.dimensions, OCR2Dimensions)
    return facts.dimensions.encoder


ATTENTION: Final = Formulas(
    macs="2 * N * T * d * D * (H + G) + 2 * N * H * T ** 2 * D",
    vector_flops="N * T * D * (H + 2 * G) + 7 / 2 * N * T * D * (H + G) + 7 * N * H * T ** 2",
    params="2 * d * D * (H + G) + D * (H + 2 * G)",
    activations="2 * N * T * D * (H + G) + N * T * d",
    cache_bytes="2 * N * T * G * D * e",
)
_MLP: Final = gated_mlp_formulas("N * T")
_NORM: Final = rms_norm_formulas("N * T")
LAYER_FORMULAS: Final = Formulas(
    macs=f"Am + {_MLP.macs}",
    vector_flops=f"Av + {_MLP.vector_flops} + 2 * {_NORM.vector_flops} + 2 * N * T * d",
    params=f"Ap + {_MLP.params} + 2 * d",
    activations=f"Aa + {_MLP.activations}",
    cache_bytes=ATTENTION.cache_bytes,
)
STACK: Final = Formulas(
    macs="L * Lm + T * D / 2",
    vector_flops=f"L * Lv + {_NORM.vector_flops} + 4 * T * D + 2 * N * T",
    params="L * Lp + d",
    activations="L * La + T * D / 2",
    cache_bytes="2 * L * N * T * G * D * e",
)


def layer_symbols() -> dict[str, Symbol]:
    """Symbols of a layer, including those derived for its attention."""
    return pick("N q n T d H G D m a e", SYMBOLS) | {
        "Am": Symbol("M_{attn}", "MACs of attention", ATTENTION.macs),
        "Av": Symbol("V_{attn}", "vector FLOPs of attention", ATTENTION.vector_flops),
        "Ap": Symbol("P_{attn}", "parameters of attention", ATTENTION.params),
        "Aa": Symbol("A_{attn}", "matrix outputs of attention", ATTENTION.activations),
    }


def stack_symbols() -> dict[str, Symbol]:
    """Symbols of the stack, including those derived for a layer."""
    return layer_symbols() | {
        "L": SYMBOLS["L"],
        "Lm": Symbol("M_{layer}", "MACs of a layer", LAYER_FORMULAS.macs),
        "Lv": Symbol("V_{layer}", "vector FLOPs of a layer", LAYER_FORMULAS.vector_flops),
        "Lp": Symbol("P_{layer}", "parameters of a layer", LAYER_FORMULAS.params),
        "La": Symbol("A_{layer}", "matrix outputs of a layer", LAYER_FORMULAS.activations),
    }


def _values(facts: Facts, N: int, R: int) -> dict[str, int]:
    """Values of the symbols for N views of R pixels per side."""
    encoder = encoder_of(facts)
    return {
        "N": N,
        "q": facts.token_side(R),
        "d": encoder.width,
        "H": encoder.heads,
        "G": encoder.kv_heads,
        "D": encoder.head_dim,
        "m": encoder.intermediate_size,
        "a": activation_flops("silu"),
        "e": BFLOAT16.nbytes,
        "L": encoder.layers,
        "u": sum(encoder.queries),
    }


def tokens(facts: Facts, R: int) -> int:
    """Image tokens and queries of a view."""
    return 2 * facts.token_side(R) ** 2


def frame_and_layer(facts: Facts, N: int, R: int) -> tuple[ModuleKernels, ModuleKernels]:
    """Kernels of the encoder without its layers, and of one layer, by path below the encoder."""
    frame, layer = encoder_sections(N, facts.token_side(R), encoder_of(facts), BFLOAT16)
    return frame.modules, layer.modules


def part(modules: ModuleKernels, name: str) -> ModuleKernels:
    """The kernels at or below one module, by path."""
    return {
        path: kernels
        for path, kernels in modules.items()
        if path == name or path.startswith(f"{name}.")
    }


def all_kernels(facts: Facts, N: int, R: int) -> Kernels:
    """Kernels of the whole encoder."""
    return kernels_of(encoder_sections(N, facts.token_side(R), encoder_of(facts), BFLOAT16))


def inner_kernels(facts: Facts, N: int, R: int) -> Kernels:
    """Kernels of the decoder inside the encoder."""
    return tuple(each for each in all_kernels(facts, N, R) if each.path.startswith(DECODER))


def view_cases(
    facts: Facts,
    path: str,
    arguments: Callable[[int, int], list[Any]],
    closed: Callable[[int, int], Kernels | ModuleKernels],
    keywords: Callable[[int, int], dict[str, Any]] = lambda N, R: {},
) -> tuple[Case, ...]:
    """One case per vision call of the stated page, for the module at `path`."""
    return cases_of(
        facts.views,
        lambda N, R: _values(facts, N, R),
        build=lambda *_: facts.at(path),
        arguments=arguments,
        keywords=keywords,
        closed_form=closed,
        alike=facts.alike(path),
    )


def hidden(facts: Facts) -> Callable[[int, int], list[Any]]:
    """Positional arguments of a layer's modules: features of all tokens."""
    return lambda N, R: [tensor(N, tokens(facts, R), encoder_of(facts).width)]


def layer_arguments(facts: Facts) -> Callable[[int, int], dict[str, Any]]:
    """Keyword arguments of a layer and its attention."""

    def keywords(N: int, R: int) -> dict[str, Any]:
        T, D = tokens(facts, R), encoder_of(facts).head_dim
        return {
            "attention_mask": tensor(N, 1, T, T),
            "past_key_value": facts.get("KeyValueCache")(),
            "use_cache": True,
            "position_embeddings": (tensor(1, T, D), tensor(1, T, D)),
        }

    return keywords


def embeds_and_kinds(facts: Facts) -> Callable[[int, int], dict[str, Any]]:
    """Keyword arguments: image tokens and queries as one sequence, and the kind of each token."""

    def keywords(N: int, R: int) -> dict[str, Any]:
        n = tokens(facts, R) // 2
        # On the CPU, where the encoder makes them as well.
        kinds = torch.zeros(N, 2 * n, dtype=torch.long)
        kinds[:, n:] = 1
        return {
            "inputs_embeds": tensor(N, 2 * n, encoder_of(facts).width),
            "token_type_ids": kinds,
        }

    return keywords
