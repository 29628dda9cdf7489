"""The three reference networks against published facts, recorded counts and each other's passes.

Parity of DeepSeek-OCR with a vendor checkout, operator by operator, is
`scripts/compare_with_vendor.py`.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from ocr2_pages import GOLDENS, laid_out, loaded, traced, workload_of
from reference_networks import CLASSES, LATENT, built, normal, page, settings_of
from sampling import first, named, sampled
from torch.utils.flop_counter import FlopCounterMode
from vendor_checkout import VENDOR, needs_vendor

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.architectures.deepseek_ocr.reference import modeling_deepseekocr
from dsocr_analyze.architectures.deepseek_ocr_2.reference import deepencoderv2
from dsocr_analyze.errors import ConfigError, ModelCodeError
from dsocr_analyze.model.forward import running

META = torch.device("meta")
CHECKPOINT = Path(__file__).parent / "data" / "checkpoint_tensors.json"
ROOT = Path(__file__).parent.parent
OCR, OCR2, UNLIMITED = ARCHITECTURES
CLOSE = {"atol": 1e-4, "rtol": 1e-4}

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
    module = loaded(ARCHITECTURES[name].reference).module
    parameters = dict(module.named_parameters())
    assert {n: list(p.shape) for n, p in parameters.items()} == published_tensors(name)
    assert set(module.state_dict()) - set(parameters) == saved_buffers
    assert (len(parameters), len(list(module.modules()))) == (tensors, modules)
    assert within((n, 1) for n, _ in module.named_buffers()) == buffers
    found = within((n, p.numel()) for n, p in parameters.items())
    shared = {"decoder": 2_769_255_680, "lm_head.weight": 165_478_400, "view_seperator": 1_280}
    assert (found, found.total()) == (parts | shared, total)


MODULES = {
    "deepseek_ocr.reference.modeling_deepseekocr": (
        "DeepseekOCRConfig DeepseekOCRModel DeepseekOCRForCausalLM BaseTransform"
        " BasicImageTransform NoEOSTextStreamer"
    ),
    "deepseek_ocr.reference.modeling_deepseekv2": (
        "DeepseekV2RMSNorm DeepseekV2RotaryEmbedding DeepseekV2LinearScalingRotaryEmbedding"
        " DeepseekV2DynamicNTKScalingRotaryEmbedding DeepseekV2YarnRotaryEmbedding DeepseekV2MLP"
        " MoEGate DeepseekV2MoE AddAuxiliaryLoss repeat_kv DeepseekV2Attention"
        " DeepseekV2FlashAttention2 DeepseekV2DecoderLayer DeepseekV2Model DeepseekV2ForCausalLM"
        " DeepseekV2ForSequenceClassification LlamaAttention LlamaFlashAttention2"
    ),
    "deepseek_ocr.reference.deepencoder": (
        "MlpProjector LayerNormfp32 CLIPVisionEmbeddings NoTPFeedForward NoTPAttention"
        " NoTPTransformerBlock NoTPTransformer VitModel MLPBlock LayerNorm2d ImageEncoderViT Block"
        " Attention PatchEmbed get_abs_pos get_abs_pos_sam add_decomposed_rel_pos"
    ),
}


@pytest.mark.parametrize("file", MODULES)
def test_every_published_module_exists_in_its_file(file):
    module = importlib.import_module(f"dsocr_analyze.architectures.{file}")
    names = MODULES[file].split()
    assert set(names) <= set(module.__all__)
    assert [name for name in names if not callable(getattr(module, name))] == []


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


# ------------------------------------------------------------------------- DeepSeek-OCR-2's counts


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("flash", "decoder"), [(False, "softmax"), (True, "flash_attention")], ids=["eager", "flash"]
)
def test_attention_is_sdpa_in_the_encoder_whatever_the_decoders_is(flash, decoder):
    model = loaded(ARCHITECTURES[OCR2].reference, flash=flash)
    traces = traced(model, workload_of(GOLDENS[4]))
    found = Counter(
        (kernel.path.split(".")[1], kernel.operator)
        for kernel in traces.prefill.kernels
        if kernel.operator in ("scaled_dot_product_attention", "flash_attention", "softmax")
        and "gate" not in kernel.path
    )
    assert found == {
        ("sam_model", "scaled_dot_product_attention"): 12,
        ("qwen2_model", "scaled_dot_product_attention"): 24,
        ("layers", decoder): 12,
    }


@pytest.mark.exhaustive
def test_the_mask_is_so_many_writes_for_every_view():
    """1 + 2 n a view: a block of image tokens, then two parts of a row for every query."""
    workload = laid_out(grid=(1, 2), base_size=1024, image_size=768)
    kernels = [
        kernel
        for kernel in traced(loaded(ARCHITECTURES[OCR2].reference), workload).prefill.kernels
        if kernel.operator == "index_put" and kernel.path.startswith("model.qwen2_model")
    ]
    tiles, whole = 144, 256
    assert len(kernels) == 2 * (1 + 2 * tiles) + (1 + 2 * whole)
    # Image tokens see one another; query i sees them and i + 1 queries.
    written = sum(2 * n * n + n * (n + 1) // 2 for n in (tiles, tiles, whole))
    assert sum(kernel.work.bytes_written for kernel in kernels) == 2 * written
    # A position is 8 bytes: rows and columns of the block, then the columns of each part.
    positions = sum(2 * n + n * n + n * (n + 1) // 2 for n in (tiles, tiles, whole))
    assert sum(kernel.work.bytes_read for kernel in kernels) == 8 * positions + 2 * len(kernels)


@pytest.mark.exhaustive
def test_the_outside_witness_counts_what_was_recorded_of_deepseek_ocr_2():
    model, golden = loaded(ARCHITECTURES[OCR2].reference), GOLDENS[4]
    with running(META), FlopCounterMode(display=False) as counter:
        model.module(**ARCHITECTURES[OCR2].prefill_inputs(META, model.dtype, workload_of(golden)))
    assert counter.get_total_flops() == golden["matrix_flops"]["total"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("size", "tokens", "fits"),
    [(719, 121, False), (720, 144, True), (783, 144, True), (784, 169, False),
     (975, 225, False), (976, 256, True), (1039, 256, True), (1040, 289, False), (640, 100, False)],
)  # fmt: skip
def test_a_view_needs_queries_for_as_many_tokens_as_it_gives(size, tokens, fits):
    assert deepencoderv2.queries_of(size) == tokens
    vision = settings_of(OCR2)["vision_config"]
    encoder = {**vision["width"]["qwen2-0-5b"], "view_sizes": [768, 1024]}
    vision = {**vision, "width": {**vision["width"], "qwen2-0-5b": encoder}}
    model = loaded(ARCHITECTURES[OCR2].reference, **settings_of(OCR2, vision_config=vision))
    workload = laid_out(crop_mode=False, image_size=size)
    refused = rf"{tokens} image tokens.*144 \(query_768\), 256"
    with nullcontext() if fits else pytest.raises(ModelCodeError, match=refused):
        traced(model, workload)


# ----------------------------------------------------------------------------------------- config

ABSENT = object()
SAM, CLIP, ENCODER = (
    f"vision_config.width.{part}" for part in ("sam_vit_b", "clip-l-14-224", "qwen2-0-5b")
)


def changed(settings, path, value):
    """A config with one key changed, or left out."""
    section = settings = copy.deepcopy(settings)
    *sections, key = path.split(".")
    for part in sections:
        section = section[part]
    section[key] = value
    if value is ABSENT:
        del section[key]
    return settings


REFUSED = [
    *((OCR, key, ABSENT) for key in (
        "vision_config", "projector_config", "vision_config.image_size", "vision_config.width", SAM,
        f"{SAM}.layers", f"{SAM}.downsample_channels", CLIP, f"{CLIP}.heads",
        "projector_config.projector_type", "projector_config.input_dim",
        "projector_config.n_embed")),
    *((OCR2, key, ABSENT) for key in ("vision_config", ENCODER, f"{ENCODER}.dim")),
    (OCR, "projector_config.n_embed", 16),
    (OCR, "projector_config.input_dim", 30),
    (OCR, "projector_config.projector_type", "conv"),
    (OCR, "projector_config.projector_type", "low_high_split_mlp_gelu"),
    (OCR, f"{SAM}.downsample_channels", [12, 16]),
    (OCR, "topk_method", "random"),
    (OCR, "scoring_func", "tanh"),
    (OCR, "hidden_act", "sine"),
    (OCR2, f"{ENCODER}.heads", 5),
    (OCR2, f"{ENCODER}.heads", 128),
    (OCR2, f"{ENCODER}.view_sizes", [100, 128]),
    (OCR2, "projector_config.input_dim", 48),
    (OCR2, "projector_config.n_embed", 30),
    (OCR2, f"{SAM}.downsample_channels", [12, 20, 24]),
]  # fmt: skip


@pytest.mark.parametrize("name", [OCR, OCR2])
def test_what_is_missing_or_does_not_fit_is_named_before_a_network_is_built(name):
    dimensions = ARCHITECTURES[name].forms.dimensions
    published = json.loads((ARCHITECTURES[name].reference / "config.json").read_text())
    assert dimensions(published)
    for path, value in ((path, value) for which, path, value in REFUSED if which == name):
        with pytest.raises(ConfigError, match=path.rpartition(".")[2]):
            dimensions(changed(published, path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [("projector_config.projector_type", "conv"), ("topk_method", "random"),
     ("scoring_func", "tanh"), ("hidden_act", "sine")],
)  # fmt: skip
def test_a_network_takes_no_unknown_name_for_another(path, value):
    with pytest.raises(ValueError, match=f"{value}'.*known: "):
        built(OCR, "meta", **changed(settings_of(OCR), path, value))


@sampled("seed", range(6), first(2))
def test_another_encoder_of_deepseek_ocr_2_has_its_tensors(seed):
    draw = random.Random(seed)
    heads, shared = draw.choice([(2, 1), (4, 2), (6, 6)])
    width, layers, mlp = 4 * heads, draw.randint(0, 3), draw.randint(8, 40)
    encoder = {"dim": width, "layers": layers, "heads": heads, "key_value_heads": shared,
               "intermediate_size": mlp, "view_sizes": [128]}  # fmt: skip
    settings = changed(settings_of(OCR2), ENCODER, encoder)
    settings["projector_config"]["input_dim"] = width
    module = built(OCR2, "meta", **settings)
    found = {name: list(p.shape) for name, p in module.named_parameters() if "qwen2" in name}
    expected = encoder_tensors(layers, width, mlp, 4 * shared)
    assert found == expected | {"model.qwen2_model.query_128.weight": [4, width]}
    assert module.model.sam_model.net_3.out_channels == width


# ----------------------------------------------------------------------------- images and streams


def test_images_become_normalised_tensors_channels_first():
    Image = pytest.importorskip("PIL.Image")
    transform = modeling_deepseekocr.BasicImageTransform()
    tensor = transform(Image.new("RGB", (3, 2), (0, 51, 255)))
    assert tensor.shape == (3, 2, 3)
    torch.testing.assert_close(tensor[:, 0, 0], torch.tensor([-1.0, -0.6, 1.0]))
    assert isinstance(transform, modeling_deepseekocr.BaseTransform)
    transform.set_rng(0)
    with pytest.raises(NotImplementedError):
        _ = transform.default_shape


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
