"""Series that make each alert fire and clear, a sample a minute, for ``promtool test rules``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Where a scenario happens: each has a pool and a process of its own, in place of POOL.
POOL = "POOL"
_WHERE = f'pool="{POOL}",host="h",instance="{POOL}",job="lowdnn"'
_REQUESTS = f'lowdnn_service_requests_total{{code="200",{_WHERE}}}'
_ERRORS = f'lowdnn_service_requests_total{{code="500",{_WHERE}}}'
_SHED = f"lowdnn_service_shed_total{{{_WHERE}}}"
_IMAGES = f"lowdnn_service_images_total{{{_WHERE}}}"
_GPU = f'gpu="0",UUID="GPU-0",{_WHERE}'
_OPERATION = f'operation="matmul",engine="e",{_WHERE}'

#: Samples, None where there is none.
Values = Sequence[float | None]


@dataclass(frozen=True)
class Scenario:
    """Series by name, and what becomes of ``alert``, in minutes from the start.

    quiet: it does not fire yet, although values are close to the limit.  fires: it fires.
    holds: the condition has gone, and it fires still.  clear: it has ended.
    """

    alert: str
    series: dict[str, Values]
    quiet: int
    fires: int
    holds: int
    clear: int


def counts(*phases: tuple[int, float], start: float = 0) -> list[float]:
    """A counter that grows, for each (minutes, amount), by ``amount`` a minute."""
    values = [start]
    for minutes, amount in phases:
        values += [values[-1] + amount * (minute + 1) for minute in range(minutes)]
    return values


def levels(*phases: tuple[int, float]) -> list[float]:
    """A gauge that has, for each (minutes, value), ``value``."""
    return [value for minutes, value in phases for _ in range(minutes)]


def burst(quiet: int, events: float, rest: int = 400) -> list[float]:
    """A counter that is 0 for ``quiet`` minutes and then ``events``."""
    return levels((quiet, 0), (rest, events))


def born(quiet: int, events: float, rest: int = 400) -> list[float | None]:
    """A counter that appears with its first events, behind ``quiet`` minutes."""
    return [None] * quiet + [events] * rest


def interrupted(quiet: int, value: float) -> list[float | None]:
    """A value that is 0 for ``quiet`` minutes; behind an hour nobody reads it for 12 minutes."""
    return [*levels((quiet, 0), (60 - quiet, value)), *[None] * 12, *levels((300, value))]


def _latency(*phases: tuple[int, float], measure: str, labels: str) -> dict[str, Values]:
    """Series of a histogram, of which 100 values a minute are ``value`` seconds, for each (minutes, value)."""
    bounds = (0.001, 0.002, 0.005, 0.01, 0.1, 0.2, 0.5, 1.0, float("inf"))
    return {
        f'{measure}_bucket{{le="{"+Inf" if bound == float("inf") else bound}",{labels}}}': counts(
            *((minutes, 100.0 if value <= bound else 0.0) for minutes, value in phases)
        )
        for bound in bounds
    }


SCENARIOS = (
    Scenario(
        "LowdnnErrorBudgetBurnsFast",
        {_REQUESTS: counts((400, 100)), _ERRORS: counts((30, 1), (30, 10), (340, 1))},
        quiet=29,
        fires=55,
        holds=68,
        clear=72,
    ),
    Scenario(
        "LowdnnErrorBudgetBurns",
        {_REQUESTS: counts((900, 1000)), _ERRORS: counts((120, 5), (120, 15), (660, 0))},
        quiet=119,
        fires=238,
        holds=260,
        clear=270,
    ),
    Scenario(
        "LowdnnErrorBudgetEscalates",
        {_REQUESTS: counts((400, 1000)), _ERRORS: counts((60, 2), (30, 5), (310, 0))},
        quiet=74,
        fires=82,
        holds=96,
        clear=105,
    ),
    Scenario(
        "LowdnnErrorBudgetBurnsSlowly",
        {_REQUESTS: counts((300, 1000)), _ERRORS: counts((60, 2), (100, 8), (140, 0))},
        quiet=60,
        fires=155,
        holds=240,
        clear=260,
    ),
    Scenario(
        "LowdnnDriverReset",
        {
            f'lowdnn_driver_errors_total{{kind="sticky",{_WHERE}}}': interrupted(20, 1),
            f'lowdnn_driver_errors_total{{kind="other",{_WHERE}}}': counts((400, 1)),
        },
        quiet=19,
        fires=22,
        holds=45,
        clear=82,
    ),
    Scenario(
        "LowdnnXid",
        {f"DCGM_FI_DEV_XID_ERRORS{{{_GPU}}}": interrupted(20, 79)},
        quiet=19,
        fires=21,
        holds=45,
        clear=82,
    ),
    Scenario(
        "LowdnnDoubleBitError",
        {
            f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{_GPU}}}": burst(20, 2),
            f"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{{{_GPU}}}": counts((400, 1)),
        },
        quiet=19,
        fires=22,
        holds=45,
        clear=55,
    ),
    Scenario(
        "LowdnnOutOfMemoryRepeats",
        {
            f"lowdnn_out_of_memory_total{{{_WHERE}}}": levels((20, 0), (20, 2), (400, 12)),
            _ERRORS: counts((400, 1)),
            _REQUESTS: counts((400, 100)),
        },
        quiet=35,
        fires=42,
        holds=65,
        clear=75,
    ),
    Scenario(
        "LowdnnHang",
        {f"lowdnn_hangs_total{{{_WHERE}}}": born(20, 1)},
        quiet=19,
        fires=22,
        holds=45,
        clear=55,
    ),
    Scenario(
        "LowdnnServiceDown",
        {f"up{{{_WHERE}}}": levels((20, 1), (1, 0), (19, 1), (10, 0), (350, 1))},
        quiet=22,
        fires=45,
        holds=51,
        clear=54,
    ),
    Scenario(
        "LowdnnRequestsSlow",
        _latency((30, 0.2), (30, 1.0), (300, 0.2), measure="lowdnn_service_request_seconds", labels=_WHERE),
        quiet=30,
        fires=55,
        holds=70,
        clear=80,
    ),
    Scenario(
        "LowdnnKernelsSlow",
        _latency((90, 0.01), (40, 0.1), (100, 0.01), measure="lowdnn_kernel_seconds", labels=_OPERATION),
        quiet=90,
        fires=125,
        holds=145,
        clear=160,
    ),
    Scenario(
        "LowdnnThroughputLow",
        {
            _REQUESTS: counts((90, 1000), (40, 800), (100, 1000)),
            _IMAGES: counts((90, 1000), (40, 800), (100, 1000)),
            _SHED: counts((230, 10)),
        },
        quiet=90,
        fires=125,
        holds=138,
        clear=155,
    ),
    Scenario(
        "LowdnnShedsLoad",
        {_REQUESTS: counts((400, 1000)), _SHED: counts((30, 9), (30, 20), (340, 5))},
        quiet=30,
        fires=55,
        holds=70,
        clear=80,
    ),
    Scenario(
        "LowdnnOutOfMemory",
        {f"lowdnn_out_of_memory_total{{{_WHERE}}}": burst(20, 1)},
        quiet=19,
        fires=22,
        holds=45,
        clear=55,
    ),
    Scenario(
        "LowdnnMemoryFull",
        {
            f"DCGM_FI_DEV_FB_USED{{{_GPU}}}": levels((30, 89), (30, 95), (340, 89)),
            f"DCGM_FI_DEV_FB_FREE{{{_GPU}}}": levels((30, 11), (30, 5), (340, 11)),
        },
        quiet=30,
        fires=45,
        holds=65,
        clear=75,
    ),
    Scenario(
        "LowdnnWorkspaceFailures",
        {f"lowdnn_workspace_failures_total{{{_WHERE}}}": born(20, 1)},
        quiet=19,
        fires=22,
        holds=90,
        clear=100,
    ),
    Scenario(
        "LowdnnAlgorithmSwitches",
        {
            f'lowdnn_algorithm_switches_total{{operation="o",from_engine="a",to_engine="b",{_WHERE}}}': levels(
                (20, 0), (20, 4), (400, 20)
            )
        },
        quiet=35,
        fires=42,
        holds=120,
        clear=140,
    ),
    Scenario(
        "LowdnnCompiles",
        {f"lowdnn_compiles_total{{{_WHERE}}}": levels((20, 0), (20, 15), (400, 60))},
        quiet=35,
        fires=42,
        holds=120,
        clear=140,
    ),
    Scenario(
        "LowdnnAccuracyDrift",
        {f'lowdnn_verify_failures{{case="c",{_WHERE}}}': levels((20, 0), (10, 3), (300, 0))},
        quiet=19,
        fires=22,
        holds=40,
        clear=50,
    ),
    Scenario(
        "LowdnnGpuSlowedDown",
        # 0x14: a power cap and a sync boost, which are no faults; 0x40: heat.
        {f"DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{{_GPU}}}": levels((30, 0x14), (30, 0x45), (300, 0x14))},
        quiet=30,
        fires=45,
        holds=65,
        clear=75,
    ),
)
