"""Where the native kernel is left in place although lowdnn could compute the call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowdnn.heuristics.ranking import Candidate

#: Launches of a step from which on a chain of kernels is likely to lose against one native kernel.
_MOST_LAUNCHES = 6
#: Microseconds that the host takes longer for a native kernel which a taken-over call is left to, than for one that
#: nothing has taken over. Estimated from calls on a CPU, where lowdnn's own part of a call takes 7 to 11.
_LEFT_US = 8.0


@dataclass(frozen=True)
class HostTime:
    """Microseconds of the host in one eager call: of the native operation, and of lowdnn in its place."""

    native_us: float
    lowdnn_us: float


#: Times on an H200 with torch 2.11. The gradient's time is that of a forward and backward pass without the forward one.
#: Attention was timed as a whole pass, of which both entries have one half.
HOST_TIMES = {
    "convolution": HostTime(29, 31),
    "convolution_backward": HostTime(126, 166),
    "cudnn_batch_norm": HostTime(46, 74),
    "native_batch_norm": HostTime(46, 74),
    "_batch_norm_with_update": HostTime(46, 74),
    "mm": HostTime(14, 23),
    "addmm": HostTime(19, 19),
    **{
        f"_scaled_dot_product_{kind}_attention{pass_}": HostTime(90, 201)
        for kind in ("flash", "efficient", "cudnn")
        for pass_ in ("", "_backward")
    },
    # The entries that those call where they are left to torch.
    **{
        f"_{kind}_attention_{pass_}": HostTime(90, 201)
        for kind in ("efficient", "cudnn")
        for pass_ in ("forward", "backward")
    },
}


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


def host_is_slower(name: str, candidates: Sequence[Candidate]) -> str:
    """Why the native kernel is likely to be faster in eager mode; "" where it is not. name: of the operation.

    A call that keeps the device busy for less time than the host needs to launch it takes as long as the host. Then the
    path that costs the host less wins, whatever the kernels do. CUDA graphs have no such cost.
    """
    host = HOST_TIMES.get(name)
    if host is None or host.lowdnn_us <= host.native_us + _LEFT_US:
        return ""
    if sum(candidate.estimated_us for candidate in candidates) >= host.lowdnn_us:
        return ""
    return f"less time on the device than the {host.lowdnn_us:g} us that the host takes for a call"
