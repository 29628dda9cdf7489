"""The module tree: nodes, folding, leaves, and the command that writes them."""

import json
import re
import runpy
from pathlib import Path

import pytest
import torch
import vendor_like
from hand_built import FIGURES
from msgspec import UNSET
from torch import nn

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.cli import main
from dsocr_analyze.module_tree import TracedModule, build_tree, fold, leaf_classes, prune
from dsocr_analyze.report.tree import Drawing, tree_document
from dsocr_analyze.trace.passes import trace_module
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.summary import traced_modules

ROOT = Path(__file__).resolve().parent.parent
REFERENCE_MODULES = 4083  # counted on the vendor's own model
REFERENCE_PARAMS = 3_336_106_240


class Pair(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width, bias=False)
        self.act = nn.SiLU()


class Stack(nn.Module):
    """Layers of widths 2, 2, 2, 3, 2: two runs and a stranger between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Pair(width) for width in (2, 2, 2, 3, 2))
        self.head = nn.Linear(2, 5)


def tree(model, traced=None):
    return build_tree(model, DEFAULT.owner_of, traced)


def labels(node):
    return [each.label for each in fold(node).walk()]


def params(node):
    return {each.module.name: each.module.params for each in node.walk()}


def test_tree_has_a_node_a_module_with_inclusive_parameters():
    found, layers = params(tree(Stack())), 4 * (2 * 2) + 3 * 3
    assert [*found] == [name for name, _ in Stack().named_modules()]
    of_some = [found[name] for name in ("layers.3", "layers", "")]
    assert of_some == [3 * 3, layers, layers + (2 * 5 + 5)]


def test_runs_of_equal_numbered_siblings_fold_and_others_do_not():
    assert labels(tree(Stack())) == [
        "", "layers",
        "[0-2] x 3", "first", "act",
        "3", "first", "act",
        "4", "first", "act",
        "head",
    ]  # fmt: skip
    drawing = Drawing("Of:", fold(tree(Stack())))
    texts = drawing.text(), drawing.mermaid(), drawing.dot()
    assert [(text.count("[0-2] x 3"), text[-1]) for text in texts] == [(1, "\n")] * 3
    assert texts[1].splitlines()[:2] == ["flowchart LR", '  n0["Stack<br/>40 params"]']
    assert texts[2].count("->") == 11


def test_equal_siblings_with_other_names_or_other_work_do_not_fold():
    same, other = TracedModule(1, [4, 2], [4, 2], 16), TracedModule(1, [3, 2], [3, 2], 12)
    for names, traced, shown in (
        (("left", "right"), None, ["left", "right"]),
        ("0235", None, ["0", "[2-3] x 2", "5"]),
        ("012", {"0": same, "1": same, "2": other}, ["[0-1] x 2", "2"]),
    ):
        layers = nn.ModuleDict({name: nn.Linear(2, 2) for name in names})
        assert labels(tree(layers, traced)) == ["", *shown]


def test_what_stands_twice_is_counted_and_opened_once():
    pair = Pair(2)
    root = tree(nn.ModuleDict({"one": pair, "two": pair}))
    first = {node.module.name: node.module.same_as for node in root.walk()}
    once = dict.fromkeys(["", "one", "one.first", "one.act"], UNSET)
    assert (root.module.params, first) == (2 * 2, once | {"two": "one"})
    tied = nn.ModuleDict({"embed": nn.Embedding(7, 3), "head": nn.Linear(3, 7, bias=False)})
    tied.head.weight = tied.embed.weight
    assert params(tree(tied)) == {"": 7 * 3, "embed": 7 * 3, "head": 0}


def test_depth_cuts_and_stage_keeps_what_it_owns_and_what_is_above():
    inner = {"norm": nn.LayerNorm(2), "projector": nn.Sequential(nn.Linear(2, 2))}
    root = tree(nn.ModuleDict({"model": nn.ModuleDict(inner), "lm_head": nn.Linear(2, 2)}))
    assert [*params(prune(root, depth=1))] == ["", "model", "lm_head"]
    kept, owned = prune(root, stage="projector"), ["model.projector", "model.projector.0"]
    assert ([*params(kept)], prune(root, stage="sam")) == (["", "model", *owned], None)
    source = FIGURES.provenance.model
    document = tree_document(source, kept, stage="projector", workload=None, options={})
    assert [row.name for row in document.modules] == owned


def test_leaves_are_childless_or_builtin():
    attention = nn.MultiheadAttention(4, 2)  # nests a Linear of its own
    head = nn.Sequential(nn.Linear(2, 2), nn.SiLU(), nn.SiLU())
    model = nn.ModuleDict({"attention": attention, "empty": nn.Module(), "lm_head": head})
    leaves = leaf_classes(model, DEFAULT.stage_names, DEFAULT.owner_of)
    assert leaves == {
        "decode": {"Linear": 1, "SiLU": 2},
        "other": {"Module": 1, "MultiheadAttention": 1},
    }
    assert Drawing("Of:", leaves).text().splitlines()[3].split() == ["decode", "Linear", "1"]


def test_trace_of_a_pass_becomes_calls_shapes_and_inclusive_flops():
    net = nn.Sequential(nn.Linear(3, 5), nn.Sequential(nn.ReLU())).to("meta")
    trace, _ = trace_module(net, torch.device("meta"), torch.empty(4, 3, device="meta"))
    bias_and_products = 2 * 4 * 3 * 5 + 4 * 5
    assert traced_modules(trace) == {
        "": TracedModule(1, [4, 3], [4, 5], bias_and_products + 4 * 5),
        "0": TracedModule(1, [4, 3], [4, 5], bias_and_products),
        "1": TracedModule(1, [4, 5], [4, 5], 4 * 5),
        "1.0": TracedModule(1, [4, 5], [4, 5], 4 * 5),
    }
    # Shapes leave out what is no tensor.
    trace = Trace(calls=["a"], shapes={"a": ([(2, 3), None, [None, (1,)]], [(2, 3), None])})
    assert traced_modules(trace)["a"] == TracedModule(1, [[2, 3], [1]], [2, 3], 0)


@pytest.mark.directory
def test_tree_of_another_model_directory_needs_trust_and_has_no_stages(tmp_path, capsys):
    vendor_like.write(tmp_path)
    command = ["tree", "--model", str(tmp_path)]
    assert main([*command, "--no-trace"]) == 2
    assert "trust" in capsys.readouterr().err
    command.append("--trust-remote-code")

    def told(*options):
        assert main([*command, *options]) == 0
        return capsys.readouterr().out

    rows = json.loads(told("--no-trace", "--format", "json"))["modules"]
    stages = json.loads(told("--leaves", "--format", "json"))["stages"]
    found = rows[0]["class"], {row["stage"] for row in rows}, [*stages]
    assert found == ("TinyModel", {None}, ["other"])
    text = told()
    assert "[0-1] x 2: Layer" in text
    assert "no pass was traced, which takes a stages file" in text
    for needs_one in ("--trace", "--seq-len=9", "--stage=sam"):  # how to call it, what sam owns
        assert main([*command, needs_one]) == 2
        err, option = capsys.readouterr().err.replace(" sam", ""), needs_one.partition("=")[0]
        said = "takes a stages file; give --stages FILE (dsocr-analyze stages drafts one)"
        assert f"{option} {said}" in err


# The reference -----------------------------------------------------------------------------------


def run(*arguments):
    return main(["tree", "--model", "reference", *arguments])


def test_reference_rows_are_its_modules_with_calls_shapes_and_flops_of_a_page(tmp_path):
    target = tmp_path / "tree.json"
    assert run("--format", "json", "--output", str(target)) == 0
    rows = json.loads(target.read_text("utf-8"))["modules"]
    by_name = {row["name"]: row for row in rows}
    assert len(rows) == len(by_name) == REFERENCE_MODULES
    top, head, sam = (by_name[name] for name in ("", "lm_head", "model.sam_model"))
    assert top["params"] == REFERENCE_PARAMS == sum(row["own_params"] for row in rows)
    assert all(row["stage"] == DEFAULT.owner_of(row["name"]) for row in rows)
    length = head["input"][1]
    made = [1, length, 129280], 2 * length * 1280 * 129280
    assert (head["output"], head["flops"], top["class"]) == (*made, "DeepseekOCRForCausalLM")
    convolution = by_name["model.vision_model.embeddings.patch_embedding"]
    # Local views, then the global view.
    assert (sam["calls"], convolution["calls"], convolution["flops"]) == (2, 0, 0)


@pytest.mark.exhaustive
def test_reference_is_folded_filtered_and_drawn(capsys):
    def shown(*options):
        assert run(*options) == 0
        return capsys.readouterr().out

    text = shown("--depth", "3", "--no-trace")
    # The blocks are one level further down.
    names = "[1-11] x 11: DeepseekV2DecoderLayer", "[0-23] x 24: NoTPTransformerBlock", "calls"
    assert [name in text for name in names] == [True, False, False]
    rows = json.loads(shown("--stage", "projector", "--no-trace", "--format", "json"))["modules"]
    assert [row["name"] for row in rows] == ["model.projector", "model.projector.layers"]
    leaves = json.loads(shown("--leaves", "--format", "json"))["stages"]
    assert list(leaves) == ["sam", "clip", "projector", "prefill", "decode"]
    of_sam = {"Conv2d": 5, "GELU": 12, "LayerNorm": 24, "LayerNorm2d": 2, "Linear": 48}
    assert (leaves["sam"], leaves["decode"]) == (of_sam, {"Linear": 1})
    for kind in ("mermaid", "dot"):  # an edge for each box but the first
        drawn = shown("--depth", "2", "--no-trace", "--format", kind)
        boxes = len(re.findall(r"^  n\d+ ?\[", drawn, re.MULTILINE))
        edges = len(re.findall(r"^  n\d+ --?> n\d+", drawn, re.MULTILINE))
        assert boxes == edges + 1 > 5


@pytest.mark.exhaustive
def test_dump_script_writes_rows_and_text(tmp_path, capsys):
    names = runpy.run_path(str(ROOT / "scripts" / "dump_dsocr_tree.py"))
    names["dump"].__globals__["OUTPUT"] = tmp_path
    assert names["dump"](["--model", "reference", "--no-trace"]) == 0
    rows = json.loads((tmp_path / "dsocr-module-tree.json").read_text("utf-8"))["modules"]
    assert [row.keys() >= {"name", "class", "stage"} for row in rows] == [True] * REFERENCE_MODULES
    assert "[1-11] x 11" in (tmp_path / "dsocr-module-tree.txt").read_text("utf-8")
    assert names["dump"](["--stage", "none"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("--stage", "head"), 2, "sam, clip, projector, prefill, decode"),
        (("--depth", "-1"), 2, "--depth -1"),
        (("--format", "xml"), 2, "text, json, mermaid, dot"),
        pytest.param(
            ("--output", "no/such/folder/tree.txt", "--no-trace"),
            74,
            "'no/such/folder/tree.txt'",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_what_is_wrong_is_one_line(arguments, code, named, capsys):
    assert run(*arguments) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), named in err) == ("", 1, True)
