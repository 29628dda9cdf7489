"""What one operator costs: hand-worked counts on small shapes, and torch's own FLOP counter."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from tracing import (
    Calls,
    Net,
    by_path,
    kernels_of,
    meta,
    operators_of,
    total,
    trace_of,
    witnessed_flops,
)

from dsocr_analyze.kernels import Attention, Convolution, Elements, Gemm, Rows, Work
from dsocr_analyze.trace.operators import FREE, RULES

BF16 = torch.bfloat16
LONG = torch.long
BOOL = torch.bool
C64 = torch.complex64
FP8 = torch.float8_e4m3fn


def one(operator, macs=0, vector=0, activations=0, read=0, written=0):
    return [(operator, Work(macs, vector, activations, read, written))]


def matrix(operator, macs, out, read, vector=0, size=4):
    """A matrix operator in fp32: its output is its activations."""
    return one(operator, macs, vector, out, size * read, size * out)


def vector(operator, flops, read, written, size=4):
    return one(operator, 0, flops, 0, size * read, size * written)


# One row a case: (what is called, its tensors, what it must cost). Sizes are in elements of four
# bytes unless a row says otherwise.
CASES = {
    # --- linear
    "linear 2-D": (F.linear, (meta(5, 3), meta(7, 3)), matrix("linear", 5 * 3 * 7, 35, 15 + 21)),
    "linear 1-D": (F.linear, (meta(3), meta(7, 3)), matrix("linear", 3 * 7, 7, 3 + 21)),
    "linear 1-D weight": (F.linear, (meta(5, 3), meta(3)), matrix("linear", 5 * 3, 5, 15 + 3)),
    "linear 4-D": (
        F.linear,
        (meta(2, 3, 4, 5), meta(6, 5)),
        matrix("linear", 2 * 3 * 4 * 5 * 6, 2 * 3 * 4 * 6, 120 + 30),
    ),
    "linear with a bias": (
        F.linear,
        (meta(5, 3), meta(7, 3), meta(7)),
        matrix("linear", 5 * 3 * 7, 35, 15 + 21 + 7, vector=35),
    ),
    "linear by keyword": (
        lambda x, w, b: F.linear(bias=b, weight=w, input=x),
        (meta(5, 3), meta(7, 3), meta(7)),
        matrix("linear", 5 * 3 * 7, 35, 15 + 21 + 7, vector=35),
    ),
    "linear in bf16": (
        F.linear,
        (meta(5, 3, dtype=BF16), meta(7, 3, dtype=BF16)),
        matrix("linear", 5 * 3 * 7, 35, 15 + 21, size=2),
    ),
    "linear of nothing": (F.linear, (meta(0, 3), meta(7, 3)), matrix("linear", 0, 0, 21)),
    # --- convolution
    "conv1d": (
        F.conv1d,
        (meta(2, 3, 10), meta(4, 3, 5)),
        matrix("conv1d", 2 * 4 * 6 * 3 * 5, 2 * 4 * 6, 60 + 60),
    ),
    "conv2d with bias and stride": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2),
        (meta(1, 3, 8, 8), meta(4, 3, 2, 2), meta(4)),
        matrix("conv2d", 4 * 4 * 4 * 3 * 2 * 2, 64, 192 + 48 + 4, vector=64),
    ),
    "conv2d dilated and padded": (
        lambda x, w: F.conv2d(x, w, dilation=2, padding=1),
        (meta(1, 2, 8, 8), meta(3, 2, 3, 3)),
        matrix("conv2d", 3 * 6 * 6 * 2 * 9, 108, 128 + 54),
    ),
    "conv2d in groups": (
        lambda x, w: F.conv2d(x, w, groups=2),
        (meta(1, 4, 5, 5), meta(6, 2, 3, 3)),
        matrix("conv2d", 6 * 3 * 3 * 2 * 9, 54, 100 + 108),
    ),
    "conv2d depthwise": (
        lambda x, w: F.conv2d(x, w, groups=4),
        (meta(1, 4, 5, 5), meta(4, 1, 3, 3)),
        matrix("conv2d", 4 * 9 * 9, 36, 100 + 36),
    ),
    "conv3d": (
        F.conv3d,
        (meta(1, 2, 4, 4, 4), meta(3, 2, 2, 2, 2)),
        matrix("conv3d", 3 * 27 * 2 * 8, 81, 128 + 48),
    ),
    "transposed convolution: every input element meets every filter element": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2),
        (meta(1, 3, 4, 4), meta(3, 5, 2, 2)),
        matrix("conv_transpose2d", 4 * 4 * 3 * 5 * 4, 5 * 8 * 8, 48 + 60),
    ),
    "transposed convolution in groups": (
        lambda x, w: F.conv_transpose1d(x, w, groups=2),
        (meta(1, 4, 6), meta(4, 3, 2)),
        matrix("conv_transpose1d", 6 * 4 * 3 * 2, 6 * 7, 24 + 24),
    ),
    # --- matrix products
    "mm": (torch.mm, (meta(2, 3), meta(3, 5)), matrix("mm", 2 * 3 * 5, 10, 6 + 15)),
    "bmm": (torch.bmm, (meta(4, 2, 3), meta(4, 3, 5)), matrix("bmm", 4 * 2 * 3 * 5, 40, 24 + 60)),
    "mv": (torch.mv, (meta(2, 3), meta(3)), matrix("mv", 2 * 3, 2, 6 + 3)),
    "dot": (torch.dot, (meta(3), meta(3)), matrix("dot", 3, 1, 3 + 3)),
    "addmm": (
        torch.addmm,
        (meta(5), meta(2, 3), meta(3, 5)),
        matrix("addmm", 2 * 3 * 5, 10, 5 + 6 + 15, vector=10),
    ),
    "addmv": (
        torch.addmv,
        (meta(2), meta(2, 3), meta(3)),
        matrix("addmv", 2 * 3, 2, 2 + 6 + 3, vector=2),
    ),
    "baddbmm": (
        torch.baddbmm,
        (meta(4, 2, 5), meta(4, 2, 3), meta(4, 3, 5)),
        matrix("baddbmm", 4 * 2 * 3 * 5, 40, 40 + 24 + 60, vector=40),
    ),
    "a product of eight-bit factors": (
        lambda a, b, one: torch._scaled_mm(a, b.t(), one, one, out_dtype=BF16),
        (meta(16, 32, dtype=FP8), meta(48, 32, dtype=FP8), meta()),
        one("_scaled_mm", 16 * 32 * 48, 2 * 768, 768, (16 + 48) * 32 + 2 * 4, 2 * 768),
    ),
    "a product of eight-bit factors with a scale a row and a bias": (
        lambda a, b, x, y, c: torch._scaled_mm(a, b.t(), x, y, bias=c, out_dtype=BF16),
        (
            meta(16, 32, dtype=FP8),
            meta(48, 32, dtype=FP8),
            meta(16, 1),
            meta(1, 48),
            meta(48, dtype=BF16),
        ),
        one("_scaled_mm", 16 * 32 * 48, 3 * 768, 768, 64 * 32 + 4 * (16 + 48) + 2 * 48, 2 * 768),
    ),
    "matmul of vectors": (torch.matmul, (meta(3), meta(3)), matrix("matmul", 3, 1, 6)),
    "matmul, vector first": (torch.matmul, (meta(3), meta(3, 5)), matrix("matmul", 15, 5, 18)),
    "matmul, vector second": (
        torch.matmul,
        (meta(4, 2, 3), meta(3)),
        matrix("matmul", 4 * 2 * 3, 8, 24 + 3),
    ),
    "matmul, batch on the first": (
        torch.matmul,
        (meta(4, 2, 3), meta(3, 5)),
        matrix("matmul", 4 * 2 * 3 * 5, 40, 24 + 15),
    ),
    "matmul, batch only on the second": (
        torch.matmul,
        (meta(2, 3), meta(4, 3, 5)),
        matrix("matmul", 4 * 2 * 3 * 5, 40, 6 + 60),
    ),
    "matmul, batches broadcast": (  # each operand is first laid out for all 4 x 6 products
        torch.matmul,
        (meta(4, 1, 2, 3), meta(6, 3, 5)),
        vector("clone", 0, 4 * 6, 4 * 6 * 6)
        + vector("clone", 0, 6 * 15, 4 * 6 * 15)
        + matrix("matmul", 4 * 6 * 2 * 3 * 5, 240, 24 + 90),
    ),
    "matmul of heads behind the tokens, several sequences": (  # no one batch of matrices: a copy
        lambda q, k: torch.matmul(q.transpose(1, 2), k),
        (meta(2, 7, 5, 4), meta(2, 5, 4, 3)),
        vector("clone", 0, 280, 280) + matrix("matmul", 10 * 7 * 4 * 3, 210, 280 + 120),
    ),
    "matmul of heads behind the tokens, one sequence": (
        lambda q, k: torch.matmul(q.transpose(1, 2), k),
        (meta(1, 7, 5, 4), meta(1, 5, 4, 3)),
        matrix("matmul", 5 * 7 * 4 * 3, 105, 140 + 60),
    ),
    "the @ operator": (lambda a, b: a @ b, (meta(2, 3), meta(3, 5)), matrix("matmul", 30, 10, 21)),
    "__rmatmul__ has its operands the other way round": (
        lambda a, b: torch.Tensor.__rmatmul__(b, a),
        (meta(2, 3), meta(3, 5)),
        matrix("matmul", 2 * 3 * 5, 10, 6 + 15),
    ),
    "matmul by keyword": (
        lambda a, b: torch.matmul(input=a, other=b),
        (meta(2, 3), meta(3, 5)),
        matrix("matmul", 30, 10, 21),
    ),
    "matmul with an expanded operand reads it once": (
        lambda a, b: torch.matmul(a, b.expand(4, 3, 5)),
        (meta(4, 2, 3), meta(3, 5)),
        matrix("matmul", 4 * 2 * 3 * 5, 40, 24 + 15),
    ),
    # --- einsum
    "einsum as a product": (
        lambda a, b: torch.einsum("ij,jk->ik", a, b),
        (meta(2, 3), meta(3, 5)),
        matrix("einsum", 30, 10, 21),
    ),
    "einsum with operands in a list": (
        lambda a, b: torch.einsum("ij,jk->ik", [a, b]),
        (meta(2, 3), meta(3, 5)),
        matrix("einsum", 30, 10, 21),
    ),
    "einsum without an output": (
        lambda a, b: torch.einsum("ij, jk", a, b),
        (meta(2, 3), meta(3, 5)),
        matrix("einsum", 30, 10, 21),
    ),
    "einsum to a scalar": (
        lambda a, b: torch.einsum("ij,ij->", a, b),
        (meta(2, 3), meta(2, 3)),
        matrix("einsum", 6, 1, 12),
    ),
    "einsum of relative positions": (  # by rows: h must come first in the queries, a copy of them
        lambda q, r: torch.einsum("bhwc,hkc->bhwk", q, r),
        (meta(2, 3, 4, 5), meta(3, 6, 5)),
        vector("clone", 0, 120, 120) + matrix("einsum", 2 * 3 * 4 * 6 * 5, 2 * 3 * 4 * 6, 120 + 90),
    ),
    "einsum of relative positions by columns": (  # b and h, side by side already, are one row
        lambda q, r: torch.einsum("bhwc,wkc->bhwk", q, r),
        (meta(2, 3, 4, 5), meta(4, 6, 5)),
        matrix("einsum", 2 * 3 * 4 * 6 * 5, 2 * 3 * 4 * 6, 120 + 120),
    ),
    "einsum sums a label of one operand first": (
        lambda a, b: torch.einsum("ijs,jk->ik", a, b),
        (meta(2, 3, 7), meta(3, 5)),
        matrix("einsum", 2 * 3 * 5, 10, 42 + 15, vector=2 * 3 * 7),
    ),
    "einsum with an ellipsis is a bmm": (
        lambda a, b: torch.einsum("...ij,...jk->...ik", a, b),
        (meta(4, 2, 3), meta(4, 3, 5)),
        matrix("bmm", 4 * 2 * 3 * 5, 40, 24 + 60),
    ),
    "einsum without a contraction multiplies": (
        lambda a, b: torch.einsum("i,j->ij", a, b),
        (meta(3), meta(5)),
        vector("mul", 15, 3 + 5, 15),
    ),
    "einsum over a diagonal": (
        lambda a: torch.einsum("ii->", a),
        (meta(3, 3),),
        vector("sum", 3, 3, 1),
    ),
    # --- attention: q k^T and the product with v; 6 a score: scale and softmax; 7 with a mask
    "attention": (
        F.scaled_dot_product_attention,
        (meta(2, 3, 4, 8), meta(2, 3, 5, 8), meta(2, 3, 5, 6)),
        matrix(
            "scaled_dot_product_attention",
            2 * 3 * 4 * 5 * (8 + 6),
            2 * 3 * 4 * 6,
            192 + 240 + 180,
            vector=2 * 3 * 4 * 5 * 6,
        ),
    ),
    "attention with a bias": (
        F.scaled_dot_product_attention,
        (meta(2, 3, 4, 8), meta(2, 3, 5, 8), meta(2, 3, 5, 8), meta(2, 3, 4, 5)),
        matrix(
            "scaled_dot_product_attention",
            2 * 3 * 4 * 5 * 16,
            192,
            192 + 240 + 240 + 120,
            vector=120 * 7,
        ),
    ),
    "attention with a boolean mask by keyword": (
        lambda q, k, v, m: F.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=m),
        (meta(2, 3, 4, 8), meta(2, 3, 5, 8), meta(2, 3, 5, 8), meta(4, 5, dtype=BOOL)),
        one(
            "scaled_dot_product_attention",
            2 * 3 * 4 * 5 * 16,
            120 * 7,
            192,
            4 * (192 + 240 + 240) + 20,
            4 * 192,
        ),
    ),
    "causal attention skips nothing": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (meta(1, 3, 4, 8), meta(1, 3, 4, 8), meta(1, 3, 4, 8)),
        matrix("scaled_dot_product_attention", 3 * 16 * 16, 96, 3 * 96, vector=3 * 16 * 6),
    ),
    "attention with grouped keys": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (meta(1, 6, 4, 8), meta(1, 2, 5, 8), meta(1, 2, 5, 8)),
        matrix("scaled_dot_product_attention", 6 * 4 * 5 * 16, 192, 192 + 160, vector=120 * 6),
    ),
    "attention without heads": (
        F.scaled_dot_product_attention,
        (meta(2, 4, 8), meta(2, 5, 8), meta(2, 5, 8)),
        matrix("scaled_dot_product_attention", 2 * 4 * 5 * 16, 64, 64 + 160, vector=40 * 6),
    ),
    "attention of one query batch over many": (
        F.scaled_dot_product_attention,
        (meta(1, 3, 4, 8), meta(2, 3, 5, 8), meta(2, 3, 5, 8)),
        matrix("scaled_dot_product_attention", 120 * 16, 192, 96 + 480, vector=120 * 6),
    ),
    # --- softmax and normalisation
    "softmax": (lambda x: F.softmax(x, -1), (meta(2, 3),), vector("softmax", 5 * 6, 6, 6)),
    "softmax in fp32 of bf16": (
        lambda x: F.softmax(x, dim=-1, dtype=torch.float32),
        (meta(2, 3, dtype=BF16),),
        one("_to_copy", read=2 * 6, written=4 * 6) + vector("softmax", 5 * 6, 6, 6),
    ),
    "softmax in fp32 of fp16: CUDA's kernel casts by itself": (
        lambda x: F.softmax(x, dim=-1, dtype=torch.float32),
        (meta(2, 3, dtype=torch.float16),),
        one("softmax", vector=5 * 6, read=2 * 6, written=4 * 6),
    ),
    "softmax as a method": (
        lambda x: x.softmax(dim=-1),
        (meta(2, 3),),
        vector("softmax", 30, 6, 6),
    ),
    "log_softmax": (
        lambda x: torch.log_softmax(x, -1),
        (meta(2, 3),),
        vector("log_softmax", 30, 6, 6),
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (3,), w, b),
        (meta(2, 3), meta(3), meta(3)),
        vector("native_layer_norm", 5 * 6, 6 + 3 + 3, 6),
    ),
    "layer_norm of a vector, no weight": (
        lambda x: F.layer_norm(x, (3,)),
        (meta(3),),
        vector("native_layer_norm", 4 * 3, 3, 3),
    ),
    "layer_norm of channels that lie one after the other": (  # the kernel wants them in a row
        lambda x, w, b: F.layer_norm(x.t(), (3,), w, b),
        (meta(3, 2), meta(3), meta(3)),
        vector("clone", 0, 6, 6) + vector("native_layer_norm", 5 * 6, 6 + 3 + 3, 6),
    ),
    "layer_norm in six dimensions": (
        lambda x: F.layer_norm(x, (3,)),
        (meta(1, 1, 1, 1, 2, 3),),
        vector("native_layer_norm", 4 * 6, 6, 6),
    ),
    "group_norm": (
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (meta(1, 4, 3), meta(4), meta(4)),
        vector("native_group_norm", 5 * 12, 12 + 8, 12),
    ),
    "batch_norm at inference": (
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        (meta(2, 3, 4), meta(3), meta(3), meta(3), meta(3)),
        vector("native_batch_norm", 2 * 24, 24 + 12, 24),
    ),
    "rms_norm": (
        lambda x, w: F.rms_norm(x, (3,), w),
        (meta(2, 3), meta(3)),
        vector("rms_norm", 4 * 6, 6 + 3, 6),
    ),
    # --- activations
    "relu": (F.relu, (meta(2, 3),), vector("relu", 6, 6, 6)),
    "relu in place": (torch.relu_, (meta(2, 3),), vector("relu", 6, 6, 6)),
    "relu6": (F.relu6, (meta(2, 3),), vector("hardtanh", 6, 6, 6)),
    "sigmoid": (torch.sigmoid, (meta(2, 3),), vector("sigmoid", 4 * 6, 6, 6)),
    "silu": (F.silu, (meta(2, 3),), vector("silu", 5 * 6, 6, 6)),
    "gelu": (F.gelu, (meta(2, 3),), vector("gelu", 5 * 6, 6, 6)),
    "tanh": (torch.tanh, (meta(2, 3),), vector("tanh", 6, 6, 6)),
    "softplus": (F.softplus, (meta(2, 3),), vector("softplus", 3 * 6, 6, 6)),
    "hardsigmoid": (F.hardsigmoid, (meta(2, 3),), vector("hardsigmoid", 4 * 6, 6, 6)),
    "hardswish": (F.hardswish, (meta(2, 3),), vector("hardswish", 5 * 6, 6, 6)),
    "erfc": (torch.erfc, (meta(2, 3),), vector("erfc", 6, 6, 6)),
    "elu": (F.elu, (meta(2, 3),), vector("elu", 4 * 6, 6, 6)),
    "mish": (F.mish, (meta(2, 3),), vector("mish", 5 * 6, 6, 6)),
    "glu": (F.glu, (meta(2, 4),), vector("glu", 5 * 4, 8, 4)),
    "prelu": (F.prelu, (meta(2, 3), meta(1)), vector("_prelu_kernel", 2 * 6, 6 + 1, 6)),
    # --- elementwise
    "lerp": (torch.lerp, (meta(6), meta(6), meta(6)), vector("lerp", 3 * 6, 18, 6)),
    "hypot": (torch.hypot, (meta(6), meta(6)), vector("hypot", 4 * 6, 12, 6)),
    "logaddexp": (torch.logaddexp, (meta(6), meta(6)), vector("logaddexp", 5 * 6, 12, 6)),
    "xlogy": (torch.xlogy, (meta(6), meta(6)), vector("xlogy", 2 * 6, 12, 6)),
    "add broadcasts": (torch.add, (meta(2, 3), meta(3)), vector("add", 6, 6 + 3, 6)),
    "add of a number": (lambda x: x + 1, (meta(2, 3),), vector("add", 6, 6, 6)),
    "add in place": (lambda x, y: x.add_(y), (meta(2, 3), meta(3)), vector("add", 6, 9, 6)),
    "add of an expanded tensor reads it once": (
        lambda x, y: x + y.expand(2, 3),
        (meta(2, 3), meta(1, 1)),
        vector("add", 6, 6 + 1, 6),
    ),
    "mul to another type": (
        torch.mul,
        (meta(2, 3), meta(2, 3, dtype=BF16)),
        one("mul", vector=6, read=4 * 6 + 2 * 6, written=4 * 6),
    ),
    "addcmul": (torch.addcmul, (meta(6), meta(6), meta(6)), vector("addcmul", 12, 18, 6)),
    "where": (
        torch.where,
        (meta(6, dtype=BOOL), meta(6), meta(6)),
        one("where", vector=6, read=6 + 4 * 12, written=4 * 6),
    ),
    # --- reductions and routing
    "sum": (lambda x: x.sum(-1), (meta(2, 3),), vector("sum", 6, 6, 2)),
    "count_nonzero": (
        lambda x: torch.count_nonzero(x, -1),
        (meta(2, 3),),
        one("count_nonzero", vector=2 * 6, read=4 * 6, written=8 * 2),
    ),
    "aminmax": (lambda x: x.aminmax(), (meta(2, 3),), vector("aminmax", 2 * 6, 6, 2)),
    "mean": (lambda x: x.mean(), (meta(2, 3),), vector("mean", 6, 6, 1)),
    "topk": (
        lambda x: torch.topk(x, 2, dim=-1),
        (meta(3, 4),),
        one("topk", vector=12, read=4 * 12, written=(4 + 8) * 6),
    ),
    "sort": (
        lambda x: torch.sort(x, dim=-1),
        (meta(3, 5),),
        one("sort", vector=15 * 3, read=4 * 15, written=(4 + 8) * 15),
    ),
    "bucketize": (  # 3 boundaries: 2 comparisons tell 4 places apart
        lambda x, at: torch.bucketize(x, at),
        [meta(2, 5), meta(3)],
        one("bucketize", vector=20, read=4 * 13, written=8 * 10),
    ),
    "searchsorted": (
        lambda at, x: torch.searchsorted(at, x),
        [meta(2, 7), meta(2, 5)],
        one("searchsorted", vector=30, read=4 * 24, written=8 * 10),
    ),
    "weights by norm": (
        lambda v, g: torch._weight_norm(v, g, 2),
        [meta(4, 3, 5), meta(1, 1, 5)],
        one("_weight_norm_interface", vector=180, read=4 * 65, written=4 * 65),
    ),
    "argsort over the first dimension": (
        lambda x: torch.sort(x, stable=True, dim=0),
        (meta(2, 5),),
        one("sort", vector=10 * 1, read=4 * 10, written=(4 + 8) * 10),
    ),
    # --- interpolation and pooling
    "bicubic, 4 x 4 taps": (
        lambda x: F.interpolate(x, (4, 4), mode="bicubic"),
        (meta(1, 2, 3, 3),),
        vector("upsample_bicubic2d", 2 * 16 * 32, 18, 32),
    ),
    "bicubic, antialiased, growing": (
        lambda x: F.interpolate(x, (4, 6), mode="bicubic", antialias=True),
        (meta(1, 1, 3, 3),),
        vector("_upsample_bicubic2d_aa", 2 * 5 * (3 * 6) + 2 * 5 * (4 * 6), 9, 24),
    ),
    "bicubic, antialiased, halving": (
        lambda x: F.interpolate(x, (4, 4), mode="bicubic", antialias=True),
        (meta(1, 1, 8, 8),),
        vector("_upsample_bicubic2d_aa", 2 * 9 * (8 * 4) + 2 * 9 * (4 * 4), 64, 16),
    ),
    "samples at places, bilinear": (  # 2 FLOPs for each of 2 x 2 taps
        lambda x, grid: F.grid_sample(x, grid, align_corners=False),
        (meta(1, 2, 5, 5), meta(1, 3, 4, 2)),
        vector("grid_sampler_2d", 8 * 2 * 12, 50 + 24, 24),
    ),
    "samples at places, bicubic": (
        lambda x, grid: F.grid_sample(x, grid, "bicubic", align_corners=False),
        (meta(1, 2, 5, 5), meta(1, 3, 4, 2)),
        vector("grid_sampler_2d", 32 * 2 * 12, 50 + 24, 24),
    ),
    "samples at places, the nearest element": (
        lambda x, grid: F.grid_sample(x, grid, "nearest", align_corners=False),
        (meta(1, 2, 5, 5), meta(1, 3, 4, 2)),
        vector("grid_sampler_2d", 0, 50 + 24, 24),
    ),
    "samples in space": (
        lambda x, grid: F.grid_sample(x, grid, align_corners=False),
        (meta(1, 2, 5, 5, 5), meta(1, 3, 4, 2, 3)),
        vector("grid_sampler_3d", 16 * 2 * 24, 250 + 72, 48),
    ),
    "linear interpolation": (
        lambda x: F.interpolate(x, 5, mode="linear"),
        (meta(1, 2, 3),),
        vector("upsample_linear1d", 2 * 2 * 10, 6, 10),
    ),
    "bilinear": (
        lambda x: F.interpolate(x, (4, 4), mode="bilinear"),
        (meta(1, 1, 3, 3),),
        vector("upsample_bilinear2d", 2 * 4 * 16, 9, 16),
    ),
    "nearest": (
        lambda x: F.interpolate(x, (4, 4)),
        (meta(1, 1, 2, 2),),
        vector("upsample_nearest2d", 0, 4, 16),
    ),
    "average pooling": (
        lambda x: F.avg_pool2d(x, 2),
        (meta(1, 1, 4, 4),),
        vector("avg_pool2d", 4 * 4, 16, 4),
    ),
    "maximum pooling": (
        lambda x: F.max_pool2d(x, 2),
        (meta(1, 1, 4, 4),),
        one("max_pool2d_with_indices", vector=4 * 4, read=4 * 16, written=(4 + 8) * 4),
    ),
    "adaptive pooling": (
        lambda x: F.adaptive_avg_pool2d(x, 2),
        (meta(1, 1, 4, 4),),
        vector("_adaptive_avg_pool2d", 16, 16, 4),
    ),
    # --- movement
    "clone": (torch.clone, (meta(2, 3),), vector("clone", 0, 6, 6)),
    "another type": (
        lambda x: x.to(BF16),
        (meta(2, 3),),
        one("_to_copy", read=4 * 6, written=2 * 6),
    ),
    "cat": (lambda *x: torch.cat(x), (meta(2, 3), meta(1, 3)), vector("cat", 0, 9, 9)),
    "pad": (lambda x: F.pad(x, (1, 1)), (meta(2, 3),), vector("constant_pad_nd", 0, 6, 10)),
    "copy_ reads the source only": (
        lambda x, y: x.copy_(y),
        (meta(2, 3), meta(3, dtype=BF16)),
        one("copy", read=2 * 3, written=4 * 6),
    ),
    "zeros": (lambda x: torch.zeros_like(x), (meta(2, 3),), vector("zeros_like", 0, 0, 6)),
    "embedding reads the rows it takes": (
        F.embedding,
        (meta(2, dtype=LONG), meta(1000, 3)),
        one("embedding", read=8 * 2 + 4 * 6, written=4 * 6),
    ),
    "index": (
        lambda x, i: x[i],
        (meta(1000, 3), meta(2, dtype=LONG)),
        one("index", read=8 * 2 + 4 * 6, written=4 * 6),
    ),
    "index_select": (
        lambda x, i: x.index_select(0, i),
        (meta(1000, 3), meta(2, dtype=LONG)),
        one("index_select", read=8 * 2 + 4 * 6, written=4 * 6),
    ),
    "gather": (
        lambda x, i: x.gather(1, i),
        (meta(2, 1000), meta(2, 3, dtype=LONG)),
        one("gather", read=8 * 6 + 4 * 6, written=4 * 6),
    ),
    "scatter_ of a number writes what it reaches": (
        lambda x, i: x.scatter_(1, i, 1.0),
        (meta(2, 1000), meta(2, 3, dtype=LONG)),
        one("scatter", read=8 * 6, written=4 * 6),
    ),
    "scatter_ reads as much of the source as it has indices": (
        lambda x, i, s: x.scatter_(1, i, s),
        (meta(2, 1000), meta(2, 3, dtype=LONG), meta(2, 500)),
        one("scatter", read=8 * 6 + 4 * 6, written=4 * 6),
    ),
    "scatter copies what it leaves": (
        lambda x, i: x.scatter(1, i, 1.0),
        (meta(2, 10), meta(2, 3, dtype=LONG)),
        one("scatter", read=8 * 6 + 4 * 20, written=4 * 20),
    ),
    "scatter_add_ reads what it adds to": (
        lambda x, i, s: x.scatter_add_(1, i, s),
        (meta(2, 1000), meta(2, 3, dtype=LONG), meta(2, 500)),
        one("scatter_add", vector=6, read=8 * 6 + 4 * 6 + 4 * 6, written=4 * 6),
    ),
    "index_add_": (
        lambda x, i, s: x.index_add_(0, i, s),
        (meta(1000, 3), meta(2, dtype=LONG), meta(2, 3)),
        one("index_add", vector=6, read=8 * 2 + 4 * 6 + 4 * 6, written=4 * 6),
    ),
    "index_put_ writes rows": (
        lambda x, i, s: x.index_put_((i,), s),
        (meta(1000, 3), meta(2, dtype=LONG), meta(3)),
        one("index_put", read=8 * 2 + 4 * 3, written=4 * 6),
    ),
    "index_put_ along a later dimension": (
        lambda x, i, s: torch.ops.aten.index_put_(x, [None, i], s),
        (meta(5, 1000), meta(2, dtype=LONG), meta(5, 2)),
        one("index_put", read=8 * 2 + 4 * 10, written=4 * 10),
    ),
    "index_put copies what it leaves": (
        lambda x, i, s: x.index_put((i,), s),
        (meta(10, 3), meta(2, dtype=LONG), meta(2, 3)),
        one("index_put", read=8 * 2 + 4 * 6 + 4 * 30, written=4 * 30),
    ),
    "index_copy_ writes rows": (
        lambda x, i, s: x.index_copy_(0, i, s),
        (meta(1000, 3), meta(2, dtype=LONG), meta(2, 3)),
        one("index_copy", read=8 * 2 + 4 * 6, written=4 * 6),
    ),
    "index_fill_ writes rows": (
        lambda x, i: x.index_fill_(0, i, 1.0),
        (meta(1000, 3), meta(2, dtype=LONG)),
        one("index_fill", read=8 * 2, written=4 * 6),
    ),
    "index_fill copies what it leaves": (
        lambda x, i: x.index_fill(1, i, 1.0),
        (meta(5, 10), meta(2, dtype=LONG)),
        one("index_fill", read=8 * 2 + 4 * 50, written=4 * 50),
    ),
    "a copied view reads what it takes": (
        lambda x: torch.narrow_copy(x, 0, 3, 2),
        (meta(1000, 3),),
        vector("narrow_copy", 0, 6, 6),
    ),
    "a copied view reads once what it writes often": (
        lambda x: torch.expand_copy(x, (4, 3)),
        (meta(1, 3),),
        vector("expand_copy", 0, 3, 12),
    ),
    "windows that overlap are held once": (
        lambda x: x.unfold(0, 3, 1) + 1,
        (meta(10),),
        vector("add", 8 * 3, 10, 24),
    ),
    "fill_ from a tensor": (
        lambda x, v: x.fill_(v),
        (meta(2, 3), meta(dtype=BF16)),
        one("fill", read=2, written=4 * 6),
    ),
    "linspace between tensors": (
        lambda a, b: torch.linspace(a, b, 10),
        (meta(), meta()),
        vector("linspace", 0, 2, 10),
    ),
    "bernoulli reads its odds": (torch.bernoulli, (meta(6),), vector("bernoulli", 0, 6, 6)),
    "bernoulli_ reads nothing": (
        lambda x: x.bernoulli_(0.5),
        (meta(6),),
        vector("bernoulli", 0, 0, 6),
    ),
    # --- out=: written, not read
    "mm into a tensor": (
        lambda a, b, c: torch.mm(a, b, out=c),
        (meta(2, 3), meta(3, 5), meta(2, 5)),
        matrix("mm", 2 * 3 * 5, 10, 6 + 15),
    ),
    "matmul into a tensor": (
        lambda a, b, c: torch.matmul(a, b, out=c),
        (meta(2, 3), meta(3, 5), meta(2, 5)),
        matrix("matmul", 2 * 3 * 5, 10, 6 + 15),
    ),
    "add into its own operand reads it": (
        lambda a, b: torch.add(a, b, out=a),
        (meta(6), meta(6)),
        vector("add", 6, 12, 6),
    ),
    "topk into two tensors": (
        lambda x, v, i: torch.topk(x, 2, out=(v, i)),
        (meta(3, 4), meta(3, 2), meta(3, 2, dtype=LONG)),
        one("topk", vector=12, read=4 * 12, written=(4 + 8) * 6),
    ),
    "scatter into a tensor copies what it leaves": (
        lambda x, i, y: torch.scatter(x, 1, i, 1.0, out=y),
        (meta(2, 10), meta(2, 3, dtype=LONG), meta(2, 10)),
        one("scatter", read=8 * 6 + 4 * 20, written=4 * 20),
    ),
    # --- complex numbers: real operations of eight bytes an element
    "complex add": (torch.add, (meta(3, dtype=C64),) * 2, vector("add", 2 * 3, 6, 3, size=8)),
    "complex mul": (torch.mul, (meta(3, dtype=C64),) * 2, vector("mul", 6 * 3, 6, 3, size=8)),
    "complex mul in place": (
        lambda x, y: x.mul_(y),
        (meta(3, dtype=C64), meta(3, dtype=C64)),
        vector("mul", 6 * 3, 6, 3, size=8),
    ),
    "complex mul of a real tensor": (
        torch.mul,
        (meta(3), meta(3, dtype=C64)),
        one("mul", vector=6 * 3, read=4 * 3 + 8 * 3, written=8 * 3),
    ),
    "complex div": (torch.div, (meta(3, dtype=C64),) * 2, vector("div", 11 * 3, 6, 3, size=8)),
    "complex abs": (
        torch.abs,
        (meta(3, dtype=C64),),
        one("abs", vector=4 * 3, read=8 * 3, written=4 * 3),
    ),
    "complex exp": (torch.exp, (meta(3, dtype=C64),), vector("exp", 5 * 3, 3, 3, size=8)),
    "complex sum": (
        lambda x: x.sum(-1),
        (meta(2, 3, dtype=C64),),
        vector("sum", 2 * 6, 6, 2, size=8),
    ),
    "complex clone": (torch.clone, (meta(3, dtype=C64),), vector("clone", 0, 3, 3, size=8)),
    "complex of two": (
        torch.complex,
        (meta(3), meta(3)),
        one("complex", read=4 * 6, written=8 * 3),
    ),
    "complex from an angle: cosine, sine, two products": (
        torch.polar,
        (meta(3), meta(3)),
        one("polar", vector=4 * 3, read=4 * 6, written=8 * 3),
    ),
    "complex matmul: 8 real FLOPs a product, of which 2 are matrix FLOPs": (
        torch.matmul,
        (meta(2, 3, dtype=C64), meta(3, 5, dtype=C64)),
        matrix("matmul", 30, 10, 6 + 15, vector=6 * 30, size=8),
    ),
    "complex linear with a bias": (
        F.linear,
        (meta(5, 3, dtype=C64), meta(7, 3, dtype=C64), meta(7, dtype=C64)),
        matrix("linear", 105, 35, 15 + 21 + 7, vector=6 * 105 + 2 * 35, size=8),
    ),
}


# One row a case of `CASES`: the kind and size of its last kernel.
SIZES = {
    "linear 2-D": ("gemm", Gemm(1, 5, 7, 3)),
    "linear 1-D": ("gemm", Gemm(1, 1, 7, 3)),
    "linear 1-D weight": ("gemm", Gemm(1, 5, 1, 3)),
    "linear 4-D": ("gemm", Gemm(1, 2 * 3 * 4, 6, 5)),
    "linear of nothing": ("gemm", Gemm(1, 0, 7, 3)),
    "conv1d": ("convolution", Convolution(2, 6, 3, 4, 5)),
    "conv2d in groups": ("convolution", Convolution(1, 3 * 3, 2, 6, 3 * 3)),
    "conv3d": ("convolution", Convolution(1, 27, 2, 3, 8)),
    "transposed convolution in groups": ("convolution", Convolution(1, 7, 3, 6, 2)),
    "mm": ("gemm", Gemm(1, 2, 5, 3)),
    "bmm": ("gemm", Gemm(4, 2, 5, 3)),
    "mv": ("gemm", Gemm(1, 2, 1, 3)),
    "dot": ("gemm", Gemm(1, 1, 1, 3)),
    "addmm": ("gemm", Gemm(1, 2, 5, 3)),
    "addmv": ("gemm", Gemm(1, 2, 1, 3)),
    "baddbmm": ("gemm", Gemm(4, 2, 5, 3)),
    "matmul of vectors": ("gemm", Gemm(1, 1, 1, 3)),
    "matmul, vector first": ("gemm", Gemm(1, 1, 5, 3)),
    "matmul, vector second": ("gemm", Gemm(4, 2, 1, 3)),
    "matmul, batches broadcast": ("gemm", Gemm(4 * 6, 2, 5, 3)),
    "__rmatmul__ has its operands the other way round": ("gemm", Gemm(1, 2, 5, 3)),
    "einsum as a product": ("gemm", Gemm(1, 2, 5, 3)),
    "einsum to a scalar": ("gemm", Gemm(1, 1, 1, 6)),
    "einsum of relative positions": ("gemm", Gemm(3, 2 * 4, 6, 5)),
    "einsum of relative positions by columns": ("gemm", Gemm(4, 2 * 3, 6, 5)),
    "einsum sums a label of one operand first": ("gemm", Gemm(1, 2, 5, 3)),
    "attention": ("attention", Attention(2, 3, 3, 4, 5, 8, 6)),
    "attention with a bias": ("attention", Attention(2, 3, 3, 4, 5, 8, 8, masked=True)),
    "causal attention skips nothing": (
        "attention",
        Attention(1, 3, 3, 4, 4, 8, 8, skippable_scores=3 * (3 + 2 + 1)),
    ),
    "attention with grouped keys": ("attention", Attention(1, 6, 2, 4, 5, 8, 8)),
    "attention without heads": ("attention", Attention(2, 1, 1, 4, 5, 8, 8)),
    "attention of one query batch over many": ("attention", Attention(2, 3, 3, 4, 5, 8, 8)),
    "softmax": ("softmax", Rows(2, 3)),
    "softmax in fp32 of bf16": ("softmax", Rows(2, 3)),
    "softmax as a method": ("softmax", Rows(2, 3)),
    "layer_norm": ("normalization", Rows(2, 3)),
    "layer_norm of a vector, no weight": ("normalization", Rows(1, 3)),
    "group_norm": ("normalization", Rows(2, 2 * 3)),
    "batch_norm at inference": ("normalization", Rows(3, 2 * 4)),
    "rms_norm": ("normalization", Rows(2, 3)),
    "gelu": ("activation", Elements(6)),
    "add broadcasts": ("elementwise", Elements(6)),
    "sum": ("reduction", Rows(2, 3)),
    "mean": ("reduction", Rows(1, 6)),
    "topk": ("routing", Rows(3, 4)),
    "sort": ("routing", Rows(3, 5)),
    "argsort over the first dimension": ("routing", Rows(5, 2)),
    "linear interpolation": ("interpolation", Elements(10)),
    "average pooling": ("pooling", Elements(4)),
    "another type": ("movement", Elements(6)),
    "embedding reads the rows it takes": ("movement", Elements(6)),
    "scatter_ of a number writes what it reaches": ("movement", Elements(2000)),
    "scatter_add_ reads what it adds to": ("elementwise", Elements(2000)),
}


NOT_WITNESSED = {"linear 1-D weight", "matmul of vectors", "matmul, vector second"}
"""`FlopCounterMode` does not count products with vectors."""


def macs_of(kernel):
    """What a kernel's sizes multiply to."""
    size = kernel.dimensions
    if isinstance(size, Attention):
        return math.prod(size[:2] + size[3:5]) * (size.head_dim + size.value_dim)
    is_product = isinstance(size, Gemm | Convolution) and "transpose" not in kernel.operator
    return math.prod(size) if is_product else kernel.work.macs


TYPES = {
    "linear in bf16": ("bfloat16", "bfloat16"),
    "softmax in fp32 of bf16": ("float32", "float32"),
    "softmax in fp32 of fp16: CUDA's kernel casts by itself": ("float16", "float32"),
    "where": ("bool", "float32"),
    "cat": ("float32", "float32"),
    "copy_ reads the source only": ("bfloat16", "float32"),
    "another type": ("float32", "bfloat16"),
    "topk": ("float32", "float32"),
}
"""Of the first tensor of a case's last kernel, and of its output."""


def test_an_operator_costs_what_is_worked_out_by_hand():
    for name, (function, tensors, expected) in CASES.items():
        kernels = kernels_of(function, *tensors)
        last = kernels[-1]
        assert [(kernel.operator, kernel.work) for kernel in kernels] == expected, name
        assert [*map(macs_of, kernels)] == [kernel.work.macs for kernel in kernels], name
        assert all(type(count) is int for kernel in kernels for count in kernel.work), name
        assert (last.kind, last.dimensions) == SIZES.get(name, (last.kind, last.dimensions)), name
        dtypes = last.dtype, last.output_dtype
        assert dtypes == TYPES.get(name, dtypes), name
        if not (name in NOT_WITNESSED or {"mv", "dot", "addmv"} & {work[0] for work in expected}):
            macs = sum(work.macs for _, work in expected)
            assert witnessed_flops(function, *tensors) == 2 * macs, name
        # Inference mode inside what is called changes nothing.
        assert operators_of(torch.inference_mode()(function), *tensors) == expected, name
    assert CASES.keys() >= SIZES.keys() | TYPES.keys()


def test_a_kernel_that_reads_no_tensor_has_the_type_of_what_it_writes():
    [kernel] = kernels_of(lambda: torch.arange(5, device="meta"))
    assert (kernel.dtype, kernel.output_dtype) == ("int64", "int64")


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(6),
        lambda x: x.reshape(6),
        lambda x: x.transpose(0, 1).T.permute(1, 0),
        lambda x: x[0, 1:].unsqueeze(0).expand(4, 2),
        lambda x: x.unbind(0)[0].squeeze().detach(),
        lambda x: x.chunk(2)[0].split(1)[0].flatten(),
        lambda x: torch.view_as_real(torch.view_as_complex(x.view(3, 2)).t()),
        lambda x: torch.view_as_complex(x.view(3, 2)).conj().imag,
        lambda x: x.unsqueeze_(0).squeeze_().t_(),
    ],
)
def test_a_view_moves_nothing(view):
    trace = trace_of(Calls(view), meta(2, 3))
    assert (bool(trace.free), trace.kernels, trace.unknown) == (True, [], {})


def test_a_reshape_that_copies_is_no_view():
    assert operators_of(lambda x: x.t().reshape(6), meta(2, 3)) == vector("clone", 0, 6, 6)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.fft.fft, "_fft_r2c"),
        (lambda x: F.bilinear(x, x, torch.empty(3, 3, 3, device="meta")), "_trilinear"),
        (lambda x: torch.erfinv(x), "erfinv"),
    ],
)
def test_an_operator_without_a_rule_is_unknown_and_never_guessed(function, name):
    trace = trace_of(Calls(function), meta(2, 3))
    assert trace.unknown == {name: 1}
    assert name not in {kernel.operator for kernel in trace.kernels}


@pytest.mark.parametrize("name", ["sqrt", "sigmoid", "softmax"])
def test_an_operator_without_a_rule_for_complex_numbers_is_unknown_for_them(name):
    arguments = (-1,) if name == "softmax" else ()
    trace, real = (
        trace_of(Calls(getattr(torch, name)), meta(2, 3, dtype=dtype), *arguments)
        for dtype in (C64, torch.float32)
    )
    assert (trace.unknown, trace.kernels, real.unknown) == ({name: 1}, [], {})


# Kernels of attention by their own names: tokens come before heads, [B, T, H, D]; packed,
# [T, H, D] and where each sequence begins, each counts as long as the longest.
FLASH = torch.ops.aten._flash_attention_forward
EFFICIENT = torch.ops.aten._efficient_attention_forward
Q, K = meta(2, 5, 6, 16, dtype=BF16), meta(2, 7, 3, 16, dtype=BF16)
PACKED_Q, PACKED_K = meta(9, 6, 16, dtype=BF16), meta(12, 3, 16, dtype=BF16)
BEGINS = meta(4, dtype=torch.int32)


@pytest.mark.parametrize(
    ("run", "given", "size", "outputs", "read"),
    [
        # The last of 5 queries sees all 7 keys, those before it 1, 2, 3 and 4 fewer.
        (
            FLASH,
            (Q, K, K, None, None, 5, 7, 0.0, True, False),
            Attention(2, 6, 3, 5, 7, 16, 16, skippable_scores=2 * 6 * (1 + 2 + 3 + 4)),
            2 * 5 * 6 * 16,
            2 * (2 * 5 * 6 * 16 + 2 * 2 * 7 * 3 * 16),
        ),
        (
            FLASH,
            (PACKED_Q, PACKED_K, PACKED_K, BEGINS, BEGINS, 4, 6, 0.0, False, False),
            Attention(3, 6, 3, 4, 6, 16, 16),
            9 * 6 * 16,
            2 * (9 * 6 * 16 + 2 * 12 * 3 * 16) + 2 * 4 * 4,
        ),
        (
            EFFICIENT,
            (Q, Q, Q, None, None, None, None, None, 0.0, 0),
            Attention(2, 6, 6, 5, 5, 16, 16),
            2 * 5 * 6 * 16,
            2 * 3 * 2 * 5 * 6 * 16,
        ),
        (
            EFFICIENT,
            (Q, K, K, meta(2, 6, 5, 7, dtype=BF16), None, None, None, None, 0.0, 1),
            Attention(2, 6, 3, 5, 7, 16, 16, masked=True, skippable_scores=2 * 6 * 10),
            2 * 5 * 6 * 16,
            2 * (2 * 5 * 6 * 16 + 2 * 2 * 7 * 3 * 16 + 2 * 6 * 5 * 7),
        ),
        (
            EFFICIENT,
            (PACKED_Q[None], PACKED_K[None], PACKED_K[None], None, BEGINS, BEGINS, 4, 6, 0.0, 0),
            Attention(3, 6, 3, 4, 6, 16, 16),
            9 * 6 * 16,
            2 * (9 * 6 * 16 + 2 * 12 * 3 * 16) + 2 * 4 * 4,
        ),
    ],
)
def test_a_kernel_of_attention_by_its_own_name(run, given, size, outputs, read):
    kernel = kernels_of(run, *given)[-1]
    assert kernel.dimensions == size
    scores = math.prod(size[:2] + size[3:5])
    vector = scores * (6 + size.masked)
    assert kernel.work == Work(scores * 32, vector, outputs, read, 2 * outputs)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace.* is deprecated:DeprecationWarning")
def test_a_convolution_that_torch_jit_recorded_is_counted_as_any_other():
    net, x = torch.nn.Conv2d(3, 4, 2), torch.zeros(1, 3, 5, 5)
    assert operators_of(torch.jit.trace(net, x), x) == operators_of(net, x)


def test_marks_for_the_profiler_are_free():
    marked = torch.profiler.record_function("here")(lambda x: x + 1)
    assert [kernel.operator for kernel in kernels_of(marked, meta(2, 3))] == ["add"]


def test_an_operator_of_another_library_keeps_its_name_and_stays_unknown():
    with torch.library._scoped_library("dsocr_test", "DEF") as library:
        library.define("add(Tensor x) -> Tensor")
        library.impl("add", torch.empty_like, "Meta")
        trace = trace_of(Calls(torch.ops.dsocr_test.add), meta(2, 3))
    assert trace.unknown == {"dsocr_test::add": 1}


def test_no_operator_is_both_free_and_counted():
    assert not RULES.keys() & FREE


def test_three_operands_of_einsum_are_counted_pair_by_pair():
    given = "ij,jk,kl->il", meta(2, 3), meta(3, 5), meta(5, 7)
    counted = total(trace_of(Calls(torch.einsum), *given))
    assert counted.matrix_flops == witnessed_flops(torch.einsum, *given)
    # Whichever pair comes first: (2 x 3 x 5) and (2 x 5 x 7), or (3 x 5 x 7) and (2 x 3 x 7).
    assert counted.macs in (2 * 3 * 5 + 2 * 5 * 7, 3 * 5 * 7 + 2 * 3 * 7)


def attended(self, x):
    q, k, v = self.qkv(x).unsqueeze(1).chunk(3, dim=-1)
    return F.scaled_dot_product_attention(q, k, v).squeeze(1)


LAYERS = {
    "linear": lambda width, wider: torch.nn.Linear(width, wider, bias=wider == 6),
    "norm": lambda width, _: torch.nn.LayerNorm(width),
    "gelu": lambda *_: torch.nn.GELU(),
    "attention": lambda width, _: Net(attended, qkv=torch.nn.Linear(width, 3 * width)),
    "encoder": lambda width, _: torch.nn.TransformerEncoderLayer(width, 2, 8, batch_first=True),
}


# --- `FlopCounterMode` on `meta` counts the same FLOPs, where it counts at all


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.fixed_dictionaries({label: st.integers(1, 4) for label in "abcde"}),
    left=st.permutations("abcde").flatmap(lambda p: st.integers(1, 4).map(lambda n: p[:n])),
    right=st.permutations("abcde").flatmap(lambda p: st.integers(1, 4).map(lambda n: p[:n])),
    kept=st.sets(st.sampled_from("abcde")),
    ones=st.sets(st.sampled_from("abcde"), max_size=2),
    explicit=st.booleans(),
)
def test_the_outside_witness_counts_any_einsum_alike(sizes, left, right, kept, ones, explicit):
    equation = f"{''.join(left)},{''.join(right)}"
    if explicit:
        equation += "->" + "".join(sorted(kept & {*left, *right}))
    first = meta(*(sizes[label] for label in left))
    # A label of size 1 on one side is broadcast to the other's.
    second = meta(*(1 if label in ones else sizes[label] for label in right))
    counted = total(trace_of(Calls(torch.einsum), equation, first, second))
    assert counted.matrix_flops == witnessed_flops(torch.einsum, equation, first, second)


@settings(max_examples=20, deadline=None)
@given(
    first=st.lists(st.integers(1, 3), max_size=2),
    second=st.lists(st.integers(1, 3), max_size=2),
    spread=st.lists(st.booleans(), min_size=2, max_size=2),
    rows=st.integers(1, 4),
    inner=st.integers(1, 4),
    columns=st.integers(2, 4),
)
def test_the_outside_witness_counts_any_broadcast_product_alike(
    first, second, spread, rows, inner, columns
):
    shared = min(len(first), len(second))
    for index in range(1, shared + 1):
        second[-index] = 1 if spread[index - 1] else first[-index]
    a, b = meta(*first, rows, inner), meta(*second, inner, columns)
    counted = total(trace_of(Calls(torch.matmul), a, b))
    batch = math.prod(torch.broadcast_shapes(first, second))
    assert counted.macs == batch * rows * inner * columns
    assert counted.matrix_flops == witnessed_flops(torch.matmul, a, b)


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_the_outside_witness_counts_any_small_net_alike(data):
    layers, width = [], data.draw(st.integers(1, 6)) * 2
    first = width
    for _ in range(data.draw(st.integers(1, 4))):
        kind, wider = data.draw(st.sampled_from([*LAYERS])), data.draw(st.sampled_from([2, 6]))
        layers.append(LAYERS[kind](width, wider))
        width = wider if kind == "linear" else width
    net = torch.nn.Sequential(*layers).to("meta").train(False)
    x = meta(data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5)), first)
    for alike in (None, by_path):
        counted = total(trace_of(net, x, alike=alike))
        assert counted.matrix_flops == witnessed_flops(net, x)


@settings(max_examples=15, deadline=None)
@given(
    groups=st.integers(1, 3),
    channels=st.integers(1, 3),
    filters=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
    transposed=st.booleans(),
    dims=st.integers(1, 3),
)
def test_the_outside_witness_counts_any_convolution_alike(
    groups, channels, filters, kernel, stride, dilation, bias, transposed, dims
):
    name = f"Conv{'Transpose' if transposed else ''}{dims}d"
    net = getattr(torch.nn, name)(
        groups * channels,
        groups * filters,
        kernel,
        stride=stride,
        dilation=dilation,
        groups=groups,
        bias=bias,
    ).to("meta")
    x = meta(2, groups * channels, *[7] * dims)
    assert total(trace_of(net, x)).matrix_flops == witnessed_flops(net, x)
