"""Random calls of the backend: descriptors of every type, right and nearly right, and their executes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from random import Random
from typing import Any

import numpy as np

from lowdnn.backend import Descriptor, Handle, create, execute
from lowdnn.backend.catalogue import declarations
from lowdnn.backend.read_only import read_only_of
from lowdnn.cases import parse_case
from lowdnn.enums import AttributeName, AttributeType, DescriptorType, HeurMode
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.schema import ELEMENT_TYPES, Attribute, attributes_of
from tools.checks.stress_handles import Handles
from tools.checks.stress_values import Values

N, T, D = AttributeName, AttributeType, DescriptorType

#: Graphs that run in a moment on the emulated device.
CASES = (
    "pointwise dims=4x8 ops=add+relu",
    "pointwise dims=4x8 ops=scalar",
    "reduction dims=4x8 axes=1 op=add",
    "matmul m=4 n=4 k=4",
    "norm dims=4x16 mode=layer",
    "softmax dims=4x16",
    "transform op=transpose dims=3x4 perm=1,0",
    "conv n=1 c=4 hw=4x4 k=4 rs=3x3 pad=1",
    "resample n=1 c=1 hw=4x4 mode=max window=2",
    "rng dims=8",
    "rope b=1 h=1 s=4 d=8",
    "block_scale dims=4x32 axis=1",
    "sdpa b=1 h=1 q=4 d=16",
)
_MOST_KEPT = 30


class BackendCalls:
    """``draw_call`` gives a name and a call; what succeeds is kept for later ones."""

    def __init__(self, draw: Random, handles: Handles) -> None:
        self._draw = draw
        self._handles = handles
        self._values = Values(draw)
        self._kept: dict[DescriptorType, list[Descriptor]] = {}
        graphs = [list(parse_case(line).graph().operations) for line in CASES]
        declared = set(declarations().values())
        self._operations = [graph for graph in graphs if {type(operation) for operation in graph} <= declared]
        self._host = np.ones(8, np.float64)
        self._calls: tuple[tuple[int, Callable[[], object]], ...] = (
            (10, self.create),
            (30, self.set_attribute),
            (10, self.finalize),
            (20, self.get_attribute),
            (10, self.replay),
            (3, self.plan),
            (8, self.execute),
            (4, self.inspect),
        )

    def draw_call(self) -> tuple[str, Callable[[], object]]:
        call = self._draw.choices([call for _, call in self._calls], [weight for weight, _ in self._calls])[0]
        return f"backend.{call.__name__}", call

    def create(self) -> None:
        wanted = self._draw.choice((*declarations(), self._values.one_of(list(D)), self._values.garbage()))
        self._keep(create(wanted))

    def set_attribute(self) -> None:
        descriptor = self._any(is_finalized=False)
        declared = list(attributes_of(declarations()[descriptor.type]).values())
        if not declared or self._draw.random() < 0.1:
            name = self._values.one_of([*N, self._values.garbage()])
            descriptor.set_attribute(name, self._values.one_of(list(T)), self._values.garbage())
            return
        self._set(descriptor, self._draw.choice(declared), self._plausible)

    def finalize(self) -> None:
        self._any(is_finalized=False).finalize()

    def get_attribute(self) -> None:
        descriptor = self._any(is_finalized=True)
        declaration = declarations()[descriptor.type]
        types = {name: item.types[0] for name, item in attributes_of(declaration).items()}
        types |= {name: item.type for name, item in read_only_of(declaration).items()}
        name = self._odd(self._values.one_of(list(types)))
        wanted = self._odd(types.get(name, T.INT64) if isinstance(name, N) else T.INT64)
        count = self._odd(None) if self._draw.random() < 0.8 else self._values.integer()
        if self._draw.random() < 0.3:
            descriptor.get_attribute_count(name, wanted)
        else:
            for found in descriptor.get_attribute(name, wanted, count):
                if isinstance(found, Descriptor):
                    self._keep(found)

    def replay(self) -> None:
        """Sets the attributes of a known operation's descriptor one by one, now and then one of them wrong."""
        value = self._draw.choice(self._draw.choice(self._operations))
        if type(value) not in declarations().values():
            return
        descriptor = create(value.descriptor_type)
        self._keep(descriptor)
        for declared in attributes_of(type(value)).values():
            found = getattr(value, declared.field)
            if found is not None and found != ():
                self._set(descriptor, declared, lambda _, found=found: _as_attribute(found))
        descriptor.finalize()

    def plan(self) -> None:
        """Makes the descriptors from operations to a plan."""
        handle = self._handles.any()
        graph = create(D.OPERATIONGRAPH)
        operations = [Descriptor.of(operation) for operation in self._draw.choice(self._operations)]
        graph.set_attribute(N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, self._odd(operations))
        graph.set_attribute(N.OPERATIONGRAPH_HANDLE, T.HANDLE, self._odd(handle))
        graph.finalize()
        heuristics = create(D.ENGINEHEUR)
        heuristics.set_attribute(N.ENGINEHEUR_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, graph)
        heuristics.set_attribute(N.ENGINEHEUR_MODE, T.HEUR_MODE, self._odd(self._draw.choice(list(HeurMode))))
        heuristics.finalize()
        found = heuristics.get_attribute(N.ENGINEHEUR_RESULTS, T.BACKEND_DESCRIPTOR)
        plan = create(D.EXECUTION_PLAN)
        plan.set_attribute(N.EXECUTION_PLAN_ENGINE_CONFIG, T.BACKEND_DESCRIPTOR, self._odd(found[:1]))
        plan.set_attribute(N.EXECUTION_PLAN_HANDLE, T.HANDLE, self._odd(handle))
        plan.finalize()
        for descriptor in (graph, heuristics, plan, *found):
            self._keep(descriptor)

    def execute(self) -> None:
        """Executes a plan with buffers of its sizes, or with pointers missing, wrong, null, misaligned or freed."""
        plan, handle = self._values.one_of(self._kept.get(D.EXECUTION_PLAN, [])), self._handles.any()
        if not isinstance(plan, Descriptor) or not plan.is_finalized or self._draw.random() < 0.05:
            try:
                execute(self._odd(handle), self._odd(plan), self._odd(self._any()))
            finally:
                self._handles.replace_broken()
            return
        buffers = [
            DeviceBuffer.allocate(handle.runtime.context, max(tensor.size_bytes, 1))
            for tensor in plan.value.plan.tensors
        ]
        pointers = {
            tensor.uid: int(self._host.ctypes.data) if tensor.is_by_value else buffer.address
            for tensor, buffer in zip(plan.value.plan.tensors, buffers, strict=True)
        }
        workspace = DeviceBuffer.allocate(handle.runtime.context, plan.value.plan.workspace_bytes + 1)
        try:
            for buffer in buffers:
                buffer.fill_bytes(0)
            self._disturb(pointers)
            pack = self._variant_pack(pointers, self._odd(workspace.address))
            execute(handle, plan, pack)
            handle.synchronize()
        finally:
            for buffer in (*buffers, workspace):
                buffer.close()
            self._handles.replace_broken()

    def inspect(self) -> None:
        descriptor = self._any()
        repr(descriptor)
        _ = descriptor.is_finalized
        _ = descriptor.value

    def _variant_pack(self, pointers: dict[int, int], workspace: Any) -> Descriptor:
        pack = create(D.VARIANT_PACK)
        pack.set_attribute(N.VARIANT_PACK_UNIQUE_IDS, T.INT64, tuple(pointers))
        pack.set_attribute(N.VARIANT_PACK_DATA_POINTERS, T.VOID_PTR, tuple(pointers.values()))
        pack.set_attribute(N.VARIANT_PACK_WORKSPACE, T.VOID_PTR, workspace)
        pack.finalize()
        self._keep(pack)
        return pack

    def _disturb(self, pointers: dict[int, int]) -> None:
        if self._draw.random() < 0.7 or not pointers:
            return
        uid = self._draw.choice(list(pointers))
        match self._draw.randrange(5):
            case 0:
                del pointers[uid]
            case 1:
                pointers[self._draw.choice((99, -5, 2**40))] = 4096
            case 2:
                pointers[uid] = 0
            case 3:
                # An address of another allocation's middle: the device detects memory that is not its own.
                pointers[uid] += self._draw.choice((1, 4, 8))
            case 4:
                is_host = pointers[uid] == self._host.ctypes.data
                pointers[uid] = self._draw.choice((0, 3, 65535)) if is_host else self._odd(pointers[uid])

    def _set(self, descriptor: Descriptor, declared: Attribute, value_of: Callable[[Attribute], Any]) -> None:
        values = self._odd(value_of(declared))
        kind = declared.types[-1] if isinstance(values, int) and len(declared.types) > 1 else declared.types[0]
        name, kind = self._odd(declared.name), self._odd(kind)
        if self._draw.random() < 0.9:
            descriptor.set_attribute(name, kind, values)
        else:
            descriptor.set_attribute(name, kind, values, self._values.integer())

    def _plausible(self, declared: Attribute) -> Any:
        """Values of the attribute's type; descriptors are drawn from those that are kept."""
        count = self._draw.randint(0, min(declared.max_count, 5)) if declared.max_count > 1 else 1
        return [self._element(declared) for _ in range(count)]

    def _element(self, declared: Attribute) -> Any:
        kind = self._draw.choice(declared.types)
        if kind is T.BACKEND_DESCRIPTOR:
            fitting = [one for wanted in declared.descriptors or D for one in self._kept.get(wanted, [])]
            return self._values.one_of(fitting)
        if kind is T.HANDLE:
            return self._handles.any()
        if kind is T.VOID_PTR and len(declared.types) > 1:
            return self._draw.choice((0, 1, 128))  # the call reads there; a higher address may not be mapped
        wanted = ELEMENT_TYPES.get(kind)
        if wanted is float:
            return self._values.number()
        if wanted is int:
            return self._values.integer()
        if wanted is str:
            return self._values.name()
        if wanted is bool:
            return self._draw.choice((True, False))
        return self._values.one_of(list(wanted)) if isinstance(wanted, type(D)) else self._values.garbage()

    def _odd(self, value: Any) -> Any:
        """The value, seldom something else."""
        return self._values.garbage() if self._draw.random() < 0.02 else value

    def _any(self, is_finalized: bool | None = None) -> Descriptor:
        """One of the kept descriptors, mostly one in the wanted state."""
        kept = [descriptor for descriptors in self._kept.values() for descriptor in descriptors]
        if is_finalized is not None and self._draw.random() < 0.9:
            kept = [descriptor for descriptor in kept if descriptor.is_finalized is is_finalized]
        return self._draw.choice(kept) if kept else create(D.TENSOR)

    def _keep(self, descriptor: Descriptor) -> None:
        kept = self._kept.setdefault(descriptor.type, [])
        kept.append(descriptor)
        if len(kept) > _MOST_KEPT:
            kept.pop(self._draw.randrange(len(kept)))


def _as_attribute(value: Any) -> Any:
    """The value that ``set_attribute`` takes for a field."""
    if isinstance(value, tuple):
        return [_as_attribute(element) for element in value]
    return Descriptor.of(value) if is_dataclass(value) and not isinstance(value, Handle) else value
