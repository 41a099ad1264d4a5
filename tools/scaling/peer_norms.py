"""Norms over the batches of N GPUs of one host: ``python -m tools.scaling.peer_norms N [--emulated] [--out FILE]``.

Each rank is a thread of this process. The tool compares batch norm over all ranks with float64, forward and backward,
and an all-reduce with residual and RMS norm in one kernel; runs of the same call must give the same bits. It then times
captured launches: batch norm with peers against the rank's batch alone, and the one kernel against NCCL's all-reduce
followed by add and norm. With N = 1, two ranks share the GPU in two streams, and nothing is timed.

``--emulated`` does all but NCCL in small on emulated devices, whose times are those of their model. FILE gets what is
printed, line by line: a run that is cut short leaves what it has found. A part that fails is named, and the next
ones run all the same; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lowdnn.frontend as cudnn
from lowdnn import dtypes
from lowdnn.backend import Handle
from lowdnn.distributed import (
    AllReduceNorm,
    Communicator,
    FileStore,
    InProcessCommunicator,
    MeetingPoint,
    Members,
    PeerBuffers,
    connect,
    run_in_threads,
)
from lowdnn.driver import Driver, open_driver
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import LowdnnError, RuntimePrerequisiteMissingError
from tools.scaling.ranks import Crew, Rank, printed

Dims = tuple[int, int, int, int]

_EPSILON = 1e-3
#: Seconds after which a kernel gives up on a peer.
_PEER_TIMEOUT_S = 20.0
_BATCH_AXES = (0, 1, 3, 4)
_SINGLE = cudnn.data_type.FLOAT
_TYPES = {DataType.FLOAT: _SINGLE, DataType.BFLOAT16: cudnn.data_type.BFLOAT16}
#: The largest error that passes, as a share of the largest value; BFLOAT16 rounds to 2^-9 of a value.
_TOLERANCES = {DataType.FLOAT: 1e-5, DataType.BFLOAT16: 2.0**-7}


@dataclass(frozen=True)
class Sizes:
    """The sizes of a run. checked, timed: N, C, H and W of a rank. launches: those of a captured graph; with 0
    no time is taken. runs: how often a call is repeated for its bits."""

    checked: Dims
    rows: int
    columns: int
    runs: int = 100
    launches: int = 0
    timed: tuple[Dims, ...] = ()


_ON_GPUS = Sizes(
    (8, 64, 14, 14),
    64,
    8192,
    launches=100,
    timed=((32, 256, 14, 14), (32, 64, 56, 56), (32, 512, 7, 7), (64, 2048, 7, 7)),
)
_ON_ONE_GPU = Sizes((2, 16, 3, 3), 4, 64)
_EMULATED = Sizes((2, 16, 3, 3), 4, 64, runs=3, launches=3, timed=((2, 16, 3, 3),))


class Wrong(Exception):
    """A result that is not what float64 gives, or not the same in each run."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("devices", type=int, metavar="N", help="GPUs, from 1")
    parser.add_argument("--emulated", action="store_true", help="run on emulated devices, in small")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the lines to FILE")
    arguments = parser.parse_args()
    devices, is_emulated = arguments.devices, arguments.emulated
    ranks = max(2, devices)
    with ExitStack() as owned:
        try:
            driver = _driver(devices, ranks, is_emulated=is_emulated)
            file = None if arguments.out is None else owned.enter_context(arguments.out.open("w", encoding="utf-8"))
        except (LowdnnError, ValueError, OSError) as error:
            parser.exit(1, f"tools.scaling.peer_norms: {error}\n")

        def report(text: str) -> None:
            printed(text)
            if file is not None:
                print(text, file=file, flush=True)

        report(f"{driver.device_name(0)}, {devices} devices, {ranks} ranks")
        sizes = _EMULATED if is_emulated else _ON_GPUS if devices > 1 else _ON_ONE_GPU
        meeting = None if is_emulated else Path(owned.enter_context(tempfile.TemporaryDirectory()))
        of_rank = [number if is_emulated else number % devices for number in range(ranks)]
        return run_parts(driver, of_rank, parts_of(sizes, meeting), report)


def parts_of(sizes: Sizes, meeting: Path | None) -> dict[str, Callable[[Rank], None]]:
    """The work of each rank, by name; NCCL, which may hang, comes last. meeting: a folder where NCCL's ranks meet; with
    None it is left out."""
    parts: dict[str, Callable[[Rank], None]] = {"batch norm": lambda rank: check_batch_norm(rank, sizes)}
    if sizes.launches:
        parts["times of batch norm"] = lambda rank: time_batch_norm(rank, sizes)
    parts["all-reduce + norm"] = lambda rank: AllReduce(rank, sizes).run(meeting)
    return parts


def run_parts(
    driver: Driver, devices: list[int], parts: dict[str, Callable[[Rank], None]], report: Callable[[str], None]
) -> int:
    """Runs each part in the threads of new ranks, of which ``devices`` has the devices; 1 where any part fails."""
    code = 0
    for name, part in parts.items():
        try:
            _run_part(driver, devices, part, report)
        except (Wrong, LowdnnError, TimeoutError, threading.BrokenBarrierError) as error:
            report(f"FAILED {name}: {type(error).__name__}: {error}")
            code = 1
    return code


def _run_part(driver: Driver, devices: list[int], part: Callable[[Rank], None], report: Callable[[str], None]) -> None:
    """Raises the first error of any rank; the others then find their gate broken."""
    crew, causes = Crew(len(devices), report), list[BaseException]()

    def work(number: int, point: MeetingPoint) -> None:
        try:
            with Handle(Runtime(driver, device=devices[number])) as handle:
                rank = Rank(handle, InProcessCommunicator(point, number, handle.runtime.context), crew)
                with rank.scope():
                    part(rank)
        except BaseException as error:
            causes.append(error)
            crew.gate.abort()
            raise

    try:
        run_in_threads(len(devices), work)
    except threading.BrokenBarrierError:
        raise causes[0] from None


def _driver(devices: int, ranks: int, *, is_emulated: bool) -> Driver:
    if devices < 1:
        raise ValueError(f"N: expected at least 1, got {devices}")
    if is_emulated:
        return open_driver("emulated", devices=ranks, policy="lockstep,timeout=60")
    driver = open_driver("cuda")
    driver.init()
    if driver.device_count() < devices:
        raise ValueError(f"N: expected at most the host's {driver.device_count()} GPUs, got {devices}")
    return driver


class BatchNorm:
    """A batch norm of one rank, channels-last: over the batches of all ranks with ``peers``, else over its own.

    Each rank draws the data of all of them from the same seed, and works on its part.
    """

    def __init__(self, rank: Rank, dims: Dims, data_type: DataType, peers: PeerBuffers | None) -> None:
        self.rank, self.dims, self.data_type = rank, dims, data_type
        rng = np.random.default_rng(0)
        whole = (1 if peers is None else rank.size, *dims)
        self.own = 0 if peers is None else rank.rank
        self.x = dtypes.from_float64(rng.normal(size=whole) + 3, data_type)
        self.dy = dtypes.from_float64(rng.normal(size=whole), data_type)
        self.scale, self.bias = rng.uniform(0.5, 1.5, (2, 1, dims[1], 1, 1)).astype(np.float32)
        self.graph = cudnn.pygraph(
            io_data_type=_TYPES[data_type],
            intermediate_data_type=_SINGLE,
            compute_data_type=_SINGLE,
            handle=rank.handle,
        )
        buffers = () if peers is None else peers.buffers
        self.memory: dict[str, DeviceBuffer] = {f"peer{number}": buffer for number, buffer in enumerate(buffers)}
        self.peer_stats = [self.graph.tensor_like(buffer).set_name(name) for name, buffer in self.memory.items()]
        self.outputs: tuple[str, ...] = ()
        self.workspace: DeviceBuffer | None = None

    def forward(self) -> BatchNorm:
        """Builds the graph of y, mean and inverse deviation."""
        bias = self._vector("bias", self.bias)
        x, scale = self._image("x", self.x), self._vector("scale", self.scale)
        made = self.graph.batchnorm(x, scale, bias, None, None, _EPSILON, None, peer_stats=self.peer_stats)
        return self._built(made[:3], ("y", "mean", "inverse"))

    def backward(self) -> BatchNorm:
        """Builds the graph of dx, dscale and dbias."""
        mean, inverse = (statistic[0].astype(np.float32) for statistic in self._statistics())
        made = self.graph.batchnorm_backward(
            self._image("dy", self.dy),
            self._image("x", self.x),
            self._vector("scale", self.scale),
            self._vector("mean", mean),
            self._vector("inverse", inverse),
            peer_stats=self.peer_stats,
        )
        return self._built(made, ("dx", "dscale", "dbias"))

    def launch(self) -> None:
        self.graph.execute(self.memory, self.workspace)

    def bits(self) -> str:
        """A digest of the outputs, once the stream is done."""
        self.rank.wait()
        return _digest(self.rank, *(self.memory[name] for name in self.outputs))

    def error(self) -> float:
        """The largest error of y or dx against float64, as a share of the largest value."""
        n, c, h, w = self.dims
        raw = self.memory[self.outputs[0]].to_host(self.rank.stream).view(self.x.dtype)
        found = dtypes.to_float64(raw, self.data_type).reshape(n, h, w, c).transpose(0, 3, 1, 2)
        mean, inverse = self._statistics()
        x_hat = (dtypes.to_float64(self.x, self.data_type) - mean) * inverse
        wanted = x_hat * self.scale + self.bias
        if self.outputs[0] == "dx":
            dy = dtypes.to_float64(self.dy, self.data_type)
            centred = dy - dy.mean(_BATCH_AXES, keepdims=True)
            wanted = (centred - x_hat * (dy * x_hat).mean(_BATCH_AXES, keepdims=True)) * inverse * self.scale
        return _share(found, wanted[self.own])

    def _statistics(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and inverse deviation over the whole batch, (1, 1, C, 1, 1)."""
        x = dtypes.to_float64(self.x, self.data_type)
        return x.mean(_BATCH_AXES, keepdims=True), 1 / np.sqrt(x.var(_BATCH_AXES, keepdims=True) + _EPSILON)

    @property
    def _strides(self) -> Dims:
        _, c, h, w = self.dims
        return (c * h * w, 1, c * w, c)

    def _image(self, name: str, whole: NDArray[Any]) -> Any:
        self.memory[name] = self._packed(whole)
        return self.graph.tensor(self.dims, self._strides, data_type=_TYPES[self.data_type], name=name)

    def _packed(self, whole: NDArray[Any]) -> DeviceBuffer:
        return self.rank.put(whole[self.own].transpose(0, 2, 3, 1), self.data_type)

    def _vector(self, name: str, values: NDArray[np.float32]) -> Any:
        self.memory[name] = self.rank.put(values)
        return self.graph.tensor((1, self.dims[1], 1, 1), data_type=_SINGLE, name=name)

    def _built(self, made: Any, names: tuple[str, ...]) -> BatchNorm:
        """Names the outputs, of which the first is an image and the others are vectors, and builds the graph."""
        self.outputs = names
        for tensor, name in zip(made, names, strict=True):
            is_image = name == names[0]
            tensor.set_output(True).set_name(name).set_data_type(_TYPES[self.data_type] if is_image else _SINGLE)
            if is_image:
                tensor.set_stride(self._strides)
                self.memory[name] = self._packed(np.zeros_like(self.x))
            else:
                self.memory[name] = self.rank.put(np.zeros((1, self.dims[1], 1, 1), np.float32))
        self.workspace = _build(self.graph, self.rank)
        return self


_DIRECTIONS: dict[str, Callable[[BatchNorm], BatchNorm]] = {"fwd": BatchNorm.forward, "bwd": BatchNorm.backward}


def check_batch_norm(rank: Rank, sizes: Sizes) -> None:
    """Compares batch norm over all ranks with float64, and the bits of its runs. Raises Wrong."""
    peers = rank.keep(_peers(rank, sizes.checked))
    for data_type in _TYPES:
        for direction, build in _DIRECTIONS.items():
            norm = build(BatchNorm(rank, sizes.checked, data_type, peers))
            rank.meet()
            seen = set()
            for _ in range(sizes.runs):
                norm.launch()
                seen.add(norm.bits())
            peers.check(rank.stream)
            what = f"batch norm {sizes.checked} {data_type.name} {direction}"
            _judge(rank, what, norm.error(), data_type, seen, sizes.runs)


def time_batch_norm(rank: Rank, sizes: Sizes) -> None:
    """Times batch norm in BFLOAT16, over all ranks and over each rank's batch alone."""
    rank.say(f"\nbatch norm, BFLOAT16 channels-last: us of a launch, {sizes.launches} captured, slowest rank")
    for dims in sizes.timed:
        with rank.scope():
            peers = rank.keep(_peers(rank, dims))
            for direction, build in _DIRECTIONS.items():
                together, alone = (build(BatchNorm(rank, dims, DataType.BFLOAT16, one)) for one in (peers, None))
                rank.meet()
                together.launch()
                alone.launch()
                rank.wait()
                with_us, alone_us = (rank.launch_us(norm.launch, sizes.launches) for norm in (together, alone))
                peers.check(rank.stream)
                figures = f"peers {with_us:8.2f}  alone {alone_us:8.2f}  difference {with_us - alone_us:+7.2f}"
                rank.say(f"  {dims!s:22s} {direction}  {figures}")


class AllReduce:
    """All-reduce, residual and RMS norm of rows in BFLOAT16, in one kernel and as NCCL's all-reduce with a graph."""

    def __init__(self, rank: Rank, sizes: Sizes) -> None:
        self.rank, self.sizes = rank, sizes
        rows, columns = shape = (sizes.rows, sizes.columns)
        rng = np.random.default_rng(1)
        parts = [dtypes.from_float64(rng.normal(size=shape), DataType.BFLOAT16) for _ in range(rank.size)]
        residual = dtypes.from_float64(rng.normal(size=(rows, columns)), DataType.BFLOAT16)
        weight = dtypes.from_float64(rng.normal(size=columns), DataType.BFLOAT16)
        total = sum(dtypes.to_float64(part, DataType.BFLOAT16) for part in (*parts, residual))
        deviation = np.sqrt((total**2).mean(1, keepdims=True) + _EPSILON)
        self.wanted = total / deviation * dtypes.to_float64(weight, DataType.BFLOAT16)
        zeros = np.zeros_like(residual)
        self.x, self.residual, self.weight, self.y, self.next_residual, self.sum = (
            rank.put(array, DataType.BFLOAT16) for array in (parts[rank.rank], residual, weight, zeros, zeros, zeros)
        )

    def run(self, meeting: Path | None) -> None:
        """Compares the kernel with float64 and the bits of its runs, and times it. Raises Wrong."""
        rank, sizes = self.rank, self.sizes
        call = AllReduceNorm(
            rank.communicator,
            rank.handle,
            sizes.rows,
            sizes.columns,
            DataType.BFLOAT16,
            epsilon=_EPSILON,
            timeout_s=_PEER_TIMEOUT_S,
        )
        with call:
            call.prepare(sizes.rows)

            def launch() -> None:
                call(self.x, self.residual, self.weight, self.y, self.next_residual)

            rank.meet()
            seen = set()
            for _ in range(sizes.runs):
                launch()
                rank.wait()
                seen.add(_digest(rank, self.y, self.next_residual))
            call.check(rank.stream)
            found = dtypes.to_float64(self.y.to_host(rank.stream), DataType.BFLOAT16).reshape(self.wanted.shape)
            what = f"all-reduce + residual + RMS norm {sizes.rows} x {sizes.columns} BFLOAT16"
            _judge(rank, what, _share(found, self.wanted), DataType.BFLOAT16, seen, sizes.runs)
            if not sizes.launches:
                return
            one_us = rank.launch_us(launch, sizes.launches)
            call.check(rank.stream)
        rank.say(f"  one kernel            {one_us:8.2f} us")
        if meeting is None:
            rank.say("  NCCL, then add + norm: not on emulated devices")
            return
        try:
            nccl = self._nccl(meeting)
        except RuntimePrerequisiteMissingError as error:
            rank.say(f"  NCCL, then add + norm: {error}")
            return
        two_us = self._two_us(nccl)
        nccl.close()
        rank.say(f"  NCCL, then add + norm {two_us:8.2f} us, {two_us / one_us:.2f} times the one kernel")

    def _nccl(self, meeting: Path) -> Communicator:
        """NCCL's communicator. Raises RuntimePrerequisiteMissingError where NCCL is not installed."""
        rank = self.rank
        store = FileStore(meeting, rank.rank, rank.size, 60.0)
        return connect(store, Members(tuple(range(rank.size)), rank.rank), rank.context, name="nccl", timeout_s=60)

    def _two_us(self, nccl: Communicator) -> float:
        """The time of NCCL's all-reduce followed by a graph of add and RMS norm."""
        rank = self.rank
        graph = self._add_and_norm()
        workspace = _build(graph, rank)
        memory = {"sum": self.sum, "residual": self.residual, "weight": self.weight}
        memory |= {"next_residual": self.next_residual, "y": self.y}

        def both() -> None:
            nccl.all_reduce(self.x, self.sum, stream=rank.stream)
            graph.execute(memory, workspace)

        rank.meet()
        both()
        return rank.launch_us(both, self.sizes.launches)

    def _add_and_norm(self) -> Any:
        io, dims = _TYPES[DataType.BFLOAT16], (self.sizes.rows, self.sizes.columns, 1, 1)
        graph = cudnn.pygraph(
            io_data_type=io, intermediate_data_type=_SINGLE, compute_data_type=_SINGLE, handle=self.rank.handle
        )
        added = graph.add(graph.tensor(dims, name="sum"), graph.tensor(dims, name="residual"))
        added.set_output(True).set_name("next_residual").set_data_type(io)
        weight = graph.tensor((1, self.sizes.columns, 1, 1), name="weight")
        y, _ = graph.rmsnorm(cudnn.norm_forward_phase.INFERENCE, added, weight, None, _EPSILON)
        y.set_output(True).set_name("y").set_data_type(io)
        return graph


def _peers(rank: Rank, dims: Dims) -> PeerBuffers:
    return PeerBuffers.for_statistics(rank.communicator, dims[1], stream=rank.stream, timeout_s=_PEER_TIMEOUT_S)


def _build(graph: Any, rank: Rank) -> DeviceBuffer:
    """Builds the graph; returns its workspace."""
    graph.build([cudnn.heur_mode.A])
    return rank.keep(DeviceBuffer.allocate(rank.context, max(1, graph.get_workspace_size())))


def _digest(rank: Rank, *buffers: DeviceBuffer) -> str:
    return hashlib.sha256(b"".join(buffer.to_host(rank.stream).tobytes() for buffer in buffers)).hexdigest()


def _share(found: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def _judge(rank: Rank, what: str, error: float, data_type: DataType, seen: set[str], runs: int) -> None:
    """Prints the worst rank's figures. Raises Wrong on every rank where one's are wrong; NaN is."""
    worst = rank.largest(error if error == error else float("inf"))
    results = round(rank.largest(len(seen)))
    rank.say(f"{what}: error {worst:.1e}, {runs} runs, {results} result{'s' if results > 1 else ''}")
    if worst > _TOLERANCES[data_type]:
        raise Wrong(f"{what}: expected an error of at most {_TOLERANCES[data_type]:.1e}, got {worst:.1e}")
    if results > 1:
        raise Wrong(f"{what}: expected the same bits in each run, got {results} results")


if __name__ == "__main__":
    raise SystemExit(main())
