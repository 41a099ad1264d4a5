"""Random work in streams of several devices: the detector against an oracle, and results against one order.

A program is a list of kernels, copies, fills, events and waits of the host, over buffers of all devices. The oracle
keeps, as bits, which tasks come before each one; two that touch a buffer, one of them writing, race where neither comes
before the other. A program without such a pair gives the same bytes under each policy as in the order of its calls.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from lowdnn.driver.base import DriverError, EventFlags, StreamFlags
from tests.driver.emulated.devices.host import Host
from tests.driver.emulated.devices.ring import ptx_of
from tests.support.data import fresh_seed

ADD = """
extern "C" __global__ void add(const unsigned* x, unsigned* y, unsigned c) { y[threadIdx.x] = x[threadIdx.x] + c; }
"""
BUFFERS = 4
POLICIES = ("lockstep", "cta-reverse", "warp-serial({seed})", "fuzz({seed})")


@dataclass
class Oracle:
    """``before`` [tasks]: the tasks before each one, as bits; ``values`` [buffers, 32] in the order of the calls."""

    before: list[int] = field(default_factory=list)
    touched: list[tuple[int | None, int]] = field(default_factory=list)
    tails: dict[tuple[int, int], int] = field(default_factory=dict)
    events: list[int] = field(default_factory=list)
    host: int = 0
    values: list[np.ndarray] = field(default_factory=list)  # type: ignore[type-arg]

    def add(self, device: int, stream: int, reads: int | None, writes: int) -> None:
        known = self.host | self._ordered(device, stream)
        self.before.append(known)
        self.touched.append((reads, writes))
        self.tails[device, stream] = known | 1 << len(self.before) - 1

    def record(self, device: int, stream: int) -> None:
        self.tails[device, stream] = self.host | self._ordered(device, stream)
        self.events.append(self.tails[device, stream])

    def wait(self, device: int, stream: int, event: int) -> None:
        self.tails[device, stream] = self.host | self._ordered(device, stream) | self.events[event]

    def _ordered(self, device: int, stream: int) -> int:
        """Stream 0 is the legacy one, stream 1 blocks, the others are free."""
        known = self.tails.get((device, stream), 0)
        if stream < 2:
            known |= self.tails.get((device, 1 - stream), 0)
        return known

    def races(self) -> bool:
        for later, (reads, writes) in enumerate(self.touched):
            for earlier in range(later):
                its_reads, its_writes = self.touched[earlier]
                conflict = its_writes in (reads, writes) or writes == its_reads
                if conflict and not self.before[later] >> earlier & 1:
                    return True
        return False


class Program:
    """One random program; ``run`` gives the values of the buffers, or raises the first error."""

    def __init__(self, draw: random.Random) -> None:
        self.devices = draw.choice((2, 3))
        self.owners = [draw.randrange(self.devices) for _ in range(BUFFERS)]
        self.oracle = Oracle(values=[np.full(32, number, np.uint32) for number in range(BUFFERS)])
        self.steps: list[tuple[str, tuple[int, ...]]] = []
        for _ in range(draw.randrange(2, 14)):
            self._draw_step(draw)

    def _draw_step(self, draw: random.Random) -> None:
        oracle, values = self.oracle, self.oracle.values
        place = draw.randrange(self.devices), draw.randrange(4)
        kind = draw.choice(("add", "copy", "fill", "record", "wait", "wait", "stream", "device"))
        x, y, number = draw.randrange(BUFFERS), draw.randrange(BUFFERS), draw.randrange(100)
        arguments: tuple[int, ...] = place
        if kind in ("add", "copy", "fill"):
            oracle.add(*place, None if kind == "fill" else x, y)
            old = values[x].copy()
            values[y] = {"add": old + np.uint32(number), "copy": old, "fill": np.full(32, number, np.uint32)}[kind]
            arguments = (*place, x, y, number)
        elif kind == "record":
            oracle.record(*place)
        elif kind == "wait":
            if not oracle.events:
                return
            event = draw.randrange(len(oracle.events))
            oracle.wait(*place, event)
            arguments = (*place, event)
        elif kind == "stream":
            oracle.host |= oracle.tails.get(place, 0)
        else:
            for other in range(4):
                oracle.host |= oracle.tails.get((place[0], other), 0)
        self.steps.append((kind, arguments))

    def run(self, policy: str) -> list[list[int]]:
        host = Host(self.devices, policy)
        running = _Running(host, self.owners)
        for kind, (device, stream, *rest) in self.steps:
            with host.on(device):
                getattr(running, kind)(device, running.streams[device][stream], *rest)
        host.synchronize()
        values = zip(self.owners, running.buffers, strict=True)
        return [host.get(owner, buffer, 32, np.uint32).tolist() for owner, buffer in values]


class _Running:
    """The steps of a program by name."""

    def __init__(self, host: Host, owners: list[int]) -> None:
        self.host, self.driver = host, host.driver
        self.buffers = [host.put(owner, np.full(32, n, np.uint32), f"b{n}") for n, owner in enumerate(owners)]
        self.functions = [host.load(device, ptx_of(ADD), "add") for device in range(len(host.contexts))]
        self.streams = [self._streams(device) for device in range(len(host.contexts))]
        self.events: list[int] = []

    def _streams(self, device: int) -> list[int]:
        with self.host.on(device) as driver:
            return [0, driver.stream_create(StreamFlags.DEFAULT), driver.stream_create(), driver.stream_create()]

    def add(self, device: int, stream: int, x: int, y: int, number: int) -> None:
        arguments = (self.buffers[x], self.buffers[y], np.uint32(number))
        self.host.launch(device, self.functions[device], *arguments, stream=stream)

    def copy(self, device: int, stream: int, x: int, y: int, number: int) -> None:
        self.driver.memcpy_dtod_async(self.buffers[y], self.buffers[x], 128, stream)

    def fill(self, device: int, stream: int, x: int, y: int, number: int) -> None:
        self.driver.memset_d32_async(self.buffers[y], number, 32, stream)

    def record(self, device: int, stream: int) -> None:
        self.events.append(self.driver.event_create(EventFlags.DISABLE_TIMING))
        self.driver.event_record(self.events[-1], stream)

    def wait(self, device: int, stream: int, event: int) -> None:
        self.driver.stream_wait_event(stream, self.events[event])

    def stream(self, device: int, stream: int) -> None:
        self.driver.stream_synchronize(stream)

    def device(self, device: int, stream: int) -> None:
        self.driver.context_synchronize()


def outcome(program: Program, policy: str) -> object:
    """The values, or the kind of the fault."""
    try:
        return program.run(policy)
    except DriverError as error:
        return error.report.get("kind", error.name)


@pytest.mark.parametrize("part", range(4))
def test_random_work(part: int) -> None:
    seed = fresh_seed()
    draw = random.Random(seed)
    counts = {True: 0, False: 0}
    while min(counts.values()) < 12:
        number = sum(counts.values())
        program = Program(random.Random(f"{seed} {number}"))
        policy = draw.choice(POLICIES).format(seed=number)
        where = f"seed {seed}, program {number}, {policy}: {program.owners} {program.steps}"
        races = program.oracle.races()
        expected = "data-race" if races else [values.tolist() for values in program.oracle.values]
        assert outcome(program, f"{policy},races") == expected, where
        if not races:
            assert outcome(program, policy) == expected, where
        counts[races] += 1
