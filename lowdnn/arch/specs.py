"""Frozen facts per compute capability; no logic beyond picking one.

Rates are dense peaks per multiprocessor and clock, from the vendor's architecture papers; bandwidths are what a copy
kernel reaches (read plus written). They feed the cost model, which needs shares of a peak and not exact times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lowdnn.plan import MathUnit
from lowdnn.status import ArchMismatchError, BadParamError

#: More multiprocessors than any device has.
MAX_SM_COUNT = 4096

#: What the device takes of each block's shared memory.
_RESERVED_SHARED_BYTES = 1024


@dataclass(frozen=True)
class ArchSpec:
    """One kind of device.

    name: ``sm_90a``.  compute_capability: (major, minor).  clock_hz: sustained clock under load.
    flops_per_clock: operations (FMA = 2) per multiprocessor and clock of each math unit.
    attained: the share of each unit's peak that the best kernels of this library reach.
    Units that the device does not have are in neither table.
    shared_bytes_per_block: the opt-in limit.  copy_bytes_per_s: device memory, read plus written.
    launch_overhead_s: from one kernel's end to the next one's start in a stream.
    """

    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    clock_hz: float
    flops_per_clock: Mapping[MathUnit, int]
    attained: Mapping[MathUnit, float]
    copy_bytes_per_s: float
    l2_bytes: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    threads_per_sm: int
    registers_per_sm: int = 65536
    launch_overhead_s: float = 2e-6

    def __hash__(self) -> int:
        """Of what tells architectures apart: they are part of the keys of most of what is worked out once."""
        return hash((self.name, self.sm_count))

    def shared_bytes_beside(self, blocks: int) -> int:
        """Shared memory of each of so many blocks on a multiprocessor: the device takes 1 KiB of each block's."""
        return min(self.shared_bytes_per_block, self.shared_bytes_per_sm // blocks - _RESERVED_SHARED_BYTES)

    def blocks_per_sm(self, shared_bytes: int, most: int) -> int:
        """How many blocks of so much shared memory a multiprocessor has room for, up to ``most``."""
        if shared_bytes > self.shared_bytes_per_block:
            return 0
        return min(most, self.shared_bytes_per_sm // (shared_bytes + _RESERVED_SHARED_BYTES))

    def rate(self, unit: MathUnit) -> float:
        """Peak operations per second of the whole device in one unit."""
        return self.flops_per_clock[unit] * self.sm_count * self.clock_hz

    def attained_rate(self, unit: MathUnit) -> float:
        """Operations per second of the whole device in one unit, as the best kernels of this library reach them."""
        return self.rate(unit) * self.attained[unit]

    def with_sm_count(self, sm_count: int) -> ArchSpec:
        """The same device with part of its multiprocessors (SM carve-out, or a smaller model of the family)."""
        return replace(self, sm_count=sm_count)


SM_80 = ArchSpec(
    name="sm_80",
    compute_capability=(8, 0),
    sm_count=108,
    clock_hz=1.35e9,
    flops_per_clock={
        MathUnit.NONE: 128,
        MathUnit.FMA_F32: 128,
        MathUnit.FMA_F64: 64,
        MathUnit.MMA_F16: 2048,
        MathUnit.MMA_TF32: 1024,
        MathUnit.MMA_INT8: 4096,
    },
    # Not measured: one cautious share for all.
    attained={
        MathUnit.NONE: 0.5,
        MathUnit.FMA_F32: 0.5,
        MathUnit.FMA_F64: 0.5,
        MathUnit.MMA_F16: 0.5,
        MathUnit.MMA_TF32: 0.5,
        MathUnit.MMA_INT8: 0.5,
    },
    copy_bytes_per_s=1.8e12,
    l2_bytes=40 << 20,
    shared_bytes_per_block=163 << 10,
    shared_bytes_per_sm=164 << 10,
    threads_per_sm=2048,
)

SM_90A = ArchSpec(
    name="sm_90a",
    compute_capability=(9, 0),
    sm_count=132,
    clock_hz=1.6e9,
    flops_per_clock={
        MathUnit.NONE: 256,
        MathUnit.FMA_F32: 256,
        MathUnit.FMA_F64: 128,
        MathUnit.MMA_F16: 4096,
        MathUnit.MMA_TF32: 2048,
        MathUnit.MMA_INT8: 8192,
        MathUnit.WGMMA_F16: 4096,
        MathUnit.WGMMA_TF32: 2048,
        MathUnit.WGMMA_FP8: 8192,
        MathUnit.WGMMA_INT8: 8192,
    },
    # Tensor cores as measured on an H200. MMA with matmul_mma at 4096^3 (bf16: 450 TFLOP/s): mma.sync feeds this
    # generation's tensor cores at about half their rate. WGMMA with matmul_wgmma at 8192^3. The FMA units' shares are
    # estimates.
    attained={
        MathUnit.NONE: 0.5,
        MathUnit.FMA_F32: 0.6,
        MathUnit.FMA_F64: 0.6,
        MathUnit.MMA_F16: 0.55,
        MathUnit.MMA_TF32: 0.3,
        MathUnit.MMA_INT8: 0.55,
        MathUnit.WGMMA_F16: 0.88,
        MathUnit.WGMMA_TF32: 0.88,
        MathUnit.WGMMA_FP8: 0.85,
        MathUnit.WGMMA_INT8: 0.85,
    },
    copy_bytes_per_s=4.3e12,
    l2_bytes=60 << 20,
    shared_bytes_per_block=227 << 10,
    shared_bytes_per_sm=228 << 10,
    threads_per_sm=2048,
)

#: Oldest first.
SPECS: tuple[ArchSpec, ...] = (SM_80, SM_90A)


def spec_for(major: int, minor: int) -> ArchSpec:
    """The facts for a compute capability: the newest entry that is not newer than it.

    Raises ArchMismatchError below 8.0.
    """
    fitting = [spec for spec in SPECS if spec.compute_capability <= (major, minor)]
    if not fitting:
        raise ArchMismatchError.at("device.compute_capability", expected="8.0 or newer", got=f"{major}.{minor}")
    return fitting[-1]


def spec_named(name: str) -> ArchSpec:
    """The facts of ``sm_80`` or ``sm_90a``; raises ArchMismatchError for another name."""
    for spec in SPECS:
        if spec.name == name:
            return spec
    raise ArchMismatchError.at("arch", expected="one of " + ", ".join(spec.name for spec in SPECS), got=repr(name))


def spec_from_outside(name: str, sm_count: int, where: str) -> ArchSpec:
    """The facts of a device that a document names; raises ArchMismatchError and BadParamError for one that is none."""
    if not 1 <= sm_count <= MAX_SM_COUNT:
        raise BadParamError.at(f"{where}.sm_count", expected=f"1 to {MAX_SM_COUNT}", got=sm_count)
    return spec_named(name).with_sm_count(sm_count)
