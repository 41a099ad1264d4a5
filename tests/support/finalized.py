"""A finalized descriptor of every type of the backend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from lowdnn.backend import Descriptor, Handle
from lowdnn.backend.catalogue import declarations
from lowdnn.backend.engine_descriptors import IntermediateInfo, LayoutInfo
from lowdnn.enums import AttributeName, AttributeType, DescriptorType, HeurMode, LayoutType, SignalMode
from tests.support.descriptors import add_graph, made, plan_of, tensor, variant_pack
from tests.support.random_graphs.growth import Growth
from tests.support.random_graphs.steps import STEPS, grow

N, T, D = AttributeName, AttributeType, DescriptorType
#: Operations that a step may add; it draws some of several types.
_ATTEMPTS = 12


def drawn(seed: int) -> dict[DescriptorType, Descriptor]:
    """Operations that graphs grow by, and the descriptors that they are made of."""
    found: dict[DescriptorType, Descriptor] = {}
    for value in _values(seed):
        found.setdefault(type(value).descriptor_type, Descriptor.of(value))
    return found


def machinery(handle: Handle) -> dict[DescriptorType, Descriptor]:
    """The descriptors that are not operations or their parts."""
    return {descriptor.type: descriptor for descriptor in _descriptors(handle)}


def _values(seed: int) -> Iterator[Any]:
    declared = {*declarations().values()}
    for step, _, _ in STEPS.values():
        growth = Growth(np.random.default_rng(seed))
        for _ in range(_ATTEMPTS):
            grow(growth, step)
        for operation in growth.operations:
            for value in _nested(operation):
                if type(value) in declared:
                    yield value


def _nested(value: Any) -> Iterator[Any]:
    yield value
    for item in fields(value) if is_dataclass(value) else ():
        inner = getattr(value, item.name)
        for one in inner if isinstance(inner, tuple) else (inner,):
            if is_dataclass(one):
                yield from _nested(one)


def _descriptors(handle: Handle) -> Iterator[Descriptor]:
    graph = add_graph(handle)
    device = made(D.DEVICEPROP, (N.DEVICEPROP_HANDLE, T.HANDLE, handle))
    heuristics = made(
        D.ENGINEHEUR,
        (N.ENGINEHEUR_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, graph),
        (N.ENGINEHEUR_MODE, T.HEUR_MODE, HeurMode.A),
        (N.ENGINEHEUR_DEVICEPROP, T.BACKEND_DESCRIPTOR, device),
        (N.ENGINEHEUR_SM_COUNT_TARGET, T.INT32, 16),
    )
    config = heuristics.get_attribute(N.ENGINEHEUR_RESULTS, T.BACKEND_DESCRIPTOR)[0]
    (engine,) = config.get_attribute(N.ENGINECFG_ENGINE, T.BACKEND_DESCRIPTOR)
    cache = made(D.KERNEL_CACHE, (N.KERNEL_CACHE_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, graph))
    yield from (graph, device, heuristics, config, engine, cache)
    yield engine.get_attribute(N.ENGINE_KNOB_INFO, T.BACKEND_DESCRIPTOR)[0]
    yield config.get_attribute(N.ENGINECFG_KNOB_CHOICES, T.BACKEND_DESCRIPTOR)[0]
    yield plan_of(config, (N.EXECUTION_PLAN_KERNEL_CACHE, T.BACKEND_DESCRIPTOR, cache))
    yield variant_pack({1: 0x10000, 2: 0x20000, 3: 0x30000}, 0x40000)
    yield Descriptor.of(LayoutInfo(1, (LayoutType.PREFERRED_NHWC,)))
    yield Descriptor.of(IntermediateInfo(1, 256))
    yield made(
        D.OPERATION_SIGNAL,
        (N.OPERATION_SIGNAL_MODE, T.SIGNAL_MODE, SignalMode.SET),
        (N.OPERATION_SIGNAL_FLAGDESC, T.BACKEND_DESCRIPTOR, tensor(1, (1, 1), (1, 1))),
        (N.OPERATION_SIGNAL_VALUE, T.INT64, 1),
        (N.OPERATION_SIGNAL_XDESC, T.BACKEND_DESCRIPTOR, tensor(2)),
    )
