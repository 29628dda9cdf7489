"""Seconds, memory and plans from Python: what `time`, `fit` and `plan` say, as typed values."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.analysis import Engine, directory_named
from dsocr_analyze.architectures import DEFAULT_PAGE, ImagePath, PageRequest, PageSize
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.archive import axes, pages as page_lists, plan as plans, setting, shown
from dsocr_analyze.archive.plan import PlanDocument
from dsocr_analyze.cli import devices, kept_files, options, time_requests
from dsocr_analyze.errors import AnalyzeError, WorkloadError
from dsocr_analyze.hardware import fit as fitting
from dsocr_analyze.hardware.devices import check_features
from dsocr_analyze.hardware.fit import GpuFit
from dsocr_analyze.kernels import dtype_named
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing import TimeEntry
from dsocr_analyze.workload import parse_page

Gpus = str | Sequence[str]
"""A GPU's name, as in `dsocr-analyze devices`, several with commas between, or a sequence."""


class PageArguments(TypedDict, total=False):
    """A page and its prompt; all as in `analyze`."""

    page: PageSize
    image: ImagePath
    mode: str
    base_size: int
    image_size: int
    crop_mode: bool
    text_tokens: int
    seq_len: int
    batch_size: int
    max_new_tokens: int
    prompt_pages: int
    dtype: str
    flash_attention: bool


class ServingArguments(TypedDict, total=False):
    """What a prediction assumes; all as the options of `time`, with `_` for `-`."""

    server: str
    gpu_memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    preprocess_ms: float
    workers: int
    price: float
    weights_dtype: str
    kv_dtype: str
    mean_new_tokens: float
    share_at_limit: float
    offline: bool
    reserved: float
    profile: Sequence[Path]
    corrections: bool
    server_version: str


class PredictionArguments(PageArguments, ServingArguments, total=False):
    """A page, and what its prediction assumes."""


_OPTIONS: Final = {name: default for name, (_, default) in options.SECONDS_OF_A_PAGE.items()}


def predict(
    gpu: Gpus,
    *,
    runtime: str = "serving",
    concurrency: str = "1,4,16",
    architecture: str | None = None,
    model: str | Path | None = None,
    **given: Unpack[PredictionArguments],
) -> tuple[TimeEntry, ...]:
    """Predicted seconds of a page on GPUs, and their pages per second: what `time` says.

    >>> [found] = predict("h100-sxm", mode="base")
    >>> round(found.page_seconds, 2), found.throughput[-1].concurrency
    (1.43, 16)

    Args:
        gpu: One or more GPUs.
        runtime: `"serving"`, `"eager"`, or `"eager,serving"`.
        concurrency: Pages in flight: numbers and ranges with commas between, `"knee"`, `"max"`.
        architecture: Whose published model is predicted. Default: `"deepseek-ocr"`.
        model: A model directory, instead of `architecture`; none of its code is executed.
        given: The page, as in `analyze`, and what is assumed, as in `time`.

    Returns:
        One entry per GPU and runtime.

    Raises:
        AnalyzeError: A subclass names what is wrong with an argument.
    """
    directory = directory_named(model, architecture)
    page, assumed = _divided(given)
    with _errors_name_arguments():
        request = time_requests.time_request(
            _names(gpu),
            {**assumed, "runtime": runtime, "concurrency": concurrency},
            time_requests.lengths_by_limit(assumed),
        )
        asked = PageRequest(architecture=directory.architecture, engine="analytic", **page)
        return Engine(directory, time=request).entries(asked)


def fit(
    gpu: Gpus | None = None,
    *,
    memory_gb: float | str | None = None,
    reserved: float = 0.1,
    architecture: str | None = None,
    model: str | Path | None = None,
    **given: Unpack[PageArguments],
) -> tuple[GpuFit, ...]:
    """Whether pages fit in GPUs' memory, and how many at a time: what `fit` says.

    >>> [found] = fit("t4", dtype="float16")
    >>> found.fits, found.largest_batch
    (True, 9)

    Args:
        gpu: GPUs. Default: all of the catalogue.
        memory_gb: Memory of any other card, GB (10^9 bytes) or like `"12GiB"`, instead of `gpu`.
        reserved: Fraction of the memory that is kept free.
        architecture: Whose published model it is. Default: `"deepseek-ocr"`.
        model: A model directory, instead of `architecture`; none of its code is executed.
        given: The page, as in `analyze`.

    Returns:
        One entry per GPU.

    Raises:
        AnalyzeError: A subclass names what is wrong with an argument.
    """
    with _errors_name_arguments():
        known = kept_files.gpu_profiles(None)
        named = devices.named_devices(
            known, _names(gpu or ()), None if memory_gb is None else str(memory_gb)
        )
    directory = directory_named(model, architecture)
    asked = PageRequest(architecture=directory.architecture, engine="analytic", **given)
    element = dtype_named(asked.dtype)
    for each in named:
        check_features(each.gpu, element, flash_attention=asked.flash_attention)
    described, dimensions, workload, _ = Engine(directory).priced(asked)
    return tuple(
        fitting.fit(
            each.gpu, described, dimensions, workload, dtype=element,
            flash_attention=asked.flash_attention, reserved=reserved,
        )
        for each in named or known.values()
    )  # fmt: skip


def plan(
    pages: int | None = None,
    *,
    file: str | Path | None = None,
    mix: Mapping[str, float] | None = None,
    deadline_hours: float | None = None,
    first_token_seconds: float | None = None,
    gpu: Gpus | None = None,
    mode: str | None = None,
    text_tokens: int | None = None,
    max_new_tokens: int = 1024,
    dtype: str = "bfloat16",
    architecture: str | None = None,
    model: str | Path | None = None,
    **given: Unpack[ServingArguments],
) -> PlanDocument:
    """How many GPUs a number of pages needs, and what they cost: what `plan` says.

    >>> found = plan(2_000_000, deadline_hours=24, gpu="h100-sxm", price=2.5)
    >>> found.gpus[0].point.gpus
    2

    Args:
        pages: How many. Default: those in `file`, which otherwise are a sample of them.
        file: A list or folder of pages, as for the command `archive`. Default: `mix`.
        mix: Shares of pages by size, as in `{"a4@200": 0.8, "a3@300": 0.2}`. Default: A4, 150 dpi.
        deadline_hours: When all must be done. Default: one GPU takes as long as it takes.
        first_token_seconds: The longest mean time to the first token.
        gpu: GPUs. Default: all of the catalogue that support the types.
        mode: A mode. Default: the model's usual mode.
        text_tokens: Tokens besides the visual ones, with BOS. Default: the usual prompt's.
        max_new_tokens: The most tokens generated for a page.
        dtype: Of weights and activations.
        architecture: Whose published model it is. Default: `"deepseek-ocr"`.
        model: A model directory, instead of `architecture`; none of its code is executed.
        given: What is assumed, as in `time`.

    Returns:
        The plan: `gpus`, one entry per kind of GPU, fewest GPU-hours first.

    Raises:
        AnalyzeError: A subclass names what is wrong with an argument.
    """
    if file is None and pages is None:
        raise WorkloadError("give pages, their number, or a file or folder of them")
    if file is not None and mix is not None:
        raise WorkloadError("mix has no effect beside file; leave it out")
    goals = plans.Goals(
        pages=pages, deadline_hours=deadline_hours, first_token_seconds=first_token_seconds
    )
    lengths = PageArguments(max_new_tokens=max_new_tokens)
    if text_tokens is not None:
        lengths["text_tokens"] = text_tokens
    directory = directory_named(model, architecture)
    batches = _batches(directory.architecture, file, mix, lengths)
    with _errors_name_arguments():
        return _planned(directory, goals, batches, gpu, mode, dtype, given)


def _planned(
    directory: ModelDirectory,
    goals: plans.Goals,
    batches: Iterable[tuple[page_lists.Pages, NDArray[np.float64]]],
    gpu: Gpus | None,
    mode: str | None,
    dtype: str,
    given: ServingArguments,
) -> PlanDocument:
    _, assumed = _divided(given)
    requested = time_requests.many_pages_requested(
        assumed, _names(gpu or [*options.all_gpus()]), time_requests.lengths_by_limit(assumed)
    )
    counted = setting.CountedModel.from_directory(directory)
    chosen = axes.mode_or_sizes(counted.architecture, mode or counted.architecture.default_mode)
    way = setting.Setting(chosen, dtype_named(dtype))
    planned = plans.PlannedPages.from_batches(
        batches, counted, way, requested.job,
        has_lengths=time_requests.lengths_are_given(assumed),
    ).numbering(goals.pages)  # fmt: skip
    goals = replace(
        goals,
        lengths_without_repetition=time_requests.lengths_without_repetition(assumed),
    )
    document = plans.plan_document(
        counted, way, requested, planned, goals,
        setting.opening_of(directory, counted.architecture, [chosen]),
        None if gpu else lambda _: None,
    )  # fmt: skip
    if not document.gpus:
        raise WorkloadError("no GPU of the catalogue supports these types; give others")
    return document


def _names(gpu: Gpus) -> list[str]:
    return options.gpu_names([gpu] if isinstance(gpu, str) else gpu)


def _divided(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of the page, and of the prediction with the options' defaults."""
    assumed = {name: given[name] for name in ServingArguments.__annotations__ if name in given}
    page = {name: value for name, value in given.items() if name not in assumed}
    return page, {**_OPTIONS, **assumed}


def _batches(
    architecture: Architecture,
    file: str | Path | None,
    mix: Mapping[str, float] | None,
    lengths: PageArguments,
) -> Iterator[tuple[page_lists.Pages, NDArray[np.float64]]]:
    """The pages of the list, or of the mix, and how many each stands for."""
    rule = architecture.forms.model.page_rule
    usual = PageRequest(architecture=architecture, **lengths).workload_of_page
    given = {"text_tokens": usual.text_tokens, "max_new_tokens": usual.max_new_tokens}
    if file is None:
        shares = mix or {DEFAULT_PAGE: 1.0}
        sizes = [*map(parse_page, shares)]
        for size in sizes:
            _ = PageRequest(architecture=architecture, page=size).workload  # raises if it is none
        yield page_lists.sized_pages(sizes, rule, **given), np.array([*shares.values()], float)
        return
    listed, malformed, rows = page_lists.open_pages(Path(file)), [], 0
    for some in page_lists.read_pages(listed.batches, rule, **given):
        malformed.append(some.malformed)
        rows += len(some) + some.malformed.rows
        yield some, np.ones(len(some))
    told = shown.malformed_warnings(rows, page_lists.together(malformed))
    for warning in (*listed.warnings, *told):
        warnings.warn(warning, stacklevel=2)


@contextlib.contextmanager
def _errors_name_arguments() -> Iterator[None]:
    """Errors that name an option of the commands name the argument."""
    try:
        yield
    except AnalyzeError as error:
        told = re.sub(r"--([a-z][a-z-]*)", lambda name: name[1].replace("-", "_"), str(error))
        raise type(error)(told, arguments=error.arguments) from error
