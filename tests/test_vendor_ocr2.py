"""The reference of DeepSeek-OCR-2 against a vendor checkout's own files, which stay untouched.

`pytest -m vendor` runs these tests, on the files of DSOCR_VENDOR_DIR_OCR2.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from functools import partial

import pytest
import torch
from alive_tensors import Alive
from ocr2_pages import (
    GOLDENS,
    OCR2,
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
from vendor_checkout import VENDOR_OCR2, assert_same_passes, digests, needs_vendor_ocr2

from dsocr_analyze.model.forward import running
from dsocr_analyze.model.generation import flash_attention

pytestmark = [pytest.mark.vendor, needs_vendor_ocr2]

META, CPU = torch.device("meta"), torch.device("cpu")


@pytest.fixture(scope="module", params=[False, True], ids=["eager", "flash"])
def both(request):
    before = digests(VENDOR_OCR2)
    yield (
        loaded(VENDOR_OCR2, flash=request.param),
        loaded(REFERENCE, flash=request.param),
    )
    assert digests(VENDOR_OCR2) == before


def layout(model):
    """Shapes of parameters, class names of modules, and shapes and types of buffers, by path."""
    return (
        {name: p.shape for name, p in model.module.named_parameters()},
        {name: type(module).__name__ for name, module in model.module.named_modules()},
        {name: (b.shape, b.dtype) for name, b in model.module.named_buffers()},
    )


def test_modules_parameters_and_buffers_are_the_vendors(both):
    theirs, ours = map(layout, both)
    assert ours == theirs


@pytest.mark.parametrize("golden", GOLDENS, ids=list(golden_ids()))
def test_the_vendors_files_count_what_was_recorded(both, golden):
    theirs, _ = both
    traces = traced(theirs, workload_of(golden))
    assert flops_by_stage(traces) == golden["matrix_flops"]
    assert decode_flops(traces) == golden["decode_step_matrix_flops"]


def test_the_outside_witness_counts_the_same_on_the_vendors_files(both):
    theirs, golden = both[0], GOLDENS[1]
    if theirs.attention != "eager":
        pytest.skip("FlopCounterMode knows nothing of the package flash-attn")
    with running(META), FlopCounterMode(display=False) as counter:
        theirs.module(**OCR2.prefill_inputs(META, theirs.dtype, workload_of(golden)))
    assert counter.get_total_flops() == golden["matrix_flops"]["total"]


WORKLOADS = {
    "tiles": {"grid": (2, 3)},
    "whole": {},
    "one view": {"crop_mode": False},
    "batch": {"grid": (1, 2), "batch_size": 2, "text_tokens": 4},
    "odd sizes": {"grid": (2, 1), "base_size": 1000, "image_size": 783, "batch_size": 2},
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_reference_runs_the_same_operators(both, name):
    theirs, ours = (traced(model, laid_out(**WORKLOADS[name])) for model in both)
    assert_same_passes(ours, theirs)


def test_as_many_bytes_are_alive_after_every_operator(both):
    """With a page without tiles among others: what is held of the one before it stays.

    The kinds of tokens, which the encoder makes on the host, are no memory of the device: there the
    vendor's model keeps the last ones for good.
    """
    workload = laid_out(grid=(2, 1), batch_size=3, text_tokens=3)

    def curve(model):
        with running(META, flash_attention):
            inputs = OCR2.prefill_inputs(META, model.dtype, workload)
            blank = torch.zeros(1, 3, 64, 64, device=META)
            inputs["images"][1] = (blank, inputs["images"][1][1])
            with Alive(META) as alive:
                model.module(**inputs)
            return alive.curve

    theirs, ours = map(curve, both)
    assert len(theirs) > 3000
    assert ours == theirs


# -------------------------------------------------------------- values, of models that fit a CPU


SMALL_SAM = {"width": 24, "layers": 2, "heads": 2, "global_attn_indexes": [1]}
SMALL_ENCODER = {"layers": 2, "intermediate_size": 96}
SMALL_DECODER = {
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "moe_intermediate_size": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "vocab_size": 128,
}


def small_vision():
    vision = json.loads((REFERENCE / "config.json").read_text())["vision_config"]
    vision["width"]["sam_vit_b"].update(SMALL_SAM)
    vision["width"]["qwen2-0-5b"].update(SMALL_ENCODER)
    return vision


@pytest.fixture
def small_pair(request, monkeypatch):
    """The vendor's model and ours on the CPU, with the same weights, by type.

    The vendor writes the sizes of SAM and of the encoder into the code; its builders take others.
    """
    dtype = request.param
    package = type(loaded(VENDOR_OCR2).module).__module__.rpartition(".")[0]
    model_file, encoder_file = (
        sys.modules[f"{package}.{name}"] for name in ("modeling_deepseekocr2", "deepencoderv2")
    )
    sam = partial(
        encoder_file._build_sam,
        encoder_embed_dim=SMALL_SAM["width"],
        encoder_depth=SMALL_SAM["layers"],
        encoder_num_heads=SMALL_SAM["heads"],
        encoder_global_attn_indexes=SMALL_SAM["global_attn_indexes"],
    )
    encoder = partial(
        encoder_file.build_qwen2_decoder_as_encoder,
        decoder_layer=SMALL_ENCODER["layers"],
        intermediate_size=SMALL_ENCODER["intermediate_size"],
    )
    monkeypatch.setattr(model_file, "build_sam_vit_b", sam)
    monkeypatch.setattr(model_file, "build_qwen2_decoder_as_encoder", encoder)
    theirs = loaded(VENDOR_OCR2, device="cpu", dtype=dtype, **SMALL_DECODER)
    ours = loaded(
        REFERENCE, device="cpu", dtype=dtype, vision_config=small_vision(), **SMALL_DECODER
    )
    weights = copy.deepcopy(theirs.module.state_dict())
    generator = torch.Generator().manual_seed(1)
    for weight in weights.values():
        weight.normal_(0.0, 0.06, generator=generator)
    for model in (theirs, ours):
        model.module.load_state_dict(weights)
    return theirs, ours


def drawn_page(model, workload, seed):
    """What a prefill pass is called with, pixels and text at random."""
    generator = torch.Generator().manual_seed(seed)
    inputs = OCR2.prefill_inputs(CPU, model.dtype, workload)
    for pages in inputs["images"]:
        for pixels in pages:
            if bool(pixels.any()):
                pixels.normal_(generator=generator)
    inputs["input_ids"].random_(0, SMALL_DECODER["vocab_size"], generator=generator)
    return inputs


@pytest.mark.parametrize("small_pair", [torch.float32, torch.bfloat16], indirect=True, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_the_same_weights_give_the_same_logits(small_pair, seed):
    draw = random.Random(seed)
    workload = laid_out(
        grid=draw.choice([(1, 2), (2, 1)]) if seed else (1, 1),
        base_size=draw.choice([768, 1024]),
        text_tokens=draw.randint(2, 8),
        batch_size=2 - seed,
    )
    logits = []
    for model in small_pair:
        inputs = drawn_page(model, workload, seed)
        with running(CPU, has_weights=True):
            prefill = model.module(**inputs)
            step = {"input_ids": inputs["input_ids"][:, :1], "use_cache": True}
            step["attention_mask"] = torch.ones(workload.batch_size, workload.seq_len + 1)
            step["position_ids"] = torch.full((workload.batch_size, 1), workload.seq_len)
            decode = model.module(**step, past_key_values=prefill.past_key_values)
        logits.append((prefill.logits, decode.logits))
    theirs, ours = logits
    for own, other in zip(ours, theirs, strict=True):
        assert other.std() > 0.1
        assert torch.equal(own, other)


@pytest.mark.parametrize("small_pair", [torch.float32], indirect=True, ids=str)
def test_a_view_without_queries_is_refused_where_the_vendor_fails(small_pair):
    theirs, ours = small_pair
    for size in (704, 719, 784, 1040):
        inputs = drawn_page(ours, laid_out(base_size=size), 0)
        for model, error, message in (
            (theirs, UnboundLocalError, "param_img"),
            (ours, ValueError, "no queries"),
        ):
            with running(CPU, has_weights=True), pytest.raises(error, match=message):
                model.module(**inputs)
