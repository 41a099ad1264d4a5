"""The rules for addresses that an execute is given: one plan's variant pack."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

from lowdnn.plan import Plan, PlanTensor
from lowdnn.runtime.context import Context
from lowdnn.runtime.workspace import ALIGNMENT_BYTES, tell_refusal
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    LowdnnError,
    MisalignedPointerError,
    NullPointerError,
    SizeInsufficientError,
    StreamMismatchError,
)

#: The lowest host address; the pages below are never mapped, so a lower number was meant as the value itself.
LOWEST_HOST_ADDRESS = 1 << 16
_WORKSPACE = "variant_pack.workspace"
#: The last aligned address; from none after it does a workspace begin.
_LAST_WORKSPACE = 2**64 - ALIGNMENT_BYTES
#: Addresses of workspaces that are known to be checked.
_MAX_CHECKED = 1024


class PackRules:
    """The checks for one plan on one device. Every message names the tensor by uid and name.

    ``checks_ranges``: ask the driver whether each tensor lies inside one allocation of this device. For the workspace
    that is always asked, where the driver knows the allocation, but without ``checks_ranges`` once for each address.
    """

    def __init__(self, plan: Plan, context: Context, *, checks_ranges: bool) -> None:
        self._plan = plan
        self._context = context
        self._checks_ranges = checks_ranges
        self._uids = tuple(tensor.uid for tensor in plan.tensors)
        self._rules = tuple(map(_rule, plan.tensors))
        #: The bits that are 0 in every address where all tensors have the strictest alignment.
        self._low_bits = max((alignment_bytes for _, alignment_bytes, _ in self._rules), default=1) - 1
        self._begins: dict[int, int] = {}

    def in_order(self, pointers: Mapping[int, int]) -> tuple[int, ...]:
        """The addresses in the order of ``plan.tensors``; raises BadParamError for a missing or an unknown uid."""
        try:
            ordered = tuple(map(pointers.__getitem__, self._uids))
        except KeyError:
            missing = [f"{tensor.uid} ({tensor.name!r})" for tensor in self._plan.tensors if tensor.uid not in pointers]
            raise BadParamError.at(
                "variant_pack.unique_ids", expected=f"an address for {', '.join(missing)}", got=sorted(pointers)
            ) from None
        if len(pointers) != len(ordered):
            unknown = sorted(set(pointers) - set(self._uids))
            raise BadParamError.at("variant_pack.unique_ids", expected=f"uids of {sorted(self._uids)}", got=unknown)
        return ordered

    def check_tensors(self, addresses: tuple[int, ...], last: tuple[object, ...]) -> None:
        """Checks the tensors' addresses that differ from ``last``.

        Raises BadParamError unless each tensor has an address, and for a host address that cannot be one; also
        NullPointerError, MisalignedPointerError, AttributeTypeError (no 64-bit integer). With ``checks_ranges`` also
        SizeInsufficientError and StreamMismatchError (another device).
        """
        rules = self._rules
        if len(addresses) != len(rules):
            raise BadParamError.at("variant_pack", expected=f"{len(rules)} addresses", got=len(addresses))
        if not self._checks_ranges and self._are_plain(addresses):
            return
        for index, address in enumerate(addresses):
            if address != last[index]:
                lowest, alignment_bytes, tensor = rules[index]
                if type(address) is not int or not lowest <= address < 2**64 or address % alignment_bytes:
                    raise _tensor_error(tensor, address)
                if self._checks_ranges and tensor.size_bytes and not tensor.is_by_value:
                    self._check_range(_where(tensor), address, tensor.size_bytes)

    def _are_plain(self, addresses: tuple[int, ...]) -> bool:
        """Whether all keep the strictest rule of any tensor, as most do; to look at each of them takes longer."""
        try:
            bits, lowest = reduce(or_, addresses), min(addresses)
        except TypeError:
            return False
        return type(bits) is int and lowest >= LOWEST_HOST_ADDRESS and bits < 2**64 and not bits & self._low_bits

    def workspace_begin(self, address: int) -> int:
        """The first aligned address of the workspace at ``address``; that itself where the plan needs none.

        An address is checked once: a network brings the same few again, and the driver takes longer than a launch.
        Raises what ``check_tensors`` raises, but for any alignment.
        """
        needed_bytes = self._plan.workspace_bytes
        where = _WORKSPACE
        if type(address) is not int or not 0 <= address <= _LAST_WORKSPACE:
            raise _no_address(where, address)
        if needed_bytes == 0:
            return address
        if address == 0:
            tell_refusal(where, needed_bytes, "none")
            raise NullPointerError.at(where, expected=f"the address of {needed_bytes} bytes", got="0")
        begin = self._begins.get(address)
        if begin is None or self._checks_ranges:
            skipped_bytes = -address % ALIGNMENT_BYTES
            self._check_range(where, address, skipped_bytes + needed_bytes)
            begin = address + skipped_bytes
            if len(self._begins) >= _MAX_CHECKED:
                self._begins.clear()
            self._begins[address] = begin
        return begin

    def _check_range(self, where: str, address: int, size_bytes: int) -> None:
        with self._context.activated():
            info = self._context.driver.pointer_info(address)
        if info is None:
            return
        if info.device != self._context.device:
            raise StreamMismatchError.at(
                where, expected=f"memory of device {self._context.device}", got=f"device {info.device}"
            )
        rest_bytes = info.base + info.size_bytes - address
        if rest_bytes < size_bytes:
            if where == _WORKSPACE:
                tell_refusal(where, size_bytes, f"{rest_bytes} bytes")
            raise SizeInsufficientError.at(
                where, expected=f"{size_bytes} bytes", got=f"{rest_bytes} to the end of its buffer"
            )


def _rule(tensor: PlanTensor) -> tuple[int, int, PlanTensor]:
    """(lowest address, alignment in bytes, tensor); an empty tensor may be null, a host value needs no alignment."""
    if tensor.is_by_value:
        return LOWEST_HOST_ADDRESS, 1, tensor
    return int(tensor.size_bytes > 0), tensor.alignment_bytes if tensor.size_bytes else 1, tensor


def _tensor_error(tensor: PlanTensor, address: int) -> LowdnnError:
    where = _where(tensor)
    if type(address) is not int or not 0 <= address < 2**64:
        return _no_address(where, address)
    if address == 0:
        return NullPointerError.at(where, expected="an address", got="0")
    if tensor.is_by_value:
        hint = "give the address of the value, or the value as a float or a host array of one element"
        return BadParamError.at(where, expected="a host address, where it is an integer", got=address, hint=hint)
    expected = f"a multiple of {tensor.alignment_bytes} bytes"
    hint = "allocations are multiples of 256; a view starts where its first element lies"
    return MisalignedPointerError.at(where, expected=expected, got=f"{address:#x}", hint=hint)


def _no_address(where: str, value: object) -> LowdnnError:
    return AttributeTypeError.at(where, expected="an address as an integer of 64 bits", got=repr(value))


def _where(tensor: PlanTensor) -> str:
    name = f" ({tensor.name})" if tensor.name else ""
    return f"variant_pack.data_pointers[uid {tensor.uid}{name}]"
