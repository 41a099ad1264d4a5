"""Cases of one instruction at a time: thread i applies it to element i of the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowdnn.driver.base import LaunchConfig
from tests.calibration.case import EXACT, STORAGE, Array, Bound, Case, Output

HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n"

_BLOCK = 256


@dataclass(frozen=True)
class Step:
    """PTX statements that put a result of ``kind`` into %d; %p and %q are free predicates, kind "pred" returns %p."""

    label: str
    text: str
    kind: str
    bound: Bound = EXACT


def lanewise(name: str, inputs: Mapping[str, Array], steps: Sequence[Step]) -> Case:
    """``inputs`` by register name: unsigned arrays of one length, whose bits the statements read as they like."""
    count = len(next(iter(inputs.values())))
    pointers = [f".param .u64 i{place}" for place in range(len(inputs))]
    pointers += [f".param .u64 o{place}" for place in range(len(steps))]
    loads = "".join(_load(place, register, values) for place, (register, values) in enumerate(inputs.items()))
    body = "".join(_step(place, step) for place, step in enumerate(steps))
    ptx = f"""{HEADER}.visible .entry case({", ".join(pointers)})
{{
.reg .pred %out, %p, %q;
.reg .b32 %lane, %block;
.reg .b64 %base, %offset;
mov.u32 %lane, %tid.x;
mov.u32 %block, %ctaid.x;
mad.lo.u32 %lane, %block, {_BLOCK}, %lane;
setp.ge.u32 %out, %lane, {count};
@%out ret;
{loads}{body}ret;
}}
"""
    outputs = tuple(Output(step.label, _kind(step), count, step.bound) for step in steps)
    launch = LaunchConfig((-(-count // _BLOCK), 1, 1), (_BLOCK, 1, 1))
    return Case(name, ptx, tuple(inputs.values()), outputs, launch)


def _kind(step: Step) -> str:
    return "u8" if step.kind == "pred" else step.kind


def _load(place: int, register: str, values: Array) -> str:
    width = values.dtype.itemsize
    return (
        f".reg .b{max(16, 8 * width)} %{register};\n{_address(f'i{place}', width)}"
        f"ld.global.{'u8' if width == 1 else f'b{8 * width}'} %{register}, [%base];\n"
    )


def _step(place: int, step: Step) -> str:
    width = int(STORAGE[_kind(step)][1:])
    predicate = "selp.b16 %d, 1, 0, %p;\n" if step.kind == "pred" else ""
    return (
        f"{{\n.reg .b{max(16, 8 * width)} %d;\n{step.text}\n{predicate}{_address(f'o{place}', width)}"
        f"st.global.{'u8' if width == 1 else f'b{8 * width}'} [%base], %d;\n}}\n"
    )


def _address(parameter: str, width: int) -> str:
    return (
        f"ld.param.u64 %base, [{parameter}];\nmul.wide.u32 %offset, %lane, {width};\nadd.u64 %base, %base, %offset;\n"
    )
