"""From a directory of somebody's code to a model, and what is said where that fails."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace

import pytest
import torch
import vendor_like
from process_state import settings
from safetensors.torch import save_file
from transformers.utils import is_torchvision_available

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.errors import AnalyzeError, ConfigError, ModelCodeError, ModelDirectoryError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import REMOTE_PACKAGE
from dsocr_analyze.model.loading import load_model

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
    return load_model(
        directory, device=torch.device(device), dtype=dtype, trust_remote_code=True, **options
    )


# ---------------------------------------------------------------------------------- what is loaded


def test_builds_the_class_that_auto_map_names_and_leaves_the_files_as_they_are(path):
    def snapshot():
        return {file: file.stat().st_mtime_ns for file in sorted(path.rglob("*"))}

    before, loaded = snapshot(), load(path, dtype=torch.bfloat16)
    assert type(loaded.module).__name__ == "TinyModel"
    assert {(p.device, p.dtype) for p in loaded.module.parameters()} == {(META, torch.bfloat16)}
    assert (len(loaded.module.layers), loaded.attention) == (2, "eager")
    assert (loaded.module.training, loaded.has_weights) == (False, False)
    # Asked of the config, without its package.
    flash = load(path, flash_attention=True).module.config
    assert flash._attn_implementation == "flash_attention_2"
    load(path, "cpu")
    assert snapshot() == before


def test_leaves_the_import_machinery_as_it_was(path, tmp_path):
    before, modules = settings(), set(sys.modules)
    with pytest.raises(ModelCodeError):
        load(vendor_like.write(tmp_path / "n", parts="raise OSError"))
    new = {name for name in set(sys.modules) - modules if name.startswith(REMOTE_PACKAGE)}
    assert new <= {REMOTE_PACKAGE}
    load(path, dtype=torch.bfloat16)
    load(vendor_like.write(tmp_path / "n"))
    assert settings() == before
    assert is_torchvision_available() == HAS_TORCHVISION


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
    vendor_like.write(path, modeling_tiny=late)
    (path / "sub").mkdir()
    (path / "sub" / "__init__.py").write_text("")
    (path / "sub" / "deep.py").write_text("from ..parts import Layer")
    assert len(load(path).module.layers) == 2


def test_the_config_that_was_read_stays_as_it_was_read_and_has_one_digest(path, tmp_path):
    greedy = CONFIGURATION.replace(
        "super().__init__", "kwargs.get('nested', {}).clear(); super().__init__"
    )
    config = {**CONFIG, "nested": {"a": 1}}
    directory = ModelDirectory.read(vendor_like.write(path, config, configuration_tiny=greedy))
    load(directory)
    shuffled = json.dumps(dict(reversed(config.items())), indent=3)
    other = ModelDirectory.read(
        vendor_like.write(tmp_path / "b", shuffled, configuration_tiny=greedy)
    )
    assert other.source(None).config_digest == directory.source(None).config_digest
    assert other.code_digest() == directory.code_digest()


# ---------------------------------------------------------------------------- what a directory says


def test_another_config_replaces_all_but_the_files_that_are_named(path):
    directory = ModelDirectory.read(path)
    other = directory.with_config({"layers": 3, "auto_map": {"AutoModel": "other.Model"}})
    assert other.config == {"layers": 3, "auto_map": CONFIG["auto_map"]}
    assert directory.config == CONFIG
    assert other.digests() == directory.digests()
    assert len(load(other).module.layers) == 3
    assert ModelDirectory.read(DEFAULT.reference).is_reference > directory.is_reference
    # Of a described model, the first class that the config names, whatever its role.
    roles = {"AutoModel": "parts.Layer", "AutoModelForCausalLM": "modeling_tiny.TinyModel"}
    config = {"architectures": ["TinyModel"], "auto_map": roles}
    described = replace(directory, described=DEFAULT, config=config)
    assert described.class_in("AutoModel") == ("modeling_tiny.py", "TinyModel")
    vendor_like.write(path, {"layers": 2})
    with pytest.raises(ConfigError, match="auto_map"):
        ModelDirectory.read(path).with_config(CONFIG).class_in("AutoModel")


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
    vendor_like.write(path, config)
    for name, text in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        if text is None:
            (path / name).unlink()
        else:
            (path / name).write_text(text)
    found = ModelDirectory.read(path)
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
    written, error, *says = case
    vendor_like.write(path, **written)
    with pytest.raises(error) as raised:
        load(path)
    message = str(raised.value)
    assert "\n" not in message
    assert raised.value.exit_code == 2
    assert [part for part in (str(path), *says) if part not in message] == []
    assert torch.get_default_dtype() is torch.float32


# ----------------------------------------------------------------------------------------- weights


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
    tensors = {name: torch.full_like(each, 2) for name, each in without.state_dict().items()}
    save_file(tensors, path / "m.safetensors")
    drawn, read = load(path, "cpu", random_weights=True), load(path, "cpu")
    assert (drawn.has_weights, read.has_weights) == (False, True)
    assert torch.equal(drawn.module.scale, without.scale)
    assert (read.module.scale == 2).all()


@pytest.mark.parametrize(
    ("left_out", "added", "says"),
    [
        ("norm.bias", {}, ("lack 1 parameters", "'norm.bias'")),
        ("", {"other": torch.ones(1)}, ("'other'", "model.safetensors")),
        ("", {"scale": torch.ones(5)}, ("'scale'", "(5,)", "(4,)")),
    ],
)
def test_weights_that_are_missing_extra_or_of_another_shape_are_named(path, left_out, added, says):
    tensors = tensors_of(path) | added
    tensors.pop(left_out, None)
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(ModelDirectoryError) as error:
        load(path, "cpu")
    assert [part for part in says if part not in str(error.value)] == []


def test_memory_that_is_not_there_is_said(path):
    vendor_like.write(path, **ends("torch.empty(10**17)"))
    with pytest.raises(AnalyzeError, match="not enough memory"):
        load(path, "cpu")


@pytest.mark.parametrize("kept", ["scale", "norm.weight"])
def test_weights_that_are_shared_may_have_either_name(path, kept):
    vendor_like.write(path, **ends("self.scale = self.norm.weight"))
    tensors = tensors_of(path)
    tensors.pop("scale", None)
    tensors.pop("norm.weight", None)
    save_file({**tensors, kept: torch.full((4,), 3.0)}, path / "m.safetensors")
    module = load(path, "cpu").module
    assert module.scale is module.norm.weight
    assert (module.scale == 3).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_drawn_weights_are_the_same_every_time_and_leave_the_callers_numbers_alone(path, dtype):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, second = (load(path, "cpu", dtype).module for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.isfinite().all() > a.eq(0).all()
    with torch.no_grad():
        assert first(torch.ones(2, 4, dtype=dtype)).isfinite().all()
