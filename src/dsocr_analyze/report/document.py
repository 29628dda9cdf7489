"""The report: the one typed document that every output is made from.

`schema.json` is generated from these types and takes its descriptions from their docstrings. Every
key is always present, and null if its figure is unknown. Counts are exact integers; ratios and a
page's share of its batch are floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal, Self, TypeAlias

from msgspec import Meta, Struct, field

from dsocr_analyze import kernels
from dsocr_analyze.agreement import Agreement
from dsocr_analyze.figures import Count, Counts, Model, OperatorLedger, Provenance, Share
from dsocr_analyze.kernels import KernelDevice
from dsocr_analyze.report.frame import Tabular
from dsocr_analyze.timing.prediction import TimeEntry

__all__ = [
    "CONVENTIONS",
    "NO_OPTIONS",
    "SCHEMA_VERSION",
    "Agreement",
    "Batch",
    "Count",
    "Counts",
    "DecodeStep",
    "ExpertsTouched",
    "Family",
    "Memory",
    "Metadata",
    "Model",
    "ModelOpening",
    "Module",
    "Opening",
    "OperatorLedger",
    "OptionValue",
    "Options",
    "PageOpening",
    "PageShare",
    "Report",
    "Share",
    "Stage",
    "Total",
    "Unassigned",
    "View",
    "Work",
    "Workload",
    "model_text",
    "opening_line",
]

SCHEMA_VERSION: Final = "2"

CONVENTIONS: Final = (
    "macs are multiply-accumulates of matrix operators; matrix_flops = 2 * macs",
    "attention counts the full T x T product; causal_savable_flops is the part that a causal"
    " kernel may skip",
    "bytes: each operator, as called by PyTorch, reads its inputs and writes its outputs; one"
    " operator is one kernel (fused attention, layer norm, softmax), separate operators are never"
    " fused (eager attention, RMSNorm, LayerNorm2d, RoPE; a cast before a softmax, which CUDA fuses"
    " only for float16); views move nothing; lookups read only the rows they take",
    "arithmetic_intensity = flops / (bytes_read + bytes_written): all FLOPs, matrix and vector,"
    " over the bytes of all operators",
    "interpolation counts 2 FLOPs per tap of the window over the source, one dimension after the"
    " other: an upper bound (bicubic, 64 to 40: 9 taps for a filter 6.4 wide)",
    "prefill is the prefill pass without its vision stages, including the head over all positions;"
    " decode is one step over a cache of seq_len tokens",
)

OptionValue: TypeAlias = str | int | float | bool | tuple[str, ...] | None
Options: TypeAlias = Mapping[str, OptionValue]

NO_OPTIONS: Final[Options] = {}
"""For a document that was not made by a command."""

Positive = Annotated[int, Meta(ge=1)]
FamilyName = Annotated[str, Meta(extra_json_schema={"enum": list(kernels.KINDS)})]
"""A kind of operator; reports of schema version 1 name their families differently."""

# --- work --------------------------------------------------------------------------------------


class Work(Counts, frozen=True, kw_only=True):
    """Counts and their arithmetic intensity.

    Attributes:
        arithmetic_intensity: FLOPs, matrix and vector, per byte read or written by any operator;
            null if no bytes move.
    """

    arithmetic_intensity: Share | None


class DecodeStep(Work, frozen=True, kw_only=True):
    """Work of one decode step of the batch.

    Attributes:
        cached_tokens: Tokens in each page's KV cache before the step.
    """

    cached_tokens: Count


class Batch(Work, frozen=True, kw_only=True):
    """Work of the whole batch: the prefill pass and every decode step over a growing cache.

    Attributes:
        max_new_tokens: Tokens generated per page; the prefill pass generates the first.
        decode_steps: Steps after the prefill pass: max_new_tokens - 1, or 0 if the model does not
            decode.
    """

    max_new_tokens: Count
    decode_steps: Count


class PageShare(Struct, frozen=True, kw_only=True):
    """One page's equal share of the batch: its counts divided by the number of pages.

    Attributes:
        pages: Pages in the batch.
        macs: Multiply-accumulates of matrix operators.
        matrix_flops: FLOPs of matrix operators.
        vector_flops: FLOPs of all other operators.
        flops: All FLOPs.
        activations: Output elements of matrix operators.
        bytes_read: Bytes of all inputs.
        bytes_written: Bytes of all outputs.
        arithmetic_intensity: FLOPs, matrix and vector, per byte read or written by any operator of
            the batch; null if no bytes move.
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

    @classmethod
    def of(cls, batch: Work, pages: int) -> Self:
        """The share of one of the batch's `pages` pages."""
        return cls(
            pages=pages,
            macs=batch.macs / pages,
            matrix_flops=batch.matrix_flops / pages,
            vector_flops=batch.vector_flops / pages,
            flops=batch.flops / pages,
            activations=batch.activations / pages,
            bytes_read=batch.bytes_read / pages,
            bytes_written=batch.bytes_written / pages,
            arithmetic_intensity=batch.arithmetic_intensity,
        )


class Total(Work, frozen=True, kw_only=True):
    """Parameters of the whole model and work of the prefill pass, the decode step and the batch.

    This object's own counts are those of the prefill pass.

    Attributes:
        params: Parameters of the whole model.
        causal_savable_flops: Matrix FLOPs of the prefill pass that a causal kernel may skip.
        decode_step: One decode step over a cache of seq_len tokens; null if the model does not
            decode.
        batch: The whole batch.
        page: One page's share of the batch.
    """

    params: Count
    causal_savable_flops: Count
    decode_step: DecodeStep | None
    batch: Batch
    page: PageShare


# --- stages ------------------------------------------------------------------------------------


class Module(Counts, frozen=True, kw_only=True):
    """One module within a stage; its counts include everything below it.

    Attributes:
        class_name: Its class; null if no model was built.
        calls: Number of calls; 0 for a container that is never called itself; null if unknown.
        params: Parameters at or below it; null if no model was built.
        own: Counts of its own forward, without its children.
    """

    class_name: str | None = field(name="class")
    calls: Count | None
    params: Count | None
    own: Counts


class Family(Struct, frozen=True, kw_only=True):
    """All operators of one kind within a stage.

    Attributes:
        operators: Their names, costliest first.
        flops: Their FLOPs.
        bytes: Bytes they read and write.
    """

    operators: tuple[str, ...]
    flops: Count
    bytes: Count


class ExpertsTouched(Struct, frozen=True, kw_only=True):
    """Routed experts that the tokens of a stage touch, per layer with experts.

    Attributes:
        even: If the tokens spread evenly over the experts: an upper bound for any routing.
        expected: If every token chooses uniformly and independently: E (1 - (1 - k/E)^tokens).
        counted: Experts whose weights are in bytes_read: even, or with a checkpoint's weights the
            mean over layers of the experts that its routing chose.
    """

    even: Count
    expected: Share
    counted: Share


class Stage(Work, frozen=True, kw_only=True):
    """A part of the prefill pass, or one decode step.

    Attributes:
        params: Parameters it owns.
        calls: Calls of its outermost module.
        causal_savable_flops: Matrix FLOPs that a causal kernel may skip.
        experts_touched: Routed experts that its tokens touch; null if none are known.
        bytes_read_expected: bytes_read with the weights of experts_touched.expected experts per
            layer instead of experts_touched.counted; null without experts_touched.
        operators: FLOPs of each operator, costliest first.
        operator_bytes: Bytes that each operator reads and writes; null in earlier reports.
        operator_families: Operators by kind, costliest first.
        by_module: Modules that ran and their ancestors, by path; the model's own path is empty.
        flops_analytic: FLOPs from the closed forms, which leave some operators out; null if there
            are no closed forms.
        notes: Caveats about its figures.
    """

    params: Count
    calls: Count
    causal_savable_flops: Count
    experts_touched: ExpertsTouched | None
    bytes_read_expected: Share | None
    operators: Mapping[str, Count]
    operator_bytes: Mapping[str, Count] | None
    operator_families: Mapping[FamilyName, Family]
    by_module: Mapping[str, Module]
    flops_analytic: Count | None
    notes: tuple[str, ...]


# --- where the figures come from ---------------------------------------------------------------


class Metadata(Provenance, frozen=True, kw_only=True):
    """How the figures were obtained.

    Attributes:
        kernels_of: Device type whose kernels are counted: cuda, wherever the pass ran. Reports of
            earlier versions may say cpu; null if unknown.
        conventions: How each quantity is counted.
        created: Time of writing, ISO 8601, UTC: all that differs between identical runs.
    """

    kernels_of: KernelDevice | None
    conventions: tuple[str, ...]
    created: str


class View(Struct, frozen=True, kw_only=True):
    """Square views that pass through the vision stages in one call.

    Attributes:
        count: Number of views.
        resolution: Side of each view, in pixels.
    """

    count: Count
    resolution: Count


class Workload(Struct, frozen=True, kw_only=True):
    """The page, its prompt and its batch; if the model reads no pages, only prompt and batch.

    Attributes:
        page: Width and height in pixels; this and all keys up to text_tokens are null if the model
            reads no pages.
        base_size: Side of the global view in crop mode, in pixels.
        image_size: Side of a local view in crop mode, or of the only view otherwise, in pixels.
        crop_mode: Whether the page is cut into local views.
        grid: Columns and rows of local views; [1, 1] if there are none.
        views: One entry per vision call on one page.
        visual_tokens: Tokens that stand for the prompt's pages.
        text_tokens: All other tokens of the prompt, BOS included.
        seq_len: Tokens of one prompt: visual_tokens + text_tokens if the model reads pages; 0
            without a prompt.
        batch_size: Prompts in the batch, all alike.
        max_new_tokens: Tokens generated per prompt; 0 if the model does not decode.
        prompt_pages: Pages in one prompt, all alike; null if the model reads no pages.
    """

    page: tuple[Count, Count] | None
    base_size: Count | None
    image_size: Count | None
    crop_mode: bool | None
    grid: tuple[Count, Count] | None
    views: tuple[View, ...] | None
    visual_tokens: Count | None
    text_tokens: Count | None
    seq_len: Count
    batch_size: Positive
    max_new_tokens: Count
    prompt_pages: Positive | None = 1

    @property
    def title(self) -> str:
        """One line that describes it."""
        prompt = f"{self.seq_len} prompt tokens"
        if self.page is None:
            return prompt
        width, height = self.page
        return f"page of {width} x {height} pixels, {prompt}"


# --- what documents start with -------------------------------------------------------------------


class Opening(Struct, frozen=True, kw_only=True):
    """The first keys of every document.

    Attributes:
        schema_version: Version of the schema.
        command: The command that wrote it.
        options: The command's options, defaults included, by name with _ for -; without those that
            only say where and how results are written.
    """

    schema_version: str
    command: str
    options: Options


class ModelOpening(Opening, frozen=True, kw_only=True):
    """The first keys of a document about one model.

    Attributes:
        model: The model.
    """

    model: Model


class PageOpening(ModelOpening, frozen=True, kw_only=True):
    """The first keys of a document about one model and one workload.

    Attributes:
        workload: The page and its prompt.
    """

    workload: Workload


def opening_line(
    workloads: Sequence[Workload], dtypes: Iterable[str], attentions: Iterable[str]
) -> str:
    """Page, sizes, tokens, batch, data type and attention; all values of those that differ.

    Args:
        workloads: One or more workloads.
        dtypes: Data types of weights and activations, one per workload or one for all.
        attentions: Implementations of the decoder's attention, one per workload or one for all.
    """
    pages = _all("{} x {}".format(*each.page) for each in workloads if each.page is not None)
    parts = [
        *([f"page of {pages} pixels", f"views {_all(map(_sizes, workloads))}"] if pages else []),
        f"{_all(f'{each.seq_len:,}' for each in workloads)} prompt tokens",
        f"batch {_all(f'{each.batch_size:,}' for each in workloads)}",
        f"{_all(f'{each.max_new_tokens:,}' for each in workloads)} new tokens",
        _all(dtypes),
        f"{_all(attentions)} attention",
    ]
    line = ", ".join(parts)
    return line[0].upper() + line[1:]


def _sizes(workload: Workload) -> str:
    """Sizes of views, written as on the command line, and how many the page is cut into."""
    if not workload.crop_mode:
        return f"{workload.image_size}"
    columns, rows = workload.grid or (1, 1)
    cut = "not cut" if (columns, rows) == (1, 1) else f"cut {columns} x {rows}"
    return f"{workload.base_size}/{workload.image_size} ({cut})"


def _all(values: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(values))


def model_text(model: Model) -> str:
    """Which model it is, with abbreviated digests."""
    code, config = model.code_digest[:12], model.config_digest[:12]
    return {
        "config": f"transformers' own code for {model.id} (config {config})",
        "reference": f"built-in reference model (code {code}, config {config})",
        "directory": f"model directory {model.id} (code {code}, config {config})",
    }[model.source]


# --- memory, ledger ----------------------------------------------------------------------------


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
        peak_activation_bytes: Most bytes of tensors alive at once in the prefill pass, excluding
            weights and inputs.
        peak_module: Path of the module whose own forward reaches the peak, empty for the model
            itself; null if unknown.
        stated_for: What each figure applies to, by key.
    """

    weights_bytes: Count
    inputs_bytes: Count | None
    kv_cache_bytes: Count
    peak_activation_bytes: Count
    peak_module: str | None
    stated_for: Mapping[str, str]


class Report(Tabular, Struct, frozen=True, kw_only=True):
    """What a page costs. Later versions may add keys.

    Attributes:
        schema_version: Version of this schema.
        metadata: How the figures were obtained.
        workload: The page, its prompt and its batch.
        total: Parameters and work of the whole model.
        stages: Stages in the architecture's order. If the model decodes, the last is one decode
            step over a cache of seq_len tokens; the others together are the prefill pass.
        unassigned: Parameters that no stage owns.
        memory: What the batch holds in memory.
        agreement: Whether the two engines agree; null if only one of them ran.
        time: Predicted seconds, one entry per requested GPU and runtime.
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
        """Name of the stage that is one decode step; None if the model does not decode."""
        return None if self.total.decode_step is None else list(self.stages)[-1]
