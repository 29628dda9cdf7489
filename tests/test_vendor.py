"""The references, their pages and their signatures beside the vendors' own files.

`pytest -m vendor` runs these tests, on the files of DSOCR_VENDOR_DIR, DSOCR_VENDOR_DIR_OCR2 and
DSOCR_VENDOR_DIR_UNLIMITED; they stay untouched.
"""

import contextlib
import dataclasses
import importlib
import inspect
import random
import re
from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from alive_tensors import Alive
from relatives import FAMILY
from test_composition import GOLDENS, recorded
from test_golden import decode_flops, flops_by_stage, repeats_of
from transformers.cache_utils import DynamicCache
from transformers.models.llama import modeling_llama
from vendor_checkout import (
    VENDOR,
    VENDOR_OCR2,
    VENDOR_UNLIMITED,
    assert_same_passes,
    digests,
    needs_vendor,
    needs_vendor_ocr2,
    needs_vendor_unlimited,
)

from dsocr_analyze import DeepSeekOCRSession, errors
from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.deepseek_ocr.reference import (
    configuration_deepseek_v2,
    deepencoder,
    modeling_deepseekocr,
    modeling_deepseekv2,
)
from dsocr_analyze.architectures.ocr_family.family_member import FamilyMember
from dsocr_analyze.documents.library import Library, ModulePage
from dsocr_analyze.documents.markdown import Sources, page_file, rows_of
from dsocr_analyze.documents.model import DocumentedModel
from dsocr_analyze.model import forward, generation, loading
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.trace.passes import trace_passes
from dsocr_analyze.workload import PageWorkload

# The pages' models change signatures of the vendor's classes, so their tests come last.
pytestmark = pytest.mark.vendor

OCR, OCR2, UNLIMITED = FAMILY
CHECKOUTS = {
    OCR: (VENDOR, needs_vendor),
    OCR2: (VENDOR_OCR2, needs_vendor_ocr2),
    UNLIMITED: (VENDOR_UNLIMITED, needs_vendor_unlimited),
}


@pytest.fixture(scope="module", autouse=True)
def _untouched():
    before = [digests(path) for path, _ in CHECKOUTS.values()]
    yield
    assert [digests(path) for path, _ in CHECKOUTS.values()] == before


def runs_of(counts):
    """So many numbered runs of each architecture."""
    return [
        pytest.param(name, seed, marks=CHECKOUTS[name][1], id=f"{name}-{seed}")
        for name, count in counts.items()
        for seed in range(count)
    ]


# --- the recorded workloads on the vendors' own files, and what is declared of DeepSeek-OCR's


@cache
def whole(name: str, *, flash: bool) -> loading.LoadedModel:
    """The vendor's model as published."""
    return load(name, vendor=True, flash=flash)


@pytest.mark.parametrize(
    ("name", "golden", "flash"),
    [
        pytest.param(
            *each.values, flash, id=f"{each.id}-{flash}", marks=CHECKOUTS[each.values[0]][1]
        )
        for each in GOLDENS
        for flash in (False, True)
        if (each.values[0], flash) != (UNLIMITED, True)  # whose attention is eager only
    ],
)
def test_every_stage_counts_what_was_recorded(name, golden, flash):
    architecture = ARCHITECTURES[name]
    traces = trace_passes(whole(name, flash=flash), recorded(name, golden), architecture)
    assert flops_by_stage(traces, architecture) == golden["matrix_flops"]
    step = decode_flops(traces, architecture)
    assert step.items() <= golden["decode_step_matrix_flops"].items()


@needs_vendor
@pytest.mark.parametrize("flash", [False, True], ids=["eager", "flash"])
def test_its_code_is_the_published_one_whose_declared_repetition_changes_nothing(flash):
    model, workload = whole(OCR, flash=flash), DEFAULT.plan(page=(1000, 700))
    assert model.directory.runs_code(DEFAULT.published_code)
    plain, repeated = (
        trace_passes(model, workload, DEFAULT, step_numbers=range(2), repeats=alike)
        for alike in (None, repeats_of(model))
    )
    assert plain == repeated


# --- a reference holds what a vendor checkout's own code holds, tensor by tensor ------------------

META = torch.device("meta")

WIDTH = 1280  # the vendors hard-code the vision side and its width

VIEWS = {
    OCR: ([(256, 192), (512, 320), (640, 640), (1024, 640)], [(1, 1), (1, 1), (2, 1), (2, 3)]),
    OCR2: ([(1024, 768), (1000, 783)], [(1, 1), (2, 1)]),
    UNLIMITED: ([(192, 128), (256, 64)], [(1, 1), (1, 1), (3, 4), (16, 2), (1, 32)]),
}
"""Sides of global and local views, and grids."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A small decoder behind the vision side as published, and a workload."""

    architecture: FamilyMember
    config: dict[str, Any]
    workload: PageWorkload
    dtype: torch.dtype
    flash: bool
    window: int | None

    def load(self, *, vendor: bool) -> loading.LoadedModel:
        """The model of the vendor's code, or of the reference."""
        options = {"dtype": self.dtype, "flash": self.flash, "window": self.window}
        return load(self.architecture.name, vendor=vendor, config=self.config, **options)


def load(
    name, *, vendor, config=None, dtype=torch.bfloat16, flash=False, window=None
) -> loading.LoadedModel:
    """A model on `meta`; `config` replaces keys of the directory's."""
    directory = ModelDirectory.read(CHECKOUTS[name][0] if vendor else ARCHITECTURES[name].reference)
    return loading.load_model(
        dataclasses.replace(directory, config={**directory.config, **(config or {})}),
        device=META,
        dtype=dtype,
        flash_attention=flash,
        sliding_window=window,
        trust_remote_code=True,
    )


def drawn(name: str, seed: int, **page) -> Run:
    """A run at random; Unlimited-OCR has eager plain attention, whose window it draws."""
    draw, has_window = random.Random(seed), name == UNLIMITED
    heads = draw.choice([2, 5, 10])
    config: dict[str, Any] = {
        "hidden_size": WIDTH,
        "num_hidden_layers": draw.randint(1, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([n for n in (1, heads) if heads % n == 0]),
        "intermediate_size": draw.choice([96, 3000]),
        "vocab_size": draw.choice([128, 2000, 20000]),
        "attention_bias": draw.random() < 0.3,
        "n_routed_experts": draw.choice([None, 4, 16, 64]),
        "n_shared_experts": draw.choice([None, 1, 2]),
        "num_experts_per_tok": draw.choice([1, 2, 4]),
        "moe_intermediate_size": draw.choice([16, 300]),
        "first_k_dense_replace": draw.randint(0, 2),
        "norm_topk_prob": draw.random() < 0.5,
        "topk_method": draw.choice(["greedy", "group_limited_greedy", "noaux_tc"]),
        "scoring_func": draw.choice(["softmax", "sigmoid"]),
        "n_group": 2,
        "topk_group": 2,
        "use_mla": seed % 2 == 1 and not has_window,
        "max_position_embeddings": draw.choice([16, 8192]),
        "rope_scaling": None,
    }
    if config["use_mla"]:
        config |= {
            "kv_lora_rank": draw.choice([32, 100]),
            "q_lora_rank": draw.choice([None, 40]),
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 16,
            "v_head_dim": draw.choice([20, 40]),
            "num_key_value_heads": heads,
        }
    kinds = [None, "linear", "yarn", *(["dynamic"] if config["use_mla"] else [])]
    kind = draw.choice(kinds)
    if kind:
        config["rope_scaling"] = {"type": kind, "factor": 2.0, "mscale_all_dim": 0.5}
    return Run(
        ARCHITECTURES[name],
        config,
        dataclasses.replace(page_of(draw, ARCHITECTURES[name]), **page),
        draw.choice([torch.bfloat16, torch.float32]),
        flash=draw.random() < 0.4 and not has_window,
        window=draw.choice([None, 1, 3, 128]) if has_window else None,
    )


def page_of(draw: random.Random, architecture: FamilyMember) -> PageWorkload:
    """A page, whole or cut; several whole ones in a prompt of a model that takes them."""
    sides, grids = VIEWS[architecture.name]
    (base, local), grid = draw.choice(sides), draw.choice(grids)
    whole = draw.choice([base, local]) if grid == (1, 1) else base
    page, pages = architecture.page_with((base, whole, local, *grid)), 1
    if grid == (1, 1) and whole == base:  # a page's view and the blank patch are of one size
        pages = draw.randint(1, min(3, architecture.prompt_pages))
    return dataclasses.replace(
        page,
        visual_tokens=pages * page.visual_tokens,
        prompt_pages=pages,
        text_tokens=draw.choice([1, 10, 150]),
        batch_size=draw.randint(1, 3),
    )


def layout(model: loading.LoadedModel) -> tuple[dict[str, Any], ...]:
    """Class names of modules, and shapes and types of parameters and buffers, by path."""
    return (
        {path: type(module).__name__ for path, module in model.module.named_modules()},
        {name: (p.shape, p.dtype) for name, p in model.module.named_parameters()},
        {name: (b.shape, b.dtype) for name, b in model.module.named_buffers()},
    )


@pytest.mark.parametrize(("name", "_"), runs_of(dict.fromkeys(CHECKOUTS, 1)))
def test_modules_parameters_and_buffers_are_the_vendors(name, _):
    theirs, ours = (layout(load(name, vendor=vendor)) for vendor in (True, False))
    assert ours == theirs


@pytest.mark.parametrize(("name", "seed"), runs_of({OCR: 28, OCR2: 6, UNLIMITED: 10}))
def test_drawn_models_run_the_same_operators_and_peak_at_the_same_byte(name, seed):
    """Through a window's steps: those that append, and those that write in place."""
    run, steps = drawn(name, seed), {0, 1}
    if run.config["use_mla"] and not run.flash:
        steps = set()  # which need a mask, as the vendor's attention asserts
    if (window := run.window) is not None:
        steps |= {window - 1, window, window + 1, 3 * window, 9000}
    theirs, ours = (
        trace_passes(
            run.load(vendor=vendor), run.workload, run.architecture, step_numbers=sorted(steps)
        )
        for vendor in (True, False)
    )
    assert_same_passes(ours, theirs)


def curves(model: loading.LoadedModel, run: Run) -> list[list[tuple[str, int]]]:
    """Of a prefill pass and of three decode steps, called as `generate` does.

    The second page has no local views. What is made on the host is no memory of the device: there
    DeepSeek-OCR-2 keeps the last kinds of tokens for good.
    """
    found, cache = [], DynamicCache()
    with forward.running(META, generation.flash_attention):
        inputs = run.architecture.prefill_inputs(META, model.dtype, run.workload)
        blank = torch.zeros(1, 3, 64, 64, dtype=model.dtype, device=META)
        inputs["images"][1] = (blank, inputs["images"][1][1])
        for number in range(4):
            with Alive(META) as alive:
                model.module(**inputs, past_key_values=cache)
            found.append(alive.curve)
            cached = run.workload.seq_len + number
            inputs = run.architecture.decode_inputs(META, run.workload, cached)
    return found


@pytest.mark.parametrize(("name", "seed"), runs_of({OCR: 8, OCR2: 1, UNLIMITED: 3}))
def test_as_many_bytes_are_alive_after_every_operator(name, seed):
    """With a page without local views among others: what is held of the one before it stays."""
    run = drawn(name, 100 + seed, batch_size=3)
    theirs, ours = (curves(run.load(vendor=vendor), run) for vendor in (True, False))
    assert len(theirs[0]) > 100
    assert ours == theirs


# --- documents of the vendor's models


class VendorModel(DocumentedModel):
    """A model whose modules, classes, functions and config are the vendor's."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        directory = ModelDirectory.read(CHECKOUTS[architecture.name][0])
        self.directory, self.dimensions = directory, directory.dimensions()
        self.session = DeepSeekOCRSession.from_directory(directory, trust_remote_code=True)
        # The recorder finds tensors and the cache by the names of what a module takes.
        for name in filter(self.paths, ("Qwen2MLP", "SlidingWindowLlamaAttention")):
            named = inspect.signature(reference(architecture.name).page(name).subject.forward)
            self.get(name).forward.__signature__ = named
        # A constructor that hands on whatever it gets is like the one above it.
        flash = self.get("DeepseekV2FlashAttention2")
        flash.__init__.__signature__ = inspect.signature(flash.__base__.__init__)

    def get(self, name: str) -> Any:
        """A class or function of the vendor's files, or that they take from transformers."""
        if name == "GrowingCache":
            return DynamicCache
        classes = {type(each).__name__: type(each) for each in self.session.model.modules()}
        return super().get(name) or classes.get(name)


class VendorLibrary(Library):
    """Documents with a vendor's figures, values and config; code is shown as the reference's."""

    @cache  # noqa: B019  # a library lives as long as the process
    def model(self, architecture: str) -> DocumentedModel:
        """An architecture's model."""
        return VendorModel(ARCHITECTURES[architecture])

    @cache  # noqa: B019
    def page(self, name: str) -> ModulePage:
        """A module's page."""
        page = super().page(name)
        own = reference(page.model.architecture.name).page(name)
        page.subject, page.file = own.subject, own.file
        return page


@cache
def reference(architecture: str = DEFAULT.name) -> Library:
    """An architecture's documents."""
    return Library(Sources(), ARCHITECTURES[architecture])


@cache
def vendor(architecture: str = DEFAULT.name) -> VendorLibrary:
    """The same documents, of the vendor's model."""
    return VendorLibrary(Sources(), ARCHITECTURES[architecture])


PAGES = [
    pytest.param(architecture, name, marks=mark, id=f"{architecture}-{name}")
    for architecture, (_, mark) in CHECKOUTS.items()
    for name in reference(architecture).owners
]
"""Every page of each architecture, those that it shares with others included."""


def described_in(page: ModulePage) -> dict[str, tuple[str, str]]:
    """Default and value of each parameter and key that a page describes; empty for no default."""
    marked = r"<!-- begin parameters -->(.*?)<!-- end parameters -->"
    (body,) = re.findall(marked, page.text, re.S)
    rows = page.parameters(rows_of(body))
    return {name.strip("`"): (default.strip("`"), value) for name, _, default, value in rows}


# --- the pages of each architecture say what the vendors' own modules do -------------------------

WITHOUT_TENSORS = {
    "AddAuxiliaryLoss",
    "BaseTransform",
    "DeepseekOCR2Config",
    "DeepseekOCRConfig",
    "NoEOSTextStreamer",
    "UnlimitedOCRConfig",
}
OF_TORCHVISION = {"BasicImageTransform"}
"""The vendor's is made of torchvision's transforms, which also check what they are given."""

NEEDS_A_MASK = {"DeepseekV2Attention", "DeepseekV2FlashAttention2"}
"""Unlimited-OCR's decoder gives a step no mask, without which eager latent attention, whose figures
both pages show, does not run."""

DIFFERENT = {
    "Qwen2Decoder2Encoder": "the vendor writes both sizes of views into the code",
    "Qwen2MLP": "transformers' takes its widths from the config alone",
    "Qwen2RotaryEmbedding": "transformers deprecates every argument but the config",
    "SlidingWindowLlamaAttention": "the vendor's layer has a number in any case",
    "UnlimitedOCRConfig": "the vendor has one key of the window among the constructor's parameters",
    "VitModel": "nothing is frozen where nothing is trained",
}
"""What has another constructor than the vendor's, and why."""

WITHOUT_DEFAULT = re.compile(r"(`config.sliding_window_size` \|[^|]*\|)[^|]*\|")
"""The cells of the key that the vendor's config class has no default of."""


def text_of(name: str, library: Library) -> str:
    """A page as it is written from a library's model, without the code that it quotes."""
    text = library.sources.texts[page_file(name)]
    text = re.sub(r"<!-- begin definition.*?<!-- end definition -->", "", text, flags=re.S)
    filled = library.filled(page_file(name), text, library.owners[name])
    return WITHOUT_DEFAULT.sub(r"\1 |", filled.text)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        each
        for each in PAGES
        if each.values[1] not in OF_TORCHVISION
        and (each.values[0] != "unlimited-ocr" or each.values[1] not in NEEDS_A_MASK)
    ],
)
def test_the_vendors_module_does_what_the_page_says(architecture, name):
    pages = reference(architecture), vendor(architecture)
    own, others = (library.page(name).cases for library in pages)
    assert bool(own) == (name not in WITHOUT_TENSORS)
    for ours, theirs in zip(own, others, strict=True):
        assert ours.label == theirs.label
        assert Counter(ours.traced.kernels) == Counter(theirs.traced.kernels), ours.label
        assert ours.traced.peak_bytes == theirs.traced.peak_bytes, ours.label
        assert ours.traced.cache_bytes == theirs.traced.cache_bytes, ours.label
    assert text_of(name, vendor(architecture)) == text_of(name, reference(architecture))


@pytest.mark.parametrize(("architecture", "name"), PAGES)
def test_the_vendors_class_is_built_as_the_page_says(architecture, name):
    library = vendor(architecture)
    page = ModulePage(name, library.model(architecture), library.sources)
    assert page.subject.__name__ == name
    defaults = []
    for each in (page, reference(architecture).page(name)):
        with contextlib.suppress(errors.DocumentError):
            described = described_in(each).items()
            defaults.append([(key, default) for key, (default, _) in described if "." not in key])
    is_same = len(defaults) == 2 and defaults[0] == defaults[1]
    assert is_same == (name not in DIFFERENT)


# --- signatures of the reference are those of a vendor checkout's code

FILES = (configuration_deepseek_v2, deepencoder, modeling_deepseekocr, modeling_deepseekv2)

METHODS = ("__init__", "forward", "backward", "__call__", "set_rng", "on_finalized_text")

OTHER_SIGNATURES = {
    **dict.fromkeys(
        (
            "DeepseekOCRForCausalLM",
            "DeepseekV2ForCausalLM",
            "DeepseekV2ForSequenceClassification",
            "VitModel",
        ),
        "runs passes alone: it takes neither labels nor what to freeze in training",
    ),
    "LlamaRotaryEmbedding": "transformers deprecates every argument but the config",
    "Views": "holds what the vendor keeps in local variables",
    "build_clip_l": "reads vision_config; the vendor writes the numbers into the code",
    "build_sam_vit_b": "reads vision_config, and loads no checkpoint by itself",
    "quick_gelu": "a scripted function, which has no Python signature",
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


def signatures_of(subject: Any) -> dict[str, list[tuple[str, Any, Any]]]:
    """Name, kind and default of each parameter, by method; of a function, by an empty name."""
    functions = {"": subject}
    if inspect.isclass(subject):
        functions = {name: method_of(subject, name) for name in METHODS}
    return {
        name: [(p.name, p.kind, p.default) for p in inspect.signature(each).parameters.values()]
        for name, each in functions.items()
        if each is not None
    }


OBJECTS = {
    name: getattr(file, name)
    for file in FILES
    for name in file.__all__
    if callable(getattr(file, name))
}


@needs_vendor
@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_signatures_are_the_vendors_but_where_a_reason_is_given(name):
    try:
        is_same = signatures_of(OBJECTS[name]) == signatures_of(vendor_object(name))
    except (AttributeError, ValueError):
        is_same = False
    assert is_same == (name not in OTHER_SIGNATURES)
    assert OTHER_SIGNATURES.keys() <= OBJECTS.keys()
