"""Clusters, dependent and cooperative launches, on the emulated device and on a GPU: results, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowdnn.driver.base import DeviceAttribute, FunctionAttribute, LaunchConfig
from tests.driver.board import ADD, Arguments, Board, fails_with, line

#: ``neighbours(out)``: each CTA puts its block number into the shared memory of the next CTA of its cluster.
NEIGHBOURS = """
extern "C" __global__ void neighbours(unsigned* out) {
  __shared__ unsigned from;
  unsigned rank, size, there;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  if (threadIdx.x == 0) {
    unsigned here = (unsigned)__cvta_generic_to_shared(&from);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"((rank + 1) % size));
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(there), "r"(blockIdx.x) : "memory");
  }
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  if (threadIdx.x == 0) out[blockIdx.x] = 1000000 * size + 1000 * rank + from;
}
"""
#: ``second`` starts while ``first`` runs, and waits for what it has written.
DEPENDENT = """
extern "C" __global__ void first(unsigned* x) {
  asm volatile("griddepcontrol.launch_dependents;");
  x[blockIdx.x * blockDim.x + threadIdx.x] += 7;
}
extern "C" __global__ void second(const unsigned* x, unsigned* y) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = 3 * *(const volatile unsigned*)&x[gridDim.x * blockDim.x - 1 - i];
}
"""
#: ``meet(counter, out)``: every block waits until all have come.
MEET = """
extern "C" __global__ void meet(unsigned* counter, unsigned* out) {
  if (threadIdx.x == 0) {
    atomicAdd(counter, 1u);
    while (*(volatile unsigned*)counter < gridDim.x) {}
    out[blockIdx.x] = *(volatile unsigned*)counter;
  }
}
"""
#: ``rounds(slots, out)``: in each round a block leaves a number, all meet, and it reads its neighbour's.
ROUNDS = """
#include "include/ptx/grid_barrier.cuh"
extern "C" __global__ void rounds(u32* slots, u32* out) {
  u32 total = 0;
  for (u32 round = 0; round < 3; ++round) {
    if (threadIdx.x == 0) slots[round * gridDim.x + blockIdx.x] = 100 * round + blockIdx.x;
    grid_sync();
    total += slots[round * gridDim.x + (blockIdx.x + 1) % gridDim.x];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}
"""


def size_ptx(directives: str) -> bytes:
    """``size(out)``: thread 0 of each block stores its cluster's size."""
    return f""".version 8.0\n.target sm_90\n.address_size 64
        .visible .entry size(.param .u64 out) {directives}
        {{
          .reg .b32 %r<4>; .reg .b64 %rd<4>;
          ld.param.u64 %rd1, [out]; mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2;
          mov.u32 %r2, %cluster_nctarank; st.global.u32 [%rd1], %r2; ret;
        }}""".encode()


@pytest.mark.parametrize("cluster", [1, 2, 3, 8])
def test_clusters_share_memory(board: Board, cluster: int) -> None:
    out = board.empty(4 * 24)
    board.launch(board.function(NEIGHBOURS, "neighbours"), line(24, 64, cluster=(cluster, 1, 1)), out)
    block = np.arange(24)
    before = block // cluster * cluster + (block - 1) % cluster
    np.testing.assert_array_equal(board.get(out, 24), 1000000 * cluster + 1000 * (block % cluster) + before)


@pytest.mark.parametrize("attributes", [{"cluster": (4, 1, 1)}, {"cooperative": True}, {}])
def test_graph_nodes_have_the_attributes_of_launches(board: Board, attributes: dict[str, Any]) -> None:
    driver, out = board.driver, board.empty(4 * 8)
    function, arguments = board.ptx_function(size_ptx(""), "size"), Arguments(out)
    graph = driver.graph_create()
    driver.graph_add_kernel_node(graph, (), function, line(8, 32, **attributes), arguments.address)
    driver.graph_launch(driver.graph_instantiate(graph), 0)
    assert (board.get(out, 8) == attributes.get("cluster", (1,))[0]).all()


def test_a_cluster_of_16_needs_leave(board: Board) -> None:
    function, out = board.function(NEIGHBOURS, "neighbours"), board.empty(4 * 32)
    config = line(32, 64, cluster=(16, 1, 1))
    attribute = FunctionAttribute.NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    assert board.driver.function_get_attribute(function, attribute) == 0
    fails_with("INVALID_CLUSTER_SIZE", lambda: board.launch(function, config, out))
    board.driver.function_set_attribute(function, attribute, 1)
    assert board.driver.function_get_attribute(function, attribute) == 1
    board.launch(function, config, out)
    assert (board.get(out, 32) // 1000000 == 16).all()


@pytest.mark.parametrize(
    ("directives", "cluster", "size"),
    [
        (".reqnctapercluster 2, 1, 1", 1, 2),
        (".explicitcluster .reqnctapercluster 2", 2, 2),
        (".explicitcluster .maxclusterrank 4", 4, 4),
        (".maxclusterrank 4", 2, 2),
    ],
)
def test_kernels_say_what_clusters_they_take(board: Board, directives: str, cluster: int, size: int) -> None:
    out = board.empty(4 * 8)
    function = board.ptx_function(size_ptx(directives), "size")
    board.launch(function, line(8, 32, cluster=(cluster, 1, 1)), out)
    assert (board.get(out, 8) == size).all()
    required = board.driver.function_get_attribute(function, FunctionAttribute.REQUIRED_CLUSTER_WIDTH)
    assert required == (2 if ".reqnctapercluster" in directives else 0)


@pytest.mark.parametrize(
    ("result", "directives", "cluster", "grid"),
    [
        ("INVALID_CLUSTER_SIZE", "", (3, 1, 1), 32),
        ("INVALID_CLUSTER_SIZE", "", (1, 2, 1), 32),
        ("INVALID_CLUSTER_SIZE", "", (0, 1, 1), 32),
        ("INVALID_CLUSTER_SIZE", "", (16, 1, 1), 32),
        ("INVALID_CLUSTER_SIZE", "", (32, 1, 1), 32),
        ("INVALID_CLUSTER_SIZE", ".reqnctapercluster 2", (1, 1, 1), 33),
        ("INVALID_CLUSTER_SIZE", ".reqnctapercluster 2", (4, 1, 1), 32),
        ("INVALID_CLUSTER_SIZE", ".maxclusterrank 2", (4, 1, 1), 32),
        ("INVALID_CLUSTER_SIZE", ".explicitcluster", (1, 1, 1), 32),
    ],
)
def test_clusters_that_are_refused(
    board: Board, result: str, directives: str, cluster: tuple[int, int, int], grid: int
) -> None:
    function, out = board.ptx_function(size_ptx(directives), "size"), board.empty(4 * grid)
    fails_with(result, lambda: board.launch(function, line(grid, 32, cluster=cluster), out))
    board.launch(board.ptx_function(size_ptx(""), "size"), line(grid, 32), out)
    assert (board.get(out, grid) == 1).all(), "a refused launch breaks nothing"


@pytest.mark.parametrize(("threads", "resident"), [(1024, 2), (32, 8)])
def test_occupancy_of_clusters(board: Board, threads: int, resident: int) -> None:
    """``resident`` blocks of a cluster lie on a multiprocessor. How many clusters fit is up to a board's groups."""
    driver = board.driver
    function = board.ptx_function(size_ptx(""), "size")
    driver.function_set_attribute(function, FunctionAttribute.NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
    blocks = resident * driver.device_attribute(0, DeviceAttribute.MULTIPROCESSOR_COUNT)

    def clusters(size: int) -> int:
        return driver.occupancy_max_active_clusters(function, line(240 * size, threads, cluster=(size, 1, 1)))

    assert clusters(1) == 0
    assert clusters(2) == blocks // 2
    for size in (3, 4, 5, 6, 7, 8, 16):
        assert 0.8 * blocks <= clusters(size) * size <= blocks, size


def test_the_largest_cluster(board: Board) -> None:
    driver = board.driver

    def potential(directives: str, large: int = 0, **geometry: Any) -> int:
        function = board.ptx_function(size_ptx(directives), "size")
        driver.function_set_attribute(function, FunctionAttribute.NON_PORTABLE_CLUSTER_SIZE_ALLOWED, large)
        return driver.occupancy_max_potential_cluster_size(function, line(240, 1024, **geometry))

    assert potential("") == potential("", cluster=(2, 1, 1)) == 8
    assert potential("", large=1) == 16
    assert potential(".maxclusterrank 2") == potential(".reqnctapercluster 2") == 8
    fails_with("INVALID_CLUSTER_SIZE", lambda: potential(".reqnctapercluster 2, 2"))
    fails_with("INVALID_CLUSTER_SIZE", lambda: potential(".explicitcluster"))


@pytest.mark.parametrize("is_captured", [False, True])
def test_a_dependent_launch_sees_what_the_first_has_written(
    board: Board, rng: np.random.Generator, is_captured: bool
) -> None:
    driver, stream = board.driver, board.driver.stream_create()
    x = rng.integers(0, 1000, 8 * 128, dtype=np.uint32)
    on_device, out = board.put(x), board.empty(x.nbytes)
    first, second = (board.function(DEPENDENT, name) for name in ("first", "second"))
    if is_captured:
        driver.stream_begin_capture(stream)
    board.launch(first, line(8, 128), on_device, stream=stream)
    board.launch(second, line(8, 128, programmatic_serialization=True), on_device, out, stream=stream)
    if is_captured:
        driver.graph_launch(driver.graph_instantiate(driver.stream_end_capture(stream)), stream)
    np.testing.assert_array_equal(board.get(out, x.size), 3 * (x + 7)[::-1])


def test_a_dependent_node_waits_for_the_end_of_the_first(board: Board, rng: np.random.Generator) -> None:
    driver, graph = board.driver, board.driver.graph_create()
    x = rng.integers(0, 1000, 8 * 128, dtype=np.uint32)
    on_device, out = board.put(x), board.empty(x.nbytes)
    first, second = (board.function(DEPENDENT, name) for name in ("first", "second"))
    given, both = Arguments(on_device), Arguments(on_device, out)
    node = driver.graph_add_kernel_node(graph, (), first, line(8, 128), given.address)
    dependent = line(8, 128, programmatic_serialization=True)
    driver.graph_add_kernel_node(graph, (node,), second, dependent, both.address)
    driver.graph_launch(driver.graph_instantiate(graph), 0)
    np.testing.assert_array_equal(board.get(out, x.size), 3 * (x + 7)[::-1])


def test_cooperative_blocks_meet(board: Board) -> None:
    function = board.function(MEET, "meet")
    counter, out = board.put(np.zeros(1, np.uint32)), board.empty(4 * 64)
    board.launch(function, line(64, 32, cooperative=True), counter, out)
    assert (board.get(out, 64) == 64).all()


@pytest.mark.parametrize("as_graph", [False, True])
def test_a_cooperative_grid_has_a_barrier(board: Board, as_graph: bool) -> None:
    """Launched twice: the barrier needs no clearing, whatever memory the kernel is given."""
    driver, config = board.driver, line(24, 64, cooperative=True)
    function = board.function(ROUNDS, "rounds", ("include/ptx/grid_barrier.cuh", "include/numeric.cuh"))
    slots, out = board.empty(4 * 3 * 24), board.empty(4 * 24)
    if as_graph:
        graph, parameters = driver.graph_create(), Arguments(slots, out)
        driver.graph_add_kernel_node(graph, (), function, config, parameters.address)
        replayed = driver.graph_instantiate(graph)
    for _ in range(2):
        driver.memset_d32_async(out, 0, 24, 0)
        if as_graph:
            driver.graph_launch(replayed, 0)
        else:
            board.launch(function, config, slots, out)
        assert board.get(out, 24).tolist() == [300 + 3 * ((block + 1) % 24) for block in range(24)]


def test_a_cooperative_grid_must_fit(board: Board) -> None:
    function = board.function(ADD, "add")
    per_multiprocessor = board.driver.occupancy_max_active_blocks(function, 1024, 0)
    fits = per_multiprocessor * board.driver.device_attribute(0, DeviceAttribute.MULTIPROCESSOR_COUNT)
    x = board.put(np.zeros(1024, np.uint32))

    def launch(grid: int) -> None:
        board.launch(function, line(grid, 1024, cooperative=True), x, np.uint32(0))

    launch(fits)
    fails_with("COOPERATIVE_LAUNCH_TOO_LARGE", lambda: launch(fits + 1))


@pytest.mark.parametrize(
    ("result", "config"),
    [
        ("INVALID_VALUE", LaunchConfig((0, 1, 1), (32, 1, 1))),
        ("INVALID_VALUE", LaunchConfig((1, 65536, 1), (32, 1, 1))),
        ("INVALID_VALUE", LaunchConfig((1, 1, 1), (1025, 1, 1))),
        ("INVALID_VALUE", LaunchConfig((1, 1, 1), (1, 1, 65))),
        ("INVALID_VALUE", LaunchConfig((1, 1, 1), (32, 1, 1), 49153)),
    ],
)
def test_geometry_that_is_refused(board: Board, result: str, config: LaunchConfig) -> None:
    x = board.put(np.zeros(1024, np.uint32))
    fails_with(result, lambda: board.launch(board.function(ADD, "add"), config, x, np.uint32(0)))


@pytest.mark.parametrize("limit", [".maxntid 64", ".reqntid 64"])
def test_more_threads_than_the_kernel_allows(board: Board, limit: str) -> None:
    function, out = board.ptx_function(size_ptx(limit), "size"), board.empty(4)
    board.launch(function, line(1, 64), out)
    fails_with("INVALID_VALUE", lambda: board.launch(function, line(1, 128), out))
