"""Ways to write and keep graphs: the context manager ``graph`` and the decorators ``jit`` and ``graph_cache``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar, Unpack

from lowdnn.backend.handle import Handle
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.enums import heur_mode
from lowdnn.frontend.graph_arguments import PlanningArguments
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.python_graph import pygraph

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def graph(
    handle: Handle,
    name: str = "cudnn_graph",
    io_data_type: DataTypeLike = data_type.HALF,
    intermediate_data_type: DataTypeLike = data_type.FLOAT,
    compute_data_type: DataTypeLike = data_type.FLOAT,
    **graph_arguments: Unpack[PlanningArguments],
) -> Iterator[tuple[pygraph, list[Tensor]]]:
    """A new pygraph and an empty list for the tensors that the caller wants to find again."""
    yield pygraph(name, io_data_type, intermediate_data_type, compute_data_type, handle, **graph_arguments), []


def jit(
    heur_modes: heur_mode | Sequence[heur_mode] = heur_mode.A,
) -> Callable[[Callable[P, tuple[pygraph, Sequence[Tensor]]]], Callable[P, tuple[pygraph, list[int]]]]:
    """Decorates a function that returns (graph, tensors): builds the graph and returns (graph, the tensors' uids)."""
    modes = [heur_modes] if isinstance(heur_modes, heur_mode) else list(heur_modes)

    def decorate(write: Callable[P, tuple[pygraph, Sequence[Tensor]]]) -> Callable[P, tuple[pygraph, list[int]]]:
        @wraps(write)
        def build(*args: P.args, **kwargs: P.kwargs) -> tuple[pygraph, list[int]]:
            written, tensors = write(*args, **kwargs)
            if written.get_execution_plan_count() == 0:
                written.build(modes)
            return written, [tensor.get_uid() for tensor in tensors]

        return build

    return decorate


def graph_cache(key_fn: Callable[P, Hashable], maxsize: int = 256) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Caches ``maxsize`` results of the decorated function by ``key_fn`` of its arguments, and drops the oldest."""

    def decorate(make: Callable[P, R]) -> Callable[P, R]:
        kept: dict[Hashable, R] = {}

        @wraps(make)
        def find_or_make(*args: P.args, **kwargs: P.kwargs) -> R:
            key = key_fn(*args, **kwargs)
            if key not in kept:
                made = make(*args, **kwargs)
                if len(kept) >= maxsize:
                    kept.pop(next(iter(kept)))
                kept[key] = made
            return kept[key]

        return find_or_make

    return decorate
