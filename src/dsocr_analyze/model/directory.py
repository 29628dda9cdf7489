"""A model directory: its config and the bytes of its Python files, read once, and its tokenizer."""

import contextlib
import errno
import fnmatch
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, Self

from dsocr_analyze import architectures
from dsocr_analyze.architectures import (
    architecture_of,
    recognized_architecture,
)
from dsocr_analyze.architectures.architecture import Architecture, ModelDimensions
from dsocr_analyze.architectures.config_file import (
    Code,
    Config,
    ConfigFindings,
    JsonValue,
    findings_of,
)
from dsocr_analyze.errors import ConfigError, ModelDirectoryError
from dsocr_analyze.escaping import shown
from dsocr_analyze.extras import require_trace
from dsocr_analyze.figures import Model
from dsocr_analyze.input_files import (
    CODE_BYTES,
    CONFIG_BYTES,
    DOCUMENT_BYTES,
    MEBIBYTE,
    SOURCE_BYTES,
    exists,
    is_folder,
    read_bytes,
)

_NOT_QUANTIZED: Final = (
    "'quantization_config' in config.json has no effect: the model is counted without it"
)
_READS_CONFIG: Final = (
    "closed forms assume that the directory's code, which is not the published code, builds the"
    " model in config.json; a trace shows what it runs"
)

_OWN: Final = Path(architectures.__file__).parent
"""Where the built-in references are."""

_MOST_FILES: Final = 100_000
_CONFIG: Final = "config.json"


@dataclass(frozen=True)
class ModelDirectory:
    """The content of a model directory, of which the very bytes that are hashed run.

    Attributes:
        sources: Python files by their POSIX path within the directory.
        described: The architecture from a stages file, if any.
        config_file: The config's file, if not the directory's own `config.json`.
    """

    path: Path
    config: dict[str, Any]
    sources: dict[str, bytes]
    described: Architecture | None = None
    config_file: Path | None = None

    @classmethod
    def read(cls, path: Path, described: Architecture | None = None) -> Self:
        """Reads a directory; raises ModelDirectoryError or ConfigError if it has no model."""
        try:
            if not is_folder(path):
                what = "is not a directory" if exists(path) else "does not exist"
                raise ModelDirectoryError(
                    f"model directory {str(path)!r} {what}; give a directory with config.json and"
                    " the model's Python files, or none at all to run the built-in reference"
                )
            return cls(path, read_config(path / _CONFIG), _python_files(path), described)
        except OSError as error:
            raise ModelDirectoryError(
                f"cannot read model directory {str(path)!r}: {error.strerror or error}"
            ) from error

    @classmethod
    def of_architecture(cls, architecture: Architecture) -> Self:
        """What is built in of an architecture: a reference, or a config for transformers' class."""
        if architecture.is_of_transformers:
            return cls(Path(architecture.name), {**architecture.config}, {})
        return cls.read(architecture.reference)

    @classmethod
    def of_config(cls, file: Path, described: Architecture | None) -> Self:
        """A model of transformers' own code, from just a `config.json`."""
        return cls(file, read_config(file), {}, described, file)

    @cached_property
    def architecture(self) -> Architecture:
        """The model's architecture; raises ConfigError if it is not recognised."""
        with self._named_config():
            return self.described or architecture_of(self.config)

    @cached_property
    def recognized(self) -> Architecture | None:
        """The same; None if it is not recognised."""
        return self.described or recognized_architecture(self.config)

    @property
    def of_transformers(self) -> Architecture | None:
        """The architecture if it is described by a file, or transformers has its class."""
        known = self.recognized
        return known if known is not None and known.is_of_transformers else None

    @property
    def has_code(self) -> bool:
        """Whether it has its own code, instead of transformers'."""
        if self.described is None:
            return self.of_transformers is None
        return isinstance(self.config.get("auto_map"), dict)

    def with_config(self, values: Config, file: Path | None = None) -> Self:
        """The same files, with their `auto_map` in another config, of `file`.

        Raises ConfigError for values that are no JSON.
        """
        try:
            read = json.loads(json.dumps({**values}))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"config is not JSON: {error}") from error
        return replace(
            self,
            config={**read, "auto_map": self.config.get("auto_map")},
            config_file=file or self.config_file,
        )

    @property
    def is_reference(self) -> bool:
        """Whether this is a built-in reference."""
        known, path = self.recognized, self.path.resolve()
        return path.is_relative_to(_OWN) or (
            known is not None and not known.is_of_transformers and path == known.reference.resolve()
        )

    @cached_property
    def code(self) -> Code:
        """Whose code this is; `other` if the directory has no model."""
        if self.is_reference or (self.described is None and not self.has_code):
            return "reference"
        with contextlib.suppress(ConfigError, ModelDirectoryError):
            if self.runs_code(self.architecture.published_code):
                return "published"
        return "other"

    def dimensions(self) -> ModelDimensions:
        """Dimensions of the model that its code builds; raises ConfigError if they are unknown."""
        with self._named_config():
            return self.architecture.forms.dimensions(self.config, self.code)

    def check_values(self) -> None:
        """Raises ConfigError for values that no model can be built from, where that is known.

        Also for those that closed forms do not cover, or that transformers would load.
        """
        if not self.has_code:
            with self._named_config():
                # A known model is built by transformers' class, whatever code a file names.
                named = {"auto_map": None} if self.described is None else {}
                check_loads_nothing({**self.config, **named})
        if self.code == "reference" or (
            # A trace may count what published code does beyond the closed forms.
            self.code == "published" and not self.config_findings.refusals
        ):
            self.dimensions()

    @property
    def untraceable(self) -> str:
        """Why the installed transformers cannot trace it; empty if it can.

        Raises ExtraError if no model can be run here.
        """
        require_trace()
        known = self.of_transformers
        if known is None or known.least_transformers is None:
            return ""
        from packaging.version import Version  # here because few runs need it

        installed = metadata.version("transformers")
        if Version(installed) >= Version(known.least_transformers):
            return ""
        return (
            f"transformers {installed} is too old to trace {known.title}, whose class is counted as"
            f" in {known.least_transformers}: closed forms are evaluated instead"
        )

    @property
    def doubt(self) -> str:
        """Why the architecture's own code could not run the config; empty if it could."""
        architecture = self.recognized
        if architecture is not None and architecture.closed_forms is not None:
            try:
                self.dimensions()
            except ConfigError as error:
                return str(error)
        return ""

    @contextlib.contextmanager
    def _named_config(self) -> Iterator[None]:
        """Names the config's file in errors about it."""
        try:
            yield
        except ConfigError as error:
            told = str(error)
            if self.config_file is None or not told.startswith(_CONFIG):
                raise
            raise ConfigError(
                f"{str(self.config_file)!r}{told.removeprefix(_CONFIG)}", arguments=error.arguments
            ) from error

    @cached_property
    def config_findings(self) -> ConfigFindings:
        """Findings about the config's keys; without closed forms, only about quantization."""
        architecture = self.recognized
        if architecture is None or architecture.closed_forms is None:
            is_quantized = self.config.get("quantization_config") is not None
            return ConfigFindings((_NOT_QUANTIZED,) if is_quantized else (), ())
        with self._named_config():
            return findings_of(self.config, architecture.forms.model.config_table, self.code)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the closed forms assume about the directory's code."""
        if self.sources and not self.has_code:
            return ("transformers' own class is counted; the directory's Python files are not run",)
        return (_READS_CONFIG,) if self.code == "other" else ()

    def class_in(self, role: str) -> tuple[str, str]:
        """The file and class that `auto_map` names for a role.

        Raises ConfigError if it names none, and ModelDirectoryError without such a file.
        """
        auto_map = self.config.get("auto_map")
        if not isinstance(auto_map, dict):
            raise ConfigError(f"config.json of {str(self.path)!r} lacks 'auto_map'")
        reference, names = auto_map.get(role), self.config.get("architectures")
        if self.described is not None and role == "AutoModel" and isinstance(names, list):
            # The first class that the config names, whatever its role.
            models = [value for key, value in auto_map.items() if key.startswith("AutoModel")]
            found = (each for each in models if str(each).rpartition(".")[2] in names[:1])
            reference = next(found, reference)
        if not isinstance(reference, str) or "." not in reference:
            raise ConfigError(
                f"'auto_map' in config.json of {str(self.path)!r} lacks {role!r} (a 'file.Class')"
            )
        module, _, class_name = reference.rpartition(".")
        file = f"{module.replace('.', '/')}.py"
        if file not in self.sources:
            raise ModelDirectoryError(
                f"{str(self.path)!r} lacks {module}.py, which 'auto_map' names;"
                f" it has {', '.join(self.sources) or 'no Python files'}"
            )
        return file, class_name

    def runs_code(self, published: Mapping[str, str]) -> bool:
        """Whether the model is built from `published` files only, given by their SHA-256.

        Others may lie beside them, which published files do not import. Raises like `class_in`.
        """
        # They import only each other, and `name.py` precedes a folder of that name.
        if not published.items() <= self.digests().items():
            return False
        return all(self.class_in(role)[0] in published for role in ("AutoConfig", "AutoModel"))

    def digests(self) -> dict[str, str]:
        """SHA-256 of every Python file, by file."""
        return dict(zip(self.sources, map(_sha256, self.sources.values()), strict=True))

    def code_digest(self) -> str:
        """A single SHA-256 of the names and contents of all Python files."""
        digests = self.digests()
        return _sha256("".join(map("{}  {}\n".format, digests.values(), digests)).encode())

    def source(
        self,
        architecture: str | None,
        *,
        class_name: str | None = None,
        weights: Literal["none", "checkpoint"] = "none",
    ) -> Model:
        """The model's origin, with its architecture's name and class, if known."""
        config = json.dumps(self.config, sort_keys=True, separators=(",", ":"))
        return Model(
            architecture=architecture,
            source="reference" if self.is_reference else "directory" if self.has_code else "config",
            id="built-in reference" if self.is_reference else self.path.resolve().name,
            config_digest=_sha256(config.encode()),
            code_digest=self.code_digest(),
            class_name=class_name,
            weights=weights,
            config_text=config,
        )

    def weight_files(self) -> list[Path]:
        """The safetensors files, or those of them that transformers reads."""
        found = sorted(self.path.glob("*.safetensors"))
        return [file for file in found if file.name.startswith("model")] or found

    @property
    def tokenizer_file(self) -> Path:
        """Its tokenizer, which may not exist."""
        return self.path / "tokenizer.json"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _python_files(directory: Path) -> dict[str, bytes]:
    """Python files by path, but hidden ones; OSError if unreadable, too many or too large."""

    def refuse(error: OSError) -> None:
        raise error

    found: dict[str, bytes] = {}
    seen = size = 0
    for folder, folders, names in os.walk(directory, onerror=refuse):
        seen += len(folders) + len(names)
        if seen > _MOST_FILES:
            raise OSError(
                errno.EFBIG, f"it has more than {_MOST_FILES:,} files, too many for a model"
            )
        folders[:] = fnmatch.filter(folders, "[!.]*")
        for file in map(Path(folder).joinpath, fnmatch.filter(names, "[!.]*.py")):
            name = file.relative_to(directory).as_posix()
            try:
                data = read_bytes(file, SOURCE_BYTES)
            except OSError as error:
                raise OSError(error.errno, f"{name}: {error.strerror}") from error
            size += len(data)
            if size > CODE_BYTES:
                raise OSError(
                    errno.EFBIG, f"its Python files are larger than {CODE_BYTES // MEBIBYTE} MiB"
                )
            found[name] = data
    return dict(sorted(found.items()))


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; raises ModelDirectoryError or ConfigError without one."""
    try:
        text = read_bytes(path, CONFIG_BYTES).decode()
        if text.startswith("\ufeff"):
            raise ValueError("it begins with a byte order mark, which transformers refuses too")
        config = json.loads(text, object_pairs_hook=_object_of)
    except FileNotFoundError as error:
        raise ModelDirectoryError(
            f"no config at {str(path)!r}; a model directory contains config.json"
        ) from error
    except OSError as error:
        raise ModelDirectoryError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{str(path)!r} is not JSON: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{str(path)!r}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{str(path)!r} contains a JSON {type(config).__name__}, not an object")
    return config


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises ConfigError for a duplicate key."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ConfigError(
                f"{shown(key)} appears twice in one object, as {shown(found[key])} and as"
                f" {shown(value)}; give it once"
            )
        found[key] = value
    return found


# --- its tokenizer, whose library panics if the file is broken ---------------------------------

_STDERR: Final = 2


@contextlib.contextmanager
def tokenizer_read(file: Path) -> Iterator[bytes]:
    """The content of a tokenizer's file, which the body runs.

    A panic raises a BaseException and writes a hundred lines to stderr, which is dropped meanwhile.

    Raises:
        ModelDirectoryError: The file is unreadable or too large, or the body fails.
    """
    try:
        with _discarding_stderr():
            yield read_bytes(file, DOCUMENT_BYTES)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ModelDirectoryError(f"cannot read {str(file)!r}: {reason}") from error


@contextlib.contextmanager
def _discarding_stderr() -> Iterator[None]:
    try:
        kept = os.dup(_STDERR)
    except OSError:  # stderr is closed anyway
        yield
        return
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), _STDERR)
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)


# --- configs without code --------------------------------------------------------------------

_FALSE: Final = "set it to false, and describe the backbone in 'backbone_config'"
_KERNEL: Final = "give the name of an implementation in transformers, such as 'eager'"

_LOADED: Final = {
    "auto_map": (
        "",
        "leave it out: only code in the model's own directory runs, once it is trusted",
    ),
    "backbone": ("", "describe the backbone in 'backbone_config', and set 'backbone' to null"),
    "backbone_kwargs": ("", "set it to null, and describe the backbone in 'backbone_config'"),
    "checkpoint_path": ("", "leave it out: a config describes a model without its weights"),
    "use_pretrained_backbone": ("", _FALSE),
    "use_timm_backbone": ("", _FALSE),
    "_attn_implementation": ("/", _KERNEL),
    "attn_implementation": ("/", _KERNEL),
    "experts_implementation": ("/", _KERNEL),
    "architecture": (":", "give the name of one of timm's own models"),
}  # fmt: skip
"""Keys whose values transformers or timm load by name, and what to do instead.

Some only if they contain a character: the kernel `owner/kernel`, the model `hf-hub:owner/model`.
"""


def check_loads_nothing(config: Config) -> None:
    """Raises ConfigError if a key, at any depth, makes transformers load something.

    Keys with empty values (null, false, "") do not.
    """
    for path, key, value, owner in _entries(config):
        mark, advice = _LOADED.get(key, ("", ""))
        is_harmless = not value or (mark and not (isinstance(value, str) and mark in value))
        if advice and not is_harmless and not _names_no_file(path, key, value, owner, config):
            raise ConfigError(
                f"config.json has {path!r} {shown(value)}, which would be loaded by its name;"
                f" {advice}"
            )


def _names_no_file(path: str, key: str, value: JsonValue, owner: Config, config: Config) -> bool:
    """Whether it is a backbone that is one of timm's own models, or whose name is not read."""
    is_plain = key == "backbone" and isinstance(value, str) and not set(value) & set(":/\\")
    # MaskFormer builds a DETR decoder without the backbone that published configs name.
    is_ignored = (config.get("model_type"), path) == ("maskformer", "decoder_config.backbone")
    return is_plain and (owner.get("model_type") == "timm_backbone" or is_ignored)


def _entries(config: Config) -> Iterator[tuple[str, str, JsonValue, Config]]:
    """Path, key, value and object of every entry, at any depth."""
    waiting: list[tuple[str, JsonValue]] = [("", config)]
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, Mapping):
            below = f"{path}." if path else ""
            for key, value in part.items():
                yield f"{below}{key}", key, value, part
                waiting.append((f"{below}{key}", value))
        elif isinstance(part, list | tuple):
            waiting.extend((f"{path}[{number}]", each) for number, each in enumerate(part))
