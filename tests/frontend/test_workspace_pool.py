"""Graphs executed with a pool instead of a workspace of their own."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend.handle import Handle
from lowdnn.status import AttributeTypeError, OutOfBoundError, SizeInsufficientError, StreamMismatchError

HALF, FLOAT = cudnn.data_type.HALF, cudnn.data_type.FLOAT


class Product:
    """c = a b of integers, whose plan splits K and needs a workspace of 16 columns a part and ``rows``."""

    def __init__(self, handle: Handle, rows: int = 16, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        a, b = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((1, rows, 512), (1, 512, 16)))
        self.handle = handle
        self.expected = a @ b
        self.graph = cudnn.pygraph(io_data_type=HALF, compute_data_type=FLOAT, handle=handle)
        left, right = self.graph.tensor(a.shape, name="a"), self.graph.tensor(b.shape, name="b")
        self.graph.matmul(left, right).set_output(True).set_data_type(FLOAT).set_name("c")
        self.graph.validate()
        self.graph.build_operation_graph()
        names = [handle.engines[i].name for i in range(self.graph.get_engine_count())]
        self.graph.create_execution_plan(names.index("matmul_mma"), {cudnn.knob_type.SPLIT_K_SLC: 4})
        self.graph.build_plans()
        self.values = {"a": lowdnn.from_numpy(a, handle, HALF), "b": lowdnn.from_numpy(b, handle, HALF)}
        self.c = lowdnn.zeros(self.expected.shape, handle, FLOAT)

    def execute(self, workspace: object, handle: Handle | None = None) -> None:
        self.graph.execute({**self.values, "c": self.c}, workspace, handle)

    def result(self) -> NDArray[np.float32]:
        found = self.c.numpy()
        self.c.buffer.fill_bytes(0xFF, self.handle.borrowed_stream())
        return found

    def check(self) -> None:
        np.testing.assert_array_equal(self.result(), self.expected)


def test_graphs_and_handles_share_a_pool(handle: Handle) -> None:
    small, large = Product(handle), Product(handle, rows=32)
    with lowdnn.create_handle(same_device_as=handle) as other, lowdnn.create_stream(other) as stream:
        other.set_stream(stream)
        with lowdnn.WorkspacePool(handle, limit_bytes=1 << 20) as pool:
            for product, user in ((small, handle), (large, handle), (small, other), (large, other)):
                product.execute(pool, user)
                user.synchronize()
                product.check()
            found = pool.statistics()
            assert found.blocks == 2
            assert found.used_bytes == 2 * found.largest_need_bytes == 2 * large.graph.get_workspace_size()
            pool.release(stream)
            assert pool.trim() == found.size_bytes
        with pytest.raises(lowdnn.status.NotInitializedError, match="WorkspacePool"):
            small.execute(pool)
    small.execute(lowdnn.empty((small.graph.get_workspace_size(),), handle, cudnn.data_type.UINT8))
    small.check()


def test_captured_graph_outlives_growth(handle: Handle) -> None:
    """The CUDA graph is launched again behind a larger plan of its stream."""
    small, large = Product(handle), Product(handle, rows=64)
    driver, context = handle.runtime.driver, handle.runtime.context
    with lowdnn.create_stream(handle) as stream, lowdnn.WorkspacePool(handle) as pool:
        handle.set_stream(stream)
        stream.begin_capture()
        with pytest.raises(SizeInsufficientError, match="call reserve with all graphs before it"):
            small.execute(pool)
        with context.activated():
            driver.graph_destroy(stream.end_capture())
        pool.reserve([small.graph])
        stream.begin_capture()
        small.execute(pool)
        captured = stream.end_capture()
        large.execute(pool)
        with context.activated():
            executable = driver.graph_instantiate(captured)
            for _ in range(2):
                driver.graph_launch(executable, stream.handle)
                large.execute(pool)
                small.check()
                large.check()
            driver.graph_exec_destroy(executable)
            driver.graph_destroy(captured)
        assert pool.statistics().blocks == 2
        handle.set_stream(0)


def test_populated_graph_keeps_its_workspace(handle: Handle) -> None:
    small, large = Product(handle), Product(handle, rows=64)
    driver, context = handle.runtime.driver, handle.runtime.context
    with lowdnn.WorkspacePool(handle) as pool, context.activated():
        graph = driver.graph_create()
        small.graph.populate_cuda_graph(handle, {**small.values, "c": small.c}, pool, graph)
        large.execute(pool)
        executable = driver.graph_instantiate(graph)
        driver.graph_launch(executable, 0)
        small.check()
        driver.graph_exec_destroy(executable)
        driver.graph_destroy(graph)
        assert pool.statistics().kept_bytes >= small.graph.get_workspace_size()


def test_threads_with_a_handle_each_share_a_pool(handle: Handle) -> None:
    """The limit leaves room for one of them at a time."""
    handles = [lowdnn.create_handle(same_device_as=handle) for _ in range(3)]
    products = [Product(each, 16 * (1 + number), seed=number) for number, each in enumerate(handles)]
    streams = [lowdnn.create_stream(each) for each in handles]
    failures: list[BaseException] = []
    need = max(product.graph.get_workspace_size() for product in products)

    def work(product: Product, stream: object) -> None:
        try:
            product.handle.set_stream(stream)
            for _ in range(4):
                product.execute(pool)
                product.check()
        except BaseException as error:
            failures.append(error)

    with lowdnn.WorkspacePool(handle, need + 100) as pool:
        threads = [threading.Thread(target=work, args=pair) for pair in zip(products, streams, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert pool.statistics().high_water_bytes <= need + 100
    for each in handles:
        each.close()


def test_wrong_arguments_are_refused(handle: Handle) -> None:
    with pytest.raises(AttributeTypeError, match=r"WorkspacePool\.handle: expected a Handle, got 5"):
        lowdnn.WorkspacePool(5)  # type: ignore[arg-type]
    with pytest.raises(OutOfBoundError, match=r"WorkspacePool\.limit_bytes: expected 1 to .* got 0"):
        lowdnn.WorkspacePool(handle, 0)
    product = Product(handle)
    with lowdnn.WorkspacePool(handle, 1000) as pool:
        with pytest.raises(SizeInsufficientError, match=r"limit_bytes: .* got 1000; eng2_matmul_mma.* needs \d+ bytes"):
            product.execute(pool)
        with pytest.raises(AttributeTypeError, match=r"WorkspacePool\.reserve\.graphs: expected graphs, got 7"):
            pool.reserve([7])  # type: ignore[list-item]
        with pytest.raises(OutOfBoundError, match=r"trim\.keep_bytes"):
            pool.trim(-1)
        pool.release(12345)  # has no blocks
    if handle.cuda_device is None:
        with (
            lowdnn.create_handle("emulated") as elsewhere,
            lowdnn.WorkspacePool(elsewhere) as pool,
        ):
            with pytest.raises(StreamMismatchError, match="got a pool of another device"):
                product.execute(pool)
            with pytest.raises(StreamMismatchError, match=r"reserve\.graphs: .*, got a pool of another device"):
                pool.reserve([product.graph])
