"""Random calls on every descriptor type and attribute of the inventory, through C and in Python, right and wrong ones.

A call has the status that a table of rules gives, and the two ways agree on it and on what descriptors then hold.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from lowdnn.backend import Descriptor, Handle, create
from lowdnn.backend.slots import Slot, slots_of
from lowdnn.capi.loading import Binding
from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.schema import ELEMENT_TYPES
from lowdnn.status import LowdnnError, Status
from tests.support.capi import CTYPES, Caller
from tests.support.data import fresh_seed
from tests.support.finalized import drawn, machinery
from tests.support.inventory import rows

T, D = AttributeType, DescriptorType
ROWS = {row.number: row for row in rows()}
S = Status
#: Read-only attributes whose set cuDNN's header gives another status than BAD_PARAM.
SET_NOT_SUPPORTED = ("KERNEL_CACHE_REVISION", "KERNEL_CACHE_ENTRY_COUNT")
_CALLS = 60


@dataclass
class World:
    """The library, the handle, finalized descriptors by type, and pointers of what Python has."""

    caller: Caller
    binding: Binding
    handle: Handle
    samples: dict[DescriptorType, Descriptor]
    seed: int
    rng: np.random.Generator
    kept: list[Any] = field(default_factory=list)

    def choose(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def pointer(self, value: Any) -> Any:
        """The form in which C passes an element."""
        if isinstance(value, Descriptor | Handle):
            self.kept.append(value)
            return self.binding.state.objects.add(value)
        return value

    def destroyed(self) -> int:
        descriptor = self.caller.create(D.TENSOR)
        self.caller.call("cudnnBackendDestroyDescriptor", descriptor)
        return descriptor

    # -- drawn calls ------------------------------------------------------------------------------------------
    def name(self, kind: DescriptorType) -> int:
        """An attribute, mostly one of the descriptor's own."""
        own = [row.number for row in ROWS.values() if row.descriptor is kind]
        return self.choose(own) if self.chance(0.85) else self.choose([*ROWS, 123456, -1])

    def type(self, types: Sequence[AttributeType]) -> int:
        """An attribute type, mostly one of ``types``."""
        return int(self.choose(types)) if types and self.chance(0.75) else self.choose([*map(int, T), 77, -1])

    def elements(self, slot: Slot | None, sample: Descriptor, name: int, kind: int) -> list[Any]:
        """Elements of the attribute type ``kind``: those of a finalized descriptor, or any."""
        if slot is not None and kind in slot.read_types and self.chance(0.6):
            found = status_and_value(partial(sample.get_attribute, name, kind))[1]
            if found:
                return list(found)
        count = self.choose((0, 1, 1, 1, 2, 3))
        return [self.element(kind) for _ in range(count)]

    def element(self, kind: int) -> Any:
        if kind == T.BACKEND_DESCRIPTOR:
            is_new = self.chance(0.2)
            return create(self.choose([*D])) if is_new else self.choose([*self.samples.values()])
        if kind == T.HANDLE:
            return self.handle
        wanted = ELEMENT_TYPES.get(kind, int)  # type: ignore[call-overload]
        if issubclass(wanted, IntEnum):
            return int(self.choose([*wanted])) if self.chance(0.8) else self.choose((9999, -5))
        drawn = int(self.rng.integers(0 if kind == T.VOID_PTR else -3, 9))
        return {bool: drawn > 2, float: drawn / 2, str: "abc", Fraction: Fraction(drawn, 3)}.get(wanted, drawn)


@pytest.fixture(scope="module")
def operations() -> dict[DescriptorType, Descriptor]:
    return drawn(fresh_seed())


@pytest.fixture
def world(caller: Caller, binding: Binding, handle: Handle, operations: dict[DescriptorType, Descriptor]) -> World:
    seed = fresh_seed()
    made = World(caller, binding, handle, operations | machinery(handle), seed, np.random.default_rng(seed))
    made.pointer(handle)
    return made


@pytest.mark.parametrize("kind", D, ids=lambda kind: kind.name)
def test_sets(world: World, kind: DescriptorType) -> None:
    """Sets on a descriptor that is not finalized yet; then both are finalized, and hold the same."""
    slots, sample = _slots(kind), world.samples[kind]
    for _ in range(3):
        pointer, mirror = world.caller.create(kind), create(kind)
        for name, attribute_type, count, elements in [*_copies(world, kind), *_drawn_sets(world, kind)]:
            attribute = ROWS[name].name if name in ROWS else name
            context = f"seed {world.seed}, {kind.name} {attribute} {attribute_type} {count} {elements}"
            status = _set(world, pointer, name, attribute_type, count, elements)
            expected = _expected_set(slots.get(name), ROWS.get(name), attribute_type, count, elements)
            assert expected in (None, status), context
            if elements is not None or count == 0:
                assert _set_in_python(mirror, name, attribute_type, count, elements or []) is status, context
        status = Status(world.caller.status("cudnnBackendFinalize", pointer))
        assert status_and_value(mirror.finalize)[0] is status, f"seed {world.seed}"
        found = world.binding.state.objects.get(pointer, Descriptor, "")
        if status is S.SUCCESS:
            assert _held(found) == _held(mirror), f"seed {world.seed}"
        last = _set(world, pointer, next(iter(slots)), int(T.INT64), 1, [1])
        assert (last is S.BAD_PARAM) or status is not S.SUCCESS
    assert sample.is_finalized


@pytest.mark.parametrize("kind", D, ids=lambda kind: kind.name)
def test_gets(world: World, kind: DescriptorType) -> None:
    """Gets from a finalized descriptor and from one that is not."""
    slots, sample = _slots(kind), world.samples[kind]
    pointer, empty = world.pointer(sample), world.caller.create(kind)
    for _ in range(_CALLS):
        name = world.name(kind)
        slot = slots.get(name)
        attribute_type = world.type(slot.read_types if slot is not None else ())
        if slot is not None and slot.computed is not None and slot.computed.asked is not None:
            continue
        status, values = status_and_value(partial(sample.get_attribute, name, attribute_type))
        _check_get(world, pointer, name, attribute_type, status, values or [])
        assert _get(world, empty, name, attribute_type, 1, None, True)[0] is S.BAD_PARAM_NOT_FINALIZED


def test_a_question_about_a_configuration(world: World) -> None:
    """The configuration is what the array holds, and the count is the answer."""
    cache, plan = world.pointer(world.samples[D.KERNEL_CACHE]), world.samples[D.EXECUTION_PLAN]
    name, kind = AttributeName.KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED, int(T.BACKEND_DESCRIPTOR)
    config = world.samples[D.ENGINECFG]
    for is_cached in (False, True):
        array = (ctypes.c_void_p * 1)(world.pointer(config))
        assert _get(world, cache, int(name), kind, 1, array, True) == (S.SUCCESS, int(is_cached))
        plan.value.loaded_for(world.handle)
    assert _get(world, cache, int(name), kind, 1, None, True) == (S.SUCCESS, 0)
    array = (ctypes.c_void_p * 1)(world.pointer(plan))
    assert _get(world, cache, int(name), kind, 1, array, True)[0] is S.BAD_PARAM_DESCRIPTOR_TYPE
    assert _get(world, cache, int(name), kind, 1, None, False)[0] is S.BAD_PARAM_NULL_POINTER
    assert _get(world, cache, int(name), int(T.INT64), 1, array, True)[0] is S.BAD_PARAM_ATTRIBUTE_TYPE


def _held(descriptor: Descriptor) -> dict[tuple[int, int], tuple[Status, Any]]:
    """Statuses and values that gets give, by attribute and type."""
    found = {}
    for name, slot in _slots(descriptor.type).items():
        for kind in slot.read_types:
            status, values = status_and_value(partial(descriptor.get_attribute, name, kind))
            found[name, kind] = (status, _plain(values))
    return found


def _check_get(world: World, pointer: int, name: int, attribute_type: int, status: Status, values: list[Any]) -> None:
    """One get of an attribute with these values, into an array that may be too short, wrong or missing."""
    requested = world.choose((len(values), len(values), 0, 1, len(values) + 2, -1))
    count = len("".join(values)) if attribute_type == T.CHAR else len(values)
    if attribute_type == T.CHAR and requested > 0:
        requested = world.choose((1, count, count + 1))
    has_count = world.chance(0.8)
    slots = max(0, min(requested, count))
    array, expected = _array(world, attribute_type, values, slots, status)
    if status is S.SUCCESS and requested < 0:
        expected = S.BAD_PARAM_OUT_OF_BOUND
    elif array is None:
        expected = status if has_count or not slots or status is not S.SUCCESS else S.BAD_PARAM_NULL_POINTER
    context = f"seed {world.seed}, {ROWS[name].name if name in ROWS else name} {attribute_type} {requested} of {count}"
    found, told = _get(world, pointer, name, attribute_type, requested, array, has_count)
    assert found is expected, context
    if found is S.SUCCESS and has_count:
        assert told == count, context
    if found is S.SUCCESS and array is not None:
        assert _read(world, attribute_type, array, slots) == _plain(_shown(attribute_type, values, slots)), context


def _array(world: World, kind: int, values: list[Any], slots: int, status: Status) -> tuple[Any, Status]:
    """An array for a get and the status that it leads to: of descriptors right ones, or one of another kind."""
    if world.chance(0.2):
        return None, status
    if kind != T.BACKEND_DESCRIPTOR:
        size = 2 * slots if kind == T.FRACTION else slots + 1
        return (CTYPES.get(kind, ctypes.c_int64 if kind == T.FRACTION else ctypes.c_int) * max(1, size))(), status  # type: ignore[call-overload]
    pointers = [world.caller.create(value.type) for value in values[:slots]]
    if pointers and status is S.SUCCESS and world.chance(0.4):
        place, wrong = int(world.rng.integers(slots)), world.choose(("null", "destroyed", "other"))
        other = D.TENSOR if values[place].type is not D.TENSOR else D.POINTWISE
        bad = {"null": lambda: 0, "destroyed": world.destroyed, "other": lambda: world.caller.create(other)}
        pointers[place] = bad[wrong]()
        status = {
            "null": S.BAD_PARAM_NULL_POINTER,
            "destroyed": S.BAD_PARAM,
            "other": S.BAD_PARAM_DESCRIPTOR_TYPE,
        }[wrong]
    return (ctypes.c_void_p * max(1, slots))(*pointers), status


def _shown(kind: int, values: list[Any], slots: int) -> list[Any]:
    return list("".join(values)[:slots]) if kind == T.CHAR else values[:slots]


def _read(world: World, kind: int, array: Any, slots: int) -> list[Any]:
    if kind == T.FRACTION:
        return [Fraction(array[2 * i], array[2 * i + 1]) for i in range(slots)]
    shown = list(array)[:slots]
    if kind == T.CHAR:
        return [character.decode() for character in shown]
    if kind in (T.BACKEND_DESCRIPTOR, T.HANDLE):
        return _plain([world.binding.state.objects._table[pointer] for pointer in shown])
    return [0 if value is None else value for value in shown]


def _get(
    world: World, pointer: int, name: int, kind: int, requested: int, array: Any, has_count: bool
) -> tuple[Status, int]:
    count = ctypes.c_int64(-1)
    told = ctypes.byref(count) if has_count else None
    status = world.caller.status("cudnnBackendGetAttribute", pointer, name, kind, requested, told, array)
    return status, count.value


def _copies(world: World, kind: DescriptorType) -> Iterator[tuple[int, int, int, list[Any]]]:
    """Calls that set what the finalized descriptor of the type has, in most cases all of it."""
    for name, slot in _slots(kind).items():
        if not slot.types or slot.computed is not None or world.chance(0.05):
            continue
        for attribute_type in slot.types:
            values = status_and_value(partial(world.samples[kind].get_attribute, name, attribute_type))[1]
            if values:
                yield int(name), int(attribute_type), len(values), values
                break


def _drawn_sets(world: World, kind: DescriptorType) -> Iterator[tuple[int, int, int, list[Any] | None]]:
    for _ in range(_CALLS // 3):
        name = world.name(kind)
        slot = _slots(kind).get(name)
        attribute_type = world.type(slot.types if slot is not None else ())
        elements = world.elements(slot, world.samples[kind], name, attribute_type)
        if world.chance(0.1):
            yield name, attribute_type, world.choose((0, 1, 2)), None
        else:
            yield name, attribute_type, -1 if world.chance(0.05) else len(elements), elements


def _set(world: World, pointer: int, name: int, kind: int, count: int, elements: list[Any] | None) -> Status:
    array = None
    if elements is not None:
        if kind == T.FRACTION:
            flat = [number for value in elements for number in (value.numerator, value.denominator)]
            array = (ctypes.c_int64 * max(1, len(flat)))(*flat)
        elif kind == T.CHAR:
            text = "".join(elements)
            array, count = ctypes.create_string_buffer(text.encode()), min(count, len(text)) if count < 0 else len(text)
        else:
            ctype = CTYPES.get(kind, ctypes.c_int)  # type: ignore[call-overload]
            array = (ctype * max(1, len(elements)))(*map(world.pointer, elements))
    return world.caller.status("cudnnBackendSetAttribute", pointer, name, kind, count, array)


def _set_in_python(mirror: Descriptor, name: int, kind: int, count: int, elements: list[Any]) -> Status:
    values: Any = "".join(elements) if kind == T.CHAR else elements
    number = count if count < 0 else len(values)
    return status_and_value(lambda: mirror.set_attribute(name, kind, values, number))[0]  # type: ignore[arg-type]


def _expected_set(slot: Slot | None, row: Any, kind: int, count: int, elements: list[Any] | None) -> Status | None:
    """The status that the rules give a set before finalize; None where it depends on the elements."""
    if slot is None:
        return S.BAD_PARAM
    if row.access == "get" or not slot.types:
        return S.NOT_SUPPORTED if row.name in SET_NOT_SUPPORTED else S.BAD_PARAM
    if kind not in slot.types:
        assert kind not in [*map(int, T)] or T(kind).name not in row.types
        return S.BAD_PARAM_ATTRIBUTE_TYPE
    is_one = row.count == "1" or (row.count == "-" and slot.max_count == 1)
    if count < 0 or (is_one and count > 1):
        return S.BAD_PARAM_OUT_OF_BOUND
    if is_one and count == 0:
        return S.BAD_PARAM_SIZE_INSUFFICIENT
    if elements is None and count:
        return S.BAD_PARAM_NULL_POINTER
    return _expected_of(slot, kind, elements or [])


def _expected_of(slot: Slot, kind: int, elements: list[Any]) -> Status | None:
    wanted = ELEMENT_TYPES.get(kind, int)  # type: ignore[call-overload]
    for element in elements:
        if kind == T.BACKEND_DESCRIPTOR and slot.descriptors and element.type not in slot.descriptors:
            return S.BAD_PARAM_DESCRIPTOR_TYPE
        if kind == T.BACKEND_DESCRIPTOR and not element.is_finalized:
            return S.BAD_PARAM_NOT_FINALIZED
        if issubclass(wanted, IntEnum) and int(element) not in [*map(int, wanted)]:
            return None if slot.where.endswith("GENSTATS_MATH_PREC") else S.BAD_PARAM_OUT_OF_BOUND
    return None


def status_and_value(call: Callable[[], Any]) -> tuple[Status, Any]:
    try:
        return S.SUCCESS, call()
    except LowdnnError as error:
        return error.status, None


def _slots(kind: DescriptorType) -> dict[Any, Slot]:
    return dict(slots_of(create(kind)._declaration))


def _plain(values: Any) -> Any:
    """Descriptors by what they are."""
    return [value.value if isinstance(value, Descriptor) else value for value in values or ()]
