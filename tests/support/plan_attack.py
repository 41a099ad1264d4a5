"""Reads mutated documents and counts the outcomes."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.config import Config
from lowdnn.engines.registry import ENGINES
from lowdnn.frontend.python_graph import pygraph
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.stored_plans import Reading, read_plan
from lowdnn.status import ArchMismatchError, BadParamError, NotSupportedError, SerializationVersionMismatchError
from tests.support.plan_mutations import Document, corpus, mutated
from tests.support.watching import Overtime, Watch

#: Exceptions that readers may raise by their docstrings.
_DOCUMENTED = {
    "plan": (BadParamError, SerializationVersionMismatchError, ArchMismatchError),
    "pygraph": (BadParamError, SerializationVersionMismatchError, ArchMismatchError),
    "operations": (BadParamError, SerializationVersionMismatchError, NotSupportedError),
}


@dataclass
class Attack:
    """The outcomes by kind, and the findings, each with the arguments that repeat it."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    compiled: int = 0


def attack(
    seed: int,
    count: int,
    *,
    first: int = 0,
    limit_s: float = 20.0,
    report: Callable[[int, Attack], None] | None = None,
) -> Attack:
    """Reads ``count`` mutations, those of ``seed`` from number ``first`` on; a tenth of them with ``rebuild``.

    ``report`` is called with the number of each one when it is done.
    """
    found, watch = Attack(), Watch()
    config = Config(device="emulated", emulated_arch="sm_90a", disk_cache=False)
    with pytest.MonkeyPatch.context() as patch, watch.installed(patch), Handle.open(config=config) as handle:
        documents = corpus(handle.arch.compute_capability)
        for document in documents:
            _read(document.kind, document.text, handle, rebuild=False)
        for number in range(first, first + count):
            rng = np.random.default_rng([seed, number])
            document, text = mutated(rng, documents)
            rebuild = bool(document.kind != "operations" and rng.random() < 0.1)
            outcome = _outcome(document, text, handle, rebuild, watch, limit_s)
            where = f"--seed {seed} --first {number} --count 1 ({document.kind}, {document.name})"
            found.outcomes[f"{document.kind}: {outcome.split(' | ')[0]}"] += 1
            if " | " in outcome:
                found.findings.append(f"{outcome}\n  {where}")
            for label, heard in (("opened", watch.opened), ("forbidden", watch.forbidden), ("compiled", watch.strange)):
                found.findings += [f"{label} {item[:200]!r}\n  {where}" for item in heard]
                heard.clear()
            found.compiled = watch.compiled
            if report is not None:
                report(number, found)
    return found


def _outcome(document: Document, text: str | bytes, handle: Handle, rebuild: bool, watch: Watch, limit_s: float) -> str:
    try:
        with watch.step(limit_s):
            _read(document.kind, text, handle, rebuild=rebuild)
    except _DOCUMENTED[document.kind] as error:
        return f"refused, {type(error).__name__}"
    except Overtime:
        return f"overtime | more than {limit_s} s"
    except Exception:
        return f"undocumented | {traceback.format_exc(limit=-6)}"
    return "taken, with rebuild" if rebuild else "taken"


def _read(kind: str, text: str | bytes, handle: Handle, *, rebuild: bool) -> None:
    if kind == "plan":
        read_plan(text, Reading(ENGINES, handle.arch, rebuild), "file")
    elif kind == "pygraph":
        pygraph().deserialize(handle, text, rebuild=rebuild)
    else:
        OperationGraph.from_json(text if isinstance(text, str) else text.decode(errors="surrogateescape"))
