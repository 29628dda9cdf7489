"""The contents of a stages file: a model's stages and its inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from dsocr_analyze.architectures.stages import StageScope
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.toml_table import REQUIRED, TomlTable, TomlValue, read_toml
from dsocr_analyze.workload import LARGEST_COUNT

__all__ = [
    "BATCH",
    "KEYS",
    "TOKENS",
    "Description",
    "Input",
    "PlacedValue",
    "Prompt",
    "TensorInput",
    "read_description",
]

BATCH: Final = "batch"
TOKENS: Final = "tokens"
KEYS: Final = "keys"
"""Sizes set by a workload: prompts per batch, and tokens per prompt by either name."""

_ATTENTIONS: Final = ("eager", "sdpa")
MODEL_DTYPE: Final = "model"
_DTYPES: Final = (
    MODEL_DTYPE,
    *("float32", "float16", "bfloat16", "float64"),
    *("int64", "int32", "int16", "int8", "uint8"),
    "bool",
)

_DTYPES_OF_KINDS: Final = {"b": "bool", "i": "int64", "f": MODEL_DTYPE}
"""By the kinds of data that numpy tells apart."""

_ROLES: Final = ("prefill", "decode")
_SIZE: Final = f'a whole number from 1, "{BATCH}", "{TOKENS}" or "{KEYS}"'

Number: TypeAlias = bool | int | float
Size: TypeAlias = int | str
Numbers: TypeAlias = "Number | Sequence[Numbers]"


@dataclass(frozen=True, slots=True)
class PlacedValue:
    """The same value at `count` consecutive positions from `start`, the first being 0."""

    value: Number
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class TensorInput:
    """A tensor passed to the model.

    Attributes:
        shape: None if given by its values.
        values: Nested lists; None if it is filled.
        dtype: Name of its type; `model` for that of the weights.
        placed: Other values along its last dimension.
        is_repeated: Whether it is repeated for every prompt, along its first dimension.
    """

    shape: tuple[Size, ...] | None
    values: tuple[Numbers, ...] | None
    dtype: str
    fill: Number
    placed: tuple[PlacedValue, ...]
    is_repeated: bool


Input: TypeAlias = TensorInput | Number | str | tuple["Input", ...]
"""Value of one argument of forward: a tensor, a number, a string, or a list of these."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt.

    Attributes:
        tokens: Default number of tokens.
        argument: Of `generate`, which takes their ids.
        fill: Id of all tokens not in `placed`.
        without: Arguments not passed to forward although `generate` would.
    """

    tokens: int
    argument: str
    fill: int
    placed: tuple[PlacedValue, ...]
    without: tuple[str, ...]


@dataclass(frozen=True)
class Description:
    """The contents of a stages file.

    Attributes:
        model_class: Class of transformers to build, if not the config's.
        routed_expert: Pattern of the paths of routed experts, if any.
        prompt: None for a model that reads no tokens.
        inputs: Other inputs, by argument.
        has_decode_table: Whether it has a table that nothing uses since `generate` decodes.
    """

    file: str
    name: str
    model_class: str | None
    attention: str
    routed_expert: re.Pattern[str] | None
    stages: tuple[StageScope, ...]
    prompt: Prompt | None
    inputs: Mapping[str, Input]
    has_decode_table: bool

    @property
    def decodes(self) -> bool:
        """Whether the model decodes."""
        return any(stage.role == "decode" for stage in self.stages)


def read_description(path: Path) -> Description:
    """Reads a stages file; raises ConfigError for unknown, missing or impossible keys."""
    top = read_toml(path)
    stages = _stages(top)
    found = Description(
        file=top.file,
        name=top.text("name"),
        model_class=top.text("class", None),
        attention=top.choice("attention", _ATTENTIONS, _ATTENTIONS[0]),
        routed_expert=_routed_expert(top),
        stages=stages,
        prompt=_prompt(top, is_needed=stages[-1].role == "decode"),
        inputs=_inputs(top),
        has_decode_table=top.table("decode") is not None,
    )
    top.done()
    if found.prompt is None and not found.inputs:
        raise ConfigError(
            f"{top.file}: the model has no inputs; give 'prompt' (tokens), 'inputs' or both"
        )
    return found


# --- stages ----------------------------------------------------------------------------------


def _stages(top: TomlTable) -> tuple[StageScope, ...]:
    stages: list[StageScope] = []
    for table in top.tables("stages"):
        role = table.choice("role", _ROLES, None)
        stage = StageScope(
            name=table.text("name"),
            prefixes=table.texts("prefixes", REQUIRED if role is None else []),
            role=role or "vision",
            notes=table.texts("notes", []),
        )
        table.done()
        if role is None and not stage.prefixes:
            raise table.refusal("prefixes", 'paths of modules, such as ["model.layers"]')
        if any(stage.name == other.name for other in stages):
            raise table.refusal("name", "another name: two stages cannot share one")
        for other in stages:
            for prefix in filter(other.prefixes.__contains__, stage.prefixes):
                raise ConfigError(
                    f"{top.file}: '{table.path('prefixes')}' has {prefix!r}, which stage"
                    f" {other.name!r} already owns; give it to one of them"
                )
        stages.append(stage)
    roles = [stage.role for stage in stages]
    if roles.count("prefill") != 1 or sorted(roles, key=("vision", *_ROLES).index) != roles:
        raise ConfigError(
            f"{top.file}: the roles of 'stages' are"
            f" {', '.join('none' if role == 'vision' else role for role in roles) or 'missing'};"
            " give one stage the role 'prefill' (the rest of the pass), after those without a role;"
            " if the model decodes, add a last stage with the role 'decode'"
        )
    return tuple(stages)


def _routed_expert(top: TomlTable) -> re.Pattern[str] | None:
    """The pattern of a path like `model.layers.*.mlp.experts.*`, whose last star is the expert."""
    path = top.text("routed_expert", None)
    if path is None:
        return None
    if not path.endswith(".*"):
        raise top.refusal(
            "routed_expert", "a path that ends in .*, such as 'model.layers.*.experts.*'"
        )
    parts = [r"[^.]+" if part == "*" else re.escape(part) for part in path[:-2].split(".")]
    experts = r"\.".join(parts)
    return re.compile(rf"(?P<experts>{experts})\.(?P<index>[^.]+)(?:\..*)?")


# --- inputs of a pass ------------------------------------------------------------------------


def _prompt(top: TomlTable, *, is_needed: bool) -> Prompt | None:
    table = top.table("prompt")
    if table is None:
        if is_needed:
            raise ConfigError(
                f"{top.file}: 'prompt' is missing; a model that decodes needs one, such as"
                " [prompt] tokens = 100"
            )
        return None
    prompt = Prompt(
        tokens=table.whole("tokens", least=1, most=LARGEST_COUNT),
        argument=table.text("argument", "input_ids"),
        fill=table.whole("fill", 0),
        placed=_placed(table, (int,), "a whole number"),
        without=table.texts("without", []),
    )
    table.done()
    return prompt


def _placed(table: TomlTable, kinds: tuple[type, ...], right: str) -> tuple[PlacedValue, ...]:
    runs = []
    for each in table.tables("placed", []):
        run = PlacedValue(
            each.value("value", REQUIRED, kinds, right),
            each.whole("start"),
            each.whole("count", 1, least=1),
        )
        each.done()
        runs.append(run)
    return tuple(runs)


def _inputs(parent: TomlTable) -> dict[str, Input]:
    table = parent.table("inputs")
    if table is None:
        return {}
    return {key: _input(table, key, value) for key, value in table.items()}


def _input(table: TomlTable, key: str, value: TomlValue) -> Input:
    if isinstance(value, dict):
        return _tensor(TomlTable(table.file, table.path(key), value))
    if isinstance(value, list):
        return tuple(_input(table, f"{key}[{index}]", item) for index, item in enumerate(value))
    if isinstance(value, bool | int | float | str):
        return value
    raise table.refusal(key, "a table that describes a tensor, a number, a text or a list of these")


def _tensor(table: TomlTable) -> TensorInput:
    shape, values = _shape(table), table.value("values", None, list, "numbers, in lists")
    if (shape is None) == (values is None):
        raise ConfigError(
            f"{table.file}: '{table.path('shape')}' and 'values' are both"
            f" {'missing' if shape is None else 'given'}; give one of them"
        )
    usual_dtype = MODEL_DTYPE if values is None else _usual_dtype(table, values)
    dtype = table.choice("dtype", _DTYPES, usual_dtype)
    found = TensorInput(
        shape=shape,
        values=None if values is None else tuple(values),
        dtype=dtype,
        fill=table.value("fill", 1, (int, float), "a number"),
        placed=_placed(table, (int, float), "a number"),
        is_repeated=table.choice("repeat", (BATCH,), None) is not None,
    )
    if found.placed and shape is not None:
        row = shape[-1] if shape else 0
        if isinstance(row, int) and not 0 < row <= LARGEST_COUNT:
            raise table.refusal(
                "shape", f"beside 'placed' a list whose last size is at most {LARGEST_COUNT:,}"
            )
    if values is not None:
        for key in ("fill", "placed"):
            if table.has(key):
                raise table.refusal(key, "no such key together with 'values'")
    table.done()
    return found


def _shape(table: TomlTable) -> tuple[Size, ...] | None:
    found = table.value("shape", None, list, f"a list, each item {_SIZE}")
    if found is None:
        return None
    for size in found:
        is_number = isinstance(size, int) and not isinstance(size, bool) and size > 0
        if not is_number and size not in (BATCH, TOKENS, KEYS):
            raise table.refusal("shape", f"a list, each item {_SIZE}")
    return tuple(found)


def _usual_dtype(table: TomlTable, values: list[Numbers]) -> str:
    """Default type of numbers in nested lists, which must be rectangular: their type in Python."""
    import numpy as np

    try:
        found = np.array(values)
    except ValueError:  # lists of different lengths
        found = np.array([])
    if not found.size or found.dtype.kind not in _DTYPES_OF_KINDS:
        raise table.refusal("values", "numbers, in lists of equal lengths")
    return _DTYPES_OF_KINDS[found.dtype.kind]
