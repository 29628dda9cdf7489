"""torch's functional surface, drawn at random from torch's own samples, against outside witnesses.

Every drawn call runs under the recorder, under `FlopCounterMode`, and under a witness that knows
nothing of the project's rules: it sees each operator, and counts the bytes that the tensors in its
arguments and results occupy. On `meta`; on the CPU where an operator has no `meta` kernel.
"""

import contextlib
import itertools
import random
import sys
import types
import unittest
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode
from tracing import Calls, trace_of

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


def held(tensors: list[torch.Tensor]) -> int:
    """Bytes of the memory cells that tensors' positions lie in, each tensor's cells once."""
    nbytes = 0
    for tensor in tensors:
        cells = np.zeros((), dtype=np.int64)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            cells = cells[..., None] + np.arange(size) * stride
        nbytes += np.unique(cells).size * tensor.element_size()
    return nbytes


def tensors_in(*values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def name_of(func, args):
    name = func.overloadpacket.__name__
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    if name == "convolution":
        return f"conv{'_transpose' if args[6] else ''}{args[0].dim() - 2}d"
    return name if func.namespace in ("aten", "prims") else f"{func.namespace}::{name}"


def moves_nothing(func, name):
    """Whether it is a view, makes memory without values, or is known to be free."""
    aliases = [value.alias_info for value in func._schema.returns]
    is_view = aliases and all(alias and not alias.is_write for alias in aliases)
    is_new = name.startswith(("empty", "new_empty"))
    return is_view or is_new or torch.Tag.inplace_view in func.tags or name in NO_WORK


FILLED_WITH_RANDOM_NUMBERS = (
    "normal uniform bernoulli exponential cauchy log_normal geometric random".split()
)


def read_by(func, name, args, kwargs):
    """What is read: not what is only written, nor what only lends its shape."""
    if name.endswith("_like") or name.startswith("new_") or name == "zero":
        return []
    outs = {argument.name for argument in func._schema.arguments if argument.is_out}
    read = tensors_in(args, [kwargs[key] for key in kwargs if key not in outs])
    is_filled = name in FILLED_WITH_RANDOM_NUMBERS and func._schema.name.endswith("_")
    return read[1:] if is_filled or name in ("copy", "fill") else read


class Operators(TorchDispatchMode):
    """Every dispatched operator, and name, bytes read and bytes written if it moves something."""

    _should_skip_dynamo = classmethod(lambda _: False)

    def __init__(self):
        super().__init__()
        self.seen, self.moved, self.called = Counter(), Counter(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tensors_in(args, kwargs)
        output = func(*args, **kwargs)
        written, name = tensors_in(output), name_of(func, args)
        if given or written:  # otherwise a question about types
            self.seen[name] += 1
        if written and not moves_nothing(func, name):
            self.moved[name, held(read_by(func, name, args, kwargs)), held(written)] += 1
        return output


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


class Functions(TorchFunctionMode):
    """Hands what is counted as called to the witness of operators, which sees nothing of it."""

    def __init__(self, operators):
        super().__init__()
        self.operators = operators

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = CALLED_WHOLE.get(getattr(func, "__name__", ""))
        if name is None:
            return func(*args, **kwargs)
        with _disable_current_modes():
            output = func(*args, **kwargs)
        read = tensors_in(args, [kwargs[key] for key in kwargs if key != "out"])
        self.operators.seen[name] += 1
        self.operators.moved[name, held(read), held(tensors_in(output))] += 1
        second = [*args, *kwargs.values()][0 if func.__name__ == "__rmatmul__" else 1]
        is_vector = name == "matmul" and second.dim() == 1
        self.operators.called.append("matmul with a vector" if is_vector else name)
        return output


# --- draws -----------------------------------------------------------------------------------


def on(device, values):
    """The values on a device, tensors as copies: a call may write to them."""
    return _pytree.tree_map_only(
        torch.Tensor,
        lambda leaf: leaf if leaf.is_nested else leaf.detach().to(device, copy=True),
        values,
    )


def drawn(op, dtype, chance):
    """One of the first samples of an operator, in one of the forms that it has.

    Returns:
        The form, the function, its arguments, and those by keyword.
    """
    sample = chance.choice(list(itertools.islice(op.sample_inputs("cpu", dtype), 10)))
    args, kwargs = (sample.input, *sample.args), sample.kwargs
    in_place = op.inplace_variant is not None and isinstance(sample.input, torch.Tensor)
    has_out = op.supports_out and "out" not in kwargs
    outs = {"out of equal size": False, "out that grows": True}
    form = chance.choice(["plain", *["in place"] * 2 * in_place, *[*outs] * has_out])
    function, given = (op.inplace_variant if form == "in place" else op.op), kwargs
    try:
        if form in outs:
            plain, is_empty = op.op(*on("cpu", args), **on("cpu", kwargs)), outs[form]
            out = _pytree.tree_map(lambda x: x.new_empty((0,) if is_empty else x.shape), plain)
            given = {**kwargs, "out": out}
        # `meta` lets pass what other devices refuse, such as a result too large for its place.
        function(*on("cpu", args), **on("cpu", given))
    except REFUSALS:
        return "plain", op.op, args, kwargs
    return form, function, args, given


def witnessed(function, device, args, kwargs):
    """What the witnesses say; nothing where the call does not run on the device at all."""
    operators = Operators()
    with contextlib.suppress(*REFUSALS):
        first, again = (on(device, (args, kwargs)) for _ in range(2))
        with FlopCounterMode(display=False) as counter:
            function(*first[0], **first[1])
        with operators, Functions(operators):
            kept = function(*again[0], **again[1])
            del kept
        return counter.get_total_flops(), operators
    return None


@pytest.fixture(scope="module")
def draws():
    """Calls, on `meta` or on the CPU, as the witnesses and the recorder see them."""
    chance, result = random.Random(SEED), []
    with (
        warnings.catch_warnings(action="ignore"),
        torch.random.fork_rng(),
        torch.no_grad(),
        pytest.MonkeyPatch.context() as patch,
    ):
        # torch's test classes derive from one of this package's, which nothing here needs.
        stand_in = types.SimpleNamespace(TestCase=unittest.TestCase)
        patch.setitem(sys.modules, "expecttest", sys.modules.get("expecttest", stand_in))
        from torch.testing._internal import common_methods_invocations, common_utils
        from torch.testing._internal.opinfo import core

        # A list of samples looks for its test, and each sample seeds anew: both read the stack.
        patch.setattr(common_utils, "extract_test_fn", lambda: None)
        patch.setattr(core, "extract_test_fn", lambda: None)
        patch.setattr(common_utils, "set_rng_seed", lambda *_: None)
        torch.manual_seed(SEED)
        operators = common_methods_invocations.op_db
        candidates = [
            (op, dtype) for op in operators for dtype in DTYPES if op.supports_dtype(dtype, "cpu")
        ]
        products = [candidate for candidate in candidates if candidate[0].name in PRODUCTS]
        chosen = chance.sample(candidates, DRAWS) + chance.choices(products, k=PRODUCT_DRAWS)
        for op, dtype in chosen:
            form, function, args, kwargs = drawn(op, dtype, chance)
            for device in ("meta", "cpu"):
                says = witnessed(function, device, args, kwargs)
                if says is not None:
                    flops, seen = says
                    trace = trace_of(Calls(function), *on(device, args), **on(device, kwargs))
                    kernels = Counter(kernel.operator for kernel in trace.kernels)
                    draw = types.SimpleNamespace(
                        operator=op.formatted_name, form=form, device=device, dtype=dtype,
                        flops=flops, operators=seen, trace=trace,
                        ledger=kernels + trace.free + trace.unknown,
                        # Operators that the witness does not see.
                        left_out={"grow", *(HIDDEN_COPIES if seen.called else ())},
                    )  # fmt: skip
                    result.append(draw)
                    break
    return result


# --- what holds for each ---------------------------------------------------------------------


def test_enough_is_drawn_and_few_operators_have_no_rule(draws):
    forms = Counter(draw.form for draw in draws)
    assert (len(draws) >= AT_LEAST, len(forms), min(forms.values()) >= 30) == (True, 4, True)
    assert len({draw.operator for draw in draws}) >= 350
    assert sum(draw.device == "meta" for draw in draws) >= 0.9 * len(draws)
    ran, unknown = (
        sum(sum(each.values()) for each in counts)
        for counts in zip(*((draw.ledger, draw.trace.unknown) for draw in draws), strict=True)
    )
    assert 0 < unknown <= 0.12 * ran


def operators_that_ran(draw):
    if draw.operator in OTHER_OPERATORS:
        return None
    return [
        {name: count for name, count in counts.items() if name not in draw.left_out}
        for counts in (draw.ledger, draw.operators.seen)
    ]


def matrix_flops(draw):
    called = WITHOUT_FLOPS.keys() & {*draw.operators.called}
    passed_over = {*WITHOUT_FLOPS, *(name.partition(" ")[0] for name in called)}
    flops = [
        kernel.work.matrix_flops
        for kernel in draw.trace.kernels
        if passed_over.isdisjoint((kernel.operator, f"{kernel.operator} {draw.form}"))
    ]
    return sum(flops), draw.flops


def bytes_moved(draw):
    """An operator whose rule says otherwise goes into OTHER_BYTES."""
    if draw.operator in OTHER_OPERATORS:
        return None
    left_out = {*OTHER_BYTES, *draw.trace.unknown, *draw.left_out}
    recorded = Counter(
        (kernel.operator, kernel.work.bytes_read, kernel.work.bytes_written)
        for kernel in draw.trace.kernels
    )
    return [
        {row: count for row, count in rows.items() if row[0] not in left_out}
        for rows in (recorded, draw.operators.moved)
    ]


@pytest.mark.parametrize(
    ("told", "least"),
    [(operators_that_ran, 400), (matrix_flops, 100), (bytes_moved, 350)],
)
def test_the_recorder_says_what_the_witness_sees(draws, told, least):
    pairs = [
        ((draw.operator, draw.form, draw.device, draw.dtype), *pair)
        for draw in draws
        if (pair := told(draw)) is not None
    ]
    assert [pair for pair in pairs if pair[1] != pair[2]] == []
    assert sum(bool(seen) for *_, seen in pairs) >= least
