"""From a call's arguments to loaded plans: the slow path, once for each set of shapes, types and settings."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from lowdnn.backend.at_hand import choice_at_hand, load
from lowdnn.backend.autotuning import tune_where_new
from lowdnn.backend.gradients_ahead import begin_gradients
from lowdnn.backend.handle import Handle
from lowdnn.cases.naming import case_of
from lowdnn.engines.base import keeps_precision
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate
from lowdnn.heuristics.tuning.tuner import TuningOptions
from lowdnn.plan import Plan
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.status import LowdnnError
from lowdnn.torch.memory import LoadedStep, Memory, Region
from lowdnn.torch.operation import Overload, Result
from lowdnn.torch.preference import native_is_preferred
from lowdnn.torch.settings import Settings
from lowdnn.torch.sketch import Declined, New, Sketch, Step, written_uids

#: Seconds that ``torch.backends.cudnn.benchmark`` spends on one graph.
_TUNING_S = 2.0


@dataclass(frozen=True)
class Prepared:
    """A call whose plans are loaded.

    new: the tensors to allocate.  parts: (place, offset in bytes) of what lies within them or within the call's own.
    steps: the launches, in order.  values: numbers on the host, which the plans read.
    addresses: theirs, which follow the places of tensors and parts.
    given: (place among the values, place among the dispatcher's arguments) of those that each call has anew.
    result: places of the results.  label: for profilers.
    """

    new: tuple[New, ...]
    parts: tuple[tuple[int, int], ...]
    steps: tuple[LoadedStep, ...]
    values: tuple[Any, ...]
    given: tuple[tuple[int, int], ...]
    addresses: tuple[int, ...]
    result: Result
    label: str


def prepare(
    overload: Overload, tensors: Sequence[Any], numbers: tuple[Any, ...], alignment: int, settings: Settings,
    memory: Memory,
) -> Prepared:  # fmt: skip
    """Raises ``Declined``, with the reason, for a call that the native kernel is to compute."""
    device = _device_of(tensors)
    sketch = Sketch(tensors, alignment, is_deterministic=settings.deterministic, allows_tf32=settings.allows_tf32)
    try:
        result = overload.sketch(sketch, *numbers)
        handle = memory.handle(device)
        candidates = [_chosen(handle, step.graph, settings) for step in sketch.steps]
        # No preference where the native kernel cannot go on from what lowdnn has saved in the forward pass.
        prefers = memory.is_gpu and memory.prefers_fastest and overload.fallback is None
        reason = native_is_preferred(candidates) if prefers else ""
        if reason:
            raise Declined(reason)
        if _will_have_gradients(tensors):
            for candidate in candidates:
                begin_gradients(handle, candidate)
        steps = tuple(
            _loaded(handle, candidate, step, sketch) for candidate, step in zip(candidates, sketch.steps, strict=True)
        )
    except LowdnnError as error:
        raise Declined(str(error).splitlines()[0]) from error
    addresses = tuple(ctypes.addressof(value) for value in sketch.values)
    given = tuple((place, overload.given) for place in sketch.given if overload.given is not None)
    name = overload.name.removeprefix("lowdnn::")
    label = f"lowdnn::{name} " + "; ".join(_case_line(step.graph) for step in sketch.steps)
    return Prepared(
        tuple(sketch.new), tuple(sketch.parts), steps, tuple(sketch.values), given, addresses, result, label
    )


def _device_of(tensors: Sequence[Any]) -> Any:
    """The device of all tensors. Declines several, and calls without elements."""
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device not in (None, device):
            raise Declined(f"tensors on {device} and {tensor.device}")
        if tensor.shape is not None and 0 in tensor.shape:
            raise Declined("a tensor without elements")
    return device


def _will_have_gradients(tensors: Sequence[Any]) -> bool:
    """Whether autograd records the call."""
    return torch.is_grad_enabled() and any(tensor.shape is not None and tensor.requires_grad for tensor in tensors)


def _chosen(handle: Handle, graph: OperationGraph, settings: Settings) -> Candidate:
    """The fastest candidate that torch's settings allow. Raises ``Declined`` where there is none."""
    if settings.benchmark:
        tune_where_new(handle, graph, TuningOptions(budget_s=_TUNING_S))
    ranking = handle.rank(graph, HeurMode.A)
    best = ranking.best
    if best is None:
        raise Declined(ranking.explain().splitlines()[0])

    def is_allowed(plan: Plan) -> bool:
        return settings.allows_tf32 or keeps_precision(plan, graph)

    found = next((candidate for candidate in (best, *ranking.candidates) if is_allowed(candidate.plan)), None)
    if found is None:
        raise Declined("fp32 that may not be rounded to TF32, which no engine for this graph leaves as it is")
    return choice_at_hand(handle, found, is_allowed)


def _loaded(handle: Handle, candidate: Candidate, step: Step, sketch: Sketch) -> LoadedStep:
    loaded = load(handle, candidate)
    places = [sketch.place_of(step.places[uid]) for uid in loaded.uids]
    order: Callable[..., tuple[int, ...]] = itemgetter(*places) if len(places) > 1 else _only(places[0])
    return LoadedStep(loaded, order, size_anywhere(candidate.workspace_bytes), _regions(step, sketch))


def _only(place: int) -> Callable[[Sequence[int]], tuple[int, ...]]:
    return lambda pointers: (pointers[place],)


def _regions(step: Step, sketch: Sketch) -> tuple[Region, ...]:
    """The bytes that the step's graph touches, one region for each place of a tensor."""
    written = written_uids(step.graph)
    sizes: dict[int, int] = {}
    targets: set[int] = set()
    for uid, place in step.places.items():
        if place >= 0 and uid in step.graph.tensors:
            # Packed sequences have room for the longest ones in the graph, but not in memory.
            size_bytes = min(step.graph.tensors[uid].span_bytes, sketch.span_bytes(place))
            sizes[place] = max(sizes.get(place, 0), size_bytes)
            targets |= {place} if uid in written else set()
    return tuple(
        Region(sketch.place_of(place), size, place in targets, place in targets and sketch.is_new(place))
        for place, size in sizes.items()
    )


def _case_line(graph: OperationGraph) -> str:
    """The text case of a graph; the names of its operations where it has none."""
    try:
        return str(case_of(graph))
    except LowdnnError:
        return " + ".join(type(operation).__name__ for operation in graph.operations)
