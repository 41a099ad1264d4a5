"""Graphs in a sequence, with what lies between them in one arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend.handle import Handle
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    DuplicatedEntriesError,
    ShapeMismatchError,
    SizeInsufficientError,
)
from tests.support.data import fresh_seed

HALF, FLOAT, UINT8 = cudnn.data_type.HALF, cudnn.data_type.FLOAT, cudnn.data_type.UINT8

#: Images of a batch.
N = 2
#: Channels between blocks.
WIDE = 32
#: Channels inside of a block.
NARROW = 16
#: Rows and columns of an image.
SIZE = 6
#: Blocks of the network.
BLOCKS = 5
#: Filters of a block's three convolutions: outputs, inputs, rows and columns.
FILTERS = {"w1": (NARROW, WIDE, 1, 1), "w2": (NARROW, NARROW, 3, 3), "w3": (WIDE, NARROW, 1, 1)}
#: A graph, and names in the sequence for its tensors.
Step = tuple[cudnn.pygraph, dict[str, str]]


class Bottleneck:
    """The ten graphs of a block of ResNet-50 without its norms: three forward, and seven of its gradients.

    a1 = relu(w1 * x)     a2 = relu(w2 * a1)     y = relu(w3 * a2 + x)
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.forward: list[Step] = []
        self.backward: list[Step] = []
        for x, w, y in (("x", "w1", "a1"), ("a1", "w2", "a2"), ("a2", "w3", "y")):
            self.forward.append(self._convolution(x, w, y))
        self.backward.append(self._relu_gradient())
        for dy, x, w, dx in (("dz", "a2", "w3", "g2"), ("g2", "a1", "w2", "g1"), ("g1", "x", "w1", "dx")):
            self.backward.append(self._filter_gradient(dy, x, w))
            self.backward.append(self._data_gradient(dy, x, w, dx))

    def _new(self) -> cudnn.pygraph:
        return cudnn.pygraph("block", HALF, FLOAT, FLOAT, self._handle)

    def _image(self, graph: cudnn.pygraph, name: str) -> cudnn.Tensor:
        dims = (N, NARROW if name in ("a1", "a2", "g1", "g2") else WIDE, SIZE, SIZE)
        return graph.tensor(dims, lowdnn.channels_last_strides(dims), name=name)

    def _filter(self, graph: cudnn.pygraph, name: str) -> cudnn.Tensor:
        return graph.tensor(FILTERS[name], lowdnn.channels_last_strides(FILTERS[name]), name=name)

    def _built(self, graph: cudnn.pygraph, output: cudnn.Tensor, name: str) -> Step:
        output.set_output(True).set_data_type(HALF).set_name(name)
        graph.build()
        return graph, {tensor.name: tensor.name for tensor in graph.plan.tensors}

    def _convolution(self, x: str, w: str, y: str) -> Step:
        graph, padding = self._new(), [FILTERS[w][2] // 2] * 2
        found = graph.conv_fprop(self._image(graph, x), self._filter(graph, w), padding=padding)
        if y == "y":
            found = graph.add(found, self._image(graph, "x"))
        return self._built(graph, graph.relu(found), y)

    def _relu_gradient(self) -> Step:
        graph = self._new()
        return self._built(graph, graph.relu_backward(self._image(graph, "dy"), self._image(graph, "y")), "dz")

    def _filter_gradient(self, dy: str, x: str, w: str) -> Step:
        graph, padding = self._new(), [FILTERS[w][2] // 2] * 2
        found = graph.conv_wgrad(self._image(graph, x), self._image(graph, dy), padding=padding)
        found.set_dim(FILTERS[w]).set_stride(lowdnn.channels_last_strides(FILTERS[w]))
        return self._built(graph, found, f"d{w}")

    def _data_gradient(self, dy: str, x: str, w: str, dx: str) -> Step:
        graph, padding = self._new(), [FILTERS[w][2] // 2] * 2
        saved = self._image(graph, "dz" if dx == "dx" else x)
        found = graph.conv_dgrad(self._image(graph, dy), self._filter(graph, w), padding=padding)
        found.set_dim(saved.get_dim()).set_stride(saved.get_stride())
        result = graph.add(found, saved) if dx == "dx" else graph.relu_backward(found, saved)
        return self._built(graph, result, dx)


def network(handle: Handle) -> list[Step]:
    """Blocks forward, then their gradients backward: steps with the names of their tensors.

    The output of block i is the input x of block i + 1, whose gradient dx is the gradient dy of block i.
    """
    block = Bottleneck(handle)

    def named(names: Mapping[str, str], number: int) -> dict[str, str]:
        edges = {"x": f"x{number}", "y": f"x{number + 1}", "dx": f"dx{number}", "dy": f"dx{number + 1}"}
        return {name: edges.get(name, f"{name}_{number}") for name in names}

    forward = [(graph, named(names, i)) for i in range(BLOCKS) for graph, names in block.forward]
    backward = [(graph, named(names, i)) for i in reversed(range(BLOCKS)) for graph, names in block.backward]
    return [*forward, *backward]


def executed_separately(
    steps: Sequence[Step], given: Mapping[str, lowdnn.DeviceTensor], handle: Handle
) -> dict[str, NDArray[Any]]:
    """The outputs of all steps by name, with a buffer for each tensor and each workspace."""
    buffers, written = dict(given), []
    for graph, names in steps:
        for tensor in graph.get_outputs():
            name = names[tensor.get_name()]
            buffers[name] = lowdnn.empty(tensor.get_dim(), handle, HALF, tensor.get_stride())
            written.append(name)
        workspace = lowdnn.empty((graph.get_workspace_size(),), handle, UINT8)
        graph.execute({tensor: buffers[name] for tensor, name in names.items()}, workspace)
    return {name: buffers[name].numpy() for name in written}


def poisoned(handle: Handle, size_bytes: int) -> lowdnn.DeviceTensor:
    arena = lowdnn.empty((size_bytes,), handle, UINT8)
    arena.buffer.fill_bytes(0xFF)
    return arena


def test_fifty_plans_of_a_network_share_an_arena(handle: Handle) -> None:
    """The outputs have the bits that they have with a buffer for each tensor, and the arena is near the lower bound."""
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    steps = network(handle)
    sequence = lowdnn.GraphSequence()
    for graph, names in steps:
        sequence.add(graph, names)
    memory = sequence.memory
    assert len(memory.workspaces) == 50
    assert len(memory.tensors) == 14 + 20  # activations but for x0; gradients but for the first and the last
    assert memory.lower_bound_bytes <= memory.size_bytes <= 1.05 * memory.lower_bound_bytes
    assert memory.size_bytes < 0.6 * memory.separate_bytes
    written = {names[tensor.get_name()]: tensor for graph, names in steps for tensor in graph.get_outputs()}
    used = {names[tensor.name]: tensor for graph, names in steps for tensor in graph.plan.tensors}
    shapes = {f"w{i}_{number}": FILTERS[f"w{i}"] for i in (1, 2, 3) for number in range(BLOCKS)}
    shapes |= dict.fromkeys(("x0", f"dx{BLOCKS}"), (N, WIDE, SIZE, SIZE))
    assert shapes.keys() == used.keys() - written.keys()
    given = {
        name: lowdnn.from_numpy(
            rng.normal(0, 0.3, shape).astype(np.float32), handle, HALF, lowdnn.channels_last_strides(shape)
        )
        for name, shape in shapes.items()
    }
    expected = executed_separately(steps, given, handle)
    inside = {placed.name for placed in memory.tensors}
    outputs = {
        name: lowdnn.empty(tensor.get_dim(), handle, HALF, tensor.get_stride())
        for name, tensor in written.items()
        if name not in inside
    }
    assert outputs.keys() == {f"dw{i}_{number}" for i in (1, 2, 3) for number in range(BLOCKS)} | {"dx0"}
    for make in (poisoned, lowdnn.WorkspacePool):
        with make(handle, sequence.get_workspace_size()) as workspace:
            sequence.execute({**given, **outputs}, workspace)
            for name, tensor in outputs.items():
                bits = tensor.numpy().view(np.uint16)
                np.testing.assert_array_equal(bits, expected[name].view(np.uint16), err_msg=f"{name}, seed {seed}")
                tensor.buffer.fill_bytes(0xFF)
    assert np.abs(expected["dw1_0"]).max() > 0


def increment(handle: Handle | None, count: int = 64, **options: Any) -> cudnn.pygraph:
    """y = x + step, where ``step`` is by value."""
    graph = cudnn.pygraph("increment", FLOAT, FLOAT, FLOAT, handle, **options)
    x = graph.tensor((1, count), name="x")
    step = graph.tensor((1, 1), name="step", is_pass_by_value=True)
    graph.add(x, step).set_output(True).set_name("y")
    graph.build()
    return graph


def sum_of_two(handle: Handle, count: int) -> cudnn.pygraph:
    graph = cudnn.pygraph("sum", FLOAT, FLOAT, FLOAT, handle)
    a, b = graph.tensor((1, count), name="a"), graph.tensor((1, count), name="b")
    graph.add(a, b).set_output(True).set_name("c")
    graph.build()
    return graph


def chain(graph: cudnn.pygraph, count: int, **options: Any) -> lowdnn.GraphSequence:
    found = lowdnn.GraphSequence(**options)
    for number in range(count):
        found.add(graph, {"x": f"t{number}", "y": f"t{number + 1}"})
    return found


def test_outputs_that_are_read_and_values_on_the_host(handle: Handle) -> None:
    sequence = chain(increment(handle), 4, outputs=["t2"])
    assert [placed.name for placed in sequence.memory.tensors] == ["t1", "t3"]
    assert sequence.memory.size_bytes == 256
    assert str(sequence.memory) == (
        "4 steps, 2 tensors between them: an arena of 256 bytes, 50 % of 512; no arena has less than 256"
    )
    x = np.arange(64, dtype=np.float32).reshape(1, 64)
    values = {"t0": lowdnn.from_numpy(x, handle), "t2": lowdnn.zeros((1, 64), handle)}
    values["t4"] = lowdnn.zeros((1, 64), handle)
    # An odd address: the arena begins at the next multiple of 256.
    arena = lowdnn.empty((sequence.get_workspace_size() + 3,), handle, UINT8)
    sequence.execute({**values, "step": 2.5}, arena.ptr + 3)
    np.testing.assert_array_equal(values["t2"].numpy(), x + 5)
    np.testing.assert_array_equal(values["t4"].numpy(), x + 10)
    longer = sequence.add(increment(handle), {"x": "t4", "y": "t5"})
    assert longer.memory.size_bytes == 512, "t3 and t4 are in use at one time"


def test_a_tensor_that_is_read_first_is_the_callers(handle: Handle) -> None:
    """So a later step may update it in place, for others behind it."""
    graph = increment(handle)
    sequence = lowdnn.GraphSequence()
    for x, y in (("weights", "first"), ("first", "weights"), ("weights", "last")):
        sequence.add(graph, {"x": x, "y": y})
    weights, last = lowdnn.zeros((1, 64), handle), lowdnn.zeros((1, 64), handle)
    with poisoned(handle, sequence.get_workspace_size()) as arena:
        sequence.execute({"weights": weights, "step": 1.0, "last": last}, arena)
    np.testing.assert_array_equal(weights.numpy(), np.full((1, 64), 2))
    np.testing.assert_array_equal(last.numpy(), np.full((1, 64), 3))


def test_random_sequences_compute_what_numpy_does(handle: Handle) -> None:
    """Sums of tensors of several sizes, each step reading any that were given or written before."""
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    sums = {count: sum_of_two(handle, count) for count in (30, 64, 700)}
    with lowdnn.WorkspacePool(handle) as pool:
        for _ in range(6):
            arrays = {f"given {count}": rng.integers(0, 9, (1, count)).astype(np.float32) for count in sums}
            values = {name: lowdnn.from_numpy(array, handle) for name, array in arrays.items()}
            steps: list[tuple[int, tuple[str, str], str]] = []
            for number in range(12):
                count = int(rng.choice(list(sums)))
                known = [name for name, array in arrays.items() if array.size == count]
                a, b = (str(name) for name in rng.choice(known, 2))
                arrays[f"t{number}"] = arrays[a] + arrays[b]
                steps.append((count, (a, b), f"t{number}"))
            sequence = lowdnn.GraphSequence(outputs=[f"t{number}" for number in rng.integers(0, 12, 2)])
            for count, (a, b), c in steps:
                sequence.add(sums[count], {"a": a, "b": b, "c": c})
            inside = {placed.name for placed in sequence.memory.tensors}
            outputs = {c: lowdnn.empty((1, count), handle) for count, _, c in steps if c not in inside}
            used = {name for _, names, _ in steps for name in names}
            given = {name: value for name, value in values.items() if name in used}
            sequence.execute({**given, **outputs}, pool)
            for name, tensor in outputs.items():
                np.testing.assert_array_equal(tensor.numpy(), arrays[name], err_msg=f"{name}, seed {seed}")


def test_memory_is_planned_without_a_device() -> None:
    sequence = chain(increment(None, sm_version=90), 3)
    assert sequence.memory.size_bytes == 512
    assert sequence.get_workspace_size() == 512 + 255


def test_a_sequence_is_captured_with_a_pool(handle: Handle) -> None:
    sequence = chain(increment(handle), 3)
    x, y = lowdnn.zeros((1, 64), handle), lowdnn.zeros((1, 64), handle)
    values = {"t0": x, "t3": y, "step": 1.0}
    driver, context = handle.runtime.driver, handle.runtime.context
    with lowdnn.create_stream(handle) as stream, lowdnn.WorkspacePool(handle) as pool:
        handle.set_stream(stream)
        pool.reserve([sequence])
        stream.begin_capture()
        sequence.execute(values, pool)
        captured = stream.end_capture()
        with context.activated():
            executable = driver.graph_instantiate(captured)
            driver.graph_launch(executable, stream.handle)
            np.testing.assert_array_equal(y.numpy(), np.full((1, 64), 3))
            driver.graph_exec_destroy(executable)
            driver.graph_destroy(captured)
        handle.set_stream(0)


def test_misuse_is_refused(handle: Handle) -> None:
    graph, larger = increment(handle), increment(handle, count=65)
    sequence = lowdnn.GraphSequence().add(graph, {"x": "t0", "y": "t1"})
    with pytest.raises(BadParamError, match="GraphSequence: expected graphs, which add takes, got none"):
        lowdnn.GraphSequence().execute({})
    with pytest.raises(AttributeTypeError, match=r"add\.graph: expected a pygraph that is built, got 5"):
        sequence.add(5)  # type: ignore[arg-type]
    with pytest.raises(DuplicatedEntriesError, match=r"add\.t1: expected a name that step 0 does not write"):
        sequence.add(graph, {"x": "t2", "y": "t1"})
    with pytest.raises(ShapeMismatchError, match=r"add\.t1: expected 256 bytes of FLOAT, as step 0 writes, got 260 by"):
        sequence.add(larger, {"x": "t1", "y": "t2"})
    with pytest.raises(BadParamError, match=r"add\.tensors: expected one of .*'x'.* got 'z'"):
        sequence.add(graph, {"z": "t1"})
    with pytest.raises(
        BadParamError, match=r"add\.tensors: expected .* for each output one of its own, got 't1' for uid"
    ):
        sequence.add(graph, {"x": "t1", "y": "t1"})
    sequence.add(graph, {"x": "t1", "y": "t2"})
    x = lowdnn.zeros((1, 64), handle)
    arena = lowdnn.empty((sequence.get_workspace_size(),), handle, UINT8)
    for values, got in (({"t0": x, "step": 1.0}, "no t2"), ({"t0": x, "t2": x, "step": 1.0, "t1": x}, "t1 besides")):
        with pytest.raises(BadParamError, match=f"execute.values: expected values for step, t0, t2, got {got}"):
            sequence.execute(values, arena)
    values = {"t0": x, "t2": x, "step": 1.0}
    with pytest.raises(BadParamError, match=r"GraphSequence\.outputs: expected some of step, x, y, got nope"):
        lowdnn.GraphSequence(["nope", "y"]).add(graph).execute({})
    with pytest.raises(BadParamError, match=r"execute\.workspace: expected 511 bytes, or a WorkspacePool, got None"):
        sequence.execute(values)
    with pytest.raises(SizeInsufficientError, match=r"execute\.workspace: expected at least 511 bytes, got 256 bytes"):
        sequence.execute(values, x)
