"""The report as a JSON document: the one form that every output is made from.

Its keys are described by `report/schema.json`; all counts are integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.work import Work
from dsocr_analyze.workload import Workload

if TYPE_CHECKING:
    from dsocr_analyze.model.directory import ModelDirectory

__all__ = [
    "CONVENTIONS",
    "SCHEMA_VERSION",
    "STAGE_NOTES",
    "UNIFORM_ROUTING_NOTE",
    "Document",
    "counts",
    "counts_with_intensity",
    "memory",
    "model_metadata",
    "totals",
    "without_timestamp",
]

SCHEMA_VERSION: Final = "1"

Document = dict[str, Any]


def counts(work: Work) -> dict[str, int]:
    """The additive counts of a piece of work, by report key."""
    return {
        "macs": work.macs,
        "matrix_flops": work.matrix_flops,
        "vector_flops": work.vector_flops,
        "flops": work.flops,
        "activations": work.activations,
        "bytes_read": work.bytes_read,
        "bytes_written": work.bytes_written,
    }


def counts_with_intensity(work: Work) -> dict[str, Any]:
    """The counts, and FLOPs a byte (None where no byte moves)."""
    moved = work.bytes_read + work.bytes_written
    return {**counts(work), "arithmetic_intensity": work.flops / moved if moved else None}


def totals(
    workload: Workload, params: int, prefill: Work, decode_step: Work, page: Work, causal: int
) -> Document:
    """The `total` object.

    Args:
        workload: What was counted.
        params: Parameters of the whole model.
        prefill: Work of the prefill pass.
        decode_step: Work of one step over `seq_len` cached tokens.
        page: Work of the whole page.
        causal: Matrix FLOPs of the prefill pass that a causal kernel may skip.
    """
    return {
        "params": params,
        **counts_with_intensity(prefill),
        "causal_savable_flops": causal,
        "decode_step": {"cached_tokens": workload.seq_len, **counts_with_intensity(decode_step)},
        "page": {
            "new_tokens": workload.max_new_tokens,
            "decode_steps": workload.max_new_tokens - 1,
            **counts_with_intensity(page),
        },
    }


def model_metadata(directory: ModelDirectory) -> Document:
    """The `model` object of the metadata: where the model comes from, and digests of it."""
    return {
        "source": "reference" if directory.is_reference else "directory",
        "id": "built-in reference" if directory.is_reference else directory.path.resolve().name,
        "config_digest": directory.config_digest(),
        "code_digest": directory.code_digest(),
    }


def memory(
    workload: Workload, dtype: str, weights_bytes: int, kv_cache_bytes: int, peak_bytes: int
) -> Document:
    """The `memory` object; each figure says what it is stated for."""
    tokens = workload.seq_len + workload.max_new_tokens - 1
    return {
        "weights_bytes": weights_bytes,
        "kv_cache_bytes": kv_cache_bytes,
        "peak_activation_bytes": peak_bytes,
        "stated_for": {
            "weights_bytes": f"all parameters in {dtype}",
            "kv_cache_bytes": f"{tokens} tokens of {workload.batch_size} page(s): the prompt and"
            " every new token but the last",
            "peak_activation_bytes": "the prefill pass: tensors alive at once besides weights and"
            " inputs, the KV cache among them",
        },
    }


CONVENTIONS: Final = (
    "macs are multiply-accumulates of matrix operators; matrix_flops = 2 * macs",
    "attention counts the full T x T product; what a causal kernel may skip is"
    " causal_savable_flops",
    "bytes: every operator on its own, inputs read and outputs written; views move nothing;"
    " lookups read the rows they take",
    "prefill holds the prefill pass but its vision stages, the head over all positions included;"
    " decode holds one step over a cache of seq_len tokens",
)

STAGE_NOTES: Final[dict[str, list[str]]] = {
    "clip": ["the SAM features stand in for the patch embedding, whose convolution never runs"],
    "prefill": ["lm_head runs over all positions; its parameters are decode's"],
    "decode": ["one step over a cache of seq_len tokens, all of the decoder's work in it"],
}

UNIFORM_ROUTING_NOTE: Final = (
    "MoE routing is uniform (no checkpoint is loaded): every expert gets its share of the tokens'"
    " choices, the remainder going to the first ones"
)


def without_timestamp(document: Mapping[str, Any]) -> Document:
    """The document less the one value in which two equal runs differ."""
    metadata = {key: value for key, value in document["metadata"].items() if key != "created"}
    return {**document, "metadata": metadata}
