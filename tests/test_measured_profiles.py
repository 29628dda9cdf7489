"""What only a profile measured on the spot holds: attention with a bias, float32, the host."""

import dataclasses
import itertools

import numpy as np
import pytest

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.hardware.coefficients import GemmCoefficients
from dsocr_analyze.hardware.devices import gpu_catalogue
from dsocr_analyze.hardware.kernel_times.attention import masked_bytes
from dsocr_analyze.hardware.kernel_times.fitting import (
    FitErrors,
    MeasuredRows,
    first_guess,
    held_out_groups,
    predicted,
)
from dsocr_analyze.hardware.profile import (
    all_profiles,
    gpu_text,
    host_text,
    kind_text,
    profile_from_file,
    top_text,
)
from dsocr_analyze.hardware.timed_device import MeasuredHost
from dsocr_analyze.kernels import Attention, Convolution, Gemm, Kernel, Work
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing.assumptions import Assumptions
from dsocr_analyze.timing.kernel_seconds import kernel_seconds
from dsocr_analyze.timing.output_lengths import OutputLengths
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


def float32_text(**changes):
    coefficients = dataclasses.replace(first_guess("gemm", "float32"), **changes)
    return kind_text("gemm", "float32", coefficients, ERRORS, "torch")


@pytest.fixture
def read(tmp_path):
    def profile(*parts, name="mine"):
        file = tmp_path / "own.toml"
        file.write_text("\n".join([f'name = "{name}"', *parts]), encoding="utf-8")
        return profile_from_file(file)

    return profile


class TestMaskedAttention:
    def test_compute_by_hand(self, read):
        timed = read(GPU, MASKED)
        # 2 x 3 heads of 2 tiles: one wave. A tile passes over 2 blocks of 4 x 64 x 64 x (64 + 64)
        # FLOPs at half of 1 TFLOP/s, 4.194304 us each; 1 us a tile and 2 us the launch.
        seconds = timed.masked_attention_seconds(2, 128, 128, 3, 64, moved=1)
        assert seconds == pytest.approx((2 * 4.194304 + 1 + 2) * 1e-6, rel=1e-9)

    def test_memory_by_hand(self, read):
        timed = read(GPU, MASKED)
        # 10 GB at half of 1000 GB/s; a bias of 2 x 3 x 128 x 129 values of 2 bytes is moved twice
        # more where its rows are no multiple of 8.
        aligned = timed.masked_attention_seconds(2, 128, 128, 3, 64, moved=10**10)
        assert aligned == pytest.approx(0.02 + 2e-6, rel=1e-9)
        ragged = timed.masked_attention_seconds(2, 128, 129, 3, 64, moved=10**10)
        assert ragged == pytest.approx(0.02 + 2 * 2 * 2 * 3 * 128 * 129 / 5e11 + 2e-6, rel=1e-9)

    def test_bytes_by_hand(self):
        sizes = [np.array(float(size)) for size in (2, 5, 7, 3, 4, 1)]
        # Of each of 2 sequences: queries and output 2 x 3 x 5 x 4, keys and values 2 x 7 x 4, bias
        # 3 x 5 x 7 elements.
        assert masked_bytes(sizes) == 2 * 2 * (120 + 56 + 105)

    def test_the_page_takes_what_was_measured(self, read):
        sizes = Attention(54, 12, 12, 196, 196, 64, 64, True)
        kernel = Kernel("attention", "scaled_dot_product_attention", sizes, "bfloat16", "bfloat16",
                        Work(macs=10**9, bytes_read=10**8))  # fmt: skip
        timed = read(GPU, MASKED)
        priced = kernel_seconds([kernel], timed)
        expected = timed.masked_attention_seconds(54, 196, 196, 12, 64, moved=10**8)
        assert priced.seconds.item() == expected
        [error] = priced.errors
        assert (error.kind, error.median, error.p90) == ("masked_attention.bfloat16", 0.03, 0.09)
        assert not error.assumed
        [assumed] = kernel_seconds([kernel], read(GPU)).errors
        assert assumed.assumed

    def test_what_was_not_measured_is_refused(self, read):
        with pytest.raises(DeviceError, match="no masked_attention"):
            read(GPU).masked_attention_seconds(1, 8, 8, 1, 64, moved=1)
        with pytest.raises(WorkloadError, match="moved 0"):
            read(GPU, MASKED).masked_attention_seconds(1, 8, 8, 1, 64, moved=0)


class TestFloat32:
    def test_it_is_the_formula_of_products_at_its_own_peak_and_width(self, read):
        timed = read(GPU, float32_text())
        # 2 x 8192^3 FLOPs at 10 TFLOP/s; 4 bytes an
        # element of 10^9 outputs at 0.7 of the bandwidth, where nothing else takes time.
        compute = timed.gemm_seconds(8192, 8192, 8192, dtype="float32")
        assert 1 < compute / (2 * 8192**3 / 10e12) < 1.5
        quick = read(GPU.replace("lops = 10\n", "lops = 1e6\n"), float32_text())
        memory = quick.gemm_seconds(10**5, 10**4, 1, cold=True, dtype="float32")
        assert memory == pytest.approx(4 * 10**9 / (0.7 * 1e12), rel=0.1)

    @pytest.mark.parametrize("batch", [1, 5])
    def test_rows_are_predicted_as_the_device_says(self, read, batch):
        timed = read(GPU.replace("1e-6", "10"), float32_text())
        c = timed.kinds["gemm", "float32"].coefficients
        assert isinstance(c, GemmCoefficients)
        sizes = [*itertools.product((1, 100, 3000), (64, 512), (1280,), (False, True))]
        m, n, k, cold = (np.array(column, float) for column in zip(*sizes, strict=True))
        columns = {"m": m, "n": n, "k": k, "cold": cold, "batch": np.full(len(m), float(batch))}
        none = np.zeros(len(m), bool)
        rows = MeasuredRows(columns, m, none, none, np.zeros((len(m), 2), int), "")
        expected = [
            timed.gemm_seconds(*shape, batch=batch, cold=is_cold, dtype="float32")
            for *shape, is_cold in sizes
        ]
        assert predicted("gemm", rows, timed.gpu, "float32", c).tolist() == expected

    @pytest.mark.parametrize(
        ("sizes", "product"),
        [(Gemm(1, 913, 64, 1280), (913, 64, 1280)),
         (Convolution(2, 100, 3, 8, 9), (200, 8, 27))],
    )  # fmt: skip
    def test_the_page_takes_what_was_measured(self, read, sizes, product):
        kernel = Kernel("gemm", "linear", sizes, "float32", "float32", Work(macs=10**6))
        timed = read(GPU, float32_text())
        priced = kernel_seconds([kernel], timed)
        assert priced.seconds.item() == timed.gemm_seconds(*product, cold=True, dtype="float32")
        assert [(each.kind, each.p90, each.assumed) for each in priced.errors] == [
            ("gemm.float32", 0.05, False)
        ]

    def test_another_gpu_takes_it_over_where_it_has_such_a_rate(self, read, tmp_path):
        known = {**all_profiles(), "mine": read(GPU, float32_text())}
        file = tmp_path / "another.toml"
        lines = GPU.replace("l40s", "mine")
        for text, is_there in ((lines, True), (lines.replace("float32_tflops = 10\n", ""), False)):
            file.write_text(f'name = "another"\n{text}', encoding="utf-8")
            fitted = profile_from_file(file, known).kinds
            assert (("gemm", "float32") in fitted) == is_there

    def test_other_kinds_have_no_such_type(self, read):
        with pytest.raises(DeviceError, match=r"unknown type movement.float32"):
            read(GPU, "[movement.float32]")


class TestHost:
    @pytest.fixture
    def model(self):
        dimensions = ModelDirectory.read(DEFAULT.reference).dimensions()

        def on(profile):
            return TimedModel(DEFAULT, dimensions, BFLOAT16, False, profile)

        return on

    @staticmethod
    def assumed(host):
        return Assumptions(host, OutputLengths.fixed, 0.01)

    WORKLOAD = DEFAULT.plan(page=(640, 640), max_new_tokens=50, text_tokens=5)

    def test_the_eager_runtime_goes_by_it_and_says_so(self, read, model):
        measured = model(read(host_text(HOST), name="l40s"))
        found = predict(measured, self.WORKLOAD, self.assumed(EAGER))
        by_hand = dataclasses.replace(
            EAGER, launch_us=7.5, sync_us=31, step_us=900, graph_us=8, link_gb_s=11
        )
        shipped = model(all_profiles()["l40s"])
        expected = predict(shipped, self.WORKLOAD, self.assumed(by_hand))
        assert found.stages == expected.stages
        assert found.page_seconds == expected.page_seconds
        said = found.assumptions.sentences
        assert any("7.5 us to launch an operator (measured)" in each for each in said)
        assert any("11 GB/s (measured)" in each for each in said)
        assert not any("(assumed" in each for each in said)

    def test_many_pages_are_said_to_go_by_it(self, read):
        measured, shipped = read(host_text(HOST), name="l40s"), all_profiles()["h100-sxm"]
        job = Assumptions(EAGER, OutputLengths.fixed)
        [*_, launch, link, _, _, _] = job.sentences("some", [measured])
        assert "; 7.5 us to launch an operator (measured)" in launch
        assert "at 11 GB/s (measured)" in link
        assert job.sentences("some", [shipped]) == job.sentences("some")
        both = job.sentences("some", [measured, shipped])
        assert f"l40s: {launch}" in both
        assert [each for each in both if each.startswith("h100-sxm: host")] == [
            f"h100-sxm: {job.sentences('some')[2]}"
        ]
        engine = Assumptions(SERVERS["vllm"], OutputLengths.fixed)
        assert engine.sentences("some", [measured, shipped]) == engine.sentences("some")

    @pytest.mark.exhaustive
    def test_a_host_that_somebody_gave_and_an_engines_stay(self, read, model):
        measured, shipped = model(read(host_text(HOST), name="l40s")), all_profiles()["l40s"]
        for host in (dataclasses.replace(EAGER, launch_us=4.0), SERVERS["vllm"]):
            found = predict(measured, self.WORKLOAD, self.assumed(host))
            expected = predict(model(shipped), self.WORKLOAD, self.assumed(host))
            assert found.page_seconds == expected.page_seconds
            assert found.assumptions.host == host.name

    def test_the_table_is_read_as_it_was_written(self, read):
        assert read(host_text(HOST), name="l40s").host == HOST
        assert all_profiles()["l40s"].host is None

    @pytest.mark.parametrize(
        ("text", "named"),
        [("launch_us = 1", "host lacks sync_us, step_us"), ("cpu = 1", "unknown cpu"),
         (host_text(HOST).replace("31", "0").replace("[host]", ""), "host.sync_us must be"),
         (host_text(HOST).replace("31", "'x'").replace("[host]", ""), "host.sync_us must be")],
    )  # fmt: skip
    def test_what_is_wrong_is_named(self, read, text, named):
        with pytest.raises(DeviceError, match=named):
            read(f"[host]\n{text}", name="l40s")
        with pytest.raises(DeviceError, match="host must be a table"):
            read("host = 3", name="l40s")


class TestFiles:
    def test_what_a_file_leaves_out_is_as_shipped(self, read):
        profile = read(MASKED, float32_text(), name="h100-sxm")
        shipped = all_profiles()["h100-sxm"].kinds
        own = {("masked_attention", "bfloat16"), ("gemm", "float32")}
        assert {key: value for key, value in profile.kinds.items() if key not in own} == shipped
        assert own < set(profile.kinds)

    def test_a_gpu_is_read_as_it_was_written(self, read):
        for gpu in gpu_catalogue().values():
            mine = dataclasses.replace(gpu, name="mine", like="l40s", source='"quoted" \\ ü')
            assert read(gpu_text(mine)).gpu == mine

    def test_a_kind_is_read_as_it_was_written(self, read):
        c = dataclasses.replace(first_guess("gemm", "bfloat16"), slow_columns=2048, norm=1.23456)
        text = kind_text("gemm", "bfloat16", c, ERRORS, 'say "torch"')
        fitted = read(GPU, text).kinds["gemm", "bfloat16"]
        assert (fitted.coefficients, fitted.framework) == (c, 'say "torch"')
        assert (fitted.median, fitted.p90, fitted.held_out_rows, fitted.held_out_groups,
                fitted.training_rows) == (0.02, 0.05, 40, 8, 100)  # fmt: skip

    def test_an_error_of_nothing_is_still_an_error(self, read):
        text = float32_text().replace("0.0200", "0.0000")
        with pytest.raises(DeviceError, match="above 0"):
            read(GPU, text)
        exact = dataclasses.replace(ERRORS, held_out_median=0.0, held_out_p90=0.0)
        text = kind_text("gemm", "bfloat16", first_guess("gemm", "bfloat16"), exact, "")
        assert read(GPU, text).kinds["gemm", "bfloat16"].median == 1e-4

    def test_texts_may_hold_anything(self, read):
        assert read(top_text(source='a "b" \\n ü'), name="l40s").source == 'a "b" \\n ü'

    def test_three_groups_of_ten_are_held_out_whole(self):
        groups = [(n, k) for n in range(100) for k in range(30)]
        held = held_out_groups([*groups, *groups])
        assert (held[: len(groups)] == held[len(groups) :]).all()
        assert 0.27 < held.mean() < 0.33
