"""Nobody's code is executed before somebody agreed to these very files."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import vendor_like

from dsocr_analyze import output_files
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.errors import OutputError, OwnFolderError, TrustError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import import_file, importable, load_model
from dsocr_analyze.model.trust import is_trusted, record_trust, require_trust, trust_store


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


def load(model, **options):
    directory = model if isinstance(model, ModelDirectory) else read(model)
    return load_model(directory, device=torch.device("meta"), dtype=torch.float32, **options)


def test_an_unknown_directory_is_refused_and_nothing_of_it_is_executed(checkout, tmp_path):
    """Naming its files, and both ways to trust them."""
    mark, before = tmp_path / "executed", set(sys.modules)
    for name in vendor_like.FILES:
        file = checkout / name
        file.write_text(f"open({str(mark)!r}, 'w').close()\n{file.read_text()}")
    with pytest.raises(TrustError) as error:
        load(checkout)
    assert not mark.exists()
    assert not {name for name in set(sys.modules) - before if "tiny" in name}
    parts = [*vendor_like.FILES, repr(str(checkout)), "trust_remote_code=True",
             f"dsocr-analyze trust '{checkout}'"]  # fmt: skip
    assert [part for part in parts if part not in str(error.value)] == []
    assert "\n" not in str(error.value)
    load(checkout, trust_remote_code=True)
    assert (mark.exists(), trust_store().exists()) == (True, False)  # that is for one run
    with pytest.raises(TrustError):
        load(checkout)


def test_recorded_trust_lasts_and_a_second_directory_is_recorded_beside_the_first(
    checkout, config_home, tmp_path
):
    other = vendor_like.write(tmp_path / "elsewhere" / checkout.name, parts="# nothing\n")
    digests, store = record_trust(read(checkout)), trust_store()
    assert set(digests) == set(vendor_like.FILES)
    assert store == config_home / "dsocr-analyze" / "trust.json"
    assert json.loads(store.read_text()) == {str(checkout): digests}
    assert [file.name for file in store.parent.iterdir()] == ["trust.json"]
    assert not is_trusted(read(other))
    store.chmod(0o644)
    record_trust(read(other))
    for path in (checkout, other):
        assert is_trusted(read(path))
        require_trust(read(path))
    # It is its owner's alone.
    assert [path.stat().st_mode & 0o777 for path in (store, store.parent)] == [0o600, 0o700]


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"parts.py": "import os\n"}, "parts.py"),
        ({"parts.py": None}, "parts.py"),
        ({"added.py": ""}, "added.py"),
        ({"sub/x.py": ""}, "sub/x.py"),
        ({"parts.py": None, "renamed.py": vendor_like.PARTS}, "parts.py, renamed.py"),
        ({"README.md": "read me", ".git/hook.py": "", "folder.py/x": "", "config.json": "{}"}, ""),
    ],
)
def test_changed_added_removed_files_of_code_break_trust_and_are_named(checkout, files, named):
    record_trust(read(checkout))
    for name, text in files.items():
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).unlink(missing_ok=True)
        if text is not None:
            (checkout / name).write_text(text)
    assert is_trusted(read(checkout)) == (named == "")
    told = rf"changed since they were trusted \({re.escape(named)}\)"
    with pytest.raises(TrustError, match=told) if named else contextlib.nullcontext():
        require_trust(read(checkout))


def test_what_was_read_is_executed_whatever_lies_there_later(checkout):
    directory = read(checkout)
    record_trust(directory)
    (checkout / "parts.py").write_text("raise SystemExit('changed after it was hashed')")
    assert load(directory).module.layers[0].linear.in_features == 4
    with pytest.raises(TrustError):
        load(checkout)


def test_trust_belongs_to_the_directory_not_to_the_way_there(checkout, tmp_path, monkeypatch):
    assert is_trusted(read(DEFAULT.reference))  # which needs no record
    assert not trust_store().exists()
    record_trust(read(checkout))
    (tmp_path / "link").symlink_to(checkout)
    monkeypatch.chdir(tmp_path)
    for way in (tmp_path / "link", Path(checkout.name)):
        assert is_trusted(read(way))


# ------------------------------------------------------------------------------------- the record
# Only the user says what the user trusts, and nothing that was said is lost.


@pytest.fixture
def store(checkout):
    record_trust(read(checkout))
    return trust_store()


def refusal(checkout, error=TrustError):
    """What is said whatever a record is asked for; it stays as it was."""
    for act in (is_trusted, require_trust, record_trust):
        with pytest.raises(error) as refused:
            act(read(checkout))
    return str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"/a": "b"}', '{"/a": null}', "[" * 100_000])
def test_a_broken_record_trusts_nobody_and_is_named(store, checkout, text):
    store.write_text(text)
    assert "trust.json" in refusal(checkout)
    assert store.read_text() == text


def test_one_that_others_can_write_itself_or_its_folder_is_refused(store, checkout):
    for mode in (0o622, 0o666, 0o620, 0o602):
        store.chmod(mode)
        assert f"chmod go-w {store}" in refusal(checkout)
    store.chmod(0o600)
    store.parent.chmod(0o777)
    assert "is writable by others" in refusal(checkout)
    store.parent.chmod(0o775)  # the folder of a user whose umask is 002
    assert is_trusted(read(checkout))


def test_somebody_elses_is_refused(store, checkout, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    os.chown(store.parent, 4711, -1)
    assert is_trusted(read(checkout))  # root's is as good as one's own
    os.chown(store, 4712, -1)
    assert "belongs to user 4712" in refusal(checkout)
    os.chown(store.parent, 4712, -1)
    assert repr(str(store.parent)) in refusal(checkout)


def test_a_link_is_refused_and_left_alone(store, checkout, tmp_path):
    elsewhere = store.rename(tmp_path / "elsewhere.json")
    before = elsewhere.read_text()
    store.symlink_to(elsewhere)
    assert "is a link" in refusal(checkout)
    assert (store.is_symlink(), elsewhere.read_text()) == (True, before)


def test_a_record_that_cannot_be_written_is_named(checkout, config_home):
    config_home.write_text("a file where the folder would be")
    with pytest.raises((OutputError, TrustError), match="trust record"):
        record_trust(read(checkout))
    assert config_home.read_text() == "a file where the folder would be"


def test_a_place_that_depends_on_where_a_command_runs_is_refused(checkout, monkeypatch):
    for config, name in (("config", "XDG_CONFIG_HOME"), ("", "HOME")):
        monkeypatch.setenv("XDG_CONFIG_HOME", config)
        monkeypatch.setenv(name, "config")
        assert f"{name} is 'config'" in refusal(checkout, OwnFolderError)
        with pytest.raises(OwnFolderError):
            trust_store()


@pytest.mark.parametrize("home", [{"HOME": ""}, {}])
def test_without_a_home_nothing_is_trusted_and_nothing_recorded(checkout, monkeypatch, home):
    monkeypatch.setattr(os, "environ", home)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: {}["nobody"])
    assert (trust_store(), is_trusted(read(checkout))) == (None, False)
    with pytest.raises(TrustError, match="contains Python code"):
        require_trust(read(checkout))
    with pytest.raises(OwnFolderError, match="no home directory"):
        record_trust(read(checkout))


@pytest.mark.exhaustive
def test_records_made_at_once_are_all_kept(tmp_path, config_home):
    paths = [vendor_like.write(tmp_path / f"model {number}") for number in range(16)]
    code = (
        "import sys; from pathlib import Path;"
        "from dsocr_analyze.model.directory import ModelDirectory;"
        "from dsocr_analyze.model.trust import record_trust;"
        "models = [ModelDirectory.read(Path(each)) for each in sys.argv[1:]];"
        "sys.stdin.read();"  # all have started
        "[record_trust(each) for each in models]"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, *map(str, some)], stdin=subprocess.PIPE)
        for some in (paths[:4], paths[4:8], paths[8:12], paths[12:])
    ]
    for process in running:
        process.stdin.close()
    assert [process.wait(60) for process in running] == [0] * 4
    assert set(json.loads(trust_store().read_text())) == set(map(str, paths))
    assert [file.name for file in trust_store().parent.iterdir()] == ["trust.json"]


def test_what_is_locked_for_long_is_said(store, checkout, monkeypatch):
    monkeypatch.setattr(output_files, "_LONGEST_WAIT_SECONDS", 0.05)
    lock = (
        "import fcntl, os, sys;fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    with output_files.locked(store.parent):
        held = subprocess.run([sys.executable, "-c", lock, store.parent], capture_output=True)
        assert b"BlockingIOError" in held.stderr
        with pytest.raises(OutputError, match="is locked by another process"):
            record_trust(read(checkout))


@pytest.mark.exhaustive
def test_files_that_change_while_they_are_read_and_loaded_run_only_as_trusted(checkout):
    """A thousand times another file takes a trusted one's place between any two moments."""
    record_trust(read(checkout))
    file = checkout / "parts.py"
    trusted = file.read_bytes()
    foreign = b"raise SystemExit('foreign code ran')\n"
    stop = threading.Event()

    def swap():
        aside = checkout / "aside"
        while not stop.is_set():
            for content in (foreign, trusted):
                aside.write_bytes(content)
                aside.replace(file)

    swapping = threading.Thread(target=swap)
    swapping.start()
    ran = refused = 0
    try:
        for _ in range(1000):
            directory = read(checkout)
            try:
                require_trust(directory)
            except TrustError:
                refused += 1
                continue
            with importable(directory) as package:
                module = import_file(directory, package, "parts.py")
                assert directory.sources["parts.py"] == trusted
                del sys.modules[module.__name__]
            ran += 1
    finally:
        stop.set()
        swapping.join()
    assert ran + refused == 1000
    assert min(ran, refused) > 0
