"""Watches a forward pass: which module called which operator, and what that cost.

Forward hooks keep the path of the module whose `forward` is running; a wrapper around each
module's `forward` does the same for direct `.forward()` calls. A dispatch mode sees every operator
below Python, inside scripted functions too; a function mode sees the operators that PyTorch would
take apart differently from device to device (linear, matmul, einsum, attention, softmax), so that
each is counted as the one operator it is called as, on `meta`, CPU and CUDA alike.

On `meta` a module that equals an earlier one (same class, attributes, parameter shapes) and is
called with equal arguments is not run again: its record is repeated under its own path.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dsocr_analyze.trace.operators import FREE, RULES, Call, Rule, einsum_labels, work_of
from dsocr_analyze.work import NO_WORK, Work

__all__ = ["Entry", "Recorder", "Status", "Trace"]

Status = Literal["counted", "free", "unknown"]


class Entry(NamedTuple):
    """One executed operator."""

    path: str
    """Module whose forward called it; empty for the model itself."""
    operator: str
    status: Status
    work: Work


@dataclass
class Trace:
    """What one forward pass executed."""

    entries: list[Entry] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    """Paths of called modules, one item a call."""
    shapes: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Input and output shapes of each module's first call, by path."""
    causal_savable_macs: dict[str, int] = field(default_factory=dict)
    """MACs above the diagonal that a kernel called as causal may skip, by module path."""
    peak_bytes: int = 0
    """Largest sum of tensors alive at once, besides what was alive before the pass."""


# --- operators seen as they are called -------------------------------------------------------


def _parameters(*names: str) -> Callable[[Any, dict[str, Any]], tuple[list[Any], dict[str, Any]]]:
    """Brings a call's arguments into positional order; what is left stays by keyword."""

    def arrange(args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        rest = dict(kwargs)
        ordered = list(args)
        for name in names[len(args) :]:
            if name not in rest:
                break
            ordered.append(rest.pop(name))
        return ordered, rest

    return arrange


def _einsum_arguments(args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    operands = args[1:]
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    return [args[0], list(operands)], kwargs


def _swapped(args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    return [args[1], args[0]], kwargs


_COMPOSITES: Final[dict[Any, tuple[str, Callable[..., tuple[list[Any], dict[str, Any]]]]]] = {
    torch.nn.functional.linear: ("linear", _parameters("input", "weight", "bias")),
    torch.matmul: ("matmul", _parameters("input", "other")),
    torch.Tensor.matmul: ("matmul", _parameters("self", "other")),
    torch.Tensor.__matmul__: ("matmul", _parameters("self", "other")),
    torch.Tensor.__rmatmul__: ("matmul", _swapped),
    torch.einsum: ("einsum", _einsum_arguments),
    torch.nn.functional.scaled_dot_product_attention: (
        "scaled_dot_product_attention",
        _parameters("query", "key", "value", "attn_mask"),
    ),
    torch.softmax: ("softmax", _parameters("input", "dim")),
    torch.Tensor.softmax: ("softmax", _parameters("self", "dim")),
    torch.nn.functional.softmax: ("softmax", _parameters("input", "dim")),
    torch.log_softmax: ("log_softmax", _parameters("input", "dim")),
    torch.Tensor.log_softmax: ("log_softmax", _parameters("self", "dim")),
    torch.nn.functional.log_softmax: ("log_softmax", _parameters("input", "dim")),
    torch.rms_norm: ("rms_norm", _parameters("input", "normalized_shape", "weight")),
    torch.nn.functional.rms_norm: (
        "rms_norm",
        _parameters("input", "normalized_shape", "weight"),
    ),
}


def _is_one_operator(name: str, args: list[Any]) -> bool:
    """Whether a composite is counted as called; what is not, is counted as torch takes it apart."""
    if name != "einsum":
        return True
    equation, operands = args
    if not isinstance(equation, str) or len(operands) != 2 or "." in equation:
        return False
    left, right, _ = einsum_labels(equation)
    return len(set(left)) == len(left) and len(set(right)) == len(right)


class _Composites(TorchFunctionMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        composite = _COMPOSITES.get(func)
        if composite is None:
            return func(*args, **kwargs)
        name, arrange = composite
        ordered, rest = arrange(args, kwargs)
        if not _is_one_operator(name, ordered):
            return func(*args, **kwargs)
        with self._recorder.as_one_operator():
            output = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            self._recorder.record(name, RULES[name], ordered, rest, output)
            if name == "scaled_dot_product_attention" and rest.get("is_causal"):
                query, key = ordered[0].shape, ordered[1].shape
                heads = query.numel() // (query[-1] * query[-2])
                self._recorder.note_causal(
                    heads, query[-2], key[-2], query[-1] + ordered[2].shape[-1]
                )
        return output


class _Operators(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Guarding against torch.compile would import all of torch._dynamo for nothing.
        return False

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        recorder = self._recorder
        if not recorder.inside_operator:
            with torch._C.DisableTorchFunction():
                name, rule = _rule_of(func)
                if name == "convolution":
                    name = _convolution_name(args)
                elif name == "_to_copy" and output.device != args[0].device:
                    name, rule = "transfer", None
                recorder.record(name, rule, args, kwargs, output)
        return output


@functools.cache
def _rule_of(func: Any) -> tuple[str, Rule | None]:
    """An operator's name without overload and in-place suffix, and its rule where it has one."""
    name = func.overloadpacket.__name__
    if name not in RULES and name not in FREE and name.endswith("_"):
        name = name[:-1]
    if func.namespace not in ("aten", "prims"):
        name = f"{func.namespace}::{name}"
    return name, RULES.get(name)


def _convolution_name(args: Any) -> str:
    kind = "conv_transpose" if args[6] else "conv"
    return f"{kind}{args[0].dim() - 2}d"


# --- modules seen as they are called ---------------------------------------------------------


@dataclass(slots=True)
class _Frame:
    module: torch.nn.Module
    path: str
    running: bool = False


@dataclass(slots=True)
class _Span:
    """What one call of a module executed, for an equal call of an equal module."""

    path: str
    entries: list[Entry]
    calls: list[str]
    shapes: dict[str, tuple[Any, Any]]
    causal: dict[str, int]
    make_output: Callable[[], Any]
    peak_bytes: int


_POSITION_ATTRIBUTES = frozenset({"layer_idx", "layer_id", "training"})
"""Attributes that say where a module stands, not what it does."""


class Recorder:
    """Records forward passes of `model`; use as a context manager around the calls.

    Args:
        model: Any module tree. It is left as it was, also after an error.
        repeat_equal_modules: Whether equal calls of equal modules are recorded once and repeated.
            Only on `meta`, where a module's output says nothing but its shape.
    """

    def __init__(self, model: torch.nn.Module, *, repeat_equal_modules: bool = False) -> None:
        self._model = model
        self._repeat = repeat_equal_modules
        self.trace = Trace()
        self.inside_operator = 0
        self._stack: list[_Frame] = []
        self._paths: dict[torch.nn.Module, list[str]] = {}
        self._spans: dict[Any, _Span | None] = {}
        self._kinds: dict[Any, int] = {}
        self._kind_of: dict[torch.nn.Module, int | None] = {}
        self._live: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._foreign: set[int] = set()
        self._alive_bytes = 0
        self._exit = contextlib.ExitStack()

    # lifetime

    def __enter__(self) -> Recorder:
        with contextlib.ExitStack() as stack:
            for path, module in self._model.named_modules(remove_duplicate=False):
                self._paths.setdefault(module, []).append(path)
            for module in self._paths:
                self._attach(module, stack)
            for tensor in (*self._model.parameters(), *self._model.buffers()):
                self._foreign.add(tensor.untyped_storage()._cdata)
            stack.enter_context(_Operators(self))
            stack.enter_context(_Composites(self))
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()
        self._live.clear()
        self._spans.clear()

    def begin(self) -> Trace:
        """Starts the record of another pass; what is alive now was alive before it."""
        self._live.clear()
        self._alive_bytes = 0
        self.trace = Trace()
        return self.trace

    def _attach(self, module: torch.nn.Module, stack: contextlib.ExitStack) -> None:
        enter = module.register_forward_pre_hook(self._on_enter, prepend=True)
        stack.callback(enter.remove)
        leave = module.register_forward_hook(self._on_leave, always_call=True)
        stack.callback(leave.remove)
        if isinstance(module, torch.jit.ScriptModule):
            return  # runs outside Python: its operators are seen, its own forward is not ours
        had = vars(module).get("forward")
        forward = module.forward
        module.__dict__["forward"] = functools.partial(self._forward, module, forward)

        def restore() -> None:
            if had is None:
                vars(module).pop("forward", None)
            else:
                vars(module)["forward"] = had

        stack.callback(restore)

    # modules

    def _on_enter(self, module: torch.nn.Module, _: Any) -> None:
        self._push(module)

    def _on_leave(self, module: torch.nn.Module, _: Any, __: Any) -> None:
        # A failing pre-hook may leave frames of modules that were never entered.
        while self._stack:
            if self._stack.pop().module is module:
                return

    def _push(self, module: torch.nn.Module) -> _Frame:
        path = self._path_of(module)
        self.trace.calls.append(path)
        frame = _Frame(module, path)
        self._stack.append(frame)
        return frame

    def _path_of(self, module: torch.nn.Module) -> str:
        """The module's path; of a shared module's paths, the one under its caller."""
        paths = self._paths.get(module)
        if paths is None:
            # Made during the pass: it works on behalf of its caller.
            return self._stack[-1].path if self._stack else ""
        if len(paths) > 1:
            for frame in reversed(self._stack):
                prefix = frame.path + "." if frame.path else ""
                for path in paths:
                    if path.startswith(prefix) and path != frame.path:
                        return path
        return paths[0]

    def _forward(
        self, module: torch.nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        frame = self._stack[-1] if self._stack else None
        called_directly = frame is None or frame.module is not module or frame.running
        if called_directly:
            frame = self._push(module)
        assert frame is not None
        frame.running = True
        try:
            return self._run(frame, forward, args, kwargs)
        finally:
            frame.running = False
            if called_directly:
                self._stack.pop()

    def _run(self, frame: _Frame, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not self._repeat:
            return self._run_and_note_shapes(frame, forward, args, kwargs)
        key = self._call_key(frame.module, args, kwargs)
        span = self._spans.get(key) if key is not None else None
        if span is not None:
            return self._repeat_span(span, frame)
        start_entries, start_calls = len(self.trace.entries), len(self.trace.calls)
        peak_before, self.trace.peak_bytes = self.trace.peak_bytes, self._alive_bytes
        alive_before = self.trace.peak_bytes
        kind_before = self._kind_of.get(frame.module)
        versions = [t._version for t in _tensors(args, kwargs)] if key is not None else []
        output = self._run_and_note_shapes(frame, forward, args, kwargs)
        peak = self.trace.peak_bytes
        self.trace.peak_bytes = max(peak, peak_before)
        if key is not None and key not in self._spans:
            pure = versions == [t._version for t in _tensors(args, kwargs)]
            unchanged = kind_before == self._kind(frame.module, fresh=True)
            make_output = self._output_maker(output, args, kwargs) if pure and unchanged else None
            if make_output is None:
                self._spans[key] = None
            else:
                inside = frame.path + "."
                self._spans[key] = _Span(
                    frame.path,
                    self.trace.entries[start_entries:],
                    self.trace.calls[start_calls:],
                    {
                        path: shapes
                        for path, shapes in self.trace.shapes.items()
                        if path == frame.path or path.startswith(inside)
                    },
                    {
                        path: macs
                        for path, macs in self.trace.causal_savable_macs.items()
                        if path == frame.path or path.startswith(inside)
                    },
                    make_output,
                    peak - alive_before,
                )
        return output

    def _run_and_note_shapes(
        self, frame: _Frame, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        output = forward(*args, **kwargs)
        if frame.path not in self.trace.shapes:
            with torch._C.DisableTorchFunction():
                self.trace.shapes[frame.path] = (
                    _shapes([*args, *kwargs.values()]),
                    _shapes(output),
                )
        return output

    # equal modules

    def _call_key(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """What determines a call's record, or None where something unforeseen might."""
        kind = self._kind(module)
        if kind is None:
            return None
        described = []
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, torch.Tensor):
                with torch._C.DisableTorchFunction():
                    if not argument.is_meta:
                        return None
                    described.append((tuple(argument.shape), argument.dtype, argument.stride()))
            elif argument is None or isinstance(argument, bool | int | float | str):
                described.append(argument)
            else:
                return None
        return kind, tuple(kwargs), tuple(described)

    def _kind(self, module: torch.nn.Module, *, fresh: bool = False) -> int | None:
        """A number that equal modules share; None for a module whose state is not plain."""
        if not fresh and module in self._kind_of:
            return self._kind_of[module]
        kind = self._describe(module)
        self._kind_of[module] = kind
        return kind

    def _describe(self, module: torch.nn.Module) -> int | None:
        described: list[Any] = [type(module)]
        for name, value in vars(module).items():
            if name in _POSITION_ATTRIBUTES or name == "forward":
                continue
            if name in ("_parameters", "_buffers"):
                described.append(
                    tuple(
                        (key, None if t is None else (tuple(t.shape), t.dtype, t.stride()))
                        for key, t in value.items()
                    )
                )
            elif name == "_modules":
                children = []
                for key, child in value.items():
                    kind = None if child is None else self._kind(child)
                    if child is not None and kind is None:
                        return None
                    children.append((key, kind))
                described.append(tuple(children))
            elif name in ("_forward_hooks", "_forward_pre_hooks"):
                # Somebody else's hook may do anything; ours is the one.
                if len(value) > 1:
                    return None
            elif name.startswith("_") and isinstance(value, dict | set):
                if value and name not in ("_forward_hooks_always_called", "_is_full_backward_hook"):
                    if not name.startswith("_forward_"):
                        return None
            elif value is None or isinstance(value, bool | int | float | str | torch.dtype):
                described.append((name, value))
            elif isinstance(value, tuple | list) and all(
                isinstance(item, bool | int | float | str) for item in value
            ):
                described.append((name, tuple(value)))
            elif isinstance(value, torch.Tensor):
                described.append((name, tuple(value.shape), value.dtype))
            elif callable(value) or hasattr(value, "__dict__"):
                # Functions and config objects: equal when they are the same object.
                described.append((name, id(value)))
            else:
                return None
        return self._kinds.setdefault(tuple(described), len(self._kinds))

    def _output_maker(self, output: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """Makes tensors like `output`, or None where it shares memory with what went in."""
        with torch._C.DisableTorchFunction():
            known = self._foreign | {t.untyped_storage()._cdata for t in _tensors(args, kwargs)}
            if isinstance(output, torch.Tensor):
                described = _describe_output(output, known)
                return None if described is None else functools.partial(_make, *described)
            if type(output) is tuple:
                parts = [
                    None if item is None else _describe_output(item, known)
                    for item in output
                    if item is None or isinstance(item, torch.Tensor)
                ]
                if len(parts) != len(output) or any(
                    part is None and item is not None
                    for part, item in zip(parts, output, strict=True)
                ):
                    return None
                return lambda: tuple(None if part is None else _make(*part) for part in parts)
        return None

    def _repeat_span(self, span: _Span, frame: _Frame) -> Any:
        old, new, cut = span.path, frame.path, len(span.path)
        trace = self.trace
        if old == new:
            trace.entries.extend(span.entries)
            trace.calls.extend(span.calls)
        else:
            moved: dict[str, str] = {}
            for entry in span.entries:
                path = moved.get(entry.path)
                if path is None:
                    path = moved[entry.path] = new + entry.path[cut:]
                trace.entries.append(Entry(path, entry.operator, entry.status, entry.work))
            trace.calls.extend([new + path[cut:] for path in span.calls])
            for path, shapes in span.shapes.items():
                trace.shapes.setdefault(new + path[cut:], shapes)
            for path, macs in span.causal.items():
                trace.causal_savable_macs[new + path[cut:]] = macs
        trace.peak_bytes = max(trace.peak_bytes, self._alive_bytes + span.peak_bytes)
        with self.as_one_operator(), torch._C.DisableTorchFunction():
            output = span.make_output()
            for tensor in output if isinstance(output, tuple) else (output,):
                if tensor is not None:
                    self._track(tensor)
        return output

    # operators

    @contextlib.contextmanager
    def as_one_operator(self) -> Iterator[None]:
        """What runs inside is the inside of one operator."""
        self.inside_operator += 1
        try:
            yield
        finally:
            self.inside_operator -= 1

    def record(
        self, name: str, rule: Rule | None, args: Any, kwargs: dict[str, Any], output: Any
    ) -> None:
        """Books one executed operator to the module whose forward is running."""
        path = self._stack[-1].path if self._stack else ""
        if isinstance(output, torch.Tensor):
            outputs = [output]
        elif isinstance(output, tuple | list):
            outputs = [item for item in output if isinstance(item, torch.Tensor)]
        else:
            outputs = []
        if rule is not None:
            work = work_of(rule, Call(args, outputs, kwargs))
            self.trace.entries.append(Entry(path, name, "counted", work))
            for tensor in outputs:
                self._track(tensor)
        else:
            free = name in FREE or name == "transfer"
            self.trace.entries.append(Entry(path, name, "free" if free else "unknown", NO_WORK))
            if not free or name.startswith(("empty", "new_empty")):
                for tensor in outputs:
                    self._track(tensor)

    def note_causal(self, heads: int, queries: int, keys: int, head_dims: int) -> None:
        """Notes what a causal kernel may skip: the keys after each query; the last sees all.

        flash-attn and torch align the diagonal so that query q of T sees the first K - T + q + 1
        of K keys (K >= T), which skips T - 1 - q of them.
        """
        path = self._stack[-1].path if self._stack else ""
        skipped = queries * (queries - 1) // 2 if keys >= queries else 0
        savable = self.trace.causal_savable_macs
        savable[path] = savable.get(path, 0) + heads * skipped * head_dims

    # memory

    def _track(self, tensor: torch.Tensor) -> None:
        """Counts a tensor's memory as alive until its storage is freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live or key in self._foreign:
            return
        size = storage.nbytes()
        if not size:
            return
        self._live[key] = (weakref.ref(storage, functools.partial(self._freed, key)), size)
        self._alive_bytes += size
        if self._alive_bytes > self.trace.peak_bytes:
            self.trace.peak_bytes = self._alive_bytes

    def _freed(self, key: int, _: Any) -> None:
        entry = self._live.pop(key, None)
        if entry is not None:
            self._alive_bytes -= entry[1]


def _tensors(args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    return [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]


def _shapes(value: Any) -> Any:
    """Shapes of tensors in nested tuples, lists and dataclass-like outputs; None for the rest."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, dict):
        return [_shapes(item) for item in value.values()]
    if isinstance(value, tuple | list):
        return [_shapes(item) for item in value]
    return None


def _describe_output(tensor: torch.Tensor, known: set[int]) -> tuple[Any, ...] | None:
    storage = tensor.untyped_storage()
    if storage._cdata in known:
        return None
    return (
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        storage.nbytes(),
    )


def _make(shape: Any, stride: Any, offset: int, dtype: torch.dtype, nbytes: int) -> torch.Tensor:
    whole = torch.empty(nbytes // dtype.itemsize, dtype=dtype, device="meta")
    return whole.as_strided(shape, stride, offset)
