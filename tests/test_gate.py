"""Budgets, report keys and what moved: the rules of `check`, without its command line."""

from __future__ import annotations

import dataclasses
import json
import random
from fractions import Fraction
from pathlib import Path

import gated
import msgspec
import pytest
from sampling import every, first, sampled

from dsocr_analyze.agreement import Agreement, LeftOutShare, NotModelled, PeakAgreement
from dsocr_analyze.analysis import Engine
from dsocr_analyze.analytic import page_figures
from dsocr_analyze.architectures import ARCHITECTURES, PageRequest
from dsocr_analyze.cli.time_requests import time_request
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.figures import Counts
from dsocr_analyze.gate.budgets import (
    DEFAULTS,
    OF_CHANGES,
    OF_VALUES,
    Budget,
    BudgetedWorkload,
    Limit,
    budgets_in,
    edited,
)
from dsocr_analyze.gate.compared import ReportChanges, compared, counted_figures
from dsocr_analyze.gate.judge import (
    Counted,
    edits_of,
    judge,
    loosened_keys,
    redefinitions,
    whole_check,
)
from dsocr_analyze.gate.renderers import ReadableCheck, equal_text, workload_summary
from dsocr_analyze.gate.report_keys import ReportKeys
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.report.document import Report, Unassigned, build_report
from dsocr_analyze.report.opening import schema_of
from dsocr_analyze.timing import TimeCorrection

DOCUMENTED = Path(__file__).parent.parent / "docs" / "check.md"
CREATED = __import__("datetime").datetime(2026, 1, 2)


def report_of(name="deepseek-ocr", max_new_tokens=5, **values):
    """An analytic report of an architecture with other values in its config."""
    architecture = ARCHITECTURES[name]
    directory = ModelDirectory.read(architecture.reference)
    directory = directory.with_config(gated.with_values(directory.config, **values))
    workload = architecture.plan(page=(800, 600), max_new_tokens=max_new_tokens)
    return build_report(page_figures(directory, workload), None, CREATED)


@pytest.fixture(scope="module")
def report():
    return report_of()


def limited(key, level="error", **limits):
    """A budget; limits on changes are those that `allowance` returns."""
    found = (
        dataclasses.replace(value, name=name) if isinstance(value, Limit)
        else Limit(name, value, f"{value:,}".removesuffix(".0"))
        for name, value in limits.items()
    )  # fmt: skip
    return Budget(key, level, tuple(found))


def allowance(given):
    """What a file allows where it says so."""
    given = given if isinstance(given, int | float) else json.dumps(given)
    text = f"[workloads.w]\ntolerance = {given}"
    return budgets_in(text, "b.toml", is_pyproject=False)["w"].tolerance


EQUAL = allowance("0")


def workload_of(*budgets, options=DEFAULTS, tolerance=EQUAL):
    return BudgetedWorkload("page", options, tolerance, budgets)


def judged(report, baseline=None, *budgets, **tolerance):
    counted = Counted(report, baseline, is_compared=baseline is not None)
    return judge(workload_of(*budgets, **tolerance), counted)


class TestReportKeys:
    @pytest.mark.exhaustive
    def test_every_number_of_a_report_is_named_by_its_own_path(self, report):
        document, keys = msgspec.to_builtins(report), ReportKeys(report)

        def numbers(value, path):
            if isinstance(value, dict):
                for name, each in value.items():
                    yield from numbers(each, f"{path}.{name}" if path else name)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield path, value

        found = dict(numbers(document, ""))
        assert len(found) > 10_000
        for path in random.Random(1).sample(sorted(found), 300):
            assert keys.figures(path) == {path: found[path]}

    def test_names_with_dots_may_stand_in_quotes(self, report):
        keys = ReportKeys(report)
        rest = 'model.layers.0.mlp".own.flops'
        quoted = keys.figures(f'stages.prefill.by_module."{rest}')
        assert quoted == keys.figures("stages.prefill.by_module.model.layers.0.mlp.own.flops")

    def test_a_star_is_any_one_name(self, report):
        figures = ReportKeys(report).figures("stages.*.flops")
        assert [*figures] == [f"stages.{name}.flops" for name in report.stages]
        assert [*figures.values()] == [each.flops for each in report.stages.values()]

    def test_a_longer_name_is_not_the_one_that_it_begins_with(self, report):
        with pytest.raises(ConfigError, match="did you mean 'flops'"):
            ReportKeys(report).figures("total.flopss")

    def test_entries_of_lists_are_named_by_number_or_by_what_they_hold(self, report):
        keys = ReportKeys(report)
        assert keys.figures("workload.page[1]") == {"workload.page[1]": 600}
        assert [*keys.figures("workload.page[*]").values()] == [800, 600]
        [resolution] = keys.figures("workload.views[count=6].resolution").values()
        assert resolution == report.workload.views[0].resolution

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("key", "said"),
        [
            ("total.flop", "did you mean 'flops'?"),
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
            ('stages."prefill', "no closing quote"),
            ("stages[0]", "'stages' has no"),
            ("[0]", "the report has no"),
            ("." * 5000, "is unknown"),
            ("[" * 5000, "is unknown"),
            ("total.flops\n", "is unknown"),
        ],
    )  # fmt: skip
    def test_what_is_no_number_is_refused_with_what_is_there(self, report, key, said):
        with pytest.raises(ConfigError) as error:
            ReportKeys(report).figures(key)
        assert said in str(error.value)


class TestBudgets:
    @pytest.mark.parametrize(
        ("text", "amount"),
        [("2 %", Fraction(1, 50)), ("0.1%", Fraction(1, 1000)), ("0%", 0), ("7", 7), (7, 7)],
    )
    def test_an_allowance_is_exact(self, text, amount):
        found = allowance(text)
        assert (found.amount, found.is_relative) == (amount, str(text).endswith("%"))

    @pytest.mark.parametrize(
        "text", ["", "%", "-2 %", "2 percent", "1e3 %", "nan", "inf", "9" * 50, -1, float("nan")]
    )
    def test_what_allows_nothing_that_makes_sense_is_refused(self, text):
        with pytest.raises(ConfigError, match=r"'workloads\.w\.tolerance' is .*; give a percent"):
            allowance(text)

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
            ("[workloads.x]\ntolerance = 'some'", 'like "2 %"'),
            ("[workloads.x]\nbudgets = 3", "give a list of tables"),
            ("[workloads.x.budgets]\nkey = 'a'", "give a list of tables"),
            ("[[workloads.x.budgets]]\nmax = 3", "'workloads.x.budgets[0].key' is missing"),
            ("[[workloads.x.budgets]]\nkey = 'a'", "has no limit"),
            ("[[workloads.x.budgets]]\nkey = 'a'\nmaxx = 1", "did you mean 'max'?"),
            ("[[workloads.x.budgets]]\nkey = 'a'\nmax = '1'", "give a number"),
            ("[[workloads.x.budgets]]\nkey = 'a'\nmax = true", "give a number"),
            ("[[workloads.x.budgets]]\nkey = 'a'\nmax = nan", "give a number"),
            ("[[workloads.x.budgets]]\nkey = 'a'\nmax = inf", "give a number"),
            ("[[workloads.x.budgets]]\nkey = 'a'\nmax = 2026-01-01", "give a number"),
            ("[[workloads.x.budgets]]\nkey = 'a'\nmax = 1\nmin = 2", "at most 1"),
            ("[[workloads.x.budgets]]\nkey = 'a'\nmax = 1\nlevel = 'fatal'", "one of warn, error"),
        ],
    )
    def test_a_mistake_is_named_with_what_is_right(self, text, said):
        with pytest.raises(ConfigError) as error:
            budgets_in(text, "b.toml", is_pyproject=False)
        assert said in str(error.value)
        assert "b.toml" in str(error.value)

    def test_a_projects_file_has_a_table_of_its_own_or_none(self):
        text = '[project]\nname = "x"\n'
        assert budgets_in(text, "pyproject.toml", is_pyproject=True) is None
        text += "[tool.dsocr-analyze.check.workloads.x]\nbatch_size = 2\n"
        found = budgets_in(text, "pyproject.toml", is_pyproject=True)
        assert found["x"].options["batch_size"] == 2
        with pytest.raises(ConfigError, match="did you mean 'check'"):
            budgets_in("[tool.dsocr-analyze.chek]", "pyproject.toml", is_pyproject=True)


class TestJudging:
    def test_limits_hold_to_the_last_unit(self, report):
        flops = report.total.flops
        for budget, outcome in [
            (limited("total.flops", max=flops), "passed"),
            (limited("total.flops", max=flops - 1), "failed"),
            (limited("total.flops", min=flops), "passed"),
            (limited("total.flops", min=flops + 1), "failed"),
            (limited("total.flops", level="warn", max=flops - 1), "warned"),
        ]:
            assert judged(report, None, budget).outcome == outcome, budget

    def test_limits_that_are_kept_are_counted(self, report):
        kept, exceeded = limited("total.*", max=10**18), limited("total.flops", max=1)
        [*figures] = ReportKeys(report).figures("total.*")
        params = limited("total.params", min=1)
        [*every] = ReportKeys(report).figures("stages.*.by_module.*.flops")
        assert len(every) > 1_000
        for budgets, said in [
            ((), "page: passed"),
            ((params,), "page: passed; 1 limit kept"),
            ((kept,), f"page: passed; {len(figures)} limits kept"),
            ((params, exceeded), "page: FAILED; 1 limit kept"),
            ((limited("stages.*.by_module.*.flops", max=10**18),),
             f"page: passed; {len(every):,} limits kept"),
        ]:  # fmt: skip
            assert workload_summary(judged(report, None, *budgets)) == said
        same = judged(report, report, params)
        assert workload_summary(same) == f"page: passed; all {equal_text(same)}, 1 limit kept"

    def test_an_increase_is_held_to_an_exact_part_of_the_baseline(self):
        before, after = report_of(), report_of(num_experts_per_tok=7)
        old, new = before.total.params, after.total.params
        assert old == new
        old, new = before.total.flops, after.total.flops
        needed = Fraction(new - old, old)
        for part, outcome in ((needed, "passed"), (needed - Fraction(1, 10**15), "failed")):
            exact = Limit("tolerance", part, "exact", is_relative=True)
            found = judged(after, before, limited("total.flops", max_increase=exact))
            [verdict] = [each for each in found.verdicts if each.key == "total.flops"]
            assert verdict.outcome == outcome

    def test_without_a_budget_one_unit_is_too_much(self, report):
        total = msgspec.structs.replace(report.total, params=report.total.params + 1)
        found = judged(msgspec.structs.replace(report, total=total), report)
        assert found.outcome == "failed"
        assert [each.key for each in found.changed] == ["total.params"]
        assert [each.key for each in found.failures("failed")] == ["total.params"]

    def test_a_tolerance_allows_what_has_no_budget(self, report):
        total = msgspec.structs.replace(report.total, params=report.total.params + 1)
        after = msgspec.structs.replace(report, total=total)
        assert judged(after, report, tolerance=allowance("1")).outcome == "passed"
        assert judged(after, report, tolerance=allowance("0.00000001 %")).outcome == "failed"

    @pytest.mark.exhaustive
    def test_every_count_is_watched(self, report):
        counted = counted_figures(report)
        for name in ("flops", "matrix_flops", "vector_flops", "bytes_read", "bytes_written"):
            for place in ("total", "total.decode_step", "total.batch",
                          *(f"stages.{stage}" for stage in report.stages)):  # fmt: skip
                key = f"{place}.{name}"
                assert ReportKeys(report).figures(key) == {key: counted[key]}
        others = {"workload.visual_tokens", "workload.seq_len", "total.params"}
        memory = {"memory.kv_cache_bytes", "memory.peak_activation_bytes", "memory.weights_bytes"}
        assert others | memory <= set(counted)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("name", list(ARCHITECTURES))
    def test_the_same_again_is_no_difference(self, name):
        first, again = report_of(name), report_of(name)
        numbers = sum(is_number(value) for _, _, value in leaves(first))
        assert compared(first, again) == ReportChanges(unchanged=numbers)
        assert judged(again, first).outcome == "passed"

    def test_another_architecture_differs_by_whole_stages(self):
        found = judged(report_of("deepseek-ocr-2"), report_of("deepseek-ocr"))
        assert found.outcome == "failed"
        assert {each.name for each in found.moves("stage")} >= {"clip", "sam"}
        gone = [each for each in found.changed if each.key == "stages.clip.flops"]
        assert [each.after for each in gone] == [None]

    def test_a_relative_limit_without_a_baseline_says_so_and_is_not_kept_secret(self, report):
        workload = workload_of(limited("total.flops", max_increase=allowance("2 %")))
        found = judge(workload, Counted(report, None, is_compared=True))
        assert found.outcome == "warned"
        assert "there is no baseline" not in found.verdicts[0].message
        assert judge(workload, Counted(report)).outcome == "passed"


class TestMoved:
    def test_modules_add_up_to_their_stage(self):
        before, after = report_of(), report_of(moe_intermediate_size=897)
        found = compared(before, after).moved
        for stage in [each for each in found if each.level == "stage"]:
            modules = [each for each in found if (each.level, each.stage) == ("module", stage.name)]
            assert sum(each.flops.difference for each in modules) == stage.flops.difference
            assert sum(each.bytes.difference for each in modules) == stage.bytes.difference
            operators = [
                each for each in found if (each.level, each.stage) == ("operator", stage.name)
            ]
            assert sum(each.flops.difference for each in operators) == stage.flops.difference

    @pytest.mark.exhaustive
    def test_one_unit_more_in_a_dense_layer_by_hand(self):
        before, after = report_of(), report_of(intermediate_size=6849)
        # Layer 0 alone is dense: three linear layers of 1280 x 1 more, two FLOPs each and token.
        [decode] = [each for each in compared(before, after).moved
                    if (each.level, each.stage, each.name)
                    == ("module", "decode", "model.layers.0.mlp.down_proj")]  # fmt: skip
        assert decode.flops.difference == 2 * 1280
        assert decode.modules == 1
        assert [(each.key, each.before, each.after) for each in compared(before, after).inputs] == [
            ("intermediate_size", "6848", "6849"),
            ("language_config.intermediate_size", "6848", "6849"),
        ]

    @sampled(
        ("values", "module"),
        [
            ({"num_experts_per_tok": 64}, "mlp"),
            ({"num_experts_per_tok": 7}, "mlp"),
            ({"moe_intermediate_size": 897}, "mlp."),
            ({"n_shared_experts": 3}, "mlp.shared_experts"),
            ({"vocab_size": 129281}, "lm_head"),
        ],
        every(3),
    )
    @sampled("name", ["deepseek-ocr", "deepseek-ocr-2", "unlimited-ocr"], first(1))
    def test_a_seeded_mistake_heads_the_difference(self, name, values, module):
        found = judged(report_of(name, **values), report_of(name))
        lines = [each.text for each in ReadableCheck(whole(found)).lines(80)]
        [key] = values
        assert found.outcome == "failed"
        heads = [line for line in lines if line.startswith("  ")]
        assert key in heads[0]
        assert heads[0].startswith("  changed: ")
        assert module in found.moves("module")[0].name
        assert found.moves("operator")[0].name == "linear"
        shares = [each.share for each in found.moves("module")]
        assert shares == sorted(shares, reverse=True)


def whole(*workloads):
    return whole_check("b.toml", None, workloads)


class TestUpdating:
    TEXT = (
        "# mine, with\ttabs\n[project]  # kept\nname = 'x'\n\n"
        "[tool.dsocr-analyze.check.workloads.page]\npage = '800x600' # also mine\n"
        "max_new_tokens = 5\n\n[[tool.dsocr-analyze.check.workloads.page.budgets]]\n"
        "key = 'total.flops'   # aligned\nmax = 1_000 # too few\n\n[tool.other]\nlist = [\n 1,\n]\n"
    )

    def updated(self, text, report, baseline=None):
        budgets = budgets_in(text, "pyproject.toml", is_pyproject=True)
        workload = budgets["page"]
        check = judge(workload, Counted(report, baseline, is_compared=baseline is not None))
        edits = {"page": edits_of(workload, report, check)}
        return edited(text, "pyproject.toml", edits, is_pyproject=True)

    @pytest.mark.exhaustive
    def test_everything_else_stays_as_it_is(self, report):
        new = self.updated(self.TEXT, report)
        assert new == self.TEXT.replace("1_000", str(report.total.flops))

    def test_line_ends_stay(self, report):
        text = self.TEXT.replace("\n", "\r\n")
        new = self.updated(text, report)
        assert new == text.replace("1_000", str(report.total.flops))

    def test_what_is_kept_stays(self, report):
        text = self.TEXT.replace("1_000", "9e15")
        assert self.updated(text, report) == text

    @pytest.mark.parametrize(
        "text",
        [
            "[tool.dsocr-analyze.check.workloads.page]",
            "[tool.dsocr-analyze.check]\nworkloads = {page = {}}",
            "tool.dsocr-analyze.check.workloads.page.mode = 'small'",
            "[tool.dsocr-analyze.check.workloads.page]\nbudgets = []\n[z]\na = 1",
            "[tool.dsocr-analyze.check.workloads.page]\n[tool.z]\n"
            "[tool.dsocr-analyze.check.workloads.b]\nmode = 'tiny'\n",
        ],
    )
    def test_a_workload_without_budgets_gets_some_that_it_keeps(self, report, text):
        new = self.updated(text, report)
        workload = budgets_in(new, "pyproject.toml", is_pyproject=True)["page"]
        assert len(workload.budgets) > 5
        found = judge(workload, Counted(report))
        assert found.outcome == "passed"
        assert all(each.value == each.limit for each in found.verdicts)

    @pytest.mark.exhaustive
    def test_a_changed_figure_gets_a_budget_that_is_exactly_it(self, report):
        after = report_of(num_experts_per_tok=7)
        new = self.updated(self.TEXT, after, report)
        workload = budgets_in(new, "pyproject.toml", is_pyproject=True)["page"]
        assert judge(workload, Counted(after, report, is_compared=True)).outcome == "passed"
        again = judge(workload, Counted(report_of(num_experts_per_tok=8), report, is_compared=True))
        assert again.outcome == "failed"
        assert new.startswith(self.TEXT[:40])
        assert "[tool.other]\nlist = [\n 1,\n]\n" in new


# Every leaf ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full():
    """A small report in which everything that a report may state is stated."""
    architecture = ARCHITECTURES["deepseek-ocr"]
    directory = ModelDirectory.read(architecture.reference)
    small = {"num_hidden_layers": 2, "layers": 1, "global_attn_indexes": [0]}
    directory = directory.with_config(gated.with_values(directory.config, **small))
    request = time_request(("h100-sxm",), {"concurrency": "1,4", "price": 2.0, "corrections": 0})
    asked = PageRequest(
        architecture=architecture, page=(800, 600), max_new_tokens=5, engine="analytic"
    )
    found = Engine(directory, time=request).report(asked)
    [entry] = found.time
    correction = TimeCorrection(
        server_version="1", first_token=1.5, per_token=1.25, first_token_error=0.5,
        per_token_error=0.25, benchmarks=("a.json",), requests=3, kept="2026-01-02",
    )  # fmt: skip
    counts = dict.fromkeys(Counts.__struct_fields__, 2)
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
        time=(altered(entry, ("assumptions", "correction"), correction),),
        warnings=("a doubt",),
    )  # fmt: skip


def leaves(value, path=(), kind=None):
    """The path and the kind (an object's type and key) of everything that a report states."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from leaves(getattr(value, name), (*path, name), f"{type(value).__name__}.{name}")
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, (*path, name), kind)
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from leaves(each, (*path, index), kind)
    else:
        yield path, kind, value


def altered(value, path, new):
    """A report with another value at a path."""
    if not path:
        return new
    [name, *rest] = path
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **{name: altered(getattr(value, name), rest, new)})
    if isinstance(value, dict):
        return {**value, name: altered(value[name], rest, new)}
    return (*value[:name], altered(value[name], rest, new), *value[name + 1 :])


def another(value):
    if isinstance(value, bool | None):
        return not value
    return f"{value}x" if isinstance(value, str) else value + 1


LEFT_OUT = {"metadata.created", "metadata.model.id"}
"""What docs/check.md names as not compared."""

PARTS = [name for name in Report.__struct_fields__ if name != "schema_version"]

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
    if isinstance(value, int | float) and not isinstance(value, bool):
        [verdict] = found.failures("failed")
        return (verdict.baseline, verdict.value) == (value + 1, value) and found.unchanged > 0
    [change] = found.inputs
    is_doubted = found.warnings != full.warnings
    return change.before != change.after and is_doubted == (key not in OF_HOW_IT_WAS_COUNTED)


class TestEveryLeaf:
    """A saved report is altered in one place after another, and each time it is noticed."""

    def test_the_report_of_these_tests_states_everything_that_a_report_may(self, full):
        kinds = {kind.partition(".")[0] for _, kind, _ in leaves(full)}
        assert set(schema_of(Report, "")["$defs"]) - kinds == {"Report"} - kinds

    @sampled("part", PARTS, every(3))
    def test_every_kind_of_statement_is_compared(self, full, part):
        kinds = {(kind, type(value)): (path, value)
                 for path, kind, value in leaves(full) if path[0] == part}  # fmt: skip
        assert kinds
        unnoticed = [path for path, value in kinds.values() if not is_noticed(full, path, value)]
        assert unnoticed == []

    @pytest.mark.exhaustive
    def test_every_single_leaf_is_compared(self, full):
        found = [(path, value) for path, _, value in leaves(full) if path != ("schema_version",)]
        assert len(found) > 1_000
        assert [path for path, value in found if not is_noticed(full, path, value)] == []

    def test_a_new_key_is_compared_without_being_listed_anywhere(self, report):
        class Wider(type(report.workload), frozen=True, kw_only=True):
            dots_per_inch: int
            colour: str

        def with_dots(dots, colour):
            fields = msgspec.structs.asdict(report.workload)
            workload = Wider(**fields, dots_per_inch=dots, colour=colour)
            return msgspec.structs.replace(report, workload=workload)

        found = judged(with_dots(300, "grey"), with_dots(200, "grey"))
        assert [each.key for each in found.failures("failed")] == ["workload.dots_per_inch"]
        found = judged(with_dots(300, "grey"), with_dots(300, "red"))
        [change] = found.inputs
        assert (change.key, change.before, change.after) == ("colour", "red", "grey")
        assert found.outcome == "warned"

    def test_the_page_names_what_is_left_out(self):
        text = DOCUMENTED.read_text(encoding="utf-8")
        assert [key for key in LEFT_OUT if f"`{key}`" not in text] == []

    def test_what_follows_from_a_changed_figure_needs_no_budget(self, report):
        after = report_of(num_experts_per_tok=7)
        found = judged(after, report)
        assert found.following > 10_000
        both = {path for path, _, value in leaves(after) if is_number(value)}
        numbers = sum(path in both for path, _, _ in leaves(report))
        assert found.unchanged + found.following + len(found.changed) == numbers
        assert {each.key for each in found.changed} <= set(counted_figures(report))

    def test_a_stage_does_not_explain_another(self, full):
        path = ("stages", "sam", "by_module", "model.sam_model.net_3", "own", "flops")
        before = altered(full, path, 1)
        before = altered(before, ("stages", "clip", "flops"), 1)
        failed = [each.key for each in judged(full, before).failures("failed")]
        assert failed == [
            "stages.sam.by_module.model.sam_model.net_3.own.flops",
            "stages.clip.flops",
        ]

    def test_entries_of_lists_are_compared_with_their_like(self, full):
        [entry] = full.time
        other = msgspec.structs.replace(entry, gpu="a100-80gb-sxm", page_seconds=1.0)
        after = msgspec.structs.replace(full, time=(other, entry))
        found = judged(after, full)
        assert found.failures("failed") == ()
        [change] = found.inputs
        assert (change.key, change.before) == ("time", None)
        assert "gpu=a100-80gb-sxm" in change.after
        slower = altered(full, ("time", 0, "page_seconds"), 99.0)
        [verdict] = judged(after, slower).failures("failed")
        assert verdict.key == "time[gpu=h100-sxm, runtime=serving].page_seconds"
        assert ReportKeys(full).figures(verdict.key) == {verdict.key: verdict.value}

    def test_what_an_early_report_does_not_state_is_a_doubt_and_no_difference(self, full):
        sam = msgspec.structs.replace(full.stages["sam"], operator_bytes=None)
        memory = msgspec.structs.replace(full.memory, inputs_bytes=None)
        stages = {**full.stages, "sam": sam}
        found = judged(full, msgspec.structs.replace(full, stages=stages, memory=memory))
        assert found.failures("failed") == ()
        assert {each.key: each.before for each in found.inputs} == {
            "stages.sam.operator_bytes": None, "memory.inputs_bytes": None}  # fmt: skip
        assert found.warnings != full.warnings

    def test_an_entry_that_only_the_baseline_holds_twice_is_no_figure_of_it(self, report):
        views = report.workload.views
        label = f"workload.views[count={views[0].count}].resolution"
        before = altered(report, ("workload", "views"), (views[0], *views))
        found = judged(report, before, limited(label, max_increase=allowance("0")))
        [verdict] = found.failures("failed")
        assert verdict.message.endswith("the baseline has no such figure")

    def test_a_text_that_only_one_report_knows_the_length_of_is_listed_once(self, full):
        found = judged(full, altered(full, ("workload", "text_tokens"), None))
        assert [(each.key, each.before) for each in found.inputs] == [("text_tokens", None)]

    def test_a_report_without_seconds_is_compared_in_all_else(self, full):
        early = msgspec.structs.replace(full, time=())
        found = judged(full, early)
        assert found.failures("failed") == ()
        assert [each.key for each in found.inputs] == ["time"]


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


class TestRedefining:
    """A change that loosens what checks it is said, and is a doubt."""

    OLD = (
        limited("total.flops", max=10**15),
        limited("stages.*.params", max_increase=allowance("2 %")),
    )

    def loosened(self, report, old, new, before="0", after="0"):
        return loosened_keys(
            workload_of(*old, tolerance=allowance(before)),
            workload_of(*new, tolerance=allowance(after)), report,
        )  # fmt: skip

    def test_what_is_kept_or_tightened_is_no_doubt(self, report):
        flops = report.total.flops
        exactly = (limited("total.flops", max=flops, min=flops),)
        for old, new in [
            (self.OLD, self.OLD),
            (self.OLD, (*self.OLD, limited("total.flops", min=1))),
            (self.OLD, (limited("total.flops", max=flops), self.OLD[1])),
            (self.OLD, ()),  # then they must be equal
            ((), exactly),
            ((limited("total.flops", level="warn", max=9),), (limited("total.flops", max=9),)),
        ]:
            assert self.loosened(report, old, new) == [], new

    @pytest.mark.parametrize(
        ("old", "new", "keys"),
        [
            ("max = 9", "max = 10", ["total.flops"]),
            ("max = 9\nmin = 2", "max = 9", ["total.flops"]),
            ("max = 9", 'max = 9\nlevel = "warn"', ["total.flops"]),
            ("max = 9", 'max_increase = "2 %"', ["total.flops"]),
            ('max_increase = "2 %"', 'max_increase = "2.1 %"', ["total.flops"]),
            ('max_increase = "2 %"', 'max_increase = 999_999_999_999_999', ["total.flops"]),
            ('max_increase = 1\nmax_decrease = 1', "max_increase = 1", ["total.flops"]),
        ],
    )  # fmt: skip
    def test_every_way_to_allow_more_is_seen(self, report, old, new, keys):
        begin = "[[workloads.w.budgets]]\nkey = 'total.flops'\n"
        found = [budgets_in(begin + text, "b.toml", is_pyproject=False) for text in (old, new)]
        assert self.loosened(report, *(each["w"].budgets for each in found)) == keys

    def test_a_first_budget_stands_in_for_equality(self, report):
        new = (limited("stages.*.flops", max=10**18),)
        assert self.loosened(report, (), new) == [f"stages.{x}.flops" for x in report.stages]

    def test_a_tolerance_is_a_limit_of_everything_without_one(self, report):
        found = self.loosened(report, self.OLD, self.OLD, after="1 %")
        named = {"total.flops", *(f"stages.{name}.params" for name in report.stages)}
        zero = {key for key, value in counted_figures(report).items() if not value}
        assert set(found) == set(counted_figures(report)) - named - zero
        assert self.loosened(report, self.OLD, self.OLD, before="1 %") == []

    def test_every_option_of_a_workload_that_changed_is_named(self):
        for name in DEFAULTS:
            new = ("h100",) if name == "gpu" else "other"
            after = workload_of(options={**DEFAULTS, name: new})
            [change] = redefinitions(workload_of(), after)
            assert (change.kind, change.key) == ("workload", name)
            assert change.before != change.after


def test_a_config_is_known_by_its_digest_where_a_report_does_not_hold_it():
    before, after = report_of(), report_of(num_experts_per_tok=64)
    model = msgspec.structs.replace(before.metadata.model, config_text=None)
    metadata = msgspec.structs.replace(before.metadata, model=model)
    early = msgspec.structs.replace(before, metadata=metadata)
    reference = ModelDirectory.read(ARCHITECTURES["deepseek-ocr"].reference)
    assert early.metadata.model.config_digest == reference.source(None).config_digest
    assert compared(early, after).inputs[0].key == "language_config.num_experts_per_tok"
    other = msgspec.structs.replace(model, config_digest="0" * 64)
    unknown = msgspec.structs.replace(
        before, metadata=msgspec.structs.replace(metadata, model=other)
    )
    assert [each.key for each in compared(unknown, after).inputs] == ["config.json"]


def test_a_report_holds_the_config_that_its_digest_is_of(report):
    import hashlib

    model = report.metadata.model
    assert hashlib.sha256(model.config_text.encode()).hexdigest() == model.config_digest
    assert json.loads(model.config_text)["vocab_size"] == gated.published()["vocab_size"]


def test_the_page_names_every_option_and_every_limit():
    text = DOCUMENTED.read_text(encoding="utf-8")
    names = (*DEFAULTS, "key", "level", *OF_VALUES, *OF_CHANGES, "tolerance")
    assert [name for name in names if f"`{name}`" not in text] == []
