"""Unlimited-OCR's reference against a vendor checkout: layout, logits, operators and memory.

`pytest -m vendor` runs these tests, on the files of DSOCR_VENDOR_DIR_UNLIMITED; they stay
untouched.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from alive_tensors import Alive
from transformers import DynamicCache
from unlimited import (
    CPU,
    META,
    REFERENCE,
    Generation,
    decoder,
    drawn,
    load,
    small,
    traced,
    workload,
)
from vendor_checkout import VENDOR_UNLIMITED, assert_same_passes, digests, needs_vendor_unlimited

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.architecture import CacheStep
from dsocr_analyze.architectures.unlimited_ocr import UNLIMITED_OCR
from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.forward import running
from dsocr_analyze.workload import ViewBatch

pytestmark = [pytest.mark.vendor, needs_vendor_unlimited]


@pytest.fixture(scope="module", autouse=True)
def untouched():
    before = digests(VENDOR_UNLIMITED)
    yield
    assert digests(VENDOR_UNLIMITED) == before


# ------------------------------------------------------------------------------------------ layout


def layout(model: torch.nn.Module) -> tuple[Any, ...]:
    """Class names of modules, and shapes and types of parameters and buffers, by path."""
    return (
        {path: type(module).__name__ for path, module in model.named_modules()},
        {name: (p.shape, p.dtype) for name, p in model.named_parameters()},
        {name: (b.shape, b.dtype) for name, b in model.named_buffers()},
    )


def test_modules_parameters_and_buffers_are_the_vendors():
    ours, theirs = (layout(load(path, None).module) for path in (REFERENCE, VENDOR_UNLIMITED))
    assert ours == theirs


def test_flash_attention_cannot_be_built_from_the_vendors_files_either():
    with pytest.raises(ModelCodeError, match="mha_flash_attention_2"):
        load(VENDOR_UNLIMITED, None, flash_attention=True)


# ------------------------------------------------------------------------------------------ logits


def generations(config, dtype, tokens, prompt, window):
    return [
        Generation(decoder(config, dtype, vendor=vendor), tokens, prompt, window)
        for vendor in (True, False)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("heads", [1, 4])
def test_every_pass_of_a_generation_gives_the_same_logits(dtype, window, heads):
    draw = random.Random(f"{window} {heads}")
    prompt, batch = draw.randint(2, 12), draw.randint(1, 3)
    steps = 4 * (window or 4) + 2
    tokens = torch.randint(50, (batch, prompt + steps), generator=torch.Generator().manual_seed(7))
    theirs, ours = generations(small(num_key_value_heads=heads), dtype, tokens, prompt, window)
    assert torch.equal(ours.logits, theirs.logits)
    expected = [prompt + min(k, window or k) for k in range(steps + 1)]
    assert ours.lengths == theirs.lengths == expected
    for own, other in zip(ours.cache, theirs.cache, strict=True):
        assert all(map(torch.equal, own, other))
    assert vars(ours.cache).get("_prefill_length") == vars(theirs.cache).get("_prefill_length")


def test_a_made_cache_has_the_state_that_the_vendor_keeps():
    model = decoder(small(), torch.float32, vendor=True)
    tokens = torch.randint(50, (1, 30), generator=torch.Generator().manual_seed(7))
    first = Generation(model, tokens[:, :5], 5, 4).cache
    for number in range(2, 16):
        real = Generation(model, tokens[:, : 5 + number - 1], 5, 4).cache
        made = UNLIMITED_OCR.decode_cache(first, CacheStep(5, number, 4))
        assert made._prefill_length == real._prefill_length
        assert made.get_seq_length() == real.get_seq_length()
        written = getattr(made, "_ring_pos", dict.fromkeys(range(3), 0))
        assert written == getattr(real, "_ring_pos", dict.fromkeys(range(3), 0))


@pytest.mark.parametrize("window", [None, 3])
def test_several_tokens_at_once_after_the_prompt_are_handled_alike(window):
    tokens = torch.randint(50, (2, 24), generator=torch.Generator().manual_seed(3))
    found = []
    for vendor in (True, False):
        model = decoder(small(), torch.float32, vendor=vendor)
        model.config._ring_window = window
        cache, logits = DynamicCache(), []
        with running(CPU, has_weights=True):
            for start, end in ((0, 5), (5, 7), (7, 8), (8, 10), (10, 13), (13, 14), (14, 18)):
                positions = torch.arange(start, end).expand(2, -1)
                output = model(tokens[:, start:end], position_ids=positions, past_key_values=cache)
                logits.append(output.logits)
        found.append((torch.cat(logits, dim=1), cache.get_seq_length()))
    (theirs, their_length), (ours, our_length) = found
    assert torch.equal(theirs, ours)
    assert their_length == our_length


WHOLE = {
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 64,
}
"""The vision side is as large as ever: the vendor's code does not ask the config."""


def page_of(draw: random.Random) -> Any:
    """A cut page, a whole one, or several in one prompt, of small views."""
    side, tile = draw.choice([(192, 128), (256, 64), (128, 128)])
    g, q = side // 64, tile // 64
    kind = draw.choice(["cut", "whole", "pages"])
    batch = 1 if kind == "pages" else draw.randint(1, 2)
    text = draw.randint(1, 30)
    if kind == "cut":
        columns, rows = draw.choice([(2, 1), (1, 3), (3, 4), (2, 5), (16, 2), (1, 32)])
        views = (ViewBatch(columns * rows, tile), ViewBatch(1, side))
        visual = (q * columns + 1) * q * rows + g * (g + 1) + 1
        return workload(views, visual, text, base_size=side, grid=(columns, rows), batch_size=batch)
    pages = draw.randint(2, 4) if kind == "pages" else 1
    views = (ViewBatch(pages, side),)
    return workload(views, pages * (g * (g + 1) + 1), text, base_size=side, batch_size=batch)


def test_pages_in_and_tokens_out_give_the_same_logits_on_the_whole_model():
    models = [
        load(path, 3, device=CPU, dtype=torch.float32, config=WHOLE)
        for path in (VENDOR_UNLIMITED, REFERENCE)
    ]
    drawn(models[0].module)
    models[1].module.load_state_dict(models[0].module.state_dict(), assign=True)
    generator = torch.Generator().manual_seed(1)
    for page in (
        workload((ViewBatch(3, 128),), 3 * 7, 4, base_size=128),
        workload((ViewBatch(2, 64), ViewBatch(1, 128)), 3 + 7, 4, base_size=128, grid=(2, 1)),
    ):
        inputs = DEFAULT.prefill_inputs(CPU, torch.float32, page)
        noise = [torch.rand(v.shape, generator=generator) for v in inputs["images"][0]]
        crops, _ = inputs["images"][0]
        inputs["images"] = [(noise[0] if crops.any() else crops, noise[1])]
        found = []
        for model in models:
            with running(CPU, has_weights=True):
                cache = DynamicCache()
                logits = [model.module(**inputs, past_key_values=cache).logits]
                for number in range(1, 9):
                    step = CacheStep(page.seq_len, number, 3)
                    arguments = DEFAULT.decode_inputs(CPU, page, step.position)
                    arguments["input_ids"] += number
                    logits.append(model.module(**arguments, past_key_values=cache).logits)
                    assert cache.get_seq_length() == step.keys
            found.append(torch.cat(logits, dim=1))
        assert torch.equal(found[0], found[1])


# ---------------------------------------------------------------------------- operators and memory


def config_of(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([2, 5, 10])
    return {
        **WHOLE,
        "num_hidden_layers": draw.randint(1, 3),
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([1, heads]),
        "attention_bias": draw.random() < 0.3,
        "n_routed_experts": draw.choice([None, 4, 16]),
        "n_shared_experts": draw.choice([None, 1]),
        "vocab_size": draw.choice([128, 20_000]),
        "max_position_embeddings": draw.choice([16, 32_768]),
        "rope_scaling": draw.choice([None, {"type": "yarn", "factor": 2.0}]),
    }


@pytest.mark.parametrize("seed", range(10))
def test_drawn_models_run_the_same_operators_and_peak_at_the_same_byte(seed):
    draw = random.Random(seed)
    config, page = config_of(draw), page_of(draw)
    dtype = draw.choice([torch.bfloat16, torch.float32])
    window = draw.choice([None, 1, 3, 128])
    # Off; appending; full and written in place: by consecutive steps, and by steps far apart.
    steps = [*range(3 * (window or 1)), 500] if (window or 1) < 8 else [0, 1, 127, 128, 129, 9000]
    theirs, ours = (
        traced(load(path, window, dtype=dtype, config=config), page, step_numbers=steps)
        for path in (VENDOR_UNLIMITED, REFERENCE)
    )
    assert_same_passes(ours, theirs)


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("seed", range(3))
def test_as_many_bytes_are_alive_after_every_operator(seed, window):
    draw = random.Random(100 + seed)
    config, page = config_of(draw), page_of(draw)
    found = []
    for path in (VENDOR_UNLIMITED, REFERENCE):
        model = load(path, window, config=config)
        curves, cache = [], DynamicCache()
        with running(META):
            calls = [DEFAULT.prefill_inputs(META, model.dtype, page)]
            calls += [DEFAULT.decode_inputs(META, page, page.seq_len + i) for i in range(5)]
            for arguments in calls:
                with Alive() as alive:
                    model.module(**arguments, past_key_values=cache)
                curves.append(alive.curve)
        found.append(curves)
    assert len(found[0][0]) > 100
    assert found[0] == found[1]


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("heads", [1, 4])
def test_a_decoder_without_a_cache_of_its_caller_holds_the_same(heads, use_cache):
    found = []
    for vendor in (True, False):
        config = small(num_key_value_heads=heads, n_routed_experts=None)
        model = decoder(config, torch.bfloat16, vendor=vendor, device=META)
        tokens = torch.zeros(2, 9, dtype=torch.long, device=META)
        positions = torch.zeros(1, 9, dtype=torch.long, device=META)
        with running(META), Alive() as alive:
            model(tokens, position_ids=positions, use_cache=use_cache)
        found.append(alive.curve)
    assert found[0] == found[1]
