"""The environment of a vendor's `infer()`, which needs more than a bare pass, and its tokenizer.

As in `forward`, the vendor's files are not edited and everything is restored on the way out.
"""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import torch

from dsocr_analyze.errors import ModelDirectoryError
from dsocr_analyze.measuring import picture_transforms
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import running_unwatched
from dsocr_analyze.model.generation import flash_attention
from dsocr_analyze.model.loading import LoadedModel
from dsocr_analyze.model.process_settings import answered, quiet_transformers, replaced
from dsocr_analyze.model.tokenizer_file import named_tokenizer_failures, read_tokenizer_file
from dsocr_analyze.model.torch_calls import Value
from dsocr_analyze.model.unused_imports import is_missing
from dsocr_analyze.workload.workload import text_parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = [
    "inferring",
    "load_tokenizer",
    "stand_in_tokenizer",
    "stands_in_for_torchvision",
    "text_tokens",
]


@contextlib.contextmanager
def inferring(model: LoadedModel) -> Iterator[None]:
    """Sets up the environment for a model's `infer()`, on any device that computes."""
    device = model.device
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            running_unwatched(device, flash_attention, has_weights=model.has_weights)
        )
        # It permanently disables the initialisation of layers.
        for layer in (torch.nn.Linear, torch.nn.LayerNorm):
            stack.enter_context(replaced(layer, "reset_parameters", layer.reset_parameters))
        # transformers warns about a temperature that greedy generation ignores.
        quiet = [("ignore", None, UserWarning, None, 0), *warnings.filters]
        stack.enter_context(replaced(warnings, "filters", quiet))
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        else:
            autocast = torch.amp.autocast_mode.autocast
            stack.enter_context(
                answered(autocast, "__init__", _autocast_on(device, autocast.__init__))
            )
        code = _code_of(model)
        if stands_in_for_torchvision(model):
            stack.enter_context(replaced(code, "transforms", picture_transforms))
        yield


def stands_in_for_torchvision(model: LoadedModel) -> bool:
    """Whether the code of `infer()` needs torchvision, which is not installed."""
    transforms = getattr(_code_of(model), "transforms", None)
    return is_missing(getattr(transforms, "ToTensor", None))


def _code_of(model: LoadedModel) -> types.ModuleType:
    """The module that defines the model's class."""
    return sys.modules[type(model.module).__module__]


def _autocast_on(device: torch.device, original: Callable[..., None]) -> Callable[..., None]:
    """A region's constructor that replaces CUDA by the given device."""

    def __init__(  # noqa: N807 - replaces it
        self: torch.autocast, device_type: str, *args: Value, **kwargs: Value
    ) -> None:
        original(self, device.type if device_type == "cuda" else device_type, *args, **kwargs)

    return __init__


# --- the tokenizer ---------------------------------------------------------------------------


_BOS: Final = "<bos>"
_EOS: Final = "<eos>"


def load_tokenizer(directory: ModelDirectory) -> PreTrainedTokenizerFast:
    """Loads the directory's tokenizer with transformers, without executing its code.

    Raises:
        ModelDirectoryError: It cannot be read, or does not name its end-of-sequence token.
    """
    from transformers import PreTrainedTokenizerFast

    read_tokenizer_file(directory.tokenizer_file)  # transformers reads any file it finds there
    with named_tokenizer_failures(directory.tokenizer_file), quiet_transformers():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(
            str(directory.path), local_files_only=True
        )
    if tokenizer.eos_token_id is None:
        raise ModelDirectoryError(
            f"the tokenizer in {str(directory.path)!r} has no 'eos_token'; set it in"
            " its tokenizer_config.json"
        )
    return tokenizer


def stand_in_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of 258 tokens: BOS (0), the end of sequence (1), and every byte.

    Text becomes more tokens than with a trained tokenizer; higher token ids have no text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([_BOS, _EOS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_BOS,
        eos_token=_EOS,
        clean_up_tokenization_spaces=False,
    )


def text_tokens(tokenizer: PreTrainedTokenizerFast, prompt: str) -> int:
    """Tokens of a prompt besides the visual ones, including BOS."""
    parts = (tokenizer.encode(part, add_special_tokens=False) for part in text_parts(prompt))
    return 1 + sum(map(len, parts))
