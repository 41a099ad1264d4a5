"""Near misses of a pattern: its mutations that are graphs, and with data that tell them from the pattern."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lowdnn import dtypes
from lowdnn.cases.oracle import evaluate
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.ragged import RaggedMove
from lowdnn.ops.tensor import Tensor
from lowdnn.status import LowdnnError
from tests.support.near_misses.mutations import KINDS
from tests.support.near_misses.pattern import Array, Pattern

#: Kinds that leave every value as it is.
_OF_MEMORY = ("other_strides",)
#: Draws of data until one tells a near miss from its pattern.
_DRAWS = 3
#: The least share of a value's magnitude by which they differ somewhere.
_DIFFERENCE = 2e-5


@dataclass(frozen=True)
class NearMiss:
    """A graph one mutation away from a pattern, what that mutation is, and what its inputs hold, by uid."""

    kind: str
    label: str
    graph: OperationGraph
    inputs: dict[int, Array]
    unrounded: frozenset[int] = frozenset()


def exact(pattern: Pattern, rng: np.random.Generator) -> NearMiss:
    """The pattern itself."""
    graph = OperationGraph(pattern.operations)
    return NearMiss("", pattern.name, graph, _inputs(graph, pattern.values, rng), pattern.unrounded)


def near_misses(
    pattern: Pattern, kinds: Sequence[str] = tuple(KINDS), rng: np.random.Generator | None = None
) -> Iterator[tuple[str, str, OperationGraph]]:
    """(kind, label, graph) of every mutation of ``pattern`` that is a graph, each graph once and not the pattern's.

    ``rng`` draws the order; without it they come kind by kind. A graph is built when it is asked for, since that takes
    most of the time.
    """
    known = {OperationGraph(pattern.operations).key}
    mutations = [(kind, *mutation) for kind in kinds for mutation in KINDS[kind](pattern.operations)]
    for place in range(len(mutations)) if rng is None else rng.permutation(len(mutations)):
        kind, label, make = mutations[place]
        graph = _graph(make)
        if graph is not None and graph.key not in known:
            known.add(graph.key)
            yield kind, label, graph


def with_inputs(pattern: Pattern, graph: OperationGraph, rng: np.random.Generator) -> dict[int, Array]:
    """The values of a near miss's inputs."""
    return _inputs(graph, pattern.values, rng)


def with_data(
    pattern: Pattern, kind: str, label: str, graph: OperationGraph, rng: np.random.Generator
) -> NearMiss | None:
    """The near miss with data for which its outputs differ from the pattern's; None where no draw has any, and where
    offsets of packed tensors are computed, which tell how much memory these have."""
    if any(isinstance(op, RaggedMove) and graph.producer(op.offsets) is not None for op in graph.operations):
        return None
    for _ in range(_DRAWS):
        inputs = _inputs(graph, pattern.values, rng)
        with np.errstate(all="ignore"):  # a change may lead to infinities, as in ``misreading``
            try:
                found = evaluate(graph, inputs)
            except (LowdnnError, IndexError, ValueError, KeyError):
                return None  # lengths, offsets or places that mean nothing
            is_other = kind in _OF_MEMORY or _differ(pattern, graph, inputs, found, rng)
        if is_other:
            return NearMiss(kind, label, graph, inputs, pattern.unrounded)
    return None


def _graph(make: object) -> OperationGraph | None:
    """None where the operations refuse the change, or no output depends on it."""
    try:
        return OperationGraph(make())  # type: ignore[operator]
    except (LowdnnError, TypeError, AttributeError):
        return None


def _differ(
    pattern: Pattern,
    graph: OperationGraph,
    inputs: Mapping[int, Array],
    found: Mapping[int, Array],
    rng: np.random.Generator,
) -> bool:
    own = OperationGraph(pattern.operations)
    if {t.uid for t in own.outputs} != {t.uid for t in graph.outputs}:
        return True
    same = {t.uid: t for t in own.inputs}
    values = {uid: dtypes.to_values(array, graph.tensors[uid].data_type) for uid, array in inputs.items()}
    before = _inputs(own, pattern.values | {uid: v for uid, v in values.items() if uid in same}, rng)
    wanted = evaluate(own, before)
    return any(
        _apart(_floats(found[uid], graph.tensors[uid]), _floats(wanted[uid], own.tensors[uid])) for uid in wanted
    )


def _floats(stored: Array, tensor: Tensor) -> Array:
    return dtypes.to_values(stored, tensor.data_type).astype(np.float64)


def _apart(one: Array, other: Array) -> bool:
    """Whether a comparison would tell the two from each other."""
    if one.shape != other.shape:
        return True
    with np.errstate(invalid="ignore"):
        near = np.abs(one - other) <= _DIFFERENCE * (1 + np.abs(other))
    return not bool((near | (one == other) | (np.isnan(one) & np.isnan(other))).all())


def _inputs(graph: OperationGraph, values: Mapping[int, Array], rng: np.random.Generator) -> dict[int, Array]:
    """Storage arrays of the inputs and of what is accumulated into; ``values`` where there are some, else random."""
    read = [tensor for tensor in graph.inputs if tensor.constant_value is None]
    read += [op.output for op in graph.operations if getattr(op, "beta", 0.0) != 0.0]
    return {tensor.uid: _input(tensor, values.get(tensor.uid), rng) for tensor in read}


def _input(tensor: Tensor, values: Array | None, rng: np.random.Generator) -> Array:
    drawn = _drawn(tensor, rng) if values is None else np.resize(values, tensor.dims)
    first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.strides)
    return dtypes.from_float64(np.array(np.broadcast_to(drawn[first], tensor.dims), np.float64), tensor.data_type)


def _drawn(tensor: Tensor, rng: np.random.Generator) -> Array:
    """Numbers that are neither symmetric nor of mean 0."""
    kind = dtypes.info(tensor.data_type).kind
    if kind is dtypes.Kind.BOOLEAN:
        return rng.integers(0, 2, tensor.dims)
    if kind is not dtypes.Kind.FLOAT:
        return rng.integers(-3 if kind is dtypes.Kind.SIGNED else 0, 6, tensor.dims)
    return rng.standard_normal(tensor.dims) + 0.4
