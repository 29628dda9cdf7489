"""The command `stages`: what it drafts runs as it is, under either version of transformers."""

from __future__ import annotations

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

from dsocr_analyze.architectures import described_architecture

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
QUICK = ("llama", "mixtral", "t5", "qwen2_vl", "bert")


def written(config, folder):
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return file


def draft(capsys, config, folder, *options):
    """The text of a draft, its contents, and the files of the model and the draft."""
    file, stages = written(config, folder), folder / "stages.toml"
    code, out, err = run(capsys, "stages", "--hf-config", file, *options)
    assert (code, err) == (0, "")
    stages.write_text(out)
    return out, tomllib.loads(out), file, stages


@sampled("name", DRAFTED, named(*QUICK))
def test_a_draft_runs_as_it_is(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, found, file, stages = draft(capsys, SMALL[name], tmp_path)
    code, _, err = run(
        capsys, "--hf-config", file, "--stages", stages, "--max-new-tokens", 3, "-q",
        "--json", "report.json",
    )  # fmt: skip
    # An operator without a rule is said, and is no matter of the draft.
    warned = ["warning: unknown operator" in line for line in err.splitlines()]
    assert (code, all(warned)) == (0, True)
    report = json.loads((tmp_path / "report.json").read_text())
    assert [stage["name"] for stage in found["stages"]] == list(report["stages"])
    assert report["unassigned"]["params"] == 0
    for stage in report["stages"].values():
        assert stage["matrix_flops"] > 0 or stage["name"] == "projector"


@sampled("name", DRAFTED, named("t5", "llava"))
@sampled("batch", [2, 1], first(1))
@pytest.mark.filterwarnings("ignore:.*autocast:FutureWarning")  # of Nemotron's own code
def test_generate_itself_takes_its_inputs_on_a_cpu(name, batch, capsys, tmp_path):
    if name == "florence2":
        pytest.skip("its config sets no size, and the example's has more patches than positions")
    config = SMALL[name]
    *_, stages = draft(capsys, config, tmp_path)
    architecture = described_architecture(stages)
    values = CONFIG_MAPPING[config["model_type"]].from_dict(json.loads(json.dumps(config)))
    values._attn_implementation = "eager"
    model = getattr(transformers, config["architectures"][0])(values).eval()
    lengths = architecture.plan(batch_size=batch, max_new_tokens=2)
    given = architecture.prefill_inputs(torch.device("cpu"), torch.float32, lengths)
    if "attention_mask" not in inspect.signature(model.forward).parameters:
        given.pop("attention_mask", None)
    run_model = model
    if architecture.decode is not None:
        run_model, start = model.generate, given.get("decoder_input_ids")
        if start is not None:
            run_model = transformers.GenerationMixin.generate.__get__(model)
            given["decoder_start_token_id"] = int(start[0, 0])
        given |= {"max_new_tokens": 2, "do_sample": False}
    with torch.no_grad():
        out = run_model(**given)
    assert architecture.decode is None or len(out) == batch


VISION = "model.visual" if IS_5 else "visual"
TOWER = "model.vision_tower" if IS_5 else "vision_tower"
PROJECTOR = "model.multi_modal_projector" if IS_5 else "multi_modal_projector"
TEXT = "model" if IS_5 else "language_model"
HEAD = "lm_head" if IS_5 else "language_model.lm_head"


@sampled(
    ("name", "stages"),
    [
        ("llama", {"prefill": ["model"], "decode": ["lm_head"]}),
        ("gpt2", {"prefill": ["transformer"], "decode": ["lm_head"]}),
        ("mamba", {"prefill": ["backbone"], "decode": ["lm_head"]}),
        ("t5", {"encoder": ["encoder"], "prefill": ["shared", "decoder"], "decode": ["lm_head"]}),
        ("whisper", {"encoder": ["model.encoder"], "prefill": ["model"], "decode": ["proj_out"]}),
        ("llava", {"vision": [TOWER], "projector": [PROJECTOR], "prefill": [TEXT],
                   "decode": [HEAD]}),
        ("qwen2_vl", {"vision": [VISION], "prefill": ["model"], "decode": ["lm_head"]}),
        ("bert", {"model": ["bert", "cls"]}),
        ("clip_encoder", {"model": ["vision_model"] if not IS_5 else None}),
    ],
    lambda _, case: case[0] != "mamba",
)  # fmt: skip
def test_stages_are_found_by_class_and_path(name, stages, capsys, tmp_path):
    _, found, *_ = draft(capsys, SMALL[name], tmp_path)
    prefixes = {stage["name"]: stage["prefixes"] for stage in found["stages"]}
    assert list(prefixes) == list(stages)
    assert stages in (prefixes, dict.fromkeys(prefixes))
    roles = [stage["role"] for stage in found["stages"] if "role" in stage]
    assert roles == (["prefill", "decode"] if "decode" in stages else ["prefill"])


@sampled(
    ("name", "tokens"),
    [
        ("llava", (32 // 8) ** 2),
        # The picture in the middle of 64 x 64: four tiles beside the whole, and a token a row.
        ("llava_next", (32 // 8) ** 2 + (64 // 8) * (64 // 8 + 1)),
        ("paligemma", (32 // 8) ** 2),
        ("idefics3", (32 // 8 // 2) ** 2),
        ("qwen2_vl", (448 // 14 // 2) ** 2),
        ("mllama", 1),  # attended to from outside
    ],
    named("llava", "qwen2_vl"),
)
def test_a_prompt_has_as_many_image_tokens_as_the_text_model_is_handed(
    name, tokens, capsys, tmp_path
):
    config = SMALL[name]
    token = config.get("image_token_id", config.get("image_token_index", IMAGE))
    _, found, *_ = draft(capsys, config, tmp_path)
    runs = [run for run in found["prompt"]["placed"] if run["value"] == token]
    assert [run["count"] for run in runs] == [tokens]
    assert found["prompt"]["tokens"] == tokens + 32


@pytest.mark.parametrize(
    ("name", "argument", "shape"),
    [
        ("llava", "pixel_values", ["batch", 3, 32, 32]),
        ("qwen2_vl", "pixel_values", [32 * 32, 3 * 2 * 14 * 14]),
        ("whisper", "input_features", ["batch", 16, 40]),
        ("wav2vec2", "input_values", ["batch", 160_000]),
        ("t5", "input_ids", ["batch", 512]),
    ],
)
def test_inputs_have_the_sizes_of_the_config(name, argument, shape, capsys, tmp_path):
    _, found, *_ = draft(capsys, SMALL[name], tmp_path)
    assert found["inputs"][argument]["shape"] == shape


@pytest.mark.skipif(IS_5, reason="experts are modules of their own in transformers 4")
def test_experts_of_their_own_are_named(capsys, tmp_path):
    _, found, *_ = draft(capsys, SMALL["mixtral"], tmp_path)
    assert found["routed_expert"] == "model.layers.*.block_sparse_moe.experts.*"


class TestClass:
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
    def test_one_that_generates_is_chosen_if_the_config_names_none(
        self, name, expected, capsys, tmp_path
    ):
        config = {key: value for key, value in SMALL[name].items() if key != "architectures"}
        assert draft(capsys, config, tmp_path)[1]["class"] == expected

    def test_another_is_built_if_it_is_named(self, capsys, tmp_path):
        _, found, *_ = draft(capsys, LLAMA.config, tmp_path, "--class", "LlamaModel")
        assert found["class"] == "LlamaModel"
        assert [stage["name"] for stage in found["stages"]] == ["model"]


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
    assert (code, out) == (2, "")
    assert [part for part in message.split("; ") if part not in err] == []


def test_a_model_that_runs_otherwise_needs_none(capsys):
    assert run(capsys, "stages")[2].endswith("name a model: --hf-config FILE or --model DIR\n")


def test_a_draft_is_written_to_a_file(capsys, tmp_path):
    file, target = written(LLAMA.config, tmp_path), tmp_path / "draft.toml"
    assert run(capsys, "stages", "--hf-config", file, "--output", target) == (0, "", "")
    assert tomllib.loads(target.read_text())["name"] == "llama"


class TestTree:
    def test_modules_are_shown_without_stages(self, capsys, tmp_path):
        written(LLAMA.config, tmp_path)
        for model in (["--hf-config", tmp_path / "config.json"], ["--model", tmp_path]):
            code, out, err = run(capsys, "tree", *model)
            assert (code, err) == (0, "")
            assert "no pass was traced, which takes a stages file" in " ".join(out.split())
            assert "lm_head: Linear" in out
            assert "stage " not in out

    @pytest.mark.parametrize("option", ["--trace", "--stage=prefill", "--seq-len=9"])
    def test_what_takes_a_stages_file_says_so(self, option, capsys, tmp_path):
        file = written(LLAMA.config, tmp_path)
        code, _, err = run(capsys, "tree", "--hf-config", file, option)
        assert code == 2
        assert "takes a stages file; give --stages FILE (dsocr-analyze stages drafts one)" in err


@pytest.mark.exhaustive
def test_a_session_traces_twice_alike(capsys, tmp_path):
    """Transformers 5 hangs hooks into the layers whose outputs LLaVA asks for."""
    from dsocr_analyze import DeepSeekOCRSession

    *_, file, stages = draft(capsys, SMALL["llava"], tmp_path)
    session = DeepSeekOCRSession.from_local(file.parent, stages=stages)
    first, second = (session.analyze(max_new_tokens=3) for _ in range(2))
    assert first.total == second.total
