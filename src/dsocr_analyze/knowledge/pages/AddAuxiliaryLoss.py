"""The router's loss in the backward pass of training."""

from __future__ import annotations

from typing import Any

import torch

from dsocr_analyze.knowledge.families.decoder import SYMBOLS
from dsocr_analyze.knowledge.families.reference_files import DECODER
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Page, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    d = facts.decoder.hidden_size
    function = facts.get("AddAuxiliaryLoss")

    def apply(x: torch.Tensor, loss: torch.Tensor) -> Any:
        return function.apply(x, loss)

    return Page(
        group="Decoder: MLP and mixture of experts",
        subject=function,
        what="An autograd function that returns its input and, in the backward pass, gives the"
        " router's load-balancing loss a gradient of one if that loss requires a gradient, as if it"
        " had been added to the total. It runs only in training.",
        blocks=(),
        layer="none: nothing is computed",
        inputs={"x": "B, T, d"},
        output="B, T, d",
        parameters={},
        diagram="""flowchart LR
  x["x"] -->|"forward: returned"| y["x"]
  loss["auxiliary loss"] -.->|"its dtype is kept for backward"| y
  grad["gradient of y"] -->|"backward"| gx["gradient of x: the same"]
  grad -.->|"if the loss requires one"| gl["gradient of the loss: one"]""",
        pseudo_code="""forward(x, loss):   return x
backward(grad):     return grad, ones(1) if loss.requires_grad else None""",
        mathematics=r"y = x, \quad \frac{\partial \mathcal{L}}{\partial x} ="
        r" \frac{\partial \mathcal{L}}{\partial y}, \quad"
        r" \frac{\partial \mathcal{L}}{\partial \ell_{aux}} = 1"
        r" \ \text{(where it is required)}",
        symbols=pick("B T d", SYMBOLS),
        formulas=Formulas(),
        cases=(
            Case(
                "training step",
                {"B": 1, "T": facts.tokens, "d": d},
                lambda: apply,
                lambda: [tensor(1, facts.tokens, d), tensor(1, dtype=torch.float32)],
            ),
        ),
        flops_notes=("No FLOPs in the forward pass; the backward pass fills one element.",),
        related=("MoEGate", "DeepseekV2MoE"),
        usage=f"""import torch
from {DECODER} import AddAuxiliaryLoss

x = torch.ones(2, 3, requires_grad=True)
loss = torch.zeros(1, requires_grad=True)
AddAuxiliaryLoss.apply(x, loss).sum().backward()
assert loss.grad.item() == 1 and bool((x.grad == 1).all())""",
        notes="training only; returns its input",
        references=("deepseekv2",),
    )
