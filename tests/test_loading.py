"""From a directory of somebody's code, once trusted, to a model; what is said where that fails."""

import contextlib
import importlib.machinery
import importlib.util
import itertools
import json
import multiprocessing
import os
import pwd
import py_compile
import re
import runpy
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import vendor_like
from process_state import settings
from safetensors.torch import save_file
from transformers.utils import is_torchvision_available

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.errors import (
    ConfigError,
    ModelCodeError,
    ModelDirectoryError,
    OutputError,
    OwnFolderError,
    TrustError,
)
from dsocr_analyze.model import trust
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import REMOTE_PACKAGE
from dsocr_analyze.model.loading import import_file, importable, load_model
from dsocr_analyze.model.trust import is_trusted, record_trust, require_trust, trust_store

pytestmark = pytest.mark.directory

CONFIG, CONFIGURATION = vendor_like.CONFIG, vendor_like.CONFIGURATION
MODELING, PARTS = vendor_like.MODELING, vendor_like.PARTS
HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
META = torch.device("meta")


@pytest.fixture
def path(tmp_path):
    return vendor_like.write(tmp_path / "m")


def load(directory, device="meta", dtype=torch.float32, **options):
    if not isinstance(directory, ModelDirectory):
        directory = ModelDirectory.read(directory)
    options = {"trust_remote_code": True, **options}
    return load_model(directory, device=torch.device(device), dtype=dtype, **options)


def written(path, files):
    """The directory with these texts, and without files of none."""
    for name, text in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).unlink(missing_ok=True)
        if text is not None:
            (path / name).write_text(text)
    return path


# ---------------------------------------------------------------------------------- what is loaded


def test_builds_the_class_that_auto_map_names_and_leaves_the_files_as_they_are(path):
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    loaded, flash = load(path, dtype=torch.bfloat16), load(path, flash_attention=True).module
    assert type(loaded.module).__name__ == "TinyModel"
    assert {(p.device, p.dtype) for p in loaded.module.parameters()} == {(META, torch.bfloat16)}
    assert (len(loaded.module.layers), loaded.attention) == (2, "eager")
    assert (loaded.module.training, loaded.has_weights) == (False, False)
    # Asked of the config, without its package.
    assert flash.config._attn_implementation == "flash_attention_2"
    load(path, "cpu")
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_leaves_the_import_machinery_as_it_was(path, tmp_path):
    before, modules = settings(), set(sys.modules)
    with pytest.raises(ModelCodeError):
        load(vendor_like.write(tmp_path / "n", parts="raise OSError"))
    assert {name for name in set(sys.modules) - modules if "_remote" in name} <= {REMOTE_PACKAGE}
    load(path, dtype=torch.bfloat16)
    load(vendor_like.write(tmp_path / "n"))
    assert (settings(), is_torchvision_available()) == (before, HAS_TORCHVISION)


def test_directories_of_one_name_do_not_share_code_and_changed_files_are_loaded_anew(tmp_path):
    where = "import pathlib\nHERE = str(pathlib.Path(__file__).parent)\n"
    changed = PARTS.replace("(width, width)", "(width, width, bias=False)")
    paths = [tmp_path / "a" / "m", tmp_path / "b" / "m", tmp_path / "a" / "m", tmp_path / "a" / "m"]
    layers = [
        load(vendor_like.write(path, parts=parts + where)).module.layers[0]
        for path, parts in zip(paths, (PARTS, PARTS, PARTS, changed), strict=True)
    ]
    assert [sys.modules[type(layer).__module__].HERE for layer in layers] == list(map(str, paths))
    assert [layer.linear.bias is None for layer in layers] == [False, False, False, True]
    assert type(layers[2]) is type(layers[0])


def test_files_are_found_in_folders_and_within_a_constructor(path):
    late = MODELING.replace("from .parts import Layer\n", "").replace(
        "        self.layers", "        from .sub.deep import Layer\n        self.layers"
    )
    deep = "from ..parts import Layer"
    written(path, {"modeling_tiny.py": late, "sub/__init__.py": "", "sub/deep.py": deep})
    assert len(load(path).module.layers) == 2


def test_the_config_that_was_read_stays_as_it_was_read_and_has_one_digest(path, tmp_path):
    greedy = CONFIGURATION.replace(
        "super().__init__", "kwargs.get('nested', {}).clear(); super().__init__"
    )
    config = {**CONFIG, "nested": {"a": 1}}
    shuffled = json.dumps(dict(reversed(config.items())), indent=3)
    one, other = (
        ModelDirectory.read(vendor_like.write(folder, text, configuration_tiny=greedy))
        for folder, text in ((path, config), (tmp_path / "b", shuffled))
    )
    load(one)
    assert other.source(None).config_digest == one.source(None).config_digest
    assert other.code_digest() == one.code_digest()


# ---------------------------------------------------------------------------- what a directory says


def test_another_config_replaces_all_but_the_files_that_are_named(path):
    directory = ModelDirectory.read(path)
    other = directory.with_config({"layers": 3, "auto_map": {"AutoModel": "other.Model"}})
    assert other.config == {"layers": 3, "auto_map": CONFIG["auto_map"]}
    assert (directory.config, other.digests()) == (CONFIG, directory.digests())
    assert len(load(other).module.layers) == 3
    # Of a described model, the first class that the config names, whatever its role.
    roles = {"AutoModel": "parts.Layer", "AutoModelForCausalLM": "modeling_tiny.TinyModel"}
    config = {"architectures": ["TinyModel"], "auto_map": roles}
    described = replace(directory, described=DEFAULT, config=config)
    assert described.class_in("AutoModel") == ("modeling_tiny.py", "TinyModel")
    bare = ModelDirectory.read(vendor_like.write(path, {"layers": 2}))
    with pytest.raises(ConfigError, match="auto_map"):
        bare.with_config(CONFIG).class_in("AutoModel")


ELSEWHERE = {**CONFIG, "auto_map": {**CONFIG["auto_map"], "AutoModel": "extra.TinyModel"}}


@pytest.mark.parametrize(
    ("config", "files", "runs"),
    [
        (CONFIG, {}, True),
        (CONFIG, {"parts.py": PARTS + "\n"}, False),
        (CONFIG, {"parts.py": None}, False),
        (ELSEWHERE, {"extra.py": "from .modeling_tiny import TinyModel"}, False),
        *(
            (CONFIG, {name: "raise SystemExit('executed')"}, True)
            for name in ("extra.py", "torch.py", "__init__.py", "dsocr_analyze_remote.py",
                         "parts/__init__.py", "sub/parts.py")
        ),
    ],
)  # fmt: skip
def test_published_code_runs_where_its_files_are_all_there_whatever_lies_beside(
    path, config, files, runs
):
    """The claim behind `runs_code`: files beside the published ones are not executed."""
    published = ModelDirectory.read(path).digests()
    found = ModelDirectory.read(written(vendor_like.write(path, config), files))
    assert found.runs_code(published) == runs
    if runs:
        assert found.with_config({"layers": 7}).runs_code(published)
        load(path)


# ------------------------------------------------------------------------------ what does not load


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("none", "does not exist"),
        ("x" * 300, "does not exist"),
        ("file", "is not a directory"),
        ("empty", "config.json"),
    ],
)
def test_what_is_no_model_directory_is_said(tmp_path, name, says):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelDirectoryError, match=says) as raised:
        ModelDirectory.read(tmp_path / name)
    assert str(tmp_path / name) in str(raised.value)


def of_model(reference: str) -> dict[str, object]:
    return {"config": {**CONFIG, "auto_map": {**CONFIG["auto_map"], "AutoModel": reference}}}


def of_map(auto_map: object) -> dict[str, object]:
    return {"config": {**CONFIG, "auto_map": auto_map}}


def ends(line: str) -> dict[str, object]:
    """A constructor that ends otherwise."""
    return {"modeling_tiny": MODELING.replace("self.post_init()", line)}


NO_MODULE = MODELING + "\nclass Other:\n    def __init__(self, config):\n        pass\n"
NOT_IMPORTED = "could not be imported"
WRONG = [
    ({"config": ""}, ConfigError, "config.json", "not JSON"),
    ({"config": "{"}, ConfigError, "not JSON"),
    ({"config": "[" * 100_000}, ConfigError, "not JSON"),
    ({"config": "1" * 10_000}, ConfigError, "not JSON"),
    ({"config": '{"a": "\udcff"}'}, ConfigError, "not JSON"),  # a byte that is no UTF-8
    ({"config": "[1]"}, ConfigError, "a JSON list, not an object"),
    ({"config": "null"}, ConfigError, "not an object"),
    (of_map(None), ConfigError, "lacks 'auto_map'"),
    (of_map([]), ConfigError, "lacks 'auto_map'"),
    (of_map({}), ConfigError, "'auto_map' in config.json", "'AutoConfig'"),
    (of_map({"AutoConfig": "x"}), ConfigError, "'auto_map' in config.json", "'AutoConfig'"),
    (of_map({"AutoConfig": 3}), ConfigError, "'auto_map' in config.json", "'AutoConfig'"),
    (of_map({"AutoConfig": "configuration_tiny.TinyConfig"}), ConfigError, "'AutoModel'"),
    (of_model("absent.TinyModel"), ModelDirectoryError, "auto_map", "modeling_tiny.py"),
    (of_model("..absent.X"), ModelDirectoryError, "auto_map", "modeling_tiny.py"),
    (of_model("org/repo--absent.X"), ModelDirectoryError, "auto_map", "modeling_tiny.py"),
    (of_model("modeling_tiny.Absent"), ConfigError, "'Absent'"),
    (of_model("modeling_tiny.torch"), ConfigError, "'torch'"),
    (of_model("modeling_tiny.__file__"), ConfigError, "'__file__'"),
    ({**of_model("modeling_tiny.Other"), "modeling_tiny": NO_MODULE}, ConfigError, "Other"),
    ({"parts": "raise ValueError('no\\nreally')"}, ModelCodeError, NOT_IMPORTED, "ValueError: no"),
    ({"parts": "import absent_package"}, ModelCodeError, NOT_IMPORTED,
     "No module named 'absent_package'"),
    ({"parts": "from .absent import X"}, ModelCodeError, NOT_IMPORTED, "absent"),
    ({"parts": "def ("}, ModelCodeError, NOT_IMPORTED, "SyntaxError"),
    ({"parts": "raise SystemExit(3)"}, ModelCodeError, NOT_IMPORTED, "SystemExit: 3"),
    ({"parts": "def f(): f()\nf()"}, ModelCodeError, NOT_IMPORTED, "RecursionError"),
    (ends("raise KeyError('key')"), ModelCodeError, "could not be built", "key"),
    (ends("raise SystemExit('key')"), ModelCodeError, "could not be built", "key"),
    pytest.param(
        (ends("transforms.Compose([])"), ModelCodeError, "torchvision is not installed"),
        marks=pytest.mark.skipif(HAS_TORCHVISION, reason="torchvision is installed"),
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_directory_is_said_in_one_line(path, case):
    files, error, *says = case
    vendor_like.write(path, **files)
    with pytest.raises(error) as raised:
        load(path)
    message = str(raised.value)
    assert ("\n" in message, raised.value.exit_code) == (False, 2)
    assert [part for part in (str(path), *says) if part not in message] == []
    assert torch.get_default_dtype() is torch.float32


# ----------------------------------------------------------------------------------------- weights


ONE = "model.safetensors"


def tensors_of(path):
    return {name: torch.randn(p.shape) for name, p in load(path).module.named_parameters()}


def test_weights_are_loaded_where_there_are_values(path):
    tensors = tensors_of(path)
    names = sorted(tensors)
    save_file({n: tensors[n] for n in names[:2]}, path / "model-1.safetensors")
    save_file({n: tensors[n].double() for n in names[2:]}, path / "model-2.safetensors")
    loaded = load(path, "cpu")
    assert loaded.has_weights
    for name, parameter in loaded.module.named_parameters():
        assert torch.equal(parameter, tensors[name])
    (path / "model-1.safetensors").write_bytes(b"not safetensors")  # not read on meta
    assert not load(path).has_weights
    with pytest.raises(ModelDirectoryError, match=repr(str(path))):
        load(path, "cpu")


def test_random_weights_are_drawn_where_there_is_a_checkpoint(path):
    without = load(path, "cpu").module
    save_file({name: torch.full_like(x, 2) for name, x in without.state_dict().items()}, path / ONE)
    drawn, read = load(path, "cpu", random_weights=True), load(path, "cpu")
    assert (drawn.has_weights, read.has_weights) == (False, True)
    assert torch.equal(drawn.module.scale, without.scale)
    assert (read.module.scale == 2).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_drawn_weights_are_the_same_every_time_and_leave_the_callers_numbers_alone(path, dtype):
    before = torch.get_rng_state()
    first, second = (load(path, "cpu", dtype).module for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.isfinite().all() > a.eq(0).all()
    with torch.no_grad():
        assert first(torch.ones(2, 4, dtype=dtype)).isfinite().all()


@pytest.fixture(autouse=True)
def config_home(tmp_path, monkeypatch):
    home = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    return home


@pytest.fixture
def checkout(tmp_path):
    return vendor_like.write(tmp_path / "a checkout")


def test_an_unknown_directory_is_refused_and_nothing_of_it_is_executed(checkout, tmp_path):
    """Naming its files, and both ways to trust them."""
    mark, before = tmp_path / "executed", set(sys.modules)
    marking = f"open({str(mark)!r}, 'w').close()\n"
    written(checkout, {name: marking + text for name, text in vendor_like.FILES.items()})
    with pytest.raises(TrustError) as error:
        load(checkout, trust_remote_code=False)
    assert not mark.exists()
    assert not {name for name in set(sys.modules) - before if "tiny" in name}
    parts = [*vendor_like.FILES, repr(str(checkout)), "trust_remote_code=True",
             f"dsocr-analyze trust '{checkout}'"]  # fmt: skip
    assert [part for part in (*parts, "\n") if part not in str(error.value)] == ["\n"]
    load(checkout)
    assert (mark.exists(), trust_store().exists()) == (True, False)  # that is for one run
    with pytest.raises(TrustError):
        load(checkout, trust_remote_code=False)


def test_recorded_trust_lasts_and_a_second_directory_is_recorded_beside_the_first(
    checkout, config_home, tmp_path
):
    other = vendor_like.write(tmp_path / "elsewhere" / checkout.name, parts="# nothing\n")
    digests, store = record_trust(ModelDirectory.read(checkout)), trust_store()
    assert (store, [*digests]) == (config_home / "dsocr-analyze/trust.json", [*vendor_like.FILES])
    assert json.loads(store.read_text()) == {str(checkout): digests}
    assert not is_trusted(ModelDirectory.read(other))
    store.chmod(0o644)
    record_trust(ModelDirectory.read(other))
    for path in (checkout, other):
        assert is_trusted(ModelDirectory.read(path))
        require_trust(ModelDirectory.read(path))
    # It is its owner's alone, and alone.
    modes = [path.stat().st_mode & 0o777 for path in (store.parent, *store.parent.iterdir())]
    assert modes == [0o700, 0o600]


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
    record_trust(ModelDirectory.read(checkout))
    changed = ModelDirectory.read(written(checkout, files))
    assert is_trusted(changed) == (named == "")
    told = rf"changed since they were trusted \({re.escape(named)}\)"
    with pytest.raises(TrustError, match=told) if named else contextlib.nullcontext():
        require_trust(changed)


def test_what_was_read_is_executed_whatever_lies_there_later(checkout):
    directory = ModelDirectory.read(checkout)
    record_trust(directory)
    (checkout / "parts.py").write_text("raise SystemExit('changed after it was hashed')")
    assert load(directory, trust_remote_code=False).module.layers[0].linear.in_features == 4
    with pytest.raises(TrustError):
        load(checkout, trust_remote_code=False)


def planted_beside(file):
    """Compiled and other files that Python would take for a module's, each of other code."""
    foreign = file.with_name("foreign.py")
    foreign.write_text("raise SystemExit('foreign code ran')\n")
    of = file.stat()
    for optimization in ("", 1, 2):
        cached = importlib.util.cache_from_source(str(file), optimization=optimization)
        py_compile.compile(str(foreign), cached, doraise=True)
        code = Path(cached).read_bytes()[16:]
        # Of the file's own time and size, so that no reader would look at its source again.
        stamp = struct.pack("<LLL", 0, int(of.st_mtime), of.st_size)
        Path(cached).write_bytes(importlib.util.MAGIC_NUMBER + stamp + code)
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(foreign), str(file.with_suffix(".pyc")), invalidation_mode=unchecked)
    foreign.unlink()
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        file.with_suffix(suffix).write_bytes(b"no library")


def test_nothing_compiled_that_lies_beside_trusted_code_runs(checkout):
    record_trust(ModelDirectory.read(checkout))
    for name in vendor_like.FILES:
        planted_beside(checkout / name)
    with pytest.raises(SystemExit, match="foreign code ran"):  # as Python itself would
        runpy.run_path(str(checkout / "parts.pyc"))
    assert load(checkout, trust_remote_code=False).module.layers[0].linear.in_features == 4


def _loaded_at_once(checkout, start):
    directory = ModelDirectory.read(checkout)
    start.wait(60)
    for _ in range(5):
        load(directory, trust_remote_code=False)
        for name in [name for name in sys.modules if name.startswith(REMOTE_PACKAGE)]:
            del sys.modules[name]


def test_two_processes_that_load_one_checkout_at_once_leave_it_as_it_is(checkout):
    """Neither finds anything of the other's: nothing is written, wherever they are."""
    record_trust(ModelDirectory.read(checkout))
    before = {path: path.stat().st_mtime_ns for path in checkout.parent.rglob("*")}
    context = multiprocessing.get_context("fork")
    start = context.Barrier(2)
    both = [context.Process(target=_loaded_at_once, args=(checkout, start)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join(60)
    assert [each.exitcode for each in both] == [0, 0]
    assert {path: path.stat().st_mtime_ns for path in checkout.parent.rglob("*")} == before


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_takes_a_files_place_between_two_looks_at_a_directory_is_not_trusted(
    checkout, tmp_path, kind
):
    """A link to other code is other code, and back again the same; a pipe is no file."""
    record_trust(ModelDirectory.read(checkout))
    (tmp_path / "foreign.py").write_text("raise SystemExit('foreign code ran')\n")
    file, aside = checkout / "parts.py", tmp_path / "aside"
    trusted, _ = file.read_bytes(), file.rename(aside)
    file.symlink_to(tmp_path / "foreign.py") if kind == "link" else os.mkfifo(file)
    with pytest.raises((TrustError, ModelDirectoryError), match=r"parts\.py"):
        load(checkout, trust_remote_code=False)
    file.unlink()
    file.symlink_to(aside)
    directory = ModelDirectory.read(checkout)
    aside.write_text("raise SystemExit('changed after it was read')\n")
    assert load(directory, trust_remote_code=False).module is not None
    assert directory.sources["parts.py"] == trusted


def test_a_record_is_read_from_the_file_whose_owner_was_looked_at(store, checkout, monkeypatch):
    """Between the look and the reading, who may rename files in its folder puts another there."""
    other = vendor_like.write(checkout.parent / "other", parts="# foreign\n")
    forged = store.with_name("forged")
    forged.write_text(json.dumps({str(other): ModelDirectory.read(other).digests()}))
    real = trust._refuse_strangers

    def late(path, found):
        real(path, found)
        forged.replace(store)

    monkeypatch.setattr(trust, "_refuse_strangers", late)
    assert not is_trusted(ModelDirectory.read(other))
    assert not forged.exists()


def test_trust_belongs_to_the_directory_not_to_the_way_there(checkout, tmp_path, monkeypatch):
    assert is_trusted(ModelDirectory.read(DEFAULT.reference))  # which needs no record
    assert not trust_store().exists()
    record_trust(ModelDirectory.read(checkout))
    (tmp_path / "link").symlink_to(checkout)
    monkeypatch.chdir(tmp_path)
    for way in (tmp_path / "link", Path(checkout.name)):
        assert is_trusted(ModelDirectory.read(way))


# ------------------------------------------------------------------------------------- the record
# Only the user says what the user trusts, and nothing that was said is lost.


@pytest.fixture
def store(checkout):
    record_trust(ModelDirectory.read(checkout))
    return trust_store()


def refusal(checkout, error=TrustError):
    """What is said whatever a record is asked for; it stays as it was."""
    for act in (is_trusted, require_trust, record_trust):
        with pytest.raises(error) as refused:
            act(ModelDirectory.read(checkout))
    return str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"/a": "b"}', '{"/a": null}', "[" * 100_000])
def test_a_broken_record_trusts_nobody_and_is_named(store, checkout, text):
    store.write_text(text)
    assert "trust.json" in refusal(checkout)
    assert store.read_text() == text


SPOILT = {
    **{
        f"{mode:o}": (partial(Path.chmod, mode=mode), "chmod go-w {store}")
        for mode in (0o622, 0o666, 0o620, 0o602)
    },
    "its folder": (lambda store: store.parent.chmod(0o777), "{folder!r}, of the trust record, is "),
    "somebody else's": (lambda store: os.chown(store, 4712, -1), "belongs to user 4712"),
    "likewise its folder": (
        lambda store: os.chown(store.parent, 4712, -1), "{folder!r}, of the trust record, belongs"
    ),
    "a link": (
        lambda store: store.symlink_to(store.rename(store.with_name("elsewhere"))), "is a link"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "said"), SPOILT.values(), ids=SPOILT)
def test_one_that_others_can_change_or_that_is_a_link_is_refused_and_left_alone(
    store, checkout, monkeypatch, spoil, said
):
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert is_trusted(ModelDirectory.read(checkout))  # root's is as good as one's own
    spoil(store)
    before = store.lstat(), store.read_text()
    assert said.format(store=store, folder=str(store.parent)) in refusal(checkout)
    assert (store.lstat(), store.read_text()) == before


def test_its_folder_may_be_the_users_own_and_its_groups(store, checkout, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    os.chown(store.parent, 4711, -1)
    store.parent.chmod(0o775)  # of a user whose umask is 002
    assert is_trusted(ModelDirectory.read(checkout))


def test_a_record_that_cannot_be_written_is_named(checkout, config_home):
    config_home.write_text("a file where the folder would be")
    with pytest.raises((OutputError, TrustError), match="trust record"):
        record_trust(ModelDirectory.read(checkout))


def test_a_place_that_depends_on_where_a_command_runs_is_refused(checkout, monkeypatch):
    for config, name in (("config", "XDG_CONFIG_HOME"), ("", "HOME")):
        monkeypatch.setenv("XDG_CONFIG_HOME", config)
        monkeypatch.setenv(name, "config")
        assert f"{name} is 'config'" in refusal(checkout, OwnFolderError)


@pytest.mark.parametrize("home", [{"HOME": ""}, {}])
def test_without_a_home_nothing_is_trusted_and_nothing_recorded(checkout, monkeypatch, home):
    monkeypatch.setattr(os, "environ", home)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: {}["nobody"])
    assert (trust_store(), is_trusted(ModelDirectory.read(checkout))) == (None, False)
    with pytest.raises(TrustError, match="contains Python code"):
        require_trust(ModelDirectory.read(checkout))
    with pytest.raises(OwnFolderError, match="no home directory"):
        record_trust(ModelDirectory.read(checkout))


def test_who_records_trust_holds_the_lock_of_the_folder(store, checkout, monkeypatch):
    lock = (
        "import fcntl, os, sys;fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    held = []

    def write(*_, **__):
        held.append(subprocess.run([sys.executable, "-c", lock, store.parent], capture_output=True))

    monkeypatch.setattr(trust, "write_files", write)
    record_trust(ModelDirectory.read(checkout))
    assert b"BlockingIOError" in held[0].stderr


@pytest.mark.exhaustive
def test_files_that_change_while_they_are_read_and_loaded_run_only_as_trusted(checkout):
    """A thousand times another file takes a trusted one's place between any two moments."""
    record_trust(ModelDirectory.read(checkout))
    file, aside, stop = checkout / "parts.py", checkout / "aside", threading.Event()
    trusted, foreign = file.read_bytes(), b"raise SystemExit('foreign code ran')\n"

    def swap():
        for content in itertools.cycle((foreign, trusted)):
            aside.write_bytes(content)
            aside.replace(file)
            if stop.is_set():
                return

    ran = 0
    with ThreadPoolExecutor() as other, contextlib.ExitStack() as stack:
        stack.callback(stop.set)
        other.submit(swap)
        for _ in range(1000):
            directory = ModelDirectory.read(checkout)
            with contextlib.suppress(TrustError):
                require_trust(directory)
                with importable(directory) as package:
                    module = import_file(directory, package, "parts.py")
                    assert directory.sources["parts.py"] == trusted
                    del sys.modules[module.__name__]
                ran += 1
    assert 0 < ran < 1000
