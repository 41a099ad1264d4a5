"""The rules: each alert fires, holds and clears under Debian's ``promtool``, and reads nothing but known series."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from lowdnn.guide.pages import topics
from lowdnn.operations.export import export, texts
from tests.operations.alert_scenarios import POOL, SCENARIOS, Scenario
from tests.operations.binaries import binary

_TEXTS = texts()
_ALERTS = _TEXTS["alerts.rules.yml"]
_NAMES = re.findall(r"- alert: (\w+)", _ALERTS)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    export(tmp_path)
    return tmp_path


def test_each_alert_fires_holds_and_clears(rules: Path) -> None:
    assert sorted(scenario.alert for scenario in SCENARIOS) == sorted(_NAMES)
    (rules / "tests.yml").write_text(json.dumps(_document(SCENARIOS)))
    done = _promtool("test", "rules", str(rules / "tests.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_expectation_is_found(rules: Path) -> None:
    first = SCENARIOS[0]
    wrong = Scenario(
        first.alert, first.series, quiet=first.fires + 1, fires=first.fires, holds=first.holds, clear=first.clear
    )
    (rules / "tests.yml").write_text(json.dumps(_document((wrong,))))
    assert _promtool("test", "rules", str(rules / "tests.yml")).returncode == 1


@pytest.mark.parametrize("scale", [1, 240])
def test_files_are_valid(tmp_path: Path, scale: int) -> None:
    export(tmp_path, scale=scale)
    done = _promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert done.returncode == 0, done.stderr
    checked = subprocess.run(
        [binary("amtool"), "check-config", str(tmp_path / "alertmanager.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alerts_say_what_to_do() -> None:
    blocks = _ALERTS.split("- alert: ")[1:]
    for block in blocks:
        assert re.search(r"labels: \{severity: (page|ticket), cause: \w+\}", block), block
        assert re.search(r"\n +keep_firing_for: ", block), block
        runbook = re.search(r"runbook: lowdnn guide (\S+)\n", block)
        assert runbook is not None, block
        assert runbook[1] in topics(), block


def _document(scenarios: tuple[Scenario, ...]) -> dict[str, object]:
    """The form of promtool's tests, in which all scenarios happen at once; JSON is YAML, too."""
    series = [
        {
            "series": name.replace(POOL, scenario.alert),
            "values": " ".join("_" if value is None else f"{value:.12g}" for value in values),
        }
        for scenario in scenarios
        for name, values in scenario.series.items()
    ]
    expected = [expectation for scenario in scenarios for expectation in _expectations(scenario)]
    return {
        "rule_files": ["targets.rules.yml", "recording.rules.yml", "alerts.rules.yml"],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": expected}],
    }


def _expectations(scenario: Scenario) -> list[dict[str, object]]:
    name = scenario.alert
    expression = f'count(ALERTS{{alertname="{name}",pool="{name}",alertstate="firing"}}) or vector(0)'
    fires = {scenario.quiet: 0, scenario.fires: 1, scenario.holds: 1, scenario.clear: 0}
    return [
        {"expr": expression, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": value}]}
        for minute, value in fires.items()
    ]


def _promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([binary("promtool"), *arguments], capture_output=True, text=True, check=False)
