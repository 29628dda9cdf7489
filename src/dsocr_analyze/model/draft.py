"""Drafts a stages file with which a first pass on `meta` runs."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, cast

import torch
import transformers
from transformers.models.auto import modeling_auto

from dsocr_analyze.architectures.any_model import DescribedModel, undescribed
from dsocr_analyze.architectures.architecture import MODEL_DTYPE, Input, Prompt, TensorInput
from dsocr_analyze.architectures.config_file import Config
from dsocr_analyze.errors import AnalyzeError, ConfigError, ModelCodeError
from dsocr_analyze.figures import owner_among
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import blamed_on, running
from dsocr_analyze.model.generation import Generation, left_as_it_was
from dsocr_analyze.model.loading import LoadedModel, load_model
from dsocr_analyze.model.process_settings import (
    Arguments,
    Function,
    FunctionMode,
    Keywords,
    Value,
    exclusive,
    tensors_in,
)
from dsocr_analyze.model.recognition import (
    DESCRIBED,
    PICTURE_OR_SOUND,
    TOKENS_AROUND,
    alternatives,
    beside_the_text,
    first_id,
    ids_of,
    media_token,
    routed_expert_of,
    stages_of,
    text_embedding,
    text_id,
)

_GENERATING: Final = (
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
)
"""Tables of models that generate, the most specific first."""

_FIRST_GUESS: Final = 7
"""Tokens of a picture that hardly any model makes."""

_PLACES: Final = "image_embeds_position_mask"
"""The argument of models whose picture's tokens have no id."""

_MOST_TRIES: Final = 12
_MOST_COMPUTED: Final = 4
"""Different numbers of rows, the last that modules computed, that are tried."""

_NO_VALUES: Final = ("no values on meta", "meta tensor")
"""In errors that do not occur on a device."""

_WRITES: Final = frozenset(
    {"masked_scatter", "masked_scatter_", "index_put", "index_put_", "__setitem__"}
)
"""How a tower's output is put in the places of image or audio tokens."""


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
        trust_remote_code: Whether the user agreed to execute the directory's Python files.
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
        if not drafter.generates or any(each in _said(failure) for each in _NO_VALUES):
            raise
        try:
            return _Drafter(model, chosen, may_generate=False).text()
        except ModelCodeError:
            raise failure from None


def _class_for(values: Config) -> str | None:
    """The class for a config that names none, preferably one that generates.

    Raises ConfigError if the installed transformers has no class for its `model_type`.
    """
    model_type, named = values.get("model_type"), values.get("architectures")
    if isinstance(named, list) and named:
        return None
    tables = [getattr(modeling_auto, name, {}) for name in _GENERATING]
    is_masked_model = model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if is_masked_model and not values.get("is_decoder"):
        tables.pop()  # BERT and its like can be made to generate, but are not meant to
    tables.append(modeling_auto.MODEL_MAPPING_NAMES)
    found = next((table[model_type] for table in tables if model_type in table), None)
    if found is None:
        raise ConfigError(
            f"config.json has model_type {model_type!r} and names no class in 'architectures', and"
            " transformers has none for it; give model_class='NAME'",
            arguments=["model_class"],
        )
    return found if isinstance(found, str) else str(found[0])


def _is_masked(module: transformers.PreTrainedModel) -> bool:
    """Whether it is like BERT, of which old versions say that it generates."""
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    name, is_seq2seq = type(module).__name__, module.config.is_encoder_decoder
    return name in masked and name not in causal and not is_seq2seq


class _Drafter:
    """Drafts the file of a model on `meta`, which names `model_class`, if any."""

    def __init__(
        self, model: LoadedModel, model_class: str | None, *, may_generate: bool = True
    ) -> None:
        self._model, self._class, self._may_generate = model, model_class, may_generate
        self._module = module = cast("transformers.PreTrainedModel", model.module)
        self._parameters = inspect.signature(module.forward).parameters
        names = self._names = frozenset(self._parameters)
        self.generates = may_generate and module.can_generate() and not _is_masked(module)
        self._reads_text = "input_ids" in names
        has_decoder = "decoder_input_ids" in names
        # generate() may hand the inputs on to a language model, which starts its decoder.
        hands_on = self.generates and hasattr(module, "language_model")
        self._is_seq2seq = module.config.is_encoder_decoder and has_decoder and not hands_on
        takes_more = any(map(PICTURE_OR_SOUND.search, names))
        self._has_towers = takes_more and (self._reads_text or has_decoder)
        embedding = text_embedding(module)
        self._width = 0 if embedding is None else int(embedding.weight.shape[-1])

    def text(self) -> str:
        """The file's text."""
        self._refuse_undescribed()
        tried = self._tried()
        name = type(self._module).__name__
        opening = [
            f"Drafted for {name} of transformers {transformers.__version__}.",
            "Numbers are the config's or examples: change them to your workload's.",
        ]
        if not self._may_generate:
            opening.append(
                "generate() does not run this model: one pass of its forward is counted."
            )
        return _toml_text(tried, opening, routed_expert_of(self._module))

    def _refuse_undescribed(self) -> None:
        """Refuses a forward with an argument that no rule describes."""
        main = self._module.main_input_name
        needed = {
            name
            for name, each in self._parameters.items()
            if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
        }
        missing = needed.union([main] if isinstance(main, str) else main) - DESCRIBED
        if missing:
            raise ModelCodeError(
                f"{type(self._module).__name__} takes {', '.join(sorted(missing))}, which no rule"
                " of a draft describes; write its stages file by hand (docs/any-model.md)"
            )

    def _tried(self) -> _Tried:
        """The first way in which the model runs."""
        submodules = frozenset(
            name
            for _, kind, part in beside_the_text(self._module, has_towers=self._has_towers)
            if kind in ("vision", "encoder") and isinstance(part, torch.nn.Module)
            for name in inspect.signature(part.forward).parameters
        )
        failures = list[AnalyzeError]()
        for way in alternatives(self._names, self._module.config, submodules):
            tried = self._with_tokens(way)
            if tried.failure is None:
                return tried
            failures.append(tried.failure)
        likeliest, *_ = failures
        raise ModelCodeError(
            f"{type(self._module).__name__} ran with none of the inputs that could be drafted;"
            f" write its stages file by hand (docs/any-model.md); with the likeliest, {likeliest}",
            arguments=likeliest.arguments,
        ) from likeliest

    def _with_tokens(self, inputs: dict[str, Input]) -> _Tried:
        """The pass with as many tokens as rows for the text model."""
        token = media_token(self._module.config, inputs)
        if token is None and inputs and _PLACES in self._names:
            token = text_id(self._module.config)  # whatever stands there
        if token is None or not self._reads_text:
            # An encoder of pictures or sound may share its forward with one of text.
            reads_both = self._is_seq2seq and self._reads_text and inputs
            tried = self._try(inputs, has_text=not reads_both)
            return self._try(inputs) if tried.failure and reads_both else tried
        waiting, done = [_FIRST_GUESS], dict[int, _Tried]()
        while waiting and len(done) < _MOST_TRIES:
            count = waiting.pop(0)
            tried = done[count] = self._try(inputs, token, count)
            if tried.failure is None and count in tried.put:
                return tried
            found = tried.counts(self._width, {count, count + TOKENS_AROUND})
            waiting += [each for each in found if each not in (*done, *waiting)]
            if not waiting and 1 not in done:
                waiting.append(1)
        if 1 in done and done[1].failure is None:
            # The text attends to its picture, or the model makes many tokens of it.
            grown = {TOKENS_AROUND + rows for rows in done[1].put}
            if not grown or grown & {*done[1].computed}:
                return done[1]
        failed = [tried for tried in done.values() if tried.failure is not None]
        unfit = ModelCodeError(f"it puts other rows in the place of {[*done]} tokens")
        return failed[0] if failed else replace(done[_FIRST_GUESS], failure=unfit)

    def _try(
        self,
        inputs: dict[str, Input],
        token: int | None = None,
        count: int = 0,
        *,
        has_text: bool = True,
    ) -> _Tried:
        """The first pass with `count` tokens of a picture and, if read, text."""
        config = self._module.config
        placed, tokens = ids_of(config, token, count, has_picture="pixel_values" in inputs)
        prompt, given = None, dict(inputs)
        if self._is_seq2seq:
            prompt = Prompt(1, "decoder_input_ids", first_id(self._module))
            if self._reads_text and has_text:
                shape = ("batch", tokens)
                ids = TensorInput(shape, None, "int64", text_id(config), placed)
                mask = TensorInput(shape, dtype="int64")
                given = {"input_ids": ids, "attention_mask": mask, **given}
        elif self._reads_text:
            prompt = Prompt(tokens, "input_ids", text_id(config), placed)
        images = tuple(replace(run, value=1) for run in placed if run.value == token)
        for name in ("mm_token_type_ids", _PLACES):
            if name in self._names:
                given[name] = TensorInput(("batch", "tokens"), None, "int64", 0, images)
        described = DescribedModel(
            "the draft",
            str(config.model_type),
            self._class,
            stages=stages_of(self._module, has_towers=self._has_towers, decodes=self.generates),
            prompt=prompt,
            inputs=given,
        )
        return _first_pass(self._model, described, self._width)


# --- the first pass --------------------------------------------------------------------------


@dataclass
class _Tried:
    """What the first pass of a description showed.

    Attributes:
        failure: None if it ran.
        put: Rows of the text model's width that each write put in the place of tokens.
        computed: Rows of that width that modules computed, in order.
    """

    described: DescribedModel
    failure: AnalyzeError | None = None
    put: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)

    def counts(self, width: int, known: set[int]) -> list[int]:
        """How many tokens the prompt may need, likeliest first."""
        found = [*reversed(self.put)]
        text = _said(self.failure)
        if set(self.computed) - known or "token" in text:
            # What models raise may name the two numbers that they compare.
            numbers = [int(each) for each in re.findall(r"\b\d+\b", text)]
            found += [each // width for each in numbers if each % width == 0] + numbers
            found += [*dict.fromkeys(reversed(self.computed))][:_MOST_COMPUTED]
        return [each for each in dict.fromkeys(found) if each > 0 and each not in known]


def _said(failure: BaseException | None) -> str:
    """What the model itself raised."""
    while failure is not None and failure.__cause__ is not None:
        failure = failure.__cause__
    return str(failure or "")


def _first_pass(model: LoadedModel, described: DescribedModel, width: int) -> _Tried:
    """Runs on `meta` a model with `width` numbers per token."""
    model = replace(model, directory=replace(model.directory, described=described))
    tried, ran = _Tried(described), set[str]()

    def note(path: str, _module: torch.nn.Module, _inputs: Arguments, output: Value) -> None:
        ran.add(path)
        for found in tensors_in(output.values() if isinstance(output, dict) else (output,)):
            if found.dim() > 1 and found.shape[-1] == width:
                tried.computed.append(found.numel() // width)

    def call(func: Function, args: Arguments, kwargs: Keywords) -> Value:
        given = [*args, *kwargs.values()]
        if getattr(func, "__name__", "") in _WRITES and isinstance(given[-1], torch.Tensor):
            into, source = given[0], given[-1]
            if into.dim() > 1 and into.shape[-1] == width and into.is_floating_point():
                tried.put.append(source.numel() // width)
        return func(*args, **kwargs)

    try:
        with (
            exclusive(),
            blamed_on(model.directory, "failed"),
            left_as_it_was(model.module.modules()),  # which removes the hooks
            running(model.device),
            FunctionMode(call),
        ):
            for path, each in model.module.named_modules():
                each.register_forward_hook(partial(note, path))
            lengths = described.plan(max_new_tokens=2)
            Generation(model, lengths, described, lambda: None).prefill()
        _refuse_idle(model, described, ran)
    except AnalyzeError as error:
        tried.failure = error
    return tried


def _refuse_idle(model: LoadedModel, described: DescribedModel, ran: set[str]) -> None:
    """Raises if a tower did not run, for want of an argument."""
    parameters = {name for name, _ in model.module.named_parameters()}
    for stage in described.stages:
        modules = [path for path in stage.prefixes if path not in parameters]
        is_tower = stage.role == "vision" and bool(modules)
        if is_tower and not any(owner_among((stage,), path) for path in ran):
            raise ModelCodeError(f"{modules[0]} did not run")


# --- the file --------------------------------------------------------------------------------


_NOTES: Final[Mapping[str, str]] = {
    "prefill": "the rest of the first pass",
    "decode": "one step, which computes the logits of one token",
    "model": "the one pass of a model that generates nothing",
    "pixel_values": "of one picture, in the config's size",
    "input_features": "of one recording",
    "input_values": "of one recording: ten seconds of sound",
    "image_grid_thw": "its frames, and its rows and columns of patches",
    "image_sizes": "height and width of the picture",
    "input_ids": "the text that the encoder reads",
}
"""On stages and inputs."""


def _toml_text(tried: _Tried, opening: list[str], expert: str | None) -> str:
    """The file's text, with the path of routed experts."""
    described = tried.described
    lines = [f"# {line}" for line in opening]
    named = {"name": described.name, "class": described.model_class, "routed_expert": expert}
    lines += _entries(named)
    for stage in described.stages:
        role = None if stage.role == "vision" else stage.role
        entries = {"name": stage.name, "prefixes": stage.prefixes, "role": role}
        lines += ["", "[[stages]]", *_entries(entries, _NOTES.get(stage.name))]
    if described.prompt is not None:
        lines += ["", "[prompt]", *_prompt(described.prompt, tried.put)]
    for name, value in described.inputs.items():
        assert isinstance(value, TensorInput), "every rule of a draft gives a tensor"
        lines += ["", f"[inputs.{name}]", *_entries(_tensor(value), _NOTES.get(name))]
    return "\n".join([*lines, ""])


def _prompt(prompt: Prompt, put: list[int]) -> Iterator[str]:
    counts = [run.count for run in prompt.placed if run.count in put]
    note, argument = "change it to your prompt's", None
    if prompt.argument != "input_ids":
        note, argument = "with which decoding starts", prompt.argument
    elif counts:
        note = (
            f"{counts[0]} stand for the picture or recording, {prompt.tokens - counts[0]} for text"
            " around it"
        )
    entries = {"tokens": prompt.tokens, "argument": argument, "fill": prompt.fill or None}
    return _entries({**entries, "placed": prompt.placed}, note)


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
    """A line per value, alike in TOML and JSON; the note stands beside the first."""
    for key, value in values.items():
        if key == "placed" and value:
            yield "placed = ["
            for run in value:
                yield f"  {{ value = {run.value}, start = {run.start}, count = {run.count} }},"
            yield "]"
        elif key != "placed" and value is not None:
            yield f"{key} = {json.dumps(value)}" + (f"  # {note}" if note else "")
            note = None
