"""MkDocs hooks: what pages load, the navigation, and what search leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

WEBSITE = Path(__file__).resolve().parent
PACKAGES = WEBSITE / "node_modules"
KATEX = PACKAGES / "katex" / "dist"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Makes the navigation: pages in the order in which the home page leads to them, by group."""
    docs = Path(config.docs_dir)
    home = (docs / "index.md").read_text(encoding="utf-8")
    named = dict.fromkeys(re.findall(r"\]\(([\w-]+\.md)\)", home))
    missing = {page.name for page in docs.glob("*.md")} - {"index.md", *named}
    if missing:
        raise PluginError(f"index.md does not lead to {', '.join(sorted(missing))}")
    top: list[Any] = [{"Home": "index.md"}, *({_title(docs / name): name} for name in named)]
    config.nav = [*top, {"Modules": [{"All modules": "modules/index.md"}, *_groups(docs)]}]
    return config


def _title(page: Path) -> str:
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise PluginError(f"{page.name} has no heading of the first level")
    return found[1]


def _groups(docs: Path) -> list[Any]:
    """Pages by architecture and group; what an architecture shares stands under its first."""
    index = (docs / "modules" / "index.md").read_text(encoding="utf-8")
    return [
        {architecture: [group for group in _sections(body, "###", _links) if any(group.values())]}
        for section in _sections(index, "##", str)
        for architecture, body in section.items()
    ]


def _sections(text: str, marks: str, read: Callable[[str], Any]) -> list[dict[str, Any]]:
    """What stands under each heading of a level, read."""
    found = []
    for section in re.split(rf"^{marks} ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        found.append({heading: read(body)})
    return found


def _links(body: str) -> list[dict[str, str]]:
    """Pages in the first column of a table."""
    pages = re.findall(r"^\| \[([^\]]+)\]\(([^)]+)\)", body, re.MULTILINE)
    return [{name: f"modules/{target}"} for name, target in pages]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the scripts, styles and fonts that pages draw with."""
    if not KATEX.is_dir():
        raise PluginError("website/node_modules is missing: run npm ci --prefix website")
    sources = {
        "katex/katex.min.css": KATEX / "katex.min.css",
        "katex/katex.min.js": KATEX / "katex.min.js",
        "katex/auto-render.min.js": KATEX / "contrib" / "auto-render.min.js",
        "katex/draw-formulas.js": WEBSITE / "draw-formulas.js",
        "layout.css": WEBSITE / "layout.css",
        "iframe-worker/shim.js": PACKAGES / "iframe-worker" / "shim" / "index.js",
        "mermaid/mermaid.min.js": PACKAGES / "mermaid" / "dist" / "mermaid.min.js",
    }
    for font in sorted((KATEX / "fonts").glob("*.woff2")):
        sources[f"katex/fonts/{font.name}"] = font
    for name, source in sources.items():
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(source)))
    return files


COMMENT = re.compile(r"\A\s*<!--.*?-->\s*", re.DOTALL)
UNFOUND = 'data-search-exclude="true"'
NOT_PROSE = re.compile(r'<(?:pre class="mermaid"|(?:div|span) class="arithmatex")')
WHAT_IT_IS = '<h2 id="what-it-is">'
LISTS = ("commands.md", "module_catalog.md", "module_formulations.md", "modules/index.md")


def on_page_content(html: str, page: Page, **_: object) -> str:
    """What search finds: explanations first, then modules, then lists; no sources of drawings."""
    name = page.file.src_uri
    if name in LISTS:
        page.meta["search"] = {"boost": 0.2}
    elif "/" not in name:
        page.meta["search"] = {"boost": 2.6}
    # Search makes an entry of what precedes the first heading, be it nothing but a comment, and of
    # each heading with an id; what a module is belongs to its name's.
    html = COMMENT.sub("", html).replace(WHAT_IT_IS, f'<h2 {UNFOUND}><span id="what-it-is"></span>')
    return NOT_PROSE.sub(lambda found: f"{found[0]} {UNFOUND}", html)
