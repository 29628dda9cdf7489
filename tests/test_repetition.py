"""What is declared alike in the reference and in the published files is alike."""

from __future__ import annotations

import contextlib
import copy
import re
import shutil
from collections import Counter

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from vendor_checkout import VENDOR, needs_vendor

from dsocr_analyze import DeepSeekOCRSession
from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.architectures.key_value_cache import GrowingCache
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.kernels import merged
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import load_model
from dsocr_analyze.trace.passes import trace_passes
from dsocr_analyze.trace.recorder import Recorder
from dsocr_analyze.trace.repetition import caches_in

SMALL = {
    "num_hidden_layers": 4,
    "hidden_size": 320,
    "vocab_size": 1000,
    "intermediate_size": 600,
    "moe_intermediate_size": 72,
    "n_routed_experts": 8,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "projector_config": {"n_embed": 320},
    "vision_config": {
        "sam_vit_b": {"layers": 6, "global_attn_indexes": [2, 5]},
        "clip-l-14-224": {"layers": 3},
    },
}

CONFIGS = {
    "small": {},
    "latent attention": {
        "use_mla": True,
        "kv_lora_rank": 64,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 48,
        "v_head_dim": 40,
    },
    "every second layer MoE": {"moe_layer_freq": 2, "first_k_dense_replace": 2},
    "dense": {"n_routed_experts": None},
    "grouped keys": {"num_attention_heads": 10, "num_key_value_heads": 2},
    "other global blocks": {
        "vision_config": {"sam_vit_b": {"layers": 5, "global_attn_indexes": [0, 2]}}
    },
}

PAGES = {
    "cut": {"page": (700, 1300), "base_size": 128, "image_size": 96},
    "whole, two pages": {"page": (300, 200), "base_size": 320, "batch_size": 2},
    "no crops": {"page": (300, 200), "crop_mode": False, "image_size": 64},
}


def directory_with(path, **changes) -> ModelDirectory:
    """The model in `path` with a small decoder, and other values for some keys."""
    directory = ModelDirectory.read(path)
    config = copy.deepcopy(dict(directory.config))
    for key, value in (SMALL | changes).items():
        if key == "vision_config":
            for encoder, keys in value.items():
                config[key]["width"][encoder] |= keys
        elif isinstance(value, dict):
            config[key] |= value
        else:
            config[key] = value
    return directory.with_config(config)


def check(directory, pages, *, flash=False, arch=DEFAULT, steps=range(2)):
    """Holds the repeated traces of some pages against those of every module."""
    dimensions = arch.forms.dimensions(directory.config)
    model = load_model(
        directory,
        device=torch.device("meta"),
        dtype=torch.bfloat16,
        flash_attention=flash,
        sliding_window=dimensions.decoder.sliding_window,
        trust_remote_code=True,
    )
    for page in pages:
        full, folded = (
            trace_passes(model, arch.plan(**page), arch, step_numbers=steps, repeats=repeats)
            for repeats in (None, arch.forms.repeats(dimensions))
        )
        assert folded.kv_cache_bytes == full.kv_cache_bytes
        for one, other in zip(
            (folded.prefill, *folded.decode_steps), (full.prefill, *full.decode_steps), strict=True
        ):
            assert merged(one.kernels) == merged(other.kernels)
            assert one == other


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "flash"),
    [*((name, False) for name in CONFIGS), ("latent attention", True), ("grouped keys", True)],
)
def test_alike_modules_of_the_reference_do_alike(name, flash):
    check(directory_with(DEFAULT.reference, **CONFIGS[name]), PAGES.values(), flash=flash)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("flash", [False, True], ids=["eager", "flash"])
def test_alike_modules_of_the_published_models_do_alike(name, flash):
    if flash and name != DEFAULT.name:
        pytest.skip("its relatives' attention is the same, or eager only")
    arch = ARCHITECTURES[name]
    directory = ModelDirectory.read(arch.reference)
    window = directory.dimensions().decoder.sliding_window or 2
    page = {"page": (1191, 1684), "max_new_tokens": window + 3}
    check(directory, [page], flash=flash, arch=arch, steps=(0, 1, window - 1, window))


@pytest.mark.vendor
@needs_vendor
@pytest.mark.parametrize("flash", [False, True], ids=["eager", "flash"])
@pytest.mark.parametrize("name", ["small", "other global blocks"])
def test_alike_modules_of_the_published_files_do_alike(name, flash):
    check(directory_with(VENDOR, **CONFIGS[name]), PAGES.values(), flash=flash)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("watch", "most"),
    [
        # Of 24, and of 11 in each of three passes.
        (contextlib.nullcontext, {"NoTPTransformerBlock": 5, "DeepseekV2MoE": 5}),
        # A prefill pass, a decode step, and one over a longer cache, which shows how a step grows.
        (
            lambda: FlopCounterMode(display=False),
            {"NoTPTransformerBlock": 24, "DeepseekV2MoE": 3 * 11},
        ),
    ],
)
def test_an_equal_call_is_not_run_again_unless_someone_watches_operators(monkeypatch, watch, most):
    session, ran = DeepSeekOCRSession.from_local(), Counter()
    classes = {type(each) for each in session.model.modules() if type(each).__name__ in most}
    for module_class in classes:

        def counted(self, *args, forward=module_class.forward, **kwargs):
            ran[type(self).__name__] += 1
            return forward(self, *args, **kwargs)

        monkeypatch.setattr(module_class, "forward", counted)
    with watch():
        session.analyze(page=(300, 200), crop_mode=False, image_size=64, max_new_tokens=1)
    assert ran <= Counter(most)
    assert watch is contextlib.nullcontext or ran == most


def test_alike_modules_share_a_name():
    directory = directory_with(DEFAULT.reference, **CONFIGS["every second layer MoE"])
    name = DEFAULT.forms.repeats(DEFAULT.forms.dimensions(directory.config))
    sam, clip, layers = "model.sam_model.blocks", "model.vision_model.transformer", "model.layers"
    for one, same, other in (
        (f"{sam}.0.attn.qkv", f"{sam}.1.attn.qkv", f"{sam}.2.attn.qkv"),
        (f"{sam}.2", f"{sam}.5", f"{sam}.2.attn"),
        (f"{clip}.layers.0.mlp", f"{clip}.layers.23.mlp", f"{sam}.0.mlp"),
        (f"{layers}.0.mlp", f"{layers}.3.mlp", f"{layers}.2.mlp"),
        (f"{layers}.2.mlp.experts.0.up_proj", f"{layers}.2.mlp.experts.7.up_proj", layers),
        ("model.projector", "model.projector", "model.sam_model"),
    ):
        assert name(one) == name(same) != name(other)


@pytest.mark.exhaustive
@pytest.mark.directory
def test_changed_code_is_traced_in_full(tmp_path):
    """Whether a layer of this copy does its second linear twice is up to a global counter."""
    path = tmp_path / "model"
    shutil.copytree(DEFAULT.reference, path, ignore=shutil.ignore_patterns("__pycache__"))
    file = path / "deepencoder.py"
    before = "out: Tensor = self.fc2(quick_gelu(self.fc1(x)))"
    after = (
        "hidden = quick_gelu(self.fc1(x))\n"
        "        CALLS.append(1)\n"
        "        out: Tensor = self.fc2(hidden)\n"
        "        if len(CALLS) % 2:\n"
        "            out = self.fc2(hidden)"
    )
    text = file.read_text()
    assert text.count(before) == 1
    file.write_text(text.replace(before, after) + "\n\nCALLS: list[int] = []\n")
    page = {"page": (100, 100), "crop_mode": False, "image_size": 64, "max_new_tokens": 1}
    changed = DeepSeekOCRSession.from_local(path, trust_remote_code=True).analyze(**page)
    published = DeepSeekOCRSession.from_local().analyze(**page)
    macs, once = (
        [
            report.stages["clip"]
            .by_module[f"model.vision_model.transformer.layers.{i}.mlp.fc2"]
            .macs
            for i in range(24)
        ]
        for report in (changed, published)
    )
    assert macs == [(2 - index % 2) * count for index, count in enumerate(once)]
    assert changed.agreement is not None
    assert not changed.agreement.agrees


@pytest.mark.exhaustive
def test_a_module_changed_since_it_was_loaded_is_like_no_other():
    """Other activation, other routing and another width in one layer of many."""
    page = {"page": (100, 100), "crop_mode": False, "image_size": 64, "max_new_tokens": 1}
    session = DeepSeekOCRSession.from_directory(directory_with(DEFAULT.reference))
    layers = session.model.model.layers
    layers[2].mlp.shared_experts.act_fn = torch.nn.ReLU()
    layers[3].mlp.num_experts_per_tok = layers[3].mlp.gate.top_k = 2
    layers[1].self_attn.q_proj = torch.nn.Sequential(
        torch.nn.Linear(320, 8, bias=False, device="meta", dtype=torch.bfloat16),
        torch.nn.Linear(8, 320, bias=False, device="meta", dtype=torch.bfloat16),
    )
    workload = session.plan(**page)
    folded = session.trace(workload)
    full = trace_passes(session.loaded, workload, DEFAULT)
    assert merged(folded.prefill.kernels) == merged(full.prefill.kernels)
    assert folded.prefill.calls == full.prefill.calls


def test_a_workload_and_its_arguments_are_refused_together():
    session = DeepSeekOCRSession.from_directory(directory_with(DEFAULT.reference))
    workload = session.plan(page=(100, 100))
    with pytest.raises(WorkloadError, match="base_size"):
        session.analyze(workload, base_size=512)


class Layer(torch.nn.Module):
    """A layer that extends a cache by its keys and values, and something besides, if told to."""

    def __init__(self, layer_idx, also=lambda cache, layer: None):
        super().__init__()
        self.layer_idx, self._also = layer_idx, [also]
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x, tables, held):
        cache = held[0] if isinstance(held, tuple) else held
        key, value = self.linear(x) * tables[0], self.linear(x) + tables[1]
        keys, values = cache.update(key.unsqueeze(1), value.unsqueeze(1), self.layer_idx)
        self._also[0](cache, self.layer_idx)
        return x + (keys * values).sum(-2).squeeze(1).unsqueeze(1), cache


class Layers(torch.nn.Module):
    def __init__(self, also, hold):
        super().__init__()
        self._hold = hold
        self.layers = torch.nn.ModuleList(Layer(index, also) for index in range(5))

    def forward(self, x, cache):
        tables = (x[:, :, :1] * 2, x[:, :, :1] * 3)
        for layer in self.layers:
            x, cache = layer(x, tables, self._hold(cache))
        return x


def slots_of(cache):
    return vars(cache).setdefault("slots", {})


def doubled_below(cache, layer):
    if layer:
        cache.key_cache[layer - 1] = cache.key_cache[layer - 1] * 2


# Layers that run: over an empty cache, over a pair made in the same pass, and over one from before
# it, the first and the last beside one in the middle. The first has nothing below it to change.
@pytest.mark.parametrize(
    ("also", "ran"),
    [
        (lambda cache, layer: None, 2 + 3 + 3),
        (lambda cache, layer: slots_of(cache).update({layer: 7}), 2 + 3 + 3),  # sliding windows do
        (lambda cache, layer: cache.value_cache[layer].add_(1), 2 + 3 + 3),
        (doubled_below, 19),
        (lambda cache, layer: layer and cache.value_cache[layer - 1].add_(1), 19),
        (lambda cache, _: slots_of(cache).update({0: 1 - slots_of(cache).get(0, 0)}), 19),
        (
            lambda cache, layer: (
                vars(cache).setdefault("others", []).extend(2 * [cache.key_cache[layer] * 2])
            ),
            20,
        ),
    ],
    ids=["nothing", "numbered", "here", "doubled below", "below", "toggled below", "elsewhere"],
)
@pytest.mark.parametrize("hold", [lambda cache: cache, lambda cache: (cache, 1)])
def test_layers_that_extend_a_cache_are_repeated(also, ran, hold):
    """Only if each extends its own pair and does nothing else to the cache."""
    with torch.device("meta"):
        model = Layers(also, hold)
    called = []
    forward = Layer.forward

    def counted(self, *args):
        called.append(self.layer_idx)
        return forward(self, *args)

    found = []
    for alike in (None, lambda path: re.sub(r"\d+", "each", path)):
        caches = [GrowingCache(), GrowingCache()]
        called.clear()
        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            patch.setattr(Layer, "forward", counted)
            with Recorder(model, alike) as recorder:
                for calls in ([(0, 3)], [(1, 3), (1, 1)], [(0, 1)]):
                    found.append(recorder.begin())
                    for cache, tokens in calls:
                        model(torch.empty(2, tokens, 8, device="meta"), caches[cache])
        tensors = [each for cache in caches for pair in cache for each in pair]
        found.append([(each.shape, each.stride(), each.dtype) for each in tensors])
        found.append([vars(cache).get("slots") for cache in caches])
    half = len(found) // 2
    assert found[:half] == found[half:]
    assert len(called) == ran


class Odd(list):
    """A list may hold what is no attribute."""


@pytest.mark.parametrize(
    "state",
    [{}, {"one": [torch.ones(1)], "other": []}, {"pairs": [(1, 2)]}, {"names": ["x"]},
     {"keys": [], "slots": {"x": 1}}, {"keys": [], "slots": {0: [1]}}, {"keys": [], "length": 1}],
)  # fmt: skip
def test_what_holds_more_than_tensors_and_numbers_by_layer_is_no_cache(state):
    value = GrowingCache()
    vars(value).clear()
    vars(value).update(state)
    odd = Odd()
    vars(odd).update(key_cache=[], value_cache=[])
    cache = GrowingCache()
    assert caches_in([value, odd, 1, torch.ones(1), (None, (cache,))]) == [cache]
