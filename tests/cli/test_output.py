"""A command ends with a line and a status that say so where its output reaches nobody, and loses no characters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lowdnn.bench.runs import saved_runs

LOWDNN = f"{sys.executable} -m lowdnn"
TUNE = "tune 'softmax dims=4x8' 'softmax dims=8x8' --device emulated"
FULL, CLOSED = "standard output cannot be written: No space left on device", "standard output is closed"


def ended(script: str, **environment: str) -> tuple[int, str, str]:
    """Status, standard output and standard error of a shell script with ``lowdnn`` for the command."""
    text = script.replace("lowdnn", LOWDNN)
    done = subprocess.run(["bash", "-c", text], capture_output=True, timeout=60, check=False, env=environment)
    return done.returncode, done.stdout.decode("latin-1"), done.stderr.decode()


@pytest.mark.parametrize(
    ("script", "status", "error"),
    [
        ("lowdnn guide memory > /dev/full", 2, FULL),
        ("lowdnn --help > /dev/full", 2, FULL),
        (f"lowdnn {TUNE} > /dev/full", 2, FULL),
        ("lowdnn guide memory >&-", 2, CLOSED),
        ("lowdnn run --help >&-", 2, CLOSED),
        ("lowdnn guide reference/pygraph | true; exit ${PIPESTATUS[0]}", 141, "the reader of standard output has gone"),
        ("lowdnn guide nothing 2> /dev/full", 2, ""),
        ("lowdnn guide nothing 2>&-", 2, ""),
        ("lowdnn guide memory > /dev/full 2>&-", 2, ""),
    ],
)
def test_output_that_reaches_nobody(script: str, status: int, error: str, tmp_path: Path) -> None:
    found = ended(script, LOWDNN_TUNING_PATH=str(tmp_path))
    assert found == (status, "", f"lowdnn: {error}\n" if error else "")


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "/\\xb5\\u2265\\udcff"), ("latin-1", "/\xb5\\u2265\\udcff")])
def test_characters_that_the_encoding_lacks_are_escaped(encoding: str, shown: str) -> None:
    script = "LOWDNN_TUNING_PATH=$'/\\u00b5\\u2265\\xff' exec lowdnn info"
    status, out, error = ended(script, PYTHONIOENCODING=encoding, LC_ALL="C.UTF-8")
    assert (status, error) == (0, "")
    assert f"  {shown} " in out


def test_warnings_are_one_line_each() -> None:
    status, _, error = ended("lowdnn info", LOWDNN_CACHE_SIZE="a lot")
    assert status == 0
    assert error.startswith("lowdnn: warning: LOWDNN_CACHE_SIZE='a lot' is not understood")
    assert error.count("\n") == 1


def test_a_benchmark_without_an_output_keeps_what_it_timed(tmp_path: Path) -> None:
    script = f"lowdnn bench 'softmax dims=4x8' --device emulated --rounds 1 --save {tmp_path}/runs > /dev/full"
    status, _, error = ended(script)
    assert status == 2
    assert error == f"lowdnn: {FULL}; 1 of 1 cases were timed, and are in {tmp_path}/runs\n"
    assert len(saved_runs(tmp_path / "runs")) == 1
