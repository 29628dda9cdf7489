"""A case of a page: one call of its module, on a tape and in a trace, which must agree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dsocr_analyze.architectures.ocr_family.named_sizes import Part
from dsocr_analyze.errors import DocumentError
from dsocr_analyze.kernels import NO_WORK, Kind, Work, total_work
from dsocr_analyze.tape.example import value_of
from dsocr_analyze.tape.formula import ModuleCall
from dsocr_analyze.tape.notation import conditions, written
from dsocr_analyze.tape.polynomial import Size
from dsocr_analyze.trace.record import TracedCall

__all__ = ["Case"]


@dataclass(frozen=True)
class Case:
    """One call of a module.

    Attributes:
        label: What it is called in tables.
        part: The part of the model, with the names of its sizes.
        taped: The call on a tape.
        taped_params: Parameters of the module, as a tape of all that it calls declares them.
        traced: The call in a trace.
        params: Parameters of the module, as the trace's model has them.
    """

    label: str
    part: Part
    taped: ModuleCall
    taped_params: Size
    traced: TracedCall
    params: int

    @cached_property
    def work(self) -> Work:
        """Work of the call."""
        return total_work(self.operators.values())

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive during the call, beyond those alive before it."""
        return self.traced.peak_bytes

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values in the cache afterwards; 0 without one."""
        return self.traced.cache_bytes

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of its operators, in the order in which they first run."""
        return tuple(dict.fromkeys(kernel.kind for kernel in self.traced.kernels))

    @cached_property
    def formulas(self) -> dict[str, str]:
        """Its formulas as text, by what they say."""
        work, call = self.taped.work, self.taped
        sizes: dict[str, Size] = {
            "MACs": work.macs,
            "vector FLOPs": work.vector_flops,
            "parameters": self.taped_params,
            "activations": work.activations,
            "cache bytes": call.cache_bytes,
            "peak bytes": call.peak_bytes,
        }
        return {name: written(size, self.part.relations) for name, size in sizes.items()}

    @property
    def conditions(self) -> str:
        """What must hold for the formulas, as text; empty if they always hold."""
        asked = self.taped.asked
        return ", ".join(f"`{each}`" for each in conditions(asked, self.part.relations))

    @cached_property
    def operators(self) -> dict[str, Work]:
        """Work of all calls of each operator, as traced."""
        works: dict[str, list[Work]] = {}
        for kernel in self.traced.kernels:
            works.setdefault(kernel.operator, []).append(kernel.total)
        return {operator: total_work(each) for operator, each in works.items()}

    def check(self, page: str) -> None:
        """Raises DocumentError unless the tape and the trace say the same of every figure."""
        taped = {
            "parameters": self.taped_params,
            "peak bytes": self.taped.peak_bytes,
            "cache bytes": self.taped.cache_bytes,
        }
        traced = {
            "parameters": self.params,
            "peak bytes": self.peak_bytes,
            "cache bytes": self.cache_bytes,
        }
        for name in {**self.operators, **self.taped.operators}:
            ours, theirs = (
                self.taped.operators.get(name, NO_WORK),
                self.operators.get(name, NO_WORK),
            )
            taped |= {f"{count} of {name}": size for count, size in ours._asdict().items()}
            traced |= {f"{count} of {name}": size for count, size in theirs._asdict().items()}
        for name, size in taped.items():
            if value_of(size) != traced[name]:
                raise DocumentError(
                    f"{page} ({self.label}): {name} are {value_of(size):,} on the tape,"
                    f" {traced[name]:,} in the trace"
                )
