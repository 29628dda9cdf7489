"""From a directory of somebody's code to a model, and what is said where that fails."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
import vendor_like
from safetensors.torch import save_file

from dsocr_analyze.errors import AnalyzeError, ConfigError, ModelCodeError, ModelDirectoryError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import load_model
from dsocr_analyze.model.source_package import REMOTE_PACKAGE

pytestmark = pytest.mark.directory

CONFIG, MODELING, PARTS = vendor_like.CONFIG, vendor_like.MODELING, vendor_like.PARTS


def load(path, device="meta", dtype=torch.float32, **options):
    return load_model(
        ModelDirectory.read(path),
        device=torch.device(device),
        dtype=dtype,
        trust_remote_code=True,
        **options,
    )


def one_line(error: pytest.ExceptionInfo[AnalyzeError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert error.value.exit_code == 2
    return message


def snapshot(path):
    return {file: file.stat().st_mtime_ns for file in sorted(path.rglob("*"))}


class TestLoading:
    def test_builds_the_class_that_auto_map_names(self, tmp_path):
        loaded = load(vendor_like.write(tmp_path / "m"), dtype=torch.bfloat16)
        assert type(loaded.module).__name__ == "TinyModel"
        assert {p.device.type for p in loaded.module.parameters()} == {"meta"}
        assert {p.dtype for p in loaded.module.parameters()} == {torch.bfloat16}
        assert len(loaded.module.layers) == 2
        assert not loaded.module.training
        assert not loaded.has_weights
        assert loaded.attention == "eager"

    def test_flash_attention_is_asked_of_the_config_without_its_package(self, tmp_path):
        loaded = load(vendor_like.write(tmp_path / "m"), flash_attention=True)
        assert loaded.module.config._attn_implementation == "flash_attention_2"

    def test_leaves_the_files_as_they_are(self, tmp_path):
        path = vendor_like.write(tmp_path / "m")
        before = snapshot(path)
        load(path)
        load(path, "cpu")
        assert snapshot(path) == before

    def test_leaves_the_import_machinery_as_it_was(self, tmp_path):
        meta_path, dtype = list(sys.meta_path), torch.get_default_dtype()
        normal = torch.nn.init.normal_
        load(vendor_like.write(tmp_path / "m"), dtype=torch.bfloat16)
        with pytest.raises(ModelCodeError):
            load(vendor_like.write(tmp_path / "n", modeling_tiny=MODELING + "\nraise OSError"))
        assert sys.meta_path == meta_path
        assert torch.get_default_dtype() is dtype
        assert torch.nn.init.normal_ is normal
        assert torch.empty(1).device.type == "cpu"
        if importlib.util.find_spec("torchvision") is None:
            assert not [name for name in sys.modules if name.startswith("torchvision")]
            from transformers.utils import is_torchvision_available

            assert not is_torchvision_available()

    def test_a_failed_import_leaves_no_module(self, tmp_path):
        before = set(sys.modules)
        path = vendor_like.write(tmp_path / "m", parts="raise ValueError('no')")
        with pytest.raises(ModelCodeError):
            load(path)
        new = {n for n in set(sys.modules) - before if n.startswith(REMOTE_PACKAGE)}
        assert new <= {REMOTE_PACKAGE}
        vendor_like.write(path)
        assert load(path).module is not None

    def test_directories_of_one_name_do_not_share_code(self, tmp_path):
        narrow = vendor_like.write(tmp_path / "a" / "m")
        wide = vendor_like.write(
            tmp_path / "b" / "m",
            parts=PARTS.replace("(width, width)", "(width, width, bias=False)"),
        )
        first, second, again = load(narrow), load(wide), load(narrow)
        assert first.module.layers[0].linear.bias is not None
        assert second.module.layers[0].linear.bias is None
        assert type(again.module) is type(first.module)
        assert type(second.module) is not type(first.module)

    def test_equal_files_elsewhere_are_other_files(self, tmp_path):
        where = "import pathlib\nHERE = str(pathlib.Path(__file__).parent)\n"
        for name in "ab":
            path = vendor_like.write(tmp_path / name / "m", parts=PARTS + where)
            module = load(path).module
            here = sys.modules[type(module.layers[0]).__module__].HERE
            assert here == str(path)

    def test_changed_files_are_loaded_anew(self, tmp_path):
        path = vendor_like.write(tmp_path / "m")
        load(path)
        vendor_like.write(path, parts=PARTS.replace("relu", "sigmoid"))
        x = torch.ones(1, 4)
        names = load(path).module.layers[0].forward.__code__.co_names
        assert "sigmoid" in names
        assert x.sum() == 4

    def test_an_import_within_the_constructor_finds_the_files(self, tmp_path):
        late = MODELING.replace("from .parts import Layer\n", "").replace(
            "        self.layers", "        from .parts import Layer\n        self.layers"
        )
        assert len(load(vendor_like.write(tmp_path / "m", modeling_tiny=late)).module.layers) == 2

    def test_folders_of_files_are_packages(self, tmp_path):
        path = vendor_like.write(
            tmp_path / "m", modeling_tiny=MODELING.replace("from .parts", "from .sub.deep")
        )
        (path / "sub").mkdir()
        (path / "sub" / "__init__.py").write_text("")
        (path / "sub" / "deep.py").write_text("from ..parts import Layer")
        assert len(load(path).module.layers) == 2

    def test_the_config_that_was_read_stays_as_it_was_read(self, tmp_path):
        greedy = vendor_like.CONFIGURATION.replace(
            "super().__init__", "kwargs.get('nested', {}).clear(); super().__init__"
        )
        path = vendor_like.write(
            tmp_path / "m", {**CONFIG, "nested": {"a": 1}}, configuration_tiny=greedy
        )
        directory = ModelDirectory.read(path)
        digest = directory.source(None).config_digest
        options = {"device": torch.device("meta"), "dtype": torch.float32}
        load_model(directory, trust_remote_code=True, **options)
        assert directory.source(None).config_digest == digest


class TestWhatDoesNotLoad:
    def fails(self, path, error, *parts, **options):
        with pytest.raises(error) as raised:
            load(path, **options)
        message = one_line(raised)
        for part in (repr(str(path)), *parts):
            assert part in message
        return message

    def test_no_directory(self, tmp_path):
        self.fails(tmp_path / "none", ModelDirectoryError, "does not exist")
        (tmp_path / "file").write_text("")
        self.fails(tmp_path / "file", ModelDirectoryError, "is not a directory")
        self.fails(tmp_path / ("x" * 300), ModelDirectoryError, "does not exist")

    def test_no_config(self, tmp_path):
        with pytest.raises(ModelDirectoryError, match=r"config\.json"):
            load(tmp_path)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "not JSON"),
            ("{", "not JSON"),
            ("[" * 100_000, "not JSON"),
            ("1" * 10_000, "not JSON"),
            ("[1]", "a JSON list, not an object"),
            ("null", "not an object"),
        ],
    )
    def test_a_malformed_config(self, tmp_path, text, says):
        path = vendor_like.write(tmp_path / "m", text)
        with pytest.raises(ConfigError) as error:
            load(path)
        assert says in one_line(error)
        assert str(path / "config.json") in one_line(error)

    def test_a_config_in_another_encoding(self, tmp_path):
        path = vendor_like.write(tmp_path / "m")
        (path / "config.json").write_bytes(b'{"a": "\xff"}')
        with pytest.raises(ConfigError, match="not JSON"):
            load(path)

    @pytest.mark.parametrize("auto_map", [None, [], {}, {"AutoConfig": "x"}, {"AutoConfig": 3}])
    def test_no_auto_map(self, tmp_path, auto_map):
        config = {**CONFIG, "auto_map": auto_map}
        self.fails(vendor_like.write(tmp_path / "m", config), ConfigError, "auto_map")

    def test_auto_map_without_a_model(self, tmp_path):
        config = {**CONFIG, "auto_map": {"AutoConfig": "configuration_tiny.TinyConfig"}}
        self.fails(vendor_like.write(tmp_path / "m", config), ConfigError, "'AutoModel'")

    def with_model(self, path, reference):
        auto_map = {**CONFIG["auto_map"], "AutoModel": reference}
        return vendor_like.write(path, {**CONFIG, "auto_map": auto_map})

    @pytest.mark.parametrize("reference", ["absent.TinyModel", "..absent.X", "org/repo--absent.X"])
    def test_auto_map_names_an_absent_file(self, tmp_path, reference):
        path = self.with_model(tmp_path / "m", reference)
        self.fails(path, ModelDirectoryError, "auto_map", "modeling_tiny.py")

    @pytest.mark.parametrize("name", ["Absent", "torch", "__file__"])
    def test_auto_map_names_an_absent_class(self, tmp_path, name):
        path = self.with_model(tmp_path / "m", f"modeling_tiny.{name}")
        self.fails(path, ConfigError, repr(name))

    def test_auto_map_names_a_class_that_is_no_module(self, tmp_path):
        path = self.with_model(tmp_path / "m", "modeling_tiny.Other")
        code = MODELING + "\nclass Other:\n    def __init__(self, config):\n        pass\n"
        (path / "modeling_tiny.py").write_text(code)
        self.fails(path, ConfigError, "Other")

    @pytest.mark.parametrize(
        ("code", "says"),
        [
            ("raise ValueError('no\\nreally')", "ValueError: no"),
            ("import absent_package", "No module named 'absent_package'"),
            ("from .absent import X", "absent"),
            ("def (", "SyntaxError"),
            ("raise SystemExit(3)", "SystemExit: 3"),
            ("def f(): f()\nf()", "RecursionError"),
        ],
    )
    def test_code_that_raises_when_imported(self, tmp_path, code, says):
        path = vendor_like.write(tmp_path / "m", parts=code)
        self.fails(path, ModelCodeError, "could not be imported", says)

    @pytest.mark.parametrize("raising", ["raise KeyError('key')", "raise SystemExit('key')"])
    def test_code_that_raises_in_its_constructor(self, tmp_path, raising):
        code = MODELING.replace("        self.post_init()", f"        {raising}")
        path = vendor_like.write(tmp_path / "m", modeling_tiny=code)
        self.fails(path, ModelCodeError, "could not be built", "key")
        assert torch.get_default_dtype() is torch.float32

    def test_memory_that_is_not_there(self, tmp_path):
        code = MODELING.replace("self.post_init()", "torch.empty(10**17)")
        path = vendor_like.write(tmp_path / "m", modeling_tiny=code)
        with pytest.raises(AnalyzeError, match="not enough memory"):
            load(path, "cpu")

    @pytest.mark.skipif(
        importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed"
    )
    def test_using_what_only_stands_in_names_the_package(self, tmp_path):
        code = MODELING.replace("self.post_init()", "transforms.Compose([])")
        path = vendor_like.write(tmp_path / "m", modeling_tiny=code)
        self.fails(path, ModelCodeError, "torchvision is not installed")


class TestWeights:
    @pytest.fixture
    def path(self, tmp_path):
        return vendor_like.write(tmp_path / "m")

    def tensors(self, path):
        return {name: torch.randn(p.shape) for name, p in load(path).module.named_parameters()}

    def test_are_loaded_where_there_are_values(self, path):
        tensors = self.tensors(path)
        names = sorted(tensors)
        save_file({n: tensors[n] for n in names[:2]}, path / "model-1.safetensors")
        save_file({n: tensors[n].double() for n in names[2:]}, path / "model-2.safetensors")
        loaded = load(path, "cpu")
        assert loaded.has_weights
        for name, parameter in loaded.module.named_parameters():
            assert torch.equal(parameter, tensors[name])

    def test_random_ones_are_drawn_where_there_is_a_checkpoint(self, path):
        without = load(path, "cpu")
        tensors = without.module.state_dict()
        save_file({n: torch.full_like(t, 2) for n, t in tensors.items()}, path / "m.safetensors")
        drawn, read = load(path, "cpu", random_weights=True), load(path, "cpu")
        assert not drawn.has_weights
        assert torch.equal(drawn.module.scale, without.module.scale)
        assert read.has_weights
        assert (read.module.scale == 2).all()

    def test_are_not_read_on_meta(self, path):
        (path / "model.safetensors").write_bytes(b"not safetensors")
        assert not load(path).has_weights

    def refused(self, path, *parts):
        with pytest.raises(ModelDirectoryError) as error:
            load(path, "cpu")
        for part in parts:
            assert part in one_line(error)

    def test_missing_extra_or_of_another_shape_are_named(self, path):
        tensors = self.tensors(path)
        file = path / "model.safetensors"
        save_file({n: t for n, t in tensors.items() if n != "norm.bias"}, file)
        self.refused(path, "lack 1 parameters", "'norm.bias'")
        save_file({**tensors, "other": torch.ones(1)}, file)
        self.refused(path, "'other'", "model.safetensors")
        save_file({**tensors, "scale": torch.ones(5)}, file)
        self.refused(path, "'scale'", "(5,)", "(4,)")

    def test_that_cannot_be_read_are_named(self, path):
        (path / "model.safetensors").write_bytes(b"not safetensors at all")
        self.refused(path, repr(str(path)))

    @pytest.mark.parametrize("kept", ["scale", "norm.weight"])
    def test_that_are_shared_may_have_either_name(self, path, kept):
        tied = MODELING.replace("self.post_init()", "self.scale = self.norm.weight")
        vendor_like.write(path, modeling_tiny=tied)
        tensors = self.tensors(path)
        shared = tensors.pop("norm.weight", None)
        tensors.pop("scale", None)
        save_file(
            {**tensors, kept: torch.ones(4) if shared is None else shared}, path / "m.safetensors"
        )
        module = load(path, "cpu").module
        assert module.scale is module.norm.weight

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_that_are_drawn_are_the_same_every_time_and_all_numbers(self, path, dtype):
        first, second = load(path, "cpu", dtype), load(path, "cpu", dtype)
        assert not first.has_weights
        for a, b in zip(first.module.parameters(), second.module.parameters(), strict=True):
            assert torch.equal(a, b)
            assert a.isfinite().all()
            assert a.abs().sum() > 0
        with torch.no_grad():
            assert first.module(torch.ones(2, 4, dtype=dtype)).isfinite().all()

    def test_that_are_drawn_leave_the_callers_numbers_alone(self, path):
        torch.manual_seed(1)
        expected = torch.rand(3)
        torch.manual_seed(1)
        load(path, "cpu")
        assert torch.equal(torch.rand(3), expected)
