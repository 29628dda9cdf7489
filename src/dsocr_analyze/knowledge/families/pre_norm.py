"""Pre-norm blocks: normalise, attend, add; normalise, MLP, add."""

from __future__ import annotations

from typing import Final

__all__ = ["PRE_NORM", "pre_norm_diagram"]

PRE_NORM: Final = (
    r"h = x + \mathrm{attn}(\mathrm{norm}_1(x)), \quad"
    r" y = h + \mathrm{mlp}(\mathrm{norm}_2(h))"
)


def pre_norm_diagram(
    shape: str, *, norms: tuple[str, str], attention: str, mlp: str, attended: str = "attn"
) -> str:
    """The diagram of such a block.

    Args:
        shape: Shape of input and output.
        norms: The first and the second.
        attention: Flowchart lines starting at the node `n1`, the first norm.
        mlp: What follows the second norm.
        attended: The last node of those lines.
    """
    return f"""flowchart TB
  x["x {shape}"] --> n1["{norms[0]}"]
{attention}
  {attended} --> add1["sum"]
  x --> add1
  add1 --> n2["{norms[1]}"]
  n2 --> mlp["{mlp}"]
  mlp --> add2["sum"]
  add1 --> add2
  add2 --> y["y {shape}"]"""
