"""The documentation builds into a site that draws, searches and fits the window, as files too."""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import chromium, need, wait_for

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "website" / "node_modules"
PAGES = sorted(path.stem for path in (ROOT / "docs" / "modules").glob("op-*.md"))

# The theme draws diagrams into closed shadow roots, which no test could look into.
OPEN_SHADOWS = """
const attach = Element.prototype.attachShadow;
Element.prototype.attachShadow = function () { return attach.call(this, { mode: "open" }); };
"""
IS_DRAWN = """
return !document.querySelector("pre.mermaid")
  && !document.querySelector(".arithmatex:not(:has(.katex, .katex-error))")
  && [...document.querySelectorAll("div.mermaid")].every((host) => host.shadowRoot?.innerHTML)
  && [...document.images].every((image) => image.complete);
"""
# What does not fit: boxes that cut or scroll what is in them, and what leaves the page's column.
TOO_WIDE = """
const page = document.documentElement;
const column = document.querySelector(".md-content").getBoundingClientRect().right;
const named = [];
for (const box of document.querySelectorAll(".md-content *, .md-sidebar .md-ellipsis")) {
  const wider = box.scrollWidth > box.clientWidth + 1 && box.clientWidth > 0;
  const sticksOut = box.getBoundingClientRect().right > column + 1;
  if (!(wider || sticksOut) || box.closest(".katex")) continue;
  if (sticksOut || getComputedStyle(box).overflowX !== "visible")
    named.push(`${box.localName}.${box.className}: ${box.textContent.trim().slice(0, 60)}`);
}
scrollTo(1e4, 0);
const scrolled = scrollX;
scrollTo(0, 0);
return { named, scrolled };
"""
DIAGRAMS = """
return [...document.querySelectorAll("div.mermaid")].map((host) => {
  const svg = host.shadowRoot.querySelector("svg");
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const texts = [...svg.querySelectorAll("text, p, span")].filter((each) => each.textContent);
  return {
    shapes: svg.querySelectorAll(".node, .actor, .classGroup").length,
    smallest: Math.min(...texts.map((text) => scale * parseFloat(getComputedStyle(text).fontSize))),
  };
});
"""
ONCE = """
return {
  formulas: document.querySelectorAll(".arithmatex .katex").length,
  mistakes: document.querySelectorAll(".katex-error").length,
  missing: [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src),
};
"""
# They build the site, open each of its pages in a browser once, and look at what they found.
pytestmark = [pytest.mark.exhaustive, pytest.mark.xdist_group(name="site")]

WIDTHS = (1366, 1280, 1024, 390)
SMALLEST_TEXT = 11  # pixels
HEIGHT = 900


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    need(PACKAGES.is_dir(), "website/node_modules: npm ci --prefix website")
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert (ended.returncode, "WARNING" in ended.stdout + ended.stderr) == (0, False), ended.stderr
    return folder


def names_of(site):
    """Its pages but the one for wrong addresses, whose own are those of a server."""
    return sorted({str(path.relative_to(site)) for path in site.rglob("*.html")} - {"404.html"})


MODULES = {f"modules/{name}.html" for name in PAGES}


@pytest.fixture(scope="module")
def entries(site):
    """Of the search index, by page or section."""
    served, as_file = (
        (site / "search" / f"search_index.{kind}").read_text("utf-8") for kind in ("json", "js")
    )
    assert as_file == f"var __index = {served}"
    return {entry["location"]: entry["text"] for entry in json.loads(served)["docs"]}


def test_site_has_every_page_and_takes_nothing_from_elsewhere(site, entries):
    index = (site / "index.html").read_text("utf-8")
    assert {f"modules/{path.name}" for path in (site / "modules").glob("op-*.html")} == MODULES
    assert set(re.findall(r"modules/op-\w+\.html", index)) >= MODULES
    assert entries.keys() >= MODULES
    for page in site.rglob("*.html"):
        tags = re.findall(r"<script[^>]*>|<link[^>]*stylesheet[^>]*>", page.read_text("utf-8"))
        loaded = re.findall(r" (?:src|href)=\"?([^\">\s]+)", "".join(tags))
        assert {"//" in address for address in loaded} == {False}, page.name


def test_navigation_follows_the_home_page(site):
    home = (ROOT / "docs" / "index.md").read_text("utf-8")
    named = list(dict.fromkeys(re.findall(r"\]\(([\w-]+)\.md\)", home)))
    assert set(named) | {"index"} == {path.stem for path in (ROOT / "docs").glob("*.md")}
    menu = (site / "index.html").read_text("utf-8").partition("md-nav--primary")[2]
    shown = re.findall(r'href="?([\w-]+)\.html', menu)
    assert list(dict.fromkeys(shown))[: len(named) + 1] == ["index", *named]


def test_search_index_says_first_what_a_page_is_without_sources_of_diagrams(site, entries):
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md"))
    diagrams = re.findall(r"(?ms)^```mermaid\n(.*?)^```", sources)
    lines = {line.strip() for line in "".join(diagrams).splitlines()}
    assert len(lines) > 300
    for place, written in entries.items():
        text = html.unescape(written)
        assert not re.search(r"-->|\\\(|\\\[|\\mathrm|\\frac|\$\$", text), place
        assert not lines & {line.strip() for line in re.split(r"\n|<[^>]+>", text)}, place
    for name in names_of(site):
        assert re.search(r"(?s)<p>.+?</p>", entries[name].replace("<p></p>", "")), name
        assert len(re.sub(r"<[^>]+>", "", entries[name]).split()) > 8, name


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": OPEN_SHADOWS})
        yield driver


def complaints(browser):
    return [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def at_width(browser, width):
    size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.fixture(scope="module")
def pages(site, browser):
    """Every page, opened once as a file: what it drew, and by width what does not fit."""
    found = {}
    for name in names_of(site):
        at_width(browser, WIDTHS[0])
        browser.get((site / name).as_uri())
        assert wait_for(lambda: browser.execute_script(IS_DRAWN)), f"{name} is not drawn"
        found[name] = browser.execute_script(ONCE)
        for width in WIDTHS:
            at_width(browser, width)
            found[name][width] = browser.execute_script(TOO_WIDE), browser.execute_script(DIAGRAMS)
        found[name]["complaints"] = complaints(browser)
    return found


def test_pages_are_drawn_from_the_sites_own_files(pages):
    assert pages.keys() > MODULES
    for name, page in pages.items():
        assert (page["complaints"], page["mistakes"], page["missing"]) == ([], 0, []), name
    assert sum(page["formulas"] for page in pages.values()) > 100


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_scrolls_sideways_and_nothing_on_it_is_cut(pages, width):
    """But on a telephone, what is wide scrolls in its own box."""
    for name, page in pages.items():
        fit, _ = page[width]
        assert (fit["scrolled"], fit["named"] if width > 1000 else []) == (0, []), name


def test_diagrams_can_be_read(pages):
    for name in MODULES:
        [diagram] = pages[name][1280][1]
        assert diagram["shapes"] > 1, name
        assert diagram["smallest"] >= SMALLEST_TEXT, name


WIDE = """
const wide = {
  pre: `<pre><code>${"a command with --options ".repeat(20)}</code></pre>`,
  table: `<div class="md-typeset__scrollwrap"><div class="md-typeset__table"><table><tr>${
    "<td>1,234,567,890,123</td>".repeat(20)}</tr></table></div></div>`,
  formula: `<div class="arithmatex"><span style="display: block; width: 2000px">x</span></div>`,
  picture: `<p><span style="display: inline-block; width: 2000px">x</span></p>`,
};
document.querySelector(".md-content__inner").insertAdjacentHTML("beforeend", wide[arguments[0]]);
"""


def test_what_does_not_fit_is_noticed(site, browser):
    at_width(browser, 1280)
    for kind in ("pre", "table", "formula", "picture"):
        browser.get((site / "passes.html").as_uri())
        assert browser.execute_script(TOO_WIDE)["named"] == []
        browser.execute_script(WIDE, kind)
        assert browser.execute_script(TOO_WIDE)["named"], kind


# What is searched for, and where it is expected first.
SEARCHES = {
    "kv cache": "passes.html",
    "decode": "passes.html",
    "moe gate": "modules/op-MoEGate.html",
    "MoEGate": "modules/op-MoEGate.html",
    "flash attention": "modules/op-DeepseekV2FlashAttention2.html",
    "window attention": "modules/op-SlidingWindowLlamaAttention.html",
    "repeat_kv": "modules/op-repeat_kv.html",
    "peak memory": "reading.html",
    "budget": "check.html",
}
FIRST_RESULT = """
const first = document.querySelector(".md-search-result__item");
return first && [...first.querySelectorAll(".md-search-result__link")].map((link) => {
  const text = link.querySelector("article").cloneNode(true);
  text.querySelectorAll("h1, h2, div").forEach((each) => each.remove());
  return [link.href, text.textContent.trim()];
});
"""


def search(browser, text):
    """Page and text of the first result."""
    box = browser.find_element("css selector", ".md-search__input")
    browser.execute_script(
        "const toggle = document.querySelector('[data-md-toggle=search]');"
        "if (!toggle.checked) toggle.click();"
    )
    box.clear()
    assert wait_for(lambda: browser.execute_script(FIRST_RESULT) is None)
    box.send_keys(text)
    return wait_for(lambda: browser.execute_script(FIRST_RESULT))


def test_search_finds_what_one_expects_opened_as_a_file(site, browser):
    at_width(browser, 1280)
    browser.get((site / "index.html").as_uri())
    for text, expected in SEARCHES.items():
        sections = search(browser, text)
        assert sections[0][0].startswith(f"{(site / expected).as_uri()}"), text
        excerpt = next(shown for _, shown in sections if shown)
        assert len(re.findall(r"\b[a-z]+\b", excerpt)) > 5, text
        assert not re.search(r"-->|flowchart|\\|\$\$", excerpt), text
