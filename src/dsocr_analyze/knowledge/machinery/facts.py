"""The facts that pages are written from: the model, its dimensions, the stated workload."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from itertools import takewhile
from typing import Any, Final

import torch

from dsocr_analyze.analytic import page_figures
from dsocr_analyze.architectures import DEFAULT, architecture_named
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.ocr_family.decoder_forms import decoder_sections
from dsocr_analyze.architectures.ocr_family.dimensions import (
    ClipDimensions,
    DecoderDimensions,
    ModelDimensions,
    ProjectorDimensions,
    RelativeDimensions,
    SamDimensions,
)
from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.costs.sections import Expansion, Section
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.figures import PageFigures, StageFigures
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.module_tree import FoldedNode, TreeNode, build_tree, fold
from dsocr_analyze.running.building import building
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.trace.by_module import traced_modules
from dsocr_analyze.trace.passes import PassTraces
from dsocr_analyze.trace.summary import stage_figures
from dsocr_analyze.workload import Workload, parse_page

__all__ = [
    "Facts",
    "below_model",
    "config_value",
    "count",
    "kernels_of",
    "published_facts",
    "tensor",
]

_META: Final = torch.device("meta")


class Facts:
    """The reference model of an architecture with one config, and the stated page.

    Args:
        architecture: The architecture.
        config: Values to use instead of the published `config.json`; None for the published ones.
    """

    def __init__(
        self, architecture: Architecture = DEFAULT, config: dict[str, Any] | None = None
    ) -> None:
        directory = ModelDirectory.read(architecture.reference)
        if config is not None:
            directory = directory.with_config(config)
        self.architecture = architecture
        # Raises an error for a wrong config before anything runs.
        self.dimensions: RelativeDimensions = architecture.forms.dimensions(
            directory.config, directory.code
        )
        self.session = DeepSeekOCRSession.from_directory(directory)
        self.is_published = config is None
        self.sam: SamDimensions = self.dimensions.sam
        self.projector: ProjectorDimensions = self.dimensions.projector
        self.decoder: DecoderDimensions = self.dimensions.decoder
        self.workload: Workload = architecture.plan(page=parse_page("a4"), max_new_tokens=2)
        self.config: Any = self.session.model.config
        self.model_name = architecture.title if config is None else "the given config"

    @property
    def clip(self) -> ClipDimensions:
        """The CLIP encoder, for relatives that have one."""
        assert isinstance(self.dimensions, ModelDimensions)
        return self.dimensions.clip

    @property
    def published(self) -> Facts:
        """The facts of the same architecture's published config."""
        return self if self.is_published else published_facts(self.architecture.name)

    # the model

    @cached_property
    def traces(self) -> PassTraces:
        """Prefill pass and one decode step of the whole model over the stated page."""
        return self.session.trace(self.workload)

    @cached_property
    def tree(self) -> TreeNode:
        """The model's module tree with the figures of the trace."""
        return build_tree(
            self.session.model,
            self.session.architecture.owner_of,
            traced_modules(self.traces.prefill),
        )

    @cached_property
    def folded(self) -> FoldedNode:
        """The same tree with repeated layers folded."""
        return fold(self.tree)

    @cached_property
    def traced_stages(self) -> dict[str, StageFigures]:
        """Figures of each stage for the stated page, from the trace."""
        session = self.session
        return stage_figures(self.traces, session.architecture.stages, session.own_params)

    def get(self, name: str) -> Any:
        """A class or function by name, from the model's own files or else those it builds on."""
        for module in self._files:
            found = getattr(module, name, None)
            if found is not None:
                return found
        raise KeyError(name)

    @cached_property
    def _files(self) -> list[types.ModuleType]:
        """The model's own files, then those it builds on."""
        classes = takewhile(
            lambda each: not each.__module__.startswith("transformers."),
            type(self.session.model).__mro__,
        )
        packages = dict.fromkeys(each.__module__.rpartition(".")[0] for each in classes)
        return [module for package in packages for module in _modules_in(package)]

    def class_at(self, path: str) -> type[torch.nn.Module]:
        """The class of the module at `path`."""
        return type(self.at(path))

    @property
    def model_class(self) -> str:
        """Class name of the model without its head."""
        return self.class_at("model").__name__

    @property
    def whole_class(self) -> str:
        """Class name of the whole model."""
        return self.class_at("").__name__

    @property
    def second_encoder(self) -> str:
        """Class name of the vision stage that follows SAM."""
        return self.class_at(self.architecture.stages[1].prefixes[0]).__name__

    def alike(self, below: str = "") -> Callable[[str], str | None]:
        """Function that groups repeated modules by path below `below`; see `Architecture.repeats`."""
        repeats = self.architecture.forms.repeats(self.dimensions)

        def name(path: str) -> str | None:
            return repeats(".".join(part for part in (below, path) if part))

        return name

    def default(self, name: str, parameter: str) -> Any:
        """Default of a constructor's parameter."""
        return inspect.signature(self.get(name).__init__).parameters[parameter].default

    @property
    def channels(self) -> int:
        """Channels of a view."""
        convolution = self.at("model.sam_model.patch_embed.proj")
        assert isinstance(convolution, torch.nn.Conv2d)
        return convolution.in_channels

    def make(self, name: str, *args: Any, **kwargs: Any) -> torch.nn.Module:
        """An instance of one of the model's classes, on `meta`, in evaluation mode."""
        with building(_META, torch.bfloat16):
            module: torch.nn.Module = self.get(name)(*args, **kwargs)
            tie_weights = getattr(module, "tie_weights", None)
            if callable(tie_weights):  # part of the initialisation that `building` leaves out
                tie_weights()
        return module.eval()

    def whole_model(self) -> Any:
        """The model; a fresh one if it would keep rotary tables from an earlier pass."""
        if not self.decoder.use_mla:
            return self.session.model
        return DeepSeekOCRSession.from_directory(self.session.loaded.directory).model

    def at(self, path: str) -> torch.nn.Module:
        """The model's module at `path`."""
        return self.session.model.get_submodule(path)

    def config_with(self, attention: str = "eager", **changes: Any) -> Any:
        """The model's config with other values for some keys."""
        values = {**self.session.loaded.directory.config, **changes}
        return type(self.config).from_dict(values, attn_implementation=attention)

    def cache(self, layers: int, past: int) -> Any:
        """A cache of `past` positions for the model's eager attention; empty if 0."""
        decoder = self.decoder
        if decoder.use_mla:
            sizes = (1, decoder.qk_rope_head_dim), (1, decoder.kv_lora_rank)
        else:
            sizes = ((decoder.kv_heads, decoder.head_dim),) * 2
        pair = tuple(tensor(1, heads, past, size) for heads, size in sizes)
        return self.get("KeyValueCache")([pair] * layers if past else [])

    def defaults(self) -> dict[str, Any]:
        """Defaults of the decoder's config class."""
        found = type(self.config)()
        return {key: getattr(found, key) for key in vars(found)}

    @staticmethod
    def ids(T: int) -> torch.Tensor:
        """Token ids `[1, T]`."""
        return torch.zeros(1, T, dtype=torch.long, device=_META)

    @staticmethod
    def positions(T: int) -> torch.Tensor:
        """Positions `[1, T]`."""
        return torch.arange(T, device=_META)[None]

    # closed forms

    @cached_property
    def analytic(self) -> PageFigures:
        """Figures of the stated page from the closed forms."""
        return page_figures(self.session.loaded.directory, self.workload)

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes cached per token, over all layers."""
        return self.analytic.memory.prefill_cache_bytes // self.tokens

    def layer_kernels(self, index: int, T: int, cached: int) -> ModuleKernels:
        """Kernels of layer `index` on T new tokens over `cached` ones."""
        path = f"model.layers.{index}"
        return next(s for s in self._sections(T, cached) if path in s.paths).modules

    def decoder_kernels(self, T: int, cached: int, *, overwrites: bool = False) -> Kernels:
        """Kernels of embedding, layers, norm and head, with their paths."""
        return kernels_of(self._sections(T, cached, overwrites=overwrites))

    def _sections(self, T: int, cached: int, *, overwrites: bool = False) -> list[Section]:
        return decoder_sections(
            1,
            T,
            cached,
            self.decoder,
            BFLOAT16,
            flash=False,
            overwrites=overwrites,
        )

    # numbers of the stated page

    @property
    def tokens(self) -> int:
        """Length of the stated prompt."""
        return self.workload.seq_len

    def sam_grid(self, resolution: int) -> int:
        """Patches per side of a view in SAM's blocks."""
        return resolution // self.sam.patch

    def token_side(self, resolution: int) -> int:
        """Tokens per side of SAM's output: its patches after two stride-2 convolutions."""
        grid = self.sam_grid(resolution)
        for _ in self.sam.downsample_channels:
            grid = (grid - 1) // 2 + 1
        return grid

    @property
    def views(self) -> list[tuple[str, int, int]]:
        """Vision calls of the stated page: label, views, pixels per side; the global view first."""
        whole = self.workload.global_view
        found = [("global view", whole.count, whole.resolution)]
        local = self.workload.local_views
        if local is not None:
            found.append(("local views", local.count, local.resolution))
        return found

    @property
    def steps(self) -> list[tuple[str, int, int]]:
        """Decoder passes of the stated page: label, new tokens, keys."""
        return [("prefill", self.tokens, self.tokens), ("decode step", 1, self.tokens + 1)]

    def hidden(self, T: int) -> torch.Tensor:
        """Features of T tokens, `[1, T, d]`."""
        return tensor(1, T, self.decoder.hidden_size)

    def mask(self, T: int, K: int) -> torch.Tensor | None:
        """The mask `[1, 1, T, K]` passed to a layer; None if there is none."""
        return tensor(1, 1, T, K) if self.decoder.masks_steps or T > 1 else None

    @cached_property
    def workload_text(self) -> str:
        """The stated workload in a sentence."""
        work = self.workload
        views = " and ".join(
            f"{n} view{'s' if n > 1 else ''} of {count(r)} x {count(r)} pixels"
            for _, n, r in self.views
        )
        return (
            f"an A4 page of {work.page[0]} x {work.page[1]} pixels in crop mode"
            f" ({work.base_size} / {work.image_size}): {views}, {count(work.visual_tokens)} visual"
            f" and {work.text_tokens} text tokens, so {count(work.seq_len)} tokens in the prefill"
            f" pass; a decode step adds one token over a cache of {count(work.seq_len)}; batch"
            f" {work.batch_size}, bf16, eager attention"
        )


@cache
def published_facts(architecture: str) -> Facts:
    """The facts of an architecture's published config."""
    return Facts(architecture_named(architecture))


def _modules_in(package: str) -> list[types.ModuleType]:
    """The imported modules that lie in a package itself, not in one below."""
    within = f"{package}."
    return [
        module
        for name, module in tuple(sys.modules.items())
        if name.startswith(within) and "." not in name[len(within) :]
    ]


def kernels_of(sections: Iterable[Section]) -> Kernels:
    """Kernels of all modules of the sections, with their paths."""
    expansion = Expansion()
    expansion.add(sections)
    return tuple(expansion.kernels)


def below_model(kernels: Iterable[Kernel]) -> Kernels:
    """Kernels of `model` and everything below it, without the head and the cast of its logits."""
    return tuple(kernel for kernel in kernels if kernel.path.partition(".")[0] == "model")


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor on `meta`."""
    return torch.empty(shape, dtype=dtype, device=_META)


def count(number: int) -> str:
    """A number with thousands separators."""
    return f"{number:,}"


def config_value(config: Any, key: str) -> Any:
    """Value of a config key as it would be in the file; None if missing."""
    value = getattr(config, key, None)
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
