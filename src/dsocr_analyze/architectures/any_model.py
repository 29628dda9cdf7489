"""Any transformers model described by a stages file, traced like the known architectures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.architectures.architecture import (
    BATCH,
    IDS_DTYPE,
    KEYS,
    MODEL_DTYPE,
    TOKENS,
    Architecture,
    ForwardInputs,
    Input,
    Numbers,
    PlacedValue,
    Prompt,
    TensorInput,
    made_inputs,
)
from dsocr_analyze.architectures.config_file import Config
from dsocr_analyze.errors import ConfigError, WorkloadError
from dsocr_analyze.figures import StageScope
from dsocr_analyze.toml_table import REQUIRED, TomlTable, TomlValue, read_toml
from dsocr_analyze.workload import BOUNDS, LARGEST_COUNT, Lengths, check_count

if TYPE_CHECKING:
    import torch

_DTYPES_OF_KINDS: Final = {"b": "bool", "i": IDS_DTYPE, "f": MODEL_DTYPE}
"""By the kinds of data that numpy tells apart."""

_DTYPES: Final = (
    MODEL_DTYPE, "float32", "float16", "bfloat16", "float64", IDS_DTYPE, "int32", "int16", "int8",
    "uint8", "bool",
)  # fmt: skip

_ATTENTIONS: Final = ("eager", "sdpa")
_ROLES: Final = ("prefill", "decode")
_SIZE: Final = f'a whole number from 1, "{BATCH}", "{TOKENS}" or "{KEYS}"'
_MOST_IDS: Final = 1 << 24
"""Of all prompts together; their values may be asked for, and then fill 128 MiB."""


@dataclass(eq=False)
class DescribedModel(Architecture):
    """A model that a stages file describes.

    Attributes:
        prompt: None for a model that reads no tokens.
        inputs: Other inputs, by argument.
        has_decode_table: Whether the file has a table that only earlier versions used.
    """

    is_of_transformers = True

    file: str
    name: str
    model_class: str | None
    attention: str = _ATTENTIONS[0]
    routed_expert: re.Pattern[str] | None = None
    stages: tuple[StageScope, ...] = ()
    prompt: Prompt | None = None
    inputs: Mapping[str, Input] = field(default_factory=dict)
    has_decode_table: bool = False

    def __post_init__(self) -> None:
        self.title = self.name
        self.text_tokens = 0 if self.prompt is None else self.prompt.tokens
        self.generate = None if self.decode is None else self.prompt
        self.left_out_where_unknown = frozenset({"attention_mask"} - set(self.inputs))

    def plan(
        self,
        *,
        seq_len: int | None = None,
        batch_size: int = 1,
        max_new_tokens: int = 1024,
        prompt_pages: int = 1,
        **of_pages: tuple[int, int] | int | None,
    ) -> Lengths:
        """Plans the lengths of a run; WorkloadError for impossible ones, or for a page."""
        of_pages["prompt_pages"] = None if prompt_pages == 1 else prompt_pages
        for name, value in of_pages.items():
            if value is not None:
                raise WorkloadError(
                    f"{name} applies only to models that read pages; the inputs of"
                    f" {self.name} are in {self.file}",
                    arguments=[name],
                )
        if seq_len is None:
            seq_len = self.text_tokens
        elif self.prompt is None:
            raise WorkloadError(
                f"seq_len {seq_len} is not supported: {self.file} has no 'prompt'",
                arguments=["seq_len"],
            )
        else:
            check_count("seq_len", seq_len, 1, LARGEST_COUNT, " tokens")
        check_count("batch_size", batch_size, 1, LARGEST_COUNT, " prompts")
        if batch_size * seq_len > _MOST_IDS:
            raise WorkloadError(
                f"batch_size {batch_size} is too large to trace at {seq_len} tokens each; give at"
                f" most {_MOST_IDS // seq_len}",
                arguments=["batch_size"],
            )
        check_count("max_new_tokens", max_new_tokens, *BOUNDS["max_new_tokens"])
        return Lengths(seq_len, batch_size, 0 if self.decode is None else max_new_tokens)

    def notes_of(self, workload: Lengths) -> list[str]:
        """Notes for a reader of a workload's figures, one line each."""
        notes = [f"{self.name} has no closed forms: its figures come from the trace alone"]
        if self.has_decode_table:
            notes.append(
                f"'decode' in {self.file} is not used: generate() chooses the cache and the"
                " arguments of every step"
            )
        if self.decode is None:
            notes.append(
                f"{self.file} has no stage with the role 'decode': the model's stages form"
                " one pass of its forward, and generate() is not called"
            )
        return notes

    def prefill_inputs(
        self, device: torch.device, dtype: torch.dtype, lengths: Lengths
    ) -> ForwardInputs:
        """What a processor returns: the prompt's ids, their mask, the described inputs."""
        return made_inputs(self.prompt, self.inputs, device, dtype, lengths, self.file)


def undescribed(config: Config, model_class: str | None = None) -> Architecture:
    """An architecture without stages or inputs, of which only the modules can be shown."""
    return DescribedModel("", str(config.get("model_type")), model_class)


# --- a stages file ---------------------------------------------------------------------------


def described_architecture(path: Path) -> DescribedModel:
    """The model of a stages file (docs/any-model.md).

    Raises ConfigError for unknown, missing or impossible keys.
    """
    top = read_toml(path)
    found = DescribedModel(
        stages=_stages(top),
        file=top.file,
        name=top.text("name"),
        model_class=top.text("class", None),
        attention=top.choice("attention", _ATTENTIONS, _ATTENTIONS[0]),
        routed_expert=_routed_expert(top),
        prompt=_prompt(top),
        inputs=_inputs(top.table("inputs")),
        has_decode_table=top.value("decode", None, dict, "a table") is not None,
    )
    top.done()
    if found.prompt is None and found.decode is not None:
        raise ConfigError(
            f"{top.file}: 'prompt' is missing; a model that decodes needs one, such as"
            " [prompt] tokens = 100"
        )
    if found.prompt is None and not found.inputs:
        raise ConfigError(
            f"{top.file}: the model has no inputs; give 'prompt' (tokens), 'inputs' or both"
        )
    return found


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
    """Of a path like `model.layers.*.mlp.experts.*`, whose last star is the expert."""
    path = top.text("routed_expert", None)
    if path is None:
        return None
    if not path.endswith(".*"):
        raise top.refusal(
            "routed_expert", "a path that ends in .*, such as 'model.layers.*.experts.*'"
        )
    experts = r"\.".join(
        r"[^.]+" if part == "*" else re.escape(part) for part in path[:-2].split(".")
    )
    return re.compile(rf"(?P<experts>{experts})\.(?P<index>[^.]+)(?:\..*)?")


def _prompt(top: TomlTable) -> Prompt | None:
    table = top.table("prompt")
    if not top.has("prompt"):
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
    return tuple(
        PlacedValue(
            each.value("value", REQUIRED, kinds, right),
            each.whole("start"),
            each.whole("count", 1, least=1),
        )
        for each in table.tables("placed", [])
    )


def _inputs(table: TomlTable) -> dict[str, Input]:
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
    shape = table.value("shape", None, list, f"a list, each item {_SIZE}", _are_sizes)
    values = table.value("values", None, list, "numbers, in lists")
    if (shape is None) == (values is None):
        raise ConfigError(
            f"{table.file}: '{table.path('shape')}' and 'values' are both"
            f" {'missing' if shape is None else 'given'}; give one of them"
        )
    usual_dtype = MODEL_DTYPE if values is None else _usual_dtype(table, values)
    found = TensorInput(
        shape=None if shape is None else tuple(shape),
        values=None if values is None else tuple(values),
        dtype=table.choice("dtype", _DTYPES, usual_dtype),
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


def _are_sizes(items: list[Any]) -> bool:
    return all(each in (BATCH, TOKENS, KEYS) or (type(each) is int and each > 0) for each in items)


def _usual_dtype(table: TomlTable, values: list[Numbers]) -> str:
    """Type of numbers in nested lists, which must be rectangular."""
    import numpy as np

    try:
        found = np.array(values)
    except ValueError:  # lists of different lengths
        found = np.array([])
    if not found.size or found.dtype.kind not in _DTYPES_OF_KINDS:
        raise table.refusal("values", "numbers, in lists of equal lengths")
    return _DTYPES_OF_KINDS[found.dtype.kind]
