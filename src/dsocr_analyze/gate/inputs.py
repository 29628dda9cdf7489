"""Inputs that changed between two reports: config, code, workload and settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from typing import Any, Final, Literal

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.gate.differences import Difference
from dsocr_analyze.gate.document import InputChange
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.report.config_differences import config_differences
from dsocr_analyze.report.document import Model, Report, Workload

__all__ = ["input_changes"]

_Kind = Literal["workload", "setting", "report"]

_OPTIONS: Final = ("page", "base_size", "image_size", "crop_mode", "prompt_pages", "batch_size",
            "max_new_tokens")  # fmt: skip
"""What a user sets for a workload; the rest follows from these and the model."""

_MORE_OPTIONS: Final = ("dtype", "attention")
"""What a user sets for a workload, but is in the metadata."""

_SAID_OTHERWISE: Final = (
    "model.config_digest", "model.config_text", "model.code_digest",  # above
    "model.id", "created",  # the name of a folder, and a time: neither is an input
)  # fmt: skip


def input_changes(before: Report, after: Report, words: Iterable[Difference]) -> list[InputChange]:
    """All inputs that differ, config keys first, since these are what a model's author changes.

    If the baseline does not contain its config (an early report), published configs are identified
    by digest; for any other, all that is known is that it differs.

    Args:
        before: The baseline.
        after: The report now.
        words: All differences that are neither numbers nor follow from one.
    """
    old, new = before.metadata.model, after.metadata.model
    return [
        *_of_config(old, new),
        *_of_code(old, new),
        *_of_workload(before.workload, after.workload),
        *_of_words(words),
    ]


def _of_config(old: Model, new: Model) -> Iterator[InputChange]:
    is_known = None not in (old.config_text, new.config_text)
    if old.config_digest == new.config_digest and not (
        is_known and old.config_text != new.config_text
    ):
        return
    was, now = _config_of(old), _config_of(new)
    keys = [] if was is None or now is None else [*config_differences({"was": was, "now": now})]
    for key in keys:
        yield InputChange(kind="config", key=key.key, before=key.text("was"), after=key.text("now"))
    if not keys:
        yield InputChange(
            kind="config", key="config.json", before=_config_name(old), after=_config_name(new)
        )


def _config_name(model: Model) -> str:
    """The digest of a config whose keys are unknown or not those of its digest."""
    text = model.config_text
    is_right = text is None or sha256(text.encode()).hexdigest() == model.config_digest
    return f"digest {model.config_digest[:12]}{'' if is_right else ', not of its text'}"


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
        shown = 12 if old.code_digest[:12] != new.code_digest[:12] else None
        yield InputChange(
            kind="code", key="Python files", before=f"digest {old.code_digest[:shown]}",
            after=f"digest {new.code_digest[:shown]}",
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


def _of_words(words: Iterable[Difference]) -> Iterator[InputChange]:
    for each in words:
        key = each.key.removeprefix("metadata.").removeprefix("workload.")
        if each.section not in ("metadata", "workload"):
            yield _input("report", key, each.before, each.after)
        elif each.section == "workload" or key in _MORE_OPTIONS:
            if key not in _OPTIONS:
                yield _input("workload", key, each.before, each.after)
        elif key not in _SAID_OTHERWISE:
            yield _input("setting", key, each.before, each.after)


def _input(kind: _Kind, key: str, was: object, now: object) -> InputChange:
    return InputChange(kind=kind, key=key, before=_text(was), after=_text(now))


def _text(value: object) -> str | None:
    if isinstance(value, tuple):
        return " x ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
