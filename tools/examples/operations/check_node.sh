#!/usr/bin/env bash
# Whether a node may take work. Exit 0: it may.  1: a check, a requirement or a case failed; the lines above say which.
#   check_node.sh MATRIX [METRICS]
# MATRIX: versions, for lowdnn doctor --require.  METRICS: a *.prom file in the folder of node_exporter's textfile
# collector. CASES (default: the package's own) is a file of the service's cases, DEVICE (default: cuda) where it runs.
set -euo pipefail

matrix=${1:?the file of versions}
metrics=${2:-}
device=${DEVICE:-cuda}

status=0
lowdnn doctor --device "$device" --require "$matrix" || status=$?
verify=(lowdnn verify --device "$device")
if [ -n "${CASES:-}" ]; then verify+=("@$CASES"); fi
if [ -n "$metrics" ]; then verify+=(--metrics "$metrics"); fi
# Also where the doctor has found something: the metrics tell the dashboards.
"${verify[@]}" || status=$?
exit "$status"
