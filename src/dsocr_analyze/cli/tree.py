"""The module tree: which modules a model is made of, and what each one does for a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.cli import options
from dsocr_analyze.cli.counting import Engine
from dsocr_analyze.cli.progress import announced_steps
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.module_tree import OwnerOf, TreeNode
    from dsocr_analyze.session import DeepSeekOCRSession

__all__ = ["tree"]

FORMATS = ("text", "json", "mermaid", "dot")

DepthOption = Annotated[
    int | None, typer.Option("--depth", metavar="LEVELS", help="Levels below the model to show.")
]
StageOption = Annotated[
    str | None,
    typer.Option(
        "--stage",
        metavar="STAGE",
        help="Only the modules that this stage of the architecture owns:"
        f" {', '.join(DEFAULT.stage_names)} for {DEFAULT.name}.",
    ),
]
TraceOption = Annotated[
    bool,
    typer.Option(
        "--trace/--no-trace", help="Calls, shapes and FLOPs of a prefill pass over an A4 page."
    ),
]
LeavesOption = Annotated[
    bool, typer.Option("--leaves", help="Instead of the tree, its leaf classes by stage.")
]
FoldOption = Annotated[
    bool,
    typer.Option("--fold/--no-fold", help="One line for a run of equal layers (not in JSON)."),
]
FormatOption = Annotated[
    str, typer.Option("--format", metavar="|".join(FORMATS), help="How it is written.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="Write it here instead of printing it."),
]


def tree(
    context: typer.Context,
    model: options.ModelOption = None,
    arch: options.ArchOption = None,
    config: options.ConfigOption = None,
    stages: options.StagesOption = None,
    hf_config: options.HfConfigOption = None,
    trust_remote_code: options.TrustOption = False,
    depth: DepthOption = None,
    stage: StageOption = None,
    trace: TraceOption = True,
    leaves: LeavesOption = False,
    folded: FoldOption = True,
    output_format: FormatOption = "text",
    output: OutputOption = None,
    debug: options.DebugOption = False,
) -> None:
    """Show the module hierarchy, repeated layers folded, or its leaf classes by stage."""
    options.check_choice("--format", output_format, FORMATS)
    if depth is not None and depth < 0:
        raise WorkloadError(f"--depth {depth} is not possible; give 0 or more")
    directory = options.model_directory_from(
        model, arch, config, trust_remote_code=trust_remote_code, stages=stages,
        hf_config=hf_config,
    )  # fmt: skip
    options.say_of_config(directory, by_closed_forms=False)
    if stage is not None:
        options.check_choice("--stage", stage, directory.architecture.stage_names)
    # Without one, the model has no stages, but a tree all the same.
    architecture = directory.recognized
    with announced_steps() as announce:
        announce("importing torch, building the model")
        session = Engine("trace", directory, trust_remote_code=trust_remote_code).session
        if leaves:
            text = _leaves_text(session, architecture, stage, output_format)
        else:
            if trace:
                announce("tracing a page")
            root = _tree(session, _owner_of(architecture), depth, stage, is_traced=trace)
            text = _tree_text(root, stage, is_folded=folded, output_format=output_format)
    if output_format == "text":
        from dsocr_analyze.report.tables import model_text

        source = directory.source(architecture.name if architecture else None)
        text = f"Ran: {model_text(source)} on meta\n\n{text}"
    if output is None:
        sys.stdout.write(text)
    else:
        from dsocr_analyze.report.files import write_texts

        context.obj.begin_writing()
        write_texts(output.parent, {output.name: text})


def _owner_of(architecture: Architecture | None) -> OwnerOf:
    return architecture.owner_of if architecture else lambda _: None


def _leaves_text(
    session: DeepSeekOCRSession,
    architecture: Architecture | None,
    stage: str | None,
    output_format: str,
) -> str:
    from dsocr_analyze.module_tree import leaf_classes
    from dsocr_analyze.report import tree as written

    names = architecture.stage_names if architecture else ()
    found = leaf_classes(session.model, names, _owner_of(architecture))
    if stage is not None:
        found = {stage: found.get(stage, {})}
    return {
        "text": written.leaves_text,
        "json": written.leaves_json,
        "mermaid": written.leaves_mermaid,
        "dot": written.leaves_dot,
    }[output_format](found)


def _tree(
    session: DeepSeekOCRSession,
    owner_of: OwnerOf,
    depth: int | None,
    stage: str | None,
    *,
    is_traced: bool,
) -> TreeNode:
    from dsocr_analyze.module_tree import build_tree, prune
    from dsocr_analyze.trace.by_module import traced_modules

    traced = None
    if is_traced:
        workload = session.plan(max_new_tokens=1)
        traced = traced_modules(session.trace(workload).prefill)
    root = build_tree(session.model, owner_of, traced)
    pruned = prune(root, depth=depth, stage=stage)
    if pruned is None:
        raise WorkloadError(f"the model has no module that stage {stage!r} owns")
    return pruned


def _tree_text(root: TreeNode, stage: str | None, *, is_folded: bool, output_format: str) -> str:
    from dsocr_analyze.module_tree import FoldedNode, fold
    from dsocr_analyze.report import tree as written

    if output_format == "json":
        return written.tree_json(root, stage)

    def as_it_is(node: TreeNode) -> FoldedNode:
        return FoldedNode(node, node.name, 1, tuple(map(as_it_is, node.children)))

    folded = fold(root) if is_folded else as_it_is(root)
    return {"text": written.tree_text, "mermaid": written.tree_mermaid, "dot": written.tree_dot}[
        output_format
    ](folded)
