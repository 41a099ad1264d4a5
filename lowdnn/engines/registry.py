"""Every engine of lowdnn, by its global index. Append only: an index is given once and never reused."""

from __future__ import annotations

from lowdnn.engines.base import Engine
from lowdnn.engines.composite.composite import Composite
from lowdnn.engines.conv.conv_direct import ConvDirect
from lowdnn.engines.conv.conv_implicit_gemm_mma import ConvImplicitGemmMma
from lowdnn.engines.matmul.matmul_mma import MatmulMma
from lowdnn.engines.matmul.matmul_simt import MatmulSimt
from lowdnn.engines.pointwise.pointwise import PointwiseEngine
from lowdnn.engines.reduction.reduction import ReductionEngine
from lowdnn.status import BadParamError

_SINGLE: tuple[Engine, ...] = (
    ConvImplicitGemmMma(),
    ConvDirect(),
    MatmulMma(),
    MatmulSimt(),
    PointwiseEngine(),
    ReductionEngine(),
)

#: All engines in the order of their indices; ``composite``, the last resort, builds on the others.
ENGINES: tuple[Engine, ...] = (*_SINGLE, Composite(_SINGLE))


def engine_named(name: str) -> Engine:
    """The engine with this name; raises BadParamError."""
    for engine in ENGINES:
        if engine.name == name:
            return engine
    raise BadParamError.at("engine.name", expected=f"one of {', '.join(e.name for e in ENGINES)}", got=repr(name))


def engine_at(index: int) -> Engine:
    """The engine with this global index; raises BadParamError."""
    for engine in ENGINES:
        if engine.index == index:
            return engine
    known = ", ".join(f"{engine.index} ({engine.name})" for engine in ENGINES)
    raise BadParamError.at("engine.global_index", expected=f"one of {known}", got=index)
