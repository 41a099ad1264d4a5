"""Graphs, captures, events and stream-ordered memory, on the emulated device and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from lowdnn.driver.base import CaptureMode, EventFlags
from tests.driver.board import ADD, Arguments, Board, fails_with, line

WARP = line(1, 32)
Nodes = Sequence[tuple[str, int, int]]
NOTHING_PTX = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }"


def graph_of(board: Board, x: int, nodes: Nodes) -> tuple[int, list[int]]:
    """A graph of (kernel, number, how many nodes before it it depends on), and its nodes."""
    graph = board.driver.graph_create()
    added: list[int] = []
    for name, number, count in nodes:
        arguments = Arguments(x, np.uint32(number))
        before = added[len(added) - count :]
        function = board.function(ADD, name)
        added.append(board.driver.graph_add_kernel_node(graph, before, function, WARP, arguments.address))
    return graph, added


def test_nodes_run_in_the_order_of_their_dependencies(board: Board) -> None:
    x = board.put(np.arange(32, dtype=np.uint32))
    graph, _ = graph_of(board, x, [("add", 1, 0), ("scale", 10, 1), ("add", 5, 1)])
    executable = board.driver.graph_instantiate(graph)
    board.driver.graph_destroy(graph)
    board.driver.graph_launch(executable, 0)
    board.driver.graph_launch(executable, 0)
    once = (np.arange(32) + 1) * 10 + 5
    np.testing.assert_array_equal(board.get(x, 32), (once + 1) * 10 + 5)
    board.driver.graph_exec_destroy(executable)


def test_a_node_depends_on_another_once(board: Board) -> None:
    x = board.put(np.zeros(32, np.uint32))
    graph, (node,) = graph_of(board, x, [("add", 1, 0)])
    function, arguments = board.function(ADD, "add"), Arguments(x, np.uint32(1))
    add = board.driver.graph_add_kernel_node
    fails_with("INVALID_VALUE", lambda: add(graph, (node, node), function, WARP, arguments.address))
    fails_with("INVALID_VALUE", lambda: add(graph, (), function, line(0, 32), arguments.address))


def test_a_node_of_an_executable_takes_other_parameters(board: Board) -> None:
    x, y = (board.put(np.zeros(32, np.uint32)) for _ in range(2))
    graph, nodes = graph_of(board, x, [("add", 1, 0), ("add", 2, 1)])
    executable = board.driver.graph_instantiate(graph)
    fives = Arguments(y, np.uint32(5))
    half = line(1, 16)
    board.driver.graph_exec_kernel_node_set_params(
        executable, nodes[1], board.function(ADD, "add"), half, fives.address
    )
    board.driver.graph_launch(executable, 0)
    assert board.get(x, 32).tolist() == [1] * 32
    assert board.get(y, 32).tolist() == [5] * 16 + [0] * 16


def test_a_node_of_a_graph_takes_other_parameters(board: Board) -> None:
    """Graphs that were instantiated before keep what they have."""
    x, y = (board.put(np.zeros(32, np.uint32)) for _ in range(2))
    graph, nodes = graph_of(board, x, [("add", 1, 0), ("add", 2, 1)])
    before = board.driver.graph_instantiate(graph)
    fives = Arguments(y, np.uint32(5))
    board.driver.graph_kernel_node_set_params(graph, nodes[1], board.function(ADD, "add"), line(1, 16), fives.address)
    for executable, expected in ((before, (3, 0)), (board.driver.graph_instantiate(graph), (4, 5))):
        board.driver.graph_launch(executable, 0)
        assert (board.get(x, 32)[0], board.get(y, 32)[0]) == expected
    assert board.get(y, 32).tolist() == [5] * 16 + [0] * 16


def test_nodes_are_told_in_their_order(board: Board) -> None:
    x = board.put(np.zeros(32, np.uint32))
    graph, nodes = graph_of(board, x, [("add", 1, 0), ("add", 2, 1), ("add", 3, 0), ("add", 4, 2)])
    told = board.driver.graph_nodes(graph)
    assert sorted(told) == sorted(nodes)
    assert told.index(nodes[0]) < told.index(nodes[1]) < told.index(nodes[3]) > told.index(nodes[2])
    assert board.driver.graph_nodes(board.driver.graph_create()) == ()


def test_an_executable_takes_over_a_like_graph(board: Board) -> None:
    x = board.put(np.zeros(32, np.uint32))
    first, _ = graph_of(board, x, [("add", 1, 0), ("scale", 2, 1)])
    second, _ = graph_of(board, x, [("add", 10, 0), ("scale", 7, 1)])
    executable = board.driver.graph_instantiate(first)
    board.driver.graph_exec_update(executable, second)
    board.driver.graph_launch(executable, 0)
    assert board.get(x, 32).tolist() == [70] * 32


@pytest.mark.parametrize(
    "other",
    [[], [("add", 1, 0)], [("add", 1, 0), ("add", 2, 0)], [("add", 1, 0), ("add", 2, 1), ("add", 3, 1)]],
    ids=["empty", "fewer", "forked", "more"],
)
def test_an_executable_refuses_an_unlike_graph(board: Board, other: Nodes) -> None:
    x = board.put(np.zeros(32, np.uint32))
    graph, _ = graph_of(board, x, [("add", 1, 0), ("add", 2, 1)])
    executable = board.driver.graph_instantiate(graph)
    unlike, _ = graph_of(board, x, other)
    error = fails_with("GRAPH_EXEC_UPDATE_FAILURE", lambda: board.driver.graph_exec_update(executable, unlike))
    assert error.result == 910
    board.driver.graph_launch(executable, 0)
    assert board.get(x, 32).tolist() == [3] * 32


def captured(board: Board, stream: int, x: int, number: int, fill: bool = False) -> int:
    """A graph of a capture of ``stream``: add the number on it, then scale by 2 (or fill with 9) on a stream that
    joins, then add 1 on the first one."""
    driver = board.driver
    joined, fork, join = driver.stream_create(), driver.event_create(), driver.event_create()
    add, scale = board.function(ADD, "add"), board.function(ADD, "scale")
    driver.stream_begin_capture(stream)
    board.launch(add, WARP, x, np.uint32(number), stream=stream)
    driver.event_record(fork, stream)
    driver.stream_wait_event(joined, fork)
    assert driver.stream_is_capturing(joined)
    if fill:
        driver.memset_d32_async(x, 9, 32, joined)
    else:
        board.launch(scale, WARP, x, np.uint32(2), stream=joined)
    driver.event_record(join, joined)
    driver.stream_wait_event(stream, join)
    board.launch(add, WARP, x, np.uint32(1), stream=stream)
    graph = driver.stream_end_capture(stream)
    assert not driver.stream_is_capturing(joined)
    driver.stream_destroy(joined)
    return graph


def test_a_capture_becomes_a_graph_that_another_capture_updates(board: Board) -> None:
    driver = board.driver
    x, stream = board.put(np.zeros(32, np.uint32)), driver.stream_create()
    graph = captured(board, stream, x, 3)
    assert board.get(x, 32).tolist() == [0] * 32
    executable = driver.graph_instantiate(graph)
    driver.graph_launch(executable, stream)
    assert board.get(x, 32).tolist() == [7] * 32
    driver.graph_exec_update(executable, captured(board, stream, x, 10))
    driver.graph_launch(executable, stream)
    assert board.get(x, 32).tolist() == [35] * 32
    other = captured(board, stream, x, 10, fill=True)
    fails_with("GRAPH_EXEC_UPDATE_FAILURE", lambda: driver.graph_exec_update(executable, other))
    driver.stream_destroy(stream)


def calls(board: Board, stream: int) -> dict[str, Callable[[], object]]:
    """Calls that a capture of ``stream`` may not like."""
    driver = board.driver
    other, before = driver.stream_create(), driver.event_create()
    driver.event_record(before, other)
    empty = driver.graph_create()
    executable = driver.graph_instantiate(empty)
    module = driver.module_load_data(NOTHING_PTX)
    scratch = board.empty(4)
    return {
        "mem_alloc": lambda: driver.mem_free(driver.mem_alloc(16)),
        "mem_free": lambda: driver.mem_free(0),
        "mem_alloc_async elsewhere": lambda: driver.mem_free_async(driver.mem_alloc_async(16, other), other),
        "context_synchronize": driver.context_synchronize,
        "stream_synchronize": lambda: driver.stream_synchronize(stream),
        "stream_query": lambda: driver.stream_query(stream),
        "stream_synchronize elsewhere": lambda: driver.stream_synchronize(other),
        "stream_query elsewhere": lambda: driver.stream_query(other),
        "event_query elsewhere": lambda: driver.event_query(before),
        "event_synchronize elsewhere": lambda: driver.event_synchronize(before),
        "module_load_data": lambda: driver.module_load_data(NOTHING_PTX),
        "module_unload": lambda: driver.module_unload(module),
        "graph_instantiate": lambda: driver.graph_instantiate(empty),
        "graph_launch": lambda: driver.graph_launch(executable, stream),
        "memset elsewhere": lambda: driver.memset_d32_async(scratch, 1, 1, other),
    }


#: Calls that break a capture of any mode, of a mode that is not relaxed, and none.
ALWAYS = ("context_synchronize", "stream_synchronize", "stream_query", "graph_launch")
STRICT = (
    "mem_alloc",
    "mem_free",
    "mem_alloc_async elsewhere",
    "stream_synchronize elsewhere",
    "stream_query elsewhere",
    "event_query elsewhere",
    "event_synchronize elsewhere",
    "module_unload",
    "graph_instantiate",
)
NEVER = ("module_load_data", "memset elsewhere")


@pytest.mark.parametrize("mode", CaptureMode)
@pytest.mark.parametrize("name", [*ALWAYS, *STRICT, *NEVER])
def test_calls_that_break_a_capture(board: Board, name: str, mode: CaptureMode) -> None:
    driver = board.driver
    stream = driver.stream_create()
    call = calls(board, stream)[name]
    driver.stream_begin_capture(stream, mode)
    if name in ALWAYS or (name in STRICT and mode is not CaptureMode.RELAXED):
        fails_with("STREAM_CAPTURE_UNSUPPORTED", call)
        fails_with("STREAM_CAPTURE_INVALIDATED", lambda: driver.stream_end_capture(stream))
    else:
        call()
        driver.graph_destroy(driver.stream_end_capture(stream))
    assert not driver.stream_is_capturing(stream)


def test_captures_that_cannot_begin_or_end(board: Board) -> None:
    driver = board.driver
    stream = driver.stream_create()
    for legacy in (0, 1):
        fails_with("STREAM_CAPTURE_UNSUPPORTED", lambda legacy=legacy: driver.stream_begin_capture(legacy))
    fails_with("ILLEGAL_STATE", lambda: driver.stream_end_capture(stream))
    driver.stream_begin_capture(stream)
    fails_with("ILLEGAL_STATE", lambda: driver.stream_begin_capture(stream))
    driver.graph_destroy(driver.stream_end_capture(stream))


@pytest.mark.parametrize("has_work", [False, True])
def test_a_capture_ends_when_its_streams_have_joined(board: Board, has_work: bool) -> None:
    driver, x = board.driver, board.put(np.zeros(32, np.uint32))
    stream, forked, event = driver.stream_create(), driver.stream_create(), driver.event_create()
    driver.stream_begin_capture(stream)
    driver.event_record(event, stream)
    driver.stream_wait_event(forked, event)
    if has_work:
        driver.memset_d32_async(x, 1, 32, forked)
        fails_with("STREAM_CAPTURE_UNJOINED", lambda: driver.stream_end_capture(stream))
    else:
        driver.graph_destroy(driver.stream_end_capture(stream))
    assert not driver.stream_is_capturing(forked)


def test_events_of_a_capture_tell_nothing(board: Board) -> None:
    driver = board.driver
    stream, event = driver.stream_create(), driver.event_create()
    for ask in (driver.event_query, driver.event_synchronize):
        driver.stream_begin_capture(stream, CaptureMode.RELAXED)
        driver.event_record(event, stream)
        fails_with("CAPTURED_EVENT", lambda: driver.event_elapsed_ms(event, event))
        fails_with("CAPTURED_EVENT", lambda ask=ask: ask(event))
        fails_with("STREAM_CAPTURE_INVALIDATED", lambda: driver.stream_end_capture(stream))
        fails_with("INVALID_VALUE", lambda ask=ask: ask(event))
    fails_with("INVALID_VALUE", lambda: driver.event_elapsed_ms(event, event))
    fails_with("INVALID_VALUE", lambda: driver.stream_wait_event(stream, event))
    driver.event_record(event, stream)
    driver.event_synchronize(event)
    assert driver.event_query(event)


def test_events_measure_the_work_between_them(board: Board) -> None:
    driver = board.driver
    x, function = board.put(np.zeros(32, np.uint32)), board.function(ADD, "add")
    stream, start, end = driver.stream_create(), driver.event_create(), driver.event_create()
    untimed = driver.event_create(EventFlags.DISABLE_TIMING)
    fails_with("INVALID_HANDLE", lambda: driver.event_elapsed_ms(start, end))
    for event in (untimed, start):
        driver.event_record(event, stream)
    board.launch(function, WARP, x, np.uint32(1), stream=stream)
    driver.event_record(end, stream)
    driver.event_synchronize(end)
    assert 0 < driver.event_elapsed_ms(start, end) < 100
    assert driver.event_elapsed_ms(end, start) == -driver.event_elapsed_ms(start, end)
    fails_with("INVALID_HANDLE", lambda: driver.event_elapsed_ms(untimed, end))
    driver.event_destroy(end)


def test_memory_passes_from_stream_to_stream(board: Board) -> None:
    """Allocated on one stream, used on another after an event, freed on the first after another event."""
    driver = board.driver
    function, out = board.function(ADD, "add"), board.empty(128)
    first, second = driver.stream_create(), driver.stream_create()
    filled, used = driver.event_create(), driver.event_create()
    for round_ in range(20):
        x = driver.mem_alloc_async(128, first, "passed")
        driver.memset_d32_async(x, round_, 32, first)
        driver.event_record(filled, first)
        driver.stream_wait_event(second, filled)
        board.launch(function, WARP, x, np.uint32(100), stream=second)
        driver.memcpy_dtod_async(out, x, 128, second)
        driver.event_record(used, second)
        driver.stream_wait_event(first, used)
        driver.mem_free_async(x, first)
    assert board.get(out, 32).tolist() == [119] * 32
    driver.stream_destroy(first)
    driver.stream_destroy(second)


def test_freeing_what_is_not_allocated(board: Board) -> None:
    driver = board.driver
    x = driver.mem_alloc_async(128, 0)
    driver.mem_free_async(x, 0)
    fails_with("INVALID_VALUE", lambda: driver.mem_free_async(x, 0))
    assert driver.mem_alloc_async(0, 0) == 0
    driver.mem_free_async(0, 0)
    fails_with("INVALID_VALUE", lambda: driver.mem_alloc(0))
    driver.mem_free(0)
