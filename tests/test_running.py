"""What is answered while model code is imported, built or run, and that it is undone."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys

import pytest
import torch
import vendor_like
from both_engines import small_directory
from process_state import settings
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.utils import logging

from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.loading import building
from dsocr_analyze.model.source_package import importable
from dsocr_analyze.model.unused_imports import without_unused_imports
from dsocr_analyze.session import DeepSeekOCRSession

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
from dsocr_analyze.model.unused_imports import without_unused_imports
x = torch.ones(3, device="meta")
with without_unused_imports():
    torch._refs.add(x, x)
    assert type(sys.modules["torch._dynamo"]).__name__ == "_StandIn"
assert "torch._dynamo" not in sys.modules
try:
    with without_unused_imports():
        raise KeyError
except KeyError:
    pass
assert "torch._dynamo" not in sys.modules
torch._refs.add(x, x)  # asks again, and is guarded by the real one
assert sys.modules["torch._dynamo"].disable.__module__.startswith("torch._dynamo")
with without_unused_imports():
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
from dsocr_analyze.model.unused_imports import without_unused_imports
before = list(sys.meta_path)
with without_unused_imports():
    {use}
{use}
import torch._dynamo.utils as utils
assert utils is sys.modules["torch._dynamo.utils"] is torch._dynamo.utils
assert sys.modules["torch._dynamo"].__spec__.loader is not None
assert sys.meta_path == before
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "use",
    [
        "import sympy; assert str(sympy.Symbol('x') + 1) == 'x + 1'",
        "from sympy import Symbol; assert issubclass(Symbol, sys.modules['sympy'].Basic)",
        "import sympy.core.symbol; assert sympy.core.symbol.Symbol is sympy.Symbol",
        "import sympy.core; import sympy; assert sympy.core.expr.Expr is sympy.Expr",
        "from torch.fx.experimental.symbolic_shapes import ShapeEnv; ShapeEnv()",
        "from torch.utils._sympy.functions import Max; assert Max(1, 2) == 2",
        "from scipy.optimize import minimize; assert minimize(lambda x: x @ x, [1.0]).success",
        "from scipy.optimize import linear_sum_assignment as f; assert list(f([[1]])[0]) == [0]",
        "from scipy.optimize._optimize import OptimizeResult",
    ],
)
def test_model_code_gets_the_real_modules_where_it_uses_them(use):
    code = f"""
import sys, torch
from dsocr_analyze.model.unused_imports import without_unused_imports
with without_unused_imports():
    {use}
{use}
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_questions_about_symbols_are_answered_by_the_real_functions():
    """Sizes of a traced function may be symbols while a model runs in another thread."""
    code = """
import torch
from dsocr_analyze.model.unused_imports import without_unused_imports
with without_unused_imports():
    from torch.fx.experimental.symbolic_shapes import guard_or_true, sym_and, sym_eq
    assert guard_or_true(True) and not guard_or_true(False)
    assert sym_eq((2, 3), [2, 3]) and not sym_eq((2, 3), (2, 4)) and not sym_eq((2,), (2, 3))
    assert sym_and(True, True) and not sym_and(True, False)
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch._dynamo.source import ConstantSource
env = ShapeEnv()
symbol = env.create_symbol(3, ConstantSource("size"), DimDynamic.DYNAMIC)
size = env.create_symintnode(symbol, hint=3)
assert guard_or_true(size > 2) is True
assert str(sym_eq((size, 4), (size, 4))) == "True"
assert type(sym_eq(size, 5)) is torch.SymBool
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_module_that_is_there_stays():
    real = importlib.import_module("torch._dynamo")
    with without_unused_imports():
        assert sys.modules["torch._dynamo"] is real


def test_cuda_means_the_device_under_analysis():
    for name in ("meta", "cpu"):
        with running(torch.device(name)):
            assert torch.ones(1, device=name).cuda().device.type == name


def test_prints_of_the_model_stay_out_of_the_result(capsys):
    with running(META):
        print("shapes")  # noqa: T201 - the model's print
    assert capsys.readouterr().out == ""


@contextlib.contextmanager
def _chosen(read, choose, value):
    """The caller has set something of torch's to a value."""
    before = read()
    choose(value)
    try:
        yield
    finally:
        choose(before)


_CALLERS = {
    "inference": torch.inference_mode,
    "fake tensors": FakeTensorMode,
    "fake tensors in inference": lambda: _both(FakeTensorMode(), torch.inference_mode()),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "gradients": torch.enable_grad,
    "default device": lambda: torch.device("cpu"),
    "deterministic": lambda: _chosen(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "precision": lambda: _chosen(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    **{
        str(dtype): lambda dtype=dtype: _chosen(
            torch.get_default_dtype, torch.set_default_dtype, dtype
        )
        for dtype in (torch.float64, torch.bfloat16, torch.float16)
    },
}


@contextlib.contextmanager
def _both(one, other):
    with one, other:
        yield


@pytest.mark.parametrize("device", ["meta", pytest.param("cpu", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("caller", _CALLERS)
def test_whatever_mode_the_caller_is_in_the_figures_are_the_same(caller, device):
    page = {"page": (600, 500), "crop_mode": False, "image_size": 64, "max_new_tokens": 2}
    directory = small_directory(num_hidden_layers=1)

    def figures(session):
        return session.figures(session.plan(**page))

    shared = DeepSeekOCRSession.from_directory(directory, device=device)
    alone = figures(shared)
    with _CALLERS[caller]():
        before = settings()
        inside = [figures(DeepSeekOCRSession.from_directory(directory, device=device)),
                  figures(shared)]  # fmt: skip
        assert settings() == before
    assert [alone, alone] == inside
    assert figures(shared) == alone
