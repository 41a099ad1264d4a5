"""Processes that run one framework on one library, and answer commands (``worker``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, Queue
from typing import Any


class Process:
    """A worker that is started anew after it has died or hung."""

    def __init__(self, framework: str, library: str, device: str, log: Path, cache: str = "") -> None:
        """``cache``: the folder of lowdnn's compiled kernels, where it is not the user's."""
        runner = ["-m", "lowdnn.capi"] if library == "own" else []
        program = ["-m", "tools.checks.frameworks.worker", framework, device, library]
        self._command = [sys.executable, *runner, *program]
        self._environment = {**os.environ, **({"LOWDNN_CACHE_DIR": cache} if cache else {})}
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._answers: Queue[str] = Queue()

    def ask(self, command: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        self.send(command)
        return self.answer(seconds)

    def send(self, command: Mapping[str, Any]) -> None:
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self, seconds: float) -> dict[str, Any]:
        """The answer to the command that was sent; an error where none comes."""
        try:
            line = self._answers.get(timeout=max(seconds, 1.0))
        except Empty:
            self.end()
            return {"error": f"no answer in {seconds:.0f} s"}
        if not line:
            return {"error": "the process ended"}
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._process = None

    def _start(self) -> None:
        log = self._log.open("a")
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment
        )
        self._answers = Queue()
        threading.Thread(target=_pass_on, args=(self._process.stdout, self._answers), daemon=True).start()


def _pass_on(lines: Any, answers: Queue[str]) -> None:
    for line in lines:
        answers.put(line)
    answers.put("")
