"""A model on `meta`: its stages, and what a first pass puts into its text model.

transformers knows the token embedding, the head and the encoder. Towers for pictures and sound, and
projectors, are recognised by their path and class.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
import transformers

from dsocr_analyze.architectures.any_model import DescribedModel
from dsocr_analyze.architectures.any_model.description import Description
from dsocr_analyze.architectures.stages import StageScope, owner_among
from dsocr_analyze.errors import AnalyzeError, ModelCodeError
from dsocr_analyze.model.failures import blamed_on
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.generation import Generation, left_as_it_was
from dsocr_analyze.model.loading import LoadedModel
from dsocr_analyze.model.process_settings import exclusive
from dsocr_analyze.model.torch_calls import (
    Arguments,
    Function,
    FunctionMode,
    Keywords,
    Value,
    tensors_in,
)

__all__ = [
    "Tried",
    "beside_the_text",
    "routed_expert_of",
    "said",
    "stages_of",
    "text_embedding",
    "tried",
]

_KINDS: Final[Mapping[str, re.Pattern[str]]] = {
    "projector": re.compile(
        r"project|connector|aligner|resampler|perceiver|qformer|abstractor|adapter|merger|bridge"
        r"|embed_vision|embed_audio|query_tokens|image_newline|enc_to_dec|image_to_text"
    ),
    "audio": re.compile(r"audio|speech|sound|wav2vec|hubert|conformer|codec"),
    "vision": re.compile(r"vision|visual|image|pixel|vit|siglip|vq_?(model|vae)"),
}
"""Words in a module's name or class, the most specific first."""

_ORDER: Final = ("vision", "audio", "encoder", "projector")


def stages_of(
    module: transformers.PreTrainedModel, *, has_towers: bool, decodes: bool
) -> tuple[StageScope, ...]:
    """The stages of a model, in the order in which they run.

    A model `has_towers` if it takes pictures or sound besides text, or turns them into text.
    """
    head = _path_of(module, module.get_output_embeddings()) if decodes else None
    owned: dict[str, list[str]] = {}
    for path, kind in beside_the_text(module, has_towers=has_towers):
        if path != head:
            owned.setdefault(kind, []).append(path)
    stages = [StageScope(kind, tuple(owned[kind]), "vision") for kind in _ORDER if kind in owned]
    taken = [head, *(path for paths in owned.values() for path in paths)]
    # The outermost modules and parameters with weights.
    outermost = dict.fromkeys(name.split(".")[0] for name, _ in module.named_parameters())
    rest = tuple(path for path in outermost if path not in taken)
    stages.append(StageScope("prefill" if decodes else "model", rest, "prefill"))
    if decodes:
        stages.append(StageScope("decode", () if head is None else (head,), "decode"))
    return tuple(stages)


def text_embedding(module: transformers.PreTrainedModel) -> torch.nn.Embedding | None:
    """The embedding of the text model's or decoder's tokens; None without one."""
    with contextlib.suppress(NotImplementedError, AttributeError):
        decoder = module.get_decoder() if module.config.is_encoder_decoder else module
        found = decoder.get_input_embeddings()
        return found if getattr(found, "weight", torch.empty(0)).dim() == 2 else None
    return None


def routed_expert_of(module: torch.nn.Module) -> str | None:
    """A pattern of the paths of experts that are modules; None without any."""
    found = {
        re.sub(r"\.\d+(?=\.|$)", ".*", path) + ".*"
        for path, each in module.named_modules()
        if path.rpartition(".")[2].endswith("experts")
        and isinstance(each, torch.nn.ModuleList)
        and len(each) > 1
    }
    return min(found) if len(found) == 1 else None


def _path_of(module: torch.nn.Module, wanted: torch.nn.Module | None) -> str | None:
    return next((path for path, each in module.named_modules() if each is wanted), None)


def beside_the_text(
    module: transformers.PreTrainedModel, *, has_towers: bool
) -> Iterator[tuple[str, str]]:
    """Path and kind of all that is not the text model, from the top down to the latter."""
    has_encoder = module.config.is_encoder_decoder and hasattr(module, "get_encoder")
    encoder = _path_of(module, module.get_encoder()) if has_encoder else None
    if encoder is not None:
        yield encoder, "encoder"
    if not has_towers:
        return
    embedding = _path_of(module, text_embedding(module)) or ""
    way = embedding.split(".")[:-1]  # from the top to the module that holds the embedding
    inside = [".".join([*way[:depth], ""]) for depth in range(len(way) + 1)]
    for prefix in inside:
        here = module.get_submodule(prefix.rstrip("."))
        parts = {**here._parameters, **here._modules}
        for name, part in parts.items():
            path = prefix + name
            if part is None or f"{path}." in inside or name.startswith("text") or path == encoder:
                continue
            # The layers of a text model have classes named after the whole model.
            class_name = "" if prefix == inside[-1] and way else type(part).__name__
            words = f"{name} {class_name}".lower()
            found = next((kind for kind, told in _KINDS.items() if told.search(words)), None)
            if found is not None:
                yield path, found


# --- the first pass --------------------------------------------------------------------------


_WRITES: Final = frozenset(
    {"masked_scatter", "masked_scatter_", "index_put", "index_put_", "__setitem__"}
)
"""How models put a tower's output in the places of image or audio tokens."""


_MOST_COMPUTED: Final = 4
"""Different numbers of rows, the last that modules computed, that are tried."""


@dataclass
class Tried:
    """What a first pass showed.

    Attributes:
        failure: Why it failed; None if it ran.
        ran: Paths of the modules that were called.
        put: Rows of the text model's width that each write put in the place of tokens.
        computed: Rows of that width that modules computed, in order.
    """

    failure: AnalyzeError | None = None
    ran: set[str] = field(default_factory=set)
    put: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)

    def counts(self, width: int, known: set[int]) -> list[int]:
        """How many tokens the prompt may need, likeliest first, without those known."""
        found = [*reversed(self.put)]
        text = said(self.failure)
        if set(self.computed) - known or "token" in text:
            # What models raise may name the two numbers that they compare.
            numbers = [int(each) for each in re.findall(r"\b\d+\b", text)]
            found += [each // width for each in numbers if each % width == 0] + numbers
            found += [*dict.fromkeys(reversed(self.computed))][:_MOST_COMPUTED]
        return [each for each in dict.fromkeys(found) if each > 0 and each not in known]


def said(failure: BaseException | None) -> str:
    """What the model itself raised."""
    while failure is not None and failure.__cause__ is not None:
        failure = failure.__cause__
    return str(failure or "")


def _noting_rows(
    width: int, seen: Tried, func: Function, args: Arguments, kwargs: Keywords
) -> Value:
    """Makes a call; notes the rows of a width that it writes into another tensor."""
    given = [*args, *kwargs.values()]
    if getattr(func, "__name__", "") in _WRITES and isinstance(given[-1], torch.Tensor):
        into, source = given[0], given[-1]
        if into.dim() > 1 and into.shape[-1] == width and into.is_floating_point():
            seen.put.append(source.numel() // width)
    return func(*args, **kwargs)


def _refuse_idle(model: LoadedModel, stages: Sequence[StageScope], ran: set[str]) -> None:
    """Raises if a tower did not run, as it takes an argument that was not given."""
    parameters = {name for name, _ in model.module.named_parameters()}
    for stage in stages:
        modules = [path for path in stage.prefixes if path not in parameters]
        is_tower = stage.role == "vision" and bool(modules)
        if is_tower and not any(owner_among((stage,), path) for path in ran):
            raise ModelCodeError(f"{modules[0]} did not run")


def tried(model: LoadedModel, description: Description, width: int) -> Tried:
    """Runs the first pass of a description on `meta`, with `width` numbers per token."""
    architecture = DescribedModel(description)
    model = replace(model, directory=replace(model.directory, described=architecture))
    seen = Tried()

    def note(path: str, _module: torch.nn.Module, _inputs: Arguments, output: Value) -> None:
        seen.ran.add(path)
        for found in tensors_in(output.values() if isinstance(output, dict) else (output,)):
            if found.dim() > 1 and found.shape[-1] == width:
                seen.computed.append(found.numel() // width)

    hooks = [
        each.register_forward_hook(functools.partial(note, path))
        for path, each in model.module.named_modules()
    ]
    try:
        with (
            exclusive(),
            blamed_on(model.directory, "failed"),
            left_as_it_was(model.module),
            running(model.device),
            FunctionMode(functools.partial(_noting_rows, width, seen)),
        ):
            lengths = architecture.plan(max_new_tokens=2)
            Generation(model, lengths, architecture, lambda: None).prefill()
        _refuse_idle(model, architecture.stages, seen.ran)
    except AnalyzeError as error:
        seen.failure = error
    finally:
        for hook in hooks:
            hook.remove()
    return seen
