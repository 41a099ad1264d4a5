"""Which devices run which PTX, and the generations of kernels that there are.

A PTX target without a suffix (``sm_80``) runs on every device of its compute capability and above. One with the suffix
``a`` (``sm_90a``) runs on that capability alone, and one with ``f`` (``sm_100f``) on its family, here taken as the same
major number from its minor number on. Source: CUDA Programming Guide, "Feature Set Compiler Targets".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

#: The target of kernels that run on every device.
BASE_TARGET: Final = "sm_80"
#: The target of kernels that use what came with 9.0: dependent launches, clusters, tensor maps and wgmma.
WGMMA_TARGET: Final = "sm_90a"

_TARGET = re.compile(r"sm_(\d+)(\d)([af]?)")


@dataclass(frozen=True)
class Generation:
    """Kernels that are written for one PTX target, and what they use beyond ``sm_80``.

    has_fp8_conversions: ``cvt`` to and from pairs of e4m3 and e5m2.
    has_dependent_launches: ``griddepcontrol``, by which a launch may start while its predecessor still runs.
    has_clusters: clusters of blocks that read each other's shared memory.
    has_tma: tensor maps, bulk copies and the mbarriers that count their bytes.
    has_wgmma: products by warpgroups, with operands in shared memory.
    """

    target: str
    has_fp8_conversions: bool = False
    has_dependent_launches: bool = False
    has_clusters: bool = False
    has_tma: bool = False
    has_wgmma: bool = False


#: Oldest first; each has what the ones before it have. The kernels for ``sm_89`` are those for ``sm_80``, which convert
#: fp8 by instructions there.
GENERATIONS: tuple[Generation, ...] = (
    Generation(BASE_TARGET),
    Generation("sm_89", has_fp8_conversions=True),
    Generation(
        WGMMA_TARGET,
        has_fp8_conversions=True,
        has_dependent_launches=True,
        has_clusters=True,
        has_tma=True,
        has_wgmma=True,
    ),
)


@lru_cache(maxsize=256)
def runs_on(target: str, compute_capability: tuple[int, int]) -> bool:
    """Whether PTX for ``target`` loads on a device of ``compute_capability``; False if ``target`` names no target."""
    match = _TARGET.fullmatch(target)
    if match is None:
        return False
    wanted, suffix = (int(match[1]), int(match[2])), match[3]
    if suffix == "a":
        return compute_capability == wanted
    return compute_capability >= wanted and (not suffix or compute_capability[0] == wanted[0])


@lru_cache(maxsize=64)
def generation_for(compute_capability: tuple[int, int]) -> Generation:
    """The newest generation of kernels that runs on a device of this capability, 8.0 or newer."""
    return next(kind for kind in reversed(GENERATIONS) if runs_on(kind.target, compute_capability))
