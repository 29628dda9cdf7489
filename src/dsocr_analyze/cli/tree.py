"""The module tree: a model's modules, and what each one does for a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.cli import options, page_options
from dsocr_analyze.cli.counting import Engine
from dsocr_analyze.cli.printing import terminal_width
from dsocr_analyze.cli.progress import announced_steps
from dsocr_analyze.cli.stages import undescribed_model
from dsocr_analyze.cli.used_options import options_used
from dsocr_analyze.cli.warnings import StrictOption, print_config_findings, warn_of_sizes
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.figures.origin import Model
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.module_tree import OwnerOf, TreeNode
    from dsocr_analyze.report.tree import Leaves
    from dsocr_analyze.session import DeepSeekOCRSession
    from dsocr_analyze.workload import AnyWorkload

__all__ = ["tree"]

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
        "--trace/--no-trace", help="Calls, shapes and FLOPs of a prefill pass over the page."
    ),
]
LeavesOption = Annotated[
    bool, typer.Option("--leaves", help="Instead of the tree, its leaf classes by stage.")
]
FoldOption = Annotated[
    bool,
    typer.Option("--fold/--no-fold", help="One line for a run of equal layers (not in JSON)."),
]
FormatOption = Annotated[str, options.format_option("text", "json", "mermaid", "dot")]


@page_options.of_a_page("max_new_tokens")
def tree(
    context: typer.Context,
    model: options.ModelOption = None,
    arch: options.ArchOption = None,
    config: options.ConfigOption = None,
    stages: options.StagesOption = None,
    hf_config: options.HfConfigOption = None,
    trust_remote_code: options.TrustOption = False,
    device: options.DeviceOption = "meta",
    dtype: options.DtypeOption = "bfloat16",
    use_flash_attn: options.FlashOption = 0,
    depth: DepthOption = None,
    stage: StageOption = None,
    trace: TraceOption = True,
    leaves: LeavesOption = False,
    folded: FoldOption = True,
    output_format: FormatOption = "text",
    output: options.OutputFileOption = None,
    strict: StrictOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Show the module tree with repeated layers folded, or its leaf classes by stage."""
    if depth is not None and depth < 0:
        raise WorkloadError(f"--depth {depth} is too small; give 0 or more")
    undescribed = None if stages else undescribed_model(model, arch, config, hf_config)
    if undescribed is not None:
        trace = _refuse_untraceable(context, stage)
    directory = undescribed or options.model_directory_from(
        model, arch, config, trust_remote_code=trust_remote_code, stages=stages,
        hf_config=hf_config,
    )  # fmt: skip
    print_config_findings(context, directory, by_closed_forms=False)
    if stage is not None:
        stage = options.chosen("--stage", stage, directory.architecture.stage_names)
    # A model without a known architecture has no stages, but still a tree.
    architecture = directory.recognized
    workload = _workload(context, directory) if trace and not leaves else None
    if workload is None:
        _refuse_page(context)
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    with announced_steps() as announce:
        announce("importing torch, building the model")
        engine = Engine("trace", directory, dtype, flash_attention, device, trust_remote_code)
        session = engine.session
        if workload is not None:
            announce("tracing a page")
        shown = _leaves(session, architecture, stage) if leaves else _tree(
            session, _owner_of(architecture), depth, stage, workload
        )  # fmt: skip
    source = directory.source(architecture.name if architecture else None)
    untraced = "; no pass was traced, which takes a stages file" if undescribed else ""
    if output_format == "json":
        text = _json(context, source, shown, stage, workload)
    else:
        how = f"on {device}{untraced}"
        text = _text(source, shown, output, how, is_folded=folded, output_format=output_format)
    _show(context, text, output)


def _workload(context: typer.Context, directory: ModelDirectory) -> AnyWorkload:
    """The page to trace."""
    request = page_options.page_request(context, directory, max_new_tokens=1)
    workload = request.workload(directory.architecture)
    warn_of_sizes(context, directory, workload)
    return workload


def _refuse_untraceable(context: typer.Context, stage: str | None) -> bool:
    """Raise for options that need a stages file if there is none; otherwise False."""
    sources = {
        name: context.get_parameter_source(name) for name in ("trace", *page_options.OF_A_PAGE)
    }
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    asked = [
        each.opts[0]
        for each in context.command.params
        if each.name in given and context.params[each.name] is not False
    ]
    asked += [] if stage is None else [f"--stage {stage}"]
    if asked:
        raise WorkloadError(
            f"{asked[0]} takes a stages file; give --stages FILE (dsocr-analyze stages drafts one),"
            f" or leave {asked[0]} out to see the modules alone"
        )
    return False


def _json(
    context: typer.Context,
    source: Model,
    shown: Leaves | TreeNode,
    stage: str | None,
    workload: AnyWorkload | None,
) -> str:
    from dsocr_analyze.report.json_text import dump_json
    from dsocr_analyze.report.tree_document import tree_document

    used = options_used(context)
    return dump_json(tree_document(source, shown, stage=stage, workload=workload, options=used))


def _refuse_page(context: typer.Context) -> None:
    """Raise for page options if no page is traced."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name) if name in page_options.OF_A_PAGE else None
        if source is not None and source.name == "COMMANDLINE":
            raise WorkloadError(
                f"{parameter.opts[0]} is for a page that is traced; leave it out with --no-trace"
                " and --leaves"
            )


def _show(context: typer.Context, text: str, output: Path | None) -> None:
    """Write the text to `output`, or print it if that is None."""
    if output is None:
        sys.stdout.write(text)
        return
    from dsocr_analyze.output_files import write_texts

    context.obj.begin_writing()
    write_texts(output.parent, {output.name: text})


def _owner_of(architecture: Architecture | None) -> OwnerOf:
    return architecture.owner_of if architecture else lambda _: None


def _leaves(
    session: DeepSeekOCRSession, architecture: Architecture | None, stage: str | None
) -> Leaves:
    from dsocr_analyze.module_tree import leaf_classes

    names = architecture.stage_names if architecture else ()
    found = leaf_classes(session.model, names, _owner_of(architecture))
    return found if stage is None else {stage: found.get(stage, {})}


def _tree(
    session: DeepSeekOCRSession,
    owner_of: OwnerOf,
    depth: int | None,
    stage: str | None,
    workload: AnyWorkload | None,
) -> TreeNode:
    from dsocr_analyze.module_tree import build_tree, prune
    from dsocr_analyze.trace.by_module import traced_modules

    traced = None
    if workload is not None:
        traced = traced_modules(session.trace(workload).prefill)
    root = build_tree(session.model, owner_of, traced)
    pruned = prune(root, depth=depth, stage=stage)
    if pruned is None:
        raise WorkloadError(f"the model has no module that stage {stage!r} owns")
    return pruned


def _text(
    source: Model,
    shown: Leaves | TreeNode,
    output: Path | None,
    how: str,
    *,
    is_folded: bool,
    output_format: str,
) -> str:
    """The tree or the leaves; as text, under what it is of, fitted to the terminal."""
    width = terminal_width() if output is None else None
    drawn = _drawn(shown, width, is_folded=is_folded, output_format=output_format)
    if output_format != "text":
        return drawn
    from dsocr_analyze.report.layout import wrap
    from dsocr_analyze.report.tables import model_text

    opening = f"Ran: {model_text(source)} {how}"
    return "\n".join([*wrap(opening, width or len(opening)), "", drawn])


def _drawn(
    shown: Leaves | TreeNode, width: int | None, *, is_folded: bool, output_format: str
) -> str:
    from dsocr_analyze.module_tree import FoldedNode, TreeNode, fold
    from dsocr_analyze.report import tree as written

    if not isinstance(shown, TreeNode):
        if output_format == "text":
            return written.leaves_text(shown, width)
        return {"mermaid": written.leaves_mermaid, "dot": written.leaves_dot}[output_format](shown)

    def as_it_is(node: TreeNode) -> FoldedNode:
        return FoldedNode(node, node.name, 1, tuple(map(as_it_is, node.children)))

    folded = fold(shown) if is_folded else as_it_is(shown)
    if output_format == "text":
        return written.tree_text(folded, width)
    return {"mermaid": written.tree_mermaid, "dot": written.tree_dot}[output_format](folded)
