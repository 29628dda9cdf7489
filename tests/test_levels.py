"""The level of memory at every tensor, and the copies that an operator makes on its way."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from tracing import Calls, LevelRecorder, Net, by_path, meta, trace_of

from dsocr_analyze.architectures.deepseek_ocr.reference import (
    configuration_deepseek_v2,
    modeling_deepseekv2,
)
from dsocr_analyze.model import forward, loading
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.recorder import Recorder

META = torch.device("meta")
HALF, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

# --- levels, by hand -------------------------------------------------------------------------

# Three tokens of width 8, two heads of size 4, an MLP of width 12.
ROW = 4 * 3  # a number per token in fp32
X = 2 * 3 * 8  # features in bf16; so are queries, keys and values
WIDE = 2 * X  # in fp32
TABLE = 2 * 3 * 4  # cosines or sines in bf16
SCORES = 2 * 2 * 3 * 3  # in bf16
INNER = 2 * 3 * 12


def norm_levels(path: str, held: int) -> list[tuple[str, str, int]]:
    """An RMS norm beside tensors of `held` bytes; its output remains."""
    return [
        (path, "_to_copy", held + WIDE),
        (path, "pow", held + 2 * WIDE),
        (path, "mean", held + 2 * WIDE + ROW),
        (path, "add", held + WIDE + 2 * ROW),
        (path, "rsqrt", held + WIDE + 3 * ROW),
        (path, "mul", held + WIDE + 2 * ROW + WIDE),  # the variance keeps its name
        (path, "_to_copy", held + WIDE + ROW + X),
        (path, "mul", held + WIDE + ROW + 2 * X),
    ]


def rotated(held: int) -> list[tuple[str, str, int]]:
    """`x cos + half(x) sin` of queries or keys; the sum remains."""
    return [
        ("self_attn", "mul", held + X),
        ("self_attn", "neg", held + X + X // 2),
        ("self_attn", "cat", held + X + X // 2 + X),
        ("self_attn", "mul", held + 3 * X),
        ("self_attn", "add", held + 3 * X),
    ]


def traced(model: nn.Module, *inputs, alike=None, **options) -> Trace:
    with forward.running(META), LevelRecorder(model, alike) as recorder:
        trace = recorder.begin()
        kept = model(*inputs, **options)
    del kept
    return trace


@pytest.mark.parametrize("alike", [None, by_path])
def test_of_a_decoder_layer(alike):
    config = configuration_deepseek_v2.DeepseekV2Config(
        hidden_size=8, num_attention_heads=2, num_key_value_heads=2, intermediate_size=12,
        n_routed_experts=None, use_mla=False, attn_implementation="eager",
    )  # fmt: skip
    with loading.building(META, torch.bfloat16):
        layer = modeling_deepseekv2.DeepseekV2DecoderLayer(config, 0).eval()
    x, positions = meta(1, 3, 8, dtype=torch.bfloat16), meta(1, 3, dtype=torch.int64)
    rotary, heads = "self_attn.rotary_emb", 4 * X + 2 * TABLE  # the norm, q, k, v and the tables
    attended = heads + SCORES
    assert traced(layer, x, position_ids=positions, alike=alike).levels == [
        *norm_levels("input_layernorm", 0),
        ("self_attn.q_proj", "linear", 2 * X),
        ("self_attn.k_proj", "linear", 3 * X),
        ("self_attn.v_proj", "linear", 4 * X),
        (rotary, "_to_copy", 4 * X + ROW),  # positions
        (rotary, "matmul", 4 * X + ROW + 2 * ROW),  # an angle for each pair of four features
        (rotary, "cat", 4 * X + 3 * ROW + 2 * TABLE),
        (rotary, "cos", 4 * X + 3 * ROW + 4 * TABLE),
        (rotary, "sin", 4 * X + 3 * ROW + 6 * TABLE),
        (rotary, "mul", 4 * X + 3 * ROW + 8 * TABLE),
        (rotary, "mul", 4 * X + 3 * ROW + 8 * TABLE),
        (rotary, "_to_copy", 4 * X + 3 * ROW + 7 * TABLE),
        (rotary, "_to_copy", 4 * X + 3 * ROW + 8 * TABLE),
        *rotated(heads),
        *rotated(heads + X),  # the rotated queries; both names are bound anew at once
        ("self_attn", "matmul", heads + SCORES),
        ("self_attn", "div", heads + 2 * SCORES),
        ("self_attn", "_to_copy", heads + SCORES + 2 * SCORES),
        ("self_attn", "softmax", heads + SCORES + 4 * SCORES),
        ("self_attn", "_to_copy", heads + SCORES + 2 * SCORES + SCORES),
        ("self_attn", "matmul", attended + X),
        ("self_attn", "clone", attended + 2 * X),
        ("self_attn.o_proj", "linear", attended + 2 * X),
        ("", "add", 2 * X),
        *norm_levels("post_attention_layernorm", X),
        ("mlp.gate_proj", "linear", 2 * X + INNER),
        ("mlp.act_fn", "silu", 2 * X + 2 * INNER),
        ("mlp.up_proj", "linear", 2 * X + 2 * INNER),
        ("mlp", "mul", 2 * X + 3 * INNER),
        ("mlp.down_proj", "linear", 3 * X + INNER),
        ("", "add", 3 * X),
    ]


@pytest.mark.parametrize(
    ("model", "inputs", "levels"),
    [
        (nn.LayerNorm(8, device=META), [meta(8, 6).t()],
         [("clone", 192), ("native_layer_norm", 192 + 192), ("native_layer_norm", 192 + 192 + 24),
          ("native_layer_norm", 192 + 192 + 48)]),
        (Calls(lambda x: (x + 1).mul_(2).view(3, 2)), [meta(2, 3)], [("add", 24)]),
        (Calls(lambda q, r: torch.einsum("bhwc,hkc->bhwk", q, r)),
         [meta(3, 4, 4, 2), meta(4, 4, 2)], [("clone", 384), ("einsum", 384 + 4 * 192)]),
        (Calls(lambda x: (x + 1).resize_(10)), [meta(4)], [("add", 16), ("grow", 16 + 40)]),
    ],
    ids=["a copied operand and each output", "views and writes in place", "a copy on its way",
         "memory that grows is alive twice"],
)  # fmt: skip
def test_what_has_an_entry_of_its_own(model, inputs, levels):
    found = traced(model, *inputs).levels
    assert [(level.operator, level.nbytes) for level in found] == levels


def test_the_peak_is_the_highest():
    model, x = Calls(lambda x: (x + 1).sum()), meta(2, 3)
    trace = traced(model, x)
    assert trace.peak.nbytes == max(level.nbytes for level in trace.levels) == 28
    assert trace_of(model, x).peak == trace.peak


# --- hidden copies ---------------------------------------------------------------------------


def moved(trace: Trace) -> list[tuple[str, int, int]]:
    """Operator, bytes read and bytes written of every kernel."""
    assert not trace.unknown
    return [(k.operator, k.work.bytes_read, k.work.bytes_written) for k in trace.kernels]


def norm_of(x, weight, bias):
    return F.layer_norm(x, (8,), weight, bias)


CAST = [("_to_copy", 96, 192), ("softmax", 192, 192)]
IN_FP32 = lambda x: F.softmax(x, -1, dtype=FP32)  # noqa: E731 - a row's function
EXPANDED, PRODUCT = ("clone", 1120, 1120), ("matmul", 2240, 1960)  # 2 x 5 heads of 7 x 4
NORM = ("native_layer_norm", 192 + 2 * 32, 192)
COPIES = {
    "softmax, cast before": (IN_FP32, [(6, 8, HALF)], CAST, 192 + 192),
    "torch's": (lambda x: torch.softmax(x, -1, FP32), [(6, 8, HALF)], CAST, None),
    "a tensor's": (lambda x: x.softmax(dim=-1, dtype=FP32), [(6, 8, HALF)], CAST, None),
    "special": (lambda x: torch.special.softmax(x, -1, dtype=FP32), [(6, 8, HALF)], CAST, None),
    "log": (
        lambda x: F.log_softmax(x, -1, dtype=FP32), [(6, 8, HALF)],
        [CAST[0], ("log_softmax", 192, 192)], None),
    "fp16 is read as it is": (IN_FP32, [(6, 8, FP16)], [("softmax", 96, 192)], 192),
    "the same type": (IN_FP32, [(6, 8, FP32)], [("softmax", 192, 192)], None),
    # [B, H, T, D]: the heads behind the tokens.
    "a batch of heads is laid out anew": (
        lambda q, k: q.transpose(1, 2) @ k, [(2, 7, 5, 4, FP32), (2, 5, 4, 7, FP32)],
        [EXPANDED, PRODUCT], 1120 + 1960),
    "one sequence is not": (
        lambda q, k: q.transpose(1, 2) @ k, [(1, 7, 5, 4, FP32), (1, 5, 4, 7, FP32)],
        [("matmul", 1120, 980)], None),
    "a shared factor is read once and written for each": (
        torch.matmul, [(2, 5, 7, 4, FP32), (2, 1, 4, 7, FP32)],
        [("clone", 224, 1120), ("matmul", 1120 + 224, 1960)], None),
    "an einsum copies what it permutes": (
        lambda q, r: torch.einsum("bhwc,hkc->bhwk", q, r), [(3, 4, 4, 2, FP32), (4, 4, 2, FP32)],
        [("clone", 384, 384), ("einsum", 384 + 128, 768)], None),
    # The copy, the result, and fp32 means and deviations of 6 rows.
    "a norm of what lies otherwise": (
        lambda x, *affine: norm_of(x.t(), *affine), [(8, 6, FP32), (8, FP32), (8, FP32)],
        [("clone", 192, 192), NORM], 192 + 192 + 2 * 24),
    "a norm of rows": (norm_of, [(6, 8, FP32), (8, FP32), (8, FP32)], [NORM], None),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "device"),
    [*((name, "meta") for name in COPIES), ("fp16 is read as it is", "cpu"),
     ("a norm of what lies otherwise", "cpu")],
)  # fmt: skip
def test_copies_are_operators_with_bytes_and_memory(name, device):
    function, shapes, expected, peak = COPIES[name]
    inputs = [torch.zeros(shape, dtype=dtype, device=device) for *shape, dtype in shapes]
    trace = trace_of(Calls(function), *inputs)
    assert moved(trace) == expected
    assert trace.peak.nbytes == (trace.peak.nbytes if peak is None else peak)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_memory_where_buffers_were_counts_as_new(device):
    """Tensors made next may get the addresses of ten that forward forgets."""

    def forget(self, x):
        self._buffers.clear()
        return [x.new_zeros(64) for _ in range(10)]

    net = Net(forget)
    for index in range(10):
        net.register_buffer(f"b{index}", torch.zeros(64, device=device))
    assert trace_of(net, torch.zeros(1, device=device)).peak.nbytes == 10 * 4 * 64


# --- autocast --------------------------------------------------------------------------------


def mixed(self, x, region):
    """Functions of every kind that autocast knows."""
    with region:
        self.linear(x)
        y = self.linear(x)
        return y, y @ y.mT, self.norm(y), torch.softmax(y, -1), torch.cat([y, self.norm(y)], -1)


def under_autocast(device: str, *args, **options) -> tuple[Trace, list[torch.dtype]]:
    net = Net(mixed, linear=nn.Linear(8, 16), norm=nn.LayerNorm(16)).to(device)
    with forward.running(torch.device(device)), Recorder(net) as recorder:
        trace = recorder.begin()
        outputs = net(torch.zeros(4, 8, device=device), torch.autocast(*args, **options))
    return trace, [output.dtype for output in outputs]


CASTS = [("_to_copy", 128, 64), ("_to_copy", 512, 256), ("_to_copy", 64, 32)]
LINEAR = ("linear", 64 + 256 + 32, 128)
WIDENED, WIDE_NORM = ("_to_copy", 128, 256), ("native_layer_norm", 256 + 128, 256)


@pytest.mark.parametrize("device_type", ["cuda", "meta"])
def test_autocast_on_meta_casts_as_on_cuda_and_leaves_nothing_behind(device_type):
    trace, dtypes = under_autocast("meta", device_type, dtype=HALF)
    assert dtypes == [HALF, HALF, FP32, FP32, FP32]
    assert moved(trace) == [
        *CASTS, LINEAR, CASTS[0], LINEAR,  # the weights' casts are kept
        ("matmul", 256, 32), WIDENED, WIDE_NORM, WIDENED, ("softmax", 256, 256),
        WIDENED, WIDE_NORM, WIDENED, ("cat", 512, 512),
    ]  # fmt: skip
    [kernel] = trace_of(nn.Linear(8, 16, device="meta"), meta(4, 8)).kernels
    assert (torch.is_autocast_enabled("cuda"), kernel.operator) == (False, "linear")


def test_autocast_on_the_cpu_is_torchs_and_products_run_in_its_type():
    trace, dtypes = under_autocast("cpu", "cpu", dtype=HALF)
    assert set(dtypes) == {HALF}
    products = [(k.operator, k.dtype) for k in trace.kernels if k.kind == "gemm"]
    assert products == [("linear", "bfloat16")] * 2 + [("matmul", "bfloat16")]
    assert moved(trace)[:4] == [*CASTS, LINEAR]


def test_a_region_that_is_switched_off_casts_nothing():
    trace, dtypes = under_autocast("meta", "cuda", enabled=False)
    assert set(dtypes) == {FP32}
    assert "_to_copy" not in [kernel.operator for kernel in trace.kernels]


# --- what the host asks for ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda x: x.cpu(), [("transfer", 24, 24)]),
        (lambda x: x.to("cpu"), [("transfer", 24, 24)]),
        (lambda x: x.to(device=torch.device("cpu")), [("transfer", 24, 24)]),
        (lambda x: x.to("meta").cuda(), []),
    ],
)
def test_what_the_host_is_given_moves_as_from_a_gpu(ask, expected):
    model = Calls(lambda x: ask(torch.ones_like(x)).tolist())
    with forward.running(META), Recorder(model) as recorder:
        trace = recorder.begin()
        assert model(meta(3, dtype=torch.int64)) == [1, 1, 1]
    assert moved(trace) == [("ones_like", 0, 24), *expected]
