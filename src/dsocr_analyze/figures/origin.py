"""How figures were obtained: the model, the engine, what it ran with and what ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

__all__ = ["Count", "Engine", "Model", "OperatorLedger", "Provenance", "Source"]

Engine = Literal["trace", "analytic"]
Source = Literal["reference", "directory", "config"]
Count = Annotated[int, Meta(ge=0)]


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
