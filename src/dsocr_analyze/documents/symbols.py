"""Names of sizes in formulas, part by part of a model, and how formulas are written with them."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import EncoderDimensions
from dsocr_analyze.architectures.ocr_family.dimensions import (
    ClipDimensions,
    DecoderDimensions,
    ProjectorDimensions,
    SamDimensions,
)
from dsocr_analyze.tape.example import Derived, Example
from dsocr_analyze.tape.polynomial import Polynomial, Size, Symbol

__all__ = ["Part", "named_part", "wrapped", "written"]

_ORDER: Final = (
    *"B N T q n g R K L_0 E k l w H H_kv G d d_in d_out d_q d_c".split(),
    *"D D_n D_r D_v f m V C c c_0 c_1 c_2 p s t".split(),
)
"""The factors of a term stand in this order."""
_LINE: Final = 88


@dataclass(frozen=True)
class Part:
    """A part of a model whose sizes have names.

    Attributes:
        name: Name of the part: that of its stage, or `decoder`.
        dimensions: Its dimensions, with names for numbers.
        values: Value of every name, including those of relations.
        relations: What formulas are rewritten with: a product of names, and what it is.
    """

    name: str
    dimensions: Any
    values: dict[str, int]
    relations: tuple[tuple[tuple[str, ...], Polynomial], ...] = ()

    def size(self, name: str, value: int, multiple: int = 1) -> Example:
        """A size with a name, whose value is remembered."""
        self.values[name] = value
        return Example.named(name, value, multiple=multiple)


def _name(name: str, coefficient: Fraction | int = 1) -> Polynomial:
    return Polynomial({(Symbol(name),): coefficient})  # type: ignore[dict-item]  # a fraction


_WIDTH: Final = ("D", "H"), _name("d")


def named_part(part_name: str, c: Any, **sizes: int) -> tuple[Part, dict[str, Example]]:
    """A part of a model with names for its dimensions, and for further sizes of a workload."""
    part = Part(part_name, c, {})
    named = {name: part.size(name, value) for name, value in sizes.items()}
    dimensions, *relations = _NAMED[type(c)](part, c)
    return Part(part_name, dimensions, part.values, tuple(relations)), named


def _heads(part: Part, width: int, heads: int) -> tuple[Size, Size]:
    """Width and heads, as the product of heads and their features."""
    part.values["d"] = width
    H = part.size("H", heads)
    return H * part.size("D", width // heads, multiple=2), H


def _sam(part: Part, c: SamDimensions) -> Any:
    width, heads = _heads(part, c.width, c.heads)
    if q := part.values.get("q"):
        part.values["g"] = 4 * q
    middle, out = c.downsample_channels
    changes: dict[str, Any] = {
        "width": width,
        "heads": heads,
        "image_size": c.patch * part.size("l", c.position_grid),
        "window": part.size("w", c.window),
        "neck": part.size("c_0", c.neck),
        "downsample_channels": (part.size("c_1", middle), part.size("c_2", out)),
    }
    return replace(c, **changes), _WIDTH, (("q",), _name("g", Fraction(1, 4)))


def _clip(part: Part, c: ClipDimensions) -> Any:
    width, heads = _heads(part, c.width, c.heads)
    if q := part.values.get("q"):
        part.values["T"] = q * q + 1
    side = part.size("l", c.image_size // c.patch_size)
    patch: Size = part.size("p", c.patch_size)
    named = replace(c, width=width, heads=heads, image_size=patch * side, patch_size=patch)
    N, grid = _name("N"), _name("T") - 1
    return named, _WIDTH, (("N", *"qqqq"), N * grid * grid), (("N", *"qq"), N * grid)


def _encoder(part: Part, c: EncoderDimensions) -> Any:
    width, heads = _heads(part, c.width, c.heads)
    if q := part.values.get("q"):
        part.values["n"] = q * q
    changes: dict[str, Any] = {
        "width": width,
        "heads": heads,
        "kv_heads": part.size("H_kv", c.kv_heads),
        "intermediate_size": part.size("m", c.intermediate_size),
    }
    return replace(c, **changes), _WIDTH, (("q", "q"), _name("n"))


def _projector(part: Part, c: ProjectorDimensions) -> Any:
    if q := part.values.get("q"):
        part.values["n"] = q * q
    part.values.update(d_in=c.input_channels, d_out=c.n_embed)
    if isinstance(c.input_dim, int) and c.downsample_ratio == 1:
        d_in: Size = part.size("d_in", c.input_dim)
        d_out: Size = part.size("d_out", c.n_embed)
        c = replace(c, input_dim=d_in, n_embed=d_out)
    return c, (("q", "q"), _name("n")), (("D", "H"), _name("d_in"))


def _decoder(part: Part, c: DecoderDimensions) -> Any:
    H: Size = part.size("H", c.heads)
    changes: dict[str, Any] = {
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
    hidden_size = changes.setdefault("hidden_size", part.size("d", c.hidden_size))
    relations = () if hidden_size.terms.keys() == {("d",)} else (_WIDTH,)
    return replace(c, **changes), *relations


_NAMED: Final[Mapping[type, Any]] = {
    SamDimensions: _sam,
    ClipDimensions: _clip,
    EncoderDimensions: _encoder,
    ProjectorDimensions: _projector,
    DecoderDimensions: _decoder,
}

# --- text ------------------------------------------------------------------------------------


def written(size: Size, part: Part) -> str:
    """A formula as people write it: `3 B T k d f`, highest degree first; `0` for none."""
    terms = _rewritten(Polynomial.of(size), part.relations).terms
    ordered = sorted(terms.items(), key=lambda term: (-len(term[0]), list(map(_rank, term[0]))))
    text = "".join(_term(monomial, coefficient, part) for monomial, coefficient in ordered)
    return text.removeprefix(" + ").replace(" - ", "-", text.startswith(" - ")) or "0"


def _rewritten(size: Polynomial, relations: Any) -> Polynomial:
    """The polynomial with each product of names replaced by what it is."""
    for product, instead in relations:
        found = Polynomial({})
        for monomial, coefficient in size.terms.items():
            term = Polynomial({(): coefficient})
            left = list(monomial)
            while not Counter(product) - Counter(left):
                for name in product:
                    left.remove(name)
                term = term * instead
            found = found + term * Polynomial({tuple(left): 1})
        size = found
    return size


def _rank(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER)), name


def _term(monomial: tuple[Symbol, ...], coefficient: Fraction | int, part: Part) -> str:
    powers = Counter(sorted(monomial, key=_rank))
    names = [_name_of(name, part) + (f"^{n}" if n > 1 else "") for name, n in powers.items()]
    amount = abs(coefficient)
    number = (
        [] if amount == 1 and names else [f"{amount:,}" if isinstance(amount, int) else str(amount)]
    )
    return f" {'-' if coefficient < 0 else '+'} {' '.join(number + names)}"


def _name_of(size: Symbol, part: Part) -> str:
    """A size's name; one that is derived from others says how."""
    if not isinstance(size, Derived):
        return str(size)
    return size.template.format(*(written(each, part) for each in size.sizes))


def wrapped(name: str, formula: str) -> str:
    """`name = formula`, on as many lines as it takes."""
    indent = " " * (len(name) + 3)
    held = formula.replace(" + ", "\0+\1").replace(" - ", "\0-\1").replace(" ", "\1")
    lines = textwrap.wrap(f"{name}\1=\1" + held.replace("\0", " "), _LINE, subsequent_indent=indent,
                          break_long_words=False, break_on_hyphens=False)  # fmt: skip
    return "\n".join(lines).replace("\1", " ")
