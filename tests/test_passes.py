"""The two passes of a page under the recorder: what goes wrong in them, and how they are booked."""

from __future__ import annotations

import dataclasses
import types

import pytest
import torch
import vendor_like
from both_engines import LATENT, small_directory
from torch import nn
from tracing import meta, total, trace_of

from dsocr_analyze import DeepSeekOCRSession
from dsocr_analyze.architectures import DEFAULT, plan_workload
from dsocr_analyze.architectures.deepseek_ocr import ClipModelDimensions
from dsocr_analyze.errors import AnalyzeError, DeviceError, ModelCodeError
from dsocr_analyze.kernels import (
    NO_WORK,
    Kernel,
    Rows,
    Work,
    total_work,
    with_ancestors,
    work_by,
)
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import load_model
from dsocr_analyze.trace.passes import PassTraces, trace_passes
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.summary import batch_work, ledger_of, stage_figures, step_stretches

WORKLOAD = plan_workload(page=(640, 640))
NONE: dict = {name: {} for name in DEFAULT.stage_names}

directory = pytest.mark.directory


def model_that(tmp_path, *statements):
    forward = "\n        ".join(("    def forward(self, input_ids, **kwargs):", *statements))
    code = vendor_like.MODELING.partition("    def forward")[0] + forward + "\n"
    path = vendor_like.write(tmp_path / "m", modeling_tiny=code)
    return load_model(
        ModelDirectory.read(path),
        device=torch.device("meta"),
        dtype=torch.float32,
        trust_remote_code=True,
    )


class MineError(AnalyzeError):
    """An error of this program, raised by code that it calls."""


@directory
@pytest.mark.parametrize(
    ("statement", "error_type", "says"),
    [
        ("raise ValueError('first\\nsecond')", ModelCodeError, "ValueError: first"),
        ("raise SystemExit('gone')", ModelCodeError, "SystemExit: gone"),
        ("raise RuntimeError", ModelCodeError, "RuntimeError"),
        ("return kwargs['absent']", ModelCodeError, "KeyError: 'absent'"),
        ("return torch.ones(2) @ torch.ones(3)", ModelCodeError, "RuntimeError"),
        (
            "return self.scale.sum().item()", ModelCodeError,
            "give device='cpu' or a CUDA device",
        ),
        ("return torch.empty(10**17, device='cpu')", DeviceError, "not enough memory"),
        ("return self.raising()", MineError, "ours"),
        ("raise KeyboardInterrupt", KeyboardInterrupt, ""),
    ],
)  # fmt: skip
def test_code_that_fails_is_blamed_in_one_line_and_left_as_it_was(
    tmp_path, statement, error_type, says
):
    model = model_that(tmp_path, statement)

    def raising():
        raise MineError("ours")

    model.module.raising = raising
    with pytest.raises(error_type) as error:
        trace_passes(model, WORKLOAD, DEFAULT)
    message = str(error.value)
    assert says in message
    assert "\n" not in message
    assert (repr(str(tmp_path / "m")) in message) == (error_type is ModelCodeError)
    assert not any(m._forward_hooks or "forward" in vars(m) for m in model.module.modules())
    assert torch.overrides._get_current_function_mode_stack() == []


class Staged(nn.Module):
    """Modules under the stages' names; the vision tower's projection is shared with the decoder."""

    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.model.sam_model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        self.model.vision_model = nn.Sequential(nn.Linear(4, 4))
        self.model.projector = nn.Linear(4, 4)
        self.model.norm = nn.LayerNorm(4)
        self.model.normalizer = nn.Linear(4, 4)
        self.model.layers = nn.ModuleList([nn.Sequential(self.model.vision_model[0])])
        self.lm_head = nn.Linear(4, 8)

    def forward(self, x, *, vision=True):
        if vision:
            x = self.model.projector(self.model.vision_model(self.model.sam_model(x)))
        return self.lm_head(self.model.normalizer(self.model.norm(self.model.layers[0](x * 2))))


@pytest.fixture(scope="module")
def traces():
    net = Staged().to("meta").eval()
    prefill = trace_of(net, meta(3, 4))
    decode = trace_of(net, meta(1, 4), vision=False)
    return PassTraces(prefill, (decode,), (0,), kv_cache_bytes=0, inputs_bytes=0)


@pytest.fixture(scope="module")
def stages(traces):
    return stage_figures(traces, DEFAULT.stages, NONE | {"projector": {"model.projector": 20}})


class TestBooking:
    def test_vision_stages_get_what_they_own_and_prefill_the_rest(self, stages):
        own = 3 * 4 * 4
        # Prefill: layers, normalizer, head.
        assert {name: (stage.work.macs, stage.calls, stage.params) for name, stage in stages.items()
        } == {
            "sam": (own, 1, 0), "clip": (own, 1, 0), "projector": (own, 1, 20),
            "prefill": (own + own + 3 * 4 * 8, 1, 0), "decode": (4 * 4 + 4 * 4 + 4 * 8, 1, 0),
        }  # fmt: skip

    def test_a_module_shared_by_two_stages_works_for_its_caller(self, stages):
        assert "model.vision_model.0" in with_ancestors(stages["clip"].own)
        prefill = with_ancestors(stages["prefill"].own)
        paths = "model.layers.0.0", "model.layers.0", "lm_head"
        assert [prefill[path].macs for path in paths] == [48, 48, 96]

    def test_every_kernel_belongs_to_one_stage_and_children_add_up_to_their_parent(
        self, traces, stages
    ):
        *prefill, decode = stages.values()
        of_passes = total_work(stage.work for stage in prefill), decode.work
        assert of_passes == (total(traces.prefill), total(traces.decode_steps[0]))
        for name, stage in stages.items():
            modules = with_ancestors(stage.own)
            by_operator = total_work(work_by(stage.kernels, "operator").values())
            assert {kernel.stage for kernel in stage.kernels} == {name}
            assert total_work(stage.own.values()) == by_operator == modules[""] == stage.work
            for path, work in modules.items():
                below = [
                    modules[child]
                    for child in modules
                    if child != path and child.rpartition(".")[0] == path
                ]
                assert total_work([stage.own.get(path, NO_WORK), *below]) == work

    def test_equal_kernels_of_a_module_are_one_record(self):
        def twice(self, x, *, vision=True):
            return self.lm_head(x * 2) + self.lm_head(x * 2)

        net = Staged().to("meta").eval()
        net.forward = types.MethodType(twice, net)
        trace = trace_of(net, meta(3, 4))
        traces = PassTraces(trace, (trace,), (0,), 0, 0)
        decode = stage_figures(traces, DEFAULT.stages, NONE)["decode"]
        calls = {(kernel.path, kernel.operator): kernel.calls for kernel in decode.kernels}
        assert calls == {("", "mul"): 2, ("lm_head", "linear"): 2, ("", "add"): 1}
        assert (decode.module_calls, decode.calls) == ({"": 1, "lm_head": 2}, 1)

    def test_the_ledger_holds_every_operator_that_ran(self, traces):
        passes = (traces.prefill, *traces.decode_steps)
        ledger, ran = ledger_of(*passes), sum(len(trace.kernels) for trace in passes)
        assert (ledger.counted["linear"], ledger.unknown) == (6 + 3, {})
        assert (sum(ledger.counted.values()), ledger.free) == (ran, passes[0].free + passes[1].free)


def kernel(path, **counts):
    return Kernel("gemm", "linear", Rows(1, 1), "float32", "float32", Work(**counts), 1, path)


def step(expert, expert_bytes, macs, bytes_read):
    """A decode step; which experts run is up to the routing: another step's are no growth."""
    path = f"model.layers.1.mlp.experts.{expert}.up_proj"
    attention = kernel("model.layers.1.self_attn", macs=macs, bytes_read=bytes_read)
    return Trace(kernels=[kernel(path, bytes_read=expert_bytes), attention])


@pytest.mark.parametrize(
    ("steps", "numbers", "stretches", "batch"),
    [
        (  # 4 new tokens are 3 steps: the cache has grown by 0, 1 and 2 tokens
            [step(3, 100, 10, 7), step(5, 300, 12, 8)], (0, 1), [range(3)],
            (3 * 10 + (0 + 1 + 2) * 2, 3 * 107 + (0 + 1 + 2) * 1),
        ),
        ([step(3, 100, 10, 7), step(5, 300, 12, 8)], (0, 1), [], (0, 0)),
        (  # each stretch is summed from its own first two
            [step(0, 0, macs, 0) for macs in (10, 12, 50)], (0, 1, 3), [range(3), range(3, 4)],
            (10 + 12 + 14 + 50, 0),
        ),
    ],
)  # fmt: skip
def test_a_batch_is_its_prefill_pass_and_steps_over_a_growing_cache(
    steps, numbers, stretches, batch
):
    traces = PassTraces(Trace(), tuple(steps), numbers, kv_cache_bytes=0, inputs_bytes=0)
    found = batch_work(Work(1000, 0, 0, 5000), traces, stretches, DEFAULT.routed_expert)
    assert (found.macs - 1000, found.bytes_read - 5000) == batch


@pytest.mark.parametrize(
    ("new_tokens", "cuts", "stretches"),
    [
        (1, (), []),
        (5, (), [range(4)]),
        (5, (0,), [range(4)]),
        (5, (1,), [range(1), range(1, 4)]),
        (5, (3,), [range(3), range(3, 4)]),
        (5, (4,), [range(4)]),
        (5, (9,), [range(4)]),
        (5, (1, 2), [range(1), range(1, 2), range(2, 4)]),
        (5, (2, 2), [range(2), range(2, 4)]),
        (1, (1,), []),
    ],
)
def test_steps_are_cut_where_they_begin_to_do_other_work(new_tokens, cuts, stretches):
    assert step_stretches(new_tokens, cuts) == stretches


@pytest.mark.parametrize(
    ("trained", "window", "cuts"),
    [
        (None, None, ()),
        (9, None, (0,)),  # a prompt of 10 tokens is beyond it already
        (10, None, (0,)),
        (11, None, (1,)),  # the second step reaches 12 positions
        (14, None, (4,)),
        (None, 3, (3,)),
        (14, 3, (3, 4)),
    ],
)
def test_a_decoder_says_where_its_steps_change(trained, window, cuts):
    dimensions = ClipModelDimensions.from_config(ModelDirectory.read(DEFAULT.reference).config)
    decoder = dataclasses.replace(
        dimensions.decoder,
        sliding_window=window,
        max_position_embeddings=trained or 8192,
        rope_scaling="dynamic" if trained else None,
    )
    assert dataclasses.replace(dimensions, decoder=decoder).step_cuts(10) == cuts


@pytest.mark.exhaustive
class TestThePassOfGenerate:
    """Both passes are called as `infer()` and `generate` call the model."""

    def test_inputs_and_cache_are_measured(self):
        session = DeepSeekOCRSession.from_local()
        workload = session.plan(page=(300, 300), batch_size=2)
        traces = trace_passes(session.loaded, workload, DEFAULT, step_numbers=())
        pixels = 3 * 1024 * 1024 * (2 + 4)  # the view in bf16 and a blank patch in fp32
        tokens = workload.seq_len * (8 + 8 + 8 + 1)  # ids, mask and positions; the image's mask
        assert traces.inputs_bytes == 2 * (pixels + tokens + 2 * 8)  # and the crop grid
        assert traces.kv_cache_bytes == 2 * workload.seq_len * 12 * 2 * 1280 * 2

    def test_a_decode_step_adds_the_mask_to_its_scores(self):
        report = DeepSeekOCRSession.from_local().analyze(page=(1191, 1684))
        assert report.workload.seq_len == 913
        # Without it 1,632,988: ones and zeros, subtracted from one, and added to 10 heads of 914
        # scores in each of 12 layers.
        assert report.total.decode_step.vector_flops == 1_632_988 + 914 + 120 * 914 == 1_743_582
        assert report.agreement.agrees


@directory
def test_a_cache_is_given_and_grows_in_place(tmp_path):
    model = model_that(
        tmp_path,
        "cache = kwargs['past_key_values']",
        "assert type(cache).__name__ == 'DynamicCache'",
        "assert kwargs['attention_mask'].shape[1] == kwargs['position_ids'].shape[1]"
        " + cache.get_seq_length()",
        "new = torch.zeros(1, 1, input_ids.shape[1], 4, device=input_ids.device)",
        "cache.update(new, new, 0)",
        "return __import__('types').SimpleNamespace(past_key_values=cache)",
    )
    traces = trace_passes(model, WORKLOAD, DEFAULT, step_numbers=(0, 1, 7))
    assert traces.kv_cache_bytes == 2 * 4 * 4 * WORKLOAD.seq_len
    grown = [
        next(k.work.bytes_written for k in step.kernels if k.operator == "cat")
        for step in traces.decode_steps
    ]
    assert grown == [16 * (WORKLOAD.seq_len + number + 1) for number in (0, 1, 7)]


@pytest.mark.exhaustive
def test_a_shorter_page_after_a_longer_one_costs_what_it_costs_alone():
    """What a pass keeps on its modules does not show in the next."""
    page = {"page": (600, 500), "crop_mode": False, "image_size": 64, "max_new_tokens": 1}
    latent = small_directory(**LATENT, n_routed_experts=None)
    alone = DeepSeekOCRSession.from_directory(latent).analyze(**page, text_tokens=5)
    session = DeepSeekOCRSession.from_directory(latent)
    session.analyze(**page, text_tokens=50)
    after = session.analyze(**page, text_tokens=5)
    assert (after.total, after.agreement.agrees) == (alone.total, True)
