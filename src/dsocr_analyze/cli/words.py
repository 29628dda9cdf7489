"""What the options are called, in place of the library's arguments, and which were given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import typer

__all__ = ["OPTIONS", "given_options", "in_options"]

OPTIONS: Final[dict[str, str]] = {
    "architecture": "--arch",
    "base_size": "--base-size",
    "batch_size": "--batch-size",
    "concurrency": "--concurrency",
    "corrections": "--corrections",
    "crop_mode": "--crop-mode",
    "device": "--device",
    "device='cpu'": "--device cpu",
    "dtype": "--dtype",
    "flash_attention": "--use-flash-attn",
    "gpu": "--gpu",
    "image": "--image",
    "image_size": "--image-size",
    "kind": "--kind",
    "kv_dtype": "--kv-dtype",
    "max_new_tokens": "--max-new-tokens",
    "maximum_compression": "--maximum-compression",
    "mean_new_tokens": "--mean-new-tokens",
    "minimum_dpi": "--minimum-dpi",
    "mode": "--mode",
    "model_class": "--class",
    "new_tokens_from": "--new-tokens-from",
    "page": "--page",
    "page_dpi": "--page-dpi",
    "page_text_tokens": "--page-text-tokens",
    "pdf_dpi": "--pdf-dpi",
    "preprocess_ms": "--preprocess-ms",
    "price": "--price",
    "prompt": "--prompt",
    "prompt_pages": "--prompt-pages",
    "random_weights": "--random-weights",
    "repeats": "--repeats",
    "reserved": "--reserved",
    "runtime": "--runtime",
    "seq_len": "--seq-len",
    "server": "--server",
    "server_version": "--server-version",
    "sliding_window": "--sliding-window",
    "stages": "--stages",
    "steps": "--steps",
    "text_tokens": "--text-tokens",
    "the analytic engine": "--engine analytic",
    "trust_remote_code": "--trust-remote-code",
    "warmups": "--warmups",
    "weights_dtype": "--weights-dtype",
    "workers": "--workers",
}
"""The option that sets each argument named in errors."""

_WITHOUT_VALUE: Final = ("--random-weights", "--trust-remote-code")

_VALUE: Final = r"""=(?P<value>'[^']*'|"[^"]*"|[\w.+-]*\w)"""


def in_options(message: str, arguments: Sequence[str]) -> str:
    """The message with options in place of arguments.

    Args:
        message: An error's message, with arguments as `base_size` or in the form `device='cpu'`.
        arguments: Names to replace wherever they occur. Other text is left alone, even if it looks
            like an argument, and so is a name that no option sets.
    """
    names = sorted(OPTIONS.keys() & set(arguments))
    if not names:
        return message
    pattern = rf"(?<![\w.'\"-])(?P<name>{'|'.join(names)})(?:{_VALUE})?(?![\w-])"
    return re.sub(pattern, _in_options, message)


def _in_options(found: re.Match[str]) -> str:
    option, value = OPTIONS[found["name"]], found["value"]
    if value is None or option in _WITHOUT_VALUE:
        return option
    value = {"True": "1", "False": "0"}.get(value, value.strip("'\""))
    return f"{option} {value}"


def given_options(context: typer.Context) -> dict[str, str]:
    """Name of each option on the command line, by its parameter; the others have defaults."""
    names = {each.name: each.opts[0] for each in context.command.params if each.name}
    sources = {name: context.get_parameter_source(name) for name in names}
    return {
        name: names[name]
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }
