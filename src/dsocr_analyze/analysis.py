"""The analysis: the only place that knows all rooms, from a workload and a model to a report."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import torch

from dsocr_analyze import __version__
from dsocr_analyze.closed_form import dtype_named
from dsocr_analyze.costs import PageCosts, compare_with_trace, page_costs
from dsocr_analyze.errors import ConfigError, DeviceError, WorkloadError
from dsocr_analyze.model.dimensions import ModelDimensions
from dsocr_analyze.model.directory import REFERENCE_DIRECTORY, ModelDirectory
from dsocr_analyze.model.loading import LoadedModel, load_model
from dsocr_analyze.model.stages import ROUTED_EXPERT, STAGES, Stage, owner_of
from dsocr_analyze.report.document import (
    CONVENTIONS,
    SCHEMA_VERSION,
    STAGE_NOTES,
    UNIFORM_ROUTING_NOTE,
    Document,
    counts,
    counts_with_intensity,
    memory,
    model_metadata,
    totals,
)
from dsocr_analyze.trace.operators import RULES
from dsocr_analyze.trace.passes import PassTraces, trace_passes
from dsocr_analyze.trace.summary import ModuleWork, StageSummary, ledger_of, summarize
from dsocr_analyze.work import NO_WORK, Work
from dsocr_analyze.workload import Workload, notes_of, plan_workload, warnings_of

__all__ = ["DeepSeekOCRSession", "Parameters", "parse_device", "parse_dtype"]


LARGEST_TRACED_BATCH: Final = 1024
"""Pages of a batch that are run one by one through the vision stages in a minute or so."""


LARGEST_SHARE_LEFT_OUT: Final = 0.001
"""Part of a stage that may go without a closed form unremarked."""


def parse_device(name: str) -> torch.device:
    """The device called `name`; raises DeviceError where there is none."""
    kind, _, index = name.partition(":")
    if kind not in ("meta", "cpu", "cuda") or (index and not index.isdecimal()):
        raise DeviceError(f"--device {name!r} is unknown; use meta, cpu or cuda:N")
    if kind != "cuda":
        if index:
            raise DeviceError(f"--device {name!r} is unknown; use {kind}")
        return torch.device(kind)
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= present:
        here = f"{present} here" if present else "no CUDA device here"
        raise DeviceError(f"--device {name!r} is not there ({here}); use meta or cpu")
    return torch.device("cuda", int(index or 0))


def parse_dtype(name: str) -> torch.dtype:
    """The floating-point type called `name`; raises DeviceError where it is none."""
    dtype: torch.dtype = getattr(torch, dtype_named(name))
    return dtype


@dataclass(frozen=True)
class Parameters:
    """Parameters of a model by owner, each counted once."""

    total: int
    stages: dict[Stage, int]
    unassigned: dict[str, int]
    by_path: dict[str, tuple[Stage | None, int]]
    """Of every module that owns parameters directly: their stage and number."""

    @classmethod
    def of(cls, module: torch.nn.Module) -> Self:
        """Counts a module's parameters; a shared one belongs to its first name."""
        stages = dict.fromkeys(STAGES, 0)
        unassigned: dict[str, int] = {}
        by_path: dict[str, tuple[Stage | None, int]] = {}
        total = 0
        for name, parameter in module.named_parameters():
            elements = parameter.numel()
            total += elements
            stage = owner_of(name)
            if stage is None:
                unassigned[name] = elements
            else:
                stages[stage] += elements
            path = name.rpartition(".")[0]
            by_path[path] = (stage, by_path.get(path, (stage, 0))[1] + elements)
        return cls(total, stages, unassigned, by_path)

    def under(self, stage: Stage) -> dict[str, int]:
        """Parameters that `stage` owns at or below every path that has some."""
        sums: dict[str, int] = {}
        for path, (owner, elements) in self.by_path.items():
            if owner != stage:
                continue
            parts = path.split(".") if path else []
            for length in range(len(parts) + 1):
                ancestor = ".".join(parts[:length])
                sums[ancestor] = sums.get(ancestor, 0) + elements
        return sums


class DeepSeekOCRSession:
    """A loaded model and what can be asked of it.

    >>> session = DeepSeekOCRSession.from_local()          # the built-in reference, on meta
    >>> report = session.analyze(page=(1191, 1684))
    >>> report["total"]["matrix_flops"]
    4568380069376
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded

    @classmethod
    def from_local(
        cls,
        path: str | Path | None = None,
        *,
        device: str = "meta",
        dtype: str = "bfloat16",
        flash_attention: bool = False,
        trust_remote_code: bool = False,
        config: dict[str, Any] | None = None,
    ) -> Self:
        """Loads the model in `path`, or the built-in reference.

        Args:
            path: A model directory; None for the reference.
            device: `meta`, `cpu` or `cuda:N`.
            dtype: `bfloat16`, `float16` or `float32`.
            flash_attention: Build the decoder with FlashAttention-2.
            trust_remote_code: Execute the directory's Python files without a trust record.
            config: Values in place of the directory's `config.json`.

        Raises:
            AnalyzeError: Its subclasses say what is wrong with an argument or the directory.
        """
        directory = ModelDirectory.read(REFERENCE_DIRECTORY if path is None else Path(path))
        if config is not None:
            directory = replace(
                directory, config={**config, "auto_map": directory.config["auto_map"]}
            )
        return cls.from_directory(
            directory,
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
        trust_remote_code: bool = False,
    ) -> Self:
        """Loads the model of a directory that has been read; arguments as in `from_local`."""
        torch_device = parse_device(device)
        if flash_attention:
            _require_flash_attention(torch_device)
        return cls(
            load_model(
                directory,
                device=torch_device,
                dtype=parse_dtype(dtype),
                flash_attention=flash_attention,
                trust_remote_code=trust_remote_code,
            )
        )

    @property
    def model(self) -> torch.nn.Module:
        """The model: a `DeepseekOCRForCausalLM`."""
        return self.loaded.module

    @cached_property
    def dimensions(self) -> ModelDimensions:
        """The model's dimensions, read from its config."""
        return ModelDimensions.from_config(self.loaded.directory.config)

    @cached_property
    def _classes(self) -> dict[str, str]:
        """Class of every module by path, a shared module's under each of its paths."""
        modules = self.model.named_modules(remove_duplicate=False)
        return {path: type(module).__name__ for path, module in modules}

    @cached_property
    def parameters(self) -> Parameters:
        """The model's parameters by owner."""
        return Parameters.of(self.model)

    def plan(self, **workload: Any) -> Workload:
        """The workload of a page on this model: the arguments of `plan_workload`."""
        return plan_workload(**workload)

    def trace(
        self, workload: Workload, *, on_progress: Callable[[str], None] = lambda _: None
    ) -> PassTraces:
        """Runs the workload's passes under the hooks.

        Raises:
            WorkloadError: The batch is too large to be run page by page.
        """
        if workload.batch_size > LARGEST_TRACED_BATCH:
            raise WorkloadError(
                f"--batch-size {workload.batch_size} is too large to trace, as the vision stages"
                f" run page by page; give at most {LARGEST_TRACED_BATCH}, or --engine analytic"
            )
        # The second step shows by how much a step grows with the cache.
        steps = 2 if workload.max_new_tokens > 2 else 1
        return trace_passes(self.loaded, workload, decode_steps=steps, on_progress=on_progress)

    def analyze(
        self,
        workload: Workload | None = None,
        *,
        on_progress: Callable[[str], None] = lambda _: None,
        **workload_arguments: Any,
    ) -> Document:
        """The report of a workload, traced: the document that `static_compute.json` holds.

        Args:
            workload: What to run; or give the arguments of `plan_workload`.
            on_progress: Told what starts.
            **workload_arguments: Arguments of `plan_workload`, where no workload is given.
        """
        if workload is None:
            workload = plan_workload(**workload_arguments)
        traces = self.trace(workload, on_progress=on_progress)
        stages = summarize(traces, self._classes)
        ledger = ledger_of(traces.prefill, traces.decode_steps[0])
        prefill_pass = _sum(summary.work for stage, summary in stages.items() if stage != "decode")
        decode = stages["decode"].work
        page = _page_work(prefill_pass, traces, decode, workload.max_new_tokens)
        on_progress("closed forms")
        costs, warnings = self._closed_forms(workload)
        agreement = None
        if costs is not None:
            agreement = _agreement_document(
                costs,
                traces,
                stages,
                self.parameters.stages,
                page,
                warnings,
                has_weights=self.loaded.has_weights,
            )
        warnings += [
            f"unknown operator {name}: {calls} calls are not counted"
            for name, calls in ledger["unknown"].items()
        ]
        causal = stages["prefill"].causal_savable_flops
        if costs is not None and self.loaded.attention == "eager":
            # Eager attention masks what it has computed; only the config tells that it is causal.
            causal = costs.causal_savable_flops
        return {
            "schema_version": SCHEMA_VERSION,
            "metadata": self._metadata(),
            "workload": workload.as_dict(),
            "total": totals(workload, self.parameters.total, prefill_pass, decode, page, causal),
            "stages": {
                stage: {
                    **self._stage_document(stage, summary),
                    "causal_savable_flops": causal if stage == "prefill" else 0,
                    "flops_analytic": None if costs is None else costs.stages[stage].work.flops,
                }
                for stage, summary in stages.items()
            },
            "unassigned": {
                "params": sum(self.parameters.unassigned.values()),
                "names": list(self.parameters.unassigned),
            },
            "memory": self._memory(workload, traces),
            "agreement": agreement,
            "operator_ledger": ledger,
            "warnings": warnings,
            "notes": [*warnings, *notes_of(workload), *self._notes()],
        }

    def _closed_forms(self, workload: Workload) -> tuple[PageCosts | None, list[str]]:
        """The closed forms of a workload, and why it or they may be in doubt.

        A model directory may describe what has no closed form: its trace stands alone then.
        """
        try:
            dimensions = self.dimensions
            costs = page_costs(
                dimensions,
                workload,
                element_bytes=self.loaded.dtype.itemsize,
                flash_attention=self.loaded.attention != "eager",
            )
        except ConfigError as error:
            if self.loaded.directory.is_reference:
                raise
            return None, [f"no closed forms to compare the trace with: {error}"]
        return costs, warnings_of(workload, dimensions.decoder.max_position_embeddings)

    def _stage_document(self, stage: Stage, summary: StageSummary) -> Document:
        classes = self._classes
        params = self.parameters.under(stage)
        return {
            "params": self.parameters.stages[stage],
            "calls": summary.calls,
            **counts_with_intensity(summary.work),
            "operators": {name: work.flops for name, work in summary.operators.items()},
            "operator_families": _family_documents(summary.operators),
            "by_module": {
                path or classes[""]: _module_document(classes[path], params.get(path, 0), work)
                for path, work in summary.modules.items()
            },
            "notes": list(STAGE_NOTES.get(stage, [])),
        }

    def _memory(self, workload: Workload, traces: PassTraces) -> Document:
        held, remainder = divmod(traces.kv_cache_bytes, workload.seq_len)
        assert not remainder, "a cache holds every token alike"
        return memory(
            workload,
            _name(self.loaded.dtype),
            weights_bytes=self.parameters.total * self.loaded.dtype.itemsize,
            kv_cache_bytes=held * (workload.seq_len + workload.max_new_tokens - 1),
            peak_bytes=traces.prefill.peak_bytes,
        )

    def _metadata(self) -> Document:
        directory = self.loaded.directory
        return {
            "model": {
                **model_metadata(directory),
                "class": type(self.model).__name__,
                "weights": "checkpoint" if self.loaded.has_weights else "none",
            },
            "versions": {
                "tool": __version__,
                "torch": torch.__version__,
                "fvcore": importlib.metadata.version("fvcore"),
                "transformers": importlib.metadata.version("transformers"),
            },
            "engine": "trace",
            "device": str(self.loaded.device),
            "dtype": _name(self.loaded.dtype),
            "attention": self.loaded.attention,
            "conventions": list(CONVENTIONS),
            "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        }

    def _notes(self) -> list[str]:
        if not self.loaded.has_weights:
            return [UNIFORM_ROUTING_NOTE]
        return [
            f"MoE routing is the checkpoint's, computed on {self.loaded.device}; FLOPs do not"
            " depend on it, bytes of expert weights and calls of experts do; the page takes every"
            " decode step to read as many experts as the first"
        ]


def _agreement_document(
    costs: PageCosts,
    traces: PassTraces,
    stages: dict[Stage, StageSummary],
    params: dict[Stage, int],
    page: Work,
    warnings: list[str],
    *,
    has_weights: bool,
) -> Document:
    """How trace and closed forms compare; a disagreement is added to `warnings`."""
    found = compare_with_trace(
        costs,
        {stage: summary.operators_by_path for stage, summary in stages.items()},
        params=params,
        kv_cache_bytes=traces.kv_cache_bytes,
    )
    left_out = [
        {
            "stage": stage,
            "modules": left.entry.modules,
            "operators": sorted(left.entry.operators),
            "reason": left.entry.reason,
            **counts(left.work),
        }
        for stage, agreement in found.stages.items()
        for left in agreement.left_out
    ]
    # A checkpoint's routing reads other experts than the uniform one, and other ones each step.
    compared = Work._fields[:3] if has_weights else Work._fields
    differing = [name for name in compared if getattr(page, name) != getattr(costs.page, name)]
    # Pages whose operators are partly left out are not summed by the closed forms either.
    page_agrees = None if left_out else not differing
    shares = {
        stage: {"vector_flops": each.vector_flops_left_out, "bytes": each.bytes_left_out}
        for stage, each in found.stages.items()
        if each.left_out
    }
    warnings += [
        f"operators without a closed form are {share:.2%} of the {quantity} of stage {stage}"
        for stage, by_quantity in shares.items()
        for quantity, share in by_quantity.items()
        if share > LARGEST_SHARE_LEFT_OUT
    ]
    if found.warning is not None:
        warnings.append(found.warning)
    elif page_agrees is False:
        warnings.append(
            f"trace and closed forms disagree; {differing[0]} of the page is"
            f" {getattr(page, differing[0])} traced"
            f" and {getattr(costs.page, differing[0])} by the closed forms"
        )
    return {
        "agrees": found.agrees and page_agrees is not False,
        "stages": {stage: dict(each.agrees) for stage, each in found.stages.items()},
        "kv_cache_bytes": found.cache_agrees,
        "page": page_agrees,
        "first_difference": None if found.difference is None else str(found.difference),
        "not_modelled": left_out,
        "not_modelled_share": shares,
        "peak_activation_bytes": {
            "traced": traces.prefill.peak_bytes,
            "analytic": costs.peak_activation_bytes,
        },
    }


def _module_document(class_name: str, params: int, module: ModuleWork) -> Document:
    document = {"class": class_name, "calls": module.calls, "params": params}
    document.update(counts(module.total))
    if module.own != module.total:
        document["own"] = counts(module.own)
    return document


def _family_documents(operators: dict[str, Work]) -> Document:
    """Each operator family with its operators, FLOPs and bytes, the costliest first."""
    families: dict[str, Work] = {}
    members: dict[str, list[str]] = {}
    for name, work in operators.items():
        family = RULES[name].family
        families[family] = families.get(family, NO_WORK).plus(work)
        members.setdefault(family, []).append(name)
    ordered = sorted(families.items(), key=lambda item: (-item[1].flops, item[0]))
    return {
        family: {
            "operators": members[family],
            "flops": work.flops,
            "bytes": work.bytes_read + work.bytes_written,
        }
        for family, work in ordered
    }


def _page_work(prefill: Work, traces: PassTraces, decode: Work, new_tokens: int) -> Work:
    """The prefill pass and `new_tokens - 1` decode steps, each over one cached token more.

    Every operator of a step either ignores the cache or is linear in its length, so step i costs
    the first step plus i times the difference between the second and the first. Routed experts
    ignore it; which of them run differs from step to step by the routing alone.
    """
    steps = new_tokens - 1
    page = prefill.plus(decode.times(steps))
    if steps > 1:
        first, second = (
            _sum(e.work for e in trace.entries if not ROUTED_EXPERT.fullmatch(e.path))
            for trace in traces.decode_steps
        )
        growth = second.minus(first)
        page = page.plus(growth.times(steps * (steps - 1) // 2))
    return page


def _sum(works: Iterable[Work]) -> Work:
    total = NO_WORK
    for work in works:
        total = total.plus(work)
    return total


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _require_flash_attention(device: torch.device) -> None:
    if device.type == "meta":
        return
    if device.type == "cpu":
        raise DeviceError(
            "--use-flash-attn 1 needs a CUDA device or meta: FlashAttention has no CPU kernel;"
            " --use-flash-attn 0 runs eager attention"
        )
    if importlib.util.find_spec("flash_attn") is None:
        raise DeviceError(
            f"--use-flash-attn 1 on {device} needs flash-attn, which is not installed:"
            " pip install 'dsocr-analyze[flash-attn]'; --use-flash-attn 0 runs eager attention"
        )
