"""Two kernels by which devices exchange data through each other's memory, and edits that break them.

``RING``: each device sends numbers around a ring of mailboxes, one round for each epoch. A mailbox has as many slots
as there are devices, used in turn; its flag holds the last epoch that was written there.
``GATHER``: each device writes its part to all others, one
block a part, and waits for theirs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowdnn.driver.nvrtc import compile_program
from tests.driver.emulated.devices.host import Host

HEAD = """
typedef unsigned int u32;
typedef unsigned long long u64;
__device__ void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ void release(u32* flag, u32 epoch) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(flag), "r"(epoch) : "memory");
}
__device__ u32 acquire(const u32* flag) {
  u32 found;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(flag) : "memory");
  return found;
}
"""

RING = (
    HEAD
    + """
// own, next: mailboxes of slots of 32 numbers, behind them the flag. y[t] = sum of what comes in.
extern "C" __global__ void ring(u32* own, u32* next, const u32* x, u32* y, u32 rounds, u32 slots) {
  u32 t = threadIdx.x, held = x[t], sum = 0;
  for (u32 epoch = 1; epoch <= rounds; epoch++) {
    u32 slot = epoch % slots * 32;
    next[slot + t] = held;
    __syncthreads();
    if (t == 0) release(next + slots * 32, epoch);
    if (t == 0) while (acquire(own + slots * 32) < epoch);
    __syncthreads();
    held = own[slot + t];
    sum += held;
  }
  y[t] = sum;
}
"""
)

GATHER = (
    HEAD
    + """
// boxes[r]: the memory of rank r, which has a part of 32 numbers for each rank and behind them a flag for each.
extern "C" __global__ void gather(u32* const* boxes, const u32* x, u32* y, u32 rank, u32 size) {
  u32 t = threadIdx.x, peer = blockIdx.x;
  u32* theirs = boxes[peer];
  theirs[rank * 32 + t] = x[t];
  fence();
  __syncthreads();
  if (t == 0) atomicExch_system(theirs + size * 32 + rank, 1u);
  u32* own = boxes[rank];
  if (t == 0) { while (*(volatile u32*)(own + size * 32 + peer) == 0); fence(); }
  __syncthreads();
  y[peer * 32 + t] = own[peer * 32 + t];
}
"""
)

_PTX: dict[str, str] = {}


def ptx_of(source: str) -> str:
    """The source as PTX, each text once."""
    if source not in _PTX:
        options = ("--gpu-architecture=compute_80",)
        _PTX[source] = compile_program(source, name="k.cu", headers={}, options=options).image.decode()
    return _PTX[source]


def edited(source: str, *edits: tuple[str, str]) -> str:
    for old, new in edits:
        assert old in source, old
        source = source.replace(old, new)
    return source


def run_ring(host: Host, source: str = RING, rounds: int = 5) -> None:
    """Launches the ring on every device, and checks the sums."""
    size = len(host.contexts)
    x = np.arange(32 * size, dtype=np.uint32).reshape(size, 32)
    boxes = [host.put(device, np.zeros(32 * size + 1, np.uint32), f"box{device}") for device in range(size)]
    outputs = [host.put(device, np.zeros(32, np.uint32)) for device in range(size)]
    for device in range(size):
        function = host.load(device, ptx_of(source), "ring")
        own, following = boxes[device], boxes[(device + 1) % size]
        numbers = (np.uint32(rounds), np.uint32(size))
        host.launch(device, function, own, following, host.put(device, x[device]), outputs[device], *numbers)
    host.synchronize()
    for device, y in enumerate(outputs):
        expected = sum(x[(device - epoch) % size] for epoch in range(1, rounds + 1))
        assert (host.get(device, y, 32, np.uint32) == expected).all()


def run_gather(host: Host, source: str = GATHER) -> None:
    """Launches the gathering on every device, and checks that each has all parts."""
    size = len(host.contexts)
    x = np.arange(32 * size, dtype=np.uint32).reshape(size, 32)
    boxes = [host.put(device, np.zeros(33 * size, np.uint32), f"box{device}") for device in range(size)]
    table: Any = np.array(boxes, np.uint64)
    outputs = [host.put(device, np.zeros(32 * size, np.uint32)) for device in range(size)]
    for device in range(size):
        function = host.load(device, ptx_of(source), "gather")
        arguments = (host.put(device, table), host.put(device, x[device]), outputs[device])
        host.launch(device, function, *arguments, np.uint32(device), np.uint32(size), grid=size)
    host.synchronize()
    for device, y in enumerate(outputs):
        assert (host.get(device, y, (size, 32), np.uint32) == x).all()
