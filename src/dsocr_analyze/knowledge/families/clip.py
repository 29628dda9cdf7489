"""The CLIP encoder: symbols, settings, formulas, and cases of its modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from dsocr_analyze.architectures.ocr_family import vision
from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.costs.sections import Section
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.position_table import resize_formula
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import NO_DEFAULT, Case, Formulas, Parameter, Symbol

__all__ = [
    "BLOCK",
    "EMBEDDING_PARAMS",
    "GROUP",
    "MEANINGS",
    "SYMBOLS",
    "sections",
    "setting_parameters",
    "settings",
    "tokens",
    "values",
    "view_cases",
]

GROUP: Final = "Vision: CLIP encoder"

SYMBOLS: Final = {
    "N": Symbol("N", "views"),
    "R": Symbol("R", "pixels per side of a view"),
    "q": Symbol("q", "patches per side of a view"),
    "T": Symbol("T", "tokens of a view, including the class token", "q ** 2 + 1"),
    "d": Symbol("d", "width"),
    "H": Symbol("H", "heads"),
    "m": Symbol("m", "hidden width of the MLP"),
    "L": Symbol("L", "blocks"),
    "l": Symbol("l", "entries per side of the learned position table"),
    "p": Symbol("p", "pixels per side of a patch in its own convolution"),
    "C": Symbol("C", "channels of a view"),
    "o": Symbol("o", "1 if its own convolution runs, 0 in the model"),
    "I": Symbol("I", "FLOPs of resizing the position table", resize_formula("l", "q", "d")),
}

BLOCK: Final = Formulas(
    macs="4 * N * T * d ** 2 + 2 * N * T ** 2 * d + 2 * N * T * d * m",
    vector_flops="6 * N * H * T ** 2 + N * T * (7 * m + 17 * d)",
    params="4 * d ** 2 + 2 * d * m + 9 * d + m",
    activations="N * T * (6 * d + m)",
)
EMBEDDING_PARAMS: Final = "d + C * p ** 2 * d + (l ** 2 + 1) * d"

MEANINGS: Final = {
    "hidden_size": "Width d.",
    "num_attention_heads": "Heads H.",
    "ffn_hidden_size": "Hidden width m of the MLP.",
    "num_layers": "Blocks L.",
    "image_size": "Pixels per side that the position table was learned at.",
    "patch_size": "Pixels per side of a patch in its own convolution.",
    "layernorm_epsilon": "Epsilon of the blocks' norms.",
    "pre_layernorm_epsilon": "Epsilon of the norm before the stack.",
    "fp32norm": "Whether the norm before the stack computes in fp32 (`LayerNormfp32`).",
}
"""Meanings of the settings that the encoder is built from."""


def settings(facts: Facts) -> dict[str, Any]:
    """The settings that the model's encoder was built from."""
    clip = facts.clip
    encoder: Any = facts.at("model.vision_model")
    first_block = encoder.transformer.layers[0]
    return {
        "hidden_size": clip.width,
        "num_attention_heads": clip.heads,
        "ffn_hidden_size": clip.mlp,
        "num_layers": clip.layers,
        "image_size": clip.image_size,
        "patch_size": clip.patch_size,
        "layernorm_epsilon": first_block.layer_norm1.eps,
        "pre_layernorm_epsilon": encoder.pre_layrnorm.eps,
    }


def setting_parameters(facts: Facts, *keys: str) -> dict[str, Parameter]:
    """Some settings as parameters of a page."""
    given, defaults = settings(facts), facts.get("VitModel").DEFAULTS
    return {
        "cfg": Parameter("Source of everything below.", "built from vision_config"),
        **{
            f"cfg.{key}": Parameter(
                MEANINGS[key],
                given.get(key, "not given"),
                defaults.get(key, NO_DEFAULT),
            )
            for key in keys
        },
    }


def tokens(facts: Facts, R: int) -> int:
    """Tokens of a view, including the class token."""
    return facts.token_side(R) ** 2 + 1


def values(facts: Facts, N: int, R: int) -> dict[str, int]:
    """Values of the symbols for N views of R pixels per side."""
    clip = facts.clip
    return {
        "N": N,
        "R": R,
        "q": facts.token_side(R),
        "d": clip.width,
        "H": clip.heads,
        "m": clip.mlp,
        "L": clip.layers,
        "l": clip.image_size // clip.patch_size,
        "p": clip.patch_size,
        "C": facts.channels,
        "o": 0,
    }


def sections(facts: Facts, N: int, R: int) -> list[Section]:
    """Sections of the encoder: what surrounds the blocks, and the blocks."""
    return vision.clip_sections(N, facts.token_side(R), facts.clip, BFLOAT16)


def view_cases(
    facts: Facts,
    *,
    build: Callable[[], Any],
    closed_form: Callable[[int, int], Kernels | ModuleKernels],
    arguments: Callable[[int, int], Sequence[Any]] | None = None,
) -> tuple[Case, ...]:
    """One case per vision call.

    `closed_form` and `arguments` take N views and R pixels per side. The module's argument is the
    features of all tokens unless stated.
    """

    def features(N: int, R: int) -> Sequence[Any]:
        return [tensor(N, tokens(facts, R), facts.clip.width)]

    return cases_of(
        facts.views,
        lambda N, R: values(facts, N, R),
        build=lambda *_: build(),
        arguments=arguments or features,
        closed_form=closed_form,
    )
