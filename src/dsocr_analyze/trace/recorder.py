"""Records a forward pass: which module called which operator, and what that cost.

`RunningModules` knows whose forward is running, `Composites` intercepts operators as called, and a
dispatch mode intercepts all others below Python, including those in scripted functions.
`LiveTensors` measures memory. If an architecture declares modules alike, `Repetition` skips their
equal calls.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, ParamSpec

import torch
from torch._ops import HigherOrderOperator
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.running.known_shapes import KnownShapes, Output, call_of, described
from dsocr_analyze.running.known_values import known_value
from dsocr_analyze.running.torch_calls import (
    Arguments,
    Function,
    Key,
    Keywords,
    Operator,
    Result,
    Shapes,
    Value,
    tensors_in,
)
from dsocr_analyze.running.unused_imports import uses_compiler
from dsocr_analyze.trace.call import Call, Rule
from dsocr_analyze.trace.composites import Composites
from dsocr_analyze.trace.cpu_as_cuda import cpu_as_cuda
from dsocr_analyze.trace.memory import LiveTensors
from dsocr_analyze.trace.modules import RunningModules
from dsocr_analyze.trace.operators import (
    COMPOSITE,
    FREE,
    RULES,
    Traits,
    convolution_name,
    copied_operands,
    copy_of,
    kernel_of,
    traits_of,
)
from dsocr_analyze.trace.record import Level, Trace
from dsocr_analyze.trace.refusals import (
    refuse_functions,
    refuse_higher_order,
    refuse_uncountable,
)
from dsocr_analyze.trace.repetition import Alike, Occasion, Repetition, Span, moved
from dsocr_analyze.trace.vector_rules import complex_rule

__all__ = ["Recorder"]


_Inputs = ParamSpec("_Inputs")


class Recorder:
    """Records forward passes of `model`; use as a context manager around the calls.

    Args:
        model: Any module tree. It is restored afterwards, even on errors.
        alike: Maps the path of a module to the name that alike modules share, or to None if it must
            always run. On `meta`, equal calls of alike modules are recorded once and repeated.
            Without it everything runs.
        with_levels: Whether to keep the trace's `levels`; if so, everything runs.
    """

    def __init__(
        self, model: torch.nn.Module, alike: Alike | None = None, *, with_levels: bool = False
    ) -> None:
        self.trace = Trace()
        self._with_levels = with_levels
        self._model = model
        self._alike = None if with_levels else alike
        self._modules = RunningModules(model)
        self._memory = LiveTensors(())
        self._repetition: Repetition | None = None
        self._kernels: dict[Key, list[Kernel] | None] = {}
        self._outputs: dict[Key, Output] = {}
        """Outputs of whole operators that have run, by call."""
        self._modes: int | None = None
        """Dispatch modes below and including this one's; None if other code's are among them."""
        self._whole = ""
        """Name of the operator that was last recorded as a whole."""
        self.inside_operator = 0
        """Number of operators now running that are recorded as a whole."""
        self.inside_kernel = 0
        """Number of those that are single kernels, whose inner calls never reach the device."""
        self._exit = contextlib.ExitStack()

    # lifetime

    def __enter__(self) -> Recorder:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._modules.attached(self._run))
            with torch._C.DisableTorchFunction():
                existing = [
                    tensor
                    for module in self._modules.modules
                    for tensor in (*module._parameters.values(), *module._buffers.values())
                    if tensor is not None
                ]
                refuse_uncountable("parameters and buffers", existing)
                self._memory = LiveTensors(existing)
            # A global hook or another mode would miss calls that are not run again.
            if self._alike and not (_has_any_global_hook() or _is_watched()):
                self._repetition = Repetition(self._alike, self._memory)
            is_watched = _is_watched()
            if self._memory.device == torch.device("cpu"):
                stack.enter_context(cpu_as_cuda(self._memory, self._transfer))
            operators = _OperatorsBesideDynamo if uses_compiler() else _Operators
            stack.enter_context(operators(self))
            self._modes = None if is_watched else torch._C._len_torch_dispatch_stack()
            stack.enter_context(Composites(self._composite))
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self,
        _: type[BaseException] | None,
        error: BaseException | None,
        __: TracebackType | None,
    ) -> None:
        self._exit.close()
        self._repetition = None
        self._memory.clear()
        self._kernels.clear()
        self._outputs.clear()
        refuse_functions(error)

    def begin(self) -> Trace:
        """Starts the record of another pass; existing tensors don't count toward it."""
        self.trace = Trace()
        self._memory.clear()
        self._modules.begin(self.trace.calls)
        if self._repetition is not None:
            self._repetition.shapes.clear()
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
        repetition = self._repetition
        if repetition is None or path in self._modules.customized or _is_transformed():
            return self._run_in_full(path, forward, args, kwargs)
        with torch._C.DisableTorchFunction():
            key = repetition.key_of(module, path, args, kwargs)
        if key is None:
            return self._run_in_full(path, forward, args, kwargs)
        span = repetition.span_of(key)
        if span is not None:
            layer = repetition.layer_of(module)
            return self._repeat(span, layer, path, [*args, *kwargs.values()])
        return repetition.run(
            Occasion(key, module, path, [*args, *kwargs.values()]),
            self.trace,
            lambda: self._run_in_full(path, forward, args, kwargs),
        )

    def _run_in_full(
        self, path: str, forward: Function, args: Arguments, kwargs: Keywords
    ) -> Value:
        output = forward(*args, **kwargs)
        if self._repetition is not None or path not in self.trace.shapes:
            with torch._C.DisableTorchFunction():
                self._note_shapes(path, (_shapes([*args, *kwargs.values()]), _shapes(output)))
        return output

    def _note_shapes(self, path: str, shapes: tuple[Shapes, Shapes]) -> None:
        self.trace.shapes.setdefault(path, shapes)
        if self._repetition is not None:
            self._repetition.shapes.append((path, shapes))

    def _repeat(self, span: Span, layer: int | None, path: str, arguments: Arguments) -> Value:
        trace = self.trace
        here = functools.cache(lambda other: moved(other, span.path, path))
        trace.kernels += [kernel.at(here(kernel.path)) for kernel in span.kernels]
        trace.calls += map(here, span.calls)
        trace.free.update(span.free)
        trace.unknown.update(span.unknown)
        for noted, shapes in span.shapes:
            self._note_shapes(here(noted), shapes)
        self._note_alive(self._memory.nbytes + span.peak.nbytes, here(span.peak.path), "")
        with self._inside(is_kernel=True), torch._C.DisableTorchFunction():
            return span.leave(layer, arguments, self._memory)

    # operators

    @contextlib.contextmanager
    def _inside(self, *, is_kernel: bool) -> Iterator[None]:
        self.inside_operator += 1
        self.inside_kernel += is_kernel
        try:
            yield
        finally:
            self.inside_operator -= 1
            self.inside_kernel -= is_kernel

    def _composite(
        self,
        name: str,
        args: Arguments,
        kwargs: Keywords,
        run: Callable[[], Value],
        is_kernel: bool,
    ) -> Value:
        """Records a composite as one operator; under torch.func, lets torch decompose it."""
        if _is_transformed():
            return run()  # on wrapped tensors; operations on the inner ones are dispatched
        with torch._C.DisableTorchFunction():
            refuse_uncountable(name, (*args, *kwargs.values()))
        return self.record_whole(name, args, kwargs, run, is_kernel)

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
            run: Runs it.
            is_kernel: Whether it is a single kernel on the device, without intermediate results.

        Returns:
            The result of `run`.
        """
        output: Result = self._output_of(name, args, kwargs, run, is_kernel)
        if not self.inside_operator:
            with torch._C.DisableTorchFunction():
                self._record(name, RULES[name], args, kwargs, output)
        return output

    def _output_of(
        self,
        name: str,
        args: Arguments,
        kwargs: Keywords,
        run: Callable[[], Any],
        is_kernel: bool,
    ) -> Any:
        """The output of `run`, which runs on `meta` only if no equal call has run before.

        It runs every time if there is more to it than an output without known values: other
        memory, copies, or other code that watches.
        """
        self._whole = self._whole if self.inside_operator else name
        call = self._call(name, args, kwargs) if self._may_skip() else None
        known = None if call is None else self._outputs.get(call)
        if known is not None:
            with torch._C._DisableTorchDispatch():
                return known.make()
        kernels, births = len(self.trace.kernels), self._memory.births
        with self._inside(is_kernel=is_kernel):
            output = run()
        is_all = len(self.trace.kernels) == kernels
        if call is not None and is_all and self._memory.births <= births + 1:
            with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                found = described([output], [*args, *kwargs.values()])
            if found and isinstance(output, torch.Tensor):
                self._outputs[call] = found[0]
        return output

    def _may_skip(self) -> bool:
        """Whether an output alone is enough: no one differentiates it or watches its operators."""
        if self.inside_operator or torch.is_grad_enabled():
            return False
        # The model's own code may have entered a mode since.
        return self._modes == torch._C._len_torch_dispatch_stack()

    def _call(self, name: str, args: Arguments, kwargs: Keywords) -> Key | None:
        with torch._C.DisableTorchFunction():
            tensors = list(tensors_in([*args, *kwargs.values()]))
            if all(known_value(tensor) is not None for tensor in tensors):
                return None  # the output's value is known, too
            return call_of(name, args, kwargs)

    def record_inside(
        self, operator: Traits, args: Arguments, kwargs: Keywords, output: Any
    ) -> None:
        """Records memory and copies made inside an operator that is recorded as a whole."""
        with torch._C.DisableTorchFunction():
            name, rule = operator.name, operator.rule
            if name in FREE and not name.startswith(_ALLOCATIONS):
                return
            if name in _COPIES:
                self._record(name, rule, args, kwargs, output)
                return
            if self._whole == "linear" and name == "add":
                self._memory.replace(args[0], output)  # in place, if no dispatch mode watched
                return
            self._hold(self._whole, _tensors_of(output))

    def record(self, operator: Traits, args: Arguments, kwargs: Keywords, output: Any) -> None:
        """Assigns one dispatched operator to the module whose forward is running."""
        with torch._C.DisableTorchFunction():
            name, rule = operator.name, operator.rule
            if name in ("convolution", "_convolution"):
                name = convolution_name(args)
            elif name in ("_to_copy", "copy") and self._moves(name, args, output):
                name, rule = "transfer", RULES["transfer"]
            self._record(name, rule, args, kwargs, output)

    def _moves(self, name: str, args: Arguments, target: torch.Tensor) -> bool:
        """Whether a copy goes between host and device; `copy_` takes its target first."""
        source, place = args[1] if name == "copy" else args[0], self._memory.place_of
        return isinstance(source, torch.Tensor) and place(source) != place(target)

    def _transfer(self, tensor: torch.Tensor, move: Callable[[], torch.Tensor]) -> torch.Tensor:
        moved: torch.Tensor = self.record_whole("transfer", [tensor], {}, move)
        return moved

    def run_growing(
        self, func: Callable[_Inputs, Result], *args: _Inputs.args, **kwargs: _Inputs.kwargs
    ) -> Result:
        """Runs an operator that may enlarge the storage of its arguments, and records the growth.

        PyTorch allocates the larger memory, copies the old contents, and then frees the old memory.
        """
        with torch._C.DisableTorchFunction():
            tensors = Call(args, (), kwargs).tensors()
            storages = [tensor.untyped_storage() for tensor in tensors]
            before = {storage._cdata: (storage, storage.nbytes()) for storage in storages}
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
        is_counted = self._modules.is_running  # not what `generate` does around the model
        if name in FREE:
            if is_counted:
                self.trace.free[name] += 1
            if not name.startswith(_ALLOCATIONS):
                return
        outputs = _tensors_of(output)
        refuse_uncountable(name, outputs)
        path = self._modules.path
        kernels: list[Kernel] | None = None
        if rule is not None and outputs and is_counted:
            kernels = self._kernels_of_call(name, rule, args, kwargs, outputs)
        if kernels is not None:
            self.trace.kernels += [kernel.at(path) for kernel in kernels]
        elif name not in FREE and is_counted:
            self.trace.unknown[name] += 1
        copied = 0
        for copy in kernels[:-1] if kernels else ():
            copied += copy.work.bytes_written
            self._note_alive(self._memory.nbytes + copied, path, copy.operator)
        arguments = (*args, *kwargs.values()) if kwargs else args
        # A tensor written in place existed before.
        made = [each for each in outputs if not any(each is argument for argument in arguments)]
        self._hold(name, made, copied)

    def _hold(self, name: str, made: list[torch.Tensor], copied: int = 0) -> None:
        """Counts what an operator has made as alive, beside the copies that it still holds."""
        for tensor in made:
            if self._memory.add(tensor):
                self._note_alive(self._memory.nbytes + copied, self._modules.path, name)

    def _kernels_of_call(
        self,
        name: str,
        rule: Rule,
        args: Arguments,
        kwargs: Keywords,
        outputs: list[torch.Tensor],
    ) -> list[Kernel] | None:
        """The records of a call, those of its hidden copies first.

        Computed once for calls with equal arguments and outputs. None if the rule does not cover
        complex numbers and there are some.
        """
        is_in_place = len(args) > 0 and outputs[0] is args[0]
        if kwargs:
            # A returned argument is an `out=`: it is written, not read.
            kwargs = {
                given: value
                for given, value in kwargs.items()
                if not any(value is output for output in outputs)
            }
        key = (
            name,
            is_in_place,
            _signature(args),
            _signature(outputs),
            *((given, _signature((value,))) for given, value in kwargs.items()),
        )
        if key not in self._kernels:
            self._kernels[key] = self._made(name, rule, Call(args, outputs, kwargs))
        return self._kernels[key]

    def _made(self, name: str, rule: Rule, call: Call) -> list[Kernel] | None:
        covering = complex_rule(name, rule) if call.is_complex else rule
        if covering is None:
            return None
        copies = [copy_of(operand) for operand in copied_operands(name, call)]
        return [*copies, kernel_of(name, covering, call)]

    def _note_alive(self, nbytes: int, path: str, operator: str) -> None:
        if self._with_levels:
            self.trace.levels.append(Level(path, operator, nbytes))
        if nbytes > self.trace.peak.nbytes:
            self.trace.peak = Peak(nbytes, path)


_ALLOCATIONS: Final = ("empty", "new_empty")
_COPIES: Final = frozenset({"clone", "_to_copy"})


def _tensors_of(output: Value) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, tuple | list):
        return [item for item in output if isinstance(item, torch.Tensor)]
    return []


def _signature(values: Arguments) -> Key:
    """Everything a rule may look at: layouts of tensors, values of all other arguments."""
    signature: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            signature += (value.shape, value.stride(), value.dtype)
        elif isinstance(value, tuple | list):
            signature.append(_signature(value))
        else:
            signature.append(value)
    return tuple(signature)


def _is_watched() -> bool:
    """Whether other code's dispatch mode is active; `KnownShapes`, which only answers, is ours."""
    modes = _get_current_dispatch_mode_stack()
    return any(not isinstance(mode, KnownShapes) for mode in modes)


def _is_transformed() -> bool:
    """Whether torch.func (vmap, grad, ...) is active: its tensors wrap the computed ones."""
    return bool(torch._C._are_functorch_transforms_active())


def _shapes(value: Value) -> Shapes:
    """Shapes of tensors in nested tuples, lists and dataclass-like outputs; None for others."""
    if isinstance(value, torch.Tensor):
        refuse_uncountable("a module's inputs or outputs", (value,))
        return tuple(value.shape)
    if isinstance(value, dict):
        return [_shapes(item) for item in value.values()]
    if isinstance(value, tuple | list):
        return [_shapes(item) for item in value]
    return None


# --- operators below Python ------------------------------------------------------------------


class _Operators(TorchDispatchMode):
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Guarding against torch.compile would import all of torch._dynamo for nothing.
        return False

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation
        self._recorder = recorder

    def __torch_dispatch__(
        self,
        func: Operator | HigherOrderOperator,
        types: Iterable[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Value:
        kwargs = kwargs or {}
        recorder = self._recorder
        if isinstance(func, HigherOrderOperator):
            refuse_higher_order(func.__name__)
        operator = traits_of(func)
        run = functools.partial(recorder.run_growing, func) if operator.may_grow else func
        if recorder.inside_kernel:
            return run(*args, **kwargs)
        if not recorder.inside_operator:
            with torch._C.DisableTorchFunction():
                refuse_uncountable(operator.name, (*args, *kwargs.values()))
        if operator.is_composite or (recorder.inside_operator and operator.can_be_taken_apart):
            with self:
                # Decompose as PyTorch does; `decompose` would prefer a decomposition in Python.
                return func._op_dk(COMPOSITE, *args, **kwargs)
        output = run(*args, **kwargs)
        book = recorder.record_inside if recorder.inside_operator else recorder.record
        book(operator, args, kwargs, output)
        return output


class _OperatorsBesideDynamo(_Operators):
    """The same if torch.compile is in use, which must not compile the recorder as well."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    def __torch_dispatch__(
        self,
        func: Operator | HigherOrderOperator,
        types: Iterable[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Value:
        return super().__torch_dispatch__(func, types, args, kwargs)
