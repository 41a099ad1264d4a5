"""``atom`` and ``red`` (PTX ISA, "Parallel Synchronization and Communication Instructions").

Lanes that name one address take their turns in lane order, so results are reproducible; hardware leaves the order open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lowdnn.driver.emulated.values import floating, half, wide
from lowdnn.driver.emulated.values.packed import Lanes
from lowdnn.status import NotSupportedError

Combine = Callable[..., Lanes]
Update = Callable[..., Lanes]

_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
_FLOATS = ("f32", "f64")


@dataclass(frozen=True)
class _Rule:
    """``combine``: (old value, operands) to the new value. ``accumulate``: one array, of a value and its queue of
    operands, to the running values; None where updates are known turn by turn only.
    """

    combine: Combine
    accumulate: Callable[[Lanes], Lanes] | None = None


def updater(operation: str, dtype: str, ftz: bool = False) -> Update:
    """The function ``update(memory, index, *operands)`` of ``atom.operation.dtype``; returns each lane's old value.

    ``memory`` is a 1-D view in the dtype's lanes form and is changed; ``index`` holds flat element numbers, one a lane;
    operands have the shape of ``index`` or are 0-d. cas takes (compare, value). ``ftz`` is how ``add.f32`` works on
    global memory. inc wraps to 0 above its operand, dec wraps to its operand at 0 and above it.
    Raises NotSupportedError for an operation that the type does not have.
    """
    rule = _rule(operation, dtype, ftz)

    def update(memory: Lanes, index: Lanes, *operands: Lanes) -> Lanes:
        spread = [np.broadcast_to(operand, index.shape) for operand in operands]
        if (index[1:] > index[:-1]).all():
            return _apply(rule.combine, memory, index, spread)
        order = np.argsort(index, kind="stable")
        starts = _group_starts(index[order])
        if starts.size == index.size:
            return _apply(rule.combine, memory, index, spread)
        return _apply_in_turns(rule, memory, index, spread, order, starts)

    return update


def _apply(combine: Combine, memory: Lanes, index: Lanes, operands: list[Lanes]) -> Lanes:
    """One turn of lanes with distinct addresses."""
    old = memory[index]
    memory[index] = combine(old, *operands)
    return old


def _apply_in_turns(
    rule: _Rule, memory: Lanes, index: Lanes, operands: list[Lanes], order: Lanes, starts: Lanes
) -> Lanes:
    """Turn k updates the k-th lane of every address; few long queues are accumulated one by one where that is known."""
    lengths = np.diff(np.append(starts, index.size))
    old = np.empty(index.shape, memory.dtype)
    if rule.accumulate and starts.size < lengths.max():
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            lanes = order[start : start + length]
            old[lanes] = _apply_queue(rule.accumulate, memory, index[lanes[0]], operands[0][lanes])
        return old
    for turn in range(int(lengths.max())):
        lanes = order[starts[lengths > turn] + turn]
        old[lanes] = _apply(rule.combine, memory, index[lanes], [operand[lanes] for operand in operands])
    return old


def _apply_queue(accumulate: Callable[[Lanes], Lanes], memory: Lanes, place: Lanes, operands: Lanes) -> Lanes:
    """All updates of one address in order: the value before each of them."""
    queue = np.concatenate([memory[place : place + 1], operands])
    running = accumulate(queue)
    memory[place] = running[-1]
    return np.concatenate([queue[:1], running[1:-1]])


def _group_starts(ordered: Lanes) -> Lanes:
    """Positions where a new value begins in a sorted array."""
    return np.flatnonzero(np.concatenate([np.ones(1, bool), ordered[1:] != ordered[:-1]]))


def _rule(operation: str, dtype: str, ftz: bool) -> _Rule:
    table = _table(dtype)
    if operation not in table:
        raise NotSupportedError.at("atom.operation", expected=f"one of {sorted(table)} for {dtype}", got=operation)
    if ftz and (operation, dtype) == ("add", "f32"):
        return _Rule(floating.arithmetic("add", "f32", ftz=True), _accumulate_flushed)
    combine = table[operation](dtype)
    if isinstance(combine, np.ufunc):
        return _Rule(combine, lambda values: combine.accumulate(values, dtype=values.dtype))
    return _Rule(combine)


def _table(dtype: str) -> dict[str, Callable[[str], Combine]]:
    if dtype == "b128":
        return _WIDE_TABLE
    return _HALF_TABLE if dtype in _HALVES else _FLOAT_TABLE if dtype in _FLOATS else _INTEGER_TABLE


def _accumulate_flushed(values: Lanes) -> Lanes:
    """Running sums of ``add.ftz``: plain ones, unless one of them is subnormal."""
    flushed = floating.flush(values)
    running = np.add.accumulate(flushed)
    if np.count_nonzero(floating.flush(running) != running):
        for place in range(1, running.size):
            running[place] = floating.flush(running[place - 1] + flushed[place])
    return running


def _increment(old: Lanes, limit: Lanes) -> Lanes:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _decrement(old: Lanes, limit: Lanes) -> Lanes:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


def _exchange(old: Lanes, value: Lanes) -> Lanes:
    return value


def _compare_and_swap(old: Lanes, compare: Lanes, value: Lanes) -> Lanes:
    return np.where(old == compare, value, old)


_INTEGER_TABLE: dict[str, Callable[[str], Combine]] = {
    "add": lambda dtype: np.add,
    "min": lambda dtype: np.minimum,
    "max": lambda dtype: np.maximum,
    "and": lambda dtype: np.bitwise_and,
    "or": lambda dtype: np.bitwise_or,
    "xor": lambda dtype: np.bitwise_xor,
    "inc": lambda dtype: _increment,
    "dec": lambda dtype: _decrement,
    "exch": lambda dtype: _exchange,
    "cas": lambda dtype: _compare_and_swap,
}

_FLOAT_TABLE: dict[str, Callable[[str], Combine]] = {
    "add": lambda dtype: np.add,
}

_HALF_TABLE: dict[str, Callable[[str], Combine]] = {
    "add": lambda dtype: half.arithmetic("add", dtype),
    "min": lambda dtype: half.extremum("min", dtype),
    "max": lambda dtype: half.extremum("max", dtype),
}

_WIDE_TABLE: dict[str, Callable[[str], Combine]] = {
    "exch": lambda dtype: _exchange,
    "cas": lambda dtype: wide.compare_and_swap,
}
