"""Frozen facts per compute capability; no logic beyond picking one.

Each capability is a module of ``capabilities``, which are found by their names and loaded where they are asked for.
``from lowdnn.arch.specs import SM_90A`` is the facts of ``capabilities/sm_90a.py``.

Limits of a multiprocessor are those of the CUDA Programming Guide, "Features and Technical Specifications", tables of
multiprocessors and of memory per compute capability. Rates are dense peaks per multiprocessor and clock, from the
vendor's papers that each entry names; bandwidths are what a copy kernel reaches (read plus written). Both feed the cost
model, which needs shares of a peak and not exact times. Only 9.0 is measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Final

from lowdnn.arch import capabilities
from lowdnn.arch.targets import Generation, generation_for, runs_on
from lowdnn.arch.timings import MEASURED_ON_H200, Timings
from lowdnn.plan import MathUnit
from lowdnn.status import ArchMismatchError, BadParamError

#: More multiprocessors than any device has.
MAX_SM_COUNT: Final = 4096

#: The share of its memory's bandwidth that a copy reaches, where that is not measured. On an H200 it is 0.88.
COPIED_SHARE: Final = 0.85

#: Multiprocessors of a group (GPC), which the blocks of a cluster cannot leave, where none is switched off.
CLUSTER_REACH: Final = 18

#: The share of the multiprocessors that clusters of more than two blocks find room on at once, with one block on each:
#: 120 of an H200's 132, whose groups are not all of one size.
CLUSTERED_SHARE: Final = Fraction(120, 132)


@dataclass(frozen=True)
class Board:
    """The product that stands for a compute capability, as the driver's device attributes describe it.

    product: its name, as the driver gives it where that is known.
    clock_khz: boost clock.  memory_clock_khz: half of the transfers in a millisecond on each of ``bus_bits`` lines.
    """

    product: str
    clock_khz: int
    memory_clock_khz: int
    bus_bits: int
    memory_bytes: int

    @property
    def bytes_per_s(self) -> float:
        """Peak bandwidth of the memory."""
        return 2e3 * self.memory_clock_khz * self.bus_bits / 8


@dataclass(frozen=True)
class ArchSpec:
    """One kind of device.

    name: ``sm_120``; with the suffix where there are kernels for it alone: ``sm_90a``.
    compute_capability: (major, minor).  clock_hz: sustained clock under load where measured, otherwise the boost clock.
    flops_per_clock: operations (FMA = 2) per multiprocessor and clock of each math unit.
    attained: the share of each unit's peak that the best kernels of this library reach.
    Units that no kernel for the device uses are in neither table.
    spills_early: whether ptxas gives a kernel more registers than on the other devices, as tests/assembly shows.
    shared_bytes_per_block: the opt-in limit.  copy_bytes_per_s: device memory, read plus written.
    cluster_groups: multiprocessors of each group (GPC) that holds clusters; empty where that is not known.
    timings: latencies and rates whatever kernel runs.
    """

    name: str
    compute_capability: tuple[int, int]
    board: Board
    sm_count: int
    clock_hz: float
    flops_per_clock: Mapping[MathUnit, int]
    attained: Mapping[MathUnit, float]
    copy_bytes_per_s: float
    l2_bytes: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    threads_per_sm: int
    max_blocks_per_sm: int
    spills_early: bool = False
    cluster_groups: tuple[int, ...] = ()
    timings: Timings = MEASURED_ON_H200

    def __hash__(self) -> int:
        """The hash of the facts that differ between architectures: a spec is part of the key of most memos."""
        return hash((self.name, self.sm_count))

    @property
    def generation(self) -> Generation:
        """The newest kernels that run on the device."""
        return generation_for(self.compute_capability)

    @property
    def has_fp8_conversions(self) -> bool:
        return self.generation.has_fp8_conversions

    @property
    def has_dependent_launches(self) -> bool:
        return self.generation.has_dependent_launches

    @property
    def has_clusters(self) -> bool:
        return self.generation.has_clusters

    @property
    def has_tma(self) -> bool:
        return self.generation.has_tma

    @property
    def has_wgmma(self) -> bool:
        return self.generation.has_wgmma

    @cached_property
    def lacks_shared_memory(self) -> bool:
        """Whether a multiprocessor has less shared memory than others of its compute capability."""
        usual = spec_for(*self.compute_capability)
        own = self.shared_bytes_per_block, self.shared_bytes_per_sm
        return own != (usual.shared_bytes_per_block, usual.shared_bytes_per_sm)

    def runs(self, target: str) -> bool:
        """Whether the device loads PTX for ``target`` (``sm_80``)."""
        return runs_on(target, self.compute_capability)

    def rate(self, unit: MathUnit) -> float:
        """Peak operations per second of the whole device in one unit."""
        return self.flops_per_clock[unit] * self.sm_count * self.clock_hz

    def attained_rate(self, unit: MathUnit) -> float:
        """Operations per second of the whole device in one unit, as the best kernels of this library reach them."""
        return self.rate(unit) * self.attained[unit]

    def with_sm_count(self, sm_count: int) -> ArchSpec:
        """This device with a part of its multiprocessors (SM carve-out, or a smaller model of the family)."""
        return replace(self, sm_count=sm_count)

    def with_product(self, product: str) -> ArchSpec:
        """These facts for a product of this name, of which they are the best known."""
        return self if product == self.board.product else replace(self, board=replace(self.board, product=product))

    def with_shared_bytes(self, per_block: int, per_sm: int) -> ArchSpec:
        """These facts with the shared memory in bytes that the device itself reports, where that is less."""
        return replace(
            self,
            shared_bytes_per_block=min(per_block, self.shared_bytes_per_block),
            shared_bytes_per_sm=min(per_sm, self.shared_bytes_per_sm),
        )


#: One cautious share for all units of ``sm_80``, where none is measured.
UNMEASURED: Mapping[MathUnit, float] = {
    MathUnit.NONE: 0.5,
    MathUnit.FMA_F32: 0.5,
    MathUnit.FMA_F64: 0.5,
    MathUnit.MMA_F16: 0.5,
    MathUnit.MMA_TF32: 0.5,
    MathUnit.MMA_INT8: 0.5,
}


def mma_rates(f32: int, f64: int, f16: int, tf32: int, int8: int) -> dict[MathUnit, int]:
    """Operations per multiprocessor and clock of each math unit of ``sm_80``; f16 and tf32 accumulate in fp32."""
    return {
        MathUnit.NONE: f32,
        MathUnit.FMA_F32: f32,
        MathUnit.FMA_F64: f64,
        MathUnit.MMA_F16: f16,
        MathUnit.MMA_TF32: tf32,
        MathUnit.MMA_INT8: int8,
    }


_NAME = re.compile(r"sm_(\d{1,3})(\d)(a?)")


def __getattr__(name: str) -> ArchSpec:
    if name.isupper() and name.lower() in _names():
        return _spec(name.lower())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def all_specs() -> tuple[ArchSpec, ...]:
    """The facts of every capability that has a module, oldest first."""
    return tuple(map(_spec, _names()))


def spec_for(major: int, minor: int) -> ArchSpec:
    """The facts for a compute capability.

    One that has no module gets those of the nearest one below whose kernels it runs, under its own name.
    Raises ArchMismatchError below 8.0.
    """
    found = _nearest((major, minor))
    if found is None:
        raise ArchMismatchError.at("device.compute_capability", expected="8.0 or newer", got=f"{major}.{minor}")
    return found


def spec_named(name: str) -> ArchSpec:
    """The facts of ``sm_80``, ``sm_90a``, ``sm_120``... as ``spec_for`` gives them.

    Raises ArchMismatchError for another name.
    """
    match = _NAME.fullmatch(str(name))
    found = _nearest((int(match[1]), int(match[2]))) if match else None
    if found is None or found.name != name:
        raise ArchMismatchError.at("arch", expected=f"one of {', '.join(_names())}, or a newer one", got=repr(name))
    return found


def spec_from_outside(name: str, sm_count: int, where: str) -> ArchSpec:
    """The facts of a device that a document names.

    Raises ArchMismatchError for an unknown name, BadParamError for a number of multiprocessors out of range.
    """
    if not 1 <= sm_count <= MAX_SM_COUNT:
        raise BadParamError.at(f"{where}.sm_count", expected=f"1 to {MAX_SM_COUNT}", got=sm_count)
    return spec_named(name).with_sm_count(sm_count)


@cache
def _names() -> dict[str, tuple[int, int]]:
    """Compute capabilities by the names of their modules, oldest first."""
    found = (_NAME.fullmatch(file.stem) for folder in capabilities.__path__ for file in Path(folder).glob("sm_*.py"))
    named = {match[0]: (int(match[1]), int(match[2])) for match in found if match}
    return dict(sorted(named.items(), key=lambda item: item[1]))


@cache
def _spec(name: str) -> ArchSpec:
    spec: ArchSpec = import_module(f"{capabilities.__name__}.{name}").SPEC
    return spec


def _nearest(capability: tuple[int, int]) -> ArchSpec | None:
    below = [
        name for name, own in _names().items() if own <= capability and runs_on(generation_for(own).target, capability)
    ]
    if not below or _names()[below[-1]] == capability:
        return _spec(below[-1]) if below else None
    return replace(_spec(below[-1]), name="sm_{}{}".format(*capability), compute_capability=capability)
