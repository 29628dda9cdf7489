"""What reports say of figures: counts of work, how they were obtained and what ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from dsocr_analyze.kernels import Work

__all__ = [
    "Count",
    "Counts",
    "Engine",
    "Model",
    "OperatorLedger",
    "Provenance",
    "Share",
    "Source",
    "counts_of",
]

Engine = Literal["trace", "analytic"]
Source = Literal["reference", "directory", "config"]
Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0)]


class Counts(Struct, frozen=True, kw_only=True):
    """Additive counts of a piece of work.

    Attributes:
        macs: Multiply-accumulates of matrix operators.
        matrix_flops: FLOPs of matrix operators: 2 * macs.
        vector_flops: FLOPs of all other operators.
        flops: matrix_flops + vector_flops.
        activations: Output elements of matrix operators.
        bytes_read: Bytes of all inputs, weights included, counted for each operator on its own.
        bytes_written: Bytes of all outputs, counted for each operator on its own.
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


def counts_of(work: Work) -> dict[str, int]:
    """The fields of `Counts`."""
    return {
        "macs": work.macs,
        "matrix_flops": work.matrix_flops,
        "vector_flops": work.vector_flops,
        "flops": work.flops,
        "activations": work.activations,
        "bytes_read": work.bytes_read,
        "bytes_written": work.bytes_written,
    }


class Model(Struct, frozen=True, kw_only=True):
    """Where the model comes from.

    Attributes:
        architecture: Name of its architecture; null if unknown.
        source: The built-in reference, a directory with code, or a config for transformers' code.
        id: Display name.
        config_digest: SHA-256 of the config's values.
        code_digest: SHA-256 of the names and contents of all Python files.
        class_name: Its class; null if no model was built.
        weights: Whether a checkpoint's weights were loaded.
        config_text: The config's values as JSON, hashed by config_digest; null if unknown.
    """

    architecture: str | None
    source: Source
    id: str
    config_digest: str
    code_digest: str
    class_name: str | None = field(name="class")
    weights: Literal["none", "checkpoint"]
    config_text: str | None = None


class Provenance(Struct, frozen=True, kw_only=True):
    """How an engine obtained figures.

    Attributes:
        model: The model.
        versions: Versions of this program (tool) and of the packages it used.
        engine: trace if the model ran under hooks, analytic if closed forms were evaluated.
        device: Device the model ran on; none for the analytic engine.
        dtype: Data type of weights and activations.
        attention: The decoder's attention implementation.
    """

    model: Model
    versions: Mapping[str, str]
    engine: Engine
    device: str
    dtype: str
    attention: str


class OperatorLedger(Struct, frozen=True, kw_only=True):
    """Calls of every operator of the prefill pass and one decode step, by name.

    Attributes:
        counted: Operators included in the figures.
        free: Operators that neither move nor compute anything.
        unknown: Operators without a counting rule, left out of all figures.
    """

    counted: Mapping[str, Count]
    free: Mapping[str, Count]
    unknown: Mapping[str, Count]
