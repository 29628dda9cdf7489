"""Any model of transformers: traced as its stages file says, and counted as torch counts it."""

import json
import re
import shlex
import tomllib
from copy import copy
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from any_models import (
    CLIP_ENCODER,
    FORMULAS,
    IS_5,
    LATENT,
    LLAMA,
    MIXTURES,
    MODELS,
    PRESENT,
    PROMPT,
    QWEN2_MOE,
    QWEN2_VL,
    TEXT_STAGES,
    TOKENS,
    Small,
    session_of,
)
from command_line import run
from torch.utils.flop_counter import FlopCounterMode

from dsocr_analyze.architectures import DEFAULT, described_architecture
from dsocr_analyze.errors import ConfigError, ModelCodeError, WorkloadError
from dsocr_analyze.hardware.fit import fit
from dsocr_analyze.hardware.profile import device
from dsocr_analyze.kernels import BFLOAT16, Work, merged, total_work
from dsocr_analyze.model.forward import running
from dsocr_analyze.report.opening import dump_json
from dsocr_analyze.report.reading import load_report
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.timing.assumptions import Assumptions
from dsocr_analyze.timing.eager import eager_pass, eager_step
from dsocr_analyze.timing.kernel_seconds import weight_bytes
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import EAGER
from dsocr_analyze.timing.serving import TimedModel
from dsocr_analyze.trace.passes import growing_work, linear_stretches, trace_passes
from dsocr_analyze.traced_forms import TracedForms, TracedServed

META = torch.device("meta")


def changed(small: Small, stages: tuple[str, str] = ("", ""), **config) -> Small:
    """A model with another config, and another text in its stages file."""
    return replace(
        small, config={**small.config, **config}, stages=small.stages.replace(*stages, 1)
    )


# ------------------------------------------------------------------------------------------ counts


QUICK = ("qwen2_moe", "qwen2_vl", "clip")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive)
        for name in PRESENT
    ],
)
def traced(request, tmp_path_factory):
    """A model, its session, and its report for 4 new tokens."""
    small = PRESENT[request.param]
    session = session_of(small, tmp_path_factory.mktemp(request.param))
    return small, session, session.analyze(max_new_tokens=4)


def test_a_report_stands_alone_adds_up_and_is_read_again(traced, tmp_path):
    _, session, report = traced
    stages, total = [*report.stages.values()], report.total
    said = report.operator_ledger.unknown, report.warnings, report.agreement, report.workload.page
    assert (*said, report.metadata.attention) == ({}, (), None, None, "eager")
    in_pass = stages[:-1] if total.decode_step else stages
    assert sum(stage.flops for stage in in_pass) == total.flops
    owned = sum(stage.params for stage in stages) + report.unassigned.params
    assert owned == total.params == sum(p.numel() for p in session.model.parameters())
    assert any("has no closed forms" in note for note in report.notes)
    file = tmp_path / "report.json"
    file.write_text(dump_json(report))
    assert load_report(file) == report


def test_stages_work_is_that_of_their_modules(traced):
    """Of FlopCounterMode, whose own hooks know whose module runs."""
    small, session, report = traced
    with running(META), FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        given = {
            name: value.bfloat16() if value.is_floating_point() else value
            for name, value in small.inputs(META).items()
        }
        session.model(**given, **({"use_cache": True} if small.decodes else {}))
    if not small.decodes:  # for others, generate() is the witness
        assert report.total.matrix_flops == counter.get_total_flops()
    counts = counter.get_flop_counts().items()
    by_module = {name.partition(".")[2]: sum(found.values()) for name, found in counts}
    before: dict[str, int] = {}
    for stage in session.architecture.stages:
        if stage.role == "vision":
            own = {path: by_module.get(path, 0) for path in stage.prefixes}
            within = tuple(f"{path}." for path in stage.prefixes)
            inside = sum(flops for path, flops in before.items() if path.startswith(within))
            assert report.stages[stage.name].matrix_flops == sum(own.values()) - inside > 0
            before |= own


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "device", "batch", "between"),
    [*((name, "cpu", 1, 0) for name in QUICK),  # where the values are there
     ("clip", "meta", 2, 2 * 24 * (2 * 2 - 2 * 1)),  # [B, P] x [P, B] grows with the square
     ("clip_encoder", "meta", 2, 0)],
)  # fmt: skip
def test_a_cpu_counts_the_same_and_a_batch_as_many_times(tmp_path, name, device, batch, between):
    """But in a model that compares every image with every text."""
    one = session_of(MODELS[name], tmp_path, dtype="float32").analyze(max_new_tokens=2)
    other = session_of(MODELS[name], tmp_path, dtype="float32", device=device)
    found = other.analyze(max_new_tokens=2, batch_size=batch)
    assert found.total.matrix_flops == batch * one.total.matrix_flops + between
    assert found.total.batch.matrix_flops == batch * one.total.batch.matrix_flops + between
    assert found.operator_ledger.unknown == {}


def test_a_dense_decoder_by_hand(tmp_path):
    report = session_of(LLAMA, tmp_path).analyze(max_new_tokens=1)
    T, d, kv, inner, layers, vocabulary = TOKENS, 64, 32, 96, 2, 128
    weights = 2 * d * d + 2 * d * kv + 3 * d * inner
    angle = 0 if IS_5 else 8  # half a head's, which 4.46 makes as an outer product
    head = d * vocabulary
    assert (report.total.macs, report.total.decode_step.macs, report.total.params) == (
        layers * (T * weights + 2 * T * T * d) + T * angle + head,
        layers * (weights + 2 * (T + 1) * d) + head + angle,
        2 * head + layers * (weights + 2 * d) + d,
    )
    memory = report.memory.kv_cache_bytes, report.memory.inputs_bytes
    assert memory == (2 * layers * kv * T * 2, 8 * T * 2)


@pytest.mark.exhaustive
def test_variants_of_a_model_cost_what_they_say(tmp_path):
    variants = (
        LLAMA,
        QWEN2_MOE,
        changed(LLAMA, tie_word_embeddings=True),
        replace(LLAMA, stages='attention = "sdpa"\n' + LLAMA.stages),
    )
    eager, mixture, tied, fused = (session_of(each, tmp_path).analyze() for each in variants)
    assert eager.total.params - tied.total.params == 128 * 64  # counted once
    assert "scaled_dot_product_attention" in fused.operator_ledger.counted
    assert fused.metadata.attention == "sdpa"
    assert tied.total.matrix_flops == fused.total.matrix_flops == eager.total.matrix_flops
    assert fused.total.bytes_moved < eager.total.bytes_moved
    # With drawn weights the split is even; the note says so only of a model that routes.
    assert any("routing is uniform" in note for note in mixture.notes)
    assert not any("routing" in note for note in eager.notes)


# ------------------------------------------------------------------------------------ decode steps


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name, small in PRESENT.items() if small.decodes])
def test_the_batch_is_every_step_run_one_after_the_other(tmp_path, name):
    """Of a model of which nothing is declared, steps show themselves where they change."""
    session = session_of(PRESENT[name], tmp_path)
    if name == "llama":  # whose steps are all alike
        assert session.trace(session.plan(max_new_tokens=1000)).step_numbers == (0, 1, 499, 998)
    for new_tokens in (2, 3, 17):
        workload = session.plan(max_new_tokens=new_tokens)
        figures, _ = session.figures(workload)
        steps = range(new_tokens - 1)
        ran = trace_passes(session.loaded, workload, session.architecture, step_numbers=steps)
        whole, growing = (
            [growing_work(step, pattern) for step in ran.decode_steps]
            for pattern in (None, session.architecture.routed_expert)
        )
        # What the routed experts of a step do is the same in each: the even split.
        assert len({one.minus(other) for one, other in zip(whole, growing, strict=True)}) == 1
        assert figures.batch == total_work([figures.prefill_pass, *whole])
        assert figures.memory.kv_cache_bytes == ran.step_cache_bytes[-1]


@pytest.mark.parametrize("steps", [range(1), range(2), range(30), range(7, 19)])
def test_a_cut_is_found_wherever_it_lies(steps):
    for cut in range(30):
        macs = [3 * min(number, cut) + (5 if number > cut else 0) for number in range(30)]
        stretches = linear_stretches(steps, lambda number, macs=macs: Work(macs=macs[number]))
        assert [number for part in stretches for number in part] == list(steps)
        growths = [{macs[n + 1] - macs[n] for n in part[:-1]} for part in stretches]
        assert max(map(len, growths)) <= 1


@pytest.mark.skipif(not IS_5, reason="transformers 4 refuses the key")
def test_the_directory_says_which_cache_is_made(tmp_path):
    """A static one has room for all new tokens from the beginning."""
    stages, config = LLAMA.write(tmp_path)
    config.rename(tmp_path / "config.json")
    (tmp_path / "generation_config.json").write_text('{"cache_implementation": "static"}')
    session = DeepSeekOCRSession.from_local(tmp_path, stages=stages)
    traces = session.trace(session.plan(max_new_tokens=10))
    a_token = 2 * 2 * 32 * 2  # bytes of keys and values of two layers
    assert {traces.kv_cache_bytes, *traces.step_cache_bytes} == {a_token * (TOKENS + 9)}


# ------------------------------------------------------------------------------------------ inputs


DESCRIBED = """
[prompt]
tokens = 6
fill = 7
placed = [{ value = 9, start = 1, count = 2 }, { value = 3, start = 5 }]
without = ["attention_mask"]

[inputs]
flag = false
number = 3
name = "a"
list = [{ shape = [1], dtype = "bool" }, 2]

[inputs.filled]
shape = ["batch", 2, "tokens"]

[inputs.placed]
shape = ["batch", "keys"]
dtype = "int32"
fill = 0
placed = [{ value = 5, start = 2, count = 3 }]

[inputs.values]
values = [[1, 2], [3, 4]]
repeat = "batch"

[inputs.floats]
values = [0.5]
dtype = "float32"
"""


def test_tensors_are_as_described_with_values_that_are_known_on_meta(tmp_path):
    def inputs(stages, **lengths):
        small = replace(LLAMA, stages=stages)
        architecture = described_architecture(small.write(tmp_path)[0])
        plan = architecture.plan(batch_size=2, **lengths)
        return architecture.prefill_inputs(META, torch.bfloat16, plan)

    with running(META):
        given = inputs(TEXT_STAGES + PROMPT, seq_len=5)  # what a processor returns
        assert {name: value.tolist() for name, value in given.items()} == {
            "input_ids": [[0] * 5] * 2,
            "attention_mask": [[1] * 5] * 2,
        }
        found = inputs(TEXT_STAGES + DESCRIBED)
        found["boolean"], found["two"] = found.pop("list")
        assert {
            name: (each.dtype, each.tolist()) if isinstance(each, torch.Tensor) else each
            for name, each in found.items()
        } == {
            "flag": False,
            "number": 3,
            "name": "a",
            "boolean": (torch.bool, [True]),
            "two": 2,
            "input_ids": (torch.int64, [[7, 9, 9, 7, 7, 3]] * 2),
            "filled": (torch.bfloat16, [[[1.0] * 6] * 2] * 2),
            "placed": (torch.int32, [[0, 0, 5, 5, 5, 0]] * 2),
            "values": (torch.int64, [[1, 2], [3, 4]] * 2),
            "floats": (torch.float32, [0.5]),
        }


# ------------------------------------------------------------------------------------- stages file


@pytest.mark.parametrize("order", [1, -1], ids=["inner first", "outer first"])
def test_the_longest_matching_path_wins_in_any_order(order, tmp_path):
    """Of Llama: 2 x 64 heads' numbers in q, 2 x 32 in k and v, for 64 of the model's."""
    parts = [
        '[[stages]]\nname = "inner"\nprefixes = ["model.layers.0.self_attn"]\n',
        '[[stages]]\nname = "outer"\nprefixes = ["model.layers.0"]\n',
    ]
    stages = "".join([*parts[::order], LLAMA.stages])
    session = session_of(replace(LLAMA, stages=stages), tmp_path)
    report = session.analyze(max_new_tokens=2)
    inner, outer = report.stages["inner"], report.stages["outer"]
    attention, inside = 2 * 64 * 64 + 2 * 32 * 64, 3 * 96 * 64
    paths = "model.layers.0.self_attn.q_proj", "model.layers.0x"
    assert [*map(session.architecture.owner_of, paths)] == ["inner", "prefill"]
    assert (inner.params, outer.params) == (attention, inside + 2 * 64)
    assert outer.matrix_flops == 2 * inside * TOKENS
    assert inner.matrix_flops > 2 * attention * TOKENS


GOOD = 'name = "x"\n' + LLAMA.stages


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (GOOD, "= 3", "is not TOML"),
        (GOOD, 'name = "x"\n[[stages]]\nname = "all"\nrole = "prefill"\n',
         "the model has no inputs"),
        ('name = "x"', 'title = "x"', "'name' is missing; give a text"),
        ('name = "x"', 'name = 3', "'name' is 3; give a text"),
        ('name = "x"', 'name = "x"\nstage = 1',
         "'stage' is unknown; the known keys are stages"),
        ('prefixes = ["model"]', 'prefix = ["model"]',
         "'stages[0].prefix' is unknown; the known keys are"),
        ('prefixes = ["model"]', 'prefixes = "model"', "'stages[0].prefixes' is 'model'; give"),
        ('prefixes = ["lm_head"]', 'prefixes = ["model"]',
         "'stages[1].prefixes' has 'model', which stage 'prefill' already owns; give it"),
        ('role = "decode"', 'role = "step"',
         "'stages[1].role' is 'step'; give one of prefill, decode"),
        ('role = "decode"', "", "the roles of 'stages' are prefill, none; give one stage"),
        ('prefixes = ["model"]\nrole = "prefill"', "prefixes = []",
         "'stages[0].prefixes' is []; give paths of modules"),
        ('role = "prefill"', "", "the roles of 'stages' are none, decode; give one stage"),
        ('name = "decode"', 'name = "prefill"', "'stages[1].name' is 'prefill'; give another"),
        ("tokens = 24", "tokens = 0", "'prompt.tokens' is 0; give a whole number from 1"),
        ("tokens = 24", "tokens = 2147483648",
         "'prompt.tokens' is 2147483648; give a whole number from 1 to 1,048,576"),
        ("tokens = 24", "tokens = 24\n[inputs.x]\nshape = [2147483648]\n"
         "placed = [{ value = 1, start = 0 }]",
         "'inputs.x.shape' is [2147483648]; give beside 'placed' a list whose last size is"),
        ("tokens = 24", "tokens = 24\n[inputs.x]\nshape = []\n"
         "placed = [{ value = 1, start = 0 }]",
         "'inputs.x.shape' is []; give beside 'placed' a list whose last size is"),
        ("tokens = 24", "tokens = true", "'prompt.tokens' is true; give a whole number"),
        ("[prompt]\ntokens = 24", "", "'prompt' is missing; a model that decodes needs one"),
        ("tokens = 24", "tokens = 24\nplaced = [{ value = 1 }]",
         "'prompt.placed[0].start' is missing; give a whole number from 0"),
        ("tokens = 24", "tokens = 24\n[inputs.x]\nshape = [0]",
         "'inputs.x.shape' is [0]; give a list, each item a whole number from 1, \"batch\""),
        ("tokens = 24", "tokens = 24\n[inputs.x]\ndtype = 'half'\nshape = [1]",
         "'inputs.x.dtype' is 'half'; give one of model, float32"),
        ("tokens = 24", "tokens = 24\n[inputs.x]\nfill = 1",
         "'inputs.x.shape' and 'values' are both missing; give one of them"),
        ("tokens = 24", "tokens = 24\n[inputs.x]\nvalues = [[1], [1, 2]]",
         "'inputs.x.values' is [[1], [1, 2]]; give numbers, in lists of equal lengths"),
        ("tokens = 24", "tokens = 24\n[inputs.x]\nvalues = [1]\nfill = 2",
         "'inputs.x.fill' is 2; give no such key together with 'values'"),
        ("tokens = 24", "tokens = 24\n[inputs]\nx = 1979-05-27",
         "'inputs.x' is datetime.date(1979, 5, 27); give a table that describes a tensor"),
        ('name = "x"', 'name = "x"\nattention = "flash"',
         "'attention' is 'flash'; give one of eager, sdpa"),
        ('name = "x"', 'name = "x"\nrouted_expert = "model.experts"',
         "'routed_expert' is 'model.experts'; give a path that ends in .*"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_what_is_right(tmp_path, old, new, message):
    file = tmp_path / "stages.toml"
    file.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as refusal:
        described_architecture(file)
    told = rf"('{file}'|{file}:) {re.escape(message)}[^\n]*"
    assert re.fullmatch(told, str(refusal.value))


def test_the_expert_of_a_path_is_its_last_star(tmp_path):
    stages = 'routed_expert = "model.layers.*.mlp.experts.*"\n' + LLAMA.stages
    pattern = described_architecture(replace(LLAMA, stages=stages).write(tmp_path)[0]).routed_expert
    match = pattern.fullmatch("model.layers.3.mlp.experts.12.down_proj")
    assert (match["experts"], match["index"]) == ("model.layers.3.mlp.experts", "12")
    others = "model.layers.3.mlp.experts", "model.layers.3.mlp.shared"
    assert not any(map(pattern.fullmatch, others))


# -------------------------------------------------------------------------------- models and files

MAMBA = Small(
    {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "num_hidden_layers": 1},
    LLAMA.stages.replace('"model"', '"backbone"'),
)


@pytest.mark.parametrize(
    ("small", "arguments", "error", "message"),
    [
        (QWEN2_VL, {"seq_len": 7}, WorkloadError, "give at least 8"),  # a placed token is beyond it
        (LLAMA, {"page": (10, 10)}, WorkloadError, "page"),
        (LLAMA, {"base_size": 640}, WorkloadError, "base_size"),
        (LLAMA, {"prompt_pages": 2}, WorkloadError, "prompt_pages"),
        (LLAMA, {"seq_len": 0}, WorkloadError, "seq_len"),
        (LLAMA, {"batch_size": 0}, WorkloadError, "batch_size"),
        (LLAMA, {"batch_size": 1 << 20}, WorkloadError, "at most 699050"),
        (LLAMA, {"max_new_tokens": 0}, WorkloadError, "max_new_tokens"),
        (LLAMA, {"max_new_tokens": 1.5}, WorkloadError, "max_new_tokens"),
        (changed(LLAMA, model_type="llama99"), {}, ConfigError, "has model_type 'llama99'"),
        (changed(LLAMA, architectures=["LlamaConfig"]), {}, ConfigError,
         "has no model class 'LlamaConfig'"),
        (changed(LLAMA, architectures=[]), {}, ConfigError, "give 'class' in the stages file"),
        (changed(LLAMA, ('"model"', '"model.layer"')), {}, ConfigError,
         "stage 'prefill' of 'small' has the prefix 'model.layer'.*model.layers"),
        # Asked for them, transformers would raise, or its code run another attention in silence.
        (replace(MAMBA, stages='attention = "sdpa"\n' + MAMBA.stages), {}, ConfigError,
         'MambaForCausalLM of .* has no sdpa; give attention = "eager"'),
        (MAMBA, {"flash_attention": True}, ConfigError,
         "MambaForCausalLM of .* no flash_attention_2; give flash_attention=False"),
        (LLAMA, {"flash_attention": True}, ConfigError, "needs the package flash-attn"),
        # `forward` would swallow it.
        (replace(CLIP_ENCODER, stages=CLIP_ENCODER.stages + "[inputs.pixel_value]\nshape = [1]\n"),
         {}, ConfigError, "takes no 'pixel_value'; .* pixel_values"),
        (replace(changed(LLAMA, architectures=["LlamaModel"]),
                 stages=LLAMA.stages.replace('"model"', '"layers"').replace('"lm_head"', '"norm"')),
         {}, ConfigError, "cannot run LlamaModel; .* leave out the stage"),
        (replace(LLAMA, stages=LLAMA.stages + "[inputs.pixel_values]\nshape = [1, 3, 64]\n"), {},
         ModelCodeError, r"not used by the model: \['pixel_values'\]"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_or_asked_is_refused(tmp_path, small, arguments, error, message):
    asked = {"max_new_tokens": 1, **arguments}
    flash = asked.pop("flash_attention", False)
    with pytest.raises(error, match=message):
        session_of(small, tmp_path, flash_attention=flash).analyze(**asked)


@pytest.mark.exhaustive
def test_a_directory_is_built_like_its_config_and_the_stages_file_may_name_the_class(tmp_path):
    named = replace(LLAMA, stages='class = "LlamaForCausalLM"\n' + LLAMA.stages)
    by_name = session_of(changed(named, architectures=None), tmp_path).analyze()
    assert by_name.metadata.model.class_name == "LlamaForCausalLM"
    stages, config = LLAMA.write(tmp_path)
    config.rename(tmp_path / "config.json")
    (tmp_path / "unused.py").write_text("raise SystemExit")  # of which nothing is executed
    session = DeepSeekOCRSession.from_local(tmp_path, stages=stages)
    of_config = session_of(LLAMA, tmp_path).analyze()
    assert session.analyze().total == by_name.total == of_config.total
    assert session.provenance.model.source == "config"
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        DeepSeekOCRSession.from_local(tmp_path, stages=stages)


def test_what_has_no_effect_is_said(tmp_path):
    unused = replace(LLAMA, stages=LLAMA.stages + "[decode]\ncache_given = false\n")
    keys = {"quantization_config": {"quant_method": "fp8"}, "experts_intermediate_size": 2048}
    quantized = changed(unused, **keys)  # a width is no number of experts
    report = session_of(quantized, tmp_path).analyze(max_new_tokens=1)
    [warning], said = report.warnings, [note for note in report.notes if "'decode' in " in note]
    assert "'quantization_config' in config.json has no effect" in warning
    assert [note for note in said if "is not used" in note] == said != []


# ----------------------------------------------------------------------------------- documentation

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/any-model.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples/any_model"
BLOCKS = dict(re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.exhaustive
@pytest.mark.skipif(IS_5, reason="the example is written for transformers 4")
def test_every_command_and_the_python_print_what_is_shown(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "config.json").write_text((EXAMPLE / "config.json").read_text())
    consoles = "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))
    commands = map(shlex.split, consoles.replace("\\\n", "").splitlines())
    codes, printed, _ = zip(*(run(capsys, *command[1:]) for command in commands), strict=True)
    shown = "".join(re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL))
    lines, found = ({*map(str.rstrip, text.splitlines())} for text in (shown, "".join(printed)))
    assert (codes, len(lines) > 30, lines - found) == ((0,) * 5, True, set())
    assert "a prompt of 288 tokens" in printed[-1]
    exec(compile(BLOCKS["python"], "any-model.md", "exec"), {})
    promised = re.findall(r"^print\(.*\)\s+# (.*)$", BLOCKS["python"], re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == promised != []


def test_every_key_is_described():
    """Those that the reader of the file knows, by asking it for what it knows."""
    source = (ROOT / "src/dsocr_analyze/architectures/any_model.py").read_text()
    asked = re.findall(r"\.(?:text|texts|choice|flag|whole|value|tables?)\(\s*\"(\w+)\"", source)
    undescribed = {key for key in asked if not re.search(rf"`{key}`|\[{key}\]", PAGE)}
    assert (len({*asked}) > 20, undescribed - {"start", "count", "value"}) == (True, set())


def test_the_stages_file_shown_is_the_examples_and_of_its_published_size():
    assert BLOCKS["toml"] == (EXAMPLE / "qwen2_vl.toml").read_text(encoding="utf-8")
    stages = tomllib.loads(BLOCKS["toml"])
    rows, columns = stages["inputs"]["image_grid_thw"]["values"][0][1:]
    side = json.loads((EXAMPLE / "config.json").read_text())["vision_config"]["patch_size"]
    assert (columns * side, rows * side) == (1036, 1456)
    assert stages["inputs"]["pixel_values"]["shape"] == [rows * columns, 3 * 2 * side * side]
    assert stages["prompt"]["placed"][1]["count"] == rows * columns // 4


# ---------------------------------------------------------------------------------------- commands

REPORT = Path("tmp/dsocr-static-ops/static_compute.json")
MODEL = ("--stages", "small.toml", "--hf-config", "small.json")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A model in the current folder, and its config in a directory."""
    monkeypatch.chdir(tmp_path)
    _, config = LLAMA.write(Path())
    CLIP_ENCODER.write(Path(), "clip")
    Path("folder").mkdir()
    Path("folder/config.json").write_bytes(config.read_bytes())


@pytest.mark.exhaustive
@pytest.mark.usefixtures("files")
def test_reports_are_written_printed_and_compared(capsys):
    lengths = ("--batch-size", 2, "--seq-len", 30, "--max-new-tokens", 5)
    code, out, err = run(capsys, *MODEL, "--strict", *lengths)
    assert (code, err, "30 tokens" in out, "pixels a side" in out) == (0, "", True, False)
    document = json.loads(REPORT.read_text())
    assert {key: each for key, each in document["workload"].items() if each is not None} == {
        "seq_len": 30, "batch_size": 2, "max_new_tokens": 5,
    }  # fmt: skip
    assert document["metadata"]["model"]["source"] == "config"
    assert run(capsys, *MODEL, "--seq-len", 20, "-q", "--json", "other.json")[0] == 0
    code, out, _ = run(capsys, "compare", REPORT, "other.json")
    assert (code, "visual tokens" in out) == (0, False)


@pytest.mark.usefixtures("files")
def test_a_model_that_does_not_decode_has_no_step(capsys):
    MODELS["clip"].write(Path())
    code, out, err = run(capsys, *MODEL, "--strict")
    assert (code, err, "decode step" in out) == (0, "", False)
    document = json.loads(REPORT.read_text())
    total, batch = document["total"], document["total"]["batch"]
    assert (total["decode_step"], total["flops"]) == (None, batch["flops"])
    made = batch["max_new_tokens"], batch["decode_steps"], document["memory"]["kv_cache_bytes"]
    assert (list(document["stages"]), made) == (["image", "text", "similarity"], (0, 0, 0))


@pytest.mark.usefixtures("files")
def test_a_tree_has_its_stages(capsys):
    code, out, _ = run(capsys, "tree", *MODEL)
    assert (code, len(re.findall(r"lm_head: Linear\s+decode\s+8,192", out))) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*MODEL, "--engine", "analytic"), "small has no closed forms; it can only be traced"),
        (("time", *MODEL, "--runtime", "eager", "--page", "a4"), "--page applies only to models"),
        (("time", *MODEL, "--sliding-window", "0"), "is for known architectures"),
        (("time", "--hf-config", "small.json"), "which dsocr-analyze stages"),
        (("fit", "--stages", "small.toml"), "name it: --model DIR or --hf-config FILE"),
        (("fit", "--stages", "clip.toml", "--hf-config", "clip.json"), "the role 'decode'"),
        (("tree", *MODEL, "--stage", "x", "--no-trace"), "--stage"),
        (("--stages", "small.toml"), "name it: --model DIR or --hf-config FILE"),
        (("--hf-config", "small.json"), "--stages FILE"),
        ((*MODEL, "--model", "x"), "leave out --model x"),
        ((*MODEL, "--arch", "deepseek-ocr"), "leave out --arch deepseek-ocr"),
        ((*MODEL, "--page", "a4"), "--page applies only to models that read pages"),
        ((*MODEL, "--mode", "gundam"), "--mode applies only to models that read pages"),
        ((*MODEL, "--prompt", "x"), "give --seq-len"),
        (("--stages", "none.toml", "--hf-config", "small.json"), "cannot read 'none.toml'"),
        (("--stages", "small.toml", "--hf-config", "none.json"), "no config at 'none.json'"),
        *(
            ((*command, "--model", "folder"),
             "it is a llama model (LlamaForCausalLM) ... describe it with --stages FILE")
            for command in ((), ("time",), ("fit",), ("sweep",), ("compare",))
        ),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("files")
def test_what_contradicts_or_is_missing_is_named(capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert [part for part in message.split(" ... ") if part not in err] == []


# ------------------------------------------------------------------------------ seconds and memory

H100 = device("h100-sxm")
SMALL_GPU = replace(H100, gpu=replace(H100.gpu, memory_gb=11.0))


@pytest.mark.parametrize("mode", ["base", pytest.param("gundam", marks=pytest.mark.exhaustive)])
def test_traces_of_the_reference_give_the_figures_of_its_closed_forms(mode):
    session, traced = DeepSeekOCRSession.from_local(), copy(DEFAULT)
    page, dimensions = session.plan(mode=mode, max_new_tokens=258), session._dimensions
    # Without modes, nothing else is asked of its forms.
    traced.closed_forms, traced.modes = TracedForms(session, page), {}
    (seconds, memory), (found, found_memory) = (
        (
            predict(
                TimedModel(each, dimensions, BFLOAT16, False, SMALL_GPU), page,
                Assumptions(EAGER, preprocess_seconds=0),
            ),
            fit(
                SMALL_GPU.gpu, each, dimensions, page, dtype=BFLOAT16, flash_attention=False,
                reserved=0.1,
            ),
        )
        for each in (DEFAULT, traced)
    )  # fmt: skip
    took, expected = (
        [each.page_seconds, *(stage.seconds for stage in each.stages.values())]
        for each in (found, seconds)
    )
    assert took == pytest.approx(expected, rel=1e-9)
    needed = attrgetter("prefill_bytes", "decode", "needed_bytes", "largest_batch")
    assert needed(found_memory) == needed(memory)
    assert needed(found_memory.one_at_a_time) == needed(memory.one_at_a_time)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "qwen2_vl" else pytest.mark.exhaustive)
        for name, small in PRESENT.items()
        if small.decodes
    ],
)
def test_a_step_of_any_number_has_the_records_that_run(tmp_path, name):
    session, numbers = session_of(PRESENT[name], tmp_path), range(17)
    plan = session.plan(max_new_tokens=18, batch_size=2)
    ran = trace_passes(session.loaded, plan, session.architecture, step_numbers=numbers)
    forms = TracedForms(session, plan)
    for number, step in zip(numbers, ran.decode_steps, strict=True):
        found = forms.step_kernels(None, 2, plan.seq_len + number)
        assert merged(found) == merged(step.kernels), number


@pytest.mark.parametrize(
    ("small", "command"),
    [
        (QWEN2_MOE, ("time", "h100-sxm", "--runtime", "eager", "--format", "json")),
        (LLAMA, ("--gpu", "h100-sxm", "--runtime", "eager", "--json", "-", "--output", ".")),
    ],
)
@pytest.mark.usefixtures("files")
def test_seconds_are_those_of_the_traced_records(capsys, tmp_path, small, command):
    """Of three prompts at a time, whose every step is priced by itself."""
    session = session_of(small, tmp_path)
    how = "--max-new-tokens", 6, "--concurrency", 3, *MODEL
    code, out, err = run(capsys, *command, *how)
    [entry] = json.loads(out)["time"]
    said = " ".join(entry["assumptions"]["sentences"])
    assert (code, err, "not predicted for a described" in said, "SAM" in said) == (
        0,
        "",
        True,
        False,
    )
    plan = session.plan(max_new_tokens=6, batch_size=3)
    ran = trace_passes(session.loaded, plan, session.architecture, step_numbers=range(5))
    seconds = ran.inputs_bytes / (1e9 * EAGER.link_gb_s)
    for passed in (
        *eager_pass({"": ran.prefill.kernels}, H100, EAGER).values(),
        *(eager_step(each.kernels, H100, EAGER, 3) for each in ran.decode_steps),
    ):
        seconds += passed.seconds
    assert 3 / entry["throughput"][0]["pages_per_second"] == pytest.approx(seconds, rel=1e-3)


@pytest.mark.usefixtures("files")
def test_of_a_model_without_pages_all_is_said_of_prompts(capsys):
    how = ("--runtime", "eager", "--price", 2, "--concurrency", 2, "--max-new-tokens", 6, *MODEL)
    out = " ".join(run(capsys, "time", "h100-sxm", *how, "--format", "markdown")[1].split())
    for words in (" a prompt (", " prompts/s (2 at once)", "per 1,000 prompts", "one prompt alone"):
        assert words in out, words
    assert " page" not in out.partition("## Assumptions")[0]
    assert "1 prompt needs" in run(capsys, "fit", "h100-sxm", *MODEL)[1]


@pytest.mark.usefixtures("files")
def test_its_picture_speaks_of_prompts(capsys):
    pytest.importorskip("matplotlib")
    how = ("--runtime", "eager", "--concurrency", 2, "--max-new-tokens", 6, *MODEL)
    run(capsys, "time", "h100-sxm", *how, "--plot", "load.svg")
    drawn = Path("load.svg").read_text()
    assert ("prompts at once" in drawn, "prompts per second" in drawn) == (True, True)
    assert not re.search(r"\bpages?\b", drawn)


@pytest.mark.parametrize(
    ("small", "message"),
    [
        (MODELS["mistral"], "'sliding_window' is 29; give at least 1048, the tokens of the"),
        *([(LATENT, "model.layers.0 has 706,560 multiply-accumulates in the prefill pass, not")]
          * LATENT.is_there),
        (replace(QWEN2_VL, stages=re.sub(r".*\n.*vision.*\nprefixes.*", "", QWEN2_VL.stages)),
         "visual.blocks.0 has "),
        (MAMBA, "config.json lacks 'num_attention_heads', since serving engines are modelled for"),
        (changed(LLAMA, hidden_act="gelu"), "'hidden_act' is 'gelu', and serving engines fuse"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("files")
def test_serving_is_refused_with_what_is_of_no_known_kind(capsys, small, message):
    small.write(Path())
    code, _, err = run(capsys, "time", "h100-sxm", *MODEL)
    assert (code, err.count("\n"), message in err, "use --runtime eager\n" in err) == (
        2,
        1,
        True,
        True,
    )


@pytest.mark.parametrize("name", [name for name, (small, _) in MIXTURES.items() if small.is_there])
def test_a_served_mixture_does_the_matrix_work_of_the_model_with_all_its_weights(tmp_path, name):
    """In a decode step, of which only the prefill pass was compared before."""
    small, layers = MIXTURES[name]
    session = session_of(small, tmp_path)
    forms = TracedForms(session, session.plan(max_new_tokens=2))
    served = TracedServed(forms, TOKENS + 2)
    c = served.dimensions
    *_, ran = forms.compose(None, forms.workload).stages.values()
    step = served.step(1, TOKENS + 1, c, BFLOAT16, 16)
    traced = sum(work.macs for path, work in ran.own.items() if "rotary" not in path)
    assert total_work(each.total for each in step).macs == traced
    matrices = {
        name: weight.numel() for name, weight in session.model.named_parameters()
        if weight.dim() > 1 and not name.endswith(("bias", "embed_tokens.weight"))
    }  # fmt: skip
    assert (weight_bytes(step), c.decoder.moe_layers) == (2 * sum(matrices.values()), layers)
    quantized = (n for path, n in matrices.items() if re.search(r"_proj|experts?\.", path))
    assert served.quantizable_params(c) == sum(quantized)


@pytest.mark.usefixtures("files")
def test_a_stage_that_no_input_reaches_takes_no_time(capsys):
    alone = re.sub(r"placed = .*|\[inputs(.|\n)*", "", QWEN2_VL.stages)
    replace(QWEN2_VL, stages=alone).write(Path())
    code, out, err = run(
        capsys, "time", "h100-sxm", "--runtime", "eager,serving", "--format", "json", *MODEL
    )
    seconds = [each["stages"]["vision"]["seconds"] for each in json.loads(out)["time"]]
    assert (code, err, seconds) == (0, "", [0, 0])


@pytest.mark.usefixtures("files")
def test_what_fits_is_shown_for_a_batch_of_prompts(capsys, tmp_path):
    memory = session_of(LLAMA, tmp_path).analyze(batch_size=2).memory
    code, out, err = run(capsys, "fit", "h100-sxm", *MODEL, "--batch-size", 2, "--format", "json")
    [found] = json.loads(out)["gpus"]
    assert (code, err, found["fits"], found["prefill"]["inputs_bytes"]) == (
        0, "", True, memory.inputs_bytes,
    )  # fmt: skip
