"""`generate()` itself is the witness of what is counted of it, and takes what `stages` drafts."""

import copy
import functools
import inspect
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from any_models import (
    FORMULAS,
    IMAGE,
    IS_5,
    LLAMA,
    PRESENT,
    PROMPT,
    TEXT_STAGES,
    Small,
    session_of,
)
from command_line import run
from generated_pages import READERS, TEXT_MODELS
from sampling import every, first, named, sampled
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import GenerationMixin
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from dsocr_analyze import DeepSeekOCRSession, cli, errors
from dsocr_analyze.architectures import described_architecture
from dsocr_analyze.model.described_model import use_attention
from dsocr_analyze.trace.passes import growing_work, trace_passes

MODELS = {name: each for name, each in {**TEXT_MODELS, **READERS}.items() if each.is_there}
REFUSED_ON_META = ("switch",)
"""What it runs depends on values: which expert is the best."""


def counted(flops: list[int], cache_bytes: list[int], params: int) -> SimpleNamespace:
    """What is counted of a generation, first of all up to the first token, then of each step.

    FLOPs are those of matrix operators, bytes those of the cache's floating numbers after each;
    tied parameters count once.
    """
    return SimpleNamespace(flops=flops, cache_bytes=cache_bytes, params=params)


def real_model(values: dict[str, Any]) -> torch.nn.Module:
    config = CONFIG_MAPPING[values["model_type"]].from_dict(copy.deepcopy(values))
    use_attention(config, "eager")
    torch.manual_seed(0)
    return getattr(transformers, values["architectures"][0])(config).eval().requires_grad_(False)


def first_token(input_ids, scores):
    """Generates token 0, so that no drawn weights decide what a step embeds."""
    return torch.full_like(scores, -torch.inf).index_fill_(1, torch.tensor([0]), 0)


def really_generated(small: Small, batch: int, new_tokens: int) -> SimpleNamespace:
    """What torch counts while the model itself generates on the CPU."""
    model = real_model(small.config).bfloat16()
    given = {
        name: (value.bfloat16() if value.is_floating_point() else value).repeat(
            batch, *[1] * (value.dim() - 1)
        )
        for name, value in small.inputs(torch.device("cpu")).items()
    }
    counter = FlopCounterMode(display=False, custom_mapping=FORMULAS)
    starts, ends, cache_bytes, sample = [], [], [], GenerationMixin._sample

    def after(_module, _args, kwargs, output):
        ends.append(counter.get_total_flops())
        kept = kwargs | dict(output)
        caches = [kept.get(name) for name in ("past_key_values", "cache_params", "state")]
        cache_bytes.append(floating_bytes(caches, set()))

    def hooked_sample(self, *args, **kwargs):
        self.register_forward_pre_hook(lambda *_: starts.append(counter.get_total_flops()))
        self.register_forward_hook(after, with_kwargs=True)
        return sample(self, *args, **kwargs)

    # torch counts no flash kernel of a CPU, which some classes call however they are asked.
    with pytest.MonkeyPatch.context() as patch, counter, sdpa_kernel(SDPBackend.MATH):
        patch.setattr(GenerationMixin, "_sample", hooked_sample)
        model.generate(
            **given,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            num_beams=1,
            eos_token_id=None,
            pad_token_id=1,
            logits_processor=[first_token],
        )
    starts[0] = 0  # an encoder has run before
    flops = [end - start for start, end in zip(starts, ends, strict=True)]
    assert len(flops) == new_tokens
    return counted(flops, cache_bytes, sum(each.numel() for each in model.parameters()))


def floating_bytes(value, seen: set[int]) -> int:
    if id(value) in seen or isinstance(value, type):
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.is_floating_point() else 0
    parts = getattr(value, "__dict__", value)
    if isinstance(parts, dict):
        parts = [*parts.values()]
    return sum(floating_bytes(x, seen) for x in parts) if isinstance(parts, list | tuple) else 0


def told(small: Small, folder, batch: int, steps, new_tokens: int, **arguments) -> SimpleNamespace:
    """What the tool says of the prefill pass and of some steps of the same generation."""
    session = session_of(small, folder, **arguments)
    workload = session.plan(batch_size=batch, max_new_tokens=new_tokens)
    traces = trace_passes(session.loaded, workload, session.architecture, step_numbers=steps)
    return counted(
        [2 * growing_work(each, None).macs for each in (traces.prefill, *traces.decode_steps)],
        [traces.kv_cache_bytes, *traces.step_cache_bytes],
        sum(each.numel() for each in session.model.parameters()),
    )


@pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning")  # Nemotron's
@sampled("batch", [1, 3], named(1))
@sampled("name", sorted({*MODELS} - {*REFUSED_ON_META}), named("mamba"))
def test_every_pass_costs_what_generate_runs(tmp_path, name, batch):
    small = MODELS[name]
    real = really_generated(small, batch, 4)
    assert told(small, tmp_path, batch, range(3), 4) == real
    report = session_of(small, tmp_path).analyze(batch_size=batch, max_new_tokens=4)
    passes = report.total, report.total.decode_step, report.total.batch
    assert [each.matrix_flops for each in passes] == [*real.flops[:2], sum(real.flops)]
    found = report.memory.kv_cache_bytes, report.total.params
    assert found == (real.cache_bytes[-1], real.params)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODELS.keys() & {*REFUSED_ON_META})
def test_what_meta_cannot_tell_is_refused_and_a_cpu_can(tmp_path, name):
    small = MODELS[name]
    with pytest.raises(errors.ModelCodeError, match=r"no values on meta.*give device=.cpu"):
        told(small, tmp_path, 1, range(3), 4)
    real = really_generated(small, 1, 4)
    assert told(small, tmp_path, 1, range(3), 4, device="cpu", dtype="bfloat16") == real


JUMPS = (
    "deepseek_v32", "deepseek_v4", "gemma2", "gemma3", "gpt_bigcode", "gpt_oss", "idefics",
    "mamba", "mistral", "mllama", "mpt", "phi3", "qwen2_audio", "recurrent_gemma", "rwkv", "t5",
    "whisper", "zamba",
)  # fmt: skip
"""Windows that fill up, caches as large as the whole answer, and each other way to grow."""


@sampled("name", sorted(MODELS.keys() & {*JUMPS}), named("t5", "deepseek_v4"))
def test_a_step_after_many_that_do_not_run_costs_what_it_costs_after_them(tmp_path, name):
    small = MODELS[name]
    real = really_generated(small, 1, 12)
    flops, cache_bytes = ([of[0], of[1], of[11]] for of in (real.flops, real.cache_bytes))
    found = told(small, tmp_path, 1, (0, 10), 12)
    ends = ([of[0], of[1], of[-1]] for of in (found.flops, found.cache_bytes))
    assert counted(*ends, found.params) == counted(flops, cache_bytes, real.params)
    report = session_of(small, tmp_path).analyze(max_new_tokens=12)
    found = report.total.batch.matrix_flops, report.memory.kv_cache_bytes
    assert found == (sum(real.flops), real.cache_bytes[-1])


def test_the_page_says_how_many_models_these_are():
    page = (Path(__file__).parent.parent / "docs/any-model.md").read_text(encoding="utf-8")
    words = "small models under transformers" if not IS_5 else "under"
    version = transformers.__version__.rpartition(".")[0]
    assert f"{len(MODELS)} {words} {version}" in " ".join(page.split())


LLAMA_1B = Small(
    {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256,
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "max_position_embeddings": 131072, "tie_word_embeddings": True, "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    },
    'attention = "sdpa"\n' + TEXT_STAGES + PROMPT,
)  # fmt: skip
"""Llama-3.2-1B."""


def test_a_prefill_computes_the_logits_of_one_token_as_generate_asks(tmp_path):
    tokens, d, kv, inner, layers, vocabulary = 2048, 2048, 512, 8192, 16, 128256
    keep = "logits_to_keep" if IS_5 else "num_logits_to_keep"
    shallow = replace(LLAMA_1B, config=LLAMA_1B.config | {"num_hidden_layers": 1})
    deep, one, every = (
        session_of(small, tmp_path).analyze(seq_len=tokens, max_new_tokens=2)
        for small in (
            LLAMA_1B, shallow, replace(shallow, stages=LLAMA_1B.stages + f"[inputs]\n{keep} = 0\n"),
        )
    )  # fmt: skip
    layer = tokens * (2 * d * d + 2 * d * kv + 3 * d * inner) + 2 * tokens * tokens * d
    # Of the angles, one product per position and half a head's width, which 4.46 makes with a
    # matrix operator.
    angles = 0 if IS_5 else tokens * 32
    flops = 4_536_010_932_224 - (131_072 if IS_5 else 0)
    assert (deep.total.macs, deep.total.matrix_flops, deep.total.params) == (
        layers * layer + d * vocabulary + angles, flops, 1_235_814_400,
    )  # fmt: skip
    difference = every.total.matrix_flops - one.total.matrix_flops
    assert difference == 2 * (tokens - 1) * d * vocabulary
    logits = 2 * tokens * vocabulary
    assert one.memory.peak_activation_bytes < logits < every.memory.peak_activation_bytes


# --- the command `stages` ----------------------------------------------------------------------

BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 99,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
WAV2VEC2 = {
    "model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"], "vocab_size": 32,
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "conv_dim": [16, 16, 16], "conv_stride": [10, 8, 4], "conv_kernel": [10, 8, 4],
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
KOSMOS2 = {
    "model_type": "kosmos-2", "architectures": ["Kosmos2ForConditionalGeneration"],
    "latent_query_num": 6,
    "text_config": {
        "vocab_size": 128, "embed_dim": 32, "layers": 2, "ffn_dim": 48, "attention_heads": 4,
        "max_position_embeddings": 64},
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "image_size": 32, "patch_size": 8},
}  # fmt: skip
"""The places of its picture's tokens are an input; they have no id."""
UNDRAFTED = {
    "fuyu": "FuyuForCausalLM ran with none of the inputs that could be drafted",
    "switch": "no values on meta",
}
"""What no draft can describe or no pass on meta can run, and what the refusal says."""
SMALL = {
    **{name: small.config for name, small in {**PRESENT, **MODELS}.items()},
    "bert": BERT,
    "kosmos2": KOSMOS2,
    "wav2vec2": WAV2VEC2,
}
DRAFTED = sorted(SMALL.keys() - UNDRAFTED.keys())
QUICK = ("t5", "qwen2_vl")


def written(config, folder):
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return file


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    """By a model's name its draft's contents, and the files of its config and the draft."""

    @functools.cache
    def drafted(name):
        file = written(SMALL[name], tmp_path_factory.mktemp(name))
        stages = file.with_name("stages.toml")
        assert cli.main(["stages", "--hf-config", str(file), "--output", str(stages)]) == 0
        return tomllib.loads(stages.read_text()), file, stages

    return drafted


@sampled("name", DRAFTED, named(*QUICK))
def test_a_draft_runs_as_it_is(name, drafts, capsys, tmp_path):
    (found, file, stages), target = drafts(name), tmp_path / "report.json"
    model = "--hf-config", file, "--stages", stages
    code, _, err = run(capsys, *model, "--max-new-tokens", 3, "-q", "--json", target)
    # An operator without a rule is said, and is no matter of the draft.
    said = [line for line in err.splitlines() if "warning: unknown operator" not in line]
    report = json.loads(target.read_text())
    idle = {name for name, stage in report["stages"].items() if not stage["matrix_flops"]}
    assert [stage["name"] for stage in found["stages"]] == list(report["stages"])
    unused = idle - {"projector"}, report["unassigned"]["params"]
    assert (code, said, *unused) == (0, [], set(), 0)


@sampled("name", DRAFTED, named("t5", "llava", "kosmos2"))
@sampled("batch", [2, 1], first(1))
@pytest.mark.filterwarnings("ignore:.*autocast:FutureWarning")  # of Nemotron's own code
def test_generate_itself_takes_its_inputs_on_a_cpu(name, batch, drafts):
    if name == "florence2":
        pytest.skip("its config sets no size, and the example's has more patches than positions")
    model, architecture = real_model(SMALL[name]), described_architecture(drafts(name)[2])
    lengths = architecture.plan(batch_size=batch, max_new_tokens=2)
    given = architecture.prefill_inputs(torch.device("cpu"), torch.float32, lengths)
    if "attention_mask" not in inspect.signature(model.forward).parameters:
        given.pop("attention_mask", None)
    with torch.no_grad():
        if architecture.decode is None:
            model(**given)
            return
        generate, start = model.generate, given.get("decoder_input_ids")
        if start is not None:
            generate = GenerationMixin.generate.__get__(model)
            given["decoder_start_token_id"] = int(start[0, 0])
        assert len(generate(**given, max_new_tokens=2, do_sample=False)) == batch


VISION, TOWER, PROJECTOR, TEXT, HEAD = (
    ("model.visual", "model.vision_tower", "model.multi_modal_projector", "model", "lm_head")
    if IS_5
    else ("visual", "vision_tower", "multi_modal_projector", "language_model",
          "language_model.lm_head")
)  # fmt: skip


def found(stages=None, tokens=None, expert=None, **shapes):
    """What a draft says of some: prefixes by stage, tokens of a picture, shapes by argument."""
    return stages, tokens, expert, shapes


@sampled(
    ("name", "expected"),
    {
        "llama": found({"prefill": ["model"], "decode": ["lm_head"]}),
        "gpt2": found({"prefill": ["transformer"], "decode": ["lm_head"]}),
        "mamba": found({"prefill": ["backbone"], "decode": ["lm_head"]}),
        "t5": found(
            {"encoder": ["encoder"], "prefill": ["shared", "decoder"], "decode": ["lm_head"]},
            input_ids=["batch", 512]),
        "whisper": found(
            {"encoder": ["model.encoder"], "prefill": ["model"], "decode": ["proj_out"]},
            input_features=["batch", 16, 40]),
        "llava": found(
            {"vision": [TOWER], "projector": [PROJECTOR], "prefill": [TEXT], "decode": [HEAD]},
            (32 // 8) ** 2, pixel_values=["batch", 3, 32, 32]),
        "qwen2_vl": found(
            {"vision": [VISION], "prefill": ["model"], "decode": ["lm_head"]},
            (448 // 14 // 2) ** 2, pixel_values=[32 * 32, 3 * 2 * 14 * 14]),
        "bert": found({"model": ["bert", "cls"]}),
        "clip_encoder": found({"model": ["vision_model"] if not IS_5 else None}),
        # Experts are modules of their own in transformers 4.
        "mixtral": found(expert=None if IS_5 else "model.layers.*.block_sparse_moe.experts.*"),
        "wav2vec2": found(input_values=["batch", 160_000]),
        # The picture in the middle of 64 x 64: four tiles beside the whole, and a token a row.
        "llava_next": found(tokens=(32 // 8) ** 2 + (64 // 8) * (64 // 8 + 1)),
        "paligemma": found(tokens=(32 // 8) ** 2),
        "idefics3": found(tokens=(32 // 8 // 2) ** 2),
        "mllama": found(tokens=1),  # attended to from outside
    }.items(),
    lambda number, case: number < 11 and case[0] != "mamba",
)  # fmt: skip
def test_stages_and_inputs_follow_from_names_and_the_config(name, expected, drafts):
    """A prompt has as many image tokens as the text model is handed."""
    (stages, tokens, expert, shapes), (drafted, *_) = expected, drafts(name)
    prefixes = {stage["name"]: stage["prefixes"] for stage in drafted["stages"]}
    roles = [stage["role"] for stage in drafted["stages"] if "role" in stage]
    assert stages is None or [*prefixes] == [*stages]
    assert stages in (None, prefixes, dict.fromkeys(prefixes))
    assert roles == (["prefill", "decode"] if "decode" in prefixes else ["prefill"])
    if tokens is not None:
        config, prompt = SMALL[name], drafted["prompt"]
        token = config.get("image_token_id", config.get("image_token_index", IMAGE))
        placed = [run["count"] for run in prompt["placed"] if run["value"] == token]
        assert (placed, prompt["tokens"]) == ([tokens], tokens + 32)
    assert {argument: drafted["inputs"][argument]["shape"] for argument in shapes} == shapes
    assert drafted.get("routed_expert") == expert or stages is not None


@sampled(
    ("name", "expected"),
    [
        ("llama", "LlamaForCausalLM"),
        ("t5", "T5ForConditionalGeneration"),
        ("whisper", "WhisperForConditionalGeneration"),
        ("llava", "LlavaForConditionalGeneration"),
        ("qwen2_vl", "Qwen2VLForConditionalGeneration"),
        ("bert", "BertModel"),
        ("wav2vec2", "Wav2Vec2Model"),
    ],
    every(5),
)
def test_a_class_that_generates_is_chosen_if_the_config_names_none(
    name, expected, capsys, tmp_path
):
    config = {key: value for key, value in SMALL[name].items() if key != "architectures"}
    out = run(capsys, "stages", "--hf-config", written(config, tmp_path))[1]
    assert tomllib.loads(out)["class"] == expected


def test_a_draft_of_the_class_that_is_named_is_printed_or_written(capsys, tmp_path):
    target = tmp_path / "draft.toml"
    command = (
        "stages",
        "--hf-config",
        written(LLAMA.config, tmp_path),
        "--class",
        "LlamaModel",
    )
    code, out, err = run(capsys, *command)
    assert (code, err, run(capsys, *command, "--output", target)) == (0, "", (0, "", ""))
    assert (target.read_text(), 'class = "LlamaModel"' in out) == (out, True)
    assert [stage["name"] for stage in tomllib.loads(out)["stages"]] == ["model"]


@sampled(
    ("config", "message"),
    [
        ({"model_type": "patchtst", "architectures": ["PatchTSTModel"], "d_model": 32},
         "PatchTSTModel takes past_values, which no rule of a draft describes"),
        ({"model_type": "nougat"}, "names no class in 'architectures'; give --class NAME"),
        *((SMALL[name], UNDRAFTED[name]) for name in sorted(UNDRAFTED.keys() & SMALL.keys())),
    ],
    first(2),
)  # fmt: skip
def test_what_cannot_be_described_is_named(config, message, capsys, tmp_path):
    code, out, err = run(capsys, "stages", "--hf-config", written(config, tmp_path))
    assert (code, out, [part for part in message.split("; ") if part not in err]) == (2, "", [])


def test_a_model_that_runs_otherwise_needs_none(capsys):
    assert run(capsys, "stages")[2].endswith("name a model: --hf-config FILE or --model DIR\n")


def test_modules_are_shown_without_stages(capsys, tmp_path):
    said = "no pass was traced, which takes a stages file", "lm_head: Linear", "stage "
    for option, path in (("--hf-config", written(LLAMA.config, tmp_path)), ("--model", tmp_path)):
        code, out, err = run(capsys, "tree", option, path)
        found = [each in " ".join(out.split()) for each in said]
        assert (code, err, found) == (0, "", [True, True, False])


@pytest.mark.exhaustive
def test_a_session_traces_twice_alike(drafts):
    """Transformers 5 hangs hooks into the layers whose outputs LLaVA asks for."""
    _, file, stages = drafts("llava")
    session = DeepSeekOCRSession.from_local(file.parent, stages=stages)
    first, second = (session.analyze(max_new_tokens=3) for _ in range(2))
    assert first.total == second.total
