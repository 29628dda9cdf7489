"""Records a forward pass: which module called which operator, and what that cost.

`RunningModules` knows whose forward is running, `Composites` intercepts operators as called, and a
dispatch mode those below Python, also in scripted functions. `Repetition` skips equal calls of
modules that are declared alike.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from types import TracebackType
from typing import Any, Final, ParamSpec

import torch
from torch._ops import HigherOrderOperator
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import _get_current_function_mode_stack as _function_modes
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dsocr_analyze.figures import Peak
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.model.known_values import (
    known_shape,
    shape_depends_on_values,
    was_known,
)
from dsocr_analyze.model.process_settings import (
    Arguments,
    DispatchMode,
    Function,
    FunctionMode,
    Key,
    Keywords,
    Operator,
    Result,
    Shapes,
    Value,
    beside_compiler,
    tensors_in,
    uncounted,
)
from dsocr_analyze.trace.composites import Composites, laid_out_as_on_cuda
from dsocr_analyze.trace.memory import LiveTensors, cpu_as_cuda
from dsocr_analyze.trace.modules import RunningModules, paths_of
from dsocr_analyze.trace.operators import (
    COMPOSITE,
    FREE,
    RULES,
    kernels_of,
    refuse_functions,
    refuse_higher_order,
    refuse_uncountable,
    traits_of,
)
from dsocr_analyze.trace.record import (
    ATTRIBUTES,
    Alike,
    Effect,
    Output,
    RecordedCall,
    Repetition,
    Trace,
    call_of,
    is_repeatable,
    state_of,
    stays_on,
)
from dsocr_analyze.trace.rules import Call, Rule

_Inputs = ParamSpec("_Inputs")

_MOST_CALLS: Final = 1 << 16
_EFFECTS: Final[dict[Key, Effect | None]] = {}
"""What calls of functions add to any record; None where it differs between equal ones."""


class Recorder:
    """Records forward passes of `model`; use as a context manager around the calls.

    Equal calls of torch's functions are recorded once and repeated. On `meta`, those that only make
    tensors don't run again.

    Args:
        model: Any module tree. It is restored afterwards, even on errors.
        alike: The name that a module shares with alike ones, by path; None if it must always run.
            On `meta`, their equal calls are recorded once and repeated.
        device: Where the module runs, if only its kernels and peak matter: the trace has no shapes.
        paths: `paths_of` the model, if they are known.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        alike: Alike | None = None,
        device: torch.device | None = None,
        paths: Mapping[torch.nn.Module, list[str]] | None = None,
    ) -> None:
        self.trace = Trace()
        self._device = device
        self._alike = alike
        self._modules = RunningModules(paths or paths_of(model))
        self._memory = LiveTensors(())
        self._repetition: Repetition | None = None
        self._operators: DispatchMode | None = None
        self._modes: int | None = None
        """Dispatch modes up to this one; None if there are other code's below."""
        self._adds_the_same = False
        """Whether equal calls add what the running one does, as far as it has run."""
        self._whole = ""
        """Operator that was last recorded as a whole."""
        self.inside_operator = 0
        """Number of running operators that are recorded as a whole."""
        self.inside_kernel = 0
        """Number of those that are single kernels: inner calls never reach the device."""
        self._exit = contextlib.ExitStack()

    # lifetime

    def __enter__(self) -> Recorder:
        # `KnownShapes`, which only answers, is ours.
        modes = _get_current_dispatch_mode_stack()
        is_watched = any(getattr(mode, "answer", None) is not known_shape for mode in modes)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._modules.attached(self._run))
            with torch._C.DisableTorchFunction():
                existing = [
                    each
                    for module in self._modules.paths
                    for table in (module._parameters, module._buffers)
                    for each in table.values()
                    if each is not None
                ]
                refuse_uncountable("parameters and buffers", existing)
                self._memory = LiveTensors(existing)
                self._memory.device = self._device or self._memory.device
            # A global hook or another mode would miss calls that are not run again.
            if self._alike and not (_has_any_global_hook() or is_watched):
                self._repetition = Repetition(self._alike)
            if self._memory.device == torch.device("cpu"):
                stack.enter_context(cpu_as_cuda(self._memory, self.record_whole))
            self._operators = beside_compiler()(self._run_operator, takes_functions=True)
            stack.enter_context(self._operators)
            self._modes = None if is_watched else torch._C._len_torch_dispatch_stack()
            is_watched |= any(type(mode) not in _OWN_MODES for mode in _function_modes())
            stack.enter_context(FunctionMode(Composites(self.record_whole).answer))
            if not is_watched:
                stack.enter_context(FunctionMode(self._call))
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self,
        _: type[BaseException] | None,
        error: BaseException | None,
        __: TracebackType | None,
    ) -> None:
        self._exit.close()
        self._repetition = self._operators = None
        self._memory.clear()
        if error is not None:
            refuse_functions(error)

    def begin(self, *, is_call: bool = False) -> Trace:
        """Starts another pass; existing tensors don't count toward it.

        If it is a call of the model, a `__call__` of its own counts, too.
        """
        self.trace = Trace()
        self._memory.clear()
        self._modules.begin(self.trace.calls, is_call=is_call)
        return self.trace

    # modules

    def _run(
        self,
        module: torch.nn.Module,
        path: str,
        forward: Function,
        args: Arguments,
        kwargs: Keywords,
    ) -> Value:
        """Runs a module's forward, or repeats the record of an equal call."""
        repetition, is_customized = self._repetition, path in self._modules.customized
        if repetition is None or is_customized or torch._C._are_functorch_transforms_active():
            return self._run_in_full(path, forward, args, kwargs)
        with torch._C.DisableTorchFunction():
            key = repetition.key_of(module, path, args, kwargs)
        if key is None:
            return self._run_in_full(path, forward, args, kwargs)
        span = repetition.spans.get(key)
        if span is not None:
            self.trace.add(span.trace, self._memory.nbytes, span.path, path)
            with uncounted():
                output = span.output.make()
                for tensor in tensors_in([output]):
                    self._memory.add(tensor)
            return output
        if key in repetition.spans:
            return self._run_in_full(path, forward, args, kwargs)
        repetition.spans[key] = None  # until the call's side effects are known
        alive, births, given = self._memory.nbytes, self._memory.births, [*args, *kwargs.values()]
        versions, attributes = state_of(module, given)
        with self._own_trace(path) as trace:
            output = self._run_in_full(path, forward, args, kwargs)
        with torch._C.DisableTorchFunction():
            returned, again = [*tensors_in([output])], Output.of(output)
            made, is_all = self._memory.made_among(returned, births, alive)
            if again is not None and is_all and len(made) == len(returned):
                # It has written to no argument, and stored nothing on the module or below.
                same_versions, same_attributes = state_of(module, given)
                is_untouched = [*map(id, same_attributes)] == [*map(id, attributes)]
                if is_untouched and same_versions == versions:
                    repetition.spans[key] = RecordedCall(path, trace, again)
        return output

    def _run_in_full(
        self, path: str, forward: Function, args: Arguments, kwargs: Keywords
    ) -> Value:
        output = forward(*args, **kwargs)
        if self._device is None and path not in self.trace.shapes:
            with torch._C.DisableTorchFunction():
                self.trace.shapes[path] = _shapes([*args, *kwargs.values()]), _shapes(output)
        return output

    @contextlib.contextmanager
    def _own_trace(self, path: str) -> Iterator[Trace]:
        """Yields the trace of a module's call; its peak is beyond bytes alive before."""
        outer, alive = self.trace, self._memory.nbytes
        trace = Trace(peak=Peak(alive, path), modules=outer.modules)
        self.trace, self._modules.calls = trace, trace.calls
        try:
            yield trace
        finally:
            self.trace, self._modules.calls = outer, outer.calls
            trace.peak = Peak(trace.peak.nbytes - alive, trace.peak.path)
            outer.add(trace, alive, path, path)

    # functions

    def _call(self, func: Function, args: Arguments, kwargs: Keywords) -> Any:
        """Calls a function of torch, or repeats an equal call, which no mode sees."""
        safe_point()
        with torch._C.DisableTorchFunction():
            if func in ATTRIBUTES:
                return func(*args, **kwargs)
            key = self._key_of(func, args, kwargs)
            effect = _EFFECTS.get(key) if key else None
            if effect is not None:
                with torch._C._DisableTorchDispatch():
                    again = effect.output
                    output: Any = again.make() if again else func(*args, **kwargs)
                    if func is torch.nn.functional.scaled_dot_product_attention:
                        output = laid_out_as_on_cuda(output)
                self._add(effect, output)
                return output
        if key is None or key in _EFFECTS:
            return func(*args, **kwargs)
        return self._call_first(key, func, args, kwargs)

    def _key_of(self, func: Function, args: Arguments, kwargs: Keywords) -> Key | None:
        """What determines what a call adds to the record; None if something else might."""
        memory, device = self._memory, self._memory.device
        if (
            device is None
            or not is_repeatable(func)
            or not stays_on(device, func, args, kwargs)
            or torch.is_grad_enabled()
            or torch._C._len_torch_dispatch_stack() != self._modes
            or torch._C._is_any_autocast_enabled()
            or torch._C._are_functorch_transforms_active()
            or not self._modules.stack
        ):
            return None
        if device.type == "meta":
            if all(map(was_known, tensors_in([*args, *kwargs.values()]))):
                return None
        elif memory.hosts and any(map(memory.is_on_host, tensors_in([*args, *kwargs.values()]))):
            return None
        call = call_of(func, args, kwargs, device)
        return None if call is None else (self._modes, torch.is_inference_mode_enabled(), call)

    def _add(self, effect: Effect, output: Any) -> None:
        """Adds what a call, which has run, adds to the record."""
        trace, path, memory = self.trace, self._modules.path, self._memory
        trace.kernels += effect.kernels_of(path)
        for name, calls in effect.free:
            trace.free[name] += calls
        for name, calls in effect.unknown:
            trace.unknown[name] += calls
        if effect.peak_bytes:
            self._note_alive(memory.nbytes + effect.peak_bytes, path, "")
            returned = [*tensors_in([output])]
            for index, nbytes in effect.made:
                memory.watch(returned[index].untyped_storage(), nbytes)

    def _call_first(self, key: Key, func: Function, args: Arguments, kwargs: Keywords) -> Any:
        """Calls a function, and keeps what that adds to the record."""
        memory = self._memory
        alive, births, self._adds_the_same = memory.nbytes, memory.births, True
        with self._own_trace(self._modules.path) as trace:
            output = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            returned = [*tensors_in([output])]
            made, is_all = memory.made_among(returned, births, alive)
            is_all &= not any(map(memory.is_on_host, returned))
            is_all &= not any(map(was_known, returned))
            if len(_EFFECTS) >= _MOST_CALLS:
                _EFFECTS.clear()
            _EFFECTS[key] = None
            if is_all and self._adds_the_same:
                is_new = made and len(made) == len(returned)
                _EFFECTS[key] = Effect(trace, made, Output.of(output) if is_new else None)
        return output

    # operators

    def record_whole(
        self,
        name: str,
        args: Arguments,
        kwargs: Keywords,
        run: Callable[[], Result],
        is_kernel: bool = True,
    ) -> Result:
        """Runs something as one operator: of its inner operators, only copies are recorded.

        Args:
            name: The operator's name, which has a rule.
            args: Its arguments in schema order.
            kwargs: Its remaining keyword arguments.
            run: Runs it, and returns its output.
            is_kernel: Whether it is a single kernel, without intermediate results.
        """
        if torch._C._are_functorch_transforms_active():
            return run()  # on wrapped tensors; operations on the inner ones are dispatched
        with torch._C.DisableTorchFunction():
            refuse_uncountable(name, [*args, *kwargs.values()])
        self._whole = self._whole if self.inside_operator else name
        self.inside_operator += 1
        self.inside_kernel += is_kernel
        try:
            output = run()
        finally:
            self.inside_operator -= 1
            self.inside_kernel -= is_kernel
        if not self.inside_operator:
            self._record(name, RULES[name], args, kwargs, output)
        return output

    def _run_operator(
        self, func: Operator | HigherOrderOperator, args: Arguments, kwargs: Keywords
    ) -> Any:
        """Runs a dispatched operator, and assigns it to the running module.

        Inside one that is recorded as a whole, only memory and copies are recorded.
        """
        if isinstance(func, HigherOrderOperator):
            refuse_higher_order(func.__name__)
        operator = traits_of(func)
        name, rule = operator.name, operator.rule
        if operator.may_grow or shape_depends_on_values(func, args):
            self._adds_the_same = False
        run = functools.partial(self._run_growing, func) if operator.may_grow else func
        if self.inside_kernel:
            return run(*args, **kwargs)
        if not self.inside_operator:
            with torch._C.DisableTorchFunction():
                refuse_uncountable(name, (*args, *kwargs.values()))
        if operator.is_composite or (self.inside_operator and operator.can_be_taken_apart):
            assert self._operators is not None, "it has passed the operator on"
            with self._operators:
                # Decompose as PyTorch does; `decompose` would prefer a decomposition in Python.
                return func._op_dk(COMPOSITE, *args, **kwargs)
        output: Any = run(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            if self.inside_operator:
                if name in _COPIES:
                    self._record(name, rule, args, kwargs, output)
                elif self._whole == "linear" and name == "add":
                    self._memory.replace(args[0], output)  # in place, if no dispatch mode watched
                elif name not in FREE or name.startswith(_ALLOCATIONS):
                    self._book((), self._whole, tensors_in([output]))
                return output
            if name in ("convolution", "_convolution"):
                name = f"conv{'_transpose' if args[6] else ''}{args[0].dim() - 2}d"
            elif name in ("_to_copy", "copy"):
                source = args[1] if name == "copy" else args[0]  # `copy_` takes its target first
                if isinstance(source, torch.Tensor):
                    is_on_host = self._memory.is_on_host
                    if source.device != output.device or is_on_host(source) != is_on_host(output):
                        name, rule = "transfer", RULES["transfer"]
        self._record(name, rule, args, kwargs, output)
        return output

    def _run_growing(
        self, func: Callable[_Inputs, Result], *args: _Inputs.args, **kwargs: _Inputs.kwargs
    ) -> Result:
        """Runs an operator that may enlarge its arguments' memory, and records the growth.

        PyTorch allocates the larger memory, copies the old contents, and then frees the old memory.
        """
        with torch._C.DisableTorchFunction():
            given = tensors_in([*args, *kwargs.values()])
            before = {
                storage._cdata: (storage, storage.nbytes())
                for storage in map(torch.Tensor.untyped_storage, given)
            }
        output = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            for storage, held in before.values():
                if storage.nbytes() <= held:
                    continue
                if held:
                    contents = torch.empty(held, dtype=torch.uint8, device="meta")
                    self._record("grow", RULES["grow"], (contents,), {}, contents)
                self._note_alive(self._memory.grow(storage, held), self._modules.path, "grow")
        return output

    def _record(
        self, name: str, rule: Rule | None, args: Arguments, kwargs: Keywords, output: Any
    ) -> None:
        """Records an operator that has run."""
        with torch._C.DisableTorchFunction():
            trace, is_counted = self.trace, bool(self._modules.stack)  # not around the model
            if name in FREE:
                if is_counted:
                    trace.free[name] += 1
                if not name.startswith(_ALLOCATIONS):
                    return
            outputs = [*tensors_in([output])]
            refuse_uncountable(name, outputs)
            kernels: list[Kernel] | None = None
            if rule is not None and outputs and is_counted:
                # A returned keyword argument is an `out=`: it is written, not read.
                written = {*map(id, outputs)}
                read = {key: kwargs[key] for key in kwargs if id(kwargs[key]) not in written}
                tensors = [*tensors_in(args), *tensors_in(read.values())]
                kernels = kernels_of(name, rule, Call(args, outputs, read, tensors))
            if kernels is None and name not in FREE and is_counted:
                trace.unknown[name] += 1
            # A tensor written in place existed before.
            self._book(kernels or (), name, outputs, {*map(id, args), *map(id, kwargs.values())})

    def _book(
        self,
        kernels: Sequence[Kernel],
        name: str,
        outputs: Iterable[torch.Tensor],
        existing: Container[int] = (),
    ) -> None:
        """Adds kernels to the trace, and their copies of operands and outputs to memory."""
        path, copied = self._modules.path, 0
        self.trace.kernels += map(Kernel.at, kernels, repeat(path))
        for copy in kernels[:-1]:
            copied += copy.work.bytes_written
            self._note_alive(self._memory.nbytes + copied, path, copy.operator)
        for tensor in outputs:
            if id(tensor) not in existing and self._memory.add(tensor):
                self._note_alive(self._memory.nbytes + copied, path, name)

    def _note_alive(self, nbytes: int, path: str, operator: str) -> None:
        """Notes the bytes alive right after an operator made a tensor."""
        if nbytes > self.trace.peak.nbytes:
            self.trace.peak = Peak(nbytes, path)


_OWN_MODES: Final = (FunctionMode, DeviceContext)
"""Types of function modes that need not see calls of which an equal one has run."""
_ALLOCATIONS: Final = ("empty", "new_empty")
_COPIES: Final = frozenset({"clone", "_to_copy"})


def _shapes(value: Value) -> Shapes:
    """Shapes of tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        refuse_uncountable("a module's inputs or outputs", (value,))
        return tuple(value.shape)
    if isinstance(value, dict):
        return [*map(_shapes, value.values())]
    if isinstance(value, tuple | list):
        return [*map(_shapes, value)]
    return None
