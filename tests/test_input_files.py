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


def test_only_files_and_links_to_them_are_read(tmp_path, pipe, endless):
    """What waits or never ends is refused unread."""
    file, link, bound = tmp_path / "file", tmp_path / "link", tmp_path / "socket"
    file.write_bytes(b"content")
    link.symlink_to(file)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(bound))
        kinds = {pipe: "a pipe", endless: "a device", bound: "a socket", tmp_path: "a folder"}
        for path, kind in kinds.items():
            with pytest.raises(OSError, match=f"it is {kind}"), opened(path):
                pass
    assert read_bytes(file, 7) == read_bytes(link, 7) == b"content"
    assert [each for each in (file, link, *kinds) if is_regular(each)] == [file, link]
    assert all(map(exists, (file, link, *kinds)))
    for impossible in ("a" * 300, "a\0b"):
        path = tmp_path / impossible
        assert [exists(path), is_regular(path), is_folder(path)] == [False] * 3


def test_a_pipe_that_takes_a_files_place_and_a_byte_too_many_are_refused(
    tmp_path, pipe, monkeypatch
):
    file, real = tmp_path / "file", os.open
    file.write_bytes(bytes(MEBIBYTE + 1))
    assert len(read_bytes(file, MEBIBYTE + 1)) == MEBIBYTE + 1
    with pytest.raises(OSError, match="it has more than 1 MiB"):
        read_bytes(file, MEBIBYTE)
    monkeypatch.setattr(os, "open", lambda *given: pipe.replace(file) and real(*given))
    with pytest.raises(OSError, match="a pipe"), opened(file):
        pass


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
def test_every_command_refuses_what_is_no_file_and_a_name_that_no_file_has(
    kind, pipe, endless, capsys
):
    said = {str(pipe): "it is a pipe", str(endless): "it is a device", "a" * 300: "aaa"}
    for path, part in said.items():
        assert main([each.format(path) for each in COMMANDS[kind]]) == 2
        message = capsys.readouterr().err
        assert (message.count("\n"), "internal error" in message) == (1, False)
        assert part in message
        assert len(message) < 500


@pytest.fixture
def model(tmp_path):
    model = tmp_path / "model"
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    return model


def refusal(model):
    with pytest.raises(model_directory.ModelDirectoryError) as refused:
        ModelDirectory.read(model)
    return str(refused.value)


@pytest.mark.parametrize(("name", "said"), [
    ("sub/x.py", "sub/x.py: it is a pipe"), ("config.json", "it is a pipe"),
    (".x.py", None), (".sub", None),
])  # fmt: skip
def test_a_pipe_in_a_model_directory_is_named_unless_it_is_hidden(model, name, said):
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    if said is None:
        assert ModelDirectory.read(model).sources == {}
    else:
        assert said in refusal(model)


def test_code_and_folders_beyond_any_models_are_refused(model, monkeypatch):
    limits = {"SOURCE_BYTES": 10, "CODE_BYTES": 15, "_MOST_FILES": 4}
    for name, value in limits.items():
        monkeypatch.setattr(model_directory, name, value)
    (model / "a.py").write_bytes(b"#" * 10)
    (model / "b.py").write_bytes(b"#" * 5)
    assert sorted(ModelDirectory.read(model).sources) == ["a.py", "b.py"]
    (model / "sub" / "c").touch()
    assert "more than 4 files" in refusal(model)
    (model / "sub" / "c").unlink()
    (model / "b.py").write_bytes(b"#" * 6)
    assert "Python files are larger than" in refusal(model)
    (model / "a.py").write_bytes(b"#" * 11)
    assert "a.py: it has more than" in refusal(model)


@pytest.mark.exhaustive
def test_a_trust_record_that_is_a_pipe_does_not_hang(model, pipe, tmp_path):
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
    config, document, settings, one, all_code = (
        f"{size // MEBIBYTE} MiB" for size in (
            input_files.CONFIG_BYTES, input_files.DOCUMENT_BYTES, input_files.SETTINGS_BYTES,
            input_files.SOURCE_BYTES, input_files.CODE_BYTES,
        )
    )  # fmt: skip
    assert rows == {
        "`config.json`": config,
        "one Python file of a model, all of them": f"{one}, {all_code}",
        "tokenizer, saved report, benchmark": document,
        "budgets, stages file, device profile": settings,
    }
