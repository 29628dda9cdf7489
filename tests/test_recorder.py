"""Who called what: attribution to module paths, repetition of alike modules, memory, residue."""

from __future__ import annotations

import contextlib
import copy
import re
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from tracing import (
    Calls,
    but_copies,
    by_path,
    by_place,
    meta,
    paths_of,
    places_of,
    total,
    trace_of,
    witnessed_flops,
)

from dsocr_analyze.errors import UncountableError
from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import Attention, Work
from dsocr_analyze.model.known_values import KnownValues
from dsocr_analyze.trace import recorder as recorder_module
from dsocr_analyze.trace.matrix_rules import keys_after_first, keys_after_last
from dsocr_analyze.trace.module_calls import trace_module
from dsocr_analyze.trace.passes import recorded_flash_attention
from dsocr_analyze.trace.recorder import Recorder

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")


BF16 = torch.bfloat16


def on_meta(module):
    return module.to("meta").eval()


class Net(nn.Module):
    """A module with children by keyword and a forward given as a function of itself."""

    def __init__(self, forward, **children):
        super().__init__()
        self._of_self = forward
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args, **kwargs):
        return self._of_self(self, *args, **kwargs)


class TestAttribution:
    def test_nested_modules_own_what_their_own_forward_calls(self):
        inner = Net(lambda self, x: F.relu(self.linear(x)), linear=nn.Linear(3, 5))
        net = on_meta(Net(lambda self, x: torch.sigmoid(self.inner(x)), inner=inner))
        trace = trace_of(net, meta(2, 3))
        assert places_of(trace) == [("inner.linear", "linear"), ("inner", "relu"), ("", "sigmoid")]
        assert trace.calls == ["", "inner", "inner.linear"]
        assert trace.shapes["inner.linear"] == ([(2, 3)], (2, 5))

    def test_functional_calls_belong_to_the_caller(self):
        def forward(self, x):
            return F.linear(x, self.linear.weight)

        net = on_meta(Net(forward, linear=nn.Linear(3, 5)))
        trace = trace_of(net, meta(2, 3))
        assert paths_of(trace, "linear") == [""]
        assert trace.calls == [""]
        assert total(trace).macs == 2 * 3 * 5

    def test_a_module_never_called_has_no_calls(self):
        net = on_meta(Net(lambda self, x: x + 1, unused=nn.Linear(3, 5)))
        assert trace_of(net, meta(2, 3)).calls == [""]

    def test_a_module_called_twice_counts_twice(self):
        net = on_meta(Net(lambda self, x: self.a(self.a(x)), a=nn.Linear(3, 3, bias=False)))
        trace = trace_of(net, meta(2, 3))
        assert trace.calls == ["", "a", "a"]
        assert total(trace).macs == 2 * (2 * 3 * 3)

    def test_a_direct_forward_is_a_call(self):
        net = on_meta(Net(lambda self, x: self.a.forward(x), a=nn.Linear(3, 5)))
        trace = trace_of(net, meta(2, 3))
        assert paths_of(trace, "linear") == ["a"]
        assert trace.calls == ["", "a"]

    def test_keyword_only_arguments_arrive(self):
        class Scaled(nn.Module):
            def forward(self, *, x, factor=1):
                return x * factor

        net = on_meta(Net(lambda self, *, x: self.scaled(x=x, factor=2), scaled=Scaled()))
        for alike in (None, by_path):
            trace = trace_of(net, x=meta(2, 3), alike=alike)
            assert paths_of(trace, "mul") == ["scaled"]

    def test_recursion_ends_where_it_began(self):
        def forward(self, x, depth=3):
            return self(x * 2, depth - 1) if depth else torch.sigmoid(x)

        trace = trace_of(on_meta(Net(forward)), meta(2))
        assert trace.calls == [""] * 4
        assert [operator for _, operator in places_of(trace)] == ["mul"] * 3 + ["sigmoid"]

    def test_a_shared_module_works_for_its_caller(self):
        shared = nn.Linear(3, 3)
        net = Net(
            lambda self, x: self.b(self.a(x)),
            a=Net(lambda self, x: self.inner(x), inner=shared),
            b=Net(lambda self, x: self.inner(x), inner=shared),
        )
        for alike in (None, by_path):
            trace = trace_of(on_meta(net), meta(2, 3), alike=alike)
            assert paths_of(trace, "linear") == ["a.inner", "b.inner"]
            assert trace.calls == ["", "a", "a.inner", "b", "b.inner"]

    def test_a_tied_weight_is_one_parameter_and_two_products(self):
        net = Net(
            lambda self, i: self.head(self.embedding(i)),
            embedding=nn.Embedding(10, 3),
            head=nn.Linear(3, 10, bias=False),
        )
        net.head.weight = net.embedding.weight
        assert sum(p.numel() for p in net.parameters()) == 10 * 3
        trace = trace_of(net.eval(), torch.zeros(2, dtype=torch.long))
        assert total(trace).macs == 2 * 3 * 10

    def test_a_module_made_in_forward_works_for_its_maker(self):
        def forward(self, x):
            return nn.Linear(3, 5, device="meta")(x)

        net = Net(lambda self, x: self.a(x), a=Net(forward))
        trace = trace_of(net, meta(2, 3))
        assert paths_of(trace, "linear") == ["a"]
        assert trace.calls == ["", "a"]

    def test_containers_name_their_items(self):
        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.tail(x)

        net = on_meta(
            Net(
                forward,
                layers=nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]),
                tail=nn.Sequential(nn.ReLU(), nn.Linear(3, 1)),
            )
        )
        trace = trace_of(net, meta(2, 3))
        assert paths_of(trace, "linear") == ["layers.0", "layers.1", "tail.1"]
        assert trace.calls == ["", "layers.0", "layers.1", "tail", "tail.0", "tail.1"]

    @pytest.mark.parametrize("alike", [None, by_path])
    def test_modules_may_return_anything(self, alike):
        net = on_meta(
            Net(
                lambda self, x: self.c(self.b(self.a(x))["y"][0]),
                a=Net(lambda self, x: (x + 1, None, 3)),
                b=Net(lambda self, t: {"y": [t[0] * t[2]]}),
                c=Net(lambda self, x: None),
            )
        )
        trace = trace_of(net, meta(2), alike=alike)
        assert places_of(trace) == [("a", "add"), ("b", "mul")]
        assert trace.shapes["b"] == ([[(2,), None, None]], [[(2,)]])

    def test_an_exception_that_the_model_survives_misplaces_nothing(self):
        def fails(self, x):
            x + 1
            raise ValueError

        def forward(self, x):
            try:
                self.a(x)
            except ValueError:
                x = x * 2
            return self.b(x)

        net = on_meta(
            Net(forward, a=Net(lambda self, x: self.deep(x), deep=Net(fails)), b=nn.Sigmoid())
        )
        trace = trace_of(net, meta(2))
        assert places_of(trace) == [
            ("a.deep", "add"),
            ("", "mul"),
            ("b", "sigmoid"),
        ]

    def test_a_failing_hook_of_somebody_else_misplaces_nothing(self):
        def forward(self, x):
            try:
                self.a(x)
            except ValueError:
                x = x * 2
            return x

        def fail(*_):
            raise ValueError

        net = Net(lambda self, x: self.inner(x), inner=Net(forward, a=nn.ReLU()))
        net.inner.a.register_forward_pre_hook(fail)
        handle = nn.modules.module.register_module_forward_pre_hook(
            lambda module, _: fail() if isinstance(module, nn.ReLU) else None
        )
        try:
            trace = trace_of(on_meta(net), meta(2))
        finally:
            handle.remove()
        assert paths_of(trace, "mul") == ["inner"]

    def test_attention_of_torch_is_one_operator_with_its_mask(self):
        net = on_meta(nn.MultiheadAttention(8, 2, batch_first=True))
        x = meta(2, 3, 8)
        trace = trace_of(Net(lambda self, x: self.mha(x, x, x, need_weights=False), mha=net), x)
        assert paths_of(trace, "scaled_dot_product_attention") == ["mha"]
        # in: 3 x 8 wide; two products of 2 heads of 4; out
        assert total(trace).macs == 2 * (3 * 8 * 24 + 2 * 3 * 3 * (4 + 4) + 3 * 8 * 8)

    def test_the_fast_path_of_an_encoder_layer_is_not_a_way_out(self):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        x = torch.randn(2, 3, 8)
        on_cpu = trace_of(layer, x)
        everywhere = trace_of(copy.deepcopy(layer).to("meta"), x.to("meta"))
        assert but_copies(on_cpu) == but_copies(everywhere)
        assert total(on_cpu).macs == 2 * 3 * (8 * 24 + 2 * 8 * 3 + 8 * 8 + 2 * 8 * 16)

    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    def test_a_recurrent_net_is_counted_or_reported(self, kind):
        gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
        trace = trace_of(kind(4, 5).to("meta"), meta(2, 3, 4))
        assert total(trace).macs == 2 * 3 * gates * 5 * (4 + 5)
        on_cpu = trace_of(kind(4, 5), torch.randn(2, 3, 4))
        assert on_cpu.unknown or total(on_cpu).macs == total(trace).macs


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


class ToScript(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 5)

    def forward(self, x):
        return torch.relu(self.linear(x))


class TestScripts:
    def test_a_scripted_function_is_seen_operator_by_operator(self):
        net = on_meta(Net(lambda self, x: self.a(x), a=Calls(scripted)))
        for _ in range(4):  # the interpreter optimises a function that it has seen
            trace = trace_of(net, meta(2, 3))
            assert places_of(trace) == [
                ("a", "mul"),
                ("a", "sigmoid"),
                ("a", "mul"),
            ]

    def test_a_scripted_module_counts_under_its_own_path(self):
        net = Net(lambda self, x: self.a(x), a=torch.jit.script(ToScript()))
        before = len(net.a._forward_hooks)
        for alike in (None, by_path):
            trace = trace_of(net.eval(), torch.randn(2, 3), alike=alike)
            assert total(trace).macs == 2 * 3 * 5
            assert trace.calls == ["", "a"]
            assert {kernel.path for kernel in trace.kernels} == {"a"}
        assert len(net.a._forward_hooks) == before


ATTRIBUTION_NETS = {
    "mlp": lambda: (
        nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 3, bias=False)),
        (2, 3),
    ),
    "conv": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten()), (2, 3, 6, 6)),
    "encoder": lambda: (
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
        ),
        (2, 3, 8),
    ),
    "einsum": lambda: (Calls(lambda x: torch.einsum("bij,bkj->bik", x, x) @ x), (2, 3, 4)),
}


@pytest.mark.parametrize("name", ATTRIBUTION_NETS)
def test_the_sum_over_modules_is_what_the_outside_witness_counts(name):
    net, shape = ATTRIBUTION_NETS[name]()
    net = on_meta(net)
    flops = witnessed_flops(net, meta(*shape))
    for alike in (None, by_path):
        assert total(trace_of(net, meta(*shape), alike=alike)).matrix_flops == flops


@pytest.mark.parametrize("name", ATTRIBUTION_NETS)
def test_the_cpu_counts_what_meta_counts(name):
    net, shape = ATTRIBUTION_NETS[name]()
    net = net.eval()
    on_cpu = trace_of(net, torch.randn(shape))
    net.to("meta")
    everywhere = trace_of(net, meta(*shape))
    assert but_copies(on_cpu) == but_copies(everywhere)


# --- nothing is left behind ------------------------------------------------------------------


def state_of(model):
    return {
        path: {
            name: list(value.items()) if isinstance(value, dict) else value
            for name, value in vars(module).items()
        }
        for path, module in model.named_modules()
    }


class TestNothingIsLeft:
    def net(self, fail=False):
        def forward(self, x):
            if fail:
                raise RuntimeError("on purpose")
            return x

        return Net(
            lambda self, x: self.b(self.a(x)), a=nn.Linear(3, 3, device="meta"), b=Net(forward)
        )

    @pytest.mark.parametrize("fail", [False, True])
    def test_in_the_modules_or_around_them(self, fail):
        net = self.net(fail)
        patched = types.MethodType(lambda self, x: x * 2, net.a)
        net.a.forward = patched
        before, keys = state_of(net), [list(vars(m)) for m in net.modules()]
        modes = _get_current_function_mode_stack(), _get_current_dispatch_mode_stack()
        if fail:
            with pytest.raises(RuntimeError, match="on purpose"):
                trace_of(net, meta(2, 3))
        else:
            trace_of(net, meta(2, 3), alike=by_path)
        assert state_of(net) == before
        assert [list(vars(m)) for m in net.modules()] == keys
        assert vars(net.a)["forward"] is patched
        assert (_get_current_function_mode_stack(), _get_current_dispatch_mode_stack()) == modes

    def test_when_entering_fails(self):
        class Stubborn(nn.Module):
            def register_forward_hook(self, *args, **kwargs):
                raise RuntimeError("no hooks")

        net = nn.Sequential(nn.Linear(3, 3), Stubborn())
        net[1].register_forward_pre_hook(lambda *_: None)  # what brings ours
        before = state_of(net)
        with pytest.raises(RuntimeError, match="no hooks"):
            trace_of(net, torch.randn(2, 3))
        assert state_of(net) == before

    def test_when_interrupted(self):
        def forward(self, x):
            raise KeyboardInterrupt

        net = Net(lambda self, x: self.a(x), a=Net(forward))
        before = state_of(net)
        with pytest.raises(KeyboardInterrupt):
            trace_of(net, meta(2))
        assert state_of(net) == before
        assert not _get_current_dispatch_mode_stack()

    @pytest.mark.parametrize("alike", [None, by_path])
    def test_hooks_of_others_survive_and_run_every_time(self, alike):
        net = on_meta(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
        seen = []
        for layer in net:
            layer.register_forward_pre_hook(lambda m, args: seen.append("before"))
            layer.register_forward_hook(lambda m, args, output: output + 1)
        trace = trace_of(net, meta(2, 3), alike=alike, times=2)
        assert seen == ["before"] * 4
        assert paths_of(trace, "add") == ["0", "1"] * 2  # a module's hooks work for the module
        assert all(len(m._forward_hooks) == len(m._forward_pre_hooks) == 1 for m in net)

    def test_a_recorder_may_be_used_again(self):
        net = on_meta(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
        recorder = Recorder(net, by_place)
        traces = []
        for _ in range(2):
            with torch.no_grad(), recorder:
                traces.append(recorder.begin())
                net(meta(2, 3))
        assert traces[0] == traces[1]


# --- repeating equal modules -----------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
        self.layers = layers

    def forward(self, x, scale=1):
        for _ in range(self.layers):
            x = x + self.linear(self.norm(x)) * scale
        return x


def stack(*blocks, each=lambda block, x: block(x)):
    def forward(self, x):
        for block in self.blocks:
            x = each(block, x)
        return x

    return Net(forward, blocks=nn.ModuleList(blocks))


def several(count, forward):
    return [Net(forward) for _ in range(count)]


class Counting(nn.Module):
    """Does more every time it is called."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        for _ in range(self.calls):
            x = x + 1
        return x


class Tabled(nn.Module):
    """Keeps what it returns, as rotary embeddings do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", None)

    def forward(self, x):
        if self.table is None:
            self.table = x * 2
        return self.table


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen.add_(x.sum(0))
        return x * self.seen


class Remembering(nn.Module):
    def forward(self, x):
        self.last = x * 2
        return self.last + 1


class Causal(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


class PairNorm(nn.Module):
    def forward(self, x, y):
        return x + 1 if x is y else x + y * 2


def hooked(block):
    block.linear.register_forward_hook(lambda m, args, output: output * 2)
    return block


def patched(block):
    block.linear.forward = lambda x: x
    return block


def calling(each):
    return lambda: stack(Block(), Block(), each=each)


REPEATED = {
    "equal blocks": lambda: stack(Block(), Block(), Block()),
    "one block again and again": lambda: stack(*[Block()] * 3),
    "an argument differs": calling(lambda block, x: block(x, scale=len(x.shape))),
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
        lambda self, x: self.a(x, x) + self.b(x, x.clone()), a=PairNorm(), b=PairNorm()
    ),
    "self-attention and cross-attention": lambda: Net(
        lambda self, x: self.a(x, x, x)[0] + self.b(x, x + 1, x * 2)[0],
        a=nn.MultiheadAttention(4, 2, batch_first=True),
        b=nn.MultiheadAttention(4, 2, batch_first=True),
    ),
    "a counter": lambda: stack(*[Counting()] * 3),
    "a table kept and returned": lambda: stack(
        *(Tabled() for _ in range(3)), each=lambda block, x: block(x) + x
    ),
    "a buffer updated in place": lambda: stack(*[Buffered()] * 3),
    "an output kept alive": lambda: stack(*(Remembering() for _ in range(3))),
    "an output kept alive by the same module": lambda: stack(*[Remembering()] * 3),
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
    "causal": lambda: stack(*(Causal() for _ in range(3))),
    "causal, one module": lambda: stack(*[Causal()] * 3),
    "a module reached in secret": lambda: secret(),
    "an argument is enlarged": lambda: stack(
        *several(3, lambda self, x: x.resize_(x.shape[0] + 1, 4) * 2)
    ),
    "a result in a place that grows": lambda: stack(
        *several(3, lambda self, x: torch.mul(x, 2, out=x.new_empty(0)))
    ),
    "under vmap": lambda: stack(
        *(Block() for _ in range(3)), each=lambda block, x: torch.vmap(block)(x)
    ),
    "shapes of a later call": lambda: Net(
        lambda self, x: self.a(x[:2]).sum() + self.a(x) + self.b(x),
        a=nn.Linear(4, 4),
        b=nn.Linear(4, 4),
    ),
}


def secret():
    other = nn.Linear(4, 4)
    blocks = several(3, lambda self, x: self.reach(x))
    for block in blocks:
        block.reach = other.forward
    net = stack(*blocks)
    net.other = other
    return net


def named_by_letters(path: str) -> str:
    """As by place, and `a` and `b` alike."""
    return re.sub(r"\b[ab]\b", "either", by_place(path))


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("times", [1, 2])
def test_repeating_alike_modules_changes_nothing(name, times):
    def run(alike):
        with KnownValues():
            return trace_of(on_meta(REPEATED[name]()), meta(4, 4), alike=alike, times=times)

    assert run(named_by_letters) == run(None)


def runs_of(net, *args, alike=by_place):
    """How often the linear layers of a net are really run."""
    ran = []

    class Watched(nn.Linear):
        def forward(self, x):
            ran.append(self)
            return super().forward(x)

    for block in net.blocks:
        block.linear.__class__ = Watched
    trace_of(on_meta(net), *args, alike=alike)
    return len(ran)


def test_alike_blocks_are_run_once():
    assert runs_of(stack(*(Block(layers=1) for _ in range(5))), meta(4, 4)) == 1


def test_a_block_is_repeated_only_where_it_is_declared_alike():
    def first_two(path):
        return None if path.startswith("blocks.2") else by_place(path)

    def blocks():
        return stack(*(Block(layers=1) for _ in range(3)))

    assert runs_of(blocks(), meta(4, 4), alike=first_two) == 2
    assert runs_of(blocks(), meta(4, 4), alike=by_path) == 3
    assert runs_of(blocks(), meta(4, 4), alike=None) == 3
    assert runs_of(stack(*[Block(layers=1)] * 3), meta(4, 4), alike=by_path) == 1


def test_values_are_never_repeated():
    net = stack(Block(layers=1), Block(layers=1)).eval()
    x = torch.randn(4, 4)
    with torch.no_grad(), Recorder(net, by_place) as recorder:
        recorder.begin()
        recorded = net(x)
        assert torch.equal(recorded, net(x))
    with torch.no_grad():
        assert torch.equal(recorded, net(x))


def test_inference_mode_changes_nothing():
    net = on_meta(stack(Block(), Block()))
    expected = trace_of(net, meta(4, 4)).kernels
    with torch.inference_mode(), KnownValues():
        for alike in (None, by_place):
            assert trace_of(net, meta(4, 4) * 1, alike=alike).kernels == expected


def test_a_known_value_is_part_of_the_call():
    def forward(self, x):
        return x + 1 if x.sum().item() else torch.sigmoid(x)

    def model(self, x):
        return (
            self.a(torch.zeros_like(x)) + self.b(torch.ones_like(x)) + self.c(torch.zeros_like(x))
        )

    net = Net(model, a=Net(forward), b=Net(forward), c=Net(forward))
    for alike in (None, by_path):
        with KnownValues():
            trace = trace_of(net, meta(3), alike=alike)
        assert [paths_of(trace, o) for o in ("sigmoid", "add")] == [["a", "c"], ["b", "", ""]]


def test_what_a_module_knows_is_known_of_its_equal():
    def gate(self, x):
        return torch.topk(x, 2)[1]

    def forward(self, x):
        return x + self.a(x).sum().item() + self.b(x).sum().item()

    with KnownValues():
        trace = trace_of(Net(forward, a=Net(gate), b=Net(gate)), meta(2, 3), alike=by_place)
    assert paths_of(trace, "topk") == ["a", "b"]


def rows_written(monkeypatch, last):
    """The trace of a net that fills a mask row by row, and how many records it repeats."""

    def rows(self, x):
        mask, places = torch.full_like(x, -1.0), torch.arange(3)
        for number, row in enumerate([*places, torch.tensor(last)]):
            mask[row, places] = 0.0
            mask[row, places[:number]] = 1.0
        return mask

    def forward(self, x):
        mask = self.a(x) + self.b(x * 1)
        assert mask.sum().item() == 2 * (-8 + 6)
        return mask

    repeated = []
    write = recorder_module.increment_version
    monkeypatch.setattr(
        recorder_module, "increment_version", lambda each: write(repeated.append(each) or each)
    )

    def traced(alike):
        net = Net(forward, a=Net(rows), b=Net(rows))
        return trace_module(net, torch.device("meta"), meta(5, 4), repeats=alike)[0]

    return traced(by_path), len(repeated), traced(None), len(repeated)


def test_equal_writes_of_rows_are_recorded_once_and_what_they_write_is_known(monkeypatch):
    once, repeated, every, in_all = rows_written(monkeypatch, 4)
    assert once == every
    assert [each.operator for each in once.kernels].count("index_put") == 16
    assert (repeated, in_all) == (3 + 8, 11)


def test_a_row_beyond_the_tensor_is_refused_as_by_torch(monkeypatch):
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        rows_written(monkeypatch, 5)


def test_another_mode_or_a_global_hook_sees_every_module():
    net = on_meta(stack(Block(), Block()))
    assert witnessed_flops(lambda x: trace_of(net, x, alike=by_place), meta(4, 4)) == (
        2 * 2 * 2 * 4 * 4 * 4
    )
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(m))
    try:
        trace_of(net, meta(4, 4), alike=by_place)
    finally:
        handle.remove()
    assert len(seen) == 1 + 2 * (1 + 2 * 2)


# --- memory ----------------------------------------------------------------------------------


class TestPeak:
    """Sizes in elements of four bytes; parameters and inputs were there before."""

    def peak(self, function, *args):
        return trace_of(Calls(function), *args).peak.nbytes // 4

    def test_of_a_chain_is_its_widest_pair(self):
        net = on_meta(
            nn.Sequential(nn.Linear(2, 30), nn.Linear(30, 50), nn.Linear(50, 20), nn.ReLU())
        )
        for alike in (None, by_path):
            assert trace_of(net, meta(1, 2), alike=alike).peak.nbytes == 4 * (30 + 50)

    def test_of_equal_layers_is_two_of_them(self):
        net = on_meta(nn.Sequential(*(nn.Linear(8, 8) for _ in range(5))))
        for alike in (None, by_place):
            assert trace_of(net, meta(3, 8), alike=alike).peak.nbytes == 4 * (24 + 24)

    def test_of_a_residual_holds_the_branch(self):
        def residual(x):
            y = x * 2  # 6
            z = torch.sigmoid(torch.exp(y))  # exp 6, sigmoid 6, then exp is freed
            return y + z  # 6

        assert self.peak(residual, meta(6)) == 3 * 6

    def test_of_views_and_changes_in_place_is_nothing(self):
        def forward(x):
            x.mul_(2)
            x.view(-1)[:3].add_(1)
            return x.t()

        assert self.peak(forward, meta(2, 3)) == 0

    def test_counts_an_allocation_and_a_storage_once(self):
        def forward(x):
            y = x.new_empty(10)
            y[:5].copy_(x)
            y[5:].copy_(x)
            return y.view(2, 5)

        assert self.peak(forward, meta(5)) == 10

    def test_counts_the_storage_behind_a_narrow_view(self):
        assert self.peak(lambda x: torch.cat([x, x])[:1] + 1, meta(6)) == 12 + 1

    def test_is_the_same_on_the_cpu(self):
        net = nn.Sequential(nn.Linear(2, 30), nn.GELU(), nn.Linear(30, 5)).eval()
        on_cpu = trace_of(net, torch.randn(7, 2)).peak.nbytes
        assert on_cpu == trace_of(net.to("meta"), meta(7, 2)).peak.nbytes == 4 * 7 * (30 + 30)

    def test_is_where_it_first_occurs(self):
        wide = nn.Sequential(nn.Linear(8, 30), nn.Linear(30, 8))
        net = on_meta(nn.Sequential(wide, copy.deepcopy(wide)))
        for alike in (None, by_place):
            # 30 and 8 are alive at the end of each half; the second holds its input too.
            assert trace_of(net, meta(1, 8), alike=alike).peak == Peak(4 * (8 + 30 + 8), "1.1")

    def test_of_the_models_own_forward_has_no_path(self):
        net = on_meta(Net(lambda self, x: torch.cat([self.a(x)] * 5), a=nn.Linear(4, 4)))
        assert trace_of(net, meta(2, 4)).peak == Peak(4 * 8 * 6, "")

    def test_of_a_second_pass_starts_from_nothing(self):
        net = on_meta(nn.Linear(8, 8))
        with torch.no_grad(), Recorder(net) as recorder:
            recorder.begin()
            kept = net(meta(3, 8))
            second = recorder.begin()
            kept = net(kept)
        assert second.peak.nbytes == 4 * 24


class TestGrowth:
    """Memory that an operator enlarges; both memories are alive while the old one is copied."""

    def test_of_a_tensor_of_the_pass(self):
        def forward():
            return torch.empty(20, device="meta").resize_(4000)

        trace = trace_of(Calls(forward))
        assert trace.peak.nbytes == 80 + 16_000
        [grown] = trace.kernels
        assert (grown.operator, grown.work) == ("grow", Work(bytes_read=80, bytes_written=80))
        assert trace.free == {"empty": 1, "resize": 1}

    def test_stays_until_the_tensor_is_freed(self):
        def forward(x):
            y = x.new_empty(20).resize_(4000)
            z = y[:10] + 1  # beside 16,000: 40
            del y
            return torch.cat([z] * 1000)  # 40 and 40,000

        assert trace_of(Calls(forward), meta(1)).peak.nbytes == 40 + 40_000

        def shorter(x):
            y = x.new_empty(20).resize_(4000)
            return y, y[:10] + 1, y[:90] * 2

        assert trace_of(Calls(shorter), meta(1)).peak.nbytes == 16_000 + 40 + 360

    def test_of_an_argument_counts_beyond_what_it_was(self):
        def forward(x):
            x.resize_(4000)
            return torch.cat([x, x])

        assert trace_of(Calls(forward), meta(20)).peak.nbytes == (16_000 - 80) + 32_000

    def test_of_a_parameter_counts_beyond_what_it_was(self):
        net = Net(lambda self: self.a.weight.data.resize_(40, 100), a=nn.Linear(4, 5, bias=False))
        assert trace_of(on_meta(net)).peak.nbytes == 16_000

    def test_within_the_memory_that_is_there_is_free(self):
        def forward(x):
            return x[:2].resize_(5, 4), x.resize_(2, 3), x.resize_as_(x.new_empty(0))

        trace = trace_of(Calls(forward), meta(5, 4))
        assert not trace.kernels
        assert trace.peak.nbytes == 0
        assert trace.free == {"slice": 1, "resize": 2, "resize_as": 1, "new_empty": 1}

    def test_into_a_tensor_of_no_size_is_the_result(self):
        for product in (torch.mm, torch.matmul):
            trace = trace_of(Calls(product), meta(2, 3), meta(3, 5), out=meta(0))
            assert trace.peak.nbytes == 4 * 10
            assert total(trace) == Work(30, 0, 10, 4 * (6 + 15), 4 * 10)

    def test_into_a_tensor_of_equal_size_is_nothing(self):
        assert trace_of(Calls(torch.mm), meta(2, 3), meta(3, 5), out=meta(2, 5)).peak.nbytes == 0

    @pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
    def test_into_a_smaller_tensor_copies_what_it_held(self):
        trace = trace_of(Calls(torch.mm), torch.ones(2, 3), torch.ones(3, 5), out=torch.ones(4))
        assert places_of(trace) == [("", "grow"), ("", "mm")]
        assert trace.peak.nbytes == 40
        assert total(trace).bytes_moved == 2 * 16 + 4 * (6 + 15) + 4 * 10

    def test_another_memory_is_no_more_memory(self):
        def forward(x):
            return x.new_empty(0).set_(x), x.new_empty(5).set_(x * 2)

        trace = trace_of(Calls(forward), meta(10))
        assert trace.peak.nbytes == 20 + 40
        assert trace.free == {"new_empty": 2, "set": 2}


class TestTransfers:
    """A tensor that changes its device is read on one and written on the other."""

    def test_are_movement(self):
        trace = trace_of(Calls(lambda x: x.to("meta", torch.bfloat16) * 2), torch.ones(10))
        assert [(kernel.operator, kernel.kind) for kernel in trace.kernels] == [
            ("transfer", "movement"),
            ("mul", "elementwise"),
        ]
        assert trace.kernels[0].work == Work(bytes_read=40, bytes_written=20)
        assert trace.kernels[0][3:5] == ("float32", "bfloat16")
        assert trace.peak.nbytes == 20 + 20
        assert not trace.free

    def test_into_a_tensor_that_is_there(self):
        trace = trace_of(Calls(lambda x, y: y.copy_(x)), torch.ones(10), meta(3, 10, dtype=BF16))
        [kernel] = trace.kernels
        assert (kernel.operator, kernel.work) == (
            "transfer",
            Work(bytes_read=40, bytes_written=60),
        )
        assert kernel[3:5] == ("float32", "bfloat16")
        assert trace.peak.nbytes == 0

    def test_a_copy_on_one_device_is_none(self):
        trace = trace_of(Calls(lambda x: x.to(BF16)), torch.ones(10))
        assert [kernel.operator for kernel in trace.kernels] == ["_to_copy"]

    def test_memory_is_that_of_the_models_device(self):
        def forward(self):
            return self.a((torch.ones(2, 3) + 1).to("meta"))

        trace = trace_of(on_meta(Net(forward, a=nn.Linear(3, 5))))
        assert places_of(trace) == [("", "ones"), ("", "add"), ("", "transfer"), ("a", "linear")]
        assert trace.peak.nbytes == 4 * (6 + 10)


# --- what torch.func, torch.compile and others make of a call -------------------------------


class TestTransforms:
    WEIGHT = meta(5, 3)
    CALLS = (
        lambda x: torch.vmap(lambda row: row * 2)(x),
        lambda x: torch.vmap(lambda row: F.linear(row, TestTransforms.WEIGHT))(x),
        lambda x: torch.vmap(lambda row: TestTransforms.WEIGHT @ row)(x),
        lambda x: torch.vmap(lambda row: torch.einsum("i,ji->j", row, TestTransforms.WEIGHT))(x),
        lambda x: torch.vmap(lambda row: F.softmax(row, -1).sum())(x),
        lambda x: torch.vmap(lambda row: F.rms_norm(row, (3,)))(x),
        lambda x: torch.vmap(on_meta(nn.Linear(3, 2)))(x),
        lambda x: torch.vmap(torch.vmap(lambda a: a + 1))(x),
        lambda x: torch.vmap(lambda row: row @ row.T, in_dims=1)(x.view(2, 2, 3)),
        lambda x: torch.vmap(
            lambda q: F.scaled_dot_product_attention(q, q, q), randomness="different"
        )(x.expand(2, 1, 4, 3)),
        lambda x: torch.func.grad(lambda a: (a @ a.T).sum())(x),
        lambda x: torch.func.jvp(lambda a: a @ a.T, (x,), (x,))[1],
    )

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("alike", [None, by_path])
    def test_are_counted_as_they_take_the_call_apart(self, call, alike):
        trace = trace_of(Calls(call), meta(4, 3), alike=alike)
        assert not trace.unknown
        assert total(trace).matrix_flops == witnessed_flops(call, meta(4, 3))
        assert total(trace).bytes_written > 0

    def test_see_the_whole_batch(self):
        [kernel] = trace_of(Calls(self.CALLS[0]), meta(4, 3)).kernels
        assert (kernel.operator, kernel.work) == ("mul", Work(0, 12, 0, 48, 48))
        trace = trace_of(Calls(self.CALLS[1]), meta(4, 3))
        assert total(trace) == Work(4 * 3 * 5, 0, 4 * 5, 4 * (12 + 15), 4 * 20)
        assert trace.peak.nbytes == 4 * 20

    def test_a_checkpoint_runs_forward_as_it_is(self):
        def call(x):
            return torch.utils.checkpoint.checkpoint(lambda y: y * 2 + 1, x, use_reentrant=False)

        assert [name for _, name in places_of(trace_of(Calls(call), meta(4)))] == ["mul", "add"]

    @pytest.mark.exhaustive
    def test_a_compiled_function_runs_as_it_is_written(self):
        compiled = torch.compile(lambda x: F.linear(x, TestTransforms.WEIGHT) * 2)
        trace = trace_of(Calls(compiled), meta(4, 3))
        assert places_of(trace) == [("", "linear"), ("", "mul")]


def masked(x):
    return torch.masked.masked_tensor(x, x > 0) * 2


REFUSED = {
    "a nested tensor": (lambda x: torch.nested.nested_tensor([x, x]) * 2, "nested tensors"),
    "a jagged tensor": (
        lambda x: F.linear(torch.nested.nested_tensor([x, x], layout=torch.jagged), x),
        "nested tensors",
    ),
    "a sparse tensor": (lambda x: x.to_sparse() @ x.T, "layout torch.sparse_coo"),
    "a compressed sparse tensor": (lambda x: x.to_sparse_csr() @ x.T, "layout torch.sparse_csr"),
    "a quantized tensor": (
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).relu(),
        "torch.qint8",
    ),
    "a masked tensor": (masked, "type MaskedTensor"),
    "flex_attention": (lambda x: flex_attention(*[x.view(1, 1, 2, 3)] * 3), "flex_attention"),
    "cond": (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "operator cond"),
    "a function compiled whole": (
        lambda x: torch.compile(torch.sin, backend="eager", fullgraph=True)(x),
        "without fullgraph",
    ),
}


@pytest.mark.filterwarnings("ignore")  # torch calls most of these prototypes
class TestRefusals:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("name", REFUSED)
    def test_name_what_is_not_counted(self, name):
        call, message = REFUSED[name]
        with pytest.raises(UncountableError, match=message):
            trace_of(Calls(call), torch.ones(2, 3))
        assert not _get_current_dispatch_mode_stack()

    def test_of_flex_attention_on_meta(self):
        with pytest.raises(UncountableError, match="flex_attention is not counted"):
            trace_of(Calls(REFUSED["flex_attention"][0]), meta(2, 3))

    @pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
    def test_of_what_a_module_is_given(self, layout):
        given = torch.nested.nested_tensor([torch.ones(2, 3)] * 2, layout=layout)
        for net in (nn.Linear(3, 5), nn.Identity(), Calls(lambda x: x.sum())):
            with pytest.raises(UncountableError, match="nested tensors are not counted"):
                trace_of(net, given)

    def test_of_parameters(self):
        net = nn.Module()
        net.weight = nn.Parameter(torch.ones(3, 3).to_sparse())
        with pytest.raises(UncountableError, match=r"parameters and buffers: .*sparse_coo"):
            trace_of(net)

    def test_leave_other_errors_alone(self):
        def forward(x):
            raise ValueError("on purpose")

        with pytest.raises(ValueError, match="on purpose"):
            trace_of(Calls(forward), meta(2))


# --- causality -------------------------------------------------------------------------------


@pytest.mark.parametrize("queries", range(1, 6))
@pytest.mark.parametrize("keys", range(1, 6))
def test_what_lies_above_the_diagonal(queries, keys):
    first = torch.ones(queries, keys).tril()
    assert keys_after_first(queries, keys) == int((first == 0).sum())
    last = torch.ones(queries, keys).tril(keys - queries)
    assert keys_after_last(queries, keys) == int((last == 0).sum())


@pytest.mark.parametrize(
    "call",
    [
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, None, 0.0, True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=True),
    ],
)
def test_what_a_causal_kernel_may_skip_is_noted_beside(call):
    [kernel] = trace_of(Calls(call), meta(2, 3, 4, 8), meta(2, 3, 4, 8), meta(2, 3, 4, 6)).kernels
    assert kernel.dimensions.skippable_scores == 2 * 3 * (3 + 2 + 1)
    assert kernel.work.macs == 2 * 3 * 4 * 4 * (8 + 6)


def test_flash_attention_may_skip_what_lies_behind_its_last_query():
    def causal():
        return recorded_flash_attention(recorder)(
            meta(2, 3, 4, 8), meta(2, 5, 4, 8), meta(2, 5, 4, 6), causal=True
        )

    net = Calls(causal)
    with Recorder(net) as recorder:
        trace = recorder.begin()
        assert net().shape == (2, 3, 4, 6)
    [kernel] = trace.kernels
    assert kernel.dimensions == Attention(2, 4, 4, 3, 5, 8, 6, skippable_scores=2 * 4 * (2 + 1))


def test_what_runs_around_the_model_is_not_counted_but_its_memory_is():
    net, given = torch.nn.Linear(8, 4, bias=False, device="meta"), meta(2, 8)
    with Recorder(net) as recorder:
        trace = recorder.begin()
        net(given * 2)
    assert [kernel.operator for kernel in trace.kernels] == ["linear"]
    assert trace.peak.nbytes == 4 * (2 * 8 + 2 * 4)


def test_attention_that_is_not_causal_skips_nothing():
    [kernel] = trace_of(Calls(F.scaled_dot_product_attention), *[meta(2, 4, 8)] * 3).kernels
    assert kernel.dimensions.skippable_scores == 0
    assert kernel.work.macs > 0


class _Watching(TorchDispatchMode):
    """Other code's mode, which wants to see every operator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _CalledAgain(torch.nn.Module):
    """Calls with equal arguments: outputs alone, and outputs with copies or other memory inside."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        outputs = []
        for _ in range(3):
            outputs.append(self.linear(x))
            outputs.append(self.linear(x.transpose(0, 1)))  # copies its input
            outputs.append(x @ x[:1].transpose(1, 2))  # expands one operand
            outputs.append(torch.softmax(x, -1, dtype=torch.float32))
            outputs.append(torch.nn.functional.scaled_dot_product_attention(x, x, x))
            outputs.append(torch.einsum("bij,bkj->bik", x, x))
        return outputs


def test_operators_that_are_not_run_again_are_recorded_as_if_they_were():
    traces = []
    for watching in (contextlib.nullcontext(), _Watching()):
        model = _CalledAgain().to(device="meta", dtype=torch.bfloat16)
        x = torch.empty(4, 6, 8, device="meta", dtype=torch.bfloat16)
        with torch.no_grad(), watching, Recorder(model) as recorder:
            trace = recorder.begin()
            outputs = model(x)
        layouts = [(output.shape, output.stride(), output.dtype) for output in outputs]
        traces.append((layouts, trace.kernels, trace.peak, trace.free, trace.unknown))
    assert traces[0][0] == traces[1][0]
    assert traces[0][1] == traces[1][1]
    assert traces[0][2:] == traces[1][2:]


class _Differentiating(torch.nn.Module):
    """Makes the same product without and with gradients, and under a mode of its own."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.seen = []

    def forward(self, x):
        self.linear(x)
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self.linear(x).sum(), self.linear.weight)
        with _Listing(self.seen):
            self.linear(x)
        return gradient


class _Listing(TorchDispatchMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_an_operator_that_the_model_differentiates_or_watches_runs_again():
    model = _Differentiating().to("meta")
    with torch.no_grad(), Recorder(model) as recorder:
        recorder.begin()
        assert model(torch.empty(4, 8, device="meta")).shape == (8, 8)
    assert "addmm" in model.seen
