"""Functions, and modules that no model runs: made by hand, on a tape and in a trace alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from dsocr_analyze.architectures.ocr_family import clip, sam
from dsocr_analyze.architectures.ocr_family.named_sizes import Part, named_part
from dsocr_analyze.documents.model import META, DocumentedModel, Run
from dsocr_analyze.dtypes import BFLOAT16, FLOAT32, Dtype
from dsocr_analyze.tape import Size, Tape, View
from dsocr_analyze.tape.formula import FormulaTape
from dsocr_analyze.trace.single_module import FunctionModule, trace_module

__all__ = ["ALONE"]

_BYTE: Final = Dtype("uint8", 1)


def _run(
    label: str,
    part: Part,
    subject: Callable[..., Any],
    inputs: tuple[Any, ...],
    forward: Callable[..., Any],
    *sizes: Any,
) -> Run:
    """A call of a module or function, and the forward that says what it costs."""
    module = subject if isinstance(subject, torch.nn.Module) else FunctionModule(subject)
    device = META if isinstance(inputs[0], torch.Tensor) else torch.device("cpu")
    tape = FormulaTape(BFLOAT16)
    call = tape.run(forward, *sizes)
    if module is not subject:
        call.params = 0  # a function is given its tables
    trace, _ = trace_module(module.to(device, torch.bfloat16), device, *inputs)
    return Run(label, (part,), tape, trace, module)


def _tensor(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=META)


def _views(model: DocumentedModel, part: str) -> Iterator[tuple[str, int, int, Part, Size, Size]]:
    """The page's views, the global one first: label, number, tokens per side.

    Then a part of the model, and names for the two sizes.
    """
    for view in reversed(model.workload.views):
        label = "global view" if view is model.workload.global_view else "local views"
        N, q = view.count, view.resolution // 64
        named, sizes = named_part(part, getattr(model.dimensions, part), N=N, q=q)
        yield label, N, q, named, sizes["N"], sizes["q"]


def _clip_positions(model: DocumentedModel) -> Iterator[Run]:
    """CLIP's table for each size of view."""
    c, function = model.dimensions.clip, model.get("get_abs_pos")
    for label, _, q, part, _, side in _views(model, "clip"):
        table = View(part.dimensions.positions * part.dimensions.width, BFLOAT16)
        inputs = _tensor(1, c.positions, c.width), q * q + 1
        yield _run(
            label, part, function, inputs, clip.absolute_positions, table, side, part.dimensions
        )


def _sam_positions(model: DocumentedModel) -> Iterator[Run]:
    """SAM's table for each size of view."""
    c, function = model.dimensions.sam, model.get("get_abs_pos_sam")
    for label, _, q, part, _, side in _views(model, "sam"):
        inputs = _tensor(1, c.position_grid, c.position_grid, c.width), 4 * q
        sizes = 4 * side, part.dimensions
        yield _run(label, part, function, inputs, sam.absolute_positions, *sizes)


def _relative_positions(model: DocumentedModel) -> Iterator[Run]:
    """Windows and the whole grid, for each size of view."""
    c, function = model.dimensions.sam, model.get("add_decomposed_rel_pos")
    for view, count, q, *_ in _views(model, "sam"):
        windows = count * (-(-4 * q // c.window)) ** 2
        for label, N, g, side in (
            ("windows", windows, c.window, c.window),
            ("whole grid", count, 4 * q, c.position_grid),
        ):
            t = 2 * side - 1
            part, named = named_part("sam", c, N=N, g=g, t=t)
            # A function knows no heads: each has grids of its own.
            one = replace(part.dimensions, width=part.dimensions.head_dim, heads=1)
            grids = named["N"] * part.dimensions.heads
            taped = View(grids * named["g"] * named["g"] * one.width, BFLOAT16)
            queries, table = _tensor(N * c.heads, g * g, c.head_dim), _tensor(t, c.head_dim)
            inputs = queries, table, table, (g, g), (g, g)
            sizes = taped, grids, named["g"], one, named["t"]
            yield _run(f"{view}, {label}", part, function, inputs, sam.position_terms, *sizes)


def _repeat_kv(model: DocumentedModel) -> Iterator[Run]:
    """As the model calls it, and with two query heads for each of keys and values."""
    c, K = model.dimensions.decoder, model.workload.seq_len
    calls = {"as the model calls it": c.heads // c.kv_heads, "two query heads per KV head": 2}
    for label, n in calls.items():
        part, shape = Part("repeat_kv", None, {}), (1, c.kv_heads, K, c.head_dim)
        B, H_kv, keys, D = map(part.size, ("B", "H_kv", "K", "D"), shape)
        sizes = B * H_kv * keys * D, part.size("n", n)
        yield _run(label, part, model.get("repeat_kv"), (_tensor(*shape), n), _repeated, *sizes)


def _repeated(t: Tape, elements: Size, n: Size) -> None:
    if n > 1:
        t.clone(t.input(elements, t.dtype), n * elements)


def _image_transform(model: DocumentedModel) -> Iterator[Run]:
    """A view from bytes, on the CPU."""
    for label, _, q, *_ in _views(model, "sam"):
        part, R = Part("preprocessing", None, {}), 64 * q
        sizes = part.size("C", 3), part.size("R", R)
        label, image = f"one {label.removesuffix('s')}", np.zeros((R, R, 3), dtype=np.uint8)
        yield _run(label, part, model.get("BasicImageTransform")(), (image,), _to_view, *sizes)


def _to_view(t: Tape, C: Size, R: Size) -> None:
    """Bytes with channels first, divided by the largest; then minus mean, divided by deviation."""
    tensor = t.clone(t.input(C * R * R, _BYTE))
    x = t.map("div", t.cast(tensor, FLOAT32))
    del tensor
    y = t.clone(x)
    for operator in ("sub", "div"):
        t.map(operator, y, t.input(C, FLOAT32), into=y)
    t.hold(x)


def _layer_norm_fp32(model: DocumentedModel) -> Iterator[Run]:
    """A norm in fp32 of CLIP's tokens."""
    c = model.dimensions.clip
    for label, N, q, part, views, side in _views(model, "clip"):
        rows, d = views * (side * side + 1), part.dimensions.width
        module = model.get("LayerNormfp32")(c.width)
        inputs, taped = (_tensor(N, q * q + 1, c.width),), View(rows * d, BFLOAT16)
        yield _run(label, part, module, inputs, clip.layer_norm_fp32, taped, rows, d)


def _own_convolution(model: DocumentedModel) -> Iterator[Run]:
    """CLIP's embeddings with the convolution that the model never runs."""
    c = model.dimensions.clip
    part, named = named_part("clip", c, N=1, q=c.image_size // c.patch_size)
    module = model.get("CLIPVisionEmbeddings")(c.width, c.image_size, c.patch_size)
    inputs = _tensor(1, 3, c.image_size, c.image_size), None
    label = "own convolution (never runs in the model)"
    sizes = named["N"], named["q"], part.dimensions
    yield _run(label, part, module, inputs, clip.embeddings_of_pixels, *sizes)


ALONE: Final[Mapping[str, Callable[[DocumentedModel], Iterator[Run]]]] = {
    "BasicImageTransform": _image_transform,
    "CLIPVisionEmbeddings": _own_convolution,
    "LayerNormfp32": _layer_norm_fp32,
    "add_decomposed_rel_pos": _relative_positions,
    "get_abs_pos": _clip_positions,
    "get_abs_pos_sam": _sam_positions,
    "repeat_kv": _repeat_kv,
}
"""Runs of what no model runs, by its name."""
