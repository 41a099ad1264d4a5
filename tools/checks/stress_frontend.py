"""Random calls of the frontend: graphs written, planned, built, executed, stored and read back in any order."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

import numpy as np

import lowdnn.frontend as cudnn
from lowdnn.frontend import Tensor, pygraph
from lowdnn.runtime.stream import Stream
from lowdnn.status import LowdnnError
from tools.checks.stress_handles import Handles
from tools.checks.stress_values import Values

FLOAT = cudnn.data_type.FLOAT
_MOST_GRAPHS = 10
_MOST_TENSORS = 40
#: Methods that have steps of their own below, and are left out of random calls.
_LIFE = (
    *("build", "build_plans", "build_plan_at_index", "execute", "execute_plan_at_index", "deserialize", "serialize"),
    *("populate_cuda_graph", "update_cuda_graph", "run", "autotune"),
)
_METHODS = {
    name: inspect.signature(method)
    for name, method in inspect.getmembers(pygraph, inspect.isfunction)
    if not name.startswith("_") and name not in _LIFE
}
_SETTERS = {
    name: inspect.signature(method)
    for name, method in inspect.getmembers(Tensor, inspect.isfunction)
    if name.startswith(("set_", "get_")) or name == "lowered"
}
_PLANNING = (
    *(
        "validate",
        "build_operation_graph",
        "create_execution_plans",
        "check_support",
        "create_execution_plan",
        "explain",
    ),
    *("get_execution_plan_count", "get_plan_name_at_index", "get_workspace_size", "get_workspace_size_plan_at_index"),
    *("get_behavior_notes", "get_behavior_notes_for_plan_at_index", "get_engine_and_knobs_at_index", "key"),
    *("get_engine_count", "get_knobs_for_engine", "deselect_engines", "deselect_numeric_notes", "select_numeric_notes"),
    *("deselect_behavior_notes", "select_behavior_notes", "deselect_workspace_greater_than"),
    *("select_plan", "backend_plan_entries", "pareto_plans"),
    "query_tensor_attributes_of_uid",
)


@dataclass
class Written:
    """A graph and the tensors that calls on it gave.

    ``is_small``: it runs in a moment.  ``is_planned``: it takes no more operations.
    """

    graph: pygraph
    tensors: list[Tensor] = field(default_factory=list)
    is_small: bool = False
    is_planned: bool = False


@dataclass
class Known:
    """y = x * factor + b on one handle, whose result is known."""

    handle: cudnn.Handle
    graph: pygraph
    tensors: tuple[Tensor, ...]

    @classmethod
    def built(cls, handle: cudnn.Handle) -> Known:
        graph = pygraph("known", FLOAT, FLOAT, FLOAT, handle)
        x, b, factor = graph.tensor([4, 8]), graph.tensor([4, 8]), graph.tensor([1, 1], is_pass_by_value=True)
        y = graph.add(graph.mul(x, factor), b).set_output(True)
        graph.build()
        return cls(handle, graph, (x, b, factor, y))

    def launch(self, tensor: cudnn.DeviceTensor) -> None:
        """Executes the graph; one device tensor serves as all its inputs."""
        self.graph.execute(dict(zip(self.tensors, (tensor, tensor, 1.0, tensor), strict=True)))

    def check(self, factor: int, write: Callable[[int], Any]) -> None:
        """Raises AssertionError if a number is wrong."""
        numbers = np.arange(32, dtype=np.float32).reshape(4, 8)
        x, b, y = (cudnn.from_numpy(array, self.handle) for array in (numbers, numbers[::-1].copy(), numbers * np.nan))
        with x, b, y:
            self.graph.execute(dict(zip(self.tensors, (x, b, write(factor), y), strict=True)))
            if not np.array_equal(y.numpy(), numbers * factor + numbers[::-1]):
                raise AssertionError(f"a wrong result for factor {factor}")


class FrontendCalls:
    """``draw_call`` gives a name and a call; what succeeds is kept for later ones."""

    def __init__(self, draw: Random, handles: Handles) -> None:
        self._draw = draw
        self._handles = handles
        self._values = Values(draw)
        self._graphs: list[Written] = []
        self._texts: list[tuple[Any, Written]] = []
        self._host = np.ones(8, np.float64)
        self._known: list[Known] = []
        self._calls: tuple[tuple[int, Callable[[], object]], ...] = (
            (4, self.new_graph),
            (6, self.ready_graph),
            (15, self.tensor),
            (40, self.operation),
            (15, self.tensor_method),
            (20, self.plan),
            (6, self.build),
            (20, self.execute),
            (4, self.known_answer),
            (4, self.serialize),
            (3, self.deserialize),
            (1, self.open_or_close),
            (4, self.device_memory),
            (3, self.stream),
            (3, self.capture),
            (3, self.cuda_graph),
            (2, self.module_function),
        )

    def draw_call(self) -> tuple[str, Callable[[], object]]:
        call = self._draw.choices([call for _, call in self._calls], [weight for weight, _ in self._calls])[0]
        return f"frontend.{call.__name__}", call

    # -- graphs ---------------------------------------------------------------------------------------------
    def new_graph(self) -> None:
        arguments = self._arguments(inspect.signature(pygraph.__init__), share=0.2)
        arguments["handle"] = self._odd(self._handles.any())
        self._keep(Written(pygraph(**arguments)))

    def ready_graph(self) -> None:
        """A graph that is whole and small."""
        handle = self._handles.any()
        options = {"is_override_shape_enabled": self._draw.random() < 0.8}
        given = handle if self._draw.random() < 0.9 else None
        graph = pygraph(self._values.name(), FLOAT, FLOAT, FLOAT, given, **options)
        x, b = graph.tensor([4, 8], name="x"), graph.tensor([4, 8], name="b")
        factor = graph.tensor([1, 1], is_pass_by_value=True, name="factor")
        match self._draw.randrange(5):
            case 0:
                outputs = [graph.add(x, b)]
            case 1:
                outputs = [graph.relu(graph.mul(x, factor))]
            case 2:
                x, b = graph.tensor([1, 4, 8], name="x"), graph.tensor([1, 8, 4], name="b")
                outputs = [graph.matmul(x, b)]
            case 3:
                outputs = [graph.reduction(x, cudnn.reduction_mode.ADD).set_dim([4, 1]).set_stride([1, 1])]
            case _:
                inner = graph.add(x, factor)
                outputs = [graph.relu(inner), inner]
        for output in outputs:
            output.set_output(True).set_data_type(FLOAT)
        self._keep(Written(graph, [x, b, factor, *outputs], is_small=True))

    def tensor(self) -> None:
        written = self._written(is_planned=False)
        match self._draw.randrange(4):
            case 0:
                made = written.graph.tensor_like(self._odd(self._array()))
            case 1:
                made = written.graph.tensor_scalar(
                    self._odd(self._values.number()), self._odd(self._draw.choice(list(cudnn.scalar_type)))
                )
            case _:
                options = self._arguments(_METHODS["tensor"], share=0.2)
                made = written.graph.tensor(**options | {"dim": self._odd(self._values.dims())})
        written.tensors.append(made)

    def operation(self) -> None:
        """Any method that writes into a graph, with arguments by their annotations."""
        written = self._written(is_planned=False)
        name = self._draw.choice([name for name in _METHODS if name not in _PLANNING])
        if name in ("tensor_like",):
            return
        found = getattr(written.graph, name)(**self._arguments(_METHODS[name], share=0.25, written=written))
        written.is_small = False
        made = found if isinstance(found, (tuple, list)) else [found]
        written.tensors += [tensor for tensor in made if isinstance(tensor, Tensor)]
        del written.tensors[:-_MOST_TENSORS]
        for tensor in made:
            if isinstance(tensor, Tensor) and self._draw.random() < 0.4:
                tensor.set_output(True)

    def tensor_method(self) -> None:
        written = self._written()
        if not written.tensors:
            return
        name = self._draw.choice(list(_SETTERS))
        getattr(self._draw.choice(written.tensors), name)(**self._arguments(_SETTERS[name], share=1, written=written))
        written.is_small &= not name.startswith("set_")

    def plan(self) -> None:
        written = self._written()
        written.is_planned = True
        name = self._draw.choice(_PLANNING[:4]) if self._draw.random() < 0.6 else self._draw.choice(_PLANNING)
        getattr(written.graph, name)(**self._arguments(_METHODS[name], share=0.3))

    def build(self) -> None:
        """Builds a small graph, seldom a larger one, whose kernels must be compiled."""
        written = self._written()
        if not written.is_small and self._draw.random() < 0.97:
            return
        written.is_planned = True
        match self._draw.randrange(4):
            case 0:
                written.graph.build_plan_at_index(self._draw.choice((0, 0, 1, -1, self._values.garbage())))
            case 1:
                written.graph.build_plans()
            case _:
                written.graph.build(self._odd(None))

    def execute(self) -> None:
        """Executes a graph; tensors have the right sizes, some are missing, extra, freed, of other types or devices."""
        small = [written for written in self._graphs if written.is_small]
        if not small:
            return
        written, handle = self._draw.choice(small), self._handles.any()
        values: dict[Any, Any] = {
            self._key(tensor): self._value(tensor, handle)
            for tensor in written.tensors
            if tensor.get_dim() and self._draw.random() < 0.98
        }
        if self._draw.random() < 0.15:
            values[self._draw.choice((None, 77, "nothing", 1.5, self._any_tensor()))] = self._values.garbage()
        workspace = self._odd(None if self._draw.random() < 0.5 else self._handles.tensor((64,), handle=handle))
        try:
            if self._draw.random() < 0.1:
                written.graph.execute_plan_at_index(values, workspace, self._draw.choice((0, 0, 1, 9)), handle)
            elif self._draw.random() < 0.1:
                written.graph.execute(list(values.values()), workspace, handle, tensor_uids=self._odd([1, 2, 3]))
            elif self._draw.random() < 0.1:
                rows = self._draw.choice((0, 1, 3, 4, 9))
                shapes, strides = self._odd([(rows, 8)] * 3), self._odd([(8, 1)] * 3)
                written.graph.execute(values, workspace, handle, self._odd([1, 2, 3]), shapes, strides)
            else:
                written.graph.execute(values, workspace, self._odd(handle if self._draw.random() < 0.8 else None))
        finally:
            self._handles.replace_broken()

    def known_answer(self) -> None:
        """Whatever has failed before, a right graph gives the right numbers on every open handle."""
        known = self._known_on(self._handles.usable())
        write = self._draw.choice((float, np.float32, lambda value: np.full(1, value)))
        try:
            known.check(self._draw.randint(-9, 9), write)
        except LowdnnError as error:
            raise AssertionError(f"a right call failed: {error}") from error

    def serialize(self) -> None:
        """Writes a graph, often one that is built just now."""
        small = [written for written in self._graphs if written.is_small]
        written = self._written(is_planned=True)
        if small and self._draw.random() < 0.5:
            written = self._draw.choice(small)
            written.graph.build()
        self._texts.append((written.graph.serialize(as_bytes=self._draw.random() < 0.5), written))
        del self._texts[:-_MOST_GRAPHS]

    def deserialize(self) -> None:
        """Reads an earlier document, now and then with a wrong character, into a graph with the first one's tensors."""
        text, written = self._draw.choice(self._texts or [(self._values.garbage(), Written(pygraph()))])
        if self._draw.random() < 0.3 and isinstance(text, str) and text:
            place = self._draw.randrange(len(text))
            text = text[:place] + self._draw.choice('0"}{[-9,:') + text[place + 1 :]
        graph = pygraph(handle=self._handles.any())
        graph.deserialize(*self._draw.choice(((text,), (self._odd(self._handles.any()), text), (), (text, text, text))))
        self._keep(Written(graph, list(written.tensors), written.is_small, is_planned=True))

    # -- devices --------------------------------------------------------------------------------------------
    def open_or_close(self) -> None:
        if self._draw.random() < 0.5:
            self._handles.open()
        elif self._draw.random() < 0.5:
            cudnn.destroy_handle(self._odd(self._handles.any()))
        else:
            self._handles.retire(self._handles.usable())

    def device_memory(self) -> None:
        match self._draw.randrange(5):
            case 0:
                self._handles.free_one()
            case 1:
                cudnn.from_numpy(self._odd(np.ones((2, 3))), self._odd(self._handles.any()), self._values.data_type())
            case 2:
                strides = self._odd(
                    self._draw.choice(([3, 1], [1, 2], [8, 1], [0, 1], [-3, 1], [1], [2**62, 1], [1, 1]))
                )
                cudnn.from_numpy(np.ones((2, 3), np.float32), self._handles.any(), strides=strides)
            case 3:
                self._values.one_of(self._handles.tensors or [self._handles.tensor((2, 2))]).numpy()
            case _:
                tensor = self._values.one_of(self._handles.tensors or [self._handles.tensor((2, 2))])
                tensor.copy_from(self._odd(np.ones(tensor.shape)))

    def stream(self) -> None:
        handle = self._handles.any()
        stream = self._draw.choice((0, 1, 2, self._handles.stream(), self._values.garbage()))
        try:
            cudnn.set_stream(handle, stream)
            cudnn.get_stream(handle)
            handle.synchronize()
        finally:
            if handle.is_open:
                cudnn.set_stream(handle, 0)

    def capture(self) -> None:
        """Captures a known graph, with calls in between that a capture does not allow."""
        handle = self._handles.usable()
        known, tensor = self._known_on(handle), self._handles.tensor((4, 8), handle=handle)
        with Stream.create(handle.runtime.context) as stream:
            try:
                cudnn.set_stream(handle, stream)
                if self._draw.random() < 0.9:
                    stream.begin_capture()
                wrong = (handle.synchronize, stream.begin_capture, lambda: known.check(1, float), stream.synchronize)
                if self._draw.random() < 0.3:
                    self._draw.choice(wrong)()
                known.launch(tensor)
                stream.end_capture()
            finally:
                cudnn.set_stream(handle, 0)

    def cuda_graph(self) -> None:
        """Adds a known graph to a CUDA graph, and gives its nodes their addresses again."""
        handle = self._handles.usable()
        known, tensor = self._known_on(handle), self._handles.tensor((4, 8), handle=handle)
        values = dict(zip(known.tensors, (tensor, tensor, 1.0, tensor), strict=True))
        with handle.runtime.context.activated():
            target = handle.runtime.driver.graph_create()
            try:
                known.graph.populate_cuda_graph(self._odd(handle), values, None, target)
                known.graph.update_cuda_graph(self._odd(handle), values, None, target)
            finally:
                handle.runtime.driver.graph_destroy(target)

    def module_function(self) -> None:
        match self._draw.randrange(4):
            case 0:
                cudnn.create_device_properties(
                    self._odd(self._draw.choice((self._handles.any(), '{"arch": "sm_80"}', b"{}")))
                )
            case 1:
                cudnn.set_stream(self._values.garbage(), 0)
            case 2:
                cudnn.create_handle(
                    self._draw.choice(("emulated", "nothing", 5)), arch=self._draw.choice(("sm_70", "x", 3))
                )
            case 3:
                cudnn.get_stream(self._handles.any())
            case _:
                cudnn.destroy_handle(self._values.garbage())

    def _known_on(self, handle: cudnn.Handle) -> Known:
        self._known = [known for known in self._known if known.handle.is_open]
        found = next((known for known in self._known if known.handle is handle), None)
        if found is None:
            found = Known.built(handle)
            self._known.append(found)
        return found

    # -- values ---------------------------------------------------------------------------------------------
    def _arguments(self, signature: inspect.Signature, share: float, written: Written | None = None) -> dict[str, Any]:
        """Arguments by keyword: the required ones and some of the others; seldom one is missing or too many."""
        tensors = written.tensors if written is not None else []
        others: dict[str, Callable[[], Any]] = {
            "Tensor": lambda: self._values.one_of(tensors),
            "Operand": lambda: self._values.one_of([*tensors, 2.0]),
            "Lengths": lambda: self._values.one_of(tensors),
            "ScoreModifier": lambda: lambda graph, scores: graph.relu(scores),
            "Handle": self._handles.any,
            "DeviceProperties": lambda: None,
        }
        found = {
            name: self._values.argument(str(parameter.annotation), others)
            for name, parameter in signature.parameters.items()
            if name != "self" and (parameter.default is inspect.Parameter.empty or self._draw.random() < share)
        }
        if found and self._draw.random() < 0.02:
            del found[self._draw.choice(list(found))]
        if self._draw.random() < 0.01:
            found["nothing"] = 1
        return found

    def _key(self, tensor: Tensor) -> Any:
        """A tensor's key, in one of its three forms."""
        return self._draw.choice((tensor, tensor, tensor, tensor.get_uid(), tensor.get_name() or tensor))

    def _value(self, tensor: Tensor, handle: Any) -> Any:
        """A value for a tensor. An integer for a by-value tensor must be a host address."""
        if tensor.get_is_pass_by_value():
            right = (1.0, np.float32(2), np.ones(1, np.float32), np.float64(3), int(self._host.ctypes.data))
            return self._draw.choice(right if self._draw.random() < 0.9 else (np.ones(2), None, "x", 3, object()))
        kind = self._draw.random()
        if kind < 0.02:
            return self._draw.choice((None, 0, "x", -4, 2**64, True, np.ones(4, np.float32), object()))
        if kind < 0.04 and self._handles.tensors:
            return self._draw.choice(self._handles.tensors)
        shape = tuple(tensor.get_dim())
        if kind > 0.98 or prod(map(abs, shape)) > 4096:
            shape = (3,)
        made = self._handles.tensor(shape, self._draw.choice((np.float32,) * 12 + (np.float64,)), handle)
        return self._draw.choice((made, made.ptr, made.buffer))

    def _array(self) -> Any:
        shape = tuple(self._values.dims())
        return self._draw.choice((np.ones(shape, np.float32), np.float64(1), self._handles.tensor(shape)))

    def _any_tensor(self) -> Any:
        return self._values.one_of([tensor for written in self._graphs for tensor in written.tensors])

    def _odd(self, value: Any) -> Any:
        """The value, seldom something else."""
        return self._values.garbage() if self._draw.random() < 0.03 else value

    def _written(self, is_planned: bool | None = None) -> Written:
        """One of the kept graphs, mostly one in the wanted state."""
        fitting = [written for written in self._graphs if is_planned in (None, written.is_planned)]
        if not fitting:
            fitting = [Written(pygraph(handle=self._handles.usable()))]
            self._keep(fitting[0])
        return self._draw.choice(fitting if self._draw.random() < 0.9 else self._graphs)

    def _keep(self, written: Written) -> None:
        self._graphs.append(written)
        if len(self._graphs) > _MOST_GRAPHS:
            self._graphs.pop(self._draw.randrange(len(self._graphs)))
