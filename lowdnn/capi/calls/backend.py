"""Backend descriptors: attributes go to and from C arrays, descriptors and handles by their pointers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from lowdnn.backend import Descriptor, create, execute
from lowdnn.backend.execute import execute_addresses
from lowdnn.backend.handle import Handle
from lowdnn.backend.plan_descriptors import ExecutionPlan, VariantPack
from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, checked, read_array, write_array, write_bytes, write_outputs, write_pointer
from lowdnn.capi.state import State
from lowdnn.checks import integer
from lowdnn.enums import AttributeName, AttributeType
from lowdnn.runtime.loaded_plan import LoadedPlan, Pointers
from lowdnn.runtime.switching_plan import SwitchingPlan
from lowdnn.status import BadParamError, DescriptorTypeError

_NAMES: Mapping[int, AttributeName] = {int(name): name for name in AttributeName}
_TYPES: Mapping[int, AttributeType] = {int(kind): kind for kind in AttributeType}

#: The format of one element of each attribute type of integers.
_INTEGERS: Mapping[AttributeType, str] = {
    AttributeType.VOID_PTR: "Q",
    AttributeType.INT64: "q",
    AttributeType.INT32: "i",
}
#: The format of one element of each attribute type; those left out are enums, text and fractions.
_FORMATS: Mapping[AttributeType, str] = {
    **_INTEGERS,
    AttributeType.HANDLE: "Q",
    AttributeType.BACKEND_DESCRIPTOR: "Q",
    AttributeType.BOOLEAN: "?",
    AttributeType.FLOAT: "f",
    AttributeType.DOUBLE: "d",
}
_SET, _GET = "cudnnBackendSetAttribute", "cudnnBackendGetAttribute"
_SET_DESCRIPTOR, _SET_ELEMENTS = f"{_SET}.descriptor", f"{_SET}.arrayOfElements"


def create_descriptor(state: State, descriptor_type: int, descriptor: Address) -> None:
    where = "cudnnBackendCreateDescriptor.descriptor"
    checked(descriptor, where)
    write_pointer(descriptor, state.objects.add(create(descriptor_type)), where)  # type: ignore[arg-type]


def destroy_descriptor(state: State, descriptor: Address) -> None:
    """Destroys the descriptor's pointer. Other descriptors keep the values that they were made from."""
    state.objects.remove(descriptor, Descriptor, "cudnnBackendDestroyDescriptor.descriptor")


def initialize(state: State, descriptor: Address) -> None:
    """Makes the descriptor as empty as a new one."""
    where = "cudnnBackendInitialize.descriptor"
    found = state.objects.get(descriptor, Descriptor, where)
    state.objects.replace(checked(descriptor, where), create(found.type))


def finalize(state: State, descriptor: Address) -> None:
    state.objects.get(descriptor, Descriptor, "cudnnBackendFinalize.descriptor").finalize()


def set_attribute(
    state: State, descriptor: Address, name: int, attribute_type: int, count: int, elements: Address
) -> None:
    """Sets an attribute. The caller's array is read only after name, type and count have been checked."""
    found = state.objects.get(descriptor, Descriptor, _SET_DESCRIPTOR)
    kind: Any = _TYPES.get(attribute_type, attribute_type)
    attribute: Any = _NAMES.get(name, name)
    integer = _INTEGERS.get(kind)
    if integer is not None:
        found.set_from(attribute, kind, count, lambda: read_array(elements, integer, count, _SET_ELEMENTS))
    else:
        found.set_from(attribute, kind, count, lambda: _read(state, kind, count, elements))


def get_attribute(
    state: State,
    descriptor: Address,
    name: int,
    attribute_type: int,
    requested: int,
    count: Address,
    elements: Address,
) -> None:
    """Writes how many elements there are to ``count``, and ``requested`` of them at most to ``elements``.

    Nested descriptors are put behind the pointers that ``elements`` holds, which the caller has created; where the
    attribute is a question about descriptors, ``elements`` holds them, and ``count`` gets how many the answer is yes
    for. Either of ``count`` and ``elements`` may be NULL: without ``elements`` the call asks for the count alone,
    whatever is ``requested``, as cudnn-frontend does of an engine's notes.
    """
    found = state.objects.get(descriptor, Descriptor, f"{_GET}.descriptor")
    kind: Any = _TYPES.get(attribute_type, attribute_type)
    attribute: Any = _NAMES.get(name, name)
    most = min(requested, 0) if count and not elements else requested
    values = found.get_attribute(attribute, kind)
    if found.is_question(attribute):
        asked = _read(state, kind, _bounded(most), elements)
        available = len(found.get_attribute(attribute, kind, given=asked))
    else:
        available = _WRITERS.get(kind, _write_plain)(state, kind, values, most, elements)
    if count:
        write_array(count, "q", (available,), f"{_GET}.elementCount")


def plan_workspace_size(state: State, handle: Address, plan: Address, pack: Address, size: Address) -> None:
    """The workspace of one execute; it does not depend on the variant pack, which may be NULL."""
    where = "cudnnGetExecutionPlanWorkspaceSize"
    state.objects.get(handle, Handle, f"{where}.handle")
    found = _value(state, plan, ExecutionPlan, f"{where}.executionPlan")
    if pack:
        _value(state, pack, VariantPack, f"{where}.variantPack")
    write_outputs((size, "Q", found.workspace_size(), f"{where}.workspaceSizeInBytes"))


def execute_plan(state: State, handle: Address, plan: Address, pack: Address) -> None:
    get, kept = state.objects.get, state.packs.content(pack)
    user = get(handle, Handle, "cudnnBackendExecute.handle")
    found = get(plan, Descriptor, "cudnnBackendExecute.executionPlan")
    if kept is None or not kept.is_finalized:
        execute(user, found, get(pack, Descriptor, "cudnnBackendExecute.variantPack"))
    else:
        execute_addresses(user, found, kept.uids, kept.pointers, kept.workspace)


def populate_cuda_graph(state: State, handle: Address, plan: Address, pack: Address, graph: Address) -> None:
    """Adds the plan's launches to ``graph`` as kernel nodes, one after the other."""
    where = "cudnnBackendPopulateCudaGraph"
    loaded, pointers, workspace = _launchable(state, where, handle, plan, pack)
    target = checked(graph, f"{where}.graph")
    state.cuda_graphs.populate(target, loaded, pointers, workspace)


def update_cuda_graph(state: State, handle: Address, plan: Address, pack: Address, graph: Address) -> None:
    """Gives the nodes that the plan added to ``graph`` new addresses; graphs made of it before keep the old ones.

    ``graph`` may be the copy of a populated graph that a node of another graph holds.

    Raises CudaGraphMismatchError for a graph without a plan's nodes, or with those of a plan of other launches.
    """
    where = "cudnnBackendUpdateCudaGraph"
    loaded, pointers, workspace = _launchable(state, where, handle, plan, pack)
    target = checked(graph, f"{where}.graph")
    state.cuda_graphs.update(target, loaded, pointers, workspace, f"{where}.graph")


def _launchable(
    state: State, where: str, handle: Address, plan: Address, pack: Address
) -> tuple[LoadedPlan, Pointers, int]:
    """The plan on the handle's device, which stays that one, its tensors' addresses, its workspace."""
    found = state.objects.get(handle, Handle, f"{where}.handle")
    description: ExecutionPlan = _value(state, plan, ExecutionPlan, f"{where}.executionPlan")
    variant: VariantPack = _value(state, pack, VariantPack, f"{where}.variantPack")
    current = description.loaded_for(found, variant)
    loaded = current.stay() if isinstance(current, SwitchingPlan) else current
    return loaded, variant.in_order(loaded.uids, found.runtime.counters), variant.workspace


def _value(state: State, address: Address, declaration: type[Any], where: str) -> Any:
    descriptor = state.objects.get(address, Descriptor, where)
    if descriptor.type is not declaration.descriptor_type:
        raise DescriptorTypeError.at(where, expected=declaration.descriptor_type.name, got=descriptor.type.name)
    return descriptor.value


def _read(state: State, kind: AttributeType, count: int, elements: Address) -> Any:
    """The elements of a caller's array as ``Descriptor.set_attribute`` takes them."""
    where = _SET_ELEMENTS
    if kind is AttributeType.CHAR:
        return b"".join(read_array(elements, "c", count, where)).split(b"\0", 1)[0].decode(errors="replace")
    if kind is AttributeType.FRACTION:
        numbers = read_array(elements, "q", 2 * count, where)
        return [_fraction(*pair, where) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
    values = read_array(elements, _FORMATS.get(kind, "i"), count, where)
    if kind is AttributeType.BACKEND_DESCRIPTOR:
        return [state.objects.get(value, Descriptor, where) for value in values]
    if kind is AttributeType.HANDLE:
        return [state.objects.get(value, Handle, where) for value in values]
    return values


def _fraction(numerator: int, denominator: int, where: str) -> Fraction:
    if denominator == 0:
        raise BadParamError.at(where, expected="a denominator other than 0", got=f"{numerator}/0")
    return Fraction(numerator, denominator)


#: A function (state, type, values, requested count, array) that writes values to a caller's array; returns the number
#: of elements.
_Writer = Callable[[State, AttributeType, Sequence[Any], int, Address], int]


def _write_plain(_: State, kind: AttributeType, values: Sequence[Any], requested: int, elements: Address) -> int:
    write_array(elements, _FORMATS.get(kind, "i"), values[: _bounded(requested)], f"{_GET}.arrayOfElements")
    return len(values)


def _write_text(_: State, kind: AttributeType, values: Sequence[Any], requested: int, elements: Address) -> int:
    """Characters, with a zero byte behind them where there is room for it, which the count leaves out."""
    text = "".join(values).encode()
    write_bytes(elements, (text + b"\0")[: _bounded(requested)], f"{_GET}.arrayOfElements")
    return len(text)


def _write_fractions(_: State, kind: AttributeType, values: Sequence[Any], requested: int, elements: Address) -> int:
    shown = values[: _bounded(requested)]
    numbers = [number for value in shown for number in (value.numerator, value.denominator)]
    write_array(elements, "q", numbers, f"{_GET}.arrayOfElements")
    return len(values)


def _write_descriptors(
    state: State, kind: AttributeType, values: Sequence[Any], requested: int, elements: Address
) -> int:
    where = f"{_GET}.arrayOfElements"
    shown = values[: _bounded(requested)]
    pointers = read_array(elements, "Q", len(shown), where)
    for pointer, value in zip(pointers, shown, strict=True):
        target = state.objects.get(pointer, Descriptor, where)
        if target.type is not value.type:
            raise DescriptorTypeError.at(where, expected=value.type.name, got=target.type.name)
    for pointer, value in zip(pointers, shown, strict=True):
        state.objects.replace(pointer, value)
    return len(values)


def _write_handles(state: State, kind: AttributeType, values: Sequence[Any], requested: int, elements: Address) -> int:
    shown = [state.objects.address_of(value) for value in values[: _bounded(requested)]]
    write_array(elements, "Q", shown, f"{_GET}.arrayOfElements")
    return len(values)


_WRITERS: Mapping[AttributeType, _Writer] = {
    AttributeType.CHAR: _write_text,
    AttributeType.FRACTION: _write_fractions,
    AttributeType.BACKEND_DESCRIPTOR: _write_descriptors,
    AttributeType.HANDLE: _write_handles,
}


def _bounded(requested: int) -> int:
    return integer(requested, f"{_GET}.requestedElementCount", 0)


CALLS: Mapping[str, Call] = {
    "cudnnBackendCreateDescriptor": create_descriptor,
    "cudnnBackendDestroyDescriptor": destroy_descriptor,
    "cudnnBackendInitialize": initialize,
    "cudnnBackendFinalize": finalize,
    "cudnnBackendSetAttribute": set_attribute,
    "cudnnBackendGetAttribute": get_attribute,
    "cudnnGetExecutionPlanWorkspaceSize": plan_workspace_size,
    "cudnnBackendExecute": execute_plan,
    "cudnnBackendPopulateCudaGraph": populate_cuda_graph,
    "cudnnBackendUpdateCudaGraph": update_cuda_graph,
}
