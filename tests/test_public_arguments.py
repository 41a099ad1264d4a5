"""Arguments of wrong types through the public functions of lowdnn and the methods of its classes.

Functions that mirror cudnn-frontend are tested in ``tests/frontend``: there a bool is an integer, as pybind11 has it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import lowdnn
from lowdnn import Handle, TuningOptions, frontend
from lowdnn.heuristics.tuning.search import Scope
from lowdnn.status import LowdnnError

#: Values that are given to each parameter in its turn.
VALUES: Mapping[str, object] = {
    "5": 5,
    "-1": -1,
    "1.5": 1.5,
    "nan": float("nan"),
    "inf": float("inf"),
    "True": True,
    "None": None,
    "text": "nope",
    "bytes": b"nope",
    "object": object(),
    "list": [],
    "list of text": ["nope"],
    "list of 5": [5],
    "list of True": [True],
    "dict": {},
    "dict of 5": {"nope": 5},
    "array": np.zeros(2, np.float32),
}
#: The names of the values that have the type that an annotation says; they may be refused, and no others are taken.
FITTING: Mapping[str, str] = {
    "int": "5, -1",
    "int | None": "5, -1, None",
    "float": "5, -1, 1.5, inf",
    "float | None": "5, 1.5, None",
    "bool": "True",
    "str | None": "text, None",
    "str": "text",
    "str | os.PathLike[str]": "text, bytes",
    "str | int": "text, 5, -1",
    "object": "5, -1, None",  # a stream, or a workspace
    "CompilePolicy | str | None": "text, None",
    "tuple[int, ...]": "list, list of 5",
    "Sequence[int]": "list, list of 5, dict",
    "Sequence[int] | None": "list, list of 5, dict, None",
    "tuple[int, ...] | list[int] | None": "list, list of 5, dict, None",
    "Sequence[str]": "list, list of text, dict, dict of 5",
    "Sequence[str | int]": "list, list of text, list of 5, dict, dict of 5",
    "Iterable[str | pygraph]": "list, list of text, dict, dict of 5",
    "Sequence[NeedsWorkspace]": "list, dict",
    "NDArray[Any]": "array",
    "DataTypeLike": "None, text",
    "Mapping[Any, str] | None": "None, dict",
    "Mapping[str, object]": "dict, dict of 5",
    "Mapping[Any, object] | None": "None, dict, dict of 5",
    "Mapping[knob_type, int | Sequence[int]] | None": "None, dict",
    "Handle | None": "None",
    "Config | None": "None",
    "Bundle | None": "None",
    "BackendHandle | None": "None",
    "PlanCache | None": "None",
    "TuningOptions | None": "None",
}

#: Methods that other modules of lowdnn call, with objects of their own.
OF_OTHER_MODULES = {
    *(f"Handle.{name}" for name in ("adopt", "begin", "check_open", "companion", "entered", "note_failure", "rank")),
    *(f"Handle.{name}" for name in ("load", "load_candidate")),
    *(f"PlanCache.{name}" for name in ("find", "home", "keep")),
}


class Subjects:
    """Objects on one emulated device, whose methods are called."""

    def __init__(self, stack: ExitStack) -> None:
        self.handle = stack.enter_context(lowdnn.create_handle("emulated"))
        self.pool = stack.enter_context(lowdnn.WorkspacePool(self.handle))
        self.tensor = stack.enter_context(lowdnn.zeros((2, 3), self.handle))
        self.graph = _built(self.handle)
        self.sequence = lowdnn.GraphSequence().add(self.graph, {"y": "h"}).add(_built(self.handle), {"x": "h"})
        self.values = {name: stack.enter_context(lowdnn.zeros((4, 4), self.handle)) for name in ("x", "y")}
        self.kernels = lowdnn.kernel_set(["matmul m=64 n=64 k=64"], self.handle)

    def calls(self) -> dict[str, tuple[Callable[..., object], dict[str, Any]]]:
        """By name a function, and the arguments that it needs at least."""
        handle, graph, tensor, pool = self.handle, self.graph, self.tensor, self.pool
        cases = ["matmul m=64 n=64 k=64"]
        return {
            "Handle.open": (lowdnn.Handle.open, {"device": "emulated"}),
            "Handle.set_stream": (handle.set_stream, {"stream": 0}),
            "Handle.tuning": (self._set_tuning, {"tuning": None}),
            "create_handle": (lowdnn.create_handle, {"device": "emulated"}),
            "create_stream": (lowdnn.create_stream, {"handle": handle}),
            "create_event": (lowdnn.create_event, {"handle": handle}),
            "empty": (lowdnn.empty, {"shape": (2, 3), "handle": handle}),
            "zeros": (lowdnn.zeros, {"shape": (2, 3), "handle": handle}),
            "from_numpy": (lowdnn.from_numpy, {"array": np.zeros((2, 3), np.float32), "handle": handle}),
            "channels_last_strides": (lowdnn.channels_last_strides, {"dims": (1, 2, 3)}),
            "load_bundle": (lowdnn.load_bundle, {"path": "nope", "trust": True}),
            "kernel_set": (lowdnn.kernel_set, {"cases": cases, "handle": handle, "shapes": 2}),
            "build_kernels": (lowdnn.build_kernels, {"kernels": self.kernels, "handle": handle}),
            "TuningOptions.init": (lowdnn.TuningOptions, {}),
            "PlanCache.init": (lowdnn.PlanCache, {}),
            "WorkspacePool.init": (lowdnn.WorkspacePool, {"handle": handle}),
            "WorkspacePool.reserve": (pool.reserve, {"graphs": [graph]}),
            "WorkspacePool.reserve_bytes": (pool.reserve_bytes, {"size_bytes": 256}),
            "WorkspacePool.release": (pool.release, {}),
            "WorkspacePool.trim": (pool.trim, {}),
            "GraphSequence.init": (lowdnn.GraphSequence, {}),
            "GraphSequence.add": (lowdnn.GraphSequence().add, {"graph": graph}),
            "GraphSequence.execute": (self.sequence.execute, {"values": self.values, "workspace": pool}),
            "DeviceTensor.copy_from": (tensor.copy_from, {"array": np.zeros((2, 3), np.float32)}),
            "DeviceTensor.permute": (tensor.permute, {"axes": (1, 0)}),
            "DeviceTensor.reshape": (tensor.reshape, {"shape": (3, 2)}),
            "DeviceTensor.view": (tensor.view, {"shape": (3, 2)}),
            "pygraph.autotune": (graph.autotune, {"budget_s": 0.01}),
            "pygraph.run": (self._run, {"values": {"x": tensor}}),
        }

    def _run(self, values: Mapping[Any, object] | None = None, handle: Handle | None = None) -> None:
        self.graph.run(values, handle=handle)

    def _set_tuning(self, tuning: TuningOptions | None = None) -> None:
        self.handle.tuning = tuning


def _built(handle: lowdnn.Handle) -> lowdnn.pygraph:
    graph = lowdnn.pygraph("g", *[frontend.data_type.FLOAT] * 3, handle=handle)
    graph.relu(graph.tensor([4, 4], name="x")).set_output(True).set_name("y")
    graph.build()
    return graph


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subjects]:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("LOWDNN_DEVICE", "emulated")
        patch.setenv("LOWDNN_TUNING_PATH", str(tmp_path_factory.mktemp("tuning")))
        yield Subjects(stack)


def test_every_public_function_is_called(subjects: Subjects) -> None:
    called = {name.removesuffix(".init") for name in subjects.calls()}
    public = {name for name in lowdnn.__all__ if not isinstance(getattr(lowdnn, name), type)}
    for kind in (lowdnn.Handle, lowdnn.PlanCache, lowdnn.WorkspacePool, lowdnn.GraphSequence, lowdnn.DeviceTensor):
        for name in vars(kind):
            method = getattr(kind, name)
            if not name.startswith("_") and callable(method) and len(inspect.signature(method).parameters) > 1:
                public.add(f"{kind.__name__}.{name}")
    assert public - OF_OTHER_MODULES <= called


def test_values_of_other_types(subjects: Subjects) -> None:
    problems = []
    for name, (function, given) in subjects.calls().items():
        for parameter in inspect.signature(function).parameters.values():
            fitting = FITTING.get(str(parameter.annotation), "").split(", ")
            for label, value in VALUES.items():
                found = _outcome(function, {**given, parameter.name: value}, parameter.name)
                if found and not (label in fitting and found in ("taken", "refused")):
                    problems.append(f"{name}({parameter.name}={label}): {found}")
    assert not problems, "\n".join(problems)


def _outcome(function: Callable[..., object], arguments: dict[str, Any], name: str) -> str:
    """Empty where an error of lowdnn names the argument; "refused" where another one is raised."""
    try:
        result = function(**arguments)
    except LowdnnError as error:
        return "" if re.search(rf"{name}\b.*: expected .*, got ", str(error)) else "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    close = getattr(result, "close", None)
    if close is not None and not isinstance(result, lowdnn.DeviceTensor | lowdnn.GraphSequence):
        close()
    return "taken"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("budget_s", value) for value in (0, -1, float("nan"), True, "1")),
        *(("most_kernels", value) for value in (0, -1, 1.0, True)),
        *(("processes", value) for value in (-1, 257, True, None)),
        *(("scope", value) for value in (None, {}, Scope)),
    ],
)
def test_tuning_options(field: str, value: object) -> None:
    with pytest.raises(LowdnnError, match=rf"tuning\.{field}: expected .*, got "):
        lowdnn.TuningOptions(**{field: value})  # type: ignore[arg-type]
