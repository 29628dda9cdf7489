"""The neighbours' pages: many at once and one by one, served, in every command, and refused."""

import json
import random
import sys
from importlib import metadata

import numpy as np
import pytest
from any_models import IS_5
from command_line import run
from PIL import Image
from sampling import first, sampled
from test_neighbours import BY_NAME, LIGHTONOCR, NEIGHBOURS, drawn_config, macs_of

from dsocr_analyze.kernels import BFLOAT16, total_work

PAGES = ((1, 1), (30, 60), (100, 3000), (1240, 1754), (2000, 10), (333, 77))


def drawn_model(draw, model):
    """A neighbour in sizes of its own, of which one visual token is 28 to 64 pixels wide."""
    config, _ = drawn_config(draw, model)
    config["architectures"], patch = list(model.data.config["architectures"]), draw.choice((14, 16))
    sizes = {
        "patch_size": patch,
        "window_size": draw.randint(64, 150),
        "image_size": patch * 4 * draw.randint(1, 8),
    }
    config["vision_config"] |= {key: sizes[key] for key in sizes if key in config["vision_config"]}
    return config


@sampled("seed", range(30), first(2))
@pytest.mark.parametrize("model", NEIGHBOURS, ids=BY_NAME)
def test_many_pages_cost_what_each_does(model, seed):
    draw, rows = random.Random(seed), []
    known = model.of_config(drawn_model(draw, model)) if seed else model
    for page in (*PAGES, (draw.randint(30, 1500), draw.randint(30, 1500))):
        sizes = {"text_tokens": draw.randint(1, 60), "batch_size": draw.randint(1, 3)}
        rows.append(known.plan(page=page, max_new_tokens=draw.randint(1, 50), **sizes))
    names = ("text_tokens", "batch_size", "max_new_tokens")
    lengths = {name: np.array([getattr(each, name) for each in rows]) for name in names}
    codes = known.page_rule.codes(*np.array([each.page for each in rows]).T)
    lengths |= zip(("columns", "rows"), known.page_rule.columns_and_rows(codes), strict=True)
    totals = known.forms.page_totals(known.dimensions, **lengths)
    for number, workload in enumerate(rows):
        one = known.forms.compose(known.dimensions, workload, BFLOAT16, flash_attention=False)
        *passes, step = (stage.work for stage in one.stages.values())
        for each, many in (
            (total_work(passes), totals.prefill),
            (step, totals.decode_step),
            (one.batch, totals.batch),
            ([workload.visual_tokens], [totals.visual_tokens]),
            ([one.memory.kv_cache_bytes], [totals.kv_cache_bytes]),
            ([one.memory.peak.nbytes], [totals.peak_activation_bytes]),
        ):
            assert [*each] == [np.broadcast_to(column, len(rows))[number] for column in many]


@pytest.mark.parametrize("model", NEIGHBOURS, ids=BY_NAME)
def test_served_kernels_do_the_same_matrix_work(model):
    c, forms, page = model.dimensions, model.forms, model.plan(page=(640, 905), max_new_tokens=2)
    own = forms.compose(c, page, BFLOAT16, flash_attention=False).stages
    seen = forms.served.views(page.global_view, c, BFLOAT16)
    served = {
        **{name: macs_of(each) for name, each in seen.items()},
        "prefill": macs_of(forms.served.prompt(page.seq_len, page.seq_len, 0, c, BFLOAT16, 16)),
        "decode": macs_of(forms.served.step(1, page.seq_len + 1, c, BFLOAT16, 16)),
    }
    assert served == {name: stage.work.macs for name, stage in own.items()}


@pytest.mark.parametrize("name", ["glm-ocr", "olmocr", "paddleocr-vl", "qwen3-vl"])
def test_a_list_counts_the_pages_that_are_not_refused(name, tmp_path, capsys):
    path = tmp_path / "pages.csv"
    path.write_text("width,height\n30,60\n402,2\n800,600\n")
    code, out, err = run(capsys, "archive", path, "--arch", name, "--format", "json")
    tokens = [BY_NAME[name].plan(page=each).visual_tokens for each in ((30, 60), (800, 600))]
    assert (code, json.loads(out)["totals"][0]["visual_tokens"]) == (0, sum(tokens))
    assert "row 2: the page's sides are too different" in err


@pytest.mark.parametrize("name", BY_NAME)
def test_a_list_takes_as_long_as_each_of_its_pages(name, tmp_path, capsys):
    def gpu_hours(*pages):
        path = tmp_path / "pages.csv"
        path.write_text("\n".join(["width,height", *pages]))
        predicted = "--gpu", "h100", "--concurrency", 1, "--format", "json"
        code, out, _ = run(capsys, "archive", path, "--arch", name, *predicted)
        assert code == 0
        return json.loads(out)["time"][0]["gpu_hours"]

    pages = "1240,1754", "600,1000"
    assert gpu_hours(*pages) == pytest.approx(sum(map(gpu_hours, pages)))


REFUSED = (  # arguments, and what is wrong and right
    ("--arch glm-ocr --use-flash-attn 1", "give --use-flash-attn 0"),
    ("--arch got-ocr2 --mode base", "--mode 'base' is unknown; use native"),
    ("--arch olmocr --base-size 640", "--base-size 640 is not supported"),
    ("--arch qwen3-vl --prompt-pages 2", "--prompt-pages 2 is not supported"),
    ("--arch paddleocr-vl --page 402x2", "its longer side at most 200 times the other"),
    ("--arch glm-ocr --seq-len 9", "--seq-len 9"),
    ("--arch got-ocr2 --prompt x", "give --text-tokens instead"),
    (
        "infer --arch olmocr --image {folder}/image.png",
        "no infer() of its own; give the directory of deepseek",
    ),
    ("compare lightonocr:base", "has no mode 'base'; give native"),
    ("--config {folder}/config --arch got-ocr2", "--arch got-ocr2 contradicts"),
    ("--config {folder}/config --arch deepseek-ocr", "which is of lightonocr; give one of them"),
    ("--config {folder}/foreign", "it is a mistral3 model (Mistral3ForConditionalGeneration)"),
    ("--config {folder}/cut", "lacks 'vision_config.out_hidden_size'"),
)


@pytest.mark.parametrize(("line", "said"), REFUSED)
def test_what_a_neighbour_lacks_is_refused_in_a_line(line, said, tmp_path, capsys):
    whole = BY_NAME["olmocr"].config
    cut = {
        name: size for name, size in whole["vision_config"].items() if not name.startswith("out")
    }
    files = {
        "config": LIGHTONOCR.config,
        "foreign": dict(LIGHTONOCR.config)
        | {"architectures": ["Mistral3ForConditionalGeneration"]},
        "cut": {**whole, "vision_config": cut},
    }
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value))
    Image.new("RGB", (9, 9)).save(tmp_path / "image.png")
    code, out, err = run(capsys, *line.format(folder=tmp_path).split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize("line", ["--arch glm-ocr --engine analytic", "compare --all"])
def test_closed_forms_need_no_transformers(line, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr(metadata, "version", lambda name: metadata.distribution("no such").version)
    assert run(capsys, *line.split())[0] == 0


@pytest.mark.parametrize(("engine", "says_so"), [("trace", True), ("analytic", False)])
def test_a_report_says_what_cannot_be_traced_if_a_trace_was_asked_for(
    engine, says_so, capsys, monkeypatch
):
    monkeypatch.setattr(metadata, "version", lambda _: "5.22")
    code, out, err = run(capsys, "--arch", "glm-ocr", "--engine", engine, "--json", "-")
    notes = json.loads(out)["notes"]
    too_old = [note for note in notes if note.startswith("transformers 5.22 is too old to trace")]
    assert (code, len(too_old), "5.22 is too old" in err) == (0, says_so, says_so)


@sampled("seed", range(30), first(2))
@pytest.mark.parametrize("model", NEIGHBOURS, ids=BY_NAME)
def test_the_main_job_agrees_or_says_that_nothing_was_traced(model, seed, tmp_path, capsys):
    """Under transformers 5 both engines count the same; before, closed forms stand alone."""
    draw, folder = random.Random(seed), tmp_path / "model"
    folder.mkdir()
    config = drawn_model(draw, model) | {"image_token_id": 0, "image_token_index": 0}
    config.get("text_config", config)["use_cache"] = False  # it has one nevertheless
    (folder / "config.json").write_text(json.dumps(config))
    given = ["--text-tokens", draw.randint(1, 9), "--batch-size", 3, "--output", tmp_path / "out"]
    named = [
        "--model",
        folder,
        "--arch",
        model.name,
        "--page",
        "{}x{}".format(*draw.choice(PAGES[1:])),
    ]
    code, out, _ = run(capsys, *named, *given, "--max-new-tokens", 3, "--format", "json")
    document = json.loads(out)
    assert (code, document["operator_ledger"]["unknown"]) == (0, {})
    assert any("passes are counted with a cache" in each for each in document["notes"])
    if IS_5:
        assert document["agreement"]["agrees"]
    else:
        assert document["metadata"]["engine"] == "analytic"
        assert any("in 5.23: closed forms are evaluated" in each for each in document["notes"])
