"""A tape, on which a network's forward, written once, yields all that it costs.

A forward is a function of a tape and tensors, in the vendor's order and with its names. Operators
are methods of the tape, which note a record at the running module. A tensor is a number of elements
and a type, alive until Python drops the last reference to it.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from itertools import repeat, starmap
from operator import attrgetter
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar, TypeVarTuple

from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import (
    FLOAT16,
    FLOAT32,
    Dimensions,
    Dtype,
    Elements,
    Gemm,
    Kernel,
    Kind,
    Rows,
    Work,
    merged,
)

if platform.python_implementation() != "CPython":
    raise ImportError("a tape needs CPython, which frees a tensor with its last reference")


# --- sizes -----------------------------------------------------------------------------------

Size: TypeAlias = Any
"""An integer, an array of integers or a `Polynomial`."""


def maximum(a: Size, b: Size) -> Size:
    """The larger, element by element."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    import numpy as np

    return np.maximum(a, b)


def minimum(a: Size, b: Size) -> Size:
    """The smaller, element by element."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    import numpy as np

    return np.minimum(a, b)


def largest(counts: Size) -> int:
    """The largest of an integer array, 0 for an empty one; an integer itself."""
    if isinstance(counts, int):
        return counts
    return int(counts.max()) if len(counts) else 0


def ceil_div(dividend: Size, divisor: Size) -> Size:
    """`ceil(dividend / divisor)`."""
    return -(-dividend // divisor)


def ceil_log2(n: Size) -> Size:
    """`ceil(log2(n))` for n >= 1: the number of bits of `n - 1`."""
    if isinstance(n, int):
        return (n - 1).bit_length()
    import numpy as np

    if n.dtype.kind == "O":
        return np.frompyfunc(lambda item: (int(item) - 1).bit_length(), 1, 1)(n)
    # A float64's exponent counts bits. Beyond 2^53, the last bits might be rounded up.
    below = n - 1
    exponents = np.frexp(np.where(below < 1 << 53, below, below & -1 << 10))[1]
    return exponents.astype(np.int64)


# --- tensors ---------------------------------------------------------------------------------


class Operand:
    """A tensor.

    Attributes:
        base: The tensor that owns the memory, if another does.
        tape: Counts the memory while this lives; None for a weight, an input, a tensor on the host,
            or a part of another.
    """

    __slots__ = ("base", "dtype", "n", "nbytes", "tape")

    def __init__(
        self, n: Size, dtype: Dtype, base: Operand | None = None, tape: Tape | None = None
    ) -> None:
        self.n, self.dtype, self.nbytes, self.base = n, dtype, n * dtype.nbytes, base
        self.tape = tape
        if tape is not None:
            tape.allocated(self.nbytes)

    def __del__(self) -> None:
        if self.tape is not None:
            self.tape.alive = self.tape.alive - self.nbytes


_NBYTES: Final = attrgetter("nbytes")


Description: TypeAlias = tuple[Any, ...]
"""Elements, type, whether the memory is its own, and base of a tensor; or a tuple of these."""


def described(output: Any) -> Description:
    """What `made` makes tensors like these from."""
    if isinstance(output, tuple):
        return tuple(map(described, output))
    base = output.base and described(output.base)
    return output.n, output.dtype, output.tape is not None, base


def made(t: Tape, description: Description) -> Any:
    """New tensors like those described."""
    if isinstance(description[0], tuple):
        return tuple(map(made, repeat(t), description))
    n, dtype, is_own, base = description
    return Operand(n, dtype, base and made(t, base), t if is_own else None)


def size_of(x: Any) -> Hashable:
    """A key that is equal for arguments that a forward cannot tell apart."""
    return (x.n, x.dtype) if isinstance(x, Operand) else x


# --- the tape --------------------------------------------------------------------------------

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")
Given = TypeVarTuple("Given")


class Tape:
    """Runs forwards, and notes what they run, need and hold.

    Args:
        dtype: Of weights and features.
        stages: Names of stages by the path at which each begins.
        stage: The stage of everything else.
        records: Whether to note more than memory.
        weights: Whether to note parameters.
        spans: What calls left on other tapes of this type.
        is_served: Whether attention and RMS norms are single kernels, as serving engines have them.

    Attributes:
        path: Of the running module.
        kernels: One record per operator, with the number of equal calls.
        calls: Path and stage of module calls, with the number of equal ones.
        weights: Path, name and elements of parameters, as often as they are used.
        savings: Multiply-accumulates that causal kernels may skip.
        alive: Bytes of all tensors alive.
        peak: The most bytes alive so far, and the module that first reached them.
    """

    def __init__(
        self,
        dtype: Dtype,
        stages: Mapping[str, str] | None = None,
        stage: str = "",
        *,
        records: bool = True,
        weights: bool = True,
        spans: Spans | None = None,
        is_served: bool = False,
    ) -> None:
        self.dtype, self.stage, self.path, self.is_served = dtype, stage, "", is_served
        self.kernels: list[Kernel] = []
        self.calls: list[tuple[str, str, Size]] = []
        self.weights: list[tuple[str, str, Size]] = []
        self.savings: list[Size] = []
        self.alive: Size = 0
        self.peak = Peak(0, "")
        self._stages = stages or {}
        self._times: Size = 1 if records else 0  # 0 for what is followed in memory alone
        self._has_weights = weights
        self._spans: Spans = {} if spans is None else spans

    # --- modules and repetition

    def call(
        self,
        name: str,
        forward: Callable[Concatenate[Tape, Inputs], Output],
        *inputs: Inputs.args,
        **options: Inputs.kwargs,
    ) -> Output:
        """Calls a child; like `torch.nn.Module`, holds its inputs until it returns."""
        path, stage = self.path, self.stage
        self.path = f"{path}.{name}".strip(".")
        self.stage = self._stages.get(self.path, stage)
        if self._times:
            self.calls.append((self.path, self.stage, self._times))
        output = forward(self, *inputs, **options)
        self.path, self.stage = path, stage
        return output

    def again(
        self,
        name: str,
        forward: Callable[Concatenate[Tape, Inputs], Output],
        *inputs: Inputs.args,
        **options: Inputs.kwargs,
    ) -> Output:
        """Like `call`, but copies the records of a call with the same forward, sizes and options.

        For forwards that only run operators and return new tensors.
        """
        path, now = f"{self.path}.{name}".strip("."), self._times
        stage = self._stages.get(path, self.stage)
        key = (forward, *map(size_of, inputs), *options.items())
        span = self._spans.get(key)
        if span is None or (now and not span[0]._times):
            t = type(self)(
                self.dtype, stage=stage, records=bool(now), weights=self._has_weights,
                spans=self._spans, is_served=self.is_served,
            )  # fmt: skip
            description = described(t.call(path, forward, *inputs, **options))
            t.check_nothing_is_left()
            t.path, t.kernels = path, [*merged(t.kernels)]  # fewer to copy
            span = self._spans[key] = t, description
        t, description = span
        old, most = len(t.path), self.alive + t.peak.nbytes
        if most > self.peak.nbytes:
            self.peak = Peak(most, path + t.peak.path[old:])
        if (path, stage, now) == (t.path, t.stage, 1):  # nothing differs, so these very records
            self.kernels += t.kernels
            self.calls += t.calls
            self.weights += t.weights
            self.savings += t.savings
        elif now:
            new = tuple.__new__  # as a named tuple's own, in half the time
            self.kernels += [
                new(Kernel, (kind, operator, shape, dtype, output, work, calls * now,
                             path + below[old:], stage))
                for kind, operator, shape, dtype, output, work, calls, below, _ in t.kernels
            ]  # fmt: skip
            self.calls += [(path + below[old:], stage, times * now) for below, _, times in t.calls]
            self.weights += [(path + below[old:], name, n) for below, name, n in t.weights]
            self.savings += [macs * now for macs in t.savings]
        outputs: Output = made(self, description)
        return outputs

    def each(
        self,
        name: str,
        start: Size,
        stop: Size,
        forward: Callable[[Tape, *Given], Operand],
        *inputs: *Given,
        least: int = 0,
        most: Size | None = None,
    ) -> list[Operand]:
        """Outputs of equal children `start` to below `stop`; `least` to `most` of them."""
        return [self.again(f"{name}.{i}", forward, *inputs) for i in range(start, stop)]

    def turns(self, count: Size) -> Iterator[Size]:
        """Equal turns: the first is noted for all; the last meets what others left alive.

        Yields how many are skipped before each.
        """
        times = self._times
        self._times = times * count
        if count:
            yield 0
        if count > 1:
            self._times = 0
            yield count - 2
        self._times = times

    def idle(
        self,
        name: str,
        forward: Callable[[Tape, *Given], Output],
        *inputs: *Given,
        indices: tuple[Size, Size] | None = None,
    ) -> None:
        """Declares the weights of a child that exists but is not called.

        With `indices`, of equal children from the first to below the second.
        """
        if self._times and self._has_weights:
            for child in [name] if indices is None else map(f"{name}.{{}}".format, range(*indices)):
                t = Tape(self.dtype)
                t.call(f"{self.path}.{child}".strip("."), forward, *inputs)
                self.weights += t.weights

    # --- memory

    def allocated(self, nbytes: Size) -> None:
        """Notes that a tensor of `nbytes` is alive."""
        self.alive += nbytes
        if self.alive > self.peak.nbytes:
            self.peak = Peak(self.alive, self.path)

    def check_nothing_is_left(self) -> None:
        """Raises RuntimeError if a tensor is alive."""
        if self.alive != 0:
            raise RuntimeError(
                f"{self.alive} bytes of tensors are still alive after a forward, so its peak is"
                " wrong: a debugger, profiler or tracer keeps Python's frames; run without it"
            )

    def empty(self, n: Size, dtype: Dtype) -> Operand:
        """A tensor that no operator of its own writes."""
        return Operand(n, dtype, tape=self)

    def view(self, x: Operand, n: Size) -> Operand:
        """n elements in the memory of `x`, some or expanded."""
        return Operand(n, x.dtype, x if x.tape else x.base)

    def host(self, n: Size, dtype: Dtype) -> Operand:
        """A tensor on the host, or an input of the model: no activation."""
        return Operand(n, dtype)

    input = host

    def weight(self, n: Size, name: str = "weight") -> Operand:
        """A parameter of the running module."""
        if self._times and self._has_weights:
            self.weights.append((self.path, name, n))
        return Operand(n, self.dtype)

    def hold(self, output: Output, *tensors: Operand | None) -> Output:
        """An output; marks names that the vendor's code keeps alive until it is there."""
        return output

    def derived(
        self,
        name: str,
        function: Callable[..., Size],
        *sizes: Size,
        least: int = 0,
        most: Size | None = None,
    ) -> Size:
        """A size that is no polynomial of others; formulas say `name`, with the sizes for `{}`.

        Without `most`, the function grows with each size.
        """
        return function(*sizes)

    def skippable(self, macs: Size) -> None:
        """Notes multiply-accumulates that a causal kernel may skip."""
        if self._times:
            self.savings.append(macs * self._times)

    # --- operators

    def record(
        self, kind: Kind, operator: str, shape: Dimensions, dtype: Dtype, output: Dtype, work: Work
    ) -> None:
        """Notes one operator at the running module."""
        if self._times:
            self.kernels.append(
                Kernel(kind, operator, shape, dtype.name, output.name, work, self._times,
                       self.path, self.stage)
            )  # fmt: skip

    def product(
        self, operator: str, gemm: Gemm, a: Operand, b: Operand, bias: Operand | None = None
    ) -> Operand:
        """Matrix products `[batch, m, k] x [batch, k, n]`, plus a bias."""
        n, dtype = gemm.batch * gemm.m * gemm.n, a.dtype
        flops, biases = (0, 0) if bias is None else (n, bias.nbytes)
        work = Work(n * gemm.k, flops, n, a.nbytes + b.nbytes + biases, n * dtype.nbytes)
        self.record("gemm", operator, gemm, dtype, dtype, work)
        return Operand(n, dtype, tape=self)

    def map(
        self,
        operator: str,
        *inputs: Operand,
        n: Size | None = None,
        flops: int = 1,
        output: Dtype | None = None,
        kind: Kind = "elementwise",
        into: Operand | None = None,
    ) -> Operand:
        """An elementwise operator of `flops` per output element, by default as the first input."""
        n = inputs[0].n if n is None else n
        dtype = inputs[0].dtype
        output = output or dtype
        work = Work(0, flops * n, 0, sum(map(_NBYTES, inputs)), n * output.nbytes)
        self.record(kind, operator, Elements(n), dtype, output, work)
        return into or Operand(n, output, tape=self)

    def reduce(
        self, operator: str, x: Operand, rows: Size, width: Size, dtype: Dtype | None = None
    ) -> Operand:
        """Reduces rows to one element each, by default as `x`: one FLOP per input element."""
        shape, output = Rows(rows, width), (rows, dtype or x.dtype)
        return self.rows("reduction", operator, x, shape, output, flops=x.n)[0]

    def rows(
        self,
        kind: Kind,
        operator: str,
        x: Operand,
        shape: Rows,
        *outputs: tuple[Size, Dtype],
        flops: Size,
    ) -> list[Operand]:
        """Softmax, sorting or top k: independent rows, several outputs."""
        written = sum(n * dtype.nbytes for n, dtype in outputs)
        work = Work(0, flops, 0, x.nbytes, written)
        self.record(kind, operator, shape, x.dtype, outputs[0][1], work)
        return list(starmap(partial(Operand, tape=self), outputs))

    def softmax(self, x: Operand, rows: Size, width: Size) -> Operand:
        """Softmax in fp32, 5 FLOPs per score, after a cast; fp16 has a fused one."""
        if x.dtype not in (FLOAT16, FLOAT32):
            x = self.cast(x, FLOAT32)
        shape, scores = Rows(rows, width), (x.n, FLOAT32)
        return self.rows("softmax", "softmax", x, shape, scores, flops=5 * x.n)[0]

    def move(
        self,
        operator: str,
        *inputs: Operand,
        n: Size | None = None,
        dtype: Dtype | None = None,
        read: Size | None = None,
        written: Size | None = None,
        into: Operand | None = None,
    ) -> Operand:
        """Moves the bytes of inputs and output, unless given; a range has no inputs."""
        n = inputs[0].n if n is None else n
        output = dtype or inputs[0].dtype
        source = inputs[0].dtype if inputs else output
        read = sum(map(_NBYTES, inputs)) if read is None else read
        written = n * output.nbytes if written is None else written
        self.record("movement", operator, Elements(n), source, output, Work(0, 0, 0, read, written))
        return into or Operand(n, output, tape=self)

    def cat(self, *inputs: Operand) -> Operand:
        """A concatenation."""
        return self.move("cat", *inputs, n=sum(map(attrgetter("n"), inputs)))

    def cast(self, x: Operand, dtype: Dtype) -> Operand:
        """`x` in a type; `x` itself if it has it."""
        return x if x.dtype == dtype else self.move("_to_copy", x, dtype=dtype)

    def gather(self, operator: str, index: Operand, n: Size, dtype: Dtype) -> Operand:
        """n elements of a table in whole rows, read by `index`."""
        return self.move(operator, n=n, dtype=dtype, read=n * dtype.nbytes + index.nbytes)


Spans: TypeAlias = dict[Hashable, tuple[Tape, Description]]
"""What calls left on tapes of their own, and their outputs."""


class ArrayTape(Tape):
    """A tape of integers and arrays that broadcast; every workload has its own peak."""

    again = Tape.call

    def allocated(self, nbytes: Size) -> None:
        """Notes that a tensor of `nbytes` is alive."""
        self.alive = self.alive + nbytes
        self.peak = Peak(maximum(self.peak.nbytes, self.alive), "")

    def each(
        self,
        name: str,
        start: Size,
        stop: Size,
        forward: Callable[[Tape, *Given], Operand],
        *inputs: *Given,
        **limits: Size,
    ) -> list[Operand]:
        """The memory of equal children: the last meets the outputs of the others."""
        count, t = stop - start, ArrayTape(self.dtype)
        output = forward(t, *inputs)
        last = (count - 1) * output.nbytes + t.peak.nbytes
        reached = self.alive + minimum(count, 1) * last
        self.peak = Peak(maximum(self.peak.nbytes, reached), "")
        return [self.empty(count * output.n, output.dtype)]
