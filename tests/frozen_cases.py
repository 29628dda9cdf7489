"""The cases of the freeze, in groups: names, and what computes the value of each. No torch.

A value comes from `analytic.page_figures` (`pages`, `configs`), from an architecture's closed forms
(`forms`), or from the command line (`commands`): never from what these are made of.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import msgspec
import numpy as np
from freeze import Value, folded, own_records, records
from frozen_commands import command_cases
from relatives import FAMILY

from dsocr_analyze import analytic, errors, kernels
from dsocr_analyze.architectures import ARCHITECTURES, plan_workload
from dsocr_analyze.figures import PageFigures
from dsocr_analyze.kernels import total_work
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape.modules import ACTIVATIONS
from dsocr_analyze.workload import PageWorkload

Cases = Mapping[str, Callable[[], Value]]


# --- configs of small models ----------------------------------------------------------------

ONE, TWO, UNLIMITED = FAMILY
"""Names of DeepSeek-OCR, DeepSeek-OCR-2 and Unlimited-OCR."""

SAM = {
    "downsample_channels": [48, 64],
    "global_attn_indexes": [1, 3],
    "heads": 3,
    "layers": 4,
    "width": 96,
}
CLIP = {"heads": 2, "image_size": 112, "layers": 2, "patch_size": 14, "width": 64}
ENCODER = {"dim": 112, "heads": 4, "key_value_heads": 2, "intermediate_size": 200, "layers": 3}

SMALL: dict[str, Any] = {
    "num_hidden_layers": 3,
    "hidden_size": 80,
    "vocab_size": 500,
    "intermediate_size": 150,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "projector_config": {"n_embed": 80, "input_dim": 128},
}

LATENT = {
    "use_mla": True,
    "kv_lora_rank": 28,
    "qk_rope_head_dim": 12,
    "qk_nope_head_dim": 10,
    "v_head_dim": 14,
}


def _scaled(kind: str, trained: int = 8192) -> dict[str, Any]:
    return {
        "rope_scaling": {"type": kind, "factor": 2.0},
        "max_position_embeddings": trained,
    }


def _grouped(method: str, groups: int, chosen: int, **more: Any) -> dict[str, Any]:
    return {"topk_method": method, "n_group": groups, "topk_group": chosen, **more}


def _projector(**values: Any) -> dict[str, Any]:
    return {"projector_config": values}


def _width(name: str, **values: Any) -> dict[str, Any]:
    return {"vision_config": {"width": {name: values}}}


DECODERS: dict[str, dict[str, Any]] = {
    "small": {},
    "published rotary scaling": _scaled("yarn"),
    "linear": _scaled("linear"),
    "dynamic": _scaled("dynamic"),
    "dynamic, beyond": _scaled("dynamic", 40),
    "latent": LATENT,
    "latent, linear": LATENT | _scaled("linear"),
    "latent, dynamic": LATENT | _scaled("dynamic"),
    "latent, dynamic, beyond": LATENT | _scaled("dynamic", 40),
    "latent, dynamic, beyond while generating": LATENT | _scaled("dynamic", 500),
    "latent, yarn": LATENT | _scaled("yarn"),
    "latent, low-rank queries": LATENT | {"q_lora_rank": 36, "attention_bias": True},
    "latent, low-rank queries, yarn": LATENT | _scaled("yarn") | {"q_lora_rank": 36},
    "latent, two rotary features": LATENT | {"qk_rope_head_dim": 2, "v_head_dim": 8},
    "latent, equal heads": LATENT | {"v_head_dim": 22},
    "latent, wide values": LATENT | {"v_head_dim": 50},
    "latent, one head": LATENT | {"num_attention_heads": 1, "num_key_value_heads": 1},
    "latent, many experts": LATENT | {"n_routed_experts": 96, "num_experts_per_tok": 1},
    "one head": {"num_attention_heads": 1, "num_key_value_heads": 1},
    "grouped": {"num_key_value_heads": 2, "attention_bias": True},
    "one kv head": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 96},
    "tied": {"tie_word_embeddings": True},
    "dense": {"n_routed_experts": None},
    "dense, wide, grouped": {
        "n_routed_experts": None, "intermediate_size": 4000, "num_key_value_heads": 2,
    },
    "large vocabulary": {"vocab_size": 90_000},
    "all layers mixed": {"first_k_dense_replace": 0},
    "every other layer": {"moe_layer_freq": 2, "num_hidden_layers": 5},
    "more experts than choices": {"n_routed_experts": 96, "num_experts_per_tok": 1},
    "all experts chosen": {"num_experts_per_tok": 8},
    "normed": {"norm_topk_prob": True},
    "sigmoid": {"scoring_func": "sigmoid"},
    "no shared experts": {"n_shared_experts": None},
    "one choice, normed": {"num_experts_per_tok": 1, "norm_topk_prob": True},
    "limited": _grouped("group_limited_greedy", 4, 2, n_shared_experts=None),
    "limited, one group": _grouped("group_limited_greedy", 1, 1),
    "limited, groups of one": _grouped("group_limited_greedy", 8, 3),
    "limited, sigmoid, normed": _grouped(
        "group_limited_greedy", 2, 1, scoring_func="sigmoid", norm_topk_prob=True
    ),
    "noaux": _grouped("noaux_tc", 4, 2),
    "noaux, one group": _grouped("noaux_tc", 1, 1, scoring_func="sigmoid"),
    "noaux, all groups": _grouped("noaux_tc", 2, 2, norm_topk_prob=True),
    "noaux, sigmoid, normed": _grouped(
        "noaux_tc", 4, 2, scoring_func="sigmoid", norm_topk_prob=True
    ),
}  # fmt: skip

ACTIVATED = {f"activation {name}": {"hidden_act": name} for name in ACTIVATIONS}

VISION: dict[str, dict[str, Any]] = {
    "mlp projector": _projector(projector_type="mlp_gelu", depth=1),
    "mlp projector of 2": _projector(projector_type="mlp_gelu", depth=2),
    "mlp projector of 4": _projector(projector_type="mlp_gelu", depth=4),
    "one block": _width("sam_vit_b", layers=1, global_attn_indexes=[]),
    "one global block": _width("sam_vit_b", layers=1, global_attn_indexes=[0]),
    "wide sam": _width("sam_vit_b", width=160, heads=5),
    "one head of sam": _width("sam_vit_b", heads=1),
    "larger position table of sam": {"vision_config": {"image_size": 224}},
}

WITH_CLIP: dict[str, dict[str, Any]] = {
    **VISION,
    "split projector": _projector(
        projector_type="hybrid_split_feature_mlp_gelu", input_dim=[64, 64]
    ),
    "split projector of 3": _projector(
        projector_type="hybrid_split_feature_mlp_gelu",
        input_dim=[64, 64], depth=3, channel_div=0.25,
    ),
    "identity projector": {
        "hidden_size": 128, **_projector(projector_type="identity", n_embed=128),
    },
    "one layer of clip": _width("clip-l-14-224", layers=1, heads=4),
    "larger position table of clip": _width("clip-l-14-224", image_size=224),
    "tables as large as the page": {
        "vision_config": {"image_size": 256, "width": {"clip-l-14-224": {"image_size": 64,
                                                                          "patch_size": 16}}},
    },
}  # fmt: skip

WITH_ENCODER: dict[str, dict[str, Any]] = {
    **VISION,
    "encoder of one head": _width("qwen2-0-5b", heads=1, key_value_heads=1),
    "encoder of one kv head": _width("qwen2-0-5b", key_value_heads=1),
    "encoder without groups": _width("qwen2-0-5b", key_value_heads=4),
    "encoder of one layer": _width("qwen2-0-5b", layers=1, intermediate_size=3000),
}

WINDOWS = {
    f"window {size}": {"sliding_window_size": size, "sliding_window": size}
    for size in (None, 1, 2, 5, 2000)
}

_SHARED = (
    "small", "latent", "latent, dynamic, beyond", "latent, low-rank queries", "grouped",
    "one kv head", "one head", "dense", "limited", "noaux, sigmoid, normed",
    "more experts than choices", "dynamic, beyond", "large vocabulary",
)  # fmt: skip
"""Decoders that are frozen for every architecture, since what is around them differs."""

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    ONE: DECODERS | ACTIVATED | WITH_CLIP,
    TWO: {name: DECODERS[name] for name in _SHARED} | WITH_ENCODER,
    UNLIMITED: {name: DECODERS[name] for name in _SHARED} | WINDOWS,
}
"""Changes of the small config, by architecture and name."""


@cache
def published(architecture: str) -> ModelDirectory:
    return ModelDirectory.read(ARCHITECTURES[architecture].reference)


@cache
def directory(architecture: str, variant: str | None) -> ModelDirectory:
    """The reference with its published config, or with a variant of the small one."""
    reference = published(architecture)
    if variant is None:
        return reference
    config = _updated(reference.config, _small(architecture))
    config = _updated(config, VARIANTS[architecture][variant])
    # The section that repeats the top level, which nothing reads, says the same.
    copied = config["language_config"]
    same = {key: config[key] for key in copied.keys() & config.keys()}
    return dataclasses.replace(reference, config=config | {"language_config": copied | same})


def _small(architecture: str) -> dict[str, Any]:
    if architecture == TWO:
        width = {"sam_vit_b": SAM | {"downsample_channels": [48, 112]}, "qwen2-0-5b": ENCODER}
        projector = {"n_embed": 80, "input_dim": 112}
    else:
        width = {"sam_vit_b": SAM, "clip-l-14-224": CLIP}
        projector = {"n_embed": 80, "input_dim": 128}
    return SMALL | {
        "projector_config": projector,
        "vision_config": {"image_size": 512, "width": width},
    }


def _updated(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A config with some values replaced, section by section."""
    return config | {
        key: _updated(config[key], value)
        if isinstance(value, dict) and isinstance(config.get(key), dict)
        else value
        for key, value in changes.items()
    }


# --- pages ------------------------------------------------------------------------------------

PAGES: dict[str, dict[str, dict[str, Any]]] = {
    ONE: {
        **{f"mode {name}": {"mode": name} for name in ARCHITECTURES[ONE].modes},
        "2x1": {"page": (1300, 640)},
        "3x3": {"page": (2000, 2000)},
        "1x6": {"page": (640, 3900)},
        "not cut": {"page": (640, 501)},
        "odd views": {"page": (1000, 1500), "base_size": 205, "image_size": 133},
        "one token a view": {"page": (2000, 500), "base_size": 79, "image_size": 64},
        "windows that fit": {"page": (500, 500), "base_size": 448, "image_size": 224},
        "one window": {"image_size": 224, "crop_mode": False, "max_new_tokens": 1},
        "less than a window": {"image_size": 208, "crop_mode": False, "max_new_tokens": 2},
        "more than a window": {"image_size": 240, "crop_mode": False, "max_new_tokens": 3},
        "odd view": {"image_size": 1000, "crop_mode": False, "text_tokens": 1},
        "odd tiles": {"page": (700, 1900), "base_size": 1000, "image_size": 650},
        "long text": {"image_size": 512, "crop_mode": False, "text_tokens": 5000},
        "beyond the trained length": {"mode": "large", "text_tokens": 9000},
    },
    TWO: {
        **{f"mode {name}": {"mode": name} for name in ARCHITECTURES[TWO].modes},
        "2x1": {"page": (1600, 768)},
        "1x6": {"page": (768, 4700)},
        "not cut": {"page": (768, 501)},
        "small global view": {"page": (1240, 1754), "base_size": 768},
        "odd view": {"image_size": 1010, "crop_mode": False, "text_tokens": 1},
        "odd small view": {"image_size": 757, "crop_mode": False, "max_new_tokens": 1},
        "long text": {"mode": "small", "text_tokens": 5000},
    },
    UNLIMITED: {
        **{f"mode {name}": {"mode": name} for name in ARCHITECTURES[UNLIMITED].modes},
        "2x1": {"page": (1300, 640)},
        "3x3": {"page": (800, 800), "base_size": 640},
        "1x7": {"page": (640, 4500)},
        "8x4": {"page": (5200, 2600)},
        "not cut": {"page": (640, 501)},
        "two pages": {"prompt_pages": 2},
        "five odd pages": {"prompt_pages": 5, "image_size": 133, "text_tokens": 1},
        "forty pages": {"prompt_pages": 40, "image_size": 1024},
        "one new token": {"mode": "base", "max_new_tokens": 1},
        "window not full": {"mode": "base", "max_new_tokens": 128},
        "window just full": {"mode": "base", "max_new_tokens": 129},
        "window once over": {"mode": "base", "max_new_tokens": 130},
    },
}
"""Pages by architecture and name: the arguments with which a workload is planned."""

SMALL_PAGES: dict[str, tuple[dict[str, Any], ...]] = {
    ONE: (
        {"page": (1000, 700), "base_size": 256, "image_size": 192, "max_new_tokens": 50},
        {"image_size": 64, "crop_mode": False, "text_tokens": 1, "max_new_tokens": 3},
        {"image_size": 224, "crop_mode": False, "text_tokens": 600},
        {"page": (640, 3900), "base_size": 205, "image_size": 133, "max_new_tokens": 2},
    ),
    TWO: (
        {"page": (1600, 768), "max_new_tokens": 50},
        {"image_size": 768, "crop_mode": False, "text_tokens": 1, "max_new_tokens": 3},
        {"image_size": 1024, "crop_mode": False, "text_tokens": 600},
    ),
    UNLIMITED: (
        {"page": (1000, 700), "base_size": 256, "image_size": 192, "max_new_tokens": 50},
        {"prompt_pages": 3, "image_size": 133, "max_new_tokens": 1500},
        {"image_size": 64, "crop_mode": False, "text_tokens": 1, "max_new_tokens": 3},
    ),
}

HOW = tuple(product(("bfloat16", "float32"), (False, True), (1, 3)))
"""Type, whether attention is FlashAttention, and batch."""


@dataclass(frozen=True)
class Case:
    """One page on one model.

    Attributes:
        architecture: Name of the architecture.
        variant: Name of the config's variant; None for the published config.
        page: Name of the page.
        planned: Arguments with which the page is planned.
        dtype: Type of weights and activations.
        flash: FlashAttention instead of eager attention.
        batch: Pages per batch.
    """

    architecture: str
    variant: str | None
    page: str
    planned: Mapping[str, Any]
    dtype: str
    flash: bool
    batch: int

    @property
    def name(self) -> str:
        return " / ".join((
            self.architecture, self.variant or "published", self.page, self.dtype,
            "flash" if self.flash else "eager", f"batch {self.batch}",
        ))  # fmt: skip

    @property
    def workload(self) -> PageWorkload:
        return plan_workload(architecture=self.architecture, batch_size=self.batch, **self.planned)

    @property
    def dimensions(self) -> Any:
        return directory(self.architecture, self.variant).dimensions()


# --- whole pages --------------------------------------------------------------------------------


def published_cases() -> Iterator[Case]:
    """The published configs: all modes and odd pages, in every way."""
    for architecture, pages in PAGES.items():
        for (page, planned), (dtype, flash, batch) in product(pages.items(), HOW):
            if not (flash and architecture == UNLIMITED):
                yield Case(architecture, None, page, planned, dtype, flash, batch)
        mode = f"mode {ARCHITECTURES[architecture].default_mode}"
        for dtype, flash in (("float16", False), ("float16", True), ("bfloat16", True)):
            if dtype == "float16" or architecture == UNLIMITED:  # refused if attention is flash
                yield Case(architecture, None, mode, pages[mode], dtype, flash, 1)


def small_cases() -> Iterator[Case]:
    """Variants of the small configs, with pages and ways in turn."""
    for architecture, variants in VARIANTS.items():
        pages = SMALL_PAGES[architecture]
        for number, variant in enumerate(variants):
            ways = (("bfloat16", False, 1), ("float32", True, 3), ("bfloat16", True, 1),
                    ("float32", False, 3))  # fmt: skip
            for turn, way in enumerate(ways[:2] if "activation" in variant else ways):
                page = (number + turn) % len(pages)
                yield Case(architecture, variant, f"page {page}", pages[page], *way)


def page_value(case: Case) -> Value:
    """All figures of a page; the message if its model is refused."""
    return _answered(_page, case)


def _answered(value: Callable[[Case], Value], case: Case) -> Value:
    try:
        return value(case)
    except errors.ConfigError as error:
        return {"refused": str(error)}


def _page(case: Case) -> Value:
    figures = analytic.page_figures(
        directory(case.architecture, case.variant), case.workload,
        dtype=case.dtype, flash_attention=case.flash,
    )  # fmt: skip
    return figures_value(figures)


def figures_value(figures: PageFigures) -> Value:
    return {
        "stages": {name: _stage(stage) for name, stage in figures.stages.items()},
        "parameters": _plain(figures.parameters),
        "batch": figures.batch._asdict(),
        "causal_savable_flops": figures.causal_savable_flops,
        "memory": _plain(figures.memory),
        "operators": dict(figures.ledger.counted),
        "warnings": list(figures.warnings),
    }


def _stage(stage: Any) -> Value:
    own = own_records(stage.kernels)
    modules = {
        path: {"calls": stage.module_calls.get(path, 0), **own.get(path, {})}
        for path in (*stage.module_calls, *(path for path in own if path not in stage.module_calls))
    }
    return {
        "params": stage.params,
        "calls": stage.calls,
        "experts": _plain(stage.experts),
        "notes": list(stage.notes),
        "modules": folded(modules),
    }


def _plain(value: Any) -> Value:
    """A dataclass, an array or a number as JSON; what is not whole to ten digits."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, msgspec.Struct):
        return _plain(msgspec.structs.asdict(value))
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


# --- what else the closed forms say -------------------------------------------------------------

_FORMS = (
    "small", "latent", "latent, dynamic, beyond", "latent, low-rank queries", "grouped",
    "one kv head", "dense", "limited", "noaux, sigmoid, normed", "no shared experts", "tied",
    "every other layer", "more experts than choices", "activation gelu_new", "dynamic, beyond",
    "split projector", "encoder of one head", "mlp projector of 2",
    "window None", "window 1", "window 5",
)  # fmt: skip


def forms_cases() -> Iterator[Case]:
    for architecture, pages in PAGES.items():
        mode = f"mode {ARCHITECTURES[architecture].default_mode}"
        flashes = (False,) if architecture == UNLIMITED else (False, True)
        for dtype, flash, batch in product(("bfloat16", "float32"), flashes, (1, 3)):
            for page in (mode, "not cut", "2x1"):
                yield Case(architecture, None, page, pages[page], dtype, flash, batch)
        for variant in (name for name in _FORMS if name in VARIANTS[architecture]):
            for number, planned in enumerate(SMALL_PAGES[architecture]):
                flash = bool(number % 2) and architecture != UNLIMITED
                dtype = "float32" if number == 1 else "bfloat16"
                page = f"page {number}"
                yield Case(architecture, variant, page, planned, dtype, flash, 1 + 2 * flash)


def forms_value(case: Case) -> Value:
    forms = ARCHITECTURES[case.architecture].forms
    dimensions, workload = case.dimensions, case.workload
    dtype, flash = kernels.dtype_named(case.dtype), case.flash
    arguments = (dimensions, workload, dtype, flash)
    steps = {
        f"{batch} over {cached}{', full' if full else ''}": records(
            forms.step_kernels(dimensions, batch, cached, dtype, flash, full)
        )
        for batch, cached, full in (
            (case.batch, workload.seq_len, False), (7, 1, False), (64, 700, True),
        )
    }  # fmt: skip
    return {
        "step kernels": steps,
        "memory": _plain(forms.memory(*arguments)),
        "prefill bytes alive": _plain(forms.prefill_bytes_alive(*arguments)),
        "decode bytes alive": _plain(forms.decode_bytes_alive(*arguments)),
        "experts touched": _plain(forms.experts_touched(dimensions, workload, dtype)),
        "parameters": forms.parameter_count(dimensions),
        "expert parameters": dimensions.decoder.expert_params,
        "sizes": {
            "max positions": dimensions.decoder.max_position_embeddings,
            "sliding window": dimensions.decoder.sliding_window,
            "step cuts": _plain(dimensions.step_cuts(workload.seq_len)),
        },
        "served": _answered(_served, case),
        "page totals": _answered(_totals, case),
    }


def _served(case: Case) -> Value:
    """What a serving engine launches, by records; many steps at once by their work."""
    forms = ARCHITECTURES[case.architecture].forms.served
    dimensions, workload, dtype = case.dimensions, case.workload, kernels.dtype_named(case.dtype)
    forms.check(dimensions)
    T, visual, B = workload.seq_len, workload.visual_tokens, case.batch
    views = {
        f"{view.count} of {view.resolution}": {
            stage: records(kernels)
            for stage, kernels in forms.views(view, dimensions, dtype).items()
        }
        for view in workload.views
    }  # fmt: skip
    many = forms.step(np.array([[1, 8, 300]]), np.array([[1], [999]]), dimensions, dtype, 16)
    return {
        "views": views,
        "prompt": records(forms.prompt(T, T, visual, dimensions, dtype, 16)),
        "chunk, fp8 cache": records(forms.prompt(77, 800, 60, dimensions, dtype, 8)),
        "step": records(forms.step(B, T + 1, dimensions, dtype, 16)),
        "large step, int4 cache": records(forms.step(200, 900, dimensions, dtype, 4)),
        "many steps": _plain(total_work(kernel.total for kernel in many)),
        "cache elements": forms.cache_elements(dimensions),
        "quantizable params": forms.quantizable_params(dimensions),
        "activation bytes": forms.activation_bytes(dimensions, workload, dtype),
    }


def _totals(case: Case) -> Value:
    """Totals of the page itself, and of pages of all its grids and several lengths at once."""
    forms = ARCHITECTURES[case.architecture].forms
    workload = case.workload
    whole = workload.base_size if workload.crop_mode else workload.image_size
    columns, rows = workload.grid
    sides = np.arange(60, 6000, 450)
    codes = forms.model.page_rule.codes(np.repeat(sides, 3), np.tile([300, 1300, 4000], len(sides)))
    grids = forms.model.page_rule.columns_and_rows(codes) if workload.crop_mode else (columns, rows)
    number = np.arange(len(codes))
    sizes = {
        "base_size": workload.base_size,
        "whole_resolution": whole,
        "local_resolution": workload.image_size,
        "dtype": kernels.dtype_named(case.dtype),
        "flash_attention": case.flash,
    }
    alone = forms.page_totals(
        case.dimensions, columns=columns, rows=rows, text_tokens=workload.text_tokens,
        max_new_tokens=workload.max_new_tokens, batch_size=case.batch, **sizes,
    )  # fmt: skip
    many = forms.page_totals(
        case.dimensions, columns=grids[0], rows=grids[1], text_tokens=1 + 97 * (number % 4),
        max_new_tokens=1 + 61 * (number % 5), batch_size=1 + number % 3, **sizes,
    )  # fmt: skip
    return {"alone": _plain(alone), "many": _plain(many)}


# --- groups -------------------------------------------------------------------------------------


def _by_name(cases: Callable[[], Iterator[Case]], value: Callable[[Case], Value]) -> Cases:
    listed = list(cases())
    named = {case.name: partial(value, case) for case in listed}
    assert len(named) == len(listed), "two cases have one name"
    return named


GROUPS: dict[str, Callable[[], Cases]] = {
    "pages": partial(_by_name, published_cases, page_value),
    "configs": partial(_by_name, small_cases, page_value),
    "forms": partial(_by_name, forms_cases, forms_value),
    "commands": command_cases,
}
"""Every group's cases, by the name of its file."""
