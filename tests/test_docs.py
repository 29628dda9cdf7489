"""The documentation is the program's output, and what it says is true."""

import ast
import dataclasses
import inspect
import itertools
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import every, sampled

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.cli import main
from dsocr_analyze.costs.linear import linear as linear_kernels
from dsocr_analyze.dtypes import FLOAT32
from dsocr_analyze.errors import KnowledgeError, WorkloadError
from dsocr_analyze.knowledge.architecture_pages import PAGES as PAGES_BY_ARCHITECTURE
from dsocr_analyze.knowledge.architecture_pages import pages_of
from dsocr_analyze.knowledge.documents.corrections import SOURCES
from dsocr_analyze.knowledge.generate import documents
from dsocr_analyze.knowledge.machinery.chapter import checked_chapters
from dsocr_analyze.knowledge.machinery.evidence import check
from dsocr_analyze.knowledge.machinery.facts import Facts, published_facts
from dsocr_analyze.knowledge.machinery.notation import (
    collected,
    equation,
    evaluate,
    names_in,
    typeset,
)
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Page, Parameter, Symbol
from dsocr_analyze.knowledge.machinery.signature import definition_of
from dsocr_analyze.knowledge.references import REFERENCES
from dsocr_analyze.model.directory import read_config
from dsocr_analyze.session import DeepSeekOCRSession

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "modules").glob("op-*.md"))
KNOWLEDGE = ROOT / "src" / "dsocr_analyze" / "knowledge"

NAMES = {
    architecture: {Path(inspect.getsourcefile(page)).stem for page in pages}
    for architecture, pages in PAGES_BY_ARCHITECTURE.items()
}
"""The modules of each architecture, by the files of their pages."""

OF_DEFAULT = NAMES[DEFAULT.name]
OF_RELATIVES = {
    architecture: names.difference(*(NAMES[each] for each in NAMES if each != architecture))
    for architecture, names in NAMES.items()
    if architecture != DEFAULT.name
}
"""What only a relative has."""

ALL = {*itertools.chain(*NAMES.values())}

# The lists of the documentation plan that the pages grew out of: seven pages that existed, then
# those that were missing, by category. (Its statistics say 34; its lists name these.)
PLANNED = {
    "deepseek-ocr": """
DeepseekOCRConfig DeepseekOCRModel DeepseekOCRForCausalLM
DeepseekV2RMSNorm DeepseekV2RotaryEmbedding DeepseekV2LinearScalingRotaryEmbedding
DeepseekV2DynamicNTKScalingRotaryEmbedding
DeepseekV2YarnRotaryEmbedding DeepseekV2MLP MoEGate DeepseekV2MoE DeepseekV2Attention
DeepseekV2FlashAttention2 DeepseekV2DecoderLayer DeepseekV2Model DeepseekV2ForCausalLM
DeepseekV2ForSequenceClassification AddAuxiliaryLoss repeat_kv
MlpProjector LayerNormfp32 CLIPVisionEmbeddings NoTPFeedForward NoTPAttention NoTPTransformerBlock
NoTPTransformer VitModel MLPBlock LayerNorm2d ImageEncoderViT Block Attention PatchEmbed
get_abs_pos get_abs_pos_sam add_decomposed_rel_pos
BaseTransform BasicImageTransform NoEOSTextStreamer
""",
    "deepseek-ocr-2": """
DeepseekOCR2Config DeepseekOCR2Model DeepseekOCR2ForCausalLM
Qwen2Decoder2Encoder CustomQwen2Decoder CustomQwen2ModelInner Qwen2DecoderLayer Qwen2SdpaAttention
Qwen2MLP Qwen2RMSNorm Qwen2RotaryEmbedding
""",
    "unlimited-ocr": """
UnlimitedOCRConfig UnlimitedOCRModel UnlimitedOCRForCausalLM SlidingWindowLlamaAttention
""",
}

WITHOUT_A_PAGE = {"LlamaAttention", "LlamaRotaryEmbedding"}
"""Classes of transformers: the page of the layer that has them says what they do."""


OF_OTHER_SOURCES = (
    "index",
    "commands",
    "any-model",
    "check",
    "choosing-a-mode",
    "passes",
    "reading",
    "security",
    "tasks",
)
"""Documents that are written by hand, or from the command line."""


def name_of(page):
    return page.stem.removeprefix("op-")


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# The committed documents --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written():
    return documents()


def test_committed_documents_are_what_the_command_writes(written):
    committed = {
        path.relative_to(DOCS).as_posix(): path.read_text("utf-8")
        for path in DOCS.rglob("*.md")
        if path.parent != DOCS or path.stem not in OF_OTHER_SOURCES
    }
    assert committed.keys() == written.keys()
    different = [name for name, text in written.items() if committed[name] != text]
    assert different == [], "write them again: dsocr-analyze docs --output docs"


@pytest.mark.benchmark
def test_documents_are_written_in_less_than_a_minute():
    start = time.perf_counter()
    documents()
    assert time.perf_counter() - start < 60


SECTIONS = (
    "What it is",
    "Definition",
    "Constructor information",
    "Module internals",
    "Key pseudo-code",
    "FLOPs",
    "Memory",
    "Related modules",
    "Usage pattern",
)
"""Headings that every page has, in this order; references follow where there are."""


@pytest.mark.parametrize("architecture", PLANNED)
def test_every_planned_module_has_a_page(architecture):
    assert set(PLANNED[architecture].split()) <= NAMES[architecture]
    assert NAMES[architecture] <= {name_of(page) for page in PAGES}


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=lambda each: each.name)
def test_every_class_of_a_model_that_runs_has_a_page(architecture):
    model = DeepSeekOCRSession.from_local(architecture.reference).model
    classes = {type(module) for module in model.modules()}
    own = {each.__name__ for each in classes if not each.__module__.startswith("torch.")}
    assert len(own) > 15
    missing = own - NAMES[architecture.name] - WITHOUT_A_PAGE
    assert not missing, "write a page of each in knowledge/pages, list it in architecture_pages.py"


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", PAGES_BY_ARCHITECTURE)
def test_a_page_is_written_from_the_file_of_its_name(architecture):
    files = [Path(inspect.getsourcefile(page)) for page in PAGES_BY_ARCHITECTURE[architecture]]
    assert {file.parent for file in files} == {KNOWLEDGE / "pages"}
    names = [page.name for page in pages_of(published_facts(architecture))]
    assert names == [file.stem for file in files]


def test_every_document_has_a_file_of_its_name(written):
    documents = {Path(name).stem for name in written}
    pages = {stem.removeprefix("op-") for stem in documents if stem.startswith("op-")}
    for folder, stems in (("pages", pages), ("documents", documents - {f"op-{p}" for p in pages})):
        assert {file.stem for file in (KNOWLEDGE / folder).glob("[!_]*.py")} == stems


def test_every_document_names_the_file_that_it_is_written_from(written):
    for name, text in written.items():
        (source,) = re.findall(r"^<!-- .* edit (src/\S+\.py) instead\. -->$", text.splitlines()[0])
        assert Path(source).stem == Path(name).stem.removeprefix("op-")
        assert (ROOT / source).is_file()


def test_every_architecture_has_pages():
    assert list(PAGES_BY_ARCHITECTURE) == list(ARCHITECTURES), "list them in this order"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_has_every_section_in_order_and_none_is_empty(page):
    text = page.read_text("utf-8")
    sections = re.findall(r"^## (.+)\n\n(.)", text, re.MULTILINE)
    headings = [heading for heading, first in sections if first != "#"]
    assert tuple(heading for heading in headings if heading != "References") == SECTIONS
    assert len(blocks(text, "mermaid")) == 1
    assert len(blocks(text, "python")) == 2  # definition and usage


@sampled("page", PAGES, every(20), ids=name_of)
def test_usage_snippet_runs(page, capsys):
    snippet = blocks(page.read_text("utf-8"), "python")[-1]
    assert "assert" in snippet or "print" in snippet or "streamer" in snippet
    exec(compile(snippet, f"{page.name}: usage", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_definition_is_python(page):
    ast.parse(blocks(page.read_text("utf-8"), "python")[0])


def test_pages_link_to_each_other_and_index_and_catalogue_to_all():
    for page in PAGES:
        targets = re.findall(r"\]\((op-[^)]+)\)", page.read_text("utf-8"))
        assert targets, page.name
        assert all((page.parent / target).is_file() for target in targets)
    for name in ("modules/index.md", "module_catalog.md", "module_formulations.md"):
        text = (DOCS / name).read_text("utf-8")
        assert {f"op-{name}.md" for name in ALL} == set(re.findall(r"op-\w+\.md", text))


def section(text, title):
    """What stands under a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, f"nothing on {title}: dsocr-analyze docs --output docs"
    return found[1]


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=lambda each: each.name)
def test_catalogue_has_every_stage_of_an_architecture_in_order(architecture):
    text = section((DOCS / "module_catalog.md").read_text("utf-8"), architecture.title)
    stages = list(architecture.stage_names)
    assert re.findall(r"^### (.+)$", text, re.M) == ["Stages", *stages, "Outside the stages"]
    table = text.partition("### Stages")[2].partition("### ")[0]
    assert re.findall(r"^\| (\w+) \| `", table, re.M) == stages
    for prefix in itertools.chain(*(stage.prefixes for stage in architecture.stages)):
        assert f"`{prefix}`" in table


@pytest.mark.parametrize("name", ["modules/index.md", "module_catalog.md"])
def test_index_and_catalogue_tell_what_a_relative_has_from_what_it_shares(name):
    text = (DOCS / name).read_text("utf-8")
    for architecture, own in OF_RELATIVES.items():
        part = section(text, ARCHITECTURES[architecture].title)
        rows = "\n".join(line for line in part.splitlines() if line.startswith("|"))
        prose = "\n".join(line for line in part.splitlines() if not line.startswith("|"))
        assert set(re.findall(r"op-(\w+)\.md", rows)) == own
        shared = set(re.findall(r"op-(\w+)\.md", prose))
        assert shared < OF_DEFAULT
        assert {"ImageEncoderViT", "MlpProjector", "DeepseekV2DecoderLayer"} <= shared
        assert ("VitModel" in shared) == (architecture == "unlimited-ocr")


def test_corrections_stand_on_one_page_that_says_what_it_corrects():
    text = (DOCS / "corrections.md").read_text("utf-8")
    preface, rows = text.split("| module | earlier statement | what holds | why |\n")
    assert all(f'"{title}"' in preface for title in SOURCES)
    assert "not in its repository" in preface
    for row in rows.splitlines()[1:]:
        linked, quote, *_ = row.strip("| ").split(" | ")
        (target,) = re.findall(r"\]\((modules/op-\w+\.md)\)", linked)
        assert (DOCS / target).is_file()
        assert quote.startswith('"')
        assert quote.strip('"') not in (DOCS / target).read_text("utf-8")
    assert "corrections.md" in (DOCS / "index.md").read_text("utf-8")
    assert not [page.name for page in PAGES if "earlier figure" in page.read_text("utf-8")]


def test_catalogue_names_closed_forms_that_exist():
    text = (DOCS / "module_catalog.md").read_text("utf-8")
    named = set(re.findall(r"\b(costs|architectures\.\w+)\.(\w+)(?:\.(\w+))?", text))
    assert len(named) > 15
    assert {room for room, _, _ in named} > {"costs", "architectures.ocr_family"}
    for room, module, function in named:
        file = ROOT / "src" / "dsocr_analyze" / room.replace(".", "/") / f"{module}.py"
        source = file.read_text("utf-8")
        assert not function or f"def {function}(" in source, f"{room}.{module}.{function}"


def test_figures_of_the_facts_are_on_their_pages():
    # Measured on the vendor's own model, outside this program.
    def text_of(name):
        return (DOCS / "modules" / f"op-{name}.md").read_text("utf-8")

    assert "3,336,106,240" in text_of("DeepseekOCRForCausalLM")
    assert "95,569,152" in text_of("ImageEncoderViT")
    assert "303,177,728" in text_of("VitModel")
    assert "2,622,720" in text_of("MlpProjector")
    assert "488,454,586,368" in text_of("ImageEncoderViT")  # MACs, 976.9 GFLOPs
    assert re.search(r"\| 161,7\d\d,\d{3},\d{3} \|", text_of("VitModel"))  # 161.7 GFLOPs
    assert "61,440 bytes per token" in text_of("DeepseekV2Model")
    assert "602,112" in text_of("CLIPVisionEmbeddings")
    assert "129,280" in text_of("DeepseekV2ForCausalLM")


def test_figures_of_the_relatives_facts_are_on_their_pages():
    # Measured on the vendors' own models, outside this program.
    def text_of(name):
        return (DOCS / "modules" / f"op-{name}.md").read_text("utf-8")

    assert "3,389,119,360 parameters" in text_of("DeepseekOCR2ForCausalLM")
    assert "| 358,256,512 | 716,513,024 |" in text_of("Qwen2Decoder2Encoder")
    assert re.search(r"\$n_u\$ .* \| 400 \| 400 \|", text_of("Qwen2Decoder2Encoder"))  # 144 + 256
    inner = text_of("CustomQwen2ModelInner")
    assert f"| {24 * 14_912_384 + 896:,} |" in inner  # 24 layers and a norm
    # A view of 1024 pixels has n = 256: 1 + 2 n writes, and n^2 + n^2 + n (n + 1) / 2 zeros.
    assert "takes 513 index writes" in inner
    assert f"set {2 * 256**2 + 256 * 257 // 2:,} of {512**2:,} entries" in inner
    assert "1,280 parameters are the separator" in text_of("DeepseekOCR2Model")
    catalogue = (DOCS / "module_catalog.md").read_text("utf-8")
    of_ocr2, of_unlimited = (
        section(catalogue, "DeepSeek-OCR-2"),
        section(catalogue, "Unlimited-OCR"),
    )
    for stage, prefix, params in (
        ("sam", "`model.sam_model`", "94,979,328"),
        ("encoder", "`model.qwen2_model`", "358,256,512"),
        ("projector", "`model.projector`", "1,148,160"),
    ):
        assert f"| {stage} | {prefix} | {params} |" in of_ocr2
    assert "| projector | `model.projector` | 2,622,720 |" in of_unlimited
    assert "3,336,106,240 parameters" in text_of("UnlimitedOCRForCausalLM")
    window = text_of("SlidingWindowLlamaAttention")
    assert "| 908 | 909 | 1,036 | 1,036 |" in window  # K = S + min(i, 128), S = 903 + 5
    assert f"{(908 + 128) * 61_440:,} bytes" in window


# What a browser draws -----------------------------------------------------------------------------


def test_diagrams_and_formulas_parse_with_what_the_site_draws_them_with():
    node = shutil.which("node")
    if node is None or not (ROOT / "website" / "node_modules").is_dir():
        assert "DSOCR_TEST_SITE" not in os.environ, "CI has to parse them"
        pytest.skip("needs Node and its packages: npm ci --prefix website")
    diagrams, formulas = {}, {}
    for path in DOCS.rglob("*.md"):
        text = path.read_text("utf-8")
        for number, source in enumerate(blocks(text, "mermaid")):
            diagrams[f"{path.name} diagram {number}"] = source
        display = re.findall(r"^\$\$\n(.*?)\n\$\$", text, re.MULTILINE | re.DOTALL)
        inline = re.findall(r"(?<!\$)\$([^$\n]+)\$(?!\$)", text)
        for number, latex in enumerate([*display, *inline]):
            formulas[f"{path.name} formula {number}"] = latex
    assert len(diagrams) == len(ALL)
    assert len(formulas) > 200
    diagrams["broken on purpose"] = "flowchart LR\n  a[[ --> b"
    formulas["wrong on purpose"] = r"\frac{1}{"
    result = subprocess.run(
        [node, str(ROOT / "website" / "parse-documents.mjs")],
        input=json.dumps({"diagrams": diagrams, "formulas": formulas}),
        capture_output=True,
        text=True,
        check=True,
    )
    failures = json.loads(result.stdout)
    assert failures.keys() == {"broken on purpose", "wrong on purpose"}, failures


# No number by hand --------------------------------------------------------------------------------

FORMULA_CONSTANTS = {"0.1", "1.702", "13", "17"}  # of YaRN, quick GELU, and of checked formulas
SNIPPET_VALUES = {"2.0", "255"}  # inputs of usage snippets
MARKUP = {"124"}  # the entity of a vertical bar


def numbers_in(source):
    """Numbers of two digits or more, in texts and in code, that are no quotation."""
    tree = ast.parse(source)
    quoted = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_Correction":
            quoted |= {id(part) for part in ast.walk(node.args[1])}
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "QUOTED":
            quoted |= {id(part) for part in ast.walk(node.value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in quoted:
            text = str(node.value) if type(node.value) in (int, float, str) else ""
            yield from re.findall(r"(?<![\w.])\d[\d,.]*\d(?!\w)", text)


WITH_NUMBERS = {
    "documents/seconds.py": "a method with its constants",
    "references.py": "years of papers",
}
"""Files of the documentation that may hold numbers, and why."""

CONTENT = {
    path.relative_to(KNOWLEDGE).as_posix(): path
    for path in [*KNOWLEDGE.glob("*.py"), *KNOWLEDGE.glob("*/*.py")]
    if path.parent.name != "machinery" or path.stem == "render"
}


@pytest.mark.parametrize("name", sorted(CONTENT.keys() - WITH_NUMBERS.keys()))
def test_no_page_holds_a_number_written_by_hand(name):
    found = set(numbers_in(CONTENT[name].read_text("utf-8")))
    assert found <= FORMULA_CONSTANTS | SNIPPET_VALUES | MARKUP


def test_scan_for_numbers_sees_one():
    assert list(numbers_in('what = f"It has 12 layers, {count} tokens, 1,280 wide; fp32."')) == [
        "12",
        "1,280",
    ]
    assert list(numbers_in("work = 6 * 8192 * width")) == ["8192"]
    assert list(numbers_in('QUOTED: Final = {"tokens": 8192}')) == []
    assert list(numbers_in('_Correction("Block", "40 layers", "now 12")')) == ["12"]


# Formulas -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "value", "latex"),
    [
        ("2 * a + b", 2 * 3 + 5, r"2\,a + b"),
        ("a * (b - 1)", 3 * 4, r"a\,\left(b - 1\right)"),
        ("a - (b - 1)", -1, r"a - \left(b - 1\right)"),
        ("7 / 2 * (a + b)", 28, r"\frac{7}{2}\,\left(a + b\right)"),
        ("a ** 2 * 3", 27, r"a^{2} \cdot 3"),
        ("(a + b) ** 2", 64, r"\left(a + b\right)^{2}"),
        ("ceil(b / a)", 2, r"\left\lceil \frac{b}{a} \right\rceil"),
        ("ceil_log2(a * a)", 4, r"\left\lceil \log_2 a\,a \right\rceil"),
        ("(a > 1) * b + (a != 3)", 5, r"[a > 1]\,b + [a \neq 3]"),
        ("max(2, a)", 3, r"\max\left(2, a\right)"),
        ("b + min(a, 2)", 7, r"b + \min\left(a, 2\right)"),
    ],
)
def test_a_formula_has_one_text_for_value_and_print(formula, value, latex):
    assert evaluate(formula, {"a": 3, "b": 5}) == value
    assert typeset(formula, {}) == latex


def test_symbols_are_set_in_their_own_letters():
    assert typeset("n * kv", {"kv": "H_{kv}"}) == r"n\,H_{kv}"
    assert names_in("b * ceil(a / b) + max(c, 1)") == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("formula", "shown"),
    [
        ("5 * a * b + b * a + c + a * b", "7 * a * b + c"),
        ("d + 4 * d + t - d", "4 * d + t"),
        ("a * b + c - b * a", "c"),
        ("2 * (a + b) + (a + b) * 3 + a", "5 * (a + b) + a"),
        ("a - (b - 2 * a)", "3 * a - b"),
        ("1 * d + 2 * d + a / 2 + 3 * a", "3 * d + a / 2 + 3 * a"),
        ("a * b * (c + 1) + a", "a * b * (c + 1) + a"),
        ("a - b + 2 * b - 3 * a", "a - b + 2 * b - 3 * a"),  # would open with a minus
    ],
)
def test_summands_that_differ_in_their_number_alone_are_added_up(formula, shown):
    assert collected(formula) == shown


def formulas(signs):
    return st.recursive(
        st.sampled_from(["a", "b", "c", "d", "1", "2", "7"]),
        lambda part: st.builds("({} {} {})".format, part, st.sampled_from(signs), part),
        max_leaves=24,
    )


@pytest.mark.exhaustive
@given(formulas("+*-"))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_a_collected_formula_has_the_same_value(formula):
    values = {"a": 3, "b": 5, "c": 11, "d": 101}
    assert evaluate(collected(formula), values) == evaluate(formula, values)


@pytest.mark.exhaustive
@given(formulas("+*"))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_an_equation_on_several_lines_is_the_one_on_one_line(formula):
    latex = {name: rf"V_{{{name * 5}}}" for name in "abcd"}
    text = equation("y", formula, latex)
    joined = re.sub(r" \\\\\n& \{\}", " ", text)
    joined = joined.removeprefix("\\begin{aligned}\n").removesuffix("\n\\end{aligned}")
    assert joined.replace("={}&", "=") == f"y = {typeset(collected(formula), latex)}"


def test_a_long_sum_goes_on_in_lines_about_as_long():
    terms = [f"a{i} * b{i} * c{i}" for i in range(30)]
    opening, *lines, closing = equation("y", " + ".join(terms), {}).splitlines()
    assert (opening, closing) == (r"\begin{aligned}", r"\end{aligned}")
    assert len(lines) > 2
    assert all(line.startswith("y ={}& " if line is lines[0] else "& {}+ ") for line in lines)
    assert max(map(len, lines)) - min(map(len, lines)) < 2 * len(terms[-1])
    assert equation("y", "a + b", {}) == "y = a + b"


@pytest.mark.parametrize(
    ("formula", "message"),
    [("a / 2", "not a whole number"), ("a * z", "'z'"), ("a if a else 1", "more than arithmetic")],
)
def test_formula_that_has_no_whole_value_is_refused(formula, message):
    with pytest.raises(KnowledgeError, match=message):
        evaluate(formula, {"a": 3})


# Evidence -----------------------------------------------------------------------------------------


def page_of_a_linear(**changes):
    def linear(x):
        return torch.nn.functional.linear(x, torch.empty(5, 3, device="meta"))

    case = Case(
        "a case",
        {"n": 4},
        lambda: linear,
        lambda: [torch.empty(4, 3, device="meta")],
        closed_form=lambda: linear_kernels(4, 3, 5, FLOAT32),
    )
    page = Page(
        group="",
        subject=linear,
        what="",
        blocks=(),
        layer="",
        parameters={"x": Parameter("", 0)},
        diagram="",
        pseudo_code="",
        mathematics="",
        related=(),
        usage="",
        notes="",
        inputs={"x": "n, 3"},
        output="n, 5",
        symbols={"n": Symbol("n", ""), "m": Symbol("m", "", "3 * n")},
        formulas=Formulas(macs="m * 5", activations="n * 5"),
        cases=(case,),
    )
    return dataclasses.replace(page, **changes)


def test_page_that_agrees_with_its_trace_is_accepted():
    (checked,) = check(page_of_a_linear())
    assert checked.work.macs == 4 * 3 * 5
    assert checked.values["m"] == 12
    assert checked.operators == ("linear",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"formulas": Formulas(macs="m * 4", activations="n * 5")},
            r"macs: m \* 4 is 48, traced 60",
        ),
        ({"formulas": Formulas(macs="m * 5")}, "activations: 0 is 0, traced 20"),
        ({"formulas": Formulas(macs="m * 5", activations="n * 5", params="1")}, "params: 1"),
        ({"formulas": None}, "without formulas"),
        ({"inputs": {"x": "n, 4"}}, r"x is stated as \[n, 4\]"),
        ({"inputs": {"y": "n, 3"}}, "'y' was not given, but x"),
        ({"output": "n, 6"}, "the output is stated"),
        ({"parameters": {}}, r"describes \[\]; right: \['x'\]"),
        (
            {"parameters": {"y": Parameter("", 1), "x": Parameter("", 1)}},
            r"describes \['y', 'x'\]; right: \['x'\]",
        ),
        ({"symbols": {"m": Symbol("m", "")}}, "'m' has no value"),
        ({"references": ("glue",)}, r"no glue in references\.py"),
    ],
)
def test_page_that_says_something_else_than_its_trace_is_refused(changes, message):
    with pytest.raises(KnowledgeError, match=message):
        check(page_of_a_linear(**changes))


(KERNEL,) = linear_kernels(4, 3, 5, FLOAT32)


@pytest.mark.parametrize(
    ("closed_form", "message"),
    [
        ((), "says 0 times Kernel.*'linear'.*, the trace 1"),
        ((KERNEL, KERNEL), "says 2 times Kernel.*'linear'.*, the trace 1"),
        ((KERNEL._replace(operator="matmul"),), "says 0 times Kernel.*'linear'.*, the trace 1"),
        ((KERNEL, *linear_kernels(1, 3, 5, FLOAT32)), "says 1 times Kernel.*m=1.*, the trace 0"),
    ],
    ids=["nothing", "twice", "another operator of equal work", "one more"],
)
def test_closed_form_that_disagrees_in_one_record_is_refused(closed_form, message):
    (case,) = page_of_a_linear().cases
    wrong = dataclasses.replace(case, closed_form=lambda: closed_form)
    with pytest.raises(KnowledgeError, match=message):
        check(page_of_a_linear(cases=(wrong,)))


def test_closed_form_may_name_the_modules_that_run_its_kernels():
    (case,) = page_of_a_linear().cases
    by_module = dataclasses.replace(
        case, closed_form=lambda: {"": (), "map": (KERNEL._replace(path="map"),)}
    )
    (checked,) = check(page_of_a_linear(cases=(by_module,)))
    assert checked.kernels == (KERNEL,)


# Architectures ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ocr2():
    return Facts(ARCHITECTURES["deepseek-ocr-2"])


@pytest.mark.exhaustive
def test_alike_modules_are_recorded_once_and_counted_as_often_as_they_run(ocr2):
    page = next(page for page in pages_of(ocr2) if page.name == "Qwen2Decoder2Encoder")
    assert all(case.alike is not None for case in page.cases)
    every = dataclasses.replace(
        page, cases=tuple(dataclasses.replace(case, alike=None) for case in page.cases)
    )
    for once, ran in zip(check(page), check(every), strict=True):
        assert (once.kernels, once.peak_bytes) == (ran.kernels, ran.peak_bytes)


def test_a_formula_of_a_relative_that_is_wrong_is_refused(ocr2):
    page = next(page for page in pages_of(ocr2) if page.name == "Qwen2SdpaAttention")
    causal = page.formulas.macs.replace("T ** 2", "T * (T + 1) / 2")
    wrong = dataclasses.replace(page, formulas=dataclasses.replace(page.formulas, macs=causal))
    with pytest.raises(KnowledgeError, match=r"Qwen2SdpaAttention \(global view\): macs"):
        check(wrong)


@pytest.mark.exhaustive
def test_a_name_that_means_two_modules_is_refused(ocr2, monkeypatch):
    def other(facts):
        page = next(page for page in pages_of(ocr2) if page.name == "Qwen2MLP")
        return [dataclasses.replace(page, subject=type("Block", (torch.nn.Module,), {}))]

    monkeypatch.setattr("dsocr_analyze.knowledge.machinery.chapter.pages_of", lambda facts: (
        other(facts) if facts is ocr2 else
        [page for page in pages_of(facts) if page.name == "Block"]
    ))  # fmt: skip
    with pytest.raises(KnowledgeError, match="Block of DeepSeek-OCR-2 is another module"):
        checked_chapters([Facts(), ocr2])


def test_an_architecture_without_pages_is_refused_by_name(ocr2, monkeypatch):
    monkeypatch.setattr(ocr2, "architecture", dataclasses.replace(DEFAULT, name="new-ocr"))
    with pytest.raises(WorkloadError, match="new-ocr has no pages; deepseek-ocr, deepseek-ocr-2"):
        pages_of(ocr2)


def written_for(folder):
    """Pages in a folder by name, checked to link to one another alone."""
    pages = {name_of(path): path.read_text("utf-8") for path in folder.glob("modules/op-*.md")}
    for text in pages.values():
        assert set(re.findall(r"\]\(op-(\w+)\.md\)", text)) <= pages.keys()
    for name in ("modules/index.md", "module_catalog.md", "module_formulations.md"):
        text = (folder / name).read_text("utf-8")
        assert set(re.findall(r"op-(\w+)\.md", text)) == pages.keys()
    return pages


def run_snippets(pages):
    for name, text in pages.items():
        snippet = blocks(text, "python")[-1]
        exec(compile(snippet, f"{name}: usage", "exec"), {"__name__": "__main__"})


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arch", "sam_params", "without"),
    [
        ("deepseek-ocr-2", "94,979,328", {"VitModel", "DeepseekOCRModel", "LayerNormfp32"}),
        ("unlimited-ocr", "95,569,152", {"Qwen2MLP", "DeepseekOCRModel", "DeepseekV2Model"}),
    ],
)
def test_a_single_architecture_has_all_of_its_pages_with_its_own_figures(
    arch, sam_params, without, tmp_path
):
    assert main(["docs", "--arch", arch, "--output", str(tmp_path)]) == 0
    pages = written_for(tmp_path)
    assert {*OF_RELATIVES[arch], "ImageEncoderViT", "DeepseekV2DecoderLayer"} <= pages.keys()
    assert pages.keys().isdisjoint(without)
    assert f"| {sam_params} |" in pages["ImageEncoderViT"]  # another last convolution
    assert not (tmp_path / "corrections.md").exists()
    # Of every fourth of the modules that it shares, another architecture's run in tests above.
    shared = sorted(pages.keys() - OF_RELATIVES[arch])[::4]
    run_snippets({name: pages[name] for name in (*OF_RELATIVES[arch], *shared)})


# Other configurations -----------------------------------------------------------------------------

CONFIGS = {
    "latent attention, grouped sigmoid router": {
        "use_mla": True,
        "kv_lora_rank": 64,
        "q_lora_rank": None,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 24,
        "num_hidden_layers": 3,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "rope_scaling": {"type": "yarn", "factor": 2.0, "mscale_all_dim": 1},
    },
    "grouped queries, biases, another projector": {
        "num_key_value_heads": 2,
        "attention_bias": True,
        "n_shared_experts": None,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "num_hidden_layers": 3,
        "hidden_act": "gelu",
        "projector_config": {
            "projector_type": "mlp_gelu",
            "input_dim": 2048,
            "n_embed": 1280,
            "depth": 2,
        },
    },
    "dense decoder, tied embeddings": {
        "tie_word_embeddings": True,
        "n_routed_experts": None,
        "num_hidden_layers": 2,
    },
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_documents_of_any_config_are_written_and_checked(changes, tmp_path, monkeypatch):
    config = {**read_config(DEFAULT.reference / "config.json"), **changes}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    folder = tmp_path / "new" / "docs"
    arguments = ["docs", "--config", str(tmp_path / "config.json"), "--output", str(folder)]
    assert main(arguments) == 0
    assert {path.name for path in (folder / "modules").glob("op-*.md")} == {
        f"op-{name}.md" for name in OF_DEFAULT
    }
    layers = changes["num_hidden_layers"]
    text = (folder / "modules" / "op-DeepseekOCRConfig.md").read_text("utf-8")
    assert re.search(rf"^\| `num_hidden_layers` .* \| `{layers}` \|$", text, re.MULTILINE)
    monkeypatch.chdir(tmp_path)  # where the snippets find config.json
    for page in (folder / "modules").glob("op-*.md"):
        snippet = blocks(page.read_text("utf-8"), "python")[-1]
        exec(compile(snippet, page.name, "exec"), {"__name__": "__main__"})


def with_changes(config, changes):
    """A config with other values, those of its sections merged."""
    return {
        key: with_changes(config.get(key) or {}, value) if isinstance(value, dict) else value
        for key, value in {**config, **changes}.items()
        if key in changes
    } | {key: value for key, value in config.items() if key not in changes}


LATENT = {
    "use_mla": True,
    "kv_lora_rank": 64,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    "num_hidden_layers": 3,
}


def encoder(**settings):
    return {"vision_config": {"width": {"qwen2-0-5b": settings}}}


RELATIVE_CONFIGS = {
    "one shared key head, latent attention behind": (
        "deepseek-ocr-2",
        {**encoder(layers=2, key_value_heads=1), **LATENT},
        {"Qwen2Decoder2Encoder": "`num_key_value_heads` | Key and value heads. |  | `1` |"},
    ),
    "a key head for each query head, dense decoder": (
        "deepseek-ocr-2",
        {
            **encoder(layers=3, heads=7, key_value_heads=7, intermediate_size=100),
            "n_routed_experts": None,
            "num_hidden_layers": 2,
        },
        {"Qwen2MLP": "896 to 100"},
    ),
    "no window": (
        "unlimited-ocr",
        {"sliding_window_size": None, "sliding_window": None, "num_hidden_layers": 3},
        {
            "UnlimitedOCRModel": "no window: every decode step attends to all tokens",
            "SlidingWindowLlamaAttention": "has no window, so the figures on this page are those",
        },
    ),
    "a window of two, grouped queries": (
        "unlimited-ocr",
        {"sliding_window_size": 2, "num_key_value_heads": 2, "num_hidden_layers": 3},
        {"SlidingWindowLlamaAttention": "| 908 | 909 | 910 | 910 |"},
    ),
    "latent attention, which knows no window": (
        "unlimited-ocr",
        LATENT,
        {"DeepseekV2DecoderLayer": "`DeepseekV2Attention`, latent and eager"},
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arch", "changes", "said"), RELATIVE_CONFIGS.values(), ids=RELATIVE_CONFIGS
)
def test_documents_of_any_config_of_a_relative_are_written_and_checked(
    arch, changes, said, tmp_path, monkeypatch
):
    published = read_config(ARCHITECTURES[arch].reference / "config.json")
    config = with_changes(published, changes)
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    arguments = ["docs", "--config", str(tmp_path / "config.json"), "--output", str(tmp_path)]
    assert main(arguments) == 0
    pages = written_for(tmp_path)
    assert OF_RELATIVES[arch] <= pages.keys()
    for name, text in said.items():
        assert text in pages[name]
    monkeypatch.chdir(tmp_path)  # where the snippets find config.json
    run_snippets({name: text for name, text in pages.items() if name in OF_RELATIVES[arch]})


def test_arch_and_config_that_contradict_are_refused(tmp_path, capsys):
    config = ARCHITECTURES["unlimited-ocr"].reference / "config.json"
    arguments = ["docs", "--arch", "deepseek-ocr-2", "--config", str(config)]
    assert main([*arguments, "--output", str(tmp_path)]) == 2
    assert "--arch deepseek-ocr-2 contradicts" in capsys.readouterr().err
    assert main(["docs", "--arch", "new-ocr", "--output", str(tmp_path)]) == 2
    assert "'new-ocr' is unknown" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_one_line(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}", "utf-8")
    assert main(["docs", "--config", str(tmp_path / "config.json"), "--output", str(tmp_path)]) == 2
    assert "config.json' lacks" in capsys.readouterr().err
    assert main(["docs", "--config", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
    assert list(tmp_path.glob("modul*")) == []


def test_folder_that_cannot_be_written_is_one_line_and_exit_code_74(tmp_path, capsys):
    (tmp_path / "file").write_text("", "utf-8")
    assert main(["docs", "--output", str(tmp_path / "file")]) == 74
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert repr(str(tmp_path / "file")) in shown.err


def test_references_are_papers_with_a_place():
    for reference in REFERENCES.values():
        assert re.fullmatch(r"(\d{4}\.\d{5})?", reference.arxiv)
        assert reference.as_markdown().startswith(f"{reference.authors} ({reference.year}): ")


def test_definition_leaves_bodies_out_and_keeps_defaults():
    def small(x: int = 3, *rest: str) -> None: ...

    assert definition_of(small) == "def small(x: int = 3, *rest: str) -> None: ..."
