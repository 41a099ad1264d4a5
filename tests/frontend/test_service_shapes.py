"""A service whose shapes vary: kernels are chosen and compiled before, and then no call waits for a compiler."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.config import CompilePolicy, Config
from lowdnn.frontend.python_graph import pygraph
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import AttributeTypeError, BadParamError, OutOfBoundError
from tests.support.data import fresh_seed

HALF, FLOAT = cudnn.data_type.HALF, cudnn.data_type.FLOAT
MOST_ROWS, MOST_COLUMNS, N, K = 96, 768, 64, 128
CASES = (
    f"matmul m=1..{MOST_ROWS} n={N} k={K} dtype=fp16 out=fp32",
    f"softmax dims=1..{MOST_ROWS}x4..{MOST_COLUMNS}/4 dtype=fp32",
)
MAX_KERNELS = 12
SHAPES = 40


def opened(device: Runtime, folder: Path, policy: CompilePolicy = CompilePolicy.AVOID, **config: bool) -> Handle:
    settings = Config(cache_dir=folder, compile_policy=policy, **config)  # type: ignore[arg-type]
    return Handle(Runtime(device.driver, config=settings))


def test_after_warming_no_call_waits_for_a_compiler(device: Runtime, tmp_path: Path) -> None:
    with opened(device, tmp_path) as handle:
        kernels = lowdnn.kernel_set(CASES, handle, max_kernels=MAX_KERNELS)
        assert kernels.needed > MAX_KERNELS >= len(kernels.kernels)
        assert kernels.waiting == 0
        lowdnn.build_kernels(kernels, handle)
    numbers, drawn = np.random.default_rng(fresh_seed()), random.Random(fresh_seed())
    with opened(device, tmp_path) as handle:
        for _ in range(SHAPES):
            rows = drawn.randint(1, MOST_ROWS)
            if drawn.random() < 0.5:
                product(handle, rows, numbers)
            else:
                softmax(handle, rows, drawn.randrange(4, MOST_COLUMNS + 1, 4), numbers)
        found = handle.runtime.counters.snapshot()
        assert found["plans_at_hand"] > 0
        assert "compiles" not in found
        assert "compile_waits" not in found


def product(handle: Handle, rows: int, numbers: np.random.Generator) -> None:
    graph = pygraph("product", HALF, FLOAT, FLOAT, handle)
    a, b = graph.tensor([1, rows, K], name="a"), graph.tensor([1, K, N], name="b")
    graph.matmul(a, b).set_output(True).set_name("y").set_data_type(FLOAT)
    left, right = (numbers.integers(-3, 4, shape).astype(np.float16) for shape in ((1, rows, K), (1, K, N)))
    found = graph.run(a=left, b=right)["y"].numpy()
    np.testing.assert_array_equal(found, left.astype(np.float32) @ right.astype(np.float32))


def softmax(handle: Handle, rows: int, columns: int, numbers: np.random.Generator) -> None:
    graph = pygraph("softmax", FLOAT, FLOAT, FLOAT, handle)
    y, _ = graph.softmax(graph.tensor([rows, columns], name="x"), axis=1)
    y.set_output(True).set_name("y")
    x: NDArray[np.float32] = numbers.normal(0, 2, (rows, columns)).astype(np.float32)
    expected = np.exp(x - x.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(graph.run(x=x)["y"].numpy(), expected, rtol=1e-4, atol=1e-6)


def test_graphs_are_shapes_too(device: Runtime, tmp_path: Path) -> None:
    """As a program writes them, with what a text case cannot say."""
    with opened(device, tmp_path) as handle:
        graphs = []
        for rows in (1, 7, 64):
            graph = pygraph(f"rows {rows}", FLOAT, FLOAT, FLOAT, handle)
            x = graph.tensor([rows, 64], name="x")
            graph.add(x, graph.tensor_scalar(0.5)).set_output(True)
            graphs.append(graph)
        kernels = lowdnn.kernel_set(graphs, handle)
        assert [shape.shape.name for shape in kernels.shapes] == ["rows 1", "rows 7", "rows 64"]
        lowdnn.build_kernels(kernels, handle)
        for graph in graphs:
            graph.build()
        found = handle.runtime.counters.snapshot()
        assert "compile_waits" not in found
        assert found["compiles"] == len(kernels.kernels)


def test_a_set_needs_a_place_on_disk(device: Runtime, tmp_path: Path) -> None:
    with opened(device, tmp_path, disk_cache=False) as handle:
        kernels = lowdnn.kernel_set(CASES[1:], handle, max_kernels=1, shapes=2)
        with pytest.raises(BadParamError, match="expected a directory for kernels, got none"):
            lowdnn.build_kernels(kernels, handle)


def test_arguments_are_checked(device: Runtime, tmp_path: Path) -> None:
    with opened(device, tmp_path) as handle:
        with pytest.raises(
            AttributeTypeError, match=r"kernel_set\.cases: expected a sequence of lines of text and graphs"
        ):
            lowdnn.kernel_set(CASES[0], handle)
        with pytest.raises(AttributeTypeError, match=r"kernel_set\.cases: expected lines of text and graphs, got 7"):
            lowdnn.kernel_set([7], handle)  # type: ignore[list-item]
        with pytest.raises(AttributeTypeError, match=r"kernel_set\.handle: expected a Handle"):
            lowdnn.kernel_set(CASES, "cuda")  # type: ignore[arg-type]
        with pytest.raises(OutOfBoundError, match=r"kernel_set\.max_kernels: expected 1 to"):
            lowdnn.kernel_set(CASES, handle, max_kernels=0)
