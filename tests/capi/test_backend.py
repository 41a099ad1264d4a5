"""Backend descriptors through C arrays, and plans that run."""

from __future__ import annotations

import ctypes
import random
import threading
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lowdnn.capi.loading import Binding
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.capi import Caller
from tests.support.runtime import download, upload

N, T, D = AttributeName, AttributeType, DescriptorType


class Sum:
    """y = a + b through the library: the handle, the plan and the memory."""

    def __init__(self, caller: Caller, device: Runtime, *, is_override_shape_enabled: bool = False) -> None:
        self.caller = caller
        self.handle = caller.handle()
        enabled = (N.OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED, T.BOOLEAN, is_override_shape_enabled)
        self.graph = caller.add_graph(self.handle, enabled)
        self.plan = caller.plan(self.handle, self.graph)
        values = np.arange(32, dtype=np.float32)
        self.expected = values * 3
        self.buffers = [upload(device, array) for array in (values, values * 2, np.full(32, np.nan, np.float32))]
        self.pack = caller.pack({uid: buffer.address for uid, buffer in enumerate(self.buffers, 1)})

    @property
    def y(self) -> DeviceBuffer:
        return self.buffers[2]


@pytest.fixture
def case(caller: Caller, device: Runtime) -> Sum:
    return Sum(caller, device)


def test_a_plan_runs(case: Sum) -> None:
    size = case.caller.output(
        "cudnnGetExecutionPlanWorkspaceSize", case.handle, case.plan, case.pack, kind=ctypes.c_size_t
    )
    assert [size] == case.caller.get(case.plan, N.EXECUTION_PLAN_WORKSPACE_SIZE, T.INT64)
    case.caller.call("cudnnBackendExecute", case.handle, case.plan, case.pack)
    np.testing.assert_array_equal(download(case.y, np.float32), case.expected)


def test_a_plan_outlives_the_descriptors_that_it_was_made_of(case: Sum, binding: Binding) -> None:
    kept = {case.handle, case.plan, case.pack}
    for address in [*binding.state.objects._table]:
        if address not in kept:
            case.caller.call("cudnnBackendDestroyDescriptor", address)
    case.caller.call("cudnnBackendExecute", case.handle, case.plan, case.pack)
    np.testing.assert_array_equal(download(case.y, np.float32), case.expected)


def test_cycles_leave_nothing_behind(case: Sum, binding: Binding) -> None:
    before = len(binding.state.objects)
    for _ in range(1000):
        pack = case.caller.pack({uid: buffer.address for uid, buffer in enumerate(case.buffers, 1)})
        case.caller.call("cudnnBackendExecute", case.handle, case.plan, pack)
        case.caller.call("cudnnBackendDestroyDescriptor", pack)
    assert len(binding.state.objects) == before


def test_threads_with_a_handle_each(caller: Caller, device: Runtime) -> None:
    """Each makes its own plan and runs it again and again, while the others fail in between."""
    wrong: list[str] = []
    finished: list[int] = []

    def work(number: int) -> None:
        case = Sum(caller, device)
        for _ in range(25):
            caller.call("cudnnBackendExecute", case.handle, case.plan, case.pack)
            caller.status("cudnnBackendDestroyDescriptor", number)
            if f"got {number:#x}, where nothing is" not in caller.last_error():
                wrong.append(caller.last_error())
        np.testing.assert_array_equal(download(case.y, np.float32), case.expected)
        caller.call("cudnnDestroy", case.handle)
        finished.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(finished) == [*range(1, 9)]
    assert wrong == []


def test_a_cuda_graph_is_populated_and_updated(case: Sum, device: Runtime) -> None:
    driver, caller = device.driver, case.caller
    other = upload(device, np.full(32, np.nan, np.float32))
    addresses = {uid: buffer.address for uid, buffer in enumerate(case.buffers, 1)}
    second = caller.pack(addresses | {3: other.address})
    with device.context.activated():
        graph = driver.graph_create()
        call = (case.handle, case.plan, second, graph)
        assert caller.status("cudnnBackendUpdateCudaGraph", *call) is Status.BAD_PARAM_CUDA_GRAPH_MISMATCH
        caller.call("cudnnBackendPopulateCudaGraph", case.handle, case.plan, case.pack, graph)
        before = driver.graph_instantiate(graph)
        assert np.isnan(download(case.y, np.float32)).all()
        caller.call("cudnnBackendUpdateCudaGraph", *call)
        after = driver.graph_instantiate(graph)
        for launchable, written in ((after, other), (before, case.y)):
            assert np.isnan(download(written, np.float32)).all()
            driver.graph_launch(launchable, 0)
            driver.stream_synchronize(0)
            np.testing.assert_array_equal(download(written, np.float32), case.expected)
            driver.graph_exec_destroy(launchable)
        driver.graph_destroy(graph)
    for name in ("Populate", "Update"):
        status = caller.status(f"cudnnBackend{name}CudaGraph", case.handle, case.plan, case.pack, 0)
        assert status is Status.BAD_PARAM_NULL_POINTER


def test_a_populated_graph_in_a_node_is_updated(case: Sum, device: Runtime) -> None:
    """The node holds a copy, of which the first graph's nodes are no part; another graph has no nodes of a plan."""
    if not isinstance(device.driver, EmulatedDriver):
        pytest.skip("the driver's protocol adds no graphs to nodes")
    driver, caller = device.driver, case.caller
    other = upload(device, np.full(32, np.nan, np.float32))
    addresses = {uid: buffer.address for uid, buffer in enumerate(case.buffers, 1)}
    with device.context.activated():
        graph, parent = driver.graph_create(), driver.graph_create()
        caller.call("cudnnBackendPopulateCudaGraph", case.handle, case.plan, case.pack, graph)
        copy = driver.graph_calls.child(driver.graph_calls.add_child(parent, (), graph))
        driver.graph_destroy(graph)
        pack = caller.pack(addresses | {3: other.address})
        caller.call("cudnnBackendUpdateCudaGraph", case.handle, case.plan, pack, copy)
        status = caller.status("cudnnBackendUpdateCudaGraph", case.handle, case.plan, pack, driver.graph_create())
        assert status is Status.BAD_PARAM_CUDA_GRAPH_MISMATCH
        driver.graph_launch(driver.graph_instantiate(parent), 0)
    assert np.isnan(download(case.y, np.float32)).all()
    np.testing.assert_array_equal(download(other, np.float32), case.expected)


def test_a_cuda_graph_of_other_shapes(caller: Caller, device: Runtime) -> None:
    """The variant pack has fewer rows than the graph: the rows behind them stay as they were."""
    case, driver = Sum(caller, device, is_override_shape_enabled=True), device.driver
    pack = caller.pack(
        {uid: buffer.address for uid, buffer in enumerate(case.buffers, 1)},
        (N.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, T.INT64, 1, 2, 3),
        (N.VARIANT_PACK_OVERRIDE_SHAPES, T.INT64, *(3, 8) * 3),
        (N.VARIANT_PACK_OVERRIDE_STRIDES, T.INT64, *(8, 1) * 3),
    )
    with device.context.activated():
        graph = driver.graph_create()
        caller.call("cudnnBackendPopulateCudaGraph", case.handle, case.plan, pack, graph)
        caller.call("cudnnBackendUpdateCudaGraph", case.handle, case.plan, pack, graph)
        launchable = driver.graph_instantiate(graph)
        driver.graph_launch(launchable, 0)
        driver.stream_synchronize(0)
        driver.graph_exec_destroy(launchable)
        driver.graph_destroy(graph)
    found = download(case.y, np.float32)
    np.testing.assert_array_equal(found[:24], case.expected[:24])
    assert np.isnan(found[24:]).all()


def test_wrong_descriptors_in_execute(case: Sum) -> None:
    caller = case.caller
    wrong = [
        (case.plan, case.plan, case.pack),
        (case.handle, case.pack, case.pack),
        (case.handle, case.plan, case.plan),
    ]
    found = [caller.status("cudnnBackendExecute", *arguments) for arguments in wrong]
    assert found == [Status.BAD_PARAM, Status.BAD_PARAM_DESCRIPTOR_TYPE, Status.BAD_PARAM_DESCRIPTOR_TYPE]
    missing = caller.pack({1: case.buffers[0].address, 2: case.buffers[1].address})
    assert caller.status("cudnnBackendExecute", case.handle, case.plan, missing).category is Status.BAD_PARAM
    empty = caller.create(D.VARIANT_PACK)
    assert caller.status("cudnnBackendExecute", case.handle, case.plan, empty) is Status.BAD_PARAM_NOT_FINALIZED
    case.caller.call("cudnnBackendExecute", case.handle, case.plan, case.pack)


#: One attribute of each format: (descriptor, attributes to set first, attribute, type, values).
ROUND_TRIPS: list[tuple[Any, ...]] = [
    (D.TENSOR, (), N.TENSOR_DIMENSIONS, T.INT64, (2, 3, 5)),
    (D.TENSOR, (), N.TENSOR_IS_VIRTUAL, T.BOOLEAN, (True,)),
    (D.TENSOR, (), N.TENSOR_DATA_TYPE, T.DATA_TYPE, (DataType.FLOAT,)),
    (D.POINTWISE, (), N.POINTWISE_ELU_ALPHA, T.DOUBLE, (0.1,)),
    (D.POINTWISE, (), N.POINTWISE_RELU_LOWER_CLIP, T.DOUBLE, (-2.5,)),
]


@pytest.mark.parametrize(("kind", "_", "name", "attribute_type", "values"), ROUND_TRIPS)
def test_attributes_come_back(
    caller: Caller, kind: DescriptorType, _: Any, name: AttributeName, attribute_type: AttributeType, values: Any
) -> None:
    required: dict[DescriptorType, list[tuple[Any, ...]]] = {
        D.TENSOR: [
            (N.TENSOR_UNIQUE_ID, T.INT64, -7),
            (N.TENSOR_DATA_TYPE, T.DATA_TYPE, DataType.FLOAT),
            (N.TENSOR_DIMENSIONS, T.INT64, 2, 3, 5),
            (N.TENSOR_STRIDES, T.INT64, 15, 5, 1),
            (N.TENSOR_BYTE_ALIGNMENT, T.INT64, 4),
        ],
        D.POINTWISE: [(N.POINTWISE_MODE, T.POINTWISE_MODE, 103), (N.POINTWISE_MATH_PREC, T.DATA_TYPE, DataType.FLOAT)],
    }
    descriptor = caller.made(kind, *required[kind], (name, attribute_type, *values))
    assert caller.get(descriptor, name, attribute_type) == list(values)


def test_fractions(caller: Caller) -> None:
    window = [(N.RESAMPLE_MODE, T.RESAMPLE_MODE, 0), (N.RESAMPLE_COMP_TYPE, T.DATA_TYPE, DataType.FLOAT)]
    descriptor = caller.create(D.RESAMPLE)
    for attribute in (*window, (N.RESAMPLE_SPATIAL_DIMS, T.INT64, 2), (N.RESAMPLE_PADDING_MODE, T.PADDING_MODE, 0)):
        assert caller.set(descriptor, *attribute) is Status.SUCCESS, caller.last_error()
    names = (N.RESAMPLE_WINDOW_DIMS, N.RESAMPLE_PRE_PADDINGS, N.RESAMPLE_POST_PADDINGS, N.RESAMPLE_STRIDES)
    for name in names:
        array = (ctypes.c_int64 * 4)(3, 2, 4, 2)
        arguments = (descriptor, int(name), int(T.FRACTION), 2)
        caller.call("cudnnBackendSetAttribute", *arguments, array)
    bad = (ctypes.c_int64 * 4)(3, 0, 4, 2)
    assert caller.status("cudnnBackendSetAttribute", *arguments, bad) is Status.BAD_PARAM
    assert "expected a denominator other than 0, got 3/0" in caller.last_error()
    caller.call("cudnnBackendFinalize", descriptor)
    back, count = (ctypes.c_int64 * 4)(), ctypes.c_int64()
    caller.call("cudnnBackendGetAttribute", *arguments, ctypes.byref(count), back)
    assert count.value == 2
    assert [Fraction(back[0], back[1]), Fraction(back[2], back[3])] == [Fraction(3, 2), 2]


@pytest.mark.parametrize(
    ("given", "taken"), [(3, DataType.FLOAT), (0, DataType.FLOAT), (9, DataType.FLOAT), (1, DataType.DOUBLE)]
)
def test_the_arithmetic_of_channel_statistics(given: int, taken: DataType, caller: Caller) -> None:
    """A number that cudnn-frontend puts there, 3 for HALF, is that of another type here."""
    x, total, squares = (
        caller.tensor(uid, dims, (8, 1, 8, 8))
        for uid, dims in ((1, (2, 8, 1, 1)), (2, (1, 8, 1, 1)), (3, (1, 8, 1, 1)))
    )
    descriptor = caller.made(
        D.OPERATION_GEN_STATS,
        (N.OPERATION_GENSTATS_XDESC, T.BACKEND_DESCRIPTOR, x),
        (N.OPERATION_GENSTATS_SUMDESC, T.BACKEND_DESCRIPTOR, total),
        (N.OPERATION_GENSTATS_SQSUMDESC, T.BACKEND_DESCRIPTOR, squares),
        (N.OPERATION_GENSTATS_MATH_PREC, T.DATA_TYPE, given),
    )
    assert caller.get(descriptor, N.OPERATION_GENSTATS_MATH_PREC, T.DATA_TYPE) == [taken]


def test_texts(case: Sum) -> None:
    caller = case.caller
    arguments = (case.plan, int(N.EXECUTION_PLAN_JSON_REPRESENTATION), int(T.CHAR))
    count = ctypes.c_int64()
    caller.call("cudnnBackendGetAttribute", *arguments, 0, ctypes.byref(count), None)
    size = count.value
    room = ctypes.create_string_buffer(b"#" * (size + 4), size + 4)
    caller.call("cudnnBackendGetAttribute", *arguments, size, ctypes.byref(count), room)
    assert count.value == size
    assert room.raw[size:] == b"####", "no byte behind the requested ones is written"
    text = room.raw[:size]
    caller.call("cudnnBackendGetAttribute", *arguments, size + 2, ctypes.byref(count), room)
    assert room.raw[size:] == b"\0###"
    for given in (text, text + b"\0"):
        plan = caller.create(D.EXECUTION_PLAN)
        setting = (plan, *arguments[1:], len(given), given)
        caller.call("cudnnBackendSetAttribute", *setting)
        caller.call("cudnnBackendFinalize", plan)
        caller.call("cudnnBackendExecute", case.handle, plan, case.pack)
    np.testing.assert_array_equal(download(case.y, np.float32), case.expected)


def test_results_go_into_the_callers_descriptors(case: Sum, binding: Binding) -> None:
    caller = case.caller
    heuristics = caller.heuristics(case.graph)
    arguments = (heuristics, int(N.ENGINEHEUR_RESULTS), int(T.BACKEND_DESCRIPTOR))
    count = ctypes.c_int64()
    caller.call("cudnnBackendGetAttribute", *arguments, 0, ctypes.byref(count), None)
    available = count.value
    assert available >= 1
    own = [caller.create(D.ENGINECFG) for _ in range(available + 1)]
    objects = len(binding.state.objects)
    array = (ctypes.c_void_p * (available + 1))(*own)
    caller.call("cudnnBackendGetAttribute", *arguments, available + 1, ctypes.byref(count), array)
    assert count.value == available
    assert list(array) == own
    assert len(binding.state.objects) == objects
    for config in own[:-1]:
        engine = caller.create(D.ENGINE)
        nested = (ctypes.c_void_p * 1)(engine)
        getting = (config, int(N.ENGINECFG_ENGINE), int(T.BACKEND_DESCRIPTOR), 1)
        caller.call("cudnnBackendGetAttribute", *getting, None, nested)
        assert len(caller.get(engine, N.ENGINE_GLOBAL_INDEX, T.INT64)) == 1
    assert caller.status("cudnnBackendFinalize", own[0]) is Status.BAD_PARAM, "it is finalized"
    assert caller.status("cudnnBackendFinalize", own[-1]) is Status.BAD_PARAM, "it is still empty"
    other = (ctypes.c_void_p * 1)(caller.create(D.ENGINE))
    status = caller.status("cudnnBackendGetAttribute", *arguments, 1, ctypes.byref(count), other)
    assert status is Status.BAD_PARAM_DESCRIPTOR_TYPE


def test_initialize_empties_a_descriptor(caller: Caller) -> None:
    tensor = caller.tensor(1, (2, 3), (3, 1))
    assert caller.set(tensor, N.TENSOR_UNIQUE_ID, T.INT64, 2) is Status.BAD_PARAM
    caller.call("cudnnBackendInitialize", tensor)
    assert caller.set(tensor, N.TENSOR_UNIQUE_ID, T.INT64, 2) is Status.SUCCESS
    assert caller.status("cudnnBackendFinalize", tensor) is Status.BAD_PARAM


def test_statuses_of_bad_arguments(caller: Caller) -> None:
    tensor = caller.create(D.TENSOR)
    set_ = ("cudnnBackendSetAttribute", tensor)
    one = (ctypes.c_int64 * 1)(1)
    uid, int64 = int(N.TENSOR_UNIQUE_ID), int(T.INT64)
    assert caller.status(*set_, uid, int64, 1, None) is Status.BAD_PARAM_NULL_POINTER
    assert caller.status(*set_, uid, int64, -1, one) is Status.BAD_PARAM_OUT_OF_BOUND
    assert caller.status(*set_, uid, int64, 2**62, one) is Status.BAD_PARAM_OUT_OF_BOUND
    assert caller.status(*set_, uid, int64, 0, one) is Status.BAD_PARAM_SIZE_INSUFFICIENT
    assert caller.status(*set_, uid, 99, 1, one) is Status.BAD_PARAM_ATTRIBUTE_TYPE
    assert caller.status(*set_, uid, int(T.DOUBLE), 1, one) is Status.BAD_PARAM_ATTRIBUTE_TYPE
    assert caller.status(*set_, int(N.MATMUL_COMP_TYPE), int64, 1, one) is Status.BAD_PARAM
    assert caller.status(*set_, 123456, int64, 1, one) is Status.BAD_PARAM
    get = ("cudnnBackendGetAttribute", caller.tensor(1, (2, 3), (3, 1)), uid, int64)
    available = ctypes.c_int64()
    count = ctypes.byref(available)
    assert (
        caller.status("cudnnBackendGetAttribute", tensor, uid, int64, 1, count, one) is Status.BAD_PARAM_NOT_FINALIZED
    )
    caller.call(*get, 9, count, None)
    assert available.value == 1
    assert caller.status(*get, 1, None, None) is Status.BAD_PARAM_NULL_POINTER
    assert caller.status(*get, -1, count, one) is Status.BAD_PARAM_OUT_OF_BOUND
    caller.call(*get, 1, None, one)
    created = ctypes.c_void_p(5)
    assert caller.status("cudnnBackendCreateDescriptor", 99, ctypes.byref(created)).category is Status.NOT_SUPPORTED
    assert created.value == 5


def test_random_calls_never_crash(case: Sum, binding: Binding) -> None:
    """Random numbers in every argument that is not a pointer to memory; the plan still runs afterwards."""
    rng = random.Random()
    caller, objects = case.caller, binding.state.objects
    names, types = [*map(int, AttributeName)], [*map(int, AttributeType), -1, 99]
    room = ctypes.create_string_buffer(1 << 12)
    for _ in range(2000):
        descriptor = rng.choice([*objects._table, 1])
        if descriptor in (case.handle, case.plan, case.pack):
            continue
        name, kind, count = rng.choice(names), rng.choice(types), rng.randint(-1, 9)
        room.raw = rng.randbytes(1 << 12) if rng.random() < 0.5 else bytes(1 << 12)
        if rng.random() < 0.5:
            caller.status("cudnnBackendSetAttribute", descriptor, name, kind, count, room)
        else:
            caller.status(
                "cudnnBackendGetAttribute", descriptor, name, kind, count, ctypes.byref(ctypes.c_int64()), room
            )
        if rng.random() < 0.1:
            caller.create(rng.choice([D.TENSOR, D.POINTWISE, D.MATMUL, D.ENGINEHEUR, D.RNG]))
            caller.status("cudnnBackendFinalize", descriptor)
        assert "INTERNAL_ERROR" not in caller.last_error()
    caller.call("cudnnBackendExecute", case.handle, case.plan, case.pack)
    np.testing.assert_array_equal(download(case.y, np.float32), case.expected)
