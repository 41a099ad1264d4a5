"""Every operation by itself, with stored outputs, is taken by an engine in all data types and strides that its check
accepts."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80
from lowdnn.engines.engine_set import anchored
from lowdnn.engines.registry import ENGINES
from lowdnn.ops import catalog
from lowdnn.ops.bit_mask import BitMove
from tests.support.data import fresh_seed
from tests.support.random_graphs.steps import ALONE
from tests.support.single_operations import operations_of_cases, with_other_strides, with_other_types

#: Draws of strides for masks of bits, which lie densely: few strides are theirs.
_DRAWS_OF_BITS = 16


@pytest.mark.parametrize(
    "kind", [kind for kind in catalog.operations() if kind not in ALONE], ids=lambda kind: kind.__name__
)
def test_every_type_and_stride_is_taken(kind: type) -> None:
    """Plans are for the oldest architecture, whose engines run on all others."""
    seed = fresh_seed()
    rng, count = np.random.default_rng(seed), 0
    for operation in operations_of_cases()[kind]:
        typed = [operation, *(graph.operations[0] for graph in with_other_types(operation))]
        for one in typed * (_DRAWS_OF_BITS if issubclass(kind, BitMove) else 1):
            for graph in with_other_strides(one, rng):
                refusals = [engine.refuse(graph, SM_80) for engine in anchored(ENGINES, graph.operations)]
                assert None in refusals, f"seed {seed}, {graph.operations[0]}:\n" + "\n".join(map(str, refusals))
                count += 1
    assert count > 5
