"""The module tree: nodes, folding, leaves, and the command that writes them."""

import json
import runpy
from pathlib import Path

import pytest
import torch
import vendor_like
from command_line import run
from hand_built import FIGURES
from msgspec import UNSET
from torch import nn

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.module_tree import TracedModule, build_tree, fold, leaf_classes, prune
from dsocr_analyze.report.tree import Drawing, tree_document
from dsocr_analyze.trace import passes, record

REFERENCE_MODULES = 4083  # counted on the vendor's own model
REFERENCE_PARAMS = 3_336_106_240


def pair(width):
    return nn.ModuleDict({"first": nn.Linear(width, width, bias=False), "act": nn.SiLU()})


# Two runs and a stranger between them.
STACK = nn.ModuleDict(
    {"layers": nn.ModuleList(map(pair, (2, 2, 2, 3, 2))), "head": nn.Linear(2, 5)}
)
EQUAL, OTHER = TracedModule(1, [4, 2], [4, 2], 16), TracedModule(1, [3, 2], [3, 2], 12)


def linears(names):
    return nn.ModuleDict({name: nn.Linear(2, 2) for name in names})


def tree(model, traced=None):
    return build_tree(model, DEFAULT.owner_of, traced)


def params(node):
    return {each.module.name: each.module.params for each in node.walk()}


def test_tree_has_a_node_a_module_with_inclusive_parameters():
    found, layers = params(tree(STACK)), 4 * (2 * 2) + 3 * 3
    assert [*found] == [name for name, _ in STACK.named_modules()]
    of_some = [found[name] for name in ("layers.3", "layers", "")]
    assert of_some == [3 * 3, layers, layers + (2 * 5 + 5)]


@pytest.mark.parametrize(
    ("model", "traced", "shown"),
    [
        (STACK, None, ["layers", "[0-2] x 3", "first", "act", "3", "first", "act",
                       "4", "first", "act", "head"]),
        (linears(["left", "right"]), None, ["left", "right"]),
        (linears(["0", "a"]), None, ["0", "a"]),
        (linears("0235"), None, ["0", "[2-3] x 2", "5"]),
        (linears("012"), {"0": EQUAL, "1": EQUAL, "2": OTHER}, ["[0-1] x 2", "2"]),
    ],
)  # fmt: skip
def test_runs_of_numbered_siblings_of_equal_work_fold_and_others_do_not(model, traced, shown):
    assert [node.label for node in fold(tree(model, traced)).walk()] == ["", *shown]


def test_a_folded_tree_is_drawn():
    drawing = Drawing("Of:", fold(tree(STACK)))
    text, mermaid, dot = drawing.text(), drawing.mermaid(), drawing.dot()
    assert [(each.count("[0-2] x 3"), each[-1]) for each in (text, mermaid, dot)] == [(1, "\n")] * 3
    assert mermaid.splitlines()[:2] == ["flowchart LR", '  n0["ModuleDict<br/>40 params"]']
    # An edge for each of the boxes but the first.
    assert (mermaid.count("-->"), dot.count("->")) == (11, 11)


def test_what_stands_twice_is_counted_and_opened_once():
    twice, tied = pair(2), linears(["embed", "head"])
    root = tree(nn.ModuleDict({"one": twice, "two": twice}))
    first = {node.module.name: node.module.same_as for node in root.walk()}
    once = dict.fromkeys(["", "one", "one.first", "one.act"], UNSET)
    assert (root.module.params, first) == (2 * 2, once | {"two": "one"})
    tied["head"].weight = tied["embed"].weight
    assert params(tree(tied)) == {"": 2 * 2 + 2 + 2, "embed": 2 * 2 + 2, "head": 2}


def test_depth_cuts_and_stage_keeps_what_it_owns_and_what_is_above():
    inner = {"norm": nn.LayerNorm(2), "projector": nn.Sequential(nn.Linear(2, 2))}
    root = tree(nn.ModuleDict({"model": nn.ModuleDict(inner), "lm_head": nn.Linear(2, 2)}))
    kept, owned = prune(root, stage="projector"), ["model.projector", "model.projector.0"]
    assert [*params(prune(root, depth=1))] == ["", "model", "lm_head"]
    assert ([*params(kept)], prune(root, stage="sam")) == (["", "model", *owned], None)
    source = FIGURES.provenance.model
    document = tree_document(source, kept, stage="projector", workload=None, options={})
    assert [row.name for row in document.modules] == owned


def test_leaves_are_childless_or_builtin_and_counted_once():
    attention = nn.MultiheadAttention(4, 2)  # nests a Linear of its own
    head = nn.Sequential(nn.Linear(2, 2), nn.SiLU(), nn.SiLU())
    parts = {"attention": attention, "again": attention, "empty": nn.Module(), "lm_head": head}
    leaves = leaf_classes(nn.ModuleDict(parts), DEFAULT.stage_names, DEFAULT.owner_of)
    assert leaves == {
        "decode": {"Linear": 1, "SiLU": 2},
        "other": {"Module": 1, "MultiheadAttention": 1},
    }
    assert Drawing("Of:", leaves).text().splitlines()[3].split() == ["decode", "Linear", "1"]


def test_trace_of_a_pass_becomes_calls_shapes_and_inclusive_flops():
    net = nn.Sequential(nn.Linear(3, 5), nn.Sequential(nn.ReLU())).to("meta")
    trace, _ = passes.trace_module(net, torch.device("meta"), torch.empty(4, 3, device="meta"))
    bias_and_products = 2 * 4 * 3 * 5 + 4 * 5
    assert passes.traced_modules(trace) == {
        "": TracedModule(1, [4, 3], [4, 5], bias_and_products + 4 * 5),
        "0": TracedModule(1, [4, 3], [4, 5], bias_and_products),
        "1": TracedModule(1, [4, 5], [4, 5], 4 * 5),
        "1.0": TracedModule(1, [4, 5], [4, 5], 4 * 5),
    }
    # Shapes leave out what is no tensor.
    trace = record.Trace(calls=["a"], shapes={"a": ([(2, 3), None, [None, (1,)]], [(2, 3), None])})
    assert passes.traced_modules(trace)["a"] == TracedModule(1, [[2, 3], [1]], [2, 3], 0)


@pytest.mark.directory
def test_tree_of_another_model_directory_needs_trust_and_has_no_stages(tmp_path, capsys):
    def told(*options):
        return run(capsys, "tree", "--model", vendor_like.write(tmp_path), *options)

    code, _, err = told("--no-trace")
    assert (code, "trust" in err) == (2, True)
    trusted, in_json = ("--trust-remote-code",), ("--trust-remote-code", "--format", "json")
    rows = json.loads(told(*in_json, "--no-trace")[1])["modules"]
    stages = json.loads(told(*in_json, "--leaves")[1])["stages"]
    found = rows[0]["class"], {row["stage"] for row in rows}, [*stages]
    assert found == ("TinyModel", {None}, ["other"])
    told_of_it = "[0-1] x 2: Layer", "no pass was traced, which takes a stages file"
    assert [each for each in told_of_it if each not in told(*trusted)[1]] == []
    for needs_one in ("--trace", "--seq-len=9", "--stage=sam"):  # how to call it, what sam owns
        code, _, err = told(*trusted, needs_one)
        said = "takes a stages file; give --stages FILE (dsocr-analyze stages drafts one)"
        option = needs_one.partition("=")[0]
        assert (code, f"{option} {said}" in err.replace(" sam", "")) == (2, True)


# The reference -----------------------------------------------------------------------------------

TREE = ("tree", "--model", "reference")


@pytest.mark.exhaustive
def test_reference_rows_are_its_modules_with_calls_shapes_and_flops_of_a_page(tmp_path, capsys):
    target = tmp_path / "tree.json"
    assert run(capsys, *TREE, "--format", "json", "--output", target)[0] == 0
    rows = json.loads(target.read_text("utf-8"))["modules"]
    by_name = {row["name"]: row for row in rows}
    assert len(rows) == len(by_name) == REFERENCE_MODULES
    top, head, sam = (by_name[name] for name in ("", "lm_head", "model.sam_model"))
    assert top["params"] == REFERENCE_PARAMS == sum(row["own_params"] for row in rows)
    assert all(row["stage"] == DEFAULT.owner_of(row["name"]) for row in rows)
    length, convolution = head["input"][1], by_name["model.vision_model.embeddings.patch_embedding"]
    made = [1, length, 129280], 2 * length * 1280 * 129280
    assert (head["output"], head["flops"], top["class"]) == (*made, "DeepseekOCRForCausalLM")
    # Local views, then the global view.
    assert (sam["calls"], convolution["calls"], convolution["flops"]) == (2, 0, 0)


@pytest.mark.exhaustive
def test_dump_script_writes_rows_and_text(tmp_path, capsys):
    script = Path(__file__).resolve().parent.parent / "scripts" / "dump_dsocr_tree.py"
    dump = runpy.run_path(str(script))["dump"]
    dump.__globals__["OUTPUT"] = tmp_path
    codes = dump(["--model", "reference", "--no-trace"]), dump(["--stage", "none"])
    rows = json.loads((tmp_path / "dsocr-module-tree.json").read_text("utf-8"))["modules"]
    assert [row.keys() >= {"name", "class", "stage"} for row in rows] == [True] * REFERENCE_MODULES
    text = (tmp_path / "dsocr-module-tree.txt").read_text("utf-8")
    assert (codes, "[1-11] x 11" in text) == ((0, 2), True)


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("--stage", "head"), 2, "sam, clip, projector, prefill, decode"),
        (("--depth", "-1"), 2, "--depth -1"),
        (("--format", "xml"), 2, "text, json, mermaid, dot"),
        pytest.param(("--output", "no/such/folder/tree.txt", "--no-trace"), 74,
                     "'no/such/folder/tree.txt'", marks=pytest.mark.exhaustive),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(arguments, code, named, capsys):
    found, out, err = run(capsys, *TREE, *arguments)
    assert (found, out, err.count("\n"), named in err) == (code, "", 1, True)
