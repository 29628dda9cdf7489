"""A fourth architecture, in this file alone: a page goes through SAM and the projector, no more."""

import json
from pathlib import Path

import pytest
from command_line import run
from sampling import first, sampled

from dsocr_analyze.architectures import ARCHITECTURES, architecture_of
from dsocr_analyze.architectures.ocr_family import dimensions, vision
from dsocr_analyze.architectures.ocr_family.config_table import (
    PROJECTOR_KEYS,
    SAM_KEYS,
    key_table,
)
from dsocr_analyze.architectures.ocr_family.family_member import (
    DECODE,
    PREFILL,
    PROJECTOR,
    SAM,
    FamilyMember,
)
from dsocr_analyze.architectures.views import CropRule, tokens_per_side
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.workload import Mode

CONFIG = {
    "architectures": ["ToyOCRForCausalLM"],
    "auto_map": {
        "AutoConfig": "modeling_toyocr.ToyOCRConfig",
        "AutoModel": "modeling_toyocr.ToyOCRForCausalLM",
    },
    "model_type": "toy-ocr",
    "vision_config": {
        "image_size": 256,
        "width": {
            "sam_vit_b": {
                "width": 16,
                "layers": 3,
                "heads": 2,
                "global_attn_indexes": [2],
                "downsample_channels": [8, 12],
            }
        },
    },
    "projector_config": {"projector_type": "linear", "input_dim": 12, "n_embed": 32},
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "intermediate_size": 24,
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 4096,
    "use_mla": False,
}

CODE = """
from torch import nn
from dsocr_analyze.architectures.deepseek_ocr.reference import deepencoder
from dsocr_analyze.architectures.deepseek_ocr.reference.configuration_deepseek_v2 import (
    DeepseekV2Config,
)
from dsocr_analyze.architectures.deepseek_ocr.reference.modeling_deepseekocr import (
    DeepseekOCRForCausalLM, DeepseekOCRModel,
)

class ToyOCRConfig(DeepseekV2Config):
    model_type = "toy-ocr"

class ToyOCRModel(DeepseekOCRModel):
    def _build_vision(self, config):
        self.sam_model = deepencoder.build_sam_vit_b(config.vision_config)
        self.projector = deepencoder.MlpProjector(config.projector_config)
        self.view_seperator = self._token_embedding(config)

    def _encode(self, views, pixels):
        views.spatial = self.sam_model(pixels)
        views.tokens = views.spatial.flatten(2).permute(0, 2, 1)
        views.tokens = self.projector(views.tokens)

    def _lay_out(self, views, down, across):
        views.tokens = views.tokens.view(-1, views.tokens.shape[-1])

class ToyOCRForCausalLM(DeepseekOCRForCausalLM):
    decoder_class = ToyOCRModel
"""


def read(config):
    found = dimensions.RelativeDimensions(
        dimensions.DecoderDimensions.from_config(config),
        dimensions.SamDimensions.from_config(config),
        dimensions.ProjectorDimensions.from_config(config),
    )
    channels = found.sam.downsample_channels[-1]
    dimensions.check_projector(found.projector, channels, "SAM's last", found.decoder)
    return found


MODES = Mode("cut", 192, 128, True), Mode("whole", 128, 128, False)


class Toy(FamilyMember):
    name, title = "toy-ocr", "Toy-OCR"
    config_class, model_types = "ToyOCRForCausalLM", ("toy-ocr",)
    modes, default_mode = {mode.name: mode for mode in MODES}, "cut"
    config_table = key_table(SAM_KEYS | PROJECTOR_KEYS, {"vision_config": {}})
    stages = (SAM, PROJECTOR, PREFILL, DECODE)
    page_rule = CropRule(tile=128, most_views=4)
    base_size, image_size, text_tokens = 192, 128, 3

    read_dimensions = staticmethod(read)

    def encode(self, t, features, pixels, view, c, *, is_served=False):
        N, q = view.count, tokens_per_side(view.resolution)
        features.spatial = t.again("sam_model", vision.sam, pixels, N, view.resolution, c.sam)
        features.tokens = features.spatial  # frees the previous page's tokens first
        # Features lie channel by channel, view by view.
        features.tokens = t.again(
            "projector", vision.projector, features.tokens, N, q, c.projector, are_apart=True
        )

    def visual_tokens(self, base_size, image_size, crop_mode, grid):
        tokens = tokens_per_side(base_size if crop_mode else image_size) ** 2 + 1
        if grid != (1, 1):
            tokens += tokens_per_side(image_size) ** 2 * grid[0] * grid[1]
        return tokens


@pytest.fixture
def toy(tmp_path, monkeypatch):
    reference = tmp_path / "toy"
    reference.mkdir()
    (reference / "config.json").write_text(json.dumps(CONFIG))
    (reference / "modeling_toyocr.py").write_text(CODE)
    toy = Toy()
    toy.reference = reference
    monkeypatch.setitem(ARCHITECTURES, toy.name, toy)
    monkeypatch.chdir(tmp_path)
    return toy


@sampled("page", [(500, 300), (100, 100), (200, 900)], first(1))
@sampled("batch_size", [3, 1], first(1))
@sampled(("dtype", "flash"), [("float32", False), ("bfloat16", True)], first(1))
def test_both_engines(toy, page, batch_size, dtype, flash):
    session = DeepSeekOCRSession.from_directory(
        ModelDirectory.read(toy.reference), dtype=dtype, flash_attention=flash
    )
    workload = session.plan(page=page, batch_size=batch_size, max_new_tokens=5)
    figures, agreement = session.figures(workload)
    assert (agreement.agrees, agreement.warnings) == (True, [])
    assert list(figures.stages) == ["sam", "projector", "prefill", "decode"]


def test_its_directory_is_found_and_its_modes_are_named(toy, capsys):
    assert architecture_of(CONFIG) is toy
    code, _, err = run(capsys, "--arch", "toy-ocr", "--mode", "gundam")
    assert (code, "use cut, whole" in err) == (2, True)


@pytest.mark.exhaustive
def test_every_command_goes_by_its_stages(toy, capsys):
    for arguments in (
        ["--arch", "toy-ocr", "--max-new-tokens", "2", "--full"],
        ["--arch", "toy-ocr", "--engine", "analytic", "--mode", "whole", "--full"],
        ["--model", "toy", "--engine", "analytic", "--full"],
        ["compare", "toy-ocr", "deepseek-ocr:tiny"],
        ["fit", "l4", "--arch", "toy-ocr"],
        ["time", "l4", "--arch", "toy-ocr", "--max-new-tokens", "3"],
        ["tree", "--arch", "toy-ocr", "--depth", "2"],
    ):
        code, out, err = run(capsys, *arguments)
        assert code == 0, err
        assert "projector" in out or arguments[0] == "fit"
        assert "clip" not in out or arguments[0] == "compare"
    code, _, err = run(
        capsys, "sweep", "--arch", "toy-ocr", "--page", "300x500", "--output", "rows.csv", "-q"
    )
    assert code == 0, err
    header, row = Path("rows.csv").read_text().splitlines()[-2:]
    assert dict(zip(header.split(","), row.split(","), strict=True))["grid_rows"] == "2"
