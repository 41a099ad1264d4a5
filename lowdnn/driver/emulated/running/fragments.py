"""Fragments of ``ldmatrix`` and ``mma.sync`` that stay matrices until an instruction reads their registers.

``LoadedRows`` are the rows that ``ldmatrix`` has read; ``mma`` takes its factors from them. ``Products`` are the
accumulators of a chain of ``mma``, summed late: chains with the same A factors (one row of tiles) are summed together
in one product of larger matrices.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.running.accumulators import CommitGroups, Element
from lowdnn.driver.emulated.values.tensor_core import MatrixProduct, matrices_to_lanes, numbers_of

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.batch import Group

#: Products of a chain that are summed together.
_CHAIN = 8
_WARPS_AT_ONCE = 64


class Settled:
    """The base class of sources that have no products in flight."""

    def __init__(self, group: Group) -> None:
        self.index = group.index
        self.lanes = group.lanes
        self.first_lane = group.first_lane

    def in_flight(self, groups: CommitGroups) -> Array:
        return np.zeros(1, dtype=np.bool_)

    def number_of_lanes(self) -> Array:
        return np.full(self.lanes.size, -1, dtype=np.int32)


class LoadedRows(Settled):
    """``ldmatrix``: rows [warps, matrices, 8] of 16 bytes."""

    def __init__(self, group: Group, rows: Array, transposed: bool) -> None:
        super().__init__(group)
        self._rows = rows
        self._transposed = transposed

    @property
    def elements(self) -> tuple[Element, ...]:
        return tuple(Element(self, place) for place in range(self._rows.shape[1]))

    def column(self, place: int) -> Array:
        return np.ascontiguousarray(self._registers[..., place]).reshape(-1)

    @cached_property
    def _registers(self) -> Array:
        warps, count, _ = self._rows.shape
        return np.asarray(matrices_to_lanes(self._rows.view(np.uint16).reshape(warps, count, 8, 8), self._transposed))

    def rows(self, places: slice) -> Array:
        """Rows as the registers hold them, [warps, matrices, 8] of 16 bytes: of a transposed load, the columns."""
        rows = self._rows[:, places]
        if not self._transposed:
            return rows
        warps, count, _ = rows.shape
        matrices = rows.view(np.uint16).reshape(warps, count, 8, 8).transpose(0, 1, 3, 2)
        return np.ascontiguousarray(matrices).view(rows.dtype)[..., 0]


def loaded_rows(registers: tuple[Any, ...]) -> Array | None:
    """The rows of a factor whose registers one ``ldmatrix`` has loaded side by side; else None."""
    first = registers[0]
    if first.__class__ is not Element or not isinstance(first.source, LoadedRows):
        return None
    source, start = first.source, first.place
    for place, register in enumerate(registers, start):
        if register.__class__ is not Element or register.source is not source or register.place != place:
            return None
    return source.rows(slice(start, start + len(registers)))


class Products(Settled):
    """D [warps, m, 8] of ``mma`` with float32 accumulators: ``base`` (None is 0) and products to be added to it.

    ``lefts`` [warps, m, ...] and ``rights`` [warps, 8, ...] are the factors, packed.
    """

    def __init__(
        self,
        group: Group,
        product: MatrixProduct,
        base: Array | None,
        lefts: tuple[Array, ...],
        rights: tuple[Array, ...],
    ) -> None:
        super().__init__(group)
        self.product = product
        self.lefts = lefts
        self.rights = rights
        self.base = base
        self._chains = group.batch.chains
        self._chains.add(self)

    @cached_property
    def elements(self) -> tuple[Element, ...]:
        return tuple(Element(self, place) for place in range(self.product.rows // 4))

    def chain(self) -> tuple[Array | None, tuple[Array, ...], tuple[Array, ...]]:
        """(base, lefts, rights) to which a further product is added."""
        return (self.base, self.lefts, self.rights) if len(self.lefts) < _CHAIN else (self.matrix, (), ())

    @property
    def matrix(self) -> Array:
        if self.rights:
            self._chains.sum_up(self)
        return np.asarray(self.base)

    def add(self, total: Array) -> None:
        """Sets the base to the sum, in place of the products."""
        self.base = total if self.base is None else total + self.base
        self.lefts, self.rights = (), ()

    def column(self, place: int) -> Array:
        return np.asarray(self.product.column_of(self.matrix, place))


class Chains:
    """The chains of a batch that are not summed yet, by their A factors. References are weak: an entry whose chain no
    longer exists is skipped.

    ``_keys``: by B factors, the keys of the chains that have them.
    """

    def __init__(self) -> None:
        self._waiting: dict[Key, list[ref[Products]]] = {}
        self._keys: dict[Factors, dict[Key, None]] = {}
        self._until_dead_ones_go = _KEPT

    def add(self, chain: Products) -> None:
        self._until_dead_ones_go -= 1
        if not self._until_dead_ones_go:
            self._forget_dead()
        self._enter(_key(chain), chain)

    def sum_up(self, chain: Products) -> None:
        """Sums a chain together with all chains that have its A factors. If the same set of B factors occurs with other
        A factors, those chains join the same matrix product."""
        own = _key(chain)
        rows = {own: self._alive(own)}
        factors = [_identities(one.rights) for one in rows[own]]
        for key in self._keys[factors[0]]:
            if key != own and len(key) == len(own):
                others = self._alive(key)
                if [_identities(one.rights) for one in others] == factors:
                    rows[key] = others
        self._leave(rows, factors)
        total = _summed(chain.product, [row[0].lefts for row in rows.values()], [one.rights for one in rows[own]])
        height = chain.product.rows
        for down, row in enumerate(rows.values()):
            for right, one in enumerate(row):
                one.add(total[:, height * down : height * (down + 1), 8 * right : 8 * right + 8])

    def _enter(self, key: Key, chain: Products) -> None:
        self._waiting.setdefault(key, []).append(ref(chain))
        self._keys.setdefault(_identities(chain.rights), {})[key] = None

    def _leave(self, keys: Iterable[Key], factors: list[Factors]) -> None:
        for key in keys:
            del self._waiting[key]
            for rights in factors:
                self._keys[rights].pop(key, None)
        for rights in factors:
            if rights in self._keys and not self._keys[rights]:
                del self._keys[rights]

    def _forget_dead(self) -> None:
        """Removes entries of chains that no longer exist. It runs when the number of chains has doubled, so its cost
        for each chain is constant."""
        living = [(key, chain) for key in self._waiting for chain in self._alive(key)]
        self._waiting, self._keys = {}, {}
        for key, chain in living:
            self._enter(key, chain)
        self._until_dead_ones_go = max(_KEPT, len(living))

    def _alive(self, key: Key) -> list[Products]:
        return [chain for one in self._waiting.get(key, ()) if (chain := one()) is not None]


Factors = tuple[int, ...]
Key = tuple[str | int, ...]
_KEPT = 256


def _key(chain: Products) -> Key:
    """A key from the identities of the factors. Chains hold their factors, so that two living chains never share an
    identity by chance."""
    return (chain.product.a, chain.product.b, *_identities(chain.lefts))


def _identities(factors: tuple[Array, ...]) -> tuple[int, ...]:
    return tuple(map(id, factors))


def _summed(product: MatrixProduct, lefts: list[tuple[Array, ...]], rights: list[tuple[Array, ...]]) -> Array:
    """The sums over the products, [warps, m * rows of chains, 8 * columns of chains], for as many warps at a time as
    fit the cache."""
    warps = len(lefts[0][0])
    count = min(warps, _WARPS_AT_ONCE)
    left, right = _Stack(lefts, product.a, count), _Stack(rights, product.b, count)
    total = np.empty((warps, left.height, right.height), dtype=np.float32)
    for start in range(0, warps, count):
        part = slice(start, min(start + count, warps))
        np.matmul(left.numbers(part), right.numbers(part).transpose(0, 2, 1), out=total[part])
    return total


class _Stack:
    """Chains of packed factors as one matrix [warps, rows of all chains, k of all steps]."""

    def __init__(self, chains: list[tuple[Array, ...]], element: str, count: int) -> None:
        _, self._rows, self._words = chains[0][0].shape
        self._chains = chains
        self._element = element
        self.height = self._rows * len(chains)
        width = self._words * len(chains[0])
        self._packed = np.empty((count, self.height, width), dtype=chains[0][0].dtype)

    def numbers(self, part: slice) -> Array:
        """The factors of some warps as numbers. Each row of a factor is copied as one item."""
        packed = self._packed[: part.stop - part.start]
        item = f"V{packed.itemsize * self._words}"
        items = packed.view(item)
        for place, factors in enumerate(self._chains):
            for step, factor in enumerate(factors):
                rows = slice(self._rows * place, self._rows * (place + 1))
                items[:, rows, step] = factor[part].view(item)[..., 0]
        return np.asarray(numbers_of(packed, self._element).reshape(*packed.shape[:2], -1))
