"""The process that runs one framework on one library: commands are lines of JSON on stdin, answers on stdout.

    {"do": "check", "case": ["pytorch", "conv ..."]}      errors against the reference, calls, time of the first step
    {"do": "time", "case": ["pytorch", "conv ..."]}       time of a step
    {"do": "measure", "name": "host_us"}                  one of the framework's other measures

An answer with "error" tells what failed and the library's last error.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from lowdnn.enums import Severity
from tools.checks.frameworks.cases import parse
from tools.checks.frameworks.errors import distances, group, overall

#: By framework, the modules of its cases and of its other measures.
_MODULES = {"pytorch": ("pytorch", "pytorch_measures"), "jax": ("with_jax", "with_jax")}
_GROUPS, _GROUP_S = 5, 0.08


class Worker:
    """The commands, each as a method.  is_own: the process runs on lowdnn's library, which counts calls."""

    def __init__(self, framework: str, device: str, *, is_own: bool) -> None:
        self._cases, self._measures = (import_module(f"tools.checks.frameworks.{name}") for name in _MODULES[framework])
        self._device, self._is_own = device, is_own
        self._kept: tuple[Any, Any] = (None, None)

    def check(self, command: Mapping[str, Any]) -> dict[str, Any]:
        before, started = self._counts(), time.perf_counter()
        work = self._work(command)
        made_s, started = time.perf_counter() - started, time.perf_counter()
        with self._listening() as failures:
            first = work.results()
            first_s = time.perf_counter() - started
        calls = {name: count - before.get(name, 0) for name, count in self._counts().items()}
        again, reference = work.results(), work.reference()
        groups = {group(name): [other for other in reference if group(other) == group(name)] for name in reference}
        return {
            "errors": {name: overall(first, {n: reference[n] for n in names}) for name, names in groups.items()},
            "spread": {name: overall(again, {n: first[n] for n in names}) for name, names in groups.items()},
            "each": distances(first, reference),
            "each_spread": distances(again, first),
            "made_s": made_s,
            "first_s": first_s,
            "calls": {name: count for name, count in calls.items() if count},
            "failures": [*dict.fromkeys(failures)],
        }

    def time(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Median times of a step in ms: until it is done, and until the call returned."""
        work = self._work(command)
        for _ in range(3):
            work.step()
        work.wait()
        started = time.perf_counter()
        work.step()
        work.wait()
        steps = max(1, min(200, int(_GROUP_S / (time.perf_counter() - started))))
        whole, host = [], []
        for _ in range(_GROUPS):
            started = time.perf_counter()
            for _ in range(steps):
                work.step()
            host.append((time.perf_counter() - started) / steps * 1e3)
            work.wait()
            whole.append((time.perf_counter() - started) / steps * 1e3)
        return {"step_ms": float(np.median(whole)), "host_ms": float(np.median(host))}

    def measure(self, command: Mapping[str, Any]) -> dict[str, Any]:
        found = getattr(self._measures, command["name"])(*command.get("arguments", ()))
        return {command["name"]: found if isinstance(found, (int, float)) else [*found]}

    def _work(self, command: Mapping[str, Any]) -> Any:
        """The work of the case, kept for the next command."""
        case = parse(*command["case"])
        if self._kept[0] != case:
            if self._kept[1] is not None:
                self._kept[1].close()
            self._kept = (None, None)
            gc.collect()
            self._kept = (case, self._cases.Work(case, self._device))
        return self._kept[1]

    @contextmanager
    def _listening(self) -> Iterator[list[str]]:
        """The messages of lowdnn's calls that fail meanwhile: frameworks pass over some of them."""
        told: list[str] = []
        if not self._is_own:
            yield told
            return
        from lowdnn.capi import load
        from lowdnn.capi.log_callback import CALLBACK

        function = CALLBACK(lambda severity, data, record, message: told.append(message.decode()))
        load().cudnnSetCallback(ctypes.c_uint(1 << Severity.ERROR), None, function)
        try:
            yield told
        finally:
            load().cudnnSetCallback(ctypes.c_uint(0), None, None)

    def _counts(self) -> dict[str, int]:
        if not self._is_own:
            return {}
        from lowdnn.capi import call_counts

        return call_counts()


def _last_error() -> str:
    """The last error's text of the library that the process has; empty where there is none."""
    try:
        library = ctypes.CDLL("libcudnn.so.9", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        text = ctypes.create_string_buffer(2000)
        library.cudnnGetLastErrorString(text, ctypes.c_size_t(len(text)))
    except (OSError, AttributeError):
        return ""
    return text.value.decode(errors="replace")


def main(framework: str, device: str, which: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # frameworks print text that is no answer
    worker = Worker(framework, device, is_own=which == "own")
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(worker, command["do"])(command)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:1000], "last": _last_error()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
