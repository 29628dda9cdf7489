"""The eager runtime: the host launches one kernel after the other."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from both_engines import LATENT, PUBLISHED, by_both_engines, small_directory

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.hardware import device
from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.kernels import Gemm, Kernel, Rows, Work
from dsocr_analyze.timing.eager import eager_pass, eager_step, launched
from dsocr_analyze.timing.runtimes import EAGER

HOST = dataclasses.replace(EAGER, launch_us=10.0, sync_us=20.0, step_us=500.0, sequence_us=3.0)
SECONDS = {"gemm": 100e-6, "movement": 5e-6}
DECODERS = {
    "mixed": {},
    "dense": {"n_routed_experts": None},
    "grouped": {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True},
    "latent": LATENT,
    "normalized": {"norm_topk_prob": True, "n_shared_experts": None},
    "identity projector": {
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "projector_config": {"projector_type": "identity", "n_embed": 256},
    },
}


class StubDevice:
    """A GPU whose kernels of a kind take a fixed time; whether they were asked for as cold."""

    gpu = Gpu("stub", "Stub", tensor_tflops=100, bandwidth_gb_s=1000, memory_gb=80, source="",
              sms=100, l2_mb=50, float32_tflops=50)  # fmt: skip
    cpu = host = None

    def __init__(self, **seconds) -> None:
        self.taken, self.calls = seconds, []

    def is_measured(self, kind, dtype="bfloat16"):
        return False

    def fitted(self, kind, dtype="bfloat16", **_):
        return SimpleNamespace(p90=0.2, extrapolated=False, assumed=False)

    def seconds(self, kind, sizes, *_, cold=False, **types):
        self.calls.append((kind, cold))
        return self.taken[kind.split("_")[-1]] * np.ones(np.broadcast(*sizes.values()).shape)

    def elementwise_seconds(self, moved, *, cold=False):
        return self.seconds("movement", {"moved": moved}, cold=cold)

    def is_in_l2(self, nbytes, *, cold=False):
        return np.asarray(nbytes) < (0 if cold else 0.8 * self.gpu.l2_mb * 1e6)


def product(path, calls=1):
    return Kernel("gemm", "linear", Gemm(1, 1, 8, 8), "bfloat16", "bfloat16",
                  Work(macs=64, bytes_read=144, bytes_written=16), calls, path)  # fmt: skip


def summed(path, rows=8, dtype="int64"):
    return Kernel("reduction", "sum", Rows(rows, 4), dtype, dtype,
                  Work(vector_flops=4 * rows, bytes_read=8), 1, path)  # fmt: skip


def microseconds(span):
    parts = sum(span.kinds.values()), span.launches, span.host
    return tuple(round(1e6 * float(part), 6) for part in parts)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        # Launched at 10, 20, 30, 40 us; four products of 100 us end at 410 us.
        ([[product("a", calls=4)]], [(400, 10, 0)]),
        # The first stage ends at 10 + 200 us, when the second one's kernels have been launched.
        ([[product("a", calls=2)], [product("b", calls=3)]], [(200, 10, 0), (300, 0, 0)]),
        # A value that the host waits for: launched at 10 and 20 us, the product ends at 110, the
        # sum at 115. The host has it at 135 and launches the last product at 145.
        ([[product("a"), summed("b"), product("c")]], [(205, 20, 20)]),
        # Whether an image is blank is waited for; a router's sum stays on the GPU.
        ([[summed("model", 1, "bfloat16"), product("model.layers.0")]], [(105, 20, 20)]),
        ([[summed("model.layers.1.mlp.gate", 1, "float32"), product("model.layers.2")]],
         [(105, 15, 0)]),
        ([[], [product("a")]], [(0, 0, 0), (100, 10, 0)]),
    ],
)  # fmt: skip
def test_stages_by_hand(stages, expected):
    found = eager_pass(dict(enumerate(stages)), StubDevice(**SECONDS), HOST)
    assert [microseconds(span) for span in found.values()] == expected


def test_a_slow_host_is_waited_for_at_every_launch():
    """The fourth is launched at 40 us and takes 4 us."""
    found = eager_pass({"a": [product("a", calls=4)]}, StubDevice(gemm=4e-6), HOST)["a"]
    assert (microseconds(found), found.bound) == ((16, 28, 0), "launches")


def test_generate_takes_its_time_between_steps():
    span = eager_step([product("a", calls=2)], StubDevice(**SECONDS), HOST, sequences=4)
    assert microseconds(span) == (200, 10, 512)


def test_layers_are_launched_in_the_order_of_their_numbers():
    paths = ["model.norm", "model.layers.10.mlp", "model.layers.2.mlp", "model", ""]
    ordered = [each.path for each in launched([product(path) for path in paths])]
    assert ordered == ["", "model", "model.layers.2.mlp", "model.layers.10.mlp", "model.norm"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("flash", [False, True], ids=["eager attention", "flash attention"])
def test_a_trace_and_the_closed_forms_launch_the_same_and_take_the_same(name, flash):
    page = by_both_engines(
        small_directory(**DECODERS[name]), flash=flash, page=(1000, 700), base_size=256,
        image_size=192,
    )  # fmt: skip
    traced, composed = (
        {stage: each.kernels for stage, each in figures.stages.items()}
        for figures in (page.traced, page.analytic)
    )
    in_order = {stage: launched(kernels) for stage, kernels in traced.items()}
    assert in_order == {stage: launched(composed[stage]) for stage in traced}
    timed = device("h100-sxm")
    assert eager_pass(traced, timed, EAGER) == eager_pass(composed, timed, EAGER)
    step = eager_step(traced["decode"], timed, EAGER, 1)
    assert step == eager_step(composed["decode"], timed, EAGER, 1)


@pytest.mark.parametrize(
    ("directory", "flash", "kind", "cold"),
    [
        (PUBLISHED, True, "gemm", {True}),  # weights come from memory in every step
        (PUBLISHED, False, "gemm", {True, False}),  # factors of attention may still lie in L2
        (PUBLISHED, True, "attention", {True}),  # the cache comes from memory
        (small_directory(), True, "gemm", {False}),  # L2 holds these weights whole
    ],
)
def test_what_a_decode_step_finds_in_l2(directory, flash, kind, cold):
    """50 MB of the stub's."""
    stub = StubDevice(gemm=1e-6, attention=1e-6, movement=1e-6)
    dimensions = DEFAULT.forms.dimensions(directory.config)
    eager_step(DEFAULT.forms.step_kernels(dimensions, 1, 100, BFLOAT16, flash), stub, EAGER, 1)
    assert {is_cold for called, is_cold in stub.calls if called.endswith(kind)} == cold
