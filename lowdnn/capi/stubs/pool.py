"""Where things lie in the pool of variant packs (``packs``): offsets and sizes in bytes."""

from __future__ import annotations

from typing import Final

FUNCTIONS: Final = (
    "cudnnBackendCreateDescriptor",
    "cudnnBackendSetAttribute",
    "cudnnBackendFinalize",
    "cudnnBackendDestroyDescriptor",
)
PLACE_BITS: Final = 6
PACKS: Final = 1 << PLACE_BITS
#: Tensors that a pack in the pool may have.
MOST: Final = 60
PACK_SHIFT: Final = 10
PACK_BYTES: Final = 1 << PACK_SHIFT

IS_USED, TAG, SERIAL, CALLS, FIRST_PACK = 0, 8, 16, 24, 64
OWNER, IS_FINALIZED, POINTER_COUNT, UID_COUNT, WORKSPACE, POINTERS = 0, 8, 16, 24, 32, 40
UIDS: Final = POINTERS + 8 * MOST
POOL_BYTES: Final = FIRST_PACK + PACKS * PACK_BYTES
