"""`count`, of any module: what it says, and that nothing stays changed."""

import copy
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from counted_modules import COUNTED, Flow, made
from process_state import settings
from test_peer_cases import PYTORCH
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode
from tracing import Calls, meta, witnessed_flops

from dsocr_analyze import count
from dsocr_analyze.errors import DeviceError, FormatError, ModelCodeError, UncountableError
from dsocr_analyze.model.forward import running
from dsocr_analyze.trace import recorder

ROWS = torch.ones(2, 3)
IN_OTHER_STEPS = {"lstm", "gru", "mixtral"}
"""On a CPU all steps of a layer share its first product, and tokens choose their own experts."""


# --- what it says --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COUNTED)
def test_flops_are_torchs_own_and_parameters_too_wherever_the_module_lives(name):
    module, inputs, named = made(name, "meta")
    try:
        witnessed = witnessed_flops(module, *inputs, **named)
    except (RuntimeError, NotImplementedError):  # it reads values, which plain `meta` lacks
        with running(torch.device("meta")):
            witnessed = witnessed_flops(module, *inputs, **named)
    found = count(module, *inputs, **named)
    grouped = found.by_operator.get("_grouped_mm")  # of transformers 5, which torch leaves out
    left_out = 0 if grouped is None else grouped.matrix_flops
    assert (found.total.matrix_flops - left_out, found.unknown) == (witnessed, {})
    assert found.params == sum(each.numel() for each in module.parameters())
    on_cpu, inputs, named = made(name, "cpu")
    first, again = (count(on_cpu, *inputs, **named) for _ in range(2))
    assert first == again
    if name in IN_OTHER_STEPS:
        assert first.total.matrix_flops == found.total.matrix_flops
        assert first.unknown == {}
    else:
        assert replace(first, device="meta") == found


STATED = [
    (case, figure)
    for case, figures in PYTORCH.items()
    for figure in figures
    if figure.of == "matrix_flops" and not (figure.choice or figure.at or figure.operator)
]


@pytest.mark.parametrize(("case", "figure"), STATED, ids=[case for case, _ in STATED])
def test_its_own_cases_count_as_flop_counter_mode_states(case, figure):
    module = figure.run if isinstance(figure.run, nn.Module) else Calls(figure.run)
    assert count(module, *figure.inputs).total.matrix_flops == figure.stated


def test_the_figures_of_two_layers_are_these():
    """x [2, 3], W [5, 3], then ReLU in fp32."""
    found = count(nn.Sequential(nn.Linear(3, 5), nn.ReLU()), ROWS)
    assert (found.class_name, found.device) == ("Sequential", "cpu")
    assert (found.params, found.params_bytes) == (20, 80)
    assert (found.total.macs, found.total.matrix_flops) == (2 * 3 * 5, 60)
    assert found.total.vector_flops == 2 * 5 + 2 * 5  # bias, ReLU
    assert found.total.bytes_read == 4 * (6 + 15 + 5) + 4 * 10
    assert found.total.bytes_written == 4 * 10 + 4 * 10
    assert found.total.bytes_moved == 224
    assert (found.peak_activation_bytes, found.peak_module) == (4 * 10 + 4 * 10, "1")
    assert {path: module.flops for path, module in found.by_module.items()} == {
        "": 80, "0": 70, "1": 10,
    }  # fmt: skip
    root = found.by_module[""]
    assert (root.class_name, root.calls, root.params, root.own.flops) == ("Sequential", 1, 20, 0)
    relu = found.by_operator["relu"]
    assert (relu.kind, relu.calls, relu.flops, relu.bytes_moved) == ("activation", 1, 10, 80)
    assert [*found.by_operator] == ["linear", "relu"]


def test_tied_parameters_count_once_and_a_module_as_often_as_it_is_called():
    layer = nn.Linear(3, 3, bias=False)
    twice = Flow(lambda self, x: self.b(self.a(x)), a=layer, b=layer)
    found = count(twice, ROWS)
    assert (found.params, found.total.macs) == (9, 2 * 2 * 3 * 3)
    assert {path: each.calls for path, each in found.by_module.items()} == {"": 1, "a": 2}
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    assert count(tied, ROWS).params_bytes == 36


def test_tables_have_a_row_per_module_or_operator():
    pytest.importorskip("pandas")
    found = count(nn.Sequential(nn.Linear(3, 5), nn.ReLU()), ROWS)
    modules = found.to_pandas().set_index("module")
    assert (modules.loc["0", "flops"], modules.loc["", "own_flops"]) == (70, 0)
    operators = found.to_pandas("operator").set_index("operator")
    assert operators.loc["relu", ["calls", "bytes_read", "bytes_written"]].to_list() == [1, 40, 40]
    with pytest.raises(FormatError, match="by='stage' is unknown; give module, operator"):
        found.to_pandas("stage")


def test_an_operator_without_a_rule_is_named():
    assert count(Calls(lambda x: torch.fft.fft(x).real), ROWS).unknown == {"_fft_r2c": 1}


def test_calls_that_look_alike_but_select_by_values_are_counted_each():
    """The second of equal calls runs unwatched, unless its result's size depends on values."""
    few, many = torch.tensor([True, False]), torch.tensor([True, True])
    picks = Calls(lambda x, mask: x[mask] * 2)
    for _ in range(2):
        assert [count(picks, ROWS, mask).total.vector_flops for mask in (few, many)] == [3, 6]


PROGRAMS = {
    "views": lambda x: x.view(3, 2)[:, :1].expand(3, 4).t() + 1,
    "in place": lambda x: x.clone().mul_(2).add_(x),
    "temporaries": lambda x: F.softmax(x.half().float() @ x.t(), -1).sum(),
    "several results": lambda x: torch.cat([*x.chunk(3, 1), x.max(1, keepdim=True)[0]], 1).relu(),
    "made on the host": lambda x: x + torch.arange(3).to(x.device),
    "made on the device": lambda x: x + torch.arange(3, device=x.device) + x.new_ones(3),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 1, 2, 3)] * 3).transpose(
        1, 2
    ),
    "assignment": lambda x: torch.zeros_like(x).__setitem__((0, slice(1)), 3.0),
    "a buffer that grows": lambda x: torch.mul(x, x, out=torch.empty(0, device=x.device)),
    "a switch of gradients": lambda x: torch.enable_grad()(lambda: (x * 2).detach() + x)(),
    "other types": lambda x: x.to(torch.bfloat16).type_as(x).to(x.device) * x,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_calls_count_the_same_in_any_run_and_on_any_device(name, monkeypatch):
    monkeypatch.setattr(recorder, "_EFFECTS", {})
    module = Calls(lambda x: [PROGRAMS[name](x) for _ in range(3)])
    found = [count(module, ROWS) for _ in range(3)]
    assert found[0] == found[1] == found[2]
    on_meta = [count(module, meta(2, 3)) for _ in range(2)]
    assert replace(found[0], device="meta") == on_meta[0] == on_meta[1]
    monkeypatch.setattr(recorder.Recorder, "_key_of", lambda *_: None)  # each call runs in full
    assert [count(module, ROWS), count(module, meta(2, 3))] == [found[0], on_meta[0]]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_same_tensor_twice_is_another_call_than_two_alike(device):
    """Attention to itself projects all at once, else the queries apart from keys and values."""
    attention = nn.MultiheadAttention(4, 2, device=device)
    x, y = torch.ones(2, 3, 1, 4, device=device)
    for _ in range(2):
        calls = [
            count(attention, *each).by_operator["linear"].calls for each in ([x] * 3, [x, y, y])
        ]
        assert calls == [1 + 1, 2 + 1]


ASKED = {
    "a range": lambda x: int(torch.arange(3, device=x.device).sum()),
    "what is computed of it": lambda x: torch.arange(3, device=x.device).add_(1).tolist(),
    "a constant in whose place numbers were": lambda x: float(x.new_ones(3).mul_(2)[0]),
    "whether a computed number is 0": lambda x: bool((x * 2 == 0).any()),
    "whether 0 is among them": lambda x: 0.0 in x * 2,
    "how many rows a mask takes": lambda x: x[torch.eye(2, device=x.device)[0] > 0].shape[0],
    "how many rows there are up to one": lambda x: len(x[: torch.arange(1, 2, device=x.device)[0]]),
    "how often rows are repeated": lambda x: x.repeat_interleave(
        torch.arange(3, 4, device=x.device), 0
    ).shape[0],
}


@pytest.mark.parametrize("name", ASKED)
def test_values_that_a_module_asks_for_are_known_each_time(name):
    answers = list[object]()
    asks = Calls(lambda x: answers.extend(ASKED[name](x) for _ in range(3)))
    for given in (meta(2, 3), meta(2, 3), ROWS):
        count(asks, given)
    assert [*map(answers.count, answers)] == [9] * 9


def test_a_value_is_not_known_any_more_after_an_equal_call_has_written_to_it():
    def forward(x):
        for _ in range(3):
            total = x.new_zeros(2, 3)
            total[0].add_(x[0])
        return x if total.sum() else -x

    for _ in range(2):
        with pytest.raises(ModelCodeError, match="__bool__"):
            count(Calls(forward), meta(2, 3))


# --- nothing stays changed -----------------------------------------------------------------------


def trained() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(9, 4, max_norm=0.1), nn.Flatten(), nn.Linear(8, 4), nn.BatchNorm1d(4),
        nn.Dropout(), nn.ReLU(inplace=True),
    ).train()  # fmt: skip


def state_of(module):
    """Of each part, its attributes, hooks and children; values of its tensors."""
    parts = [
        {**vars(part), "_forward_hooks": dict(part._forward_hooks)} for part in module.modules()
    ]
    values = [each.detach().clone().tolist() for each in module.state_dict().values()]
    return [
        {key: id(value) for key, value in part.items() if key[:9] != "_forward_"} for part in parts
    ], values


def random_numbers():
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    return torch.get_rng_state().tolist(), random.getstate(), state


def fail(error):
    def forward(x):
        torch.rand(1), random.random(), np.random.rand()  # noqa: NPY002
        torch.set_grad_enabled(True)
        raise error

    return Calls(forward)


@pytest.mark.parametrize("error", [None, ValueError("of its own"), KeyboardInterrupt()])
@pytest.mark.parametrize("is_inference", [False, True])
def test_the_module_and_the_process_are_as_before(error, is_inference):
    module = trained()
    if error is not None:
        module.append(fail(error))
    ids = torch.tensor([[1, 2], [3, 4]])
    before = state_of(module), settings()
    numbers = random_numbers()
    with torch.inference_mode(is_inference):
        if error is None:
            assert count(module, ids).total.macs == 2 * 8 * 4
        else:
            with pytest.raises(type(error)):
                count(module, ids)
        assert torch.is_inference_mode_enabled() is is_inference
    assert (state_of(module), settings()) == before
    assert random_numbers() == numbers
    assert not _get_current_dispatch_mode_stack()


def test_what_forward_gives_a_module_is_taken_from_it():
    def forward(self, x):
        self.passes = self.cache["passes"] = 1
        self.register_buffer("mask", x.clone())
        self.scale = nn.Parameter(x.clone())
        self.late = nn.Linear(3, 3)
        self.layer.register_forward_pre_hook(lambda *_: None)
        first.remove()
        return self.late(self.layer(x))

    module = Flow(forward, layer=nn.Linear(3, 3))
    module.cache = {}
    first = module.layer.register_forward_hook(lambda *_: None)
    module.layer.register_forward_hook(lambda *_: None)
    hooks = [*module.layer._forward_hooks]
    before = state_of(module)
    assert count(module, ROWS).total.macs == 2 * 2 * 3 * 3
    assert (state_of(module), module.cache) == (before, {})
    assert [*module.layer._forward_hooks] == hooks
    assert not module.layer._forward_pre_hooks


@pytest.mark.parametrize("has_hook", [False, True])
def test_a_copy_that_forward_makes_of_a_module_counts_where_it_is_called(has_hook):
    layer = nn.Linear(3, 5)
    if has_hook:
        layer.register_forward_hook(lambda *_: None)

    def forward(self, x):
        copied = copy.deepcopy(self.layer)
        copied.weight.data = copied.weight.new_ones(4, 3)
        copied.bias = None
        return copied(x), self.layer(x)

    found = count(Flow(forward, layer=layer), ROWS)
    assert found.total.macs == 2 * 3 * (4 + 5)
    assert (found.by_module[""].own.macs, found.by_module["layer"].macs) == (2 * 3 * 4, 2 * 3 * 5)


def test_other_threads_may_run_the_module_meanwhile():
    """Their calls are not counted; a pass of the module waits for one of theirs."""
    layer, other = nn.Linear(3, 5), ThreadPoolExecutor(1)

    def forward(self, x):
        called = other.submit(lambda: (self.layer(x), torch.is_grad_enabled()))
        output, has_gradients = called.result()
        assert (output.requires_grad, has_gradients) == (True, True)
        return self.layer(x)

    for hook in (None, lambda *_: None):
        if hook is not None:
            layer.register_forward_hook(hook)
        found = count(Flow(forward, layer=layer), ROWS)
        assert found.total.flops == 70
        assert {path: each.calls for path, each in found.by_module.items()} == {"": 1, "layer": 1}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_transformer_encoder_counts_what_its_mask_leaves_out(device):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device=device)
    x = torch.ones(2, 4, 8, device=device)
    mask = torch.tensor([[False] * 4, [False, False, True, True]], device=device)
    found, expected = (
        count(
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=nests).eval(),
            x,
            src_key_padding_mask=mask,
        )
        for nests in (True, False)
    )
    assert found.unknown == {}
    assert found.total.flops == expected.total.flops + mask.numel()  # it inverts the mask
    assert found.by_module["layers.0"] == expected.by_module["layers.0"]


def test_a_backward_pass_that_forward_runs_counts():
    """Of x [2, 3] W [3, 5]: the product, and those for the gradients of W and x."""

    @torch.enable_grad()
    def forward(self, x):
        x = x.clone().requires_grad_()
        self.layer(x).sum().backward()
        return x.grad

    found = count(Flow(forward, layer=nn.Linear(3, 5, bias=False)), ROWS)
    assert found.total.macs == 3 * (2 * 3 * 5)


def test_gradients_that_the_caller_has_begun_still_flow():
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    loss = module(ROWS).sum()
    count(module, ROWS)
    loss.backward()
    assert torch.is_grad_enabled()
    assert module[0].weight.grad is not None


def test_it_counts_what_the_caller_would_run():
    layer = nn.Linear(3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kernels = count(layer, ROWS).kernels
    assert [(each.operator, each.dtype) for each in kernels[-1:]] == [("linear", "bfloat16")]
    torch.set_default_dtype(torch.float64)
    try:
        [_, kernel] = count(Calls(lambda: torch.ones(3) * 2)).kernels
    finally:
        torch.set_default_dtype(torch.float32)
    assert kernel.dtype == "float64"
    with FlopCounterMode(display=False) as counter:
        assert count(layer, ROWS).total.matrix_flops == 60
    assert counter.get_total_flops() == 60


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated
@pytest.mark.parametrize("make", [torch.jit.script, lambda layer: torch.jit.trace(layer, ROWS)])
def test_scripted_and_traced_modules_are_counted(make):
    found = count(nn.Sequential(make(nn.Linear(3, 5)), nn.ReLU()), ROWS)
    assert (count(make(nn.Linear(3, 5)), ROWS).total.flops, found.total.flops) == (70, 80)
    assert (found.params, found.by_module["0"].flops) == (20, 70)


def test_a_compiled_module_is_counted():
    assert count(torch.compile(nn.Linear(3, 5), backend="eager"), ROWS).total.flops == 70


class Doubled(nn.Linear):
    def __call__(self, x):
        return super().__call__(x) * 2


class WithoutForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 5)

    def __call__(self, x):
        return self.layer(x).relu()


@pytest.mark.parametrize("make", [lambda: Doubled(3, 5), WithoutForward])
def test_what_a_module_does_in_its_own_call_counts(make):
    for module in (make(), nn.Sequential(make())):
        module.register_forward_hook(lambda *_: None)
        found = count(module, ROWS)
        assert (found.total.flops, found.by_module[""].calls) == (70 + 10, 1)


STATES = {
    "made like the input": lambda x: x.new_zeros(2, 1, 4),
    "made on its device": lambda x: torch.randn(2, 1, 4, device=x.device),
    "moved to it": lambda x: torch.zeros(2, 1, 4).to(x),
    "made on the host": lambda x: torch.zeros(2, 1, 4),
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
def test_a_recurrent_layer_is_counted_wherever_its_state_is_made(name, kind, gates):
    """Two directions of one sequence of 5 vectors of 3, with states of 4."""
    layer, x = kind(3, 4, bidirectional=True), torch.ones(5, 1, 3)
    macs = 2 * 5 * gates * 4 * (3 + 4)

    def state(x):
        return (STATES[name](x),) * 2 if kind is nn.LSTM else STATES[name](x)

    inside = Flow(lambda self, x: self.layer(x, state(x)), layer=layer)
    for found in (count(inside, x), count(layer, x, state(x)), count(layer, x, hx=state(x))):
        assert (found.total.macs, found.unknown) == (macs, {})
    packed = nn.utils.rnn.pack_sequence([x[:, 0]])
    for device in ("cpu", "meta"):
        there = nn.utils.rnn.PackedSequence(packed.data.to(device), packed.batch_sizes)
        assert count(layer.to(device), there).total.macs == macs


def test_keyword_inputs_may_have_any_name():
    names = dict.fromkeys(("module", "forward", "run", "path", "args", "device"), ROWS)
    inner = Calls(lambda **given: given["module"] + given["run"])
    assert count(inner, **names).total.flops == 6
    assert (
        count(Flow(lambda self, **given: self.inner(**given), inner=inner), **names).total.flops
        == 6
    )


@pytest.mark.parametrize("name", ["resnet", "bert", "lstm", "mamba"])
def test_in_inference_mode_it_counts_the_same(name):
    module, inputs, named = made(name, "cpu")
    expected = count(module, *inputs, **named)
    with torch.inference_mode():
        found = [count(module, *inputs, **named)]
        module, inputs, named = made(name, "cpu")
        found.append(count(module, *inputs, **named))
        on_meta, inputs, named = made(name, "meta")
        assert count(on_meta, *inputs, **named).total.matrix_flops > 0
    for each in found:
        assert (each.total, each.by_module) == (expected.total, expected.by_module)
        assert each.peak_activation_bytes == expected.peak_activation_bytes


def test_what_inference_mode_has_made_is_written_to_on_a_device_alone():
    with torch.inference_mode():
        assert count(nn.ReLU(inplace=True), torch.ones(2, 3)).total.flops == 6
        assert count(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)), ROWS.clone()).params == 30
        with pytest.raises(ModelCodeError, match="make module and inputs outside"):
            count(nn.ReLU(inplace=True), meta(2, 3))


# --- what is refused -----------------------------------------------------------------------------


def fake():
    with FakeTensorMode():
        return nn.Linear(3, 5)


REFUSED = {
    "a function": (lambda: torch.relu, ROWS, UncountableError, "not builtin_function_or_method"),
    "a class": (lambda: nn.Linear, ROWS, UncountableError, "not the class Linear"),
    "no shapes": (
        lambda: nn.LazyLinear(5), ROWS, UncountableError, "'weight' has no shape yet; call the",
    ),
    "two devices": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, device="meta")), ROWS, DeviceError,
        "0.weight is on cpu, 1.weight is on meta; give a module and inputs on one device",
    ),
    "an input elsewhere": (
        lambda: nn.Linear(3, 5, device="meta"), ROWS, DeviceError, "an input is on cpu",
    ),
    "FakeTensors": (fake, ROWS, UncountableError, "outside FakeTensorMode"),
    "a choice by values": (
        lambda: nn.Sequential(Calls(lambda x: x if x.sum() > 0 else -x)), meta(2, 3),
        ModelCodeError, r"0 \(Calls\): test_count.py:.*__bool__.*count it on a CPU or GPU",
    ),
    "a size by values": (
        lambda: Calls(lambda x: x.nonzero()), meta(2, 3), ModelCodeError,
        "calls nonzero on a tensor of shape .*count it on a CPU or GPU",
    ),
    "a state on the host": (
        lambda: Flow(lambda self, x: self.a(x, torch.zeros(1, 4)), a=nn.GRU(3, 4)).to("meta"),
        meta(2, 3), ModelCodeError, r"a \(GRU\).*found input tensor at meta.*count it on a CPU",
    ),
    "a nested tensor": (
        lambda: nn.Linear(3, 5), torch.nested.nested_tensor([ROWS, ROWS], layout=torch.jagged),
        UncountableError, "nested tensors are not counted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_counted_is_refused_in_the_callers_terms(name):
    make, given, kind, message = REFUSED[name]
    with pytest.raises(kind, match=f"(?s){message}"):
        count(make(), given)
    assert not _get_current_dispatch_mode_stack()
