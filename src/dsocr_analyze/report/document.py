"""The report: the one typed document that every output is made from.

`schema.json` is generated from these types; their docstrings are its descriptions. Every key is
always there, null if its figure is unknown. Counts are exact integers; a page's share of its
batch and ratios are floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from msgspec import Meta, Struct, field

from dsocr_analyze import kernels
from dsocr_analyze.figures import Engine, Source
from dsocr_analyze.kernels import KernelDevice
from dsocr_analyze.report.frame import Tabular
from dsocr_analyze.report.time_entry import TimeEntry

__all__ = [
    "CONVENTIONS",
    "SCHEMA_VERSION",
    "Agreement",
    "Batch",
    "Counts",
    "DecodeStep",
    "ExpertsTouched",
    "Family",
    "LeftOutShare",
    "Memory",
    "Metadata",
    "Model",
    "Module",
    "NotModelled",
    "OperatorLedger",
    "PageShare",
    "PeakAgreement",
    "Report",
    "Stage",
    "Total",
    "Unassigned",
    "View",
    "Work",
    "Workload",
]

SCHEMA_VERSION: Final = "2"

CONVENTIONS: Final = (
    "macs are multiply-accumulates of matrix operators; matrix_flops = 2 * macs",
    "attention counts the full T x T product; what a causal kernel may skip is"
    " causal_savable_flops",
    "bytes: every operator on its own, as PyTorch calls it, inputs read and outputs written; one"
    " operator is one kernel (fused attention, layer norm, softmax), several are never joined"
    " (eager attention, RMSNorm, LayerNorm2d, RoPE; a cast before a softmax, which CUDA joins to it"
    " for float16 alone); views move nothing; lookups read the rows they take",
    "arithmetic_intensity = flops / (bytes_read + bytes_written): all FLOPs, matrix and vector,"
    " over the bytes of all operators",
    "interpolation counts 2 FLOPs for each tap of the window that is laid over the source, one"
    " dimension after the other: an upper bound (bicubic, 64 to 40: 9 taps for a filter 6.4 wide)",
    "prefill holds the prefill pass but its vision stages, the head over all positions included;"
    " decode holds one step over a cache of seq_len tokens",
)

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0)]
FamilyName = Annotated[str, Meta(extra_json_schema={"enum": list(kernels.KINDS)})]
"""A kind of operator; reports of schema version 1 have families of other names."""

# --- work --------------------------------------------------------------------------------------


class Counts(Struct, frozen=True, kw_only=True):
    """Additive counts of a piece of work.

    Attributes:
        macs: Multiply-accumulates of matrix operators.
        matrix_flops: FLOPs of matrix operators: 2 * macs.
        vector_flops: FLOPs of everything else that computes.
        flops: matrix_flops + vector_flops.
        activations: Output elements of matrix operators.
        bytes_read: Bytes of all inputs, weights included, each operator on its own.
        bytes_written: Bytes of all outputs, each operator on its own.
    """

    macs: Count
    matrix_flops: Count
    vector_flops: Count
    flops: Count
    activations: Count
    bytes_read: Count
    bytes_written: Count

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written


class Work(Counts, frozen=True, kw_only=True):
    """Counts and their ratio.

    Attributes:
        arithmetic_intensity: FLOPs, matrix and vector, per byte read or written by any operator;
            null if no byte moves.
    """

    arithmetic_intensity: Share | None


class DecodeStep(Work, frozen=True, kw_only=True):
    """Work of one decode step of the batch.

    Attributes:
        cached_tokens: Tokens that each page's KV cache holds before the step.
    """

    cached_tokens: Count


class Batch(Work, frozen=True, kw_only=True):
    """Work of the whole batch: the prefill pass and every decode step over a growing cache.

    Attributes:
        max_new_tokens: Tokens that each page yields; the prefill pass yields the first.
        decode_steps: Steps after the prefill pass: max_new_tokens - 1, but 0 of a model that does
            not decode.
    """

    max_new_tokens: Count
    decode_steps: Count


class PageShare(Struct, frozen=True, kw_only=True):
    """One page's equal share of the batch: its counts divided by the number of pages.

    Attributes:
        pages: Pages of the batch.
        macs: Multiply-accumulates of matrix operators.
        matrix_flops: FLOPs of matrix operators.
        vector_flops: FLOPs of everything else that computes.
        flops: All FLOPs.
        activations: Output elements of matrix operators.
        bytes_read: Bytes of all inputs.
        bytes_written: Bytes of all outputs.
        arithmetic_intensity: FLOPs, matrix and vector, per byte read or written by any operator,
            the batch's; null if no byte moves.
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

    The counts of this object itself are those of the prefill pass.

    Attributes:
        params: Parameters of the whole model.
        causal_savable_flops: Matrix FLOPs of the prefill pass that a causal kernel may skip.
        decode_step: One decode step over a cache of seq_len tokens; null where the model does not
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
    """One module within a stage; its counts hold everything below it.

    Attributes:
        class_name: Its class; null if no model was built.
        calls: How often it was called; 0 for a container whose children are; null if unknown.
        params: Parameters at or below it; null if no model was built.
        own: What its own forward does, without its children.
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
        bytes: Bytes that they read and write.
    """

    operators: tuple[str, ...]
    flops: Count
    bytes: Count


class ExpertsTouched(Struct, frozen=True, kw_only=True):
    """Routed experts that the tokens of a stage touch: experts a layer that has some.

    Attributes:
        even: Where the tokens' choices spread evenly, which no routing exceeds.
        expected: Where every token chooses uniformly and by itself: E (1 - (1 - k/E)^tokens).
        counted: Those whose weights bytes_read holds: even, but with a checkpoint's values the
            mean over layers of what its own routing chose.
    """

    even: Count
    expected: Share
    counted: Share


class Stage(Work, frozen=True, kw_only=True):
    """A part of the prefill pass, or one decode step.

    Attributes:
        params: Parameters that it owns.
        calls: Calls of its outermost module.
        causal_savable_flops: Matrix FLOPs that a causal kernel may skip.
        experts_touched: Routed experts that its tokens touch; null where none are known.
        bytes_read_expected: bytes_read with the weights of experts_touched.expected experts a
            layer in place of those counted; null without experts_touched.
        operators: FLOPs of every operator, costliest first.
        operator_bytes: Bytes that every operator reads and writes; null in earlier reports.
        operator_families: Operators by kind, costliest first.
        by_module: Modules that took part and all above them, by path; the model's is empty.
        flops_analytic: FLOPs by the closed forms, without the operators that they leave out; null
            where there are no closed forms.
        notes: What a reader of its figures should know.
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


class Model(Struct, frozen=True, kw_only=True):
    """Where the model comes from.

    Attributes:
        architecture: Name of its architecture; null if unknown.
        source: Whether it is the built-in reference, a directory with code, or transformers' own.
        id: Name for readers.
        config_digest: SHA-256 of the config's values.
        code_digest: SHA-256 over names and contents of all Python files.
        class_name: Its class; null if no model was built.
        weights: Whether a checkpoint's values were loaded.
        config_text: The config's values as JSON, of which config_digest is; null if unknown.
    """

    architecture: str | None
    source: Source
    id: str
    config_digest: str
    code_digest: str
    class_name: str | None = field(name="class")
    weights: Literal["none", "checkpoint"]
    config_text: str | None = None


class Metadata(Struct, frozen=True, kw_only=True):
    """How the figures were obtained.

    Attributes:
        model: The model.
        versions: Versions of this program (tool) and of the packages that took part.
        engine: Whether the model ran under hooks (trace) or closed forms were evaluated (analytic).
        device: Where it ran; none for the analytic engine.
        dtype: Type of weights and activations.
        attention: The decoder's attention implementation.
        kernels_of: Whose kernels are counted where devices differ in the copies that they make and
            in their scratch; on meta and without a device, those of cuda. Null if unknown.
        conventions: What is counted how.
        created: ISO 8601, UTC: the only value in which two equal runs differ.
    """

    model: Model
    versions: Mapping[str, str]
    engine: Engine
    device: str
    dtype: str
    attention: str
    kernels_of: KernelDevice | None
    conventions: tuple[str, ...]
    created: str


class View(Struct, frozen=True, kw_only=True):
    """Square views that go through the vision stages in one call.

    Attributes:
        count: Views.
        resolution: Pixels a side of each.
    """

    count: Count
    resolution: Count


class Workload(Struct, frozen=True, kw_only=True):
    """The page, its prompt and its batch; of a model that reads no pages, only the latter.

    Attributes:
        page: Width and height in pixels; null where the model reads no pages, as are all keys up
            to text_tokens.
        base_size: Pixels a side of the global view in crop mode.
        image_size: Pixels a side of a local view in crop mode, of the only view otherwise.
        crop_mode: Whether the page is cut into local views.
        grid: Columns and rows of local views; [1, 1] for none.
        views: One entry for each vision call on one page.
        visual_tokens: Tokens of the prompt's pages.
        text_tokens: The other tokens of the prompt, BOS included.
        seq_len: Tokens of one prompt, of pages visual_tokens + text_tokens; 0 without a prompt.
        batch_size: Prompts of the batch, all alike.
        max_new_tokens: Tokens that each prompt yields; 0 where the model does not decode.
        prompt_pages: Pages in one prompt, all alike; null where the model reads no pages.
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
        """What it is, in a line for readers."""
        prompt = f"{self.seq_len} prompt tokens"
        if self.page is None:
            return prompt
        width, height = self.page
        return f"page of {width} x {height} pixels, {prompt}"


# --- memory, agreement, ledger -----------------------------------------------------------------


class Unassigned(Struct, frozen=True, kw_only=True):
    """Parameters that no stage owns.

    Attributes:
        params: How many.
        names: Their names.
    """

    params: Count
    names: tuple[str, ...]


class Memory(Struct, frozen=True, kw_only=True):
    """What the batch holds in memory.

    Attributes:
        weights_bytes: Bytes of all parameters.
        inputs_bytes: Bytes of what the prefill pass is called with; null if unknown.
        kv_cache_bytes: Bytes of the KV cache at the end.
        peak_activation_bytes: Most bytes of tensors alive at once in the prefill pass, besides
            weights and inputs.
        peak_module: Path of the module in whose own forward that is, empty for the model itself;
            null if unknown.
        stated_for: What each of the figures is stated for, by its key.
    """

    weights_bytes: Count
    inputs_bytes: Count | None
    kv_cache_bytes: Count
    peak_activation_bytes: Count
    peak_module: str | None
    stated_for: Mapping[str, str]


class PeakAgreement(Struct, frozen=True, kw_only=True):
    """Peak activation by both engines.

    Attributes:
        traced: Bytes by the trace.
        analytic: Bytes by the closed forms.
        agrees: Whether they agree; null where that was not judged.
    """

    traced: Count
    analytic: Count
    agrees: bool | None


class NotModelled(Counts, frozen=True, kw_only=True):
    """Traced operators without a closed form; their work is left out of the comparison.

    Attributes:
        stage: Stage in which they ran.
        modules: Pattern of the paths of the modules that call them.
        operators: Their names.
        reason: Why they have no closed form.
    """

    stage: str
    modules: str
    operators: tuple[str, ...]
    reason: str


class LeftOutShare(Struct, frozen=True, kw_only=True):
    """What operators without a closed form come to, as a part of their stage.

    Attributes:
        vector_flops: Part of its vector FLOPs.
        bytes: Part of its bytes.
    """

    vector_flops: Share
    bytes: Share


class Agreement(Struct, frozen=True, kw_only=True):
    """Whether the two engines agree.

    Attributes:
        agrees: Whether all that was compared agrees.
        stages: By stage and quantity.
        kv_cache_bytes: Whether the KV cache agrees.
        batch: Whether the work of the whole batch agrees; null where some operators are not
            modelled.
        peak_activation_bytes: Peak activation by both.
        first_difference: The first module and quantity that differ; null where all agree.
        not_modelled: Operators without a closed form.
        not_modelled_share: What these come to, by stage that has some.
    """

    agrees: bool
    stages: Mapping[str, Mapping[str, bool]]
    kv_cache_bytes: bool
    batch: bool | None
    peak_activation_bytes: PeakAgreement
    first_difference: str | None
    not_modelled: tuple[NotModelled, ...]
    not_modelled_share: Mapping[str, LeftOutShare]


class OperatorLedger(Struct, frozen=True, kw_only=True):
    """Calls of every operator of the prefill pass and one decode step, by name.

    Attributes:
        counted: Operators that are in the figures.
        free: Operators that move and compute nothing.
        unknown: Operators without a rule; they are in no figure.
    """

    counted: Mapping[str, Count]
    free: Mapping[str, Count]
    unknown: Mapping[str, Count]


class Report(Tabular, Struct, frozen=True, kw_only=True):
    """What a page costs. Further keys may stand beside the listed ones.

    Attributes:
        schema_version: Version of this schema.
        metadata: How the figures were obtained.
        workload: The page, its prompt and its batch.
        total: Parameters and work of the whole model.
        stages: Stages in the architecture's order; the last is one decode step over a cache of
            seq_len tokens, where the model decodes; the others together are the prefill pass.
        unassigned: Parameters that no stage owns.
        memory: What the batch holds in memory.
        agreement: Whether the two engines agree; null where only one of them ran.
        time: Predicted seconds, one entry per GPU that was named and runtime.
        operator_ledger: Every operator that ran.
        warnings: Why a figure may be in doubt.
        notes: What a reader should know, the warnings first.
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
        """Name of the stage that is one decode step; None where the model does not decode."""
        return None if self.total.decode_step is None else list(self.stages)[-1]
