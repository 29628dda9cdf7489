"""Only regular files are read, and no more of them than is wanted."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dsocr_analyze import input_files
from dsocr_analyze.cli import main
from dsocr_analyze.input_files import MEBIBYTE, exists, is_folder, is_regular, opened, read_bytes
from dsocr_analyze.model import directory as model_directory
from dsocr_analyze.model.directory import ModelDirectory

REFERENCE = model_directory.ARCHITECTURES["deepseek-ocr"].reference


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def endless(tmp_path):
    path = tmp_path / "endless.json"
    path.symlink_to("/dev/zero")
    return path


def test_a_file_and_a_link_to_one_are_read(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"content")
    link.symlink_to(file)
    assert read_bytes(file, 7) == read_bytes(link, 7) == b"content"
    assert is_regular(link)
    assert exists(link)


def test_what_waits_or_never_ends_is_refused_unread(tmp_path, pipe, endless):
    bound = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(bound))
        for path, kind in ((pipe, "a pipe"), (endless, "a device"), (bound, "a socket")):
            with pytest.raises(OSError, match=kind), opened(path):
                pass
            assert exists(path)
            assert not is_regular(path)
    with pytest.raises(IsADirectoryError, match="it is a folder"), opened(tmp_path):
        pass


def test_a_pipe_that_takes_a_files_place_before_it_is_opened_is_refused(
    tmp_path, pipe, monkeypatch
):
    file = tmp_path / "file"
    file.write_bytes(b"content")
    real = os.open

    def swapped(path, flags, *rest):
        pipe.replace(file)
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(OSError, match="a pipe"), opened(file):
        pass


def test_one_byte_too_many_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(MEBIBYTE + 1))
    assert len(read_bytes(file, MEBIBYTE + 1)) == MEBIBYTE + 1
    with pytest.raises(OSError, match="it has more than 1 MiB"):
        read_bytes(file, MEBIBYTE)


@pytest.mark.parametrize("name", ["a" * 300, "a\0b"])
def test_under_an_impossible_name_there_is_nothing(tmp_path, name):
    path = tmp_path / name
    assert not exists(path)
    assert not is_regular(path)
    assert not is_folder(path)


COMMANDS = {
    "config": ["--engine", "analytic", "--config", "{}"],
    "image": ["--engine", "analytic", "--image", "{}"],
    "report": ["compare", "{}"],
    "pages": ["archive", "{}"],
    "pages of a sweep": ["sweep", "--pages", "{}"],
    "budgets": ["check", "--budgets", "{}"],
    "stages": ["--stages", "{}", "--model", str(REFERENCE)],
    "benchmark": ["time", "h100-sxm", "--from-benchmark", "{}"],
    "profile": ["devices", "--profile", "{}"],
}


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("special", ["pipe", "endless"])
def test_every_command_refuses_what_is_no_file(kind, special, request, capsys):
    path = request.getfixturevalue(special)
    code = main([each.format(path) for each in COMMANDS[kind]])
    message = capsys.readouterr().err
    assert code == 2
    assert message.count("\n") == 1
    assert {"pipe": "it is a pipe", "endless": "it is a device"}[special] in message
    assert len(message) < 500


@pytest.mark.parametrize("kind", COMMANDS)
def test_every_command_refuses_a_name_that_no_file_has(kind, capsys):
    code = main([each.format("a" * 300) for each in COMMANDS[kind]])
    message = capsys.readouterr().err
    assert code == 2
    assert message.count("\n") == 1
    assert "internal error" not in message
    assert len(message) < 500


class TestModelDirectories:
    @pytest.fixture
    def model(self, tmp_path):
        model = tmp_path / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        return model

    def refusal(self, model):
        with pytest.raises(model_directory.ModelDirectoryError) as refused:
            ModelDirectory.read(model)
        return str(refused.value)

    def test_a_pipe_among_python_files_is_named(self, model):
        (model / "sub").mkdir()
        os.mkfifo(model / "sub" / "x.py")
        assert "sub/x.py: it is a pipe" in self.refusal(model)

    def test_a_pipe_or_a_device_in_place_of_the_config_is_refused(self, model):
        (model / "config.json").unlink()
        os.mkfifo(model / "config.json")
        assert "it is a pipe" in self.refusal(model)

    def test_code_beyond_any_models_is_refused(self, model, monkeypatch):
        monkeypatch.setattr(model_directory, "SOURCE_BYTES", 10)
        monkeypatch.setattr(model_directory, "CODE_BYTES", 15)
        (model / "a.py").write_bytes(b"#" * 10)
        (model / "b.py").write_bytes(b"#" * 5)
        assert sorted(ModelDirectory.read(model).sources) == ["a.py", "b.py"]
        (model / "b.py").write_bytes(b"#" * 6)
        assert "Python files are larger than" in self.refusal(model)
        (model / "a.py").write_bytes(b"#" * 11)
        assert "a.py: it has more than" in self.refusal(model)

    def test_a_folder_of_more_files_than_any_models_is_refused(self, model, monkeypatch):
        monkeypatch.setattr(model_directory, "_MOST_FILES", 3)
        (model / "a.py").touch()
        (model / "sub").mkdir()
        assert list(ModelDirectory.read(model).sources) == ["a.py"]
        (model / "sub" / "b").touch()
        assert "more than 3 files" in self.refusal(model)

    def test_hidden_files_and_folders_are_no_part_of_it(self, model):
        (model / ".hidden").mkdir()
        os.mkfifo(model / ".hidden" / "x.py")
        os.mkfifo(model / ".x.py")
        assert ModelDirectory.read(model).sources == {}

    @pytest.mark.exhaustive
    def test_a_trust_record_that_is_a_pipe_does_not_hang(self, model, pipe, tmp_path):
        store = tmp_path / "config" / "dsocr-analyze"
        store.mkdir(parents=True)
        pipe.replace(store / "trust.json")
        (model / "a.py").touch()
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "dsocr_analyze", "trust", str(model)],
            env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert ended.returncode == 2
        assert "it is a pipe" in ended.stderr


def test_the_page_on_security_names_the_sizes():
    page = (Path(__file__).parent.parent / "docs" / "security.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (.+?) \| ([\d ,MiB]+) \|$", page, re.MULTILINE))
    sizes = {
        "`config.json`": [input_files.CONFIG_BYTES],
        "one Python file of a model, all of them": [
            input_files.SOURCE_BYTES,
            input_files.CODE_BYTES,
        ],
        "tokenizer, saved report, benchmark": [input_files.DOCUMENT_BYTES],
        "budgets, stages file, device profile": [input_files.SETTINGS_BYTES],
    }
    assert rows == {
        name: ", ".join(f"{each // MEBIBYTE} MiB" for each in found)
        for name, found in sizes.items()
    }
