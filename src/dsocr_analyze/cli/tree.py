"""The module tree: which modules a model is made of, and what each one does for a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import options
from dsocr_analyze.cli.progress import announced_steps
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.analysis import DeepSeekOCRSession
    from dsocr_analyze.model.stages import Stage

__all__ = ["tree"]

FORMATS = ("text", "json", "mermaid", "dot")


def tree(
    model: options.ModelOption = None,
    config: options.ConfigOption = None,
    trust_remote_code: options.TrustOption = False,
    depth: Annotated[
        int | None,
        typer.Option("--depth", metavar="LEVELS", help="Levels below the model to show."),
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option(
            "--stage",
            metavar="sam|clip|projector|prefill|decode",
            help="Only the modules that this stage owns.",
        ),
    ] = None,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace/--no-trace",
            help="Calls, shapes and FLOPs of a prefill pass over an A4 page.",
        ),
    ] = True,
    leaves: Annotated[
        bool, typer.Option("--leaves", help="Instead of the tree, its leaf classes by stage.")
    ] = False,
    folded: Annotated[
        bool,
        typer.Option("--fold/--no-fold", help="One line for a run of equal layers (not in JSON)."),
    ] = True,
    output_format: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="How it is written.")
    ] = "text",
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write it here instead of printing it."),
    ] = None,
) -> None:
    """Show the module hierarchy, repeated layers folded, or its leaf classes by stage."""
    if output_format not in FORMATS:
        raise WorkloadError(f"--format {output_format!r} is unknown; use {', '.join(FORMATS)}")
    if depth is not None and depth < 0:
        raise WorkloadError(f"--depth {depth} is not possible; give 0 or more")
    chosen = _stage(stage)
    directory = options.model_directory_from(model, config, trust_remote_code=trust_remote_code)

    from dsocr_analyze.report.files import write_texts

    with announced_steps() as announce:
        announce("importing torch")
        from dsocr_analyze.analysis import DeepSeekOCRSession

        announce("building the model")
        session = DeepSeekOCRSession.from_directory(directory, trust_remote_code=trust_remote_code)
        if leaves:
            text = _leaves_text(session, chosen, output_format)
        else:
            if trace:
                announce("tracing a page")
            text = _tree_text(
                session,
                depth,
                chosen,
                is_traced=trace,
                is_folded=folded,
                output_format=output_format,
            )
    if output_format == "text":
        from dsocr_analyze.report.document import model_metadata
        from dsocr_analyze.report.tables import model_text

        text = f"Ran: {model_text(model_metadata(directory))} on meta\n\n{text}"
    if output is None:
        sys.stdout.write(text)
    else:
        write_texts(output.parent, {output.name: text})


def _leaves_text(session: DeepSeekOCRSession, stage: Stage | None, output_format: str) -> str:
    from dsocr_analyze.model.tree import leaf_classes
    from dsocr_analyze.report import tree as written

    found = leaf_classes(session.model)
    if stage is not None:
        found = {stage: found.get(stage, {})}
    return {
        "text": written.leaves_text,
        "json": written.leaves_json,
        "mermaid": written.leaves_mermaid,
        "dot": written.leaves_dot,
    }[output_format](found)


def _stage(name: str | None) -> Stage | None:
    from dsocr_analyze.model.stages import STAGES

    for stage in STAGES:
        if name == stage:
            return stage
    if name is None:
        return None
    raise WorkloadError(f"--stage {name!r} is unknown; use {', '.join(STAGES)}")


def _tree_text(
    session: DeepSeekOCRSession,
    depth: int | None,
    stage: Stage | None,
    *,
    is_traced: bool,
    is_folded: bool,
    output_format: str,
) -> str:
    from dsocr_analyze.model.tree import FoldedNode, TreeNode, build_tree, fold, prune
    from dsocr_analyze.report import tree as written
    from dsocr_analyze.trace.by_module import traced_modules
    from dsocr_analyze.workload import parse_page, plan_workload

    traced = None
    if is_traced:
        workload = plan_workload(page=parse_page("a4"), max_new_tokens=1)
        traced = traced_modules(session.trace(workload).prefill)
    pruned = prune(build_tree(session.model, traced), depth=depth, stage=stage)
    if pruned is None:
        raise WorkloadError(f"the model has no module that stage {stage!r} owns")
    if output_format == "json":
        return written.tree_json(pruned, stage)

    def as_it_is(node: TreeNode) -> FoldedNode:
        return FoldedNode(node, node.name, 1, tuple(map(as_it_is, node.children)))

    folded = fold(pruned) if is_folded else as_it_is(pruned)
    return {"text": written.tree_text, "mermaid": written.tree_mermaid, "dot": written.tree_dot}[
        output_format
    ](folded)
