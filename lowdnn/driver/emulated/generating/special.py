"""Special registers. PTX ISA manual, section "Special Registers"."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowdnn.driver.emulated.faults import unsupported
from lowdnn.driver.emulated.lanes import WARP
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.running.batch import SHARED_START, Batch, Group

_AXES = {"x": 0, "y": 1, "z": 2}
_LANE_MASKS = ("%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge")
_PLAIN = frozenset({
    "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%dynamic_smem_size", "%total_smem_size",
    "%aggr_smem_size", "%is_explicit_cluster", "%cluster_ctarank", "%cluster_nctarank", "%reserved_smem_offset_0",
    "%envreg1", "%envreg2", *_LANE_MASKS,
})  # fmt: skip
_VECTORS = frozenset(
    {"%tid", "%ntid", "%ctaid", "%nctaid", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"}
)
_COUNTERS = {
    "%clock64": ("clock(G)", "u8"),
    "%clock": ("clock(G).astype(u4)", "u4"),
    "%clock_hi": ("(clock(G)>>u8(32)).astype(u4)", "u4"),
    "%globaltimer": ("timer(G)", "u8"),
    "%globaltimer_lo": ("timer(G).astype(u4)", "u4"),
    "%globaltimer_hi": ("(timer(G)>>u8(32)).astype(u4)", "u4"),
}
_OTHER_CODES = {"%gridid": "u8", "%is_explicit_cluster": "p"}


def special_value(name: str, line: int) -> tuple[str, str]:
    """(expression, value code) of a special register in generated code."""
    vector, _, axis = name.partition(".")
    if vector in _VECTORS and axis in _AXES:
        return f"G.special({name!r},lambda b:special_array(b,{name!r}))", "u4"
    if name in _PLAIN:
        return f"G.special({name!r},lambda b:special_array(b,{name!r}))", _OTHER_CODES.get(name, "u4")
    if name in _COUNTERS:
        return _COUNTERS[name]
    raise unsupported(f"special register {name}", line)


def clock(group: Group) -> Any:
    """``%clock64``: the device's cycles."""
    return np.uint64(group.batch.clock.look().cycles)


def timer(group: Group) -> Any:
    """``%globaltimer``: the device's nanoseconds."""
    return np.uint64(group.batch.clock.look().ns)


def special_array(batch: Batch, name: str) -> Any:
    """The register's value over the batch: uint32 array, or a scalar."""
    vector, _, axis = name.partition(".")
    if axis:
        return _vector(batch, vector, _AXES[axis])
    if name in _LANE_MASKS:
        return _lane_mask(batch, name)
    lane = (batch.thread % WARP).astype(np.uint32)
    warp = (batch.thread // WARP).astype(np.uint32)
    geometry = batch.geometry
    values: dict[str, Any] = {
        "%laneid": lane,
        "%warpid": warp,
        "%nwarpid": np.uint32(64),
        "%smid": (geometry.ctas[batch.slot] % geometry.sm_count).astype(np.uint32),
        "%nsmid": np.uint32(geometry.sm_count),
        "%gridid": np.uint64(1),
        "%dynamic_smem_size": np.uint32(batch.dynamic_shared_bytes),
        "%total_smem_size": np.uint32(batch.shared_bytes),
        "%aggr_smem_size": np.uint32(batch.shared_bytes),
        "%is_explicit_cluster": np.bool_(batch.cluster_size > 1),
        "%cluster_ctarank": batch.rank.astype(np.uint32),
        "%cluster_nctarank": np.uint32(batch.cluster_size),
        "%reserved_smem_offset_0": np.uint32(SHARED_START),
        "%envreg1": np.uint32(batch.grid_workspace >> 32),
        "%envreg2": np.uint32(batch.grid_workspace & 0xFFFF_FFFF),
    }
    return values[name]


def _vector(batch: Batch, vector: str, axis: int) -> Any:
    geometry = batch.geometry
    extent = geometry.cluster[axis]
    scalars = {
        "%ntid": geometry.block[axis],
        "%nctaid": geometry.grid[axis],
        "%nclusterid": geometry.grid[axis] // extent,
        "%cluster_nctaid": extent,
    }
    if vector in scalars:
        return np.uint32(scalars[vector])
    if vector == "%tid":
        return _axis(batch.thread, geometry.block, axis)
    block = _axis(geometry.ctas, geometry.grid, axis)
    if vector == "%clusterid":
        block //= np.uint32(extent)
    elif vector == "%cluster_ctaid":
        block %= np.uint32(extent)
    return block[0] if batch.cta_count == 1 else block[batch.slot]


def _axis(linear: Array, extents: tuple[int, int, int], axis: int) -> Array:
    step = int(np.prod(extents[:axis], dtype=np.int64))
    return (linear // step % extents[axis] if axis < 2 else linear // step).astype(np.uint32)


def _lane_mask(batch: Batch, name: str) -> Array:
    lane = (batch.thread % WARP).astype(np.uint64)
    bit = np.uint64(1) << lane
    below = bit - np.uint64(1)
    masks = {
        "%lanemask_eq": bit,
        "%lanemask_lt": below,
        "%lanemask_le": below | bit,
        "%lanemask_gt": ~(below | bit),
        "%lanemask_ge": ~below,
    }
    return (masks[name] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
