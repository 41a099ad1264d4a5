"""NCCL: the names and arguments of every call against nccl4py, the order of calls against a recorder, and GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowdnn.distributed import nccl
from lowdnn.distributed.communicator import ReduceOp
from lowdnn.distributed.errors import CommunicationError, CommunicationTimeoutError, PeerFailedError
from lowdnn.distributed.file_store import FileStore
from lowdnn.distributed.nccl import DATA_TYPES, OPERATIONS, NcclCommunicator
from lowdnn.distributed.rendezvous import Members
from lowdnn.driver import open_driver
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.context import Context
from lowdnn.runtime.stream import Stream
from lowdnn.status import CudaGraphNativeApiError, NotSupportedError, RuntimePrerequisiteMissingError
from tests.support.errors import raises

#: The arguments of the bindings' functions, in order.
SIGNATURES = {
    "all_reduce": "sendbuff recvbuff count datatype op comm stream",
    "all_gather": "sendbuff recvbuff sendcount datatype comm stream",
    "reduce_scatter": "sendbuff recvbuff recvcount datatype op comm stream",
    "broadcast": "sendbuff recvbuff count datatype root comm stream",
    "send": "sendbuff count datatype peer comm stream",
    "recv": "recvbuff count datatype peer comm stream",
    "group_start": "",
    "group_end": "",
    "comm_init_rank_scalable": "nranks myrank n_id comm_ids config",
    "comm_get_async_error": "comm",
    "comm_finalize": "comm",
    "comm_destroy": "comm",
    "comm_abort": "comm",
    "get_error_string": "result",
    "get_last_error": "comm",
    "get_unique_id": "",
    "get_version": "",
}


class Result(IntEnum):
    Success = 0
    InternalError = 3
    InProgress = 7


class NCCLError(Exception):
    """As that of the bindings."""


class Recorder:
    """Stands for the bindings: ``calls`` has each call by its name; ``results`` what the next states are."""

    Result = Result
    NCCLError = NCCLError
    DataType = IntEnum("DataType", [(name, number) for number, name in enumerate(DATA_TYPES.values(), 10)])
    RedOp = IntEnum("RedOp", [(name, number) for number, name in enumerate(OPERATIONS.values())])

    class Config:
        ptr = 77
        blocking = 1

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.results: list[Result] = []

    def comm_get_async_error(self, comm: int) -> Result:
        assert comm == 99
        if len(self.results) > 1:
            return self.results.pop(0)
        return self.results[0] if self.results else Result.Success

    def comm_init_rank_scalable(self, *arguments: Any) -> int:
        self.calls.append(("comm_init_rank_scalable", *arguments))
        return 99

    def get_error_string(self, result: int) -> str:
        return f"error {result}"

    def get_last_error(self, comm: int) -> str:
        return "the last one"

    def __getattr__(self, name: str) -> Callable[..., None]:
        assert len(SIGNATURES[name].split()) >= 0
        return lambda *arguments: self.calls.append((name, *arguments))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(nccl, "bindings", lambda: made)
    return made


@pytest.fixture
def context() -> Iterator[Context]:
    with Context(open_driver("emulated")) as made:
        yield made


def test_the_bindings_have_what_is_called() -> None:
    """Names, order of arguments and members of enums of the installed nccl4py."""
    real = pytest.importorskip("nccl.bindings.nccl")
    for name, arguments in SIGNATURES.items():
        found = re.match(rf"{name}\((.*?)\)", getattr(real, name).__doc__ or f"{name}()")
        assert found is not None, name
        assert [one.split()[-1] for one in found[1].split(",") if one] == arguments.split(), name
    assert all(hasattr(real.DataType, name) for name in DATA_TYPES.values())
    assert all(hasattr(real.RedOp, name) for name in OPERATIONS.values())
    assert (real.Result.Success, real.Result.InProgress) == (Result.Success, Result.InProgress)
    config = real.Config()
    config.blocking = 0
    assert (config.blocking, type(config.ptr)) == (0, int)
    real.check_status(Result.InProgress)  # a communicator that does not block returns it, and it is no error
    assert issubclass(real.NCCLError, Exception)
    assert len(bytes(real.UniqueId())) == 128


def test_calls_in_a_capture_leave_it_whole(recorder: Recorder, context: Context) -> None:
    """Calls go to the captured stream, once NCCL has taken each over, and nothing asks the stream meanwhile."""
    with (
        Stream.create(context) as stream,
        NcclCommunicator(b"token", 0, 2, context) as communicator,
        DeviceBuffer.allocate(context, 16, data_type=DataType.FLOAT, shape=(4,)) as four,
    ):
        stream.begin_capture()
        recorder.results = [Result.InProgress] * 3 + [Result.Success]
        communicator.all_reduce(four, four, stream=stream)
        assert recorder.results == [Result.Success]
        with communicator.group():
            communicator.send(four, peer=1, stream=stream)
            communicator.recv(four, peer=1, stream=stream)
        communicator.barrier(stream=stream)
        communicator.check()
        with raises(CudaGraphNativeApiError, "Communicator.wait.stream"):
            communicator.wait(stream)
        context.driver.graph_destroy(stream.end_capture())
        communicator.wait(stream)
        handle = stream.handle
    names = [call[0] for call in recorder.calls]
    assert names[1:7] == ["all_reduce", "group_start", "send", "recv", "group_end", "all_reduce"]
    assert all(call[-1] == handle for call in recorder.calls if call[0] in ("all_reduce", "send", "recv"))
    assert "comm_abort" not in names


def test_what_is_called_in_which_order(recorder: Recorder, context: Context) -> None:
    """Counts are elements in reductions and bytes in moves; groups and finalisation are waited for."""
    recorder.results = [Result.InProgress, Result.InProgress, Result.Success]
    with (
        Stream.create(context) as stream,
        NcclCommunicator(b"token", 1, 2, context) as communicator,
        ExitStack() as owned,
    ):
        given, made = (
            owned.enter_context(DeviceBuffer.allocate(context, 32, data_type=DataType.FLOAT, shape=(8,)))
            for _ in range(2)
        )
        part = made.view(16, 16, data_type=DataType.FLOAT, shape=(4,))
        recorder.results = [Result.InProgress] * 5 + [Result.Success]
        communicator.all_reduce(given, made, stream=stream, op=ReduceOp.MAX)
        assert recorder.results == [Result.Success]
        communicator.all_gather(part, made, stream=stream)
        communicator.reduce_scatter(given, part, stream=stream)
        communicator.broadcast(given, root=1, stream=stream)
        with communicator.group():
            communicator.send(given, peer=0, stream=stream)
            communicator.recv(made, peer=0, stream=stream)
        communicator.barrier(stream=stream)
        communicator.wait(stream)
        a, b, c, s = given.address, made.address, part.address, stream.handle
        barrier = recorder.calls[-1][1]
    real = recorder.DataType
    single, whole, raw = real["Float32"].value, real["Int32"].value, real["Uint8"].value
    assert recorder.calls == [
        ("comm_init_rank_scalable", 2, 1, 1, b"token", 77),
        ("all_reduce", a, b, 8, single, recorder.RedOp["Max"].value, 99, s),
        ("all_gather", c, b, 16, raw, 99, s),
        ("reduce_scatter", a, c, 4, single, recorder.RedOp["Sum"].value, 99, s),
        ("broadcast", a, a, 32, raw, 1, 99, s),
        ("group_start",),
        ("send", a, 32, raw, 0, 99, s),
        ("recv", b, 32, raw, 0, 99, s),
        ("group_end",),
        ("all_reduce", barrier, barrier, 1, whole, recorder.RedOp["Sum"].value, 99, s),
        ("comm_finalize", 99),
        ("comm_destroy", 99),
    ]


def test_ranks_that_never_come_and_errors_of_nccl(recorder: Recorder, context: Context) -> None:
    """Either aborts the communicator, and later calls say why."""
    recorder.results = [Result.InProgress]
    with raises(CommunicationTimeoutError, "ncclCommInitRankScalable", expected="within 0.1 s"):
        NcclCommunicator(b"token", 0, 2, context, timeout_s=0.1)
    assert recorder.calls[-1] == ("comm_abort", 99)
    recorder.results = []
    with NcclCommunicator(b"token", 0, 2, context, timeout_s=0.1):
        recorder.results = [Result.InProgress]
    assert [call[0] for call in recorder.calls[-2:]] == ["comm_finalize", "comm_abort"]
    recorder.results = []
    with Stream.create(context) as stream, NcclCommunicator(b"token", 0, 2, context) as communicator:
        recorder.results = [Result.InternalError]
        with raises(PeerFailedError, "Communicator of rank 0", got="error 3: the last one"):
            communicator.barrier(stream=stream)
        assert recorder.calls[-1] == ("comm_abort", 99)
        calls = len(recorder.calls)
        with raises(PeerFailedError, "Communicator of rank 0", got="error 3: the last one"):
            communicator.wait(stream)
    assert len(recorder.calls) == calls  # closing does not end it again


def test_an_error_of_a_call_is_a_status(recorder: Recorder, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: int) -> None:
        raise NCCLError("InvalidUsage (5): invalid usage")

    with Stream.create(context) as stream, NcclCommunicator(b"token", 0, 1, context) as communicator:
        monkeypatch.setattr(recorder, "all_reduce", refuses, raising=False)
        with raises(CommunicationError, "ncclAllReduce", expected="success", got="InvalidUsage (5)"):
            communicator.barrier(stream=stream)


def test_emulated_devices_are_refused(context: Context, tmp_path: Path) -> None:
    store = FileStore(tmp_path, 0, 1)
    with raises(NotSupportedError, "connect.context", expected="a GPU's"):
        nccl.connect(store, Members((0,), 0), context)


def test_nccl_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(nccl.importlib, "import_module", missing)
    with raises(RuntimePrerequisiteMissingError, "nccl", expected="nccl4py"):
        nccl.bindings()


@pytest.mark.gpu
def test_one_gpu(cuda_driver: Any) -> None:
    """A communicator of one rank through the real library, captured into a graph, too."""
    real = pytest.importorskip("nccl.bindings.nccl")
    with Context(cuda_driver) as context, Stream.create(context) as stream:
        token = bytes(real.get_unique_id())
        with NcclCommunicator(token, 0, 1, context) as communicator:
            given = DeviceBuffer.allocate(context, 32, data_type=DataType.FLOAT, shape=(8,))
            made = DeviceBuffer.allocate(context, 32, data_type=DataType.FLOAT, shape=(8,))
            given.copy_from_host(np.arange(8, dtype=np.float32), stream)
            communicator.all_reduce(given, given, stream=stream)
            stream.begin_capture()
            communicator.all_gather(given, made, stream=stream)
            graph = stream.end_capture()
            with context.activated():
                executable = cuda_driver.graph_instantiate(graph)
                cuda_driver.graph_launch(executable, stream.handle)
            communicator.wait(stream)
            np.testing.assert_array_equal(made.to_host(stream), np.arange(8, dtype=np.float32))
            with context.activated():
                cuda_driver.graph_exec_destroy(executable)
                cuda_driver.graph_destroy(graph)
            for buffer in (given, made):
                buffer.close()
