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
from dsocr_analyze.documents.expressions import evaluated, shown
from dsocr_analyze.documents.model import DocumentedModel
from dsocr_analyze.documents.signature import definition_of
from dsocr_analyze.documents.sources import Sources
from dsocr_analyze.documents.tables import rows_of, table
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.errors import DocumentError
from dsocr_analyze.report.quantities import flops_text
from dsocr_analyze.tape.notation import wrapped

__all__ = ["ModulePage", "folded_paths", "stated_workload"]


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
        blocks: Mapping[str, Callable[[], str]] = {
            "definition": lambda: self._definition(arguments),
            "flops": self._flops,
            "include": lambda: self.sources.include(arguments),
            "location": lambda: self.location,
            "memory": self._memory,
            "parameters": lambda: self._parameters(rows_of(body)),
            "references": lambda: self.sources.references(arguments),
            "shapes": lambda: self._shapes(rows_of(body)),
            "shares": lambda: stage_shares(self.model),
            "workload": lambda: stated_workload(self.model, self.sources),
        }
        if name not in blocks:
            raise DocumentError(f"there is no block {name!r}; there are {', '.join(blocks)}")
        return blocks[name]()

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

    def _definition(self, further: str) -> str:
        subjects = [self.subject, *map(self.model.get, further.split())]
        code = "\n\n\n".join(map(definition_of, subjects))
        return f"```python\n{code}\n```"

    def _parameters(self, rows: Sequence[Sequence[str]]) -> str:
        """Parameters and config keys: defaults and keys' values are computed, the rest is kept."""
        self._check_parameters([row[0].strip("`") for row in rows])
        kind = "class" if inspect.isclass(self.subject) else "function"
        where = f"Defined in `{Path(inspect.getfile(self.subject)).name}`, {kind} `{self.name}`."
        if not rows:
            return f"{where}\n\nIt has no parameters of its own."
        filled = [(*row[:2], *self._setting(*row)) for row in rows]
        return f"{where}\n\n{table(('parameter', 'meaning', 'default', 'value here'), filled)}"

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

    def _shapes(self, stated: Sequence[Sequence[str]]) -> str:
        """Tensors with their shapes as people wrote them, which must be those of every case."""
        rows = [
            (tensor, shape, *(self._shape(tensor, shape, case) for case in self.cases))
            for tensor, shape, *_ in stated
        ]
        return table(("tensor", "shape", *(case.label for case in self.cases)), rows)

    def _shape(self, tensor: str, stated: str, case: Case) -> str:
        ran = case.traced.shapes.get(tensor.strip("`"))
        if ran is None and any(tensor.strip("`") in each.traced.shapes for each in self.cases):
            return "none"
        names = {**self.names, **case.part.values}
        stated_shapes = stated.replace("`", "").split(" or ")
        shapes = (evaluated(each, names) for each in stated_shapes)
        if ran is None or ran not in shapes:
            raise DocumentError(f"{tensor} is stated as {stated}, it is {ran}")
        return f"[{', '.join(map(str, ran))}]"

    # --- figures

    def _flops(self) -> str:
        if not self.cases:
            return "Zero FLOPs."
        rows = [
            (case.label, *map(shown, (work.macs, work.matrix_flops, work.vector_flops, work.flops)),
             flops_text(work.flops))
            for case in self.cases for work in [case.work]
        ]  # fmt: skip
        header = ("stated workload", "MACs", "matrix FLOPs", "vector FLOPs", "FLOPs", "rounded")
        parts = [*self._formulas("MACs", "vector FLOPs"), self.sources.include("flops"),
                 self._symbols(), table(header, rows)]  # fmt: skip
        return "\n\n".join(filter(None, parts))

    def _memory(self) -> str:
        if not self.cases:
            return "It keeps no parameters and no tensors."
        caches = ("cache bytes",) if any(case.cache_bytes for case in self.cases) else ()
        header = ("stated workload", "parameters", "bytes in bf16", "activations", "bytes read",
                  "bytes written", "peak bytes", *caches)  # fmt: skip
        rows = []
        for case in self.cases:
            work, cached = case.work, (case.cache_bytes,) if caches else ()
            figures = (case.params, case.params * BFLOAT16.nbytes, work.activations,
                       work.bytes_read, work.bytes_written, case.peak_bytes, *cached)  # fmt: skip
            rows.append((case.label, *map(shown, figures)))
        return "\n\n".join([
            *self._formulas("parameters", "activations", *caches, "peak bytes"),
            table(header, rows),
            self.sources.include("memory"),
        ])  # fmt: skip

    def _formulas(self, *names: str) -> list[str]:
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
        return ["```text\n" + "\n".join(lines) + "\n```", *conditions]

    def _symbols(self) -> str:
        """The names in the formulas and their conditions, with meanings and values."""
        text = " ".join(
            text for case in self.cases for text in (*case.formulas.values(), case.conditions)
        ).replace("is a multiple of", "")
        used = set(re.findall(r"[A-Za-z]\w*", text))
        part = self.cases[0].part.name
        meanings = self.sources.meanings(part)
        rows = []
        for name, meaning in meanings.items():
            if name in used:
                values = [shown(case.part.values[name]) for case in self.cases]
                values = values[:1] if len(set(values)) == 1 else values
                rows.append((f"`{name}`", meaning, " / ".join(values)))
        unknown = used - meanings.keys() - {"ceil", "floor", "log2", "min", "max"}
        if unknown:
            raise DocumentError(f"symbols.md says nothing of {sorted(unknown)} in {part}")
        return table(("symbol", "meaning", "value here"), rows) if rows else ""


def stated_workload(model: DocumentedModel, sources: Sources) -> str:
    """The stated workload in a sentence."""
    views = " and ".join(
        f"{view.count} view{'s' if view.count > 1 else ''} of {view.resolution:,} x"
        f" {view.resolution:,} pixels"
        for view in reversed(model.workload.views)
    )
    return sources.include("workload", {"work": model.workload, "views": views})


def stage_shares(model: DocumentedModel) -> str:
    """Exact figures of every stage."""
    rows = [
        (name, *map(shown, (work.macs, work.vector_flops, work.activations, found.params)))
        for name, found in model.stages.items()
        for work in [found.work]
    ]
    return table(("stage", "MACs", "vector FLOPs", "activations", "parameters"), rows)


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
