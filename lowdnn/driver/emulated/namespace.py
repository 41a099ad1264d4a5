"""The names that generated code uses."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import access
from .batch import Group, poison, select
from .instructions.special import clock, special_array
from .memory import DTYPES, LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES, ARENA_BASE


def base_namespace() -> dict[str, Any]:
    """A fresh namespace with types, NumPy functions and helpers; a program adds its constants and addresses."""
    names: dict[str, Any] = {
        "np": np,
        "where": np.where,
        "minimum": np.minimum,
        "maximum": np.maximum,
        "abs": np.abs,
        "select": select,
        "poison": poison,
        "clock": clock,
        "special_array": special_array,
        "in_space": in_space,
    }
    for space in ("global", "shared", "local", "generic"):
        names[f"load_{space}"] = getattr(access, f"load_{space}")
        names[f"store_{space}"] = getattr(access, f"store_{space}")
    names.update({code: dtype for code, dtype in DTYPES.items() if code != "w16"})
    return names


def in_space(group: Group, address: Any, space: str) -> Any:
    """``isspacep``: does a generic address lie in the window of ``space``."""
    windows = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}
    if space in windows:
        low = np.uint64(windows[space])
        return (address >= low) & (address < low + np.uint64(WINDOW_BYTES))
    in_arena = address >= np.uint64(ARENA_BASE)
    if space == "global":
        return in_arena
    return in_arena & _read_only(group, address)


def _read_only(group: Group, address: Any) -> Any:
    flat = np.atleast_1d(address)
    found = np.array([access.arena_is_read_only(group, int(one)) for one in flat], dtype=np.bool_)
    return found if address.ndim else found[0]
