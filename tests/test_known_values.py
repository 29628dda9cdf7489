"""Values and shapes on `meta`: which are known, which are refused, and none is worked out twice."""

import gc
import itertools
import operator
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import _get_current_function_mode_stack
from tracing import Calls, meta, trace_of

from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.known_values import KnownValues, known_value
from dsocr_analyze.model.process_settings import default_dtype

META, CPU = torch.device("meta"), torch.device("cpu")


@pytest.fixture
def known():
    with KnownValues():
        yield


def on_meta(*size):
    return torch.arange(*size, device="meta")


def written(tensor, write):
    write(tensor)
    return tensor


def widen(mask):
    mask[0] = mask[0].__ior__(~torch.any(mask > 1))


def told(tensor):
    """Its values; None if they are refused."""
    try:
        return tensor.tolist()
    except ModelCodeError:
        return None


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: on_meta(5), [0, 1, 2, 3, 4]),
        (lambda: on_meta(2, 5), [2, 3, 4]),
        (lambda: torch.zeros(2, device="meta"), [0, 0]),
        (lambda: torch.ones(2, device="meta") + 1, [2, 2]),
        (lambda: torch.full((2,), 7, device="meta"), [7, 7]),
        (lambda: torch.tensor([3, 4], device="meta"), [3, 4]),
        (lambda: torch.as_tensor([3, 4], device=torch.device("meta")), [3, 4]),
        (lambda: torch.arange(3).to("meta"), [0, 1, 2]),
        (lambda: meta(2).new_zeros(3), [0, 0, 0]),
        (lambda: meta(2).new_ones((2,)), [1, 1]),
        (lambda: torch.zeros_like(meta(2)), [0, 0]),
        (lambda: torch.full_like(meta(2), 3), [3, 3]),
        (lambda: torch.cumsum(torch.ones(3, device="meta", dtype=torch.long), 0), [1, 2, 3]),
        (lambda: on_meta(6).view(2, 3).t().flatten(), [0, 3, 1, 4, 2, 5]),
        (lambda: torch.cat([on_meta(2), on_meta(1, 3)]), [0, 1, 1, 2]),
        (lambda: on_meta(4).unsqueeze(0).long().to("meta").contiguous()[0, 2:], [2, 3]),
        (lambda: on_meta(4).split(3)[1], [3]),
        (lambda: torch.stack(on_meta(4).unbind())[1:3], [1, 2]),
        (lambda: on_meta(3) + torch.tensor(10), [10, 11, 12]),
        (lambda: torch.sort(on_meta(3), descending=True)[0], [2, 1, 0]),
        (lambda: torch.topk(on_meta(5), 2)[1], [4, 3]),
        (lambda: on_meta(3).cuda(), [0, 1, 2]),
        (lambda: on_meta(3).to("cuda"), [0, 1, 2]),
        (lambda: on_meta(3).to("cuda", torch.float32), [0, 1, 2]),
        (lambda: on_meta(3).to(device="cuda:0", dtype=torch.int32), [0, 1, 2]),
        (lambda: on_meta(3).to("cpu"), [0, 1, 2]),
        (lambda: on_meta(3).to(torch.ones(1)), [0, 1, 2]),
        (lambda: on_meta(3).to(tensor=torch.ones(1)), [0, 1, 2]),
        (lambda: on_meta(3).cpu() + 1, [1, 2, 3]),
        (lambda: on_meta(2).expand_as(meta(2)), [0, 1]),
        (lambda: on_meta(2).view_as(other=meta(2)), [0, 1]),
        (lambda: on_meta(2).view(1, 2).reshape_as(meta(2)), [0, 1]),
        (lambda: written(on_meta(4), lambda x: x.__setitem__(x > 2, -1)), [0, 1, 2, -1]),
        (lambda: written(on_meta(4), lambda x: x[1:3].copy_(on_meta(2) + 5)), [0, 5, 6, 3]),
        (lambda: written(on_meta(3) == 1, widen), [True, True, False]),
        (lambda: meta(2) == 0, [False, False]),
        (lambda: written(on_meta(3), lambda x: torch._foreach_add_([x], 1)).cumsum(0), [1, 3, 6]),
        (lambda: written(on_meta(3), lambda x: setattr(x, "data", meta(3).long())), None),
        (lambda: meta(), None),
        (lambda: meta(3).sum(), None),
        (lambda: (torch.ones(3, device="meta") * meta(3)).sum(), None),
        (lambda: torch.cat([on_meta(2), meta(2).long()])[0], None),
        (lambda: torch.empty(1, device="meta"), None),
        (lambda: torch.empty_like(on_meta(1)), None),
        (lambda: on_meta(1).new_empty(1), None),
        (lambda: torch.rand(1, device="meta"), None),
        (lambda: torch.rand_like(torch.ones(1, device="meta")), None),
        (lambda: torch.ones(1, device="meta").normal_(), None),
        (lambda: torch.bernoulli(torch.ones(1, device="meta")), None),
        (lambda: torch.nn.functional.dropout(torch.ones(1, device="meta"), training=True), None),
        (lambda: torch.full_like(meta(1), 2).mul_(meta(1)), None),
        (lambda: meta(3) == 1, None),
        (
            lambda: (
                written(torch.ones(3, device="meta"), lambda x: x.__setitem__(meta(3) > 0, 0.0))
                == 0
            ),
            None,
        ),
    ],
)
def test_what_follows_from_ranges_and_constants_is_known_and_nothing_else(make, expected):
    assert told(make()) == expected


def add_one(x: torch.Tensor):
    return x.add_(1)


@pytest.mark.usefixtures("known")
@pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")
@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda x: x[0].fill_(5), [5, 1, 2]),
        (lambda x: x.view(-1)[1:].mul_(2), [0, 2, 4]),
        (lambda x: x[:2].unsqueeze(0)[:, 1].add_(6), [0, 7, 2]),
        (lambda x: x[1:].__setitem__(0, 9), [0, 9, 2]),
        (lambda x: x.add_(1).mul_(on_meta(3)), [0, 2, 6]),
        (lambda x: operator.iadd(x, 1), [1, 2, 3]),
        (lambda x: torch._foreach_add_([x], 1), [1, 2, 3]),
        (lambda x: x.add_(meta(3).long()), None),
        (lambda x: x.__setitem__(0, meta().long()), None),
        (lambda x: x.__setitem__(meta(3) > 0, 5), None),
        (lambda x: x.detach().add_(1), None),
        (lambda x: torch.add(meta(3).long(), 1, out=x), None),
        (lambda x: torch.jit.script(add_one)(x), None),
    ],
)
def test_what_a_write_leaves_and_that_nothing_is_known_of_views_before_it(write, expected):
    x = on_meta(3)
    view, copy = x[1:], x + 0
    write(x)
    assert (told(x), told(view), told(copy)) == (expected, None, [0, 1, 2])


@pytest.mark.usefixtures("known")
def test_in_every_way_a_value_is_asked_for():
    one, three = torch.ones((), device="meta", dtype=torch.long), on_meta(3)
    answers = [
        one.item(), int(one), float(one), complex(one), [0, 1][one],
        bool(one), one.is_nonzero(), torch.is_nonzero(one), torch.equal(one, one.clone()),
        one.equal(one + 0), torch.allclose(three.float(), on_meta(3).float()), 2 in three,
        3 not in three,
    ]  # fmt: skip
    assert answers == [1] * 13
    assert three.cpu().numpy().tolist() == three.numpy().tolist() == [0, 1, 2]


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    "fill",
    [
        lambda number: torch.full((2, 3), number, device="meta"),
        lambda number: torch.full(size=(2, 3), fill_value=number, device="meta"),
        lambda number: torch.full_like(meta(2, 3), number),
        lambda number: torch.full_like(meta(2, 3), fill_value=number),
        lambda number: meta(1).new_full((2, 3), number),
        lambda number: torch.full((2, 3), number, out=meta(2, 3)),
    ],
)
def test_what_a_tensor_was_filled_with(fill):
    pixels = fill(0.5)
    assert (pixels.sum().item(), fill(0.0).sum().item()) == (2 * 3 * 0.5, 0)
    pixels[0] += 1
    assert fill(0.5).cpu().add_(1).tolist() == [[1.5] * 3] * 2
    assert torch.zeros(10**12, device="meta")[7].item() == 0  # of any size, without memory


@pytest.mark.usefixtures("known")
def test_a_value_is_as_it_was_when_it_was_asked_for():
    x, cpu, numbers = on_meta(3), torch.tensor(10), [1, 2]
    results = [x + 1, x + cpu, torch.tensor(numbers, device="meta")]
    x.add_(5)
    cpu.add_(5)
    numbers.append(3)
    x.cpu().add_(1)  # an answer belongs to whoever asked
    x.numpy()[:] = 9
    x.tolist().clear()
    assert [*map(told, (x, *results))] == [[5, 6, 7], [1, 2, 3], [10, 11, 12], [1, 2]]


@pytest.mark.usefixtures("known")
def test_a_value_is_forgotten_before_its_writes_would_fill_the_stack():
    x = on_meta(3)
    for number in range(128):
        x[0] = number
    assert told(x) == [127, 1, 2]
    for number in range(1000):
        x[1] = number
        assert told(x) is None


@pytest.mark.usefixtures("known")
def test_tensors_with_values_are_left_alone():
    x = torch.tensor([1.0, 2.0])
    assert ((x * 2).sum().item(), x.cpu() is x) == (6, True)
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(x)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: meta(2, 3).tolist(),
         r"^[^\n]*Tensor\.tolist[^\n]*\(2, 3\)[^\n]*give device='cpu' or a CUDA device[^\n]*$"),
        (lambda: meta().item(), r"Tensor\.item"),
        (lambda: torch.equal(on_meta(3), meta(3).long()), "equal"),
        (lambda: meta(3).nonzero(), "has no values on meta"),
        (lambda: meta(3)[meta(3) > 0], "has no values on meta"),
        (lambda: torch.unique(meta(3)), "has no values on meta"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_was_asked_of_what_and_what_to_do(ask, says):
    with running(META), pytest.raises(ModelCodeError, match=says):
        ask()


# --- routing ---------------------------------------------------------------------------------


def counts(choices, experts):
    return torch.bincount(choices.cpu().flatten(), minlength=experts).tolist()


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8])
def test_routing_is_uniform_and_the_remainder_goes_to_the_first_experts(tokens):
    _, choices = torch.topk(meta(tokens, 8), k=6, dim=-1, sorted=False)
    each, more = divmod(tokens * 6, 8)
    assert counts(choices, 8) == [each + 1] * more + [each] * (8 - more)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    "choose",
    [
        lambda x: torch.topk(x, 3),
        lambda x: torch.topk(x, 3, -1),
        lambda x: torch.topk(input=x, k=3, dim=1),
        lambda x: x.topk(3, dim=-1),
        lambda x: x.topk(k=3, sorted=False),
        lambda x: tuple(part.t() for part in torch.topk(x.t(), 3, dim=0)),
    ],
)
def test_a_token_has_different_experts_however_they_are_chosen(choose):
    choices = choose(meta(8, 4))[1].cpu()
    assert [len(set(row)) for row in choices.tolist()] == [choices.shape[1]] * 8 == [3] * 8
    assert counts(choices, 4) == [8 * 3 // 4] * 4


@pytest.mark.usefixtures("known")
def test_routing_is_what_dispatch_to_experts_sees_and_nothing_is_known_of_scores():
    scores, choices = torch.topk(meta(5, 4), 2)
    tokens = choices.new_zeros((5, 4)).scatter_(1, choices, 1).sum(dim=0)
    assert (tokens.cpu().numpy().tolist(), told(scores)) == ([3, 3, 2, 2], None)


# --- nothing leaks ---------------------------------------------------------------------------


def test_after_the_mode_or_an_error_nothing_is_answered():
    with KnownValues():
        x = on_meta(3)
    with pytest.raises(ModelCodeError), KnownValues():
        meta(1).item()
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        x.tolist()
    assert _get_current_function_mode_stack() == []


@pytest.mark.exhaustive
@pytest.mark.usefixtures("known")
def test_what_is_known_holds_no_tensor_alive():
    x = on_meta(3)
    y = x + 1
    storage = weakref.ref(x.untyped_storage())
    del x
    gc.collect()
    assert (storage(), y.tolist()) == (None, [1, 2, 3])


@pytest.mark.usefixtures("known")
def test_a_tensor_is_known_by_the_same_function_until_it_is_written():
    x = on_meta(3)
    first, again = known_value(x), known_value(x)
    x.add_(1)
    assert None is not first is again is not known_value(x)
    assert known_value(meta(3)) is None


# --- operators whose output depends on values --------------------------------------------------

OF_VALUES = {
    "nonzero": lambda mask, x: mask.nonzero(),
    "argwhere": lambda mask, x: torch.argwhere(mask),
    "where": lambda mask, x: torch.where(mask)[1],
    "mask": lambda mask, x: x[mask],
    "mask of rows": lambda mask, x: x[mask.any(1)],
    "mask behind a slice": lambda mask, x: x.t()[:, mask.any(1)],
    "masked_select": lambda mask, x: torch.masked_select(x, mask),
    "masked_select, broadcast": lambda mask, x: torch.masked_select(x, mask[:, :1]),
    "repeats": lambda mask, x: torch.repeat_interleave(x, mask.sum(1), dim=0),
    "one repeat": lambda mask, x: x.repeat_interleave(mask.sum().reshape(1), dim=1),
    "repeats alone": lambda mask, x: torch.repeat_interleave(mask.sum(1)),
    "unique": lambda mask, x: mask.sum(1).unique(),
    "unique_consecutive": lambda mask, x: torch.unique_consecutive(mask.long().flatten()),
    "bincount": lambda mask, x: torch.bincount(mask.sum(1)),
    "arange": lambda mask, x: torch.arange(mask.sum(), device=mask.device),
    "expand": lambda mask, x: x[:, :1].expand(-1, mask.sum()),
    "slice": lambda mask, x: x[mask[0].sum() - 1 :],
    "what a slice asks": lambda mask, x: x[mask[mask.sum() - 4 :].nonzero()[:, 0]],
    "for": lambda mask, x: torch.cat([x[:count] for count in mask.sum(1)]),
    "what came of it, compared": lambda mask, x: torch.where(mask)[1][torch.where(mask)[0] == 2],
    "what came of it, in a slice": lambda mask, x: x[mask.nonzero()[2, 0] :],
}


def arguments(device):
    values = [[True, False, True], [False, False, False], [True, True, True]]
    return torch.tensor(values, device=device), torch.ones(3, 3, device=device).mul(0.5)


@pytest.mark.parametrize("name", OF_VALUES)
@pytest.mark.parametrize("is_recorded", [False, True])
def test_the_shape_is_the_cpus(name, is_recorded):
    expected, found = OF_VALUES[name](*arguments(CPU)), []
    call = Calls(lambda *given: found.append(OF_VALUES[name](*given)))
    with running(META):
        given = arguments(META)
        unknown = trace_of(call, *given).unknown if is_recorded else call(*given)
        assert told(found[0]) in (None, expected.tolist())
    looks = [*map(seen, (*found, expected))]
    assert (bool(unknown), found[0].device, looks[0]) == (False, META, looks[1])


def laid_out(order, *sizes):
    """A tensor whose dimensions are in this order in memory."""
    return torch.ones([sizes[dim] for dim in order]).permute([*map(order.index, range(4))])


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))])
@pytest.mark.parametrize("convolve", [torch.conv2d, torch.conv_transpose2d])
def test_a_convolution_is_laid_out_as_on_the_cpu(convolve, order):
    for sizes in ((2, 6, 9, 8), (1, 6, 3, 3), (3, 6, 2, 5), (2, 1, 7, 7), (1, 6, 1, 3)):
        for of_weight in ((0, 1, 2, 3), order):
            x, weight = laid_out(order, *sizes), laid_out(of_weight, sizes[1], sizes[1], 1, 3)
            with running(META):
                found = convolve(x.to(META), weight.to(META))
            assert seen(found) == seen(convolve(x, weight)), (sizes, of_weight)


# --- operators that ran on equal arguments before ----------------------------------------------


def seen(tensor):
    """All that a later operator, or the memory's count, may depend on."""
    memory = tensor.untyped_storage().nbytes()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.storage_offset(), memory


EQUAL = {
    "sum of two types": lambda: meta(3, 4, dtype=torch.bfloat16) + meta(4),
    "broadcast": lambda: meta(3, 1, 5) * meta(4, 1),
    "of a transposed one": lambda: meta(3, 4).t() * 2,
    "of a cut one": lambda: meta(3, 8)[:, ::2].exp(),
    "of a permuted one": lambda: F.gelu(meta(2, 3, 4, 5).permute(0, 2, 3, 1)),
    "comparison": lambda: meta(3) > meta(3),
    "product": lambda: meta(2, 3, 4) @ meta(2, 4, 5),
    "linear": lambda: F.linear(meta(2, 3, 4), meta(5, 4), meta(5)),
    "convolution": lambda: F.conv2d(meta(1, 3, 8, 8), meta(4, 3, 2, 2), stride=2),
    "channels last": lambda: F.conv2d(
        meta(1, 3, 8, 8).contiguous(memory_format=torch.channels_last), meta(4, 3, 2, 2)
    ),
    "layer norm": lambda: torch.native_layer_norm(meta(3, 4), (4,), None, None, 1e-5),
    "softmax": lambda: meta(3, 4, dtype=torch.float16).softmax(-1, dtype=torch.float32),
    "two outputs": lambda: meta(3, 9).topk(2),
    "join": lambda: torch.cat([meta(2, 3), meta(4, 3)]),
    "stack": lambda: torch.stack([meta(2, 3)] * 3, 1),
    "gather": lambda: meta(9, 4)[meta(5, dtype=torch.long)],
    "mean": lambda: meta(3, 4, 5).mean((0, 2), keepdim=True),
    "resized": lambda: F.interpolate(meta(1, 2, 4, 4), (7, 3), mode="bicubic", antialias=True),
    "padding": lambda: F.pad(meta(2, 3), (1, 2)),
    "a new one": lambda: torch.full((2, 3), 7, device="meta"),
    "a range": lambda: torch.arange(2, 11, 3, device="meta"),
    "a cast": lambda: meta(3).to(torch.float64),
    "a copy": lambda: meta(4, 6).t().clone(),
    "dropout": lambda: F.dropout(meta(3, 4), 0.5),
    "views": lambda: meta(6, 4).view(3, 8)[1:].transpose(0, 1).chunk(2),
    "split": lambda: meta(6, 4).split([2, 4]),
    "in place": lambda: meta(3).add_(1).mul_(2),
    "into another": lambda: torch.add(meta(3), 1, out=meta(3)),
}  # fmt: skip


def outputs_of(call):
    found = call()
    return [*map(seen, found if isinstance(found, tuple | list) else [found])]


@pytest.mark.parametrize("is_inference", [False, True])
def test_a_call_that_is_not_run_again_has_the_output_that_torch_works_out(is_inference):
    for name, call in EQUAL.items():
        with torch.inference_mode(is_inference), running(META):
            expected, found = outputs_of(call), []
            trace_of(Calls(lambda call=call, to=found: to.extend(outputs_of(call) for _ in "123")))
        assert found == [expected] * 3, name


def test_the_type_of_a_number_and_the_default_type_are_arguments():
    found, numbers = [], (1, 1.0, True, 1, 1.0)
    made = Calls(lambda: found.extend(torch.full((2,), each, device=META) for each in numbers))
    halved = Calls(lambda x: found.append(x / 2))
    with running(META):
        trace_of(made)
        for dtype in (torch.float32, torch.float64, torch.float32):
            with default_dtype(dtype):
                trace_of(halved, meta(2, dtype=torch.int64))
    kinds = [torch.int64, torch.float32, torch.bool, torch.int64, torch.float32]
    assert [x.dtype for x in found] == [*kinds, torch.float32, torch.float64, torch.float32]


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped product")
@pytest.mark.parametrize("rows", [2, 4, 12])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_grouped_product_counts_every_row_once(rows, dtype):
    """[M, 16] x [4, 16, 8]: 128 MACs a row; it reads as many matrices as rows can touch."""
    with running(META):
        left, right = meta(rows, 16, dtype=dtype), meta(4, 16, 8, dtype=dtype)
        ends = torch.tensor([rows] * 4, dtype=torch.int32, device="meta")
        trace = trace_of(Calls(torch._grouped_mm), left, right, offs=ends)
    [kernel], read = trace.kernels, rows * 16 + min(rows, 4) * 16 * 8
    assert (kernel.total.macs, kernel.total.bytes_read, kernel.total.bytes_written) == (
        rows * 16 * 8, read * dtype.itemsize + 4 * 4, rows * 8 * dtype.itemsize,
    )  # fmt: skip
