"""Epochs: who made an access, when, and where in the PTX, in one int64.

From the low end: scope of a strong access (0: weak), column of who made it, number of the place in the PTX, time, and
a flag that says that barriers between threads do not order it (asynchronous work). Times count synchronisations since
the launch began, so that epochs can be compared: a smaller one is older. 0 means no access.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_COLUMN_SHIFT, _SITE_SHIFT, _TIME_SHIFT, _ASYNC_SHIFT = 3, 24, 36, 62
_COLUMNS = (1 << _SITE_SHIFT - _COLUMN_SHIFT) - 1
SITES = (1 << _TIME_SHIFT - _SITE_SHIFT) - 1
#: A time later than all others: that of pending asynchronous work, and the time up to which a warp knows its own
#: accesses.
NEVER = (1 << _ASYNC_SHIFT - _TIME_SHIFT) - 1
MOST_COLUMNS = _COLUMNS

# -- scopes of strong accesses
WEAK, CTA, CLUSTER, GPU, SYS = range(5)
_SCOPES = 7


def marked(columns: Any) -> Any:
    """Shifts columns to their bits in an epoch."""
    return columns << _COLUMN_SHIFT


def stamp(time: int, site: int, scope: int = WEAK, asynchronous: bool = False) -> np.int64:
    """An epoch without its column: time, site, scope and flag."""
    return np.int64(asynchronous << _ASYNC_SHIFT | time << _TIME_SHIFT | site << _SITE_SHIFT | scope)


def timed(times: Any) -> Any:
    """Shifts times to their bits in an epoch."""
    return times << _TIME_SHIFT


def column_of(epochs: Any) -> Any:
    return epochs >> _COLUMN_SHIFT & _COLUMNS


def site_of(epochs: Any) -> Any:
    return epochs >> _SITE_SHIFT & SITES


def time_of(epochs: Any) -> Any:
    return epochs >> _TIME_SHIFT & NEVER


def scope_of(epochs: Any) -> Any:
    return epochs & _SCOPES
