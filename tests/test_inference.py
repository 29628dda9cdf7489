"""A vendor's `infer()` on one image: what it is given, what is measured, and what is refused."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path

import infer_like
import jsonschema
import msgspec
import numpy as np
import pytest
import torch
import vendor_like
from command_line import run
from hypothesis import given
from hypothesis import strategies as st
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

from dsocr_analyze.architectures import DEFAULT, PageRequest
from dsocr_analyze.cli.device_runs import inference_report, predicted_seconds
from dsocr_analyze.cli.documents import schemas
from dsocr_analyze.errors import ConfigError, ModelCodeError, ModelDirectoryError, WorkloadError
from dsocr_analyze.measuring import picture_transforms
from dsocr_analyze.measuring.inference import (
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
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.timing import TimeEntry
from dsocr_analyze.workload import ViewBatch

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")
PROMPT = "<image>\nFree OCR."
SMALL_VIEW = ("--base-size", 256, "--image-size", 256, "--crop-mode", 0)
TRIAL = ("--random-weights", "--trust-remote-code", "--device", "cpu")


@pytest.fixture
def image(tmp_path):
    return infer_like.picture(tmp_path / "page.png")


def loaded(path, **options):
    return load_model(
        ModelDirectory.read(path),
        device=CPU,
        dtype=torch.bfloat16,
        random_weights=True,
        trust_remote_code=True,
        **options,
    )


def question(image, output, **changes):
    asked = {
        "image_file": image,
        "prompt": PROMPT,
        "base_size": 256,
        "image_size": 256,
        "crop_mode": False,
        "output_path": output,
        "most_tokens": 3,
    }
    return InferArguments(**{**asked, **changes})


def measured(path, asked, tokenizer=None):
    model = loaded(path)
    return measure_inference(model, tokenizer or stand_in_tokenizer(), asked, DEFAULT)


def infer(capsys, model, image, output, *arguments):
    return run(
        capsys, "infer", "--model", model, "--image", image, "--output", output,
        "--prompt", PROMPT, *TRIAL, *SMALL_VIEW, *arguments,
    )  # fmt: skip


class TestTokenizer:
    @pytest.mark.exhaustive
    @given(st.text())
    def test_the_stand_in_gives_back_what_it_took(self, text):
        tokenizer = stand_in_tokenizer()
        ids = tokenizer.encode(text, add_special_tokens=False)
        if "<bos>" not in text and "<eos>" not in text:
            assert len(ids) == len(text.encode())
            assert tokenizer.decode(ids) == text

    def test_the_stand_in_has_the_two_tokens_that_infer_needs_and_every_byte(self):
        tokenizer = stand_in_tokenizer()
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
        assert len(tokenizer) == 258

    def test_tokens_beyond_the_stand_ins_have_no_text(self):
        tokenizer = stand_in_tokenizer()
        (letter,) = tokenizer.encode("a", add_special_tokens=False)
        assert tokenizer.decode([129_000, letter, 258]) == "a"

    def test_text_tokens_are_counted_as_infer_lays_them_out(self):
        # BOS, then "\nFree OCR." of 10 bytes; what strip() takes off is no token.
        assert text_tokens(stand_in_tokenizer(), "<image>\nFree OCR. ") == 11
        assert text_tokens(stand_in_tokenizer(), " ab<image>c ") == 1 + 2 + 1

    def test_a_directorys_own_is_read_and_nothing_of_its_code(self, tmp_path):
        path = vendor_like.write(tmp_path / "m", modeling_tiny="raise OSError")
        stand_in_tokenizer().save_pretrained(path)
        tokenizer = load_tokenizer(ModelDirectory.read(path))
        assert tokenizer.encode("ab", add_special_tokens=False) == stand_in_tokenizer().encode("ab")
        assert tokenizer.eos_token_id == 1

    @pytest.mark.parametrize("text", ["", "[]", "{}", "no json"])
    def test_one_that_cannot_be_read_is_named(self, tmp_path, text):
        path = vendor_like.write(tmp_path / "m")
        (path / "tokenizer.json").write_text(text)
        with pytest.raises(ModelDirectoryError, match=r"cannot read .*tokenizer\.json"):
            load_tokenizer(ModelDirectory.read(path))

    def test_one_without_an_end_of_sequence_is_refused(self, tmp_path):
        path = vendor_like.write(tmp_path / "m")
        tokenizer = stand_in_tokenizer()
        tokenizer.eos_token = None
        tokenizer.save_pretrained(path)
        with pytest.raises(ModelDirectoryError, match="eos_token"):
            load_tokenizer(ModelDirectory.read(path))


class TestTransforms:
    def test_pixels_become_what_torchvision_makes_of_them(self):
        # (v / 255 - 0.5) / 0.5 of the three channels of one pixel, in fp32.
        to_tensor = picture_transforms.Compose(
            [
                picture_transforms.ToTensor(),
                picture_transforms.Normalize(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
            ]
        )
        picture = Image.new("RGB", (2, 3), (0, 255, 128))
        values = to_tensor(picture)
        assert values.shape == (3, 3, 2)
        assert values.dtype == torch.float32
        expected = (np.float32(128) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
        assert values[:, 0, 0].tolist() == [-1.0, 1.0, expected]

    def test_against_torchvision(self, image):
        transforms = pytest.importorskip("torchvision.transforms")
        picture = Image.open(image)
        for mean, std in (((0.5,) * 3, (0.5,) * 3), ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))):
            theirs, ours = (
                each.Compose([each.ToTensor(), each.Normalize(mean=mean, std=std)])(picture)
                for each in (transforms, picture_transforms)
            )
            assert torch.equal(theirs, ours)


def inputs(*, patches, overview, tokens, visual, grid):
    """What `infer()` calls the prefill pass with."""
    mask = torch.zeros(1, tokens, dtype=torch.bool)
    mask[0, 1 : 1 + visual] = True
    return {
        "input_ids": torch.zeros(1, tokens, dtype=torch.long),
        "images": [(patches, overview)],
        "images_seq_mask": mask,
        "images_spatial_crop": torch.tensor([grid]),
    }


class TestShape:
    def test_a_pass_with_local_views(self):
        ran = PassShape.given(
            inputs(
                patches=torch.ones(6, 3, 64, 64),
                overview=torch.ones(1, 3, 128, 128),
                tokens=40,
                visual=30,
                grid=[2, 3],
            )
        )
        assert ran == PassShape(1, 40, 30, (2, 3), (ViewBatch(6, 64), ViewBatch(1, 128)))

    def test_a_blank_patch_is_no_view(self):
        ran = PassShape.given(
            inputs(
                patches=torch.zeros(1, 3, 128, 128),
                overview=torch.ones(1, 3, 64, 64),
                tokens=9,
                visual=7,
                grid=[1, 1],
            )
        )
        assert ran.views == (ViewBatch(1, 64),)

    @pytest.mark.parametrize(
        "page", [{"page": (1191, 1684)}, {"page": (600, 400)}, {"page": (9, 9), "crop_mode": False}]
    )
    def test_a_planned_pass_is_the_one_that_its_inputs_make(self, page):
        # The counted pass: what a trace is called with.
        workload = DEFAULT.plan(**page, base_size=128, image_size=64)
        called = DEFAULT.prefill_inputs(CPU, torch.bfloat16, workload)
        assert PassShape.given(called) == PassShape.planned(workload)

    def test_what_differs_is_named(self):
        workload = DEFAULT.plan(page=(1191, 1684), max_new_tokens=4)
        shape = PassShape.planned(workload)
        result = MeasuredInference(
            PassShape(1, shape.seq_len + 2, shape.visual_tokens, (1, 1), shape.views[1:]),
            "", 4, {}, (0.1, 0.1), 0.0, 0.0, 0.0, 0,
        )  # fmt: skip
        assert result.differences(workload) == (
            "infer() ran with seq_len 915, but 913 was counted",
            "infer() ran with grid 1 x 1, but 2 x 3 was counted",
            "infer() ran with views 1 x 1024², but 6 x 640² + 1 x 1024² was counted",
            "infer() ran with decode steps 2, but 3 was counted",
        )


@pytest.mark.directory
class TestMeasured:
    @pytest.mark.exhaustive
    def test_what_it_ran_is_what_is_counted(self, tmp_path, image):
        path = infer_like.write(tmp_path / "m")
        found = measured(path, question(image, tmp_path))
        # 4 x 5 tokens and a separator; BOS and 10 bytes of text.
        assert found.ran == PassShape(1, 21 + 11, 21, (1, 1), (ViewBatch(1, 256),))
        assert found.tokens == 3
        assert len(found.steps) == 2
        counted = DEFAULT.plan(
            page=(300, 200), base_size=256, image_size=256, crop_mode=False, text_tokens=11,
            max_new_tokens=3,
        )  # fmt: skip
        assert found.differences(counted) == ()

    @pytest.mark.exhaustive
    def test_seconds_go_where_they_were_spent(self, tmp_path, image):
        path = infer_like.write(
            tmp_path / "m",
            PREPROCESS_SECONDS="0.2",
            AFTERWARDS_SECONDS="0.3",
            STEP_SECONDS="0.1",
        )
        found = measured(path, question(image, tmp_path))
        assert list(found.prefill) == ["prefill", "sam", "clip", "projector"]
        assert all(seconds > 0 for seconds in found.prefill.values())
        assert all(seconds >= 0.1 for seconds in found.steps)
        passes = found.prefill_seconds + sum(found.steps)
        assert found.preprocess_seconds >= 0.2
        assert passes <= found.generate_seconds
        rest = found.infer_seconds - found.preprocess_seconds - found.generate_seconds
        assert rest >= 0.3

    @pytest.mark.exhaustive
    def test_the_peak_is_what_the_prefill_pass_holds(self, tmp_path, image):
        path = infer_like.write(tmp_path / "m")
        found = measured(path, question(image, tmp_path))
        # At least the logits of all positions in fp32 and in bfloat16.
        assert found.ran.seq_len * 1000 * 6 <= found.peak_bytes < 1 << 28

    @pytest.mark.exhaustive
    def test_it_ends_with_the_token_that_ends_it(self, tmp_path, image):
        tokenizer = stand_in_tokenizer()
        ids = tokenizer.encode("ab", add_special_tokens=False)
        path = infer_like.write(
            tmp_path / "m",
            ENDS_WITH=f"lambda ids: torch.tensor([[{[*ids, 1]}[ids.shape[1] - 32]]])",
        )
        found = measured(path, question(image, tmp_path, most_tokens=None))
        assert (found.text, found.tokens) == ("ab", 3)

    @pytest.mark.exhaustive
    def test_infers_own_limit_holds_where_none_is_given(self, tmp_path, image):
        path = infer_like.write(tmp_path / "m")
        assert measured(path, question(image, tmp_path, most_tokens=None)).tokens == 5

    @pytest.mark.exhaustive
    def test_all_is_put_back(self, tmp_path, image):
        importlib.import_module("torch._dynamo")  # which the first generation imports for good
        path = infer_like.write(tmp_path / "m")
        model = loaded(path)
        before = settings()
        layers = torch.nn.Linear, torch.nn.LayerNorm
        resets = [vars(layer)["reset_parameters"] for layer in layers]
        code = sys.modules[type(model.module).__module__]
        transforms = code.transforms
        own = [dict(vars(module)) for module in model.module.modules()]
        measure_inference(model, stand_in_tokenizer(), question(image, tmp_path), DEFAULT)
        assert settings() == before
        assert [vars(layer)["reset_parameters"] for layer in layers] == resets
        assert code.transforms is transforms
        assert [dict(vars(module)) for module in model.module.modules()] == own

    def test_what_it_raises_is_one_line_that_names_it(self, tmp_path, image):
        path = infer_like.write(tmp_path / "m", EXTRA="None")
        with pytest.raises(ModelCodeError, match=r"failed in infer\(\) on cpu: .*TypeError: "):
            measured(path, question(image, tmp_path))

    def test_one_that_does_not_generate_is_refused(self, tmp_path, image):
        modeling = infer_like.MODELING + "\n    def infer(self, *args, **kwargs):\n        pass\n"
        path = infer_like.write(tmp_path / "m", modeling=modeling)
        with pytest.raises(ModelCodeError, match=r"did not call generate\(\)"):
            measured(path, question(image, tmp_path))

    def test_a_model_without_it_is_refused(self, tmp_path, image):
        modeling = infer_like.MODELING.replace("def infer(", "def read(")
        path = infer_like.write(tmp_path / "m", modeling=modeling)
        with pytest.raises(ConfigError, match=r"DeepseekOCRForCausalLM .* has no infer\(\)"):
            measured(path, question(image, tmp_path))


@pytest.mark.parametrize("prompt", ["Free OCR.", "<image><image>", ""])
def test_a_prompt_that_is_not_one_page_is_refused(tmp_path, prompt):
    with pytest.raises(WorkloadError, match="give it once"):
        question(tmp_path / "page.png", tmp_path, prompt=prompt)


@pytest.mark.directory
class TestCommand:
    @pytest.mark.exhaustive
    def test_costs_stand_beside_what_was_measured(self, capsys, tmp_path, image):
        path = infer_like.write(tmp_path / "m")
        code, out, err = infer(capsys, path, image, tmp_path / "o", "--max-new-tokens", 3)
        assert (code, err) == (0, "")
        assert "not to be heard" not in out
        assert "Trial: the weights are random, so the text means nothing" in out
        assert "the tokenizer is a stand-in" in out
        report = json.loads((tmp_path / "o/infer_one.json").read_text())
        jsonschema.validate(report, schemas()["schema-infer.json"])
        assert report["command"] == "infer"
        assert (report["weights"], report["tokenizer"]) == ("random", "stand-in")
        assert report["workload"]["seq_len"] == 32
        assert report["workload"]["max_new_tokens"] == report["tokens"] == 3
        assert report["differences"] == []
        assert list(report["stages"]) == list(DEFAULT.stage_names)
        for stage in report["stages"].values():
            assert stage["seconds"]["measured"] > 0
            assert stage["seconds"]["predicted"] is None
        assert (tmp_path / "o/result.txt").read_text() == report["text"] + "\n"
        markdown = (tmp_path / "o/infer_one.md").read_text()
        assert "| decode, 2 steps |" in markdown

    def test_counts_are_those_of_the_main_job(self, capsys, tmp_path, image):
        path = infer_like.write(tmp_path / "m")
        _, out, _ = infer(
            capsys, path, image, tmp_path / "o", "--max-new-tokens", 3, "--format", "json"
        )
        report = json.loads(out)
        _, out, _ = run(
            capsys, "--model", path, "--trust-remote-code", "--engine", "analytic", "--image",
            image, *SMALL_VIEW, "--text-tokens", 11, "--max-new-tokens", 3, "--output",
            tmp_path / "a", "--format", "json",
        )  # fmt: skip
        counted = json.loads(out)
        for name in ("sam", "clip", "projector", "prefill"):
            ours, theirs = report["stages"][name], counted["stages"][name]
            assert ours["flops"] == theirs["flops"]
            assert ours["calls"] == 1
        batch, page = counted["total"]["batch"], counted["total"]
        assert report["stages"]["decode"]["flops"] == batch["flops"] - page["flops"]
        assert report["stages"]["decode"]["calls"] == 2
        rate = (
            report["stages"]["decode"]["flops"] / report["stages"]["decode"]["seconds"]["measured"]
        )
        assert report["stages"]["decode"]["flops_per_second"] == pytest.approx(rate)

    @pytest.mark.exhaustive
    def test_the_counted_peak_is_the_allocators(self, capsys, tmp_path, image):
        path = infer_like.write(tmp_path / "m")
        _, out, _ = infer(capsys, path, image, tmp_path / "o", "--format", "json")
        peak = json.loads(out)["peak_bytes"]
        assert peak["error"] == pytest.approx(peak["predicted"] / peak["measured"] - 1)
        assert abs(peak["error"]) < 0.05

    @pytest.mark.exhaustive
    def test_a_trial_ends_early_by_itself(self, capsys, tmp_path, image):
        modeling = infer_like.MODELING.replace("max_new_tokens=5", "max_new_tokens=8192")
        path = infer_like.write(tmp_path / "m", modeling=modeling)
        _, out, _ = infer(capsys, path, image, tmp_path / "o", "--format", "json")
        assert json.loads(out)["tokens"] == 16

    @pytest.mark.exhaustive
    def test_one_token_has_no_decode_steps(self, capsys, tmp_path, image):
        path = infer_like.write(tmp_path / "m")
        _, out, _ = infer(
            capsys, path, image, tmp_path / "o", "--max-new-tokens", 1, "--format", "json"
        )
        report = json.loads(out)
        assert "decode" not in report["stages"]
        assert report["next_token_seconds"] is None

    @pytest.mark.exhaustive
    def test_the_text_alone_can_be_had(self, capsys, tmp_path, image):
        ids = stand_in_tokenizer().encode("ab", add_special_tokens=False)
        path = infer_like.write(
            tmp_path / "m",
            ENDS_WITH=f"lambda ids: torch.tensor([[{[*ids, 1]}[ids.shape[1] - 32]]])",
        )
        code, out, _ = infer(capsys, path, image, tmp_path / "o", "--format", "text")
        assert (code, out) == (0, "ab\n")

    @pytest.mark.exhaustive
    def test_a_pass_that_is_another_is_named(self, capsys, tmp_path, image):
        path = infer_like.write(tmp_path / "m", EXTRA="[5, 5]")
        code, out, err = infer(capsys, path, image, tmp_path / "o", "--max-new-tokens", 2)
        line = "infer() ran with seq_len 34, but 32 was counted"
        assert code == 0
        assert f"Differs: {line}" in out
        assert err == f"dsocr-analyze: warning: {line}\n"

    @pytest.mark.exhaustive
    def test_an_image_that_the_model_takes_for_none_is_named(self, capsys, tmp_path):
        # Published code looks at no image whose pixels sum to zero, as these do.
        image = tmp_path / "page.png"
        Image.linear_gradient("L").convert("RGB").save(image)
        path = infer_like.write(tmp_path / "m")
        code, out, err = infer(capsys, path, image, tmp_path / "o", "--format", "json")
        assert code == 0
        assert "views none, but 1 x 256² was counted" in err
        assert list(json.loads(out)["stages"]) == ["prefill", "decode"]

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(("saves", "is_there"), [(0, False), (1, True)])
    def test_what_infer_saves_is_saved_where_it_is_wanted(
        self, capsys, tmp_path, image, saves, is_there
    ):
        path = infer_like.write(tmp_path / "m")
        infer(capsys, path, image, tmp_path / "o", "--save-results", saves)
        assert (tmp_path / "o/result.mmd").exists() is is_there

    @pytest.mark.exhaustive
    def test_a_directorys_weights_and_tokenizer_are_used(self, capsys, tmp_path, image):
        path = infer_like.write(tmp_path / "m")
        save_file(
            {name: p.contiguous() for name, p in loaded(path).module.named_parameters()},
            path / "model.safetensors",
        )
        stand_in_tokenizer().save_pretrained(path)
        code, out, _ = run(
            capsys, "infer", "--model", path, "--image", image, "--output", tmp_path / "o",
            "--prompt", PROMPT, "--trust-remote-code", "--device", "cpu", *SMALL_VIEW,
            "--max-new-tokens", 2, "--format", "json",
        )  # fmt: skip
        report = json.loads(out)
        assert code == 0
        assert (report["weights"], report["tokenizer"]) == ("checkpoint", "directory")
        assert report["model"]["weights"] == "checkpoint"

    @pytest.mark.exhaustive
    def test_the_seed_script_takes_the_seeds_options(self, tmp_path, image):
        path = infer_like.write(tmp_path / "m")
        done = subprocess.run(
            [
                sys.executable, ROOT / "scripts/deepseek-ocr-infer-one.py", "--model", path,
                "-i", image, "-o", tmp_path / "o", "--prompt", PROMPT, "--max-new-tokens", "2",
                *TRIAL, *map(str, SMALL_VIEW),
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("Ran: infer() of model directory m ")
        assert (tmp_path / "o/result.txt").exists()


def asked(**page):
    return PageRequest(architecture=DEFAULT, **page)


class TestPrediction:
    @pytest.fixture
    def session(self):
        """On `meta`, but said to be on a GPU: nothing of it runs."""
        loaded = DeepSeekOCRSession.from_local().loaded
        return DeepSeekOCRSession(dataclasses.replace(loaded, device=torch.device("cuda", 0)))

    def named(self, monkeypatch, name):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)

    @pytest.mark.exhaustive
    def test_it_is_that_of_the_device_that_ran(self, session, monkeypatch, capsys, tmp_path):
        self.named(monkeypatch, "NVIDIA H100 80GB HBM3")
        entry = predicted_seconds(session, asked(page=(1191, 1684), max_new_tokens=100), None)
        _, out, _ = run(
            capsys, "time", "h100-sxm", "--runtime", "eager", "--page", "1191x1684",
            "--max-new-tokens", 100, "--concurrency", 1, "--format", "json",
        )  # fmt: skip
        (expected,) = json.loads(out)["time"]
        assert entry == msgspec.convert(expected, TimeEntry)

    def test_a_device_without_a_profile_has_none_and_says_so(self, session, monkeypatch, capsys):
        self.named(monkeypatch, "Some GPU")
        assert predicted_seconds(session, asked(page=(9, 9)), None) is None
        assert (
            "no seconds are predicted: there is no profile of Some GPU" in capsys.readouterr().err
        )

    @pytest.mark.exhaustive
    def test_meta_has_none(self):
        session = DeepSeekOCRSession.from_local()
        assert predicted_seconds(session, asked(page=(9, 9)), None) is None

    def test_errors_are_relative_to_what_was_measured(self, session, monkeypatch):
        self.named(monkeypatch, "NVIDIA H100 80GB HBM3")
        request = asked(page=(1191, 1684), max_new_tokens=3)
        entry, workload = predicted_seconds(session, request, None), request.workload
        prefill = {
            name: 2 * entry.stages[name].seconds for name in entry.stages if name != "decode"
        }
        steps = (entry.tpot_seconds / 2,) * 2
        passes = sum(prefill.values()) + sum(steps)
        measured = MeasuredInference(
            ran=PassShape.planned(workload), text="", tokens=3, prefill=prefill, steps=steps,
            preprocess_seconds=1.0, generate_seconds=passes + entry.tpot_seconds,
            infer_seconds=4 * entry.page_seconds, peak_bytes=1000,
        )  # fmt: skip
        figures = session.composed(workload)
        question = InferArguments(Path("page.png"), PROMPT, 1024, 640, True, Path())
        report = inference_report(
            session, question, measured, workload, entry, has_own_tokenizer=True
        )
        for name in prefill:
            assert report.stages[name].seconds.error == pytest.approx(-0.5)
        assert report.stages["decode"].seconds.error == pytest.approx(1.0)
        # Besides its passes, generate took one more step's time: half of it after each step.
        assert report.next_token_seconds.error == pytest.approx(0.0)
        assert report.infer_seconds.error == pytest.approx(-0.75)
        assert report.tokens_per_second == pytest.approx(3 / (4 * entry.page_seconds))
        assert report.peak_bytes.error == pytest.approx(figures.memory.peak.nbytes / 1000 - 1)
        stages, page, memory = inference_tables(report)
        assert page.title == "The page; predicted: h100-sxm"
        *parts, total = stages.rows
        assert total[0] == "all passes"
        assert total[1] == scaled(figures.batch.flops)
        assert total[2] == bytes_text(figures.batch.bytes_moved)
        assert total[3] == seconds_text(passes)
        assert len(parts) == 5
        assert memory.rows[0][2] == "6.672 GB"


class TestRefusals:
    def refused(self, capsys, *arguments, code=2):
        found, out, err = run(capsys, "infer", *arguments)
        assert (found, out) == (code, "")
        assert err.count("\n") == 1
        return err

    def test_the_reference_has_no_infer(self, capsys, tmp_path, image, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for model in ((), ("--model", "reference")):
            err = self.refused(capsys, "--image", image, *model, "--random-weights")
            assert "reference has no infer()" in err
            assert "--model" in err

    def test_an_image_is_needed(self, capsys):
        assert "--image" in self.refused(capsys)

    @pytest.mark.parametrize(
        ("content", "reason"),
        [(None, "no image"), (b"", "not an image"), (b"\x89PNG\r\n\x1a\n", "cannot read")],
    )
    def test_an_image_that_cannot_be_read(self, capsys, tmp_path, content, reason):
        path = infer_like.write(tmp_path / "m")
        file = tmp_path / "page.png"
        if content is not None:
            file.write_bytes(content)
        err = self.refused(capsys, "--model", path, "--image", file, "--random-weights")
        assert reason in err
        assert "page.png" in err

    def test_an_image_that_is_cut_short(self, capsys, tmp_path, image):
        image.write_bytes(image.read_bytes()[:-200])
        path = infer_like.write(tmp_path / "m")
        err = self.refused(capsys, "--model", path, "--image", image, *TRIAL)
        assert "page.png" in err
        assert "truncated" in err

    def test_weights_that_are_missing(self, capsys, tmp_path, image):
        path = infer_like.write(tmp_path / "m")
        err = self.refused(capsys, "--model", path, "--image", image)
        assert "no weights" in err
        assert "--random-weights" in err

    def test_a_tokenizer_that_is_missing(self, capsys, tmp_path, image):
        path = infer_like.write(tmp_path / "m")
        (path / "model.safetensors").touch()
        err = self.refused(capsys, "--model", path, "--image", image)
        assert "tokenizer.json" in err
        assert "--random-weights" in err

    def test_a_tokenizer_that_cannot_be_read_before_the_model_is_built(
        self, capsys, tmp_path, image
    ):
        path = infer_like.write(tmp_path / "m", modeling="raise OSError('it ran')")
        (path / "tokenizer.json").write_text("{}")
        err = self.refused(capsys, "--model", path, "--image", image, "--output", tmp_path, *TRIAL)
        assert "cannot read" in err
        assert "it ran" not in err

    @pytest.mark.directory
    def test_code_that_nobody_trusts(self, capsys, tmp_path, image, monkeypatch):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        path = infer_like.write(tmp_path / "m", modeling="raise OSError('it ran')")
        arguments = ("--model", path, "--image", image, "--random-weights", "--output", tmp_path)
        err = self.refused(capsys, *arguments)
        assert "--trust-remote-code" in err
        assert "it ran" not in err

    def test_a_device_that_is_not_there(self, capsys, tmp_path, image):
        path = infer_like.write(tmp_path / "m")
        arguments = ("--model", path, "--image", image, "--output", tmp_path, "--random-weights")
        index = torch.cuda.device_count()
        err = self.refused(capsys, *arguments, "--device", f"cuda:{index}")
        assert f"--device 'cuda:{index}' does not exist" in err
        assert err.endswith("use cpu\n")
        assert "computes nothing" in self.refused(capsys, *arguments, "--device", "meta")
        err = self.refused(capsys, *arguments, "--device", "cpu", "--use-flash-attn", 1)
        assert "--use-flash-attn 0" in err

    @pytest.mark.parametrize(
        ("arguments", "part"),
        [
            (("--prompt", "Free OCR."), "--prompt 'Free OCR.' contains <image> 0 times"),
            (("--max-new-tokens", 0), "--max-new-tokens 0"),
            (("--base-size", 1), "--base-size 1"),
            (("--crop-mode", 2), "--crop-mode 2"),
            (("--save-results", 2), "--save-results 2"),
            (("--format", "xml"), "--format 'xml'"),
        ],
    )
    def test_values_that_are_not_possible(self, capsys, tmp_path, image, arguments, part):
        path = infer_like.write(tmp_path / "m")
        given = ("--model", path, "--image", image, "--output", tmp_path, *TRIAL)
        assert part in self.refused(capsys, *given, *arguments)


# --- published code ------------------------------------------------------------------------------

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
    path.mkdir()
    for file in vendor.glob("*.py"):
        (path / file.name).symlink_to(file)
    config = json.loads((vendor / "config.json").read_text(encoding="utf-8"))
    sections = [config, config.get("language_config", {})]
    for section in sections:
        section.update({key: TINY[key] for key in TINY if section is config or key in section})
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
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["differences"] == []
    assert report["tokens"] == 3
    assert report["stages"]["decode"]["calls"] == 2
    assert all(stage["seconds"]["measured"] > 0 for stage in report["stages"].values())
    assert abs(report["peak_bytes"]["error"]) < 0.05
