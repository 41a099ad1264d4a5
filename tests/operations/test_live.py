"""The files in a real Prometheus and Alertmanager, with the example of a service under load and its driver failing."""

from __future__ import annotations

from pathlib import Path

from lowdnn.operations.export import texts
from tests.operations.binaries import binary
from tools.operations.trial import ALL, MEASURES, OF_SERVICE, Trial

#: Growth of a service's memory within half a minute that is no leak: what is made at first use is most of it.
_GROWTH_BYTES = 24 << 20


def test_alerts_fire_and_clear_and_no_panel_is_empty(tmp_path: Path) -> None:
    """About 50 s of load: a service whose driver fails, SIGTERM, and one without faults in its place."""
    for name in ("prometheus", "prometheus-alertmanager"):
        binary(name)
    trial = Trial(tmp_path)
    outcome = trial.run()

    assert set(outcome.fired) == ALL
    assert outcome.services.firing == frozenset()
    assert outcome.empty == []
    assert [name for name, value in outcome.measures.items() if not value > 0] == []
    assert len(outcome.measures) == len(MEASURES) == 10

    # The pager hears of pages alone, and of their end. A page silences the tickets of its cause.
    pages = {name for name in ALL if f"alert: {name}\n" in texts()["alerts.rules.yml"].split("lowdnn_tickets")[0]}
    told = trial.receiver.alerts("pager", "firing")
    assert told <= pages
    assert {"LowdnnDriverReset", "LowdnnHang", "LowdnnServiceDown", "LowdnnXid"} <= told
    assert trial.receiver.alerts("pager", "resolved") <= told
    assert "LowdnnDriverReset" in trial.receiver.alerts("pager", "resolved")
    tickets = trial.receiver.alerts("tickets", "firing")
    assert tickets <= ALL - pages
    assert {"LowdnnCompiles", "LowdnnRequestsSlow", "LowdnnAlgorithmSwitches"} <= tickets
    assert {"LowdnnOutOfMemory", "LowdnnErrorBudgetBurnsFast"} <= outcome.inhibited
    for _, body in trial.receiver.notifications:
        assert set(body["groupLabels"]) <= {"pool", "host"}

    report = outcome.report
    assert report.lost == report.wrong == 0, report
    assert sum(report.answers.values()) == report.sent
    assert report.answers[200] > 0.6 * report.sent
    assert outcome.services.statuses == (0, 0)
    assert outcome.services.growth_bytes < _GROWTH_BYTES
    assert OF_SERVICE <= ALL
