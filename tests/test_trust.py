"""Nobody's code is executed before somebody agreed to these very files."""

from __future__ import annotations

import json
import sys

import pytest
import torch
import vendor_like

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.errors import OutputError, TrustError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.trust import is_trusted, record_trust, require_trust, trust_store
from dsocr_analyze.running.loading import load_model


@pytest.fixture(autouse=True)
def config_home(tmp_path, monkeypatch):
    home = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    return home


@pytest.fixture
def checkout(tmp_path):
    return vendor_like.write(tmp_path / "a checkout")


def read(path):
    return ModelDirectory.read(path)


def load(path, **options):
    return load_model(read(path), device=torch.device("meta"), dtype=torch.float32, **options)


def test_an_unknown_directory_is_refused_naming_its_files_and_both_ways(checkout):
    with pytest.raises(TrustError) as error:
        load(checkout)
    message = str(error.value)
    assert "\n" not in message
    for part in (*vendor_like.FILES, repr(str(checkout)), "trust_remote_code=True"):
        assert part in message
    assert f"dsocr-analyze trust '{checkout}'" in message  # as a shell takes a path with a space


def test_nothing_is_executed_before_trust_is_checked(checkout, tmp_path):
    mark = tmp_path / "executed"
    for name in vendor_like.FILES:
        file = checkout / name
        file.write_text(f"open({str(mark)!r}, 'w').close()\n{file.read_text()}")
    with pytest.raises(TrustError):
        load(checkout)
    assert not mark.exists()
    load(checkout, trust_remote_code=True)
    assert mark.exists()


def test_trust_for_one_run_is_not_recorded(checkout):
    load(checkout, trust_remote_code=True)
    assert not trust_store().exists()
    with pytest.raises(TrustError):
        load(checkout)


def test_recorded_trust_lasts(checkout, config_home):
    digests = record_trust(read(checkout))
    assert set(digests) == set(vendor_like.FILES)
    assert trust_store() == config_home / "dsocr-analyze" / "trust.json"
    assert json.loads(trust_store().read_text()) == {str(checkout): digests}
    assert [file.name for file in trust_store().parent.iterdir()] == ["trust.json"]
    load(checkout)
    assert is_trusted(read(checkout))


def test_a_second_directory_is_recorded_beside_the_first(checkout, tmp_path):
    other = vendor_like.write(tmp_path / "elsewhere" / checkout.name, parts="# nothing\n")
    record_trust(read(checkout))
    assert not is_trusted(read(other))
    record_trust(read(other))
    assert is_trusted(read(checkout))
    assert is_trusted(read(other))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda path: (path / "parts.py").write_text("import os\n"), "parts.py"),
        (lambda path: (path / "parts.py").unlink(), "parts.py"),
        (lambda path: (path / "added.py").write_text(""), "added.py"),
        (lambda path: (path / "sub").mkdir() or (path / "sub/x.py").write_text(""), "sub/x.py"),
        (lambda path: (path / "parts.py").rename(path / "renamed.py"), "parts.py, renamed.py"),
    ],
)
def test_changed_added_removed_files_break_trust_and_are_named(checkout, change, named):
    record_trust(read(checkout))
    change(checkout)
    assert not is_trusted(read(checkout))
    with pytest.raises(TrustError, match="changed since they were trusted") as error:
        load(checkout)
    assert f"({named})" in str(error.value)


def test_other_files_do_not_break_trust(checkout):
    record_trust(read(checkout))
    (checkout / "README.md").write_text("read me")
    (checkout / ".git").mkdir()
    (checkout / ".git" / "hook.py").write_text("")
    (checkout / "folder.py").mkdir()
    vendor_like.write(checkout, {**vendor_like.CONFIG, "hidden_size": 8})
    require_trust(read(checkout))


def test_what_was_read_is_executed_whatever_lies_there_later(checkout):
    directory = read(checkout)
    record_trust(directory)
    (checkout / "parts.py").write_text("raise SystemExit('changed after it was hashed')")
    options = {"device": torch.device("meta"), "dtype": torch.float32}
    assert load_model(directory, **options).module.layers[0].linear.in_features == 4
    with pytest.raises(TrustError):
        load(checkout)


def test_trust_belongs_to_the_directory_not_to_the_way_there(checkout, tmp_path, monkeypatch):
    record_trust(read(checkout))
    link = tmp_path / "link"
    link.symlink_to(checkout)
    assert is_trusted(read(link))
    monkeypatch.chdir(tmp_path)
    assert is_trusted(ModelDirectory.read(type(checkout)(checkout.name)))


def test_the_reference_needs_no_record():
    assert is_trusted(read(DEFAULT.reference))
    assert not trust_store().exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"/a": "b"}', '{"/a": null}', "[" * 100_000])
def test_a_broken_record_trusts_nobody_and_is_named(checkout, text):
    trust_store().parent.mkdir(parents=True)
    trust_store().write_text(text)
    for act in (is_trusted, require_trust, record_trust):
        with pytest.raises(TrustError) as error:
            act(read(checkout))
        assert "trust.json" in str(error.value)
    assert trust_store().read_text() == text


def test_a_record_that_cannot_be_written_is_named(checkout, config_home):
    config_home.write_text("a file where the folder would be")
    with pytest.raises((OutputError, TrustError), match="trust record"):
        record_trust(read(checkout))
    assert config_home.read_text() == "a file where the folder would be"


def test_refusing_imports_nothing(checkout):
    before = set(sys.modules)
    with pytest.raises(TrustError):
        load(checkout)
    assert not {name for name in set(sys.modules) - before if "tiny" in name}
