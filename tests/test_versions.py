"""Which versions of transformers run what."""

from __future__ import annotations

from importlib import metadata

import pytest
import torch
import vendor_like

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.versions import require_transformers
from dsocr_analyze.running.loading import load_model

META = {"device": torch.device("meta"), "dtype": torch.bfloat16}


@pytest.fixture
def directory(tmp_path):
    return ModelDirectory.read(vendor_like.write(tmp_path / "m"))


@pytest.mark.parametrize("version", ["4.46.3", "4.47.0", "4.47.1"])
def test_versions_that_have_what_the_vendor_imports_are_accepted(monkeypatch, directory, version):
    monkeypatch.setattr(metadata, "version", lambda _: version)
    require_transformers(directory)


@pytest.mark.parametrize("version", ["4.44.2", "4.46.2", "4.48.0", "5.1.0", "5.0.0rc1"])
def test_a_directory_under_another_is_refused_by_name_with_the_command_that_helps(
    monkeypatch, directory, version
):
    monkeypatch.setattr(metadata, "version", lambda _: version)
    with pytest.raises(ModelCodeError) as refused:
        load_model(directory, trust_remote_code=True, **META)
    message = str(refused.value)
    assert f"transformers {version} is installed" in message
    assert repr(str(directory.path)) in message
    assert "<4.48,>=4.46.3" in message
    assert "pip install 'dsocr-analyze[vendor]'" in message


def test_nothing_of_a_refused_directory_is_executed(monkeypatch, tmp_path):
    path = vendor_like.write(
        tmp_path / "m", parts=f"open({str(tmp_path / 'mark')!r}, 'w').close()\n"
    )
    monkeypatch.setattr(metadata, "version", lambda _: "5.1.0")
    with pytest.raises(ModelCodeError):
        load_model(ModelDirectory.read(path), trust_remote_code=True, **META)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("version", ["4.46.3", "4.57.6", "5.23.0"])
def test_the_reference_is_refused_under_none(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda _: version)
    require_transformers(ModelDirectory.read(DEFAULT.reference))
