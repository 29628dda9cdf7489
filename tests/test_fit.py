"""What fits into a GPU: parts of the need, two orders of prefilling, limits, and what GPUs lack."""

import copy
import json
from dataclasses import replace

import pytest
from both_engines import LATENT, small_directory
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.closed_forms import ClosedForms, _logits_bytes
from dsocr_analyze.cli import main
from dsocr_analyze.dtypes import BFLOAT16, FLOAT16, FLOAT32
from dsocr_analyze.errors import DeviceError
from dsocr_analyze.figures import BytesAlive, MemoryFigures, Peak
from dsocr_analyze.hardware import device
from dsocr_analyze.hardware import fit as fitting
from dsocr_analyze.hardware.devices import (
    Gpu,
    check_features,
    gpu_catalogue,
    gpu_named,
    missing_features,
)
from dsocr_analyze.hardware.fit import MemoryNeed, fit, memory_need
from dsocr_analyze.hardware.profile import profile_from_file
from dsocr_analyze.model.directory import read_config

DIMENSIONS = DEFAULT.forms.dimensions(read_config(DEFAULT.reference / "config.json"))
PAGE = DEFAULT.plan(page=(1191, 1684), max_new_tokens=1024)
ORDERS = ("at once", "one at a time")
BEFORE_AMPERE = {"t4", "v100-sxm-16gb", "v100-sxm-32gb", "v100-pcie-16gb", "v100-pcie-32gb"}
MB = 10**6


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


def fit_by_hand(memory_gb, batch=1, **parts):
    return fit(
        gpu_with(memory_gb), architecture_of(**parts), None, replace(PAGE, batch_size=batch),
        dtype=BFLOAT16, flash_attention=False, reserved=0,
    )  # fmt: skip


PARTS = {"weights": 600, "prefill": (10, 20, 30, 40), "decode": (10, 27, 0, 1), "cache": 25}


class TestByHand:
    def test_all_pages_at_once(self):
        # 600 + 100 a page: 4 in 1,000 MB. The fifth fails for its logits.
        found = fit_by_hand(1, batch=3, **PARTS)
        assert (found.prefill_bytes, found.decode_bytes) == (300 * MB, 3 * 38 * MB)
        assert found.needed_bytes == 900 * MB
        assert (found.fits, found.largest_batch) == (True, 4)
        assert (found.limit, found.limit_moment) == ("logits", "prefill")

    def test_one_at_a_time(self):
        # 600, a page's prefill pass of 100, 25 for each other page: 13, whose decode step takes
        # 13 x 28 = 364 MB, no inputs among them. The fourteenth fails for the caches.
        found = fit_by_hand(1, batch=3, **PARTS).one_at_a_time
        assert found.prefill == BytesAlive(10 * MB, (20 + 2 * 25) * MB, 30 * MB, 40 * MB)
        assert found.decode == BytesAlive(0, 3 * 27 * MB, 0, 3 * MB)
        assert found.largest_batch == 13
        assert (found.limit, found.limit_moment) == ("cache", "prefill")

    def test_the_decode_step_may_be_what_limits(self):
        found = fit_by_hand(1, **{**PARTS, "decode": (10, 39, 0, 1)}).one_at_a_time
        assert found.largest_batch == 10
        assert (found.limit, found.limit_moment) == ("cache", "decode")

    @pytest.mark.parametrize(
        ("change", "largest", "limit"),
        [
            ({"weights": 1001}, 0, ("weights", None)),
            # The weights fit, with nothing beside them.
            ({"weights": 1000}, 0, ("logits", "prefill")),
            ({"prefill": (50, 20, 30, 40)}, 2, ("inputs", "prefill")),
            ({"prefill": (10, 45, 30, 40)}, 3, ("cache", "prefill")),
            ({"prefill": (10, 20, 60, 40)}, 3, ("activations", "prefill")),
            ({"decode": (10, 27, 0, 70)}, 3, ("logits", "decode")),
            ({"decode": (80, 27, 0, 1)}, 3, ("inputs", "decode")),
        ],
    )
    def test_every_part_can_be_the_limit(self, change, largest, limit):
        found = fit_by_hand(1, **{**PARTS, **change})
        assert (found.largest_batch, found.limit, found.limit_moment) == (largest, *limit)
        assert found.fits == (largest > 0)

    def test_what_nothing_limits(self):
        tiny = {"weights": 1, "prefill": (0, 0, 0, 0), "decode": (0, 0, 0, 0), "cache": 0}
        found = fit_by_hand(1, **tiny)
        assert (found.largest_batch, found.limit) == (fitting.LARGEST_BATCH, None)

    def test_a_batch_that_needs_all_of_the_memory_fits(self):
        found = fit_by_hand(1, batch=4, **PARTS)
        assert found.needed_bytes == found.usable_bytes
        assert found.fits
        assert not fit_by_hand(1, batch=5, **PARTS).fits


class TestParts:
    """The parts of DeepSeek-OCR's peaks."""

    def need(self, dtype=BFLOAT16, order="at once", flash=False, dimensions=DIMENSIONS, **changes):
        workload = replace(PAGE, **changes)
        return memory_need(
            DEFAULT, dimensions, workload, dtype=dtype, flash_attention=flash, order=order
        )

    @pytest.mark.parametrize("batch", [1, 7])
    def test_the_prefill_pass_holds_its_inputs_cache_and_logits(self, batch):
        need = self.need(batch_size=batch)
        memory = DEFAULT.forms.memory(DIMENSIONS, replace(PAGE, batch_size=batch), BFLOAT16, False)
        assert memory.peak.path in ("", "lm_head")  # the head over all positions is the peak
        assert need.prefill.inputs_bytes == memory.inputs_bytes > batch * 21 * MB
        assert need.prefill.cache_bytes == batch * 913 * 12 * 2 * 1280 * 2
        assert need.prefill.logits_bytes == batch * 913 * 129_280 * (2 + 4)
        assert need.prefill.activation_bytes > 0
        assert need.prefill.nbytes == memory.peak.nbytes + memory.inputs_bytes

    def test_the_last_decode_step_holds_the_caches_and_what_generate_was_called_with(self):
        need, page = self.need(batch_size=5), 61_440 * (913 + 1023)
        assert need.decode == BytesAlive(need.prefill.inputs_bytes, 5 * page + 5 * page // 12, 0,
                                   5 * 129_280 * (2 + 4))  # fmt: skip

    def test_one_at_a_time_holds_the_other_pages_caches_at_their_full_length(self):
        alone, need = self.need(), self.need(batch_size=9, order="one at a time")
        page = 61_440 * (913 + 1023)
        assert need.prefill == structs.replace(
            alone.prefill, cache_bytes=alone.prefill.cache_bytes + 8 * page
        )
        assert need.decode == structs.replace(self.need(batch_size=9).decode, inputs_bytes=0)

    def test_one_page_alone_prefills_in_either_order(self):
        assert self.need().prefill == self.need(order="one at a time").prefill

    def test_logits_are_cast_unless_they_are_in_fp32(self):
        few = replace(DIMENSIONS, decoder=replace(DIMENSIONS.decoder, vocab_size=10))
        assert _logits_bytes(few, Pass(1, 3), BFLOAT16) == 3 * 10 * (2 + 4)
        assert _logits_bytes(few, Pass(1, 3), FLOAT32) == 3 * 10 * 4
        assert self.need(FLOAT32).decode.logits_bytes == 129_280 * 4

    def test_before_the_decoder_runs_nothing_is_cached(self):
        small = DEFAULT.plan(page=(300, 300), crop_mode=False, image_size=1024, text_tokens=1)
        dimensions = DEFAULT.forms.dimensions(small_directory().config)
        memory = DEFAULT.forms.memory(dimensions, small, BFLOAT16, False)
        assert memory.peak.path.startswith("model.sam_model")
        alive = DEFAULT.forms.prefill_bytes_alive(dimensions, small, BFLOAT16, False)
        assert alive == BytesAlive(memory.inputs_bytes, 0, memory.peak.nbytes, 0)

    def test_a_peak_in_a_layer_has_the_caches_up_to_it(self):
        # Eager scores [H, T, T] of a long prompt outweigh a small vocabulary's logits.
        dimensions = DEFAULT.forms.dimensions(small_directory().config)
        long = DEFAULT.plan(page=(300, 300), crop_mode=False, image_size=256, text_tokens=6000)
        memory = DEFAULT.forms.memory(dimensions, long, BFLOAT16, False)
        assert memory.peak.path == "model.layers.2.self_attn"
        alive = DEFAULT.forms.prefill_bytes_alive(dimensions, long, BFLOAT16, False)
        assert alive.cache_bytes == 3 * long.seq_len * 2 * 320 * 2
        assert alive.logits_bytes == 0
        assert alive.nbytes == memory.inputs_bytes + memory.peak.nbytes

    @settings(max_examples=60, deadline=None)
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

    def test_more_memory_holds_no_fewer_pages(self):
        for order in ORDERS:
            largest = [batch_fits(gpu_with(gb))[1][order].largest_batch for gb in range(5, 90, 12)]
            assert largest == sorted(largest)
            assert largest[0] == 0 < largest[-1]

    @pytest.mark.parametrize("name", [*gpu_catalogue()])
    def test_one_at_a_time_there_are_several_times_as_many(self, name):
        _, found = batch_fits(gpu_named(name))
        assert found["one at a time"].largest_batch > 5 * found["at once"].largest_batch > 0

    def test_the_published_model_on_an_h100(self):
        _, found = batch_fits(gpu_named("h100-sxm"))
        at_once, one = found["at once"], found["one at a time"]
        # 65.3 GB beside the weights; 788 MB a page, or 129.6 MB a page of cache and logits.
        assert (at_once.limit, at_once.limit_moment) == ("logits", "prefill")
        assert 80 <= at_once.largest_batch <= 83
        assert (one.limit, one.limit_moment) == ("cache", "decode")
        room = 72 * 10**9 - 2 * 3_336_106_240
        page = 61_440 * (913 + 1023)
        assert one.largest_batch == room // (page + page / 12 + 129_280 * 6)

    def test_what_is_too_small_for_the_weights_is_limited_by_them(self):
        for found in batch_fits(gpu_with(4))[1].values():
            assert found.largest_batch == 0
            assert (found.limit, found.limit_moment) == ("weights", None)


class TestLacks:
    @pytest.mark.parametrize("name", [*gpu_catalogue()])
    def test_bfloat16_and_flash_attention_came_with_ampere(self, name):
        gpu = gpu_named(name)
        old = name in BEFORE_AMPERE
        assert gpu.has_flash_attention is not old
        assert ("bfloat16" in gpu.dtypes) is not old
        if gpu.compute_capability:
            assert (gpu.compute_capability < 8) == old
        else:
            assert gpu.rocm_target

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
        found = missing_features(gpu, dtype, flash_attention=flash)
        assert [*found] == lacking
        if not lacking:
            check_features(gpu, dtype, flash_attention=flash)
            return
        with pytest.raises(DeviceError) as refused:
            check_features(gpu, dtype, flash_attention=flash)
        for said in (gpu.title, *lacking):
            assert said in str(refused.value)

    def test_another_vendors_architecture_is_named(self):
        old = gpu_with(32, rocm_target="gfx906")
        with pytest.raises(DeviceError, match="gfx90a or gfx942 or gfx950, not gfx906"):
            check_features(old, FLOAT16, flash_attention=True)

    def test_of_an_architecture_that_nobody_stated_nothing_is_refused(self):
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

    def test_devices_state_it(self):
        assert device("l4").gpu.compute_capability == 8.9


@pytest.fixture
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_somewhere_else")
class TestCommand:
    def rows(self, capsys, *arguments, code=0):
        assert main(["fit", *arguments, "--format", "json"]) == code
        return json.loads(capsys.readouterr().out)["gpus"]

    def test_json_says_what_limits_and_what_is_assumed(self, capsys):
        [row] = self.rows(capsys, "l4", "--page", "1191x1684")
        assert (row["limit"], row["limit_moment"]) == ("logits", "prefill")
        assert "at once" in row["assumption"]
        assert row["prefill_bytes"] == sum(row["prefill"].values())
        assert row["decode_bytes"] == sum(row["decode"].values())
        assert row["needed_bytes"] == row["weights_bytes"] + row["prefill_bytes"]
        one = row["one_at_a_time"]
        assert "one page prefills" in one["assumption"]
        assert one["largest_batch"] > row["largest_batch"]
        assert (one["limit"], one["limit_moment"]) == ("cache", "decode")

    @pytest.mark.parametrize("form", ["table", "markdown"])
    def test_tables_say_so_too(self, capsys, form):
        [row] = self.rows(capsys, "l4", "--page", "1191x1684")
        assert main(["fit", "l4", "--page", "1191x1684", "--format", form]) == 0
        text = " ".join(capsys.readouterr().out.split())
        for said in (str(row["largest_batch"]), str(row["one_at_a_time"]["largest_batch"]),
                     "logits (prefill)", "cache (decode)", "inputs", "708.2 MB",
                     row["assumption"], row["one_at_a_time"]["assumption"]):  # fmt: skip
            assert said in text

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (("l4",), 0),
            (("l4", "--batch-size", "1000"), 1),
            (("l4", "h200", "--batch-size", "100"), 1),
            (("h200", "--batch-size", "100"), 0),
            # One at a time they would; as generate runs them they do not.
            (("l4", "--batch-size", "100"), 1),
            ((), 0),
            (("--batch-size", "1000000"), 0),
            (("t4",), 2),
            (("t4", "--dtype", "float16"), 0),
            (("t4", "--dtype", "float16", "--use-flash-attn", "1"), 2),
            (("v100", "--dtype", "fp16", "--use-flash-attn", "1"), 2),
            (("v100", "--dtype", "fp16"), 0),
            (("h100", "--use-flash-attn", "1"), 0),
            (("h100", "t4"), 2),
        ],
    )
    def test_exit_codes(self, capsys, arguments, code):
        assert main(["fit", *arguments]) == code
        captured = capsys.readouterr()
        assert bool(captured.out) == (code != 2)
        assert captured.err.count("\n") == (code == 2)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("t4",), "T4 has no bfloat16; use --dtype float16"),
            (("v100-sxm-16gb", "--dtype", "fp16", "--use-flash-attn", "1"),
             "V100 SXM 16 GB has no FlashAttention-2, which needs compute capability 8.0, not 7.0;"
             " use --use-flash-attn 0"),
            (("a100", "t4", "--use-flash-attn", "1"),
             "T4 has no bfloat16 and no FlashAttention-2, which needs compute capability 8.0, not"
             " 7.5; use --dtype float16 and --use-flash-attn 0"),
            (("h100", "--dtype", "fp32", "--use-flash-attn", "1"),
             "H100 SXM has no FlashAttention-2 in float32, which computes in 16 bits; use"
             " --use-flash-attn 0"),
        ],
    )  # fmt: skip
    def test_what_a_named_gpu_lacks_is_named(self, capsys, arguments, said):
        assert main(["fit", *arguments]) == 2
        assert capsys.readouterr().err == f"dsocr-analyze: {said}\n"

    @pytest.mark.exhaustive
    def test_in_the_list_of_all_a_row_says_so(self, capsys):
        rows = {row["gpu"]: row for row in self.rows(capsys)}
        assert {name for name, row in rows.items() if row["lacks"]} == BEFORE_AMPERE
        assert rows["t4"]["lacks"] == ["bfloat16"]
        for row in (rows["t4"], rows["t4"]["one_at_a_time"]):
            assert (row["fits"], row["largest_batch"], row["limit"]) == (False, 0, None)
        assert main(["fit", "--use-flash-attn", "1", "--format", "markdown"]) == 0
        lines = capsys.readouterr().out.splitlines()
        [t4] = [line for line in lines if line.startswith("| T4 ")]
        assert "| no bfloat16, no FlashAttention-2 | - |" in t4

    @pytest.mark.parametrize("command", ["time", "fit"])
    def test_both_commands_refuse_alike(self, capsys, command):
        runtime = ["--runtime", "eager"] if command == "time" else []
        arguments = ["v100", "--dtype", "fp16", "--use-flash-attn", "1"]
        assert main([command, *arguments, *runtime]) == 2
        assert "has no FlashAttention-2" in capsys.readouterr().err

    @pytest.mark.exhaustive
    def test_times_of_all_leave_out_what_lacks_the_kernel(self, capsys):
        arguments = ["--dtype", "fp16", "--use-flash-attn", "1", "--runtime", "eager"]
        assert main(["time", *arguments, "--format", "json", "--max-new-tokens", "2",
                     "--concurrency", "1"]) == 0  # fmt: skip
        printed = capsys.readouterr()
        names = {entry["gpu"] for entry in json.loads(printed.out)["time"]}
        assert names == {*gpu_catalogue()} - BEFORE_AMPERE
        assert printed.err.count("use --use-flash-attn 0") == len(BEFORE_AMPERE)

    def test_a_serving_engine_brings_its_own_kernel(self, capsys):
        assert main(["time", "v100", "--dtype", "fp16", "--use-flash-attn", "1"]) == 0
        capsys.readouterr()

    def test_a_sweep_refuses_before_it_writes(self, capsys, tmp_path):
        assert main(["sweep", "--gpu", "v100", "--runtime", "eager", "--dtype", "fp16",
                     "--use-flash-attn", "1", "--output", "costs.csv", "--yes"]) == 2  # fmt: skip
        assert "V100" in capsys.readouterr().err
        assert not (tmp_path / "costs.csv").exists()


def test_a_need_is_the_weights_and_the_higher_peak():
    low, high = BytesAlive(1, 2, 3, 4), BytesAlive(5, 6, 7, 8)
    for need in (MemoryNeed(100, low, high), MemoryNeed(100, high, low)):
        assert need.total_bytes == 100 + 26
