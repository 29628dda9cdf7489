"""The version in this package's metadata."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("dsocr-analyze")
