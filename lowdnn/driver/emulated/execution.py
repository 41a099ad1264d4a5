"""One launch under way: its batches run one after another, and it can be left and taken up again between turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from lowdnn.driver.emulated.faults import EmulationFault, LaneFault
from lowdnn.driver.emulated.program import Kernel
from lowdnn.driver.emulated.reports import fault_of, report_of
from lowdnn.driver.emulated.running.batch import Batch
from lowdnn.driver.emulated.running.deadlock import deadlock, waiting_text
from lowdnn.driver.emulated.running.inquiry import Inquiry
from lowdnn.driver.emulated.running.scheduler import BlockFault, BlockFunction, Scheduler, Turn
from lowdnn.driver.emulated.running.time_limit import TimeLimit


class Execution:
    """``batches`` makes each batch when the one before has ended; ``end`` gives back what the launch holds.

    ``device``: the number that reports name; None where the driver has one device.
    """

    def __init__(
        self,
        kernel: Kernel,
        blocks: tuple[BlockFunction, ...],
        batches: Iterator[Batch],
        limit: TimeLimit,
        inquiry: Inquiry,
        device: int | None,
        end: Callable[[], None],
    ) -> None:
        self.kernel = kernel
        self.device = device
        self._blocks = blocks
        self._batches = batches
        self._limit = limit
        self._inquiry = inquiry
        self._end = end
        try:
            self._scheduler = self._next()
        except MemoryError:
            end()
            raise

    @property
    def progress(self) -> object:
        """A value that changes where other launches may see a change."""
        return None if self._scheduler is None else (id(self._scheduler), self._scheduler.progress)

    @property
    def waits(self) -> str:
        """The lanes that wait, where and for what."""
        return "" if self._scheduler is None else waiting_text(self._scheduler)

    def run(self) -> None:
        """Runs to the end, alone. Raises ``EmulationFault``."""
        while (turn := self.advance(alone=True)) is not Turn.ENDED:
            if turn is Turn.WAITS and not self.retry():
                raise self.deadlock()

    def advance(self, *, alone: bool = False) -> Turn:
        """Some lanes run as far as they go; if ``alone``, whatever the policy says of interruptions.

        Raises ``EmulationFault``, after which the launch has ended.
        """
        scheduler = self._scheduler
        if scheduler is None:
            return Turn.ENDED
        goes_on = alone or not scheduler.picker.interrupts
        self._inquiry.is_running = True
        try:
            with self._limit, np.errstate(all="ignore"):
                turn = scheduler.advance()
                while turn is Turn.RAN and goes_on:
                    turn = scheduler.advance()
        except BlockFault as fault:
            raise self._ended(fault_of(fault, self.kernel, scheduler.batch)) from fault.cause
        except LaneFault as fault:
            raise self._ended(EmulationFault(report_of(fault, self.kernel, scheduler.batch))) from None
        finally:
            self._inquiry.is_running = False
        if turn is Turn.ENDED:
            if scheduler.batch.races is not None:
                scheduler.batch.races.batch_ended()
            self._scheduler = self._next()
            turn = Turn.RAN if self._scheduler is not None else turn
        return turn

    def retry(self) -> bool:
        """Lanes that wait look once more; False once they have been patient long enough."""
        return self._scheduler is not None and self._scheduler.retry()

    def others_stored(self) -> None:
        """Other launches have changed memory: lanes that wait for a value look again."""
        if self._scheduler is not None:
            self._scheduler.others_stored()

    def deadlock(self, others: Sequence[str] | None = None) -> EmulationFault | RuntimeError:
        """The fault of a launch whose lanes all wait; ``others`` tells who waits on other devices. Ends the launch."""
        if self._scheduler is None:
            raise RuntimeError("the launch has ended")
        fault = deadlock(self._scheduler, others)
        return self._ended(EmulationFault(report_of(fault, self.kernel, self._scheduler.batch)))

    def close(self) -> None:
        """Ends the launch, finished or not."""
        self._scheduler = None
        self._batches = iter(())
        end, self._end = self._end, _nothing
        end()

    def _next(self) -> Scheduler | None:
        """The scheduler of the next batch; None after the last one, when the launch ends."""
        batch = next(self._batches, None)
        if batch is None:
            self.close()
            return None
        return Scheduler(batch, self.kernel.steps, self._blocks, self._limit, self._inquiry)

    def _ended(self, fault: EmulationFault | RuntimeError) -> EmulationFault | RuntimeError:
        """The fault that ends the launch, with its device."""
        self.close()
        if isinstance(fault, EmulationFault) and self.device is not None:
            return EmulationFault(replace(fault.report, device=self.device))
        return fault


def _nothing() -> None:
    """The end of a launch that has ended."""
