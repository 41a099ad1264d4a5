"""Runs a few PTX instructions on every lane of a block: the harness of the instruction tests.

    d, = run("add.u32 %d, %a, %b;", {"%a": array, "%b": array}, {"%d": np.uint32})

Inputs arrive in registers of their dtype (bool as .pred) and outputs leave the same way. `run` executes the program
with operands that differ by lane. It also demands that kernel parameters, which are the same in every lane, give what
equal numbers loaded by each lane give: for all operands, and for all but the first. Where nvJitLink is installed, the
assembler must accept the PTX too.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping

import numpy as np

from lowdnn.driver.emulated.machine import Machine
from lowdnn.driver.emulated.memory import Arena
from lowdnn.driver.emulated.policy import Policy

_REGISTERS = {"b": ".pred", "u2": ".b16", "i2": ".b16", "u4": ".b32", "i4": ".b32", "u8": ".b64", "i8": ".b64"}
_REGISTERS |= {"f4": ".f32", "f8": ".f64"}
_SAMPLE = 3

Values = Mapping[str, np.ndarray]
Outputs = Mapping[str, type]


def run(body: str, inputs: Values, outputs: Outputs, mixed: bool = True) -> list[np.ndarray]:
    """The outputs of ``body`` by lane. ``mixed`` False leaves out the forms with uniform operands."""
    lanes = len(next(iter(inputs.values())))
    results = execute(body, inputs, outputs, lanes)
    if mixed:
        names = list(inputs)
        everywhere = {name: np.full_like(values, values[_SAMPLE]) for name, values in inputs.items()}
        partly = everywhere | {names[0]: inputs[names[0]]}
        for values, uniform in ((everywhere, names), (partly, names[1:])):
            _compare(execute(body, values, outputs, lanes, uniform), execute(body, values, outputs, lanes))
    return results


def execute(
    body: str,
    inputs: Values,
    outputs: Outputs,
    lanes: int,
    uniform: list[str] | None = None,
    policy: str = "lockstep",
) -> list[np.ndarray]:
    """One launch of one block; operands named in ``uniform`` are passed by value."""
    arena = Arena()
    parameters = []
    uniform = uniform or []
    for name, values in inputs.items():
        stored = values.astype(np.uint32) if _is_predicate(values.dtype) else values
        if name in uniform:
            parameters.append(stored[:1].tobytes())
            continue
        address = arena.allocate(stored.nbytes, name)
        arena.host_write(address, np.ascontiguousarray(stored).view(np.uint8).ravel())
        parameters.append(address.to_bytes(8, "little"))
    places = [(arena.allocate(_width(dtype) * lanes, name), dtype) for name, dtype in outputs.items()]
    parameters += [address.to_bytes(8, "little") for address, _ in places]
    machine = Machine(arena, policy=Policy.parse(policy))
    text = _ptx(body, inputs, outputs, uniform)
    if not uniform:
        assemble(text)
    module = machine.load(text)
    machine.launch(module.functions["program"], (1, 1, 1), (lanes, 1, 1), 0, (1, 1, 1), parameters)
    return [_fetch(arena, address, dtype, lanes) for address, dtype in places]


@functools.cache
def assemble(ptx: str) -> None:
    """Raises AssertionError with the assembler's words if ptxas, in nvJitLink, rejects the PTX."""
    try:
        linker = importlib.import_module("cuda.bindings.nvjitlink")
        linker.version()
    except (ImportError, RuntimeError):
        return
    handle = linker.create(1, ["-arch=sm_90a"])
    text = ptx.encode()
    try:
        linker.add_data(handle, linker.InputType.PTX, text, len(text), "program")
        linker.complete(handle)
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


def _fetch(arena: Arena, address: int, dtype: type, lanes: int) -> np.ndarray:
    data = np.array(arena.host_read(address, _width(dtype) * lanes), np.uint8)
    return data.view(np.uint32) != 0 if dtype is bool else data.view(dtype)


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
