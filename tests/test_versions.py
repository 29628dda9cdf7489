"""Which versions of transformers model directories run on."""

from importlib import metadata

import pytest

from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.versions import require_transformers, supported_transformers


def test_the_versions_are_those_of_the_package_metadata():
    assert supported_transformers() == "<4.48,>=4.46.3"


@pytest.mark.parametrize("version", ["4.46.3", "4.47.0", "4.47.1"])
def test_versions_that_have_what_the_vendor_imports_are_accepted(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda _: version)
    require_transformers()


@pytest.mark.parametrize("version", ["4.44.2", "4.46.2", "4.48.0", "5.1.0"])
def test_other_versions_are_refused_with_both_versions_named(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda _: version)
    with pytest.raises(ModelCodeError, match=rf"transformers {version} .*<4\.48.*4\.46\.3"):
        require_transformers()
