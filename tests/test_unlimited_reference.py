"""Unlimited-OCR's window of generated tokens: masks, integers worked out by hand, and itself.

`test_reference_networks.py` has what it shares with the other networks.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from sampling import every, sampled
from test_golden import flops_by_stage, repeats_of
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache
from unlimited import META, REFERENCE, Generation, decoder, load, small, traced, workload
from vendor_checkout import VENDOR_UNLIMITED, needs_vendor_unlimited

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.architecture import CacheStep, lengthened
from dsocr_analyze.architectures.deepseek_ocr.reference.modeling_deepseekv2 import KeyValueCache
from dsocr_analyze.architectures.unlimited_ocr import UNLIMITED_OCR
from dsocr_analyze.architectures.unlimited_ocr.reference import modeling_deepseekv2
from dsocr_analyze.errors import ConfigError, ModelCodeError
from dsocr_analyze.model.forward import running
from dsocr_analyze.trace.summary import ledger_of
from dsocr_analyze.workload import ViewBatch

GOLDENS = json.loads((Path(__file__).parent / "data" / "unlimited_decode_steps.json").read_text())
WINDOW = 4
DENSE = {"n_routed_experts": None}
"""No router, whose choice a rounding may turn over where the order of sums differs."""
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def tokens_of(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(50, (batch, length), generator=generator)


def model_of(**config):
    return decoder(small(**config), torch.float32, vendor=False)


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
        (20_000, 128, 138, 138, 31),  # 19,999 = 156 x 128 + 31
    ],
)
def test_a_decode_step_knows_what_it_finds_and_what_it_overwrites(
    number, window, cached, keys, slot
):
    step = CacheStep(10, number, window)
    assert (step.cached_tokens, step.keys, step.slot) == (cached, keys, slot)
    assert step.position == 9 + number


# -------------------------------------------------------------------------------------- the window


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
    model = model_of(num_key_value_heads=draw.choice([1, 2, 4]), **DENSE)
    tokens = tokens_of(draw.randint(1, 3), prompt + 4 * window + 3, seed)
    generation = Generation(model, tokens, prompt, window)
    got, unbounded = generation.logits, recomputed(model, tokens, prompt, None)
    torch.testing.assert_close(got, recomputed(model, tokens, prompt, window), **CLOSE)
    first = prompt + window  # step W + 1 is the first that no longer sees a generated token
    torch.testing.assert_close(got[:, :first], unbounded[:, :first], **CLOSE)
    assert ((got - unbounded)[:, first:].abs().amax(-1) > 1e-3).all()
    assert generation.lengths == [prompt + min(step, window) for step in range(4 * window + 4)]


def test_without_a_window_every_token_stays():
    model, tokens = model_of(**DENSE), tokens_of(2, 12)
    generation = Generation(model, tokens, 5, None)
    torch.testing.assert_close(generation.logits, recomputed(model, tokens, 5, None), **CLOSE)
    assert generation.lengths == list(range(5, 13))
    assert not hasattr(generation.cache, "_prefill_length")


@torch.no_grad()
def steps_over(model, tokens, cache, positions):
    """Logits of the last of several steps that share a cache."""
    for position in positions:
        step, place = tokens[:, position : position + 1], torch.tensor([[position]])
        logits = model(step, position_ids=place, past_key_values=cache).logits
    return logits


def test_a_full_ring_is_written_in_place_at_the_oldest_slot():
    model, tokens, cache = model_of(), tokens_of(1, 5 + WINDOW + 2), DynamicCache()
    Generation(model, tokens[:, : 5 + WINDOW], 5, WINDOW, cache)
    parts = [*cache.key_cache, *cache.value_cache]
    before = [(part.data_ptr(), part.clone()) for part in parts]
    steps_over(model, tokens, cache, (5 + WINDOW, 6 + WINDOW))
    for (address, old), new in zip(before, [*cache.key_cache, *cache.value_cache], strict=True):
        assert new.data_ptr() == address
        changed = (old != new).any(-1).any(1)[0]
        assert changed.tolist() == [False] * 5 + [True, True, False, False]


@torch.no_grad()
def test_a_window_holds_for_pairs_and_the_reference_s_own_cache():
    model, tokens = model_of(), tokens_of(2, 12)
    expected = Generation(model, tokens, 5, WINDOW)
    got = Generation(model, tokens, 5, WINDOW, KeyValueCache())
    assert got.lengths == expected.lengths
    assert torch.equal(got.logits, expected.logits)
    first = model(tokens[:, :5]).past_key_values
    pairs = first.to_legacy_cache()
    again = model(tokens[:, 5:6], past_key_values=pairs).past_key_values
    # never pairs: the window's state is on the cache
    assert (type(first), type(again)) == (DynamicCache, DynamicCache)
    assert again.get_seq_length() == 6
    assert len(pairs[0][0][0, 0]) == 5


def test_what_lies_in_the_cache_before_the_first_step_is_the_prompt():
    model, tokens = model_of(**DENSE), tokens_of(1, 12)
    cache = Generation(model, tokens[:, :6], 6, None).cache
    model.config._ring_window = WINDOW
    logits = steps_over(model, tokens, cache, range(6, 12))
    assert cache.get_seq_length() == 6 + WINDOW
    torch.testing.assert_close(logits, recomputed(model, tokens, 6, WINDOW)[:, -1:], **CLOSE)


def slots_of(cache) -> list[int]:
    """What each of three layers overwrites next; the first slot where none was written yet."""
    written = getattr(cache, "_ring_pos", {})
    return [written.get(layer, 0) for layer in range(3)]


def test_a_cache_is_made_as_real_steps_leave_it():
    model = model_of()
    first = Generation(model, tokens_of(1, 5), 5, WINDOW).cache
    for number in (2, WINDOW, WINDOW + 1, WINDOW + 2, 2 * WINDOW + 1):
        real = Generation(model, tokens_of(1, 5 + number - 1), 5, WINDOW).cache
        made = UNLIMITED_OCR.decode_cache(first, CacheStep(5, number, WINDOW))
        assert [part.shape for part in made.key_cache] == [part.shape for part in real.key_cache]
        assert made._prefill_length == real._prefill_length
        assert slots_of(made) == slots_of(real) == [(number - 1) % WINDOW * (number > WINDOW)] * 3
    plain = lengthened(first, CacheStep(5, 9))
    assert (plain.get_seq_length(), hasattr(plain, "_ring_pos")) == (5 + 8, False)


# ---------------------------------------------------------------------- what is built, what is not


@pytest.mark.parametrize(
    ("window", "options", "error", "message"),
    [
        (None, {"flash_attention": True}, ModelCodeError, "flash_attention_2.*known: eager"),
        (0, {}, ConfigError, "sliding window of 0 .* give 1 or more"),
        (-3, {}, ConfigError, "sliding window of -3 .* give 1 or more"),
    ],
)
def test_what_cannot_be_built_is_refused(window, options, error, message):
    with pytest.raises(error, match=message):
        load(REFERENCE, window, **options)


def test_latent_attention_keeps_its_own_classes_and_knows_no_window():
    assert modeling_deepseekv2.ATTENTION_CLASSES.keys() == {
        "mha_eager",
        "mla_eager",
        "mla_flash_attention_2",
    }
    latent = {"use_mla": True, "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": None,
              "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}  # fmt: skip
    generation = Generation(model_of(**latent), tokens_of(1, 14), 4, WINDOW)
    assert generation.lengths == list(range(4, 15))


@pytest.mark.exhaustive
def test_the_window_is_off_unless_it_is_asked_for():
    assert load(REFERENCE, None).sliding_window is None
    model = load(REFERENCE, 7)
    assert (model.sliding_window, model.module.config._ring_window) == (7, 7)
    assert model.module.model.layers[0].self_attn.config is model.module.config


# --------------------------------------------------------------------------------- as it is traced


PAGE = workload((ViewBatch(1, 128),), visual_tokens=7, text_tokens=3, base_size=128)
SMALL_DECODER = {
    "num_hidden_layers": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 64,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("window", "batch"), [(None, 1), (1, 2), (WINDOW, 1), (WINDOW, 2)])
def test_a_step_over_a_made_cache_is_that_step_of_the_generation(window, batch):
    page = workload((ViewBatch(1, 128),), 7, 3, base_size=128, batch_size=batch)
    model = load(REFERENCE, window, config=SMALL_DECODER)
    generated = traced(model, page, step_numbers=range(3 * WINDOW + 1)).decode_steps
    for number in (1, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW):
        assert traced(model, page, step_numbers=(number,)).decode_steps == (generated[number],)


@pytest.mark.exhaustive
def test_a_step_writes_in_place_from_the_window_on():
    model = load(REFERENCE, WINDOW, config=SMALL_DECODER)
    steps = traced(model, PAGE, step_numbers=(0, WINDOW - 1, WINDOW, 1000)).decode_steps
    slot_bytes = 10 * 128 * 2
    for trace, in_place in zip(steps, (False, False, True, True), strict=True):
        work = {
            operator: [
                (kernel.work.bytes_read, kernel.work.bytes_written)
                for kernel in trace.kernels
                if kernel.path.endswith("self_attn") and kernel.operator == operator
            ]
            for operator in ("copy", "cat")
        }
        appended = [written for _, written in work["cat"] if written > slot_bytes]
        # key and value in two layers
        assert (len(work["copy"]), len(appended)) == ((4, 0) if in_place else (0, 4))
        assert set(work["copy"]) <= {(slot_bytes, slot_bytes)}
        assert ledger_of(trace).unknown == {}
    *_, first, late = steps
    assert (first.kernels, first.peak) == (late.kernels, late.peak)


@pytest.mark.exhaustive
def test_declared_repetition_changes_nothing():
    model, steps = load(REFERENCE, WINDOW), (0, WINDOW - 1, WINDOW, WINDOW + 1, 100)
    alike = repeats_of(load(DEFAULT.reference, None))
    repeated = traced(model, PAGE, step_numbers=steps, repeats=alike)
    assert repeated == traced(model, PAGE, step_numbers=steps)


# ------------------------------------------------------------------------------- recorded workloads


BYTES_A_TOKEN = 2 * 12 * 10 * 128 * 2


def workload_of(golden):
    columns, rows = golden["grid"]
    whole = golden["base_size"] if golden["crop_mode"] else golden["image_size"]
    local = (ViewBatch(columns * rows, golden["image_size"]),) if columns * rows > 1 else ()
    return workload(
        (*local, ViewBatch(golden["pages"], whole)),
        golden["visual_tokens"],
        golden["text_tokens"],
        base_size=golden["base_size"],
        grid=(columns, rows),
    )


def recorded(golden):
    """Windows and what was recorded of decode steps under each."""
    return (
        (128, golden["decode_steps"]),
        (None, [golden["decode_step_1000_without_ring"]]),
    )


DIRECTORIES = [
    pytest.param(REFERENCE, id="reference"),
    pytest.param(VENDOR_UNLIMITED, id="vendor", marks=[pytest.mark.vendor, needs_vendor_unlimited]),
]


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
            model, lambda: DEFAULT.prefill_inputs(META, torch.bfloat16, page), DynamicCache()
        )
        assert counts == (golden["matrix_flops"]["total"], golden["matrix_flops"]["lm_head"])
        for row in rows:
            step = CacheStep(prompt, row["step"], window)
            found = UNLIMITED_OCR.decode_cache(cache, step)
            assert found.get_seq_length() == row["cache_before"]
            counts, after = witnessed(
                model, lambda at=step.position: DEFAULT.decode_inputs(META, page, at), found
            )
            assert counts == (row["total"], row["lm_head"])
            assert after.get_seq_length() == row["cache_after"] == step.keys
            assert step.keys == row["keys_attended"]
            held = sum(part.numel() * part.element_size() for pair in after for part in pair)
            assert held == row["kv_cache_bytes_bf16"] == BYTES_A_TOKEN * step.keys


@pytest.mark.exhaustive
@pytest.mark.parametrize("golden", GOLDENS, ids=lambda g: f"{g['grid']}-{g['pages']}")
@pytest.mark.parametrize("path", DIRECTORIES)
def test_the_trace_counts_what_was_recorded(path, golden):
    page = workload_of(golden)
    assert page.seq_len == golden["seq_len"]
    for window, rows in recorded(golden):
        model = load(path, window)
        forms, numbers = UNLIMITED_OCR.forms, [row["step"] - 1 for row in rows]
        # Which changes nothing: a test above says so. Of other code nothing is declared.
        alike = forms.repeats(forms.dimensions(model.directory.config))
        traces = traced(
            model, page, step_numbers=numbers, repeats=alike if path == REFERENCE else None
        )
        assert flops_by_stage(traces) == golden["matrix_flops"]
        assert traces.kv_cache_bytes == BYTES_A_TOKEN * page.seq_len
        assert ledger_of(traces.prefill, *traces.decode_steps).unknown == {}
        for step, row in zip(traces.decode_steps, rows, strict=True):
            assert step_flops(step, "") == row["total"]
            assert step_flops(step, "lm_head") == row["lm_head"]


def step_flops(step, path: str) -> int:
    """Matrix FLOPs of the modules whose path starts so."""
    return sum(kernel.total.matrix_flops for kernel in step.kernels if kernel.path.startswith(path))
