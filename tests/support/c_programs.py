"""Programs in C for x86-64 and aarch64, built by the compilers that are there, and run under qemu where need be."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

MACHINES = ("x86_64", "aarch64")
_STRICT = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1")
_LIBRARIES = ("-ldl", "-pthread")


@dataclass(frozen=True)
class Toolchain:
    """runner: the start of a program's command."""

    compiler: str
    runner: tuple[str, ...] = ()

    @classmethod
    def of(cls, machine: str) -> Toolchain:
        """Skips the test where the compiler or the emulator is not installed."""
        found = cls("gcc") if platform.machine() == machine else _CROSS[machine]
        missing = [tool for tool in (found.compiler, *found.runner[:1]) if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"not installed: {', '.join(missing)}")
        return found

    @classmethod
    def native(cls) -> Toolchain:
        return cls.of(platform.machine())

    def build(self, folder: Path, *arguments: str) -> None:
        """Compiles in ``folder``; a warning is an error."""
        subprocess.run([self.compiler, *_STRICT, *arguments, *_LIBRARIES], cwd=folder, check=True)

    def output(self, folder: Path, environment: dict[str, str]) -> str:
        """The text that ./program prints; anything on standard error is a failure, as is an exit code."""
        done = subprocess.run(
            [*self.runner, "./program"], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return done.stdout


_CROSS = {
    "x86_64": Toolchain("x86_64-linux-gnu-gcc", ("qemu-x86_64", "-L", "/usr/x86_64-linux-gnu")),
    "aarch64": Toolchain("aarch64-linux-gnu-gcc", ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")),
}
