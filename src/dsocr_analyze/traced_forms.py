"""What seconds and memory are predicted from, of a model that is only traced."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final, cast

from msgspec.structs import astuple

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.config_file import Config, ConfigKeys
from dsocr_analyze.architectures.neighbours.decoder import read_decoder
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
from dsocr_analyze.architectures.ocr_family.served import Served
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.figures import BytesAlive, Composition, MemoryFigures, StageFigures
from dsocr_analyze.kernels import (
    BFLOAT16,
    FLOAT32,
    Attention,
    Dtype,
    Gemm,
    Kernel,
    Work,
    merged,
    total_work,
    with_ancestors,
)
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.timing.assumptions import Assumptions
from dsocr_analyze.trace.passes import PassTraces
from dsocr_analyze.workload import AnyWorkload, Lengths, PageWorkload, ViewBatch

_LAYER: Final = re.compile(r"[^0-9]*\.(?P<index>\d+)")
"""Path of a numbered module, with which paths below it begin."""

_KNOWN: Final = (
    "serving engines are modelled for decoders with grouped heads and gated MLPs or experts"
)

_OF_EXPERTS: Final = {
    "n_routed_experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "moe_k"),
    "moe_intermediate_size": ("moe_intermediate_size", "intermediate_size"),
    "n_shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "shared_expert_size": ("shared_expert_intermediate_size", "shared_intermediate_size"),
}
"""Sizes of a mixture, and their keys in configs of transformers; the first that is set counts."""

_MOST_TRACED: Final = 256
"""Prompts in the largest batch whose prefill pass is traced for its memory; a power of two."""


def traced_model(
    session: DeepSeekOCRSession, prompts: Lengths, jobs: Sequence[Assumptions]
) -> tuple[Architecture, Any, PageWorkload, list[Assumptions]]:
    """A described model with its traces in place of closed forms, to predict it in some jobs.

    Its prompts are pages without views, and it has no dimensions; if a serving engine is to run it,
    it has those of its decoder, and all inputs of a prompt stand for a view.

    Raises:
        ConfigError: It does not decode, or a serving engine is to run an unknown kind of decoder.
    """
    described: Any = session.architecture
    architecture, most = replace(described), prompts.max_new_tokens
    if architecture.decode is None:
        raise ConfigError(
            f"{architecture.title} has no stage with the role 'decode'; seconds and memory are"
            " predicted for models that generate text"
        )
    longest = max((each.lengths(most).longest for each in jobs), default=most)
    eager, served = session, None
    if not all(each.host.is_eager for each in jobs):
        fused = replace(described, attention="sdpa")
        with suppress(ConfigError):  # of a class that has none
            session = DeepSeekOCRSession.from_directory(
                replace(session.loaded.directory, described=fused),
                dtype=session.dtype.name,
                trust_remote_code=True,  # its code has built a session already
            )
        prefill = replace(prompts, batch_size=1, max_new_tokens=1)
        try:
            served = TracedServed(TracedForms(session, prefill), prompts.seq_len + longest)
        except ConfigError as error:
            raise ConfigError(
                f"{error}; otherwise use runtime='eager'", arguments=["runtime"]
            ) from error
    architecture.closed_forms = TracedForms(eager, replace(prompts, max_new_tokens=longest), served)
    page = PageWorkload(
        page=(1, 1), base_size=1, image_size=1, crop_mode=False, grid=(1, 1),
        views=served.inputs if served else (), visual_tokens=0, text_tokens=prompts.seq_len,
        batch_size=prompts.batch_size, max_new_tokens=most,
    )  # fmt: skip
    return architecture, served.dimensions if served else None, page, [
        # Its CPU prepares prompts in no time, unless the seconds are given.
        each
        if each.preprocess_seconds is not None
        else replace(
            each, preprocess_seconds=0.0, preprocess_origin="not predicted for a described model"
        )
        for each in jobs
    ]  # fmt: skip


# --- records that run -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TracedForms:
    """What `ClosedForms` say, from traces of prompts of one length.

    A batch size runs when it is first asked for; dimensions and other lengths have no effect.

    Attributes:
        served: What a serving engine launches, if it is to be predicted.
    """

    session: DeepSeekOCRSession
    workload: AnyWorkload
    served: Any = None

    @cache  # noqa: B019  # of a few batch sizes, as long as predictions are made
    def _traced(self, batch: int) -> tuple[Composition, PassTraces]:
        workload = replace(self.workload, batch_size=batch)
        traces = self.session.trace(workload)
        return self.session.traced(workload, traces), traces

    def compose(self, _: Any, workload: PageWorkload, *__: Any) -> Composition:
        """The figures of a batch."""
        return self._traced(workload.batch_size)[0]

    def step_kernels(self, _: Any, batch: int, cached: int, *__: Any) -> tuple[Kernel, ...]:
        """The records of a step over `cached` tokens; they change evenly within a stretch."""
        traces, number = self._traced(batch)[1], cached - self.workload.seq_len
        steps = dict(zip(traces.step_numbers, traces.decode_steps, strict=True))
        *_, stretch = (each for each in traces.stretches if each[0] <= number)
        first, second = steps[stretch[0]], steps[stretch[min(1, len(stretch) - 1)]]
        return tuple(
            _changed(one, other, number - stretch[0])
            for one, other in zip(first.kernels, second.kernels, strict=True)
        )

    def parameter_count(self, _: Any) -> int:
        """Parameters of the whole model."""
        return self.session.parameters.total

    def inputs_bytes(self, *_: Any) -> int:
        """Bytes of all that `generate` is given for one prompt."""
        return self.memory().inputs_bytes

    def memory(self, *_: Any) -> MemoryFigures:
        """Bytes that one prompt holds."""
        return self._traced(1)[0].memory

    def prefill_bytes_alive(self, _: Any, workload: PageWorkload, *__: Any) -> BytesAlive:
        """Bytes alive at the peak of the prefill pass, besides weights."""
        return self._of_batch(
            workload.batch_size,
            lambda ran: BytesAlive(ran.memory.inputs_bytes, 0, ran.memory.peak.nbytes, 0),
            _MOST_TRACED,
        )

    def decode_bytes_alive(
        self, _: Any, workload: PageWorkload, dtype: Dtype, __: bool
    ) -> BytesAlive:
        """Bytes alive in the last decode step, besides weights, as closed forms count them."""
        return self._of_batch(workload.batch_size, partial(_last_step, dtype), 2)

    def _of_batch(
        self, batch: int, alive_in: Callable[[Composition], BytesAlive], most: int
    ) -> BytesAlive:
        """Bytes alive at a peak, on a line through those of two traced batches, `most` at most."""
        low = min(1 << (batch.bit_length() - 1), most // 2)
        ran = [self._traced(each)[0] for each in (low, 2 * low if batch > low else low)]
        pairs = zip(*map(astuple, map(alive_in, ran)), strict=True)
        return BytesAlive(*(a + -((a - b) * (batch - low) // low) for a, b in pairs))


def _last_step(dtype: Dtype, figures: Composition) -> BytesAlive:
    """The cache, with one layer twice as it grows, and logits in the model's type and in fp32."""
    memory, (*_, step) = figures.memory, figures.stages.values()
    *_, head = (each for each in step.kernels if isinstance(each.dimensions, Gemm))
    layers = 1 + max(
        (int(each["index"]) for each in filter(None, map(_LAYER.match, step.own))), default=0
    )
    cached = memory.kv_cache_bytes + memory.kv_cache_bytes // layers
    logits = head.work.activations * sum({dtype.nbytes, FLOAT32.nbytes})
    return BytesAlive(memory.inputs_bytes, cached, 0, logits)


def _changed(one: Kernel, other: Kernel, times: int) -> Kernel:
    """A record once its change from `one` to `other` has occurred so many times."""
    make: Any = type(one.dimensions)
    sizes = zip(one.dimensions, other.dimensions, strict=True)
    work = one.work.plus(other.work.minus(one.work).times(times))
    return one._replace(dimensions=make(*(a + (b - a) * times for a, b in sizes)), work=work)


# --- what a serving engine runs -------------------------------------------------------------


class TracedServed(Served):
    """The kernels that a serving engine launches for a described model.

    Those of the decoder follow from the sizes in its config, if they do the matrix work of every
    layer that is traced. Vision stages run as traced, with PyTorch's fused attention if they can.

    Attributes:
        dimensions: Of the decoder alone.
        inputs: A prompt's inputs as a view of three values per pixel.

    Args:
        forms: The model's traces.
        most_keys: Tokens of the longest sequence, which no window may be shorter than.

    Raises:
        ConfigError: A part of the decoder is of no known kind.
    """

    def __init__(self, forms: TracedForms, most_keys: int) -> None:
        self.model: Any = forms
        *vision, prefill, _ = forms.compose(None, cast("Any", forms.workload)).stages.values()
        classes, dtype = forms.session.module_classes, forms.session.dtype
        self.inputs = (ViewBatch(1, forms.inputs_bytes() // (3 * dtype.nbytes), 1),)
        self._vision = {each.name: merged(_fused(each, classes)) for each in vision}
        if vision:
            self.notes = (
                f"vision stages run as in transformers with {forms.session.loaded.attention}"
                " attention, but each RMS norm, each turn of queries or keys in fp32, and equal"
                " attention of a call, as one kernel",
            )
        config = cast("Any", forms.session.model.config).get_text_config(decoder=True).to_dict()
        keys = ConfigKeys(config, since=_KNOWN)
        may_hide = not config.get("layer_types") and config.get("use_sliding_window", True)
        keys.check(
            not may_hide or (config.get("sliding_window") or most_keys) >= most_keys,
            "sliding_window",
            f"at least {most_keys}, the tokens of the longest page",
        )
        modules = {path.rpartition(".")[2] for path in prefill.own_params or ()}
        paths = (each.path for each in prefill.kernels if each.kind == "routing")
        routed = {found[0] for found in map(_LAYER.match, paths) if found}
        decoder = read_decoder(
            keys,
            is_tied=False,  # which no kernel depends on
            head_norms=not modules.isdisjoint(("q_norm", "query_layernorm")),
            output_norms="post_mlp_layernorm" in modules,
            has_shared_gate="shared_expert_gate" in modules,
            **(_sizes_of_experts(config) if routed else {}),
        )
        # Which of the layers are routed makes no difference to a pass.
        self.dimensions: Any = ModelDimensions(
            replace(decoder, first_k_dense_replace=decoder.layers - len(routed))
        )
        self._check_layers(prefill, routed, forms.workload.seq_len)

    def _check_layers(self, prefill: StageFigures, routed: Set[str], T: int) -> None:
        """Raises ConfigError if the kernels of T tokens do other matrix work than was traced."""
        layers = self.dimensions.decoder.layers
        (dense, head), (mixed, _) = (self._macs(T, first) for first in (layers, 0))
        works = {path: work for path, work in prefill.own.items() if "rotary" not in path}
        found = {
            path: work.macs
            for path, work in with_ancestors(works).items()
            if _LAYER.fullmatch(path)
        }
        for path, macs in found.items():
            expected = mixed if path in routed else dense
            if macs != expected:
                raise ConfigError(
                    f"{path} has {macs:,} multiply-accumulates in the prefill pass, not the"
                    f" {expected:,} of its config: {_KNOWN}"
                )
        if len(found) != layers:
            raise ConfigError(
                f"stage {prefill.name!r} has {len(found)} layers with matrix products, not the"
                f" {layers} of its config: {_KNOWN}"
            )
        rest = total_work(works.values()).macs - sum(found.values())
        if rest not in (head, T * head):
            raise ConfigError(
                f"stage {prefill.name!r} has {rest:,} multiply-accumulates beside its layers, and"
                f" its head {head:,}: give other modules a stage of their own"
            )

    def _macs(self, T: int, first_routed: int) -> tuple[int, int]:
        """Multiply-accumulates of T tokens in a layer, from that one on routed, and in the head."""
        c = replace(self.dimensions.decoder, first_k_dense_replace=first_routed)
        *layers, head, _, _ = self.prompt(T, T, 0, ModelDimensions(c), BFLOAT16, 16)
        return total_work(each.total for each in layers).macs // c.layers, head.work.macs

    @cache  # noqa: B019  # a model lives as long as its predictions are made
    def views(self, *_: Any) -> dict[str, tuple[Kernel, ...]]:
        """Kernels of the vision stages on all inputs of a prompt, without paths."""
        return self._vision

    def activation_bytes(self, *_: Any) -> int:
        """Peak of the traced prefill pass of a prompt, with its cache."""
        return int(self.model.memory().peak.nbytes)


def _sizes_of_experts(config: Config) -> dict[str, Any]:
    """Those that a config has, which raises ConfigError for a wrong one; zeros are none."""
    keys = ConfigKeys(config, since=_KNOWN)
    named = {size: next(filter(config.get, names), None) for size, names in _OF_EXPERTS.items()}
    sizes = {size: keys.integer(name) for size, name in named.items() if name is not None}
    if "shared_expert_size" in sizes:
        sizes.setdefault("n_shared_experts", 1)
    return sizes


def _fused(stage: StageFigures, classes: Mapping[str, str]) -> Iterator[Kernel]:
    """A stage's kernels without paths; each norm, and equal attention of a call, is one.

    So is what attention does in fp32 to queries, or to keys, which it turns. A mask that all heads
    share hides other sequences, which are skipped; others are biases.
    """
    attending = {
        each.path
        for each in stage.kernels
        if isinstance(each.dimensions, Attention) and each.dtype != FLOAT32.name
    }
    for kernel in stage.kernels:
        is_norm, sizes = classes[kernel.path].endswith("RMSNorm"), kernel.dimensions
        turns = (
            kernel.path in attending
            and FLOAT32.name in (kernel.dtype, kernel.output_dtype)
            and not kernel.work.macs
        )
        if is_norm and kernel.operator == "mean":  # of squares in fp32
            moved = Work(0, 0, 0, kernel.work.bytes_read // 2, kernel.work.bytes_read // 2)
            yield kernel._replace(operator="fused_rms_norm", work=moved, path="")
        elif turns and kernel.dtype != FLOAT32.name:  # which it becomes first
            yield kernel._replace(
                operator="rotary_embedding",
                work=kernel.work._replace(bytes_written=kernel.work.bytes_read),
                path="",
            )
        elif isinstance(sizes, Attention):
            many = max(1, kernel.calls // stage.module_calls[kernel.path])
            B, H, _, T, K, D, *_ = sizes
            mask = kernel.work.bytes_read // 2 - B * H * D * (T + 2 * K)
            yield kernel._replace(
                dimensions=sizes._replace(batch=many * B, masked=mask >= H * T * K),
                work=kernel.work.times(many),
                calls=kernel.calls // many,
                path="",
            )
        elif not (is_norm or turns) or kernel.kind == "normalization":
            yield kernel.at("")
