"""Operators of the tape, each against its record by hand, and on sizes that are symbols."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from taped import alone, assert_same_for_any, summed

from dsocr_analyze.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT64
from dsocr_analyze.kernels import Attention, Elements, Gemm, Rows, Work
from dsocr_analyze.tape import Tape
from dsocr_analyze.tape.modules import fused_attention


@pytest.fixture
def t():
    return Tape(BFLOAT16)


def of(t, n, dtype=BFLOAT16):
    return t.input(n, dtype)


def only(t):
    (kernel,) = t.kernels
    return kernel


class TestByHand:
    def test_a_product(self, t):
        output = t.product("matmul", Gemm(2, 3, 5, 7), of(t, 42), of(t, 35))
        kernel = only(t)
        assert (kernel.kind, kernel.operator) == ("gemm", "matmul")
        assert kernel.dimensions == Gemm(2, 3, 5, 7)
        assert kernel.work == Work(2 * 3 * 5 * 7, 0, 30, 2 * (42 + 35), 2 * 30)
        assert (output.n, output.dtype) == (30, BFLOAT16)

    def test_a_product_with_a_bias(self, t):
        t.product("linear", Gemm(1, 5, 4, 3), of(t, 15), of(t, 12), t.weight(4, "bias"))
        assert only(t).work == Work(60, 20, 20, 2 * (15 + 12 + 4), 2 * 20)

    @pytest.mark.parametrize("masked", [False, True])
    def test_fused_attention(self, t, masked):
        shape = Attention(2, 4, 2, 3, 7, 5, 6, masked=masked)
        scores = 2 * 4 * 3 * 7
        inputs = [2 * 4 * 3 * 5, 2 * 2 * 7 * 5, 2 * 2 * 7 * 6, *([scores] if masked else [])]
        output = fused_attention(
            t, "scaled_dot_product_attention", shape, *(of(t, n) for n in inputs)
        )
        read = 2 * 4 * 3 * 5 + 2 * 2 * 7 * (5 + 6) + (scores if masked else 0)
        assert only(t).dimensions is shape
        assert only(t).work == Work(scores * 11, scores * (6 + masked), 144, 2 * read, 2 * 144)
        assert output.n == 144

    def test_elementwise(self, t):
        t.map("add", of(t, 10), of(t, 10))
        assert only(t).work == Work(0, 10, 0, 40, 20)
        t.map("ge", of(t, 10, INT64), output=BOOL)
        kernel = t.kernels[-1]
        assert (kernel.kind, kernel.dtype, kernel.output_dtype) == ("elementwise", "int64", "bool")
        assert kernel.dimensions == Elements(10)
        assert kernel.work == Work(0, 10, 0, 80, 10)
        t.map("mul", of(t, 10), of(t, 2), flops=2, kind="activation")
        assert t.kernels[-1].kind == "activation"
        assert t.kernels[-1].work == Work(0, 20, 0, 24, 20)

    def test_elementwise_with_an_expanded_input(self, t):
        output = t.map("lt", of(t, 3, INT64), of(t, 3, INT64), n=9, output=BOOL)
        assert only(t).work == Work(0, 9, 0, 48, 9)
        assert (output.n, output.dtype, t.alive) == (9, BOOL, 9)

    def test_rows(self, t):
        t.reduce("all", of(t, 12, BOOL), 3, 4)
        assert (only(t).kind, only(t).dimensions) == ("reduction", Rows(3, 4))
        assert only(t).work == Work(0, 12, 0, 12, 3)
        t.softmax(of(t, 12, FLOAT32), 3, 4)
        assert (t.kernels[-1].kind, t.kernels[-1].dimensions) == ("softmax", Rows(3, 4))
        assert t.kernels[-1].work == Work(0, 60, 0, 48, 48)
        outputs = (3 * 2, FLOAT32), (3 * 2, INT64)
        t.rows("routing", "topk", of(t, 12, FLOAT32), Rows(3, 4), *outputs, flops=12)
        assert (t.kernels[-1].kind, t.kernels[-1].dimensions) == ("routing", Rows(3, 4))
        assert t.kernels[-1].work == Work(0, 12, 0, 48, 3 * 2 * 12)

    def test_softmax_in_bf16_casts_first(self, t):
        t.softmax(of(t, 12), 3, 4)
        copied, kernel = t.kernels
        assert (copied.operator, copied.output_dtype) == ("_to_copy", "float32")
        assert copied.work == Work(bytes_read=24, bytes_written=48)
        assert (kernel.dtype, kernel.output_dtype) == ("float32", "float32")
        assert kernel.work == Work(0, 60, 0, 48, 48)

    def test_softmax_in_fp16_is_the_one_kernel_that_reads_it_as_it_is(self, t):
        t.softmax(of(t, 12, FLOAT16), 3, 4)
        assert (only(t).dtype, only(t).output_dtype) == ("float16", "float32")
        assert only(t).work == Work(0, 60, 0, 24, 48)

    def test_movement(self, t):
        t.move("clone", of(t, 10))
        assert only(t).work == Work(bytes_read=20, bytes_written=20)
        t.move("arange", n=10, dtype=INT64)
        assert t.kernels[-1].work == Work(bytes_written=80)
        t.cast(of(t, 10), FLOAT32)
        kernel = t.kernels[-1]
        assert (kernel.kind, kernel.operator) == ("movement", "_to_copy")
        assert (kernel.dtype, kernel.output_dtype) == ("bfloat16", "float32")
        assert kernel.work == Work(bytes_read=20, bytes_written=40)
        t.cat(of(t, 3), of(t, 4))
        assert t.kernels[-1].work == Work(bytes_read=14, bytes_written=14)
        t.gather("index", of(t, 3, INT64), 12, BFLOAT16)
        assert t.kernels[-1].work == Work(bytes_read=24 + 24, bytes_written=24)

    def test_a_cast_to_the_same_type_is_no_kernel(self, t):
        x = of(t, 10)
        assert t.cast(x, BFLOAT16) is x
        assert t.kernels == []

    def test_no_rounding_beyond_a_float(self, t):
        """Odd counts above 2^53 keep their last digit."""
        rows = 2**53 + 1
        t.product("linear", Gemm(1, rows, 1, 3), of(t, 3 * rows), of(t, 3))
        assert only(t).work.macs == 3 * rows


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
    assert_same_for_any(every_operator, a=a, b=b)


@given(a=st.integers(2, 10**6), b=st.integers(2, 10**6))
def test_all_counts_are_integers_none_of_them_negative(a, b):
    tape = alone(lambda t: every_operator(t, a, b))
    for kernel in tape.kernels:
        assert {type(count) for count in (*kernel.work, *kernel.dimensions)} <= {int, bool}
        assert min(kernel.work) >= 0
    assert summed(tape.kernels).macs > 0
