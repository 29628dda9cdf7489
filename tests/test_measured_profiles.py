"""What only a profile measured on the spot holds: attention with a bias, float32, the host."""

import dataclasses
import itertools

import numpy as np
import pytest
from fit_profiles import kind_text
from kernel_fits import FitErrors, MeasuredRows, first_guess, held_out_groups, predicted

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.hardware.coefficients import Fitted
from dsocr_analyze.hardware.devices import gpu_catalogue
from dsocr_analyze.hardware.kernel_times import masked_bytes
from dsocr_analyze.hardware.profile import (
    all_profiles,
    gpu_text,
    host_text,
    profile_from_file,
    top_text,
)
from dsocr_analyze.hardware.timed_device import MeasuredHost
from dsocr_analyze.kernels import Attention, Convolution, Gemm, Kernel, Work
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths
from dsocr_analyze.timing.kernel_seconds import kernel_seconds
from dsocr_analyze.timing.page_times import TimedModel
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import EAGER, SERVERS

HOST = MeasuredHost(launch_us=7.5, sync_us=31, step_us=900, graph_us=8, link_gb_s=11)
ERRORS = FitErrors(100, 0.01, 40, 8, 0.02, 0.05)
GPU = """
[gpu]
title = "Mine"
tensor_tflops = 100
float32_tflops = 10
bandwidth_gb_s = 1000
memory_gb = 80
sms = 100
l2_mb = 1e-6
source = "mine"
like = "l40s"
"""
MASKED = """
[masked_attention.bfloat16]
framework = "torch"
held_out_median = 0.03
held_out_p90 = 0.09

[masked_attention.bfloat16.coefficients]
tile_queries = 64
tile_keys = 64
share = 0.5
softmax = 64
tile_us = 1
whole_waves = 1
memory_share = 0.5
l2_share = 0.5
unaligned = 2
norm = 30
launch_us = 2
"""


def float32_text():
    return kind_text("gemm", "float32", first_guess("gemm", "float32"), ERRORS, "torch")


@pytest.fixture
def read(tmp_path):
    def profile(*parts, name="mine", known=None):
        file = tmp_path / "own.toml"
        file.write_text("\n".join([f'name = "{name}"', *parts]), encoding="utf-8")
        return profile_from_file(file, known)

    return profile


def masked_seconds(timed, batch, queries, keys, heads, head_dim, *, moved):
    return timed.seconds("masked_attention", {
        "batch": batch, "queries": queries, "keys": keys, "heads": heads, "head_dim": head_dim,
        "kv_heads": heads, "moved": moved,
    })  # fmt: skip


class TestMaskedAttention:
    @pytest.mark.parametrize(
        ("keys", "moved", "expected"),
        [
            # 2 x 3 heads of 2 tiles: one wave. A tile passes over 2 blocks of 4 x 64 x 64 x
            # (64 + 64) FLOPs at half of 1 TFLOP/s, 4.194304 us each; 1 us a tile, 2 us the launch.
            (128, 1, (2 * 4.194304 + 1 + 2) * 1e-6),
            # 10 GB at half of 1000 GB/s; a bias of 2 x 3 x 128 x 129 values of 2 bytes is moved
            # twice more where its rows are no multiple of 8.
            (128, 10**10, 0.02 + 2e-6),
            (129, 10**10, 0.02 + 2 * 2 * 2 * 3 * 128 * 129 / 5e11 + 2e-6),
        ],
    )
    def test_seconds_by_hand(self, read, keys, moved, expected):
        seconds = masked_seconds(read(GPU, MASKED), 2, 128, keys, 3, 64, moved=moved)
        assert seconds == pytest.approx(expected, rel=1e-9)

    def test_bytes_by_hand(self):
        sizes = [np.array(float(size)) for size in (2, 5, 7, 3, 4, 1)]
        # Of each of 2 sequences: queries and output 2 x 3 x 5 x 4, keys and values 2 x 7 x 4, bias
        # 3 x 5 x 7 elements.
        assert masked_bytes(sizes) == 2 * 2 * (120 + 56 + 105)

    @pytest.mark.parametrize(
        ("parts", "moved", "error", "said"),
        [([GPU], 1, DeviceError, "no masked_attention"),
         ([GPU, MASKED], 0, WorkloadError, "moved 0")],
    )  # fmt: skip
    def test_what_was_not_measured_is_refused(self, read, parts, moved, error, said):
        with pytest.raises(error, match=said):
            masked_seconds(read(*parts), 1, 8, 8, 1, 64, moved=moved)


ATTENTION = Attention(54, 12, 12, 196, 196, 64, 64, True)


@pytest.mark.parametrize(
    ("kind", "sizes", "dtype", "seconds_of", "p90"),
    [
        ("masked_attention", ATTENTION, "bfloat16",
         lambda d: masked_seconds(d, 54, 196, 196, 12, 64, moved=10**6), 0.09),
        ("gemm", Gemm(1, 913, 64, 1280), "float32",
         lambda d: d.gemm_seconds(913, 64, 1280, cold=True, dtype="float32"), 0.05),
        ("gemm", Convolution(2, 100, 3, 8, 9), "float32",
         lambda d: d.gemm_seconds(200, 8, 27, cold=True, dtype="float32"), 0.05),
    ],
)  # fmt: skip
def test_the_page_takes_what_was_measured(read, kind, sizes, dtype, seconds_of, p90):
    kernel = Kernel(kind, "linear", sizes, dtype, dtype, Work(macs=10**6, bytes_read=10**6))
    timed = read(GPU, MASKED, float32_text())
    priced = kernel_seconds([kernel], timed)
    assert priced.seconds.item() == seconds_of(timed)
    [error] = priced.errors
    assert (error.kind, error.p90, error.assumed) == (f"{kind}.{dtype}", p90, False)
    [other] = kernel_seconds([kernel], read(GPU)).errors
    # Products in fp32 were published nowhere, attention with a bias was.
    assert (other.p90, other.assumed) == ((1.0, False) if "attention" in kind else (0.5, True))


class TestFloat32:
    def test_it_is_the_formula_of_products_at_its_own_peak_and_width(self, read):
        # 2 x 8192^3 FLOPs at 10 TFLOP/s; 4 bytes an element of 10^9 outputs at 0.7 of the
        # bandwidth, where nothing else takes time.
        compute = read(GPU, float32_text()).gemm_seconds(8192, 8192, 8192, dtype="float32")
        assert 1 < compute / (2 * 8192**3 / 10e12) < 1.5
        quick = read(GPU.replace("lops = 10\n", "lops = 1e6\n"), float32_text())
        memory = quick.gemm_seconds(10**5, 10**4, 1, cold=True, dtype="float32")
        assert memory == pytest.approx(4 * 10**9 / (0.7 * 1e12), rel=0.1)

    def test_rows_are_predicted_as_the_device_says(self, read):
        timed = read(GPU.replace("1e-6", "10"), float32_text())
        sizes = [*itertools.product((1, 100, 3000), (64, 512), (1280,), (1, 5), (False, True))]
        names = ("m", "n", "k", "batch", "cold")
        columns = dict(zip(names, np.array(sizes, float).T, strict=True))
        none = np.zeros(len(sizes), bool)
        rows = MeasuredRows(columns, columns["m"], none, none, np.zeros((len(sizes), 2), int), "")
        c = timed.kinds["gemm", "float32"].coefficients
        expected = [
            timed.gemm_seconds(*shape, batch=batch, cold=is_cold, dtype="float32")
            for *shape, batch, is_cold in sizes
        ]
        # A device rounds to a trillionth.
        found = predicted("gemm", rows, timed.gpu, "float32", c)
        assert found.tolist() == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize(("rate", "is_there"), [("float32_tflops = 10\n", True), ("", False)])
    def test_another_gpu_takes_it_over_where_it_has_such_a_rate(self, read, rate, is_there):
        known = {**all_profiles(), "mine": read(GPU, float32_text())}
        lines = GPU.replace("l40s", "mine").replace("float32_tflops = 10\n", rate)
        assert (("gemm", "float32") in read(lines, name="another", known=known).kinds) == is_there


class TestHost:
    @pytest.fixture
    def measured(self, read):
        return read(host_text(HOST), name="l40s")

    def test_the_eager_runtime_goes_by_it_and_says_so(self, measured):
        dimensions = ModelDirectory.read(DEFAULT.reference).dimensions()
        workload = DEFAULT.plan(page=(640, 640), max_new_tokens=50, text_tokens=5)
        shipped, given = (all_profiles()["l40s"], dataclasses.replace(EAGER, **vars(HOST)))
        assert (measured.host, shipped.host) == (HOST, None)

        def found(profile, host):
            model = TimedModel(DEFAULT, dimensions, BFLOAT16, False, profile)
            return predict(model, workload, Assumptions(host, OutputLengths.fixed, 0.01))

        # A host that somebody gave, and an engine's, stay.
        for own, other in ((EAGER, given), (given, given), (SERVERS["vllm"], SERVERS["vllm"])):
            mine, expected = found(measured, own), found(shipped, other)
            assert mine.stages == expected.stages
            assert mine.page_seconds == expected.page_seconds
            assert mine.assumptions.host == own.name
        said = " ".join(found(measured, EAGER).assumptions.sentences)
        parts = ("7.5 us to launch an operator (measured)", "11 GB/s (measured)", "(assumed")
        assert [part in said for part in parts] == [True, True, False]

    def test_many_pages_are_said_to_go_by_it(self, measured):
        shipped = all_profiles()["h100-sxm"]
        job = Assumptions(EAGER, OutputLengths.fixed)
        [*_, launch, link, _, _, _] = job.sentences("some", [measured])
        assert "; 7.5 us to launch an operator (measured)" in launch
        assert "at 11 GB/s (measured)" in link
        alone = job.sentences("some")
        assert job.sentences("some", [shipped]) == alone
        both = job.sentences("some", [measured, shipped])
        assert {f"l40s: {launch}", f"h100-sxm: {alone[2]}"} <= {*both}
        engine = Assumptions(SERVERS["vllm"], OutputLengths.fixed)
        assert engine.sentences("some", [measured, shipped]) == engine.sentences("some")


class TestFiles:
    @pytest.mark.parametrize(
        ("text", "named"),
        [("[host]\nlaunch_us = 1", "host lacks sync_us, step_us"),
         ("[host]\ncpu = 1", "unknown cpu"), ("host = 3", "host must be a table"),
         (host_text(HOST).replace("31", "0"), "host.sync_us must be"),
         (host_text(HOST).replace("31", "'x'"), "host.sync_us must be"),
         ("[movement.float32]", "unknown type movement.float32"),
         (float32_text().replace("0.0200", "0.0000"), "above 0")],
    )  # fmt: skip
    def test_what_is_wrong_is_named(self, read, text, named):
        with pytest.raises(DeviceError, match=named):
            read(text, name="l40s")

    def test_what_a_file_leaves_out_is_as_shipped(self, read):
        profile = read(MASKED, float32_text(), name="h100-sxm")
        own = {("masked_attention", "bfloat16"), ("gemm", "float32")}
        shipped = all_profiles()["h100-sxm"].kinds
        assert profile.kinds == {**shipped, **{key: profile.kinds[key] for key in own}}
        assert own.isdisjoint(shipped)

    def test_a_file_is_read_as_it_was_written(self, read):
        odd = 'a "b" \\n ü'
        assert read(top_text(source=odd), name="l40s").source == odd
        for gpu in gpu_catalogue().values():
            mine = dataclasses.replace(gpu, name="mine", like="l40s", source=odd)
            assert read(gpu_text(mine)).gpu == mine
        c = dataclasses.replace(first_guess("gemm", "bfloat16"), norm=1.23456)
        # An error of nothing is still an error.
        exact = dataclasses.replace(ERRORS, held_out_median=0.0, held_out_p90=0.0)
        for errors, median, p90 in ((ERRORS, 0.02, 0.05), (exact, 1e-4, 1e-4)):
            text = kind_text("gemm", "bfloat16", c, errors, odd)
            assert read(GPU, text).kinds["gemm", "bfloat16"] == Fitted(
                c, median, p90, 40, 100, "mine", odd, 8
            )

    def test_three_groups_of_ten_are_held_out_whole(self):
        groups = [*itertools.product(range(100), range(30))]
        held = held_out_groups([*groups, *groups])
        assert (held[: len(groups)] == held[len(groups) :]).all()
        assert 0.27 < held.mean() < 0.33
