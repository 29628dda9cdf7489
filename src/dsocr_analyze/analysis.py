"""The one door: engines that count a page, and the library's functions, which go through them."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dsocr_analyze.architectures import (
    DEFAULT,
    DEFAULT_PAGE,
    ImagePath,
    PageRequest,
    PageSize,
    architecture_named,
    architecture_of,
    foreign_model,
    recognized_architecture,
)
from dsocr_analyze.errors import (
    AnalyzeError,
    ConfigError,
    DeviceError,
    ExtraError,
    WorkloadError,
)
from dsocr_analyze.extras import require_trace
from dsocr_analyze.forking import NUMPY_THREADS, ONE_THREAD, importing
from dsocr_analyze.interruption import deferred
from dsocr_analyze.kernels import dtype_named
from dsocr_analyze.model.directory import ModelDirectory, read_config
from dsocr_analyze.workload import PageWorkload

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.archive.combinations import Names, Numbers, Pages, SweepRows, Switches
    from dsocr_analyze.report.comparison import ComparisonDocument
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.session import Announce, DeepSeekOCRSession
    from dsocr_analyze.timing import TimeEntry
    from dsocr_analyze.timing.assumptions import Assumptions
    from dsocr_analyze.timing.predict import TimeRequest


@dataclass(frozen=True, eq=False)
class Engine:
    """Answers requests about one model, from Python and the command line.

    Attributes:
        device: Where a trace runs the model.
        trust_remote_code: Whether a trace may execute the directory's code without a trust record.
        time: Predictions to add to every report.
        announced: Makes what is called with the name of each step of a trace as it starts.
        with_modules: Whether analytic reports have their stages' modules.
    """

    directory: ModelDirectory
    device: str = "meta"
    trust_remote_code: bool = False
    time: TimeRequest | None = None
    announced: Callable[[], AbstractContextManager[Announce]] = lambda: nullcontext(lambda _: None)
    with_modules: bool = True
    _sessions: dict[tuple[str, bool], DeepSeekOCRSession] = field(default_factory=dict)

    def report(self, asked: PageRequest) -> Report:
        """The report, with the predictions; raises AnalyzeError."""
        # Both engines give equal records, so the tape's are timed for either; and they are timed
        # first, so that errors show before a long trace.
        entries = () if self.time is None else self.entries(asked)
        untraceable = self.directory.untraceable if asked.engine == "trace" else ""
        if asked.engine == "trace" and not untraceable:
            with self.announced() as announce:
                announce("importing torch, building the model")
                report = self.session(asked).analyze(asked.workload, on_progress=announce)
        else:
            with importing():
                from dsocr_analyze.analytic import page_figures
                from dsocr_analyze.report.document import build_report

            self.directory.dimensions()  # raises ConfigError for a model that reads no pages
            figures = page_figures(
                self.directory, asked.workload_of_page, dtype=asked.dtype,
                flash_attention=asked.flash_attention,
            )  # fmt: skip
            if untraceable:
                figures = replace(figures, notes=(*figures.notes, untraceable))
            report = build_report(
                figures, None, dt.datetime.now(dt.UTC), with_modules=self.with_modules
            )
        return msgspec.structs.replace(report, time=entries)

    def entries(
        self, asked: PageRequest, leave_out: Callable[[str, DeviceError], None] | None = None
    ) -> tuple[TimeEntry, ...]:
        """The predictions by GPU and runtime.

        If a GPU lacks a data type, `leave_out` is called with its title and the reason.

        Raises:
            DeviceError: A GPU lacks a data type, without `leave_out`.
            ConfigError: The model has neither a forward on the tape nor a decode step to trace.
        """
        if self.time is None:
            return ()
        from dsocr_analyze.timing.predict import predict
        from dsocr_analyze.timing.serving import TimedModel

        architecture, dimensions, page, jobs = self.priced(asked, self.time.jobs)
        found = []
        for device in self.time.profiles:
            model = TimedModel(
                architecture, dimensions, dtype_named(asked.dtype), asked.flash_attention, device
            )
            for job in jobs:
                try:
                    found.append(predict(model, page, job, self.time.concurrency))
                except DeviceError as error:
                    if leave_out is None:
                        raise
                    leave_out(device.gpu.title, error)
        return tuple(found)

    def priced(
        self, asked: PageRequest, jobs: Sequence[Assumptions] = ()
    ) -> tuple[Architecture, Any, PageWorkload, Sequence[Assumptions]]:
        """Architecture, dimensions and page whose seconds or memory are predicted, and jobs.

        A described model is traced when figures are asked for; see `traced_model`. Its jobs do not
        estimate the CPU's work.
        """
        workload = asked.workload
        if isinstance(workload, PageWorkload):
            return self.directory.architecture, self.directory.dimensions(), workload, jobs
        on_meta = self if self.device == "meta" else replace(self, device="meta", _sessions={})
        session = on_meta.session(asked)
        from dsocr_analyze.traced_forms import traced_model

        return traced_model(session, workload, jobs)

    def session(self, asked: PageRequest) -> DeepSeekOCRSession:
        """The model in the type and attention that are asked for, loaded on first use."""
        way = asked.dtype, asked.flash_attention
        if way not in self._sessions:
            self.directory.check_values()  # raises before torch is imported
            start_torch()
            with importing():
                from dsocr_analyze.session import DeepSeekOCRSession

            self._sessions[way] = DeepSeekOCRSession.from_directory(
                self.directory, device=self.device, dtype=asked.dtype,
                flash_attention=asked.flash_attention, trust_remote_code=self.trust_remote_code,
            )  # fmt: skip
        return self._sessions[way]


def start_torch() -> None:
    """Imports torch with interrupts held back, since one would abort the process.

    Raises:
        ExtraError: What runs models is not installed, or torch is broken.
        AnalyzeError: The current folder was removed, which would abort the process, too.
    """
    require_trace()
    try:
        Path.cwd()
    except OSError:
        raise AnalyzeError("the current folder has been removed; change to another one") from None
    if os.environ.get(NUMPY_THREADS) == ONE_THREAD:
        del os.environ[NUMPY_THREADS]  # torch's OpenBLAS has products to share out
    level = "TORCH_CPP_LOG_LEVEL"  # read by that import
    is_chosen = level in os.environ
    os.environ.setdefault(level, "ERROR")  # its profiler warns of what is freed meanwhile
    try:
        with deferred(), importing():
            import torch  # noqa: F401  # for later imports
    except (ImportError, OSError) as error:
        raise ExtraError(f"torch is installed, but cannot be imported: {error}") from error
    finally:
        if not is_chosen:
            del os.environ[level]


def usual_engine(*, is_run: bool) -> tuple[str, str]:
    """The engine if none is named, and why that is not the trace.

    Without the extra `trace`, closed forms count a page, unless a model `is_run` on request.
    """
    try:
        require_trace()
    except ExtraError as error:
        if not is_run:
            return "analytic", f"closed forms are evaluated instead of a trace: {error}"
    return "trace", ""


def analyze(
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
    architecture: str | None = None,
    model: str | Path | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    engine: Literal["trace", "analytic"] | None = None,
    dtype: str = "bfloat16",
    flash_attention: bool = False,
    trust_remote_code: bool = False,
) -> Report:
    """What a page costs: the report that `dsocr-analyze` prints and writes.

    >>> analyze(mode="gundam", page="a4", engine="analytic").total.matrix_flops
    4568380069376

    Args:
        page: `"a4"`, `"a4@200"`, `"1240x1754"`, or (width, height) in pixels. Default: A4, 150 dpi.
        image: An image file of the page, instead of `page`; of several pages, the first.
        mode: A mode like `"gundam"`, instead of the next three sizes.
        base_size: Pixels per side of the global view in crop mode. Default: the model's own.
        image_size: Pixels per side of a local view, or of the only view. Default: the model's own.
        crop_mode: Whether a page larger than one tile is cropped. Default: yes, for a single page.
        text_tokens: Tokens besides the visual ones, with BOS. Default: the usual prompt's.
        seq_len: Tokens of the whole prompt, instead of `text_tokens`.
        batch_size: Number of prompts, all alike. Default: 1.
        max_new_tokens: Tokens generated; the prefill pass yields the first. Default: 1024.
        prompt_pages: Pages per prompt, all alike, for models that take several. Default: 1.
        architecture: Whose built-in reference is counted. Default: `"deepseek-ocr"`.
        model: A model directory, instead of `architecture`.
        config: Another size of the model: a `config.json`, or its values, in place of its own.
        engine: `"trace"` runs the model and compares it with the closed forms, which `"analytic"`
            evaluates alone, without torch. Default: trace, or analytic where the extra `trace` is
            not installed and `trust_remote_code` is not set; `metadata.engine` says which.
        dtype: Of weights and activations: `"bfloat16"`, `"float16"` or `"float32"`.
        flash_attention: FlashAttention-2 in the decoder instead of eager attention.
        trust_remote_code: Execute the directory's Python files without a trust record.

    Raises:
        AnalyzeError: A subclass names what is wrong with an argument or the directory.
    """
    directory = directory_named(model, architecture, config)
    asked = PageRequest(
        architecture=directory.architecture, page=page, image=image, mode=mode,
        base_size=base_size, image_size=image_size, crop_mode=crop_mode, text_tokens=text_tokens,
        seq_len=seq_len, batch_size=batch_size, max_new_tokens=max_new_tokens,
        prompt_pages=prompt_pages, dtype=dtype, flash_attention=flash_attention,
        engine=engine or usual_engine(is_run=trust_remote_code)[0],
    )  # fmt: skip
    return Engine(directory, trust_remote_code=trust_remote_code).report(asked)


def compare(reports: Mapping[str, Report]) -> ComparisonDocument:
    """Puts reports side by side: what `dsocr-analyze compare` prints as JSON.

    >>> modes = ("base", "gundam")
    >>> reports = {mode: analyze(mode=mode, engine="analytic") for mode in modes}
    >>> table = compare(reports).to_pandas().set_index("key")
    >>> table.loc["page_flops", "gundam"]
    5857657126489.0

    Args:
        reports: By name; the others are compared with the first one.

    Returns:
        The comparison, one row per quantity; `to_pandas()` makes a pandas table.

    Raises:
        WorkloadError: There are no reports.
    """
    from dsocr_analyze.report import comparison

    if not reports:
        raise WorkloadError("there are no reports to compare; give at least one")
    models = {name: report.metadata.model for name, report in reports.items()}
    has_one = len({each.architecture for each in models.values()}) == 1
    configs = {
        name: json.loads(each.config_text)
        for name, each in models.items()
        if has_one and each.config_text is not None
    }
    return comparison.compare(list(reports.items()), configs)


def sweep_workloads(
    *,
    page: Pages = DEFAULT_PAGE,
    mode: Names | None = None,
    text_tokens: Numbers | None = None,
    max_new_tokens: Numbers = 1024,
    batch_size: Numbers = 1,
    dtype: Names = "bfloat16",
    flash_attention: Switches = False,
    sliding_window: Switches | None = None,
    architecture: str | None = None,
    model: str | Path | None = None,
) -> SweepRows:
    """Counts every combination of some ranges: the rows that `dsocr-analyze sweep` writes.

    Analytic, without torch. Each argument is one value, a sequence of them, or text with lists and
    ranges as on the command line.

    >>> rows = sweep_workloads(mode="all", batch_size=[1, 16], text_tokens="10:100:30")
    >>> rows.to_pandas()["peak_activation_bytes"].max()
    28280422400

    Args:
        page: `"a4"`, `"a4@100:300:50"`, `"600:2400:200x1754"`, or (width, height) in pixels.
        mode: Modes, sizes like `"1024/640"` (crops) or `"640"` (does not), or `"all"`. Default: the
            model's usual mode.
        text_tokens: Tokens besides the visual ones, with BOS. Default: the usual prompt's.
        max_new_tokens: Tokens generated; the prefill pass yields the first.
        batch_size: Numbers of equal pages per batch.
        dtype: Types of weights and activations.
        flash_attention: FlashAttention-2 in the decoder instead of eager attention.
        sliding_window: Whether decode steps attend in the model's window, if it has one.
        architecture: Whose built-in reference is counted. Default: `"deepseek-ocr"`.
        model: A model directory, instead of `architecture`; none of its code is executed.

    Returns:
        The rows: `table` is an Arrow table, `to_pandas()` makes a pandas table.

    Raises:
        AnalyzeError: A subclass names what is wrong with an argument or the directory.
    """
    from dsocr_analyze.archive.combinations import rows_of, sweep_over
    from dsocr_analyze.archive.setting import CountedModel, opening_of

    directory = directory_named(model, architecture)
    sweep = sweep_over(
        directory.architecture, page=page, mode=mode, text_tokens=text_tokens,
        max_new_tokens=max_new_tokens, batch_size=batch_size, dtype=dtype,
        flash_attention=flash_attention, sliding_window=sliding_window,
    )  # fmt: skip
    opening = opening_of(directory, directory.architecture, sweep.modes, command="sweep")
    return rows_of(sweep, CountedModel.from_directory(directory), opening)


def directory_named(
    model: str | Path | None,
    architecture: str | None,
    config: str | Path | Mapping[str, Any] | None = None,
) -> ModelDirectory:
    """The model directory, or an architecture's built-in reference, with a config in its place.

    Without either, a config names its architecture. Raises AnalyzeError.
    """
    if config is not None:
        if not isinstance(config, str | os.PathLike | Mapping):
            raise ConfigError(f"config is a {type(config).__name__}; give a path or a mapping")
        file = None if isinstance(config, Mapping) else Path(config)
        values = config if isinstance(config, Mapping) else read_config(Path(config))
        if model is None:
            find = architecture_of if foreign_model(values) else recognized_architecture
            found = find(values)
            named = None if architecture is None else architecture_named(architecture).name
            name = (named or DEFAULT.name) if found is None else found.name
            if named not in (None, name):
                raise WorkloadError(
                    f"architecture={architecture!r} contradicts config, which is of {name}; give"
                    " one of them",
                    arguments=["architecture"],
                )
            architecture = name
        return directory_named(model, architecture).with_config(values, file)
    if model is not None and architecture is not None:
        raise WorkloadError(
            f"model={str(model)!r} already determines the architecture; leave out"
            f" architecture={architecture!r}"
        )
    if model is not None:
        return ModelDirectory.read(Path(model))
    return ModelDirectory.of_architecture(architecture_named(architecture or DEFAULT.name))
