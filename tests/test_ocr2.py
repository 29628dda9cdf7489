"""The reference of DeepSeek-OCR-2: its counts by hand, and beside a vendor checkout's own files.

`pytest -m vendor` runs the second half, on the files of DSOCR_VENDOR_DIR_OCR2, which stay
untouched. `test_reference_networks.py` has what it shares with the other networks.
"""

import copy
import dataclasses
import json
import random
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from vendor_checkout import VENDOR_OCR2, needs_vendor_ocr2

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.loading import load_model
from dsocr_analyze.trace.passes import trace_passes

OCR2 = ARCHITECTURES["deepseek-ocr-2"]
GOLDENS = json.loads((Path(__file__).parent / "data" / "golden2_ocr2_workloads.json").read_text())
META, CPU = torch.device("meta"), torch.device("cpu")


def loaded(path=OCR2.reference, *, device=META, dtype=torch.bfloat16, flash=False, **config):
    directory = ModelDirectory.read(path)
    directory = dataclasses.replace(directory, config={**directory.config, **config})
    options = {"flash_attention": flash, "trust_remote_code": True}
    return load_model(directory, device=device, dtype=dtype, **options)


def laid_out(
    *, grid=(1, 1), base_size=1024, image_size=768, crop_mode=True, text_tokens=10, batch_size=1
):  # fmt: skip
    """Tiles, global view and separator, without newlines; crop off: one view of `image_size`."""
    whole = base_size if crop_mode else image_size
    page = OCR2.page_with((base_size, whole, image_size, *grid))
    lengths = {"text_tokens": text_tokens, "batch_size": batch_size, "max_new_tokens": 2}
    return dataclasses.replace(page, **lengths)


def workload_of(golden):
    keys = ("grid", "base_size", "image_size", "crop_mode", "text_tokens")
    return laid_out(**{key: golden[key] for key in keys})


def traced(model, workload):
    return trace_passes(model, workload, OCR2)


# ----------------------------------------------------------------------------------------- by hand


@pytest.mark.exhaustive
def test_the_mask_is_so_many_writes_for_every_view():
    """1 + 2 n a view: a block of image tokens, then two parts of a row for every query."""
    workload = laid_out(grid=(1, 2), base_size=1024, image_size=768)
    kernels = [
        kernel
        for kernel in traced(loaded(), workload).prefill.kernels
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


# -------------------------------------------------------------------- beside the vendor's own files

PATHS_OF_FILES = [
    pytest.param(OCR2.reference, marks=pytest.mark.exhaustive, id="reference"),
    pytest.param(VENDOR_OCR2, marks=[pytest.mark.vendor, needs_vendor_ocr2], id="vendor"),
]


@pytest.mark.parametrize("path", PATHS_OF_FILES)
def test_the_outside_witness_counts_what_was_recorded(path):
    model, golden = loaded(path), GOLDENS[4]
    with running(META), FlopCounterMode(display=False) as counter:
        model.module(**OCR2.prefill_inputs(META, model.dtype, workload_of(golden)))
    assert counter.get_total_flops() == golden["matrix_flops"]["total"]


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


@pytest.fixture
def small_pair(request, monkeypatch):
    """The vendor's model and ours on the CPU, with the same weights, by type.

    The vendor writes the sizes of SAM and of the encoder into the code; its builders take others.
    """
    options = {"device": CPU, "dtype": request.param, **SMALL_DECODER}
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
    vision = copy.deepcopy(ModelDirectory.read(OCR2.reference).config["vision_config"])
    vision["width"]["sam_vit_b"].update(SMALL_SAM)
    vision["width"]["qwen2-0-5b"].update(SMALL_ENCODER)
    pair = loaded(VENDOR_OCR2, **options), loaded(vision_config=vision, **options)
    weights = copy.deepcopy(pair[0].module.state_dict())
    generator = torch.Generator().manual_seed(1)
    for weight in weights.values():
        weight.normal_(0.0, 0.06, generator=generator)
    for model in pair:
        model.module.load_state_dict(weights)
    return pair


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


@pytest.mark.vendor
@needs_vendor_ocr2
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
    for other, own in zip(*logits, strict=True):
        assert other.std() > 0.1
        assert torch.equal(own, other)


@pytest.mark.vendor
@needs_vendor_ocr2
@pytest.mark.parametrize("small_pair", [torch.float32], indirect=True, ids=str)
def test_a_view_without_queries_is_refused_where_the_vendor_fails(small_pair):
    failures = (UnboundLocalError, "param_img"), (ValueError, "no queries")
    for size in (704, 719, 784, 1040):
        for model, (error, message) in zip(small_pair, failures, strict=True):
            inputs = drawn_page(model, laid_out(base_size=size), 0)
            with running(CPU, has_weights=True), pytest.raises(error, match=message):
                model.module(**inputs)
