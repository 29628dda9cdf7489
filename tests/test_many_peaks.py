"""Peak activation of many workloads at once, against one replay for each."""

import dataclasses
import itertools
import random

import numpy as np
import pytest
from both_engines import LATENT, dimensions_of, directory_with, draw_decoder
from hypothesis import given, settings
from hypothesis import strategies as st

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.costs.amounts import Amount, Sizes, highest, worth_comparing
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.model.directory import ModelDirectory

DTYPES = ("bfloat16", "float16", "float32")


def assert_peaks(architecture, dimensions, workloads, dtype, *, flash):
    """Every workload's peak is the one that its report says."""

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
        max_new_tokens=1,
        batch_size=each(lambda page: page.batch_size),
        dtype=dtype,
        flash_attention=flash,
    )
    for found, page in zip(totals.peak_activation_bytes.tolist(), workloads, strict=True):
        memory = architecture.forms.memory(dimensions, page, dtype, flash)
        assert found == memory.peak.nbytes, page


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("flash", [False, True], ids=["eager", "flash"])
def test_a_peak_is_the_reports_in_every_mode_and_type(name, flash):
    architecture, draw = ARCHITECTURES[name], random.Random(f"{name} {flash}")
    if flash and name == "unlimited-ocr":
        pytest.skip("its attention is eager only")
    dimensions = ModelDirectory.read(architecture.reference).dimensions()
    for mode, dtype in itertools.product(architecture.modes.values(), DTYPES):
        workloads = [
            architecture.plan(
                page=(draw.randint(100, 4000), draw.randint(100, 4000)),
                base_size=mode.base_size, image_size=mode.image_size, crop_mode=mode.crop_mode,
                text_tokens=draw.choice([1, 10, draw.randint(1, 3000), 9000]), max_new_tokens=1,
                batch_size=draw.choice([1, 1, 2, 3, 64]),
            )
            for _ in range(5)
        ]  # fmt: skip
        assert_peaks(architecture, dimensions, workloads, dtype_named(dtype), flash=flash)


@st.composite
def decoders(draw):
    """Config keys of a decoder: plain or latent attention, dense or with experts, any positions."""
    changes = draw_decoder(draw)
    if draw(st.booleans()):
        experts = draw(st.sampled_from([2, 7, 64]))
        changes |= {
            "n_routed_experts": experts,
            "num_experts_per_tok": draw(st.integers(1, min(experts, 6))),
            "moe_intermediate_size": draw(st.integers(4, 600)),
            "n_shared_experts": draw(st.sampled_from([None, 1, 2])),
            "first_k_dense_replace": draw(st.integers(0, 2)),
        }
    if draw(st.booleans()):
        scaling = draw(st.sampled_from([None, "yarn", "dynamic", "linear"]))
        changes |= {
            **LATENT, "v_head_dim": draw(st.sampled_from([40, 80, 96])),
            "max_position_embeddings": draw(st.sampled_from([20, 300, 2048])),
            "q_lora_rank": draw(st.sampled_from([None, 24])),
            "num_key_value_heads": changes["num_attention_heads"],
        }  # fmt: skip
        if scaling is not None:
            changes["rope_scaling"] = {"type": scaling, "factor": 2.0}
    return changes


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None)
@given(
    changes=decoders(),
    dtype=st.sampled_from(DTYPES),
    flash=st.booleans(),
    pages=st.lists(
        st.tuples(
            st.sampled_from([64, 128, 320, 640]), st.integers(1, 600), st.integers(1, 5),
            st.booleans(), st.integers(100, 3000),
        ),
        min_size=1, max_size=6,
    ),
)  # fmt: skip
def test_a_peak_is_the_reports_for_any_decoder(changes, dtype, flash, pages):
    dimensions = dimensions_of(directory_with(**changes))
    workloads = [
        DEFAULT.plan(
            page=(width, 1000), base_size=size, image_size=size, crop_mode=is_cut,
            text_tokens=text, batch_size=batch, max_new_tokens=1,
        )
        for size, text, batch, is_cut, width in pages
    ]  # fmt: skip
    assert_peaks(DEFAULT, dimensions, workloads, dtype_named(dtype), flash=flash)


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


# --- amounts ---------------------------------------------------------------------------------

SIZES = st.integers(3, 400)
TERMS = st.dictionaries(
    st.sampled_from([(), ("a",), ("b",), ("a", "b"), ("a", "a", "b"), ("part",)]),
    st.integers(-50, 50).filter(bool),
    max_size=4,
)


@pytest.mark.exhaustive
@given(terms=st.lists(TERMS, min_size=1, max_size=6), a=SIZES, b=SIZES, part=st.floats(0, 1))
def test_what_is_not_worth_comparing_is_never_the_highest(terms, a, b, part):
    amounts = [Amount(each) for each in terms]
    product = Amount.size("a") * Amount.size("b")
    kept = worth_comparing(amounts, {"a": 3, "b": 3}, {"part": product})
    sizes = Sizes({"a": a, "b": b, "part": max(1, int(part * a * b))})
    assert set(kept) <= set(amounts)
    assert highest(kept, sizes) == max(sizes.value(each) for each in amounts)


def test_some_are_not_worth_comparing():
    a, b = Amount.size("a"), Amount.size("b")
    amounts = [3 * a * b, 2 * a * b + 5, a * b + 2 * b, 4 * a]
    assert worth_comparing(amounts, {"a": 3, "b": 3}, {}) == (3 * a * b,)
    assert worth_comparing(amounts[1:], {}, {}) == tuple(amounts[1:])


@pytest.mark.exhaustive
@given(left=TERMS, right=TERMS, number=st.integers(-5, 5), a=SIZES, b=SIZES, part=SIZES)
def test_arithmetic_of_amounts_is_that_of_their_values(left, right, number, a, b, part):
    x, y = Amount(left), Amount(right)
    sizes = Sizes({"a": a, "b": b, "part": part})
    p, q = sizes.value(x), sizes.value(y)
    for found, expected in (
        (x + y, p + q), (x - y, p - q), (x * y, p * q), (-x, -p), (number + x, number + p),
        (number - x, number - p), (x * number, p * number), (x * 6 // 3, 2 * p),
    ):  # fmt: skip
        assert sizes.value(Amount.of(found)) == expected
    assert (x == y) == (x.terms == y.terms)
    assert (x - x == 0, bool(x - x)) == (True, False)


def test_what_depends_on_sizes_is_no_answer():
    a = Amount.size("a", least=3, most=10)
    assert [a > 2, a > 10] == [True, False]
    with pytest.raises(ArithmeticError, match="depends on the sizes"):
        _ = a > 5
    with pytest.raises(ArithmeticError, match="not a multiple of 2"):
        _ = (3 * a) // 2
