"""Any card: those in the catalogue, slips in their names, and a memory without a name."""

import json
import random
import re
from dataclasses import fields
from pathlib import Path

import pytest
from command_line import run

from dsocr_analyze.errors import DeviceError, is_slip
from dsocr_analyze.hardware import device, profile
from dsocr_analyze.hardware.devices import Gpu, gpu_aliases, gpu_catalogue

ROOT = Path(__file__).parent.parent

# What nvidia-smi prints, in MiB.
REPORTED = {
    "rtx 3060": 12288, "RTX 3060 Ti": 8192, "3070": 8192, "rtx3080": 10240, "3090": 24576,
    "4060": 8188, "RTX 4060 Ti 16GB": 16380, "NVIDIA GeForce RTX 4070": 12282, "rtx_4080": 16376,
    "4090": 24564, "5060 ti": 16311, "5070": 12227, "5080": 16303, "5090": 32607, "a6000": 49140,
    "RTX 6000 Ada": 49140, "L40": 46068, "a10g": 23028, "T4": 15360, "v100-sxm-16gb": 16384,
    "v100": 32768,
}  # fmt: skip

FAMILIES = (
    "a1", "h100", "h200", "h20", "b200", "b300", "gb200", "gb300", "rtx-20", "rtx-30", "rtx-40",
    "rtx-50", "rtx-a", "l4", "l20", "rtx-6000-ada", "rtx-2000-ada", "rtx-pro", "a30", "a40",
    "mi3", "arc", "t4", "v100",
)  # fmt: skip
"""Beginnings of names; a slip does not tell A10 from A100, nor L4 from L40."""

OTHERS = """a1000 a2 a16 a800 b100 b60 gh200 gb10 h800 k80 l2 l400 m1 m4 m40 mi100 mi210 mi250x
    p4 p40 p100 t400 t600 t1000 gtx-1080-ti gtx-1660 rtx-2060 rtx-2070 rtx-3050 rtx-4050
    rtx-5050 rtx-5000 rtx-8000 quadro-p6000 titan-rtx titan-v rx-6800 rx-7900-xtx rx-9070 arc-a770
    arc-b580 gaudi2 gaudi3 tpu-v5e ascend-910b macbook m3-max cuda mps gpu""".split()


def family(name):
    """The family of a catalogue name."""
    return next(each for each in FAMILIES if name.startswith(each))


def refusal(name):
    """What is said of a name that is not in the catalogue, or None."""
    try:
        device(name)
    except DeviceError as error:
        return str(error)
    return None


def suggested(name):
    """The catalogue names that are suggested for another."""
    said = refusal(name) or ""
    return said.partition("did you mean ")[2].rstrip("?").split(" or ") if "mean" in said else []


@pytest.mark.parametrize(("name", "mib"), REPORTED.items())
def test_the_memory_is_what_the_driver_reports(name, mib):
    assert device(name).gpu.memory_bytes == mib * 1024**2


def test_a_slip_never_leads_to_another_family():
    chosen = random.Random(34)
    names = {name: name for name in gpu_catalogue()} | gpu_aliases()
    for name, meant in sorted(names.items()):
        for _ in range(30):
            at = chosen.randrange(len(name))
            letter = chosen.choice("abhlrtvx0123456789")
            slip = chosen.choice([
                name[:at] + name[at + 1 :], name[:at] + letter + name[at:],
                name[:at] + letter + name[at + 1 :],
                name[:at] + name[at + 1 : at + 2] + name[at : at + 1] + name[at + 2 :],
            ])  # fmt: skip
            near = suggested(slip)
            # A slip in what makes the family makes it another's: "h100" or "a500" of "a100".
            first = next(at for at, letter in enumerate(name) if letter.isdigit())
            as_near = {family(other) for each, other in names.items() if is_slip(slip, each)}
            if at > first:
                assert {*map(family, near)} <= {family(meant), *as_near}, (name, slip, near)


@pytest.mark.parametrize(
    "name", [name for name in gpu_catalogue() if name.startswith(("rtx-", "mi3", "gb"))]
)
def test_a_digit_left_out_doubled_or_swapped_finds_the_family(name):
    start = next(at for at, letter in enumerate(name) if letter.isdigit())
    end = start + next((i for i, c in enumerate(name[start:]) if not c.isdigit()), len(name))
    number = name[start:end]
    for at in range(1, len(number)):
        for slip in (number[:at] + number[at + 1 :], number[: at + 1] + number[at:]):
            typed = name[:start] + slip + name[end:]
            if len(slip) > 2:
                assert {*map(family, suggested(typed))} == {family(name)}, typed
    assert {*map(family, suggested(f"x{name}"))} <= {family(name)}


@pytest.mark.parametrize("name", OTHERS)
def test_other_cards_are_told_how_to_ask_instead(name):
    said = refusal(name)
    assert "did you mean" not in said
    assert "use fit with memory_gb=GB" in said
    assert len(said) < 160  # no list of all


@pytest.mark.parametrize("name", ["8 GB", "8gb", "8GiB", "8g", "8.0 GB"])
def test_a_memory_as_a_name_is_told_the_option(capsys, name):
    code, _, err = run(capsys, "fit", name)
    assert (code, "use fit with --memory-gb 8" in err) == (2, True)


def test_a_card_of_some_memory_is_answered_without_rates(capsys):
    code, out, _ = run(capsys, "fit", "--memory-gb", "12", "--format", "json")
    [row] = json.loads(out)["gpus"]
    assert (code, row["fits"], row["memory_bytes"]) == (0, True, 12 * 10**9)
    assert (row["usable_bytes"], row["lacks"]) == (10_800_000_000, [])
    # 6,672,212,480 bytes of weights; a page takes 788 MB while all prefill.
    assert row["weights_bytes"] == 2 * 3_336_106_240
    assert row["largest_batch"] == (10_800_000_000 - 6_672_212_480) // 787_700_000
    code, out, _ = run(capsys, "fit", "--memory-gb", "7.9")
    assert (code, out.split(":")[0]) == (1, "No")
    # The same memory under a name has the same answer, and units may be written.
    same = run(capsys, "fit", "--memory-gb", "12 GiB", "--format", "json")[1]
    outs = [run(capsys, "fit", "--memory-gb", text)[1] for text in ("12", "12gb", "12.0 GB")]
    assert len({*outs}) == 1
    named = run(capsys, "fit", "rtx-3060", "--format", "json")[1]
    [mine], [its] = (json.loads(each)["gpus"] for each in (same, named))
    assert {**mine, "gpu": ""} == {**its, "gpu": ""}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        *((f"fit --memory-gb {wrong}", f"--memory-gb '{wrong}' is invalid; give a number above 0,"
           " at most 100000, like 12, 11.5 or 12GiB")
          for wrong in ("0", "-1", "nan", "inf", "1e3", "12MB", "100001", "twelve")),
        ("fit t4 --memory-gb 12", "--memory-gb 12 is of a card without a name; leave it or t4 out"),
        ("fit --profile /none/there", "cannot read '/none/there'"),
        ("check --profile /none/there --budgets budgets.toml", "cannot read '/none/there'"),
        ("time 3060", "seconds are not predicted on RTX 3060 12 GB: only its memory is known; give"
         " a profile of it, or use fit"),
        ("plan --pages 10 --gpu a10g", "seconds are not predicted on A10G: only its memory"),
        ("--gpu a5000", "seconds are not predicted on RTX A5000: only its memory is known"),
        ("rtx3060", "did you mean dsocr-analyze fit rtx-3060?"),
        ("time a6000x", "did you mean rtx-a6000?"),
    ],
)  # fmt: skip
def test_what_is_refused_is_said_in_one_line(capsys, monkeypatch, tmp_path, line, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "budgets.toml").write_text('[workloads.page]\ngpu = "h100"\n')
    code, out, err = run(capsys, *line.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_lists_show_what_is_not_known_as_such(capsys):
    row = json.loads(run(capsys, "devices", "rtx-3060", "--format", "json")[1])["devices"][0]
    assert (row["tensor_tflops"], row["bandwidth_gb_s"]) == (None, None)
    assert (row["memory_gb"], row["memory_mib"]) == (12, 12288)
    assert row["profile"]["source"] == "only its memory is known"
    _, out, err = run(capsys, "time", "--max-new-tokens", "2", "--format", "json")
    assert "rtx-3060" not in {each["gpu"] for each in json.loads(out)["time"]}
    assert "only its memory" not in err


# --- a server's view -----------------------------------------------------------------------------

WEIGHTS = 2 * 3_336_106_240
TOKEN = 61_440  # 12 layers, keys and values of 1,280 elements, 2 bytes each
PAGE_TOKENS = 913 + 1023
"""Keys of an A4 page in gundam, whose last token of 1,024 is not cached."""


def pass_bytes(tokens):
    """Activations and inputs of a pass of that page and others, up to 3,000 tokens in all."""
    beyond = max(0, tokens - 913)
    return 536_865_280 + 21_059_897 + beyond * (1280 * 2 + 25)


def vllm_tokens(memory, share, chunk):
    """What vLLM's own rule gives: whole blocks of 16 tokens beside weights and a full pass."""
    free = int(memory * share) - WEIGHTS - pass_bytes(chunk)
    return free // (16 * TOKEN) * 16


def served_by(capsys, *line):
    """Exit code and the entry of the one GPU of a fit."""
    code, out, err = run(capsys, "fit", *" ".join(line).split(), "--format", "json")
    assert code < 2, err
    [found] = json.loads(out)["served"].values()
    return code, found


def test_the_cache_is_what_the_engine_reports(capsys):
    # vLLM: 11,596,411,699 - 6,672,212,480 - 560,859,152 = 4,363,... bytes: 4,438 blocks.
    code, found = served_by(capsys, "rtx-3060 --server vllm")
    assert (code, found["kv_tokens"], found["largest_concurrency"]) == (0, 71_008, 36)
    assert found["kv_tokens"] == vllm_tokens(12288 * 2**20, 0.9, 2048)
    assert (found["weights_bytes"], found["token_bytes"]) == (WEIGHTS, TOKEN)
    assert found["page_tokens"] == PAGE_TOKENS
    assert found["limits"] == (
        "gpu_memory_utilization 0.9, max_num_batched_tokens 2,048; GPU KV cache size 71,008 tokens"
    )
    # SGLang: 11,338,713,661 - 6,672,212,480 = 4,666,501,181 bytes, beside which it computes.
    code, found = served_by(
        capsys, "rtx-3060 --server sglang --mem-fraction-static 0.88 --max-running-requests 32"
    )
    assert (code, found["kv_tokens"], found["largest_concurrency"]) == (0, 75_952, 32)
    assert (11_338_713_661 - WEIGHTS) // TOKEN == 75_952
    assert found["limit"] == "max_running_requests"
    assert found["limits"] == (
        "mem_fraction_static 0.88, max_running_requests 32, chunked_prefill_size 8,192;"
        " max_total_num_tokens 75,952 tokens"
    )


@pytest.mark.parametrize(
    ("share", "sequences", "chunk", "pages"),
    [(0.9, None, 2048, 1), (0.95, 256, 3000, 36), (0.7, 8, 913, 9), (1.0, 1, 64, 1)],
)
def test_limits_decide_what_fits(capsys, share, sequences, chunk, pages):
    line = f"l40 --gpu-memory-utilization {share} --max-num-batched-tokens {chunk}"
    line += "" if sequences is None else f" --max-num-seqs {sequences}"
    code, found = served_by(capsys, line, f"--batch-size {pages}")
    tokens = vllm_tokens(46068 * 2**20, share, chunk)
    fitting = tokens // 16 // -(-PAGE_TOKENS // 16)
    most = fitting if sequences is None else min(fitting, sequences)
    assert (found["kv_tokens"], found["largest_concurrency"]) == (tokens, most)
    assert (found["fits"], code) == (pages <= most, int(pages > most))
    assert found["limit"] == ("max_num_seqs" if most == sequences else "GPU KV cache size")


def test_a_larger_pass_leaves_less_for_vllms_cache(capsys):
    found = [
        served_by(capsys, f"rtx-3060 --server {server} --chunked-prefill-size {chunk}")[1]
        for server in ("vllm", "sglang")
        for chunk in (512, 2048, 8192, 16384)
    ]
    tokens = [each["kv_tokens"] for each in found]
    assert tokens[:4] == sorted(tokens[:4], reverse=True)
    assert tokens[0] - tokens[3] > 30_000
    assert len({*tokens[4:]}) == 1


def test_fewer_bits_leave_more_for_the_cache(capsys):
    _, found = served_by(capsys, "rtx-3060 --kv-dtype fp8")
    assert found["token_bytes"] == TOKEN // 2
    _, found = served_by(capsys, "rtx-3060 --weights-dtype int4")
    # 12 layers of 4 x 1280 x 1280; one of 3 x 1280 x 6848; 11 of 64 experts and a shared pair.
    layers = 12 * 4 * 1280**2 + 3 * 1280 * 6848 + 11 * 66 * 3 * 1280 * 896
    assert found["weights_bytes"] == WEIGHTS - 2 * layers + layers // 2 + layers // 64
    _, nothing = served_by(capsys, "--memory-gb 6 --server vllm")
    assert (nothing["kv_tokens"], nothing["largest_concurrency"], nothing["limit"]) == (0, 0, None)


@pytest.mark.parametrize("server", ["vllm", "vllm-v0", "sglang"])
def test_seconds_and_plan_obey_the_same_limits(capsys, server):
    limits = ("--server", server, "--gpu-memory-utilization", "0.8", "--max-num-seqs", "24")
    _, out, _ = run(capsys, "time", "l40s", *limits, "--concurrency", "max,100", "--format", "json")
    [entry] = json.loads(out)["time"]
    _, fitted = served_by(capsys, "l40s", *limits)
    assert entry["kv_tokens"] == fitted["kv_tokens"]
    assert entry["assumptions"]["limits"] == fitted["limits"]
    assert entry["largest_concurrency"] == fitted["largest_concurrency"] == 24
    waiting, most = entry["throughput"]
    assert (most["concurrency"], most["fits"], waiting["fits"]) == (24, True, False)
    assert waiting["pages_per_second"] == pytest.approx(most["pages_per_second"], rel=0.02)
    assert waiting["memory_bytes"] == most["memory_bytes"]  # others hold no cache
    _, out, _ = run(capsys, "plan", "--pages", "1k", "--gpu", "l40s", *limits, "--format", "json")
    [plan] = json.loads(out)["gpus"]
    assert plan["largest_concurrency"] == 24
    assert plan["points"]["max"]["concurrency"] == 24


def test_lines_state_the_limits_in_the_engines_words(capsys):
    _, out, _ = run(
        capsys, "time", "h100", "--max-num-seqs", "64", "--gpu-memory-utilization", "0.95",
        "--concurrency", "max,128",
    )  # fmt: skip
    said = " ".join(out.split())
    tokens = vllm_tokens(80 * 10**9, 0.95, 2048)
    assert (
        "h100-sxm, serving, vllm: gpu_memory_utilization 0.95, max_num_seqs 64,"
        f" max_num_batched_tokens 2,048; GPU KV cache size {tokens:,} tokens"
    ) in said
    assert f"at most 64 pages at once ({tokens:,} KV tokens)" in said
    assert "128 at once, 2 CPU workers), bound by memory; only 64 run at a time" in said
    _, out, _ = run(capsys, "time", "h100", "--server", "sglang", "--chunked-prefill-size", "4096",
                    "--assumptions")  # fmt: skip
    said = " ".join(out.split())
    assert "mem_fraction_static 0.9, chunked_prefill_size 4,096;" in said
    assert "10 % of the GPU's memory is kept free of weights and cache, for activations" in said
    _, out, _ = run(capsys, "plan", "--pages", "9", "--gpu", "l4", "--max-num-seqs", "3",
                    "--assumptions")  # fmt: skip
    assert "vllm has gpu_memory_utilization 0.9, max_num_seqs 3," in " ".join(out.split())


def test_of_all_gpus_under_a_server_the_first_line_has_those_without_the_type(capsys):
    out = run(capsys, "fit", "--server", "vllm", "--use-flash-attn", "1", "--format", "json")[1]
    found = json.loads(out)
    assert found["served"].keys() < {each["gpu"] for each in found["gpus"]}
    out = run(capsys, "fit", "--server", "vllm", "--use-flash-attn", "1", "--format", "markdown")[1]
    said = f"under vllm: on {len(found['served'])} of {len(found['gpus'])} GPUs; no bfloat16"
    assert said in out.splitlines()[0]


def test_where_nothing_fits_the_first_line_says_so(capsys):
    for share in (("--reserved", "0.99"), ("--gpu-memory-utilization", "0.01")):
        out = run(capsys, "time", "h100", *share)[1]
        assert "; not one fits" in " ".join(out.splitlines()[:2])


def test_a_share_is_what_is_not_reserved(capsys):
    share = ("--gpu-memory-utilization", "0.8")
    outs = [
        json.loads(run(capsys, "time", "l4", *given, "--format", "json")[1])["time"][0]
        for given in (share, ("--reserved", "0.2"))
    ]
    assert {each["largest_concurrency"] for each in outs} == {outs[0]["largest_concurrency"]}
    assert outs[0]["throughput"] == outs[1]["throughput"]
    assert [each["assumptions"]["limits"] is None for each in outs] == [False, True]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        *((f"{command} --gpu-memory-utilization {share}", f"--gpu-memory-utilization {share} is"
           " out of range; give a part above 0, at most 1")
          for command in ("fit l4", "time l4") for share in ("0", "1.5", "nan")),
        ("time l4 --max-num-seqs 0", "--max-num-seqs 0 is out of range; give 1 to 65536"),
        ("fit l4 --max-num-seqs 65537", "--max-num-seqs 65537 is out of range; give 1 to 65536"),
        ("time l4 --chunked-prefill-size -1", "--chunked-prefill-size -1 is out of range"),
        ("fit l4 --max-running-requests=0", "--max-running-requests 0 is out of range"),
        ("plan --pages 9 --mem-fraction-static 1.5", "--mem-fraction-static 1.5 is out of range"),
        ("time l4 --max-running-requests x", "--max-running-requests 'x' is invalid; give a num"),
        ("--mem-fraction-static 0.8", "--mem-fraction-static is for predicted seconds; give --gpu"),
        ("fit l4 --max-num-batched-tokens 2000000", "give 1 to 1048576"),
        ("time l4 --reserved 0.2 --gpu-memory-utilization 0.9",
         "--gpu-memory-utilization 0.9 leaves 0.1 of the memory free; leave out --reserved 0.2"),
        ("plan --pages 9 --gpu l4 --max-num-seqs 300 --max-num-batched-tokens 256",
         "vLLM refuses --max-num-batched-tokens 256 below --max-num-seqs 300; give 300 or more"),
        ("time l4 --runtime eager --max-num-seqs 4",
         "--max-num-seqs is for --runtime serving; leave it out"),
        ("--max-num-seqs 4", "--max-num-seqs is for predicted seconds; give --gpu too"),
        ("fit l4 --server vlm", "--server 'vlm' is unknown; did you mean vllm?"),
        ("fit l4 --weights-dtype int3", "--weights-dtype 'int3' is"),
        ("fit t4 --server vllm", "T4 has no bfloat16; use --dtype float16"),
    ],
)  # fmt: skip
def test_limits_that_are_impossible_are_refused(capsys, line, said):
    code, out, err = run(capsys, *line.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


# --- profiles ------------------------------------------------------------------------------------

EXAMPLE = ROOT / "examples/rtx-4080.toml"
PAGE = (ROOT / "docs/cards.md").read_text(encoding="utf-8")


def test_the_example_is_shown_and_gives_its_card_seconds(capsys):
    assert f"```toml\n{EXAMPLE.read_text(encoding='utf-8')}```" in PAGE
    assert run(capsys, "time", "rtx-4080")[0] == 2
    code, out, _ = run(capsys, "time", "4080", "--profile", EXAMPLE, "--format", "json")
    [entry] = json.loads(out)["time"]
    assert (code, entry["gpu"]) == (0, "rtx-4080")
    # Slower than the L40S, whose kernels it has, by no more than their bandwidths.
    [other] = json.loads(run(capsys, "time", "l40s", "--format", "json")[1])["time"]
    assert 1 < entry["page_seconds"] / other["page_seconds"] < 864 / 716.8 * 1.05
    listed = run(capsys, "devices", "rtx-4080", "--profile", EXAMPLE)[1]
    assert re.search(r"^rtx-4080 +97.5 +- +716.8 +16 +~", listed, re.M)


def test_the_page_names_every_key_of_a_profile():
    for key in (*(each.name for each in fields(Gpu)), *profile._TOP):
        assert f"`{key}`" in PAGE, key


@pytest.mark.parametrize(
    "command",
    ["fit", "time", "devices", "plan", "compare", "archive", "sweep", "check", "advise", "measure",
     "infer", ""],
)  # fmt: skip
def test_every_command_with_a_gpu_takes_a_profile(capsys, command):
    assert " --profile FILE " in run(capsys, *command.split(), "--help-all")[1]


def test_a_profile_counts_in_fit_and_check(capsys, tmp_path):
    text = EXAMPLE.read_text(encoding="utf-8").replace('"rtx-4080"', '"mine"')
    mine = tmp_path / "mine.toml"
    mine.write_text(text.replace("memory_mib = 16376\n", "").replace("= 16\n", "= 9.5\n"))
    code, out, _ = run(capsys, "fit", "mine", "--profile", mine, "--format", "json")
    assert (code, json.loads(out)["gpus"][0]["memory_bytes"]) == (0, 9_500_000_000)
    budgets = tmp_path / "budgets.toml"
    budgets.write_text(
        '[workloads.page]\nengine = "analytic"\ngpu = "mine"\n[[workloads.page.budgets]]\n'
        'key = "time[gpu=mine].page_seconds"\nmax = 3600\n'
    )
    assert run(capsys, "check", "--budgets", budgets)[0] == 2
    assert run(capsys, "check", "--budgets", budgets, "--profile", mine)[0] == 0
