"""``pygraph.autotune``: the plans of a graph, timed on its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lowdnn.backend.autotuning import tune
from lowdnn.backend.handle import Handle
from lowdnn.checks import integer, integers, mapping, sequence
from lowdnn.enums import KnobType
from lowdnn.frontend.addresses import Need, device_getter
from lowdnn.frontend.enums import backend_knob, knob_type
from lowdnn.frontend.host_values import host_getter
from lowdnn.frontend.keys import Keys
from lowdnn.frontend.plan_methods import PlanMethods
from lowdnn.frontend.plans import PlanEntry, PlanList
from lowdnn.heuristics.tuning.search import Scope
from lowdnn.heuristics.tuning.tuner import Tuned, TuningOptions
from lowdnn.status import BadParamError


class AutotuneMethods(PlanMethods):
    """The plan list of a pygraph, and the method that times it."""

    def autotune(
        self,
        tensor_dict: Mapping[Any, object] | None = None,
        *,
        budget_s: float = 30.0,
        workspace_limit: int | None = None,
        engines: Sequence[str | int] = (),
        knobs: Mapping[knob_type, int | Sequence[int]] | None = None,
        processes: int = 0,
    ) -> Tuned:
        """Times plans of the graph in its handle's stream, and selects the fastest for ``execute``.

        tensor_dict: inputs as for ``execute``, which are copied, and outputs, which are passed over; numbers by chance
        for inputs that are not given.
        budget_s: seconds after which no further round of timing begins.  workspace_limit: the most bytes that a plan
        may need.  engines: their names or global indices; all where there are none.  knobs: the value, or the values,
        that a knob may have.  processes: how many compile kernels beforehand; threads do where it is 0.

        Plans that ``deselect_*`` leaves out are not tried, and none has a numerical note that the cost model's first
        choice lacks. The result is kept as a tuning record, which plans of this graph follow from now on, here and in
        other processes; a choice among some engines or values of knobs is for this graph object alone.
        The memory for copies is taken and given back: as much as leaves the L2 cache, at most half of what is free.

        Returns what came of each candidate. On the emulated device times are the cost model's.
        Raises NotSupportedError where no engine takes the graph, and what running its plans raises.
        """
        if self._plans is None:
            self.build_operation_graph()
        if self._is_without_device:
            raise BadParamError.at(f"pygraph {self.name!r}", expected="a device to tune on", got="only its properties")
        plans, handle = self._planned(), self._open_handle()
        names = tuple(self._engine_name(engine) for engine in sequence(engines, "autotune.engines", "engines"))
        scope = Scope(workspace_limit, names, {} if knobs is None else _values_of(knobs), plans.barred_plan)
        options = TuningOptions(scope, budget_s, processes=processes)
        kept: list[object] = []
        given = {} if tensor_dict is None else _given(plans, self._complete(tensor_dict), handle, kept)
        tuned = tune(handle, plans.graph, options, plans.arch, given)
        plans.entries.insert(0, PlanEntry(tuned.candidate))
        self.select_plan(0)
        return tuned

    def _engine_name(self, engine: str | int) -> str:
        if not isinstance(engine, str):
            return self._engine(integer(engine, "autotune.engines", 0, self.get_engine_count() - 1)).name
        if self._engines().named(engine) is None:
            raise BadParamError.at("autotune.engines", expected="names of engines", got=repr(engine))
        return engine

    def build_operation_graph(self) -> None:
        raise NotImplementedError

    @property
    def _is_without_device(self) -> bool:
        """Whether the graph is planned for a device that this process does not have."""
        raise NotImplementedError

    def _open_handle(self) -> Handle:
        raise NotImplementedError

    def _complete(self, values: Mapping[Any, object]) -> Mapping[Any, object]:
        """``values`` with the arrays that stood for tensors when the graph was written."""
        raise NotImplementedError


def _values_of(knobs: object) -> dict[KnobType, tuple[int, ...]]:
    where = "autotune.knobs"
    return {
        backend_knob(kind, where): integers(values if isinstance(values, Sequence) else (values,), f"{where}[{kind!r}]")
        for kind, values in mapping(knobs, where, "knob_type").items()
    }


def _given(plans: PlanList, values: object, handle: Handle, kept: list[object]) -> dict[int, int]:
    """The addresses of the inputs among ``values`` by uid; ``kept`` keeps what they are addresses of."""
    where = "autotune.tensor_dict"
    given = mapping(values, where, "tensors")
    keys = Keys(plans.tensors, given)
    if keys.unknown:
        raise BadParamError.at(where, expected="tensors of the graph", got="others too", hint=keys.explain_unknown())
    inputs = {tensor.uid: tensor for tensor in plans.graph.inputs if tensor.constant_value is None}
    found: dict[int, int] = {}
    for uid, key in keys.by_uid.items():
        if uid not in inputs:
            continue
        tensor = inputs[uid]
        need = Need(f"autotune.tensor_dict[{tensor.name!r} (uid {uid})]", tensor.span_bytes, tensor.data_type, False)
        value = given[key]
        getter = host_getter(value, tensor.data_type) if tensor.is_by_value else device_getter(value)
        found[uid] = getter(value, handle, need, kept)
    return found
