"""An operator on meta that ran on equal arguments before is not worked out again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dsocr_analyze.model.forward import running

META = torch.device("meta")


def tensor(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device=META)


def seen(tensor):
    """All that a later operator, or the memory's count, may depend on."""
    memory = tensor.untyped_storage().nbytes()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.storage_offset(), memory


FUNCTIONS = {
    "sum of two types": lambda: tensor(3, 4, dtype=torch.bfloat16) + tensor(4),
    "broadcast": lambda: tensor(3, 1, 5) * tensor(4, 1),
    "of a transposed one": lambda: tensor(3, 4).t() * 2,
    "of a cut one": lambda: tensor(3, 8)[:, ::2].exp(),
    "of a permuted one": lambda: F.gelu(tensor(2, 3, 4, 5).permute(0, 2, 3, 1)),
    "comparison": lambda: tensor(3) > tensor(3),
    "product": lambda: tensor(2, 3, 4) @ tensor(2, 4, 5),
    "linear": lambda: F.linear(tensor(2, 3, 4), tensor(5, 4), tensor(5)),
    "convolution": lambda: F.conv2d(tensor(1, 3, 8, 8), tensor(4, 3, 2, 2), stride=2),
    "channels last": lambda: F.conv2d(
        tensor(1, 3, 8, 8).contiguous(memory_format=torch.channels_last), tensor(4, 3, 2, 2)
    ),
    "attention": lambda: F.scaled_dot_product_attention(*[tensor(1, 2, 6, 8)] * 3, is_causal=True),
    "layer norm": lambda: torch.native_layer_norm(tensor(3, 4), (4,), None, None, 1e-5),
    "softmax": lambda: tensor(3, 4, dtype=torch.float16).softmax(-1, dtype=torch.float32),
    "two outputs": lambda: tensor(3, 9).topk(2),
    "join": lambda: torch.cat([tensor(2, 3), tensor(4, 3)]),
    "stack": lambda: torch.stack([tensor(2, 3)] * 3, 1),
    "gather": lambda: tensor(9, 4)[tensor(5, dtype=torch.long)],
    "mean": lambda: tensor(3, 4, 5).mean((0, 2), keepdim=True),
    "resized": lambda: F.interpolate(tensor(1, 2, 4, 4), (7, 3), mode="bicubic", antialias=True),
    "padding": lambda: F.pad(tensor(2, 3), (1, 2)),
    "a new one": lambda: torch.full((2, 3), 7, device=META),
    "a range": lambda: torch.arange(2, 11, 3, device=META),
    "a cast": lambda: tensor(3).to(torch.float64),
    "a copy": lambda: tensor(4, 6).t().clone(),
    "dropout": lambda: F.dropout(tensor(3, 4), 0.5),
    "views": lambda: tensor(6, 4).view(3, 8)[1:].transpose(0, 1).chunk(2),
    "split": lambda: tensor(6, 4).split([2, 4]),
    "in place": lambda: tensor(3).add_(1).mul_(2),
    "into another": lambda: torch.add(tensor(3), 1, out=tensor(3)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("inference", [False, True])
def test_it_is_the_output_that_torch_works_out(name, inference):
    function = FUNCTIONS[name]

    def run():
        found = function()
        return [seen(each) for each in (found if isinstance(found, tuple | list) else [found])]

    expected = run()
    with torch.inference_mode(inference), running(META):
        assert [run() for _ in range(3)] == [expected] * 3


@pytest.fixture
def worked_out():
    """An operator, and the shapes for which its output was worked out."""
    shapes = []

    def fake(x):
        shapes.append(tuple(x.shape))
        return torch.empty_like(x)

    with torch.library._scoped_library("known_outputs_tests", "FRAGMENT") as library:
        library.define("seen(Tensor x) -> Tensor")
        library.impl("seen", fake, "Meta")
        yield torch.ops.known_outputs_tests.seen, shapes


def test_a_call_with_equal_arguments_is_not_worked_out_again(worked_out):
    operator, shapes = worked_out
    with running(META):
        for size in (3, 3, 4, 3, 4):
            assert operator(tensor(size, 17)).shape == (size, 17)
    assert shapes == [(3, 17), (4, 17)]


def test_an_output_that_is_undefined_stays_so():
    with torch.library._scoped_library("known_outputs_tests", "FRAGMENT") as library:
        library.define("half(Tensor x) -> (Tensor, Tensor)")
        library.impl("half", lambda x: (torch.empty_like(x), None), "Meta")
        with running(META):
            for _ in range(3):
                defined, undefined = torch.ops.known_outputs_tests.half(tensor(3, 19))
                assert defined.shape == (3, 19)
                assert undefined is None


def test_every_output_has_memory_of_its_own():
    with running(META):
        x = tensor(3, 4)
        found = [x * 2 for _ in range(3)]
    memories = {each.untyped_storage()._cdata for each in (x, *found)}
    assert len(memories) == 4


def test_a_view_shares_the_memory_of_what_it_shows():
    with running(META):
        x = tensor(3, 4)
        for _ in range(3):
            assert x.view(12).untyped_storage()._cdata == x.untyped_storage()._cdata


def test_equal_numbers_of_other_kinds_are_other_arguments():
    with running(META):
        kinds = [torch.full((2,), value, device=META).dtype for value in (1, 1.0, True, 1, 1.0)]
    assert kinds == [torch.int64, torch.float32, torch.bool, torch.int64, torch.float32]


def test_the_default_type_is_an_argument():
    before = torch.get_default_dtype()
    try:
        with running(META):
            found = []
            for dtype in (torch.float32, torch.float64, torch.float32):
                torch.set_default_dtype(dtype)
                found.append((torch.ones(2, device=META, dtype=torch.int64) / 2).dtype)
    finally:
        torch.set_default_dtype(before)
    assert found == [torch.float32, torch.float64, torch.float32]


def test_what_is_refused_is_refused_again():
    with running(META):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="reduction dim"):
                tensor(3, 4) @ tensor(3, 4)


class Watching(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_whoever_watches_from_outside_sees_every_operator():
    x = tensor(3)
    with Watching() as watching, running(META):
        for _ in range(3):
            x.exp()
    assert watching.names == ["exp"] * 3


def test_memory_beyond_what_is_shown_is_not_forgotten():
    """A custom operator may return part of what it allocated."""

    @torch.library.custom_op("known_outputs_tests::part", mutates_args=())
    def part(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(10)[:3]

    part.register_fake(lambda x: x.new_empty(10)[:3])
    with running(META):
        sizes = [part(tensor(2)).untyped_storage().nbytes() for _ in range(3)]
    assert sizes == [40] * 3
