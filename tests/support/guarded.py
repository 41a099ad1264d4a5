"""A GPU's memory with nothing mapped behind the last byte, so that an access there stops the kernel.

compute-sanitizer does not see what tensor maps let copies read; the memory management unit does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cuda.bindings import driver as cu

from lowdnn.driver.base import Driver

#: Allocations begin at a multiple of this, so that up to 15 bytes behind the last one are mapped.
_ALIGN_BYTES = 16


@dataclass
class GuardedDriver:
    """``driver`` whose allocations end at the end of mapped memory, or up to 15 bytes before it."""

    driver: Driver
    _ranges: dict[int, tuple[int, int, Any]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    def mem_alloc(self, size_bytes: int, label: str = "") -> int:
        properties = _properties()
        page_bytes = int(_done(cu.cuMemGetAllocationGranularity(properties, _MINIMUM)))
        mapped_bytes = -(-size_bytes // page_bytes) * page_bytes
        first = int(_done(cu.cuMemAddressReserve(mapped_bytes + page_bytes, 0, 0, 0)))
        memory = _done(cu.cuMemCreate(mapped_bytes, properties, 0))
        _done(cu.cuMemMap(first, mapped_bytes, 0, memory, 0))
        _done(cu.cuMemSetAccess(first, mapped_bytes, [_access(properties)], 1))
        address = first + (mapped_bytes - size_bytes) // _ALIGN_BYTES * _ALIGN_BYTES
        self._ranges[address] = (first, mapped_bytes, memory)
        return address

    def mem_free(self, address: int) -> None:
        first, mapped_bytes, memory = self._ranges.pop(address)
        self.driver.context_synchronize()
        _done(cu.cuMemUnmap(first, mapped_bytes))
        _done(cu.cuMemRelease(memory))
        page_bytes = int(_done(cu.cuMemGetAllocationGranularity(_properties(), _MINIMUM)))
        _done(cu.cuMemAddressFree(first, mapped_bytes + page_bytes))


_MINIMUM = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM


def _properties() -> cu.CUmemAllocationProp:
    """The properties of allocations on the first device."""
    properties = cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    return properties


def _access(properties: cu.CUmemAllocationProp) -> cu.CUmemAccessDesc:
    access = cu.CUmemAccessDesc()
    access.location = properties.location
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return access


def _done(result: tuple[Any, ...]) -> Any:
    """The results of a call beside its status, which must be success."""
    status, *values = result
    assert status == cu.CUresult.CUDA_SUCCESS, status
    return values[0] if values else None
