"""Drafts a stages file: stages and inputs, with which a first pass on `meta` runs."""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import torch
import transformers
from transformers.models.auto import modeling_auto

from dsocr_analyze.architectures.any_model import undescribed
from dsocr_analyze.architectures.any_model.description import (
    MODEL_DTYPE,
    Description,
    Input,
    Prompt,
    TensorInput,
    read_description,
)
from dsocr_analyze.architectures.config_file import Config
from dsocr_analyze.errors import AnalyzeError, ConfigError, ModelCodeError
from dsocr_analyze.model.arguments import (
    DESCRIBED,
    PICTURE_OR_SOUND,
    TOKENS_AROUND,
    alternatives,
    first_id,
    ids_of,
    media_token,
    tensor,
    text_id,
)
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.first_pass import (
    Tried,
    beside_the_text,
    routed_expert_of,
    said,
    stages_of,
    text_embedding,
    tried,
)
from dsocr_analyze.model.loading import LoadedModel, load_model

__all__ = ["drafted"]

_GENERATING: Final = (
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
)
"""The auto classes' tables of models that generate, the most specific first."""


def _class_for(values: Config) -> str | None:
    """The class for a config that names none, preferably one that generates; else None.

    Raises:
        ConfigError: The installed transformers has no class for its `model_type`.
    """
    model_type, named = values.get("model_type"), values.get("architectures")
    if isinstance(named, list) and named:
        return None
    tables = [getattr(modeling_auto, name, {}) for name in _GENERATING]
    is_masked_model = model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if is_masked_model and not values.get("is_decoder"):
        tables.pop()  # BERT and its like can be made to generate, but are not meant to
    for table in [*tables, modeling_auto.MODEL_MAPPING_NAMES]:
        found = table.get(model_type)
        if found is not None:
            return found if isinstance(found, str) else str(found[0])
    raise ConfigError(
        f"config.json has model_type {model_type!r} and names no class in 'architectures', and"
        " transformers has none for it; give model_class='NAME'",
        arguments=["model_class"],
    )


def _is_masked(module: transformers.PreTrainedModel) -> bool:
    """Whether it is like BERT, of which old versions say that it generates."""
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    name, is_seq2seq = type(module).__name__, module.config.is_encoder_decoder
    return name in masked and name not in causal and not is_seq2seq


_FIRST_GUESS: Final = 7
"""Tokens of a picture in the first try, which hardly any model makes."""

_MOST_TRIES: Final = 12
"""Numbers of tokens that are tried for each way to describe the picture."""

_NO_VALUES: Final = ("no values on meta", "meta tensor")
"""What errors say that do not occur on a device."""


def drafted(
    directory: ModelDirectory,
    model_class: str | None = None,
    *,
    trust_remote_code: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
) -> str:
    """The text of a stages file that runs as it is.

    Args:
        directory: The model; it needs no stages file.
        model_class: Class to build; None for the config's, or else one that generates.
        trust_remote_code: The user agreed to execute the directory's Python files, if any.
        on_progress: Called with what begins.

    Raises:
        ConfigError: The config describes no model that transformers can build.
        ModelCodeError: Nothing describes one of its inputs, or it ran with no inputs tried.
    """
    chosen = model_class or _class_for(directory.config)
    directory = replace(directory, described=undescribed(directory.config, chosen))
    directory.check_values()
    model = load_model(
        directory,
        device=torch.device("meta"),
        dtype=torch.bfloat16,
        trust_remote_code=trust_remote_code,
    )
    on_progress("trying its inputs out")
    drafter = _Drafter(model, chosen)
    try:
        return drafter.text()
    except ModelCodeError as failure:
        if not drafter.generates or any(each in said(failure) for each in _NO_VALUES):
            raise
        try:
            return replace(drafter, may_generate=False).text()
        except ModelCodeError:
            raise failure from None


@dataclass
class _Drafter:
    """Drafts the file of a model on `meta`.

    It names `model_class`, unless the config does.
    """

    model: LoadedModel
    model_class: str | None
    may_generate: bool = True

    def __post_init__(self) -> None:
        self.module = cast("transformers.PreTrainedModel", self.model.module)
        self.names = frozenset(inspect.signature(self.module.forward).parameters)
        can_generate = self.may_generate and self.module.can_generate()
        self.generates = can_generate and not _is_masked(self.module)
        self._reads_text = "input_ids" in self.names
        has_decoder = "decoder_input_ids" in self.names
        # generate() may hand the inputs on to a language model, which starts its decoder.
        hands_on = self.generates and hasattr(self.module, "language_model")
        self._is_seq2seq = self.module.config.is_encoder_decoder and has_decoder and not hands_on
        takes_more = any(map(PICTURE_OR_SOUND.search, self.names))
        self._has_towers = takes_more and (self._reads_text or has_decoder)

    def text(self) -> str:
        """The file's text, which is read back here."""
        self._refuse_undescribed()
        found, notes = self._found()
        opening = [
            f"Drafted for {type(self.module).__name__} of transformers {transformers.__version__}.",
            "Numbers are the config's or examples: change them to your workload's.",
        ]
        if not self.may_generate:
            opening.append(
                "generate() does not run this model: one pass of its forward is counted."
            )
        text = _toml_text(found, opening, notes, routed_expert_of(self.module))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "draft.toml"
            file.write_text(text, encoding="utf-8")
            read = replace(read_description(file), file=found.file, routed_expert=None)
        assert read == found, "what was tried is not what was written"
        return text

    def _refuse_undescribed(self) -> None:
        """Raises if forward needs an argument that no rule describes."""
        main = self.module.main_input_name
        needed = {main} if isinstance(main, str) else {*main}
        for name, each in inspect.signature(self.module.forward).parameters.items():
            if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD:
                needed.add(name)
        missing = needed - DESCRIBED
        if missing:
            raise ModelCodeError(
                f"{type(self.module).__name__} takes {', '.join(sorted(missing))}, which no rule of"
                " a draft describes; write its stages file by hand (docs/any-model.md)"
            )

    def _found(self) -> tuple[Description, dict[str, str]]:
        """The first description with which the model runs, and notes about its inputs."""
        parameters = {name for name, _ in self.module.named_parameters()}
        towers = [
            self.module.get_submodule(path)
            for path, kind in beside_the_text(self.module, has_towers=self._has_towers)
            if kind in ("vision", "encoder") and path not in parameters
        ]
        submodules = frozenset(
            name for each in towers for name in inspect.signature(each.forward).parameters
        )
        failures = list[AnalyzeError]()
        for way in alternatives(self.names, self.module.config, submodules):
            guess, seen = self._with_tokens(way)
            if guess is not None:
                return guess, self._notes(guess, seen)
            assert seen.failure is not None, "else it is the one"
            failures.append(seen.failure)
        likeliest, *_ = failures
        raise ModelCodeError(
            f"{type(self.module).__name__} ran with none of the inputs that could be drafted; write"
            f" its stages file by hand (docs/any-model.md); with the likeliest, {likeliest}",
            arguments=likeliest.arguments,
        ) from likeliest

    def _with_tokens(self, inputs: dict[str, Input]) -> tuple[Description | None, Tried]:
        """The description with as many tokens as rows for the text model, if it runs."""
        embedding = text_embedding(self.module)
        width = 0 if embedding is None else int(embedding.weight.shape[-1])
        token = media_token(self.module.config, inputs)
        if token is None or not self._reads_text:
            # An encoder of pictures or sound may share its forward with one of text.
            reads_both = self._is_seq2seq and self._reads_text and inputs
            guess = self._description(inputs, None, 0, has_text=not reads_both)
            seen = tried(self.model, guess, width)
            if seen.failure is not None and reads_both:
                guess = self._description(inputs, None, 0)
                seen = tried(self.model, guess, width)
            return (guess if seen.failure is None else None), seen
        waiting, done = [_FIRST_GUESS], dict[int, tuple[Description, Tried]]()
        while waiting and len(done) < _MOST_TRIES:
            count = waiting.pop(0)
            guess = self._description(inputs, token, count)
            done[count] = guess, tried(self.model, guess, width)
            seen = done[count][1]
            if seen.failure is None and count in seen.put:
                return guess, seen
            found = seen.counts(width, {count, count + TOKENS_AROUND})
            waiting += [each for each in found if each not in (*done, *waiting)]
            if not waiting and 1 not in done:
                waiting.append(1)
        if 1 in done:
            # The text attends to its picture, or the model makes many tokens of it.
            guess, seen = done[1]
            grown = [TOKENS_AROUND + rows for rows in seen.put]
            if seen.failure is None and (not grown or {*grown} & {*seen.computed}):
                return guess, seen
        failed = [seen for _, seen in done.values() if seen.failure is not None]
        unfit = ModelCodeError(f"it puts other rows in the place of {[*done]} tokens")
        return None, (failed or [Tried(unfit)])[0]

    def _description(
        self, inputs: dict[str, Input], token: int | None, count: int, *, has_text: bool = True
    ) -> Description:
        """A description with `count` tokens of a picture and, if read, text."""
        config = self.module.config
        placed, tokens = ids_of(config, token, count, has_picture="pixel_values" in inputs)
        prompt: Prompt | None = None
        given = dict(inputs)
        if self._is_seq2seq:
            prompt = Prompt(1, "decoder_input_ids", first_id(self.module), (), ())
            if self._reads_text and has_text:
                ids = tensor("batch", tokens, fill=text_id(config), dtype="int64", placed=placed)
                mask = tensor("batch", tokens, dtype="int64")
                given = {"input_ids": ids, "attention_mask": mask, **given}
        elif self._reads_text:
            prompt = Prompt(tokens, "input_ids", text_id(config), placed, ())
        images = tuple(replace(run, value=1) for run in placed if run.value == token)
        for name in ("mm_token_type_ids", "image_embeds_position_mask"):
            if name in self.names:
                given[name] = tensor("batch", "tokens", fill=0, dtype="int64", placed=images)
        return Description(
            file="the draft",
            name=str(self.module.config.model_type),
            model_class=self.model_class,
            attention="eager",
            routed_expert=None,
            stages=stages_of(self.module, has_towers=self._has_towers, decodes=self.generates),
            prompt=prompt,
            inputs=given,
            has_decode_table=False,
        )

    def _notes(self, found: Description, seen: Tried) -> dict[str, str]:
        notes = {
            "pixel_values": "of one picture, in the config's size",
            "input_features": "of one recording",
            "input_values": "of one recording: ten seconds of sound",
            "image_grid_thw": "its frames, and its rows and columns of patches",
            "image_sizes": "height and width of the picture",
            "input_ids": "the text that the encoder reads",
        }
        prompt = found.prompt
        if prompt is not None and prompt.argument != "input_ids":
            notes["prompt"] = "with which decoding starts"
        elif prompt is not None:
            counts = [run.count for run in prompt.placed if run.count in seen.put]
            notes["prompt"] = (
                f"{counts[0]} stand for the picture or recording, {prompt.tokens - counts[0]} for"
                " text around it"
                if counts
                else "change it to your prompt's"
            )
        return notes


# --- the file --------------------------------------------------------------------------------


_STAGE_NOTES: Final[Mapping[str, str]] = {
    "prefill": "the rest of the first pass",
    "decode": "one step, which computes the logits of one token",
    "model": "the one pass of a model that generates nothing",
}


def _toml_text(
    description: Description, opening: list[str], notes: Mapping[str, str], expert: str | None
) -> str:
    """The file's text.

    `notes` are about the prompt (`prompt`) and inputs, and `expert` the path of routed experts.
    """
    lines = [f"# {line}" for line in opening]
    named = {"name": description.name, "class": description.model_class, "routed_expert": expert}
    lines += _entries(named)
    for stage in description.stages:
        role = None if stage.role == "vision" else stage.role
        entries = {"name": stage.name, "prefixes": stage.prefixes, "role": role}
        lines += ["", "[[stages]]", *_entries(entries, _STAGE_NOTES.get(stage.name))]
    if description.prompt is not None:
        lines += ["", "[prompt]", *_entries(_prompt(description.prompt), notes.get("prompt"))]
    for name, value in description.inputs.items():
        assert isinstance(value, TensorInput), "every rule of a draft gives a tensor"
        lines += ["", f"[inputs.{name}]", *_entries(_tensor(value), notes.get(name))]
    return "\n".join([*lines, ""])


def _prompt(prompt: Prompt) -> dict[str, Any]:
    argument = None if prompt.argument == "input_ids" else prompt.argument
    fill = prompt.fill or None
    return {"tokens": prompt.tokens, "argument": argument, "fill": fill, "placed": prompt.placed}


def _tensor(value: TensorInput) -> dict[str, Any]:
    has_type = value.dtype != MODEL_DTYPE and value.values is None
    return {
        "shape": value.shape if value.values is None else None,
        "values": value.values,
        "dtype": value.dtype if has_type else None,
        "fill": None if value.fill == 1 else value.fill,
        "placed": value.placed,
        "repeat": "batch" if value.is_repeated else None,
    }


def _entries(values: Mapping[str, Any], note: str | None = None) -> Iterator[str]:
    """A line per value, which is alike in TOML and JSON; the note stands beside the first."""
    for key, value in values.items():
        if key == "placed" and value:
            yield "placed = ["
            for run in value:
                yield f"  {{ value = {run.value}, start = {run.start}, count = {run.count} }},"
            yield "]"
        elif key != "placed" and value is not None:
            yield f"{key} = {json.dumps(value)}" + (f"  # {note}" if note else "")
            note = None
