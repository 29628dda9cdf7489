"""The documentation builds into a site that draws and searches by itself, in a real browser."""

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
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
DRAWN_DIAGRAMS = """
const drawn = "svg .node, svg .actor, svg .classGroup";
return [...document.querySelectorAll("div.mermaid")].map(
  (host) => (host.shadowRoot?.querySelectorAll(drawn) ?? []).length
);
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    need(PACKAGES.is_dir(), "website/node_modules: npm ci --prefix website")
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    result = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stdout + result.stderr, result.stderr
    return folder


def test_site_has_every_page_and_takes_nothing_from_elsewhere(site):
    built = {path.stem for path in (site / "modules").glob("op-*.html")}
    assert built == set(PAGES)
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        loaded = re.findall(r"<script[^>]* src=\"?([^\">\s]+)", text)
        loaded += re.findall(r"<link[^>]*rel=\"?stylesheet\"?[^>]* href=\"?([^\">\s]+)", text)
        loaded += re.findall(r"<link[^>]* href=\"?([^\">\s]+)[^>]*rel=\"?stylesheet", text)
        assert loaded, page.name
        assert not [address for address in loaded if "//" in address], page.name


def test_navigation_lists_every_page(site):
    index = (site / "index.html").read_text("utf-8")
    assert {f"modules/{name}.html" for name in PAGES} <= set(
        re.findall(r"modules/op-\w+\.html", index)
    )


def test_search_index_holds_every_page(site):
    entries = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
    places = {entry["location"] for entry in entries}
    assert {f"modules/{name}.html" for name in PAGES} <= places


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def address(site):
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def browser(tmp_path):
    with chromium(tmp_path / "profile") as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": OPEN_SHADOWS})
        yield driver


def test_browser_draws_pages_and_finds_modules(site, address, browser):
    def found(selector):
        return browser.find_elements("css selector", selector)

    def formulas_left():
        return found(".arithmatex:not(:has(.katex))")

    # A flowchart, a sequence, a class diagram; pages with the longest formulas.
    for name in ("ImageEncoderViT", "DeepseekV2MoE", "DeepseekOCRConfig", "BaseTransform"):
        browser.get(f"{address}/modules/op-{name}.html")
        assert browser.title.startswith(name)
        assert wait_for(lambda: browser.execute_script(DRAWN_DIAGRAMS)), name
        assert wait_for(lambda: all(browser.execute_script(DRAWN_DIAGRAMS))), name
        assert found(".arithmatex")
        assert wait_for(lambda: not formulas_left()), name
        assert found(".katex-error") == []
    # What the browser says: nothing failed to load or to run.
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []

    browser.get(f"{address}/index.html?q=MoEGate")
    links = wait_for(lambda: found(".md-search-result__link[href*='op-MoEGate']"))
    assert links
    browser.get(links[0].get_attribute("href"))
    assert browser.find_element("css selector", "h1").text.startswith("MoEGate")
