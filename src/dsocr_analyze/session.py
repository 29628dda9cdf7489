"""A session: from a loaded model and a workload to figures and a report."""

import datetime as dt
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final, Self

import torch

from dsocr_analyze.agreement import Agreement, compare
from dsocr_analyze.analytic import UNIFORM_ROUTING_NOTE, page_figures
from dsocr_analyze.architectures import (
    DEFAULT,
    ImagePath,
    PageRequest,
    PageSize,
    described_architecture,
)
from dsocr_analyze.architectures.architecture import Architecture, CacheStep, ModelDimensions
from dsocr_analyze.errors import ConfigError, DeviceError, WorkloadError
from dsocr_analyze.figures import (
    MemoryFigures,
    PageFigures,
    Parameters,
    Provenance,
)
from dsocr_analyze.kernels import dtype_named, total_work
from dsocr_analyze.model.described_model import FLASH_ATTENTION
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import RING_WINDOW, LoadedModel, load_model
from dsocr_analyze.model.process_settings import exclusive
from dsocr_analyze.report.document import Report, build_report
from dsocr_analyze.trace.passes import (
    PassTraces,
    batch_work,
    causal_savable_flops,
    count_experts,
    growing_work,
    ledger_of,
    linear_stretches,
    stage_figures,
    trace_passes,
)
from dsocr_analyze.version import VERSION
from dsocr_analyze.workload import AnyWorkload, PageWorkload, step_stretches

LARGEST_TRACED_BATCH: Final = 1024
"""The vision stages of so many pages take about a minute."""

_CHECKPOINTS_ROUTING_NOTE: Final = (
    "MoE routing is the checkpoint's, computed on {}; FLOPs do not depend on it, but bytes of"
    " expert weights and calls of experts do; the batch assumes that every decode step reads as"
    " many experts as the first. experts_touched compares the experts it chose (counted) with those"
    " of an even split (even)"
)

Announce = Callable[[str], None]


class DeepSeekOCRSession:
    """A loaded model, and what it costs, from any thread.

    Only one model per process is built or run at a time; other threads wait. Don't use the model
    while a session runs it.

    >>> session = DeepSeekOCRSession.from_local()          # the built-in reference, on meta
    >>> report = session.analyze(page=(1191, 1684))
    >>> report.total.matrix_flops
    4568380069376
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.dtype = dtype_named(str(loaded.dtype).removeprefix("torch."))
        """Type of weights and activations."""
        self._dimensions = _dimensions_of(loaded.directory)

    @classmethod
    def from_local(
        cls,
        path: str | Path | None = None,
        *,
        device: str = "meta",
        dtype: str = "bfloat16",
        flash_attention: bool = False,
        trust_remote_code: bool = False,
        config: Mapping[str, Any] | None = None,
        stages: str | Path | None = None,
    ) -> Self:
        """Loads the model in `path`, or the built-in reference.

        Args:
            path: A model directory.
            device: `meta`, `cpu` or `cuda:N`.
            dtype: `bfloat16`, `float16` or `float32`.
            flash_attention: Build the decoder with FlashAttention-2.
            trust_remote_code: Execute the directory's Python files without a trust record.
            config: Replaces the directory's `config.json`.
            stages: A stages file, which describes a model of no known architecture.

        Raises:
            AnalyzeError: A subclass names what is wrong with an argument or the directory.
        """
        described = None if stages is None else described_architecture(Path(stages))
        directory = ModelDirectory.read(Path(path or DEFAULT.reference), described)
        return cls.from_directory(
            directory if config is None else directory.with_config(config),
            device=device,
            dtype=dtype,
            flash_attention=flash_attention,
            trust_remote_code=trust_remote_code,
        )

    @classmethod
    def from_directory(
        cls,
        directory: ModelDirectory,
        *,
        device: str = "meta",
        dtype: str = "bfloat16",
        flash_attention: bool = False,
        random_weights: bool = False,
        trust_remote_code: bool = False,
    ) -> Self:
        """Loads the model of a directory; the rest is as in `from_local`.

        With `random_weights`, the directory's checkpoint is not loaded.
        """
        directory.config_findings.check_traced(directory.code)
        directory.check_values()
        torch_device = parse_device(device)
        dimensions = _dimensions_of(directory)
        if flash_attention:
            _require_flash_attention(torch_device)
            if dimensions is not None and directory.code != "other":
                directory.architecture.forms.model.check_flash(dimensions)
        window = None if dimensions is None else dimensions.decoder.sliding_window
        return cls(
            load_model(
                directory,
                device=torch_device,
                dtype=getattr(torch, dtype_named(dtype).name),
                flash_attention=flash_attention,
                sliding_window=window,
                random_weights=random_weights,
                trust_remote_code=trust_remote_code,
            )
        )

    @classmethod
    def from_module(cls, module: torch.nn.Module) -> Self:
        """A session over a model that is built: a known architecture's, or a subclass of it.

        It runs as it is, where it is. Its config says which architecture calls it and evaluates
        closed forms beside the trace; the report warns where these differ. A sliding window is
        switched on in the config, as the model's own `infer()` does.

        Raises:
            ConfigError: It has no config, or one of no known architecture, or is a part of a model.
            DeviceError: Its parameters are on several devices, or of a type that is not counted.
        """
        config: Any = getattr(module, "config", None)
        if not hasattr(config, "to_diff_dict"):
            raise ConfigError(
                f"{type(module).__name__} is no model with a config of transformers; count(module,"
                " *inputs) counts any torch.nn.Module"
            )
        placed = {(each.device, each.dtype) for each in module.parameters()}
        if len(placed) != 1:
            told = ", ".join(sorted(f"{dtype} on {device}" for device, dtype in placed))
            raise DeviceError(f"the module's parameters are {told or 'missing'}; give one of each")
        [(device, dtype)] = placed
        dtype_named(str(dtype).removeprefix("torch."))
        values = {key: each for key, each in config.to_diff_dict().items() if key != RING_WINDOW}
        directory = ModelDirectory(Path(type(module).__name__), values, {})
        if directory.recognized is None:
            raise ConfigError(
                f"{type(module).__name__} is of no known architecture: its config's model_type is"
                f" {config.model_type!r}; count(module, *inputs) counts any torch.nn.Module"
            )
        known = directory.architecture
        if not any(known.owner_of(name) for name, _ in module.named_parameters()):
            paths = ", ".join(prefix for stage in known.stages for prefix in stage.prefixes)
            raise ConfigError(
                f"{type(module).__name__} has no parameters of {known.name}, which are in {paths};"
                " give the whole model, not a part of it and nothing that wraps it"
            )
        attention = getattr(config, "_attn_implementation", None) or "eager"
        has_weights, dimensions = device.type != "meta", _dimensions_of(directory)
        window = None if dimensions is None else dimensions.decoder.sliding_window
        return cls(LoadedModel(module, directory, device, dtype, attention, has_weights, window))

    @property
    def model(self) -> torch.nn.Module:
        """The model itself."""
        return self.loaded.module

    @cached_property
    def architecture(self) -> Architecture:
        """The architecture of the directory's config."""
        return self.loaded.directory.architecture

    @property
    def parameters(self) -> Parameters:
        """The model's parameters, each counted once."""
        return self._counted[0]

    @property
    def own_params(self) -> Mapping[str, Mapping[str, int]]:
        """Parameters by stage and by the module that holds them first."""
        return self._counted[1]

    @cached_property
    def _counted(self) -> tuple[Parameters, Mapping[str, Mapping[str, int]], int]:
        """The parameters, those of each stage, and the bytes of all."""
        own: dict[str, dict[str, int]] = {name: {} for name in self.architecture.stage_names}
        unassigned: dict[str, int] = {}
        total = nbytes = 0
        with exclusive():  # another thread may have modified the model while running it
            for name, each in self.loaded.module.named_parameters():
                elements, owner = each.numel(), self.architecture.owner_of(name)
                total += elements
                nbytes += elements * each.element_size()
                if owner is None:
                    unassigned[name] = elements
                else:
                    path = name.rpartition(".")[0]
                    own[owner][path] = own[owner].get(path, 0) + elements
        return Parameters(total, unassigned), own, nbytes

    @cached_property
    def module_classes(self) -> Mapping[str, str]:
        """Class of every module by path, a shared one under each of its paths."""
        with exclusive():
            named = self.loaded.module.named_modules(remove_duplicate=False)
            return {path: type(module).__name__ for path, module in named}

    def plan(
        self,
        *,
        page: PageSize | None = None,
        image: ImagePath | None = None,
        mode: str | None = None,
        base_size: int | None = None,
        image_size: int | None = None,
        crop_mode: bool | None = None,
        text_tokens: int | None = None,
        seq_len: int | None = None,
        batch_size: int | None = None,
        max_new_tokens: int | None = None,
        prompt_pages: int | None = None,
    ) -> AnyWorkload:
        """The workload of a page on this model; arguments and errors are those of `plan_workload`.

        A model described by a stages file takes `seq_len`, `batch_size` and `max_new_tokens`.
        """
        return PageRequest(
            architecture=self.architecture, page=page, image=image, mode=mode, base_size=base_size,
            image_size=image_size, crop_mode=crop_mode, text_tokens=text_tokens, seq_len=seq_len,
            batch_size=batch_size, max_new_tokens=max_new_tokens, prompt_pages=prompt_pages,
        ).workload  # fmt: skip

    def trace(self, workload: AnyWorkload, *, on_progress: Announce = lambda _: None) -> PassTraces:
        """Runs the workload's passes; raises WorkloadError for a large batch."""
        sizes = None if self.loaded.directory.code == "other" else self._dimensions
        trace = partial(
            trace_passes,
            self.loaded,
            workload,
            self.architecture,
            repeats=None if sizes is None else self.architecture.forms.model.repeats(sizes),
            on_progress=on_progress,
        )
        routed_expert = self.architecture.routed_expert
        if not isinstance(workload, PageWorkload):
            # A model that declares no stretches shows them by steps that run.
            steps = range(workload.max_new_tokens - 1)
            return trace(
                explore=lambda run: linear_stretches(
                    steps, lambda number: growing_work(run(number), routed_expert)
                )
            )
        if workload.pages > LARGEST_TRACED_BATCH:
            raise WorkloadError(
                f"a batch of {workload.pages} pages is too large to trace, as the vision stages"
                f" run page by page; give at most {LARGEST_TRACED_BATCH}, or use"
                " the analytic engine",
                arguments=["batch_size", "the analytic engine"],
            )
        cuts = () if self._dimensions is None else self._dimensions.step_cuts(workload.seq_len)
        stretches = step_stretches(workload.max_new_tokens, cuts)
        # The second of a stretch shows how a step grows with the cache.
        numbers = {0}.union(*map(itemgetter(slice(2)), stretches))
        if self.architecture.generate is not None:
            numbers.add(1)  # which `generate` runs, however few tokens are asked for
        is_growing = bool(stretches) and len(stretches[0]) > 1  # later ones may overwrite a window
        is_eager = self.loaded.attention == "eager" and self.architecture.generate is None
        traces = trace(step_numbers=sorted(numbers), with_longer_step=is_eager and not is_growing)
        return replace(traces, stretches=stretches)

    def figures(
        self, workload: AnyWorkload, *, on_progress: Announce = lambda _: None
    ) -> tuple[PageFigures, Agreement | None]:
        """A workload's traced figures, and how the closed forms agree with them.

        A warning says why a directory has none.
        """
        traces = self.trace(workload, on_progress=on_progress)
        on_progress("analytic engine")
        directory, analytic, agreement = self.loaded.directory, None, None
        warnings = [*directory.config_findings.warnings, *self.architecture.warnings_of(workload)]
        if isinstance(workload, PageWorkload):
            try:
                analytic = self.composed(workload)
                warnings = [*analytic.warnings]
            except ConfigError as error:  # of a directory that no closed form describes
                if directory.is_reference:
                    raise
                warnings.append(f"no analytic figures to compare the trace with: {error}")
        traced = self.traced(workload, traces)
        if analytic is not None:
            params = directory.dimensions().decoder.expert_params
            agreement = compare(
                traced, analytic, self.architecture,
                expert_weights_bytes=params * self.dtype.nbytes,
            )  # fmt: skip
            warnings += agreement.warnings
            forms = map(attrgetter("work.flops"), analytic.stages.values())
            forms_by_stage = dict(zip(analytic.stages, forms, strict=True))
            traced = replace(traced, flops_analytic=forms_by_stage)
        for name, calls in traced.ledger.unknown.items():
            warnings.append(f"unknown operator {name}: {calls} calls are not counted")
        notes = self.architecture.notes_of(workload)
        if self._dimensions is not None:
            notes += self._dimensions.notes
        known = self.architecture.closed_forms and self.architecture.routed_expert
        if known or "topk" in traced.ledger.counted:
            given = _CHECKPOINTS_ROUTING_NOTE.format(self.loaded.device)
            notes.append(given if self.loaded.has_weights else UNIFORM_ROUTING_NOTE)
        notes = [*warnings, *notes]
        return replace(traced, warnings=tuple(warnings), notes=tuple(notes)), agreement

    def composed(self, workload: PageWorkload) -> PageFigures:
        """A page's figures by the closed forms; raises ConfigError without any."""
        attention = self.loaded.attention
        if attention not in ("eager", FLASH_ATTENTION):
            raise ConfigError(
                f"the attention of the model that is built is {attention!r}, and closed forms have"
                f" 'eager' and {FLASH_ATTENTION!r}"
            )
        return page_figures(
            self.loaded.directory, workload, dtype=self.dtype.name,
            flash_attention=attention != "eager", provenance=self.provenance,
        )  # fmt: skip

    def analyze(
        self,
        workload: AnyWorkload | None = None,
        *,
        on_progress: Announce = lambda _: None,
        page: PageSize | None = None,
        image: ImagePath | None = None,
        mode: str | None = None,
        base_size: int | None = None,
        image_size: int | None = None,
        crop_mode: bool | None = None,
        text_tokens: int | None = None,
        seq_len: int | None = None,
        batch_size: int | None = None,
        max_new_tokens: int | None = None,
        prompt_pages: int | None = None,
    ) -> Report:
        """Traces a workload and reports on it; the report is what `static_compute.json` holds.

        A `workload` is given, or the arguments of `plan`, from which it is made. `on_progress` is
        called with the name of each step as it starts.

        Raises:
            AnalyzeError: A subclass names what is wrong with an argument.
        """
        request = PageRequest(
            architecture=self.architecture, page=page, image=image, mode=mode, base_size=base_size,
            image_size=image_size, crop_mode=crop_mode, text_tokens=text_tokens, seq_len=seq_len,
            batch_size=batch_size, max_new_tokens=max_new_tokens, prompt_pages=prompt_pages,
        )  # fmt: skip
        if workload is not None and request.given:
            raise WorkloadError(
                f"a workload was given as well as {', '.join(request.given)}; give either the"
                " workload or the arguments to plan it"
            )
        planned = request.workload if workload is None else workload
        figures, agreement = self.figures(planned, on_progress=on_progress)
        return build_report(figures, agreement, dt.datetime.now(dt.UTC))

    def traced(self, workload: AnyWorkload, traces: PassTraces) -> PageFigures:
        """The figures of traced passes, without warnings and notes."""
        architecture, decode = self.architecture, self.architecture.decode
        parameters, own_params, weights_bytes = self._counted
        stages = stage_figures(traces, architecture.stages, own_params)
        in_pass = [*stages.values()][: -1 if decode is not None else None]
        prefill = total_work(map(attrgetter("work"), in_pass))
        causal = sum(map(attrgetter("causal_savable_flops"), in_pass))
        if not isinstance(workload, PageWorkload):
            ran = workload.max_new_tokens > 1
            cache_bytes = traces.step_cache_bytes[-1] if ran else traces.kv_cache_bytes
        else:
            if self.loaded.attention == "eager":
                # It computes every score, then masks: no record says that it is causal.
                causal += causal_savable_flops(traces, workload, architecture.routed_expert)
            touched = {}
            if self._dimensions is not None:
                touched = architecture.forms.experts_touched(self._dimensions, workload, self.dtype)
            for name in touched.keys() & stages.keys():
                counted = count_experts(stages[name], architecture.routed_expert)
                experts = replace(touched[name], counted=counted)
                stages[name] = replace(stages[name], experts=experts)
            per_token, remainder = divmod(traces.kv_cache_bytes, workload.seq_len)
            assert not remainder, "a cache holds every token alike"
            last = CacheStep(workload.seq_len, workload.max_new_tokens, self.loaded.sliding_window)
            cache_bytes = per_token * last.cached_tokens
        return PageFigures(
            workload=workload,
            provenance=self.provenance,
            stages=stages,
            parameters=parameters,
            batch=batch_work(prefill, traces, traces.stretches, architecture.routed_expert),
            causal_savable_flops=causal,
            memory=MemoryFigures(
                weights_bytes=weights_bytes,
                inputs_bytes=traces.inputs_bytes,
                prefill_cache_bytes=traces.kv_cache_bytes,
                kv_cache_bytes=cache_bytes,
                peak=traces.prefill.peak,
            ),
            ledger=ledger_of(traces.prefill, *traces.decode_steps[:1]),
            module_classes=self.module_classes,
            decodes=decode is not None,
        )

    @cached_property
    def provenance(self) -> Provenance:
        """What is traced, and by what."""
        with exclusive():  # another thread may be changing where packages are found
            fvcore, transformers = map(importlib.metadata.version, ("fvcore", "transformers"))
        return Provenance(
            model=self.loaded.directory.source(
                self.architecture.name,
                class_name=type(self.loaded.module).__name__,
                weights="checkpoint" if self.loaded.has_weights else "none",
            ),
            engine="trace",
            device=str(self.loaded.device),
            dtype=self.dtype.name,
            attention=self.loaded.attention,
            versions={
                "tool": VERSION,
                "torch": str(torch.__version__),
                "fvcore": fvcore,
                "transformers": transformers,
            },
        )


def _dimensions_of(directory: ModelDirectory) -> ModelDimensions | None:
    """None for a config that the architecture does not model."""
    with suppress(ConfigError):
        return directory.dimensions()
    return None


def parse_device(name: str, *, computes: bool = False) -> torch.device:
    """The device `meta`, `cpu` or `cuda:N`; one that `computes` is not `meta`.

    Raises DeviceError if there is none.
    """
    kinds = ("cpu",) if computes else ("meta", "cpu")
    kind, _, index = name.partition(":")
    if kind not in (*kinds, "cuda") or (index and not index.isdecimal()):
        wrong = "computes nothing" if computes and name == "meta" else "is unknown"
        raise DeviceError(
            f"device {name!r} {wrong}; use {', '.join(kinds)} or cuda:N", arguments=["device"]
        )
    if kind != "cuda":
        if index:
            raise DeviceError(f"device {name!r} is unknown; use {kind}", arguments=["device"])
        return torch.device(kind)
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= present:
        here = f"{present} here" if present else "no CUDA GPU here"
        raise DeviceError(
            f"device {name!r} does not exist ({here}); use {' or '.join(kinds)}",
            arguments=["device"],
        )
    return torch.device("cuda", int(index or 0))


def _require_flash_attention(device: torch.device) -> None:
    """Raises DeviceError if it cannot run on the device."""
    if device.type == "meta":
        return
    if device.type == "cpu":
        raise DeviceError(
            "flash_attention=True needs a CUDA device or meta: FlashAttention has no CPU kernel;"
            " flash_attention=False runs eager attention",
            arguments=["flash_attention"],
        )
    if importlib.util.find_spec("flash_attn") is None:
        raise DeviceError(
            f"flash_attention=True on {device} needs flash-attn, which is not installed:"
            " pip install 'dsocr-analyze[flash-attn]'; flash_attention=False runs eager attention",
            arguments=["flash_attention"],
        )
