"""The closed forms of pages: against a trace, many at once, and against records."""

import dataclasses
import itertools
import json
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from both_engines import (
    LATENT,
    PUBLISHED,
    by_both_engines,
    decoders,
    directory_with,
    small_directory,
)
from drawn_passes import directory, drawn
from hypothesis import given, settings, strategies as st
from relatives import FAMILY
from sampling import every, first, named, sampled

from dsocr_analyze import analytic
from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT, plan_workload
from dsocr_analyze.errors import ConfigError, WorkloadError
from dsocr_analyze.hardware import device
from dsocr_analyze.kernels import BFLOAT16, FLOAT32, Work, dtype_named, total_work
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.timing.runtimes import SERVERS
from dsocr_analyze.timing.serving import ServedModel, TimedModel
from dsocr_analyze.trace.passes import trace_passes
from dsocr_analyze.workload import LARGEST_COUNT, LARGEST_VIEW

PAGE = DEFAULT.plan(page=(1024, 1024))
OCR2, UNLIMITED = (ARCHITECTURES[name] for name in ("deepseek-ocr-2", "unlimited-ocr"))
DIRECTORY = {name: ModelDirectory.read(each.reference) for name, each in FAMILY.items()}
DIMENSIONS = PUBLISHED.dimensions()


def assert_agreement(page):
    """Every kernel of every module, calls, parameters, cache, inputs, batch and peak."""
    assert page.traced.warnings == page.analytic.warnings
    assert page.agreement.agrees
    for name, traced in page.traced.stages.items():
        composed = page.analytic.stages[name]
        left_out = page.agreement.not_modelled_share.get(name)
        assert left_out is None or left_out.vector_flops < 0.001
        if left_out is None:
            assert set(traced.kernels) == set(composed.kernels)
            assert traced.work == composed.work
        assert traced.module_calls == composed.module_calls
        assert (traced.params, traced.calls) == (composed.params, composed.calls)
    assert page.traced.parameters == page.analytic.parameters
    assert page.traced.memory == page.analytic.memory
    assert page.traced.causal_savable_flops == page.analytic.causal_savable_flops > 0


def figures_of(workload, directory=PUBLISHED):
    return analytic.page_figures(directory, workload)


def test_published_parameters():
    figures = figures_of(dataclasses.replace(PAGE, max_new_tokens=1))
    assert {name: stage.params for name, stage in figures.stages.items()} == {
        "sam": 95_569_152,
        "clip": 303_177_728,
        "projector": 2_622_720,
        "prefill": 2_769_255_680,
        "decode": 165_478_400,
    }
    assert sum(figures.parameters.unassigned.values()) == 2_560
    assert figures.memory.weights_bytes == 6_672_212_480
    assert figures.memory.kv_cache_bytes == 61_440 * figures.workload.seq_len
    assert {
        name: ARCHITECTURES[name].forms.parameter_count(each.dimensions())
        for name, each in DIRECTORY.items()
    } == {
        DEFAULT.name: 3_336_106_240,
        OCR2.name: 3_389_119_360,
        UNLIMITED.name: 3_336_106_240,
    }


A4 = {"page": (1191, 1684)}
SMALL = {"page": (1000, 700), "base_size": 256, "image_size": 192, "batch_size": 2}
# whose 43 tokens are as many as were trained, or some more or fewer, with steps in between
TRAINED = {"page": (1, 1), "base_size": 320, "image_size": 320, "crop_mode": False,
           "text_tokens": 12}  # fmt: skip
DECODERS = {
    "small": {},
    "dense": {"n_routed_experts": None},
    "grouped": {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True},
    "one kv head": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 96},
    "latent": LATENT,
    "latent, low-rank queries": {**LATENT, "q_lora_rank": 96, "attention_bias": True},
    "latent, equal heads": {**LATENT, "v_head_dim": 80},
    "latent, linear": {**LATENT, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "latent, dynamic": {
        **LATENT,
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
        "max_position_embeddings": 40,
    },
    "latent, yarn": {**LATENT, "rope_scaling": {"type": "yarn", "factor": 2.0}},
    "yarn": {"rope_scaling": {"type": "yarn", "factor": 2.0}},
    "sigmoid, noaux_tc": {
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "num_experts_per_tok": 3,
    },
    "group-limited": {
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "n_shared_experts": None,
    },
    "every other layer": {"moe_layer_freq": 2, "num_hidden_layers": 5},
    "more experts than choices": {"n_routed_experts": 96, "num_experts_per_tok": 1},
    "another activation": {"hidden_act": "gelu"},
    "an activation of many operators": {"hidden_act": "gelu_new"},
    "an activation that transformers knows": {"hidden_act": "laplace"},
    "mlp projector": {"projector_config": {"projector_type": "mlp_gelu", "depth": 3}},
    "split projector": {
        "projector_config": {
            "projector_type": "hybrid_split_feature_mlp_gelu",
            "input_dim": [128, 128],
            "depth": 2,
        }
    },
    "identity projector": {
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "projector_config": {"projector_type": "identity", "n_embed": 256},
    },
}


DYNAMIC = {**LATENT, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
AGREEING = {
    **{
        f"{name}, flash {flash}": (small_directory, changes, flash, SMALL)
        for name, changes in DECODERS.items()
        for flash in (False, True)
    },
    **{
        f"published, flash {flash}": (directory_with, {}, flash, A4) for flash in (False, True)
    },
    # A step does more beyond the trained length: the first, one in between, the last, or none.
    **{
        f"trained {n}": (small_directory, DYNAMIC | {"max_position_embeddings": n}, False, TRAINED)
        for n in (43, 44, 45, 46, 50, 1064, 1065, 1066, 1067)
    },
}  # fmt: skip


@sampled("name", AGREEING, named("yarn, flash True", "published, flash False"))
def test_a_trace_agrees(name):
    build, changes, flash, page = AGREEING[name]
    assert_agreement(by_both_engines(build(**changes), flash=flash, **page))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["small", "latent", "latent, dynamic", "dense"])
@pytest.mark.parametrize("flash", [False, True])
def test_a_batch_is_the_prefill_pass_and_every_step_over_its_growing_cache(name, flash):
    sizes = {"page": (300, 300), "base_size": 128, "max_new_tokens": 26}
    page = by_both_engines(small_directory(**DECODERS[name]), flash=flash, **sizes)
    session, workload = page.session, page.workload
    assert workload.seq_len < 40 < workload.seq_len + 25
    traces = trace_passes(session.loaded, workload, session.architecture, step_numbers=range(25))
    kernels = itertools.chain(*(each.kernels for each in (traces.prefill, *traces.decode_steps)))
    assert page.analytic.batch == total_work(kernel.total for kernel in kernels)


@pytest.mark.exhaustive
def test_batches_beyond_a_float_and_beyond_64_bits_are_exact():
    """m steps over K, K + 1, ... are m K + m (m - 1) / 2 keys, to the last digit."""
    long = dataclasses.replace(PAGE, max_new_tokens=3 * 10**9 + 2, batch_size=10**6)
    figures = figures_of(long)
    step = figures_of(dataclasses.replace(PAGE, batch_size=10**6))
    m, K = 3 * 10**9 + 1, PAGE.seq_len
    per_key = 10**6 * 12 * 2 * 10 * 128
    steps = m * (step.decode.work.macs - K * per_key) + per_key * (m * K + m * (m - 1) // 2)
    assert figures.batch.macs == step.prefill_pass.macs + steps
    assert figures.batch.macs > 2**63


# --- many pages at once, by passes on symbols: equal to one at a time, exact or refused

page_totals = DEFAULT.forms.page_totals
DTYPES = ("bfloat16", "float16", "float32")
LONG = directory_with(**DYNAMIC, max_position_embeddings=900).dimensions()
ONE_VIEW = {"base_size": 1024, "whole_resolution": 1024}


def assert_totals(pages, dimensions=DIMENSIONS, dtype=BFLOAT16, *, flash=False, arch=DEFAULT):
    """Every workload costs what its report says; returns the totals."""
    columns = {
        "base_size": [page.base_size for page in pages],
        "whole_resolution": [page.global_view.resolution for page in pages],
        "local_resolution": [page.image_size for page in pages],
        "columns": [page.grid[0] for page in pages],
        "rows": [page.grid[1] for page in pages],
        **{
            name: [getattr(page, name) for page in pages]
            for name in ("text_tokens", "max_new_tokens", "batch_size")
        },
    }
    arrays = {name: np.array(values) for name, values in columns.items()}
    totals = arch.forms.page_totals(dimensions, **arrays, dtype=dtype, flash_attention=flash)
    for index, page in enumerate(pages):
        assert_total(totals, index, page, dimensions, dtype, flash=flash, arch=arch)
    return totals


def assert_total(totals, index, page, dimensions, dtype=BFLOAT16, *, flash=False, arch=DEFAULT):
    one = arch.forms.compose(dimensions, page, dtype, flash)
    *prefill, step = (stage.work for stage in one.stages.values())

    def at(count):
        return int(count if isinstance(count, int) else count[index])

    assert Work(*map(at, totals.prefill)) == total_work(prefill), page
    assert Work(*map(at, totals.decode_step)) == step, page
    assert Work(*map(at, totals.batch)) == one.batch, page
    assert at(totals.visual_tokens) == page.visual_tokens
    assert at(totals.seq_len) == page.seq_len
    assert at(totals.kv_cache_bytes) == one.memory.kv_cache_bytes, page
    assert at(totals.peak_activation_bytes) == one.memory.peak.nbytes, page


def alone(size, **lengths):
    """A page in one view, of any lengths."""
    page = DEFAULT.plan(page=(9, 9), base_size=size, image_size=size, crop_mode=False)
    return dataclasses.replace(page, **{"max_new_tokens": 1} | lengths)


# --- equal to one at a time


ODD = [(64, 100, True), (224, 448, True), (640, 64, True), (1031, 100, False)]
MODELS = {
    "published": (DEFAULT, DIMENSIONS),
    "latent": (DEFAULT, LONG),
    "ocr2": (OCR2, DIRECTORY[OCR2.name].dimensions()),
    "unlimited": (UNLIMITED, DIRECTORY[UNLIMITED.name].dimensions()),
}


@sampled(
    ("name", "flash", "dtype", "count"),
    [
        each
        for each in itertools.product(MODELS, (False, True), DTYPES, (14, 40))
        if each[:2] != ("unlimited", True)  # whose attention is eager only
    ],
    named(("published", False, "float32", 14)),
)
def test_many_pages_cost_what_each_costs(name, flash, dtype, count):
    (arch, dimensions), draw = MODELS[name], random.Random(f"{name} {flash} {dtype}")
    sizes = [(mode.base_size, mode.image_size, mode.crop_mode) for mode in arch.modes.values()]
    pages = []
    for _ in range(count):
        base, image, is_cut = draw.choice(sizes + (ODD if arch is DEFAULT else []))
        pages.append(
            arch.plan(
                page=(draw.randint(100, 4000), draw.randint(100, 4000)),
                base_size=base, image_size=image, crop_mode=is_cut,
                text_tokens=draw.choice([1, 10, draw.randint(1, 3000), 9000]),
                max_new_tokens=draw.choice([1, 2, 100, 128, 129, 130, 5000]),
                batch_size=draw.choice([1, 1, 2, 3, 64]),
            )
        )  # fmt: skip
    assert_totals(pages, dimensions, dtype_named(dtype), flash=flash, arch=arch)


PAGES = st.lists(
    st.tuples(
        st.sampled_from([64, 128, 320, 640]), st.sampled_from([1, 2, 5, 290, 600]),
        st.integers(1, 5), st.sampled_from([1, 2, 3, 40, 400]), st.booleans(),
        st.integers(100, 3000),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


def planned(arch, pages):
    return [
        arch.plan(
            page=(width, 1000), base_size=size, image_size=size, crop_mode=is_cut,
            text_tokens=text, batch_size=batch, max_new_tokens=new,
        )
        for size, text, batch, new, is_cut, width in pages
    ]  # fmt: skip


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None)
@given(changes=decoders(), dtype=st.sampled_from(DTYPES), flash=st.booleans(), pages=PAGES)
def test_every_count_is_the_reports_for_any_decoder(changes, dtype, flash, pages):
    dimensions = directory_with(**changes).dimensions()
    assert_totals(planned(DEFAULT, pages), dimensions, dtype_named(dtype), flash=flash)


EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 3000}
FEW = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": None, "vocab_size": 9}
"""One of the few experts holds the most."""
SHORT = {**DYNAMIC, "max_position_embeddings": 20}


@pytest.mark.parametrize(
    ("name", "changes", "flash"),
    [
        ("deepseek-ocr", EXPERTS, False),
        ("deepseek-ocr", {**EXPERTS, **FEW}, False),
        ("deepseek-ocr", SHORT, True),
        ("deepseek-ocr", {**SHORT, **EXPERTS}, False),
        ("unlimited-ocr", {**EXPERTS, "sliding_window_size": 3}, False),
    ],
    ids=["experts", "few-experts", "dynamic", "dynamic-experts", "window"],
)
def test_every_count_is_the_reports_in_every_regime(name, changes, flash):
    """One prompt and several; up to, across and beyond the trained length; a full window."""
    arch = ARCHITECTURES[name]
    config = small_directory(num_hidden_layers=2, **changes).config
    lengths = [
        *((1, 1), (2, 1), (9, 3), (12, 9), (16, 1), (16, 2), (17, 1), (17, 9), (18, 9), (40, 20)),
        (900, 2),
    ]
    pages = [(64, text, batch, new, False, 500) for text, new in lengths for batch in (1, 3)]
    dimensions = arch.forms.dimensions(config)
    assert_totals(planned(arch, pages), dimensions, FLOAT32, flash=flash, arch=arch)


def test_the_blank_patch_is_as_large_as_the_base_size_and_fp32():
    """Three channels summed to one number; a page that is cut has no blank patch."""
    sizes, columns = np.array([640, 64, 640, 64]), np.array([1, 1, 2, 2])
    prefill = page_totals(
        DIMENSIONS, base_size=sizes, whole_resolution=640, columns=columns, text_tokens=10
    ).prefill
    pixels = 3 * (640**2 - 64**2)
    differences = [np.diff(count)[[0, 2]].tolist() for count in prefill]
    assert differences == [[0, 0], [-pixels, 0], [0, 0], [-4 * pixels, 0], [0, 0]]


# --- exact


@sampled("flash", [False, True], first(1))
@sampled("batch", [7, 1, 1000, LARGEST_COUNT], first(1))
@sampled("argument", ["text_tokens", "max_new_tokens", "batch_size"], first(1))
def test_counts_are_exact_on_both_sides_of_what_64_bits_hold(argument, batch, flash):
    """The last counts in 64 bits fill half of them at least, in FLOPs or in bytes moved."""
    given = {"text_tokens": 10, "max_new_tokens": 2, "batch_size": batch}

    def totals(value):
        rows = given | {argument: np.array([value])}
        return page_totals(DIMENSIONS, **ONE_VIEW, flash_attention=flash, **rows)

    fits, exact = 1, 2**40
    while exact - fits > 1:
        middle = (fits + exact) // 2
        if totals(middle).batch.macs.dtype == object:
            exact = middle
        else:
            fits = middle
    works = totals(fits).prefill, totals(fits).batch
    sums = [count for work in works for count in (work.flops, work.bytes_moved)]
    assert 2**62 < max(int(np.max(count)) for count in sums) < 2**63
    for value in (fits - 1, fits, exact, exact + 1):
        found = assert_totals([alone(1024, **given | {argument: value})], flash=flash)
        assert found.batch.macs.dtype == (np.int64 if value <= fits else object)


@sampled(
    ("batch", "text", "new", "flash"),
    itertools.product((1, LARGEST_COUNT), (1, LARGEST_COUNT), (1, LARGEST_COUNT), (False, True)),
    every(8),
)
@sampled("name", ["published", "latent"], first(1))
def test_the_largest_sizes_are_exact(name, batch, text, new, flash):
    lengths = {"batch_size": batch, "text_tokens": text, "max_new_tokens": new}
    pages = [alone(size, **lengths) for size in (LARGEST_VIEW, 64)]
    assert_totals(pages, MODELS[name][1], FLOAT32, flash=flash)


# --- refused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"text_tokens": np.array([1.0, 2.0])}, "text_tokens is"),
        ({"text_tokens": np.array([1, 0])}, r"text_tokens is \[1 0\]; give .* from 1 to"),
        ({"text_tokens": True}, "text_tokens is True"),
        ({"whole_resolution": 63}, "whole_resolution is 63; give .* from 64 to"),
        ({"base_size": 63}, "base_size is 63"),
        ({"text_tokens": np.array([2**63, 1], dtype=np.uint64)}, f"text_tokens is .* {2**63 - 1}"),
        ({"text_tokens": np.ones((2, 2), dtype=int)}, "(?s)text_tokens is .*one dimension"),
        ({"max_new_tokens": np.array([1, 2, 3])}, "2, 3 pages"),
    ],
)
def test_arrays_that_are_no_pages_are_refused(changes, said):
    with pytest.raises(WorkloadError, match=said):
        page_totals(DIMENSIONS, **ONE_VIEW | {"text_tokens": np.array([1, 2])} | changes)


def with_decoder(dimensions, **changes):
    decoder = dataclasses.replace(dimensions.decoder, **changes)
    return dataclasses.replace(dimensions, decoder=decoder)


DYNAMIC_PLAIN = with_decoder(DIMENSIONS, rope_scaling="dynamic", max_position_embeddings=400)
DIVIDING = with_decoder(LONG, qk_rope_head_dim=2, head_dim=50)


@pytest.mark.parametrize(
    ("dimensions", "fits", "beyond", "says"),
    [
        # Plain attention has no closed form beyond the trained length: of 273 + text.
        *(
            (DYNAMIC_PLAIN, [row], [beyond], "'max_position_embeddings', 400; .* reaches 401")
            for row, beyond in (
                ((100, 28), (100, 29)), ((126, 2), (127, 2)), ((126, 1), (127, 1)),
            )
        ),
        # The longest row decides, not the longest of each column.
        (DYNAMIC_PLAIN, [(1, 120), (110, 2)], [(1, 228), (110, 2)], "reaches 501"),
        (DIVIDING, [(1, 1)], [(900, 1)], "'qk_rope_head_dim' of 2 beyond"),
    ],
)  # fmt: skip
def test_lengths_without_a_closed_form_are_refused(dimensions, fits, beyond, says):
    def pages(rows):
        return [alone(1024, text_tokens=text, max_new_tokens=new) for text, new in rows]

    assert_totals(pages(fits), dimensions)
    with pytest.raises(ConfigError, match=says):
        assert_totals(pages(beyond), dimensions)
    with pytest.raises(ConfigError, match=says):
        DEFAULT.forms.compose(dimensions, pages(beyond)[0], BFLOAT16, False)


# --- the relatives: both engines against records, and against each other -------------------------

DATA = Path(__file__).parent / "data"
GOLDENS = [
    pytest.param(name, row, id=f"{name}-{number}")
    for name, file in (
        (DEFAULT.name, "golden_workloads.json"),
        (OCR2.name, "golden2_ocr2_workloads.json"),
        (UNLIMITED.name, "golden2_unlimited_workloads.json"),
    )
    for number, row in enumerate(json.loads((DATA / file).read_text()))
]


def recorded(name, row, **more):
    sizes = {key: row[key] for key in ("base_size", "image_size", "crop_mode", "text_tokens")}
    pages = row.get("pages", 1)
    return plan_workload(
        architecture=name, page=tuple(row["page"]), prompt_pages=pages, **sizes, **more
    )


# --- recorded counts -------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "row"), GOLDENS)
def test_golden_workloads(name, row):
    workload = recorded(name, row, max_new_tokens=2)
    assert list(workload.grid) == row["grid"]
    assert (workload.visual_tokens, workload.seq_len) == (row["visual_tokens"], row["seq_len"])
    figures = figures_of(workload, DIRECTORY[name])
    golden = row["matrix_flops"]
    layers_and_head = golden["layers"] + golden["lm_head"]
    counted = {stage: each.work.matrix_flops for stage, each in figures.stages.items()}
    assert counted == {
        **{stage: golden[stage] for stage in [*counted][:3]},
        "prefill": layers_and_head,
        "decode": row["decode_step_matrix_flops"]["total"],
    }
    assert figures.prefill_pass.matrix_flops == golden["total"]
    assert figures.stages["prefill"].own["lm_head"].matrix_flops == golden["lm_head"]


@sampled("row", [p.values[1] for p in GOLDENS if p.values[0] == UNLIMITED.name], first(1))
@pytest.mark.parametrize("is_on", [True, False])
def test_golden_decode_steps(row, is_on):
    directory = DIRECTORY[UNLIMITED.name]
    config = directory.config if is_on else UNLIMITED.without_window(directory.config)
    dimensions = UNLIMITED.forms.dimensions(config)
    for golden in row["decode_steps"] if is_on else [row["decode_step_1000_without_ring"]]:
        before, upto = (
            UNLIMITED.forms.compose(
                dimensions, recorded(UNLIMITED.name, row, max_new_tokens=steps), BFLOAT16, False
            )
            for steps in (golden["step"], golden["step"] + 1)
        )
        assert upto.batch.minus(before.batch).matrix_flops == golden["total"]
        assert upto.memory.kv_cache_bytes == golden["kv_cache_bytes_bf16"]


@pytest.mark.parametrize(
    ("architecture", "file", "grids"),
    [(OCR2, "golden2_ocr2_grids.json", 13), (UNLIMITED, "golden2_unlimited_grids.json", 118)],
    ids=["ocr2", "unlimited"],
)
def test_page_rule(architecture, file, grids):
    rows = np.array(json.loads((DATA / file).read_text()))
    assert len(rows) >= 100
    for width, height, columns, down in rows.tolist():
        assert architecture.plan(page=(width, height)).grid == (columns, down)
    codes = architecture.forms.model.page_rule.codes(rows[:, 0], rows[:, 1])
    found = np.stack(architecture.forms.model.page_rule.columns_and_rows(codes), 1)
    assert np.array_equal(found, rows[:, 2:])
    found = {architecture.plan(page=(64 * w, 64 * h)).grid for w in range(10, 200, 3)
             for h in range(10, 200, 7)}  # fmt: skip
    assert len(found - {(1, 1)}) <= grids


SIDES = st.one_of(st.integers(1, 6000), st.sampled_from([640, 641, 768, 769, 1280, 4096]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", FAMILY.values(), ids=lambda each: each.name)
@settings(deadline=None)  # the first example makes the tables
@given(pages=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=100))
def test_grids_of_many_pages_are_those_of_each(architecture, pages):
    sides = np.array(pages, np.int64)
    codes = architecture.forms.model.page_rule.codes(sides[:, 0], sides[:, 1])
    columns, rows = architecture.forms.model.page_rule.columns_and_rows(codes)
    found = list(zip(columns.tolist(), rows.tolist(), strict=True))
    assert found == [architecture.plan(page=page).grid for page in pages]
    assert codes.max() < architecture.forms.model.page_rule.count


@pytest.mark.parametrize("side", range(2, 6))
def test_of_grids_with_one_aspect_the_page_decides(side):
    """1, 4, 9, 16 and 25 tiles have one aspect: each wins from half of its tiles' pixels on."""
    edge = int((side * side * 640 * 640 / 2) ** 0.5)
    for page, expected in ((edge, max(2, side - 1)), (edge + 1, side), (641, 2), (640, 1)):
        assert UNLIMITED.plan(page=(page, page)).grid == (expected, expected)


# --- one engine against the other ------------------------------------------------------------


@sampled("seed", range(24), first(1))
@pytest.mark.parametrize("name", FAMILY)
def test_the_engines_agree_on_everything(name, seed):
    case = drawn(seed, name)
    options = {"dtype": case.dtype.name, "flash_attention": case.flash}
    device = "cpu" if seed % 8 == 7 and not case.flash else "meta"
    session = DeepSeekOCRSession.from_directory(case.directory, device=device, **options)
    workload = dataclasses.replace(case.workload, max_new_tokens=(7, 3, 1, 2, 50)[seed % 5])
    traced, agreement = session.figures(workload)
    composed = analytic.page_figures(case.directory, workload, **options)
    assert_agreement(SimpleNamespace(traced=traced, analytic=composed, agreement=agreement))
    assert agreement.warnings == []
    assert not traced.ledger.unknown


# --- refusals --------------------------------------------------------------------------------


SQUARE = {"page": (900, 900)}
SEVERAL = SQUARE | {"prompt_pages": 2}


@pytest.mark.parametrize(
    ("architecture", "arguments", "message"),
    [
        *(
            (OCR2, SQUARE | {name: size, "crop_mode": crop}, f"{name} {size} is not .*768 or 1024")
            for size in (512, 719, 784, 975, 1040)
            for name, crop in (("image_size", False), ("base_size", True))
        ),
        # whose tokens do not fit
        (OCR2, SQUARE | {"image_size": 640}, "image_size 640 is not supported in crop mode.*768"),
        (OCR2, SEVERAL, r"prompt_pages 2 is not supported.*one page"),
        (DEFAULT, SEVERAL, r"prompt_pages 2 is not supported.*one page"),
        (UNLIMITED, SEVERAL | {"crop_mode": True}, "a mode that crops none, .* or crop_mode=False"),
        (UNLIMITED, SEVERAL | {"base_size": 1024, "image_size": 640}, "base_size 1024"),
        (UNLIMITED, SQUARE | {"prompt_pages": 0}, "prompt_pages 0 is too small"),
        (UNLIMITED, SQUARE | {"prompt_pages": 1025}, "1025 is too large; give 1 to 1024"),
    ],
)
def test_pages_that_its_code_does_not_run_are_refused(architecture, arguments, message):
    with pytest.raises(WorkloadError, match=message):
        architecture.plan(**arguments)


@pytest.mark.parametrize(("size", "tokens"), [(720, 145), (783, 145), (976, 257), (1039, 257)])
def test_ocr2_takes_views_that_its_code_runs(size, tokens):
    workload = OCR2.plan(page=(900, 900), crop_mode=False, image_size=size)
    assert workload.visual_tokens == tokens


WIDE_VALUES = {"use_mla": True, "kv_lora_rank": 8, "q_lora_rank": None, "qk_nope_head_dim": 8,
               "qk_rope_head_dim": 2, "v_head_dim": 11}  # fmt: skip


@pytest.mark.parametrize("name", FAMILY)
def test_flash_attention_has_no_values_wider_than_keys(name):
    """Their code pads values to the width of keys."""
    wide = directory(name, WIDE_VALUES)
    workload, forms = wide.architecture.plan(page=(1024, 1024)), wide.architecture.forms
    with pytest.raises(ConfigError, match=r"'v_head_dim' 11\) than its keys \(10\)"):
        forms.compose(wide.dimensions(), workload, BFLOAT16, True)
    with pytest.raises(ConfigError, match="values are wider"):
        DeepSeekOCRSession.from_directory(wide, flash_attention=True)
    as_wide = directory(name, {**WIDE_VALUES, "v_head_dim": 10})
    forms.compose(as_wide.dimensions(), workload, BFLOAT16, True)


def test_unlimited_has_no_flash_attention():
    with pytest.raises(ConfigError, match="eager only"):
        DeepSeekOCRSession.from_directory(DIRECTORY[UNLIMITED.name], flash_attention=True)
    dimensions, workload = DIRECTORY[UNLIMITED.name].dimensions(), UNLIMITED.plan(**SQUARE)
    for asked in (UNLIMITED.forms.compose, UNLIMITED.forms.prefill_bytes_alive):
        with pytest.raises(ConfigError, match="eager only"):
            asked(dimensions, workload, BFLOAT16, True)


@pytest.mark.parametrize(
    ("size", "other", "window"),
    [(128, 64, 128), (None, 64, 64), (0, 64, 64), (0, 0, None), (None, None, None)],
)
def test_the_window_is_the_one_that_infer_takes(size, other, window):
    windows = {"sliding_window_size": size, "sliding_window": other}
    dimensions = directory(UNLIMITED.name, windows).dimensions()
    assert dimensions.decoder.sliding_window == window


# --- seconds ---------------------------------------------------------------------------------


def test_serving_steps_stop_growing_when_the_window_is_full():
    directory = DIRECTORY[UNLIMITED.name]
    whole = UNLIMITED.forms.dimensions(UNLIMITED.without_window(directory.config))
    on, off = (
        ServedModel(
            TimedModel(UNLIMITED, each, dtype_named("bfloat16"), True, device("h100-sxm")),
            SERVERS["vllm"],
        )
        for each in (directory.dimensions(), whole)
    )
    assert on.page_bytes(900, 20_000) == 1028 * on.page_bytes(1, 1)
    assert off.page_bytes(900, 20_000) == (900 + 19_999) * off.page_bytes(1, 1)
    full = on.step(1, 1028).seconds
    assert [on.keys(900, generated) for generated in (50, 127, 128, 2_500)] == [
        950, 1027, 1028, 1028
    ]  # fmt: skip
    assert on.step(1, on.keys(900, 50)).seconds == off.step(1, off.keys(900, 50)).seconds
    assert full < off.step(1, off.keys(900, 2_500)).seconds
