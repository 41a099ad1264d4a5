"""PTX text of cases whose threads differ: a kernel with pointers to inputs and outputs in registers."""

from __future__ import annotations

from collections.abc import Sequence

from lowdnn.driver.base import LaunchConfig
from tests.calibration.case import Array, Case, Output
from tests.calibration.lanewise import HEADER


def program(
    name: str,
    body: str,
    inputs: Sequence[Array],
    outputs: Sequence[Output],
    launch: LaunchConfig,
    magnitudes: Sequence[Array] | None = None,
) -> Case:
    """``body`` finds the addresses of inputs in %i0 ..., of outputs in %o0 ..., and %tid.x in %t.

    It declares its own registers; %a0 to %a3 (.b64) are scratch addresses.
    """
    names = [f"i{place}" for place in range(len(inputs))] + [f"o{place}" for place in range(len(outputs))]
    pointers = ", ".join(f".param .u64 {one}" for one in names)
    loads = "".join(f".reg .b64 %{one};\nld.param.u64 %{one}, [{one}];\n" for one in names)
    ptx = f"""{HEADER}.visible .entry case({pointers})
{{
.reg .b32 %t;
.reg .b64 %a<4>;
mov.u32 %t, %tid.x;
{loads}{body}
ret;
}}
"""
    kept = None if magnitudes is None else tuple(magnitudes)
    return Case(name, ptx, tuple(inputs), tuple(outputs), launch, kept)


def element(target: str, base: str, index: str, size_bytes: int) -> str:
    """``target`` = ``base`` + ``index`` * ``size_bytes``, 64-bit registers but for the index."""
    return f"mad.wide.u32 {target}, {index}, {size_bytes}, {base};\n"
