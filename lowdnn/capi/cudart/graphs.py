"""CUDA graphs: nodes one by one, what depends on what, instances."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowdnn.capi.cudart.memory import CopyKind, copy_kind
from lowdnn.capi.cudart.state import RuntimeState
from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, checked, read_array, write_array, write_outputs, write_pointer
from lowdnn.driver.base import Driver
from lowdnn.status import BadParamError, NotSupportedError

_KINDS = {CopyKind.HOST_TO_DEVICE: "htod", CopyKind.DEVICE_TO_HOST: "dtoh", CopyKind.DEVICE_TO_DEVICE: "dtod"}
#: cudaMemsetParams: the pointer, the pitch of rows, the value, the bytes of an element, elements of a row, rows.
_FILL = struct.Struct("<QQIIQQ")
_ELEMENT_BYTES = (1, 2, 4)


@dataclass(frozen=True)
class Fill:
    """``count`` times ``value`` in ``width_bytes`` bytes at ``destination``."""

    destination: int
    value: int
    count: int
    width_bytes: int


def create(state: RuntimeState, graph: Address, flags: int) -> None:
    checked(graph, "cudaGraphCreate.pGraph")
    if flags:
        raise BadParamError.at("cudaGraphCreate.flags", expected=0, got=flags)
    write_pointer(graph, state.entered().graph_create(), "cudaGraphCreate.pGraph")


def destroy(state: RuntimeState, graph: Address) -> None:
    state.entered().graph_destroy(graph or 0)


def get_nodes(state: RuntimeState, graph: Address, nodes: Address, count: Address) -> None:
    _tell(state.entered().graph_nodes(graph or 0), nodes, count, "cudaGraphGetNodes")


def get_roots(state: RuntimeState, graph: Address, nodes: Address, count: Address) -> None:
    _tell(state.entered().graph_calls.roots(graph or 0), nodes, count, "cudaGraphGetRootNodes")


def get_dependents(state: RuntimeState, node: Address, nodes: Address, edges: Address, count: Address) -> None:
    """Edges have no data here, so that ``edges`` has to be NULL."""
    where = "cudaGraphNodeGetDependentNodes"
    if edges:
        raise NotSupportedError.at(f"{where}.edgeData", expected="NULL", got=f"{edges:#x}")
    _tell(state.entered().graph_calls.dependents(node or 0), nodes, count, where)


def add_child(
    state: RuntimeState, node: Address, graph: Address, dependencies: Address, count: int, child: Address
) -> None:
    where = "cudaGraphAddChildGraphNode"
    after = _dependencies(dependencies, count, where)
    checked(node, f"{where}.pGraphNode")
    write_pointer(node, state.entered().graph_calls.add_child(graph or 0, after, child or 0), where)


def child_of(state: RuntimeState, node: Address, graph: Address) -> None:
    where = "cudaGraphChildGraphNodeGetGraph"
    checked(graph, f"{where}.pGraph")
    write_pointer(graph, state.entered().graph_calls.child(node or 0), where)


def add_copy(
    state: RuntimeState,
    node: Address,
    graph: Address,
    dependencies: Address,
    count: int,
    destination: Address,
    source: Address,
    size_bytes: int,
    kind: int,
) -> None:
    where = "cudaGraphAddMemcpyNode1D"
    driver, after = state.entered(), _dependencies(dependencies, count, where)
    checked(node, f"{where}.pGraphNode")
    to, of = destination or 0, source or 0
    named = _kind(driver, to, of, kind, where)
    write_pointer(node, driver.graph_calls.add_copy(graph or 0, after, to, of, size_bytes, kind=named), where)


def set_copy(
    state: RuntimeState, node: Address, destination: Address, source: Address, size_bytes: int, kind: int
) -> None:
    driver, to, of = state.entered(), destination or 0, source or 0
    named = _kind(driver, to, of, kind, "cudaGraphMemcpyNodeSetParams1D")
    driver.graph_calls.set_copy(node or 0, to, of, size_bytes, kind=named)


def add_fill(
    state: RuntimeState, node: Address, graph: Address, dependencies: Address, count: int, parameters: Address
) -> None:
    where = "cudaGraphAddMemsetNode"
    after, fill = _dependencies(dependencies, count, where), _fill(parameters, where)
    checked(node, f"{where}.pGraphNode")
    found = state.entered().graph_calls.add_fill(
        graph or 0, after, fill.destination, fill.value, fill.count, fill.width_bytes
    )
    write_pointer(node, found, where)


def set_fill(state: RuntimeState, node: Address, parameters: Address) -> None:
    fill = _fill(parameters, "cudaGraphMemsetNodeSetParams")
    state.entered().graph_calls.set_fill(node or 0, fill.destination, fill.value, fill.count, fill.width_bytes)


def instantiate(state: RuntimeState, instance: Address, graph: Address, flags: int) -> None:
    """Flags are ignored: none of them changes the work of the emulated device."""
    checked(instance, "cudaGraphInstantiate.pGraphExec")
    write_pointer(instance, state.entered().graph_instantiate(graph or 0), "cudaGraphInstantiate.pGraphExec")


def launch(state: RuntimeState, instance: Address, stream: Address) -> None:
    state.entered().graph_launch(instance or 0, stream or 0)


def update_instance(state: RuntimeState, instance: Address, graph: Address, result: Address) -> None:
    """``result``, where it is given, tells success; a failure's kind and node are not told beside the status."""
    state.entered().graph_exec_update(instance or 0, graph or 0)
    if result:
        write_outputs((result, "i", 0, "cudaGraphExecUpdate.resultInfo"))


def destroy_instance(state: RuntimeState, instance: Address) -> None:
    state.entered().graph_exec_destroy(instance or 0)


def _tell(found: Sequence[int], nodes: Address, count: Address, where: str) -> None:
    """Writes as many nodes as fit, fills up with NULL, and writes their number; without ``nodes``, writes the number of
    all."""
    if not nodes:
        write_outputs((count, "Q", len(found), f"{where}.count"))
        return
    (room,) = read_array(count, "Q", 1, f"{where}.count")
    told = (*found[:room], *(0,) * (room - len(found)))
    write_array(nodes, "Q", told, f"{where}.nodes")
    write_outputs((count, "Q", min(room, len(found)), f"{where}.count"))


def _dependencies(nodes: Address, count: int, where: str) -> tuple[int, ...]:
    return tuple(read_array(nodes, "Q", count, f"{where}.pDependencies"))


def _kind(driver: Driver, destination: int, source: int, kind: int, where: str) -> str:
    found = copy_kind(driver, destination, source, kind)
    if found not in _KINDS:
        raise NotSupportedError.at(f"{where}.kind", expected="a copy from or to the device", got=found.name)
    return _KINDS[found]


def _fill(parameters: Address, where: str) -> Fill:
    """The fill of the parameters' memory, which must be one row, or rows without gaps."""
    fields = read_array(parameters, "B", _FILL.size, f"{where}.params")
    destination, pitch_bytes, value, width_bytes, width, height = _FILL.unpack(bytes(fields))
    if width_bytes not in _ELEMENT_BYTES:
        raise BadParamError.at(f"{where}.elementSize", expected="1, 2 or 4", got=width_bytes)
    if height > 1 and pitch_bytes != width * width_bytes:
        expected = f"{width * width_bytes}, since rows lie one behind the other"
        raise NotSupportedError.at(f"{where}.pitch", expected=expected, got=pitch_bytes)
    return Fill(destination, value & (1 << 8 * width_bytes) - 1, width * height, width_bytes)


CALLS: Mapping[str, Call] = {
    "cudaGraphCreate": create,
    "cudaGraphDestroy": destroy,
    "cudaGraphGetNodes": get_nodes,
    "cudaGraphGetRootNodes": get_roots,
    "cudaGraphNodeGetDependentNodes": get_dependents,
    "cudaGraphAddChildGraphNode": add_child,
    "cudaGraphChildGraphNodeGetGraph": child_of,
    "cudaGraphAddMemcpyNode1D": add_copy,
    "cudaGraphMemcpyNodeSetParams1D": set_copy,
    "cudaGraphAddMemsetNode": add_fill,
    "cudaGraphMemsetNodeSetParams": set_fill,
    "cudaGraphInstantiate": instantiate,
    "cudaGraphLaunch": launch,
    "cudaGraphExecUpdate": update_instance,
    "cudaGraphExecDestroy": destroy_instance,
}
