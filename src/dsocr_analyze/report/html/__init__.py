"""An HTML page with its style, scripts and data in one file.

It loads nothing. Its Content-Security-Policy allows only its own scripts, by digest; its data can't
close their element.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final, TypeAlias

import msgspec

from dsocr_analyze.escaping import visible
from dsocr_analyze.extras import require_extra
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.package_data import package_text
from dsocr_analyze.report.comparison import ComparisonDocument, merged
from dsocr_analyze.report.document import Module, Report
from dsocr_analyze.report.markdown import mode_name
from dsocr_analyze.report.tables import (
    OUTSIDE,
    PALETTE,
    headline,
    model_name,
    notes_of,
    seconds_parts,
    stage_colours,
)
from dsocr_analyze.timing import TimeEntry

_SCRIPTS: Final = (
    "format.js", "elements.js", "tables.js", "charts.js", "stacks.js", "hierarchy.js",
    "roofline.js", "curves.js", "report.js", "comparison.js", "start.js",
)  # fmt: skip
"""Each script stands after those that it calls."""

_LARGEST_SAFE: Final = 2**53 - 1
"""JavaScript's largest exact integer."""

_IN_JSON: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


# --- what a page is about ------------------------------------------------------------------------


Contents: TypeAlias = Mapping[str, object]
"""What a page is about, by name."""


def report_contents(
    report: Report,
    roofs: Sequence[Contents] = (),
    curves: Sequence[TimeEntry] = (),
    curves_missing: str = "",
) -> Contents:
    """The page of one report.

    Args:
        report: The report.
        roofs: GPUs whose roofline can be shown, named ones first.
        curves: Predicted seconds over many concurrencies.
        curves_missing: Why there are none.
    """
    return {
        "kind": "report",
        "title": _title(report),
        "headline": headline(report),
        "report": _without_modules(report),
        "modules": {name: _columns(stage.by_module) for name, stage in report.stages.items()},
        "notes": notes_of(report),
        "roofs": roofs,
        "curves": curves,
        "curves_missing": curves_missing,
        **_of_stages(report),
    }


def _columns(modules: Mapping[str, Module]) -> Mapping[str, Sequence[str | int | None]]:
    """`by_module` by column, which keeps thousands of rows small."""
    rows = modules.values()
    return {
        "path": [*modules],
        **{name: [getattr(row, name) for row in rows] for name in (
            "class_name", "calls", "params", "flops", "matrix_flops", "vector_flops", "activations",
            "bytes_read", "bytes_written",
        )},
        "own_flops": [row.own.flops for row in rows],
        "own_bytes": [row.own.bytes_moved for row in rows],
    }  # fmt: skip


def comparison_contents(
    found: ComparisonDocument,
    reports: Sequence[Report],
    notes: Sequence[str] = (),
    configs: Sequence[str] = (),
) -> Contents:
    """The page of a comparison, with notes and the values of named configs."""
    return {
        "kind": "comparison",
        "title": _title_beside(found.names, reports),
        "headline": f"{found.headline()}. {found.opening()}",
        "names": found.names,
        "rows": found.rows,
        "reports": [*map(_without_modules, reports)],
        "config_names": configs,
        "config_differences": [
            {"key": each.key, "values": [*map(each.text, configs)]}
            for each in found.config_differences
        ],
        "assumptions": notes,
        **_of_stages(*reports),
    }


def _title(report: Report) -> str:
    """The model, its mode if it has several, and what the page answers."""
    model, workload = report.metadata.model, report.workload
    mode = mode_name(workload, model.architecture) if workload.image_size else None
    what = model_name(model) if mode is None else f"{model_name(model)}, {mode} mode"
    return f"{what}: what a {'prompt' if workload.page is None else 'page'} costs"


def _title_beside(names: Sequence[str], reports: Iterable[Report]) -> str:
    """The models that are compared, or of one model the reports."""
    models = [*dict.fromkeys(model_name(report.metadata.model) for report in reports)]
    title = f"{', '.join(models)} compared"
    return title if len(models) > 1 else f"{title}: {', '.join(names)}"


def _of_stages(*reports: Report) -> Contents:
    stages = stage_colours([*merged([list(report.stages) for report in reports]), OUTSIDE])
    return {
        "colours": {"palette": PALETTE, "stages": stages, "outside": OUTSIDE},
        "seconds": [[seconds_parts(report, entry) for entry in report.time] for report in reports],
    }


def _without_modules(report: Report) -> Report:
    stages = {
        name: msgspec.structs.replace(stage, by_module={}) for name, stage in report.stages.items()
    }
    return msgspec.structs.replace(report, stages=stages)


def roofs_of(profiles: Iterable[Device], dtype: str, first: Iterable[str] = ()) -> list[Contents]:
    """Peaks of GPUs that support a data type, those named `first` in that order.

    Matrix products are dense; `vector_flops_per_second` is fp32 outside the matrix
    units; `measured` says whether kernel times are the GPU's own, or None without any.
    """
    places = {name: place for place, name in enumerate(first)}
    found = [
        {
            "gpu": gpu.name,
            "title": gpu.title,
            "dtype": dtype,
            "matrix_flops_per_second": gpu.tflops(dtype) * 1e12,
            "vector_flops_per_second": gpu.float32_tflops * 1e12 or None,
            "bytes_per_second": gpu.bandwidth_gb_s * 1e9,
            "memory_bytes": gpu.memory_bytes,
            "measured": not profile.extrapolated if profile.kinds or profile.cpu else None,
            "source": gpu.source,
            "weak": gpu.weak,
        }
        for profile in profiles
        for gpu in [profile.gpu]
        if (gpu.float32_tflops > 0 if dtype == "float32" else gpu.has_rates and dtype in gpu.dtypes)
    ]
    return sorted(found, key=lambda roof: places.get(str(roof["gpu"]), len(places)))


# --- the file ------------------------------------------------------------------------------------


def refuse_without_plotly() -> None:
    """Raises ExtraError if plotly is missing; called before any work."""
    require_extra("an HTML report", "html", "plotly")


def render_html(contents: Contents) -> str:
    """The page; raises ExtraError if plotly is missing."""
    refuse_without_plotly()
    from plotly.offline import get_plotlyjs

    texts = {
        "script": "".join(map(_text, _SCRIPTS)),
        "library": get_plotlyjs(),
        "draw": _text("draw.js"),
    }
    # Nothing in a script closes its element.
    scripts = {
        name: re.sub(r"<(?=/script|!--|script)", r"\\x3c", text, flags=re.IGNORECASE)
        for name, text in texts.items()
    }
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts.values()]
    parts = {
        **scripts,
        "digests": " ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in digests),
        "style": _text("style.css"),
        "title": escape(visible(str(contents["title"]))),
        "data": escaped_json(msgspec.to_builtins(contents)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _text("page.html"))


def _text(name: str) -> str:
    return package_text(__package__, name)


def escaped_json(value: Any) -> str:
    """ASCII JSON that is safe inside HTML."""
    return json.dumps(_safe(value), allow_nan=False, separators=(",", ":")).translate(_IN_JSON)


def _safe(value: Any) -> Any:
    """The value, with large integers as text."""
    if isinstance(value, dict):
        return {key: _safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    return str(value) if isinstance(value, int) and abs(value) > _LARGEST_SAFE else value
