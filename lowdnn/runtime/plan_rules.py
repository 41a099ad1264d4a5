"""Checks the rules of a plan before it is launched: types, ranges, and references to tensors and kernels.

Plans of engines keep them anyway; the check is for plans made by hand, and costs little beside loading a kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NoReturn

from lowdnn.arch.multiprocessor import MAX_BLOCK_THREADS
from lowdnn.documents import place, shown
from lowdnn.enums import DataType
from lowdnn.plan import (
    KernelRef,
    Launch,
    Plan,
    PlanTensor,
    Scalar,
    ScalarType,
    Struct,
    TensorMap,
    TensorPointer,
    TensorValue,
    ValueCase,
    WorkspacePointer,
)
from lowdnn.status import BadParamError

#: Limits of every device. Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
MAX_GRID = (2**31 - 1, 2**16 - 1, 2**16 - 1)
MAX_BLOCK = (1024, 1024, 64)
#: The largest number that the driver takes; it refuses by itself what is more than the device has.
MAX_SHARED_BYTES = 2**31 - 1
#: Blocks of the largest cluster, for which a kernel needs permission.
MAX_CLUSTER_BLOCKS = 16
MAX_CLUSTER = (MAX_CLUSTER_BLOCKS,) * 3
#: The most structs nested in each other.
MAX_STRUCT_DEPTH = 16

#: A field or an index on the way to a place in a plan; the place's name is built only for a message.
_Place = str | int

_MAX_BYTES = 2**63 - 1
#: Halfway between the largest f32 and the number that would follow it; from here on values round to infinity.
_F32_OVERFLOW = 3.4028235677973366e38
#: Keyed by format character, since hashing a member of an enum takes longer than the whole check.
_INTEGERS = {
    ScalarType.I32.format_character: range(-(2**31), 2**31),
    ScalarType.U32.format_character: range(2**32),
    ScalarType.I64.format_character: range(-(2**63), 2**63),
    ScalarType.U64.format_character: range(2**64),
}


def check_plan(plan: Plan) -> None:
    """Raises BadParamError, naming the field, for a plan that breaks a rule.

    The arguments are not compared with the kernel's parameters, which only its source knows.
    """
    _check_integer(plan.workspace_bytes, 0, _MAX_BYTES, "plan.workspace_bytes")
    for index, kernel in enumerate(plan.kernels):
        _check_type(kernel, KernelRef, "plan.kernels", index)
    for index, tensor in enumerate(plan.tensors):
        _check_tensor(tensor, index)
    known = _Known(
        frozenset([tensor.uid for tensor in plan.tensors if not tensor.is_by_value]),
        frozenset([tensor.uid for tensor in plan.tensors if tensor.is_by_value]),
        plan.workspace_bytes,
    )
    if len(known.pointers) + len(known.values) < len(plan.tensors):
        raise BadParamError.at("plan.tensors", expected="each uid once", got=shown([t.uid for t in plan.tensors]))
    for index, launch in enumerate(plan.launches):
        _check_launch(launch, len(plan.kernels), index)
        problem = _problem_among(launch.arguments, known, 0)
        if problem is not None:
            where = f"plan.launches[{index}].arguments{problem.place}"
            raise BadParamError.at(where, expected=problem.expected, got=shown(problem.got))


def _check_tensor(tensor: PlanTensor, index: int) -> None:
    where = ("plan.tensors", index)
    _check_type(tensor, PlanTensor, *where)
    _check_integer(tensor.uid, 0, 2**63 - 1, *where, "uid")
    _check_type(tensor.data_type, DataType, *where, "data_type")
    _check_integer(tensor.size_bytes, 0, _MAX_BYTES, *where, "size_bytes")
    _check_integer(tensor.alignment_bytes, 1, _MAX_BYTES, *where, "alignment_bytes")
    if tensor.alignment_bytes & (tensor.alignment_bytes - 1):
        _refuse(tensor.alignment_bytes, "a power of two", *where, "alignment_bytes")
    _check_type(tensor.is_output, bool, *where, "is_output")
    _check_type(tensor.is_by_value, bool, *where, "is_by_value")


def _check_launch(launch: Launch, kernels: int, index: int) -> None:
    where = ("plan.launches", index)
    _check_type(launch, Launch, *where)
    _check_integer(launch.kernel, 0, kernels - 1, *where, "kernel")
    _check_extents(launch.grid, MAX_GRID, *where, "grid")
    _check_extents(launch.block, MAX_BLOCK, *where, "block")
    _check_extents(launch.cluster, MAX_CLUSTER, *where, "cluster")
    if math.prod(launch.block) > MAX_BLOCK_THREADS:
        _refuse(launch.block, f"at most {MAX_BLOCK_THREADS} threads", *where, "block")
    if launch.cluster != (1, 1, 1):
        _check_cluster(launch, *where)
    _check_integer(launch.shared_bytes, 0, MAX_SHARED_BYTES, *where, "shared_bytes")
    _check_type(launch.overlaps_previous, bool, *where, "overlaps_previous")
    _check_type(launch.cooperative, bool, *where, "cooperative")


def _check_cluster(launch: Launch, *where: _Place) -> None:
    if math.prod(launch.cluster) > MAX_CLUSTER_BLOCKS:
        _refuse(launch.cluster, f"at most {MAX_CLUSTER_BLOCKS} blocks", *where, "cluster")
    if any(extent % blocks for extent, blocks in zip(launch.grid, launch.cluster, strict=True)):
        _refuse(launch.grid, f"multiples of the cluster's {launch.cluster}", *where, "grid")


@dataclass(frozen=True)
class _Known:
    """The targets of arguments: uids of tensors in device memory and of by-value tensors, bytes of workspace.

    checked: the identities of structs that break no rule; launches may share one.
    """

    pointers: frozenset[int]
    values: frozenset[int]
    workspace_bytes: int
    checked: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class _Problem:
    """A broken rule and its place below the arguments."""

    place: str
    expected: str
    got: object


def _problem_among(arguments: object, known: _Known, depth: int) -> _Problem | None:
    if type(arguments) is not tuple:
        return _Problem("", "a tuple", arguments)
    if depth > MAX_STRUCT_DEPTH:
        return _Problem("", f"at most {MAX_STRUCT_DEPTH} structs inside each other", "more")
    for index, argument in enumerate(arguments):
        problem = _problem_of(argument, known, depth)
        if problem is not None:
            return replace(problem, place=f"[{index}]{problem.place}")
    return None


def _problem_of(argument: object, known: _Known, depth: int) -> _Problem | None:
    kind = type(argument)
    if isinstance(argument, Scalar):
        return _problem_of_scalar(argument)
    if isinstance(argument, Struct):
        if id(argument) in known.checked:
            return None
        problem = _problem_among(argument.fields, known, depth + 1)
        if problem is None:
            known.checked.add(id(argument))
        return problem and replace(problem, place=f".fields{problem.place}")
    if isinstance(argument, TensorPointer):
        if argument.uid not in known.pointers:
            return _Problem(".uid", "one of plan.tensors in device memory", argument.uid)
        return _problem_of_offset(argument.offset_bytes, _MAX_BYTES)
    if isinstance(argument, WorkspacePointer):
        return _problem_of_offset(argument.offset_bytes, known.workspace_bytes)
    if isinstance(argument, TensorValue):
        is_known = argument.uid in known.values and isinstance(argument.type, ScalarType)
        return None if is_known else _Problem("", "the value of a by-value tensor of plan.tensors", argument)
    if isinstance(argument, ValueCase):
        is_known = argument.uid in known.values and type(argument.value) is float
        if not is_known:
            return _Problem("", "a case of a by-value tensor of plan.tensors", argument)
        cases = (Scalar(argument.type, number) for number in (argument.then, argument.otherwise))
        return next(filter(None, map(_problem_of_scalar, cases)), None)
    if isinstance(argument, TensorMap):
        problem = _problem_of(argument.target, known, depth)
        return problem and replace(problem, place=f".target{problem.place}")
    return _Problem("", "an argument of a kernel", kind.__name__)


def _problem_of_offset(offset_bytes: object, most: int) -> _Problem | None:
    if type(offset_bytes) is int and 0 <= offset_bytes <= most:
        return None
    return _Problem(".offset_bytes", f"0 to {most}", offset_bytes)


def _problem_of_scalar(scalar: Scalar) -> _Problem | None:
    kind, value = scalar.type, scalar.value
    if not isinstance(kind, ScalarType):
        return _Problem(".type", "a ScalarType", kind)
    integers = _INTEGERS.get(kind.format_character)
    if integers is not None:
        fits = type(value) is int and value in integers
    else:
        fits = type(value) in (int, float) and (kind is ScalarType.F64 or not _F32_OVERFLOW <= abs(value) < math.inf)
    return None if fits else _Problem(".value", f"a number of {kind.name}", value)


def _check_extents(extents: Any, most: tuple[int, int, int], *where: _Place) -> None:
    if type(extents) is not tuple or len(extents) != 3:
        _refuse(extents, "three extents", *where)
    for axis in range(3):
        _check_integer(extents[axis], 1, most[axis], *where, axis)


def _check_integer(value: object, least: int, most: int, *where: _Place) -> None:
    if type(value) is not int or not least <= value <= most:
        _refuse(value, f"an integer from {least} to {most}", *where)


def _check_type(value: object, kind: type, *where: _Place) -> None:
    if not isinstance(value, kind):
        _refuse(value, kind.__name__, *where)


def _refuse(value: object, expected: str, first: _Place, *steps: _Place) -> NoReturn:
    raise BadParamError.at(reduce(place, steps, str(first)), expected=expected, got=shown(value))
