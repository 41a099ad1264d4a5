"""Limits that a caller may ask of plans: a device by its number, limits, the mode of a graph, retention."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowdnn.backend import Descriptor, create
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import (
    AttributeName,
    AttributeType,
    CudaGraphRetention,
    DataType,
    DescriptorType,
    HeurMode,
    KnobType,
    OperationGraphMode,
)
from lowdnn.status import (
    BadParamError,
    GraphPatternError,
    InvalidValueError,
    NotSupportedError,
    SharedMemoryInsufficientError,
)
from tests.support.descriptors import add, add_graph, best_config, device_properties, made, plan_of, tensor

N, T, D = AttributeName, AttributeType, DescriptorType
_LIMIT = 20000


def product_graph() -> Descriptor:
    """c = a b of (1024, 1024) matrices in fp16: the fastest plans have much shared memory and clusters."""
    matrices = [tensor(uid, (1, 1024, 1024), (1024 * 1024, 1024, 1), data_type=DataType.HALF) for uid in (1, 2, 3)]
    product = made(
        D.OPERATION_MATMUL,
        (
            N.OPERATION_MATMUL_DESC,
            T.BACKEND_DESCRIPTOR,
            made(D.MATMUL, (N.MATMUL_COMP_TYPE, T.DATA_TYPE, DataType.FLOAT)),
        ),
        *zip(
            (N.OPERATION_MATMUL_ADESC, N.OPERATION_MATMUL_BDESC, N.OPERATION_MATMUL_CDESC),
            (T.BACKEND_DESCRIPTOR,) * 3,
            matrices,
            strict=True,
        ),
    )
    return made(D.OPERATIONGRAPH, (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, product))


def configs(graph: Descriptor, limit: int | None = None) -> list[Descriptor]:
    heuristics = create(D.ENGINEHEUR)
    heuristics.set_attribute(N.ENGINEHEUR_MODE, T.HEUR_MODE, HeurMode.A)
    heuristics.set_attribute(N.ENGINEHEUR_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, graph)
    heuristics.set_attribute(N.ENGINEHEUR_DEVICEPROP, T.BACKEND_DESCRIPTOR, device_properties())
    if limit is not None:
        heuristics.set_attribute(N.ENGINEHEUR_SHARED_MEMORY_LIMIT, T.INT32, limit)
    heuristics.finalize()
    found: list[Descriptor] = heuristics.get_attribute(N.ENGINEHEUR_RESULTS, T.BACKEND_DESCRIPTOR)
    return found


def used(config: Descriptor) -> int:
    (found,) = config.get_attribute(N.ENGINECFG_SHARED_MEMORY_USED, T.INT32)
    assert isinstance(found, int)
    return found


def engine_of(index: int, graph: Descriptor, *more: tuple[AttributeName, AttributeType, object]) -> Descriptor:
    return made(
        D.ENGINE,
        (N.ENGINE_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, graph),
        (N.ENGINE_GLOBAL_INDEX, T.INT64, index),
        (N.ENGINE_DEVICEPROP, T.BACKEND_DESCRIPTOR, device_properties()),
        *more,
    )


def config_of(index: int, graph: Descriptor, *more: tuple[AttributeName, AttributeType, object]) -> Descriptor:
    return made(D.ENGINECFG, (N.ENGINECFG_ENGINE, T.BACKEND_DESCRIPTOR, engine_of(index, graph, *more)))


def test_heuristics_keep_within_the_shared_memory_limit() -> None:
    graph = product_graph()
    assert used(configs(graph)[0]) > _LIMIT
    limited = configs(graph, _LIMIT)
    assert limited
    for config in limited:
        assert used(config) <= _LIMIT
        (engine,) = config.get_attribute(N.ENGINECFG_ENGINE, T.BACKEND_DESCRIPTOR)
        assert engine.get_attribute(N.ENGINE_SHARED_MEMORY_LIMIT, T.INT32) == [_LIMIT]


def test_every_engine_keeps_within_the_limit_or_refuses() -> None:
    graph, refused, kept = product_graph(), 0, 0
    for engine in ENGINES:
        if engine.refuse(graph.value.graph, device_properties().value.arch) is not None:
            continue
        try:
            config = config_of(engine.index, graph, (N.ENGINE_SHARED_MEMORY_LIMIT, T.INT32, _LIMIT))
        except NotSupportedError:
            refused += 1
            continue
        kept += 1
        assert used(config) <= _LIMIT, engine.name
    assert kept
    assert refused


def test_a_limit_of_0_is_the_devices() -> None:
    graph = product_graph()
    assert [used(config) for config in configs(graph, 0)] == [used(config) for config in configs(graph)]
    engine = engine_of(engine_named("matmul_wgmma").index, graph, (N.ENGINE_SHARED_MEMORY_LIMIT, T.INT32, 0))
    assert used(made(D.ENGINECFG, (N.ENGINECFG_ENGINE, T.BACKEND_DESCRIPTOR, engine))) > _LIMIT


def test_a_negative_limit() -> None:
    with pytest.raises(BadParamError, match="ENGINEHEUR_SHARED_MEMORY_LIMIT: expected 0 or more bytes, got -1"):
        configs(add_graph(), -1)


def test_a_plan_beyond_the_limit_names_it() -> None:
    config = configs(product_graph())[0]
    choice = replace(config.value.engine, shared_memory_limit=used(config) - 1)
    with pytest.raises(SharedMemoryInsufficientError, match=rf"expected at least {used(config)} bytes"):
        choice.check_limits(config.value.candidate.plan)


def test_clusters_can_be_switched_off() -> None:
    graph, off = product_graph(), (N.ENGINE_DISABLE_CLUSTER_COOPERATIVE, T.BOOLEAN, True)
    engine = engine_named("matmul_wgmma")
    plan = config_of(engine.index, graph, off).value.candidate.plan
    assert all(launch.cluster == (1, 1, 1) for launch in plan.launches)
    choice = made(
        D.KNOB_CHOICE,
        (N.KNOB_CHOICE_KNOB_TYPE, T.KNOB_TYPE, KnobType.TILE_CGA_M),
        (N.KNOB_CHOICE_KNOB_VALUE, T.INT64, 2),
    )
    chosen = (N.ENGINECFG_KNOB_CHOICES, T.BACKEND_DESCRIPTOR, choice)
    (allowed, forbidden) = (engine_of(engine.index, graph, *more) for more in ((), (off,)))
    config = made(D.ENGINECFG, (N.ENGINECFG_ENGINE, T.BACKEND_DESCRIPTOR, allowed), chosen)
    assert any(launch.cluster != (1, 1, 1) for launch in config.value.candidate.plan.launches)
    with pytest.raises(NotSupportedError, match=r"ENGINE_DISABLE_CLUSTER_COOPERATIVE: expected false for"):
        made(D.ENGINECFG, (N.ENGINECFG_ENGINE, T.BACKEND_DESCRIPTOR, forbidden), chosen)


def test_a_device_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWDNN_DEVICE", "emulated")
    monkeypatch.setenv("LOWDNN_EMULATED_ARCH", "sm_80")
    properties = made(D.DEVICEPROP, (N.DEVICEPROP_DEVICE_ID, T.INT32, 0))
    assert properties.get_attribute(N.DEVICEPROP_DEVICE_ID, T.INT32) == [0]
    assert properties.value.arch.name == "sm_80"
    assert properties.value.arch.sm_count > 0
    config = best_config(add_graph(), (N.ENGINEHEUR_DEVICEPROP, T.BACKEND_DESCRIPTOR, properties))
    assert plan_of(config).value.plan.target_arch == "sm_80"
    (text,) = properties.get_attribute(N.DEVICEPROP_JSON_REPRESENTATION, T.CHAR)
    again = made(D.DEVICEPROP, (N.DEVICEPROP_JSON_REPRESENTATION, T.CHAR, text))
    assert again.value.arch.sm_count == properties.value.arch.sm_count
    with pytest.raises(InvalidValueError, match="device_id: expected 0 to 0, got 7"):
        made(D.DEVICEPROP, (N.DEVICEPROP_DEVICE_ID, T.INT32, 7))
    with pytest.raises(BadParamError, match="expected one of a handle, JSON and a device's id, got JSON and an id"):
        made(D.DEVICEPROP, (N.DEVICEPROP_JSON_REPRESENTATION, T.CHAR, text), (N.DEVICEPROP_DEVICE_ID, T.INT32, 0))


@pytest.mark.parametrize("mode", OperationGraphMode)
def test_a_graphs_mode_must_fit_its_operations(mode: OperationGraphMode) -> None:
    operation = add(tensor(1), tensor(2), tensor(3))
    graph = create(D.OPERATIONGRAPH)
    graph.set_attribute(N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, operation)
    graph.set_attribute(N.OPERATIONGRAPH_MODE, T.OPERATIONGRAPH_MODE, mode)
    fitting = ("AUTO", "GENERIC_POINTWISE_FUSION", "SDPA_FWD", "SDPA_BWD")  # attention may be a graph of any nodes
    if mode.name in fitting:
        graph.finalize()
        assert graph.get_attribute(N.OPERATIONGRAPH_MODE, T.OPERATIONGRAPH_MODE) == [mode]
    else:
        with pytest.raises(GraphPatternError, match=rf"in a graph of the mode {mode.name}, got PointwiseOperation"):
            graph.finalize()


@pytest.mark.parametrize("retention", CudaGraphRetention)
def test_retention_reads_back(retention: CudaGraphRetention) -> None:
    config = configs(add_graph())[0]
    attribute = (N.EXECUTION_PLAN_CUDA_GRAPH_RETENTION, T.CUDA_GRAPH_RETENTION, retention)
    plan = plan_of(config, attribute)
    assert plan.get_attribute(N.EXECUTION_PLAN_CUDA_GRAPH_RETENTION, T.CUDA_GRAPH_RETENTION) == [retention]
    assert plan_of(config).value.cuda_graph_retention is CudaGraphRetention.PER_GRAPH


@pytest.mark.parametrize(
    "name", [N.EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS, N.EXECUTION_PLAN_RUN_ONLY_INTERMEDIATE_UIDS]
)
def test_intermediates_are_none(name: AttributeName) -> None:
    config = configs(add_graph())[0]
    assert plan_of(config, (name, T.INT64, ())).get_attribute(name, T.INT64) == []
    with pytest.raises(NotSupportedError, match=rf"{name.name}: expected none, got 1 elements"):
        plan_of(config, (name, T.INT64, (7,)))
