"""Names of sizes in formulas, part by part of a model."""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import singledispatch
from typing import Any, Final, TypeAlias

from dsocr_analyze.architectures.deepseek_ocr import ClipDimensions
from dsocr_analyze.architectures.deepseek_ocr_2 import EncoderDimensions
from dsocr_analyze.architectures.ocr_family.dimensions import (
    DecoderDimensions,
    ProjectorDimensions,
    SamDimensions,
)
from dsocr_analyze.tape import Size
from dsocr_analyze.tape.formula import Example, Relations
from dsocr_analyze.tape.polynomial import Polynomial, Symbol

Named: TypeAlias = tuple[Any, ...]
"""Dimensions with names for their numbers, and the relations between these names."""


@dataclass(frozen=True)
class Part:
    """A part of a model whose sizes have names.

    Attributes:
        name: That of its stage, or `decoder`.
        dimensions: With names for numbers.
        values: By name.
        relations: Products of names, and what formulas have instead.
    """

    name: str
    dimensions: Any
    values: dict[str, int]
    relations: Relations = ()

    def size(self, name: str, value: int, multiple: int = 1) -> Size:
        """A size with a name, whose value is remembered."""
        self.values[name] = value
        return Example.named(name, value, multiple=multiple)


def name(symbol: str, coefficient: Fraction | int = 1) -> Polynomial:
    """A name, times a number."""
    return Polynomial({(Symbol(symbol),): coefficient})


WIDTH: Final = ("D", "H"), name("d")
"""Heads times their features are the width."""


def named_part(part_name: str, c: Any, **sizes: int) -> tuple[Part, dict[str, Example]]:
    """A part of a model with names for its dimensions and for sizes of a workload."""
    part = Part(part_name, c, {})
    sized = {each: part.size(each, value) for each, value in sizes.items()}
    dimensions, *relations = named(c, part)
    return Part(part_name, dimensions, part.values, tuple(relations)), sized


@singledispatch
def named(c: Any, part: Part) -> Named:
    """The dimensions with names for their numbers, and the relations of these names."""
    raise TypeError(f"the sizes of {type(c).__name__} have no names")


def heads_of(part: Part, width: int, heads: int) -> tuple[Size, Size]:
    """Width and heads, as the product of heads and their features."""
    part.values["d"] = width
    H = part.size("H", heads)
    return H * part.size("D", width // heads, multiple=2), H


@named.register
def _sam(c: SamDimensions, part: Part) -> Named:
    width, heads = heads_of(part, c.width, c.heads)
    part.values.setdefault("g", 4 * part.values.get("q", 0))
    middle, out = c.downsample_channels
    sized = replace(
        c,
        width=width,
        heads=heads,
        image_size=c.patch * part.size("l", c.image_size // c.patch),
        window=part.size("w", c.window),
        neck=part.size("c_0", c.neck),
        downsample_channels=(part.size("c_1", middle), part.size("c_2", out)),
    )
    return sized, WIDTH, (("q",), name("g", Fraction(1, 4)))


@named.register
def _clip(c: ClipDimensions, part: Part) -> Named:
    width, heads = heads_of(part, c.width, c.heads)
    part.values.setdefault("T", part.values.get("q", 0) ** 2 + 1)
    side, patch = part.size("l", c.image_size // c.patch_size), part.size("p", c.patch_size)
    sized = replace(c, width=width, heads=heads, image_size=patch * side, patch_size=patch)
    N, grid = name("N"), name("T") - 1
    return sized, WIDTH, (("N", *"qqqq"), N * grid * grid), (("N", *"qq"), N * grid)


@named.register
def _encoder(c: EncoderDimensions, part: Part) -> Named:
    part.values.setdefault("n", part.values.get("q", 0) ** 2)
    part.values["H_kv"] = c.kv_heads  # which pages name even where it is H
    return *_decoder(c, part), (("q", "q"), name("n"))


@named.register
def _projector(c: ProjectorDimensions, part: Part) -> Named:
    part.values.setdefault("n", part.values.get("q", 0) ** 2)
    part.values.update(d_in=c.input_channels, d_out=c.n_embed)
    if isinstance(c.input_dim, int) and c.downsample_ratio == 1:
        d_in, d_out = part.size("d_in", c.input_dim), part.size("d_out", c.n_embed)
        c = replace(c, input_dim=d_in, n_embed=d_out)
    return c, (("q", "q"), name("n")), (("D", "H"), name("d_in"))


@named.register
def _decoder(c: DecoderDimensions, part: Part) -> Named:
    H = part.size("H", c.heads)
    changes: dict[str, Size] = {
        "heads": H,
        "intermediate_size": part.size("m", c.intermediate_size),
        "vocab_size": part.size("V", c.vocab_size),
    }
    if c.use_mla:
        nope = part.size("D_n", c.qk_nope_head_dim)
        pe = part.size("D_r", c.qk_rope_head_dim, multiple=2)
        changes |= {
            "kv_heads": H,
            "head_dim": nope + pe,
            "qk_nope_head_dim": nope,
            "qk_rope_head_dim": pe,
            "v_head_dim": part.size("D_v", c.v_head_dim),
            "kv_lora_rank": part.size("d_c", c.kv_lora_rank),
            "max_position_embeddings": part.size("L_0", c.max_position_embeddings),
            "q_lora_rank": c.q_lora_rank and part.size("d_q", c.q_lora_rank),
        }
    else:
        D = part.size("D", c.head_dim, multiple=2)
        kv = H if c.kv_heads == c.heads else part.size("H_kv", c.kv_heads)
        changes |= {"kv_heads": kv, "head_dim": D}
        if c.hidden_size == c.heads * c.head_dim:
            changes["hidden_size"] = H * D
    if c.n_routed_experts is not None:
        changes["n_routed_experts"] = part.size("E", c.n_routed_experts)
        changes["num_experts_per_tok"] = part.size("k", c.num_experts_per_tok)
        changes["moe_intermediate_size"] = part.size("f", c.moe_intermediate_size)
    changes.setdefault("hidden_size", part.size("d", c.hidden_size))
    relations = (WIDTH,) if c.hidden_size == c.heads * c.head_dim and not c.use_mla else ()
    return replace(c, **changes), *relations
