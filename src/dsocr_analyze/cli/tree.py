"""The module tree: a model's modules, and what each one does for a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.analysis import Engine
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.cli import options, page_options, printing, streams, words
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.module_tree import TreeNode
    from dsocr_analyze.report.tree import Leaves
    from dsocr_analyze.workload import AnyWorkload

__all__ = ["tree"]


_StageOption = Annotated[
    str | None,
    options.option(
        "STAGE",
        "Only the modules that this stage of the architecture owns:"
        f" {', '.join(DEFAULT.stage_names)} for {DEFAULT.name}.",
    ),
]


@page_options.of_a_page("max_new_tokens")
def tree(
    context: typer.Context,
    model: str | None = None,
    arch: str | None = None,
    config: Path | None = None,
    stages: Path | None = None,
    hf_config: Path | None = None,
    trust_remote_code: bool = False,
    device: str = "meta",
    dtype: str = "bfloat16",
    use_flash_attn: int = 0,
    depth: Annotated[
        int | None, options.option("LEVELS", "Levels below the model to show.")
    ] = None,
    stage: _StageOption = None,
    trace: Annotated[
        bool, options.option(None, "Calls, shapes and FLOPs of a prefill pass over the page.")
    ] = True,
    leaves: Annotated[
        bool, options.option(None, "Instead of the tree, its leaf classes by stage.", "--leaves")
    ] = False,
    folded: Annotated[
        bool,
        options.option(
            None, "One line for a run of equal layers (not in JSON).", "--fold/--no-fold"
        ),
    ] = True,
    output_format: Annotated[str, options.format_option("text", "json", "mermaid", "dot")] = "text",
    output: Path | None = None,
    strict: bool = False,
    debug: bool = False,
) -> None:
    """Show the module tree with repeated layers folded, or its leaf classes by stage."""
    if depth is not None and depth < 0:
        raise WorkloadError(f"--depth {depth} is too small; give 0 or more")
    given = options.given_options(context)
    undescribed = None if stages else page_options.undescribed_model(model, arch, config, hf_config)
    if undescribed is not None:
        _refuse_untraceable(given, stage, trace=trace)
    directory = undescribed or page_options.model_directory_from(
        model, arch, config, trust_remote_code=trust_remote_code, stages=stages,
        hf_config=hf_config,
    )  # fmt: skip
    words.print_config_findings(context, directory, by_closed_forms=False)
    if stage is not None:
        stage = options.chosen("--stage", stage, directory.architecture.stage_names)
    workload = None
    if trace and not leaves and undescribed is None:
        workload = page_options.page_request(context, directory, max_new_tokens=1).workload(
            directory.architecture
        )
        words.warn_of_sizes(context, directory, workload)
    elif of_page := [option for name, option in given.items() if name in page_options.OF_A_PAGE]:
        raise WorkloadError(
            f"{of_page[0]} is for a page that is traced; leave it out with --no-trace and --leaves"
        )
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    engine = Engine("trace", directory, dtype, flash_attention, device, trust_remote_code)
    modules = _modules(engine, workload, leaves=leaves, depth=depth, stage=stage)
    from dsocr_analyze.report.tree import drawing, tree_document

    known, used = directory.recognized, options.options_used(context)
    source = directory.source(known.name if known else None)
    untraced = "; no pass was traced, which takes a stages file" if undescribed else ""
    printing.emit(
        context,
        tree_document(source, modules, stage=stage, workload=workload, options=used),
        lambda: drawing(source, modules, f"on {device}{untraced}", is_folded=folded),
        instead=output,
    )


def _refuse_untraceable(given: Mapping[str, str], stage: str | None, *, trace: bool) -> None:
    """Raise for options that need a stages file."""
    of_page = {*page_options.OF_A_PAGE, *(["trace"] if trace else [])}
    asked = [
        *(option for name, option in given.items() if name in of_page),
        *([] if stage is None else [f"--stage {stage}"]),
    ]
    if asked:
        raise WorkloadError(
            f"{asked[0]} takes a stages file; give --stages FILE (dsocr-analyze stages drafts one),"
            f" or leave {asked[0]} out to see the modules alone"
        )


def _modules(
    engine: Engine,
    workload: AnyWorkload | None,
    *,
    leaves: bool,
    depth: int | None,
    stage: str | None,
) -> Leaves | TreeNode:
    """The model's tree or its leaves, of one stage or of all."""
    with streams.announced_steps() as announce:
        announce("importing torch, building the model")
        session, known = engine.session, engine.directory.recognized
        from dsocr_analyze.module_tree import OwnerOf, build_tree, leaf_classes, prune
        from dsocr_analyze.trace.tree import traced_modules

        # A model without a known architecture has no stages, but still a tree.
        owner_of: OwnerOf = known.owner_of if known else lambda _: None
        if leaves:
            counts = leaf_classes(session.model, known.stage_names if known else (), owner_of)
            return counts if stage is None else {stage: counts.get(stage, {})}
        traced = None
        if workload is not None:
            announce("tracing a page")
            traced = traced_modules(session.trace(workload).prefill)
        root = prune(build_tree(session.model, owner_of, traced), depth=depth, stage=stage)
    if root is None:
        raise WorkloadError(f"the model has no module that stage {stage!r} owns")
    return root
