"""Execution of a plan descriptor with a variant pack (cudnnBackendExecute)."""

from __future__ import annotations

from lowdnn.backend.descriptor import Descriptor
from lowdnn.backend.handle import Handle
from lowdnn.backend.plan_descriptors import ExecutionPlan, VariantPack, permuted
from lowdnn.enums import DescriptorType
from lowdnn.runtime.loaded_plan import Pointers
from lowdnn.status import AttributeTypeError, DescriptorTypeError, LowdnnError


def execute(handle: Handle, plan: Descriptor, variant_pack: Descriptor) -> None:
    """Launches ``plan`` with the variant pack's addresses into the handle's stream; does not wait.

    Raises NotInitializedError for a closed handle, DescriptorTypeError, NotFinalizedError, BadParamError (a tensor
    missing), NullPointerError, MisalignedPointerError, SizeInsufficientError (no workspace), DriverError; with other
    shapes in the variant pack also NotSupportedError, and ShapeMismatchError where they do not fit each other.
    Every object stays usable after each.
    """
    if not isinstance(handle, Handle):
        raise AttributeTypeError.at("execute.handle", expected="a Handle", got=repr(handle))
    if handle.is_debug or not handle.is_open:
        with handle.entered("execute"):
            _launch(handle, plan, variant_pack)
        return
    try:
        _launch(handle, plan, variant_pack)
    except LowdnnError as error:
        handle.note_failure(error)
        raise


def execute_addresses(
    handle: Handle, plan: Descriptor, uids: tuple[int, ...], pointers: tuple[int, ...], workspace: int
) -> None:
    """``execute`` with what a variant pack of different uids has, and no other shapes; raises the same."""
    if handle.is_debug or not handle.is_open:
        with handle.entered("execute"):
            _launch_addresses(handle, plan, uids, pointers, workspace)
        return
    try:
        _launch_addresses(handle, plan, uids, pointers, workspace)
    except LowdnnError as error:
        handle.note_failure(error)
        raise


def _launch(handle: Handle, plan: Descriptor, variant_pack: Descriptor) -> None:
    _check_type("plan", plan, DescriptorType.EXECUTION_PLAN)
    _check_type("variant_pack", variant_pack, DescriptorType.VARIANT_PACK)
    description: ExecutionPlan = plan.value
    pack: VariantPack = variant_pack.value
    loaded = description.loaded_for(handle, pack)
    pointers = pack.in_order(loaded.uids, handle.runtime.counters)
    loaded.execute(pointers, pack.workspace, handle.stream)


def _launch_addresses(
    handle: Handle, plan: Descriptor, uids: tuple[int, ...], pointers: tuple[int, ...], workspace: int
) -> None:
    _check_type("plan", plan, DescriptorType.EXECUTION_PLAN)
    loaded = plan.value.loaded_for(handle)
    ordered: Pointers | None = permuted(uids, pointers, loaded.uids)
    if ordered is None:
        ordered = VariantPack(uids, pointers, workspace).in_order(loaded.uids, handle.runtime.counters)
    loaded.execute(ordered, workspace, handle.stream)


def _check_type(argument: str, descriptor: Descriptor, wanted: DescriptorType) -> None:
    if not isinstance(descriptor, Descriptor) or descriptor.type is not wanted:
        got = descriptor.type.name if isinstance(descriptor, Descriptor) else repr(descriptor)
        raise DescriptorTypeError.at(f"execute.{argument}", expected=wanted.name, got=got)
