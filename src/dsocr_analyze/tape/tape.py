"""A tape: a network's forward, written once as plain Python, yields all that it costs.

A forward is a function of a tape and of tensors, in the order of the vendor's code and with its
names. An operator is a method of the tape: it notes a kernel record at the module that is running
and returns its output. A tensor is a number of elements and a type; its memory is alive until
Python drops the last reference to it, so its lifetime is that of the names that refer to it, as in
PyTorch. Sizes are integers, or polynomials in the sizes of a workload (`polynomial.py`).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar, TypeVarTuple

from dsocr_analyze.dtypes import FLOAT16, FLOAT32, Dtype
from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import Dimensions, Elements, Gemm, Kernel, Kind, Rows, Work, merged

__all__ = [
    "Description",
    "Given",
    "Inputs",
    "Operand",
    "Output",
    "Size",
    "Span",
    "Spans",
    "Tape",
    "Tensor",
    "View",
    "ceil_div",
    "ceil_log2",
    "described",
    "key_of",
    "largest",
    "made",
    "maximum",
    "minimum",
]


if platform.python_implementation() != "CPython":
    raise ImportError("a tape needs CPython, which frees a tensor with its last reference")


# --- sizes -----------------------------------------------------------------------------------

Size: TypeAlias = Any
"""An integer, an array of integers or a `Polynomial`.

Spelled `Any` because all of them support the same operators.
"""


def maximum(a: Size, b: Size) -> Size:
    """The larger of both, element by element."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    import numpy as np

    return np.maximum(a, b)


def largest(counts: Size) -> int:
    """The largest of an integer array; the integer itself; 0 for an empty array."""
    if isinstance(counts, int):
        return counts
    return int(counts.max()) if len(counts) else 0


def minimum(a: Size, b: Size) -> Size:
    """The smaller of both, element by element."""
    return -maximum(-a, -b)


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
    # A float64's exponent counts bits; in two halves, since beyond 2^53 it would be rounded up.
    high, low = (n - 1) >> 32, (n - 1) & 0xFFFFFFFF
    exponents = np.where(high > 0, np.frexp(high)[1] + 32, np.frexp(low)[1])
    return exponents.astype(np.int64)


# --- tensors ---------------------------------------------------------------------------------


class Tensor:
    """A tensor that owns its memory, which is alive as long as this object.

    Attributes:
        n: Number of elements.
        dtype: Type of an element.
        nbytes: Bytes in memory.
    """

    __slots__ = ("dtype", "n", "nbytes", "tape")

    def __init__(self, tape: Tape, n: Size, dtype: Dtype) -> None:
        self.tape, self.n, self.dtype, self.nbytes = tape, n, dtype, n * dtype.nbytes
        tape.allocated(self.nbytes)

    def __del__(self) -> None:
        self.tape.freed(self.nbytes)


class View:
    """Elements in the memory of another tensor, a weight, an input or the host.

    Attributes:
        n: Number of elements.
        dtype: Type of an element.
        nbytes: Bytes of these elements.
        base: The tensor that owns the memory; None if the tape does not count it.
    """

    __slots__ = ("base", "dtype", "n", "nbytes")

    def __init__(self, n: Size, dtype: Dtype, base: Tensor | None = None) -> None:
        self.n, self.dtype, self.nbytes, self.base = n, dtype, n * dtype.nbytes, base


Operand: TypeAlias = "Tensor | View"

Description: TypeAlias = tuple[Any, ...]
"""Elements, type and, for a view, its base of a tensor; or of several, in tuples."""


def described(output: Any) -> Description:
    """What `made` needs to make tensors like these."""
    if isinstance(output, tuple):
        return tuple(map(described, output))
    if isinstance(output, View):
        return output.n, output.dtype, output.base and described(output.base)
    return output.n, output.dtype


def made(t: Tape, description: Description) -> Any:
    """New tensors like those described."""
    if isinstance(description[0], tuple):
        return tuple([made(t, each) for each in description])
    n, dtype, *base = description
    if not base:
        return Tensor(t, n, dtype)
    return View(n, dtype, base[0] and made(t, base[0]))


def key_of(
    forward: Callable[..., Any], inputs: Sequence[Any], options: Mapping[str, Any]
) -> tuple[Hashable, ...]:
    """Equal for equal calls: same forward, sizes and options."""
    sizes = tuple((x.n, x.dtype) if isinstance(x, Tensor | View) else x for x in inputs)
    return forward, sizes, *options.items()


Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")

Given = TypeVarTuple("Given")


class Span(NamedTuple):
    """What one call at `path` left on a tape of its own, and a description of its output."""

    tape: Tape
    path: str
    output: Description


Spans: TypeAlias = dict[Hashable, Span]
"""What calls left, by forward, sizes and options."""


class Tape:
    """Runs forwards, and notes what they run, what they need and what they hold.

    Args:
        dtype: Type of weights and features.
        stages: Name of the stage that begins at a module's path.
        stage: Name of the stage of everything else.
        records: Whether to note more than memory.
        spans: What calls left on other tapes of this type, for this one to copy and add to.

    Attributes:
        path: Path of the module whose forward is running.
        kernels: One record per operator, each with the number of equal calls it stands for.
        calls: Path and stage of every module call, and how many equal calls it stands for.
        weights: Module path, name and elements of every parameter, as often as it is used.
        savings: Multiply-accumulates that causal kernels may skip.
        alive: Bytes of all tensors alive.
    """

    def __init__(
        self,
        dtype: Dtype,
        stages: Mapping[str, str] | None = None,
        stage: str = "",
        *,
        records: bool = True,
        spans: Spans | None = None,
    ) -> None:
        self.dtype, self.stage, self.path = dtype, stage, ""
        self.kernels: list[Kernel] = []
        self.calls: list[tuple[str, str, Size]] = []
        self.weights: list[tuple[str, str, Size]] = []
        self.savings: list[Size] = []
        self.alive: Size = 0
        self._most: Size = 0
        self._most_at = ""
        self._stages = stages or {}
        self._times: Size = 1 if records else 0  # 0 for what is followed in memory alone
        self._is_idle = False  # is the module that runs one that only declares its weights?
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
        self._enter(name)
        if self._times and not self._is_idle:
            self.calls.append((self.path, self.stage, self._times))
        output = forward(self, *inputs, **options)
        self.path, self.stage = path, stage
        return output

    def _enter(self, name: str) -> None:
        self.path = f"{self.path}.{name}" if self.path and name else self.path or name
        self.stage = self._stages.get(self.path, self.stage)

    def again(
        self,
        name: str,
        forward: Callable[Concatenate[Tape, Inputs], Output],
        *inputs: Inputs.args,
        **options: Inputs.kwargs,
    ) -> Output:
        """Like `call`, but copies the records of an equal call: same forward, sizes and options.

        For forwards that do nothing but run operators and return new tensors.
        """
        path, stage = self.path, self.stage
        self._enter(name)
        span = self._span_of(forward, *inputs, **options)
        self._copy(span)
        self.path, self.stage = path, stage
        output: Output = made(self, span.output)
        return output

    def _span_of(
        self,
        forward: Callable[Concatenate[Tape, Inputs], Output],
        *inputs: Inputs.args,
        **options: Inputs.kwargs,
    ) -> Span:
        """What a call leaves at the module that is running, on a tape of its own."""
        key = (*key_of(forward, inputs, options), self._is_idle)
        span = self._spans.get(key)
        if span is None or (self._times and not span.tape._times):
            t = type(self)(
                self.dtype, stage=self.stage, records=bool(self._times), spans=self._spans
            )
            t._is_idle = self._is_idle
            output = described(t.call(self.path, forward, *inputs, **options))
            t.check_nothing_is_left()
            t.kernels[:] = merged(t.kernels)  # fewer to copy
            span = self._spans[key] = Span(t, self.path, output)
        return span

    def _copy(self, span: Span) -> None:
        """Copies what an equal call left, to the module that is running."""
        t, old, path, stage, now = span.tape, len(span.path), self.path, self.stage, self._times
        if not self._is_idle:
            self._reached(self.alive + t._most, path + t._most_at[old:])
        if not now:
            return
        if (path, stage, now) == (span.path, t.stage, 1):  # nothing differs, so these very records
            self.kernels += t.kernels
            self.calls += t.calls
            self.weights += t.weights
            self.savings += t.savings
            return
        new = tuple.__new__  # as a named tuple's own, in half the time
        self.kernels += [
            new(Kernel, (kind, operator, shape, dtype, output, work, calls * now,
                         path + below[old:], stage))
            for kind, operator, shape, dtype, output, work, calls, below, _ in t.kernels
        ]  # fmt: skip
        self.calls += [(path + below[old:], stage, times * now) for below, _, times in t.calls]
        self.weights += [(path + below[old:], name, n) for below, name, n in t.weights]
        self.savings += [macs * now for macs in t.savings]

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
        """Calls equal children, `name.start` to below `name.stop`; returns their outputs.

        `least` and `most` say how many there are, where their number is not known yet.
        """
        return [self.again(f"{name}.{i}", forward, *inputs) for i in range(start, stop)]

    def idle_each(
        self,
        name: str,
        start: Size,
        stop: Size,
        forward: Callable[[Tape, *Given], Operand],
        *inputs: *Given,
    ) -> None:
        """Declares the weights of equal children that exist but are not called."""
        before, self._is_idle = self._is_idle, True
        self.each(name, start, stop, forward, *inputs)
        self._is_idle = before

    def turns(self, count: Size) -> Iterator[Size]:
        """Equal turns: the first is noted for all; the last one meets what others left alive.

        Yields:
            How many turns are skipped before this one.
        """
        times = self._times
        self._times = times * count
        yield 0
        if count > 1:
            self._times = 0
            yield count - 2
        self._times = times

    def idle(self, name: str, forward: Callable[[Tape, *Given], Output], *inputs: *Given) -> None:
        """Declares the weights of a child that exists but is not called."""
        before, self._is_idle = self._is_idle, True
        self.call(name, forward, *inputs)
        self._is_idle = before

    # --- memory

    def allocated(self, nbytes: Size) -> None:
        """Notes that a tensor of `nbytes` is alive."""
        self.alive += nbytes
        if not self._is_idle:
            self._reached(self.alive, self.path)

    def freed(self, nbytes: Size) -> None:
        """Notes that a tensor of `nbytes` is gone."""
        self.alive -= nbytes

    def _reached(self, nbytes: Size, path: str) -> None:
        if nbytes > self._most:
            self._most, self._most_at = nbytes, path

    @property
    def peak(self) -> Peak:
        """The most bytes alive so far, and the module that first reached them."""
        return Peak(self._most, self._most_at)

    def check_nothing_is_left(self) -> None:
        """Raises RuntimeError unless every tensor is gone, as after a whole forward.

        A debugger or profiler that keeps frames keeps the tensors that they refer to.
        """
        if self.alive != 0:
            raise RuntimeError(
                f"{self.alive} bytes of tensors are still alive after a forward, so its peak is"
                " wrong: a debugger, profiler or tracer keeps Python's frames; run without it"
            )

    def empty(self, n: Size, dtype: Dtype) -> Operand:
        """A tensor that no operator of its own writes."""
        return Tensor(self, n, dtype)

    def view(self, x: Operand, n: Size) -> View:
        """n elements in the memory of `x`: some of them, or a tensor expanded without a copy."""
        return View(n, x.dtype, x.base if isinstance(x, View) else x)

    def input(self, n: Size, dtype: Dtype) -> View:
        """An input of the model, which is alive throughout and is no activation."""
        return View(n, dtype)

    def host(self, n: Size, dtype: Dtype) -> View:
        """A tensor in the host's memory."""
        return View(n, dtype)

    def weight(self, n: Size, name: str = "weight") -> View:
        """A parameter of the module that is running."""
        if self._times:
            self.weights.append((self.path, name, n))
        return View(n, self.dtype)

    def hold(self, *tensors: Operand | None) -> None:
        """Marks names that the vendor's code keeps up to here, and which therefore stay alive."""

    def derived(
        self,
        name: str,
        function: Callable[..., Size],
        *sizes: Size,
        least: int = 0,
        most: Size | None = None,
    ) -> Size:
        """A size that is no polynomial of others; formulas say `name`, with the sizes for `{}`.

        Without `most`, what it never exceeds, the function grows with each of the sizes.
        """
        return function(*sizes)

    def skippable(self, macs: Size) -> None:
        """Notes multiply-accumulates that a causal kernel may skip."""
        if self._times and not self._is_idle:
            self.savings.append(macs * self._times)

    # --- operators

    def record(
        self, kind: Kind, operator: str, shape: Dimensions, dtype: Dtype, output: Dtype, work: Work
    ) -> None:
        """Notes one operator at the module that is running."""
        if self._times and not self._is_idle:
            self.kernels.append(
                Kernel(kind, operator, shape, dtype.name, output.name, work, self._times,
                       self.path, self.stage)
            )  # fmt: skip

    def product(
        self, operator: str, gemm: Gemm, a: Operand, b: Operand, bias: View | None = None
    ) -> Operand:
        """Matrix products `[batch, m, k] x [batch, k, n]`, plus a bias, of what is in memory."""
        n, dtype = gemm.batch * gemm.m * gemm.n, a.dtype
        flops, biases = (0, 0) if bias is None else (n, bias.nbytes)
        work = Work(n * gemm.k, flops, n, a.nbytes + b.nbytes + biases, n * dtype.nbytes)
        self.record("gemm", operator, gemm, dtype, dtype, work)
        return Tensor(self, n, dtype)

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
        """Computes every output element independently, with `flops` for each.

        Number and type of elements are the first input's unless given; a new tensor, or `into` one.
        """
        n = inputs[0].n if n is None else n
        dtype = inputs[0].dtype
        output = output or dtype
        work = Work(0, flops * n, 0, sum(x.nbytes for x in inputs), n * output.nbytes)
        self.record(kind, operator, Elements(n), dtype, output, work)
        return into or Tensor(self, n, output)

    def reduce(self, operator: str, x: Operand, rows: Size, width: Size) -> Operand:
        """Reduces rows of `width` elements to one element each: one FLOP per input element."""
        work = Work(0, x.n, 0, x.nbytes, rows * x.dtype.nbytes)
        self.record("reduction", operator, Rows(rows, width), x.dtype, x.dtype, work)
        return Tensor(self, rows, x.dtype)

    def rows(
        self,
        kind: Kind,
        operator: str,
        x: Operand,
        shape: Rows,
        *outputs: tuple[Size, Dtype],
        flops: Size,
    ) -> list[Operand]:
        """Softmax, sorting, top k: independent rows, with several outputs."""
        written = sum(n * dtype.nbytes for n, dtype in outputs)
        work = Work(0, flops, 0, x.nbytes, written)
        self.record(kind, operator, shape, x.dtype, outputs[0][1], work)
        return [Tensor(self, n, dtype) for n, dtype in outputs]

    def softmax(self, x: Operand, rows: Size, width: Size) -> Operand:
        """Softmax in fp32: 5 FLOPs per score; a cast comes first, except for fp16's fused one."""
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
        """Moves bytes: those of inputs and output, unless given; elements as for `map`."""
        n = inputs[0].n if n is None else n
        output = dtype or inputs[0].dtype
        source = inputs[0].dtype if inputs else output
        read = sum(x.nbytes for x in inputs) if read is None else read
        written = n * output.nbytes if written is None else written
        self.record("movement", operator, Elements(n), source, output, Work(0, 0, 0, read, written))
        return into or Tensor(self, n, output)

    def clone(self, x: Operand, n: Size | None = None) -> Operand:
        """A contiguous copy of `x`, expanded to n elements if given."""
        return self.move("clone", x, n=n)

    def cat(self, *inputs: Operand) -> Operand:
        """A concatenation."""
        return self.move("cat", *inputs, n=sum(x.n for x in inputs))

    def cast(self, x: Operand, dtype: Dtype) -> Operand:
        """`x` in another type; `x` itself if it has that type."""
        return x if x.dtype == dtype else self.move("_to_copy", x, dtype=dtype)

    def fill(self, operator: str, n: Size, dtype: Dtype) -> Operand:
        """A range or a constant, which is only written."""
        return self.move(operator, n=n, dtype=dtype)

    def gather(self, operator: str, index: Operand, n: Size, dtype: Dtype) -> Operand:
        """n elements of a table in whole rows (`embedding`, `index`); reads those and `index`."""
        return self.move(operator, n=n, dtype=dtype, read=n * dtype.nbytes + index.nbytes)
