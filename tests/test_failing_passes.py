"""A failure while a model is built or runs is one line: which pass, where, and what to try."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from any_models import CLIP, DECODER, IMAGE, IS_5, LLAMA, TEXT_STAGES, Small, placed, vision_stages
from command_line import run
from tracing import Calls

from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import blamed_on

ONE_STAGE = '[[stages]]\nname = "all"\nrole = "prefill"\n'
_TOWER, _TEXT, _HEAD = (
    ('["model.vision_tower"]', "model.language_model", "lm_head")
    if IS_5
    else ('["vision_tower"]', "language_model.model", "language_model.lm_head")
)
LLAVA = Small(
    {
        "model_type": "llava", "architectures": ["LlavaForConditionalGeneration"],
        "image_token_index": IMAGE, "image_token_id": IMAGE, "image_seq_length": 2,
        "vision_config": {
            "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
        },
        "text_config": {"model_type": "llama", **DECODER},
    },
    vision_stages(_TOWER, _TEXT, _HEAD)
    + placed(3)
    + '[inputs.pixel_values]\nshape = ["batch", 3, 32, 32]\n',
)  # fmt: skip
SWITCH = Small(
    {
        "model_type": "switch_transformers",
        "architectures": ["SwitchTransformersForConditionalGeneration"],
        "vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
        "num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
        "num_heads": 4, "num_experts": 4, "decoder_start_token_id": 0,
    },
    ONE_STAGE
    + '[prompt]\ntokens = 8\nargument = "decoder_input_ids"\n'
    + '[inputs.input_ids]\nshape = ["batch", 9]\ndtype = "int64"\n',
)  # fmt: skip
GPTJ = Small(
    {"model_type": "gptj", "architectures": ["GPTJForCausalLM"], "n_embd": 32, "n_layer": 1,
     "n_head": 4, "rotary_dim": 4, "n_positions": 8, "vocab_size": 64},
    TEXT_STAGES.replace('["model"]', '["transformer"]') + "[prompt]\ntokens = 8\n",
)  # fmt: skip
WRONG_POSITIONS = replace(
    LLAMA,
    stages=ONE_STAGE
    + '[prompt]\ntokens = 24\nwithout = ["position_ids"]\n'
    + "[inputs.position_ids]\nvalues = [[1, 2, 3]]\n",
)
CASES = {
    "a value on meta": (
        SWITCH, (),
        r"failed on meta: prefill pass, encoder\.block\.1\.layer\.1\.mlp\S*"
        r" \(SwitchTransformers\w+\), modeling_switch_transformers\.py:\d+: the model's code calls"
        r" nonzero on a tensor of shape \(4,\) that has no values on meta, .*"
        r"; give --device cpu or a CUDA device",
    ),
    "image tokens": (
        LLAVA, (),
        r"failed on meta: prefill pass, (model \(LlavaModel\)|LlavaForConditionalGeneration),"
        r" modeling_llava\.py:\d+: ValueError: Image features and image tokens do not match.*;"
        r" place one token per feature: 'placed' under \[prompt\] in the stages file",
    ),
    "positions": (
        WRONG_POSITIONS, (),
        r"failed on meta: prefill pass, model\.layers\.0\.self_attn \(LlamaAttention\),"
        r" modeling_llama\.py:\d+: RuntimeError: .*; compare \[prompt\] and \[inputs\]",
    ),
    "positions, measured": (
        WRONG_POSITIONS, ("measure", "--repeats", 1),
        r"failed on cpu: prefill pass, model\.layers\.0\.self_attn \(LlamaAttention\),"
        r" modeling_llama\.py:\d+: RuntimeError: .*; compare \[prompt\] and \[inputs\]",
    ),
    "positions, in the tree": (
        WRONG_POSITIONS, ("tree",),
        r"failed on meta: prefill pass, model\.layers\.0\.self_attn \(LlamaAttention\)",
    ),
    "an image of another size": (
        replace(CLIP, stages=CLIP.stages.replace("3, 32, 32", "3, 32, 30")), (),
        r"failed on meta: prefill pass, vision_model\.embeddings \(CLIPVisionEmbeddings\),"
        r" modeling_clip\.py:\d+: ValueError: Input image size .*; compare \[prompt\]",
    ),
    "no image": (
        replace(CLIP, stages=CLIP.stages.partition("[inputs.pixel_values]")[0]), (),
        r"failed on meta: prefill pass, (\S+ \()?CLIP\w+.*Error: .*"
        r"; (describe what is missing under \[inputs\]|compare \[prompt\] and \[inputs\])",
    ),
    "a decode step": (
        GPTJ, ("--device", "cpu", "--max-new-tokens", 2),
        r"failed on cpu: decode step 1, transformer\.h\.0\.attn \(GPTJAttention\),"
        r" modeling_gptj\.py:\d+: \w+Error: index 8 is out of bounds .*; compare \[prompt\]",
    ),
    "a function that is not there": (
        replace(LLAMA, config={**LLAMA.config, "hidden_act": "nope"}), (),
        r"could not be built: LlamaMLP, activations\.py:\d+: KeyError: 'nope'$",
    ),
    "a config that cannot be": (
        replace(LLAMA, config={**LLAMA.config, "num_attention_heads": 0}), (),
        r"could not be built: configuration_llama\.py:\d+: ZeroDivisionError: integer division",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_is_told_with_its_place_and_a_way_out(case, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small, options, told = CASES[case]
    stages, config = small.write(tmp_path)
    code, _, err = run(capsys, *options, "--stages", stages, "--hf-config", config)
    assert code == 2
    assert err.count("\n") == 1
    assert len(err) - len(str(config)) < 500
    assert err.startswith(f"dsocr-analyze: the model in '{config}' ")
    assert re.search(told, err.rstrip()), err


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [(), ("tree",)], ids=["report", "tree"])
def test_the_way_out_of_missing_values_leads_out(tmp_path, capsys, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    stages, config = SWITCH.write(tmp_path)
    code, out, err = run(
        capsys, *command, "--stages", stages, "--hf-config", config, "--device", "cpu"
    )
    assert (code, err) == (0, "")
    assert "on cpu" in out


def fail(error):
    raise error


FIRST, SECOND = ValueError("first"), ValueError("second")
FIRST.__cause__, SECOND.__cause__ = SECOND, FIRST


@pytest.mark.parametrize(
    ("name", "error", "place", "said"),
    [
        ("a\x1b[2Jb", ValueError("a\nb " * 1000), "decode step 3, a\\x1b[2Jb", "a b a b"),
        ("chained", FIRST, "chained", "first"),
    ],
    ids=["long, and with characters that act", "a chain of errors without an end"],
)
def test_what_is_told_has_an_end_and_nothing_that_acts(tmp_path, name, error, place, said):
    directory, module = ModelDirectory(tmp_path, {}, {}), torch.nn.Module()
    module.add_module(name, Calls(partial(fail, error)))

    def run():
        with blamed_on(directory, "failed", module=module) as announce:
            announce("decode step 3")
            next(module.children())()

    with pytest.raises(ModelCodeError) as told:
        run()
    message = str(told.value)
    assert f"{place} (Calls), test_failing_passes.py:" in message
    assert f": ValueError: {said}" in message
    assert len(message) < 500 + len(str(tmp_path))
