"""Values on `meta`: the few numbers that a model's control flow reads from its own tensors.

`KnownValues` tracks tensors of known values (ranges, constants, filled pixels, and what is computed
from these) and computes the answer on the CPU. MoE routing is uniform: the choices are dealt to the
experts in turn. No computed float is 0. A value is forgotten when its tensor's version changes.
`KnownShapes` answers operators whose output depends on values: the result of `nonzero` has as many
elements as these demand. That of a convolution is laid out as on a CPU or GPU.
"""

import copy
import math
from collections.abc import Callable
from functools import cache, partial
from itertools import filterfalse
from operator import attrgetter, call
from typing import Any, Final

import torch
from torch._prims_common import suggest_memory_format

from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.model.process_settings import (
    Arguments,
    DispatchMode,
    Function,
    FunctionMode,
    Keywords,
    Operator,
    Value,
    tensors_in,
    uncounted,
)

WITH_VALUES: Final = "give device='cpu' or a CUDA device, where every tensor has values"

_ATTRIBUTE = "_dsocr_known_value"

_Compute = Callable[[], Any]

_VERSION_OF: Final = attrgetter("_version")

_RANGES = frozenset({torch.arange, torch.as_tensor, torch.eye, torch.linspace, torch.tensor})
_FILLED_WITH = {
    torch.zeros: 0,
    torch.zeros_like: 0,
    torch.Tensor.new_zeros: 0,
    torch.ones: 1,
    torch.ones_like: 1,
    torch.Tensor.new_ones: 1,
}
_EQUALITY = frozenset({torch.eq, torch.Tensor.eq, torch.Tensor.__eq__})
_FILL_ARGUMENT = {torch.full: 1, torch.full_like: 1, torch.Tensor.new_full: 2}
"""Position of the fill value among the arguments."""

_MOST_WRITES: Final = 128
"""After more, a tensor's value is forgotten: each is computed in the frames of the next."""

_ASSIGN: Final = torch.Tensor.__setitem__
_REPEATS = frozenset({torch.repeat_interleave, torch.Tensor.repeat_interleave})

_SHAPED_AS: Final[dict[Function, Function]] = {
    torch.Tensor.expand_as: torch.Tensor.expand,
    torch.Tensor.reshape_as: torch.Tensor.reshape,
    torch.Tensor.view_as: torch.Tensor.view,
}
"""For functions that take a tensor for its shape, those that take the shape."""

_WITHOUT_VALUE = (
    "empty",
    "new_empty",
    "rand",
    "bernoulli",
    "multinomial",
    "normal",
    "poisson",
    "uniform",
    "exponential",
    "geometric",
    "cauchy",
    "log_normal",
    "dropout",
    "alpha_dropout",
    "feature_dropout",
    "rrelu",
    "resize",
)
"""Prefixes of functions whose results do not follow from their arguments."""

_QUESTIONS = frozenset(
    {
        torch.Tensor.item,
        torch.Tensor.tolist,
        torch.Tensor.numpy,
        torch.Tensor.__array__,
        torch.Tensor.__bool__,
        torch.Tensor.__int__,
        torch.Tensor.__float__,
        torch.Tensor.__index__,
        torch.Tensor.__complex__,
        torch.Tensor.equal,
        torch.Tensor.allclose,
        torch.Tensor.is_nonzero,
        torch.equal,
        torch.allclose,
        torch.is_nonzero,
    }
)


def known_value(tensor: torch.Tensor) -> _Compute | None:
    """What computes a `meta` tensor's value; None if unknown."""
    known: tuple[int, _Compute] | None = getattr(tensor, _ATTRIBUTE, None)
    return None if known is None or tensor._version != known[0] else known[1]


def was_known(tensor: torch.Tensor) -> bool:
    """Whether a tensor's value is known, or was before it was written to."""
    return hasattr(tensor, _ATTRIBUTE)


def _set_known_value(tensor: torch.Tensor, compute: _Compute) -> None:
    """Sets what computes a `meta` tensor's value, until the tensor is written to."""
    if not tensor.is_inference():  # inference tensors have no version
        setattr(tensor, _ATTRIBUTE, (tensor._version, compute))


def _with_values(func: Function, args: Arguments, kwargs: Keywords) -> Any:
    """Makes a call of torch, or answers it if it asks for the value of a `meta` tensor."""
    safe_point()
    first = args[0] if args else kwargs.get("input")
    if isinstance(first, torch.Tensor) and first.is_meta:
        if func is torch.Tensor.__contains__:
            with KnownValues():  # which answers `item`; the comparison is recorded
                return bool((first == args[1]).any().item())
        if func in _QUESTIONS:
            return _answer(func, first, args, kwargs)
        if func in (torch.Tensor.cpu, torch.Tensor.cuda):
            func, args, kwargs = torch.Tensor.to, (first, func.__name__), {}
        if func is torch.Tensor.to:
            device = device_among(args[1:], kwargs)
            if device is not None and device.type != "meta":
                here = _on_cpu(first) if device.type == "cpu" else first
                args, kwargs = _without_device((here, *args[1:]), kwargs)
                if len(args) == 1 and not kwargs:
                    return here
    if func in _REPEATS:
        kwargs = _with_output_size(args, kwargs)
    fill = _fill(func, args, kwargs)
    if fill is not None:
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.is_meta:
            shape, dtype = tuple(result.shape), result.dtype
            # Of its number, stored once: a page has many pixels.
            _set_known_value(result, lambda: torch.full((), fill, dtype=dtype).expand(shape))
        return result
    if func in _SHAPED_AS:
        shape = (kwargs["other"] if "other" in kwargs else args[-1]).shape
        func, args, kwargs = _SHAPED_AS[func], (first, shape), {}
    # Before the call, which may overwrite the inputs of the computation.
    deferred = _deferred(func, args, kwargs)
    given = () if deferred is None else tensors_in((*args, *kwargs.values()))
    seen = [*filterfalse(torch.is_inference, given)]  # which have no version
    versions = [*map(_VERSION_OF, seen)]
    result = func(*args, **kwargs)
    computed: _Compute | None = None
    if deferred is not None:
        writes = versions != [*map(_VERSION_OF, seen)]
        computed = cache(partial(_result, func, deferred, writes))
        if writes and isinstance(first, torch.Tensor) and first._base is not None:
            _follow_through_view(first, first._base, versions[0], computed)
    _follow(func, args, kwargs, result, computed)
    return result


KnownValues: Final = partial(FunctionMode, _with_values)
"""The mode, which ignores tensors with values."""


def _follow(
    func: Function, args: Arguments, kwargs: Keywords, result: Any, computed: _Compute | None
) -> None:
    """Keeps what computes a result's value, or forgets it."""
    if isinstance(result, torch.Tensor):
        if computed is not None and result.is_meta:
            _set_known_value(result, computed)
        elif result.is_meta and hasattr(result, _ATTRIBUTE) and known_value(result) is None:
            delattr(result, _ATTRIBUTE)
    elif isinstance(result, tuple | list):
        if computed is not None:
            for index, item in enumerate(result):
                if isinstance(item, torch.Tensor) and item.is_meta:
                    _set_known_value(item, _pick(computed, index))
        elif func in _TOP_K and result[1].is_meta and result[1].dim():
            choices = result[1]  # each candidate equally often
            _set_known_value(choices, cache(routed_uniformly(choices, args, kwargs)))
    elif func is _ASSIGN and computed is not None:
        _set_known_value(args[0], computed)
    elif getattr(func, "__name__", "") == "__set__" and hasattr(args[0], _ATTRIBUTE):
        delattr(args[0], _ATTRIBUTE)  # assigning `.data` leaves the version unchanged


def _answer(func: Function, asked: torch.Tensor, args: Arguments, kwargs: Keywords) -> Any:
    deferred = _deferred(func, args, kwargs)
    if deferred is None:
        name = func.__name__ if func.__name__ != "__bool__" else "__bool__ (perhaps in an `if`)"
        raise ModelCodeError(
            f"the model's code reads a value with Tensor.{name} from a tensor of shape"
            f" {tuple(asked.shape)} that has no values on meta; {WITH_VALUES}",
            arguments=["device='cpu'"],
        )
    with uncounted():
        # Copied, since the model may modify the answer.
        return copy.deepcopy(_result(func, deferred, False))


def _with_output_size(args: Arguments, kwargs: Keywords) -> Keywords:
    """Arguments of `repeat_interleave`, with the length for a single number, which it expands."""
    given = {**dict(zip(("input", "repeats", "dim"), args, strict=False)), **kwargs}
    repeats: Any = given.get("repeats")
    dim, is_one = given.get("dim"), isinstance(repeats, torch.Tensor) and repeats.numel() == 1
    known = known_value(repeats) if is_one else None
    if known is None or "input" not in given or "output_size" in given:
        return kwargs
    repeated = given["input"].numel() if dim is None else given["input"].shape[dim]
    with uncounted():
        return {**kwargs, "output_size": int(known()) * repeated}


def _fill(func: Function, args: Arguments, kwargs: Keywords) -> bool | int | float | complex | None:
    """The number that fills a new tensor, if any."""
    if func in _EQUALITY and not kwargs and args[0].is_meta and args[0].is_floating_point():
        is_known = hasattr(args[0], _ATTRIBUTE) or type(args[1]) not in (int, float) or args[1] != 0
        return None if is_known else False
    value = _FILLED_WITH.get(func)
    place = _FILL_ARGUMENT.get(func)
    if place is not None:
        value = args[place] if len(args) > place else kwargs.get("fill_value")
    return value if isinstance(value, bool | int | float | complex) else None


def _follow_through_view(
    view: torch.Tensor, base: torch.Tensor, version: int, computed: _Compute
) -> None:
    """Follows a write to a view of a tensor whose value was known at a version."""
    known = getattr(base, _ATTRIBUTE, None)
    if known is None or known[0] != version or not base.is_contiguous():
        return
    compute, place = known[1], (view.shape, view.stride(), view.storage_offset())

    def whole() -> torch.Tensor:
        value: torch.Tensor = compute().clone(memory_format=torch.contiguous_format)
        value.as_strided(*place).copy_(computed())
        return value

    _set_known_value(base, cache(whole))


def _on_cpu(tensor: torch.Tensor) -> Any:
    """A copy of a known value, or the tensor itself."""
    known = known_value(tensor)
    if known is None:
        return tensor
    with uncounted():
        return known().clone()


def device_among(args: Arguments, kwargs: Keywords) -> torch.device | None:
    """The device in a call of `Tensor.to`, if any."""
    for argument in (*args, kwargs.get("device"), kwargs.get("tensor")):
        if isinstance(argument, torch.device | str):
            return torch.device(argument)
        if isinstance(argument, torch.Tensor):
            return argument.device
    return None


def _without_device(args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
    """Arguments of `Tensor.to` without a device; of a tensor among them, its dtype."""

    def kept(argument: Value) -> Value:
        return argument.dtype if isinstance(argument, torch.Tensor) else argument

    return (
        (args[0], *(kept(a) for a in args[1:] if not isinstance(a, torch.device | str))),
        {
            "dtype" if name == "tensor" else name: kept(value)
            for name, value in kwargs.items()
            if name != "device"
        },
    )


def _result(func: Function, arguments: _Compute, writes: bool) -> Any:
    """A deferred result, or the tensor after an assignment to items.

    Arguments that the function `writes` to are copied.
    """
    args, names, values = _copied(arguments()) if writes else arguments()
    result = func(*args, **dict(zip(names, values, strict=True)))
    return args[0] if func is _ASSIGN else result


def _deferred(func: Function, args: Arguments, kwargs: Keywords) -> _Compute | None:
    """What computes arguments, names and values of others; None if one is unknown.

    It holds nothing that may change before it runs, and no `meta` tensors, whose lifetimes count.
    """
    is_computed = func in _RANGES or func is torch.Tensor.to
    for tensor in tensors_in((*args, *kwargs.values())):
        if tensor.is_meta:
            if known_value(tensor) is None or tensor._version > _MOST_WRITES:
                return None
            is_computed = True
    if not is_computed or getattr(func, "__name__", "").startswith(_WITHOUT_VALUE):
        return None
    if func in _RANGES:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    with uncounted():
        return frozen([[*args], [*kwargs], [*kwargs.values()]])


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [*map(_copied, value)] if type(value) is list else value


def frozen(argument: Any) -> _Compute:
    """What returns the present value, on the CPU, of an argument of known values."""
    if isinstance(argument, torch.Tensor):
        if not argument.is_meta:
            value = argument.clone()
            return lambda: value
        known = known_value(argument)
        assert known is not None, "computed from known values alone"
        return known
    if type(argument) in (tuple, list):
        items, kind = [*map(frozen, argument)], type(argument)
        return lambda: kind(map(call, items))
    if isinstance(argument, slice):
        ends = frozen((argument.start, argument.stop, argument.step))
        return lambda: slice(*ends())
    if isinstance(argument, torch.device) or (isinstance(argument, str) and argument == "meta"):
        return lambda: torch.device("cpu")
    return lambda: argument


def _pick(computed: _Compute, index: int) -> _Compute:
    return lambda: computed()[index]


# --- choices of a top-k ----------------------------------------------------------------------


_TOP_K: Final = frozenset({torch.topk, torch.Tensor.topk})


def routed_uniformly(
    choices: torch.Tensor, args: Arguments, kwargs: Keywords
) -> Callable[[], torch.Tensor]:
    """What computes uniform choices of a top-k, all candidates in turn, without its tensors.

    `choices` are its indices, [..., k] (k at `dim`), for scores [..., candidates], k and dim.
    """
    scores = args[0] if args else kwargs["input"]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    rows, candidates = [*choices.shape], int(scores.shape[dim])
    rows.append(rows.pop(dim))  # in no row twice: k <= candidates
    return lambda: (torch.arange(math.prod(rows)) % candidates).view(rows).movedim(-1, dim)


# --- operators whose output PyTorch's own functions on meta can't tell, or tell otherwise ---------

_ATEN: Final = torch.ops.aten
_GROUPED_MM: Final = getattr(getattr(_ATEN, "_grouped_mm", None), "default", None)
"""Missing from the oldest supported versions of torch."""


def known_shape(func: Operator, args: Arguments, kwargs: Keywords) -> Any:
    """An operator's output, on `meta` also where its shape depends on values, or its layout."""
    if func is _GROUPED_MM and args[0].is_meta and args[0].dtype != torch.bfloat16:
        # [M, K] x [E, K, N] -> [M, N], whose own function on `meta` only takes bfloat16
        return args[0].new_empty((*args[0].shape[:-1], args[1].shape[-1]))
    if func is _ATEN.convolution.default and args[0].is_meta:
        return _convolved(func(*args, **kwargs), *args[:2])
    if _depends_on_values(func) and any(map(attrgetter("is_meta"), tensors_in(args))):
        return _answer_on_cpu(func, args, kwargs)
    return func(*args, **kwargs)


KnownShapes: Final = partial(DispatchMode, known_shape)
"""The mode, which belongs below all others."""


@cache
def _depends_on_values(func: Operator) -> bool:
    """Whether an operator's output does, by PyTorch's own tags."""
    tags = getattr(func, "tags", ())
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


def shape_depends_on_values(func: Operator, args: Arguments) -> bool:
    """The same of one call: an index of whole numbers takes as many elements for all of them."""
    if func is not _ATEN.index.Tensor:
        return _depends_on_values(func)
    return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])


def _convolved(output: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A convolution's output, whose channels are last in memory if those of one factor are.

    Source: `cudnn_conv_suggest_memory_format` and `mkldnn_conv_use_channels_last` of ATen.
    """
    layout = suggest_memory_format(x)
    if layout == torch.contiguous_format:
        layout = suggest_memory_format(weight)
    return torch.empty_like(output, memory_format=layout)


def _answer_on_cpu(func: Operator, args: Arguments, kwargs: Keywords) -> Any:
    """The output of an operator that depends on values."""
    if kwargs.get("output_size") is not None:  # as repeat_interleave accepts it
        return func(*args, **kwargs)
    if func is _ATEN.index.Tensor:
        indices = list[Any]()
        for index in args[1]:
            is_on_meta = isinstance(index, torch.Tensor) and index.is_meta
            if is_on_meta and index.dtype in (torch.bool, torch.uint8):
                with uncounted():  # as a device would use it: its set positions, by dimension
                    [mask] = _values_of(func, index)
                    indices += map(_on_meta, mask.nonzero().unbind(1))
            else:
                indices.append(index)
        return func(args[0], indices, **kwargs)
    with uncounted():
        if func is _ATEN.masked_select.default:  # its elements' own values are not needed
            shape = torch.broadcast_shapes(*(each.shape for each in args))
            [mask] = _values_of(func, args[1])
            return args[0].new_empty(int(mask.expand(shape).count_nonzero()))
        values = _values_of(func, *args, *kwargs.values())
        positional, named = values[: len(args)], values[len(args) :]
        return _on_meta(func(*positional, **dict(zip(kwargs, named, strict=True))))


def _values_of(func: Operator, *arguments: Value) -> Any:
    """Arguments on the CPU, with the tensors' values; ModelCodeError if one is unknown."""
    for tensor in tensors_in(arguments):
        if tensor.is_meta and known_value(tensor) is None:
            raise ModelCodeError(
                f"the model's code calls {func.overloadpacket.__name__} on a tensor of shape"
                f" {tuple(tensor.shape)} that has no values on meta, and its result depends on"
                f" them; {WITH_VALUES}",
                arguments=["device='cpu'"],
            )
    return frozen(arguments)()


def _on_meta(output: Value) -> Value:
    """Tensors on `meta`, with known values, for computed ones, in as much memory.

    PyTorch makes room for as many elements as there may be, and keeps it.
    """
    if isinstance(output, tuple | list):
        return tuple(map(_on_meta, output))
    if not isinstance(output, torch.Tensor):
        return output
    elements = output.untyped_storage().nbytes() // output.element_size()
    memory = torch.empty(elements, dtype=output.dtype, device="meta")
    tensor = memory.as_strided(output.shape, output.stride(), output.storage_offset())
    _set_known_value(tensor, lambda: output)
    return tensor
