"""The faults of emulated kernels, and how they are reported.

``EmulationFault`` is what ``Machine.launch`` and ``Machine.load`` raise. Its ``report`` is plain data; its text names
kernel, PTX line, block, thread and address. Helpers that run inside a block of generated code know lanes only and
raise ``LaneFault``; the scheduler adds the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

Dim3 = tuple[int, int, int]


class FaultKind(Enum):
    """Kinds of faults; the value is the CUresult that a driver would answer with."""

    OUT_OF_BOUNDS = ("out-of-bounds", 700)
    USE_AFTER_FREE = ("use-after-free", 700)
    NO_PEER_ACCESS = ("no-peer-access", 700)
    MISALIGNED = ("misaligned", 716)
    INVALID_TENSOR_MAP = ("invalid-tensor-map", 715)
    INVALID_TENSOR_COPY = ("invalid-tensor-copy", 715)
    UNINITIALISED_READ = ("uninitialised-read", 719)
    UNWRITTEN_REGISTER = ("unwritten-register", 719)
    READ_ONLY = ("write-to-read-only", 700)
    SHARED_OUT_OF_BOUNDS = ("shared-out-of-bounds", 700)
    LOCAL_OUT_OF_BOUNDS = ("local-out-of-bounds", 700)
    MISSING_WGMMA_FENCE = ("missing-wgmma-fence", 719)
    IN_FLIGHT_REGISTER = ("in-flight-register", 719)
    BARRIER_MISUSE = ("barrier-misuse", 719)
    ASYNC_MISUSE = ("async-misuse", 719)
    WARP_DIVERGED = ("warp-diverged", 719)
    DATA_RACE = ("data-race", 719)
    MISSING_PROXY_FENCE = ("missing-proxy-fence", 719)
    DEADLOCK = ("deadlock", 702)
    TIMEOUT = ("timeout", 702)
    TRAP = ("trap", 715)
    ASSERT = ("assertion-failed", 710)
    UNSUPPORTED = ("unsupported-instruction", 218)
    INVALID_PTX = ("invalid-ptx", 218)
    WRONG_TARGET = ("wrong-target", 209)
    INVALID_LAUNCH = ("invalid-launch", 1)

    @property
    def text(self) -> str:
        return self.value[0]

    @property
    def result(self) -> int:
        """CUresult number: 700 illegal address, 702 timeout, 710 assert, 715 illegal instruction, 716 misaligned, 719
        launch failed."""
        return self.value[1]


@dataclass(frozen=True)
class FaultReport:
    """The place and the cause of a fault. Fields that do not apply are None or empty.

    ``source``: ``file:line``, if the PTX tells it. ``variable``: what of shared memory is meant, with the offset in it.
    ``device``: the number of the device, where a driver has several.
    """

    kind: FaultKind
    message: str
    kernel: str = ""
    ptx_line: int = 0
    ptx_text: str = ""
    source: str = ""
    block: Dim3 | None = None
    thread: Dim3 | None = None
    warp: int | None = None
    lane: int | None = None
    address: int | None = None
    buffer: str = ""
    buffer_offset: int | None = None
    variable: str = ""
    device: int | None = None

    def facts(self) -> dict[str, object]:
        """The fields that apply, by name, as JSON takes them."""
        known = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in known.items() if value not in ("", None)} | {"kind": self.kind.text}

    def __str__(self) -> str:
        lines = [f"{self.kind.text}: {self.message}"]
        if self.kernel:
            lines.append(f"  kernel {self.kernel}" + ("" if self.device is None else f" on device {self.device}"))
        if self.ptx_line:
            lines.append(f"  PTX line {self.ptx_line}: {self.ptx_text}")
        if self.source:
            lines.append(f"  source {self.source}")
        if self.block is not None:
            lines.append(f"  block {self.block}, thread {self.thread} (warp {self.warp}, lane {self.lane})")
        if self.address is not None:
            lines.append(f"  address {self.address:#x}{self._place()}")
        return "\n".join(lines)

    def _place(self) -> str:
        if not self.buffer:
            return ""
        offset = "" if self.buffer_offset is None else f" {self.buffer_offset:+d} bytes"
        return f" = {self.buffer}{offset}" + (f" ({self.variable})" if self.variable else "")


class EmulationFault(Exception):
    """A kernel did what a GPU must not be asked to do, or PTX cannot be run here."""

    def __init__(self, report: FaultReport) -> None:
        super().__init__(str(report))
        self.report = report

    def __reduce__(self) -> tuple[type[EmulationFault], tuple[FaultReport]]:
        return type(self), (self.report,)

    @property
    def kind(self) -> FaultKind:
        return self.report.kind

    @property
    def result(self) -> int:
        return self.report.kind.result


class LaneFault(Exception):
    """A fault inside a block of code. ``position`` counts within the running group; None where no lane is to blame.

    ``line`` and ``lane``, of the whole batch, stand for the running instruction and ``position`` where others are to
    blame.
    """

    def __init__(
        self,
        kind: FaultKind,
        message: str,
        position: int | None = None,
        address: int | None = None,
        buffer: str = "",
        buffer_offset: int | None = None,
        line: int = 0,
        lane: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.position = position
        self.address = address
        self.buffer = buffer
        self.buffer_offset = buffer_offset
        self.line = line
        self.lane = lane


class HostFailure(Exception):
    """A host function has raised ``error``, which the call that is told of it raises."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class RefusedPtx(Exception):
    """PTX that the parser or the generator does not take; ``line`` counts from 1."""

    def __init__(self, kind: FaultKind, message: str, line: int) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.line = line


def unsupported(message: str, line: int) -> RefusedPtx:
    return RefusedPtx(FaultKind.UNSUPPORTED, message, line)


def invalid(message: str, line: int) -> RefusedPtx:
    return RefusedPtx(FaultKind.INVALID_PTX, message, line)
