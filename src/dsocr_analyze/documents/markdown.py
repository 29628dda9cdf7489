"""Documents as people write them, and their computed parts, filled in place.

    <!-- begin figures -->         a block: the template `includes/figures.md` makes its lines, from
    <!-- end figures -->           what follows the name, too
    top <!-- =k -->6<!-- / -->     a value in a sentence or a cell
    <!-- numbers d, 4 * d -->      the numbers of the fenced lines that follow

No renderer shows these markers, which are comments. Templates are Jinja's, sandboxed.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.errors import DocumentError
from dsocr_analyze.input_files import MEBIBYTE, read_bytes
from dsocr_analyze.kernels import work_by
from dsocr_analyze.report.table import bytes_text, flops_text, seconds_text

DATA: Final = Path(__file__).parent.parent / "docs"
"""The documents of an installed package."""

SOURCES: Final = DATA if DATA.is_dir() else DATA.parent.parent.parent / "docs"
"""Those, or the documents of a checkout."""

_BLOCK: Final = re.compile(
    r"^(?P<open><!-- begin (?P<name>[\w-]+) ?(?P<arguments>[^>]*?) ?-->\n)(?P<body>.*?)"
    r"(?P<close><!-- end (?P=name) -->)$",
    re.M | re.S,
)
_VALUE: Final = re.compile(
    r"(?P<open><!-- =(?P<arguments>[^>]*?) -->)(?P<body>[^\n]*?)(?P<close><!-- / -->)"
)
_NUMBERS: Final = re.compile(
    r"^(?P<open><!-- numbers (?P<arguments>[^>]*?) -->\n```(?P<name>\w*)\n)"
    r"(?P<body>.*?)(?P<close>```)$",
    re.M | re.S,
)
_COMMENT: Final = re.compile(r"<!--(?! (?:cases|first|output:|table:) ).*?(?:-->|$)", re.M)
_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?![\w.])")


# --- templates


def shown(value: Any) -> str:
    """A value as text, whole numbers with separators."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


_JINJA: Final = SandboxedEnvironment(
    undefined=StrictUndefined, finalize=shown, trim_blocks=True, lstrip_blocks=True,
    optimized=False,  # most templates are rendered once
)  # fmt: skip
_JINJA.filters["cell"] = lambda value: str(value).replace("|", "&#124;")
_JINJA.globals.update(
    bytes=bytes_text,
    flops=flops_text,
    seconds=seconds_text,
    plain=str,
    ceil=lambda a, b: -(-a // b),
    len=len,
    max=max,
    min=min,
    sum=sum,
    work_by=work_by,
)


@cache
def _template(source: str) -> Template:
    # As a plain dictionary, globals are copied in a fraction of the time.
    return Template.from_code(_JINJA, _JINJA.compile(source), _JINJA.globals)


def rendered(template: str, names: Mapping[str, Any]) -> str:
    """A template with its values, without blank lines around it.

    Raises:
        DocumentError: An expression has no value.
    """
    try:
        return _template(template).render(names).strip()
    except (TemplateError, LookupError, TypeError, ZeroDivisionError) as error:
        opening = template.strip().partition("\n")[0]
        raise DocumentError(f"{opening} has no value: {error}") from error


def rows_of(body: str) -> list[list[str]]:
    """The cells of a table's rows below its header."""
    rows = re.findall(r"^\|(.*)\|$", body, re.M)
    return [[cell.strip().replace("&#124;", "|") for cell in row.split("|")] for row in rows[2:]]


# --- all documents


def page_file(name: str) -> str:
    """Path of a module's page."""
    return f"modules/op-{name}.md"


class Sources:
    """The documents of a folder.

    Attributes:
        folder: The folder.
        texts: Documents by path.
        templates: Templates of blocks by name.

    Raises:
        DocumentError: A document cannot be read.
    """

    def __init__(self, folder: Path = SOURCES) -> None:
        self.folder = folder
        try:
            self.texts = {
                path.relative_to(folder).as_posix(): read_bytes(path, MEBIBYTE).decode()
                for path in sorted(folder.rglob("*.md"))
            }
        except OSError as error:
            raise DocumentError(f"cannot read {error.filename!r}: {error.strerror}") from error
        self.templates = {
            Path(path).stem: self.texts.pop(path)
            for path in [each for each in self.texts if each.startswith("includes/")]
        }

    def section(self, path: str, heading: str) -> str:
        """What stands under a heading of the second level, a pattern."""
        found = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", self.texts[path], re.M | re.S)
        if found is None:
            raise DocumentError(f"{path} has no section that matches {heading!r}")
        return found[1]

    def owners(self, architectures: Iterable[str]) -> dict[str, str]:
        """The architecture that each page is written from: the first that lists it."""
        found: dict[str, str] = {}
        for name in architectures:
            section = self.section("modules/index.md", re.escape(ARCHITECTURES[name].title))
            for page in re.findall(r"\(op-(\w+)\.md\)", section):
                found.setdefault(page, name)
        return found

    def meanings(self, part: str) -> dict[str, str]:
        """The symbols of a part of a model, with meanings."""
        return {
            name.strip("`"): meaning
            for name, meaning in rows_of(self.section("modules/symbols.md", rf".*\(`{part}`\)"))
        }

    @cached_property
    def summaries(self) -> dict[str, str]:
        """What the index says of each module."""
        return dict(
            re.findall(r"^\| \[(\w+)\]\([^|]*\| ([^|]*) \|", self.texts["modules/index.md"], re.M)
        )


# --- one document


class Filled(NamedTuple):
    """A document with all computed parts, and the markers of those that changed."""

    text: str
    changed: list[str]


def filled(
    text: str, names: Mapping[str, Any], templates: Mapping[str, str], *, code_stays: bool = False
) -> Filled:
    """Computes all parts of a document.

    Args:
        text: The document.
        names: The names that its parts may use.
        templates: Templates of blocks, by name.
        code_stays: Whether numbers in Python stay.

    Raises:
        DocumentError: A marker is unknown or has no end, or a part cannot be computed.
    """
    changed: list[str] = []

    def replaced(compute: Callable[[re.Match[str]], str], match: re.Match[str]) -> str:
        body = compute(match)
        if body != match["body"]:
            changed.append(match["open"].splitlines()[0])
        return match["open"] + body + match["close"]

    parts = {
        _VALUE: lambda match: rendered(f"{{{{ {match['arguments']} }}}}", names),
        _NUMBERS: lambda match: _with_numbers(match, names, code_stays=code_stays),
        _BLOCK: lambda match: _block(match, names, templates),
    }
    rest = text
    for pattern in parts:
        rest = pattern.sub(lambda match: match["body"], rest)
    if strange := _COMMENT.search(rest):
        raise DocumentError(f"unknown or unfinished marker {strange[0]!r}")
    for pattern, compute in parts.items():
        text = pattern.sub(partial(replaced, compute), text)
    return Filled(text, changed)


def _with_numbers(match: re.Match[str], names: Mapping[str, Any], *, code_stays: bool) -> str:
    """Fenced lines with computed numbers, without separators."""
    if match["name"] == "python" and code_stays:
        return match["body"]
    expressions, found = match["arguments"].split(", "), _NUMBER.findall(match["body"])
    if len(found) != len(expressions):
        raise DocumentError(
            f"{match['open'].splitlines()[0]} names {len(expressions)} numbers, but there are"
            f" {len(found)} in the lines below: {', '.join(found)}"
        )
    values = iter([rendered(f"{{{{ plain({each}) }}}}", names) for each in expressions])
    return _NUMBER.sub(lambda _: next(values), match["body"])


def _block(match: re.Match[str], names: Mapping[str, Any], templates: Mapping[str, str]) -> str:
    if match["name"] not in templates:
        raise DocumentError(
            f"there is no block {match['name']!r}; there are {', '.join(sorted(templates))}"
        )
    text = rendered(
        templates[match["name"]],
        {**names, "arguments": match["arguments"], "rows": rows_of(match["body"])},
    )
    return f"\n{text}\n\n" if text else ""
