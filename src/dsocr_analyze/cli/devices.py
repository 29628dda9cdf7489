"""`dsocr-analyze devices`, the GPUs and what is kept of them, and `fit`, what fits on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsocr_analyze.analysis import Engine
from dsocr_analyze.analytic import ATTENTION_NAMES
from dsocr_analyze.cli import exits, help_text, kept_files, options, page_options, printing, words
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.hardware import devices as catalogue, fit as fitting
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.kernels import Dtype, dtype_named
from dsocr_analyze.report import devices as documents
from dsocr_analyze.report.opening import (
    SCHEMA_VERSION,
    model_text,
    opening_line,
    workload_document,
)
from dsocr_analyze.workload import PageWorkload, position_warnings

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.timing.assumptions import Assumptions

_MOST_GB: Final = 100_000
_MEMORY: Final = re.compile(r"(?P<number>[0-9]{1,6}(?:\.[0-9]{1,9})?) *(?P<unit>gi?b|)")
_OF_SERVER: Final[options.Added] = {
    "server": (str | None, None),
    **options.SERVER_LIMITS,
    "weights_dtype": (str | None, None),
    "kv_dtype": (str | None, None),
}
_OF_MEMORY: Final[options.Added] = {
    "memory_gb": (
        Annotated[
            str | None,
            options.option(
                "GB",
                "Memory of any other card, instead of its name: 12 or 11.5 (10^9 bytes), 12GiB.",
                group=help_text.PREDICTION,
            ),
        ],
        None,
    ),
    "reserved": (float, 0.1),
    **_OF_SERVER,
    "profile": (options.ProfileOption, None),
    "output_format": (str, "table"),
    "assumptions": (bool, False),
    "strict": (bool, False),
    "debug": (bool, False),
}


def devices(
    context: typer.Context,
    gpu: Annotated[
        list[str] | None,
        options.option(
            "GPU", "GPUs to list. Default: all.",
            made=typer.Argument, completes=options.all_gpus, is_list=True,
        ),
    ] = None,
    named_gpus: Annotated[list[str] | None, "gpu"] = None,
    profile: options.ProfileOption = None,
    corrections: Annotated[
        bool,
        options.option(
            None,
            "List the servers' benchmarks kept by time --from-benchmark instead.",
            "--corrections",
        ),
    ] = False,
    forget: Annotated[
        list[str] | None,
        options.option(
            "ID|all",
            "Remove a kept benchmark, by its id in --corrections, or all of the named GPUs. May be"
            " given several times.",
        ),
    ] = None,
    output_format: str = "table",
    debug: bool = False,
) -> None:  # fmt: skip
    """List the GPUs: peaks, memory, and how well they are predicted."""
    known = kept_files.gpu_profiles(profile)
    names = [catalogue.catalogue_name(name, known) for name in options.gpu_names(gpu, named_gpus)]
    used = options.options_used(context)
    if not forget and not corrections:
        listed = map(documents.device_entry, [known[name] for name in names or known])
        found = documents.DevicesDocument(
            schema_version=SCHEMA_VERSION, command="devices", options=used, devices=tuple(listed)
        )
        printing.emit(context, found, printing.Said("", [documents.devices_table(found)]))
        return
    kept = [each for each in kept_files.kept_benchmarks() if not names or each.gpu in names]
    if not forget:
        benchmarks = documents.CorrectionsDocument(
            schema_version=SCHEMA_VERSION, command="devices", options=used, corrections=tuple(kept)
        )
        printing.emit(
            context, benchmarks, printing.Said("", [documents.corrections_table(benchmarks)])
        )
        return
    if "all" in forget and not names:
        raise WorkloadError("--forget all needs named GPUs; name one or more")
    if unknown := [each for each in forget if each not in ("all", *(one.id for one in kept))]:
        raise WorkloadError(
            f"--forget {unknown[0]}: no benchmark with that id is kept; dsocr-analyze devices"
            " --corrections lists those that are"
        )
    chosen = [each for each in kept if "all" in forget or each.id in forget]
    kept_files.forget(chosen)
    for each in chosen:
        printing.say(
            context, f"forgot {each.id}: {each.file}, {each.gpu}, {each.server} {each.version}"
        )


def fit(
    context: typer.Context,
    gpu: Annotated[
        list[str] | None,
        options.option(
            "GPU",
            "GPUs of the catalogue; exit with 1 if the batch does not fit on one of them, and"
            " with 2 if one lacks the type or the attention kernel. Default: all.",
            made=typer.Argument, completes=options.all_gpus, is_list=True,
        ),
    ] = None,
    named_gpus: Annotated[list[str] | None, "gpu"] = None,
    of_model: options.Added = page_options.DESCRIBED | page_options.WINDOW | page_options.TYPES,
    of_page: options.Added = page_options.OF_A_PAGE,
    of_memory: options.Added = _OF_MEMORY,
) -> None:  # fmt: skip
    """Show whether pages fit in a GPU's memory, and how many at a time.

    With --server or one of its limits, the answer is how many pages a serving engine runs.
    Otherwise it is for the model's own code, whose pages prefill at once or one at a time; "limited
    by" names what takes most memory, apart from the weights, at the peak of the smallest batch that
    does not fit.
    """
    given, jobs = context.params, _jobs(context)
    element, flash_attention = dtype_named(given["dtype"]), bool(given["use_flash_attn"])
    known = kept_files.gpu_profiles(given["profile"])
    named = named_devices(known, options.gpu_names(gpu, named_gpus), given["memory_gb"])
    for each in named:
        catalogue.check_features(each.gpu, element, flash_attention=flash_attention and not jobs)
    directory, is_described = page_options.directory_asked(given), given["stages"] is not None
    asked = page_options.page_request(given, directory)
    architecture, dimensions, workload, _ = Engine(directory).priced(asked, jobs)
    words.print_config_findings(context, directory, by_closed_forms=not is_described)
    if jobs:
        page_options.note_attention(context)
    words.warn(context, architecture.warnings_of(asked.workload))
    if dimensions is not None:
        trained = dimensions.decoder.max_position_embeddings
        words.warn(context, position_warnings(workload, trained))
    devices = named or [*known.values()]
    fits = [
        fitting.fit(each.gpu, architecture, dimensions, workload, dtype=element,
                    flash_attention=flash_attention, reserved=given["reserved"])
        for each in devices
    ]  # fmt: skip
    served, source = {}, directory.source(architecture.name)
    traced = [fitting.TRACED_ASSUMPTION] if is_described else []
    assumed = [*map(": ".join, fitting.ASSUMPTIONS.items()), *traced]
    attention = ATTENTION_NAMES[True] if flash_attention else architecture.attention
    for server in jobs:
        served = _served(server, devices, architecture, dimensions, element, workload)
        attention, assumed = server.host.name, server.host.memory_sentences(server.precision)
    document = documents.FitDocument(
        schema_version=SCHEMA_VERSION, command="fit", options=options.options_used(context),
        model=source, workload=workload_document(asked.workload), gpus=tuple(fits), served=served,
    )  # fmt: skip
    titles = [each.gpu.title for each in devices]
    by = "traces on meta" if is_described else "the analytic engine"
    answers = documents.fit_answers(document, titles, is_named=bool(named))
    printing.emit(context, document, printing.Said(
        "\n".join([*answers, f"Ran: {model_text(source)} by {by}",
                   opening_line([document.workload], [element.name], [attention])]),
        [*documents.fit_tables(document, titles)],
        [printing.assumptions(context, assumed)],
    ))  # fmt: skip
    if named and not all(each.fits for each in (document.served.values() or fits)):
        raise typer.Exit(exits.NO)


def _served(
    server: Assumptions, devices: Iterable[Device], architecture: Architecture, dimensions: Any,
    dtype: Dtype, workload: PageWorkload,
) -> dict[str, documents.ServedFit]:  # fmt: skip
    """What a serving engine runs, by GPU; without those that lack the type."""
    from dsocr_analyze.timing.serving import ServedModel, TimedModel

    found = {}
    for each in devices:
        if not catalogue.missing_features(each.gpu, dtype, flash_attention=False):
            timed = TimedModel(architecture, dimensions, dtype, False, each)
            served = ServedModel(timed, server.host, server.precision)
            found[each.gpu.name] = documents.ServedFit.of(served, workload, server.reserved)
    return found


def _jobs(context: typer.Context) -> list[Assumptions]:
    """A serving engine as it is set, if an option asks for one; raises WorkloadError."""
    given = context.params
    if all(given[name] is None for name in _OF_SERVER):
        return []
    from dsocr_analyze.cli.time_requests import serving_from
    from dsocr_analyze.timing.assumptions import Assumptions

    host, precision, reserved, _ = serving_from({**given, "server": given["server"] or "vllm"})
    return [Assumptions(host, precision=precision, reserved=reserved)]


def named_devices(
    known: Mapping[str, Device], names: Sequence[str], memory_gb: str | None
) -> list[Device]:
    """The devices of these names, or a card of some memory; raises AnalyzeError."""
    if memory_gb is None:
        return [known[catalogue.catalogue_name(name, known)] for name in names]
    if names:
        raise WorkloadError(
            f"memory_gb {memory_gb} is of a card without a name; leave it or {names[0]} out",
            arguments=["memory_gb"],
        )
    found = _MEMORY.fullmatch(memory_gb.strip().lower())
    number = float(found["number"]) if found else 0.0
    if not 0 < number <= _MOST_GB:
        raise WorkloadError(
            f"memory_gb {memory_gb!r} is invalid; {words.meant_point(memory_gb)}give a number above"
            f" 0, at most {_MOST_GB}, like 12, 11.5 or 12GiB",
            arguments=["memory_gb"],
        )
    unit, factor = ("GiB", 2**30 / 1e9) if found and found["unit"] == "gib" else ("GB", 1.0)
    card = catalogue.Gpu(
        f"{number:g}{unit.lower()}", f"a card of {number:g} {unit}", memory_gb=number * factor
    )
    return [Device(card, "", "", {})]
