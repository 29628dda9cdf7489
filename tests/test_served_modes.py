"""The modes that servers offer: what is kept of them, and what is said where another is priced."""

import itertools
import json

import pytest
from command_line import run

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.timing.runtimes import SERVERS
from dsocr_analyze.timing.served_modes import all_served_modes, served_notes


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "pages.csv").write_text("width,height\n2000,2000\n")


def said(sentences):
    return [
        each for each in sentences
        if any(of in each for of in (" offers ", " does not serve ", " cuts a page "))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--mode gundam", None),
        ("--mode tiny", "of DeepSeek-OCR's modes vllm offers gundam only, not tiny (since 0.14;"),
        ("--mode tiny --server sglang", "of DeepSeek-OCR's modes sglang offers gundam only, not"),
        ("--mode tiny --server vllm-v0", None),
        ("--mode tiny --runtime eager", None),
        ("--image-size 704 --crop-mode 0", "of DeepSeek-OCR's modes vllm offers gundam only, not"
         " other sizes (since"),
        ("--base-size 1024 --image-size 640 --crop-mode 1", None),
        # 3 x 3 tiles in the model's own code
        ("--page 2000x2000", "vllm cuts a page into at most 6 local views; pages are priced as the"
         " model's own code cuts them, into up to 9 ("),
        ("--page 2000x1333", None),
        ("--arch deepseek-ocr-2 --mode base", "of DeepSeek-OCR-2's modes vllm offers dynamic only"),
        ("--arch deepseek-ocr-2 --server sglang", "sglang offers dynamic, but 0.5.9 to 0.5.20 cut"
         " tiles of 640 pixels"),
        ("--arch deepseek-ocr-2 --server vllm-v1", "vllm-v1 does not serve DeepSeek-OCR-2: "),
        ("--arch unlimited-ocr --page 5200x2600", None),
        ("--arch unlimited-ocr --mode base", "vllm offers base, but 0.25 to 0.32 cut every page"),
        ("--arch unlimited-ocr --mode base --prompt-pages 2", None),
        ("--arch unlimited-ocr --mode tiny --server sglang --prompt-pages 2", None),
        ("--arch unlimited-ocr --mode large --server sglang", None),
        ("--arch unlimited-ocr --mode large --server sglang --prompt-pages 2",
         "of Unlimited-OCR's modes sglang offers base, tiny, small only, not large ("),
    ],
)  # fmt: skip
def test_a_page_that_a_server_treats_otherwise_is_priced_and_said(capsys, options, expected):
    code, out, _ = run(capsys, "time", "h100-sxm", *options.split(), "--format", "json", "--strict")
    [entry] = json.loads(out)["time"]
    found = said(entry["assumptions"]["sentences"])
    assert (code, len(found)) == (0, int(expected is not None))
    assert all(each.startswith(expected) for each in found)


def test_many_pages_are_told_once(capsys):
    pages = "sweep --page a4 --gpu h100-sxm --mode all"
    notes = said(run(capsys, *pages.split())[2].splitlines())
    assert [note.split(" (")[0].removeprefix("dsocr-analyze: assumed: ") for note in notes] == [
        "of DeepSeek-OCR's modes vllm offers gundam only, not tiny, small, base, large, gundam-m",
        "vllm cuts a page into at most 6 local views; pages are priced as the model's own code"
        " cuts them, into up to 9",
    ]
    pages = "archive pages.csv --gpu h100-sxm --mode tiny,gundam --format json"
    times = json.loads(run(capsys, *pages.split())[1])["time"]
    assert [len(said(each["assumptions"])) for each in times] == [1, 1]


def test_of_every_model_and_server_is_kept_what_it_offers():
    assert {name: row.keys() for name, row in all_served_modes().items()} == dict.fromkeys(
        ARCHITECTURES, SERVERS.keys()
    )
    for (name, rows), server in itertools.product(all_served_modes().items(), SERVERS):
        architecture, row = ARCHITECTURES[name], rows[server]
        named = {*(row.modes or ()), *row.several, *row.earlier}
        assert named <= {*architecture.modes}, "a mode that the model does not have"
        for mode in architecture.modes.values():
            notes = " ".join(served_notes(architecture, server, mode))
            is_lacking = row.modes is not None and mode.name not in row.modes
            assert (" not " in notes) == is_lacking
