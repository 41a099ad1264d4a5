"""``wgmma`` for a group of lanes: finds the warpgroups, reads the operands, and continues the accumulators.

Generated code calls ``issue``. PTX ISA manual, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import WARP
from lowdnn.driver.emulated.memory.access import unwritten_fault
from lowdnn.driver.emulated.memory.arena import WRITTEN, Array, all_written
from lowdnn.driver.emulated.running.accumulators import Element, Factors, Held, Tile, same_registers, settled, warps_of
from lowdnn.driver.emulated.running.batch import Group
from lowdnn.driver.emulated.values.wgmma import (
    RESERVED_BITS,
    ROWS,
    WARPS,
    Pattern,
    WarpgroupProduct,
    first_byte,
    pattern_keys,
    tile_pattern,
)

_DTYPES = {"f4": np.float32, "i4": np.int32, "u4": np.uint32}


def issue(
    group: Group, product: WarpgroupProduct, registers: tuple[Any, ...], a: Any, b: Any, scale_d: Any
) -> tuple[Element, ...]:
    """``wgmma.mma_async``: the accumulator registers after it. ``a`` is a descriptor or a tuple of registers.

    ``registers`` holds the accumulators before it as they lie in the register file; where ``scale_d`` is false
    nothing reads them.
    """
    order = _warpgroups(group)
    _check_first_fence(group)
    numbers = group.batch.commit_groups.issue(warps_of(group))
    factors = (_left(group, product, order, a), _right(group, product, order, b))
    base, before = _before(group, product, registers, order, scale_d)
    return Tile(group, product, order, numbers, base, (*before, factors)).elements


def missing_fence(group: Group, register: str) -> None:
    """Raises LaneFault if the product takes a register that was written after the last ``wgmma.fence``."""
    if group.batch.checks:
        message = f"register {register} has been written since the last wgmma.fence"
        raise LaneFault(FaultKind.MISSING_WGMMA_FENCE, message, 0)


def _check_first_fence(group: Group) -> None:
    """A warpgroup's first product needs a ``wgmma.fence`` before it, whatever its registers hold."""
    fenced = group.batch.commit_groups.fenced[group.lanes // WARP]
    if group.batch.checks and not fenced.all():
        message = "no wgmma.fence comes before the first wgmma.mma_async of the warpgroup"
        raise LaneFault(FaultKind.MISSING_WGMMA_FENCE, message, int(np.argmin(fenced)))


def _before(
    group: Group, product: WarpgroupProduct, registers: tuple[Any, ...], order: Array, scale_d: Any
) -> tuple[Array | None, tuple[Factors, ...]]:
    """The value that the product is added to: (base, earlier products)."""
    kept = _uniform(group, order, scale_d, "scale-d") if scale_d.ndim else scale_d[None]
    if not kept.any():
        return None, ()
    base, factors = _accumulators(group, product, registers, order)
    if kept.all():
        return base, factors
    whole = Tile(group, product, order, np.zeros(0, dtype=np.int32), base, factors).matrix
    return np.where(kept[:, None, None], whole, whole.dtype.type(0)), ()


def _accumulators(
    group: Group, product: WarpgroupProduct, registers: tuple[Any, ...], order: Array
) -> tuple[Array | None, tuple[Factors, ...]]:
    registers = tuple(one.part(group) if one.__class__ is Held else one for one in registers)
    tile = registers[0].source if registers[0].__class__ is Element else None
    if (
        isinstance(tile, Tile)
        and (tile.product.columns, tile.product.d) == (product.columns, product.d)
        and same_registers(registers, tile.elements)
    ):
        return tile.chain(product)
    values = [_joined_or_settled(group, one, _DTYPES[product.code]) for one in registers]
    if all(value.ndim == 0 and not value for value in values):
        return None, ()
    columns = np.empty((len(values), group.count), dtype=_DTYPES[product.code])
    for place, value in enumerate(values):
        columns[place] = value
    return product.matrix_of(columns, order), ()


def _joined_or_settled(group: Group, register: Any, dtype: Any) -> Any:
    """The value of an accumulator that is of another shape, or consists of the elements of several tiles."""
    if register.__class__ is Element and not isinstance(register.source, Tile):
        return register.value().view(dtype)
    return settled(group, register, dtype).view(dtype)


def _left(group: Group, product: WarpgroupProduct, order: Array, a: Any) -> Array:
    if not isinstance(a, tuple):
        return product.left_units(_units(group, order, a, ROWS, product.transposed_a))
    stacked = np.empty((group.count, len(a)), dtype=np.uint32)
    for place, register in enumerate(a):
        stacked[:, place] = register
    return product.left(stacked.reshape(-1, WARP, len(a))[order.reshape(-1)])


def _right(group: Group, product: WarpgroupProduct, order: Array, descriptor: Any) -> Array:
    return product.right_units(_units(group, order, descriptor, product.columns, product.transposed_b))


def _units(group: Group, order: Array, descriptor: Any, rows: int, mn_major: bool) -> Array:
    """[W, ...] the 16-byte units of a tile in shared memory."""
    descriptors = np.broadcast_to(_uniform(group, order, descriptor, "a matrix descriptor"), len(order))
    _check_reserved(order, descriptors)
    keys = pattern_keys(descriptors)
    parts = [slice(None)] if (keys == keys[0]).all() else [slice(i, i + 1) for i in range(len(order))]
    units = [
        _units_of(group, order[part], descriptors[part], tile_pattern(int(keys[part][0]), rows, mn_major))
        for part in parts
    ]
    return units[0] if len(units) == 1 else np.concatenate(units)


def _units_of(group: Group, order: Array, descriptors: Array, pattern: Pattern) -> Array:
    batch, shared = group.batch, group.batch.shared
    first = first_byte(descriptors)
    _check_bounds(group, order, first, pattern)
    slots = batch.slot[group.lanes[order[:, 0] * WARP]]
    places = ((slots * batch.shared_stride + first) >> 4)[:, None, None] + pattern.units
    if batch.races is not None:
        batch.races.work.wgmma_reads(group, order[:, 0], places.reshape(len(order), -1))
    if batch.checks:
        shadow = shared.shadows[16].take(places)
        if not all_written(shadow):
            good = shadow == WRITTEN[16]
            warpgroup, place = divmod(int(np.argmin(good)), pattern.units.size)
            where = int(first[warpgroup] + 16 * pattern.units.reshape(-1)[place])
            raise unwritten_fault(shared, where, 16, int(order[warpgroup, 0]) * WARP)
    return np.asarray(shared.views["w16"].take(places))


def _check_reserved(order: Array, descriptors: Array) -> None:
    wrong = descriptors & RESERVED_BITS != 0
    if wrong.any():
        warpgroup = int(np.argmax(wrong))
        message = (
            f"the matrix descriptor {int(descriptors[warpgroup]):#018x} has reserved bits set: "
            "its address and strides are multiples of 16 below 256 KiB"
        )
        raise LaneFault(FaultKind.SHARED_OUT_OF_BOUNDS, message, int(order[warpgroup, 0]) * WARP)


def _check_bounds(group: Group, order: Array, first: Array, pattern: Pattern) -> None:
    batch = group.batch
    low, high = first + 16 * pattern.low, first + 16 * (pattern.high + 1)
    wrong = (low < batch.shared_start) | (high > batch.shared_end)
    if wrong.any():
        warpgroup = int(np.argmax(wrong))
        size = batch.shared_end - batch.shared_start
        where = int(low[warpgroup]) if low[warpgroup] < batch.shared_start else int(high[warpgroup]) - 16
        message = (
            f"a wgmma tile spans shared offsets {int(low[warpgroup]) - batch.shared_start} to "
            f"{int(high[warpgroup]) - batch.shared_start}: shared memory of this launch has {size} bytes"
        )
        position = int(order[warpgroup, 0]) * WARP
        offset = where - batch.shared_start
        raise LaneFault(FaultKind.SHARED_OUT_OF_BOUNDS, message, position, where, "shared memory", offset)


def _uniform(group: Group, order: Array, value: Any, what: str) -> Array:
    """A value that must be equal in all lanes of a warpgroup: [W], or [1] if it is equal in all."""
    if value.ndim == 0:
        return np.asarray(value)[None]
    lanes = value.reshape(-1, WARP)[order]
    first = lanes[:, :1, :1]
    same = lanes == first
    if not same.all():
        warpgroup, warp, lane = (int(one) for one in np.argwhere(~same)[0])
        message = f"{what} differs within the warpgroup"
        raise LaneFault(FaultKind.WARP_DIVERGED, message, int(order[warpgroup, warp]) * WARP + lane)
    return np.asarray(first[:, 0, 0])


def _warpgroups(group: Group) -> Array:
    """[W, 4]: places, among the group's warps, of the warps of each warpgroup."""
    if not group.whole:
        raise LaneFault(FaultKind.WARP_DIVERGED, "wgmma needs all 128 lanes of the warpgroup", 0)
    batch = group.batch
    warp, slot = np.divmod(group.lanes[::WARP] // WARP, batch.cta_count)
    warpgroup = warp // WARPS * batch.cta_count + slot
    order = np.lexsort((warp, warpgroup))
    complete = order.size % WARPS == 0
    if complete:
        order = order.reshape(-1, WARPS)
        members = warpgroup[order]
        complete = bool((members == members[:, :1]).all())
    if not complete:
        counts = np.bincount(warpgroup)[warpgroup]
        position = int(np.argmax(counts != WARPS)) * WARP
        raise LaneFault(FaultKind.WARP_DIVERGED, "wgmma needs all 4 warps of an aligned warpgroup", position)
    return order
