"""What documents share: their first keys and their JSON."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from dsocr_analyze.escaping import as_json
from dsocr_analyze.figures import Count, Model
from dsocr_analyze.workload import AnyWorkload

SCHEMA_VERSION: Final = "2"

CONVENTIONS: Final = (
    "macs are multiply-accumulates of matrix operators; matrix_flops = 2 * macs",
    "attention counts the full T x T product; causal_savable_flops is the part that a causal"
    " kernel may skip",
    "bytes: each operator, as called by PyTorch, reads its inputs and writes its outputs; one"
    " operator is one kernel (fused attention, layer norm, softmax), separate operators are never"
    " fused (eager attention, RMSNorm, LayerNorm2d, RoPE; a cast before a softmax, which CUDA fuses"
    " only for float16); views move nothing; lookups read only the rows they take",
    "arithmetic_intensity = flops / (bytes_read + bytes_written): all FLOPs, matrix and vector,"
    " over the bytes of all operators",
    "interpolation counts 2 FLOPs per tap of the window over the source, one dimension after the"
    " other: an upper bound (bicubic, 64 to 40: 9 taps for a filter 6.4 wide)",
    "prefill is the prefill pass without its vision stages, including the head over all positions;"
    " decode is one step over a cache of seq_len tokens",
)

OptionValue: TypeAlias = str | int | float | bool | tuple[str, ...] | None
Options: TypeAlias = Mapping[str, OptionValue]

NO_OPTIONS: Final[Options] = {}
"""The options of a document that no command made."""

Positive = Annotated[int, msgspec.Meta(ge=1)]

_PRETTY_DEPTH: Final = 4
"""Deeper values share a line, such as a module's row."""

# --- the first keys ------------------------------------------------------------------------------


class View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Views that one vision call takes.

    Attributes:
        count: Number of views.
        resolution: Side of each view, in pixels; the width of one that is no square.
        height: Height in pixels; left out for squares.
    """

    count: Count
    resolution: Count
    height: Count | None = None

    def __str__(self) -> str:
        side = "\u00b2" if self.height is None else f" x {self.height}"
        return f"{self.count} x {self.resolution}{side}"


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The page, its prompt and its batch.

    Attributes:
        page: Width and height in pixels; null, as all keys up to text_tokens, if no pages are read.
        base_size: Side of the global view in crop mode, in pixels; null, as image_size, where a
            processor chooses the sides of the only view.
        image_size: Side of a local view, or of the only view, in pixels.
        crop_mode: Whether the page is cut into local views.
        grid: Columns and rows of local views, [1, 1] without any; where a processor chooses the
            sides, of visual tokens.
        views: One entry per vision call on one page.
        visual_tokens: Tokens that stand for the prompt's pages.
        text_tokens: The prompt's other tokens, BOS included.
        seq_len: All tokens of one prompt; 0 without one.
        batch_size: Prompts in the batch, all alike.
        max_new_tokens: Tokens generated per prompt; 0 if the model does not decode.
        prompt_pages: Pages in one prompt, all alike; null if none are read.
    """

    page: tuple[Count, Count] | None
    base_size: Count | None
    image_size: Count | None
    crop_mode: bool | None
    grid: tuple[Count, Count] | None
    views: tuple[View, ...] | None
    visual_tokens: Count | None
    text_tokens: Count | None
    seq_len: Count
    batch_size: Positive
    max_new_tokens: Count
    prompt_pages: Positive | None = 1

    @property
    def unit(self) -> str:
        """What runs at once, and what seconds and memory are of."""
        return "page" if self.page and self.prompt_pages == 1 else "prompt"

    @property
    def units(self) -> str:
        """What throughput and money are of."""
        return "pages" if self.page else "prompts"

    @property
    def title(self) -> str:
        """The page and its tokens."""
        if self.unit == "prompt" and self.page:
            pages = "{} pages of {} x {} pixels".format(self.prompt_pages, *self.page)
            return f"{pages} in a prompt of {self.seq_len} tokens"
        page = "page of {} x {} pixels, ".format(*self.page) if self.page else ""
        return f"{page}{self.seq_len} prompt tokens"


def workload_document(workload: AnyWorkload) -> Workload:
    """The `workload` object; None for what lengths alone lack."""
    known = {name: getattr(workload, name, None) for name in Workload.__struct_fields__}
    for chosen in ("base_size", "image_size"):
        known[chosen] = known[chosen] or None
    return msgspec.convert(known, Workload, from_attributes=True)


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The first keys of every document.

    Attributes:
        schema_version: Version of the schema.
        command: The command that wrote it.
        options: Its options and defaults by name with _ for -, except those on how and where
            results are written.
    """

    schema_version: str
    command: str
    options: Options


class ModelOpening(Opening, frozen=True, kw_only=True):
    """The first keys of a document about a model.

    Attributes:
        model: The model.
    """

    model: Model


class PageOpening(ModelOpening, frozen=True, kw_only=True):
    """The first keys of a document about a model and a workload.

    Attributes:
        workload: The page and its prompt.
    """

    workload: Workload


def opening_line(
    workloads: Sequence[Workload], dtypes: Iterable[str], attentions: Iterable[str]
) -> str:
    """Page, sizes, tokens, batch, data type and attention, with all values that differ."""
    pages = _all("{} x {}".format(*each.page) for each in workloads if each.page is not None)
    return ", ".join([
        *([f"Page of {pages} pixels", f"views {_all(map(_sizes, workloads))}"] if pages else []),
        *(
            f"{each.prompt_pages} pages in a prompt"
            for each in workloads
            if each.page and each.unit == "prompt"
        ),
        f"{_all(f'{each.seq_len:,}' for each in workloads)} prompt tokens",
        f"batch {_all(f'{each.batch_size:,}' for each in workloads)}",
        f"{_all(f'{each.max_new_tokens:,}' for each in workloads)} new tokens",
        _all(dtypes),
        f"{_all(attentions)} attention",
    ])  # fmt: skip


def _sizes(workload: Workload) -> str:
    """Sizes as on the command line, and how the page is cut."""
    if workload.image_size is None:
        return " + ".join(map(str, workload.views or ()))
    if not workload.crop_mode:
        return f"{workload.image_size}"
    columns, rows = workload.grid or (1, 1)
    cut = "not cut" if (columns, rows) == (1, 1) else f"cut {columns} x {rows}"
    return f"{workload.base_size}/{workload.image_size} ({cut})"


def _all(values: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(values))


def model_text(model: Model) -> str:
    """Which model it is, with short digests."""
    code, config = model.code_digest[:12], model.config_digest[:12]
    return {
        "config": f"transformers' own code for {model.id} (config {config})",
        "reference": f"built-in reference model (code {code}, config {config})",
        "directory": f"model directory {model.id} (code {code}, config {config})",
    }[model.source]


# --- JSON ----------------------------------------------------------------------------------------


_encoded = json.JSONEncoder(allow_nan=False).encode
"""`json.dumps` would build an encoder for each value."""


def dump_json(value: object) -> str:
    """JSON text of a document, indented down to its rows."""
    return as_json(_dump(msgspec.to_builtins(value), 0)) + "\n"


def _dump(value: Any, depth: int) -> str:
    if isinstance(value, dict) and value:
        if depth == _PRETTY_DEPTH:  # a module's row: thousands of them, integers and names
            return msgspec.json.encode(value).decode()
        lines = [f"{_encoded(key)}: {_dump(item, depth + 1)}" for key, item in value.items()]
    elif isinstance(value, list | tuple) and not {dict, str}.isdisjoint(map(type, value)):
        lines = list(map(_encoded, value))
    else:
        return _encoded(value)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    indent = "\n" + "  " * depth
    return f"{opening}{indent}  " + f",{indent}  ".join(lines) + f"{indent}{closing}"
