"""From an exception in a block of generated code to a report: lines of PTX and source, block, thread, address."""

from __future__ import annotations

import re
from types import TracebackType

from lowdnn.driver.emulated.faults import EmulationFault, FaultReport, LaneFault
from lowdnn.driver.emulated.parsing.source_lines import source_line
from lowdnn.driver.emulated.program import Kernel
from lowdnn.driver.emulated.running.batch import Batch
from lowdnn.driver.emulated.running.scheduler import BlockFault


def fault_of(fault: BlockFault, kernel: Kernel, batch: Batch) -> EmulationFault | RuntimeError:
    """The exception for a fault in a block; RuntimeError for a fault of the emulator, not of the kernel."""
    line = _ptx_line(fault, kernel)
    cause = fault.cause
    if not isinstance(cause, LaneFault):
        where = f"{kernel.name}, PTX line {line}: {_text(kernel, line)}"
        return RuntimeError(f"the emulated device itself failed ({cause!r}) in {where}")
    if cause.lane is None and cause.position is not None:
        lanes = fault.group.lanes
        cause.lane = int(lanes[min(cause.position, lanes.size - 1)])
    cause.line = cause.line or line
    return EmulationFault(report_of(cause, kernel, batch))


def report_of(fault: LaneFault, kernel: Kernel, batch: Batch) -> FaultReport:
    """The report of a fault that knows its lane and line."""
    block, thread, warp, lane = (None,) * 4 if fault.lane is None else batch.place(fault.lane)
    source = source_line(kernel.ptx_lines, fault.line)
    return FaultReport(
        fault.kind,
        fault.message,
        kernel.name,
        fault.line,
        _text(kernel, fault.line),
        f"{source[0]}:{source[1]}" if source else "",
        block,
        thread,
        warp,
        lane,
        fault.address,
        fault.buffer,
        fault.buffer_offset,
        _shared_variable(fault, kernel),
    )


def _shared_variable(fault: LaneFault, kernel: Kernel) -> str:
    """The variable in shared memory that starts nearest below the address, with the offset in it."""
    offset = fault.buffer_offset
    if fault.buffer != "shared memory" or offset is None:
        return ""
    below = [(start, name) for name, start in kernel.shared_variables.items() if start <= offset]
    if not below:
        return ""
    start, name = max(below)
    return f"{_source_name(name)} {offset - start:+d}"


def _source_name(name: str) -> str:
    """The name in the source of a variable of a function, which the compiler has mangled with the function's name.

    Source: Itanium C++ ABI, 5.1.7, local names: ``_ZZ <function> E <length> <name> [discriminator]``.
    """
    for found in reversed(list(re.finditer(r"E(\d+)", name))) if name.startswith("_ZZ") else ():
        end = found.end() + int(found[1])
        if end <= len(name) and re.fullmatch(r"(_\d|__\d+_)?", name[end:]):
            return name[found.end() : end]
    return name


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
    return " ".join(kernel.ptx_lines[line - 1].split()) if 0 < line <= len(kernel.ptx_lines) else ""
