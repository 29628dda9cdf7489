"""The documentation is Markdown with computed parts, and what these say is true."""

import ast
import dataclasses
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest
from relatives import FAMILY
from sampling import every, sampled

from dsocr_analyze import DeepSeekOCRSession, cli, errors
from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.documents.library import Library, ModulePage
from dsocr_analyze.documents.markdown import SOURCES, Filled, Sources, filled, page_file
from dsocr_analyze.documents.model import Case
from dsocr_analyze.model.directory import read_config

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

PAGES_OF = {name: {*Sources().owners([name])} for name in FAMILY}
"""The modules of an architecture: its own, and those that it shares."""

ALL = set().union(*PAGES_OF.values())
OWN = {
    name: pages.difference(*(PAGES_OF[each] for each in PAGES_OF if each != name))
    for name, pages in PAGES_OF.items()
} | {DEFAULT.name: PAGES_OF[DEFAULT.name]}
"""What only a relative has, and all of the default's."""


@pytest.fixture(scope="module")
def library():
    return Library(Sources())


def visible(path):
    """A document as it is read."""
    return re.sub(r"<!--.*?-->", "", path.read_text("utf-8"))


def name_of(page):
    return page.stem.removeprefix("op-")


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run_snippets(pages):
    """Runs the usage snippets of pages by name."""
    for name, text in pages.items():
        code = compile(blocks(text, "python")[-1], f"{name}: usage", "exec")
        exec(code, {"__name__": "__main__"})


# The committed documents --------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of the documents, which the command takes for those of the checkout."""
    folder = Path(shutil.copytree(SOURCES, tmp_path / "docs"))
    monkeypatch.setattr(Sources.__init__, "__defaults__", (folder,))
    return folder


def test_no_page_of_the_default_architecture_is_stale(library):
    for name in PAGES_OF[DEFAULT.name]:
        path = page_file(name)
        text = library.sources.texts[path]
        assert library.filled(path, text, DEFAULT.name) == (text, []), "dsocr-analyze docs"


@pytest.mark.exhaustive
def test_no_committed_document_is_stale_and_one_that_is_is_filled_in_place(checkout, capsys):
    whole = {path: path.read_text("utf-8") for path in checkout.rglob("*.md")}
    (checkout / "includes" / ".flops.md.swp").write_text("left by an editor")
    for name, old, new in (
        ("modules/op-MoEGate.md", "MACs = B T E d", "MACs = B T E"),
        ("module_catalog.md", " 94,979,328 ", " 9 "),
    ):
        assert old in whole[checkout / name]
        (checkout / name).write_text(whole[checkout / name].replace(old, new, 1), "utf-8")
    assert cli.main(["docs"]) == 0
    changed = [path for path, text in whole.items() if path.read_text("utf-8") != text]
    assert changed == [], "fill them: dsocr-analyze docs"
    assert re.fullmatch(r"wrote 2 of \d\d pages\n", capsys.readouterr().out)


def test_what_is_stale_is_named(capsys, monkeypatch):
    for changed, code, said in (
        (["<!-- =d -->"], 1, "a.md: <!-- =d --> is stale\n1 of 2 pages are stale\n"),
        ([], 0, "0 of 2 pages are stale\n"),
    ):
        pages = {"a.md": Filled("", changed), "b.md": Filled("", [])}
        filled = "dsocr_analyze.documents.library.filled_documents"
        monkeypatch.setattr(filled, lambda *_, pages=pages: pages)
        assert cli.main(["docs", "--check"]) == code
        assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("reading.md", "x" * (2**20 + 1), "reading.md': it has more than 1 MiB"),
        ("modules/op-Another.md", "# Another\n",
         "modules/index.md and the pages differ in modules/op-Another.md"),
    ],
)  # fmt: skip
def test_documents_that_cannot_be_those_of_a_checkout_are_refused(
    checkout, capsys, name, text, message
):
    (checkout / name).write_text(text, "utf-8")
    assert cli.main(["docs", "--check"]) == 2
    assert message in capsys.readouterr().err


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


def test_every_planned_module_has_a_page():
    for architecture, names in PLANNED.items():
        assert set(names.split()) <= PAGES_OF[architecture]
    assert {name_of(page) for page in PAGES} == ALL


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", FAMILY.values(), ids=lambda each: each.name)
def test_every_class_of_a_model_that_runs_has_a_page(architecture):
    model = DeepSeekOCRSession.from_local(architecture.reference).model
    classes = {type(module) for module in model.modules()}
    own = {each.__name__ for each in classes if not each.__module__.startswith("torch.")}
    assert len(own) > 15
    missing = own - PAGES_OF[architecture.name] - WITHOUT_A_PAGE
    assert not missing, "write a page of each, and list it in modules/index.md"


def test_pages_are_whole_and_nothing_on_them_is_written_by_hand_that_could_be_computed():
    for page in PAGES:
        text = page.read_text("utf-8")
        sections = re.findall(r"^## (.+)\n+([^\n]*)", visible(page), re.MULTILINE)
        headings = [heading for heading, first in sections if first]
        assert (*(each for each in headings if each != "References"),) == SECTIONS, page
        assert re.findall(r"^### (.+)$", text, re.MULTILINE) == ["FLOPs", "Memory Usage"], page
        assert len(blocks(text, "mermaid")) == 1, page
        definition, _usage = blocks(text, "python")
        ast.parse(definition, page.name)
        fenced = "".join([*blocks(text, "text"), *blocks(text, "python")])
        assert max(map(len, fenced.splitlines())) <= 100, page  # it doesn't scroll sideways
        links = re.findall(r"\]\((op-[^)]+)\)", text)
        assert links, page
        assert all((page.parent / link).is_file() for link in links), page
        text = COMPUTED.sub("", text)
        for name, row in re.findall(r"^\| `([\w.]+)` (\|.*)$", text, re.MULTILINE):
            _, meaning, _, *value = row.split("|")  # the default is computed, and values of keys
            by_hand = meaning if name.startswith("config.") else f"{meaning} {value}"
            text = text.replace(row, by_hand)
        text = re.sub(r"\[\d[\d, ]*\]", "", text)  # shapes of cases
        assert set(NUMBER.findall(text)) <= CONSTANTS, page


@sampled("page", PAGES, every(20), ids=name_of)
def test_usage_snippet_runs(page, capsys):
    text = page.read_text("utf-8")
    assert re.search("assert|print|streamer", blocks(text, "python")[-1])
    run_snippets({page.name: text})


def section(text, title):
    """What stands under a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, f"nothing on {title}"
    return found[1]


def test_lists_link_to_every_page_and_tell_what_a_relative_has_from_what_it_shares():
    for name in ("modules/index.md", "module_catalog.md", "module_formulations.md"):
        text = (DOCS / name).read_text("utf-8")
        assert {*re.findall(r"op-(\w+)\.md", text)} == ALL
        for architecture in OWN.keys() - {DEFAULT.name} if "formulations" not in name else ():
            part = section(text, ARCHITECTURES[architecture].title)
            prose, rows = re.sub(r"^\|.*", "", part, flags=re.M), re.findall(r"^\|.*", part, re.M)
            assert {*re.findall(r"op-(\w+)\.md", "".join(rows))} == OWN[architecture]
            shared = {*re.findall(r"op-(\w+)\.md", prose)}
            assert {"ImageEncoderViT", "MlpProjector", "DeepseekV2DecoderLayer"} <= shared
            assert shared < PAGES_OF[DEFAULT.name]
            assert ("VitModel" in shared) == (architecture == "unlimited-ocr")


# Measured on the vendors' own models, outside this program.
FACTS = {
    "DeepseekOCRForCausalLM": ["3,336,106,240"],
    "ImageEncoderViT": ["95,569,152", "488,454,586,368"],  # MACs, 976.9 GFLOPs
    "VitModel": ["303,177,728", "| 161,7"],  # GFLOPs
    "MlpProjector": ["2,622,720"],
    "DeepseekV2Model": ["61,440 bytes per token"],
    "CLIPVisionEmbeddings": ["602,112"],
    "DeepseekV2ForCausalLM": ["129,280"],
    "DeepseekOCR2ForCausalLM": ["3,389,119,360 parameters"],
    "Qwen2Decoder2Encoder": [
        "| 358,256,512 | 716,513,024 |", "tables of queries have 400 rows",  # 144 + 256
    ],
    "CustomQwen2ModelInner": [
        f"| {24 * 14_912_384 + 896:,} |",  # 24 layers and a norm
        # A view of 1024 pixels has n = 256: 1 + 2 n writes, and n^2 + n^2 + n (n + 1) / 2 zeros.
        "takes 513 index writes", f"set {2 * 256**2 + 256 * 257 // 2:,} of {512**2:,} entries",
    ],
    "DeepseekOCR2Model": ["1,280 parameters are the separator"],
    "UnlimitedOCRForCausalLM": ["3,336,106,240 parameters"],
    "SlidingWindowLlamaAttention": [
        "| 908 / 909 / 1,036 / 1,036 |",  # K = S + min(i, 128), S = 903 + 5
        f"{(908 + 128) * 61_440:,} bytes",
    ],
}  # fmt: skip


def test_figures_of_the_facts_are_on_their_pages():
    for name, facts in FACTS.items():
        text = visible(DOCS / "modules" / f"op-{name}.md")
        assert [fact for fact in facts if fact not in text] == [], name
    catalogue = (DOCS / "module_catalog.md").read_text("utf-8")
    for title, row in (
        ("DeepSeek-OCR-2", "sam | `model.sam_model` | 94,979,328"),
        ("DeepSeek-OCR-2", "encoder | `model.qwen2_model` | 358,256,512"),
        ("DeepSeek-OCR-2", "projector | `model.projector` | 1,148,160"),
        ("Unlimited-OCR", "projector | `model.projector` | 2,622,720"),
    ):
        assert f"| {row} |" in section(catalogue, title)


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


UNFILLABLE = {
    "<!-- begin figures -->\n": "unfinished marker '<!-- begin figures -->'",
    "<!-- begin list -->\n<!-- end lists -->\n": "unfinished marker '<!-- begin list -->'",
    "<!-- end list -->\n": "unknown or unfinished",
    "a <!-- =d -->9 b\n": "'<!-- =d -->'",
    "<!-- TODO: write -->\n": "'<!-- TODO: write -->'",
    "<!-- begin rows -->\n<!-- end rows -->\n": "no block 'rows'",
    "<!-- =z -->9<!-- / -->\n": "{{ z }} has no value: 'z' is undefined",
    "<!-- =d.f -->9<!-- / -->\n": "{{ d.f }} has no value",
    "<!-- =d.__class__ -->9<!-- / -->\n": "{{ d.__class__ }} has no value",
    "<!-- =d.__class__.__mro__ -->9<!-- / -->\n": "unsafe",
    "<!-- =open('x') -->9<!-- / -->\n": "has no value",
    "<!-- =d +  -->9<!-- / -->\n": "has no value",
    "<!-- =d / 0 -->9<!-- / -->\n": "has no value",
    "<!-- numbers d -->\n```text\n1 and 2\n```\n": "names 1 numbers, but there are 2",
}


def test_marker_that_cannot_be_filled_is_refused():
    for text, message in UNFILLABLE.items():
        with pytest.raises(errors.DocumentError, match=re.escape(message)):
            filled(text, NAMES, TEMPLATES)


# Two witnesses ------------------------------------------------------------------------------------


def test_a_figure_on_which_the_witnesses_differ_is_refused(library):
    case = library.page("DeepseekV2RMSNorm").cases[0]
    case.check("A page")
    kernels, peak = case.traced.kernels, case.traced.peak_bytes
    for change, message in (
        ({"kernels": kernels[1:]}, "_to_copy are"),
        ({"kernels": (*kernels, kernels[1])}, "of pow are"),
        ({"peak_bytes": peak + 1}, "peak bytes are"),
        ({"cache_bytes": 2}, "cache bytes are 0 on the tape, 2 in the trace"),
        # Those of the model's own modules.
        ({"params": 1281}, "parameters are 1,280 on the tape, 1,281 in the trace"),
    ):
        params = change.pop("params", case.params)
        wrong = dataclasses.replace(case, traced=case.traced._replace(**change), params=params)
        with pytest.raises(errors.DocumentError, match=rf"^A page \(prefill.*\): .*{message}"):
            wrong.check("A page")


def test_a_page_on_which_they_differ_is_not_written(library, monkeypatch):
    monkeypatch.setattr(Case, "check", Mock(side_effect=errors.DocumentError("they differ")))
    page = ModulePage("NoTPFeedForward", library.model(DEFAULT.name), library.sources)
    with pytest.raises(errors.DocumentError, match="they differ"):
        _ = page.cases


def test_a_page_that_says_something_else_than_the_model_is_refused(library):
    path = "modules/op-MoEGate.md"
    text = library.sources.texts[path]
    assert library.filled(path, text, DEFAULT.name) == (text, [])
    for old, new, message in (
        ("| `config` |", "| `cfg` |", "describes the parameters ['cfg']; right: ['config']"),
        ("`[B * T, k]`", "`[B, k]`", "returned is stated as `[B, k]`, it is (913, 6)"),
        ("references 2405.04434", "references 9999", "one line for each of 9999, 2412.19437"),
        ("<!-- end flops -->", "", "unknown or unfinished marker '<!-- begin flops -->'"),
    ):
        assert old in text
        with pytest.raises(errors.DocumentError, match=f"^{path}: .*{re.escape(message)}"):
            library.filled(path, text.replace(old, new, 1), DEFAULT.name)


# Architectures and other configurations -----------------------------------------------------------


def written_for(folder):
    """Pages in a folder by name, checked to link to one another alone."""
    pages = {name_of(path): visible(path) for path in folder.glob("modules/op-*.md")}
    lists = ["modules/index.md", "module_catalog.md", "module_formulations.md"]
    for text in (*pages.values(), *((folder / name).read_text("utf-8") for name in lists)):
        assert {*re.findall(r"\]\((?:modules/)?op-(\w+)\.md\)", text)} <= pages.keys()
    return pages


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
    assert cli.main(["docs", "--arch", arch, "--output", str(tmp_path)]) == 0
    pages = written_for(tmp_path)
    assert {*OWN[arch], "ImageEncoderViT", "DeepseekV2DecoderLayer"} <= pages.keys()
    assert pages.keys().isdisjoint(without)
    assert f"| {sam_params} |" in pages["ImageEncoderViT"]  # another last convolution
    assert not (tmp_path / "corrections.md").exists()
    # Of every fourth of the modules that it shares, another architecture's run in tests above.
    shared = sorted(pages.keys() - OWN[arch])[::4]
    run_snippets({name: pages[name] for name in (*OWN[arch], *shared)})


def with_changes(config, changes):
    """A config with other values, those of its sections merged."""
    return config | {
        key: with_changes(config.get(key) or {}, value) if isinstance(value, dict) else value
        for key, value in changes.items()
    }


def encoder(**settings):
    return {"vision_config": {"width": {"qwen2-0-5b": settings}}}


LATENT = {
    "use_mla": True, "kv_lora_rank": 64, "q_lora_rank": None, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 24, "num_hidden_layers": 3,
}  # fmt: skip

CONFIGS = {
    "latent attention, grouped sigmoid router": (
        "deepseek-ocr",
        LATENT | {
            "topk_method": "noaux_tc", "scoring_func": "sigmoid", "n_group": 4, "topk_group": 2,
            "norm_topk_prob": True,
            "rope_scaling": {"type": "yarn", "factor": 2.0, "mscale_all_dim": 1},
        },
        {"DeepseekOCRConfig": "| `num_hidden_layers` .* | 3 |"},
    ),
    "grouped queries, biases, another projector": (
        "deepseek-ocr",
        {
            "num_key_value_heads": 2, "attention_bias": True, "n_shared_experts": None,
            "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
            "num_hidden_layers": 3, "hidden_act": "gelu",
            "projector_config": {
                "projector_type": "mlp_gelu", "input_dim": 2048, "n_embed": 1280, "depth": 2,
            },
        },
        {"DeepseekV2MoE": "^(?!.*The given config has no)"},
    ),
    "dense decoder, tied embeddings": (
        "deepseek-ocr",
        {"tie_word_embeddings": True, "n_routed_experts": None, "num_hidden_layers": 2},
        {"DeepseekV2MoE": "The given config has no `DeepseekV2MoE`: figures of"},
    ),
    "one shared key head, latent attention behind": (
        "deepseek-ocr-2",
        {**encoder(layers=2, key_value_heads=1), **LATENT},
        {"Qwen2Decoder2Encoder": r"`num_key_value_heads` \| Key and value heads. \|  \| 1 \|"},
    ),
    "a key head for each query head, dense decoder": (
        "deepseek-ocr-2",
        {
            **encoder(layers=3, heads=7, key_value_heads=7, intermediate_size=100),
            "n_routed_experts": None, "num_hidden_layers": 2,
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
        {"SlidingWindowLlamaAttention": r"\| 908 / 909 / 910 / 910 \|"},
    ),
    "latent attention, which knows no window": (
        "unlimited-ocr",
        LATENT,
        {"DeepseekV2DecoderLayer": r"With `use_mla` \(here: True\) it is latent"},
    ),
}  # fmt: skip
"""An architecture, what its config has otherwise, and patterns of what pages then say."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("arch", "changes", "said"), CONFIGS.values(), ids=CONFIGS)
def test_documents_of_any_config_are_written_and_checked(
    arch, changes, said, tmp_path, monkeypatch
):
    config = with_changes(read_config(ARCHITECTURES[arch].reference / "config.json"), changes)
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    folder = tmp_path / "new" / "docs"
    arguments = ["docs", "--config", str(tmp_path / "config.json"), "--output", str(folder)]
    assert cli.main(arguments) == 0
    pages = written_for(folder)
    assert OWN[arch] <= pages.keys()
    for name, pattern in said.items():
        assert re.search(pattern, pages[name], re.S if pattern.startswith("^") else 0)
    monkeypatch.chdir(tmp_path)  # where the snippets find config.json
    run_snippets({name: pages[name] for name in OWN[arch]})


OTHER = str(ARCHITECTURES["unlimited-ocr"].reference / "config.json")


def test_bad_input_is_one_line_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("empty.json").write_text("{}", "utf-8")
    for arguments, code, said in (
        (["--arch", "deepseek-ocr-2", "--config", OTHER], 2, "--arch deepseek-ocr-2 contradicts"),
        (["--arch", "new-ocr"], 2, "'new-ocr' is unknown"),
        (["--config", "empty.json"], 2, "empty.json' lacks"),
        (["--config", "none.json"], 2, "none.json"),
        (["--output", "empty.json"], 74, "empty.json'"),
    ):
        output = [] if "--output" in arguments else ["--output", "new"]
        assert cli.main(["docs", *arguments, *output]) == code
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n"), said in shown.err) == ("", 1, True)
        assert [each.name for each in tmp_path.iterdir()] == ["empty.json"]
