"""States of dropout: two INT64 in device memory, the seed and how many forward calls of training have used it."""

from __future__ import annotations

from lowdnn.adv.rnn_descriptors import Dropout
from lowdnn.backend.handle import Handle
from lowdnn.enums import DataType, HeurMode, PointwiseMode
from lowdnn.graph.node_writer import NodeWriter
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.status import MisalignedPointerError, NotSupportedError, NullPointerError

STATES_BYTES = 16
_COUNT_OFFSET = 8


class StateCounter:
    """Adds 1 to the count of states, in the order of the handle's stream."""

    def __init__(self) -> None:
        self._loaded: LoadedPlan | None = None

    def count(self, handle: Handle, states: int) -> None:
        if self._loaded is None:
            self._loaded = _loaded(handle)
        address = states + _COUNT_OFFSET
        self._loaded.execute((address,) * len(self._loaded.uids), 0, handle.stream)


def draw(handle: Handle, dropout: Dropout | None, reserve: int) -> None:
    """Copies seed and count to the begin of a reserve space, and counts the call."""
    states = 0 if dropout is None else dropout.states
    where = "rnn_forward.dropout_desc.states"
    if not states:
        raise NullPointerError.at(where, expected="a pointer to the states of dropout", got="NULL")
    if states % _COUNT_OFFSET:
        raise MisalignedPointerError.at(where, expected=f"a multiple of {_COUNT_OFFSET}", got=f"{states:#x}")
    context = handle.runtime.context
    with context.activated():
        context.driver.memcpy_dtod_async(reserve, states, STATES_BYTES, handle.stream)
    handle.companion(StateCounter).count(handle, states)


def _loaded(handle: Handle) -> LoadedPlan:
    """The plan of new = old + 1."""
    writer = NodeWriter(alignment_bytes=_COUNT_OFFSET)
    old, one = writer.tensor((1,), DataType.INT64), writer.constant(1, DataType.INT64, 1)
    writer.pointwise(PointwiseMode.ADD, old, one, compute_type=DataType.DOUBLE, store=DataType.INT64)
    best = handle.rank(writer.graph(), HeurMode.A).best
    if best is None:
        raise NotSupportedError.at("rnn_forward.dropout_desc", expected="an engine that counts calls", got="none")
    return handle.load_candidate(best)
