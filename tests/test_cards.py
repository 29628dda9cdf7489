"""Any card: those in the catalogue, slips in their names, and a memory without a name."""

import json
import random

import pytest
from command_line import run

from dsocr_analyze.errors import DeviceError, is_slip
from dsocr_analyze.hardware.devices import gpu_aliases, gpu_catalogue, gpu_named

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
    arc-b580 gaudi2 gaudi3 tpu-v5e ascend-910b macbook m3-max cpu cuda mps gpu""".split()


def family(name):
    """The family of a catalogue name."""
    return next(each for each in FAMILIES if name.startswith(each))


def refusal(name):
    """What is said of a name that is not in the catalogue, or None."""
    try:
        gpu_named(name)
    except DeviceError as error:
        return str(error)
    return None


def suggested(name):
    """The catalogue names that are suggested for another."""
    said = refusal(name) or ""
    return said.partition("did you mean ")[2].rstrip("?").split(" or ") if "mean" in said else []


@pytest.mark.parametrize(("name", "mib"), REPORTED.items())
def test_the_memory_is_what_the_driver_reports(name, mib):
    assert gpu_named(name).memory_bytes == mib * 1024**2


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
    assert "dsocr-analyze fit --memory-gb GB" in said
    assert len(said) < 160  # no list of all


@pytest.mark.parametrize("name", ["8 GB", "8gb", "8GiB", "8g", "8.0 GB"])
def test_a_memory_as_a_name_is_told_the_option(capsys, name):
    code, _, err = run(capsys, "fit", name)
    assert (code, "use dsocr-analyze fit --memory-gb 8" in err) == (2, True)


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
    # The same memory under a name has the same answer.
    same = run(capsys, "fit", "--memory-gb", f"{12288 * 2**20 / 1e9}", "--format", "json")[1]
    named = run(capsys, "fit", "rtx-3060", "--format", "json")[1]
    [mine], [its] = (json.loads(each)["gpus"] for each in (same, named))
    assert {**mine, "gpu": ""} == {**its, "gpu": ""}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fit --memory-gb 0", "--memory-gb 0 is out of range; give a number above 0"),
        ("fit --memory-gb -1", "--memory-gb -1 is out of range"),
        ("fit --memory-gb nan", "--memory-gb nan is out of range"),
        ("fit --memory-gb inf", "--memory-gb inf is out of range"),
        ("fit --memory-gb 12GB", "--memory-gb '12GB' is invalid; give"),
        ("fit t4 --memory-gb 12", "--memory-gb 12 is of a card without a name; leave it or t4 out"),
        ("fit --profile /none/there", "cannot read '/none/there'"),
        ("check --profile /none/there --budgets budgets.toml", "cannot read '/none/there'"),
        ("time 3060", "seconds are not predicted on RTX 3060 12 GB: only its memory is known; give"
         " a profile of it, or use fit"),
        ("plan --pages 10 --gpu a10g", "seconds are not predicted on A10G: only its memory"),
        ("--gpu l40", "seconds are not predicted on L40: only its memory is known"),
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
