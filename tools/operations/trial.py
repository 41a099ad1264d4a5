"""A trial of alerts and dashboards: each alert fires and clears, and each panel has something to show.

    python -m tools.operations.trial --pictures DIRECTORY

Prometheus and Alertmanager run the exported files, in which seconds stand for minutes. They watch the example of a
service under load on the emulated device, whose driver fails at first, and exporters that stand in for GPUs, a canary
and a second service. Then the service ends by SIGTERM, another one without faults takes its place, and all troubles
end.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lowdnn.operations.dashboards import DASHBOARDS
from lowdnn.operations.export import scaled, texts
from tools.examples.service.endurance import export_bundle
from tools.examples.service.load import Load, Report
from tools.examples.service.process import ServiceProcess, service
from tools.operations.monitoring import Monitoring, Receiver, Series, Targets, free_port, monitoring
from tools.operations.stand_in import StandIn

#: Divisor of all durations: 5 minutes become 1.25 s, 2 hours half a minute.
SCALE = 240
#: Every third batch fails, and then the context breaks; then four handles in turn find no memory.
_FAULTS = (
    ", ".join(f"launch:{number}=LAUNCH_FAILED" for number in range(9, 200, 9)) + ", launch:200-=LAUNCH_FAILED",
    *["mem_alloc:3=OUT_OF_MEMORY"] * 4,
)
#: Alerts that the service itself makes fire.
OF_SERVICE = frozenset(
    {
        "LowdnnServiceDown",
        "LowdnnErrorBudgetBurnsFast",
        "LowdnnErrorBudgetBurns",
        "LowdnnErrorBudgetEscalates",
        "LowdnnErrorBudgetBurnsSlowly",
        "LowdnnDriverReset",
        "LowdnnOutOfMemory",
        "LowdnnOutOfMemoryRepeats",
    }
)
ALL = frozenset(re.findall(r"- alert: (\w+)", texts()["alerts.rules.yml"]))
#: Slow kernels show against those of an hour before, which are a quarter of a minute here.
_BASELINE_S = 3600 / SCALE + 2
_FIRING_WITHIN_S = 90.0
_CLEAR_WITHIN_S = 120.0

#: The measures of the guide's page by their queries there.
MEASURES = {
    "M1 kernel time p95, s": "max(lowdnn:kernel_seconds:p95)",
    "M2 GPU utilisation": "avg(lowdnn:gpu_utilisation:avg5m)",
    "M3 device memory in use": "max(lowdnn:gpu_memory:used_ratio)",
    "M4 out-of-memory errors": "sum(lowdnn_out_of_memory_total)",
    "M5 driver resets": 'sum(lowdnn_driver_errors_total{kind="sticky"})',
    "M6 latency p99, s": 'max(lowdnn:service_request_seconds:p99{pool="inference"})',
    "M7 images a second": 'sum(lowdnn:service_images:rate5m{pool="inference"})',
    "M8 algorithm switches": "sum(lowdnn_algorithm_switches_total)",
    "M9 failed workspaces": "sum(lowdnn_workspace_failures_total)",
    "M10 failed checks of the canary": "sum(lowdnn_verify_failures)",
}


@dataclass(frozen=True)
class Services:
    """The two services of a trial.

    end: when the second one was told to end, in seconds since the epoch.  firing: the alerts that still fired then.
    statuses: their exit statuses after SIGTERM.
    growth_bytes: how much more memory the second one has at its end than when the last alert had fired.
    """

    end: float
    firing: frozenset[str]
    statuses: tuple[int, int]
    growth_bytes: int


@dataclass(frozen=True)
class Outcome:
    """The course of a trial.

    start: seconds since the epoch.  seconds: its length.
    fired, cleared: when each alert first fired and when it last did, in seconds from the start.
    inhibited: the alerts that others have silenced.
    empty: panels, as dashboard and title, a query of which has no value at any time.
    measures: the largest value of each of ``MEASURES``; nan where there is none.
    report: the callers' answers.
    """

    start: float
    seconds: float
    fired: Mapping[str, float]
    cleared: Mapping[str, float]
    inhibited: frozenset[str]
    empty: Sequence[str]
    measures: Mapping[str, float]
    report: Report
    services: Services


class Trial:
    """One trial, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.receiver = Receiver()
        self._stand_in = StandIn()
        self._seen: set[str] = set()
        self._inhibited: set[str] = set()
        self._bundle = export_bundle(folder)

    def run(self, look: Callable[[Monitoring, Outcome], None] | None = None) -> Outcome:
        """Runs the trial; ``look`` may ask Prometheus more before it ends."""
        with ExitStack() as running:
            process, gpus, canary = running.enter_context(self._stand_in.running())
            port = free_port()
            targets = Targets(
                {"inference": f"127.0.0.1:{port}", "stand-in": f"127.0.0.1:{process}"},
                f"127.0.0.1:{gpus}",
                f"127.0.0.1:{canary}",
            )
            receiver_port = running.enter_context(self.receiver.listening())
            watched = running.enter_context(monitoring(self.folder / "monitoring", targets, receiver_port, SCALE))
            start = time.time()
            load = running.enter_context(Load(port, rate=25, callers=8).running())
            services = self._play(watched, port)
            outcome = self._outcome(watched, start, load.report(), services)
            if look is not None:
                look(watched, outcome)
            return outcome

    def _play(self, watched: Monitoring, port: int) -> Services:
        """Runs a service that fails, and one that does not, until all alerts have fired and cleared."""
        start = time.monotonic()
        self._wait(watched, lambda: "LowdnnServiceDown" in self._seen, _FIRING_WITHIN_S)
        with self._service(port, _FAULTS) as faulty:
            self._stand_in.break_down()
            self._wait(watched, lambda: self._seen >= OF_SERVICE, _FIRING_WITHIN_S)
            first = faulty.terminate()
        with self._service(port, ()) as healthy:
            self._wait(watched, lambda: time.monotonic() > start + _BASELINE_S, _BASELINE_S)
            self._stand_in.is_slow = True
            self._wait(watched, lambda: self._seen >= ALL, _FIRING_WITHIN_S)
            self._stand_in.recover()
            before = healthy.resident_bytes()
            self._wait(watched, lambda: not watched.firing(), _CLEAR_WITHIN_S)
            end, firing = time.time(), frozenset(watched.firing())
            growth = healthy.resident_bytes() - before
            return Services(end, firing, (first, healthy.terminate()), growth)

    def _service(self, port: int, faults: Sequence[str]) -> AbstractContextManager[ServiceProcess]:
        arguments = ["--device", "emulated", "--bundle", str(self._bundle), "--port", str(port)]
        arguments += [word for text in faults for word in ("--faults", text)]
        return service(arguments, self.folder / f"service-{len(faults)}.log")

    def _wait(self, watched: Monitoring, is_over: Callable[[], bool], most_s: float) -> None:
        """Waits until ``is_over``, or for ``most_s``; notes which alerts fire and which are silenced."""
        end = time.monotonic() + most_s
        while time.monotonic() < end:
            self._seen |= watched.firing()
            self._inhibited |= watched.inhibited()
            if is_over():
                return
            time.sleep(0.25)

    def _outcome(self, watched: Monitoring, start: float, report: Report, services: Services) -> Outcome:
        end = services.end
        fired = _times(watched.between('count by (alertname) (ALERTS{alertstate="firing"})', start, end, 0.25), start)
        values = {name: watched.between(expr, start, end) for name, expr in MEASURES.items()}
        return Outcome(
            start=start,
            seconds=end - start,
            fired={name: first for name, (first, _) in fired.items()},
            cleared={name: last for name, (_, last) in fired.items()},
            inhibited=frozenset(self._inhibited),
            empty=[*_empty(watched, start, end)],
            measures={name: _largest(series) for name, series in values.items()},
            report=report,
            services=services,
        )


def panel_queries() -> Iterator[tuple[str, str, str, str]]:
    """(dashboard, panel, legend, expression) of each query, for all pools and with the trial's windows."""
    for dashboard in DASHBOARDS.values():
        for panel in dashboard.panels:
            for query in panel.queries:
                expr = scaled(query.expr, SCALE).replace("$pool", ".*")
                yield dashboard.title, panel.title, query.legend, expr


def _empty(watched: Monitoring, start: float, end: float) -> Iterator[str]:
    for dashboard, panel, _, expr in panel_queries():
        samples = [value for series in watched.between(expr, start, end) for _, value in series.samples]
        if all(value != value for value in samples):  # nan: a quantile of nothing
            yield f"{dashboard}, {panel}: {expr}"


def _times(found: Sequence[Series], start: float) -> dict[str, tuple[float, float]]:
    return {
        series.labels["alertname"]: (series.samples[0][0] - start, series.samples[-1][0] - start) for series in found
    }


def _largest(found: Sequence[Series]) -> float:
    values = [value for series in found for _, value in series.samples if value == value]
    return max(values, default=float("nan"))


def main() -> int:
    """Prints what came of it; 1 where an alert has not fired or not cleared, or a panel is empty."""
    parser = argparse.ArgumentParser(prog="python -m tools.operations.trial", description=__doc__)
    parser.add_argument("--pictures", type=Path, metavar="DIRECTORY", help="draw the dashboards there")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        trial = Trial(Path(folder))
        outcome = trial.run(None if arguments.pictures is None else _drawing(arguments.pictures))
    for name in sorted(ALL):
        if name in outcome.fired:
            print(f"{name:32} fires at {outcome.fired[name]:5.1f} s, clear at {outcome.cleared[name]:5.1f} s")
    for name, value in outcome.measures.items():
        print(f"{name:32} {value:.4g}")
    print(outcome.report)
    print(f"exit statuses {outcome.services.statuses}; silenced by others: {', '.join(sorted(outcome.inhibited))}")
    missing = [f"{name} did not fire" for name in sorted(ALL - set(outcome.fired))]
    missing += [f"{name} still fires" for name in sorted(outcome.services.firing)]
    missing += [f"empty: {panel}" for panel in outcome.empty]
    print("\n".join(missing) or f"all of it holds, in {outcome.seconds:.0f} s")
    return 1 if missing else 0


def _drawing(folder: Path) -> Callable[[Monitoring, Outcome], None]:
    from tools.operations.pictures import draw

    return lambda watched, outcome: draw(watched, outcome.start, outcome.start + outcome.seconds, folder)


if __name__ == "__main__":
    sys.exit(main())
