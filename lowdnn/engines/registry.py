"""Every engine of lowdnn, by its global index. Append only: an index is given once and never reused."""

from __future__ import annotations

from functools import cache

from lowdnn.engines.base import Engine
from lowdnn.engines.composite.composite import Composite
from lowdnn.engines.conv.conv_direct import ConvDirect
from lowdnn.engines.matmul.matmul_simt import MatmulSimt
from lowdnn.status import BadParamError


@cache
def engines() -> tuple[Engine, ...]:
    """All engines in order of their indices; ``composite``, the last resort, builds on the others."""
    single: tuple[Engine, ...] = (ConvDirect(), MatmulSimt())
    return (*single, Composite(single))


def engine_named(name: str) -> Engine:
    """The engine with this name; raises BadParamError."""
    for engine in engines():
        if engine.name == name:
            return engine
    raise BadParamError.at("engine.name", expected=f"one of {', '.join(e.name for e in engines())}", got=repr(name))


def engine_at(index: int) -> Engine:
    """The engine with this global index; raises BadParamError."""
    for engine in engines():
        if engine.index == index:
            return engine
    known = ", ".join(f"{engine.index} ({engine.name})" for engine in engines())
    raise BadParamError.at("engine.global_index", expected=f"one of {known}", got=index)
