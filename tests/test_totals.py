"""Many pages at once: equal to one at a time, exact or refused, and quick."""

import dataclasses
import random
import subprocess
import sys
import time

import numpy as np
import pytest
from sampling import first, sampled
from single_page import page_costs

from dsocr_analyze.architectures import DEFAULT, plan_workload
from dsocr_analyze.architectures.deepseek_ocr import ClipModelDimensions
from dsocr_analyze.architectures.ocr_family.totals import distinct
from dsocr_analyze.dtypes import FLOAT32
from dsocr_analyze.errors import ConfigError, WorkloadError
from dsocr_analyze.kernels import Work
from dsocr_analyze.model.directory import read_config
from dsocr_analyze.workload import LARGEST_COUNT, LARGEST_VIEW

page_totals = DEFAULT.forms.page_totals
PUBLISHED = ClipModelDimensions.from_config(read_config(DEFAULT.reference / "config.json"))
LATENT = dataclasses.replace(
    PUBLISHED,
    decoder=dataclasses.replace(
        PUBLISHED.decoder,
        use_mla=True,
        kv_lora_rank=64,
        qk_rope_head_dim=32,
        qk_nope_head_dim=48,
        v_head_dim=40,
        head_dim=80,
        rope_scaling="dynamic",
        max_position_embeddings=900,
    ),
)


def workloads(count, seed=0):
    rng = random.Random(seed)
    return [
        plan_workload(
            page=(rng.randint(200, 3000), rng.randint(200, 3000)),
            base_size=rng.choice([64, 224, 640, 1024, 1031]),
            image_size=rng.choice([64, 100, 448, 640]),
            crop_mode=rng.random() < 0.6,
            text_tokens=rng.randint(1, 500),
            batch_size=rng.choice([1, 1, 2, 7]),
            max_new_tokens=rng.choice([1, 2, 500]),
        )
        for _ in range(count)
    ]


def alone(size, **lengths):
    """A page in one view, of any lengths."""
    page = plan_workload(page=(9, 9), base_size=size, image_size=size, crop_mode=False)
    return dataclasses.replace(page, **{"max_new_tokens": 1} | lengths)


def arrays_of(pages):
    return {
        "base_size": np.array([page.base_size for page in pages]),
        "whole_resolution": np.array([page.global_view.resolution for page in pages]),
        "local_resolution": np.array([page.image_size for page in pages]),
        "columns": np.array([page.grid[0] for page in pages]),
        "rows": np.array([page.grid[1] for page in pages]),
        "text_tokens": np.array([page.text_tokens for page in pages]),
        "batch_size": np.array([page.batch_size for page in pages]),
        "max_new_tokens": np.array([page.max_new_tokens for page in pages]),
    }


def at(work, index):
    return tuple(count if isinstance(count, int) else int(count[index]) for count in work)


def assert_equal(totals, costs, index):
    assert at(totals.prefill, index) == costs.prefill
    assert at(totals.decode_step, index) == costs.decode_step
    assert at(totals.batch, index) == costs.batch
    whole = (
        totals.visual_tokens, totals.seq_len, totals.kv_cache_bytes, totals.peak_activation_bytes
    )  # fmt: skip
    workload = costs.workload
    assert at(whole, index) == (
        workload.visual_tokens, workload.seq_len, costs.kv_cache_bytes, costs.peak_activation_bytes
    )  # fmt: skip


@sampled("dimensions", [PUBLISHED, LATENT], first(1), ids=["published", "latent"])
@sampled("flash", [False, True], first(1), ids=["eager", "flash"])
@sampled("count", [40, 400], first(1), ids=["few", "many"])
def test_many_pages_cost_what_each_costs(dimensions, flash, count):
    pages = workloads(count)
    totals = page_totals(dimensions, **arrays_of(pages), flash_attention=flash, dtype=FLOAT32)
    for index in range(0, count, count // 13):
        costs = page_costs(dimensions, pages[index], FLOAT32, flash_attention=flash)
        assert_equal(totals, costs, index)


@pytest.mark.exhaustive
def test_integers_for_all_pages_and_for_one():
    page = plan_workload(page=(1191, 1684), max_new_tokens=7)
    columns, rows = page.grid
    totals = page_totals(
        PUBLISHED,
        base_size=1024,
        whole_resolution=1024,
        local_resolution=640,
        columns=columns,
        rows=rows,
        text_tokens=10,
        max_new_tokens=7,
    )
    assert_equal(totals, page_costs(PUBLISHED, page), 0)
    counts = vars(totals) | {"decode_step_bytes_read_expected": 0}
    assert {type(each) for each in counts.values()} == {int, Work}
    lengths = page_totals(
        PUBLISHED, base_size=1024, whole_resolution=1024, text_tokens=np.array([10, 11])
    )
    assert lengths.batch.macs.shape == (2,)


def test_the_blank_patch_is_as_large_as_the_base_size_and_fp32():
    """Three channels summed to one number; a page that is cut has no blank patch."""
    sizes, columns = np.array([640, 64, 640, 64]), np.array([1, 1, 2, 2])
    prefill = page_totals(
        PUBLISHED, base_size=sizes, whole_resolution=640, columns=columns, text_tokens=10
    ).prefill
    pixels = 3 * (640**2 - 64**2)
    assert np.diff(prefill.vector_flops)[[0, 2]].tolist() == [-pixels, 0]
    assert np.diff(prefill.bytes_read)[[0, 2]].tolist() == [-4 * pixels, 0]
    for count in (prefill.macs, prefill.bytes_written):
        assert np.diff(count)[[0, 2]].tolist() == [0, 0]


@pytest.mark.exhaustive
def test_pages_beyond_the_cache_are_cut_into_chunks():
    """So many distinct lengths that they are evaluated directly, chunk by chunk."""
    lengths = np.arange(1, 40_001)
    totals = page_totals(PUBLISHED, base_size=512, whole_resolution=512, text_tokens=lengths)
    for index in (0, 16_383, 16_384, 39_999):
        page = plan_workload(
            page=(500, 500), base_size=512, text_tokens=index + 1, max_new_tokens=1
        )
        assert_equal(totals, page_costs(PUBLISHED, page), index)


def test_no_pages():
    totals = page_totals(
        PUBLISHED, base_size=1024, whole_resolution=1024, text_tokens=np.array([], dtype=int)
    )
    assert len(totals.batch.macs) == 0


class TestNothingWraps:
    def test_counts_beyond_64_bits_are_exact(self):
        new = np.array([10**9, 1, 3 * 10**9])
        totals = page_totals(
            PUBLISHED,
            base_size=1024,
            whole_resolution=1024,
            text_tokens=10,
            batch_size=10**7,
            max_new_tokens=new,
        )
        assert totals.batch.macs.dtype == object
        for index, count in enumerate(new):
            page = dataclasses.replace(
                plan_workload(page=(600, 600)), batch_size=10**7, max_new_tokens=int(count)
            )
            assert_equal(totals, page_costs(PUBLISHED, page), index)
        assert totals.batch.macs[2] > 2**63

    def test_views_alone_may_differ(self):
        pages = [alone(size, text_tokens=10**8, batch_size=10**4) for size in (64, 640)]
        totals = page_totals(PUBLISHED, **arrays_of(pages))
        for index, page in enumerate(pages):
            assert_equal(totals, page_costs(PUBLISHED, page), index)

    def test_counts_within_64_bits_stay_int64(self):
        page = alone(1280, text_tokens=1 << 16, max_new_tokens=1 << 16)
        totals = page_totals(PUBLISHED, **arrays_of([page]))
        assert totals.batch.macs.dtype == np.int64
        assert_equal(totals, page_costs(PUBLISHED, page), 0)

    @pytest.mark.parametrize("flash", [False, True], ids=["eager", "flash"])
    @sampled("batch", [7, 1, 1000, LARGEST_COUNT], first(1))
    @pytest.mark.parametrize("argument", ["text_tokens", "max_new_tokens", "batch_size"])
    def test_counts_are_exact_on_both_sides_of_what_64_bits_hold(self, argument, batch, flash):
        """The last counts in 64 bits fill half of them at least, in FLOPs or in bytes moved."""
        given = {"text_tokens": 10, "max_new_tokens": 2, "batch_size": batch}

        def totals(value):
            rows = given | {argument: np.array([value])}
            return page_totals(
                PUBLISHED, base_size=1024, whole_resolution=1024, flash_attention=flash, **rows
            )

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
            found = totals(value)
            assert found.batch.macs.dtype == (np.int64 if value <= fits else object)
            workload = alone(1024, **given | {argument: value})
            assert_equal(found, page_costs(PUBLISHED, workload, flash_attention=flash), 0)

    @pytest.mark.parametrize("flash", [False, True], ids=["eager", "flash"])
    @sampled("dimensions", [PUBLISHED, LATENT], first(1), ids=["published", "latent"])
    @pytest.mark.parametrize("batch", [1, LARGEST_COUNT])
    @pytest.mark.parametrize("text", [1, LARGEST_COUNT])
    @pytest.mark.parametrize("new", [1, LARGEST_COUNT])
    def test_the_largest_sizes_are_exact(self, dimensions, batch, text, new, flash):
        lengths = {"batch_size": batch, "text_tokens": text, "max_new_tokens": new}
        pages = [alone(size, **lengths) for size in (LARGEST_VIEW, 64)]
        totals = page_totals(dimensions, **arrays_of(pages), flash_attention=flash, dtype=FLOAT32)
        for index, page in enumerate(pages):
            costs = page_costs(dimensions, page, FLOAT32, flash_attention=flash)
            assert_equal(totals, costs, index)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"text_tokens": np.array([1.0, 2.0])}, "whole numbers"),
        ({"text_tokens": np.array([1, 0])}, "text_tokens: 0 is too small; give at least 1"),
        ({"whole_resolution": 63}, "whole_resolution: 63"),
        ({"base_size": 63}, "base_size: 63"),
        ({"text_tokens": np.array([2**63, 1], dtype=np.uint64)}, "too large"),
        ({"max_new_tokens": np.array([1, 2, 3])}, "2, 3 pages"),
        ({"text_tokens": np.ones((2, 2), dtype=int)}, "2-dimensional"),
    ],
)
def test_arrays_that_are_no_pages_are_refused(changes, said):
    pages = {"base_size": 1024, "whole_resolution": 1024, "text_tokens": np.array([1, 2])}
    with pytest.raises(WorkloadError, match=said):
        page_totals(PUBLISHED, **pages | changes)


def test_distinct_combinations_and_their_places():
    sizes, texts = np.array([7, 3, 7, 5, 7]), np.array([1, 2, 1, 2, 2])
    rows, places = distinct([sizes, texts])
    found = list(zip(sizes[rows].tolist(), texts[rows].tolist(), strict=True))
    assert sorted(found) == [(3, 2), (5, 2), (7, 1), (7, 2)]
    assert [found[place] for place in places] == [(7, 1), (3, 2), (7, 1), (5, 2), (7, 2)]
    assert distinct([np.array([0, 10**12])]) is None


def test_torch_is_not_imported():
    code = (
        "import sys, numpy as np\n"
        "from dsocr_analyze.architectures import DEFAULT\n"
        "from dsocr_analyze.model.directory import ModelDirectory\n"
        "d = DEFAULT.forms.dimensions(ModelDirectory.read(DEFAULT.reference).config)\n"
        "DEFAULT.forms.page_totals(\n"
        "    d, base_size=1024, whole_resolution=1024, text_tokens=np.arange(1, 100)\n)\n"
        "print([m for m in ('torch', 'transformers', 'fvcore') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.benchmark
def test_a_million_workloads_a_second():
    rng = np.random.default_rng(0)
    n, batch = 1 << 20, 1 << 16
    modes = np.array([(512, 640, 0), (640, 640, 0), (1024, 640, 1), (1280, 1024, 1)])
    mode = modes[rng.integers(0, 4, n)]
    cut = mode[:, 2] == 1
    pages = {
        "base_size": mode[:, 0],
        "whole_resolution": mode[:, 0],
        "local_resolution": mode[:, 1],
        "columns": np.where(cut, rng.integers(1, 4, n), 1),
        "rows": np.where(cut, rng.integers(1, 4, n), 1),
        "text_tokens": rng.integers(1, 4000, n),
        "batch_size": rng.integers(1, 64, n),
        "max_new_tokens": rng.integers(1, 2000, n),
    }

    def run():
        for start in range(0, n, batch):
            rows = {name: values[start : start + batch] for name, values in pages.items()}
            page_totals(PUBLISHED, **rows)

    run()
    began = time.perf_counter()
    run()
    assert n / (time.perf_counter() - began) >= 1_000_000


class TestDynamicPositions:
    """Beyond the trained length each layer works out new frequencies: no closed form."""

    DIMENSIONS = dataclasses.replace(
        PUBLISHED,
        decoder=dataclasses.replace(
            PUBLISHED.decoder, rope_scaling="dynamic", max_position_embeddings=400
        ),
    )

    @pytest.mark.parametrize(("text_tokens", "max_new_tokens"), [(100, 28), (126, 2), (126, 1)])
    @pytest.mark.parametrize("engine", ["many pages", "one page"])
    def test_as_long_as_it_was_trained_is_counted_and_one_position_more_refused(
        self, engine, text_tokens, max_new_tokens
    ):
        def count(text_tokens, max_new_tokens):  # of 273 + text
            page = alone(1024, text_tokens=text_tokens, max_new_tokens=max_new_tokens)
            if engine == "one page":
                return page_costs(self.DIMENSIONS, page)
            return page_totals(self.DIMENSIONS, **arrays_of([page]))

        count(text_tokens, max_new_tokens)
        more = (0, 1) if max_new_tokens == 28 else (1, 0)
        message = "'max_position_embeddings', 400; the sequence reaches 401"
        with pytest.raises(ConfigError, match=message):
            count(text_tokens + more[0], max_new_tokens + more[1])

    def test_latent_attention_that_would_divide_by_zero_is_refused(self):
        decoder = dataclasses.replace(LATENT.decoder, qk_rope_head_dim=2)
        dimensions = dataclasses.replace(LATENT, decoder=decoder)
        page_totals(dimensions, base_size=1024, whole_resolution=1024, text_tokens=1)
        with pytest.raises(ConfigError, match="'qk_rope_head_dim' of 2 beyond"):
            page_totals(dimensions, base_size=1024, whole_resolution=1024, text_tokens=900)

    def test_the_longest_row_decides_not_the_longest_of_each_column(self):
        rows = {"text_tokens": np.array([1, 110]), "max_new_tokens": np.array([120, 2])}
        page_totals(self.DIMENSIONS, base_size=1024, whole_resolution=1024, **rows)
        with pytest.raises(ConfigError, match="reaches 501"):
            page_totals(
                self.DIMENSIONS,
                base_size=1024,
                whole_resolution=1024,
                text_tokens=np.array([1, 110]),
                max_new_tokens=np.array([228, 2]),
            )
