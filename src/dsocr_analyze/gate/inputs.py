"""Inputs that changed between two reports: config, code, workload and settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.gate.document import InputChange
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.report.config_differences import config_differences
from dsocr_analyze.report.document import Model, Report, Workload

__all__ = ["input_changes"]

_OPTIONS = ("page", "base_size", "image_size", "crop_mode", "prompt_pages", "batch_size",
            "max_new_tokens")  # fmt: skip
"""What a user sets for a workload; the rest follows from these and the model."""


def input_changes(before: Report, after: Report) -> list[InputChange]:
    """All inputs that differ, config keys first, since these are what a model's author changes.

    If the baseline does not contain its config (an early report), published configs are identified
    by digest; for any other, all that is known is that it differs.
    """
    old, new = before.metadata.model, after.metadata.model
    return [
        *_of_config(old, new),
        *_of_code(old, new),
        *_of_workload(before.workload, after.workload),
        *_of_setting(before, after),
    ]


def _of_config(old: Model, new: Model) -> Iterator[InputChange]:
    if old.config_digest == new.config_digest:
        return
    was, now = _config_of(old), _config_of(new)
    if was is None or now is None:
        yield InputChange(
            kind="config", key="config.json", before=f"digest {old.config_digest[:12]}",
            after=f"digest {new.config_digest[:12]}",
        )  # fmt: skip
        return
    for key in config_differences([was, now]):
        yield InputChange(kind="config", key=key.path, before=key.text(0), after=key.text(1))


def _config_of(model: Model) -> Mapping[str, Any] | None:
    """The config's values; None if unknown."""
    if model.config_text is None:
        return _published_configs().get(model.config_digest)
    try:
        found = json.loads(model.config_text)
    except (ValueError, RecursionError):
        return None  # a report's text need not be valid JSON
    return found if isinstance(found, dict) else None


@cache
def _published_configs() -> Mapping[str, Mapping[str, Any]]:
    """The built-in references' configs by digest."""
    found = (ModelDirectory.read(each.reference) for each in ARCHITECTURES.values())
    return {directory.config_digest(): directory.config for directory in found}


def _of_code(old: Model, new: Model) -> Iterator[InputChange]:
    if old.code_digest != new.code_digest:
        yield InputChange(
            kind="code", key="Python files", before=f"digest {old.code_digest[:12]}",
            after=f"digest {new.code_digest[:12]}",
        )  # fmt: skip


def _of_workload(old: Workload, new: Workload) -> Iterator[InputChange]:
    for name in _OPTIONS:
        was, now = getattr(old, name), getattr(new, name)
        if was != now:
            yield _input("workload", name, was, now)
    # These determine the prompt, except for its text and for a model that reads no pages.
    if old.text_tokens != new.text_tokens:
        yield _input("workload", "text_tokens", old.text_tokens, new.text_tokens)
    if old.page is None and new.page is None and old.seq_len != new.seq_len:
        yield _input("workload", "seq_len", old.seq_len, new.seq_len)


def _of_setting(before: Report, after: Report) -> Iterator[InputChange]:
    old, new = before.metadata, after.metadata
    if old.model.architecture and old.model.architecture != new.model.architecture:
        yield _input("setting", "architecture", old.model.architecture, new.model.architecture)
    for name in ("engine", "device", "dtype", "attention", "kernels_of"):
        was, now = getattr(old, name), getattr(new, name)
        if was != now and (name != "kernels_of" or was is not None):
            yield _input("setting", name, was, now)
    if old.model.weights != new.model.weights:
        yield _input("setting", "weights", old.model.weights, new.model.weights)
    was, now = old.versions.get("tool"), new.versions.get("tool")
    if was != now:
        yield _input("setting", "dsocr-analyze", was, now)


def _input(kind: Any, key: str, was: object, now: object) -> InputChange:
    return InputChange(kind=kind, key=key, before=_text(was), after=_text(now))


def _text(value: object) -> str | None:
    if isinstance(value, tuple):
        return " x ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
