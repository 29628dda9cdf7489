"""A checked page as Markdown: sections in fixed order, typeset formulas, tables of figures."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.machinery.evidence import CheckedCase
from dsocr_analyze.knowledge.machinery.facts import Facts, count
from dsocr_analyze.knowledge.machinery.notation import equation, evaluate, names_in, typeset
from dsocr_analyze.knowledge.machinery.page import NO_DEFAULT, Page, Parameter, Symbol
from dsocr_analyze.knowledge.machinery.signature import definition_of, file_of
from dsocr_analyze.knowledge.references import REFERENCES
from dsocr_analyze.module_tree import FoldedNode
from dsocr_analyze.report.quantities import flops_text

__all__ = ["defaults_of", "display", "paths_of", "render_page", "table"]


def render_page(
    page: Page, cases: Sequence[CheckedCase], facts: Facts, names: Collection[str]
) -> str:
    """The page's Markdown.

    Args:
        page: The page.
        cases: Its cases, checked.
        facts: The model that the page is written from.
        names: Pages that it may link to.
    """
    parts = [
        f"# {page.name}",
        f"*{page.group}*",
        "## What it is",
        page.what,
        _location(page, facts),
        "## Definition",
        _code("python", "\n\n\n".join(definition_of(item) for item in (page.subject, *page.also))),
        _shapes(page, cases),
        "## Constructor information",
        *_constructor(page, facts),
        "## Module internals",
        _code("mermaid", page.diagram),
        "## Key pseudo-code",
        _code("text", page.pseudo_code),
        display(page.mathematics),
        "## FLOPs",
        f"Stated workload: {facts.workload_text}." if cases else "",
        *_flops(page, cases),
        "## Memory",
        *_memory(page, cases),
        "## Related modules",
        _bullets(f"[{name}](op-{name}.md)" for name in page.related if name in names),
        "## Usage pattern",
        _code("python", _usage(page, facts)),
    ]
    if page.references:
        parts += [
            "## References",
            _bullets(REFERENCES[key].as_markdown() for key in page.references),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


# --- pieces of Markdown ----------------------------------------------------------------------


def display(latex: str) -> str:
    r"""A formula on its own lines; `, \quad` starts a new line."""
    lines = [line.strip() for line in latex.split(r", \quad")]
    if len(lines) > 1:
        latex = "\n".join((r"\begin{gathered}", ", \\\\\n".join(lines), r"\end{gathered}"))
    return f"$$\n{latex}\n$$"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    lines += [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _math(latex: str) -> str:
    return f"${latex}$"


def _usage(page: Page, facts: Facts) -> str:
    """The usage snippet; a given config is read from the folder that the snippet runs in."""
    plain = "DeepSeekOCRSession.from_local()"
    code = page.usage
    if plain not in code:
        return code
    arguments, setup, imports = [], [], code.split("\n\n")[0].splitlines()
    if facts.architecture is not DEFAULT:
        arguments.append("reference")
        setup.append(f'reference = architecture_named("{facts.architecture.name}").reference')
        imports = _with_import(
            imports, "from dsocr_analyze.architectures import architecture_named"
        )
    if not facts.is_published and page.runs_given_config:
        arguments.append("config=given")
        setup.append('given = json.loads(Path("config.json").read_text())')
        imports = ["import json", "from pathlib import Path", "", *imports]
    if not setup:
        return code
    rest = code.partition("\n\n")[2].replace(
        plain, f"DeepSeekOCRSession.from_local({', '.join(arguments)})"
    )
    return "\n".join([*imports, "", *setup, rest])


def _with_import(imports: Sequence[str], line: str) -> list[str]:
    """The imports with one more import of this package, in sorted position."""
    later = (
        index
        for index, other in enumerate(imports)
        if other.startswith("from dsocr_analyze.") and other > line
    )
    place = next(later, len(imports))
    return [*imports[:place], line, *imports[place:]]


# --- sections --------------------------------------------------------------------------------


def paths_of(page: Page, facts: Facts) -> list[str]:
    """Paths of the modules of the page's class in the model, with repeated layers folded."""
    if not inspect.isclass(page.subject):
        return []
    found: list[str] = []
    _collect(facts.folded, "", page.subject.__name__, found)
    return found


def _collect(folded: FoldedNode, above: str, class_name: str, found: list[str]) -> None:
    node = folded.node
    name = node.name if folded.count == 1 else f"[{node.name}-{folded.last}]"
    path = f"{above}.{name}" if above else name
    if node.class_name == class_name:
        found.append(path or "(the model)")
    for child in folded.children:
        _collect(child, path, class_name, found)


def _location(page: Page, facts: Facts) -> str:
    paths = paths_of(page, facts)
    if not paths:
        return ""
    return f"In the model: {', '.join(f'`{path}`' for path in paths)}."


def _shapes(page: Page, cases: Sequence[CheckedCase]) -> str:
    shapes = {f"`{name}`": shape for name, shape in page.inputs.items()}
    if page.output:
        shapes["returned"] = page.output
    if not shapes:
        return ""
    header = ["tensor", "shape", *(item.case.label for item in cases)]
    latex = {name: symbol.latex for name, symbol in page.symbols.items()}
    rows = []
    for name, shape in shapes.items():
        sizes = [size.strip() for size in shape.split(",")] if shape else []
        stated = _math("[" + ",\\, ".join(typeset(size, latex) for size in sizes) + "]")
        row = [name, stated]
        for item in cases:
            values = [str(evaluate(size, item.values)) for size in sizes]
            row.append(f"[{', '.join(values)}]")
        rows.append(row)
    return table(header, rows)


def _constructor(page: Page, facts: Facts) -> list[str]:
    kind = "class" if inspect.isclass(page.subject) else "function"
    lines = [f"Defined in `{file_of(page.subject)}`, {kind} `{page.subject.__name__}`."]
    if not page.parameters:
        return [*lines, "It has no parameters of its own."]
    defaults = defaults_of(page, facts)
    rows = [
        (
            f"`{name}`",
            parameter.meaning,
            _shown(defaults[name]) if name in defaults else "",
            _value(parameter),
        )
        for name, parameter in page.parameters.items()
    ]
    return [*lines, table(("parameter", "meaning", "default", "value here"), rows)]


def defaults_of(page: Page, facts: Facts) -> dict[str, Any]:
    """Defaults of a page's parameters, from the signature, the config's class or mappings."""
    subject = page.subject.__init__ if inspect.isclass(page.subject) else page.subject
    signature = inspect.signature(subject).parameters
    found = {name: parameter.default for name, parameter in signature.items()}
    defaults = type(facts.config)()
    for name, parameter in page.parameters.items():
        section, _, key = name.rpartition(".")
        if section == "config" and hasattr(defaults, key):
            found[name] = getattr(defaults, key)
        elif section:
            found[name] = parameter.default
    return {key: value for key, value in found.items() if value is not NO_DEFAULT}


def _shown(value: Any) -> str:
    return f"`{value.__name__}`" if inspect.isclass(value) else f"`{value!r}`"


def _value(parameter: Parameter) -> str:
    value = parameter.value
    return value if isinstance(value, str) and " " in value else f"`{value}`"


def _flops(page: Page, cases: Sequence[CheckedCase]) -> list[str]:
    parts = []
    if page.formulas is not None and cases:
        latex = {name: symbol.latex for name, symbol in page.symbols.items()}
        macs, vector = page.formulas.macs, page.formulas.vector_flops
        parts += [
            display(equation(r"\mathrm{MACs}", macs, latex)),
            display(equation(r"\mathrm{FLOPs}_{vector}", vector, latex)),
            r"$\mathrm{FLOPs} = 2\,\mathrm{MACs} + \mathrm{FLOPs}_{vector}$, with",
            _symbols(page, cases),
            _figures(cases),
            _checked_by(page, cases),
        ]
    elif page.formulas is None:
        parts.append("Zero FLOPs.")
    parts.append(_bullets(page.flops_notes) if page.flops_notes else "")
    return parts


def _symbols(page: Page, cases: Sequence[CheckedCase]) -> str:
    used = _used_symbols(page)
    latex = {name: symbol.latex for name, symbol in page.symbols.items()}
    header = ["symbol", "meaning", *(item.case.label for item in cases)]
    rows = []
    for name in used:
        symbol = page.symbols[name]
        row = [_math(symbol.latex), _meaning(symbol, latex)]
        row += [count(item.values[name]) for item in cases]
        rows.append(row)
    return table(header, rows)


def _meaning(symbol: Symbol, latex: Mapping[str, str]) -> str:
    if symbol.formula is None or symbol.formula.isdecimal():
        return symbol.meaning
    return f"{symbol.meaning}: {_math(typeset(symbol.formula, latex))}"


def _used_symbols(page: Page) -> list[str]:
    """Symbols of the page's formulas and shapes, and those that they are derived from."""
    formulas = page.formulas
    assert formulas is not None
    texts = [formulas.macs, formulas.vector_flops, formulas.params, formulas.activations]
    texts += [formulas.cache_bytes or "0"]
    texts += [size for shape in (*page.inputs.values(), page.output) for size in shape.split(",")]
    used: set[str] = set()
    pending = [name for text in texts if text.strip() for name in names_in(text)]
    while pending:
        name = pending.pop()
        if name in used:
            continue
        used.add(name)
        formula = page.symbols[name].formula
        if formula is not None:
            pending += names_in(formula)
    return [name for name in page.symbols if name in used]


def _figures(cases: Sequence[CheckedCase]) -> str:
    header = ["stated workload", "MACs", "matrix FLOPs", "vector FLOPs", "FLOPs", "rounded"]
    rows = [
        (
            item.case.label,
            count(item.work.macs),
            count(item.work.matrix_flops),
            count(item.work.vector_flops),
            count(item.work.flops),
            flops_text(item.work.flops),
        )
        for item in cases
    ]
    return table(header, rows)


def _checked_by(page: Page, cases: Sequence[CheckedCase]) -> str:
    where = cases[0].case.device
    witnesses = f"the formulas above and a trace of the module alone on `{where}`"
    if all(item.closed_form for item in cases):
        witnesses = f"the formulas above, the closed form `{page.layer}` and a trace of the module"
        witnesses += f" alone on `{where}`"
    return f"Found independently by {witnesses}; this page is written only if they agree exactly."


def _memory(page: Page, cases: Sequence[CheckedCase]) -> list[str]:
    parts = []
    if page.formulas is not None and cases:
        latex = {name: symbol.latex for name, symbol in page.symbols.items()}
        formulas = page.formulas
        parts += [
            display(equation(r"\mathrm{parameters}", formulas.params, latex)),
            display(equation(r"\mathrm{activations}", formulas.activations, latex)),
        ]
        header = [
            "stated workload",
            "parameters",
            "bytes in bf16",
            "activations",
            "bytes read",
            "bytes written",
            "peak bytes",
        ]
        rows = [
            [
                item.case.label,
                count(item.params),
                count(item.params * BFLOAT16.nbytes),
                count(item.work.activations),
                count(item.work.bytes_read),
                count(item.work.bytes_written),
                count(item.peak_bytes),
            ]
            for item in cases
        ]
        if formulas.cache_bytes is not None:
            parts.append(display(equation(r"\mathrm{cache\ bytes}", formulas.cache_bytes, latex)))
            header.append("cache bytes")
            for row, item in zip(rows, cases, strict=True):
                row.append(count(item.cache_bytes))
        parts.append(table(header, rows))
        parts.append(
            "Activations are the output elements of matrix operators. Bytes are counted per operator"
            " as PyTorch runs it, unfused: each reads its inputs and writes its outputs. The peak counts"
            " tensors alive at once, excluding weights and inputs, for as long as the published code"
            " holds them."
        )
    parts.append(_bullets(page.memory_notes) if page.memory_notes else "")
    return parts if any(parts) else ["It keeps no parameters and no tensors."]
