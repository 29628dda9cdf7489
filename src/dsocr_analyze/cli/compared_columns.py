"""What `compare` puts side by side: modes of models, and saved reports."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.cli import page_options
from dsocr_analyze.columns.setting import Setting, is_mode_or_sizes, mode_or_sizes
from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.input_files import exists, is_folder, is_regular
from dsocr_analyze.model.directory import ModelDirectory, read_config
from dsocr_analyze.names import did_you_mean, in_any_case
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.reading import load_report
from dsocr_analyze.sweep.axes import parse_modes
from dsocr_analyze.workload import Mode

__all__ = ["Column", "ComparedModel", "Models", "Saved", "columns_of", "named_files"]


@dataclass(frozen=True, eq=False)
class ComparedModel:
    """One model of a comparison, shared by all items that use it.

    Attributes:
        directory: The model.
        config: Name of its config; None for the directory's own.
    """

    directory: ModelDirectory
    config: str | None = None

    @property
    def architecture(self) -> Architecture:
        """Its architecture; raises ConfigError if none recognises it."""
        return self.directory.architecture


@dataclass(frozen=True)
class Models:
    """The models named by options and items, each read when first needed.

    Attributes:
        model: Value of `--model`.
        arch: Value of `--arch`.
        configs: The files of `--config`, by name.
        trust_remote_code: Whether a directory under `models` is used without a trust record.
        sliding_window: Value of `--sliding-window`, for models that have one.
    """

    model: str | None
    arch: str | None
    configs: Mapping[str, Path]
    trust_remote_code: bool
    sliding_window: int | None
    _others: dict[str, ComparedModel] = field(default_factory=dict)

    @cached_property
    def named(self) -> tuple[ComparedModel, ...]:
        """The models that a bare mode applies to: one, or one per config."""
        files: list[tuple[str | None, Path | None]] = [*self.configs.items()] or [(None, None)]
        return tuple(self._read(self.model, self.arch, *each) for each in files)

    def config_values(self) -> dict[str, Mapping[str, Any]]:
        """The content of each `--config` file, by its name in `ComparedModel`."""
        return {name: read_config(file) for name, file in self.configs.items()}

    def of(self, architecture: Architecture) -> tuple[ComparedModel, ...]:
        """The named models of an architecture, or else the one that runs by default for it."""
        found = tuple(each for each in self.named if each.architecture is architecture)
        if found:
            return found
        if architecture.name not in self._others:
            reference = self.model if self.model == "reference" else None
            self._others[architecture.name] = self._read(reference, architecture.name)
        return (self._others[architecture.name],)

    def refuse_unused(self, used: Sequence[ComparedModel]) -> None:
        """Raise for options that name an unused model, or a sliding window that no model has."""
        if self.sliding_window is not None and not any(
            each.architecture.has_window for each in used
        ):
            raise WorkloadError(
                f"--sliding-window {self.sliding_window} has no effect: nothing that is compared"
                " has a sliding window; leave it out"
            )
        model = None if self.model == "reference" else self.model
        is_named = model is not None or self.arch is not None or self.configs
        for each in self.named if is_named else ():
            if each not in used:
                option = f"--arch {self.arch}" if model is None else f"--model {model}"
                if each.config is not None:
                    option = f"--config {self.configs[each.config]}"
                raise WorkloadError(
                    f"{option} is not compared with anything; name a mode without an architecture,"
                    " or leave it out"
                )

    def _read(
        self, model: str | None, arch: str | None, name: str | None = None, file: Path | None = None
    ) -> ComparedModel:
        directory = page_options.model_directory_from(
            model, arch, file, trust_remote_code=self.trust_remote_code
        )
        if self.sliding_window is not None and directory.architecture.has_window:
            directory = page_options.with_window(directory, self.sliding_window)
        return ComparedModel(directory, name)


def named_files(files: Sequence[Path]) -> Mapping[str, Path]:
    """Files by name, or by full path if two have the same name."""
    if len(set(files)) < len(files):
        twice = next(file for file in files if files.count(file) > 1)
        raise WorkloadError(f"--config {twice} is given twice; give every file once")
    names = [file.name for file in files]
    return {file.name if len(set(names)) == len(names) else str(file): file for file in files}


class Saved(NamedTuple):
    """A saved report.

    Attributes:
        name: Its file, as named by the user.
        report: The report.
    """

    name: str
    report: Report


class Column(NamedTuple):
    """A column to be counted.

    Attributes:
        name: What distinguishes it; equal columns have equal names.
        model: The model.
        setting: Its mode, data type and kind of attention.
    """

    name: str
    model: ComparedModel
    setting: Setting

    @property
    def way(self) -> tuple[ComparedModel, Dtype, bool]:
        """What an engine counts with: the model, the data type and the kind of attention."""
        return self.model, self.setting.dtype, self.setting.flash_attention


Asked: TypeAlias = tuple[str, ComparedModel, Mode]
"""What the user named, or else the mode; the model; and the mode, in any type and attention."""

Item: TypeAlias = Asked | Saved


def columns_of(
    what: Sequence[str],
    mode: str | None,
    models: Models,
    dtypes: Sequence[Dtype],
    attentions: Sequence[bool],
) -> list[Column | Saved]:
    """Every combination of data type, attention, config and item; the item varies fastest.

    A saved report has a single column. Names contain whatever there are several of: items, configs,
    data types and kinds of attention.

    Args:
        what: Items named by the user; may be empty.
        mode: Comma-separated modes for items that name none; None for the default.
        models: The models.
        dtypes: Data types of weights and activations.
        attentions: Whether attention is FlashAttention.

    Raises:
        WorkloadError: An item cannot be compared, or an option has no effect.
    """
    has_one_setting = len(dtypes) == len(attentions) == 1
    if what:
        groups = [group for item in what for group in _of_item(item, mode, models)]
    else:
        groups = _unnamed(mode, models, has_one_setting=has_one_setting)
    items = [each for rank in itertools.zip_longest(*groups) for each in rank if each is not None]
    asked = [each for each in items if not isinstance(each, Saved)]
    models.refuse_unused([model for _, model, _ in asked])
    if not asked and (mode is not None or not has_one_setting):
        option = "a list for --dtype or --use-flash-attn" if mode is None else f"--mode {mode}"
        raise WorkloadError(f"{option} has no effect on saved reports; leave it out")

    def column(each: Asked, dtype: Dtype, flash_attention: bool) -> Column:
        item, model, sizes = each
        setting = Setting(sizes, dtype, flash_attention)
        parts = (
            item if len(groups) > 1 else "",
            model.config if len(models.configs) > 1 else "",
            setting.dtype.name if len(dtypes) > 1 else "",
            setting.attention if len(attentions) > 1 else "",
        )
        return Column(", ".join(filter(None, parts)) or item, model, setting)

    first, *others = itertools.product(dtypes, attentions)
    return [
        *(each if isinstance(each, Saved) else column(each, *first) for each in items),
        *(column(each, *other) for other in others for each in asked),
    ]


def _unnamed(mode: str | None, models: Models, *, has_one_setting: bool) -> list[list[Item]]:
    """What is compared if the user names no items."""
    if mode is not None:
        return _in_modes("", mode, models.named)
    if not has_one_setting or len(models.configs) > 1:
        return [[_in_default_mode("", model) for model in models.named]]
    [model] = models.named
    return [[(each.name, model, each)] for each in model.architecture.modes.values()]


def _of_item(item: str, mode: str | None, models: Models) -> list[list[Item]]:
    """An item's groups: what stands side by side for one column name."""
    path = Path(item)
    if path.suffix == ".json" and not is_folder(path):
        return [[Saved(item, load_report(path))]]
    before, colon, own_mode = item.partition(":")
    name = in_any_case(before, ARCHITECTURES)
    found = models.named if name is None else models.of(ARCHITECTURES[name])
    if name is not None and not colon:
        if mode is not None:
            return _in_modes(f"{name}:", mode, found)
        return [[_in_default_mode(name, model) for model in found]]
    lacking = [each for each in found if not is_mode_or_sizes(each.architecture, item)]
    if name is None and lacking:
        if is_folder(path):
            raise _folder(item)
        if exists(path):
            return [[Saved(item, load_report(path))]]
        raise _unknown(item, lacking[0].architecture)
    if mode is not None:
        raise WorkloadError(f"{item!r} already names a mode; give it or --mode {mode}, not both")
    prefix = "" if name is None else f"{name}:"
    sizes = [
        (
            model,
            _mode_of(item, own_mode, model) if name else mode_or_sizes(model.architecture, item),
        )
        for model in found
    ]
    return [[(f"{prefix}{each.name}", model, each) for model, each in sizes]]


def _in_default_mode(item: str, model: ComparedModel) -> Asked:
    mode = model.architecture.modes[model.architecture.default_mode]
    return item or mode.name, model, mode


def _in_modes(prefix: str, text: str, models: Sequence[ComparedModel]) -> list[list[Item]]:
    """One group per mode in `--mode`, with every model that has this mode."""
    groups: dict[str, list[Item]] = {}
    for model in models:
        try:
            modes = parse_modes("mode", text, model.architecture)
        except WorkloadError as error:
            raise WorkloadError(
                f"{model.architecture.name}: {error}", arguments=error.arguments
            ) from error
        for mode in dict.fromkeys(modes):
            item = f"{prefix}{mode.name}"
            groups.setdefault(item, []).append((item, model, mode))
    return list(groups.values())


def _mode_of(item: str, text: str, model: ComparedModel) -> Mode:
    """The mode in an item like `ARCH:MODE`."""
    architecture = model.architecture
    if not is_mode_or_sizes(architecture, text):
        raise WorkloadError(
            f"cannot compare {item!r}: {architecture.name} has no mode {text!r}; give"
            f" {', '.join(architecture.modes)}, or sizes like 1024/640 (crops) or 640 (no crops)"
        )
    try:
        return mode_or_sizes(architecture, text)
    except WorkloadError as error:
        raise WorkloadError(
            f"cannot compare {item!r}: {error}", arguments=error.arguments
        ) from error


def _folder(item: str) -> WorkloadError:
    """The error for a folder, with what to name instead."""
    report, config = (Path(item) / name for name in ("static_compute.json", "config.json"))
    right = f"give a saved report, such as {report.name}, or --model DIR to compare its modes"
    if is_regular(report):
        right = f"did you mean its report, {report}?"
    elif is_regular(config):
        right = (
            f"compare the modes of this model with --model {item}, models with --config {config}"
            " (once per model), or saved reports: dsocr-analyze --model"
            f" {item} --output FOLDER writes FOLDER/{report.name}"
        )
    return WorkloadError(f"cannot compare {item!r}: it is a folder; {right}")


def _unknown(item: str, architecture: Architecture) -> WorkloadError:
    others = (
        f"{each.name}:{'|'.join(each.modes)}"
        for each in ARCHITECTURES.values()
        if each is not architecture
    )
    near = did_you_mean(item, [*architecture.modes, *ARCHITECTURES])
    return WorkloadError(
        f"cannot compare {item!r}; {near}give a mode of {architecture.name}"
        f" ({', '.join(architecture.modes)}), an architecture with or without a mode"
        f" ({', '.join([architecture.name, *others])}), sizes like 1024/640 (crops) or 640 (no"
        " crops), or a saved report.json"
    )
