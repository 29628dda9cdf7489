"""Whole passes on a tape, and every piece of memory on the way. No torch."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from drawn_passes import Case

from dsocr_analyze.architectures.ocr_family import attention, closed_forms
from dsocr_analyze.architectures.ocr_family.family_member import DECODE, PREFILL
from dsocr_analyze.kernels import merged
from dsocr_analyze.tape import Tape


class Level(NamedTuple):
    """A piece of memory."""

    path: str
    operator: str
    nbytes: int


class WholeTape(Tape):
    """Runs every call and every turn, and notes every piece of memory."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.levels: list[Level] = []
        self._operator = ""

    again = Tape.call

    def turns(self, count: Any) -> Iterator[Any]:
        for _ in range(count):
            yield 0

    def record(self, kind: Any, operator: str, *rest: Any) -> None:
        super().record(kind, operator, *rest)
        self._operator = operator

    def empty(self, n: Any, dtype: Any) -> Any:
        self._operator = "empty"
        return super().empty(n, dtype)

    def allocated(self, nbytes: Any) -> None:
        super().allocated(nbytes)
        if nbytes:
            self.levels.append(Level(self.path, self._operator, self.alive))


def pass_of_prefill(case: Case) -> attention.Pass:
    w = case.workload
    return attention.Pass(w.batch_size, w.seq_len, flash=case.flash)


def pass_of_step(case: Case, number: int) -> attention.Pass:
    return closed_forms._pass_of_step(case.dimensions, case.workload, number, flash=case.flash)


class Taped(NamedTuple):
    """A pass on a tape, and the bytes of the cache that it leaves."""

    tape: Tape
    cache_bytes: int


def taped(case: Case, number: int | None = None, kind: Callable[..., Tape] = WholeTape) -> Taped:
    """The prefill pass, or the decode step of a number."""
    model = case.arch
    if number is None:
        tape, p = kind(case.dtype, model.begins, PREFILL.name), pass_of_prefill(case)
    else:
        tape, p = kind(case.dtype, stage=DECODE.name), pass_of_step(case, number)
    page = case.workload if number is None else None
    cache = tape.call("", model.whole_model, case.dimensions, p, page)
    nbytes = sum(keys.nbytes + values.nbytes for keys, values, *_ in cache)
    del cache
    tape.check_nothing_is_left()
    return Taped(tape, nbytes)


def noted(pass_: Taped) -> dict[str, Any]:
    """What a tape says of a pass, apart from the order of its steps."""
    tape = pass_.tape
    calls: Counter[str] = Counter()
    for path, _, times in tape.calls:
        calls[path] += times
    return {
        "records": Counter({each: each.calls for each in merged(tape.kernels)}),
        "calls": calls,
        "weights": {f"{path}.{name}": n for path, name, n in tape.weights},
        "savings": sum(tape.savings),
        "cache": pass_.cache_bytes,
        "peak": tape.peak,
    }
