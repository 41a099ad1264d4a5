#!/usr/bin/env bash
# Whether a new version is as fast and as right as the one in production. Exit 0: it is.  1: a case is slower, or drifts.
#   regression_gate.sh CASES TIMES BASELINE
# The first run, with the version in production, makes TIMES (lowdnn bench --save) and BASELINE (lowdnn verify --save);
# later runs, with another version, compare with them and leave them as they are. DEVICE: where it runs (default: cuda).
# RUNS: how often the first run times the cases (default: 5; three are the least from which a change can be told).
set -euo pipefail

cases=${1:?a file of cases} times=${2:?the saved times} baseline=${3:?the saved outputs}
device=${DEVICE:-cuda}

if [ ! -e "$times" ] || [ ! -e "$baseline" ]; then
    for _ in $(seq "${RUNS:-5}"); do lowdnn bench "@$cases" --device "$device" --save "$times"; done
    exec lowdnn verify "@$cases" --device "$device" --save "$baseline"
fi
status=0
lowdnn bench "@$cases" --device "$device" --compare "$times" || status=$?
lowdnn verify --device "$device" --baseline "$baseline" || status=$?
exit "$status"
