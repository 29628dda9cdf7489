"""Only regular files are read, no more of them than is wanted; what is written is whole."""

import contextlib
import faulthandler
import fcntl
import io
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import pytest
from command_line import run

from dsocr_analyze import errors, input_files, output_files
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.cli import main
from dsocr_analyze.input_files import MEBIBYTE, exists, is_folder, is_regular, opened, read_bytes
from dsocr_analyze.model import directory, directory as model_directory
from dsocr_analyze.toml_table import toml_of_file

REFERENCE = DEFAULT.reference


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
    "budgets": ["check", "--budgets", "{}"],
    "stages": ["--stages", "{}", "--model", str(REFERENCE)],
    "benchmark": ["time", "h100-sxm", "--from-benchmark", "{}"],
    "profile": ["devices", "--profile", "{}"],
}


def test_a_byte_order_mark_does_not_hide_a_table(tmp_path):
    marked = tmp_path / "profile.toml"
    marked.write_bytes(b'\xef\xbb\xbfname = "x"')
    assert toml_of_file(marked, "a profile", errors.DeviceError) == {"name": "x"}


@pytest.mark.parametrize("kind", COMMANDS)
def test_every_command_refuses_what_is_no_file_and_a_name_that_no_file_has(
    kind, pipe, endless, capsys
):
    said = {str(pipe): "it is a pipe", str(endless): "it is a device", "a" * 300: "aaa"}
    for path, part in said.items():
        code, _, err = run(capsys, *(each.format(path) for each in COMMANDS[kind]))
        assert (code, err.count("\n"), "internal error" in err, len(err) < 500) == (
            2, 1, False, True
        )  # fmt: skip
        assert part in err


@pytest.fixture
def model(tmp_path):
    model = tmp_path / "model"
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    return model


def refusal(model):
    with pytest.raises(model_directory.ModelDirectoryError) as refused:
        directory.ModelDirectory.read(model)
    return str(refused.value)


@pytest.mark.parametrize(("name", "said"), [
    ("sub/x.py", "sub/x.py: it is a pipe"), ("config.json", "it is a pipe"),
    (".x.py", None), (".sub", None),
])  # fmt: skip
def test_a_pipe_in_a_model_directory_is_named_unless_it_is_hidden(model, name, said):
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    if said is None:
        assert directory.ModelDirectory.read(model).sources == {}
    else:
        assert said in refusal(model)


def test_code_and_folders_beyond_any_models_are_refused(model, monkeypatch):
    limits = {"SOURCE_BYTES": 10, "CODE_BYTES": 15, "_MOST_FILES": 4}
    for name, value in limits.items():
        monkeypatch.setattr(model_directory, name, value)
    (model / "a.py").write_bytes(b"#" * 10)
    (model / "b.py").write_bytes(b"#" * 5)
    assert sorted(directory.ModelDirectory.read(model).sources) == ["a.py", "b.py"]
    (model / "sub" / "c").touch()
    assert "more than 4 files" in refusal(model)
    (model / "sub" / "c").unlink()
    (model / "b.py").write_bytes(b"#" * 6)
    assert "Python files are larger than" in refusal(model)
    (model / "a.py").write_bytes(b"#" * 11)
    assert "a.py: it has more than" in refusal(model)


def test_a_trust_record_that_is_a_pipe_does_not_hang(model, pipe, tmp_path, monkeypatch, capsys):
    store = tmp_path / "config" / "dsocr-analyze"
    store.mkdir(parents=True)
    pipe.replace(store / "trust.json")
    (model / "a.py").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    # A hang would leave no other word.
    faulthandler.dump_traceback_later(60, exit=True, file=sys.__stderr__)
    code, _, err = run(capsys, "trust", model)
    faulthandler.cancel_dump_traceback_later()
    assert (code, "it is a pipe" in err) == (2, True)


def test_the_page_on_security_names_the_sizes():
    page = (Path(__file__).parent.parent / "docs" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| ([\d ,MiB]+) \|$", page, re.MULTILINE)
    sizes = {
        "`config.json`": [input_files.CONFIG_BYTES],
        "one Python file of a model, all of them": [
            input_files.SOURCE_BYTES,
            input_files.CODE_BYTES,
        ],
        "tokenizer, saved report or measurement, benchmark": [input_files.DOCUMENT_BYTES],
        "budgets, stages file, device profile": [input_files.SETTINGS_BYTES],
    }
    assert dict(rows) == {
        what: ", ".join(f"{size // MEBIBYTE} MiB" for size in of_each)
        for what, of_each in sizes.items()
    }


KILLED = (
    "import os, signal, sys; from pathlib import Path;"
    "from dsocr_analyze.output_files import replacing\n"
    "with replacing(Path(sys.argv[1])) as temporary:\n"
    "    temporary.write(b'half')\n"
    "    temporary.flush()\n"
    "    os.kill(os.getpid(), signal.SIGKILL)\n"
)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_leftovers_of_a_killed_process_are_removed_by_the_next_writing(tmp_path):
    target = tmp_path / "report.json"
    target.write_text("old")
    killed = subprocess.run([sys.executable, "-c", KILLED, target], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (target.read_text(), len(names_in(tmp_path))) == ("old", 2)
    output_files.write_files({target: "new"})
    assert (target.read_text(), names_in(tmp_path)) == ("new", ["report.json"])


def test_a_file_that_another_writes_at_the_moment_stays(tmp_path):
    with output_files.replacing(tmp_path / "a") as temporary:
        temporary.write(b"half")
        output_files.write_files({tmp_path / "b": "b"})
        output_files.prepare_directory(tmp_path)
        temporary.seek(0)
        assert temporary.read() == b"half"
    assert names_in(tmp_path) == ["a", "b"]


def test_no_file_stays_open(tmp_path):
    before = len(names_in(Path("/dev/fd")))
    output_files.write_files({tmp_path / "a": "a", tmp_path / "b": "b"})
    output_files.prepare_directory(tmp_path)
    assert len(names_in(Path("/dev/fd"))) <= before


def test_files_of_other_names_kinds_and_links_stay(tmp_path):
    kept = [".dsocr-", ".dsocr-0123456789abcde", ".dsocr-0123456789abcdeg", "dsocr-" + "0" * 16]
    for name in kept:
        (tmp_path / name).touch()
    (tmp_path / (".dsocr-" + "1" * 16)).symlink_to(tmp_path / kept[0])
    (tmp_path / (".dsocr-" + "2" * 16)).mkdir()
    output_files.write_files({tmp_path / "new": ""})
    assert len(list(tmp_path.iterdir())) == len(kept) + 3


def _write_often(folder, number):
    for turn in range(40):
        text = f"{number} {turn}"
        output_files.write_files({folder / f"{number}": text, folder / "of all": text})


@pytest.mark.exhaustive
def test_writers_at_once_take_nothing_from_one_another(tmp_path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_often, args=(tmp_path, each)) for each in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert names_in(tmp_path) == ["0", "1", "2", "of all"]
    last = [(tmp_path / str(number)).read_text() for number in range(3)]
    assert last == ["0 39", "1 39", "2 39"]
    assert (tmp_path / "of all").read_text() in last


def test_one_that_is_taken_for_abandoned_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    real, locks = fcntl.flock, []

    def late(descriptor, operation):
        if operation == fcntl.LOCK_EX | fcntl.LOCK_NB:
            locks.append(descriptor)
            for path in tmp_path.iterdir() if len(locks) == 1 else ():
                path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    output_files.write_files({tmp_path / "a": "whole"})
    assert names_in(tmp_path) == ["a"]
    assert len(locks) == 2


def test_a_name_as_long_as_any_can_be_written(tmp_path):
    output_files.write_files({tmp_path / ("a" * 255): "text"})
    assert names_in(tmp_path) == ["a" * 255]
    with pytest.raises(errors.OutputError, match="File name too long"):
        output_files.write_files({tmp_path / ("a" * 256): "text"})


def test_new_files_have_the_permissions_that_the_user_wants(tmp_path, monkeypatch):
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda _: pytest.fail("other threads make files too"))
            output_files.write_files({tmp_path / "a": ""})
            output_files.write_files({tmp_path / "b": ""}, mode=0o600)
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"]
    assert modes == [0o640, 0o600]


# --- another user of the machine -----------------------------------------------------------------

NOBODY = 65534
needs_root = pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="only root can be another user"
)


def as_nobody(act):
    """What `act` returns in a process of another user, as text."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(writing, str(act()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    said = os.read(reading, 1 << 16).decode()
    os.close(reading)
    return said


@pytest.fixture
def shared(monkeypatch):
    """A folder in which everybody can do everything, and nobody can leave."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(Path(folder, "config")))
        yield Path(folder)


def swapped(folder, target):
    """Puts a link in the place of every temporary file."""
    for path in folder.glob(".dsocr-*"):
        path.unlink()
        path.symlink_to(target)


@needs_root
def test_a_link_in_the_place_of_a_temporary_file_leads_nowhere(shared, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    with output_files.replacing(shared / "rows") as file:
        as_nobody(partial(swapped, shared, mine))
        assert next(shared.glob(".dsocr-*")).is_symlink()
        file.write(b"new")
    assert mine.read_text() == "mine"


@needs_root
def test_another_users_temporary_file_and_link_are_left_or_removed_never_written(shared, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    links = [shared / f".dsocr-{digit * 16}" for digit in "01"]
    as_nobody(lambda: [links[0].symlink_to(mine), links[1].write_text("theirs")])
    output_files.write_files({shared / "report": "new"})
    assert (mine.read_text(), (shared / "report").read_text()) == ("mine", "new")


def _locked_for(folder, taken, release):
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(taken, b".")
    os.read(release, 1)


@needs_root
def test_a_lock_that_another_user_holds_is_said_and_not_waited_for_without_end(shared, monkeypatch):
    monkeypatch.setattr(output_files, "_LONGEST_LOCK_SECONDS", 0.2)
    (taken, told), (asked, release) = os.pipe(), os.pipe()
    other = threading.Thread(target=as_nobody, args=[partial(_locked_for, shared, told, asked)])
    other.start()
    os.read(taken, 1)
    with (
        pytest.raises(errors.OutputError, match=r"which another process has locked for 0\.2 s"),
        output_files.locked(shared),
    ):
        pytest.fail("it is locked")
    os.write(release, b".")
    other.join()
    with output_files.locked(shared):
        pass


def _said_by(*arguments):
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        return main([str(each) for each in arguments]), error.getvalue()


@needs_root
@pytest.mark.parametrize(
    "arguments",
    [("--engine", "analytic", "--config"), ("time", "h100", "--profile"),
     ("time", "h100", "--from-benchmark"), ("compare", "tiny"), ("check", "--budgets"),
     ("advise", "--image"), ("archive",), ("archive", "--mode", "tiny"),
     ("time", "h100", "--new-tokens-from"), ("tree", "--hf-config"), ("trust",),
     ("plan", "--deadline", "24h", "--gpu", "h100")],
)  # fmt: skip
def test_what_is_not_ones_own_to_read_is_named(shared, arguments):
    """Each with the system's reason, instead of a word on the option's value."""
    secret = shared / "secret"
    secret.mkdir(0o700) if arguments in (
        ("trust",),
        ("archive", "--mode", "tiny"),
    ) else secret.touch(0o600)
    _said_by(*arguments, secret)  # imports what is needed before the other user comes
    said = as_nobody(partial(_said_by, *arguments, secret))
    assert said.startswith("(2, ")
    assert ("secret" in said, "Permission denied" in said) == (True, True), said


@needs_root
def test_a_config_folder_of_another_user_is_named(shared):
    _said_by("time", "h100")
    (shared / "config").mkdir(0o700)
    said = as_nobody(partial(_said_by, "time", "h100"))
    assert said.startswith("(2, ")
    assert "Permission denied; set XDG_CONFIG_HOME to a folder of yours" in said
