"""The module tree of a model: nodes, folding of repeated layers, leaf classes by stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from torch import nn

NestedShapes: TypeAlias = "list[int] | list[NestedShapes] | None"
"""One shape, or those of several tensors, nested as they were."""

OwnerOf = Callable[[str], str | None]
"""The stage, if any, that owns a module's path."""

Count = Annotated[int, Meta(ge=0)]

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
"""PyTorch primitives, leaves even with modules of their own."""


class TracedModule(NamedTuple):
    """What a traced pass recorded of one module, with FLOPs of everything below.

    Shapes are the first call's, nested like its arguments and results.
    """

    calls: int = 0
    input: NestedShapes = None
    output: NestedShapes = None
    flops: int = 0


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


class TreeNode(NamedTuple):
    """One module and those below.

    Attributes:
        label: Last part of its path; `[first-last] x count` of a run of equal siblings, for which
            the first stands.
        module: A shared parameter counts at its first place in the tree.
        shapes: Of its own parameters.
        children: Those of a module that occurs twice are at its first place.
    """

    label: str
    module: TreeModule
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    children: tuple[TreeNode, ...]

    def walk(self) -> Iterator[TreeNode]:
        """This node and all below, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def build_tree(
    model: nn.Module, owner_of: OwnerOf, traced: Mapping[str, TracedModule] | None = None
) -> TreeNode:
    """The tree of any module; `traced` is what a pass recorded, by path, if one ran."""
    paths: dict[nn.Module, str] = {}
    counted: set[nn.Parameter] = set()

    def node(module: nn.Module, path: str) -> TreeNode:
        first = paths.setdefault(module, path)
        is_first = first == path
        parameters = dict(module.named_parameters(recurse=False)) if is_first else {}
        own = sum(each.numel() for each in {*parameters.values()} - counted)
        counted.update(parameters.values())
        below = _children(module, path) if is_first else {}
        children = tuple(node(child, name) for name, child in below.items())
        found = TreeModule(
            name=path,
            class_name=type(module).__name__,
            stage=owner_of(path),
            params=own + sum(child.module.params for child in children),
            own_params=own,
            same_as=UNSET if is_first else first,
            **({} if traced is None else traced.get(path, TracedModule())._asdict()),
        )
        shapes = tuple((name, tuple(each.shape)) for name, each in parameters.items())
        return TreeNode(path.rpartition(".")[2], found, shapes, children)

    return node(model, "")


def _children(module: nn.Module, path: str) -> dict[str, nn.Module]:
    """Each child by its path; a module registered twice is listed twice."""
    return {
        f"{path}.{name}" if path else name: child
        for name, child in module._modules.items()
        if child is not None
    }


def prune(node: TreeNode, *, depth: int | None = None, stage: str | None = None) -> TreeNode | None:
    """The tree to `depth` levels below its root, or what a stage owns, if any, and is above it."""
    if stage is not None and all(part.module.stage != stage for part in node.walk()):
        return None
    below = None if depth is None else depth - 1
    kept = (prune(child, depth=below, stage=stage) for child in node.children if depth != 0)
    return node._replace(children=tuple(child for child in kept if child is not None))


# --- folding ---------------------------------------------------------------------------------


def fold(root: TreeNode) -> TreeNode:
    """Folds runs of numbered siblings that differ only in position into the first."""
    kinds: dict[Hashable, int] = {}
    kind_of: dict[str, int] = {}  # equal for nodes that differ only in position
    for node in reversed([*root.walk()]):
        children = tuple((child.label, kind_of[child.module.name]) for child in node.children)
        unnamed = msgspec.json.encode(msgspec.structs.replace(node.module, name=""))
        kind = kinds.setdefault((unnamed, node.shapes, children), len(kinds))
        kind_of[node.module.name] = kind

    def continues(one: TreeNode, other: TreeNode) -> bool:
        are_numbered = one.label.isdecimal() and other.label.isdecimal()
        is_alike = kind_of[one.module.name] == kind_of[other.module.name]
        return are_numbered and is_alike and int(other.label) == int(one.label) + 1

    def folded(first: TreeNode, *others: TreeNode) -> TreeNode:
        runs: list[list[TreeNode]] = []
        for child in first.children:
            if runs and continues(runs[-1][-1], child):
                runs[-1].append(child)
            else:
                runs.append([child])
        run = f"[{first.label}-{others[-1].label}] x {1 + len(others)}" if others else first.label
        return first._replace(label=run, children=tuple(folded(*each) for each in runs))

    return folded(root)


# --- leaves ----------------------------------------------------------------------------------


def leaf_classes(
    model: nn.Module, stages: Iterable[str], owner_of: OwnerOf
) -> dict[str, dict[str, int]]:
    """Counts the classes of leaves by stage, the last being `other`.

    A leaf is a module without children, or one of `_LEAF_TYPES` with all below it.
    """
    counts: dict[str, Counter[str]] = {stage: Counter() for stage in (*stages, "other")}
    seen: set[nn.Module] = set()

    def visit(module: nn.Module, path: str) -> None:
        if module not in seen:
            seen.add(module)
            children = {} if isinstance(module, _LEAF_TYPES) else _children(module, path)
            if not children:
                counts[owner_of(path) or "other"][type(module).__name__] += 1
            for below, child in children.items():
                visit(child, below)

    visit(model, "")
    return {stage: dict(sorted(found.items())) for stage, found in counts.items() if found}
