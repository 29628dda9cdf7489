"""GPUs: their catalogue, kernel times and profiles, what they lack, and what fits into them."""

import copy
import itertools
import json
import math
import re
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from both_engines import LATENT, small_directory
from command_line import run
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from sampling import named, sampled

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.closed_forms import ClosedForms, _logits_bytes
from dsocr_analyze.cli import main
from dsocr_analyze.dtypes import BFLOAT16, FLOAT16, FLOAT32
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.figures import BytesAlive, MemoryFigures, Peak, expected_experts
from dsocr_analyze.hardware import device
from dsocr_analyze.hardware.coefficients import (
    COEFFICIENTS,
    coefficients_of,
)
from dsocr_analyze.hardware.devices import (
    Gpu,
    check_features,
    gpu_aliases,
    gpu_catalogue,
    gpu_named,
    missing_features,
)
from dsocr_analyze.hardware.fit import LARGEST_BATCH, MemoryNeed, fit, largest_batch, memory_need
from dsocr_analyze.hardware.kernel_times import Machine
from dsocr_analyze.hardware.kernel_times.formulas import formula_seconds
from dsocr_analyze.hardware.profile import all_profiles, check_gpu, check_kinds, profile_from_file
from dsocr_analyze.hardware.timed_device import EXTRAPOLATED_BAND, WEIGHT_ONLY_ERROR
from dsocr_analyze.model.directory import read_config

PROFILES = Path(__file__).parent.parent / "src/dsocr_analyze/hardware/profiles"
MEASURED = ("h100-sxm", "h200-sxm", "l40s", "b200", "b300", "gb200", "gb300", "rtx-pro-6000",
            "a100-80gb-sxm")  # fmt: skip
SHIPPED = set(COEFFICIENTS) - {"masked_attention"}
"""Kinds that every shipped profile has."""
every_gpu = sampled("name", gpu_catalogue(), named("h100-sxm", "a100-80gb-sxm", "b200", "t4"))
SAMPLE = json.loads(
    (Path(__file__).parent / "data/kernel_times_sample.json").read_text(encoding="utf-8")
)["rows"]


def native(timed):
    return timed.gpu.tensor_dtype


def kernels(timed, dtype):
    """One call a kernel kind, as functions of a batch-like size."""
    return {
        "gemm": lambda size: timed.gemm_seconds(size, 1280, 896, dtype=dtype),
        "encoder": lambda size: timed.attention_seconds(size, 257, 257, 16, 64, dtype=dtype),
        "context": lambda size: timed.attention_seconds(
            size, 913, 913, 10, 128, causal=True, dtype=dtype
        ),
        "generation": lambda size: timed.attention_seconds(
            size, 1, 1000, 10, 128, causal=True, dtype=dtype
        ),
        "experts": lambda size: timed.grouped_experts_seconds(size, 1280, 896, 64, 6, dtype=dtype),
        "elementwise": lambda size: timed.elementwise_seconds(size * 2560),
    }


class TestProperties:
    @every_gpu
    def test_more_work_takes_hardly_less_time_and_an_array_is_its_elements(self, name):
        timed = device(name)
        sizes = 2 ** np.arange(15)
        for kind, call in kernels(timed, native(timed)).items():
            seconds = call(sizes)
            # A step that empties a wave or leaves a slower tile may gain a little.
            least = np.full(len(sizes) - 1, 0.9)
            if kind == "gemm":
                # Tables have it that libraries take a slow kernel up to 8 rows.
                least[3] /= 1 + timed.fitted("gemm", native(timed)).coefficients.slow
            assert (seconds[1:] > least * seconds[:-1]).all()
            assert seconds[-1] > 3 * seconds[0]
            one_by_one = [call(int(size)) for size in sizes[::4]]
            assert seconds[::4].tolist() == pytest.approx(one_by_one, rel=1e-12)
            assert isinstance(one_by_one[0], float)
            # Six experts of 1280 x 896 alone are 41 MB: 129 us on the slowest GPU.
            assert 0.7e-6 < seconds[0] < 300e-6
        assert timed.elementwise_seconds(1) == pytest.approx(
            timed.elementwise_seconds(64), rel=0.01
        )

    @every_gpu
    def test_nothing_is_faster_than_the_chip_and_products_grow_with_every_size(self, name):
        timed = device(name)
        dtype, gpu = native(timed), timed.gpu
        peak, bandwidth = gpu.tensor_tflops * 1e12, gpu.bandwidth_gb_s * 1e9
        sizes = 256 * 2 ** np.arange(7)
        for place in range(3):
            shape = [4096] * 3
            shape[place] = sizes
            assert (np.diff(timed.gemm_seconds(*shape, dtype=dtype)) > 0).all()
        sizes = 2.0 ** np.arange(4, 15)
        seconds = timed.gemm_seconds(sizes, sizes, sizes, dtype=dtype)
        assert (seconds >= 2 * sizes**3 / peak).all()
        attention = timed.attention_seconds(4, sizes, sizes, 16, 64, dtype=dtype)
        assert (attention >= 4 * 4 * 16 * 64 * sizes**2 / peak).all()
        cold = timed.gemm_seconds(1, sizes, sizes, dtype=dtype, cold=True)
        assert (cold >= 2 * sizes**2 / bandwidth).all()
        keys = timed.attention_seconds(64, 1, 4096, 10, 128, causal=True, dtype=dtype, cold=True)
        assert keys >= 2 * 2 * 64 * 4096 * 10 * 128 / bandwidth
        assert timed.elementwise_seconds(10**9, cold=True) >= 1e9 / bandwidth

    @pytest.mark.parametrize(
        ("tokens", "experts", "top_k", "touched"),
        # 9 (1 - (6/9)^2), 4 (1 - (2/4)^2), 16 (1 - (12/16)^2), 16 (1 - (8/16)^4), 64 (1 - 1/64)
        [(2, 9, 3, 5), (2, 4, 2, 3), (2, 16, 4, 7), (4, 16, 8, 15), (6, 64, 32, 63), (1, 64, 6, 6),
         (1, 8, 8, 8), (1e6, 64, 6, 64)],
    )  # fmt: skip
    def test_expected_experts_by_hand(self, tokens, experts, top_k, touched):
        sizes = (np.array(float(size)) for size in (tokens, experts, top_k))
        assert expected_experts(*sizes) == pytest.approx(touched, rel=1e-12)

    @every_gpu
    def test_every_token_of_the_models_experts_is_plausible(self, name):
        timed = device(name)
        tokens = np.arange(1, 16385)
        seconds = timed.grouped_experts_seconds(
            tokens, 1280, 896, 64, 6, dtype=native(timed), cold=True
        )
        touched = expected_experts(tokens.astype(float), np.array(64.0), np.array(6.0))
        weights = touched * 3 * 1280 * 896 * 2
        assert (seconds >= weights / (timed.gpu.bandwidth_gb_s * 1e9)).all()
        # One token more may leave a slower tile.
        assert (seconds[1:] > 0.95 * seconds[:-1]).all()
        flops = 2 * 6 * 3 * 1280 * 896 * float(tokens[-1])
        assert 0.2 < flops / seconds[-1] / (timed.gpu.tensor_tflops * 1e12) < 0.8

    def test_inner_sizes_are_padded_where_the_library_pads_them(self):
        def seconds(name, activation):
            sizes = np.array([320, 384])
            return device(name).grouped_experts_seconds(
                64, 2048, sizes, 64, 6, activation=activation
            )

        for name in ("b200", "gb300"):
            padded, second = seconds(name, "silu"), seconds(name, "gelu")
            assert padded[0] == padded[1]
            assert padded[0] < second[0] < second[1]
        # An activation changes nothing where one kernel has all.
        assert (seconds("h100-sxm", "silu") == seconds("h100-sxm", "gelu")).all()


def products(timed, dtype, weights_dtype, size):
    """A product and a layer of experts on `size` rows or tokens."""
    types = {"dtype": dtype, "weights_dtype": weights_dtype, "cold": True}
    return np.array([
        timed.gemm_seconds(size, 6848, 1280, **types),
        timed.grouped_experts_seconds(size, 1280, 896, 64, 6, **types),
    ])  # fmt: skip


class TestWeightTypes:
    @every_gpu
    def test_fewer_bits_of_a_weight_take_less_time(self, name):
        timed = device(name)
        half = native(timed)
        own, eight, four = (products(timed, half, each, 1) for each in (None, "int8", "int4"))
        assert (own > eight).all()
        assert (eight > four).all()
        bandwidth = timed.gpu.bandwidth_gb_s * 1e9
        assert four[0] > 6848 * 1280 * (0.5 + 2 / 128) / bandwidth
        assert four[1] > 6 * 3 * 1280 * 896 * (0.5 + 2 / 128) / bandwidth
        cached = [
            timed.attention_seconds(
                64, 1, 4096, 10, 128, causal=True, dtype=half, kv_dtype=each, cold=True
            )
            for each in (None, "int8", "int4")
        ]
        assert cached == sorted(cached, reverse=True)
        assert len({*cached}) == 3
        # Outputs have 16 bits whatever the weights have.
        wide = [timed.gemm_seconds(10**4, 10**4, 1, dtype=half, weights_dtype=each, cold=True)
                for each in (None, "int4")]  # fmt: skip
        assert wide[1] == pytest.approx(wide[0], rel=0.02)
        # They are multiplied in 16 bits: with many rows that is what takes the time.
        many = products(timed, half, "int4", 16384)
        assert many == pytest.approx(products(timed, half, None, 16384), rel=0.1)

    @pytest.mark.parametrize(
        ("types", "same"),
        [(("bfloat16", "bf16"), ("bf16", None)), (("bfloat16", "bfloat16"), ("bf16", "float16")),
         (("bfloat16", None), ("bf16", "bf16")), (("bfloat16", "fp8"), ("float8", None)),
         (("bfloat16", "float8"), ("float8", None)), (("fp8", "fp8"), ("float8", None))],
    )  # fmt: skip
    def test_aliases_and_defaults(self, types, same):
        timed = device("h100-sxm")
        assert products(timed, *types, 64).tolist() == products(timed, *same, 64).tolist()
        of_cache = timed.fitted("generation_attention", kv_dtype="fp8")
        assert of_cache is timed.kinds["generation_attention", "float8"]
        fitted = timed.fitted("gemm", weights_dtype="fp8")
        assert fitted is timed.kinds["gemm", "float8"]
        assert not fitted.assumed

    @pytest.mark.parametrize(
        ("limit", "slow"),
        [(16, ("share_64",)), (64, ("share_128",)), (128, ("share_256",)), (256, ("share_more",))],
    )
    def test_a_tile_takes_the_rows_up_to_its_limit(self, limit, slow):
        timed = device("h100-sxm")
        fitted = timed.kinds["gemm", "float8"].coefficients
        slower = replace(fitted, **dict.fromkeys(slow, 1e-6))
        sizes = {"m": np.array([limit, limit + 1.0]), "n": np.array(1280.0), "k": np.array(896.0)}
        machine = Machine.of(timed.gpu, "float8")
        (before, after), (same, _) = (
            formula_seconds(c, sizes, machine, 1, causal=False) for c in (slower, fitted)
        )
        assert before == same < after / 100

    @pytest.mark.parametrize("weights", ["int8", "int4"])
    @pytest.mark.parametrize("kind", ["gemm", "experts"])
    def test_the_error_of_weight_only_is_assumed_and_wider(self, kind, weights):
        timed = device("h100-sxm")
        own, derived = timed.fitted(kind), timed.fitted(kind, weights_dtype=weights)
        assert derived.coefficients == own.coefficients
        assert derived.assumed
        assert derived.derived == f"{kind} in bfloat16 with fewer bytes per weight"
        assert derived.held_out_rows == 0
        assert (derived.median, derived.p90) == WEIGHT_ONLY_ERROR[kind]
        assert own.median < derived.median
        assert own.p90 < derived.p90
        twice = device("h20").fitted(kind, weights_dtype=weights)
        assert twice.p90 == 2 * derived.p90

    @pytest.mark.parametrize(
        ("name", "dtype", "weights", "right"),
        [("a100-80gb-sxm", "bf16", "float8", "bfloat16 or float16 or int8 or int4"),
         ("t4", "fp16", "bf16", "float16 or int8 or int4"), ("t4", "bf16", "int8", "dtype float16"),
         ("h100-sxm", "float8", "int4", "weights_dtype float8"),
         ("h100-sxm", "int8", None, "bfloat16 or float16 or float8"),
         ("h100-sxm", "bf16", "int2", "float8 or int8 or int4")],
    )  # fmt: skip
    def test_what_is_not_multiplied_is_refused(self, name, dtype, weights, right):
        timed = device(name)
        for call in (
            lambda: timed.gemm_seconds(1, 1280, 896, dtype=dtype, weights_dtype=weights),
            lambda: timed.grouped_experts_seconds(
                1, 1280, 896, 64, 6, dtype=dtype, weights_dtype=weights
            ),
            lambda: timed.fitted("gemm", dtype, weights_dtype=weights),
        ):
            with pytest.raises(DeviceError, match=right):
                call()


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "call", "right"),
        [("h100-sxm", lambda d: d.fitted("encoder_attention", weights_dtype="int8"),
          "encoder_attention has no weights"),
         ("h100-sxm", lambda d: d.attention_seconds(1, 257, 257, 16, 64, dtype="float8"),
          "use dtype bfloat16 or float16"),
         ("h100-sxm", lambda d: d.attention_seconds(1, 1, 9, 1, 64, causal=True, kv_dtype="int2"),
          "kv_dtype 'int2' is unknown; use bfloat16, "),
         ("a100-80gb-sxm",
          lambda d: d.attention_seconds(1, 1, 9, 1, 64, causal=True, kv_dtype="fp8"),
          "has no float8; use kv_dtype int8 or bfloat16"),
         *((name, lambda d, dtype=dtype: d.gemm_seconds(1, 1024, 1024, dtype=dtype), right)
           for name, dtype, right in (
               ("t4", "bfloat16", "float16"), ("v100-sxm-32gb", "bf16", "float16"),
               ("a100-80gb-sxm", "float8", "bfloat16 or float16"),
               ("h100-sxm", "float32", "float8"), ("l4", "int4", "bfloat16")))],
    )  # fmt: skip
    def test_a_type_that_is_lacking_is_refused_with_those_there_are(self, name, call, right):
        with pytest.raises(DeviceError, match=right):
            call(device(name))

    @pytest.mark.parametrize(
        ("call", "part"),
        [(lambda d: d.gemm_seconds(0, 1, 1), "m 0"),
         (lambda d: d.gemm_seconds(1, 1, np.array([4, -1])), "k -1"),
         (lambda d: d.gemm_seconds(float("nan"), 1, 1), "m nan"),
         (lambda d: d.attention_seconds(1, 5, 4, 1, 64, causal=True), "queries"),
         (lambda d: d.attention_seconds(1, 4, 4, 6, 64, kv_heads=4), "kv_heads"),
         (lambda d: d.attention_seconds(1, np.array([1, 2]), 4, 6, 64, causal=True), "queries"),
         (lambda d: d.gemm_seconds(1, 64, 64, batch=2, dtype="float8"), "batch must be 1"),
         (lambda d: d.grouped_experts_seconds(1, 64, 64, 4, 5), "top_k"),
         (lambda d: d.grouped_experts_seconds(1, 64, 64, 4, 2, activation="x"), "silu")],
    )  # fmt: skip
    def test_impossible_sizes_are_refused(self, call, part):
        with pytest.raises(WorkloadError, match=part):
            call(device("h100-sxm"))


class TestNames:
    @pytest.mark.parametrize(
        ("alias", "name"),
        [("h100", "h100-sxm"), ("A100", "a100-80gb-sxm"), ("rtx4090", "rtx-4090"),
         ("RTX 4090", "rtx-4090"), ("NVIDIA H100 80GB HBM3", "h100-sxm"),
         ("nvidia h100 80gb hbm3", "h100-sxm"), ("Tesla T4", "t4"), ("h200_sxm", "h200-sxm")],
    )  # fmt: skip
    def test_aliases_and_what_torch_reports_are_known(self, alias, name):
        assert device(alias).gpu.name == gpu_named(alias).name == name

    def test_every_alias_means_a_gpu_and_an_unknown_name_is_refused_with_close_ones(self):
        assert set(gpu_aliases().values()) <= set(gpu_catalogue())
        assert set(gpu_aliases()).isdisjoint(gpu_catalogue())
        with pytest.raises(DeviceError, match=r"did you mean h100-sxm"):
            device("h1000-sxm")

    def test_the_device_is_light(self):
        code = (
            "import sys; from dsocr_analyze.hardware import device; device('h100');"
            " sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestProfiles:
    @pytest.mark.parametrize("file", sorted(PROFILES.glob("*.toml")), ids=lambda each: each.stem)
    def test_every_entry_is_what_a_users_has_to_be(self, file):
        check_kinds(tomllib.loads(file.read_text(encoding="utf-8")), file.name)

    def test_every_gpu_has_every_kind_and_only_what_no_table_holds_is_assumed(self):
        for profile in all_profiles().values():
            assert {kind for kind, _ in profile.kinds} == SHIPPED
            for (kind, _), fitted in profile.kinds.items():
                is_derived = kind == "movement" and fitted.gpu == "a100-80gb-sxm"
                assert fitted.assumed == bool(fitted.derived) == is_derived
        for kind, dtype in itertools.product(COEFFICIENTS, ("bfloat16", "float8")):
            assert len(coefficients_of(kind, dtype).__dataclass_fields__) <= 20

    def test_a_measured_profile_says_where_it_is_from(self):
        for name in MEASURED:
            profile = all_profiles()[name]
            assert "aiconfigurator-core 0.12.0" in profile.source
            assert "Apache-2.0" in profile.licence
            gemm = profile.kinds["gemm", "bfloat16"]
            assert not gemm.extrapolated
            assert gemm.framework.startswith("vllm ")
            assert min(gemm.training_rows, gemm.held_out_rows, gemm.held_out_groups) > 0
            assert 0 < gemm.median < gemm.p90

    def test_an_extrapolated_kind_has_a_wider_band(self):
        there = all_profiles()
        own, other, a100 = (there[name] for name in ("l40s", "l4", "a100-80gb-sxm"))
        assert (own.extrapolated, other.extrapolated) == (False, True)
        for key, fitted in other.kinds.items():
            assert fitted.extrapolated
            assert fitted.p90 == pytest.approx(EXTRAPOLATED_BAND * own.kinds[key].p90)
        experts = a100.kinds["experts", "bfloat16"]
        assert (experts.framework.split()[0], experts.extrapolated) == ("sglang", False)
        assert a100.kinds["encoder_attention", "bfloat16"].extrapolated
        further = there["a100-40gb"]
        assert further.fitted("experts").gpu == "a100-80gb-sxm"
        # Once, however far it comes.
        assert further.fitted("encoder_attention") == a100.fitted("encoder_attention")

    @pytest.fixture
    def own(self, tmp_path):
        def write(text):
            file = tmp_path / "own.toml"
            file.write_text(text, encoding="utf-8")
            return file

        return write

    GPU = (
        'name = "h800"\n[gpu]\ntitle = "H800"\ntensor_tflops = 989\nbandwidth_gb_s = 3350\n'
        'memory_gb = 80\nsms = 132\nl2_mb = 50\nsource = "mine"\n'
    )

    MOVEMENT = (
        "\n[movement.bfloat16.coefficients]\nl2_share = 1\nmemory_share = 1\nramp_mb = 1\n"
        "launch_us = 1\n"
    )

    def test_coefficients_without_errors_say_from_what_they_are_derived(self, own):
        text = self.GPU + 'like = "h100"\n[movement.bfloat16]\nderived = "a data sheet"'
        profile = profile_from_file(own(text + self.MOVEMENT))
        movement, gemm = (profile.kinds[kind, "bfloat16"] for kind in ("movement", "gemm"))
        assert (movement.derived, movement.assumed) == ("a data sheet", True)
        assert movement.gpu == "h800"
        assert not gemm.assumed

    def test_a_users_file_adds_a_gpu_in_the_format_of_the_shipped_ones(self, own):
        timed = device("h800", profiles=[own(self.GPU + 'like = "h100"\n')])
        assert timed.extrapolated
        assert timed.gemm_seconds(512, 512, 512) == device("h100").gemm_seconds(512, 512, 512)
        with pytest.raises(DeviceError):
            device("h800")
        shipped = (PROFILES / "h100-sxm.toml").read_text(encoding="utf-8")
        profile = profile_from_file(own(f'name = "h100-sxm"\n{shipped}'))
        assert profile.kinds.items() == all_profiles()["h100-sxm"].kinds.items()

    @pytest.mark.parametrize(
        ("text", "part"),
        [("name = 3", "name must be"), ("name = ''", "name must be"),
         ("name = 'x'", "table \\[gpu\\]"), ("x", "not a device"),
         (GPU, "coefficients"), (GPU + 'like = "h10"', "h100-sxm"), (GPU + "sm = 1", "unknown sm"),
         (GPU.replace("sms = 132\n", ""), "lacks sms"), (GPU.replace("132", "-1"), "gpu.sms"),
         (GPU + "[gemm.bf16]", "unknown type gemm.bf16"),
         (GPU + "[gemm.bfloat16]", "table of coefficients"),
         (GPU + "[movement.bfloat16.coefficients]\nl2_share = 1", "lacks memory_share"),
         (GPU + "[movement.bfloat16.coefficients]\nl2_share = 0\nmemory_share = 1\nramp_mb = 1\n"
          "launch_us = 1", "l2_share must be above 0"),
         (GPU + MOVEMENT, "lacks held_out_median, held_out_p90.*derived"),
         (GPU + MOVEMENT.replace("[", "[movement.bfloat16]\nheld_out_p90 = 1\n[", 1),
          "lacks held_out_median:"),
         (GPU + "[movement.bfloat16]\nderived = ''" + MOVEMENT, "derived must be a string"),
         (GPU + "[movement.bfloat16]\nheld_out_p90 = 1\nheld_out_median = 'x'" + MOVEMENT,
          "held_out_median must be a number above 0"),
         ("source = 3\n" + GPU, "source must be a string"),
         ("gemm = 3\n" + GPU, "gemm must be a table"),
         (GPU + "[movement.bfloat16]\nderived = 'x'\nframework = 1" + MOVEMENT,
          "framework must be a string"),
         (GPU + "[movement.bfloat16]\nderived = 'x'\ntraining_rows = 'many'" + MOVEMENT,
          "training_rows must be a whole number"),
         (GPU + "[movement.bfloat16]\nderived = 'x'\nheld_out_rows = []" + MOVEMENT,
          "held_out_rows must be a whole number")],
    )  # fmt: skip
    def test_what_is_wrong_in_a_users_file_is_named(self, own, text, part):
        with pytest.raises(DeviceError, match=part):
            profile_from_file(own(text))


def predicted_seconds(timed, row):
    """Predicted seconds of a published row."""
    if row["kind"] == "gemm":
        return timed.gemm_seconds(row["m"], row["n"], row["k"])
    if row["kind"] == "movement":
        return timed.elementwise_seconds(row["moved"])
    if row["kind"] == "experts":
        return timed.grouped_experts_seconds(
            row["tokens"], row["hidden"], row["inter"], row["experts"], row["top_k"],
            touched=row["touched"], gated=bool(row["gated"]),
            activation="gelu" if row["fallback"] else "silu",
        )  # fmt: skip
    return timed.attention_seconds(
        row["batch"], row["queries"], row["keys"], row["heads"], row["head_dim"],
        kv_heads=row["kv_heads"], causal=row["kind"] != "encoder_attention",
    )  # fmt: skip


class TestPublishedRows:
    @pytest.mark.parametrize("name", MEASURED)
    def test_most_rows_that_were_held_out_lie_within_the_stated_band(self, name):
        timed = device(name)
        rows = [row for row in SAMPLE if row["gpu"] == name]
        assert len(rows) >= 24
        within = [
            abs(predicted_seconds(timed, row) / row["seconds"] - 1)
            <= timed.kinds[row["kind"], "bfloat16"].p90
            for row in rows
        ]
        # Nine of ten are expected; with a few dozen rows, three of four is beyond chance.
        assert sum(within) >= 0.75 * len(rows)


class TestCommand:
    @pytest.fixture
    def listed(self, tmp_path, monkeypatch, capsys):
        """Runs `devices`; returns its JSON."""
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

        def devices(*arguments):
            code, out, _ = run(capsys, "devices", *arguments, "--format", "json")
            assert code == 0
            return json.loads(out)["devices"]

        return devices

    def test_json_names_every_gpu_and_kind(self, listed):
        found = listed()
        assert [each["name"] for each in found] == list(gpu_catalogue())
        for each in found:
            assert {kind["kind"] for kind in each["kinds"]} == SHIPPED
            assumed = {kind["kind"]: kind["derived"] for kind in each["kinds"] if kind["assumed"]}
            if each["name"] in ("h100-sxm", "l4", "a100-80gb-sxm"):
                is_a100 = each["name"] == "a100-80gb-sxm"
                assert assumed == ({"movement": "h100-sxm"} if is_a100 else {})

    def test_the_table_shows_what_is_extrapolated_and_what_is_assumed(
        self, listed, capsys, tmp_path
    ):
        for output_format in ("table", "markdown"):
            code, out, _ = run(capsys, "devices", "h100", "l4", "--format", output_format)
            assert code == 0
            assert "h100-sxm" in out
            assert "~" in out
        shipped = (PROFILES / "h100-sxm.toml").read_text(encoding="utf-8")
        lines = [line for line in shipped.splitlines() if not line.startswith("held_out_")]
        text = "\n".join(lines).replace("framework =", 'derived = "mine"\nframework =')
        file = tmp_path / "mine.toml"
        file.write_text(f'name = "h100-sxm"\n{text}', encoding="utf-8")
        assert "?15.0 / 40" in run(capsys, "devices", "h100", "--profile", file)[1]

    def test_a_file_or_the_config_folder_adds_a_gpu(self, listed, tmp_path):
        file = tmp_path / "mine.toml"
        file.write_text(TestProfiles.GPU + 'like = "h100-sxm"\n', encoding="utf-8")
        [named] = listed("h800", "--profile", file)
        folder = tmp_path / "dsocr-analyze" / "devices"
        folder.mkdir(parents=True)
        file.rename(folder / "mine.toml")
        assert listed("h800") == [named]
        assert named["name"] == "h800"


# --- what fits ----------------------------------------------------------------------------------

DIMENSIONS = DEFAULT.forms.dimensions(read_config(DEFAULT.reference / "config.json"))
PAGE = DEFAULT.plan(page=(1191, 1684), max_new_tokens=1024)
ORDERS = ("at once", "one at a time")
BEFORE_AMPERE = {"t4", "v100-sxm-16gb", "v100-sxm-32gb", "v100-pcie-16gb", "v100-pcie-32gb"}
MB = 10**6
CATALOGUE = Path(__file__).parent.parent / "src/dsocr_analyze/hardware/devices.toml"


# Rates with sparsity or of the shader cores, seen in public tables.
WRONG_RATES = {"h100-sxm": [1979], "l4": [242], "rtx-4090": [661, 82.6], "rtx-3090": [285, 35.6]}


class TestCatalogue:
    def test_every_entry_is_plausible_and_what_a_users_has_to_be(self):
        text = CATALOGUE.read_text(encoding="utf-8")
        for name, entry in tomllib.loads(text).items():
            check_gpu(entry, f"devices.toml: {name}")
            gpu = gpu_catalogue()[name]
            assert gpu.name == name
            assert gpu.float32_tflops > 0, f"{name}: give its float32_tflops"
            assert 30 < gpu.tensor_tflops * 1000 / gpu.bandwidth_gb_s < 500
            named = ("L2" in gpu.weak, "L2" in gpu.source)
            assert sum(named) == 1, f"{name}: give the L2's source, or name it in `weak`"
            assert ("int8" in gpu.dtypes) == (gpu.int8_tops > 0) == (gpu.tflops("int8") > 0)
            assert ("float8" in gpu.dtypes) == (gpu.float8_tflops > 0)
            assert {"int8", "int4", gpu.tensor_dtype} <= set(gpu.weight_dtypes)
            assert gpu.tensor_tflops not in WRONG_RATES.get(name, ()), "dense, of tensor cores"

    def test_eight_bit_types_are_those_of_the_matrix_units(self):
        assert gpu_named("a100-80gb-sxm").tflops("int8") == 624
        assert "int8" not in gpu_named("v100-sxm-16gb").dtypes
        # Integers were cut down in Blackwell Ultra.
        assert gpu_named("b300").tflops("int8") < gpu_named("b300").tensor_tflops

    def test_an_entry_that_lacks_a_figure_is_refused_by_name(self):
        entry = {"title": "L20", "tensor_tflops": 119.5, "memory_gb": 48, "source": "datasheet"}
        with pytest.raises(DeviceError, match=r"^file: l20 lacks bandwidth_gb_s, sms, l2_mb$"):
            check_gpu(entry, "file: l20")

    @pytest.mark.parametrize("name", ["h1", "a1000", "", "gtx"])
    def test_an_unknown_gpu_is_refused_not_guessed(self, name):
        with pytest.raises(DeviceError, match=r"there are .*h100-sxm|did you mean"):
            gpu_named(name)


def gpu_with(memory_gb, **attributes):
    return Gpu("made-up", "Made up", 1, 1, memory_gb=memory_gb, source="made up", **attributes)


def architecture_of(weights, prefill, decode, cache):
    """An architecture whose pages need so many MB each: nothing is shared but the weights.

    Prefill and decode are inputs, cache, activations and logits; the cache is that at the end.
    """

    def alive(parts, workload):
        return BytesAlive(*(workload.batch_size * part * MB for part in parts))

    class Forms(ClosedForms):
        def memory(self, c, workload, *_):
            return MemoryFigures(weights * MB, 0, 0, workload.batch_size * cache * MB, Peak(0, ""))

        def prefill_bytes_alive(self, c, workload, *_):
            return alive(prefill, workload)

        def decode_bytes_alive(self, c, workload, *_):
            return alive(decode, workload)

    made_up = copy.copy(DEFAULT)
    made_up.closed_forms = Forms(DEFAULT)
    return made_up


PARTS = {"weights": 600, "prefill": (10, 20, 30, 40), "decode": (10, 27, 0, 1), "cache": 25}


BY_HAND = [
    # Changes of the parts, pages, the order of prefilling, and what is found.
    # 600 + 100 a page: 4 in 1,000 MB. The fifth fails for its logits.
    ({}, 3, 0, {"prefill_bytes": 300 * MB, "decode_bytes": 3 * 38 * MB, "needed_bytes": 900 * MB,
                "fits": True, "largest_batch": 4, "limit": "logits", "limit_moment": "prefill"}),
    # 600, a page's prefill pass of 100, 25 for each other page: 13, whose decode step takes
    # 13 x 28 = 364 MB, no inputs among them. The fourteenth fails for the caches.
    ({}, 3, 1, {"prefill": BytesAlive(10 * MB, (20 + 2 * 25) * MB, 30 * MB, 40 * MB),
                "decode": BytesAlive(0, 3 * 27 * MB, 0, 3 * MB), "largest_batch": 13,
                "limit": "cache", "limit_moment": "prefill"}),
    ({"decode": (10, 39, 0, 1)}, 1, 1,
     {"largest_batch": 10, "limit": "cache", "limit_moment": "decode"}),
    # A batch that needs all of the memory fits.
    ({}, 4, 0, {"needed_bytes": 1000 * MB, "usable_bytes": 1000 * MB, "fits": True}),
    ({}, 5, 0, {"fits": False}),
    # Every part can be the limit; weights that fit may leave nothing beside them.
    ({"weights": 1001}, 1, 0, {"largest_batch": 0, "limit": "weights", "limit_moment": None}),
    *((change, 1, 0, {"largest_batch": largest, "limit": limit, "limit_moment": moment,
                      "fits": largest > 0})
      for change, largest, limit, moment in (
          ({"weights": 1000}, 0, "logits", "prefill"),
          ({"prefill": (50, 20, 30, 40)}, 2, "inputs", "prefill"),
          ({"prefill": (10, 45, 30, 40)}, 3, "cache", "prefill"),
          ({"prefill": (10, 20, 60, 40)}, 3, "activations", "prefill"),
          ({"decode": (10, 27, 0, 70)}, 3, "logits", "decode"),
          ({"decode": (80, 27, 0, 1)}, 3, "inputs", "decode"))),
    ({"weights": 1, "prefill": (0, 0, 0, 0), "decode": (0, 0, 0, 0), "cache": 0}, 1, 0,
     {"largest_batch": LARGEST_BATCH, "limit": None}),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "batch", "order", "expected"), BY_HAND)
def test_by_hand(changes, batch, order, expected):
    found = fit(
        gpu_with(1), architecture_of(**PARTS | changes), None, replace(PAGE, batch_size=batch),
        dtype=BFLOAT16, flash_attention=False, reserved=0,
    )  # fmt: skip
    found = found.one_at_a_time if order else found
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_need_is_the_weights_and_the_higher_peak():
    low, high = BytesAlive(1, 2, 3, 4), BytesAlive(5, 6, 7, 8)
    for need in (MemoryNeed(100, low, high), MemoryNeed(100, high, low)):
        assert need.total_bytes == 100 + 26


class TestParts:
    """The parts of DeepSeek-OCR's peaks."""

    def need(self, dtype=BFLOAT16, order="at once", **changes):
        return memory_need(DEFAULT, DIMENSIONS, replace(PAGE, **changes), dtype=dtype,
                           flash_attention=False, order=order)  # fmt: skip

    @pytest.mark.parametrize("batch", [1, 7])
    def test_passes_hold_their_inputs_caches_and_logits(self, batch):
        need, page = self.need(batch_size=batch), 61_440 * (913 + 1023)
        memory = DEFAULT.forms.memory(DIMENSIONS, replace(PAGE, batch_size=batch), BFLOAT16, False)
        assert memory.peak.path in ("", "lm_head")  # the head over all positions is the peak
        assert need.weights_bytes == 2 * 3_336_106_240
        assert need.prefill.inputs_bytes == memory.inputs_bytes > batch * 21 * MB
        assert need.prefill.cache_bytes == batch * 913 * 12 * 2 * 1280 * 2
        assert need.prefill.logits_bytes == batch * 913 * 129_280 * (2 + 4)
        assert need.prefill.activation_bytes > 0
        assert need.prefill.nbytes == memory.peak.nbytes + memory.inputs_bytes
        # The last decode step: what generate was called with too, and a layer's cache twice.
        assert need.decode == BytesAlive(memory.inputs_bytes, batch * page + batch * page // 12, 0,
                                         batch * 129_280 * (2 + 4))  # fmt: skip
        # One at a time, the other pages' caches are held at their full length.
        one, alone = self.need(batch_size=batch, order="one at a time"), self.need()
        others = alone.prefill.cache_bytes + (batch - 1) * page
        assert one.prefill == structs.replace(alone.prefill, cache_bytes=others)
        assert one.decode == structs.replace(need.decode, inputs_bytes=0)

    def test_logits_are_cast_unless_they_are_in_fp32(self):
        few = replace(DIMENSIONS, decoder=replace(DIMENSIONS.decoder, vocab_size=10))
        assert _logits_bytes(few, Pass(1, 3), BFLOAT16) == 3 * 10 * (2 + 4)
        assert _logits_bytes(few, Pass(1, 3), FLOAT32) == 3 * 10 * 4
        assert self.need(FLOAT32).decode.logits_bytes == 129_280 * 4

    @pytest.mark.parametrize(
        ("image_size", "text_tokens", "peak", "layers"),
        [
            # Before the decoder runs nothing is cached.
            (1024, 1, "model.sam_model", 0),
            # Eager scores [H, T, T] of a long prompt outweigh a small vocabulary's logits; the
            # caches up to that layer are held.
            (256, 6000, "model.layers.2.self_attn", 3),
        ],
    )
    def test_a_peak_elsewhere_has_the_caches_up_to_it(self, image_size, text_tokens, peak, layers):
        dimensions = DEFAULT.forms.dimensions(small_directory().config)
        workload = DEFAULT.plan(
            page=(300, 300), crop_mode=False, image_size=image_size, text_tokens=text_tokens
        )
        memory = DEFAULT.forms.memory(dimensions, workload, BFLOAT16, False)
        assert memory.peak.path.startswith(peak)
        cache = layers * workload.seq_len * 2 * 320 * 2
        alive = DEFAULT.forms.prefill_bytes_alive(dimensions, workload, BFLOAT16, False)
        assert alive == BytesAlive(memory.inputs_bytes, cache, memory.peak.nbytes - cache, 0)

    @settings(max_examples=15, deadline=None)
    @given(
        mla=st.booleans(), flash=st.booleans(), dtype=st.sampled_from([BFLOAT16, FLOAT32]),
        batch=st.integers(1, 9), text_tokens=st.integers(1, 9000), crop=st.booleans(),
        new_tokens=st.integers(1, 9000), image_size=st.sampled_from([256, 512, 640]),
        vocabulary=st.sampled_from([10, 1000, 129_280]), dense=st.booleans(),
    )  # fmt: skip
    def test_parts_are_no_less_than_nothing_and_add_up(
        self, mla, flash, dtype, batch, text_tokens, crop, new_tokens, image_size, vocabulary, dense
    ):
        changes = {"vocab_size": vocabulary, **(LATENT if mla else {})}
        if dense:
            changes["n_routed_experts"] = None
        dimensions = DEFAULT.forms.dimensions(small_directory(**changes).config)
        workload = DEFAULT.plan(
            page=(1200, 900), crop_mode=crop, image_size=image_size, text_tokens=text_tokens,
            max_new_tokens=new_tokens, batch_size=batch,
        )  # fmt: skip
        memory = DEFAULT.forms.memory(dimensions, workload, dtype, flash)
        prefill = DEFAULT.forms.prefill_bytes_alive(dimensions, workload, dtype, flash)
        decode = DEFAULT.forms.decode_bytes_alive(dimensions, workload, dtype, flash)
        for alive in (prefill, decode):
            assert min(alive.inputs_bytes, alive.cache_bytes) >= 0
            assert min(alive.activation_bytes, alive.logits_bytes) >= 0
        assert prefill.nbytes == memory.inputs_bytes + memory.peak.nbytes
        assert prefill.cache_bytes <= memory.prefill_cache_bytes
        assert decode.cache_bytes >= memory.kv_cache_bytes


@pytest.mark.parametrize("most", [0, 1, 2, 3, 4, 5, 60, LARGEST_BATCH - 1, LARGEST_BATCH])
def test_the_largest_batch_is_found_by_few_tries(most):
    tried = []

    def is_possible(batch):
        tried.append(batch)
        return batch <= most

    assert largest_batch(is_possible) == most
    assert len(tried) <= 2 * math.log2(most + 1) + 2
    assert max(tried) <= LARGEST_BATCH


def batch_fits(gpu, workload=PAGE, reserved=0.1, flash=False):
    found = fit(gpu, DEFAULT, DIMENSIONS, workload, dtype=FLOAT16, flash_attention=flash,
                reserved=reserved)  # fmt: skip
    return found.usable_bytes, {"at once": found, "one at a time": found.one_at_a_time}


class TestLargestBatches:
    @pytest.mark.exhaustive
    @settings(max_examples=25, deadline=None)
    @given(
        memory_gb=st.integers(4, 300), text_tokens=st.integers(1, 4000),
        new_tokens=st.integers(1, 9000), mode=st.sampled_from(["tiny", "base", "gundam"]),
    )  # fmt: skip
    def test_the_largest_fits_and_one_more_does_not(self, memory_gb, text_tokens, new_tokens, mode):
        page = DEFAULT.modes[mode]
        workload = DEFAULT.plan(
            page=(1191, 1684), base_size=page.base_size, image_size=page.image_size,
            crop_mode=page.crop_mode, text_tokens=text_tokens, max_new_tokens=new_tokens,
        )  # fmt: skip
        usable, orders = batch_fits(gpu_with(memory_gb), workload)
        for order, found in orders.items():

            def needed(batch, order=order):
                pages = replace(workload, batch_size=batch)
                return memory_need(
                    DEFAULT, DIMENSIONS, pages, dtype=FLOAT16, flash_attention=False, order=order
                )

            largest = found.largest_batch
            if largest:
                assert needed(largest).total_bytes <= usable
            assert needed(largest + 1).total_bytes > usable
            limit = needed(largest + 1).limit(usable)
            assert (found.limit, found.limit_moment) == limit

    def test_more_memory_holds_no_fewer_pages_and_too_little_not_the_weights(self):
        for order in ORDERS:
            found = [batch_fits(gpu_with(gb))[1][order] for gb in (4, *range(5, 90, 28))]
            largest = [each.largest_batch for each in found]
            assert largest == sorted(largest)
            assert largest[0] == 0 < largest[-1]
            assert (found[0].limit, found[0].limit_moment) == ("weights", None)

    @pytest.mark.exhaustive
    def test_one_at_a_time_there_are_several_times_as_many(self):
        for gpu in gpu_catalogue().values():
            _, found = batch_fits(gpu)
            assert found["one at a time"].largest_batch > 5 * found["at once"].largest_batch > 0

    def test_the_published_model_on_an_h100(self):
        usable, found = batch_fits(gpu_named("h100-sxm"))
        assert usable == 72 * 10**9
        at_once, one = found["at once"], found["one at a time"]
        # 65.3 GB beside the weights; 788 MB a page, or 129.6 MB a page of cache and logits.
        assert (at_once.limit, at_once.limit_moment) == ("logits", "prefill")
        assert 80 <= at_once.largest_batch <= 83
        assert (one.limit, one.limit_moment) == ("cache", "decode")
        room = usable - 2 * 3_336_106_240
        page = 61_440 * (913 + 1023)
        assert one.largest_batch == room // (page + page / 12 + 129_280 * 6)


class TestLacks:
    def test_bfloat16_and_flash_attention_came_with_ampere(self):
        for name, gpu in gpu_catalogue().items():
            old = name in BEFORE_AMPERE
            assert gpu.has_flash_attention is not old
            assert ("bfloat16" in gpu.dtypes) is not old
            assert gpu.rocm_target or (gpu.compute_capability < 8) == old

    @pytest.mark.parametrize(
        ("name", "dtype", "flash", "lacking"),
        [
            ("t4", BFLOAT16, False, ["bfloat16"]),
            ("t4", BFLOAT16, True, ["bfloat16", "FlashAttention-2"]),
            ("t4", FLOAT16, True, ["FlashAttention-2"]),
            ("t4", FLOAT16, False, []),
            ("t4", FLOAT32, False, []),
            ("v100-pcie-32gb", FLOAT16, True, ["FlashAttention-2"]),
            ("a10", BFLOAT16, True, []),
            ("a10", FLOAT32, True, ["FlashAttention-2 in float32"]),
            ("b300", BFLOAT16, True, []),
            ("mi300x", BFLOAT16, True, []),
        ],
    )
    def test_what_is_asked_for_and_not_there(self, name, dtype, flash, lacking):
        gpu = gpu_named(name)
        assert [*missing_features(gpu, dtype, flash_attention=flash)] == lacking
        said = f"{gpu.title} has no {' and no '.join(lacking)}"
        with pytest.raises(DeviceError, match=said) if lacking else nullcontext():
            check_features(gpu, dtype, flash_attention=flash)

    def test_another_vendors_architecture_is_named_and_one_that_nobody_stated_lacks_nothing(self):
        old = gpu_with(32, rocm_target="gfx906")
        with pytest.raises(DeviceError, match="gfx90a or gfx942 or gfx950, not gfx906"):
            check_features(old, FLOAT16, flash_attention=True)
        assert gpu_with(32).has_flash_attention is None
        assert missing_features(gpu_with(32), BFLOAT16, flash_attention=True) == {}

    def test_a_profile_of_ones_own_states_its_architecture(self, tmp_path):
        file = tmp_path / "own.toml"
        table = ("title = 'Own'\ntensor_tflops = 60\nbandwidth_gb_s = 300\nmemory_gb = 11\n"
                 "tensor_dtype = 'float16'\nsource = 'me'\nsms = 30\nl2_mb = 4\nlike = 't4'\n"
                 "compute_capability = 7.5\n")  # fmt: skip
        file.write_text(f"name = 'own'\n[gpu]\n{table}")
        assert profile_from_file(file).gpu.has_flash_attention is False

    def test_nothing_fits_where_the_model_does_not_run(self):
        found = fit(gpu_named("t4"), DEFAULT, DIMENSIONS, PAGE, dtype=BFLOAT16,
                    flash_attention=False, reserved=0.1)  # fmt: skip
        assert found.needed_bytes < found.usable_bytes  # the memory would do
        assert (found.fits, found.largest_batch) == (False, 0)


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows_of(capsys, *arguments):
    code, out, _ = run(capsys, "fit", *arguments, "--format", "json")
    return code, json.loads(out)["gpus"]


def test_the_json_and_both_tables_say_what_limits_and_what_is_assumed(capsys):
    page = ("l4", "--page", "1191x1684")
    _, [row] = rows_of(capsys, *page)
    one = row["one_at_a_time"]
    assert [(each["limit"], each["limit_moment"]) for each in (row, one)] == [
        ("logits", "prefill"), ("cache", "decode"),
    ]  # fmt: skip
    assert "at once" in row["assumption"]
    assert "one page prefills" in one["assumption"]
    assert one["largest_batch"] > row["largest_batch"]
    assert row["prefill_bytes"] == sum(row["prefill"].values())
    assert row["decode_bytes"] == sum(row["decode"].values())
    assert row["needed_bytes"] == row["weights_bytes"] + row["prefill_bytes"]
    said = [str(row["largest_batch"]), str(one["largest_batch"]), "logits (prefill)", "708.2 MB",
            "cache (decode)", "inputs", row["assumption"], one["assumption"]]  # fmt: skip
    for form in ("table", "markdown"):
        text = " ".join(run(capsys, "fit", *page, "--format", form)[1].split())
        assert [each for each in said if each not in text] == []


@pytest.mark.parametrize(
    ("line", "code", "fits"),
    [
        ("l4", 0, [True]),
        ("l4 --batch-size 1000", 1, [False]),
        ("l4 h200 --batch-size 100", 1, [False, True]),
        ("h200 --batch-size 100", 0, [True]),
        # One at a time they would; as generate runs them they do not.
        ("l4 --batch-size 100", 1, [False]),
        # Of a GPU that is not named, nothing fails.
        ("--batch-size 1000000", 0, [False] * len(gpu_catalogue())),
        ("t4 --dtype float16", 0, [True]),
        ("v100 --dtype fp16", 0, [True]),
        ("h100 --use-flash-attn 1", 0, [True]),
    ],
)
def test_exit_codes(capsys, line, code, fits):
    ended, rows = rows_of(capsys, *line.split())
    assert (ended, [row["fits"] for row in rows]) == (code, fits)


@pytest.mark.exhaustive
def test_in_a_list_of_all_gpus_what_one_lacks_is_said(capsys):
    rows = {row["gpu"]: row for row in rows_of(capsys)[1]}
    assert {name for name, row in rows.items() if row["lacks"]} == BEFORE_AMPERE
    assert rows["t4"]["lacks"] == ["bfloat16"]
    for row in (rows["t4"], rows["t4"]["one_at_a_time"]):
        assert (row["fits"], row["largest_batch"], row["limit"]) == (False, 0, None)
    flash = ("--use-flash-attn", "1")
    [t4] = re.findall(r"\n\| T4 .*", run(capsys, "fit", *flash, "--format", "markdown")[1])
    assert "| no bfloat16, no FlashAttention-2 | - |" in t4
    # Predictions leave those out, but a serving engine brings its own kernel.
    fp16 = ("--dtype", "fp16", *flash, "--format", "json", "--max-new-tokens", "2")
    _, out, err = run(capsys, "time", *fp16, "--runtime", "eager", "--concurrency", "1")
    names = {entry["gpu"] for entry in json.loads(out)["time"]}
    assert names == {*gpu_catalogue()} - BEFORE_AMPERE
    assert err.count("use --use-flash-attn 0") == len(BEFORE_AMPERE)
    assert run(capsys, "time", "v100", *fp16)[0] == 0


@pytest.mark.parametrize(
    ("line", "named"),
    [("fit gtx", "h100-sxm"), ("fit l4 --reserved 1", "--reserved 1"), ("fit --format xml", "xml"),
     ("fit --dtype int4", "bfloat16"), ("devices gtx", "h100-sxm"), ("devices --format xml", "xml"),
     ("devices --profile /none/there", "/none/there")],
)  # fmt: skip
def test_bad_input_gets_one_line_and_exit_code_2(capsys, line, named):
    code, out, err = run(capsys, *line.split())
    assert (code, out, err.count("\n"), named in err) == (2, "", 1, True)


def test_no_code_of_a_directory_is_executed(capsys):
    config = json.loads((DEFAULT.reference / "config.json").read_text())
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(config))
    Path("model/modeling_deepseekocr.py").write_text("raise SystemExit('executed')")
    assert main(["fit", "l4", "--model", "model"]) == 0
