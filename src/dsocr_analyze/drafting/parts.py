"""The stages of a model: its modules, told apart by what transformers says and by name.

transformers knows the token embedding, the head and, of an encoder-decoder, the encoder. What lies
beside the text model is told apart by its path and class: a tower for pictures or sound, or a
projector.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import torch

from dsocr_analyze.architectures.stages import Stage

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["beside_the_text", "routed_expert_of", "stages_of", "text_embedding"]

_KINDS: Final[Mapping[str, re.Pattern[str]]] = {
    "projector": re.compile(
        r"project|connector|aligner|resampler|perceiver|qformer|abstractor|adapter|merger|bridge"
        r"|embed_vision|embed_audio|query_tokens|image_newline|enc_to_dec|image_to_text"
    ),
    "audio": re.compile(r"audio|speech|sound|wav2vec|hubert|conformer|codec"),
    "vision": re.compile(r"vision|visual|image|pixel|vit|siglip|vq_?(model|vae)"),
}
"""Words in the name or the class of a module, the most telling first."""

_ORDER: Final = ("vision", "audio", "encoder", "projector")


def stages_of(module: PreTrainedModel, *, has_towers: bool, decodes: bool) -> tuple[Stage, ...]:
    """The stages of a model, in the order in which they run.

    Args:
        module: The model.
        has_towers: Whether it takes pictures or sound besides text, or turns them into text.
        decodes: Whether it generates tokens.
    """
    head = _path_of(module, module.get_output_embeddings()) if decodes else None
    owned: dict[str, list[str]] = {}
    for path, kind in beside_the_text(module, has_towers=has_towers):
        if path != head:
            owned.setdefault(kind, []).append(path)
    stages = [Stage(kind, tuple(owned[kind]), "vision") for kind in _ORDER if kind in owned]
    taken = [head, *(path for paths in owned.values() for path in paths)]
    rest = tuple(path for path in _outermost(module) if path not in taken)
    stages.append(Stage("prefill" if decodes else "model", rest, "prefill"))
    if decodes:
        stages.append(Stage("decode", () if head is None else (head,), "decode"))
    return tuple(stages)


def text_embedding(module: PreTrainedModel) -> torch.nn.Embedding | None:
    """The embedding of the tokens that go into the text model or decoder; None without one."""
    with contextlib.suppress(NotImplementedError, AttributeError):
        decoder = module.get_decoder() if module.config.is_encoder_decoder else module
        found = decoder.get_input_embeddings()
        return found if getattr(found, "weight", torch.empty(0)).dim() == 2 else None
    return None


def routed_expert_of(module: torch.nn.Module) -> str | None:
    """The pattern of the paths of experts that are modules of their own; None without any."""
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


def beside_the_text(module: PreTrainedModel, *, has_towers: bool) -> Iterator[tuple[str, str]]:
    """Path and kind of all that is not the text model, from the top down to the latter."""
    encoder = _encoder_of(module)
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


def _encoder_of(module: PreTrainedModel) -> str | None:
    if not module.config.is_encoder_decoder or not hasattr(module, "get_encoder"):
        return None
    return _path_of(module, module.get_encoder())


def _outermost(module: torch.nn.Module) -> list[str]:
    """Paths of the outermost modules and parameters with weights."""
    names = {name.split(".")[0]: None for name, _ in module.named_parameters()}
    return list(names)
