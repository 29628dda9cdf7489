"""What is answered while model code is imported, built or run, and that it is undone."""

import contextlib
import importlib.util
import subprocess
import sys

import pytest
import torch
import vendor_like
from both_engines import small_directory
from process_state import settings
from sampling import first, sampled
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.utils import logging

from dsocr_analyze.model import process_settings
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.loading import building, importable
from dsocr_analyze.model.process_settings import without_unused_imports
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


@contextlib.contextmanager
def _chosen(read, choose, value):
    """The caller has set something of torch's to a value."""
    before = read()
    choose(value)
    try:
        yield
    finally:
        choose(before)


@pytest.fixture(autouse=True)
def unlike_what_is_set():
    """Settings that no context manager sets, so that putting them back can be seen."""
    with (
        _chosen(logging.get_verbosity, logging.set_verbosity, logging.INFO),
        _chosen(torch._C._jit_can_fuse_on_gpu, torch._C._jit_override_can_fuse_on_gpu, True),
        _chosen(torch._C._jit_can_fuse_on_cpu, torch._C._jit_override_can_fuse_on_cpu, True),
        _chosen(torch._C._jit_texpr_fuser_enabled, torch._C._jit_set_texpr_fuser_enabled, True),
    ):
        yield


@pytest.mark.parametrize("fails", [False, True], ids=["done", "after an error"])
@pytest.mark.parametrize("name", contexts(None))
def test_every_setting_is_put_back(name, fails, tmp_path):
    context, touched = contexts(vendor_like.write(tmp_path / "m"))[name]
    before, during = settings(), {}
    with pytest.raises(KeyError) if fails else contextlib.nullcontext(), context():
        during = settings()
        _ = during["mine" if fails else "stdout"]
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


# ---------------------------------------------------------------------- what no pass uses


def test_a_stand_in_answers_numbers_and_gives_way_to_the_module_for_all_else(tmp_path, monkeypatch):
    (tmp_path / "witness.py").write_text("def most(*given):\n    return 'real', *given\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(process_settings._ANSWERS, "witness", {"most": max})
    with without_unused_imports():
        stand_in = importlib.import_module("witness")
        assert (stand_in.most(2, 3), stand_in.most((2, 3), (2, 4))) == (3, [2, 4])
    assert "witness" not in sys.modules
    with without_unused_imports():
        assert importlib.import_module("witness").most(2, "x") == ("real", 2, "x")
    with without_unused_imports():
        assert importlib.import_module("witness") is sys.modules.pop("witness")


def test_questions_about_sizes_are_answered(monkeypatch):
    name = "torch.fx.experimental.symbolic_shapes"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with without_unused_imports():
        shapes = importlib.import_module(name)
        answers = [shapes.sym_eq((2, 3), other) for other in ([2, 3], (2, 4), (2,))]
        answers += [shapes.guard_or_true(False), shapes.sym_and(True, True)]
        answers += [shapes.sym_and(True, False)]
    assert answers == [True, False, False, False, True, False]


PASSES = """
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
SYMBOLS = """
with without_unused_imports():
    from torch.fx.experimental.symbolic_shapes import guard_or_true, sym_eq
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch._dynamo.source import ConstantSource
env = ShapeEnv()
symbol = env.create_symbol(3, ConstantSource("size"), DimDynamic.DYNAMIC)
size = env.create_symintnode(symbol, hint=3)
assert guard_or_true(size > 2) is True
assert str(sym_eq((size, 4), (size, 4))) == "True"
assert type(sym_eq(size, 5)) is torch.SymBool
"""
USES = """
before = list(sys.meta_path)
with without_unused_imports():
    {use}
{use}
assert sys.meta_path == before
"""
COMPILES = """
import torch._dynamo.utils as utils
assert utils is sys.modules["torch._dynamo.utils"] is torch._dynamo.utils
assert sys.modules["torch._dynamo"].__spec__.loader is not None
"""
CODE = [
    PASSES,
    SYMBOLS,
    *(
        USES.format(use=use) + COMPILES
        for use in (
            "import torch._dynamo.utils", "import torch._inductor", "torch.compile(lambda x: x)",
            "from torch._dynamo.exc import Unsupported",
        )
    ),
    *(
        USES.format(use=use)
        for use in (
            "import sympy; assert str(sympy.Symbol('x') + 1) == 'x + 1'",
            "from sympy import Symbol; assert issubclass(Symbol, sys.modules['sympy'].Basic)",
            "import sympy.core.symbol; assert sympy.core.symbol.Symbol is sympy.Symbol",
            "import sympy.core; import sympy; assert sympy.core.expr.Expr is sympy.Expr",
            "from torch.fx.experimental.symbolic_shapes import ShapeEnv; ShapeEnv()",
            "from torch.utils._sympy.functions import Max; assert Max(1, 2) == 2",
            "from scipy.optimize import minimize; assert minimize(lambda x: x @ x, [1.0]).success",
            "from scipy.optimize import linear_sum_assignment as f; assert [*f([[1]])[0]] == [0]",
            "from scipy.optimize._optimize import OptimizeResult",
        )
    ),
]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("code", CODE)
def test_model_code_gets_the_real_modules_where_it_uses_them(code):
    """A pass on meta does not, and leaves no mark."""
    imports = "from dsocr_analyze.model.process_settings import without_unused_imports"
    strictly, code = ["-W", "error"] * (code == PASSES), f"import sys, torch\n{imports}\n{code}"
    run = [sys.executable, *strictly, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ------------------------------------------------------------------------- the environment


@pytest.mark.parametrize("name", ["meta", "cpu"])
def test_cuda_means_the_device_under_analysis_and_the_models_prints_are_not_shown(name, capsys):
    with running(torch.device(name)):
        print("shapes")  # noqa: T201 - the model's print
        assert torch.ones(1, device=name).cuda().device.type == name
    assert capsys.readouterr().out == ""


_CALLERS = {
    "inference": torch.inference_mode,
    "fake tensors": FakeTensorMode,
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


@sampled("device", ["meta", "cpu"], first(1))
@sampled("callers", ["all at once", *_CALLERS], first(1))
def test_whatever_mode_the_caller_is_in_the_figures_are_the_same(callers, device):
    page = {"page": (600, 500), "crop_mode": False, "image_size": 64, "max_new_tokens": 2}
    directory = small_directory(num_hidden_layers=1)

    def figures(session):
        return session.figures(session.plan(**page))

    shared = DeepSeekOCRSession.from_directory(directory, device=device)
    alone = figures(shared)
    with contextlib.ExitStack() as stack:
        for name in [*_CALLERS] if callers == "all at once" else [callers]:
            stack.enter_context(_CALLERS[name]())
        before = settings()
        sessions = DeepSeekOCRSession.from_directory(directory, device=device), shared
        inside = [*map(figures, sessions)]
        assert settings() == before
    assert [*inside, figures(shared)] == [alone] * 3
