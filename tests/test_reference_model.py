"""The built-in reference model against published facts, hand-written formulas and plain loops.

Parity with a vendor checkout, operator by operator, is `scripts/compare_with_vendor.py`.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from vendor_checkout import VENDOR, needs_vendor

from dsocr_analyze.architectures import DEFAULT, architecture_named
from dsocr_analyze.architectures.deepseek_ocr.reference import (
    deepencoder,
    modeling_deepseekocr,
    modeling_deepseekv2,
)
from dsocr_analyze.architectures.deepseek_ocr.reference.configuration_deepseek_v2 import (
    DeepseekV2Config,
)
from dsocr_analyze.model.loading import building

DATA = Path(__file__).parent / "data"
REFERENCE = Path(deepencoder.__file__).parent

MODULES = {
    "modeling_deepseekocr": (
        "DeepseekOCRConfig DeepseekOCRModel DeepseekOCRForCausalLM BaseTransform"
        " BasicImageTransform NoEOSTextStreamer"
    ),
    "modeling_deepseekv2": (
        "DeepseekV2RMSNorm DeepseekV2RotaryEmbedding DeepseekV2LinearScalingRotaryEmbedding"
        " DeepseekV2DynamicNTKScalingRotaryEmbedding DeepseekV2YarnRotaryEmbedding DeepseekV2MLP"
        " MoEGate DeepseekV2MoE AddAuxiliaryLoss repeat_kv DeepseekV2Attention"
        " DeepseekV2FlashAttention2 DeepseekV2DecoderLayer DeepseekV2Model DeepseekV2ForCausalLM"
        " DeepseekV2ForSequenceClassification LlamaAttention LlamaFlashAttention2"
    ),
    "deepencoder": (
        "MlpProjector LayerNormfp32 CLIPVisionEmbeddings NoTPFeedForward NoTPAttention"
        " NoTPTransformerBlock NoTPTransformer VitModel MLPBlock LayerNorm2d ImageEncoderViT Block"
        " Attention PatchEmbed get_abs_pos get_abs_pos_sam add_decomposed_rel_pos"
    ),
}

VISION = {
    "image_size": 128,
    "width": {
        "sam_vit_b": {
            "width": 24,
            "layers": 2,
            "heads": 2,
            "global_attn_indexes": [1],
            "downsample_channels": [12, 20],
        },
        "clip-l-14-224": {
            "width": 20,
            "layers": 2,
            "heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
    },
}
LATENT = {
    "use_mla": True,
    "kv_lora_rank": 12,
    "q_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}


def tiny_config(**changes):
    settings = {
        "vocab_size": 40,
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 3,
        "topk_method": "greedy",
        "use_mla": False,
        "vision_config": VISION,
        "projector_config": {"projector_type": "linear", "input_dim": 40, "n_embed": 32},
        "attn_implementation": "eager",
    }
    return modeling_deepseekocr.DeepseekOCRConfig(**{**settings, **changes})


def randomised(module):
    """Every parameter from a seeded uniform distribution, in evaluation mode."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.3, 0.3, generator=generator)
    return module.eval()


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def built(config, model_class=modeling_deepseekocr.DeepseekOCRForCausalLM):
    with building(torch.device("cpu"), torch.float32):
        model = model_class(config)
    return randomised(model)


def page(*, local):
    """One page of 128 pixels: a global view and, where asked, 2 x 1 local views as large.

    Every view gives 2 x 2 tokens: (4 + 1) * 2 local, (2 + 1) * 2 global, one separator.
    """
    views = normal(2, 3, 128, 128) if local else torch.zeros(1, 3, 64, 64)
    mask = torch.zeros(1, 20, dtype=torch.bool)
    mask[:, 1 : 1 + (10 if local else 0) + 6 + 1] = True
    return {
        "images": [(views, normal(1, 3, 128, 128, seed=1))],
        "images_seq_mask": mask,
        "images_spatial_crop": [[2, 1]],
    }


@pytest.fixture(scope="module")
def full_model():
    config = modeling_deepseekocr.DeepseekOCRConfig(**json.loads(_config_text()))
    with building(torch.device("meta"), torch.bfloat16):
        return modeling_deepseekocr.DeepseekOCRForCausalLM(config)


def _config_text():
    return (REFERENCE / "config.json").read_text(encoding="utf-8")


# -------------------------------------------------------------------------------- published facts


def test_parameters_have_the_published_names_and_shapes(full_model):
    published = json.loads((DATA / "checkpoint_tensors.json").read_text(encoding="utf-8"))
    assert {n: list(p.shape) for n, p in full_model.named_parameters()} == published


def test_the_model_has_as_many_modules_as_published(full_model):
    assert len(list(full_model.modules())) == 4083


def test_the_position_ids_are_the_only_persistent_buffer(full_model):
    parameters = dict(full_model.named_parameters())
    buffers = set(full_model.state_dict()) - set(parameters)
    assert buffers == {"model.vision_model.embeddings.position_ids"}


def test_stages_own_the_published_numbers_of_parameters(full_model):
    sizes = {}
    for name, parameter in full_model.named_parameters():
        stage = DEFAULT.owner_of(name)
        sizes[stage] = sizes.get(stage, 0) + parameter.numel()
    assert sizes == {
        "sam": 95_569_152,
        "clip": 303_177_728,
        "projector": 2_622_720,
        "prefill": 2_769_255_680,
        "decode": 165_478_400,
        None: 2_560,
    }


@pytest.mark.parametrize(
    ("file", "name"), [(file, name) for file, names in MODULES.items() for name in names.split()]
)
def test_every_published_module_exists_in_its_file(file, name):
    module = importlib.import_module(f"dsocr_analyze.architectures.deepseek_ocr.reference.{file}")
    assert callable(getattr(module, name))
    assert name in module.__all__


def test_auto_map_names_classes_that_exist():
    for reference in json.loads(_config_text())["auto_map"].values():
        file, name = reference.split(".")
        assert hasattr(
            importlib.import_module(f"dsocr_analyze.architectures.deepseek_ocr.reference.{file}"),
            name,
        )


LOAD_THE_PUBLIC_WAY = """
import sys
import torch
from transformers import AutoConfig, AutoModel
config = AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)
with torch.device("meta"):
    model = AutoModel.from_config(config, trust_remote_code=True)
print(type(model).__name__, sum(parameter.numel() for parameter in model.parameters()))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("architecture", "name", "params"),
    [
        ("deepseek-ocr", "DeepseekOCRForCausalLM", "3336106240"),
        ("deepseek-ocr-2", "DeepseekOCR2ForCausalLM", "3389119360"),
    ],
)
def test_transformers_auto_classes_load_the_directory(architecture, name, params, tmp_path):
    reference = architecture_named(architecture).reference
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    found = subprocess.run(
        [sys.executable, "-c", LOAD_THE_PUBLIC_WAY, str(reference)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.split() == [name, params], found.stderr


def test_defaults_are_the_published_ones_and_one_kv_head_a_head_is_the_default_for_none():
    config = DeepseekV2Config(num_key_value_heads=None, num_attention_heads=6)
    assert (config.rope_theta, config.rms_norm_eps, config.hidden_size) == (1e4, 1e-6, 4096)
    assert (config.topk_method, config.use_mla, config.bos_token_id) == ("gready", True, 100000)
    assert config.num_key_value_heads == 6


def test_a_config_is_what_it_is_given_whatever_transformers_makes_of_such_keys():
    class Relative(modeling_deepseekocr.DeepseekOCRConfig):
        model_type = "relative"

    scaling = {"type": "linear", "factor": 2.0}
    given = {"hidden_size": 7, "pad_token_id": 3, "rope_scaling": scaling, "rope_theta": 5e3}
    for kind in (DeepseekV2Config, modeling_deepseekocr.DeepseekOCRConfig, Relative):
        config = kind(**given, num_key_value_heads=None, vision_config={"a": 1})
        assert {key: getattr(config, key) for key in given} == given
        assert (config.num_key_value_heads, config.kv_lora_rank, config.eos_token_id) == (
            32, 512, 100001,
        )  # fmt: skip
        assert config.vision_config == {"a": 1}
        assert config.use_return_dict
        assert scaling == {"type": "linear", "factor": 2.0}


# ---------------------------------------------------------------------------- rotary embeddings


def table(frequencies, length, magnitude=1.0):
    """Cosines and sines by loops over positions and dimensions; halves repeat."""
    rows = [[p * f for f in frequencies] * 2 for p in range(length)]
    cos = [[math.cos(angle) * magnitude for angle in row] for row in rows]
    sin = [[math.sin(angle) * magnitude for angle in row] for row in rows]
    return torch.tensor(cos), torch.tensor(sin)


def frequencies(dim, base):
    return [base ** (-2 * i / dim) for i in range(dim // 2)]


def assert_tables(rotary, length, expected):
    cos, sin = rotary(torch.zeros(1), seq_len=length)
    torch.testing.assert_close(cos, expected[0], atol=2e-5, rtol=0)
    torch.testing.assert_close(sin, expected[1], atol=2e-5, rtol=0)


def test_rotary_tables_are_position_times_inverse_power_of_the_base():
    rotary = modeling_deepseekv2.DeepseekV2RotaryEmbedding(8, base=100.0)
    assert_tables(rotary, 11, table(frequencies(8, 100.0), 11))


def test_a_longer_table_replaces_a_shorter_one_and_a_shorter_request_gets_a_part():
    rotary = modeling_deepseekv2.DeepseekV2RotaryEmbedding(8)
    for length in (3, 9, 5):
        assert_tables(rotary, length, table(frequencies(8, 10000), length))


def test_linear_scaling_divides_positions():
    rotary = modeling_deepseekv2.DeepseekV2LinearScalingRotaryEmbedding(8, scaling_factor=4.0)
    scaled = [f / 4.0 for f in frequencies(8, 10000)]
    assert_tables(rotary, 13, table(scaled, 13))


@pytest.mark.parametrize("length", [10, 16, 40])
def test_dynamic_ntk_raises_the_base_beyond_the_trained_length_only(length):
    rotary = modeling_deepseekv2.DeepseekV2DynamicNTKScalingRotaryEmbedding(
        8, max_position_embeddings=16, scaling_factor=3.0
    )
    base = 10000.0
    if length > 16:
        base *= (3.0 * length / 16 - 2.0) ** (8 / 6)
    assert_tables(rotary, length, table(frequencies(8, base), length))


def test_yarn_keeps_fast_frequencies_divides_slow_ones_and_blends_between():
    dim, base, factor, original = 16, 10000.0, 8.0, 64
    rotary = modeling_deepseekv2.DeepseekV2YarnRotaryEmbedding(
        dim,
        scaling_factor=factor,
        original_max_position_embeddings=original,
        beta_fast=8,
        beta_slow=1,
        mscale=0.9,
        mscale_all_dim=0.4,
    )

    def turning(times):  # the dimension whose wave turns that often over the original length
        return dim / 2 * math.log(original / (times * 2 * math.pi), base)

    first, last = max(math.floor(turning(8)), 0), min(math.ceil(turning(1)), dim - 1)
    blended = []
    for i, frequency in enumerate(frequencies(dim, base)):
        share = min(max((i - first) / (last - first), 0.0), 1.0)
        blended.append(frequency * (1 - share) + frequency / factor * share)
    assert blended[0] == frequencies(dim, base)[0]
    assert blended[-1] == pytest.approx(frequencies(dim, base)[-1] / factor)
    magnitude = (0.09 * math.log(factor) + 1) / (0.04 * math.log(factor) + 1)
    assert_tables(rotary, 30, table(blended, 30, magnitude))


@pytest.mark.parametrize("scaling", [None, {"type": "linear", "factor": 2.0}])
def test_plain_attention_rotates_by_the_position_ids_it_is_given(scaling):
    config = tiny_config(rope_scaling=scaling)
    rotary = modeling_deepseekv2.LlamaRotaryEmbedding(config)
    cos, sin = rotary(torch.zeros(1), torch.tensor([[0, 7, 3]]))
    divisor = scaling["factor"] if scaling else 1.0
    whole = table([f / divisor for f in frequencies(8, 10000)], 8)
    torch.testing.assert_close(cos[0], whole[0][[0, 7, 3]], atol=2e-5, rtol=0)
    torch.testing.assert_close(sin[0], whole[1][[0, 7, 3]], atol=2e-5, rtol=0)


# -------------------------------------------------------------------------------------- attention


def causal(length):
    return torch.full((length, length), -1e30).triu(1)[None, None]


def test_latent_attention_equals_the_same_attention_with_keys_and_values_projected_up():
    config = tiny_config(**LATENT)
    attention = randomised(modeling_deepseekv2.DeepseekV2Attention(config, 0))
    x = normal(2, 9, 32)
    out, weights, _ = attention(x, causal(9), output_attentions=True)

    heads, nope, rope, value_size, rank = 4, 6, 4, 5, 12
    query = attention.q_b_proj(attention.q_a_layernorm(attention.q_a_proj(x)))
    query = query.view(2, 9, heads, nope + rope).transpose(1, 2)
    joint = attention.kv_a_proj_with_mqa(x)
    up = attention.kv_b_proj(attention.kv_a_layernorm(joint[..., :rank]))
    up = up.view(2, 9, heads, nope + value_size).transpose(1, 2)
    cos, sin = table(frequencies(rope, 10000), 9)

    def rotated(pairs):  # complex multiplication, a pair of neighbours at a time
        even, odd = pairs[..., 0::2], pairs[..., 1::2]
        c, s = cos[:, : rope // 2], sin[:, : rope // 2]
        return torch.cat([even * c - odd * s, odd * c + even * s], dim=-1)

    scores = query[..., :nope] @ up[..., :nope].mT
    scores = scores + rotated(query[..., nope:]) @ rotated(joint[:, None, :, rank:]).mT
    expected_weights = (scores / math.sqrt(nope + rope) + causal(9)).softmax(-1)
    mixed = (expected_weights @ up[..., nope:]).transpose(1, 2).reshape(2, 9, -1)
    torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(out, attention.o_proj(mixed), atol=1e-5, rtol=1e-4)


def test_latent_attention_caches_latent_and_rotary_key_and_never_calls_the_up_projection():
    attention = randomised(modeling_deepseekv2.DeepseekV2Attention(tiny_config(**LATENT), 0))
    calls = []
    attention.kv_b_proj.register_forward_hook(lambda *_: calls.append(1))
    cache = modeling_deepseekv2.KeyValueCache()
    attention(normal(2, 7, 32), causal(7), past_key_value=cache)
    key, value = cache[0]
    assert (key.shape, value.shape) == ((2, 1, 7, 4), (2, 1, 7, 12))
    assert calls == []


def test_latent_attention_that_is_given_no_positions_goes_on_after_its_cache():
    attention = randomised(modeling_deepseekv2.DeepseekV2Attention(tiny_config(**LATENT), 0))
    x, mask, cache = normal(2, 7, 32), causal(7), modeling_deepseekv2.KeyValueCache()
    whole, *_ = attention(x, mask, torch.arange(7)[None])
    parts = [attention(x[:, first:end], mask[:, :, first:end, :end], past_key_value=cache)[0]
             for first, end in ((0, 4), (4, 7))]  # fmt: skip
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=1e-4)


def test_latent_softmax_scale_takes_yarns_magnitude_squared():
    scaling = {"type": "yarn", "factor": 4.0, "mscale_all_dim": 0.5}
    attention = modeling_deepseekv2.DeepseekV2Attention(
        tiny_config(**LATENT, rope_scaling=scaling), 0
    )
    magnitude = 0.05 * math.log(4.0) + 1
    assert attention.softmax_scale == pytest.approx(10**-0.5 * magnitude**2)
    assert attention.rotary_emb.mscale_all_dim == 0.5


def test_plain_attention_equals_fused_attention_on_rotated_heads():
    attention = randomised(modeling_deepseekv2.LlamaAttention(tiny_config(), 0))
    x = normal(2, 9, 32)
    out, weights, _ = attention(x, causal(9))
    cos, sin = table(frequencies(8, 10000), 9)

    def rotated(heads):
        half = torch.cat([-heads[..., 4:], heads[..., :4]], dim=-1)
        return heads * cos + half * sin

    query = rotated(attention.q_proj(x).view(2, 9, 4, 8).transpose(1, 2))
    key = rotated(attention.k_proj(x).view(2, 9, 2, 8).transpose(1, 2))
    value = attention.v_proj(x).view(2, 9, 2, 8).transpose(1, 2)
    key, value = (part.repeat_interleave(2, dim=1) for part in (key, value))
    fused = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    expected = attention.o_proj(fused.transpose(1, 2).reshape(2, 9, 32))
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
    assert weights is None


def flash_stand_in(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
    assert causal
    assert dropout_p == 0.0
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=softmax_scale)
    return out.transpose(1, 2)


@pytest.mark.parametrize("changes", [{}, LATENT], ids=["mha", "mla"])
def test_flash_attention_gives_the_logits_of_eager_attention(changes, monkeypatch):
    monkeypatch.setattr(modeling_deepseekv2, "flash_attn_func", flash_stand_in)
    ids = torch.arange(20).view(2, 10)
    logits = []
    for implementation in ("eager", "flash_attention_2"):
        config = tiny_config(**changes, attn_implementation=implementation)
        model = built(config, modeling_deepseekv2.DeepseekV2ForCausalLM)
        with torch.no_grad():
            first = model(ids[:, :8], use_cache=True)
            steps = model(ids[:, 8:], past_key_values=first.past_key_values).logits
        logits.append(torch.cat([first.logits, steps], dim=1))
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=1e-4)


def test_flash_attention_without_its_kernels_says_so(monkeypatch):
    monkeypatch.setattr(modeling_deepseekv2, "flash_attn_func", None)
    config = tiny_config(attn_implementation="flash_attention_2")
    model = built(config, modeling_deepseekv2.DeepseekV2ForCausalLM)
    with pytest.raises(ImportError, match="flash-attn"):
        model(torch.zeros(1, 3, dtype=torch.long))


def varlen_stand_in(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p,
    softmax_scale,
    causal,
):
    rows = []
    for row in range(len(cu_seqlens_q) - 1):
        part = [
            tensor[offsets[row] : offsets[row + 1]][None]
            for tensor, offsets in ((q, cu_seqlens_q), (k, cu_seqlens_k), (v, cu_seqlens_k))
        ]
        assert part[0].shape[1] <= max_seqlen_q
        assert part[1].shape[1] <= max_seqlen_k
        rows.append(flash_stand_in(*part, dropout_p, softmax_scale, causal)[0])
    return torch.cat(rows)


def test_flash_attention_leaves_padding_out(monkeypatch):
    monkeypatch.setattr(modeling_deepseekv2, "flash_attn_func", flash_stand_in)
    monkeypatch.setattr(modeling_deepseekv2, "flash_attn_varlen_func", varlen_stand_in)
    ids, mask = torch.arange(16).view(2, 8), torch.ones(2, 8, dtype=torch.long)
    mask[0, :3] = 0
    logits = []
    for implementation in ("eager", "flash_attention_2"):
        config = tiny_config(attn_implementation=implementation)
        model = built(config, modeling_deepseekv2.DeepseekV2ForCausalLM)
        with torch.no_grad():
            logits.append(model(ids, attention_mask=mask).logits[mask.bool()])
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=1e-4)


def test_flash_attention_keeps_packed_sequences_apart(monkeypatch):
    monkeypatch.setattr(modeling_deepseekv2, "flash_attn_func", flash_stand_in)
    monkeypatch.setattr(modeling_deepseekv2, "flash_attn_varlen_func", varlen_stand_in)
    config = tiny_config(attn_implementation="flash_attention_2")
    model = built(config, modeling_deepseekv2.DeepseekV2ForCausalLM)
    ids, positions = torch.arange(9)[None], torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    with torch.no_grad():
        packed = model(ids, position_ids=positions).logits
        apart = [model(part).logits for part in (ids[:, :4], ids[:, 4:])]
    torch.testing.assert_close(packed, torch.cat(apart, dim=1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("n_rep", [1, 3])
def test_repeat_kv_repeats_each_head_in_place(n_rep):
    x = normal(2, 4, 5, 6)
    assert torch.equal(modeling_deepseekv2.repeat_kv(x, n_rep), x.repeat_interleave(n_rep, dim=1))


# ---------------------------------------------------------------------------------------- the MoE


def test_mixture_equals_every_expert_on_every_token_weighted_by_the_router():
    moe = randomised(modeling_deepseekv2.DeepseekV2MoE(tiny_config()))
    x = normal(2, 7, 32)
    with torch.no_grad():
        y = moe(x)
        probabilities = (x @ moe.gate.weight.T).softmax(-1)
        expected = moe.shared_experts(x)
        for b in range(2):
            for t in range(7):
                for e in probabilities[b, t].topk(3).indices.tolist():
                    expected[b, t] += probabilities[b, t, e] * moe.experts[e](x[b, t])
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-4)


def test_training_runs_the_same_mixture_and_the_balance_loss_reaches_the_router():
    moe = randomised(modeling_deepseekv2.DeepseekV2MoE(tiny_config(aux_loss_alpha=0.5)))
    x = normal(2, 7, 32)
    with torch.no_grad():
        expected = moe(x)
    moe.train()
    y = moe(x)
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-4)
    (y * 0).sum().backward()
    assert moe.gate.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("seq_aux", [True, False])
def test_balance_loss_is_alpha_times_share_times_mean_score(seq_aux):
    gate = randomised(modeling_deepseekv2.MoEGate(tiny_config(aux_loss_alpha=0.5, seq_aux=seq_aux)))
    gate.train()
    x = normal(2, 5, 32)
    experts, _, loss = gate(x)
    scores = (x @ gate.weight.T).softmax(-1)
    rows = [(scores[b], experts.view(2, 5, 3)[b]) for b in range(2)]
    if not seq_aux:
        rows = [(scores.flatten(0, 1), experts)]
    expected = 0.0
    for row_scores, row_experts in rows:
        for e in range(8):
            share = (row_experts == e).sum().item() / row_experts.numel() * 8
            expected += 0.5 * share * row_scores[:, e].mean().item() / len(rows)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def chosen(gate, x):
    """The gate's experts and weights a token, as sets of pairs without an order."""
    experts, weights, _ = gate(x)
    return [
        dict(zip(e, w, strict=True))
        for e, w in zip(experts.tolist(), weights.tolist(), strict=True)
    ]


def assert_chosen(found, expected):
    assert [set(token) for token in found] == [set(token) for token in expected]
    for token, right in zip(found, expected, strict=True):
        assert token == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("method", ["greedy", "group_limited_greedy", "noaux_tc"])
@pytest.mark.parametrize("normed", [False, True])
def test_gate_picks_experts_as_a_loop_does(scoring, method, normed):
    gate = randomised(
        modeling_deepseekv2.MoEGate(
            tiny_config(
                scoring_func=scoring,
                topk_method=method,
                norm_topk_prob=normed,
                routed_scaling_factor=2.5,
                n_group=4,
                topk_group=2,
            )
        )
    )
    x = normal(1, 11, 32)
    logits = (x[0] @ gate.weight.T).detach()
    scores = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
    expected = []
    for token in scores.tolist():
        ranked = list(token)
        if method == "noaux_tc":
            ranked = [
                s + b for s, b in zip(token, gate.e_score_correction_bias.tolist(), strict=True)
            ]
        groups = [ranked[2 * g : 2 * g + 2] for g in range(4)]
        worth = [sum(group) if method == "noaux_tc" else max(group) for group in groups]
        best = sorted(range(4), key=lambda g: -worth[g])[:2]
        if method != "greedy":
            ranked = [r if e // 2 in best else 0.0 for e, r in enumerate(ranked)]
        picks = sorted(range(8), key=lambda e: -ranked[e])[:3]
        total = sum(token[e] for e in picks) if normed else 1.0
        expected.append({e: token[e] / total * 2.5 for e in picks})
    assert_chosen(chosen(gate, x), expected)


def test_the_published_misspelling_of_greedy_is_greedy():
    x = normal(1, 6, 32)
    gates = [
        randomised(modeling_deepseekv2.MoEGate(tiny_config(topk_method=method)))
        for method in ("greedy", "gready")
    ]
    assert_chosen(chosen(gates[1], x), chosen(gates[0], x))


@pytest.mark.parametrize(
    ("key", "value"), [("topk_method", "random"), ("scoring_func", "tanh"), ("hidden_act", "sine")]
)
def test_an_unknown_choice_names_its_key_and_the_known_ones(key, value):
    with pytest.raises(ValueError, match=f"{key} is '{value}'; known: ."):
        modeling_deepseekv2.DeepseekV2MoE(tiny_config(**{key: value}))


def test_the_auxiliary_loss_leaves_its_input_alone_and_gets_a_gradient_of_one():
    x = normal(3, 2).requires_grad_()
    loss = torch.tensor(5.0, requires_grad=True)
    y = modeling_deepseekv2.AddAuxiliaryLoss.apply(x, loss)
    assert torch.equal(y, x)
    (y * 3.0).sum().backward()
    assert torch.equal(x.grad, torch.full((3, 2), 3.0))
    assert loss.grad.item() == 1.0


def test_the_auxiliary_loss_returns_its_input_and_gives_no_gradient_that_is_not_required():
    x, loss = normal(3, 2).requires_grad_(), torch.tensor(5.0)
    context = SimpleNamespace()
    assert modeling_deepseekv2.AddAuxiliaryLoss.forward(context, x, loss) is x
    assert modeling_deepseekv2.AddAuxiliaryLoss.backward(context, x) == (x, None)
    modeling_deepseekv2.AddAuxiliaryLoss.apply(x, loss).sum().backward()
    assert loss.grad is None


def test_a_layer_without_a_number_runs_but_not_with_a_cache():
    attention = randomised(modeling_deepseekv2.LlamaAttention(tiny_config()))
    x = normal(1, 3, 32)
    out, _, cache = attention(x, causal(3))
    assert out.shape == x.shape
    assert cache is None
    with pytest.raises(ValueError, match="layer_idx is None"):
        attention(x, causal(3), past_key_value=modeling_deepseekv2.KeyValueCache())


def test_a_layer_returns_what_is_asked_for():
    layer = randomised(modeling_deepseekv2.DeepseekV2DecoderLayer(tiny_config(), 0))
    x, cache = normal(1, 3, 32), modeling_deepseekv2.KeyValueCache()
    assert len(layer(x)) == 1
    hidden, weights, present = layer(
        x, past_key_value=cache, output_attentions=True, use_cache=True
    )
    assert (hidden.shape, weights.shape) == (x.shape, (1, 4, 3, 3))
    assert present is cache
    assert layer(x, use_cache=True)[1:] == (None,)


def test_rotary_tables_need_a_length():
    rotary = modeling_deepseekv2.DeepseekV2RotaryEmbedding(8)
    with pytest.raises(ValueError, match="seq_len is None"):
        rotary(torch.zeros(1))


def test_the_auxiliary_loss_must_be_one_number():
    with pytest.raises(ValueError, match="one element, not 2"):
        modeling_deepseekv2.AddAuxiliaryLoss.apply(normal(3), torch.zeros(2))


def test_rms_norm_divides_by_the_root_of_the_mean_square():
    norm = randomised(modeling_deepseekv2.DeepseekV2RMSNorm(6, eps=0.5))
    x = normal(4, 6)
    expected = norm.weight * x / (x.square().mean(-1, keepdim=True) + 0.5).sqrt()
    torch.testing.assert_close(norm(x), expected)
    assert norm.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


# ------------------------------------------------------------------------------------ whole model


@pytest.mark.parametrize("local", [False, True], ids=["no-crops", "crops"])
@pytest.mark.parametrize("changes", [{}, LATENT], ids=["mha", "mla"])
def test_a_decode_step_over_the_cache_equals_the_whole_pass(changes, local):
    model = built(tiny_config(**changes))
    inputs = page(local=local)
    ids = torch.randint(0, 40, (1, 22), generator=torch.Generator().manual_seed(3))
    whole_mask = F.pad(inputs["images_seq_mask"], (0, 2))
    with torch.no_grad():
        whole = model(ids, **{**inputs, "images_seq_mask": whole_mask}, use_cache=False)
        step = model(ids[:, :20], **inputs, use_cache=True)
        found = [step.logits]
        for position in (20, 21):
            step = model(ids[:, position : position + 1], past_key_values=step.past_key_values)
            found.append(step.logits)
    assert whole.past_key_values is None
    assert whole.logits.dtype == torch.float32
    torch.testing.assert_close(torch.cat(found, dim=1), whole.logits, atol=1e-4, rtol=1e-4)


def test_a_cache_object_is_extended_in_place_and_pairs_come_back_as_pairs():
    model = built(tiny_config(), modeling_deepseekv2.DeepseekV2ForCausalLM)
    ids = torch.arange(6)[None]
    with torch.no_grad():
        pairs = model(ids, use_cache=True).past_key_values
        cache = modeling_deepseekv2.KeyValueCache(pairs)
        assert model(ids[:, :1], past_key_values=cache).past_key_values is cache
    assert isinstance(pairs, tuple)
    assert pairs[0][0].shape == (1, 2, 6, 8)
    assert cache.get_seq_length() == 7


def test_the_cache_keeps_what_comes_first_without_a_copy():
    cache = modeling_deepseekv2.KeyValueCache()
    key, value = normal(1, 2, 3, 4), normal(1, 2, 3, 4)
    assert cache.update(key, value, 0)[0] is key
    assert cache.update(key, value, 0)[1].shape == (1, 2, 6, 4)
    with pytest.raises(IndexError, match="layer 2 came before layer 1"):
        cache.update(key, value, 2)


def test_visual_tokens_stand_where_the_mask_is_with_newlines_and_separator_in_order():
    model = built(tiny_config()).model
    inputs = page(local=True)
    views, overview = inputs["images"][0]
    seen = {}
    model.layers[0].register_forward_pre_hook(lambda _, args: seen.update(x=args[0]))
    with torch.no_grad():
        model(torch.zeros(1, 20, dtype=torch.long), **inputs)

        def features(images):
            sam = model.sam_model(images)
            clip = model.vision_model(images, sam)[:, 1:]
            return model.projector(torch.cat([clip, sam.flatten(2).mT], dim=-1))

        left, right = features(views).view(2, 2, 2, 32)
        square = features(overview)[0].view(2, 2, 32)
    newline, separator = model.image_newline, model.view_seperator
    expected = [*left[0], *right[0], newline, *left[1], *right[1], newline]
    expected += [*square[0], newline, *square[1], newline, separator]
    torch.testing.assert_close(seen["x"][0, 1:18], torch.stack(expected))
    text = model.embed_tokens.weight[0]
    assert torch.equal(seen["x"][0, 0], text)
    assert torch.equal(seen["x"][0, 18:], text.expand(2, -1))


def test_crop_counts_may_be_tensors_and_blank_pixels_mean_no_image():
    model = built(tiny_config())
    ids, inputs = torch.arange(20)[None], page(local=True)
    with torch.no_grad():
        logits = model(ids, **inputs).logits
        inputs["images_spatial_crop"] = torch.tensor([[2, 1]])
        assert torch.equal(model(ids, **inputs).logits, logits)
        inputs["images"] = [(torch.zeros(1, 3, 64, 64), torch.zeros(1, 3, 128, 128))]
        assert torch.equal(model(ids, **inputs).logits, model(ids).logits)


def test_every_item_of_a_batch_gets_its_own_page():
    model = built(tiny_config())
    with_crops, without = page(local=True), page(local=False)
    ids = torch.arange(40).view(2, 20)
    both = {
        "images": with_crops["images"] + without["images"],
        "images_seq_mask": torch.cat([with_crops["images_seq_mask"], without["images_seq_mask"]]),
        "images_spatial_crop": [[2, 1], [1, 1]],
    }
    with torch.no_grad():
        logits = model(ids, **both).logits
        apart = [model(ids[:1], **with_crops).logits, model(ids[1:], **without).logits]
    torch.testing.assert_close(logits, torch.cat(apart), atol=1e-4, rtol=1e-4)


def test_padding_on_the_left_changes_nothing_for_the_tokens_after_it():
    model = built(tiny_config(), modeling_deepseekv2.DeepseekV2ForCausalLM)
    ids = torch.arange(5)[None]
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        alone = model(ids).logits
        padded = model(
            F.pad(ids, (2, 0)), attention_mask=mask, position_ids=torch.arange(-2, 5).clamp(0)[None]
        ).logits
    torch.testing.assert_close(padded[:, 2:], alone, atol=1e-4, rtol=1e-4)


def test_the_loss_is_that_of_predicting_the_next_token():
    model = built(tiny_config(), modeling_deepseekv2.DeepseekV2ForCausalLM)
    ids, labels = torch.arange(6)[None], torch.tensor([[9, 3, -100, 7, 5, 1]])
    output = model(ids, labels=labels)
    log_probabilities = output.logits[0].log_softmax(-1)
    expected = -sum(log_probabilities[t, labels[0, t + 1]] for t in (0, 2, 3, 4)) / 4
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert len(model(ids, labels=labels, return_dict=False, use_cache=False)) == 2


def test_states_and_weights_come_back_when_asked_for():
    model = built(tiny_config())
    output = model(torch.arange(6)[None], output_hidden_states=True, output_attentions=True)
    assert [tuple(state.shape) for state in output.hidden_states] == [(1, 6, 32)] * 4
    assert [tuple(weights.shape) for weights in output.attentions] == [(1, 4, 6, 6)] * 3


def test_without_images_and_experts_the_model_asks_no_values_of_meta_tensors():
    config = tiny_config(n_routed_experts=None)
    with building(torch.device("meta"), torch.bfloat16):
        model = modeling_deepseekocr.DeepseekOCRForCausalLM(config).eval()
    output = model(torch.zeros(1, 9, dtype=torch.long, device="meta"))
    assert output.logits.shape == (1, 9, 40)


def test_classification_reads_the_last_token_before_the_padding():
    config = tiny_config(num_labels=3, pad_token_id=39)
    model = built(config, modeling_deepseekv2.DeepseekV2ForSequenceClassification)
    ids = torch.tensor([[1, 2, 3, 39, 39], [4, 5, 6, 7, 8]])
    with torch.no_grad():
        logits = model(ids).logits
        rows = [
            model.score(model.model(part).last_hidden_state)[0, -1]
            for part in (ids[:1, :3], ids[1:])
        ]
    torch.testing.assert_close(logits, torch.stack(rows), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        (torch.tensor([2, 0]), 3, lambda x, y: F.cross_entropy(x, y)),
        (torch.tensor([0.5, 1.0]), 1, lambda x, y: ((x[:, 0] - y) ** 2).mean()),
        (
            torch.tensor([[1.0, 0.0], [1.0, 1.0]]),
            2,
            lambda x, y: -(y * x.sigmoid().log() + (1 - y) * (1 - x.sigmoid()).log()).mean(),
        ),
    ],
    ids=["classes", "regression", "several"],
)
def test_the_classification_loss_follows_the_labels(labels, classes, expected):
    config = tiny_config(num_labels=classes, pad_token_id=39)
    model = built(config, modeling_deepseekv2.DeepseekV2ForSequenceClassification)
    output = model(torch.arange(8).view(2, 4), labels=labels)
    torch.testing.assert_close(output.loss, expected(output.logits, labels))


def test_several_rows_cannot_be_classified_without_a_padding_token():
    config = tiny_config(num_labels=3)
    model = built(config, modeling_deepseekv2.DeepseekV2ForSequenceClassification)
    with pytest.raises(ValueError, match="pad_token_id"):
        model(torch.zeros(2, 3, dtype=torch.long))


# ----------------------------------------------------------------------------------------- config


def without(section, *path):
    """A deep copy of a section that lacks the key at the end of the path."""
    copied = json.loads(json.dumps(section))
    inner = copied
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return copied


@pytest.mark.parametrize(
    "path",
    [
        ("image_size",),
        ("width",),
        ("width", "sam_vit_b"),
        ("width", "sam_vit_b", "layers"),
        ("width", "sam_vit_b", "downsample_channels"),
        ("width", "clip-l-14-224"),
        ("width", "clip-l-14-224", "heads"),
    ],
    ids=".".join,
)
def test_a_missing_vision_key_is_named(path):
    with pytest.raises(ValueError, match=r"vision_config\." + r"\.".join(path)):
        built(tiny_config(vision_config=without(VISION, *path)))


@pytest.mark.parametrize("key", ["projector_type", "input_dim", "n_embed"])
def test_a_missing_projector_key_is_named(key):
    config = tiny_config()
    with pytest.raises(ValueError, match=rf"projector_config\.{key}"):
        built(tiny_config(projector_config=without(config.projector_config, key)))


@pytest.mark.parametrize("section", ["vision_config", "projector_config"])
def test_a_missing_section_is_named(section):
    with pytest.raises(ValueError, match=section):
        built(tiny_config(**{section: None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_embed": 16}, "n_embed is 16"),
        ({"input_dim": 30}, "input_dim is 30"),
        ({"projector_type": "conv"}, "'conv' is unknown"),
        ({"projector_type": "low_high_split_mlp_gelu"}, "pair of feature maps"),
    ],
)
def test_a_projector_that_does_not_fit_is_refused(changes, message):
    projector = {**tiny_config().projector_config, **changes}
    with pytest.raises(ValueError, match=message):
        built(tiny_config(projector_config=projector))


def test_clip_must_be_as_wide_as_the_features_it_embeds():
    vision = json.loads(json.dumps(VISION))
    vision["width"]["sam_vit_b"]["downsample_channels"] = [12, 16]
    with pytest.raises(ValueError, match="must be equal"):
        built(tiny_config(vision_config=vision))


def test_another_config_is_another_network():
    vision = json.loads(json.dumps(VISION))
    vision["width"]["sam_vit_b"].update(layers=3, downsample_channels=[8, 10, 20])
    projector = {"projector_type": "mlp_gelu", "input_dim": 40, "n_embed": 32, "depth": 3}
    model = built(tiny_config(vision_config=vision, projector_config=projector)).model
    assert len(model.sam_model.blocks) == 3
    assert len(model.projector.layers) == 5
    assert model.sam_model(normal(1, 3, 128, 128)).shape == (1, 20, 1, 1)


# -------------------------------------------------------------------------------------- projector


def projected_shape(x, **cfg):
    projector = randomised(deepencoder.MlpProjector({"n_embed": 10, **cfg}))
    with torch.no_grad():
        return tuple(projector(x).shape)


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("identity", {}, (2, 25, 6)),
        ("linear", {"input_dim": 6}, (2, 25, 10)),
        ("mlp_gelu", {"input_dim": 6, "depth": 2}, (2, 25, 10)),
        (
            "downsample_mlp_gelu",
            {"input_dim": 6, "downsample_ratio": 2, "mlp_ratio": 3, "depth": 3},
            (2, 9, 10),
        ),
        (
            "normlayer_downsample_mlp_gelu",
            {"input_dim": 6, "downsample_ratio": 2, "depth": 2},
            (2, 9, 10),
        ),
        ("hybrid_split_feature_mlp_gelu", {"input_dim": [2, 4], "channel_div": 0.3}, (2, 25, 10)),
    ],
)
def test_projector_variants_of_one_map(kind, settings, expected):
    assert projected_shape(normal(2, 25, 6), projector_type=kind, **settings) == expected


@pytest.mark.parametrize("kind", ["low_high_hybrid_split_mlp_gelu", "low_high_split_mlp_gelu"])
def test_projector_variants_of_two_maps(kind):
    size = 6 if "hybrid" in kind else 5
    pair = (normal(2, 25, size), normal(2, 25, size, seed=1))
    assert projected_shape(pair, projector_type=kind, input_dim=size, depth=2) == (2, 25, 10)


def test_every_projector_variant_is_tested_here():
    tested = {"identity", "linear", "mlp_gelu", "downsample_mlp_gelu"}
    tested |= {"normlayer_downsample_mlp_gelu", "hybrid_split_feature_mlp_gelu"}
    tested |= {"low_high_hybrid_split_mlp_gelu", "low_high_split_mlp_gelu"}
    assert tested == set(deepencoder.MlpProjector.VARIANTS)


def test_downsampling_stacks_the_neighbours_of_a_zero_padded_grid():
    projector = deepencoder.MlpProjector(
        {
            "projector_type": "downsample_mlp_gelu",
            "input_dim": 1,
            "n_embed": 1,
            "downsample_ratio": 2,
        }
    )
    projector.layers = nn.Identity()
    grid = torch.arange(1.0, 10.0).view(1, 9, 1)
    expected = [[1, 2, 4, 5], [3, 0, 6, 0], [7, 8, 0, 0], [9, 0, 0, 0]]
    assert projector(grid).tolist() == [expected]


def test_token_pooling_joins_two_by_two_tokens_channel_by_channel():
    projector = deepencoder.MlpProjector(
        {"projector_type": "identity", "input_dim": 1, "n_embed": 1, "token_pooling": True}
    )
    projector.token_pooling_layer = nn.Identity()
    grid = torch.arange(16.0).view(1, 16, 1)
    expected = [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert projector(grid).tolist() == [expected]


def test_fusion_adds_the_low_map_to_the_projected_high_one():
    projector = randomised(
        deepencoder.MlpProjector(
            {
                "projector_type": "identity",
                "input_dim": 4,
                "n_embed": 4,
                "conv_fusion_high_low_features": True,
            }
        )
    )
    x = normal(2, 2, 5, 4)
    torch.testing.assert_close(projector(x), projector.fusion_layer(x[:, 0]) + x[:, 1])


# ------------------------------------------------------------------------------------------- CLIP


def test_layer_norm_fp32_computes_in_fp32_and_returns_the_input_dtype():
    norm = randomised(deepencoder.LayerNormfp32(16))
    x = (normal(3, 16) * 100).bfloat16()
    wide = F.layer_norm(x.float(), (16,), norm.weight, norm.bias, norm.eps)
    assert torch.equal(norm(x), wide.bfloat16())


def test_clip_positions_stay_as_they_are_at_the_learned_size():
    learned = normal(1, 17, 6)
    assert deepencoder.get_abs_pos(learned, 17) is learned


def test_clip_positions_are_resized_around_the_class_token():
    learned = normal(1, 17, 6)
    resized = deepencoder.get_abs_pos(learned, 9 + 1)
    grid = learned[0, 1:].T.reshape(1, 6, 4, 4)
    expected = F.interpolate(grid, size=(3, 3), mode="bicubic", antialias=True)
    assert torch.equal(resized[0, 0], learned[0, 0])
    torch.testing.assert_close(resized[0, 1:], expected.reshape(6, 9).T)


def test_sam_positions_are_resized_as_a_grid():
    learned = normal(1, 4, 4, 6).bfloat16()
    assert deepencoder.get_abs_pos_sam(learned, 4) is learned
    resized = deepencoder.get_abs_pos_sam(learned, 6)
    grid = learned.float().permute(0, 3, 1, 2)
    expected = F.interpolate(grid, size=(6, 6), mode="bicubic", antialias=True)
    torch.testing.assert_close(resized, expected.permute(0, 2, 3, 1).bfloat16())


def test_clip_attention_equals_softmax_of_scaled_products():
    attention = randomised(deepencoder.NoTPAttention({"hidden_size": 12, "num_attention_heads": 3}))
    x = normal(2, 5, 12)
    q, k, v = (part.view(2, 5, 3, 4).transpose(1, 2) for part in attention.qkv_proj(x).chunk(3, -1))
    mixed = ((q @ k.mT) / 2.0).softmax(-1) @ v
    expected = attention.out_proj(mixed.transpose(1, 2).reshape(2, 5, 12))
    torch.testing.assert_close(attention(x), expected, atol=1e-5, rtol=1e-4)


def clip_settings(**changes):
    settings = {"hidden_size": 12, "num_attention_heads": 3, "ffn_hidden_size": 20, "num_layers": 2}
    rest = {"image_size": 28, "patch_size": 14, "layernorm_epsilon": 1e-5}
    return {**settings, **rest, **changes}


def test_clip_embeds_given_features_or_its_own_patches():
    clip = randomised(deepencoder.VitModel(clip_settings()))
    calls = []
    clip.embeddings.patch_embedding.register_forward_hook(lambda *_: calls.append(1))
    images = normal(2, 3, 42, 42)
    assert clip(images, normal(2, 12, 4, 4)).shape == (2, 17, 12)
    assert calls == []
    assert clip(images, None).shape == (2, 10, 12)
    assert calls == [1]


def test_clip_can_freeze_its_ends_and_norm_in_fp32():
    clip = deepencoder.VitModel(
        clip_settings(fp32norm=True), freeze_embed=True, freeze_pre_norm=True
    )
    frozen = {name.split(".")[0] for name, p in clip.named_parameters() if not p.requires_grad}
    assert frozen == {"embeddings", "pre_layrnorm"}
    assert isinstance(clip.pre_layrnorm, deepencoder.LayerNormfp32)


def test_quick_gelu():
    x = torch.linspace(-4, 4, 9)
    expected = [v / (1 + math.exp(-1.702 * v)) for v in x.tolist()]
    torch.testing.assert_close(deepencoder.quick_gelu(x), torch.tensor(expected))


# -------------------------------------------------------------------------------------------- SAM


@pytest.mark.parametrize("rows", [(5, 7), (9, 13)], ids=["tables-fit", "tables-resized"])
def test_decomposed_positions_equal_loops_over_every_pair(rows):
    q, table_h, table_w = normal(2, 12, 4), normal(rows[0], 4), normal(rows[1], 4)
    by_row, by_column = deepencoder.add_decomposed_rel_pos(q, table_h, table_w, (3, 4), (3, 4))
    resized = [
        t if len(t) == length else F.interpolate(t.T[None], size=length, mode="linear")[0].T
        for t, length in ((table_h, 5), (table_w, 7))
    ]
    bias = by_row + by_column
    for b in range(2):
        for y in range(3):
            for x in range(4):
                for k_y in range(3):
                    for k_x in range(4):
                        query = q[b, y * 4 + x]
                        expected = query @ resized[0][y - k_y + 2] + query @ resized[1][x - k_x + 3]
                        assert bias[b, y * 4 + x, k_y, k_x].item() == pytest.approx(
                            expected.item(), abs=1e-5
                        )


def test_relative_positions_scale_to_the_longer_axis():
    found = deepencoder.get_rel_pos(2, 4, torch.arange(7.0)[:, None])[..., 0]
    assert found.tolist() == [[3, 2, 1, 0], [5, 4, 3, 2]]
    found = deepencoder.get_rel_pos(4, 2, torch.arange(7.0)[:, None])[..., 0]
    assert found.tolist() == [[2, 0], [3, 1], [4, 2], [5, 3]]


@pytest.mark.parametrize("rel_pos", [False, True])
def test_grid_attention_equals_softmax_of_scaled_products_plus_bias(rel_pos):
    attention = randomised(
        deepencoder.Attention(12, num_heads=3, use_rel_pos=rel_pos, input_size=(3, 4))
    )
    x = normal(2, 3, 4, 12)
    q, k, v = (
        part.reshape(2, 12, 3, 4).transpose(1, 2) for part in attention.qkv(x).chunk(3, dim=-1)
    )
    scores = (q @ k.mT) / 2.0
    if rel_pos:
        terms = deepencoder.add_decomposed_rel_pos(
            q.reshape(6, 12, 4), attention.rel_pos_h, attention.rel_pos_w, (3, 4), (3, 4)
        )
        scores = scores + sum(terms).reshape(2, 3, 12, 12)
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 3, 4, 12)
    torch.testing.assert_close(attention(x), attention.proj(mixed), atol=1e-5, rtol=1e-4)


def test_relative_positions_need_a_grid():
    with pytest.raises(ValueError, match="input_size"):
        deepencoder.Attention(12, use_rel_pos=True)


@pytest.mark.parametrize("grid", [(4, 4), (6, 4), (5, 7)])
def test_windows_come_back_as_the_grid_they_were_cut_from(grid):
    x = normal(2, *grid, 3)
    windows, padded = deepencoder.window_partition(x, 4)
    assert windows.shape == (2 * math.ceil(grid[0] / 4) * math.ceil(grid[1] / 4), 4, 4, 3)
    assert torch.equal(deepencoder.window_unpartition(windows, 4, padded, grid), x)


def test_a_windowed_block_attends_within_its_windows_only():
    block = randomised(deepencoder.Block(12, num_heads=3, window_size=4, use_rel_pos=True))
    x = normal(1, 6, 8, 12)
    changed = x.clone()
    changed[:, :4, 4:] += 1.0  # the upper right window
    with torch.no_grad():
        moved = (block(x) - block(changed)).abs().amax(-1)[0] > 1e-6
    expected = torch.zeros(6, 8, dtype=torch.bool)
    expected[:4, 4:] = True
    assert torch.equal(moved, expected)


def test_a_windowed_block_equals_attention_window_by_window():
    block = randomised(deepencoder.Block(12, num_heads=3, window_size=4))
    x = normal(1, 4, 8, 12)
    attended = torch.cat([block.attn(part) for part in block.norm1(x).split(4, dim=2)], dim=2)
    h = x + attended
    torch.testing.assert_close(block(x), h + block.mlp(block.norm2(h)))


def test_layer_norm_2d_normalises_the_channels():
    norm = randomised(deepencoder.LayerNorm2d(6))
    x = normal(2, 6, 3, 5)
    expected = F.layer_norm(x.permute(0, 2, 3, 1), (6,), norm.weight, norm.bias, norm.eps)
    torch.testing.assert_close(norm(x), expected.permute(0, 3, 1, 2), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("resolution", [128, 192])
def test_sam_divides_the_resolution_by_64(resolution):
    sam = randomised(deepencoder.build_sam_vit_b(VISION))
    with torch.no_grad():
        assert sam(normal(2, 3, resolution, resolution)).shape == (
            2,
            20,
            resolution // 64,
            resolution // 64,
        )


def test_sam_may_go_without_positions():
    sam = deepencoder.ImageEncoderViT(
        img_size=64, embed_dim=12, depth=1, num_heads=2, use_abs_pos=False
    )
    assert sam.pos_embed is None
    assert sam(normal(1, 3, 64, 64)).shape == (1, 1024, 1, 1)


# ----------------------------------------------------------------------------- images and streams


def test_images_become_normalised_tensors_channels_first():
    Image = pytest.importorskip("PIL.Image")
    image = Image.new("RGB", (3, 2), (0, 51, 255))
    tensor = modeling_deepseekocr.BasicImageTransform()(image)
    assert tensor.shape == (3, 2, 3)
    torch.testing.assert_close(tensor[:, 0, 0], torch.tensor([-1.0, -0.6, 1.0]))


@pytest.mark.parametrize(
    ("mean", "std", "normalize", "expected"),
    [
        ((0.5,), (0.25,), False, 0.2),
        (None, None, True, 0.2),
        ((0.1,), None, True, 0.1),
        (None, (0.5,), True, 0.4),
        ((0.1,), (0.5,), True, 0.2),
    ],
)
def test_normalisation_takes_a_missing_mean_as_zero_and_a_missing_std_as_one(
    mean, std, normalize, expected
):
    transform = modeling_deepseekocr.BasicImageTransform(mean, std, normalize)
    gray = torch.full((2, 4), 51, dtype=torch.uint8).numpy()
    torch.testing.assert_close(transform(gray), torch.full((1, 2, 4), expected))


def test_a_transform_has_no_shape_of_its_own_and_takes_a_random_state():
    transform = modeling_deepseekocr.BasicImageTransform()
    assert isinstance(transform, modeling_deepseekocr.BaseTransform)
    transform.set_rng(0)
    with pytest.raises(NotImplementedError):
        _ = transform.default_shape


class Tokenizer:
    eos_token_id = 1

    def decode(self, ids, **_):
        return "".join({0: "Hello ", 1: "<eos>", 2: "page "}[int(i)] for i in ids)


def test_the_streamer_prints_a_line_break_for_the_end_of_the_sequence(capsys):
    streamer = modeling_deepseekocr.NoEOSTextStreamer(Tokenizer())
    for token in (0, 2, 1):
        streamer.put(torch.tensor([token]))
    streamer.end()
    assert capsys.readouterr().out == "Hello page \n"


# -------------------------------------------------------------------------------- what it executes


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_the_head_runs_on_all_positions_and_casts_to_fp32_last():
    model = built(tiny_config(), modeling_deepseekv2.DeepseekV2ForCausalLM).bfloat16()
    shapes = []
    model.lm_head.register_forward_hook(lambda _, __, out: shapes.append(tuple(out.shape)))
    with torch.no_grad(), Names() as names:
        logits = model(torch.arange(6)[None]).logits
    assert shapes == [(1, 6, 40)]
    assert logits.dtype == torch.float32
    assert names.seen[-1] == "_to_copy"


def test_rotary_positions_are_computed_in_every_layer():
    model = built(tiny_config(), modeling_deepseekv2.DeepseekV2ForCausalLM)
    with torch.no_grad(), Names() as names:
        model(torch.arange(6)[None])
    assert names.seen.count("cos") == names.seen.count("sin") == 3


ROOT = Path(__file__).parent.parent


@pytest.mark.vendor
@needs_vendor
def test_a_vendor_checkout_has_the_same_weights_logits_and_operators():
    found = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "compare_with_vendor.py"), str(VENDOR)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
