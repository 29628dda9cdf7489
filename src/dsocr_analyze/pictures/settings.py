"""The settings of figures; a picture's title lists those that are fixed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from dsocr_analyze.figures import Model
from dsocr_analyze.report.markdown import mode_name
from dsocr_analyze.report.opening import Workload
from dsocr_analyze.report.table import counted
from dsocr_analyze.report.tables import model_name
from dsocr_analyze.timing import TimeEntry

if TYPE_CHECKING:
    from dsocr_analyze.timing.assumptions import Assumptions

Setting: TypeAlias = str | int | float | None
"""A setting's value; None for something without it."""

Settings: TypeAlias = Mapping[str, Sequence[Setting]]
"""Each setting's values, one per row, bar or line."""


class _Setting(NamedTuple):
    """A setting's name on an axis, with its unit, and its values' wording elsewhere."""

    axis: str
    said: Callable[[Any], str]


_SETTINGS: Final[Mapping[str, _Setting]] = {
    "model": _Setting("model", str),
    "config": _Setting("config", "config {}".format),
    "page": _Setting("page [pixels]", "page of {} pixels".format),
    "page_width": _Setting("page width [pixels]", "page width {} pixels".format),
    "page_height": _Setting("page height [pixels]", "page height {} pixels".format),
    "mode": _Setting("mode", "{} mode".format),
    "base_size": _Setting("base size [pixels]", "base size {} pixels".format),
    "image_size": _Setting("image size [pixels]", "image size {} pixels".format),
    "crop_mode": _Setting("crop mode", lambda on: "pages cut" if on else "pages not cut"),
    "prompt_pages": _Setting("pages in one prompt", lambda n: f"{counted(n, 'page')} in a prompt"),
    "seq_len": _Setting("prompt [tokens]", lambda n: counted(n, "prompt token")),
    "text_tokens": _Setting("text tokens", lambda n: counted(n, "text token")),
    "max_new_tokens": _Setting("new tokens", lambda n: counted(n, "new token")),
    "batch_size": _Setting("batch size [pages]", "batch of {:,}".format),
    "dtype": _Setting("data type", str),
    "attention": _Setting("attention", "{} attention".format),
    "sliding_window": _Setting(
        "sliding window", lambda on: "with its window" if on else "without its window"
    ),
    "gpu": _Setting("GPU", str),
    "runtime": _Setting("runtime", str),
    "weights_dtype": _Setting("type of weights", "{} weights".format),
    "kv_dtype": _Setting("type of the KV cache", "{} KV cache".format),
    "mean_new_tokens": _Setting("mean new tokens", "{:,.6g} generated on average".format),
    "price": _Setting("price of a GPU-hour", "{:g} per GPU-hour".format),
    "preprocess_ms": _Setting("preprocessing [ms]", "{:g} ms of preprocessing".format),
    "workers": _Setting("workers", lambda n: counted(n, "worker")),
    "offline": _Setting("order", lambda _: "all pages prepared first"),
    "correction": _Setting("correction", str),
}
"""All settings, in the order in which a title lists them."""

_PARTS: Final = {
    "page": ("page_width", "page_height"),
    "mode": ("base_size", "image_size", "crop_mode"),
}
"""Parts of a setting, listed only if it is not fixed."""


def varying(settings: Settings) -> list[str]:
    """Settings of several values, most values first; parts are left out."""
    parts = {part for whole, parts in _PARTS.items() if whole in settings for part in parts}
    counts = {
        name: len(set(settings[name]))
        for name in _SETTINGS
        if name in settings and name not in parts
    }
    return sorted((name for name in counts if counts[name] > 1), key=lambda name: -counts[name])


def fixed_line(settings: Settings, shown: Collection[str] = ()) -> str:
    """Every setting of a single value, unless an axis shows it."""
    fixed = {
        name: settings[name][0]
        for name in _SETTINGS
        if name in settings and len(set(settings[name])) == 1
    }
    for whole, parts in _PARTS.items():
        if whole in fixed:
            for name in (whole,) if set(parts) & set(shown) else parts:
                fixed.pop(name, None)
    said = (said_of(name, value) for name, value in fixed.items() if name not in shown)
    return ", ".join(filter(None, said))


def said_of(name: str, value: Setting) -> str:
    """A value in a title or a legend; empty for None."""
    return "" if value is None else _SETTINGS[name].said(value)


def axis_name(*names: str) -> str:
    """An axis along which these settings vary, with its unit."""
    return ", ".join(_SETTINGS[name].axis for name in names)


# --- of documents ------------------------------------------------------------------------------


def settings_of_model(model: Model, config: Path | str | None = None) -> dict[str, Setting]:
    """The model, and its config's name or digest."""
    if isinstance(config, Path):
        config = config.name
    return {"model": model_name(model), "config": config or model.config_digest[:12]}


def settings_of_workload(workload: Workload, architecture: str | None) -> dict[str, Setting]:
    """The page, its prompt and its batch."""
    settings: dict[str, Setting] = {
        "max_new_tokens": workload.max_new_tokens,
        "batch_size": workload.batch_size,
    }
    if workload.page is None:
        return settings | {"seq_len": workload.seq_len}
    width, height = workload.page
    base = f"{workload.base_size}/" if workload.crop_mode else ""
    return settings | {
        "page": f"{width} x {height}",
        "page_width": width,
        "page_height": height,
        "mode": mode_name(workload, architecture) or f"{base}{workload.image_size}",
        "base_size": workload.base_size,
        "image_size": workload.image_size,
        "crop_mode": workload.crop_mode,
        "prompt_pages": None if workload.prompt_pages == 1 else workload.prompt_pages,
        "text_tokens": workload.text_tokens,
    }


def settings_of_time(entry: TimeEntry) -> dict[str, Setting]:
    """The GPU, and what predicted seconds assume."""
    assumed = entry.assumptions
    mean, longest = assumed.new_tokens_mean, assumed.new_tokens_longest
    return {
        "gpu": entry.gpu,
        "mean_new_tokens": None if mean == longest else mean,
        "correction": None if assumed.correction is None else "corrected by benchmarks",
        **_settings_of_runtime(
            entry.runtime, assumed.host, assumed.weights_dtype, assumed.kv_dtype,
            None if assumed.preprocess_estimated else assumed.preprocess_seconds,
            assumed.workers, assumed.price_per_hour, is_offline=assumed.offline,
        ),
    }  # fmt: skip


def settings_of_job(job: Assumptions) -> dict[str, Setting]:
    """What predicted seconds of many pages assume, on any GPU."""
    return _settings_of_runtime(
        job.runtime, job.host.name, job.precision.weights, job.precision.cache,
        job.preprocess_seconds, job.workers, job.price_per_hour, is_offline=job.is_offline,
    )  # fmt: skip


def _settings_of_runtime(
    runtime: str,
    host: str,
    weights: str | None,
    cache: str | None,
    preprocess_seconds: float | None,
    workers: int,
    price: float | None,
    *,
    is_offline: bool,
) -> dict[str, Setting]:
    return {
        "runtime": runtime if host == runtime else f"{runtime} by {host}",
        "weights_dtype": weights,
        "kv_dtype": cache,
        "preprocess_ms": None if preprocess_seconds is None else 1e3 * preprocess_seconds,
        "workers": None if workers == 1 else workers,
        "offline": is_offline or None,
        "price": price,
    }
