"""PTX text of cases whose threads differ: a kernel with pointers to inputs and outputs in registers."""

from __future__ import annotations

from collections.abc import Sequence

from lowdnn.driver.base import LaunchConfig
from tests.calibration.case import Array, Case, MapOf, Output
from tests.calibration.lanewise import HEADER


def program(
    name: str,
    body: str,
    inputs: Sequence[Array],
    outputs: Sequence[Output],
    launch: LaunchConfig,
    magnitudes: Sequence[Array] | None = None,
    maps: Sequence[MapOf] = (),
) -> Case:
    """``body`` finds the addresses of inputs in %i0 ..., outputs in %o0 ..., tensor maps in %m0 ..., and %tid.x in %t.

    It declares its own registers; %a0 to %a3 (.b64) are scratch addresses, and ``window`` is the dynamic shared memory.
    """
    names = [f"i{place}" for place in range(len(inputs))] + [f"o{place}" for place in range(len(outputs))]
    parameters = [f".param .u64 {one}" for one in names]
    parameters += [f".param .align 64 .b8 m{place}[128]" for place in range(len(maps))]
    loads = "".join(f".reg .b64 %{one};\nld.param.u64 %{one}, [{one}];\n" for one in names)
    for place in range(len(maps)):
        loads += f".reg .b64 %m{place};\nmov.b64 %m{place}, m{place};\ncvta.param.u64 %m{place}, %m{place};\n"
    window = ".extern .shared .align 1024 .b8 window[];\n" if launch.shared_bytes else ""
    ptx = f"""{HEADER}{window}.visible .entry case({", ".join(parameters)})
{{
.reg .b32 %t;
.reg .b64 %a<4>;
mov.u32 %t, %tid.x;
{loads}{body}
ret;
}}
"""
    kept = None if magnitudes is None else tuple(magnitudes)
    return Case(name, ptx, tuple(inputs), tuple(outputs), launch, kept, tuple(maps))


def element(target: str, base: str, index: str, size_bytes: int) -> str:
    """``target`` = ``base`` + ``index`` * ``size_bytes``, 64-bit registers but for the index."""
    return f"mad.wide.u32 {target}, {index}, {size_bytes}, {base};\n"
