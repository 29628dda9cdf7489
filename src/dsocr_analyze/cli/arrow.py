"""pyarrow as commands use it."""

import importlib.abc
import sys
from typing import Any

import pyarrow as pa


class _WithoutPandas(importlib.abc.MetaPathFinder):
    """Finds no pandas."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def spare_pandas() -> None:
    """Keeps pyarrow's first array from importing pandas where it is installed, for 0.2 s.

    No command needs it; `to_pandas` looks for it again.
    """
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
