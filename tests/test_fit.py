"""The GPU catalogue, what GPUs lack, and what fits into one: parts, orders, limits."""

import copy
import json
import math
import re
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from both_engines import LATENT, small_directory
from command_line import run
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
from dsocr_analyze.hardware.devices import (
    Gpu,
    check_features,
    gpu_catalogue,
    gpu_named,
    missing_features,
)
from dsocr_analyze.hardware.fit import LARGEST_BATCH, MemoryNeed, fit, largest_batch, memory_need
from dsocr_analyze.hardware.profile import check_gpu, profile_from_file
from dsocr_analyze.model.directory import read_config

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
    ("arguments", "named"),
    [(["gtx"], "h100-sxm"), (["l4", "--reserved", "1"], "--reserved 1"),
     (["--format", "xml"], "xml"), (["--dtype", "int4"], "bfloat16")],
)  # fmt: skip
def test_bad_input_gets_one_line_and_exit_code_2(capsys, arguments, named):
    code, out, err = run(capsys, "fit", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert named in err


def test_no_code_of_a_directory_is_executed(capsys):
    config = json.loads((DEFAULT.reference / "config.json").read_text())
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(config))
    Path("model/modeling_deepseekocr.py").write_text("raise SystemExit('executed')")
    assert main(["fit", "l4", "--model", "model"]) == 0
