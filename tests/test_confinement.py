"""A config is data: it leads to no other code, to no connection, to no question and to no cache."""

import contextlib
import copy
import functools
import importlib.util
import io
import json
import os
import pickle
import re
import socket
import subprocess
import sys
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import infer_like
import pytest
import torch
import transformers
from any_models import IS_5, LLAMA
from both_engines import PUBLISHED
from command_line import run
from every_architecture import STAGES, alone, architectures, built, smallest_config
from huggingface_hub import HfApi
from sampling import every, sampled
from transformers.models.auto import auto_factory, modeling_auto

import dsocr_analyze
from dsocr_analyze import DeepSeekOCRSession
from dsocr_analyze.errors import AnalyzeError, ConfigError
from dsocr_analyze.model import directory as model_directory, loading
from dsocr_analyze.model.described_model import confined
from dsocr_analyze.model.directory import check_loads_nothing
from dsocr_analyze.model.process_settings import exclusive

_INSTALLED = tuple({
    os.path.realpath(folder)
    for folder in (
        sysconfig.get_path("stdlib"),
        Path(torch.__file__).parents[1],
        Path(transformers.__file__).parents[1],
        Path(dsocr_analyze.__file__).parent,
        Path(__file__).parent,
    )
})  # fmt: skip
_ACTS = (
    "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto",
    "builtins.input", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "ctypes.dlopen",
)  # fmt: skip
OUTPUT = "out"
"""Folder of reports, the only one to write into."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class _Watch:
    """What the running code does beyond reading installed files, seen by the interpreter itself."""

    def __init__(self) -> None:
        self._planted: str | None = None
        self._thread = 0
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def over(self, planted: Path):
        """Watches this thread; files in a folder must not even be read."""
        self.seen = []
        self._planted, self._thread = os.path.realpath(planted), threading.get_ident()
        try:
            yield self.seen
        finally:
            self._planted = None

    def _hook(self, event: str, args: tuple) -> None:
        if self._planted is None or threading.get_ident() != self._thread:
            return
        if event in _ACTS or self._is_foreign(event, args) or self._is_file(event, args):
            self.seen.append(f"{event} {str(args)[:300]}")

    def _is_foreign(self, event: str, args: tuple) -> bool:
        if event == "exec":
            file = getattr(args[0], "co_filename", "")
        elif event in ("compile", "import"):
            file = args[1]
        else:
            return False
        if not isinstance(file, str | bytes) or os.fsdecode(file)[:1] in ("", "<"):
            return False
        return not os.path.realpath(os.fsdecode(file)).startswith(_INSTALLED)

    def _is_file(self, event: str, args: tuple) -> bool:
        if event not in ("open", "os.mkdir", "os.rename", "shutil.copyfile", "os.symlink"):
            return False
        if not isinstance(args[0], str | bytes | os.PathLike):
            return False
        file = os.path.realpath(os.fsdecode(args[0]))
        if file.startswith(f"{self._planted}/"):
            return True
        is_written = event != "open" or bool(args[2] & _WRITES)
        is_expected = file.startswith(("/dev/", os.path.realpath(OUTPUT)))
        return is_written and "__pycache__" not in file and not is_expected


WATCH = _Watch()


# --- what is planted -------------------------------------------------------------------------


@pytest.fixture
def planted(tmp_path):
    """A model directory that leaves a mark if anything of it runs, in whatever way."""
    folder, mark = tmp_path / "planted", tmp_path / "mark"
    folder.mkdir()
    (folder / "pwn.py").write_text(f"open({str(mark)!r}, 'w')\nclass Pwn:\n    pass\n")
    (folder / "config.json").write_text(json.dumps({"model_type": "pwn", "auto_map": _auto_map()}))
    marking = type("Marking", (), {"__reduce__": lambda self: (open, (str(mark), "w"))})
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(marking()))
    yield folder
    assert not mark.exists()


ROLES = ("AutoConfig", *(name for name in vars(modeling_auto) if name.startswith("AutoModel")))


def _auto_map(repository: str = "") -> dict[str, str]:
    return dict.fromkeys((*ROLES, "AutoBackbone"), f"{repository}pwn.Pwn")


def test_the_watch_sees_what_it_is_there_for(planted, tmp_path, monkeypatch):
    """And does not mind installed modules."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    (planted / "pwn.py").write_text("import math")
    with WATCH.over(planted) as seen:
        importlib.import_module("colorsys")
        transformers.LlamaConfig().to_dict()
        assert seen == []
        input()
        exec(compile("1", str(tmp_path / "x.py"), "exec"))
        (planted / "config.json").read_text()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", 1), timeout=1)
        subprocess.run(["true"], check=True)
    assert {each.partition(" ")[0] for each in seen} >= {
        "builtins.input", "compile", "exec", "open", "socket.connect", "subprocess.Popen",
    }  # fmt: skip


# ---- the config is refused before anything is built ----------------------------------------------

LOADED = {
    "auto_map": {"AutoModel": "pwn.Pwn"},
    "backbone": "./back",
    "backbone_kwargs": {"trust_remote_code": True},
    "use_timm_backbone": True,
    "use_pretrained_backbone": True,
    "checkpoint_path": "weights.pth",
    "attn_implementation": "owner/kernel",
    "_attn_implementation": "owner/kernel:f",
    "experts_implementation": "owner/kernel",
    "architecture": "hf-hub:owner/model",
}
PLACES = {
    "{}": lambda part: part,
    "text_config.{}": lambda part: {"text_config": part},
    "parts[1].deep[0].{}": lambda part: {"parts": [1, {"deep": [part]}]},
    "a.b.c.d.e.f.{}": lambda part: {"a": {"b": {"c": {"d": {"e": {"f": part}}}}}},
}


@pytest.mark.parametrize("key", LOADED)
def test_a_key_that_loads_is_refused_by_its_path_unless_it_asks_for_nothing(key):
    for path, place in PLACES.items():
        with pytest.raises(ConfigError, match=re.escape(f"'{path.format(key)}'")):
            check_loads_nothing(place({key: LOADED[key]}))
        for nothing in (None, False, "", {}, [], 0):
            check_loads_nothing(place({key: nothing}))


TIMM = {"model_type": "timm_backbone"}
NAMED = [
    *({key: "eager"} for key in LOADED if key.endswith("_implementation")),
    {"model_type": "timm_wrapper", "architecture": "resnet18.a1_in1k"},
    {"backbone_config": {**TIMM, "backbone": "a.b"}},
]


def test_names_of_implementations_and_of_timms_models_are_allowed_and_others_are_not():
    for config in NAMED:
        check_loads_nothing(config)
    for name in ("hf-hub:owner/model", "local-dir:back", "owner/model", "./a"):
        with pytest.raises(ConfigError, match=r"'a\.backbone'"):
            check_loads_nothing({"a": {**TIMM, "backbone": name}})


def test_a_config_may_be_nested_deeply():
    config = functools.reduce(lambda inner, _: {"a": [inner]}, range(5000), LOADED)
    with pytest.raises(ConfigError, match="loaded by its name"):
        check_loads_nothing(config)


def test_the_code_of_a_directory_may_have_nested_names():
    """The published config of DeepSeek-OCR has them in `language_config`."""
    config = {**PUBLISHED.config, "language_config": {"auto_map": _auto_map()}}
    model_directory.ModelDirectory(Path("x"), config, {}).check_values()


# ---- the two ways that were found, by every command ----------------------------------------------

BACKBONE = {
    "model_type": "detr",
    "architectures": ["DetrModel"],
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": "planted",
    "backbone_kwargs": {"trust_remote_code": True},
}
PROMPT = {
    "model_type": "vision-encoder-decoder",
    "architectures": ["VisionEncoderDecoderModel"],
    "encoder": {"model_type": "vit", "num_hidden_layers": 1},
    "decoder": {
        "model_type": "vit",  # for which AutoModelForCausalLM has no class
        "_name_or_path": "planted",
        "auto_map": {"AutoModelForCausalLM": "pwn.Pwn"},
    },
}
ASKING_THE_HUB = {**BACKBONE, "backbone": "someuser/some-backbone", "backbone_kwargs": None}
WAYS = {"backbone": BACKBONE, "prompt": PROMPT, "hub": ASKING_THE_HUB}
LONE = ["--hf-config", "model/config.json", "--stages", "stages.toml"]
COMMANDS = {
    "main": [*LONE, "--output", OUTPUT],
    "check": ["check", "--budgets", "dsocr-budgets.toml"],
    "tree": ["tree", "--model", "model", "--stages", "stages.toml"],
    "stages": ["stages", *LONE[:2]],
    "time": ["time", "h100", *LONE],
    "fit": ["fit", "h100", *LONE],
    "measure": ["measure", *LONE],
}


BUDGETS = '[workloads.page]\nhf_config = "model/config.json"\nstages = "stages.toml"\n'


@pytest.fixture
def arguments(way, command, planted, tmp_path, monkeypatch):
    """A command about a config that leads outside, in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(WAYS[way]))
    Path("stages.toml").write_text(STAGES)
    Path("dsocr-budgets.toml").write_text(BUDGETS)
    return COMMANDS[command]


EVERY_WAY = [(way, command) for way in WAYS for command in COMMANDS]


@pytest.mark.parametrize("keys_are_known", [True, False])
@sampled(("way", "command"), EVERY_WAY, every(4))
def test_no_command_is_led_outside(
    way, command, keys_are_known, arguments, planted, monkeypatch, capsys
):
    """Nor would it be if the keys were not known."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    if not keys_are_known:
        monkeypatch.setattr(model_directory, "check_loads_nothing", lambda config: None)
    with WATCH.over(planted) as seen:
        code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n"), seen) == (2, "", 1, [])
    said = "would be loaded by its name" if keys_are_known else "a config cannot ask for"
    assert f", which {said}" in err


@pytest.mark.exhaustive
@pytest.mark.parametrize(("way", "command"), EVERY_WAY)
def test_a_process_leaves_no_cache(way, command, arguments, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "dsocr_analyze", *arguments],
        input="y\n" * 9, capture_output=True, text=True,
        env={**os.environ, "HF_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    left = {path.name for path in Path("home").rglob("*") if path.is_file()}
    assert left <= {"version.txt"}  # of the cache, by transformers when it is imported


# ---- what runs on the machine's own device ----------------------------------------------------

TALK = """
import os, sys
def talks(event, arguments):
    quiet = ("__new__", "gethostname", "bind")  # to a port of its own, as urllib3 tries IPv6
    if event.startswith("socket.") and not event.endswith(quiet):
        os.write(2, f"TALKS: {event} {arguments}".encode())
        os._exit(99)
sys.addaudithook(talks)
from dsocr_analyze.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""A program that ends at the first word to any other, in any of its threads."""
ON_DEVICE = {
    "infer": ["infer", "--model", "m", "--image", "page.png", "--prompt", "<image>a",
              "--max-new-tokens", "3", "--random-weights", "--trust-remote-code",
              "--base-size", "256", "--image-size", "256", "--crop-mode", "0"],
    "measure": ["measure", "--model", "m", "--trust-remote-code", "--base-size", "256",
                "--image-size", "256", "--crop-mode", "0", "--page", "256x256",
                "--max-new-tokens", "3", "--steps", "1", "--repeats", "1", "--warmups", "1"],
    "measure of a config": ["measure", "--hf-config", "config.json", "--stages", "stages.toml",
                            "--steps", "1", "--repeats", "1", "--warmups", "1",
                            "--max-new-tokens", "3"],
    "calibrate": ["calibrate", "--seconds", "20"],
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", ON_DEVICE)
def test_what_runs_on_a_device_talks_to_nobody(command, tmp_path):
    """With settings of the Hub that would let it, and code that asks what infer() asks."""
    if "m" in ON_DEVICE[command] and IS_5:
        pytest.skip("model directories run on transformers 4")
    infer_like.write(tmp_path / "m")
    infer_like.picture(tmp_path / "page.png")
    stages, config = LLAMA.write(tmp_path)
    config.rename(tmp_path / "config.json")
    stages.rename(tmp_path / "stages.toml")
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    variables = {name: value for name, value in os.environ.items() if name not in offline}
    ran = subprocess.run(
        [sys.executable, "-c", TALK, *ON_DEVICE[command]],
        capture_output=True, text=True, cwd=tmp_path,
        env={**variables, "XDG_CONFIG_HOME": str(tmp_path / "x"), "HF_HOME": str(tmp_path / "h")},
    )  # fmt: skip
    assert "TALKS" not in ran.stderr
    assert ran.returncode == 0 or "too few kernels could be measured" in ran.stderr, ran.stderr


def test_a_word_to_another_is_noticed():
    code = TALK.replace("dsocr_analyze.cli import main", "socket import gethostbyname as main")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 1  # called with a list, which is no name: before any word
    code = code.replace("sys.argv[1:]", "'localhost'")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, "TALKS" in ran.stderr) == (99, True)


# ---- doors of transformers, by whatever name they are called -------------------------------------


DOORS = {
    "a class by name": lambda planted: auto_factory.get_class_from_dynamic_module(
        "pwn.Pwn", str(planted), trust_remote_code=True
    ),
    "a question": lambda planted: auto_factory.resolve_trust_remote_code(
        None, str(planted), False, True
    ),
    "a file": lambda planted: importlib.util.spec_from_file_location("pwn", planted / "pwn.py"),
    "a config": transformers.AutoConfig.from_pretrained,
    "a config of a class": transformers.LlamaConfig.from_pretrained,
    "a model": transformers.AutoModel.from_pretrained,
    "a model of a class": transformers.LlamaModel.from_pretrained,
    "a backbone": lambda planted: transformers.AutoBackbone.from_pretrained(planted.name),
    "a checkpoint": lambda planted: torch.load(planted / "pytorch_model.bin", weights_only=False),
    "a program": lambda planted: subprocess.run(["true"]),
    "a name": lambda planted: socket.getaddrinfo("localhost", 80),
    "an address": lambda planted: socket.create_connection(("127.0.0.1", 1)),
    "the Hub": lambda planted: HfApi().model_info("someuser/x"),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_is_closed_for_the_running_thread(door, planted):
    directory = alone({"model_type": "llama"}, planted.parent)
    with (
        WATCH.over(planted) as seen,
        pytest.raises(ConfigError, match="cannot ask for"),
        exclusive(),
        confined(directory),
    ):
        DOORS[door](planted)
    assert seen == []


def test_they_are_open_for_other_threads_and_afterwards_and_for_a_directorys_code(tmp_path):
    look = functools.partial(subprocess.check_call, ["true"])
    by_config, by_code = {"model_type": "llama"}, {"model_type": "x", "auto_map": _auto_map()}
    with exclusive(), confined(alone(by_config, tmp_path)), ThreadPoolExecutor() as other:
        other.submit(look).result()
    look()
    with exclusive(), confined(alone(by_code, tmp_path)):
        look()


def test_a_pass_is_confined_too(tmp_path, monkeypatch):
    monkeypatch.setattr(
        transformers.LlamaForCausalLM, "forward", lambda self, input_ids, **_: input("Run it?")
    )
    stages, config = LLAMA.write(tmp_path)
    (tmp_path / "config.json").write_text(config.read_text())
    session = DeepSeekOCRSession.from_local(tmp_path, stages=stages)
    with pytest.raises(ConfigError, match="ask a question"):
        session.analyze(max_new_tokens=1)


@pytest.mark.skipif(not IS_5, reason="transformers 4 has no kernels on the Hub")
def test_kernels_on_the_hub_are_done_without(tmp_path, monkeypatch):
    from transformers.integrations import hub_kernels

    asked: list[str] = []
    replacements = {"is_kernels_available": lambda: True, "_kernels_enabled": True,
                    "get_kernel_hub": lambda name, **_: asked.append(name)}  # fmt: skip
    for name, value in replacements.items():
        monkeypatch.setattr(hub_kernels, name, value, raising=False)
    with exclusive(), confined(alone({"model_type": "llama"}, tmp_path)):
        assert hub_kernels.lazy_load_kernel("deep-gemm", {}) is None
    assert asked == []
    hub_kernels.lazy_load_kernel("deep-gemm", {})
    assert len(asked) == 1


@pytest.mark.skipif(IS_5, reason="transformers 5 compiles no kernels itself")
def test_no_kernel_is_compiled(tmp_path, monkeypatch):
    """As on a machine with a GPU, where a constructor compiles kernels into a cache."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cache = tmp_path / "cache"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(cache))
    config = {
        "model_type": "deformable_detr", "architectures": ["DeformableDetrModel"],
        "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
        "backbone_config": {"model_type": "resnet", "out_features": ["stage4"]},
        "num_feature_levels": 1,
    }  # fmt: skip
    built(alone(config, tmp_path))
    assert not cache.exists()


def test_only_classes_of_models_are_built(tmp_path):
    for name in "Conv1D AutoModel LlamaConfig pipeline Trainer __doc__ models".split():
        with pytest.raises(ConfigError, match="has no model class"):
            built(alone({"model_type": "llama", "architectures": [name]}, tmp_path))


# ---- every architecture --------------------------------------------------------------------------

HARMLESS = {
    "DetrModel": {
        "model_type": "detr", "use_timm_backbone": False, "use_pretrained_backbone": False,
        "backbone": None, "backbone_kwargs": None,
        "backbone_config": {"model_type": "resnet", "out_features": ["stage4"]},
    },
    "DPTForDepthEstimation": {
        "model_type": "dpt", "is_hybrid": True, "backbone": None, "use_timm_backbone": False,
        "num_hidden_layers": 12, "auto_map": None,
    },
    "LlavaForConditionalGeneration": {
        "model_type": "llava", "_name_or_path": "someuser/some-model",
        "vision_config": {"model_type": "clip_vision_model", "num_hidden_layers": 1},
        "text_config": {"model_type": "llama", "num_hidden_layers": 1, "backbone": None},
    },
    "Mask2FormerModel": {
        "model_type": "mask2former", "use_timm_backbone": False, "use_pretrained_backbone": False,
        "backbone_config": {
            "model_type": "resnet", "out_features": ["stage1", "stage2", "stage3", "stage4"],
        },
    },
    "VisionEncoderDecoderModel": smallest_config("vision-encoder-decoder"),
    "Qwen2ForCausalLM": {
        "model_type": "qwen2", "num_hidden_layers": 1, "_attn_implementation": "sdpa",
        "quantization_config": {"quant_method": "gptq", "bits": 4}, "torch_dtype": "bfloat16",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_configs_are_built(name, planted):
    directory = alone({**HARMLESS[name], "architectures": [name]}, planted.parent)
    directory.check_values()
    with WATCH.over(planted) as seen:
        assert type(built(directory).module).__name__ == name
    assert seen == []


PARTS = pytest.mark.parametrize(
    ("part", "parts"),
    [(12, 240), *(pytest.param(part, 24, marks=pytest.mark.exhaustive) for part in range(24))],
)
"""Of the architectures, and of the hostile configs."""
HOSTILE_CONFIGS = 2000


def _outcome(directory: model_directory.ModelDirectory) -> int | str:
    """What building it comes to: the model's parameters, or the error."""
    try:
        return sum(each.numel() for each in built(directory).module.parameters())
    except AnalyzeError as error:
        return f"{type(error).__name__}: {error}"


@PARTS
def test_every_architecture_is_built_as_if_it_were_free(part, parts, planted, monkeypatch):
    """Whatever it is built from by default, and even if it cannot be."""
    directories = [
        alone({**smallest_config(model_type), "architectures": [name]}, planted.parent)
        for model_type, names in list(architectures().items())[part::parts]
        for name in names
    ]
    with WATCH.over(planted) as seen:
        outcomes = [_outcome(each) for each in directories]
    assert seen == []
    monkeypatch.setattr(loading, "confined", lambda directory: contextlib.nullcontext())
    assert outcomes == [_outcome(each) for each in directories]


def _hostile(config: dict, draw: Random, planted: Path) -> dict:
    """The config with keys that name what to load, at every depth, and such names for others."""
    names = [str(planted), "planted", "someuser/some-model", "hf-hub:someuser/some-model",
             "local-dir:planted", "resnet50", f"{planted}/pytorch_model.bin",
             "https://example.com/x.bin", "someuser/kernel:f"]  # fmt: skip
    keys = [
        *LOADED, "name_or_path", "_name_or_path", "pretrained_model_name_or_path", "tokenizer",
        "checkpoint", "codebook_path", "weights", "assistant_model", "target_lang", "dtype",
        "torch_dtype", "loss_type", "hidden_act", "index_path", "passages_path", "tokenizer_class",
    ]  # fmt: skip
    given = {
        "auto_map": [_auto_map(), _auto_map(f"{planted}--"), _auto_map("someuser/some-model--")],
        "backbone_kwargs": [{"trust_remote_code": True}, {"pretrained": True}],
        "backbone_config": [None, {"model_type": "pwn"}],
        "model_args": [{"checkpoint_path": str(planted / "pytorch_model.bin")}],
        "model_type": ["pwn", "clip_vision_model", "timm_backbone", *draw.sample(
            list(architectures()), 3)],
        "adapter_attn_dim": [16],
        "quantization_config": [{"quant_method": "gptq", "tokenizer": str(planted)}],
        "custom_pipelines": [{"x": {"impl": "pwn.Pwn", "pt": ["AutoModel"]}}],
        "trust_remote_code": [True],
        "use_kernels": [True],
        "use_timm_backbone": [True, False],
        "use_pretrained_backbone": [True, False, None],
    }  # fmt: skip
    hostile = copy.deepcopy(config)
    parts = [hostile]
    for part in parts:
        parts.extend(
            each for key, each in part.items()
            if isinstance(each, dict) and ("model_type" in each or key.endswith("config"))
        )  # fmt: skip
    for _ in range(draw.choice((0, 1, 2, 8))):
        key = draw.choice((*keys, *given))
        draw.choice(parts)[key] = draw.choice(given.get(key, names))
    if draw.random() < 0.3:
        part = draw.choice(parts)
        texts = [key for key, value in part.items() if value is None or isinstance(value, str)]
        part[draw.choice(texts or ["name"])] = draw.choice(names)
    draw.choice(parts).update(
        draw.choice((
            {"auto_map": draw.choice(given["auto_map"]), "_name_or_path": str(planted)},
            {
                "auto_map": _auto_map(), "_name_or_path": str(planted),
                "model_type": draw.choice(given["model_type"]),
            },
            {
                "backbone": draw.choice(names), "backbone_config": None,
                "use_timm_backbone": False, "use_pretrained_backbone": draw.random() < 0.5,
                "backbone_kwargs": draw.choice((None, {"trust_remote_code": True})),
            },
            {"backbone": draw.choice(names), "use_timm_backbone": True, "backbone_config": None},
        ))
    )  # fmt: skip
    if draw.random() < 0.9:
        hostile.pop("auto_map", None)  # at the top, where trust decides: `test_trust.py`
    hostile["model_type"] = config["model_type"]
    return hostile


@PARTS
def test_hostile_configs_lead_nowhere(part, parts, planted, monkeypatch):
    """Neither with the check of known keys, nor with the confinement alone."""
    monkeypatch.chdir(planted.parent)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 10_000))
    draw, types = Random(part), list(architectures().items())
    for number in range(part, HOSTILE_CONFIGS, parts):
        model_type, names = types[number % len(types)]
        config = _hostile(smallest_config(model_type), draw, planted)
        directory = alone({**config, "architectures": [draw.choice(names)]}, planted.parent)
        with WATCH.over(planted) as seen:
            if number // parts % 4 == 0:
                with contextlib.suppress(AnalyzeError):
                    DeepSeekOCRSession.from_directory(directory)
            _outcome(directory)
        assert seen == [], config
