"""Two GPUs, a process each, through NCCL: collectives against NumPy, a killed rank, the demo, and equal bits."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from lowdnn.config import with_variables
from lowdnn.distributed.launching import launch
from lowdnn.distributed.place import Place
from lowdnn.distributed.tcp_store import TcpStoreServer
from lowdnn.driver import open_driver
from tests.cli.test_training import smooth_seed
from tests.support.data import fresh_seed

pytestmark = pytest.mark.gpu

#: The beginning of each program: a communicator of all ranks.
BEGINNING = """
import json, os, signal, sys, time
from pathlib import Path
import numpy as np
from lowdnn import dtypes
from lowdnn.backend import Handle
from lowdnn.distributed import (
    CommunicationError, CommunicationTimeoutError, Meeting, Place, ReduceOp, Split, connect, everyone, survivors
)
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.stream import Stream

place = Place.from_environment()
out, seed, timeout_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
meeting = Meeting(place, timeout_s=60)
handle = Handle.open("cuda", ordinal=place.local_rank)
context = handle.runtime.context
stream = Stream.create(context)
members = everyone(place)
communicator = connect(meeting.store, members, context, timeout_s=timeout_s)

def device(array, data_type=DataType.FLOAT):
    made = DeviceBuffer.allocate(context, array.nbytes, data_type=data_type, shape=array.shape)
    made.copy_from_host(np.ascontiguousarray(array), stream)
    return made
"""

COLLECTIVES = """
rng, size, own = np.random.default_rng(seed), place.world_size, place.rank
reduced = [DataType.DOUBLE, DataType.FLOAT, DataType.HALF, DataType.BFLOAT16, DataType.INT8, DataType.UINT8,
           DataType.INT32, DataType.INT64]
functions = {ReduceOp.SUM: np.add, ReduceOp.PROD: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}
for count in (1, 7, 4096, int(rng.integers(1, 300_000))):
    for data_type in dtypes.supported():
        given = dtypes.from_float64(rng.integers(0, 4, (size, size * count)).astype(np.float64), data_type)
        for op, function in functions.items() if data_type in reduced else ():
            expected = dtypes.from_float64(function.reduce(dtypes.to_values(given, data_type), 0), data_type)
            source, part = device(given[own], data_type), device(given[own, :count], data_type)
            communicator.reduce_scatter(source, part, stream=stream, op=op)
            communicator.all_reduce(source, source, stream=stream, op=op)
            communicator.wait(stream)
            np.testing.assert_array_equal(source.to_host(stream), expected, f"{data_type} {op} {count}")
            np.testing.assert_array_equal(part.to_host(stream), expected[own * count : (own + 1) * count])
        gathered, sent = device(np.zeros_like(given), data_type), device(given[own], data_type)
        communicator.all_gather(sent, gathered, stream=stream)
        received = device(np.zeros_like(given[0]), data_type)
        with communicator.group():
            communicator.send(sent, peer=(own + 1) % size, stream=stream)
            communicator.recv(received, peer=(own - 1) % size, stream=stream)
        communicator.broadcast(sent, root=1, stream=stream)
        communicator.barrier(stream=stream)
        communicator.wait(stream)
        np.testing.assert_array_equal(gathered.to_host(stream), given, data_type.name)
        np.testing.assert_array_equal(received.to_host(stream), given[(own - 1) % size], data_type.name)
        np.testing.assert_array_equal(sent.to_host(stream), given[1], data_type.name)

# Ten steps of a captured graph: the sum grows by the number of ranks each time.
one, driver = device(np.ones(5000, np.float32)), handle.runtime.driver
communicator.all_reduce(one, one, stream=stream)
communicator.wait(stream)
stream.begin_capture()
communicator.all_reduce(one, one, stream=stream)
graph = stream.end_capture()
with context.activated():
    executable = driver.graph_instantiate(graph)
    for _ in range(9):
        driver.graph_launch(executable, stream.handle)
communicator.wait(stream)
np.testing.assert_array_equal(one.to_host(stream), np.float32(size**10))
with context.activated():
    driver.graph_exec_destroy(executable)
    driver.graph_destroy(graph)
communicator.close()
(out / f"rank{own}").write_text(json.dumps(True))
"""

IS_LOST = """
one = device(np.ones(1 << 20, np.float32))
communicator.all_reduce(one, one, stream=stream)
communicator.wait(stream)
if place.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
start, error = time.monotonic(), None
try:
    while True:
        communicator.all_reduce(one, one, stream=stream)
        communicator.wait(stream)
except CommunicationError as caught:
    error = caught
took_s = time.monotonic() - start
try:
    communicator.check()
    raise AssertionError("the communicator still works")
except CommunicationError:
    pass
left = survivors(meeting.store, members, "second", 1.0)
second = connect(meeting.store, left, context, name="second", timeout_s=timeout_s)
again = device(np.full(1000, 3, np.float32))
second.all_reduce(again, again, stream=stream)
second.wait(stream)
assert (again.to_host(stream) == 3 * left.size).all()
second.close()
(out / f"rank{place.rank}").write_text(json.dumps([took_s, type(error).__name__, left.ranks]))
"""

REFERENCE = """
from tests.cli.test_data_parallel import check_against_reference

for shards in (None, 2, 4):
    check_against_reference(handle, Split(communicator, shards), seed)
communicator.close()
(out / f"rank{place.rank}").write_text(json.dumps(True))
"""

REPEATS = """
from lowdnn.cli import digits
from lowdnn.cli.training.batches import Batches
from lowdnn.cli.training.network import Network, initial_parameters
from lowdnn.cli.training.session import Session

training, _ = digits.load()
rng = np.random.default_rng(seed)
with Session(handle, DataType.HALF, split=Split(communicator, 8)) as session:
    batches = Batches(session, training, 64, 1, rng)
    network = Network(session, 64, initial_parameters(rng), 4096)
    batches.load(0, network)
    found = set()
    for _ in range(100):
        network.forward()
        network.backward()
        session.synchronize()
        found.add(session.read_back(network.parameters.grads).tobytes() + np.float32(network.loss()).tobytes())
assert np.frombuffer(next(iter(found)), np.float32).any()
communicator.close()
(out / f"rank{place.rank}").write_text(json.dumps([len(found), hash(next(iter(found)))]))
"""


@pytest.fixture(autouse=True)
def two_gpus() -> None:
    pytest.importorskip("nccl.bindings.nccl")
    if open_driver("cuda").device_count() < 2:
        pytest.skip("needs two GPUs")


def command(program: str, directory: Path, timeout_s: float = 60) -> list[str]:
    text = BEGINNING + textwrap.dedent(program)
    return [sys.executable, "-c", text, str(directory), str(fresh_seed()), str(timeout_s)]


def read(directory: Path) -> dict[int, object]:
    """The value that each rank has written, by its number."""
    return {int(path.name.removeprefix("rank")): json.loads(path.read_text()) for path in directory.glob("rank*")}


def demo(arguments: Sequence[str]) -> list[str]:
    """The losses that the demo prints."""
    ran = subprocess.run(
        [sys.executable, "-m", "lowdnn", "demo", "--device", "cuda", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return re.findall(r"^step +\d+ +loss (\S+)", ran.stdout, re.MULTILINE)


def test_collectives_match_numpy(tmp_path: Path) -> None:
    assert launch(command(COLLECTIVES, tmp_path), 2) == 0
    assert read(tmp_path) == {0: True, 1: True}


def test_gradients_are_those_of_the_whole_batch_in_float64(tmp_path: Path) -> None:
    run = command(REFERENCE, tmp_path)
    run[4] = str(smooth_seed())
    assert launch(run, 2) == 0
    assert read(tmp_path) == {0: True, 1: True}


def test_a_killed_rank_is_an_error_and_the_other_goes_on(tmp_path: Path) -> None:
    timeout_s = 15.0  # NCCL itself takes seconds to begin
    with TcpStoreServer("127.0.0.1", 0, 2) as server:
        places = [Place(rank, 2, rank, "127.0.0.1", server.port, is_hosted=True) for rank in range(2)]
        run = command(IS_LOST, tmp_path, timeout_s)
        processes = [subprocess.Popen(run, env=with_variables(place.environment())) for place in places]
        assert [process.wait(120) for process in processes] == [0, -signal.SIGKILL]
    found = read(tmp_path)
    assert set(found) == {0}
    took_s, error, ranks = found[0]  # type: ignore[misc]
    assert took_s < timeout_s + 10
    assert error in ("CommunicationTimeoutError", "PeerFailedError", "CommunicationError")
    assert ranks == [0]


def test_a_hundred_runs_have_the_same_bits(tmp_path: Path) -> None:
    run = command(REPEATS, tmp_path)
    # The hash of bytes must be that of the other process.
    assert launch(run, 2, environment={"PYTHONHASHSEED": "0"}) == 0
    found = read(tmp_path)
    assert found[0] == found[1]
    assert isinstance(found[0], list)
    assert found[0][0] == 1


def test_the_demo_has_the_losses_of_one_gpu(tmp_path: Path) -> None:
    """Bit for bit in the deterministic mode, also across a checkpoint; the first ones to rounding otherwise."""
    exact = ["--deterministic", "--mixed-precision"]
    whole = demo([*exact, "--devices", "2"])
    assert whole == demo([*exact, "--devices", "1"])
    assert len(whole) == 7
    one, two = (float(demo(["--devices", count])[0]) for count in ("1", "2"))
    assert two == pytest.approx(one, rel=0.05)  # TF32, and ten steps of training
