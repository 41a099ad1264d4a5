"""The page of names that are refused or ignored says what the code does."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lowdnn.frontend as cudnn
from lowdnn import adv, backend, frontend
from lowdnn.capi.calls.catalogue import CALLS
from lowdnn.capi.signatures import functions
from lowdnn.enums import (
    AttributeName,
    AttributeType,
    BnFinalizeStatsMode,
    DescriptorType,
    KnobType,
    NanPropagation,
    NormFwdPhase,
)
from lowdnn.frontend.enums import backend_knob
from lowdnn.frontend.python_graph import pygraph
from lowdnn.frontend.refused_methods import RefusedMethods
from lowdnn.graph.graph import OperationGraph
from lowdnn.guide.pages import page
from lowdnn.ops.base import Operation
from lowdnn.status import LowdnnError, NotSupportedError
from tests.support import calls
from tools import refused

#: Checks of arguments, whose results say nothing where they are not used.
_CHECKS = {"boolean", "integer", "member", "real", "text"}


def test_page_is_what_the_tables_give() -> None:
    assert page("refused").text == refused.page()


@pytest.mark.parametrize("method", [name for name in calls.METHODS if "compute_data_type" in calls.parameters(name)])
def test_compute_types_that_change_nothing(method: str) -> None:
    """The page lists a method where every type of computation gives the same graph, and only there."""
    keys = {_key(method, kind) for kind in (cudnn.data_type.FLOAT, cudnn.data_type.DOUBLE, cudnn.data_type.INT32)}
    assert (len(keys) == 1) == (("compute_data_type", method) in _ignored())


def test_arguments_that_are_not_read() -> None:
    """The page lists an argument of a public function where its body at most checks it, and only there."""
    unread = {*_unread_in_python(), *_unread_in_c()}
    kept_for_getters = {("cuda_graph_retention", "pygraph"), ("reorderType", "cudnnSetConvolutionReorderType")}
    assert _without_types(unread) == _without_types(_ignored()) - kept_for_getters


def _tensor(graph: pygraph) -> Any:
    return graph.tensor((2, 3, 4, 4))


_ARGUMENTS: Mapping[str, Callable[[pygraph], object]] = {
    "deserialize.enforce_precompiled": lambda graph: graph.deserialize("", enforce_precompiled=True),
    **{
        f"{method}.{name}": lambda graph, method=method, name=name: calls.call(  # type: ignore[misc]
            graph, method, **{name: _tensor(graph)}
        )
        for method, name in (
            ("reduction", "group_offset"),
            ("block_scale_quantize", "group_offset"),
            ("moe_grouped_matmul", "top_k_scores"),
        )
    },
    "block_scale_dequantize.is_negative_scale": lambda graph: _operation(
        graph, "block_scale_dequantize", is_negative_scale=True
    ),
    "Tensor.set_vector_count_and_dimension.count": lambda graph: _tensor(graph).set_vector_count_and_dimension(4, 1),
}


def test_arguments_that_are_refused() -> None:
    assert _ARGUMENTS.keys() == {argument for argument, _, _ in refused.REFUSED_ARGUMENTS}
    for argument, allowed, instead in refused.REFUSED_ARGUMENTS:
        with pytest.raises(NotSupportedError, match=f"expected {allowed}, got .*; {instead}"):
            _ARGUMENTS[argument](calls.new_graph())


_MEMBERS: Mapping[str, Callable[[pygraph], object]] = {
    "heur_mode.OPENSOURCE": lambda graph: graph.create_execution_plans([cudnn.heur_mode.OPENSOURCE]),
    "moe_grouped_matmul_mode.COMBINE": lambda graph: calls.call(
        graph, "moe_grouped_matmul", mode=cudnn.moe_grouped_matmul_mode.COMBINE
    ),
    "CUDNN_BN_FINALIZE_STATISTICS_INFERENCE": lambda graph: _operation(
        graph, "bn_finalize", mode=BnFinalizeStatsMode.INFERENCE
    ),
    "CUDNN_NORM_FWD_INFERENCE of BATCH_NORM": lambda graph: _operation(
        graph, "batchnorm", phase=NormFwdPhase.INFERENCE
    ),
    "CUDNN_NOT_PROPAGATE_NAN of pointwise operations": lambda graph: backend.create(
        DescriptorType.POINTWISE
    ).set_attribute(
        AttributeName.POINTWISE_NAN_PROPAGATION, AttributeType.NAN_PROPOGATION, [NanPropagation.NOT_PROPAGATE_NAN]
    ),
}


def test_members_that_are_refused() -> None:
    assert _MEMBERS.keys() == {member for member, _ in refused.REFUSED_MEMBERS}
    for member in _MEMBERS:
        graph = calls.new_graph()
        _graph(graph, "exp")
        graph.build_operation_graph()
        with pytest.raises(NotSupportedError):
            _MEMBERS[member](graph)
    for knob in cudnn.knob_type:
        if knob is not cudnn.knob_type.NOT_SET and knob.name not in KnobType.__members__:
            with pytest.raises(NotSupportedError, match=knob.name):
                backend_knob(knob, "knob")


def test_refusals_of_the_frontend_are_known() -> None:
    """A function of the frontend that refuses what cuDNN has is one of these; another one needs its row on the page."""
    listed = {
        *("deserialize", "reduction", "block_scale_quantize", "moe_grouped_matmul"),
        *("set_vector_count_and_dimension", "backend_mode", "backend_routing", "backend_knob"),
        "__call__",  # the call of a refused name or method
    }
    about_a_graph = {"_infer_type", "_other_shapes"}
    assert set(_refusing()) == listed | about_a_graph


def _ignored() -> set[tuple[str, str]]:
    """(argument, function) of the page's rows."""
    return {(name, of) for row in refused.IGNORED_ARGUMENTS for name in row.arguments for of in row.of}


def _without_types(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {pair for pair in pairs if pair[0] != "compute_data_type"}


def _unread_in_python() -> Iterator[tuple[str, str]]:
    """(parameter, function) of pygraph's own methods, aliases apart, and of ``lowdnn.adv``."""
    for cls in pygraph.__mro__[:-1]:
        for name, method in vars(cls).items():
            is_public = not name.startswith("_") or (name == "__init__" and cls is pygraph)
            if cls is not RefusedMethods and is_public and inspect.isfunction(inspect.unwrap(method)):
                of = "pygraph" if name == "__init__" else method.__name__
                yield from ((parameter, of) for parameter in _unread(method))
    for name, function in vars(adv).items():
        if inspect.isfunction(function):
            yield from ((parameter, f"adv.{name}") for parameter in _unread(function))


def _unread_in_c() -> Iterator[tuple[str, str]]:
    """(argument, function) by their names in C."""
    for name, call in CALLS.items():
        arguments = (argument.name for argument in functions()[name].arguments)
        in_c = dict(zip(inspect.signature(call).parameters, ("", *arguments), strict=True))
        yield from ((in_c[parameter], name) for parameter in _unread(call) if in_c[parameter])


def _key(method: str, kind: Any) -> str:
    """A key of the graph of the method's valid call, or the error that this type of computation raises."""
    try:
        return _graph(calls.new_graph(), method, compute_data_type=kind).key
    except LowdnnError as error:
        return str(error)


def _graph(graph: pygraph, method: str, **changed: Any) -> OperationGraph:
    calls.finished(graph, method, calls.call(graph, method, **changed))
    graph.validate()
    assert graph._graph is not None
    return graph._graph


def _operation(_: pygraph, method: str, **changed: Any) -> Operation:
    """The operation of the method's valid call with some fields replaced."""
    operation: Any = _graph(calls.new_graph(), method).operations[0]
    return replace(operation, **changed)


def _unread(function: Any) -> Iterator[str]:
    """The parameters that the function at most checks."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    checks = (node for node in ast.walk(tree) if isinstance(node, ast.Expr) and _is_check(node.value))
    checked = {id(name) for check in checks for name in ast.walk(check)}
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in checked}
    arguments = (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)
    yield from (argument.arg for argument in arguments if argument.arg not in read | {"self", "cls"})


def _is_check(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CHECKS


def _refusing() -> Iterator[str]:
    """The functions of the frontend in whose body NotSupportedError is made."""
    for path in sorted(Path(frontend.__file__).parent.glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                named = (node for node in ast.walk(function) if isinstance(node, ast.Attribute) and node.attr == "at")
                if any(isinstance(node.value, ast.Name) and node.value.id == "NotSupportedError" for node in named):
                    yield function.name
