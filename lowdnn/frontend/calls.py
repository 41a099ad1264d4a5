"""Calls of pygraph's methods: arguments are checked, and later errors name the caller's method and argument."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

from lowdnn.checks import shown
from lowdnn.frontend.arguments import integer, integers, number
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.status import AttributeTypeError, BadParamError, LowdnnError

MethodT = TypeVar("MethodT", bound=Callable[..., Any])

#: Annotations of the parameters that are checked here, with the rule that messages state.
_EXPECTED = {
    "Tensor": "a tensor of a graph",
    "Tensor | None": "a tensor of a graph or None",
    "Operand": "a tensor of a graph or a number",
    "Operand | None": "a tensor of a graph, a number or None",
    "int | None": "an integer or None",
}
#: How messages of operations begin: the operation, one of its ports, and the field that is wrong.
_PLACE = re.compile(r"(?P<operation>\w+)\.(?P<port>\w+)(?P<rest>.*)", re.DOTALL)


#: The keyword that every method has.
_OUT_DIMS = inspect.Parameter(
    "out_dims",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation="Sequence[int] | Mapping[str, Sequence[int]] | None",
)

#: Parameters that take sequences with tensors in them.
_SEQUENCES = ("dropout", "inputs", "peer_stats")

#: Names of parameters that differ from those of the operation's ports.
_PARAMETERS = {
    "relu_lower_clip": "lower_clip",
    "relu_upper_clip": "upper_clip",
    "relu_lower_clip_slope": "negative_slope",
    "pre_paddings": "pre_padding",
    "post_paddings": "post_padding",
    "strides": "stride",
    "dilations": "dilation",
    "window_dims": "window",
    "padding_value": "padding",
    "groups": "group_count",
}


@dataclass(frozen=True)
class Call:
    """One call of a method.  name: the start of the default names of its tensors.

    tensors: the tensors among its arguments by parameter, the elements of a sequence as ``inputs[0]``.  others: the
    other arguments.
    outputs: the tensors that it returned, by the ends of their default names; entries: where its operations are in the
    graph's. Both are there once it has returned.
    """

    method: str
    name: str
    tensors: Mapping[str, Tensor]
    others: dict[str, Any]
    outputs: Mapping[str, Tensor]
    entries: range = range(0)

    def for_caller(self, error: LowdnnError, ports: Mapping[str, Tensor]) -> LowdnnError:
        """``error`` with the method and its parameter in place of the operation and its port.

        For a tensor that the caller did not give, the tensor's own name takes that place.
        ports: the operation's tensors.
        """
        place = _PLACE.match(error.detail)
        if place is None:
            return error
        return type(error)(self._named(ports.get(place["port"]), place["port"]) + place["rest"])

    def _named(self, tensor: Tensor | None, port: str) -> str:
        if tensor is None:
            return f"{self.method}.{_PARAMETERS.get(port, port)}"
        parameter = next((name for name, given in self.tensors.items() if given is tensor), "")
        return f"{self.method}.{parameter}" if parameter else f"{self.method}: {tensor.label}"


class Caller(Protocol):
    """An object with such methods: a graph, which knows the call that it is in and those that have returned."""

    _call: Call
    _calls: list[Call]
    _entries: list[Any]

    def _default_name(self, method: str) -> str: ...

    def _with_tensors(self, value: Any, name: str) -> Any: ...


#: The call of a graph that is in none.
NO_CALL = Call("", "", {}, {}, {})


def operation(method: MethodT) -> MethodT:
    """Decorates a method that adds operations: checks by their annotations that tensors are tensors.

    An array in place of a tensor stands for a tensor with its dims, strides and type, and for its value at execute.
    The method gets a keyword ``out_dims`` for the dims of its output; where it has several, a dict of them by the ends
    of the outputs' default names, in any case.

    Raises AttributeTypeError that names the method and its parameter.
    """
    signature = inspect.signature(method)
    parameters = tuple(signature.parameters.values())[1:]
    names = tuple(item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD)
    kinds = {item.name: item.annotation for item in parameters if item.annotation in _EXPECTED}
    for_arrays = tuple(name for name in (*kinds, *_SEQUENCES) if name in signature.parameters)

    @wraps(method)
    def checked(graph: Caller, *args: Any, out_dims: object = None, **kwargs: Any) -> Any:
        arguments = dict(zip(names, args, strict=False), **kwargs)
        given = arguments.get("name")
        label = given if isinstance(given, str) and given else graph._default_name(method.__name__)
        for name in for_arrays:
            value = arguments.get(name)
            if value is not None and not isinstance(value, Tensor) and _may_be_array(kinds.get(name, ""), value):
                arguments[name] = graph._with_tensors(value, f"{label}::{name}")
        for name, kind in kinds.items():
            if name in arguments:
                _check(method.__name__, name, kind, arguments[name])
        outer, call = graph._call, _call_of(method.__name__, label, arguments)
        positional = [arguments.pop(name) for name in names[: len(args)]]
        first = len(graph._entries)
        graph._call = call
        try:
            result = method(graph, *positional, *args[len(names) :], **arguments)
        finally:
            graph._call = outer
        made = _by_end(result, call.name)
        if out_dims is not None:
            _set_dims(f"{method.__name__}.out_dims", result, made, out_dims)
        if outer is NO_CALL:
            place = range(first, len(graph._entries))
            graph._calls.append(Call(call.method, call.name, call.tensors, call.others, made, place))
        return result

    checked.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=(*signature.parameters.values(), _OUT_DIMS)
    )
    return cast(MethodT, checked)


def _may_be_array(kind: str, value: object) -> bool:
    """kind: the annotation, or an empty string. An array in place of a number is one only if it has dimensions."""
    return not kind or kind.startswith("Tensor") or (kind.startswith("Operand") and bool(getattr(value, "shape", ())))


def _call_of(method: str, label: str, arguments: Mapping[str, Any]) -> Call:
    tensors: dict[str, Tensor] = {}
    others: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            tensors[name] = value
        elif isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value):
            tensors |= {f"{name}[{i}]": item for i, item in enumerate(value) if isinstance(item, Tensor)}
            others |= {f"{name}_{i}": item for i, item in enumerate(value) if not isinstance(item, Tensor)}
        elif value is not None and name != "name":
            others[name] = value
    return Call(method, label, tensors, others, {})


def _by_end(result: Any, label: str) -> dict[str, Tensor]:
    """The tensors of ``result`` by the ends of their default names, which begin with ``label``."""
    outputs = (result,) if isinstance(result, Tensor) else result
    return {_end(tensor.get_name(), label): tensor for tensor in outputs if tensor is not None}


def _set_dims(where: str, result: Any, made: Mapping[str, Tensor], out_dims: object) -> None:
    if isinstance(result, Tensor) and not isinstance(out_dims, Mapping):
        result.set_dim(integers(out_dims, where))
        return
    by_name = {end.lower(): tensor for end, tensor in made.items()}
    if not isinstance(out_dims, Mapping):
        raise AttributeTypeError.at(where, expected=f"a dict of dims for {', '.join(by_name)}", got=shown(out_dims))
    for name, dims in out_dims.items():
        tensor = by_name.get(str(name).lower())
        if tensor is None:
            raise BadParamError.at(where, expected=f"keys among {', '.join(by_name)}", got=shown(name))
        tensor.set_dim(integers(dims, f"{where}[{name!r}]"))


def _end(name: str, label: str) -> str:
    return name.removeprefix(f"{label}_").rpartition("::")[2]


def _check(method: str, name: str, kind: str, value: Any) -> None:
    if isinstance(value, Tensor) or (value is None and kind.endswith("None")):
        return
    where = f"{method}.{name}"
    if kind.startswith("Operand"):
        number(value, where, _EXPECTED[kind])
    elif kind.startswith("int"):
        integer(value, where)
    else:
        raise AttributeTypeError.at(where, expected=_EXPECTED[kind], got=shown(value))
