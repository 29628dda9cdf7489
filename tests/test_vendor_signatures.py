"""Signatures of the reference, and settings on its pages, are those of a vendor checkout's code.

`pytest -m vendor` runs these tests, on the files of DSOCR_VENDOR_DIR; they stay untouched.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest
import torch
from transformers.models.llama import modeling_llama
from vendor_checkout import needs_vendor
from vendor_pages import described_in, reference, vendor

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.deepseek_ocr.reference import (
    configuration_deepseek_v2,
    deepencoder,
    modeling_deepseekocr,
    modeling_deepseekv2,
)
from dsocr_analyze.documents.markdown import filled
from dsocr_analyze.model.loading import building

pytestmark = [pytest.mark.vendor, needs_vendor]

FILES = (configuration_deepseek_v2, deepencoder, modeling_deepseekocr, modeling_deepseekv2)

METHODS = ("__init__", "forward", "backward", "__call__", "set_rng", "on_finalized_text")

DIFFERENT = {
    "KeyValueCache": "the vendor takes transformers' DynamicCache",
    "LlamaRotaryEmbedding": "transformers deprecates every argument but the config",
    "Views": "holds what the vendor keeps in local variables",
    "build_clip_l": "reads vision_config; the vendor writes the numbers into the code",
    "build_projector": "reads projector_config; the vendor writes the numbers into the code",
    "build_sam_vit_b": "reads vision_config, and loads no checkpoint by itself",
    "fitting_projector": "checks widths that the vendor writes into the code",
    "quick_gelu": "a scripted function, which has no Python signature",
    "required": "reads keys that the vendor writes into the code",
}
"""What has another signature than the vendor's, or is the reference's alone, and why."""


def vendor_object(name: str) -> Any:
    """A class or function of the vendor's files, or that they take from transformers."""
    package = type(vendor().model(DEFAULT.name).session.model).__module__.rpartition(".")[0]
    for file in FILES:
        module = importlib.import_module(f"{package}.{file.__name__.rpartition('.')[2]}")
        if hasattr(module, name):
            return getattr(module, name)
    return getattr(modeling_llama, name)


def parameters_of(function: Any) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each parameter."""
    parameters = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]


def method_of(owner: type, name: str) -> Any:
    """A method; a constructor that hands on whatever it gets stands for the one above it."""
    if name != "__init__":
        return getattr(owner, name, None)
    for base in owner.__mro__:
        constructor = vars(base).get("__init__")
        if constructor is None or base is object:
            continue
        if tuple(inspect.signature(constructor).parameters) != ("self", "args", "kwargs"):
            return constructor
    return None


def compare(name: str, ours: Any, theirs: Any) -> None:
    if not inspect.isclass(ours):
        assert parameters_of(ours) == parameters_of(theirs)
        return
    for method in METHODS:
        own, other = method_of(ours, method), method_of(theirs, method)
        assert (own is None) == (other is None), f"{name}.{method}"
        if own is not None:
            assert parameters_of(own) == parameters_of(other), f"{name}.{method}"


OBJECTS = {
    name: getattr(file, name)
    for file in FILES
    for name in file.__all__
    if inspect.isclass(getattr(file, name)) or callable(getattr(file, name))
}


@pytest.mark.parametrize("name", sorted(OBJECTS.keys() - DIFFERENT.keys()))
def test_signatures_are_the_vendors(name):
    compare(name, OBJECTS[name], vendor_object(name))


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_what_is_said_to_differ_differs(name):
    with pytest.raises((AssertionError, AttributeError, ValueError)):
        compare(name, OBJECTS[name], vendor_object(name))


# ---------------------------------------------------------------------------- settings as mappings


class Asked(dict[str, Any]):
    """Settings that note what is asked of them: as an attribute, or by `get` with a default."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(settings)
        self.defaults: dict[str, Any] = {}
        self.attributes: set[str] = set()

    def __getattr__(self, key: str) -> Any:
        self.attributes.add(key)
        return self[key]

    def get(self, key: str, default: Any = None) -> Any:
        self.defaults[key] = default
        return super().get(key, default)


def documented(name: str) -> dict[str, tuple[str, str]]:
    """Default and value of each setting on a page, as they are shown."""
    page = reference().page(name)
    names = {**page.names, "model": page.model}
    return {
        key: (default, re.sub("<!--.*?-->", "", filled(value, names, {}).text))
        for key, (default, value) in described_in(page).items()
    }


def check_settings(page: str, defaults: dict[str, Any], required: set[str]) -> None:
    """Asserts that a page tells settings with a default from those that must be given."""
    settings = {
        key.removeprefix("cfg."): default
        for key, (default, _) in documented(page).items()
        if key.startswith("cfg.")
    }
    assert {key: default for key, default in settings.items() if default} == {
        key: repr(default) for key, default in defaults.items()
    }
    assert {key for key, default in settings.items() if not default} == required


def test_projector_settings_have_the_defaults_that_the_vendor_asks_with():
    required, defaults = set(), {}
    for kind in deepencoder.MlpProjector.VARIANTS:
        width = [8, 8] if kind.startswith("hybrid") else 8
        settings = Asked(projector_type=kind, input_dim=width, n_embed=8, downsample_ratio=2)
        with building(torch.device("meta"), torch.float32):
            vendor_object("MlpProjector")(settings)
        required |= settings.attributes - {"depth"}
        defaults |= settings.defaults
    check_settings("MlpProjector", defaults, required)


UNUSED_BY_THE_VENDOR = {"attention_dropout", "seq_length", "use_flash_attn"}
"""Settings that CLIP's classes keep and that change nothing."""


def test_clip_settings_are_the_vendors():
    published = vendor_object("vit_model_cfg")
    settings = Asked(**published)
    with building(torch.device("meta"), torch.float32):
        vendor_object("VitModel")(settings)
    check_settings("VitModel", settings.defaults, settings.attributes - UNUSED_BY_THE_VENDOR)
    for page in ("VitModel", "NoTPTransformer", "NoTPTransformerBlock", "NoTPAttention"):
        for name, (_, value) in documented(page).items():
            section, _, key = name.partition(".")
            if section == "cfg" and key:
                assert value == str(published.get(key, "not given")), (page, key)


def test_sam_is_built_with_the_documented_values(monkeypatch):
    encoder, made = vendor_object("ImageEncoderViT"), []
    module = inspect.getmodule(vendor_object("build_sam_vit_b"))

    def build(*args: Any, **kwargs: Any) -> torch.nn.Module:
        bound = inspect.signature(encoder).bind(*args, **kwargs)
        bound.apply_defaults()
        made.append(bound.arguments)
        return torch.nn.Identity()

    monkeypatch.setattr(module, "ImageEncoderViT", build)
    vendor_object("build_sam_vit_b")()
    (arguments,) = made
    for key, (_, value) in documented("ImageEncoderViT").items():
        if key not in ("norm_layer", "act_layer"):
            given = arguments[key]
            assert value == str(tuple(given) if isinstance(given, list) else given), key
    assert arguments["act_layer"] is torch.nn.GELU
    assert arguments["norm_layer"].func is torch.nn.LayerNorm


@pytest.mark.parametrize("needs_gradient", [True, False])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_the_auxiliary_loss_gets_a_gradient_where_it_requires_one(shape, needs_gradient):
    for function in (OBJECTS["AddAuxiliaryLoss"], vendor_object("AddAuxiliaryLoss")):
        x = torch.ones(2, 3, requires_grad=True)
        loss = torch.zeros(shape, requires_grad=needs_gradient)
        function.apply(x, loss).sum().backward()
        assert bool((x.grad == 1).all())
        found = None if loss.grad is None else (loss.grad.shape, loss.grad.item())
        assert found == ((shape, 1) if needs_gradient else None)
