"""The module tree of a model: nodes, folding of repeated layers, leaf classes by stage."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from torch import nn

__all__ = [
    "FoldedNode",
    "NestedShapes",
    "OwnerOf",
    "TracedModule",
    "TreeNode",
    "build_tree",
    "fold",
    "leaf_classes",
    "prune",
]

NestedShapes: TypeAlias = "list[int] | list[NestedShapes] | None"
"""One shape, or those of several tensors, nested as they were."""

OwnerOf = Callable[[str], str | None]
"""Maps a module path to the stage that owns it, or None: an architecture's `owner_of`."""

_LEAF_TYPES: Final[tuple[type[nn.Module], ...]] = (
    nn.Linear,
    nn.Conv2d,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.Embedding,
    nn.MultiheadAttention,
    nn.SiLU,
    nn.ReLU,
    nn.GELU,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.MaxPool2d,
)
"""PyTorch primitives treated as leaves, even if they contain modules of their own."""


@dataclass(frozen=True, slots=True)
class TracedModule:
    """What a traced pass recorded of one module.

    Attributes:
        calls: Number of calls.
        inputs: Shapes of the first call's arguments, nested like them; None for a non-tensor.
        outputs: Shapes of the first call's results.
        flops: FLOPs of the module and everything below.
    """

    calls: int = 0
    inputs: NestedShapes = None
    outputs: NestedShapes = None
    flops: int = 0


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One module.

    Attributes:
        path: Dotted path from the model; empty for the model itself.
        name: Last component of the path; empty for the model itself.
        class_name: Its class.
        stage: Stage that owns it, or None.
        params: Elements of the parameters at and below it; a shared one counts at its first place.
        own_params: Elements of its own parameters.
        shapes: Shapes of its own parameters, by name.
        children: Nodes below; none if the same module occurs earlier in the tree.
        same_as: Path of that earlier occurrence, or None.
        traced: What a pass recorded, or None without a trace.
    """

    path: str
    name: str
    class_name: str
    stage: str | None
    params: int
    own_params: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    children: tuple[TreeNode, ...] = ()
    same_as: str | None = None
    traced: TracedModule | None = None

    def walk(self) -> Iterator[TreeNode]:
        """Yields this node and all below, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def as_row(self) -> dict[str, Any]:
        """The node without its children, as JSON types."""
        row: dict[str, Any] = {
            "name": self.path,
            "class": self.class_name,
            "stage": self.stage,
            "params": self.params,
            "own_params": self.own_params,
        }
        if self.same_as is not None:
            row["same_as"] = self.same_as
        if self.traced is not None:
            row["calls"] = self.traced.calls
            row["input"] = self.traced.inputs
            row["output"] = self.traced.outputs
            row["flops"] = self.traced.flops
        return row


def build_tree(
    model: nn.Module, owner_of: OwnerOf, traced: Mapping[str, TracedModule] | None = None
) -> TreeNode:
    """Builds the tree of any module.

    Args:
        model: The root.
        owner_of: Maps a path to its stage.
        traced: What a pass recorded of each called module, by path; None without a trace.
    """
    return _Builder(owner_of, traced).node(model, "", "")


@dataclass
class _Builder:
    owner_of: OwnerOf
    traced: Mapping[str, TracedModule] | None
    paths: dict[nn.Module, str] = field(default_factory=dict)
    counted: set[int] = field(default_factory=set)

    def node(self, module: nn.Module, path: str, name: str) -> TreeNode:
        first = self.paths.setdefault(module, path)
        is_first = first == path
        own, shapes = self._own_parameters(module) if is_first else (0, ())
        children = tuple(
            self.node(child, below, key)
            for key, below, child in (_children(module, path) if is_first else ())
        )
        return TreeNode(
            path=path,
            name=name,
            class_name=type(module).__name__,
            stage=self.owner_of(path),
            params=own + sum(child.params for child in children),
            own_params=own,
            shapes=shapes,
            children=children,
            same_as=None if is_first else first,
            traced=None if self.traced is None else self.traced.get(path, TracedModule()),
        )

    def _own_parameters(
        self, module: nn.Module
    ) -> tuple[int, tuple[tuple[str, tuple[int, ...]], ...]]:
        """How many elements no earlier module has counted, and the shape of each parameter."""
        own, shapes = 0, []
        for key, parameter in module.named_parameters(recurse=False):
            shapes.append((key, tuple(parameter.shape)))
            if id(parameter) not in self.counted:
                self.counted.add(id(parameter))
                own += parameter.numel()
        return own, tuple(shapes)


def _children(module: nn.Module, path: str) -> list[tuple[str, str, nn.Module]]:
    """Name, path and module of each child; a module registered twice is listed twice."""
    return [
        (key, f"{path}.{key}" if path else key, child)
        for key, child in module._modules.items()
        if child is not None
    ]


def prune(node: TreeNode, *, depth: int | None = None, stage: str | None = None) -> TreeNode | None:
    """Cuts the tree at a depth, or to what one stage owns and the modules above that.

    Args:
        node: The root.
        depth: Levels to keep below the root; None for all.
        stage: Stage to keep; None for all.

    Returns:
        The smaller tree, or None if nothing of it is left.
    """
    if depth is None and stage is None:
        return node
    below = None if depth is None else depth - 1
    children: tuple[TreeNode, ...] = ()
    if depth is None or depth > 0:
        kept = (prune(child, depth=below, stage=stage) for child in node.children)
        children = tuple(child for child in kept if child is not None)
    is_kept = stage is None or node.stage == stage or bool(children)
    if not is_kept and not any(part.stage == stage for part in node.walk()):
        return None
    return replace(node, children=children)


# --- folding ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoldedNode:
    """One node, or a run of equal siblings numbered consecutively.

    Attributes:
        node: The node, or the first of the run.
        last: Name of the run's last node; `node.name` for a single node.
        count: Number of nodes in the run.
        children: Folded children of `node`.
    """

    node: TreeNode
    last: str
    count: int
    children: tuple[FoldedNode, ...]

    @property
    def label(self) -> str:
        """`name`, or `[first-last] x count`; the model itself has no name."""
        if self.count == 1:
            return self.node.name
        return f"[{self.node.name}-{self.last}] x {self.count}"


def fold(node: TreeNode) -> FoldedNode:
    """Folds runs of siblings `1`, `2`, `3`, ... that differ only in position.

    Nodes are equal if their class, stage, parameter shapes and children are equal and, with a
    trace, also their calls, shapes and FLOPs.
    """
    return _Folder().folded(node)


class _Folder:
    def __init__(self) -> None:
        self._kinds: dict[Hashable, int] = {}
        self._kind_of: dict[str, int] = {}

    def folded(self, node: TreeNode) -> FoldedNode:
        runs: list[list[TreeNode]] = []
        for child in node.children:
            if runs and self._continues(runs[-1][-1], child):
                runs[-1].append(child)
            else:
                runs.append([child])
        children = tuple(
            FoldedNode(run[0], run[-1].name, len(run), self.folded(run[0]).children) for run in runs
        )
        return FoldedNode(node, node.name, 1, children)

    def _continues(self, one: TreeNode, other: TreeNode) -> bool:
        if not (one.name.isdecimal() and other.name.isdecimal()):
            return False
        return int(other.name) == int(one.name) + 1 and self._kind(one) == self._kind(other)

    def _kind(self, node: TreeNode) -> int:
        """A number shared by nodes that differ only in position."""
        kind = self._kind_of.get(node.path)
        if kind is None:
            children = tuple((child.name, self._kind(child)) for child in node.children)
            row = json.dumps({**node.as_row(), "name": None})
            kind = self._kinds.setdefault((row, node.shapes, children), len(self._kinds))
            self._kind_of[node.path] = kind
        return kind


# --- leaves ----------------------------------------------------------------------------------


def leaf_classes(
    model: nn.Module, stages: Iterable[str], owner_of: OwnerOf
) -> dict[str, dict[str, int]]:
    """Counts the classes of the leaves, by owning stage (`other` for none).

    A leaf is a module without children or one of `_LEAF_TYPES`; anything below one of those is
    part of it.

    Args:
        model: The root.
        stages: Names of the stages, in order.
        owner_of: Maps a path to its stage.
    """
    counts: dict[str, Counter[str]] = {stage: Counter() for stage in (*stages, "other")}
    seen: set[nn.Module] = set()

    def visit(module: nn.Module, path: str) -> None:
        if module in seen:
            return
        seen.add(module)
        children = _children(module, path)
        if not children or isinstance(module, _LEAF_TYPES):
            counts[owner_of(path) or "other"][type(module).__name__] += 1
            return
        for _, below, child in children:
            visit(child, below)

    visit(model, "")
    return {stage: dict(sorted(found.items())) for stage, found in counts.items() if found}
