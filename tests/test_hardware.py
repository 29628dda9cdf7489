"""The GPU catalogue, and what fits into a GPU."""

import json
import math
import tomllib
from pathlib import Path

import pytest
from command_line import run

from dsocr_analyze.architectures import DEFAULT, plan_workload
from dsocr_analyze.cli import main
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.devices import Gpu, gpu_catalogue, gpu_named
from dsocr_analyze.hardware.fit import LARGEST_BATCH, fit, largest_batch, memory_need
from dsocr_analyze.hardware.profile import check_gpu
from dsocr_analyze.model.directory import read_config

SHIPPED = Path(__file__).parent.parent / "src/dsocr_analyze/hardware"
DIMENSIONS = DEFAULT.forms.dimensions(read_config(DEFAULT.reference / "config.json"))
PAGE = plan_workload(page=(1191, 1684), max_new_tokens=1024)
COUNTED = {"dtype": BFLOAT16, "flash_attention": False}

# Rates with sparsity or of the shader cores, seen in public tables.
WRONG_RATES = {"h100-sxm": [1979], "l4": [242], "rtx-4090": [661, 82.6], "rtx-3090": [285, 35.6]}


class TestCatalogue:
    def test_every_entry_is_plausible_and_what_a_users_has_to_be(self):
        text = (SHIPPED / "devices.toml").read_text(encoding="utf-8")
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


class TestFit:
    def test_a_page_needs_its_weights_and_the_higher_peak(self):
        need = memory_need(DEFAULT, DIMENSIONS, PAGE, **COUNTED)
        cache = 61_440 * (913 + 1023)
        assert need.weights_bytes == 2 * 3_336_106_240
        memory = DEFAULT.forms.memory(DIMENSIONS, PAGE, BFLOAT16, False)
        assert need.prefill.nbytes == memory.peak.nbytes + memory.inputs_bytes
        step = cache + cache // 12 + 129_280 * (2 + 4)
        assert need.decode.nbytes == memory.inputs_bytes + step
        assert need.total_bytes == need.weights_bytes + need.prefill.nbytes

    def test_a_long_answer_makes_the_cache_the_higher_peak(self):
        long = plan_workload(page=(600, 500), image_size=512, crop_mode=False, max_new_tokens=8000)
        need = memory_need(DEFAULT, DIMENSIONS, long, **COUNTED)
        assert need.decode.nbytes > need.prefill.nbytes
        assert need.total_bytes == need.weights_bytes + need.decode.nbytes

    @pytest.mark.parametrize("name", ["l4", "a100-40gb", "h200-sxm"])
    def test_the_largest_batch_fits_and_one_more_does_not(self, name):
        result = fit(gpu_named(name), DEFAULT, DIMENSIONS, PAGE, **COUNTED, reserved=0.25)
        assert result.usable_bytes == int(0.75 * gpu_named(name).memory_bytes)

        def needed(batch):
            pages = plan_workload(page=(1191, 1684), batch_size=batch)
            return memory_need(DEFAULT, DIMENSIONS, pages, **COUNTED).total_bytes

        assert (
            needed(result.largest_batch) <= result.usable_bytes < needed(result.largest_batch + 1)
        )

    def test_nothing_fits_where_the_weights_do_not(self):
        tiny = Gpu("tiny", "Tiny", 1, 1, memory_gb=4, source="made up")
        result = fit(tiny, DEFAULT, DIMENSIONS, PAGE, **COUNTED, reserved=0)
        assert (result.largest_batch, result.fits) == (0, False)

    @pytest.mark.parametrize("most", [0, 1, 2, 3, 4, 5, 60, LARGEST_BATCH - 1, LARGEST_BATCH])
    def test_the_largest_batch_is_found_by_few_tries(self, most):
        tried = []

        def is_possible(batch):
            tried.append(batch)
            return batch <= most

        assert largest_batch(is_possible) == most
        assert len(tried) <= 2 * math.log2(most + 1) + 2
        assert max(tried) <= LARGEST_BATCH


class TestCommand:
    @pytest.fixture(autouse=True)
    def _somewhere_else(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

    def test_json_holds_what_the_table_shows(self, capsys):
        code, out, _ = run(capsys, "fit", "l4", "--format", "json", "--page", "1191x1684")
        [row] = json.loads(out)["gpus"]
        assert (code, row["gpu"], row["fits"]) == (0, "l4", True)
        code, out, _ = run(capsys, "fit", "l4", "--page", "1191x1684")
        assert code == 0
        assert str(row["largest_batch"]) in out

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [(["gtx"], "h100-sxm"), (["l4", "--reserved", "1"], "--reserved 1"),
         (["--format", "xml"], "xml"), (["--dtype", "int4"], "bfloat16")],
    )  # fmt: skip
    def test_bad_input_gets_one_line_and_exit_code_2(self, capsys, arguments, named):
        code, out, err = run(capsys, "fit", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert named in err

    def test_no_code_of_a_directory_is_executed(self, capsys, tmp_path):
        config = json.loads((DEFAULT.reference / "config.json").read_text())
        Path("model").mkdir()
        Path("model/config.json").write_text(json.dumps(config))
        Path("model/modeling_deepseekocr.py").write_text("raise SystemExit('executed')")
        assert main(["fit", "l4", "--model", "model"]) == 0
