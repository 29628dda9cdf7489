"""The two passes of a page under the recorder: what goes wrong in them, and how they are booked."""

from __future__ import annotations

import pytest
import torch
import vendor_like
from torch import nn
from tracing import meta, total, trace_of

from dsocr_analyze import DeepSeekOCRSession
from dsocr_analyze.errors import AnalyzeError, DeviceError, ModelCodeError
from dsocr_analyze.model.directory import REFERENCE_DIRECTORY, ModelDirectory
from dsocr_analyze.model.loading import load_model
from dsocr_analyze.model.stages import STAGES
from dsocr_analyze.trace.passes import PassTraces, trace_passes
from dsocr_analyze.trace.summary import ledger_of, summarize
from dsocr_analyze.work import NO_WORK
from dsocr_analyze.workload import plan_workload

WORKLOAD = plan_workload(page=(640, 640))


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
            trace_passes(model, WORKLOAD)
        message = str(error.value)
        assert "\n" not in message
        assert says in message
        assert repr(str(tmp_path / "m")) in message
        assert not any(m._forward_hooks or "forward" in vars(m) for m in model.module.modules())

    def test_by_asking_for_a_value_is_told_where_there_are_values(self, tmp_path):
        model = model_that(tmp_path, "return self.scale.sum().item()")
        with pytest.raises(ModelCodeError, match="--device cpu"):
            trace_passes(model, WORKLOAD)

    def test_by_filling_the_memory_is_a_matter_of_the_device(self, tmp_path):
        model = model_that(tmp_path, "return torch.empty(10**17, device='cpu')")
        with pytest.raises(DeviceError, match="not enough memory") as error:
            trace_passes(model, WORKLOAD)
        assert "\n" not in str(error.value)

    def test_by_an_error_of_ours_keeps_it(self, tmp_path):
        class MineError(AnalyzeError):
            pass

        model = model_that(tmp_path, "return self.raising()")

        def raising():
            raise MineError

        model.module.raising = raising
        with pytest.raises(MineError):
            trace_passes(model, WORKLOAD)

    def test_by_interruption_stays_an_interruption(self, tmp_path):
        model = model_that(tmp_path, "raise KeyboardInterrupt")
        with pytest.raises(KeyboardInterrupt):
            trace_passes(model, WORKLOAD)
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
    return PassTraces(prefill, (trace_of(net, meta(1, 4), vision=False),), 0)


@pytest.fixture(scope="module")
def stages(traces):
    return summarize(traces, (path for path, _ in Staged().named_modules()))


class TestBooking:
    def test_vision_stages_get_what_they_own_and_prefill_the_rest(self, stages):
        own = 3 * 4 * 4
        assert [stages[s].work.macs for s in ("sam", "clip", "projector")] == [own] * 3
        assert stages["prefill"].work.macs == own + own + 3 * 4 * 8  # layers, normalizer, head
        assert stages["prefill"].modules["lm_head"].total.macs == 3 * 4 * 8
        assert stages["decode"].work.macs == 4 * 4 + 4 * 4 + 4 * 8

    def test_a_module_shared_by_two_stages_works_for_its_caller(self, stages):
        assert "model.vision_model.0" in stages["clip"].modules
        assert "model.layers.0.0" in stages["prefill"].modules
        assert stages["prefill"].modules["model.layers.0"].total.macs == 3 * 4 * 4

    def test_every_sum_holds(self, traces, stages):
        assert tuple(stages) == STAGES
        passes = [
            (traces.prefill, [stage for stage in STAGES if stage != "decode"]),
            (traces.decode_steps[0], ["decode"]),
        ]
        for trace, names in passes:
            work = NO_WORK
            for name in names:
                work = work.plus(stages[name].work)
            assert work == total(trace)
        for stage in stages.values():
            by_operator = by_module = NO_WORK
            for operator in stage.operators.values():
                by_operator = by_operator.plus(operator)
            for module in stage.modules.values():
                by_module = by_module.plus(module.own)
            assert by_operator == by_module == stage.work
            assert next(iter(stage.modules.values())).total == stage.work

    def test_children_add_up_to_their_parent(self, stages):
        for stage in stages.values():
            for path, module in stage.modules.items():
                below = module.own
                for child, work in stage.modules.items():
                    if child and child.rpartition(".")[0] == path and child != path:
                        below = below.plus(work.total)
                assert below == module.total

    def test_calls_are_those_of_each_path(self, stages):
        assert {name: stage.calls for name, stage in stages.items()} == dict.fromkeys(STAGES, 1)

    def test_the_ledger_holds_every_operator_that_ran(self, traces):
        ledger = ledger_of(traces.prefill, *traces.decode_steps)
        ran = len(traces.prefill.entries) + len(traces.decode_steps[0].entries)
        assert sum(sum(calls.values()) for calls in ledger.values()) == ran
        assert ledger["counted"]["linear"] == 6 + 3
        assert ledger["unknown"] == {}


SMALL_MLA = {"use_mla": True, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
          "v_head_dim": 32, "num_hidden_layers": 2, "n_routed_experts": None}  # fmt: skip


class TestStateOfTheModel:
    """What a pass keeps on its modules does not show in the next."""

    def test_a_shorter_page_after_a_longer_one_costs_what_it_costs_alone(self):
        def small_model():
            directory = ModelDirectory.read(REFERENCE_DIRECTORY)
            return DeepSeekOCRSession.from_local(config=directory.config | SMALL_MLA)

        page = {"page": (600, 500), "crop_mode": False, "image_size": 64, "max_new_tokens": 1}
        alone = small_model().analyze(**page, text_tokens=5)
        session = small_model()
        session.analyze(**page, text_tokens=50)
        after = session.analyze(**page, text_tokens=5)
        assert after["total"] == alone["total"]
        assert after["agreement"]["agrees"]

    def test_tied_embeddings_are_one_parameter_with_two_names(self):
        directory = ModelDirectory.read(REFERENCE_DIRECTORY)
        tied = directory.config | {"tie_word_embeddings": True}
        session = DeepSeekOCRSession.from_local(config=tied)
        assert session.parameters.total == 3_336_106_240 - 165_478_400
        report = session.analyze(page=(600, 500), crop_mode=False, image_size=64, max_new_tokens=1)
        assert report["stages"]["decode"]["params"] == 0
        assert report["agreement"]["agrees"]
