"""pygraph on the device: life cycle, plan list, filters, serialisation, results."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.engines.engine_set import anchored
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops.tensor import channels_last_strides, packed_strides
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import (
    BadParamError,
    GraphPatternError,
    LowdnnError,
    NotInitializedError,
    OutOfBoundError,
    SerializationVersionMismatchError,
    SizeInsufficientError,
    Status,
)
from tests.support.data import fresh_seed

FLOAT, HALF, INT8, INT32 = (cudnn.data_type[name] for name in ("FLOAT", "HALF", "INT8", "INT32"))
A, FALLBACK = cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK


def small_integers(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(fresh_seed()).integers(-3, 4, shape).astype(np.float32)


class MatmulBias:
    """y = relu(a b + bias): the graph and its data."""

    def __init__(self, handle: Handle | None, **options: object) -> None:
        self.graph = pygraph("mlp", FLOAT, FLOAT, FLOAT, handle, **options)  # type: ignore[arg-type]
        self.a, self.b, self.bias = small_integers(1, 8, 16), small_integers(1, 16, 24), small_integers(1, 1, 24)
        self.tensor_a = self.graph.tensor([1, 8, 16], name="a")
        self.tensor_b = self.graph.tensor([1, 16, 24], name="b")
        self.tensor_bias = self.graph.tensor([1, 1, 24], name="bias")
        product = self.graph.matmul(self.tensor_a, self.tensor_b)
        self.y = self.graph.relu(self.graph.bias(product, self.tensor_bias)).set_output(True).set_name("y")

    @property
    def expected(self) -> NDArray[np.float32]:
        return np.maximum(self.a @ self.b + self.bias, 0)

    def values(self, handle: Handle) -> dict[object, lowdnn.DeviceTensor]:
        arrays = (self.a, self.b, self.bias, np.full((1, 8, 24), np.nan, np.float32))
        tensors = (self.tensor_a, self.tensor_b, self.tensor_bias, self.y)
        return {tensor: lowdnn.from_numpy(array, handle) for tensor, array in zip(tensors, arrays, strict=True)}

    def check(self, handle: Handle, run: Callable[[dict[object, lowdnn.DeviceTensor]], None]) -> None:
        values = self.values(handle)
        run(values)
        np.testing.assert_array_equal(values[self.y].numpy(), self.expected)


def test_the_canonical_sequence(handle: Handle) -> None:
    case = MatmulBias(handle)
    graph = case.graph
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([A, FALLBACK])
    graph.check_support()
    graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
    assert graph.get_workspace_size() == graph.get_workspace_size_plan_at_index(0)
    case.check(handle, lambda values: graph.execute(values, graph.get_workspace_size() or None))


def test_build_does_all_steps(handle: Handle) -> None:
    case = MatmulBias(handle)
    case.graph.build([A])
    case.check(handle, lambda values: case.graph.execute(values))


def test_execute_builds_at_first_use(handle: Handle) -> None:
    case = MatmulBias(None)
    case.check(handle, lambda values: case.graph.execute(values, handle=handle))


def test_every_plan_of_the_list_gives_the_result(handle: Handle) -> None:
    case = MatmulBias(handle)
    case.graph.build([A, FALLBACK])
    count = case.graph.get_execution_plan_count()
    names = [case.graph.get_plan_name_at_index(index) for index in range(count)]
    assert len(set(names)) == count > 0
    for index in range(count):
        workspace = lowdnn.from_numpy(
            np.zeros(max(1, case.graph.get_workspace_size_plan_at_index(index)), np.uint8), handle
        )
        case.check(handle, lambda v, i=index, w=workspace: case.graph.execute_plan_at_index(v, w, i))  # type: ignore[misc]


def test_a_chosen_engine_with_knobs(handle: Handle) -> None:
    case = MatmulBias(handle)
    graph = case.graph
    graph.build_operation_graph()
    engine = next(found for found in handle.engines if found.name == "matmul_simt")
    knobs = graph.get_knobs_for_engine(engine.index)
    assert all((found.min_value, found.max_value) == (min(found.values), max(found.values)) for found in knobs)
    assert graph.get_engine_count() == len(handle.engines)
    chosen = {knobs[0].type: knobs[0].min_value}
    graph.create_execution_plan(engine.index, chosen)
    graph.build_plan_at_index(0)
    engine_id, resolved = graph.get_engine_and_knobs_at_index(0)
    assert engine_id == engine.index
    assert chosen.items() <= resolved.items()
    case.check(handle, lambda values: graph.execute(values))
    with pytest.raises(BadParamError, match="expected one of"):
        graph.create_execution_plan(engine.index, {knobs[0].type: -1})
    between = set(range(knobs[0].min_value, knobs[0].max_value, knobs[0].stride)) - set(knobs[0].values)
    with pytest.raises(BadParamError, match="expected one of"):
        graph.create_execution_plan(engine.index, {knobs[0].type: min(between)})
    with pytest.raises(BadParamError, match=r"pygraph\.engine_id"):
        graph.create_execution_plan(99, {})
    refusing = next(found for found in handle.engines if found.name == "conv_direct")
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="conv_direct: operations"):
        graph.get_knobs_for_engine(refusing.index)


def test_deselection_leaves_a_reason_for_each_engine_of_the_graphs_operations(handle: Handle) -> None:
    case = MatmulBias(handle)
    graph = case.graph
    graph.build_operation_graph()
    graph.create_execution_plans([A])
    graph.deselect_engines(["matmul"])
    with pytest.raises(cudnn.cudnnGraphNotSupportedError) as caught:
        graph.check_support()
    message = str(caught.value)
    assert caught.value.status is Status.NOT_SUPPORTED_GRAPH_PATTERN
    assert message.startswith("NOT_SUPPORTED_GRAPH_PATTERN pygraph 'mlp': no engine runs the graph")
    own = [engine.name for engine in anchored(tuple(handle.engines), graph._planned().graph.operations)]
    lines = message.splitlines()[1:]
    assert {line.split(":")[0].strip() for line in lines[:-1]} == set(own)
    assert lines[-1] == f"  {len(handle.engines) - len(own)} engines of operations that the graph does not have"
    assert "ConvolutionForward" not in message
    assert "deselected by name 'matmul'" in message
    with pytest.raises(BadParamError, match="expected a plan not deselected, got deselected by name"):
        graph.execute_plan_at_index({}, None, 0)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="no plan could be built"):
        graph.build_plans()


def test_filters_by_notes_and_workspace(handle: Handle) -> None:
    case = MatmulBias(handle)
    graph = case.graph
    graph.build_operation_graph()
    graph.create_execution_plans([A])
    graph.deselect_workspace_greater_than(0)
    graph.deselect_numeric_notes([cudnn.numerical_note.NONDETERMINISTIC])
    graph.deselect_behavior_notes([cudnn.behavior_note.CUBLASLT_DEPENDENCY])
    graph.check_support()
    graph.select_numeric_notes([cudnn.numerical_note.WINOGRAD])
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="lacks the selected note WINOGRAD"):
        graph.check_support()


def test_little_workspace_leaves_the_same_engine(handle: Handle) -> None:
    a, b = small_integers(1, 16, 1024), small_integers(1, 1024, 16)
    graph = pygraph("deep", FLOAT, FLOAT, FLOAT, handle)
    tensor_a, tensor_b = graph.tensor([1, 16, 1024]), graph.tensor([1, 1024, 16])
    y = graph.matmul(tensor_a, tensor_b).set_output(True)
    graph.build_operation_graph()
    graph.create_execution_plans([A])
    assert graph.get_workspace_size_plan_at_index(0) > 0
    engines = [graph.get_engine_and_knobs_at_index(index)[0] for index in range(graph.get_execution_plan_count())]
    assert engines.count(engines[0]) == 2
    graph.deselect_workspace_greater_than(0)
    graph.build_plans()
    assert graph.get_workspace_size() == 0
    result = lowdnn.from_numpy(np.full((1, 16, 16), np.nan, np.float32), handle)
    graph.execute({tensor_a: lowdnn.from_numpy(a, handle), tensor_b: lowdnn.from_numpy(b, handle), y: result})
    np.testing.assert_array_equal(result.numpy(), a @ b)


def test_notes_are_those_of_the_plan(handle: Handle) -> None:
    graph = MatmulBias(handle).graph
    graph.build([A])
    assert graph.get_behavior_notes() == graph.get_behavior_notes_for_plan_at_index(0)


def test_a_graph_that_no_single_engine_takes(handle: Handle) -> None:
    """conv -> relu -> matmul -> softmax from pointwise operations and reductions runs through composite."""
    graph = pygraph("chain", FLOAT, FLOAT, FLOAT, handle)
    x, w, v = small_integers(1, 4, 4, 4), small_integers(4, 4, 1, 1), small_integers(1, 4, 4, 8) / 8
    tx, tw, tv = graph.tensor([1, 4, 4, 4]), graph.tensor([4, 4, 1, 1]), graph.tensor([1, 4, 4, 8])
    hidden = graph.relu(graph.conv_fprop(tx, tw)).set_stride([64, 16, 4, 1])
    scores = graph.matmul(hidden, tv)
    largest = graph.reduction(scores, cudnn.reduction_mode.MAX).set_dim([1, 4, 4, 1]).set_stride([16, 4, 1, 1])
    exponentials = graph.exp(graph.sub(scores, largest))
    total = graph.reduction(exponentials, cudnn.reduction_mode.ADD).set_dim([1, 4, 4, 1]).set_stride([16, 4, 1, 1])
    y = graph.div(exponentials, total).set_output(True)
    graph.build([A])
    assert "composite" in graph.get_plan_name_at_index(0)
    values = {tensor: lowdnn.from_numpy(array, handle) for tensor, array in ((tx, x), (tw, w), (tv, v))}
    values[y] = lowdnn.from_numpy(np.full((1, 4, 4, 8), np.nan, np.float32), handle)
    workspace = lowdnn.from_numpy(np.zeros(graph.get_workspace_size(), np.uint8), handle)
    graph.execute(values, workspace)
    scored = np.maximum(np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0]), 0) @ v
    exact = np.exp(scored - scored.max(-1, keepdims=True))
    np.testing.assert_allclose(values[y].numpy(), exact / exact.sum(-1, keepdims=True), rtol=1e-5, atol=1e-7)
    with pytest.raises(LowdnnError, match="workspace"):
        graph.execute(values, None)
    with pytest.raises(LowdnnError, match="workspace"):
        graph.execute(values, values[y])
    short = lowdnn.from_numpy(np.zeros(graph.get_workspace_size() - 1, np.uint8), handle)
    with pytest.raises(SizeInsufficientError, match=f"workspace: expected at least {graph.get_workspace_size()} bytes"):
        graph.execute(values, short)
    graph.execute(values, workspace.ptr)


def test_a_workspace_begins_anywhere(handle: Handle) -> None:
    """cudnn-frontend puts its own part first. The memory ends with the size that was told."""
    rng = np.random.default_rng(fresh_seed())
    a, b, c = (rng.integers(-3, 4, (1, 5, 5)).astype(np.float32) for _ in range(3))
    graph = pygraph("products", FLOAT, FLOAT, FLOAT, handle)
    ta, tb, tc = (graph.tensor(name=name, dim=[1, 5, 5], stride=[25, 5, 1]) for name in "abc")
    y = graph.matmul(graph.matmul(ta, tb), tc).set_output(True)
    graph.build([A])
    size = graph.get_workspace_size()
    assert size > 256
    values = {tensor: lowdnn.from_numpy(array, handle) for tensor, array in ((ta, a), (tb, b), (tc, c))}
    for offset in range(256):
        values[y] = lowdnn.from_numpy(np.full((1, 5, 5), np.nan, np.float32), handle)
        memory = lowdnn.from_numpy(np.full(offset + size, 0xA5, np.uint8), handle)
        graph.execute(values, memory.ptr + offset)
        np.testing.assert_array_equal(values[y].numpy(), a @ b @ c)
        assert (memory.numpy()[:offset] == 0xA5).all()


@pytest.mark.parametrize("is_channels_last", [True, False])
def test_a_convolution_with_an_epilogue_in_bf16(handle: Handle, is_channels_last: bool) -> None:
    """y = relu(conv(x, w) * scale + bias) in small integers, which bf16 holds exactly."""
    graph = pygraph("conv", cudnn.data_type.BFLOAT16, FLOAT, FLOAT, handle)
    rng = np.random.default_rng(fresh_seed())
    arrays = {
        "x": rng.integers(-1, 2, (2, 8, 5, 6)),
        "w": rng.integers(-1, 2, (16, 8, 3, 3)),
        "scale": rng.integers(1, 3, (1, 16, 1, 1)),
        "bias": rng.integers(-2, 3, (1, 16, 1, 1)),
    }
    strides = {name: _layout(array.shape, is_channels_last) for name, array in arrays.items()}
    x, w, scale, bias = (graph.tensor(array.shape, strides[name], name=name) for name, array in arrays.items())
    y = graph.relu(graph.bias(graph.scale(graph.conv_fprop(x, w, padding=[1, 1]), scale), bias))
    y.set_output(True).set_name("y").set_stride(_layout((2, 16, 5, 6), is_channels_last))
    values = {
        name: lowdnn.from_numpy(array.astype(np.float32), handle, cudnn.data_type.BFLOAT16, strides[name])
        for name, array in arrays.items()
    }
    zeros = np.zeros((2, 16, 5, 6), np.float32)
    values["y"] = lowdnn.from_numpy(zeros, handle, cudnn.data_type.BFLOAT16, y.get_stride())
    graph.execute(values, lowdnn.from_numpy(np.zeros(1 << 16, np.uint8), handle))
    padded = np.pad(arrays["x"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    convolved = np.einsum("nchwrs,kcrs->nkhw", windows, arrays["w"])
    expected = np.maximum(convolved * arrays["scale"] + arrays["bias"], 0)
    np.testing.assert_array_equal(values["y"].numpy().astype(np.int64), expected)


def test_one_graph_in_two_threads(handle: Handle) -> None:
    """Each thread has its own handle of the same device and its own tensors."""
    case = MatmulBias(handle)
    case.graph.build([A])
    runtime = handle.runtime
    wrong: list[str] = []

    def work(own: Handle) -> None:
        values = case.values(own)
        for _ in range(3):
            values[case.y].copy_from(np.full((1, 8, 24), np.nan, np.float32))
            case.graph.execute(values, handle=own)
            if not np.array_equal(values[case.y].numpy(), case.expected):
                wrong.append("another result")

    with (
        Handle(Runtime(runtime.driver, config=runtime.config)) as first,
        Handle(Runtime(runtime.driver, config=runtime.config)) as second,
    ):
        threads = [threading.Thread(target=work, args=(own,)) for own in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_an_integer_matmul(handle: Handle) -> None:
    graph = pygraph("int8", INT8, INT32, INT32, handle)
    a = np.random.default_rng(fresh_seed()).integers(-128, 128, (3, 5)).astype(np.int8)
    b = np.random.default_rng(fresh_seed()).integers(-128, 128, (5, 7)).astype(np.int8)
    ta, tb = graph.tensor([3, 5]).set_alignment(1), graph.tensor([5, 7]).set_alignment(1)
    y = graph.matmul(ta, tb).set_output(True).set_data_type(INT32)
    result = lowdnn.from_numpy(np.zeros((3, 7), np.int32), handle)
    graph.execute({ta: lowdnn.from_numpy(a, handle), tb: lowdnn.from_numpy(b, handle), y: result})
    np.testing.assert_array_equal(result.numpy(), a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("dims", [(0, 4), (1, 1), (3, 1)])
def test_empty_and_unit_extents(handle: Handle, dims: tuple[int, int]) -> None:
    graph = pygraph("small", FLOAT, FLOAT, FLOAT, handle)
    x = np.arange(dims[0] * dims[1], dtype=np.float32).reshape(dims)
    tx = graph.tensor(dims)
    y = graph.add(tx, 1.0).set_output(True)
    result = lowdnn.from_numpy(np.full(dims, np.nan, np.float32), handle)
    graph.execute({tx: lowdnn.from_numpy(x, handle), y: result})
    np.testing.assert_array_equal(result.numpy(), x + 1)


def test_a_repeated_operand_with_stride_zero(handle: Handle) -> None:
    graph = pygraph("broadcast", FLOAT, FLOAT, FLOAT, handle)
    row = small_integers(1, 8)
    x, repeated = graph.tensor([4, 8]), graph.tensor([4, 8], [0, 1])
    y = graph.add(x, repeated).set_output(True)
    result = lowdnn.from_numpy(np.full((4, 8), np.nan, np.float32), handle)
    graph.execute(
        {x: lowdnn.from_numpy(np.ones((4, 8), np.float32), handle), repeated: lowdnn.from_numpy(row, handle), y: result}
    )
    np.testing.assert_array_equal(result.numpy(), 1 + np.repeat(row, 4, axis=0))


def test_a_serialised_graph_runs_in_another_one(handle: Handle) -> None:
    case = MatmulBias(handle)
    case.graph.build([A])
    for data in (case.graph.serialize(), case.graph.serialize(as_bytes=True)):
        restored = pygraph()
        restored.deserialize(handle, data)
        assert restored.name == "mlp"
        assert restored.query_tensor_attributes_of_uid(case.y.get_uid()).get_name() == "y"
        values = {tensor.get_name(): value for tensor, value in case.values(handle).items()}  # type: ignore[attr-defined]
        restored.execute(values)
        np.testing.assert_array_equal(values["y"].numpy(), case.expected)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (7, BadParamError),
        ("{", BadParamError),
        ("[]", BadParamError),
        ('{"lowdnn_graph": 1}', SerializationVersionMismatchError),
        ('{"lowdnn_graph": 2, "name": "x"}', BadParamError),
        ('{"lowdnn_graph": 2, "name": "x", "plan": {}, "tensors": []}', SerializationVersionMismatchError),
    ],
)
def test_damaged_data_is_refused(handle: Handle, data: object, error: type[LowdnnError]) -> None:
    with pytest.raises(error):
        pygraph().deserialize(handle, data)


def test_keys_are_equal_for_equal_graphs() -> None:
    first, second = MatmulBias(None, sm_version=90), MatmulBias(None, sm_version=90)
    second.y.set_name("other").set_uid(40)
    assert first.graph.key() == second.graph.key()
    third = MatmulBias(None, sm_version=90)
    third.y.set_data_type(HALF)
    assert third.graph.key() != first.graph.key()


def test_planning_needs_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWDNN_DEVICE", "emulated")
    properties = cudnn.create_device_properties('{"lowdnn_device": 1, "arch": "sm_80", "sm_count": 108}')
    for options in ({"sm_version": 80}, {"device_property": properties}, {"sm_version": 86, "sm_count": 20}):
        graph = MatmulBias(None, **options).graph
        graph.build_operation_graph()
        graph.create_execution_plans([A])
        graph.check_support()
        assert "matmul" in graph.get_plan_name_at_index(0)
        graph.build_plans()
        with pytest.raises(GraphPatternError, match=r"ARCH_MISMATCH plan\.target_arch: expected sm_90a, got sm_8"):
            graph.execute({})


@pytest.mark.parametrize("index", [None, 0, 1])
def test_a_graph_built_without_a_device_runs_on_one(
    handle: Handle, monkeypatch: pytest.MonkeyPatch, index: int | None
) -> None:
    def no_device(*_: object, **__: object) -> Handle:
        raise AssertionError("a device was opened")

    case = MatmulBias(None, device_property=cudnn.create_device_properties(handle))
    with monkeypatch.context() as patched:
        patched.setattr(Handle, "open", no_device)
        case.graph.build([A, FALLBACK])
        if index is not None:
            case.graph.build_plan_at_index(index)
        data = case.graph.serialize()
        name = case.graph.get_plan_name_at_index(index or 0)
        assert case.graph.get_workspace_size() == case.graph.get_workspace_size_plan_at_index(index or 0)
    restored = pygraph()
    restored.deserialize(handle, data)
    assert restored.get_plan_name_at_index(0) == name
    workspace = lowdnn.from_numpy(np.zeros(max(case.graph.get_workspace_size(), 1), np.uint8), handle)
    case.check(handle, lambda values: case.graph.execute(values, workspace, handle))
    named = {tensor: tensor.get_name() for tensor in (case.tensor_a, case.tensor_b, case.tensor_bias, case.y)}
    case.check(handle, lambda values: restored.execute({named[t]: v for t, v in values.items()}, workspace))  # type: ignore[index]


@pytest.mark.parametrize("sm_count", [0, 133])
def test_a_multiprocessor_count_that_the_device_has_not(sm_count: int) -> None:
    graph = MatmulBias(None, sm_version=90, sm_count=sm_count).graph
    with pytest.raises(BadParamError, match=r"pygraph\.sm_count: expected 1 to 132"):
        graph.build_operation_graph()


def test_a_failed_validate_leaves_no_old_graph(handle: Handle) -> None:
    case = MatmulBias(handle)
    case.graph.validate()
    case.tensor_bias.set_dim([1, 1, 23])
    with pytest.raises(LowdnnError, match=r"bias\.bias\.dims"):
        case.graph.validate()
    with pytest.raises(LowdnnError, match=r"bias\.bias\.dims"):
        case.graph.build_operation_graph()
    case.tensor_bias.set_dim([1, 1, 24])
    case.check(handle, lambda values: case.graph.execute(values))


def test_steps_out_of_order(handle: Handle) -> None:
    graph = MatmulBias(handle).graph
    with pytest.raises(BadParamError, match="expected build_operation_graph first"):
        graph.create_execution_plans([A])
    graph.build_operation_graph()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="no engine runs the graph"):
        graph.check_support()
    graph.create_execution_plans([A])
    with pytest.raises(OutOfBoundError, match="plan index: expected 0 to"):
        graph.get_plan_name_at_index(50)
    with pytest.raises(BadParamError, match="expected build_operation_graph first"):
        MatmulBias(handle).graph.get_workspace_size()


def test_operations_after_the_graph_is_built(handle: Handle) -> None:
    case = MatmulBias(handle)
    case.graph.build([A])
    with pytest.raises(BadParamError, match="expected operations before build_operation_graph, got one after it"):
        case.graph.exp(case.y)
    case.check(handle, lambda values: case.graph.execute(values))


def test_a_closed_handle(handle: Handle) -> None:
    case = MatmulBias(handle)
    case.graph.build([A])
    values = case.values(handle)
    cudnn.destroy_handle(handle)
    with pytest.raises(NotInitializedError, match="expected an open handle, got a closed one"):
        case.graph.execute(values)
    with pytest.raises(NotInitializedError):
        cudnn.get_stream(handle)


def _layout(shape: tuple[int, ...], is_channels_last: bool) -> tuple[int, ...]:
    return channels_last_strides(shape) if is_channels_last else packed_strides(shape)


def test_explain_names_what_runs_inside_composite() -> None:
    graph = cudnn.pygraph("chain", *[cudnn.data_type.FLOAT] * 3, sm_version=90)
    x = graph.tensor((4, 8, 8))
    graph.matmul(graph.matmul(x, x), x).set_output(True)
    graph.build_operation_graph()
    graph.create_execution_plans()
    lines = graph.explain().splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.startswith("> composite "))
    assert "2 parts" in lines[place]
    assert "parts: eng" in lines[place + 1]
