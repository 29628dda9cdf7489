"""The module tree: nodes, folding, leaves, and the command that writes them."""

import json
import re
import runpy
from pathlib import Path

import pytest
import torch
import vendor_like
from hand_built import FIGURES
from torch import nn

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.cli import main
from dsocr_analyze.module_tree import TracedModule, build_tree, fold, leaf_classes, prune
from dsocr_analyze.report.tree import Drawing, tree_document
from dsocr_analyze.trace.module_calls import trace_module
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.tree import traced_modules

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


def folded_labels(folded):
    return [folded.label, *(label for child in folded.children for label in folded_labels(child))]


def test_tree_has_a_node_a_module_with_inclusive_parameters():
    root = build_tree(Stack(), DEFAULT.owner_of)
    assert [node.module.name for node in root.walk()] == [
        name for name, _ in Stack().named_modules()
    ]
    params = {node.module.name: node.module.params for node in root.walk()}
    assert params["layers.3"] == 3 * 3
    assert params["layers"] == 4 * (2 * 2) + 3 * 3
    assert params[""] == 4 * (2 * 2) + 3 * 3 + (2 * 5 + 5)


def test_runs_of_equal_numbered_siblings_fold_and_others_do_not():
    folded = fold(build_tree(Stack(), DEFAULT.owner_of))
    assert folded_labels(folded) == [
        "", "layers",
        "[0-2] x 3", "first", "act",
        "3", "first", "act",
        "4", "first", "act",
        "head",
    ]  # fmt: skip


def test_equal_siblings_with_names_of_their_own_do_not_fold():
    named = nn.Module()
    named.left, named.right = nn.Linear(2, 2), nn.Linear(2, 2)
    assert folded_labels(fold(build_tree(named, DEFAULT.owner_of))) == ["", "left", "right"]


def test_layers_that_worked_differently_do_not_fold():
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    same, other = TracedModule(1, [4, 2], [4, 2], 16), TracedModule(1, [3, 2], [3, 2], 12)
    root = build_tree(layers, DEFAULT.owner_of, {"0": same, "1": same, "2": other})
    assert folded_labels(fold(root)) == ["", "[0-1] x 2", "2"]


def test_a_module_that_stands_twice_is_counted_and_opened_once():
    twice = nn.Module()
    twice.one = Pair(2)
    twice.two = twice.one
    root = build_tree(twice, DEFAULT.owner_of)
    assert root.module.params == 2 * 2
    assert [(node.module.name, node.module.same_as or None) for node in root.walk()] == [
        ("", None), ("one", None), ("one.first", None), ("one.act", None), ("two", "one"),
    ]  # fmt: skip


def test_a_shared_parameter_counts_where_it_stands_first():
    tied = nn.Module()
    tied.embed, tied.head = nn.Embedding(7, 3), nn.Linear(3, 7, bias=False)
    tied.head.weight = tied.embed.weight
    params = {
        node.module.name: node.module.params for node in build_tree(tied, DEFAULT.owner_of).walk()
    }
    assert params == {"": 7 * 3, "embed": 7 * 3, "head": 0}


def test_depth_cuts_and_stage_keeps_what_it_owns_and_what_is_above():
    model = nn.Module()
    model.model, model.lm_head = nn.Module(), nn.Linear(2, 2)
    model.model.norm, model.model.projector = nn.LayerNorm(2), nn.Sequential(nn.Linear(2, 2))
    root = build_tree(model, DEFAULT.owner_of)
    paths = [node.module.name for node in prune(root, depth=1).walk()]
    assert paths == ["", "model", "lm_head"]
    kept = prune(root, stage="projector")
    owned = ["model.projector", "model.projector.0"]
    assert [node.module.name for node in kept.walk()] == ["", "model", *owned]
    document = tree_document(
        FIGURES.provenance.model, kept, stage="projector", workload=None, options={}
    )
    assert [row.name for row in document.modules] == owned
    assert prune(root, stage="sam") is None


def test_leaves_are_childless_or_builtin():
    model = nn.Module()
    model.attention = nn.MultiheadAttention(4, 2)  # nests a Linear of its own
    model.empty = nn.Module()
    model.lm_head = nn.Sequential(nn.Linear(2, 2), nn.SiLU(), nn.SiLU())
    assert leaf_classes(model, DEFAULT.stage_names, DEFAULT.owner_of) == {
        "decode": {"Linear": 1, "SiLU": 2},
        "other": {"Module": 1, "MultiheadAttention": 1},
    }
    drawing = Drawing("Of:", leaf_classes(model, DEFAULT.stage_names, DEFAULT.owner_of))
    assert drawing.text().splitlines()[3].split() == [
        "decode",
        "Linear",
        "1",
    ]


def test_written_forms_show_the_fold_once():
    drawing = Drawing("Of:", fold(build_tree(Stack(), DEFAULT.owner_of)))
    for text in (drawing.text(), drawing.mermaid(), drawing.dot()):
        assert text.count("[0-2] x 3") == 1
        assert text.endswith("\n")
    assert drawing.mermaid().splitlines()[:2] == ["flowchart LR", '  n0["Stack<br/>40 params"]']
    assert drawing.dot().count("->") == 11


def test_trace_of_a_pass_becomes_calls_shapes_and_inclusive_flops():
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Sequential(torch.nn.ReLU()))
    net.to("meta")
    trace, _ = trace_module(net, torch.device("meta"), torch.empty(4, 3, device="meta"))
    bias_and_products = 2 * 4 * 3 * 5 + 4 * 5
    assert traced_modules(trace) == {
        "": TracedModule(1, [4, 3], [4, 5], bias_and_products + 4 * 5),
        "0": TracedModule(1, [4, 3], [4, 5], bias_and_products),
        "1": TracedModule(1, [4, 5], [4, 5], 4 * 5),
        "1.0": TracedModule(1, [4, 5], [4, 5], 4 * 5),
    }


def test_shapes_leave_out_what_is_no_tensor():
    trace = Trace(calls=["a"], shapes={"a": ([(2, 3), None, [None, (1,)]], [(2, 3), None])})
    assert traced_modules(trace)["a"] == TracedModule(1, [[2, 3], [1]], [2, 3], 0)


@pytest.mark.directory
def test_tree_of_another_model_directory_needs_trust(tmp_path, capsys):
    vendor_like.write(tmp_path)
    arguments = ["tree", "--model", str(tmp_path), "--no-trace", "--format", "json"]
    assert main(arguments) == 2
    assert "trust" in capsys.readouterr().err
    assert main([*arguments, "--trust-remote-code"]) == 0
    rows = json.loads(capsys.readouterr().out)["modules"]
    assert rows[0]["class"] == "TinyModel"
    assert {row["stage"] for row in rows} == {None}


@pytest.mark.directory
def test_tree_of_an_unknown_architecture_has_no_stages(tmp_path, capsys):
    vendor_like.write(tmp_path)
    arguments = ["tree", "--model", str(tmp_path), "--trust-remote-code"]
    assert main([*arguments, "--no-trace"]) == 0
    assert "[0-1] x 2: Layer" in capsys.readouterr().out
    assert main([*arguments, "--leaves", "--format", "json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["stages"]) == ["other"]
    assert main(arguments) == 0
    assert "no pass was traced, which takes a stages file" in capsys.readouterr().out
    for needs_one in ("--trace", "--seq-len=9", "--stage=sam"):  # how to call it, what sam owns
        assert main([*arguments, needs_one]) == 2
        option = needs_one.partition("=")[0]
        assert f"{option} takes a stages file; give" in capsys.readouterr().err.replace(" sam", "")


# The reference -----------------------------------------------------------------------------------


def run(*arguments):
    return main(["tree", "--model", "reference", *arguments])


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    target = tmp_path_factory.mktemp("tree") / "tree.json"
    assert run("--format", "json", "--output", str(target)) == 0
    return json.loads(target.read_text("utf-8"))["modules"]


def test_reference_has_a_row_for_each_of_its_modules(rows):
    assert len(rows) == REFERENCE_MODULES
    assert len({row["name"] for row in rows}) == REFERENCE_MODULES
    assert rows[0]["class"] == "DeepseekOCRForCausalLM"
    assert rows[0]["params"] == REFERENCE_PARAMS == sum(row["own_params"] for row in rows)
    assert all(row["stage"] == DEFAULT.owner_of(row["name"]) for row in rows)


def test_reference_rows_hold_calls_shapes_and_flops_of_a_page(rows):
    by_name = {row["name"]: row for row in rows}
    head = by_name["lm_head"]
    length = head["input"][1]
    assert head["output"] == [1, length, 129280]
    assert head["flops"] == 2 * length * 1280 * 129280
    assert by_name["model.sam_model"]["calls"] == 2  # local views, then the global view
    convolution = by_name["model.vision_model.embeddings.patch_embedding"]
    assert (convolution["calls"], convolution["flops"]) == (0, 0)


@pytest.mark.exhaustive
def test_reference_text_folds_the_eleven_mixture_layers(capsys):
    assert run("--depth", "3", "--no-trace") == 0
    shown = capsys.readouterr().out
    assert "[1-11] x 11: DeepseekV2DecoderLayer" in shown
    assert "[0-23] x 24: NoTPTransformerBlock" not in shown  # one level further down
    assert "calls" not in shown


@pytest.mark.exhaustive
def test_stage_filter_shows_one_stage(capsys):
    assert run("--stage", "projector", "--no-trace", "--format", "json") == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)["modules"]]
    assert names == ["model.projector", "model.projector.layers"]


@pytest.mark.exhaustive
def test_reference_leaves_by_stage(capsys):
    assert run("--leaves", "--format", "json") == 0
    leaves = json.loads(capsys.readouterr().out)["stages"]
    assert list(leaves) == ["sam", "clip", "projector", "prefill", "decode"]
    assert leaves["sam"] == {
        "Conv2d": 5,
        "GELU": 12,
        "LayerNorm": 24,
        "LayerNorm2d": 2,
        "Linear": 48,
    }
    assert leaves["decode"] == {"Linear": 1}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["mermaid", "dot"])
def test_graphs_of_the_reference_have_an_edge_for_each_box_but_the_first(kind, capsys):
    assert run("--depth", "2", "--no-trace", "--format", kind) == 0
    shown = capsys.readouterr().out
    boxes = len(re.findall(r"^  n\d+ ?\[", shown, re.MULTILINE))
    edges = len(re.findall(r"^  n\d+ --?> n\d+", shown, re.MULTILINE))
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
    ("arguments", "named"),
    [
        (("--stage", "head"), "sam, clip, projector, prefill, decode"),
        (("--depth", "-1"), "--depth -1"),
        (("--format", "xml"), "text, json, mermaid, dot"),
    ],
)
def test_bad_input_is_one_line_with_what_would_be_right(arguments, named, capsys):
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert named in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.exhaustive
def test_file_that_cannot_be_written_is_one_line_and_exit_code_74(capsys):
    assert run("--output", "no/such/folder/tree.txt", "--no-trace") == 74
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert "'no/such/folder/tree.txt'" in captured.err
