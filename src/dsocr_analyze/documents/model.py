"""The model that documents are written from: calls of its modules, on a tape and in a trace."""

import copy
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Final, Self

import numpy as np
import torch

from dsocr_analyze.architectures import deepseek_ocr
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.ocr_family import attention, dimensions, vision
from dsocr_analyze.architectures.ocr_family.family_member import (
    FamilyMember,
    ViewFeatures,
    classified,
    pixels_of,
)
from dsocr_analyze.architectures.ocr_family.named_sizes import Part, named_part
from dsocr_analyze.errors import DocumentError
from dsocr_analyze.figures import StageFigures
from dsocr_analyze.kernels import BFLOAT16, FLOAT32, NO_WORK, UINT8, Work, total_work, work_by
from dsocr_analyze.model import directory, loading
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.tape import Operand, Size, Tape, formula
from dsocr_analyze.trace import passes, record
from dsocr_analyze.workload import PageWorkload, ViewBatch

_META: Final = torch.device("meta")


@dataclass(frozen=True)
class Case:
    """One call of a module.

    Attributes:
        label: What it is called in tables.
        part: The part of the model, with the names of its sizes.
        taped: The call on a tape.
        traced: The call in a trace.
        taped_params: Parameters of the module, as a tape of all that it calls declares them.
        params: Parameters of the module, as the trace's model has them.
    """

    label: str
    part: Part
    taped: formula.ModuleCall
    traced: record.TracedCall
    taped_params: Size
    params: int

    @cached_property
    def work(self) -> Work:
        """Work of the call."""
        return total_work(self.operators.values())

    def child(self, name: str) -> Self:
        """The same of a child alone."""
        taped = next(each.call for each in self.taped.children if each.name == name)
        return replace(self, taped=taped, taped_params=taped.params)

    @cached_property
    def formulas(self) -> dict[str, str]:
        """Its formulas as text, by what they say."""
        work, call = self.taped.work, self.taped
        sizes: dict[str, Size] = {
            "MACs": work.macs,
            "vector FLOPs": work.vector_flops,
            "parameters": self.taped_params,
            "activations": work.activations,
            "cache bytes": call.cache_bytes,
            "peak bytes": call.peak_bytes,
        }
        return {name: formula.written(size, self.part.relations) for name, size in sizes.items()}

    def written(self, size: Size) -> str:
        """A formula as text, nothing for zero."""
        return formula.written(size, self.part.relations) if size else ""

    @property
    def conditions(self) -> str:
        """What must hold for the formulas, as text; empty if they always hold."""
        return ", ".join(
            f"`{each}`" for each in formula.conditions(self.taped.asked, self.part.relations)
        )

    @cached_property
    def operators(self) -> dict[str, Work]:
        """Work of all calls of each operator, as traced."""
        return work_by(self.traced.kernels, "operator")

    def check(self, page: str) -> None:
        """Raises DocumentError unless the tape and the trace say the same of every figure."""
        calls = self.taped, self.traced
        figures = {
            "parameters": (self.taped_params, self.params),
            "peak bytes": tuple(each.peak_bytes for each in calls),
            "cache bytes": tuple(each.cache_bytes for each in calls),
        }
        for name in {**self.operators, **self.taped.operators}:
            works = (self.taped.operators.get(name, NO_WORK), self.operators.get(name, NO_WORK))
            for count, sizes in zip(Work._fields, zip(*works, strict=True), strict=True):
                figures[f"{count} of {name}"] = sizes
        for name, (taped, traced) in figures.items():
            if formula.value_of(taped) != traced:
                raise DocumentError(
                    f"{page} ({self.label}): {name} are {formula.value_of(taped):,} on the tape,"
                    f" {traced:,} in the trace"
                )


@dataclass(frozen=True)
class Run:
    """Part of a model's passes, on a tape and in a trace.

    Attributes:
        label: What it is called in tables.
        parts: The parts of the model that it runs.
        tape: The tape.
        trace: The trace of the pass that it belongs to.
        model: The model that ran.
        turn: Which call of its modules in that pass is meant.
    """

    label: str
    parts: tuple[Part, ...]
    tape: formula.FormulaTape
    trace: record.Trace
    model: torch.nn.Module
    turn: int = 0


class DocumentedModel:
    """The reference model of an architecture with one config, and the stated page.

    Args:
        architecture: The architecture.
        config: Values to use instead of its published `config.json`; None for those.
    """

    def __init__(self, architecture: Architecture, config: dict[str, Any] | None = None) -> None:
        self.directory = directory.ModelDirectory.read(architecture.reference)
        if config is not None:
            self.directory = self.directory.with_config(config)
        assert isinstance(architecture, FamilyMember), "others have no forwards"
        self.architecture, self.is_published = architecture, config is None
        # Raises an error for a wrong config before anything runs.
        self.dimensions: Any = self.directory.dimensions()
        # A4 at 150 dpi.
        self.workload: PageWorkload = architecture.plan(page=(1240, 1754), max_new_tokens=2)

    # --- the model

    @cached_property
    def session(self) -> DeepSeekOCRSession:
        """The model as built; other documents ask only for its dimensions."""
        return DeepSeekOCRSession.from_directory(self.directory)

    @property
    def built(self) -> Any:
        """The model as built."""
        return self.session.model

    @cache  # noqa: B019  # a model lives as long as the process
    def paths(self, name: str) -> list[str]:
        """Paths of the modules of a class, in order."""
        return [path for path, each in self.session.module_classes.items() if each == name]

    @cached_property
    def _files(self) -> list[Any]:
        """The model's own files, then those that it builds on."""
        bases = (each.__module__.rpartition(".")[0] for each in type(self.built).__mro__)
        packages = [each for each in bases if "." in each and "transformers." not in each]
        return [
            file
            for package in dict.fromkeys(packages)
            for name, file in list(sys.modules.items())
            if name.rpartition(".")[0] == package
        ]

    def get(self, name: str) -> Any:
        """A class or function of the model's own files or those it builds on; None for none."""
        return next((vars(each)[name] for each in self._files if name in vars(each)), None)

    # --- its passes

    @property
    def step_numbers(self) -> dict[str, int]:
        """The decode steps that pages show, by label: the first, and those around a full window."""
        window = self.dimensions.decoder.sliding_window
        if window is None:
            return {"decode step": 0}
        return {
            "first decode step": 0,
            "decode step that fills the window": window - 1,
            "decode step that overwrites": window,
        }

    @cached_property
    def traces(self) -> passes.PassTraces:
        """The passes of the stated page, with every module's calls."""
        return passes.trace_passes(
            self.session.loaded,
            self.workload,
            self.architecture,
            step_numbers=tuple(self.step_numbers.values()),
            repeats=self.architecture.forms.model.repeats(self.dimensions),
            recorder_type=passes.CallRecorder,
        )

    @cached_property
    def stages(self) -> dict[str, StageFigures]:
        """Figures of every stage."""
        return passes.stage_figures(self.traces, self.architecture.stages, self.session.own_params)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The views of the page, the prompt, and decode steps."""
        views = [self._views(turn, view) for turn, view in enumerate(self.workload.views)]
        T, window = self.workload.seq_len, self.dimensions.decoder.sliding_window
        found = [*reversed(views), self._decoder("prefill", self.traces.prefill, T)]
        for (label, number), trace in zip(
            self.step_numbers.items(), self.traces.decode_steps, strict=True
        ):
            is_full = window is not None and number >= window
            keys = T + (window if is_full else number + 1)
            found.append(self._decoder(label, trace, 1, keys, overwrites=is_full))
        return tuple(found)

    def _views(self, turn: int, view: ViewBatch) -> Run:
        """One call of the vision stages, on as many pixels as 64 per token and side."""
        encoders, tape = self.architecture, formula.FormulaTape(BFLOAT16)
        N, q, names = view.count, view.resolution // 64, [*encoders.begins.values()]
        named = [named_part(name, getattr(self.dimensions, name), N=N, q=q) for name in names]
        parts, sizes = [part for part, _ in named], dict[str, Any](named[0][1])
        parts[0].values["R"] = view.resolution
        c = replace(self.dimensions, **{part.name: part.dimensions for part in parts})
        tape.path, views = "model", ViewBatch(sizes["N"], 64 * sizes["q"])
        encoders.encode(tape, ViewFeatures(), pixels_of(tape, views), views, c)
        label = "global view" if view is self.workload.global_view else "local views"
        return Run(label, tuple(parts), tape, self.traces.prefill, self.built, turn)

    def _decoder(
        self,
        label: str,
        trace: record.Trace,
        T: int,
        K: int = 0,
        model: Any = None,
        c: Any = None,
        **how: Any,
    ) -> Run:
        """A pass of one sequence: of T new tokens, and K with those in the cache.

        With a model and its dimensions, it has no page.
        """
        workload = None if K or model else self.workload
        model, c = model or self.built, c or self.dimensions.decoder
        part, sizes = named_part("decoder", c, B=1, T=T, **({"K": K} if K else {}))
        part.values.setdefault("K", T)
        p = attention.Pass(sizes["B"], sizes["T"], sizes["K"] - sizes["T"] if K else 0, **how)
        c, tape = replace(self.dimensions, decoder=part.dimensions), formula.FormulaTape(BFLOAT16)
        if hasattr(model, "score"):
            tape.call("", classified, self.architecture, c, p, part.size("c", model.num_labels))
        else:
            tape.call("", self.architecture.whole_model, c, p, workload)
        return Run(label, (part,), tape, trace, model)

    @cache  # noqa: B019  # a model lives as long as the process
    def text_runs(self, name: str, changes: str) -> tuple[Run, ...]:
        """A class of decoders without a page: a prompt, and a decode step or a long prompt.

        Args:
            name: The class.
            changes: Values in place of the config's, as JSON; without any, layers are the model's.
        """
        changed, config = json.loads(changes), copy.deepcopy(self.built.config)
        config.update(changed or {"num_hidden_layers": 0})
        with loading.building(_META, torch.bfloat16):
            decoder = self.get(name)(config).eval()
        if not changed:
            decoder.model.layers = self.built.model.layers
        T, longest = self.workload.seq_len, 2 * config.max_position_embeddings
        sizes = {"prefill": (T, 0)}
        if "rope_scaling" in changed:
            sizes["beyond the trained length"] = longest, 0
        elif not hasattr(decoder, "score"):
            sizes["decode step"] = 1, T + 1
        flash = config._attn_implementation == "flash_attention_2"
        kept, inputs = None, []
        for new, keys in sizes.values():
            # A step finds the cache of the pass before.
            kept = kept if keys else self.get("GrowingCache")()
            ids, mask = (
                torch.empty(1, length, dtype=torch.long, device=_META)
                for length in (new, keys or new)
            )
            inputs.append(
                {
                    "input_ids": ids,
                    "position_ids": ids,
                    "attention_mask": None if flash else mask,
                    "past_key_values": kept,
                    "use_cache": True,
                }
            )
        repeats = None if changed else self.architecture.forms.model.repeats(self.dimensions)
        traces = passes.trace_calls(decoder, _META, inputs, repeats)
        c = dimensions.DecoderDimensions.from_config(self.directory.config | changed)
        return tuple(
            self._decoder(label, trace, *sizes[label], decoder, c, flash=flash)
            for label, (trace, _) in zip(sizes, traces, strict=True)
        )

    # --- its modules

    def cases(self, runs: Iterable[Run], paths: Mapping[str, str]) -> Iterator[Case]:
        """The calls of modules in some runs.

        Args:
            runs: The runs.
            paths: Labels by path; an empty label for none.
        """
        params, owner_of = dict[str, tuple[Size, int]](), self.architecture.owner_of
        for run, path in itertools.product(runs, paths):
            # An equal call of an earlier pass is not recorded again.
            calls, taped = run.trace.modules.get(path), run.tape.modules.get(path)
            if taped and calls:
                if path not in params:  # a decode step does not run every expert
                    weights = run.model.get_submodule(path).parameters()
                    params[path] = taped[0].params, sum(each.numel() for each in weights)
                yield Case(
                    ", ".join(filter(None, (run.label, paths[path]))),
                    next(
                        (each for each in run.parts if each.name == owner_of(path)),
                        run.parts[0],
                    ),
                    taped[0],
                    calls[min(run.turn, len(calls) - 1)],
                    *params[path],
                )

    def alone(self, name: str) -> Iterable[Run]:
        """Runs of a function, or of a module that the model never runs, made by hand."""
        return _ALONE[name](self) if name in _ALONE else ()


# --- functions, and modules that no model runs: made by hand, on a tape and in a trace alone


def _by_hand(
    label: str,
    part: Part,
    subject: Callable[..., Any],
    inputs: tuple[Any, ...],
    forward: Callable[..., Any],
    *sizes: Any,
) -> Run:
    """A call of a module or function, and the forward that says what it costs."""
    module = subject if isinstance(subject, torch.nn.Module) else passes.FunctionModule(subject)
    device = _META if isinstance(inputs[0], torch.Tensor) else torch.device("cpu")
    tape = formula.FormulaTape(BFLOAT16)
    call = tape.run(forward, *sizes)
    if module is not subject:
        call.params = 0  # a function is given its tables
    trace, _ = passes.trace_module(module.to(device, torch.bfloat16), device, *inputs)
    return Run(label, (part,), tape, trace, module)


def _tensor(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=_META)


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
        taped = part.dimensions
        positions = (taped.image_size // taped.patch_size) ** 2 + 1
        table = Operand(positions * taped.width, BFLOAT16)
        inputs = _tensor(1, (c.image_size // c.patch_size) ** 2 + 1, c.width), q * q + 1
        yield _by_hand(
            label,
            part,
            function,
            inputs,
            deepseek_ocr.absolute_positions,
            table,
            side,
            part.dimensions,
        )


def _sam_positions(model: DocumentedModel) -> Iterator[Run]:
    """SAM's table for each size of view."""
    c, function = model.dimensions.sam, model.get("get_abs_pos_sam")
    for label, _, q, part, _, side in _views(model, "sam"):
        grid = c.image_size // c.patch
        inputs = _tensor(1, grid, grid, c.width), 4 * q
        yield _by_hand(
            label, part, function, inputs, vision.absolute_positions, 4 * side, part.dimensions
        )


def _relative_positions(model: DocumentedModel) -> Iterator[Run]:
    """Windows and the whole grid, for each size of view."""
    c, function = model.dimensions.sam, model.get("add_decomposed_rel_pos")
    for view, count, q, *_ in _views(model, "sam"):
        windows = count * (-(-4 * q // c.window)) ** 2
        for label, N, g, side in (
            ("windows", windows, c.window, c.window),
            ("whole grid", count, 4 * q, c.image_size // c.patch),
        ):
            t = 2 * side - 1
            part, named = named_part("sam", c, N=N, g=g, t=t)
            # A function knows no heads: each has grids of its own.
            heads, D = part.dimensions.heads, c.width // c.heads
            one = replace(part.dimensions, width=part.dimensions.width // heads, heads=1)
            grids = named["N"] * heads
            taped = Operand(grids * named["g"] * named["g"] * one.width, BFLOAT16)
            queries, table = _tensor(N * c.heads, g * g, D), _tensor(t, D)
            inputs = queries, table, table, (g, g), (g, g)
            sizes = taped, grids, named["g"], one, named["t"]
            yield _by_hand(
                f"{view}, {label}", part, function, inputs, vision.position_terms, *sizes
            )


def _repeat_kv(model: DocumentedModel) -> Iterator[Run]:
    """As the model calls it, and with two query heads for each of keys and values."""
    c, K = model.dimensions.decoder, model.workload.seq_len
    for label, n in (
        ("as the model calls it", c.heads // c.kv_heads),
        ("two query heads per KV head", 2),
    ):
        part, shape = Part("repeat_kv", None, {}), (1, c.kv_heads, K, c.head_dim)
        B, H_kv, keys, D = map(part.size, ("B", "H_kv", "K", "D"), shape)
        sizes = B * H_kv * keys * D, part.size("n", n)
        yield _by_hand(label, part, model.get("repeat_kv"), (_tensor(*shape), n), _repeated, *sizes)


def _repeated(t: Tape, elements: Size, n: Size) -> None:
    if n > 1:
        t.move("clone", t.input(elements, t.dtype), n=n * elements)


def _image_transform(model: DocumentedModel) -> Iterator[Run]:
    """A view from bytes, on the CPU."""
    for label, _, q, *_ in _views(model, "sam"):
        part, R = Part("preprocessing", None, {}), 64 * q
        label, image = f"one {label.removesuffix('s')}", np.zeros((R, R, 3), dtype=np.uint8)
        yield _by_hand(
            label, part, model.get("BasicImageTransform")(), (image,),
            _to_view, part.size("C", 3), part.size("R", R),
        )  # fmt: skip


def _to_view(t: Tape, C: Size, R: Size) -> None:
    """Bytes with channels first, divided by the largest; then minus mean, divided by deviation."""
    tensor = t.move("clone", t.input(C * R * R, UINT8))
    x = t.map("div", t.cast(tensor, FLOAT32))
    del tensor
    y = t.move("clone", x)
    for operator in ("sub", "div"):
        t.map(operator, y, t.input(C, FLOAT32), into=y)
    t.hold(x)


def _layer_norm_fp32(model: DocumentedModel) -> Iterator[Run]:
    """A norm in fp32 of CLIP's tokens."""
    c = model.dimensions.clip
    for label, N, q, part, views, side in _views(model, "clip"):
        rows, d = views * (side * side + 1), part.dimensions.width
        yield _by_hand(
            label, part, model.get("LayerNormfp32")(c.width), (_tensor(N, q * q + 1, c.width),),
            deepseek_ocr.layer_norm_fp32, Operand(rows * d, BFLOAT16), rows, d,
        )  # fmt: skip


def _own_convolution(model: DocumentedModel) -> Iterator[Run]:
    """CLIP's embeddings with the convolution that the model never runs."""
    c = model.dimensions.clip
    part, named = named_part("clip", c, N=1, q=c.image_size // c.patch_size)
    module = model.get("CLIPVisionEmbeddings")(c.width, c.image_size, c.patch_size)
    yield _by_hand(
        "own convolution (never runs in the model)",
        part,
        module,
        (_tensor(1, 3, c.image_size, c.image_size), None),
        deepseek_ocr.embeddings_of_pixels,
        named["N"],
        named["q"],
        part.dimensions,
    )


_ALONE: Final[Mapping[str, Callable[[DocumentedModel], Iterator[Run]]]] = {
    "BasicImageTransform": _image_transform,
    "CLIPVisionEmbeddings": _own_convolution,
    "LayerNormfp32": _layer_norm_fp32,
    "add_decomposed_rel_pos": _relative_positions,
    "get_abs_pos": _clip_positions,
    "get_abs_pos_sam": _sam_positions,
    "repeat_kv": _repeat_kv,
}
"""Runs of what no model runs, by its name."""
