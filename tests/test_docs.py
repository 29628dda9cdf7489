"""The documentation is Markdown with computed parts, and what these say is true."""

import ast
import dataclasses
import itertools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from sampling import every, sampled

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.cli import main
from dsocr_analyze.documents.library import Library, definition_of, folded_paths
from dsocr_analyze.documents.markdown import SOURCES, Sources, filled, rendered, rows_of
from dsocr_analyze.errors import DocumentError
from dsocr_analyze.model.directory import read_config
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.tape.formula import wrapped

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "modules").glob("op-*.md"))

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


@pytest.fixture(scope="module")
def library():
    return Library(Sources())


def pages_of(architecture):
    """The modules of an architecture: its own, and those that it shares."""
    return Library(Sources(), ARCHITECTURES[architecture]).owners.keys()


OF_DEFAULT = {*pages_of(DEFAULT.name)}
OF_RELATIVES = {
    name: {*pages_of(name)}.difference(*(pages_of(each) for each in ARCHITECTURES if each != name))
    for name in ARCHITECTURES
    if name != DEFAULT.name
}
"""What only a relative has."""

ALL = {*itertools.chain(*map(pages_of, ARCHITECTURES))}


def visible(path):
    """A document as it is read."""
    return re.sub(r"<!--.*?-->", "", path.read_text("utf-8"))


def name_of(page):
    return page.stem.removeprefix("op-")


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# The committed documents --------------------------------------------------------------------------


def test_no_committed_document_is_stale(capsys):
    assert main(["docs", "--check"]) == 0, capsys.readouterr().out
    assert re.fullmatch(r"0 of \d\d pages are stale\n", capsys.readouterr().out)


SECTIONS = (
    "What It Is",
    "Definition",
    "Constructor Information",
    "Module Internals",
    "Key Pseudo Code",
    "FLOP Count and Memory Usage Impact",
    "Related Modules",
    "Usage Pattern",
)
"""Headings that every page has, in this order; references follow where there are."""


@pytest.mark.parametrize("architecture", PLANNED)
def test_every_planned_module_has_a_page(architecture):
    assert set(PLANNED[architecture].split()) <= pages_of(architecture)
    assert {name_of(page) for page in PAGES} == ALL


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=lambda each: each.name)
def test_every_class_of_a_model_that_runs_has_a_page(architecture):
    model = DeepSeekOCRSession.from_local(architecture.reference).model
    classes = {type(module) for module in model.modules()}
    own = {each.__name__ for each in classes if not each.__module__.startswith("torch.")}
    assert len(own) > 15
    missing = own - pages_of(architecture.name) - WITHOUT_A_PAGE
    assert not missing, "write a page of each, and list it in modules/index.md"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_has_every_section_in_order_and_none_is_empty(page):
    text = page.read_text("utf-8")
    sections = re.findall(r"^## (.+)\n+([^\n]*)", visible(page), re.MULTILINE)
    headings = [heading for heading, first in sections if first]
    assert tuple(heading for heading in headings if heading != "References") == SECTIONS
    assert re.findall(r"^### (.+)$", text, re.MULTILINE) == ["FLOPs", "Memory Usage"]
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


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_nothing_that_is_fenced_scrolls_sideways(page):
    text = page.read_text("utf-8")
    fenced = itertools.chain(*(blocks(text, language) for language in ("text", "python")))
    assert max((len(line) for block in fenced for line in block.splitlines()), default=0) <= 100


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
    assert found, f"nothing on {title}"
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
    assert "DeepSeek-OCR Module Documentation Progress" in preface
    assert "not in its repository" in preface
    for row in rows.splitlines()[1:]:
        linked, quote, *_ = row.strip("| ").split(" | ")
        (target,) = re.findall(r"\]\((modules/op-\w+\.md)\)", linked)
        assert quote.startswith('"')
        assert quote.strip('"') not in (DOCS / target).read_text("utf-8")
    assert "corrections.md" in (DOCS / "index.md").read_text("utf-8")


def test_figures_of_the_facts_are_on_their_pages():
    # Measured on the vendor's own model, outside this program.
    def text_of(name):
        return visible(DOCS / "modules" / f"op-{name}.md")

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
        return visible(DOCS / "modules" / f"op-{name}.md")

    assert "3,389,119,360 parameters" in text_of("DeepseekOCR2ForCausalLM")
    assert "| 358,256,512 | 716,513,024 |" in text_of("Qwen2Decoder2Encoder")
    assert "tables of queries have 400 rows" in text_of("Qwen2Decoder2Encoder")  # 144 + 256
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
    assert "| 908 / 909 / 1,036 / 1,036 |" in window  # K = S + min(i, 128), S = 903 + 5
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
    assert len(formulas) > 100
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

COMPUTED = re.compile(
    r"^<!-- begin (?!shapes|parameters).*?^<!-- end [\w-]+ -->$"
    r"|<!-- =.*?<!-- / -->"
    r"|^<!-- numbers .*?^```\w*\n.*?^```$"
    r"|^<!-- cases .*?-->$",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"(?<![\w.,])(?:\d{2,}|\d{1,3}(?:,\d{3})+)(?![\w.])")
CONSTANTS = {"10", "13", "16", "17", "64", "255"}
"""Of the code (64 pixels for each token), of formulas, and inputs of snippets."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_number_of_the_model_is_written_by_hand(page):
    text = COMPUTED.sub("", page.read_text("utf-8"))
    for name, row in re.findall(r"^\| `([\w.]+)` (\|.*)$", text, re.MULTILINE):
        _, meaning, _, *value = row.split("|")  # the default is computed, and values of keys
        by_hand = meaning if name.startswith("config.") else f"{meaning} {value}"
        text = text.replace(row, by_hand)
    text = re.sub(r"\[\d[\d, ]*\]", "", text)  # shapes of cases
    assert set(NUMBER.findall(text)) <= CONSTANTS


# Markers ------------------------------------------------------------------------------------------


NAMES = {"d": 1280, "e": {"f": 7}}
TEMPLATES = {"list": "{{ arguments }} {{ rows | length }} {{ d }}"}


PAGE = """# A page

A token has <!-- =d -->9<!-- / --> features, <!-- =d * e.f -->8,960<!-- / --> in all.

<!-- begin list two words -->

| a |
| --- |
| b |

<!-- end list -->

<!-- numbers d, 4 -->
```text
[9, 4] in v2
```
"""


def test_every_kind_of_marker_is_filled_and_named_if_it_was_stale():
    text, changed = filled(PAGE, NAMES, TEMPLATES)
    assert "has <!-- =d -->1,280<!-- / --> features, <!-- =d * e.f -->8,960<!-- / --> in" in text
    assert "<!-- begin list two words -->\n\ntwo words 1 1,280\n\n<!-- end list -->" in text
    assert "<!-- numbers d, 4 -->\n```text\n[1280, 4] in v2\n```" in text
    assert changed == ["<!-- =d -->", "<!-- numbers d, 4 -->", "<!-- begin list two words -->"]
    again = filled(text.replace("[1280, 4]", "[1280, 5]"), NAMES, {"list": "two words 1 1,280"})
    assert again == (text, ["<!-- numbers d, 4 -->"])


def test_code_of_the_published_model_stays_for_another_config():
    code = "<!-- numbers d -->\n```python\nwidth = 7\n```\n"
    assert filled(code, NAMES, {}).text == code.replace("7", "1280")
    assert filled(code, NAMES, {}, code_stays=True) == (code, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- begin figures -->\n", "unfinished marker '<!-- begin figures -->'"),
        ("<!-- begin list -->\n<!-- end lists -->\n", "unfinished marker '<!-- begin list -->'"),
        ("<!-- end list -->\n", "unknown or unfinished"),
        ("a <!-- =d -->9 b\n", "'<!-- =d -->'"),
        ("<!-- TODO: write -->\n", "'<!-- TODO: write -->'"),
        ("<!-- begin rows -->\n<!-- end rows -->\n", "no block 'rows'"),
        ("<!-- =z -->9<!-- / -->\n", "{{ z }} has no value: 'z' is undefined"),
        ("<!-- =d.f -->9<!-- / -->\n", "{{ d.f }} has no value"),
        ("<!-- =d.__class__ -->9<!-- / -->\n", "{{ d.__class__ }} has no value"),
        ("<!-- =d.__class__.__mro__ -->9<!-- / -->\n", "unsafe"),
        ("<!-- =open('x') -->9<!-- / -->\n", "has no value"),
        ("<!-- =d +  -->9<!-- / -->\n", "has no value"),
        ("<!-- =d / 0 -->9<!-- / -->\n", "has no value"),
        ("<!-- numbers d -->\n```text\n1 and 2\n```\n", "names 1 numbers, but there are 2"),
    ],
)
def test_marker_that_cannot_be_filled_is_refused(text, message):
    with pytest.raises(DocumentError, match=re.escape(message)):
        filled(text, NAMES, TEMPLATES)


def test_a_template_shows_figures_as_pages_do():
    text = "{% for n in sizes %}\n| {{ n }} | {{ plain(n) }} | {{ bytes(n) }} |\n{% endfor %}\n"
    assert rendered(text, {"sizes": [7, 1280]}) == "| 7 | 7 | 7 B |\n| 1,280 | 1280 | 1.280 kB |"
    with pytest.raises(DocumentError, match="'d' is undefined"):
        rendered("{{ d }}", {})
    assert rows_of("| a | b |\n| --- | --- |\n| `x &#124; y` | 2 |\n") == [["`x | y`", "2"]]


def test_layers_are_named_together():
    paths = [f"layers.{i}.mlp" for i in (0, 2, 3, 4)]
    assert folded_paths(["", "head", *paths]) == ["", "head", "layers.[0, 2, 3, 4].mlp"]
    pairs = [f"layers.{i}.experts.{j}" for i in (1, 2) for j in range(64)]
    assert folded_paths(pairs) == ["layers.[1-2].experts.[0-63]"]


def test_a_long_formula_goes_on_in_lines_below_its_beginning():
    lines = wrapped("MACs", " + ".join(f"{n} a b^2 c" for n in range(20))).splitlines()
    assert lines[0].startswith("MACs = 0 a b^2 c + 1")
    assert all(line.startswith("       ") for line in lines[1:])
    assert max(map(len, lines)) <= 88
    assert all(re.match(r"[+-] \d+ a b\^2 c", line.strip()) for line in lines[1:])


# Two witnesses ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def case(library):
    return library.page("DeepseekV2RMSNorm").cases[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda traced: {"kernels": traced.kernels[1:]}, "_to_copy are"),
        (lambda traced: {"kernels": (*traced.kernels, traced.kernels[1])}, "of pow are"),
        (lambda traced: {"peak_bytes": traced.peak_bytes + 1}, "peak bytes are"),
        (lambda traced: {"cache_bytes": 2}, "cache bytes are 0 on the tape, 2 in the trace"),
    ],
)
def test_a_figure_on_which_the_witnesses_differ_is_refused(case, change, message):
    traced = case.traced._replace(**change(case.traced))
    with pytest.raises(DocumentError, match=rf"^A page \(prefill.*\): .*{message}"):
        dataclasses.replace(case, traced=traced).check("A page")
    case.check("A page")


def test_parameters_are_those_of_the_models_own_modules(case):
    with pytest.raises(DocumentError, match="parameters are 1,280 on the tape, 1,281 in the trace"):
        dataclasses.replace(case, params=case.params + 1).check("A page")


def test_a_page_with_a_wrong_forward_is_not_written(monkeypatch, capsys):
    for name, each in ARCHITECTURES.items():  # what others remember stays right
        monkeypatch.setitem(ARCHITECTURES, name, type(each)())
    monkeypatch.setattr("dsocr_analyze.documents.seconds.DEFAULT", ARCHITECTURES[DEFAULT.name])
    monkeypatch.setattr(
        "dsocr_analyze.architectures.ocr_family.clip.quick_gelu", lambda t, x: t.map("mul", x)
    )
    assert main(["docs", "--check"]) == 2
    message = r"modules/op-\w+\.md: \w+ \(.*\): vector_flops of (?:mul|sigmoid) are [\d,]+ on"
    assert re.search(message, capsys.readouterr().err)


# In place -----------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of the documents that the command takes for those of the checkout."""
    folder = tmp_path / "docs"
    shutil.copytree(SOURCES, folder)
    monkeypatch.setattr(Sources.__init__, "__defaults__", (folder,))
    return folder


def altered(path, old, new):
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


def test_what_is_stale_is_named_and_then_filled_in_place(checkout, capsys):
    whole = {path: path.read_text("utf-8") for path in checkout.rglob("*.md")}
    (checkout / "includes" / ".flops.md.swp").write_text("left by an editor")
    page = checkout / "modules" / "op-MoEGate.md"
    altered(page, "MACs = B T E d", "MACs = B T E")
    altered(checkout / "module_catalog.md", "95,569,152", "95,569,153")
    assert main(["docs", "--check"]) == 1
    shown_lines = capsys.readouterr().out.splitlines()
    assert "modules/op-MoEGate.md: <!-- begin flops --> is stale" in shown_lines
    assert "module_catalog.md: <!-- begin stages deepseek-ocr --> is stale" in shown_lines
    assert shown_lines[-1].startswith("2 of ")
    assert main(["docs"]) == 0
    assert capsys.readouterr().out.startswith("wrote 2 of ")
    assert {path: path.read_text("utf-8") for path in checkout.rglob("*.md")} == whole


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("| `layer_idx` |", "| `layer` |", r"op-Qwen2SdpaAttention.md: describes the parameters"),
        (
            "`[N, 2 * n, d]`",
            "`[N, n, d]`",
            r"`hidden_states` is stated as `\[N, n, d\]`, it is \(1, 512",
        ),
        ("<!-- end flops -->", "", "unknown or unfinished marker '<!-- begin flops -->'"),
    ],
)
def test_a_page_that_says_something_else_than_the_model_is_refused(
    checkout, old, new, message, capsys
):
    altered(checkout / "modules" / "op-Qwen2SdpaAttention.md", old, new)
    assert main(["docs", "--check"]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_document_of_more_than_a_mebibyte_is_refused(checkout, capsys):
    (checkout / "reading.md").write_text("x" * (2**20 + 1), "utf-8")
    assert main(["docs", "--check"]) == 2
    assert "reading.md': it has more than 1 MiB" in capsys.readouterr().err


def test_a_page_that_the_index_does_not_list_is_refused(checkout, capsys):
    (checkout / "modules" / "op-Another.md").write_text("# Another\n", "utf-8")
    assert main(["docs", "--check"]) == 2
    assert (
        "modules/index.md and the pages differ in modules/op-Another.md" in capsys.readouterr().err
    )


# Architectures and other configurations -----------------------------------------------------------


def written_for(folder):
    """Pages in a folder by name, checked to link to one another alone."""
    pages = {name_of(path): visible(path) for path in folder.glob("modules/op-*.md")}
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
    has_experts = changes.get("n_routed_experts", 64)
    experts = visible(folder / "modules" / "op-DeepseekV2MoE.md")
    assert ("The given config has no `DeepseekV2MoE`: figures of" in experts) == (not has_experts)
    layers = changes["num_hidden_layers"]
    text = visible(folder / "modules" / "op-DeepseekOCRConfig.md")
    assert re.search(rf"^\| `num_hidden_layers` .* \| {layers} \|$", text, re.MULTILINE)
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
        {"Qwen2Decoder2Encoder": "`num_key_value_heads` | Key and value heads. |  | 1 |"},
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
            "UnlimitedOCRModel": "the decoder: 3 layers",
            "SlidingWindowLlamaAttention": "of the config: None; without one, every step appends",
        },
    ),
    "a window of two, grouped queries": (
        "unlimited-ocr",
        {"sliding_window_size": 2, "num_key_value_heads": 2, "num_hidden_layers": 3},
        {"SlidingWindowLlamaAttention": "| 908 / 909 / 910 / 910 |"},
    ),
    "latent attention, which knows no window": (
        "unlimited-ocr",
        LATENT,
        {"DeepseekV2DecoderLayer": "With `use_mla` (here: True) it is latent"},
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
    assert main(["docs", "--config", str(tmp_path / "none.json"), "--output", str(tmp_path)]) == 2
    assert "none.json" in capsys.readouterr().err
    assert list(tmp_path.glob("modul*")) == []


def test_folder_that_cannot_be_written_is_one_line_and_exit_code_74(tmp_path, capsys):
    (tmp_path / "file").write_text("", "utf-8")
    assert main(["docs", "--output", str(tmp_path / "file")]) == 74
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert repr(str(tmp_path / "file")) in shown.err


def test_definition_leaves_bodies_out_and_keeps_defaults():
    def small(x: int = 3, *rest: str) -> None: ...

    assert definition_of(small) == "def small(x: int = 3, *rest: str) -> None: ..."
