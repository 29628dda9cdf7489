"""What commands say of a config's keys, and whose code reads them: reference, published, other."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from both_engines import PUBLISHED, small_directory
from command_line import run
from sampling import first, sampled
from vendor_checkout import VENDOR, needs_vendor

from dsocr_analyze import analytic
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.archive.setting import CountedModel
from dsocr_analyze.errors import ConfigError, ModelCodeError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.session import DeepSeekOCRSession

SMALL = ("--page", "600x500", "--crop-mode", "0", "--base-size", "256", "--image-size", "256")
ANALYTIC = (*SMALL, "--engine", "analytic", "-q")
PAGE = DEFAULT.plan(
    page=(600, 500), crop_mode=False, base_size=256, image_size=256, max_new_tokens=2
)


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def written(path: Path, config=PUBLISHED.config, **changes) -> Path:
    path.write_text(json.dumps({**config, **changes}))
    return path


def nested(section, **changes):
    return {section: {**PUBLISHED.config[section], **changes}}


REPORT = Path("tmp/dsocr-static-ops/static_compute.json")


UNKNOWN = "config.json: 'num_hidden_layer' is unknown; no figure includes it"
TYPO = {"num_hidden_layer": 6}
OF_OTHER_FILES = {
    "temperature": 0.3, "torch_dtype": "float32", "architectures": ["X"], "use_cache": False,
    "transformers_version": "4.57.0", "_name_or_path": "/x", "id2label": {"0": "a"},
    "auto_map": {"AutoModel": "file.Class"},
    **nested("vision_config", torch_dtype="float32", transformers_version="4.57.0"),
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, OF_OTHER_FILES], ids=["published", "others"])
def test_what_files_say_about_themselves_is_quiet(capsys, tmp_path, changes):
    config = written(tmp_path / "c.json", **changes)
    assert run(capsys, *ANALYTIC, "--config", config, "--strict") == (0, "", "")


@sampled(
    ("changes", "warning"),
    [
        (TYPO, UNKNOWN),
        (
            nested("language_config", num_experts_per_tok=8),
            "config.json: 'language_config.num_experts_per_tok' is 8, but 'num_experts_per_tok',"
            " which is read, is 6; 6 counts",
        ),
        (
            nested("projector_config", projector_typ="mlp_gelu"),
            "config.json: 'projector_config.projector_typ' is unknown; no figure includes it",
        ),
    ],
    first(1),
    ids=["typo", "repeated", "nested"],
)
def test_a_key_that_does_nothing_is_warned_of_and_fails_only_under_strict(
    capsys, tmp_path, changes, warning
):
    config = written(tmp_path / "c.json", **changes)
    said = f"dsocr-analyze: warning: {warning}\n"
    assert run(capsys, *ANALYTIC, "--config", config) == (0, "", said)
    report = json.loads(REPORT.read_text())
    assert [*report["warnings"], report["notes"][0]] == [warning, warning]
    code, _, err = run(capsys, *ANALYTIC, "--config", config, "--strict")
    assert (code, warning in err) == (3, True)


@pytest.mark.parametrize("engine", ["analytic", "trace"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sliding_window_size": 128}, "'sliding_window_size' is 128: "),
        ({"pretraining_tp": 2}, "'pretraining_tp' is 2: "),
        (nested("language_config", sliding_window=64), "'language_config.sliding_window' is 64: "),
        ({"hidden_act": "swoosh"}, "swoosh"),
        (nested("projector_config", projector_type="conv"), "conv"),
    ],
    ids=["window", "slices", "nested window", "activation", "projector"],
)
def test_what_is_not_modelled_is_refused_by_both_engines(capsys, tmp_path, engine, changes, said):
    config = written(tmp_path / "c.json", **changes)
    code, out, err = run(capsys, *SMALL, "--engine", engine, "-q", "--config", config)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_a_key_that_stands_twice_is_refused(capsys, tmp_path):
    text = json.dumps(PUBLISHED.config)
    (tmp_path / "c.json").write_text(text[:-1] + ', "vocab_size": 5}')
    code, _, err = run(capsys, *ANALYTIC, "--config", tmp_path / "c.json")
    assert code == 2
    assert "'vocab_size' appears twice in one object, as 129280 and as 5" in err


COMMANDS = {
    "sweep": ("sweep", "--page", "600x500"),
    "archive": ("archive", "pages.csv"),
    "fit": ("fit", "h100-sxm", "--page", "600x500"),
    "time": ("time", "h100-sxm", "--page", "600x500"),
    "compare": ("compare", "tiny", "--page", "600x500", "--engine", "analytic"),
    "tree": ("tree", "--depth", "1", "--no-trace"),
    "docs": ("docs", "--output", "docs"),
}


@pytest.fixture
def _pages():
    Path("pages.csv").write_text("width,height\n600,500\n")


@sampled(
    ("name", "options", "changes", "expected", "said", "times"),
    [
        ("sweep", ["--strict"], TYPO, 3, UNKNOWN, 2),
        ("archive", ["--strict"], TYPO, 3, UNKNOWN, 2),
        ("docs", [], TYPO | {"sliding_window_size": 128}, 2, UNKNOWN, 1),
        *(
            (name, [], *rest)
            for name in COMMANDS
            for rest in (
                ({}, 0, "warning", 0),
                (TYPO, 0, UNKNOWN, 1),
                ({"sliding_window_size": 128}, 2, "'sliding_window_size' is 128: it bounds", 1),
            )
            if name != "docs"
        ),
    ],
    first(3),
)
@pytest.mark.usefixtures("_pages")
def test_every_command_that_reads_a_config_says_what_it_does_not_read(
    capsys, tmp_path, name, options, changes, expected, said, times
):
    config = written(tmp_path / "c.json", **changes)
    code, _, err = run(capsys, *COMMANDS[name], *options, "--config", config)
    assert (code, err.count(said)) == (expected, times)


# --- code that is neither the reference's nor the published model's ----------------------------


def other_code(path: Path, **changes) -> ModelDirectory:
    """The reference's files as a directory of their own, around a small decoder."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(DEFAULT.reference, path, ignore=ignored, dirs_exist_ok=True)
    written(path / "config.json", small_directory().config, **changes)
    return ModelDirectory.read(path)


def session(directory: ModelDirectory) -> DeepSeekOCRSession:
    return DeepSeekOCRSession.from_directory(directory, trust_remote_code=True)


class TestOtherCode:
    def test_closed_forms_say_what_they_assume_of_it(self, capsys, tmp_path):
        directory = other_code(tmp_path / "m")
        assert directory.code == "other"
        figures = analytic.page_figures(directory, PAGE)
        assert figures.warnings == ()
        [said] = [note for note in figures.notes if "assume" in note]
        assert "builds the model in config.json; a trace shows what it runs" in said
        for name in ("fit", "time"):
            _, _, err = run(capsys, *COMMANDS[name], "--model", tmp_path / "m")
            assert f"dsocr-analyze: assumed: {said}\n" in err
        assert not any("assume" in n for n in analytic.page_figures(PUBLISHED, PAGE).notes)

    @pytest.mark.exhaustive
    @pytest.mark.directory
    def test_what_a_trace_sees_of_it_stands_without_closed_forms(self, tmp_path):
        plain, sliced = other_code(tmp_path / "m"), other_code(tmp_path / "n", pretraining_tp=2)
        [figures, agreement], [before, _] = (
            session(each).figures(PAGE) for each in (sliced, plain)
        )
        assert agreement is None
        assert figures.prefill_pass == before.prefill_pass  # this code does not read the key
        [warning] = figures.warnings
        assert warning.startswith("no analytic figures to compare the trace with: config.json:")
        assert "'pretraining_tp' is 2: it splits projections into slices" in warning

    @pytest.mark.directory
    def test_a_failure_of_its_own_is_told_with_what_is_odd_about_the_config(self, tmp_path):
        directory = other_code(tmp_path / "m", num_experts_per_tok=100)
        with pytest.raises(ModelCodeError, match="k not in range") as caught:
            session(directory).figures(PAGE)
        assert "; config.json: 'num_experts_per_tok' is 100; give at most" in str(caught.value)

    def test_what_published_code_cannot_build_is_refused_before_torch_is_there(
        self, capsys, tmp_path, monkeypatch
    ):
        path = tmp_path / "m"
        other_code(path)
        heads = {"num_attention_heads": 7, "num_key_value_heads": 7}
        written(path / "config.json", PUBLISHED.config, **heads)
        monkeypatch.setattr(ModelDirectory, "runs_code", lambda *_: True)
        monkeypatch.setattr("dsocr_analyze.analysis.start_torch", pytest.fail)
        code, _, err = run(capsys, "--model", path, "--trust-remote-code", "--engine", "trace")
        assert code == 2
        assert "'num_attention_heads' is 7; give a divisor of 'hidden_size', 1280" in err
        with pytest.raises(ConfigError, match="'num_attention_heads' is 7"):
            session(ModelDirectory.read(path))

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("sliding_window_size", 128),
            ("_attn_implementation", "flash_attention_2"),
            ("quantization_config", {"quant_method": "fp8"}),
            ("num_beams", 4),
        ],
    )
    def test_what_a_trace_does_not_see_of_it_is_refused(self, tmp_path, key, value):
        directory = other_code(tmp_path / "m", **{key: value})
        with pytest.raises(ConfigError, match=f"'{key}' is "):
            session(directory)

    def test_without_files_to_build_from_it_is_other_code(self, tmp_path):
        config = {k: v for k, v in PUBLISHED.config.items() if k != "auto_map"}
        written(tmp_path / "config.json", config)
        directory = ModelDirectory.read(tmp_path)
        assert directory.code == "other"
        assert directory.dimensions() == PUBLISHED.dimensions()


def test_a_model_of_a_table_carries_the_warnings_of_its_config():
    directory = PUBLISHED.with_config({**PUBLISHED.config, **TYPO})
    assert CountedModel.from_directory(directory).warnings == (UNKNOWN,)


# --- the published files -----------------------------------------------------------------------


def vendor(**changes) -> ModelDirectory:
    """The published files around a small decoder."""
    read = ModelDirectory.read(VENDOR)
    decoder = {
        "num_hidden_layers": 2,
        "vocab_size": 1000,
        "n_routed_experts": 8,
        "moe_intermediate_size": 72,
    }
    config = {key: value for key, value in read.config.items() if key != "language_config"}
    return dataclasses.replace(read, config=config | decoder | changes)


OTHER_VISION = {
    "projector_config": {
        "projector_type": "mlp_gelu", "depth": 3, "input_dim": 1024, "n_embed": 640
    },
    "vision_config": {
        "image_size": 512,
        "width": {
            "clip-l-14-224": {
                "heads": 8, "image_size": 112, "layers": 2, "patch_size": 16, "width": 512
            },
            "sam_vit_b": {
                "downsample_channels": [64, 512], "global_attn_indexes": [1], "heads": 4,
                "layers": 2, "width": 256,
            },
        },
    },
}  # fmt: skip


@pytest.mark.vendor
@needs_vendor
class TestPublishedCode:
    def test_closed_forms_count_what_the_code_builds(self):
        read = ModelDirectory.read(VENDOR)
        assert read.code == "published"
        other = read.with_config({**read.config, **OTHER_VISION})
        figures = analytic.page_figures(other, PAGE)
        assert figures.parameters.total == 3_336_106_240
        assert CountedModel.from_directory(other).parameters == 3_336_106_240
        assert len(figures.warnings) == 15
        assert (
            "config.json: 'projector_config.projector_type' is 'mlp_gelu', but the directory's code"
            " does not read it and builds 'linear'; 'linear' counts"
        ) in figures.warnings

    def test_the_code_builds_the_same_whatever_the_vision_sections_say(self):
        plain, other, neither = (
            session(vendor(**changes))
            for changes in ({}, OTHER_VISION, {"vision_config": None, "projector_config": None})
        )
        shapes = [
            {name: each.shape for name, each in found.model.named_parameters()}
            for found in (plain, other, neither)
        ]
        assert shapes[0] == shapes[1] == shapes[2]
        (one, one_agrees), (two, two_agrees) = plain.figures(PAGE), other.figures(PAGE)
        assert one.prefill_pass == two.prefill_pass
        assert two.parameters == analytic.page_figures(vendor(**OTHER_VISION), PAGE).parameters
        assert one_agrees.stages == two_agrees.stages
        assert set(two.warnings) >= set(vendor(**OTHER_VISION).config_findings.warnings)

    def test_a_window_that_the_code_ignores_is_warned_of(self):
        directory = vendor(sliding_window_size=128)
        warning = (
            "config.json: 'sliding_window_size' is 128, which the directory's code does not read;"
            " no figure includes it"
        )
        assert analytic.page_figures(directory, PAGE).warnings == (warning,)
        figures, _ = session(directory).figures(PAGE)
        assert warning in figures.warnings
        assert figures.batch == session(vendor()).figures(PAGE)[0].batch

    def test_slices_that_the_code_cuts_are_traced_and_have_no_closed_form(self):
        directory = vendor(pretraining_tp=2)
        with pytest.raises(ConfigError, match="'pretraining_tp' is 2"):
            analytic.page_figures(directory, PAGE)
        (figures, agreement), (before, _) = (
            session(each).figures(PAGE) for each in (directory, vendor())
        )
        assert agreement is None
        assert figures.prefill_pass.matrix_flops == before.prefill_pass.matrix_flops
        assert figures.prefill_pass.vector_flops > before.prefill_pass.vector_flops
