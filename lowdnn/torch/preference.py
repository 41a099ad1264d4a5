"""Where the native kernel is left in place although lowdnn could compute the call.

The host's time is no reason: on the way back to the native kernel a call takes as long as lowdnn's own, or longer
(``tools/bench/torch_host.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from lowdnn.heuristics.ranking import Candidate

#: Launches of a step from which on a chain of kernels is likely to lose against one native kernel.
_MOST_LAUNCHES = 6


def native_is_preferred(candidates: Sequence[Candidate]) -> str:
    """Why the native kernel is likely to be faster than these plans, one for each graph of a call; "" where it is not.

    A graph that no engine takes as a whole becomes a chain of plans, and a long chain moves its intermediates through
    memory. The rule knows nothing of the native kernel: there are no times of it beside those of tuning records, and
    ranking's model predicts lowdnn's kernels alone.
    """
    longest = max((len(candidate.plan.launches) for candidate in candidates), default=0)
    if longest > _MOST_LAUNCHES:
        return f"a chain of {longest} launches, where {_MOST_LAUNCHES} at most are expected to pay"
    return ""
