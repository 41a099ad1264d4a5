"""``lowdnn demo``: a fused convolution on handwritten digits, through both APIs, checked against float64."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from lowdnn.backend import Handle, execute
from lowdnn.cli import demo_backend, demo_frontend, digits
from lowdnn.enums import HeurMode
from lowdnn.graph.oracle import evaluate
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.memory import from_memory, to_memory
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.event import Event
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.workspace import Workspace

_IMAGES = 16
_SHOWN = 3
_TIMED = 10

Arrays = dict[int, NDArray[np.generic]]


def demo(arguments: argparse.Namespace) -> int:
    """Runs the demo on ``arguments.device``; 0 if both results equal the reference bit for bit, otherwise 1."""
    inputs = demo_inputs()
    with Handle.open(arguments.device) as handle:
        print(f"device     {handle.runtime.driver.device_name(0)}, {handle.arch.name}")
        print(
            f"data       {_IMAGES} handwritten digits, 8 edge filters of 3x3: relu(conv(x, w) * scale + bias) in fp16\n"
        )
        start = time.perf_counter()
        built = demo_backend.build(handle, _IMAGES, 8)
        print(f"backend descriptors: graph, heuristics and plan in {(time.perf_counter() - start) * 1e3:.1f} ms")
        graph = built.graph.value.graph
        print("engines considered:\n" + _indented(rank(graph, handle.arch, HeurMode.A, handle.engines).explain()))
        print(f"plan chosen: {built.plan.value.plan.name}, workspace {demo_backend.workspace_bytes(built)} bytes")
        expected = evaluate(graph, inputs)[demo_backend.Y]
        from_backend, device_us = _run_backend(handle, built, inputs)
        print(f"execute: {device_us:.1f} us, the mean of {_TIMED}")
        start = time.perf_counter()
        from_frontend = demo_frontend.run(handle, *(inputs[uid] for uid in _INPUT_UIDS))  # type: ignore[arg-type]
        print(f"\npygraph: built and run in {(time.perf_counter() - start) * 1e3:.1f} ms\n")
    for line in _pictures(inputs[demo_backend.X], from_backend):
        print(line)
    verdicts = {
        "backend": np.array_equal(from_backend, expected),
        "pygraph": np.array_equal(from_frontend, expected),
    }
    for name, is_equal in verdicts.items():
        print(f"{name}: {'equal to' if is_equal else 'DIFFERS from'} the float64 reference, rounded to fp16")
    return 0 if all(verdicts.values()) else 1


_INPUT_UIDS = (demo_backend.X, demo_backend.W, demo_backend.SCALE, demo_backend.BIAS)


def demo_inputs() -> Arrays:
    """The graph's inputs by uid; scale and bias are powers of two apart, so that fp32 arithmetic is exact."""
    return {
        demo_backend.X: digits.images(_IMAGES),
        demo_backend.W: digits.edge_filters(),
        demo_backend.SCALE: np.full((1, 8, 1, 1), 0.125, np.float32),
        demo_backend.BIAS: np.full((1, 8, 1, 1), -0.5, np.float32),
    }


def _run_backend(handle: Handle, built: demo_backend.BackendGraph, inputs: Arrays) -> tuple[NDArray[np.float16], float]:
    context, tensors = handle.runtime.context, built.graph.value.graph.tensors
    y = tensors[demo_backend.Y]
    with ExitStack() as stack:
        buffers: dict[int, DeviceBuffer] = {}
        for uid in (*_INPUT_UIDS, demo_backend.Y):
            buffer = DeviceBuffer.allocate(context, tensors[uid].span_bytes, label=tensors[uid].label)
            buffers[uid] = stack.enter_context(buffer)
            if uid in inputs:
                buffer.copy_from_host(to_memory(inputs[uid], tensors[uid]))
        workspace = stack.enter_context(Workspace(context, demo_backend.workspace_bytes(built)))
        stream = stack.enter_context(Stream.create(context))
        start, end = (stack.enter_context(Event.create(context)) for _ in range(2))
        handle.set_stream(stream.handle)
        pack = demo_backend.variant_pack(buffers, workspace)
        execute(handle, built.plan, pack)
        start.record(stream)
        for _ in range(_TIMED):
            execute(handle, built.plan, pack)
        end.record(stream)
        end.synchronize()
        handle.set_stream(0)
        memory = buffers[demo_backend.Y].to_host(stream).view(np.float16)
        return from_memory(memory, y), end.elapsed_ms(start) * 1e3 / _TIMED


def _pictures(images: NDArray[np.generic], features: NDArray[np.float16]) -> list[str]:
    """Some digits beside the strongest response of their edges."""
    lines: list[str] = []
    for number in range(_SHOWN):
        digit = digits.picture(images[number, 0].astype(np.float16))
        edges = digits.picture(features[number].max(axis=0))
        lines += [f"  {left}   {right}" for left, right in zip(digit, edges, strict=True)] + [""]
    return lines


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
