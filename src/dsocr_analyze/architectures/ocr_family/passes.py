"""The passes of a model, run on tapes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from dsocr_analyze.architectures.architecture import Stage, owner_among
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.dimensions import RelativeDimensions
from dsocr_analyze.architectures.ocr_family.network import Network
from dsocr_analyze.architectures.ocr_family.page import whole_model
from dsocr_analyze.architectures.ocr_family.stages import DECODE, PREFILL
from dsocr_analyze.dtypes import BFLOAT16, Dtype
from dsocr_analyze.figures import Parameters, Peak
from dsocr_analyze.kernels import Work
from dsocr_analyze.tape import Size, Tape, View
from dsocr_analyze.tape.polynomial import Polynomial
from dsocr_analyze.tape.symbolic import SymbolicTape
from dsocr_analyze.tape.tape import Given, Operand, Spans
from dsocr_analyze.workload import ViewBatch, Workload

__all__ = [
    "Held",
    "OwnedParams",
    "ViewSizes",
    "model_params",
    "owned_params",
    "page_with",
    "prefill",
    "step",
    "work_of_step",
]


_MOST_SPANS: Final = 256
"""Calls that are remembered, each with up to some hundred records."""


class Held(NamedTuple):
    """What a prefill pass holds: its peak, and the bytes of keys and values that it leaves."""

    peak: Peak
    cache_bytes: int


def prefill(
    network: Network,
    c: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    *,
    flash: bool,
    records: bool = True,
) -> tuple[Tape, Held]:
    """The prefill pass: its tape, with records and weights unless left out, and its memory.

    Raises:
        RuntimeError: Something kept tensors alive, such as a debugger.
    """
    is_traced = sys.gettrace() is not None

    def run(*, records: bool) -> tuple[Tape, Held]:
        spans = {} if is_traced else _spans(network, c, dtype)
        if len(spans) > _MOST_SPANS:
            spans.clear()
        t = Tape(dtype, network.begins, PREFILL.name, records=records, spans=spans)
        p = Pass(workload.batch_size, workload.seq_len, flash=flash)
        cache = whole_model(t, network, c, p, workload)
        cache_bytes = sum(keys.nbytes + values.nbytes for keys, values, *_ in cache)
        del cache
        t.check_nothing_is_left()
        return t, Held(t.peak, cache_bytes)

    tape, held = run(records=records)
    if is_traced and held != _untraced(lambda: run(records=False)[1]):
        # Before Python 3.13, variables that a tracer has looked at live on for a while.
        raise RuntimeError(
            f"the peak of {held.peak.nbytes} bytes is wrong: a debugger or tracer keeps tensors"
            " alive; run without it"
        )
    return tape, held


@lru_cache(maxsize=16)
def _spans(network: Network, c: RelativeDimensions, dtype: Dtype) -> Spans:
    """What modules have left on earlier tapes: pages with the same views run the same encoders."""
    return {}


def _untraced(run: Callable[[], Held]) -> Held:
    """What `run` returns in a thread of its own, which no tracer of this one sees."""
    found: list[Held] = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0]


class _StepTape(Tape):
    """A tape that notes no weights: a step has those of the prefill pass."""

    def weight(self, n: Size, name: str = "weight") -> View:
        """A parameter of the module that is running."""
        return View(n, self.dtype)

    def idle_each(
        self,
        name: str,
        start: Size,
        stop: Size,
        forward: Callable[[Tape, *Given], Operand],
        *inputs: *Given,
    ) -> None:
        """Nothing."""


def step(network: Network, c: RelativeDimensions, p: Pass, dtype: Dtype) -> Tape:
    """A decode step: its records and calls."""
    t = _StepTape(dtype, stage=DECODE.name)
    whole_model(t, network, c, p, None)
    t.check_nothing_is_left()
    return t


def work_of_step(network: Network, c: RelativeDimensions, p: Pass, dtype: Dtype) -> Work:
    """Work of a decode step, without its records."""
    t = SymbolicTape(dtype, levels=False)
    whole_model(t, network, c, p, None)
    t.check_nothing_is_left()
    return Work(*(Polynomial.of(count).terms.get((), 0) for count in t.work("")))


ViewSizes: TypeAlias = tuple[int, int, int, int, int]
"""Pixels per side of the blank patch, of the global view and of local views; their grid."""


def page_with(network: Network, sizes: ViewSizes) -> Workload:
    """A page with these views."""
    base, whole, local, columns, rows = sizes
    is_cut = columns * rows > 1
    seen = ViewBatch(1, whole)
    image_size = local if is_cut else whole
    return Workload(
        page=(1, 1),
        base_size=base,
        image_size=image_size,
        crop_mode=is_cut,
        grid=(columns, rows),
        views=(ViewBatch(columns * rows, local), seen) if is_cut else (seen,),
        visual_tokens=network.visual_tokens(whole, image_size, is_cut, (columns, rows)),
        text_tokens=1,
        batch_size=1,
        max_new_tokens=1,
    )


class OwnedParams(NamedTuple):
    """Parameters of a model by the stage that owns them, and as a whole."""

    by_stage: Mapping[str, int]
    whole: Parameters


@lru_cache
def owned_params(network: Network, c: RelativeDimensions) -> OwnedParams:
    """The parameters that a prefill pass of any page declares."""
    page = page_with(network, (*3 * (network.base_size,), 1, 1))
    t, _ = prefill(network, c, page, BFLOAT16, flash=False)
    # No prefix is longer than this, so modules that begin alike have one owner.
    depth = max(prefix.count(".") + 1 for stage in network.stages for prefix in stage.prefixes)
    by_stage = dict.fromkeys((stage.name for stage in network.stages), 0)
    unassigned: dict[str, int] = {}
    owners: dict[tuple[str, ...], Stage | None] = {}
    for path, name, n in dict.fromkeys(t.weights):
        begin = tuple(path.split(".", depth)[:depth])
        if begin not in owners:
            owners[begin] = owner_among(network.stages, ".".join(begin))
        stage = owners[begin]
        if stage is None:
            unassigned[f"{path}.{name}"] = n
        else:
            by_stage[stage.name] += n
    total = sum(by_stage.values()) + sum(unassigned.values())
    return OwnedParams(by_stage, Parameters(total, unassigned))


def model_params(network: Network, c: RelativeDimensions) -> int:
    """Parameters of the whole model."""
    return owned_params(network, c).whole.total
