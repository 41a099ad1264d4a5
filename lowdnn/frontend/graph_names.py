"""The names of a graph's inputs and outputs, by which ``cudnn.Graph`` finds them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lowdnn.checks import shown
from lowdnn.frontend.calls import Call
from lowdnn.frontend.graph_nodes import output_port
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.python_graph import pygraph
from lowdnn.status import BadParamError, DuplicatedEntriesError


@dataclass
class GraphNames:
    """Tensors by name: ``inputs`` those among arguments of calls, ``outputs`` those that they returned, by the ends of
    their default names and by their ports.

    tensors: all of the graph's.  arrays: the arrays that stood for tensors when the graph was written.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    tensors: tuple[Tensor, ...]
    arrays: Mapping[Tensor, object]

    @classmethod
    def of(cls, graph: pygraph) -> GraphNames:
        """The names of a graph that is written; its arrays are taken from it."""
        inputs = {name: tensor for call in graph._calls for name, tensor in _argument_names(call)}
        made = [(call, end, tensor) for call in graph._calls for end, tensor in call.outputs.items()]
        outputs = {f"{call.name}::{end}": tensor for call, end, tensor in made}
        outputs |= {f"{call.name}::{output_port(call.method, end)}": tensor for call, end, tensor in made}
        arrays, graph._given_arrays = graph._given_arrays, {}
        return cls(inputs, outputs, tuple(graph._tensors), arrays)

    def forget_arrays(self) -> None:
        """Inputs are not found by arrays any more, so that those can be freed."""
        self.arrays = {}

    def in_order(
        self, inputs: Iterable[object], outputs: Iterable[object]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The tensors for these keys. Raises BadParamError unless they are all that execute takes, each once."""
        chosen = {
            "inputs": [self._find(key, self.inputs, f"Graph.inputs[{i}]") for i, key in enumerate(inputs)],
            "outputs": [self._find(key, self.outputs, f"Graph.outputs[{i}]") for i, key in enumerate(outputs)],
        }
        seen: set[Tensor] = set()
        for argument, tensors in chosen.items():
            for tensor in tensors:
                if tensor in seen:
                    raise DuplicatedEntriesError.at(f"Graph.{argument}", expected="each tensor once", got=tensor.label)
                if tensor.get_is_virtual():
                    raise BadParamError.at(f"Graph.{argument}", expected="tensors in memory", got=f"{tensor!r}")
                seen.add(tensor)
        missing = [tensor.label for tensor in self._needed() if tensor not in seen]
        if missing:
            raise BadParamError.at("Graph.inputs and outputs", expected=f"also {', '.join(missing)}", got="none")
        return tuple(chosen["inputs"]), tuple(chosen["outputs"])

    def values(self, values: Mapping[object, object]) -> dict[Tensor, object]:
        """The values by tensor. Raises BadParamError for a key of no tensor, and for an input that has none."""
        names = {**self.outputs, **self.inputs}
        pack = {self._find(key, names, "Graph.__call__"): value for key, value in values.items()}
        outputs = set(self.outputs.values())
        missing = [tensor.label for tensor in self._needed() if tensor not in pack and tensor not in outputs]
        if missing:
            raise BadParamError.at("Graph.__call__", expected=f"also values of {', '.join(missing)}", got="none")
        return pack

    def missing_outputs(self, pack: Mapping[Tensor, object]) -> list[Tensor]:
        """The outputs that have no value."""
        outputs = set(self.outputs.values())
        return [tensor for tensor in self._needed() if tensor in outputs and tensor not in pack]

    def default_name(self, output: Tensor) -> str:
        """The name that the output had when it was made."""
        return next(name for name, tensor in self.outputs.items() if tensor is output)

    def _needed(self) -> list[Tensor]:
        """The tensors that execute needs a value of."""
        named = dict.fromkeys((*self.inputs.values(), *self.outputs.values()))
        return [t for t in named if not t.get_is_virtual() and not t.is_constant and t.get_pass_by_value() is None]

    def _find(self, key: object, names: Mapping[str, Tensor], where: str) -> Tensor:
        """The tensor for a key: itself, its name, its uid, or the array that stood for it."""
        if isinstance(key, Tensor):
            found = [key] if key in self.tensors else []
        elif isinstance(key, str):
            found = [names[key]] if key in names else [t for t in self.tensors if t.get_name() == key]
        elif isinstance(key, int):
            found = [tensor for tensor in self.tensors if tensor.get_uid() == key]
        else:
            found = [tensor for tensor, array in self.arrays.items() if array is key]
        if len(found) != 1:
            known = ", ".join(name for name, tensor in names.items() if not tensor.get_is_virtual())
            raise BadParamError.at(where, expected=f"a tensor of the graph, such as {known}", got=shown(key))
        return found[0]


def _argument_names(call: Call) -> Iterable[tuple[str, Tensor]]:
    """Each tensor among the arguments by the parameter's name and by its position."""
    positions = list(inspect.signature(getattr(pygraph, call.method)).parameters)[1:]
    for argument, tensor in call.tensors.items():
        parameter, _, place = argument.removesuffix("]").partition("[")
        for name in (parameter, str(positions.index(parameter))):
            yield f"{call.name}::{name}" + (f"::{place}" if place else ""), tensor
