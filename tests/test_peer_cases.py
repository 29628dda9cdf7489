"""The cases by which fvcore and PyTorch test their own flop counters, put to this one.

Shapes and figures are theirs, by the name of the test that states them; the code is not. fvcore's
are of its main branch of February 2026 (`tests/test_flop_count.py`, `test_activation_count.py`,
`test_jit_model_analysis.py` and `test_print_model_statistics.py`), PyTorch's of its main branch of
2026 (`test/test_flop_counter.py`). fvcore states multiply-accumulates, PyTorch FLOPs of matrix
products. Where this counter says something else by choice, both figures stand here, and the choice
in docs/reading.md, "Differences from fvcore's and PyTorch's own cases".
"""

import importlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from fvcore.nn.flop_count import _DEFAULT_SUPPORTED_OPS
from torch import nn
from torch.utils.flop_counter import flop_registry
from tracing import Calls, Net, chain, meta, trace_of

from dsocr_analyze import errors, kernels
from dsocr_analyze.trace.operators import RULES

PAGE = Path(__file__).parents[1] / "docs" / "reading.md"
HEADING = "## Differences from fvcore's and PyTorch's own cases"

HALF = torch.float16
FP8 = torch.float8_e4m3fn


class Figure(NamedTuple):
    """One figure that a case states."""

    stated: int
    run: nn.Module | Callable[..., Any]
    inputs: tuple[Any, ...]
    of: str = "macs"
    """A count of `Work`."""
    at: str = ""
    """Path of the module that it is of, with all below it."""
    operator: str = ""
    """Name of the operator that it is of; all where it is left out."""
    choice: tuple[str, int | Literal["refused"]] | None = None
    """The row of the page that says why this counter says something else, and what it says."""


def on_meta(module: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    """An instance without values."""
    with torch.device("meta"):
        return module(*args, **kwargs)


def of_modules(figures: dict[str, int], run: nn.Module, inputs: Any, of="macs") -> list[Figure]:
    """A figure a path."""
    return [Figure(stated, run, inputs, of, at=path) for path, stated in figures.items()]


# --- networks --------------------------------------------------------------------------------


def in_turn(**children: nn.Module) -> nn.Module:
    """Calls its named children one after the other."""
    return Net(chain(*children), **children)


def two_levels() -> nn.Module:
    """conv, fc, then a submodule with a conv and an fc of its own."""
    return Net(
        lambda self, x: self.submod(self.fc(self.conv(x).flatten(1))) ** 2,
        conv=nn.Conv1d(4, 4, 3, padding=1),
        fc=nn.Linear(20, 10),
        submod=Net(
            lambda self, x: 3 * self.fc(self.conv(x.reshape(-1, 2, 5)).flatten(1)) + 1,
            conv=nn.Conv1d(2, 2, 1),
            fc=nn.Linear(10, 10),
        ),
    )


def unused() -> nn.Module:
    return Net(
        lambda self, x: self.fc2(F.relu(self.fc1(x))),
        fc1=nn.Linear(10, 10),
        fc2=nn.Linear(10, 1),
        unused=nn.Linear(20, 20),
    )


def repeated() -> nn.Module:
    """Three calls of fc1, two of fc2."""
    fc1, fc2 = nn.Linear(10, 10), nn.Linear(10, 10)
    return Net(chain(*["fc1"] * 3, *["fc2"] * 2), fc1=fc1, fc2=fc2)


def other_method() -> nn.Module:
    """Its submodule is called by another method than forward."""
    inner = in_turn(fc=nn.Linear(10, 1))
    return Net(
        lambda self, x: inner._of_self(inner, self.fc(x)), submod=inner, fc=nn.Linear(10, 10)
    )


def shared() -> nn.Module:
    """Two submodules share one of their own, and one module has two names."""
    inner, twice_named = nn.Linear(10, 10), nn.Linear(10, 1)

    def forward(self, x):
        x = self.submod1(x) + self.submod2(x)
        return self.multiname1(x) + self.multiname2(x)

    parts = {"submod1": in_turn(submod=inner), "submod2": in_turn(submod=inner)}
    return Net(forward, **parts, multiname1=twice_named, multiname2=twice_named)


def recursive() -> nn.Module:
    """Calls itself three times, then its child."""
    return Net(
        lambda self, x, left=3: self(x, left - 1) if left else self.fc(x), fc=nn.Linear(10, 1)
    )


def parallel(net: nn.Module) -> nn.Module:
    """Wrapped in `DataParallel`, which runs it in one place whatever GPUs there are."""
    wrapped = nn.DataParallel(net)
    wrapped.device_ids = []
    return wrapped.to("meta")


def residual(before: int, after: int, stride: int = 1) -> nn.Module:
    conv = partial(nn.Conv2d, bias=False)
    shortcut = [conv(before, after, 1, stride), nn.BatchNorm2d(after)] if stride > 1 else []
    return Net(
        lambda self, x: F.relu(self.inner(x) + self.shortcut(x)),
        inner=nn.Sequential(
            conv(before, after, 3, stride, 1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            conv(after, after, 3, 1, 1),
            nn.BatchNorm2d(after),
        ),
        shortcut=nn.Sequential(*shortcut),
    )


def resnet18() -> nn.Module:
    """The network of He et al. 2015, table 1."""
    return in_turn(
        stem=nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ),
        layer1=nn.Sequential(residual(64, 64), residual(64, 64)),
        layer2=nn.Sequential(residual(64, 128, 2), residual(128, 128)),
        layer3=nn.Sequential(residual(128, 256, 2), residual(256, 256)),
        layer4=nn.Sequential(residual(256, 512, 2), residual(512, 512)),
        mean=Net(lambda self, x: x.mean((2, 3))),
        fc=nn.Linear(512, 1000),
    )


def squared(x):
    return torch.mm(x, x)


def squared_in_a_dictionary(self, x):
    return {"a": squared(x["a"].relu_())}


class Squared(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: squared(x))


# --- fvcore ----------------------------------------------------------------------------------

THREE = in_turn(
    conv=nn.Conv2d(2, 5, 1, 1),
    pool=nn.AdaptiveAvgPool2d((1, 1)),
    flatten=nn.Flatten(),
    linear1=nn.Linear(5, 3),
    linear2=nn.Linear(3, 1),
).to("meta")
THREE_INPUTS = (meta(4, 2, 10, 10),)

NESTED = on_meta(two_levels)
NESTED_INPUTS = (meta(1, 4, 5),)
NESTED_FIGURES = {
    "": 240 + 200 + 120,
    "conv": 5 * 3 * 4 * 4,
    "fc": 20 * 10,
    "submod": 120,
    "submod.conv": 5 * 2 * 2,
    "submod.fc": 10 * 10,
}

SMALL_CONVOLUTIONS = in_turn(
    conv1=nn.Conv2d(3, 8, 1, 1), conv2=nn.Conv2d(8, 4, 1, 2), conv3=nn.Conv2d(4, 2, 1, 2)
).to("meta")
SMALL_FIGURES = {
    "": 8192 + 1024 + 128,
    "conv1": 8 * 32 * 32,
    "conv2": 4 * 16 * 16,
    "conv3": 2 * 8 * 8,
}

BRANCHED = in_turn(
    a2=in_turn(b1=in_turn(c2=nn.Linear(10, 10), c1=nn.Linear(10, 10))),
    a1=in_turn(b1=in_turn(c1=in_turn(d2=nn.ReLU(), d1=nn.Linear(10, 10)))),
).to("meta")

ROW = (meta(1, 10),)


def batch_norm(*given: bool, training: bool = False) -> Callable[..., Any]:
    """Statistics always; weight and bias as given."""
    weights = [meta(2) if is_given else None for is_given in given]
    return lambda x: F.batch_norm(x, meta(2), meta(2), *weights, training)


FVCORE: dict[str, list[Figure]] = {
    "flop_count test_nn": [Figure(5 * 8 * 4, on_meta(nn.Linear, 8, 4), (meta(5, 8),))],
    "flop_count test_skip_ops": [
        Figure(
            0,
            nn.Sequential(on_meta(nn.Linear, 5, 4), nn.Sigmoid()),
            (meta(10, 5),),
            "vector_flops",
            operator="sigmoid",
            choice=("sigmoid", 4 * 10 * 4),
        )
    ],
    "flop_count test_linear": [
        Figure(5 * 10 * 20, on_meta(nn.Linear, 10, 20), (meta(5, 10),)),
        Figure(5 * 5 * 10 * 20, on_meta(nn.Linear, 10, 20), (meta(5, 5, 10),)),
    ],
    "flop_count test_conv": [
        Figure(5 * 10 * 3 * 9 * 15**2, on_meta(nn.Conv2d, 10, 3, 3, 1, 1), (meta(5, 10, 15, 15),)),
        Figure(2 * 10 * 6 * 9 * 10**2, on_meta(nn.Conv2d, 10, 6, 3, 2, 1), (meta(2, 10, 20, 20),)),
        Figure(
            5 * 16 * 8 * 25 * 15**2 // 4,
            on_meta(nn.Conv2d, 16, 8, 5, 1, 2, groups=4),
            (meta(5, 16, 15, 15),),
        ),
        Figure(
            5 * 16 * 8 * 9 * 15**2 // 8,
            on_meta(nn.Conv2d, 16, 8, 3, 1, 1, groups=8),
            (meta(5, 16, 15, 15),),
        ),
        Figure(5 * 10 * 3 * 3 * 15, on_meta(nn.Conv1d, 10, 3, 3, 1, 1), (meta(5, 10, 15),)),
        Figure(
            5 * 10 * 3 * 27 * 15**3, on_meta(nn.Conv3d, 10, 3, 3, 1, 1), (meta(5, 10, 15, 15, 15),)
        ),
        # Transposed, the places are those of the input, whatever the stride.
        *(
            Figure(
                5 * 10 * 3 * 9 * 15**2,
                on_meta(nn.ConvTranspose2d, 10, 3, 3, stride, 1, output_padding=added),
                (meta(5, 10, 15, 15),),
            )
            for stride, added in [(1, 0), (2, 0), (3, 2)]
        ),
    ],
    "flop_count test_matmul": [Figure(20 * 10 * 100, torch.matmul, (meta(20, 10), meta(10, 100)))],
    "flop_count test_matmul_broadcast": [
        Figure(20_000, torch.matmul, (meta(1, 20, 10), meta(1, 10, 100))),
        Figure(4 * 20_000, torch.matmul, (meta(2, 2, 20, 10), meta(2, 2, 10, 100))),
        Figure(20_000, torch.matmul, (meta(1, 20, 10), meta(10, 100))),
        Figure(2 * 20_000, torch.matmul, (meta(2, 20, 10), meta(10, 100))),
    ],
    "flop_count test_bmm": [Figure(2 * 2 * 12 * 5, torch.bmm, (meta(2, 5, 2), meta(2, 2, 12)))],
    "flop_count test_einsum": [
        Figure(2 * 12 * 5, torch.einsum, ("nct,ncp->ntp", meta(1, 5, 2), meta(1, 5, 12))),
        Figure(2 * 6 * 5, torch.einsum, ("ntg,ncg->nct", meta(1, 2, 6), meta(1, 5, 6))),
    ],
    "flop_count test_batchnorm": [
        Figure(
            10 * 10,
            on_meta(nn.BatchNorm1d, 10, affine=False).eval(),
            (meta(10, 10),),
            "vector_flops",
        ),
        # In training: of the layer, its kernel alone; it also counts its batches, an addition.
        Figure(
            4 * 10 * 10 * 5**2,
            on_meta(nn.BatchNorm2d, 10, affine=False),
            (meta(10, 10, 5, 5),),
            "vector_flops",
            operator="native_batch_norm",
        ),
        Figure(
            4 * 10 * 10 * 5**3,
            on_meta(nn.BatchNorm3d, 10, affine=False),
            (meta(10, 10, 5, 5, 5),),
            "vector_flops",
            operator="native_batch_norm",
        ),
    ],
    "flop_count test_threeNet": [
        Figure(4 * 5 * 2 * 10**2, THREE, THREE_INPUTS, operator="conv2d"),
        Figure(4 * 5 * 3 + 4 * 3, THREE, THREE_INPUTS, operator="linear"),
        Figure(4 * 5 * 10**2, THREE, THREE_INPUTS, "vector_flops", at="pool"),
    ],
    "flop_count test_flop_counter_class": [
        *of_modules({"conv": 4000, "linear1": 60, "linear2": 12}, THREE, THREE_INPUTS),
        Figure(4000 // 2, THREE, THREE_INPUTS, "vector_flops", at="pool"),
        # Two FLOPs a multiply-accumulate, the pool, and an addition an output for the biases.
        Figure(
            4000 + 60 + 12 + 2000,
            THREE,
            THREE_INPUTS,
            "flops",
            choice=("a whole network", 2 * (4000 + 60 + 12) + 2000 + 4 * (5 * 10**2 + 3 + 1)),
        ),
    ],
    "flop_count test_scripted_function": [
        Figure(
            0,
            lambda x: torch.jit.script(squared)(x * x),
            (meta(5, 5),),
            choice=("a scripted function", 5**3),
        )
    ],
    "flop_count handles test_batch_norm": [
        Figure(32, batch_norm(True, True), (meta(2, 2, 2, 2),), "vector_flops"),
        Figure(16, batch_norm(False, False), (meta(2, 2, 2, 2),), "vector_flops"),
        Figure(80, batch_norm(True, True, training=True), (meta(2, 2, 2, 2),), "vector_flops"),
    ],
    "flop_count handles test_group_norm": [
        Figure(80, F.group_norm, (meta(2, 2, 2, 2), 2, meta(2), meta(2)), "vector_flops"),
        Figure(64, F.group_norm, (meta(2, 2, 2, 2), 2), "vector_flops"),
    ],
    "flop_count handles test_upsample": [
        Figure(
            4 * 2 * 2 * 4 * 4,
            lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
            (meta(2, 2, 2, 2),),
            "vector_flops",
            choice=("bilinear upsampling", 2 * 4 * 2 * 2 * 4 * 4),
        )
    ],
    "flop_count handles test_complicated_einsum": [
        Figure(72, torch.einsum, ("nc,nchw->hw", meta(3, 4), meta(3, 4, 2, 3)))
    ],
    "flop_count handles test_torch_mm": [
        Figure(60, torch.mm, (meta(3, 4), meta(4, 5))),
        Figure(60, torch.matmul, (meta(3, 4), meta(4, 5))),
    ],
    "activation_count test_conv2d": [
        Figure(8192 + 1024 + 128, SMALL_CONVOLUTIONS, (meta(1, 3, 32, 32),), "activations")
    ],
    "activation_count test_linear": [
        Figure(20, on_meta(nn.Linear, 10, 20), (meta(1, 10),), "activations")
    ],
    "activation_count test_activation_count_class": [
        Figure(20, on_meta(nn.Linear, 10, 20), (meta(1, 10),), "activations"),
        *of_modules(SMALL_FIGURES, SMALL_CONVOLUTIONS, (meta(1, 3, 32, 32),), "activations"),
    ],
    "jit_model_analysis test_total": of_modules(NESTED_FIGURES, NESTED, NESTED_INPUTS),
    "jit_model_analysis test_by_module": of_modules(NESTED_FIGURES, NESTED, NESTED_INPUTS),
    "jit_model_analysis test_by_operator": [
        Figure(240 + 20, NESTED, NESTED_INPUTS, operator="conv1d"),
        Figure(200 + 100, NESTED, NESTED_INPUTS, operator="linear"),
    ],
    "jit_model_analysis test_by_module_and_operator": [
        Figure(20, NESTED, NESTED_INPUTS, at="submod", operator="conv1d"),
        Figure(100, NESTED, NESTED_INPUTS, at="submod", operator="linear"),
        Figure(240, NESTED, NESTED_INPUTS, at="conv", operator="conv1d"),
        Figure(0, NESTED, NESTED_INPUTS, at="conv", operator="linear"),
        Figure(200, NESTED, NESTED_INPUTS, at="fc", operator="linear"),
    ],
    "jit_model_analysis test_unused_module": of_modules(
        {"unused": 0, "": 10 * 10 + 10}, on_meta(unused), ROW
    ),
    "jit_model_analysis test_repeated_module": of_modules(
        {"fc1": 3 * 100, "fc2": 2 * 100, "": 500}, on_meta(repeated), ROW
    ),
    "jit_model_analysis test_non_forward_func_call": [
        *of_modules({"submod": 10, "submod.fc": 10, "": 110}, on_meta(other_method), ROW),
        # That was fvcore's mode "owner"; this is its mode "caller".
        Figure(
            0,
            on_meta(other_method),
            ROW,
            at="submod",
            choice=("a module called by another method", 10),
        ),
    ],
    "jit_model_analysis test_shared_module": [
        *of_modules(
            {"": 220, "submod1": 100, "submod2": 100, "multiname1": 20}, on_meta(shared), ROW
        ),
        Figure(
            200,
            on_meta(shared),
            ROW,
            at="submod1.submod",
            choice=("a module that two others share", 100),
        ),
    ],
    "jit_model_analysis test_recursive_scope": of_modules(
        {"": 10, "fc": 10}, on_meta(recursive), ROW
    ),
    "jit_model_analysis test_data_parallel": of_modules(
        {
            "": NESTED_FIGURES[""],
            **{f"module.{path}".rstrip("."): stated for path, stated in NESTED_FIGURES.items()},
        },
        parallel(two_levels()),
        NESTED_INPUTS,
    ),
    "jit_model_analysis test_data_parallel_root_scope": [
        Figure(1000, parallel(nn.Linear(10, 10)), (meta(10, 10),))
    ],
    "jit_model_analysis test_unsupported_ops": [
        # A product, an addition and a square of ten elements each.
        Figure(
            0,
            NESTED,
            NESTED_INPUTS,
            "vector_flops",
            operator="mul add pow",
            choice=("arithmetic element by element", 3 * 10),
        )
    ],
    "jit_model_analysis test_copy": [
        Figure(500, on_meta(repeated), ROW),
        Figure(5 * 110, on_meta(other_method), (meta(5, 10),)),
    ],
    "print_model_statistics test_flop_count_table": [
        *of_modules({"a1.b1": 100, "a2.b1": 200, "a2.b1.c1": 100, "": 300}, BRANCHED, ROW),
        *of_modules({"a1.b1": 10, "a2.b1": 20, "": 30}, BRANCHED, ROW, "activations"),
    ],
    "print_model_statistics test_flop_count_str": [
        *of_modules({"a1": 100, "a1.b1.c1.d1": 100, "a2": 200, "": 300}, BRANCHED, ROW),
        Figure(30, BRANCHED, ROW, "activations"),
    ],
}

# --- PyTorch ---------------------------------------------------------------------------------

VARIETY = nn.Linear(9, 10, device="meta")
RESNET = on_meta(resnet18)
PICTURE = (meta(1, 3, 224, 224),)


def variety() -> Any:
    return [
        torch.mm(meta(4, 5), meta(5, 6)),
        torch.addmm(meta(4, 6), meta(4, 5), meta(5, 6), beta=0.5, alpha=0.5),
        torch.matmul(meta(5, 6), meta(6, 7)),
        torch.einsum("ab,bc->ac", meta(6, 7), meta(7, 8)),
        VARIETY(meta(8, 9)),
    ]


def three_addmm() -> Any:
    return [torch.addmm(meta(*added), meta(4, 5), meta(5, 6)) for added in ((4, 6), (4, 1), (6,))]


def two_products(a) -> Any:
    return torch.bmm(torch.mm(a, meta(5, 6)).unsqueeze(0).expand(7, 4, 6), meta(7, 6, 7)).sum()


def twice_by_itself(a) -> Any:
    return a.mm(a.t()).sum(), a.mm(a.t()).sum()


causal = partial(F.scaled_dot_product_attention, is_causal=True)
grouped = partial(causal, enable_gqa=True)


def by_kernel(name: str, *without_mask: Any) -> Callable[..., Any]:
    """Attention by the operator of one kind of kernel, causal."""
    operator = getattr(torch.ops.aten, name)
    return lambda q, k, v: operator(q, k, v, *without_mask, 0.0, True)


ATTENTION = {
    "any": causal,
    "math": by_kernel("_scaled_dot_product_attention_math", None),
    "flash": by_kernel("_scaled_dot_product_flash_attention"),
    "efficient": by_kernel("_scaled_dot_product_efficient_attention", None, False),
    "cudnn": by_kernel("_scaled_dot_product_cudnn_attention", None, False),
}


def heads(batch: int, count: int, tokens: int, size: int = 64) -> torch.Tensor:
    return meta(batch, count, tokens, size, dtype=HALF)


def flash_by_name(x, begins, longest) -> Any:
    run = torch.ops.aten._flash_attention_forward
    return run(x, x, x, begins, begins, longest, longest, 0.0, False, False)


def varlen(x, begins) -> Any:
    attention = pytest.importorskip("torch.nn.attention.varlen", reason="this torch has none")
    return attention.varlen_attn(x, x, x, begins, begins, 128, 128)


def flex(q, k, v) -> Any:
    return importlib.import_module("torch.nn.attention.flex_attention").flex_attention(q, k, v)


def nested() -> torch.Tensor:
    """Four sequences of 32, 64, 96 and 128 tokens, eight heads of 64."""
    sequences = [torch.zeros(length, 8, 64) for length in (32, 64, 96, 128)]
    return torch.nested.nested_tensor(sequences, layout=torch.jagged).transpose(1, 2)


# What a case states of a pass forth and back is cut to the pass forth, as its comment says.
PYTORCH: dict[str, list[Figure]] = {
    "test_flop_counter_variety": [
        Figure(3012, variety, (), "matrix_flops"),
        # An addition an output of addmm and of the linear layer, which has a bias.
        Figure(3012, variety, (), "flops", choice=("what is added", 3012 + 4 * 6 + 8 * 10)),
    ],
    "test_op": [
        Figure(240, torch.mm, (meta(4, 5), meta(5, 6)), "matrix_flops"),
        Figure(720, torch.bmm, (meta(3, 4, 5), meta(3, 5, 6)), "matrix_flops"),
        Figure(720, three_addmm, (), "matrix_flops"),
        Figure(720, torch.baddbmm, (meta(3, 4, 6), meta(3, 4, 5), meta(3, 5, 6)), "matrix_flops"),
        Figure(
            28800,
            lambda x, w: torch.conv2d(x, w, padding=1),
            (meta(2, 3, 6, 6), meta(6, 3, 4, 4)),
            "matrix_flops",
        ),
        Figure(
            1440,
            lambda x, w: torch.conv1d(x, w, padding=1),
            (meta(2, 3, 6), meta(6, 3, 4)),
            "matrix_flops",
        ),
    ],
    # Back, the gradient of the one factor that has one costs as much.
    "test_backward": [Figure(5184 // 2, two_products, (meta(4, 5),), "matrix_flops")],
    # Back, both factors have one.
    "test_backward_reset": [Figure(960 // 3, twice_by_itself, (meta(4, 5),), "matrix_flops")],
    "test_torchscript": [
        Figure(250, squared, (meta(5, 5),), "matrix_flops"),
        Figure(250, lambda x: torch.jit.script(squared)(x), (meta(5, 5),), "matrix_flops"),
    ],
    # Back, its own code multiplies twice.
    "test_autograd_op": [Figure(750 // 3, Squared.apply, (meta(5, 5),), "matrix_flops")],
    "test_convs": [
        Figure(32, F.conv_transpose2d, (meta(1, 1, 2, 2), meta(1, 1, 2, 2)), "matrix_flops"),
        Figure(8, F.conv2d, (meta(1, 1, 2, 2), meta(1, 1, 1, 1)), "matrix_flops"),
    ],
    # Back, the picture and the weights have a gradient.
    "test_module": [
        Figure(10_884_440_064 // 3, RESNET, PICTURE, "matrix_flops"),
        Figure(924_844_032, RESNET, PICTURE, "matrix_flops", at="layer1", operator="conv2d"),
    ],
    # Fifty passes; back, the weight alone has a gradient.
    "test_conv_transpose_loop": [
        Figure(
            1_536_000 // 50 // 2,
            on_meta(nn.ConvTranspose2d, 4, 8, (2, 2), stride=2),
            (meta(1, 4, 30, 2),),
            "matrix_flops",
        )
    ],
    "test_noop": [
        Figure(0, torch.cos, (meta(4, 5),), "matrix_flops"),
        Figure(0, torch.cos, (meta(4, 5),), "flops", choice=("cosine", 4 * 5)),
    ],
    "test_sdpa": [
        *(
            Figure(134_217_728, run, (heads(4, 8, 128),) * 3, "matrix_flops")
            for run in ATTENTION.values()
        ),
        # PyTorch's own case leaves out flash: that kernel takes no more keys than queries.
        *(
            Figure(
                268_435_456,
                run,
                (heads(4, 8, 128), heads(4, 8, 256), heads(4, 8, 256)),
                "matrix_flops",
            )
            for kind, run in ATTENTION.items()
            if kind != "flash"
        ),
    ],
    # It states that grouped heads cost what as many heads of their own cost: two products.
    "test_sdpa_flop_count_gqa": [
        Figure(2 * 2 * 2 * 32 * 128 * 128 * 64, run, (q, k, k), "matrix_flops")
        for run, q, k in [
            (causal, heads(2, 32, 128), heads(2, 32, 128)),
            (grouped, heads(2, 32, 128), heads(2, 8, 128)),
        ]
    ],
    "test_sdpa_gqa": [
        Figure(
            2 * 2 * 2 * 32 * 128 * 128 * 64,
            grouped,
            (heads(2, 32, 128), heads(2, 8, 128), heads(2, 8, 128)),
            "matrix_flops",
        )
    ],
    # It states that a nested tensor costs what its sequences cost one by one.
    "test_sdpa_nested_tensor": [
        Figure(
            2 * 2 * 8 * 64 * sum(length**2 for length in (32, 64, 96, 128)),
            lambda: causal(nested(), nested(), nested()),
            (),
            "matrix_flops",
            choice=("nested tensors", "refused"),
        )
    ],
    # It states that packed sequences of unknown lengths cost what four of the longest would.
    "test_nested_attention_fake_tensors": [
        Figure(
            2 * 2 * 4 * 4 * 40 * 40 * 16,
            flash_by_name,
            (meta(123, 4, 16, dtype=HALF), meta(5, dtype=torch.int32), 40),
            "matrix_flops",
        ),
        # Of the same size, not packed: 4 sequences of 4 heads, 40 tokens of 16.
        Figure(
            2 * 2 * 4 * 4 * 40 * 40 * 16,
            flash_by_name,
            (meta(4, 40, 4, 16, dtype=HALF).transpose(1, 2), None, 40),
            "matrix_flops",
            choice=("flash attention by its kernel's name", 2 * 2 * 4 * 40 * 4 * 4 * 16),
        ),
    ],
    # Two sequences, of 128 and 64 tokens, which count as two of 128.
    "test_varlen_attn": [
        Figure(
            41_943_040,
            varlen,
            (meta(128 + 64, 8, 64, dtype=HALF), meta(3, dtype=torch.int32)),
            "matrix_flops",
            choice=("packed sequences", 2 * 2 * 2 * 8 * 128 * 128 * 64),
        )
    ],
    "test_flex_attention_flop_counter_runtime": [
        Figure(
            8192,
            flex,
            (meta(1, 1, 16, 8, dtype=HALF),) * 3,
            "matrix_flops",
            choice=("`flex_attention`", "refused"),
        )
    ],
    "test_addmm_out": [
        Figure(
            2000,
            lambda x: torch.mm(x, x, out=torch.zeros(10, 10, device="meta")),
            (meta(10, 10),),
            "matrix_flops",
        )
    ],
    # Back, both factors have a gradient.
    "test_pytrees": [
        Figure(
            12000 // 3,
            nn.Sequential(*[Net(squared_in_a_dictionary)] * 2),
            ({"a": meta(10, 10)},),
            "matrix_flops",
        ),
        Figure(6000 // 3, lambda x: (squared(x),), (meta(10, 10),), "matrix_flops"),
    ],
    "test_inference_mode": [
        Figure(
            924_844_032,
            Net(torch.inference_mode()(lambda self, x: self.net(x)), net=RESNET),
            PICTURE,
            "matrix_flops",
            at="net.layer1",
            operator="conv2d",
        )
    ],
    "test_scaled_mm": [
        Figure(
            860_160,
            lambda a, b, scale: torch._scaled_mm(a, b.t(), scale, scale, out_dtype=torch.bfloat16),
            (meta(48, 80, dtype=FP8), meta(112, 80, dtype=FP8), meta()),
            "matrix_flops",
        )
    ],
}


# Their other cases have no figure here, because they are of
# - a formula that the user gives, where this counter takes none: fvcore's test_customized_ops,
#   test_autograd_function, test_supported_ops and test_changing_handles; PyTorch's test_custom,
#   test_custom_op, test_registered_hop and test_flop_counter_custom_triton_*;
# - warnings of fvcore's own tracer: test_disable_warnings, test_skip_uncalled_containers_warnings;
# - the format of fvcore's own tables: test_pretty_statistics, test_group_by_module,
#   test_indicate_uncalled_modules, test_remove_zero_statistics, test_fill_missing_statistics,
#   test_model_stats_str, test_model_stats_table and test_flop_count_empty;
# - values of gradients: test_conv_backwards_as_decomposition;
# - hooks and an argument of PyTorch's own counter: test_hook_registration and test_warning;
# - steps of the compiler that plan with flex_attention and count nothing:
#   test_flex_attention_flop_registration, test_flex_attention_roofline_estimate,
#   test_sparsity_hint_annotate_propagates and test_sparsity_hint_affects_flex_attention_flops.

# --- the tests -------------------------------------------------------------------------------

FIGURES = [
    pytest.param(figure, id=f"{project} {case} {number}")
    for project, cases in (("fvcore", FVCORE), ("pytorch", PYTORCH))
    for case, figures in cases.items()
    for number, figure in enumerate(figures, 1)
]


def counted(figure: Figure) -> int:
    """This counter's figure; every operator that ran has a rule."""
    net = figure.run if isinstance(figure.run, nn.Module) else Calls(figure.run)
    trace = trace_of(net, *figure.inputs)
    assert not trace.unknown
    inside, operators = f"{figure.at}." if figure.at else "", figure.operator.split()
    work = kernels.total_work(
        kernel.total
        for kernel in trace.kernels
        if f"{kernel.path}.".startswith(inside) and (not operators or kernel.operator in operators)
    )
    return getattr(work, figure.of)


@pytest.mark.parametrize("figure", FIGURES)
def test_a_case_counts_as_stated_or_as_the_page_says(figure):
    row, ours = figure.choice or ("", figure.stated)
    if ours == "refused":
        with pytest.raises(errors.UncountableError, match=f"{row.strip('`')}.*not counted"):
            counted(figure)
    else:
        assert (counted(figure), ours != figure.stated) == (ours, figure.choice is not None)


@pytest.mark.parametrize(
    ("net", "uncalled"),
    [
        (unused, {"unused"}),
        (repeated, set()),
        (other_method, {"submod"}),
        (shared, set()),
        (recursive, set()),
    ],
)
def test_modules_that_are_never_called_are_those_that_fvcore_finds(net, uncalled):
    built = on_meta(net)
    calls = trace_of(built, *ROW).calls
    assert {path for path, _ in built.named_modules()} - set(calls) == uncalled


def rows_of_the_page() -> dict[str, tuple[str, str]]:
    """Their figure and ours in each row of the page's table, by its first column."""
    section = PAGE.read_text("utf-8").split(HEADING)[1].split("\n## ")[0]
    rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in section.splitlines() if line[:1] == "|"]
    return {row[0]: (row[1], row[2]) for row in rows[2:]}


def test_the_page_has_every_choice_with_both_figures_and_no_other():
    chosen = [
        (figure.choice[0], f"{project}: {figure.stated:,}", figure.choice[1])
        for project, cases in (("fvcore", FVCORE), ("PyTorch", PYTORCH))
        for figures in cases.values()
        for figure in figures
        if figure.choice is not None
    ]
    rows = {
        row: (stated, ours if isinstance(ours, str) else f"{ours:,}")
        for row, stated, ours in chosen
    }
    assert rows_of_the_page() == rows
    assert len(rows) == len(chosen)


# --- the operators that they count -----------------------------------------------------------

TAKEN_APART = {
    "adaptive_avg_pool2d": "_adaptive_avg_pool2d",
    "batch_norm": "native_batch_norm",
    "grid_sampler": "grid_sampler_2d",
    "group_norm": "native_group_norm",
    "instance_norm": "native_batch_norm",
    "layer_norm": "native_layer_norm",
}
"""Operators that arrive as others, which have the rule."""

WITHOUT_A_RULE = {
    "cudnn_convolution": "what a device runs for a convolution, which is recorded before as such",
    "convolution_overrideable": "the same",
    "_slow_conv2d_forward": "the same",
    "torch_attn::_varlen_attn_out": "unknown in the ledger; varlen_attn is counted",
    "flex_attention": "refused by name",
}


def test_every_operator_that_fvcore_counts_has_a_rule():
    names = {name.removeprefix("aten::") for name in _DEFAULT_SUPPORTED_OPS}
    assert {TAKEN_APART.get(name, name) for name in names} <= RULES.keys()


def test_every_operator_that_pytorch_counts_has_a_rule_or_a_reason():
    names = {
        getattr(operator, "_qualified_op_name", operator.__name__).removeprefix("aten::")
        for operator in flop_registry
    }
    forward = {name for name in names if not name.endswith("_backward")}
    assert forward <= RULES.keys() | WITHOUT_A_RULE.keys()
    assert not RULES.keys() & WITHOUT_A_RULE.keys()
