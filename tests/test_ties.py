"""Shared parameters: those of the model that transformers itself builds, and of its checkpoints."""

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from any_models import DECODER, IS_5, LLAMA
from command_line import run
from every_architecture import STAGES, alone, architectures, built, smallest_config
from safetensors.torch import load_file, save_file
from sampling import every, first, named, sampled
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from dsocr_analyze.architectures import described_architecture
from dsocr_analyze.errors import AnalyzeError, ModelDirectoryError
from dsocr_analyze.model import described_model, loading
from dsocr_analyze.model.directory import ModelDirectory

PARTS = 40
TIED = {**DECODER, "tie_word_embeddings": True, "pad_token_id": 0, "bos_token_id": 1}
VIT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
BERT = {
    "model_type": "bert", "vocab_size": 500, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
SEQ2SEQ = {
    "vocab_size": 500, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 64,
}  # fmt: skip
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
OF_DECODER = {"is_decoder": True, "add_cross_attention": True}
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"model_type": "llama", **TIED},
    "LlamaForCausalLM, untied": {"model_type": "llama", **TIED, "tie_word_embeddings": False},
    "VisionEncoderDecoderModel, TrOCR": {
        "model_type": "vision-encoder-decoder",
        "encoder": {"model_type": "vit", **VIT},
        "decoder": {
            "model_type": "trocr", "vocab_size": 500, "d_model": 64, "decoder_layers": 2,
            "decoder_attention_heads": 4, "decoder_ffn_dim": 96, "cross_attention_hidden_size": 32,
            **OF_DECODER,
        },
    },
    "VisionEncoderDecoderModel, Donut": {
        "model_type": "vision-encoder-decoder",
        "encoder": {
            "model_type": "donut-swin", "image_size": 32, "patch_size": 4, "embed_dim": 16,
            "depths": [1, 1], "num_heads": [2, 2], "window_size": 4,
        },
        "decoder": {"model_type": "mbart", **SEQ2SEQ, **OF_DECODER},
    },
    "EncoderDecoderModel": {
        "model_type": "encoder-decoder", "encoder": BERT, "decoder": {**BERT, **OF_DECODER},
    },
    "T5ForConditionalGeneration": {
        "model_type": "t5", "vocab_size": 500, "d_model": 32, "d_kv": 8, "d_ff": 48,
        "num_layers": 2, "num_heads": 4,
    },
    "WhisperForConditionalGeneration": {
        "model_type": "whisper", **SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 20,
        "max_target_positions": 20, "pad_token_id": 0,
    },
    "MarianMTModel": {
        "model_type": "marian", **SEQ2SEQ, "pad_token_id": 0, "decoder_start_token_id": 0,
    },
    "PaliGemmaForConditionalGeneration": {
        "model_type": "paligemma", "projection_dim": 64, "image_token_index": 120,
        "vision_config": {"model_type": "siglip_vision_model", **VIT},
        "text_config": {"model_type": "gemma", **TIED, "head_dim": 16},
    },
    "LlavaForConditionalGeneration": {
        "model_type": "llava", "image_token_index": 120, "tie_word_embeddings": True,
        "vision_config": {"model_type": "clip_vision_model", **VIT},
        "text_config": {"model_type": "llama", **TIED},
    },
    "Qwen2VLForConditionalGeneration": {
        "model_type": "qwen2_vl", "tie_word_embeddings": True,
        "vision_config": {
            "depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2,
        },
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, **TIED,
    },
    "Idefics2ForConditionalGeneration": {
        # transformers 4 saves no config that says that its weights are tied.
        "model_type": "idefics2", "image_token_id": 120, "tie_word_embeddings": IS_5,
        "vision_config": {"model_type": "idefics2_vision" if IS_5 else "idefics2", **VIT},
        "text_config": {"model_type": "mistral", **TIED},
        "perceiver_config": {
            "hidden_size": 64, "resampler_n_latents": 4, "resampler_depth": 1,
            "resampler_n_heads": 4, "resampler_head_dim": 16, "num_key_value_heads": 2,
        },
    },
    "MixtralForCausalLM": {
        "model_type": "mixtral", **TIED, "num_local_experts": 4, "num_experts_per_tok": 2,
    },
    "CLIPModel": {
        "model_type": "clip", "projection_dim": 24, "vision_config": VIT,
        "text_config": {**DECODER, "max_position_embeddings": 32},
    },
}  # fmt: skip
"""Small configs by the class that they are for, and what is of note."""


def of_transformers(name: str) -> Any:
    """The model that transformers builds by itself, with values."""
    config = CONFIG_MAPPING[MODELS[name]["model_type"]].from_dict(copy.deepcopy(MODELS[name]))
    described_model.use_attention(config, "eager")
    torch.manual_seed(0)
    return getattr(transformers, name.partition(",")[0])(config).eval()


def shared_of(module: torch.nn.Module) -> set[frozenset[str]]:
    """Names of each parameter that has several."""
    names: dict[int, set[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return {frozenset(each) for each in names.values() if len(each) > 1}


def facts_of(module: torch.nn.Module) -> tuple[int, set[frozenset[str]]]:
    """Its number of parameters, and names of those that are shared."""
    return sum(each.numel() for each in module.parameters()), shared_of(module)


def config_of(name: str) -> dict[str, Any]:
    return {**MODELS[name], "architectures": [name.partition(",")[0]]}


# --- ties of models that are built -----------------------------------------------------------


@sampled("name", MODELS, every(3))
def test_parameters_are_shared_as_in_transformers_own_model(tmp_path, name):
    module = built(alone(config_of(name), tmp_path)).module
    assert facts_of(module) == facts_of(of_transformers(name))


def test_by_hand(tmp_path):
    """An embedding of 500 tokens that is the head, too, of a decoder in another model."""
    tied = config_of("VisionEncoderDecoderModel, TrOCR")
    apart = {"tie_word_embeddings": False}
    untied = {**tied, **apart, "decoder": {**tied["decoder"], **apart}}
    (n, shared), (more, nothing) = (
        facts_of(built(alone(config, tmp_path)).module) for config in (tied, untied)
    )
    assert any("decoder.output_projection.weight" in each for each in shared)
    assert (more - n, nothing) == (500 * 64, set())


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@sampled("part", range(PARTS), named(39))
def test_of_every_architecture(part, tmp_path):
    compared = 0
    for model_type, names in list(architectures().items())[part::PARTS]:
        for name in names:
            config = {**smallest_config(model_type), "architectures": [name]}
            try:
                module = built(alone(config, tmp_path)).module
            except AnalyzeError:
                continue  # test_confinement.py covers those
            own = _plain(config, getattr(transformers, name))
            if own is not None:
                assert facts_of(module) == facts_of(own), name
                compared += 1
    assert compared > 5


def _plain(config: dict[str, Any], model_class: Any) -> Any:
    """Transformers' own model on meta; None if its constructor asks for values, as a device has."""
    parsed = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
    described_model.use_attention(parsed, "eager")
    try:
        with torch.device("meta"):
            return model_class(parsed)
    except (RuntimeError, NotImplementedError, ZeroDivisionError):
        return None


def load(folder: Path) -> torch.nn.Module:
    (folder / "any.toml").write_text(STAGES)
    directory = ModelDirectory.read(folder, described_architecture(folder / "any.toml"))
    loaded = loading.load_model(directory, device=torch.device("cpu"), dtype=torch.float32)
    assert loaded.has_weights
    return loaded.module


# --- ties of checkpoints ---------------------------------------------------------------------


@sampled("name", MODELS, every(3))
@sampled("shard", ["40KB", "10GB"], first(1))  # several files, and one
def test_what_transformers_saves_loads_with_its_ties_and_values(tmp_path, name, shard):
    own = of_transformers(name)
    own.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "40KB")
    module = load(tmp_path)
    assert facts_of(module) == facts_of(own)
    assert {each.dtype for each in module.parameters()} == {torch.float32}
    assert_equal(module.named_parameters(), own.named_parameters())
    assert_equal(module.named_buffers(), own.named_buffers())


@pytest.fixture
def values(tmp_path) -> dict[str, torch.Tensor]:
    """Values of a tied LlamaForCausalLM by name, whose config is written."""
    (tmp_path / "config.json").write_text(json.dumps(config_of("LlamaForCausalLM")))
    named = of_transformers("LlamaForCausalLM").named_parameters()
    return {name: each.detach().clone() for name, each in named}


@pytest.mark.parametrize(
    ("without", "extra"),
    [
        # Either name of a tie will do, and both if they are equal.
        ((), lambda values: {}),
        ((), lambda values: {HEAD: values[EMBEDDING].clone()}),
        ((EMBEDDING,), lambda values: {HEAD: values[EMBEDDING]}),
        # Buffers of older checkpoints are ignored.
        (
            (),
            lambda _: {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.full((8,), 9.0)},
        ),
    ],
    ids=["one name", "both", "the other", "old buffer"],
)
def test_a_tie_has_either_name(tmp_path, values, without, extra):
    held = {name: each for name, each in values.items() if name not in without}
    save_file({**held, **extra(values)}, tmp_path / "model.safetensors")
    # The same in another format beside it is not read.
    save_file({"tok_embeddings.weight": torch.ones(2)}, tmp_path / "consolidated.safetensors")
    module = load(tmp_path)
    assert_equal(module.named_parameters(), values.items())
    assert module.lm_head.weight is module.model.embed_tokens.weight
    assert (module.model.rotary_emb.inv_freq <= 1).all()


@pytest.mark.parametrize(
    ("without", "extra", "words"),
    [
        (
            "nothing",
            lambda values: {HEAD: values[EMBEDDING] + 1},
            [repr(HEAD), repr(EMBEDDING), "tie_word_embeddings false"],
        ),
        (
            "norm",
            lambda _: {},
            [
                "lack 5 parameters, 'model.layers.0.input_layernorm.weight' among them",
                "random weights change no count",
            ],
        ),
        (
            "nothing",
            lambda _: {"model.layers.0.extra": torch.ones(1)},
            [
                "'model.layers.0.extra'", "save_pretrained()",
                "does not fit the model" if IS_5 else "which the model does not have",
            ],
        ),
        (
            "nothing",
            lambda _: {EMBEDDING: torch.ones(5)},
            [repr(EMBEDDING), "has shape (5,)"],
        ),
    ],
    ids=["other values", "missing", "unknown", "another shape"],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_the_way_out(tmp_path, values, without, extra, words):
    held = {name: each for name, each in values.items() if without not in name}
    save_file({**held, **extra(values)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelDirectoryError) as error:
        load(tmp_path)
    message = str(error.value)
    assert [word for word in words if word not in message] == []
    assert "\n" not in message
    assert len(message) < 500


@pytest.mark.skipif(not IS_5, reason="transformers 4 has these names itself")
def test_names_of_transformers_4_are_those_of_its_checkpoints(tmp_path):
    own = of_transformers("Qwen2VLForConditionalGeneration")
    own.save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    assert {name.partition(".")[0] for name in held} == {"visual", "model"}
    assert_equal(load(tmp_path).named_parameters(), own.named_parameters())


def assert_equal(one: Iterable[tuple[str, Any]], other: Iterable[tuple[str, Any]]) -> None:
    one_by_name, other_by_name = dict(one), dict(other)
    assert one_by_name.keys() == other_by_name.keys()
    for name, each in one_by_name.items():
        assert torch.equal(each, other_by_name[name]), name


def test_a_command_runs_a_tied_checkpoint_with_its_values(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    of_transformers("LlamaForCausalLM").save_pretrained(tmp_path / "m")
    stages, _ = LLAMA.write(tmp_path)
    capsys.readouterr()
    code, out, err = run(
        capsys, "--model", tmp_path / "m", "--stages", stages, "--device", "cpu", "--seq-len", 8,
        "--max-new-tokens", 2,
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "trace on cpu" in out
