"""The JSON documents of `dsocr-analyze tree`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, UnsetType

from dsocr_analyze.module_tree import TreeNode
from dsocr_analyze.report.build import workload_document
from dsocr_analyze.report.document import SCHEMA_VERSION, Count, Workload
from dsocr_analyze.report.opening import ModelOpening, Options

if TYPE_CHECKING:
    from dsocr_analyze.figures.origin import Model
    from dsocr_analyze.report.tree import Leaves
    from dsocr_analyze.workload import AnyWorkload

__all__ = ["LeavesDocument", "TreeDocument", "TreeModule", "module_rows", "tree_document"]


class TreeModule(Struct, frozen=True, kw_only=True, rename={"class_name": "class"}):
    """A module. Keys from `calls` on are present only if a page was traced.

    Attributes:
        name: Its path; empty for the model itself.
        class_name: Its class.
        stage: The stage that owns it; null if none does.
        params: Parameters at or below it.
        own_params: Parameters of its own.
        same_as: Path of an earlier module that is the same object; absent if there is none.
        calls: Number of calls.
        input: Shapes of the first call's inputs.
        output: Shapes of the first call's outputs.
        flops: FLOPs of all calls.
    """

    name: str
    class_name: str
    stage: str | None
    params: Count
    own_params: Count
    same_as: str | UnsetType = UNSET
    calls: Count | UnsetType = UNSET
    input: Any | UnsetType = UNSET
    output: Any | UnsetType = UNSET
    flops: Count | UnsetType = UNSET


class TreeDocument(ModelOpening, frozen=True, kw_only=True):
    """The modules of a model.

    Attributes:
        workload: The page that was traced; null if none was.
        modules: One entry per module, parents first.
    """

    workload: Workload | None
    modules: tuple[TreeModule, ...]


class LeavesDocument(ModelOpening, frozen=True, kw_only=True):
    """The leaf classes of a model.

    Attributes:
        stages: Number of leaves of each class, by stage.
    """

    stages: Mapping[str, Mapping[str, Count]]


def tree_document(
    model: Model,
    shown: Leaves | TreeNode,
    *,
    stage: str | None,
    workload: AnyWorkload | None,
    options: Options,
) -> LeavesDocument | TreeDocument:
    """The document of a model's modules, or of its leaf classes.

    Args:
        model: The model.
        shown: Its tree, or its leaves by stage and class.
        stage: The only stage whose modules are included; None for all.
        workload: The page that was traced; None if none was.
        options: The command line's options.
    """
    if isinstance(shown, TreeNode):
        return TreeDocument(
            schema_version=SCHEMA_VERSION,
            command="tree",
            options=options,
            model=model,
            workload=None if workload is None else workload_document(workload),
            modules=tuple(module_rows(shown, stage)),
        )
    return LeavesDocument(
        schema_version=SCHEMA_VERSION,
        command="tree",
        options=options,
        model=model,
        stages=shown,
    )


def module_rows(root: TreeNode, stage: str | None = None) -> Iterable[TreeModule]:
    """One row per module, parents first; only modules of `stage` if one is given."""
    for node in root.walk():
        if stage is None or node.stage == stage:
            row = node.as_row()
            yield TreeModule(class_name=row.pop("class"), **row)
