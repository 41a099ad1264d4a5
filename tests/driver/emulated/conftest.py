"""Fixtures of the tests of the emulated device: a machine with arrays, CUDA C++ to PTX."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from cuda.bindings import nvrtc

from lowdnn.driver.base import LaunchConfig
from lowdnn.driver.emulated.machine import Machine, Module
from lowdnn.driver.emulated.memory.arena import Arena
from lowdnn.driver.emulated.options import Options

POLICIES = ("lockstep", "warp-serial(7)", "cta-reverse", "fuzz(2)", "fuzz(9)")


class Bench:
    """One machine. ``run`` takes device addresses, as ``put`` and ``empty`` give them, and NumPy scalars."""

    def __init__(self) -> None:
        self.memory = Arena()
        self.machine = Machine(self.memory)

    def put(self, array: Any, label: str = "") -> int:
        array = np.ascontiguousarray(array)
        address = self.memory.allocate(array.nbytes, label)
        self.memory.host_write(address, array.reshape(-1).view(np.uint8))
        return address

    def empty(self, size_bytes: int, label: str = "") -> int:
        return self.memory.allocate(size_bytes, label)

    def get(self, address: int, shape: Sequence[int] | int, dtype: Any) -> Any:
        count = int(np.prod(shape))
        return self.memory.host_read(address, count * np.dtype(dtype).itemsize).view(dtype).reshape(shape)

    def run(
        self,
        module: Module,
        name: str,
        grid: Any,
        block: Any,
        *arguments: Any,
        shared: int = 0,
        cooperative: bool = False,
        cluster: Any = 1,
        programmatic: bool = False,
        **options: Any,
    ) -> None:
        config = LaunchConfig(_dim3(grid), _dim3(block), shared, _dim3(cluster), cooperative, programmatic)
        parameters = [_packed(argument) for argument in arguments]
        self.machine.launch(module.functions[name], config, parameters, Options(**options))

    def ptx(self, body: str, parameters: str = ".param .u64 out", declarations: str = "") -> Module:
        """A module with one kernel ``k`` of the given body."""
        return self.machine.load(
            f".version 8.0\n.target sm_90a\n.address_size 64\n{declarations}\n"
            f".visible .entry k({parameters})\n{{\n.reg .pred %p<10>; .reg .b16 %h<20>; .reg .b32 %r<40>;\n"
            f".reg .b64 %rd<40>; .reg .f32 %f<40>; .reg .f64 %fd<20>;\n{body}\n}}\n"
        )


def _dim3(value: int | tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*((value,) if isinstance(value, int) else value), 1, 1)[:3]
    return x, y, z


def _packed(argument: Any) -> bytes:
    if isinstance(argument, bytes):
        return argument
    return struct.pack("<Q", argument) if isinstance(argument, int) else bytes(argument.tobytes())


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture(scope="session")
def compile_cuda() -> Callable[..., str]:
    """CUDA C++ text -> PTX by NVRTC; each text once in a session."""
    cache: dict[tuple[str, str, tuple[str, ...]], str] = {}

    def compiled(source: str, arch: str = "compute_80", options: tuple[str, ...] = ()) -> str:
        key = (source, arch, options)
        if key not in cache:
            cache[key] = _nvrtc(source, arch, options)
        return cache[key]

    return compiled


def _nvrtc(source: str, arch: str, extra: tuple[str, ...]) -> str:
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    options = [f"--gpu-architecture={arch}".encode(), b"-std=c++17", b"-default-device", *map(str.encode, extra)]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise AssertionError(log.decode())
    text = b" " * _checked(nvrtc.nvrtcGetPTXSize(program))
    nvrtc.nvrtcGetPTX(program, text)
    return text.decode().rstrip("\0")


def _checked(answer: tuple[Any, ...]) -> Any:
    result, value = answer
    assert result == nvrtc.nvrtcResult.NVRTC_SUCCESS
    return value
