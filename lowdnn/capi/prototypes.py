"""The ctypes types of arguments and results of callbacks, from the C types of the functions' table."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any

from lowdnn.capi.signatures import CType, Function

#: The ctypes of C number types by name; all other types are enums or opaque pointers.
_NUMBERS: Mapping[str, Any] = {
    "int": ctypes.c_int,
    "uint": ctypes.c_uint,
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_ulonglong,
    "size": ctypes.c_size_t,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_OPAQUE = frozenset(
    {"Callback", "Event", "FusedOpsPlan", "Graph", "GraphExec", "GraphNode", "Handle", "Stream", "UserObject"}
)
_OPAQUE_ENDS = ("Descriptor", "ParamPack")


def is_opaque(base: str) -> bool:
    """Is a value of this type a pointer to something that callers do not look into."""
    return base in _OPAQUE or base.endswith(_OPAQUE_ENDS)


@cache
def prototype(function: Function) -> Any:
    """The ctypes function type; every pointer is a ``c_void_p``, an int or None in Python."""
    return ctypes.CFUNCTYPE(_ctype(function.result), *(_ctype(argument.type) for argument in function.arguments))


def _ctype(written: CType) -> Any:
    if written.pointers or is_opaque(written.base):
        return ctypes.c_void_p
    if written.base == "void":
        return None
    return _NUMBERS.get(written.base, ctypes.c_int)
