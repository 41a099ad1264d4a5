// Peers: ranks that run the same kernel at the same time, each on a device of its own. They exchange numbers through
// each other's buffers in the memory of these devices.
//
// A kernel waits for other ranks in the midst of its work. So all blocks of a rank that wait are resident, in a
// cooperative launch, and none waits for one that comes after it; and ranks run their kernels in the same order.
// A rank that is missing hangs nobody: after the header's time limit a thread notes whom it waited for. From then on no
// thread of this rank waits, in this launch or in later ones, until the host has made new buffers.

#pragma once

#include "include/ptx/system_scope.cuh"

// The head of each buffer: HEADER_WORDS of lowdnn/ops/peer_stats.py.
struct PeerHeader {
  u32 rank;     // the owner's
  u32 failure;  // 0, or 1 + a rank that was waited for in vain
  u64 limit_ns;
  u64 unused[6];
};

// Time that a thread waits before it looks at anything but what it waits for.
constexpr u64 PATIENCE_NS = 1024;
// The longest sleep between looks after that.
constexpr u64 LONGEST_SLEEP_NS = 1 << 20;

// Calls `look()` until it is true. Returns false once the time is over, or if any thread has waited in vain;
// `missing()` is the rank that is waited for. A late rank is noticed after a sixteenth of the time at most.
template <class Look, class Missing>
__device__ __forceinline__ bool wait_for_peers(PeerHeader* own, Look look, Missing missing) {
  u64 begin = 0;
  while (!look()) {
    const u64 now = timer_ns();
    if (begin == 0) begin = now;
    const u64 waited = now - begin;
    if (waited < PATIENCE_NS) continue;
    if (load_relaxed_system(&own->failure) != 0) return false;
    if (waited >= own->limit_ns) {
      store_relaxed_system(&own->failure, 1 + missing());
      return false;
    }
    sleep_ns(u32(waited / 16 < LONGEST_SLEEP_NS ? waited / 16 : LONGEST_SLEEP_NS));
  }
  return true;
}
