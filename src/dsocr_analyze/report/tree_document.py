"""The JSON documents of `dsocr-analyze tree`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, UnsetType

from dsocr_analyze.module_tree import TreeNode
from dsocr_analyze.report.build import model_document, workload_document
from dsocr_analyze.report.document import SCHEMA_VERSION, Count, Workload
from dsocr_analyze.report.opening import ModelOpening, Options

if TYPE_CHECKING:
    from dsocr_analyze.figures import ModelSource
    from dsocr_analyze.report.tree import Leaves
    from dsocr_analyze.workload import AnyWorkload

__all__ = ["LeavesDocument", "TreeDocument", "TreeModule", "module_rows", "tree_document"]


class TreeModule(Struct, frozen=True, kw_only=True, rename={"class_name": "class"}):
    """A module. Keys from `calls` on are there where a page was traced.

    Attributes:
        name: Its path; empty for the model itself.
        class_name: Its class.
        stage: The stage that owns it; null for none.
        params: Parameters of it and of what is below.
        own_params: Parameters of its own.
        same_as: Path of an earlier module that is the same object; not there for most.
        calls: How often it was called.
        input: Shapes of the first call's inputs.
        output: Shapes of what it returned.
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
        workload: The page that was traced; null where none was.
        modules: Parents first.
    """

    workload: Workload | None
    modules: tuple[TreeModule, ...]


class LeavesDocument(ModelOpening, frozen=True, kw_only=True):
    """The leaf classes of a model.

    Attributes:
        stages: By stage, how many leaves there are of each class.
    """

    stages: Mapping[str, Mapping[str, Count]]


def tree_document(
    model: ModelSource,
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
        stage: The one that modules are shown of; None for all.
        workload: The page that was traced; None where none was.
        options: Of the command line.
    """
    if isinstance(shown, TreeNode):
        return TreeDocument(
            schema_version=SCHEMA_VERSION,
            command="tree",
            options=options,
            model=model_document(model),
            workload=None if workload is None else workload_document(workload),
            modules=tuple(module_rows(shown, stage)),
        )
    return LeavesDocument(
        schema_version=SCHEMA_VERSION,
        command="tree",
        options=options,
        model=model_document(model),
        stages=shown,
    )


def module_rows(root: TreeNode, stage: str | None = None) -> Iterable[TreeModule]:
    """A row a module, parents first; of one stage only its own."""
    for node in root.walk():
        if stage is None or node.stage == stage:
            row = node.as_row()
            yield TreeModule(class_name=row.pop("class"), **row)
