"""A vendor's `infer()` on one image: what it is given, what is measured, and what is refused."""

import importlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import infer_like
import jsonschema
import msgspec
import numpy as np
import pytest
import torch
import vendor_like
from command_line import run
from hypothesis import given, strategies as st
from PIL import Image
from process_state import settings
from safetensors.torch import save_file
from vendor_checkout import (
    VENDOR,
    VENDOR_OCR2,
    VENDOR_UNLIMITED,
    needs_vendor,
    needs_vendor_ocr2,
    needs_vendor_unlimited,
)
from write_schema import schemas

from dsocr_analyze import DeepSeekOCRSession, timing
from dsocr_analyze.architectures import DEFAULT, PageRequest
from dsocr_analyze.cli import device_runs
from dsocr_analyze.errors import ConfigError, ModelCodeError, ModelDirectoryError
from dsocr_analyze.measuring.inference import (
    TRANSFORMS,
    InferArguments,
    MeasuredInference,
    PassShape,
    load_tokenizer,
    measure_inference,
    stand_in_tokenizer,
    text_tokens,
)
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import load_model
from dsocr_analyze.report.measured import inference_tables
from dsocr_analyze.report.table import bytes_text, scaled, seconds_text
from dsocr_analyze.workload import ViewBatch

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")
PROMPT = "<image>\nFree OCR."
SMALL_VIEW = ("--base-size", 256, "--image-size", 256, "--crop-mode", 0)
TRIAL = ("--random-weights", "--trust-remote-code", "--device", "cpu")


@pytest.fixture
def image(tmp_path):
    return infer_like.picture(tmp_path / "page.png")


STAND_IN = stand_in_tokenizer()
AB = STAND_IN.encode("ab", add_special_tokens=False)


def loaded(path):
    return load_model(
        ModelDirectory.read(path), device=CPU, dtype=torch.bfloat16, random_weights=True,
        trust_remote_code=True,
    )  # fmt: skip


def question(image, output, most_tokens=3):
    page = DEFAULT.plan(page=(256, 256), base_size=256, image_size=256, crop_mode=False)
    return InferArguments(image, PROMPT, page, output, most_tokens=most_tokens)


@pytest.fixture
def infer(capsys, tmp_path, image):
    """Runs the command on a model whose code has these settings; returns stdout and stderr."""

    def ran(*arguments, trial=TRIAL, **settings):
        if not (tmp_path / "m").exists():
            infer_like.write(tmp_path / "m", **settings)
        code, out, err = run(
            capsys, "infer", "--model", tmp_path / "m", "--image", image, "--output",
            tmp_path / "o", "--prompt", PROMPT, *trial, *SMALL_VIEW, *arguments,
        )  # fmt: skip
        assert code == 0, err
        return out, err

    return ran


# --- the stand-in for a tokenizer ------------------------------------------------------------


@pytest.mark.exhaustive
@given(st.text().filter(lambda text: "<bos>" not in text and "<eos>" not in text))
def test_the_stand_in_gives_back_what_it_took(text):
    ids = STAND_IN.encode(text, add_special_tokens=False)
    assert (len(ids), STAND_IN.decode(ids)) == (len(text.encode()), text)


def test_the_stand_in_has_the_two_tokens_that_infer_needs_and_every_byte():
    assert (STAND_IN.bos_token_id, STAND_IN.eos_token_id, len(STAND_IN)) == (0, 1, 258)
    # Tokens beyond have no text.
    assert STAND_IN.decode([129_000, *AB, 258]) == "ab"
    # BOS, then "\nFree OCR." of 10 bytes; what strip() takes off is no token.
    counts = [text_tokens(STAND_IN, each) for each in ("<image>\nFree OCR. ", " ab<image>c ")]
    assert counts == [11, 1 + 2 + 1]


def test_a_directorys_own_is_read_and_nothing_of_its_code(tmp_path):
    path = vendor_like.write(tmp_path / "m", modeling_tiny="raise OSError")
    own, directory = stand_in_tokenizer(), ModelDirectory.read(path)
    own.save_pretrained(path)
    tokenizer = load_tokenizer(directory)
    assert tokenizer.encode("ab", add_special_tokens=False) == AB
    assert tokenizer.eos_token_id == 1
    own.eos_token = None
    own.save_pretrained(path)
    with pytest.raises(ModelDirectoryError, match="eos_token"):
        load_tokenizer(directory)


def test_pixels_by_hand():
    # (v / 255 - 0.5) / 0.25 of the three channels of one pixel, in fp32.
    normalize = TRANSFORMS.Normalize(mean=(0.5,) * 3, std=(0.25,) * 3)
    picture = Image.new("RGB", (2, 3), (0, 255, 128))
    values = TRANSFORMS.Compose([TRANSFORMS.ToTensor(), normalize])(picture)
    assert (values.shape, values.dtype) == ((3, 3, 2), torch.float32)
    expected = (np.float32(128) / np.float32(255) - np.float32(0.5)) / np.float32(0.25)
    assert values[:, 0, 0].tolist() == [-2.0, 2.0, expected]


# --- the shape of a pass ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patches", "expected"),
    [(torch.ones(6, 3, 64, 64), (ViewBatch(6, 64), ViewBatch(1, 128))),
     (torch.zeros(1, 3, 128, 128), (ViewBatch(1, 128),))],  # a blank patch is no view
)  # fmt: skip
def test_a_pass_is_what_its_inputs_make(patches, expected):
    called = {
        "input_ids": torch.zeros(1, 40, dtype=torch.long),
        "images": [(patches, torch.ones(1, 3, 128, 128))],
        "images_seq_mask": torch.arange(40)[None] < 30,
        "images_spatial_crop": torch.tensor([[2, 3]]),
    }
    assert PassShape.given(called) == PassShape(1, 40, 30, (2, 3), expected)


@pytest.mark.parametrize(
    "page", [{"page": (1191, 1684)}, {"page": (600, 400)}, {"page": (9, 9), "crop_mode": False}]
)
def test_a_planned_pass_is_the_one_that_its_inputs_make(page):
    # The counted pass: what a trace is called with.
    workload = DEFAULT.plan(**page, base_size=128, image_size=64)
    called = DEFAULT.prefill_inputs(CPU, torch.bfloat16, workload)
    assert PassShape.given(called) == PassShape.planned(workload)


def test_what_differs_is_named():
    workload = DEFAULT.plan(page=(1191, 1684), max_new_tokens=4)
    shape = PassShape.planned(workload)
    result = MeasuredInference(
        PassShape(1, shape.seq_len + 2, shape.visual_tokens, (1, 1), ()),
        "", 4, {}, (0.1, 0.1), 0.0, 0.0, 0.0, 0,
    )  # fmt: skip
    assert result.differences(workload) == (
        "infer() ran with seq_len 915, but 913 was counted",
        "infer() ran with grid 1 x 1, but 2 x 3 was counted",
        "infer() ran with views none, but 6 x 640² + 1 x 1024² was counted",
        "infer() ran with decode steps 2, but 3 was counted",
    )


# --- what is measured ------------------------------------------------------------------------


@pytest.mark.directory
@pytest.mark.exhaustive
def test_what_it_ran_is_what_is_counted_and_seconds_go_where_they_were_spent(tmp_path, image):
    """And all is put back."""
    importlib.import_module("torch._dynamo")  # which the first generation imports for good
    settings_of = {"PREPROCESS_SECONDS": "0.2", "AFTERWARDS_SECONDS": "0.3",
                   "STEP_SECONDS": "0.1"}  # fmt: skip
    model = loaded(infer_like.write(tmp_path / "m", **settings_of))
    code = sys.modules[type(model.module).__module__]

    def state():
        layers = torch.nn.Linear, torch.nn.LayerNorm
        own = [dict(vars(module)) for module in (*layers, *model.module.modules())]
        return settings(), code.transforms, own

    before = state()
    found = measure_inference(model, STAND_IN, question(image, tmp_path), DEFAULT)
    whole = measure_inference(model, STAND_IN, question(image, tmp_path, None), DEFAULT)
    assert state() == before
    assert whole.tokens == 5  # infer()'s own limit
    # 4 x 5 tokens and a separator; BOS and 10 bytes of text.
    assert found.ran == PassShape(1, 21 + 11, 21, (1, 1), (ViewBatch(1, 256),))
    assert min(found.prefill.values()) > 0
    assert min(found.steps) >= 0.1
    assert found.preprocess_seconds >= 0.2
    assert found.prefill_seconds + sum(found.steps) <= found.generate_seconds
    assert found.infer_seconds >= found.preprocess_seconds + found.generate_seconds + 0.3


@pytest.mark.directory
@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"EXTRA": "None"}, ModelCodeError, r"failed in infer\(\) on cpu: .*TypeError: "),
        ({"modeling": f"{infer_like.MODELING}\n    def infer(self, *_, **__):\n        pass\n"},
         ModelCodeError, r"did not call generate\(\)"),
        ({"modeling": infer_like.MODELING.replace("def infer(", "def read(")}, ConfigError,
         r"DeepseekOCRForCausalLM .* has no infer\(\)"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_generate_is_refused_in_one_line(
    tmp_path, image, changes, error, said
):
    model = loaded(infer_like.write(tmp_path / "m", **changes))
    with pytest.raises(error, match=said):
        measure_inference(model, STAND_IN, question(image, tmp_path), DEFAULT)


# --- the command -----------------------------------------------------------------------------


@pytest.mark.directory
def test_counts_of_the_main_job_stand_beside_what_was_measured(infer, capsys, tmp_path, image):
    out, err = infer("--max-new-tokens", 3)
    assert (err, "not to be heard" in out) == ("", False)
    assert "Trial: the weights are random, so the text means nothing" in out
    report = json.loads((tmp_path / "o/infer_one.json").read_text())
    jsonschema.validate(report, schemas()["schema-infer.json"])
    expected = {"command": "infer", "weights": "random", "tokenizer": "stand-in",
                "differences": [], "tokens": 3}  # fmt: skip
    assert {key: report[key] for key in expected} == expected
    assert (tmp_path / "o/result.txt").read_text() == report["text"] + "\n"
    assert "| decode, 2 steps |" in (tmp_path / "o/infer_one.md").read_text()
    assert list(report["stages"]) == list(DEFAULT.stage_names)
    assert all(each["seconds"]["predicted"] is None for each in report["stages"].values())
    assert abs(report["peak_bytes"]["error"]) < 0.05
    _, out, _ = run(
        capsys, "--model", tmp_path / "m", "--trust-remote-code", "--engine", "analytic",
        "--image", image, *SMALL_VIEW, "--text-tokens", 11, "--max-new-tokens", 3,
        "--output", tmp_path / "a", "--format", "json",
    )  # fmt: skip
    counted, decode = json.loads(out), report["stages"].pop("decode")
    counted["stages"].pop("decode", None)
    ours = {name: (each["flops"], each["calls"]) for name, each in report["stages"].items()}
    assert ours == {name: (each["flops"], 1) for name, each in counted["stages"].items()}
    page = counted["total"]
    assert (decode["flops"], decode["calls"]) == (page["batch"]["flops"] - page["flops"], 2)
    rate = decode["flops"] / decode["seconds"]["measured"]
    assert decode["flops_per_second"] == pytest.approx(rate)


@pytest.mark.directory
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arguments", "stages", "tokens"),
    [
        ((), [*DEFAULT.stage_names], 16),  # a trial ends by itself
        (("--max-new-tokens", 1), [*DEFAULT.stage_names][:-1], 1),
        (("--max-new-tokens", 2, "--save-results", 1), [*DEFAULT.stage_names], 2),
    ],
)
def test_what_a_call_runs(infer, tmp_path, arguments, stages, tokens):
    report = json.loads(infer(*arguments, "--format", "json")[0])
    assert (list(report["stages"]), report["tokens"]) == (stages, tokens)
    assert (report["next_token_seconds"] is None) == (tokens == 1)
    assert (tmp_path / "o/result.mmd").exists() is ("--save-results" in arguments)


@pytest.mark.directory
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arguments", "code", "said", "warning"),
    [
        # A pass that is another is named.
        (("--max-new-tokens", 2), {"EXTRA": "[5, 5]"},
         "Differs: infer() ran with seq_len 34, but 32 was counted",
         "dsocr-analyze: warning: infer() ran with seq_len 34, but 32 was counted\n"),
        # The text alone can be had, up to the token that ends it, after the prompt's 32.
        (("--format", "text"),
         {"ENDS_WITH": f"lambda ids: torch.tensor([[{[*AB, 1]}[ids.shape[1] - 32]]])"},
         "ab\n", ""),
    ],
)  # fmt: skip
def test_what_it_says(infer, arguments, code, said, warning):
    out, err = infer(*arguments, **code)
    assert said in out
    assert err == warning


@pytest.mark.directory
@pytest.mark.exhaustive
def test_a_directorys_weights_and_tokenizer_are_used(infer, tmp_path):
    path = infer_like.write(tmp_path / "m")
    save_file(
        {name: p.contiguous() for name, p in loaded(path).module.named_parameters()},
        path / "model.safetensors",
    )
    STAND_IN.save_pretrained(path)
    out, _ = infer("--max-new-tokens", 2, "--format", "json", trial=TRIAL[1:])
    report = json.loads(out)
    assert report["weights"] == report["model"]["weights"] == "checkpoint"
    assert report["tokenizer"] == "directory"


@pytest.mark.directory
@pytest.mark.exhaustive
def test_the_seed_script_takes_the_seeds_options(tmp_path, image):
    arguments = [
        "--model", infer_like.write(tmp_path / "m"), "-i", image, "-o", tmp_path / "o",
        "--prompt", PROMPT, "--max-new-tokens", "2", *TRIAL, *map(str, SMALL_VIEW),
    ]  # fmt: skip
    script = ROOT / "scripts/deepseek-ocr-infer-one.py"
    done = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Ran: infer() of model directory m ")
    assert (tmp_path / "o/result.txt").exists()


# --- predictions -----------------------------------------------------------------------------


@pytest.fixture
def session(monkeypatch):
    """A session on `meta` that is said to be on a GPU: nothing of it runs."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    loaded = DeepSeekOCRSession.from_local().loaded
    return DeepSeekOCRSession(replace(loaded, device=torch.device("cuda", 0)))


def asked(tokens):
    return PageRequest(architecture=DEFAULT, page=(1191, 1684), max_new_tokens=tokens)


@pytest.mark.exhaustive
def test_it_is_that_of_the_device_that_ran(session, capsys):
    entry = device_runs.predicted_seconds(session, asked(100), None)
    _, out, _ = run(
        capsys, "time", "h100-sxm", "--runtime", "eager", "--page", "1191x1684",
        "--max-new-tokens", 100, "--concurrency", 1, "--format", "json",
    )  # fmt: skip
    assert entry == msgspec.convert(json.loads(out)["time"][0], timing.TimeEntry)


def test_errors_are_relative_to_what_was_measured(session, monkeypatch, capsys):
    request = asked(3)
    entry, workload = device_runs.predicted_seconds(session, request, None), request.workload
    prefill = {name: 2 * each.seconds for name, each in entry.stages.items()}
    del prefill["decode"]
    steps = (entry.tpot_seconds / 2,) * 2
    passes = sum(prefill.values()) + sum(steps)
    measured = MeasuredInference(
        ran=PassShape.planned(workload), text="", tokens=3, prefill=prefill, steps=steps,
        preprocess_seconds=1.0, generate_seconds=passes + entry.tpot_seconds,
        infer_seconds=4 * entry.page_seconds, peak_bytes=1000,
    )  # fmt: skip
    figures = session.composed(workload)
    report = device_runs.inference_report(
        session, question(Path("page.png"), Path()), measured, workload, entry,
        has_own_tokenizer=True,
    )  # fmt: skip
    errors = {name: each.seconds.error for name, each in report.stages.items()}
    others = {name: getattr(report, name).error
              for name in ("next_token_seconds", "infer_seconds", "peak_bytes")}  # fmt: skip
    assert errors | others == pytest.approx({
        **dict.fromkeys(prefill, -0.5), "decode": 1.0,
        # Besides its passes, generate took one more step's time: half of it after each step.
        "next_token_seconds": 0.0, "infer_seconds": -0.75,
        "peak_bytes": figures.memory.peak.nbytes / 1000 - 1,
    })  # fmt: skip
    assert report.first_token_seconds.measured == 1.0 + sum(prefill.values())
    assert report.tokens_per_second == pytest.approx(3 / (4 * entry.page_seconds))
    stages, page, memory = inference_tables(report)
    assert page.title == "The page; predicted: h100-sxm"
    *parts, total = stages.rows
    moved = bytes_text(figures.batch.bytes_moved)
    assert total[:4] == ("all passes", scaled(figures.batch.flops), moved, seconds_text(passes))
    assert (len(parts), memory.rows[0][2]) == (5, "6.672 GB")
    # A device without a profile has no prediction, and says so.
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
    assert device_runs.predicted_seconds(session, request, None) is None
    said = "no seconds are predicted: there is no profile of Some GPU"
    assert said in capsys.readouterr().err


MISSING = f"cuda:{torch.cuda.device_count()}"
TRIED = "--model m --image page.png --random-weights --output o"


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("", ["--image"]),
        ("--image page.png --random-weights", ["reference has no infer()", "--model"]),
        ("--image page.png --model reference --random-weights",
         ["reference has no infer()", "--model"]),
        ("--model m --image none.png --random-weights", ["no image", "none.png"]),
        ("--model m --image empty.png --random-weights", ["not an image", "empty.png"]),
        ("--model m --image header.png --random-weights", ["cannot read", "header.png"]),
        ("--model m --image short.png --random-weights --trust-remote-code",
         ["short.png", "truncated"]),
        ("--model m --image page.png", ["no weights", "--random-weights"]),
        ("--model weights --image page.png", ["tokenizer.json", "--random-weights"]),
        # Before the model is built.
        ("--model raises --image page.png --output o --random-weights --trust-remote-code",
         ["cannot read"]),
        pytest.param("--model untrusted --image page.png --output o --random-weights",
                     ["--trust-remote-code"], marks=pytest.mark.directory),
        (f"{TRIED} --device {MISSING}", [f"--device '{MISSING}' does not exist", "use cpu\n"]),
        (f"{TRIED} --device meta", ["computes nothing"]),
        (f"{TRIED} --device cpu --use-flash-attn 1", ["--use-flash-attn 0"]),
        (f"{TRIED} --prompt 'Free OCR.'", ["--prompt 'Free OCR.' contains <image> 0 times"]),
        (f"{TRIED} --prompt '<image><image>'", ["contains <image> 2 times; give it once"]),
        (f"{TRIED} --max-new-tokens 0", ["--max-new-tokens 0"]),
        (f"{TRIED} --base-size 1", ["--base-size 1"]),
        (f"{TRIED} --crop-mode 2", ["--crop-mode 2"]),
        (f"{TRIED} --save-results 2", ["--save-results 2"]),
        (f"{TRIED} --format xml", ["--format 'xml'"]),
    ],
)  # fmt: skip
def test_what_is_impossible_is_refused_in_one_line(
    capsys, tmp_path, monkeypatch, image, arguments, parts
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name, content in (("empty", b""), ("header", b"\x89PNG\r\n\x1a\n"),
                          ("short", image.read_bytes()[:-200])):  # fmt: skip
        Path(f"{name}.png").write_bytes(content)
    for name in {"m", "weights", "raises", "untrusted"} & set(arguments.split()):
        code = infer_like.MODELING if name in ("m", "weights") else "raise OSError('it ran')"
        infer_like.write(Path(name), modeling=code)
        if name in ("weights", "raises"):
            file = "model.safetensors" if name == "weights" else "tokenizer.json"
            Path(name, file).write_text("{}")
    code, out, err = run(capsys, "infer", *shlex.split(arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert all(part in err for part in parts)
    assert "it ran" not in err


# --- published code --------------------------------------------------------------------------

# The vision side has published sizes whatever a config says, and the id of the image's token is
# 128815 in code; everything else is small.
TINY = {
    "hidden_size": 1280,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 10,
    "num_key_value_heads": 10,
    "vocab_size": 129_280,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
}

VENDORS = [
    pytest.param(VENDOR, ("--mode", "tiny"), id="deepseek-ocr", marks=needs_vendor),
    pytest.param(
        VENDOR,
        ("--base-size", 640, "--image-size", 640),
        id="deepseek-ocr-cut",
        marks=needs_vendor,
    ),
    pytest.param(
        VENDOR_OCR2,
        ("--base-size", 768, "--image-size", 768, "--crop-mode", 0),
        id="deepseek-ocr-2",
        marks=needs_vendor_ocr2,
    ),
    pytest.param(
        VENDOR_UNLIMITED,
        ("--base-size", 512, "--image-size", 512, "--crop-mode", 0),
        id="unlimited-ocr",
        marks=needs_vendor_unlimited,
    ),
]


def tiny(vendor: Path, path: Path) -> Path:
    """The vendor's files beside a config of a small decoder."""
    shutil.copytree(vendor, path, copy_function=os.symlink, ignore=lambda folder, names: {
        name for name in names if not name.endswith(".py")
    })  # fmt: skip
    config = json.loads((vendor / "config.json").read_text(encoding="utf-8"))
    section = config.get("language_config", {})
    config |= TINY
    section |= {key: value for key, value in TINY.items() if key in section}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.vendor
@pytest.mark.parametrize(("vendor", "sizes"), VENDORS)
def test_published_infer_runs_the_pass_that_is_counted(capsys, tmp_path, vendor, sizes):
    image = infer_like.picture(tmp_path / "page.png", (1300, 640))
    code, out, err = run(
        capsys, "infer", "--model", tiny(vendor, tmp_path / "m"), "--image", image, "--output",
        tmp_path / "o", "--prompt", f" {PROMPT} ", *TRIAL, *sizes, "--max-new-tokens", 3,
        "--format", "json",
    )  # fmt: skip
    slow = [line.startswith("dsocr-analyze: after ") for line in err.splitlines()]
    assert (code, all(slow)) == (0, True), err
    report = json.loads(out)
    assert (report["differences"], report["tokens"]) == ([], 3)
    assert report["stages"]["decode"]["calls"] == 2
    assert all(stage["seconds"]["measured"] > 0 for stage in report["stages"].values())
    assert abs(report["peak_bytes"]["error"]) < 0.05
