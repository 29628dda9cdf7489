"""Puts an HTML page together: markup, style and scripts, and its data, in one text.

The page loads nothing. Its Content-Security-Policy allows the scripts that are written into it, by
their digests, and no other; data stand in it as JSON that no parser of HTML can leave early.
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
"""The page's own scripts, in the order in which they need one another."""

_LARGEST_SAFE: Final = 2**53 - 1
"""The largest integer that a browser reads exactly; larger ones are written as text."""

_IN_JSON: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def refuse_without_plotly() -> None:
    """Raises FormatError, before any work, where the charts' library is not installed."""
    if importlib.util.find_spec("plotly") is None:
        raise FormatError(
            "an HTML report needs plotly, the optional extra 'html'; "
            "install it with pip install 'dsocr-analyze[html]'"
        )


def render_html(contents: Contents) -> str:
    """The page, complete; raises FormatError without plotly."""
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
    """JSON in ASCII without `<`, `>` and `&`, which mean nothing to a parser of HTML."""
    text = json.dumps(_safe(value), allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda found: _IN_JSON[found[0]], text)


def _safe(value: Any) -> Any:
    """The value with integers that a browser would round as text."""
    if isinstance(value, dict):
        return {key: _safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    is_large = isinstance(value, int) and abs(value) > _LARGEST_SAFE
    return str(value) if is_large else value


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _as_script(text: str) -> str:
    """JavaScript that may stand in an element: nothing in it ends the element."""
    return re.sub(r"<(?=/script|!--|script)", r"\\x3c", text, flags=re.IGNORECASE)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
