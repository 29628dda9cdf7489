"""Budgets, report keys and what moved: the rules of `check`, without its command line."""

import random
import re
from contextlib import nullcontext
from datetime import datetime
from functools import reduce
from pathlib import Path

import gated
import msgspec
import pytest
from sampling import every, first, sampled
from write_schema import schemas

from dsocr_analyze import analysis, analytic, errors, figures, timing
from dsocr_analyze.agreement import Agreement, LeftOutShare, NotModelled, PeakAgreement
from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT, PageRequest
from dsocr_analyze.cli.time_requests import time_request
from dsocr_analyze.gate.budgets import DEFAULTS, ReportKeys, budgets_in, edited, is_number
from dsocr_analyze.gate.compared import compared, counted_figures
from dsocr_analyze.gate.judge import Counted, edits_of, judge, loosened_keys, whole_check
from dsocr_analyze.gate.renderers import ReadableCheck, workload_summary
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.report.document import Unassigned, build_report

DOCUMENTED = Path(__file__).parent.parent / "docs" / "check.md"
CREATED = datetime(2026, 1, 2)


def report_of(name="deepseek-ocr", max_new_tokens=5, **values):
    """An analytic report of a small model of an architecture, with other values in its config."""
    architecture = ARCHITECTURES[name]
    directory = ModelDirectory.read(architecture.reference).with_config(gated.small(name, **values))
    workload = architecture.plan(page=(800, 600), max_new_tokens=max_new_tokens)
    return build_report(analytic.page_figures(directory, workload), None, CREATED)


@pytest.fixture(scope="module")
def report():
    return report_of()


def workload_of(*budgets, more=""):
    """A workload with budgets, each what a file says of it, and whatever else is said."""
    tables = "".join(f"[[workloads.page.budgets]]\n{each}\n" for each in budgets)
    return budgets_in(f"[workloads.page]\n{more}\n{tables}", "b.toml", is_pyproject=False)["page"]


def limited(key, *limits):
    return "\n".join([f"key = '{key}'", *limits])


def judged(report, baseline=None, *budgets, more=""):
    counted = Counted(report, baseline, is_compared=baseline is not None)
    return judge(workload_of(*budgets, more=more), counted)


def test_every_number_of_a_report_is_named_by_its_own_path(report):
    keys = ReportKeys(report)
    found = {".".join(path): value for path, _, value in leaves(report)
             if is_number(value) and int not in map(type, path)}  # fmt: skip
    assert len(found) > 1_000
    for path in random.Random(1).sample(sorted(found), 300):
        assert keys.figures(path) == {path: found[path]}


def test_a_star_or_what_an_entry_holds_stands_for_a_name(report):
    resolution = report.workload.views[0].resolution
    for key, expected in {
        "stages.*.flops":
            {f"stages.{name}.flops": each.flops for name, each in report.stages.items()},
        "workload.page[*]": {"workload.page[0]": 800, "workload.page[1]": 600},
        "workload.page[1]": {"workload.page[1]": 600},
        "workload.views[count=6].resolution": {"workload.views[count=6].resolution": resolution},
        "workload.views[ count = 6 ].resolution":
            {"workload.views[count=6].resolution": resolution},
    }.items():  # fmt: skip
        assert [*ReportKeys(report).figures(key).items()] == [*expected.items()]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("total.flop", "did you mean 'flops'?"),
        ("total.flopss", "did you mean 'flops'?"),
        ("totl.flops", "did you mean 'total'?"),
        ("stages.prefil.flops", "did you mean 'prefill'?"),
        ("stages.prefill.by_module.model.layers.0.mlpp.flops", "'model.layers.0.mlp'"),
        ("total", "is not a number: 'total' is an object"),
        ("metadata.engine", "is a text"),
        ("total.flops.", "is unknown"),
        ("total..flops", "is unknown"),
        ("workload.page[2]", "[0] or [1]"),
        ("workload.page[-1]", "[0] or [1]"),
        ("workload.page", "is a list"),
        ("time[gpu=a100-80gb].page_seconds", "gpu = ..."),
        ('stages."prefill".flops', "'stages' has no"),
        ("stages[0]", "'stages' has no"),
        ("[0]", "the report has no"),
        ("." * 5000, "is unknown"),
        ("[" * 5000, "is unknown"),
        ("total.flops\n", "is unknown"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused_with_what_is_there(report, key, said):
    with pytest.raises(errors.ConfigError, match=re.escape(said)):
        ReportKeys(report).figures(key)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a =", "is not TOML"),
        ("[workload.x]", "did you mean 'workloads'?"),
        ("", "there is no workload"),
        ("workloads = 3", "give a table"),
        ("workloads.x = 3", "give a table"),
        ('[workloads.x]\nmoed = "tiny"', "did you mean 'mode'?"),
        ("[workloads.x]\nbasesize = 1", "did you mean 'base_size'?"),
        ("[workloads.x]\nmode = 3", "give a text"),
        ('[workloads.x]\nbatch_size = "3"', "give a whole number"),
        ("[workloads.x]\nbatch_size = 2.5", "give a whole number"),
        ("[workloads.x]\nbatch_size = true", "give a whole number"),
        ("[workloads.x]\nbatch_size = -1", "give a whole number"),
        ("[workloads.x]\ncrop_mode = 2", "give true or false"),
        ("[workloads.x]\ngpu = [1]", "give a name"),
        *((f"[workloads.w]\ntolerance = {given}", "like \"2 %\"")
          for given in ("''", "'%'", "'-2 %'", "'2 percent'", "'1e3 %'", "'nan'", "'inf'",
                        f"'{'9' * 50}'", "-1", "nan")),
        ("[workloads.x]\nbudgets = 3", "give a list of tables"),
        ("[workloads.x.budgets]\nkey = 'a'", "give a list of tables"),
        ("[[workloads.x.budgets]]\nmax = 3", "'workloads.x.budgets[0].key' is missing"),
        ("[[workloads.x.budgets]]\nkey = 'a'", "has no limit"),
        ("[[workloads.x.budgets]]\nkey = 'a'\nmaxx = 1", "did you mean 'max'?"),
        *((f"[[workloads.x.budgets]]\nkey = 'a'\nmax = {given}", "give a number")
          for given in ("'1'", "true", "nan", "inf", "2026-01-01")),
        ("[[workloads.x.budgets]]\nkey = 'a'\nmax = 1\nmin = 2", "at most 1"),
        ("[[workloads.x.budgets]]\nkey = 'a'\nmax = 1\nlevel = 'fatal'", "one of warn, error"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_what_is_right(text, said):
    with pytest.raises(errors.ConfigError, match=f"b.toml.*{re.escape(said)}"):
        budgets_in(text, "b.toml", is_pyproject=False)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ('[project]\nname = "x"\n', None),
        ("[tool.dsocr-analyze.check.workloads.x]\nbatch_size = 2\n", [2]),
        ("[tool.dsocr-analyze.chek]", "did you mean 'check'"),
    ],
)
def test_a_projects_file_has_a_table_of_its_own_or_none(text, sizes):
    refused = pytest.raises(errors.ConfigError, match=re.escape(str(sizes)))
    with refused if isinstance(sizes, str) else nullcontext():
        found = budgets_in(text, "pyproject.toml", is_pyproject=True)
        assert (found and [each.options["batch_size"] for each in found.values()]) == sizes


GREAT = 10**17
"""A number whose neighbours are no floats."""


@pytest.mark.parametrize(
    ("before", "after", "limits", "outcome"),
    [
        (None, 100, ["max = 100"], "passed"),
        (None, 99, ["max = 98"], "failed"),
        (None, GREAT + 1, [f"max = {GREAT}"], "failed"),
        (None, 100, ["min = 100"], "passed"),
        (None, 100, ["min = 101"], "failed"),
        (None, 100, ["level = 'warn'", "max = 99"], "warned"),
        (None, 100, ["max_increase = '2 %'"], "passed"),  # there is nothing to compare with
        (GREAT, GREAT + GREAT // 50, ["max_increase = '2 %'"], "passed"),
        (GREAT, GREAT + GREAT // 50 + 1, ["max_increase = '2%'"], "failed"),
        (GREAT, GREAT + GREAT // 1000, ["max_increase = '0.1%'"], "passed"),
        (GREAT, GREAT + 1, ["max_increase = '0 %'"], "failed"),
        (GREAT, GREAT + 7, ["max_increase = 7"], "passed"),
        (GREAT, GREAT + 8, ["max_increase = '7'"], "failed"),
        (GREAT, 1, ["max_increase = 7"], "passed"),
        (GREAT, GREAT - GREAT // 50, ["max_decrease = '2 %'"], "passed"),
        (GREAT, GREAT - GREAT // 50 - 1, ["max_decrease = '2 %'"], "failed"),
        # Between two whole numbers, the last that is allowed is the nearer to the baseline.
        (GREAT + 1, GREAT + GREAT // 50 + 2, ["max_increase = '2 %'"], "failed"),
        (GREAT + 1, GREAT - GREAT // 50, ["max_decrease = '2 %'"], "failed"),
        (100, 101, [], "failed"),  # without a budget one unit is too much
        (GREAT, GREAT + 1, "1", "passed"),
        (GREAT, GREAT - 2, "1", "failed"),
        (GREAT, GREAT + GREAT // 50, "2 %", "passed"),
        (GREAT, GREAT + GREAT // 50 + 1, "2 %", "failed"),
    ],
)  # fmt: skip
def test_limits_hold_to_the_last_unit(report, before, after, limits, outcome):
    """On the number of parameters; a text is the tolerance of what has no budget."""
    new, old = (each and altered(report, ("total", "params"), each) for each in (after, before))
    more = f"tolerance = '{limits}'" if isinstance(limits, str) else ""
    budgets = [limited("total.params", *limits)] if limits and not more else []
    found = judged(new, old, *budgets, more=more)
    failed, changed = ([each.key for each in figures]
                       for figures in (found.failures("failed"), found.changed))  # fmt: skip
    assert (found.outcome, failed) == (outcome, ["total.params"] * (outcome == "failed"))
    assert changed == ["total.params"] * (before is not None)


def test_limits_that_are_kept_are_counted(report):
    params, exceeded = limited("total.params", "min = 1"), limited("total.flops", "max = 1")
    many, same = "stages.*.by_module.*.flops", compared(report, report).unchanged
    for baseline, budgets, said in [
        (None, [], "page: passed"),
        (None, [params], "page: passed; 1 limit kept"),
        (None, [params, exceeded], "page: FAILED; 1 limit kept"),
        (None, [params, limited("total.flops", "max_increase = '2 %'")],
         "page: passed; 1 limit kept, 1 limit unchecked without a baseline"),
        (None, [limited(many, f"max = {GREAT}")],
         f"page: passed; {len(ReportKeys(report).figures(many)):,} limits kept"),
        (report, [params],
         f"page: passed; all {same:,} figures equal the baseline's, 1 limit kept"),
    ]:  # fmt: skip
        assert workload_summary(judged(report, baseline, *budgets)) == said


def test_every_count_is_watched(report):
    expected = {"workload.visual_tokens", "workload.seq_len", "total.params",
                "memory.kv_cache_bytes", "memory.peak_activation_bytes",
                "memory.weights_bytes"}  # fmt: skip
    expected |= {
        f"{place}.{name}"
        for name in ("flops", "matrix_flops", "vector_flops", "bytes_read", "bytes_written")
        for place in ("total", "total.decode_step", "total.batch",
                      *(f"stages.{stage}" for stage in report.stages))
    }  # fmt: skip
    assert {key: counted_figures(report)[key] for key in expected} == {
        key: value for each in expected for key, value in ReportKeys(report).figures(each).items()
    }


def test_another_architecture_differs_by_whole_stages(report):
    gone = "stages.clip.flops"
    found = judged(report_of("deepseek-ocr-2"), report, limited("stages.*.params", "max = 1e18"))
    assert {each.name for each in found.moves("stage")} >= {"clip", "sam"}
    assert (gone, None) in {(each.key, each.after) for each in found.changed}
    failed = {each.key for each in found.failures("failed")}
    assert failed & {gone, "stages.clip.params"} == {gone}  # the other has a budget


def test_a_relative_limit_without_its_baseline_is_not_kept_secret(report):
    workload = workload_of(limited("total.flops", "max_increase = '2 %'"))
    [verdict] = judge(workload, Counted(report, None, is_compared=True)).verdicts
    assert (verdict.outcome, "there is no baseline" in verdict.message) == ("warned", False)


def test_modules_and_operators_add_up_to_their_stage(report):
    found = judged(report_of(moe_intermediate_size=897), report)
    assert {each.name for each in found.moves("stage")} == {"prefill", "decode"}
    for stage in found.moves("stage"):
        for level, name in (("module", "flops"), ("module", "bytes"), ("operator", "flops")):
            parts = (getattr(each, name).difference for each in found.moves(level)
                     if each.stage == stage.name)  # fmt: skip
            assert sum(parts) == getattr(stage, name).difference


def test_one_unit_more_in_a_dense_layer_by_hand(report):
    found = compared(report, report_of(intermediate_size=6849))
    # Layer 0 alone is dense: three linear layers of 1280 x 1 more, two FLOPs each and token.
    [decode] = [each for each in found.moved
                if (each.level, each.stage, each.name)
                == ("module", "decode", "model.layers.0.mlp.down_proj")]  # fmt: skip
    assert (decode.flops.difference, decode.modules) == (2 * 1280, 1)
    batch = report.total.batch  # in which there are four such steps
    assert decode.share == 4 * max(
        decode.flops.difference / batch.flops, decode.bytes.difference / batch.bytes_moved
    )
    assert [(each.key, each.before, each.after) for each in found.inputs] == [
        ("intermediate_size", "6848", "6849"),
        ("language_config.intermediate_size", "6848", "6849"),
    ]


@sampled(
    ("values", "module"),
    [
        ({"num_experts_per_tok": 8}, "mlp"),
        ({"num_experts_per_tok": 7}, "mlp"),
        ({"moe_intermediate_size": 897}, "mlp."),
        ({"n_shared_experts": 3}, "mlp.shared_experts"),
        ({"vocab_size": 129281}, "lm_head"),
    ],
    every(3),
)
@sampled("name", ["deepseek-ocr", "deepseek-ocr-2", "unlimited-ocr"], first(1))
def test_a_seeded_mistake_heads_the_difference(name, values, module):
    found, [(key, value)] = judged(report_of(name, **values), report_of(name)), values.items()
    modules = found.moves("module")
    for width in (80, 100, 132):
        readable = ReadableCheck(whole_check("b.toml", None, [found]))
        lines = [each.text for each in readable.lines(width)]
        head = next(each for each in lines if each.startswith("  "))
        assert re.fullmatch(f"  changed: .*{key}: .* -> {value}", head)
        assert f"moved most, module: {modules[0].name}" in " ".join(lines[:9])
        assert [each[:width].rstrip() for each in lines] == lines
        assert "(1 modules)" not in " ".join(lines)
    assert (module in modules[0].name, found.moves("operator")[0].name) == (True, "linear")
    shares = [each.share for each in modules]
    assert shares == sorted(shares, reverse=True)


BEGIN = "[tool.dsocr-analyze.check.workloads.page]"
TEXT = (
    f"# mine, with\ttabs\n[project]  # kept\nname = 'x'\n\n{BEGIN}\npage = '800x600' # also\n"
    "max_new_tokens = 5\n\n[[tool.dsocr-analyze.check.workloads.page.budgets]]\n"
    "key = 'total.flops'   # aligned\nmax = 1_000 # too few\n\n[tool.other]\nlist = [\n 1,\n]\n"
)


def updated(text, report, baseline=None):
    """The text with its new limits, and the workload in it, which passes."""
    counted = Counted(report, baseline, is_compared=baseline is not None)
    workload = budgets_in(text, "pyproject.toml", is_pyproject=True)["page"]
    edits = {"page": edits_of(workload, counted, judge(workload, counted))}
    new = edited(text, "pyproject.toml", edits, is_pyproject=True)
    workload = budgets_in(new, "pyproject.toml", is_pyproject=True)["page"]
    assert judge(workload, counted).outcome == "passed"
    return new, workload


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("limit", ["1_000", "9e15"])
def test_everything_else_and_what_is_kept_stays_as_it_is(report, end, limit):
    text = TEXT.replace("\n", end).replace("1_000", limit)
    assert updated(text, report)[0] == text.replace("1_000", str(report.total.flops))


@pytest.mark.parametrize(
    "text",
    [
        BEGIN,
        "[tool.dsocr-analyze.check]\nworkloads = {page = {}}",
        "tool.dsocr-analyze.check.workloads.page.mode = 'small'",
        f"{BEGIN}\nbudgets = []\n[z]\na = 1",
        f"{BEGIN}\n[tool.z]\n[tool.dsocr-analyze.check.workloads.b]\nmode = 'tiny'\n",
    ],
)
def test_a_workload_without_budgets_gets_some_that_it_keeps(report, text):
    found = judge(updated(text, report)[1], Counted(report)).verdicts
    assert (len(found) > 5, [each.value for each in found]) == (
        True,
        [each.limit for each in found],
    )


def test_a_changed_figure_gets_a_budget_that_is_exactly_it(report):
    new, workload = updated(TEXT, report_of(num_experts_per_tok=7), report)
    for experts in (6, 8):
        counted = Counted(report_of(num_experts_per_tok=experts), report, is_compared=True)
        assert judge(workload, counted).outcome == "failed"
    assert (new[:40], "[tool.other]\nlist = [\n 1,\n]\n" in new) == (TEXT[:40], True)
    assert new.count(f"\n\n[{BEGIN[:-1]}.budgets]]\n") == len(workload.budgets) > 5


# Every leaf ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full():
    """A small report in which everything that a report may state is stated."""
    directory = ModelDirectory.read(DEFAULT.reference).with_config(gated.small())
    request = time_request(("h100-sxm",), {"concurrency": "1,4", "price": 2.0, "corrections": 0})
    asked = PageRequest(architecture=DEFAULT, page=(800, 600), max_new_tokens=5, engine="analytic")
    found = analysis.Engine(directory, time=request).report(asked)
    correction = timing.TimeCorrection(
        server_version="1", first_token=1.5, per_token=1.25, first_token_error=0.5,
        per_token_error=0.25, benchmarks=("a.json",), requests=3, kept="2026-01-02",
    )  # fmt: skip
    counts = dict.fromkeys(figures.Counts.__struct_fields__, 2)
    agreement = Agreement(
        agrees=True, stages={name: {"flops": True} for name in found.stages}, kv_cache_bytes=True,
        batch=True, peak_activation_bytes=PeakAgreement(traced=1, analytic=1, agrees=True),
        first_difference="none",
        not_modelled_share={"sam": LeftOutShare(vector_flops=0.5, bytes=0)},
        not_modelled=(
            NotModelled(**counts, stage="sam", modules="*", operators=("add",), reason="none"),
        ),
    )  # fmt: skip
    few = {
        name: msgspec.structs.replace(stage, by_module=dict([*stage.by_module.items()][-8:]))
        for name, stage in found.stages.items()
    }
    return msgspec.structs.replace(
        found, stages=few, agreement=agreement, unassigned=Unassigned(params=1, names=("a",)),
        time=(altered(found.time[0], ("assumptions", "correction"), correction),),
        warnings=("a doubt",),
    )  # fmt: skip


def leaves(value, path=(), kind=None):
    """The path and the kind (an object's type and key) of everything that a report states."""
    is_object = isinstance(value, msgspec.Struct)
    named = dict(enumerate(value)) if isinstance(value, tuple) else value
    named = msgspec.structs.asdict(value) if is_object else named
    if not isinstance(named, dict):
        yield path, kind, value
        return
    for name, each in named.items():
        own = f"{type(value).__name__}.{name}" if is_object else kind
        yield from leaves(each, (*path, name), own)


def altered(value, path, new):
    """A report, or a part of one, with another value at a path."""
    if not path:
        return new
    [name, *rest] = path
    if isinstance(value, tuple):
        return (*value[:name], altered(value[name], rest, new), *value[name + 1 :])
    if isinstance(value, dict):
        return {**value, name: altered(value[name], rest, new)}
    return msgspec.structs.replace(value, **{name: altered(getattr(value, name), rest, new)})


def another(value):
    if isinstance(value, bool | None):
        return not value
    return f"{value}x" if isinstance(value, str) else value + 1


LEFT_OUT = {"metadata.created", "metadata.model.id"}
"""What docs/check.md names as not compared."""

OF_HOW_IT_WAS_COUNTED = {
    f"metadata.{name}"
    for name in ("versions.tool", "engine", "device", "kernels_of", "model.architecture",
                 "model.source", "model.class_name", "model.config_digest", "model.config_text",
                 "model.code_digest", "model.weights", *(f"conventions.{n}" for n in range(6)))
}  # fmt: skip
"""What is listed without a doubt, since the model or the tool may change."""


def is_noticed(full, path, value):
    """Whether a check of a report notices that its baseline has another value somewhere."""
    key = ".".join(map(str, path))
    found = judged(full, altered(full, path, another(value)))
    if key in LEFT_OUT:
        return found.inputs == () and found.warnings == full.warnings
    if is_number(value):
        [verdict] = found.failures("failed")
        return (verdict.baseline, verdict.value) == (value + 1, value) and found.unchanged > 0
    [change] = found.inputs
    is_doubted = found.warnings != full.warnings
    return change.before != change.after and is_doubted == (key not in OF_HOW_IT_WAS_COUNTED)


# A saved report is altered in one place after another, and each time it is noticed.


def test_the_report_of_these_tests_states_everything_that_a_report_may(full):
    kinds = {kind.partition(".")[0] for _, kind, _ in leaves(full)}
    assert set(schemas()["schema.json"]["$defs"]) - kinds == {"Report"} - kinds


@sampled("leaf", ["of every kind", "at all"], first(1))
def test_everything_is_compared(full, leaf):
    kinds = {path if leaf == "at all" else (kind, type(value)): (path, value)
             for path, kind, value in leaves(full) if path != ("schema_version",)}  # fmt: skip
    assert len(kinds) > (1_000 if leaf == "at all" else 100)
    unnoticed = [path for path, value in kinds.values() if not is_noticed(full, path, value)]
    assert unnoticed == []


def test_what_follows_from_a_changed_figure_needs_no_budget(report):
    after = report_of(num_experts_per_tok=7)
    found = judged(after, report)
    both = {path for path, _, value in leaves(after) if is_number(value)}
    numbers = sum(path in both for path, _, _ in leaves(report))
    assert found.unchanged + found.following + len(found.changed) == numbers
    assert found.following > 500
    assert {each.key for each in found.changed} <= set(counted_figures(report))


LEAF = "stages.sam.by_module.model.sam_model.net_3.own.flops"


@pytest.mark.parametrize(
    ("changes", "failed", "inputs"),
    [
        # A stage does not explain another, and no figure the type.
        ({("stages", "sam", "by_module", "model.sam_model.net_3", "own", "flops"): 1,
          ("stages", "clip", "flops"): 1, ("metadata", "dtype"): "float16"},
         [LEAF, "stages.clip.flops"], [("dtype", "float16")]),
        # What an early report does not state is listed and no difference.
        ({("stages", "sam", "operator_bytes"): None}, [], [("stages.sam.operator_bytes", None)]),
        ({("memory", "inputs_bytes"): None}, [], [("memory.inputs_bytes", None)]),
        ({("workload", "text_tokens"): None}, [], [("text_tokens", None)]),
        ({("time",): ()}, [], [("time", None)]),
    ],
)  # fmt: skip
def test_what_a_baseline_says_otherwise_or_not_is_named(full, changes, failed, inputs):
    found = judged(full, reduce(lambda before, each: altered(before, *each), changes.items(), full))
    assert [each.key for each in found.failures("failed")] == failed
    assert [(each.key, each.before) for each in found.inputs] == inputs
    assert found.warnings != full.warnings


def test_entries_of_lists_are_compared_with_their_like(full):
    other = msgspec.structs.replace(full.time[0], gpu="a100-80gb-sxm", page_seconds=1.0)
    after = msgspec.structs.replace(full, time=(other, *full.time))
    found = judged(after, altered(full, ("time", 0, "page_seconds"), 99.0))
    [change], [verdict] = found.inputs, found.failures("failed")
    assert (change.key, change.before, "gpu=a100-80gb-sxm" in change.after) == ("time", None, True)
    assert verdict.key == "time[gpu=h100-sxm, runtime=serving].page_seconds"
    assert ReportKeys(full).figures(verdict.key) == {verdict.key: verdict.value}
    mine = ReportKeys(altered(full, ("time", 0, "gpu"), "My_GPU"))
    assert [*mine.figures("time[gpu=My_GPU].page_seconds").values()] == [verdict.value]


def test_an_entry_that_only_the_baseline_holds_twice_is_no_figure_of_it(report):
    views = report.workload.views
    label = f"workload.views[count={views[0].count}].resolution"
    before = altered(report, ("workload", "views"), (views[0], *views))
    found = judged(report, before, limited(label, "max_increase = 0"))
    assert found.failures("failed")[0].message.endswith("the baseline has no such figure")


# A change that loosens what checks it is said, and is a doubt.


FLOPS = "total.flops"
OLD = (limited(FLOPS, f"max = {10**15}"), limited("stages.*.params", "max_increase = '2 %'"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OLD, OLD),
        (OLD, (*OLD, limited(FLOPS, "min = 1"))),
        (OLD, (limited(FLOPS, f"max = {10**14}"), OLD[1])),
        (OLD, ()),  # then they must be equal
        ([limited(FLOPS, "level = 'warn'", "max = 9")], [limited(FLOPS, "max = 9")]),
        ("max = 9", "max = 10"),
        ("max = 9\nmin = 2", "max = 9"),
        ("max = 9", 'max = 9\nlevel = "warn"'),
        ("max = 9", 'max_increase = "2 %"'),
        ('max_increase = "2 %"', 'max_increase = "2.1 %"'),
        ('max_increase = "2 %"', "max_increase = 999_999_999_999_999"),
        ("max_increase = 1\nmax_decrease = 1", "max_increase = 1"),
    ],
)
def test_every_way_to_allow_more_is_seen_and_what_is_kept_or_tightened_no_doubt(report, old, new):
    """A text is a limit of one figure, and each that is loosened."""
    is_looser = isinstance(old, str)
    before, after = (
        workload_of(*([limited(FLOPS, each)] if is_looser else each)) for each in (old, new)
    )
    assert loosened_keys(before, after, report) == [FLOPS] * is_looser


def test_a_first_budget_stands_in_for_equality(report):
    flops, stages = report.total.flops, [f"stages.{name}.flops" for name in report.stages]
    for budget, loosened in (
        (limited(FLOPS, f"max = {flops}", f"min = {flops}"), []),
        (limited("stages.*.flops", f"max = {10**18}"), stages),
    ):
        assert loosened_keys(workload_of(), workload_of(budget), report) == loosened


def test_a_tolerance_is_a_limit_of_everything_without_one(report):
    strict, tolerant = workload_of(*OLD), workload_of(*OLD, more="tolerance = '1 %'")
    named = {FLOPS, *(f"stages.{name}.params" for name in report.stages)}
    expected = {key for key, value in counted_figures(report).items() if value} - named
    assert set(loosened_keys(strict, tolerant, report)) == expected
    assert loosened_keys(tolerant, strict, report) == []


def test_the_page_names_every_option_and_every_limit_and_what_is_left_out():
    text = DOCUMENTED.read_text(encoding="utf-8")
    limits = ("key", "level", "max", "min", "max_increase", "max_decrease", "tolerance")
    assert [name for name in (*DEFAULTS, *limits, *LEFT_OUT) if f"`{name}`" not in text] == []
