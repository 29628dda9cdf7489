"""The command `stages`: what it drafts runs as it is, under either version of transformers."""

import copy
import functools
import inspect
import json
import tomllib

import pytest
import torch
import transformers
from any_models import CLIP_ENCODER, IMAGE, IS_5, LLAMA, MODELS
from command_line import run
from generated_models import DECODERS, MIXTURES, STATE_SPACES
from generated_pages import READERS
from sampling import first, named, sampled
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from dsocr_analyze import DeepSeekOCRSession
from dsocr_analyze.architectures import described_architecture
from dsocr_analyze.cli import main

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
REFUSED = {
    "fuyu": "FuyuForCausalLM ran with none of the inputs that could be drafted",
    "switch": "no values on meta",
}
"""What no draft can describe or no pass on meta can run, and what the refusal says."""
SMALL = {
    name: small.config
    for name, small in {**MODELS, **DECODERS, **MIXTURES, **STATE_SPACES, **READERS}.items()
    if small.is_there
} | {"bert": BERT, "wav2vec2": WAV2VEC2, "clip_encoder": CLIP_ENCODER.config}
DRAFTED = sorted(SMALL.keys() - REFUSED.keys())
QUICK = ("llama", "t5", "qwen2_vl", "bert")


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
        assert main(["stages", "--hf-config", str(file), "--output", str(stages)]) == 0
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


@sampled("name", DRAFTED, named("t5", "llava"))
@sampled("batch", [2, 1], first(1))
@pytest.mark.filterwarnings("ignore:.*autocast:FutureWarning")  # of Nemotron's own code
def test_generate_itself_takes_its_inputs_on_a_cpu(name, batch, drafts):
    if name == "florence2":
        pytest.skip("its config sets no size, and the example's has more patches than positions")
    config, architecture = SMALL[name], described_architecture(drafts(name)[2])
    values = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
    values._attn_implementation = "eager"
    model = getattr(transformers, config["architectures"][0])(values).eval()
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
            generate = transformers.GenerationMixin.generate.__get__(model)
            given["decoder_start_token_id"] = int(start[0, 0])
        assert len(generate(**given, max_new_tokens=2, do_sample=False)) == batch


VISION = "model.visual" if IS_5 else "visual"
TOWER = "model.vision_tower" if IS_5 else "vision_tower"
PROJECTOR = "model.multi_modal_projector" if IS_5 else "multi_modal_projector"
TEXT = "model" if IS_5 else "language_model"
HEAD = "lm_head" if IS_5 else "language_model.lm_head"


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
    named("llama", "bert"),
)
def test_a_class_that_generates_is_chosen_if_the_config_names_none(
    name, expected, capsys, tmp_path
):
    config = {key: value for key, value in SMALL[name].items() if key != "architectures"}
    out = run(capsys, "stages", "--hf-config", written(config, tmp_path))[1]
    assert tomllib.loads(out)["class"] == expected


def test_a_draft_of_the_class_that_is_named_is_printed_or_written(capsys, tmp_path):
    target = tmp_path / "draft.toml"
    command = ("stages", "--hf-config", written(LLAMA.config, tmp_path), "--class", "LlamaModel")
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
        *((SMALL[name], REFUSED[name]) for name in sorted(REFUSED.keys() & SMALL.keys())),
    ],
    first(2),
)  # fmt: skip
def test_what_cannot_be_described_is_named(config, message, capsys, tmp_path):
    code, out, err = run(capsys, "stages", "--hf-config", written(config, tmp_path))
    assert (code, out, [part for part in message.split("; ") if part not in err]) == (2, "", [])


def test_a_model_that_runs_otherwise_needs_none(capsys):
    assert run(capsys, "stages")[2].endswith("name a model: --hf-config FILE or --model DIR\n")


def test_modules_are_shown_without_stages(capsys, tmp_path):
    for model in (["--hf-config", written(LLAMA.config, tmp_path)], ["--model", tmp_path]):
        code, out, err = run(capsys, "tree", *model)
        said = "no pass was traced, which takes a stages file", "lm_head: Linear", "stage "
        found = [each in " ".join(out.split()) for each in said]
        assert (code, err, found) == (0, "", [True, True, False])


@pytest.mark.exhaustive
def test_a_session_traces_twice_alike(drafts):
    """Transformers 5 hangs hooks into the layers whose outputs LLaVA asks for."""
    _, file, stages = drafts("llava")
    session = DeepSeekOCRSession.from_local(file.parent, stages=stages)
    first, second = (session.analyze(max_new_tokens=3) for _ in range(2))
    assert first.total == second.total
