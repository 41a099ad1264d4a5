"""The calls on parameter packs of fused operations: creation, destruction, getting and setting values by label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from lowdnn.capi.calls.shared import change, member, was_set
from lowdnn.capi.classic_enums import FusedOps, FusedOpsConstParamLabel, FusedOpsVariantParamLabel
from lowdnn.capi.errors import Call
from lowdnn.capi.fused_packs import SCALARS, ConstPack, FusedPlan, VariantPack, descriptor_of, enum_of
from lowdnn.capi.memory import Address, checked, read_array, write_array, write_outputs, write_pointer
from lowdnn.capi.state import State
from lowdnn.status import BadParamError

P = TypeVar("P", ConstPack, VariantPack, FusedPlan)


def set_constant(state: State, pack: Address, label: int, value: Address) -> None:
    """The value is a descriptor, or points to a member of an enum; NULL takes it away."""
    where = "cudnnSetFusedOpsConstParamPackAttribute"

    def new(old: ConstPack) -> ConstPack:
        chosen = member(FusedOpsConstParamLabel, label, f"{where}.paramLabel")
        if not value:
            return old.changed(chosen, None)
        kind = enum_of(chosen)
        if kind is None:
            return old.changed(chosen, was_set(state, value, descriptor_of(chosen), f"{where}.param"))
        (number,) = read_array(value, "i", 1, f"{where}.param")
        return old.changed(chosen, member(kind, number, f"{where}.param"))

    change(state, pack, ConstPack, f"{where}.constPack", new)


def get_constant(state: State, pack: Address, label: int, value: Address, is_null: Address) -> None:
    """Writes the value into a descriptor or an enum's number, and whether there is none."""
    where = "cudnnGetFusedOpsConstParamPackAttribute"
    found = state.objects.get(pack, ConstPack, f"{where}.constPack")
    chosen = member(FusedOpsConstParamLabel, label, f"{where}.paramLabel")
    known = found.values.get(chosen)
    checked(is_null, f"{where}.isNULL")
    if known is not None and enum_of(chosen):
        write_array(value, "i", (known,), f"{where}.param")
    elif known is not None:
        change(state, value, descriptor_of(chosen), f"{where}.param", lambda _: known)
    write_outputs((is_null, "i", int(known is None), f"{where}.isNULL"))


def set_variant(state: State, pack: Address, label: int, value: Address) -> None:
    """The value is an address, which may be NULL, or points to a number."""
    where = "cudnnSetFusedOpsVariantParamPackAttribute"

    def new(old: VariantPack) -> VariantPack:
        chosen = member(FusedOpsVariantParamLabel, label, f"{where}.paramLabel")
        if chosen in SCALARS:
            return old.changed(chosen, read_array(value, SCALARS[chosen], 1, f"{where}.ptr")[0])
        return old.changed(chosen, value or None)

    change(state, pack, VariantPack, f"{where}.varPack", new)


def get_variant(state: State, pack: Address, label: int, value: Address) -> None:
    """Writes the address, NULL where there is none, or the number; raises BadParamError for one that is not set."""
    where = "cudnnGetFusedOpsVariantParamPackAttribute"
    found = state.objects.get(pack, VariantPack, f"{where}.varPack")
    chosen = member(FusedOpsVariantParamLabel, label, f"{where}.paramLabel")
    known = found.values.get(chosen)
    if chosen in SCALARS and known is None:
        raise BadParamError.at(f"{where}.{chosen.name}", expected="a number that was set", got="none")
    write_array(value, SCALARS.get(chosen, "Q"), (known or 0,), f"{where}.ptr")


def _life_of(kind: type[P], name: str, argument: str) -> dict[str, Call]:
    """cudnnCreateFusedOps<name> and cudnnDestroyFusedOps<name>; destroying NULL does nothing."""
    create_name, destroy_name = f"cudnnCreateFusedOps{name}", f"cudnnDestroyFusedOps{name}"

    def create(state: State, pack: Address, operation: int) -> None:
        where = f"{create_name}.{argument}"
        checked(pack, where)
        write_pointer(pack, state.objects.add(kind(member(FusedOps, operation, f"{create_name}.ops"))), where)

    def destroy(state: State, pack: Address) -> None:
        if pack:
            state.objects.remove(pack, kind, f"{destroy_name}.{argument}")

    return {create_name: create, destroy_name: destroy}


CALLS: Mapping[str, Call] = {
    **_life_of(ConstPack, "ConstParamPack", "constPack"),
    **_life_of(VariantPack, "VariantParamPack", "varPack"),
    **_life_of(FusedPlan, "Plan", "plan"),
    "cudnnSetFusedOpsConstParamPackAttribute": set_constant,
    "cudnnGetFusedOpsConstParamPackAttribute": get_constant,
    "cudnnSetFusedOpsVariantParamPackAttribute": set_variant,
    "cudnnGetFusedOpsVariantParamPackAttribute": get_variant,
}
