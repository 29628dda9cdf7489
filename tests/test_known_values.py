"""Which questions about values on `meta` are answered, and which are refused."""

from __future__ import annotations

import gc
import re
import weakref

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from tracing import meta

from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.known_values import KnownValues, known_value


@pytest.fixture
def known():
    with KnownValues():
        yield


def on_meta(*size):
    return torch.arange(*size, device="meta")


def _with_items_set(tensor, index, value):
    tensor[index] = value
    return tensor


def _widened(mask):
    return _with_items_set(mask, 0, mask[0].__ior__(~torch.any(mask > 1)))


@pytest.mark.usefixtures("known")
class TestAnswers:
    @pytest.mark.parametrize(
        ("write", "expected"),
        [
            (lambda x: x[0].fill_(5), [5, 1, 2]),
            (lambda x: x.view(-1)[1:].mul_(2), [0, 2, 4]),
            (lambda x: x[:2].unsqueeze(0)[:, 1].add_(6), [0, 7, 2]),
            (lambda x: x[1:].__setitem__(0, 9), [0, 9, 2]),
        ],
    )
    def test_what_a_write_through_a_view_leaves(self, write, expected):
        x = on_meta(3)
        before = x + 0
        write(x)
        assert (x.tolist(), before.tolist()) == (expected, [0, 1, 2])

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
            (lambda: on_meta(3).cpu() + 1, [1, 2, 3]),
            (lambda: on_meta(2).expand_as(meta(2)), [0, 1]),
            (lambda: on_meta(2).view_as(other=meta(2)), [0, 1]),
            (lambda: on_meta(2).view(1, 2).reshape_as(meta(2)), [0, 1]),
            (lambda: _with_items_set(on_meta(4), on_meta(4) > 2, -1), [0, 1, 2, -1]),
            (lambda: _with_items_set(on_meta(4), slice(1, 3), on_meta(2) + 5), [0, 5, 6, 3]),
            (lambda: _widened(on_meta(3) == 1), [True, True, False]),
            (lambda: meta(2) == 0, [False, False]),
        ],
    )
    def test_what_follows_from_ranges_and_constants(self, make, expected):
        assert make().tolist() == expected

    def test_in_every_way_a_value_is_asked_for(self):
        one, three = torch.ones((), device="meta", dtype=torch.long), on_meta(3)
        answers = [
            one.item(), int(one), float(one), complex(one), [0, 1][one],
            bool(one), one.is_nonzero(), torch.is_nonzero(one), torch.equal(one, one.clone()),
            one.equal(one + 0), torch.allclose(three.float(), on_meta(3).float()), 2 in three,
            3 not in three,
        ]  # fmt: skip
        assert answers == [1] * 13
        assert three.cpu().numpy().tolist() == three.numpy().tolist() == [0, 1, 2]

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
    def test_what_a_tensor_was_filled_with(self, fill):
        pixels = fill(0.5)
        assert (pixels.sum().item(), fill(0.0).sum().item()) == (2 * 3 * 0.5, 0)
        pixels[0] += 1
        assert fill(0.5).cpu().add_(1).tolist() == [[1.5] * 3] * 2
        assert torch.zeros(10**12, device="meta")[7].item() == 0  # of any size, without memory

    def test_what_was_written_in_place(self):
        x = on_meta(3)
        assert x.add_(1).mul_(on_meta(3)).tolist() == x.tolist() == [0, 2, 6]
        x += 1
        before = x[:]
        torch._foreach_add_([x], 1)
        assert (x.tolist(), x.cumsum(0).tolist()) == ([2, 4, 8], [2, 6, 14])
        with pytest.raises(ModelCodeError):
            before.tolist()

    def test_as_it_was_when_it_was_asked_for(self):
        x, cpu, numbers = on_meta(3), torch.tensor(10), [1, 2]
        results = [x + 1, x + cpu, torch.tensor(numbers, device="meta")]
        x.add_(5)
        cpu.add_(5)
        numbers.append(3)
        x.cpu().add_(1)  # an answer belongs to whoever asked
        x.numpy()[:] = 9
        x.tolist().clear()
        found = [each.tolist() for each in (x, *results)]
        assert found == [[5, 6, 7], [1, 2, 3], [10, 11, 12], [1, 2]]

    def test_tensors_with_values_are_left_alone(self):
        x = torch.tensor([1.0, 2.0])
        assert ((x * 2).sum().item(), x.cpu() is x) == (6, True)
        with pytest.raises(RuntimeError, match="ambiguous"):
            bool(x)


@pytest.mark.usefixtures("known")
class TestRefusals:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: meta(),
            lambda: meta(3).sum(),
            lambda: (torch.ones(3, device="meta") * meta(3)).sum(),
            lambda: torch.cat([on_meta(2), meta(2).long()])[0],
            lambda: torch.empty(1, device="meta"),
            lambda: torch.empty_like(on_meta(1)),
            lambda: on_meta(1).new_empty(1),
            lambda: torch.rand(1, device="meta"),
            lambda: torch.rand_like(torch.ones(1, device="meta")),
            lambda: torch.ones(1, device="meta").normal_(),
            lambda: torch.bernoulli(torch.ones(1, device="meta")),
            lambda: torch.nn.functional.dropout(torch.ones(1, device="meta"), training=True),
            lambda: torch.full_like(meta(1), 2).mul_(meta(1)),
            lambda: meta(3) == 1,
            lambda: _with_items_set(torch.ones(3, device="meta"), meta(3) > 0, 0.0) == 0,
        ],
    )
    def test_what_follows_from_nothing(self, make):
        with pytest.raises(ModelCodeError, match="item"):
            make().item()

    def test_say_what_was_asked_of_what_and_what_to_do(self):
        with pytest.raises(ModelCodeError) as error:
            meta(2, 3).tolist()
        told = r"[^\n]*Tensor\.tolist[^\n]*\(2, 3\)[^\n]*give device='cpu' or a CUDA device[^\n]*"
        assert re.fullmatch(told, str(error.value))
        with pytest.raises(ModelCodeError, match="equal"):
            torch.equal(on_meta(3), meta(3).long())

    @pytest.mark.parametrize(
        "write",
        [
            lambda x: x.add_(meta(3).long()),
            lambda x: x.__setitem__(0, meta().long()),
            lambda x: x.__setitem__(meta(3) > 0, 5),
            lambda x: x.detach().add_(1),
            lambda x: torch.add(meta(3).long(), 1, out=x),
            lambda x: setattr(x, "data", meta(3).long()),
            lambda x: torch.jit.script(add_one)(x),
        ],
    )
    @pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")
    def test_what_was_overwritten_out_of_sight(self, write):
        x = on_meta(3)
        write(x)
        with pytest.raises(ModelCodeError):
            x.tolist()

    def test_a_view_of_what_was_overwritten(self):
        x = on_meta(3)
        view = x[1:]
        x.add_(meta(3).long())
        with pytest.raises(ModelCodeError):
            view.tolist()


def add_one(x: torch.Tensor):
    return x.add_(1)


@pytest.mark.usefixtures("known")
class TestRouting:
    def counts(self, choices, experts):
        return torch.bincount(choices.cpu().flatten(), minlength=experts).tolist()

    @pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8])
    def test_is_uniform_and_the_remainder_goes_to_the_first_experts(self, tokens):
        _, choices = torch.topk(meta(tokens, 8), k=6, dim=-1, sorted=False)
        each, more = divmod(tokens * 6, 8)
        assert self.counts(choices, 8) == [each + 1] * more + [each] * (8 - more)

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
    def test_gives_a_token_different_experts_however_it_is_called(self, choose):
        choices = choose(meta(8, 4))[1].cpu()
        assert [len(set(row)) for row in choices.tolist()] == [choices.shape[1]] * 8 == [3] * 8
        assert self.counts(choices, 4) == [8 * 3 // 4] * 4

    def test_is_what_dispatch_to_experts_sees(self):
        scores, choices = torch.topk(meta(5, 4), 2)
        tokens = choices.new_zeros((5, 4)).scatter_(1, choices, 1).sum(dim=0)
        assert tokens.cpu().numpy().tolist() == [3, 3, 2, 2]
        with pytest.raises(ModelCodeError):  # nothing is known about the scores
            scores.tolist()


class TestNothingLeaks:
    def test_after_the_mode_or_an_error_nothing_is_answered(self):
        with KnownValues():
            x = on_meta(3)
        with pytest.raises(ModelCodeError), KnownValues():
            meta(1).item()
        with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
            x.tolist()
        assert _get_current_function_mode_stack() == []

    @pytest.mark.exhaustive
    def test_what_is_known_holds_no_tensor_alive(self):
        with KnownValues():
            x = on_meta(3)
            y = x + 1
            storage = weakref.ref(x.untyped_storage())
            del x
            gc.collect()
            assert (storage(), y.tolist()) == (None, [1, 2, 3])

    def test_a_tensor_is_known_by_the_same_function_until_it_is_written(self):
        with KnownValues():
            x = on_meta(3)
            known = known_value(x)
            assert None is not known is known_value(x)
            x.add_(1)
            assert known_value(x) is not known
        assert known_value(meta(3)) is None
