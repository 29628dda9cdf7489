"""Budgets, report keys and what moved: the rules of `check`, without its command line."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path

import gated
import msgspec
import pytest
from sampling import every, first, sampled

from dsocr_analyze.analytic import page_figures
from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.gate.budgets import Budget, Workload, budgets_in, parse_allowance
from dsocr_analyze.gate.counted import compared, counted_figures
from dsocr_analyze.gate.inputs import input_changes
from dsocr_analyze.gate.judge import Counted, judge
from dsocr_analyze.gate.moved import moves
from dsocr_analyze.gate.report_keys import ReportKeys
from dsocr_analyze.gate.text import text_lines
from dsocr_analyze.gate.update import edited, edits_of
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.report.build import build_report

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


def judged(report, baseline=None, *budgets, **options):
    workload = Workload("page", budgets=budgets, **options)
    return judge(workload, Counted(report, baseline, is_compared=baseline is not None))


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
            assert keys.figures(path) == [(path, found[path])]

    def test_names_with_dots_may_stand_in_quotes(self, report):
        keys = ReportKeys(report)
        rest = 'model.layers.0.mlp".own.flops'
        [quoted] = keys.figures(f'stages.prefill.by_module."{rest}')
        assert quoted == keys.figures("stages.prefill.by_module.model.layers.0.mlp.own.flops")[0]

    def test_a_star_is_any_one_name(self, report):
        figures = ReportKeys(report).figures("stages.*.flops")
        assert [each.key for each in figures] == [f"stages.{name}.flops" for name in report.stages]
        assert [each.value for each in figures] == [each.flops for each in report.stages.values()]

    def test_entries_of_lists_are_named_by_number_or_by_what_they_hold(self, report):
        keys = ReportKeys(report)
        assert keys.figures("workload.page[1]") == [("workload.page[1]", 600)]
        assert [each.value for each in keys.figures("workload.page[*]")] == [800, 600]
        [view] = keys.figures("workload.views[count=6].resolution")
        assert view.value == report.workload.views[0].resolution

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
        found = parse_allowance(text)
        assert (found.amount, found.is_relative) == (amount, str(text).endswith("%"))

    @pytest.mark.parametrize(
        "text", ["", "%", "-2 %", "2 percent", "1e3 %", "nan", "inf", "9" * 50, -1, float("nan")]
    )
    def test_what_allows_nothing_that_makes_sense_is_none(self, text):
        assert parse_allowance(text) is None

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
        assert found.workloads["x"].options.batch_size == 2
        with pytest.raises(ConfigError, match="did you mean 'check'"):
            budgets_in("[tool.dsocr-analyze.chek]", "pyproject.toml", is_pyproject=True)


class TestJudging:
    def test_limits_hold_to_the_last_unit(self, report):
        flops = report.total.flops
        for budget, outcome in [
            (Budget("total.flops", max=flops), "passed"),
            (Budget("total.flops", max=flops - 1), "failed"),
            (Budget("total.flops", min=flops), "passed"),
            (Budget("total.flops", min=flops + 1), "failed"),
            (Budget("total.flops", level="warn", max=flops - 1), "warned"),
        ]:
            assert judged(report, None, budget).outcome == outcome, budget

    def test_an_increase_is_held_to_an_exact_part_of_the_baseline(self):
        before, after = report_of(), report_of(num_experts_per_tok=7)
        old, new = before.total.params, after.total.params
        assert old == new
        old, new = before.total.flops, after.total.flops
        needed = Fraction(new - old, old)
        for part, outcome in ((needed, "passed"), (needed - Fraction(1, 10**15), "failed")):
            allowance = parse_allowance("1 %")
            exact = type(allowance)(part, True, "exact")
            found = judged(after, before, Budget("total.flops", max_increase=exact))
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
        assert judged(after, report, tolerance=parse_allowance("1")).outcome == "passed"
        assert judged(after, report, tolerance=parse_allowance("0.00000001 %")).outcome == "failed"

    @pytest.mark.exhaustive
    def test_every_count_is_watched(self, report):
        counted = counted_figures(report)
        for name in ("flops", "matrix_flops", "vector_flops", "bytes_read", "bytes_written"):
            for place in ("total", "total.decode_step", "total.batch",
                          *(f"stages.{stage}" for stage in report.stages)):  # fmt: skip
                assert counted[f"{place}.{name}"] == ReportKeys(report).figures(
                    f"{place}.{name}")[0].value  # fmt: skip
        others = {"workload.visual_tokens", "workload.seq_len", "total.params"}
        memory = {"memory.kv_cache_bytes", "memory.peak_activation_bytes", "memory.weights_bytes"}
        assert others | memory <= set(counted)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("name", list(ARCHITECTURES))
    def test_the_same_again_is_no_difference(self, name):
        first, again = report_of(name), report_of(name)
        assert changed_figures(first, again) == ([], len(counted_figures(first)))
        assert (moves(first, again), input_changes(first, again)) == ([], [])
        assert judged(again, first).outcome == "passed"

    def test_another_architecture_differs_by_whole_stages(self):
        found = judged(report_of("deepseek-ocr-2"), report_of("deepseek-ocr"))
        assert found.outcome == "failed"
        assert {each.name for each in found.moves("stage")} >= {"clip", "sam"}
        gone = [each for each in found.changed if each.key == "stages.clip.flops"]
        assert [each.after for each in gone] == [None]

    def test_a_relative_limit_without_a_baseline_says_so_and_is_not_kept_secret(self, report):
        budget = Budget("total.flops", max_increase=parse_allowance("2 %"))
        found = judge(Workload("x", budgets=(budget,)), Counted(report, None, is_compared=True))
        assert found.outcome == "warned"
        assert "there is no baseline" not in found.verdicts[0].message
        assert judge(Workload("x", budgets=(budget,)), Counted(report)).outcome == "passed"


class TestMoved:
    def test_modules_add_up_to_their_stage(self):
        before, after = report_of(), report_of(moe_intermediate_size=897)
        found = moves(before, after)
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
        [decode] = [each for each in moves(before, after)
                    if (each.level, each.stage, each.name)
                    == ("module", "decode", "model.layers.0.mlp.down_proj")]  # fmt: skip
        assert decode.flops.difference == 2 * 1280
        assert decode.modules == 1
        assert [(each.key, each.before, each.after) for each in input_changes(before, after)] == [
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
        lines = list(text_lines(whole(found), 80))
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
    from dsocr_analyze.gate.check import whole_check

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
        workload = budgets.workloads["page"]
        check = judge(workload, Counted(report, baseline, is_compared=baseline is not None))
        edits = list(edits_of(workload, report, check))
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
        workload = budgets_in(new, "pyproject.toml", is_pyproject=True).workloads["page"]
        assert len(workload.budgets) > 5
        found = judge(workload, Counted(report))
        assert found.outcome == "passed"
        assert all(each.value == each.limit for each in found.verdicts)

    @pytest.mark.exhaustive
    def test_a_changed_figure_gets_a_budget_that_is_exactly_it(self, report):
        after = report_of(num_experts_per_tok=7)
        new = self.updated(self.TEXT, after, report)
        workload = budgets_in(new, "pyproject.toml", is_pyproject=True).workloads["page"]
        assert judge(workload, Counted(after, report, is_compared=True)).outcome == "passed"
        again = judge(workload, Counted(report_of(num_experts_per_tok=8), report, is_compared=True))
        assert again.outcome == "failed"
        assert new.startswith(self.TEXT[:40])
        assert "[tool.other]\nlist = [\n 1,\n]\n" in new


def test_a_config_is_known_by_its_digest_where_a_report_does_not_hold_it():
    before, after = report_of(), report_of(num_experts_per_tok=64)
    model = msgspec.structs.replace(before.metadata.model, config_text=None)
    metadata = msgspec.structs.replace(before.metadata, model=model)
    early = msgspec.structs.replace(before, metadata=metadata)
    reference = ModelDirectory.read(ARCHITECTURES["deepseek-ocr"].reference)
    assert early.metadata.model.config_digest == reference.config_digest()
    assert input_changes(early, after)[0].key == "language_config.num_experts_per_tok"
    other = msgspec.structs.replace(model, config_digest="0" * 64)
    unknown = msgspec.structs.replace(
        before, metadata=msgspec.structs.replace(metadata, model=other)
    )
    assert [each.key for each in input_changes(unknown, after)] == ["config.json"]


def test_a_report_holds_the_config_that_its_digest_is_of(report):
    import hashlib

    model = report.metadata.model
    assert hashlib.sha256(model.config_text.encode()).hexdigest() == model.config_digest
    assert json.loads(model.config_text)["vocab_size"] == gated.published()["vocab_size"]


DOCUMENTED = Path(__file__).parent.parent / "docs" / "check.md"


def test_the_page_names_every_option_and_every_limit():
    import dataclasses

    from dsocr_analyze.gate.budgets import Options

    text = DOCUMENTED.read_text(encoding="utf-8")
    names = [each.name for each in (*dataclasses.fields(Options), *dataclasses.fields(Budget))]
    assert [name for name in (*names, "tolerance") if f"`{name}`" not in text] == []
