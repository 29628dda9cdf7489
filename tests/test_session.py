"""Whole reports of the reference model, and what a program writes to get them."""

import contextlib
import dataclasses
import importlib.resources
import inspect
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import torch
import transformers
from both_engines import PUBLISHED, SMALL, small_directory
from drawn_passes import directory as directory_of
from PIL import Image
from safetensors.torch import save_file
from write_schema import schemas

import dsocr_analyze
from dsocr_analyze import DeepSeekOCRSession, analyze, compare, plan_workload, sweep_workloads
from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT, PageRequest
from dsocr_analyze.errors import (
    AnalyzeError,
    ConfigError,
    DeviceError,
    ExtraError,
    FormatError,
    PageError,
    WorkloadError,
)
from dsocr_analyze.kernels import Elements, Kernel, Work
from dsocr_analyze.model.loading import building
from dsocr_analyze.report.opening import dump_json
from dsocr_analyze.session import parse_device
from dsocr_analyze.trace import operators, recorder
from dsocr_analyze.trace.passes import PassTraces, batch_work
from dsocr_analyze.trace.record import Trace


@pytest.fixture(scope="module")
def session():
    return DeepSeekOCRSession.from_local()


@pytest.fixture(scope="module")
def report(session):
    return session.analyze(page=(1191, 1684), max_new_tokens=100)


@pytest.mark.exhaustive
def test_the_report_fits_its_published_schema(report):
    jsonschema.validate(json.loads(dump_json(report)), schemas()["schema.json"])


TINY = {"page": (600, 500), "crop_mode": False, "image_size": 64}


@pytest.fixture(scope="module")
def small_session():
    return DeepSeekOCRSession.from_directory(small_directory(num_hidden_layers=1))


def test_the_largest_batch_is_traced_and_no_larger_one(monkeypatch, small_session):
    monkeypatch.setattr("dsocr_analyze.session.LARGEST_TRACED_BATCH", 2)
    page = TINY | {"max_new_tokens": 1}
    assert small_session.analyze(**page, batch_size=2).total.batch.macs > 0
    with pytest.raises(WorkloadError, match="give at most 2"):
        small_session.analyze(**page, batch_size=3)


@pytest.mark.exhaustive
def test_causality_could_save_just_under_half_of_attention_under_flash_attention():
    flash, eager = (
        DeepSeekOCRSession.from_local(flash_attention=is_flash)
        .analyze(page=(1024, 1024), max_new_tokens=1)
        .total
        for is_flash in (True, False)
    )
    skipped = 703 * 702 // 2
    assert flash.causal_savable_flops == 12 * 10 * 2 * (128 + 128) * skipped
    assert flash.causal_savable_flops == eager.causal_savable_flops
    assert flash.matrix_flops == eager.matrix_flops
    assert flash.bytes_read < eager.bytes_read
    assert flash.activations < eager.activations


def test_every_step_is_announced_and_equal_records_are_merged(small_session):
    told = []
    workload = small_session.plan(**TINY, max_new_tokens=2)
    figures, _ = small_session.figures(workload, on_progress=told.append)
    assert told == [
        "prefill pass", "decode step 1", "decode step over a longer cache", "analytic engine",
    ]  # fmt: skip
    kernels = [kernel._replace(calls=1) for s in figures.stages.values() for kernel in s.kernels]
    assert len({*kernels}) == len(kernels)


@pytest.mark.parametrize(
    ("is_usable", "name", "said"),
    [
        (True, "cuda:1", None),
        (True, "cuda:2", r"'cuda:2' does not exist \(2 here\)"),
        (False, "cuda", r"'cuda' does not exist \(no CUDA GPU here\)"),
    ],
)
def test_a_gpu_is_there_if_torch_can_use_it(is_usable, name, said, monkeypatch):
    """The driver names GPUs that a torch for another version of CUDA cannot use."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_usable)
    with pytest.raises(DeviceError, match=said) if said else contextlib.nullcontext():
        assert parse_device(name) == torch.device("cuda", 1)


def test_trace_and_closed_forms_agree_in_every_quantity_of_every_stage(report):
    found = report.agreement
    assert (found.agrees, found.first_difference, found.warnings) == (True, None, [])
    assert all(all(stage.values()) for stage in found.stages.values())
    assert found.kv_cache_bytes is found.batch is found.peak_activation_bytes.agrees is True
    assert all(stage.flops_analytic == stage.flops for stage in report.stages.values())


@pytest.fixture
def of_other_rules(monkeypatch, small_session):
    """The report of a small page by a rule replaced, or left out; rules are looked up anew."""

    def analyzed(rule):
        recorder.traits_of.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(recorder, "_EFFECTS", {})
            patch.delitem(operators.RULES, "gelu")
            operators.RULES.update({"gelu": rule} if rule else {})
            return small_session.analyze(**TINY, max_new_tokens=1)

    yield analyzed
    recorder.traits_of.cache_clear()


def test_a_disagreement_is_a_warning_that_names_module_and_quantity(of_other_rules):
    report = of_other_rules(replace(operators.RULES["gelu"], vector_flops=lambda call: 1))
    [warning] = report.warnings
    assert "vector_flops of 'model.sam_model.blocks.0.mlp.act'" in warning
    sam, clip = (report.agreement.stages[name] for name in ("sam", "clip"))
    assert (sam["vector_flops"], sam["macs"], clip["vector_flops"]) == (False, True, True)
    assert report.agreement.agrees is False


def test_an_operator_without_a_rule_is_a_warning(of_other_rules):
    report = of_other_rules(None)
    assert report.operator_ledger.unknown == {"gelu": 4}  # blocks of SAM
    assert "unknown operator gelu: 4 calls are not counted" in report.warnings


PAGE_ARGUMENTS = [each.name for each in dataclasses.fields(PageRequest) if each.default is None]

FUNCTIONS = [analyze, plan_workload, DeepSeekOCRSession.analyze, DeepSeekOCRSession.plan]


@pytest.fixture(scope="module")
def gundam():
    return analyze(mode="gundam", page="a4", engine="analytic")


@pytest.fixture(scope="module")
def tiny():
    return analyze(mode="tiny", engine="analytic")


@pytest.mark.parametrize(
    "function", [*FUNCTIONS, compare, sweep_workloads], ids=lambda each: each.__qualname__
)
def test_every_argument_is_named_annotated_and_documented(function):
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
def test_a_wrong_name_is_said_to_be_of_the_function_that_was_called(function):
    given = dict.fromkeys({"self", "papge"} & {"papge", *inspect.signature(function).parameters})
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\).*'papge'"):
        function(**given)


def test_the_package_is_typed_and_names_what_it_has():
    assert importlib.resources.files(dsocr_analyze).joinpath("py.typed").is_file()
    names = {*dsocr_analyze.__all__}
    assert {"analyze", "compare", "plan_workload", "sweep_workloads"} <= names
    assert all(getattr(dsocr_analyze, name) is not None for name in names)


@pytest.mark.parametrize("page", ["a4@200", "A4@200", "1654x2339", (1654, 2339), [1654, 2339]])
def test_a_page_is_a_paper_a_text_or_two_numbers(page):
    assert plan_workload(page=page).page == (1654, 2339)


@pytest.mark.parametrize("kind", [Path, str])
def test_or_of_an_image(kind, tmp_path):
    Image.new("L", (700, 900)).save(tmp_path / "a.png")
    assert plan_workload(image=kind(tmp_path / "a.png")).page == (700, 900)


@pytest.mark.parametrize(
    ("mode", "sizes"),
    [("base", (1024, 1024, False)), ("Gundam-M", (1280, 1024, True))],
)
def test_a_mode_sets_the_sizes_of_an_a4_page(mode, sizes):
    plan = plan_workload(mode=mode)
    assert (plan.page, plan.base_size, plan.image_size, plan.crop_mode) == (
        (1240, 1754), *sizes,
    )  # fmt: skip


@pytest.mark.exhaustive
def test_both_engines_say_the_same():
    given = {"mode": "tiny", "page": "a5@100", "max_new_tokens": 3, "batch_size": 2}
    traced, closed = analyze(**given), analyze(**given, engine="analytic")
    session = DeepSeekOCRSession.from_local()
    assert (traced.agreement.agrees, closed.agreement) == (True, None)
    assert closed.total.matrix_flops == traced.total.matrix_flops
    for workload in ((), [session.plan(**given)]):
        again = session.analyze(*workload, **({} if workload else given))
        assert again.total == traced.total


def test_another_architecture_runs_in_its_own_mode_and_attention_as_asked(tiny):
    found = analyze(
        architecture="deepseek-ocr-2", page="a4", engine="analytic", flash_attention=True
    )
    assert (found.metadata.model.architecture, found.workload.image_size) == (
        "deepseek-ocr-2", 768,
    )  # fmt: skip
    attention = tiny.metadata.attention, found.metadata.attention
    assert attention == ("eager", "flash_attention_2")


def test_a_workload_and_what_it_is_planned_from_are_refused_together(small_session):
    with pytest.raises(WorkloadError, match="was given as well as page, mode; give either"):
        small_session.analyze(small_session.plan(page="a4"), mode="tiny", page="a4")


def test_figures_are_attributes_and_tables_add_up_to_the_stages(gundam):
    assert gundam.total.matrix_flops == 4_568_380_069_376
    stages = {name: each.flops for name, each in gundam.stages.items()}
    of_stages, of_modules, of_operators = (
        gundam.to_pandas(by=by).set_index("stage") for by in ("stage", "module", "operator")
    )
    assert of_stages["flops"].to_dict() == stages
    assert of_stages["flops"].dtype == "int64"
    assert of_stages["flops"].drop("decode").sum() == gundam.total.flops
    assert len(of_modules) == sum(len(each.by_module) for each in gundam.stages.values())
    assert of_modules["own_flops"].groupby("stage").sum().to_dict() == stages
    assert of_operators["flops"].groupby("stage").sum().to_dict() == stages
    moved = {name: each.bytes_moved for name, each in gundam.stages.items()}
    assert of_operators["bytes"].groupby("stage").sum().to_dict() == moved
    assert of_operators.set_index("operator", append=True).loc[("sam", "gelu"), "calls"] == 2 * 12
    families = set(gundam.stages["sam"].operator_families)
    assert set(of_operators.loc["sam", "family"]) <= families


def test_another_grouping_is_refused_and_without_pandas_the_extra_named(gundam, monkeypatch):
    with pytest.raises(FormatError, match="give stage, module, operator"):
        gundam.to_pandas(by="layer")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for without_pandas in (gundam, sweep_workloads()):
        with pytest.raises(ExtraError, match=r"pip install 'dsocr-analyze\[pandas\]'"):
            without_pandas.to_pandas()


def test_configs_of_two_architectures_are_not_compared(gundam):
    other = analyze(architecture="unlimited-ocr", engine="analytic")
    found = compare({"one": gundam, "other": other})
    names = [each.model.architecture for each in found.columns]
    assert (found.config_differences, names) == ((), ["deepseek-ocr", "unlimited-ocr"])


def test_a_report_may_be_called_like_a_column(tiny):
    table = compare({"key": tiny, "b": tiny}).to_pandas()
    assert [*table.columns] == ["key", "quantity", "unit", "key", "b"]
    assert table.iloc[0].tolist() == ["visual_tokens", "visual tokens", "tokens", 73, 73]


def test_reports_side_by_side_are_a_document_and_a_table(gundam, tiny):
    found = compare({"gundam": gundam, "tiny": tiny})
    assert (found.command, found.names) == ("compare", ("gundam", "tiny"))
    table = found.to_pandas().set_index("key")
    assert list(table.columns) == ["quantity", "unit", "gundam", "tiny"]
    flops, peaks = table.loc["prefill_pass_flops"], table.loc["peak_activation_bytes"]
    assert [*flops[2:]] == [gundam.total.flops, tiny.total.flops]
    assert isinstance(flops["gundam"], int)
    assert [*peaks[2:]] == [each.memory.peak_activation_bytes for each in (gundam, tiny)]


def test_keys_in_which_configs_differ_are_named(gundam, tmp_path):
    shutil.copytree(DEFAULT.reference, tmp_path / "m")
    config = PUBLISHED.config | {"num_experts_per_tok": 4}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    slim = analyze(model=tmp_path / "m", mode="gundam", page="a4", engine="analytic")
    found = compare({"published": gundam, "slim": slim}).config_differences
    assert [(each.key, dict(each.values)) for each in found] == [
        ("num_experts_per_tok", {"published": 6, "slim": 4})
    ]
    assert compare({"a": gundam, "b": gundam}).config_differences == ()


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
def test_axes_are_values_or_text(given, expected):
    table = sweep_workloads(**given).to_pandas()
    for name, values in expected.items():
        assert set(table[name]) == values
    assert len(table) == len(table.drop_duplicates())


UNLIMITED_CONFIG = ARCHITECTURES["unlimited-ocr"].reference / "config.json"

REFUSED = {
    plan_workload: [
        ({"page": "a44"}, PageError, "no page size 'a44'"),
        ({"page": 7}, WorkloadError, "page 7 is not a pair"),
        ({"page": "a4", "image": "a.png"}, WorkloadError, "not both"),
        ({"image": "absent.png"}, PageError, "absent.png"),
        ({"mode": "huge"}, WorkloadError, "use tiny, small"),
        ({"mode": "base", "base_size": 640}, WorkloadError, "already sets base_size"),
        ({"mode": "base", "crop_mode": False}, WorkloadError, "already sets crop_mode"),
        ({"architecture": "gpt"}, AnalyzeError, "gpt"),
    ],
    analyze: [
        ({"engine": "guess"}, AnalyzeError, "engine 'guess' is unknown"),
        ({"flash_attention": 1}, WorkloadError, "flash_attention 1 is not a boolean; give True or"),
        ({"dtype": torch.bfloat16}, AnalyzeError, "dtype torch.bfloat16 is unknown; did you mean"),
        (
            {"config": UNLIMITED_CONFIG, "architecture": "deepseek-ocr"},
            WorkloadError,
            "architecture='deepseek-ocr' contradicts config, which is of unlimited-ocr; give one",
        ),
        ({"model": "x", "architecture": "deepseek-ocr"}, AnalyzeError, "leave out architecture"),
        ({"model": "absent", "engine": "analytic"}, AnalyzeError, "absent"),
        ({"dtype": "int3", "engine": "analytic"}, AnalyzeError, "int3"),
    ],
    compare: [({"reports": {}}, WorkloadError, "give at least one")],
    sweep_workloads: [
        (given, AnalyzeError, message)
        for given, message in (
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
        )
    ],
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda each: each.__name__)
def test_what_is_not_possible_is_named(function):
    for given, error, message in REFUSED[function]:
        with pytest.raises(error, match=re.escape(message)):
            function(**given)


PAGE = {"page": (600, 500), "crop_mode": False, "image_size": 64, "text_tokens": 4}
_WIDTHS = PUBLISHED.config["vision_config"]["width"]
_SAM = {"width": 32, "heads": 2, "layers": 2, "global_attn_indexes": [1],
        "downsample_channels": [32, 64]}  # fmt: skip
ROUTED = {
    "num_hidden_layers": 3, "vocab_size": 64, "hidden_size": 64, "intermediate_size": 32,
    "num_attention_heads": 4, "num_key_value_heads": 4,
    "n_routed_experts": 32, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "projector_config": PUBLISHED.config["projector_config"] | {"input_dim": 128, "n_embed": 64},
    "vision_config": PUBLISHED.config["vision_config"] | {"width": {
        "sam_vit_b": _WIDTHS["sam_vit_b"] | _SAM,
        "clip-l-14-224": _WIDTHS["clip-l-14-224"] | {"width": 64, "heads": 2, "layers": 2},
    }},
}  # fmt: skip


pytestmark = pytest.mark.directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "model"
    shutil.copytree(DEFAULT.reference, path, ignore=shutil.ignore_patterns("__pycache__"))
    config = PUBLISHED.config | ROUTED
    del config["language_config"]  # nothing reads it, and it would repeat the published values
    (path / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: torch.randn(tensor.shape, generator=generator) * 0.3
        for name, tensor in loaded(path, "cpu").model.state_dict().items()
        if tensor.is_floating_point()
    }
    save_file(weights, path / "model.safetensors")
    return path


def loaded(path, device):
    return DeepSeekOCRSession.from_local(
        path, device=device, dtype="float32", trust_remote_code=True
    )


@pytest.mark.directory
@pytest.mark.exhaustive
@pytest.mark.parametrize("batch_size", [1, 3])
def test_figures_of_a_checkpoint_differ_by_its_routing_alone(directory, batch_size):
    routed, uniform = documents = [
        loaded(directory, device).analyze(**PAGE, batch_size=batch_size, max_new_tokens=50)
        for device in ("cpu", "meta")
    ]
    assert routed.metadata.model.weights == "checkpoint"
    assert routed.stages["prefill"].bytes_read != uniform.stages["prefill"].bytes_read
    for each in documents:
        assert (each.warnings, each.agreement.agrees) == ((), True)
    for name in ("prefill", "decode"):
        own, even = routed.stages[name], uniform.stages[name]
        touched, evenly = own.experts_touched, even.experts_touched
        assert touched.even == evenly.even == evenly.counted
        assert touched.expected == evenly.expected
        assert own.bytes_read_expected == pytest.approx(even.bytes_read_expected, rel=1e-12)
    # What the checkpoint's own routing chose: not the even split in the prompt.
    touched = routed.stages["prefill"].experts_touched
    assert 2 <= touched.counted < touched.even
    for key in ("macs", "vector_flops", "flops", "activations"):  # no FLOP depends on it
        assert getattr(routed.total, key) == getattr(uniform.total, key)
        assert getattr(routed.total.batch, key) == getattr(uniform.total.batch, key)
    # Steps grow with the cache alone.
    grown = [
        getattr(total.batch, key)
        - getattr(total, key)
        - total.batch.decode_steps * getattr(total.decode_step, key)
        for total in (routed.total, uniform.total)
        for key in ("bytes_read", "bytes_written")
    ]
    assert grown[:2] == grown[2:]
    assert min(grown) > 0


def test_experts_that_another_step_reads_are_no_growth():
    def step(expert, expert_bytes, attention):
        kernel = Kernel("gemm", "linear", Elements(1), "bfloat16", "bfloat16", attention)
        expert_path = f"model.layers.1.mlp.experts.{expert}.up_proj"
        of_expert = kernel._replace(work=Work(bytes_read=expert_bytes), path=expert_path)
        return Trace([of_expert, kernel.at("model.layers.1.self_attn")])

    first = step(3, 100, Work(macs=10, bytes_read=7))
    second = step(5, 300, Work(macs=12, bytes_read=8))
    traces = PassTraces(Trace(), (first, second), (0, 1), kv_cache_bytes=0, inputs_bytes=0)
    prefill = Work(macs=1000, bytes_read=5000)
    # 4 new tokens are 3 steps: the cache has grown by 0, 1 and 2 tokens.
    batch = batch_work(prefill, traces, [range(3)], DEFAULT.routed_expert)
    assert batch == Work(
        macs=1000 + 3 * 10 + (0 + 1 + 2) * 2, bytes_read=5000 + 3 * 107 + (0 + 1 + 2) * 1
    )


def test_another_size_of_a_known_model_is_a_path_or_a_mapping(tmp_path):
    config = json.loads((DEFAULT.reference / "config.json").read_text())
    config["num_hidden_layers"] = config["language_config"]["num_hidden_layers"] = 6
    file = tmp_path / "other.json"
    file.write_text(json.dumps(config))
    ways = (config, file, str(file))
    found = [analyze(config=each, engine="analytic", max_new_tokens=2) for each in ways]
    assert found[0].total == found[1].total == found[2].total
    published = analyze(engine="analytic", max_new_tokens=2).total.params
    assert found[0].total.params < published
    traced = analyze(config=config, page=(600, 500), mode="tiny", max_new_tokens=1)
    assert traced.agreement.agrees
    config["num_hidden_layers"] = 7
    assert analyze(config=config, engine="analytic").warnings  # the nested one still says 6


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "config.json lacks 'vision_config'"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "it is a llama model"),
        ("nowhere.json", "no config at 'nowhere.json'"),
        ([], "config is a list; give a path or a mapping"),
        (PUBLISHED.config | {"architectures": {1}}, "config is not JSON: Object of type set"),
    ],
)
def test_a_config_of_no_known_model_is_refused(config, message):
    with pytest.raises(AnalyzeError, match=message):
        analyze(config=config, engine="analytic")


def test_a_model_that_is_built_is_counted_as_it_is(small_session):
    model, page = small_session.model, TINY | {"max_new_tokens": 2}
    built = DeepSeekOCRSession.from_module(model)
    expected = small_session.analyze(**page)
    report = built.analyze(**page)
    assert (report.total, report.stages) == (expected.total, expected.stages)
    assert (report.agreement.agrees, report.metadata.model.id) == (True, type(model).__name__)

    class Scaled(type(model)):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 2
            return output

    with building(torch.device("meta"), torch.bfloat16):
        own = Scaled(model.config).eval()
    scaled = DeepSeekOCRSession.from_module(own).analyze(**page)
    logits = report.workload.seq_len * model.config.vocab_size
    assert scaled.total.vector_flops == expected.total.vector_flops + logits
    [warning] = scaled.warnings
    assert "vector_flops of the model itself" in warning


def test_a_window_is_that_of_a_built_models_config():
    """As `infer()` sets it, whether or not that has run."""
    sizes = {key: small_directory().config[key] for key in SMALL} | {"num_hidden_layers": 1}
    small = directory_of("unlimited-ocr", {**sizes, "sliding_window_size": 3, "sliding_window": 3})
    session, page = DeepSeekOCRSession.from_directory(small), TINY | {"max_new_tokens": 9}
    expected = session.analyze(**page)
    for has_run in (True, False):
        if not has_run:
            del vars(session.model.config)["_ring_window"]
        report = DeepSeekOCRSession.from_module(session.model).analyze(**page)
        assert (report.agreement.agrees, report.warnings) == (True, ())
        assert (report.total, report.memory) == (expected.total, expected.memory)


def test_an_attention_without_closed_forms_is_named(small_session):
    built = DeepSeekOCRSession.from_module(small_session.model)
    built.loaded = replace(built.loaded, attention="sdpa")
    [warning] = built.analyze(**TINY, max_new_tokens=1).warnings
    assert "no analytic figures" in warning
    assert warning.endswith(
        "is built is 'sdpa', and closed forms have 'eager' and 'flash_attention_2'"
    )


def own_model(**config):
    model = torch.nn.Linear(3, 3)
    if config:
        model.config = transformers.PretrainedConfig(**config)
    return model


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (own_model, ConfigError, "Linear is no model with a config .*; count"),
        (lambda: 5, ConfigError, "int is no model"),
        (lambda: own_model(model_type="gru"), ConfigError,
         "^Linear is of no known architecture: its config's model_type is 'gru'; count"),
        (lambda: own_model(**PUBLISHED.config), ConfigError,
         "^Linear has no parameters of deepseek-ocr, which are in model.sam_model, .*; give the w"),
        (lambda: own_model(model_type="deepseek_vl_v2").double(), AnalyzeError, "float64"),
        (lambda: torch.nn.Module(), ConfigError, "Module is no model"),
    ],
)  # fmt: skip
def test_a_module_that_no_session_can_run_is_refused(make, kind, message):
    with pytest.raises(kind, match=message):
        DeepSeekOCRSession.from_module(make())
