"""Rotary positions of the decoder: the page template of the plain class and its variants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsocr_analyze.costs import rope
from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.reference_files import DECODER
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Formulas, Page, Parameter, Symbol
from dsocr_analyze.knowledge.machinery.signature import import_line

__all__ = ["ROTATION", "YARN_OPERATORS", "rotary_diagram", "rotary_page"]

YARN_OPERATORS: Final = 17
"""Operators that YaRN applies to every frequency; the trace checks the number."""

ROTATION: Final = (
    r"\theta_i = b^{-2i/D}, \quad"
    r" \mathrm{rot}(x, p) = x \odot \cos(p\,\theta) + \mathrm{half}(x) \odot \sin(p\,\theta)"
)

_RELATED: Final = (
    "DeepseekV2RotaryEmbedding",
    "DeepseekV2LinearScalingRotaryEmbedding",
    "DeepseekV2DynamicNTKScalingRotaryEmbedding",
    "DeepseekV2YarnRotaryEmbedding",
    "DeepseekV2Attention",
    "DeepseekV2FlashAttention2",
)


def _rotary_size(facts: Facts) -> int:
    """Rotary features of a head."""
    decoder = facts.decoder
    return decoder.qk_rope_head_dim if decoder.use_mla else decoder.head_dim


def rotary_diagram(
    frequencies: str, *, scale: str = "", positions: str = "positions 0 .. K - 1"
) -> str:
    """The diagram of how the tables are computed."""
    return f"""flowchart LR
  p["{positions}"] --> outer["outer product"]
  f["{frequencies}"] --> outer
  outer --> both["both halves [K, D]"]
  both --> cos["cosine{scale}"]
  both --> sin["sine{scale}"]
  cos --> tables["tables [K, D], kept"]
  sin --> tables"""


def rotary_page(
    facts: Facts,
    name: str,
    variant: rope.RopeVariant,
    *,
    what: str,
    diagram: str,
    pseudo_code: str,
    mathematics: str,
    notes: str,
    references: tuple[str, ...],
    extra: str = "",
    arguments: Mapping[str, Any] | None = None,
    meanings: Mapping[str, str] | None = None,
    blocks: tuple[tuple[str, str], ...] = (),
    usage_arguments: str = "",
) -> Page:
    """The page of the class `name`, which the closed forms call `variant`.

    `arguments` are the constructor's arguments after size, length and base, with their `meanings`;
    `usage_arguments` are the snippet's arguments after the size; `extra` is the vector FLOPs in
    addition to those of the plain class. For the rest see `Page`.
    """
    size, length = _rotary_size(facts), facts.decoder.max_position_embeddings
    given = arguments or {}
    return Page(
        group="Decoder: norms and positions",
        subject=facts.get(name),
        what=what,
        blocks=blocks,
        layer=f'costs.rope.tables (variant "{variant}")',
        inputs={"x": "1, H, 1, D"},
        output="K, D",
        parameters={
            **_parameters(facts),
            **{
                key: Parameter(meaning, given.get(key)) for key, meaning in (meanings or {}).items()
            },
        },
        diagram=diagram,
        pseudo_code=pseudo_code,
        mathematics=mathematics,
        symbols={
            "K": Symbol("K", "positions in the tables"),
            "D": Symbol("D", "rotary features of a head"),
            "H": Symbol("H", "heads, which share the tables", f"{facts.decoder.heads}"),
            "L": Symbol("L_0", "length that the model was trained for"),
        },
        formulas=Formulas(vector_flops=f"K * D / 2 + 2 * K * D{extra}"),
        cases=cases_of(
            [("prefill", facts.tokens), ("beyond the trained length", 2 * length)],
            lambda K: {"K": K, "D": size, "L": length},
            build=lambda _: _make(facts, name, given),
            arguments=lambda K: [tensor(1, facts.decoder.heads, 1, size), K],
            closed_form=lambda K: _kernels(facts, variant, K),
        ),
        flops_notes=_flops_notes(facts),
        memory_notes=(
            "No parameters. The frequencies (fp32, one for each pair of features) and the two"
            " tables are buffers that are not in the checkpoint; a longer call replaces the tables.",
        ),
        related=tuple(other for other in _RELATED if other != name),
        usage=_usage(facts, name, usage_arguments),
        notes=notes,
        references=references,
    )


def _parameters(facts: Facts) -> dict[str, Parameter]:
    length = facts.decoder.max_position_embeddings
    return {
        "dim": Parameter("Rotary features of a head; even.", _rotary_size(facts)),
        "max_position_embeddings": Parameter("Length that the model was trained for.", length),
        "base": Parameter("Base of the frequencies.", facts.decoder.rope_theta),
        "device": Parameter("Device of the frequencies.", None),
    }


def _kernels(facts: Facts, variant: rope.RopeVariant, K: int) -> Kernels:
    size = _rotary_size(facts)
    tables = rope.tables(variant, K, size, BFLOAT16)
    if variant == "dynamic" and facts.decoder.max_position_embeddings < K:
        return rope.dynamic_update(size) + tables
    return tables


def _make(facts: Facts, name: str, arguments: Mapping[str, Any]) -> Any:
    decoder = facts.decoder
    return facts.make(
        name,
        _rotary_size(facts),
        max_position_embeddings=decoder.max_position_embeddings,
        base=decoder.rope_theta,
        **arguments,
    )


def _flops_notes(facts: Facts) -> tuple[str, ...]:
    filled = (
        "Counted for a call that fills the tables; a call within their length computes nothing."
    )
    if facts.decoder.use_mla:
        return (filled,)
    return (
        filled,
        f"In {facts.model_name} `use_mla` is false: its plain attention computes its own tables"
        " and never uses this class. The sizes are those of its heads.",
    )


def _usage(facts: Facts, name: str, arguments: str) -> str:
    size = _rotary_size(facts)
    return f"""import torch
{import_line(DECODER, name)}

rotary = {name}({size}{arguments})
cos, sin = rotary(torch.zeros(1), seq_len={facts.tokens})
assert cos.shape == sin.shape == ({facts.tokens}, {size})
assert torch.allclose(cos**2 + sin**2, torch.ones_like(cos), atol=1e-2)"""
