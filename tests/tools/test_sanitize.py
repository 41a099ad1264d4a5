"""``tools.checks.sanitize``: the lines of a report."""

from __future__ import annotations

from tools.checks.sanitize import summary_of

REPORT = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at rnn_lstm+0x3710
=========     and Read access at rnn_lstm+0x1fe0 [1536 hazards]
=========
========= Error: Race reported between Write access at rnn_lstm+0x3720
=========     and Read access at rnn_gru+0x20 [8 hazards]
ok       eng49_rnn_stepwise        8.6 us device
FAILED   eng50_rnn_persistent: tensor 'y'
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""


def test_a_report_is_told_by_kernel_with_cases_that_failed() -> None:
    assert summary_of(REPORT.splitlines()).splitlines() == [
        "2 x Error: Race reported between Write access at rnn_lstm",
        "1 x and Read access at rnn_lstm",
        "1 x and Read access at rnn_gru",
        "FAILED   eng50_rnn_persistent: tensor 'y'",
    ]
