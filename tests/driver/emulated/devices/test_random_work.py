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
from tests.driver.emulated.devices.host import Host, faults_of
from tests.driver.emulated.devices.ring import HEAD, ptx_of
from tests.support.data import fresh_seed

#: ``signal`` sets a flag behind what ``add`` does, ``await`` waits for one before it.
KERNELS = (
    HEAD
    + """
extern "C" __global__ void add(const u32* x, u32* y, u32 c) { y[threadIdx.x] = x[threadIdx.x] + c; }
extern "C" __global__ void signal(const u32* x, u32* y, u32 c, u32* flag) {
  y[threadIdx.x] = x[threadIdx.x] + c;
  __syncthreads();
  if (threadIdx.x == 0) release(flag, 1);
}
extern "C" __global__ void await(const u32* x, u32* y, u32 c, u32* flag) {
  if (threadIdx.x == 0) while (acquire(flag) == 0);
  __syncthreads();
  y[threadIdx.x] = x[threadIdx.x] + c;
}
"""
)
#: The kernels by the scope of their flags.
SOURCES = {"sys": KERNELS, "gpu": KERNELS.replace(".sys", ".gpu")}
FLAGS = 8
BUFFERS = 4
KINDS = ("add", "copy", "fill", "record", "wait", "wait", "stream", "device", "renew", *("signal", "await") * 2)
POLICIES = ("lockstep", "cta-reverse", "warp-serial({seed})", "fuzz({seed})")


@dataclass
class Oracle:
    """``before`` [tasks]: the tasks before each one, as bits; ``values`` [buffers, 32] in the order of the calls.
    ``flags``: device, what a reader knows, and scope. ``is_torn``: a flag was read from beyond its scope.
    """

    before: list[int] = field(default_factory=list)
    touched: list[tuple[int | None, int]] = field(default_factory=list)
    tails: dict[tuple[int, int], int] = field(default_factory=dict)
    events: list[int] = field(default_factory=list)
    flags: list[tuple[int, int, str]] = field(default_factory=list)
    host: int = 0
    is_torn: bool = False
    values: list[np.ndarray] = field(default_factory=list)  # type: ignore[type-arg]

    def add(self, device: int, stream: int, reads: int | None, writes: int) -> None:
        known = self.host | self._ordered(device, stream)
        self.before.append(known)
        self.touched.append((reads, writes))
        self.tails[device, stream] = known | 1 << len(self.before) - 1

    def signal(self, device: int, stream: int, scope: str) -> None:
        """The task just added sets a flag."""
        self.flags.append((device, self.tails[device, stream], scope))

    def await_flag(self, device: int, stream: int, flag: int, scope: str) -> bool:
        """The next task of the stream waits for a flag, and comes after what set it if both scopes reach.

        False where the scopes do not reach, but the stream knows the flag from elsewhere: a release hands on what came
        before its flag, not the flag itself, so that the detector may report this.
        """
        setter, known, its_scope = self.flags[flag]
        before = self.host | self._ordered(device, stream)
        if setter == device or scope == its_scope == "sys":
            self.tails[device, stream] = before | known
        elif before | known == before:
            return False
        else:
            self.is_torn = True
        return True

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
        if self.is_torn:
            return True
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
        kind = draw.choice(KINDS)
        x, y, number = draw.randrange(BUFFERS), draw.randrange(BUFFERS), draw.randrange(100)
        arguments: tuple[int, ...] = place
        if kind in ("signal", "await"):
            self._draw_flag(draw, kind, place, (x, y, number))
            return
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
        elif kind == "renew":
            if place[1] < 2:
                return
            oracle.tails[place[0], 4 + len(self.steps)] = oracle.tails.pop(place, 0)
        elif kind == "stream":
            oracle.host |= oracle.tails.get(place, 0)
        else:
            for (owner, _), known in oracle.tails.items():
                oracle.host |= known if owner == place[0] else 0
        self.steps.append((kind, arguments))

    def _draw_flag(self, draw: random.Random, kind: str, place: tuple[int, int], numbers: tuple[int, int, int]) -> None:
        oracle, scope, (x, y, number) = self.oracle, draw.choice(("sys", "sys", "sys", "gpu")), numbers
        flag = len(oracle.flags) if kind == "signal" else draw.randrange(max(len(oracle.flags), 1))
        if flag >= (FLAGS if kind == "signal" else len(oracle.flags)):
            return
        if kind == "await" and not oracle.await_flag(*place, flag, scope):
            return
        oracle.add(*place, x, y)
        if kind == "signal":
            oracle.signal(*place, scope)
        oracle.values[y] = oracle.values[x] + np.uint32(number)
        self.steps.append((f"{kind}_{scope}", (*place, *numbers, flag)))

    def run(self, policy: str) -> list[list[int]]:
        host = self.host = Host(self.devices, policy)
        running = _Running(host, self.owners)
        for kind, (device, stream, *rest) in self.steps:
            with host.on(device):
                running.step(kind, device, running.streams[device][stream], *rest)
        host.synchronize()
        values = zip(self.owners, running.buffers, strict=True)
        return [host.get(owner, buffer, 32, np.uint32).tolist() for owner, buffer in values]


class _Running:
    """The steps of a program by name."""

    def __init__(self, host: Host, owners: list[int]) -> None:
        self.host, self.driver = host, host.driver
        self.buffers = [host.put(owner, np.full(32, n, np.uint32), f"b{n}") for n, owner in enumerate(owners)]
        self.functions = {
            (f"{name}_{scope}", device): host.load(device, ptx_of(source), name)
            for scope, source in SOURCES.items()
            for name in ("add", "signal", "await")
            for device in range(len(host.contexts))
        }
        flags = host.put(0, np.zeros(FLAGS, np.uint32), "flags")
        self.flags = [flags + 4 * number for number in range(FLAGS)]
        self.streams = [self._streams(device) for device in range(len(host.contexts))]
        self.events: list[int] = []

    def _streams(self, device: int) -> list[int]:
        with self.host.on(device) as driver:
            return [0, driver.stream_create(StreamFlags.DEFAULT), driver.stream_create(), driver.stream_create()]

    def step(self, kind: str, device: int, stream: int, *rest: int) -> None:
        if kind.startswith(("signal", "await")):
            x, y, number, flag = rest
            self._launch(kind, device, stream, x, y, number, self.flags[flag])
        else:
            getattr(self, kind)(device, stream, *rest)

    def add(self, device: int, stream: int, x: int, y: int, number: int) -> None:
        self._launch("add_sys", device, stream, x, y, number)

    def _launch(self, name: str, device: int, stream: int, x: int, y: int, number: int, *flag: int) -> None:
        arguments = (self.buffers[x], self.buffers[y], np.uint32(number), *flag)
        self.host.launch(device, self.functions[name, device], *arguments, stream=stream)

    def copy(self, device: int, stream: int, x: int, y: int, number: int) -> None:
        self.driver.memcpy_dtod_async(self.buffers[y], self.buffers[x], 128, stream)

    def fill(self, device: int, stream: int, x: int, y: int, number: int) -> None:
        self.driver.memset_d32_async(self.buffers[y], number, 32, stream)

    def record(self, device: int, stream: int) -> None:
        self.events.append(self.driver.event_create(EventFlags.DISABLE_TIMING))
        self.driver.event_record(self.events[-1], stream)

    def wait(self, device: int, stream: int, event: int) -> None:
        self.driver.stream_wait_event(stream, self.events[event])

    def renew(self, device: int, stream: int) -> None:
        """Another stream takes the place of one that is destroyed, with work in it."""
        self.driver.stream_destroy(stream)
        streams = self.streams[device]
        streams[streams.index(stream)] = self.driver.stream_create()

    def stream(self, device: int, stream: int) -> None:
        self.driver.stream_synchronize(stream)

    def device(self, device: int, stream: int) -> None:
        self.driver.context_synchronize()


def outcome(program: Program, policy: str) -> object:
    """The values, or the kind of the fault; a device may wait for ever for another one that has a race."""
    try:
        return program.run(policy)
    except DriverError as error:
        kinds = [str(one.report.get("kind", "")) for one in (error, *faults_of(program.host))]
        return "data-race" if "data-race" in kinds else kinds[0]


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
