"""Computes the parts of a module's page."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dsocr_analyze.documents.built import BUILT
from dsocr_analyze.documents.cases import Case
from dsocr_analyze.documents.model import DocumentedModel
from dsocr_analyze.documents.signature import definition_of
from dsocr_analyze.documents.sources import Sources
from dsocr_analyze.documents.templates import evaluated, rows_of, shown
from dsocr_analyze.errors import DocumentError
from dsocr_analyze.tape.notation import wrapped

__all__ = ["ModulePage", "folded_paths"]


class ModulePage:
    """A page: its module in one model, and what is computed on it.

    Args:
        name: Name of the class or function.
        model: The model that it is written from.
        sources: The documents.
        page: Returns another page by name, or this one of the published model.

    Attributes:
        subject: The class or function.
        is_of_given_config: Whether the model of the given config has the module.
    """

    def __init__(
        self, name: str, model: DocumentedModel, sources: Sources, page: Callable[..., ModulePage]
    ) -> None:
        self.name, self.model, self.sources, self._page = name, model, sources, page
        self.is_of_given_config = True
        self.subject = model.get(name)
        if self.subject is None:
            raise DocumentError(f"{model.architecture.title} has no {name}")

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """Calls of the module, each unlike the others; the tape and the trace agree on them.

        Those that run in the page come first: of each path that the page names, or of every path
        at which the class is found; then those that are made by hand.
        """
        paths = self._paths
        cases = [*self.model.cases(paths), *BUILT.get(self.name, _nothing)(self.model)]
        for case in cases:
            case.check(self.name)
        unlike = {
            (each.traced.kernels, each.peak_bytes, each.cache_bytes): each for each in cases[::-1]
        }
        return _labelled(tuple(reversed(unlike.values())))

    @cached_property
    def _paths(self) -> dict[str, str]:
        """Labels by path."""
        own = self.model.classes.get(self.name, [])
        stated = self.sources.paths_of(self.name)
        if stated is None or not stated.keys() <= set(own):
            return dict.fromkeys(own, "")
        # Labels say what is so in the published model.
        if any(stated.values()) and not self.model.is_published:
            return dict.fromkeys(own, "")
        return stated

    @cached_property
    def names(self) -> dict[str, Any]:
        """What expressions on the page may name."""
        sizes = self.cases[0].part.values if self.cases else {}
        return {
            **sizes,
            "cases": self.cases,
            "config": self.model.config,
            "model": self.model,
            "page": self._page,
            "this": self,
        }

    # --- computed parts

    def value(self, expression: str) -> str:
        """The text of a value."""
        return shown(evaluated(expression, self.names))

    def number(self, expression: str, language: str) -> str:
        """A number among fenced lines: without separators; code is that of the published model."""
        page = self._page(self.name, is_published=True) if language == "python" else self
        return str(evaluated(expression, page.names))

    def block(self, name: str, arguments: str, body: str) -> str:
        """The lines of a block."""
        given = {"arguments": arguments, "rows": rows_of(body)}
        return self.sources.include(name, {**self.names, **given})

    # --- what templates ask for

    @property
    def location(self) -> str:
        """Where the module stands in the model."""
        if not self.is_of_given_config:
            return f"The given config has no `{self.name}`; figures are those of the published one."
        paths = folded_paths(self.model.classes.get(self.name, []))
        where = ", ".join(f"`{path or '(the model)'}`" for path in paths)
        if paths:
            return f"In the model: {where}."
        return (
            f"The model has no `{self.name}`." if inspect.isclass(self.subject) else "A function."
        )

    def definition(self, further: str) -> str:
        """The class or function, and others by name, without bodies."""
        subjects = (self.subject, *map(self.model.get, further.split()))
        return "\n\n\n".join(map(definition_of, subjects))

    @property
    def origin(self) -> str:
        """The file and kind of what is defined."""
        kind = "class" if inspect.isclass(self.subject) else "function"
        return f"`{Path(inspect.getfile(self.subject)).name}`, {kind}"

    def parameters(self, rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
        """Rows of parameters and config keys, with their defaults, and values of keys."""
        self._check_parameters([row[0].strip("`") for row in rows])
        return [(*row[:2], *self._setting(*row)) for row in rows]

    @cached_property
    def _signature(self) -> Mapping[str, inspect.Parameter]:
        """Parameters of the constructor or function."""
        if not inspect.isclass(self.subject):
            return inspect.signature(self.subject).parameters
        if self.subject.__init__ is object.__init__:
            return {}
        return dict(list(inspect.signature(self.subject.__init__).parameters.items())[1:])

    def _check_parameters(self, described: Sequence[str]) -> None:
        """Raises DocumentError unless the page describes the parameters, in order."""
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        names = [name for name, each in self._signature.items() if each.kind not in variable]
        own = [name for name in described if "." not in name]
        if own != names:
            raise DocumentError(f"describes the parameters {own}; right: {names}")

    def _setting(self, name: str, _: str, __: str, value: str) -> tuple[str, str]:
        """Default and value of a parameter, or of a key of the config."""
        section, _, key = name.strip("`").partition(".")
        if section == "config" and key:
            default = getattr(type(self.model.config)(), key, inspect.Parameter.empty)
            value = f"`{_plain(getattr(self.model.config, key, None))!r}`"
        else:
            parameter = self._signature.get(section)
            default = parameter.default if parameter and not key else inspect.Parameter.empty
            default = getattr(self.subject, "DEFAULTS", {}).get(key, default)
        if default is inspect.Parameter.empty:
            return "", value
        return f"`{default.__name__ if inspect.isclass(default) else repr(default)}`", value

    def shape(self, tensor: str, stated: str, case: Case) -> str:
        """A tensor's shape in a case, which must be as people wrote it."""
        ran = case.traced.shapes.get(tensor.strip("`"))
        if ran is None and any(tensor.strip("`") in each.traced.shapes for each in self.cases):
            return "none"
        names = {**self.names, **case.part.values}
        stated_shapes = stated.replace("`", "").split(" or ")
        shapes = (evaluated(each, names) for each in stated_shapes)
        if ran is None or list(ran) not in shapes:
            raise DocumentError(f"{tensor} is stated as {stated}, it is {ran}")
        return f"[{', '.join(map(str, ran))}]"

    # --- figures

    def formulas(self, *names: str) -> str:
        """Formulas as fenced lines, each with the cases that it is for, and where they hold."""
        lines = []
        for name in names:
            texts = _by_text({case.label: case.formulas[name] for case in self.cases})
            for text, labels in texts.items():
                if text != "0" or len(texts) > 1 or name == names[0]:
                    lines += textwrap.wrap(f"# {labels}", 88) if len(texts) > 1 else []
                    lines.append(wrapped(name, text))
        held = _by_text({case.label: case.conditions for case in self.cases})
        conditions = [
            f"These hold for {text}." if len(held) == 1 else f"{labels}: for {text}."
            for text, labels in held.items()
            if text
        ]
        return "\n\n".join(["```text\n" + "\n".join(lines) + "\n```", *conditions])

    @cached_property
    def symbols(self) -> list[tuple[str, str, str]]:
        """The names in the formulas and their conditions, with meanings and values."""
        texts = [text for case in self.cases for text in (*case.formulas.values(), case.conditions)]
        used = set(re.findall(r"[A-Za-z]\w*", " ".join(texts).replace("is a multiple of", "")))
        meanings = self.sources.meanings(self.cases[0].part.name)
        if unknown := used - meanings.keys() - {"ceil", "floor", "log2", "min", "max"}:
            raise DocumentError(f"symbols.md does not explain {', '.join(sorted(unknown))}")
        return [
            (name, meaning, _common(shown(case.part.values[name]) for case in self.cases))
            for name, meaning in meanings.items()
            if name in used
        ]


def _common(values: Iterable[str]) -> str:
    """All values in turn, or one if they are the same."""
    values = list(values)
    return values[0] if len(set(values)) == 1 else " / ".join(values)


def _labelled(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """The cases with the paths of their modules in labels, if these are not distinct without."""
    if len({case.label for case in cases}) == len(cases):
        return cases
    return tuple(replace(each, label=f"{each.label}, `{each.taped.path}`") for each in cases)


def _by_text(texts: Mapping[str, str]) -> dict[str, str]:
    """The labels of each text, joined."""
    found: dict[str, list[str]] = {}
    for label, text in texts.items():
        found.setdefault(text, []).append(label)
    return {text: "; ".join(labels) for text, labels in found.items()}


def folded_paths(paths: Iterable[str]) -> list[str]:
    """Paths that differ in numbers, with ranges in place of these: `layers.[0-11].mlp`."""
    found: dict[str, list[list[int]]] = {}
    for path in paths:
        numbers = list(map(int, re.findall(r"(?<=\.)\d+", path)))
        found.setdefault(re.sub(r"(?<=\.)\d+", "{}", path), []).append(numbers)
    folded = []
    for pattern, all_numbers in found.items():
        places = zip(*all_numbers, strict=True)
        folded.append(pattern.format(*map(_ranges, places)))
    return folded


def _ranges(numbers: Iterable[int]) -> str:
    """`3`, or numbers in runs: `[0-1, 3]`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return texts[0] if texts[0].isdigit() and len(texts) == 1 else f"[{', '.join(texts)}]"


def _plain(value: Any) -> Any:
    """A value as it would be in the file."""
    return dict(value) if isinstance(value, Mapping) else value


def _nothing(_: DocumentedModel) -> Iterable[Case]:
    return ()
