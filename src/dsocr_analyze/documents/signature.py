"""Definitions as pages show them: classes and functions without their bodies."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["definition_of"]

_WIDTH = 88


def definition_of(subject: Any) -> str:
    """A class with its constructor and its call, or a function, without bodies."""
    if not inspect.isclass(subject):
        return _function(subject.__name__, subject, "")
    bases = ", ".join(_base_name(base) for base in subject.__bases__ if base is not object)
    lines = [f"class {subject.__name__}({bases}):" if bases else f"class {subject.__name__}:"]
    body = []
    model_type = vars(subject).get("model_type")
    if isinstance(model_type, str):
        body.append(f'    model_type = "{model_type}"')
        if "__init__" in vars(subject):
            body.append("")
    for name in ("__init__", "forward", "__call__", "on_finalized_text"):
        function = inspect.unwrap(vars(subject).get(name, _ABSENT))
        if isinstance(function, staticmethod):
            body.append("    @staticmethod")
            function = function.__func__
        if inspect.isfunction(function):
            body.append(_function(name, function, "    "))
    if not body:
        return f"{lines[0]} ...  # constructor and call are inherited"
    return "\n".join([*lines, *body])


_ABSENT = object()


def _base_name(base: type) -> str:
    module = base.__module__
    if module.startswith("torch.nn"):
        return f"nn.{base.__name__}"
    return base.__name__


def _function(name: str, function: Any, indent: str) -> str:
    signature = inspect.signature(function)
    parameters = [str(parameter) for parameter in signature.parameters.values()]
    returned = signature.return_annotation
    if returned is inspect.Signature.empty:
        tail = ""
    else:
        tail = (
            f" -> {returned if isinstance(returned, str) else inspect.formatannotation(returned)}"
        )
    parameters = [_plain(text) for text in parameters]
    one_line = f"{indent}def {name}({', '.join(parameters)}){tail}: ..."
    if len(one_line) <= _WIDTH:
        return one_line
    lines = [f"{indent}def {name}(", *(f"{indent}    {text}," for text in parameters)]
    return "\n".join([*lines, f"{indent}){tail}: ..."])


def _plain(text: str) -> str:
    """A parameter without quotes around its annotation, and with its default as source code."""
    name, colon, rest = text.partition(": ")
    annotation, equals, default = rest.partition(" = ")
    if annotation.startswith("'") and annotation.endswith("'"):
        annotation = annotation[1:-1]
    if default.startswith("<class "):
        default = default.split("'")[1].rpartition(".")[2]
    elif default.startswith("'") and '"' not in default:
        default = f'"{default[1:-1]}"'
    return f"{name}{colon}{annotation}{equals}{default}"
