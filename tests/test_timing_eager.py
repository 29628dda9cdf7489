"""The eager runtime: the host launches one kernel after the other."""

import dataclasses

import pytest
from both_engines import LATENT, PUBLISHED, by_both_engines, small_directory
from stub_device import StubDevice

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.hardware import device
from dsocr_analyze.kernels import Gemm, Kernel, Rows, Work
from dsocr_analyze.timing.eager import eager_pass, eager_step, launched
from dsocr_analyze.timing.runtimes import EAGER

HOST = dataclasses.replace(EAGER, launch_us=10.0, sync_us=20.0, step_us=500.0, sequence_us=3.0)
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


def product(path, calls=1, **changes):
    kernel = Kernel("gemm", "linear", Gemm(1, 1, 8, 8), "bfloat16", "bfloat16",
                    Work(macs=64, bytes_read=144, bytes_written=16), calls, path)  # fmt: skip
    return kernel._replace(**changes)


def summed(path, rows=8, dtype="int64"):
    return Kernel("reduction", "sum", Rows(rows, 4), dtype, dtype,
                  Work(vector_flops=4 * rows, bytes_read=8), 1, path)  # fmt: skip


def run(*stages, **seconds):
    """Spans of stages of kernels, in microseconds each."""
    stub = StubDevice(**{kind: 1e-6 * value for kind, value in seconds.items()})
    named = {f"stage{number}": kernels for number, kernels in enumerate(stages)}
    return list(eager_pass(named, stub, HOST).values())


def microseconds(span):
    parts = sum(span.kinds.values()), span.launches, span.host
    return tuple(round(1e6 * float(part), 6) for part in parts)


class TestByHand:
    def test_a_slow_gpu_waits_for_the_first_launch_only(self):
        # Launched at 10, 20, 30, 40 us; four products of 100 us end at 410 us.
        [span] = run([product("a", calls=4)], gemm=100)
        assert microseconds(span) == (400, 10, 0)
        assert span.bound != "launches"

    def test_a_slow_host_is_waited_for_at_every_launch(self):
        # The fourth is launched at 40 us and takes 4 us.
        [span] = run([product("a", calls=4)], gemm=4)
        assert microseconds(span) == (16, 28, 0)
        assert span.bound == "launches"

    def test_the_host_runs_ahead_into_the_next_stage(self):
        # The first stage ends at 10 + 200 us, when the second one's kernels have been launched.
        one, two = run([product("a", calls=2)], [product("b", calls=3)], gemm=100)
        assert microseconds(one) == (200, 10, 0)
        assert microseconds(two) == (300, 0, 0)

    def test_a_value_that_the_host_waits_for_empties_the_queue(self):
        # Launched at 10 and 20 us; the product ends at 110, the sum at 115. The host has it at
        # 135 and launches the last product at 145, which ends at 245.
        [span] = run([product("a"), summed("b"), product("c")], gemm=100, movement=5)
        assert microseconds(span) == (205, 20, 20)

    def test_whether_an_image_is_blank_is_waited_for(self):
        [span] = run([summed("model", rows=1, dtype="bfloat16"), product("model.layers.0")],
                     gemm=100, movement=5)  # fmt: skip
        assert microseconds(span) == (105, 20, 20)

    def test_a_routers_sum_stays_on_the_gpu(self):
        """A step of one token normalizes one row, too."""
        [span] = run([summed("model.layers.1.mlp.gate", rows=1, dtype="float32"),
                      product("model.layers.2")], gemm=100, movement=5)  # fmt: skip
        assert microseconds(span) == (105, 15, 0)

    def test_generate_takes_its_time_between_steps(self):
        stub = StubDevice(gemm=1e-4)
        span = eager_step([product("a", calls=2)], stub, HOST, sequences=4)
        assert microseconds(span) == (200, 10, 512)

    def test_a_stage_without_kernels_takes_no_time(self):
        empty, one = run([], [product("a")], gemm=100)
        assert empty.seconds == 0
        assert microseconds(one) == (100, 10, 0)


class TestOrder:
    def test_layers_are_launched_in_the_order_of_their_numbers(self):
        paths = ["model.norm", "model.layers.10.mlp", "model.layers.2.mlp", "model", ""]
        ordered = [each.path for each in launched([product(path) for path in paths])]
        assert ordered == ["", "model", "model.layers.2.mlp", "model.layers.10.mlp", "model.norm"]

    def test_the_order_in_which_records_come_does_not_matter(self):
        kernels = [product("a"), product("b", calls=2), summed("a")]
        assert launched(kernels) == launched(kernels[::-1])


class TestBothEngines:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("name", DECODERS)
    @pytest.mark.parametrize("flash", [False, True], ids=["eager attention", "flash attention"])
    def test_a_trace_and_the_closed_forms_launch_the_same_and_take_the_same(self, name, flash):
        page = by_both_engines(
            small_directory(**DECODERS[name]), flash=flash, page=(1000, 700), base_size=256,
            image_size=192,
        )  # fmt: skip
        assert page.agreement.not_modelled == ()
        traced, composed = (
            {name: stage.kernels for name, stage in figures.stages.items()}
            for figures in (page.traced, page.analytic)
        )
        for stage, kernels in traced.items():
            assert launched(kernels) == launched(composed[stage])
        timed = device("h100-sxm")
        assert eager_pass(traced, timed, EAGER) == eager_pass(composed, timed, EAGER)
        step = eager_step(traced["decode"], timed, EAGER, 1)
        assert step == eager_step(composed["decode"], timed, EAGER, 1)
        assert step.seconds > 0


class TestCold:
    """What a decode step finds in L2: 50 MB of the stub's."""

    def asked(self, directory, flash):
        """Whether products and attentions of a decode step find nothing there, by kind."""
        stub = StubDevice(gemm=1e-6, attention=1e-6, movement=1e-6)
        dimensions = DEFAULT.forms.dimensions(directory.config)
        kernels = DEFAULT.forms.step_kernels(dimensions, 1, 100, BFLOAT16, flash)
        eager_step(kernels, stub, EAGER, 1)
        cold = {}
        for kind, keywords in stub.calls:
            cold.setdefault(kind, set()).add(keywords.get("cold", False))
        return cold

    def test_weights_come_from_memory_in_every_step(self):
        assert self.asked(PUBLISHED, flash=True)["gemm"] == {True}

    def test_factors_of_attention_may_still_lie_in_l2(self):
        assert self.asked(PUBLISHED, flash=False)["gemm"] == {True, False}

    def test_the_cache_that_a_step_attends_to_comes_from_memory(self):
        assert self.asked(PUBLISHED, flash=True)["attention"] == {True}

    def test_weights_that_l2_holds_whole_stay_there(self):
        assert self.asked(small_directory(), flash=True)["gemm"] == {False}
