"""The service as a process of its own, for programs that watch it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_STOPPED_WITHIN_S = 60.0


@dataclass(frozen=True)
class ServiceProcess:
    """A service that listens on ``port`` of this machine."""

    port: int
    process: subprocess.Popen[str]

    def resident_bytes(self) -> int:
        """The memory that the process has now, by Linux's /proc."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) * 1024 if found else 0

    def terminate(self) -> int:
        """Sends SIGTERM and waits for the end; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOPPED_WITHIN_S)


@contextmanager
def service(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[ServiceProcess]:
    """Starts ``python -m tools.examples.service`` with ``arguments`` and waits until it listens; ends it at the end.

    log: the file that its log lines go to.  environment: the process's, by default this one's.
    Raises RuntimeError where it ends before it listens.
    """
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.examples.service", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        try:
            found = re.fullmatch(r"listening on port (\d+)\n", process.stdout.readline())
            if found is None:
                raise RuntimeError(f"the service did not start:\n{log.read_text(encoding='utf-8')}")
            yield ServiceProcess(int(found[1]), process)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
