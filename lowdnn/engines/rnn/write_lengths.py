"""The kernel that takes lengths of sequences from the host to the device, as parameters of its launch."""

from __future__ import annotations

from lowdnn.plan import KernelRef

#: Lengths of one launch, whose parameters take at most 4 KiB.
CAPACITY = 1000
#: Threads of a block, one for each length.
THREADS = 128

KERNEL = KernelRef(
    "write_lengths_sm80", "rnn/write_lengths.cu", "sm_80", (("CAPACITY", CAPACITY), ("THREADS", THREADS))
)
