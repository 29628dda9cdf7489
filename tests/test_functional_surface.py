"""torch's functional surface, drawn at random from torch's own samples, against outside witnesses.

Every drawn call runs under the recorder, under `FlopCounterMode`, and under a witness that knows
nothing of the project's rules: it sees each operator, and counts the bytes that the tensors in its
arguments and results occupy. On `meta`; on the CPU where an operator has no `meta` kernel.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import types
import unittest
import unittest.mock
import warnings
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from tracing import Calls, trace_of

from dsocr_analyze.trace.record import Trace

# They look at 850 draws, which are made once.
pytestmark = [pytest.mark.exhaustive, pytest.mark.xdist_group(name="functional surface")]

SEED = 20_240_517
DTYPES = (torch.float32, torch.float32, torch.complex64, torch.int64)
"""Types to draw from: real ones as often as all others together."""
DRAWS = 700
PRODUCTS = (
    "mm bmm addmm baddbmm addmv mv dot vdot matmul __rmatmul__ inner tensordot einsum"
    " linalg.multi_dot linalg.matrix_power chain_matmul linalg.vecdot nn.functional.linear"
    " nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d"
    " nn.functional.conv_transpose1d nn.functional.conv_transpose2d"
    " nn.functional.conv_transpose3d nn.functional.scaled_dot_product_attention"
    " nn.functional.multi_head_attention_forward corrcoef cov cdist"
).split()
PRODUCT_DRAWS = 150
"""Draws from what multiplies matrices, of which the surface has few."""
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError)
"""What torch raises where an operator has no kernel on a device, or not in a form."""
AT_LEAST = 800
"""So many of all draws run; others need a GPU, or are samples that torch itself refuses."""

# --- reasons ---------------------------------------------------------------------------------

WITHOUT_FLOPS = {
    "mv": "FlopCounterMode does not count products with a vector",
    "addmv": "the same",
    "dot": "the same",
    "vdot": "the same",
    "matmul with a vector": "the same, where the vector is the second",
    "linear out of equal size": "FlopCounterMode does not know `linear.out`",
    "linear out that grows": "the same",
    "addmm in place": "FlopCounterMode does not know `addmm_`",
    "baddbmm in place": "FlopCounterMode does not know `baddbmm_`",
}
"""Matrix operators that `FlopCounterMode` passes over; checked by hand in `test_operators`."""

OTHER_BYTES = {
    **dict.fromkeys(
        ("index", "index_select", "gather", "take", "embedding"),
        "reads the rows that it takes, not the whole table",
    ),
    **dict.fromkeys(
        ("scatter", "scatter_add", "scatter_reduce", "index_put", "index_add", "index_copy"),
        "in place, touches what the indices reach; of a source, as much as there are indices",
    ),
    "_index_put_impl": "the same",
    "index_fill": "the same",
    **dict.fromkeys(
        ("native_layer_norm", "native_group_norm", "native_batch_norm", "rms_norm"),
        "mean and variance stay in the kernel",
    ),
    **dict.fromkeys(
        (
            "scaled_dot_product_attention",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention",
        ),
        "what its backward pass needs is not written",
    ),
    **dict.fromkeys(
        ("diagonal_copy", "narrow_copy", "select_copy", "slice_copy", "as_strided_copy"),
        "reads what it takes, not the whole input",
    ),
    "unbind_copy": "the same",
    "split_with_sizes_copy": "the same",
}
"""Operators whose rule says something else than all inputs and all outputs, each with its reason.

Hand-worked counts of these stand in `test_operators`.
"""

NO_WORK = {
    "_unsafe_view": "a view whose schema does not say so",
    "unsafe_split": "the same",
    "_local_scalar_dense": "a question to the host",
    "_linalg_check_errors": "the same",
    "lift_fresh": "the same tensor",
    "resize": "new memory for the same tensor; what it held is `grow`",
    "resize_as": "the same",
    "set": "other memory for the same tensor",
}
"""Operators that are free though their schema does not tell: each with its reason."""

OTHER_OPERATORS = {
    "einsum": "one product, or as torch takes it apart: `test_operators`, on any equation",
    "nn_functional_multi_head_attention_forward": "no function mode is asked inside it",
    "softmax_with_dtype": "makes a hidden copy in the other type: `test_operators`",
    "log_softmax_with_dtype": "the same",
}
"""Calls in which the recorder books other operators than the witness sees."""

HIDDEN_COPIES = {"clone", "_to_copy"}
"""What an operator that is counted as called may be booked with; the witness sees none of it."""

# --- witnesses -------------------------------------------------------------------------------


def held(tensor: torch.Tensor) -> int:
    """Bytes of the memory cells that a tensor's positions lie in, each cell once."""
    cells = np.zeros((), dtype=np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        cells = cells[..., None] + np.arange(size) * stride
    return int(np.unique(cells).size) * tensor.element_size()


def tensors_in(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


class Operators(TorchDispatchMode):
    """Name, bytes read and bytes written of every dispatched operator that moves something."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __init__(self):
        super().__init__()
        self.seen: list[str] = []
        self.moved: Counter[tuple[str, int, int]] = Counter()
        self.whole = 0
        self.memory: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.meet(tensors_in((args, kwargs)), existing=True)
        output = func(*args, **kwargs)
        self.meet(tensors_in(output), existing=False)
        if self.whole:
            return output
        schema = func._schema
        name = name_of(func, args)
        written = tensors_in(output)
        if not tensors_in((args, kwargs)) and not written:
            return output  # a question about types
        self.seen.append(name)
        aliases = [value.alias_info for value in schema.returns]
        is_view = aliases and all(alias and not alias.is_write for alias in aliases)
        is_view = is_view or torch.Tag.inplace_view in func.tags
        if is_view or not written or name.startswith(("empty", "new_empty")) or name in NO_WORK:
            return output
        outs = {argument.name for argument in schema.arguments if argument.is_out}
        read = tensors_in((args, [kwargs[key] for key in kwargs if key not in outs]))
        self.add(name, overwritten(name, schema, read), written)
        return output

    def meet(self, tensors, existing):
        """Bytes of all storages met so far and alive, besides what they held when met."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            known = self.memory.get(storage._cdata)
            if known is None or known[0]() is not storage:
                before = storage.nbytes() if existing else 0
                self.memory[storage._cdata] = weakref.ref(storage), before
        alive = [(reference(), before) for reference, before in self.memory.values()]
        now = sum(storage.nbytes() - before for storage, before in alive if storage is not None)
        self.peak = max(self.peak, now)

    def add(self, name, read, written):
        self.moved[name, sum(map(held, read)), sum(map(held, written))] += 1


def overwritten(name, schema, read):
    """What is read: not what is only written, nor what only lends its shape."""
    if name.endswith("_like") or name.startswith("new_") or name == "zero":
        return []
    is_filled = name in FILLED_WITH_RANDOM_NUMBERS and schema.name.endswith("_")
    return read[1:] if is_filled or name in ("copy", "fill") else read


FILLED_WITH_RANDOM_NUMBERS = (
    "normal uniform bernoulli exponential cauchy log_normal geometric random".split()
)


def name_of(func, args):
    name = func.overloadpacket.__name__
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    if name == "convolution":
        return f"conv{'_transpose' if args[6] else ''}{args[0].dim() - 2}d"
    return name if func.namespace in ("aten", "prims") else f"{func.namespace}::{name}"


CALLED_WHOLE = {
    "linear": "linear",
    "matmul": "matmul",
    "__matmul__": "matmul",
    "__rmatmul__": "matmul",
    "softmax": "softmax",
    "log_softmax": "log_softmax",
    "rms_norm": "rms_norm",
    "scaled_dot_product_attention": "scaled_dot_product_attention",
}
"""Functions counted as they are called, whatever torch makes of them on a device."""


def operands(func, args, kwargs):
    """Left and right operand of a matrix product."""
    pair = [*args, *kwargs.values()][:2]
    return pair[::-1] if func.__name__ == "__rmatmul__" else pair


class Functions(TorchFunctionMode):
    """Hands what is counted as called to the witness of operators."""

    def __init__(self, operators):
        super().__init__()
        self.operators = operators
        self.called: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = CALLED_WHOLE.get(getattr(func, "__name__", ""))
        if name is None:
            return func(*args, **kwargs)
        self.operators.whole += 1
        try:
            output = func(*args, **kwargs)
        finally:
            self.operators.whole -= 1
        with torch._C.DisableTorchFunction():
            read = tensors_in((args, [kwargs[key] for key in kwargs if key != "out"]))
            self.operators.seen.append(name)
            self.operators.add(name, read, tensors_in(output))
            is_vector = name == "matmul" and operands(func, args, kwargs)[1].dim() == 1
            self.called.append("matmul with a vector" if is_vector else name)
        return output


# --- draws -----------------------------------------------------------------------------------


@dataclass
class Draw:
    """One call, on `meta` or on the CPU."""

    operator: str
    form: str
    dtype: torch.dtype
    device: str
    flops: int
    operators: Operators
    called: list[str]
    trace: Trace

    def __str__(self):
        return f"{self.operator} ({self.form}) of {self.dtype} on {self.device}"

    def counted(self) -> Counter[tuple[str, int, int]]:
        """The recorder's kernels, as the witness writes down operators."""
        return Counter(
            (kernel.operator, kernel.work.bytes_read, kernel.work.bytes_written)
            for kernel in self.trace.kernels
        )

    def ledger(self) -> Counter[str]:
        return (
            Counter(kernel.operator for kernel in self.trace.kernels)
            + self.trace.free
            + self.trace.unknown
        )

    def left_out(self) -> set[str]:
        """Operators that the witness does not see."""
        return HIDDEN_COPIES if self.called else set()


@contextlib.contextmanager
def samples_of_torch():
    """torch's table of its operators, each with samples; its own tests import it."""
    if "expecttest" not in sys.modules:
        # torch's test classes derive from one of this package's, which nothing here needs.
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal import common_methods_invocations, common_utils
    from torch.testing._internal.opinfo import core

    # A list of samples looks for its test, and each sample seeds anew: both read the whole stack.
    with (
        unittest.mock.patch.object(common_utils, "extract_test_fn", return_value=None),
        unittest.mock.patch.object(core, "extract_test_fn", return_value=None),
        unittest.mock.patch.object(common_utils, "set_rng_seed"),
    ):
        yield common_methods_invocations.op_db


def on(device, values):
    """The values on a device, tensors as copies: a call may write to them."""

    def moved(leaf):
        if not isinstance(leaf, torch.Tensor) or leaf.is_nested:
            return leaf
        return leaf.detach().clone() if device == "cpu" else leaf.detach().to(device)

    return _pytree.tree_map(moved, values)


def drawn(op, dtype, chance):
    """One of the first samples of an operator, in one of the forms that it has.

    Returns:
        The form, the function, its arguments, and those by keyword.
    """
    sample = chance.choice(list(itertools.islice(op.sample_inputs("cpu", dtype), 10)))
    args, kwargs = (sample.input, *sample.args), sample.kwargs
    forms = ["plain"]
    if op.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
        forms += ["in place", "in place"]
    if op.supports_out and "out" not in kwargs:
        forms += ["out of equal size", "out that grows"]
    form = chance.choice(forms)
    function, given = (op.inplace_variant if form == "in place" else op.op), kwargs
    try:
        if form.startswith("out"):
            plain = op.op(*on("cpu", args), **on("cpu", kwargs))
            outs = outputs_like(plain, empty=form == "out that grows")
            given = {**kwargs, "out": outs}
        # `meta` lets pass what other devices refuse, such as a result too large for its place.
        function(*on("cpu", args), **on("cpu", given))
    except REFUSALS:
        return "plain", op.op, args, kwargs
    return form, function, args, given


def outputs_like(plain, empty):
    """Tensors for `out=`, of the size of the results or of none."""
    if isinstance(plain, torch.Tensor):
        return plain.new_empty((0,) if empty else plain.shape)
    return tuple(outputs_like(part, empty) for part in plain)


def witnessed(function, device, args, kwargs):
    """What the witnesses say; None where the call does not run on the device at all."""
    operators = Operators()
    try:
        first, again = (on(device, (args, kwargs)) for _ in range(2))
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            function(*first[0], **first[1])
        with torch.no_grad(), operators, Functions(operators) as functions:
            kept = function(*again[0], **again[1])
            del kept
    except REFUSALS:
        return None
    return counter.get_total_flops(), operators, functions.called


@pytest.fixture(scope="module")
def draws():
    chance = random.Random(SEED)
    result = []
    with (
        warnings.catch_warnings(action="ignore"),
        torch.random.fork_rng(),
        samples_of_torch() as operators,
    ):
        torch.manual_seed(SEED)
        candidates = [
            (op, dtype) for op in operators for dtype in DTYPES if op.supports_dtype(dtype, "cpu")
        ]
        products = [candidate for candidate in candidates if candidate[0].name in PRODUCTS]
        chosen = chance.sample(candidates, DRAWS) + chance.choices(products, k=PRODUCT_DRAWS)
        for op, dtype in chosen:
            with torch.no_grad():
                form, function, args, kwargs = drawn(op, dtype, chance)
            for device in ("meta", "cpu"):
                says = witnessed(function, device, args, kwargs)
                if says is not None:
                    break
            else:
                continue
            trace = trace_of(Calls(function), *on(device, args), **on(device, kwargs))
            result.append(Draw(op.formatted_name, form, dtype, device, *says, trace))
    return result


# --- what holds for each ---------------------------------------------------------------------


def test_enough_is_drawn_and_few_operators_have_no_rule(draws):
    forms = Counter(draw.form for draw in draws)
    assert (len(draws) >= AT_LEAST, len(forms), min(forms.values()) >= 30) == (True, 4, True)
    assert len({draw.operator for draw in draws}) >= 350
    assert sum(draw.device == "meta" for draw in draws) >= 0.9 * len(draws)
    ran = sum(sum(draw.ledger().values()) for draw in draws)
    unknown = sum(sum(draw.trace.unknown.values()) for draw in draws)
    assert 0 < unknown <= 0.12 * ran


def operators_that_ran(draw):
    if draw.operator in OTHER_OPERATORS:
        return None
    recorded, seen = draw.ledger(), Counter(draw.operators.seen)
    for name in {"grow", *draw.left_out()}:
        recorded.pop(name, None)
        seen.pop(name, None)
    return recorded, seen


def matrix_flops(draw):
    flops = 0
    for kernel in draw.trace.kernels:
        with_vector = "matmul with a vector" in draw.called and kernel.operator == "matmul"
        passed_over = {kernel.operator, f"{kernel.operator} {draw.form}"} & WITHOUT_FLOPS.keys()
        flops += 0 if passed_over or with_vector else kernel.work.matrix_flops
    return flops, draw.flops


def bytes_moved(draw):
    """An operator whose rule says otherwise goes into OTHER_BYTES."""
    if draw.operator in OTHER_OPERATORS:
        return None
    left_out = {"grow", *OTHER_BYTES, *draw.trace.unknown, *draw.left_out()}
    return [
        Counter({row: count for row, count in rows.items() if row[0] not in left_out})
        for rows in (draw.counted(), draw.operators.moved)
    ]


def peak_bytes(draw):
    # What is inside an operator that is counted as called is not seen; a storage that held
    # something and grows has two memories at once.
    if draw.called or draw.operator in OTHER_OPERATORS or "grow" in draw.ledger():
        return None
    return draw.trace.peak.nbytes, draw.operators.peak


@pytest.mark.parametrize(
    ("told", "least"),
    [(operators_that_ran, 400), (matrix_flops, 100), (bytes_moved, 350), (peak_bytes, 400)],
)
def test_the_recorder_says_what_the_witness_sees(draws, told, least):
    pairs = [(str(draw), *pair) for draw in draws if (pair := told(draw)) is not None]
    assert [pair for pair in pairs if pair[1] != pair[2]] == []
    assert sum(bool(seen) for *_, seen in pairs) >= least
