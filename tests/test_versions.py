"""Which versions of transformers run what."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

import pytest
import torch
import vendor_like

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import load_model, require_transformers

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


# Warnings ----------------------------------------------------------------------------------------

DEPRECATED = """
import warnings
warnings.warn("this package is deprecated", FutureWarning, stacklevel=2)
"""


def stderr_of_a_page(tmp_path, *options: str, **variables: str) -> str:
    """Of a page counted where a package that torch imports warns of its own end."""
    (tmp_path / "pynvml.py").write_text(DEPRECATED, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    small = ["--page", "100x100", "--crop-mode", "0", "--image-size", "64", "--max-new-tokens", "1"]
    command = [sys.executable, *options, "-m", "dsocr_analyze", *small]
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    ran = subprocess.run(
        [*command, "--output", str(tmp_path / "reports")],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stderr


@pytest.mark.exhaustive
def test_a_future_warning_of_what_is_imported_does_not_reach_the_user(tmp_path):
    assert "Warning" not in stderr_of_a_page(tmp_path)


@pytest.mark.exhaustive
def test_it_does_where_warnings_are_asked_for(tmp_path):
    asked = stderr_of_a_page(tmp_path, "-W", "default::FutureWarning")
    assert "FutureWarning: this package is deprecated" in asked
