"""Assembles an HTML page: markup, style, scripts and data in one file.

The page loads nothing. Its Content-Security-Policy allows only its own inline scripts, by digest;
its data are JSON escaped so that they can't close their element.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
from importlib import resources
from typing import Any, Final

import msgspec

from dsocr_analyze.errors import FormatError
from dsocr_analyze.report.html.contents import Contents

__all__ = ["escaped_json", "refuse_without_plotly", "render_html"]

_SCRIPTS: Final = (
    "format.js", "elements.js", "tables.js", "charts.js", "stacks.js", "hierarchy.js",
    "roofline.js", "curves.js", "report.js", "comparison.js", "start.js",
)  # fmt: skip
"""The page's own scripts, in order of dependency."""

_LARGEST_SAFE: Final = 2**53 - 1
"""The largest integer that JavaScript represents exactly; larger ones are written as text."""

_IN_JSON: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def refuse_without_plotly() -> None:
    """Raise FormatError if plotly is not installed; called before any work."""
    if importlib.util.find_spec("plotly") is None:
        raise FormatError(
            "an HTML report needs plotly, the optional extra 'html'; "
            "install it with pip install 'dsocr-analyze[html]'"
        )


def render_html(contents: Contents) -> str:
    """The complete page; raises FormatError if plotly is not installed."""
    refuse_without_plotly()
    from plotly.offline import get_plotlyjs

    scripts = {
        "script": _as_script("".join(_text(name) for name in _SCRIPTS)),
        "library": _as_script(get_plotlyjs()),
        "draw": _as_script(_text("draw.js")),
    }
    digests = " ".join(f"'sha256-{_digest(script)}'" for script in scripts.values())
    parts = {
        **scripts,
        "digests": digests,
        "style": _text("style.css"),
        "data": escaped_json(msgspec.to_builtins(contents)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _text("page.html"))


def escaped_json(value: Any) -> str:
    """ASCII JSON with `<`, `>` and `&` escaped, so it is safe inside HTML."""
    text = json.dumps(_safe(value), allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda found: _IN_JSON[found[0]], text)


def _safe(value: Any) -> Any:
    """The value, with integers too large for JavaScript as text."""
    if isinstance(value, dict):
        return {key: _safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    is_large = isinstance(value, int) and abs(value) > _LARGEST_SAFE
    return str(value) if is_large else value


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _as_script(text: str) -> str:
    """JavaScript that is safe in a script element: nothing in it closes the element."""
    return re.sub(r"<(?=/script|!--|script)", r"\\x3c", text, flags=re.IGNORECASE)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
