"""The calls whose host time is measured do what they say."""

from __future__ import annotations

from lowdnn.backend import Handle
from tools.bench.host import norm_calls


def test_norms_run_with_their_values_given_in_every_way(handle: Handle) -> None:
    calls = norm_calls(handle)
    assert {"norm, all by address", "norm, values as arrays", "norm, values as floats"} <= set(calls)
    for call in calls.values():
        for _ in range(2):
            call()
    handle.synchronize()
    assert "keys_passed_over" not in handle.runtime.counters.snapshot()
