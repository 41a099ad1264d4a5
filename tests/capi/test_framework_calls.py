"""Convolutions as PyTorch and XLA call them through cudnn-frontend: the same calls, in the same order."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.enums import (
    AttributeName,
    AttributeType,
    ConvolutionMode,
    DataType,
    DescriptorType,
    HeurMode,
    KnobType,
    NumericalNote,
)
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.capi import DTYPES, Caller, Memory

N, T, D = AttributeName, AttributeType, DescriptorType
Array = NDArray[Any]

FORWARD = D.OPERATION_CONVOLUTION_FORWARD
BACKWARD_DATA = D.OPERATION_CONVOLUTION_BACKWARD_DATA
BACKWARD_FILTER = D.OPERATION_CONVOLUTION_BACKWARD_FILTER
OPERATIONS = (FORWARD, BACKWARD_DATA, BACKWARD_FILTER)
#: By operation, the attributes of its tensors and scalars begin with this.
PREFIXES = {FORWARD: "FORWARD", BACKWARD_DATA: "BWD_DATA", BACKWARD_FILTER: "BWD_FILTER"}
#: By operation, the names that its tensors x, w and y have.
PORTS = {FORWARD: ("X", "W", "Y"), BACKWARD_DATA: ("DX", "W", "DY"), BACKWARD_FILTER: ("X", "DW", "DY")}
#: CUDNN_NUMERICAL_NOTE_TYPE_COUNT, the size of cudnn-frontend's array.
NOTE_TYPES = 10
#: CUDNN_KNOB_TYPE_COUNTS, the size of cudnn-frontend's array.
KNOB_TYPES = 46
PADDING = 1
#: Notes of engines whose results are not exact for integers.
SPECTRAL = {NumericalNote.FFT, NumericalNote.WINOGRAD}


class Frontend:
    """cudnn-frontend's questions: counts with a NULL array, then arrays of descriptors that were created before."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.handle = caller.handle()

    def nested(self, owner: int, name: AttributeName, kind: DescriptorType, count: int) -> list[int]:
        """The descriptors of an attribute, put behind ``count`` new ones."""
        pointers = (ctypes.c_void_p * count)(*(self.caller.create(kind) for _ in range(count)))
        found = ctypes.c_int64(-1)
        arguments = (owner, int(name), int(T.BACKEND_DESCRIPTOR), count, ctypes.byref(found), pointers)
        self.caller.call("cudnnBackendGetAttribute", *arguments)
        return [int(pointer) for pointer in pointers[: found.value]]

    def configs(self, graph: int, mode: HeurMode) -> list[int]:
        heuristics = self.caller.made(
            D.ENGINEHEUR,
            (N.ENGINEHEUR_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, graph),
            (N.ENGINEHEUR_MODE, T.HEUR_MODE, mode),
        )
        count = self._count(heuristics, N.ENGINEHEUR_RESULTS, T.BACKEND_DESCRIPTOR, 0)
        return self.nested(heuristics, N.ENGINEHEUR_RESULTS, D.ENGINECFG, count)

    def engine(self, config: int) -> int:
        (engine,) = self.nested(config, N.ENGINECFG_ENGINE, D.ENGINE, 1)
        return engine

    def notes(self, config: int) -> list[NumericalNote]:
        """Fetches the notes as frameworks do: a query of the count names the size of an array that is not there."""
        engine = self.engine(config)
        counts = {self._count(engine, N.ENGINE_NUMERICAL_NOTE, T.NUMERICAL_NOTE, asked) for asked in (0, NOTE_TYPES)}
        (count,) = counts
        assert count <= NOTE_TYPES
        return [*map(NumericalNote, self.caller.get(engine, N.ENGINE_NUMERICAL_NOTE, T.NUMERICAL_NOTE, max(count, 1)))]

    def plan(self, config: int) -> int:
        """A plan without a handle, as ``ExecutionPlanBuilder`` makes it."""
        return self.caller.made(D.EXECUTION_PLAN, (N.EXECUTION_PLAN_ENGINE_CONFIG, T.BACKEND_DESCRIPTOR, config))

    def workspace_bytes(self, plan: int) -> int:
        size = ctypes.c_int64(-1)
        asked = (plan, int(N.EXECUTION_PLAN_WORKSPACE_SIZE), int(T.INT64), 1, None, ctypes.byref(size))
        self.caller.call("cudnnBackendGetAttribute", *asked)
        return size.value

    def algorithm(self, plan: int) -> tuple[int, dict[int, int]]:
        """XLA's description of a plan: the engine's index and the values of its knobs."""
        (config,) = self.nested(plan, N.EXECUTION_PLAN_ENGINE_CONFIG, D.ENGINECFG, 1)
        (index,) = self.caller.get(self.engine(config), N.ENGINE_GLOBAL_INDEX, T.INT64, 1)
        choices = self.nested(config, N.ENGINECFG_KNOB_CHOICES, D.KNOB_CHOICE, KNOB_TYPES)
        knobs = {}
        for choice in choices:
            (kind,) = self.caller.get(choice, N.KNOB_CHOICE_KNOB_TYPE, T.KNOB_TYPE, 1)
            (knobs[kind],) = self.caller.get(choice, N.KNOB_CHOICE_KNOB_VALUE, T.INT64, 1)
        return index, knobs

    def rebuilt(self, graph: int, index: int, knobs: Mapping[int, int]) -> int:
        """XLA's plan of a description: knobs of the engine that it leaves out would be set to -1."""
        caller = self.caller
        engine = caller.made(
            D.ENGINE,
            (N.ENGINE_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, graph),
            (N.ENGINE_GLOBAL_INDEX, T.INT64, index),
        )
        choices = []
        for info in self.nested(engine, N.ENGINE_KNOB_INFO, D.KNOB_INFO, KNOB_TYPES):
            (kind,) = caller.get(info, N.KNOB_INFO_TYPE, T.KNOB_TYPE, 1)
            value = knobs.get(kind, -1)
            bounds = [caller.get(info, name, T.INT64, 1)[0] for name in (N.KNOB_INFO_MINIMUM_VALUE, N.KNOB_INFO_STRIDE)]
            assert (value - bounds[0]) % bounds[1] == 0
            assert value <= caller.get(info, N.KNOB_INFO_MAXIMUM_VALUE, T.INT64, 1)[0]
            choice = (N.KNOB_CHOICE_KNOB_TYPE, T.KNOB_TYPE, kind), (N.KNOB_CHOICE_KNOB_VALUE, T.INT64, value)
            choices.append(caller.made(D.KNOB_CHOICE, *choice))
        attributes = [(N.ENGINECFG_KNOB_CHOICES, T.BACKEND_DESCRIPTOR, *choices)] if knobs else []
        return self.plan(caller.made(D.ENGINECFG, (N.ENGINECFG_ENGINE, T.BACKEND_DESCRIPTOR, engine), *attributes))

    def loaded(self, plan: int) -> int:
        """A plan from the JSON of another one, as ``deserialize`` makes it."""
        text_size = self._count(plan, N.EXECUTION_PLAN_JSON_REPRESENTATION, T.CHAR, 0)
        text = ctypes.create_string_buffer(text_size)
        asked = (plan, int(N.EXECUTION_PLAN_JSON_REPRESENTATION), int(T.CHAR), text_size)
        self.caller.call("cudnnBackendGetAttribute", *asked, ctypes.byref(ctypes.c_int64()), text)
        found = self.caller.create(D.EXECUTION_PLAN)
        self.caller.call("cudnnBackendSetAttribute", found, *asked[1:], text)
        assert self.caller.set(found, N.EXECUTION_PLAN_HANDLE, T.HANDLE, self.handle) is Status.SUCCESS
        self.caller.call("cudnnBackendFinalize", found)
        return found

    def _count(self, owner: int, name: AttributeName, kind: AttributeType, requested: int) -> int:
        count = ctypes.c_int64(-1)
        self.caller.call("cudnnBackendGetAttribute", owner, int(name), int(kind), requested, ctypes.byref(count), None)
        return count.value


class Case:
    """One convolution of small integers, channels last, and its result."""

    def __init__(self, caller: Caller, device: Runtime, operation: DescriptorType, dtype: Any) -> None:
        self.caller, self.memory, self.operation = caller, Memory(device), operation
        rng = np.random.default_rng(7)
        x, w, y = (rng.integers(-2, 3, dims).astype(dtype) for dims in ((2, 16, 5, 5), (8, 16, 3, 3), (2, 8, 5, 5)))
        self.expected = _expected(operation, x, w, y).astype(dtype)
        arrays = [x, w, y]
        self.written = {BACKWARD_DATA: 0, BACKWARD_FILTER: 1, FORWARD: 2}[operation]
        arrays[self.written] = np.full_like(self.expected, np.nan)
        self.dims = [array.shape for array in arrays]
        self.data_type = DTYPES[np.dtype(dtype)]
        self.addresses = [self.memory.put(np.ascontiguousarray(array.transpose(0, 2, 3, 1))) for array in arrays]

    def graph(self, handle: int, scalars: AttributeType) -> int:
        """The graph that both frameworks build; alpha and beta are FLOAT, or DOUBLE where the compute type is."""
        made = self.caller.made
        two = (T.INT64, PADDING, PADDING)
        convolution = made(
            D.CONVOLUTION,
            (N.CONVOLUTION_COMP_TYPE, T.DATA_TYPE, DataType.FLOAT),
            (N.CONVOLUTION_CONV_MODE, T.CONVOLUTION_MODE, ConvolutionMode.CROSS_CORRELATION),
            (N.CONVOLUTION_SPATIAL_DIMS, T.INT64, 2),
            (N.CONVOLUTION_PRE_PADDINGS, *two),
            (N.CONVOLUTION_POST_PADDINGS, *two),
            (N.CONVOLUTION_DILATIONS, T.INT64, 1, 1),
            (N.CONVOLUTION_FILTER_STRIDES, T.INT64, 1, 1),
        )
        prefix = f"OPERATION_CONVOLUTION_{PREFIXES[self.operation]}"
        tensors = [self._tensor(ord(name), dims) for name, dims in zip("xwy", self.dims, strict=True)]
        operation = made(
            self.operation,
            (N[f"{prefix}_CONV_DESC"], T.BACKEND_DESCRIPTOR, convolution),
            *(
                (N[f"{prefix}_{port}"], T.BACKEND_DESCRIPTOR, tensor)
                for port, tensor in zip(PORTS[self.operation], tensors, strict=True)
            ),
            (N[f"{prefix}_ALPHA"], scalars, 1.0),
            (N[f"{prefix}_BETA"], scalars, 0.0),
        )
        return made(
            D.OPERATIONGRAPH,
            (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
            (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, operation),
        )

    def run(self, frontend: Frontend, plan: int) -> Array:
        size = frontend.workspace_bytes(plan)
        # cudnn-frontend puts its own part first.
        workspace = self.memory.put(np.zeros(68 + size, np.uint8)) + 68 if size else 0
        uids = dict(zip(map(ord, "xwy"), self.addresses, strict=True))
        self.caller.call("cudnnBackendExecute", frontend.handle, plan, self.caller.pack(uids, workspace=workspace))
        return self.memory.get(self.addresses[self.written]).transpose(0, 3, 1, 2)

    def _tensor(self, uid: int, dims: tuple[int, ...]) -> int:
        """32 is what XLA says; PyTorch says what the address has."""
        _, channels, rows, columns = dims
        return self.caller.made(
            D.TENSOR,
            (N.TENSOR_DATA_TYPE, T.DATA_TYPE, self.data_type),
            (N.TENSOR_DIMENSIONS, T.INT64, *dims),
            (N.TENSOR_STRIDES, T.INT64, channels * rows * columns, 1, channels * columns, channels),
            (N.TENSOR_UNIQUE_ID, T.INT64, uid),
            (N.TENSOR_BYTE_ALIGNMENT, T.INT64, 32),
            (N.TENSOR_IS_VIRTUAL, T.BOOLEAN, False),
        )


def _expected(operation: DescriptorType, x: Array, w: Array, y: Array) -> Array:
    """The result of the operation; ``y`` is the gradient of the two gradients."""
    rows, columns = y.shape[2:]
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (PADDING, PADDING), (PADDING, PADDING)])
    results = {FORWARD: np.zeros(y.shape), BACKWARD_DATA: np.zeros_like(padded), BACKWARD_FILTER: np.zeros(w.shape)}
    for r, s in np.ndindex(*w.shape[2:]):
        seen = (..., slice(r, r + rows), slice(s, s + columns))
        results[FORWARD] += np.einsum("nchw,kc->nkhw", padded[seen], w[..., r, s])
        results[BACKWARD_DATA][seen] += np.einsum("nkhw,kc->nchw", y, w[..., r, s])
        results[BACKWARD_FILTER][..., r, s] = np.einsum("nkhw,nchw->kc", y, padded[seen])
    inside = (..., slice(PADDING, -PADDING), slice(PADDING, -PADDING))
    return results[operation][inside] if operation is BACKWARD_DATA else results[operation]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@pytest.mark.parametrize(("dtype", "allow_tf32"), [(np.float16, False), (np.float32, True), (np.float32, False)])
def test_pytorch(caller: Caller, device: Runtime, operation: DescriptorType, dtype: Any, allow_tf32: bool) -> None:
    """PyTorch leaves out engines that round inputs, without TF32 also those with tensor cores, and runs the first."""
    frontend, case = Frontend(caller), Case(caller, device, operation, dtype)
    graph = case.graph(frontend.handle, T.FLOAT)
    barred = {NumericalNote.DOWN_CONVERT_INPUTS}
    if dtype is np.float32 and not allow_tf32:
        barred.add(NumericalNote.TENSOR_CORE)
    for mode in (HeurMode.INSTANT, HeurMode.FALLBACK):
        kept = [config for config in frontend.configs(graph, mode) if barred.isdisjoint(frontend.notes(config))]
        first = frontend.notes(kept[0])
        assert (NumericalNote.TENSOR_CORE in first) == (
            mode is HeurMode.INSTANT and NumericalNote.TENSOR_CORE not in barred
        )
        np.testing.assert_array_equal(case.run(frontend, frontend.plan(kept[0])), case.expected)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_xla(caller: Caller, device: Runtime, operation: DescriptorType) -> None:
    """XLA describes the plans of two modes by engine and knobs, times each description once, and builds it again."""
    frontend, case = Frontend(caller), Case(caller, device, operation, np.float16)
    graph = case.graph(frontend.handle, T.DOUBLE)
    configs = [config for mode in (HeurMode.B, HeurMode.A) for config in frontend.configs(graph, mode)]
    described = {
        str(frontend.algorithm(plan)): (config, plan) for config in configs for plan in [frontend.plan(config)]
    }
    assert 2 <= len(described) <= len(configs) // 2
    for config, plan in described.values():
        index, knobs = frontend.algorithm(plan)
        again = frontend.rebuilt(graph, index, knobs)
        assert frontend.algorithm(again) == (index, knobs)
        assert frontend.workspace_bytes(again) == frontend.workspace_bytes(plan)
        is_exact = SPECTRAL.isdisjoint(frontend.notes(config))
        error = 0 if is_exact else 16 * np.finfo(np.float16).eps * np.abs(case.expected).max()
        np.testing.assert_allclose(case.run(frontend, again), case.expected, rtol=0, atol=error)


def test_a_plan_from_json_has_its_configuration(caller: Caller, device: Runtime) -> None:
    frontend, case = Frontend(caller), Case(caller, device, FORWARD, np.float16)
    graph = case.graph(frontend.handle, T.FLOAT)
    plan = frontend.plan(frontend.configs(graph, HeurMode.A)[0])
    loaded = frontend.loaded(plan)
    assert frontend.algorithm(loaded) == frontend.algorithm(plan)
    assert KnobType.TILE_M in frontend.algorithm(plan)[1]
    np.testing.assert_array_equal(case.run(frontend, loaded), case.expected)
