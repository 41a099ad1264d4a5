"""mbarrier: tests, pending counts and phases after scripted arrivals. PTX ISA manual, "mbarrier"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lowdnn.driver.base import LaunchConfig
from tests.calibration.case import Case, Output
from tests.calibration.cases.asynchronous import BARRIER_BYTES, REGISTERS, barrier
from tests.calibration.cases.program import program

_ONE_WARP = LaunchConfig((1, 1, 1), (32, 1, 1), 1024 + BARRIER_BYTES)

#: Count of a barrier, and steps by one thread: "arrive n" and "drop n" keep the state, whose pending count is stored;
#: "tx n" expects bytes, "done n" completes them, "noComplete n" arrives without ending the phase. After each step both
#: parities and the last state are tested.
_SCRIPTS: dict[str, tuple[int, Sequence[str]]] = {
    "count 1": (1, ("arrive 1", "arrive 1", "arrive 1")),
    "count 3": (3, ("arrive 1", "arrive 1", "arrive 1", "arrive 2", "arrive 1", "arrive 3")),
    "no complete": (4, ("noComplete 1", "noComplete 2", "arrive 1", "noComplete 3", "arrive 1")),
    "bytes": (1, ("tx 64", "arrive 1", "done 16", "done 48", "tx 32", "done 32", "arrive 1")),
    "bytes first": (2, ("done 16", "arrive 1", "tx 16", "arrive 1", "arrive 2")),
    "bytes and arrival": (1, ("arrive_tx 128", "done 128", "arrive_tx 16", "done 16", "arrive_tx 0")),
    "drop": (3, ("arrive 1", "drop 1", "arrive 1", "arrive 1", "arrive 1", "drop 1", "arrive 1", "arrive 1")),
    "drop with bytes": (2, ("drop_tx 32", "arrive 1", "done 32", "arrive 1", "arrive 1")),
    "largest count": ((1 << 20) - 1, ("arrive 1048574", "arrive 1", "arrive 1048575")),
}

_TEXTS = {
    "arrive": "mbarrier.arrive.shared.b64 %token, [%bar], {0};",
    "drop": "mbarrier.arrive_drop.shared.b64 %token, [%bar], {0};",
    "noComplete": "mbarrier.arrive.noComplete.shared.b64 %token, [%bar], {0};",
    "tx": "mbarrier.expect_tx.relaxed.cta.shared.b64 [%bar], {0};",
    "done": "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%bar], {0};",
    "arrive_tx": "mbarrier.arrive.expect_tx.shared.b64 %token, [%bar], {0};",
    "drop_tx": "mbarrier.arrive_drop.expect_tx.shared.b64 %token, [%bar], {0};",
}
_VALUES_A_STEP = 4


def cases() -> Iterator[Case]:
    for name, (count, steps) in _SCRIPTS.items():
        yield _script(name, count, steps)
    yield _remote()


def _script(name: str, count: int, steps: Sequence[str]) -> Case:
    text, states = "", 0
    for place, step in enumerate(steps):
        verb, number = step.split()
        text += _TEXTS[verb].format(number) + "\n"
        states += verb not in ("tx", "done")
        text += _observed(place, bool(states))
    body = f"""{REGISTERS}{barrier(1024, count)}
@!%first bra DONE;
{text}DONE:
"""
    return program(name, body, (), (Output("observed", "u32", _VALUES_A_STEP * len(steps)),), _ONE_WARP)


def _observed(place: int, has_state: bool) -> str:
    """Both parities, and for the last state whether its phase is over and how many arrivals it lacked."""
    tests = [f"mbarrier.test_wait.parity.shared.b64 %p, [%bar], {parity};" for parity in (0, 1)]
    tests += ["mbarrier.test_wait.shared.b64 %p, [%bar], %token;"] if has_state else []
    text = "".join(
        f"{test}\nselp.u32 %n, 1, 0, %p;\nst.global.b32 [%o0+{4 * (_VALUES_A_STEP * place + i)}], %n;\n"
        for i, test in enumerate(tests)
    )
    if has_state:
        text += f"mbarrier.pending_count.b64 %n, %token;\nst.global.b32 [%o0+{4 * (_VALUES_A_STEP * place + 3)}], %n;\n"
    return text


def _remote() -> Case:
    """Every thread of block 1 arrives at block 0's barrier, and once more with bytes that the same thread completes."""
    body = f"""{REGISTERS}.reg .b32 %rank, %there;
mov.u32 %rank, %cluster_ctarank;
{barrier(1024, 32)}barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
setp.eq.u32 %q, %rank, 0;
@%q bra WAITING;
mapa.shared::cluster.u32 %there, %bar, 0;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%there];
bra DONE;
WAITING:
mbarrier.try_wait.parity.acquire.cluster.shared.b64 %p, [%bar], 0;
@!%p bra WAITING;
mbarrier.test_wait.parity.shared.b64 %p, [%bar], 0;
selp.u32 %n, 1, 0, %p;
mad.wide.u32 %a0, %t, 8, %o0;
st.global.b32 [%a0], %n;
mbarrier.test_wait.parity.shared.b64 %p, [%bar], 1;
selp.u32 %n, 1, 0, %p;
st.global.b32 [%a0+4], %n;
DONE:
barrier.cluster.arrive;
barrier.cluster.wait;
"""
    launch = LaunchConfig((2, 1, 1), (32, 1, 1), 1024 + BARRIER_BYTES, cluster=(2, 1, 1))
    return program("remote arrivals", body, (), (Output("observed", "u32", 64),), launch)
