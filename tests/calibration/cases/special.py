"""Special registers of every thread, warp and block that the launch determines. PTX ISA manual, "Special Registers"."""

from __future__ import annotations

from collections.abc import Iterator

from lowdnn.driver.base import LaunchConfig
from tests.calibration.case import Case, Output
from tests.calibration.cases.program import element, program

_AXES = ("x", "y", "z")
_NAMES = (
    *(f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid",
                                     "cluster_nctaid") for axis in _AXES),
    "%laneid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "%cluster_ctarank",
    "%cluster_nctarank", "%dynamic_smem_size",
)  # fmt: skip

#: Geometries with and without clusters, and shapes that are no whole warps.
_LAUNCHES = {
    "plain": LaunchConfig((3, 2, 2), (5, 3, 3), 1000),
    "clusters": LaunchConfig((4, 2, 3), (33, 1, 2), 64, cluster=(2, 1, 1)),
    "clusters-3d": LaunchConfig((2, 4, 2), (8, 8, 1), 0, cluster=(1, 2, 2)),
}


def cases() -> Iterator[Case]:
    for name, launch in _LAUNCHES.items():
        yield _registers(name, launch)


def _registers(name: str, launch: LaunchConfig) -> Case:
    threads, blocks = _volume(launch.block), _volume(launch.grid)
    stores = "".join(f"mov.u32 %d, {register};\n{element('%a0', f'%o{place}', '%index', 4)}st.global.b32 [%a0], %d;\n"
                     for place, register in enumerate(_NAMES))  # fmt: skip
    explicit = f"""mov.pred %p, %is_explicit_cluster;
selp.u32 %d, 1, 0, %p;
{element("%a0", f"%o{len(_NAMES)}", "%index", 4)}st.global.b32 [%a0], %d;
"""
    body = f"""
.reg .b32 %index, %block, %x, %d;
.reg .pred %p;
{_linear("%index", "tid", launch.block)}{_linear("%block", "ctaid", launch.grid)}
mad.lo.u32 %index, %block, {threads}, %index;
{stores}{explicit}"""
    outputs = [Output(register, "u32", threads * blocks) for register in (*_NAMES, "%is_explicit_cluster")]
    return program(name, body, (), outputs, launch)


def _linear(target: str, register: str, extents: tuple[int, int, int]) -> str:
    """``target`` = x + extent_x * (y + extent_y * z) of a vector register; %x is scratch."""
    return f"""mov.u32 {target}, %{register}.z;
mov.u32 %x, %{register}.y;
mad.lo.u32 {target}, {target}, {extents[1]}, %x;
mov.u32 %x, %{register}.x;
mad.lo.u32 {target}, {target}, {extents[0]}, %x;
"""


def _volume(extents: tuple[int, int, int]) -> int:
    return extents[0] * extents[1] * extents[2]
