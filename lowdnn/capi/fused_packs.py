"""Parameter packs of fused operations: one of constants, from which a plan is made, and one of variants, for each
execution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar

from lowdnn.capi.classic_enums import BatchNormMode, FusedOps, FusedOpsPointerPlaceHolder
from lowdnn.capi.classic_enums import FusedOpsConstParamLabel as Const
from lowdnn.capi.classic_enums import FusedOpsVariantParamLabel as Variant
from lowdnn.capi.descriptors import ActivationDescriptor, ConvolutionDescriptor, FilterDescriptor, TensorDescriptor
from lowdnn.enums import CudnnEnum
from lowdnn.status import BadParamError

T = TypeVar("T")

Described = TensorDescriptor | FilterDescriptor | ConvolutionDescriptor | ActivationDescriptor
#: The types of descriptors that are not a tensor's.
_DESCRIPTORS: Final[Mapping[Const, type[Described]]] = {
    Const.ACTIVATION_DESC: ActivationDescriptor,
    Const.CONV_DESC: ConvolutionDescriptor,
    Const.WDESC: FilterDescriptor,
    Const.DWDESC: FilterDescriptor,
}
#: Numbers on the host, with their format.
SCALARS: Final[Mapping[Variant, str]] = {
    Variant.SCALAR_SIZE_T_WORKSPACE_SIZE_IN_BYTES: "Q",
    Variant.SCALAR_INT64_T_BN_ACCUMULATION_COUNT: "q",
    Variant.SCALAR_DOUBLE_BN_EXP_AVG_FACTOR: "d",
    Variant.SCALAR_DOUBLE_BN_EPSILON: "d",
}


def enum_of(label: Const) -> type[CudnnEnum] | None:
    """The enum that a constant is a member of; None for a descriptor."""
    if label.name.endswith("PLACEHOLDER"):
        return FusedOpsPointerPlaceHolder
    return BatchNormMode if label is Const.BN_MODE else None


def descriptor_of(label: Const) -> type[Described]:
    """The type of a descriptor."""
    return _DESCRIPTORS.get(label, TensorDescriptor)


@dataclass(frozen=True)
class ConstPack:
    """values: the values that were set to anything but NULL."""

    operation: FusedOps
    values: Mapping[Const, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    def changed(self, label: Const, value: object) -> ConstPack:
        return ConstPack(self.operation, _changed(self.values, label, value))

    def has(self, label: Const) -> bool:
        """Whether there is a pointer, where ``label`` is a placeholder's, or otherwise any value."""
        found = self.values.get(label)
        return found is not None and found is not FusedOpsPointerPlaceHolder.PTR_NULL

    def get(self, label: Const, kind: type[T], where: str) -> T:
        """The value, whose type is ``kind``; raises BadParamError where there is none."""
        found = self.values.get(label)
        if not isinstance(found, kind):
            raise BadParamError.at(f"{where}.{label.name}", expected="a value in the pack of constants", got="none")
        return found


@dataclass(frozen=True)
class VariantPack:
    """values: addresses, and numbers for the labels of ``SCALARS``; without those that were set to NULL."""

    operation: FusedOps
    values: Mapping[Variant, int | float] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    def changed(self, label: Variant, value: object) -> VariantPack:
        return VariantPack(self.operation, _changed(self.values, label, value))


@dataclass(frozen=True)
class FusedPlan:
    """constants: the constants that it was made from.  workspace_bytes: the bytes that its caller was told to give."""

    operation: FusedOps
    constants: ConstPack | None = None
    workspace_bytes: int = 0


def _changed(values: Mapping[Any, Any], label: object, value: object) -> Mapping[Any, Any]:
    rest = {other: old for other, old in values.items() if other is not label}
    return MappingProxyType(rest if value is None else rest | {label: value})
