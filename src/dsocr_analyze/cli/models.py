"""Commands about a model itself: its module tree, a draft of its stages file, its trust."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze.analysis import Engine, start_torch
from dsocr_analyze.architectures import DEFAULT, PageRequest
from dsocr_analyze.cli import help_text, options, page_options, printing, streams, words
from dsocr_analyze.errors import WorkloadError, chosen
from dsocr_analyze.escaping import visible
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.trust import record_trust, trust_store
from dsocr_analyze.output_files import write_files

if TYPE_CHECKING:
    from dsocr_analyze.module_tree import TreeNode
    from dsocr_analyze.report.tree import Leaves


def trust(
    context: typer.Context,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The model directory.", readable=False)
    ],
    debug: bool = False,
) -> None:
    """Record a model directory's Python files as trusted.

    The record has their SHA-256. Read them first: analysing the directory executes them. Changing a
    file revokes the trust.
    """
    model = ModelDirectory.read(directory)
    context.obj.begin_writing()
    digests = record_trust(model)
    for name, digest in digests.items():
        printing.say(context, f"{digest}  {visible(name)}")
    where = visible(f"{directory}, recorded in {trust_store()}")
    printing.say(context, f"trusted: {len(digests)} Python files of {where}")


def stages(
    context: typer.Context,
    model: str | None = None,
    hf_config: Path | None = None,
    model_class: Annotated[
        str | None,
        options.option(
            "NAME",
            "Class of transformers to build. Default: the first of the config's 'architectures',"
            " else one that generates, else the base class.",
            "--class",
        ),
    ] = None,
    trust_remote_code: bool = False,
    output: Path | None = None,
    debug: bool = False,
) -> None:
    """Draft a stages file for a model that transformers implements.

    The draft is tried out on the meta device.
    """
    directory = page_options.undescribed_model(model, None, None, hf_config)
    if directory is None:
        raise WorkloadError(
            "name a model: --hf-config FILE or --model DIR"
            if model in (None, "reference")
            else f"--model {model} is of a known architecture, which needs no stages file"
        )
    with streams.announced_steps(is_quiet=context.params["quiet"]) as announce:
        announce("importing torch, building the model")
        start_torch()
        from dsocr_analyze.model.draft import drafted

        text = drafted(
            directory, model_class, trust_remote_code=trust_remote_code, on_progress=announce
        )
    if output is None:
        sys.stdout.write(text)
    else:
        context.obj.begin_writing()
        write_files({output: text})


# --- the tree -----------------------------------------------------------------------------------

_SHOWN: Final[options.Added] = {
    "depth": (
        Annotated[int | None, options.option("LEVELS", "Levels below the model to show.")],
        None,
    ),
    "stage": (
        Annotated[
            str | None,
            options.option(
                "STAGE",
                "Only the modules that this stage of the architecture owns:"
                f" {', '.join(DEFAULT.stage_names)} for {DEFAULT.name}.",
            ),
        ],
        None,
    ),
    "trace": (
        Annotated[
            bool, options.option(None, "Calls, shapes and FLOPs of a prefill pass over the page.")
        ],
        True,
    ),
    "leaves": (
        Annotated[
            bool,
            options.option(None, "Instead of the tree, its leaf classes by stage.", "--leaves"),
        ],
        False,
    ),
    "folded": (
        Annotated[
            bool,
            options.option(
                None, "One line for a run of equal layers (not in JSON).", "--fold/--no-fold"
            ),
        ],
        True,
    ),
    "output_format": (
        Annotated[
            str,
            options.option(
                ("text", "json", "mermaid", "dot"),
                options.FORMAT,
                "--format",
                callback=options.in_any_case,
                group=help_text.OUTPUT,
            ),
        ],
        "text",
    ),
}


def tree(
    context: typer.Context,
    of_model: options.Added = page_options.DESCRIBED | page_options.TRUST,
    device: str = "meta",
    types: options.Added = page_options.TYPES,
    of_page: options.Added = page_options.SIZES
    | page_options.PROMPT
    | page_options.BATCH
    | page_options.PROMPT_PAGES,
    shown: options.Added = _SHOWN,
    output: Path | None = None,
    strict: bool = False,
    debug: bool = False,
) -> None:
    """Show the module tree, with repeated layers folded."""
    asked, given = context.params, options.given_options(context)
    depth, stage, leaves = asked["depth"], asked["stage"], asked["leaves"]
    if depth is not None and depth < 0:
        raise WorkloadError(f"--depth {depth} is too small; give 0 or more")
    undescribed = None
    if asked["stages"] is None:
        undescribed = page_options.undescribed_model(
            *(asked[name] for name in ("model", "arch", "config", "hf_config"))
        )
    if undescribed is not None:
        _refuse_untraceable(given, stage, trace=asked["trace"])
    directory = undescribed or page_options.directory_asked(asked)
    words.print_config_findings(context, directory, by_closed_forms=False)
    if stage is not None:
        stage = chosen("--stage", stage, directory.architecture.stage_names)
    is_traced = asked["trace"] and not leaves and undescribed is None
    idle = [option for name, option in given.items() if name in page_options.OF_A_PAGE]
    if idle and not is_traced:
        raise WorkloadError(
            f"{idle[0]} is for a page that is traced; leave it out with --no-trace and --leaves"
        )
    request = page_options.page_request(asked, directory, max_new_tokens=1, engine="trace")
    workload = request.workload if is_traced else None
    if workload is not None:
        words.warn(context, directory.architecture.warnings_of(workload))
    engine = Engine(directory, device, asked["trust_remote_code"])
    with streams.announced_steps(is_quiet=asked["quiet"]) as announce:
        modules = _modules(
            engine, request, announce, leaves=leaves, depth=depth, stage=stage, trace=is_traced
        )
    from dsocr_analyze.report.tree import drawing, tree_document

    known, used = directory.recognized, options.options_used(context)
    source = directory.source(known.name if known else None)
    untraced = "; no pass was traced, which takes a stages file" if undescribed else ""
    printing.emit(
        context,
        tree_document(source, modules, stage=stage, workload=workload, options=used),
        drawing(source, modules, f"on {device}{untraced}", is_folded=asked["folded"]),
        instead=output,
        on_terminal="text",
    )


def _refuse_untraceable(given: Mapping[str, str], stage: str | None, *, trace: bool) -> None:
    of_page = {*page_options.OF_A_PAGE, *(["trace"] if trace else [])}
    asked = [option for name, option in given.items() if name in of_page]
    asked += [] if stage is None else [f"--stage {stage}"]
    if asked:
        raise WorkloadError(
            f"{asked[0]} takes a stages file; give --stages FILE (dsocr-analyze stages drafts one),"
            f" or leave {asked[0]} out to see the modules alone"
        )


def _modules(
    engine: Engine,
    request: PageRequest,
    announce: streams.Announce,
    *,
    leaves: bool,
    depth: int | None,
    stage: str | None,
    trace: bool,
) -> Leaves | TreeNode:
    announce("importing torch, building the model")
    session, known = engine.session(request), engine.directory.recognized
    from dsocr_analyze.module_tree import OwnerOf, build_tree, leaf_classes, prune
    from dsocr_analyze.trace.passes import traced_modules

    # A model without a known architecture has no stages, but still a tree.
    owner_of: OwnerOf = known.owner_of if known else lambda _: None
    if leaves:
        counts = leaf_classes(session.model, known.stage_names if known else (), owner_of)
        return counts if stage is None else {stage: counts.get(stage, {})}
    traced = None
    if trace:
        announce("tracing a page")
        traced = traced_modules(session.trace(request.workload).prefill)
    root = prune(build_tree(session.model, owner_of, traced), depth=depth, stage=stage)
    if root is None:
        raise WorkloadError(f"the model has no module that stage {stage!r} owns")
    return root
