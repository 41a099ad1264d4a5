"""The instruction table: opcode -> ``Row``. One module per family; a new opcode is one row there and a function."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.driver.emulated.generating.rows import Row
from lowdnn.driver.emulated.instructions import (
    arithmetic,
    async_copy,
    atomic,
    builtins,
    bulk,
    cluster,
    control,
    execution,
    floating,
    half,
    integer,
    mbarrier,
    memory,
    moves,
    tensor,
    tma,
    warp,
    wgmma,
)

TABLE: Mapping[str, Row] = {
    **arithmetic.TABLE,
    **integer.TABLE,
    **floating.TABLE,
    **half.TABLE,
    **moves.TABLE,
    **memory.TABLE,
    **warp.TABLE,
    **tensor.TABLE,
    **tma.TABLE,
    **wgmma.TABLE,
    **atomic.TABLE,
    **async_copy.TABLE,
    **mbarrier.TABLE,
    **cluster.TABLE,
    **builtins.TABLE,
    **control.TABLE,
    **execution.TABLE,
    "st": bulk.asynchronous_or(memory.TABLE["st"]),
    "red": bulk.asynchronous_or(atomic.TABLE["red"]),
}
