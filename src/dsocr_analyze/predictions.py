"""Seconds, memory and plans from Python: what `time`, `fit` and `plan` say, as typed values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack, get_type_hints

from dsocr_analyze.analysis import Engine, directory_named
from dsocr_analyze.architectures import ImagePath, PageRequest, PageSize
from dsocr_analyze.archive import axes, plan as plans, setting
from dsocr_analyze.archive.pages import batches_of
from dsocr_analyze.archive.plan import PlanDocument
from dsocr_analyze.cli import devices, kept_files, options, time_requests
from dsocr_analyze.errors import DeviceError, WorkloadError, did_you_mean
from dsocr_analyze.hardware import fit as fitting
from dsocr_analyze.hardware.devices import check_features
from dsocr_analyze.hardware.fit import GpuFit
from dsocr_analyze.kernels import dtype_named
from dsocr_analyze.timing import TimeEntry

Gpus = str | Sequence[str]
"""A GPU's name, as in `dsocr-analyze devices`, several with commas between, or a sequence."""
Price = float | Mapping[str, float]
"""Of an hour of any GPU, or by the names of GPUs."""


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
    price: Price
    weights_dtype: str
    kv_dtype: str
    mean_new_tokens: float
    share_at_limit: float
    offline: bool
    reserved: float
    profile: str | Path | Sequence[str | Path]
    corrections: bool
    server_version: str


class PredictionArguments(PageArguments, ServingArguments, total=False):
    """A page, and what its prediction assumes."""


def predict(
    gpu: Gpus,
    *,
    runtime: str = "serving",
    concurrency: str | int | Sequence[str | int] = "1,4,16",
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
        concurrency: Pages in flight: a number, or several; `"1,8:64:8"` has a range. `"knee"` are
            the fewest with 90 % of the most pages per second, `"max"` the most that fit.
        architecture: Whose published model is predicted. Default: `"deepseek-ocr"`.
        model: A model directory, instead of `architecture`; none of its code is executed.
        given: The page, as in `analyze`, and what is assumed, as in `time`.

    Returns:
        One entry per GPU and runtime.

    Raises:
        AnalyzeError: A subclass names what is wrong with an argument.
    """
    _check(predict, {"runtime": runtime, **given}, PredictionArguments)
    directory = directory_named(model, architecture)
    at_once = ",".join(map(str, _several(concurrency)))
    assumed = {**_assumed(given), "runtime": runtime, "concurrency": at_once}
    request = time_requests.time_request(
        _names(gpu), assumed, time_requests.lengths_by_limit(assumed)
    )
    page = {name: assumed[name] for name in PageArguments.__annotations__ if name in given}
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

    As the model's own code runs them; `predict` says what a server runs.

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
    _check(fit, {"reserved": reserved, **given}, PageArguments)
    known = kept_files.gpu_profiles(None)
    named = devices.named_devices(
        known, [] if gpu is None else _names(gpu), None if memory_gb is None else str(memory_gb)
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
    page: PageSize | None = None,
    mix: Mapping[PageSize, float] | None = None,
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
        file: A list or folder of pages, as for the command `archive`. Default: `mix` or `page`.
        page: The size of all pages, as in `analyze`. Default: A4, 150 dpi.
        mix: Shares of pages by size instead, as in `{"a4@200": 0.8, "a3@300": 0.2}`.
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
        The plan: `gpus`, one per kind, the cheapest first, without prices that of fewest GPU-hours.

    Raises:
        AnalyzeError: A subclass names what is wrong with an argument.
    """
    _check(plan, given, ServingArguments)
    if file is None and pages is None:
        raise WorkloadError("give pages, their number, or a file or folder of them")
    assumed = _assumed(given)
    without_repetition = time_requests.lengths_without_repetition(assumed)
    goals = plans.Goals(pages, deadline_hours, first_token_seconds, without_repetition)
    names = _names(gpu, time_requests.priced_gpus(assumed["price"]) or options.all_gpus())
    lengths = time_requests.lengths_by_limit(assumed)
    requested = time_requests.many_pages_requested(assumed, names, lengths)
    directory = directory_named(model, architecture)
    counted = setting.CountedModel.from_directory(directory)
    chosen = axes.mode_or_sizes(counted.architecture, mode or counted.architecture.default_mode)
    way = setting.Setting(chosen, dtype_named(dtype))
    batches = batches_of(
        counted.architecture, file, page, None if mix is None else mix.items(),
        text_tokens=text_tokens, max_new_tokens=max_new_tokens, warn=_warn,
    )  # fmt: skip
    planned = plans.PlannedPages.from_batches(
        batches, counted, way, requested.job, has_lengths=time_requests.lengths_are_given(assumed)
    ).numbering(pages)
    return plans.plan_document(
        counted, way, requested, planned, goals,
        setting.opening_of(directory, counted.architecture, [chosen]),
        (lambda *_: None) if gpu is None else None,
    )  # fmt: skip


def _several(given: Any) -> list[Any]:
    """The items of a sequence, or one that is given alone."""
    is_alone = isinstance(given, str | Path) or not isinstance(given, Iterable)
    return [given] if is_alone else [*given]


def _names(gpu: Gpus | None, usual: Iterable[str] = ()) -> list[str]:
    given = [*usual] if gpu is None else _several(gpu)
    if not given or not all(isinstance(each, str) for each in given):
        raise DeviceError(f"gpu {gpu!r} is invalid; give a name, or several", arguments=["gpu"])
    return options.gpu_names(given)


def _assumed(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a prediction assumes, with the options' defaults."""
    profiles = [*map(Path, _several(given.get("profile") or ()))]
    return {**time_requests.DEFAULTS, **given, "profile": profiles}


_TYPES: Final = {int: Integral, float: Real, bool: bool, str: str}
_RIGHT: Final = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}


def _check(function: Callable[..., Any], given: Mapping[str, Any], kind: type) -> None:
    """Raises TypeError for arguments that a function does not have; WorkloadError for wrong types.

    None stands for the default of an argument that has none.
    """
    names = [*(function.__kwdefaults__ or ()), *kind.__annotations__]
    types = {**get_type_hints(function), **get_type_hints(kind)}
    for name, value in given.items():
        if name not in names:
            right = did_you_mean(name, names) or f"give {', '.join(names)}"
            raise TypeError(f"{function.__name__}() has no argument {name!r}; {right.strip()}")
        wanted, values = types[name], [value]
        if wanted == Price:
            wanted, values = float, [*value.values()] if isinstance(value, Mapping) else values
        if wanted not in _TYPES or (value is None and time_requests.DEFAULTS.get(name) is None):
            continue
        for each in values:
            is_switch = isinstance(each, bool)
            if not isinstance(each, _TYPES[wanted]) or (is_switch and wanted is not bool):
                raise WorkloadError(
                    f"{name} {each!r} is invalid; give {_RIGHT[wanted]}", arguments=[name]
                )


def _warn(told: Iterable[str]) -> None:
    for warning in told:
        warnings.warn(warning, stacklevel=2)
