"""Kernels that pages run, each called on its own, and their seconds on this CPU."""

import hashlib
import itertools
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter, setitem
from typing import Final, NamedTuple, TypeAlias

import torch
from torch.nn import functional as F

from dsocr_analyze.interruption import safe_point
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.measuring.machine import give_back_memory
from dsocr_analyze.model.process_settings import Value
from dsocr_analyze.trace.passes import FunctionModule
from dsocr_analyze.trace.recorder import Recorder

_COLD_BYTES: Final = 300e6
"""Of weight copies that calls cycle through: in a pass, no weight is still cached."""
_MOST_MACS: Final = 20e9
"""Larger calls take the same time per MAC."""


Run: TypeAlias = Callable[[], Value]
"""Runs a kernel on tensors that it holds."""


class Sample(NamedTuple):
    """A kernel to measure."""

    group: str
    """Of nearly equal sizes, which are held out together."""
    call: Callable[[], Run]
    """Makes its tensors, which live as long as what it returns."""
    macs: int = 0
    """0 for what only moves bytes."""


Made: TypeAlias = Sample | Callable[[], list[Sample]]
"""A sample, or what makes several that share tensors."""


def all_samples(dtype: torch.dtype) -> list[Made]:
    """All samples in a data type, in a fixed order of which any first part has all kinds."""
    chance = random.Random(0)
    return _mixed([
        [*_products(dtype, chance)], [*_batched_products(dtype, chance)],
        [_attended(*sizes, dtype, is_masked=True) for sizes in _MASKED],
        [_attended(*sizes, dtype, is_masked=False) for sizes in _ATTENTION],
        [_convolved(*sizes, dtype) for sizes in _CONVOLUTIONS],
        *_elements(_operators(dtype), chance),
    ], chance)  # fmt: skip


def _mixed(kinds: list[list[Made]], chance: random.Random) -> list[Made]:
    """All kinds' samples, in an order of which any first part has each kind's first ones."""
    for samples in kinds:
        samples[1:] = chance.sample(samples[1:], len(samples) - 1)
    placed = [(place / len(each), made) for each in kinds for place, made in enumerate(each)]
    return [made for _, made in sorted(placed, key=itemgetter(0))]


def _filled(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers along the last dimension, repeated: to draw all takes long."""
    return torch.rand(shape[-1]).to(dtype).expand(shape).contiguous()


def _drawn(chance: random.Random, low: int, high: int) -> int:
    return round(math.exp(chance.uniform(math.log(low), math.log(high))))


# --- products --------------------------------------------------------------------------------

_WIDTHS: Final = (
    (768, 768), (2304, 768), (3072, 768), (768, 3072),  # SAM
    (1024, 1024), (3072, 1024), (4096, 1024), (1024, 4096),  # CLIP
    (1280, 1280), (896, 1280), (1280, 896), (1792, 1280), (6848, 1280), (1280, 6848),  # decoder
    (64, 1280), (1280, 2048),  # router, projector
    (896, 896), (128, 896), (4864, 896), (896, 4864),  # the encoder of DeepSeek-OCR-2
)  # fmt: skip
"""Columns and inner sizes of published layers."""
_ROWS: Final = (1, 1, 2, 3, 6, 12, 28, 57, 84, 130, 257, 420, 785, 1100, 2048, 4096)


def _products(dtype: torch.dtype, chance: random.Random) -> Iterator[Made]:
    for n, k in _WIDTHS:
        rows = [m if m < 3 else _drawn(chance, round(0.75 * m), round(1.3 * m)) for m in _ROWS]
        yield partial(_products_of, rows, n, k, dtype)
    yield partial(_products_of, [1, 1, 1, 2, 30, 270], 129_280, 1280, dtype)  # the output head
    for _ in range(16):
        n, k = _drawn(chance, 64, 8192), _drawn(chance, 64, 8192)
        rows = [1, *(_drawn(chance, 2, _ROWS[-1]) for _ in range(3))]
        yield partial(_products_of, rows, n, k, dtype)


def _products_of(rows: Iterable[int], n: int, k: int, dtype: torch.dtype) -> list[Sample]:
    copies = min(64, math.ceil(_COLD_BYTES / (n * k * dtype.itemsize)))
    weights = itertools.cycle([_filled(n, k, dtype=dtype) for _ in range(copies)])
    return [_product(m, weights, n, k, dtype) for m in rows if m * n * k <= _MOST_MACS]


def _product(m: int, weights: Iterator[torch.Tensor], n: int, k: int, dtype: torch.dtype) -> Sample:
    def call() -> Run:
        x = _filled(m, k, dtype=dtype)
        return lambda: F.linear(x, next(weights))

    return Sample(f"product {round(2 * math.log2(m))} {n} {k}", call, m * n * k)


def _batched_products(dtype: torch.dtype, chance: random.Random) -> Iterator[Made]:
    for _ in range(24):  # eager attention over a prompt
        T, heads = _drawn(chance, 40, 1600), chance.choice([1, 5, 10])
        yield _batched(heads, T, T, 128, dtype)
        yield _batched(heads, T, 128, T, dtype)
    for _ in range(12):  # and over a cache
        K, heads = _drawn(chance, 40, 3000), 10
        yield _batched(heads, 1, K, 128, dtype)
        yield _batched(heads, 1, 128, K, dtype)
    for _ in range(12):  # SAM's relative positions: few columns
        windows = _drawn(chance, 4, 300)
        yield _batched(14, windows * 14, 14, 64, dtype)
        yield _batched(64, windows * 8, 64, 64, dtype)


def _batched(batch: int, m: int, n: int, k: int, dtype: torch.dtype) -> Sample:
    return Sample(
        f"batched {round(math.log2(m))} {round(math.log2(n))} {round(math.log2(k))}",
        lambda: partial(
            torch.matmul, _filled(batch, m, k, dtype=dtype), _filled(batch, k, n, dtype=dtype)
        ),
        batch * m * n * k,
    )


# --- attention and convolutions --------------------------------------------------------------


_MASKED: Final = (
    *((batch, 12, 196) for batch in (4, 9, 25, 50)),
    *((1, 12, side**2) for side in (16, 24, 32, 40, 52, 64)),
)
"""Batch, heads and tokens of SAM's windows and global attention."""
_ATTENTION: Final = tuple(
    (batch, 16, tokens)
    for batch, tokens in ((1, 65), (1, 101), (2, 101), (6, 101), (1, 197), (1, 257), (4, 257),
                          (1, 401), (1, 800), (1, 1300))
)  # fmt: skip


def _attended(
    batch: int, heads: int, tokens: int, dtype: torch.dtype, *, is_masked: bool
) -> Sample:
    def call() -> Run:
        q, k, v = (_filled(batch, heads, tokens, 64, dtype=dtype) for _ in range(3))
        bias = _filled(batch, heads, tokens, tokens, dtype=dtype) if is_masked else None
        return partial(F.scaled_dot_product_attention, q, k, v, attn_mask=bias)

    return Sample(
        f"attention {is_masked} {batch} {tokens}", call, 2 * batch * heads * tokens**2 * 64
    )


_LAYERS: Final = ((768, 256, 1, 1, 16), (3, 768, 16, 16, 1), (256, 256, 3, 1, 16),
                  (256, 512, 3, 2, 16), (512, 1024, 3, 2, 32))  # fmt: skip
"""Input and output channels, kernel size, stride, and pixels per input position."""
_CONVOLUTIONS: Final = (
    *((images, inputs, side // scale, outputs, size, step)
      for images, side in ((1, 512), (1, 640), (1, 896), (1, 1024), (4, 640), (2, 512))
      for inputs, outputs, size, step, scale in _LAYERS),
    *((images, 3, 224, 1024, 14, 14) for images in (1, 4)),
)  # fmt: skip
"""Images, input channels, side, output channels, kernel size, stride."""


def _convolved(
    images: int, inputs: int, pixels: int, outputs: int, size: int, step: int, dtype: torch.dtype
) -> Sample:
    return Sample(
        f"convolution {images, inputs, pixels} {size}",
        lambda: partial(
            F.conv2d, _filled(images, inputs, pixels, pixels, dtype=dtype),
            _filled(outputs, inputs, size, size, dtype=dtype), stride=step,
            padding=1 if size == 3 else 0,
        ),
        images * (pixels // step) ** 2 * inputs * outputs * size**2,
    )  # fmt: skip


# --- everything else -------------------------------------------------------------------------

_SIZES: Final = (1_300, 5_000, 20_000, 80_000, 250_000, 800_000, 2_500_000, 6_000_000, 20_000_000)
"""Elements per tensor, roughly."""


Tensors: TypeAlias = Callable[[int], Sequence[torch.Tensor]]
"""Makes an operator's tensors, of so many rows of 1280 elements."""
Operators: TypeAlias = dict[str, tuple[Tensors, Callable[..., Value]]]


def _elements(operators: Operators, chance: random.Random) -> Iterator[list[Made]]:
    for name, (tensors, operator) in operators.items():
        rows = [_drawn(chance, round(0.6 * size), round(1.6 * size)) // 1280 for size in _SIZES]
        yield [_operated(name, tensors, operator, max(1, each)) for each in rows]


def _operated(name: str, tensors: Tensors, operator: Callable[..., Value], rows: int) -> Sample:
    return Sample(f"{name} {rows}", lambda: partial(operator, *tensors(rows)))


def _operators(dtype: torch.dtype) -> Operators:
    def whole(*rows: int) -> list[torch.Tensor]:
        return [_filled(each, 1280, dtype=dtype) for each in rows]

    def two(rows: int) -> list[torch.Tensor]:
        return whole(rows, rows)

    def with_row(rows: int) -> list[torch.Tensor]:
        return whole(rows, 1)

    def with_weight(rows: int) -> list[torch.Tensor]:
        return [*whole(rows), torch.ones(1280, dtype=dtype)]

    wide = torch.float32
    other = wide if dtype != wide else torch.bfloat16
    return {
        "add": (two, torch.add), "add of a row": (with_row, torch.add),
        "sub": (two, torch.sub), "sub of a row": (with_row, torch.sub),
        "mul": (two, torch.mul), "mul of a row": (with_row, torch.mul),
        "div": (two, torch.div), "div of a row": (with_row, torch.div),
        "neg": (whole, torch.neg), "sigmoid": (whole, torch.sigmoid), "gelu": (whole, F.gelu),
        "silu": (whole, F.silu), "cos": (whole, torch.cos), "sin": (whole, torch.sin),
        "sqrt": (whole, torch.sqrt), "rsqrt": (whole, torch.rsqrt),
        "pow": (whole, lambda x: x.pow(2)), "mul by a number": (whole, lambda x: x * 1.702),
        "mean": (whole, lambda x: x.mean(-1, keepdim=True)), "sum": (whole, lambda x: x.sum(-1)),
        "softmax": (whole, lambda x: F.softmax(x, dim=-1, dtype=wide)),
        "native_layer_norm": (with_weight, lambda x, w: F.layer_norm(x, (1280,), w, w, 1e-6)),
        "_to_copy": (whole, lambda x: x.to(other)),
        "topk": (whole, lambda x: torch.topk(x, 6, dim=-1)),
        "sort": (whole, lambda x: x.view(-1)[: 6 * len(x)].argsort()),
        "masked_fill": (whole, lambda x: x.masked_fill(x > 0, 0.0)),
        "clone of heads": (
            lambda rows: [each.view(rows, 10, 128).transpose(0, 1) for each in whole(rows)],
            torch.Tensor.contiguous,
        ),
        "clone of windows": (
            lambda rows: [
                torch.zeros(1, 14, max(1, rows // 14), 14, 92, dtype=dtype).permute(0, 2, 1, 3, 4)
            ],
            torch.Tensor.contiguous,
        ),
        "cat": (with_row, lambda x, row: torch.cat((x, row))),
        "index": (
            lambda rows: [*whole(rows), torch.randint(rows, (rows,))], lambda x, places: x[places],
        ),
        "index_put": (
            lambda rows: [*whole(rows), torch.randperm(rows), *whole(rows)], setitem,
        ),
        "embedding": (
            lambda rows: [
                torch.randint(20_000, (rows,)), torch.zeros(20_000, 1280, dtype=dtype)
            ],
            F.embedding,
        ),
        "constant_pad_nd": (
            lambda rows: [torch.zeros(1, *[max(1, math.isqrt(rows))] * 2, 1280, dtype=dtype)],
            lambda x: F.pad(x, (0, 0, 0, 6, 0, 6)),
        ),
    }  # fmt: skip


# --- measuring them --------------------------------------------------------------------------


_KEPT: Final = 3
"""Outputs kept alive: as in a pass, the next is written elsewhere."""
_CALLS: Final = 20
"""Fewest calls, and groups, that the time has to suffice for."""
_LEAST_MACS: Final = 3e8
"""Smaller calls are made however slow they are."""
_HELD_OUT: Final = 64
"""Groups out of 256."""


class MeasuredKernel(NamedTuple):
    """A kernel record and how long it took."""

    kernel: Kernel
    seconds: float
    """Per call."""
    is_held_out: bool
    calls_in_pass: int = 0
    """0 if it ran alone."""


class KernelsAlone:
    """Measures samples of a data type that are single kernels."""

    def __init__(self, dtype: torch.dtype, samples: list[Made]) -> None:
        self._dtype, self._made = dtype, samples
        self._fastest: dict[tuple[int, int], MeasuredKernel | None] = {}

    def kernels(self) -> list[MeasuredKernel]:
        """The fastest turn of each sample so far."""
        return [each for each in self._fastest.values() if each]

    def run(self, deadline: float, on_progress: Callable[[str], None]) -> None:
        """Measure the samples once, until a time of the monotonic clock.

        Those that would take too much of the time are left out.
        """
        seconds = deadline - time.monotonic()
        most_macs = max(_LEAST_MACS, _macs_per_second(self._dtype) * seconds / _CALLS)
        count = len(self._made)
        for number, made in enumerate(self._made):
            began = time.monotonic()
            if began >= deadline:
                return
            on_progress(f"kernels alone, {number + 1} of {count}")
            give_back_memory()  # of other sizes: kept, it would grow with every sample
            stop = min(deadline, began + seconds / _CALLS)
            samples = [*enumerate([made] if isinstance(made, Sample) else made())]
            random.Random(number).shuffle(samples)  # as there may be no time for the last ones
            for place, sample in samples:
                if sample.macs <= most_macs:
                    self._measure((number, place), sample, seconds / (4 * count), stop)
                    if time.monotonic() >= stop:  # but for one, however long its tensors take
                        break

    def _measure(self, key: tuple[int, int], sample: Sample, budget: float, stop: float) -> None:
        safe_point()
        call = sample.call()
        before = self._fastest[key] if key in self._fastest else _unmeasured(call, sample.group)
        self._fastest[key] = before and before._replace(
            seconds=min(before.seconds, call_seconds(call, budget, stop))
        )


def _macs_per_second(dtype: torch.dtype) -> float:
    """Of a product of a middle size."""
    rows, weights = torch.ones(64, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
    return rows.numel() * 1024 / call_seconds(lambda: F.linear(rows, weights), 0.05, math.inf)


def _unmeasured(call: Run, group: str) -> MeasuredKernel | None:
    """Of a call that is a single kernel."""
    module = FunctionModule(call)
    recorder = Recorder(module)
    with torch.no_grad(), recorder:
        trace = recorder.begin()
        module()
    kernels = trace.kernels
    if len(kernels) != 1 or kernels[0].calls != 1:
        return None
    is_held_out = hashlib.sha256(group.encode()).digest()[0] < _HELD_OUT
    return MeasuredKernel(kernels[0]._replace(path="", stage=""), math.inf, is_held_out)


def call_seconds(run: Run, budget: float, stop: float) -> float:
    """The lower quartile of some calls within a budget of seconds; of one after `stop`."""
    found: list[float] = []
    with torch.no_grad():
        kept = deque([run()], _KEPT)
        began = time.perf_counter()
        while not found or (
            time.monotonic() < stop
            and (len(found) < 2 or (time.perf_counter() - began < budget and len(found) < 200))
        ):
            start = time.perf_counter()
            output = run()
            found.append(time.perf_counter() - start)
            kept.append(output)
    return sorted(found)[len(found) // 4]
