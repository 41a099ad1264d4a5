"""``lowdnn replay``: a failing call that LOWDNN_DUMP has kept, run again.

On a GPU it runs once. On the emulated device it runs under many schedules with every check: bounds, bytes that nothing
has written, data races, deadlocks. Results are compared with the float64 reference, and with what the dump has.
"""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.backend.dumps import Dump, read_bytes, read_dump
from lowdnn.backend.handle import Handle
from lowdnn.cases.compare import differences, expected_outputs
from lowdnn.cases.families.any_graph import GraphCase
from lowdnn.cli.options import Options, check_ranges, opened
from lowdnn.cli.replay_arguments import add_replay_arguments
from lowdnn.cli.replay_memory import ReplayMemory
from lowdnn.cli.sanitizing import schedules
from lowdnn.driver.base import DriverError
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate
from lowdnn.heuristics.stored_plans import Reading
from lowdnn.one_line import one_line
from lowdnn.ops.memory import from_memory, to_memory
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError, LowdnnError

_WORDS = {"ok": "clean", "error": "FAULT"}


@dataclass(frozen=True)
class Verdict:
    """One run. status: ``ok``, ``FAILED`` (numbers differ from the reference) or ``error``.  fault: the emulated
    device's facts about a kernel that did wrong, by name.  compared: the outputs beside those of the dump."""

    path: str
    device: str
    policy: str
    plan: str
    status: str
    detail: str = ""
    compared: tuple[str, ...] = ()
    fault: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class _Call:
    """The dumped call, read whole. inputs: bytes by uid, of the tensors that a plan reads.  outputs: bytes by
    uid, from the dump.  drawn: uids of tensors that the dump has no bytes of, and which have drawn ones."""

    path: Path
    dump: Dump
    inputs: Mapping[int, bytes]
    outputs: Mapping[int, bytes]
    drawn: tuple[int, ...]


def replay(arguments: argparse.Namespace) -> int:
    """Prints one verdict for each schedule, or one of a GPU; 1 if one is not clean, otherwise 0.

    Raises BadParamError before anything runs for a folder that is no dump, or a damaged one.
    """
    given = Options("replay", arguments, add_replay_arguments)
    check_ranges("replay", arguments, {"schedules": (0, 10**4), "seed": (0, 2**63 - 1)})
    given.refuse_beside("policy", ["schedules"])
    path = Path(arguments.path)
    dump = read_dump(path)
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    if arguments.device != "cuda" and not arguments.arch:
        arguments.arch = _arch_of(dump)
    with opened(arguments, given) as handle:
        candidate = _candidate(handle, dump, arguments)
        call = _read_call(path, dump, candidate.graph, seed)
        if not arguments.json:
            _print_head(call)
        is_emulated = handle.runtime.driver.kind == "emulated"
        if not is_emulated or arguments.policy:
            return _told([_verdict(handle, candidate, call)], arguments)
    return _told(_under_schedules(call, candidate, arguments, schedules(seed, arguments.schedules)), arguments)


def _under_schedules(
    call: _Call, candidate: Candidate, arguments: argparse.Namespace, policies: tuple[str, ...]
) -> Iterator[Verdict]:
    """Each run has a device of its own, because a fault ends the context."""
    for policy in policies:
        with Handle.open("emulated", arch=arguments.arch, policy=policy) as handle:
            yield _verdict(handle, candidate, call)


def _told(verdicts: Iterator[Verdict] | list[Verdict], arguments: argparse.Namespace) -> int:
    all_clean = True
    for verdict in verdicts:
        print(json.dumps(asdict(verdict)) if arguments.json else _line(verdict), flush=True)
        all_clean &= verdict.status == "ok"
    return 0 if all_clean else 1


def _arch_of(dump: Dump) -> str:
    arch = dump.plan.get("arch")
    if not isinstance(arch, str):
        raise BadParamError.at("dump.plan.arch", expected="the name of an architecture", got=repr(arch))
    return arch


def _candidate(handle: Handle, dump: Dump, arguments: argparse.Namespace) -> Candidate:
    return dump.candidate(Reading(handle.engines, handle.arch, rebuild=arguments.rebuild))


def _read_call(path: Path, dump: Dump, graph: OperationGraph, seed: int) -> _Call:
    found: dict[str, dict[int, bytes]] = {"before": {}, "after": {}}
    for tensor in dump.tensors:
        known = graph.tensors.get(tensor.uid)
        if known is None or known.span_bytes != tensor.size_bytes:
            expected = f"tensors of the graph, with {0 if known is None else known.span_bytes} bytes"
            raise BadParamError.at(f"dump.tensors uid {tensor.uid}", expected=expected, got=tensor.size_bytes)
        if tensor.file:
            found[tensor.moment][tensor.uid] = read_bytes(path, tensor)
    drawn = _drawn(graph, seed)
    lacking = tuple(uid for uid in drawn if uid not in found["before"])
    inputs = {uid: found["before"].get(uid, data) for uid, data in drawn.items()}
    outputs = {tensor.uid: found["after"][tensor.uid] for tensor in graph.outputs if tensor.uid in found["after"]}
    return _Call(path, dump, inputs, outputs, lacking)


def _drawn(graph: OperationGraph, seed: int) -> dict[int, bytes]:
    """Random memory of every tensor that a plan of the graph reads, by uid."""
    case = GraphCase.of(graph)
    arrays = case.inputs(seed, exact=False)
    # The case has the same tensors in the same order, under numbers of its own.
    names = dict(zip(case.graph().tensors, graph.tensors, strict=True))
    return {names[uid]: to_memory(array, graph.tensors[names[uid]]).tobytes() for uid, array in arrays.items()}


def _verdict(handle: Handle, candidate: Candidate, call: _Call) -> Verdict:
    driver = handle.runtime.driver
    policy = handle.runtime.config.emulated_policy if driver.kind == "emulated" else ""
    blank = Verdict(str(call.path), driver.kind, policy, candidate.plan.name, "")
    try:
        outputs = _run(handle, candidate, call)
    except LowdnnError as error:
        fault = error.report if isinstance(error, DriverError) else {}
        return replace(blank, status="error", detail=str(error), fault=fault)
    wrong = _wrong(candidate, call, outputs)
    whose = ", whose execute had raised" if call.dump.failure == "execute" else ""
    compared = tuple(
        f"{tensor.label}: {_beside(outputs[tensor.uid], call.outputs[tensor.uid], tensor)}{whose}"
        for tensor in candidate.graph.outputs
        if tensor.uid in call.outputs
    )
    return replace(blank, status="FAILED" if wrong else "ok", detail=wrong, compared=compared)


def _run(handle: Handle, candidate: Candidate, call: _Call) -> dict[int, bytes]:
    """Executes the plan once on the dump's memory; the bytes of the outputs, by uid."""
    addresses = {one.uid: one.address for one in call.dump.tensors if one.moment == "before"}
    with ReplayMemory(handle.runtime.context, candidate.plan, addresses, call.inputs) as memory:
        handle.load_candidate(candidate).execute(memory.pointers, memory.workspace, handle.stream)
        handle.synchronize()
        return {tensor.uid: memory.bytes_of(tensor.uid) for tensor in candidate.graph.outputs}


def _wrong(candidate: Candidate, call: _Call, outputs: Mapping[int, bytes]) -> str:
    """The differences from the float64 reference; "" where there are none."""
    graph = candidate.graph
    inputs = {uid: _array(data, graph.tensors[uid]) for uid, data in call.inputs.items()}
    length = GraphCase.of(graph).length
    reports = []
    for uid, wanted in expected_outputs(graph, inputs, candidate.plan.numerical_notes, length).items():
        tensor = graph.tensors[uid]
        report = differences(_array(outputs[uid], tensor), wanted.values, tensor.data_type, wanted.allowed)
        if report:
            reports.append(f"{tensor.label}: {report}")
    return "\n".join(reports)


def _beside(found: bytes, dumped: bytes, tensor: Tensor) -> str:
    here, there = _array(found, tensor), _array(dumped, tensor)
    size = here.dtype.itemsize
    differ = (here.view(np.uint8).reshape(-1, size) != there.view(np.uint8).reshape(-1, size)).any(axis=1)
    count = int(np.count_nonzero(differ))
    return f"{count} of {differ.size} elements differ from the dump" if count else "equal to the dump, bit for bit"


def _array(data: bytes, tensor: Tensor) -> NDArray[Any]:
    return from_memory(np.frombuffer(data, dtypes.info(tensor.data_type).storage), tensor)


def _print_head(call: _Call) -> None:
    dump = call.dump
    print(f"{dump.failure} failed at {dump.time} on {dump.device} {dump.device_name}: {one_line(dump.error)}")
    for tensor in dump.tensors:
        if tensor.missing:
            print(f"  uid {tensor.uid} {tensor.moment}: no data, {one_line(tensor.missing)}")
    if call.drawn:
        print(f"  drawn in their place: uids {', '.join(map(str, call.drawn))}")


def _line(verdict: Verdict) -> str:
    word = _WORDS.get(verdict.status, verdict.status)
    text = f"{word:8s} {verdict.policy or verdict.device:34s} {verdict.plan}"
    lines = [*verdict.detail.splitlines(), *verdict.compared]
    return "\n  ".join([text, *map(one_line, lines)])
