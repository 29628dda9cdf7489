"""The tokenizer for a model's `infer()`: the directory's, or a generated one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsocr_analyze.errors import ModelDirectoryError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.tokenizer_file import named_tokenizer_failures, read_tokenizer_file
from dsocr_analyze.running.process_settings import quiet_transformers
from dsocr_analyze.workload.workload import text_parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["load_tokenizer", "stand_in_tokenizer", "text_tokens"]

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
