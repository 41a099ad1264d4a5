"""Failing calls are kept, whole or not at all, and never hurt the call."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lowdnn
from lowdnn.backend.dumping import DumpWarning
from lowdnn.backend.dumps import MAX_DUMPS, Dump, read_bytes, read_dump
from lowdnn.backend.handle import Handle
from lowdnn.config import Config, DumpInputs
from lowdnn.driver.base import DriverError
from lowdnn.enums import DataType
from lowdnn.frontend.handle import Handle as FrontendHandle
from lowdnn.frontend.python_graph import pygraph
from lowdnn.runtime.stream import Stream
from lowdnn.status import BadParamError, LowdnnError, NullPointerError
from tests.support.data import fresh_seed

FLOAT = DataType.FLOAT
SIZE = 4


class Product:
    """A graph c = a b on a handle that keeps failing calls in ``directory``."""

    def __init__(self, directory: Path, faults: str = "", **changes: object) -> None:
        config = replace(Config.from_environment(), dump_dir=directory, **changes)  # type: ignore[arg-type]
        self.handle = FrontendHandle.open("emulated", arch="sm_80", faults=faults, config=config)
        self.graph = pygraph("product", FLOAT, FLOAT, FLOAT, handle=self.handle)
        tensors = [self.graph.tensor([1, SIZE, SIZE], name=name) for name in "ab"]
        self.graph.matmul(*tensors).set_output(True).set_name("c")
        self.graph.build()
        rng = np.random.default_rng(fresh_seed())
        self.values = [rng.random((1, SIZE, SIZE), np.float32) for _ in "ab"]
        a, b = (lowdnn.from_numpy(value, self.handle) for value in self.values)
        self.pack: dict[object, object] = {
            "a": a,
            "b": b,
            "c": lowdnn.from_numpy(np.zeros_like(self.values[0]), self.handle),
        }

    def execute(self) -> None:
        self.graph.execute(self.pack, None, self.handle)

    def __enter__(self) -> Product:
        return self

    def __exit__(self, *_: object) -> None:
        self.handle.close()


def dumps_in(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.exists() else []


def only_dump(directory: Path) -> tuple[Path, Dump]:
    (path,) = dumps_in(directory)
    return path, read_dump(path)


def test_a_launch_that_fails_is_kept_with_its_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "dumps"
    with Product(directory, "launch:1=OUT_OF_MEMORY") as product, caplog.at_level(logging.ERROR, logger="lowdnn.dump"):
        with pytest.raises(LowdnnError, match="injected into launch 1"):
            product.execute()
        product.execute()
    path, dump = only_dump(directory)
    assert (dump.failure, dump.device, dump.device_name) == ("execute", "emulated", "sm_80")
    assert "injected into launch 1" in dump.error
    assert dump.command.startswith("lowdnn run --check --device emulated --arch sm_80")
    kept = {(one.uid, one.moment): read_bytes(path, one) for one in dump.tensors}
    names = {tensor["name"]: tensor["uid"] for tensor in dump.plan["plan"]["tensors"]}
    assert kept[names["a"], "before"] == product.values[0].tobytes()
    assert kept[names["b"], "before"] == product.values[1].tobytes()
    assert kept[names["c"], "after"] == bytes(4 * SIZE * SIZE)
    assert f'replay="lowdnn replay {path}"' in caplog.text
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}


def test_each_error_of_a_plan_is_kept_once(tmp_path: Path) -> None:
    with Product(tmp_path / "dumps", "launch:1-5=OUT_OF_MEMORY") as product:
        for _ in range(5):
            with pytest.raises(LowdnnError):
                product.execute()
        product.execute()
    only_dump(tmp_path / "dumps")


def test_after_a_kernels_fault_the_data_are_said_to_be_lost(tmp_path: Path) -> None:
    faults = "launch:1-=ILLEGAL_ADDRESS,memcpy_dtoh_async:*=ILLEGAL_ADDRESS"
    with Product(tmp_path / "dumps", faults) as product, pytest.raises(LowdnnError):
        product.execute()
    _, dump = only_dump(tmp_path / "dumps")
    assert all(not one.file and "CUDA_ERROR_ILLEGAL_ADDRESS" in one.missing for one in dump.tensors)


def test_data_that_are_read_before_survive_a_fault(tmp_path: Path) -> None:
    faults = "launch:2-=ILLEGAL_ADDRESS,memcpy_dtoh_async:7-=ILLEGAL_ADDRESS"
    with Product(tmp_path / "dumps", faults, dump_inputs=DumpInputs.BEFORE) as product:
        product.execute()
        with pytest.raises(LowdnnError):
            product.execute()
    path, dump = only_dump(tmp_path / "dumps")
    before = [read_bytes(path, one) for one in dump.tensors if one.moment == "before"]
    assert before[:2] == [value.tobytes() for value in product.values]
    assert np.frombuffer(before[2], np.float32).any()  # the first execute's result


def test_an_error_at_the_wait_keeps_the_last_execute(tmp_path: Path) -> None:
    with Product(tmp_path / "dumps", "stream_synchronize:4-=LAUNCH_FAILED") as product:
        product.execute()
        while dumps_in(tmp_path / "dumps") == []:
            with suppress(DriverError):
                product.handle.synchronize()
    _, dump = only_dump(tmp_path / "dumps")
    assert "LAUNCH_FAILED" in dump.error


def test_refused_arguments_are_kept_without_data(tmp_path: Path) -> None:
    with Product(tmp_path / "dumps") as product:
        product.pack["c"] = 0
        with pytest.raises(NullPointerError):
            product.execute()
    _, dump = only_dump(tmp_path / "dumps")
    assert {one.missing for one in dump.tensors} == {"the call's arguments were refused"}


def test_captured_executes_are_not_read(tmp_path: Path) -> None:
    with Product(tmp_path / "dumps", "launch:2=OUT_OF_MEMORY", dump_inputs=DumpInputs.BEFORE) as product:
        product.execute()
        with Stream.create(product.handle.runtime.context) as stream:
            product.handle.set_stream(stream)
            stream.begin_capture()
            with pytest.raises(LowdnnError):
                product.execute()
            product.execute()
            graph = stream.end_capture()
            with product.handle.runtime.context.activated():
                assert len(product.handle.runtime.driver.graph_nodes(graph)) == 1
    _, dump = only_dump(tmp_path / "dumps")
    assert {one.missing for one in dump.tensors} == {"the stream was being captured"}


def _full(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)


def _open_to_others(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.mkdir()
    directory.chmod(0o777)


def _link(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = directory.parent / "other"
    other.mkdir()
    directory.symlink_to(other)


def _file(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.write_text("no folder")


def _many(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.mkdir(mode=0o700)
    for number in range(MAX_DUMPS):
        (directory / f"dump-{number}").mkdir()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_full, "No space left on device"),
        (_open_to_others, "mode 0777 lets others write"),
        (_link, "symlinks are refused"),
        (_file, "not a directory"),
        (_many, "the most that are kept"),
    ],
)
def test_a_place_that_takes_no_dump_is_told_once_and_hurts_no_call(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
    reason: str,
) -> None:
    directory = tmp_path / "dumps"
    spoil(directory, monkeypatch)
    before = sorted(path.name for path in dumps_in(directory)) if directory.is_dir() else []
    with Product(directory, "launch:1=OUT_OF_MEMORY,launch:2=LAUNCH_OUT_OF_RESOURCES") as product:
        with pytest.warns(DumpWarning, match=reason), pytest.raises(LowdnnError, match="injected into launch 1"):
            product.execute()
        with pytest.raises(LowdnnError, match="injected into launch 2"):
            product.execute()  # warnings are errors here
        product.execute()
    after = sorted(path.name for path in dumps_in(directory)) if directory.is_dir() else []
    assert after == before


def test_tensors_beyond_the_limit_are_left_out(tmp_path: Path) -> None:
    with (
        Product(tmp_path / "dumps", "launch:1=OUT_OF_MEMORY", dump_limit_bytes=100) as product,
        pytest.warns(DumpWarning, match="LOWDNN_DUMP_SIZE"),
        pytest.raises(LowdnnError),
    ):
        product.execute()
    assert dumps_in(tmp_path / "dumps") == []


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    with Product(tmp_path / "dumps", "launch:1=OUT_OF_MEMORY") as product, pytest.raises(LowdnnError):
        product.execute()
    return only_dump(tmp_path / "dumps")[0]


def _changed(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    document = path / "dump.json"
    content = json.loads(document.read_text())
    change(content)
    document.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content.update(lowdnn_dump=2), "dump.lowdnn_dump: expected 1, got 2"),
        (lambda content: content.pop("plan"), "expected the fields"),
        (lambda content: content.update(failure="maybe"), "dump.failure: expected execute or check"),
        (lambda content: content.update(tensors=[7]), "expected an object with the fields of a tensor"),
        (lambda content: content["tensors"][0].update(file="../../etc/passwd"), r"file: expected .*raw or none"),
        (lambda content: content["tensors"][0].update(moment="never"), "moment: expected before or after"),
        (lambda content: content["tensors"][0].update(size_bytes=-1), "bytes at an address"),
        (lambda content: content["tensors"][0].update(extra=1), "expected the fields"),
    ],
)
def test_foreign_documents_are_refused(kept: Path, change: Callable[[dict[str, object]], object], reason: str) -> None:
    _changed(kept, change)
    with pytest.raises(LowdnnError, match=reason):
        read_dump(kept)


def test_damaged_bytes_are_refused(kept: Path) -> None:
    tensor = read_dump(kept).tensors[0]
    data = bytearray((kept / tensor.file).read_bytes())
    data[7] ^= 1
    for wrong in (bytes(data), bytes(data[:-1]), bytes(data) + b"x"):
        (kept / tensor.file).write_bytes(wrong)
        with pytest.raises(BadParamError, match="which is damaged"):
            read_bytes(kept, tensor)
    (kept / tensor.file).unlink()
    (kept / tensor.file).symlink_to("/etc/passwd")
    with pytest.raises(BadParamError, match="the folder of a dump"):
        read_bytes(kept, tensor)


def test_what_is_no_dump_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", Path("/dev/null")):
        with pytest.raises(BadParamError, match="dump: expected the folder of a dump"):
            read_dump(path)


def test_nothing_is_kept_unless_asked_for() -> None:
    with Handle.open("emulated", config=replace(Config.from_environment(), dump_dir=None)) as handle:
        assert handle.dumper is None
