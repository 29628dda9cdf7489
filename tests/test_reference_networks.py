"""The reference networks against published facts, formulas, plain loops and their own passes.

`test_reference_vision.py` has the vision sides. Parity of DeepSeek-OCR with a vendor checkout,
operator by operator, is `scripts/compare_with_vendor.py`.
"""

import copy
import itertools
import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from relatives import FAMILY
from sampling import first, named, sampled
from vendor_checkout import VENDOR, needs_vendor

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.architectures.architecture import GrowingCache
from dsocr_analyze.architectures.deepseek_ocr.reference import (
    configuration_deepseek_v2,
    modeling_deepseekocr,
    modeling_deepseekv2 as reference,
)
from dsocr_analyze.architectures.deepseek_ocr_2.reference import (
    modeling_deepseekocr2,
)
from dsocr_analyze.architectures.unlimited_ocr.reference import modeling_unlimitedocr
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import building
from dsocr_analyze.session import DeepSeekOCRSession

CLASSES = {
    "deepseek-ocr": (
        modeling_deepseekocr.DeepseekOCRConfig,
        modeling_deepseekocr.DeepseekOCRForCausalLM,
    ),
    "deepseek-ocr-2": (
        modeling_deepseekocr2.DeepseekOCR2Config,
        modeling_deepseekocr2.DeepseekOCR2ForCausalLM,
    ),
    "unlimited-ocr": (
        modeling_unlimitedocr.UnlimitedOCRConfig,
        modeling_unlimitedocr.UnlimitedOCRForCausalLM,
    ),
}
VISION = {
    "image_size": 128,
    "width": {
        "sam_vit_b": {
            "width": 24, "layers": 2, "heads": 2, "global_attn_indexes": [1],
            "downsample_channels": [12, 20],
        },
        "clip-l-14-224": {
            "width": 20, "layers": 2, "heads": 2, "image_size": 28, "patch_size": 14,
        },
        "qwen2-0-5b": {
            "dim": 24, "layers": 2, "heads": 6, "key_value_heads": 2, "intermediate_size": 40,
            "view_sizes": [64, 128],
        },
    },
}  # fmt: skip
DECODER = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "first_k_dense_replace": 1, "n_routed_experts": 8,
    "n_shared_experts": 2, "num_experts_per_tok": 3, "topk_method": "greedy", "use_mla": False,
    "attn_implementation": "eager",
}  # fmt: skip
LATENT = {
    "use_mla": True, "kv_lora_rank": 12, "q_lora_rank": 10, "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4, "v_head_dim": 5,
}  # fmt: skip


def projector(**changes):
    return {"projector_type": "linear", "input_dim": 40, "n_embed": 32, **changes}


def config_of(name="deepseek-ocr", **changes):
    """A small config of a network."""
    features = 24 if name == "deepseek-ocr-2" else 40
    sections = {"vision_config": VISION, "projector_config": projector(input_dim=features)}
    return CLASSES[name][0](**{**DECODER, **sections, **changes})


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def randomised(module):
    """Every parameter from a seeded uniform distribution, in evaluation mode."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.3, 0.3, generator=generator)
    return module.eval()


def built(name, device="cpu", model_class=None, **changes):
    """A network, or another class, of a small config; on the CPU with weights."""
    with building(torch.device(device), torch.float32):
        model = (model_class or CLASSES[name][1])(config_of(name, **changes))
    return randomised(model) if device == "cpu" else model


def decoder(model_class=reference.DeepseekV2ForCausalLM, **changes):
    """The decoder of DeepSeek-OCR alone."""
    return built("deepseek-ocr", model_class=model_class, **changes)


def page(name, *, tiles, seed=0):
    """Views of 128 pixels, 2 x 2 tokens each: so many tiles in a row, and the whole page.

    Rows of tokens end in a newline, but in DeepSeek-OCR-2; a separator follows the page.
    """
    newline = name != "deepseek-ocr-2"
    mask = torch.zeros(1, 20, dtype=torch.bool)
    mask[:, 1 : 1 + (2 * (2 * tiles + newline) if tiles else 0) + 2 * (2 + newline) + 1] = True
    views = normal(tiles, 3, 128, 128, seed=seed) if tiles else torch.zeros(1, 3, 64, 64)
    return {
        "images": [(views, normal(1, 3, 128, 128, seed=seed + 1))],
        "images_seq_mask": mask,
        "images_spatial_crop": [[max(tiles, 1), 1]],
    }


META = torch.device("meta")
CHECKPOINT = Path(__file__).parent / "data" / "checkpoint_tensors.json"
ROOT = Path(__file__).parent.parent
OCR, OCR2, UNLIMITED = FAMILY
CLOSE, CLOSER = ({"atol": tolerance, "rtol": 1e-4} for tolerance in (1e-4, 1e-5))

# -------------------------------------------------------------------------------- published facts


def encoder_tensors(layers=24, width=896, mlp=4864, kv=2 * 64) -> dict[str, list[int]]:
    """Names and shapes of the tensors of DeepSeek-OCR-2's encoder, but its queries."""
    shapes = {"model.model.norm.weight": [width]}
    for layer in range(layers):
        within = {
            "self_attn.q_proj.weight": [width, width],
            "self_attn.q_proj.bias": [width],
            "self_attn.k_proj.weight": [kv, width],
            "self_attn.k_proj.bias": [kv],
            "self_attn.v_proj.weight": [kv, width],
            "self_attn.v_proj.bias": [kv],
            "self_attn.o_proj.weight": [width, width],
            "mlp.gate_proj.weight": [mlp, width],
            "mlp.up_proj.weight": [mlp, width],
            "mlp.down_proj.weight": [width, mlp],
            "input_layernorm.weight": [width],
            "post_attention_layernorm.weight": [width],
        }
        shapes |= {f"model.model.layers.{layer}.{name}": size for name, size in within.items()}
    return {f"model.qwen2_model.{name}": shape for name, shape in shapes.items()}


def published_tensors(name) -> dict[str, list[int]]:
    """Names and shapes of a checkpoint's tensors, as its index lists them."""
    tensors = json.loads(CHECKPOINT.read_text(encoding="utf-8"))
    if name != OCR2:
        return tensors
    left_out = ("model.vision_model.", "model.image_newline")
    return {name: shape for name, shape in tensors.items() if not name.startswith(left_out)} | {
        **encoder_tensors(),
        "model.qwen2_model.query_768.weight": [144, 896],
        "model.qwen2_model.query_1024.weight": [256, 896],
        "model.sam_model.net_3.weight": [896, 512, 3, 3],
        "model.projector.layers.weight": [1280, 896],
    }


def within(names_and_counts):
    """Counts by the first two parts of a name, those of the decoder together."""
    sizes = Counter()
    for name, count in names_and_counts:
        part = ".".join(name.split(".")[:2]).removeprefix("model.")
        sizes["decoder" if part in ("embed_tokens", "layers", "norm") else part] += count
    return sizes


CLIP_PARTS = {"sam_model": 95_569_152, "vision_model": 303_177_728, "projector": 2_622_720,
              "image_newline": 1_280}  # fmt: skip
QWEN_PARTS = {"sam_model": 94_979_328, "qwen2_model": 358_256_512, "projector": 1_148_160}
POSITIONS = {"model.vision_model.embeddings.position_ids"}


@sampled(
    ("name", "parts", "total", "tensors", "modules", "saved_buffers", "buffers"),
    [
        (OCR, CLIP_PARTS, 3_336_106_240, 2_710, 4_083, POSITIONS,
         {"decoder": 12, "vision_model": 1}),
        (OCR2, QWEN_PARTS, 3_389_119_360, 2_707, 4_204, set(),
         {"decoder": 12, "qwen2_model": 24 + 1}),
        (UNLIMITED, CLIP_PARTS, 3_336_106_240, 2_710, 4_083, POSITIONS,
         {"decoder": 12, "vision_model": 1}),
    ],
    first(2),
)  # fmt: skip
def test_parameters_modules_and_buffers_are_the_published_ones(
    name, parts, total, tensors, modules, saved_buffers, buffers
):
    directory = ModelDirectory.read(ARCHITECTURES[name].reference)
    module = DeepSeekOCRSession.from_directory(directory).model
    parameters = dict(module.named_parameters())
    assert {n: list(p.shape) for n, p in parameters.items()} == published_tensors(name)
    assert set(module.state_dict()) - set(parameters) == saved_buffers
    assert (len(parameters), len(list(module.modules()))) == (tensors, modules)
    assert within((n, 1) for n, _ in module.named_buffers()) == buffers
    found = within((n, p.numel()) for n, p in parameters.items())
    shared = {"decoder": 2_769_255_680, "lm_head.weight": 165_478_400, "view_seperator": 1_280}
    assert (found, found.total()) == (parts | shared, total)


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
        (OCR, "DeepseekOCRForCausalLM", "3336106240"),
        (OCR2, "DeepseekOCR2ForCausalLM", "3389119360"),
    ],
)
def test_transformers_auto_classes_load_the_directory(architecture, name, params, tmp_path):
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    directory = str(ARCHITECTURES[architecture].reference)
    found = subprocess.run(
        [sys.executable, "-c", LOAD_THE_PUBLIC_WAY, directory],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert found.stdout.split() == [name, params], found.stderr


@pytest.mark.vendor
@needs_vendor
def test_a_vendor_checkout_has_the_same_weights_logits_and_operators():
    found = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "compare_with_vendor.py"), str(VENDOR)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr


# ------------------------------------------------------------------------------------------ passes


@sampled("tiles", [0, 2], named(2))
@pytest.mark.parametrize(
    ("name", "changes"),
    [(OCR, {}), (OCR, LATENT), (OCR2, {}), (UNLIMITED, {})],
    ids=["ocr", "ocr latent", "ocr2", "unlimited"],
)
@torch.no_grad()
def test_a_decode_step_over_the_cache_equals_the_whole_pass(name, changes, tiles):
    model, inputs = built(name, **changes), page(name, tiles=tiles)
    ids = torch.randint(0, 40, (1, 22), generator=torch.Generator().manual_seed(3))
    whole_mask = F.pad(inputs["images_seq_mask"], (0, 2))
    whole = model(ids, **{**inputs, "images_seq_mask": whole_mask}, use_cache=False)
    step = model(ids[:, :20], **inputs, use_cache=True)
    found = [step.logits]
    for position in (20, 21):
        token, place = ids[:, position : position + 1], torch.tensor([[position]])
        step = model(token, past_key_values=step.past_key_values, position_ids=place)
        found.append(step.logits)
    assert (whole.past_key_values, whole.logits.dtype) == (None, torch.float32)
    torch.testing.assert_close(torch.cat(found, dim=1), whole.logits, **CLOSE)


def features_of(model, name, images):
    """Tokens of views by the parts of a model, `[N, g, g, d]`."""
    tokens = sam = model.sam_model(images)
    if name == OCR2:
        tokens = model.qwen2_model(sam)
    else:
        tokens = torch.cat([model.vision_model(images, sam)[:, 1:], sam.flatten(2).mT], dim=-1)
    return model.projector(tokens).view(-1, 2, 2, 32)


@pytest.fixture
def seen():
    """What the first layer is given, once a model is watched."""
    rows = []

    def watch(model):
        model.layers[0].register_forward_pre_hook(lambda _, args: rows.append(args[0][0]))
        return rows

    return watch


@pytest.mark.parametrize("tiles", [0, 2])
@pytest.mark.parametrize("name", CLASSES)
@torch.no_grad()
def test_visual_tokens_stand_where_the_mask_is_with_newlines_and_separator_in_order(
    name, tiles, seen
):
    model, inputs = built(name).model, page(name, tiles=tiles)
    (local, overview), rows = inputs["images"][0], seen(model)
    model(torch.zeros(1, 20, dtype=torch.long), **inputs)
    square = features_of(model, name, overview)[0]
    views = features_of(model, name, local) if tiles else torch.empty(0, 2, 2, 32)
    expected = [*views.reshape(-1, 32), *square.reshape(-1, 32)]
    if name != OCR2:
        pictures = [*([views.transpose(0, 1).flatten(1, 2)] if tiles else []), square]
        lines = [line for picture in pictures for line in picture]
        expected = [token for line in lines for token in (*line, model.image_newline)]
    expected = torch.stack([*expected, model.view_seperator])
    text = model.embed_tokens.weight[:1]
    before, visual, after = rows[0].split([1, len(expected), 19 - len(expected)])
    torch.testing.assert_close(visual, expected, **CLOSE)
    assert torch.equal(torch.cat([before, after]), text.expand(len(before) + len(after), -1))


@pytest.mark.parametrize("name", CLASSES)
@torch.no_grad()
def test_every_item_of_a_batch_gets_its_own_page(name):
    model, ids = built(name), torch.arange(40).view(2, 20)
    pages = [page(name, tiles=2), page(name, tiles=0, seed=5)]
    both = {
        "images": pages[0]["images"] + pages[1]["images"],
        "images_seq_mask": torch.cat([each["images_seq_mask"] for each in pages]),
        "images_spatial_crop": torch.tensor([[2, 1], [1, 1]]),
    }
    logits = model(ids, **both).logits
    apart = [model(ids[item : item + 1], **pages[item]).logits for item in (0, 1)]
    torch.testing.assert_close(logits, torch.cat(apart), **CLOSE)
    both["images"] = [(torch.zeros(1, 3, 64, 64), torch.zeros(1, 3, 128, 128))] * 2
    assert torch.equal(model(ids, **both).logits, model(ids).logits)  # blank is no image


@torch.no_grad()
def test_pages_of_one_prompt_are_looked_at_one_by_one(seen):
    """In Unlimited-OCR: 2 x 2 tokens with newlines, and a separator after each page."""
    model, taken = built(UNLIMITED).model, []
    model.sam_model.register_forward_hook(lambda _, given, __: taken.append(given[0]))
    pages, tokens, given = normal(3, 3, 128, 128), 2 * (2 + 1) + 1, seen(model)
    mask = torch.tensor([[False, *[True] * (3 * tokens), False]])
    model(
        torch.zeros(mask.shape, dtype=torch.long),
        images=[(torch.zeros(1, 3, 64, 64), pages)],
        images_seq_mask=mask,
        images_spatial_crop=torch.ones(3, 2, dtype=torch.long),
    )
    assert all(map(torch.equal, taken, pages.split(1)))
    rows = given[0][1:-1].view(3, tokens, -1)
    assert torch.equal(rows[:, 2], model.image_newline.expand(3, -1))
    assert torch.equal(rows[:, -1], model.view_seperator.expand(3, -1))


# ----------------------------------------------------------------------------------------- config


@pytest.mark.parametrize(
    "changes",
    [
        {"projector_config": projector(projector_type="conv")},
        {"topk_method": "conv"},
        {"scoring_func": "conv"},
        {"hidden_act": "conv"},
    ],
    ids=str,
)
def test_a_network_takes_no_unknown_name_for_another(changes):
    with pytest.raises(ValueError, match=r"conv'.*known: "):
        built(OCR, "meta", **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_pooling": True}, "token_pooling is True; give False"),
        ({"conv_fusion_high_low_features": True}, "features is True; give False"),
        (
            {"projector_type": "downsample_mlp_gelu", "downsample_ratio": 2},
            "downsample_ratio is 2; give 1",
        ),
    ],
)
def test_a_projector_neither_merges_tokens_nor_adds_maps(changes, message):
    with pytest.raises(ValueError, match=message):
        built(OCR, "meta", projector_config=projector(**changes))


# ----------------------------------------------------------------------------- images and streams


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


def test_the_streamer_prints_a_line_break_for_the_end_of_the_sequence(capsys):
    words = {0: "Hello ", 1: "<eos>", 2: "page "}
    tokenizer = SimpleNamespace(
        eos_token_id=1, decode=lambda ids, **_: "".join(words[int(each)] for each in ids)
    )
    streamer = modeling_deepseekocr.NoEOSTextStreamer(tokenizer)
    for token in (0, 2, 1):
        streamer.put(torch.tensor([token]))
    streamer.end()
    assert capsys.readouterr().out == "Hello page \n"


def test_a_config_is_what_it_is_given_else_as_published_whatever_transformers_makes_of_its_keys():
    class Relative(type(config_of())):
        model_type = "relative"

    given = {"hidden_size": 7, "pad_token_id": 3, "rope_scaling": {"type": "linear", "factor": 2.0},
             "rope_theta": 5e3, "vision_config": {"a": 1}}  # fmt: skip
    defaults = {"num_key_value_heads": 32, "kv_lora_rank": 512, "eos_token_id": 100001,
                "use_return_dict": True, "bos_token_id": 100000, "rms_norm_eps": 1e-6,
                "topk_method": "gready", "use_mla": True}  # fmt: skip
    for kind in (configuration_deepseek_v2.DeepseekV2Config, type(config_of()), Relative):
        config = kind(**copy.deepcopy(given), num_key_value_heads=None)
        assert {key: getattr(config, key) for key in given | defaults} == given | defaults
    config = configuration_deepseek_v2.DeepseekV2Config(
        num_key_value_heads=None, num_attention_heads=6
    )
    assert (config.rope_theta, config.hidden_size, config.num_key_value_heads) == (1e4, 4096, 6)


# ---------------------------------------------------------------------------- rotary embeddings


def table(frequencies, length, magnitude=1.0):
    """Cosines and sines by loops over positions and dimensions; halves repeat."""
    angles = [[position * each for each in frequencies] * 2 for position in range(length)]
    return tuple(
        torch.tensor([[function(angle) * magnitude for angle in row] for row in angles])
        for function in (math.cos, math.sin)
    )


def frequencies(dim=8, base=10000.0):
    return [base ** (-2 * i / dim) for i in range(dim // 2)]


def blended_frequencies(dim=16, base=10000.0, factor=8.0, original=64):
    """YaRN's, for waves that turn between 1 and 8 times over the original length."""

    def turning(times):  # the dimension whose wave turns that often
        return dim / 2 * math.log(original / (times * 2 * math.pi), base)

    first, last = max(math.floor(turning(8)), 0), min(math.ceil(turning(1)), dim - 1)
    assert 0 < first + 1 < last < dim // 2
    shares = [min(max((i - first) / (last - first), 0.0), 1.0) for i in range(dim // 2)]
    pairs = zip(frequencies(dim, base), shares, strict=True)
    return [each * (1 - share) + each / factor * share for each, share in pairs]


YARN = {"scaling_factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 8,
        "beta_slow": 1, "mscale": 0.9, "mscale_all_dim": 0.4}  # fmt: skip
DYNAMIC = {"max_position_embeddings": 16, "scaling_factor": 3.0}
ROTARY = [
    ("", {"base": 100.0}, 11, frequencies(base=100.0), 1.0),
    ("LinearScaling", {"scaling_factor": 4.0}, 13, [each / 4 for each in frequencies()], 1.0),
    ("DynamicNTKScaling", DYNAMIC, 10, frequencies(), 1.0),
    ("DynamicNTKScaling", DYNAMIC, 16, frequencies(), 1.0),
    # beyond the trained length, the base is 3 x 40 / 16 - 2 = 5.5 to the power of 8 / 6 higher
    ("DynamicNTKScaling", DYNAMIC, 40, frequencies(base=10000 * 5.5 ** (8 / 6)), 1.0),
    ("Yarn", YARN, 30, blended_frequencies(),
     (0.09 * math.log(8) + 1) / (0.04 * math.log(8) + 1)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "length", "expected", "magnitude"), ROTARY)
def test_rotary_tables_are_position_times_frequency(kind, options, length, expected, magnitude):
    rotary = getattr(reference, f"DeepseekV2{kind}RotaryEmbedding")(2 * len(expected), **options)
    rotary(torch.zeros(1), seq_len=3)  # a longer table replaces it, and a shorter one is a part
    for asked in (length, 5):
        found = rotary(torch.zeros(1), seq_len=asked)
        torch.testing.assert_close(found, table(expected, asked, magnitude), atol=2e-5, rtol=0)
    with pytest.raises(ValueError, match="seq_len is None"):
        rotary(torch.zeros(1))


@pytest.mark.parametrize(("scaling", "divisor"), [(None, 1), ({"type": "linear", "factor": 2}, 2)])
def test_plain_attention_rotates_by_the_position_ids_it_is_given(scaling, divisor):
    rotary = reference.LlamaRotaryEmbedding(config_of(rope_scaling=scaling))
    places = [0, 7, 3]
    found = rotary(torch.zeros(1), torch.tensor([places]))
    cos, sin = table([each / divisor for each in frequencies()], 8)
    torch.testing.assert_close(found, (cos[None, places], sin[None, places]), atol=2e-5, rtol=0)


# -------------------------------------------------------------------------------------- attention


def causal(length):
    return torch.full((length, length), -1e30).triu(1)[None, None]


@pytest.fixture
def latent():
    return randomised(reference.DeepseekV2Attention(config_of(**LATENT), 0))


def test_latent_attention_equals_the_same_attention_with_keys_and_values_projected_up(latent):
    x = normal(2, 9, 32)
    out, weights, _ = latent(x, causal(9), output_attentions=True)

    heads, nope, rope, value_size, rank = 4, 6, 4, 5, 12
    query = latent.q_b_proj(latent.q_a_layernorm(latent.q_a_proj(x)))
    query = query.view(2, 9, heads, nope + rope).transpose(1, 2)
    joint = latent.kv_a_proj_with_mqa(x)
    up = latent.kv_b_proj(latent.kv_a_layernorm(joint[..., :rank]))
    up = up.view(2, 9, heads, nope + value_size).transpose(1, 2)
    cos, sin = table(frequencies(rope), 9)

    def rotated(pairs):  # complex multiplication, a pair of neighbours at a time
        even, odd = pairs[..., 0::2], pairs[..., 1::2]
        c, s = cos[:, : rope // 2], sin[:, : rope // 2]
        return torch.cat([even * c - odd * s, odd * c + even * s], dim=-1)

    scores = query[..., :nope] @ up[..., :nope].mT
    scores = scores + rotated(query[..., nope:]) @ rotated(joint[:, None, :, rank:]).mT
    expected_weights = (scores / math.sqrt(nope + rope) + causal(9)).softmax(-1)
    mixed = (expected_weights @ up[..., nope:]).transpose(1, 2).reshape(2, 9, -1)
    torch.testing.assert_close((out, weights), (latent.o_proj(mixed), expected_weights), **CLOSER)
    scaling = {"type": "yarn", "factor": 4.0, "mscale_all_dim": 0.5}
    scaled = reference.DeepseekV2Attention(config_of(**LATENT, rope_scaling=scaling), 0)
    assert scaled.softmax_scale == pytest.approx(10**-0.5 * (0.05 * math.log(4.0) + 1) ** 2)
    assert scaled.rotary_emb.mscale_all_dim == 0.5


def test_latent_attention_caches_latent_and_rotary_key_and_goes_on_after_its_cache(latent):
    calls = []
    latent.kv_b_proj.register_forward_hook(lambda *_: calls.append(1))
    x, mask, cache = normal(2, 7, 32), causal(7), GrowingCache()
    parts = [latent(x[:, first:end], mask[:, :, first:end, :end], past_key_value=cache)[0]
             for first, end in ((0, 4), (4, 7))]  # fmt: skip
    whole, *_ = latent(x, mask, torch.arange(7)[None])
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, **CLOSER)
    assert [part.shape for part in cache[0]] == [(2, 1, 7, 4), (2, 1, 7, 12)]
    assert calls == []


def test_plain_attention_equals_fused_attention_on_rotated_heads():
    attention = randomised(reference.LlamaAttention(config_of()))
    x = normal(2, 9, 32)
    found = attention(x, causal(9))
    cos, sin = table(frequencies(), 9)

    def heads_of(projection, count):
        return projection(x).view(2, 9, count, 8).transpose(1, 2)

    def rotated(heads):
        return heads * cos + torch.cat([-heads[..., 4:], heads[..., :4]], dim=-1) * sin

    query = rotated(heads_of(attention.q_proj, 4))
    key = rotated(heads_of(attention.k_proj, 2)).repeat_interleave(2, dim=1)
    value = heads_of(attention.v_proj, 2).repeat_interleave(2, dim=1)
    fused = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    expected = attention.o_proj(fused.transpose(1, 2).reshape(2, 9, 32))
    torch.testing.assert_close(found[0], expected, **CLOSER)
    assert found[1:] == (None, None)
    with pytest.raises(ValueError, match="layer_idx is None"):
        attention(x, causal(9), past_key_value=GrowingCache())


def flash_stand_in(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
    assert (causal, dropout_p) == (True, 0.0)
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=softmax_scale)
    return out.transpose(1, 2)


@pytest.fixture
def flash(monkeypatch):
    monkeypatch.setattr(reference, "flash_attn_func", flash_stand_in)


@pytest.mark.parametrize("changes", [{}, LATENT], ids=["mha", "mla"])
@torch.no_grad()
def test_flash_attention_gives_the_logits_of_eager_attention(changes, flash):
    """Of a prompt, and of tokens behind it."""
    ids, logits = torch.arange(20).view(2, 10), []
    for implementation in ("eager", "flash_attention_2"):
        model = decoder(**changes, attn_implementation=implementation)
        first = model(ids[:, :8], use_cache=True)
        steps = model(ids[:, 8:], past_key_values=first.past_key_values)
        logits.append((first.logits, steps.logits))
    torch.testing.assert_close(*logits, **CLOSE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention_mask": torch.tensor([[0, 1, 1, 1, 1]])}, "attention_mask hides tokens"),
        ({"position_ids": torch.tensor([[0, 1, 2, 0, 1]])}, "position_ids go back"),
    ],
)
def test_flash_attention_takes_neither_padding_nor_packed_sequences(flash, given, message):
    with pytest.raises(ValueError, match=message):
        decoder(attn_implementation="flash_attention_2")(torch.arange(5)[None], **given)


def test_flash_attention_needs_its_kernel(monkeypatch):
    monkeypatch.setattr(reference, "flash_attn_func", None)
    with pytest.raises(ImportError, match="flash-attn"):
        decoder(attn_implementation="flash_attention_2")(torch.arange(5)[None])


# ---------------------------------------------------------------------------------------- the MoE


@torch.no_grad()
def test_mixture_equals_every_expert_on_every_token_weighted_by_the_router():
    moe = randomised(reference.DeepseekV2MoE(config_of()))
    x = normal(2, 7, 32)
    probabilities = (x @ moe.gate.weight.T).softmax(-1)
    expected = moe.shared_experts(x)
    for b, t in itertools.product(range(2), range(7)):
        for e in probabilities[b, t].topk(3).indices.tolist():
            expected[b, t] += probabilities[b, t, e] * moe.experts[e](x[b, t])
    torch.testing.assert_close(moe(x), expected, **CLOSER)


def ranked_by_loops(scores, corrections, method):
    """Scores by which a token's experts are chosen: 4 groups of 2, of which 2 are kept."""
    if method in ("greedy", "gready"):  # as the published config spells it
        return scores
    if method == "noaux_tc":
        scores = [score + more for score, more in zip(scores, corrections, strict=True)]
    groups = [scores[2 * g : 2 * g + 2] for g in range(4)]
    worth = [sum(group) if method == "noaux_tc" else max(group) for group in groups]
    best = sorted(range(4), key=lambda g: -worth[g])[:2]
    return [score if e // 2 in best else 0.0 for e, score in enumerate(scores)]


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("method", ["greedy", "gready", "group_limited_greedy", "noaux_tc"])
@pytest.mark.parametrize("normed", [False, True])
def test_gate_picks_experts_as_a_loop_does(scoring, method, normed):
    config = config_of(scoring_func=scoring, topk_method=method, norm_topk_prob=normed,
                       routed_scaling_factor=2.5, n_group=4, topk_group=2)  # fmt: skip
    gate = randomised(reference.MoEGate(config))
    x = normal(1, 11, 32)
    logits = (x[0] @ gate.weight.T).detach()
    scores = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
    corrections = gate.e_score_correction_bias.tolist() if method == "noaux_tc" else None
    experts, weights = gate(x)
    for token, *found in zip(scores.tolist(), experts.tolist(), weights.tolist(), strict=True):
        ranked = ranked_by_loops(token, corrections, method)
        picks = sorted(range(8), key=lambda e: -ranked[e])[:3]
        total = sum(token[e] for e in picks) if normed else 1.0
        expected = {e: token[e] / total * 2.5 for e in picks}
        assert dict(zip(*found, strict=True)) == pytest.approx(expected, rel=1e-5)


def test_rms_norm_divides_by_the_root_of_the_mean_square():
    norm = randomised(reference.DeepseekV2RMSNorm(6, eps=0.5))
    x = normal(4, 6)
    expected = norm.weight * x / (x.square().mean(-1, keepdim=True) + 0.5).sqrt()
    torch.testing.assert_close(norm(x), expected)
    assert norm.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


# ------------------------------------------------------------------------------- the whole decoder


@torch.no_grad()
def test_states_weights_and_caches_come_back_when_asked_for():
    """The cache is extended in place."""
    model, ids = decoder(), torch.arange(6)[None]
    output = model(ids, output_hidden_states=True, output_attentions=True, use_cache=True)
    cache = output.past_key_values
    key = cache[0][0]
    assert model(ids[:, :1], past_key_values=cache).past_key_values is cache
    assert [tuple(state.shape) for state in output.hidden_states] == [(1, 6, 32)] * 4
    assert [tuple(weights.shape) for weights in output.attentions] == [(1, 4, 6, 6)] * 3
    assert (key.shape, cache.get_seq_length()) == ((1, 2, 6, 8), 7)
    assert not isinstance(cache, list | tuple)  # `tree` would show the shapes of all it holds


@torch.no_grad()
def test_padding_on_the_left_changes_nothing_for_the_tokens_after_it():
    model, ids = decoder(), torch.arange(5)[None]
    mask, positions = torch.tensor([[0, 0, 1, 1, 1, 1, 1]]), torch.arange(-2, 5).clamp(0)[None]
    alone = model(ids).logits
    padded = model(F.pad(ids, (2, 0)), attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(padded[:, 2:], alone, **CLOSE)


def classifier(**changes):
    return decoder(reference.DeepseekV2ForSequenceClassification, **changes)


def test_classification_reads_the_last_token_before_the_padding():
    ids = torch.tensor([[1, 2, 3, 39, 39], [4, 5, 6, 7, 8]])
    model = classifier(num_labels=3, pad_token_id=39)
    with torch.no_grad():
        states = [model.model(part).last_hidden_state[0, -1] for part in (ids[:1, :3], ids[1:])]
        torch.testing.assert_close(model(ids).logits, model.score(torch.stack(states)), **CLOSE)
    with pytest.raises(ValueError, match="pad_token_id"):
        classifier(num_labels=3)(ids)
