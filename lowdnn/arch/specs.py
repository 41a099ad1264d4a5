"""Frozen facts per compute capability; no logic beyond picking one.

Limits of a multiprocessor are those of the CUDA Programming Guide, "Features and Technical Specifications", tables of
multiprocessors and of memory per compute capability. Rates are dense peaks per multiprocessor and clock, from the
vendor's papers that each entry names; bandwidths are what a copy kernel reaches (read plus written). Both feed the cost
model, which needs shares of a peak and not exact times. Only 9.0 is measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lowdnn.arch.targets import Generation, generation_for, runs_on
from lowdnn.plan import MathUnit
from lowdnn.status import ArchMismatchError, BadParamError

#: More multiprocessors than any device has.
MAX_SM_COUNT = 4096

#: What the device takes of each block's shared memory.
_RESERVED_SHARED_BYTES = 1024

#: The share of its memory's bandwidth that a copy reaches, where that is not measured. On an H200 it is 0.88.
_COPIED = 0.85


@dataclass(frozen=True)
class Board:
    """The product that stands for a compute capability, as the driver's device attributes describe it.

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
    launch_overhead_s: from one kernel's end to the next one's start in a stream.
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
    registers_per_sm: int = 65536
    spills_early: bool = False
    launch_overhead_s: float = 2e-6

    def __hash__(self) -> int:
        """Of what tells architectures apart: they are part of the keys of most of what is worked out once."""
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

    def runs(self, target: str) -> bool:
        """Whether the device loads PTX for ``target`` (``sm_80``)."""
        return runs_on(target, self.compute_capability)

    def shared_bytes_beside(self, blocks: int) -> int:
        """Shared memory of each of so many blocks on a multiprocessor: the device takes 1 KiB of each block's."""
        return min(self.shared_bytes_per_block, self.shared_bytes_per_sm // blocks - _RESERVED_SHARED_BYTES)

    def blocks_per_sm(self, shared_bytes: int, most: int) -> int:
        """How many blocks of so much shared memory a multiprocessor has room for, up to ``most``."""
        if shared_bytes > self.shared_bytes_per_block:
            return 0
        room = self.shared_bytes_per_sm // (shared_bytes + _RESERVED_SHARED_BYTES)
        return min(most, self.max_blocks_per_sm, room)

    def rate(self, unit: MathUnit) -> float:
        """Peak operations per second of the whole device in one unit."""
        return self.flops_per_clock[unit] * self.sm_count * self.clock_hz

    def attained_rate(self, unit: MathUnit) -> float:
        """Operations per second of the whole device in one unit, as the best kernels of this library reach them."""
        return self.rate(unit) * self.attained[unit]

    def with_sm_count(self, sm_count: int) -> ArchSpec:
        """The same device with part of its multiprocessors (SM carve-out, or a smaller model of the family)."""
        return replace(self, sm_count=sm_count)

    def with_shared_bytes(self, per_block: int, per_sm: int) -> ArchSpec:
        """The same facts, with the shared memory in bytes that the device itself reports where that is less."""
        return replace(
            self,
            shared_bytes_per_block=min(per_block, self.shared_bytes_per_block),
            shared_bytes_per_sm=min(per_sm, self.shared_bytes_per_sm),
        )


#: One cautious share for all units, since none is measured.
_UNMEASURED = {
    MathUnit.NONE: 0.5,
    MathUnit.FMA_F32: 0.5,
    MathUnit.FMA_F64: 0.5,
    MathUnit.MMA_F16: 0.5,
    MathUnit.MMA_TF32: 0.5,
    MathUnit.MMA_INT8: 0.5,
}


def _rates(f32: int, f64: int, f16: int, tf32: int, int8: int) -> dict[MathUnit, int]:
    """Operations per multiprocessor and clock of each math unit of ``sm_80``; f16 and tf32 accumulate in fp32."""
    return {
        MathUnit.NONE: f32,
        MathUnit.FMA_F32: f32,
        MathUnit.FMA_F64: f64,
        MathUnit.MMA_F16: f16,
        MathUnit.MMA_TF32: tf32,
        MathUnit.MMA_INT8: int8,
    }


# A100 SXM 80 GB. Source: NVIDIA A100 Tensor Core GPU Architecture (whitepaper), table 1 and 4; A100 80 GB datasheet.
_A100 = Board("A100 SXM 80 GB", 1_410_000, 1_593_000, 5120, 80 << 30)
SM_80 = ArchSpec(
    name="sm_80",
    compute_capability=(8, 0),
    board=_A100,
    sm_count=108,
    clock_hz=1.35e9,
    flops_per_clock=_rates(f32=128, f64=64, f16=2048, tf32=1024, int8=4096),
    attained=_UNMEASURED,
    copy_bytes_per_s=1.8e12,
    l2_bytes=40 << 20,
    shared_bytes_per_block=163 << 10,
    shared_bytes_per_sm=164 << 10,
    threads_per_sm=2048,
    max_blocks_per_sm=32,
)

# GeForce RTX 3090. Source: NVIDIA Ampere GA102 GPU Architecture (whitepaper), table 2 and appendix A. Tensor cores of
# A10 and A40, which have the same capability, accumulate in fp32 at twice this rate.
_RTX_3090 = Board("GeForce RTX 3090", 1_695_000, 9_751_000, 384, 24 << 30)
SM_86 = ArchSpec(
    name="sm_86",
    compute_capability=(8, 6),
    board=_RTX_3090,
    sm_count=82,
    clock_hz=1e3 * _RTX_3090.clock_khz,
    flops_per_clock=_rates(f32=256, f64=4, f16=512, tf32=256, int8=2048),
    attained=_UNMEASURED,
    copy_bytes_per_s=_COPIED * _RTX_3090.bytes_per_s,
    l2_bytes=6 << 20,
    shared_bytes_per_block=99 << 10,
    shared_bytes_per_sm=100 << 10,
    threads_per_sm=1536,
    max_blocks_per_sm=16,
)

# Jetson AGX Orin 64 GB. Source: NVIDIA Jetson AGX Orin Series Technical Brief, table 1: 5.3 TFLOP/s of fp32, 85 dense
# TOP/s of int8 on the GPU, 204.8 GB/s. The rates of fp16 and TF32 are not published: taken in the ratios to int8 of
# 8.0, whose tensor cores these are.
_ORIN = Board("Jetson AGX Orin 64 GB", 1_300_000, 3_200_000, 256, 64 << 30)
SM_87 = ArchSpec(
    name="sm_87",
    compute_capability=(8, 7),
    board=_ORIN,
    sm_count=16,
    clock_hz=1e3 * _ORIN.clock_khz,
    flops_per_clock=_rates(f32=256, f64=4, f16=2048, tf32=1024, int8=4096),
    attained=_UNMEASURED,
    copy_bytes_per_s=_COPIED * _ORIN.bytes_per_s,
    l2_bytes=4 << 20,
    shared_bytes_per_block=163 << 10,
    shared_bytes_per_sm=164 << 10,
    threads_per_sm=1536,
    max_blocks_per_sm=16,
)

# GeForce RTX 4090. Source: NVIDIA Ada GPU Architecture (whitepaper), appendix A. L4 and L40S accumulate in fp32 at
# twice this rate.
_RTX_4090 = Board("GeForce RTX 4090", 2_520_000, 10_501_000, 384, 24 << 30)
SM_89 = ArchSpec(
    name="sm_89",
    compute_capability=(8, 9),
    board=_RTX_4090,
    sm_count=128,
    clock_hz=1e3 * _RTX_4090.clock_khz,
    flops_per_clock=_rates(f32=256, f64=4, f16=512, tf32=256, int8=2048),
    attained=_UNMEASURED,
    copy_bytes_per_s=_COPIED * _RTX_4090.bytes_per_s,
    l2_bytes=72 << 20,
    shared_bytes_per_block=99 << 10,
    shared_bytes_per_sm=100 << 10,
    threads_per_sm=1536,
    max_blocks_per_sm=24,
)

# H200 SXM. Source: NVIDIA H100 Tensor Core GPU Architecture (whitepaper), table 2 and 3; H200 datasheet; clocks, L2 and
# bandwidth as measured.
SM_90A = ArchSpec(
    name="sm_90a",
    compute_capability=(9, 0),
    board=Board("H200 SXM", 1_980_000, 3_201_000, 6144, 141 << 30),
    sm_count=132,
    clock_hz=1.6e9,
    flops_per_clock={
        **_rates(f32=256, f64=128, f16=4096, tf32=2048, int8=8192),
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
    max_blocks_per_sm=32,
)

# B200. Source: NVIDIA Blackwell Architecture Technical Brief, table 3 (37 TFLOP/s of fp64, 75 of fp32);
# multiprocessors, L2, bus and clocks as its driver reports them. The rate of mma.sync, beside tcgen05, is not
# published: that of 8.0 is the lower bound.
_B200 = Board("B200", 1_965_000, 3_996_000, 7680, 178 << 30)
SM_100 = ArchSpec(
    name="sm_100",
    compute_capability=(10, 0),
    board=_B200,
    sm_count=148,
    clock_hz=1e3 * _B200.clock_khz,
    flops_per_clock=_rates(f32=256, f64=128, f16=2048, tf32=1024, int8=4096),
    attained=_UNMEASURED,
    copy_bytes_per_s=_COPIED * _B200.bytes_per_s,
    l2_bytes=132_644_864,
    shared_bytes_per_block=227 << 10,
    shared_bytes_per_sm=228 << 10,
    threads_per_sm=2048,
    max_blocks_per_sm=32,
    spills_early=True,
)

# B300. Source: NVIDIA Blackwell Ultra datasheet (1.25 TFLOP/s of fp64, 75 of fp32, 0.15 POP/s of int8, 8 TB/s).
# Multiprocessors, L2 and clock are not published for the product: those of the B200 are the lower bound. The rate of
# mma.sync as for 10.0.
_B300 = Board("B300", 1_965_000, 3_906_000, 8192, 270 << 30)
SM_103 = ArchSpec(
    name="sm_103",
    compute_capability=(10, 3),
    board=_B300,
    sm_count=148,
    clock_hz=1e3 * _B300.clock_khz,
    flops_per_clock=_rates(f32=256, f64=4, f16=2048, tf32=1024, int8=512),
    attained=_UNMEASURED,
    copy_bytes_per_s=_COPIED * _B300.bytes_per_s,
    l2_bytes=132_644_864,
    shared_bytes_per_block=227 << 10,
    shared_bytes_per_sm=228 << 10,
    threads_per_sm=2048,
    max_blocks_per_sm=32,
    spills_early=True,
)

# Jetson T5000 (Thor). Source: NVIDIA Jetson Thor Series Modules datasheet (2560 cores, 1.57 GHz, 273 GB/s);
# multiprocessors and L2 as its driver reports them. The rates of mma.sync are not published: that of 8.0 is the lower
# bound, of int8 that of 10.3.
_THOR = Board("Jetson T5000", 1_575_000, 4_266_000, 256, 128 << 30)
SM_110 = ArchSpec(
    name="sm_110",
    compute_capability=(11, 0),
    board=_THOR,
    sm_count=20,
    clock_hz=1e3 * _THOR.clock_khz,
    flops_per_clock=_rates(f32=256, f64=4, f16=2048, tf32=1024, int8=512),
    attained=_UNMEASURED,
    copy_bytes_per_s=_COPIED * _THOR.bytes_per_s,
    l2_bytes=32 << 20,
    shared_bytes_per_block=227 << 10,
    shared_bytes_per_sm=228 << 10,
    threads_per_sm=1536,
    max_blocks_per_sm=24,
    spills_early=True,
)

# GeForce RTX 5090. Source: NVIDIA RTX Blackwell GPU Architecture (whitepaper), appendix A. RTX PRO cards accumulate in
# fp32 at twice this rate.
_RTX_5090 = Board("GeForce RTX 5090", 2_407_000, 14_001_000, 512, 32 << 30)
SM_120 = ArchSpec(
    name="sm_120",
    compute_capability=(12, 0),
    board=_RTX_5090,
    sm_count=170,
    clock_hz=1e3 * _RTX_5090.clock_khz,
    flops_per_clock=_rates(f32=256, f64=4, f16=512, tf32=256, int8=2048),
    attained=_UNMEASURED,
    copy_bytes_per_s=_COPIED * _RTX_5090.bytes_per_s,
    l2_bytes=96 << 20,
    shared_bytes_per_block=99 << 10,
    shared_bytes_per_sm=100 << 10,
    threads_per_sm=1536,
    max_blocks_per_sm=24,
    spills_early=True,
)

# DGX Spark (GB10). Source: NVIDIA DGX Spark datasheet (6144 cores, 273 GB/s, 1 PFLOP/s of sparse fp4, which makes the
# clock); NVIDIA's talk about GB10 at Hot Chips 2025 (L2 of 24 MB). The rates of mma.sync are not published: those of
# 12.0 are the lower bound.
_SPARK = Board("DGX Spark", 2_418_000, 4_266_000, 256, 128 << 30)
SM_121 = ArchSpec(
    name="sm_121",
    compute_capability=(12, 1),
    board=_SPARK,
    sm_count=48,
    clock_hz=1e3 * _SPARK.clock_khz,
    flops_per_clock=_rates(f32=256, f64=4, f16=512, tf32=256, int8=2048),
    attained=_UNMEASURED,
    copy_bytes_per_s=_COPIED * _SPARK.bytes_per_s,
    l2_bytes=24 << 20,
    shared_bytes_per_block=99 << 10,
    shared_bytes_per_sm=100 << 10,
    threads_per_sm=1536,
    max_blocks_per_sm=24,
    spills_early=True,
)

#: Oldest first.
SPECS: tuple[ArchSpec, ...] = (SM_80, SM_86, SM_87, SM_89, SM_90A, SM_100, SM_103, SM_110, SM_120, SM_121)

_NAME = re.compile(r"sm_(\d{1,3})(\d)a?")


def spec_for(major: int, minor: int) -> ArchSpec:
    """The facts for a compute capability.

    One that is not in ``SPECS`` gets those of the nearest one below whose kernels it runs, under its own name.
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
        known = ", ".join(spec.name for spec in SPECS)
        raise ArchMismatchError.at("arch", expected=f"one of {known}, or a newer one", got=repr(name))
    return found


def spec_from_outside(name: str, sm_count: int, where: str) -> ArchSpec:
    """The facts of a device that a document names.

    Raises ArchMismatchError for an unknown name, BadParamError for a number of multiprocessors out of range.
    """
    if not 1 <= sm_count <= MAX_SM_COUNT:
        raise BadParamError.at(f"{where}.sm_count", expected=f"1 to {MAX_SM_COUNT}", got=sm_count)
    return spec_named(name).with_sm_count(sm_count)


def _nearest(capability: tuple[int, int]) -> ArchSpec | None:
    below = [
        spec for spec in SPECS if spec.compute_capability <= capability and runs_on(spec.generation.target, capability)
    ]
    if not below or below[-1].compute_capability == capability:
        return below[-1] if below else None
    return replace(below[-1], name="sm_{}{}".format(*capability), compute_capability=capability)
