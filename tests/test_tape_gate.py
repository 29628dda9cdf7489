"""Whole passes on the tape, step by step beside a trace and beside real tensors on a CPU.

Each case is a small model drawn by its number (`drawn_passes.py`), with its prefill pass and some
decode steps.
"""

import ast
import contextlib
import dataclasses
import functools
import gc
import inspect
import itertools
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cuda_levels import common, witnessed
from drawn_passes import ONE, TWO, UNLIMITED, WINDOW, Case, drawn
from sampling import named, sampled
from taped_passes import DIGESTED, digest, noted, taped
from traced_passes import traced

from dsocr_analyze import cli, dtypes, tape
from dsocr_analyze.architectures import DEFAULT, deepseek_ocr, deepseek_ocr_2
from dsocr_analyze.architectures.ocr_family import attention, closed_forms, decoder, passes, vision
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape import modules

# --- forwards that run as in another source, and what a comparison with a trace notices ------

FORWARDS = (
    passes, deepseek_ocr, deepseek_ocr_2, decoder, attention, vision, modules,
)  # fmt: skip


POOL = (324, 125, 124, 141, 119, 186, 69)
"""Small cases that have between them all that a control asks for."""


@functools.cache
def with_trace(seed: int) -> tuple[Case, Any]:
    case = drawn(seed)
    return case, traced(case)


def noticed(case: Case, theirs: Any) -> set[str]:
    """What differs between tape and trace, in the prefill pass and in decode steps."""
    found = set()
    for number, reference in theirs.items():
        ours = taped(case, number)
        mine = {**noted(ours), "levels": ours.tape.levels}
        expected = {**reference.figures, "levels": reference.levels}
        found |= {name for name in expected if mine[name] != expected[name]}
    return found


def functions_of(names: Iterable[Any]) -> dict[str, types.FunctionType]:
    """A module's own functions and methods, by qualified name."""
    found: dict[str, types.FunctionType] = {}
    for each in names:
        if isinstance(each, types.FunctionType):
            found[each.__qualname__] = each
        elif isinstance(each, type):
            found |= functions_of(vars(each).values())
    return found


def own_functions(module: types.ModuleType, namespace=None) -> dict[str, types.FunctionType]:
    found = functions_of((namespace or vars(module)).values())
    return {name: each for name, each in found.items() if each.__module__ == module.__name__}


def run_as(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType, source: str) -> None:
    """Functions of a module run as in another source, for whoever has imported them."""
    edited = dict(vars(module))
    exec(compile(source, module.__file__ or "", "exec"), edited)
    new = own_functions(module, edited)
    for name, function in own_functions(module).items():
        monkeypatch.setattr(function, "__code__", new[name].__code__)


# --- whole passes ----------------------------------------------------------------------------


SEEDS = range(240)
QUICK = (31, 36, 53, 142)
"""One of each architecture, and an encoder whose heads share keys, which run in a blink."""


def assert_same_steps(ours, theirs):
    for step, (one, other) in enumerate(itertools.zip_longest(ours, theirs)):
        assert one == other, f"step {step}"


@sampled("seed", SEEDS, named(*QUICK))
def test_a_pass_is_that_of_the_trace(seed):
    case = drawn(seed)
    for number, theirs in traced(case).items():
        ours = taped(case, number)
        assert_same_steps(ours.tape.levels, theirs.levels)
        figures = noted(ours)
        for name, figure in theirs.figures.items():
            assert figures[name] == figure, (number, name)


@sampled("seed", SEEDS, named(*QUICK))
def test_a_pass_holds_what_real_tensors_hold(seed):
    case = drawn(seed)
    if case.dtype is dtypes.FLOAT16:  # of which CPUs have no fused softmax
        case = dataclasses.replace(case, dtype=dtypes.BFLOAT16)
    for number, levels in witnessed(case).items():
        assert_same_steps(common(taped(case, number).tape.levels), common(levels))


# --- what is drawn


def compared(size, other):
    return "equal to" if size == other else "above" if size > other else "below"


def features_of(case):
    """What a case has, in words."""
    c, w, sam = case.dimensions.decoder, case.workload, case.dimensions.sam
    views = [view.resolution // 16 for view in w.views]
    kinds = {c.is_moe(index) for index in range(c.layers)}
    is_plain, is_mixed, is_cut = not c.use_mla, True in kinds, w.local_views is not None
    is_dynamic = c.use_mla and c.rope_scaling == "dynamic"
    columns, rows = w.grid
    choices = w.batch_size * w.seq_len * c.num_experts_per_tok
    has = {
        "one head": is_plain and c.heads == 1,
        "one kv head": is_plain and c.heads > c.kv_heads == 1,
        "grouped heads": is_plain and c.heads > c.kv_heads > 1,
        "as many kv heads": is_plain and c.heads == c.kv_heads > 1,
        f"beyond trained {w.seq_len > c.max_position_embeddings}": is_dynamic,
        "dense and mixed layers": len(kinds) == 2,
        c.topk_method: is_mixed,
        c.scoring_func: is_mixed,
        f"shared {c.n_shared_experts}": is_mixed,
        f"norm {c.norm_topk_prob and c.num_experts_per_tok > 1}": is_mixed,
        "fewer choices than experts": is_mixed and choices < c.n_routed_experts,
        "one column": is_cut and columns == 1,
        "one row": is_cut and rows == 1 < columns,
        "several of both": is_cut and columns > 1 < rows,
        "local views of one token": is_cut and views[0] <= 4,
        "local views of several": is_cut and views[0] > 4,
        "window": c.sliding_window is not None,
    }
    return {
        *(case.architecture, case.dtype.name, f"batch {w.batch_size}", f"{w.prompt_pages} pages"),
        *(f"act {c.hidden_act}", f"bias {c.attention_bias}", f"tied {c.tie_word_embeddings}"),
        f"latent {c.use_mla}, flash {case.flash}, {c.rope_scaling}",
        f"projector {case.dimensions.projector.projector_type}",
        *(words for words, is_so in has.items() if is_so),
        *(
            f"{'global' if index in sam.global_attn_indexes else 'windowed'},"
            f" {compared(g, WINDOW)} window"
            for index, g in itertools.product(range(sam.layers), views)
        ),
        *(f"grid {compared(g, sam.image_size // sam.patch)} table" for g in views),
    }


EXPECTED = {
    *(ONE, TWO, UNLIMITED, "bfloat16", "float32", "float16", "batch 1", "batch 3"),
    *("1 pages", "2 pages", "3 pages", "window"),
    *("bias True", "bias False", "tied True", "tied False"),
    *("one head", "one kv head", "grouped heads", "as many kv heads"),
    *("dense and mixed layers", "fewer choices than experts"),
    *("greedy", "group_limited_greedy", "noaux_tc", "softmax", "sigmoid"),
    *("shared None", "shared 1", "norm True", "norm False"),
    *("beyond trained True", "beyond trained False"),
    *(f"latent True, flash {flash}, {kind}"
      for flash in (False, True) for kind in (None, "linear", "dynamic", "yarn")),
    *(f"latent False, flash {flash}, None" for flash in (False, True)),
    *(f"projector {kind}"
      for kind in ("identity", "linear", "mlp_gelu", "hybrid_split_feature_mlp_gelu")),
    *(f"{kind}, {size} window"
      for kind in ("global", "windowed") for size in ("above", "equal to", "below")),
    *("grid above table", "grid equal to table", "grid below table"),
    *("one column", "one row", "several of both"),
    *("local views of one token", "local views of several"),
}  # fmt: skip


def test_the_drawn_cases_have_all_that_differs():
    found = set().union(*(features_of(drawn(seed)) for seed in SEEDS))
    assert {*EXPECTED, *(f"act {name}" for name in modules.ACTIVATIONS)} - found == set()


# --- negative controls: edits of forwards that the comparison with a trace must notice -----------


# Name, seed of a drawn case that shows it, module, what replaces texts that occur once, and what
# must differ; what else may is not said.
CONTROLS = {
    "a kept name is used in place": (
        324,
        tape.modules,
        {
            '    variance = t.reduce("mean", t.map("pow", wide), rows, d)\n': "",
            't.map("add", variance)': 't.map("add", t.reduce("mean", t.map("pow", wide), rows, d))',
            "t.hold(variance, wide)": "t.hold(wide)",
        },
        {"levels"},
    ),
    "a product's copies are freed early": (
        324,
        attention,
        {
            "    copy_of_a = None if": "    None if",
            "    copy_of_b = None if": "    None if",
            "    t.hold(copy_of_a, copy_of_b)\n": "",
        },
        {"levels"},
    ),
    "scores are kept through softmax": (
        324,
        attention,
        {"    weights = t.cast(t.softmax(": "    x, weights = weights, t.cast(t.softmax("},
        {"levels"},
    ),
    "one more name is kept": (
        324,
        attention,
        {
            't.call("act_fn", ACTIVATIONS[act]': '(y := t.call("act_fn", ACTIVATIONS[act]',
            "linear, x, n, d, f)),": "linear, x, n, d, f))),",
        },
        {"levels"},
    ),
    "a record reads the copy": (
        186,
        attention,
        {
            '("matmul", gemm, a, b)': '("matmul", gemm, a, copy_of_b or copy_of_a or b)',
        },
        {"records"},
    ),
    "heads and those of keys are swapped": (
        324,
        attention,
        {'t.call("k_proj", linear, x, n, d, kv * D': 't.call("k_proj", linear, x, n, d, H * D'},
        {"cache", "levels", "records", "weights"},
    ),
    "an expert gets a token too few": (
        125,
        decoder,
        {"swiglu, x, n_longer, *sizes": "swiglu, x, share, *sizes"},
        {"levels", "records"},
    ),
    "a bias is left out": (
        324,
        vision,
        {"c.width, f, bias=True": "c.width, f"},
        {"records", "weights"},
    ),
    "the last prompt's tokens are kept": (
        324,
        passes,
        {"        seen.tokens = None  # frees those of the last prompt first\n": ""},
        {"levels"},
    ),
    "the last page's tokens are kept": (
        124,
        deepseek_ocr_2,
        {
            "features.tokens = features.semantic": "pass",
            "projector, features.tokens, N": "projector, features.semantic, N",
        },
        {"levels"},
    ),
    "a mask is added under another name": (
        324,
        attention,
        {
            'weights = t.map("add", weights, mask)': 'x = t.map("add", weights, mask)',
            "t.softmax(weights, p.tokens": "t.softmax(weights if mask is None else x, p.tokens",
        },
        {"levels"},
    ),
    "a cast is left out": (
        324,
        attention,
        {
            "weights = t.cast(t.softmax(weights": "weights = (t.softmax(weights",
            "p.tokens * H, K), t.dtype)": "p.tokens * H, K))",
        },
        {"levels", "records"},
    ),
    "rotary tables are freed early": (
        324,
        attention,
        {"rotated(t, k, cos, sin)\n": "rotated(t, k, cos, sin)\n    cos = sin = None\n"},
        {"levels"},
    ),
    "an operator has another's name": (
        124,
        decoder,
        {'t.product("einsum"': 't.product("matmul"'},
        {"levels", "records"},
    ),
    "a norm's fp32 input is kept under its name": (
        324,
        tape.modules,
        {
            'wide = t.map("mul", wide, t.map("rsqrt"': 'y = t.map("mul", wide, t.map("rsqrt"',
            "t.cast(wide, x.dtype), t.weight(d))": "t.cast(y, x.dtype), t.weight(d))",
        },
        {"levels"},
    ),
    "attention's output is kept": (
        324,
        decoder,
        {"    del attended\n": ""},
        {"levels"},
    ),
    "the router's denominators are freed": (
        125,
        decoder,
        {
            '        denominator = t.map("add", t.reduce("sum", weights, n, k))\n': "",
            "weights, denominator)": 'weights, t.map("add", t.reduce("sum", weights, n, k)))',
            "        t.hold(denominator)\n": "",
        },
        {"levels"},
    ),
    "the chosen groups' scores are freed": (
        324,
        decoder,
        {"    if k > 1 and c": "    ranking = ()\n    if k > 1 and c"},
        {"levels"},
    ),
    "a norm of features stored by channel copies nothing": (
        324,
        vision,
        {'"norm2", layer_norm, x, n, d, channels_first=True': '"norm2", layer_norm, x, n, d'},
        {"levels", "records"},
    ),
    "what a full window overwrites with is freed": (
        119,
        attention,
        {"(k, v) if p.overwrites else ()": "()"},
        {"levels"},
    ),
    "the cache keeps another tensor": (
        124,
        decoder,
        {"return out, k_pe, latent, *tables": "return out, k_pe, k_pe, *tables"},
        {"cache", "levels"},
    ),
    "queries are freed once they are joined": (
        141,
        decoder,
        {"    v: Operand = t.view": "    query = None\n    v: Operand = t.view"},
        {"levels"},
    ),
    "a frequency's inverse frees its operand": (
        124,
        decoder,
        {
            "kept = _inverse(t, _yarn": 'kept = t.map("mul", t.map("reciprocal", _yarn',
            "_periods(t, half))\n": "_periods(t, half)))\n",
        },
        {"levels"},
    ),
    "a child is not called": (
        324,
        attention,
        {
            't.call("act_fn", ACTIVATIONS[act], ': "ACTIVATIONS[act](t, ",
        },
        {"calls", "levels", "records"},
    ),
    "weights that never run are left out": (
        324,
        deepseek_ocr,
        {'    t.idle("patch_embedding", methodcaller(': "    (("},
        {"weights"},
    ),
    "a page's tokens are kept twice": (
        125,
        passes,
        {"pages.append(seen.page)": 'pages.append(t.move("clone", seen.page))'},
        {"levels", "records"},
    ),
    "differences of positions are kept": (
        69,
        attention,
        {
            't.map("ge", t.map("sub"': 't.map("ge", x := t.map("sub"',
        },
        {"levels"},
    ),
}


@functools.cache
def noticed_unedited(seed):
    return noticed(*with_trace(seed))


@pytest.mark.parametrize("name", CONTROLS)
def test_an_edit_is_noticed(name, monkeypatch):
    seed, module, edits, notices = CONTROLS[name]
    case, theirs = with_trace(seed)
    source = inspect.getsource(module)
    for old, new in edits.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    assert not noticed_unedited(seed)
    run_as(monkeypatch, module, source)
    assert noticed(case, theirs) >= notices


# --- names that keep memory


class Name(NamedTuple):
    """A local name of a forward."""

    module: types.ModuleType
    function: str
    name: str

    def __str__(self) -> str:
        return f"{self.module.__name__.rpartition('.')[2]}-{self.function}-{self.name}"


def is_hold(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "hold"


def names_in(nodes: Iterable[ast.AST], context: type = ast.expr_context) -> set[str]:
    """Names with some use in nodes, themselves alone."""
    found = (each for each in nodes if isinstance(each, ast.Name))
    return {each.id for each in found if isinstance(each.ctx, context)}


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
            held = set().union(*(names_in(ast.walk(each)) for each in walked if is_hold(each)))
            names = names_in(walked, ast.Store) | {each.arg for each in node.args.args}
            for name in sorted(names - {"self", "t"}):
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
    *("decoder-_additive_mask-causal", "attention-rotary_tables-sin", "vision-_block-shortcut"),
    *(
        "vision-_attention-fused",
        "vision-_relative_positions-table",
        "deepseek_ocr-absolute_positions-patches",
    ),
    *("deepseek_ocr-clip-hidden_states", "deepseek_ocr_2-qwen2_encoder-x_combined"),
    *("deepseek_ocr_2-_attention-key", "deepseek_ocr_2-_attention-value", "modules-_laplace-x"),
}
NAMES = [pytest.param(*each, id=str(each[0])) for each in local_names()]


def test_names_held_to_the_last_exist():
    assert {str(name) for name, is_held in local_names() if is_held} >= HELD_TO_THE_LAST


@sampled(("name", "is_held"), NAMES, named("modules-rms_norm-variance", "vision-_attention-rows"))
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


# --- a tape's figures are the same wherever it runs; where something keeps tensors, there are none


@pytest.fixture(scope="module")
def plain():
    return digest()


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_figures_are_the_same_under_other_interpreters(version, plain):
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", "import msgspec"]).returncode:
        pytest.skip(f"there is no python{version} with msgspec")
    here = Path(__file__).parent
    code = f"import sys; sys.path[:0] = {[str(here), str(here.parent / 'src')]}; "
    code += "import taped_passes; print(taped_passes.digest())"
    run = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == plain, run.stderr


# --- circumstances


@contextlib.contextmanager
def watched(watch, install=sys.settrace, installed=sys.gettrace):
    """Under a tracer or a profiler."""
    before = installed()
    install(watch)
    try:
        yield
    finally:
        install(before)


def keeper(frames, wanted=lambda frame: True):
    """A tracer that keeps frames."""

    def watch(frame, event, argument):
        if wanted(frame):
            frames.append(frame)
        return watch

    return watch


@contextlib.contextmanager
def handling():
    """While an exception is handled, after forwards have failed whose frames are kept."""

    class Failing(tape.Tape):
        def softmax(self, x, rows, width):
            raise ValueError

    kept = []
    for seed in DIGESTED:
        try:
            taped(drawn(seed), kind=Failing)
        except ValueError as error:
            kept.append(error)
    try:
        raise kept[0]
    except ValueError:
        yield


@contextlib.contextmanager
def uncollected():
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "circumstance",
    [
        lambda: watched(keeper([], lambda frame: False)),
        lambda: watched(keeper([], lambda frame: False), sys.setprofile, sys.getprofile),
        *(handling, uncollected),
    ],
    ids=["traced", "profiled", "exception", "without a garbage collector"],
)
def test_figures_are_the_same_in_any_circumstance(circumstance, plain):
    with circumstance():
        assert digest() == plain


def test_figures_are_the_same_in_threads(plain):
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: digest(), range(4))) == {plain}


# --- refused


def test_frames_that_are_kept():
    with watched(keeper([])), pytest.raises(RuntimeError, match="still alive"):
        taped(drawn(36), kind=tape.Tape)


def test_one_frame_that_is_kept_by_a_thread():
    """As a profiler does that samples the stacks of all threads."""
    frames, wanted = [], threading.get_ident()

    class Sampled(tape.Tape):
        def softmax(self, x, rows, width):
            if not frames:
                with ThreadPoolExecutor(1) as pool:
                    frames.append(pool.submit(sys._current_frames).result()[wanted])
            return super().softmax(x, rows, width)

    case = drawn(124)
    with pytest.raises(RuntimeError, match="still alive"):
        taped(case, kind=Sampled)
    assert frames


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="locals are no longer copied")
def test_variables_that_a_debugger_looks_at_once():
    """Before 3.13, a frame keeps what `f_locals` has shown until it is asked again."""
    lines, first = inspect.getsourcelines(attention._eager)
    place = first + next(n for n, line in enumerate(lines) if "if mask is not None" in line)

    def look(frame, event, argument):
        if frame.f_code is not attention._eager.__code__:
            return None
        if event == "line" and frame.f_lineno == place:
            assert frame.f_locals["weights"].n
        return look

    page = DEFAULT.plan(page=(1240, 1754), text_tokens=6000)  # whose peak is there
    dimensions = DEFAULT.forms.dimensions(ModelDirectory.read(DEFAULT.reference).config)
    with watched(look), pytest.raises(RuntimeError, match="is wrong"):
        closed_forms.ClosedForms.compose.__wrapped__(
            DEFAULT.forms, dimensions, page, dtypes.BFLOAT16, False
        )


def test_a_command_ends_in_one_line(capsys):
    with watched(keeper([], lambda frame: "ocr_family" in frame.f_code.co_filename)):
        code = cli.main(["--engine", "analytic", "--page", "1111x2222"])  # not counted before
    output = capsys.readouterr()
    assert (code, output.out, output.err.count("\n")) == (70, "", 1)
    assert "still alive" in output.err
