"""Unlimited-OCR's window of generated tokens: masks, integers worked out by hand, the vendor's.

`pytest -m vendor` runs the last part, on the files of DSOCR_VENDOR_DIR_UNLIMITED, which stay
untouched. `test_reference_networks.py` has what it shares with the other networks.
"""

import dataclasses
import itertools
import json
import random
from functools import cache
from pathlib import Path

import pytest
import torch
from sampling import every, sampled
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache
from vendor_checkout import VENDOR_UNLIMITED, needs_vendor_unlimited

from dsocr_analyze.architectures import DEFAULT, PageRequest
from dsocr_analyze.architectures.architecture import CacheStep, GrowingCache
from dsocr_analyze.architectures.unlimited_ocr import UNLIMITED_OCR
from dsocr_analyze.architectures.unlimited_ocr.reference import (
    modeling_deepseekv2,
    modeling_unlimitedocr,
)
from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.loading import building, import_file, importable, load_model
from dsocr_analyze.trace.passes import trace_passes

META, CPU = torch.device("meta"), torch.device("cpu")
REFERENCE = UNLIMITED_OCR.reference
GOLDENS = json.loads((Path(__file__).parent / "data" / "unlimited_decode_steps.json").read_text())
WINDOW = 4
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


IN_VENDOR = [pytest.mark.vendor, needs_vendor_unlimited]


# ----------------------------------------------------------------------------------- whole models


def load(path, sliding_window, **options):
    """A whole model; `config` replaces keys of the directory's."""
    directory = ModelDirectory.read(path)
    config = {**directory.config, **options.pop("config", {})}
    return load_model(
        dataclasses.replace(directory, config=config),
        **{"device": META, "dtype": torch.bfloat16, **options},
        sliding_window=sliding_window,
        trust_remote_code=True,
    )


def traced(model, workload, **options):
    return trace_passes(model, workload, UNLIMITED_OCR, **options)


# ---------------------------------------------------------------------------------- decoders alone

VISION = {
    "image_size": 64,
    "width": {
        "sam_vit_b": {
            "layers": 1, "width": 8, "heads": 1, "global_attn_indexes": [],
            "downsample_channels": [8, 8],
        },
        "clip-l-14-224": {
            "layers": 1, "width": 8, "heads": 1, "image_size": 28, "patch_size": 14,
        },
    },
}  # fmt: skip
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "topk_method": "greedy", "first_k_dense_replace": 1, "vocab_size": 50,
    "max_position_embeddings": 256, "use_mla": False, "attn_implementation": "eager",
    "projector_config": {"projector_type": "linear", "input_dim": 16, "n_embed": 32},
    "vision_config": VISION,
}  # fmt: skip
DENSE = {"n_routed_experts": None}
"""No router, whose choice a rounding may turn over where the order of sums differs."""


@cache
def vendor_classes():
    directory = ModelDirectory.read(VENDOR_UNLIMITED)
    with importable(directory) as package:
        modeling = import_file(directory, package, "modeling_deepseekv2.py")
        configuration = import_file(directory, package, "configuration_deepseek_v2.py")
    return modeling.DeepseekV2ForCausalLM, configuration.DeepseekV2Config


OWN_CLASSES = (
    modeling_unlimitedocr.UnlimitedOCRForCausalLM,
    modeling_unlimitedocr.UnlimitedOCRConfig,
)


def decoder(dtype=torch.float32, *, vendor=False, device=CPU, **config):
    """A decoder of small dimensions, its weights drawn by name: vendor and reference have the same.

    The vendor's comes without the vision side, which is large whatever the config says.
    """
    build, read = vendor_classes() if vendor else OWN_CLASSES
    with building(device, dtype):
        model = build(read(**SMALL | config))
    return (model if device is META else drawn(model)).eval()


def drawn(model):
    """Draws weights by their names, large enough for attention to look at some keys only."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(sum(name.encode()) * len(name))
            spread = 1.0 if "embed" in name else 2 * parameter.shape[-1] ** -0.5
            parameter.normal_(1.0 if "norm" in name else 0.0, spread, generator=generator)
    return model


def tokens_of(batch, length, seed=0):
    return torch.randint(50, (batch, length), generator=torch.Generator().manual_seed(seed))


class Generation:
    """A prompt, then one token after the other: real calls that share a cache.

    Args:
        model: Any decoder.
        tokens: `[B, prompt + steps]`, what the generated tokens turn out to be among them.
        bounds: The places before and after the tokens of each pass, or the length of the prompt.
        window: As `infer()` sets it; None leaves it off.
        cache: What the first pass is called with.

    Attributes:
        logits: `[B, prompt + steps, V]`.
        lengths: Tokens in the cache after each pass.
        cache: What the last pass left.
    """

    def __init__(self, model, tokens, bounds, window, cache=None):
        model.config._ring_window = window
        self.cache, self.lengths = DynamicCache() if cache is None else cache, []
        if isinstance(bounds, int):
            bounds = [0, *range(bounds, tokens.shape[1] + 1)]
        passes = [self._run(model, tokens, *each) for each in itertools.pairwise(bounds)]
        self.logits = torch.cat(passes, dim=1)

    def _run(self, model, tokens, start, end):
        mask = torch.ones(len(tokens), end, dtype=torch.long)
        with running(tokens.device, has_weights=True):
            output = model(
                input_ids=tokens[:, start:end],
                # The window's mask is of one token: several after the prompt come without any.
                attention_mask=mask if start == 0 or end == start + 1 else None,
                position_ids=torch.arange(start, end).expand(len(tokens), -1),
                past_key_values=self.cache,
                use_cache=True,
            )
        assert output.past_key_values is self.cache
        self.lengths.append(self.cache.get_seq_length())
        return output.logits


# -------------------------------------------------------------------------------------- the window


@pytest.mark.parametrize(
    ("number", "window", "cached", "keys", "slot"),
    [
        (1, None, 10, 11, None),
        (9, None, 18, 19, None),
        (1, 4, 10, 11, None),
        (4, 4, 13, 14, None),
        (5, 4, 14, 14, 0),
        (8, 4, 14, 14, 3),
        (9, 4, 14, 14, 0),
        (1, 1, 10, 11, None),
        (2, 1, 11, 11, 0),
        (3, 2, 12, 12, 0),
        (20_000, 128, 138, 138, 31),  # 19,999 = 156 x 128 + 31
    ],
)
def test_a_decode_step_knows_what_it_finds_and_what_it_overwrites(
    number, window, cached, keys, slot
):
    step = CacheStep(10, number, window)
    assert (step.cached_tokens, keys_of(step), step.slot) == (cached, keys, slot)
    assert step.position == 9 + number


@torch.no_grad()
def recomputed(model, tokens, prompt, window):
    """Logits of one pass over all tokens, without a cache, under the mask of the window.

    A query may look at all of the prompt before it, and at the last W generated tokens.
    """
    batch, length = tokens.shape
    query, key = torch.arange(length)[:, None], torch.arange(length)
    mask = (key <= query) & ((key < prompt) | (query - key < (window or length)))
    model.config._ring_window = None
    mask = mask.long().expand(batch, 1, -1, -1)
    return model(tokens, attention_mask=mask, use_cache=False).logits


@sampled("seed", range(8), every(3))
def test_the_window_is_the_mask_of_the_prompt_and_the_last_generated_tokens(seed):
    draw = random.Random(seed)
    window, prompt = draw.choice([1, 2, 4, 5]), draw.choice([1, 2, 5, 9])
    model = decoder(num_key_value_heads=draw.choice([1, 2, 4]), **DENSE)
    tokens = tokens_of(draw.randint(1, 3), prompt + 4 * window + 3, seed)
    generation = Generation(model, tokens, prompt, window)
    got, unbounded = generation.logits, recomputed(model, tokens, prompt, None)
    torch.testing.assert_close(got, recomputed(model, tokens, prompt, window), **CLOSE)
    first = prompt + window  # step W + 1 is the first that no longer sees a generated token
    torch.testing.assert_close(got[:, :first], unbounded[:, :first], **CLOSE)
    assert ((got - unbounded)[:, first:].abs().amax(-1) > 1e-3).all()
    assert generation.lengths == [prompt + min(step, window) for step in range(4 * window + 4)]


@torch.no_grad()
def steps_over(model, tokens, cache, positions):
    """Logits of the last of several steps that share a cache."""
    for position in positions:
        step, place = tokens[:, position : position + 1], torch.tensor([[position]])
        logits = model(step, position_ids=place, past_key_values=cache).logits
    return logits


@torch.no_grad()
def test_a_window_holds_for_the_reference_s_own_cache():
    model, tokens = decoder(), tokens_of(2, 12)
    expected = Generation(model, tokens, 5, WINDOW)
    got = Generation(model, tokens, 5, WINDOW, GrowingCache())
    assert got.lengths == expected.lengths
    assert torch.equal(got.logits, expected.logits)


def test_what_lies_in_the_cache_before_the_first_step_is_the_prompt():
    model, tokens = decoder(**DENSE), tokens_of(1, 12)
    cache = Generation(model, tokens[:, :6], 6, None).cache
    model.config._ring_window = WINDOW
    logits = steps_over(model, tokens, cache, range(6, 12))
    assert cache.get_seq_length() == 6 + WINDOW
    torch.testing.assert_close(logits, recomputed(model, tokens, 6, WINDOW)[:, -1:], **CLOSE)


def keys_of(step):
    """Keys that a step attends to: as many as the next one finds."""
    return dataclasses.replace(step, number=step.number + 1).cached_tokens


def state_of(cache):
    """Shapes, the prompt's length, and what each of three layers overwrites next.

    That is the first slot where none was written yet.
    """
    shapes = [part.shape for part in (*cache.key_cache, *cache.value_cache)]
    written = getattr(cache, "_ring_pos", {})
    return shapes, cache._prefill_length, [written.get(layer, 0) for layer in range(3)]


@pytest.mark.parametrize("vendor", [False, pytest.param(True, marks=IN_VENDOR)])
def test_a_cache_is_made_as_real_steps_leave_it(vendor):
    model = decoder(vendor=vendor)
    first = Generation(model, tokens_of(1, 5), 5, WINDOW).cache
    for number in (2, WINDOW, WINDOW + 1, WINDOW + 2, 2 * WINDOW + 1):
        real = Generation(model, tokens_of(1, 5 + number - 1), 5, WINDOW).cache
        made = UNLIMITED_OCR.decode_cache(first, CacheStep(5, number, WINDOW))
        assert state_of(made) == state_of(real)
        assert state_of(made)[2] == [(number - 1) % WINDOW * (number > WINDOW)] * 3
    plain = DEFAULT.decode_cache(first, CacheStep(5, 9))
    assert (plain.get_seq_length(), hasattr(plain, "_ring_pos")) == (5 + 8, False)


# ---------------------------------------------------------------------- what is built, what is not


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (REFERENCE, "flash_attention_2.*known: eager"),
        pytest.param(VENDOR_UNLIMITED, "mha_flash_attention_2", marks=IN_VENDOR),
    ],
)
def test_flash_attention_that_a_model_lacks_is_refused(path, message):
    with pytest.raises(ModelCodeError, match=message):
        load(path, None, flash_attention=True)


def test_latent_attention_keeps_its_own_classes_and_knows_no_window():
    kinds = {"mha_eager", "mla_eager", "mla_flash_attention_2"}
    assert modeling_deepseekv2.ATTENTION_CLASSES.keys() == kinds
    latent = {"use_mla": True, "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": None,
              "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}  # fmt: skip
    generation = Generation(decoder(**latent), tokens_of(1, 14), 4, WINDOW)
    assert generation.lengths == list(range(4, 15))


@pytest.mark.exhaustive
def test_the_window_is_off_unless_it_is_asked_for():
    assert load(REFERENCE, None).sliding_window is None
    model = load(REFERENCE, 7)
    assert (model.sliding_window, model.module.config._ring_window) == (7, 7)
    assert model.module.model.layers[0].self_attn.config is model.module.config


# --------------------------------------------------------------------------------- as it is traced


SQUARE = {"page": (9, 9), "crop_mode": False, "image_size": 128}
PAGE = UNLIMITED_OCR.plan(**SQUARE, text_tokens=3)
WHOLE = {
    "num_hidden_layers": 2, "intermediate_size": 64, "moe_intermediate_size": 32,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "vocab_size": 64,
}  # fmt: skip
"""The vision side is as large as ever: the vendor's code does not ask the config."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("window", "batch"), [(None, 1), (1, 2), (WINDOW, 1), (WINDOW, 2)])
def test_a_step_over_a_made_cache_is_that_step_of_the_generation(window, batch):
    page = dataclasses.replace(PAGE, batch_size=batch)
    model = load(REFERENCE, window, config=WHOLE)
    generated = traced(model, page, step_numbers=range(3 * WINDOW + 1)).decode_steps
    for number in (1, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW):
        assert traced(model, page, step_numbers=(number,)).decode_steps == (generated[number],)


# --------------------------------------------------------------------------------------- its modes


def page_in(mode):
    return PageRequest(architecture=UNLIMITED_OCR, mode=mode, text_tokens=4).workload


@pytest.mark.parametrize(
    ("mode", "prompt"),
    [
        ("tiny", 8 * 9 + 1 + 4),  # 77, as SGLang counts it (sgl-project/sglang pull 29186)
        ("small", 10 * 11 + 1 + 4),
        ("base", 16 * 17 + 1 + 4),  # 277, likewise
        ("large", 20 * 21 + 1 + 4),
    ],
)
def test_a_mode_of_one_view_has_rows_of_tokens_with_newlines_and_a_separator(mode, prompt):
    assert (page_in(mode).seq_len, len(page_in(mode).views)) == (prompt, 1)


# ------------------------------------------------------------------------------- recorded workloads


BYTES_A_TOKEN = 2 * 12 * 10 * 128 * 2
DIRECTORIES = [
    pytest.param(REFERENCE, id="reference"),
    pytest.param(VENDOR_UNLIMITED, id="vendor", marks=IN_VENDOR),
]


def workload_of(golden):
    keys = ("base_size", "image_size", "crop_mode", "text_tokens")
    sizes = {key: golden[key] for key in keys}
    return UNLIMITED_OCR.plan(page=golden["page"], prompt_pages=golden["pages"], **sizes)


def recorded(golden):
    """Windows and what was recorded of decode steps under each."""
    without = [golden["decode_step_1000_without_ring"]]
    return (128, golden["decode_steps"]), (None, without)


def witnessed(model, inputs, cache):
    """What `FlopCounterMode` counts over a pass: in all, and in the head; and the cache it left.

    The inputs are made where their values are followed: the model's code asks for some.
    """
    with running(META):
        arguments = inputs()
        with FlopCounterMode(display=False) as counter:
            cache = model.module(**arguments, past_key_values=cache).past_key_values
    counts = counter.get_flop_counts().items()
    (head,) = {sum(flops.values()) for name, flops in counts if name.endswith("lm_head")}
    return (counter.get_total_flops(), head), cache


@pytest.mark.exhaustive
@pytest.mark.parametrize("golden", GOLDENS, ids=lambda g: f"{g['grid']}-{g['pages']}")
@pytest.mark.parametrize("path", DIRECTORIES)
def test_the_outside_witness_counts_what_was_recorded(path, golden):
    page, prompt = workload_of(golden), golden["seq_len"]
    for window, rows in recorded(golden):
        model = load(path, window)
        counts, cache = witnessed(
            model, lambda: UNLIMITED_OCR.prefill_inputs(META, torch.bfloat16, page), DynamicCache()
        )
        assert counts == (golden["matrix_flops"]["total"], golden["matrix_flops"]["lm_head"])
        for row in rows:
            step = CacheStep(prompt, row["step"], window)
            found = UNLIMITED_OCR.decode_cache(cache, step)
            assert found.get_seq_length() == row["cache_before"]
            counts, after = witnessed(
                model, lambda at=step.position: UNLIMITED_OCR.decode_inputs(META, page, at), found
            )
            assert counts == (row["total"], row["lm_head"])
            assert after.get_seq_length() == row["cache_after"] == keys_of(step)
            assert keys_of(step) == row["keys_attended"]
            held = sum(part.numel() * part.element_size() for pair in after for part in pair)
            assert held == row["kv_cache_bytes_bf16"] == BYTES_A_TOKEN * keys_of(step)


# ------------------------------------------------------------- beside the vendor's files: logits


BOTH = VENDOR_UNLIMITED, REFERENCE


@pytest.mark.vendor
@needs_vendor_unlimited
class TestVendor:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
    @pytest.mark.parametrize("window", [None, 1, 4])
    @pytest.mark.parametrize("heads", [1, 4])
    def test_every_pass_of_a_generation_gives_the_same_logits(self, dtype, window, heads):
        draw = random.Random(f"{window} {heads}")
        prompt, batch = draw.randint(2, 12), draw.randint(1, 3)
        steps = 4 * (window or 4) + 2
        expected = [prompt + min(k, window or k) for k in range(steps + 1)]
        self.compare(tokens_of(batch, prompt + steps, 7), prompt, window, expected, dtype, heads)

    @pytest.mark.parametrize("window", [None, 3])
    def test_several_tokens_at_once_after_the_prompt_are_handled_alike(self, window):
        self.compare(tokens_of(2, 18, 3), [0, 5, 7, 8, 10, 13, 14, 18], window)

    def compare(self, tokens, bounds, window, lengths=None, dtype=torch.float32, heads=2):
        theirs, ours = (
            Generation(
                decoder(dtype, vendor=vendor, num_key_value_heads=heads), tokens, bounds, window
            )
            for vendor in (True, False)
        )
        assert torch.equal(ours.logits, theirs.logits)
        assert ours.lengths == theirs.lengths == (lengths or ours.lengths)
        for own, other in zip(ours.cache, theirs.cache, strict=True):
            assert all(map(torch.equal, own, other))
        assert vars(ours.cache).get("_prefill_length") == vars(theirs.cache).get("_prefill_length")

    def test_pages_in_and_tokens_out_give_the_same_logits_on_the_whole_model(self):
        options = {"device": CPU, "dtype": torch.float32, "config": WHOLE}
        models = [load(path, 3, **options).module for path in BOTH]
        models[1].load_state_dict(drawn(models[0]).state_dict(), assign=True)
        generator = torch.Generator().manual_seed(1)
        for page in (
            UNLIMITED_OCR.plan(**SQUARE, prompt_pages=3, text_tokens=4),
            UNLIMITED_OCR.plan(page=(1280, 640), base_size=128, image_size=64, text_tokens=4),
        ):
            inputs = UNLIMITED_OCR.prefill_inputs(CPU, torch.float32, page)
            noise = [torch.rand(v.shape, generator=generator) for v in inputs["images"][0]]
            crops, _ = inputs["images"][0]
            inputs["images"] = [(noise[0] if crops.any() else crops, noise[1])]
            found = []
            for model in models:
                with running(CPU, has_weights=True):
                    cache = DynamicCache()
                    logits = [model(**inputs, past_key_values=cache).logits]
                    for number in range(1, 9):
                        step = CacheStep(page.seq_len, number, 3)
                        arguments = UNLIMITED_OCR.decode_inputs(CPU, page, step.position)
                        arguments["input_ids"] += number
                        logits.append(model(**arguments, past_key_values=cache).logits)
                        assert cache.get_seq_length() == keys_of(step)
                found.append(torch.cat(logits, dim=1))
            assert torch.equal(*found)
