"""The jobs in ``tools/examples/operations`` run on the emulated device, and every command in them is one."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowdnn.cli.doctor.requirements import read_requirements
from lowdnn.cli.main import _parser

FOLDER = Path(__file__).resolve().parents[2] / "tools" / "examples" / "operations"
CASES = "pointwise dims=8x8 ops=relu dtype=fp32\nreduction dims=5x300 axes=1 op=add dtype=fp32\n"


def ran(script: str, arguments: list[str], folder: Path, shim: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The script with a ``lowdnn`` of its own on the path, which ``shim`` says."""
    command = folder / "bin" / "lowdnn"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f"#!/bin/sh\n{shim}\n")
    command.chmod(0o755)
    path = f"{command.parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "DEVICE": "emulated", "LOWDNN_CACHE_DIR": str(folder / "cache")} | more
    return subprocess.run(
        [str(FOLDER / script), *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


REAL = f'exec {shlex.quote(sys.executable)} -m lowdnn "$@"'
#: Writes its arguments down, and fails for the first word of $FAILS.
SAYS = 'echo "$@" >> said\ntest "$1" != "$FAILS"'


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parents[2]))


def test_a_node_that_is_fit(tmp_path: Path) -> None:
    (tmp_path / "cases").write_text(CASES)
    metrics = tmp_path / "lowdnn.prom"
    done = ran("check_node.sh", [str(FOLDER / "matrix_cpu.txt"), str(metrics)], tmp_path, REAL, CASES="cases")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^lowdnn_verify_failures\{.*\} (.*)$", metrics.read_text(), re.MULTILINE) == ["0.0", "0.0"]


@pytest.mark.parametrize(("fails", "status"), [("", 0), ("doctor", 1), ("verify", 1)])
def test_a_node_is_judged_by_both_commands(fails: str, status: int, tmp_path: Path) -> None:
    done = ran("check_node.sh", ["matrix", "metrics"], tmp_path, SAYS, FAILS=fails)
    assert done.returncode == status
    said = (tmp_path / "said").read_text().splitlines()
    assert said == ["doctor --device emulated --require matrix", "verify --device emulated --metrics metrics"]


def test_a_regression_is_found(tmp_path: Path) -> None:
    """The first run keeps times and outputs, the second compares; a baseline that differs fails."""
    (tmp_path / "cases").write_text(CASES.splitlines()[0])
    for is_compared in (False, True):
        done = ran("regression_gate.sh", ["cases", "times.jsonl", "baseline.npz"], tmp_path, REAL, RUNS="1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "ok       0 error" in done.stdout
        assert ("against 1 saved runs" in done.stdout) is is_compared
    kept = (tmp_path / "times.jsonl").read_text()
    assert kept.count("\n") == 1


@pytest.mark.parametrize(("fails", "status"), [("", 0), ("bench", 1), ("verify", 1)])
def test_a_version_is_judged_by_both_commands(fails: str, status: int, tmp_path: Path) -> None:
    for name in ("times", "baseline"):
        (tmp_path / name).touch()
    assert ran("regression_gate.sh", ["cases", "times", "baseline"], tmp_path, SAYS, FAILS=fails).returncode == status
    said = (tmp_path / "said").read_text().splitlines()
    assert said == [
        "bench @cases --device emulated --compare times",
        "verify --device emulated --baseline baseline",
    ]


def test_the_version_in_production_is_timed_five_times(tmp_path: Path) -> None:
    assert ran("regression_gate.sh", ["cases", "times", "baseline"], tmp_path, SAYS, FAILS="").returncode == 0
    *timed, saved = (tmp_path / "said").read_text().splitlines()
    assert timed == ["bench @cases --device emulated --save times"] * 5
    assert saved == "verify @cases --device emulated --save baseline"


def test_scripts_say_which_argument_is_missing(tmp_path: Path) -> None:
    for script in FOLDER.glob("*.sh"):
        done = ran(script.name, [], tmp_path, SAYS)
        assert done.returncode != 0
        assert re.search(r": (the file of versions|a file of cases)$", done.stderr.strip())


@pytest.mark.parametrize("matrix", sorted(FOLDER.glob("matrix*.txt")), ids=lambda path: path.stem)
def test_matrices_are_read(matrix: Path) -> None:
    assert read_requirements(str(matrix))


def test_every_command_is_one() -> None:
    commands = [line for path in FOLDER.iterdir() for line in _commands(path.read_text(encoding="utf-8"))]
    assert len(commands) >= 3
    for command in commands:
        _parser().parse_args(shlex.split(command)[1:])


def test_containers_are_restricted_and_share_a_matrix(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")))
    assert [document["kind"] for document in documents] == ["ConfigMap", "Deployment", "CronJob"]
    file = tmp_path / "matrix"
    file.write_text(documents[0]["data"]["matrix.txt"])
    assert read_requirements(str(file))
    containers = [each for document in documents[1:] for each in _containers(document)]
    assert len(containers) == 3
    for container in containers:
        assert container["securityContext"]["readOnlyRootFilesystem"]
        cache = {entry["name"]: entry["value"] for entry in container["env"]}["LOWDNN_CACHE_DIR"]
        mounts = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
        assert any(cache.startswith(f"{mount}/") for mount in mounts), "a folder in the volume is made by its user"
    pods = [found for document in documents[1:] for found in _with_key(document, "runAsNonRoot")]
    assert [pod["fsGroupChangePolicy"] for pod in pods] == ["OnRootMismatch"] * 2


def test_scripts_of_the_pipeline_are_there() -> None:
    jobs = yaml.safe_load((FOLDER / "ci.yaml").read_text(encoding="utf-8"))["jobs"]
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    scripts = [shlex.split(step)[0] for step in steps if not step.startswith("lowdnn ")]
    assert len(steps) == 4
    assert all((FOLDER.parents[2] / script).is_file() for script in scripts)


def _commands(text: str) -> Iterator[str]:
    """The lines, or their ends, that run lowdnn with words alone."""
    for line in text.splitlines():
        found = re.search(r"(?:^|run: |RUN )(lowdnn [a-z][^\"$]*)$", line.strip())
        if found:
            yield found[1]


def _with_key(value: Any, key: str) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if key in value:
            yield value
        for each in value.values():
            yield from _with_key(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _with_key(each, key)


def _containers(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return _with_key(document, "image")
