"""All documents: modules' pages, and those on all of them."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT, RELATIVES
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.ocr_family.served import FUSIONS
from dsocr_analyze.documents.markdown import (
    Filled,
    Sources,
    filled,
    page_file,
    rendered,
    shown,
)
from dsocr_analyze.errors import DocumentError
from dsocr_analyze.forking import other_process
from dsocr_analyze.hardware.profile import all_profiles, device
from dsocr_analyze.kernels import BFLOAT16, Kernel, grouped
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape.formula import wrapped
from dsocr_analyze.timing import TimeEntry, assumptions, predict, serving
from dsocr_analyze.timing.kernel_seconds import Duration, kernel_seconds
from dsocr_analyze.timing.runtimes import EAGER, SERVERS, all_served_modes

if TYPE_CHECKING:
    from dsocr_analyze.documents.model import Case, DocumentedModel

_Section = tuple[str, str, str]
"""A document's path, a section of it, and the architecture that it is on."""

_OVERVIEWS: Final = (
    "module_catalog.md",
    "module_formulations.md",
    "modules/index.md",
    "modules/symbols.md",
    "references.md",
)
"""Documents besides modules' pages that are written for a single model."""

_WITHOUT_MODEL: Final = ("commands.md", "seconds.md", "tasks.md")
"""Documents for which no model is traced."""

_IN_MODEL: Final = re.compile(r"^In the model: .*$", re.M)
_CASES: Final = re.compile(
    r"^<!-- cases (?:of (?P<decoder>\w+)(?: with (?P<changes>\{.*\}))?:)?(?P<paths>.*) -->$", re.M
)


class ModulePage:
    """A page: its module in one model, and what is computed on it.

    Args:
        name: Name of the class or function.
        model: The model that it is written from.
        sources: The documents.

    Attributes:
        subject: The class or function.
        text: The page.
        file: Name of the file that defines it.
        kind: `class` or `function`.
    """

    def __init__(self, name: str, model: DocumentedModel, sources: Sources) -> None:
        self.name, self.model, self._sources = name, model, sources
        self.text = sources.texts[page_file(name)]
        self.subject = model.get(name)
        if self.subject is None:
            raise DocumentError(f"{model.architecture.title} has no {name}")
        self.file = Path(inspect.getfile(self.subject)).name
        self.kind = "class" if inspect.isclass(self.subject) else "function"

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """Distinct calls of the module, on which the tape and the trace agree.

        First those in the page, at the paths that it names or at all of the class; then those made
        by hand.
        """
        own, stated = self.model.paths(self.name), _CASES.search(self.text)
        runs, paths = self.model.runs, dict.fromkeys(own, "")
        if stated:
            pairs = (each.strip().partition(": ") for each in stated["paths"].split(";"))
            named = {path: label for path, _, label in pairs}
            if stated["decoder"] and not own:
                changes = stated["changes"] or "{}"
                runs, paths = self.model.text_runs(stated["decoder"], changes), named
            # Labels say what is so in the published model.
            elif named.keys() <= {*own} and (self.model.is_published or not any(named.values())):
                paths = named
        cases = [*self.model.cases(runs, paths)]
        for run in self.model.alone(self.name):
            cases += self.model.cases([run], {"": ""})
        for case in cases:
            case.check(self.name)
        # Bytes differ sooner than thousands of kernels, which would all be hashed.
        keys = [each.traced[2::-1] for each in cases]
        found = [
            cases[keys.index(key)] for place, key in enumerate(keys, 1) if key not in keys[place:]
        ]
        if len({case.label for case in found}) == len(found):
            return tuple(found)
        return tuple(replace(each, label=f"{each.label}, `{each.taped.path}`") for each in found)

    @cached_property
    def names(self) -> dict[str, Any]:
        """What expressions on the page may name."""
        sizes = self.cases[0].part.values if self.cases else {}
        return {**sizes, "cases": self.cases, "config": self.model.built.config, "this": self}

    # --- what templates ask for

    @property
    def location(self) -> str:
        """Where the module stands in the model."""
        paths = [
            f"`{each or '(the model)'}`" for each in _folded_paths(self.model.paths(self.name))
        ]
        if paths:
            return f"In the model: {', '.join(paths)}."
        return f"The model has no `{self.name}`." if self.kind == "class" else "A function."

    @property
    def kinds(self) -> str:
        """Kinds of its operators, as they first run."""
        kernels = chain.from_iterable(case.traced.kernels for case in self.cases)
        found = dict.fromkeys(map(attrgetter("kind"), kernels))
        return ", ".join(found) or "none"

    @property
    def mathematics(self) -> str:
        """Its displayed formulas."""
        return "\n\n".join(re.findall(r"^\$\$\n.*?^\$\$$", self.text, re.M | re.S))

    def references(self, keys: str) -> list[str]:
        """The bibliography's lines with these arXiv numbers or words."""
        found = [
            re.findall(rf"^- .*{re.escape(key)}.*$", self._sources.texts["references.md"], re.M)
            for key in keys.split(", ")
        ]
        if any(len(matching) != 1 for matching in found):
            raise DocumentError(f"references.md has not one line for each of {keys}")
        return [line for (line,) in found]

    def definition(self, further: str) -> str:
        """The class or function, and others by name, without bodies."""
        return "\n\n\n".join(
            map(_definition_of, (self.subject, *map(self.model.get, further.split())))
        )

    def parameters(self, rows: Sequence[Sequence[str]]) -> list[tuple[str, str, str, str]]:
        """Rows of parameters and config keys, with defaults and values.

        Raises:
            DocumentError: The page does not describe the parameters in order.
        """
        signature, config = inspect.signature(self.subject).parameters, self.model.built.config
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        names = [name for name, each in signature.items() if each.kind not in variable]
        own = [row[0].strip("`") for row in rows if "." not in row[0]]
        if own != names:
            raise DocumentError(f"describes the parameters {own}; right: {names}")
        blank, missing, found = type(config)(), inspect.Parameter.empty, []
        defaults = {name: each.default for name, each in signature.items()} | {
            f"cfg.{key}": value for key, value in getattr(self.subject, "DEFAULTS", {}).items()
        }
        for name, meaning, _, stated in rows:
            default = defaults.get(name.strip("`"), missing)
            if name.startswith("`config."):
                key = name.strip("`").removeprefix("config.")
                default, here = getattr(blank, key, missing), getattr(config, key, None)
                stated = f"`{dict(here) if isinstance(here, Mapping) else here!r}`"
            text = default.__name__ if inspect.isclass(default) else repr(default)
            found.append((name, meaning, "" if default is missing else f"`{text}`", stated))
        return found

    def shape(self, tensor: str, stated: str, case: Case) -> str:
        """A tensor's shape in a case, which must be as stated."""
        name, names = tensor.strip("`"), {**self.names, **case.part.values}
        ran = case.traced.shapes.get(name)
        if ran is None and any(name in each.traced.shapes for each in self.cases):
            return "none"
        text, shapes = str(list(ran or ())), stated.strip("`").split("` or `")
        # Names in a later shape may be of other configs.
        if all(rendered(f"{{{{ {shape} }}}}", names) != text for shape in shapes):
            raise DocumentError(f"{tensor} is stated as {stated}, it is {ran}")
        return text

    # --- figures

    def formulas(self, *names: str) -> str:
        """Fenced formulas with their cases, and where they hold."""
        lines = []
        for name in names:
            texts = grouped((case.formulas[name], case.label) for case in self.cases)
            for text, labels in texts.items():
                if text != "0" or len(texts) > 1 or name == names[0]:
                    lines += textwrap.wrap(f"# {'; '.join(labels)}", 88) if len(texts) > 1 else []
                    lines.append(wrapped(name, text))
        held = grouped((case.conditions, case.label) for case in self.cases)
        conditions = [
            f"These hold for {text}." if len(held) == 1 else f"{'; '.join(labels)}: for {text}."
            for text, labels in held.items()
            if text
        ]
        return "\n\n".join(["```text\n" + "\n".join(lines) + "\n```", *conditions])

    @cached_property
    def symbols(self) -> list[tuple[str, str, str]]:
        """Names in the formulas and conditions, with meanings and values."""
        texts = [text for case in self.cases for text in (*case.formulas.values(), case.conditions)]
        used = set(re.findall(r"[A-Za-z]\w*", " ".join(texts).replace("is a multiple of", "")))
        meanings = self._sources.meanings(self.cases[0].part.name)
        if unknown := used - meanings.keys() - {"ceil", "floor", "log2", "min", "max"}:
            raise DocumentError(f"symbols.md does not explain {', '.join(sorted(unknown))}")
        values = {
            name: [shown(case.part.values[name]) for case in self.cases]
            for name in meanings
            if name in used
        }
        return [
            (name, meanings[name], found[0] if len({*found}) == 1 else " / ".join(found))
            for name, found in values.items()
        ]


def _folded_paths(paths: Iterable[str]) -> list[str]:
    """Paths with ranges for numbers in which they differ: `layers.[0-11].mlp`."""
    number = re.compile(r"(?<=\.)\d+")
    found = grouped((number.sub("{}", path), map(int, number.findall(path))) for path in paths)
    return [each.format(*map(_range, zip(*rows, strict=True))) for each, rows in found.items()]


def _range(numbers: Iterable[int]) -> str:
    """`3`, `[0-11]`, or with gaps: `[1, 3]`."""
    found = sorted({*numbers})
    if len(found) <= found[-1] - found[0]:
        return str(found)
    return f"[{found[0]}-{found[-1]}]" if len(found) > 1 else str(found[0])


def _definition_of(subject: Any) -> str:
    """A class with its constructor and call, or a function, without bodies."""
    if not inspect.isclass(subject):
        return _without_body(subject)
    bases = [
        f"nn.{each.__name__}" if each.__module__.startswith("torch.nn") else each.__name__
        for each in subject.__bases__
    ]
    opening, own = f"class {subject.__name__}({', '.join(bases)}):", vars(subject)
    body = ['    model_type = "' + own["model_type"] + '"\n'] if "model_type" in own else []
    body += [
        textwrap.indent(_without_body(own[name]), "    ")
        for name in ("__init__", "forward", "__call__", "on_finalized_text")
        if name in own
    ]
    end = "" if body else " ...  # constructor and call are inherited"
    return "\n".join([opening.replace("(object)", "") + end, *body]).rstrip()


def _without_body(function: Callable[..., Any]) -> str:
    """A function's source up to its body."""
    function = inspect.unwrap(function)
    lines, start = inspect.findsource(function)
    # `inspect.getsource` would read all tokens for the end; no signature has a hundred lines.
    source = re.sub(r"  # .*$", "", "".join(lines[start : start + 100]), flags=re.M)
    opening = textwrap.dedent(re.split(r":(?: \.\.\.)?$", source, maxsplit=1, flags=re.M)[0])
    # Names of constants say nothing to a reader.
    value = function.__globals__.__getitem__
    return re.sub(r"(?<= = )_\w+", lambda name: repr(value(name[0])), opening) + ": ..."


class Library:
    """All modules' pages.

    Args:
        sources: The documents.
        architecture: The only architecture to document; None for all.
        config: Values in place of its published `config.json`.
        names: Further names for computed parts.

    Attributes:
        architectures: Names of the architectures.
        owners: The architecture that each page is written from, by page.
    """

    def __init__(
        self,
        sources: Sources,
        architecture: Architecture | None = None,
        config: dict[str, Any] | None = None,
        names: Mapping[str, Any] | None = None,
    ) -> None:
        self.sources, self._config, self._names = sources, config, names or {}
        self.architectures = [architecture.name] if architecture else list(RELATIVES)
        self.owners = sources.owners(self.architectures)

    @cache  # noqa: B019  # a library lives as long as the process
    def model(self, architecture: str) -> DocumentedModel:
        """An architecture's model."""
        from dsocr_analyze.documents.model import DocumentedModel

        return DocumentedModel(ARCHITECTURES[architecture], self._config)

    @cache  # noqa: B019  # likewise
    def page(self, name: str) -> ModulePage:
        """A module's page."""
        return ModulePage(name, self.model(self.owners[name]), self.sources)

    @cached_property
    def timed(self) -> TimedPage:
        """The page whose seconds a document works through."""
        return TimedPage()

    def filled(self, path: str, text: str, architecture: str) -> Filled:
        """A section of the document `path` on an architecture, with its computed parts.

        Raises:
            DocumentError: The tape and the trace disagree, or the section asks for what there is
                not; with the document's name.
        """
        names = {**self._names, "library": self, "model_of": self.model, "page": self.page}
        if path not in _WITHOUT_MODEL:
            names["model"] = self.model(architecture)
        try:
            if module := re.fullmatch(r"modules/op-(\w+)\.md", path):
                page = self.page(module[1])
                if self._config and not page.model.paths(page.name) and _IN_MODEL.search(page.text):
                    said = f"The given config has no `{page.name}`: figures of the published model."
                    return Filled(_IN_MODEL.sub(said, text), [said])
                names |= page.names
            return filled(text, names, self.sources.templates, code_stays=bool(self._config))
        except DocumentError as error:
            raise DocumentError(f"{path}: {error}") from error


def filled_documents(
    library: Library, process: Executor, start: Callable[[], None]
) -> dict[str, Filled]:
    """Every document with its computed parts, by path.

    Args:
        library: The documents.
        process: Another process, which builds the models.
        start: Called there first.

    Raises:
        DocumentError: As for one of them, or a page is in no list.
    """
    sections = list(_sections(library))
    traced = [each for each in sections if each[0] not in _WITHOUT_MODEL]
    modelled = process.submit(_with_models, library, traced, start)
    others = [each for each in sections if each[0] in _WITHOUT_MODEL]
    done = _filled(library, others) | modelled.result()
    pages = grouped((each[0], done[each]) for each in sections)
    return {
        path: Filled(
            "".join(each.text for each in found),
            [marker for each in found for marker in each.changed],
        )
        for path, found in pages.items()
    }


def _with_models(
    library: Library, sections: list[_Section], start: Callable[[], None]
) -> dict[_Section, Filled]:
    """Sections with traces, those on each architecture in a process."""
    if "torch" not in sys.modules:  # a process of its own began with this
        start()
    _ = library.model(library.architectures[0]).built  # all import its code: once, before forking
    first, *others = (
        [each for each in sections if each[2] == name] for name in library.architectures
    )
    with other_process(number=max(1, len(others))) as processes:
        rest = processes.map(partial(_filled, library), others)
        done = _filled(library, first)
        for each in rest:
            done |= each
    return done


def _filled(library: Library, sections: list[_Section]) -> dict[_Section, Filled]:
    return {each: library.filled(*each) for each in sections}


def _sections(library: Library) -> Iterator[_Section]:
    texts, architectures = library.sources.texts, library.architectures
    owners = {page_file(name): owner for name, owner in library.owners.items()}
    pages = {path for path in texts if "/op-" in path}
    if strange := pages ^ {*map(page_file, library.sources.owners(RELATIVES))}:
        raise DocumentError(f"modules/index.md and the pages differ in {', '.join(strange)}")
    titles = {ARCHITECTURES[name].title: name for name in RELATIVES}
    links = rf"^- \[(?!(?:{'|'.join(library.owners)})\])\w+\]\(op-\w+\.md\)\n"
    others = texts if len(architectures) > 1 else _OVERVIEWS
    for path in owners | dict.fromkeys(others):  # a page is named before those that quote it
        end = "## " if path in _OVERVIEWS else r"\Z"
        for text in re.split(rf"^(?={end})", texts[path], flags=re.M):
            heading = text.partition("\n")[0].removeprefix("## ")
            owner = titles.get(heading, owners.get(path, architectures[0]))
            if owner in architectures:
                yield path, re.sub(links, "", text, flags=re.M), owner


# --- the page whose seconds a document works through ----------------------------------------------


class TimedPage:
    """An A4 page at 150 dpi with 1,024 new tokens on an H100, for the templates.

    Attributes:
        fusions: What each kernel of a serving engine replaces.
        servers: The serving engines.
        served_modes: The modes that they offer, by architecture.
        profiles: All GPUs' profiles.
    """

    fusions, servers, served_modes = FUSIONS, SERVERS, all_served_modes()

    def __init__(self) -> None:
        dimensions = ModelDirectory.read(DEFAULT.reference).dimensions()
        self.workload: Any = DEFAULT.plan(page=(1240, 1754), max_new_tokens=1024)
        self.gpu, self.profiles = device("h100-sxm"), dict(all_profiles())
        self._model = serving.TimedModel(DEFAULT, dimensions, BFLOAT16, False, self.gpu)

    @cache  # noqa: B019  # a page lives as long as the process
    def kernels(
        self, which: str, gpu: str = "h100-sxm", server: str = "vllm"
    ) -> list[tuple[Kernel, Mapping[str, Any], float, bool]]:
        """Kernels of a decode `step` or of the `prompt`, as served.

        With their sizes by name, seconds of a call, and whether memory bounds it.
        """
        model = replace(self._model, device=self.profiles[gpu])
        served = serving.ServedModel(model, SERVERS[server])
        kernels = (
            served.step_kernels(1, self.workload.seq_len + 1)
            if which == "step"
            else served.prompt_kernels(self.workload.seq_len, self.workload.visual_tokens)
        )
        priced = kernel_seconds(kernels, served.device)
        return [
            (each, each.dimensions._asdict(), seconds, is_memory)
            for each, seconds, is_memory in zip(
                kernels, priced.seconds, priced.is_memory, strict=True
            )
        ]

    @cache  # noqa: B019  # a page lives as long as the process
    def predicted(self, runtime: str) -> tuple[TimeEntry, Mapping[str, Duration]]:
        """The page under a runtime or server, and what its stages' seconds are made of."""
        hosts = {"eager": EAGER, "serving": SERVERS["vllm"], **SERVERS}
        times = predict.times_of(
            self._model, self.workload, assumptions.Assumptions(hosts[runtime]), (1, 4, 16)
        )
        return predict.entry_of(times), times.alone.stages
