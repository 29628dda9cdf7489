"""Documents and tables of `dsocr-analyze devices` and `fit`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct, structs

from dsocr_analyze.figures import Count
from dsocr_analyze.hardware.fit import BatchNeed, GpuFit
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.report.opening import Opening, PageOpening
from dsocr_analyze.report.table import Table, bytes_text, counted
from dsocr_analyze.timing.correction import KeptBenchmark

if TYPE_CHECKING:
    from dsocr_analyze.timing.serving import ServedModel
    from dsocr_analyze.workload import PageWorkload

_KINDS: Final = {
    "GEMM": ("gemm", "product"), "encoder": ("encoder_attention", "attention"),
    "context": ("context_attention", ""), "generation": ("generation_attention", ""),
    "experts": ("experts", ""), "elementwise": ("movement", "clone"),
}  # fmt: skip
"""By column: its kind of GPU kernels and family of CPU kernels."""


class ProfileSource(Struct, frozen=True, kw_only=True):
    """Where a device's kernel times come from.

    Attributes:
        source: Who measured them.
        licence: Licence of the measurements.
        extrapolated: Whether they are another GPU's.
    """

    source: str
    licence: str
    extrapolated: bool


class KernelKind(Struct, frozen=True, kw_only=True):
    """How accurately one kind of kernel is predicted on a GPU.

    Attributes:
        kind: The kind of kernel.
        dtype: Data type of its operands.
        measured_on: The GPU that was measured.
        extrapolated: Whether that is another GPU.
        framework: The framework of the kernels.
        derived: What its times were derived from; null if measured.
        assumed: Whether its error is assumed, not measured.
        median_error: Median relative error.
        p90_error: 90th percentile of the relative error.
        held_out_rows: Measurements outside the fit.
        held_out_groups: Groups of sizes among them.
        training_rows: Measurements in the fit.
    """

    kind: str
    dtype: str
    measured_on: str
    extrapolated: bool
    framework: str
    derived: str | None
    assumed: bool
    median_error: float
    p90_error: float
    held_out_rows: int
    held_out_groups: int
    training_rows: int


class KernelFamily(Struct, frozen=True, kw_only=True):
    """How accurately one family of kernels is predicted on a CPU.

    Attributes:
        family: The family of kernels.
        dtype: Data type of its operands.
        median_error: Median relative error.
        p90_error: 90th percentile of the relative error.
        held_out_rows: Measurements outside the fit.
        training_rows: Measurements in the fit.
    """

    family: str
    dtype: str
    median_error: float
    p90_error: float
    held_out_rows: int
    training_rows: int


class DeviceEntry(Struct, frozen=True, kw_only=True):
    """One device.

    Attributes:
        name: Its name in the catalogue.
        title: Its name for readers.
        tensor_tflops: Dense TFLOP/s of `tensor_dtype` products; null if only the memory is known.
        tensor_dtype: The data type of that rate.
        float8_tflops: Dense float8 TFLOP/s; null if unsupported.
        int8_tops: Dense int8 TOP/s; null if unsupported.
        bandwidth_gb_s: Memory bandwidth, GB/s; null if only the memory is known.
        memory_gb: Memory as sold, GB.
        memory_mib: Memory as the driver reports it, MiB; null if that is not known.
        compute_capability: NVIDIA's; else null.
        rocm_target: AMD's; else null.
        sms: Streaming multiprocessors or compute units.
        l2_mb: Level-2 cache, MB.
        source: Where these figures come from.
        weak: Poorly sourced ones; may be empty.
        profile: Where its kernel times come from.
        kinds: Kinds of kernels; empty for a CPU.
        families: Families of kernels; empty for a GPU.
    """

    name: str
    title: str
    tensor_tflops: float | None
    tensor_dtype: str
    float8_tflops: float | None
    int8_tops: float | None
    bandwidth_gb_s: float | None
    memory_gb: float
    memory_mib: int | None
    compute_capability: float | None
    rocm_target: str | None
    sms: int
    l2_mb: float
    source: str
    weak: str
    profile: ProfileSource
    kinds: tuple[KernelKind, ...]
    families: tuple[KernelFamily, ...]


class DevicesDocument(Opening, frozen=True, kw_only=True):
    """The catalogue's devices and those of the user's profiles.

    Attributes:
        devices: One entry per device.
    """

    devices: tuple[DeviceEntry, ...]


class CorrectionsDocument(Opening, frozen=True, kw_only=True):
    """Servers' benchmarks that correct predictions.

    Attributes:
        corrections: One entry per benchmark, oldest first.
    """

    corrections: tuple[KeptBenchmark, ...]


def device_entry(profile: Device) -> DeviceEntry:
    """A device, and how well its kernels are predicted."""
    gpu = profile.gpu
    return DeviceEntry(
        name=gpu.name,
        title=gpu.title,
        tensor_tflops=gpu.tensor_tflops or None,
        tensor_dtype=gpu.tensor_dtype,
        float8_tflops=gpu.float8_tflops or None,
        int8_tops=gpu.int8_tops or None,
        bandwidth_gb_s=gpu.bandwidth_gb_s or None,
        memory_gb=gpu.memory_gb,
        memory_mib=gpu.memory_mib or None,
        compute_capability=gpu.compute_capability or None,
        rocm_target=gpu.rocm_target or None,
        sms=gpu.sms,
        l2_mb=gpu.l2_mb,
        source=gpu.source,
        weak=gpu.weak,
        profile=ProfileSource(
            source=profile.source or profile.gpu.unmeasured,
            licence=profile.licence,
            extrapolated=profile.extrapolated,
        ),
        kinds=tuple(
            KernelKind(
                kind=kind,
                dtype=dtype,
                measured_on=fitted.gpu,
                extrapolated=fitted.extrapolated,
                framework=fitted.framework,
                derived=fitted.derived or None,
                assumed=fitted.assumed,
                median_error=fitted.median,
                p90_error=fitted.p90,
                held_out_rows=fitted.held_out_rows,
                held_out_groups=fitted.held_out_groups,
                training_rows=fitted.training_rows,
            )
            for (kind, dtype), fitted in profile.kinds.items()
        ),
        families=tuple(
            KernelFamily(
                family=family,
                dtype=dtype,
                median_error=fitted.median,
                p90_error=fitted.p90,
                held_out_rows=fitted.held_out_rows,
                training_rows=fitted.training_rows,
            )
            for (family, dtype), fitted in (profile.cpu.families if profile.cpu else {}).items()
        ),
    )


def devices_table(document: DevicesDocument) -> Table:
    """Peaks, memory and errors of predictions, one row per device."""
    return Table(
        "GPUs, and the error of predicted kernel times in 16 bits: median / 90th percentile of"
        " held-out sizes, in %; ~ that of another GPU, doubled; ? assumed",
        ("name", "TFLOP/s", "float8", "GB/s", "GB", *_KINDS),
        tuple(
            (each.name, *("-" if figure is None else f"{figure:g}" for figure in (
                each.tensor_tflops, each.float8_tflops, each.bandwidth_gb_s, each.memory_gb,
            )), *_errors(each))
            for each in document.devices
        ),
    )  # fmt: skip


def _errors(device: DeviceEntry) -> Iterable[str]:
    found: dict[str, KernelKind | KernelFamily] = {
        **{each.kind: each for each in device.kinds if each.dtype == "bfloat16"},
        **{each.family: each for each in device.families if each.dtype == "bfloat16"},
    }
    for kind, family in _KINDS.values():
        each = found.get(kind, found.get(family))
        marks = (each.extrapolated, each.assumed) if isinstance(each, KernelKind) else ()
        mark = "".join(compress("~?", marks))
        yield f"{mark}{100 * each.median_error:.1f} / {100 * each.p90_error:.0f}" if each else "-"


def corrections_table(document: CorrectionsDocument) -> Table:
    """One row per benchmark."""
    return Table(
        "Servers' benchmarks that correct predictions: measured over predicted, for the first token"
        " and for each token after it",
        ("id", "GPU", "server", "version", "model", "file", "kept", "first token", "per token",
         "requests", "at once"),
        tuple(
            (each.id, each.gpu, each.server, each.version, each.architecture, each.file,
             each.kept[:10], f"{each.first_token:.3g}", f"{each.per_token:.3g}",
             f"{each.requests:,}", f"{each.concurrency:,}")
            for each in document.corrections
        ),
    )  # fmt: skip


# --- what fits on them -------------------------------------------------------------------------


_MOST_NAMED: Final = 8
"""Most GPUs named in a line; the table has all."""


class ServedFit(Struct, frozen=True, kw_only=True):
    """How a serving engine divides a GPU's memory, and how many pages it runs at a time.

    Attributes:
        server: The serving engine.
        limits: Its limits and the size of its cache, in its own words.
        memory_bytes: The GPU's memory.
        usable_bytes: Of it, for the engine.
        weights_bytes: Weights, in the types that they are stored in.
        token_bytes: Keys and values of a token.
        kv_tokens: Tokens that fit in the cache, as the engine reports them.
        page_tokens: Most keys of a page.
        largest_concurrency: Most pages at a time.
        limit: What does not allow more; null if nothing is left for a cache.
        fits: Whether the requested pages run at a time.
    """

    server: str
    limits: str
    memory_bytes: Count
    usable_bytes: Count
    weights_bytes: Count
    token_bytes: Count
    kv_tokens: Count
    page_tokens: Count
    largest_concurrency: Count
    limit: str | None
    fits: bool

    @classmethod
    def of(cls, served: ServedModel, workload: PageWorkload, reserved: float) -> Self:
        """For as many pages as the workload has."""
        page, server = replace(workload, batch_size=1), served.server
        longest, memory = page.max_new_tokens, served.device.gpu.memory_bytes
        kv_tokens, largest = map(int, served.capacity(
            page, served.fixed_bytes(page), page.seq_len, longest, reserved
        ))  # fmt: skip
        limit = server.names[1] if largest == server.most_sequences else server.names[-1]
        return cls(
            server=server.name,
            limits=f"{server.limits(reserved)}; {server.names[-1]} {kv_tokens:,} tokens",
            memory_bytes=memory,
            usable_bytes=int(memory * (1 - reserved)),
            weights_bytes=served.weights_bytes,
            token_bytes=served.token_bytes,
            kv_tokens=kv_tokens,
            page_tokens=int(served.keys(page.seq_len, longest - 1)),
            largest_concurrency=largest,
            limit=limit if kv_tokens else None,
            fits=workload.batch_size <= largest,
        )


class FitDocument(PageOpening, frozen=True, kw_only=True):
    """Which GPUs a batch fits on.

    Attributes:
        gpus: One entry per GPU.
        served: By GPU, what a serving engine runs, if one is asked for.
    """

    gpus: tuple[GpuFit, ...]
    served: Mapping[str, ServedFit] = {}


def fit_answers(document: FitDocument, titles: Sequence[str], *, is_named: bool) -> list[str]:
    """Whether the batch fits: one line per named GPU, or how many GPUs of the catalogue hold it."""
    what = counted(document.workload.batch_size, document.workload.unit)
    if document.served:
        return _served_answers(document, titles, what, is_named=is_named)
    need = bytes_text(document.gpus[0].needed_bytes)
    if not is_named:
        return [f"{what} ({need}) {'fits' if what.startswith('1 ') else 'fit'} {_where(document)}"]
    return [
        f"{'Yes' if each.fits else 'No'}: {what} {'needs' if what.startswith('1 ') else 'need'}"
        f" {need}, and {title} has {bytes_text(each.usable_bytes)} free; at most {_most(each)}"
        f" prefilled at once, or {_most(each.one_at_a_time)} prefilled one at a time"
        for title, each in zip(titles, document.gpus, strict=True)
    ]


def _where(document: FitDocument) -> str:
    """On how many GPUs the batch fits, and why it does not on the others."""
    reasons = {}
    for each in document.gpus:
        served = document.served.get(each.gpu)  # by kernels of its own
        lacks = "" if served else " and ".join(f"no {lack}" for lack in each.lacks)
        reasons[each.gpu] = lacks or ("" if (served or each).fits else "too little memory")
    said = f"on {[*reasons.values()].count('')} of {len(reasons)} GPUs"
    for reason in sorted(filter(None, {*reasons.values()}), reverse=True):
        names = [gpu for gpu, each in reasons.items() if each == reason]
        said += f"; {reason}: {', '.join(names) if len(names) <= _MOST_NAMED else len(names)}"
    return said


def _served_answers(
    document: FitDocument, titles: Sequence[str], what: str, *, is_named: bool
) -> list[str]:
    if not is_named:
        [server] = {each.server for each in document.served.values()}
        return [f"{what} at once under {server}: {_where(document)}"]
    return [
        f"{'Yes' if each.fits else 'No'}: {title}, {each.limits}; at most"
        f" {counted(each.largest_concurrency, document.workload.unit)} of"
        f" {each.page_tokens:,} tokens at once"
        for title, each in zip(titles, document.served.values(), strict=True)
    ]


def _most(need: BatchNeed) -> str:
    limit = "" if need.limit is None else f" (limited by {need.limit})"
    return f"{need.largest_batch:,}{limit}"


def _served_table(document: FitDocument) -> Table:
    """How a serving engine divides the memory of each GPU."""
    [*_, one] = document.served.values()
    return Table(
        f"Under {one.server}: weights {bytes_text(one.weights_bytes)}, and"
        f" {bytes_text(one.token_bytes)} of cache per token; a {document.workload.unit} has up to"
        f" {one.page_tokens:,} tokens",
        ("GPU", "memory", "usable", "KV cache", "KV tokens", "at once", "limited by"),
        tuple(
            (name, *map(bytes_text, (each.memory_bytes, each.usable_bytes)),
             bytes_text(each.kv_tokens * each.token_bytes), f"{each.kv_tokens:,}",
             f"{each.largest_concurrency:,}", each.limit or "weights")
            for name, each in document.served.items()
        ),
    )  # fmt: skip


def fit_tables(document: FitDocument, titles: Sequence[str]) -> Iterator[Table]:
    """What the requested batch needs, and the largest batches; `titles` name the GPUs.

    If a serving engine is asked for, how it divides the memory.
    """
    if document.served:
        yield _served_table(document)
        return
    # The requested batch needs the same on every GPU.
    at_once, one = document.gpus[0], document.gpus[0].one_at_a_time
    workload = document.workload
    yield Table(
        f"{counted(workload.batch_size, workload.unit)} of {counted(workload.seq_len, 'token')}:"
        f" {bytes_text(at_once.needed_bytes)}, one at a time {bytes_text(one.needed_bytes)}:"
        f" weights {bytes_text(at_once.weights_bytes)}, and the higher of two peaks",
        ("prefill", "peak", "bytes", "inputs", "KV cache", "activations", "logits"),
        tuple(
            (order, peak, *map(bytes_text, (nbytes, *structs.astuple(alive))))
            for order, need in (("at once", at_once), ("one at a time", one))
            for peak, nbytes, alive in (
                ("prefill pass", need.prefill_bytes, need.prefill),
                ("last decode step", need.decode_bytes, need.decode),
            )
        ),
        label_columns=2,
    )
    yield Table(
        "Largest batches",
        ("GPU", "name", "usable", "fits", "at once", "limited by", "one at a time", "limited by"),
        tuple(
            (title, each.gpu, bytes_text(each.usable_bytes), *_answers(each))
            for title, each in zip(titles, document.gpus, strict=True)
        ),
        label_columns=2,
        optional=("GPU",),
    )


def _answers(each: GpuFit) -> tuple[str, ...]:
    if each.lacks:
        return (", ".join(f"no {lack}" for lack in each.lacks), "-", "", "-", "")
    cells = ["yes" if each.fits else "no"]
    for batch in (each, each.one_at_a_time):
        moment = "" if batch.limit_moment is None else f" ({batch.limit_moment})"
        cells += [str(batch.largest_batch), f"{batch.limit or ''}{moment}"]
    return tuple(cells)
