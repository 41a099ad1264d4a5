"""Paged caches copied into one tensor, and read where they lie by attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.attention.attention_decode import AttentionDecode
from lowdnn.engines.attention.attention_mma import AttentionMma
from lowdnn.engines.attention.attention_wgmma import AttentionWgmma
from lowdnn.engines.base import Engine
from lowdnn.engines.paged_cache.paged_cache import PagedCache
from lowdnn.engines.registry import engine_named
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import with_tensors
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.ops.tensor import packed_strides
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed, real_values
from tests.support.running import check_case, check_outputs

ATTENTION: tuple[Engine, ...] = (AttentionDecode(), AttentionMma())

#: Each crosses several features; rows of a page are fewer and more than a kernel's tile of keys.
LINES = (
    "sdpa b=2 h=4 hk=2 q=1 kv=150 d=16 page=64 lengths=yes stats=yes",
    "sdpa b=2 h=6 hk=2 hv=3 q=9 kv=90 d=24 dv=40 page=1 lengths=yes causal=bottom_right layout=bshd",
)


@pytest.mark.parametrize("engine", ATTENTION, ids=lambda engine: engine.name)
@pytest.mark.parametrize("line", LINES)
def test_attention_reads_pages(racing: Runtime, engine: Engine, line: str) -> None:
    check_case(racing, engine, line)


def test_parts_of_the_keys_in_pages(device: Runtime) -> None:
    line = "sdpa b=2 h=2 hk=1 q=2 kv=1100 d=16 page=32 lengths=yes"
    check_case(device, ATTENTION[0], line, {KnobType.SPLIT_K_SLC: 2})


def test_entries_beyond_the_length_are_not_read(racing: Runtime) -> None:
    """Table entries past the length name no page, and pages that are not named do not matter."""
    case = parse_case("sdpa b=2 h=2 q=3 kv=100 d=16 page=8 lengths=yes stats=yes")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    of = {tensor.name: tensor.uid for tensor in graph.inputs}
    lengths = np.array([0, 37], np.int32)
    inputs[of["lengths"]] = lengths.reshape(2, 1, 1, 1)
    for batch, length in enumerate(lengths):
        for name in "kv":
            inputs[of[f"{name}page_table"]][batch, :, -(-length // 8) :] = -(2**31)
    for engine in ATTENTION:
        check_outputs(racing, engine.plan(graph, SM_90A, {}), graph, inputs, case.length)


@pytest.mark.parametrize(
    ("data_type", "size", "order"),
    [(DataType.BFLOAT16, 24, (0, 1, 2, 3)), (DataType.FLOAT, 7, (0, 2, 1, 3)), (DataType.INT8, 20, (0, 1, 3, 2))],
)
def test_a_load_alone(device: Runtime, data_type: DataType, size: int, order: tuple[int, ...]) -> None:
    builder, dims = CaseBuilder(), (9, 3, 4, size)
    container = builder.tensor(dims, data_type, strides=packed_strides(dims, order))
    table = builder.tensor((2, 1, 4, 1), DataType.INT32, strides=(1, 1, 2, 1))
    lengths = builder.tensor((2, 1, 1, 1), DataType.INT64)
    builder.paged_cache_load(container, table, lengths, 15, store=data_type)
    graph, rng = builder.graph(), np.random.default_rng(fresh_seed())
    inputs = {
        container.uid: real_values(rng, dims, data_type),
        table.uid: rng.integers(0, 9, table.dims).astype(np.int32),
        lengths.uid: np.array([15, 6]).reshape(lengths.dims),
    }
    check_outputs(device, PagedCache().plan(graph, SM_90A, {}), graph, inputs, 1)


def test_types_that_no_kernel_of_attention_has_are_loaded_first(device: Runtime) -> None:
    plan = check_case(device, engine_named("composite"), "sdpa b=2 h=2 q=3 kv=20 d=8 page=4 lengths=yes dtype=fp32")
    assert any("paged_cache" in part for part in plan.parts)


def test_what_cannot_be_read_in_pages_is_refused() -> None:
    small = parse_case("sdpa b=2 h=2 q=3 kv=40 d=16 page=4 lengths=yes").graph()
    assert "tensor 'k' (uid 3): expected pages of at least 8 rows, got 4" in str(AttentionWgmma().refuse(small, SM_90A))
    graph = parse_case("sdpa b=2 h=2 q=3 kv=40 d=16 page=8 lengths=yes").graph()
    assert AttentionWgmma().refuse(graph, SM_90A) is None
    loads = [op for op in graph.operations if isinstance(op, PagedCacheLoad)]
    others = {loads[0].sequence.uid: replace(loads[0].sequence, uid=99)}
    changed = OperationGraph(with_tensors(op, others) if op in loads else op for op in graph.operations)
    assert "expected a mask of the keys beyond this length of a paged cache" in str(
        ATTENTION[0].refuse(changed, SM_90A)
    )
