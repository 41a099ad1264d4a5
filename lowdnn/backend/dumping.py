"""Failing calls of a handle, kept as dumps in the directory of LOWDNN_DUMP (``dumps``).

A call fails where an execute raises, where the wait of a handle meets a driver's error, or where a check of
``lowdnn run`` or ``lowdnn verify`` finds other numbers. Tensors are read after the failure. A kernel's fault leaves a
context that reads nothing; with LOWDNN_DUMP_INPUTS=before every execute copies its tensors to the host beforehand, and
is waited for, so that the fault of a kernel finds them. That costs what it says, and is for looking for a fault.

Nothing here raises into a call. That a dump cannot be kept is told once.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import __version__
from lowdnn.backend.dumps import Dump, KeptBytes, write_dump
from lowdnn.backend.repeating import RunCommand
from lowdnn.config import DumpInputs
from lowdnn.driver.base import DriverError
from lowdnn.events import emit, event_logger
from lowdnn.heuristics.ranking import Candidate
from lowdnn.heuristics.stored_plans import document
from lowdnn.ops.memory import to_memory
from lowdnn.plan import PlanTensor
from lowdnn.runtime.observing import Execute
from lowdnn.status import BadParamError, LowdnnError, LowdnnWarning

if TYPE_CHECKING:
    from lowdnn.runtime.runtime import Runtime

#: The most characters of an error that a dump holds.
_MOST_ERROR = 16384


class DumpWarning(LowdnnWarning):
    """A failing call cannot be kept."""


class Dumper:
    """Keeps the failing calls of one handle: of each plan the first one with each error.

    paths: the dumps that were written.
    """

    def __init__(self, runtime: Runtime, directory: Path) -> None:
        self.paths: list[Path] = []
        self._runtime = runtime
        self._directory = directory
        self._numbers = itertools.count(1)
        self._known: set[tuple[str, str, str]] = set()
        self._is_told = False
        self._last: tuple[_Watched, Execute] | None = None

    def observer(self, candidate: Candidate) -> _Watched:
        """Looks at the executes of a loaded plan of ``candidate``."""
        return _Watched(self, candidate, self._runtime)

    def launched(self, watched: _Watched, execute: Execute) -> None:
        self._last = watched, execute

    def wait_failed(self, error: LowdnnError) -> None:
        """A wait has met the error of work in a stream: the last execute is kept, which may be the one at fault."""
        if self._last is not None and isinstance(error, DriverError):
            watched, execute = self._last
            self.keep_execute(watched, execute, error)

    def keep_execute(self, watched: _Watched, execute: Execute, error: LowdnnError) -> None:
        candidate = watched.candidate
        if not self._is_new(candidate, type(error).__name__, str(error)):
            return
        before = watched.before or watched.read(execute, "before")
        outputs = [one for one in watched.read(execute, "after") if one.uid in watched.outputs]
        self._keep(candidate, "execute", str(error), [*before, *outputs])

    def keep_check(
        self, candidate: Candidate, inputs: Mapping[int, NDArray[Any]], outputs: Mapping[int, NDArray[Any]], report: str
    ) -> None:
        """Keeps a call whose outputs differ from the reference; arrays are in logical dims."""
        if not self._is_new(candidate, "check", ""):
            return
        kept = []
        for planned in candidate.plan.tensors:
            tensor = candidate.graph.tensors[planned.uid]
            for moment, arrays in (("before", inputs), ("after", outputs)):
                if planned.uid in arrays:
                    data = np.ascontiguousarray(to_memory(arrays[planned.uid], tensor)).tobytes()
                    kept.append(KeptBytes(planned.uid, moment, 0, len(data), data))
        self._keep(candidate, "check", report, kept)

    def _is_new(self, candidate: Candidate, kind: str, error: str) -> bool:
        key = candidate.plan.name, candidate.plan.graph_key, kind + error.partition(":")[0]
        is_new = key not in self._known
        self._known.add(key)
        return is_new

    def _keep(self, candidate: Candidate, failure: str, error: str, tensors: Sequence[KeptBytes]) -> None:
        runtime = self._runtime
        now = datetime.now(UTC)
        try:
            dump = Dump(
                lowdnn=__version__,
                time=now.isoformat(timespec="seconds"),
                failure=failure,
                error=error[:_MOST_ERROR],
                device=runtime.driver.kind,
                device_name=candidate.arch.name,
                policy=runtime.config.emulated_policy if runtime.driver.kind == "emulated" else "",
                workspace_bytes=candidate.plan.workspace_bytes,
                command=RunCommand.of(candidate, runtime).line(),
                plan=document(candidate),
                tensors=(),
            )
            name = f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}-{next(self._numbers)}"
            path = write_dump(self._directory, name, dump, tensors, runtime.config.dump_limit_bytes)
        except (OSError, BadParamError, MemoryError) as problem:
            self._tell(str(problem) or type(problem).__name__)
            return
        self.paths.append(path)
        fields = {"path": path, "plan": candidate.plan.name, "replay": f"lowdnn replay {path}"}
        emit(event_logger("dump"), logging.ERROR, "call_kept", fields)

    def _tell(self, reason: str) -> None:
        emit(event_logger("dump"), logging.WARNING, "call_not_kept", {"reason": reason})
        if not self._is_told:
            self._is_told = True
            warnings.warn(f"LOWDNN_DUMP: {reason}", DumpWarning, stacklevel=4)


class _Watched:
    """The observer of one loaded plan. before: the tensors as they were before the last execute, where they are kept.

    An execute of a plan is one whole, so that there is one at a time.
    """

    def __init__(self, dumper: Dumper, candidate: Candidate, runtime: Runtime) -> None:
        self.candidate = candidate
        self.outputs = {tensor.uid for tensor in candidate.plan.tensors if tensor.is_output}
        self.before: list[KeptBytes] = []
        self._dumper = dumper
        self._runtime = runtime
        self._is_eager = runtime.config.dump_inputs is DumpInputs.BEFORE

    def begins(self, execute: Execute) -> None:
        self.before = self.read(execute, "before") if self._is_eager else []

    def launched(self, execute: Execute) -> None:
        self._dumper.launched(self, execute)
        if self._is_eager and not self._problem(execute):
            try:
                self._runtime.driver.stream_synchronize(execute.stream)
            except DriverError as error:  # the caller's next call meets it, too
                self._dumper.keep_execute(self, execute, error)

    def failed(self, execute: Execute, error: LowdnnError) -> None:
        self._dumper.keep_execute(self, execute, error)

    def read(self, execute: Execute, moment: str) -> list[KeptBytes]:
        """The memory of the plan's tensors; each that cannot be read has the reason."""
        problem = self._problem(execute)
        if problem or not isinstance(execute.pointers, tuple):
            reason = problem or "the call's arguments were refused"
            return [KeptBytes(one.uid, moment, 0, one.size_bytes, None, reason) for one in self.candidate.plan.tensors]
        left_bytes = self._runtime.config.dump_limit_bytes
        found: list[KeptBytes] = []
        for tensor, address in zip(self.candidate.plan.tensors, execute.pointers, strict=True):
            left_bytes -= tensor.size_bytes
            if left_bytes < 0:
                reason = "more bytes than LOWDNN_DUMP_SIZE allows"
                found.append(KeptBytes(tensor.uid, moment, address, tensor.size_bytes, None, reason))
            else:
                found.append(self._read(tensor, address, execute.stream, moment))
        return found

    def _read(self, tensor: PlanTensor, address: int, stream: int, moment: str) -> KeptBytes:
        if tensor.is_by_value:
            data = ctypes.string_at(address, tensor.size_bytes)
            return KeptBytes(tensor.uid, moment, 0, tensor.size_bytes, data)
        host = np.empty(tensor.size_bytes, np.uint8)
        context = self._runtime.context
        try:
            with context.activated():
                context.driver.memcpy_dtoh_async(host.ctypes.data, address, tensor.size_bytes, stream)
                context.driver.stream_synchronize(stream)
        except LowdnnError as error:
            reason = str(error).splitlines()[0]
            return KeptBytes(tensor.uid, moment, address, tensor.size_bytes, None, reason)
        return KeptBytes(tensor.uid, moment, address, tensor.size_bytes, host.tobytes())

    def _problem(self, execute: Execute) -> str:
        """The reason why nothing can be read; "" where there is none."""
        if not execute.is_bound:
            return "the call's arguments were refused"
        try:
            with self._runtime.context.activated():
                is_captured = self._runtime.driver.stream_is_capturing(execute.stream)
        except LowdnnError as error:
            return str(error).splitlines()[0]
        return "the stream was being captured" if is_captured else ""
