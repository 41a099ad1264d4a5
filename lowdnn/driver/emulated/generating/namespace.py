"""The names that generated code uses."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowdnn.driver.emulated.generating.special import clock, special_array, timer
from lowdnn.driver.emulated.memory.access import load, store
from lowdnn.driver.emulated.memory.address import Address, own_shared
from lowdnn.driver.emulated.memory.arena import DTYPES, LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from lowdnn.driver.emulated.memory.space import ARENA_BASE
from lowdnn.driver.emulated.running.accumulators import retyped, settled
from lowdnn.driver.emulated.running.batch import Group, poison, select


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
        "timer": timer,
        "special_array": special_array,
        "in_space": in_space,
        "Address": Address,
        "load": load,
        "store": store,
        "settled": settled,
        "retyped": retyped,
    }
    names.update(DTYPES)
    return names


def in_space(group: Group, address: Any, space: str) -> Any:
    """``isspacep``: does a generic address lie in the window of ``space``."""
    if space == "shared":
        return own_shared(group, address)
    windows = {"cluster": SHARED_WINDOW, "local": LOCAL_WINDOW}
    if space in windows:
        low = np.uint64(windows[space])
        return (address >= low) & (address < low + np.uint64(WINDOW_BYTES))
    in_arena = address >= np.uint64(ARENA_BASE)
    if space == "global":
        return in_arena
    _, writable = group.batch.arena.inside(np.atleast_1d(address), 1)
    return in_arena & (~writable if address.ndim else ~writable[0])
