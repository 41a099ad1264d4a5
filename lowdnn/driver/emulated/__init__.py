"""The emulated device: runs the very PTX that a GPU gets, on the CPU, and reports what the kernel does wrong.

``EmulatedDriver`` speaks the Driver protocol (``lowdnn.driver.base``), so everything above it, and any program of your
own that uses the protocol, runs on it unchanged:

>>> import ctypes
>>> import numpy as np
>>> from lowdnn.driver import open_driver
>>> from lowdnn.driver.base import LaunchConfig
>>> ptx = '''
... .version 8.0
... .target sm_80
... .address_size 64
... .visible .entry square(.param .u64 x)
... {
...   .reg .b32 %r<3>; .reg .b64 %rd<3>;
...   mov.u32 %r1, %tid.x;
...   mul.wide.u32 %rd1, %r1, 4;
...   ld.param.u64 %rd2, [x];
...   add.u64 %rd2, %rd2, %rd1;
...   ld.global.u32 %r2, [%rd2];
...   mul.lo.u32 %r2, %r2, %r2;
...   st.global.u32 [%rd2], %r2;
...   ret;
... }'''
>>> driver = open_driver("emulated", arch="sm_80", policy="warp-serial(7)")
>>> driver.context_set_current(driver.primary_context_retain(0))
>>> x = np.arange(5, dtype=np.uint32)
>>> device_x = driver.mem_alloc(x.nbytes, "x")
>>> driver.memcpy_htod_async(device_x, x.ctypes.data, x.nbytes, 0)
>>> function = driver.module_get_function(driver.module_load_data(ptx.encode()), "square")
>>> value = ctypes.c_uint64(device_x)
>>> parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
>>> launch = driver.prepare_launch(function, LaunchConfig((1, 1, 1), (5, 1, 1)), ctypes.addressof(parameters))
>>> launch(0)
>>> driver.memcpy_dtoh_async(x.ctypes.data, device_x, x.nbytes, 0)
>>> x.tolist()
[0, 1, 4, 9, 16]

One thread too many, and the launch raises ``DriverError`` with the CUresult that a GPU may give and the report that it
does not; ``mem_alloc``'s label names the buffer:

>>> launch = driver.prepare_launch(function, LaunchConfig((1, 1, 1), (6, 1, 1)), ctypes.addressof(parameters))
>>> try:
...     launch(0)
... except Exception as error:
...     print(error.name, error.explanation, sep=chr(10))  # doctest: +ELLIPSIS
CUDA_ERROR_ILLEGAL_ADDRESS
out-of-bounds: 4 bytes at 0x...: 4 bytes past the end of x (20 bytes)
  kernel square
  PTX line 12: ld.global.u32 %r2, [%rd2];
  block (0, 0, 0), thread (5, 0, 0) (warp 0, lane 5)
  address 0x... = x +20 bytes
>>> driver.primary_context_release(0)

Like a GPU's, the fault stays until the primary context is released.

**A report** says, in this order: the kind of fault and what happened; the kernel; the line of its PTX; ``source``, the
line of CUDA C++ (``-lineinfo``); the block, thread, warp and lane that did it, the first of those that did; the
address, with the buffer's label and the offset in it, in shared memory the variable too. Lines that do not apply are
left out. ``DriverError.report`` holds the same by name, as JSON takes it. A deadlock is told at the place of the first
threads that wait, and lists who waits where and for what. ``printf`` of a kernel goes to ``sys.stdout``, lane after
lane; an ``assert`` that fails is a fault.

**How it runs.** ``parsing`` turns PTX into instructions, ``generating`` cuts them into basic blocks and writes each
block as Python over NumPy arrays (one element a thread, many CTAs at a time), and ``running`` schedules the blocks.
``memory`` holds the bytes with a shadow that knows which were written, ``copying`` moves them asynchronously, and
``checking`` looks for data races. ``instructions`` has a row and an emitter for each opcode, ``values`` the arithmetic.
``machine`` puts them together, ``queues`` orders the work of streams and devices, ``driver`` is the protocol over it.

**The order of the packages.** Each imports only those before it, for types too; a test reads the imports: ``faults``,
``results``, ``values``; ``parsing``, ``memory.space``; ``memory.arena``, ``lanes``, ``memory``; ``copying``,
``checking``, ``running``; ``generating``, ``instructions``, ``program``; ``reports``, ``execution``, ``machine``;
``graphs``, ``launching``, ``queues``, ``moves``, ``state``, ``streams``, ``context``, ``graph_calls``, ``host_calls``,
``peers``, ``driver``. ``device`` and ``options`` come before ``program``.
Memory, copies and the race detector declare what they ask of a batch as protocols: ``lanes`` holds those of all,
``batch`` in each package its own.

**Policies** say in which order warps run. A right kernel gives the same under each (``Policy``); a wrong one is found
by the one that hurts it (lockstep hides every missing barrier):

| policy            | order                                                     | finds                               |
| ----------------- | --------------------------------------------------------- | ----------------------------------- |
| lockstep          | all threads together; the fastest                         | all that is told below              |
| warp-serial(seed) | one warp at a time, as far as it goes, picked by the seed | that, and missing barriers in a CTA |
| cta-reverse       | one CTA at a time, from the last one                      | that, and reliance on CTAs' order   |
| fuzz(seed)        | warps, CTAs' warps or warpgroups, interrupted at random   | that, and rarer interleavings       |

``EmulatedDriver`` takes further ``Options``: ``landing="early"`` lets asynchronous copies land at once, which shows a
stage that is overwritten while it is still read; ``"late"``, at the wait, shows a missing wait; a fuzzing policy lands
them late, early or at any time between. ``races=True`` looks for data races, whatever the order; a launch takes a few
times as long. ``checks=False`` allows reads of unwritten bytes; ``lane_budget`` bounds memory. A launch in which no
thread has stored, passed a barrier or ended for ``timeout_s`` (20 s of processor time), or that takes 15 times that in
all, is stopped. As text, in ``open_driver``, ``Handle.open``, LOWDNN_EMULATED_POLICY and ``lowdnn run --policy``,
policy, landing, races, time and devices are one: ``fuzz(7),early,races,timeout=5``, ``lockstep,devices=2``.
``lowdnn run CASE --sanitize`` runs a case under all of them and prints a verdict for each.

**Several devices.** ``open_driver("emulated", devices=2)`` has two of a kind in one process, each with memory,
contexts, streams, events and modules of its own. A kernel that touches memory of another device is at fault without
``context_enable_peer_access`` or an interprocess handle, which opens memory within the process; copies need neither.
Work is queued in its stream and runs when the host waits for it, or asks for it. The policy picks the order: the first
device first, the last one (cta-reverse), any (warp-serial), or any, interrupted at random (fuzz). A kernel of which
all threads wait for a value is left while others go on. Where nothing can go on, the report names all who wait, with
kernel, device, PTX line, block and address. Other threads of the process that have a context current may still add
work, and are waited for up to ``timeout_s``. Faults are raised by the call that waits. With ``races``, accesses of
launches and copies of all devices and streams must be ordered: by their stream, an event, the host, a host function
that waits for another, or a release and an acquire whose scopes reach. Between devices ``.sys`` alone reaches.

**What it checks**, at every access, not by sample: bounds of global, shared and local memory; use after free;
alignment; writes to constant memory; reads of bytes and of registers that nothing has written; barriers and mbarriers
with wrong counts or overwritten; cluster barriers waited for without an arrival; shared memory of CTAs that have
exited; asynchronous work that nobody waits for; accumulators of ``wgmma`` that are touched before their
``wgmma.wait_group``, and registers that no ``wgmma.fence`` has made ready; warp-wide instructions in diverged warps;
deadlock; traps and endless loops; with ``races``, accesses that no barrier, fence or atomic orders, a CTA that may exit
while another one uses its shared memory, and work of the async or tensormap proxy without its fence. PTX that it cannot
run, or that its target lacks, is refused when it is loaded, with its line.

**What it does not see**: races between lanes of one warp. They run in lock-step within each instruction, as on a GPU
they need not, so that a missing ``__syncwarp`` and lanes that write different values to one place go unreported.

**Calibration.** An H200 or H100 ran 982 micro-kernels, and every test run holds this device against their results:
integers, conversions, rounding, copies and layouts are equal bit for bit, approximate functions and tensor-core sums
lie within stated bounds. ``tests/calibration/README.md`` has the figures, and what a GPU does beyond the manual.

**What it models:**

| part of the device           | modelled                                     | not modelled                          |
| ---------------------------- | -------------------------------------------- | ------------------------------------- |
| integers, bits, predicates   | bit for bit                                  | video forms (``vadd``, ``vabsdiff4``) |
| f32, f64                     | all roundings and modifiers, bit for bit     |                                       |
| ``.approx`` functions        | within the manual's error                    | the hardware's own last bits          |
| f16, bf16, tf32, fp8         | arithmetic and conversions, bit for bit      | fp4, fp6                              |
| ``mma``, ``ldmatrix``        | f16, bf16, tf32, fp8, int8, int4, f64        | sparse, binary; order of the sum      |
| ``wgmma``, TMA, ``mbarrier`` | all forms of sm_90a                          | order of the sum; interleaved maps    |
| textures, surfaces           |                                              | refused when loaded                   |
| asynchronous copies          | ``cp.async``, bulk, ``st.async``, reductions | byte masks of bulk stores             |
| warps                        | divergence, member masks, all exchanges      | where hardware brings lanes together  |
| CTAs                         | 16 barriers, all forms; cooperative launches | ``%envreg`` but the grid's workspace  |
| clusters                     | shared memory of all CTAs, barrier, launch   | ``.blocksareclusters``                |
| atomics                      | 16 to 128 bits, vectors; in lane order       | other orders; ``multimem``            |
| memory order                 | data races found; a store is seen at once    | weak memory as such                   |
| several devices              | peer access, IPC in the process, scopes      | links' speed; fabric handles          |
| calls                        | device functions, inlined; printf, assert    | recursion, function pointers, malloc  |
| streams, events, graphs      | one device: in the order of calls; capture   | overlap, also of dependent grids      |
| time                         | counted: instructions, bytes copied          | the GPU's speed and caches            |
"""

from __future__ import annotations
