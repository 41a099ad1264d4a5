"""Kernels compiled into the disk cache by other processes, before they are loaded.

NVRTC compiles a kernel on one core and takes some tenths of a second; several threads of one process wait for each
other in it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from pathlib import Path
from queue import SimpleQueue

import lowdnn
from lowdnn.config import Config, with_first
from lowdnn.plan import KernelRef
from lowdnn.runtime.compile import machine_arch_of
from lowdnn.runtime.compile_worker import command, request
from lowdnn.runtime.runtime import Runtime


class Compilers:
    """Worker processes that share the disk cache of a runtime. Close it, or use ``with``.

    Without a disk cache, or with 0 processes, threads of this process begin to compile, as for any plan.
    """

    def __init__(self, runtime: Runtime, processes: int) -> None:
        self._runtime = runtime
        self._asked: dict[KernelRef, Future[str]] = {}
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        workers = processes if runtime.cache is not None and sys.executable else 0
        self._workers = [_Worker(runtime.config) for _ in range(workers)]
        for worker in self._workers:
            self._idle.put(worker)
        self._is_open = True
        self._threads = ThreadPoolExecutor(max(workers, 1), thread_name_prefix="lowdnn compilers")

    def begin(self, kernels: Iterable[KernelRef]) -> None:
        """Begins to compile these kernels behind those asked for before, each once."""
        if not self._workers:
            self._runtime.modules.begin(tuple(kernels))
            return
        for kernel in kernels:
            if kernel not in self._asked:
                try:
                    self._asked[kernel] = self._threads.submit(self._compile, kernel)
                except RuntimeError:
                    if not self._is_open:
                        raise
                    return  # the interpreter ends: a kernel is compiled when its plan is loaded

    def has(self, kernels: Iterable[KernelRef]) -> bool:
        """Whether these kernels were asked for, so that one more plan with them costs no compiler's time."""
        return bool(self._asked) and all(kernel in self._asked for kernel in kernels)

    def wait(self, kernels: Iterable[KernelRef], deadline_s: float | None = None) -> None:
        """Waits until these kernels are compiled, at most until ``time.monotonic()`` has come to ``deadline_s``."""
        pending = [self._asked[kernel] for kernel in kernels if kernel in self._asked]
        wait(pending, None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0))

    def failure(self, kernel: KernelRef) -> str:
        """Why ``kernel`` is not there; empty where it is, or where nobody was asked for it."""
        found = self._asked.get(kernel)
        if found is None:
            return ""
        if not found.done():
            return "not compiled in the time given"
        try:
            return found.result()
        except (CancelledError, OSError) as error:
            return f"its compiler failed: {error!r}"

    @property
    def compiled(self) -> int:
        """How many kernels are done."""
        return sum(found.done() for found in self._asked.values())

    @property
    def asked(self) -> int:
        return len(self._asked)

    def close(self) -> None:
        """Ends the processes, whatever they compile."""
        self._is_open = False
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compile(self, kernel: KernelRef) -> str:
        capability = self._runtime.context.compute_capability
        machine_arch = machine_arch_of(kernel, capability) if self._runtime.driver.takes_machine_code else ""
        worker = self._idle.get()
        try:
            return worker.compile(request(kernel, machine_arch))
        except OSError:
            if self._is_open:  # the kernel may have been too much for it: the next ones get another one
                worker = _Worker(self._runtime.config)
                self._workers.append(worker)
            raise
        finally:
            self._idle.put(worker)


class _Worker:
    """A process that answers each line with a line. A terminal's Ctrl-C does not reach it."""

    def __init__(self, config: Config) -> None:
        package = str(Path(lowdnn.__file__).parent.parent)
        self._process = subprocess.Popen(
            command(config),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=with_first({"PYTHONPATH": package}),
            start_new_session=True,
        )

    def compile(self, line: str) -> str:
        """The answer; raises OSError where the process has died."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None or stdin.closed:
            raise OSError("it was ended")
        stdin.write(f"{line}\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer.endswith("\n"):
            raise OSError(f"exit code {self._process.wait()}")
        return answer[:-1]

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
