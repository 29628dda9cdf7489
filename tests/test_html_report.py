"""The HTML report: it holds the JSON's numbers, runs nothing that it was given, and is usable."""

import base64
import importlib.util
import io
import json
import random
import re
from dataclasses import replace

import msgspec
import pypdf
import pytest
from any_models import LLAMA
from browser import chromium, need, wait_for
from command_line import run
from hand_built import AGREEMENT, CREATED, FIGURES, compared

from dsocr_analyze import analyze
from dsocr_analyze.cli import main
from dsocr_analyze.hardware import devices, profile
from dsocr_analyze.report import comparison, html, table, tables
from dsocr_analyze.report.document import Report, build_report
from dsocr_analyze.report.reading import load_report
from dsocr_analyze.report.table import exact

LARGEST_PAGE = 6_000_000
WRITABLE_PIXELS = 703
"""Of A4, between margins of 12 mm."""
KEYS = {"enter": "\ue007", "escape": "\ue00c", "left": "\ue012",
        "right": "\ue014", "down": "\ue015"}  # fmt: skip
"""Keys as WebDriver sends them."""
HOSTILE = "</script><img src=x onerror=window.attacked=1><b>\u2028&lt;i&gt;\"'`%{x}"
SHOWN = HOSTILE.replace("\u2028", r"\u2028")
"""What acts on text without being seen is shown as an escape."""
SMALL = build_report(FIGURES, None, CREATED)
ROOFS = html.roofs_of(profile.all_profiles().values(), "bfloat16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    need(importlib.util.find_spec("plotly"), "plotly: pip install 'dsocr-analyze[html]'")
    return tmp_path_factory.mktemp("pages")


def written_by(page, *arguments):
    """The page of a command and the JSON that it writes into the file named last."""
    assert main([*arguments, f"{page}.json", "--html", str(page)]) == 0
    return page, json.loads(page.with_name(f"{page.name}.json").read_text())


@pytest.fixture(scope="module")
def full(folder):
    """The page and the JSON of a traced run of the built-in reference."""
    return written_by(folder / "full.html", "-q", "--gpu", "h100-sxm,l4", "--runtime", "serving",
                      "--concurrency", "1,4", "--output", str(folder), "--json")  # fmt: skip


@pytest.fixture(scope="module")
def beside(folder):
    """The page and the JSON of a comparison."""
    return written_by(folder / "compare.html", "compare", "tiny", "base", "gundam", "--gpu",
                      "h100-sxm", "--format", "json", "--output")  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as driver:
        yield driver


@pytest.fixture
def show(browser):
    """Opens a page and waits for all its charts; it may load nothing and complain of nothing."""

    def opened(path, width=1400):
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(path.as_uri())
        ready = "performance.getEntriesByName('charts-ready').length"
        assert wait_for(lambda: js(browser, ready)), browser.get_log("browser")
        return browser

    yield opened
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert js(browser, "performance.getEntriesByType('resource').length") == 0
    assert browser.get_log("browser") == []


@pytest.fixture
def page(full, show):
    return show(full[0])


def js(browser, expression, *arguments):
    return browser.execute_script(f"return {expression}", *arguments)


def each_of(browser, selector, expression):
    """The value of an expression for every `it` that a selector finds."""
    return js(browser, f"[...document.querySelectorAll(arguments[0])].map((it) => {expression})",
              selector)  # fmt: skip


def drawn(browser, chart, *keys):
    """These values of each trace of a chart."""
    return js(browser, "document.getElementById(arguments[0]).data.map("
              "(trace) => arguments[1].map((key) => trace[key]))", chart, keys)  # fmt: skip


def one(browser, selector):
    [element] = browser.find_elements("css selector", selector)
    return element


def crumbs(browser):
    return each_of(browser, ".crumbs li", "it.textContent")


def press(browser, selector, text=""):
    """Clicks on the first of these whose text begins like this."""
    js(browser, "[...document.querySelectorAll(arguments[0])].find("
       "(it) => it.textContent.startsWith(arguments[1])).click()", selector, text)  # fmt: skip


def choose(browser, selector, value):
    browser.execute_script(
        "const select = document.querySelector(arguments[0]); select.value = arguments[1];"
        "select.dispatchEvent(new Event('change'));", selector, value,
    )  # fmt: skip


def cells(browser, table) -> list[list[str]]:
    """Texts of a table's rows, a line break for what is below another."""
    return each_of(browser, f"#{table} tbody tr", "[...it.cells].map((cell) => cell.textContent)")


def type_key(browser, name):
    browser.switch_to.active_element.send_keys(KEYS[name])


def written(folder, contents):
    path = folder / "written.html"
    path.write_text(html.render_html(contents), encoding="utf-8")
    return path


# --- the file ----------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_it_is_small_and_its_policy_names_every_script_and_no_source(full):
    text = full[0].read_text("utf-8")
    assert len(text.encode()) <= LARGEST_PAGE
    markup = re.sub(r"(?s)(<script[^>]*>).*?</script>", r"\1", text)
    sources = re.findall(r"""\b(?:src|href|data)\s*=\s*["']?([^"'\s>]*)""", markup)
    assert (sources, markup.count("<script")) == (["data:,", "#main"], 4)
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]+)"', text)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert len(re.findall("sha256-", policy)) == text.count("<script>")
    assert not re.search("connect-src|unsafe-eval|script-src[^;]*unsafe-inline|https?:", policy)


@pytest.mark.parametrize("value", [HOSTILE, {HOSTILE: [HOSTILE]}, "\ud800", "<!--<script>"])
def test_data_cannot_end_their_element_and_come_back_as_they_were(value):
    text = html.escaped_json(value)
    assert (text.isascii(), set("<>&") & set(text), json.loads(text)) == (True, set(), value)


def test_an_integer_that_a_browser_would_round_is_text():
    assert html.escaped_json([2**53 - 1, 2**53, -(2**60), True, 0.5]) == (
        '[9007199254740991,"9007199254740992","-1152921504606846976",true,0.5]'
    )


@pytest.mark.parametrize("command", [("--engine", "analytic"), ("compare", "tiny")])
def test_without_plotly_it_is_refused_before_any_work(capsys, monkeypatch, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    code, out, err = run(capsys, *command, "--html", "page.html")
    assert (code, out, [*tmp_path.rglob("*.html")]) == (2, "", [])
    assert "pip install 'dsocr-analyze[html]'" in err


@pytest.mark.parametrize(
    ("title", "model"),
    [
        ("DeepSeek-OCR, gundam mode: what a page costs", {}),
        ("DeepSeek-OCR in my-model, gundam mode: what a page costs",
         {"source": "directory", "id": "my-model"}),
        ("Qwen3-VL-2B: what a page costs", {"architecture": "qwen3-vl", "id": "qwen3-vl",
                                            "source": "config"}),
        ("MyOcr in <b>: what a page costs", {"architecture": None, "class_name": "MyOcr",
                                             "source": "config", "id": "<b>"}),
    ],
)  # fmt: skip
def test_the_title_is_the_models_name_with_its_folder_beside_it(title, model):
    report = of_model(analyze(engine="analytic"), model)
    contents = html.report_contents(report)
    shown = f"<title>{title.replace('<', '&lt;').replace('>', '&gt;')}</title>"
    assert (contents["title"], shown in html.render_html(contents)) == (title, True)


def of_model(report, changes):
    model = msgspec.structs.replace(report.metadata.model, **changes)
    return msgspec.structs.replace(
        report, metadata=msgspec.structs.replace(report.metadata, model=model)
    )


@pytest.mark.parametrize(
    ("title", "names", "models"),
    [
        ("DeepSeek-OCR compared: tiny", "tiny", "a"),
        ("DeepSeek-OCR compared: tiny, base", "tiny base", "aa"),
        ("DeepSeek-OCR, GLM-OCR, OLMO compared", "x y z v", "abca"),
    ],
)
def test_a_comparisons_title_has_the_models_or_those_of_one_model(title, names, models):
    changes = {"a": {}, "b": {"architecture": "glm-ocr", "source": "config", "id": "glm-ocr"},
               "c": {"architecture": None, "class_name": "OLMO", "id": "OLMO"}}  # fmt: skip
    one_report = analyze(engine="analytic")
    reports = [of_model(one_report, changes[each]) for each in models]
    pairs = [*zip(names.split(), reports, strict=True)]
    assert compared_page(pairs)["title"] == title


# --- the page of a report ----------------------------------------------------------------------


def moved(counts):
    return counts["bytes_read"] + counts["bytes_written"]


def modules_of(document):
    return [
        [path or "(the model)", row["class"], stage, *map(exact, (
            row["calls"], row["params"], row["flops"], row["own"]["flops"], moved(row),
            moved(row["own"]),
        ))]
        for stage, content in document["stages"].items()
        for path, row in content["by_module"].items()
    ]  # fmt: skip


def operators_of(document):
    """With what bounds them on an L4."""
    gpu = devices.gpu_catalogue()["l4"]
    peaks = dict.fromkeys(("gemm", "attention", "convolution"), gpu.tensor_tflops)

    def bound(kind, flops, nbytes):
        seconds = flops / (1e12 * peaks.get(kind, gpu.float32_tflops))
        return "compute" if seconds > nbytes / (gpu.bandwidth_gb_s * 1e9) else "memory"

    return [
        [name, kind, f"{stage} step" if stage == "decode" else stage, *map(exact, work),
         bound(kind, *work)]
        for stage, content in document["stages"].items()
        for kind, family in content["operator_families"].items() for name in family["operators"]
        for work in [(content["operators"][name], content["operator_bytes"][name])]
    ]  # fmt: skip


def stages_of(document):
    keys = ("params", "calls", "flops", "matrix_flops", "vector_flops", "bytes_read",
            "bytes_written", "activations")  # fmt: skip
    return [
        [f"{name} step" if name == "decode" else name, *(exact(stage[key]) for key in keys)]
        for name, stage in document["stages"].items()
    ]


TABLES = {
    "module-table": (range(9), modules_of),
    "operator-table": ((0, 1, 2, 3, 4, 6), operators_of),
    "stage-table": ((*range(8), 9), stages_of),
    "memory-table": ((2,), lambda document: [
        [exact(document["memory"][f"{key}_bytes"])]
        for key in ("weights", "inputs", "kv_cache", "peak_activation")]),
    "ledger-table": (range(3), lambda document: [
        [operator, status, exact(calls)]
        for status, operators in document["operator_ledger"].items()
        for operator, calls in operators.items()]),
    "time-table": (range(2), lambda document: [
        [entry["gpu"], "serving, vllm"] for entry in document["time"]]),
    "load-table": ((), lambda document: [
        [] for entry in document["time"] for _ in entry["throughput"]]),
}  # fmt: skip
"""Columns of tables, and the rows that they have by the JSON."""


# --- What can be read off the page is what the JSON holds, to the last digit -----------------


@pytest.mark.exhaustive
def test_tables(page, full):
    choose(page, "#roofline-gpu", "l4")
    for select in each_of(page, "select[id$=table-rows]", "it.id"):
        choose(page, f"#{select}", "Infinity")
    for name, (columns, expected) in TABLES.items():
        shown = [[row[column] for column in columns] for row in cells(page, name)]
        assert sorted(shown) == sorted(expected(full[1])), name


@pytest.mark.exhaustive
def test_cards(page, full):
    total, memory = full[1]["total"], full[1]["memory"]
    # As fit and the terminal say it: the peak includes the cache of the prompt.
    held = sum(memory[f"{key}_bytes"] for key in ("weights", "inputs", "peak_activation"))
    counts = (total["page"]["flops"], moved(total["page"]), total["flops"],
              total["decode_step"]["flops"], total["params"])  # fmt: skip
    assert each_of(page, ".card .digits", "it.textContent")[:6] == [
        *(exact(int(count)) for count in counts), f"{exact(held)} B",
    ]  # fmt: skip
    assert one(page, "#ledger").get_attribute("open") is None
    assert one(page, "#time h2 .tag").text == "predicted"


@pytest.mark.exhaustive
def test_cards_say_what_the_other_forms_say(page, full):
    """With the runtime of predicted seconds in their own line."""
    markdown = full[0].with_name("static_compute.md").read_text().replace("\\", "")
    shown = each_of(page, ".card", "[...it.children].map((part) => part.textContent)")
    assert len(shown) == 9
    for term, value, digits in shown:
        if "predicted" in term:
            gpu = re.search("on ([^ ]+)", term)[1]
            seconds, how = value.split(" s ")
            assert re.search(rf"{gpu}, serving(, vllm)?: {seconds} s a page", markdown)
            assert how == "serving, vllm"
            assert digits.replace(" to ", " s to ") in markdown or digits in markdown
        else:
            assert value in markdown or digits.split(" ")[0] in markdown, term


PRICED = ("--gpu", "h100,l40s", "--price", "2.5", "--runtime", "eager,serving")


@pytest.fixture(scope="module")
def priced(folder):
    """The page and the JSON of a report whose forms are compared."""
    return written_by(folder / "priced.html", "-q", *PRICED, "--output", str(folder / "priced"),
                      "--json")  # fmt: skip


@pytest.mark.exhaustive
def test_all_forms_of_a_report_say_the_same(capsys, monkeypatch, priced, show):
    monkeypatch.setenv("COLUMNS", "200")
    path, _ = priced
    code, terminal, _ = run(capsys, *PRICED, "--full", "--output", str(path.with_name("again")))
    assert code == 0
    markdown = (path.with_name("priced") / "static_compute.md").read_text("utf-8").replace("\\", "")
    report, page = load_report(path.with_name("priced.html.json")), show(path)
    total, memory = report.total, report.memory
    counted = analyze()  # without seconds, as Python has it
    assert (counted.total, counted.memory) == (total, memory)
    held = memory.weights_bytes + memory.inputs_bytes + memory.peak_activation_bytes
    passes = [f"{table.flops_text(each.flops)}, {table.bytes_text(each.bytes_moved)}"
              for each in (total, total.decode_step, total.page)]  # fmt: skip
    parts = [table.bytes_text(each) for each in (memory.weights_bytes, memory.kv_cache_bytes, held)]
    of_memory = "{} weights, {} KV cache, {}( in all)? at the prefill pass's peak".format(*parts)
    for form in (terminal, markdown):
        for said in (f"prefill (pass )?{passes[0]}; (a|each decode) step {passes[1]}",
                     f"{passes[2]}: prefill", of_memory):  # fmt: skip
            assert re.search(said, form), said
    cards = each_of(page, ".card", "[...it.children].map((part) => part.textContent)")
    assert {term: value for term, value, _ in cards if "predicted" not in term} == {
        "FLOPs of one page": table.flops_text(total.page.flops),
        "Bytes moved for one page": table.bytes_text(total.page.bytes_moved),
        "Prefill pass": table.flops_text(total.flops),
        "One decode step": table.flops_text(total.decode_step.flops),
        "Parameters": table.scaled(total.params),
        "Memory at the prefill pass's peak": parts[2],
        "Visual tokens": f"{report.workload.visual_tokens:,}",
    }
    sizes = {row[0]: row[1] for row in cells(page, "memory-table")}
    rows = {"weights", "inputs", "kv_cache", "peak_activation"}
    assert {each.lower().replace(" ", "_"): size for each, size in sizes.items()} == {
        key: table.bytes_text(getattr(memory, f"{key}_bytes")) for key in rows
    }
    for form in (terminal, markdown):
        for key, size in sizes.items():
            assert re.search(rf"(?im)^\W*{key}[ |]+{re.escape(size)}[ |]", form), key
    check_seconds(page, report, terminal, markdown, cards)


def check_seconds(page, report, terminal, markdown, cards):
    """All forms have the same seconds, rates and prices by GPU and runtime."""
    assert len(report.time) == 4
    alone = {tuple(row[:2]): row[4] for row in cells(page, "time-table")}
    loads = {tuple(row[:3]): row for row in cells(page, "load-table")}
    for entry in report.time:
        seconds, [load] = table.seconds_text(entry.page_seconds), entry.throughput
        rate = table.rate_text(load.pages_per_second)
        price = table.price_text(load.cost_per_thousand_pages)
        assert load.cost_per_thousand_pages == pytest.approx(2500 / 3600 / load.pages_per_second)
        who = f"{entry.gpu}, {entry.runtime_text}"
        band = " to ".join(map(table.seconds_text, (entry.bands["page_seconds"].low,
                                                    entry.bands["page_seconds"].high)))  # fmt: skip
        said = rf"{who}: {seconds} a page \({band}\).*{rate} pages/s \(1 at once\)"
        assert re.search(rf"{said}, bound by \w+, {price} per 1,000 pages", markdown)
        if entry.runtime == "serving":  # the others are below the answer
            assert f"{who}: {seconds} a page; {rate}/s at 1, {price} per 1,000\n" in terminal
        for form in (terminal, markdown):
            section = form.partition(f"{who}: one page alone, predicted")[2]
            assert re.search(rf"(?m)^\W*page[ |]+{seconds}[ |]+{band}", section)
            section = section.partition(f"{who}: throughput")[2]
            assert re.search(rf"(?m)^\W*1[ |]+{rate}[ |].*[ |]{price}[ |]*$", section)
        term = f"Page alone on {entry.gpu} (predicted)"
        assert [term, f"{seconds} {entry.runtime_text}", band] in cards
        assert alone[entry.gpu, entry.runtime_text].replace("\n", " ") == f"{seconds} ({band})"
        row = loads[entry.gpu, entry.runtime_text, "1"]
        assert (rate, seconds, price) == (row[3], row[6], row[-1]), row


NUMBERS = {"scaled": table.scaled, "seconds": table.seconds_text, "rateText": table.rate_text,
           "priceText": table.price_text, "ratioText": table.ratio_text}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_worded_in_a_page_as_in_a_terminal(page, name):
    drawn = random.Random(name)
    least = 3 if name == "scaled" else -3.9
    values = [10 ** drawn.uniform(least, 14 if name == "scaled" else 5) for _ in range(2000)]
    values += [1.0, 9.995, 9.9949, 99.95, 999.5, 999.95, 1e3, 9999.5, 12345.0]
    shown = js(page, f"arguments[0].map((it) => {name}(it))", values)
    assert shown == [*map(NUMBERS[name], values)]


@pytest.mark.exhaustive
def test_curves_go_through_the_predictions(page, full):
    for chart, key in (("throughput", "pages_per_second"), ("latency", "page_seconds")):
        lines = drawn(page, f"curves-{chart}", "name", "x", "y")
        for (name, x, y), entry in zip(lines, full[1]["time"], strict=True):
            curve = dict(zip(x, y, strict=True))
            loads = {each["concurrency"]: each[key] for each in entry["throughput"]}
            assert name == f"{entry['gpu']}, serving, vllm"
            assert {each: curve[each] for each in loads} == pytest.approx(loads, rel=1e-6)
            assert {1, 2, 4, 8, 64, 256} <= curve.keys()


@pytest.mark.exhaustive
def test_stacked_parts_are_those_of_the_page_in_the_colours_of_pictures(page, full):
    report = msgspec.convert(full[1], Report)
    for chart in ("stage-bars", "roofline-chart"):
        marks = {name.split(" ")[0]: mark and mark["color"] for name, mark in
                 drawn(page, chart, "name", "marker")}  # fmt: skip
        assert (
            tables.stage_colours([*report.stages, tables.OUTSIDE]).items()
            >= {name: marks[name] for name in report.stages}.items()
        )
    bars = {name.split(" ")[0]: x for name, x in drawn(page, "stage-bars", "name", "x")}
    flops = {name: stage.flops for name, stage in report.stages.items()}
    flops["decode"] = report.total.batch.flops - report.total.flops
    wholes = [flops, *(tables.seconds_parts(report, entry) for entry in report.time)]
    for place, parts in zip((0, -2, -1), wholes, strict=True):
        shares = [100 * part / sum(parts.values()) for part in parts.values() if part]
        assert [x[place] for x in bars.values() if x[place]] == pytest.approx(shares)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["a100-80gb-sxm", "mi300x"])
def test_the_roofline_is_that_of_the_chosen_gpu(page, full, name):
    catalogue, gpu = devices.gpu_catalogue(), devices.gpu_catalogue()[name]
    assert set(each_of(page, "#roofline-gpu option", "it.value")) == {
        name for name, known in catalogue.items() if known.has_rates and "bfloat16" in known.dtypes
    }
    roofs = full[0].read_text("utf-8").partition('"roofs":')[2]
    first = re.findall(r'\{"gpu":"(.*?)","title"', roofs)[:2]
    assert first == ["h100-sxm", "l4"]  # those that the command names
    choose(page, "#roofline-gpu", name)
    (_, x, y), *others = drawn(page, "roofline-chart", "name", "x", "y")
    peak, bandwidth = gpu.tensor_tflops * 1e12, gpu.bandwidth_gb_s * 1e9
    assert (max(y), x[1]) == pytest.approx((peak, peak / bandwidth))
    dots = [dot for label, *axes in others if label in ("sam", "clip", "prefill")
            for dot in zip(*axes, strict=True)]  # fmt: skip
    assert len(dots) > 20
    assert all(rate <= min(peak, ratio * bandwidth) * (1 + 1e-9) for ratio, rate in dots)


# --- zooming into modules --------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("metric", "stage", "below", "path", "count"),
    [
        ("flops", "prefill", ["model", "layers"], "model.layers", 12),
        ("bytes", "sam", [], "model.sam_model", 6),
        ("params", "sam", [], "model.sam_model", 6),  # positions are its own
        ("params", "clip", ["transformer"], "model.vision_model.transformer.layers", 24),
    ],
)
def test_chart_and_list_have_every_part_of_a_module(page, full, metric, stage, below, path, count):
    def amount(counts):
        return moved(counts) if metric == "bytes" else counts[metric]

    choose(page, "#modules-metric", metric)
    total = sum(map(amount, full[1]["stages"].values()))
    assert sum(map(int, drawn(page, "modules-chart", "values")[0][0])) == total
    assert exact(total) in one(page, "#modules-heading").get_attribute("title")
    for name in (stage, *below):
        press(page, "#modules-parts button", name)
        assert crumbs(page)[-1].startswith(name)
    rows = full[1]["stages"][stage]["by_module"]
    parts = {name.removeprefix(f"{path}."): amount(row) for name, row in rows.items()
             if re.fullmatch(rf"{re.escape(path)}\.\w+", name)}  # fmt: skip
    parts["own work"] = amount(rows[path]) - sum(parts.values())
    shown = each_of(page, "#modules-parts li", "[it.querySelector('.name').textContent, it.title]")
    assert len(shown) == count
    assert {name.split(".")[0]: title.split(" ")[0] for name, title in shown} == {
        name: exact(part) for name, part in parts.items() if part
    }


@pytest.mark.exhaustive
def test_the_keyboard_goes_down_and_up(page):
    page.execute_script("document.querySelector('#modules-parts button').focus()")
    type_key(page, "down")
    for key, name in (
        ("enter", "prefill"), ("right", "model"), ("escape", "prefill"), ("left", "All stages"),
    ):  # fmt: skip
        type_key(page, key)
        assert one(page, "#modules-heading").text.startswith(name)
        assert one(page, "#announcer").get_attribute("textContent").startswith(f"{name}: ")
        assert js(page, "document.activeElement.closest('#modules-parts') !== null")


@pytest.mark.exhaustive
def test_the_chart_a_breadcrumb_and_a_row_of_the_table_lead_to_a_module(page):
    from selenium.webdriver import ActionChains

    page.execute_script("document.querySelector('#modules-chart').scrollIntoView()")
    texts = page.find_elements("css selector", "#modules-chart text.slicetext")
    [text] = [each for each in texts if each.text.startswith("clip")]
    ActionChains(page).move_to_element_with_offset(text, 2, 4).click().perform()
    assert wait_for(lambda: crumbs(page) == ["All stages", "clip"])
    press(page, ".crumbs li button")
    assert crumbs(page) == ["All stages"]
    one(page, "#module-table-search").send_keys("model.layers.3.mlp")
    press(page, "#module-table td button", "model.layers.3.mlp")
    assert crumbs(page)[1:] == ["prefill", "model", "layers", "3", "mlp"]


@pytest.mark.exhaustive
def test_a_heading_sorts_one_way_and_then_the_other_and_a_search_finds_all_its_words(page, full):
    def column(table, number):
        """Sorts by a column; its cells and which way they are sorted."""
        press(page, f"#{table} th:nth-child({number}) button")
        order = one(page, f"#{table} th:nth-child({number})").get_attribute("aria-sort")
        return [row[number - 1] for row in cells(page, table)], order

    numbers = list(map(exact, sorted(stage["flops"] for stage in full[1]["stages"].values())))
    assert column("stage-table", 4) == (numbers[::-1], "descending")
    assert column("stage-table", 4) == (numbers, "ascending")
    assert column("stage-table", 1)[0] == ["clip", "decode step", "prefill", "projector", "sam"]
    search = one(page, "#module-table-search")
    search.send_keys("MODEL.LAYERS  prefill DeepseekV2DecoderLayer")
    layers = [f"model.layers.{layer}" for layer in range(12)]  # as numbers sort
    assert column("module-table", 1)[0] == layers
    assert "12 of 4,625 rows shown" in one(page, "#module-rows").text
    search.send_keys(" nothing-of-the-kind")
    assert cells(page, "module-table") == []


COLOURS = """[document.documentElement.dataset.theme, ...["body", ".xtick text"].map(
  (it) => getComputedStyle(document.querySelector(it))).map(
  (it) => it.backgroundColor + it.fill)]"""
WIDE = (
    "[document.documentElement, ...document.querySelectorAll('.scroll, section, figure')]"
    ".filter((it) => it.scrollWidth > it.clientWidth + 1).map((it) => it.outerHTML.slice(0, 120))"
)
"""What is wider than the place that it has."""

OUTSIDE_ITS_CHART = """
[...document.querySelectorAll('.plot')].flatMap((plot) => {
  const box = plot.getBoundingClientRect();
  return [...plot.querySelectorAll('.main-svg text')].filter((text) => {
    const inner = text.getBoundingClientRect();
    const isWithin = inner.left >= box.left - 1 && inner.right <= box.right + 1
      && inner.top >= box.top - 1 && inner.bottom <= box.bottom + 1;
    return inner.width > 0 && !isWithin;
  }).map((text) => `${plot.id}: ${text.textContent}`);
})""".lstrip()


# --- how it looks ----------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_button_turns_the_colours_that_the_system_prefers(full, browser, show, theme):
    preferred = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preferred]})
    page, seen = show(full[0]), []
    for _ in range(3):
        seen.append(js(page, COLOURS))
        one(page, "#theme").click()
    assert (seen[0][0], seen[2]) == (theme, seen[0])
    assert not set(seen[1]) & set(seen[0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [1280, 1920])
def test_nothing_is_clipped(full, beside, show, width):
    for path in (full[0], beside[0]):
        page = show(path, width)
        assert (js(page, WIDE), js(page, OUTSIDE_ITS_CHART)) == ([], [])


PAGES = {
    "one": "--gpu h100",
    "many": "--engine analytic --gpu h100,l40s,a100-80gb-sxm,l4 --runtime eager,serving"
    " --batch-size 3",
    "measured": "--engine analytic --mode tiny",
    "neighbour": "--arch qwen3-vl --engine analytic --gpu h100",
    "modes": "compare tiny small base large gundam gundam-m --gpu h100,l40s",
    "models": "compare --all --gpu h100",
}
"""Commands, by the name of the page that each writes."""


@pytest.fixture(params=PAGES)
def any_page(request, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    path = folder / f"{request.param}.html"
    if not path.exists():
        code, _, err = run(capsys, *PAGES[request.param].split(), "--html", path.name)
        assert code == 0, err
    return path


COLLIDING = """
[...document.querySelectorAll('.plot')].flatMap((plot) => {
  const found = [...plot.querySelectorAll('.main-svg text')].map((it) => (
    { box: it.getBoundingClientRect(), text: it.textContent }
  )).filter(({ box, text }) => box.width > 1 && text.trim());
  return found.flatMap((one, place) => found.slice(place + 1).filter(({ box }) => (
    box.left + 1 < one.box.right && one.box.left + 1 < box.right
    && box.top + 2 < one.box.bottom && one.box.top + 2 < box.bottom
  )).map((other) => `${plot.id}: ${one.text} | ${other.text}`));
})""".lstrip()
"""Texts of a chart that stand on one another."""

BEYOND = """
[...document.querySelectorAll('body > :not(#js-plotly-tester) *')].filter((it) => {
  const box = it.getBoundingClientRect();
  return box.width > 1 && !it.matches('.skip') && !it.closest('.scroll table')
    && (box.left < -1 || box.right > document.documentElement.clientWidth + 1);
}).map((it) => it.outerHTML.slice(0, 120))""".lstrip()
"""What leaves the page sideways and is in no table that scrolls."""

OUTSIDE_ITS_SECTION = """
[...document.querySelectorAll('section :is(select, input, button, .card, .plot, .parts li > *)')]
  .filter((it) => {
    const [inner, outer] = [it, it.closest('section')].map((each) => each.getBoundingClientRect());
    return inner.width > 0 && !it.closest('.scroll')
      && (inner.left < outer.left || inner.right > outer.right);
  }).map((it) => it.outerHTML.slice(0, 120))""".lstrip()

BROKEN_WORDS = """
(() => {
  const found = [];
  const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest('svg, option, .unseen')) continue;
    for (const { 0: word, index } of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
      const range = document.createRange();
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) found.push(word);
    }
  }
  return found;
})()""".strip().replace("\\\\", "\\")
"""Words that begin on one line and end on another."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [320, 400, 1000])
def test_nothing_collides_leaves_its_place_or_is_broken_on_a_narrow_screen(any_page, show, width):
    page = show(any_page, width)
    for measured in (COLLIDING, OUTSIDE_ITS_CHART, BEYOND, OUTSIDE_ITS_SECTION, BROKEN_WORDS):
        assert js(page, measured) == []
    assert js(page, "document.documentElement.scrollWidth") <= width
    for gpu in each_of(page, "#roofline-gpu option", "it.value") if width == 400 else ():
        choose(page, "#roofline-gpu", gpu)
        assert js(page, COLLIDING) == js(page, OUTSIDE_ITS_CHART) == [], gpu


@pytest.mark.exhaustive
@pytest.mark.parametrize("any_page", ["many", "modes"], indirect=True)
def test_charts_fit_again_after_the_window_has_changed(any_page, show, browser):
    page = show(any_page, 1400)
    size = {"width": 400, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert wait_for(lambda: js(page, COLLIDING) == js(page, BEYOND) == [])


IS_SHOWN = "it.getBoundingClientRect().width > 0"


@pytest.mark.exhaustive
def test_paper_is_white_and_has_every_table_unfolded_and_nothing_cut(any_page, show):
    page = show(any_page, 1000)
    one(page, "#theme").click()
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert wait_for(lambda: "paper" in one(page, "html").get_attribute("class"))
    assert not any(each_of(page, "select, input, button, .bar", IS_SHOWN))
    assert all(each_of(page, "table", IS_SHOWN))
    assert not any(each_of(page, ".scroll", "it.scrollHeight > it.clientHeight + 1"))
    colours = each_of(page, "body, section, .card", "getComputedStyle(it).backgroundColor")
    assert set(colours) <= {"rgb(255, 255, 255)", "rgba(0, 0, 0, 0)"}
    rows = each_of(page, "[role=status]", "it.textContent.match(/[\\d,]+/g)")
    assert all(shown == every or int(every.replace(",", "")) > 250 for shown, every in rows)
    rights = each_of(page, "main *", "it.getBoundingClientRect().right - it.closest('main')"
                     ".getBoundingClientRect().left")  # fmt: skip
    assert max(rights) <= WRITABLE_PIXELS
    for measured in (COLLIDING, OUTSIDE_ITS_CHART, BROKEN_WORDS):
        assert js(page, measured) == []
    assert set(each_of(page, "figure, .card, tr", "getComputedStyle(it).breakInside")) == {"avoid"}
    printed = pypdf.PdfReader(io.BytesIO(base64.b64decode(
        page.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    )))  # fmt: skip
    texts = "".join(sheet.extract_text() for sheet in printed.pages).replace("\n", " ")
    assert page.title.split(":")[0] in texts
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert wait_for(lambda: one(page, "#theme").is_displayed())
    assert not any(each_of(page, "details", "it.open"))
    assert js(page, "document.querySelector('.main-svg').clientWidth") > WRITABLE_PIXELS


@pytest.mark.exhaustive
def test_controls_have_names_and_the_keyboard_reaches_them_and_axes_have_units(page):
    controls = "button, select, input"
    assert all(each_of(
        page, controls, "it.ariaLabel || it.textContent.trim() || it.labels?.length || null"
    ))  # fmt: skip
    assert min(each_of(page, f"{controls}, .scroll, a", "it.tabIndex")) >= 0
    titles = js(page, "[...document.querySelectorAll('.js-plotly-plot')].flatMap((it) =>"
                "[it.layout.xaxis?.title?.text, it.layout.yaxis?.title?.text])")  # fmt: skip
    units = [bool(re.search(r"\[.+\]$|^pages at once", each)) for each in titles if each]
    assert units == [True] * 7


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "text", "numbers"),
    [
        ("scaled", table.scaled, [*(1.13**n for n in range(380)), 999, 1000, 999_949, 999_950]),
        ("seconds", table.seconds_text, [*(1.17**n for n in range(-90, 60)), 0, 0.125, 9.995]),
        ("percent", table.percent_text, [*(n / 997 for n in range(998)), 0.0004, 0.0005, 0.00125]),
        ("ratioText", table.ratio_text, [*(1.19**n for n in range(-40, 90)), 999.94, 999.96, 1e4]),
        ("rateText", table.rate_text, [*(1.19**n for n in range(-40, 90)), 999.4, 999.6]),
        ("priceText", table.price_text, [*(1.19**n for n in range(-40, 90)), 0.999, 1]),
    ],
)
def test_numbers_are_worded_as_everywhere_else(page, name, text, numbers):
    assert js(page, f"arguments[0].map((it) => {name}(it))", numbers) == list(map(text, numbers))


# --- other reports -----------------------------------------------------------------------------


def hostile_report():
    """A report with hostile names, as keys and as parts of texts."""
    text = json.dumps(msgspec.to_builtins(build_report(compared(), AGREEMENT, CREATED)))
    inner = json.dumps(HOSTILE)[1:-1]
    text = re.sub("my-model|linear|mind the gap|it only has one", lambda _: inner, text)
    return msgspec.json.decode(text.replace("eye", f"eye{inner}"), type=Report)


def compared_page(reports, configs=()):
    found = comparison.compare(reports, configs or None)
    of_all = [report for _, report in reports]
    return html.comparison_contents(found, of_all, found.assumptions, [*configs])


def assert_nothing_ran(browser):
    assert js(browser, "window.attacked ?? null") is None
    assert each_of(browser, "main img, main b, main script, main i, body > img", "it.tagName") == []
    assert len(browser.find_elements("css selector", "script")) == 4


# --- hostile names ---------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_names_are_text(folder, show):
    page = show(written(folder, html.report_contents(hostile_report(), ROOFS, (), HOSTILE)))
    assert_nothing_ran(page)
    assert one(page, "h1").get_attribute("textContent") == page.title
    assert SHOWN in page.title
    assert f"model.eye{SHOWN}.fc" in [row[0] for row in cells(page, "module-table")]
    labels = "".join(each_of(page, "#modules-chart text.slicetext", "it.textContent"))
    assert "</script><img src=x onerror=window.attacked=1><b>" in labels
    press(page, "#modules-parts button")
    assert_nothing_ran(page)


@pytest.mark.exhaustive
def test_the_same_in_a_comparison(folder, show):
    configs = {HOSTILE: {HOSTILE: 1}, "b": {HOSTILE: HOSTILE}}
    reports = [(HOSTILE, hostile_report()), ("plain", SMALL)]
    page = show(written(folder, compared_page(reports, configs)))
    assert_nothing_ran(page)
    assert cells(page, "config-table")[0][0] == SHOWN


@pytest.mark.exhaustive
def test_a_script_slipped_into_the_page_is_refused(full, browser, folder):
    slipped, evil = folder / "slipped.html", "</main><script>window.attacked = 1</script>"
    slipped.write_text(full[0].read_text("utf-8").replace("</main>", evil))
    browser.get(slipped.as_uri())
    assert js(browser, "window.attacked ?? null") is None
    assert "Content Security Policy" in str(browser.get_log("browser"))


# --- reports of other kinds ------------------------------------------------------------------


@pytest.mark.exhaustive
def test_large_counts_keep_their_digits_and_what_is_unknown_is_left_out(folder, show):
    """As the analytic engine and earlier versions of the report leave it out."""
    eye = msgspec.structs.replace(
        SMALL.stages["eye"], flops=2**53 + 1, bytes_read=2**53 + 1, operator_bytes=None
    )
    report = msgspec.structs.replace(SMALL, stages={**SMALL.stages, "eye": eye})
    page = show(written(folder, html.report_contents(report, ROOFS, (), "no times: why")))
    assert cells(page, "stage-table")[0][3] == "9,007,199,254,740,993"
    assert each_of(page, "#modules-metric option", "it.value") == ["flops", "bytes"]
    assert {row[2]: row[4] for row in cells(page, "operator-table")}["eye"] == "-"
    assert "no times: why" in one(page, "#time").text


@pytest.mark.exhaustive
def test_a_model_that_does_not_decode(folder, show):
    report = build_report(replace(FIGURES, decodes=False), None, CREATED)
    page = show(written(folder, html.report_contents(report)))
    assert [row[0] for row in cells(page, "stage-table")] == list(report.stages)
    assert "No GPU" in one(page, "#operators").text


@pytest.mark.exhaustive
@pytest.mark.parametrize("reads_pages", [True, False])
def test_measured_gpus_have_curves_if_pages_are_read_and_only_named_ones_otherwise(
    folder, show, capsys, monkeypatch, reads_pages
):
    monkeypatch.chdir(folder)
    how = ["--engine", "analytic", "--mode", "tiny"]
    if not reads_pages:
        stages, config = LLAMA.write(folder)
        how = [
            "--stages",
            stages,
            "--hf-config",
            config,
            "--gpu",
            "h100-sxm,a10",
            "--runtime",
            "eager",
        ]
    assert run(capsys, "-q", "--html", "other.html", *how) == (0, "", "")
    page = show(folder / "other.html")
    assert cells(page, "stage-table")[-1][0].endswith("step")
    if reads_pages:
        assert drawn(page, "curves-throughput", "name") == [
            [f"{name}, serving, vllm"] for name, each in profile.all_profiles().items()
            if each.kinds and not each.extrapolated
        ]  # fmt: skip
    else:
        assert drawn(page, "curves-throughput", "name") == [
            ["h100-sxm, eager"], ["a10, eager"],
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "gpu", "rate"),
    [("float32", "a100-80gb-sxm", 19.5e12), ("float16", "v100-sxm-32gb", 125e12)],
)
def test_roofs_of_other_types(dtype, gpu, rate):
    roofs = html.roofs_of(profile.all_profiles().values(), dtype)
    rates = {roof["gpu"]: roof["matrix_flops_per_second"] for roof in roofs}
    assert (rates[gpu], all(rates.values())) == (rate, True)


# --- the page of a comparison ----------------------------------------------------------------


@pytest.mark.exhaustive
def test_every_quantity_is_that_of_the_json_and_stages_are_stacked_to_one_page(beside, show):
    path, document = beside
    page = show(path)
    assert path.stat().st_size <= LARGEST_PAGE
    choose(page, "#compared-table-rows", "Infinity")
    for shown, row in zip(cells(page, "compared-table"), document["rows"], strict=True):
        first, *others = zip(row["values"], row["differences"], row["ratios"], strict=True)
        assert shown[:2] == [row["quantity"], row["unit"]]
        assert not isinstance(first[0], int) or shown[2:] == [exact(first[0]), *(
            f"{exact(value)}{'+' if difference > 0 else ''}{exact(difference)}, {ratio:.3f} x"
            for value, difference, ratio in others
        )]  # fmt: skip
    values = {row["key"]: row["values"] for row in document["rows"]}
    for index, key in enumerate(("page_flops", "page_bytes", "h100_sxm_serving_page_seconds")):
        stacked = zip(*(x for [x] in drawn(page, f"compared-{index}", "x")), strict=True)
        assert list(map(sum, stacked)) == pytest.approx(values[key], rel=1e-9), key
