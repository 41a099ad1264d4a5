"""Variant packs that libraries keep by themselves (``stubs.packs``), as Python sees them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from struct import Struct
from typing import Any, Final, NamedTuple

from lowdnn.backend import Descriptor, create
from lowdnn.capi.memory import Address
from lowdnn.capi.stubs import pool
from lowdnn.capi.stubs.packs import POOL_NAME
from lowdnn.enums import AttributeName, AttributeType, DescriptorType

#: Lowest bit of the pool's number in a pointer; a higher bit marks pointers of packs.
_POOL_SHIFT: Final = 48
_POOL_BIT: Final = 1 << 62
_MOST_POOLS: Final = 1 << 14
_HEAD = Struct("=5Q")
_NUMBER = Struct("=Q")


class Content(NamedTuple):
    """The content of a variant pack: uids, the addresses of their tensors, the workspace."""

    uids: tuple[int, ...]
    pointers: tuple[int, ...]
    workspace: int
    is_finalized: bool


class Packs:
    """The pools of the libraries that lead to one state. A library without a pool has none here."""

    def __init__(self) -> None:
        self._pools: list[Any] = []
        self._is_used = True

    def connect(self, library: ctypes.CDLL) -> None:
        """Lets the library keep packs, if it has a pool."""
        try:
            found = (ctypes.c_char * pool.POOL_BYTES).in_dll(library, POOL_NAME)
        except ValueError:
            return
        places = [ctypes.addressof(known) for known in self._pools]
        if ctypes.addressof(found) not in places and len(places) < _MOST_POOLS:
            _NUMBER.pack_into(found, pool.TAG, _POOL_BIT | len(places) << _POOL_SHIFT)
            self._pools.append(found)
            self.use(self._is_used)

    def use(self, is_used: bool) -> None:
        """Sets whether the libraries keep packs. Packs there stay valid; each goes to Python at its next call."""
        self._is_used = is_used
        for found in self._pools:
            _NUMBER.pack_into(found, pool.IS_USED, is_used)

    def content(self, pointer: Address) -> Content | None:
        """The content of the pack behind ``pointer`` if a library's pool holds it, otherwise None."""
        if pointer is None or pointer < _POOL_BIT:
            return None
        found, offset = self._place(pointer)
        if found is None:
            return None
        owner, is_finalized, pointers, uids, workspace = _HEAD.unpack_from(found, offset)
        if owner != pointer:
            return None
        return Content(
            _numbers("q", uids).unpack_from(found, offset + pool.UIDS),
            _numbers("Q", pointers).unpack_from(found, offset + pool.POINTERS),
            workspace,
            is_finalized != 0,
        )

    def taken(self, pointer: int) -> Descriptor | None:
        """Takes the pack behind ``pointer`` out of its pool, and returns a descriptor of it."""
        content, (found, offset) = self.content(pointer), self._place(pointer)
        if content is None:
            return None
        descriptor = create(DescriptorType.VARIANT_PACK)
        for name, kind, values in (
            (AttributeName.VARIANT_PACK_UNIQUE_IDS, AttributeType.INT64, content.uids),
            (AttributeName.VARIANT_PACK_DATA_POINTERS, AttributeType.VOID_PTR, content.pointers),
            (AttributeName.VARIANT_PACK_WORKSPACE, AttributeType.VOID_PTR, (content.workspace,)),
        ):
            if any(values) or len(values) > 1:
                descriptor.set_from(name, kind, len(values), partial(tuple, values))
        if content.is_finalized:
            descriptor.finalize()
        _NUMBER.pack_into(found, offset + pool.OWNER, 0)
        return descriptor

    def clear(self) -> None:
        """Ends all packs."""
        for found in self._pools:
            for place in range(pool.PACKS):
                _NUMBER.pack_into(found, _offset(place), 0)

    def counts(self) -> Mapping[str, int]:
        """The calls that the libraries have answered, by function."""
        calls: Iterable[tuple[int, ...]] = (Struct("=4Q").unpack_from(found, pool.CALLS) for found in self._pools)
        return dict(zip(pool.FUNCTIONS, map(sum, zip(*calls, strict=True)), strict=False))

    def _place(self, pointer: int) -> tuple[Any, int]:
        """(pool of a pointer, or None; offset of its pack in the pool). The pack may have been destroyed."""
        number = (pointer & ~_POOL_BIT) >> _POOL_SHIFT
        found = self._pools[number] if number < len(self._pools) else None
        return found, _offset(pointer & pool.PACKS - 1)


@lru_cache(maxsize=2 * pool.MOST + 2)
def _numbers(kind: str, count: int) -> Struct:
    return Struct(f"={count}{kind}")


def _offset(place: int) -> int:
    return pool.FIRST_PACK + place * pool.PACK_BYTES
