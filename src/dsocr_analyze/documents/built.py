"""Modules that no page runs, and functions: made by hand, on a tape and in a trace alone."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from dsocr_analyze.architectures.ocr_family import clip, sam
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions
from dsocr_analyze.architectures.ocr_family.latent_attention import (
    latent_attention,
    rotary_embedding,
)
from dsocr_analyze.architectures.ocr_family.named_sizes import Part, named_part
from dsocr_analyze.architectures.ocr_family.page import model as decoder_model
from dsocr_analyze.architectures.ocr_family.page import whole_model
from dsocr_analyze.documents.cases import Case
from dsocr_analyze.documents.model import DocumentedModel
from dsocr_analyze.dtypes import BFLOAT16, FLOAT32, INT64, Dtype
from dsocr_analyze.running.building import building
from dsocr_analyze.tape.formula import FormulaTape
from dsocr_analyze.tape.modules import conv2d, layer_norm, linear
from dsocr_analyze.tape.polynomial import Size
from dsocr_analyze.tape.tape import Tape
from dsocr_analyze.trace.module_calls import shapes_of
from dsocr_analyze.trace.record import TracedCall
from dsocr_analyze.trace.single_module import FunctionModule, trace_calls, trace_module
from dsocr_analyze.workload import ViewBatch

__all__ = ["BUILT"]

_META: Final = torch.device("meta")
_CPU: Final = torch.device("cpu")
_BYTE: Final = Dtype("uint8", 1)
_CHANNELS: Final = 3

Cases = Iterator[Case]
Forward = tuple[Any, ...]
"""A function of a tape, and what it is called with."""


def _of_module(
    label: str, part: Part, forward: Forward, module: torch.nn.Module, *args: Any, **kwargs: Any
) -> Case:
    """A call of a module, with the forward that says what it costs."""
    trace, _ = trace_module(module, _META, *args, **kwargs)
    (traced,) = trace.modules[""]
    taped = FormulaTape(BFLOAT16).run(*forward)
    params = sum(each.numel() for each in module.parameters())
    return Case(label, part, taped, taped.params, traced, params)


def _of_function(
    label: str,
    part: Part,
    forward: Forward,
    function: Callable[..., Any],
    *args: Any,
    device: torch.device = _META,
) -> Case:
    """A call of a function, which has no parameters of its own."""
    trace, _ = trace_module(FunctionModule(function), device, *args)
    (traced,) = trace.modules[""]
    shapes = shapes_of(inspect.signature(function).bind(*args).arguments)
    shapes |= {name: shape for name, shape in traced.shapes.items() if name == "returned"}
    taped = FormulaTape(BFLOAT16).run(*forward)
    return Case(label, part, taped, 0, traced._replace(shapes=shapes), 0)


def _tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=_META)


def _made(model: DocumentedModel, name: str, *args: Any, **options: Any) -> Any:
    """A module on `meta`, in evaluation mode."""
    with building(_META, torch.bfloat16):
        return model.get(name)(*args, **options).eval()


def _passes(model: DocumentedModel) -> list[tuple[str, int, int]]:
    """Label, new tokens and cached tokens of the prompt and of a decode step."""
    T = model.workload.seq_len
    return [("prefill", T, 0), ("decode step", 1, T)]


def _views(model: DocumentedModel) -> Iterator[tuple[str, ViewBatch, int]]:
    """Label, views and tokens per side, the global view first."""
    for view in reversed(model.workload.views):
        label = "global view" if view is model.workload.global_view else "local views"
        yield label, view, view.resolution // 64


# --- position tables -------------------------------------------------------------------------


def _rotary(name: str, scaling: str | None, **options: Any) -> Callable[[DocumentedModel], Cases]:
    """A class that keeps tables of cosines and sines, on calls that fill them.

    Options are those of its constructor; None stands for the length that the model was trained for.
    """

    def cases(model: DocumentedModel) -> Cases:
        c = model.dimensions.decoder
        size, length = c.qk_rope_head_dim if c.use_mla else c.head_dim, c.max_position_embeddings
        given = {key: length if value is None else value for key, value in options.items()}
        given |= {"max_position_embeddings": length, "base": c.rope_theta}
        for label, K in (
            ("prefill", model.workload.seq_len),
            ("beyond the trained length", 2 * length),
        ):
            part = Part("rotary", None, {"H": c.heads})
            sizes: dict[str, Any] = {
                "qk_rope_head_dim": part.size("D", size, 2),
                "max_position_embeddings": part.size("L_0", length),
            }
            named = replace(c, rope_scaling=scaling, **sizes)
            forward = _filled, part.size("K", K), named
            x = _tensor(1, c.heads, 1, size)
            yield _of_module(label, part, forward, _made(model, name, size, **given), x, K)

    return cases


def _filled(t: Tape, K: Size, c: DecoderDimensions) -> None:
    t.hold(*rotary_embedding(t, K, c))


def _clip_positions(model: DocumentedModel) -> Cases:
    """CLIP's table for each size of view."""
    c = model.dimensions.clip
    for label, _, q in _views(model):
        part, named = named_part("clip", c, q=q)
        forward = _clip_table, named["q"], part.dimensions
        table = _tensor(1, c.positions, c.width)
        yield _of_function(label, part, forward, model.get("get_abs_pos"), table, q * q + 1)


def _clip_table(t: Tape, q: Size, c: Any) -> None:
    clip.absolute_positions(t, t.input(c.positions * c.width, t.dtype), q, c)


def _sam_positions(model: DocumentedModel) -> Cases:
    """SAM's table for each size of view."""
    c = model.dimensions.sam
    for label, _, q in _views(model):
        part, named = named_part("sam", c, q=q)
        forward = sam.absolute_positions, 4 * named["q"], part.dimensions
        table = _tensor(1, c.position_grid, c.position_grid, c.width)
        yield _of_function(label, part, forward, model.get("get_abs_pos_sam"), table, 4 * q)


def _relative_positions(model: DocumentedModel) -> Cases:
    """Windows and the whole grid, for each size of view."""
    c = model.dimensions.sam
    function = model.get("add_decomposed_rel_pos")
    for view, batch, q in _views(model):
        windows = batch.count * (-(-4 * q // c.window)) ** 2
        for label, N, g, side in (
            ("windows", windows, c.window, c.window),
            ("whole grid", batch.count, 4 * q, c.position_grid),
        ):
            rows = 2 * side - 1
            part, named = named_part("sam", c, N=N, g=g, t=rows)
            # A function knows no heads: each has grids of its own.
            one = replace(part.dimensions, width=part.dimensions.head_dim, heads=1)
            forward = _terms, named["N"] * part.dimensions.heads, named["g"], one, named["t"]
            queries, tables = _tensor(N * c.heads, g * g, c.head_dim), _tensor(rows, c.head_dim)
            arguments = (queries, tables, tables, (g, g), (g, g))
            yield _of_function(f"{view}, {label}", part, forward, function, *arguments)


def _terms(t: Tape, N: Size, g: Size, c: Any, rows: Size) -> None:
    sam.position_terms(t, t.input(N * g * g * c.width, t.dtype), N, g, c, rows)


# --- the decoder -----------------------------------------------------------------------------


def _latent(name: str, *, flash: bool) -> Callable[[DocumentedModel], Cases]:
    """Latent attention, with the class's default sizes unless the model uses it."""

    def cases(model: DocumentedModel) -> Cases:
        config: Any = copy.deepcopy(model.config)
        config._attn_implementation = "flash_attention_2" if flash else "eager"
        if not config.use_mla:
            for key in _LATENT:
                setattr(config, key, getattr(type(config)(), key))
        latent = {"use_mla": True} | {key: getattr(config, key) for key in _LATENT}
        config.use_mla = True
        c = DecoderDimensions.from_config({**model.session.loaded.directory.config, **latent})
        for label, T, past in _passes(model):
            part, p = _pass(c, T, past, flash=flash)
            heads, widths = 1, (c.qk_rope_head_dim, c.kv_lora_rank)
            if flash:
                heads, widths = c.heads, (c.head_dim, c.head_dim)
            pair = tuple(_tensor(1, heads, past, width) for width in widths)
            yield _of_module(
                label,
                part,
                (_attended, p, part.dimensions),
                _made(model, name, config, 0),
                _tensor(1, T, c.hidden_size),
                attention_mask=None if flash else _tensor(1, 1, T, past + T),
                position_ids=_tensor(1, T, dtype=torch.long),
                past_key_value=model.get("KeyValueCache")([pair] if past else []),
            )

    return cases


_LATENT: Final = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)


def _attended(t: Tape, p: Pass, c: DecoderDimensions) -> Any:
    x = t.input(p.tokens * c.hidden_size, t.dtype)
    mask = None if p.flash else t.input(p.tokens * p.keys, t.dtype)
    return latent_attention(t, x, mask, p, c)


def _pass(c: DecoderDimensions, T: int, past: int, *, flash: bool = False) -> tuple[Part, Pass]:
    """The decoder with names for its sizes, and a pass of one sequence."""
    part, named = named_part("decoder", c, B=1, T=T, **({"K": past + T} if past else {}))
    part.values.setdefault("K", T)
    return part, Pass(named["B"], named["T"], named["K"] - named["T"] if past else 0, flash)


class _TextPass(NamedTuple):
    """A pass of the decoder without a page, on a tape and in a trace."""

    label: str
    part: Part
    tape: FormulaTape
    traced: Mapping[str, list[TracedCall]]


@cache
def _text_passes(model: DocumentedModel) -> list[_TextPass]:
    """A prompt and a decode step of the decoder with its head."""
    passes = _passes(model)
    traces = trace_calls(
        _decoder_of(model, "DeepseekV2ForCausalLM"),
        _META,
        [_text_inputs(model, T, past) for _, T, past in passes],
        model.architecture.forms.repeats(model.dimensions),
    )
    found = []
    for (label, T, past), (trace, _) in zip(passes, traces, strict=True):
        part, p = _pass(model.dimensions.decoder, T, past)
        tape = FormulaTape(BFLOAT16)
        c = replace(model.dimensions, decoder=part.dimensions)
        whole_model(tape, model.network, c, p, None)
        found.append(_TextPass(label, part, tape, trace.modules))
    return found


def _of_text(name: str, path: str, model: DocumentedModel) -> Cases:
    """A class of decoders without a page, at its path in that with a head."""
    params = sum(each.numel() for each in _decoder_of(model, name).parameters())
    # A decode step does not run every expert.
    whole = _text_passes(model)[0].tape.modules[path][-1]
    for each in _text_passes(model):
        call, traced = each.tape.modules[path][-1], each.traced[path][0]
        yield Case(each.label, each.part, call, whole.params, traced, params)


def _with_labels(model: DocumentedModel) -> Cases:
    """The decoder with a linear map of every token, of which the last token's labels are taken."""
    label, T, past = _passes(model)[0]
    part, p = _pass(model.dimensions.decoder, T, past)
    c = replace(model.dimensions, decoder=part.dimensions)
    forward = _labelled, model, p, c, part.size("c", model.config.num_labels)
    subject = _decoder_of(model, "DeepseekV2ForSequenceClassification")
    repeats = model.architecture.forms.repeats(model.dimensions)
    inputs = _text_inputs(model, T, past)
    yield _of_module(label, part, forward, subject, repeats=repeats, **inputs)


def _labelled(t: Tape, model: DocumentedModel, p: Pass, c: Any, labels: Size) -> Any:
    hidden, cache = t.call("model", decoder_model, model.network, c, p, None)
    scores = t.call("score", linear, hidden, p.tokens, c.decoder.hidden_size, labels)
    pooled = t.gather("index", t.fill("arange", p.B, INT64), p.B * labels, t.dtype)
    t.hold(scores, pooled)
    return None, cache


def _text_inputs(model: DocumentedModel, T: int, past: int) -> dict[str, Any]:
    """Arguments of a pass without a page."""
    c = model.dimensions.decoder
    sizes = ((c.kv_heads, c.head_dim),) * 2
    if c.use_mla:
        sizes = (1, c.qk_rope_head_dim), (1, c.kv_lora_rank)
    pair = tuple(_tensor(1, heads, past, width) for heads, width in sizes)
    return {
        "input_ids": _tensor(1, T, dtype=torch.long),
        "attention_mask": _tensor(1, past + T, dtype=torch.long),
        "position_ids": _tensor(1, T, dtype=torch.long),
        "past_key_values": model.get("KeyValueCache")([pair] * c.layers if past else []),
        "use_cache": True,
    }


def _decoder_of(model: DocumentedModel, name: str) -> torch.nn.Module:
    """A class of decoders, with the layers of the model at hand."""
    whole, config = model.session.model, model.config
    inner = _as(whole.model, model.get("DeepseekV2Model"), "embed_tokens", "layers", "norm")
    if name == "DeepseekV2Model":
        return inner
    made = _as(whole, model.get(name), *(["lm_head"] if name.endswith("LM") else []))
    made.add_module("model", inner)
    if not name.endswith("LM"):
        made.num_labels = config.num_labels
        sizes = config.hidden_size, config.num_labels
        score = torch.nn.Linear(*sizes, bias=False, device=_META, dtype=torch.bfloat16)
        made.add_module("score", score)
    return made


def _as(module: Any, kind: type[torch.nn.Module], *children: str) -> torch.nn.Module:
    """The module as one of another class, with some of its children."""
    made: torch.nn.Module = copy.copy(module)
    made.__class__ = kind
    made._modules = {name: module._modules[name] for name in children}
    made._parameters = {}
    return made


# --- others ----------------------------------------------------------------------------------


def _repeat_kv(model: DocumentedModel) -> Cases:
    """As the model calls it, and with two query heads for each of keys and values."""
    c, K = model.dimensions.decoder, model.workload.seq_len
    own = c.heads // c.kv_heads
    for label, n in (("as the model calls it", own), ("two query heads per KV head", 2)):
        part = Part("repeat_kv", None, {})
        sizes = [
            part.size(*each)
            for each in (("B", 1), ("K", K), ("H_kv", c.kv_heads), ("D", c.head_dim))
        ]
        elements = sizes[0] * sizes[1] * sizes[2] * sizes[3]
        forward = _repeated, elements, part.size("n", n)
        keys = _tensor(1, c.kv_heads, K, c.head_dim)
        yield _of_function(label, part, forward, model.get("repeat_kv"), keys, n)


def _repeated(t: Tape, elements: Size, n: Size) -> None:
    if n > 1:
        t.clone(t.input(elements, t.dtype), n * elements)


def _auxiliary_loss(model: DocumentedModel) -> Cases:
    """A training step, which returns its input."""
    T, d = model.workload.seq_len, model.dimensions.decoder.hidden_size
    function = model.get("AddAuxiliaryLoss")

    def apply(x: torch.Tensor, loss: torch.Tensor) -> Any:
        return function.apply(x, loss)

    part = Part("decoder", None, {"B": 1, "T": T, "d": d})
    tensors = _tensor(1, T, d), _tensor(1, dtype=torch.float32)
    yield _of_function("training step", part, (_nothing,), apply, *tensors)


def _nothing(t: Tape) -> None:
    """A forward without operators."""


def _image_transform(model: DocumentedModel) -> Cases:
    """A view from bytes, on the CPU."""
    transform = model.get("BasicImageTransform")()
    for label, view, _ in _views(model):
        part, R = Part("preprocessing", None, {}), view.resolution
        forward = _to_view, part.size("C", _CHANNELS), part.size("R", R)
        image = np.zeros((R, R, _CHANNELS), dtype=np.uint8)
        one = f"one {label.removesuffix('s')}"
        yield _of_function(one, part, forward, transform.__call__, image, device=_CPU)


def _to_view(t: Tape, C: Size, R: Size) -> None:
    """Bytes with channels first, divided by the largest; then minus mean, divided by deviation."""
    tensor = t.clone(t.input(C * R * R, _BYTE))
    x = t.map("div", t.cast(tensor, FLOAT32))
    del tensor
    y = t.clone(x)
    for operator in ("sub", "div"):
        t.map(operator, y, t.input(C, FLOAT32), into=y)
    t.hold(x)


def _layer_norm_fp32(model: DocumentedModel) -> Cases:
    """A norm in fp32 of CLIP's tokens."""
    c = model.dimensions.clip
    for label, batch, q in _views(model):
        part, named = named_part("clip", c, N=batch.count, q=q)
        rows = named["N"] * (named["q"] * named["q"] + 1)
        module = _made(model, "LayerNormfp32", c.width)
        x = _tensor(batch.count, q * q + 1, c.width)
        yield _of_module(label, part, (_normed, rows, part.dimensions.width), module, x)


def _normed(t: Tape, rows: Size, d: Size) -> Any:
    return t.cast(layer_norm(t, t.cast(t.input(rows * d, t.dtype), FLOAT32), rows, d), t.dtype)


def _own_convolution(model: DocumentedModel) -> Cases:
    """CLIP's embeddings with the convolution that the model never runs."""
    c = model.dimensions.clip
    part, named = named_part("clip", c, N=1, q=c.image_size // c.patch_size)
    module = _made(model, "CLIPVisionEmbeddings", c.width, c.image_size, c.patch_size)
    pixels = _tensor(1, _CHANNELS, c.image_size, c.image_size)
    label = "own convolution (never runs in the model)"
    forward = _convolved, named["N"], _CHANNELS, named["q"], part.dimensions
    yield _of_module(label, part, forward, module, pixels, None)


def _convolved(t: Tape, N: Size, C: Size, q: Size, c: Any) -> Any:
    patch, side = c.patch_size, q * c.patch_size
    pixels = t.input(N * C * side * side, t.dtype)
    sizes = pixels, N, side, C, c.width, patch
    patches = t.call("patch_embedding", conv2d, *sizes, stride=patch)
    return clip.embeddings(t, patches, N, q, c)


_YARN: Final[Mapping[str, Any]] = {"scaling_factor": 2.0, "original_max_position_embeddings": None}

BUILT: Final[Mapping[str, Callable[[DocumentedModel], Cases]]] = {
    "AddAuxiliaryLoss": _auxiliary_loss,
    "BasicImageTransform": _image_transform,
    "CLIPVisionEmbeddings": _own_convolution,
    "DeepseekV2Attention": _latent("DeepseekV2Attention", flash=False),
    "DeepseekV2DynamicNTKScalingRotaryEmbedding": _rotary(
        "DeepseekV2DynamicNTKScalingRotaryEmbedding", "dynamic", scaling_factor=2.0
    ),
    "DeepseekV2FlashAttention2": _latent("DeepseekV2FlashAttention2", flash=True),
    "DeepseekV2ForCausalLM": partial(_of_text, "DeepseekV2ForCausalLM", ""),
    "DeepseekV2ForSequenceClassification": _with_labels,
    "DeepseekV2LinearScalingRotaryEmbedding": _rotary(
        "DeepseekV2LinearScalingRotaryEmbedding", "linear", scaling_factor=2.0
    ),
    "DeepseekV2Model": partial(_of_text, "DeepseekV2Model", "model"),
    "DeepseekV2RotaryEmbedding": _rotary("DeepseekV2RotaryEmbedding", None),
    "DeepseekV2YarnRotaryEmbedding": _rotary("DeepseekV2YarnRotaryEmbedding", "yarn", **_YARN),
    "LayerNormfp32": _layer_norm_fp32,
    "add_decomposed_rel_pos": _relative_positions,
    "get_abs_pos": _clip_positions,
    "get_abs_pos_sam": _sam_positions,
    "repeat_kv": _repeat_kv,
}
"""Cases of a page that are made by hand, by its name."""
