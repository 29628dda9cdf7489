"""Optional extras: what needs a package that is not installed says which extra brings it."""

import importlib.util

from dsocr_analyze.errors import ExtraError


def require_extra(what: str, extra: str, *packages: str) -> None:
    """Raises ExtraError if a package of an extra, which `what` needs, is not installed."""
    # A folder without code, such as a package leaves behind, is found, but has no location.
    found = {name: importlib.util.find_spec(name) for name in packages}
    missing = [name for name, spec in found.items() if spec is None or not spec.has_location]
    if missing:
        raise ExtraError(
            f"{what} needs {', '.join(missing)}, the optional extra {extra!r}; install it with pip"
            f" install 'dsocr-analyze[{extra}]'"
        )


def require_trace() -> None:
    """Raises ExtraError if what runs models is not installed."""
    # These require all else in the extra.
    require_extra("running a model", "trace", "torch", "transformers", "fvcore")
