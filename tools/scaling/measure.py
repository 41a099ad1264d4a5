"""Times a training step and all-reduces on 1 GPU and more: ``python -m tools.scaling.measure --out FILE``.

For each number of GPUs it starts as many processes. The file has what `model` is calibrated with, and the steps that it
is compared with; all times are medians in microseconds of the device's clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from lowdnn.backend import Handle
from lowdnn.cases.families.convolution import ConvolutionCase
from lowdnn.distributed import BUCKET_BYTES, Communicator, Meeting, Place, Split, connect, everyone, launch
from lowdnn.driver import open_driver
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.event import Event
from lowdnn.status import LowdnnError
from tools.scaling.network import TimedNetwork, layers_of

#: Sizes of the all-reduces that are timed.
_SIZES = tuple(1 << exponent for exponent in range(12, 29, 2))
#: All-reduces in a row for one time.
_IN_A_ROW = 10
_SMALL_BUCKET_BYTES = 4 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--network", default="resnet50", help="a section of lowdnn/bench/networks.txt")
    parser.add_argument("--batch", type=int, default=64, help="images of a GPU (default 64)")
    parser.add_argument("--steps", type=int, default=20, help="steps of which the median counts (default 20)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        return _run_rank(arguments)
    if problem := _problem(arguments):
        parser.exit(1, f"tools.scaling.measure: {problem}\n")
    merged: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in sorted(arguments.devices):
            part = Path(folder, f"{count}.json")
            command = [sys.executable, "-m", "tools.scaling.measure", "--rank", "--out", str(part)]
            command += [
                "--network",
                arguments.network,
                "--batch",
                str(arguments.batch),
                "--steps",
                str(arguments.steps),
            ]
            code = launch(command, count)
            if code:
                return code
            found = json.loads(part.read_text(encoding="utf-8"))
            # The shares of the layers are those of the fewest GPUs.
            merged = {**found, **merged} | {
                name: merged.get(name, []) + found[name] for name in ("steps", "all_reduce")
            }
            # The figures of fewer GPUs stay, whatever becomes of more.
            arguments.out.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
    return 0


def _problem(arguments: argparse.Namespace) -> str:
    """Why nothing can be timed; "" where it can be."""
    wanted = max(arguments.devices)
    try:
        layers_of(arguments.network, arguments.batch)
        found = open_driver("cuda").device_count()
    except KeyError:
        return f"--network: expected a section of lowdnn/bench/networks.txt, got {arguments.network}"
    except (LowdnnError, ValueError) as error:
        return str(error)
    return "" if 1 <= wanted <= found else f"expected {wanted} GPUs, got {found}"


def _run_rank(arguments: argparse.Namespace) -> int:
    place = Place.from_environment()
    if place is None:
        raise SystemExit("expected to be started by tools.scaling.measure")
    cases = layers_of(arguments.network, arguments.batch)
    with Meeting(place) as meeting, Handle.open("cuda", ordinal=place.local_rank) as handle:
        communicator = connect(meeting.store, everyone(place), handle.runtime.context, timeout_s=300)
        figures = measured(handle, communicator, cases, arguments.steps)
        communicator.close()
    facts = {"network": arguments.network, "batch": arguments.batch}
    if place.rank == 0:
        arguments.out.write_text(json.dumps(facts | figures), encoding="utf-8")
    return 0


def measured(
    handle: Handle,
    communicator: Communicator,
    cases: Sequence[ConvolutionCase],
    steps: int,
    sizes: Sequence[int] = _SIZES,
) -> dict[str, Any]:
    """The figures of one rank: layers, forward_us, update_us, steps and all_reduce, as the file has them."""
    stopwatch = _Stopwatch(handle, communicator, steps)
    figures: dict[str, Any] = {"card": handle.runtime.driver.device_name(handle.runtime.context.device)}
    figures |= {"all_reduce": [_all_reduce(stopwatch, size) for size in sizes], "steps": []}
    for bucket_bytes, overlaps in ((BUCKET_BYTES, True), (_SMALL_BUCKET_BYTES, True), (BUCKET_BYTES, False)):
        with ExitStack() as owned:
            network = TimedNetwork(handle, Split(communicator), cases, bucket_bytes)
            owned.callback(network.close)
            if not figures["steps"]:
                figures |= _parts(stopwatch, network)
            step_us = stopwatch.median_us(partial(_step, network, overlaps))
        facts = {"ranks": communicator.size, "bucket_bytes": bucket_bytes, "overlaps": overlaps, "step_us": step_us}
        figures["steps"].append(facts)
    return figures


@dataclass(frozen=True)
class _Stopwatch:
    """Times work in the handle's stream; all ranks begin together."""

    handle: Handle
    communicator: Communicator
    repeats: int

    def median_us(self, work: Callable[[], None]) -> float:
        return statistics.median(times[0] for times in self.laps_us([work]))

    def laps_us(self, works: Sequence[Callable[[], None]]) -> list[list[float]]:
        """For each repeat the time of each of ``works``, which run one behind the other; the first two do not count."""
        stream = self.handle.borrowed_stream()
        with ExitStack() as owned:
            events = [owned.enter_context(Event.create(self.handle.runtime.context)) for _ in range(len(works) + 1)]
            found = []
            for _ in range(self.repeats + 2):
                self.communicator.barrier(stream=stream)
                events[0].record(stream)
                for work, event in zip(works, events[1:], strict=True):
                    work()
                    event.record(stream)
                self.communicator.wait(stream)
                found.append([1e3 * end.elapsed_ms(start) for start, end in pairwise(events)])
        return found[2:]


def _all_reduce(stopwatch: _Stopwatch, size_bytes: int) -> dict[str, float]:
    handle, communicator = stopwatch.handle, stopwatch.communicator
    context, stream = handle.runtime.context, handle.borrowed_stream()
    shape = (size_bytes // 4,)
    with DeviceBuffer.allocate(context, size_bytes, data_type=DataType.FLOAT, shape=shape) as buffer:
        buffer.fill_bytes(0, stream)

        def work() -> None:
            for _ in range(_IN_A_ROW):
                communicator.all_reduce(buffer, buffer, stream=stream)

        return {"ranks": communicator.size, "bytes": size_bytes, "us": stopwatch.median_us(work) / _IN_A_ROW}


def _parts(stopwatch: _Stopwatch, network: TimedNetwork) -> dict[str, Any]:
    """The forward pass, the backward pass of each layer, and the update; on several GPUs they hold exchanges too."""
    blocks = range(len(network.bytes_of))
    backward = [partial(_backward, network, number) for number in reversed(blocks)]

    def update() -> None:
        network.finish()
        network.update()

    laps = stopwatch.laps_us([network.forward, *backward, update])
    medians = [statistics.median(column) for column in zip(*laps, strict=True)]
    layers = [
        {"backward_us": time_us, "gradient_bytes": size}
        for time_us, size in zip(reversed(medians[1:-1]), network.bytes_of, strict=True)
    ]
    return {"forward_us": medians[0], "layers": layers, "update_us": medians[-1]}


def _backward(network: TimedNetwork, number: int) -> None:
    network.backward(number)
    network.ready(number)


def _step(network: TimedNetwork, overlaps: bool) -> None:
    """One step; without overlap the gradients are exchanged behind the whole backward pass."""
    blocks = [*reversed(range(len(network.bytes_of)))]
    network.forward()
    for number in blocks:
        network.backward(number)
        if overlaps:
            network.ready(number)
    if not overlaps:
        for number in blocks:
            network.ready(number)
    network.finish()
    network.update()


if __name__ == "__main__":
    raise SystemExit(main())
