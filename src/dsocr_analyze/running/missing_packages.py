"""Stand-ins for missing packages that model code imports but no pass calls."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from dsocr_analyze.forking import undone

__all__ = ["is_missing", "missing_packages_stood_in"]

_STAND_INS: Final[dict[str, tuple[str, ...]]] = {
    "torchvision": (),
    "torchvision.transforms": ("Compose", "ToTensor", "Normalize"),
    "torchvision.transforms.functional": ("InterpolationMode",),
}
"""Modules and the names that published models import from them, only for preprocessing."""


@contextlib.contextmanager
def missing_packages_stood_in() -> Iterator[None]:
    """Provides stand-ins for packages that model code imports but does not need to run."""
    added = [] if _torchvision_works() else list(_STAND_INS)

    def remove() -> None:
        for name in added:
            sys.modules.pop(name, None)

    with undone(remove):
        for name in added:
            sys.modules[name] = _stand_in(name, _STAND_INS[name])
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, sys.modules[name])
        yield


def is_missing(found: object) -> bool:
    """Whether an object imported by model code is only a stand-in."""
    return isinstance(found, _Missing)


def _torchvision_works() -> bool:
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        # A torchvision built for another torch fails to register operators with a RuntimeError.
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        return False
    return True


def _stand_in(name: str, names: tuple[str, ...]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
    module.__path__ = []
    for attribute in names:
        setattr(module, attribute, _Missing(f"{name}.{attribute}"))
    return module


class _Missing:
    """Stands in for a name of a missing package; calling it raises an error."""

    def __init__(self, qualified_name: str) -> None:
        self._qualified_name = qualified_name

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        package = self._qualified_name.partition(".")[0]
        raise ImportError(
            f"{self._qualified_name} was called, but {package} is not installed;"
            f" pip install {package}"
        )
