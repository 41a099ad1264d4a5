"""How fast the emulated device runs three kernels of full size, with and without the race detector.

    OPENBLAS_NUM_THREADS=1 python -m tools.bench.emulator_speed [--repeats N] [--no-races]

Prints, for each kernel, the target, the fastest launch (code already generated; bounds, alignment and initialisation
checked) and the same with races looked for as well. The exit code is 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cli.execution import run_graph
from lowdnn.config import Config
from lowdnn.driver.base import Driver, LaunchConfig
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.engines.registry import engine_named
from lowdnn.heuristics.ranking import candidate_for
from lowdnn.runtime.runtime import Runtime
from tests.driver.emulated.mutation.device import Device
from tests.driver.emulated.mutation.programs import Program, check_softmax, check_wgmma_pipeline

#: A launch with races looked for may take this many times as long.
RACES_FACTOR = 3.0


@dataclass(frozen=True)
class Workload:
    """``seconds`` runs it ``repeats`` times on a driver and gives the time of the fastest launch."""

    name: str
    target_s: float
    seconds: Callable[[EmulatedDriver, int], float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="launches of each kernel (default 3)")
    parser.add_argument("--no-races", action="store_true", help="leave out the runs with the race detector")
    arguments = parser.parse_args()
    print(f"{'kernel':38s} {'target s':>8s} {'s':>6s} {'races s':>8s} {'factor':>6s}")
    is_met = True
    for workload in WORKLOADS:
        seconds = workload.seconds(opened(races=False), arguments.repeats)
        row = f"{workload.name:38s} {workload.target_s:8.2f} {seconds:6.2f}"
        is_met &= seconds <= workload.target_s
        if not arguments.no_races:
            with_races = workload.seconds(opened(races=True), arguments.repeats)
            row += f" {with_races:8.2f} {with_races / seconds:6.1f}"
            is_met &= with_races <= RACES_FACTOR * seconds
        print(row, flush=True)
    return 0 if is_met else 1


def opened(*, races: bool) -> EmulatedDriver:
    driver = EmulatedDriver(races=races)
    driver.init()
    return driver


def wgmma_matmul(driver: EmulatedDriver, repeats: int) -> float:
    sizes = {"warpgroups": 2, "block_n": 128, "stages": 4}
    macros = ("-DWARPGROUPS=2", "-DBLOCK_N=128", "-DSTAGES=4")

    def check(device: Device, rng: np.random.Generator) -> None:
        check_wgmma_pipeline(device, rng, (1024, 1024, 1024), **sizes, blocks=64)

    return fastest(driver, Program("wgmma_pipeline", check, macros), repeats)


def softmax(driver: EmulatedDriver, repeats: int) -> float:
    return fastest(driver, Program("softmax", lambda device, rng: check_softmax(device, rng, (4096, 1024))), repeats)


def mma_matmul(driver: EmulatedDriver, repeats: int) -> float:
    case = parse_case("matmul b=1 m=1024 n=1024 k=1024 dtype=bf16")
    graph = case.graph()
    inputs = case.inputs(seed=1, exact=False)
    with Runtime(driver, config=Config(disk_cache=False)) as runtime, Handle(runtime) as handle:
        plan = candidate_for(engine_named("matmul_mma"), graph, handle.arch, {}).plan
        return min(run_graph(handle, graph, plan, inputs).host_us for _ in range(repeats)) / 1e6


WORKLOADS = (
    Workload("bf16 matmul 1024^3, TMA and wgmma", 0.6, wgmma_matmul),
    Workload("bf16 matmul 1024^3, mma.sync", 0.9, mma_matmul),
    Workload("fp32 softmax 4096 x 1024", 0.35, softmax),
)


class TimedDevice(Device):
    """A device that notes how long each launch took, in seconds."""

    def __init__(self, driver: Driver, ptx: str) -> None:
        super().__init__(driver, ptx)
        self.launches_s: list[float] = []

    def launch(self, name: str, config: LaunchConfig, *arguments: int | np.generic | bytes) -> None:
        start = time.perf_counter()
        super().launch(name, config, *arguments)
        self.launches_s.append(time.perf_counter() - start)


def fastest(driver: EmulatedDriver, program: Program, repeats: int) -> float:
    """The fastest launch of ``repeats``, not counting the first, which generates code."""
    device = TimedDevice(driver, program.ptx())
    for _ in range(1 + repeats):
        program.check(device, np.random.default_rng())
    return min(device.launches_s[1:])


if __name__ == "__main__":
    sys.exit(main())
