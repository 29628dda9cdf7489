"""The two passes of a page under the recorder: what goes wrong in them, and how they are booked."""

from __future__ import annotations

import dataclasses
import types

import pytest
import torch
import vendor_like
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


@directory
class TestCodeThatFails:
    @pytest.mark.parametrize(
        ("statement", "says"),
        [
            ("raise ValueError('first\\nsecond')", "ValueError: first"),
            ("raise SystemExit('gone')", "SystemExit: gone"),
            ("raise RuntimeError", "RuntimeError"),
            ("return kwargs['absent']", "KeyError: 'absent'"),
            ("return torch.ones(2) @ torch.ones(3)", "RuntimeError"),
        ],
    )
    def test_is_blamed_in_one_line(self, tmp_path, statement, says):
        model = model_that(tmp_path, statement)
        with pytest.raises(ModelCodeError) as error:
            trace_passes(model, WORKLOAD, DEFAULT)
        message = str(error.value)
        assert "\n" not in message
        assert says in message
        assert repr(str(tmp_path / "m")) in message
        assert not any(m._forward_hooks or "forward" in vars(m) for m in model.module.modules())

    def test_by_asking_for_a_value_is_told_where_there_are_values(self, tmp_path):
        model = model_that(tmp_path, "return self.scale.sum().item()")
        with pytest.raises(ModelCodeError, match="give device='cpu' or a CUDA device"):
            trace_passes(model, WORKLOAD, DEFAULT)

    def test_by_filling_the_memory_is_a_matter_of_the_device(self, tmp_path):
        model = model_that(tmp_path, "return torch.empty(10**17, device='cpu')")
        with pytest.raises(DeviceError, match="not enough memory") as error:
            trace_passes(model, WORKLOAD, DEFAULT)
        assert "\n" not in str(error.value)

    def test_by_an_error_of_ours_keeps_it(self, tmp_path):
        class MineError(AnalyzeError):
            pass

        model = model_that(tmp_path, "return self.raising()")

        def raising():
            raise MineError("ours")

        model.module.raising = raising
        with pytest.raises(MineError):
            trace_passes(model, WORKLOAD, DEFAULT)

    def test_by_interruption_stays_an_interruption(self, tmp_path):
        model = model_that(tmp_path, "raise KeyboardInterrupt")
        with pytest.raises(KeyboardInterrupt):
            trace_passes(model, WORKLOAD, DEFAULT)
        assert torch.overrides._get_current_function_mode_stack() == []
        assert not any(m._forward_hooks or "forward" in vars(m) for m in model.module.modules())


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
    none = {name: {} for name in DEFAULT.stage_names}
    return stage_figures(traces, DEFAULT.stages, none | {"projector": {"model.projector": 20}})


class TestBooking:
    def test_vision_stages_get_what_they_own_and_prefill_the_rest(self, stages):
        own = 3 * 4 * 4
        assert [stages[s].work.macs for s in ("sam", "clip", "projector")] == [own] * 3
        assert stages["prefill"].work.macs == own + own + 3 * 4 * 8  # layers, normalizer, head
        assert with_ancestors(stages["prefill"].own)["lm_head"].macs == 3 * 4 * 8
        assert stages["decode"].work.macs == 4 * 4 + 4 * 4 + 4 * 8

    def test_a_module_shared_by_two_stages_works_for_its_caller(self, stages):
        assert "model.vision_model.0" in with_ancestors(stages["clip"].own)
        assert "model.layers.0.0" in with_ancestors(stages["prefill"].own)
        assert with_ancestors(stages["prefill"].own)["model.layers.0"].macs == 3 * 4 * 4

    def test_every_kernel_belongs_to_one_stage(self, traces, stages):
        assert tuple(stages) == DEFAULT.stage_names
        *prefill, decode = stages.values()
        assert total_work(stage.work for stage in prefill) == total(traces.prefill)
        assert decode.work == total(traces.decode_steps[0])
        for name, stage in stages.items():
            assert {kernel.stage for kernel in stage.kernels} == {name}
            assert total_work(stage.own.values()) == stage.work
            assert total_work(work_by(stage.kernels, "operator").values()) == stage.work
            assert with_ancestors(stage.own)[""] == stage.work

    def test_equal_kernels_of_a_module_are_one_record(self):
        def twice(self, x, *, vision=True):
            return self.lm_head(x * 2) + self.lm_head(x * 2)

        net = Staged().to("meta").eval()
        net.forward = types.MethodType(twice, net)
        trace = trace_of(net, meta(3, 4))
        none = {name: {} for name in DEFAULT.stage_names}
        decode = stage_figures(PassTraces(trace, (trace,), (0,), 0, 0), DEFAULT.stages, none)[
            "decode"
        ]
        calls = {(kernel.path, kernel.operator): kernel.calls for kernel in decode.kernels}
        assert calls == {("", "mul"): 2, ("lm_head", "linear"): 2, ("", "add"): 1}
        assert decode.module_calls == {"": 1, "lm_head": 2}

    def test_parameters_are_those_of_the_stage(self, stages):
        assert (stages["projector"].params, stages["sam"].params) == (20, 0)

    def test_children_add_up_to_their_parent(self, stages):
        for stage in stages.values():
            modules = with_ancestors(stage.own)
            for path, total_of_module in modules.items():
                below = stage.own.get(path, NO_WORK)
                for child, work in modules.items():
                    if child and child.rpartition(".")[0] == path and child != path:
                        below = below.plus(work)
                assert below == total_of_module

    def test_calls_are_those_of_each_path(self, stages):
        assert {name: stage.calls for name, stage in stages.items()} == dict.fromkeys(
            DEFAULT.stage_names, 1
        )

    def test_the_ledger_holds_every_operator_that_ran(self, traces):
        ledger = ledger_of(traces.prefill, *traces.decode_steps)
        assert ledger.counted["linear"] == 6 + 3
        assert sum(ledger.counted.values()) == sum(
            len(trace.kernels) for trace in (traces.prefill, *traces.decode_steps)
        )
        assert ledger.free == traces.prefill.free + traces.decode_steps[0].free
        assert ledger.unknown == {}


def test_a_batch_is_its_prefill_pass_and_steps_over_a_growing_cache():
    def step(expert, expert_bytes, attention):
        def kernel(path, work):
            return Kernel("gemm", "linear", Rows(1, 1), "float32", "float32", work, 1, path)

        return Trace(
            kernels=[
                # Which experts run is up to the routing: another step's are no growth.
                kernel(
                    f"model.layers.1.mlp.experts.{expert}.up_proj", Work(bytes_read=expert_bytes)
                ),
                kernel("model.layers.1.self_attn", attention),
            ]
        )

    first = step(3, 100, Work(macs=10, bytes_read=7))
    second = step(5, 300, Work(macs=12, bytes_read=8))
    traces = PassTraces(Trace(), (first, second), (0, 1), kv_cache_bytes=0, inputs_bytes=0)
    prefill = Work(macs=1000, bytes_read=5000)
    # 4 new tokens are 3 steps: the cache has grown by 0, 1 and 2 tokens.
    assert batch_work(prefill, traces, [range(3)], DEFAULT.routed_expert) == Work(
        macs=1000 + 3 * 10 + (0 + 1 + 2) * 2, bytes_read=5000 + 3 * 107 + (0 + 1 + 2) * 1
    )
    assert batch_work(prefill, traces, [], DEFAULT.routed_expert) == prefill


def test_a_batch_sums_each_stretch_of_steps_from_its_own_first_two():
    steps = tuple(
        Trace(
            kernels=[Kernel("gemm", "mm", Rows(1, 1), "float32", "float32", Work(macs=macs), 1, "")]
        )
        for macs in (10, 12, 50)
    )
    traces = PassTraces(Trace(), steps, (0, 1, 3), kv_cache_bytes=0, inputs_bytes=0)
    batch = batch_work(Work(macs=1000), traces, [range(3), range(3, 4)], DEFAULT.routed_expert)
    assert batch == Work(macs=1000 + (10 + 12 + 14) + 50)


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
def test_inputs_and_cache_are_measured():
    session = DeepSeekOCRSession.from_local()
    workload = session.plan(page=(300, 300), batch_size=2)
    traces = trace_passes(session.loaded, workload, DEFAULT, step_numbers=())
    pixels = 3 * 1024 * 1024 * (2 + 4)  # the view in bf16 and a blank patch in fp32
    tokens = workload.seq_len * (8 + 8 + 8 + 1)  # ids, mask and positions; the image's mask
    assert traces.inputs_bytes == 2 * (pixels + tokens + 2 * 8)  # and the crop grid
    assert traces.kv_cache_bytes == 2 * workload.seq_len * 12 * 2 * 1280 * 2


class TestThePassOfGenerate:
    """Both passes are called as `infer()` and `generate` call the model."""

    @pytest.mark.exhaustive
    def test_a_decode_step_adds_the_mask_to_its_scores(self):
        report = DeepSeekOCRSession.from_local().analyze(page=(1191, 1684))
        assert report.workload.seq_len == 913
        # Without it 1,632,988: ones and zeros, subtracted from one, and added to 10 heads of 914
        # scores in each of 12 layers.
        assert report.total.decode_step.vector_flops == 1_743_582
        assert report.total.decode_step.vector_flops - 914 - 120 * 914 == 1_632_988
        assert report.agreement.agrees

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("flash_attention", [False, True])
    def test_the_blank_patch_is_as_large_as_the_base_size_and_fp32(self, flash_attention):
        session = DeepSeekOCRSession.from_local(flash_attention=flash_attention)
        page = {"page": (600, 500), "crop_mode": False, "image_size": 640, "max_new_tokens": 1}
        small, large = (
            session.analyze(**page, base_size=base_size).stages["prefill"]
            for base_size in (640, 1024)
        )
        assert large.vector_flops - small.vector_flops == 3 * (1024**2 - 640**2) == 1_916_928
        assert large.bytes_read - small.bytes_read == 4 * 1_916_928
        # and beside the patch that was once taken, of the view's size and in bf16:
        assert 4 * 3 * 1024**2 - 2 * 3 * 640**2 == 10_125_312

    @pytest.mark.exhaustive
    def test_flash_attention_asks_whether_the_mask_holds_a_zero(self):
        session = DeepSeekOCRSession.from_local(flash_attention=True)
        traces = session.trace(session.plan(page=(600, 500), max_new_tokens=2))
        for trace, tokens in ((traces.prefill, 283), (traces.decode_steps[0], 284)):
            asked = [k for k in trace.kernels if k.path == "model" and k.operator in ("eq", "any")]
            assert [(k.operator, k.work.vector_flops) for k in asked] == [
                ("eq", tokens), ("any", tokens),
            ]  # fmt: skip

    @pytest.mark.exhaustive
    def test_every_sequence_has_positions_of_its_own(self):
        session = DeepSeekOCRSession.from_local()
        one, two = (
            session.analyze(page=(600, 500), batch_size=batch, max_new_tokens=1).stages["prefill"]
            for batch in (1, 2)
        )
        path = "model.layers.0.self_attn.rotary_emb"
        assert one.by_module[path].macs == 64 * 283
        assert two.by_module[path].macs == 2 * 64 * 283

    @directory
    def test_a_cache_is_given_and_grows_in_place(self, tmp_path):
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


SMALL_MLA = {"use_mla": True, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
          "v_head_dim": 32, "num_hidden_layers": 2, "n_routed_experts": None}  # fmt: skip


class TestStateOfTheModel:
    """What a pass keeps on its modules does not show in the next."""

    @pytest.mark.exhaustive
    def test_a_shorter_page_after_a_longer_one_costs_what_it_costs_alone(self):
        def small_model():
            directory = ModelDirectory.read(DEFAULT.reference)
            return DeepSeekOCRSession.from_local(config=directory.config | SMALL_MLA)

        page = {"page": (600, 500), "crop_mode": False, "image_size": 64, "max_new_tokens": 1}
        alone = small_model().analyze(**page, text_tokens=5)
        session = small_model()
        session.analyze(**page, text_tokens=50)
        after = session.analyze(**page, text_tokens=5)
        assert after.total == alone.total
        assert after.agreement.agrees

    @pytest.mark.exhaustive
    def test_tied_embeddings_are_one_parameter_with_two_names(self):
        directory = ModelDirectory.read(DEFAULT.reference)
        tied = directory.config | {"tie_word_embeddings": True}
        session = DeepSeekOCRSession.from_local(config=tied)
        assert session.parameters.total == 3_336_106_240 - 165_478_400
        report = session.analyze(page=(600, 500), crop_mode=False, image_size=64, max_new_tokens=1)
        assert report.stages["decode"].params == 0
        assert report.agreement.agrees
