"""What a program writes: one call, arguments by name, attributes, a table."""

import dataclasses
import importlib.resources
import inspect
import json
import re
from pathlib import Path

import pytest
from both_engines import PUBLISHED, small_directory
from PIL import Image

import dsocr_analyze
from dsocr_analyze import DeepSeekOCRSession, analyze, compare, plan_workload, sweep_workloads
from dsocr_analyze.architectures import DEFAULT, PageRequest
from dsocr_analyze.errors import AnalyzeError, FormatError, PageError, WorkloadError
from dsocr_analyze.report import opening

PAGE_ARGUMENTS = [each.name for each in dataclasses.fields(PageRequest) if each.default is None]

FUNCTIONS = [analyze, plan_workload, DeepSeekOCRSession.analyze, DeepSeekOCRSession.plan]


@pytest.fixture(scope="module")
def report():
    return analyze(mode="gundam", page="a4", engine="analytic")


@pytest.fixture(scope="module")
def tiny():
    return analyze(mode="tiny", engine="analytic")


@pytest.fixture(scope="module")
def session():
    return DeepSeekOCRSession.from_directory(small_directory())


class TestSignatures:
    @pytest.mark.parametrize(
        "function", [*FUNCTIONS, compare, sweep_workloads], ids=lambda each: each.__qualname__
    )
    def test_every_argument_is_named_annotated_and_documented(self, function):
        parameters = inspect.signature(function).parameters
        assert function not in FUNCTIONS or set(PAGE_ARGUMENTS) <= set(parameters)
        text = inspect.getdoc(function)
        documented = {"self", *re.findall(r"^ +(\w+): ", text, re.M), *re.findall(r"`(\w+)`", text)}
        if documented & {"plan", "plan_workload"}:  # whose arguments it takes
            documented |= {*inspect.signature(plan_workload).parameters}
        assert set(parameters) <= documented
        for name, parameter in parameters.items():
            assert parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            assert name == "self" or parameter.annotation is not parameter.empty

    @pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__qualname__)
    def test_a_wrong_name_is_said_to_be_of_the_function_that_was_called(self, function):
        given = dict.fromkeys(
            {"self", "papge"} & {"papge", *inspect.signature(function).parameters}
        )
        with pytest.raises(TypeError, match=rf"{function.__name__}\(\).*'papge'"):
            function(**given)

    def test_editors_complete_arguments_and_figures(self):
        jedi = pytest.importorskip("jedi")
        start = "from dsocr_analyze import analyze\nreport = analyze("
        (signature,) = jedi.Script(start).get_signatures()
        assert set(PAGE_ARGUMENTS) <= {each.name for each in signature.params}
        figures = jedi.Script(f'{start})\nreport.stages["sam"].fl').complete()
        assert "flops" in {each.name for each in figures}

    def test_the_package_is_typed_and_names_what_it_has(self):
        assert importlib.resources.files(dsocr_analyze).joinpath("py.typed").is_file()
        names = {*dsocr_analyze.__all__}
        assert {"analyze", "compare", "plan_workload", "sweep_workloads"} <= names
        assert all(getattr(dsocr_analyze, name) is not None for name in names)


class TestPages:
    @pytest.mark.parametrize("page", ["a4@200", "A4@200", "1654x2339", (1654, 2339), [1654, 2339]])
    def test_a_page_is_a_paper_a_text_or_two_numbers(self, page):
        assert plan_workload(page=page).page == (1654, 2339)

    @pytest.mark.parametrize("given", [Path, str])
    def test_an_image_is_a_page(self, tmp_path, given):
        Image.new("L", (700, 900)).save(tmp_path / "a.png")
        assert plan_workload(image=given(tmp_path / "a.png")).page == (700, 900)

    @pytest.mark.parametrize(
        ("mode", "sizes"),
        [("base", (1024, 1024, False)), ("Gundam-M", (1280, 1024, True))],
    )
    def test_a_mode_sets_the_sizes_of_an_a4_page(self, mode, sizes):
        workload = plan_workload(mode=mode)
        assert workload.page == (1240, 1754)
        assert (workload.base_size, workload.image_size, workload.crop_mode) == sizes

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"page": "a44"}, PageError, "no page size 'a44'"),
            ({"page": 7}, WorkloadError, "page 7 is not a pair"),
            ({"page": "a4", "image": "a.png"}, WorkloadError, "not both"),
            ({"image": "absent.png"}, PageError, "absent.png"),
            ({"mode": "huge"}, WorkloadError, "use tiny, small"),
            ({"mode": "base", "base_size": 640}, WorkloadError, "already sets base_size"),
            ({"mode": "base", "crop_mode": False}, WorkloadError, "already sets crop_mode"),
            ({"architecture": "gpt"}, AnalyzeError, "gpt"),
        ],
    )
    def test_what_is_not_possible_is_named(self, arguments, error, message):
        with pytest.raises(error, match=message):
            plan_workload(**arguments)


class TestAnalyze:
    @pytest.mark.exhaustive
    def test_both_engines_say_the_same(self):
        given = {"mode": "tiny", "page": "a5@100", "max_new_tokens": 3, "batch_size": 2}
        traced, closed = analyze(**given), analyze(**given, engine="analytic")
        session = DeepSeekOCRSession.from_local()
        assert traced.agreement.agrees
        assert closed.agreement is None
        assert closed.total.matrix_flops == traced.total.matrix_flops
        assert session.analyze(**given).total == traced.total
        assert session.analyze(session.plan(**given)).total == traced.total

    def test_another_architecture_runs_in_its_own_mode(self):
        found = analyze(architecture="deepseek-ocr-2", page="a4", engine="analytic")
        assert found.metadata.model.architecture == "deepseek-ocr-2"
        assert found.workload.image_size == 768

    @pytest.mark.parametrize(("is_flash", "name"), [(False, "eager"), (True, "flash_attention_2")])
    def test_attention_is_that_which_was_asked_for(self, is_flash, name):
        report = analyze(mode="tiny", engine="analytic", flash_attention=is_flash)
        assert report.metadata.attention == name

    def test_a_workload_and_what_it_is_planned_from_are_refused_together(self, session):
        with pytest.raises(WorkloadError, match="was given as well as page, mode; give either"):
            session.analyze(session.plan(page="a4"), mode="tiny", page="a4")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"engine": "guess"}, "engine 'guess' is unknown"),
            ({"model": "x", "architecture": "deepseek-ocr"}, "leave out architecture"),
            ({"model": "absent", "engine": "analytic"}, "absent"),
            ({"dtype": "int3", "engine": "analytic"}, "int3"),
        ],
    )
    def test_what_is_not_possible_is_named(self, arguments, message):
        with pytest.raises(AnalyzeError, match=message):
            analyze(**arguments)


class TestAttributesAndTables:
    def test_figures_are_attributes(self, report):
        assert report.total.matrix_flops == 4_568_380_069_376
        assert report.stages["sam"].flops > report.stages["clip"].flops

    def test_tables_add_up_to_the_stages(self, report):
        stages = {name: each.flops for name, each in report.stages.items()}
        of_stages, of_modules, of_operators = (
            report.to_pandas(by=by).set_index("stage") for by in ("stage", "module", "operator")
        )
        assert of_stages["flops"].to_dict() == stages
        assert of_stages["flops"].dtype == "int64"
        assert of_stages["flops"].drop("decode").sum() == report.total.flops
        assert len(of_modules) == sum(len(each.by_module) for each in report.stages.values())
        assert of_modules["own_flops"].groupby("stage").sum().to_dict() == stages
        assert of_operators["flops"].groupby("stage").sum().to_dict() == stages
        families = set(report.stages["sam"].operator_families)
        assert set(of_operators.loc["sam", "family"]) <= families

    def test_another_grouping_is_refused(self, report):
        with pytest.raises(FormatError, match="give stage, module, operator"):
            report.to_pandas(by="layer")

    def test_without_pandas_the_extra_is_named(self, report, monkeypatch):
        monkeypatch.setattr(opening.importlib.util, "find_spec", lambda name: None)
        for without_pandas in (report, sweep_workloads()):
            with pytest.raises(FormatError, match=r"pip install 'dsocr-analyze\[pandas\]'"):
                without_pandas.to_pandas()


class TestComparisons:
    def test_configs_of_two_architectures_are_not_compared(self, report):
        other = analyze(architecture="unlimited-ocr", engine="analytic")
        found = compare({"one": report, "other": other})
        assert found.config_differences == ()
        architectures = [each.model.architecture for each in found.columns]
        assert architectures == ["deepseek-ocr", "unlimited-ocr"]

    def test_a_report_may_be_called_like_a_column(self, tiny):
        table = compare({"key": tiny, "b": tiny}).to_pandas()
        assert [*table.columns] == ["key", "quantity", "unit", "key", "b"]
        assert table.iloc[0].tolist() == ["visual_tokens", "visual tokens", "tokens", 73, 73]

    def test_reports_side_by_side_are_a_document_and_a_table(self, report, tiny):
        found = compare({"gundam": report, "tiny": tiny})
        assert (found.command, found.names) == ("compare", ("gundam", "tiny"))
        table = found.to_pandas().set_index("key")
        assert list(table.columns) == ["quantity", "unit", "gundam", "tiny"]
        for name, each in (("gundam", report), ("tiny", tiny)):
            assert table.loc["prefill_pass_flops", name] == each.total.flops
            assert isinstance(table.loc["prefill_pass_flops", name], int)
            assert table.loc["peak_activation_bytes", name] == each.memory.peak_activation_bytes

    def test_keys_in_which_configs_differ_are_named(self, report, tmp_path):
        for file in DEFAULT.reference.glob("*.py"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
        config = PUBLISHED.config | {"num_experts_per_tok": 4}
        (tmp_path / "config.json").write_text(json.dumps(config))
        slim = analyze(model=tmp_path, mode="gundam", page="a4", engine="analytic")
        found = compare({"published": report, "slim": slim})
        assert [(each.key, dict(each.values)) for each in found.config_differences] == [
            ("num_experts_per_tok", {"published": 6, "slim": 4})
        ]
        assert compare({"a": report, "b": report}).config_differences == ()

    def test_nothing_is_not_compared(self):
        with pytest.raises(WorkloadError, match="give at least one"):
            compare({})


class TestSweeps:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({}, {"page_width": {1240}, "mode": {"gundam"}, "text_tokens": {10}}),
            ({"page": (700, 900)}, {"page_width": {700}, "page_height": {900}}),
            ({"page": [(700, 900), "a4"]}, {"page_width": {700, 1240}}),
            ({"page": "a4@100:200:50"}, {"page_width": {827, 1240, 1654}}),
            ({"mode": ["base", "640"]}, {"mode": {"base", "640"}}),
            ({"text_tokens": "1:3", "batch_size": [1, 16]},
             {"text_tokens": {1, 2, 3}, "batch_size": {1, 16}}),
            ({"dtype": ["float32", "bfloat16"]}, {"dtype": {"float32", "bfloat16"}}),
            ({"flash_attention": [False, True]}, {"attention": {"eager", "flash_attention_2"}}),
            ({"architecture": "unlimited-ocr", "sliding_window": (True, False)},
             {"sliding_window": {True, False}, "text_tokens": {5}}),
        ],
    )  # fmt: skip
    def test_axes_are_values_or_text(self, given, expected):
        table = sweep_workloads(**given).to_pandas()
        for name, values in expected.items():
            assert set(table[name]) == values
        assert len(table) == len(table.drop_duplicates())

    def test_a_row_is_a_report(self, report):
        rows = sweep_workloads(mode=["gundam"])
        assert rows.opening.metadata.engine == "analytic"
        (row,) = rows.to_pandas().to_dict("records")
        assert row["prefill_pass_flops"] == report.total.flops
        assert row["peak_activation_bytes"] == report.memory.peak_activation_bytes
        assert row["kv_cache_bytes"] == report.memory.kv_cache_bytes

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"page": 5}, "page=5 is invalid"),
            ({"page": [5, "a4"]}, "is invalid"),
            ({"page": "a9"}, "no page size 'a9'"),
            ({"mode": "huge"}, "no mode 'huge'"),
            ({"text_tokens": 1.5}, "text_tokens=1.5"),
            ({"batch_size": [True]}, "batch_size="),
            ({"max_new_tokens": 0}, "max_new_tokens 0 is out of range"),
            ({"flash_attention": "01"}, "flash_attention='01'"),
            ({"flash_attention": 1}, "flash_attention=1 is invalid"),
            ({"flash_attention": [[True]]}, "flash_attention=[[True]] is invalid"),
            ({"sliding_window": False}, "deepseek-ocr has no sliding window"),
            ({"text_tokens": "1:1000000", "max_new_tokens": "1:11"}, "11,000,000 rows"),
        ],
    )
    def test_what_is_not_possible_is_named(self, given, message):
        with pytest.raises(AnalyzeError, match=re.escape(message)):
            sweep_workloads(**given)
