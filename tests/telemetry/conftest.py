"""A loaded plan to execute, on a device whose kernels run, and on one whose launches do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from lowdnn import telemetry
from lowdnn.config import Config
from lowdnn.driver import open_driver
from lowdnn.observer import introduce
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.runtime import Runtime
from lowdnn.telemetry import Histogram, Measure
from tests.support.runtime import scale_plan, scale_sources, upload


@dataclass
class Program:
    """A loaded ``scale_plan`` with its memory; ``events`` counts the events of the device that there are."""

    runtime: Runtime
    loaded: LoadedPlan
    pointers: tuple[int, ...]
    kept: tuple[object, ...]

    def run(self, times: int = 1, stream: int = 0) -> None:
        for _ in range(times):
            self.loaded.execute(self.pointers, 0, stream)

    def synchronize(self) -> None:
        self.runtime.context.synchronize()

    @property
    def events(self) -> int:
        return len(self.runtime.driver._context.state(self.runtime.context.device).events)  # type: ignore[attr-defined]


def opened_program(folder: Path, *, is_stubbed: bool = False, device: int = 0, policy: str = "lockstep") -> Program:
    driver = open_driver("emulated", policy=policy)
    if is_stubbed:
        driver.prepare_launch = lambda *_: _nothing  # type: ignore[method-assign]
    runtime = Runtime(
        driver, device=device, config=Config(cache_dir=folder / "cache"), sources=scale_sources(folder / "engines")
    )
    loaded = runtime.load(scale_plan(64))
    loaded.operation = "scale"
    introduce(loaded)
    buffers = tuple(upload(runtime, np.ones(64, np.float32)) for _ in range(2))
    alpha = np.array([2.0])
    return Program(runtime, loaded, (*(one.address for one in buffers), alpha.ctypes.data), (*buffers, alpha))


def _nothing(stream: int) -> None:
    pass


def value_of(measure: Measure, *labels: str) -> float:
    """The value of a measure now; the number of values of a histogram; 0 where there is none."""
    for family in telemetry.collect():
        for sample in family.samples:
            if family.measure is measure and sample.labels == labels:
                return sample.value.count if isinstance(sample.value, Histogram) else sample.value
    return 0


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Each test begins and ends with telemetry off and no values."""
    telemetry.reset()
    yield
    telemetry.reset()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    found = opened_program(tmp_path)
    with found.runtime:
        yield found
