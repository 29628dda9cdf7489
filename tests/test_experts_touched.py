"""How many routed experts are touched: the even split, the expectation, and what really runs."""

from dataclasses import replace
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from both_engines import by_both_engines, small_directory
from hand_built import CREATED, FIGURES, STAGES
from sampling import every, sampled

from dsocr_analyze import analytic
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.deepseek_ocr.reference.modeling_deepseekv2 import MoEGate
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.figures import RoutedExperts, expected_experts
from dsocr_analyze.kernels import total_work
from dsocr_analyze.report.comparison import compare
from dsocr_analyze.report.document import build_report
from dsocr_analyze.report.markdown import ReadableReport
from dsocr_analyze.report.opening import dump_json
from dsocr_analyze.report.reading import load_report

SIGMAS = 5
"""A right formula fails once in a million draws."""


@pytest.mark.parametrize(
    ("tokens", "experts", "per_token"),
    [(1, 4, 2), (2, 4, 2), (3, 4, 2), (2, 5, 3), (3, 5, 1), (2, 6, 6), (4, 3, 2)],
)
def test_the_expectation_is_the_mean_over_every_routing(tokens, experts, per_token):
    routings = list(product(combinations(range(experts), per_token), repeat=tokens))
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
        for others in product(["softmax", "sigmoid"], [1, 3, 9])
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
            routed_scaling_factor=1.0, aux_loss_alpha=0.0, seq_aux=True, hidden_size=experts,
        )
    )  # fmt: skip
    torch.nn.init.eye_(router.weight)  # scores are chance
    draws, generator = 2000, torch.Generator().manual_seed(7)
    with torch.no_grad():
        found = router(torch.randn(draws, tokens, experts, generator=generator)).experts.numpy()
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
PAGE = {"page": (300, 300), "crop_mode": False, "image_size": 256, "text_tokens": 4}


@pytest.fixture(scope="module")
def both():
    return by_both_engines(small_directory(**EXPERTS), **PAGE, batch_size=2, max_new_tokens=3)


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
    text = ReadableReport(build_report(dense, None, CREATED)).markdown().partition("## Notes")[0]
    assert ({stage.experts for stage in dense.stages.values()}, "experts" in text) == (
        {None},
        False,
    )


def steps(batch, *, flash, **changes):
    """The kernels of a decode step that is timed, and the step of a composition."""
    dimensions = DEFAULT.forms.dimensions(small_directory(**changes).config)
    workload = DEFAULT.plan(**PAGE, batch_size=batch)
    timed = DEFAULT.forms.step_kernels(dimensions, batch, workload.seq_len, BFLOAT16, flash)
    return timed, DEFAULT.forms.compose(dimensions, workload, BFLOAT16, flash).stages["decode"]


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize(
    ("batch", "run"),
    # 8 (1 - (5/8)^B) = 3, 4.875, 6.047, 7.2, 7.99
    [(1, 3), (2, 5), (3, 6), (5, 7), (14, 8)],
)
def test_a_step_runs_the_expected_number_of_experts(batch, run, flash):
    timed, composed = steps(batch, flash=flash, **EXPERTS)
    paths = (DEFAULT.routed_expert.fullmatch(kernel.path) for kernel in timed)
    assert {path["index"] for path in paths if path} == {*map(str, range(run))}
    # The same tokens pass fewer experts: no FLOP changes, weights are read less often.
    work = total_work(kernel.total for kernel in timed)
    assert work._replace(bytes_read=0) == composed.work._replace(bytes_read=0)
    fewer = 2 * (min(8, 3 * batch) - run) * EXPERT_BYTES
    assert composed.work.bytes_read - work.bytes_read == fewer


def test_a_decoder_without_experts_has_its_steps_as_they_are():
    timed, composed = steps(4, flash=False, n_routed_experts=None)
    assert set(timed) == set(composed.kernels)


TOUCHED = RoutedExperts(layers=2, weights_bytes=10, even=4, expected=2.5, counted=7)


def report_with(experts, batch_size=1):
    stages = {**STAGES, "decode": replace(STAGES["decode"], experts=experts)}
    workload = replace(FIGURES.workload, batch_size=batch_size)
    return build_report(replace(FIGURES, stages=stages, workload=workload), None, CREATED)


def test_keys_and_tables_hold_them_side_by_side(tmp_path):
    report = report_with(TOUCHED)
    (tmp_path / "report.json").write_text(dump_json(report))
    assert load_report(tmp_path / "report.json") == report
    step, eye = report.stages["decode"], report.stages["eye"]
    read, touched = step.bytes_read, step.experts_touched
    # 5 experts of 10 bytes in place of 7.
    found = touched.even, touched.expected, touched.counted, step.bytes_read_expected
    assert found == (4, 2.5, 3.5, read - 20)
    assert eye.experts_touched is eye.bytes_read_expected is None
    row = f"| decode | 4 | 2.50 | 3.5 | {read} B | {read - 20} B |"
    assert row in ReadableReport(report).markdown()


def test_a_comparison_of_batches_has_a_row_for_them():
    reports = [("one", report_with(TOUCHED, 2)), ("other", report_with(None, 2))]
    rows = {row.key: row.values for row in compare(reports).rows}
    assert rows["decode_step_expected_bytes"] == (rows["decode_step_bytes"][0] - 20, None)
    alone = compare([("one", report_with(TOUCHED))]).rows
    assert "decode_step_expected_bytes" not in {row.key for row in alone}
