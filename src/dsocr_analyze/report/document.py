"""The typed document that all outputs are made from; its docstrings go into `schema.json`.

Every key is present, null if unknown. Counts are exact integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, field, structs

from dsocr_analyze import kernels
from dsocr_analyze.agreement import Agreement
from dsocr_analyze.errors import FormatError
from dsocr_analyze.extras import require_extra
from dsocr_analyze.figures import (
    Count,
    Counts,
    OperatorLedger,
    PageFigures,
    Provenance,
    Share,
    StageFigures,
    counts_of,
)
from dsocr_analyze.kernels import NO_WORK
from dsocr_analyze.report.opening import (
    CONVENTIONS,
    SCHEMA_VERSION,
    Positive,
    Workload,
    workload_document,
)
from dsocr_analyze.report.table import counted
from dsocr_analyze.timing import TimeEntry
from dsocr_analyze.workload import PageWorkload

if TYPE_CHECKING:
    import pandas as pd

Grouping = Literal["stage", "module", "operator"]
FamilyName = Annotated[str, Meta(extra_json_schema={"enum": list(kernels.KINDS)})]
"""Later releases may add kinds, so a report is read with any name."""

# --- work --------------------------------------------------------------------------------------


class CountsWithIntensity(Counts, frozen=True, kw_only=True):
    """Counts and their arithmetic intensity.

    Attributes:
        arithmetic_intensity: FLOPs per byte read or written; null if no bytes move.
    """

    arithmetic_intensity: Share | None


class DecodeStep(CountsWithIntensity, frozen=True, kw_only=True):
    """Work of one decode step of the batch.

    Attributes:
        cached_tokens: Tokens in each page's KV cache before the step.
    """

    cached_tokens: Count


class Batch(CountsWithIntensity, frozen=True, kw_only=True):
    """Work of the batch: the prefill pass and all decode steps.

    Attributes:
        max_new_tokens: Tokens generated per page, the first by the prefill pass.
        decode_steps: max_new_tokens - 1, or 0 if the model does not decode.
    """

    max_new_tokens: Count
    decode_steps: Count


class PageShare(Struct, frozen=True, kw_only=True):
    """One page's equal share of the batch: its counts over the number of pages.

    Attributes:
        pages: Pages in the batch.
        macs: Multiply-accumulates of matrix operators.
        matrix_flops: FLOPs of matrix operators.
        vector_flops: FLOPs of other operators.
        flops: All FLOPs.
        activations: Output elements of matrix operators.
        bytes_read: Bytes of all inputs.
        bytes_written: Bytes of all outputs.
        arithmetic_intensity: FLOPs per byte of the batch; null if no bytes move.
    """

    pages: Positive
    macs: Share
    matrix_flops: Share
    vector_flops: Share
    flops: Share
    activations: Share
    bytes_read: Share
    bytes_written: Share
    arithmetic_intensity: Share | None

    @property
    def bytes_moved(self) -> float:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written


class Total(CountsWithIntensity, frozen=True, kw_only=True):
    """The whole model; its own counts are those of the prefill pass.

    Attributes:
        params: All parameters.
        causal_savable_flops: Matrix FLOPs of the prefill pass that a causal kernel may skip.
        decode_step: One step over a cache of seq_len tokens; null without decoding.
        batch: The whole batch.
        page: One page's share of the batch.
    """

    params: Count
    causal_savable_flops: Count
    decode_step: DecodeStep | None
    batch: Batch
    page: PageShare


class Module(Counts, frozen=True, kw_only=True):
    """One module within a stage; its counts include its children's.

    Attributes:
        class_name: Its class; null if no model was built.
        calls: Number of calls, 0 for a container; null if unknown.
        params: Parameters at or below it; null if no model was built.
        own: Counts of its own forward alone.
    """

    class_name: str | None = field(name="class")
    calls: Count | None
    params: Count | None
    own: Counts

    def row(self, path: str) -> dict[str, Any]:
        """Its row in a table of modules."""
        counts = Counts.__struct_fields__
        return {
            "module": path,
            "class": self.class_name,
            **{key: getattr(self, key) for key in ("calls", "params", *counts)},
            **{f"own_{key}": getattr(self.own, key) for key in counts},
        }


class Family(Struct, frozen=True, kw_only=True):
    """All operators of one kind within a stage.

    Attributes:
        operators: Names, costliest first.
        flops: Their FLOPs.
        bytes: Bytes they read and write.
    """

    operators: tuple[str, ...]
    flops: Count
    bytes: Count


class ExpertsTouched(Struct, frozen=True, kw_only=True):
    """Routed experts that a stage's tokens touch, per layer with experts.

    Attributes:
        even: If tokens spread evenly: an upper bound.
        expected: If tokens choose uniformly and independently: E (1 - (1 - k/E)^tokens).
        counted: Experts in bytes_read: even, or a checkpoint's routing, as a mean over layers.
    """

    even: Count
    expected: Share
    counted: Share


class Stage(CountsWithIntensity, frozen=True, kw_only=True):
    """A part of the prefill pass, or one decode step.

    Attributes:
        params: Parameters it owns.
        calls: Calls of its outermost module.
        causal_savable_flops: Matrix FLOPs that a causal kernel may skip.
        experts_touched: Routed experts that its tokens touch; null without any.
        bytes_read_expected: bytes_read with experts_touched.expected experts per layer; null
            without experts_touched.
        operators: FLOPs by operator, costliest first.
        operator_bytes: Bytes read and written by operator; null in earlier reports.
        operator_calls: Calls by operator; null in earlier reports.
        operator_families: Operators by kind, costliest first.
        by_module: Modules that ran and their ancestors by path, empty for the model itself.
        flops_analytic: FLOPs by closed forms, which lack some operators; null without them.
        notes: Caveats about its figures.
    """

    params: Count
    calls: Count
    causal_savable_flops: Count
    experts_touched: ExpertsTouched | None
    bytes_read_expected: Share | None
    operators: Mapping[str, Count]
    operator_bytes: Mapping[str, Count] | None
    operator_calls: Mapping[str, Count] | None
    operator_families: Mapping[FamilyName, Family]
    by_module: Mapping[str, Module]
    flops_analytic: Count | None
    notes: tuple[str, ...]


class Metadata(Provenance, frozen=True, kw_only=True):
    """How the figures were obtained.

    Attributes:
        kernels_of: Device type of the counted kernels: cuda, or cpu in some early reports; null if
            unknown.
        conventions: How each quantity is counted.
        created: Time of writing, ISO 8601, UTC: all that differs between identical runs.
    """

    kernels_of: kernels.KernelDevice | None
    conventions: tuple[str, ...]
    created: str


class Unassigned(Struct, frozen=True, kw_only=True):
    """Parameters that no stage owns.

    Attributes:
        params: Number of parameters.
        names: Names of their tensors.
    """

    params: Count
    names: tuple[str, ...]


class Memory(Struct, frozen=True, kw_only=True):
    """What the batch holds in memory.

    Attributes:
        weights_bytes: Bytes of all parameters.
        inputs_bytes: Bytes of the prefill pass's inputs; null if unknown.
        kv_cache_bytes: Bytes of the KV cache after the last step.
        peak_activation_bytes: Most bytes of other tensors in the prefill pass.
        peak_module: Path of the module that reaches it; empty for the model, null if unknown.
        stated_for: What each figure applies to, by key.
    """

    weights_bytes: Count
    inputs_bytes: Count | None
    kv_cache_bytes: Count
    peak_activation_bytes: Count
    peak_module: str | None
    stated_for: Mapping[str, str]


class Report(Struct, frozen=True, kw_only=True):
    """What a page costs. Later versions may add keys.

    Attributes:
        schema_version: Version of this schema.
        metadata: How the figures were obtained.
        workload: The page, its prompt and its batch.
        total: Parameters and work of the whole model.
        stages: Stages in order: the prefill pass and, if the model decodes, one decode step over a
            cache of seq_len tokens.
        unassigned: Parameters that no stage owns.
        memory: What the batch holds in memory.
        agreement: Whether the two engines agree; null if only one ran.
        time: Predicted seconds, one entry per GPU and runtime.
        operator_ledger: Every operator that ran.
        warnings: Why a figure may be in doubt.
        notes: Caveats about the figures, warnings first.
    """

    schema_version: Literal["2"]
    metadata: Metadata
    workload: Workload
    total: Total
    stages: Annotated[Mapping[str, Stage], Meta(min_length=1)]
    unassigned: Unassigned
    memory: Memory
    agreement: Agreement | None
    time: tuple[TimeEntry, ...]
    operator_ledger: OperatorLedger
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.agreement is not None and self.agreement.stages.keys() != self.stages.keys():
            about, stages = list(self.agreement.stages), list(self.stages)
            raise ValueError(f"agreement is about stages {about}, the report about {stages}")

    @property
    def decode_name(self) -> str | None:
        """The stage that is one decode step; None if the model does not decode."""
        return None if self.total.decode_step is None else list(self.stages)[-1]

    @property
    def prefill_names(self) -> Sequence[str]:
        """The stages of the prefill pass."""
        return list(self.stages)[: None if self.total.decode_step is None else -1]

    def to_pandas(self, by: Grouping = "stage") -> pd.DataFrame:
        """A table of exact integers, in the report's order. Needs the extra `pandas`.

        Args:
            by: One row per `stage`; per `module` of each stage, with its children's counts or, in
                columns `own_...`, without; or per `operator`, with family, calls, FLOPs and bytes,
                of which an earlier report has none.

        Raises:
            FormatError: `by` is none of these.
            ExtraError: pandas is not installed.
        """
        return data_frame(self._rows, by, get_args(Grouping))

    def _rows(self, by: Grouping) -> Iterator[dict[str, Any]]:
        counts = Counts.__struct_fields__
        for name, stage in self.stages.items():
            if by == "stage":
                keys = ("params", "calls", *counts, "arithmetic_intensity")
                yield {"stage": name, **{key: getattr(stage, key) for key in keys}}
            elif by == "module":
                for path, module in stage.by_module.items():
                    yield {"stage": name, **module.row(path)}
            else:
                families = {
                    operator: kind
                    for kind, family in stage.operator_families.items()
                    for operator in family.operators
                }
                nbytes, calls = stage.operator_bytes or {}, stage.operator_calls or {}
                for operator, flops in stage.operators.items():
                    yield {
                        "stage": name,
                        "operator": operator,
                        "family": families.get(operator),
                        "calls": calls.get(operator),
                        "flops": flops,
                        "bytes": nbytes.get(operator),
                    }


def data_frame(
    rows: Callable[[Any], Iterator[dict[str, Any]]], by: str, groupings: Sequence[str]
) -> pd.DataFrame:
    """The rows of a grouping as a table; raises FormatError for another one, or ExtraError."""
    if by not in groupings:
        raise FormatError(f"by={by!r} is unknown; give {', '.join(groupings)}")
    require_extra("a table", "pandas", "pandas")
    import pandas as pd

    return pd.DataFrame(list(rows(by)))


# --- from figures --------------------------------------------------------------------------------


def build_report(
    figures: PageFigures,
    agreement: Agreement | None,
    created: datetime,
    times: Iterable[TimeEntry] = (),
    *,
    with_modules: bool = True,
) -> Report:
    """The report of a page.

    Args:
        figures: From either engine.
        agreement: Of a trace with closed forms; None if only one of them ran.
        created: Time of writing, in UTC.
        times: Predicted seconds.
        with_modules: Whether its stages have their modules, of which there are thousands.
    """
    workload, parameters, decode = figures.workload, figures.parameters, figures.decode
    batch = Batch(
        **with_intensity(figures.batch),
        max_new_tokens=workload.max_new_tokens,
        decode_steps=max(0, workload.max_new_tokens - 1),
    )
    return Report(
        schema_version=SCHEMA_VERSION,
        metadata=Metadata(
            **structs.asdict(figures.provenance),
            kernels_of="cuda",
            conventions=CONVENTIONS,
            created=created.isoformat(timespec="seconds"),
        ),
        workload=workload_document(workload),
        total=Total(
            **with_intensity(figures.prefill_pass),
            params=parameters.total,
            causal_savable_flops=figures.causal_savable_flops,
            decode_step=DecodeStep(**with_intensity(decode.work), cached_tokens=workload.seq_len)
            if decode
            else None,
            batch=batch,
            page=PageShare(
                pages=workload.pages,
                **{key: getattr(batch, key) / workload.pages for key in Counts.__struct_fields__},
                arithmetic_intensity=batch.arithmetic_intensity,
            ),
        ),
        stages={
            name: _stage(figures, stage, with_modules=with_modules)
            for name, stage in figures.stages.items()
        },
        unassigned=Unassigned(
            params=sum(parameters.unassigned.values()), names=tuple(parameters.unassigned)
        ),
        memory=_memory(figures),
        agreement=agreement,
        time=tuple(times),
        operator_ledger=figures.ledger,
        warnings=figures.warnings,
        notes=figures.notes,
    )


def with_intensity(work: kernels.Work) -> dict[str, Any]:
    """The fields of `CountsWithIntensity`."""
    moved = work.bytes_moved
    return counts_of(work) | {"arithmetic_intensity": work.flops / moved if moved else None}


def _stage(figures: PageFigures, stage: StageFigures, *, with_modules: bool) -> Stage:
    is_analytic, experts = figures.provenance.engine == "analytic", stage.experts
    works = kernels.work_by(stage.kernels, "operator")
    kind_of = dict(map(attrgetter("operator", "kind"), stage.kernels))
    calls = kernels.calls_of(stage.kernels)
    operators = _costliest_first(works)
    names = kernels.grouped((kind_of[name], name) for name in operators)
    kinds = {kind: kernels.total_work(map(works.__getitem__, names[kind])) for kind in names}
    return Stage(
        **with_intensity(stage.work),
        params=stage.params,
        calls=stage.calls,
        causal_savable_flops=figures.causal_savable_flops if stage is figures.prefill[-1] else 0,
        experts_touched=ExpertsTouched(
            even=experts.even, expected=experts.expected, counted=experts.counted / experts.layers
        )
        if experts
        else None,
        bytes_read_expected=stage.work.bytes_read + experts.bytes_beyond_counted
        if experts
        else None,
        operators={name: works[name].flops for name in operators},
        operator_bytes={name: works[name].bytes_moved for name in operators},
        operator_calls={name: calls[name] for name in operators},
        operator_families={
            kind: Family(
                operators=tuple(names[kind]), flops=kinds[kind].flops, bytes=kinds[kind].bytes_moved
            )
            for kind in _costliest_first(kinds)
        },
        by_module=modules_of(
            stage.own, stage.module_calls, figures.module_classes, stage.own_params
        )
        if with_modules
        else {},
        flops_analytic=stage.work.flops if is_analytic else figures.flops_analytic.get(stage.name),
        notes=stage.notes,
    )


def _costliest_first(works: Mapping[str, kernels.Work]) -> Sequence[str]:
    flops = dict(zip(works, map(attrgetter("flops"), works.values()), strict=True))
    return sorted(sorted(works), key=flops.__getitem__, reverse=True)


def modules_of(
    own: Mapping[str, kernels.Work],
    calls: Mapping[str, int],
    classes: Mapping[str, str],
    own_params: Mapping[str, int] | None,
) -> dict[str, Module]:
    """Modules that ran and their ancestors by path, parents first, empty for the model itself.

    Args:
        own: Work of each module's own forward, by path.
        calls: Calls of modules by path.
        classes: Names of classes by path.
        own_params: Parameters by path of the module that holds them; None if unknown.
    """
    params = Counter[str]()
    for path, held in (own_params or {}).items():
        params.update(dict.fromkeys(kernels.ancestors(path), held))
    sums = kernels.with_ancestors(dict.fromkeys(calls, NO_WORK) | dict(own))
    return {
        path: Module(
            **counts_of(sums[path]),
            class_name=classes.get(path),
            calls=calls.get(path, 0),
            params=None if own_params is None else params[path],
            own=Counts(**counts_of(own.get(path, NO_WORK))),
        )
        for path in sorted(sums, key=kernels.path_order)
    }


def _memory(figures: PageFigures) -> Memory:
    memory, workload = figures.memory, figures.workload
    tokens = counted(workload.seq_len + max(0, workload.max_new_tokens - 1), "token")
    what = counted(workload.batch_size, "page" if isinstance(workload, PageWorkload) else "prompt")
    cache = f"{tokens} of {what}: the prompt and every new token but the last"
    return Memory(
        weights_bytes=memory.weights_bytes,
        inputs_bytes=memory.inputs_bytes,
        kv_cache_bytes=memory.kv_cache_bytes,
        peak_activation_bytes=memory.peak.nbytes,
        peak_module=memory.peak.path,
        stated_for={
            "weights_bytes": f"all parameters in {figures.provenance.dtype}",
            "inputs_bytes": f"inputs of the prefill pass of {what}: pixels, token ids, masks",
            "kv_cache_bytes": cache if figures.decodes else "the model does not decode",
            "peak_activation_bytes": "the prefill pass: tensors alive at once, without weights and"
            " inputs but with the KV cache",
        },
    )
