"""One row of a device suite: a case through lowdnn and through its peers, in turns on the same inputs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from lowdnn.backend.handle import Handle
from lowdnn.bench.floor import card_named, data_bytes, data_type_of, floor_us, recurrent_operations, step_floor_us
from lowdnn.bench.recurrent_floor import steps_of
from lowdnn.bench.suites import SuiteCase
from lowdnn.bench.table import Machine, Row
from lowdnn.cases import parse_case
from lowdnn.cases.base import Case
from lowdnn.cases.families.recurrent import RnnCase
from lowdnn.engines.registry import engine_named
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate, candidate_for, rank
from lowdnn.plan import Plan
from lowdnn.runtime.timing import slots_for
from lowdnn.runtime.workspace import Workspace
from lowdnn.status import LowdnnError, NotSupportedError
from tools.bench.capture import timed
from tools.bench.data import CaseData, Result
from tools.bench.peers.catalog import Peer, peers_of
from tools.bench.peers.recurrent import exact_results


class WrongResultError(Exception):
    """lowdnn's result differs from a peer's, or there is no peer to compare it with."""


def measure(handle: Handle, suite: str, case: SuiteCase, machine: Machine, engine: str | None) -> Row:
    """The row of one case. A case that fails or computes something else than its peer has a row with ``error``."""
    graph, card = parse_case(case.text).graph(), card_named(machine.gpu)
    blank = Row(
        suite=suite,
        class_=case.class_,
        case=case.text,
        network=case.network,
        dtype=data_type_of(graph).name,
        engine=engine or "",
        knobs="",
        us=0.0,
        floor_us=round(floor_us(graph, card), 2),
        peer="",
        peer_us=0.0,
        ratio=0.0,
        spread=0.0,
        step_floor_us=round(step_floor_us(graph, card), 3),
        **vars(machine),
    )
    try:
        return _measured(handle, graph, chosen(handle, graph, engine).plan, blank)
    except (LowdnnError, WrongResultError, torch.cuda.OutOfMemoryError) as error:
        return replace(blank, error=f"{type(error).__name__}: {error}".splitlines()[0])


def chosen(handle: Handle, graph: OperationGraph, engine: str | None = None) -> Candidate:
    """The heuristics' first choice, or the named engine with the knobs that it takes by default."""
    if engine is not None:
        return candidate_for(engine_named(engine), graph, handle.arch, {})
    ranking = rank(graph, handle.arch, HeurMode.A, handle.engines)
    if ranking.best is None:
        raise NotSupportedError(f"no engine takes the graph: {ranking.explain()}")
    return ranking.best


def _measured(handle: Handle, graph: OperationGraph, plan: Plan, blank: Row) -> Row:
    loaded = handle.load(plan)
    case = parse_case(blank.case)
    steps = _steps(graph)
    data = CaseData(case, graph, slots_for(data_bytes(graph), steps))
    addresses = data.addresses(loaded.uids)
    with Workspace(handle.runtime.context, plan.workspace_bytes) as workspace:

        def ours(slot: int) -> None:
            loaded.execute(addresses[slot], workspace.address, torch.cuda.current_stream().cuda_stream)

        ours(0)
        torch.cuda.synchronize()
        peers = _agreeing(case, data, blank.case)
        timings = timed({"lowdnn": ours, **peers}, data.slots)
    mine = timings.pop("lowdnn")
    best = min(timings, key=lambda name: timings[name].us)
    return replace(
        blank,
        engine=plan.engine,
        knobs=" ".join(f"{knob.name}={value}" for knob, value in plan.choices) or " + ".join(plan.parts),
        us=round(mine.us, 2),
        peer=best,
        peer_us=round(timings[best].us, 2),
        ratio=round(timings[best].us / mine.us, 3),
        spread=round(max(mine.spread, timings[best].spread), 3),
        step_us=round(mine.us / steps, 3) if steps else 0.0,
    )


def _steps(graph: OperationGraph) -> int:
    """Steps of all layers of a recurrent network; 0 of other graphs."""
    recurrent = recurrent_operations(graph)
    return steps_of(recurrent[0].rnn) if recurrent else 0


def _agreeing(case: Case, data: CaseData, text: str) -> dict[str, Peer]:
    """The peers that run, without those that lowdnn and another peer contradict.

    Raises WrongResultError where none of them agrees with lowdnn.
    """
    running, wrong = {}, ""
    for name, peer in peers_of(case, data).items():
        try:
            result = peer(0)
        except Exception as error:  # a peer may refuse a case in any way it likes; it is then no peer
            print(f"  no peer {name} for {text}: {error}".splitlines()[0], file=sys.stderr)
            continue
        if found := _contradiction(case, data, result):
            wrong = f"lowdnn and {name} disagree: {found}"
            print(f"  {text}: {wrong}", file=sys.stderr)
            continue
        running[name] = peer
    if not running:
        raise WrongResultError(wrong or "no peer runs this case")
    return running


def _contradiction(case: Case, data: CaseData, result: Result) -> str:
    """How far lowdnn's results are from a peer's, where roundings do not explain it; else empty."""
    found = data.disagreement(result)
    if found and isinstance(case, RnnCase) and isinstance(result, Sequence):
        return data.excess(result, exact_results(case, data))
    return found
