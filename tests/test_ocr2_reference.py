"""The built-in DeepSeek-OCR-2 against published facts, masks by hand and transformers' Qwen2."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from ocr2_pages import (
    CALLED,
    GOLDENS,
    REFERENCE,
    decode_flops,
    flops_by_stage,
    golden_ids,
    laid_out,
    loaded,
    traced,
    workload_of,
)
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2Config
from transformers.models.qwen2 import modeling_qwen2

from dsocr_analyze.architectures.deepseek_ocr.reference import modeling_deepseekocr
from dsocr_analyze.architectures.deepseek_ocr_2.reference import (
    deepencoderv2,
    modeling_deepseekocr2,
)
from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.loading import building
from dsocr_analyze.trace.summary import ledger_of

META, CPU = torch.device("meta"), torch.device("cpu")
DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def published():
    return loaded(REFERENCE)


# -------------------------------------------------------------------------------- published facts


def encoder_tensors(layers=24, width=896, mlp=4864, kv=2 * 64) -> dict[str, list[int]]:
    """Names and shapes of the encoder's tensors, as the checkpoint's index lists them."""
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
    shapes |= {"query_768.weight": [144, width], "query_1024.weight": [256, width]}
    return {f"model.qwen2_model.{name}": shape for name, shape in shapes.items()}


def test_parameters_have_the_published_names_and_shapes(published):
    first = json.loads((DATA / "checkpoint_tensors.json").read_text(encoding="utf-8"))
    shared = {
        name: shape
        for name, shape in first.items()
        if not name.startswith(("model.vision_model.", "model.image_newline"))
    }
    shared["model.sam_model.net_3.weight"] = [896, 512, 3, 3]
    shared["model.projector.layers.weight"] = [1280, 896]
    expected = {**shared, **encoder_tensors()}
    found = {name: list(p.shape) for name, p in published.module.named_parameters()}
    assert found == expected
    assert len(found) == 2_707
    assert set(published.module.state_dict()) == set(expected)  # no buffer is saved


def test_stages_own_the_published_numbers_of_parameters(published):
    sizes: Counter[str] = Counter()
    for name, parameter in published.module.named_parameters():
        sizes[".".join(name.split(".")[:2])] += parameter.numel()
    decoder = sizes.pop("model.embed_tokens") + sizes.pop("model.layers") + sizes.pop("model.norm")
    assert decoder == 2_769_255_680
    assert sizes == {
        "model.sam_model": 94_979_328,
        "model.qwen2_model": 358_256_512,
        "model.projector": 1_148_160,
        "model.view_seperator": 1_280,
        "lm_head.weight": 165_478_400,
    }
    assert sum(sizes.values()) + decoder == 3_389_119_360


def test_modules_and_buffers_are_the_published_ones(published):
    assert len(list(published.module.modules())) == 4_204
    buffers = Counter(".".join(name.split(".")[:2]) for name, _ in published.module.named_buffers())
    assert buffers == {"model.layers": 12, "model.qwen2_model": 24 + 1}
    assert type(published.module.model.qwen2_model.model.model).__name__ == "CustomQwen2ModelInner"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("flash", "decoder"),
    [(False, "softmax"), (True, "flash_attention")],
    ids=["eager", "flash"],
)
def test_attention_is_sdpa_in_the_encoder_whatever_the_decoders_is(flash, decoder):
    golden = GOLDENS[4]
    traces = traced(loaded(REFERENCE, flash=flash), workload_of(golden))
    assert flops_by_stage(traces) == golden["matrix_flops"]
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


# ----------------------------------------------------------------------------------------- counts


@pytest.mark.exhaustive
@pytest.mark.parametrize("golden", GOLDENS, ids=list(golden_ids()))
def test_every_stage_counts_what_was_recorded(published, golden):
    workload = workload_of(golden)
    assert (workload.visual_tokens, workload.seq_len) == (
        golden["visual_tokens"],
        golden["seq_len"],
    )
    traces = traced(published, workload)
    assert flops_by_stage(traces) == golden["matrix_flops"]
    assert decode_flops(traces) == golden["decode_step_matrix_flops"]
    assert ledger_of(traces.prefill, *traces.decode_steps).unknown == {}


@pytest.mark.exhaustive
def test_the_outside_witness_counts_the_same():
    model, golden = loaded(REFERENCE), GOLDENS[4]
    with running(META):
        inputs = CALLED.prefill_inputs(META, model.dtype, workload_of(golden))
        with FlopCounterMode(display=False) as counter:
            model.module(**inputs)
    assert counter.get_total_flops() == golden["matrix_flops"]["total"]


@pytest.mark.exhaustive
def test_the_mask_is_so_many_writes_for_every_view(published):
    """1 + 2 n a view: a block of image tokens, then two parts of a row for every query."""
    workload = laid_out(grid=(1, 2), base_size=1024, image_size=768)
    kernels = [
        kernel
        for kernel in traced(published, workload).prefill.kernels
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


# ----------------------------------------------------------------------------------- small models


SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "projector_config": {"projector_type": "linear", "input_dim": 24, "n_embed": 32},
    "vision_config": {
        "image_size": 128,
        "width": {
            "sam_vit_b": {
                "width": 24,
                "layers": 2,
                "heads": 2,
                "global_attn_indexes": [1],
                "downsample_channels": [12, 20],
            },
            "qwen2-0-5b": {
                "dim": 24,
                "layers": 2,
                "heads": 6,
                "key_value_heads": 2,
                "intermediate_size": 40,
                "view_sizes": [64, 128],
            },
        },
    },
}


ENCODER = "vision_config/width/qwen2-0-5b"


def changed(path: str, value) -> dict:
    """The small config with one key of a section changed, or left out where `value` is None."""
    settings = copy.deepcopy(SMALL)
    *sections, key = path.split("/")
    section = settings
    for name in sections:
        section = section[name]
    if value is None:
        del section[key]
    else:
        section[key] = value
    return settings


def randomised(module):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.3, 0.3, generator=generator)
    return module.eval()


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def small(**config):
    model = loaded(REFERENCE, device="cpu", dtype=torch.float32, **{**SMALL, **config})
    return randomised(model.module)


def page(*, tiles: int, batch: int = 1):
    """Global views of 128 pixels (2 x 2 tokens) and tiles of 64 (one token each)."""
    visual = tiles + 4 + 1
    mask = torch.zeros(batch, 16, dtype=torch.bool)
    mask[:, 1 : 1 + visual] = True
    views = normal(tiles, 3, 64, 64) if tiles else torch.zeros(1, 3, 128, 128)
    return {
        "images": [(views + item * bool(tiles), normal(1, 3, 128, 128, seed=item + 1))
                   for item in range(batch)],
        "images_seq_mask": mask,
        "images_spatial_crop": torch.tensor([[tiles or 1, 1]] * batch),
    }  # fmt: skip


def encoder(**changes):
    settings = {
        "decoder_layer": 2,
        "hidden_dimension": 24,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 40,
        "max_query": 400,
        "view_sizes": (64, 128, 192),
    }
    return randomised(deepencoderv2.Qwen2Decoder2Encoder(**{**settings, **changes}))


def mixed_mask(n: int) -> torch.Tensor:
    """Row by row: image tokens see those alone; query i sees them and queries 0 .. i."""
    low = torch.finfo(torch.float32).min
    rows = [[0.0] * n + [low] * n for _ in range(n)]
    rows += [[0.0] * n + [0.0] * (i + 1) + [low] * (n - 1 - i) for i in range(n)]
    return torch.tensor(rows)[None, None]


@pytest.mark.parametrize(("heads", "shared"), [(6, 2), (3, 3), (6, 1)])
@pytest.mark.parametrize("side", [1, 2, 3])
def test_the_encoder_is_transformers_qwen2_under_the_mixed_mask(heads, shared, side):
    ours = encoder(num_attention_heads=heads, num_key_value_heads=shared)
    theirs = modeling_qwen2.Qwen2Model(
        Qwen2Config(
            vocab_size=1,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=heads,
            num_key_value_heads=shared,
            rope_theta=1e6,
            rms_norm_eps=1e-6,
            attn_implementation="sdpa",
        )
    ).eval()
    weights = ours.model.model.state_dict()
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["embed_tokens.weight"], [])
    features, n = normal(3, 24, side, side), side * side
    with torch.no_grad():
        found = ours(features)
        queries = getattr(ours, f"query_{64 * side}").weight.expand(3, n, 24)
        sequence = torch.cat([features.flatten(2).mT, queries], dim=1)
        expected = theirs(
            inputs_embeds=sequence, attention_mask=mixed_mask(n).expand(3, 1, 2 * n, 2 * n)
        ).last_hidden_state[:, n:]
    assert found.shape == (3, n, 24)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


def test_a_query_changes_its_own_output_and_those_behind_it_alone():
    model = encoder()
    features = normal(1, 24, 2, 2)
    with torch.no_grad():
        before = model(features)
        model.query_128.weight[2] += 1.0
        after = model(features)
        by_image = model(features + normal(1, 24, 2, 2, seed=3) * torch.eye(2))
    assert torch.equal(before[:, :2], after[:, :2])
    assert bool((before[:, 2:] != after[:, 2:]).any(-1).all())
    assert bool((by_image != after).any(-1).all())


def test_padding_is_seen_by_nobody():
    model = encoder().model
    sequence, kinds = normal(1, 5, 24), torch.tensor([[0, 0, 0, 1, 1]])
    padded = torch.tensor([[1, 1, 0, 1, 1]])
    other = sequence.clone()
    other[:, 2] += 1.0
    with torch.no_grad():
        one, two = (
            model(x, kinds, attention_mask=padded).last_hidden_state for x in (sequence, other)
        )
        unpadded = model(other, kinds).last_hidden_state
    seen = [0, 1, 3, 4]
    assert torch.equal(one[:, seen], two[:, seen])
    assert not torch.allclose(unpadded[:, seen], two[:, seen])


def test_a_sequence_may_hold_its_kinds_in_any_order_or_one_kind_alone():
    model = encoder().model
    sequence = normal(1, 4, 24)
    for kinds, alone in (([0, 0, 0, 0], [0]), ([1, 1, 1, 1], [1])):
        with torch.no_grad():
            whole = model(sequence, torch.tensor([kinds])).last_hidden_state
            first = model(sequence[:, :1], torch.tensor([alone])).last_hidden_state
        # The first token of a causal row sees itself alone; among image tokens it sees all.
        assert torch.allclose(whole[:, :1], first, atol=1e-6) == bool(alone[0])


def test_keys_and_values_of_every_layer_are_kept_as_published():
    model = encoder().model
    sequence, kinds = normal(2, 4, 24), torch.tensor([[0, 0, 1, 1]] * 2)
    with torch.no_grad():
        kept = model(sequence, kinds)
        dropped = model(sequence, kinds, use_cache=False)
    shapes = [tuple(part.shape for part in pair) for pair in kept.past_key_values]
    assert shapes == [((2, 2, 4, 4), (2, 2, 4, 4))] * 2
    assert dropped.past_key_values is None
    assert torch.equal(kept.last_hidden_state, dropped.last_hidden_state)


@pytest.mark.parametrize("tiles", [0, 3])
def test_visual_tokens_are_tiles_then_the_global_view_then_the_separator(tiles, monkeypatch):
    model = small()
    inputs, taken = page(tiles=tiles), []
    monkeypatch.setattr(
        modeling_deepseekocr.DeepseekV2Model,
        "forward",
        lambda _, inputs_embeds, **__: taken.append(inputs_embeds),
    )
    ids = torch.arange(16)[None]
    with torch.no_grad():
        model.model(ids, **inputs)
        local, whole = inputs["images"][0]

        def encoded(views):
            return model.model.projector(model.model.qwen2_model(model.model.sam_model(views)))

        parts = [encoded(tile[None])[0] for tile in local] if tiles else []
        parts += [encoded(whole)[0], model.model.view_seperator[None]]
        expected = model.model.embed_tokens(ids).clone()
        expected[0, 1 : 1 + tiles + 5] = torch.cat(parts)
    torch.testing.assert_close(taken[0], expected, atol=1e-5, rtol=1e-5)


def test_every_item_of_a_batch_gets_its_own_page():
    model, inputs = small(), page(tiles=2, batch=2)
    ids = torch.arange(16).expand(2, -1)
    with torch.no_grad():
        both = model(ids, **inputs).logits
        for item in range(2):
            own = {name: value[item : item + 1] for name, value in inputs.items()}
            one = model(ids[item : item + 1], **own).logits
            torch.testing.assert_close(both[item : item + 1], one, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(both[0], both[1], atol=1e-2)


def test_a_decode_step_over_the_cache_equals_the_whole_pass():
    model, inputs = small(), page(tiles=2)
    ids = torch.arange(16)[None]
    with torch.no_grad():
        whole = model(ids, **inputs).logits
        shorter = {**inputs, "images_seq_mask": inputs["images_seq_mask"][:, :-1]}
        cache = model(ids[:, :-1], use_cache=True, **shorter).past_key_values
        last = model(ids[:, -1:], past_key_values=cache, **inputs).logits
    torch.testing.assert_close(last, whole[:, -1:], atol=1e-4, rtol=1e-4)


def test_another_config_is_another_network():
    draw = random.Random(5)
    for _ in range(6):
        heads, shared = draw.choice([(2, 1), (4, 2), (6, 6)])
        width, layers, mlp = 4 * heads, draw.randint(0, 3), draw.randint(8, 40)
        settings = copy.deepcopy(SMALL)
        settings["vision_config"]["width"]["qwen2-0-5b"] = {
            "dim": width,
            "layers": layers,
            "heads": heads,
            "key_value_heads": shared,
            "intermediate_size": mlp,
            "view_sizes": [128],
        }
        settings["projector_config"]["input_dim"] = width
        module = loaded(REFERENCE, **settings).module
        found = {
            name: list(p.shape)
            for name, p in module.named_parameters()
            if name.startswith("model.qwen2_model")
        }
        expected = encoder_tensors(layers, width, mlp, 4 * shared)
        del expected["model.qwen2_model.query_768.weight"]
        del expected["model.qwen2_model.query_1024.weight"]
        expected["model.qwen2_model.query_128.weight"] = [4, width]
        assert found == expected
        assert module.model.sam_model.net_3.out_channels == width


# --------------------------------------------------------------------------------- what is refused


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("size", "tokens", "fits"),
    [(719, 121, False), (720, 144, True), (783, 144, True), (784, 169, False),
     (975, 225, False), (976, 256, True), (1039, 256, True), (1040, 289, False), (640, 100, False)],
)  # fmt: skip
def test_a_view_needs_queries_for_as_many_tokens_as_it_gives(size, tokens, fits):
    assert deepencoderv2.queries_of(size) == tokens
    model = loaded(REFERENCE, **changed(f"{ENCODER}/view_sizes", None))
    workload = laid_out(crop_mode=False, image_size=size)
    if fits:
        assert traced(model, workload).prefill.kernels
        return
    with pytest.raises(ModelCodeError) as refused:
        traced(model, workload)
    said = str(refused.value)
    assert f"{tokens} image tokens" in said
    assert "144 (query_768), 256 (query_1024)" in said


def build(settings):
    config = modeling_deepseekocr2.DeepseekOCR2Config(
        **{"use_mla": False, "topk_method": "greedy", "attn_implementation": "eager", **settings}
    )
    with building(META, torch.float32):
        return modeling_deepseekocr2.DeepseekOCR2ForCausalLM(config)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (f"{ENCODER}/dim", None, "lacks vision_config.width.qwen2-0-5b.dim"),
        (ENCODER, None, "lacks vision_config.width.qwen2-0-5b"),
        ("vision_config", None, "lacks vision_config"),
        (f"{ENCODER}/heads", 5, "5 heads cannot share 2 heads"),
        (f"{ENCODER}/heads", 8, "24 cannot be split into 8 heads"),
        (f"{ENCODER}/view_sizes", [100, 128], "query_128 and query_100 are both for 4"),
        ("projector_config/input_dim", 48, "features of the encoder are 24 wide"),
        ("projector_config/n_embed", 30, "hidden_size 32"),
        (
            "vision_config/width/sam_vit_b/downsample_channels",
            [12, 20, 24],
            r"\[12, 20, 24\]; the encoder has queries for two",
        ),
    ],
)
def test_what_does_not_fit_is_named(path, value, message):
    build(SMALL)
    with pytest.raises(ValueError, match=message):
        build(changed(path, value))


def test_the_encoder_has_one_attention():
    for other in ("eager", "flash_attention_2"):
        with pytest.raises(ValueError, match="'sdpa' only"):
            encoder(attn_implementation=other)
    layer = encoder().model.model.layers[0]
    with pytest.raises(ValueError, match="no attention weights"):
        layer(normal(1, 3, 24), output_attentions=True)


def test_attention_without_a_mask_is_causal_and_makes_its_own_tables():
    layer = encoder().model.model.layers[0]
    x = normal(1, 4, 24)
    low = torch.full((4, 4), torch.finfo(torch.float32).min).triu(1)[None, None]
    with torch.no_grad():
        (free,) = layer(x)
        (masked,) = layer(x, attention_mask=low, position_ids=torch.arange(4)[None])
    torch.testing.assert_close(free, masked, atol=1e-6, rtol=1e-5)
