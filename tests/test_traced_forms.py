"""Seconds and memory of a model that is only traced: those of its closed forms, if it had any."""

import dataclasses
import json

import pytest
from any_models import CLIP_ENCODER, LLAMA, PRESENT, session_of
from command_line import run

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.hardware.fit import fit
from dsocr_analyze.hardware.profile import device
from dsocr_analyze.kernels import merged
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.timing.assumptions import Assumptions
from dsocr_analyze.timing.eager import eager_pass, eager_step
from dsocr_analyze.timing.kernel_seconds import total_duration
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import EAGER
from dsocr_analyze.timing.serving import TimedModel
from dsocr_analyze.trace.passes import trace_passes
from dsocr_analyze.traced_forms import TracedForms

H100 = device("h100-sxm")
SMALL_GPU = dataclasses.replace(H100, gpu=dataclasses.replace(H100.gpu, memory_gb=11.0))


@pytest.mark.parametrize("mode", ["base", pytest.param("gundam", marks=pytest.mark.exhaustive)])
def test_traces_of_the_reference_give_the_figures_of_its_closed_forms(monkeypatch, mode):
    session = DeepSeekOCRSession.from_local()
    page, dimensions = session.plan(mode=mode, max_new_tokens=258), session._dimensions
    model = TimedModel(DEFAULT, dimensions, BFLOAT16, False, SMALL_GPU)

    def figures():
        seconds = predict(model, page, Assumptions(EAGER))
        return seconds, fit(
            SMALL_GPU.gpu, DEFAULT, dimensions, page, dtype=BFLOAT16, flash_attention=False,
            reserved=0.1,
        )  # fmt: skip

    seconds, memory = figures()
    monkeypatch.setattr(type(DEFAULT), "pass_forms", TracedForms(session, page))
    found_seconds, found_memory = figures()
    for name, stage in seconds.stages.items():
        assert found_seconds.stages[name].seconds == pytest.approx(stage.seconds, rel=1e-9), name
    assert found_seconds.page_seconds == pytest.approx(seconds.page_seconds, rel=1e-9)
    assert found_memory == memory


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "qwen2_vl" else pytest.mark.exhaustive)
        for name, small in PRESENT.items()
        if small.decodes
    ],
)
def test_a_step_of_any_number_has_the_records_that_run(tmp_path, name):
    session = session_of(PRESENT[name], tmp_path)
    plan = session.plan(max_new_tokens=18, batch_size=2)
    numbers = range(17)
    ran = trace_passes(session.loaded, plan, session.architecture, step_numbers=numbers)
    forms = TracedForms(session, plan)
    for number, step in zip(numbers, ran.decode_steps, strict=True):
        found = forms.step_kernels(None, 2, plan.seq_len + number, BFLOAT16, False)
        assert merged(found) == merged(step.kernels), number


MODEL = ("--hf-config", "small.json", "--stages", "small.toml")
EAGER_H100 = ("h100-sxm", *MODEL, "--runtime", "eager")


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The session of a small decoder whose files are in the current folder."""
    monkeypatch.chdir(tmp_path)
    CLIP_ENCODER.write(tmp_path, "clip")
    return session_of(LLAMA, tmp_path)


def test_seconds_are_those_of_the_traced_records(capsys, small):
    """Of three prompts at a time, whose every step is priced by itself."""
    how = *EAGER_H100, "--max-new-tokens", "6", "--concurrency", "3", "--format", "json"
    code, out, err = run(capsys, "time", *how)
    assert (code, err) == (0, "")
    document = json.loads(out)
    [entry], page = document["time"], document["workload"]["page"]
    assert (page, list(entry["stages"])) == (None, list(small.architecture.stage_names))
    plan = small.plan(max_new_tokens=6, batch_size=3)
    ran = trace_passes(small.loaded, plan, small.architecture, step_numbers=range(5))
    figures, _ = small.figures(plan)
    *stages, _ = figures.stages.values()
    prefill = eager_pass({each.name: each.kernels for each in stages}, H100, EAGER)
    steps = (eager_step(each.kernels, H100, EAGER, 3) for each in ran.decode_steps)
    seconds = total_duration((*prefill.values(), *steps)).seconds
    copied = figures.memory.inputs_bytes / (1e9 * EAGER.link_gb_s)
    rate = entry["throughput"][0]["pages_per_second"]
    assert 3 / rate == pytest.approx(seconds + copied, rel=1e-6)


@pytest.mark.usefixtures("small")
def test_every_output_has_the_seconds_of_a_described_model(capsys, tmp_path):
    files = "--html", "page.html", "--json", "report.json", "--output", "."
    code, out, err = run(capsys, *MODEL, "--gpu", "h100-sxm", "--full", *files)
    assert (code, err) == (0, "")
    [entry] = json.loads((tmp_path / "report.json").read_text())["time"]
    assert [*entry["stages"]][-1] == "decode"
    assert "SAM" not in " ".join(entry["assumptions"]["sentences"])
    written = ((tmp_path / file).read_text() for file in ("static_compute.md", "page.html"))
    for text in (out, *written):
        assert "not predicted for a described model" in " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("time", "h100-sxm", *MODEL), "use runtime eager"),
        ((*MODEL, "--gpu", "a10", "--runtime", "serving"), "use runtime eager"),
        (("time", *EAGER_H100, "--page", "a4"), "--page applies only to models that read pages"),
        (("time", "h100-sxm", *MODEL, "--sliding-window", "0"), "is for known architectures"),
        (("time", "h100-sxm", "--hf-config", "small.json"), "dsocr-analyze stages"),
        (("fit", "--stages", "small.toml"), "name it: --model DIR or --hf-config FILE"),
        (("fit", "--hf-config", "clip.json", "--stages", "clip.toml"), "the role 'decode'"),
    ],
)
@pytest.mark.usefixtures("small")
def test_what_has_no_seconds_is_named(capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


@pytest.mark.usefixtures("small")
def test_what_fits_is_shown_for_a_batch_of_prompts(capsys):
    how = *MODEL, "--batch-size", "2", "--format", "json"
    code, out, err = run(capsys, "fit", "h100-sxm", *how)
    assert (code, err) == (0, "")
    [found] = json.loads(out)["gpus"]
    assert found["fits"]
