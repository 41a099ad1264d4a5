"""Plans in the hands of a program: choosing, storing, other shapes, CUDA graphs, building without a device."""

from __future__ import annotations

import ctypes
from typing import Any

import cudnn
import numpy as np
import pytest

from tests.cudnn_frontend.data import Array, check_close, check_exact, integers, normal, wide
from tests.cudnn_frontend.program import FALLBACKS, VERSION, Program, Session, dense_strides

A, B, C = 1, 2, 3


def product(session: Session, m: int, n: int, k: int, **options: Any) -> tuple[Program, Array, Array]:
    """c = relu(a b) with uids A, B and C, and its operands."""
    a, b = integers(1, m, k), integers(1, k, n)
    program = session.program(**options)
    g = program.graph
    left, right = program.input(a, uid=A, name="a"), program.input(b, uid=B, name="b")
    program.output(g.relu(g.matmul(left, right), name="c"), np.float16).set_uid(C)
    return program, a, b


def expected_of(a: Array, b: Array) -> Array:
    return np.maximum(wide(a) @ wide(b), 0)


def execute(session: Session, graph: Any, a: Array, b: Array, **options: Any) -> Array:
    """The result of a graph with the uids of ``product``."""
    cudart = session.cudart
    c = cudart.put(np.full(a.shape[1] * b.shape[2], np.nan, np.float16))
    workspace = cudart.put(np.zeros(max(graph.get_workspace_size(), 1), np.uint8))
    graph.execute({A: cudart.put(a), B: cudart.put(b), C: c}, workspace, handle=session.handle, **options)
    return cudart.get(c, (1, a.shape[1], b.shape[2]), np.float16)


def test_every_plan_of_the_heuristics(session: Session) -> None:
    program, a, b = product(session, 64, 64, 32)
    g = program.graph
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans(FALLBACKS)
    g.check_support()
    count = g.get_execution_plan_count()
    assert count >= 2
    g.build_plans(cudnn.build_plan_policy.ALL)
    program.allocate()
    names = set()
    for index in range(0, count, max(count // 6, 1)):
        session.cudart.call("cudaMemset", program.pack[program.outputs[0]], 0xFF, 64 * 64 * 2)
        workspace = session.cudart.put(np.zeros(max(g.get_workspace_size_plan_at_index(index), 1), np.uint8))
        g.execute_plan_at_index(program.pack, workspace, index, handle=session.handle)
        check_exact(program.results()[0], expected_of(a, b))
        names.add(g.get_plan_name_at_index(index))
        assert isinstance(g.get_behavior_notes_for_plan_at_index(index), list)
    assert len(names) > 1


def test_notes_choose_plans(session: Session) -> None:
    """Notes leave out tensor cores, and then every engine."""
    program, a, b = product(session, 32, 32, 32)
    g = program.graph
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans(FALLBACKS)
    g.deselect_numeric_notes([cudnn.numerical_note.TENSOR_CORE])
    g.deselect_workspace_greater_than(1 << 20)
    g.check_support()
    g.build_plans()
    program.allocate()
    g.execute(program.pack, program.workspace(), handle=session.handle)
    check_exact(program.results()[0], expected_of(a, b))
    program, _, _ = product(session, 32, 32, 32)
    g = program.graph
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([cudnn.heur_mode.A])
    g.select_numeric_notes([cudnn.numerical_note.STRICT_NAN_PROP, cudnn.numerical_note.WINOGRAD])
    with pytest.raises((cudnn.cudnnGraphNotSupportedError, RuntimeError)):
        g.check_support()


def test_a_graph_that_cannot_be(session: Session) -> None:
    """The message names the field, the rule and the value."""
    program = session.program()
    program.output(
        program.graph.matmul(program.input(integers(1, 8, 16)), program.input(integers(1, 24, 8))), np.float16
    )
    with pytest.raises((cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError), match=r"matmul|MATMUL"):
        program.build()


def test_a_stored_graph(session: Session) -> None:
    """Another handle's graph knows nothing but the text."""
    program, a, b = product(session, 40, 24, 32)
    program.build()
    stored = program.graph.serialize()
    other = cudnn.create_handle()
    graph = cudnn.pygraph(handle=other)
    graph.deserialize(other, stored)
    check_exact(execute(session, graph, a, b), expected_of(a, b))
    cudnn.destroy_handle(other)


def test_a_kernel_cache(session: Session) -> None:
    """Graphs of other extents share kernels; the cache goes through its text."""
    cache = cudnn.create_kernel_cache()
    for m in (16, 40, 64):
        program, a, b = product(session, m, 32, 32, kernel_cache=cache, is_dynamic_shape_enabled=True)
        check_exact(program.run()[0], expected_of(a, b))
    text = cache.serialize()
    again = cudnn.create_kernel_cache()
    again.deserialize(text)
    program, a, b = product(session, 24, 32, 32, kernel_cache=again, is_dynamic_shape_enabled=True)
    check_exact(program.run()[0], expected_of(a, b))


@pytest.mark.skipif(VERSION < (1, 24), reason="this wheel's execute drops the overriding shapes")
def test_other_shapes_at_execution(session: Session) -> None:
    program, _, _ = product(session, 64, 32, 32, is_override_shape_enabled=True)
    program.build()
    for m in (64, 24, 7):
        a, b = integers(1, m, 32), integers(1, 32, 32)
        shapes = [[1, m, 32], [1, 32, 32], [1, m, 32]]
        overriding = {
            "override_uids": [A, B, C],
            "override_shapes": shapes,
            "override_strides": [dense_strides(shape) for shape in shapes],
        }
        check_exact(execute(session, program.graph, a, b, **overriding), expected_of(a, b))


def test_without_a_device(session: Session) -> None:
    """A graph is built for a device whose properties are only a text, and executed on the device."""
    properties = cudnn.create_device_properties(cudnn.create_device_properties(0).serialize())
    program, a, b = product(session, 32, 40, 48, handle=None, device_property=properties)
    program.build()
    graph = cudnn.pygraph(handle=session.handle)
    graph.deserialize(session.handle, program.graph.serialize())
    check_exact(execute(session, graph, a, b), expected_of(a, b))


def native(handle: Any) -> int:
    """The cudnnHandle_t of a handle of cudnn-frontend."""
    return int(getattr(handle, "backend_handle", handle))


def test_a_cuda_graph_of_nodes(session: Session) -> None:
    """The graph is launched, given other addresses, launched again; the first instance keeps the first ones."""
    program, a, b = product(session, 48, 32, 32)
    program.build()
    cudart, g = session.cudart, program.graph
    graph = cudart.output("cudaGraphCreate", 0)
    outputs = [cudart.put(np.full((1, 48, 32), np.nan, np.float16)) for _ in range(2)]
    packs = [{A: cudart.put(sign * a), B: cudart.put(b), C: c} for sign, c in zip((1, -1), outputs, strict=True)]
    workspace = program.workspace()
    handle = session.handle if VERSION >= (1, 24) else native(session.handle)
    g.populate_cuda_graph(handle, packs[0], workspace, graph)
    first = cudart.output("cudaGraphInstantiate", graph, 0)
    g.update_cuda_graph(handle, packs[1], workspace, graph)
    second = cudart.output("cudaGraphInstantiate", graph, 0)
    for instance, output, sign in ((second, outputs[1], -1), (first, outputs[0], 1)):
        assert np.isnan(cudart.get(output, (1, 48, 32), np.float16)).all()
        cudart.call("cudaGraphLaunch", instance, 0)
        check_exact(cudart.get(output, (1, 48, 32), np.float16), expected_of(sign * a, b))
    cudart.call("cudaGraphDestroy", graph)


def test_a_captured_execution(session: Session) -> None:
    program, a, b = product(session, 32, 32, 64)
    program.build()
    program.allocate()
    workspace = program.workspace()
    cudart, stream, graph = session.cudart, session.cudart.output("cudaStreamCreate"), ctypes.c_void_p()
    cudnn.set_stream(handle=session.handle, stream=stream)
    cudart.call("cudaStreamBeginCapture", stream, 0)
    program.graph.execute(program.pack, workspace, handle=session.handle)
    cudart.call("cudaStreamEndCapture", stream, ctypes.byref(graph))
    cudnn.set_stream(handle=session.handle, stream=0)
    assert np.isnan(program.results()[0]).all()
    cudart.call("cudaGraphLaunch", cudart.output("cudaGraphInstantiate", graph, 0), stream)
    check_exact(program.results()[0], expected_of(a, b))


@pytest.mark.skipif(VERSION < (1, 24), reason="this wheel was built for a cuDNN without them")
def test_constants_of_the_graph(session: Session) -> None:
    """One that the plan holds, and one that travels with each execution."""
    x = normal(1, 8, 32, dtype=np.float32)
    program = session.program()
    g = program.graph
    constants = [
        g.tensor_scalar(value, kind).set_dim([1, 1, 1]).set_stride([1, 1, 1])
        for value, kind in ((3.0, cudnn.scalar_type.COMPILE_TIME_CONST), (0.25, cudnn.scalar_type.RUNTIME_PARAM))
    ]
    program.output(g.add(g.mul(program.input(x), constants[0]), constants[1]), np.float32)
    check_close(program.run()[0], wide(x) * 3 + 0.25, 1e-6)
