"""Graphs, engines, knobs, heuristics and device properties as descriptors; no device."""

from __future__ import annotations

import json

import pytest

from lowdnn.backend import Descriptor, create
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, HeurMode, KnobType, ReduceTensorOp
from lowdnn.status import (
    ArchMismatchError,
    BadParamError,
    DescriptorTypeError,
    DuplicatedEntriesError,
    GraphPatternError,
    NotSupportedError,
    SerializationVersionMismatchError,
    Status,
)
from tests.support.descriptors import add, add_graph, best_config, device_properties, made, plan_of, tensor

N, T = AttributeName, AttributeType


def engine(index: int, graph: Descriptor | None = None) -> Descriptor:
    return made(
        DescriptorType.ENGINE,
        (N.ENGINE_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, graph or add_graph()),
        (N.ENGINE_GLOBAL_INDEX, T.INT64, index),
        (N.ENGINE_DEVICEPROP, T.BACKEND_DESCRIPTOR, device_properties()),
    )


def pointwise_engine() -> Descriptor:
    config = best_config(add_graph(), (N.ENGINEHEUR_DEVICEPROP, T.BACKEND_DESCRIPTOR, device_properties()))
    found: Descriptor = config.get_attribute(N.ENGINECFG_ENGINE, T.BACKEND_DESCRIPTOR)[0]
    return found


def test_a_graph_counts_the_engines() -> None:
    assert add_graph().get_attribute(N.OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, T.INT64) == [len(ENGINES)]


def test_a_graph_takes_operations_only() -> None:
    graph = create(DescriptorType.OPERATIONGRAPH)
    graph.set_attribute(N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, tensor(1))
    with pytest.raises(DescriptorTypeError, match=r"OPERATIONGRAPH_OPS\[0\]: expected an operation"):
        graph.finalize()


def test_a_cycle_is_refused() -> None:
    graph = create(DescriptorType.OPERATIONGRAPH)
    x, y, z = tensor(1), tensor(2, is_virtual=True), tensor(3, is_virtual=True)
    graph.set_attribute(N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, (add(x, y, z), add(x, z, y)))
    with pytest.raises(BadParamError, match="no cycle"):
        graph.finalize()


def test_one_uid_with_two_meanings_is_refused() -> None:
    graph = create(DescriptorType.OPERATIONGRAPH)
    other = tensor(1, (4, 8), (16, 1))
    graph.set_attribute(N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, add(tensor(1), other, tensor(3)))
    with pytest.raises(DuplicatedEntriesError, match="uid"):
        graph.finalize()


def test_what_needs_a_device_says_so() -> None:
    with pytest.raises(BadParamError, match="ENGINEHEUR descriptor: expected a device, got neither a DEVICEPROP"):
        best_config(add_graph())


def test_heuristics_give_finalized_configurations_best_first() -> None:
    heuristics = made(
        DescriptorType.ENGINEHEUR,
        (N.ENGINEHEUR_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, add_graph()),
        (N.ENGINEHEUR_MODE, T.HEUR_MODE, HeurMode.INSTANT),
        (N.ENGINEHEUR_DEVICEPROP, T.BACKEND_DESCRIPTOR, device_properties()),
    )
    results = heuristics.get_attribute(N.ENGINEHEUR_RESULTS, T.BACKEND_DESCRIPTOR)
    assert results
    assert all(result.is_finalized and result.type is DescriptorType.ENGINECFG for result in results)
    assert heuristics.get_attribute_count(N.ENGINEHEUR_RESULTS, T.BACKEND_DESCRIPTOR) == len(results)
    assert results[0].get_attribute(N.ENGINECFG_WORKSPACE_SIZE, T.INT64) == [0]
    assert results[0].get_attribute(N.ENGINECFG_SHARED_MEMORY_USED, T.INT32)[0] >= 0
    assert results[0].get_attribute(N.ENGINECFG_INTERMEDIATE_INFO, T.BACKEND_DESCRIPTOR) == []


def test_an_engine_tells_its_notes_and_knobs() -> None:
    descriptor = pointwise_engine()
    (index,) = descriptor.get_attribute(N.ENGINE_GLOBAL_INDEX, T.INT64)
    declared = next(found for found in ENGINES if found.index == index)
    notes = descriptor.get_attribute(N.ENGINE_NUMERICAL_NOTE, T.NUMERICAL_NOTE)
    assert notes == list(declared.numerical_notes)
    behavior = descriptor.get_attribute(N.ENGINE_BEHAVIOR_NOTE, T.BEHAVIOR_NOTE)
    assert behavior == list(declared.behavior_notes)
    knobs = descriptor.get_attribute(N.ENGINE_KNOB_INFO, T.BACKEND_DESCRIPTOR)
    expected = declared.knobs(descriptor.value.description.graph, descriptor.value.arch)
    assert len(knobs) == len(expected) > 0
    for info, knob in zip(knobs, expected, strict=True):
        (least,) = info.get_attribute(N.KNOB_INFO_MINIMUM_VALUE, T.INT64)
        (most,) = info.get_attribute(N.KNOB_INFO_MAXIMUM_VALUE, T.INT64)
        (stride,) = info.get_attribute(N.KNOB_INFO_STRIDE, T.INT64)
        assert info.get_attribute(N.KNOB_INFO_TYPE, T.KNOB_TYPE) == [knob.type]
        assert set(knob.values) <= set(range(least, most + 1, stride))
        assert {least, most} <= set(knob.values)


def test_an_index_without_engine_is_not_supported() -> None:
    with pytest.raises(NotSupportedError, match="ENGINE_GLOBAL_INDEX: expected 0 to"):
        engine(1000)


def test_an_engine_that_refuses_says_why() -> None:
    with pytest.raises(GraphPatternError, match="matmul_simt: operations: expected"):
        engine(engine_named("matmul_simt").index)


def test_a_chosen_knob_reaches_the_plan() -> None:
    descriptor = pointwise_engine()
    info = descriptor.get_attribute(N.ENGINE_KNOB_INFO, T.BACKEND_DESCRIPTOR)[0]
    (knob_type,) = info.get_attribute(N.KNOB_INFO_TYPE, T.KNOB_TYPE)
    (value,) = info.get_attribute(N.KNOB_INFO_MAXIMUM_VALUE, T.INT64)
    plan = plan_of(_configured(descriptor, (knob_type, value)))
    assert (knob_type, value) in plan.value.plan.choices


def test_a_knob_type_of_its_own_goes_through_descriptors_and_json() -> None:
    reduction = made(
        DescriptorType.REDUCTION,
        (N.REDUCTION_OPERATOR, T.REDUCTION_OPERATOR_TYPE, ReduceTensorOp.ADD),
        (N.REDUCTION_COMP_TYPE, T.DATA_TYPE, DataType.FLOAT),
    )
    operation = made(
        DescriptorType.OPERATION_REDUCTION,
        (N.OPERATION_REDUCTION_DESC, T.BACKEND_DESCRIPTOR, reduction),
        (N.OPERATION_REDUCTION_XDESC, T.BACKEND_DESCRIPTOR, tensor(1, (4, 4096), (4096, 1))),
        (N.OPERATION_REDUCTION_YDESC, T.BACKEND_DESCRIPTOR, tensor(2, (4, 1), (1, 1))),
    )
    graph = made(DescriptorType.OPERATIONGRAPH, (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, operation))
    descriptor = engine(engine_named("reduction").index, graph)
    info = descriptor.get_attribute(N.ENGINE_KNOB_INFO, T.BACKEND_DESCRIPTOR)[0]
    (knob_type,) = info.get_attribute(N.KNOB_INFO_TYPE, T.KNOB_TYPE)
    assert knob_type is KnobType.THREADS_PER_ROW
    plan = plan_of(_configured(descriptor, (10000, 64)))  # type: ignore[arg-type]
    (text,) = plan.get_attribute(N.EXECUTION_PLAN_JSON_REPRESENTATION, T.CHAR)
    restored = made(DescriptorType.EXECUTION_PLAN, (N.EXECUTION_PLAN_JSON_REPRESENTATION, T.CHAR, text))
    assert (KnobType.THREADS_PER_ROW, 64) in restored.value.plan.choices


def test_wrong_knobs() -> None:
    descriptor = pointwise_engine()
    info = descriptor.get_attribute(N.ENGINE_KNOB_INFO, T.BACKEND_DESCRIPTOR)[0]
    (knob_type,) = info.get_attribute(N.KNOB_INFO_TYPE, T.KNOB_TYPE)
    with pytest.raises(BadParamError, match="expected one of"):
        _configured(descriptor, (knob_type, -12345))
    with pytest.raises(BadParamError, match="got TILE_CGA_M"):
        _configured(descriptor, (KnobType.TILE_CGA_M, 1))
    with pytest.raises(DuplicatedEntriesError, match="expected each knob once"):
        _configured(descriptor, (knob_type, 1), (knob_type, 1))


def test_a_multiprocessor_target_is_checked_and_used() -> None:
    few = (N.ENGINEHEUR_SM_COUNT_TARGET, T.INT32, 10)
    properties = (N.ENGINEHEUR_DEVICEPROP, T.BACKEND_DESCRIPTOR, device_properties(sm_count=20))
    config = best_config(add_graph(), few, properties)
    assert config.value.engine.arch.sm_count == 10
    with pytest.raises(BadParamError, match=r"sm_count_target: expected 0 \(all\) to 20, got 21"):
        best_config(add_graph(), (N.ENGINEHEUR_SM_COUNT_TARGET, T.INT32, 21), properties)


def test_device_properties_go_through_json() -> None:
    (text,) = device_properties(sm_count=77).get_attribute(N.DEVICEPROP_JSON_REPRESENTATION, T.CHAR)
    assert json.loads(text) == {"lowdnn_device": 1, "arch": "sm_90a", "sm_count": 77}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", BadParamError),
        ("[]", BadParamError),
        ('{"lowdnn_device": 1, "arch": "sm_90a"}', BadParamError),
        ('{"lowdnn_device": 1, "arch": "sm_90a", "sm_count": "many"}', BadParamError),
        ('{"lowdnn_device": 2, "arch": "sm_90a", "sm_count": 1}', SerializationVersionMismatchError),
        ('{"lowdnn_device": 1, "arch": "sm_70", "sm_count": 1}', ArchMismatchError),
    ],
)
def test_damaged_device_properties(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        made(DescriptorType.DEVICEPROP, (N.DEVICEPROP_JSON_REPRESENTATION, T.CHAR, text))


def test_a_plan_made_without_a_device_goes_through_json() -> None:
    properties = (N.ENGINEHEUR_DEVICEPROP, T.BACKEND_DESCRIPTOR, device_properties())
    plan = plan_of(best_config(add_graph(), properties))
    (text,) = plan.get_attribute(N.EXECUTION_PLAN_JSON_REPRESENTATION, T.CHAR)
    restored = made(DescriptorType.EXECUTION_PLAN, (N.EXECUTION_PLAN_JSON_REPRESENTATION, T.CHAR, text))
    assert restored.value.plan == plan.value.plan
    assert restored.get_attribute(N.EXECUTION_PLAN_WORKSPACE_SIZE, T.INT64) == [0]


def test_a_plan_needs_a_configuration_or_json() -> None:
    with pytest.raises(BadParamError, match="expected either an ENGINECFG or JSON, got neither"):
        create(DescriptorType.EXECUTION_PLAN).finalize()


def test_a_plan_of_another_architecture_is_refused() -> None:
    properties = (N.ENGINEHEUR_DEVICEPROP, T.BACKEND_DESCRIPTOR, device_properties())
    with pytest.raises(ArchMismatchError, match="expected sm_90a, for which the plan was made, got sm_80") as caught:
        plan_of(
            best_config(add_graph(), properties),
            (N.EXECUTION_PLAN_DEVICEPROP, T.BACKEND_DESCRIPTOR, device_properties(108, "sm_80")),
        )
    assert caught.value.status is Status.NOT_SUPPORTED_ARCH_MISMATCH


def test_a_damaged_plan_is_refused() -> None:
    with pytest.raises(BadParamError, match="EXECUTION_PLAN_JSON_REPRESENTATION: expected a JSON document"):
        made(DescriptorType.EXECUTION_PLAN, (N.EXECUTION_PLAN_JSON_REPRESENTATION, T.CHAR, "{}}"))


def _configured(descriptor: Descriptor, *knobs: tuple[KnobType, int]) -> Descriptor:
    choices = tuple(
        made(
            DescriptorType.KNOB_CHOICE,
            (N.KNOB_CHOICE_KNOB_TYPE, T.KNOB_TYPE, knob_type),
            (N.KNOB_CHOICE_KNOB_VALUE, T.INT64, value),
        )
        for knob_type, value in knobs
    )
    return made(
        DescriptorType.ENGINECFG,
        (N.ENGINECFG_ENGINE, T.BACKEND_DESCRIPTOR, descriptor),
        (N.ENGINECFG_KNOB_CHOICES, T.BACKEND_DESCRIPTOR, choices),
    )
