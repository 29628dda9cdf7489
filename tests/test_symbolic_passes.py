"""Many workloads at once, by passes on symbols, beside passes on integers for each."""

import dataclasses
import itertools
import random

import numpy as np
import pytest
from both_engines import LATENT, dimensions_of, directory_with, draw_decoder, small_directory
from hypothesis import given, settings
from hypothesis import strategies as st

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.architectures.ocr_family.symbolic_passes import affine
from dsocr_analyze.dtypes import FLOAT32, dtype_named
from dsocr_analyze.kernels import Work, total_work
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape.polynomial import Polynomial, Symbol

DTYPES = ("bfloat16", "float16", "float32")


def assert_totals(architecture, dimensions, workloads, dtype, *, flash):
    """Every workload costs what its report says."""

    def each(value):
        return np.array([value(page) for page in workloads])

    totals = architecture.forms.page_totals(
        dimensions,
        base_size=each(lambda page: page.base_size),
        whole_resolution=each(lambda page: page.global_view.resolution),
        local_resolution=each(lambda page: page.image_size),
        columns=each(lambda page: page.grid[0]),
        rows=each(lambda page: page.grid[1]),
        text_tokens=each(lambda page: page.text_tokens),
        max_new_tokens=each(lambda page: page.max_new_tokens),
        batch_size=each(lambda page: page.batch_size),
        dtype=dtype,
        flash_attention=flash,
    )
    for index, page in enumerate(workloads):
        one = architecture.forms.compose(dimensions, page, dtype, flash)
        *prefill, step = (stage.work for stage in one.stages.values())

        def at(count, index=index):
            return int(np.broadcast_to(count, len(workloads))[index])

        for found, work in (
            (totals.prefill, total_work(prefill)), (totals.decode_step, step),
            (totals.batch, one.batch),
        ):  # fmt: skip
            assert Work(*map(at, found)) == work, page
        assert at(totals.visual_tokens) == page.visual_tokens
        assert at(totals.kv_cache_bytes) == one.memory.kv_cache_bytes, page
        assert at(totals.peak_activation_bytes) == one.memory.peak.nbytes, page


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("flash", [False, True], ids=["eager", "flash"])
def test_every_count_is_the_reports_in_every_mode_and_type(name, flash):
    architecture, draw = ARCHITECTURES[name], random.Random(f"{name} {flash}")
    if flash and name == "unlimited-ocr":
        pytest.skip("its attention is eager only")
    dimensions = ModelDirectory.read(architecture.reference).dimensions()
    for mode, dtype in itertools.product(architecture.modes.values(), DTYPES):
        workloads = [
            architecture.plan(
                page=(draw.randint(100, 4000), draw.randint(100, 4000)),
                base_size=mode.base_size, image_size=mode.image_size, crop_mode=mode.crop_mode,
                text_tokens=draw.choice([1, 10, draw.randint(1, 3000), 9000]),
                max_new_tokens=draw.choice([1, 2, 100, 128, 129, 130, 5000]),
                batch_size=draw.choice([1, 1, 2, 3, 64]),
            )
            for _ in range(5)
        ]  # fmt: skip
        assert_totals(architecture, dimensions, workloads, dtype_named(dtype), flash=flash)


@st.composite
def decoders(draw):
    """Config keys of a decoder: plain or latent attention, dense or with experts, any positions."""
    changes = draw_decoder(draw)
    if draw(st.booleans()):
        experts = draw(st.sampled_from([1, 2, 7, 64]))
        changes |= {
            "n_routed_experts": experts,
            "num_experts_per_tok": draw(st.integers(1, min(experts, 6))),
            "moe_intermediate_size": draw(st.sampled_from([4, 600, 3000])),
            "n_shared_experts": draw(st.sampled_from([None, 1, 2])),
            "first_k_dense_replace": draw(st.integers(0, 2)),
            "norm_topk_prob": draw(st.booleans()),
        }
        if experts == 64:
            changes |= {
                "topk_method": draw(
                    st.sampled_from(["greedy", "group_limited_greedy", "noaux_tc"])
                ),
                "n_group": 8,
                "topk_group": 3,
            }
    if draw(st.booleans()):
        scaling = draw(st.sampled_from([None, "yarn", "dynamic", "dynamic", "linear"]))
        changes |= {
            **LATENT, "v_head_dim": draw(st.sampled_from([40, 80, 96])),
            "max_position_embeddings": draw(st.sampled_from([1, 4, 20, 300, 2048])),
            "q_lora_rank": draw(st.sampled_from([None, 24])),
            "num_key_value_heads": changes["num_attention_heads"],
        }  # fmt: skip
        if scaling is not None:
            changes["rope_scaling"] = {"type": scaling, "factor": 2.0}
    return changes


PAGES = st.lists(
    st.tuples(
        st.sampled_from([64, 128, 320, 640]), st.sampled_from([1, 2, 5, 290, 600]),
        st.integers(1, 5), st.sampled_from([1, 2, 3, 40, 400]), st.booleans(),
        st.integers(100, 3000),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


def planned(architecture, pages):
    return [
        architecture.plan(
            page=(width, 1000), base_size=size, image_size=size, crop_mode=is_cut,
            text_tokens=text, batch_size=batch, max_new_tokens=new,
        )
        for size, text, batch, new, is_cut, width in pages
    ]  # fmt: skip


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None)
@given(changes=decoders(), dtype=st.sampled_from(DTYPES), flash=st.booleans(), pages=PAGES)
def test_every_count_is_the_reports_for_any_decoder(changes, dtype, flash, pages):
    dimensions = dimensions_of(directory_with(**changes))
    workloads = planned(DEFAULT, pages)
    assert_totals(DEFAULT, dimensions, workloads, dtype_named(dtype), flash=flash)


EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 3000}
FEW = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": None, "vocab_size": 9}
"""One of the few experts holds the most."""
DYNAMIC = {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 20}


@pytest.mark.parametrize(
    ("name", "changes", "flash"),
    [
        ("deepseek-ocr", EXPERTS, False),
        ("deepseek-ocr", {**EXPERTS, **FEW}, False),
        ("deepseek-ocr", {**LATENT, **DYNAMIC}, True),
        ("deepseek-ocr", {**LATENT, **DYNAMIC, **EXPERTS}, False),
        ("unlimited-ocr", {**EXPERTS, "sliding_window_size": 3}, False),
    ],
    ids=["experts", "few-experts", "dynamic", "dynamic-experts", "window"],
)
def test_every_count_is_the_reports_in_every_regime(name, changes, flash):
    """One prompt and several; up to, across and beyond the trained length; a full window."""
    architecture = ARCHITECTURES[name]
    dimensions = architecture.forms.dimensions(
        small_directory(num_hidden_layers=2, **changes).config
    )
    lengths = [
        (1, 1),
        (2, 1),
        (9, 3),
        (12, 9),
        (16, 1),
        (16, 2),
        (17, 1),
        (17, 9),
        (18, 9),
        (40, 20),
        (900, 2),
    ]
    pages = [(64, text, batch, new, False, 500) for text, new in lengths for batch in (1, 3)]
    assert_totals(architecture, dimensions, planned(architecture, pages), FLOAT32, flash=flash)


def test_a_size_derived_from_the_cache_is_not_affine_in_it():
    K, T = Polynomial.size("K"), Polynomial.size("T")
    assert affine(3 * K * T + 2 * T + 5, "K") == (2 * T + 5, 3 * T)
    root = Polynomial({(Symbol("root", 1, None, None, (K + 1,)),): 1})
    for size in (K * K, root, root * K, T * root):
        with pytest.raises(ArithmeticError, match="not affine in K"):
            affine(size, "K")
    assert affine(root, "T") == (root, 0)


def test_integers_have_a_peak_that_is_an_integer_and_is_never_too_large():
    dimensions = dimensions_of(ModelDirectory.read(DEFAULT.reference))
    sizes = {"base_size": 1024, "whole_resolution": 1024, "text_tokens": 10**9}
    one = DEFAULT.forms.page_totals(dimensions, **sizes)
    page = dataclasses.replace(
        DEFAULT.plan(page=(10, 10), base_size=1024, image_size=640), text_tokens=10**9
    )
    expected = DEFAULT.forms.memory(dimensions, page, dtype_named("bfloat16"), False).peak.nbytes
    assert expected > 2**63
    assert one.peak_activation_bytes == expected
    many = DEFAULT.forms.page_totals(dimensions, **sizes | {"text_tokens": np.array([10, 10**9])})
    assert many.peak_activation_bytes.tolist()[1] == expected
