"""Negative controls: edits of forwards that the comparison with a trace must notice.

Some are made by hand. Others free what a local name keeps: whoever writes an expression in the
place of such a name frees what it refers to earlier than the vendor's code does, and so does a
linter that removes a name without another use. `hold` marks these names.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from edited_forwards import FORWARDS, POOL, noticed, run_as, with_trace
from sampling import named, sampled

from dsocr_analyze.architectures import deepseek_ocr, deepseek_ocr_2
from dsocr_analyze.architectures.ocr_family import attention, decoder, passes, sam
from dsocr_analyze.tape import modules


class Control(NamedTuple):
    """An edit.

    Attributes:
        seed: Of a drawn case that shows it.
        module: Where it is made.
        edits: What replaces each text, which occurs once.
        notices: What must differ; what else may is not said.
    """

    seed: int
    module: types.ModuleType
    edits: dict[str, str]
    notices: set[str]


CONTROLS = {
    "a kept name is used in place": Control(
        324,
        modules,
        {
            '    variance = t.reduce("mean", t.map("pow", wide), rows, d)\n': "",
            't.map("add", variance)': 't.map("add", t.reduce("mean", t.map("pow", wide), rows, d))',
            "t.hold(variance, wide)": "t.hold(wide)",
        },
        {"levels"},
    ),
    "a product's copies are freed early": Control(
        324,
        attention,
        {
            "    copy_of_a = None if": "    None if",
            "    copy_of_b = None if": "    None if",
            "    t.hold(copy_of_a, copy_of_b)\n": "",
        },
        {"levels"},
    ),
    "scores are kept through softmax": Control(
        324,
        attention,
        {"    weights = t.cast(t.softmax(": "    x, weights = weights, t.cast(t.softmax("},
        {"levels"},
    ),
    "one more name is kept": Control(
        324,
        attention,
        {
            't.call("act_fn", ACTIVATIONS[act]': '(y := t.call("act_fn", ACTIVATIONS[act]',
            "linear, x, n, d, f)),": "linear, x, n, d, f))),",
        },
        {"levels"},
    ),
    "a record reads the copy": Control(
        186,
        attention,
        {
            '("matmul", gemm, a, b)': '("matmul", gemm, a, copy_of_b or copy_of_a or b)',
        },
        {"records"},
    ),
    "heads and those of keys are swapped": Control(
        324,
        attention,
        {'t.call("k_proj", linear, x, n, d, kv * D': 't.call("k_proj", linear, x, n, d, H * D'},
        {"cache", "levels", "records", "weights"},
    ),
    "an expert gets a token too few": Control(
        125,
        decoder,
        {"swiglu, x, n_longer, *sizes": "swiglu, x, share, *sizes"},
        {"levels", "records"},
    ),
    "a bias is left out": Control(
        324,
        sam,
        {"c.width, f, bias=True": "c.width, f"},
        {"records", "weights"},
    ),
    "the last prompt's tokens are kept": Control(
        324,
        passes,
        {"        seen.tokens = None  # frees those of the last prompt first\n": ""},
        {"levels"},
    ),
    "the last page's tokens are kept": Control(
        124,
        deepseek_ocr_2,
        {
            "features.tokens = features.semantic": "pass",
            "projector, features.tokens, N": "projector, features.semantic, N",
        },
        {"levels"},
    ),
    "a mask is added under another name": Control(
        324,
        attention,
        {
            'weights = t.map("add", weights, mask)': 'x = t.map("add", weights, mask)',
            "t.softmax(weights, p.tokens": "t.softmax(weights if mask is None else x, p.tokens",
        },
        {"levels"},
    ),
    "a cast is left out": Control(
        324,
        attention,
        {
            "weights = t.cast(t.softmax(weights": "weights = (t.softmax(weights",
            "p.tokens * H, K), t.dtype)": "p.tokens * H, K))",
        },
        {"levels", "records"},
    ),
    "rotary tables are freed early": Control(
        324,
        attention,
        {"rotated(t, k, cos, sin)\n": "rotated(t, k, cos, sin)\n    cos = sin = None\n"},
        {"levels"},
    ),
    "an operator has another's name": Control(
        124,
        decoder,
        {'t.product("einsum"': 't.product("matmul"'},
        {"levels", "records"},
    ),
    "a norm's fp32 input is kept under its name": Control(
        324,
        modules,
        {
            'wide = t.map("mul", wide, t.map("rsqrt"': 'y = t.map("mul", wide, t.map("rsqrt"',
            "t.cast(wide, x.dtype), t.weight(d))": "t.cast(y, x.dtype), t.weight(d))",
        },
        {"levels"},
    ),
    "attention's output is kept": Control(
        324,
        decoder,
        {"    del attended\n": ""},
        {"levels"},
    ),
    "the router's denominators are freed": Control(
        125,
        decoder,
        {
            '        denominator = t.map("add", t.reduce("sum", weights, n, k))\n': "",
            "weights, denominator)": 'weights, t.map("add", t.reduce("sum", weights, n, k)))',
            "        t.hold(denominator)\n": "",
        },
        {"levels"},
    ),
    "the chosen groups' scores are freed": Control(
        324,
        decoder,
        {"    if k > 1 and c": "    ranking = ()\n    if k > 1 and c"},
        {"levels"},
    ),
    "a norm of features stored by channel copies nothing": Control(
        324,
        sam,
        {'"norm2", layer_norm, x, n, d, channels_first=True': '"norm2", layer_norm, x, n, d'},
        {"levels", "records"},
    ),
    "what a full window overwrites with is freed": Control(
        119,
        attention,
        {"(k, v) if p.overwrites else ()": "()"},
        {"levels"},
    ),
    "the cache keeps another tensor": Control(
        124,
        decoder,
        {"return out, k_pe, latent, *tables": "return out, k_pe, k_pe, *tables"},
        {"cache", "levels"},
    ),
    "queries are freed once they are joined": Control(
        141,
        decoder,
        {"    v: Operand = t.view": "    query = None\n    v: Operand = t.view"},
        {"levels"},
    ),
    "a frequency's inverse frees its operand": Control(
        124,
        decoder,
        {
            "kept = _inverse(t, _yarn": 'kept = t.map("mul", t.map("reciprocal", _yarn',
            "_periods(t, half))\n": "_periods(t, half)))\n",
        },
        {"levels"},
    ),
    "a child is not called": Control(
        324,
        attention,
        {
            't.call("act_fn", ACTIVATIONS[act], ': "ACTIVATIONS[act](t, ",
        },
        {"calls", "levels", "records"},
    ),
    "weights that never run are left out": Control(
        324,
        deepseek_ocr,
        {'    t.idle("patch_embedding", methodcaller(': "    (("},
        {"weights"},
    ),
    "a page's tokens are kept twice": Control(
        125,
        passes,
        {"pages.append(seen.page)": 'pages.append(t.move("clone", seen.page))'},
        {"levels", "records"},
    ),
    "differences of positions are kept": Control(
        69,
        attention,
        {
            't.map("ge", t.map("sub"': 't.map("ge", x := t.map("sub"',
        },
        {"levels"},
    ),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_an_edit_is_noticed(name, monkeypatch):
    control = CONTROLS[name]
    case, theirs = with_trace(control.seed)
    source = inspect.getsource(control.module)
    for old, new in control.edits.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    assert not noticed(case, theirs)
    run_as(monkeypatch, control.module, source)
    assert noticed(case, theirs) >= control.notices


# --- names that keep memory


class Name(NamedTuple):
    """A local name of a forward."""

    module: types.ModuleType
    function: str
    name: str

    def __str__(self) -> str:
        return f"{self.module.__name__.rpartition('.')[2]}-{self.function}-{self.name}"


def is_hold(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="hold"))):
            return True
    return False


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def forwards_in(tree: ast.AST, prefix: str = "") -> dict[str, ast.FunctionDef]:
    """Functions and methods that take a tape, by qualified name."""
    found: dict[str, ast.FunctionDef] = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            found |= forwards_in(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef) and "t" in {each.arg for each in node.args.args}:
            found[prefix + node.name] = node
    return found


def local_names() -> Iterator[tuple[Name, bool]]:
    """Every name in a forward, but the tape's, and whether it is held."""
    for module in FORWARDS:
        for function, node in forwards_in(ast.parse(inspect.getsource(module))).items():
            walked = list(ast.walk(node))
            held = set().union(*(names_in(each) for each in walked if is_hold(each)))
            names = {
                each.id
                for each in walked
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            }
            for name in sorted(names | {each.arg for each in node.args.args} - {"self", "t"}):
                yield Name(module, function, name), name in held


_REPEATED = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.Lambda, ast.FunctionDef)
"""Nodes whose parts may run more than once, or later."""


class _LastUse(ast.NodeTransformer):
    """Makes a name's last use give it away: `x` becomes `(x, x := None)[0]`."""

    def __init__(self, last: ast.Name) -> None:
        self._last = last

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node is not self._last:
            return node
        return ast.parse(f"({node.id}, {node.id} := None)[0]", mode="eval").body


def uses_of(name: str, node: ast.AST, is_repeated: bool = False) -> Iterator[tuple[ast.Name, bool]]:
    """Every use of a name, in order, and whether it may run again; not those that `hold` names."""
    if is_hold(node):
        return
    if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
        yield node, is_repeated
    is_repeated = is_repeated or isinstance(node, _REPEATED)
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Assign):  # a value is computed before its targets
        children = [node.value, *node.targets]
    for child in children:
        yield from uses_of(name, child, is_repeated)


def freed_early(name: Name) -> str | None:
    """The source of a module in which a name gives away what it refers to at its last use.

    Where the last use may run again the name is freed after the statement; None if it is never
    used, or by a function of its own.
    """
    tree = ast.parse(inspect.getsource(name.module))
    function = forwards_in(tree)[name.function]
    uses = [use for each in function.body for use in uses_of(name.name, each)]
    if not uses:
        return None
    last, is_repeated = uses[-1]
    if not is_repeated:
        _LastUse(last).visit(function)
    else:
        [place] = (i for i, each in enumerate(function.body) if last in ast.walk(each))
        if isinstance(function.body[place], ast.Return | ast.FunctionDef):
            return None
        function.body.insert(place + 1, ast.parse(f"{name.name} = None").body[0])
    for node in ast.walk(function):  # what is held need not be there any more
        for part in ("body", "orelse"):
            block = getattr(node, part, None)
            if isinstance(block, list):
                block[:] = [each for each in block if not is_hold(each)] or [ast.Pass()]
    return ast.unparse(ast.fix_missing_locations(tree))


# Held as the vendor's code holds them, though no operator follows for which it matters.
HELD_TO_THE_LAST = {
    *("decoder-_additive_mask-causal", "attention-rotary_tables-sin", "sam-_block-shortcut"),
    *(
        "sam-_attention-fused",
        "sam-_relative_positions-table",
        "deepseek_ocr-absolute_positions-patches",
    ),
    *("deepseek_ocr-clip-hidden_states", "deepseek_ocr_2-qwen2_encoder-x_combined"),
    *("deepseek_ocr_2-_attention-key", "deepseek_ocr_2-_attention-value", "modules-_laplace-x"),
}
NAMES = [pytest.param(*each, id=str(each[0])) for each in local_names()]


def test_names_held_to_the_last_exist():
    assert {str(name) for name, is_held in local_names() if is_held} >= HELD_TO_THE_LAST


@sampled(("name", "is_held"), NAMES, named("modules-rms_norm-variance", "sam-_attention-rows"))
def test_freeing_what_a_name_refers_to_is_noticed_if_and_only_if_it_is_held(
    name, is_held, monkeypatch
):
    source = freed_early(name)
    if source is None or str(name) in HELD_TO_THE_LAST:
        return
    cases = [*map(with_trace, POOL[:1] if is_held else POOL)]
    run_as(monkeypatch, name.module, source)
    if is_held and not noticed(*cases[0]):
        cases += map(with_trace, POOL[1:])
    assert any(noticed(*each) for each in cases) == is_held
