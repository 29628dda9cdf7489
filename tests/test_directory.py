"""What a model directory says of itself: its config, its classes, and whether its code is known."""

from __future__ import annotations

import json

import pytest
import torch
import vendor_like

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import load_model

CONFIG = vendor_like.CONFIG


@pytest.fixture
def path(tmp_path):
    return vendor_like.write(tmp_path / "m")


def read(path):
    return ModelDirectory.read(path)


def load(path):
    return load_model(
        read(path), device=torch.device("meta"), dtype=torch.float32, trust_remote_code=True
    )


def test_the_config_of_a_checkout_has_one_digest_however_it_is_written(tmp_path):
    a = ModelDirectory.read(vendor_like.write(tmp_path / "a"))
    shuffled = json.dumps(dict(reversed(CONFIG.items())), indent=3)
    b = ModelDirectory.read(vendor_like.write(tmp_path / "b", shuffled))
    assert a.source(None).config_digest == b.source(None).config_digest
    assert a.code_digest() == b.code_digest()


def test_another_config_replaces_all_but_the_files_that_are_named(path):
    directory = read(path)
    other = directory.with_config({"layers": 3, "auto_map": {"AutoModel": "other.Model"}})
    assert other.config == {"layers": 3, "auto_map": CONFIG["auto_map"]}
    assert directory.config == CONFIG
    assert other.digests() == directory.digests()
    load_options = {"device": torch.device("meta"), "dtype": torch.float32}
    model = load_model(other, trust_remote_code=True, **load_options).module
    assert len(model.layers) == 3


def test_another_config_does_not_bring_the_auto_map_that_the_directory_lacks(path):
    without = {key: value for key, value in CONFIG.items() if key != "auto_map"}
    vendor_like.write(path, without)
    with pytest.raises(ConfigError, match="auto_map"):
        read(path).with_config(CONFIG).class_in("AutoModel")


def test_the_reference_is_known_by_its_place(path):
    assert read(DEFAULT.reference).is_reference
    assert not read(path).is_reference


class TestPublishedCode:
    """The claim behind `runs_code`: files beside the published ones are not executed."""

    @pytest.fixture
    def published(self, path):
        return read(path).digests()

    def test_runs_where_every_file_is_as_published(self, path, published):
        assert read(path).runs_code(published)
        assert read(path).with_config({"layers": 7}).runs_code(published)

    def test_does_not_run_where_a_byte_differs(self, path, published):
        with (path / "parts.py").open("ab") as file:
            file.write(b"\n")
        assert not read(path).runs_code(published)

    def test_does_not_run_where_a_file_is_missing(self, path, published):
        (path / "parts.py").unlink()
        assert not read(path).runs_code(published)

    @pytest.mark.parametrize(
        "added",
        [
            "extra.py",
            "torch.py",
            "__init__.py",
            "dsocr_analyze_remote.py",
            "parts/__init__.py",
            "sub/parts.py",
        ],
    )
    def test_runs_beside_files_that_nothing_imports(self, path, published, added):
        (path / added).parent.mkdir(exist_ok=True)
        (path / added).write_text("raise SystemExit('executed')")
        assert read(path).runs_code(published)
        load(path)

    def test_does_not_run_where_auto_map_names_another_file(self, path, published):
        auto_map = {**CONFIG["auto_map"], "AutoModel": "extra.TinyModel"}
        vendor_like.write(path, {**CONFIG, "auto_map": auto_map})
        (path / "extra.py").write_text("from .modeling_tiny import TinyModel")
        assert not read(path).runs_code(published)
