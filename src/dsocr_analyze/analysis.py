"""The library's entry points: analyze one page, compare reports, sweep ranges of workloads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dsocr_analyze.architectures import DEFAULT, architecture_named
from dsocr_analyze.architectures.planning import (
    DEFAULT_PAGE,
    ImagePath,
    PageRequest,
    PageSize,
)
from dsocr_analyze.engine import Engine
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.model.directory import ModelDirectory

if TYPE_CHECKING:
    from dsocr_analyze.report.comparison import ComparisonDocument
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.sweep.combinations import Names, Numbers, Pages, SweepRows, Switches

__all__ = ["analyze", "compare", "sweep_workloads"]

EngineName = Literal["trace", "analytic"]


def analyze(
    *,
    page: PageSize | None = None,
    image: ImagePath | None = None,
    mode: str | None = None,
    base_size: int | None = None,
    image_size: int | None = None,
    crop_mode: bool | None = None,
    text_tokens: int | None = None,
    seq_len: int | None = None,
    batch_size: int | None = None,
    max_new_tokens: int | None = None,
    prompt_pages: int | None = None,
    architecture: str | None = None,
    model: str | Path | None = None,
    engine: EngineName = "trace",
    dtype: str = "bfloat16",
    flash_attention: bool = False,
    trust_remote_code: bool = False,
) -> Report:
    """What a page costs: the report that `dsocr-analyze` prints and writes.

    >>> analyze(mode="gundam", page="a4", engine="analytic").total.matrix_flops
    4568380069376

    Args:
        page: A paper like `"a4"` or `"a4@200"`, `"1240x1754"`, or (width, height) in pixels.
            Default: A4 at 150 dpi.
        image: An image file of the page, instead of `page`; of several pages, the first.
        mode: Name of a mode like `"gundam"`, instead of the next three sizes.
        base_size: Pixels per side of the global view in crop mode. Default: the model's own.
        image_size: Pixels per side of a local view, or of the only view. Default: the model's own.
        crop_mode: Whether a page larger than one tile is cropped. Default: yes, for a single page.
        text_tokens: Tokens besides the visual ones, including BOS. Default: the usual prompt's.
        seq_len: Tokens of the whole prompt, instead of `text_tokens`.
        batch_size: Number of prompts, all alike. Default: 1.
        max_new_tokens: Tokens generated; the prefill pass yields the first. Default: 1024.
        prompt_pages: Pages per prompt, all alike, for models that take several. Default: 1.
        architecture: Name of the architecture whose built-in reference is counted. Default:
            `"deepseek-ocr"`, if no `model` is given.
        model: A model directory, instead of `architecture`.
        engine: `"trace"` runs the model under hooks and compares it with the closed forms;
            `"analytic"` evaluates only the closed forms, without torch.
        dtype: Type of weights and activations: `"bfloat16"`, `"float16"` or `"float32"`.
        flash_attention: FlashAttention-2 in the decoder instead of eager attention.
        trust_remote_code: Execute the directory's Python files without a trust record.

    Raises:
        AnalyzeError: A subclass names what is wrong with an argument or the directory.
    """
    request = PageRequest(
        page=page, image=image, mode=mode, base_size=base_size, image_size=image_size,
        crop_mode=crop_mode, text_tokens=text_tokens, seq_len=seq_len, batch_size=batch_size,
        max_new_tokens=max_new_tokens, prompt_pages=prompt_pages,
    )  # fmt: skip
    directory = _directory(model, architecture)
    counts = Engine(engine, directory, dtype, flash_attention, "meta", trust_remote_code)
    return counts.report(request.workload(directory.architecture))


def compare(reports: Mapping[str, Report]) -> ComparisonDocument:
    """Puts reports side by side: what `dsocr-analyze compare` prints as JSON.

    >>> modes = ("base", "gundam")
    >>> reports = {mode: analyze(mode=mode, engine="analytic") for mode in modes}
    >>> table = compare(reports).to_pandas().set_index("key")
    >>> table.loc["page_flops", "gundam"]
    5857657126489.0

    Args:
        reports: The reports by name; the others are compared with the first one.

    Returns:
        The comparison, one row per quantity; `to_pandas()` returns it as a pandas table.

    Raises:
        WorkloadError: There are no reports.
    """
    # Imported here because only this function needs it.
    from dsocr_analyze.report import comparison

    if not reports:
        raise WorkloadError("there are no reports to compare; give at least one")
    models = [report.metadata.model for report in reports.values()]
    texts = {name: each.config_text for name, each in zip(reports, models, strict=True)}
    configs = {name: json.loads(text) for name, text in texts.items() if text is not None}
    differ = len({each.config_digest for each in models}) > 1
    has_one_architecture = len({each.architecture for each in models}) == 1
    return comparison.compare(
        list(reports.items()), configs if differ and has_one_architecture else None
    ).document


def sweep_workloads(
    *,
    page: Pages = DEFAULT_PAGE,
    mode: Names | None = None,
    text_tokens: Numbers | None = None,
    max_new_tokens: Numbers = 1024,
    batch_size: Numbers = 1,
    dtype: Names = "bfloat16",
    flash_attention: Switches = False,
    sliding_window: Switches | None = None,
    architecture: str | None = None,
    model: str | Path | None = None,
) -> SweepRows:
    """Counts every combination of some ranges: the rows that `dsocr-analyze sweep` writes.

    Analytic, without torch. Each argument is one value, a sequence of them, or text with lists and
    ranges as on the command line.

    >>> rows = sweep_workloads(mode="all", batch_size=[1, 16], text_tokens="10:100:30")
    >>> rows.to_pandas()["peak_activation_bytes"].max()
    28280422400

    Args:
        page: Pages: `"a4"`, `"a4@100:300:50"`, `"600:2400:200x1754"`, or (width, height) in pixels.
        mode: Modes, sizes like `"1024/640"` (crops) or `"640"` (does not), or `"all"`. Default: the
            model's usual mode.
        text_tokens: Tokens besides the visual ones, including BOS. Default: the usual prompt's.
        max_new_tokens: Tokens generated; the prefill pass yields the first.
        batch_size: Numbers of equal pages per batch.
        dtype: Types of weights and activations.
        flash_attention: FlashAttention-2 in the decoder instead of eager attention.
        sliding_window: Whether decode steps attend in the model's window. Default: yes, if it has
            one.
        architecture: Name of the architecture whose built-in reference is counted. Default:
            `"deepseek-ocr"`, if no `model` is given.
        model: A model directory, instead of `architecture`; none of its code is executed.

    Returns:
        The rows; `table` holds them as an Arrow table, `to_pandas()` returns a pandas table.

    Raises:
        AnalyzeError: A subclass names what is wrong with an argument or the directory.
    """
    # Imported here because only this function needs it.
    from dsocr_analyze.columns.setting import CountedModel, opening_of
    from dsocr_analyze.sweep.combinations import rows_of, sweep_over

    directory = _directory(model, architecture)
    sweep = sweep_over(
        directory.architecture, page=page, mode=mode, text_tokens=text_tokens,
        max_new_tokens=max_new_tokens, batch_size=batch_size, dtype=dtype,
        flash_attention=flash_attention, sliding_window=sliding_window,
    )  # fmt: skip
    opening = opening_of(directory, directory.architecture, sweep.modes, command="sweep")
    return rows_of(sweep, CountedModel.from_directory(directory), opening)


def _directory(model: str | Path | None, architecture: str | None) -> ModelDirectory:
    """Reads the model that is named; raises WorkloadError if two are named."""
    if model is not None and architecture is not None:
        raise WorkloadError(
            f"model={str(model)!r} already determines the architecture; leave out"
            f" architecture={architecture!r}"
        )
    built_in = architecture_named(DEFAULT.name if architecture is None else architecture)
    return ModelDirectory.read(built_in.reference if model is None else Path(model))
