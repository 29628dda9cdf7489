"""docs/formulas.md: what each forward of the decoder costs, in terms of sizes with names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family.attention import Pass, attention
from dsocr_analyze.architectures.ocr_family.latent_attention import latent_attention
from dsocr_analyze.architectures.ocr_family.llama import swiglu
from dsocr_analyze.architectures.ocr_family.mixture import mixture
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.kernels import Work
from dsocr_analyze.knowledge.machinery.render import table
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape.formula import FormulaTape
from dsocr_analyze.tape.modules import rms_norm
from dsocr_analyze.tape.polynomial import Polynomial

__all__ = ["formulas_page"]

_HEADER: Final = """\
# Formulas

What the decoder's modules cost, operator by operator. Nobody wrote these formulas: the forwards that
count a page are run here on sizes with names instead of numbers.

B is the batch, of at least 2; T the tokens of a prompt, at least 3; K the tokens in the cache
before a decode step. d is the width, H the heads, D the features of a head, f the hidden width of
an MLP, E the routed experts, k of them for each token, two shared ones. In latent attention, r is
the rank of keys and values, P the rotary features of a head, N its other ones, V those of a value.
Features and weights are bf16; attention is eager.

- **MACs** are multiply-accumulates of matrix operators, **FLOPs** those of all others.
- **Bytes** are read and written, each operator on its own.
- **Parameters** and the **most bytes alive** are the module's; what it was given is not among them,
  and of a mixture the bytes are no polynomial.
"""


def formulas_page() -> str:
    """The page."""
    B, T = Polynomial.size("B", least=2), Polynomial.size("T", least=3)
    d, f, H, E, k, r, N, V = (Polynomial.size(name, least=2) for name in "d f H E k r N V".split())
    D, P = (Polynomial.size(name, least=4, multiple=2) for name in "DP")
    published = DEFAULT.forms.dimensions(ModelDirectory.read(DEFAULT.reference).config).decoder
    plain = replace(
        published, hidden_size=d, heads=H, kv_heads=H, head_dim=D, moe_intermediate_size=f,
        n_routed_experts=E, num_experts_per_tok=k,
    )  # fmt: skip
    latent = replace(
        plain, use_mla=True, q_lora_rank=None, kv_lora_rank=r, qk_rope_head_dim=P,
        qk_nope_head_dim=N, v_head_dim=V, head_dim=N + P,
    )  # fmt: skip
    prompt, step = Pass(B, T), Pass(B, 1, Polynomial.size("K"))
    return "\n".join([
        _HEADER,
        _section("RMSNorm", B * T * d, lambda t, x: rms_norm(t, x, B * T, d)),
        _section("Gated MLP", B * T * d, lambda t, x: swiglu(t, x, B * T, d, f)),
        _section("Attention of a prompt", B * T * d, _attended(attention, prompt, plain)),
        _section("Attention of a decode step", B * d, _attended(attention, step, plain)),
        _section("Latent attention of a prompt", B * T * d,
                 _attended(latent_attention, prompt, latent)),
        _section("Mixture of experts", B * T * d, lambda t, x: mixture(t, x, prompt, plain)),
    ])  # fmt: skip


def _attended(forward: Callable[..., Any], p: Pass, c: Any) -> Callable[..., Any]:
    """The forward of an attention with its additive mask."""
    return lambda t, x: forward(t, x, t.input(p.tokens * p.keys, BFLOAT16), p, c)


def _section(title: str, n: Polynomial, forward: Callable[..., Any]) -> str:
    """The formulas of a forward of one tensor of n elements."""
    t = FormulaTape(BFLOAT16)
    forward(t, t.input(n, BFLOAT16))
    t.check_nothing_is_left()
    rows = [(f"`{path}`" if path else "", f"`{operator}`", *_costs(work))
            for path, operator, work in t.formulas]  # fmt: skip
    header = ("module", "operator", "MACs", "FLOPs", "bytes")
    return "\n".join([
        f"\n## {title}\n",
        table(header, [*rows, ("", "all", *_costs(t.work("")))]),
        f"\nParameters: `{t.params}`. {_most_alive(t.highest_levels)}",
    ])  # fmt: skip


def _most_alive(levels: Sequence[Polynomial]) -> str:
    """The most bytes alive; nothing if experts share them in a way that no polynomial says."""
    if any(size.function for level in levels for sizes in level.terms for size in sizes):
        return ""
    texts = [f"`{level}`" for level in levels]
    most = texts[0] if len(texts) == 1 else f"the largest of {', '.join(texts)}"
    return f"Most bytes alive: {most}."


def _costs(work: Work) -> list[str]:
    """MACs, other FLOPs and bytes as text, nothing for zero."""
    return [str(each or "") for each in (work.macs, work.vector_flops, work.bytes_moved)]
