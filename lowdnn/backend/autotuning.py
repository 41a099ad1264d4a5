"""Tuning on a handle: its device, its stream, its records."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from lowdnn.arch.specs import ArchSpec
from lowdnn.backend.handle import Handle
from lowdnn.enums import HeurMode
from lowdnn.events import emit, event_logger
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from lowdnn.heuristics.tuning.record_books import Found
from lowdnn.heuristics.tuning.records import NO_LIMIT
from lowdnn.heuristics.tuning.tensors import TuningTensors
from lowdnn.heuristics.tuning.timers import DeviceTimer, ModelTimer, Timer
from lowdnn.heuristics.tuning.tuner import Tuned, Tuner, TuningDevice, TuningOptions
from lowdnn.status import BadParamError, LowdnnError, NotSupportedError


def tuner(
    handle: Handle, options: TuningOptions, arch: ArchSpec | None = None, given: Mapping[int, int] | None = None
) -> Tuner:
    """A tuner of graphs on the handle's device, in its stream. On the emulated device the cost model is the clock.

    arch: the device's facts with a part of its multiprocessors, to plan for these alone.  given: by uid, addresses of
    inputs that the caller has, where one graph is tuned.
    """

    def timer(graph: OperationGraph) -> Timer:
        if handle.cuda_device is None:
            return ModelTimer()
        stream, context = handle.borrowed_stream(), handle.runtime.context
        if stream.is_capturing:
            raise BadParamError.at("tuning.stream", expected="a stream that is not capturing", got="one that is")
        return DeviceTimer(handle.runtime, stream, TuningTensors(context, graph, stream, given))

    is_gpu = handle.cuda_device is not None
    device = TuningDevice(handle.runtime, arch or handle.arch, handle.engines, handle.records, timer, is_gpu)
    return Tuner(device, options)


def tune(
    handle: Handle,
    graph: OperationGraph,
    options: TuningOptions,
    arch: ArchSpec | None = None,
    given: Mapping[int, int] | None = None,
) -> Tuned:
    """Tunes one graph and keeps its record, unless the scope leaves out engines or values of knobs.

    arch, given: as for ``tuner``.
    Raises NotSupportedError where no engine takes the graph in this scope, and what running its plans raises.
    """
    with handle.entered("tune"), tuner(handle, options, arch, given) as tuning:
        found = next(tuning.tune((graph,)), None)
    if found is None:
        raise BadParamError.at("tuning.budget_s", expected="the time of a round", got=options.budget_s)
    if isinstance(found, LowdnnError):
        raise found
    if options.scope.is_whole:
        handle.records.keep((found.record,))
    return found


class _Tried(set[str]):
    """The keys of graphs that heuristics have tried to tune on a handle."""


def tune_where_new(handle: Handle, graph: OperationGraph, options: TuningOptions) -> None:
    """Tunes a graph that has neither a record nor a plan in a bundle, once on a handle.

    A failure is an event: a plan can be chosen without.
    """
    tried = handle.companion(_Tried)
    if graph.key in tried or follows_bundle(handle, graph):
        return
    if rank(graph, handle.arch, HeurMode.B, handle.engines, handle.records).is_recorded:
        return
    tried.add(graph.key)
    try:
        tune(handle, graph, options)
    except LowdnnError as error:
        emit(event_logger("tuning"), logging.WARNING, "tuning_failed", {"graph": graph.key, "reason": error})


def follows_bundle(handle: Handle, graph: OperationGraph) -> bool:
    """Whether a bundle has a plan of the graph, which comes before every record."""
    return handle.bundled_plans.candidate(graph, handle.arch, handle.engines) is not None


def has_own_record(handle: Handle, graph: OperationGraph, workspace_limit: int | None) -> bool:
    """Whether a record that did not come with lowdnn holds for the graph under this limit."""
    limit = NO_LIMIT if workspace_limit is None else workspace_limit
    own = [
        found
        for found in handle.records.of(graph, handle.arch)
        if found.record.workspace_limit == limit and not found.book.is_released
    ]
    return any(_holds(handle, graph, found) for found in own)


def _holds(handle: Handle, graph: OperationGraph, found: Found) -> bool:
    engine = handle.engines.named(found.record.engine)
    try:
        return engine is not None and handle.records.holds(found, engine.plan(graph, handle.arch, found.record.choices))
    except (BadParamError, NotSupportedError):
        return False
