"""Single operators, and the sums and sections that layer families are composed of."""

import pytest

from dsocr_analyze.costs.operators import (
    addition,
    attention,
    cast,
    copy,
    elementwise,
    filled,
    moved,
    product,
    reduction,
    softmax,
    top,
)
from dsocr_analyze.costs.sections import Expansion, Section, sections_work
from dsocr_analyze.costs.sums import (
    combined,
    joined,
    multiplied,
    repeated,
    under,
    work_of,
    work_of_modules,
)
from dsocr_analyze.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT64
from dsocr_analyze.kernels import CUDA, Attention, Elements, Gemm, KernelsOf, Rows, Work


class TestOperators:
    def test_a_product(self):
        (kernel,) = product("matmul", 2, 3, 5, 7, BFLOAT16, right=35)
        assert (kernel.kind, kernel.operator) == ("gemm", "matmul")
        assert kernel.dimensions == Gemm(2, 3, 5, 7)
        assert kernel.work == Work(2 * 3 * 5 * 7, 0, 30, 2 * (42 + 35), 2 * 30)

    @pytest.mark.parametrize("masked", [False, True])
    def test_fused_attention(self, masked):
        shape = Attention(2, 4, 2, 3, 7, 5, 6, masked=masked)
        (kernel,) = attention("scaled_dot_product_attention", shape, BFLOAT16)
        scores = 2 * 4 * 3 * 7
        read = 2 * 4 * 3 * 5 + 2 * 2 * 7 * (5 + 6) + (scores if masked else 0)
        assert kernel.dimensions is shape
        assert kernel.work == Work(scores * 11, scores * (6 + masked), 144, 2 * read, 2 * 144)

    def test_elementwise(self):
        assert addition(10, BFLOAT16) == elementwise("add", 10, BFLOAT16, inputs=2)
        (kernel,) = elementwise("ge", 10, INT64, output=BOOL)
        assert (kernel.dtype, kernel.output_dtype) == ("int64", "bool")
        assert kernel.dimensions == Elements(10)
        assert kernel.work == Work(0, 10, 0, 80, 10)
        (kernel,) = elementwise("mul", 10, BFLOAT16, read=24, flops=2, kind="activation")
        assert kernel.kind == "activation"
        assert kernel.work == Work(0, 20, 0, 24, 20)

    def test_rows(self):
        (kernel,) = reduction("all", 3, 4, BOOL)
        assert (kernel.kind, kernel.dimensions) == ("reduction", Rows(3, 4))
        assert kernel.work == Work(0, 12, 0, 12, 3)
        (kernel,) = softmax(3, 4, FLOAT32)
        assert (kernel.kind, kernel.dimensions) == ("softmax", Rows(3, 4))
        assert kernel.work == Work(0, 60, 0, 48, 48)
        (kernel,) = top(3, 4, 2)
        assert (kernel.kind, kernel.dimensions) == ("routing", Rows(3, 4))
        assert kernel.work == Work(0, 12, 0, 48, 3 * 2 * 12)

    @pytest.mark.parametrize("kernels_of", [CUDA, KernelsOf("cpu")], ids=lambda k: k.device)
    @pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=lambda d: d.name)
    def test_softmax_in_another_type_casts_first(self, dtype, kernels_of):
        kernels = softmax(3, 4, dtype, kernels_of)
        if kernels_of == CUDA and dtype == FLOAT16:  # the one kernel that reads it as it is
            (kernel,) = kernels
            assert (kernel.dtype, kernel.output_dtype) == ("float16", "float32")
            assert kernel.work == Work(0, 60, 0, 24, 48)
        else:
            copied, kernel = kernels
            assert (copied.operator, copied.output_dtype) == ("_to_copy", "float32")
            assert copied.work == Work(bytes_read=24, bytes_written=48)
            assert (kernel.dtype, kernel.output_dtype) == ("float32", "float32")
            assert kernel.work == Work(0, 60, 0, 48, 48)

    def test_movement(self):
        assert copy("clone", 10, BFLOAT16) == moved("clone", 10, 20, 20, BFLOAT16)
        assert work_of(filled("arange", 10, INT64)) == Work(bytes_written=80)
        (kernel,) = cast(10, BFLOAT16, FLOAT32)
        assert (kernel.kind, kernel.operator) == ("movement", "_to_copy")
        assert (kernel.dtype, kernel.output_dtype) == ("bfloat16", "float32")
        assert kernel.work == Work(bytes_read=20, bytes_written=40)

    def test_a_cast_to_the_same_type_is_no_kernel(self):
        assert cast(10, BFLOAT16, BFLOAT16) == ()


class TestSums:
    ONE = Work(1, 2, 3, 4, 5)

    def test_of_works(self):
        assert combined([self.ONE, Work(), self.ONE]) == Work(2, 4, 6, 8, 10)
        assert multiplied(self.ONE, 1) is self.ONE
        assert multiplied(self.ONE, 3) == Work(3, 6, 9, 12, 15)

    def test_of_repeated_kernels(self):
        (kernel,) = kernels = addition(10, BFLOAT16)
        assert repeated(kernels, 0) == ()
        assert repeated(kernels, 1) == kernels
        assert repeated(repeated(kernels, 2), 3) == (kernel._replace(calls=6),)
        assert work_of(repeated(kernels, 6)) == multiplied(kernel.work, 6)

    def test_of_kernels_that_only_some_workloads_run(self):
        np = pytest.importorskip("numpy")
        (kernel,) = addition(10, BFLOAT16)
        work = work_of(repeated((kernel,), np.array([0, 1, 4])))
        assert list(work.vector_flops) == [0, 10, 40]
        assert work.macs == 0

    def test_of_modules(self):
        one, two = addition(10, BFLOAT16), copy("cat", 4, BFLOAT16)
        modules = joined({"": one, "a": ()}, {"": two, "b": one})
        assert modules == {"": (*one, *two), "a": (), "b": one}
        assert work_of_modules(modules) == combined([work_of(one), work_of(two), work_of(one)])
        assert list(under("layer", modules)) == ["layer", "layer.a", "layer.b"]


class TestSections:
    SECTIONS = (
        Section(("",), {"": addition(10, BFLOAT16), "norm": ()}),
        Section(
            ("layers.0", "layers.1"), {"": copy("cat", 4, BFLOAT16), "mlp": addition(3, FLOAT32)}
        ),
        Section(("head",), {"": addition(7, BFLOAT16)}, calls=2),
    )

    def test_expanded(self):
        expansion = Expansion()
        expansion.add(self.SECTIONS, times=3, stage="prefill")
        assert expansion.module_calls == {
            "": 3,
            "norm": 3,
            "layers.0": 3,
            "layers.0.mlp": 3,
            "layers.1": 3,
            "layers.1.mlp": 3,
            "head": 6,
        }
        assert [(kernel.path, kernel.calls) for kernel in expansion.kernels] == [
            ("", 3),
            ("layers.0", 3),
            ("layers.0.mlp", 3),
            ("layers.1", 3),
            ("layers.1.mlp", 3),
            ("head", 6),
        ]
        assert {kernel.stage for kernel in expansion.kernels} == {"prefill"}

    def test_their_work_is_that_of_their_expansion(self):
        expansion = Expansion()
        expansion.add(self.SECTIONS)
        assert sections_work(self.SECTIONS) == work_of(expansion.kernels)
        assert sections_work([Section((), {"": addition(1, BFLOAT16)})]) == Work()
