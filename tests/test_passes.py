"""The two passes of a page under the recorder: what goes wrong in them, and how they are booked."""

import itertools
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import vendor_like
from any_models import CLIP, DECODER, IMAGE, IS_5, LLAMA, TEXT_STAGES, Small, placed, vision_stages
from both_engines import LATENT, by_both_engines, small_directory
from command_line import run
from drawn_passes import UNLIMITED, directory as directory_of
from hand_built import CREATED, FIGURES, STAGES
from sampling import every, first, sampled
from torch import nn
from tracing import Calls, Net, meta, total, trace_of

from dsocr_analyze import DeepSeekOCRSession, analytic, errors, kernels
from dsocr_analyze.architectures import DEFAULT, plan_workload
from dsocr_analyze.architectures.deepseek_ocr import ClipModelDimensions
from dsocr_analyze.architectures.deepseek_ocr.reference.modeling_deepseekv2 import MoEGate
from dsocr_analyze.figures import RoutedExperts, expected_experts
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import blamed_on
from dsocr_analyze.model.loading import load_model
from dsocr_analyze.report import comparison, document, markdown, opening, reading
from dsocr_analyze.trace import record
from dsocr_analyze.trace.passes import (
    PassTraces,
    batch_work,
    ledger_of,
    stage_figures,
    trace_passes,
)
from dsocr_analyze.workload import step_stretches

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


@directory
@pytest.mark.parametrize(
    ("statement", "error_type", "says"),
    [
        ("raise ValueError('first\\nsecond')", errors.ModelCodeError, "ValueError: first"),
        ("raise SystemExit('gone')", errors.ModelCodeError, "SystemExit: gone"),
        ("raise RuntimeError", errors.ModelCodeError, "RuntimeError"),
        ("return kwargs['absent']", errors.ModelCodeError, "KeyError: 'absent'"),
        ("return torch.ones(2) @ torch.ones(3)", errors.ModelCodeError, "RuntimeError"),
        (
            "return self.scale.sum().item()", errors.ModelCodeError,
            "give device='cpu' or a CUDA device",
        ),
        ("return torch.empty(10**17, device='cpu')", errors.DeviceError, "not enough memory"),
        (
            "import dsocr_analyze.errors; raise dsocr_analyze.errors.AnalyzeError('ours')",
            errors.AnalyzeError, "ours",
        ),
        ("raise KeyboardInterrupt", KeyboardInterrupt, ""),
    ],
)  # fmt: skip
def test_code_that_fails_is_blamed_in_one_line_and_left_as_it_was(
    tmp_path, statement, error_type, says
):
    model = model_that(tmp_path, statement)
    with pytest.raises(error_type) as error:
        trace_passes(model, WORKLOAD, DEFAULT)
    message = str(error.value)
    assert (says in message, "\n" in message) == (True, False)
    assert (repr(str(tmp_path / "m")) in message) == (error_type is errors.ModelCodeError)
    assert not any(m._forward_hooks or "forward" in vars(m) for m in model.module.modules())
    assert torch.overrides._get_current_function_mode_stack() == []


# --- how they are booked ---------------------------------------------------------------------


def forward(self, x, vision=True):
    model = self.model
    if vision:
        x = model.projector(model.vision_model(model.sam_model(x)))
    return self.lm_head(model.normalizer(model.norm(model.layers[0](x * 2))))


@pytest.fixture(scope="module")
def traces():
    """Of modules under the stages' names; the decoder shares the vision tower's projection."""
    shared = nn.Linear(4, 4)
    model = Net(
        None,
        sam_model=nn.Sequential(nn.Linear(4, 4), nn.GELU()),
        vision_model=nn.Sequential(shared),
        projector=nn.Linear(4, 4),
        norm=nn.LayerNorm(4),
        normalizer=nn.Linear(4, 4),
        layers=nn.ModuleList([nn.Sequential(shared)]),
    )
    net = Net(forward, model=model, lm_head=nn.Linear(4, 8)).to("meta")
    prefill, decode = trace_of(net, meta(3, 4)), trace_of(net, meta(1, 4), vision=False)
    return PassTraces(prefill, (decode,), (0,), kv_cache_bytes=0, inputs_bytes=0)


@pytest.fixture(scope="module")
def stages(traces):
    return stage_figures(traces, DEFAULT.stages, NONE | {"projector": {"model.projector": 20}})


def test_vision_stages_get_what_they_own_and_prefill_the_rest(stages):
    own = 3 * 4 * 4
    # Prefill: layers, normalizer, head.
    assert {name: (stage.work.macs, stage.calls, stage.params) for name, stage in stages.items()
    } == {
        "sam": (own, 1, 0), "clip": (own, 1, 0), "projector": (own, 1, 20),
        "prefill": (own + own + 3 * 4 * 8, 1, 0), "decode": (4 * 4 + 4 * 4 + 4 * 8, 1, 0),
    }  # fmt: skip


def test_a_module_shared_by_two_stages_works_for_its_caller(stages):
    prefill, paths = (
        kernels.with_ancestors(stages["prefill"].own),
        ("model.layers.0.0", "model.layers.0"),
    )
    assert "model.vision_model.0" in kernels.with_ancestors(stages["clip"].own)
    assert [prefill[path].macs for path in (*paths, "lm_head")] == [48, 48, 96]


def test_every_kernel_belongs_to_one_stage_and_children_add_up_to_their_parent(traces, stages):
    *prefill, decode = stages.values()
    of_passes = kernels.total_work(stage.work for stage in prefill), decode.work
    assert of_passes == (total(traces.prefill), total(traces.decode_steps[0]))
    for name, stage in stages.items():
        modules = kernels.with_ancestors(stage.own)
        by_operator = kernels.total_work(kernels.work_by(stage.kernels, "operator").values())
        assert {kernel.stage for kernel in stage.kernels} == {name}
        assert kernels.total_work(stage.own.values()) == by_operator == modules[""] == stage.work
        for path, work in modules.items():
            children = (each for each in modules if each and each.rpartition(".")[0] == path)
            below = [modules[each] for each in children]
            assert kernels.total_work([stage.own.get(path, kernels.NO_WORK), *below]) == work


def test_equal_kernels_of_a_module_are_one_record():
    net = Net(lambda self, x: self.lm_head(x * 2) + self.lm_head(x * 2), lm_head=nn.Linear(4, 8))
    trace = trace_of(net.to("meta"), meta(3, 4))
    decode = stage_figures(PassTraces(trace, (trace,), (0,), 0, 0), DEFAULT.stages, NONE)["decode"]
    calls = {(kernel.path, kernel.operator): kernel.calls for kernel in decode.kernels}
    assert calls == {("", "mul"): 2, ("lm_head", "linear"): 2, ("", "add"): 1}
    assert (decode.module_calls, decode.calls) == ({"": 1, "lm_head": 2}, 1)


def test_the_ledger_holds_every_operator_that_ran(traces):
    passes = (traces.prefill, *traces.decode_steps)
    ledger, ran = ledger_of(*passes), sum(len(trace.kernels) for trace in passes)
    assert (ledger.counted["linear"], ledger.unknown) == (6 + 3, {})
    assert (sum(ledger.counted.values()), ledger.free) == (ran, passes[0].free + passes[1].free)


def step(expert, expert_bytes, macs, bytes_read):
    """A decode step; which experts run is up to the routing: another step's are no growth."""
    works = {
        f"model.layers.1.mlp.experts.{expert}.up_proj": kernels.Work(bytes_read=expert_bytes),
        "model.layers.1.self_attn": kernels.Work(macs=macs, bytes_read=bytes_read),
    }
    kind = "gemm", "linear", kernels.Rows(1, 1), "float32", "float32"
    return record.Trace(
        kernels=[kernels.Kernel(*kind, work, 1, path) for path, work in works.items()]
    )


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
    traces = PassTraces(record.Trace(), tuple(steps), numbers, kv_cache_bytes=0, inputs_bytes=0)
    found = batch_work(kernels.Work(1000, 0, 0, 5000), traces, stretches, DEFAULT.routed_expert)
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
    decoder = replace(
        dimensions.decoder,
        sliding_window=window,
        max_position_embeddings=trained or 8192,
        rope_scaling="dynamic" if trained else None,
    )
    assert replace(dimensions, decoder=decoder).step_cuts(10) == cuts


@pytest.mark.exhaustive
def test_inputs_and_cache_are_measured_as_infer_and_generate_call_the_model():
    session = DeepSeekOCRSession.from_local()
    workload = session.plan(page=(300, 300), batch_size=2)
    traces = trace_passes(session.loaded, workload, DEFAULT, step_numbers=())
    pixels = 3 * 1024 * 1024 * (2 + 4)  # the view in bf16 and a blank patch in fp32
    tokens = workload.seq_len * (8 + 8 + 8 + 1)  # ids, mask and positions; the image's mask
    assert traces.inputs_bytes == 2 * (pixels + tokens + 2 * 8)  # and the crop grid
    assert traces.kv_cache_bytes == 2 * workload.seq_len * 12 * 2 * 1280 * 2


@pytest.mark.exhaustive
def test_a_decode_step_adds_the_mask_to_its_scores():
    report = DeepSeekOCRSession.from_local().analyze(page=(1191, 1684))
    assert (report.workload.seq_len, report.agreement.agrees) == (913, True)
    # Without it 1,632,988: ones and zeros, subtracted from one, and added to 10 heads of 914
    # scores in each of 12 layers.
    assert report.total.decode_step.vector_flops == 1_632_988 + 914 + 120 * 914 == 1_743_582


@directory
def test_a_cache_is_given_and_grows_in_place(tmp_path):
    model = model_that(
        tmp_path,
        "cache = kwargs['past_key_values']",
        "assert type(cache).__name__ == 'DynamicCache'",
        "assert kwargs['attention_mask'].shape[1] == kwargs['position_ids'].shape[1]"
        " + cache.get_seq_length()",
        "new = torch.zeros(2, 1, 1, input_ids.shape[1], 4, device=input_ids.device)",
        "cache.update(*new, 0)",
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


# --- what a causal kernel may skip of eager attention ----------------------------------------

PAGE = {"page": (300, 200), "crop_mode": False, "image_size": 128, "text_tokens": 5}
TOKENS = 5 + 2 * (2 + 1) + 1  # text with BOS, two rows of visual tokens, each ended, a separator
PAIRS = TOKENS * (TOKENS - 1) // 2

_CLIP = {"width": 8, "layers": 1, "heads": 2, "image_size": 56, "patch_size": 14}
_SAM = {
    "width": 8, "layers": 1, "heads": 1, "global_attn_indexes": [], "downsample_channels": [8, 8],
}  # fmt: skip
_VISION = {"width": {"clip-l-14-224": _CLIP, "sam_vit_b": _SAM}}


def windowed(window, **changes):
    """Three layers of two heads of size 8."""
    config = directory_of(UNLIMITED, {}).config
    changes |= {
        "vision_config": config["vision_config"] | _VISION,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 24,
        "vocab_size": 50,
        "moe_intermediate_size": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "projector_config": config["projector_config"] | {"input_dim": 16, "n_embed": 16},
        "sliding_window": window,
        "sliding_window_size": window,
    }
    return directory_of(UNLIMITED, changes)


def grouped(heads):
    return small_directory(num_key_value_heads=heads)


def latent(trained):
    tuned = {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": trained}
    return small_directory(**LATENT, **tuned)


def windowed_latent(window):
    sizes = {"kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 6}
    return windowed(window, use_mla=True, q_lora_rank=None, **sizes)


# FLOPs of a pair of positions: layers, heads, a query's score and a mixed value.
OF_A_PAIR = {
    grouped: 2 * 3 * 5 * (64 + 64),
    latent: 2 * 3 * 5 * (32 + 64 + 64),  # the rotary key, and the latent for both
    windowed: 2 * 3 * 2 * (8 + 8),
    windowed_latent: 2 * 3 * 2 * (4 + 8 + 8),
}


@sampled(
    ("model", "changed", "new_tokens", "batch"),
    [
        (grouped, 1, 2, 3),  # of plain attention, of any number of keys
        (latent, TOKENS, 2, 1),  # whenever its angles change
        (windowed, 2, 3, 2),  # under a window that no longer grows
        (windowed_latent, 2, 3, 1),
        *itertools.product([grouped], [1, 5], [1, 2, 3, 9], [1, 3]),
        *itertools.product([latent], [TOKENS, TOKENS + 1, 8192], [1, 2, 3, 9], [1]),
        *itertools.product([windowed, windowed_latent], [1, 2, 5], [1, 2, 3, 7], [2]),
    ],
    first(3),
)
def test_it_follows_from_traced_decode_steps_alone(model, changed, new_tokens, batch):
    session = DeepSeekOCRSession.from_directory(model(changed))
    workload = session.plan(**PAGE, max_new_tokens=new_tokens, batch_size=batch)
    assert workload.seq_len == TOKENS
    found = session.traced(workload, session.trace(workload)).causal_savable_flops
    assert found == batch * OF_A_PAIR[model] * PAIRS


# --- how many routed experts are touched: the even split, the expectation, and what really runs --


@pytest.mark.parametrize(
    ("tokens", "experts", "per_token"),
    [(1, 4, 2), (2, 4, 2), (3, 4, 2), (2, 5, 3), (3, 5, 1), (2, 6, 6), (4, 3, 2)],
)
def test_the_expectation_is_the_mean_over_every_routing(tokens, experts, per_token):
    routings = list(
        itertools.product(itertools.combinations(range(experts), per_token), repeat=tokens)
    )
    mean = sum(len(set().union(*routing)) for routing in routings) / len(routings)
    assert expected_experts(tokens, experts, per_token) == pytest.approx(mean, rel=1e-12)


@sampled(
    ("method", "experts", "per_token", "groups", "chosen", "scoring", "tokens"),
    [
        (*router, *others)
        for router in (
            ("greedy", 16, 3, 1, 1), ("group_limited_greedy", 16, 3, 4, 2),
            ("group_limited_greedy", 64, 6, 8, 3), ("noaux_tc", 16, 4, 4, 1),
            ("noaux_tc", 64, 6, 8, 4),
        )
        for others in itertools.product(["softmax", "sigmoid"], [1, 3, 9])
    ],
    every(5, 1),
)  # fmt: skip
def test_routers_limited_to_groups_touch_as_many(
    method, experts, per_token, groups, chosen, scoring, tokens
):
    router = MoEGate(
        SimpleNamespace(
            topk_method=method, scoring_func=scoring, num_experts_per_tok=per_token,
            n_routed_experts=experts, n_group=groups, topk_group=chosen, norm_topk_prob=False,
            routed_scaling_factor=1.0, hidden_size=experts,
        )
    )  # fmt: skip
    torch.nn.init.eye_(router.weight)  # scores are chance
    draws, generator = 2000, torch.Generator().manual_seed(7)
    with torch.no_grad():
        chosen_experts, _ = router(torch.randn(draws, tokens, experts, generator=generator))
    found = chosen_experts.numpy()
    rows = found.reshape(-1, per_token)  # no token leaves its groups
    assert max(len(set(row // (experts // groups))) for row in rows) <= chosen
    hit = np.zeros((draws, experts), bool)
    np.put_along_axis(hit, found.reshape(draws, -1), True, axis=1)
    touched = hit.sum(axis=1)
    # A right formula fails once in a million draws.
    deviation = 5 * touched.std(ddof=1) / draws**0.5
    expected = expected_experts(tokens, experts, per_token)
    assert touched.mean() == pytest.approx(expected, abs=deviation + 1e-9)


@pytest.mark.parametrize(("experts", "per_token"), [(64, 6), (8, 8), (5, 1), (160, 8)])
def test_it_never_exceeds_the_even_split_and_is_it_for_one_token(experts, per_token):
    tokens = np.array([*range(1, 40), 10**6])
    found = expected_experts(tokens, experts, per_token)
    alone = [expected_experts(n, experts, per_token) for n in tokens.tolist()]
    assert found.tolist() == pytest.approx(alone, rel=1e-14)
    assert (found <= np.minimum(experts, tokens * per_token) + 1e-12).all()
    assert (found[0], found[-1]) == pytest.approx((per_token, experts), rel=1e-14)


# Two layers of 8 experts, 3 of which a token passes, d = 320, f = 72.
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3}
EXPERT_BYTES = 3 * 320 * 72 * 2
SMALL_PAGE = {"page": (300, 300), "crop_mode": False, "image_size": 256, "text_tokens": 4}


@pytest.fixture(scope="module")
def both():
    return by_both_engines(small_directory(**EXPERTS), **SMALL_PAGE, batch_size=2, max_new_tokens=3)


@pytest.mark.parametrize("engine", ["traced", "analytic"])
def test_a_step_of_two_tokens_and_a_long_prompt_by_hand(both, engine):
    figures = getattr(both, engine)
    # 2 x 3 choices: 6 experts at most, 8 (1 - (5/8)^2) = 39/8 expected.
    decode, stage = figures.decode, figures.stages["prefill"]
    assert decode.experts == RoutedExperts(2, EXPERT_BYTES, 6, 39 / 8, 12)
    assert decode.experts.bytes_beyond_counted == -2 * (6 - 39 / 8) * EXPERT_BYTES
    expected = 8 - 8 * (5 / 8) ** (2 * both.workload.seq_len)
    assert stage.experts == RoutedExperts(2, EXPERT_BYTES, 8, pytest.approx(expected), 16)
    assert stage.experts.bytes_beyond_counted == pytest.approx(0, abs=1)
    without = {name for name, stage in figures.stages.items() if stage.experts is None}
    assert without == {"sam", "clip", "projector"}


def test_a_page_alone_reads_what_is_expected_and_a_dense_decoder_has_none(both):
    alone = replace(both.workload, batch_size=1)
    figures = analytic.page_figures(small_directory(**EXPERTS), alone)
    assert figures.decode.experts.bytes_beyond_counted == pytest.approx(0, abs=1)
    dense = analytic.page_figures(small_directory(n_routed_experts=None), both.workload)
    text = (
        markdown.ReadableReport(document.build_report(dense, None, CREATED))
        .markdown()
        .partition("## Notes")[0]
    )
    assert ({stage.experts for stage in dense.stages.values()}, "experts" in text) == (
        {None},
        False,
    )


def timed_and_composed(batch, *, flash, **changes):
    """The kernels of a decode step that is timed, and the step of a composition."""
    dimensions = DEFAULT.forms.dimensions(small_directory(**changes).config)
    workload = DEFAULT.plan(**SMALL_PAGE, batch_size=batch)
    timed = DEFAULT.forms.step_kernels(dimensions, batch, workload.seq_len, kernels.BFLOAT16, flash)
    return timed, DEFAULT.forms.compose(dimensions, workload, kernels.BFLOAT16, flash).stages[
        "decode"
    ]


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize(
    ("batch", "run"),
    # 8 (1 - (5/8)^B) = 3, 4.875, 6.047, 7.2, 7.99
    [(1, 3), (2, 5), (3, 6), (5, 7), (14, 8)],
)
def test_a_step_runs_the_expected_number_of_experts(batch, run, flash):
    timed, composed = timed_and_composed(batch, flash=flash, **EXPERTS)
    paths = (DEFAULT.routed_expert.fullmatch(kernel.path) for kernel in timed)
    assert {path["index"] for path in paths if path} == {*map(str, range(run))}
    # The same tokens pass fewer experts: no FLOP changes, weights are read less often.
    work = kernels.total_work(kernel.total for kernel in timed)
    assert work._replace(bytes_read=0) == composed.work._replace(bytes_read=0)
    fewer = 2 * (min(8, 3 * batch) - run) * EXPERT_BYTES
    assert composed.work.bytes_read - work.bytes_read == fewer


def test_a_decoder_without_experts_has_its_steps_as_they_are():
    timed, composed = timed_and_composed(4, flash=False, n_routed_experts=None)
    assert set(timed) == set(composed.kernels)


TOUCHED = RoutedExperts(layers=2, weights_bytes=10, even=4, expected=2.5, counted=7)


def report_with(experts, batch_size=1):
    stages = {**STAGES, "decode": replace(STAGES["decode"], experts=experts)}
    workload = replace(FIGURES.workload, batch_size=batch_size)
    return document.build_report(replace(FIGURES, stages=stages, workload=workload), None, CREATED)


def test_keys_and_tables_hold_them_side_by_side(tmp_path):
    report = report_with(TOUCHED)
    (tmp_path / "report.json").write_text(opening.dump_json(report))
    assert reading.load_report(tmp_path / "report.json") == report
    step, eye = report.stages["decode"], report.stages["eye"]
    read, touched = step.bytes_read, step.experts_touched
    # 5 experts of 10 bytes in place of 7.
    found = touched.even, touched.expected, touched.counted, step.bytes_read_expected
    assert found == (4, 2.5, 3.5, read - 20)
    assert eye.experts_touched is eye.bytes_read_expected is None
    row = f"| decode | 4 | 2.50 | 3.5 | {read} B | {read - 20} B |"
    assert row in markdown.ReadableReport(report).markdown()


def test_a_comparison_of_batches_has_a_row_for_them():
    reports = [("one", report_with(TOUCHED, 2)), ("other", report_with(None, 2))]
    rows = {row.key: row.values for row in comparison.compare(reports).rows}
    assert rows["decode_step_expected_bytes"] == (rows["decode_step_bytes"][0] - 20, None)
    alone = comparison.compare([("one", report_with(TOUCHED))]).rows
    assert "decode_step_expected_bytes" not in {row.key for row in alone}


# --- passes that fail ------------------------------------------------------------------------


ONE_STAGE = '[[stages]]\nname = "all"\nrole = "prefill"\n'
_TOWER, _TEXT, _HEAD = (
    ('["model.vision_tower"]', "model.language_model", "lm_head")
    if IS_5
    else ('["vision_tower"]', "language_model.model", "language_model.lm_head")
)
LLAVA = Small(
    {
        "model_type": "llava", "architectures": ["LlavaForConditionalGeneration"],
        "image_token_index": IMAGE, "image_token_id": IMAGE, "image_seq_length": 2,
        "vision_config": {
            "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
        },
        "text_config": {"model_type": "llama", **DECODER},
    },
    vision_stages(_TOWER, _TEXT, _HEAD)
    + placed(3)
    + '[inputs.pixel_values]\nshape = ["batch", 3, 32, 32]\n',
)  # fmt: skip
SWITCH = Small(
    {
        "model_type": "switch_transformers",
        "architectures": ["SwitchTransformersForConditionalGeneration"],
        "vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
        "num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
        "num_heads": 4, "num_experts": 4, "decoder_start_token_id": 0,
    },
    ONE_STAGE
    + '[prompt]\ntokens = 8\nargument = "decoder_input_ids"\n'
    + '[inputs.input_ids]\nshape = ["batch", 9]\ndtype = "int64"\n',
)  # fmt: skip
GPTJ = Small(
    {"model_type": "gptj", "architectures": ["GPTJForCausalLM"], "n_embd": 32, "n_layer": 1,
     "n_head": 4, "rotary_dim": 4, "n_positions": 8, "vocab_size": 64},
    TEXT_STAGES.replace('["model"]', '["transformer"]') + "[prompt]\ntokens = 8\n",
)  # fmt: skip
WRONG_POSITIONS = replace(
    LLAMA,
    stages=ONE_STAGE
    + '[prompt]\ntokens = 24\nwithout = ["position_ids"]\n'
    + "[inputs.position_ids]\nvalues = [[1, 2, 3]]\n",
)
CASES = {
    "a value on meta": (
        SWITCH, (),
        r"failed on meta: prefill pass, encoder\.block\.1\.layer\.1\.mlp\S*"
        r" \(SwitchTransformers\w+\), modeling_switch_transformers\.py:\d+: the model's code calls"
        r" nonzero on a tensor of shape \(4,\) that has no values on meta, .*"
        r"; give --device cpu or a CUDA device",
    ),
    "image tokens": (
        LLAVA, (),
        r"failed on meta: prefill pass, (model \(LlavaModel\)|LlavaForConditionalGeneration),"
        r" modeling_llava\.py:\d+: ValueError: Image features and image tokens do not match.*;"
        r" place one token per feature: 'placed' under \[prompt\] in the stages file",
    ),
    "positions": (
        WRONG_POSITIONS, (),
        r"failed on meta: prefill pass, model\.layers\.0\.self_attn \(LlamaAttention\),"
        r" modeling_llama\.py:\d+: RuntimeError: .*; compare \[prompt\] and \[inputs\]",
    ),
    "positions, measured": (
        WRONG_POSITIONS, ("measure", "--repeats", 1),
        r"failed on cpu: prefill pass, model\.layers\.0\.self_attn \(LlamaAttention\),"
        r" modeling_llama\.py:\d+: RuntimeError: .*; compare \[prompt\] and \[inputs\]",
    ),
    "positions, in the tree": (
        WRONG_POSITIONS, ("tree",),
        r"failed on meta: prefill pass, model\.layers\.0\.self_attn \(LlamaAttention\)",
    ),
    "an image of another size": (
        replace(CLIP, stages=CLIP.stages.replace("3, 32, 32", "3, 32, 30")), (),
        r"failed on meta: prefill pass, vision_model\.embeddings \(CLIPVisionEmbeddings\),"
        r" modeling_clip\.py:\d+: ValueError: Input image size .*; compare \[prompt\]",
    ),
    "no image": (
        replace(CLIP, stages=CLIP.stages.partition("[inputs.pixel_values]")[0]), (),
        r"failed on meta: prefill pass, (\S+ \()?CLIP\w+.*Error: .*"
        r"; (describe what is missing under \[inputs\]|compare \[prompt\] and \[inputs\])",
    ),
    "a decode step": (
        GPTJ, ("--device", "cpu", "--max-new-tokens", 2),
        r"failed on cpu: decode step 1, transformer\.h\.0\.attn \(GPTJAttention\),"
        r" modeling_gptj\.py:\d+: \w+Error: index 8 is out of bounds .*; compare \[prompt\]",
    ),
    "a function that is not there": (
        replace(LLAMA, config={**LLAMA.config, "hidden_act": "nope"}), (),
        r"could not be built: LlamaMLP, activations\.py:\d+: KeyError: 'nope'$",
    ),
    "a config that cannot be": (
        replace(LLAMA, config={**LLAMA.config, "num_attention_heads": 0}), (),
        r"could not be built: configuration_llama\.py:\d+: ZeroDivisionError: integer division",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_is_told_with_its_place_and_a_way_out(case, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small, options, told = CASES[case]
    stages, config = small.write(tmp_path)
    code, _, err = run(capsys, *options, "--stages", stages, "--hf-config", config)
    assert code == 2
    assert err.count("\n") == 1
    assert len(err) - len(str(config)) < 500
    assert err.startswith(f"dsocr-analyze: the model in '{config}' ")
    assert re.search(told, err.rstrip()), err


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [(), ("tree",)], ids=["report", "tree"])
def test_the_way_out_of_missing_values_leads_out(tmp_path, capsys, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    stages, config = SWITCH.write(tmp_path)
    code, out, err = run(
        capsys, *command, "--stages", stages, "--hf-config", config, "--device", "cpu"
    )
    assert (code, err) == (0, "")
    assert "on cpu" in out


def fail(error):
    raise error


FIRST, SECOND = ValueError("first"), ValueError("second")
FIRST.__cause__, SECOND.__cause__ = SECOND, FIRST


@pytest.mark.parametrize(
    ("name", "error", "place", "said"),
    [
        ("a\x1b[2Jb", ValueError("a\nb " * 1000), "decode step 3, a\\x1b[2Jb", "a b a b"),
        ("chained", FIRST, "chained", "first"),
    ],
    ids=["long, and with characters that act", "a chain of errors without an end"],
)
def test_what_is_told_has_an_end_and_nothing_that_acts(tmp_path, name, error, place, said):
    directory, module = ModelDirectory(tmp_path, {}, {}), torch.nn.Module()
    module.add_module(name, Calls(partial(fail, error)))

    def run():
        with blamed_on(directory, "failed", module=module) as announce:
            announce("decode step 3")
            next(module.children())()

    with pytest.raises(errors.ModelCodeError) as told:
        run()
    message = str(told.value)
    assert f"{place} (Calls), test_passes.py:" in message
    assert f": ValueError: {said}" in message
    assert len(message) < 500 + len(str(tmp_path))
