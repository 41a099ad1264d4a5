"""From an exception in a block of generated code to a report: PTX line, block, thread, address."""

from __future__ import annotations

from types import TracebackType

from lowdnn.driver.emulated.faults import EmulationFault, FaultReport, LaneFault
from lowdnn.driver.emulated.program import Kernel
from lowdnn.driver.emulated.running.batch import Batch
from lowdnn.driver.emulated.running.scheduler import BlockFault


def fault_of(fault: BlockFault, kernel: Kernel, batch: Batch) -> EmulationFault | BaseException:
    """What to raise for what happened in a block; an exception that is no fault of the kernel comes back as it is."""
    line = _ptx_line(fault, kernel)
    cause = fault.cause
    if not isinstance(cause, LaneFault):
        cause.add_note(f"while emulating {kernel.name}, PTX line {line}: {_text(kernel, line)}")
        return cause
    block = thread = warp = lane = None
    if cause.position is not None:
        lanes = fault.group.lanes
        block, thread, warp, lane = batch.place(int(lanes[min(cause.position, lanes.size - 1)]))
    return EmulationFault(
        FaultReport(
            cause.kind,
            cause.message,
            kernel.name,
            line,
            _text(kernel, line),
            block,
            thread,
            warp,
            lane,
            cause.address,
            cause.buffer,
            cause.buffer_offset,
        )
    )


def _ptx_line(fault: BlockFault, kernel: Kernel) -> int:
    code = kernel.program.blocks[fault.step.index]
    trace: TracebackType | None = fault.cause.__traceback__
    found = 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == code.file_name:
            found = trace.tb_lineno
        trace = trace.tb_next
    return code.lines[found - 1] if found else fault.step.end_line


def _text(kernel: Kernel, line: int) -> str:
    return kernel.ptx_lines[line - 1].strip() if 0 < line <= len(kernel.ptx_lines) else ""
