"""Operators of the tape, each against its record by hand, and on sizes that are symbols."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from taped import assert_same_for_any

from dsocr_analyze.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT64
from dsocr_analyze.kernels import Attention, Elements, Gemm, Rows, Work
from dsocr_analyze.tape import Tape
from dsocr_analyze.tape.modules import fused_attention


@pytest.fixture
def t():
    return Tape(BFLOAT16)


def of(t, n, dtype=BFLOAT16):
    return t.input(n, dtype)


def record(kind, operator, dimensions, work, dtype=BFLOAT16, output=None):
    return kind, operator, dimensions, dtype.name, (output or dtype).name, Work(*work)


def moved(operator, n, read, written, dtype=BFLOAT16, output=None):
    return record("movement", operator, Elements(n), (0, 0, 0, read, written), dtype, output)


def attended(t, *, masked=False):
    """2 sequences, 4 heads over 2, 3 queries, 7 keys, features of 5 and 6."""
    shape = Attention(2, 4, 2, 3, 7, 5, 6, masked=masked)
    inputs = [2 * 4 * 3 * 5, 2 * 2 * 7 * 5, 2 * 2 * 7 * 6, *([168] if masked else [])]
    return fused_attention(t, "flash_attention", shape, *(of(t, n) for n in inputs))


# Case, call, records by hand, elements and type of its output.
CASES = {
    "product": (
        lambda t: t.product("matmul", Gemm(2, 3, 5, 7), of(t, 42), of(t, 35)),
        [record("gemm", "matmul", Gemm(2, 3, 5, 7), (210, 0, 30, 2 * (42 + 35), 2 * 30))],
        (30, BFLOAT16),
    ),
    "product with a bias": (
        lambda t: t.product("linear", Gemm(1, 5, 4, 3), of(t, 15), of(t, 12), t.weight(4, "bias")),
        [record("gemm", "linear", Gemm(1, 5, 4, 3), (60, 20, 20, 2 * (15 + 12 + 4), 2 * 20))],
        (20, BFLOAT16),
    ),
    "product beyond a float": (  # odd counts above 2^53 keep their last digit
        lambda t: t.product("mm", Gemm(1, 2**53 + 1, 1, 3), of(t, 0), of(t, 3)),
        [
            record(
                "gemm", "mm", Gemm(1, 2**53 + 1, 1, 3),
                (3 * 2**53 + 3, 0, 2**53 + 1, 6, 2**54 + 2),
            ),
        ],
        (2**53 + 1, BFLOAT16),
    ),
    "fused attention": (  # 168 scores
        attended,
        [
            record(
                "attention", "flash_attention", Attention(2, 4, 2, 3, 7, 5, 6),
                (168 * 11, 168 * 6, 144, 2 * (120 + 28 * 11), 2 * 144),
            ),
        ],
        (144, BFLOAT16),
    ),
    "fused attention with a mask": (
        lambda t: attended(t, masked=True),
        [
            record(
                "attention", "flash_attention", Attention(2, 4, 2, 3, 7, 5, 6, masked=True),
                (168 * 11, 168 * 7, 144, 2 * (120 + 28 * 11 + 168), 2 * 144),
            ),
        ],
        (144, BFLOAT16),
    ),
    "elementwise": (
        lambda t: t.map("add", of(t, 10), of(t, 10)),
        [record("elementwise", "add", Elements(10), (0, 10, 0, 40, 20))],
        (10, BFLOAT16),
    ),
    "elementwise of another type": (
        lambda t: t.map("ge", of(t, 10, INT64), output=BOOL),
        [record("elementwise", "ge", Elements(10), (0, 10, 0, 80, 10), INT64, BOOL)],
        (10, BOOL),
    ),
    "elementwise of another kind": (
        lambda t: t.map("mul", of(t, 10), of(t, 2), flops=2, kind="activation"),
        [record("activation", "mul", Elements(10), (0, 20, 0, 24, 20))],
        (10, BFLOAT16),
    ),
    "elementwise with expanded inputs": (
        lambda t: t.map("lt", of(t, 3, INT64), of(t, 3, INT64), n=9, output=BOOL),
        [record("elementwise", "lt", Elements(9), (0, 9, 0, 48, 9), INT64, BOOL)],
        (9, BOOL),
    ),
    "reduction": (
        lambda t: t.reduce("all", of(t, 12, BOOL), 3, 4),
        [record("reduction", "all", Rows(3, 4), (0, 12, 0, 12, 3), BOOL)],
        (3, BOOL),
    ),
    "rows": (
        lambda t: t.rows("routing", "topk", of(t, 12, FLOAT32), Rows(3, 4), (6, FLOAT32),
                         (6, INT64), flops=12)[0],
        [record("routing", "topk", Rows(3, 4), (0, 12, 0, 48, 6 * 12), FLOAT32)],
        (6, FLOAT32),
    ),
    "softmax": (
        lambda t: t.softmax(of(t, 12, FLOAT32), 3, 4),
        [record("softmax", "softmax", Rows(3, 4), (0, 60, 0, 48, 48), FLOAT32)],
        (12, FLOAT32),
    ),
    "softmax in bf16 casts first": (
        lambda t: t.softmax(of(t, 12), 3, 4),
        [
            moved("_to_copy", 12, 24, 48, BFLOAT16, FLOAT32),
            record("softmax", "softmax", Rows(3, 4), (0, 60, 0, 48, 48), FLOAT32),
        ],
        (12, FLOAT32),
    ),
    "softmax in fp16 is the one kernel that reads it as it is": (
        lambda t: t.softmax(of(t, 12, FLOAT16), 3, 4),
        [record("softmax", "softmax", Rows(3, 4), (0, 60, 0, 24, 48), FLOAT16, FLOAT32)],
        (12, FLOAT32),
    ),
    "copy": (lambda t: t.move("clone", of(t, 10)), [moved("clone", 10, 20, 20)], (10, BFLOAT16)),
    "range": (
        lambda t: t.move("arange", n=10, dtype=INT64),
        [moved("arange", 10, 0, 80, INT64)],
        (10, INT64),
    ),
    "cast": (
        lambda t: t.cast(of(t, 10), FLOAT32),
        [moved("_to_copy", 10, 20, 40, BFLOAT16, FLOAT32)],
        (10, FLOAT32),
    ),
    "cast to the same type": (lambda t: t.cast(of(t, 10), BFLOAT16), [], (10, BFLOAT16)),
    "concatenation": (
        lambda t: t.cat(of(t, 3), of(t, 4)), [moved("cat", 7, 14, 14)], (7, BFLOAT16),
    ),
    "gathered rows": (
        lambda t: t.gather("index", of(t, 3, INT64), 12, BFLOAT16),
        [moved("index", 12, 24 + 24, 24)],
        (12, BFLOAT16),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_the_record_by_hand_and_its_output(t, name):
    call, records, output = CASES[name]
    found = call(t)
    assert [kernel[:6] for kernel in t.kernels] == records
    assert (found.n, found.dtype) == output
    assert t.alive == (found.nbytes if records else 0)


def every_operator(t, a, b):
    """Each of the operators, on sizes from two."""
    x = t.input(a * b, t.dtype)
    flags = t.map("eq", t.input(a, INT64), t.input(b, INT64), n=a * b, output=BOOL)
    t.map("mul", x, flops=4, into=t.empty(a * b, t.dtype))
    t.product("matmul", Gemm(a, b, a, 3), t.view(x, 3 * b), x, t.weight(7, "bias"))
    fused_attention(
        t, "flash_attention", Attention(a, 4, 2, b, a + b, 5, 6), x, x, t.empty(b, t.dtype)
    )
    fused_attention(t, "sdpa", Attention(a, 2, 2, b, b, 5, 5, masked=True), x, flags)
    t.softmax(x, a, b)
    t.rows("routing", "topk", t.reduce("sum", x, a, b), Rows(1, a), (3, FLOAT32), flops=2 * a)
    t.move("scatter", x, read=a, written=8 * b, into=t.host(b, INT64))
    t.cat(x, t.move("clone", x, n=a * a * b), t.cast(x, FLOAT32))
    t.gather("embedding", t.move("arange", n=a, dtype=INT64), a * 5, t.dtype)
    t.skippable(a * a - a)


@given(a=st.integers(2, 10**6), b=st.integers(2, 10**6))
def test_on_symbols_an_operator_notes_what_it_notes_on_their_values(a, b):
    for kernel in assert_same_for_any(every_operator, a=a, b=b).kernels:
        assert {type(count) for count in (*kernel.work, *kernel.dimensions)} <= {int, bool}
        assert min(kernel.work) >= 0
