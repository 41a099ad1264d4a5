"""The passage of a plan's blocks, a time that sets apart plans whose estimates are equal."""

from __future__ import annotations

from math import prod

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.model.occupancy import resident_blocks
from lowdnn.plan import Launch, Plan


def passage_us(plan: Plan, arch: ArchSpec) -> float:
    """Microseconds in which the blocks of ``plan`` pass through the device, if each lives for one load.

    The bytes of a plan do not tell how many threads share them. This time does, and sets apart plans of one engine
    whose knobs its own search would not have chosen.
    """
    timings = arch.timings
    return sum(1e6 * (timings.launch_s + timings.load_latency_s * _rounds(launch, arch)) for launch in plan.launches)


def _rounds(launch: Launch, arch: ArchSpec) -> float:
    """How often the blocks of a launch fill the device, as far as threads and shared memory allow."""
    resident = resident_blocks(arch, prod(launch.block), shared_bytes=launch.shared_bytes)
    return prod(launch.grid) / (max(resident, 1) * arch.sm_count)
