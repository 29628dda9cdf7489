"""Predicted kernel times: properties of the formulas, profiles, names, and published rows."""

import itertools
import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import run
from sampling import named, sampled

from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.figures import expected_experts
from dsocr_analyze.hardware import device
from dsocr_analyze.hardware.coefficients import (
    COEFFICIENTS,
    OPTIONAL,
    coefficients_of,
)
from dsocr_analyze.hardware.devices import gpu_aliases, gpu_catalogue, gpu_named
from dsocr_analyze.hardware.kernel_times import Machine
from dsocr_analyze.hardware.kernel_times.formulas import formula_seconds
from dsocr_analyze.hardware.profile import all_profiles, check_kinds, profile_from_file
from dsocr_analyze.hardware.timed_device import EXTRAPOLATED_BAND, WEIGHT_ONLY_ERROR

PROFILES = Path(__file__).parent.parent / "src/dsocr_analyze/hardware/profiles"
MEASURED = ("h100-sxm", "h200-sxm", "l40s", "b200", "b300", "gb200", "gb300", "rtx-pro-6000",
            "a100-80gb-sxm")  # fmt: skip
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
            assert {kind for kind, _ in profile.kinds} == set(COEFFICIENTS) - set(OPTIONAL)
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
        [("name = 3", "name must be"), ("name = 'x'", "table \\[gpu\\]"), ("x", "not a device"),
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
            assert {kind["kind"] for kind in each["kinds"]} == set(COEFFICIENTS) - set(OPTIONAL)
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

    @pytest.mark.parametrize(
        "arguments", [["gtx"], ["--format", "xml"], ["--profile", "/none/there"]]
    )
    def test_bad_input_gets_one_line_and_exit_code_2(self, capsys, arguments):
        code, out, err = run(capsys, "devices", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
