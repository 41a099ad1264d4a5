"""Runs a few PTX instructions on every lane of a block: the harness of the instruction tests.

    with opened("emulated") as lanes:
        (d,) = lanes.run("add.u32 %d, %a, %b;", {"%a": array, "%b": array}, {"%d": np.uint32})

Inputs arrive in registers of their dtype (bool as .pred) and outputs leave the same way. `Lanes.run` executes the
program with operands that differ by lane. It also demands that kernel parameters, which are the same in every lane,
give what equal numbers loaded by each lane give: for all operands, and for all but the first. Where nvJitLink is
installed, the assembler must accept the PTX too.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from lowdnn.driver import open_driver
from lowdnn.driver.base import Driver, LaunchConfig

_REGISTERS = {"b": ".pred", "u2": ".b16", "i2": ".b16", "u4": ".b32", "i4": ".b32", "u8": ".b64", "i8": ".b64"}
_REGISTERS |= {"f4": ".f32", "f8": ".f64"}
_SAMPLE = 3

Values = Mapping[str, np.ndarray]
Outputs = Mapping[str, type]


@contextmanager
def opened(kind: str, policy: str = "lockstep") -> Iterator[Lanes]:
    """Lanes of the driver of ``kind``; ``policy`` orders the emulated device's warps."""
    driver = open_driver(kind, policy=policy)
    driver.context_set_current(driver.primary_context_retain(0))
    try:
        yield Lanes(driver)
    finally:
        driver.primary_context_release(0)


@dataclass(frozen=True)
class Lanes:
    """One block of a device."""

    driver: Driver

    def run(self, body: str, inputs: Values, outputs: Outputs, mixed: bool = True) -> list[np.ndarray]:
        """The outputs of ``body`` by lane. ``mixed`` False leaves out the forms with uniform operands."""
        results = self.execute(body, inputs, outputs)
        if mixed:
            names = list(inputs)
            everywhere = {name: np.full_like(values, values[_SAMPLE]) for name, values in inputs.items()}
            partly = everywhere | {names[0]: inputs[names[0]]}
            for values, uniform in ((everywhere, names), (partly, names[1:])):
                _compare(self.execute(body, values, outputs, uniform), self.execute(body, values, outputs))
        return results

    def execute(
        self, body: str, inputs: Values, outputs: Outputs, uniform: list[str] | None = None
    ) -> list[np.ndarray]:
        """One launch with a thread for each element of the inputs; those named in ``uniform`` are passed by value."""
        ptx = _ptx(body, inputs, outputs, uniform or [])
        if not uniform:
            assemble(ptx)
        return self._executed(ptx.encode(), inputs, outputs, uniform)

    def execute_unoptimised(self, body: str, inputs: Values, outputs: Outputs) -> list[np.ndarray]:
        """``execute`` on a GPU, of machine code as the PTX says it: the optimiser of ptxas 13.0 gets some random
        programs wrong. Skips the test where there is no nvJitLink."""
        image = assemble(_ptx(body, inputs, outputs, []), "sm_90a", "-O0")
        if image is None:
            pytest.skip("machine code that is not optimised needs nvJitLink")
        return self._executed(image, inputs, outputs, None)

    def _executed(self, image: bytes, inputs: Values, outputs: Outputs, uniform: list[str] | None) -> list[np.ndarray]:
        count = len(next(iter(inputs.values())))
        stored = {name: _stored(values) for name, values in inputs.items()}
        by_value = {name: values[:1] for name, values in stored.items() if name in (uniform or [])}
        sources = {name: self._upload(values) for name, values in stored.items() if name not in by_value}
        results = [np.empty(count, np.uint32 if dtype is bool else dtype) for dtype in outputs.values()]
        targets = [self.driver.mem_alloc(result.nbytes) for result in results]
        values = [by_value[name] if name in by_value else np.array([sources[name]], np.uint64) for name in stored]
        self._launch(image, count, [*values, *(np.array([address], np.uint64) for address in targets)])
        for result, address in zip(results, targets, strict=True):
            self.driver.memcpy_dtoh_async(result.ctypes.data, address, result.nbytes, 0)
        self.driver.context_synchronize()
        for address in (*sources.values(), *targets):
            self.driver.mem_free(address)
        kinds = zip(results, outputs.values(), strict=True)
        return [result != 0 if dtype is bool else result for result, dtype in kinds]

    def _upload(self, values: np.ndarray) -> int:
        address = self.driver.mem_alloc(values.nbytes)
        self.driver.memcpy_htod_async(address, values.ctypes.data, values.nbytes, 0)
        self.driver.context_synchronize()
        return address

    def _launch(self, image: bytes, count: int, parameters: list[np.ndarray]) -> None:
        """``parameters``: one array for each kernel parameter, its bytes being the value."""
        pointers = (ctypes.c_void_p * len(parameters))(*(value.ctypes.data for value in parameters))
        module = self.driver.module_load_data(image)
        function = self.driver.module_get_function(module, "program")
        config = LaunchConfig((1, 1, 1), (count, 1, 1))
        self.driver.prepare_launch(function, config, ctypes.addressof(pointers))(0)
        self.driver.context_synchronize()
        self.driver.module_unload(module)


@functools.cache
def assemble(ptx: str, arch: str = "sm_90a", level: str = "-O3") -> bytes | None:
    """Machine code for ``arch``, None where there is no nvJitLink. Raises AssertionError with the assembler's words if
    ptxas, which is in it, rejects the PTX."""
    try:
        linker = importlib.import_module("cuda.bindings.nvjitlink")
        linker.version()
    except (ImportError, RuntimeError):
        return None
    handle = linker.create(2, [f"-arch={arch}", level])
    text = ptx.encode()
    try:
        linker.add_data(handle, linker.InputType.PTX, text, len(text), "program")
        linker.complete(handle)
        image = bytearray(linker.get_linked_cubin_size(handle))
        linker.get_linked_cubin(handle, image)
        return bytes(image)
    except linker.nvJitLinkError as error:
        log = bytearray(linker.get_error_log_size(handle))
        linker.get_error_log(handle, log)
        raise AssertionError(f"{log.decode().strip()}\n{ptx}") from error
    finally:
        linker.destroy(handle)


def _ptx(body: str, inputs: Values, outputs: Outputs, uniform: list[str]) -> str:
    parameters, loads, stores, registers = [], [], [], []
    for place, (name, values) in enumerate(inputs.items()):
        registers.append(f".reg {_register(values.dtype)} {name};")
        by_value = name in uniform
        kind = _memory_type(values.dtype)
        parameters.append(f".param .{kind if by_value else 'b64'} p{place}")
        register = "%word" if _is_predicate(values.dtype) else name
        load = f"ld.param.{kind} {register}, [p{place}];"
        loads.append(load if by_value else _load(register, values.dtype, place))
        if _is_predicate(values.dtype):
            loads.append(f"setp.ne.u32 {name}, %word, 0;")
    for place, (name, dtype) in enumerate(outputs.items(), len(parameters)):
        if name not in inputs:
            registers.append(f".reg {_register(np.dtype(dtype))} {name};")
        parameters.append(f".param .b64 p{place}")
        stores += _store(name, np.dtype(dtype), place)
    lines = [*registers, *loads, body, *stores, "ret;"]
    return _HEADER + ",\n".join(parameters) + _PROLOGUE + "\n".join(lines) + "\n}\n"


_HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry program(\n"
_PROLOGUE = """)
{
.reg .b32 %lane, %word;
.reg .b64 %base, %offset;
mov.u32 %lane, %tid.x;
"""


def _load(register: str, dtype: np.dtype, place: int) -> str:
    return f"{_address(place, dtype)}\nld.global.{_memory_type(dtype)} {register}, [%base];"


def _store(name: str, dtype: np.dtype, place: int) -> list[str]:
    convert = [f"selp.u32 %word, 1, 0, {name};"] if _is_predicate(dtype) else []
    register = "%word" if _is_predicate(dtype) else name
    return [*convert, _address(place, dtype), f"st.global.{_memory_type(dtype)} [%base], {register};"]


def _address(place: int, dtype: np.dtype) -> str:
    offset = f"mul.wide.u32 %offset, %lane, {_width(dtype)};"
    return f"ld.param.b64 %base, [p{place}];\n{offset}\nadd.u64 %base, %base, %offset;"


def _stored(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.astype(np.uint32) if _is_predicate(values.dtype) else values)


def _register(dtype: np.dtype) -> str:
    return _REGISTERS["b" if _is_predicate(dtype) else dtype.str[1:]]


def _memory_type(dtype: np.dtype) -> str:
    return "b32" if _is_predicate(dtype) else _register(dtype)[1:]


def _is_predicate(dtype: np.dtype | type) -> bool:
    return np.dtype(dtype) == np.dtype(bool)


def _width(dtype: np.dtype | type) -> int:
    return 4 if _is_predicate(dtype) else np.dtype(dtype).itemsize


def _compare(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(_bits(one), _bits(other), err_msg="uniform operands give another result")


def _bits(values: np.ndarray) -> np.ndarray:
    values = np.ascontiguousarray(values)
    return values if _is_predicate(values.dtype) else values.view(f"u{values.itemsize}")
