"""An outside witness of a pass: what is alive on a CPU that behaves as CUDA does.

`Witness` follows the memory of real tensors; nothing of the trace or of the tape is in it. What the
CPU does otherwise than CUDA, `AsCuda` replaces before the witness sees it. It is all that the
comparison allows for:

* kernels that hold other tensors on a CPU (attention's log-sum-exp; statistics of a layer norm,
  which are fp32 on CUDA; a copy of a norm's input, which no dispatch shows) run unseen, and their
  results are handed to the witness as CUDA returns them;
* a bias that a linear layer adds in place, which it does not while anything watches;
* the host's tensors, which on a CPU look like the device's: those made without a device, what is
  computed from these alone, and copies by `.cpu()`;
* what CUDA needs a tensor for and a CPU does not: a move from the host, and a number that is
  written.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from alive_tensors import Alive
from drawn_passes import Case
from taped_passes import Level
from torch.overrides import TorchFunctionMode
from traced_passes import loaded

from dsocr_analyze.model.forward import running
from dsocr_analyze.model.generation import Generation

NAMES = {
    "mm": "product",
    "addmm": "product",
    "bmm": "product",
    "linear": "product",
    "matmul": "product",
    "einsum": "product",
    "convolution": "conv2d",
    "_softmax": "softmax",
    "empty_like": "empty",
    "new_empty": "empty",
}
"""Names that ATen and the tape give to one operator."""

_CONSTRUCTORS = (torch.arange, torch.zeros, torch.ones, torch.tensor)


def common(levels: list[Level]) -> list[Level]:
    """Levels by their common names."""
    return [level._replace(operator=NAMES.get(level.operator, level.operator)) for level in levels]


class Witness(Alive):
    """Bytes of the device's tensors, and the module that runs.

    Attributes:
        levels: One for each piece of memory.
        is_blind: Whether nothing is noticed.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.levels: list[Level] = []
        self.is_blind = False
        self._paths = [""]
        self._host: dict[int, Any] = {}
        for path, module in model.named_modules():
            # Not a hook, since the vendor's CLIP calls the `forward` of its halves itself.
            module.forward = functools.partial(self._running, path, module.forward)

    def _running(self, path: str, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self._paths.append(path)
        try:
            return forward(*args, **options)
        finally:
            self._paths.pop()

    def begin(self) -> list[Level]:
        """Starts over; what is alive now does not count."""
        for each in self._known.values():
            each.detach()
        self._known.clear()
        self.nbytes, self.levels = 0, []
        return self.levels

    def blind(self) -> contextlib.AbstractContextManager[object]:
        return mock.patch.object(self, "is_blind", new=True)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = self._tensors((args, kwargs))
        if not self.is_blind and not (given and all(map(self.is_on_host, given))):
            return super().__torch_dispatch__(func, types, args, kwargs)
        output = func(*args, **(kwargs or {}))
        if not self.is_blind:
            self.put_on_host(*self._tensors(output))
        return output

    def note(self, name: str, *made: torch.Tensor) -> None:
        before = len(self.curve)
        super().note(
            name, *(x for x in made if x.untyped_storage().nbytes() and not self.is_on_host(x))
        )
        self.levels += (Level(self._paths[-1], *each) for each in self.curve[before:])

    def put_on_host(self, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            key = self._key(tensor)
            if key not in self._known and key not in self._host:
                storage = tensor.untyped_storage()
                self._host[key] = weakref.finalize(storage, self._host.pop, key)

    def is_on_host(self, tensor: torch.Tensor) -> bool:
        return self._key(tensor) in self._host


class AsCuda(TorchFunctionMode):
    """Runs on a CPU what differs on CUDA, and hands its results to the witness.

    Args:
        witness: The witness, which is not entered yet.
    """

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self._witness = witness
        self._replaced: dict[Any, Callable[..., Any]] = {
            F.scaled_dot_product_attention: self._attention,
            F.layer_norm: self._layer_norm,
            F.linear: self._linear,
            torch.Tensor.cpu: self._cpu,
            torch.Tensor.to: self._to,
            torch.Tensor.__setitem__: self._set_item,
            **{top_k: self._top_k(top_k) for top_k in (torch.topk, torch.Tensor.topk)},
            **{make: self._made_on_host(make) for make in _CONSTRUCTORS},
        }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        run = func if self._witness.is_blind else self._replaced.get(func, func)
        return run(*args, **(kwargs or {}))

    def _attention(self, q, k, v, attn_mask=None, **options):
        with self._witness.blind():
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, **options)
            # Flash and memory-efficient kernels write tokens before heads.
            output = attended.transpose(1, 2).contiguous().clone().transpose(1, 2)
        self._witness.note("scaled_dot_product_attention", output)
        return output

    def _layer_norm(self, x, shape, *rest, **options):
        with self._witness.blind():
            copy = None if x.is_contiguous() else x.contiguous()
            output = F.layer_norm(x if copy is None else copy, shape, *rest, **options)
            rows = x.numel() // x.shape[-1]
            statistics = [torch.zeros(rows, dtype=torch.float32) for _ in range(2)]
        if copy is not None:
            self._witness.note("clone", copy)
        self._witness.note("native_layer_norm", output, *statistics)
        return output

    def _linear(self, x, weight, bias=None):
        if bias is None or x.is_contiguous():
            return F.linear(x, weight, bias)
        output = F.linear(x, weight)
        with self._witness.blind():
            output += bias
        return output

    def _cpu(self, x):
        if self._witness.is_on_host(x):
            return x
        with self._witness.blind():
            copy = x.clone()
        self._witness.put_on_host(copy)
        return copy

    def _to(self, x, *args, **options):
        is_move = "device" in options or any(isinstance(each, torch.device) for each in args)
        if not (is_move and self._witness.is_on_host(x)):
            return torch.Tensor.to(x, *args, **options)
        with self._witness.blind():
            copy = x.to(*args, **options).clone()
        self._witness.note("transfer", copy)
        return copy

    def _set_item(self, x, places, value):
        if not isinstance(value, torch.Tensor) and not self._witness.is_on_host(x):
            value = torch.scalar_tensor(value, dtype=x.dtype, device=x.device)
        return torch.Tensor.__setitem__(x, places, value)

    def _top_k(self, top_k: Callable[..., Any]) -> Callable[..., Any]:
        """With choices that every count assumes: each candidate in turn."""

        def uniform(scores, *args, **options):
            found = top_k(scores, *args, **options)
            with self._witness.blind():
                places = torch.arange(found.indices.numel()) % scores.shape[-1]
                found.indices.copy_(places.view_as(found.indices))
            return found

        return uniform

    def _made_on_host(self, make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*args, device=None, **options):
            if device is not None:
                return make(*args, device=device, **options)
            with self._witness.blind():
                tensor = make(*args, **options)
            self._witness.put_on_host(tensor)
            return tensor

        return made

    def flash_attention(self, q, k, v, *_, **__):
        """In the place of flash-attn's function, `[B, T, H, D]`."""
        with self._witness.blind():
            output = torch.zeros_like(q, memory_format=torch.contiguous_format)
        self._witness.note("flash_attention", output)
        return output


def witnessed(case: Case) -> dict[int | None, list[Level]]:
    """Levels of real passes on a CPU: the prefill pass as None, each decode step by number."""
    model = loaded(case, "cpu")
    witness = Witness(model.module)
    as_cuda = AsCuda(witness)
    with running(model.device, as_cuda.flash_attention, has_weights=True), as_cuda, witness:
        generation = Generation(model, case.workload, case.arch, witness.begin)
        found: dict[int | None, list[Level]] = {None: generation.prefill()}
        found |= {number: generation.step(number) for number in case.steps}
    return found
