"""Watches a forward pass: which module called which operator, and what that cost.

Forward hooks keep the path of the module whose `forward` is running; a wrapper around each
module's `forward` does the same for direct `.forward()` calls. A dispatch mode sees every operator
below Python, inside scripted functions too; a function mode sees the operators that PyTorch would
take apart differently from device to device (linear, matmul, einsum, attention, softmax), so that
each is counted as the one operator it is called as, on `meta`, CPU and CUDA alike.

On `meta` a module that equals an earlier one (`kinds`) and is called with equal arguments is not
run again, unless its first run did more than make its output: its record is repeated under its own
path.
"""

from __future__ import annotations

import contextlib
import functools
import math
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import torch
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.hooks import RemovableHandle

from dsocr_analyze.model.known_values import known_value
from dsocr_analyze.trace.kinds import Kinds
from dsocr_analyze.trace.operators import FREE, RULES, Call, Rule, is_contraction, work_of
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
    torch.linalg.matmul: ("matmul", _parameters("input", "other")),
    torch.Tensor.__matmul__: ("matmul", _parameters("self", "other")),
    torch.Tensor.__rmatmul__: ("matmul", _swapped),
    torch.einsum: ("einsum", _einsum_arguments),
    torch.nn.functional.scaled_dot_product_attention: (
        "scaled_dot_product_attention",
        _parameters("query", "key", "value", "attn_mask", "dropout_p", "is_causal"),
    ),
    torch.softmax: ("softmax", _parameters("input", "dim")),
    torch.Tensor.softmax: ("softmax", _parameters("self", "dim")),
    torch.nn.functional.softmax: ("softmax", _parameters("input", "dim")),
    torch.special.softmax: ("softmax", _parameters("input", "dim")),
    torch.log_softmax: ("log_softmax", _parameters("input", "dim")),
    torch.Tensor.log_softmax: ("log_softmax", _parameters("self", "dim")),
    torch.special.log_softmax: ("log_softmax", _parameters("input", "dim")),
    torch.nn.functional.log_softmax: ("log_softmax", _parameters("input", "dim")),
    torch.rms_norm: ("rms_norm", _parameters("input", "normalized_shape", "weight")),
    torch.nn.functional.rms_norm: (
        "rms_norm",
        _parameters("input", "normalized_shape", "weight"),
    ),
}


_OPENED: Final = frozenset({torch.nn.functional.multi_head_attention_forward})
"""Python functions that PyTorch offers to a function mode whole, with composites inside."""


@functools.cache
def _opened(func: types.FunctionType) -> types.FunctionType:
    """The function without its offer to function modes, so that one sees what it calls."""
    inside = {**func.__globals__, "has_torch_function": lambda _: False}
    opened = types.FunctionType(
        func.__code__, inside, func.__name__, func.__defaults__, func.__closure__
    )
    opened.__kwdefaults__ = func.__kwdefaults__
    return opened


def _is_one_operator(name: str, args: list[Any]) -> bool:
    """Whether a composite is counted as called; what is not, is counted as torch takes it apart."""
    if name != "einsum":
        return True
    equation, operands = args
    return isinstance(equation, str) and is_contraction(equation, [o.shape for o in operands])


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
            if func in _OPENED:
                with self:
                    return _opened(func)(*args, **kwargs)
            return func(*args, **kwargs)
        name, arrange = composite
        ordered, rest = arrange(args, kwargs)
        with torch._C.DisableTorchFunction():
            whole = _is_one_operator(name, ordered)
        if not whole:
            return func(*args, **kwargs)
        with self._recorder.as_one_operator():
            output = func(*args, **kwargs)
            if name == "scaled_dot_product_attention":
                output = _as_fused_kernels_lay_it_out(output)
        with torch._C.DisableTorchFunction():
            self._recorder.record(name, RULES[name], ordered, rest, output)
            if name == "scaled_dot_product_attention":
                self._note_causal(ordered, rest, output)
        return output

    def _note_causal(self, args: list[Any], kwargs: dict[str, Any], output: torch.Tensor) -> None:
        call = Call(args, [output], kwargs)
        if call.argument(5, "is_causal"):
            query, key, value = args[:3]
            heads = math.prod(output.shape[:-2])
            self._recorder.note_causal(
                heads * keys_after_first(int(query.shape[-2]), int(key.shape[-2])),
                int(query.shape[-1] + value.shape[-1]),
            )


def _as_fused_kernels_lay_it_out(output: torch.Tensor) -> torch.Tensor:
    """Attention's output [B, H, T, D] with the heads behind the tokens in memory.

    So do the fused kernels on CPU and CUDA lay it out, which makes merging the heads a view; `meta`
    and the unfused fallback put heads first, which would make it a copy there and nowhere else.
    """
    if output.dim() != 4 or output.transpose(1, 2).is_contiguous():
        return output
    return output.transpose(1, 2).contiguous().transpose(1, 2)


def keys_after_first(queries: int, keys: int) -> int:
    """Scores above the diagonal where query q of T sees the first q + 1 of K keys, as in torch."""
    rows = min(queries, keys)
    return rows * (keys - 1) - rows * (rows - 1) // 2


def keys_after_last(queries: int, keys: int) -> int:
    """Scores above it where the last query sees all K keys, as in flash-attn: q, K - T + q + 1."""
    rows = min(queries - 1, keys)
    return rows * (rows + 1) // 2 + (queries - 1 - rows) * keys


class _Operators(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Guarding against torch.compile would import all of torch._dynamo for nothing.
        return False

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        if not recorder.inside_operator and _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        output = func(*args, **kwargs)
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


@functools.cache
def _is_composite(func: Any) -> bool:
    """Whether PyTorch takes the operator apart; in inference mode it arrives here whole."""
    _, rule = _rule_of(func)
    kernel = torch._C.DispatchKey.CompositeImplicitAutograd
    return rule is None and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), kernel)


def _convolution_name(args: Any) -> str:
    kind = "conv_transpose" if args[6] else "conv"
    return f"{kind}{args[0].dim() - 2}d"


# --- modules seen as they are called ---------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Frame:
    module: torch.nn.Module
    path: str
    running: bool = False


@dataclass(frozen=True, slots=True)
class _Span:
    """What one call of a module executed, for an equal call of an equal module."""

    path: str
    entries: list[Entry]
    calls: list[str]
    shapes: list[tuple[str, Any]]
    causal: list[tuple[str, int]]
    make_output: Callable[[], Any]
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where the record stood when a call began."""

    entries: int
    calls: int
    shapes: int
    causal: int
    births: int
    alive_bytes: int
    peak_bytes: int
    versions: list[int]


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
        self._own_forwards: dict[torch.nn.Module, Any] = {}
        self._kinds = Kinds((self._on_enter, self._on_leave), self._own_forwards)
        self._shape_notes: list[tuple[str, Any]] = []
        self._causal_notes: list[tuple[str, int]] = []
        self._live: dict[int, _Living] = {}
        self._births = 0
        # The storages themselves: once one is freed, another may get its address.
        self._foreign: dict[int, Any] = {}
        self._alive_bytes = 0
        self._hooks: list[RemovableHandle] = []
        self._exit = contextlib.ExitStack()

    # lifetime

    def __enter__(self) -> Recorder:
        # A global hook or another mode would miss what is not run again.
        self._repeat &= not (_has_any_global_hook() or _get_current_dispatch_mode())
        with contextlib.ExitStack() as stack:
            for path, module in self._model.named_modules(remove_duplicate=False):
                self._paths.setdefault(module, []).append(path)
            stack.callback(self._detach)
            for module in self._paths:
                self._attach(module)
            for tensor in (*self._model.parameters(), *self._model.buffers()):
                storage = tensor.untyped_storage()
                self._foreign[storage._cdata] = storage
            stack.enter_context(_Operators(self))
            stack.enter_context(_Composites(self))
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()
        for state in (self._live, self._spans, self._paths, self._own_forwards, self._stack):
            state.clear()

    def begin(self) -> Trace:
        """Starts the record of another pass; what is alive now was alive before it."""
        self._live.clear()
        self._alive_bytes = 0
        self._stack.clear()
        self._shape_notes.clear()
        self._causal_notes.clear()
        self.trace = Trace()
        return self.trace

    def _attach(self, module: torch.nn.Module) -> None:
        # A ScriptModule refuses hooks by name only: its __call__ runs them.
        by_name = torch.nn.Module if isinstance(module, torch.jit.ScriptModule) else type(module)
        self._hooks.append(by_name.register_forward_pre_hook(module, self._on_enter, prepend=True))
        self._hooks.append(by_name.register_forward_hook(module, self._on_leave, always_call=True))
        if isinstance(module, torch.jit.ScriptModule):
            return  # runs outside Python: its operators are seen, its own forward is not ours
        self._own_forwards[module] = vars(module).get("forward")
        forward = module.forward
        module.__dict__["forward"] = functools.partial(self._forward, module, forward)

    def _detach(self) -> None:
        """Takes the hooks and wrappers off again, of as many modules as have them."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for module, own_forward in self._own_forwards.items():
            if own_forward is None:
                vars(module).pop("forward", None)
            else:
                vars(module)["forward"] = own_forward

    # modules

    def _on_enter(self, module: torch.nn.Module, _: Any) -> None:
        self._push(module)

    def _on_leave(self, module: torch.nn.Module, _: Any, __: Any) -> None:
        # Somebody else's failing hook may have kept us from entering this module or leaving others.
        for index in range(len(self._stack) - 1, -1, -1):
            if self._stack[index].module is module:
                del self._stack[index:]
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
            if called_directly and frame in self._stack:
                del self._stack[self._stack.index(frame) :]

    def _run(self, frame: _Frame, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        key = None
        if self._repeat:
            with torch._C.DisableTorchFunction():
                key = self._kinds.of_call(frame.module, args, kwargs)
        if key is None:
            return self._run_and_note_shapes(frame, forward, args, kwargs)
        if key not in self._spans:
            return self._run_and_remember(key, frame, forward, args, kwargs)
        span = self._spans[key]
        if span is None:
            return self._run_and_note_shapes(frame, forward, args, kwargs)
        return self._repeat_span(span, frame.path)

    def _run_and_note_shapes(
        self, frame: _Frame, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        output = forward(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            inputs = _shapes([*args, *kwargs.values()])
            self._note_shapes(frame.path, (inputs, _shapes(output)))
        return output

    def _note_shapes(self, path: str, shapes: Any) -> None:
        self._shape_notes.append((path, shapes))
        self.trace.shapes.setdefault(path, shapes)

    # equal calls of equal modules

    def _run_and_remember(
        self, key: Any, frame: _Frame, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        self._spans[key] = None
        trace = self.trace
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        mark = _Mark(
            len(trace.entries),
            len(trace.calls),
            len(self._shape_notes),
            len(self._causal_notes),
            self._births,
            self._alive_bytes,
            trace.peak_bytes,
            _versions(tensors),
        )
        trace.peak_bytes = self._alive_bytes
        try:
            output = self._run_and_note_shapes(frame, forward, args, kwargs)
        finally:
            peak = trace.peak_bytes
            trace.peak_bytes = max(peak, mark.peak_bytes)
        with torch._C.DisableTorchFunction():
            unchanged = key[0] == self._kinds.of(frame.module)
            make_output = self._output_maker(output, mark)
            if make_output and unchanged and mark.versions == _versions(tensors):
                self._spans[key] = _Span(
                    frame.path,
                    trace.entries[mark.entries :],
                    trace.calls[mark.calls :],
                    self._shape_notes[mark.shapes :],
                    self._causal_notes[mark.causal :],
                    make_output,
                    peak - mark.alive_bytes,
                )
        return output

    def _output_maker(self, output: Any, mark: _Mark) -> Callable[[], Any] | None:
        """Makes tensors like `output`; None where the call left behind anything but those.

        What it left behind is seen by what is alive besides: the output's own memory, made during
        the call, must be all of it.
        """
        parts = output if type(output) is tuple else (output,)
        made: dict[int, int] = {}
        for tensor in parts:
            if tensor is None:
                continue
            if type(tensor) is not torch.Tensor or not tensor.is_meta:
                return None
            if tensor.requires_grad or tensor.is_inference():
                return None
            storage = tensor.untyped_storage()._cdata
            living = self._live.get(storage)
            if living is None or living.birth <= mark.births or storage in made:
                return None
            if known_value(tensor) is not None:
                return None
            made[storage] = living.nbytes
        if self._alive_bytes != mark.alive_bytes + sum(made.values()):
            return None
        makers = [None if tensor is None else _maker_of(tensor) for tensor in parts]
        if type(output) is not tuple:
            return makers[0]
        return lambda: tuple(None if make is None else make() for make in makers)

    def _repeat_span(self, span: _Span, path: str) -> Any:
        trace, moved = self.trace, _Moved(span.path, path)
        trace.entries.extend([entry._replace(path=moved[entry.path]) for entry in span.entries])
        trace.calls.extend([moved[path] for path in span.calls])
        for noted, shapes in span.shapes:
            self._note_shapes(moved[noted], shapes)
        for noted, macs in span.causal:
            self._note_causal_macs(moved[noted], macs)
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
        else:
            free = name in FREE or name == "transfer"
            self.trace.entries.append(Entry(path, name, "free" if free else "unknown", NO_WORK))
            if free and not name.startswith(("empty", "new_empty")):
                return
        for tensor in outputs:
            # What is written in place was there before.
            if not any(tensor is argument for argument in (*args, *kwargs.values())):
                self._track(tensor)

    def note_causal(self, scores: int, head_dims: int) -> None:
        """Notes what a kernel called as causal may skip.

        Args:
            scores: Scores above the diagonal, of all heads and pages.
            head_dims: Sizes of a query and of a value head: the MACs that a score takes.
        """
        self._note_causal_macs(self._stack[-1].path if self._stack else "", scores * head_dims)

    def _note_causal_macs(self, path: str, macs: int) -> None:
        self._causal_notes.append((path, macs))
        savable = self.trace.causal_savable_macs
        savable[path] = savable.get(path, 0) + macs

    # memory

    def _track(self, tensor: torch.Tensor) -> None:
        """Counts a tensor's memory as alive until its storage is freed."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live or key in self._foreign:
            return
        size = storage.nbytes()
        if not size:
            return
        self._births += 1
        freed = functools.partial(self._freed, key)
        self._live[key] = _Living(weakref.ref(storage, freed), size, self._births)
        self._alive_bytes += size
        if self._alive_bytes > self.trace.peak_bytes:
            self.trace.peak_bytes = self._alive_bytes

    def _freed(self, key: int, reference: Any) -> None:
        living = self._live.get(key)
        if living is not None and living.reference is reference:
            del self._live[key]
            self._alive_bytes -= living.nbytes


class _Living(NamedTuple):
    reference: weakref.ref[Any]
    nbytes: int
    birth: int
    """How many were born up to this one."""


class _Moved(dict[str, str]):
    """Paths below `old` as they read below `new`; other paths stay."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__({old: new})
        self._old, self._new = old, new

    def __missing__(self, path: str) -> str:
        below = self._old + "." if self._old else ""
        moved = path
        if path.startswith(below):
            moved = f"{self._new}.{path[len(below) :]}" if self._new else path[len(below) :]
        self[path] = moved
        return moved


def _versions(tensors: list[torch.Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors]


def _shapes(value: Any) -> Any:
    """Shapes of tensors in nested tuples, lists and dataclass-like outputs; None for the rest."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, dict):
        return [_shapes(item) for item in value.values()]
    if isinstance(value, tuple | list):
        return [_shapes(item) for item in value]
    return None


def _maker_of(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Makes tensors on `meta` that look like this one, each with memory of its own."""
    shape, stride, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    dtype, elements = tensor.dtype, tensor.untyped_storage().nbytes() // tensor.element_size()

    def make() -> torch.Tensor:
        whole = torch.empty(elements, dtype=dtype, device="meta")
        return whole.as_strided(shape, stride, offset)

    return make
