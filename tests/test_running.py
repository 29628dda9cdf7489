"""What is answered while model code is imported, built or run, and that it is undone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import torch
import vendor_like
from process_state import settings
from transformers.utils import logging

from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.running.building import building
from dsocr_analyze.running.compiler import without_compiler
from dsocr_analyze.running.forward import running
from dsocr_analyze.running.source_package import importable

META = torch.device("meta")


def contexts(path):
    return {
        "importing": (lambda: importable(ModelDirectory.read(path)), {"meta_path", "messages"}),
        "building": (
            lambda: building(META, torch.bfloat16),
            {"default dtype", "default device", "initialisation", "transformers", "messages"},
        ),
        "running on meta": (
            lambda: running(META, lambda q, *_: q),
            {
                "autocast", "optimized scripts", "gradients", "stdout", "modes", "messages",
                "flash attention",
            },
        ),
        "running on the CPU": (
            lambda: running(torch.device("cpu")),
            {"optimized scripts", "gradients", "stdout", "modes", "messages"},
        ),
    }  # fmt: skip


@pytest.fixture(autouse=True)
def unlike_what_is_set():
    """Settings that no context manager sets, so that putting them back can be seen."""
    verbosity = logging.get_verbosity()
    gpu, cpu = torch._C._jit_can_fuse_on_gpu(), torch._C._jit_can_fuse_on_cpu()
    texpr = torch._C._jit_texpr_fuser_enabled()
    logging.set_verbosity_info()
    torch._C._jit_override_can_fuse_on_gpu(True)
    torch._C._jit_override_can_fuse_on_cpu(True)
    torch._C._jit_set_texpr_fuser_enabled(True)
    yield
    logging.set_verbosity(verbosity)
    torch._C._jit_override_can_fuse_on_gpu(gpu)
    torch._C._jit_override_can_fuse_on_cpu(cpu)
    torch._C._jit_set_texpr_fuser_enabled(texpr)


@pytest.mark.parametrize("fails", [False, True], ids=["done", "after an error"])
@pytest.mark.parametrize("name", ["importing", "building", "running on meta", "running on the CPU"])
def test_every_setting_is_put_back(name, fails, tmp_path):
    context, touched = contexts(vendor_like.write(tmp_path / "m"))[name]
    before = settings()

    def body():
        with context():
            during = settings()
            if fails:
                raise KeyError("mine")
            return during

    if fails:
        with pytest.raises(KeyError, match="mine"):
            body()
    else:
        during = body()
        assert touched <= {key for key in before if during[key] != before[key]}
    assert settings() == before


@pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed"
)
def test_stand_ins_are_there_for_imports_only(tmp_path):
    with importable(ModelDirectory.read(vendor_like.write(tmp_path / "m"))):
        from torchvision import transforms

        with pytest.raises(ImportError, match="pip install torchvision"):
            transforms.Compose([])
    assert "torchvision" not in sys.modules


@pytest.mark.exhaustive
def test_a_pass_on_meta_imports_no_compiler_and_leaves_no_mark(tmp_path):
    code = """
import sys, torch
from dsocr_analyze.running.compiler import without_compiler
x = torch.ones(3, device="meta")
with without_compiler():
    torch._refs.add(x, x)
    assert type(sys.modules["torch._dynamo"]).__name__ == "_NoCompiler"
assert "torch._dynamo" not in sys.modules
try:
    with without_compiler():
        raise KeyError
except KeyError:
    pass
assert "torch._dynamo" not in sys.modules
torch._refs.add(x, x)  # asks again, and is guarded by the real one
assert sys.modules["torch._dynamo"].disable.__module__.startswith("torch._dynamo")
with without_compiler():
    assert type(sys.modules["torch._dynamo"]).__name__ == "module"
"""
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "use",
    ["import torch._dynamo.utils", "import torch._inductor", "torch.compile(lambda x: x)",
     "from torch._dynamo.exc import Unsupported"],
)  # fmt: skip
def test_model_code_that_uses_the_compiler_gets_the_real_one(use):
    code = f"""
import sys, torch
from dsocr_analyze.running.compiler import without_compiler
before = list(sys.meta_path)
with without_compiler():
    {use}
{use}
import torch._dynamo.utils as utils
assert utils is sys.modules["torch._dynamo.utils"] is torch._dynamo.utils
assert sys.modules["torch._dynamo"].__spec__.loader is not None
assert sys.meta_path == before
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_compiler_that_is_there_stays():
    real = importlib.import_module("torch._dynamo")
    with without_compiler():
        assert sys.modules["torch._dynamo"] is real


def test_cuda_means_the_device_under_analysis():
    for name in ("meta", "cpu"):
        with running(torch.device(name)):
            assert torch.ones(1, device=name).cuda().device.type == name


def test_prints_of_the_model_stay_out_of_the_result(capsys):
    with running(META):
        print("shapes")  # noqa: T201 - the model's print
    assert capsys.readouterr().out == ""
