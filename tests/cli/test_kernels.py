"""``lowdnn kernels`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowdnn.cli.main import main

CASE = "softmax dims=1..64x64..512/4 dtype=fp32"
EMULATED = ["--device", "emulated"]


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOWDNN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_table_of_what_each_kernel_gains(capsys: pytest.CaptureFixture[str], cache_dir: Path) -> None:
    assert main(["kernels", CASE, "--max-kernels", "5", "--shapes", "30", *EMULATED]) == 0
    heading, columns, *rows = capsys.readouterr().out.splitlines()
    assert heading.startswith("30 shapes: the best plans need ")
    assert columns.split() == ["kernels", "mean", "worst", "waiting", "added"]
    assert 1 <= len(rows) <= 5
    means = [float(row.split()[1]) for row in rows if row.split()[3] == "0"]
    assert means == sorted(means, reverse=True)
    assert not cache_dir.exists()


def test_the_set_is_compiled_for_other_processes(capsys: pytest.CaptureFixture[str], cache_dir: Path) -> None:
    arguments = ["kernels", CASE, "--max-kernels", "2", "--shapes", "4", *EMULATED]
    main([*arguments, "--build"])
    built = [line for line in capsys.readouterr().out.splitlines() if " on disk  " in line]
    assert [line.split()[0] for line in built] == [str(number + 1) for number in range(len(built))]
    entries = [path.read_bytes() for path in (cache_dir / "v1").glob("*.bin")]
    for line in built:
        name = line.split()[-1].encode()
        assert any(b".entry " + name in entry for entry in entries)


def test_json_names_the_plan_of_each_shape(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "cases.txt").write_text(
        "# lowdnn cases with counts\n9\tsoftmax dims=4x64\n1\tsoftmax dims=4x64 dtype=bf16\n"
    )
    assert main(["kernels", f"@{tmp_path / 'cases.txt'}", "--max-kernels", "1", "--json", *EMULATED]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(shape["weight"], shape["slowdown"]) for shape in found["shapes"]] == [(9.0, 1.0), (1.0, None)]
    assert found["shapes"][0]["served"] == found["shapes"][0]["best"]
    assert [step["waiting"] for step in found["steps"]] == [1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["matmul m=9..3 n=4 k=4"], "expected first..last or first..last/step, with step > 0, got 9..3"),
        (["softmax dims=4x64", "--max-kernels", "0"], "max_kernels: expected at least 1, got 0"),
        (["softmax dims=4x64", "--shapes", "0"], "shapes: expected 1 to"),
        (["attention x=1"], "expected a line that starts with"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", *arguments, *EMULATED]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("case", "most", "status", "told"),
    [
        (
            "matmul m=0 n=4 k=4",
            "1",
            0,
            "need 0 kernels; none is taken, and 1 of them run without",
        ),
        ("conv n=1 c=3 hw=5x5 k=2 rs=3x3 dir=wgrad", "1", 0, "1 shape: the best plans need 1 kernels"),
        ("rnn cell=lstm t=2 b=2 i=8 h=8", "1", 1, "none is taken, and 0 of them run without"),
    ],
)
def test_sets_without_a_kernel(
    case: str, most: str, status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernels", case, "--max-kernels", most, "--build", *EMULATED]) == status
    assert told in capsys.readouterr().out
    assert main(["kernels", case, "--max-kernels", most, "--json", *EMULATED]) == status
    assert json.loads(capsys.readouterr().out)["shapes"][0]["case"].startswith(case.split()[0])


SMALL = "softmax dims=4x64 dtype=fp32"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "LOWDNN_CACHE_DIR",
            "/proc/lowdnn",
            "cache.directory: expected a directory that can be written, got /proc/lowdnn",
        ),
        ("LOWDNN_CACHE_DIR", "/dev/null", "got /dev/null: not a directory"),
        ("LOWDNN_DISK_CACHE", "off", "handle.config.disk_cache: expected a directory for kernels, got none"),
        ("LOWDNN_CACHE_SIZE", "500", "cache.directory: expected room for every kernel"),
        ("LOWDNN_CACHE_SIZE", "6000", "cache.directory: expected room for every kernel"),
    ],
)
def test_kernels_that_are_not_kept_are_not_told_to_be(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["kernels", SMALL, "norm dims=4x64 mode=layer", "--build", *EMULATED]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert "2 of 2 on disk" not in output.out or value == "6000"
