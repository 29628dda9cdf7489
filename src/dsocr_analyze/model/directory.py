"""A model directory as read from disk, once: its config and the bytes of its Python files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsocr_analyze.errors import ConfigError, ModelDirectoryError

__all__ = ["REFERENCE_DIRECTORY", "ModelDirectory", "read_config"]

REFERENCE_DIRECTORY = Path(__file__).parent / "reference"


@dataclass(frozen=True)
class ModelDirectory:
    """What a model directory holds; the bytes that are hashed are the bytes that are executed."""

    path: Path
    config: dict[str, Any]
    sources: dict[str, bytes]
    """Python files by their path within the directory, posix style."""

    @classmethod
    def read(cls, path: Path) -> ModelDirectory:
        """Reads `path`; raises ModelDirectoryError or ConfigError where no model lies."""
        try:
            if not path.is_dir():
                what = "is not a directory" if path.exists() else "does not exist"
                raise ModelDirectoryError(
                    f"model directory {str(path)!r} {what}; give a directory with config.json and"
                    " the model's Python files, or leave --model out to run the built-in reference"
                )
            config = read_config(path / "config.json")
            sources = {
                file.relative_to(path).as_posix(): file.read_bytes()
                for file in sorted(path.rglob("*.py"))
                if not any(part.startswith(".") for part in file.relative_to(path).parts)
                and not file.is_dir()
            }
        except OSError as error:
            raise ModelDirectoryError(
                f"cannot read model directory {str(path)!r}: {error.strerror or error}"
            ) from error
        return cls(path, config, sources)

    @property
    def is_reference(self) -> bool:
        """Whether this is the project's own model."""
        return self.path.resolve() == REFERENCE_DIRECTORY.resolve()

    def digests(self) -> dict[str, str]:
        """SHA-256 of every Python file, by file."""
        return {name: hashlib.sha256(data).hexdigest() for name, data in self.sources.items()}

    def code_digest(self) -> str:
        """One SHA-256 over the names and contents of all Python files."""
        lines = "".join(f"{digest}  {name}\n" for name, digest in self.digests().items())
        return hashlib.sha256(lines.encode()).hexdigest()

    def config_digest(self) -> str:
        """SHA-256 of the config's values, whatever the file's formatting."""
        canonical = json.dumps(self.config, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def weight_files(self) -> list[Path]:
        """The directory's safetensors files."""
        return sorted(self.path.glob("*.safetensors"))


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; raises ModelDirectoryError or ConfigError where none is."""
    if not path.is_file():
        raise ModelDirectoryError(
            f"no config at {str(path)!r}; a model directory holds config.json"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelDirectoryError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{str(path)!r} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{str(path)!r} holds a JSON {type(config).__name__}, not an object")
    return config
