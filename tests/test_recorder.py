"""Who called what: attribution to module paths, repetition of alike modules, memory, residue."""

import contextlib
import copy
import itertools
import re
import shutil
from collections import Counter
from functools import partial, reduce
from types import MethodType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from both_engines import LATENT, SMALL, directory_with, small_directory
from drawn_passes import TWO, UNLIMITED, drawn
from relatives import FAMILY
from sampling import first, named, sampled
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from tracing import (
    Calls,
    LevelRecorder,
    Net,
    but_copies,
    by_path,
    by_place,
    chain,
    meta,
    paths_of,
    places_of,
    total,
    trace_of,
    witnessed_flops,
)
from vendor_checkout import VENDOR, needs_vendor

from dsocr_analyze import DeepSeekOCRSession, errors, figures
from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.kernels import Attention, Work, merged
from dsocr_analyze.model import known_values, loading
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import running
from dsocr_analyze.trace import matrix_rules, record
from dsocr_analyze.trace.passes import recorded_flash_attention, trace_passes
from dsocr_analyze.trace.recorder import Recorder

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")

BF16 = torch.bfloat16
EITHER_WAY = pytest.mark.parametrize("alike", [None, by_path])


def on_meta(module):
    return module.to("meta").eval()


def fail(*_, **__):
    raise ValueError("on purpose")


def unless_it_fails(call, otherwise):
    try:
        return call()
    except ValueError:
        return otherwise


def torn(*_):
    """A forward that has done something before it fails."""
    return torch.ones(2, 3, device="meta") + fail()


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


# --- attribution -----------------------------------------------------------------------------


SHARED = nn.Linear(3, 3)
PLACED = {
    "nested modules own what their own forward calls": (
        lambda: Net(
            lambda self, x: torch.sigmoid(self.inner(x)),
            inner=Net(lambda self, x: F.relu(self.linear(x)), linear=nn.Linear(3, 5)),
        ),
        "inner.linear/linear inner/relu /sigmoid",
        ["", "inner", "inner.linear"],
    ),
    "a functional call belongs to the caller; a module never called has no calls": (
        lambda: Net(lambda self, x: F.linear(x, self.linear.weight), linear=nn.Linear(3, 5)),
        "/linear",
        [""],
    ),
    "a module called twice counts twice": (
        lambda: Net(chain("a", "a"), a=nn.Linear(3, 3)),
        "a/linear a/linear",
        ["", "a", "a"],
    ),
    "a direct forward is a call": (
        lambda: Net(lambda self, x: self.a.forward(x), a=nn.Linear(3, 5)),
        "a/linear",
        ["", "a"],
    ),
    "keyword-only arguments arrive": (
        lambda: Net(
            lambda self, x: self.a(x=x, factor=2), a=Net(lambda self, *, x, factor=1: x * factor)
        ),
        "a/mul",
        ["", "a"],
    ),
    "recursion ends where it began": (
        lambda: Net(lambda self, x, n=3: self(x * 2, n - 1) if n else torch.sigmoid(x)),
        "/mul /mul /mul /sigmoid",
        [""] * 4,
    ),
    "a shared module works for its caller": (
        lambda: Net(
            chain("a", "b"),
            a=Net(chain("inner"), inner=SHARED),
            b=Net(chain("inner"), inner=SHARED),
        ),
        "a.inner/linear b.inner/linear",
        ["", "a", "a.inner", "b", "b.inner"],
    ),
    "a module made in forward works for its maker": (
        lambda: Net(chain("a"), a=Net(lambda self, x: nn.Linear(3, 5, device="meta")(x))),
        "a/uniform a/uniform a/linear",
        ["", "a"],
    ),
    "containers name their items": (
        lambda: Net(
            lambda self, x: self.tail(self.layers[1](self.layers[0](x))),
            layers=nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]),
            tail=nn.Sequential(nn.ReLU(), nn.Linear(3, 1)),
        ),
        "layers.0/linear layers.1/linear tail.0/relu tail.1/linear",
        ["", "layers.0", "layers.1", "tail", "tail.0", "tail.1"],
    ),
    "an exception that the model survives misplaces nothing": (
        lambda: Net(
            lambda self, x: self.b(unless_it_fails(lambda: self.a(x), x) * 2),
            a=Net(chain("deep"), deep=Net(lambda self, x: (x + 1, fail()))),
            b=nn.Sigmoid(),
        ),
        "a.deep/add /mul b/sigmoid",
        ["", "a", "a.deep", "b"],
    ),
    "a scripted function is seen operator by operator": (
        lambda: Net(chain("a"), a=Calls(scripted)),
        "a/mul a/sigmoid a/mul",
        ["", "a"],
    ),
}


@pytest.mark.parametrize(("net", "places", "calls"), PLACED.values(), ids=PLACED)
def test_work_belongs_to_the_module_whose_own_forward_does_it(net, places, calls):
    net = on_meta(net())
    for alike in (None, by_path) * 3:  # scripted functions that were seen are optimised
        trace = trace_of(net, meta(2, 3), alike=alike)
        assert ([*map("/".join, places_of(trace))], trace.calls) == (places.split(), calls)


def test_modules_may_return_anything():
    net = Net(
        lambda self, x: self.c(self.b(self.a(x))["y"][0]),
        a=Net(lambda self, x: (x + 1, None, 3)),
        b=Net(lambda self, t: {"y": [t[0] * t[2]]}),
        c=Net(lambda self, x: None),
    )
    for alike in (None, by_path):
        trace = trace_of(on_meta(net), meta(2), alike=alike)
        assert places_of(trace) == [("a", "add"), ("b", "mul")]
        assert trace.shapes["b"] == ([[(2,), None, None]], [[(2,)]])


def test_a_failing_hook_of_somebody_else_misplaces_nothing():
    net = Net(
        chain("inner"),
        inner=Net(lambda self, x: unless_it_fails(lambda: self.a(x), x) * 2, a=nn.ReLU()),
    )
    hooked = nn.modules.module.register_module_forward_pre_hook
    for hook in (net.inner.a.register_forward_pre_hook, hooked):
        with hook(lambda module, _: fail() if isinstance(module, nn.ReLU) else None):
            assert paths_of(trace_of(on_meta(net), meta(2)), "mul") == ["inner"]


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_a_recurrent_net_is_counted_or_reported(kind, gates):
    trace = trace_of(kind(4, 5).to("meta"), meta(2, 3, 4))
    assert total(trace).macs == 2 * 3 * gates * 5 * (4 + 5)
    on_cpu = trace_of(kind(4, 5), torch.randn(2, 3, 4))
    assert on_cpu.unknown or total(on_cpu).macs == total(trace).macs


@EITHER_WAY
def test_a_scripted_module_counts_under_its_own_path(alike):
    a = torch.jit.script(nn.Sequential(nn.Linear(3, 5), nn.ReLU()))
    trace = trace_of(Net(chain("a"), a=a).eval(), torch.randn(2, 3), alike=alike)
    assert (total(trace).macs, trace.calls) == (2 * 3 * 5, ["", "a"])
    assert {path for path, _ in places_of(trace)} == {"a"}
    assert not a._forward_hooks


# A net, its input's shape, and its products.
WITNESSED = {
    "mlp": (
        nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 3, bias=False)),
        (2, 3), 2 * (3 * 5 + 5 * 3),
    ),
    "conv": (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten()),
        (2, 3, 6, 6), 2 * 4 * (6 * 6) * (3 * 3 * 3),
    ),
    # In: 3 x 8 wide; two products of 2 heads of 4; out.
    "attention": (
        Net(
            lambda self, x: self.mha(x, x, x, need_weights=False),
            mha=nn.MultiheadAttention(8, 2, batch_first=True),
        ),
        (2, 3, 8), 2 * (3 * 8 * 24 + 2 * 3 * 3 * (4 + 4) + 3 * 8 * 8),
    ),
    "encoder, whose fast path is no way out": (
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
        ),
        (2, 3, 8), 2 * 2 * (3 * 8 * 24 + 2 * 3 * 3 * (4 + 4) + 3 * 8 * 8 + 2 * 3 * 8 * 16),
    ),
    "einsum": (
        Calls(lambda x: torch.einsum("bij,bkj->bik", x, x) @ x), (2, 3, 4), 2 * 2 * (3 * 3 * 4),
    ),
}  # fmt: skip


def test_the_cpu_and_an_outside_witness_count_what_meta_counts():
    for name, (net, shape, macs) in WITNESSED.items():
        on_cpu = trace_of(net.eval(), torch.randn(shape))
        net.to("meta")
        for alike in (None, by_path):
            trace = trace_of(net, meta(*shape), alike=alike)
            assert but_copies(on_cpu) == but_copies(trace), name
            assert total(trace).matrix_flops == witnessed_flops(net, meta(*shape)) == 2 * macs, name
        # Attention is one operator, with its mask.
        assert {"bmm", "softmax", "_softmax"}.isdisjoint(each.operator for each in trace.kernels)


# --- nothing is left behind ------------------------------------------------------------------


def left_in(model):
    """What modules hold, in order, and the modes in force."""
    tables = [
        [(name, [*value.items()] if isinstance(value, dict) else value) for name, value in own]
        for own in (vars(module).items() for module in model.modules())
    ]
    return tables, _get_current_function_mode_stack(), _get_current_dispatch_mode_stack()


class Stubborn(nn.Identity):
    register_forward_hook = fail


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("kind", "error"),
    [(nn.Identity, None), (lambda: Net(torn), ValueError), (Stubborn, ValueError),
     (lambda: Net(interrupt), KeyboardInterrupt)],
    ids=["it runs", "it fails", "entering fails", "it is interrupted"],
)  # fmt: skip
def test_nothing_is_left_in_modules_or_around_them(kind, error):
    net = Net(chain("a", "b"), a=nn.Linear(3, 3, device="meta"), b=kind())
    net.a.forward = MethodType(lambda self, x: x * 2, net.a)
    net.b.register_forward_pre_hook(lambda *_: None)  # what brings ours
    before = left_in(net)
    with pytest.raises(error) if error else contextlib.nullcontext():
        trace_of(net, meta(2, 3), alike=by_path)
    assert left_in(net) == before


@EITHER_WAY
def test_hooks_of_others_survive_and_run_every_time(alike):
    net, seen = on_meta(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))), []
    for layer in net:
        layer.register_forward_pre_hook(lambda m, args: seen.append("before"))
        layer.register_forward_hook(lambda m, args, output: output + 1)
    trace = trace_of(net, meta(2, 3), alike=alike, times=2)
    # A module's hooks work for the module.
    assert (seen, paths_of(trace, "add")) == (["before"] * 4, ["0", "1"] * 2)
    assert all(len(m._forward_hooks) == len(m._forward_pre_hooks) == 1 for m in net)


# --- repeating equal modules -----------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.norm, self.linear, self.layers = nn.LayerNorm(4), nn.Linear(4, 4), layers

    def forward(self, x, scale=1):
        for _ in range(self.layers):
            x = x + self.linear(self.norm(x)) * scale
        return x


def stack(*blocks, each=lambda block, x: block(x)):
    return Net(
        lambda self, x: reduce(lambda x, block: each(block, x), self.blocks, x),
        blocks=nn.ModuleList(blocks),
    )


def several(count, forward, **children):
    return [Net(forward, **children) for _ in range(count)]


def counting(self, x):
    """Does more every time it is called."""
    self.calls += 1
    return reduce(torch.add, [1] * self.calls, x)


def tabled(self, x):
    """Keeps what it returns, as rotary embeddings do."""
    if self.table is None:
        self.table = x * 2
    return self.table


def remembering(self, x):
    self.last = x * 2
    return self.last + 1


def with_buffer(net, name, value):
    net.register_buffer(name, value)
    return net


def hooked(block):
    block.linear.register_forward_hook(lambda m, args, output: output * 2)
    return block


def patched(block):
    block.linear.forward = lambda x: x
    return block


def reaching_in_secret(other):
    return [Net(lambda self, x: self.reach(x), reach=other.forward) for _ in range(3)]


def pairs(self, x, y):
    return x + 1 if x is y else x + y * 2


def summed(self, x):
    return x + 1 if x.sum().item() else torch.sigmoid(x)


def causal(self, x):
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)


REPEATED = {
    "equal blocks": lambda: stack(Block(), Block(), Block()),
    "other settings": lambda: stack(Block(), Block(3), Block()),
    "a parameter of another shape": lambda: stack(
        *(
            Net(lambda self, x: x + self.weight.sum(), weight=nn.Parameter(torch.ones(size)))
            for size in (4, 8, 4)
        )
    ),
    "another activation": lambda: stack(*(nn.Sequential(act()) for act in (nn.ReLU, nn.SiLU))),
    "one block again and again": lambda: stack(*[Block()] * 3),
    "an argument differs": lambda: stack(
        Block(), Block(), each=lambda block, x: block(x, scale=len(x.shape))
    ),
    "1 and 1.0 and True": lambda: Net(
        lambda self, x: self.a(x, 1) + self.a(x, 1.0) + self.a(x, True),
        a=Net(lambda self, x, s: x.long() * s + type(s)(1)),
    ),
    "tensors in a list": lambda: stack(
        *several(3, lambda self, xs: xs[0] + 1), each=lambda block, x: block([x])
    ),
    "a stride differs": lambda: Net(
        lambda self, x: self.a(x) + self.b(x.t()),
        **dict(zip("ab", several(2, lambda self, x: x.contiguous() * 2), strict=True)),
    ),
    "one tensor twice, or two": lambda: Net(
        lambda self, x: self.a(x, x) + self.b(x, x.clone()), a=Net(pairs), b=Net(pairs)
    ),
    "self-attention and cross-attention": lambda: Net(
        lambda self, x: self.a(x, x, x)[0] + self.b(x, x + 1, x * 2)[0],
        a=nn.MultiheadAttention(4, 2, batch_first=True),
        b=nn.MultiheadAttention(4, 2, batch_first=True),
    ),
    "a counter": lambda: stack(*several(1, counting, calls=0) * 3),
    "a table kept and returned": lambda: stack(
        *(with_buffer(net, "table", None) for net in several(3, tabled)),
        each=lambda block, x: block(x) + x,
    ),
    "a buffer updated in place": lambda: stack(
        *[with_buffer(Net(lambda self, x: x * self.seen.add_(x.sum(0))), "seen", torch.zeros(4))]
        * 3
    ),
    "an output kept alive": lambda: stack(*several(3, remembering)),
    "an output kept alive by the same module": lambda: stack(*several(1, remembering) * 3),
    "input modified in place": lambda: stack(*several(3, lambda self, x: x.mul_(2))),
    "input modified through a view": lambda: stack(
        *several(3, lambda self, x: x.view(-1).mul_(2).sum() + x)
    ),
    "output is the input": lambda: stack(*(nn.Identity() for _ in range(3))),
    "output is a view of the input": lambda: stack(
        *several(4, lambda self, x: x.t()), each=lambda block, x: block(x) + 1
    ),
    "output is a parameter": lambda: stack(
        *(nn.Linear(4, 4) for _ in range(3)), each=lambda block, x: x + block.weight
    ),
    "outputs share memory": lambda: stack(
        *several(3, lambda self, x: (x * 2).chunk(2, -1)),
        each=lambda block, x: torch.cat(block(x), -1),
    ),
    "output is a view of something larger": lambda: stack(
        *several(3, lambda self, x: torch.cat([x, x])[:4])
    ),
    "a tuple with None": lambda: stack(
        *several(3, lambda self, x: (x * 2, None, x + 1)),
        each=lambda block, x: block(x)[2],
    ),
    "output is no tensor": lambda: stack(
        *several(3, lambda self, x: int(x.shape[0])),
        each=lambda block, x: x * block(x),
    ),
    "hooks of others": lambda: stack(Block(), hooked(Block()), Block()),
    "a forward of its own": lambda: stack(Block(), patched(Block()), Block()),
    "causal": lambda: stack(*several(3, causal)),
    "causal, one module": lambda: stack(*several(1, causal) * 3),
    "a module reached in secret": lambda: Net(
        chain("blocks", "other"),
        other=(other := nn.Linear(4, 4)),
        blocks=stack(*reaching_in_secret(other)),
    ),
    "an argument is enlarged": lambda: stack(
        *several(3, lambda self, x: x.resize_(x.shape[0] + 1, 4) * 2)
    ),
    "a result in a place that grows": lambda: stack(
        *several(3, lambda self, x: torch.mul(x, 2, out=x.new_empty(0)))
    ),
    "under vmap": lambda: stack(
        *(Block() for _ in range(3)), each=lambda block, x: torch.vmap(block)(x)
    ),
    "in inference mode": lambda: Net(
        torch.inference_mode()(lambda self, x: self.blocks(x * 1)), blocks=stack(Block(), Block())
    ),
    "a known value": lambda: Net(
        lambda self, x: self.a(torch.zeros_like(x)) + self.b(torch.ones_like(x)),
        **dict(zip("ab", several(2, summed), strict=True)),
    ),
    "what a module knows": lambda: Net(
        lambda self, x: x + self.a(x).sum().item() + self.b(x).sum().item(),
        **dict(zip("ab", several(2, lambda self, x: torch.topk(x, 2)[1]), strict=True)),
    ),
    "shapes of a later call": lambda: Net(
        lambda self, x: self.a(x[:2]).sum() + self.a(x) + self.b(x),
        a=nn.Linear(4, 4),
        b=nn.Linear(4, 4),
    ),
}


def named_by_letters(path: str) -> str:
    """As by place, and `a` and `b` alike."""
    return re.sub(r"\b[ab]\b", "either", by_place(path))


def test_repeating_alike_modules_changes_nothing():
    for (name, make), times in itertools.product(REPEATED.items(), (1, 2)):
        with known_values.KnownValues():
            once, every = (
                trace_of(on_meta(make()), meta(4, 4), alike=alike, times=times)
                for alike in (named_by_letters, None)
            )
        assert once == every, (name, times)


class Watched(nn.Linear):
    def forward(self, x):
        self.ran.append(self)
        return super().forward(x)


@pytest.mark.parametrize(
    ("make", "alike", "runs"),
    [
        (lambda: [Block(1) for _ in range(5)], by_place, 1),
        (
            lambda: [Block(1) for _ in range(3)],
            lambda path: None if path.startswith("blocks.2") else by_place(path),
            2,
        ),
        (lambda: [Block(1) for _ in range(3)], by_path, 3),
        (lambda: [Block(1) for _ in range(3)], None, 3),
        (lambda: [Block(1)] * 3, by_path, 1),
    ],
)
def test_a_block_is_repeated_only_where_it_is_declared_alike(make, alike, runs):
    blocks, ran = make(), []
    for block in blocks:
        block.linear.__class__, block.linear.ran = Watched, ran
    trace_of(on_meta(stack(*blocks)), meta(4, 4), alike=alike)
    assert len(ran) == runs


def test_values_are_never_repeated():
    net, x = stack(Block(layers=1), Block(layers=1)).eval(), torch.randn(4, 4)
    with torch.no_grad(), Recorder(net, by_place) as recorder:
        recorder.begin()
        assert torch.equal(net(x), net(x))
        recorded = net(x)
    assert torch.equal(recorded, net(x))


def test_another_mode_or_a_global_hook_sees_every_module():
    net, seen = on_meta(stack(Block(), Block())), []
    traced = partial(trace_of, net, alike=by_place)
    assert witnessed_flops(traced, meta(4, 4)) == 2 * 2 * 2 * 4 * 4 * 4
    with nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(m)):
        traced(meta(4, 4))
    assert len(seen) == 1 + 2 * (1 + 2 * 2)


# --- repeating equal operators ---------------------------------------------------------------


class Listing(TorchDispatchMode):
    """Other code's mode, which wants to see every operator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        vars(self).setdefault("seen", []).append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def called_again(self, x):
    """Outputs alone, with copies or other memory inside, several, in place, and no kernel."""
    return [
        output
        for _ in range(3)
        for output in (
            self.linear(x),
            self.linear(x.transpose(0, 1)),  # copies its input
            x @ x[:1].transpose(1, 2),  # expands one operand
            torch.softmax(x, -1, dtype=torch.float32),
            F.scaled_dot_product_attention(x, x, x),
            torch.einsum("bij,bkj->bik", x, x),
            F.layer_norm(x.transpose(0, 1), (8,)),
            *torch.topk(x, 2),
            (x + 1.0).mul_(2),
            x * 1,
            x * True,
            torch.empty_like(x),
        )
    ]


def test_operators_that_are_not_run_again_are_recorded_as_if_they_were():
    found = []
    for watching in (contextlib.nullcontext(), Listing()):
        model = Net(called_again, linear=nn.Linear(8, 8)).to("meta", BF16)
        with torch.no_grad(), watching, LevelRecorder(model) as recorder:
            trace = recorder.begin()
            outputs = model(meta(4, 6, 8, dtype=BF16))
        shown = [(each.shape, each.stride(), each.dtype) for each in outputs]
        found.append((trace, trace.levels, shown))
    assert found[0] == found[1]
    assert watching.seen.count("topk") == 3


def differentiating(self, x):
    """Makes the same product without and with gradients, and under a mode of its own."""
    self.linear(x)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(self.linear(x).sum(), self.linear.weight)
    with self.watching:
        self.linear(x)
    return gradient


def test_an_operator_that_the_model_differentiates_or_watches_runs_again():
    model = Net(differentiating, linear=nn.Linear(8, 8), watching=Listing()).to("meta")
    assert trace_of(model, meta(4, 8)).shapes[""][1] == (8, 8)
    assert "addmm" in model.watching.seen


# --- memory ----------------------------------------------------------------------------------


def residual(x):
    y = x * 2  # 6
    z = torch.sigmoid(torch.exp(y))  # exp 6, sigmoid 6, then exp is freed
    return y + z  # 6


def in_place(x):
    x.mul_(2).view(-1)[:3].add_(1)
    return x.t()


def in_two_halves(x):
    y = x.new_empty(10)
    y[:5].copy_(x)
    y[5:].copy_(x)
    return y.view(2, 5)


def freed_in_between(x):
    y = x.new_empty(20).resize_(4000)
    z = y[:10] + 1  # beside 4,000: 10
    del y
    return torch.cat([z] * 1000)  # 10 and 10,000


def still_alive(x):
    y = x.new_empty(20).resize_(4000)
    return y, y[:10] + 1, y[:90] * 2


def twins(layer):
    return nn.Sequential(layer, copy.deepcopy(layer))


PEAKS = {
    "of a chain: its widest pair": (
        nn.Sequential(nn.Linear(2, 30), nn.Linear(30, 50), nn.Linear(50, 20), nn.ReLU()),
        [(1, 2)], 30 + 50, "1",
    ),
    "of equal layers: two of them": (
        nn.Sequential(*(nn.Linear(8, 8) for _ in range(5))), [(3, 8)], 24 + 24, "1",
    ),
    # 30 and 8 are alive at the end of each half; the second holds its input too.
    "where it first occurs": (
        twins(nn.Sequential(nn.Linear(8, 30), nn.Linear(30, 8))), [(1, 8)], 8 + 30 + 8, "1.1",
    ),
    "of the model's own forward": (
        Net(lambda self, x: torch.cat([self.a(x)] * 5), a=nn.Linear(4, 4)), [(2, 4)], 8 * 6, "",
    ),
    "of a residual, which holds the branch": (Calls(residual), [(6,)], 3 * 6, ""),
    "of views and changes in place": (Calls(in_place), [(2, 3)], 0, ""),
    "of an allocation and a storage, once": (Calls(in_two_halves), [(5,)], 10, ""),
    "of the storage behind a narrow view": (
        Calls(lambda x: torch.cat([x, x])[:1] + 1), [(6,)], 12 + 1, "",
    ),
    "of growth, until the tensor is freed": (Calls(freed_in_between), [(1,)], 10 + 10_000, ""),
    "of growth beside others": (Calls(still_alive), [(1,)], 4000 + 10 + 90, ""),
    "of an argument that grows, beyond what it was": (
        Calls(lambda x: torch.cat([x.resize_(4000), x])), [(20,)], 4000 - 20 + 8000, "",
    ),
    "of a parameter that grows, beyond what it was": (
        Net(lambda self: self.a.weight.data.resize_(40, 100), a=nn.Linear(4, 5, bias=False)),
        [], 4000, "",
    ),
    "of a result in a tensor of equal size": (
        Calls(lambda x, y, out: torch.mm(x, y, out=out)), [(2, 3), (3, 5), (2, 5)], 0, "",
    ),
    "of a layer norm, which copies its operands and returns statistics": (
        Calls(lambda x, w: F.layer_norm(x.expand(4, 8), (8,), w[::2])),
        [(1, 8), (16,)], 32 + 8 + 32 + 4 + 4, "",
    ),
    "where nothing is made on the model's device": (
        Net(lambda self: self.a((torch.ones(2, 3) + 1).to("meta")), a=nn.Linear(3, 5)),
        [], 6 + 10, "a",
    ),
}  # fmt: skip
"""By what a peak is of: a net, shapes of its inputs, elements of four bytes, and the path."""


def test_the_peak_is_what_is_alive_beyond_parameters_and_inputs():
    for (name, case), alike in itertools.product(PEAKS.items(), (None, by_place)):
        net, shapes, elements, path = case
        given = [meta(*shape) for shape in shapes]
        trace = trace_of(on_meta(copy.deepcopy(net)), *given, alike=alike)
        assert trace.peak == figures.Peak(4 * elements, path), name


def test_a_pass_starts_from_nothing_and_of_what_runs_around_the_model_memory_alone_counts():
    net = Net(lambda self, x: self.a(x * 2), a=on_meta(nn.Linear(8, 4, bias=False)))
    given = meta(2, 8)
    with torch.no_grad(), Recorder(net) as recorder:
        recorder.begin()
        before = net(given)
        trace = recorder.begin()
        kept = given * 2, net(given), given * 2
    assert places_of(trace) == [("", "mul"), ("a", "linear")]
    assert trace.peak.nbytes == 4 * (2 * 8 + 2 * 8 + 2 * 4)
    del before, kept


# Each case: a call, its arguments, the kernels' names and work, the free operators, and the peak.
MOVED = {
    "growth is a copy; both memories are alive meanwhile": (
        lambda: torch.empty(20, device="meta").resize_(4000), [], {},
        [("grow", Work(bytes_read=80, bytes_written=80))],
        {"empty": 1, "resize": 1}, 80 + 16_000,
    ),
    "growth within the memory that is there is free": (
        lambda x: (x[:2].resize_(5, 4), x.resize_(2, 3), x.resize_as_(x.new_empty(0))),
        [meta(5, 4)], {}, [], {"slice": 1, "resize": 2, "resize_as": 1, "new_empty": 1}, 0,
    ),
    "mm into a tensor of no size is the result": (
        torch.mm, [meta(2, 3), meta(3, 5)], {"out": meta(0)},
        [("mm", Work(30, 0, 10, 4 * (6 + 15), 4 * 10))], {}, 40,
    ),
    "matmul into a tensor of no size is the result": (
        torch.matmul, [meta(2, 3), meta(3, 5)], {"out": meta(0)},
        [("matmul", Work(30, 0, 10, 4 * (6 + 15), 4 * 10))], {}, 40,
    ),
    "into a smaller tensor copies what it held": (
        torch.mm, [torch.ones(2, 3), torch.ones(3, 5)], {"out": torch.ones(4)},
        [("grow", Work(0, 0, 0, 16, 16)), ("mm", Work(30, 0, 10, 4 * (6 + 15), 4 * 10))], {}, 40,
    ),
    "another memory is no more memory": (
        lambda x: (x.new_empty(0).set_(x), x.new_empty(5).set_(x * 2)), [meta(10)], {},
        [("mul", Work(0, 10, 0, 40, 40))], {"new_empty": 2, "set": 2}, 20 + 40,
    ),
    "a tensor that changes its device is read there and written here": (
        lambda x: x.to("meta", BF16) * 2, [torch.ones(10)], {},
        [("transfer", Work(0, 0, 0, 40, 20)), ("mul", Work(0, 10, 0, 20, 20))], {}, 20 + 20,
    ),
    "likewise into a tensor that is there": (
        lambda x, y: y.copy_(x), [torch.ones(10), meta(3, 10, dtype=BF16)], {},
        [("transfer", Work(0, 0, 0, 40, 60))], {}, 0,
    ),
    "a copy on one device is no transfer": (
        lambda x: x.to(BF16), [torch.ones(10)], {}, [("_to_copy", Work(0, 0, 0, 40, 20))], {}, 20,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(
    ("call", "args", "kwargs", "kernels", "free", "peak"), MOVED.values(), ids=MOVED
)
def test_what_is_moved_and_what_is_free(call, args, kwargs, kernels, free, peak):
    trace = trace_of(Calls(call), *copy.deepcopy(args), **copy.deepcopy(kwargs))
    assert [(kernel.operator, kernel.work) for kernel in trace.kernels] == kernels
    assert (trace.free, trace.peak.nbytes) == (free, peak)


def test_a_transfer_reads_one_type_and_writes_another():
    for call in (lambda x: x.to("meta", BF16), lambda x: meta(10, dtype=BF16).copy_(x)):
        *_, kernel = trace_of(Calls(call), torch.ones(10)).kernels
        assert kernel[:2] + kernel[3:5] == ("movement", "transfer", "float32", "bfloat16")


# --- what torch.func, torch.compile and others make of a call -------------------------------


WEIGHT = meta(5, 3)
ONES, JAGGED = [torch.ones(2, 3)], torch.jagged
TRANSFORMED = (
    lambda x: torch.vmap(lambda row: row * 2)(x),
    lambda x: torch.vmap(lambda row: F.linear(row, WEIGHT))(x),
    lambda x: torch.vmap(lambda row: WEIGHT @ row)(x),
    lambda x: torch.vmap(lambda row: torch.einsum("i,ji->j", row, WEIGHT))(x),
    lambda x: torch.vmap(lambda row: F.softmax(row, -1).sum())(x),
    lambda x: torch.vmap(lambda row: F.rms_norm(row, (3,)))(x),
    lambda x: torch.vmap(on_meta(nn.Linear(3, 2)))(x),
    lambda x: torch.vmap(torch.vmap(lambda a: a + 1))(x),
    lambda x: torch.vmap(lambda row: row @ row.T, in_dims=1)(x.view(2, 2, 3)),
    lambda x: torch.vmap(lambda q: F.scaled_dot_product_attention(q, q, q), randomness="different")(
        x.expand(2, 1, 4, 3)
    ),
    lambda x: torch.func.grad(lambda a: (a @ a.T).sum())(x),
    lambda x: torch.func.jvp(lambda a: a @ a.T, (x,), (x,))[1],
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("call", TRANSFORMED)
def test_transforms_are_counted_as_they_take_the_call_apart(call):
    for alike in (None, by_path):
        trace = trace_of(Calls(call), meta(4, 3), alike=alike)
        assert not trace.unknown
        assert total(trace).matrix_flops == witnessed_flops(call, meta(4, 3))
        assert total(trace).bytes_written > 0


def test_transforms_see_the_whole_batch():
    [kernel] = trace_of(Calls(TRANSFORMED[0]), meta(4, 3)).kernels
    assert (kernel.operator, kernel.work) == ("mul", Work(0, 12, 0, 48, 48))
    trace = trace_of(Calls(TRANSFORMED[1]), meta(4, 3))
    expected = Work(4 * 3 * 5, 0, 4 * 5, 4 * (12 + 15), 4 * 20)
    assert (total(trace), trace.peak.nbytes) == (expected, 4 * 20)


@pytest.mark.parametrize(
    ("make", "operators"),
    [
        (
            lambda: partial(
                torch.utils.checkpoint.checkpoint, lambda y: y * 2 + 1, use_reentrant=False
            ),
            ["mul", "add"],
        ),
        pytest.param(
            lambda: torch.compile(lambda x: F.linear(x, WEIGHT) * 2),
            ["linear", "mul"],
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["checkpoint", "compile"],
)
def test_a_checkpointed_or_compiled_function_runs_as_it_is_written(make, operators):
    assert [name for _, name in places_of(trace_of(Calls(make()), meta(4, 3)))] == operators


# What a module is; what it is given, where a layout stands for a nested tensor; what is said.
REFUSED = {
    "a nested tensor": (
        lambda: Calls(lambda x: torch.nested.nested_tensor([x, x]) * 2), ONES, "nested tensors",
    ),
    "a jagged tensor": (
        lambda: Calls(lambda x: F.linear(torch.nested.nested_tensor([x, x], layout=JAGGED), x)),
        ONES, "nested tensors",
    ),
    "a sparse tensor": (
        lambda: Calls(lambda x: x.to_sparse() @ x.T), ONES, "layout torch.sparse_coo",
    ),
    "a compressed sparse tensor": (
        lambda: Calls(lambda x: x.to_sparse_csr() @ x.T), ONES, "layout torch.sparse_csr",
    ),
    "a quantized tensor": (
        lambda: Calls(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).relu()),
        ONES, "torch.qint8",
    ),
    "a masked tensor": (
        lambda: Calls(lambda x: torch.masked.masked_tensor(x, x > 0) * 2), ONES,
        "type MaskedTensor",
    ),
    "cond": (
        lambda: Calls(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))), ONES,
        "operator cond",
    ),
    "a function compiled whole": (
        lambda: Calls(lambda x: torch.compile(torch.sin, backend="eager", fullgraph=True)(x)),
        ONES, "without fullgraph",
    ),
    **{
        f"flex_attention on {given[0].device.type}": (
            lambda: Calls(lambda x: flex_attention(*[x.view(1, 1, 2, 3)] * 3)), given,
            "flex_attention is not counted",
        )
        for given in (ONES, [meta(2, 3)])
    },
    **{
        f"{layout} given to {name}": (
            make, [layout], "nested tensors are not counted",
        )
        for layout in (torch.strided, JAGGED)
        for name, make in {
            "a module that computes": lambda: nn.Linear(3, 5),
            "one that does not": nn.Identity,
            "a function": lambda: Calls(torch.sum),
        }.items()
    },
    "a sparse parameter": (
        lambda: Net(fail, weight=nn.Parameter(torch.ones(3, 3).to_sparse())), [],
        "parameters and buffers: .*sparse_coo",
    ),
}  # fmt: skip
AT_ONCE = [name for name in REFUSED if "given" in name or "param" in name or "meta" in name]


@pytest.mark.filterwarnings("ignore")  # torch calls most of these prototypes
@sampled("name", REFUSED, named(*AT_ONCE))
def test_what_is_not_counted_is_refused_by_name(name):
    make, given, message = REFUSED[name]
    nested = partial(torch.nested.nested_tensor, ONES * 2)
    tensors = [nested(layout=x) if isinstance(x, torch.layout) else x for x in given]
    with pytest.raises(errors.UncountableError, match=message):
        trace_of(make(), *tensors)
    assert not _get_current_dispatch_mode_stack()


# --- causality -------------------------------------------------------------------------------


def test_what_lies_above_the_diagonal():
    for queries, keys in itertools.product(range(1, 6), repeat=2):
        scores = torch.ones(queries, keys)
        assert matrix_rules.keys_after_first(queries, keys) == int((scores.tril() == 0).sum())
        assert matrix_rules.keys_after_last(queries, keys) == int(
            (scores.tril(keys - queries) == 0).sum()
        )


@pytest.mark.parametrize(
    ("args", "kwargs", "skippable"),
    [
        ((), {"is_causal": True}, 2 * 3 * (3 + 2 + 1)),
        ((None, 0.0, True), {}, 2 * 3 * (3 + 2 + 1)),
        ((), {"attn_mask": None, "is_causal": True}, 2 * 3 * (3 + 2 + 1)),
        ((), {}, 0),
    ],
)
def test_what_a_causal_kernel_may_skip_is_noted_beside(args, kwargs, skippable):
    given = meta(2, 3, 4, 8), meta(2, 3, 4, 8), meta(2, 3, 4, 6)
    [kernel] = trace_of(Calls(F.scaled_dot_product_attention), *given, *args, **kwargs).kernels
    assert kernel.dimensions.skippable_scores == skippable
    assert kernel.work.macs == 2 * 3 * 4 * 4 * (8 + 6)


def test_flash_attention_may_skip_what_lies_behind_its_last_query():
    q, k, v = meta(2, 3, 4, 8), meta(2, 5, 4, 8), meta(2, 5, 4, 6)
    net = Calls(lambda: recorded_flash_attention(recorder)(q, k, v, causal=True))
    with Recorder(net) as recorder:
        trace = recorder.begin()
        assert net().shape == (2, 3, 4, 6)
    [kernel] = trace.kernels
    assert kernel.dimensions == Attention(2, 4, 4, 3, 5, 8, 6, skippable_scores=2 * 4 * (2 + 1))


_WIDTHS = SMALL["vision_config"]["width"]
OTHER_BLOCKS = _WIDTHS | {
    "sam_vit_b": _WIDTHS["sam_vit_b"] | {"layers": 5, "global_attn_indexes": [0, 2]},
}
ONE_VIEW = {"page": (100, 100), "crop_mode": False, "image_size": 64, "max_new_tokens": 1}
CONFIGS = {
    "small": {},
    "latent attention": LATENT,
    "every second layer MoE": {"moe_layer_freq": 2, "first_k_dense_replace": 2},
    "dense": {"n_routed_experts": None},
    "grouped keys": {"num_attention_heads": 10, "num_key_value_heads": 2},
    "other global blocks": {"vision_config": SMALL["vision_config"] | {"width": OTHER_BLOCKS}},
}

PAGES = {
    "cut": {"page": (700, 1300), "base_size": 128, "image_size": 96},
    "whole, two pages": {"page": (300, 200), "base_size": 320, "batch_size": 2},
    "no crops": {"page": (300, 200), "crop_mode": False, "image_size": 64},
}


def check(directory, pages, *, flash=False, arch=DEFAULT, steps=range(2)):
    """Holds the repeated traces of some pages against those of every module."""
    dimensions = arch.forms.dimensions(directory.config)
    model = loading.load_model(
        directory,
        device=torch.device("meta"),
        dtype=torch.bfloat16,
        flash_attention=flash,
        sliding_window=dimensions.decoder.sliding_window,
        trust_remote_code=True,
    )
    for page in pages:
        full, folded = (
            trace_passes(model, arch.plan(**page), arch, step_numbers=steps, repeats=repeats)
            for repeats in (None, arch.forms.model.repeats(dimensions))
        )
        assert folded.kv_cache_bytes == full.kv_cache_bytes
        for one, other in zip(
            (folded.prefill, *folded.decode_steps), (full.prefill, *full.decode_steps), strict=True
        ):
            assert merged(one.kernels) == merged(other.kernels)
            assert one == other


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "flash"),
    [*((name, False) for name in CONFIGS), ("latent attention", True), ("grouped keys", True)],
)
def test_alike_modules_of_the_reference_do_alike(name, flash):
    check(small_directory(num_hidden_layers=4, **CONFIGS[name]), PAGES.values(), flash=flash)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("flash", [False, True], ids=["eager", "flash"])
def test_alike_modules_of_the_published_models_do_alike(name, flash):
    if flash and name != DEFAULT.name:
        pytest.skip("its relatives' attention is the same, or eager only")
    arch = ARCHITECTURES[name]
    directory = ModelDirectory.read(arch.reference)
    window = directory.dimensions().decoder.sliding_window or 2
    page = {"page": (1191, 1684), "max_new_tokens": window + 3}
    steps = (0, 1, window - 1, window, window + 1, 3 * window)
    check(directory, [page], flash=flash, arch=arch, steps=steps)


@pytest.mark.vendor
@needs_vendor
@pytest.mark.parametrize("flash", [False, True], ids=["eager", "flash"])
@pytest.mark.parametrize("name", ["small", "other global blocks"])
def test_alike_modules_of_the_published_files_do_alike(name, flash):
    config = small_directory(num_hidden_layers=4, **CONFIGS[name]).config
    check(ModelDirectory.read(VENDOR).with_config(config), PAGES.values(), flash=flash)


def test_alike_modules_share_a_name():
    directory = directory_with(num_hidden_layers=4, **CONFIGS["every second layer MoE"])
    name = DEFAULT.forms.model.repeats(DEFAULT.forms.dimensions(directory.config))
    sam, clip, layers = "model.sam_model.blocks", "model.vision_model.transformer", "model.layers"
    for one, same, other in (
        (f"{sam}.0", f"{sam}.1", f"{sam}.2"),
        (f"{sam}.2", f"{sam}.5", f"{clip}.layers.2"),
        (f"{clip}.layers.0", f"{clip}.layers.23", f"{layers}.0"),
        (f"{layers}.0", f"{layers}.3", f"{layers}.2"),
        (f"{layers}.2", f"{layers}.4", f"{layers}.2.mlp.experts.0"),
        (f"{layers}.2.mlp.experts.0", f"{layers}.4.mlp.experts.7", f"{layers}.0.mlp.experts.0"),
        (f"{layers}.2.mlp.experts.0.act_fn", f"{layers}.4.mlp.experts.7.act_fn", f"{layers}.2.mlp"),
        (f"{layers}.2.self_attn.q_proj", f"{layers}.4.self_attn.q_proj", f"{layers}.0.self_attn"),
        ("model.projector", "model.projector", "model.sam_model"),
    ):
        assert name(one) == name(same) != name(other)


DEVICES = ("meta", "cpu")


def traced(function, device: str, *shape: int, dtype=torch.float32) -> record.Trace:
    """A function of an input, beside a parameter that shows the model's device."""
    parameter = nn.Parameter(torch.zeros(2, device=device), requires_grad=False)
    model = Net(lambda self, x: function(x), parameter=parameter)
    x = torch.zeros(shape, dtype=dtype, device=device)
    with running(torch.device(device)), LevelRecorder(model) as recorder:
        trace, _kept = recorder.begin(), model(x)
    assert not trace.unknown
    return trace


def found(*given, **options) -> tuple[str, list[int]]:
    """Operators and levels of `traced`."""
    trace = traced(*given, **options)
    return " ".join(each.operator for each in trace.kernels), [each[2] for each in trace.levels]


def counted(x, ask):
    """Asks for a tensor of the device, which dies there."""
    counts = ask(torch.ones_like(x, dtype=torch.int64))
    return x * 2, counts


def attended(x):
    return F.scaled_dot_product_attention(x, x, x).transpose(1, 2).reshape(1, 7, 8)


# Each case: a function, the operators that it runs, and bytes alive after each piece of memory.
HOST = {
    "made without a device, it runs and takes no memory of it": (
        lambda x: x + torch.arange(3).sum(), "arange sum add", [20],
    ),
    "made on the device: arange": (lambda x: torch.arange(3, device=x.device), "arange", [24]),
    "made on the device: ones": (lambda x: torch.ones(6, device=x.device), "ones", [24]),
    "made of the device's": (lambda x: x.new_ones(3, dtype=torch.int64), "new_ones", [24]),
    "what follows from the host alone stays there": (
        lambda x: (torch.ones(3, device="cpu") * 2).cumsum(0), "ones mul cumsum", [],
    ),
    "what is made of numbers too": (
        lambda x: (torch.tensor([1.0, 2.0, 3.0]) * 2).cumsum(0), "mul cumsum", [],
    ),
    "a move to the device is a transfer into a tensor of its own": (
        lambda x: torch.arange(3).to(x.device) + 1, "arange transfer add", [24, 48],
    ),
    "it may cast, to a tensor": (lambda x: torch.arange(3).to(x), "arange transfer", [12]),
    "named or not": (lambda x: torch.arange(3).to(tensor=x), "arange transfer", [12]),
    "or its type": (lambda x: torch.arange(3).type_as(x), "arange transfer", [12]),
    "or a type": (
        lambda x: torch.arange(3).to(device=x.device, dtype=torch.float32),
        "arange transfer", [12],
    ),
    "what the host asks for dies on the device": (
        lambda x: counted(x, torch.Tensor.cpu), "ones_like transfer mul", [40, 20],
    ),
    "by name": (
        lambda x: counted(x, lambda counts: counts.to("cpu")), "ones_like transfer mul", [40, 20],
    ),
    "or by a tensor": (
        lambda x: counted(x, lambda counts: counts.to(torch.zeros(3))),
        "ones_like zeros transfer mul", [40, 20],
    ),
    # Whatever the tensor holds: it is not asked for its truth.
    "what is made of the device's tensor stays there": (
        lambda x: torch.asarray(x * 2) + 1, "mul add", [20, 40],
    ),
    "a copy into the other's tensor is a transfer": (
        lambda x: torch.zeros_like(x).copy_(torch.ones(5)), "zeros_like ones transfer", [20],
    ),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_on_the_host_and_what_on_the_device(device):
    for name, (function, *expected) in HOST.items():
        assert [*found(function, device, 5)] == expected, name
    _, transfer = traced(lambda x: torch.arange(3).to(x), device, 5).kernels
    assert (transfer.dtype, transfer.output_dtype) == ("int64", "float32")


def test_on_a_cpu_no_name_tells_a_device_of_its_own_from_the_host():
    cpu = torch.device("cpu")
    for function, *expected in (
        (lambda x: torch.arange(3, device=cpu), "arange", [24]),
        (lambda x: torch.from_numpy(np.ones(3)) * 2, "mul", [24]),
        (lambda x: x.to(cpu) + 1, "add", [20]),
        (lambda x: torch.as_tensor(x * 2, device="cpu") + 1, "mul add", [20, 40]),
    ):
        assert [*found(function, "cpu", 5)] == expected


# Each case: a function, its input's shape and type, its operators, and the levels.
KERNELS = {
    "attention is laid out so that merging heads is a view, without log-sum-exp": (
        attended, (1, 2, 7, 4), torch.float32, "scaled_dot_product_attention", [4 * 56],
    ),
    "a number that is written is a tensor first": (
        lambda x: x.__setitem__(([0, 1],), 0.0), (4, 6), torch.float32,
        "scalar_tensor index_put", [4],
    ),
    **{
        f"also to {key}": (
            lambda x, key=key: x.__setitem__(key, 0.0), (4, 6), torch.float32,
            "scalar_tensor copy", [4],
        )
        for key in ((0, 1), slice(1, 3))
    },
    **{
        f"statistics of a layer norm are fp32: {dtype}": (
            lambda x: F.layer_norm(x, (8,)), (6, 8), dtype, "native_layer_norm",
            [48 * dtype.itemsize, 48 * dtype.itemsize + 24, 48 * dtype.itemsize + 48],
        )
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    },
    "those of a batch norm are there even if it applies others": (
        lambda x: F.batch_norm(x, x.new_zeros(8), x.new_ones(8)), (6, 8), torch.bfloat16,
        "new_zeros new_ones native_batch_norm", [16, 32, 32 + 96, 32 + 96 + 32, 32 + 96 + 64],
    ),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_kernels_are_those_of_cuda(device):
    for name, (function, shape, dtype, *expected) in KERNELS.items():
        assert [*found(function, device, *shape, dtype=dtype)] == expected, name


def test_autocast_leaves_indices_alone():
    def added(x):
        with torch.autocast("cuda", BF16):
            return x.scatter_add(0, torch.zeros(2, dtype=torch.long, device="meta"), x[:2])

    assert found(added, "meta", 5)[0] == "zeros scatter_add"


# --- whole models ----------------------------------------------------------------------------

_CUT = {"page": (350, 200), "base_size": 128, "image_size": 64, "text_tokens": 5}
_YARN = {**LATENT, "rope_scaling": {"type": "yarn", "factor": 2.0}}
_TUNED = {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 16}
_CASES = [
    pytest.param(lambda: small_directory(), _CUT, id="deepseek-ocr"),
    pytest.param(lambda: small_directory(**_YARN), _CUT | {"batch_size": 3}, id="latent"),
    pytest.param(lambda: small_directory(**LATENT, **_TUNED), _CUT, id="tuned"),
    pytest.param(lambda: drawn(2, TWO).directory, drawn(2, TWO).workload, id="deepseek-ocr-2"),
    pytest.param(lambda: drawn(0, UNLIMITED).directory, _CUT, id="unlimited-ocr"),
    pytest.param(lambda: drawn(1, UNLIMITED).directory, _CUT | {"batch_size": 2}, id="batch"),
]


@sampled("dtype", ["bfloat16", "float16", "float32"], first(1))
@sampled(("build", "page"), _CASES, first(1))
def test_every_record_and_every_level_is_that_on_meta(build, page, dtype):
    directory, found = build(), []
    for device in DEVICES:
        session = DeepSeekOCRSession.from_directory(directory, device=device, dtype=dtype)
        workload = session.plan(**page, max_new_tokens=3) if isinstance(page, dict) else page
        passes = trace_passes(
            session.loaded, workload, session.architecture, step_numbers=(0, 1),
            recorder_type=LevelRecorder,
        )  # fmt: skip
        found.append([passes.prefill, *passes.decode_steps])
    for one, other in zip(*found, strict=True):
        assert (one.kernels, one.levels, one.peak) == (other.kernels, other.levels, other.peak)
        assert not other.unknown


@pytest.mark.exhaustive
def test_an_equal_call_is_not_run_again(monkeypatch):
    session, ran = DeepSeekOCRSession.from_local(), Counter()
    # Of 24, and of 11 in each of three passes.
    most = Counter({"NoTPTransformerBlock": 5, "DeepseekV2MoE": 5})
    kinds = {type(each) for each in session.model.modules() if type(each).__name__ in most}
    for module_class in kinds:

        def counted(self, *args, forward=module_class.forward, **kwargs):
            ran[type(self).__name__] += 1
            return forward(self, *args, **kwargs)

        monkeypatch.setattr(module_class, "forward", counted)
    session.analyze(page=(300, 200), crop_mode=False, image_size=64, max_new_tokens=1)
    assert ran.keys() == most.keys()
    assert ran <= most


@pytest.mark.exhaustive
@pytest.mark.directory
def test_changed_code_is_traced_in_full(tmp_path):
    """Whether a layer of this copy does its second linear twice is up to a global counter."""
    path = tmp_path / "model"
    shutil.copytree(DEFAULT.reference, path, ignore=shutil.ignore_patterns("__pycache__"))
    text = (path / "deepencoder.py").read_text()
    before = 'return cast("Tensor", self.fc2(quick_gelu(self.fc1(x))))'
    after = (
        "hidden = quick_gelu(self.fc1(x))\n"
        "        CALLS.append(1)\n"
        "        out: Tensor = self.fc2(hidden)\n"
        "        if len(CALLS) % 2:\n"
        "            out = self.fc2(hidden)\n"
        "        return out"
    )
    assert text.count(before) == 1
    changed = text.replace(before, after) + "\n\nCALLS: list[int] = []\n"
    (path / "deepencoder.py").write_text(changed)
    changed, published = (
        DeepSeekOCRSession.from_local(model, trust_remote_code=True).analyze(**ONE_VIEW)
        for model in (path, None)
    )
    paths = [f"model.vision_model.transformer.layers.{i}.mlp.fc2" for i in range(24)]
    macs, once = (
        [report.stages["clip"].by_module[path].macs for path in paths]
        for report in (changed, published)
    )
    assert macs == [(2 - index % 2) * count for index, count in enumerate(once)]
    assert changed.agreement.agrees is False
