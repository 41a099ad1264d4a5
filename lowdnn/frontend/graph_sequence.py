"""``lowdnn.GraphSequence``: graphs that run one after the other, with what lies between them in one arena."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

from lowdnn.backend.handle import Handle
from lowdnn.checks import mapping, optional, sequence, shown
from lowdnn.frontend.addresses import Need, device_getter
from lowdnn.frontend.arguments import text
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.workspace_pool import WorkspacePool
from lowdnn.plan import Plan, PlanTensor
from lowdnn.runtime.arena import Lifetime, pack
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.context import Context
from lowdnn.runtime.workspace import ALIGNMENT_BYTES, size_anywhere
from lowdnn.status import AttributeTypeError, BadParamError, DuplicatedEntriesError, ShapeMismatchError

_WHERE = "GraphSequence"


class Graph(Protocol):
    """A pygraph that is built."""

    name: str

    @property
    def handle(self) -> Handle: ...

    @property
    def plan(self) -> Plan: ...

    def get_workspace_size(self) -> int: ...

    def find_tensor(self, name_or_uid: str | int) -> Tensor | None: ...

    def execute(self, tensor_dict: Mapping[Any, object], workspace: object, handle: Handle) -> None: ...


@dataclass(frozen=True)
class Placed:
    """A tensor between steps, or the workspace of one, in the arena.

    first, last: the steps from which and up to which it is in use, counted from 0.
    """

    name: str
    offset: int
    size_bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class SequenceMemory:
    """The memory of a sequence for the tensors between its steps, and for their workspaces; sizes in bytes.

    tensors: the intermediates with their places.  workspaces: a place for each step.
    size_bytes: the arena's.  lower_bound_bytes: the most that is in use in one step; no arena is smaller.
    separate_bytes: each tensor in memory of its own, beside one workspace for all steps.
    """

    tensors: tuple[Placed, ...]
    workspaces: tuple[Placed, ...]
    size_bytes: int
    lower_bound_bytes: int
    separate_bytes: int

    def __str__(self) -> str:
        share = 100 * self.size_bytes / self.separate_bytes if self.separate_bytes else 100.0
        return (
            f"{len(self.workspaces)} steps, {len(self.tensors)} tensors between them: an arena of {self.size_bytes} "
            f"bytes, {share:.0f} % of {self.separate_bytes}; no arena has less than {self.lower_bound_bytes}"
        )


@dataclass(frozen=True)
class _Step:
    """names: names in the sequence of the graph's tensors, by uid.  tensors: these tensors by name."""

    graph: Graph
    names: Mapping[int, str]
    tensors: Mapping[str, PlanTensor]
    workspace_bytes: int


@dataclass(frozen=True)
class _BoundStep:
    """A step with the arena at one address.

    inside: the graph's tensors in the arena, by uid.  given: names of those that the caller gives, by uid.
    """

    execute: Callable[[Mapping[Any, object], object, Handle], None]
    inside: Mapping[int, DeviceBuffer]
    given: Mapping[int, str]
    workspace: DeviceBuffer | None


@dataclass(frozen=True)
class _Bound:
    """All steps with the arena at one address of a context."""

    base: int
    context: Context
    steps: Sequence[_BoundStep]


class GraphSequence:
    """Graphs that run one after the other in one stream, and share memory by lifetime.

        step = lowdnn.GraphSequence()
        step.add(first, {"y": "hidden"}).add(second, {"x": "hidden", "y": "loss"})
        step.execute({"x": x, "w": w, "loss": loss}, lowdnn.empty((step.get_workspace_size(),), handle, UINT8))

    Tensors are linked by name: one that a graph writes and a later one reads is an intermediate, which lies in the
    arena from the first to the last step that uses it, beside the workspaces of the steps. The caller gives every other
    tensor to ``execute``. A graph keeps its plan once it has been added. Not safe to share between threads.
    """

    def __init__(self, outputs: Sequence[str] = ()) -> None:
        """``outputs``: names of tensors that the caller gets although a later graph reads them."""
        where = f"{_WHERE}.outputs"
        self._outputs = frozenset(text(name, where) for name in sequence(outputs, where, "names"))
        self._steps: list[_Step] = []
        self._bound: _Bound | None = None

    def add(self, graph: Graph, tensors: Mapping[Any, str] | None = None) -> Self:
        """Adds a graph that has been built; it runs after those added before.

        tensors: names in the sequence for tensors of the graph, by tensor, name or uid; by default their own names. Two
        inputs may have one name.
        Raises BadParamError for a tensor that the graph does not have, or that has no name; DuplicatedEntriesError for
        one that an earlier graph writes already; ShapeMismatchError where a graph reads more than another has written,
        or another data type.
        """
        if not hasattr(graph, "plan"):
            raise AttributeTypeError.at(f"{_WHERE}.add.graph", expected="a pygraph that is built", got=shown(graph))
        names = _names(graph, {} if tensors is None else mapping(tensors, f"{_WHERE}.add.tensors", "names by tensor"))
        # Inputs may share a name; the largest says how many bytes are read.
        ordered = sorted(graph.plan.tensors, key=lambda tensor: tensor.size_bytes)
        named = {names[tensor.uid]: tensor for tensor in ordered if tensor.uid in names}
        written = self._written()
        for name, tensor in named.items():
            if name in written:
                _check_link(name, tensor, *written[name])
        self._steps.append(_Step(graph, names, named, graph.get_workspace_size()))
        self.__dict__.pop("memory", None)
        self._bound = None
        return self

    @property
    def handle(self) -> Handle:
        """The handle of the first graph."""
        if not self._steps:
            raise BadParamError.at(_WHERE, expected="graphs, which add takes", got="none")
        return self._steps[0].graph.handle

    @cached_property
    def memory(self) -> SequenceMemory:
        """The places in the arena and its size; needs no device.

        Raises BadParamError where ``outputs`` has a name that no tensor has.
        """
        self._check_outputs()
        tensors = self._intermediates()
        workspaces = {
            f"workspace of step {number}": Lifetime(step.workspace_bytes, number, number)
            for number, step in enumerate(self._steps)
        }
        packing = pack([*tensors.values(), *workspaces.values()])
        named = zip((*tensors.items(), *workspaces.items()), packing.offsets, strict=True)
        placed = [Placed(name, offset, item.size_bytes, item.first, item.last) for (name, item), offset in named]
        needs = [step.workspace_bytes for step in self._steps]
        return SequenceMemory(
            tuple(placed[: len(tensors)]),
            tuple(placed[len(tensors) :]),
            packing.size_bytes,
            packing.lower_bound_bytes,
            packing.sum_bytes - sum(needs) + max(needs, default=0),
        )

    def get_workspace_size(self) -> int:
        """Bytes of the arena, at any address."""
        return size_anywhere(self.memory.size_bytes)

    def execute(self, values: Mapping[str, object], workspace: object = None, handle: Handle | None = None) -> None:
        """Launches all graphs into the handle's stream; does not wait.

        values: the tensors outside of the arena by name, each value as in ``pygraph.execute``.
        workspace: ``get_workspace_size()`` bytes at any address, as in ``pygraph.execute``, or a WorkspacePool.
        handle: by default the handle of the first graph.
        Raises BadParamError for a name that is missing or unknown, and what ``pygraph.execute`` raises.
        """
        chosen = optional(handle, Handle, f"{_WHERE}.execute.handle") or self.handle
        self._check_values(values)
        need = Need(f"{_WHERE}.execute.workspace", self.get_workspace_size())
        if not need.size_bytes:
            self._launch(values, 0, chosen)
        elif isinstance(workspace, WorkspacePool):
            with workspace.lock:
                address = workspace.address(need.size_bytes, chosen.runtime.context, chosen.stream, _WHERE)
                self._launch(values, address, chosen)
        elif workspace is None:
            raise BadParamError.at(need.where, expected=f"{need.size_bytes} bytes, or a WorkspacePool", got="None")
        else:
            kept: list[object] = []
            self._launch(values, device_getter(workspace)(workspace, chosen, need, kept), chosen)

    def _launch(self, values: Mapping[str, object], address: int, handle: Handle) -> None:
        bound = self._bound
        base = -(-address // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if bound is None or bound.base != base or bound.context is not handle.runtime.context:
            bound = self._bound = self._bind(base, handle.runtime.context)
        for step in bound.steps:
            pack: Mapping[Any, object] = step.inside
            if step.given:
                pack = {**pack, **{uid: values[name] for uid, name in step.given.items()}}
            step.execute(pack, step.workspace, handle)

    def _bind(self, base: int, context: Context) -> _Bound:
        def part(placed: Placed) -> DeviceBuffer:
            return DeviceBuffer(context, base + placed.offset, placed.size_bytes)

        parts = {placed.name: part(placed) for placed in self.memory.tensors}
        steps = [
            _BoundStep(
                execute=step.graph.execute,
                inside={uid: parts[name] for uid, name in step.names.items() if name in parts},
                given={uid: name for uid, name in step.names.items() if name not in parts},
                workspace=part(workspace) if workspace.size_bytes else None,
            )
            for step, workspace in zip(self._steps, self.memory.workspaces, strict=True)
        ]
        return _Bound(base, context, steps)

    def _written(self) -> dict[str, tuple[int, PlanTensor]]:
        """The step that writes a tensor, and what it writes, by name."""
        return {
            name: (number, tensor)
            for number, step in enumerate(self._steps)
            for name, tensor in step.tensors.items()
            if tensor.is_output
        }

    def _intermediates(self) -> dict[str, Lifetime]:
        """The tensors in the arena: no step reads them before they are written, and a later one does."""
        used: dict[str, list[int]] = {}
        for number, step in enumerate(self._steps):
            for name in step.tensors:
                used.setdefault(name, []).append(number)
        return {
            name: Lifetime(tensor.size_bytes, first, used[name][-1], max(tensor.alignment_bytes, ALIGNMENT_BYTES))
            for name, (first, tensor) in self._written().items()
            if name not in self._outputs and used[name][0] == first < used[name][-1]
        }

    def _check_outputs(self) -> None:
        names = self._names()
        if not self._outputs <= names:
            expected, got = f"some of {', '.join(sorted(names))}", ", ".join(sorted(self._outputs - names))
            raise BadParamError.at(f"{_WHERE}.outputs", expected=expected, got=got)

    def _names(self) -> set[str]:
        return {name for step in self._steps for name in step.tensors}

    def _check_values(self, values: object) -> None:
        where = f"{_WHERE}.execute.values"
        given = mapping(values, where, "values by name").keys()
        names = self._names() - {placed.name for placed in self.memory.tensors}
        if names != given:
            missing, unknown = sorted(names - given), sorted(map(str, given - names))
            got = f"no {', '.join(missing)}" if missing else f"{', '.join(unknown)} besides"
            raise BadParamError.at(where, expected=f"values for {', '.join(sorted(names))}", got=got)


def _names(graph: Graph, given: Mapping[Any, str]) -> dict[int, str]:
    """The sequence's name of each tensor of the graph's plan, by uid; an output's is no other tensor's.

    A tensor that has a value of its own is left out unless it is given a name.
    """
    renamed: dict[int, str] = {}
    for key, name in given.items():
        tensor = key if isinstance(key, Tensor) else graph.find_tensor(key)
        if tensor is None or all(tensor.get_uid() != each.uid for each in graph.plan.tensors):
            known = ", ".join(repr(each.name) for each in graph.plan.tensors)
            raise BadParamError.at(f"{_WHERE}.add.tensors", expected=f"one of {known}", got=shown(key))
        renamed[tensor.get_uid()] = text(name, f"{_WHERE}.add.tensors")
    found = {}
    for planned in graph.plan.tensors:
        own = graph.find_tensor(planned.uid)
        if planned.uid in renamed or own is None or own.get_pass_by_value() is None:
            found[planned.uid] = renamed.get(planned.uid) or planned.name
    counts = Counter(found.values())
    for planned in graph.plan.tensors:
        called = found.get(planned.uid)
        if called == "" or (called is not None and planned.is_output and counts[called] > 1):
            expected = "a name for each tensor of the graph, and for each output one of its own"
            raise BadParamError.at(f"{_WHERE}.add.tensors", expected=expected, got=f"{called!r} for uid {planned.uid}")
    return found


def _check_link(name: str, tensor: PlanTensor, number: int, written: PlanTensor) -> None:
    """Raises unless a new step may have ``tensor`` where step ``number`` has ``written``."""
    where = f"{_WHERE}.add.{name}"
    if tensor.is_output:
        raise DuplicatedEntriesError.at(where, expected=f"a name that step {number} does not write", got="it again")
    facts = [f"{each.size_bytes} bytes of {each.data_type.name}" for each in (written, tensor)]
    if tensor.size_bytes > written.size_bytes or tensor.data_type is not written.data_type or tensor.is_by_value:
        raise ShapeMismatchError.at(where, expected=f"{facts[0]}, as step {number} writes", got=facts[1])
