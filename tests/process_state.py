"""Everything of the process that the command line or a run of a model touches for a while."""

import gc
import os
import signal
import sys
import threading
import warnings
from pathlib import Path

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from transformers.utils import logging

from dsocr_analyze.model.process_settings import without_unused_imports

with without_unused_imports():  # as the program does: without scipy
    from transformers import PreTrainedModel, modeling_flash_attention_utils


def process_settings():
    """What a caller of `main` would notice of it."""
    return {
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "signals": {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)},
        "warnings": (list(warnings.filters), warnings.showwarning),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "hooks": (sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook),
        "tracing": (sys.gettrace(), sys.getprofile()),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "arguments": list(sys.argv),
        "path": (list(sys.path), list(sys.meta_path)),
    }


def settings():
    """What building and running a model changes."""
    return {
        "meta_path": list(sys.meta_path),
        "modules": {
            name: sys.modules.get(name)
            for name in ("torchvision", "torchvision.transforms", "torch._dynamo", "torch._compile")
        },
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "initialisation": dict(vars(torch.nn.init)),
        "transformers": dict(vars(PreTrainedModel)),
        "verbosity": logging.get_verbosity(),
        "messages": [list(handler.filters) for handler in logging.get_logger().handlers],
        "autocast": vars(torch.amp.autocast_mode.autocast)["__init__"],
        "autocasting": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "fusers": (
            torch._C._jit_can_fuse_on_gpu(),
            torch._C._jit_can_fuse_on_cpu(),
            torch._C._jit_texpr_fuser_enabled(),
        ),
        "optimized scripts": torch._C._get_graph_executor_optimize(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "stdout": sys.stdout,
        "modes": torch.overrides._get_current_function_mode_stack(),
        "dispatch modes": _get_current_dispatch_mode_stack(),
        "torch functions": torch._C._is_torch_function_enabled(),
        "asks for modes": vars(torch.nn.functional)["has_torch_function"],
        "flash attention": {
            name: vars(modeling_flash_attention_utils).get(name)
            for name in ("flash_attn_func", "_flash_supports_window_size")
        },
        "hooks": [
            dict(vars(torch.nn.modules.module)[name])
            for name in ("_global_forward_hooks", "_global_forward_pre_hooks")
        ],
    }
