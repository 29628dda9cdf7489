"""Rejects by name what a trace cannot count: no figure is better than a wrong one."""

from __future__ import annotations

import traceback
from typing import Final, NoReturn

import torch

from dsocr_analyze.errors import UncountableError
from dsocr_analyze.model.torch_calls import SEQUENCES, Arguments

__all__ = ["refuse_functions", "refuse_higher_order", "refuse_uncountable"]

# --- tensors ---------------------------------------------------------------------------------


def refuse_uncountable(where: str, values: Arguments) -> None:
    """Raises UncountableError for nested, sparse, quantized or wrapping tensors, also in lists.

    `where` names what the values belong to.
    """
    for value in values:
        if isinstance(value, SEQUENCES):
            refuse_uncountable(where, value)
        if not isinstance(value, torch.Tensor):
            continue
        kind, refused = type(value), ""
        own_dispatch = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        if value.is_nested:
            refused = "nested tensors are not counted; pad them (torch.nested.to_padded_tensor)"
        elif own_dispatch and kind.__name__ != "FakeTensor":  # on tensors that a trace cannot see
            refused = f"tensors of type {kind.__name__} are not counted; use the tensors they wrap"
        elif value.layout is not torch.strided:
            refused = (
                f"tensors of layout {value.layout} are not counted; use dense ones (to_dense())"
            )
        elif value.is_quantized:
            refused = (
                f"tensors of {value.dtype} are not counted; use dequantized ones (dequantize())"
            )
        if refused:
            raise UncountableError(f"{where}: {refused}")


# --- operators that take functions -----------------------------------------------------------

_FLEX_ATTENTION: Final = "torch.nn.attention.flex_attention"
_DYNAMO: Final = "torch._dynamo."
_HIGHER_ORDER: Final = "torch._higher_order_ops."


def refuse_higher_order(name: str) -> NoReturn:
    """Raises UncountableError for an operator that takes functions."""
    if name == "flex_attention":
        raise UncountableError(
            "flex_attention is not counted: the trace does not see inside its score function; use"
            " torch.nn.functional.scaled_dot_product_attention with a mask (attn_implementation"
            " 'sdpa') or matrix products ('eager')"
        )
    raise UncountableError(
        f"the operator {name} is not counted: the trace does not see inside the functions it"
        " takes; call them directly"
    )


def refuse_functions(error: BaseException) -> None:
    """Raises UncountableError in place of an error from within such an operator or torch.compile.

    On `meta`, the operator fails before any dispatch.
    """
    if not isinstance(error, Exception) or isinstance(error, UncountableError):
        return
    places = [type(error).__module__]
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__"))
        places[1:] = [module]  # the last
        if module == _FLEX_ATTENTION or module.startswith(_HIGHER_ORDER):
            try:
                refuse_higher_order(frame.f_code.co_name)
            except UncountableError as refusal:
                raise refusal from error
    if any(place.startswith(_DYNAMO) for place in places):
        raise UncountableError(
            "a graph made by torch.compile is not counted: the trace does not see its operators;"
            " call the function itself, or compile it without fullgraph=True"
        ) from error
