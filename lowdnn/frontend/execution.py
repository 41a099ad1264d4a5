"""From a caller's tensors to one launch: the part of a pygraph that runs at every step.

The first call with a set of keys finds out which key is which tensor; later calls with the same keys look up the
values in plan order, take their addresses and hand them to the loaded plan, which does nothing for addresses that it
has seen last time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

from numpy.typing import NDArray

from lowdnn.backend.at_hand import load
from lowdnn.backend.handle import Handle
from lowdnn.backend.override_shapes import KeptShapes, Shapes, candidate_with
from lowdnn.checks import sequence, shown
from lowdnn.frontend.addresses import AddressOf, Need, device_getter, integer_address
from lowdnn.frontend.arguments import integers
from lowdnn.frontend.array_layouts import LayoutWatch
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.host_values import host_getter, host_scalar
from lowdnn.frontend.kernel_caches import kernel_cache
from lowdnn.frontend.keys import Keys
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate
from lowdnn.plan import PlanTensor
from lowdnn.runtime.cuda_graphs import CudaGraphs
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.switching_plan import SwitchingPlan
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.runtime.workspace_pool import WorkspacePool
from lowdnn.status import AttributeTypeError, BadParamError, DuplicatedEntriesError, LowdnnError

#: A function of a loaded plan, its pointers in plan order, and its workspace's address.
Launch = Callable[[LoadedPlan, tuple[int, ...], int], None]


class PreparedExecution:
    """One loaded plan of a graph and the way from keys to its pointers."""

    def __init__(
        self, candidate: Candidate, handle: Handle, tensors: Mapping[int, Tensor], cache: kernel_cache | None = None
    ) -> None:
        """Loads the candidate's plan. ``tensors``: the caller's tensors by uid, of which those with a value need not be
        given to ``execute``.  cache: gets the kernels, and saves compiling them.
        """
        self.plan = plan = candidate.plan
        self._name = plan.name
        self._candidate = candidate
        self._cache = cache
        self._handle = handle
        self._loaded = self._load(handle)
        self._loaded_elsewhere: WeakKeyDictionary[Handle, LoadedPlan | SwitchingPlan] = WeakKeyDictionary()
        self._tensors = tensors
        self._reshaped: KeptShapes[PreparedExecution] = KeptShapes()
        self._cuda_graphs = CudaGraphs()
        self._needs = tuple(_need(tensor) for tensor in plan.tensors)
        self._watch = LayoutWatch(
            {place: candidate.graph.tensors[tensor.uid] for place, tensor in enumerate(plan.tensors)}
        )
        self._workspace_need = Need("execute.workspace", size_anywhere(candidate.workspace_bytes))
        self._workspace_route: tuple[type, AddressOf | None] = (type(None), None)
        self._recent: _Route | None = None

    def execute(self, values: Mapping[Any, object], workspace: object, handle: Handle) -> None:
        """Launches the plan into ``handle``'s stream with the values' addresses.

        A key of None, and tensors, uids and names that the graph does not have, are passed over: ``keys_passed_over``
        counts them when their set of keys is first seen, with an event. Arrays with strides unlike their tensor's are
        taken with a LayoutWarning.
        Raises BadParamError for a tensor that is missing or given twice, StreamMismatchError for memory of another
        device, SizeInsufficientError for a tensor or workspace that is too small, and what ``LoadedPlan.execute``
        raises.
        """
        if handle.is_debug or not handle.is_open:
            with handle.entered("execute"):
                self._launch(values, workspace, handle)
            return
        try:
            self._launch(values, workspace, handle)
        except LowdnnError as error:
            handle.note_failure(error)
            raise

    @property
    def slowdown(self) -> float:
        """Predicted time of the plan that runs, relative to that of the best plan if it runs in place of that."""
        has_switched = isinstance(self._loaded, SwitchingPlan) and self._loaded.has_switched
        return 1.0 if has_switched else self._candidate.slowdown

    def with_shapes(self, shapes: Shapes) -> PreparedExecution:
        """The execution of the graph with other shapes, which is planned and loaded at the first call with them.

        Raises what ``candidate_with`` raises.
        """
        return self._reshaped.find(shapes, lambda: self._prepared_with(shapes)) if shapes else self

    def add_to_graph(self, values: Mapping[Any, object], workspace: object, handle: Handle, graph: int) -> None:
        """Adds the plan's launches to a CUgraph, with the values' addresses. Raises what ``execute`` raises."""

        def add(loaded: LoadedPlan, pointers: tuple[int, ...], address: int) -> None:
            self._cuda_graphs.populate(graph, loaded, pointers, address)

        with handle.entered("populate_cuda_graph"):
            self._launch(values, workspace, handle, add)

    def update_graph(self, values: Mapping[Any, object], workspace: object, handle: Handle, graph: int) -> None:
        """Gives the nodes that ``add_to_graph`` added the values' addresses. Raises what ``execute`` raises, and
        CudaGraphMismatchError for a graph without such nodes."""

        def update(loaded: LoadedPlan, pointers: tuple[int, ...], address: int) -> None:
            self._cuda_graphs.update(graph, loaded, pointers, address, "update_cuda_graph.cuda_graph")

        with handle.entered("update_cuda_graph"):
            self._launch(values, workspace, handle, update)

    def _prepared_with(self, shapes: Shapes) -> PreparedExecution:
        candidate = candidate_with(self._candidate, shapes, self._handle.engines)
        return PreparedExecution(candidate, self._handle, self._tensors, self._cache)

    def _load(self, handle: Handle) -> LoadedPlan | SwitchingPlan:
        return load(handle, self._candidate, None if self._cache is None else self._cache.images)

    def _load_elsewhere(self, handle: Handle) -> LoadedPlan | SwitchingPlan:
        """The plan on a handle that it was not built for."""
        found = self._loaded_elsewhere.get(handle)
        if found is None:
            found = self._loaded_elsewhere[handle] = self._load(handle)
        return found

    def _launch(
        self, values: Mapping[Any, object], workspace: object, handle: Handle, instead: Launch | None = None
    ) -> None:
        """Hands the addresses to the loaded plan: to be launched, or to what is done ``instead``."""
        if type(values) is not dict and not isinstance(values, Mapping):
            raise AttributeTypeError.at("execute.tensor_dict", expected="a dict of tensors", got=repr(values))
        kept: list[object] = []
        pointers = self._recent.pointers(values, handle, kept) if self._recent is not None else None
        if pointers is None:
            pointers = self._resolved(values, handle, kept)
        loaded = self._loaded if handle is self._handle else self._load_elsewhere(handle)
        address = 0
        if workspace is not None:
            kind, getter = self._workspace_route
            if type(workspace) is not kind:
                getter = self._new_workspace_route(workspace)
            if getter is None:
                self._launch_with_pool(loaded, pointers, workspace, handle, instead)
                return
            address = getter(workspace, handle, self._workspace_need, kept)
        if instead is None:
            loaded.execute(pointers, address, handle.stream)
        else:
            instead(_staying(loaded), pointers, address)

    def _launch_with_pool(
        self,
        loaded: LoadedPlan | SwitchingPlan,
        pointers: tuple[int, ...],
        pool: Any,
        handle: Handle,
        instead: Launch | None,
    ) -> None:
        """``_launch`` with a WorkspacePool, which may not give the memory to others until the work is in its stream.

        The CUDA graph that ``instead`` writes keeps the address.
        """
        need_bytes, context, stream = self._workspace_need.size_bytes, handle.runtime.context, handle.stream
        pool.lock.acquire()  # half as dear as "with"
        try:
            if instead is None:
                loaded.execute(pointers, pool.address(need_bytes, context, stream, self._name), stream)
            else:
                instead(_staying(loaded), pointers, pool.address(need_bytes, context, stream, self._name, is_kept=True))
        finally:
            pool.lock.release()

    def _new_workspace_route(self, workspace: object) -> AddressOf | None:
        """The getter of addresses for workspaces of this type; None for a pool."""
        getter: AddressOf | None = _no_address
        if self._workspace_need.size_bytes:
            getter = None if isinstance(workspace, WorkspacePool) else device_getter(workspace)
        self._workspace_route = type(workspace), getter
        return getter

    def _resolved(self, values: Mapping[Any, object], handle: Handle, kept: list[object]) -> tuple[int, ...]:
        """The pointers for a set of keys or types that is not the last one's; keeps its route for the next call."""
        keys = Keys(self._tensors, values)
        own = {uid for uid, tensor in self._tensors.items() if tensor.pass_by_value is not None}
        missing = [tensor for tensor in self.plan.tensors if tensor.uid not in keys.by_uid and tensor.uid not in own]
        if missing:
            names = ", ".join(f"{tensor.name!r} (uid {tensor.uid})" for tensor in missing)
            raise BadParamError.at(
                "execute.tensor_dict", expected=f"a value for {names}", got="none", hint=keys.explain_unknown()
            )
        route = _Route(keys, values, self.plan.tensors, self._needs, self._constants(keys), self._watch)
        pointers = route.pointers(values, handle, kept)
        if pointers is None:
            raise BadParamError.at("execute.tensor_dict", expected="a mapping that stays as it is", got=repr(values))
        keys.report(self.plan.name, handle)
        self._recent = route
        return pointers

    def _constants(self, keys: Keys) -> dict[int, NDArray[Any]]:
        """The graph's own values of tensors that are not given, by place in the plan."""
        return {
            place: host_scalar(self._tensors[tensor.uid].pass_by_value, tensor.data_type, self._needs[place].where)
            for place, tensor in enumerate(self.plan.tensors)
            if tensor.uid not in keys.by_uid
        }


def _staying(loaded: LoadedPlan | SwitchingPlan) -> LoadedPlan:
    """The plan that runs now, which is not left any more."""
    return loaded.stay() if isinstance(loaded, SwitchingPlan) else loaded


class _Route:
    """Keys, types and getters of the last call, in plan order; they make a further call with the same ones cheap."""

    def __init__(
        self,
        keys: Keys,
        values: Mapping[Any, object],
        tensors: Sequence[PlanTensor],
        needs: Sequence[Need],
        constants: Mapping[int, NDArray[Any]],
        watch: LayoutWatch,
    ) -> None:
        given = [place for place in range(len(tensors)) if place not in constants]
        picked: list[Any] = [keys.by_uid[tensors[place].uid] for place in given]
        self._count = len(values)
        self._others = tuple(key for key in values if key not in picked)
        self._pick = itemgetter(*picked) if len(picked) > 1 else lambda values: tuple(values[key] for key in picked)
        self._types = tuple(type(values[key]) for key in picked)
        getters = [
            host_getter(values[key], tensors[place].data_type)
            if tensors[place].is_by_value
            else device_getter(values[key])
            for place, key in zip(given, picked, strict=True)
        ]
        # An integer is an address already.
        self._steps = tuple(
            (position, getter, needs[place])
            for position, (place, getter) in enumerate(zip(given, getters, strict=True))
            if getter is not integer_address
        )
        self._watched = tuple(
            (position, place)
            for position, place in enumerate(given)
            if getters[position] is not integer_address and not tensors[place].is_by_value
        )
        self._constants = tuple((place, int(scalar.ctypes.data), scalar) for place, scalar in constants.items())
        self._watch = watch
        self._last: list[int] = []

    def pointers(self, values: Mapping[Any, object], handle: Handle, kept: list[object]) -> tuple[int, ...] | None:
        """The pointers in plan order, or None where keys or types differ from the route's."""
        if len(values) != self._count:
            return None
        try:
            found = self._pick(values)
        except KeyError:
            return None
        if tuple(map(type, found)) != self._types:
            return None
        if self._others and not all(key in values for key in self._others):
            return None
        if not self._steps and not self._constants:
            return found
        kept.append(found)
        addresses = list(found)
        for position, getter, need in self._steps:
            addresses[position] = getter(found[position], handle, need, kept)
        if self._watched and addresses != self._last:
            for position, place in self._watched:
                self._watch.look(place, found[position], addresses[position], handle)
            self._last = addresses
        if self._constants:
            addresses = self._with_constants(addresses)
        return tuple(addresses)

    def _with_constants(self, addresses: Sequence[int]) -> list[int]:
        """The given tensors' addresses with those of the graph's own values at their places."""
        complete = list(addresses)
        for place, address, _ in self._constants:
            complete.insert(place, address)
        return complete


def _no_address(workspace: object, handle: Handle, need: Need, kept: list[object]) -> int:
    """The address of a plan that needs no workspace, whatever it is given."""
    return 0


def pair(uids: object, values: object) -> dict[int, object]:
    """The values by uid. Raises BadParamError or one of its subclasses unless each uid has one value."""
    wanted = _uids(uids, "execute.tensor_uids")
    if not isinstance(values, (list, tuple)) or len(wanted) != len(values):
        raise BadParamError.at("execute.tensor_dict", expected=f"a list of {len(wanted)} values", got=repr(values))
    return dict(zip(wanted, values, strict=True))


def with_arrays(arrays: Mapping[Tensor, object], values: object) -> Mapping[Any, object]:
    """``values`` with the arrays of tensors that it has neither themselves nor by uid or name.

    Raises AttributeTypeError unless it is a mapping.
    """
    if not isinstance(values, Mapping):
        raise AttributeTypeError.at("execute.tensor_dict", expected="a dict of tensors", got=repr(values))
    own = {
        tensor: array
        for tensor, array in arrays.items()
        if not any(key in values for key in (tensor, tensor.get_uid(), tensor.get_name()))
    }
    return {**own, **values}


def other_shapes(
    uids: object, shapes: object, strides: object, graph: OperationGraph, tensors: Mapping[int, Tensor]
) -> Shapes:
    """The (uid, dims, strides) that tensors of ``graph`` have instead of their own.

    tensors: the caller's by uid. Strides of ragged ones may be those of packed rows: of a row, a head, an element.
    Raises BadParamError or one of its subclasses unless each uid has dims and strides.
    """
    wanted = _uids(uids, "execute.override_uids")
    unknown = [uid for uid in wanted if uid not in graph.tensors or graph.tensors[uid].is_virtual]
    if unknown:
        raise BadParamError.at("execute.override_uids", expected="uids of the graph's inputs and outputs", got=unknown)
    ranks = [graph.tensors[uid].rank for uid in wanted]
    dims = _extents(shapes, "execute.override_shapes", ranks)
    rows = list(sequence(strides, "execute.override_strides", "sequences"))
    for place, (uid, row) in enumerate(zip(wanted, rows, strict=False)):
        if isinstance(row, (list, tuple)) and len(row) == 3 and tensors[uid].get_ragged_offset() is not None:
            rows[place] = (row[0], row[1], row[0], row[2])  # the first does not count
    return tuple(zip(wanted, dims, _extents(rows, "execute.override_strides", ranks), strict=True))


def _uids(given: object, where: str) -> tuple[int, ...]:
    """A sequence of uids, none of them twice."""
    found = integers(given, where)
    if len(set(found)) != len(found):
        raise DuplicatedEntriesError.at(where, expected="each uid once", got=list(found))
    return found


def _extents(given: object, where: str, ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """A sequence of as many integers as ``ranks`` says, for each of them."""
    rows = [integers(row, f"{where}[{number}]") for number, row in enumerate(sequence(given, where, "sequences"))]
    if [len(row) for row in rows] != list(ranks):
        wanted = ", ".join(map(str, ranks))
        raise BadParamError.at(where, expected=f"{len(ranks)} sequences, of the lengths {wanted}", got=shown(rows))
    return rows


def _need(tensor: PlanTensor) -> Need:
    return Need(
        f"execute.tensor_dict[{tensor.name!r} (uid {tensor.uid})]",
        tensor.size_bytes,
        tensor.data_type,
        tensor.is_output,
    )
