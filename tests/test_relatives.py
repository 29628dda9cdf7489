"""DeepSeek-OCR-2 and Unlimited-OCR: both engines against records, and against each other."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import every, first, named, sampled

from dsocr_analyze.analytic import page_figures
from dsocr_analyze.architectures import ARCHITECTURES, plan_workload
from dsocr_analyze.architectures.deepseek_ocr_2 import EncoderDimensions, qwen2_encoder
from dsocr_analyze.architectures.deepseek_ocr_2.reference import deepencoderv2
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.passes import step
from dsocr_analyze.architectures.views import tokens_per_side
from dsocr_analyze.dtypes import BFLOAT16, FLOAT32, dtype_named
from dsocr_analyze.errors import ConfigError, WorkloadError
from dsocr_analyze.hardware import device
from dsocr_analyze.kernels import NO_WORK, Work, total_work
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import building
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.tape import Tape
from dsocr_analyze.timing.runtimes import SERVERS
from dsocr_analyze.timing.serving import ServedModel
from dsocr_analyze.trace.module_calls import trace_module

META = torch.device("meta")
DATA = Path(__file__).parent / "data"
OCR2, UNLIMITED = (ARCHITECTURES[name] for name in ("deepseek-ocr-2", "unlimited-ocr"))
DIRECTORY = {each.name: ModelDirectory.read(each.reference) for each in (OCR2, UNLIMITED)}
GOLDENS = [
    pytest.param(name, row, id=f"{name}-{number}")
    for name, file in (
        (OCR2.name, "golden2_ocr2_workloads.json"),
        (UNLIMITED.name, "golden2_unlimited_workloads.json"),
    )
    for number, row in enumerate(json.loads((DATA / file).read_text()))
]


def planned(name, row, **more):
    sizes = {key: row[key] for key in ("base_size", "image_size", "crop_mode", "text_tokens")}
    pages = row.get("pages", 1)
    return plan_workload(
        architecture=name, page=tuple(row["page"]), prompt_pages=pages, **sizes, **more
    )


def with_changes(name, **changes):
    """The reference's directory with a changed config, the copies of its keys included."""
    directory = DIRECTORY[name]
    config = copy.deepcopy(directory.config)
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
        if key in config["language_config"]:
            config["language_config"][key] = config[key]
    return dataclasses.replace(directory, config=config)


# --- recorded counts -------------------------------------------------------------------------


@sampled(("name", "row"), GOLDENS, first(1))
@sampled("engine", ["trace", "analytic"], named("trace"))
def test_golden_workloads(name, row, engine):
    workload = planned(name, row, max_new_tokens=2)
    assert list(workload.grid) == row["grid"]
    assert (workload.visual_tokens, workload.seq_len) == (row["visual_tokens"], row["seq_len"])
    if engine == "trace":
        figures, agreement = DeepSeekOCRSession.from_directory(DIRECTORY[name]).figures(workload)
        assert agreement.agrees
        assert figures.warnings == ()
    else:
        figures = page_figures(DIRECTORY[name], workload)
    counted = {stage: each.work.matrix_flops for stage, each in figures.stages.items()}
    golden = row["matrix_flops"]
    layers_and_head = counted.pop("prefill")
    step = counted.pop("decode")
    assert counted == {stage: golden[stage] for stage in counted}
    assert layers_and_head == golden["layers"] + golden["lm_head"]
    assert figures.prefill_pass.matrix_flops == golden["total"]
    assert step == row["decode_step_matrix_flops"]["total"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("row", [p.values[1] for p in GOLDENS if p.values[0] == UNLIMITED.name])
@pytest.mark.parametrize("is_on", [True, False])
def test_golden_decode_steps(row, is_on):
    directory = DIRECTORY[UNLIMITED.name]
    config = directory.config if is_on else UNLIMITED.without_window(directory.config)
    dimensions = UNLIMITED.forms.dimensions(config)
    for golden in row["decode_steps"] if is_on else [row["decode_step_1000_without_ring"]]:
        number = golden["step"]
        upto, before = (
            UNLIMITED.forms.compose(
                dimensions, planned(UNLIMITED.name, row, max_new_tokens=steps + 1), BFLOAT16, False
            ).batch
            for steps in (number, number - 1)
        )
        assert upto.minus(before).matrix_flops == golden["total"]
        memory = UNLIMITED.forms.memory(
            dimensions, planned(UNLIMITED.name, row, max_new_tokens=number + 1), BFLOAT16, False
        )
        assert memory.kv_cache_bytes == golden["kv_cache_bytes_bf16"]


@pytest.mark.parametrize(
    ("architecture", "file", "grids"),
    [(OCR2, "golden2_ocr2_grids.json", 13), (UNLIMITED, "golden2_unlimited_grids.json", 118)],
    ids=["ocr2", "unlimited"],
)
def test_crop_grids(architecture, file, grids):
    rows = np.array(json.loads((DATA / file).read_text()))
    assert len(rows) >= 100
    for width, height, columns, down in rows.tolist():
        assert architecture.plan(page=(width, height)).grid == (columns, down)
    codes = architecture.forms.crop_grids.codes(rows[:, 0], rows[:, 1])
    found = np.stack(architecture.forms.crop_grids.columns_and_rows(codes), 1)
    assert np.array_equal(found, rows[:, 2:])
    found = {architecture.plan(page=(64 * w, 64 * h)).grid for w in range(10, 200, 3)
             for h in range(10, 200, 7)}  # fmt: skip
    assert len(found - {(1, 1)}) <= grids


SIDES = st.one_of(st.integers(1, 6000), st.sampled_from([640, 641, 768, 769, 1280, 4096]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", [OCR2, UNLIMITED], ids=lambda each: each.name)
@settings(deadline=None)  # the first example makes the tables
@given(pages=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=100))
def test_grids_of_many_pages_are_those_of_each(architecture, pages):
    sides = np.array(pages, np.int64)
    codes = architecture.forms.crop_grids.codes(sides[:, 0], sides[:, 1])
    columns, rows = architecture.forms.crop_grids.columns_and_rows(codes)
    found = list(zip(columns.tolist(), rows.tolist(), strict=True))
    assert found == [architecture.plan(page=page).grid for page in pages]
    assert codes.max() < architecture.forms.crop_grids.count


@pytest.mark.parametrize("scale", range(300, 700, 50))
def test_of_grids_with_one_aspect_the_page_decides(scale):
    """1, 4, 9, 16 and 25 tiles have one aspect: each wins from half of its tiles' pixels on."""
    for side in range(2, 6):
        edge = int((side * side * 640 * 640 / 2) ** 0.5)
        for page, expected in ((edge, max(2, side - 1)), (edge + 1, side)):
            grid = UNLIMITED.plan(page=(page, page)).grid
            assert grid == ((expected, expected) if page > 640 else (1, 1))
    assert UNLIMITED.plan(page=(scale, scale)).grid == ((1, 1) if scale <= 640 else (2, 2))


# --- parameters ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "total", "tensors"),
    [(OCR2.name, 3_389_119_360, 2_707), (UNLIMITED.name, 3_336_106_240, 2_710)],
)
def test_parameters(name, total, tensors):
    directory = DIRECTORY[name]
    session = DeepSeekOCRSession.from_directory(directory)
    assert session.parameters.total == total
    assert len(list(session.model.named_parameters())) == tensors
    assert ARCHITECTURES[name].forms.parameter_count(directory.dimensions()) == total


# --- one engine against the other ------------------------------------------------------------


def small_decoder(draw):
    heads = draw.choice([1, 2, 4])
    return {
        "hidden_size": draw.choice([16, 32]),
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([k for k in (1, 2, 4) if heads % k == 0]),
        "vocab_size": 50,
        "intermediate_size": 24,
        "moe_intermediate_size": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
    }


def small_sam(draw, features):
    return {
        "width": 8,
        "layers": 2,
        "heads": draw.choice([1, 2]),
        "global_attn_indexes": [1],
        "downsample_channels": [8, features],
    }


def small_ocr2(draw):
    dim, heads = draw.choice([16, 24, 48]), draw.choice([1, 2, 4])
    kv_heads = draw.choice([k for k in (1, 2, 4) if heads % k == 0])
    decoder = small_decoder(draw)
    encoder = {
        "dim": dim,
        "layers": draw.choice([1, 2, 3]),
        "heads": heads,
        "key_value_heads": kv_heads,
        "intermediate_size": draw.choice([20, 300]),
    }
    width = {"qwen2-0-5b": encoder, "sam_vit_b": small_sam(draw, dim)}
    projector = {"input_dim": dim, "n_embed": decoder["hidden_size"]}
    if draw.random() < 0.3:
        projector |= {"projector_type": "mlp_gelu", "depth": 2}
    return with_changes(
        OCR2.name, vision_config={"width": width}, projector_config=projector, **decoder
    )


def small_unlimited(draw):
    dim = draw.choice([8, 16])
    decoder = small_decoder(draw)
    window = draw.choice([None, 1, 2, 5, 128])
    if draw.random() < 0.25:
        decoder |= {
            "use_mla": True, "kv_lora_rank": 8, "q_lora_rank": draw.choice([None, 4]),
            "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": draw.choice([4, 6]),
        }  # fmt: skip
    clip = {"width": dim, "layers": 1, "heads": 2, "image_size": 56, "patch_size": 14}
    width = {"clip-l-14-224": clip, "sam_vit_b": small_sam(draw, dim)}
    return with_changes(
        UNLIMITED.name,
        vision_config={"width": width},
        projector_config={"input_dim": 2 * dim, "n_embed": decoder["hidden_size"]},
        sliding_window_size=window,
        sliding_window=window,
        **decoder,
    )


OCR2_SIZES = ({}, {"crop_mode": False}, {"crop_mode": False, "image_size": 1024},
              {"base_size": 768})  # fmt: skip
UNLIMITED_SIZES = (
    {"base_size": 128},
    {"crop_mode": False, "image_size": 128},
    {"prompt_pages": 2, "image_size": 64},
    {"prompt_pages": 5, "image_size": 64},
)


@sampled("seed", range(16), first(1))
@pytest.mark.parametrize("name", [OCR2.name, UNLIMITED.name])
def test_the_engines_agree_on_everything(name, seed):
    draw = random.Random(seed)
    directory = small_ocr2(draw) if name == OCR2.name else small_unlimited(draw)
    on_cpu = seed % 8 == 7
    flash = not on_cpu and (name == OCR2.name or directory.config["use_mla"]) and seed % 3 == 0
    session = DeepSeekOCRSession.from_directory(
        directory,
        device="cpu" if on_cpu else "meta",
        dtype=draw.choice(["bfloat16", "float32"]),
        flash_attention=flash,
    )
    sizes = draw.choice(OCR2_SIZES if name == OCR2.name else UNLIMITED_SIZES)
    workload = session.plan(
        page=(draw.choice([500, 1200, 3000]), draw.choice([600, 900, 2500])),
        **sizes,
        text_tokens=draw.randint(1, 30),
        batch_size=draw.choice([1, 1, 2, 3]),
        max_new_tokens=draw.choice([1, 2, 3, 7, 50]),
    )
    figures, agreement = session.figures(workload)
    assert agreement.warnings == []
    assert agreement.agrees
    assert not figures.ledger.unknown


def test_decode_steps_under_a_window_are_summed_exactly():
    """Five steps over a growing cache, then all over as many tokens: the prompt and the window."""
    dimensions = small_unlimited(random.Random(3)).dimensions()
    decoder = dataclasses.replace(dimensions.decoder, sliding_window=5)
    dimensions = dataclasses.replace(dimensions, decoder=decoder)
    forms, prompt = UNLIMITED.forms, 3 + 6
    totals = forms.page_totals(
        dimensions, base_size=64, whole_resolution=64, text_tokens=6, batch_size=2,
        max_new_tokens=np.arange(1, 21), dtype=FLOAT32,
    )  # fmt: skip
    assert totals.seq_len == prompt
    columns = [np.broadcast_to(count, 20).tolist() for count in totals.batch]
    steps = [Work(*counts).minus(totals.prefill) for counts in zip(*columns, strict=True)]
    expected = NO_WORK
    for number, found in enumerate(steps):
        assert found == expected
        is_full = number >= 5
        cached = prompt + 4 if is_full else prompt + number
        p = Pass(2, 1, cached, overwrites=is_full)
        kernels = step(UNLIMITED, dimensions, p, FLOAT32).kernels
        expected = expected.plus(total_work(kernel.total for kernel in kernels))


# --- memory of the encoder -------------------------------------------------------------------


@sampled("seed", range(30), every(5))
def test_the_encoders_peak(seed):
    """Alone: in a page it hides behind SAM's."""
    draw = random.Random(seed)
    size = draw.choice([64, 128, 192, 256, 384])
    q = tokens_per_side(size)
    heads = draw.choice([1, 2, 4, 6])
    kv_heads = draw.choice([k for k in (1, 2, 3, 4, 6) if heads % k == 0])
    width = heads * draw.choice([2, 4, 8])
    layers, inner = draw.choice([1, 2, 3, 5]), draw.choice([2, 20, 300])
    encoder = EncoderDimensions(width, layers, heads, kv_heads, inner, (size,))
    views, dtype = draw.choice([1, 2, 3, 5]), draw.choice([BFLOAT16, FLOAT32])
    torch_dtype = getattr(torch, dtype.name)
    with building(META, torch_dtype):
        module = deepencoderv2.Qwen2Decoder2Encoder(
            layers, width, heads, kv_heads, inner, 400, view_sizes=(size,)
        )
    features = torch.empty(views, width, q, q, device=META, dtype=torch_dtype)
    trace, _ = trace_module(module, META, features)
    t = Tape(dtype, records=False)
    encoded = t.call("", qwen2_encoder, t.input(features.numel(), dtype), views, q, encoder)
    assert t.peak.nbytes == trace.peak.nbytes
    # The encoded queries are half of the last layer's output.
    assert t.alive == 2 * encoded.nbytes == 2 * features.numel() * dtype.nbytes


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [512, 640, 719, 784, 896, 975, 1040, 1280])
def test_ocr2_refuses_views_without_queries(size):
    with pytest.raises(WorkloadError, match=f"image_size {size} is not supported.*768 or 1024"):
        OCR2.plan(page=(900, 900), crop_mode=False, image_size=size)
    with pytest.raises(WorkloadError, match=f"base_size {size} is not supported.*768 or 1024"):
        OCR2.plan(page=(900, 900), base_size=size)


@pytest.mark.parametrize("size", [720, 783, 976, 1039])
def test_ocr2_takes_views_that_its_code_runs(size):
    workload = OCR2.plan(page=(900, 900), crop_mode=False, image_size=size)
    assert workload.visual_tokens == (145 if size < 800 else 257)


def test_ocr2_refuses_tiles_whose_tokens_do_not_fit():
    with pytest.raises(WorkloadError, match=r"image_size 640 is not supported in crop mode.*768"):
        OCR2.plan(page=(1191, 1684), image_size=640)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt_pages": 2, "crop_mode": True}, "crop_mode=True is not supported"),
        ({"prompt_pages": 2, "base_size": 1024, "image_size": 640}, "base_size 1024"),
        ({"prompt_pages": 0}, "prompt_pages 0 is too small"),
        ({"prompt_pages": 1025}, "prompt_pages 1025 is too large; give 1 to 1024"),
    ],
)
def test_several_pages_are_refused_where_they_do_not_fit(arguments, message):
    with pytest.raises(WorkloadError, match=message):
        UNLIMITED.plan(page=(900, 900), **arguments)


@pytest.mark.parametrize("name", ["deepseek-ocr", "deepseek-ocr-2"])
def test_others_take_one_page_in_a_prompt(name):
    with pytest.raises(WorkloadError, match=r"prompt_pages 2 is not supported.*one page"):
        ARCHITECTURES[name].plan(page=(900, 900), prompt_pages=2)


def test_unlimited_has_no_flash_attention():
    directory = DIRECTORY[UNLIMITED.name]
    workload = UNLIMITED.plan(page=(900, 900))
    with pytest.raises(ConfigError, match="eager only"):
        page_figures(directory, workload, flash_attention=True)
    with pytest.raises(ConfigError, match="eager only"):
        UNLIMITED.forms.prefill_bytes_alive(directory.dimensions(), workload, BFLOAT16, True)


@pytest.mark.parametrize("value", ["wide", 1.5, True, -1])
def test_a_window_is_a_whole_number(value):
    directory = with_changes(UNLIMITED.name, sliding_window_size=value)
    with pytest.raises(ConfigError, match="sliding_window_size"):
        directory.dimensions()


@pytest.mark.parametrize(
    ("size", "other", "window"),
    [(128, 64, 128), (None, 64, 64), (0, 64, 64), (0, 0, None), (None, None, None)],
)
def test_the_window_is_the_one_that_infer_takes(size, other, window):
    directory = with_changes(UNLIMITED.name, sliding_window_size=size, sliding_window=other)
    assert directory.dimensions().decoder.sliding_window == window


# --- seconds ---------------------------------------------------------------------------------


def test_serving_steps_stop_growing_when_the_window_is_full():
    directory = DIRECTORY[UNLIMITED.name]
    on = ServedModel(
        UNLIMITED, directory.dimensions(), dtype_named("bfloat16"), device("h100-sxm"),
        SERVERS["vllm"],
    )  # fmt: skip
    off = dataclasses.replace(
        on, dimensions=UNLIMITED.forms.dimensions(UNLIMITED.without_window(directory.config))
    )
    assert on.page_bytes(900, 20_000) == 1028 * on.page_bytes(1, 1)
    assert off.page_bytes(900, 20_000) == (900 + 19_999) * off.page_bytes(1, 1)
    full = on.step(1, 1028).seconds
    assert [on.keys(900, generated) for generated in (50, 127, 128, 2_500)] == [
        950, 1027, 1028, 1028
    ]  # fmt: skip
    assert on.step(1, on.keys(900, 50)).seconds == off.step(1, off.keys(900, 50)).seconds
    assert full < off.step(1, off.keys(900, 2_500)).seconds
