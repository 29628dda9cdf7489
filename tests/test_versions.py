"""Which versions of transformers run what."""

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

REFUSED = ("4.44.2", "4.46.2", "4.48.0", "5.1.0", "5.0.0rc1")
ACCEPTED = ("4.46.3", "4.47.0", "4.47.1")


@pytest.mark.parametrize("version", [*REFUSED, *ACCEPTED])
def test_a_directory_runs_on_versions_with_what_it_imports_and_is_refused_unread_on_others(
    monkeypatch, tmp_path, version
):
    """By name, with the command that helps; the reference runs on any."""
    monkeypatch.setattr(metadata, "version", lambda _: version)
    mark = tmp_path / "mark"
    path = vendor_like.write(tmp_path / "m", parts=f"open({str(mark)!r}, 'w').close()\n")
    directory = ModelDirectory.read(path)
    require_transformers(ModelDirectory.read(DEFAULT.reference))
    if version in ACCEPTED:
        require_transformers(directory)
        return
    with pytest.raises(ModelCodeError) as refused:
        load_model(
            directory, trust_remote_code=True, device=torch.device("meta"), dtype=torch.bfloat16
        )
    assert not mark.exists()
    for part in (f"transformers {version} is installed", repr(str(path)), "<4.48,>=4.46.3",
                 "pip install 'dsocr-analyze[vendor]'"):  # fmt: skip
        assert part in str(refused.value)


DEPRECATED = """
import warnings
warnings.warn("this package is deprecated", FutureWarning, stacklevel=2)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [(), ("-W", "default::FutureWarning")])
def test_a_warning_of_what_torch_imports_reaches_the_user_only_if_asked_for(tmp_path, options):
    (tmp_path / "pynvml.py").write_text(DEPRECATED, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    small = ["--page", "100x100", "--crop-mode", "0", "--image-size", "64", "--max-new-tokens", "1"]
    command = [sys.executable, *options, "-m", "dsocr_analyze", *small]
    ran = subprocess.run(
        [*command, "--output", str(tmp_path / "reports")],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    warning = "FutureWarning: this package is deprecated" if options else "Warning"
    assert (warning in ran.stderr) == bool(options)
