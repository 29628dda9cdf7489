"""Counts any module: one forward pass under the recorder, and what it cost."""

from __future__ import annotations

import contextlib
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import torch
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from dsocr_analyze.errors import DeviceError, ModelCodeError, UncountableError
from dsocr_analyze.figures import Count, Counts, counts_of
from dsocr_analyze.forking import undone
from dsocr_analyze.kernels import (
    Kernel,
    Kind,
    calls_of,
    total_work,
    work_by,
)
from dsocr_analyze.model.forward import place_of, watched
from dsocr_analyze.model.generation import left_as_it_was
from dsocr_analyze.model.known_values import WITH_VALUES
from dsocr_analyze.model.process_settings import default_dtype, exclusive
from dsocr_analyze.report.document import (
    CountsWithIntensity,
    Module,
    data_frame,
    modules_of,
    with_intensity,
)
from dsocr_analyze.trace.modules import paths_of
from dsocr_analyze.trace.recorder import Recorder

if TYPE_CHECKING:
    import pandas as pd

Grouping = Literal["module", "operator"]

_Held: TypeAlias = tuple[str, str, torch.Tensor]
"""A tensor of a module: the module's path, its name there, and the tensor."""

_ON_A_DEVICE: Final = "count it on a CPU or GPU, where every tensor has values"
_OUTSIDE: Final = (
    "make module and inputs outside torch.inference_mode(), which a count on meta leaves"
)


class Operator(Counts, frozen=True, kw_only=True):
    """All calls of one operator.

    Attributes:
        kind: Its kind of kernel.
        calls: Number of calls.
    """

    kind: Kind
    calls: Count


@dataclass(frozen=True)
class ModuleCount:
    """What one forward pass of a module costs.

    Attributes:
        class_name: The module's class.
        device: Where it ran: `meta`, `cpu` or `cuda:N`.
        params: Parameters, tied ones once.
        params_bytes: Their bytes.
        peak_activation_bytes: The most bytes of tensors alive at once, without parameters, buffers
            and inputs.
        peak_module: Path of the module that reaches it; empty for the module itself.
        unknown: Calls of operators without a rule, by name; no figure includes them.
        kernels: Every counted operator in order, under the module whose own forward called it.
        module_calls: Calls by path of every module that ran, in order of first calls.
        module_classes: Classes of all modules by path.
        own_params: Parameters by path of the module that holds them first.
    """

    class_name: str
    device: str
    params: int
    params_bytes: int
    peak_activation_bytes: int
    peak_module: str
    unknown: Mapping[str, int]
    kernels: tuple[Kernel, ...]
    module_calls: Mapping[str, int]
    module_classes: Mapping[str, str]
    own_params: Mapping[str, int]

    @cached_property
    def total(self) -> CountsWithIntensity:
        """FLOPs and bytes of the whole pass."""
        work = total_work(kernel.total for kernel in self.kernels)
        return CountsWithIntensity(**with_intensity(work))

    @cached_property
    def by_module(self) -> Mapping[str, Module]:
        """Modules that ran and their ancestors by path, empty for the module itself."""
        own = work_by(self.kernels, "path")
        return modules_of(own, self.module_calls, self.module_classes, self.own_params)

    @cached_property
    def by_operator(self) -> Mapping[str, Operator]:
        """Counted operators by PyTorch's name, costliest first."""
        calls = calls_of(self.kernels)
        kinds = {kernel.operator: kernel.kind for kernel in self.kernels}
        works = work_by(self.kernels, "operator")
        return {
            name: Operator(**counts_of(works[name]), kind=kinds[name], calls=calls[name])
            for name in sorted(works, key=lambda name: (-works[name].flops, name))
        }

    def to_pandas(self, by: Grouping = "module") -> pd.DataFrame:
        """A table of exact integers. Needs the extra `pandas`.

        Args:
            by: One row per `module`, with its children's counts or, in columns `own_...`, without;
                or per `operator`.

        Raises:
            FormatError: `by` is neither, or pandas is not installed.
        """
        return data_frame(self._rows, by, get_args(Grouping))

    def _rows(self, by: Grouping) -> Iterator[dict[str, Any]]:
        if by == "module":
            yield from (module.row(path) for path, module in self.by_module.items())
            return
        keys = ("kind", "calls", *Counts.__struct_fields__)
        for name, each in self.by_operator.items():
            yield {"operator": name, **{key: getattr(each, key) for key in keys}}


def count(module: torch.nn.Module, /, *inputs: Any, **keyword_inputs: Any) -> ModuleCount:
    """What `module(*inputs, **keyword_inputs)` costs: FLOPs, bytes, parameters and memory.

    The module runs once, where it lives. On `meta` nothing is computed. The forward pass is counted
    without gradients; a backward pass that forward itself runs counts, too, and leaves its
    gradients. Conventions are those of the reports: 2 FLOPs per multiply-accumulate, kernels as
    CUDA has them. The module, its buffers, torch's settings and its random numbers are afterwards
    as before; what forward writes into inputs or parameters stays written.

    >>> with torch.device("meta"):
    ...     found = count(nn.Linear(3, 5), torch.empty(2, 3))
    >>> found.total.matrix_flops, found.params
    (60, 20)

    Args:
        module: Any module, in training or evaluation.
        inputs: What its forward takes, on the module's device.
        keyword_inputs: Its keyword arguments.

    Returns:
        The figures; those of operators without a rule are not included, but `unknown` names them.

    Raises:
        UncountableError: `module` is no module, its parameters have no shapes yet, or a tensor is
            of a kind that is not counted.
        DeviceError: Parameters, buffers and inputs are on several devices.
        ModelCodeError: On `meta`, forward needs a tensor's values, or writes into a tensor made in
            inference mode.

    Whatever else forward raises passes through.
    """
    if not isinstance(module, torch.nn.Module):
        raise UncountableError(
            f"count takes a torch.nn.Module and then its inputs, not {_named(module)}; a function"
            " can be called in the forward of a module"
        )
    paths = paths_of(module)
    parameters, buffers = _tensors_of(paths, "_parameters"), _tensors_of(paths, "_buffers")
    device = _device_of([*parameters, *buffers], (inputs, keyword_inputs))
    recorder = Recorder(module, device=device, paths=paths)
    with (
        _in_the_callers_settings(device),
        _random_numbers_kept(device),
        left_as_it_was(paths),
        _values_kept(paths, [buffer for _, _, buffer in buffers]),
        _in_the_callers_terms(module, device),
        torch.no_grad(),
        watched(device),
        recorder,
    ):
        trace = recorder.begin(is_call=True)
        module(*inputs, **keyword_inputs)
    own = Counter[str]()
    for path, _, each in parameters:
        own[path] += each.numel()
    return ModuleCount(
        class_name=type(module).__name__,
        device=str(device),
        params=own.total(),
        params_bytes=sum(each.nbytes for _, _, each in parameters),
        peak_activation_bytes=trace.peak.nbytes,
        peak_module=trace.peak.path,
        unknown=dict(sorted(trace.unknown.items())),
        kernels=tuple(trace.kernels),
        module_calls=Counter(trace.calls),
        module_classes={path: type(each).__name__ for each in paths for path in paths[each]},
        own_params=own,
    )


def _named(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__}"


def _tensors_of(
    paths: Mapping[torch.nn.Module, list[str]], table: Literal["_parameters", "_buffers"]
) -> list[_Held]:
    """Each parameter or buffer once, at its first place."""
    found = dict[int, _Held]()
    for module, [path, *_] in paths.items():
        for name, each in getattr(module, table).items():
            if each is not None:
                found.setdefault(id(each), (path, name, each))
    return [*found.values()]


def _device_of(held: Iterable[_Held], inputs: Any) -> torch.device:
    """The one device of parameters, buffers and inputs; the CPU if there are none."""
    places = dict[torch.device, str]()
    for path, name, each in held:
        if each.device in places and type(each) in (torch.Tensor, torch.nn.Parameter):
            continue  # as most are
        name = f"{path}.{name}" if path else name
        if is_lazy(each):
            raise UncountableError(
                f"parameter {name!r} has no shape yet; call the module once before it is counted"
            )
        _refuse_fake(name, each)
        places.setdefault(each.device, name)
    for each in tree_leaves(inputs, is_leaf=lambda each: isinstance(each, PackedSequence)):
        if isinstance(each, PackedSequence):  # whose batch sizes are always on the CPU
            each = each.data
        if isinstance(each, torch.Tensor):
            _refuse_fake("an input", each)
            if each.dim() or not places:  # numbers may be on the CPU
                places.setdefault(each.device, "an input")
    if len(places) > 1:
        told = ", ".join(f"{name} is on {device}" for device, name in places.items())
        raise DeviceError(f"{told}; give a module and inputs on one device")
    return next(iter(places), torch.device("cpu"))


def _refuse_fake(name: str, tensor: torch.Tensor) -> None:
    if type(tensor).__name__ == "FakeTensor":
        raise UncountableError(
            f"{name} is a FakeTensor; count the module outside FakeTensorMode and torch.compile,"
            " made within torch.device('meta')"
        )


# --- what stays as it was ----------------------------------------------------------------------


@contextlib.contextmanager
def _in_the_callers_settings(device: torch.device) -> Iterator[None]:
    """Only one module runs at a time, with the default type and modes of the caller.

    On `meta`, that is not inference mode, in which no value is known.
    """
    dtype = torch.get_default_dtype()
    infers = torch.is_inference_mode_enabled() and device.type != "meta"
    casting = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    with exclusive(), default_dtype(dtype), torch.inference_mode(infers):
        for kind in casting:
            torch.set_autocast_enabled(kind, True)
        yield


@contextlib.contextmanager
def _random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Random numbers after the body are those that would have been drawn before it."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(undone(partial(random.setstate, random.getstate())))
        stack.enter_context(undone(partial(torch.set_rng_state, torch.get_rng_state())))
        if device.type == "cuda":
            state = torch.cuda.get_rng_state(device)
            stack.enter_context(undone(partial(torch.cuda.set_rng_state, state, device)))
        if (numpy := sys.modules.get("numpy")) is not None:
            stack.enter_context(undone(partial(numpy.random.set_state, numpy.random.get_state())))
        yield


@contextlib.contextmanager
def _values_kept(
    modules: Iterable[torch.nn.Module], buffers: Iterable[torch.Tensor]
) -> Iterator[None]:
    """Restores the values that forward may change, without a trace in autograd.

    These are buffers, and the weights of embeddings with a largest norm.
    """
    limited = [
        each.weight
        for each in modules
        if isinstance(each, torch.nn.Embedding | torch.nn.EmbeddingBag) and each.max_norm
    ]
    datas = [each.data for each in (*buffers, *limited) if not each.is_meta]
    values = [each.clone() for each in datas]
    try:
        yield
    finally:
        if datas:
            torch._foreach_copy_(datas, values)


@contextlib.contextmanager
def _in_the_callers_terms(module: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Errors of this package, and torch's for lack of values, say where, and what to do."""
    try:
        yield
    except (ModelCodeError, UncountableError) as error:
        told = str(error).replace(WITH_VALUES, _ON_A_DEVICE)
        raise type(error)(": ".join((*place_of(error, module), told))) from error
    except RuntimeError as error:
        told = " ".join(str(error).split())[:200]
        advice = _OUTSIDE if "inference tensor" in told else _ON_A_DEVICE
        is_of_meta = isinstance(error, NotImplementedError) or "meta" in told
        if device.type != "meta" or not (is_of_meta or advice == _OUTSIDE):
            raise
        where = ": ".join((*place_of(error, module), told))
        raise ModelCodeError(f"{where}; {advice}") from error
