"""The application: its main command, and the others, each imported when it is first used."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections import UserDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from dsocr_analyze import errors, input_files, interruption, output_files
from dsocr_analyze.analysis import Engine, usual_engine
from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT, PageRequest
from dsocr_analyze.cli import help_text, options, page_options, printing, streams, words
from dsocr_analyze.errors import ConfigError, DeviceError, PageError, WorkloadError
from dsocr_analyze.workload import PageWorkload, parse_page

if TYPE_CHECKING:
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.timing import TimeEntry
    from dsocr_analyze.timing.predict import TimeRequest

_NAME = "dsocr-analyze"

_QUESTIONS: Final = {
    "Count and compare": {
        "compare": "compare",
        "advise": "advise",
        "sweep": "sweep",
        "archive": "sweep",
        "check": "check",
    },
    "Seconds, money and memory": {
        "time": "time",
        "plan": "plan",
        "fit": "devices",
        "devices": "devices",
        "measure": "measure",
        "infer": "measure",
        "calibrate": "measure",
    },
    "Models": {
        "tree": "models",
        "stages": "models",
        "trust": "models",
        "docs": "docs",
    },
}
COMMANDS: Final = {name: module for each in _QUESTIONS.values() for name, module in each.items()}
"""The module of each command, a function of its name, in the order of the help."""

_RESULTS: Final[dict[str, tuple[str, ...]]] = {
    "compare": ("output", "html_file", "plot"),
    "advise": ("minimum_dpi", "maximum_compression", "json_file"),
    "sweep": ("output", "plot"),
    "archive": ("output",),
    "time": ("plot", "from_benchmark"),
    "plan": ("first_token",),
    "fit": ("gpu", "named_gpus"),
    "devices": ("forget",),
    "measure": ("json_file",),
    "tree": ("output",),
    "stages": ("output",),
}
"""The parameters that ask for more than text. The other commands write files, or answer by their
exit code, and so does `fit` for named GPUs."""

_SHORT: Final = frozenset({"docs", "fit", "devices", "trust", "tree"})
"""Those that end after a few passes. Garbage is collected in the others, which loop; the program
starts without (`__main__.py`)."""


def _declared(command: Callable[..., None], *, loops: bool) -> Callable[..., None]:
    """A command as Typer takes it, with all its options.

    A parameter is the shared option of its name, or of the name in its annotation; one whose
    default is a table stands for that table's options, which are read from `context.params`.
    """
    signature, own, parameters = inspect.signature(command, eval_str=True), list[str](), []
    declared: dict[str, tuple[object, Any]] = {}
    for each in signature.parameters.values():
        if isinstance(each.default, dict):
            declared |= each.default
        else:
            own.append(each.name)
            declared[each.name] = (each.annotation, each.default)
    for name, (annotation, default) in (declared | options.EVERYWHERE).items():
        kind, info = (
            get_args(annotation) if get_origin(annotation) is Annotated else (annotation, name)
        )
        if kind is not typer.Context:
            kind = Annotated[kind, options.SHARED[info] if isinstance(info, str) else info]
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )
        )

    @wraps(command)
    def called(**given: Any) -> None:
        collects = loops and not gc.isenabled()
        if collects:
            gc.enable()
        try:
            # Held back only while parsing, which temporarily changes settings of the process.
            with interruption.interruptible():
                command(**{name: given[name] for name in own if name in given})
        finally:
            if collects:
                gc.disable()

    called.__signature__ = signature.replace(  # type: ignore[attr-defined]  # Typer reads it here
        parameters=parameters
    )
    return called


class _Coercion:
    """Makes values of a parameter's type; Typer's own would import pydantic."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """A value, or each of several; raises BadParameter with what is wrong."""
        kind, takes_more = param.type_descriptor.annotation, param.multiple or param.nargs == -1
        [single] = get_args(kind) or [kind]
        made = []
        for each in value or () if takes_more else (value,):
            try:
                made.append(None if each is None else single(each))
            except ValueError as error:
                raise typer.BadParameter(each, ctx=ctx, param=param) from error
        return made if takes_more else made[0]


class _Parsed:
    """Parser errors carry the context; options of one value are given once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises WorkloadError if one value is given several times, or `--quiet` leaves nothing."""
        command: Any = self
        if ctx.obj is not None:
            ctx.obj.typed.update(word.partition("=")[0] for word in args)
        try:
            parser = command.make_parser(ctx)
            single = []
            for each in command.get_params(ctx):
                each.get_runtime_param = _Coercion
                takes_more = each.param_type_name != "option" or each.multiple or each.count
                if not (takes_more or each.is_flag or ctx.resilient_parsing):
                    parser.add_option(each, each.opts, each.name, action="append")
                    single.append(each)
            given = parser.parse_args([*args])[0] if single else {}
            for each in single:
                values = list(dict.fromkeys(given.get(each.name, ())))
                if len(values) > 1:
                    raise WorkloadError(words.repeated(each, values, ctx))
            rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]  # Typer's
            if not ctx.resilient_parsing:
                _check_quiet(ctx, _RESULTS.get(command.name, ()))
            return rest
        except typer.TyperException as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]  # Typer does not export the type
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Options in groups."""
        help_text.write_options(self, ctx, formatter)


def _check_quiet(context: typer.Context, results: Sequence[str]) -> None:
    """Raises WorkloadError if `--quiet` is given, and none of the parameters that ask for a result.

    A command without such parameters writes files or answers by its exit code.
    """
    given = context.params
    if not given["quiet"] or not results or any(given[name] for name in results):
        return
    parameters = {each.name: each for each in context.command.params}
    *most, last = [words.spelling(parameters[name], context) for name in results]
    named = f"{', '.join(most)} or {last}" if most else last
    raise WorkloadError(f"--quiet leaves nothing to show; give {named} too, or leave out --quiet")


class _Command(_Parsed, TyperCommand):
    """One of `COMMANDS`."""


class _Commands(_Parsed, TyperGroup):
    """The commands, found in any case."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The commands by question, and the options of the main command."""
        summaries = {
            question: [
                (name, self.commands[name].get_short_help_str(formatter.width)) for name in names
            ]
            for question, names in _QUESTIONS.items()
        }
        help_text.write_groups(summaries, formatter)
        super().format_options(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first argument names; raises WorkloadError."""
        word = args[0]
        if found := errors.in_any_case(word, self.commands):
            return found, self.commands[found], args[1:]
        if word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if word in ("help", "version"):
            raise WorkloadError(f"no command {word!r}; did you mean {_NAME} --{word}?")
        meant = errors.did_you_mean(word, self.commands) or _meant(word)
        right = f"see {_NAME} --help" if meant else f"there are {', '.join(self.commands)}"
        raise WorkloadError(f"no command {word!r}; {meant}{right}")


class _CommandsByName(UserDict[str, Any]):
    """Imports only those that are asked for."""

    def __getitem__(self, name: str) -> TyperCommand:
        if self.data[name] is None:
            module = import_module(f"dsocr_analyze.cli.{COMMANDS[name]}")
            only = typer.Typer(add_completion=False, rich_markup_mode=None)
            only.command(name, cls=_Command)(
                _declared(getattr(module, name), loops=name not in _SHORT)
            )
            self.data[name] = typer.main.get_command(only)
        found: TyperCommand = self.data[name]
        return found


def _meant(word: str) -> str:
    """A question if the word is a known value of an option."""
    from dsocr_analyze.hardware.devices import catalogue_name, gpu_catalogue

    modes, path = options.modes(), Path(word)
    if mode := errors.in_any_case(word, modes):
        arch = "" if mode in DEFAULT.modes else f"--arch {modes[mode]} "
        meant = f"{arch}--mode {mode}"
    elif architecture := errors.in_any_case(word, ARCHITECTURES):
        meant = f"--arch {architecture}"
    elif input_files.is_folder(path):
        meant = f"{'--model' if input_files.is_regular(path / 'config.json') else 'archive'} {word}"
    elif input_files.is_regular(path):
        taking = {".json": "compare", ".csv": "archive", ".parquet": "archive", ".pdf": "archive"}
        meant = f"{taking.get(path.suffix.lower(), '--image')} {word}"
    else:
        with contextlib.suppress(PageError):
            parse_page(word)
            return f"did you mean {_NAME} --page {word}? "
        try:
            gpu = gpu_catalogue()[catalogue_name(word, gpu_catalogue())]
            meant = f"{'time' if gpu.has_rates else 'fit'} {gpu.name}"
        except DeviceError:
            return errors.did_you_mean(word, modes).replace("mean ", "mean --mode ", 1)
    return f"did you mean {_NAME} {meant}? "


# --- the main command ---------------------------------------------------------------------------

_DEFAULT_OUTPUT = Path("tmp/dsocr-static-ops")

_CURVE: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Default concurrencies of a curve."""


def analyze(
    context: typer.Context,
    of_model: options.Added = page_options.DESCRIBED | page_options.WINDOW | page_options.TRUST,
    device: str = "meta",
    types: options.Added = page_options.TYPES,
    of_page: options.Added = page_options.OF_A_PAGE,
    engine: Annotated[str | None, "usual_engine"] = None,
    output: Annotated[Path, "reports"] = _DEFAULT_OUTPUT,
    output_format: str = "table",
    full: bool = False,
    json_file: str | None = None,
    html_file: Path | None = None,
    strict: bool = False,
    version: bool = False,
    debug: bool = False,
    of_time: options.Added = options.SECONDS_OF_A_PAGE,
) -> None:
    """Count one page: parameters, FLOPs, bytes and activations of every stage."""
    if context.invoked_subcommand is not None:
        for option in options.given_options(context).values():
            if option != "--debug":
                raise WorkloadError(
                    f"{option} before {context.invoked_subcommand} has no effect; give it after the"
                    " command"
                )
        return
    given, untraced = context.params, ""
    is_trusted = given["trust_remote_code"]
    if engine is None:
        is_run = is_trusted or device != "meta" or given["stages"] is not None
        engine, untraced = usual_engine(is_run=is_run)
        given["engine"] = engine
    if engine == "analytic" and device != "meta":
        raise DeviceError(f"--engine analytic runs nothing; leave out --device {device}")
    # The analytic engine reads the directory's config without executing its code.
    directory = page_options.directory_asked(
        given, trust_remote_code=is_trusted or engine == "analytic"
    )
    asked = page_options.page_request(given, directory, engine=engine)
    _ = asked.workload  # raises before any work
    output_files.prepare_directory(output, may_lead_out=output != _DEFAULT_OUTPUT)
    printing.check_files(html=html_file)
    counts = Engine(
        directory, device, is_trusted, page_options.request_with_report(context),
        partial(streams.announced_steps, is_quiet=given["quiet"]),
    )  # fmt: skip
    report = counts.report(asked)
    also = None if json_file in (None, "-") else Path(str(json_file))
    files = {output / "static_compute.json": "json", output / "static_compute.md": "markdown",
             html_file: "html"}  # fmt: skip
    written = tuple(dict.fromkeys(filter(None, (*files, also))))
    from dsocr_analyze.report.markdown import ReadableReport

    page = partial(_html, report, counts, asked, given["profile"])
    printing.emit(
        context, report, ReadableReport(report, written, full, ": --full", page), files=files
    )
    words.note_untraceable(context, directory)
    if untraced:
        words.note(context, f"note: {untraced}")
    words.warn(context, report.warnings)


# --- the HTML page --------------------------------------------------------------------------------


def _html(
    report: Report, engine: Engine, asked: PageRequest, profile: Sequence[Path] | None
) -> str:
    from dsocr_analyze.cli import kept_files, time_requests
    from dsocr_analyze.report.html import render_html, report_contents, roofs_of

    profiles = list(kept_files.gpu_profiles(profile).values())
    named = [entry.gpu for entry in report.time]
    measured = [each.gpu.name for each in profiles if each.kinds and not each.extrapolated]
    roofs = roofs_of(profiles, report.metadata.dtype, first=named or measured)
    of_all = partial(time_requests.time_request, measured, {"profile": profile})
    curves, missing = _curves(report, engine, asked, of_all)
    return render_html(report_contents(report, roofs, curves, missing))


def _curves(
    report: Report,
    engine: Engine,
    asked: PageRequest,
    of_all: Callable[[], TimeRequest],
) -> tuple[Sequence[TimeEntry], str]:
    """Predictions over many concurrencies, by default for all GPUs, or why there are none."""
    request = engine.time
    if request is not None and len(request.concurrency) >= len(_CURVE):
        return report.time, ""
    if not isinstance(asked.workload, PageWorkload):
        return report.time, "" if report.time else "No seconds are predicted without --gpu."
    try:
        engine.directory.dimensions()
    except ConfigError as error:
        return (), f"No seconds are predicted: {error}"
    request = of_all() if request is None else request
    request = replace(request, concurrency=sorted({*request.concurrency, *_CURVE}))
    lacking: dict[str, DeviceError] = {}
    found = replace(engine, time=request).entries(asked, lacking.__setitem__)
    return found, "" if found else f"No seconds are predicted: {next(iter(lacking.values()))}"


_app = typer.Typer(
    name=_NAME,
    cls=_Commands,
    help="What a page costs on DeepSeek-OCR: FLOPs, bytes and memory, stage by stage. Without a"
    " command, count one page.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_app.callback(invoke_without_command=True)(_declared(analyze, loops=False))

application: Final[Any] = typer.main.get_command(_app)
"""What parses a command line and runs its command."""
application.commands = _CommandsByName(dict.fromkeys(COMMANDS))
