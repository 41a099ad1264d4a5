"""Variant packs that the library keeps by itself: four functions of the backend work on them without Python.

A program makes a variant pack for each execution: it creates the descriptor, sets three arrays, finalizes, executes and
destroys it. For such packs the library has memory of its own, the pool, in which its machine code does all of that but
the execution. Whatever the code does not know (another attribute, a second finalize, an error) goes on to Python, which
takes the pack out of the pool and makes a descriptor of it (``capi.packs``).

The pool, in numbers of 8 bytes:

    is_used     0 sends all calls to Python
    tag         the upper bits of all pointers of this pool
    serial      of the next pack
    calls       four counts, in the order of ``FUNCTIONS``
    padding     one number
    packs       ``PACKS`` times: owner, is_finalized, count of pointers, count of uids, workspace,
                ``MOST`` pointers, ``MOST`` uids, padding up to ``PACK_BYTES``

A pack's pointer is its owner while it is in the pool, ``tag | serial << PLACE_BITS | place``; it is never used again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from lowdnn.capi.stubs import packs_x86_64, x86_64
from lowdnn.capi.stubs.pool import FUNCTIONS, MOST, PACK_BYTES, PACKS, PLACE_BITS, POOL_BYTES

__all__ = ["CODES", "FUNCTIONS", "MOST", "PACKS", "PACK_BYTES", "PLACE_BITS", "POOL_BYTES", "POOL_NAME"]

#: The exported pool.
POOL_NAME: Final = "lowdnn_capi_packs"
#: By ELF machine, the code in front of a function's stub: of the name, for its address and that of the pool. It returns
#: to the caller or goes on behind itself, with all arguments as they were. Other machines have no pool.
CODES: Final[Mapping[int, Callable[[str, int, int], bytes]]] = {x86_64.MACHINE: packs_x86_64.code}
