"""Planning takes no longer for filters of many taps."""

from __future__ import annotations

from time import perf_counter

import pytest

from lowdnn.arch.specs import SM_80, SM_90A, ArchSpec
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import DataType, HeurMode
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.convolution import Convolution

#: A loop over these takes Python a minute.
TAPS = 1 << 29


@pytest.mark.parametrize("direction", ["forward", "data", "filter"])
@pytest.mark.parametrize("arch", [SM_80, SM_90A], ids=lambda arch: arch.name)
def test_engines_do_not_count_taps_one_by_one(arch: ArchSpec, direction: str) -> None:
    builder, dims, filters = CaseBuilder(), (1, 2, 9), (2, 1, TAPS)
    geometry = Convolution(DataType.FLOAT, 1, (TAPS - 1,), (0,), (1,), (1,))
    x, w = builder.tensor(dims, DataType.HALF), builder.tensor(filters, DataType.HALF)
    if direction == "forward":
        builder.convolution(x, w, geometry=geometry, store=DataType.HALF)
    elif direction == "data":
        builder.convolution_data_gradient(x, w, dims, geometry=geometry, store=DataType.HALF)
    else:
        dy = builder.tensor(dims, DataType.HALF)
        builder.convolution_filter_gradient(x, dy, filters, geometry=geometry, store=DataType.HALF)
    start = perf_counter()
    ranking = rank(builder.graph(), arch, HeurMode.A, ENGINES)
    assert ranking.best is not None
    assert len(ranking.candidates) + len(ranking.refusals) >= len(ENGINES)
    assert perf_counter() - start < 20
