"""Settings of the whole process, changed for a while and put back, also after an error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["default_dtype", "quiet_transformers", "replaced", "unfused_scripts"]

_ABSENT = object()


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` for a while; an inherited attribute is inherited again afterwards."""
    own = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Tensors are made in `dtype` where nobody names a type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """transformers warns about model types and generation, which no count depends on."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


@contextlib.contextmanager
def unfused_scripts() -> Iterator[None]:
    """Scripted functions run operator by operator: a fused kernel would hide what it computes."""
    gpu = torch._C._jit_can_fuse_on_gpu()
    cpu = torch._C._jit_can_fuse_on_cpu()
    texpr = torch._C._jit_texpr_fuser_enabled()
    torch._C._jit_override_can_fuse_on_gpu(False)
    torch._C._jit_override_can_fuse_on_cpu(False)
    torch._C._jit_set_texpr_fuser_enabled(False)
    try:
        yield
    finally:
        torch._C._jit_override_can_fuse_on_gpu(gpu)
        torch._C._jit_override_can_fuse_on_cpu(cpu)
        torch._C._jit_set_texpr_fuser_enabled(texpr)
