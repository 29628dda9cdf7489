"""What a killed process leaves behind goes with the next writing; what is in use stays."""

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dsocr_analyze.errors import OutputError
from dsocr_analyze.output_files import prepare_directory, replacing, write_files

KILLED = (
    "import os, signal, sys; from pathlib import Path;"
    "from dsocr_analyze.output_files import replacing\n"
    "with replacing(Path(sys.argv[1])) as temporary:\n"
    "    temporary.write_text('half')\n"
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
    write_files({target: "new"})
    assert (target.read_text(), names_in(tmp_path)) == ("new", ["report.json"])


def test_a_file_that_another_writes_at_the_moment_stays(tmp_path):
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("half")
        write_files({tmp_path / "b": "b"})
        prepare_directory(tmp_path)
        assert temporary.read_text() == "half"
    assert names_in(tmp_path) == ["a", "b"]


def test_no_file_stays_open(tmp_path):
    before = len(names_in(Path("/dev/fd")))
    write_files({tmp_path / "a": "a", tmp_path / "b": "b"})
    prepare_directory(tmp_path)
    assert len(names_in(Path("/dev/fd"))) <= before


def test_files_of_other_names_kinds_and_links_stay(tmp_path):
    kept = [".dsocr-", ".dsocr-0123456789abcde", ".dsocr-0123456789abcdeg", "dsocr-" + "0" * 16]
    for name in kept:
        (tmp_path / name).touch()
    (tmp_path / (".dsocr-" + "1" * 16)).symlink_to(tmp_path / kept[0])
    (tmp_path / (".dsocr-" + "2" * 16)).mkdir()
    write_files({tmp_path / "new": ""})
    assert len(list(tmp_path.iterdir())) == len(kept) + 3


def _write_often(folder, number):
    for turn in range(40):
        write_files({folder / f"{number}": f"{number} {turn}"})


@pytest.mark.exhaustive
def test_writers_at_once_take_nothing_from_one_another(tmp_path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_often, args=(tmp_path, each)) for each in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert sorted(each.read_text() for each in tmp_path.iterdir()) == ["0 39", "1 39", "2 39"]


def test_one_that_is_taken_for_abandoned_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    real, locks = fcntl.flock, []

    def late(descriptor, operation):
        if operation == fcntl.LOCK_EX:
            locks.append(descriptor)
            for path in tmp_path.iterdir() if len(locks) == 1 else ():
                path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    write_files({tmp_path / "a": "whole"})
    assert names_in(tmp_path) == ["a"]
    assert len(locks) == 2


def test_a_name_as_long_as_any_can_be_written(tmp_path):
    target = tmp_path / ("a" * 255)
    write_files({target: "text"})
    assert names_in(tmp_path) == ["a" * 255]
    with pytest.raises(OutputError, match="File name too long"):
        write_files({tmp_path / ("a" * 256): "text"})


def test_new_files_have_the_permissions_that_the_user_wants(tmp_path, monkeypatch):
    before = os.umask(0o027)
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("other threads make files too"))
    try:
        write_files({tmp_path / "a": ""})
        write_files({tmp_path / "b": ""}, mode=0o600)
    finally:
        monkeypatch.undo()
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"]
    assert modes == [0o640, 0o600]
