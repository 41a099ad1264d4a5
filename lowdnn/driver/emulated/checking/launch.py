"""The race detector's records of a whole launch: accesses to global memory, time, places in the PTX."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from lowdnn.driver.emulated.checking.accesses import epoch_bytes, of_global
from lowdnn.driver.emulated.checking.epochs import SITES
from lowdnn.driver.emulated.checking.task_order import TaskOrder
from lowdnn.driver.emulated.checking.traits import Traits
from lowdnn.driver.emulated.faults import Dim3
from lowdnn.driver.emulated.memory.arena import Arena, Array
from lowdnn.driver.emulated.memory.space import lazy_map
from lowdnn.driver.emulated.parsing.source_lines import source_line

if TYPE_CHECKING:
    from lowdnn.driver.emulated.checking.records import Records

#: Most bytes of host memory for the epochs of the shared memory of one batch.
_SHARED_EPOCH_BYTES = 256 << 20


class KernelText(Protocol):
    """A kernel's PTX, and where its generated code comes from: ``code_lines`` has, by the file name of a block's code,
    the PTX line of each of its lines."""

    @property
    def name(self) -> str: ...

    @property
    def traits(self) -> Traits: ...

    @property
    def ptx_lines(self) -> Sequence[str]: ...

    @property
    def code_lines(self) -> Mapping[str, Sequence[int]]: ...


#: The order of a launch beside which nothing runs.
_ALONE = TaskOrder(None, 0, {})


class LaunchHistory:
    """``time`` goes up at each synchronisation. ``ctas`` are the CTAs of all batches so far, in their order.

    ``previous``: the launch before, where this one may run beside it. ``records``: of all that may run beside it on
    several devices, with the place ``order`` among it; None where there is one device. ``columns``: of the clocks of
    its warps, 0 where not all warps are followed together; ``blocks``: where the clocks hold those of other launches.
    ``learned``: by launch, what some warp knew of it when it ended, and with it all that comes after this launch.
    """

    def __init__(
        self,
        kernel: KernelText,
        arena: Arena,
        previous: LaunchHistory | None = None,
        records: Records | None = None,
        order: TaskOrder = _ALONE,
    ) -> None:
        self.kernel_name = kernel.name
        self.previous = previous
        self.traits = kernel.traits
        self.records = records
        self.order = order
        self.device = arena.device
        self.columns = 0
        self.blocks: dict[LaunchHistory, slice] = {}
        self.learned: dict[LaunchHistory, Array] = {}
        self.who: Callable[[Any], tuple[Dim3, str]] = _nobody
        self.time = 1
        self.ctas: list[int] = []
        #: By location in global memory through which threads synchronise: the clock that a reader acquires.
        self.locations: dict[tuple[bool, int], Array] = {}
        self.accesses = of_global(arena.space.extent_bytes, self.traits.global_shift, lazy_map)
        self._lines = kernel.code_lines
        self._ptx_lines = kernel.ptx_lines
        #: Numbers of sites by block and place in its code; kept since finding the line of a place is slow.
        self._sites: dict[tuple[str, int], int] = {}
        self._numbers: dict[int, int] = {}
        self._site_lines: list[int] = [0]

    def ctas_that_fit(self, shared_bytes: int) -> int:
        """Number of CTAs with ``shared_bytes`` of shared memory whose accesses fit the host memory at a time."""
        return _SHARED_EPOCH_BYTES // max(epoch_bytes(shared_bytes, self.traits.shared_shift), 1)

    def block_of(self, launch: LaunchHistory) -> slice:
        """The columns of another launch in the clocks of this one's warps, behind their own."""
        if launch not in self.blocks:
            own = self.columns * (1 + self.traits.asynchronous)
            start = max((block.stop for block in self.blocks.values()), default=own)
            self.blocks[launch] = slice(start, start + launch.columns)
        return self.blocks[launch]

    def tick(self) -> int:
        """Advances the time by one synchronisation, and returns it."""
        self.time += 1
        return self.time

    def site(self) -> int:
        """The number of the PTX line that is being executed; 0 if there is none, or if all numbers are in use."""
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename not in self._lines:
            frame = frame.f_back
        if frame is None:
            return 0
        block, instruction = frame.f_code.co_filename, frame.f_lasti
        number = self._sites.get((block, instruction))
        if number is None:
            number = self._sites[block, instruction] = self._site_of_line(self._lines[block][frame.f_lineno - 1])
        return number

    def _site_of_line(self, line: int) -> int:
        number = self._numbers.get(line)
        if number is None:
            number = self._numbers[line] = len(self._site_lines) if len(self._site_lines) <= SITES else 0
            self._site_lines.append(line)
        return number

    def text_of(self, site: int) -> str:
        """``PTX line N (FILE:LINE): ...`` of a site."""
        line = self._site_lines[site]
        if not line:
            return "a line that is not known"
        source = source_line(self._ptx_lines, line)
        where = f"PTX line {line} ({source[0]}:{source[1]})" if source else f"PTX line {line}"
        return f"{where}: {' '.join(self._ptx_lines[line - 1].split())}"


def _nobody(_: Any) -> tuple[Dim3, str]:
    """The actor of an access before the first batch: there is none."""
    raise RuntimeError("no batch of the launch has run")
