"""Seconds of many pages at once, against one prediction at a time."""

import numpy as np
import pytest
from both_engines import PUBLISHED, dimensions_of, small_directory

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.hardware import device
from dsocr_analyze.timing.assumptions import Assumptions, JobAssumptions
from dsocr_analyze.timing.kernel_seconds import NATIVE, Precision
from dsocr_analyze.timing.many_pages import ManyPages, PageTimer
from dsocr_analyze.timing.output_lengths import OutputLengths
from dsocr_analyze.timing.predict import TimedModel, predict
from dsocr_analyze.timing.runtimes import EAGER, SERVERS

HOSTS = {"eager": EAGER, "vllm": SERVERS["vllm"], "sglang": SERVERS["sglang"]}
DIMENSIONS = {
    "small": dimensions_of(small_directory()),
    "published": dimensions_of(PUBLISHED),
}


def lengths(limit):
    """Some pages end early, the others at the limit: the mean is rarely a whole number."""
    return OutputLengths.of_counts({1: 2, limit: 3}) if limit > 1 else OutputLengths.fixed(1)


def pages(concurrency):
    sides = [(100, 100), (1000, 1400), (1400, 1000), (700, 2100)]
    kinds = [DEFAULT.plan(page=each, base_size=256, image_size=192) for each in sides]
    random = np.random.default_rng(7)
    n = len(concurrency)
    return ManyPages(
        kinds=kinds,
        kind=random.integers(0, len(kinds), n),
        text_tokens=random.integers(1, 60, n),
        max_new_tokens=random.choice([1, 2, 7, 300], n),
        prepare=random.uniform(0, 0.05, n),
        concurrency=np.array(concurrency),
    )


def times(host, dimensions, given, *, precision=NATIVE, offline=False):
    model = TimedModel(DEFAULT, dimensions, BFLOAT16, False, device("l40s"))
    job = JobAssumptions(host, lengths, None, workers=2, precision=precision, is_offline=offline)
    found = PageTimer(model, job).times(given)
    one_by_one = [
        predict(
            model,
            given.workload(row),
            Assumptions(host, lengths(int(given.max_new_tokens[row])), float(given.prepare[row]),
                        workers=2, precision=precision, is_offline=offline),
            (int(given.concurrency[row]),),
        )
        for row in range(len(given))
    ]  # fmt: skip
    return found, one_by_one


def assert_alike(found, one_by_one):
    for row, one in enumerate(one_by_one):
        [load] = one.throughput
        assert found.pages_per_second[row] == pytest.approx(load.pages_per_second.value)
        assert found.tokens_per_second[row] == pytest.approx(load.tokens_per_second.value)
        assert found.fits[row] == load.fits
        alone = load.concurrency == 1
        page, first, each = (
            (one.page_seconds.value, one.ttft_seconds.value, one.tpot_seconds)
            if alone
            else (load.page_seconds, load.ttft_seconds, load.tpot_seconds)
        )
        assert found.page_seconds[row] == pytest.approx(page)
        assert found.ttft_seconds[row] == pytest.approx(first)
        if each is None:
            assert np.isnan(found.tpot_seconds[row])
        else:
            assert found.tpot_seconds[row] == pytest.approx(each.value if alone else each)


class TestEachPage:
    @pytest.mark.parametrize("host", HOSTS)
    def test_every_page_takes_what_it_takes_alone(self, host):
        given = pages([1, 1, 1, 2, 4, 16, 3, 1])
        assert_alike(*times(HOSTS[host], DIMENSIONS["small"], given))

    def test_pages_that_do_not_fit_wait_outside(self):
        given = pages([100_000, 1])
        found, one_by_one = times(SERVERS["vllm"], DIMENSIONS["published"], given)
        assert found.fits.tolist() == [False, True]
        assert_alike(found, one_by_one)

    def test_quantized_and_offline_pages_too(self):
        given = pages([1, 8, 8, 1])
        both = times(SERVERS["vllm"], DIMENSIONS["published"], given,
                     precision=Precision("int4", "int8"), offline=True)  # fmt: skip
        assert_alike(*both)
