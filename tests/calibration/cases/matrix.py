"""ldmatrix, stmatrix and movmatrix. PTX ISA manual, "Warp-level Matrix Instructions"."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowdnn.driver.base import LaunchConfig
from tests.calibration.case import Array, Case, Output
from tests.calibration.cases.program import element, program
from tests.calibration.inputs import random_bits, seeded

_WARP = LaunchConfig((1, 1, 1), (32, 1, 1))
_BYTES = 1024


def cases() -> Iterator[Case]:
    for count in (1, 2, 4):
        for transposed in ("", ".trans"):
            yield _load(count, transposed)
            yield _store(count, transposed)
    yield _move()


def _load(count: int, transposed: str) -> Case:
    """Rows lie in a random order; lanes that give no address hold one that is not looked at."""
    registers = ", ".join(f"%d{i}" for i in range(count))
    stores = "".join(f"st.global.b32 [%a0+{4 * i}], %d{i};\n" for i in range(count))
    body = f"""{_window()}.reg .b32 %d<4>;
{_fill()}ldmatrix.sync.aligned.m8n8.x{count}{transposed}.shared.b16 {{{registers}}}, [%row];
{element("%a0", "%o0", "%t", 4 * count)}{stores}"""
    inputs = (random_bits(f"ldmatrix{count}", _BYTES // 4, 4), _rows(f"ldmatrix{count}"))
    return program(f"ldmatrix-x{count}{transposed}", body, inputs, (Output("registers", "u32", 32 * count),), _WARP)


def _store(count: int, transposed: str) -> Case:
    registers = ", ".join(f"%d{i}" for i in range(count))
    loads = "".join(f"ld.global.b32 %d{i}, [%a0+{4 * i}];\n" for i in range(count))
    body = f"""{_window()}.reg .b32 %d<4>;
{_fill()}{element("%a0", "%i2", "%t", 4 * count)}{loads}
stmatrix.sync.aligned.m8n8.x{count}{transposed}.shared.b16 [%row], {{{registers}}};
bar.sync 0;
mov.u32 %word, window;
mad.lo.u32 %word, %t, {_BYTES // 32}, %word;
{element("%a0", "%o0", "%t", _BYTES // 32)}""" + "".join(
        f"ld.shared.b32 %value, [%word+{4 * i}];\nst.global.b32 [%a0+{4 * i}], %value;\n" for i in range(_BYTES // 128)
    )
    inputs = (
        random_bits("stmatrix", _BYTES // 4, 4),
        _rows(f"stmatrix{count}"),
        random_bits(f"st{count}", 32 * count, 4),
    )
    return program(f"stmatrix-x{count}{transposed}", body, inputs, (Output("shared", "u32", _BYTES // 4),), _WARP)


def _move() -> Case:
    body = f""".reg .b32 %value;
{element("%a0", "%i0", "%t", 4)}ld.global.b32 %value, [%a0];
movmatrix.sync.aligned.m8n8.trans.b16 %value, %value;
{element("%a0", "%o0", "%t", 4)}st.global.b32 [%a0], %value;
"""
    return program("movmatrix", body, (random_bits("movmatrix", 32, 4),), (Output("registers", "u32", 32),), _WARP)


def _window() -> str:
    return f".shared .align 128 .b8 window[{_BYTES}];\n.reg .b32 %word, %row, %value;\n"


def _fill() -> str:
    """Shared memory from %i0, and the lane's row address from %i1."""
    copies = "".join(
        f"ld.global.b32 %value, [%a0+{4 * i}];\nst.shared.b32 [%word+{4 * i}], %value;\n" for i in range(_BYTES // 128)
    )
    return f"""mov.u32 %word, window;
mad.lo.u32 %word, %t, {_BYTES // 32}, %word;
{element("%a0", "%i0", "%t", _BYTES // 32)}{copies}bar.sync 0;
{element("%a0", "%i1", "%t", 4)}ld.global.b32 %value, [%a0];
mov.u32 %row, window;
add.u32 %row, %row, %value;
"""


def _rows(name: str) -> Array:
    """32 different offsets of 16-byte rows."""
    return (seeded(name).permutation(_BYTES // 16)[:32] * 16).astype(np.uint32)
