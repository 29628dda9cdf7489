"""Runtimes: host overhead in microseconds, with its sources; none is a fit to DeepSeek-OCR.

`eager` is the vendor's own code under `generate`, whose figures a device's profile may have
measured; `serving` is one of the engines below. In which modes these offer a model is in
`served_modes.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import filterfalse
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from dsocr_analyze.package_data import package_toml
from dsocr_analyze.workload import Mode, PageWorkload, ViewBatch

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.hardware.timed_device import Device, Engine

CHANNELS: Final = 3


class Precision(NamedTuple):
    """Types of a served decoder's weights and cache; None for the model's."""

    weights: str | None = None
    cache: str | None = None

    def sentences(self, others: str = "") -> list[str]:
        """Which types are not the model's; `others` follows that of the weights."""
        layers = "the decoder's linear layers, except router and head, use"
        return [
            *([f"{layers} {self.weights}{others}"] if self.weights else []),
            *([f"the KV cache is {self.cache}"] if self.cache else []),
        ]


NATIVE: Final = Precision()


@dataclass(frozen=True)
class Host:
    """Time that a runtime's host code takes.

    Attributes:
        launch_us: Per operator of uncompiled code, with the Python around it.
        compiled_launch_us: Per kernel of compiled code outside a graph.
        graph_us: Per CUDA graph.
        sync_us: Per value that the host waits for.
        step_us: Per decode step, while the GPU waits.
        sequence_us: Per running sequence, while the GPU waits.
        hidden_step_us: Per decode step, while the GPU computes; the least that a step takes.
        hidden_sequence_us: The same per running sequence.
        chunk_tokens: Most prompt tokens in one pass.
        mixes_prefill: Whether a prefill pass also decodes a token of every running sequence.
        request_us: Per request on the CPU, besides its image: HTTP, tokens, scheduling, streaming.
        sent_ns: Per pixel value to pass it to the engine's process.
        received_ns: Per pixel value in the engine's process, while the GPU waits.
        hashed_ns: The same to hash it, of the view of the whole page alone.
        pixel_bytes: Per value copied to the GPU.
        link_gb_s: Of that copy, from memory that is not pinned.
        cpu_factor: How much longer the CPU takes for a page than a free thread of the machine on
            which the work was measured.
        computes: Whether it is a CPU that runs the model itself.
        engine: Whose kernels run.
        names: What a serving engine calls its share of the memory, the most sequences at a time,
            the tokens of a pass, and the size of its cache.
        block_tokens: Tokens of a block, in which it gives out its cache.
        most_sequences: Most that run at a time; None for as many as fit.
    """

    name: str
    title: str
    launch_us: float
    compiled_launch_us: float
    graph_us: float
    sync_us: float
    step_us: float
    sequence_us: float
    hidden_step_us: float
    hidden_sequence_us: float
    chunk_tokens: int
    mixes_prefill: bool
    request_us: float
    sent_ns: float
    received_ns: float
    pixel_bytes: int
    link_gb_s: float
    source: str
    hashed_ns: float = 0.0
    cpu_factor: float = 1.5
    computes: bool = False
    engine: Engine = "vllm"
    names: tuple[str, str, str, str] = (
        "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "GPU KV cache size"
    )  # fmt: skip
    block_tokens: int = 16
    most_sequences: int | None = None

    def on(self, profile: Device) -> Host:
        """The eager host as measured on a CPU; others stay."""
        if self != EAGER or profile.cpu is None:
            return self
        return replace(self, launch_us=profile.cpu.operator_us, source="measured", computes=True)

    def limits(self, reserved: float) -> str:
        """Its limits in its words: `gpu_memory_utilization 0.9, max_num_batched_tokens 2,048`."""
        memory, sequences, chunk, _ = self.names
        most = "" if self.most_sequences is None else f"{sequences} {self.most_sequences:,}, "
        return f"{memory} {1 - reserved:g}, {most}{chunk} {self.chunk_tokens:,}"

    def memory_sentences(self, precision: Precision) -> list[str]:
        """What is assumed of the memory that a serving engine takes."""
        memory, *_, cache = self.names
        held, blocks = (
            "weights, a pass of a whole chunk and the cache",
            f"blocks of {self.block_tokens} tokens",
        )
        if self.engine == "sglang":
            held, blocks = "weights and the cache; activations are beside it", "single tokens"
        return [
            f"{memory} is of all the memory, and has room for {held}; CUDA graphs and other"
            " processes take none of it",
            f"{cache} counts {blocks}; a page takes as many as for the most that it may generate",
            *precision.sentences(", other weights the model's type"),
        ]

    @property
    def is_eager(self) -> bool:
        """Whether it is the eager runtime's."""
        return self.name == "eager"

    def sentences(self) -> list[str]:
        """Its figures, with their sources."""
        if self.computes:
            return [
                f"host: {self.title}, on the CPU that runs the model; each operator adds"
                f" {self.launch_us:.3g} us of Python ({self.source}), each step of generate"
                f" {self.step_us:g} us (assumed)"
            ]
        copied = (
            f"pixel values of {self.pixel_bytes} bytes are copied to the GPU at"
            f" {self.link_gb_s:g} GB/s (assumed)"
        )
        if not self.is_eager:
            more = f", those of the whole page's view {self.hashed_ns:g} ns more"
            hashed = more if self.hashed_ns else ""
            copied += (
                f", and take the engine {self.received_ns:g} ns each{hashed}; before that, a"
                f" request takes {1e-3 * self.request_us:g} ms of CPU, and a pixel value"
                f" {self.sent_ns:g} ns"
            )
        return [
            f"host: {self.title}; {self.launch_us:g} us to launch an operator ({self.source})",
            copied,
        ]

    def received_seconds(self, views: Sequence[ViewBatch]) -> float:
        """Seconds to receive pages' views in the engine's process, and to copy them to the GPU.

        The last view of a page shows all of it.
        """
        values, whole = (
            CHANNELS * sum(view.pixels for view in some)
            for some in (views, [view for view in views if view == views[-1]])
        )
        received = self.cpu_factor * (values * self.received_ns + whole * self.hashed_ns)
        return 1e-9 * (received + values * self.pixel_bytes / self.link_gb_s)


EAGER: Final = Host(
    name="eager",
    title="the model's own code under generate",
    launch_us=10.0,
    compiled_launch_us=10.0,
    graph_us=0.0,
    sync_us=20.0,
    step_us=500.0,
    sequence_us=0.0,
    hidden_step_us=0.0,
    hidden_sequence_us=0.0,
    chunk_tokens=1 << 30,
    mixes_prefill=False,
    request_us=0.0,
    sent_ns=0.0,
    received_ns=0.0,
    pixel_bytes=2,
    link_gb_s=6.0,
    source="assumed: 8-10 us per operator of eager PyTorch with the views and modules around it",
    cpu_factor=1.0,
)

_REQUEST = (
    "request: 12.4 ms to the first of Qwen3-0.6B's tokens on an A100, 4.2 ms a step"
    " (tenstorrent/tt-inference-server issue 340)"
)
"""Both engines': measured under vLLM."""

_SERVERS: Final = (
    Host(
        "vllm", "vLLM 0.14 or later, asynchronous scheduling",
        launch_us=10.0, compiled_launch_us=5.0, graph_us=20.0, sync_us=20.0,
        step_us=0.0, sequence_us=0.0, hidden_step_us=500.0, hidden_sequence_us=13.0,
        chunk_tokens=2048, mixes_prefill=True,
        request_us=10_600.0, sent_ns=0.6, received_ns=0.0, pixel_bytes=2, link_gb_s=6.0,
        source="openfabric-systems/simllm pull 204: 0.54 ms per engine step, 12.7 us per"
        " running request; chunks of 2048 as vLLM 0.11 logs (unslothai/unsloth issue 3555);"
        f" {_REQUEST}, and 2.4 ms to hash a page (vllm pull 10497); pixel values are sent in 16"
        " bits, and received by a thread of their own",
    ),
    Host(
        "vllm-v1", "vLLM 0.9 to 0.13, V1 engine, synchronous scheduling",
        launch_us=10.0, compiled_launch_us=5.0, graph_us=20.0, sync_us=20.0,
        step_us=600.0, sequence_us=13.0, hidden_step_us=0.0, hidden_sequence_us=0.0,
        chunk_tokens=2048, mixes_prefill=True,
        request_us=10_600.0, sent_ns=0.6, received_ns=0.0, pixel_bytes=2, link_gb_s=6.0,
        source="the same work, its steps not overlapped; kvcached pull 331 (Qwen3-0.6B on H100)",
    ),
    Host(
        "vllm-v0", "vLLM 0.6 to 0.8, V0 engine, with a Python logits processor per sequence",
        launch_us=10.0, compiled_launch_us=5.0, graph_us=20.0, sync_us=20.0,
        step_us=1000.0, sequence_us=25.0, hidden_step_us=0.0, hidden_sequence_us=145.0,
        chunk_tokens=8192, mixes_prefill=False,
        request_us=8_200.0, sent_ns=1.1, received_ns=0.4, pixel_bytes=4, link_gb_s=6.0,
        source="vllm issue 6913: output processing of 0.1 ms per running sequence; logits"
        " processors run row by row, 45 us each with a scan for repeated n-grams; vLLM 0.7.2"
        f" serving GPT-2 takes 1.2 ms per step beyond the GPU's; {_REQUEST}; pixel values are"
        " pickled in 32 bits",
    ),
    Host(
        "sglang", "SGLang with its overlap scheduler",
        launch_us=10.0, compiled_launch_us=10.0, graph_us=20.0, sync_us=20.0,
        step_us=0.0, sequence_us=0.0, hidden_step_us=500.0, hidden_sequence_us=13.0,
        chunk_tokens=8192, mixes_prefill=False,
        request_us=8_200.0, sent_ns=1.1, received_ns=0.4, pixel_bytes=4, link_gb_s=6.0,
        hashed_ns=2.0,
        source="no idle GPU between decode batches (lmsys.org blog of 2024-12-04); the hidden"
        " work is assumed to be vLLM's; prompts with images run without CUDA graphs (sglang pull"
        f" 35318); {_REQUEST}; pixel values are pickled in 32 bits, and the scheduler hashes"
        " those of the whole page's view, not its tiles, by SHA-256 while the GPU waits (sglang"
        " pulls 14354 and 21123; MultimodalDataItem.set_pad_value)",
        engine="sglang",
        names=("mem_fraction_static", "max_running_requests", "chunked_prefill_size",
               "max_total_num_tokens"),
        block_tokens=1,
    ),
)  # fmt: skip

SERVERS: Final = {each.name: each for each in _SERVERS}
"""Serving engines by name."""

RUNTIMES: Final = ("eager", "serving")


# --- the modes in which serving engines offer a model ----------------------------------------


_SIZES: Final = attrgetter("base_size", "image_size", "crop_mode")


class ServedModes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """In which modes an engine offers a model; `served_modes.toml` explains the fields."""

    versions: str
    source: str
    modes: tuple[str, ...] | None = None
    several: tuple[str, ...] = ()
    tiles: int | None = None
    earlier: Mapping[str, str] = {}


@cache
def all_served_modes() -> Mapping[str, Mapping[str, ServedModes]]:
    """What is known, by architecture and engine."""
    return package_toml(__package__, "served_modes.toml", dict[str, dict[str, ServedModes]])


def served_notes(
    architecture: Architecture, server: str, *priced: Mode | PageWorkload
) -> Iterator[str]:
    """How a server treats a page, or pages of some modes, unlike the model's own code.

    Of a model without modes, it is only known whether the server has it.
    """
    modes, pages, views = architecture.modes, 1, dict[str, int]()
    names = dict(zip(map(_SIZES, modes.values()), modes, strict=True))
    for each in priced if modes else ():
        mode = names.get(_SIZES(each), "other sizes")
        views[mode] = architecture.forms.model.page_rule.most_views * each.crop_mode
        if isinstance(each, PageWorkload):
            pages, views[mode] = each.prompt_pages, math.prod(each.grid)
    rows = all_served_modes().get(architecture.name, {})
    row = rows.get(server, ServedModes(versions="any", source=""))
    alone = (*views,) if row.modes is None else row.modes
    offered = row.several if pages > 1 and row.several else alone
    if row.modes == ():
        yield f"{server} does not serve {architecture.title}: {row.source}"
    elif lacking := ", ".join(filterfalse(offered.__contains__, views)):
        yield (
            f"of {architecture.title}'s modes {server} offers {', '.join(offered)} only, not"
            f" {lacking} ({row.versions}; {row.source})"
        )
    for mode in filter(row.earlier.__contains__, views if pages == 1 else ()):
        yield f"{server} offers {mode}, but {row.earlier[mode]} ({row.source})"
    cut = max(map(views.__getitem__, filter(offered.__contains__, views)), default=0)
    if row.tiles is not None and cut > row.tiles:
        yield (
            f"{server} cuts a page into at most {row.tiles} local views; pages are priced as"
            f" the model's own code cuts them, into up to {cut} ({row.source})"
        )


# --- what a server streams -----------------------------------------------------------------------

_STREAMED: Final = (13_000, 23_900)
"""Least and most tokens per second with 100 clients of SGLang on an H100, an H200 or a B200, of
models of 0.35 to 1.6 billion parameters (sglang,
docs_new/src/snippets/configs/LiquidAI/lfm2.5-benchmarks.jsx)."""


def streaming_notes(tokens_per_second: float) -> Iterator[str]:
    """Whether the one process that answers a server's clients may be slower than the GPU."""
    least, most = _STREAMED
    if tokens_per_second > least:
        yield (
            f"a server's one front end may not keep up with {tokens_per_second:,.0f} tokens/s:"
            f" published runs of SGLang streamed at most {least:,} to {most:,}; start several"
            " (SGLang's --tokenizer-worker-num, vLLM's --api-server-count), or do not stream"
        )
